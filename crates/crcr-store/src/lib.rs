//! The relay's state: versioned records, sorted sets, a queue and facts. One atomic batch changes
//! them together.
//!
//! All decisions are made above this interface, from records that were read. A batch names the
//! versions it was decided on, and a store rejects the batch when one of them has changed since.

mod batch;
#[cfg(test)]
mod conformance;
pub mod memory;
mod outage_log;
pub mod redis;
pub mod sqlite;
mod task;

use async_trait::async_trait;
use crcr_domain::results::facts::{CallbackFact, Fact};
use jiff::Timestamp;
use serde::de::DeserializeOwned;

pub use self::batch::{
    BudgetCharge, CommitOutcome, LimitedBy, PendingCommit, RecordWrite, SetInsert, WriteBatch,
};
pub use self::outage_log::OutageLog;
pub use self::redis::{RedisStore, RedisUrl};
pub use self::sqlite::{SqliteStore, StoreRole};
pub use self::task::{
    LeaseRequest, LeasedTask, NewTask, PoolRoom, QueueDepth, TaskOutcome, TaskSettlement,
    TaskState, TaskView, pool_of,
};

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Nothing was changed, except that a server may have applied a batch whose answer was lost: do
    /// what a second try of the batch is safe with.
    #[error("the store can't be used: {0}")]
    Unavailable(String),
    #[error("the store holds a value at {key} that can't be read: {reason}")]
    Malformed { key: String, reason: String },
    #[error("another relay is using the store `{0}`")]
    InUse(String),
    /// A newer crcr wrote the file; nothing was changed.
    #[error(
        "the store `{path}` has schema version {found}, and this crcr supports versions up to \
         {supported}: start the crcr that wrote it or a newer one, or restore the backup from before \
         the upgrade"
    )]
    Newer { path: String, found: i64, supported: i64 },
    /// An older crcr wrote the file and may still be running on it; nothing was changed.
    #[error(
        "the store `{0}` was written by an older crcr, and a relay is using it: stop that relay and \
         start this version of `crcr relay serve`, which upgrades the store"
    )]
    Older(String),
}

/// The key of a record, set, bucket or task. It is stored as a JSON list, so that
/// `["a", "b/c"]` and `["a/b", "c"]` are different keys.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StoreKey(String);

impl StoreKey {
    /// The first part names the kind of thing that the key belongs to.
    pub fn new(parts: &[&str]) -> Self {
        Self(serde_json::to_string(parts).expect("strings are always JSON"))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What the keys that start with `kind` have in common, if they have further parts.
pub(crate) fn start_of_keys(kind: &str) -> String {
    format!("{},", StoreKey::new(&[kind]).as_str().trim_end_matches(']'))
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRecord {
    /// 1 for a new record; each change adds 1.
    pub version: u64,
    pub value: Vec<u8>,
}

/// A record's value as its type, with the version that a change has to name.
#[derive(Debug, Clone)]
pub struct Versioned<T> {
    pub key: StoreKey,
    /// 0 when there is no such record.
    pub version: u64,
    pub value: Option<T>,
}

/// A fact that waits to be copied to the results.
#[derive(Debug)]
pub struct OutboxEntry {
    /// Its position in the outbox.
    pub id: String,
    pub fact: Result<Fact, UnreadableFact>,
}

/// A fact that another version of crcr wrote.
#[derive(Debug)]
pub struct UnreadableFact {
    pub text: String,
    pub error: serde_json::Error,
}

impl OutboxEntry {
    pub(crate) fn new(id: String, text: String) -> Self {
        let fact = serde_json::from_str(&text);
        Self { id, fact: fact.map_err(|error| UnreadableFact { text, error }) }
    }
}

/// How many bytes of facts are read from the outbox at a time. After a long outage of the results, a few thousand large
/// ones would take more time and memory than there is.
pub(crate) const OUTBOX_BYTES: usize = 16 << 20;

/// What a store can't promise, and what it has lost.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreHealth {
    /// Why a change that was acknowledged may not be on disk; `None` when it always is.
    pub weaker_promise: Option<String>,
    /// How often acknowledged changes were missing since this process started.
    pub losses: u64,
    /// What was missing the last time.
    pub loss: Option<String>,
}

#[async_trait]
pub trait StateStore: Send + Sync {
    /// Returns one entry for each key, in the order of `keys`.
    async fn records(&self, keys: &[StoreKey]) -> Result<Vec<Option<StoredRecord>>, StoreError>;

    /// The members of a sorted set, those with the highest score first.
    async fn members(&self, set: &StoreKey, limit: usize) -> Result<Vec<String>, StoreError>;

    /// Puts a batch in line behind those that were submitted before. Its versions are checked
    /// against what those leave behind, even before their changes can be read.
    async fn submit(&self, batch: WriteBatch, now: Timestamp) -> Result<PendingCommit, StoreError>;

    /// Applies a batch; its changes are on disk when this returns.
    async fn commit(&self, batch: WriteBatch, now: Timestamp) -> Result<CommitOutcome, StoreError> {
        self.submit(batch, now).await?.durable().await
    }

    /// Leases tasks that are due.
    async fn lease_tasks(&self, request: LeaseRequest) -> Result<Vec<LeasedTask>, StoreError>;

    /// Tasks in `state` (all if `None`), those that are due first at the front.
    async fn tasks(
        &self,
        state: Option<TaskState>,
        limit: usize,
    ) -> Result<Vec<TaskView>, StoreError>;

    /// The task with this key, as it was put into the queue; `None` when it isn't in `state`. A leased one is due when its
    /// lease ends.
    async fn find_task(&self, key: &str, state: TaskState) -> Result<Option<NewTask>, StoreError>;

    /// Removes a dead task; returns `false` when there is no dead task with this key.
    async fn discard_dead_task(&self, key: &str) -> Result<bool, StoreError>;

    async fn queue_depth(&self) -> Result<QueueDepth, StoreError>;

    /// How many tasks there are, in any state, whose key starts with `kind`.
    async fn count_tasks(&self, kind: &str) -> Result<u64, StoreError>;

    /// The keys of all tasks in `state` whose key starts with `kind`, sorted. However many others there are, they hide
    /// none.
    async fn task_keys(&self, kind: &str, state: TaskState) -> Result<Vec<String>, StoreError>;

    /// Whether results are read from this store itself. If not, the facts of a batch wait in the
    /// outbox, which is as durable as the rest of the batch.
    fn stores_facts(&self) -> bool {
        true
    }

    /// Whether other relays can use the store at the same time. What they write doesn't wake this one.
    fn is_shared(&self) -> bool {
        false
    }

    /// What operators have to know about the store.
    fn health(&self) -> StoreHealth {
        StoreHealth::default()
    }

    /// The oldest facts in the outbox, not many more than [`OUTBOX_BYTES`]; none while another relay copies them.
    async fn outbox(&self, _limit: usize) -> Result<Vec<OutboxEntry>, StoreError> {
        Ok(vec![])
    }

    /// Removes the facts up to and including this entry from the outbox.
    async fn remove_from_outbox(&self, _last: &str) -> Result<(), StoreError> {
        Ok(())
    }

    /// Repairs what a clock that was ahead has left behind, and returns how many tasks were repaired: a
    /// task that was changed in the future is due as long after `now` as it was after its change.
    async fn repair_times(&self, now: Timestamp) -> Result<u64, StoreError>;

    /// Deletes some of the expired records, set members, dead tasks and full buckets. Returns how
    /// many rows were deleted: 0 when nothing expired is left.
    async fn delete_expired(&self, now: Timestamp) -> Result<u64, StoreError>;
}

/// Reads one record and decodes it from JSON.
pub async fn read_record<T: DeserializeOwned>(
    store: &dyn StateStore,
    key: StoreKey,
) -> Result<Versioned<T>, StoreError> {
    let record = store.records(std::slice::from_ref(&key)).await?.pop().flatten();
    decode_record(key, record)
}

/// Reads several records of one type.
pub async fn read_records<T: DeserializeOwned>(
    store: &dyn StateStore,
    keys: Vec<StoreKey>,
) -> Result<Vec<Versioned<T>>, StoreError> {
    let records = store.records(&keys).await?;
    keys.into_iter().zip(records).map(|(key, record)| decode_record(key, record)).collect()
}

pub fn decode_record<T: DeserializeOwned>(
    key: StoreKey,
    record: Option<StoredRecord>,
) -> Result<Versioned<T>, StoreError> {
    let Some(record) = record else { return Ok(Versioned { key, version: 0, value: None }) };
    match serde_json::from_slice(&record.value) {
        Ok(value) => Ok(Versioned { key, version: record.version, value: Some(value) }),
        Err(error) => {
            Err(StoreError::Malformed { key: key.as_str().to_owned(), reason: error.to_string() })
        }
    }
}

/// A hash of a report's fact: a report has no key of its own, and the same row can arrive twice.
pub fn callback_id(fact: &CallbackFact) -> u64 {
    hash64(&serde_json::to_vec(fact).expect("facts are always JSON"))
}

/// The SHA-256 of `bytes`, in hexadecimal digits.
pub(crate) fn hex_digest(bytes: &[u8]) -> String {
    hex::encode(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes))
}

/// The first eight bytes of the SHA-256 of `bytes`, as a key of a row.
pub fn hash64(bytes: &[u8]) -> u64 {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
    let first = digest.as_ref().first_chunk().copied().unwrap_or_default();
    u64::from_le_bytes(first)
}
