//! Deliveries as operators see them, and another try for what was given up.

use std::time::Duration;

use crcr_domain::RepoName;
use crcr_domain::dispatch::{Dispatch, Status};
use crcr_store::{Batch, Commit, Depth, StateStore, StoreError, TaskView, read, read_all};
use jiff::Timestamp;
use serde::Serialize;

use crate::limits;
use crate::queue::task::Work;
use crate::relay::Relay;
use crate::repository_pins::{self, Pin};
use crate::state_records::{self, Delivery};

/// A delivery and what became of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Overview {
    #[serde(flatten)]
    pub delivery: Delivery,
    pub dispatches: Vec<Dispatch>,
}

/// The newest deliveries, at most `limit`.
pub async fn newest(store: &dyn StateStore, limit: usize) -> Result<Vec<Overview>, StoreError> {
    let ids = store.members(&state_records::deliveries(), limit).await?;
    let mut found = Vec::with_capacity(ids.len());
    for id in ids {
        found.extend(one(store, &id).await?);
    }
    Ok(found)
}

pub async fn one(store: &dyn StateStore, id: &str) -> Result<Option<Overview>, StoreError> {
    let Some(delivery) = read::<Delivery>(store, state_records::delivery(id)).await?.value else {
        return Ok(None);
    };
    let keys = delivery.targets.iter().map(|repo| state_records::dispatch(id, repo)).collect();
    let dispatches = read_all::<Dispatch>(store, keys).await?;
    let dispatches = dispatches.into_iter().filter_map(|read| read.value).collect();
    Ok(Some(Overview { delivery, dispatches }))
}

/// Tasks that were given up.
pub async fn dead(store: &dyn StateStore, limit: usize) -> Result<Vec<TaskView>, StoreError> {
    store.tasks(Some("dead"), limit).await
}

/// Puts the dispatches of a delivery that were given up, or couldn't be made, back into the queue
/// (of one repository when it is named); returns how many. Their records live for `keep` from now on.
pub async fn again(
    store: &dyn StateStore,
    id: &str,
    repo: Option<&RepoName>,
    now: Timestamp,
    keep: Duration,
) -> Result<usize, StoreError> {
    let Some(overview) = one(store, id).await? else { return Ok(0) };
    let mut count = 0;
    for target in &overview.delivery.targets {
        if repo.is_some_and(|repo| repo != target) {
            continue;
        }
        let known = read::<Dispatch>(store, state_records::dispatch(id, target)).await?;
        let Some(mut dispatch) = known.value.clone() else { continue };
        if !dispatch.status.may_come_again() {
            continue;
        }
        dispatch.status = Status::Queued;
        dispatch.never_started = false;
        let mut batch = Batch::default();
        batch.update(&known, &dispatch, now + keep);
        batch.tasks.push(Work::dispatch(&dispatch).task_at(now));
        if store.commit(batch, now).await? == Commit::Done {
            count += 1;
        }
    }
    Ok(count)
}

/// Puts everything that was given up back into the queue, of every delivery; returns how much.
pub async fn given_up_again(
    store: &dyn StateStore,
    now: Timestamp,
    keep: Duration,
) -> Result<usize, StoreError> {
    let mut count = 0;
    for task in dead(store, limits::DEAD).await? {
        count += task_again(store, &task.key, now, keep).await?;
    }
    Ok(count)
}

/// Puts the dead task of this key back into the queue; returns how much that is.
pub(crate) async fn task_again(
    store: &dyn StateStore,
    key: &str,
    now: Timestamp,
    keep: Duration,
) -> Result<usize, StoreError> {
    let Some(payload) = store.payload(key, "dead").await? else { return Ok(0) };
    match serde_json::from_str::<Work>(&payload) {
        Ok(Work::Dispatch { delivery, repo }) => {
            again(store, &delivery, Some(&repo), now, keep).await
        }
        Ok(work) => {
            let tasks = vec![work.task_at(now)];
            store.commit(Batch { tasks, ..Batch::default() }, now).await?;
            Ok(1)
        }
        Err(error) => {
            tracing::warn!(%error, key, "not a task of this version");
            Ok(0)
        }
    }
}

/// Makes the next look at every open dispatch due now; returns how many.
pub async fn sweep_now(store: &dyn StateStore, now: Timestamp) -> Result<usize, StoreError> {
    let mut tasks = vec![];
    for task in store.tasks(Some("ready"), 100_000).await? {
        if task.kind() != Work::SWEEP {
            continue;
        }
        let payload = store.payload(&task.key, "ready").await?;
        let work = payload.and_then(|payload| serde_json::from_str::<Work>(&payload).ok());
        tasks.extend(work.map(|work| work.task_at(now)));
    }
    let count = tasks.len();
    store.commit(Batch { tasks, ..Batch::default() }, now).await?;
    Ok(count)
}

#[derive(Debug, Serialize)]
pub struct Board {
    /// How many tasks there are.
    pub depth: Depth,
    pub deliveries: Vec<Overview>,
    /// Tasks that were given up.
    pub dead: Vec<TaskView>,
    /// Tasks that failed and come again.
    pub retries: Vec<TaskView>,
    /// Names that belong to another repository than before, and are refused.
    pub changed_repositories: Vec<Pin>,
}

impl Board {
    pub(crate) async fn read(relay: &Relay, limit: Option<usize>) -> Result<Self, StoreError> {
        let store = relay.store.as_ref();
        let limit = limit.unwrap_or(50).min(500);
        // Those that come again soon are due before most of the looks at open dispatches.
        let mut retries = store.tasks(Some("ready"), 10 * limit).await?;
        retries.retain(|task| task.failed > 0);
        retries.truncate(limit);
        let mut changed =
            repository_pins::list(store, &relay.config.upstream, limits::PINS).await?;
        changed.retain(|pin| pin.changed.is_some());
        Ok(Self {
            depth: store.depth().await?,
            deliveries: newest(store, limit).await?,
            dead: dead(store, limit).await?,
            retries,
            changed_repositories: changed,
        })
    }
}

/// Removes the dead task of this key; `false` when there is none.
pub(crate) async fn discard(relay: &Relay, key: &str) -> Result<bool, StoreError> {
    let found = relay.store.discard(key).await?;
    if found {
        tracing::info!(key, "an operator discarded a task that was given up");
    }
    Ok(found)
}
