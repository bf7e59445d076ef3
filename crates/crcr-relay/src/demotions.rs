//! Which backends have an open demotion: a pull request of `crcr levels sync` that nobody has merged or closed.
//! Until then they get no new check runs at L3.
//!
//! GitHub's API is the only source, and the branch alone says it. Webhooks just cause a read, so a missed, late or
//! repeated one can't leave a wrong state behind, and what a webhook claims doesn't matter. The API says in which
//! repository a pull request's branch is: whoever can push a branch upstream may write there, and a fork with a branch
//! of the same name is ignored. What was read last is stored, so that a demotion that ends during a restart is noticed,
//! too.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use crcr_domain::RepoName;
use crcr_github::{GithubApp, GithubError};
use crcr_store::{Versioned, WriteBatch};
use jiff::Timestamp;
use parking_lot::{Mutex, RwLock};
use serde::Deserialize;

use crate::queue::task_kind::TaskKind;
use crate::relay::Relay;
use crate::state_records;
use crate::webhook::repository::WebhookRepository;

/// The shortest pause between two reads, because anybody can cause webhooks.
pub const MIN_PAUSE: Duration = Duration::from_secs(5);

pub struct OpenDemotions {
    upstream: RepoName,
    /// With the `/` at its end.
    branch_prefix: String,
    period: Duration,
    open: RwLock<BTreeSet<RepoName>>,
    /// Those of them that the last answer lacked.
    missed: Mutex<BTreeSet<RepoName>>,
    refresh_now: tokio::sync::Notify,
}

/// The webhook of a pull request, as far as it tells of a demotion.
#[derive(Deserialize)]
struct PullWebhook {
    repository: WebhookRepository,
    pull_request: PullRequest,
}

#[derive(Deserialize)]
struct PullRequest {
    head: Head,
}

#[derive(Deserialize)]
struct Head {
    #[serde(rename = "ref")]
    branch: String,
    /// `None` when it was deleted.
    repo: Option<WebhookRepository>,
}

impl OpenDemotions {
    /// `branch`: how the names of their branches begin. Read every `period`, and when a webhook asks for it.
    pub fn new(upstream: RepoName, branch: &str, period: Duration) -> Self {
        let branch_prefix = format!("{}/", branch.trim_end_matches('/'));
        let (open, missed) = (RwLock::default(), Mutex::default());
        let refresh_now = tokio::sync::Notify::new();
        Self { upstream, branch_prefix, period, open, missed, refresh_now }
    }

    pub fn is_open(&self, repo: &RepoName) -> bool {
        self.open.read().contains(repo)
    }

    /// Has GitHub asked soon if the webhook is about a branch of a demotion in upstream itself, where only those who
    /// may write can have one.
    pub(crate) fn note_webhook(&self, event: &str, body: &Bytes) {
        if event != "pull_request"
            || memchr::memmem::find(body, self.branch_prefix.as_bytes()).is_none()
        {
            return;
        }
        let Ok(webhook) = serde_json::from_slice::<PullWebhook>(body) else { return };
        let head = webhook.pull_request.head;
        let is_upstream =
            |repo: &WebhookRepository| repo.full_name.eq_ignore_ascii_case(self.upstream.as_str());
        if is_upstream(&webhook.repository)
            && head.repo.as_ref().is_some_and(is_upstream)
            && head.branch.starts_with(&self.branch_prefix)
        {
            self.refresh_now.notify_one();
        }
    }

    async fn ask(&self, app: &GithubApp) -> Result<BTreeSet<RepoName>, GithubError> {
        let pulls = app.open_pulls_with(self.upstream.as_str(), &self.branch_prefix).await?;
        let repo_of = |branch: &str| RepoName::new(branch.strip_prefix(&self.branch_prefix)?).ok();
        Ok(pulls.iter().filter_map(|pull| repo_of(&pull.branch)).collect())
    }

    /// Those that are open by this answer. GitHub's lists sometimes lack something, and a check run that is created can't
    /// be taken back: so a demotion is over when two answers lack it. After the first one GitHub is asked again soon, or
    /// on AWS Lambda after a period of the allowlist.
    fn confirmed(&self, found: &BTreeSet<RepoName>) -> BTreeSet<RepoName> {
        let gone: BTreeSet<RepoName> = self.open.read().difference(found).cloned().collect();
        let before = std::mem::replace(&mut *self.missed.lock(), gone.clone());
        let missed_once: BTreeSet<RepoName> = gone.difference(&before).cloned().collect();
        if !missed_once.is_empty() {
            self.refresh_now.notify_one();
        }
        found.union(&missed_once).cloned().collect()
    }
}

/// Puts in force the open demotions that a relay read last. Each holds until two answers of GitHub lack it.
pub(crate) async fn restore(relay: &Relay) {
    let demotions = &relay.demotions;
    let key = state_records::open_demotions_key(&demotions.upstream);
    match relay.read_record::<BTreeSet<RepoName>>(key).await {
        Ok(known) => *demotions.open.write() = known.value.unwrap_or_default(),
        Err(error) => tracing::warn!(%error, "the demotions that were open can't be read"),
    }
}

/// Asks GitHub periodically, forever, and as soon as a webhook says so, but not within `min_pause` of the last time.
pub async fn keep_fresh(relay: &Relay, min_pause: Duration) {
    let demotions = &relay.demotions;
    loop {
        refresh(relay).await;
        tokio::time::sleep(min_pause).await;
        let rest = demotions.period.saturating_sub(min_pause);
        let _ = tokio::time::timeout(rest, demotions.refresh_now.notified()).await;
    }
}

/// Asks GitHub, and has the check runs of each backend evaluated whose demotion is over: it may have run meanwhile.
///
/// After a failure the last answer holds, also that of before a restart.
pub async fn refresh(relay: &Relay) {
    let demotions = &relay.demotions;
    let found = match demotions.ask(&relay.app).await {
        Ok(found) => found,
        Err(error) => {
            tracing::warn!(error = error.with_cause(), "open demotions can't be read");
            return;
        }
    };
    let open = demotions.confirmed(&found);
    let known_here = std::mem::replace(&mut *demotions.open.write(), open.clone());
    let key = state_records::open_demotions_key(&demotions.upstream);
    let noted = relay.update(key, |known: &Versioned<BTreeSet<RepoName>>| {
        let before = known.value.clone().unwrap_or_default();
        // Another relay may have written it down, and this one evaluated what followed from that by what it knew. It may
        // also know by two answers what this one knows by the first.
        if (before == open || before == found) && known_here.is_subset(&open) {
            return ((), None);
        }
        tracing::info!(?open, "open demotions have changed");
        let ended = before.union(&known_here).filter(|repo| !open.contains(*repo));
        let checks = ended.map(|repo| TaskKind::backend_checks(repo, false));
        let mut batch = WriteBatch::default();
        batch.tasks.extend(checks.map(|checks| checks.task(relay.now())));
        batch.update(known, &open, Timestamp::MAX);
        ((), Some(batch))
    });
    if let Err(error) = noted.await {
        tracing::warn!(%error, "the end of a demotion can't be written down: it is looked for again");
        *demotions.open.write() = known_here;
    }
}
