//! `--dispatch`: sends what the relay would send, and looks for the run that answers. With the relay's
//! key, the run also reports, and the relay says whether it believes it.

use std::time::Duration;

use crcr_domain::RepoName;
use crcr_domain::protocol::dry_dispatch;
use crcr_github::runs::WorkflowRun;
use crcr_github::{GithubApp, GithubError};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::report::CheckResult;
use crate::env_vars::Env;

const CHECK: &str = "dispatch";
const POLL: Duration = Duration::from_secs(3);

pub struct DryDispatch<'a> {
    pub app: &'a GithubApp,
    pub repository: &'a str,
    pub upstream: &'a RepoName,
    pub timeout: u64,
    /// Whether each workflow that it may start puts the delivery into its `run-name`.
    pub runs_name_delivery: bool,
    pub env: &'a Env,
}

/// What lets the run report to the relay.
#[derive(Debug, Default)]
struct DispatchProof {
    callback_token: Option<String>,
    callback_url: Option<String>,
}

impl DryDispatch<'_> {
    pub async fn send(&self) -> Result<CheckResult, GithubError> {
        match self.answer().await {
            Err(
                error @ (GithubError::NotInstalled(_)
                | GithubError::Suspended(_)
                | GithubError::MissingPermission { .. }
                | GithubError::Forbidden(_)
                | GithubError::Unprocessable(_)),
            ) => {
                let message = format!("GitHub refused the dispatch: {error}");
                let fix = "install the App with the permissions that it asks for";
                Ok(CheckResult::error(CHECK, message, fix))
            }
            other => other,
        }
    }

    async fn answer(&self) -> Result<CheckResult, GithubError> {
        let before = Timestamp::now();
        let known = self.runs(before).await?;
        let delivery = dry_dispatch::delivery(before, rand::random());
        let proof = match self.proof(&delivery) {
            Ok(proof) => proof,
            Err(problem) => return Ok(CheckResult::not_checked(CHECK, problem)),
        };
        let payload = closed_pull_request(self.upstream, &delivery, &proof);
        self.app.dispatch(self.repository, None, "pull_request", &payload).await?;
        let limit = Duration::from_secs(self.timeout);
        let end = Instant::now() + limit;
        // GitHub is asked for the last time then, and has the rest of the time for its answer.
        let last = end - POLL.min(limit / 4);
        let (mut own, mut others) = (None, vec![]);
        let is_answered = loop {
            let is_last = Instant::now() >= last;
            let Ok(runs) = timeout_at(end, self.runs(before)).await else { break false };
            let new = runs?.into_iter().filter(|run| known.iter().all(|old| old.id != run.id));
            let (named, unnamed): (Vec<_>, Vec<_>) =
                new.partition(|run| run.display_title.contains(&delivery));
            own = named.into_iter().next().or(own);
            others = unnamed;
            let answer = own.as_ref().or_else(|| self.unnamed(&others));
            if is_last || answer.is_some_and(WorkflowRun::is_completed) {
                break true;
            }
            tokio::time::sleep(POLL.min(last.saturating_duration_since(Instant::now()))).await;
        };
        Ok(match (&own, self.unnamed(&others)) {
            (Some(run), _) => self.found(run, proof.callback_token.is_some(), end).await?,
            (None, Some(run)) => {
                let message = format!(
                    "{} began, which may have had another cause: its title doesn't name the dispatch",
                    run.html_url
                );
                let fix = "give the workflow a `run-name` with \
                           `github.event.client_payload.delivery_id`, as the template does";
                CheckResult::warning(CHECK, message, fix)
            }
            (None, None) if !is_answered => self.unanswered("the dispatch was sent"),
            (None, None) => {
                let seconds = self.timeout;
                let message = match others.len() {
                    0 => format!(
                        "GitHub took the dispatch, and no run began within {seconds} seconds"
                    ),
                    n => format!(
                        "GitHub took the dispatch, and of {n} runs that began within {seconds} \
                         seconds none names it"
                    ),
                };
                let fix = "check that the workflow is on the default branch and enabled";
                CheckResult::error(CHECK, message, fix)
            }
        })
    }

    /// The newest run that may be the answer, where a run doesn't say which dispatch started it.
    fn unnamed<'r>(&self, others: &'r [WorkflowRun]) -> Option<&'r WorkflowRun> {
        others.iter().filter(|_| !self.runs_name_delivery).max_by_key(|run| run.created_at)
    }

    /// The result when the time is over before GitHub answers.
    fn unanswered(&self, done: &str) -> CheckResult {
        let message = format!(
            "{done}, and GitHub didn't answer for the rest of the {} seconds: look at the runs of `{}`, or wait \
             longer by `--timeout`",
            self.timeout, self.repository
        );
        CheckResult::not_checked(CHECK, message)
    }

    async fn found(
        &self,
        run: &WorkflowRun,
        is_signed: bool,
        end: Instant,
    ) -> Result<CheckResult, GithubError> {
        let url = &run.html_url;
        if !run.is_completed() {
            return Ok(CheckResult::warning(
                CHECK,
                format!("{url} began and didn't end within {} seconds", self.timeout),
                "let the jobs end at once for a closed pull request, as the template does",
            ));
        }
        let conclusion = run.conclusion.as_deref().unwrap_or("no conclusion");
        let message = format!("{url} answered: {conclusion}");
        if is_signed {
            return self.reported(run, &message, end).await;
        }
        Ok(match conclusion {
            "success" | "skipped" => CheckResult::ok(
                CHECK,
                format!("{message}; without the relay's `CRCR_CALLBACK_KEY` no report was tried"),
            ),
            _ => {
                let fix = "skip the jobs for a closed pull request, as the template does";
                CheckResult::warning(CHECK, message, fix)
            }
        })
    }

    /// Whether the run's job reported and the relay accepted it, which alone lets the job succeed.
    async fn reported(
        &self,
        run: &WorkflowRun,
        message: &str,
        end: Instant,
    ) -> Result<CheckResult, GithubError> {
        let attempt = u32::try_from(run.run_attempt).unwrap_or(1);
        let jobs = self.app.jobs_of_run(self.repository, run.id, attempt);
        let Ok(jobs) = timeout_at(end, jobs).await else { return Ok(self.unanswered(message)) };
        let jobs = jobs?.unwrap_or_default();
        let job = jobs.iter().find(|job| job.name == dry_dispatch::JOB_NAME);
        let name = dry_dispatch::JOB_NAME;
        Ok(match job.map(|job| job.conclusion.as_deref().unwrap_or_default()) {
            Some("success") => CheckResult::ok(
                CHECK,
                format!("{message}, and the relay accepted its token and the dispatch's signature"),
            ),
            Some(conclusion) if conclusion != "skipped" => CheckResult::error(
                CHECK,
                format!("{message}; its job `{name}`, which reports to the relay: {conclusion}"),
                "the job's log says what the relay answered",
            ),
            _ => CheckResult::warning(
                CHECK,
                format!("{message}, and no job `{name}` reported to the relay"),
                "add the job of the template that answers a dry dispatch",
            ),
        })
    }

    #[cfg(feature = "relay")]
    fn proof(&self, delivery: &str) -> Result<DispatchProof, String> {
        let lookup = |name: &str| self.env.get(name).map(str::to_owned);
        let repo = RepoName::new(self.repository).map_err(|error| error.to_string())?;
        let proof = crcr_relay::callback::dry_dispatch::proof(&lookup, delivery, &repo)
            .map_err(|problem| format!("`{}` can't be used: {}", problem.name, problem.what))?;
        Ok(proof.map_or_else(DispatchProof::default, |proof| DispatchProof {
            callback_token: Some(proof.callback_token),
            callback_url: proof.callback_url,
        }))
    }

    #[cfg(not(feature = "relay"))]
    fn proof(&self, _delivery: &str) -> Result<DispatchProof, String> {
        match self.env.get("CRCR_CALLBACK_KEY") {
            Some(_) => Err(
                "this `crcr` was built without the relay, and can't sign: use the `crcr` of a release"
                    .to_owned(),
            ),
            None => Ok(DispatchProof::default()),
        }
    }

    async fn runs(&self, since: Timestamp) -> Result<Vec<WorkflowRun>, GithubError> {
        // Clocks differ by some seconds.
        let minute = SignedDuration::from_mins(1);
        let window = (since - minute, Timestamp::now() + minute);
        let list = self.app.runs_of_event(self.repository, "repository_dispatch", window).await?;
        Ok(list.runs)
    }
}

/// What the relay sends when a pull request is closed, with a commit that doesn't exist. No job of a
/// workflow runs upstream code for it.
fn closed_pull_request(upstream: &RepoName, delivery: &str, proof: &DispatchProof) -> Value {
    let upstream = upstream.as_str();
    let mut payload = json!({
        "event_type": "pull_request",
        "delivery_id": delivery,
        "payload": {
            "action": "closed",
            "repository": { "full_name": upstream },
            "pull_request": {
                "number": 0,
                "head": { "sha": "0".repeat(40), "repo": { "full_name": upstream } },
            },
        },
    });
    let DispatchProof { callback_token, callback_url } = proof;
    for (key, value) in [("callback_token", callback_token), ("callback_url", callback_url)] {
        if let Some(value) = value {
            payload[key] = json!(value);
        }
    }
    payload
}
