//! The state in memory, for simulations: nothing is durable, and nothing depends on time or chance.

use std::collections::BTreeMap;

use async_trait::async_trait;
use crcr_domain::results::facts::Fact;
use jiff::Timestamp;
use parking_lot::Mutex;

use crate::batch::KEEP_BUCKET;
use crate::task::{LaneRoom, Turns};
use crate::{
    BudgetCharge, CommitOutcome, LeaseRequest, LeasedTask, LimitedBy, NewTask, PendingCommit,
    QueueDepth, StateStore, StoreError, StoreKey, StoredRecord, TaskOutcome, TaskSettlement,
    TaskState, TaskView, WriteBatch, start_of_keys,
};

#[derive(Default)]
pub struct MemoryStore {
    tables: Mutex<Tables>,
}

#[derive(Clone, Default)]
struct Tables {
    records: BTreeMap<StoreKey, (StoredRecord, Timestamp)>,
    /// Score and expiry by set and member.
    members: BTreeMap<StoreKey, BTreeMap<String, (i64, Timestamp)>>,
    /// Tokens left, and when they were counted.
    buckets: BTreeMap<StoreKey, (f64, i64)>,
    tasks: BTreeMap<String, StoredTask>,
    /// When a task of each lane was leased last.
    served: BTreeMap<String, Timestamp>,
    facts: Vec<Fact>,
    ids: i64,
}

#[derive(Debug, Clone)]
struct StoredTask {
    id: i64,
    lane: String,
    payload: String,
    state: TaskState,
    /// `None` unless it is leased.
    lease: Option<i64>,
    /// For a leased task, the end of the lease; for a dead one, when it is deleted.
    due_at: Timestamp,
    /// When it comes back because it was enqueued while it was leased.
    again_at: Option<Timestamp>,
    failed: u32,
    created_at: Timestamp,
    changed_at: Timestamp,
    last_error: Option<String>,
}

impl MemoryStore {
    pub fn apply(&self, batch: WriteBatch, now: Timestamp) -> CommitOutcome {
        self.tables.lock().apply(batch, now)
    }

    pub fn record(&self, key: &StoreKey) -> Option<StoredRecord> {
        self.tables.lock().records.get(key).map(|(record, _)| record.clone())
    }

    /// Calls `look` with the key, state and due time of every task, in the order of their keys.
    pub fn for_each_task(&self, mut look: impl FnMut(&str, TaskState, Timestamp)) {
        for (key, task) in &self.tables.lock().tasks {
            look(key, task.state, task.due_at);
        }
    }

    pub fn task_state(&self, key: &StoreKey) -> Option<TaskState> {
        self.tables.lock().tasks.get(key.as_str()).map(|task| task.state)
    }

    pub fn lease(&self, request: &LeaseRequest) -> Vec<LeasedTask> {
        self.tables.lock().lease(request)
    }

    /// Leases the tasks that another store has leased, which has to hold the same. An error says what differs.
    pub fn adopt_leases(
        &self,
        leased: &[LeasedTask],
        request: &LeaseRequest,
    ) -> Result<(), String> {
        let mut tables = self.tables.lock();
        for other in leased {
            let key = &other.key;
            let task = tables.tasks.get_mut(key).ok_or_else(|| format!("{key} doesn't exist"))?;
            // The other stores keep milliseconds.
            let (due_at, now) = (task.due_at.as_millisecond(), request.now.as_millisecond());
            if task.state == TaskState::Dead || due_at > now {
                return Err(format!("{key} is {:?}, due at {}", task.state, task.due_at));
            }
            let is_same = task.lane == other.lane
                && task.payload == other.payload
                && task.failed == other.failed
                && task.created_at.as_millisecond() == other.created_at.as_millisecond();
            if !is_same {
                return Err(format!("leased {other:?}, and it is {task:?}"));
            }
            (task.id, task.lease) = (other.id, Some(other.lease));
            (task.state, task.due_at) = (TaskState::Leased, request.until);
            task.changed_at = request.now;
        }
        Ok(())
    }

    /// Leased tasks are due again, as after a start on an SQLite file.
    pub fn release_leases(&self) {
        for task in self.tables.lock().tasks.values_mut() {
            if task.state == TaskState::Leased {
                (task.state, task.due_at) = (TaskState::Ready, task.due_at.min(task.created_at));
            }
        }
    }

    /// A store with the same content.
    pub fn copy(&self) -> Self {
        Self { tables: Mutex::new(self.tables.lock().clone()) }
    }

    /// The facts of the batches that were applied since the last call.
    pub fn take_facts(&self) -> Vec<Fact> {
        std::mem::take(&mut self.tables.lock().facts)
    }
}

impl Tables {
    fn next_id(&mut self) -> i64 {
        self.ids += 1;
        self.ids
    }

    fn apply(&mut self, batch: WriteBatch, now: Timestamp) -> CommitOutcome {
        let version = |key| self.records.get(key).map_or(0, |(record, _)| record.version);
        if batch.expected_versions.iter().any(|(key, expected)| version(key) != *expected) {
            return CommitOutcome::Conflict;
        }
        if let Some(settled) = &batch.settlement
            && !self.tasks.values().any(|task| task.is_leased_by(settled))
        {
            return CommitOutcome::LeaseLost;
        }
        if let Err(limited) = self.take_tokens(&batch.charges, now) {
            return CommitOutcome::Limited(limited);
        }
        for write in batch.records {
            let version = self.records.get(&write.key).map_or(0, |(record, _)| record.version) + 1;
            let record = StoredRecord { version, value: write.value };
            self.records.insert(write.key, (record, write.expires_at));
        }
        for insert in batch.set_inserts {
            let set = self.members.entry(insert.set).or_default();
            set.insert(insert.member, (insert.score, insert.expires_at));
        }
        if let Some(settled) = &batch.settlement {
            self.settle(settled, now);
        }
        for task in batch.tasks {
            self.enqueue(task, now);
        }
        self.facts.extend(batch.facts);
        CommitOutcome::Done
    }

    fn take_tokens(&mut self, charges: &[BudgetCharge], now: Timestamp) -> Result<(), LimitedBy> {
        let now = now.as_millisecond();
        let mut left = vec![];
        for (charge, one) in charges.iter().enumerate() {
            if one.first_of.as_ref().is_some_and(|bucket| self.buckets.contains_key(bucket)) {
                continue;
            }
            let held = self.buckets.get(&one.bucket).copied();
            let tokens = one.take(held, now).map_err(|wait| LimitedBy { charge, wait })?;
            left.push((one.bucket.clone(), (tokens, now)));
        }
        self.buckets.extend(left);
        Ok(())
    }

    fn enqueue(&mut self, new: NewTask, now: Timestamp) {
        let NewTask { key, lane, payload, due_at } = new;
        let Some(task) = self.tasks.get_mut(key.as_str()) else {
            let id = self.next_id();
            let task = StoredTask {
                id,
                lane,
                payload,
                state: TaskState::Ready,
                lease: None,
                due_at,
                again_at: None,
                failed: 0,
                created_at: due_at.max(now),
                changed_at: now,
                last_error: None,
            };
            self.tasks.insert(key.as_str().to_owned(), task);
            return;
        };
        task.changed_at = now;
        if task.payload != payload {
            task.payload = payload;
            task.failed = 0;
            task.created_at = due_at.max(now);
        }
        match task.state {
            TaskState::Ready => {
                task.due_at = task.due_at.min(due_at);
                task.created_at = task.created_at.min(task.due_at.max(now));
            }
            TaskState::Leased => {
                task.again_at = Some(task.again_at.map_or(due_at, |again| again.min(due_at)));
            }
            TaskState::Dead => {
                task.state = TaskState::Ready;
                task.due_at = due_at;
                task.failed = 0;
                task.created_at = due_at.max(now);
            }
        }
    }

    fn settle(&mut self, settled: &TaskSettlement, now: Timestamp) {
        let found = self.tasks.iter_mut().find(|(_, task)| task.is_leased_by(settled));
        let Some((key, task)) = found else { return };
        if matches!(settled.outcome, TaskOutcome::Keep) {
            return;
        }
        let again_at = task.again_at.take();
        task.changed_at = now;
        task.lease = None;
        task.state = TaskState::Ready;
        let mut begins_anew = false;
        let due_at = match &settled.outcome {
            TaskOutcome::Done => {
                begins_anew = true;
                let Some(again_at) = again_at else {
                    let key = key.clone();
                    self.tasks.remove(&key);
                    return;
                };
                again_at
            }
            TaskOutcome::Later(at) => {
                begins_anew = true;
                *at
            }
            TaskOutcome::Retry { at, error } => {
                task.failed += 1;
                task.last_error = Some(error.clone());
                *at
            }
            TaskOutcome::Postpone { at, error } => {
                task.last_error = Some(error.clone());
                *at
            }
            TaskOutcome::Release | TaskOutcome::Keep => now,
            TaskOutcome::Dead { error, expires_at } => {
                task.last_error = Some(error.clone());
                begins_anew = again_at.is_some();
                if !begins_anew {
                    task.state = TaskState::Dead;
                    task.failed += 1;
                }
                again_at.unwrap_or(*expires_at)
            }
        };
        task.due_at = again_at.map_or(due_at, |again_at| again_at.min(due_at));
        if begins_anew {
            task.failed = 0;
            task.created_at = task.due_at;
        }
    }

    fn lease(&mut self, request: &LeaseRequest) -> Vec<LeasedTask> {
        let mut due: BTreeMap<&str, Vec<(Timestamp, i64, &str)>> = BTreeMap::new();
        for (key, task) in &self.tasks {
            if task.state != TaskState::Dead && task.due_at <= request.now {
                due.entry(&task.lane).or_default().push((task.due_at, task.id, key));
            }
        }
        due.values_mut().for_each(|tasks| tasks.sort_unstable());
        self.served.retain(|lane, _| due.contains_key(lane.as_str()));
        let mut lanes: Vec<_> = due
            .iter()
            .map(|(lane, tasks)| {
                let earliest = tasks[0].0;
                let served = self.served.get(*lane).filter(|at| **at <= request.now);
                (served.map_or(earliest, |at| earliest.max(*at)), earliest, *lane)
            })
            .collect();
        lanes.sort_unstable();
        let mut turns = Turns::new(request);
        for (_, _, lane) in lanes {
            turns.add(lane.to_owned());
        }
        let tasks_of = |lane: &LaneRoom| {
            due[lane.lane.as_str()]
                .iter()
                .take(lane.room)
                .map(|(_, _, key)| (*key).to_owned())
                .collect()
        };
        let chosen: Vec<String> = turns.choose(turns.lanes().iter().map(tasks_of).collect());
        let mut leased = vec![];
        for key in chosen {
            let lease = self.next_id();
            let Some(task) = self.tasks.get_mut(&key) else { continue };
            (task.state, task.lease, task.due_at) = (TaskState::Leased, Some(lease), request.until);
            task.changed_at = request.now;
            self.served.insert(task.lane.clone(), request.now);
            leased.push(LeasedTask {
                id: task.id,
                lease,
                key,
                lane: task.lane.clone(),
                payload: task.payload.clone(),
                failed: task.failed,
                created_at: task.created_at,
            });
        }
        leased
    }
}

impl StoredTask {
    fn is_leased_by(&self, settled: &TaskSettlement) -> bool {
        self.state == TaskState::Leased
            && (self.id, self.lease) == (settled.id, Some(settled.lease))
    }
}

#[async_trait]
impl StateStore for MemoryStore {
    async fn records(&self, keys: &[StoreKey]) -> Result<Vec<Option<StoredRecord>>, StoreError> {
        let tables = self.tables.lock();
        let found =
            keys.iter().map(|key| tables.records.get(key).map(|(record, _)| record.clone()));
        Ok(found.collect())
    }

    async fn members(&self, set: &StoreKey, limit: usize) -> Result<Vec<String>, StoreError> {
        let tables = self.tables.lock();
        let Some(members) = tables.members.get(set) else { return Ok(vec![]) };
        let mut by_score: Vec<_> =
            members.iter().map(|(name, (score, _))| (-score, name)).collect();
        by_score.sort_unstable();
        Ok(by_score.into_iter().take(limit).map(|(_, name)| name.clone()).collect())
    }

    async fn submit(&self, batch: WriteBatch, now: Timestamp) -> Result<PendingCommit, StoreError> {
        Ok(PendingCommit::ended(self.apply(batch, now)))
    }

    async fn lease_tasks(&self, request: LeaseRequest) -> Result<Vec<LeasedTask>, StoreError> {
        Ok(self.lease(&request))
    }

    async fn tasks(
        &self,
        state: Option<TaskState>,
        limit: usize,
    ) -> Result<Vec<TaskView>, StoreError> {
        let tables = self.tables.lock();
        let wanted = |task: &&StoredTask| state.is_none_or(|state| state == task.state);
        let mut views: Vec<TaskView> = tables
            .tasks
            .iter()
            .filter(|(_, task)| wanted(task))
            .map(|(key, task)| TaskView {
                key: key.clone(),
                lane: task.lane.clone(),
                state: task.state,
                failed: task.failed,
                due_at: task.due_at,
                created_at: task.created_at,
                last_error: task.last_error.clone(),
            })
            .collect();
        views.sort_by_key(|view| view.due_at);
        views.truncate(limit);
        Ok(views)
    }

    async fn find_task(&self, key: &str, state: TaskState) -> Result<Option<NewTask>, StoreError> {
        let tables = self.tables.lock();
        let found = tables.tasks.get(key).filter(|task| task.state == state);
        Ok(found.map(|task| NewTask {
            key: StoreKey(key.to_owned()),
            lane: task.lane.clone(),
            payload: task.payload.clone(),
            due_at: task.due_at,
        }))
    }

    async fn discard_dead_task(&self, key: &str) -> Result<bool, StoreError> {
        let mut tables = self.tables.lock();
        let is_dead = tables.tasks.get(key).is_some_and(|task| task.state == TaskState::Dead);
        if is_dead {
            tables.tasks.remove(key);
        }
        Ok(is_dead)
    }

    async fn queue_depth(&self) -> Result<QueueDepth, StoreError> {
        let mut depth = QueueDepth::default();
        for task in self.tables.lock().tasks.values() {
            match task.state {
                TaskState::Ready => depth.ready += 1,
                TaskState::Leased => depth.leased += 1,
                TaskState::Dead => depth.dead += 1,
            }
        }
        Ok(depth)
    }

    async fn count_tasks(&self, kind: &str) -> Result<u64, StoreError> {
        let start = start_of_keys(kind);
        let tables = self.tables.lock();
        Ok(tables.tasks.keys().filter(|key| key.starts_with(&start)).count() as u64)
    }

    async fn task_keys(&self, kind: &str, state: TaskState) -> Result<Vec<String>, StoreError> {
        let start = start_of_keys(kind);
        let tables = self.tables.lock();
        let wanted = tables
            .tasks
            .iter()
            .filter(|(key, task)| task.state == state && key.starts_with(&start));
        Ok(wanted.map(|(key, _)| key.clone()).collect())
    }

    async fn repair_times(&self, now: Timestamp) -> Result<u64, StoreError> {
        let mut count = 0;
        let mut tables = self.tables.lock();
        tables.served.clear();
        for task in tables.tasks.values_mut() {
            if task.state != TaskState::Dead && task.changed_at > now {
                let ahead = task.changed_at.duration_since(now);
                task.due_at -= ahead;
                task.again_at = task.again_at.map(|at| at - ahead);
                task.created_at = task.created_at.min(now);
                task.changed_at = now;
                count += 1;
            }
        }
        Ok(count)
    }

    async fn delete_expired(&self, now: Timestamp) -> Result<u64, StoreError> {
        let mut tables = self.tables.lock();
        let rows = |tables: &Tables| {
            let members: usize = tables.members.values().map(BTreeMap::len).sum();
            tables.records.len() + members + tables.tasks.len() + tables.buckets.len()
        };
        let before = rows(&tables);
        tables.records.retain(|_, (_, expires_at)| *expires_at > now);
        for members in tables.members.values_mut() {
            members.retain(|_, (_, expires_at)| *expires_at > now);
        }
        tables.members.retain(|_, members| !members.is_empty());
        tables.tasks.retain(|_, task| task.state != TaskState::Dead || task.due_at > now);
        let kept = (now - KEEP_BUCKET).as_millisecond();
        tables.buckets.retain(|_, (_, at)| *at > kept);
        Ok((before - rows(&tables)) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance;

    #[tokio::test]
    async fn memory_store_passes_the_suite_of_all_stores() {
        conformance::check_all(async || MemoryStore::default()).await;
    }
}
