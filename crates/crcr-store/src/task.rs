//! Tasks of the durable queue.

use std::collections::HashMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::StoreKey;

#[derive(Debug, Clone)]
pub struct NewTask {
    /// The queue holds one task for each key. If there is one already, it becomes due at the earlier
    /// of the two times; a leased one comes back when it is done, and a dead one starts over.
    pub key: StoreKey,
    /// Tasks of one lane share a limit on how many are worked on at a time, and lanes take turns. What
    /// comes before the first `:` is the lane's pool ([`pool_of`]).
    pub lane: String,
    pub payload: String,
    pub due_at: Timestamp,
}

#[derive(Debug, Clone)]
pub struct LeasedTask {
    pub id: i64,
    /// A random number that proves whose lease it is.
    pub lease: i64,
    pub key: String,
    pub lane: String,
    pub payload: String,
    /// How many tries have failed so far.
    pub failed: u32,
    /// Since when it has been due without being done: a task that waits for a time, or is put back from the dead,
    /// begins anew.
    pub created_at: Timestamp,
}

impl LeasedTask {
    pub fn settle(&self, outcome: TaskOutcome) -> TaskSettlement {
        TaskSettlement { id: self.id, lease: self.lease, outcome }
    }
}

/// The end of a lease, unless it is kept. If the lease is somebody else's by now, the whole batch is rejected
/// ([`CommitOutcome::LeaseLost`](crate::CommitOutcome::LeaseLost)).
#[derive(Debug, Clone)]
pub struct TaskSettlement {
    pub id: i64,
    pub lease: i64,
    pub outcome: TaskOutcome,
}

#[derive(Debug, Clone)]
pub enum TaskOutcome {
    Done,
    /// The task is due again at this time; this isn't a failure.
    Later(Timestamp),
    Retry {
        at: Timestamp,
        error: String,
    },
    /// The server can't take it now, such as in an outage. It is due again at this time, and this isn't
    /// counted as a failure.
    Postpone {
        at: Timestamp,
        error: String,
    },
    /// The task is given up and waits for an operator, unless it was put into the queue again while
    /// it was leased: then it comes back.
    Dead {
        error: String,
        /// When it may be deleted.
        expires_at: Timestamp,
    },
    /// Unfinished, and due at once: the worker stops.
    Release,
    /// The worker goes on. The batch is only applied while the task is its own.
    Keep,
}

#[derive(Debug, Clone, Default)]
pub struct LeaseRequest {
    pub now: Timestamp,
    pub until: Timestamp,
    pub max_tasks: usize,
    /// For lanes of a pool that `pools` doesn't name.
    pub max_per_lane: usize,
    /// Tasks of each lane that are being worked on. A paused lane counts as full.
    pub busy_lanes: HashMap<String, usize>,
    /// The room in each pool of workers.
    pub pools: HashMap<String, PoolRoom>,
}

/// How many more tasks of a pool may be worked on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolRoom {
    pub free: usize,
    pub max_per_lane: usize,
}

/// The pool of a lane; empty when its name has none.
pub fn pool_of(lane: &str) -> &str {
    lane.split_once(':').map_or("", |(pool, _)| pool)
}

/// A lane from which tasks can be leased now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LaneRoom {
    pub(crate) lane: String,
    /// How many tasks it may get.
    pub(crate) room: usize,
}

/// Takes turns: one task of each lane, then a second one of each, as long as there is room. So a lane with
/// many tasks delays another one by one task at most.
pub(crate) struct Turns<'a> {
    request: &'a LeaseRequest,
    lanes: Vec<LaneRoom>,
    lanes_per_pool: HashMap<String, usize>,
}

impl<'a> Turns<'a> {
    pub(crate) fn new(request: &'a LeaseRequest) -> Self {
        Self { request, lanes: vec![], lanes_per_pool: HashMap::new() }
    }

    fn free(&self, pool: &str) -> usize {
        self.request.pools.get(pool).map_or(self.request.max_tasks, |room| room.free)
    }

    /// Adds a lane that has tasks due, if it has room. Lanes are added in the order of their turns.
    pub(crate) fn add(&mut self, lane: String) {
        let pool = pool_of(&lane);
        let free = self.free(pool).min(self.request.max_tasks);
        let known = self.lanes_per_pool.get(pool).copied().unwrap_or_default();
        let most = self
            .request
            .pools
            .get(pool)
            .map_or(self.request.max_per_lane, |room| room.max_per_lane);
        let busy = self.request.busy_lanes.get(&lane).copied().unwrap_or_default();
        let room = most.saturating_sub(busy).min(free);
        // Each lane gets one task at least, so further lanes of the pool would get none.
        if room > 0 && known < free {
            self.lanes_per_pool.insert(pool.to_owned(), known + 1);
            self.lanes.push(LaneRoom { lane, room });
        }
    }

    /// Whether no lane that comes later could get a task.
    pub(crate) fn is_full(&self) -> bool {
        let all_pools_full = !self.request.pools.is_empty()
            && self.request.pools.iter().all(|(pool, room)| {
                self.lanes_per_pool.get(pool).copied().unwrap_or_default() >= room.free
            });
        self.lanes.len() >= self.request.max_tasks || all_pools_full
    }

    pub(crate) fn lanes(&self) -> &[LaneRoom] {
        &self.lanes
    }

    /// The room of each pool that has such lanes.
    pub(crate) fn pools(&self) -> Vec<(&str, usize)> {
        self.lanes_per_pool.keys().map(|pool| (pool.as_str(), self.free(pool))).collect()
    }

    /// Chooses among the tasks that are due in each of the lanes, the earliest of a lane first.
    pub(crate) fn choose<T>(&self, due: Vec<Vec<T>>) -> Vec<T> {
        let mut free: HashMap<&str, usize> = HashMap::new();
        let mut queues: Vec<_> =
            self.lanes.iter().zip(due.into_iter().map(Vec::into_iter)).collect();
        let mut chosen = vec![];
        loop {
            let before = chosen.len();
            for (lane, tasks) in &mut queues {
                let pool = pool_of(&lane.lane);
                let free = free.entry(pool).or_insert_with(|| self.free(pool));
                if *free > 0
                    && chosen.len() < self.request.max_tasks
                    && let Some(task) = tasks.next()
                {
                    *free -= 1;
                    chosen.push(task);
                }
            }
            if chosen.len() == before {
                return chosen;
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    Ready,
    Leased,
    Dead,
}

/// A task as operators see it. The payload can be large and is read separately
/// ([`StateStore::find_task`](crate::StateStore::find_task)).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskView {
    pub key: String,
    pub lane: String,
    pub state: TaskState,
    /// How many tries have failed so far.
    pub failed: u32,
    /// When it is due; for a dead task, when it is deleted.
    pub due_at: Timestamp,
    /// Since when it has been due without being done: a task that waits for a time, or is put back from the dead,
    /// begins anew.
    pub created_at: Timestamp,
    pub last_error: Option<String>,
}

impl TaskView {
    /// The first part of the key.
    pub fn kind(&self) -> String {
        let parts: Vec<String> = serde_json::from_str(&self.key).unwrap_or_default();
        parts.into_iter().next().unwrap_or_default()
    }
}

/// How many tasks the queue holds, and how many facts the outbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct QueueDepth {
    pub ready: u64,
    pub leased: u64,
    pub dead: u64,
    pub facts: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns<'a>(request: &'a LeaseRequest, lanes: &[&str]) -> Turns<'a> {
        let mut turns = Turns::new(request);
        lanes.iter().for_each(|lane| turns.add((*lane).to_owned()));
        turns
    }

    fn rooms(turns: &Turns<'_>) -> Vec<(String, usize)> {
        turns.lanes().iter().map(|lane| (lane.lane.clone(), lane.room)).collect()
    }

    #[test]
    fn lanes_take_turns_within_the_room_of_the_request() {
        let busy_lanes = HashMap::from([("x:busy".to_owned(), 1), ("x:full".to_owned(), 2)]);
        let request =
            LeaseRequest { max_tasks: 4, max_per_lane: 2, busy_lanes, ..LeaseRequest::default() };
        let turns = turns(&request, &["x:one", "x:busy", "x:full", "bare"]);
        let expected = [("x:one", 2), ("x:busy", 1), ("bare", 2)];
        assert_eq!(rooms(&turns), expected.map(|(lane, room)| (lane.to_owned(), room)));
        assert!(!turns.is_full());
        let due = vec![vec!["a1", "a2"], vec!["b1"], vec!["c1", "c2"]];
        assert_eq!(turns.choose(due), ["a1", "b1", "c1", "a2"], "four, the second ones last");
    }

    #[test]
    fn pool_without_a_free_worker_gets_no_task() {
        let room = |free| PoolRoom { free, max_per_lane: 5 };
        let pools = HashMap::from([("x".to_owned(), room(1)), ("y".to_owned(), room(0))]);
        let request = LeaseRequest { max_tasks: 9, pools, ..LeaseRequest::default() };
        assert!(!turns(&request, &[]).is_full());
        let turns = turns(&request, &["y:one", "x:one", "x:two"]);
        assert_eq!(rooms(&turns), [("x:one".to_owned(), 1)]);
        assert!(turns.is_full(), "no lane of another pool is asked for");
        assert_eq!(turns.choose(vec![vec!["a1", "a2"]]), ["a1"]);
        assert_eq!((pool_of("x:one:two"), pool_of("bare")), ("x", ""));
    }

    #[test]
    fn request_is_full_when_each_task_has_a_lane() {
        let request = LeaseRequest { max_tasks: 2, max_per_lane: 1, ..LeaseRequest::default() };
        assert!(!turns(&request, &["one"]).is_full());
        assert!(turns(&request, &["one", "two"]).is_full());
    }
}
