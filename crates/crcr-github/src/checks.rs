//! Check runs and check suites.
//!
//! <https://docs.github.com/en/rest/checks/runs>

use http::Method;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::app::{App, Call, MAX_PAGES, Scope, repo_path};
use crate::error::Error;

const WRITE: Scope = &[("checks", "write")];
const READ: Scope = &[("checks", "read")];

/// A check run as it is created or updated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckRun {
    /// What people see, and what a required check names.
    pub name: String,
    /// Our own reference; GitHub hands it back in `rerequested`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details_url: Option<String>,
    /// `queued`, `in_progress` or `completed`.
    pub status: &'static str,
    /// GitHub's word for the verdict; with `completed` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conclusion: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When it ended; with `completed` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Timestamp>,
    /// The text of its page.
    pub output: Output,
}

/// The text of a check run's page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    pub title: String,
    /// Markdown, at most 65,535 characters.
    pub summary: String,
}

/// A check run as GitHub lists it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ListedCheckRun {
    pub id: u64,
    pub name: String,
    /// The commit that it stands on.
    #[serde(default)]
    pub head_sha: String,
    #[serde(default)]
    pub external_id: Option<String>,
    /// `queued`, `in_progress`, `completed` and others.
    pub status: String,
    #[serde(default)]
    pub conclusion: Option<String>,
    /// The App that made it.
    #[serde(default)]
    pub app: Option<CheckRunApp>,
}

/// The App that made a check run.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct CheckRunApp {
    pub id: u64,
    /// Its client id, which newer Apps use in the place of the number.
    #[serde(default)]
    pub client_id: Option<String>,
}

impl App {
    /// Creates a check run on `head_sha` of `repo`; returns its number.
    pub async fn create_check_run(
        &self,
        repo: &str,
        head_sha: &str,
        run: &CheckRun,
    ) -> Result<u64, Error> {
        #[derive(Deserialize)]
        struct Created {
            id: u64,
        }
        let mut body = json!(run);
        body["head_sha"] = json!(head_sha);
        let call = Call::post(format!("{}/check-runs", repo_path(repo)), &body);
        Ok(self.call_json::<Created>(repo, WRITE, &call).await?.id)
    }

    /// Changes check run number `id` of `repo`.
    pub async fn update_check_run(&self, repo: &str, id: u64, run: &CheckRun) -> Result<(), Error> {
        let body = json!(run);
        let path = format!("{}/check-runs/{id}", repo_path(repo));
        let call = Call { body: Some(&body), ..Call::new(Method::PATCH, path) };
        self.call(repo, WRITE, &call).await?;
        Ok(())
    }

    /// The check runs of check suite number `suite` of `repo`, at most 2,000.
    pub async fn check_runs_of_suite(
        &self,
        repo: &str,
        suite: u64,
    ) -> Result<Vec<ListedCheckRun>, Error> {
        self.list_check_runs(repo, &format!("check-suites/{suite}/check-runs")).await
    }

    /// The number of this App's own check run `name` on commit `sha` of `repo`, if there is one.
    /// Anybody who can add a job to a pull request can make a check run of that name, so the App that
    /// made it is compared.
    pub async fn own_check_run(
        &self,
        repo: &str,
        sha: &str,
        name: &str,
    ) -> Result<Option<u64>, Error> {
        let (sha, name) = (crate::app::segment(sha), crate::app::segment(name));
        let mut below = format!("commits/{sha}/check-runs?check_name={name}");
        // The parameter is a number; an App that goes by its client id is told from the answer.
        if let Ok(id) = self.id().parse::<u64>() {
            below.push_str(&format!("&app_id={id}"));
        }
        let listed = self.list_check_runs(repo, &below).await?;
        let own = |run: &ListedCheckRun| {
            run.app.as_ref().is_some_and(|app| {
                app.id.to_string() == self.id() || app.client_id.as_deref() == Some(self.id())
            })
        };
        Ok(listed.into_iter().find(own).map(|run| run.id))
    }

    async fn list_check_runs(&self, repo: &str, below: &str) -> Result<Vec<ListedCheckRun>, Error> {
        #[derive(Deserialize)]
        struct Page {
            check_runs: Vec<ListedCheckRun>,
        }
        let mut all = Vec::new();
        for page in 1..=MAX_PAGES {
            let separator = if below.contains('?') { '&' } else { '?' };
            let path = format!("{}/{below}{separator}per_page=100&page={page}", repo_path(repo));
            let found: Page = self.call_json(repo, READ, &Call::get(path)).await?;
            let last = found.check_runs.len() < 100;
            all.extend(found.check_runs);
            if last {
                break;
            }
        }
        Ok(all)
    }
}
