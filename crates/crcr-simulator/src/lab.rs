//! The backends: runs that dispatches start, their jobs, and what these report, honestly or not.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crcr_domain::callback::JobId;
use crcr_domain::check_run;
use crcr_standin::State;
use crcr_standin::runs::Run;
use crcr_standin::world::Dispatch;
use jiff::Timestamp;
use rand::Rng as _;
use rand::rngs::StdRng;
use serde_json::{Value, json};

const WORKFLOWS: [&str; 2] = ["CI", "GPU"];
const JOBS: [&str; 2] = ["test", "lint"];
pub(crate) const AUDIENCE: &str = "pytorch-cross-repo-ci-relay";

/// Something that happens downstream at a certain time.
#[derive(Debug, Clone)]
pub(crate) enum LabEvent {
    Report(LabReport),
    /// GitHub closes the run.
    RunOver {
        run: u64,
        attempt: u32,
        conclusion: &'static str,
    },
}

#[derive(Debug, Clone)]
pub(crate) struct LabReport {
    pub(crate) run: u64,
    pub(crate) attempt: u32,
    pub(crate) job: &'static str,
    /// `None` if the report says that it started.
    pub(crate) conclusion: Option<&'static str>,
    pub(crate) forgery: Option<Forgery>,
    /// Each try mints a token of its own.
    pub(crate) tries: u32,
    /// Tells repeated reports apart.
    pub(crate) copy: u32,
}

/// The upstream commit that nightly runs test.
pub(crate) const NIGHTLY_COMMIT: &str = "abababababababababababababababababababab";

/// The report of a nightly run, which answers no dispatch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NightlyReport {
    pub(crate) repo: &'static str,
    /// Each try mints a token of its own.
    pub(crate) tries: u32,
}

impl NightlyReport {
    /// The claims and the body.
    pub(crate) fn request(self, github: &State, now: Timestamp) -> (Value, Value) {
        let run_id = "4000";
        let body = json!({
            "event_type": "nightly", "delivery_id": NIGHTLY_COMMIT,
            "workflow": {
                "schema_version": "1", "name": "nightly", "job_name": "test", "status": "completed",
                "conclusion": "success", "run_id": run_id, "run_attempt": "1",
            },
        });
        let jti = format!("nightly-{}-{}", self.repo, self.tries);
        (claims(github, self.repo, run_id, 1, ("schedule", "main"), jti, now), body)
    }
}

/// The claims of a token for a job on `branch` that `event` started.
fn claims(
    github: &State,
    repo: &str,
    run_id: &str,
    attempt: u32,
    (event, branch): (&str, &str),
    jti: String,
    now: Timestamp,
) -> Value {
    // A token lives five minutes. Whole minutes let the same signatures be used in many seeds.
    let issued = now.as_second() / 60 * 60;
    json!({
        "iss": github.origin(), "aud": AUDIENCE, "iat": issued, "nbf": issued,
        "exp": issued + 360, "jti": jti, "repository": repo,
        "repository_id": github.world.add_repo(repo).to_string(),
        "run_id": run_id, "run_attempt": attempt.to_string(),
        "event_name": event, "ref": format!("refs/heads/{branch}"), "sha": "0".repeat(40),
    })
}

/// Why a report proves nothing.
/// Added to the number of a run: a run of the same workflow that no dispatch has started.
const OTHER_RUNS: u64 = 4000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Forgery {
    NoCallbackToken,
    OtherBranch,
    OtherEvent,
    /// The callback token of another dispatch.
    OtherDispatch,
}

impl Forgery {
    pub(crate) fn is_of_another_run(self) -> bool {
        matches!(self, Self::OtherBranch | Self::OtherEvent)
    }
}

#[derive(Debug)]
pub(crate) struct LabRun {
    pub(crate) repo: &'static str,
    /// The delivery that it answers.
    pub(crate) delivery: String,
    pub(crate) head: String,
    pub(crate) workflow: &'static str,
    jobs: Vec<&'static str>,
    attempt: u32,
    payload: Value,
    /// The conclusion of the last attempt that has ended; `None` until the first one has.
    pub(crate) ended: Option<&'static str>,
    failed_jobs: BTreeSet<&'static str>,
}

/// What genuine reports have said about a job of one upstream commit.
#[derive(Debug, Default)]
pub(crate) struct JobReports {
    pub(crate) started: bool,
    pub(crate) conclusions: BTreeSet<&'static str>,
    pub(crate) was_forged_end: bool,
    /// By run and attempt: what the relay has acknowledged; `None` while only the start is known.
    pub(crate) acknowledged: BTreeMap<(u64, u32), Option<&'static str>>,
}

#[derive(Default)]
pub(crate) struct BackendLab {
    pub(crate) runs: BTreeMap<u64, LabRun>,
    /// By upstream commit and name of the check run.
    pub(crate) jobs: BTreeMap<(String, String), JobReports>,
    /// Some callback token of another dispatch.
    other_token: Option<Value>,
}

pub(crate) type Agenda = Vec<(Timestamp, LabEvent)>;

impl BackendLab {
    /// A backend gets a dispatch for the upstream commit `head`.
    pub(crate) fn receive(
        &mut self,
        github: &State,
        dispatch: &Dispatch,
        repo: &'static str,
        head: &str,
        random: &mut StdRng,
    ) -> Agenda {
        let payload = &dispatch.client_payload;
        let is_closed = payload["payload"]["action"] == "closed";
        if repo == "acme/one" || is_closed || random.random_ratio(1, 12) {
            return vec![];
        }
        let count = if repo == "acme/four" { 2 } else { 1 };
        let mut agenda = vec![];
        for workflow in &WORKFLOWS[..count] {
            let id = self.next_run();
            github.runs.add(Run {
                id,
                repository: repo.to_owned(),
                event: "repository_dispatch".to_owned(),
                workflow: (*workflow).to_owned(),
                workflow_path: format!(".github/workflows/{workflow}.yml"),
                created_at: github.clock.now(),
                ..Run::push()
            });
            let jobs = JOBS[..random.random_range(1..=JOBS.len())].to_vec();
            self.runs.insert(
                id,
                LabRun {
                    repo,
                    delivery: payload["delivery_id"].as_str().unwrap_or_default().to_owned(),
                    head: head.to_owned(),
                    workflow,
                    jobs,
                    attempt: 1,
                    payload: payload.clone(),
                    ended: None,
                    failed_jobs: BTreeSet::new(),
                },
            );
            agenda.extend(self.attempt(id, github.clock.now(), random));
        }
        self.other_token = payload.get("callback_token").cloned();
        agenda
    }

    /// The number that the next run will have.
    pub(crate) fn next_run(&self) -> u64 {
        5000 + self.runs.len() as u64
    }

    /// A run is started again.
    pub(crate) fn rerun(
        &mut self,
        id: u64,
        attempt: u32,
        failed_only: bool,
        now: Timestamp,
        random: &mut StdRng,
    ) -> Agenda {
        let Some(run) = self.runs.get_mut(&id) else { return vec![] };
        run.attempt = attempt;
        if failed_only && !run.failed_jobs.is_empty() {
            run.jobs.retain(|job| run.failed_jobs.contains(job));
        }
        run.failed_jobs.clear();
        self.attempt(id, now, random)
    }

    /// Everything that the newest attempt of a run will do.
    fn attempt(&mut self, id: u64, now: Timestamp, random: &mut StdRng) -> Agenda {
        let Some(run) = self.runs.get_mut(&id) else { return vec![] };
        let attempt = run.attempt;
        let mut agenda = vec![];
        let mut over_at = now + Duration::from_secs(20);
        let mut worst = "success";
        for job in run.jobs.clone() {
            let started_at = now + Duration::from_secs(random.random_range(2..90));
            let ended_at = started_at + Duration::from_secs(random.random_range(1..2400));
            let conclusion = match random.random_range(0..10) {
                0..7 => "success",
                7..9 => "failure",
                _ => "cancelled",
            };
            if conclusion != "success" {
                worst = if worst == "failure" { worst } else { conclusion };
                run.failed_jobs.insert(job);
            }
            let report = |conclusion, forgery, copy| {
                let tries = 0;
                LabEvent::Report(LabReport {
                    run: id,
                    attempt,
                    job,
                    conclusion,
                    forgery,
                    tries,
                    copy,
                })
            };
            for (at, conclusion) in [(started_at, None), (ended_at, Some(conclusion))] {
                if random.random_ratio(1, 12) {
                    // The backend's report step failed.
                    continue;
                }
                let late =
                    if random.random_ratio(1, 10) { random.random_range(0..3000) } else { 0 };
                agenda.push((at + Duration::from_secs(late), report(conclusion, None, 0)));
                if random.random_ratio(1, 8) {
                    let at = at + Duration::from_secs(random.random_range(0..600));
                    agenda.push((at, report(conclusion, None, 1)));
                }
            }
            if random.random_ratio(1, 5) {
                let forgery = match random.random_range(0..4) {
                    0 => Forgery::NoCallbackToken,
                    1 => Forgery::OtherBranch,
                    2 => Forgery::OtherEvent,
                    _ => Forgery::OtherDispatch,
                };
                let at = now + Duration::from_secs(random.random_range(1..3000));
                agenda.push((at, report(Some("success"), Some(forgery), 2)));
            }
            over_at = over_at.max(ended_at);
        }
        over_at += Duration::from_secs(random.random_range(1..60));
        agenda.push((over_at, LabEvent::RunOver { run: id, attempt, conclusion: worst }));
        agenda
    }

    /// GitHub closes an attempt, unless there is a newer one.
    pub(crate) fn close(
        &mut self,
        github: &State,
        id: u64,
        attempt: u32,
        conclusion: &'static str,
    ) {
        let Some(run) = self.runs.get_mut(&id).filter(|run| run.attempt == attempt) else { return };
        run.ended = Some(conclusion);
        if let Some(known) = github.runs.get(id) {
            github.runs.add(Run {
                status: "completed".to_owned(),
                conclusion: Some(conclusion.to_owned()),
                ..(*known).clone()
            });
        }
    }

    /// Commit and name of the check run that a report may change.
    pub(crate) fn check_run_of(&self, report: &LabReport) -> (String, String) {
        let run = &self.runs[&report.run];
        let id = JobId {
            run_id: report.run.to_string(),
            run_attempt: report.attempt,
            workflow: run.workflow.to_owned(),
            job: Some(report.job.to_owned()),
        };
        (run.head.clone(), check_run::job_name(run.repo, &id))
    }

    /// The claims and the body of a report.
    pub(crate) fn request(
        &self,
        github: &State,
        report: &LabReport,
        now: Timestamp,
    ) -> (Value, Value) {
        let run = &self.runs[&report.run];
        let LabReport { attempt, job, conclusion, forgery, tries, copy, .. } = report;
        // A run has one branch and one event, so another one of either is another run's.
        let is_other_run = forgery.is_some_and(Forgery::is_of_another_run);
        let id = report.run + if is_other_run { OTHER_RUNS } else { 0 };
        let mut body = run.payload.clone();
        match forgery {
            Some(Forgery::NoCallbackToken) => body["callback_token"] = Value::Null,
            Some(Forgery::OtherDispatch) => {
                let other = self.other_token.clone().unwrap_or_default();
                // Its own token would prove it.
                let is_own = other == run.payload["callback_token"];
                body["callback_token"] = if is_own { json!("v1.a.b") } else { other };
            }
            _ => {}
        }
        body["workflow"] = json!({
            "schema_version": "1", "name": run.workflow, "job_name": job, "conclusion": conclusion,
            "status": if conclusion.is_some() { "completed" } else { "in_progress" },
            "url": format!("https://github.com/{}/actions/runs/{id}", run.repo),
            "run_id": id.to_string(), "run_attempt": attempt.to_string(),
        });
        let branch = if *forgery == Some(Forgery::OtherBranch) { "topic" } else { "main" };
        let event = match forgery {
            Some(Forgery::OtherEvent) => "workflow_dispatch",
            _ => "repository_dispatch",
        };
        let jti = format!("{id}-{attempt}-{job}-{conclusion:?}-{tries}-{copy}");
        let claims = claims(github, run.repo, &id.to_string(), *attempt, (event, branch), jti, now);
        (claims, body)
    }
}
