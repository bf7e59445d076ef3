//! The breaker of each backend. It opens when the infrastructure of a backend has failed for several pull requests in a
//! row, of several authors: what one author does must not turn off the checks of everybody. All who haven't contributed
//! to upstream before are one. Then nobody's pull request
//! is blocked by a dead lab: failures of its infrastructure are neutral, and only a trial now and then is dispatched.
//! The first dispatch that gets further closes it.

use std::collections::BTreeSet;

use crcr_domain::RepoName;
use crcr_domain::protocol::dispatch::Dispatch;
use crcr_store::{StoreError, StoreKey, Versioned, WriteBatch};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::relay::Relay;
use crate::{limits, state_records};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Breaker {
    /// The newest outcome of each pull request, push and merge group, the oldest first.
    outcomes: Vec<DispatchOutcome>,
    /// When the last trial was let through while it was open.
    probed_at: Option<Timestamp>,
    /// The delivery of that dispatch. It may have to be tried several times before GitHub takes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    probed_by: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct DispatchOutcome {
    delivery: String,
    pull_request: Option<u64>,
    /// `None` for upstream's own events, and [`NEWCOMERS`] for who hasn't contributed to upstream before.
    author: Option<String>,
    /// When it was last sent or run again, or put into the queue if it never was. A dispatch that is run again tells how
    /// the backend is then, and not when its event came.
    /// Stored under the name that it had before.
    #[serde(rename = "enqueued_at")]
    begun_at: Timestamp,
    infrastructure_failed: bool,
}

/// They count as one author: anybody can have several accounts, and have jobs hang. No login has this character.
const NEWCOMERS: &str = "*";

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
        let failures = self.outcomes.iter().rev().take_while(|one| one.infrastructure_failed);
        let (count, authors) = failures.fold((0, BTreeSet::new()), |(count, mut authors), one| {
            authors.insert(&one.author);
            (count + 1, authors)
        });
        count >= threshold && authors.len() >= threshold.min(limits::BREAKER_AUTHORS)
    }

    /// A pull request has one outcome, that of its newest dispatch, which a re-run may change.
    fn note(&mut self, outcome: DispatchOutcome) {
        let is_same = |known: &DispatchOutcome| match outcome.pull_request {
            Some(number) => known.pull_request == Some(number),
            None => known.delivery == outcome.delivery,
        };
        let is_older = |known: &DispatchOutcome| known.begun_at > outcome.begun_at;
        if self.outcomes.iter().any(|known| is_same(known) && is_older(known)) {
            return;
        }
        self.outcomes.retain(|known| !is_same(known));
        self.outcomes.push(outcome);
        self.outcomes.sort_by(|a, b| (a.begun_at, &a.delivery).cmp(&(b.begun_at, &b.delivery)));
        let surplus = self.outcomes.len().saturating_sub(limits::BREAKER_OUTCOMES);
        self.outcomes.drain(..surplus);
    }
}

fn key(relay: &Relay, repo: &RepoName) -> StoreKey {
    state_records::breaker_key(&relay.config.upstream, repo)
}

/// Whether failures of the backend's infrastructure are neutral now.
pub async fn is_open(relay: &Relay, repo: &RepoName) -> Result<bool, StoreError> {
    let Some(threshold) = relay.config.breaker_failures else { return Ok(false) };
    let known: Versioned<Breaker> = relay.read_record(key(relay, repo)).await?;
    Ok(known.value.is_some_and(|breaker| breaker.is_open(threshold)))
}

/// The backends of the allowlist whose breaker is open.
pub async fn open(relay: &Relay) -> Result<Vec<RepoName>, StoreError> {
    let Some(threshold) = relay.config.breaker_failures else { return Ok(vec![]) };
    let Some(policy) = relay.allowlist.get() else { return Ok(vec![]) };
    let repos: Vec<RepoName> = policy.iter().map(|entry| entry.repo.clone()).collect();
    let keys = repos.iter().map(|repo| key(relay, repo)).collect();
    let known = relay.read_records::<Breaker>(keys).await?;
    let is_open = |known: &Versioned<Breaker>| {
        known.value.as_ref().is_some_and(|breaker| breaker.is_open(threshold))
    };
    let open = repos.into_iter().zip(known).filter(|(_, known)| is_open(known));
    Ok(open.map(|(repo, _)| repo).collect())
}

/// Whether the breaker keeps a dispatch from being sent now. If it is open and the last trial is long enough ago, this
/// dispatch is the next trial; so is one that somebody asked for. A dispatch that expects no report, such as that of a
/// closed pull request, is always sent: as a trial it would never tell whether the backend works. A probe is never a
/// trial, because the breaker doesn't learn how it ended.
pub async fn withholds(relay: &Relay, dispatch: &Dispatch) -> Result<bool, StoreError> {
    let Dispatch { repo, delivery, is_asked_for, .. } = dispatch;
    let Some(threshold) = relay.config.breaker_failures else { return Ok(false) };
    if !dispatch.expects_report() {
        return Ok(false);
    }
    let withheld = relay.update(key(relay, repo), |known: &Versioned<Breaker>| {
        let Some(breaker) = known.value.as_ref().filter(|breaker| breaker.is_open(threshold))
        else {
            return (false, None);
        };
        if dispatch.probe.is_some() {
            return (true, None);
        }
        let is_recent =
            breaker.probed_at.is_some_and(|at| relay.is_recent(at, limits::BREAKER_TRIAL_INTERVAL));
        let is_trial = breaker.probed_by.as_ref() == Some(delivery);
        if is_recent && !is_asked_for {
            return (!is_trial, None);
        }
        // One that was asked for is sent in any case, and doesn't take the place of one that is tried again.
        let probed_by = if is_recent { breaker.probed_by.clone() } else { Some(delivery.clone()) };
        let probed = Breaker { probed_at: Some(relay.now()), probed_by, ..breaker.clone() };
        let mut batch = WriteBatch::default();
        batch.update(known, &probed, relay.expiry());
        (false, Some(batch))
    });
    withheld.await
}

/// Records the outcome of a dispatch, which was sent or run again at `begun_at`.
pub async fn note_outcome(
    relay: &Relay,
    (dispatch, begun_at): (&Dispatch, Timestamp),
    infrastructure_failed: bool,
) -> Result<BreakerChange, StoreError> {
    let Some(threshold) = relay.config.breaker_failures else { return Ok(BreakerChange::None) };
    let repo = &dispatch.repo;
    let noted = relay.update(key(relay, repo), |known: &Versioned<Breaker>| {
        let before = known.value.clone().unwrap_or_default();
        let mut after = before.clone();
        after.note(DispatchOutcome {
            delivery: dispatch.delivery.clone(),
            pull_request: dispatch.pull_request,
            author: dispatch.author.as_ref().map(|author| match dispatch.is_known_author {
                true => author.to_ascii_lowercase(),
                false => NEWCOMERS.to_owned(),
            }),
            begun_at,
            infrastructure_failed,
        });
        let change = match (before.is_open(threshold), after.is_open(threshold)) {
            (false, true) => {
                (after.probed_at, after.probed_by) = (Some(relay.now()), None);
                BreakerChange::Opened
            }
            (true, false) => BreakerChange::Closed,
            _ => BreakerChange::None,
        };
        if after == before {
            return (BreakerChange::None, None);
        }
        let mut batch = WriteBatch::default();
        batch.update(known, &after, relay.expiry());
        (change, Some(batch))
    });
    let change = noted.await?;
    match change {
        BreakerChange::Opened => tracing::warn!(%repo, threshold, "breaker opened"),
        BreakerChange::Closed => tracing::info!(%repo, "breaker closed"),
        BreakerChange::None => {}
    }
    Ok(change)
}
