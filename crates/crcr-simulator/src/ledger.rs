//! What the outside world knows of the relay's work: webhooks and what was acknowledged, accepted and paid for.

use std::collections::{BTreeMap, BTreeSet};

use crcr_domain::protocol::dispatch::Dispatch;
use crcr_relay::state_records;
use crcr_store::memory::MemoryStore;
use jiff::Timestamp;

/// A broken promise, and how it was broken.
pub(crate) type Broken = (&'static str, String);

pub(crate) struct KnownWebhook {
    /// The backends that have to get it.
    pub(crate) targets: Vec<&'static str>,
    pub(crate) event: &'static str,
    /// The event's action; empty for pushes.
    pub(crate) action: String,
    pub(crate) head: String,
    /// The pull request's base branch; empty for pushes and merge groups.
    pub(crate) base_branch: String,
    pub(crate) is_draft: bool,
    /// Whether the head changes more than documentation.
    pub(crate) has_code: bool,
    /// Whether backends at L4 show check runs for it.
    pub(crate) has_check_runs: bool,
    pub(crate) pull: Option<u64>,
    /// The pull request's author; empty for pushes and merge groups.
    pub(crate) author: String,
    /// Whether that author has never contributed to upstream.
    pub(crate) is_stranger: bool,
    /// Whether nothing is built for it.
    pub(crate) is_closing: bool,
    pub(crate) at: Timestamp,
}

/// What the outside world knows.
#[derive(Default)]
pub(crate) struct PromiseLedger {
    pub(crate) webhooks: BTreeMap<String, KnownWebhook>,
    /// When the relay first acknowledged a webhook, or was seen to have stored it.
    pub(crate) acknowledged: BTreeMap<String, Timestamp>,
    /// Acknowledged webhooks that aren't settled, with the backends that still have to get them.
    pub(crate) open: BTreeMap<String, BTreeSet<&'static str>>,
    /// Dispatches that GitHub has accepted, by delivery and repository in lower case.
    pub(crate) accepted: BTreeMap<(String, String), u32>,
    /// Dispatches that GitHub once refused for good.
    pub(crate) refused: BTreeSet<(String, String)>,
    /// When the relay first acknowledged a genuine report of a delivery and repository.
    pub(crate) answered_at: BTreeMap<(String, &'static str), Timestamp>,
    /// Heads for which somebody pressed "Re-run".
    pub(crate) asked_heads: BTreeSet<String>,
    pub(crate) probes: ProbeLog,
    /// The backends that have reported a nightly run, and whether the relay has taken it.
    pub(crate) nightlies: BTreeMap<&'static str, bool>,
}

impl KnownWebhook {
    /// Whether not every backend gets it.
    pub(crate) fn repeats_head(&self) -> bool {
        ["edited", "ready_for_review"].contains(&&*self.action)
    }
}

impl PromiseLedger {
    /// Whether a backend has got a pull request that is ready for review with another event than the one that says so.
    pub(crate) fn is_ready_otherwise(
        &self,
        memory: &MemoryStore,
        delivery: &str,
        repo: &str,
    ) -> bool {
        let Some(webhook) = self.webhooks.get(delivery) else { return false };
        webhook.action == "ready_for_review"
            && self.webhooks.iter().any(|(id, other)| {
                id != delivery
                    && (other.pull, other.is_draft) == (webhook.pull, false)
                    && dispatch(memory, id, repo).is_some()
            })
    }

    /// Backends' own webhooks promise nothing.
    pub(crate) fn acknowledge(&mut self, delivery: &str, now: Timestamp) {
        if !self.webhooks.contains_key(delivery) || self.acknowledged.contains_key(delivery) {
            return;
        }
        self.acknowledged.insert(delivery.to_owned(), now);
        if let Some(webhook) = self.webhooks.get(delivery).filter(|one| !one.targets.is_empty()) {
            let targets = webhook.targets.iter().copied().collect();
            self.open.insert(delivery.to_owned(), targets);
        }
    }

    /// Webhooks that are stored, and whose answers got lost.
    pub(crate) fn note_stored(&mut self, memory: &MemoryStore, now: Timestamp) {
        let is_stored = |id: &str| memory.record(&state_records::delivery_key(id)).is_some();
        let stored: Vec<String> = self
            .webhooks
            .keys()
            .filter(|id| !self.acknowledged.contains_key(*id) && is_stored(id))
            .cloned()
            .collect();
        stored.iter().for_each(|id| self.acknowledge(id, now));
    }
}

/// A re-run or a commit that a backend has paid for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PaidProbe {
    /// The run, or the delivery of the probe.
    pub(crate) what: String,
    pub(crate) at: Timestamp,
    /// The pull request's author whose failure it explains, or `*` for strangers; `None` if it isn't known or upstream's.
    pub(crate) owner: Option<String>,
}

/// What the relay has run to explain failures.
#[derive(Debug, Default)]
pub(crate) struct ProbeLog {
    pub(crate) reruns: BTreeMap<&'static str, Vec<PaidProbe>>,
    pub(crate) commits: BTreeMap<&'static str, Vec<PaidProbe>>,
}

/// The stored dispatch of a delivery to a repository.
pub(crate) fn dispatch(memory: &MemoryStore, delivery: &str, repo: &str) -> Option<Dispatch> {
    let repo = crcr_domain::RepoName::new(repo).ok()?;
    let record = memory.record(&state_records::dispatch_key(delivery, &repo))?;
    serde_json::from_slice(&record.value).ok()
}
