//! The durable queue's workers: lease, work, settle; bounded at all and per account downstream.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crcr_store::{Batch, Commit, How, Task, Want};
use jiff::Timestamp;
use rand::Rng as _;
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::handlers;
use super::task::{Fail, Outcome, Work};
use crate::limits;
use crate::relay::Relay;

/// The work that is under way.
#[derive(Default)]
struct Workers {
    /// Each one ends with the time until which GitHub wants its lane to wait.
    running: JoinSet<Option<Timestamp>>,
    tasks: HashMap<Id, Task>,
    /// Tasks of each lane that are worked on.
    busy: HashMap<String, usize>,
    paused: HashMap<String, Timestamp>,
}

/// How long work may take.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// A handler that takes longer has failed.
    pub handler: Duration,
    /// How long a stop waits for what is under way.
    pub grace: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { handler: limits::HANDLER, grace: limits::GRACE }
    }
}

/// Works until `stop`, then finishes what is under way within the bounds' grace and gives the rest
/// back.
pub async fn work(relay: Arc<Relay>, stop: CancellationToken, bounds: Bounds) {
    let mut workers = Workers::default();
    while !stop.is_cancelled() {
        let now = relay.now();
        workers.paused.retain(|_, until| *until > now);
        let free = relay.config.workers.saturating_sub(workers.tasks.len());
        let leased = if free > 0 { lease(&relay, free, &workers, now).await } else { vec![] };
        let more = leased.len() == free && free > 0;
        for task in leased {
            workers.start(&relay, task, bounds.handler);
        }
        if more {
            continue;
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = relay.work.notified() => {}
            () = tokio::time::sleep(limits::POLL) => {}
            Some(ended) = workers.running.join_next_with_id() => workers.end(&relay, ended).await,
        }
    }
    let rest = async {
        while let Some(ended) = workers.running.join_next_with_id().await {
            workers.end(&relay, ended).await;
        }
    };
    let _ = tokio::time::timeout(bounds.grace, rest).await;
    workers.give_back(&relay).await;
}

impl Workers {
    fn start(&mut self, relay: &Arc<Relay>, task: Task, limit: Duration) {
        *self.busy.entry(task.lane.clone()).or_default() += 1;
        let worker = self.running.spawn(one(Arc::clone(relay), task.clone(), limit));
        self.tasks.insert(worker.id(), task);
    }

    async fn end(&mut self, relay: &Relay, ended: Result<(Id, Option<Timestamp>), JoinError>) {
        let id = ended.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        let Some(task) = self.tasks.remove(&id) else { return };
        if let Some(count) = self.busy.get_mut(&task.lane) {
            *count -= 1;
            if *count == 0 {
                self.busy.remove(&task.lane);
            }
        }
        match ended {
            Ok((_, Some(until))) => drop(self.paused.insert(task.lane, until)),
            Ok((_, None)) => {}
            // A panic in a handler is a failure like any other.
            Err(_) => record(relay, &task, Err(Fail::retry("the handler panicked"))).await,
        }
    }

    /// What takes too long is dropped, and is the next worker's from now on.
    async fn give_back(mut self, relay: &Relay) {
        self.running.shutdown().await;
        for task in self.tasks.into_values() {
            tracing::warn!(key = task.key, "given back unfinished");
            if let Err(error) = settle_as(relay, &task, How::Release).await {
                tracing::error!(%error, key = task.key, "it comes back when its lease ends");
            }
        }
    }
}

async fn lease(relay: &Relay, free: usize, workers: &Workers, now: Timestamp) -> Vec<Task> {
    let mut busy = workers.busy.clone();
    busy.extend(workers.paused.keys().map(|lane| (lane.clone(), limits::WORKERS_PER_LANE)));
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

/// Works on one task and records its end.
async fn one(relay: Arc<Relay>, task: Task, limit: Duration) -> Option<Timestamp> {
    let result = match tokio::time::timeout(limit, handlers::run(&relay, &task)).await {
        Ok(result) => result,
        Err(_) => {
            let what = "was stopped, so that the task isn't worked on twice";
            Err(Fail::retry(format!(
                "the handler took longer than {} s and {what}",
                limit.as_secs_f64()
            )))
        }
    };
    let pause = result.as_ref().err().and_then(|fail| fail.retry_at);
    record(&relay, &task, result).await;
    pause
}

async fn record(relay: &Relay, task: &Task, result: Result<Outcome, Fail>) {
    if let Err(error) = settle(relay, task, result).await {
        tracing::error!(%error, key = task.key, "a task's end can't be recorded; it comes back");
    }
}

pub(crate) async fn settle(
    relay: &Relay,
    task: &Task,
    result: Result<Outcome, Fail>,
) -> Result<(), crcr_store::StoreError> {
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
            let given_up = match fail.until {
                Some(until) => relay.now() >= until,
                None => fail.permanent || tries >= Work::tries(&task.payload, &relay.config),
            };
            let dead = given_up && !Work::is_timer(&task.payload);
            let error = fail.error;
            tracing::warn!(key = task.key, kind, tries, dead, error, "a task failed");
            relay.metrics.task(kind, if dead { "dead" } else { "retry" });
            let at = relay.now() + pause(task.failed);
            let at = fail.retry_at.map_or(at, |asked| at.max(asked));
            let how = if dead {
                How::Dead { error: error.clone(), expires_at: relay.expiry() }
            } else {
                How::Retry { at, error: error.clone() }
            };
            if let Ok(Work::Dispatch { delivery, repo }) = serde_json::from_str(&task.payload) {
                return handlers::dispatch::failed(
                    relay, task, &delivery, &repo, how, &error, dead,
                )
                .await;
            }
            how
        }
    };
    settle_as(relay, task, how).await
}

/// Records what became of a task, with nothing beside it.
pub(crate) async fn settle_as(
    relay: &Relay,
    task: &Task,
    how: How,
) -> Result<(), crcr_store::StoreError> {
    let batch = Batch { settle: Some(task.settle(how)), ..Batch::default() };
    if relay.commit(batch).await? == Commit::LeaseLost {
        tracing::warn!(key = task.key, "its lease has ended: another worker's end counts");
    }
    Ok(())
}

/// Doubles from failure to failure, with jitter over the upper half.
fn pause(failed: u32) -> Duration {
    let full = limits::BACKOFF.saturating_mul(1 << failed.min(16)).min(limits::BACKOFF_CAP);
    full.mul_f64(rand::rng().random_range(0.5..=1.0))
}
