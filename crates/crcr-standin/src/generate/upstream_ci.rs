//! The upstream repository's own CI in a generated history: webhooks of its pushes, pull requests, runs and
//! jobs, and results of its tests.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use crcr_domain::ci_data::job_log::{
    EndedJob, JobLogOutcome, JobLogRow, LogClassification, LogMatch, LogMatchSource, NoLogReason,
    NovelLine,
};
use crcr_domain::ci_data::test_row::{JobIdCheck, ReportRows, ReportSource, TestRunRow, TestedRun};
use crcr_domain::ci_data::test_run::{TestCase, TestDetail, TestDetailKind, TestResult};
use crcr_domain::ci_data::webhook::{WebhookRow, WebhookRowError};
use crcr_domain::results::facts::{DispatchFact, Fact};
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
    /// The label of its runner.
    runner: &'static str,
}

const fn job(
    workflow: &'static str,
    name: &'static str,
    minutes: u32,
    fails: f64,
    last_step: &'static str,
    runner: &'static str,
) -> GeneratedJob {
    GeneratedJob { workflow, name, minutes, fails, last_step, runner }
}

const WORKFLOWS: [&str; 3] = ["Lint", "Docs", "Trunk"];
const JOBS: [GeneratedJob; 12] = [
    job("Lint", "quick-checks", 4, 0.03, "Run the linters", "linux.2xlarge"),
    job("Docs", "build-docs", 18, 0.02, "Build the docs", "linux.2xlarge"),
    job("Trunk", "linux / build", 25, 0.01, "Build", "linux.12xlarge"),
    job("Trunk", "linux / test (default, 1, 3)", 45, 0.04, TEST, "linux.4xlarge"),
    job("Trunk", "linux / test (default, 2, 3)", 50, 0.04, TEST, "linux.4xlarge"),
    job("Trunk", "linux / test (default, 3, 3)", 48, 0.04, TEST, "linux.4xlarge"),
    job("Trunk", RED_JOB, 70, 0.08, TEST, SCARCE),
    job("Trunk", "macos / build", 35, 0.02, "Build", "macos-14"),
    job("Trunk", "macos / test (default, 1, 2)", 60, 0.06, TEST, "macos-14"),
    job("Trunk", "macos / test (default, 2, 2)", 60, 0.06, TEST, "macos-14"),
    job("Trunk", "windows / build", 55, 0.05, "Build", "windows.8xlarge"),
    job("Trunk", "windows / test (default, 1, 1)", 90, 0.1, TEST, "windows.8xlarge"),
];
/// Red on the newest commits of the branch, by a test of its own.
const RED_JOB: &str = "linux / test (distributed, 1, 1)";
const RED_PUSHES: usize = 4;
const RED_TEST: &str = "test_all_reduce";
/// Runners that jobs wait for, longest in the last days.
const SCARCE: &str = "linux.8xlarge.gpu";
const SCARCE_FOR_HOURS: i64 = 60;
/// The files that pushes change.
pub(crate) const FILES: [&str; 5] = [
    "torch/distributed/reducer.py",
    "aten/src/ATen/native/Pow.cpp",
    "test/test_ops.py",
    "docs/source/notes.rst",
    "setup.py",
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
    ("test/test_distributed.py", "TestProcessGroup", RED_TEST, 14.0),
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
const RED_FAILURE: GeneratedFailure = failure(
    "pytest: failed test",
    "test",
    "FAILED [ 14.2s] test/test_distributed.py::TestProcessGroup::test_all_reduce - RuntimeError: reducer.py: 7 != 8",
    "test/test_distributed.py::TestProcessGroup::test_all_reduce",
);
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
            red_since: red_since(facts, until),
            ci: Self { webhooks: vec![], test_runs: vec![], job_logs: vec![] },
            next_id: 700_000,
            newest_pull: 100_000,
            open_pulls: BTreeMap::new(),
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

    /// The texts of the logs by their keys in an object store, which `key` makes of a repository and a job. The rows say
    /// that they are kept there.
    pub fn keep_logs(&mut self, key: impl Fn(&str, u64) -> String) -> Vec<(String, String)> {
        let is_there = |row: &&mut JobLogRow| row.classification().is_some();
        let rows = self.job_logs.iter_mut().filter(is_there);
        rows.map(|row| {
            let key = key(&row.job.repository, row.job.job_id);
            row.log_key = Some(key.clone());
            (key, log_text(row))
        })
        .collect()
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

/// When the first of the newest commits was pushed that are red.
fn red_since(facts: &[Fact], until: Timestamp) -> Timestamp {
    let mut pushes: Vec<Timestamp> = facts
        .iter()
        .filter_map(|fact| match fact {
            Fact::Dispatch(sent) if sent.pull_request.is_none() => Some(sent.enqueued_at),
            _ => None,
        })
        .collect();
    pushes.sort_unstable();
    pushes.dedup();
    let first = pushes.len().saturating_sub(RED_PUSHES);
    pushes.get(first).copied().unwrap_or(until)
}

const RERUN_AFTER_SECONDS: i64 = 1200;
/// How long after its last push a pull request may still be open.
const OPEN_FOR_HOURS: i64 = 10 * 24;

struct CiGenerator {
    random: StdRng,
    until: Timestamp,
    red_since: Timestamp,
    ci: UpstreamCi,
    next_id: u64,
    newest_pull: u64,
    /// The newest webhook of each open pull request, and when it was pushed to.
    open_pulls: BTreeMap<u64, (Timestamp, Value)>,
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

struct GeneratedRun<'a> {
    commit: &'a GeneratedCommit<'a>,
    workflow: &'a str,
    id: u64,
}

/// Times are seconds.
#[derive(Clone, Copy)]
struct JobAttempt {
    id: u64,
    number: u32,
    created: Timestamp,
    waited: i64,
    seconds: i64,
    fails: bool,
}

impl JobAttempt {
    fn started(&self) -> Timestamp {
        self.created + self.waited.seconds()
    }

    fn ended(&self) -> Timestamp {
        self.started() + self.seconds.seconds()
    }
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
                    "user": { "login": author.to_lowercase().replace(' ', "-") }, "base": { "ref": "main" },
                    "updated_at": at.to_string(), "head": { "sha": sha, "ref": commit.branch },
                },
            });
            self.open_pulls.insert(number, (at, payload.clone()));
            self.webhook("pull_request", &commit, at, payload)?;
        } else {
            self.close_pulls(&commit)?;
            // The first red one changes the file that the failure names.
            let first = if at == self.red_since { 0 } else { 1 + subject % (FILES.len() - 1) };
            let changed = [FILES[first], FILES[1 + (subject / 3) % (FILES.len() - 1)]];
            let payload = json!({
                "ref": "refs/heads/main", "after": sha, "head_commit": commit.head_commit,
                "commits": [{ "id": sha, "added": [], "removed": [], "modified": changed }],
            });
            self.webhook("push", &commit, at, payload)?;
        }
        for workflow in WORKFLOWS {
            self.run(&commit, workflow)?;
        }
        Ok(())
    }

    /// A push lands the newest pull request; those that nobody has pushed to for long are closed by then.
    fn close_pulls(&mut self, push: &GeneratedCommit<'_>) -> Result<(), WebhookRowError> {
        let newest = self.newest_pull;
        let is_over = |number: &u64, pushed: &mut (Timestamp, Value)| {
            *number == newest || pushed.0 < push.at - OPEN_FOR_HOURS.hours()
        };
        let over: Vec<_> = self.open_pulls.extract_if(.., is_over).collect();
        for (number, (_, mut payload)) in over {
            payload["action"] = json!("closed");
            let pull = &mut payload["pull_request"];
            pull["state"] = json!("closed");
            pull["merged"] = json!(number == newest);
            pull["updated_at"] = json!(push.at.to_string());
            self.webhook("pull_request", push, push.at, payload)?;
        }
        Ok(())
    }

    fn run(&mut self, commit: &GeneratedCommit<'_>, workflow: &str) -> Result<(), WebhookRowError> {
        let run_id = self.id();
        let run = GeneratedRun { commit, workflow, id: run_id };
        self.run_webhook(&run, 1, commit.at, None)?;
        let (mut reports, mut reruns) = (vec![], vec![]);
        let (mut last_end, mut failures) = (commit.at, 0);
        for job in JOBS.iter().filter(|job| job.workflow == workflow) {
            let waited = self.random.random_range(5..400_i64) * self.scarcity(job, commit);
            let seconds = i64::from(job.minutes) * self.random.random_range(45..80_i64);
            let failed_by_chance = self.random.random_bool(job.fails);
            let is_red = self.is_red(commit, job);
            let fails = failed_by_chance || is_red;
            let first =
                JobAttempt { id: self.id(), number: 1, created: commit.at, waited, seconds, fails };
            let is_done = self.job(&run, job, &first)?;
            if is_done && job.last_step == TEST {
                let mut report = self.report(commit, run_id, first.id, job, failed_by_chance);
                if is_red {
                    fail_test(&mut report, RED_TEST);
                }
                reports.push(report);
            }
            (last_end, failures) = (last_end.max(first.ended()), failures + u32::from(fails));
            if failed_by_chance && is_done && self.random.random_bool(0.4) {
                let again = JobAttempt { id: self.id(), number: 2, fails: is_red, ..first };
                reruns.push((job, again));
            }
        }
        self.end_run(&run, 1, last_end, failures > 0)?;
        self.run_again(&run, last_end, reruns, failures)?;
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

    /// Somebody looks at the run when it is over, and has some of its failed jobs run again.
    fn run_again(
        &mut self,
        run: &GeneratedRun<'_>,
        ended: Timestamp,
        reruns: Vec<(&GeneratedJob, JobAttempt)>,
        failures: u32,
    ) -> Result<(), WebhookRowError> {
        let created = ended + RERUN_AFTER_SECONDS.seconds();
        if reruns.is_empty() || created > self.until {
            return Ok(());
        }
        self.run_webhook(run, 2, created, None)?;
        let (mut last_end, mut failures) = (created, failures);
        for (job, again) in reruns {
            let again = JobAttempt { created, ..again };
            self.job(run, job, &again)?;
            last_end = last_end.max(again.ended());
            failures -= u32::from(!again.fails);
        }
        self.end_run(run, 2, last_end, failures > 0)
    }

    fn is_red(&self, commit: &GeneratedCommit<'_>, job: &GeneratedJob) -> bool {
        job.name == RED_JOB && commit.pull_request.is_none() && commit.at >= self.red_since
    }

    /// How many times as long as elsewhere a job waits.
    fn scarcity(&self, job: &GeneratedJob, commit: &GeneratedCommit<'_>) -> i64 {
        match job.runner {
            SCARCE if commit.at >= self.until - SCARCE_FOR_HOURS.hours() => 14,
            SCARCE => 4,
            "macos-14" => 2,
            _ => 1,
        }
    }

    fn end_run(
        &mut self,
        run: &GeneratedRun<'_>,
        attempt: u32,
        ended: Timestamp,
        has_failed: bool,
    ) -> Result<(), WebhookRowError> {
        if ended > self.until {
            return Ok(());
        }
        let conclusion = if has_failed { "failure" } else { "success" };
        self.run_webhook(run, attempt, ended, Some(conclusion))
    }

    /// That an attempt of a run was asked for, or has ended.
    fn run_webhook(
        &mut self,
        run: &GeneratedRun<'_>,
        attempt: u32,
        at: Timestamp,
        conclusion: Option<&str>,
    ) -> Result<(), WebhookRowError> {
        let commit = run.commit;
        let status = if conclusion.is_some() { "completed" } else { "requested" };
        let payload = json!({
            "action": status,
            "workflow_run": {
                "id": run.id, "name": run.workflow, "run_attempt": attempt, "status": status,
                "conclusion": conclusion, "event": commit.event, "head_sha": commit.sha,
                "head_branch": commit.branch, "head_commit": commit.head_commit,
                "created_at": commit.at.to_string(), "updated_at": at.to_string(),
                "pull_requests": commit.pull_request.map(|number| json!({ "number": number })).as_slice(),
            },
        });
        self.webhook("workflow_run", commit, at, payload)
    }

    /// The newest webhook of an attempt at a job; whether it has ended.
    fn job(
        &mut self,
        run: &GeneratedRun<'_>,
        job: &GeneratedJob,
        attempt: &JobAttempt,
    ) -> Result<bool, WebhookRowError> {
        let JobAttempt { id, number, created, seconds, fails, .. } = *attempt;
        let (commit, run_id) = (run.commit, run.id);
        let (started, ended) = (attempt.started(), attempt.ended());
        let (status, at) = match () {
            () if ended <= self.until => ("completed", ended),
            () if started <= self.until => ("in_progress", started),
            () if created <= self.until => ("queued", created),
            () => return Ok(false),
        };
        let is_done = status == "completed";
        let conclusion = is_done.then_some(if fails { "failure" } else { "success" });
        let payload = json!({
            "action": status,
            "workflow_job": {
                "id": id, "run_id": run_id, "run_attempt": number, "name": job.name,
                "workflow_name": job.workflow, "status": status, "conclusion": conclusion,
                "head_sha": commit.sha, "head_branch": commit.branch,
                "html_url": format!(
                    "https://github.com/{}/actions/runs/{run_id}/job/{id}", commit.upstream
                ),
                "created_at": created.to_string(),
                "started_at": (status != "queued").then(|| started.to_string()),
                "completed_at": is_done.then(|| ended.to_string()),
                "runner_name": (status != "queued").then(|| format!("runner-{}", id % 40)),
                "labels": [job.runner],
                "steps": [
                    step(1, "Set up job", is_done.then_some("success"), started, 4),
                    step(2, "Check out", is_done.then_some("success"), started + 4.seconds(), 37),
                    step(3, job.last_step, conclusion, started + 41.seconds(), seconds - 41),
                ],
            },
        });
        self.webhook("workflow_job", commit, at, payload)?;
        if is_done && fails {
            let ended_job = EndedJob {
                repository: commit.upstream.to_owned(),
                run_id,
                run_attempt: number.into(),
                job_id: id,
                job_name: job.name.to_owned(),
                workflow: job.workflow.to_owned(),
                branch: commit.branch.clone(),
                head_sha: commit.sha.to_owned(),
                completed_at: ended,
            };
            let is_red = self.is_red(commit, job);
            let failure = is_red.then_some(&RED_FAILURE);
            self.ci.job_logs.push(job_log(ended_job, job.last_step == TEST, failure));
        }
        Ok(is_done)
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
                        suite: "pytest".into(),
                        classname: (*class).into(),
                        file: Some((*file).into()),
                        time: Some(seconds * self.random.random_range(0.8..1.25)),
                        attempts: 1 + u32::from(flaky),
                        flaky,
                        details,
                        ..TestCase::new(
                            (*name).to_owned(),
                            if is_failing { TestResult::Failure } else { TestResult::Success },
                        )
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

fn step(
    number: u64,
    name: &str,
    conclusion: Option<&str>,
    started: Timestamp,
    seconds: i64,
) -> Value {
    json!({
        "name": name, "number": number, "conclusion": conclusion,
        "status": if conclusion.is_some() { "completed" } else { "in_progress" },
        "started_at": started.to_string(),
        "completed_at": conclusion.map(|_| (started + seconds.seconds()).to_string()),
    })
}

/// Makes a test of a report fail.
fn fail_test(report: &mut ReportRows, name: &str) {
    for row in report.rows.iter_mut().filter(|row| row.case.name == name) {
        row.case.result = TestResult::Failure;
        row.case.details = vec![TestDetail {
            kind: TestDetailKind::Failure,
            type_name: Some("RuntimeError".to_owned()),
            message: Some("RuntimeError: reducer.py: 7 != 8".to_owned()),
            text: None,
        }];
    }
}

fn job_log(job: EndedJob, is_test: bool, red: Option<&GeneratedFailure>) -> JobLogRow {
    let known = if is_test { &TEST_FAILURES[..] } else { &OTHER_FAILURES[..] };
    let failure = red.unwrap_or(&known[(job.job_id / 3) as usize % known.len()]);
    let line_number = 200 + job.job_id % 900;
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
        _ if red.is_some() => classified(found, novel),
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

/// As a runner writes it, with the line that explains the failure where the row says.
fn log_text(row: &JobLogRow) -> String {
    use std::fmt::Write as _;

    let found = row.classification().and_then(|known| known.found.as_ref());
    let failing = found.map_or(300, |found| found.line_number);
    let mut text = String::new();
    for number in 1..=failing + 4 {
        let line = match number {
            1 => "Current runner version: '2.329.0'".to_owned(),
            12 => "##[group]Run actions/checkout@v4".to_owned(),
            13 | 42 => "##[endgroup]".to_owned(),
            14..=40 => format!("Receiving objects: {} % ({number}/40)", number * 100 / 40),
            41 => "##[group]Run ./ci/run.sh".to_owned(),
            _ if number == failing => found.map(|found| found.line.clone()).unwrap_or_default(),
            _ if number + 2 == failing => "running step 7 of 9".to_owned(),
            _ if number + 1 == failing => "using 8 processes".to_owned(),
            _ if number == failing + 1 => "##[error]Process completed with exit code 1.".to_owned(),
            _ if number > failing + 1 => "Post job cleanup.".to_owned(),
            _ if number % 97 == 0 => {
                format!("\u{1b}[33mwarning: {} retries left\u{1b}[0m", number % 5)
            }
            _ => format!(
                "[{number}/{failing}] compiling object {}",
                hash64(&number.to_le_bytes()) % 10_000
            ),
        };
        let time =
            row.job.completed_at - (failing + 4 - number.min(failing + 4)).cast_signed().seconds();
        let _ = writeln!(text, "{}.1234567Z {line}", time.strftime("%Y-%m-%dT%H:%M:%S"));
    }
    text
}

#[cfg(test)]
mod tests;
