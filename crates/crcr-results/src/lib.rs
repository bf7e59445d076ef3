//! The facts that dashboards, rates and reviews are computed from.

pub mod blame;
pub mod ci_times;
pub mod clickhouse;
pub mod deployed;
pub mod job_logs;
pub mod retention;
pub mod review;
pub mod sqlite;
#[cfg(test)]
mod suite;
pub mod test_history;
pub mod test_runs;
pub mod webhook_tables;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use crcr_domain::Level;
use crcr_domain::results::facts::{
    AttemptFact, CallbackFact, CallbackOutcome, CheckFact, DispatchFact, Fact, MergeBaseFact,
};
use crcr_domain::results::{RepoDay, ResultTotals};
use crcr_store::{SqliteStore, StoreError, StoreRole};
use jiff::Timestamp;

pub use self::ci_times::CiTimesResults;
pub use self::job_logs::JobLogResults;
use self::sqlite::SqliteResults;
pub use self::test_history::TestHistoryResults;
pub use self::test_runs::TestRunResults;
pub use self::webhook_tables::WebhookResults;

/// SQL for the reports that were refused or had no effect.
pub(crate) const REFUSED: &str = "answer >= 400 OR outcome = 'unproven'";

/// Selects facts by time and, optionally, by downstream repository.
#[derive(Debug, Clone)]
pub struct Window {
    pub from: Timestamp,
    pub to: Timestamp,
    /// Only these repositories, compared without case. `None` selects all.
    pub repos: Option<Vec<String>>,
}

impl Window {
    /// All repositories, from `from` (inclusive) to `to` (exclusive).
    pub fn all(from: Timestamp, to: Timestamp) -> Self {
        Self { from, to, repos: None }
    }

    /// The same time span, restricted to these repositories.
    #[must_use]
    pub fn of_repos(self, repos: Vec<String>) -> Self {
        Self { repos: Some(repos), ..self }
    }

    pub fn contains(&self, time: Timestamp) -> bool {
        self.from <= time && time < self.to
    }

    /// The repositories in lower case.
    fn keys(&self) -> Option<Vec<String>> {
        let repos = self.repos.as_ref()?;
        Some(repos.iter().map(|repo| repo.to_ascii_lowercase()).collect())
    }
}

/// Why facts can't be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ResultsError {
    /// The store can't be reached. A write may or may not have happened.
    #[error("the results can't be used: {0}")]
    Unavailable(String),
    #[error("the results contain an invalid row: {0}")]
    Malformed(String),
}

impl From<StoreError> for ResultsError {
    fn from(error: StoreError) -> Self {
        Self::Unavailable(match error {
            StoreError::Unavailable(why) => why,
            error => error.to_string(),
        })
    }
}

/// The aggregate of one repository's UTC day, kept after the facts of that day are deleted.
#[derive(Debug, Clone, PartialEq)]
pub struct RolledUpDay {
    pub day: RepoDay,
    pub tally: ResultTotals,
}

/// When a report was received and how it was answered.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReportOutcome {
    pub at: Timestamp,
    pub outcome: CallbackOutcome,
    /// Milliseconds from the request to the answer.
    pub latency_ms: f64,
}

/// The revision of one repository's day. A cached aggregate of the day is stale once `changes` has
/// grown.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DayRevision {
    /// The repository, in lower case; none for reports.
    pub repo: String,
    /// The day, as days since 1970.
    pub day: i64,
    /// Counts every write, including those that changed nothing.
    pub changes: u64,
}

/// Which attempts of pull requests are wanted.
#[derive(Debug, Clone, Copy, Default)]
pub struct AttemptFilter<'a> {
    /// Those on these commits; empty for all, which may be many, as whoever pushes a thousand times has a thousand
    /// heads.
    pub heads: &'a [String],
    /// Those of these backends; `None` for all.
    pub repos: Option<&'a [String]>,
}

/// Where facts are kept and read.
///
/// Every implementation returns the same rows for the same facts. `crcr_domain::results` computes
/// the rates from those rows.
#[async_trait]
pub trait Results:
    TestRunResults + TestHistoryResults + WebhookResults + JobLogResults + CiTimesResults
{
    /// Creates or upgrades the tables; quick when there is nothing to do.
    async fn prepare(&self) -> Result<(), ResultsError>;

    /// Stores facts durably before it returns. For one dispatch or attempt, the row with the
    /// highest version wins, regardless of arrival order. Writing the same row twice changes
    /// nothing.
    async fn append(&self, facts: Vec<Fact>) -> Result<(), ResultsError>;

    /// Dispatches that were accepted in the window, oldest first, without probes.
    ///
    /// Nothing that is read here or by [`Results::attempts`] has probes, so that no rate or level can count them.
    async fn dispatches(&self, window: &Window) -> Result<Vec<DispatchFact>, ResultsError>;

    /// Attempts whose dispatch was accepted in the window, in the order of arrival. An attempt
    /// without a dispatch counts from its own arrival. Without probes.
    async fn attempts(&self, window: &Window) -> Result<Vec<AttemptFact>, ResultsError>;

    /// The attempts of the window that have no pull request: those on upstream's own commits, and probes, which are
    /// evidence there.
    async fn push_attempts(&self, window: &Window) -> Result<Vec<AttemptFact>, ResultsError>;

    /// Reports that were received in the window, oldest first.
    async fn callbacks(&self, window: &Window) -> Result<Vec<CallbackFact>, ResultsError>;

    /// The refused reports of the window, newest first, `limit` at most.
    async fn refused_callbacks(
        &self,
        window: &Window,
        limit: usize,
    ) -> Result<Vec<CallbackFact>, ResultsError>;

    /// The reports of the window with one of these outcomes, newest first, `limit` at most.
    async fn newest_callbacks(
        &self,
        window: &Window,
        outcomes: &[CallbackOutcome],
        limit: usize,
    ) -> Result<Vec<CallbackFact>, ResultsError>;

    /// The outcome of each report of the window, in no particular order.
    async fn report_outcomes(&self, window: &Window) -> Result<Vec<ReportOutcome>, ResultsError>;

    /// Since when the window's only repository has been at `level`: the time of the oldest
    /// dispatch in the window after which every dispatch was at that level.
    async fn at_level_since(
        &self,
        window: &Window,
        level: Level,
    ) -> Result<Option<Timestamp>, ResultsError>;

    /// The days of the window that have facts. A day that the window covers in part is included.
    async fn day_revisions(&self, window: &Window) -> Result<Vec<DayRevision>, ResultsError>;

    /// The rolled-up days of the window. A day that the window covers in part is included.
    async fn rolled_up_days(&self, window: &Window) -> Result<Vec<RolledUpDay>, ResultsError>;

    /// Stores rolled-up days. A day that was rolled up before is replaced.
    async fn store_rolled_up_days(&self, days: &[RolledUpDay]) -> Result<(), ResultsError>;

    /// Deletes the facts from before `time`. A server may finish this after the call returns.
    async fn delete_before(&self, time: Timestamp) -> Result<(), ResultsError>;

    /// The attempts of these pull requests, in the order of arrival, and all of their dispatches. The name of
    /// the upstream repository is compared without case.
    async fn pull_request_facts(
        &self,
        upstream: &str,
        numbers: &[u64],
        only: AttemptFilter<'_>,
    ) -> Result<(Vec<AttemptFact>, Vec<DispatchFact>), ResultsError>;

    /// The dispatches of commits whose SHA begins with these hexadecimal digits in lower case, the newest `limit` of
    /// them, in the order of their acceptance.
    async fn dispatches_of_commits(
        &self,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<DispatchFact>, ResultsError>;

    /// The attempts without a pull request on commits whose SHA begins with these hexadecimal digits in lower case,
    /// `limit` at most, in the order of arrival. Without probes.
    async fn attempts_of_commits(
        &self,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<AttemptFact>, ResultsError>;

    /// The known merge bases of these pull requests' heads, in no particular order. The name of the
    /// upstream repository is compared without case.
    async fn merge_bases(
        &self,
        upstream: &str,
        numbers: &[u64],
    ) -> Result<Vec<MergeBaseFact>, ResultsError>;

    /// What the check runs of these commits show, in no particular order. The name of the upstream repository is
    /// compared without case.
    async fn checks(
        &self,
        upstream: &str,
        heads: &[String],
    ) -> Result<Vec<CheckFact>, ResultsError>;
}

/// Sorts by arrival. The other key columns make the order stable within one millisecond.
fn sort_attempts(rows: &mut [AttemptFact]) {
    rows.sort_by(|a, b| {
        (a.received_at.cmp(&b.received_at))
            .then_with(|| a.delivery.cmp(&b.delivery))
            .then_with(|| a.repo.to_ascii_lowercase().cmp(&b.repo.to_ascii_lowercase()))
            .then_with(|| {
                (&a.run_id, a.run_attempt, &a.workflow, &a.job, &a.details.check_run_id).cmp(&(
                    &b.run_id,
                    b.run_attempt,
                    &b.workflow,
                    &b.job,
                    &b.details.check_run_id,
                ))
            })
    });
}

/// Puts dispatches into the order of their acceptance.
fn sort_dispatches(rows: &mut [DispatchFact]) {
    rows.sort_by(|a, b| {
        (a.enqueued_at.cmp(&b.enqueued_at))
            .then_with(|| a.delivery.cmp(&b.delivery))
            .then_with(|| a.repo.to_ascii_lowercase().cmp(&b.repo.to_ascii_lowercase()))
    });
}

/// How the tables of ClickHouse came to be: those of the facts, and of each kind of question.
const CLICKHOUSE_STEPS: &[clickhouse::schema::SchemaStep] = &[&[
    clickhouse::schema::FACTS,
    test_runs::clickhouse::TABLES,
    webhook_tables::clickhouse::TABLES,
    job_logs::clickhouse::TABLES,
    ci_times::clickhouse::TABLES,
]];

/// Outcomes of reports, as a list for SQL.
fn outcome_list(outcomes: &[CallbackOutcome]) -> String {
    let names: Vec<String> =
        outcomes.iter().map(|outcome| format!("'{}'", outcome.as_str())).collect();
    names.join(", ")
}

#[derive(Debug, Clone)]
pub enum ResultsUrl {
    /// `sqlite:PATH`: a relay's store, or a file of its own.
    Sqlite(PathBuf),
    /// `clickhouse+https://USER:PASSWORD@HOST:PORT/DATABASE`.
    ClickHouse(clickhouse::ClickHouseServer),
}

impl ResultsUrl {
    /// The error says what was expected and never repeats a password.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.starts_with("clickhouse+") {
            return clickhouse::ClickHouseServer::parse(text).map(Self::ClickHouse);
        }
        match text.strip_prefix("sqlite:") {
            Some(path) if !path.is_empty() => Ok(Self::Sqlite(path.into())),
            _ => Err("expected sqlite:PATH or clickhouse+https://USER:PASSWORD@HOST:PORT/DATABASE"
                .to_owned()),
        }
    }
}

/// For a tool, a missing SQLite file is an error.
pub async fn open(url: &ResultsUrl, role: StoreRole) -> Result<Arc<dyn Results>, ResultsError> {
    match url {
        ResultsUrl::Sqlite(path) => Ok(Arc::new(open_sqlite(path, role)?)),
        ResultsUrl::ClickHouse(server) => {
            Ok(Arc::new(clickhouse::ClickHouseResults::new(server.clone(), CLICKHOUSE_STEPS)?))
        }
    }
}

/// Opens results to write them. A SQLite file that doesn't exist is created.
pub async fn open_or_create(url: &ResultsUrl) -> Result<Arc<dyn Results>, ResultsError> {
    if let ResultsUrl::Sqlite(path) = url
        && !path.exists()
    {
        // A tool opens only what is there, so that a mistyped path is an error.
        drop(open(url, StoreRole::Server).await?);
    }
    open(url, StoreRole::Tool).await
}

/// Opens results to read them only. A SQLite file is neither created nor changed; a missing one is an
/// error.
pub async fn open_to_read(url: &ResultsUrl) -> Result<Arc<dyn Results>, ResultsError> {
    match url {
        ResultsUrl::Sqlite(path) => {
            Ok(Arc::new(SqliteResults::new(Arc::new(SqliteStore::read_only(path)?))))
        }
        ResultsUrl::ClickHouse(_) => open(url, StoreRole::Tool).await,
    }
}

fn open_sqlite(path: &Path, role: StoreRole) -> Result<SqliteResults, ResultsError> {
    // Opening would create it.
    if role == StoreRole::Tool && !path.exists() {
        return Err(ResultsError::Unavailable(format!("there is no file `{}`", path.display())));
    }
    Ok(SqliteResults::new(Arc::new(SqliteStore::open(path, role)?)))
}
