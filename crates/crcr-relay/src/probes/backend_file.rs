//! A backend's `.github/crcr.yml`, read by the App from the default branch. A version with a mistake changes nothing.

use bytes::Bytes;
use crcr_domain::RepoName;
use crcr_domain::probes::{
    DOWNSTREAM_FILE, DownstreamConfig, Drafts, MAX_BYTES, ParsedDownstreamFile,
};
use crcr_github::GithubError;
use crcr_github::contents::FileContents;
use crcr_store::{BudgetCharge, CommitOutcome, StoreError, StoreKey, Versioned, WriteBatch};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::limits;
use crate::queue::handlers;
use crate::queue::task_kind::{TaskDone, TaskError, TaskKind};
use crate::relay::Relay;
use crate::state_records;

/// What is known of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BackendFile {
    /// What its last good version says; the default without one.
    pub(crate) config: DownstreamConfig,
    /// ETag of the newest version, good or not.
    etag: Option<String>,
    pub(crate) checked_at: Timestamp,
    /// Why the newest version isn't in force.
    pub(crate) problem: Option<String>,
    /// When a version that takes drafts replaced one that took none.
    drafts_taken_since: Option<Timestamp>,
}

pub(crate) fn key(relay: &Relay, repo: &RepoName) -> StoreKey {
    state_records::backend_file_key(&relay.config.upstream, repo)
}

pub(crate) async fn config(relay: &Relay, repo: &RepoName) -> Result<DownstreamConfig, StoreError> {
    let known: Versioned<BackendFile> = relay.read_record(key(relay, repo)).await?;
    Ok(known.value.unwrap_or_default().config)
}

/// Those of these backends that may not have got a pull request while it was a draft.
pub(crate) async fn without_drafts(
    relay: &Relay,
    repos: &[RepoName],
) -> Result<Vec<RepoName>, StoreError> {
    let keys = repos.iter().map(|repo| key(relay, repo)).collect();
    let files = relay.read_records::<BackendFile>(keys).await?;
    let now = relay.now();
    let may_lack = |file: &BackendFile| {
        file.takes_no_drafts()
            || file.drafts_taken_since.is_some_and(|at| now < at + relay.config.status_ttl)
    };
    let both = repos.iter().zip(&files);
    // A file that isn't known yet may come to be known before the draft is dispatched.
    Ok(both
        .filter(|(_, file)| file.value.as_ref().is_none_or(may_lack))
        .map(|(repo, _)| repo.clone())
        .collect())
}

/// Has the file read if that was long ago. The dispatch that notices it doesn't wait.
pub(crate) async fn refresh_if_old(
    relay: &Relay,
    repo: &RepoName,
    known: Option<&BackendFile>,
) -> Result<(), StoreError> {
    if known.is_some_and(|file| relay.is_recent(file.checked_at, limits::BACKEND_FILE_INTERVAL)) {
        return Ok(());
    }
    let tasks = vec![TaskKind::BackendFile { repo: repo.clone() }.task(relay.now())];
    relay.commit(WriteBatch { tasks, ..WriteBatch::default() }).await.map(drop)
}

/// Has the file read after a push to the default branch of a backend that may have changed it.
pub(crate) async fn note_push(relay: &Relay, body: &Bytes) -> Result<(), StoreError> {
    let Ok(push) = serde_json::from_slice::<raw::Push>(body) else { return Ok(()) };
    let Ok(repo) = RepoName::new(&push.repository.full_name) else { return Ok(()) };
    let is_listed = relay.allowlist.get().is_some_and(|list| list.get(&repo).is_some());
    if !is_listed || !push.may_change_file() {
        return Ok(());
    }
    let tasks = vec![TaskKind::BackendFile { repo }.task(relay.now())];
    relay.commit(WriteBatch { tasks, ..WriteBatch::default() }).await.map(drop)
}

/// Reads the file, if it has changed.
pub(crate) async fn run(relay: &Relay, repo: &RepoName) -> Result<TaskDone, TaskError> {
    if handlers::allowlist(relay)?.get(repo).is_none() {
        return Ok(TaskDone::Finished);
    }
    charge_call(relay, repo).await?;
    let known: Versioned<BackendFile> = relay.read_record(key(relay, repo)).await?;
    let before = known.value.clone().unwrap_or_default();
    // While the newest version isn't in force, "not modified" wouldn't say whether it can be now.
    let etag = before.etag.as_deref().filter(|_| before.problem.is_none());
    let read = relay.app.contents(repo.as_str(), DOWNSTREAM_FILE, None, etag, MAX_BYTES).await;
    let now = relay.now();
    let next = match read {
        Ok(FileContents::NotModified) => BackendFile { checked_at: now, ..before.clone() },
        Ok(FileContents::File { bytes, etag }) => before.clone().taken(&bytes, etag, now),
        Err(GithubError::NotFound(_)) => BackendFile { checked_at: now, ..BackendFile::default() },
        Err(error) if error.is_too_large() => BackendFile {
            checked_at: now,
            problem: Some(format!("it is larger than {} KiB", MAX_BYTES / 1024)),
            ..before.clone()
        },
        Err(error) if error.is_transient() => return Err(error.into()),
        Err(error @ GithubError::Unauthorized(_)) => return Err(error.into()),
        // The App may not read it.
        Err(error) => BackendFile {
            checked_at: now,
            problem: Some(format!("it can't be read: {error}")),
            ..before.clone()
        },
    };
    let has_changed = before.takes_no_drafts() && !next.takes_no_drafts();
    let drafts_taken_since = if has_changed { Some(now) } else { before.drafts_taken_since };
    let next = BackendFile { drafts_taken_since, ..next };
    let mut batch = WriteBatch::default();
    batch.update(&known, &next, Timestamp::MAX);
    if relay.commit(batch).await? != CommitOutcome::Done {
        return Err(TaskError::retry("the record of the file changed in the meantime"));
    }
    if next.problem != before.problem || next.config != before.config {
        match &next.problem {
            Some(problem) => tracing::warn!(%repo, problem, "the backend's file isn't in force"),
            None => tracing::info!(%repo, "the backend's file is in force"),
        }
    }
    Ok(TaskDone::Finished)
}

impl BackendFile {
    fn takes_no_drafts(&self) -> bool {
        self.config.dispatch.drafts == Drafts::Skip
    }

    /// Takes a new version. The last good one holds if it has a mistake.
    fn taken(self, bytes: &[u8], etag: Option<String>, now: Timestamp) -> Self {
        let (config, problem) = match ParsedDownstreamFile::parse(bytes).accepted() {
            Ok(config) => (config, None),
            Err(findings) => {
                let problem = format!("its newest version has {}", findings.error_summary());
                (self.config, Some(problem))
            }
        };
        Self { config, etag, checked_at: now, problem, ..self }
    }
}

/// However often a backend's file is pushed, it costs this many calls of the account at most.
async fn charge_call(relay: &Relay, repo: &RepoName) -> Result<(), TaskError> {
    let charge = BudgetCharge {
        bucket: state_records::file_calls_key(repo),
        capacity: limits::BACKEND_FILE_CALLS,
        per_minute: limits::BACKEND_FILE_CALLS as f64 / 60.0,
        cost: 1,
        first_of: None,
    };
    let batch = WriteBatch { charges: vec![charge], ..WriteBatch::default() };
    match relay.commit(batch).await? {
        CommitOutcome::Limited(limited) => Err(TaskError {
            not_before: Some(relay.now() + limited.wait),
            ..TaskError::retry(format!("the file of `{repo}` was read often in this hour"))
        }),
        _ => Ok(()),
    }
}

/// The fields of GitHub's push that are used.
mod raw {
    use crcr_domain::probes::DOWNSTREAM_FILE;
    use crcr_github::null_as_default;
    use serde::Deserialize;

    /// GitHub leaves out commits of a larger push.
    const LISTED_COMMITS: usize = 2048;
    /// GitHub leaves out files of a larger commit.
    const LISTED_FILES: usize = 3000;

    #[derive(Deserialize)]
    pub(crate) struct Push {
        #[serde(rename = "ref")]
        git_ref: String,
        pub(crate) repository: Repository,
        #[serde(default, deserialize_with = "null_as_default")]
        forced: bool,
        #[serde(default, deserialize_with = "null_as_default")]
        commits: Vec<Commit>,
    }

    #[derive(Deserialize)]
    pub(crate) struct Repository {
        pub(crate) full_name: String,
        default_branch: String,
    }

    #[derive(Deserialize)]
    struct Commit {
        #[serde(default, deserialize_with = "null_as_default")]
        added: Vec<String>,
        #[serde(default, deserialize_with = "null_as_default")]
        modified: Vec<String>,
        #[serde(default, deserialize_with = "null_as_default")]
        removed: Vec<String>,
    }

    impl Push {
        pub(crate) fn may_change_file(&self) -> bool {
            let branch = self.git_ref.strip_prefix("refs/heads/");
            let is_file = |name: &String| name == DOWNSTREAM_FILE;
            let may_touch = |commit: &Commit| {
                let files = || commit.added.iter().chain(&commit.modified).chain(&commit.removed);
                files().count() >= LISTED_FILES || files().any(is_file)
            };
            let is_complete = (1..LISTED_COMMITS).contains(&self.commits.len()) && !self.forced;
            branch == Some(&self.repository.default_branch)
                && (!is_complete || self.commits.iter().any(may_touch))
        }
    }
}
