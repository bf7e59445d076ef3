//! Reads facts from the SQLite store, whose own transactions write them.

mod job_logs;
mod test_runs;
mod webhook_tables;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use crcr_domain::Level;
use crcr_domain::facts::{
    AttemptFact, CallbackFact, CallbackOutcome, DispatchFact, DispatchFactStatus, Fact,
    MergeBaseFact,
};
use crcr_domain::proof::MissingProof;
use crcr_domain::results::RepoDay;
use crcr_store::sqlite::{SqliteStore, millis, timestamp};
use crcr_store::{StateStore as _, StoreError, WriteBatch};
use jiff::Timestamp;
use rusqlite::types::{FromSql, Type};
use rusqlite::{Row, Transaction, params};
use serde::de::DeserializeOwned;

use super::retention::{DAY, day_number, day_of, last_day};
use super::{
    DayRevision, REFUSED, ReportOutcome, Results, ResultsError, RolledUpDay, Window, sort_attempts,
    sort_dispatches,
};

/// Rows per transaction: one takes the writer a few milliseconds.
const DELETE_BATCH: usize = 500;
/// The pause between two batches, so that the relay's own writes aren't held up.
const DELETE_PAUSE: Duration = Duration::from_millis(20);

/// Reads facts of a SQLite store.
#[derive(Clone)]
pub struct SqliteResults {
    store: Arc<SqliteStore>,
}

#[async_trait]
impl Results for SqliteResults {
    async fn prepare(&self) -> Result<(), ResultsError> {
        Ok(())
    }

    async fn append(&self, facts: Vec<Fact>) -> Result<(), ResultsError> {
        let batch = WriteBatch { facts, ..WriteBatch::default() };
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

    async fn push_attempts(&self, window: &Window) -> Result<Vec<AttemptFact>, ResultsError> {
        let window = window.clone();
        self.blocking(move |this| this.push_attempts(&window)).await
    }

    async fn refused_callbacks(
        &self,
        window: &Window,
        limit: usize,
    ) -> Result<Vec<CallbackFact>, ResultsError> {
        let window = window.clone();
        self.blocking(move |this| this.refused_callbacks(&window, limit)).await
    }

    async fn report_outcomes(&self, window: &Window) -> Result<Vec<ReportOutcome>, ResultsError> {
        let window = window.clone();
        self.blocking(move |this| this.report_outcomes(&window)).await
    }

    async fn at_level_since(
        &self,
        window: &Window,
        level: Level,
    ) -> Result<Option<Timestamp>, ResultsError> {
        let window = window.clone();
        self.blocking(move |this| this.at_level_since(&window, level)).await
    }

    async fn day_revisions(&self, window: &Window) -> Result<Vec<DayRevision>, ResultsError> {
        let window = window.clone();
        self.blocking(move |this| this.day_revisions(&window)).await
    }

    async fn rolled_up_days(&self, window: &Window) -> Result<Vec<RolledUpDay>, ResultsError> {
        let window = window.clone();
        self.blocking(move |this| this.rolled_up_days(&window)).await
    }

    async fn store_rolled_up_days(&self, days: &[RolledUpDay]) -> Result<(), ResultsError> {
        let rows: Vec<_> = days
            .iter()
            .map(|RolledUpDay { day, tally }| {
                (day_number(day), day.repo.clone(), day.nightly, json(tally))
            })
            .collect();
        let keep = self.store.write(move |tx| {
            let mut keep =
                tx.prepare_cached("INSERT OR REPLACE INTO rolled_day VALUES (?1, ?2, ?3, ?4)")?;
            for (day, repo, nightly, tally) in &rows {
                keep.execute(params![day, repo, nightly, tally])?;
            }
            Ok(rows.len() as u64)
        });
        keep.await?;
        Ok(())
    }

    async fn delete_before(&self, time: Timestamp) -> Result<(), ResultsError> {
        for (table, key, column, end) in [
            ("fact_attempt", "rowid", "dispatched_at", millis(time)),
            // The time of its last use is up to a day too early.
            ("fact_text", "digest", "used_at", millis(time) - 86_400_000),
            ("fact_dispatch", "rowid", "enqueued_at", millis(time)),
            ("fact_callback", "rowid", "at", millis(time)),
            ("fact_merge_base", "(upstream, pull_request, head_sha)", "at", millis(time)),
            ("fact_day", "(day, repo)", "day", day_of(time)),
            ("webhook", "rowid", "received_at", millis(time)),
            ("job_log", "rowid", "completed_at", millis(time)),
            (
                "green_job",
                "(repo, workflow, job_name, on_default_branch)",
                "completed_at",
                millis(time),
            ),
        ] {
            let columns = key.trim_matches(['(', ')']);
            let delete = format!(
                "DELETE FROM {table} WHERE {key} IN
                   (SELECT {columns} FROM {table} WHERE {column} < ?1 LIMIT {DELETE_BATCH})"
            );
            loop {
                let delete = delete.clone();
                let delete_batch = move |tx: &Transaction<'_>| {
                    Ok(tx.prepare_cached(&delete)?.execute([end])? as u64)
                };
                if self.store.write(delete_batch).await? == 0 {
                    break;
                }
                tokio::time::sleep(DELETE_PAUSE).await;
            }
        }
        Ok(())
    }

    async fn pull_request_facts(
        &self,
        upstream: &str,
        numbers: &[u64],
    ) -> Result<(Vec<AttemptFact>, Vec<DispatchFact>), ResultsError> {
        let (upstream, numbers) = (upstream.to_owned(), numbers.to_owned());
        self.blocking(move |this| this.pull_request_facts(&upstream, &numbers)).await
    }

    async fn merge_bases(
        &self,
        upstream: &str,
        numbers: &[u64],
    ) -> Result<Vec<MergeBaseFact>, ResultsError> {
        let (upstream, numbers) = (upstream.to_owned(), numbers.to_owned());
        self.blocking(move |this| {
            this.store.slow_readers().with(|connection| {
                let mut select = connection.prepare_cached(
                    "SELECT at, upstream, pull_request, head_sha, merge_base, committed_at
                     FROM fact_merge_base
                     WHERE upstream = ?1 AND pull_request = ?2",
                )?;
                let mut found = vec![];
                for number in numbers {
                    let rows = select
                        .query_map(params![upstream, number.cast_signed()], |row| {
                            read_merge_base(&mut ColumnReader::of(row))
                        })?;
                    for row in rows {
                        found.push(row?);
                    }
                }
                Ok(found)
            })
        })
        .await
    }
}

impl SqliteResults {
    pub fn new(store: Arc<SqliteStore>) -> Self {
        Self { store }
    }

    /// Runs a query on a thread that may block.
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
        let found = self.select(DISPATCH, "enqueued_at", window, "", read_dispatch);
        found.map(sorted(sort_dispatches))
    }

    /// See [`Results::attempts`].
    pub fn attempts(&self, window: &Window) -> Result<Vec<AttemptFact>, StoreError> {
        let found = self.select(ATTEMPT, "dispatched_at", window, "", read_attempt);
        found.map(sorted(sort_attempts))
    }

    /// See [`Results::push_attempts`].
    fn push_attempts(&self, window: &Window) -> Result<Vec<AttemptFact>, StoreError> {
        let condition = "AND pull_request IS NULL";
        let found = self.select(ATTEMPT, "dispatched_at", window, condition, read_attempt);
        found.map(sorted(sort_attempts))
    }

    /// See [`Results::callbacks`].
    pub fn callbacks(&self, window: &Window) -> Result<Vec<CallbackFact>, StoreError> {
        self.select(CALLBACK, "at", window, "ORDER BY at, id", read_callback)
    }

    fn refused_callbacks(
        &self,
        window: &Window,
        limit: usize,
    ) -> Result<Vec<CallbackFact>, StoreError> {
        let newest = format!("AND ({REFUSED}) ORDER BY at DESC, id DESC LIMIT {limit}");
        self.select(CALLBACK, "at", window, &newest, read_callback)
    }

    fn report_outcomes(&self, window: &Window) -> Result<Vec<ReportOutcome>, StoreError> {
        let answers = "at, outcome, latency_ms FROM fact_callback";
        self.select(answers, "at", window, "", |row| {
            Ok(ReportOutcome { at: row.time()?, outcome: row.outcome()?, latency_ms: row.get()? })
        })
    }

    /// See [`Results::pull_request_facts`].
    pub fn pull_request_facts(
        &self,
        upstream: &str,
        numbers: &[u64],
    ) -> Result<(Vec<AttemptFact>, Vec<DispatchFact>), StoreError> {
        let of = "WHERE pull_request = ?2 AND upstream = ?1 COLLATE NOCASE";
        self.store.slow_readers().with(|connection| {
            let mut attempts = connection.prepare_cached(&format!("SELECT {ATTEMPT} {of}"))?;
            let mut sent = connection.prepare_cached(&format!("SELECT {DISPATCH} {of}"))?;
            let (mut found, mut dispatches) = (vec![], vec![]);
            for number in numbers {
                let asked = params![upstream, number.cast_signed()];
                for row in
                    attempts.query_map(asked, |row| read_attempt(&mut ColumnReader::of(row)))?
                {
                    found.push(row?);
                }
                for row in sent.query_map(asked, |row| read_dispatch(&mut ColumnReader::of(row)))? {
                    dispatches.push(row?);
                }
            }
            sort_attempts(&mut found);
            sort_dispatches(&mut dispatches);
            Ok((found, dispatches))
        })
    }

    fn at_level_since(
        &self,
        window: &Window,
        level: Level,
    ) -> Result<Option<Timestamp>, StoreError> {
        let repo = window.repos.iter().flatten().next();
        self.store.slow_readers().with(|connection| {
            let since: Option<i64> = connection
                .prepare_cached(
                    "SELECT min(enqueued_at) FROM fact_dispatch
                     WHERE repo = ?3 AND enqueued_at >= ?1 AND enqueued_at < ?2
                       AND enqueued_at > ifnull((SELECT max(enqueued_at) FROM fact_dispatch
                         WHERE repo = ?3 AND enqueued_at >= ?1 AND enqueued_at < ?2
                           AND level <> ?4), ?1 - 1)",
                )?
                .query_row(
                    params![millis(window.from), millis(window.to), repo, level.as_str()],
                    |row| row.get(0),
                )?;
            Ok(since.map(timestamp))
        })
    }

    fn day_revisions(&self, window: &Window) -> Result<Vec<DayRevision>, StoreError> {
        self.select_days("repo, day, changes FROM fact_day", window, |row| {
            let changes = row.get::<_, i64>(2)?.cast_unsigned();
            Ok(DayRevision { repo: row.get(0)?, day: row.get(1)?, changes })
        })
    }

    fn rolled_up_days(&self, window: &Window) -> Result<Vec<RolledUpDay>, StoreError> {
        self.select_days("repo, day, nightly, tally FROM rolled_day", window, |row| {
            let day = timestamp(row.get::<_, i64>(1)?.saturating_mul(DAY));
            let mut columns = ColumnReader { row, at: 2 };
            Ok(RolledUpDay {
                day: RepoDay::new(&row.get::<_, String>(0)?, day, columns.get()?),
                tally: columns.json()?,
            })
        })
    }

    /// Rows of the days that the window covers, at least in part. `what` is columns and their table.
    fn select_days<T>(
        &self,
        what: &str,
        window: &Window,
        read: impl Fn(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, StoreError> {
        let repos = window.keys();
        let only = of_repos(repos.as_deref());
        let query = format!("SELECT {what} WHERE day >= ?1 AND day <= ?2 {only}");
        let asked = params![day_of(window.from), last_day(window), repos.map(|all| json(&all))];
        self.store
            .slow_readers()
            .with(|connection| connection.prepare_cached(&query)?.query_map(asked, read)?.collect())
    }

    /// Rows of the window. `what` is columns and their table, `time` is the column that the window is
    /// compared with.
    fn select<T>(
        &self,
        what: &str,
        time: &str,
        window: &Window,
        rest: &str,
        read: impl Fn(&mut ColumnReader<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, StoreError> {
        let repos = window.keys();
        let only = of_repos(repos.as_deref());
        let query = format!("SELECT {what} WHERE {time} >= ?1 AND {time} < ?2 {only} {rest}");
        let asked = params![millis(window.from), millis(window.to), repos.map(|all| json(&all))];
        self.store.slow_readers().with(|connection| {
            connection
                .prepare_cached(&query)?
                .query_map(asked, |row| read(&mut ColumnReader::of(row)))?
                .collect()
        })
    }
}

/// SQL for the repositories that parameter 3 lists. It is used in either case, because it is always
/// bound.
fn of_repos(repos: Option<&[String]>) -> &'static str {
    match repos {
        None => "AND ?3 IS NULL",
        Some(_) => "AND repo IN (SELECT value FROM json_each(?3))",
    }
}

/// Sorts here, because SQLite would sort copies of whole rows.
fn sorted<T>(sort: fn(&mut [T])) -> impl Fn(Vec<T>) -> Vec<T> {
    move |mut rows| {
        sort(&mut rows);
        rows
    }
}

/// Reads the columns of a row in order. A look-up by name takes as long as everything else
/// together.
struct ColumnReader<'a> {
    row: &'a Row<'a>,
    at: usize,
}

impl<'a> ColumnReader<'a> {
    fn of(row: &'a Row<'a>) -> Self {
        Self { row, at: 0 }
    }

    fn get<T: FromSql>(&mut self) -> rusqlite::Result<T> {
        self.at += 1;
        self.row.get(self.at - 1)
    }

    fn time(&mut self) -> rusqlite::Result<Timestamp> {
        self.get().map(timestamp)
    }

    fn maybe_time(&mut self) -> rusqlite::Result<Option<Timestamp>> {
        Ok(self.get::<Option<i64>>()?.map(timestamp))
    }

    fn number(&mut self) -> rusqlite::Result<Option<u64>> {
        Ok(self.get::<Option<i64>>()?.map(i64::cast_unsigned))
    }

    fn json<T: DeserializeOwned>(&mut self) -> rusqlite::Result<T> {
        self.parsed(|text| serde_json::from_str(text).ok())
    }

    fn missing_proof(&mut self) -> rusqlite::Result<Option<MissingProof>> {
        let name: Option<String> = self.get()?;
        Ok(name.as_deref().and_then(MissingProof::from_name))
    }

    fn outcome(&mut self) -> rusqlite::Result<CallbackOutcome> {
        self.parsed(CallbackOutcome::from_name)
    }

    fn level(&mut self) -> rusqlite::Result<Level> {
        self.parsed(|level| level.parse().ok())
    }

    fn parsed<T>(&mut self, parse: impl Fn(&str) -> Option<T>) -> rusqlite::Result<T> {
        self.at += 1;
        let text = self.row.get_ref(self.at - 1)?.as_str()?;
        parse(text).ok_or_else(|| {
            rusqlite::Error::InvalidColumnType(self.at - 1, text.to_owned(), Type::Text)
        })
    }
}

/// The columns that [`read_dispatch`] expects, in this order.
const DISPATCH: &str = "at, delivery, upstream, pull_request, head_sha, event, repo, level,
    labels, enqueued_at, sent_at, status, superseded_by, tries, last_error
    FROM fact_dispatch";

fn read_dispatch(row: &mut ColumnReader<'_>) -> rusqlite::Result<DispatchFact> {
    Ok(DispatchFact {
        at: row.time()?,
        delivery: row.get()?,
        upstream: row.get()?,
        pull_request: row.number()?,
        head_sha: row.get()?,
        event: row.get::<String>()?.into(),
        repo: row.get()?,
        level: row.level()?,
        labels: row.json()?,
        enqueued_at: row.time()?,
        sent_at: row.maybe_time()?,
        status: row.parsed(DispatchFactStatus::from_name)?,
        superseded_by: row.get()?,
        tries: row.get()?,
        last_error: row.get()?,
    })
}

/// The columns that [`read_attempt`] expects, in this order.
const ATTEMPT: &str = "received_at, dispatched_at, repo, delivery, workflow, job, run_id,
    run_attempt, check_run_id, state, start_unknown, phase, queue_seconds, execution_seconds,
    started_at, completed_at, ifnull(tests, 'null'),
    ifnull((SELECT text FROM fact_text WHERE digest = failed_tests), failed_tests), url, artifact_url, environment,
    missing_proof, level, event, upstream, pull_request, head_sha, ifnull(triage, 'null'),
    ifnull(warnings, '[]')
    FROM fact_attempt";

fn read_attempt(row: &mut ColumnReader<'_>) -> rusqlite::Result<AttemptFact> {
    Ok(AttemptFact {
        received_at: row.time()?,
        dispatched_at: row.time()?,
        repo: row.get()?,
        delivery: row.get()?,
        workflow: row.get()?,
        job: row.get()?,
        run_id: row.get()?,
        run_attempt: row.get()?,
        check_run_id: row.get()?,
        state: row.json()?,
        start_unknown: row.get()?,
        phase: row.get()?,
        queue_seconds: row.get()?,
        execution_seconds: row.get()?,
        started_at: row.maybe_time()?,
        completed_at: row.maybe_time()?,
        tests: row.json()?,
        failed_tests: row.json()?,
        url: row.get()?,
        artifact_url: row.get()?,
        environment: row.get()?,
        missing_proof: row.missing_proof()?,
        level: row.level()?,
        event: row.get::<String>()?.into(),
        upstream: row.get()?,
        pull_request: row.number()?,
        head_sha: row.get()?,
        triage: row.json()?,
        warnings: row.json()?,
    })
}

/// The columns that [`read_callback`] expects, in this order.
const CALLBACK: &str = "at, repo, delivery, run_id, job, status, conclusion, outcome, answer,
    detail, latency_ms FROM fact_callback";

fn read_callback(row: &mut ColumnReader<'_>) -> rusqlite::Result<CallbackFact> {
    Ok(CallbackFact {
        at: row.time()?,
        repo: row.get()?,
        delivery: row.get()?,
        run_id: row.get()?,
        job: row.get()?,
        status: row.get()?,
        conclusion: row.get()?,
        outcome: row.outcome()?,
        answer: row.get()?,
        detail: row.get()?,
        latency_ms: row.get()?,
    })
}

fn read_merge_base(row: &mut ColumnReader<'_>) -> rusqlite::Result<MergeBaseFact> {
    Ok(MergeBaseFact {
        at: row.time()?,
        upstream: row.get()?,
        pull_request: row.number()?.unwrap_or_default(),
        head_sha: row.get()?,
        merge_base: row.get()?,
        committed_at: row.time()?,
    })
}

fn json<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("facts are always JSON")
}
