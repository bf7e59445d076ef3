//! What the markup of a page knows beside its model: where GitHub and this HUD are, and which page this is.

use axum::http::request::Parts;
use crcr_domain::RepoName;

use crate::context::Hud;

/// A request of an operator who has logged in has this extension.
#[derive(Debug, Clone, Copy)]
pub struct Operator;

/// The page that is shown, and the server that its links lead to.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// GitHub's web pages, without a slash at the end.
    pub github_url: &'a str,
    /// Where the relay is reached from outside, if its configuration says so.
    pub public_url: Option<&'a str>,
    /// The address of this page, without its query.
    pub path: &'a str,
    /// Whether the reader has logged in as an operator.
    pub is_operator: bool,
    /// Whether there is a page to log in on.
    pub has_login: bool,
}

impl<'a> View<'a> {
    pub(crate) fn of(hud: &'a Hud, asked: &'a Parts) -> Self {
        let is_operator = asked.extensions.get::<Operator>().is_some();
        Self {
            github_url: &hud.github_url,
            public_url: hud.public_url.as_deref(),
            path: asked.uri.path(),
            is_operator,
            has_login: hud.has_login,
        }
    }
}

impl View<'_> {
    pub(crate) fn commit_url(&self, repository: &str, sha: &str) -> String {
        self.on_github(repository, &format!("commit/{sha}"))
    }

    pub(crate) fn pull_url(&self, repository: &str, number: u64) -> String {
        self.on_github(repository, &format!("pull/{number}"))
    }

    pub(crate) fn job_url(&self, repository: &str, run_id: u64, job_id: u64) -> String {
        // A whole run has the id of the run.
        let job = if job_id == run_id { String::new() } else { format!("/job/{job_id}") };
        self.on_github(repository, &format!("actions/runs/{run_id}{job}"))
    }

    /// Names of repositories come from webhooks; only a valid one becomes a part of an address.
    fn on_github(&self, repository: &str, path: &str) -> String {
        match RepoName::new(repository) {
            Ok(repository) => format!("{}/{repository}/{path}", self.github_url),
            Err(_) => self.github_url.to_owned(),
        }
    }
}
