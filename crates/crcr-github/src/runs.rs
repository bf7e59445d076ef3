//! Workflow runs: how they stand, and running them again.
//!
//! <https://docs.github.com/en/rest/actions/workflow-runs>

use http::Method;
use jiff::Timestamp;
use serde::Deserialize;

use crate::app::{App, Call, Scope, repo_path};
use crate::error::Error;

const WRITE: Scope = &[("actions", "write")];
const READ: Scope = &[("actions", "read")];

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct WorkflowRun {
    /// Its number, the same for all attempts.
    pub id: u64,
    /// The attempt, from 1.
    #[serde(default)]
    pub run_attempt: u64,
    /// The workflow's file, such as `.github/workflows/ci.yml`.
    #[serde(default)]
    pub path: String,
    /// What GitHub shows of it: the workflow's `run-name`, or a text of GitHub's own.
    #[serde(default)]
    pub display_title: String,
    /// The event that started it.
    #[serde(default)]
    pub event: String,
    /// `queued`, `in_progress`, `completed` and others.
    #[serde(default)]
    pub status: Option<String>,
    #[serde(default)]
    pub conclusion: Option<String>,
    #[serde(default)]
    pub html_url: String,
    /// When its first attempt was created.
    #[serde(default)]
    pub created_at: Option<Timestamp>,
    #[serde(default)]
    pub updated_at: Option<Timestamp>,
    /// Where its commits come from; another repository than the run's own for a fork.
    #[serde(default)]
    pub head_repository: Option<HeadRepository>,
}

/// The repository that a run's commits come from.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct HeadRepository {
    /// `owner/repo`.
    pub full_name: String,
}

impl WorkflowRun {
    /// Whether GitHub says that it is over.
    pub fn is_completed(&self) -> bool {
        self.status.as_deref() == Some("completed")
    }
}

impl App {
    /// Run number `run_id` of `repo`, its latest attempt.
    pub async fn run(&self, repo: &str, run_id: u64) -> Result<WorkflowRun, Error> {
        let path = format!("{}/actions/runs/{run_id}", repo_path(repo));
        self.call_json(repo, READ, &Call::get(path)).await
    }

    /// The newest runs of `repo` that `event` started and that were created from `from` to `to`, at
    /// most 100.
    pub async fn runs_of_event(
        &self,
        repo: &str,
        event: &str,
        (from, to): (Timestamp, Timestamp),
    ) -> Result<Vec<WorkflowRun>, Error> {
        #[derive(Deserialize)]
        struct Page {
            workflow_runs: Vec<WorkflowRun>,
        }
        let second = "%Y-%m-%dT%H:%M:%SZ";
        let (from, to) = (from.strftime(second), to.strftime(second));
        let path = format!(
            "{}/actions/runs?event={event}&created={from}..{to}&per_page=100",
            repo_path(repo)
        );
        Ok(self.call_json::<Page>(repo, READ, &Call::get(path)).await?.workflow_runs)
    }

    /// Runs the failed jobs of run number `run_id` again.
    ///
    /// [`Error::AlreadyRunning`] while it runs; GitHub refuses runs older than 30 days
    /// ([`Error::Forbidden`]).
    pub async fn rerun_failed_jobs(&self, repo: &str, run_id: u64) -> Result<(), Error> {
        self.rerun_with(repo, run_id, "rerun-failed-jobs").await
    }

    /// Runs every job of run number `run_id` again; errors as [`App::rerun_failed_jobs`].
    pub async fn rerun(&self, repo: &str, run_id: u64) -> Result<(), Error> {
        self.rerun_with(repo, run_id, "rerun").await
    }

    async fn rerun_with(&self, repo: &str, run_id: u64, how: &str) -> Result<(), Error> {
        let path = format!("{}/actions/runs/{run_id}/{how}", repo_path(repo));
        let call = Call::new(Method::POST, path);
        match self.call(repo, WRITE, &call).await {
            Ok(_) => Ok(()),
            Err(Error::Forbidden(text) | Error::Unprocessable(text))
                if text.contains("already running") =>
            {
                Err(Error::AlreadyRunning(text))
            }
            Err(error) => Err(error),
        }
    }
}
