//! Comments and labels of a pull request.
//!
//! <https://docs.github.com/en/rest/issues/comments> and <https://docs.github.com/en/rest/issues/labels>

use http::Method;
use serde::Deserialize;
use serde_json::json;

use crate::app::{GithubApp, Permissions};
use crate::error::GithubError;
use crate::null_as_default;
use crate::rest::{LONG_TEXTS_PER_PAGE, PAGE_SIZE, RestRequest, repo_path};

const WRITE: Permissions = &[("pull_requests", "write")];
const READ: Permissions = &[("pull_requests", "read")];

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct PullRequestComment {
    pub id: u64,
    #[serde(default, deserialize_with = "null_as_default")]
    pub body: String,
    /// `None` if the account was deleted.
    user: Option<CommentAuthor>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct CommentAuthor {
    login: String,
}

impl PullRequestComment {
    /// Whether an App wrote it. Nobody else's login can end like that.
    pub fn is_by_app(&self) -> bool {
        self.user.as_ref().is_some_and(|user| user.login.ends_with("[bot]"))
    }
}

impl GithubApp {
    /// The comments on pull request `number` of `repo`, oldest first, at most 2,000.
    pub async fn comments(
        &self,
        repo: &str,
        number: u64,
    ) -> Result<Vec<PullRequestComment>, GithubError> {
        let path = format!("{}/issues/{number}/comments", repo_path(repo));
        self.list::<_, Vec<_>>(repo, READ, &path, LONG_TEXTS_PER_PAGE).await
    }

    /// Adds a comment to pull request `number` of `repo`; returns the comment's number.
    pub async fn create_comment(
        &self,
        repo: &str,
        number: u64,
        markdown: &str,
    ) -> Result<u64, GithubError> {
        let path = format!("{}/issues/{number}/comments", repo_path(repo));
        let request = RestRequest::new(Method::POST, path).with_json(&json!({ "body": markdown }));
        Ok(self.call_json::<PullRequestComment>(repo, WRITE, request).await?.id)
    }

    /// The names of the labels of pull request `number` of `repo`.
    pub async fn labels(&self, repo: &str, number: u64) -> Result<Vec<String>, GithubError> {
        #[derive(Deserialize)]
        struct Label {
            name: String,
        }
        let path = format!("{}/issues/{number}/labels", repo_path(repo));
        let labels = self.list::<Label, Vec<Label>>(repo, READ, &path, PAGE_SIZE).await?;
        Ok(labels.into_iter().map(|label| label.name).collect())
    }
}
