//! What the relay remembers: versioned records, sorted sets, a queue, and facts, changed together
//! in one atomic batch or not at all.
//!
//! All decisions are made above this interface, from records that were read; a batch names the
//! versions that it was decided on, and a store refuses it when one of them has moved.

pub mod sqlite;
#[cfg(test)]
mod suite;

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use crcr_domain::facts::{CallbackFact, Fact};
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

pub use self::sqlite::{Role, Sqlite};

/// A store that answers with an error.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The store can't be reached or used; nothing was changed.
    #[error("the store can't be used: {0}")]
    Unavailable(String),
    /// What it holds can't be read.
    #[error("the store holds what can't be read at {key}: {reason}")]
    Malformed { key: String, reason: String },
    /// Another process works on it.
    #[error("another relay is using the store `{0}`")]
    InUse(String),
    /// A newer crcr wrote it; nothing was changed.
    #[error(
        "the store `{path}` has schema version {found}, and this crcr knows versions up to {known}: \
         start the crcr that wrote it or a newer one, or restore the backup from before the upgrade"
    )]
    Newer {
        path: String,
        found: i64,
        /// The newest version that this program can use.
        known: i64,
    },
    /// An older crcr wrote it and may still be running on it; nothing was changed.
    #[error(
        "the store `{0}` is of an older crcr and a relay is using it: stop that relay and start this \
         version of `crcr relay serve`, which upgrades the store"
    )]
    Older(String),
}

/// The key of a record or set: a list of texts, so that no text can run into the next.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(String);

impl Key {
    /// A key of these parts, the kind first.
    pub fn new(parts: &[&str]) -> Self {
        Self(serde_json::to_string(parts).expect("texts are always JSON"))
    }

    /// The key as stores write it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A record as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Counts its changes, from 1.
    pub version: u64,
    pub value: Vec<u8>,
}

/// A record as a type, with the version that a change must name: 0 when there is none.
#[derive(Debug, Clone)]
pub struct Read<T> {
    pub key: Key,
    pub version: u64,
    pub value: Option<T>,
}

/// A change: all of it or nothing.
#[derive(Debug, Default)]
pub struct Batch {
    /// Records and the versions they must still have; 0 for none.
    pub expect: Vec<(Key, u64)>,
    pub put: Vec<Put>,
    /// Members to add to sorted sets; a member that is there gets the new score.
    pub add: Vec<Add>,
    /// A token to take from a bucket; without one, nothing of the batch happens.
    pub charge: Option<Charge>,
    /// Tasks to put into the queue.
    pub tasks: Vec<NewTask>,
    /// The task that this batch is the result of.
    pub settle: Option<Settle>,
    pub facts: Vec<Fact>,
}

#[derive(Debug)]
pub struct Put {
    pub key: Key,
    pub value: Vec<u8>,
    /// When it may be forgotten.
    pub expires_at: Timestamp,
}

/// A member of a sorted set.
#[derive(Debug)]
pub struct Add {
    pub set: Key,
    pub member: String,
    /// Its place; the greatest comes first.
    pub score: i64,
    /// When it may be forgotten.
    pub expires_at: Timestamp,
}

/// A token bucket and what it refills with.
#[derive(Debug, Clone)]
pub struct Charge {
    pub bucket: Key,
    /// Tokens a minute, and the most that it holds.
    pub per_minute: u32,
}

/// A task to put into the queue.
#[derive(Debug, Clone)]
pub struct NewTask {
    /// Names it: one task of a key is in the queue at a time. A second one makes the first one
    /// come earlier, or come back once it is done.
    pub key: Key,
    /// Tasks of one lane wait for each other when it is full: the account downstream.
    pub lane: String,
    pub payload: String,
    pub due_at: Timestamp,
}

/// A task that was leased.
#[derive(Debug, Clone)]
pub struct Task {
    pub id: i64,
    /// Proves that the lease is ours.
    pub lease: i64,
    pub key: String,
    pub lane: String,
    pub payload: String,
    /// How often it was leased and failed before.
    pub failed: u32,
    /// When it was put into the queue.
    pub created_at: Timestamp,
}

/// What became of a leased task. When the lease is no longer ours the whole batch is refused
/// ([`Commit::LeaseLost`]).
#[derive(Debug, Clone)]
pub struct Settle {
    pub id: i64,
    pub lease: i64,
    pub how: How,
}

/// What became of a task.
#[derive(Debug, Clone)]
pub enum How {
    Done,
    /// It has to come again at this time, which is no failure.
    Later(Timestamp),
    /// It failed and comes again.
    Retry {
        at: Timestamp,
        error: String,
    },
    /// It failed for good, and waits for an operator.
    ///
    /// If it was asked for again while it was leased, it comes again instead.
    Dead {
        error: String,
        /// When it may be forgotten.
        expires_at: Timestamp,
    },
    Release,
}

/// What became of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Commit {
    Done,
    /// A record has another version: read again.
    Conflict,
    /// The bucket is empty for this long.
    Limited(Duration),
    /// The lease of the settled task has ended and the task may be another worker's: nothing
    /// happened.
    LeaseLost,
}

/// A batch that has its place in the order of batches and isn't known to be on disk yet.
pub struct Pending(oneshot::Receiver<Result<Commit, StoreError>>);

impl Pending {
    /// Waits until the batch is on disk, or refused.
    pub async fn durable(self) -> Result<Commit, StoreError> {
        let stopped = || StoreError::Unavailable("its writer has stopped".to_owned());
        self.0.await.map_err(|_| stopped())?
    }
}

#[derive(Debug, Clone, Default)]
pub struct Want {
    pub now: Timestamp,
    /// Until when the work is ours.
    pub until: Timestamp,
    pub max: usize,
    /// The most tasks of one lane at a time.
    pub per_lane: usize,
    /// Tasks of each lane that are being worked on; a full or paused lane has `per_lane`.
    pub busy: HashMap<String, usize>,
}

/// A task as operators see it. What it has to do may be large and isn't part of it
/// ([`StateStore::payload`]).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskView {
    pub key: String,
    pub lane: String,
    /// `ready`, `leased` or `dead`.
    pub state: String,
    pub failed: u32,
    /// When it is due; of a dead task, when it is forgotten.
    pub due_at: Timestamp,
    /// When it was put into the queue.
    pub created_at: Timestamp,
    pub last_error: Option<String>,
}

/// How many tasks there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Depth {
    pub ready: u64,
    pub leased: u64,
    pub dead: u64,
    /// Facts that wait in the outbox.
    pub facts: u64,
}

/// A fact that waits to be copied to the results.
#[derive(Debug)]
pub struct Waiting {
    /// Its place in the outbox.
    pub id: String,
    pub fact: Fact,
}

#[async_trait]
pub trait StateStore: Send + Sync {
    /// The records at `keys`, in their order.
    async fn get(&self, keys: &[Key]) -> Result<Vec<Option<Record>>, StoreError>;

    /// The members of a sorted set, the greatest score first, at most `limit`.
    async fn members(&self, set: &Key, limit: usize) -> Result<Vec<String>, StoreError>;

    /// Puts a batch in order behind those that were submitted before, to be changed at time `now`.
    /// It is decided on what they leave behind, before anybody can read it.
    async fn submit(&self, batch: Batch, now: Timestamp) -> Result<Pending, StoreError>;

    /// Changes what the batch says, at time `now`, durably before this returns.
    async fn commit(&self, batch: Batch, now: Timestamp) -> Result<Commit, StoreError> {
        self.submit(batch, now).await?.durable().await
    }

    /// Due tasks, now ours until the lease ends.
    async fn lease(&self, want: Want) -> Result<Vec<Task>, StoreError>;

    /// Tasks in `state` (or all), the earliest due first, at most `limit`.
    async fn tasks(&self, state: Option<&str>, limit: usize) -> Result<Vec<TaskView>, StoreError>;

    /// What the task of this key has to do; `None` when there is none in `state`.
    async fn payload(&self, key: &str, state: &str) -> Result<Option<String>, StoreError>;

    /// Removes the dead task of this key; `false` when there is none.
    async fn discard(&self, key: &str) -> Result<bool, StoreError>;

    /// How many tasks there are.
    async fn depth(&self) -> Result<Depth, StoreError>;

    /// How many tasks there are, in any state, whose key has `kind` as its first part.
    async fn count_of(&self, kind: &str) -> Result<u64, StoreError>;

    /// Whether the store is itself where results are read. If not, the facts of a batch wait in its
    /// outbox, as durable as the rest of the batch.
    fn keeps_facts(&self) -> bool;

    /// The facts that wait, the oldest first, at most `limit`.
    async fn outbox(&self, limit: usize) -> Result<Vec<Waiting>, StoreError>;

    /// Forgets the facts that wait, up to and with the one at `last`.
    async fn forget(&self, last: &str) -> Result<(), StoreError>;

    /// Forgets a portion of what has expired: records, members, dead tasks, full buckets. Returns how
    /// many rows that were; none are left when it is 0.
    async fn prune(&self, now: Timestamp) -> Result<u64, StoreError>;
}

impl Batch {
    /// Writes `value` at the place it was read from, if nobody changed it since.
    pub fn update<T: Serialize>(&mut self, read: &Read<T>, value: &T, expires_at: Timestamp) {
        self.expect.push((read.key.clone(), read.version));
        self.set(read.key.clone(), value, expires_at);
    }

    /// Writes `value`, whatever is there.
    pub fn set<T: Serialize>(&mut self, key: Key, value: &T, expires_at: Timestamp) {
        let value = serde_json::to_vec(value).expect("records are always JSON");
        self.put.push(Put { key, value, expires_at });
    }
}

impl TaskView {
    /// The first part of the key: the kind of task.
    pub fn kind(&self) -> String {
        let parts: Vec<String> = serde_json::from_str(&self.key).unwrap_or_default();
        parts.into_iter().next().unwrap_or_default()
    }
}

impl Task {
    /// The end of the work on it.
    pub fn settle(&self, how: How) -> Settle {
        Settle { id: self.id, lease: self.lease, how }
    }
}

/// Reads one record as its type.
pub async fn read<T: DeserializeOwned>(
    store: &dyn StateStore,
    key: Key,
) -> Result<Read<T>, StoreError> {
    let record = store.get(std::slice::from_ref(&key)).await?.pop().flatten();
    decode(key, record)
}

/// Reads several records of one type.
pub async fn read_all<T: DeserializeOwned>(
    store: &dyn StateStore,
    keys: Vec<Key>,
) -> Result<Vec<Read<T>>, StoreError> {
    let records = store.get(&keys).await?;
    keys.into_iter().zip(records).map(|(key, record)| decode(key, record)).collect()
}

/// Makes a record its type.
pub fn decode<T: DeserializeOwned>(
    key: Key,
    record: Option<Record>,
) -> Result<Read<T>, StoreError> {
    let Some(record) = record else { return Ok(Read { key, version: 0, value: None }) };
    match serde_json::from_slice(&record.value) {
        Ok(value) => Ok(Read { key, version: record.version, value: Some(value) }),
        Err(error) => {
            Err(StoreError::Malformed { key: key.as_str().to_owned(), reason: error.to_string() })
        }
    }
}

/// Tells reports apart that are not the same row written twice.
pub fn callback_id(fact: &CallbackFact) -> u64 {
    let json = serde_json::to_vec(fact).expect("facts are always JSON");
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &json);
    let first = digest.as_ref().first_chunk().copied().unwrap_or_default();
    u64::from_le_bytes(first)
}
