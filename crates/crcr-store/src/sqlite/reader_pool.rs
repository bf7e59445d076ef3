//! Connections for reading, beside the one of the writer.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use rusqlite::{Connection, OpenFlags};

use super::{connect, unavailable};
use crate::StoreError;

/// Each connection serves one query at a time.
pub struct ReaderPool {
    connections: Vec<Mutex<Connection>>,
    /// Counts those who had to wait.
    waited: AtomicUsize,
}

impl ReaderPool {
    pub(crate) fn open(path: &Path, vfs: Option<&str>, count: usize) -> Result<Self, StoreError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
        let open = || connect(path, vfs, flags).map(Mutex::new);
        let connections = std::iter::repeat_with(open).take(count).collect::<Result<_, _>>()?;
        Ok(Self { connections, waited: AtomicUsize::new(0) })
    }

    pub(crate) fn close(&mut self) {
        self.connections.clear();
    }

    /// Runs `query` on an idle connection, and waits for one if there is none.
    pub fn with<T>(
        &self,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let idle = self.connections.iter().find_map(Mutex::try_lock);
        let connection = idle.unwrap_or_else(|| {
            // Each connection gets as many of those who wait.
            let turn = self.waited.fetch_add(1, Ordering::Relaxed);
            self.connections[turn % self.connections.len()].lock()
        });
        query(&connection).map_err(unavailable)
    }
}
