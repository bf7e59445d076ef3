//! A backend that has another name in the allowlist: its required check has that name, too, and the open heads got none
//! of it.

use crcr_domain::protocol::dispatch::Dispatch;
use crcr_domain::protocol::event::EventName;
use crcr_domain::{AllowlistEntry, RepoName};
use crcr_store::{CommitOutcome, Versioned, WriteBatch};
use jiff::Timestamp;

use super::head::{self, Head};
use crate::limits;
use crate::queue::task_kind::{TaskDone, TaskError, TaskKind};
use crate::relay::Relay;
use crate::repository_pins::{self, Pin};
use crate::state_records::{self, DeliveryRecord};
use crate::webhook::merge_groups;

/// Pins the number of a backend whose checks are required, by which its earlier names are known.
pub(crate) async fn pin(relay: &Relay, repo: &RepoName) -> Result<(), TaskError> {
    if required_entry(relay, repo)?.is_none() || number(relay, repo).await?.is_some() {
        return Ok(());
    }
    match relay.app.dispatch_target(repo.as_str()).await {
        Ok(target) => Ok(repository_pins::pin(relay, repo, &target).await?),
        Err(error) => {
            let error = TaskError::from(error);
            // The App isn't installed, for example: then nothing can be dispatched.
            if error.permanent { Ok(()) } else { Err(error) }
        }
    }
}

/// Dispatches a head that the backend got under an earlier name.
pub(crate) async fn dispatch_again(
    relay: &Relay,
    repo: &RepoName,
    head_sha: &str,
) -> Result<TaskDone, TaskError> {
    let Some(entry) = required_entry(relay, repo)? else { return Ok(TaskDone::Finished) };
    let Some(number) = number(relay, repo).await? else { return Ok(TaskDone::Finished) };
    for name in relay.pinned_names.of(relay, number).await? {
        let Some(head) = Head::read(relay, &name, head_sha, None).await? else { continue };
        let is_wanted = |one: &&Dispatch| {
            one.may_have_check_runs() && entry.takes(&one.event) && !head.is_left_by_pull_of(one)
        };
        if let Some(newest) = head.dispatches().rfind(is_wanted) {
            return dispatch_as(relay, &entry, newest).await;
        }
    }
    Ok(TaskDone::Finished)
}

/// The entry of a backend whose checks are required.
pub(crate) fn required_entry(
    relay: &Relay,
    repo: &RepoName,
) -> Result<Option<AllowlistEntry>, TaskError> {
    let allowlist = super::allowlist(relay)?;
    Ok(allowlist.get(repo).filter(|entry| entry.level.blocks_merge()).cloned())
}

async fn number(relay: &Relay, repo: &RepoName) -> Result<Option<u64>, TaskError> {
    let key = state_records::pin_key(&relay.config.upstream, repo);
    let pin: Versioned<Pin> = relay.read_record(key).await?;
    Ok(pin.value.map(|pin| pin.repository_id))
}

/// Puts the same event into the queue for the backend under its name of now, if its body is still there.
async fn dispatch_as(
    relay: &Relay,
    entry: &AllowlistEntry,
    before: &Dispatch,
) -> Result<TaskDone, TaskError> {
    let now = relay.now();
    let key = state_records::delivery_key(&before.delivery);
    let known: Versioned<DeliveryRecord> = relay.read_record(key).await?;
    let is_kept = |one: &&DeliveryRecord| now < one.received_at + limits::BODY_RETENTION;
    let Some(delivery) = known.value.as_ref().filter(is_kept) else {
        return Ok(TaskDone::Finished);
    };
    if before.event == EventName::MergeGroup && !merge_groups::is_waiting(relay, delivery).await? {
        return Ok(TaskDone::Finished);
    }
    let dispatch = queued_for(entry, before, now);
    let key = state_records::dispatch_key(&dispatch.delivery, &dispatch.repo);
    // If the allowlist had both names, it has got the event at a level that expects no report.
    let before: Versioned<Dispatch> = relay.read_record(key).await?;
    queue(relay, (&known, delivery), &before, &dispatch).await
}

/// Puts a dispatch of a known delivery into the queue. `before`: what the store has of it.
pub(crate) async fn queue(
    relay: &Relay,
    (known, delivery): (&Versioned<DeliveryRecord>, &DeliveryRecord),
    before: &Versioned<Dispatch>,
    dispatch: &Dispatch,
) -> Result<TaskDone, TaskError> {
    let now = relay.now();
    let mut delivery = delivery.clone();
    if !delivery.targets.contains(&dispatch.repo) {
        delivery.targets.push(dispatch.repo.clone());
    }
    let mut batch = WriteBatch::default();
    head::add_to_commit(relay, &mut batch, dispatch);
    batch.update(known, &delivery, relay.expiry());
    batch.update(before, dispatch, relay.expiry());
    batch.tasks.push(TaskKind::dispatch(dispatch).task(now));
    batch.tasks.push(TaskKind::check_run(dispatch, None).task(now));
    match relay.commit(batch).await? {
        CommitOutcome::Done => Ok(TaskDone::Finished),
        _ => Err(TaskError::retry("the delivery or its dispatch was changed in the meantime")),
    }
}

/// The same event for the backend as the allowlist has it now.
pub(crate) fn queued_for(entry: &AllowlistEntry, before: &Dispatch, now: Timestamp) -> Dispatch {
    let cause = (before.delivery.as_str(), before.upstream.as_str(), before.event.clone());
    Dispatch {
        action: before.action,
        pull_request: before.pull_request,
        author: before.author.clone(),
        base_sha: before.base_sha.clone(),
        base_branch: before.base_branch.clone(),
        device: entry.device.clone(),
        labels: before.labels.clone(),
        order: before.order,
        is_draft: before.is_draft,
        is_known_author: before.is_known_author,
        author_texts: before.author_texts.clone(),
        ..Dispatch::queued(cause, &before.head_sha, (entry.repo.clone(), entry.level), now)
    }
}
