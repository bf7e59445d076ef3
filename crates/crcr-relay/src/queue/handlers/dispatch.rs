//! Sends an event to one downstream repository, and records that it was sent.

use crcr_domain::RepoName;
use crcr_domain::checks::proof::ProofStatus;
use crcr_domain::protocol::dispatch::{Dispatch, DispatchStatus};
use crcr_domain::protocol::event::EventName;
use crcr_github::GithubError;
use crcr_github::dispatches::AcceptedDispatch;
use crcr_store::{
    CommitOutcome, LeasedTask, SetInsert, StoreError, TaskOutcome, Versioned, WriteBatch,
    decode_record,
};
use jiff::Timestamp;

use super::head;
use crate::probes::backend_file::{self, BackendFile};
use crate::probes::dispatch_filter::{self, FilterDecision, PullRequestTurn};
use crate::queue::record_dispatch_change;
use crate::queue::task_kind::{TaskDone, TaskError, TaskKind};
use crate::relay::Relay;
use crate::repository_pins::{self, Pin};
use crate::restore::RestoreRecord;
use crate::state_records::{self, DeliveryRecord, JobRecord};
use crate::webhook::payload::{self, ClientPayload, ProbePayload};
use crate::{breaker, limits};

/// Sends a dispatch that is still queued.
pub(crate) async fn run(
    relay: &Relay,
    task: &LeasedTask,
    delivery: &str,
    repo: &RepoName,
) -> Result<TaskDone, TaskError> {
    let keys = [
        state_records::dispatch_key(delivery, repo),
        state_records::pin_key(&relay.config.upstream, repo),
        state_records::body_key(delivery),
        state_records::reduced_body_key(delivery),
        state_records::delivery_key(delivery),
        backend_file::key(relay, repo),
        state_records::restore_key(),
    ];
    let found = relay.store.records(&keys).await?;
    let [record, pin, body, reduced_body, event, file, restore] =
        <[_; 7]>::try_from(found).expect("seven keys");
    let [dispatch_key, pin_key, body_key, reduced_body_key, event_key, file_key, restore_key] =
        keys;
    let pin: Versioned<Pin> = decode_record(pin_key, pin)?;
    let read: Versioned<Dispatch> = decode_record(dispatch_key, record)?;
    let queued = read.value.as_ref().filter(|dispatch| dispatch.status == DispatchStatus::Queued);
    let Some(dispatch) = queued else {
        if let Some(dispatch @ Dispatch { status: DispatchStatus::Superseded { .. }, .. }) =
            &read.value
        {
            relay.traces.dispatch_ended(dispatch, relay.now());
        }
        return Ok(TaskDone::Finished);
    };
    let restore: Versioned<RestoreRecord> = decode_record(restore_key, restore)?;
    if let Some(until) = restore.value.and_then(|restore| restore.holds_until(dispatch))
        && relay.now() < until
        // One that is further ahead was written by a wrong clock.
        && until <= relay.now() + limits::RESTORE_PAUSE + limits::CLOCK_BACK
    {
        return Ok(TaskDone::RunAgain(until));
    }
    let event: Versioned<DeliveryRecord> = decode_record(event_key, event)?;
    if let Some(by) = event.value.and_then(|event| event.superseded_by)
        && !dispatch.is_asked_for
    {
        // The task that cancels all of them hasn't come to this one yet.
        return record_superseded(relay, task, read, by).await;
    }
    let file: Versioned<BackendFile> = decode_record(file_key, file)?;
    backend_file::refresh_if_old(relay, repo, file.value.as_ref()).await?;
    match dispatch_filter::decide(relay, dispatch, file.value.as_ref()).await? {
        FilterDecision::Send => {}
        FilterDecision::Wait(until) => {
            dispatch_filter::hold(relay, dispatch, until).await?;
            return Ok(TaskDone::RunAgain(until));
        }
        FilterDecision::LeaveOut(why) => {
            let status = DispatchStatus::LeftOut { why };
            return record_not_sent(relay, task, read, &status, why.reason()).await;
        }
    }
    match dispatch_filter::turn(relay, dispatch).await? {
        PullRequestTurn::Now => {}
        PullRequestTurn::Wait => {
            return Ok(TaskDone::RunAgain(relay.now() + limits::EARLIER_DISPATCH_WAIT));
        }
        PullRequestTurn::Overtaken { by } => return record_superseded(relay, task, read, by).await,
    }
    if breaker::withholds(relay, dispatch).await? {
        // A search would ask for the next one at once, until all runs of the day are spent.
        let waits =
            dispatch.probe.is_some() && relay.now() < dispatch.enqueued_at + limits::LONGEST_OUTAGE;
        if waits {
            return Ok(TaskDone::RunAgain(relay.now() + limits::BREAKER_TRIAL_INTERVAL));
        }
        let text = "Not dispatched: the infrastructure of this backend keeps failing, so only a trial \
                    every ten minutes is sent";
        return record_not_sent(relay, task, read, &DispatchStatus::Withheld, text).await;
    }
    let (body, reduced) = match (reduced_body, body) {
        (Some(body), _) => (state_records::unpack(&reduced_body_key, &body.value)?, Some(true)),
        (None, Some(body)) => (state_records::unpack(&body_key, &body.value)?, None),
        (None, None) => return Err(TaskError::permanent("the delivery's body has expired")),
    };
    let payload = client_payload(relay, dispatch, &body, reduced)?;
    send(relay, task, read, &pin, &payload, repo).await
}

fn client_payload(
    relay: &Relay,
    dispatch: &Dispatch,
    webhook: &[u8],
    reduced: Option<bool>,
) -> Result<ClientPayload, TaskError> {
    Ok(ClientPayload {
        event_type: dispatch.event.event_type().to_owned(),
        delivery_id: dispatch.delivery.clone(),
        payload: payload::parse(webhook).map_err(TaskError::permanent)?,
        callback_token: relay.keys.sign(dispatch),
        callback_url: relay.config.callback_url(),
        reduced,
        crcr: dispatch.probe.clone().map(|probe| ProbePayload { probe }),
    })
}

/// Sends the dispatch, and records GitHub's answer.
async fn send(
    relay: &Relay,
    task: &LeasedTask,
    read: Versioned<Dispatch>,
    pin: &Versioned<Pin>,
    payload: &ClientPayload,
    repo: &RepoName,
) -> Result<TaskDone, TaskError> {
    let pinned = pin.value.as_ref().map(|pin| pin.repository_id);
    match relay.app.dispatch(repo.as_str(), pinned, &payload.event_type, payload).await {
        Ok(sent) => {
            let recorded = record_sent(relay, task, read, &sent).await;
            recorded.map_err(|error| TaskError { may_be_applied: true, ..error.into() })?;
            if pinned.is_none()
                && let Err(error) = repository_pins::pin(relay, repo, &sent.repository).await
            {
                tracing::warn!(%repo, %error, "the repository's id is pinned by the next dispatch");
            }
            Ok(TaskDone::AlreadySettled)
        }
        Err(error @ GithubError::OtherRepository { found, .. }) => {
            repository_pins::refuse(relay, pin, found, "dispatch").await?;
            let text = format!(
                "{error}; not sent until an operator confirms it: `crcr relay repository confirm \
                 {repo}`"
            );
            record_not_sent(relay, task, read, &DispatchStatus::RepositoryChanged, &text).await
        }
        Err(error) => {
            let error = TaskError::from(error);
            if !error.permanent {
                return Err(error);
            }
            // The App isn't installed, suspended or lacks a permission; the repository is archived,
            // renamed, gone or blocked. The next dispatch gets the same answer, until somebody repairs it
            // downstream: a state of the backend, and nothing that the relay has given up.
            let text = error.message;
            let delivery = &payload.delivery_id;
            tracing::warn!(delivery, %repo, error = text, "a backend can't be dispatched to");
            record_not_sent(relay, task, read, &DispatchStatus::Unreachable, &text).await
        }
    }
}

/// Records that another delivery has taken the place of this one.
async fn record_superseded(
    relay: &Relay,
    task: &LeasedTask,
    read: Versioned<Dispatch>,
    by: String,
) -> Result<TaskDone, TaskError> {
    let superseded = DispatchStatus::Superseded { by };
    change_and_settle(relay, task, read, TaskOutcome::Done, |dispatch| {
        if dispatch.status == DispatchStatus::Queued {
            dispatch.status = superseded.clone();
        }
    })
    .await?;
    Ok(TaskDone::AlreadySettled)
}

/// Records a status that stays until an operator redelivers the dispatch.
async fn record_not_sent(
    relay: &Relay,
    task: &LeasedTask,
    read: Versioned<Dispatch>,
    status: &DispatchStatus,
    reason: &str,
) -> Result<TaskDone, TaskError> {
    change_and_settle(relay, task, read, TaskOutcome::Done, |dispatch| {
        dispatch.tries += 1;
        dispatch.last_error = Some(reason.to_owned());
        if dispatch.status == DispatchStatus::Queued {
            dispatch.status = status.clone();
        }
    })
    .await?;
    Ok(TaskDone::AlreadySettled)
}

/// Records that GitHub accepted the dispatch, even if it was superseded in the meantime.
async fn record_sent(
    relay: &Relay,
    task: &LeasedTask,
    read: Versioned<Dispatch>,
    sent: &AcceptedDispatch,
) -> Result<(), StoreError> {
    let at = relay.now();
    let target = &sent.repository;
    let dispatch = change_and_settle(relay, task, read, TaskOutcome::Done, |dispatch| {
        dispatch.status = DispatchStatus::Sent { at };
        dispatch.tries += 1;
        dispatch.repository_id = Some(target.repository_id);
        dispatch.default_branch = Some(target.default_branch.clone());
        dispatch.accepted_at = Some(sent.accepted_at.unwrap_or(at));
        dispatch.are_runs_known = false;
    })
    .await?;
    if let Some(dispatch) = dispatch {
        let seconds = at.duration_since(dispatch.enqueued_at).as_secs_f64();
        let Dispatch { delivery, repo, .. } = dispatch;
        relay.metrics.dispatched(seconds.max(0.0));
        tracing::info!(delivery, %repo, seconds, "dispatched");
    }
    Ok(())
}

/// Records a failed try. If the task is dead, the dispatch is, too.
pub(crate) async fn record_failure(
    relay: &Relay,
    task: &LeasedTask,
    (delivery, repo): (&str, &RepoName),
    outcome: TaskOutcome,
    error: &TaskError,
) -> Result<(), StoreError> {
    let key = state_records::dispatch_key(delivery, repo);
    let read: Versioned<Dispatch> = relay.read_record(key).await?;
    // If GitHub has accepted it all the same, it has started runs.
    if let Some(dispatch) = read.value.as_ref().filter(|_| error.may_be_applied) {
        let batch = sent_batch(relay, dispatch, relay.now(), false);
        relay.commit(batch).await?;
    }
    let dead = matches!(outcome, TaskOutcome::Dead { .. });
    change_and_settle(relay, task, read, outcome, |dispatch| {
        dispatch.tries += 1;
        dispatch.last_error = Some(error.message.clone());
        if dead && dispatch.status == DispatchStatus::Queued {
            dispatch.status = DispatchStatus::Dead;
        }
    })
    .await?;
    Ok(())
}

/// Changes the dispatch and settles the task in one batch, together with the tasks that follow from
/// the change. Returns the dispatch as it is now, or `None` when there is none or the lease is lost.
async fn change_and_settle(
    relay: &Relay,
    task: &LeasedTask,
    mut read: Versioned<Dispatch>,
    outcome: TaskOutcome,
    change: impl Fn(&mut Dispatch),
) -> Result<Option<Dispatch>, StoreError> {
    for _ in 0..limits::CONFLICT_TRIES {
        let settlement = Some(task.settle(outcome.clone()));
        let mut batch = WriteBatch { settlement, ..WriteBatch::default() };
        let mut changed = read.value.clone();
        if let Some(dispatch) = &mut changed {
            let before = dispatch.status.clone();
            change(dispatch);
            // A report that comes before the dispatch is recorded as sent changes its record.
            let mut proven = if dispatch.sent_at().is_some() && read.version > 1 {
                head::jobs(relay, &dispatch.delivery, &dispatch.repo).await?
            } else {
                vec![]
            };
            proven.retain(|job| head::proof(dispatch, job) == ProofStatus::Proven);
            dispatch.is_answered |= !proven.is_empty();
            batch.update(&read, dispatch, relay.expiry());
            if before != dispatch.status {
                record_dispatch_change(relay, &mut batch, dispatch);
                add_follow_up_tasks(relay, dispatch, &proven, &mut batch);
            }
        }
        match relay.commit(batch).await? {
            CommitOutcome::Done => {
                if let Some(dispatch) = &changed
                    && dispatch.status != DispatchStatus::Queued
                {
                    relay.traces.dispatch_ended(dispatch, relay.now());
                }
                return Ok(changed);
            }
            CommitOutcome::LeaseLost => {
                tracing::warn!(key = task.key, "its lease has ended: another worker settles it");
                return Ok(None);
            }
            CommitOutcome::Conflict | CommitOutcome::Limited(_) => {}
        }
        read = relay.read_record(read.key).await?;
    }
    Err(StoreError::Unavailable("a dispatch changed in every try to change it".to_owned()))
}

/// Writes down that GitHub accepted a dispatch at this time by its clock, or may have, so that the runs of others
/// aren't taken for its own. Below L2 nobody looks at runs.
fn sent_batch(relay: &Relay, dispatch: &Dispatch, at: Timestamp, is_certain: bool) -> WriteBatch {
    let mut batch = WriteBatch::default();
    if dispatch.level.shows_results() {
        let send = dispatch.send_at(at, is_certain);
        batch.set_inserts.push(SetInsert {
            set: state_records::sends_key(&dispatch.repo, at.as_second().div_euclid(60)),
            member: serde_json::to_string(&send).expect("a dispatch is always JSON"),
            score: at.as_millisecond(),
            expires_at: relay.expiry(),
        });
    }
    batch
}

/// The sweep that checks whether a sent dispatch starts, or its runs if `proven` jobs have reported already, and
/// the updates of its check runs.
fn add_follow_up_tasks(
    relay: &Relay,
    dispatch: &Dispatch,
    proven: &[JobRecord],
    batch: &mut WriteBatch,
) {
    let now = relay.now();
    if dispatch.probe.is_some() && dispatch.sent_at().is_none() {
        // It won't run, which is an answer, too.
        let (delivery, repo) = (dispatch.delivery.clone(), dispatch.repo.clone());
        batch.tasks.push(TaskKind::ProbeEnded { delivery, repo }.task(now));
    }
    if dispatch.sent_at().is_some() && dispatch.expects_report() {
        let overdue = relay.config.never_started_after;
        let due = now + if proven.is_empty() { overdue } else { overdue.min(limits::RUN_POLL) };
        batch.tasks.push(TaskKind::sweep(dispatch).task(due));
    }
    if dispatch.sent_at().is_some() {
        let at = dispatch.accepted_at.unwrap_or(now);
        batch.set_inserts.extend(sent_batch(relay, dispatch, at, true).set_inserts);
    }
    // A label may have asked for the check run after the dispatch was made. And if the pull request was closed, others at
    // the commit don't wait for it any more.
    if dispatch.event != EventName::Landed && head::has_check_runs(relay, dispatch) {
        batch.tasks.push(TaskKind::check_run(dispatch, None).task(now));
    }
    for job in proven {
        head::add_proven_job(relay, dispatch, (&job.id, job.pipeline.as_deref()), batch);
    }
}
