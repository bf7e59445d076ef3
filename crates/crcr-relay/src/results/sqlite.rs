//! Facts in SQLite: three tables, written by the store's own transactions.

use std::sync::Arc;

use async_trait::async_trait;
use crcr_domain::Level;
use crcr_domain::facts::{AttemptFact, CallbackFact, DispatchFact, Fact};
use crcr_domain::lifecycle::State;
use crcr_domain::results::DayOf;
use jiff::Timestamp;
use rusqlite::types::Type;
use rusqlite::{Connection, Row, params};
use serde::de::DeserializeOwned;

use super::retention::{DAY, day_number, day_of, last_day};
use super::{Mark, Results, ResultsError, Rolled, Window, callback_id};
use crate::store::sqlite::{Sqlite, millis, timestamp};
use crate::store::{Batch, Store as _, StoreError};

/// Times are milliseconds since 1970; repositories compare without case. Of the rows of a dispatch
/// or an attempt only the one that holds is kept.
pub(crate) const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS fact_dispatch (
    at INTEGER NOT NULL, delivery TEXT NOT NULL, upstream TEXT NOT NULL, pull_request INTEGER,
    head_sha TEXT NOT NULL, event TEXT NOT NULL, repo TEXT NOT NULL COLLATE NOCASE,
    level TEXT NOT NULL, labels TEXT NOT NULL, enqueued_at INTEGER NOT NULL, sent_at INTEGER,
    status TEXT NOT NULL, superseded_by TEXT, tries INTEGER NOT NULL, last_error TEXT,
    rank INTEGER NOT NULL, base_sha TEXT
);
CREATE UNIQUE INDEX IF NOT EXISTS fact_dispatch_key ON fact_dispatch (delivery, repo);
CREATE INDEX IF NOT EXISTS fact_dispatch_repo ON fact_dispatch (repo, enqueued_at, level);
CREATE INDEX IF NOT EXISTS fact_dispatch_time ON fact_dispatch (enqueued_at);
CREATE INDEX IF NOT EXISTS fact_dispatch_pull ON fact_dispatch (pull_request);
CREATE TABLE IF NOT EXISTS fact_attempt (
    received_at INTEGER NOT NULL, repo TEXT NOT NULL COLLATE NOCASE, delivery TEXT NOT NULL,
    workflow TEXT NOT NULL, job TEXT, run_id TEXT NOT NULL, run_attempt INTEGER NOT NULL,
    check_run_id TEXT, state TEXT NOT NULL, rank INTEGER NOT NULL, start_unknown INTEGER NOT NULL,
    phase TEXT, queue_seconds REAL, execution_seconds REAL, started_at INTEGER,
    completed_at INTEGER, tests TEXT, failed_tests TEXT NOT NULL, url TEXT, artifact_url TEXT,
    environment TEXT, level TEXT NOT NULL, event TEXT NOT NULL, upstream TEXT NOT NULL,
    pull_request INTEGER, head_sha TEXT NOT NULL, dispatched_at INTEGER NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS fact_attempt_key ON fact_attempt (delivery, repo, run_id,
    run_attempt, workflow, ifnull(job, ''), ifnull(check_run_id, ''));
CREATE INDEX IF NOT EXISTS fact_attempt_repo ON fact_attempt (repo, dispatched_at);
CREATE INDEX IF NOT EXISTS fact_attempt_time ON fact_attempt (dispatched_at);
CREATE INDEX IF NOT EXISTS fact_attempt_pull ON fact_attempt (pull_request);
CREATE TABLE IF NOT EXISTS fact_callback (
    at INTEGER NOT NULL, repo TEXT COLLATE NOCASE, delivery TEXT, run_id TEXT, job TEXT,
    status TEXT, conclusion TEXT, outcome TEXT NOT NULL, answer INTEGER NOT NULL, detail TEXT,
    latency_ms REAL NOT NULL, id INTEGER NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS fact_callback_time ON fact_callback (at, id);
CREATE INDEX IF NOT EXISTS fact_callback_repo ON fact_callback (repo, at);
CREATE TABLE IF NOT EXISTS fact_day (
    day INTEGER NOT NULL, repo TEXT NOT NULL COLLATE NOCASE, changes INTEGER NOT NULL,
    PRIMARY KEY (day, repo)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS rolled_day (
    day INTEGER NOT NULL, repo TEXT NOT NULL, nightly INTEGER NOT NULL, tally TEXT NOT NULL,
    PRIMARY KEY (day, repo, nightly)
) WITHOUT ROWID;
";

/// Keeps a row, inside the transaction that made it true, unless a newer one is there.
pub(crate) fn append(connection: &Connection, fact: &Fact) -> rusqlite::Result<()> {
    match fact {
        Fact::Dispatch(fact) => append_dispatch(connection, fact),
        Fact::Attempt(fact) => append_attempt(connection, fact),
        Fact::Callback(fact) => append_callback(connection, fact),
    }
}

/// Counts a change of a repository's day.
fn mark(connection: &Connection, repo: &str, at: Timestamp) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO fact_day VALUES (?1, lower(?2), 1)
             ON CONFLICT (day, repo) DO UPDATE SET changes = changes + 1",
        )?
        .execute(params![day_of(at), repo])?;
    Ok(())
}

fn append_dispatch(connection: &Connection, fact: &DispatchFact) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO fact_dispatch
             VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17)
             ON CONFLICT (delivery, repo) DO UPDATE SET at = excluded.at,
               upstream = excluded.upstream, pull_request = excluded.pull_request,
               head_sha = excluded.head_sha, event = excluded.event, repo = excluded.repo,
               level = excluded.level, labels = excluded.labels,
               enqueued_at = excluded.enqueued_at, sent_at = excluded.sent_at,
               status = excluded.status, superseded_by = excluded.superseded_by,
               tries = excluded.tries, last_error = excluded.last_error, rank = excluded.rank,
               base_sha = excluded.base_sha
             WHERE (excluded.at, excluded.rank) > (at, rank)",
        )?
        .execute(params![
            millis(fact.at),
            fact.delivery,
            fact.upstream,
            fact.pull_request.map(u64::cast_signed),
            fact.head_sha,
            fact.event,
            fact.repo,
            fact.level.as_str(),
            json(&fact.labels),
            millis(fact.enqueued_at),
            fact.sent_at.map(millis),
            fact.status,
            fact.superseded_by,
            fact.tries,
            fact.last_error,
            fact.version().1,
            fact.base_sha,
        ])?;
    mark(connection, &fact.repo, fact.enqueued_at)
}

fn append_attempt(connection: &Connection, fact: &AttemptFact) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO fact_attempt VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,
             ?16,?17,?18,?19,?20,?21,?22,?23,?24,?25,?26,?27)
             ON CONFLICT (delivery, repo, run_id, run_attempt, workflow, ifnull(job, ''),
               ifnull(check_run_id, '')) DO UPDATE SET received_at = excluded.received_at,
               repo = excluded.repo, state = excluded.state, rank = excluded.rank,
               start_unknown = excluded.start_unknown, phase = excluded.phase,
               queue_seconds = excluded.queue_seconds,
               execution_seconds = excluded.execution_seconds,
               started_at = excluded.started_at, completed_at = excluded.completed_at,
               tests = excluded.tests, failed_tests = excluded.failed_tests, url = excluded.url,
               artifact_url = excluded.artifact_url, environment = excluded.environment,
               level = excluded.level, event = excluded.event, upstream = excluded.upstream,
               pull_request = excluded.pull_request, head_sha = excluded.head_sha,
               dispatched_at = excluded.dispatched_at
             WHERE (excluded.rank, excluded.received_at) > (rank, received_at)",
        )?
        .execute(params![
            millis(fact.received_at),
            fact.repo,
            fact.delivery,
            fact.workflow,
            fact.job,
            fact.run_id,
            fact.run_attempt,
            fact.check_run_id,
            json(&fact.state),
            fact.state.rank(),
            fact.start_unknown,
            fact.phase,
            fact.queue_seconds,
            fact.execution_seconds,
            fact.started_at.map(millis),
            fact.completed_at.map(millis),
            fact.tests.as_ref().map(json),
            json(&fact.failed_tests),
            fact.url,
            fact.artifact_url,
            fact.environment,
            fact.level.as_str(),
            fact.event,
            fact.upstream,
            fact.pull_request.map(u64::cast_signed),
            fact.head_sha,
            millis(fact.dispatched_at),
        ])?;
    mark(connection, &fact.repo, fact.dispatched_at)
}

fn append_callback(connection: &Connection, fact: &CallbackFact) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT OR IGNORE INTO fact_callback VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12)",
        )?
        .execute(params![
            millis(fact.at),
            fact.repo,
            fact.delivery,
            fact.run_id,
            fact.job,
            fact.status,
            fact.conclusion,
            fact.outcome.as_str(),
            fact.answer,
            fact.detail,
            fact.latency_ms,
            callback_id(fact).cast_signed(),
        ])?;
    mark(connection, "", fact.at)
}

/// Reads facts of a SQLite store.
#[derive(Clone)]
pub struct SqliteResults {
    store: Arc<Sqlite>,
}

#[async_trait]
impl Results for SqliteResults {
    /// Opening has done it.
    async fn prepare(&self) -> Result<(), ResultsError> {
        Ok(())
    }

    async fn append(&self, facts: Vec<Fact>) -> Result<(), ResultsError> {
        let batch = Batch { facts, ..Batch::default() };
        self.store.commit(batch, Timestamp::now()).await?;
        Ok(())
    }

    async fn dispatches(&self, window: &Window) -> Result<Vec<DispatchFact>, ResultsError> {
        let window = window.clone();
        self.blocking(move |this| this.dispatches(&window)).await
    }

    async fn attempts(&self, window: &Window) -> Result<Vec<AttemptFact>, ResultsError> {
        let window = window.clone();
        self.blocking(move |this| this.attempts(&window)).await
    }

    async fn callbacks(&self, window: &Window) -> Result<Vec<CallbackFact>, ResultsError> {
        let window = window.clone();
        self.blocking(move |this| this.callbacks(&window)).await
    }

    async fn at_level_since(
        &self,
        window: &Window,
        level: Level,
    ) -> Result<Option<Timestamp>, ResultsError> {
        let window = window.clone();
        self.blocking(move |this| this.at_level_since(&window, level)).await
    }

    async fn marks(&self, window: &Window) -> Result<Vec<Mark>, ResultsError> {
        let window = window.clone();
        self.blocking(move |this| this.marks(&window)).await
    }

    async fn rolled(&self, window: &Window) -> Result<Vec<Rolled>, ResultsError> {
        let window = window.clone();
        self.blocking(move |this| this.rolled(&window)).await
    }

    async fn keep(&self, days: &[Rolled]) -> Result<(), ResultsError> {
        let rows: Vec<_> = days
            .iter()
            .map(|Rolled { day, tally }| {
                (day_number(day), day.repo.clone(), day.nightly, json(tally))
            })
            .collect();
        self.blocking(move |this| {
            this.store.beside(|connection| {
                let tx = connection.unchecked_transaction()?;
                for (day, repo, nightly, tally) in &rows {
                    tx.prepare_cached("INSERT OR REPLACE INTO rolled_day VALUES (?1, ?2, ?3, ?4)")?
                        .execute(params![day, repo, nightly, tally])?;
                }
                tx.commit()
            })
        })
        .await
    }

    async fn delete_before(&self, time: Timestamp) -> Result<(), ResultsError> {
        self.blocking(move |this| {
            this.store.beside(|connection| {
                for (table, column, end) in [
                    ("fact_attempt", "dispatched_at", millis(time)),
                    ("fact_dispatch", "enqueued_at", millis(time)),
                    ("fact_callback", "at", millis(time)),
                    ("fact_day", "day", day_of(time)),
                ] {
                    let key = if table == "fact_day" { "(day, repo)" } else { "rowid" };
                    let columns = key.trim_matches(['(', ')']);
                    // In portions: the relay writes between them.
                    let delete = format!(
                        "DELETE FROM {table} WHERE {key} IN
                           (SELECT {columns} FROM {table} WHERE {column} < ?1 LIMIT 5000)"
                    );
                    while connection.execute(&delete, [end])? > 0 {}
                }
                Ok(())
            })
        })
        .await
    }

    async fn of_pull(
        &self,
        upstream: &str,
        number: u64,
    ) -> Result<(Vec<AttemptFact>, Vec<DispatchFact>), ResultsError> {
        let upstream = upstream.to_owned();
        self.blocking(move |this| this.of_pull(&upstream, number)).await
    }
}

impl SqliteResults {
    /// The facts that `store` holds.
    #[must_use]
    pub fn new(store: Arc<Sqlite>) -> Self {
        Self { store }
    }

    /// Reads off the threads that serve requests.
    async fn blocking<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Self) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, ResultsError> {
        let this = self.clone();
        match tokio::task::spawn_blocking(move || read(&this)).await {
            Ok(answer) => Ok(answer?),
            Err(error) => Err(ResultsError::Unavailable(error.to_string())),
        }
    }

    /// See [`Results::dispatches`].
    pub fn dispatches(&self, window: &Window) -> Result<Vec<DispatchFact>, StoreError> {
        self.select(
            "SELECT * FROM fact_dispatch WHERE enqueued_at >= ?1 AND enqueued_at < ?2
               AND (?3 IS NULL OR repo = ?3) ORDER BY enqueued_at, delivery, repo",
            window,
            read_dispatch,
        )
    }

    /// See [`Results::attempts`].
    pub fn attempts(&self, window: &Window) -> Result<Vec<AttemptFact>, StoreError> {
        self.select(
            "SELECT * FROM fact_attempt WHERE dispatched_at >= ?1 AND dispatched_at < ?2
               AND (?3 IS NULL OR repo = ?3) ORDER BY received_at, delivery, repo, run_id,
               run_attempt, workflow, job, check_run_id",
            window,
            read_attempt,
        )
    }

    /// See [`Results::callbacks`].
    pub fn callbacks(&self, window: &Window) -> Result<Vec<CallbackFact>, StoreError> {
        self.select(
            "SELECT * FROM fact_callback WHERE at >= ?1 AND at < ?2
               AND (?3 IS NULL OR repo = ?3) ORDER BY at, id",
            window,
            read_callback,
        )
    }

    /// See [`Results::of_pull`].
    pub fn of_pull(
        &self,
        upstream: &str,
        number: u64,
    ) -> Result<(Vec<AttemptFact>, Vec<DispatchFact>), StoreError> {
        let number = number.cast_signed();
        self.store.readers().with(|connection| {
            let attempts = connection
                .prepare_cached(
                    "SELECT * FROM fact_attempt WHERE pull_request = ?2
                       AND upstream = ?1 COLLATE NOCASE ORDER BY received_at, delivery, repo,
                       run_id, run_attempt, workflow, job, check_run_id",
                )?
                .query_map(params![upstream, number], read_attempt)?
                .collect::<rusqlite::Result<_>>()?;
            let dispatches = connection
                .prepare_cached(
                    "SELECT * FROM fact_dispatch WHERE pull_request = ?2
                       AND upstream = ?1 COLLATE NOCASE ORDER BY enqueued_at, delivery, repo",
                )?
                .query_map(params![upstream, number], read_dispatch)?
                .collect::<rusqlite::Result<_>>()?;
            Ok((attempts, dispatches))
        })
    }

    fn at_level_since(
        &self,
        window: &Window,
        level: Level,
    ) -> Result<Option<Timestamp>, StoreError> {
        self.store.readers().with(|connection| {
            let since: Option<i64> = connection
                .prepare_cached(
                    "SELECT min(enqueued_at) FROM fact_dispatch
                     WHERE repo = ?3 AND enqueued_at >= ?1 AND enqueued_at < ?2
                       AND enqueued_at > ifnull((SELECT max(enqueued_at) FROM fact_dispatch
                         WHERE repo = ?3 AND enqueued_at >= ?1 AND enqueued_at < ?2
                           AND level <> ?4), ?1 - 1)",
                )?
                .query_row(
                    params![millis(window.from), millis(window.to), window.repo, level.as_str()],
                    |row| row.get(0),
                )?;
            Ok(since.map(timestamp))
        })
    }

    fn marks(&self, window: &Window) -> Result<Vec<Mark>, StoreError> {
        self.store.readers().with(|connection| {
            connection
                .prepare_cached(
                    "SELECT repo, day, changes FROM fact_day
                     WHERE day >= ?1 AND day <= ?2 AND (?3 IS NULL OR repo = ?3)",
                )?
                .query_map(params![day_of(window.from), last_day(window), window.repo], |row| {
                    let mark = row.get::<_, i64>(2)?.cast_unsigned();
                    Ok(Mark { repo: row.get(0)?, day: row.get(1)?, mark })
                })?
                .collect()
        })
    }

    fn rolled(&self, window: &Window) -> Result<Vec<Rolled>, StoreError> {
        let repo = window.repo.as_deref().map(str::to_ascii_lowercase);
        self.store.readers().with(|connection| {
            connection
                .prepare_cached(
                    "SELECT repo, day, nightly, tally FROM rolled_day
                     WHERE day >= ?1 AND day <= ?2 AND (?3 IS NULL OR repo = ?3)",
                )?
                .query_map(params![day_of(window.from), last_day(window), repo], |row| {
                    let day = timestamp(row.get::<_, i64>("day")?.saturating_mul(DAY));
                    Ok(Rolled {
                        day: DayOf {
                            nightly: row.get("nightly")?,
                            ..DayOf::new(&row.get::<_, String>("repo")?, day, "")
                        },
                        tally: parsed(row, "tally")?,
                    })
                })?
                .collect()
        })
    }

    fn select<T>(
        &self,
        query: &str,
        window: &Window,
        row: impl Fn(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, StoreError> {
        let query = match window.repo {
            // Otherwise no index on the repository would be used.
            Some(_) => query.replace("(?3 IS NULL OR repo = ?3)", "repo = ?3"),
            None => query.to_owned(),
        };
        self.store.readers().with(|connection| {
            connection
                .prepare_cached(&query)?
                .query_map(params![millis(window.from), millis(window.to), window.repo], row)?
                .collect()
        })
    }
}

fn read_dispatch(row: &Row<'_>) -> rusqlite::Result<DispatchFact> {
    Ok(DispatchFact {
        at: time(row, "at")?,
        delivery: row.get("delivery")?,
        upstream: row.get("upstream")?,
        pull_request: row.get::<_, Option<i64>>("pull_request")?.map(i64::cast_unsigned),
        head_sha: row.get("head_sha")?,
        event: row.get("event")?,
        repo: row.get("repo")?,
        level: text(row, "level", |level| level.parse().ok())?,
        labels: parsed(row, "labels")?,
        enqueued_at: time(row, "enqueued_at")?,
        sent_at: maybe_time(row, "sent_at")?,
        status: row.get("status")?,
        superseded_by: row.get("superseded_by")?,
        tries: row.get("tries")?,
        last_error: row.get("last_error")?,
        base_sha: row.get("base_sha")?,
    })
}

fn read_attempt(row: &Row<'_>) -> rusqlite::Result<AttemptFact> {
    let tests: Option<String> = row.get("tests")?;
    Ok(AttemptFact {
        received_at: time(row, "received_at")?,
        dispatched_at: time(row, "dispatched_at")?,
        repo: row.get("repo")?,
        delivery: row.get("delivery")?,
        workflow: row.get("workflow")?,
        job: row.get("job")?,
        run_id: row.get("run_id")?,
        run_attempt: row.get("run_attempt")?,
        check_run_id: row.get("check_run_id")?,
        state: parsed::<State>(row, "state")?,
        start_unknown: row.get("start_unknown")?,
        phase: row.get("phase")?,
        queue_seconds: row.get("queue_seconds")?,
        execution_seconds: row.get("execution_seconds")?,
        started_at: maybe_time(row, "started_at")?,
        completed_at: maybe_time(row, "completed_at")?,
        tests: tests.map(|_| parsed(row, "tests")).transpose()?,
        failed_tests: parsed(row, "failed_tests")?,
        url: row.get("url")?,
        artifact_url: row.get("artifact_url")?,
        environment: row.get("environment")?,
        level: text(row, "level", |level| level.parse().ok())?,
        event: row.get("event")?,
        upstream: row.get("upstream")?,
        pull_request: row.get::<_, Option<i64>>("pull_request")?.map(i64::cast_unsigned),
        head_sha: row.get("head_sha")?,
    })
}

fn read_callback(row: &Row<'_>) -> rusqlite::Result<CallbackFact> {
    Ok(CallbackFact {
        at: time(row, "at")?,
        repo: row.get("repo")?,
        delivery: row.get("delivery")?,
        run_id: row.get("run_id")?,
        job: row.get("job")?,
        status: row.get("status")?,
        conclusion: row.get("conclusion")?,
        outcome: text(row, "outcome", |outcome| {
            serde_json::from_value(serde_json::Value::String(outcome.to_owned())).ok()
        })?,
        answer: row.get("answer")?,
        detail: row.get("detail")?,
        latency_ms: row.get("latency_ms")?,
    })
}

fn time(row: &Row<'_>, column: &str) -> rusqlite::Result<Timestamp> {
    row.get(column).map(timestamp)
}

fn maybe_time(row: &Row<'_>, column: &str) -> rusqlite::Result<Option<Timestamp>> {
    Ok(row.get::<_, Option<i64>>(column)?.map(timestamp))
}

fn parsed<T: DeserializeOwned>(row: &Row<'_>, column: &str) -> rusqlite::Result<T> {
    text(row, column, |text| serde_json::from_str(text).ok())
}

fn text<T>(row: &Row<'_>, column: &str, parse: impl Fn(&str) -> Option<T>) -> rusqlite::Result<T> {
    let text: String = row.get(column)?;
    parse(&text).ok_or_else(|| {
        rusqlite::Error::InvalidColumnType(0, format!("{column} = {text}"), Type::Text)
    })
}

fn json<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("facts are always JSON")
}
