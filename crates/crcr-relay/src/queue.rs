//! The durable queue's workers: lease, work, settle; bounded at all and per account downstream.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rand::Rng as _;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::handlers::{self, Fail, Outcome, Work};
use crate::limits;
use crate::relay::Relay;
use crate::store::{Batch, How, Task, Want};

/// What a worker says when it stops.
struct Finished {
    lane: String,
    /// GitHub wants this lane to wait.
    pause: Option<Timestamp>,
}

/// Works until `stop`, then finishes what is under way within [`limits::GRACE`] and gives the
/// rest back.
pub async fn work(relay: Arc<Relay>, stop: CancellationToken) {
    let mut workers = JoinSet::new();
    let mut busy: HashMap<String, usize> = HashMap::new();
    let mut paused: HashMap<String, Timestamp> = HashMap::new();
    while !stop.is_cancelled() {
        let now = relay.now();
        paused.retain(|_, until| *until > now);
        let free = relay.config.workers.saturating_sub(workers.len());
        let leased = if free > 0 { lease(&relay, free, &busy, &paused, now).await } else { vec![] };
        let more = leased.len() == free && free > 0;
        for task in leased {
            *busy.entry(task.lane.clone()).or_default() += 1;
            workers.spawn(one(Arc::clone(&relay), task));
        }
        if more {
            continue;
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = relay.work.notified() => {}
            () = tokio::time::sleep(limits::POLL) => {}
            Some(finished) = workers.join_next() => settle_lane(finished, &mut busy, &mut paused),
        }
    }
    let _ =
        tokio::time::timeout(limits::GRACE, async { while workers.join_next().await.is_some() {} })
            .await;
    // What is still under way is dropped; its lease ends, and it comes back.
    workers.abort_all();
}

async fn lease(
    relay: &Relay,
    free: usize,
    busy: &HashMap<String, usize>,
    paused: &HashMap<String, Timestamp>,
    now: Timestamp,
) -> Vec<Task> {
    let mut busy = busy.clone();
    busy.extend(paused.keys().map(|lane| (lane.clone(), limits::WORKERS_PER_LANE)));
    let want = Want {
        now,
        until: now + limits::LEASE,
        max: free,
        per_lane: limits::WORKERS_PER_LANE,
        busy,
    };
    match relay.store.lease(want).await {
        Ok(tasks) => tasks,
        Err(error) => {
            tracing::error!(%error, "no work can be taken");
            vec![]
        }
    }
}

fn settle_lane(
    finished: Result<Finished, tokio::task::JoinError>,
    busy: &mut HashMap<String, usize>,
    paused: &mut HashMap<String, Timestamp>,
) {
    let Ok(finished) = finished else { return };
    if let Some(count) = busy.get_mut(&finished.lane) {
        *count -= 1;
        if *count == 0 {
            busy.remove(&finished.lane);
        }
    }
    if let Some(until) = finished.pause {
        paused.insert(finished.lane, until);
    }
}

/// Works on one task. A panic in a handler is a failure like any other.
async fn one(relay: Arc<Relay>, task: Task) -> Finished {
    let lane = task.lane.clone();
    let worker = tokio::spawn({
        let (relay, task) = (Arc::clone(&relay), task.clone());
        async move { handlers::run(&relay, &task).await }
    });
    let result = match worker.await {
        Ok(result) => result,
        Err(error) if error.is_cancelled() => return Finished { lane, pause: None },
        Err(_) => Err(Fail::retry("the handler panicked")),
    };
    let pause = result.as_ref().err().and_then(|fail| fail.retry_at);
    if let Err(error) = settle(&relay, &task, result).await {
        tracing::error!(%error, key = task.key, "a task's end can't be recorded; it comes back");
    }
    Finished { lane, pause }
}

pub(crate) async fn settle(
    relay: &Relay,
    task: &Task,
    result: Result<Outcome, Fail>,
) -> Result<(), crate::store::StoreError> {
    let kind = Work::kind(&task.payload);
    let how = match result {
        Ok(Outcome::Settled) => {
            relay.metrics.task(kind, "done");
            return Ok(());
        }
        Ok(Outcome::Done) => {
            relay.metrics.task(kind, "done");
            How::Done
        }
        Ok(Outcome::Later(at)) => {
            relay.metrics.task(kind, "later");
            How::Later(at)
        }
        Err(fail) => {
            let tries = task.failed + 1;
            let dead = fail.permanent || tries >= limits::TRIES;
            let error = fail.error;
            tracing::warn!(key = task.key, kind, tries, dead, error, "a task failed");
            relay.metrics.task(kind, if dead { "dead" } else { "retry" });
            let at = relay.now() + pause(task.failed);
            let at = fail.retry_at.map_or(at, |asked| at.max(asked));
            let how = if dead {
                How::Dead { error: error.clone() }
            } else {
                How::Retry { at, error: error.clone() }
            };
            return handlers::failed(relay, task, how, &error, dead).await;
        }
    };
    let batch = Batch { settle: Some(task.settle(how)), ..Batch::default() };
    relay.commit(batch).await?;
    Ok(())
}

/// Doubles from failure to failure, with jitter over the upper half.
fn pause(failed: u32) -> Duration {
    let full = limits::BACKOFF.saturating_mul(1 << failed.min(16)).min(limits::BACKOFF_CAP);
    full.mul_f64(rand::rng().random_range(0.5..=1.0))
}
