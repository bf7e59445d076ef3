//! The memory of all request bodies together. Nobody waits for a slow client: when it is full, the body goes
//! that arrives most slowly.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// How many bodies were dropped because they arrived more slowly than others, since the process started.
pub(crate) static DROPPED_BODIES: AtomicU64 = AtomicU64::new(0);

pub(crate) struct BodyMemory {
    max_bytes: usize,
    bodies: Mutex<Bodies>,
    freed: Notify,
}

#[derive(Default)]
struct Bodies {
    bytes: usize,
    next: u64,
    /// Bodies that haven't arrived whole.
    arriving: BTreeMap<u64, ArrivingBody>,
}

struct ArrivingBody {
    bytes: usize,
    since: Instant,
    dropped: CancellationToken,
}

impl ArrivingBody {
    fn bytes_per_second(&self) -> f64 {
        // A body of which little has arrived yet isn't slow.
        self.bytes as f64 / (self.since.elapsed().as_secs_f64() + 0.001)
    }
}

/// The part of the memory that one body takes, until this is dropped.
pub(crate) struct BodyShare<'a> {
    memory: &'a BodyMemory,
    id: u64,
    bytes: usize,
    /// Cancelled when the body has to go.
    pub(crate) dropped: CancellationToken,
}

impl BodyMemory {
    pub(crate) const fn new(max_bytes: usize) -> Self {
        let bodies = Bodies { bytes: 0, next: 0, arriving: BTreeMap::new() };
        Self { max_bytes, bodies: Mutex::new(bodies), freed: Notify::const_new() }
    }

    pub(crate) fn begin(&self) -> BodyShare<'_> {
        let dropped = CancellationToken::new();
        let mut bodies = self.bodies.lock();
        let id = bodies.next;
        bodies.next += 1;
        let body = ArrivingBody { bytes: 0, since: Instant::now(), dropped: dropped.clone() };
        bodies.arriving.insert(id, body);
        BodyShare { memory: self, id, bytes: 0, dropped }
    }

    /// Drops bodies that arrive slowly until there is room for `bytes`, as far as that is possible.
    fn drop_slow_ones(&self, bodies: &mut Bodies, bytes: usize) {
        let mut promised: usize = bodies
            .arriving
            .values()
            .filter(|body| body.dropped.is_cancelled())
            .map(|body| body.bytes)
            .sum();
        while bodies.bytes - promised + bytes > self.max_bytes {
            let left = bodies
                .arriving
                .values()
                .filter(|body| body.bytes > 0 && !body.dropped.is_cancelled());
            let slowest = left.min_by(|a, b| a.bytes_per_second().total_cmp(&b.bytes_per_second()));
            let Some(slowest) = slowest else { return };
            promised += slowest.bytes;
            slowest.dropped.cancel();
            if DROPPED_BODIES.fetch_add(1, Ordering::Relaxed) == 0 {
                tracing::warn!(
                    "the memory for requests is full: bodies that arrive slowly are dropped. This is logged \
                     once and counted in `crcr_bodies_dropped`"
                );
            }
        }
    }
}

impl BodyShare<'_> {
    /// Takes memory for more bytes of the body. Waits while others are being dropped or worked on.
    pub(crate) async fn add(&mut self, bytes: usize) {
        loop {
            let freed = self.memory.freed.notified();
            {
                let mut bodies = self.memory.bodies.lock();
                if bodies.bytes + bytes <= self.memory.max_bytes {
                    bodies.bytes += bytes;
                    self.bytes += bytes;
                    if let Some(body) = bodies.arriving.get_mut(&self.id) {
                        body.bytes += bytes;
                    }
                    return;
                }
                self.memory.drop_slow_ones(&mut bodies, bytes);
            }
            freed.await;
        }
    }

    /// The body has arrived whole, and isn't dropped any more.
    pub(crate) fn arrived(&self) {
        self.memory.bodies.lock().arriving.remove(&self.id);
    }
}

impl Drop for BodyShare<'_> {
    fn drop(&mut self) {
        let mut bodies = self.memory.bodies.lock();
        bodies.arriving.remove(&self.id);
        bodies.bytes -= self.bytes;
        self.memory.freed.notify_waiters();
    }
}
