//! Deliveries of one pull request take turns, so that none is decided on a record that another one
//! is just changing.
//!
//! A turn ends when its batch has its place in the writer's order, before it is on disk: the next
//! delivery is decided on the record that the batch will leave behind, and expects its version. So a
//! burst on one pull request shares the waits for the disk like a burst on many. If a batch of such a
//! chain is refused, so are those that were decided on it, and all are decided anew.

use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crcr_store::{StoreKey, Versioned};
use tokio::sync::{Mutex, MutexGuard, OwnedRwLockReadGuard, RwLock};

use crate::state_records::PullRecord;

/// Records whose turns are told apart. Two that share a place wait for each other and nothing worse,
/// and the memory is bounded whatever numbers come.
const PLACES: usize = 1024;

/// Batches that follow each other before one waits for all of them to be on disk.
const LONGEST: usize = 256;

/// Turns by the key of the record.
pub(crate) struct Turns {
    places: Vec<Mutex<Chain>>,
    hasher: RandomState,
}

/// Batches of one record that follow each other and are not known to be on disk.
#[derive(Default)]
struct Chain {
    /// The record as the last batch leaves it.
    newest: Option<Versioned<PullRecord>>,
    /// The deliveries whose batches these are.
    deliveries: HashSet<String>,
    /// Held for reading by every batch that is on its way.
    on_the_way: Arc<RwLock<()>>,
    /// One of them was refused.
    broken: Arc<AtomicBool>,
}

/// The right to decide on a record.
pub(crate) struct Turn<'a> {
    key: StoreKey,
    chain: MutexGuard<'a, Chain>,
}

/// A batch on its way to the disk.
pub(crate) struct OnTheWay {
    _held: OwnedRwLockReadGuard<()>,
    broken: Arc<AtomicBool>,
}

impl Turns {
    pub(crate) fn new() -> Self {
        let places = std::iter::repeat_with(Mutex::default).take(PLACES).collect();
        Self { places, hasher: RandomState::new() }
    }

    /// Waits for the turn of the record at `key`.
    pub(crate) async fn take(&self, key: &StoreKey) -> Turn<'_> {
        let place = self.hasher.hash_one(key) % PLACES as u64;
        let mut chain = self.places[place as usize].lock().await;
        if chain.deliveries.len() >= LONGEST {
            drop(chain.on_the_way.write().await);
            *chain = Chain::default();
        }
        Turn { key: key.clone(), chain }
    }
}

impl Turn<'_> {
    /// The record as the batches on their way leave it; `None` when there are none, so that the store
    /// has the newest.
    pub(crate) fn newest(&self) -> Option<Versioned<PullRecord>> {
        let newest = self.chain.newest.as_ref().filter(|newest| newest.key == self.key)?;
        let idle = self.chain.on_the_way.try_write().is_ok();
        (!idle && !self.chain.broken.load(Ordering::Acquire)).then(|| newest.clone())
    }

    /// Whether this delivery may be on its way already.
    pub(crate) fn has(&self, delivery: &str) -> bool {
        self.chain.deliveries.contains(delivery)
    }

    /// Waits until everything on its way is on disk or refused; `false` when something was refused.
    pub(crate) async fn settled(&self) -> bool {
        drop(self.chain.on_the_way.write().await);
        !self.chain.broken.load(Ordering::Acquire)
    }

    /// Ends the turn: the batch that was decided has its place, and leaves `newest` behind.
    pub(crate) fn end(mut self, delivery: &str, newest: Versioned<PullRecord>) -> OnTheWay {
        if self.newest().is_none() {
            *self.chain = Chain::default();
        }
        self.chain.newest = Some(newest);
        self.chain.deliveries.insert(delivery.to_owned());
        let held = Arc::clone(&self.chain.on_the_way).try_read_owned();
        OnTheWay {
            _held: held.expect("only a turn waits for writing, and this is the turn"),
            broken: Arc::clone(&self.chain.broken),
        }
    }
}

impl OnTheWay {
    /// The batch was refused or lost: nobody may decide on what it would have left behind.
    pub(crate) fn refused(self) {
        self.broken.store(true, Ordering::Release);
    }
}
