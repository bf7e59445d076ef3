//! Files and commits of a repository.
//!
//! <https://docs.github.com/en/rest/repos/contents#get-repository-content>

use std::collections::HashMap;

use bytes::Bytes;
use http::{StatusCode, header};
use jiff::Timestamp;
use serde::Deserialize;

use crate::app::{GithubApp, Permissions};
use crate::error::GithubError;
use crate::null_as_default;
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
    /// The first 300 files that `head` changes.
    pub changed_files: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BranchCommit {
    pub sha: String,
    /// The first line of its message.
    pub title: String,
    /// The author's login, or else the name in the commit. `None` for a merge, whose author is who merged.
    pub author: Option<String>,
}

#[derive(Deserialize)]
struct Comparison {
    merge_base_commit: Commit,
    #[serde(default, deserialize_with = "null_as_default")]
    total_commits: usize,
    #[serde(default, deserialize_with = "null_as_default")]
    commits: Vec<Commit>,
    #[serde(default, deserialize_with = "null_as_default")]
    files: Vec<ChangedFile>,
}

#[derive(Deserialize)]
struct ChangedFile {
    filename: String,
    previous_filename: Option<String>,
}

/// As many files as GitHub lists of a comparison.
const COMPARED_FILES: usize = 300;
/// Without it GitHub lists up to 250 commits.
const ONE_COMMIT: &str = "?per_page=1";
/// The most commits on a page of a comparison.
const COMMITS_PER_PAGE: usize = 100;
/// The longest branch whose commits are read.
const MAX_COMMITS: usize = 500;

#[derive(Deserialize)]
struct Commit {
    sha: String,
    commit: CommitBody,
    author: Option<Account>,
    #[serde(default)]
    parents: Vec<ParentCommit>,
}

#[derive(Deserialize)]
struct ParentCommit {
    sha: String,
}

#[derive(Deserialize)]
struct Account {
    login: String,
}

#[derive(Deserialize)]
struct CommitBody {
    #[serde(default, deserialize_with = "null_as_default")]
    message: String,
    author: Option<Person>,
    committer: Option<Person>,
}

#[derive(Deserialize)]
struct Person {
    name: Option<String>,
    date: Option<Timestamp>,
}

impl GithubApp {
    /// The file at `path` of `repo`, unless it still has `etag`. `reference` is a branch, tag or
    /// commit; without one it is the default branch.
    ///
    /// A file of more than `limit` bytes is an error that [is too large](GithubError::is_too_large).
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
        let found = self.compare(repo, base, head, ONE_COMMIT).await?;
        Ok(found.map(|found| {
            let Commit { sha, commit, .. } = found.merge_base_commit;
            let date = commit.committer.and_then(|committer| committer.date);
            let committed_at = date.unwrap_or(Timestamp::UNIX_EPOCH);
            let changed_files = found.files.into_iter().map(|file| file.filename).collect();
            MergeBase { sha, committed_at, changed_files }
        }))
    }
}

impl GithubApp {
    /// The files that change from where `head` branched off `base`, with the old names of renamed ones. `None` when
    /// GitHub doesn't know, or doesn't list all of them. Both are hashes, so the answer is the same at any time.
    pub async fn changed_files(
        &self,
        repo: &str,
        base: &str,
        head: &str,
    ) -> Result<Option<Vec<String>>, GithubError> {
        let found = self.compare(repo, base, head, ONE_COMMIT).await?;
        // A comparison may come without its files: then commits seem to change none.
        let is_told = |found: &Comparison| !found.files.is_empty() || found.total_commits == 0;
        let complete = found.filter(|found| is_told(found) && found.files.len() < COMPARED_FILES);
        Ok(complete.map(|found| {
            let names = |file: ChangedFile| [Some(file.filename), file.previous_filename];
            found.files.into_iter().flat_map(names).flatten().collect()
        }))
    }

    /// The commits of a branch after `base` up to `head`, oldest first: the first parents of `head`. What a merge brings
    /// in is part of the merge. `None` when `base` isn't on that line, or there are more than 500 commits.
    pub async fn commits_between(
        &self,
        repo: &str,
        base: &str,
        head: &str,
    ) -> Result<Option<Vec<BranchCommit>>, GithubError> {
        let Some(mut found) = self.compare(repo, base, head, "").await? else { return Ok(None) };
        let total = found.total_commits;
        if total > MAX_COMMITS {
            return Ok(None);
        }
        if total > found.commits.len() {
            // What GitHub lists at once are the newest ones.
            found.commits.clear();
            for page in 1..=total.div_ceil(COMMITS_PER_PAGE) {
                let query = format!("?per_page={COMMITS_PER_PAGE}&page={page}");
                let part = self.compare(repo, base, head, &query).await?;
                found.commits.extend(part.into_iter().flat_map(|part| part.commits));
            }
        }
        Ok(first_parents(found.commits, base, head))
    }

    async fn compare(
        &self,
        repo: &str,
        base: &str,
        head: &str,
        query: &str,
    ) -> Result<Option<Comparison>, GithubError> {
        if !is_full_hash(base) || !is_full_hash(head) {
            return Ok(None);
        }
        let path = format!("{}/compare/{base}...{head}{query}", repo_path(repo));
        match self.call_json(repo, READ, RestRequest::get(path)).await {
            Ok(found) => Ok(Some(found)),
            Err(GithubError::NotFound(_) | GithubError::Unprocessable(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Those of the commits that lead from `head` back to `base`, oldest first; `None` if they don't lead there.
fn first_parents(commits: Vec<Commit>, base: &str, head: &str) -> Option<Vec<BranchCommit>> {
    let mut commits: HashMap<String, Commit> =
        commits.into_iter().map(|commit| (commit.sha.clone(), commit)).collect();
    let mut line = vec![];
    let mut next = head.to_owned();
    while next != base {
        let commit = commits.remove(&next)?;
        next = commit.parents.first()?.sha.clone();
        line.push(BranchCommit::from(commit));
    }
    line.reverse();
    Some(line)
}

impl From<Commit> for BranchCommit {
    fn from(found: Commit) -> Self {
        let login = found.author.map(|author| author.login);
        let name = found.commit.author.and_then(|author| author.name);
        let title = found.commit.message.lines().next().unwrap_or_default().to_owned();
        let is_merge = found.parents.len() > 1;
        Self { sha: found.sha, title, author: login.or(name).filter(|_| !is_merge) }
    }
}

fn is_full_hash(sha: &str) -> bool {
    matches!(sha.len(), 40 | 64) && sha.bytes().all(|b| b.is_ascii_hexdigit())
}
