//! Where the relay meets the outside world: every request to GitHub and every commit waits here until
//! the scheduler lets it pass, fails it, or crashes the replica that made it.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use crcr_domain::protocol::dispatch::{Dispatch, DispatchStatus};
use crcr_relay::state_records;
use crcr_store::memory::MemoryStore;
use crcr_store::{
    CommitOutcome, LeaseRequest, LeasedTask, NewTask, OutboxEntry, PendingCommit, QueueDepth,
    StateStore, StoreError, StoreKey, StoredRecord, TaskState, TaskView, WriteBatch,
};
use http::{Request, Response};
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::sync::oneshot;

/// How many replicas of the relay share the store.
pub(crate) const REPLICAS: usize = 2;

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
    /// Whether anything may fail.
    pub(crate) faults: bool,
    /// By delivery and repository: how often the task of a dispatch was leased while it was unsent.
    pub(crate) leases: BTreeMap<(String, String), u32>,
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
            faults: true,
            leases: BTreeMap::new(),
            trace: StepTrace { lines: VecDeque::new(), limit: trace_lines, hash: 0, step: 0 },
            random: StdRng::seed_from_u64(seed ^ 0x5707_e5ed),
        }
    }

    pub(crate) fn clock(&self, replica: usize) -> Timestamp {
        self.now + self.drift + self.skews[replica]
    }

    pub(crate) fn happens(&mut self, one_in: u32) -> bool {
        self.faults && self.random.random_ratio(1, one_in)
    }
}

pub(crate) type SharedGates = Arc<Mutex<CommitGates>>;

/// The store as one replica sees it.
pub(crate) struct SimulatedStore {
    pub(crate) gates: SharedGates,
    pub(crate) memory: Arc<MemoryStore>,
    pub(crate) replica: usize,
}

impl SimulatedStore {
    /// Some reads wait, so that others' changes come in between, and a few fail.
    async fn read(&self) -> Result<(), StoreError> {
        let waiting = {
            let mut gates = self.gates.lock();
            if gates.happens(200) {
                let line = format!("r{} a read fails", self.replica);
                gates.trace.add(line);
                return Err(unavailable());
            }
            if !gates.happens(12) {
                return Ok(());
            }
            let (reply, waiting) = oneshot::channel();
            gates.reads.push(WaitingRead { replica: self.replica, reply });
            waiting
        };
        waiting.await.map_err(|_| unavailable())
    }
}

pub(crate) fn unavailable() -> StoreError {
    StoreError::Unavailable("simulated".to_owned())
}

#[async_trait]
impl StateStore for SimulatedStore {
    async fn records(&self, keys: &[StoreKey]) -> Result<Vec<Option<StoredRecord>>, StoreError> {
        self.read().await?;
        self.memory.records(keys).await
    }

    async fn members(&self, set: &StoreKey, limit: usize) -> Result<Vec<String>, StoreError> {
        self.read().await?;
        self.memory.members(set, limit).await
    }

    async fn submit(&self, batch: WriteBatch, now: Timestamp) -> Result<PendingCommit, StoreError> {
        let (reply, outcome) = oneshot::channel();
        let mut gates = self.gates.lock();
        gates.commits[self.replica].push_back(SubmittedBatch { batch, at: now, reply });
        Ok(PendingCommit::new(outcome))
    }

    async fn lease_tasks(&self, request: LeaseRequest) -> Result<Vec<LeasedTask>, StoreError> {
        let tasks = self.memory.lease(&request);
        let mut gates = self.gates.lock();
        for task in &tasks {
            let line = format!("r{} leases {}", self.replica, task.key);
            gates.trace.add(line);
            let Some((delivery, repo)) = dispatch_of_task(&task.key) else { continue };
            if dispatch(&self.memory, &delivery, &repo)
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
        self.memory.tasks(state, limit).await
    }

    async fn find_task(&self, key: &str, state: TaskState) -> Result<Option<NewTask>, StoreError> {
        self.memory.find_task(key, state).await
    }

    async fn discard_dead_task(&self, key: &str) -> Result<bool, StoreError> {
        self.memory.discard_dead_task(key).await
    }

    async fn queue_depth(&self) -> Result<QueueDepth, StoreError> {
        self.memory.queue_depth().await
    }

    async fn count_tasks(&self, kind: &str) -> Result<u64, StoreError> {
        self.memory.count_tasks(kind).await
    }

    fn stores_facts(&self) -> bool {
        true
    }

    async fn outbox(&self, limit: usize) -> Result<Vec<OutboxEntry>, StoreError> {
        self.memory.outbox(limit).await
    }

    async fn remove_from_outbox(&self, last: &str) -> Result<(), StoreError> {
        self.memory.remove_from_outbox(last).await
    }

    async fn repair_times(&self, now: Timestamp) -> Result<u64, StoreError> {
        self.memory.repair_times(now).await
    }

    async fn delete_expired(&self, now: Timestamp) -> Result<u64, StoreError> {
        self.memory.delete_expired(now).await
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

/// The stored dispatch of a delivery to a repository.
pub(crate) fn dispatch(memory: &MemoryStore, delivery: &str, repo: &str) -> Option<Dispatch> {
    let repo = crcr_domain::RepoName::new(repo).ok()?;
    let record = memory.record(&state_records::dispatch_key(delivery, &repo))?;
    serde_json::from_slice(&record.value).ok()
}
