//! Check runs and check suites.
//!
//! <https://docs.github.com/en/rest/checks/runs>

use std::cmp::Reverse;

use http::Method;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::app::{GithubApp, Permissions};
use crate::error::GithubError;
use crate::null_as_default;
use crate::rest::{LONG_TEXTS_PER_PAGE, RestRequest, encoded, repo_path};

const WRITE: Permissions = &[("checks", "write")];
const READ: Permissions = &[("checks", "read")];

/// A check run to create or update.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckRun {
    /// The name on the pull request, which branch protection can require.
    pub name: String,
    /// Our own reference, which comes back in the webhook `rerequested`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details_url: Option<String>,
    /// `queued`, `in_progress` or `completed`.
    pub status: &'static str,
    /// GitHub's word for the result, with `completed` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conclusion: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    /// Only with the status `completed`.
    pub completed_at: Option<Timestamp>,
    /// The text of its page.
    pub output: CheckRunOutput,
}

/// The text of a check run's page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckRunOutput {
    pub title: String,
    /// Markdown, at most 65,535 bytes: see `SUMMARY_BYTES` in `checks/check_run.rs`.
    pub summary: String,
}

/// A check run as GitHub lists it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ListedCheckRun {
    pub id: u64,
    pub name: String,
    /// The commit that it belongs to.
    #[serde(default, deserialize_with = "null_as_default")]
    pub head_sha: String,
    pub external_id: Option<String>,
    /// `queued`, `in_progress`, `completed` and others.
    pub status: String,
    pub conclusion: Option<String>,
    pub app: Option<CheckRunApp>,
}

/// The App that made a check run.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct CheckRunApp {
    pub id: u64,
    /// Newer Apps use it instead of the number.
    pub client_id: Option<String>,
}

#[derive(Deserialize)]
struct CheckRunPage {
    check_runs: Vec<ListedCheckRun>,
}

impl From<CheckRunPage> for Vec<ListedCheckRun> {
    fn from(page: CheckRunPage) -> Self {
        page.check_runs
    }
}

impl GithubApp {
    /// Creates a check run on `head_sha` of `repo`; returns its number.
    pub async fn create_check_run(
        &self,
        repo: &str,
        head_sha: &str,
        run: &CheckRun,
    ) -> Result<u64, GithubError> {
        #[derive(Deserialize)]
        struct Created {
            id: u64,
        }
        let mut body = json!(run);
        body["head_sha"] = json!(head_sha);
        let path = format!("{}/check-runs", repo_path(repo));
        let request = RestRequest::new(Method::POST, path).with_json(&body);
        Ok(self.call_json::<Created>(repo, WRITE, request).await?.id)
    }

    /// Changes check run number `id` of `repo`.
    pub async fn update_check_run(
        &self,
        repo: &str,
        id: u64,
        run: &CheckRun,
    ) -> Result<(), GithubError> {
        let path = format!("{}/check-runs/{id}", repo_path(repo));
        let request = RestRequest::new(Method::PATCH, path).with_json(&json!(run));
        let response = self.call(repo, WRITE, &request).await?;
        self.client().confirm(&request, response).await
    }

    /// The check runs of check suite number `suite` of `repo`, at most 2,000.
    pub async fn check_runs_of_suite(
        &self,
        repo: &str,
        suite: u64,
    ) -> Result<Vec<ListedCheckRun>, GithubError> {
        let path = format!("{}/check-suites/{suite}/check-runs", repo_path(repo));
        self.list::<_, CheckRunPage>(repo, READ, &path, LONG_TEXTS_PER_PAGE).await
    }

    /// This App's own check runs `name` on commit `sha` of `repo`, newest first: only the newest counts, and GitHub keeps
    /// those before it. Others with that name are skipped: anybody who adds a job to a pull request can create one.
    pub async fn own_check_runs(
        &self,
        repo: &str,
        sha: &str,
        name: &str,
    ) -> Result<Vec<ListedCheckRun>, GithubError> {
        let (sha, name) = (encoded(sha), encoded(name));
        let repository = repo_path(repo);
        let mut path =
            format!("{repository}/commits/{sha}/check-runs?check_name={name}&filter=all");
        // GitHub filters by number only. An App with a client id is recognised in the answer.
        if let Ok(id) = self.id().parse::<u64>() {
            path.push_str(&format!("&app_id={id}"));
        }
        let mut listed =
            self.list::<_, CheckRunPage>(repo, READ, &path, LONG_TEXTS_PER_PAGE).await?;
        listed.retain(|run| {
            run.app.as_ref().is_some_and(|app| {
                app.id.to_string() == self.id() || app.client_id.as_deref() == Some(self.id())
            })
        });
        listed.sort_by_key(|run| Reverse(run.id));
        Ok(listed)
    }
}
