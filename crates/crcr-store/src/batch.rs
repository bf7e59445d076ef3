//! A change of the state, and its outcome.

use std::time::Duration;

use crcr_domain::results::facts::Fact;
use jiff::Timestamp;
use serde::Serialize;
use tokio::sync::oneshot;

use crate::{NewTask, StoreError, StoreKey, TaskSettlement, Versioned};

/// A change that is applied as a whole or not at all.
#[derive(Debug, Clone, Default)]
pub struct WriteBatch {
    /// Records and the versions they must still have; 0 for a record that must not exist.
    pub expected_versions: Vec<(StoreKey, u64)>,
    pub records: Vec<RecordWrite>,
    /// A member that is already in the set gets the new score.
    pub set_inserts: Vec<SetInsert>,
    /// What the batch takes from buckets, each of which is named once. If one of them holds too little,
    /// the whole batch is rejected and nothing is taken.
    pub charges: Vec<BudgetCharge>,
    /// Tasks to put into the queue.
    pub tasks: Vec<NewTask>,
    /// The end of the leased task that this batch is the result of, or a part of.
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

#[derive(Debug, Clone)]
pub struct SetInsert {
    pub set: StoreKey,
    pub member: String,
    /// Members are listed by score, the highest first.
    pub score: i64,
    /// When the member may be deleted.
    pub expires_at: Timestamp,
}

/// Tokens of a token bucket: reports, calls or bytes.
#[derive(Debug, Clone)]
pub struct BudgetCharge {
    pub bucket: StoreKey,
    /// How many tokens the bucket holds.
    pub capacity: u64,
    /// How many tokens are added each minute; 0 for a bucket whose key names the time that it is for.
    pub per_minute: f64,
    /// How many tokens the batch takes.
    pub cost: u64,
    /// If set, the charge is made only if this bucket doesn't exist yet: for the first of many things that
    /// belong together.
    pub first_of: Option<StoreKey>,
}

/// The charge that a batch was rejected for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitedBy {
    /// Its place in the batch's charges.
    pub charge: usize,
    /// How long it takes until the bucket has enough; a day if it is never filled.
    pub wait: Duration,
}

/// How long a bucket is kept after its last change. By then it is full.
pub(crate) const KEEP_BUCKET: Duration = Duration::from_secs(26 * 3600);
/// The wait for a bucket that is never filled.
const NEVER_FILLED: Duration = Duration::from_secs(24 * 3600);
/// A bucket that was changed later than this in the future is full: the clock went back, and that must
/// block nobody.
const BUCKET_AHEAD_MILLIS: i64 = 60_000;

impl BudgetCharge {
    /// One token of a bucket that is full again after a minute.
    pub fn per_minute(bucket: StoreKey, per_minute: u32) -> Self {
        Self {
            bucket,
            capacity: per_minute.into(),
            per_minute: per_minute.into(),
            cost: 1,
            first_of: None,
        }
    }

    /// How many tokens are left after the charge, of a bucket that held some at a time in milliseconds.
    /// An error is the time until it has enough.
    pub(crate) fn take(&self, held: Option<(f64, i64)>, now: i64) -> Result<f64, Duration> {
        let (full, cost) = (self.capacity as f64, self.cost as f64);
        let per_milli = self.per_minute / 60_000.0;
        let tokens = match held {
            Some((tokens, at)) if at <= now + BUCKET_AHEAD_MILLIS => {
                (tokens + per_milli * (now - at).max(0) as f64).min(full)
            }
            Some(_) | None => full,
        };
        if tokens >= cost {
            return Ok(tokens - cost);
        }
        let wait = Duration::from_millis(((cost - tokens) / per_milli).ceil() as u64);
        Err(wait.min(NEVER_FILLED))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitOutcome {
    Done,
    /// A record has another version than expected: read it again and decide again.
    Conflict,
    /// A bucket holds too little.
    Limited(LimitedBy),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_fills_with_time_and_says_how_long_to_wait() {
        // Half a token in a millisecond.
        let charge = BudgetCharge {
            capacity: 10,
            ..BudgetCharge::per_minute(StoreKey::new(&["bucket"]), 30_000)
        };
        let held = |tokens, at| Some((tokens, at));
        for (before, now, after) in [
            (None, 0, Ok(9.0)),
            (held(0.0, 0), 2, Ok(0.0)),
            (held(0.0, 0), 1, Err(Duration::from_millis(1))),
            (held(0.0, 0), 0, Err(Duration::from_millis(2))),
            (held(5.0, 0), 3_600_000, Ok(9.0)),
            // The clock went back: a little, and so far that the bucket counts as full.
            (held(3.0, 60_000), 0, Ok(2.0)),
            (held(3.0, 60_001), 0, Ok(9.0)),
        ] {
            assert_eq!(charge.take(before, now), after, "{before:?} at {now}");
        }
        let never = BudgetCharge { per_minute: 0.0, ..charge };
        assert_eq!(never.take(held(0.0, 0), 1000), Err(NEVER_FILLED));
    }
}
