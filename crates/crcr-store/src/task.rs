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
    /// Tasks of one lane share a limit on how many are worked on at a time.
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
    /// When it was put into the queue.
    pub created_at: Timestamp,
}

impl LeasedTask {
    pub fn settle(&self, outcome: TaskOutcome) -> TaskSettlement {
        TaskSettlement { id: self.id, lease: self.lease, outcome }
    }
}

/// The end of a lease. If the lease is somebody else's by now, the whole batch is rejected
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
    /// The task is given up and waits for an operator, unless it was put into the queue again while
    /// it was leased: then it comes back.
    Dead {
        error: String,
        /// When it may be deleted.
        expires_at: Timestamp,
    },
    /// Unfinished, and due at once: the worker stops.
    Release,
}

#[derive(Debug, Clone, Default)]
pub struct LeaseRequest {
    pub now: Timestamp,
    /// When the leases end.
    pub until: Timestamp,
    pub max_tasks: usize,
    pub max_per_lane: usize,
    /// Tasks of each lane that are being worked on. A paused lane counts as full.
    pub busy_lanes: HashMap<String, usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    Ready,
    Leased,
    /// Given up.
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
    /// When it was put into the queue.
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
