//! Results of single tests.
//!
//! A row is one test of one report. Reading all rows for a page would take minutes with 10⁸ of them,
//! so a roll-up for each test and UTC day is written at load, once for each job and once for all jobs
//! together; pages read only those. Rows of branches and pull requests are rolled up apart from
//! those of the default branch: anybody can open a pull request that fails a test.

pub(crate) mod clickhouse;
pub(crate) mod sqlite;
#[cfg(test)]
mod suite;

use std::collections::BTreeSet;

use async_trait::async_trait;
use crcr_domain::ci_data::test_row::{ReportRows, TestedRun};
use crcr_domain::results::criteria::NamedTestDay;
use jiff::Timestamp;
use serde::Serialize;

use crate::ResultsError;

/// Runs of one commit that are further apart than this aren't compared.
pub(crate) const COMMIT_DAYS: i64 = 7;

/// Which tests, and how they are ranked.
#[derive(Debug, Clone)]
pub struct TestQuery {
    pub repository: String,
    pub ranking: TestRanking,
    /// The first and the last UTC day, as days since 1970.
    pub days: (i64, i64),
    /// Only this job, with its full name.
    pub job: Option<String>,
    /// Also results of branches and pull requests.
    pub all_branches: bool,
    /// A part of the class, the name or the file, compared without the case of ASCII letters.
    pub search: Option<String>,
    /// Tests that are left out at the start of the ranking.
    pub offset: usize,
    pub limit: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TestRanking {
    /// Tests that passed and failed on one commit, the most often flaky first.
    Flaky,
    Slow,
    /// By the number of failures and errors.
    Failing,
    /// Tests that had never run before, newest first.
    New,
}

/// What a test's days add up to.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct TestStats {
    #[serde(serialize_with = "as_hex")]
    #[schemars(with = "String")]
    pub test_id: u64,
    pub suite: String,
    pub classname: String,
    pub name: String,
    pub file: Option<String>,
    pub variant: Option<String>,
    pub runs: u64,
    /// Failures and errors together.
    pub failures: u64,
    pub skipped: u64,
    /// Reports in which it failed and passed, and commits on which it did in different runs of one job.
    pub flaky: u64,
    /// In seconds; `None` if no report had a time.
    pub mean_time: Option<f64>,
    #[serde(serialize_with = "as_date")]
    #[schemars(with = "String")]
    pub first_day: i64,
    #[serde(serialize_with = "as_date")]
    #[schemars(with = "String")]
    pub last_day: i64,
}

impl TestStats {
    pub fn runs_not_skipped(&self) -> u64 {
        self.runs.saturating_sub(self.skipped)
    }

    /// The part that `count` is of the runs that weren't skipped.
    pub fn share(&self, count: u64) -> f64 {
        if self.runs_not_skipped() == 0 {
            0.0
        } else {
            count as f64 / self.runs_not_skipped() as f64
        }
    }
}

/// The newest day of each name asked for, among rows of `(class, name, day)` in any order.
pub(crate) fn newest_days(
    names: &[String],
    rows: &[(String, String, NamedTestDay)],
) -> Vec<NamedTestDay> {
    let newest = names.iter().filter_map(|asked| {
        let named = rows.iter().filter(|(class, name, of)| {
            let full = || asked.strip_suffix(name.as_str())?.strip_suffix('.');
            of.runs > 0 && (name == asked || full() == Some(class))
        });
        let named: Vec<_> = named.map(|(_, _, of)| of).collect();
        let day = named.iter().map(|of| of.day).max()?;
        let of_day = named.iter().filter(|of| of.day == day);
        let (runs, failures) =
            of_day.fold((0, 0), |(runs, failures), of| (runs + of.runs, failures + of.failures));
        Some(NamedTestDay { name: asked.clone(), day, runs, failures })
    });
    newest.collect()
}

#[derive(Debug, Clone)]
pub struct FileTimesQuery {
    pub repository: String,
    /// The first and the last UTC day, as days since 1970.
    pub days: (i64, i64),
    /// Only this job, without configuration and shard.
    pub job: Option<String>,
    pub all_branches: bool,
}

/// How long a class of a test file takes in one run, all shards together, on average.
#[derive(Debug, Clone, PartialEq)]
pub struct FileTime {
    pub job: String,
    pub config: String,
    pub file: String,
    pub classname: String,
    pub seconds: f64,
}

/// What the rows of an attempt say about it. Collecting it again changes none of that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRun {
    pub started_at: Timestamp,
    pub on_default_branch: bool,
    pub head_sha: Option<String>,
}

#[async_trait]
pub trait TestRunResults: Send + Sync {
    /// The attempt, if rows of it are stored.
    async fn stored_run(
        &self,
        repository: &str,
        run_id: u64,
        run_attempt: u32,
    ) -> Result<Option<StoredRun>, ResultsError>;

    /// Stores rows durably before it returns. A row that is stored already changes nothing, so a
    /// load that was killed can be repeated.
    async fn append_test_runs(
        &self,
        run: &TestedRun,
        reports: Vec<ReportRows>,
    ) -> Result<(), ResultsError>;

    /// Brings the roll-ups up to date with the rows of the attempt. To be called after the last
    /// append, and again after a load that was killed.
    async fn finish_test_runs(&self, run: &TestedRun) -> Result<(), ResultsError>;

    /// The rows of an attempt, ordered by report and test.
    async fn test_runs(
        &self,
        repository: &str,
        run_id: u64,
        run_attempt: u32,
    ) -> Result<Vec<ReportRows>, ResultsError>;

    /// The tests of a repository that have run on its default branch, of those in `tests`.
    async fn known_tests(
        &self,
        repository: &str,
        tests: &[u64],
    ) -> Result<BTreeSet<u64>, ResultsError>;

    /// The newest day with results on the default branch, of each test that is named `CLASS.NAME` or `NAME`.
    /// Names without results are left out; if several tests have a name, their results are added up.
    async fn newest_test_days(
        &self,
        repository: &str,
        names: &[String],
        days: (i64, i64),
    ) -> Result<Vec<NamedTestDay>, ResultsError>;

    async fn test_stats(&self, query: &TestQuery) -> Result<Vec<TestStats>, ResultsError>;

    /// Ordered by job, configuration, file and class.
    async fn file_times(&self, query: &FileTimesQuery) -> Result<Vec<FileTime>, ResultsError>;

    /// The jobs that have results on these days, of the default branch or of all, ordered by name; `limit` at most,
    /// those of the default branch first.
    async fn tested_jobs(
        &self,
        repository: &str,
        days: (i64, i64),
        all_branches: bool,
        limit: usize,
    ) -> Result<Vec<String>, ResultsError>;

    /// The repositories that have results, ordered by name.
    async fn tested_repositories(&self) -> Result<Vec<String>, ResultsError>;

    /// Deletes the rows from before `time`, and keeps the roll-ups.
    async fn delete_test_runs_before(&self, time: Timestamp) -> Result<(), ResultsError>;
}

/// A test id as people and NDJSON see it.
pub fn hex_id(id: u64) -> String {
    format!("{id:016x}")
}

pub(crate) fn as_hex<S: serde::Serializer>(id: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&hex_id(*id))
}

pub(crate) fn as_date<S: serde::Serializer>(day: &i64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&date(*day))
}

/// `2026-11-23` of a number of days since 1970.
pub fn date(day: i64) -> String {
    crate::retention::midnight(day).to_zoned(jiff::tz::TimeZone::UTC).date().to_string()
}
