//! The breaker of each backend. It opens when the infrastructure of a backend has failed on several dispatches in a
//! row. Then nobody's pull request is blocked by a dead lab: failures of its infrastructure are neutral, and
//! only a probe now and then is dispatched. The first dispatch that gets further closes it.

use crcr_domain::RepoName;
use crcr_domain::dispatch::Dispatch;
use crcr_store::{CommitOutcome, StoreError, Versioned, WriteBatch, read_record};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::relay::Relay;
use crate::{limits, state_records};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Breaker {
    /// The newest dispatches whose outcome is known, the oldest first.
    outcomes: Vec<DispatchOutcome>,
    /// When the last dispatch was let through while it was open.
    probed_at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct DispatchOutcome {
    delivery: String,
    enqueued_at: Timestamp,
    infrastructure_failed: bool,
}

/// What became of the breaker with an outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerChange {
    Opened,
    Closed,
    None,
}

impl Breaker {
    /// `threshold`: failures in a row that open it.
    pub fn is_open(&self, threshold: usize) -> bool {
        self.outcomes.len() >= threshold
            && self.outcomes.iter().rev().take(threshold).all(|one| one.infrastructure_failed)
    }

    /// A dispatch has one outcome, which a re-run may change.
    fn note(&mut self, outcome: DispatchOutcome, threshold: usize) {
        self.outcomes.retain(|known| known.delivery != outcome.delivery);
        self.outcomes.push(outcome);
        self.outcomes
            .sort_by(|a, b| (a.enqueued_at, &a.delivery).cmp(&(b.enqueued_at, &b.delivery)));
        let surplus = self.outcomes.len().saturating_sub(threshold);
        self.outcomes.drain(..surplus);
    }
}

async fn read(relay: &Relay, repo: &RepoName) -> Result<Versioned<Breaker>, StoreError> {
    let key = state_records::breaker_key(&relay.config.upstream, repo);
    read_record(relay.store.as_ref(), key).await
}

/// Whether failures of the backend's infrastructure are neutral now.
pub async fn is_open(relay: &Relay, repo: &RepoName) -> Result<bool, StoreError> {
    let Some(threshold) = relay.config.breaker_failures else { return Ok(false) };
    Ok(read(relay, repo).await?.value.is_some_and(|breaker| breaker.is_open(threshold)))
}

/// Whether a dispatch must not be sent now. If it is open and the last probe is long enough ago, this
/// dispatch is the next probe.
pub async fn withholds(relay: &Relay, repo: &RepoName) -> Result<bool, StoreError> {
    let Some(threshold) = relay.config.breaker_failures else { return Ok(false) };
    for _ in 0..limits::CONFLICTS {
        let known = read(relay, repo).await?;
        let Some(breaker) = known.value.as_ref().filter(|breaker| breaker.is_open(threshold))
        else {
            return Ok(false);
        };
        let now = relay.now();
        if breaker.probed_at.is_some_and(|at| at + limits::BREAKER_PROBE > now) {
            return Ok(true);
        }
        let probed = Breaker { probed_at: Some(now), ..breaker.clone() };
        let mut batch = WriteBatch::default();
        batch.update(&known, &probed, relay.expiry());
        if relay.commit(batch).await? == CommitOutcome::Done {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Records the outcome of a dispatch.
pub async fn note_outcome(
    relay: &Relay,
    dispatch: &Dispatch,
    infrastructure_failed: bool,
) -> Result<BreakerChange, StoreError> {
    let Some(threshold) = relay.config.breaker_failures else { return Ok(BreakerChange::None) };
    let repo = &dispatch.repo;
    for _ in 0..limits::CONFLICTS {
        let known = read(relay, repo).await?;
        let before = known.value.clone().unwrap_or_default();
        let mut after = before.clone();
        let (delivery, enqueued_at) = (dispatch.delivery.clone(), dispatch.enqueued_at);
        after.note(DispatchOutcome { delivery, enqueued_at, infrastructure_failed }, threshold);
        let change = match (before.is_open(threshold), after.is_open(threshold)) {
            (false, true) => {
                after.probed_at = Some(relay.now());
                BreakerChange::Opened
            }
            (true, false) => BreakerChange::Closed,
            _ => BreakerChange::None,
        };
        if after == before {
            return Ok(BreakerChange::None);
        }
        let mut batch = WriteBatch::default();
        batch.update(&known, &after, relay.expiry());
        if relay.commit(batch).await? == CommitOutcome::Done {
            match change {
                BreakerChange::Opened => tracing::warn!(%repo, threshold, "breaker opened"),
                BreakerChange::Closed => tracing::info!(%repo, "breaker closed"),
                BreakerChange::None => {}
            }
            return Ok(change);
        }
    }
    Ok(BreakerChange::None)
}
