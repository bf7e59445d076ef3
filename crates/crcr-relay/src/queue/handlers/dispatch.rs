//! Sends an event to one downstream repository, and records that it was sent.

use crcr_domain::dispatch::{Dispatch, DispatchStatus};
use crcr_domain::{CheckRunPolicy, RepoName};
use crcr_github::Error;
use crcr_github::app::Target;
use crcr_store::{Add, Batch, Commit, How, Read, StoreError, Task, decode, read};

use crate::admin::repositories::{self, Pin};
use crate::queue::task::{Fail, Outcome, Work};
use crate::relay::Relay;
use crate::webhook::payload;
use crate::{limits, state_records};

/// Sends a dispatch that is still queued; anything else is done already.
pub async fn run(
    relay: &Relay,
    task: &Task,
    delivery: &str,
    repo: &RepoName,
) -> Result<Outcome, Fail> {
    let pin = state_records::pin(&relay.config.upstream, repo);
    let keys = [state_records::dispatch(delivery, repo), state_records::body(delivery), pin];
    let found = relay.store.get(&keys).await?;
    let [record, body, pin] = <[_; 3]>::try_from(found).expect("three keys");
    let [key, body_key, pin_key] = keys;
    let pin: Read<Pin> = decode(pin_key, pin)?;
    let known: Read<Dispatch> = decode(key, record)?;
    let queued = known.value.as_ref().filter(|dispatch| dispatch.status == DispatchStatus::Queued);
    let Some(dispatch) = queued else {
        return Ok(Outcome::Done);
    };
    let Some(body) = body else {
        return Err(Fail::permanent("the delivery's body has expired"));
    };
    let body = state_records::unpack(&body_key, &body.value)?;
    let token = relay.keys.sign(dispatch);
    let payload = payload::build(
        dispatch.event.as_str(),
        delivery,
        &body,
        token,
        relay.config.callback_url(),
    )
    .map_err(Fail::permanent)?;
    let pinned = pin.value.as_ref().map(|pin| pin.repository_id);
    match relay.app.dispatch(repo.as_str(), pinned, dispatch.event.as_str(), &payload).await {
        Ok(target) => {
            sent(relay, task, known, &target).await?;
            if pinned.is_none()
                && let Err(error) = repositories::pin(relay, repo, &target).await
            {
                tracing::warn!(%repo, %error, "the next dispatch pins the repository's number");
            }
            Ok(Outcome::Settled)
        }
        Err(error @ Error::OtherRepository { found, .. }) => {
            repositories::refuse(relay, &pin, found, "dispatch").await?;
            let text = format!(
                "{error}; not sent until an operator confirms it: `crcr relay repository confirm \
                 {repo}`"
            );
            not_sent(relay, task, known, &DispatchStatus::RepositoryChanged, &text).await
        }
        Err(
            error
            @ (Error::NotInstalled(_) | Error::Suspended(_) | Error::MissingPermission { .. }),
        ) => {
            let text = error.to_string();
            tracing::warn!(delivery, %repo, error = text, "a target can't be reached");
            not_sent(relay, task, known, &DispatchStatus::Unreachable, &text).await
        }
        Err(error) => Err(error.into()),
    }
}

/// Records a state that only an operator ends.
async fn not_sent(
    relay: &Relay,
    task: &Task,
    known: Read<Dispatch>,
    status: &DispatchStatus,
    why: &str,
) -> Result<Outcome, Fail> {
    change(relay, task, known, How::Done, |dispatch| {
        dispatch.tries += 1;
        dispatch.last_error = Some(why.to_owned());
        if dispatch.status == DispatchStatus::Queued {
            dispatch.status = status.clone();
        }
    })
    .await?;
    Ok(Outcome::Settled)
}

/// Records that GitHub took it, even when it was superseded in the meantime.
async fn sent(
    relay: &Relay,
    task: &Task,
    known: Read<Dispatch>,
    target: &Target,
) -> Result<(), StoreError> {
    let at = relay.now();
    let dispatch = change(relay, task, known, How::Done, |dispatch| {
        dispatch.status = DispatchStatus::Sent { at };
        dispatch.tries += 1;
        dispatch.repository_id = Some(target.repository_id);
        dispatch.default_branch = Some(target.default_branch.clone());
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

/// Records a failed try, and the end of all tries.
pub async fn failed(
    relay: &Relay,
    task: &Task,
    delivery: &str,
    repo: &RepoName,
    how: How,
    error: &str,
    dead: bool,
) -> Result<(), StoreError> {
    let known = read(relay.store.as_ref(), state_records::dispatch(delivery, repo)).await?;
    change(relay, task, known, how, |dispatch| {
        dispatch.tries += 1;
        dispatch.last_error = Some(error.to_owned());
        if dead && dispatch.status == DispatchStatus::Queued {
            dispatch.status = DispatchStatus::Dead;
        }
    })
    .await?;
    Ok(())
}

/// Changes the record and settles the task in one step, with what follows from the change. `known`
/// is the record as it was read last.
async fn change(
    relay: &Relay,
    task: &Task,
    mut known: Read<Dispatch>,
    how: How,
    change: impl Fn(&mut Dispatch),
) -> Result<Option<Dispatch>, StoreError> {
    for _ in 0..limits::CONFLICTS {
        let mut batch = Batch { settle: Some(task.settle(how.clone())), ..Batch::default() };
        let changed = known.value.clone().map(|mut dispatch| {
            change(&mut dispatch);
            dispatch
        });
        if let Some(dispatch) = &changed {
            batch.update(&known, dispatch, relay.expiry());
            let before = known.value.as_ref().map(|before| &before.status);
            if before != Some(&dispatch.status) {
                relay.note_dispatch(&mut batch, dispatch);
                follow(relay, dispatch, &mut batch);
            }
        }
        match relay.commit(batch).await? {
            Commit::Done => return Ok(changed),
            Commit::LeaseLost => {
                tracing::warn!(key = task.key, "its lease has ended: another worker's end counts");
                return Ok(None);
            }
            Commit::Conflict | Commit::Limited(_) => {}
        }
        known = read(relay.store.as_ref(), known.key).await?;
    }
    Err(StoreError::Unavailable("a dispatch changes all the time".to_owned()))
}

/// Somebody looks whether it starts, and the check run follows.
fn follow(relay: &Relay, dispatch: &Dispatch, batch: &mut Batch) {
    let now = relay.now();
    if let Some(sent_at) = dispatch.sent_at()
        && dispatch.expects_report()
    {
        let due = now + relay.config.never_started_after;
        batch.tasks.push(Work::sweep(dispatch).task(relay, due));
        if dispatch.level.check_run() != CheckRunPolicy::Never {
            batch.add.push(Add {
                set: state_records::sent_to(&dispatch.repo),
                member: dispatch.delivery.clone(),
                score: sent_at.as_millisecond(),
                expires_at: now + limits::KEEP_SENDS,
            });
        }
    }
    if dispatch.has_check_run_when_dispatched(&relay.config.interest.label_prefix) {
        batch.tasks.push(Work::check_run(dispatch, None).task(relay, now));
    }
}
