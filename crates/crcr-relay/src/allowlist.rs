//! The allowlist in force: read through the App's own installation, parsed once per version; a
//! broken new version keeps the last good one in force, loudly. The last good one is kept in the
//! store, so that it is in force after a restart too.

use std::sync::Arc;
use std::time::Duration;

use crcr_domain::{Allowlist, RepoName};
use crcr_github::GithubApp;
use crcr_store::{StateStore, StoreError, WriteBatch, read_record};
use jiff::Timestamp;
use parking_lot::Mutex;

use crate::config::AllowlistUrl;
use crate::config::config_file;
use crate::{limits, state_records};

/// How often a file on this machine is looked at.
const FILE_PERIOD: Duration = Duration::from_secs(2);

/// The allowlist and where it comes from.
pub struct Source {
    url: AllowlistUrl,
    upstream: RepoName,
    period: Duration,
    store: Option<Arc<dyn StateStore>>,
    state: Mutex<State>,
    asked: tokio::sync::Notify,
}

#[derive(Default)]
struct State {
    policy: Option<Arc<Allowlist>>,
    /// What the policy was read from.
    text: Vec<u8>,
    etag: Option<String>,
    loaded_at: Option<Timestamp>,
    /// Why the newest version is not in force.
    broken: Option<String>,
    /// Why it isn't known whether there is a newer version.
    unreadable: Option<String>,
    /// The policy is of an earlier process, and this one has not read a good version yet.
    restored: bool,
}

/// The last good version, as the store keeps it.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
struct Kept {
    /// Where it was read; a version of another address isn't put in force.
    url: String,
    text: String,
    etag: Option<String>,
    loaded_at: Timestamp,
}

#[derive(Debug, Clone, serde::Serialize)]
pub struct Standing {
    /// Whether there is one in force.
    pub loaded: bool,
    /// How many repositories it lists.
    pub repositories: usize,
    pub loaded_at: Option<Timestamp>,
    /// Why the newest version can't be read, or is not in force.
    pub problem: Option<String>,
    /// The same in a word, for those who aren't operators.
    #[serde(skip)]
    pub problem_code: Option<&'static str>,
}

impl Source {
    /// The allowlist at `url`, asked for again after `period`.
    pub fn new(url: AllowlistUrl, upstream: RepoName, period: Duration) -> Self {
        let period = match url {
            AllowlistUrl::File(_) => FILE_PERIOD,
            AllowlistUrl::GitHub { .. } => period,
        };
        let (state, asked) = (Mutex::default(), tokio::sync::Notify::new());
        Self { url, upstream, period, store: None, state, asked }
    }

    /// The same, with every version that comes into force kept in `store`.
    #[must_use]
    pub fn kept_in(self, store: Arc<dyn StateStore>) -> Self {
        Self { store: Some(store), ..self }
    }

    /// The allowlist in force, if there ever was a good one.
    pub fn get(&self) -> Option<Arc<Allowlist>> {
        self.state.lock().policy.clone()
    }

    /// How it stands, for operators.
    pub fn standing(&self) -> Standing {
        let state = self.state.lock();
        let (mut problem, mut problem_code) = match (&state.unreadable, &state.broken) {
            (Some(why), _) => (Some(why.clone()), Some("unreadable")),
            (None, Some(why)) => (Some(why.clone()), Some("broken")),
            (None, None) => (None, None),
        };
        if let Some(at) = state.loaded_at.filter(|_| state.restored) {
            let why = problem.as_deref().unwrap_or("the newest version has not been read yet");
            problem = Some(format!(
                "{why}; in force is the version that was read at {at:.0}, before the restart"
            ));
            problem_code = problem_code.or(Some("not-read-yet"));
        }
        Standing {
            loaded: state.policy.is_some(),
            repositories: state.policy.as_ref().map_or(0, |policy| policy.len()),
            loaded_at: state.loaded_at,
            problem,
            problem_code,
        }
    }

    /// Puts the last good version of an earlier process in force, until this one reads a good one.
    pub async fn restore(&self) {
        let Some(store) = &self.store else { return };
        let kept = match read_record::<Kept>(store.as_ref(), state_records::allowlist_key()).await {
            Ok(kept) => kept.value.filter(|kept| kept.url == self.url.to_string()),
            Err(error) => return tracing::warn!(%error, "the last good allowlist can't be read"),
        };
        let Some(kept) = kept else { return };
        let Ok(policy) = Allowlist::parse(kept.text.as_bytes(), &self.upstream).accepted() else {
            return tracing::error!("the last good allowlist isn't good for this version of crcr");
        };
        let (read_at, repositories) = (kept.loaded_at, policy.len());
        tracing::warn!(
            %read_at,
            repositories,
            "the allowlist of before the restart is in force until a newer one is read"
        );
        let mut state = self.state.lock();
        if state.policy.is_none() {
            *state = State {
                policy: Some(Arc::new(policy)),
                text: kept.text.into_bytes(),
                etag: kept.etag,
                loaded_at: Some(read_at),
                restored: true,
                ..State::default()
            };
        }
    }

    /// Asks for it soon: upstream's default branch has moved.
    pub fn ask(&self) {
        self.asked.notify_one();
    }

    /// Keeps it fresh until the relay stops, from the second reading on.
    pub async fn keep_fresh(&self, app: &GithubApp, clock: &crcr_github::app::Clock) {
        loop {
            let soon = if self.get().is_some() { self.period } else { Duration::from_secs(5) };
            // Only the pause ends early: an ask while it is being read asks again.
            let _ = tokio::time::timeout(soon, self.asked.notified()).await;
            self.refresh(app, clock()).await;
        }
    }

    /// Reads the newest version, and puts it in force if it is good.
    pub async fn refresh(&self, app: &GithubApp, now: Timestamp) {
        let etag = self.state.lock().etag.clone();
        match config_file::fetch(&self.url, app, etag.as_deref(), limits::ALLOWLIST_BYTES).await {
            Ok(None) => {
                let mut state = self.state.lock();
                state.unreadable = None;
                // It names the good version or a broken one after that.
                state.restored &= state.broken.is_some();
            }
            Ok(Some((text, etag))) => {
                if self.put_in_force(text, etag, now)
                    && let Err(error) = self.keep().await
                {
                    tracing::warn!(%error, "the allowlist can't be kept for the next start");
                }
            }
            Err(problem) => {
                tracing::warn!(%problem, "the allowlist can't be read; the last good one stays");
                self.state.lock().unreadable = Some(problem);
            }
        }
    }

    /// Whether the text is a new good version.
    fn put_in_force(&self, text: Vec<u8>, etag: Option<String>, now: Timestamp) -> bool {
        let mut state = self.state.lock();
        state.etag = etag;
        state.unreadable = None;
        if state.policy.is_some() && state.text == text {
            state.broken = None;
            state.restored = false;
            return false;
        }
        match Allowlist::parse(&text, &self.upstream).accepted() {
            Ok(policy) => {
                tracing::info!(repositories = policy.len(), "the allowlist is in force");
                *state = State {
                    policy: Some(Arc::new(policy)),
                    text,
                    etag: state.etag.take(),
                    loaded_at: Some(now),
                    ..State::default()
                };
                true
            }
            Err(findings) => {
                let problem = format!("the newest version has {} errors", findings.errors());
                tracing::error!(%problem, "the allowlist is broken; the last good one stays");
                state.broken = Some(problem);
                false
            }
        }
    }

    /// Keeps the version in force for the next process.
    async fn keep(&self) -> Result<(), StoreError> {
        let Some(store) = &self.store else { return Ok(()) };
        let (kept, now) = {
            let state = self.state.lock();
            let Some(loaded_at) = state.loaded_at else { return Ok(()) };
            let text = String::from_utf8_lossy(&state.text).into_owned();
            let (url, etag) = (self.url.to_string(), state.etag.clone());
            (Kept { url, text, etag, loaded_at }, loaded_at)
        };
        let mut batch = WriteBatch::default();
        batch.set(state_records::allowlist_key(), &kept, Timestamp::MAX);
        store.commit(batch, now).await?;
        Ok(())
    }
}
