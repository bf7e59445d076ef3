//! Deliveries of one pull request are handled one after the other, so that none is decided on a record
//! that another one is about to change.
//!
//! A turn ends when its batch is in line for the writer, before it is on disk. The next delivery is
//! decided on the record that the batch will leave behind, and expects that version and the delivery that made
//! it: another replica may have made a record of the same version. In this way a burst of deliveries shares the
//! waits for the disk, even if they are all of one pull request. If a batch is rejected, so are the ones that
//! were decided on it, and all of them are decided again.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crcr_store::{StoreKey, Versioned};
use tokio::sync::{Mutex, MutexGuard, OwnedRwLockReadGuard, RwLock};

use crate::state_records::PullRecord;

/// Two pull requests with the same slot wait for each other, which is harmless. The number of slots
/// bounds the memory.
const SLOTS: usize = 1024;

/// After this many batches, the next delivery waits until none of them is pending.
const MAX_CHAIN: usize = 256;

pub(crate) struct PullRequestTurns {
    slots: Vec<Mutex<BatchChain>>,
}

/// The batches for one record that may not be on disk yet.
#[derive(Default)]
struct BatchChain {
    /// The record after the last batch, and the delivery of that batch.
    newest: Option<(String, Versioned<PullRecord>)>,
    deliveries: HashSet<String>,
    /// Every batch that isn't on disk yet holds a read lock.
    pending: Arc<RwLock<()>>,
    /// Whether a batch was rejected.
    broken: Arc<AtomicBool>,
}

/// While it is held, no other delivery changes the record.
pub(crate) struct RecordTurn<'a> {
    key: StoreKey,
    chain: MutexGuard<'a, BatchChain>,
}

/// A batch that isn't on disk yet.
pub(crate) struct PendingBatch {
    _held: OwnedRwLockReadGuard<()>,
    broken: Arc<AtomicBool>,
}

impl PullRequestTurns {
    pub(crate) fn new() -> Self {
        let slots = std::iter::repeat_with(Mutex::default).take(SLOTS).collect();
        Self { slots }
    }

    /// Waits until no other delivery has the turn of this record.
    pub(crate) async fn wait(&self, key: &StoreKey) -> RecordTurn<'_> {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let mut chain = self.slots[(hasher.finish() % SLOTS as u64) as usize].lock().await;
        // After a rejected batch, the next decision is made on what the store has.
        if chain.deliveries.len() >= MAX_CHAIN || chain.broken.load(Ordering::Acquire) {
            drop(chain.pending.write().await);
            *chain = BatchChain::default();
        }
        RecordTurn { key: key.clone(), chain }
    }
}

impl RecordTurn<'_> {
    /// The key of the record.
    pub(crate) fn key(&self) -> &StoreKey {
        &self.key
    }

    /// The record after the pending batches, and the delivery of the last one; `None` when there are none, so
    /// that the store has the newest version.
    pub(crate) fn newest(&self) -> Option<(String, Versioned<PullRecord>)> {
        let newest = self.chain.newest.as_ref().filter(|(_, newest)| newest.key == self.key)?;
        let idle = self.chain.pending.try_write().is_ok();
        (!idle && !self.chain.broken.load(Ordering::Acquire)).then(|| newest.clone())
    }

    /// Whether a batch of this delivery may be pending.
    pub(crate) fn may_have(&self, delivery: &str) -> bool {
        self.chain.deliveries.contains(delivery)
    }

    /// Waits until no batch is pending; returns `false` if one was rejected.
    pub(crate) async fn wait_for_disk(&self) -> bool {
        drop(self.chain.pending.write().await);
        !self.chain.broken.load(Ordering::Acquire)
    }

    /// Ends the turn when its batch, which changes the record to `newest`, is in line for the writer.
    pub(crate) fn submitted(
        mut self,
        delivery: &str,
        newest: Versioned<PullRecord>,
    ) -> PendingBatch {
        if self.newest().is_none() {
            *self.chain = BatchChain::default();
        }
        self.chain.newest = Some((delivery.to_owned(), newest));
        self.chain.deliveries.insert(delivery.to_owned());
        let held = Arc::clone(&self.chain.pending).try_read_owned();
        PendingBatch {
            _held: held.expect("only the holder of the turn takes the write lock"),
            broken: Arc::clone(&self.chain.broken),
        }
    }
}

impl PendingBatch {
    /// The batch was rejected: nothing may be decided on the record that it would have left behind.
    pub(crate) fn reject(self) {
        self.broken.store(true, Ordering::Release);
    }
}
