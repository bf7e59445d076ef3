//! The allowlist in force. It is read through the App's installation and parsed once per version. If a new
//! version is invalid, the last good one stays in force and operators are told. The last good version
//! is kept in the store, so that it is in force after a restart.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crcr_domain::{Allowlist, AllowlistEntry, RepoName};
use crcr_github::GithubApp;
use crcr_store::{CommitOutcome, StateStore, StoreError, Versioned, WriteBatch, read_record};
use jiff::Timestamp;
use parking_lot::Mutex;

use crate::config::config_file::{self, FileUrl, FileVersion};
use crate::queue::task_kind::TaskKind;
use crate::{limits, state_records};

/// How often a file on this machine is read.
const FILE_PERIOD: Duration = Duration::from_secs(2);

pub struct AllowlistSource {
    url: FileUrl,
    upstream: RepoName,
    period: Duration,
    store: Option<Arc<dyn StateStore>>,
    state: Mutex<AllowlistState>,
    refresh_now: tokio::sync::Notify,
}

#[derive(Default)]
struct AllowlistState {
    policy: Option<Arc<Allowlist>>,
    /// The file that `policy` was parsed from.
    text: Vec<u8>,
    etag: Option<String>,
    loaded_at: Option<Timestamp>,
    /// Why the newest version is invalid.
    broken: Option<String>,
    /// Why the file couldn't be read.
    unreadable: Option<String>,
    /// Whether the policy was restored from the store, and no good version was read since.
    restored: bool,
    /// Whether the version in force isn't stored yet, and so what it changes isn't evaluated.
    is_unstored: bool,
    /// The repositories that it changes here, each with whether it was listed before. If another relay has stored it, this
    /// one may have done the evaluations that followed by the version before.
    changed: BTreeMap<RepoName, bool>,
}

impl AllowlistState {
    fn in_force(&self) -> &'static str {
        match self.policy {
            Some(_) => "the last good one stays in force",
            None => "none is in force",
        }
    }

    /// What is in force is the newest version, also if it is the one from before the restart.
    fn confirm(&mut self, now: Timestamp) {
        if !std::mem::take(&mut self.restored) {
            return;
        }
        self.loaded_at = Some(now);
        let repositories = self.policy.as_ref().map_or(0, |policy| policy.len());
        tracing::info!(repositories, "the allowlist is in force");
    }
}

/// The record of the last good version.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
struct KeptAllowlist {
    /// A version from another URL isn't restored.
    url: String,
    text: String,
    etag: Option<String>,
    loaded_at: Timestamp,
    /// Every name that an earlier version had and the next one didn't. It may be listed again.
    #[serde(default)]
    removed: BTreeSet<RepoName>,
}

#[derive(Debug, Clone, Default, serde::Serialize)]
pub struct AllowlistStatus {
    /// Whether an allowlist is in force.
    pub loaded: bool,
    pub repositories: usize,
    pub loaded_at: Option<Timestamp>,
    /// Why the newest version isn't in force.
    pub problem: Option<String>,
    /// A code for the problem, for callers who aren't operators.
    #[serde(skip)]
    pub problem_code: Option<&'static str>,
}

impl AllowlistSource {
    /// The allowlist at `url`, read again after `period`.
    pub fn new(url: FileUrl, upstream: RepoName, period: Duration) -> Self {
        let period = match url {
            FileUrl::File(_) => FILE_PERIOD,
            FileUrl::GitHub { .. } => period,
        };
        let (state, refresh_now) = (Mutex::default(), tokio::sync::Notify::new());
        Self { url, upstream, period, store: None, state, refresh_now }
    }

    /// Keeps every version that comes into force in `store`.
    #[must_use]
    pub(crate) fn kept_in(self, store: Arc<dyn StateStore>) -> Self {
        Self { store: Some(store), ..self }
    }

    /// The allowlist in force, if there ever was a good one.
    pub fn get(&self) -> Option<Arc<Allowlist>> {
        self.state.lock().policy.clone()
    }

    pub fn status(&self) -> AllowlistStatus {
        let state = self.state.lock();
        let (mut problem, mut problem_code) = match (&state.unreadable, &state.broken) {
            (Some(why), _) => (Some(why.clone()), Some("unreadable")),
            (None, Some(why)) => (Some(why.clone()), Some("broken")),
            (None, None) => (None, None),
        };
        if let Some(at) = state.loaded_at.filter(|_| state.restored) {
            let why = problem.as_deref().unwrap_or("the newest version has not been read yet");
            problem = Some(format!(
                "{why}; the version that was read at {at:.0}, before the restart, is in force"
            ));
            problem_code = problem_code.or(Some("not-read-yet"));
        }
        AllowlistStatus {
            loaded: state.policy.is_some(),
            repositories: state.policy.as_ref().map_or(0, |policy| policy.len()),
            loaded_at: state.loaded_at,
            problem,
            problem_code,
        }
    }

    /// Puts the last good version of the store in force until a good one is read.
    pub async fn restore(&self) {
        let Some(store) = &self.store else { return };
        let kept = match read_record::<KeptAllowlist>(
            store.as_ref(),
            state_records::allowlist_key(),
        )
        .await
        {
            Ok(kept) => kept.value.filter(|kept| kept.url == self.url.to_string()),
            Err(error) => return tracing::warn!(%error, "the last good allowlist can't be read"),
        };
        let Some(kept) = kept else { return };
        let Ok(policy) = Allowlist::parse(kept.text.as_bytes(), &self.upstream).accepted() else {
            return tracing::error!("the last good allowlist isn't valid for this version of crcr");
        };
        let (read_at, repositories) = (kept.loaded_at, policy.len());
        tracing::info!(
            %read_at,
            repositories,
            "the allowlist from before the restart is in force until a newer one is read"
        );
        let mut state = self.state.lock();
        if state.policy.is_none() {
            *state = AllowlistState {
                policy: Some(Arc::new(policy)),
                text: kept.text.into_bytes(),
                etag: kept.etag,
                loaded_at: Some(read_at),
                restored: true,
                ..AllowlistState::default()
            };
        }
    }

    /// Has the allowlist read now: upstream's default branch has moved.
    pub(crate) fn refresh_soon(&self) {
        self.refresh_now.notify_one();
    }

    /// Reads the allowlist periodically, forever.
    pub async fn keep_fresh(&self, app: &GithubApp, clock: &crcr_github::app::Clock) {
        loop {
            let soon = if self.get().is_some() { self.period } else { Duration::from_secs(5) };
            // A request during `refresh` isn't lost: it ends the next pause.
            let _ = tokio::time::timeout(soon, self.refresh_now.notified()).await;
            self.refresh(app, clock()).await;
        }
    }

    /// Reads the newest version, and puts it in force if it is good.
    pub async fn refresh(&self, app: &GithubApp, now: Timestamp) {
        let etag = self.state.lock().etag.clone();
        let read = config_file::fetch(&self.url, app, etag.as_deref(), limits::ALLOWLIST_BYTES);
        match read.await.and_then(|read| self.refuse_emptied(read)) {
            Ok(None) => {
                let mut state = self.state.lock();
                state.unreadable = None;
                // The ETag is of the version in force or of an invalid one after it.
                if state.broken.is_none() {
                    state.confirm(now);
                }
            }
            Ok(Some((text, etag))) => {
                if self.put_in_force(text, etag, now) {
                    self.state.lock().is_unstored = true;
                }
            }
            Err(problem) => {
                let mut state = self.state.lock();
                let in_force = state.in_force();
                tracing::warn!(%problem, "the allowlist can't be read; {in_force}");
                state.unreadable = Some(problem);
            }
        }
        if self.state.lock().is_unstored {
            match self.store_version(now).await {
                Ok(is_stored) => self.state.lock().is_unstored = !is_stored,
                Err(error) => {
                    tracing::warn!(%error, "the allowlist can't be stored yet; it is tried again");
                }
            }
        }
    }

    /// Who writes a file empties it first, and without its entry a backend's required checks become neutral.
    fn refuse_emptied(&self, read: Option<FileVersion>) -> Result<Option<FileVersion>, String> {
        let is_empty = read.as_ref().is_some_and(|(text, _)| text.trim_ascii().is_empty());
        let is_file = matches!(self.url, FileUrl::File(_));
        if is_empty && is_file && self.status().repositories > 0 {
            return Err(format!("`{}` is empty: an allowlist of nobody is `L1: []`", self.url));
        }
        Ok(read)
    }

    /// Returns whether the text is a new, valid version.
    fn put_in_force(&self, text: Vec<u8>, etag: Option<String>, now: Timestamp) -> bool {
        let mut state = self.state.lock();
        state.etag = etag;
        state.unreadable = None;
        if state.policy.is_some() && state.text == text {
            state.broken = None;
            state.confirm(now);
            return false;
        }
        match Allowlist::parse(&text, &self.upstream).accepted() {
            Ok(policy) => {
                tracing::info!(repositories = policy.len(), "the allowlist is in force");
                let mut changed = std::mem::take(&mut state.changed);
                // Without a version before it, nothing was evaluated.
                if let Some(before) = &state.policy {
                    add_changes(&mut changed, changed_entries(Some(before), &policy));
                }
                *state = AllowlistState {
                    policy: Some(Arc::new(policy)),
                    text,
                    etag: state.etag.take(),
                    loaded_at: Some(now),
                    changed,
                    ..AllowlistState::default()
                };
                true
            }
            Err(findings) => {
                let problem = format!("the newest version has {}", findings.error_summary());
                let in_force = state.in_force();
                tracing::error!(%problem, "the allowlist is invalid; {in_force}");
                state.broken = Some(problem);
                false
            }
        }
    }

    /// Stores the version in force for the next start, and puts the evaluation of what it changes into the queue in the
    /// same transaction. Returns whether that is done.
    async fn store_version(&self, now: Timestamp) -> Result<bool, StoreError> {
        let Some(store) = &self.store else { return Ok(true) };
        let (mut kept, policy, changed_here) = {
            let state = self.state.lock();
            let (Some(loaded_at), Some(policy)) = (state.loaded_at, &state.policy) else {
                return Ok(true);
            };
            let text = String::from_utf8_lossy(&state.text).into_owned();
            let (url, etag) = (self.url.to_string(), state.etag.clone());
            let removed = BTreeSet::new();
            let kept = KeptAllowlist { url, text, etag, loaded_at, removed };
            (kept, Arc::clone(policy), state.changed.clone())
        };
        let stored: Versioned<KeptAllowlist> =
            read_record(store.as_ref(), state_records::allowlist_key()).await?;
        let text_before = stored.value.as_ref().map(|before| &before.text);
        let before = text_before
            .and_then(|text| Allowlist::parse(text.as_bytes(), &self.upstream).accepted().ok());
        let mut changed = changed_entries(before.as_ref(), &policy);
        add_changes(&mut changed, changed_here);
        kept.removed = stored.value.as_ref().map(|it| it.removed.clone()).unwrap_or_default();
        for (repo, was_listed) in &mut changed {
            *was_listed |= kept.removed.contains(repo);
            if policy.get(repo).is_none() {
                kept.removed.insert(repo.clone());
            }
        }
        let mut batch = WriteBatch::default();
        batch.update(&stored, &kept, Timestamp::MAX);
        for (repo, was_listed) in changed {
            if text_before.is_some() {
                batch.tasks.push(TaskKind::backend_checks(&repo, was_listed).task(now));
            }
            batch.tasks.push(TaskKind::BackendFile { repo }.task(now));
        }
        // After a conflict, another relay has stored a version: what this one changes is compared with that.
        let is_stored = store.commit(batch, now).await? == CommitOutcome::Done;
        if is_stored {
            self.state.lock().changed.clear();
        }
        Ok(is_stored)
    }
}

/// The repositories whose check runs another version of the allowlist may change, each with whether it was listed
/// before. Without a version before it, these are all.
fn changed_entries(before: Option<&Allowlist>, after: &Allowlist) -> BTreeMap<RepoName, bool> {
    let shown = |entry: &AllowlistEntry| {
        let events = (entry.is_dispatched_to(), entry.takes_merge_groups());
        (entry.repo.as_str().to_owned(), entry.level, entry.device.clone(), events)
    };
    let find = move |repo: &RepoName| before.and_then(|list| list.get(repo)).map(shown);
    let removed = before
        .into_iter()
        .flat_map(move |before| before.iter().filter(|entry| after.get(&entry.repo).is_none()));
    let changed = after.iter().filter(move |entry| find(&entry.repo) != Some(shown(entry)));
    let was_listed = |repo: &RepoName| before.is_some_and(|list| list.get(repo).is_some());
    let all = removed.chain(changed);
    all.map(|entry| (entry.repo.clone(), was_listed(&entry.repo))).collect()
}

/// Adds what another change of the allowlist is about: a repository was listed if it was before any of them.
fn add_changes(all: &mut BTreeMap<RepoName, bool>, more: BTreeMap<RepoName, bool>) {
    for (repo, was_listed) in more {
        *all.entry(repo).or_default() |= was_listed;
    }
}
