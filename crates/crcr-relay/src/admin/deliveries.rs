//! Deliveries and dead letters as operators see them, and how both are put back into the queue.

use std::time::Duration;

use crcr_domain::RepoName;
use crcr_domain::protocol::dispatch::{Dispatch, DispatchStatus};
use crcr_store::{
    CommitOutcome, NewTask, QueueDepth, StateStore, StoreError, TaskState, TaskView, Versioned,
    WriteBatch, read_record, read_records,
};
use jiff::Timestamp;
use serde::Serialize;

use super::dead_letters::{self, DeadLetterGroup};
use crate::limits;
use crate::queue::task_kind::TaskKind;
use crate::relay::Relay;
use crate::repository_pins::{self, Pin};
use crate::state_records::{self, DeliveryRecord};

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DeliveryOverview {
    #[serde(flatten)]
    pub delivery: DeliveryRecord,
    pub dispatches: Vec<Dispatch>,
}

/// The newest deliveries, at most `limit`.
pub async fn newest(
    store: &dyn StateStore,
    limit: usize,
) -> Result<Vec<DeliveryOverview>, StoreError> {
    let ids = store.members(&state_records::delivery_set_key(), limit).await?;
    let mut found = Vec::with_capacity(ids.len());
    for id in ids {
        found.extend(delivery(store, &id).await?);
    }
    Ok(found)
}

pub async fn delivery(
    store: &dyn StateStore,
    id: &str,
) -> Result<Option<DeliveryOverview>, StoreError> {
    let key = state_records::delivery_key(id);
    let Some(delivery) = read_record::<DeliveryRecord>(store, key).await?.value else {
        return Ok(None);
    };
    let keys = delivery.targets.iter().map(|repo| state_records::dispatch_key(id, repo)).collect();
    let dispatches = read_records::<Dispatch>(store, keys).await?;
    let dispatches = dispatches.into_iter().filter_map(|read| read.value).collect();
    Ok(Some(DeliveryOverview { delivery, dispatches }))
}

/// Sentences for an operator that a delivery's record doesn't have: why a dispatch waits, why no report came, and which of
/// its tasks were given up.
pub async fn explanations(
    store: &dyn StateStore,
    overview: &DeliveryOverview,
) -> Result<Vec<String>, StoreError> {
    let id = overview.delivery.id.as_str();
    let waiting = store.tasks(Some(TaskState::Ready), limits::MAX_DEAD_TASKS).await?;
    let mut lines = vec![];
    for dispatch in &overview.dispatches {
        let repo = &dispatch.repo;
        if dispatch.status == DispatchStatus::Queued {
            lines.extend(waits_for(
                &waiting,
                &TaskKind::dispatch(dispatch).task(dispatch.enqueued_at),
            ));
        } else if dispatch.sent_at().is_some()
            && dispatch.level.shows_results()
            && !dispatch.is_answered
        {
            let why = match (&dispatch.silence, dispatch.never_started) {
                (Some(silence), _) => silence.as_str(),
                (None, true) => "none came in time, and GitHub shows no run of it",
                (None, false) => "the relay waits for the first one",
            };
            lines.push(format!("{repo}: no proven report: {why}"));
        }
    }
    for task in store.tasks(Some(TaskState::Dead), limits::MAX_DEAD_TASKS).await? {
        let parts: Vec<String> = serde_json::from_str(&task.key).unwrap_or_default();
        if parts.iter().any(|part| part == id) {
            let why = task.last_error.as_deref().unwrap_or("without a reason");
            let tries = if task.failed == 1 { "try" } else { "tries" };
            lines.push(format!("given up after {} {tries}: {}: {why}", task.failed, task.key));
        }
    }
    Ok(lines)
}

/// Why a queued dispatch isn't sent yet: it failed before, or another task of its account did, and GitHub wants the
/// account to pause.
fn waits_for(waiting: &[TaskView], dispatch: &NewTask) -> Option<String> {
    let of_lane = || waiting.iter().filter(|task| task.lane == dispatch.lane);
    let own = of_lane().find(|task| task.key == dispatch.key.as_str())?;
    if let Some(error) = &own.last_error {
        return Some(format!("{}: tried again at {:.0}: {error}", own.key, own.due_at));
    }
    let failed =
        of_lane().filter(|task| task.last_error.is_some()).max_by_key(|task| task.due_at)?;
    let error = failed.last_error.as_deref().unwrap_or_default();
    Some(format!(
        "{}: may wait until {:.0} for other work of `{}`: {error}",
        own.key, failed.due_at, own.lane
    ))
}

pub async fn dead_letters(
    store: &dyn StateStore,
    limit: usize,
) -> Result<Vec<TaskView>, StoreError> {
    store.tasks(Some(TaskState::Dead), limit).await
}

/// Puts the dispatches of a delivery that were given up, or couldn't be made, back into the queue.
/// With `repo`, only the dispatch to that repository. Their records are kept for `keep` from now on.
/// Returns how many there were.
pub async fn redeliver(
    store: &dyn StateStore,
    id: &str,
    repo: Option<&RepoName>,
    now: Timestamp,
    keep: Duration,
) -> Result<usize, StoreError> {
    let Some(overview) = delivery(store, id).await? else { return Ok(0) };
    let mut count = 0;
    for target in &overview.delivery.targets {
        if repo.is_some_and(|repo| repo != target) {
            continue;
        }
        let key = state_records::dispatch_key(id, target);
        let read = read_record::<Dispatch>(store, key).await?;
        let Some(mut dispatch) = read.value.clone() else { continue };
        if !dispatch.status.can_be_redelivered() {
            continue;
        }
        dispatch.status = DispatchStatus::Queued;
        dispatch.is_asked_for = true;
        dispatch.held_until = None;
        dispatch.never_started = false;
        dispatch.is_overdue = false;
        dispatch.silence = None;
        let mut batch = WriteBatch::default();
        batch.update(&read, &dispatch, now + keep);
        // The lane of a dispatch is its own account, whatever the upstream repository is.
        batch.tasks.push(TaskKind::dispatch(&dispatch).task(now));
        // It may have to wait, and what its check run shows lets the pull request be merged, or blocks it.
        if dispatch.may_have_check_runs() {
            batch.tasks.push(TaskKind::check_run(&dispatch, None).task(now));
        }
        if store.commit(batch, now).await? == CommitOutcome::Done {
            count += 1;
        }
    }
    Ok(count)
}

/// What became of all dead letters.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RedeliveredAll {
    /// How many are in the queue again.
    pub requeued: usize,
    /// Dispatches of events that are older than [`limits::RESEND_MAX_AGE`]: nobody waits for them any more.
    pub too_old: usize,
}

/// Puts every dead letter back into the queue, but not dispatches of old events.
pub async fn redeliver_all(
    store: &dyn StateStore,
    now: Timestamp,
    keep: Duration,
) -> Result<RedeliveredAll, StoreError> {
    let mut all = RedeliveredAll::default();
    for task in dead_letters(store, limits::MAX_DEAD_TASKS).await? {
        if is_of_old_event(store, &task, now).await? {
            all.too_old += 1;
        } else {
            all.requeued += requeue_dead_letter(store, &task.key, now, keep).await?;
        }
    }
    Ok(all)
}

/// Whether it is a dispatch of an event that was accepted so long ago that nobody waits for it.
async fn is_of_old_event(
    store: &dyn StateStore,
    task: &TaskView,
    now: Timestamp,
) -> Result<bool, StoreError> {
    if task.kind() != TaskKind::DISPATCH {
        return Ok(false);
    }
    let Some(found) = store.find_task(&task.key, TaskState::Dead).await? else { return Ok(false) };
    let Ok(TaskKind::Dispatch { delivery, repo, .. }) = serde_json::from_str(&found.payload) else {
        return Ok(false);
    };
    let key = state_records::dispatch_key(&delivery, &repo);
    let dispatch: Versioned<Dispatch> = read_record(store, key).await?;
    let accepted_at =
        dispatch.value.and_then(|known| Timestamp::from_millisecond(known.order).ok());
    Ok(accepted_at.unwrap_or(task.created_at) + limits::RESEND_MAX_AGE < now)
}

/// Puts the dead letter with this key back into the queue; returns 0 if there is none.
pub(crate) async fn requeue_dead_letter(
    store: &dyn StateStore,
    key: &str,
    now: Timestamp,
    keep: Duration,
) -> Result<usize, StoreError> {
    let Some(task) = store.find_task(key, TaskState::Dead).await? else { return Ok(0) };
    match serde_json::from_str::<TaskKind>(&task.payload) {
        // The record of a dispatch has to change together with its task.
        Ok(TaskKind::Dispatch { delivery, repo, .. }) => {
            redeliver(store, &delivery, Some(&repo), now, keep).await
        }
        Ok(_) => {
            let tasks = vec![NewTask { due_at: now, ..task }];
            store.commit(WriteBatch { tasks, ..WriteBatch::default() }, now).await?;
            Ok(1)
        }
        Err(error) => {
            tracing::warn!(%error, key, "the payload isn't one of this version");
            Ok(0)
        }
    }
}

/// Makes the next sweep of every open dispatch due now; returns how many there are.
pub async fn sweep_now(store: &dyn StateStore, now: Timestamp) -> Result<usize, StoreError> {
    let mut tasks = vec![];
    for task in store.tasks(Some(TaskState::Ready), limits::MAX_DEAD_TASKS).await? {
        if task.kind() == TaskKind::SWEEP
            && let Some(sweep) = store.find_task(&task.key, TaskState::Ready).await?
        {
            tasks.push(NewTask { due_at: now, ..sweep });
        }
    }
    let count = tasks.len();
    store.commit(WriteBatch { tasks, ..WriteBatch::default() }, now).await?;
    Ok(count)
}

/// Removes the dead letter with this key; returns `false` if there is none.
pub(crate) async fn discard(relay: &Relay, key: &str) -> Result<bool, StoreError> {
    let found = relay.store.discard_dead_task(key).await?;
    if found {
        tracing::info!(key, "an operator discarded a dead letter");
    }
    Ok(found)
}

/// Deliveries on the page, and as many as it shows if asked.
pub(crate) const LISTED: usize = 50;
pub(crate) const MAX_LISTED: usize = 500;

/// What the operators' page shows.
#[derive(Debug, Serialize)]
pub(crate) struct DeliveryBoard {
    pub(crate) depth: QueueDepth,
    pub(crate) deliveries: Vec<DeliveryOverview>,
    pub(crate) dead: Vec<TaskView>,
    /// All of them, by cause.
    pub(crate) given_up: Vec<DeadLetterGroup>,
    /// Tasks that failed and will be tried again.
    pub(crate) retries: Vec<TaskView>,
    /// Names that belong to another repository than before.
    pub(crate) changed_repositories: Vec<Pin>,
}

impl DeliveryBoard {
    pub(crate) async fn read(relay: &Relay, limit: Option<usize>) -> Result<Self, StoreError> {
        let store = relay.store.as_ref();
        let limit = limit.unwrap_or(LISTED).min(MAX_LISTED);
        // Most ready tasks are sweeps, which are due later than a retry.
        let mut retries = store.tasks(Some(TaskState::Ready), 10 * limit).await?;
        retries.retain(|task| task.failed > 0 || task.last_error.is_some());
        retries.truncate(limit);
        let mut changed =
            repository_pins::list(store, &relay.config.upstream, limits::MAX_PINS_LISTED).await?;
        changed.retain(|pin| pin.changed.is_some());
        Ok(Self {
            depth: store.queue_depth().await?,
            deliveries: newest(store, limit).await?,
            dead: dead_letters(store, limit).await?,
            given_up: dead_letters::groups(store).await?,
            retries,
            changed_repositories: changed,
        })
    }
}
