//! The workers of the durable queue: they lease a task, run its handler and settle it. How many run
//! at a time is limited, and so is how many run for one lane.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crcr_store::{
    CommitOutcome, LeaseRequest, LeasedTask, OutageLog, StoreError, TaskOutcome, WriteBatch,
    pool_of,
};
use jiff::Timestamp;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::handlers;
use super::lanes::{BusyLanes, KEPT_WEBHOOKS, server_of};
use super::task_kind::{ParsedTask, TaskDone, TaskError, TaskKind};
use crate::limits;
use crate::relay::Relay;

#[derive(Default)]
struct Workers {
    /// A worker's result is the time until which GitHub wants its server to pause.
    running: JoinSet<Option<Timestamp>>,
    tasks: HashMap<Id, Arc<ParsedTask>>,
    busy: BusyLanes,
    paused: Pauses,
    keeping: MakesWay,
    lease_outage: OutageLog,
}

/// Keeping a webhook takes as much time as accepting one, and nobody waits for it. So it waits, for at most
/// [`limits::KEEP_WAIT`], while webhooks and reports arrive one after the other.
#[derive(Default)]
enum MakesWay {
    /// For a process that doesn't run between requests.
    #[default]
    Never,
    WhenBusy {
        since: Option<Instant>,
    },
}

/// The servers of which nothing is asked, by their names.
pub(crate) type Pauses = HashMap<String, ServerPause>;

/// How long nothing is asked of a server.
#[derive(Clone, Copy)]
pub(crate) struct ServerPause {
    until: Timestamp,
    /// The same by a monotonic clock, so that setting back the time of day doesn't make the pause longer.
    ends: Instant,
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
        Self { handler: limits::HANDLER_TIMEOUT, shutdown: limits::SHUTDOWN_GRACE }
    }
}

/// Works until `stop`, then waits for running tasks and releases those that don't end in time.
pub async fn run(relay: Arc<Relay>, stop: CancellationToken, timeouts: WorkerTimeouts) {
    let keeping = MakesWay::WhenBusy { since: None };
    let mut workers = Workers { keeping, ..Workers::default() };
    while !stop.is_cancelled() {
        workers.start_due(&relay, timeouts.handler).await;
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            Some(ended) = workers.running.join_next_with_id() => {
                workers.workers_ended(&relay, ended).await;
            }
            () = relay.work.notified() => {}
            () = tokio::time::sleep(limits::QUEUE_POLL) => {}
        }
    }
    workers.shut_down(&relay, timeouts.shutdown).await;
}

/// Works what is due, for a process that doesn't run in between. Nothing is leased any more after
/// `limit`. Returns how many tasks were worked on. `paused` is what GitHub has asked for, from one time to the next.
pub(crate) async fn work_due(
    relay: &Arc<Relay>,
    limit: Duration,
    timeouts: WorkerTimeouts,
    paused: &mut Pauses,
) -> usize {
    let mut workers = Workers { paused: std::mem::take(paused), ..Workers::default() };
    let end = Instant::now() + limit;
    let mut ended_tasks = 0;
    while Instant::now() < end {
        workers.start_due(relay, timeouts.handler).await;
        match tokio::time::timeout_at(end, workers.running.join_next_with_id()).await {
            Ok(Some(ended)) => ended_tasks += workers.workers_ended(relay, ended).await,
            Ok(None) | Err(_) => break,
        }
    }
    let still_running = workers.tasks.len();
    workers.shut_down(relay, timeouts.shutdown).await;
    *paused = workers.paused;
    ended_tasks + still_running
}

impl MakesWay {
    /// Whether no further webhook is kept now.
    fn waits(&mut self, is_quiet: bool, now: Instant) -> bool {
        let Self::WhenBusy { since } = self else { return false };
        if is_quiet {
            *since = None;
            return false;
        }
        now - *since.get_or_insert(now) < limits::KEEP_WAIT
    }

    /// There is nothing left to keep, so the next webhook waits anew.
    fn start_anew(&mut self) {
        if let Self::WhenBusy { since } = self {
            *since = None;
        }
    }
}

impl Workers {
    /// Leases and starts the due tasks that have a free worker.
    async fn start_due(&mut self, relay: &Arc<Relay>, timeout: Duration) {
        let now = relay.now();
        self.paused.retain(|_, pause| pause.until > now && pause.ends > Instant::now());
        relay.metrics.servers_paused(self.paused.keys());
        for task in lease(relay, self, now).await {
            self.start(relay, task, timeout);
        }
        for (pool, count) in self.busy.by_pool() {
            relay.metrics.pool_busy(pool, count);
        }
    }

    /// Waits for running tasks, and releases those that don't end in time.
    async fn shut_down(&mut self, relay: &Relay, timeout: Duration) {
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
        self.busy.add(&task.lease.lane);
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
        self.busy.remove(lane);
        match ended {
            Ok((_, Some(until))) => {
                let wait = until.duration_since(relay.now()).try_into().unwrap_or_default();
                let pause = ServerPause { until, ends: Instant::now() + wait };
                let server = server_of(lane, &relay.config.upstream);
                // What was sent before a long pause may be answered later, with a shorter one.
                let known = self.paused.entry(server).or_insert(pause);
                known.until = known.until.max(pause.until);
                known.ends = known.ends.max(pause.ends);
            }
            Ok((_, None)) => {}
            Err(_) => settle_or_log(relay, &task, Err(stopped("the handler panicked"))).await,
        }
    }

    /// Stops what still runs, and lets another process lease it at once. But GitHub may have got a dispatch: that is
    /// written down, as each further one of it starts another run.
    async fn release_all(&mut self, relay: &Relay) {
        self.running.shutdown().await;
        for task in std::mem::take(&mut self.tasks).into_values() {
            let key = &task.lease.key;
            tracing::warn!(key, "stopped unfinished");
            if let Ok(TaskKind::Dispatch { .. }) = &task.kind {
                let end = TaskError {
                    is_outage: true,
                    ..stopped("the relay stopped while it sent this, and GitHub may have got it")
                };
                settle_or_log(relay, &task, Err(end)).await;
            } else if let Err(error) = settle_with(relay, &task.lease, TaskOutcome::Release).await {
                tracing::error!(%error, key, "can't be released; it is due when its lease ends");
            }
        }
    }
}

async fn lease(relay: &Relay, workers: &mut Workers, now: Timestamp) -> Vec<LeasedTask> {
    let config = &relay.config;
    let paused = workers.paused.keys();
    let (mut pools, busy_lanes) = workers.busy.room(config.workers, &config.upstream, paused);
    let keeps = !workers.keeping.waits(relay.is_quiet(), Instant::now());
    if let Some(keep) = pools.get_mut(KEPT_WEBHOOKS).filter(|_| !keeps) {
        keep.free = 0;
    }
    let max_tasks = pools.values().map(|room| room.free).sum();
    if max_tasks == 0 {
        return vec![];
    }
    let until = now + limits::TASK_LEASE;
    let request = LeaseRequest { now, until, max_tasks, max_per_lane: 0, busy_lanes, pools };
    match relay.store.lease_tasks(request).await {
        Ok(tasks) => {
            if workers.lease_outage.worked() {
                tracing::info!("tasks can be leased again");
            }
            let is_keeping = workers.busy.count_of_pool(KEPT_WEBHOOKS) > 0
                || tasks.iter().any(|task| pool_of(&task.lane) == KEPT_WEBHOOKS);
            if keeps && !is_keeping {
                workers.keeping.start_anew();
            }
            tasks
        }
        Err(error) => {
            let error = error.to_string();
            if workers.lease_outage.failed(&error, std::time::Instant::now()) {
                tracing::error!(error, "no tasks can be leased");
            }
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
        Err(_) => Err(stopped(&format!(
            "the handler took longer than {} s and was stopped before its lease ends",
            timeout.as_secs_f64()
        ))),
    };
    let pause_until = result.as_ref().err().and_then(|error| error.retry_at);
    settle_or_log(&relay, &task, result).await;
    pause_until
}

/// The end of a handler that may have sent a request whose answer nobody reads any more.
fn stopped(why: &str) -> TaskError {
    TaskError { may_be_applied: true, ..TaskError::retry(why) }
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
    let max_tries = kind.map_or(limits::TASK_TRIES, |kind| kind.max_tries(&relay.config));
    let waited_until = lease.created_at + limits::LONGEST_OUTAGE;
    let is_over = match error.retry_until.or(error.is_outage.then_some(waited_until)) {
        _ if error.not_before.is_some() => false,
        Some(until) => relay.now() >= until,
        None => error.permanent || tries >= max_tries,
    };
    let dead = is_over && !kind.is_some_and(TaskKind::is_never_given_up);
    let pause = retry_pause(relay, lease, &error);
    let TaskError { retry_at, not_before, .. } = error;
    if dead || relay.failed_tasks_log.takes_one(std::time::Instant::now()) {
        let (key, message) = (&lease.key, &error.message);
        tracing::warn!(key, kind = name, tries, dead, error = message, "a task failed");
    }
    let is_asked_to_wait = retry_at.is_some() || not_before.is_some();
    let counted = match dead {
        true => "dead",
        false if is_asked_to_wait => "paused",
        false => "retry",
    };
    relay.metrics.task(name, counted);
    let at = relay.now() + pause;
    let at = not_before.unwrap_or_else(|| retry_at.map_or(at, |asked| at.max(asked)));
    let text = error.message.clone();
    let outcome = match (dead, error.is_outage || not_before.is_some()) {
        (true, _) => TaskOutcome::Dead { error: text, expires_at: relay.expiry() },
        (false, true) => TaskOutcome::Postpone { at, error: text },
        (false, false) => TaskOutcome::Retry { at, error: text },
    };
    match kind {
        Some(TaskKind::Dispatch { delivery, repo, .. }) => {
            let of = (delivery.as_str(), repo);
            handlers::dispatch::record_failure(relay, lease, of, outcome, &error).await
        }
        _ => settle_with(relay, lease, outcome).await,
    }
}

/// The pause before the next try of a task, unless it is asked to wait for longer.
fn retry_pause(relay: &Relay, lease: &LeasedTask, error: &TaskError) -> Duration {
    let age = relay.now().duration_since(lease.created_at).as_secs().max(1).unsigned_abs();
    if error.is_outage {
        // About as long as the task is old.
        let pause = limits::OUTAGE_RETRY.pause_of(age.ilog2() + 1, &lease.key);
        return pause.max(error.outage_wait.unwrap_or_default().min(limits::OUTAGE_RETRY.cap));
    }
    let pause = limits::TASK_RETRY.pause_of(lease.failed + 1, &lease.key);
    if !error.is_refused {
        return pause;
    }
    // It may never be taken. What changes has it tried at once.
    let by_age = Duration::from_secs(age / limits::REFUSED_AGE_SHARE);
    pause.max(by_age.min(limits::REFUSED_PAUSE_CAP))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn webhooks_are_kept_when_it_is_quiet_or_after_ten_seconds_until_none_is_left() {
        let start = Instant::now();
        let mut keeping = MakesWay::WhenBusy { since: None };
        let busy = |keeping: &mut MakesWay, seconds: u64| {
            keeping.waits(false, start + Duration::from_secs(seconds))
        };
        for begin in [0, 100] {
            assert!(busy(&mut keeping, begin) && busy(&mut keeping, begin + 9));
            assert!(!busy(&mut keeping, begin + 10));
            assert!(!busy(&mut keeping, begin + 70), "those that are left don't wait again");
            keeping.start_anew();
        }
        assert!(busy(&mut keeping, 200));
        assert!(!keeping.waits(true, start + Duration::from_secs(205)));
        assert!(busy(&mut keeping, 211), "a quiet moment ends the wait");
        assert!(!MakesWay::default().waits(false, start));
    }
}
