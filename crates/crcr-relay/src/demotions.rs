//! Which backends have an open demotion: a pull request of `crcr levels sync` that nobody has merged or closed.
//! Until then they get no new check runs at L3.
//!
//! GitHub's API is the only source. Webhooks just cause a read, so a missed, late or repeated one can't leave
//! a wrong state behind, nothing has to be stored, and what a webhook claims doesn't matter. The API says in which
//! repository a pull request's branch is: whoever can push a branch upstream may write there, and a fork with a
//! branch of the same name is ignored.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use crcr_domain::RepoName;
use crcr_github::{GithubApp, GithubError};
use parking_lot::RwLock;

/// The shortest pause between two reads, because anybody can cause webhooks.
const MIN_PAUSE: Duration = Duration::from_secs(5);

pub struct OpenDemotions {
    upstream: RepoName,
    /// With the `/` at its end.
    branch_prefix: String,
    label: String,
    period: Duration,
    open: RwLock<BTreeSet<RepoName>>,
    refresh_now: tokio::sync::Notify,
}

/// Names of branches and labels, which a setting can change.
#[derive(Debug, Clone)]
pub struct DemotionNames {
    pub branch: String,
    pub label: String,
}

impl OpenDemotions {
    /// Read every `period`, and when a webhook asks for it.
    pub fn new(upstream: RepoName, names: DemotionNames, period: Duration) -> Self {
        let DemotionNames { branch, label } = names;
        let branch_prefix = format!("{}/", branch.trim_end_matches('/'));
        let (open, refresh_now) = (RwLock::default(), tokio::sync::Notify::new());
        Self { upstream, branch_prefix, label, period, open, refresh_now }
    }

    pub fn is_open(&self, repo: &RepoName) -> bool {
        self.open.read().contains(repo)
    }

    /// Has GitHub asked soon if the webhook mentions a branch of a demotion.
    pub(crate) fn note_webhook(&self, event: &str, body: &Bytes) {
        if event == "pull_request"
            && memchr::memmem::find(body, self.branch_prefix.as_bytes()).is_some()
        {
            self.refresh_now.notify_one();
        }
    }

    /// Asks GitHub periodically, forever.
    pub async fn keep_fresh(&self, app: &GithubApp) {
        loop {
            self.refresh(app).await;
            tokio::time::sleep(MIN_PAUSE).await;
            let rest = self.period.saturating_sub(MIN_PAUSE);
            let _ = tokio::time::timeout(rest, self.refresh_now.notified()).await;
        }
    }

    /// After a failure the last answer holds. Before the first one no demotion is known, which at worst shows
    /// a check run that doesn't block.
    pub async fn refresh(&self, app: &GithubApp) {
        match self.ask(app).await {
            Ok(open) => {
                let mut known = self.open.write();
                if *known != open {
                    tracing::info!(?open, "open demotions have changed");
                    *known = open;
                }
            }
            Err(error) => tracing::warn!(%error, "open demotions can't be read"),
        }
    }

    async fn ask(&self, app: &GithubApp) -> Result<BTreeSet<RepoName>, GithubError> {
        let pulls = app.open_pulls_with(self.upstream.as_str(), &self.branch_prefix).await?;
        let labelled = pulls
            .iter()
            .filter(|pull| pull.labels.iter().any(|label| label.eq_ignore_ascii_case(&self.label)));
        let repo_of = |branch: &str| RepoName::new(branch.strip_prefix(&self.branch_prefix)?).ok();
        Ok(labelled.filter_map(|pull| repo_of(&pull.branch)).collect())
    }
}
