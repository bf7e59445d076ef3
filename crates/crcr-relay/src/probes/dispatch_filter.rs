//! Whether a dispatch goes out now, later, or not at all: what the backend's file says, and what the backend has got already.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use crcr_domain::probes::{DispatchFilter, LeftOut, PathFilter};
use crcr_domain::protocol::dispatch::{Dispatch, DispatchStatus};
use crcr_domain::protocol::event::{EventName, PullRequestAction};
use crcr_store::{
    BudgetCharge, CommitOutcome, StoreError, StoreKey, TaskState, Versioned, WriteBatch,
};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan as _};
use tokio::sync::{Mutex, MutexGuard};

use super::backend_file::BackendFile;
use super::probe;
use crate::limits;
use crate::queue::task_kind::TaskKind;
use crate::relay::Relay;
use crate::state_records::{self, PullRecord};

pub(crate) enum FilterDecision {
    Send,
    Wait(Timestamp),
    LeaveOut(LeftOut),
}

/// When a dispatch is sent among those of its pull request.
pub(crate) enum PullRequestTurn {
    Now,
    /// After an earlier one that is on its way.
    Wait,
    /// Not any more: the backend has got a later delivery, as GitHub refused this one until then.
    Overtaken {
        by: String,
    },
}

/// Lets one task at a time ask for the changed files of a head; the others find what it stored. Two heads with the same
/// slot wait for each other, which is harmless.
pub(crate) struct ChangedFilesTurns([Mutex<()>; 64]);

impl Default for ChangedFilesTurns {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Mutex::default()))
    }
}

impl ChangedFilesTurns {
    async fn wait(&self, key: &StoreKey) -> MutexGuard<'_, ()> {
        let mut hasher = DefaultHasher::new();
        key.as_str().hash(&mut hasher);
        let slot = usize::try_from(hasher.finish() % 64).unwrap_or_default();
        self.0[slot].lock().await
    }
}

/// Writes down that a dispatch is held back. What is measured from its event begins when it could be sent.
pub(crate) async fn hold(
    relay: &Relay,
    dispatch: &Dispatch,
    until: Timestamp,
) -> Result<(), StoreError> {
    let key = state_records::dispatch_key(&dispatch.delivery, &dispatch.repo);
    let held = relay.update(key, |known: &Versioned<Dispatch>| {
        let queued = known.value.as_ref().filter(|one| one.status == DispatchStatus::Queued);
        let Some(queued) = queued else { return ((), None) };
        let held = Dispatch { held_until: Some(until), enqueued_at: until, ..queued.clone() };
        let mut batch = WriteBatch::default();
        batch.update(known, &held, relay.expiry());
        if held.has_check_run_when_dispatched(&relay.config.event_filter.label_prefix) {
            batch.tasks.push(TaskKind::check_run(&held, None).task(relay.now()));
        }
        ((), Some(batch))
    });
    held.await
}

/// Decides about a queued dispatch. What costs nothing comes first, and what asks GitHub only for heads that stay.
pub(crate) async fn decide(
    relay: &Relay,
    dispatch: &Dispatch,
    file: Option<&BackendFile>,
) -> Result<FilterDecision, StoreError> {
    let Some(file) = file.filter(|_| !dispatch.is_asked_for && dispatch.probe.is_none()) else {
        return Ok(FilterDecision::Send);
    };
    let (filter, event) = (&file.config.dispatch, dispatch.filtered_event());
    let ends_run = dispatch.action == Some(PullRequestAction::Closed)
        && was_sent_a_head(relay, dispatch).await?;
    if let Some(why) = filter.leaves_out(event)
        && (why != LeftOut::Draft || !(ends_run || is_ready_meanwhile(relay, dispatch).await?))
    {
        return Ok(FilterDecision::LeaveOut(why));
    }
    let quiet = filter.quiet_seconds(event);
    let quiet = Duration::from_secs(quiet.unsigned_abs());
    // The worker that held it back may have stopped before its task was put off.
    let until = match dispatch.held_until {
        // Its backend may have come to L4 while it waited for the next day.
        Some(held) if is_required(relay, dispatch) => {
            held.min(accepted_at(relay, dispatch) + quiet)
        }
        Some(held) => held,
        None => dispatch.enqueued_at + quiet,
    };
    // Without a quiet time nothing is held, though it was accepted by a replica whose clock is ahead.
    let is_held = dispatch.held_until.is_some() || !quiet.is_zero();
    if is_held && relay.now() < until {
        return Ok(FilterDecision::Wait(until));
    }
    let was_held = dispatch.held_until.is_some() && event.has_head;
    if was_held && is_closed(relay, dispatch).await? {
        return Ok(FilterDecision::LeaveOut(LeftOut::Closed));
    }
    let repeats_head = matches!(
        dispatch.action,
        Some(PullRequestAction::ReadyForReview | PullRequestAction::BaseChanged)
    );
    let is_repeated = was_held || repeats_head;
    if is_repeated && goes_out_otherwise(relay, dispatch).await? {
        return Ok(FilterDecision::LeaveOut(LeftOut::SameHead));
    }
    if !ends_run
        && let Some(paths) = filter.paths_of(event)
        && !concerns(relay, dispatch, paths).await?
    {
        return Ok(FilterDecision::LeaveOut(LeftOut::Paths));
    }
    admit(relay, dispatch, filter).await
}

/// Whether the backend blocks merges now.
fn is_required(relay: &Relay, dispatch: &Dispatch) -> bool {
    let list = relay.allowlist.get();
    let entry = list.as_ref().and_then(|list| list.get(&dispatch.repo));
    entry.map_or(dispatch.level, |entry| entry.level).blocks_merge()
}

/// When the event came. What is measured from [`Dispatch::enqueued_at`] may begin later.
fn accepted_at(relay: &Relay, dispatch: &Dispatch) -> Timestamp {
    Timestamp::from_millisecond(dispatch.order).unwrap_or_else(|_| relay.now())
}

/// What is known of the pull request of a dispatch.
async fn pull_of(relay: &Relay, dispatch: &Dispatch) -> Result<Option<PullRecord>, StoreError> {
    let Some(number) = dispatch.pull_request else { return Ok(None) };
    let key = state_records::pull_request_key(&relay.config.upstream, number);
    Ok(relay.read_record::<PullRecord>(key).await?.value)
}

/// Finds out whether a dispatch may be sent before or after others of its pull request. A backend takes what comes last for
/// the newest, and cancels the run of what came before.
pub(crate) async fn turn(
    relay: &Relay,
    dispatch: &Dispatch,
) -> Result<PullRequestTurn, StoreError> {
    // What somebody asked for is sent, unless nothing is built for it: then it would only cancel a run.
    let is_wanted = dispatch.is_asked_for && dispatch.is_about_commit();
    if is_wanted || dispatch.event != EventName::PullRequest {
        return Ok(PullRequestTurn::Now);
    }
    let is_of_head = |pull: &PullRecord| pull.head_sha == dispatch.head_sha;
    let Some(pull) = pull_of(relay, dispatch).await?.filter(is_of_head) else {
        return Ok(PullRequestTurn::Now);
    };
    let mut later = later_of_pull(relay, &pull, dispatch).await?.into_iter();
    if let Some(sent) = later.find(|one| one.sent_at().is_some() && one.order > dispatch.order) {
        return Ok(PullRequestTurn::Overtaken { by: sent.delivery });
    }
    Ok(match is_earlier_on_its_way(relay, &pull, dispatch).await? {
        true => PullRequestTurn::Wait,
        false => PullRequestTurn::Now,
    })
}

/// Whether a worker may be sending the backend an earlier dispatch of the pull request at this moment: GitHub could get it
/// after this one.
async fn is_earlier_on_its_way(
    relay: &Relay,
    pull: &PullRecord,
    dispatch: &Dispatch,
) -> Result<bool, StoreError> {
    let of_older_heads = pull.older.iter().flat_map(|older| &older.deliveries);
    let of_head = pull.deliveries.iter().take_while(|id| **id != dispatch.delivery);
    let earlier: Vec<&String> = of_older_heads.chain(of_head).collect();
    for delivery in earlier.into_iter().rev().take(limits::EARLIER_DELIVERIES) {
        let (delivery, repo) = (delivery.clone(), dispatch.repo.clone());
        let key = TaskKind::Dispatch { delivery, repo, is_probe: false }.key();
        let leased = relay.store.find_task(key.as_str(), TaskState::Leased).await?;
        // A worker that has stopped keeps its task leased until its lease ends.
        if leased.is_some_and(|task| relay.now() < task.due_at) {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn is_closed(relay: &Relay, dispatch: &Dispatch) -> Result<bool, StoreError> {
    Ok(pull_of(relay, dispatch).await?.is_some_and(|pull| pull.is_closed))
}

/// Whether the backend has got the same head with another event of the pull request, or will get it with a later one.
/// Two that wait can't leave each other out, because only the later one counts. What was sent doesn't count if the
/// backend was told afterwards that the pull request was closed or had another head: then it may have cancelled the
/// run. A required check is also about the branch that the head is merged into, and about a pull request that is ready
/// for review: what was sent last has to be about these, too.
async fn goes_out_otherwise(relay: &Relay, dispatch: &Dispatch) -> Result<bool, StoreError> {
    let is_of_head = |pull: &PullRecord| pull.head_sha == dispatch.head_sha;
    let Some(pull) = pull_of(relay, dispatch).await?.filter(is_of_head) else { return Ok(false) };
    let others = others_of_pull(relay, &pull, dispatch).await?;
    let is_required = is_required(relay, dispatch);
    let is_same = |other: &Dispatch| {
        let is_for_draft = other.is_draft && !dispatch.is_draft;
        other.head_sha == dispatch.head_sha
            && other.is_about_commit()
            && !(is_required && is_for_draft)
    };
    let is_sent = |other: &Dispatch| matches!(other.status, DispatchStatus::Sent { .. });
    let is_elsewhere =
        |other: &Dispatch| is_required && other.goes_to_another_branch_than(dispatch);
    let outdates = |other: &Dispatch| is_sent(other) && (!is_same(other) || is_elsewhere(other));
    let others_until = others.iter().filter(|other| outdates(other)).map(|other| other.order).max();
    let is_outdated = is_required && dispatch.action == Some(PullRequestAction::BaseChanged);
    let outdated_until = others_until.max(is_outdated.then_some(dispatch.order));
    let mut same = others.iter().filter(|other| is_same(other));
    Ok(same.any(|other| match other.status {
        DispatchStatus::Sent { .. } => Some(other.order) > outdated_until,
        DispatchStatus::Queued => other.order > dispatch.order,
        _ => false,
    }))
}

/// The backend's other dispatches of the pull request.
async fn others_of_pull(
    relay: &Relay,
    pull: &PullRecord,
    dispatch: &Dispatch,
) -> Result<Vec<Dispatch>, StoreError> {
    let older = pull.older.iter().flat_map(|older| &older.deliveries);
    let others = pull.deliveries.iter().chain(older).filter(|id| **id != dispatch.delivery);
    let keys = others.map(|id| state_records::dispatch_key(id, &dispatch.repo)).collect();
    dispatches_with(relay, keys).await
}

/// The backend's dispatches of the pull request's head after this one, the newest first.
async fn later_of_pull(
    relay: &Relay,
    pull: &PullRecord,
    dispatch: &Dispatch,
) -> Result<Vec<Dispatch>, StoreError> {
    let later = pull.deliveries.iter().rev().take_while(|id| **id != dispatch.delivery);
    let keys = later.map(|id| state_records::dispatch_key(id, &dispatch.repo)).collect();
    dispatches_with(relay, keys).await
}

async fn dispatches_with(relay: &Relay, keys: Vec<StoreKey>) -> Result<Vec<Dispatch>, StoreError> {
    let known = relay.read_records::<Dispatch>(keys).await?;
    Ok(known.into_iter().filter_map(|read| read.value).collect())
}

/// Whether the backend was sent a head of the pull request. A run of it may go on, and learns that the pull request was
/// closed, even if the backend takes no drafts and the pull request is one now, or its newest head concerns others.
async fn was_sent_a_head(relay: &Relay, dispatch: &Dispatch) -> Result<bool, StoreError> {
    let Some(pull) = pull_of(relay, dispatch).await? else { return Ok(false) };
    let others = others_of_pull(relay, &pull, dispatch).await?;
    Ok(others.iter().any(|other| other.is_about_commit() && other.sent_at().is_some()))
}

/// Whether a draft has become ready for review, and the event that said so isn't dispatched to the backend because its
/// file wasn't known then.
async fn is_ready_meanwhile(relay: &Relay, dispatch: &Dispatch) -> Result<bool, StoreError> {
    let is_of_head = |pull: &PullRecord| pull.is_ready && pull.head_sha == dispatch.head_sha;
    let Some(pull) = pull_of(relay, dispatch).await?.filter(is_of_head) else { return Ok(false) };
    Ok(later_of_pull(relay, &pull, dispatch).await?.is_empty())
}

/// Whether a changed file concerns the backend. If the files can't be had, it does.
async fn concerns(
    relay: &Relay,
    dispatch: &Dispatch,
    paths: &PathFilter,
) -> Result<bool, StoreError> {
    let Some(base_sha) = &dispatch.base_sha else { return Ok(true) };
    let key = state_records::changed_files_key(base_sha, &dispatch.head_sha);
    // Many backends ask for the files of one head at the same time.
    let _turn = relay.changed_files.wait(&key).await;
    let known: Versioned<Option<Vec<String>>> = relay.read_record(key.clone()).await?;
    let files = match known.value {
        Some(files) => files,
        None => {
            let (upstream, head) = (relay.config.upstream.as_str(), &dispatch.head_sha);
            let files = match relay.app.changed_files(upstream, base_sha, head).await {
                Ok(files) => files.filter(|files| {
                    files.iter().map(String::len).sum::<usize>() <= limits::CHANGED_FILES_BYTES
                }),
                Err(error) => {
                    tracing::warn!(head, %error, "the changed files aren't known: all get it");
                    return Ok(true);
                }
            };
            let mut batch = WriteBatch::default();
            batch.set(key, &files, relay.expiry());
            relay.commit(batch).await?;
            files
        }
    };
    Ok(files.is_none_or(|files| paths.takes_any(files.iter().map(String::as_str))))
}

/// Takes a place among the dispatches of the day. Required checks, and what cancels a run, need none.
async fn admit(
    relay: &Relay,
    dispatch: &Dispatch,
    filter: &DispatchFilter,
) -> Result<FilterDecision, StoreError> {
    let Some(capacity) = filter.max_per_day.filter(|_| dispatch.is_about_commit()) else {
        return Ok(FilterDecision::Send);
    };
    if is_required(relay, dispatch) {
        return Ok(FilterDecision::Send);
    }
    let (now, repo) = (relay.now(), &dispatch.repo);
    // A dispatch that is tried again has its place already.
    let own = state_records::admitted_key(&dispatch.delivery, repo);
    let mut charges = vec![probe::charge_of_day(relay, "dispatches", &repo.key(), capacity)];
    if dispatch.pull_request.is_some() {
        // Nobody's pull requests can use up the day of everybody else.
        charges.push(probe::author_share(relay, "dispatches", capacity, dispatch));
    }
    for charge in &mut charges {
        charge.first_of = Some(own.clone());
    }
    charges.push(BudgetCharge {
        bucket: own,
        capacity: u64::from(u32::MAX),
        per_minute: 0.0,
        cost: 1,
        first_of: None,
    });
    match relay.commit(WriteBatch { charges, ..WriteBatch::default() }).await? {
        CommitOutcome::Limited(_)
            if now >= accepted_at(relay, dispatch) + limits::WAIT_FOR_PLACE =>
        {
            Ok(FilterDecision::LeaveOut(LeftOut::MaxPerDay))
        }
        CommitOutcome::Limited(_) => Ok(FilterDecision::Wait(next_day(now, &dispatch.delivery))),
        _ => Ok(FilterDecision::Send),
    }
}

/// The next day in UTC, and for each delivery another second of its first minutes.
fn next_day(now: Timestamp, delivery: &str) -> Timestamp {
    let mut hasher = DefaultHasher::new();
    delivery.hash(&mut hasher);
    let spread = Duration::from_secs(1 + hasher.finish() % 300);
    let midnight = now.to_zoned(TimeZone::UTC).date().saturating_add(1.day());
    let midnight = midnight.to_zoned(TimeZone::UTC).map(|at| at.timestamp());
    midnight.unwrap_or(now + limits::WAIT_FOR_PLACE) + spread
}
