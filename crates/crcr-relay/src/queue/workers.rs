//! The workers of the durable queue: they lease a task, run its handler and settle it. How many run
//! at a time is limited, and so is how many run for one lane.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crcr_store::{CommitOutcome, LeaseRequest, LeasedTask, StoreError, TaskOutcome, WriteBatch};
use jiff::Timestamp;
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::handlers;
use super::task_kind::{ParsedTask, TaskDone, TaskError, TaskKind};
use crate::limits;
use crate::relay::Relay;

#[derive(Default)]
struct Workers {
    /// A worker's result is the time until which GitHub wants its lane to pause.
    running: JoinSet<Option<Timestamp>>,
    tasks: HashMap<Id, Arc<ParsedTask>>,
    /// How many tasks of each lane are running.
    busy_lanes: HashMap<String, usize>,
    paused_lanes: HashMap<String, Timestamp>,
}

#[derive(Debug, Clone, Copy)]
pub struct WorkerTimeouts {
    /// A handler that takes longer has failed.
    pub(crate) handler: Duration,
    /// How long a shutdown waits for running tasks.
    pub(crate) shutdown: Duration,
}

impl Default for WorkerTimeouts {
    fn default() -> Self {
        Self { handler: limits::HANDLER, shutdown: limits::GRACE }
    }
}

/// Works until `stop`, then waits for running tasks and releases those that don't end in time.
pub async fn run(relay: Arc<Relay>, stop: CancellationToken, timeouts: WorkerTimeouts) {
    let mut workers = Workers::default();
    while !stop.is_cancelled() {
        if workers.start_due(&relay, timeouts.handler).await {
            continue;
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            Some(ended) = workers.running.join_next_with_id() => {
                workers.workers_ended(&relay, ended).await;
            }
            () = relay.work.notified() => {}
            () = tokio::time::sleep(limits::POLL) => {}
        }
    }
    workers.shut_down(&relay, timeouts.shutdown).await;
}

/// Works what is due, for a process that doesn't run in between. Nothing is leased any more after
/// `limit`. Returns how many tasks were worked on.
pub(crate) async fn work_due(
    relay: &Arc<Relay>,
    limit: Duration,
    timeouts: WorkerTimeouts,
) -> usize {
    let mut workers = Workers::default();
    let end = tokio::time::Instant::now() + limit;
    let mut ended_tasks = 0;
    while tokio::time::Instant::now() < end {
        if workers.start_due(relay, timeouts.handler).await {
            continue;
        }
        match tokio::time::timeout_at(end, workers.running.join_next_with_id()).await {
            Ok(Some(ended)) => ended_tasks += workers.workers_ended(relay, ended).await,
            Ok(None) | Err(_) => break,
        }
    }
    let still_running = workers.tasks.len();
    workers.shut_down(relay, timeouts.shutdown).await;
    ended_tasks + still_running
}

impl Workers {
    /// Leases and starts due tasks. Returns whether there may be more of them.
    async fn start_due(&mut self, relay: &Arc<Relay>, timeout: Duration) -> bool {
        let now = relay.now();
        self.paused_lanes.retain(|_, until| *until > now);
        relay.metrics.lanes_paused(self.paused_lanes.len());
        let free = relay.config.workers.saturating_sub(self.tasks.len());
        if free == 0 {
            return false;
        }
        let leased = lease(relay, free, self, now).await;
        let may_have_more = leased.len() == free;
        for task in leased {
            self.start(relay, task, timeout);
        }
        may_have_more
    }

    /// Waits for running tasks, and releases those that don't end in time.
    async fn shut_down(mut self, relay: &Relay, timeout: Duration) {
        let running = async {
            while let Some(ended) = self.running.join_next_with_id().await {
                self.worker_ended(relay, ended).await;
            }
        };
        let _ = tokio::time::timeout(timeout, running).await;
        self.release_all(relay).await;
    }

    fn start(&mut self, relay: &Arc<Relay>, task: LeasedTask, timeout: Duration) {
        let task = Arc::new(ParsedTask::new(task));
        *self.busy_lanes.entry(task.lease.lane.clone()).or_default() += 1;
        let worker = self.running.spawn(run_task(Arc::clone(relay), Arc::clone(&task), timeout));
        self.tasks.insert(worker.id(), task);
    }

    /// Takes `first` and every other worker that has ended by now, so that their places are filled by one look at
    /// the queue: it takes longer the more lanes there are. Returns how many have ended.
    async fn workers_ended(
        &mut self,
        relay: &Relay,
        first: Result<(Id, Option<Timestamp>), JoinError>,
    ) -> usize {
        let (mut ended, mut count) = (Some(first), 0);
        while let Some(one) = ended {
            self.worker_ended(relay, one).await;
            count += 1;
            ended = self.running.try_join_next_with_id();
        }
        count
    }

    async fn worker_ended(
        &mut self,
        relay: &Relay,
        ended: Result<(Id, Option<Timestamp>), JoinError>,
    ) {
        let id = ended.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        let Some(task) = self.tasks.remove(&id) else { return };
        let lane = &task.lease.lane;
        if let Some(count) = self.busy_lanes.get_mut(lane) {
            *count -= 1;
            if *count == 0 {
                self.busy_lanes.remove(lane);
            }
        }
        match ended {
            Ok((_, Some(until))) => drop(self.paused_lanes.insert(lane.clone(), until)),
            Ok((_, None)) => {}
            Err(_) => {
                settle_or_log(relay, &task, Err(TaskError::retry("the handler panicked"))).await;
            }
        }
    }

    /// Stops what still runs, and lets another process lease it at once.
    async fn release_all(mut self, relay: &Relay) {
        self.running.shutdown().await;
        for task in self.tasks.into_values() {
            let key = &task.lease.key;
            tracing::warn!(key, "released unfinished");
            if let Err(error) = settle_with(relay, &task.lease, TaskOutcome::Release).await {
                tracing::error!(%error, key, "can't be released; it is due when its lease ends");
            }
        }
    }
}

async fn lease(relay: &Relay, free: usize, workers: &Workers, now: Timestamp) -> Vec<LeasedTask> {
    let mut busy_lanes = workers.busy_lanes.clone();
    let full = workers.paused_lanes.keys().map(|lane| (lane.clone(), limits::WORKERS_PER_LANE));
    busy_lanes.extend(full);
    let request = LeaseRequest {
        now,
        until: now + limits::LEASE,
        max_tasks: free,
        max_per_lane: limits::WORKERS_PER_LANE,
        busy_lanes,
    };
    match relay.store.lease_tasks(request).await {
        Ok(tasks) => tasks,
        Err(error) => {
            tracing::error!(%error, "no tasks can be leased");
            vec![]
        }
    }
}

/// Runs one task and settles it. Returns the time until which its lane has to pause.
async fn run_task(
    relay: Arc<Relay>,
    task: Arc<ParsedTask>,
    timeout: Duration,
) -> Option<Timestamp> {
    let result = match tokio::time::timeout(timeout, handlers::run(&relay, &task)).await {
        Ok(result) => result,
        Err(_) => Err(TaskError::retry(format!(
            "the handler took longer than {} s and was stopped before its lease ends",
            timeout.as_secs_f64()
        ))),
    };
    let pause_until = result.as_ref().err().and_then(|error| error.retry_at);
    settle_or_log(&relay, &task, result).await;
    pause_until
}

async fn settle_or_log(relay: &Relay, task: &ParsedTask, result: Result<TaskDone, TaskError>) {
    if let Err(error) = settle(relay, task, result).await {
        let key = &task.lease.key;
        tracing::error!(%error, key, "a task can't be settled; it is due when its lease ends");
    }
}

pub(crate) async fn settle(
    relay: &Relay,
    task: &ParsedTask,
    result: Result<TaskDone, TaskError>,
) -> Result<(), StoreError> {
    let (lease, kind) = (&task.lease, task.kind.as_ref().ok());
    let name = kind.map_or("unknown", TaskKind::name);
    let error = match result {
        Ok(TaskDone::AlreadySettled) => {
            relay.metrics.task(name, "done");
            return Ok(());
        }
        Ok(TaskDone::Finished) => {
            relay.metrics.task(name, "done");
            return settle_with(relay, lease, TaskOutcome::Done).await;
        }
        Ok(TaskDone::RunAgain(at)) => {
            relay.metrics.task(name, "later");
            return settle_with(relay, lease, TaskOutcome::Later(at)).await;
        }
        Err(error) => error,
    };
    let tries = lease.failed + 1;
    let max_tries = kind.map_or(limits::TRIES, |kind| kind.max_tries(&relay.config));
    let is_over = match error.retry_until {
        Some(until) => relay.now() >= until,
        None => error.permanent || tries >= max_tries,
    };
    let dead = is_over && !kind.is_some_and(TaskKind::is_never_given_up);
    let message = error.message;
    tracing::warn!(key = lease.key, kind = name, tries, dead, error = message, "a task failed");
    relay.metrics.task(name, if dead { "dead" } else { "retry" });
    let at = relay.now() + limits::TASK_RETRY.pause_of(tries, &lease.key);
    let at = error.retry_at.map_or(at, |asked| at.max(asked));
    let outcome = if dead {
        TaskOutcome::Dead { error: message.clone(), expires_at: relay.expiry() }
    } else {
        TaskOutcome::Retry { at, error: message.clone() }
    };
    match kind {
        Some(TaskKind::Dispatch { delivery, repo }) => {
            handlers::dispatch::record_failure(
                relay,
                lease,
                (delivery, repo),
                outcome,
                &message,
                dead,
            )
            .await
        }
        _ => settle_with(relay, lease, outcome).await,
    }
}

/// Settles a task in a batch that holds nothing else.
async fn settle_with(
    relay: &Relay,
    lease: &LeasedTask,
    outcome: TaskOutcome,
) -> Result<(), StoreError> {
    let batch = WriteBatch { settlement: Some(lease.settle(outcome)), ..WriteBatch::default() };
    if relay.commit(batch).await? == CommitOutcome::LeaseLost {
        tracing::warn!(key = lease.key, "its lease has ended: another worker settles it");
    }
    Ok(())
}
