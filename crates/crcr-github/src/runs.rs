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

/// A workflow run.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct WorkflowRun {
    /// Its number, the same for all attempts.
    pub id: u64,
    /// The attempt, from 1.
    #[serde(default)]
    pub run_attempt: u64,
    /// The event that started it.
    #[serde(default)]
    pub event: String,
    /// `queued`, `in_progress`, `completed` and others.
    #[serde(default)]
    pub status: Option<String>,
    /// The verdict, once completed.
    #[serde(default)]
    pub conclusion: Option<String>,
    /// Its page.
    #[serde(default)]
    pub html_url: String,
    /// When it last changed.
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
    #[must_use]
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
