//! Cancels the dispatches of an older delivery that weren't sent yet.

use crcr_domain::RepoName;
use crcr_domain::protocol::dispatch::{Dispatch, DispatchStatus};
use crcr_store::{CommitOutcome, StoreError, Versioned, WriteBatch, read_records};

use super::head;
use crate::limits;
use crate::queue::record_dispatch_change;
use crate::queue::task_kind::{TaskDone, TaskError, TaskKind};
use crate::relay::Relay;
use crate::state_records::{self, DeliveryRecord};

/// Cancels the dispatches of `older`, or has a task cancel them if there are many: GitHub waits ten seconds
/// for the answer to a webhook. Until that task comes to a dispatch, the delivery's record keeps it from being
/// sent.
pub(crate) async fn supersede(
    relay: &Relay,
    older: &str,
    newer: &str,
    batch: &mut WriteBatch,
) -> Result<(), StoreError> {
    let key = state_records::delivery_key(older);
    let known: Versioned<DeliveryRecord> = relay.read_record(key).await?;
    let Some(mut delivery) = known.value.clone() else { return Ok(()) };
    if delivery.targets.len() <= limits::SUPERSEDED_AT_ONCE {
        return add_superseded(relay, older, newer, &delivery.targets, batch).await;
    }
    delivery.superseded_by = Some(newer.to_owned());
    batch.update(&known, &delivery, relay.expiry());
    let work = TaskKind::Supersede { older: older.to_owned(), newer: newer.to_owned() };
    batch.tasks.push(work.task(relay.now()));
    Ok(())
}

/// The task of a delivery with many dispatches.
pub(crate) async fn run(relay: &Relay, older: &str, newer: &str) -> Result<TaskDone, TaskError> {
    let key = state_records::delivery_key(older);
    let known: Versioned<DeliveryRecord> = relay.read_record(key).await?;
    let targets = known.value.map(|known| known.targets).unwrap_or_default();
    for targets in targets.chunks(limits::SUPERSEDED_AT_ONCE) {
        let mut is_done = false;
        // Some of them may be sent in this moment.
        for _ in 0..limits::CONFLICT_TRIES {
            let mut batch = WriteBatch::default();
            add_superseded(relay, older, newer, targets, &mut batch).await?;
            is_done = relay.commit(batch).await? == CommitOutcome::Done;
            if is_done {
                break;
            }
        }
        if !is_done {
            return Err(TaskError::retry("its dispatches changed in every try to cancel them"));
        }
    }
    Ok(TaskDone::Finished)
}

async fn add_superseded(
    relay: &Relay,
    older: &str,
    newer: &str,
    targets: &[RepoName],
    batch: &mut WriteBatch,
) -> Result<(), StoreError> {
    let store = relay.store.as_ref();
    let keys = targets.iter().map(|repo| state_records::dispatch_key(older, repo)).collect();
    for known in read_records::<Dispatch>(store, keys).await? {
        let Some(mut dispatch) = known.value.clone() else { continue };
        if dispatch.status != DispatchStatus::Queued && !dispatch.status.can_be_redelivered() {
            let is_sent = dispatch.sent_at().is_some();
            if is_sent && dispatch.may_have_check_runs() && head::has_check_runs(relay, &dispatch) {
                // Others at this commit don't wait for its answer any more, and stand for what has failed in its runs.
                batch.tasks.push(TaskKind::check_run(&dispatch, None).task(relay.now()));
            }
            continue;
        }
        let is_dead_letter = dispatch.status == DispatchStatus::Dead;
        dispatch.status = DispatchStatus::Superseded { by: newer.to_owned() };
        batch.update(&known, &dispatch, relay.expiry());
        record_dispatch_change(relay, batch, &dispatch);
        if is_dead_letter {
            // The dead task runs once more, finds nothing to send, and is removed.
            batch.tasks.push(TaskKind::dispatch(&dispatch).task(relay.now()));
        }
        // A label may have asked for the check run after the dispatch was made.
        if dispatch.may_have_check_runs() {
            batch.tasks.push(TaskKind::check_run(&dispatch, None).task(relay.now()));
        }
    }
    Ok(())
}
