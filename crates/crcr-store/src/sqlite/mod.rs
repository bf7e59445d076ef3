//! The state in one SQLite file. One writer thread commits whatever has arrived as one transaction;
//! readers run beside it.
//!
//! With `journal_mode=WAL` and `synchronous=FULL`, a batch is answered when its transaction is on
//! disk.

mod backup;
mod database_lock;
mod facts;
mod reader_pool;
mod schema;
mod statements;
#[cfg(test)]
mod tests;
mod writer;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::Mutex;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, Transaction, params};
use tokio::sync::oneshot;

pub use self::backup::{check_database, copy_database};
use self::database_lock::DatabaseLock;
pub use self::reader_pool::ReaderPool;
use self::statements::FactTarget;
use self::statements::{delete_expired, due_lanes, repair_times, take_facts_from_outbox};
pub use self::writer::CheckpointTrigger;
use self::writer::{Reply, WriteOperation, WriteTarget};
use crate::task::Turns;
use crate::{
    LeaseRequest, LeasedTask, NewTask, OUTBOX_BYTES, OutboxEntry, PendingCommit, QueueDepth,
    StateStore, StoreError, StoreHealth, StoreKey, StoredRecord, TaskState, TaskView, WriteBatch,
    start_of_keys,
};

/// Operations that may wait for the writer. When there are more, callers wait.
const WAITING_OPERATIONS: usize = 4096;
/// In KiB. With SQLite's default of 2 MiB, a store that holds a few days makes the writer read pages
/// for every delivery.
const WRITER_CACHE_KIB: i64 = 4 * 1024;
/// Length of the log, in pages, at which the writer makes a checkpoint itself and waits for it:
/// 128 MiB.
const LOG_PAGES: i64 = 32 * 1024;
/// Characters that stay as they are in the path of a `file:` URI.
const PATH_IN_URI: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.').remove(b'~');
/// Connections for short look-ups by key, on the threads that serve requests.
const READERS: usize = 4;
/// Connections for everything that can take long: pages, reviews, listings.
const SLOW_READERS: usize = 4;

/// Values of `task.state`. For a leased task, `due_at` is the end of its lease.
const READY: i64 = 0;
const LEASED: i64 = 1;
const DEAD: i64 = 2;

pub struct SqliteStore {
    writer: Option<SyncSender<WriteOperation>>,
    threads: Vec<JoinHandle<()>>,
    readers: ReaderPool,
    slow_readers: Arc<ReaderPool>,
    fact_target: FactTarget,
    /// When a task of each lane was leased last, for lanes that have had tasks due ever since.
    served: Mutex<HashMap<String, i64>>,
    /// A server holds it for as long as the store is open.
    lock: Option<Arc<DatabaseLock>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreRole {
    /// The one relay. Tasks that a crash left leased are due again at once.
    Server,
    /// A command that may run beside the relay.
    Tool,
}

impl SqliteStore {
    /// Opens or creates the file at `path`.
    ///
    /// [`StoreError::InUse`] when `role` is the server's and another server has the file open.
    pub fn open(path: &Path, role: StoreRole) -> Result<Self, StoreError> {
        Self::open_with(path, role, FactTarget::Tables)
    }

    /// Opens or creates the file at `path` for a server whose results are kept elsewhere: facts wait
    /// in the outbox.
    ///
    /// [`StoreError::InUse`] when another server has the file open.
    pub fn open_with_outbox(path: &Path) -> Result<Self, StoreError> {
        Self::open_with(path, StoreRole::Server, FactTarget::Outbox)
    }

    /// Opens or creates a server's file in a simulated file system, which SQLite knows by the name `vfs`.
    /// Checkpoints are made when the caller makes them.
    #[doc(hidden)]
    pub fn open_simulated(path: &Path, vfs: &str) -> Result<(Self, CheckpointTrigger), StoreError> {
        let (role, fact_target) = (StoreRole::Server, FactTarget::Tables);
        let (store, checkpoints) = Self::open_on(path, Some(vfs), role, fact_target, None)?;
        let none = || StoreError::Unavailable("a server makes checkpoints".to_owned());
        Ok((store, checkpoints.ok_or_else(none)?))
    }

    fn open_with(
        path: &Path,
        role: StoreRole,
        fact_target: FactTarget,
    ) -> Result<Self, StoreError> {
        let lock = match role {
            StoreRole::Server => Some(Arc::new(DatabaseLock::take(path).map_err(of_file(path))?)),
            StoreRole::Tool => None,
        };
        let opened = Self::open_on(path, None, role, fact_target, lock);
        let (mut store, checkpoints) = opened.map_err(of_file(path))?;
        if let Some(checkpoints) = checkpoints {
            store.threads.insert(0, spawn("checkpoint", move || checkpoints.make_requested())?);
        }
        Ok(store)
    }

    fn open_on(
        path: &Path,
        vfs: Option<&str>,
        role: StoreRole,
        fact_target: FactTarget,
        lock: Option<Arc<DatabaseLock>>,
    ) -> Result<(Self, Option<CheckpointTrigger>), StoreError> {
        let mut connection = connect(path, vfs, OpenFlags::default())?;
        if schema::version(&connection, path)? < schema::VERSION {
            // No other process may use the tables during an upgrade.
            let _lock = match role {
                StoreRole::Server => None,
                StoreRole::Tool => Some(DatabaseLock::take(path).map_err(|error| match error {
                    StoreError::InUse(path) => StoreError::Older(path),
                    error => error,
                })?),
            };
            schema::upgrade(&mut connection, path)?;
        }
        if role == StoreRole::Server {
            let recover = |tx: &Transaction<'_>| -> rusqlite::Result<()> {
                tx.execute(
                    "UPDATE task SET state = ?1, due_at = min(due_at, created_at) WHERE state = ?2",
                    [READY, LEASED],
                )?;
                if fact_target == FactTarget::Tables {
                    take_facts_from_outbox(tx)?;
                }
                Ok(())
            };
            let tx = connection.transaction().map_err(unavailable)?;
            recover(&tx).and_then(|()| tx.commit()).map_err(unavailable)?;
        }
        let readers = ReaderPool::open(path, vfs, READERS)?;
        let slow_readers = Arc::new(ReaderPool::open(path, vfs, SLOW_READERS)?);
        let (writer, operations) = sync_channel(WAITING_OPERATIONS);
        let (log_is_long, requests) = sync_channel(1);
        let mut checkpoints = None;
        if role == StoreRole::Server {
            connection.pragma_update(None, "wal_autocheckpoint", LOG_PAGES).map_err(unavailable)?;
            connection.pragma_update(None, "cache_size", -WRITER_CACHE_KIB).map_err(unavailable)?;
            let connection = connect(path, vfs, OpenFlags::default())?;
            checkpoints = Some(CheckpointTrigger { connection, requests });
        }
        let mut target = WriteTarget { connection, fact_target, lock: lock.clone() };
        let run = move || writer::commit_operations(&mut target, &operations, &log_is_long);
        let threads = vec![spawn("store", run)?];
        let (writer, served) = (Some(writer), Mutex::default());
        let store = Self { writer, threads, readers, slow_readers, fact_target, served, lock };
        Ok((store, checkpoints))
    }

    /// Opens the file at `path` for reading, whether or not a server has it open. Creates nothing,
    /// changes nothing and leaves nothing behind; writing fails.
    ///
    /// [`StoreError::Unavailable`] when there is no such file, or it isn't a relay's.
    pub fn read_only(path: &Path) -> Result<Self, StoreError> {
        Self::open_read_only(path).map_err(of_file(path))
    }

    fn open_read_only(path: &Path) -> Result<Self, StoreError> {
        // SQLite names the address below instead of the reason.
        std::fs::metadata(path).map_err(|error| StoreError::Unavailable(error.to_string()))?;
        let mut log = path.as_os_str().to_owned();
        log.push("-wal");
        // Whoever has the file open also has its log. Without a log nobody writes, and only
        // `immutable` keeps SQLite from creating one, which would be left behind.
        // https://sqlite.org/wal.html#read_only_databases
        let target = if Path::new(&log).exists() {
            path.to_owned()
        } else {
            let path = percent_encode(path.as_os_str().as_encoded_bytes(), PATH_IN_URI);
            PathBuf::from(format!("file:{path}?mode=ro&immutable=1"))
        };
        let readers = ReaderPool::open(&target, None, 1).map_err(|error| match error {
            StoreError::Newer { found, supported, .. } => {
                StoreError::Newer { path: path.display().to_string(), found, supported }
            }
            error => error,
        })?;
        readers.with(|connection| connection.prepare("SELECT 1 FROM fact_dispatch").map(drop))?;
        let slow_readers = Arc::new(ReaderPool::open(&target, None, SLOW_READERS)?);
        let (writer, threads, fact_target) = (None, vec![], FactTarget::Tables);
        let served = Mutex::default();
        Ok(Self { writer, threads, readers, slow_readers, fact_target, served, lock: None })
    }

    /// Connections for queries that can take long. The calling thread has to be one that may block.
    pub fn slow_readers(&self) -> &ReaderPool {
        &self.slow_readers
    }

    /// Runs `write` in the writer's next transaction, and returns the number of rows that it reports.
    /// It should take a few milliseconds at most: every other write waits for it.
    pub async fn write(
        &self,
        write: impl Fn(&Transaction<'_>) -> rusqlite::Result<u64> + Send + 'static,
    ) -> Result<u64, StoreError> {
        let reply = self.send(|reply| WriteOperation::Custom(Box::new(write), reply)).await?;
        reply.await.map_err(|_| writer_gone())?
    }

    /// The lanes that can get tasks now, the one whose turn it is first: the one that has waited longest
    /// for its earliest task, or since it was served last.
    fn in_turn(&self, due: Vec<(String, i64)>, now: i64, request: &LeaseRequest) -> Vec<String> {
        let mut served = self.served.lock();
        let mut lanes: Vec<_> = due
            .into_iter()
            .map(|(lane, earliest)| {
                let last = served.remove(&lane).filter(|at| *at <= now);
                (last.map_or(earliest, |at| at.max(earliest)), earliest, lane, last)
            })
            .collect();
        served.clear();
        served.extend(lanes.iter().filter_map(|(_, _, lane, last)| Some((lane.clone(), (*last)?))));
        lanes.sort_unstable();
        let mut turns = Turns::new(request);
        for (_, _, lane, _) in lanes {
            turns.add(lane);
        }
        turns.lanes().iter().map(|lane| lane.lane.clone()).collect()
    }

    async fn read_slowly<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let readers = Arc::clone(&self.slow_readers);
        match tokio::task::spawn_blocking(move || readers.with(read)).await {
            Ok(result) => result,
            Err(error) => Err(StoreError::Unavailable(error.to_string())),
        }
    }

    /// Hands an operation to the writer, which applies operations in the order of these calls.
    async fn send<T>(
        &self,
        operation: impl FnOnce(Reply<T>) -> WriteOperation,
    ) -> Result<oneshot::Receiver<Result<T, StoreError>>, StoreError> {
        let (reply, answer) = oneshot::channel();
        let mut operation = operation(reply);
        let writer = self.writer.as_ref().ok_or_else(writer_gone)?;
        loop {
            match writer.try_send(operation) {
                Ok(()) => return Ok(answer),
                Err(TrySendError::Disconnected(_)) => return Err(writer_gone()),
                Err(TrySendError::Full(unsent)) => operation = unsent,
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        // The writer's connection has to be the last one to close: it moves the log into the file,
        // which a read-only connection can't.
        self.readers.close();
        if let Some(slow) = Arc::get_mut(&mut self.slow_readers) {
            slow.close();
        }
        drop(self.writer.take());
        // In reverse order: when the writer has ended, nobody asks for a checkpoint any more.
        for thread in self.threads.drain(..).rev() {
            // A thread that panicked has already printed why.
            let _ = thread.join();
        }
    }
}

#[async_trait]
impl StateStore for SqliteStore {
    async fn records(&self, keys: &[StoreKey]) -> Result<Vec<Option<StoredRecord>>, StoreError> {
        // A few index look-ups in memory take less time than a switch to another thread.
        self.readers.with(|connection| {
            let mut statement =
                connection.prepare_cached("SELECT version, value FROM record WHERE key = ?1")?;
            let look_up = |key: &StoreKey| {
                statement
                    .query_row([key.as_str()], |row| {
                        Ok(StoredRecord { version: unsigned(row, 0)?, value: row.get(1)? })
                    })
                    .optional()
            };
            keys.iter().map(look_up).collect()
        })
    }

    async fn members(&self, set: &StoreKey, limit: usize) -> Result<Vec<String>, StoreError> {
        self.readers.with(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT member FROM member WHERE set_key = ?1 ORDER BY score DESC, member LIMIT ?2",
            )?;
            let members = params![set.as_str(), row_limit(limit)];
            statement.query_map(members, |row| row.get(0))?.collect()
        })
    }

    async fn submit(&self, batch: WriteBatch, now: Timestamp) -> Result<PendingCommit, StoreError> {
        let operation = |reply| WriteOperation::Commit(Box::new(batch), now, reply);
        self.send(operation).await.map(PendingCommit)
    }

    async fn lease_tasks(&self, request: LeaseRequest) -> Result<Vec<LeasedTask>, StoreError> {
        let now = millis(request.now);
        let due = self.readers.with(|connection| due_lanes(connection, now))?;
        let lanes = self.in_turn(due, now, &request);
        if lanes.is_empty() || request.max_tasks == 0 {
            return Ok(vec![]);
        }
        let reply = self.send(|reply| WriteOperation::Lease(request, lanes, reply)).await?;
        let leased = reply.await.map_err(|_| writer_gone())??;
        let mut served = self.served.lock();
        served.extend(leased.iter().map(|task| (task.lane.clone(), now)));
        Ok(leased)
    }

    async fn tasks(
        &self,
        state: Option<TaskState>,
        limit: usize,
    ) -> Result<Vec<TaskView>, StoreError> {
        let state = state.map(state_column);
        self.read_slowly(move |connection| {
            let mut statement = connection.prepare_cached(
                "SELECT key, lane, state, failed, due_at, created_at, last_error FROM task
                 WHERE ?1 IS NULL OR state = ?1 ORDER BY due_at LIMIT ?2",
            )?;
            let view = |row: &rusqlite::Row<'_>| {
                Ok(TaskView {
                    key: row.get(0)?,
                    lane: row.get(1)?,
                    state: match row.get(2)? {
                        READY => TaskState::Ready,
                        LEASED => TaskState::Leased,
                        _ => TaskState::Dead,
                    },
                    failed: row.get(3)?,
                    due_at: timestamp(row.get(4)?),
                    created_at: timestamp(row.get(5)?),
                    last_error: row.get(6)?,
                })
            };
            statement.query_map(params![state, row_limit(limit)], view)?.collect()
        })
        .await
    }

    async fn find_task(&self, key: &str, state: TaskState) -> Result<Option<NewTask>, StoreError> {
        self.readers.with(|connection| {
            connection
                .prepare_cached(
                    "SELECT lane, payload, due_at FROM task WHERE key = ?1 AND state = ?2",
                )?
                .query_row(params![key, state_column(state)], |row| {
                    Ok(NewTask {
                        key: StoreKey(key.to_owned()),
                        lane: row.get(0)?,
                        payload: row.get(1)?,
                        due_at: timestamp(row.get(2)?),
                    })
                })
                .optional()
        })
    }

    async fn discard_dead_task(&self, key: &str) -> Result<bool, StoreError> {
        let key = key.to_owned();
        let deleted = self.write(move |tx| {
            let mut delete = tx.prepare_cached("DELETE FROM task WHERE key = ?1 AND state = ?2")?;
            Ok(delete.execute(params![key, DEAD])? as u64)
        });
        Ok(deleted.await? > 0)
    }

    async fn queue_depth(&self) -> Result<QueueDepth, StoreError> {
        self.read_slowly(|connection| {
            let mut depth = QueueDepth::default();
            let mut statement =
                connection.prepare_cached("SELECT state, count(*) FROM task GROUP BY state")?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                match row.get::<_, i64>(0)? {
                    READY => depth.ready = unsigned(row, 1)?,
                    LEASED => depth.leased = unsigned(row, 1)?,
                    _ => depth.dead = unsigned(row, 1)?,
                }
            }
            depth.facts = connection
                .prepare_cached("SELECT count(*) FROM outbox")?
                .query_row([], |row| unsigned(row, 0))?;
            Ok(depth)
        })
        .await
    }

    async fn count_tasks(&self, kind: &str) -> Result<u64, StoreError> {
        let range = range_of_keys(kind);
        self.read_slowly(move |connection| {
            connection
                .prepare_cached("SELECT count(*) FROM task WHERE key >= ?1 AND key < ?2")?
                .query_row(range, |row| unsigned(row, 0))
        })
        .await
    }

    async fn task_keys(&self, kind: &str, state: TaskState) -> Result<Vec<String>, StoreError> {
        let [start, end] = range_of_keys(kind);
        self.read_slowly(move |connection| {
            let mut statement = connection.prepare_cached(
                "SELECT key FROM task WHERE key >= ?1 AND key < ?2 AND state = ?3 ORDER BY key",
            )?;
            let wanted = params![start, end, state_column(state)];
            statement.query_map(wanted, |row| row.get(0))?.collect()
        })
        .await
    }

    fn stores_facts(&self) -> bool {
        self.fact_target == FactTarget::Tables
    }

    fn health(&self) -> StoreHealth {
        let weaker_promise = self.lock.as_ref().and_then(|lock| lock.loss());
        StoreHealth { weaker_promise, ..StoreHealth::default() }
    }

    async fn outbox(&self, limit: usize) -> Result<Vec<OutboxEntry>, StoreError> {
        let entries: Vec<(i64, String)> = self
            .read_slowly(move |connection| {
                let mut oldest = connection
                    .prepare_cached("SELECT id, fact FROM outbox ORDER BY id LIMIT ?1")?;
                let mut oldest = oldest.query([row_limit(limit)])?;
                let (mut entries, mut bytes) = (vec![], 0);
                while bytes < OUTBOX_BYTES
                    && let Some(row) = oldest.next()?
                {
                    let (id, fact): (i64, String) = (row.get(0)?, row.get(1)?);
                    bytes += fact.len();
                    entries.push((id, fact));
                }
                Ok(entries)
            })
            .await?;
        let entries = entries.into_iter();
        Ok(entries.map(|(id, text)| OutboxEntry::new(id.to_string(), text)).collect())
    }

    async fn remove_from_outbox(&self, last: &str) -> Result<(), StoreError> {
        let last: i64 = last.parse().map_err(|_| StoreError::Malformed {
            key: format!("outbox {last}"),
            reason: "the id isn't a number".to_owned(),
        })?;
        let remove = self.write(move |tx| {
            let mut delete = tx.prepare_cached("DELETE FROM outbox WHERE id <= ?1")?;
            Ok(delete.execute([last])? as u64)
        });
        remove.await.map(drop)
    }

    async fn repair_times(&self, now: Timestamp) -> Result<u64, StoreError> {
        self.served.lock().clear();
        self.write(move |tx| repair_times(tx, millis(now))).await
    }

    async fn delete_expired(&self, now: Timestamp) -> Result<u64, StoreError> {
        self.write(move |tx| delete_expired(tx, millis(now))).await
    }
}

fn writer_gone() -> StoreError {
    StoreError::Unavailable("it was opened for reading only, or its writer has stopped".to_owned())
}

/// Opens the file, unless a newer crcr wrote it.
fn connect(path: &Path, vfs: Option<&str>, flags: OpenFlags) -> Result<Connection, StoreError> {
    let connection = match vfs {
        Some(vfs) => Connection::open_with_flags_and_vfs(path, flags, vfs),
        None => Connection::open_with_flags(path, flags),
    };
    let connection = connection.map_err(unavailable)?;
    connection.busy_timeout(Duration::from_secs(5)).map_err(unavailable)?;
    schema::version(&connection, path)?;
    if !flags.contains(OpenFlags::SQLITE_OPEN_READ_ONLY) {
        let journal_size_limit = (64_i64 << 20).to_string();
        for (name, value) in [
            ("journal_mode", "WAL"),
            ("synchronous", "FULL"),
            ("wal_autocheckpoint", "4000"),
            // A log that grew under load is cut back to this size.
            ("journal_size_limit", &journal_size_limit),
        ] {
            connection.pragma_update(None, name, value).map_err(unavailable)?;
        }
    }
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, StoreError> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(run)
        .map_err(|error| StoreError::Unavailable(error.to_string()))
}

/// A limit as SQLite takes it.
fn row_limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// A column that is never negative.
fn unsigned(row: &rusqlite::Row<'_>, column: usize) -> rusqlite::Result<u64> {
    row.get::<_, i64>(column).map(i64::cast_unsigned)
}

/// The first of the keys that start with `kind`, and what follows the last one. Keys are JSON lists: the first part ends
/// with `,`, and `-` is the next character after it.
fn range_of_keys(kind: &str) -> [String; 2] {
    let start = start_of_keys(kind);
    let end = format!("{}-", start.trim_end_matches(','));
    [start, end]
}

fn state_column(state: TaskState) -> i64 {
    match state {
        TaskState::Ready => READY,
        TaskState::Leased => LEASED,
        TaskState::Dead => DEAD,
    }
}

/// [`StoreError::InUse`] while a server has the file open.
pub fn expect_no_server(path: &Path) -> Result<(), StoreError> {
    DatabaseLock::take(path).map(drop).map_err(of_file(path))
}

pub fn millis(time: Timestamp) -> i64 {
    time.as_millisecond()
}

pub fn timestamp(millis: i64) -> Timestamp {
    Timestamp::from_millisecond(millis).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Names the file that can't be opened: the state and the results may be in one each.
fn of_file(path: &Path) -> impl Fn(StoreError) -> StoreError {
    move |error| match error {
        StoreError::Unavailable(why) => {
            StoreError::Unavailable(format!("`{}`: {why}", path.display()))
        }
        error => error,
    }
}

#[expect(clippy::needless_pass_by_value, reason = "a function for `map_err`")]
fn unavailable(error: rusqlite::Error) -> StoreError {
    StoreError::Unavailable(error.to_string())
}
