//! Reads facts from the SQLite store, whose own transactions write them.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use crcr_domain::Level;
use crcr_domain::protocol::event::EventName;
use crcr_domain::results::RepoDay;
use crcr_domain::results::facts::{
    AttemptFact, CallbackFact, CallbackOutcome, CheckFact, DispatchFact, Fact, MergeBaseFact,
};
use crcr_store::sqlite::{SqliteStore, millis, timestamp};
use crcr_store::{StateStore as _, StoreError, WriteBatch};
use jiff::Timestamp;
use rusqlite::types::{FromSql, Type};
use rusqlite::{Connection, Row, Transaction, params};
use serde::de::DeserializeOwned;

use super::retention::{DAY_MILLIS, day_number, day_of, last_day};
use super::{
    AttemptFilter, DayRevision, REFUSED, ReportOutcome, Results, ResultsError, RolledUpDay, Window,
    outcome_list, sort_attempts, sort_dispatches,
};

/// Rows per transaction: one takes the writer a few milliseconds.
pub(crate) const DELETE_BATCH: usize = 500;
/// The pause between two batches, so that the relay's own writes aren't held up.
pub(crate) const DELETE_PAUSE: Duration = Duration::from_millis(20);

/// Reads facts of a SQLite store.
#[derive(Clone)]
pub struct SqliteResults {
    pub(crate) store: Arc<SqliteStore>,
    /// Whether a read holds up the thread that asks for it.
    reads_inline: bool,
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
        let mut found = self.blocking(move |this| this.dispatches(&window)).await?;
        found.retain(|row| row.event != EventName::Probe);
        Ok(found)
    }

    async fn attempts(&self, window: &Window) -> Result<Vec<AttemptFact>, ResultsError> {
        let window = window.clone();
        let mut found = self.blocking(move |this| this.attempts(&window)).await?;
        found.retain(|row| row.event != EventName::Probe);
        Ok(found)
    }

    async fn callbacks(&self, window: &Window) -> Result<Vec<CallbackFact>, ResultsError> {
        let window = window.clone();
        self.blocking(move |this| this.callbacks(&window)).await
    }

    async fn push_attempts(&self, window: &Window) -> Result<Vec<AttemptFact>, ResultsError> {
        let window = window.clone();
        self.blocking(move |this| {
            let condition = "AND pull_request IS NULL";
            this.select(ATTEMPT, "dispatched_at", &window, condition, read_attempt)
        })
        .await
        .map(sorted(sort_attempts))
    }

    async fn refused_callbacks(
        &self,
        window: &Window,
        limit: usize,
    ) -> Result<Vec<CallbackFact>, ResultsError> {
        let window = window.clone();
        let newest = format!("AND ({REFUSED}) ORDER BY at DESC, id DESC LIMIT {limit}");
        self.blocking(move |this| this.select(CALLBACK, "at", &window, &newest, document)).await
    }

    async fn newest_callbacks(
        &self,
        window: &Window,
        outcomes: &[CallbackOutcome],
        limit: usize,
    ) -> Result<Vec<CallbackFact>, ResultsError> {
        let window = window.clone();
        let newest = format!(
            "AND outcome IN ({}) ORDER BY at DESC, id DESC LIMIT {limit}",
            outcome_list(outcomes)
        );
        self.blocking(move |this| this.select(CALLBACK, "at", &window, &newest, document)).await
    }

    async fn report_outcomes(&self, window: &Window) -> Result<Vec<ReportOutcome>, ResultsError> {
        let window = window.clone();
        let answers = "at, outcome, latency_ms FROM fact_callback";
        self.blocking(move |this| {
            this.select(answers, "at", &window, "", |row| {
                let mut columns = ColumnReader::of(row);
                let (at, outcome) = (columns.time()?, columns.parsed(CallbackOutcome::from_name)?);
                Ok(ReportOutcome { at, outcome, latency_ms: columns.get()? })
            })
        })
        .await
    }

    async fn at_level_since(
        &self,
        window: &Window,
        level: Level,
    ) -> Result<Option<Timestamp>, ResultsError> {
        let window = window.clone();
        self.query(move |connection| {
            let repo = window.repos.iter().flatten().next();
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
        .await
    }

    async fn day_revisions(&self, window: &Window) -> Result<Vec<DayRevision>, ResultsError> {
        let window = window.clone();
        self.blocking(move |this| {
            this.select_days("repo, day, changes FROM fact_day", &window, |row| {
                let changes = row.get::<_, i64>(2)?.cast_unsigned();
                Ok(DayRevision { repo: row.get(0)?, day: row.get(1)?, changes })
            })
        })
        .await
    }

    async fn rolled_up_days(&self, window: &Window) -> Result<Vec<RolledUpDay>, ResultsError> {
        let window = window.clone();
        self.blocking(move |this| {
            this.select_days("repo, day, nightly, tally FROM rolled_day", &window, |row| {
                let day = timestamp(row.get::<_, i64>(1)?.saturating_mul(DAY_MILLIS));
                let mut columns = ColumnReader { row, at: 2 };
                let day = RepoDay::new(&row.get::<_, String>(0)?, day, columns.get()?);
                Ok(RolledUpDay { day, tally: columns.json()? })
            })
        })
        .await
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
            ("fact_check", "(upstream, head_sha, repo)", "at", millis(time)),
            ("fact_day", "(day, repo)", "day", day_of(time)),
            ("webhook", "rowid", "received_at", millis(time)),
            ("open_pull", "(repo, thing)", "received_at", millis(time)),
            ("known_branch", "(event, repo, branch)", "newest", millis(time)),
            ("job_log", "rowid", "completed_at", millis(time)),
            ("ci_counted", "(repo, kind, id, attempt)", "ended_at", millis(time)),
            ("ci_hour", "(repo, grouped_by, start, name)", "start", millis(time)),
            ("ci_day", "(repo, grouped_by, start, name)", "start", millis(time)),
            ("branch_run", "(repo, run_id)", "created_at", millis(time)),
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
        only: AttemptFilter<'_>,
    ) -> Result<(Vec<AttemptFact>, Vec<DispatchFact>), ResultsError> {
        let upstream = upstream.to_owned();
        let numbers: Vec<i64> = numbers.iter().map(|number| number.cast_signed()).collect();
        let numbers = json(&numbers);
        let of = "WHERE pull_request IN (SELECT value FROM json_each(?2)) AND upstream = ?1";
        let wanted = "(?4 IS NULL OR repo IN (SELECT value FROM json_each(?4)))
            AND (?3 IS NULL OR json_extract(document, '$.head_sha') IN
                (SELECT value FROM json_each(?3)))";
        let heads = (!only.heads.is_empty()).then(|| json(&only.heads));
        let repos = only.repos.map(|repos| json(&repos));
        self.query(move |connection| {
            let mut attempts =
                connection.prepare_cached(&format!("SELECT {ATTEMPT} {of} AND {wanted}"))?;
            let mut sent = connection.prepare_cached(&format!("SELECT {DISPATCH} {of}"))?;
            let mut found: Vec<AttemptFact> = attempts
                .query_map(params![upstream, numbers, heads, repos], read_attempt)?
                .collect::<Result<_, _>>()?;
            let mut dispatches: Vec<DispatchFact> =
                sent.query_map(params![upstream, numbers], document)?.collect::<Result<_, _>>()?;
            sort_attempts(&mut found);
            sort_dispatches(&mut dispatches);
            Ok((found, dispatches))
        })
        .await
    }

    async fn dispatches_of_commits(
        &self,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<DispatchFact>, ResultsError> {
        // No hexadecimal digit is after `f`.
        let (from, to) = (prefix.to_owned(), format!("{prefix}g"));
        self.query(move |connection| {
            let mut select = connection.prepare_cached(
                "SELECT document FROM fact_dispatch
                 WHERE json_extract(document, '$.head_sha') >= ?1
                   AND json_extract(document, '$.head_sha') < ?2
                 ORDER BY enqueued_at DESC LIMIT ?3",
            )?;
            let found = select.query_map(params![from, to, limit as i64], document)?;
            found.collect::<Result<Vec<DispatchFact>, _>>()
        })
        .await
        .map(sorted(sort_dispatches))
    }

    async fn attempts_of_commits(
        &self,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<AttemptFact>, ResultsError> {
        let (from, to) = (prefix.to_owned(), format!("{prefix}g"));
        let found = self.query(move |connection| {
            let mut select = connection.prepare_cached(&attempts_of_commits())?;
            let found = select.query_map(params![from, to, limit as i64], read_attempt)?;
            found.collect::<Result<Vec<AttemptFact>, _>>()
        });
        let mut found = found.await.map(sorted(sort_attempts))?;
        found.retain(|row| row.event != EventName::Probe);
        Ok(found)
    }

    async fn merge_bases(
        &self,
        upstream: &str,
        numbers: &[u64],
    ) -> Result<Vec<MergeBaseFact>, ResultsError> {
        let (upstream, numbers) = (upstream.to_owned(), numbers.to_owned());
        self.query(move |connection| {
            let mut select = connection.prepare_cached(
                "SELECT document FROM fact_merge_base
                 WHERE upstream = ?1 AND pull_request = ?2",
            )?;
            let mut found = vec![];
            for number in numbers {
                for row in select.query_map(params![upstream, number.cast_signed()], document)? {
                    found.push(row?);
                }
            }
            Ok(found)
        })
        .await
    }

    async fn checks(
        &self,
        upstream: &str,
        heads: &[String],
    ) -> Result<Vec<CheckFact>, ResultsError> {
        let (upstream, heads) = (upstream.to_owned(), json(&heads));
        self.query(move |connection| {
            connection
                .prepare_cached(
                    "SELECT document FROM fact_check WHERE upstream = ?1
                     AND head_sha IN (SELECT value FROM json_each(?2))",
                )?
                .query_map(params![upstream, heads], document)?
                .collect()
        })
        .await
    }
}

impl SqliteResults {
    pub fn new(store: Arc<SqliteStore>) -> Self {
        Self { store, reads_inline: false }
    }

    /// For a simulation, in which nothing may depend on which thread is faster: a read blocks the one that asks.
    #[must_use]
    pub fn reading_inline(self) -> Self {
        Self { reads_inline: true, ..self }
    }

    /// Runs a query on a thread that may block, unless reads are inline.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Self) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, ResultsError> {
        let this = self.clone();
        if this.reads_inline {
            return Ok(read(&this)?);
        }
        match tokio::task::spawn_blocking(move || read(&this)).await {
            Ok(answer) => Ok(answer?),
            Err(error) => Err(ResultsError::Unavailable(error.to_string())),
        }
    }

    pub(crate) async fn query<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, ResultsError> {
        self.blocking(move |this| this.store.slow_readers().with(read)).await
    }

    pub fn dispatches(&self, window: &Window) -> Result<Vec<DispatchFact>, StoreError> {
        let found = self.select(DISPATCH, "enqueued_at", window, "", document);
        found.map(sorted(sort_dispatches))
    }

    pub fn attempts(&self, window: &Window) -> Result<Vec<AttemptFact>, StoreError> {
        let found = self.select(ATTEMPT, "dispatched_at", window, "", read_attempt);
        found.map(sorted(sort_attempts))
    }

    pub fn callbacks(&self, window: &Window) -> Result<Vec<CallbackFact>, StoreError> {
        self.select(CALLBACK, "at", window, "ORDER BY at, id", document)
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
    pub(crate) fn select<T>(
        &self,
        what: &str,
        time: &str,
        window: &Window,
        rest: &str,
        read: impl Fn(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, StoreError> {
        let repos = window.keys();
        let only = of_repos(repos.as_deref());
        let query = format!("SELECT {what} WHERE {time} >= ?1 AND {time} < ?2 {only} {rest}");
        let asked = params![millis(window.from), millis(window.to), repos.map(|all| json(&all))];
        self.store
            .slow_readers()
            .with(|connection| connection.prepare_cached(&query)?.query_map(asked, read)?.collect())
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

/// The document and its table.
const DISPATCH: &str = "document FROM fact_dispatch";
const CALLBACK: &str = "document FROM fact_callback";
/// The document, the failing tests that it lacks, and their table.
const ATTEMPT: &str = "document,
    ifnull((SELECT text FROM fact_text WHERE digest = failed_tests), failed_tests)
    FROM fact_attempt";

/// Attempts on the commits from parameter 1 to 2, parameter 3 at most.
fn attempts_of_commits() -> String {
    format!(
        "SELECT {ATTEMPT} WHERE json_extract(document, '$.pull_request') IS NULL
           AND json_extract(document, '$.head_sha') >= ?1
           AND json_extract(document, '$.head_sha') < ?2
         ORDER BY dispatched_at DESC LIMIT ?3"
    )
}

fn read_attempt(row: &Row<'_>) -> rusqlite::Result<AttemptFact> {
    let mut columns = ColumnReader::of(row);
    let mut fact: AttemptFact = columns.json()?;
    fact.details.failed_tests = columns.json()?;
    Ok(fact)
}

fn document<T: DeserializeOwned>(row: &Row<'_>) -> rusqlite::Result<T> {
    ColumnReader::of(row).json()
}

/// Reads the columns of a row in order. A look-up by name takes as long as everything else
/// together.
pub(crate) struct ColumnReader<'a> {
    row: &'a Row<'a>,
    at: usize,
}

impl<'a> ColumnReader<'a> {
    pub(crate) fn of(row: &'a Row<'a>) -> Self {
        Self::from_column(row, 0)
    }

    pub(crate) fn from_column(row: &'a Row<'a>, at: usize) -> Self {
        Self { row, at }
    }

    pub(crate) fn get<T: FromSql>(&mut self) -> rusqlite::Result<T> {
        self.at += 1;
        self.row.get(self.at - 1)
    }

    pub(crate) fn time(&mut self) -> rusqlite::Result<Timestamp> {
        self.get().map(timestamp)
    }

    pub(crate) fn number(&mut self) -> rusqlite::Result<Option<u64>> {
        Ok(self.get::<Option<i64>>()?.map(i64::cast_unsigned))
    }

    pub(crate) fn json<T: DeserializeOwned>(&mut self) -> rusqlite::Result<T> {
        self.parsed(|text| serde_json::from_str(text).ok())
    }

    pub(crate) fn parsed<T>(&mut self, parse: impl Fn(&str) -> Option<T>) -> rusqlite::Result<T> {
        self.at += 1;
        let text = self.row.get_ref(self.at - 1)?.as_str()?;
        parse(text).ok_or_else(|| {
            rusqlite::Error::InvalidColumnType(self.at - 1, text.to_owned(), Type::Text)
        })
    }
}

pub(crate) fn json<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("facts are always JSON")
}

#[cfg(test)]
mod tests {
    use crcr_store::StoreRole;

    use super::*;

    #[test]
    fn commit_of_an_attempt_is_found_by_its_index() {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&folder.path().join("results.db"), StoreRole::Tool).unwrap();
        let plan = store.slow_readers().with(|connection| {
            let explain = format!("EXPLAIN QUERY PLAN {}", attempts_of_commits());
            let mut explain = connection.prepare(&explain)?;
            let lines = explain.query_map(params!["a", "b", 9], |row| row.get::<_, String>(3))?;
            lines.collect::<Result<Vec<_>, _>>()
        });
        let plan = plan.unwrap().join("; ");
        assert!(plan.contains("USING INDEX fact_attempt_head "), "{plan}");
    }
}
