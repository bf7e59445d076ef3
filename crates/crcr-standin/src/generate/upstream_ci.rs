//! The upstream repository's own CI in a generated history: webhooks of its pushes, pull requests, runs and
//! jobs, and results of its tests.

use std::collections::HashSet;
use std::sync::Arc;

use crcr_domain::ci_data::job_log::{
    EndedJob, JobLogOutcome, JobLogRow, LogClassification, LogMatch, LogMatchSource, NoLogReason,
    NovelLine,
};
use crcr_domain::ci_data::test_row::{JobIdCheck, ReportRows, ReportSource, TestRunRow, TestedRun};
use crcr_domain::ci_data::test_run::{
    TestCase, TestDetail, TestDetailKind, TestResult, TestRowKind,
};
use crcr_domain::ci_data::webhook::{WebhookRow, WebhookRowError};
use crcr_domain::facts::{DispatchFact, Fact};
use crcr_store::hash64;
use jiff::{Timestamp, ToSpan as _};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};

use crcr_results::{Results, ResultsError};

struct GeneratedJob {
    workflow: &'static str,
    name: &'static str,
    minutes: u32,
    /// Share of jobs that fail at the first attempt.
    fails: f64,
    last_step: &'static str,
}

const fn job(
    workflow: &'static str,
    name: &'static str,
    minutes: u32,
    fails: f64,
    last_step: &'static str,
) -> GeneratedJob {
    GeneratedJob { workflow, name, minutes, fails, last_step }
}

const WORKFLOWS: [&str; 3] = ["Lint", "Docs", "Trunk"];
const JOBS: [GeneratedJob; 12] = [
    job("Lint", "quick-checks", 4, 0.03, "Run the linters"),
    job("Docs", "build-docs", 18, 0.02, "Build the docs"),
    job("Trunk", "linux / build", 25, 0.01, "Build"),
    job("Trunk", "linux / test (default, 1, 3)", 45, 0.04, TEST),
    job("Trunk", "linux / test (default, 2, 3)", 50, 0.04, TEST),
    job("Trunk", "linux / test (default, 3, 3)", 48, 0.04, TEST),
    job("Trunk", "linux / test (distributed, 1, 1)", 70, 0.08, TEST),
    job("Trunk", "macos / build", 35, 0.02, "Build"),
    job("Trunk", "macos / test (default, 1, 2)", 60, 0.06, TEST),
    job("Trunk", "macos / test (default, 2, 2)", 60, 0.06, TEST),
    job("Trunk", "windows / build", 55, 0.05, "Build"),
    job("Trunk", "windows / test (default, 1, 1)", 90, 0.1, TEST),
];
/// The last step of the jobs that have results of tests.
const TEST: &str = "Test";
/// File, class, name and seconds.
const TESTS: [(&str, &str, &str, f64); 12] = [
    ("test/test_ops.py", "TestOps", "test_add_float16", 0.4),
    ("test/test_ops.py", "TestOps", "test_matmul_strided", 3.5),
    ("test/test_ops.py", "TestOps", "test_index_select[dim=0]", 0.2),
    ("test/test_autograd.py", "TestAutograd", "test_double_backward", 6.0),
    ("test/test_autograd.py", "TestAutograd", "test_hooks", 0.7),
    ("test/test_models.py", "TestModels", "test_resnet_training", 210.0),
    ("test/test_models.py", "TestModels", "test_transformer_export", 95.0),
    ("test/test_serialization.py", "TestSerialization", "test_round_trip", 1.2),
    ("test/test_random.py", "TestRandom", FLAKY, 0.9),
    ("test/test_random.py", "TestRandom", "test_dropout", 0.5),
    ("test/test_distributed.py", "TestProcessGroup", "test_all_reduce", 14.0),
    ("test/test_distributed.py", "TestProcessGroup", NEW, 11.0),
];
const FLAKY: &str = "test_seed_per_device";
/// A test of the last days.
const NEW: &str = "test_reduce_scatter";
const NEW_FOR_HOURS: i64 = 72;
const TITLES: [&str; 8] = [
    "Fuse pointwise kernels",
    "Fix strides of an expanded view",
    "Document the stable operators",
    "Export embeddings with padding",
    "Raise the minimum version of the compiler",
    "Seed each device on its own",
    "Reject negative dimensions early",
    "Free buffers of a finished backward pass",
];
const AUTHORS: [&str; 4] = ["Ada Example", "Grace Example", "Linus Example", "Margaret Example"];

/// What the log of a failed job says.
struct GeneratedFailure {
    rule: &'static str,
    category: &'static str,
    line: &'static str,
    capture: &'static str,
}

const fn failure(
    rule: &'static str,
    category: &'static str,
    line: &'static str,
    capture: &'static str,
) -> GeneratedFailure {
    GeneratedFailure { rule, category, line, capture }
}

const TEST_FAILURES: [GeneratedFailure; 4] = [
    failure(
        "pytest: failed test",
        "test",
        "FAILED [  3.1s] test/test_ops.py::TestOps::test_matmul_strided",
        "test/test_ops.py::TestOps::test_matmul_strided",
    ),
    failure(
        "pytest: failed test",
        "test",
        "FAILED [  0.9s] test/test_random.py::TestRandom::test_seed_per_device",
        "test/test_random.py::TestRandom::test_seed_per_device",
    ),
    failure(
        "CUDA out of memory",
        "accelerator",
        "torch.OutOfMemoryError: CUDA out of memory",
        "CUDA out of memory",
    ),
    failure(
        "lost communication",
        "infrastructure",
        "The self-hosted runner lost communication with the server",
        "lost communication with the server",
    ),
];
const OTHER_FAILURES: [GeneratedFailure; 3] = [
    failure(
        "C or C++ error",
        "compile",
        "aten/src/ATen/native/Pow.cpp:42:9: error: undeclared identifier 'exponent'",
        "undeclared identifier 'exponent'",
    ),
    failure(
        "name not resolved",
        "network",
        "curl: (6) Could not resolve host: example.org",
        "example.org",
    ),
    failure(
        "pip",
        "package manager",
        "ERROR: No matching distribution found for numpy==9.0",
        "numpy==9.0",
    ),
];

/// Webhooks, logs and results of tests for the commits that a history's facts are about.
pub struct UpstreamCi {
    pub webhooks: Vec<WebhookRow>,
    pub test_runs: Vec<(TestedRun, Vec<ReportRows>)>,
    pub job_logs: Vec<JobLogRow>,
}

impl UpstreamCi {
    /// The same facts give the same rows. Nothing in them is from after `until`.
    pub fn new(facts: &[Fact], until: Timestamp) -> Result<Self, WebhookRowError> {
        let mut generator = CiGenerator {
            random: StdRng::seed_from_u64(1),
            until,
            ci: Self { webhooks: vec![], test_runs: vec![], job_logs: vec![] },
            next_id: 700_000,
            newest_pull: 100_000,
        };
        let mut commits = HashSet::new();
        for fact in facts {
            if let Fact::Dispatch(dispatch) = fact
                && commits.insert(&dispatch.head_sha)
            {
                generator.commit(dispatch)?;
            }
        }
        Ok(generator.ci)
    }

    pub async fn store(self, results: &dyn Results) -> Result<(), ResultsError> {
        results.append_webhooks(self.webhooks).await?;
        results.put_job_logs(self.job_logs).await?;
        for (run, reports) in self.test_runs {
            results.append_test_runs(&run, reports).await?;
            results.finish_test_runs(&run).await?;
        }
        Ok(())
    }
}

struct CiGenerator {
    random: StdRng,
    until: Timestamp,
    ci: UpstreamCi,
    next_id: u64,
    newest_pull: u64,
}

/// A commit, and what caused its runs.
struct GeneratedCommit<'a> {
    upstream: &'a str,
    sha: &'a str,
    branch: String,
    event: &'static str,
    pull_request: Option<u64>,
    head_commit: Value,
    at: Timestamp,
}

impl CiGenerator {
    fn commit(&mut self, dispatch: &DispatchFact) -> Result<(), WebhookRowError> {
        let (at, pull_request) = (dispatch.enqueued_at, dispatch.pull_request);
        let subject = pull_request.unwrap_or(self.newest_pull) as usize;
        let (title, author) = (TITLES[subject % TITLES.len()], AUTHORS[subject % AUTHORS.len()]);
        let (sha, upstream) = (dispatch.head_sha.as_str(), dispatch.upstream.as_str());
        let (message, branch) = match pull_request {
            Some(number) => (title.to_owned(), format!("topic/{number}")),
            None => (format!("{title} (#{})", self.newest_pull), "main".to_owned()),
        };
        let head_commit = json!({
            "id": sha, "message": message, "timestamp": at.to_string(), "author": { "name": author },
        });
        let commit = GeneratedCommit {
            upstream,
            sha,
            event: if pull_request.is_some() { "pull_request" } else { "push" },
            branch,
            pull_request,
            head_commit,
            at,
        };
        if let Some(number) = pull_request {
            self.newest_pull = number;
            let payload = json!({
                "action": "synchronize", "number": number,
                "pull_request": {
                    "id": number, "number": number, "title": title, "state": "open",
                    "updated_at": at.to_string(), "head": { "sha": sha, "ref": commit.branch },
                },
            });
            self.webhook("pull_request", &commit, at, payload)?;
        } else {
            let payload = json!({
                "ref": "refs/heads/main", "after": sha, "head_commit": commit.head_commit,
            });
            self.webhook("push", &commit, at, payload)?;
        }
        for workflow in WORKFLOWS {
            self.run(&commit, workflow)?;
        }
        Ok(())
    }

    fn run(&mut self, commit: &GeneratedCommit<'_>, workflow: &str) -> Result<(), WebhookRowError> {
        let run_id = self.id();
        let payload = json!({
            "action": "requested",
            "workflow_run": {
                "id": run_id, "name": workflow, "run_attempt": 1, "status": "requested",
                "event": commit.event, "head_sha": commit.sha, "head_branch": commit.branch,
                "head_commit": commit.head_commit, "updated_at": commit.at.to_string(),
                "pull_requests": commit.pull_request.map(|number| json!({ "number": number })).as_slice(),
            },
        });
        self.webhook("workflow_run", commit, commit.at, payload)?;
        let mut reports = vec![];
        for job in JOBS.iter().filter(|job| job.workflow == workflow) {
            let started = commit.at + self.random.random_range(5..400_i64).seconds();
            let seconds = i64::from(job.minutes) * self.random.random_range(45..80_i64);
            let fails = self.random.random_bool(job.fails);
            let is_done = self.job(commit, run_id, job, 1, started, seconds, fails)?;
            if let Some(job_id) = is_done.filter(|_| job.last_step == TEST) {
                reports.push(self.report(commit, run_id, job_id, job, fails));
            }
            // Somebody looks at it after a while, and has it run again.
            if fails && is_done.is_some() && self.random.random_bool(0.4) {
                let again = started + (seconds + 1200).seconds();
                self.job(commit, run_id, job, 2, again, seconds, false)?;
            }
        }
        if !reports.is_empty() && commit.pull_request.is_none() {
            let run = TestedRun {
                repository: commit.upstream.to_owned(),
                workflow_id: Some(1),
                workflow: Some(workflow.to_owned()),
                run_id,
                run_attempt: 1,
                head_branch: Some(commit.branch.clone()),
                head_sha: Some(commit.sha.to_owned()),
                on_default_branch: true,
                started_at: commit.at,
            };
            self.ci.test_runs.push((run, reports));
        }
        Ok(())
    }

    /// The newest webhook of a job; its id if the job has ended.
    #[expect(clippy::too_many_arguments, reason = "the parts of one payload")]
    fn job(
        &mut self,
        commit: &GeneratedCommit<'_>,
        run_id: u64,
        job: &GeneratedJob,
        attempt: u32,
        started: Timestamp,
        seconds: i64,
        fails: bool,
    ) -> Result<Option<u64>, WebhookRowError> {
        let ended = started + seconds.seconds();
        let (status, at) = match () {
            () if ended <= self.until => ("completed", ended),
            () if started <= self.until => ("in_progress", started),
            () if commit.at <= self.until => ("queued", commit.at),
            () => return Ok(None),
        };
        let is_done = status == "completed";
        let conclusion = is_done.then_some(if fails { "failure" } else { "success" });
        let id = self.id();
        let payload = json!({
            "action": status,
            "workflow_job": {
                "id": id, "run_id": run_id, "run_attempt": attempt, "name": job.name,
                "workflow_name": job.workflow, "status": status, "conclusion": conclusion,
                "head_sha": commit.sha, "head_branch": commit.branch,
                "html_url": format!(
                    "https://github.com/{}/actions/runs/{run_id}/job/{id}", commit.upstream
                ),
                "created_at": commit.at.to_string(),
                "started_at": (status != "queued").then(|| started.to_string()),
                "completed_at": is_done.then(|| ended.to_string()),
                "runner_name": (status != "queued").then(|| format!("runner-{}", id % 40)),
                "steps": [
                    { "name": "Set up job", "number": 1, "conclusion": is_done.then_some("success") },
                    { "name": job.last_step, "number": 2, "conclusion": conclusion },
                ],
            },
        });
        self.webhook("workflow_job", commit, at, payload)?;
        if is_done && fails {
            let ended_job = EndedJob {
                repository: commit.upstream.to_owned(),
                run_id,
                run_attempt: attempt.into(),
                job_id: id,
                job_name: job.name.to_owned(),
                workflow: job.workflow.to_owned(),
                branch: commit.branch.clone(),
                head_sha: commit.sha.to_owned(),
                completed_at: ended,
            };
            self.ci.job_logs.push(job_log(ended_job, job.last_step == TEST));
        }
        Ok(is_done.then_some(id))
    }

    fn webhook(
        &mut self,
        event: &str,
        commit: &GeneratedCommit<'_>,
        at: Timestamp,
        mut payload: Value,
    ) -> Result<(), WebhookRowError> {
        payload["repository"] = json!({ "full_name": commit.upstream });
        let delivery = format!("generated-{}", self.ci.webhooks.len());
        let row = WebhookRow::new(event, &delivery, at, payload.to_string().as_bytes())?;
        self.ci.webhooks.push(row);
        Ok(())
    }

    fn report(
        &mut self,
        commit: &GeneratedCommit<'_>,
        run_id: u64,
        job_id: u64,
        job: &GeneratedJob,
        fails: bool,
    ) -> ReportRows {
        let has_new = commit.at >= self.until - NEW_FOR_HOURS.hours();
        let tests = TESTS.iter().filter(|(_, _, name, _)| has_new || *name != NEW);
        // One test fails, the first ones more often.
        let failing = fails.then(|| self.random.random_range(0..TESTS.len() - 1) / 2);
        let rows = tests
            .enumerate()
            .map(|(n, (file, class, name, seconds))| {
                let is_failing = failing == Some(n);
                let flaky = !is_failing && *name == FLAKY && self.random.random_bool(0.2);
                let details = if is_failing || flaky {
                    vec![TestDetail {
                        kind: if flaky { TestDetailKind::Rerun } else { TestDetailKind::Failure },
                        type_name: Some("AssertionError".to_owned()),
                        message: Some("Tensor-likes are not close!".to_owned()),
                        text: None,
                    }]
                } else {
                    vec![]
                };
                let identity = format!("{}\0{class}\0{name}", commit.upstream.to_ascii_lowercase());
                TestRunRow {
                    test_id: hash64(identity.as_bytes()),
                    case: TestCase {
                        kind: TestRowKind::Test,
                        suite: "pytest".into(),
                        classname: (*class).into(),
                        name: (*name).to_owned(),
                        file: Some((*file).into()),
                        variant: None,
                        result: if is_failing { TestResult::Failure } else { TestResult::Success },
                        time: Some(seconds * self.random.random_range(0.8..1.25)),
                        attempts: 1 + u32::from(flaky),
                        flaky,
                        details,
                    },
                }
            })
            .collect();
        let artifact = format!("test-reports-runattempt1-{job_id}.zip");
        let source = ReportSource {
            report_id: hash64(format!("{run_id}/{artifact}").as_bytes()),
            job_id: Some(job_id),
            job_id_check: JobIdCheck::Verified,
            job: job.name.into(),
            artifact: Arc::from(artifact),
            path: "test-reports/pytest.xml".to_owned(),
            invoking_file: None,
        };
        ReportRows { source, rows }
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}

/// The id stands in for a random number, so that other generated rows stay as they are.
fn classified(found: LogMatch, novel: Vec<NovelLine>) -> JobLogOutcome {
    let candidates = vec![found.clone()];
    let found = Some(found);
    JobLogOutcome::Classified(Box::new(LogClassification { found, candidates, novel }))
}

fn job_log(job: EndedJob, is_test: bool) -> JobLogRow {
    let known = if is_test { &TEST_FAILURES[..] } else { &OTHER_FAILURES[..] };
    let failure = &known[(job.job_id / 3) as usize % known.len()];
    let line_number = 1000 + job.job_id % 9000;
    let line = failure.line.to_owned();
    let context = [
        "running step 7 of 9",
        "using 8 processes",
        failure.line,
        "##[error]Process completed with exit code 1.",
    ];
    let mut found = LogMatch {
        rule: Some(failure.rule.to_owned()),
        category: Some(failure.category.to_owned()),
        line_number,
        captures: vec![failure.capture.to_owned()],
        context: context.map(str::to_owned).to_vec(),
        by: LogMatchSource::Rule,
        line: line.clone(),
        certainty_percent: 90,
        reasons: vec![],
    };
    let novel = vec![
        NovelLine { line_number, line },
        NovelLine { line_number: line_number - 7, line: "warning: 3 retries left".to_owned() },
    ];
    let outcome = match job.job_id % 9 {
        0 => JobLogOutcome::NoLog(NoLogReason::Gone),
        1 => {
            (found.rule, found.category, found.captures) = (None, None, vec![]);
            found.by = LogMatchSource::Diff;
            classified(found, novel)
        }
        2 => classified(found, novel),
        _ => classified(found, vec![]),
    };
    JobLogRow { looked_at: job.completed_at + 30.seconds(), log_key: None, job, outcome }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crcr_store::{SqliteStore, StoreRole};

    use super::*;
    use crate::generate::facts;
    use crcr_results::WebhookResults as _;
    use crcr_results::job_logs::{FailureQuery, JobLogResults as _};
    use crcr_results::retention::day_of;
    use crcr_results::sqlite::SqliteResults;
    use crcr_results::test_runs::{TestQuery, TestRanking, TestRunResults as _};
    use crcr_results::webhook_tables::{ThingQuery, ThingSelection};

    const UPSTREAM: &str = "example/torch";

    #[tokio::test]
    async fn generated_ci_has_commits_jobs_in_every_state_and_each_ranking_of_tests() {
        let until: Timestamp = "2026-09-15T12:00:00Z".parse().unwrap();
        let facts = facts(1, until, 30, 12, UPSTREAM);
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&folder.path().join("crcr.db"), StoreRole::Tool).unwrap();
        let results = SqliteResults::new(Arc::new(store));
        for _ in 0..2 {
            UpstreamCi::new(&facts, until).unwrap().store(&results).await.unwrap();
        }
        let selection = ThingSelection::Branch { name: "main", before: Timestamp::MAX, limit: 50 };
        let query = ThingQuery { event: "push", repository: UPSTREAM, selection };
        let pushes = results.current_things(&query).await.unwrap();
        assert_eq!(pushes.len(), 50, "as many as a page shows");
        let selection =
            ThingSelection::Branch { name: "main", before: Timestamp::MAX, limit: 9_999 };
        let query = ThingQuery { event: "workflow_job", selection, ..query };
        let jobs = results.current_things(&query).await.unwrap();
        assert!(jobs.iter().all(|job| job.received_at <= until));
        for conclusion in ["\"success\"", "\"failure\""] {
            let text = format!("\"conclusion\":{conclusion}");
            assert!(jobs.iter().any(|job| job.document.contains(&text)), "{conclusion}");
        }
        let query = FailureQuery {
            repository: None,
            category: None,
            from: Timestamp::UNIX_EPOCH,
            to: Timestamp::MAX,
            limit: 99,
        };
        let groups = results.failure_groups(&query).await.unwrap();
        assert!(groups.len() > 5 && groups.iter().any(|group| group.reason.is_some()));
        let last = day_of(until);
        for ranking in
            [TestRanking::Flaky, TestRanking::Slow, TestRanking::Failing, TestRanking::New]
        {
            let query = TestQuery {
                repository: UPSTREAM.to_owned(),
                ranking,
                days: (last - 6, last),
                job: None,
                all_branches: false,
                search: None,
                limit: 5,
            };
            let stats = results.test_stats(&query).await.unwrap();
            assert!(!stats.is_empty(), "{ranking:?}");
            if ranking == TestRanking::New {
                assert_eq!(stats.iter().map(|test| &*test.name).collect::<Vec<_>>(), [NEW]);
            }
        }
    }
}
