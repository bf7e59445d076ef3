//! Branches and pull requests of one repository, with a token that may write: `contents: write` and
//! `pull_requests: write`.
//!
//! A commit is made of a tree and a commit object, and the branch is moved last, so a pull request never
//! shows a half-made change.
//!
//! <https://docs.github.com/en/rest/git> and <https://docs.github.com/en/rest/pulls/pulls>

use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use jiff::Timestamp;
use reqwest::Client;
use secrecy::SecretString;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::app::{GithubApp, Permissions};
use crate::error::GithubError;
use crate::http::RetryPolicy;
use crate::null_as_default;
use crate::rest::{
    LONG_TEXTS_PER_PAGE, PAGE_SIZE, RAW, RestClient, RestRequest, all_pages, contents_path,
    encoded, repo_path,
};
use crate::{ClientSetupError, SecureUrl};

/// The most pages of branches, and of a branch's pull requests, that are read.
const MAX_PAGES: usize = 10;
/// The longest description that GitHub takes.
const MAX_BODY_CHARS: usize = 65_536;
pub const OPEN_PULLS_PER_PAGE: usize = LONG_TEXTS_PER_PAGE;
const READ_CONTENTS: Permissions = &[("contents", "read")];
const READ_PULLS: Permissions = &[("pull_requests", "read")];

#[derive(Debug)]
pub struct RepositoryApi {
    client: RestClient,
    token: SecretString,
    repo: String,
    retry: RetryPolicy,
}

/// A pull request whose branch is in the repository itself, not in a fork.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnPull {
    pub number: u64,
    pub is_open: bool,
    pub is_merged: bool,
    pub title: String,
    pub body: String,
    pub branch: String,
    pub head_sha: String,
    pub labels: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BranchHead {
    pub branch: String,
    pub sha: String,
}

#[derive(Deserialize)]
struct PullJson {
    number: u64,
    state: String,
    merged_at: Option<Timestamp>,
    title: String,
    body: Option<String>,
    head: PullSide,
    #[serde(default, deserialize_with = "null_as_default")]
    labels: Vec<LabelJson>,
}

#[derive(Deserialize)]
struct PullSide {
    #[serde(rename = "ref")]
    branch: String,
    sha: String,
    /// `None` when the fork was deleted.
    repo: Option<RepoJson>,
}

#[derive(Deserialize)]
struct RepoJson {
    full_name: String,
}

#[derive(Deserialize)]
struct LabelJson {
    name: String,
}

#[derive(Deserialize)]
struct RefJson {
    #[serde(rename = "ref")]
    name: String,
    object: ShaJson,
}

#[derive(Deserialize)]
struct ShaJson {
    sha: String,
}

#[derive(Deserialize)]
struct CommitJson {
    tree: ShaJson,
}

impl PullJson {
    /// `None` if its branch is in another repository: anybody can name a branch of a fork.
    fn own(self, repo: &str) -> Option<OwnPull> {
        let head_repo = self.head.repo?.full_name;
        head_repo.eq_ignore_ascii_case(repo).then(|| OwnPull {
            number: self.number,
            is_open: self.state == "open",
            is_merged: self.merged_at.is_some(),
            title: self.title,
            body: self.body.unwrap_or_default(),
            branch: self.head.branch,
            head_sha: self.head.sha,
            labels: self.labels.into_iter().map(|label| label.name).collect(),
        })
    }
}

impl RepositoryApi {
    /// `repo` of the GitHub whose REST API is at `base`. Needs a tokio runtime.
    pub fn new(
        http: Client,
        base: &SecureUrl,
        token: SecretString,
        repo: &str,
    ) -> Result<Self, ClientSetupError> {
        let client = RestClient::new(http, base, Arc::new(Timestamp::now))?;
        Ok(Self { client, token, repo: repo.to_owned(), retry: RetryPolicy::default() })
    }

    pub async fn default_branch(&self) -> Result<String, GithubError> {
        #[derive(Deserialize)]
        struct Repository {
            default_branch: String,
        }
        let found: Repository = self.get(self.path("")).await?;
        Ok(found.default_branch)
    }

    /// The commit that a branch points at; `None` when there is no such branch.
    pub async fn branch_head(&self, branch: &str) -> Result<Option<String>, GithubError> {
        match self.get::<RefJson>(self.ref_path("ref", branch)).await {
            Ok(found) => Ok(Some(found.object.sha)),
            Err(GithubError::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The branches whose names begin with `prefix`.
    pub async fn branches_with(&self, prefix: &str) -> Result<Vec<BranchHead>, GithubError> {
        let path = self.ref_path("matching-refs", prefix);
        let refs: Vec<RefJson> =
            all_pages(&path, (PAGE_SIZE, MAX_PAGES), |request| self.json::<Vec<RefJson>>(request))
                .await?;
        let of_branch = |found: RefJson| {
            let branch = found.name.strip_prefix("refs/heads/")?.to_owned();
            Some(BranchHead { branch, sha: found.object.sha })
        };
        Ok(refs.into_iter().filter_map(of_branch).collect())
    }

    /// The bytes of a file at a commit, of at most `limit`; `None` when it isn't there.
    pub async fn file(
        &self,
        path: &str,
        commit: &str,
        limit: usize,
    ) -> Result<Option<Bytes>, GithubError> {
        let path = format!("{}?ref={}", contents_path(&self.repo, path), encoded(commit));
        let request = RestRequest::get(path).accepting(RAW);
        let read = self.client.with_retries(self.retry, || async {
            let response = self.client.send(&request, &self.token).await?;
            self.client.read(&request, response, limit).await
        });
        match read.await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(GithubError::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes a commit on top of `parent` that replaces one file. No branch points at it yet.
    pub async fn commit_file(
        &self,
        parent: &str,
        path: &str,
        text: &str,
        message: &str,
    ) -> Result<String, GithubError> {
        let commit: CommitJson =
            self.get(self.path(&format!("/git/commits/{}", encoded(parent)))).await?;
        let file = json!({ "path": path, "mode": "100644", "type": "blob", "content": text });
        let tree = json!({ "base_tree": commit.tree.sha, "tree": [file] });
        let tree: ShaJson = self.write(Method::POST, self.path("/git/trees"), &tree).await?;
        let commit = json!({ "message": message, "tree": tree.sha, "parents": [parent] });
        let made: ShaJson = self.write(Method::POST, self.path("/git/commits"), &commit).await?;
        Ok(made.sha)
    }

    pub async fn create_branch(&self, branch: &str, commit: &str) -> Result<(), GithubError> {
        let body = json!({ "ref": format!("refs/heads/{branch}"), "sha": commit });
        self.write::<RefJson>(Method::POST, self.path("/git/refs"), &body).await.map(drop)
    }

    /// Moves a branch to any other commit, as a forced push does.
    pub async fn move_branch(&self, branch: &str, commit: &str) -> Result<(), GithubError> {
        let body = json!({ "sha": commit, "force": true });
        self.write::<RefJson>(Method::PATCH, self.ref_path("refs", branch), &body).await.map(drop)
    }

    /// GitHub closes the pull requests of a branch that is deleted.
    pub async fn delete_branch(&self, branch: &str) -> Result<(), GithubError> {
        let request = RestRequest::new(Method::DELETE, self.ref_path("refs", branch));
        match self.client.send(&request, &self.token).await {
            Ok(_) | Err(GithubError::NotFound(_)) => Ok(()),
            // GitHub's answer when the branch is gone already.
            Err(GithubError::Unprocessable(why)) if why.contains("does not exist") => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The pull requests of a branch of this repository, the newest first.
    pub async fn pulls_of(&self, branch: &str) -> Result<Vec<OwnPull>, GithubError> {
        let owner = self.repo.split('/').next().unwrap_or_default();
        let head = encoded(&format!("{owner}:{branch}"));
        let path = self.path(&format!("/pulls?state=all&head={head}"));
        let pages = (LONG_TEXTS_PER_PAGE, MAX_PAGES);
        let pulls: Vec<PullJson> =
            all_pages(&path, pages, |request| self.json::<Vec<PullJson>>(request)).await?;
        let own = pulls.into_iter().filter_map(|pull| pull.own(&self.repo));
        let mut own: Vec<_> = own.filter(|pull| pull.branch == branch).collect();
        own.sort_by_key(|pull| std::cmp::Reverse(pull.number));
        Ok(own)
    }

    /// Opens a pull request and returns its number.
    pub async fn open_pull(
        &self,
        branch: &str,
        base: &str,
        title: &str,
        body: &str,
    ) -> Result<u64, GithubError> {
        let pull = json!({ "title": title, "head": branch, "base": base, "body": body,
            "maintainer_can_modify": false });
        let made: PullJson = self.write(Method::POST, self.path("/pulls"), &pull).await?;
        Ok(made.number)
    }

    pub async fn edit_pull(&self, number: u64, title: &str, body: &str) -> Result<(), GithubError> {
        self.patch_pull(number, &json!({ "title": title, "body": body })).await
    }

    /// Cuts a description that is too long, because somebody has written into it.
    pub async fn close_pull(&self, number: u64, body: &str) -> Result<(), GithubError> {
        let body = body.char_indices().nth(MAX_BODY_CHARS).map_or(body, |(end, _)| &body[..end]);
        self.patch_pull(number, &json!({ "state": "closed", "body": body })).await
    }

    async fn patch_pull(&self, number: u64, change: &Value) -> Result<(), GithubError> {
        let path = self.path(&format!("/pulls/{number}"));
        self.write::<PullJson>(Method::PATCH, path, change).await.map(drop)
    }

    /// GitHub creates the label if the repository doesn't have it.
    pub async fn add_label(&self, number: u64, label: &str) -> Result<(), GithubError> {
        let path = self.path(&format!("/issues/{number}/labels"));
        let body = json!({ "labels": [label] });
        self.write::<Vec<LabelJson>>(Method::POST, path, &body).await.map(drop)
    }

    fn path(&self, below: &str) -> String {
        format!("{}{below}", repo_path(&self.repo))
    }

    fn ref_path(&self, kind: &str, branch: &str) -> String {
        let segments: Vec<_> = branch.split('/').map(encoded).collect();
        self.path(&format!("/git/{kind}/heads/{}", segments.join("/")))
    }

    async fn get<T: DeserializeOwned>(&self, path: String) -> Result<T, GithubError> {
        self.json(RestRequest::get(path)).await
    }

    async fn json<T: DeserializeOwned>(&self, request: RestRequest) -> Result<T, GithubError> {
        self.client.json_with_retries(&request, &self.token, self.retry).await
    }

    /// Sent once: after a lost answer a second try would be refused, or would do it twice.
    async fn write<T: DeserializeOwned>(
        &self,
        method: Method,
        path: String,
        body: &Value,
    ) -> Result<T, GithubError> {
        let request = RestRequest::new(method, path).with_json(body);
        let response = self.client.send(&request, &self.token).await?;
        self.client.read_json(&request, response).await
    }
}

impl GithubApp {
    /// A page of the open pull requests of `repo`, from 1, as GitHub describes them: [`OPEN_PULLS_PER_PAGE`], those first
    /// that changed last.
    pub async fn open_pulls(&self, repo: &str, page: u32) -> Result<Vec<Value>, GithubError> {
        let query = format!(
            "state=open&sort=updated&direction=desc&per_page={OPEN_PULLS_PER_PAGE}&page={page}"
        );
        let request = RestRequest::get(format!("{}/pulls?{query}", repo_path(repo)));
        self.call_json(repo, READ_PULLS, request).await
    }

    /// The open pull requests of `repo` whose branches are in `repo` itself and begin with `prefix`.
    pub async fn open_pulls_with(
        &self,
        repo: &str,
        prefix: &str,
    ) -> Result<Vec<OwnPull>, GithubError> {
        let segments: Vec<_> = prefix.split('/').map(encoded).collect();
        let path = format!("{}/git/matching-refs/heads/{}", repo_path(repo), segments.join("/"));
        let refs =
            self.list::<RefJson, Vec<RefJson>>(repo, READ_CONTENTS, &path, PAGE_SIZE).await?;
        let owner = repo.split('/').next().unwrap_or_default();
        let mut pulls = Vec::new();
        for branch in refs.iter().filter_map(|found| found.name.strip_prefix("refs/heads/")) {
            let head = encoded(&format!("{owner}:{branch}"));
            let path = format!("{}/pulls?state=open&head={head}", repo_path(repo));
            let found = self
                .list::<PullJson, Vec<PullJson>>(repo, READ_PULLS, &path, LONG_TEXTS_PER_PAGE)
                .await?;
            let own = found.into_iter().filter_map(|pull| pull.own(repo));
            pulls.extend(own.filter(|pull| pull.branch == branch));
        }
        Ok(pulls)
    }
}
