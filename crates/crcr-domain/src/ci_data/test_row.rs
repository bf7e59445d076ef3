//! A test's result with the run, job and report that it comes from.

use std::sync::Arc;

use jiff::Timestamp;
use serde::Serialize;

use super::stable_name::stable_name;
use super::test_run::TestCase;

/// An attempt of a workflow run, as the event or the API describe it. Nothing here is taken from a
/// report: a pull request can write anything into those.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestedRun {
    pub repository: String,
    pub workflow_id: Option<u64>,
    pub workflow: Option<String>,
    pub run_id: u64,
    pub run_attempt: u32,
    pub head_branch: Option<String>,
    pub head_sha: Option<String>,
    /// Whether the commit is on the repository's own default branch. A fork's branch of the same name
    /// isn't.
    pub on_default_branch: bool,
    /// Its day is the day that the results count for.
    pub started_at: Timestamp,
}

/// A report file of a run, and the job that left it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportSource {
    /// A hash of the run, the artifact's name and the path in it.
    pub report_id: u64,
    /// Only an id that isn't known to belong to another run.
    pub job_id: Option<u64>,
    pub job_id_check: JobIdCheck,
    /// The job's name; if that isn't known, what the artifact's name says.
    pub job: Arc<str>,
    pub artifact: Arc<str>,
    pub path: String,
    /// The test file that was started, if the report's folder is named after it.
    pub invoking_file: Option<Arc<str>>,
}

/// What is known of the job id in an artifact's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum JobIdCheck {
    /// It is a job of the run.
    Verified,
    /// The API wasn't asked.
    Unverified,
    /// The name has none.
    Missing,
    /// It isn't a number.
    Malformed,
    /// It isn't a job of the run, so the row has no job id.
    OtherRun,
}

names! {
    JobIdCheck {
        Verified "verified", Unverified "unverified", Missing "missing", Malformed "malformed",
        OtherRun "other_run",
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct TestRunRow {
    /// A hash of the repository and of what identifies the test in it.
    pub test_id: u64,
    pub case: TestCase,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ReportRows {
    pub source: ReportSource,
    /// At most one row for each test.
    pub rows: Vec<TestRunRow>,
}

impl ReportSource {
    /// The file that a test's time counts for when tests are split into shards.
    pub fn sharded_file<'a>(&'a self, case: &'a TestCase) -> &'a str {
        self.invoking_file.as_deref().or(case.file.as_deref()).unwrap_or(&case.classname)
    }

    /// The path without what changes from run to run. With the job it says whether two reports are of the
    /// same tests under the same conditions.
    pub fn setup(&self) -> String {
        let folders: Vec<&str> = self.path.split('/').filter_map(without_run_of_bazel).collect();
        stable_name(&folders.join("/"), None)
    }
}

/// A folder without the number of the run that Bazel's `--runs_per_test` adds: `run_2_of_3`, or with a shard
/// `shard_1_of_2_run_2_of_3`. `None` if nothing else is in it.
fn without_run_of_bazel(folder: &str) -> Option<&str> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let is_run = |run: &str| {
        run.split_once("_of_").is_some_and(|(number, of)| is_number(number) && is_number(of))
    };
    match folder.rsplit_once("run_") {
        Some(("", run)) if is_run(run) => None,
        Some((before, run)) if is_run(run) => Some(before.strip_suffix('_').unwrap_or(folder)),
        _ => Some(folder),
    }
}

/// The job and the test configuration in a job's name: `linux / test (default, 1, 5, gpu)` is the job
/// `linux` with the configuration `default`. The shard's number isn't part of either. Without one the
/// whole list is the configuration: `test (ubuntu, 3.11)` and `test (ubuntu, 3.12)` run the same tests, and
/// their times must not be added up as those of shards are.
pub fn job_and_config(job: &str) -> (&str, &str) {
    let (base, rest) = job.split_once(" / ").unwrap_or((job, job));
    let list = rest.split_once('(').map(|(_, list)| list);
    let list = list.map(|list| list.rsplit_once(')').map_or(list, |(inner, _)| inner));
    let config = list.map(|list| match has_shard(list) {
        true => list.split(',').next().unwrap_or(list),
        false => list,
    });
    let base = if base == rest { base.split('(').next().unwrap_or(base) } else { base };
    let config = config.map(str::trim).filter(|config| !config.is_empty());
    (base.trim(), config.unwrap_or("default"))
}

/// Whether a job's list has the two numbers of a shard, which are next to each other.
fn has_shard(list: &str) -> bool {
    let numbers: Vec<bool> =
        list.split(',').map(|part| part.trim().parse::<u32>().is_ok()).collect();
    numbers.windows(2).any(|pair| pair == [true, true])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_counts_for_the_file_that_was_started_and_a_setup_holds_no_time_and_no_run() {
        let mut case: TestCase = serde_json::from_value(serde_json::json!({
            "kind": "test", "suite": "s", "classname": "Ops", "name": "t", "file": "ops.py",
            "result": "success", "time": 1.0, "attempts": 1, "flaky": false, "details": [],
        }))
        .unwrap();
        let mut source = ReportSource {
            report_id: 1,
            job_id: None,
            job_id_check: JobIdCheck::Missing,
            job: "test".into(),
            artifact: "reports".into(),
            path: "test_ops/run-20261123061909.xml".to_owned(),
            invoking_file: Some("test_ops".into()),
        };
        assert_eq!(source.sharded_file(&case), "test_ops");
        source.invoking_file = None;
        assert_eq!(source.sharded_file(&case), "ops.py");
        case.file = None;
        assert_eq!(source.sharded_file(&case), "Ops");
        assert_eq!(source.setup(), "test_ops/run.xml");
        // Runs of one test, which is flaky if it passed in one and failed in another.
        for (path, setup) in [
            ("a/ops/run_2_of_3/test.xml", "a/ops/test.xml"),
            ("a/ops/shard_1_of_2_run_2_of_3/test.xml", "a/ops/shard_1_of_2/test.xml"),
            ("a/dry_run_1/rerun_1_of_2/test.xml", "a/dry_run_1/rerun_1_of_2/test.xml"),
            ("run_all/x_run_a_of_2/test.xml", "run_all/x_run_a_of_2/test.xml"),
            ("run_2_of_/x_run_2_of_b/test.xml", "run_2_of_/x_run_2_of_b/test.xml"),
        ] {
            source.path = path.to_owned();
            assert_eq!(source.setup(), setup);
        }
    }

    #[test]
    fn stored_checks_of_job_ids_are_read_again() {
        for check in JobIdCheck::ALL {
            assert_eq!(serde_json::to_value(check).unwrap(), check.as_str());
            assert_eq!(JobIdCheck::from_name(check.as_str()), Some(check));
        }
        assert_eq!(JobIdCheck::from_name("Missing"), None);
    }

    #[test]
    fn shards_of_a_job_have_the_same_job_and_config_and_legs_of_a_matrix_have_not() {
        for (name, expected) in [
            ("linux-jammy / test (default, 1, 5, linux.4xlarge)", ("linux-jammy", "default")),
            ("linux-jammy / test (distributed, 2, 5)", ("linux-jammy", "distributed")),
            ("test (slow, 1, 2)", ("test", "slow")),
            ("build / test", ("build", "default")),
            ("unit tests", ("unit tests", "default")),
            ("test (ubuntu, 3.11)", ("test", "ubuntu, 3.11")),
            ("linux / test (ubuntu, 3)", ("linux", "ubuntu, 3")),
            ("test (gpu (a100))", ("test", "gpu (a100)")),
            ("test (3.12", ("test", "3.12")),
            ("odd ()", ("odd", "default")),
            ("", ("", "default")),
        ] {
            assert_eq!(job_and_config(name), expected, "{name}");
        }
    }
}
