//! Where the facts go.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use crcr_domain::results::facts::Fact;
use crcr_results::Results as _;
use crcr_results::sqlite::SqliteResults;
use crcr_store::{SqliteStore, StoreRole};

/// Results that stay empty: without probes, nothing that the invariants look at is read from them.
static EMPTY: LazyLock<(tempfile::TempDir, SqliteResults)> = LazyLock::new(open);

pub(crate) struct SimulatedResults(Option<(tempfile::TempDir, SqliteResults)>);

impl SimulatedResults {
    pub(crate) fn new(are_read: bool) -> Self {
        Self(are_read.then(open))
    }

    pub(crate) fn sqlite(&self) -> SqliteResults {
        self.0.as_ref().map_or_else(|| EMPTY.1.clone(), |(_, results)| results.clone())
    }

    pub(crate) fn append(&self, facts: Vec<Fact>) {
        let Some((_, results)) = self.0.as_ref().filter(|_| !facts.is_empty()) else { return };
        wait_for(results.append(facts)).expect("a new store takes every fact");
    }
}

fn open() -> (tempfile::TempDir, SqliteResults) {
    // They needn't outlive the process, and most machines have a folder in memory.
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let folder = folder.expect("a temporary folder can be made");
    let store = SqliteStore::open(&folder.path().join("results.db"), StoreRole::Server);
    // Which of two threads is faster isn't decided by the seed.
    let results = SqliteResults::new(Arc::new(store.expect("a new store can be opened")));
    (folder, results.reading_inline())
}

/// Waits for another thread. The runtime doesn't notice, so its paused clock doesn't move meanwhile.
fn wait_for<T>(future: impl Future<Output = T>) -> T {
    struct ThreadWaker(Thread);
    impl Wake for ThreadWaker {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(ThreadWaker(std::thread::current())));
    let mut future = pin!(tokio::task::unconstrained(future));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(done) => return done,
            Poll::Pending => std::thread::park(),
        }
    }
}
