//! What a backend has to test for its required check, and didn't get while its entry asked for less: merge groups, or
//! pull requests.

use crcr_domain::RepoName;
use crcr_domain::protocol::dispatch::Dispatch;
use crcr_domain::protocol::event::{self, UpstreamEvent};
use crcr_store::{Versioned, WriteBatch, read_record};

use super::head::Head;
use super::renamed_backend;
use crate::queue::task_kind::{TaskDone, TaskError, TaskKind};
use crate::relay::Relay;
use crate::state_records::{self, DeliveryRecord, PullRecord};
use crate::webhook::{merge_groups, planner};

/// The deliveries of those of these merge groups that still wait for their checks.
pub(crate) async fn of_groups(relay: &Relay, groups: &[&String]) -> Result<Vec<String>, TaskError> {
    let key = |group: &&String| state_records::merge_group_key(&relay.config.upstream, group);
    let keys = groups.iter().map(key).collect();
    let known = relay.read_records::<Option<String>>(keys).await?;
    Ok(known.into_iter().filter_map(|read| read.value.flatten()).collect())
}

/// Adds the dispatches of those deliveries that a backend whose check is required hasn't got, or at L1, where no report
/// was expected of it.
pub(crate) async fn add_lacking(
    relay: &Relay,
    repo: &RepoName,
    deliveries: Vec<String>,
    batch: &mut WriteBatch,
) -> Result<(), TaskError> {
    if renamed_backend::required_entry(relay, repo)?.is_none() {
        return Ok(());
    }
    let keys = deliveries.iter().map(|id| state_records::dispatch_key(id, repo)).collect();
    let known = relay.read_records::<Dispatch>(keys).await?;
    let lacking = deliveries.into_iter().zip(known).filter(|(_, known)| !expects_report(known));
    batch.tasks.extend(lacking.map(|(delivery, _)| {
        TaskKind::RequiredDispatch { delivery, repo: repo.clone() }.task(relay.now())
    }));
    Ok(())
}

/// Dispatches a delivery of an open head to a backend that reports nothing for the head, if its body is still there.
pub(crate) async fn run(
    relay: &Relay,
    delivery: &str,
    repo: &RepoName,
) -> Result<TaskDone, TaskError> {
    let key = state_records::delivery_key(delivery);
    let known: Versioned<DeliveryRecord> = relay.read_record(key).await?;
    let Some(record) = &known.value else { return Ok(TaskDone::Finished) };
    let key = state_records::dispatch_key(delivery, repo);
    let before: Versioned<Dispatch> = relay.read_record(key).await?;
    // A push of the same commit has no check run.
    let head = Head::read(relay, repo, &record.head_sha, None).await?;
    if expects_report(&before) || head.is_some_and(|head| head.is_shown()) {
        return Ok(TaskDone::Finished);
    }
    let Some(dispatch) = planned(relay, record, repo).await? else { return Ok(TaskDone::Finished) };
    renamed_backend::queue(relay, (&known, record), &before, &dispatch).await
}

fn expects_report(known: &Versioned<Dispatch>) -> bool {
    known.value.as_ref().is_some_and(Dispatch::expects_report)
}

/// The dispatch as the delivery would cause it by the allowlist of now. `None` if its head isn't open any more.
async fn planned(
    relay: &Relay,
    delivery: &DeliveryRecord,
    repo: &RepoName,
) -> Result<Option<Dispatch>, TaskError> {
    let Some(body) = body(relay, &delivery.id).await? else { return Ok(None) };
    let event = event::read(&delivery.event, &body, &relay.config.event_filter);
    let Ok(Some(event)) = event else { return Ok(None) };
    let (upstream, allowlist) = (&relay.config.upstream, super::allowlist(relay)?);
    let all = planner::dispatches(&event, &delivery.id, upstream, &allowlist, relay.now());
    let own = all.into_iter().find(|one| one.repo == *repo && one.level.blocks_merge());
    let Some(own) = own.filter(Dispatch::is_about_commit) else { return Ok(None) };
    let own = Dispatch { order: delivery.received_at.as_millisecond(), ..own };
    let store = relay.store.as_ref();
    match event {
        UpstreamEvent::PullRequest(pull) => {
            let key = state_records::pull_request_key(upstream, pull.number);
            let pull = read_record::<PullRecord>(store, key).await?.value;
            let pull = pull.filter(|pull| !pull.is_closed && pull.head_sha == own.head_sha);
            Ok(pull.map(|pull| Dispatch { labels: pull.labels, is_draft: !pull.is_ready, ..own }))
        }
        UpstreamEvent::MergeGroup(_) => {
            Ok(merge_groups::is_waiting(relay, delivery).await?.then_some(own))
        }
        _ => Ok(None),
    }
}

/// The webhook of a delivery, as it was stored.
async fn body(relay: &Relay, delivery: &str) -> Result<Option<Vec<u8>>, TaskError> {
    let keys = [state_records::reduced_body_key(delivery), state_records::body_key(delivery)];
    let found = relay.store.records(&keys).await?;
    let stored = keys.iter().zip(found).find_map(|(key, found)| Some((key, found?)));
    let unpacked = stored.map(|(key, body)| state_records::unpack(key, &body.value));
    Ok(unpacked.transpose()?)
}
