//! Reports of backends, with their tokens.

use crcr_domain::checks::check_run;
use crcr_domain::protocol::callback::JobId;
use crcr_standin::State;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{BackendLab, LabJob, LabRun};

const AUDIENCE: &str = "pytorch-cross-repo-ci-relay";
pub(crate) const BUILDKITE: &str = "https://agent.buildkite.com";
/// Organization and pipeline of the backend that runs there.
pub(crate) const PIPELINE: (&str, &str) = ("0190-organization", "0190-pipeline");
/// The upstream commit that nightly runs test.
pub(crate) const NIGHTLY_COMMIT: &str = "abababababababababababababababababababab";
/// Added to the number of a run: a run of the same workflow that no dispatch has started.
const OTHER_RUNS: u64 = 500_000;

#[derive(Debug, Clone, Copy)]
pub(crate) struct LabReport {
    pub(crate) run: u64,
    pub(crate) attempt: u32,
    pub(crate) job: LabJob,
    /// `None` if it reports the start.
    pub(crate) conclusion: Option<&'static str>,
    pub(crate) forgery: Option<Forgery>,
    /// Each try mints a token of its own.
    pub(crate) tries: u32,
    /// Tells repeated reports apart.
    pub(crate) copy: u32,
    /// Where the job ended.
    pub(crate) phase: Option<&'static str>,
    /// Whether it says that the build elsewhere is over.
    pub(crate) ends_run: bool,
}

/// Why a report proves nothing.
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
        let run = (run_id, 1, "nightly.yml");
        (claims(github, self.repo, run, ("schedule", "main"), jti, now), body)
    }
}

/// The claims of a token for a job on `branch` that `event` started. `run`: its number, attempt and workflow file.
fn claims(
    github: &State,
    repo: &str,
    (run_id, attempt, file): (&str, u32, &str),
    (event, branch): (&str, &str),
    jti: String,
    now: Timestamp,
) -> Value {
    let issued = issued_at(now);
    let workflow_ref = format!("{repo}/.github/workflows/{file}@refs/heads/{branch}");
    json!({
        "iss": github.origin(), "aud": AUDIENCE, "iat": issued, "nbf": issued,
        "exp": issued + 360, "jti": jti, "repository": repo,
        "repository_id": github.world.add_repo(repo).to_string(),
        "run_id": run_id, "run_attempt": attempt.to_string(), "workflow_ref": workflow_ref,
        "job_workflow_ref": workflow_ref,
        "event_name": event, "ref": format!("refs/heads/{branch}"), "sha": "0".repeat(40),
    })
}

/// A token lives five minutes. Whole minutes let the same signatures be used in many seeds.
fn issued_at(now: Timestamp) -> i64 {
    now.as_second() / 60 * 60
}

/// The number of a run on GitHub, the id of a build elsewhere.
fn id_text(run: &LabRun, id: u64) -> String {
    if run.is_foreign { format!("01900000-0000-4000-8000-{id:012}") } else { id.to_string() }
}

impl BackendLab {
    /// Commit and name of the check run that a report may change.
    pub(crate) fn check_run_of(&self, report: &LabReport) -> (String, String) {
        let run = &self.runs[&report.run];
        let id = JobId {
            run_id: report.run.to_string(),
            run_attempt: report.attempt,
            workflow: run.workflow.to_owned(),
            job: Some(report.job.name.to_owned()),
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
        let LabReport { attempt, job, conclusion, forgery, tries, copy, phase, ends_run, .. } =
            report;
        // A run has one branch and one event, so another one of either is another run's.
        let is_other_run = forgery.is_some_and(Forgery::is_of_another_run);
        let number = report.run + if is_other_run { OTHER_RUNS } else { 0 };
        let id = id_text(run, number);
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
        let LabJob { name, leg } = job;
        // Each leg has a check run of its own downstream.
        let check_run_id = job.check_run_id(report.run, *attempt).to_string();
        body["workflow"] = json!({
            "schema_version": "1", "name": run.workflow, "job_name": name, "conclusion": conclusion,
            "status": if conclusion.is_some() { "completed" } else { "in_progress" },
            "url": format!("https://github.com/{}/actions/runs/{id}", run.repo),
            "run_id": id, "run_attempt": attempt.to_string(), "check_run_id": check_run_id,
        });
        if let Some(phase) = phase.filter(|_| conclusion.is_some()) {
            body["workflow"]["phase"] = json!(phase);
        }
        if run.is_broken.is_some() && *conclusion == Some("failure") {
            body["workflow"]["failed_tests_detail"] = json!([{ "name": "test_add" }]);
        }
        if *ends_run {
            body["workflow"]["run_ended"] = json!(true);
        }
        if run.is_foreign {
            // Its tokens have no `jti`, and no job mints two equal ones.
            let minted = now - SignedDuration::from_mins(i64::from(forgery.is_some()));
            return (build_claims((&id, number), &check_run_id, minted), body);
        }
        let branch =
            if *forgery == Some(Forgery::OtherBranch) { "topic" } else { run.branch.as_str() };
        let event = match forgery {
            Some(Forgery::OtherEvent) => "workflow_dispatch",
            _ => "repository_dispatch",
        };
        let jti = format!("{id}-{attempt}-{name}{leg}-{conclusion:?}-{tries}-{copy}");
        let run_claims = (id.as_str(), *attempt, run.file);
        (claims(github, run.repo, run_claims, (event, branch), jti, now), body)
    }
}

/// The claims of Buildkite, whose tokens have no `jti`.
fn build_claims((build, number): (&str, u64), job: &str, now: Timestamp) -> Value {
    let issued = issued_at(now);
    json!({
        "iss": BUILDKITE, "aud": AUDIENCE, "iat": issued, "nbf": issued, "exp": issued + 360,
        "organization_id": PIPELINE.0, "pipeline_id": PIPELINE.1, "build_id": build,
        "build_number": number, "job_id": job,
    })
}
