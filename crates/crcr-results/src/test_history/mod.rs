//! What became of one test: by job and day, and result by result.

pub(crate) mod clickhouse;
pub(crate) mod sqlite;

use async_trait::async_trait;
use crcr_domain::ci_data::test_run::{
    TestDetail, TestResult, TestRowKind, full_name, name_with_variant,
};
use jiff::Timestamp;
use serde::Serialize;

use crate::ResultsError;

/// Jobs of a test whose single results are looked up, those with the newest results: as many of the default branch as
/// of everything else. Anybody can open a pull request, whose results must not take the place of the branch's.
pub const MAX_JOBS: usize = 24;
/// Results of one job that are looked up, again for each of both.
pub const MAX_RESULTS_OF_JOB: usize = 200;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct TestIdentity {
    #[serde(serialize_with = "crate::test_runs::as_hex")]
    #[schemars(with = "String")]
    pub test_id: u64,
    pub suite: String,
    pub classname: String,
    pub name: String,
    pub file: Option<String>,
    pub variant: Option<String>,
    #[serde(serialize_with = "crate::test_runs::as_date")]
    #[schemars(with = "String")]
    pub first_day: i64,
}

/// What a test did in one job on one day.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct TestJobDay {
    pub on_default_branch: bool,
    pub job: String,
    #[serde(serialize_with = "crate::test_runs::as_date")]
    #[schemars(with = "String")]
    pub day: i64,
    pub runs: u64,
    pub failures: u64,
    pub skipped: u64,
    pub flaky: u64,
    /// Runs with a time ...
    pub timed: u64,
    /// ... and the sum of those.
    pub seconds: f64,
}

/// One result of a test.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct TestResultRow {
    /// When its run started.
    pub at: Timestamp,
    pub run_id: u64,
    pub run_attempt: u32,
    pub head_sha: String,
    pub head_branch: String,
    pub on_default_branch: bool,
    pub job: String,
    /// Which kind of the job's reports has it: only results of one kind are compared.
    #[serde(skip)]
    pub setup: String,
    pub job_id: Option<u64>,
    pub result: TestResult,
    pub seconds: Option<f64>,
    pub attempts: u32,
    pub flaky: bool,
    /// What the report says about a failure or a re-run; its beginning.
    pub message: Option<String>,
}

/// A test that failed in a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct FailedTestOfJob {
    #[serde(serialize_with = "crate::test_runs::as_hex")]
    #[schemars(with = "String")]
    pub test_id: u64,
    pub kind: TestRowKind,
    /// Class, else suite, and name.
    pub name: String,
    pub message: Option<String>,
}

/// Characters of a message.
const MAX_MESSAGE: usize = 2000;

/// The first explanation among a report's details.
pub(crate) fn message(details: &str) -> Option<String> {
    let details: Vec<TestDetail> = serde_json::from_str(details).ok()?;
    let message = details.iter().find_map(TestDetail::explanation)?;
    Some(message.chars().take(MAX_MESSAGE).collect())
}

/// The newest first, and at most [`MAX_RESULTS_OF_JOB`] of a job that didn't fail, on the default branch and elsewhere.
pub(crate) fn newest_first(rows: &mut Vec<TestResultRow>) {
    rows.sort_by(|a, b| {
        (b.at.cmp(&a.at))
            .then_with(|| a.job.cmp(&b.job))
            .then_with(|| (b.run_id, b.run_attempt).cmp(&(a.run_id, a.run_attempt)))
    });
    let mut of_job: std::collections::HashMap<(bool, String), usize> =
        std::collections::HashMap::new();
    rows.retain(|row| {
        let seen = of_job.entry((row.on_default_branch, row.job.clone())).or_default();
        *seen += usize::from(!row.result.is_failed());
        row.result.is_failed() || *seen <= MAX_RESULTS_OF_JOB
    });
}

#[async_trait]
pub trait TestHistoryResults: Send + Sync {
    /// The tests of a repository that are called `CLASS.NAME` or `NAME`, ordered by their names.
    async fn tests_named(
        &self,
        repository: &str,
        name: &str,
        limit: usize,
    ) -> Result<Vec<TestIdentity>, ResultsError>;

    async fn test_identity(
        &self,
        repository: &str,
        test_id: u64,
    ) -> Result<Option<TestIdentity>, ResultsError>;

    /// What a test did on these days, by day and job.
    async fn test_job_days(
        &self,
        repository: &str,
        test_id: u64,
        days: (i64, i64),
    ) -> Result<Vec<TestJobDay>, ResultsError>;

    /// Single results of a test on these days, the newest first: the newest [`MAX_RESULTS_OF_JOB`] of each of at
    /// most [`MAX_JOBS`] jobs, and the newest `limit` failures; on the default branch, and as many elsewhere.
    /// However many jobs there are, the newest passes of a job are among them if a failure of it is: a job whose passes
    /// weren't read would seem to fail still.
    async fn test_results(
        &self,
        repository: &str,
        test_id: u64,
        days: (i64, i64),
        limit: usize,
    ) -> Result<Vec<TestResultRow>, ResultsError>;

    /// The tests that failed in a job of an attempt of a run, ordered by name.
    async fn failed_tests_of_job(
        &self,
        repository: &str,
        run: (u64, u32),
        job_id: u64,
        limit: usize,
    ) -> Result<Vec<FailedTestOfJob>, ResultsError>;
}

/// The ends of `CLASS.NAME` that may be the name: both can have dots. A variant in brackets may follow.
pub(crate) fn possible_names(full: &str) -> Vec<String> {
    const MAX_SPLITS: usize = 40;
    let without_variant = full.strip_suffix(')').and_then(|full| full.rsplit_once(" ("));
    let all = [Some(full), without_variant.map(|(name, _)| name)];
    all.into_iter()
        .flatten()
        .flat_map(|full| {
            let ends = full.match_indices('.').map(move |(at, _)| &full[at + 1..]);
            std::iter::once(full).chain(ends).map(str::to_owned)
        })
        .filter(|name| !name.is_empty())
        .take(MAX_SPLITS)
        .collect()
}

/// Whether a test goes by this name.
pub(crate) fn is_named(test: &TestIdentity, asked: &str) -> bool {
    let full = full_name(&test.suite, &test.classname, &test.name);
    test.name == asked || full == asked || name_with_variant(full, test.variant.as_deref()) == asked
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(at: i64, job: &str, result: TestResult) -> TestResultRow {
        TestResultRow {
            at: Timestamp::from_second(at).unwrap(),
            run_id: at.cast_unsigned(),
            run_attempt: 1,
            head_sha: String::new(),
            head_branch: String::new(),
            on_default_branch: true,
            job: job.to_owned(),
            setup: String::new(),
            job_id: None,
            result,
            seconds: None,
            attempts: 1,
            flaky: false,
            message: None,
        }
    }

    #[test]
    fn passes_of_one_job_leave_room_for_failures_and_for_other_jobs() {
        let mut rows: Vec<_> = (0..250).map(|at| row(at, "build", TestResult::Success)).collect();
        rows.push(row(5, "build", TestResult::Failure));
        rows.push(row(5, "lint", TestResult::Success));
        newest_first(&mut rows);
        let passes = |rows: &[TestResultRow]| {
            rows.iter().filter(|row| row.job == "build" && !row.result.is_failed()).count()
        };
        assert_eq!((passes(&rows), rows.len()), (MAX_RESULTS_OF_JOB, MAX_RESULTS_OF_JOB + 2));
        assert!(rows.is_sorted_by(|a, b| (b.at, &a.job) <= (a.at, &b.job)), "the newest first");
        assert_eq!(rows[0].at.as_second(), 249);
    }

    #[test]
    fn first_message_is_shown_and_the_text_where_there_is_none() {
        let details = |message: &str, text: &str| {
            format!(r#"[{{"kind":"failure"}},{{"kind":"failure"{message}{text}}}]"#)
        };
        let (said, text) = (r#","message":"said""#, r#","text":"text""#);
        assert_eq!(message(&details(said, text)).as_deref(), Some("said"));
        assert_eq!(message(&details("", text)).as_deref(), Some("text"));
        assert_eq!(message(&details("", "")), None);
        assert_eq!(message("not JSON"), None);
        let long = format!(r#","message":"{}""#, "é".repeat(MAX_MESSAGE + 1));
        assert_eq!(message(&details(&long, "")), Some("é".repeat(MAX_MESSAGE)));
    }

    #[test]
    fn name_may_begin_behind_each_dot() {
        assert_eq!(possible_names("a.b.c"), ["a.b.c", "b.c", "c"]);
        assert_eq!(possible_names("a."), ["a."]);
        assert_eq!(possible_names("a.b (x)"), ["a.b (x)", "b (x)", "a.b", "b"]);
        assert_eq!(possible_names(&"x.".repeat(99)).len(), 40);
    }
}
