//! The allowlist in force: read through the App's own installation, parsed once per version; a
//! broken new version keeps the last good one in force, loudly.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crcr_domain::{Allowlist, RepoName};
use crcr_github::app::App;
use jiff::Timestamp;

use crate::config::AllowlistUrl;
use crate::{file, limits};

/// How often a file on this machine is looked at.
const FILE_PERIOD: Duration = Duration::from_secs(2);

/// The allowlist and where it comes from.
pub struct Source {
    url: AllowlistUrl,
    upstream: RepoName,
    period: Duration,
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
}

/// How the allowlist stands.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Standing {
    /// Whether there is one in force.
    pub loaded: bool,
    /// How many repositories it lists.
    pub repositories: usize,
    /// When it was read.
    pub loaded_at: Option<Timestamp>,
    /// Why the newest version can't be read, or is not in force.
    pub problem: Option<String>,
}

impl Source {
    /// The allowlist at `url`, asked for again after `period`.
    #[must_use]
    pub fn new(url: AllowlistUrl, upstream: RepoName, period: Duration) -> Self {
        let period = match url {
            AllowlistUrl::File(_) => FILE_PERIOD,
            AllowlistUrl::GitHub { .. } => period,
        };
        let (state, asked) = (Mutex::default(), tokio::sync::Notify::new());
        Self { url, upstream, period, state, asked }
    }

    /// The allowlist in force, if there ever was a good one.
    #[must_use]
    pub fn get(&self) -> Option<Arc<Allowlist>> {
        self.lock().policy.clone()
    }

    /// How it stands, for operators.
    #[must_use]
    pub fn standing(&self) -> Standing {
        let state = self.lock();
        Standing {
            loaded: state.policy.is_some(),
            repositories: state.policy.as_ref().map_or(0, |policy| policy.len()),
            loaded_at: state.loaded_at,
            problem: state.unreadable.as_ref().or(state.broken.as_ref()).cloned(),
        }
    }

    /// Asks for it soon: upstream's default branch has moved.
    pub fn ask(&self) {
        self.asked.notify_one();
    }

    /// Keeps it fresh until the relay stops, from the second reading on.
    pub async fn keep_fresh(&self, app: &App, clock: &crcr_github::app::Clock) {
        loop {
            let soon = if self.get().is_some() { self.period } else { Duration::from_secs(5) };
            // Only the pause ends early: an ask while it is being read asks again.
            let _ = tokio::time::timeout(soon, self.asked.notified()).await;
            self.refresh(app, clock()).await;
        }
    }

    /// Reads the newest version, and puts it in force if it is good.
    pub async fn refresh(&self, app: &App, now: Timestamp) {
        let etag = self.lock().etag.clone();
        match file::fetch(&self.url, app, etag.as_deref(), limits::ALLOWLIST_BYTES).await {
            Ok(None) => self.lock().unreadable = None,
            Ok(Some((text, etag))) => self.put_in_force(text, etag, now),
            Err(problem) => {
                tracing::warn!(%problem, "the allowlist can't be read; the last good one stays");
                self.lock().unreadable = Some(problem);
            }
        }
    }

    fn put_in_force(&self, text: Vec<u8>, etag: Option<String>, now: Timestamp) {
        let mut state = self.lock();
        state.etag = etag;
        state.unreadable = None;
        if state.policy.is_some() && state.text == text {
            state.broken = None;
            return;
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
            }
            Err(findings) => {
                let problem = format!("the newest version has {} errors", findings.errors());
                tracing::error!(%problem, "the allowlist is broken; the last good one stays");
                state.broken = Some(problem);
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
