//! A change of the state, and its outcome.

use std::time::Duration;

use crcr_domain::facts::Fact;
use jiff::Timestamp;
use serde::Serialize;
use tokio::sync::oneshot;

use crate::{NewTask, StoreError, StoreKey, TaskSettlement, Versioned};

/// A change that is applied as a whole or not at all.
#[derive(Debug, Default)]
pub struct WriteBatch {
    /// Records and the versions they must still have; 0 for a record that must not exist.
    pub expected_versions: Vec<(StoreKey, u64)>,
    pub records: Vec<RecordWrite>,
    /// A member that is already in the set gets the new score.
    pub set_inserts: Vec<SetInsert>,
    /// Takes a token from a bucket. If the bucket is empty, the whole batch is rejected.
    pub rate_limit: Option<RateLimitCharge>,
    /// Tasks to put into the queue.
    pub tasks: Vec<NewTask>,
    /// The end of the leased task that this batch is the result of.
    pub settlement: Option<TaskSettlement>,
    pub facts: Vec<Fact>,
}

#[derive(Debug, Clone)]
pub struct RecordWrite {
    pub key: StoreKey,
    pub value: Vec<u8>,
    /// When the record may be deleted.
    pub expires_at: Timestamp,
}

#[derive(Debug)]
pub struct SetInsert {
    pub set: StoreKey,
    pub member: String,
    /// Members are listed by score, the highest first.
    pub score: i64,
    /// When the member may be deleted.
    pub expires_at: Timestamp,
}

/// One token of a token bucket.
#[derive(Debug, Clone)]
pub struct RateLimitCharge {
    pub bucket: StoreKey,
    /// How many tokens are added each minute, and how many the bucket holds.
    pub per_minute: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitOutcome {
    Done,
    /// A record has another version than expected: read it again and decide again.
    Conflict,
    /// The bucket is empty; the next token comes after this time.
    Limited(Duration),
    /// The lease of the settled task has ended, and another worker may have the task. Nothing was
    /// changed.
    LeaseLost,
}

/// A batch that has its position in the order of batches, but may not be on disk yet.
pub struct PendingCommit(pub(crate) oneshot::Receiver<Result<CommitOutcome, StoreError>>);

impl PendingCommit {
    /// A commit whose outcome, or failure, is sent later.
    pub fn new(outcome: oneshot::Receiver<Result<CommitOutcome, StoreError>>) -> Self {
        Self(outcome)
    }

    /// A commit that has ended already.
    pub fn ended(outcome: CommitOutcome) -> Self {
        let (reply, receiver) = oneshot::channel();
        // The receiver is here.
        let _ = reply.send(Ok(outcome));
        Self(receiver)
    }

    /// Waits until the batch is on disk or rejected.
    pub async fn durable(self) -> Result<CommitOutcome, StoreError> {
        let stopped = || StoreError::Unavailable("its writer has stopped".to_owned());
        self.0.await.map_err(|_| stopped())?
    }
}

impl WriteBatch {
    /// Writes `value` to the place `read` came from, unless the record has changed since.
    pub fn update<T: Serialize>(&mut self, read: &Versioned<T>, value: &T, expires_at: Timestamp) {
        self.expected_versions.push((read.key.clone(), read.version));
        self.set(read.key.clone(), value, expires_at);
    }

    /// Writes `value`, whatever is stored there now.
    pub fn set<T: Serialize>(&mut self, key: StoreKey, value: &T, expires_at: Timestamp) {
        let value = serde_json::to_vec(value).expect("records are always JSON");
        self.records.push(RecordWrite { key, value, expires_at });
    }
}
