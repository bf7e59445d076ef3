//! Files and commits of a repository.
//!
//! <https://docs.github.com/en/rest/repos/contents#get-repository-content>

use bytes::Bytes;
use http::{StatusCode, header};
use jiff::Timestamp;
use serde::Deserialize;

use crate::app::{GithubApp, Permissions};
use crate::error::GithubError;
use crate::rest::{RAW, RestRequest, contents_path, encoded, repo_path};

const READ: Permissions = &[("contents", "read")];

/// A file, unless it is unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileContents {
    /// It still has the caller's ETag. Such an answer doesn't count against the rate limit.
    NotModified,
    File {
        bytes: Bytes,
        /// For the next request.
        etag: Option<String>,
    },
}

/// The newest commit that two others have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergeBase {
    pub sha: String,
    /// The committer's date; 1970 when GitHub gives none.
    pub committed_at: Timestamp,
}

#[derive(Deserialize)]
struct Comparison {
    merge_base_commit: Commit,
}

#[derive(Deserialize)]
struct Commit {
    sha: String,
    commit: CommitBody,
}

#[derive(Deserialize)]
struct CommitBody {
    committer: Option<Person>,
}

#[derive(Deserialize)]
struct Person {
    date: Option<Timestamp>,
}

impl GithubApp {
    /// The file at `path` of `repo`, unless it still has `etag`. `reference` is a branch, tag or
    /// commit; without one it is the default branch.
    ///
    /// A file of more than `limit` bytes is [`GithubError::Malformed`].
    pub async fn contents(
        &self,
        repo: &str,
        path: &str,
        reference: Option<&str>,
        etag: Option<&str>,
        limit: usize,
    ) -> Result<FileContents, GithubError> {
        let mut path = contents_path(repo, path);
        if let Some(reference) = reference {
            path = format!("{path}?ref={}", encoded(reference));
        }
        let request = RestRequest::get(path).accepting(RAW).unless_etag(etag);
        let response = self.call(repo, READ, &request).await?;
        if response.status() == StatusCode::NOT_MODIFIED {
            return Ok(FileContents::NotModified);
        }
        let etag = response.headers().get(header::ETAG).and_then(|v| v.to_str().ok());
        let etag = etag.map(str::to_owned);
        let bytes = self.client().read(&request, response, limit).await?;
        Ok(FileContents::File { bytes, etag })
    }

    /// The file at `path` of a public repository on which the App needn't be installed.
    pub async fn public_contents(
        &self,
        repo: &str,
        path: &str,
        reference: &str,
        limit: usize,
    ) -> Result<Bytes, GithubError> {
        let path = format!("{}?ref={}", contents_path(repo, path), encoded(reference));
        let request = RestRequest::get(path).accepting(RAW);
        let response = self.client().send_public(&request).await?;
        self.client().read(&request, response, limit).await
    }

    /// Whether `repo` has the commit `sha`. Anything but 40 or 64 hexadecimal digits is `false`
    /// without asking, because GitHub would find a branch of that name as well.
    pub async fn commit_exists(&self, repo: &str, sha: &str) -> Result<bool, GithubError> {
        if !is_full_hash(sha) {
            return Ok(false);
        }
        let path = format!("{}/git/commits/{sha}", repo_path(repo));
        match self.call(repo, READ, &RestRequest::get(path)).await {
            Ok(_) => Ok(true),
            Err(GithubError::NotFound(_) | GithubError::Unprocessable(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The newest commit that `base` and `head` have in common; `None` when there is none, and when
    /// one of the two isn't in `repo` or a fork of it. Both must be full hashes.
    ///
    /// The answer lists up to 300 changed files, whatever the page size:
    /// <https://docs.github.com/en/rest/commits/commits#compare-two-commits>
    pub async fn merge_base(
        &self,
        repo: &str,
        base: &str,
        head: &str,
    ) -> Result<Option<MergeBase>, GithubError> {
        if !is_full_hash(base) || !is_full_hash(head) {
            return Ok(None);
        }
        let path = format!("{}/compare/{base}...{head}?per_page=1", repo_path(repo));
        match self.call_json::<Comparison>(repo, READ, RestRequest::get(path)).await {
            Ok(Comparison { merge_base_commit: Commit { sha, commit } }) => {
                let date = commit.committer.and_then(|committer| committer.date);
                Ok(Some(MergeBase { sha, committed_at: date.unwrap_or(Timestamp::UNIX_EPOCH) }))
            }
            Err(GithubError::NotFound(_) | GithubError::Unprocessable(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn is_full_hash(sha: &str) -> bool {
    matches!(sha.len(), 40 | 64) && sha.bytes().all(|b| b.is_ascii_hexdigit())
}
