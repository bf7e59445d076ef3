//! Files and commits of a repository.
//!
//! <https://docs.github.com/en/rest/repos/contents#get-repository-content>

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use jiff::Timestamp;
use serde::Deserialize;

use crate::app::{App, Call, Scope, repo_path, segment};
use crate::error::Error;
use crate::http as web;

const READ: Scope = &[("contents", "read")];

/// A file, or the news that it hasn't changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Contents {
    /// It is what the caller's ETag names. Costs nothing of the rate limit.
    NotModified,
    /// It is new or changed.
    File {
        bytes: Bytes,
        /// To be sent with the next question.
        etag: Option<String>,
    },
}

/// A commit that two others have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergeBase {
    pub sha: String,
    /// When it was committed, as its committer tells; 1970 when GitHub doesn't say.
    pub committed_at: Timestamp,
}

/// The part of a comparison that is read.
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

impl App {
    /// The file at `path` of `repo` at `reference` (a branch, tag or commit; the default branch
    /// without one), unless it still is what `etag` names.
    ///
    /// A file of more than `limit` bytes is [`Error::Malformed`].
    pub async fn contents(
        &self,
        repo: &str,
        path: &str,
        reference: Option<&str>,
        etag: Option<&str>,
        limit: usize,
    ) -> Result<Contents, Error> {
        let path: Vec<String> = path.trim_matches('/').split('/').map(segment).collect();
        let mut url = format!("{}/contents/{}", repo_path(repo), path.join("/"));
        if let Some(reference) = reference {
            let value: String =
                url::form_urlencoded::byte_serialize(reference.as_bytes()).collect();
            url = format!("{url}?ref={value}");
        }
        let name = format!("GET {url}");
        let mut call = Call { accept: "application/vnd.github.raw+json", ..Call::get(url) };
        if let Some(etag) = etag.and_then(|etag| HeaderValue::from_str(etag).ok()) {
            call.headers.insert(header::IF_NONE_MATCH, etag);
        }
        let response = match self.call(repo, READ, &call).await {
            Ok((response, _)) => response,
            Err(Error::Malformed {
                source: web::Error::Status { status: StatusCode::NOT_MODIFIED, .. },
                ..
            }) => return Ok(Contents::NotModified),
            Err(error) => return Err(error),
        };
        let etag = response.headers().get(header::ETAG).and_then(|v| v.to_str().ok());
        let etag = etag.map(str::to_owned);
        let bytes = web::read(response, limit)
            .await
            .map_err(|error| Error::from_http(&name, error, self.now()))?;
        Ok(Contents::File { bytes, etag })
    }

    /// Whether `repo` has the commit `sha`, which must be a full one: a branch's name would be
    /// found as well, so anything else than 40 or 64 hexadecimal digits is `false`.
    pub async fn commit_exists(&self, repo: &str, sha: &str) -> Result<bool, Error> {
        if !is_full_hash(sha) {
            return Ok(false);
        }
        let path = format!("{}/git/commits/{sha}", repo_path(repo));
        match self.call(repo, READ, &Call::get(path)).await {
            Ok(_) => Ok(true),
            Err(Error::NotFound(_) | Error::Unprocessable(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The newest commit that `base` and `head` have in common; `None` when there is none, and when
    /// one of the two isn't in `repo` or a fork of it. Both must be full hashes.
    ///
    /// One commit a page keeps the answer short; up to 300 changed files come with it all the same:
    /// <https://docs.github.com/en/rest/commits/commits#compare-two-commits>
    pub async fn merge_base(
        &self,
        repo: &str,
        base: &str,
        head: &str,
    ) -> Result<Option<MergeBase>, Error> {
        if !is_full_hash(base) || !is_full_hash(head) {
            return Ok(None);
        }
        let path = format!("{}/compare/{base}...{head}?per_page=1", repo_path(repo));
        match self.call_json::<Comparison>(repo, READ, &Call::get(path)).await {
            Ok(Comparison { merge_base_commit: Commit { sha, commit } }) => {
                let date = commit.committer.and_then(|committer| committer.date);
                Ok(Some(MergeBase { sha, committed_at: date.unwrap_or(Timestamp::UNIX_EPOCH) }))
            }
            Err(Error::NotFound(_) | Error::Unprocessable(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn is_full_hash(sha: &str) -> bool {
    matches!(sha.len(), 40 | 64) && sha.bytes().all(|b| b.is_ascii_hexdigit())
}
