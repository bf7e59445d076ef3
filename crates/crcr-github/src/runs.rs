//! Workflow runs: their state, and re-running them.
//!
//! <https://docs.github.com/en/rest/actions/workflow-runs>

use http::Method;
use jiff::Timestamp;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::app::{GithubApp, Permissions};
use crate::error::GithubError;
use crate::http::HttpError;
use crate::null_as_default;
use crate::rest::{PAGE_SIZE, RestRequest, repo_path, response_date};

/// Pages of 100 runs.
const RUN_PAGES: u32 = 10;
/// Pages of 100 jobs.
const JOB_PAGES: usize = 10;
/// GitHub's filtered lists end after this many, and then nobody can say whether there are more.
const LISTED_RUNS: usize = 1000;
const WRITE: Permissions = &[("actions", "write")];
const READ: Permissions = &[("actions", "read")];

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct WorkflowRun {
    /// The same for all attempts.
    pub id: u64,
    /// The attempt, from 1.
    #[serde(default, deserialize_with = "null_as_default")]
    pub run_attempt: u64,
    pub name: Option<String>,
    pub workflow_id: Option<u64>,
    /// The workflow's file, such as `.github/workflows/ci.yml`.
    #[serde(default, deserialize_with = "null_as_default")]
    pub path: String,
    pub head_branch: Option<String>,
    pub head_sha: Option<String>,
    /// The workflow's `run-name`, or GitHub's default title.
    #[serde(default, deserialize_with = "null_as_default")]
    pub display_title: String,
    #[serde(default, deserialize_with = "null_as_default")]
    pub event: String,
    /// `queued`, `in_progress`, `completed` and others.
    pub status: Option<String>,
    pub conclusion: Option<String>,
    #[serde(default, deserialize_with = "null_as_default")]
    pub html_url: String,
    /// When its first attempt was created.
    pub created_at: Option<Timestamp>,
    /// When this attempt started.
    pub run_started_at: Option<Timestamp>,
    pub updated_at: Option<Timestamp>,
    /// Who started the run, whoever ran it again; of a dispatch, who sent it.
    pub actor: Option<RunActor>,
    /// For a fork, another repository than the run's own.
    pub head_repository: Option<HeadRepository>,
}

/// The account that started a run.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct RunActor {
    pub login: String,
}

/// The repository that a run's commits come from.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct HeadRepository {
    /// `owner/repo`.
    pub full_name: String,
}

/// A job of one attempt of a run.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct WorkflowJob {
    /// Also the number of its check run. A re-run job has another one.
    pub id: u64,
    #[serde(default, deserialize_with = "null_as_default")]
    pub name: String,
    /// The attempt in which it ran. A job that succeeded isn't run again with those that failed.
    #[serde(default, deserialize_with = "null_as_default")]
    pub run_attempt: u64,
    pub conclusion: Option<String>,
    pub started_at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunList {
    pub runs: Vec<WorkflowRun>,
    /// Whether these are all. GitHub pages through the first 1,000 only.
    pub is_complete: bool,
    /// When the list was begun, by GitHub's clock, in whole seconds.
    pub read_at: Timestamp,
}

fn no_date(request: &RestRequest) -> GithubError {
    let text = "the response has no `Date`, so it isn't known what GitHub's clock says";
    GithubError::from_http(&request.name(), HttpError::Malformed(text.to_owned()), Timestamp::MIN)
}

#[derive(Deserialize)]
pub(crate) struct JobPage {
    total_count: usize,
    jobs: Vec<WorkflowJob>,
}

impl From<JobPage> for Vec<WorkflowJob> {
    fn from(page: JobPage) -> Self {
        page.jobs
    }
}

impl WorkflowRun {
    /// The workflow's file, without the ref that GitHub puts behind the path of some runs.
    pub fn file(&self) -> &str {
        let end = [".yml@", ".yaml@"].iter().find_map(|end| {
            let at = self.path.find(end)?;
            Some(at + end.len() - 1)
        });
        &self.path[..end.unwrap_or(self.path.len())]
    }

    pub fn is_completed(&self) -> bool {
        self.status.as_deref() == Some("completed")
    }
}

impl GithubApp {
    /// The latest attempt of run number `run_id` of `repo`.
    pub async fn run(&self, repo: &str, run_id: u64) -> Result<WorkflowRun, GithubError> {
        let path = format!("{}/actions/runs/{run_id}", repo_path(repo));
        self.read_renamed(repo, RestRequest::get(path)).await
    }

    async fn read_renamed<T: DeserializeOwned>(
        &self,
        repo: &str,
        request: RestRequest,
    ) -> Result<T, GithubError> {
        let response = self.call_renamed(repo, READ, &request).await?;
        self.client().read_json(&request, response).await
    }

    /// The runs of `repo` that `event` started between `from` and `to`: all pages of GitHub's list.
    pub async fn runs_of_event(
        &self,
        repo: &str,
        event: &str,
        (from, to): (Timestamp, Timestamp),
    ) -> Result<RunList, GithubError> {
        #[derive(Deserialize)]
        struct RunPage {
            total_count: usize,
            workflow_runs: Vec<WorkflowRun>,
        }
        let second = "%Y-%m-%dT%H:%M:%SZ";
        let (from, to) = (from.strftime(second), to.strftime(second));
        let list = format!("{}/actions/runs?event={event}&created={from}..{to}", repo_path(repo));
        let mut runs: Vec<WorkflowRun> = vec![];
        let mut read_at = None;
        for page in 1..=RUN_PAGES {
            let request = RestRequest::get(format!("{list}&per_page=100&page={page}"));
            let response = self.call_renamed(repo, READ, &request).await?;
            let date = response_date(response.headers());
            let at = *read_at.get_or_insert(date.ok_or_else(|| no_date(&request))?);
            let read: RunPage = self.client().read_json(&request, response).await?;
            let is_last = read.workflow_runs.is_empty();
            for run in read.workflow_runs {
                // A run that was deleted or created in between moves the others to another page.
                if !runs.iter().any(|known| known.id == run.id) {
                    runs.push(run);
                }
            }
            if runs.len() >= read.total_count || is_last {
                let is_complete = runs.len() >= read.total_count;
                let is_complete = is_complete && runs.len() < LISTED_RUNS;
                return Ok(RunList { runs, is_complete, read_at: at });
            }
        }
        let read_at = read_at.unwrap_or(Timestamp::MIN);
        Ok(RunList { runs, is_complete: false, read_at })
    }

    /// All jobs of an attempt, which is counted from 1. `None` if GitHub lists none, fewer than it counts, or more than can
    /// be read.
    pub async fn jobs_of_run(
        &self,
        repo: &str,
        run_id: u64,
        attempt: u32,
    ) -> Result<Option<Vec<WorkflowJob>>, GithubError> {
        let (repository, attempt) = (repo_path(repo), attempt.max(1));
        let path = format!("{repository}/actions/runs/{run_id}/attempts/{attempt}/jobs");
        let mut jobs = vec![];
        for page in 1..=JOB_PAGES {
            let request = RestRequest::get(format!("{path}?per_page={PAGE_SIZE}&page={page}"));
            let read: JobPage = self.read_renamed(repo, request).await?;
            if read.jobs.is_empty() {
                break;
            }
            jobs.extend(read.jobs);
            if jobs.len() >= read.total_count {
                return Ok(Some(jobs));
            }
        }
        Ok(None)
    }

    /// Re-runs the failed jobs of run number `run_id`.
    ///
    /// Fails with [`GithubError::AlreadyRunning`] while it runs, and with
    /// [`GithubError::Forbidden`] when it is older than 30 days.
    pub async fn rerun_failed_jobs(&self, repo: &str, run_id: u64) -> Result<(), GithubError> {
        self.request_rerun(repo, run_id, "rerun-failed-jobs").await
    }

    /// Re-runs all jobs of run number `run_id`; fails as [`GithubApp::rerun_failed_jobs`] does.
    pub async fn rerun(&self, repo: &str, run_id: u64) -> Result<(), GithubError> {
        self.request_rerun(repo, run_id, "rerun").await
    }

    async fn request_rerun(&self, repo: &str, run_id: u64, which: &str) -> Result<(), GithubError> {
        let path = format!("{}/actions/runs/{run_id}/{which}", repo_path(repo));
        let request = RestRequest::new(Method::POST, path);
        match self.call_renamed(repo, WRITE, &request).await {
            Ok(response) => self.client().confirm(&request, response).await,
            Err(GithubError::Forbidden(text) | GithubError::Unprocessable(text))
                if text.contains("already running") =>
            {
                Err(GithubError::AlreadyRunning(text))
            }
            Err(error) => Err(error),
        }
    }
}
