//! Comments and labels of a pull request.
//!
//! <https://docs.github.com/en/rest/issues/comments> and <https://docs.github.com/en/rest/issues/labels>

use serde::Deserialize;
use serde_json::json;

use crate::app::{App, Call, MAX_PAGES, Scope, repo_path};
use crate::error::Error;

const WRITE: Scope = &[("pull_requests", "write")];
const READ: Scope = &[("pull_requests", "read")];

/// A comment on a pull request.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Comment {
    pub id: u64,
    #[serde(default)]
    pub body: String,
}

impl App {
    /// The comments on pull request `number` of `repo`, oldest first, at most 2,000.
    pub async fn comments(&self, repo: &str, number: u64) -> Result<Vec<Comment>, Error> {
        self.pages(repo, &format!("issues/{number}/comments")).await
    }

    /// Adds a comment to pull request `number` of `repo`; returns its number.
    pub async fn create_comment(
        &self,
        repo: &str,
        number: u64,
        markdown: &str,
    ) -> Result<u64, Error> {
        let body = json!({ "body": markdown });
        let call = Call::post(format!("{}/issues/{number}/comments", repo_path(repo)), &body);
        Ok(self.call_json::<Comment>(repo, WRITE, &call).await?.id)
    }

    /// The names of the labels of pull request `number` of `repo`.
    pub async fn labels(&self, repo: &str, number: u64) -> Result<Vec<String>, Error> {
        #[derive(Deserialize)]
        struct Label {
            name: String,
        }
        let labels: Vec<Label> = self.pages(repo, &format!("issues/{number}/labels")).await?;
        Ok(labels.into_iter().map(|label| label.name).collect())
    }

    async fn pages<T: serde::de::DeserializeOwned>(
        &self,
        repo: &str,
        below: &str,
    ) -> Result<Vec<T>, Error> {
        let mut all = Vec::new();
        for page in 1..=MAX_PAGES {
            let path = format!("{}/{below}?per_page=100&page={page}", repo_path(repo));
            let found: Vec<T> = self.call_json(repo, READ, &Call::get(path)).await?;
            let last = found.len() < 100;
            all.extend(found);
            if last {
                break;
            }
        }
        Ok(all)
    }
}
