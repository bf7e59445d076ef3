//! A backend that has come to L4. Its check is required of a pull request that is ready for review and of the branch that
//! it goes to, but below L4 a backend isn't dispatched to again when these change.

use crcr_domain::protocol::dispatch::{Dispatch, DispatchStatus};
use crcr_domain::protocol::event::PullRequestAction;
use crcr_domain::{AllowlistEntry, RepoName};
use crcr_store::{CommitOutcome, Versioned, WriteBatch, read_record};
use jiff::Timestamp;

use super::head::{self, Head};
use super::renamed_backend::{queued_for, required_entry};
use crate::limits;
use crate::queue::record_dispatch_change;
use crate::queue::task_kind::{TaskError, TaskKind};
use crate::relay::Relay;
use crate::state_records::{self, DeliveryRecord, PullRecord};

/// Dispatches what the pull requests of a commit are now, if that isn't what the backend has got.
pub(crate) async fn dispatch_again(
    relay: &Relay,
    repo: &RepoName,
    head: &Head,
) -> Result<(), TaskError> {
    let entry = required_entry(relay, repo)?.filter(AllowlistEntry::is_dispatched_to);
    let Some(entry) = entry else { return Ok(()) };
    for (before, pull) in head.outdated() {
        if let Some(delivery) = pull.deliveries.last() {
            dispatch_newest(relay, &entry, (before, pull), delivery).await?;
        }
    }
    Ok(())
}

/// Dispatches the newest delivery of a pull request, in which it is as it is now. `before`: what the backend has got.
async fn dispatch_newest(
    relay: &Relay,
    entry: &AllowlistEntry,
    (before, pull): (&Dispatch, &PullRecord),
    id: &str,
) -> Result<(), TaskError> {
    let (store, now) = (relay.store.as_ref(), relay.now());
    let key = state_records::delivery_key(id);
    let known: Versioned<DeliveryRecord> = read_record(store, key).await?;
    let Some(mut delivery) = known.value.clone() else { return Ok(()) };
    let key = state_records::dispatch_key(id, &entry.repo);
    let unsent: Versioned<Dispatch> = read_record(store, key).await?;
    if unsent.value.as_ref().is_some_and(Dispatch::expects_report) {
        return Ok(());
    }
    let mut dispatch = as_it_is_now(entry, (before, pull), &delivery, now);
    let mut batch = WriteBatch::default();
    if now < delivery.received_at + limits::BODY_RETENTION {
        batch.tasks.push(TaskKind::dispatch(&dispatch).task(now));
    } else {
        let text =
            "the event's body has expired: push a commit, or close and reopen the pull request";
        (dispatch.status, dispatch.last_error) = (DispatchStatus::Dead, Some(text.to_owned()));
        record_dispatch_change(relay, &mut batch, &dispatch);
    }
    if !delivery.targets.contains(&entry.repo) {
        delivery.targets.push(entry.repo.clone());
    }
    head::add_to_commit(relay, &mut batch, &dispatch);
    batch.update(&known, &delivery, relay.expiry());
    batch.update(&unsent, &dispatch, relay.expiry());
    batch.tasks.push(TaskKind::check_run(&dispatch, None).task(now));
    match relay.commit(batch).await? {
        CommitOutcome::Done => Ok(()),
        _ => Err(TaskError::retry("the delivery or its dispatch was changed in the meantime")),
    }
}

fn as_it_is_now(
    entry: &AllowlistEntry,
    (before, pull): (&Dispatch, &PullRecord),
    delivery: &DeliveryRecord,
    now: Timestamp,
) -> Dispatch {
    let is_elsewhere = pull.goes_to_another_branch_than(before);
    let action = if is_elsewhere {
        PullRequestAction::BaseChanged
    } else {
        PullRequestAction::ReadyForReview
    };
    Dispatch {
        delivery: delivery.id.clone(),
        action: Some(action),
        // Which files are changed against the other branch isn't known.
        base_sha: before.base_sha.clone().filter(|_| !is_elsewhere),
        base_branch: pull.base_branch.clone().or_else(|| before.base_branch.clone()),
        labels: pull.labels.clone(),
        // After what the backend has got, and before the pull request's next event.
        order: delivery.received_at.as_millisecond().max(before.order + 1),
        is_draft: !pull.is_ready,
        ..queued_for(entry, before, now)
    }
}
