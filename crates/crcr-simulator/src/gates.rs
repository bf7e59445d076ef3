//! Where the relay meets the outside world: every request to GitHub and every commit waits here until
//! the scheduler lets it pass, fails it, or crashes the replica that made it.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use crcr_domain::protocol::dispatch::DispatchStatus;
use crcr_store::{
    CommitOutcome, LeaseRequest, LeasedTask, NewTask, PendingCommit, QueueDepth, StateStore,
    StoreError, StoreKey, StoredRecord, TaskState, TaskView, WriteBatch,
};
use http::{Request, Response};
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::sync::oneshot;

use crate::ledger::dispatch;
use crate::stores::{REPLICAS, StoreClient, unavailable};

pub(crate) struct CommitGates {
    pub(crate) now: Timestamp,
    /// How far each replica's clock is ahead of `drift`.
    pub(crate) skews: [SignedDuration; REPLICAS],
    /// How far the clocks of all replicas are ahead of GitHub's.
    pub(crate) drift: SignedDuration,
    /// Requests to GitHub that wait for an answer.
    pub(crate) calls: Vec<GithubCall>,
    /// Batches in line for the writer of each replica.
    pub(crate) commits: [VecDeque<SubmittedBatch>; REPLICAS],
    pub(crate) reads: Vec<WaitingRead>,
    /// Until when the process of a replica does nothing.
    pub(crate) frozen_until: [Option<Timestamp>; REPLICAS],
    /// Whether a replica was frozen before its next batch already.
    pub(crate) was_frozen: [bool; REPLICAS],
    /// When each replica last got a list of pull requests of a demotion.
    pub(crate) demotions_read_at: [Timestamp; REPLICAS],
    /// When a process last went on.
    pub(crate) thawed_at: [Option<Timestamp>; REPLICAS],
    /// Whether anything may fail.
    pub(crate) faults: bool,
    /// By delivery and repository: how often the task of a dispatch was leased while it was unsent.
    pub(crate) leases: BTreeMap<(String, String), u32>,
    /// The last lease of each task.
    pub(crate) leased: BTreeMap<String, LeasedTask>,
    pub(crate) trace: StepTrace,
    random: StdRng,
}

pub(crate) struct GithubCall {
    pub(crate) replica: usize,
    pub(crate) sent_at: Timestamp,
    pub(crate) request: Request<Bytes>,
    pub(crate) reply: oneshot::Sender<Response<Bytes>>,
}

pub(crate) struct SubmittedBatch {
    pub(crate) batch: WriteBatch,
    pub(crate) at: Timestamp,
    pub(crate) reply: oneshot::Sender<Result<CommitOutcome, StoreError>>,
}

pub(crate) struct WaitingRead {
    pub(crate) replica: usize,
    pub(crate) reply: oneshot::Sender<()>,
}

/// What happened, the newest last, and a hash of everything since the start.
pub(crate) struct StepTrace {
    pub(crate) lines: VecDeque<String>,
    /// How many lines are kept.
    limit: usize,
    pub(crate) hash: u64,
    pub(crate) step: usize,
}

impl StepTrace {
    pub(crate) fn add(&mut self, line: String) {
        let mut hasher = DefaultHasher::new();
        (self.hash, &line).hash(&mut hasher);
        self.hash = hasher.finish();
        if self.lines.len() >= self.limit {
            self.lines.pop_front();
        }
        self.lines.push_back(format!("{:>5} {line}", self.step));
    }
}

impl CommitGates {
    pub(crate) fn new(seed: u64, now: Timestamp, trace_lines: usize) -> Self {
        Self {
            now,
            skews: [SignedDuration::ZERO; REPLICAS],
            drift: SignedDuration::ZERO,
            calls: vec![],
            commits: Default::default(),
            reads: vec![],
            frozen_until: [None; REPLICAS],
            was_frozen: [false; REPLICAS],
            demotions_read_at: [Timestamp::MIN; REPLICAS],
            thawed_at: [None; REPLICAS],
            faults: true,
            leases: BTreeMap::new(),
            leased: BTreeMap::new(),
            trace: StepTrace { lines: VecDeque::new(), limit: trace_lines, hash: 0, step: 0 },
            random: StdRng::seed_from_u64(seed ^ 0x5707_e5ed),
        }
    }

    pub(crate) fn clock(&self, replica: usize) -> Timestamp {
        self.now + self.drift + self.skews[replica]
    }

    pub(crate) fn is_frozen(&self, replica: usize) -> bool {
        self.frozen_until[replica].is_some()
    }

    /// Whether a batch of a replica can be written now.
    pub(crate) fn has_commits(&self, replica: usize) -> bool {
        !self.commits[replica].is_empty() && !self.is_frozen(replica)
    }

    /// The places of the calls and reads that can be answered now: a frozen process takes no answer.
    pub(crate) fn open_places(&self) -> (Vec<usize>, Vec<usize>) {
        let calls = (0..self.calls.len()).filter(|one| !self.is_frozen(self.calls[*one].replica));
        let reads = (0..self.reads.len()).filter(|one| !self.is_frozen(self.reads[*one].replica));
        (calls.collect(), reads.collect())
    }

    pub(crate) fn take_open_calls(&mut self) -> Vec<GithubCall> {
        let frozen = self.frozen_until.map(|until| until.is_some());
        self.calls.extract_if(.., |call| !frozen[call.replica]).collect()
    }

    pub(crate) fn happens(&mut self, one_in: u32) -> bool {
        self.faults && self.random.random_ratio(1, one_in)
    }
}

pub(crate) type SharedGates = Arc<Mutex<CommitGates>>;

/// The store as one replica sees it.
pub(crate) struct SimulatedStore {
    pub(crate) gates: SharedGates,
    pub(crate) store: StoreClient,
}

impl SimulatedStore {
    /// Some reads wait, so that others' changes come in between, and a few fail.
    async fn read(&self) -> Result<(), StoreError> {
        let waiting = {
            let mut gates = self.gates.lock();
            if gates.happens(200) {
                let line = format!("r{} a read fails", self.store.number);
                gates.trace.add(line);
                return Err(unavailable());
            }
            if !gates.happens(12) && !gates.is_frozen(self.store.number) {
                return Ok(());
            }
            let (reply, waiting) = oneshot::channel();
            gates.reads.push(WaitingRead { replica: self.store.number, reply });
            waiting
        };
        waiting.await.map_err(|_| unavailable())
    }
}

#[async_trait]
impl StateStore for SimulatedStore {
    async fn records(&self, keys: &[StoreKey]) -> Result<Vec<Option<StoredRecord>>, StoreError> {
        self.read().await?;
        self.store.records(keys).await
    }

    async fn members(&self, set: &StoreKey, limit: usize) -> Result<Vec<String>, StoreError> {
        self.read().await?;
        self.store.members(set, limit).await
    }

    async fn submit(&self, batch: WriteBatch, now: Timestamp) -> Result<PendingCommit, StoreError> {
        let (reply, outcome) = oneshot::channel();
        let mut gates = self.gates.lock();
        gates.commits[self.store.number].push_back(SubmittedBatch { batch, at: now, reply });
        Ok(PendingCommit::new(outcome))
    }

    async fn lease_tasks(&self, request: LeaseRequest) -> Result<Vec<LeasedTask>, StoreError> {
        if self.gates.lock().is_frozen(self.store.number) {
            return Ok(vec![]);
        }
        let tasks = self.store.lease_tasks(request).await?;
        let mut gates = self.gates.lock();
        for task in &tasks {
            gates.leased.insert(task.key.clone(), task.clone());
            let line = format!("r{} leases {}", self.store.number, task.key);
            gates.trace.add(line);
            let Some((delivery, repo)) = dispatch_of_task(&task.key) else { continue };
            if dispatch(&self.store.shared.memory, &delivery, &repo)
                .is_some_and(|dispatch| dispatch.status == DispatchStatus::Queued)
            {
                *gates.leases.entry((delivery, repo)).or_default() += 1;
            }
        }
        Ok(tasks)
    }

    async fn tasks(
        &self,
        state: Option<TaskState>,
        limit: usize,
    ) -> Result<Vec<TaskView>, StoreError> {
        self.store.tasks(state, limit).await
    }

    async fn find_task(&self, key: &str, state: TaskState) -> Result<Option<NewTask>, StoreError> {
        self.store.find_task(key, state).await
    }

    async fn discard_dead_task(&self, key: &str) -> Result<bool, StoreError> {
        self.store.discard_dead_task(key).await
    }

    async fn queue_depth(&self) -> Result<QueueDepth, StoreError> {
        self.store.queue_depth().await
    }

    async fn count_tasks(&self, kind: &str) -> Result<u64, StoreError> {
        self.store.count_tasks(kind).await
    }

    async fn task_keys(&self, kind: &str, state: TaskState) -> Result<Vec<String>, StoreError> {
        self.store.task_keys(kind, state).await
    }

    async fn repair_times(&self, now: Timestamp) -> Result<u64, StoreError> {
        self.store.repair_times(now).await
    }

    async fn delete_expired(&self, now: Timestamp) -> Result<u64, StoreError> {
        self.store.delete_expired(now).await
    }
}

/// Delivery and repository of a dispatch's task.
fn dispatch_of_task(key: &str) -> Option<(String, String)> {
    let parts: Vec<String> = serde_json::from_str(key).ok()?;
    match <[String; 3]>::try_from(parts) {
        Ok([kind, delivery, repo]) if kind == "dispatch" => Some((delivery, repo)),
        _ => None,
    }
}
