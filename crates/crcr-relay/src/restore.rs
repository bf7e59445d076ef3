//! After a store was put back to a backup. It lacks what came since: webhooks, reports, and what was done
//! about them. Webhooks are fetched again by [`crate::reconcile`]. Reports can't be: dispatches that were open
//! are sent again, and every check run is evaluated and sent again, whatever the store says of it.

use crcr_domain::protocol::dispatch::{Dispatch, DispatchStatus};
use crcr_store::{
    CommitOutcome, StateStore, StoreError, TaskState, Versioned, WriteBatch, read_record,
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::limits;
use crate::queue::task_kind::TaskKind;
use crate::state_records::{self, ReconcileRecord};

/// How a store was put back. It is kept as long as something of before may be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoreRecord {
    /// The store has everything that was acknowledged before.
    pub backup_at: Timestamp,
    pub restored_at: Timestamp,
}

impl RestoreRecord {
    pub(crate) async fn read(store: &dyn StateStore) -> Result<Option<Self>, StoreError> {
        Ok(read_record(store, state_records::restore_key()).await?.value)
    }

    /// Whether a webhook that was accepted then isn't in the store because of the restore.
    pub(crate) fn lost(&self, delivered_at: Timestamp) -> bool {
        self.backup_at - limits::RECONCILE_MARGIN <= delivered_at && delivered_at < self.restored_at
    }

    /// Until when a dispatch of before the restore waits: an event that GitHub delivers again may replace it.
    pub(crate) fn holds_until(&self, dispatch: &Dispatch) -> Option<Timestamp> {
        let is_old = dispatch.enqueued_at < self.restored_at && !dispatch.is_asked_for;
        is_old.then(|| self.restored_at + limits::RESTORE_PAUSE)
    }

    /// The time whose webhooks nobody can deliver again, because GitHub's log doesn't reach back so far.
    pub fn out_of_reach(&self, now: Timestamp) -> Option<(Timestamp, Timestamp)> {
        let oldest = now - limits::RECONCILE_BACK;
        (self.backup_at < oldest).then(|| (self.backup_at, oldest.min(self.restored_at)))
    }
}

/// What a restored store will do again.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ResumedWork {
    /// Dispatches that were waiting to be sent.
    pub waiting: usize,
    /// Dispatches that were open, and are sent again because nobody knows what became of them.
    pub sent_again: usize,
    /// Open dispatches whose payload isn't stored any more.
    pub without_body: usize,
}

/// Marks a store as put back to what it was at `backup_at`. No relay may use it. A repeat sends again what was sent since:
/// the store may have been put back to the same backup a second time, which can't be told from its records.
pub async fn mark_restored(
    store: &dyn StateStore,
    backup_at: Timestamp,
    now: Timestamp,
) -> Result<ResumedWork, StoreError> {
    let record = RestoreRecord { backup_at, restored_at: now };
    remember(store, &record).await?;
    forget_progress(store, backup_at, now).await?;
    let mut resumed = ResumedWork::default();
    // Sweeps put further dispatches into the queue, which aren't those that were waiting.
    for state in [TaskState::Ready, TaskState::Leased] {
        resumed.waiting += store.task_keys(TaskKind::DISPATCH, state).await?.len();
    }
    for state in [TaskState::Ready, TaskState::Leased] {
        for key in store.task_keys(TaskKind::SWEEP, state).await? {
            let Some(found) = store.find_task(&key, state).await? else { continue };
            let Ok(TaskKind::Sweep { delivery, repo }) = serde_json::from_str(&found.payload)
            else {
                continue;
            };
            let key = state_records::dispatch_key(&delivery, &repo);
            let dispatch: Versioned<Dispatch> = read_record(store, key).await?;
            send_again(store, &dispatch, &record, now, &mut resumed).await?;
        }
    }
    let tasks = vec![TaskKind::AfterRestore.task(now)];
    commit(store, WriteBatch { tasks, ..WriteBatch::default() }, now).await?;
    Ok(resumed)
}

async fn remember(store: &dyn StateStore, record: &RestoreRecord) -> Result<(), StoreError> {
    let known: Versioned<RestoreRecord> = read_record(store, state_records::restore_key()).await?;
    let mut batch = WriteBatch::default();
    batch.update(&known, record, record.restored_at + limits::RESTORE_MEMORY);
    commit(store, batch, record.restored_at).await
}

/// Has the log of deliveries read back to the backup.
async fn forget_progress(
    store: &dyn StateStore,
    backup_at: Timestamp,
    now: Timestamp,
) -> Result<(), StoreError> {
    let known: Versioned<ReconcileRecord> =
        read_record(store, state_records::reconcile_key()).await?;
    let settled_until = backup_at - limits::RECONCILE_MARGIN;
    let settled_until = match &known.value {
        Some(record) => record.settled_until.min(settled_until),
        None => settled_until,
    };
    let record = ReconcileRecord { settled_until, unfinished: None };
    let mut batch = WriteBatch::default();
    batch.update(&known, &record, now + limits::RESTORE_MEMORY);
    commit(store, batch, now).await
}

/// Puts a dispatch back into the queue that was sent and not known to be over.
async fn send_again(
    store: &dyn StateStore,
    known: &Versioned<Dispatch>,
    restore: &RestoreRecord,
    now: Timestamp,
    resumed: &mut ResumedWork,
) -> Result<(), StoreError> {
    let Some(dispatch) = &known.value else { return Ok(()) };
    if dispatch.sent_at().is_none_or(|at| at >= restore.restored_at) {
        return Ok(());
    }
    let id = dispatch.delivery.as_str();
    let bodies = [state_records::body_key(id), state_records::reduced_body_key(id)];
    if store.records(&bodies).await?.iter().all(Option::is_none) {
        resumed.without_body += 1;
        return Ok(());
    }
    let again = Dispatch {
        status: DispatchStatus::Queued,
        never_started: false,
        is_overdue: false,
        silence: None,
        ..dispatch.clone()
    };
    let mut batch = WriteBatch::default();
    batch.update(known, &again, now + limits::RECORD_RETENTION);
    let due_at = restore.restored_at + limits::RESTORE_PAUSE;
    batch.tasks.push(TaskKind::dispatch(&again).task(due_at));
    resumed.sent_again += 1;
    commit(store, batch, now).await
}

async fn commit(
    store: &dyn StateStore,
    batch: WriteBatch,
    now: Timestamp,
) -> Result<(), StoreError> {
    match store.commit(batch, now).await? {
        CommitOutcome::Done => Ok(()),
        _ => Err(StoreError::Unavailable("somebody else changes it: stop every relay".to_owned())),
    }
}
