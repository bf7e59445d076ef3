//! SQLite: one file, one writer thread that commits whatever has come in as one transaction, and
//! readers beside it.
//!
//! `journal_mode=WAL` and `synchronous=FULL`: a batch is answered after its transaction is on disk.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::Mutex;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, Transaction, params};
use tokio::sync::oneshot;

use crate::{
    Batch, Commit, Depth, Key, Pending, Record, StateStore, StoreError, Task, TaskView, Waiting,
    Want,
};

mod facts;
mod schema;
mod statements;

use statements::{apply, due_lanes, empty_outbox, lease, prune};

/// Operations that one transaction takes at most; one fsync pays for all of them.
const GROUP: usize = 512;
/// Bytes of records after which a transaction is closed.
const GROUP_BYTES: usize = 16 * 1024 * 1024;
/// Operations that may wait for the writer; more wait for a place.
const WAITING: usize = 4096;
/// About how much goes to the log between two checkpoints, which run beside the writer.
const CHECKPOINT_BYTES: usize = 16 * 1024 * 1024;
/// Pages that an operation changes beside its records, for the estimate of that.
const PAGES_EACH: usize = 8;
/// What the writer keeps of the file in memory, in KiB: with SQLite's 2 MiB a store of a few days has
/// it read pages for every delivery.
const WRITER_CACHE: i64 = 4 * 1024;
/// Pages of the log at which the writer makes a checkpoint of its own, and waits for it: 128 MiB.
const LOG_PAGES: i64 = 32 * 1024;
/// What stands for itself in the path of a `file:` URI.
const PATH_IN_URI: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.').remove(b'~');
/// Connections for short look-ups by key, on the threads that serve requests.
const READERS: usize = 4;
/// Connections for everything that may take long: pages, reviews, listings.
const SLOW_READERS: usize = 4;

/// Values of `task.state`. A leased task's `due_at` is the end of its lease.
const READY: i64 = 0;
const LEASED: i64 = 1;
const DEAD: i64 = 2;

/// A relay's state in one SQLite file.
pub struct Sqlite {
    writer: Option<SyncSender<Op>>,
    threads: Vec<JoinHandle<()>>,
    readers: Readers,
    slow_readers: Arc<Readers>,
    facts: Facts,
    /// Held for as long as the store is open by a server.
    _lock: Option<File>,
}

enum Op {
    Commit(Box<Batch>, Timestamp, Reply<Commit>),
    /// With the lanes that have due tasks.
    Lease(Want, Vec<(String, i64)>, Reply<Vec<Task>>),
    /// Anything else that is written; it returns how many rows that were.
    Write(Write, Reply<u64>),
}

type Reply<T> = oneshot::Sender<Result<T, StoreError>>;
type Write = Box<dyn Fn(&Transaction<'_>) -> rusqlite::Result<u64> + Send>;

/// Where the facts of a batch go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Facts {
    /// Into the tables that results are read from.
    Tables,
    /// Into the outbox, to be copied elsewhere.
    Outbox,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The one server: leases that a crash left behind come back at once.
    Server,
    Tool,
}

impl Sqlite {
    /// Opens or creates the file at `path`.
    ///
    /// [`StoreError::InUse`] when `role` is the server's and another server has the file open.
    pub fn open(path: &Path, role: Role) -> Result<Self, StoreError> {
        Self::open_as(path, role, Facts::Tables)
    }

    /// Opens or creates the file at `path` for the server; facts wait in its outbox for results
    /// that are kept elsewhere.
    ///
    /// [`StoreError::InUse`] when another server has the file open.
    pub fn open_with_outbox(path: &Path) -> Result<Self, StoreError> {
        Self::open_as(path, Role::Server, Facts::Outbox)
    }

    fn open_as(path: &Path, role: Role, facts: Facts) -> Result<Self, StoreError> {
        let lock = match role {
            Role::Server => Some(lock_of(path)?),
            Role::Tool => None,
        };
        let mut connection = connect(path, OpenFlags::default())?;
        if schema::version(&connection, path)? < schema::VERSION {
            // Nobody else may be at work on the tables.
            let _alone = match role {
                Role::Server => None,
                Role::Tool => Some(lock_of(path).map_err(|error| match error {
                    StoreError::InUse(path) => StoreError::Older(path),
                    error => error,
                })?),
            };
            schema::upgrade(&mut connection, path)?;
        }
        if role == Role::Server {
            let recover = |tx: &Transaction<'_>| -> rusqlite::Result<()> {
                tx.execute(
                    "UPDATE task SET state = ?1, due_at = created_at WHERE state = ?2",
                    [READY, LEASED],
                )?;
                if facts == Facts::Tables {
                    empty_outbox(tx)?;
                }
                Ok(())
            };
            let tx = connection.transaction().map_err(unavailable)?;
            recover(&tx).and_then(|()| tx.commit()).map_err(unavailable)?;
        }
        let readers = Readers::open(path, READERS)?;
        let slow_readers = Arc::new(Readers::open(path, SLOW_READERS)?);
        let (writer, ops) = sync_channel(WAITING);
        let (much, asked) = sync_channel(1);
        let mut threads = vec![];
        if role == Role::Server {
            connection.pragma_update(None, "wal_autocheckpoint", LOG_PAGES).map_err(unavailable)?;
            connection.pragma_update(None, "cache_size", -WRITER_CACHE).map_err(unavailable)?;
            let beside = connect(path, OpenFlags::default())?;
            threads.push(spawn("checkpoint", move || checkpoint_all(&beside, &asked))?);
        }
        threads.push(spawn("store", move || write_all(&mut connection, &ops, &much, facts))?);
        Ok(Self { writer: Some(writer), threads, readers, slow_readers, facts, _lock: lock })
    }

    /// Opens the file at `path` to read: creates nothing, changes nothing, and leaves nothing
    /// behind, beside a server that has it open or without one. Writing fails.
    ///
    /// [`StoreError::Unavailable`] when there is no such file, or it is no relay's.
    pub fn read_only(path: &Path) -> Result<Self, StoreError> {
        let mut log = path.as_os_str().to_owned();
        log.push("-wal");
        // Who has the file open has its log, too. Without one nobody writes, and only `immutable`
        // keeps SQLite from making a log of its own, which would be left behind.
        // https://sqlite.org/wal.html#read_only_databases
        let target = if Path::new(&log).exists() {
            path.to_owned()
        } else {
            let path = percent_encode(path.as_os_str().as_encoded_bytes(), PATH_IN_URI);
            PathBuf::from(format!("file:{path}?mode=ro&immutable=1"))
        };
        let readers = Readers::open(&target, 1).map_err(|error| match error {
            StoreError::Newer { found, known, .. } => {
                StoreError::Newer { path: path.display().to_string(), found, known }
            }
            error => error,
        })?;
        readers.with(|connection| connection.prepare("SELECT 1 FROM fact_dispatch").map(drop))?;
        let slow_readers = Arc::new(Readers::open(&target, SLOW_READERS)?);
        let (writer, threads, facts) = (None, vec![], Facts::Tables);
        Ok(Self { writer, threads, readers, slow_readers, facts, _lock: None })
    }

    /// The connections for reading that may take long, for threads that may block.
    pub fn slow_readers(&self) -> &Readers {
        &self.slow_readers
    }

    /// Has the writer do `write` together with whatever else has come, and returns how many rows it
    /// says it wrote. It should take a few milliseconds at the most.
    pub async fn write(
        &self,
        write: impl Fn(&Transaction<'_>) -> rusqlite::Result<u64> + Send + 'static,
    ) -> Result<u64, StoreError> {
        self.answer(self.send(|reply| Op::Write(Box::new(write), reply)).await?).await
    }

    async fn answer<T>(
        &self,
        answer: oneshot::Receiver<Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        answer.await.map_err(|_| writer_gone())?
    }

    /// Reads off the threads that serve requests.
    async fn read_slowly<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let readers = Arc::clone(&self.slow_readers);
        match tokio::task::spawn_blocking(move || readers.with(read)).await {
            Ok(answer) => answer,
            Err(error) => Err(StoreError::Unavailable(error.to_string())),
        }
    }

    /// Gives the writer an operation; the order of these calls is the order of the operations.
    async fn send<T>(
        &self,
        op: impl FnOnce(Reply<T>) -> Op,
    ) -> Result<oneshot::Receiver<Result<T, StoreError>>, StoreError> {
        let (reply, answer) = oneshot::channel();
        let mut op = op(reply);
        let writer = self.writer.as_ref().ok_or_else(writer_gone)?;
        loop {
            match writer.try_send(op) {
                Ok(()) => return Ok(answer),
                Err(std::sync::mpsc::TrySendError::Disconnected(_)) => return Err(writer_gone()),
                Err(std::sync::mpsc::TrySendError::Full(back)) => op = back,
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        // The writer's connection has to be the last one: it empties the log into the file, which one
        // that only reads can't.
        self.readers.connections.clear();
        if let Some(slow) = Arc::get_mut(&mut self.slow_readers) {
            slow.connections.clear();
        }
        drop(self.writer.take());
        // The writer ends first, and then has nobody to ask for a checkpoint.
        for thread in self.threads.drain(..).rev() {
            // One that panicked has said so already.
            let _ = thread.join();
        }
    }
}

#[async_trait]
impl StateStore for Sqlite {
    async fn get(&self, keys: &[Key]) -> Result<Vec<Option<Record>>, StoreError> {
        // A few index look-ups in memory: shorter than handing them to another thread.
        self.readers.with(|connection| {
            let mut statement =
                connection.prepare_cached("SELECT version, value FROM record WHERE key = ?1")?;
            let look_up = |key: &Key| {
                statement
                    .query_row([key.as_str()], |row| {
                        Ok(Record { version: count(row, 0)?, value: row.get(1)? })
                    })
                    .optional()
            };
            keys.iter().map(look_up).collect()
        })
    }

    async fn members(&self, set: &Key, limit: usize) -> Result<Vec<String>, StoreError> {
        self.readers.with(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT member FROM member WHERE set_key = ?1 ORDER BY score DESC, member LIMIT ?2",
            )?;
            statement.query_map(params![set.as_str(), rows(limit)], |row| row.get(0))?.collect()
        })
    }

    async fn submit(&self, batch: Batch, now: Timestamp) -> Result<Pending, StoreError> {
        self.send(|reply| Op::Commit(Box::new(batch), now, reply)).await.map(Pending)
    }

    async fn lease(&self, want: Want) -> Result<Vec<Task>, StoreError> {
        let mut lanes = self.readers.with(|connection| due_lanes(connection, millis(want.now)))?;
        let is_full = |lane: &str| want.busy.get(lane).is_some_and(|busy| *busy >= want.per_lane);
        lanes.retain(|(lane, _)| !is_full(lane));
        if lanes.is_empty() || want.max == 0 {
            return Ok(vec![]);
        }
        self.answer(self.send(|reply| Op::Lease(want, lanes, reply)).await?).await
    }

    async fn tasks(&self, state: Option<&str>, limit: usize) -> Result<Vec<TaskView>, StoreError> {
        let state = state.map(|state| state_number(state).unwrap_or(-1));
        self.read_slowly(move |connection| {
            let mut statement = connection.prepare_cached(
                "SELECT key, lane, state, failed, due_at, created_at, last_error FROM task
                 WHERE ?1 IS NULL OR state = ?1 ORDER BY due_at LIMIT ?2",
            )?;
            let view = |row: &rusqlite::Row<'_>| {
                Ok(TaskView {
                    key: row.get(0)?,
                    lane: row.get(1)?,
                    state: state_name(row.get(2)?).to_owned(),
                    failed: row.get(3)?,
                    due_at: timestamp(row.get(4)?),
                    created_at: timestamp(row.get(5)?),
                    last_error: row.get(6)?,
                })
            };
            statement.query_map(params![state, rows(limit)], view)?.collect()
        })
        .await
    }

    async fn payload(&self, key: &str, state: &str) -> Result<Option<String>, StoreError> {
        let state = state_number(state).unwrap_or(-1);
        self.readers.with(|connection| {
            connection
                .prepare_cached("SELECT payload FROM task WHERE key = ?1 AND state = ?2")?
                .query_row(params![key, state], |row| row.get(0))
                .optional()
        })
    }

    async fn discard(&self, key: &str) -> Result<bool, StoreError> {
        let key = key.to_owned();
        let gone = self.write(move |tx| {
            let mut delete = tx.prepare_cached("DELETE FROM task WHERE key = ?1 AND state = ?2")?;
            Ok(delete.execute(params![key, DEAD])? as u64)
        });
        Ok(gone.await? > 0)
    }

    async fn depth(&self) -> Result<Depth, StoreError> {
        self.read_slowly(|connection| {
            let mut depth = Depth::default();
            let mut statement =
                connection.prepare_cached("SELECT state, count(*) FROM task GROUP BY state")?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                match row.get::<_, i64>(0)? {
                    READY => depth.ready = count(row, 1)?,
                    LEASED => depth.leased = count(row, 1)?,
                    _ => depth.dead = count(row, 1)?,
                }
            }
            let waiting = "SELECT count(*) FROM outbox";
            depth.facts = connection.prepare_cached(waiting)?.query_row([], |row| count(row, 0))?;
            Ok(depth)
        })
        .await
    }

    async fn count_of(&self, kind: &str) -> Result<u64, StoreError> {
        // Keys are JSON lists, and `-` comes after the `,` that ends their first part.
        let key = Key::new(&[kind]);
        let start = key.as_str().trim_end_matches(']').to_owned();
        self.read_slowly(move |connection| {
            connection
                .prepare_cached("SELECT count(*) FROM task WHERE key >= ?1 AND key < ?2")?
                .query_row([format!("{start},"), format!("{start}-")], |row| count(row, 0))
        })
        .await
    }

    fn keeps_facts(&self) -> bool {
        self.facts == Facts::Tables
    }

    async fn outbox(&self, limit: usize) -> Result<Vec<Waiting>, StoreError> {
        let waiting: Vec<(i64, String)> = self
            .read_slowly(move |connection| {
                connection
                    .prepare_cached("SELECT id, fact FROM outbox ORDER BY id LIMIT ?1")?
                    .query_map([rows(limit)], |row| Ok((row.get(0)?, row.get(1)?)))?
                    .collect()
            })
            .await?;
        let parsed = waiting.into_iter().map(|(id, text)| {
            let fact = serde_json::from_str(&text).map_err(|error| StoreError::Malformed {
                key: format!("outbox {id}"),
                reason: error.to_string(),
            })?;
            Ok(Waiting { id: id.to_string(), fact })
        });
        parsed.collect()
    }

    async fn forget(&self, last: &str) -> Result<(), StoreError> {
        let last: i64 = last.parse().map_err(|_| StoreError::Malformed {
            key: format!("outbox {last}"),
            reason: "it is no number".to_owned(),
        })?;
        let forget = self.write(move |tx| {
            let mut delete = tx.prepare_cached("DELETE FROM outbox WHERE id <= ?1")?;
            Ok(delete.execute([last])? as u64)
        });
        forget.await.map(drop)
    }

    async fn prune(&self, now: Timestamp) -> Result<u64, StoreError> {
        self.write(move |tx| prune(tx, millis(now))).await
    }
}

fn writer_gone() -> StoreError {
    StoreError::Unavailable("it is open to read, or its writer has stopped".to_owned())
}

/// Connections that read, one user each at a time.
pub struct Readers {
    connections: Vec<Mutex<Connection>>,
}

impl Readers {
    fn open(path: &Path, count: usize) -> Result<Self, StoreError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
        let open = || connect(path, flags).map(Mutex::new);
        let connections = std::iter::repeat_with(open).take(count).collect::<Result<_, _>>()?;
        Ok(Self { connections })
    }

    /// Runs `query` on an idle connection.
    pub fn with<T>(
        &self,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let idle = self.connections.iter().find_map(Mutex::try_lock);
        let connection = match idle {
            Some(connection) => connection,
            None => self.connections[0].lock(),
        };
        query(&connection).map_err(unavailable)
    }
}

/// Opens the file, unless it is of a newer version.
fn connect(path: &Path, flags: OpenFlags) -> Result<Connection, StoreError> {
    let connection = Connection::open_with_flags(path, flags).map_err(unavailable)?;
    connection.busy_timeout(Duration::from_secs(5)).map_err(unavailable)?;
    schema::version(&connection, path)?;
    if !flags.contains(OpenFlags::SQLITE_OPEN_READ_ONLY) {
        let journal_size_limit = (64_i64 << 20).to_string();
        for (name, value) in [
            ("journal_mode", "WAL"),
            ("synchronous", "FULL"),
            ("wal_autocheckpoint", "4000"),
            // Keep a log that grew under load from staying large for ever.
            ("journal_size_limit", &journal_size_limit),
        ] {
            connection.pragma_update(None, name, value).map_err(unavailable)?;
        }
    }
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

fn lock_of(path: &Path) -> Result<File, StoreError> {
    let name = format!("{}.lock", path.display());
    let file = File::create(&name).map_err(|error| StoreError::Unavailable(error.to_string()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => {
            Err(StoreError::InUse(path.display().to_string()))
        }
        Err(std::fs::TryLockError::Error(error)) => Err(StoreError::Unavailable(error.to_string())),
    }
}

/// The writer: waits for one operation, takes what else has come, commits, answers.
///
/// After [`CHECKPOINT_BYTES`] or so it says that there is `much` in the log.
fn write_all(connection: &mut Connection, ops: &Receiver<Op>, much: &SyncSender<()>, facts: Facts) {
    let mut logged = 0;
    while let Ok(first) = ops.recv() {
        let mut group = vec![first];
        let mut bytes = weight(&group[0]);
        while group.len() < GROUP && bytes < GROUP_BYTES {
            let Ok(next) = ops.try_recv() else { break };
            bytes += weight(&next);
            group.push(next);
        }
        let answers = match write_group(connection, &group, facts) {
            Ok(answers) => answers,
            Err(error) => {
                tracing::error!(%error, operations = group.len(), "the store refuses to write");
                let text = error.to_string();
                group.iter().map(|_| Done::Failed(text.clone())).collect()
            }
        };
        logged += bytes + group.len() * PAGES_EACH * 4096;
        if logged > CHECKPOINT_BYTES {
            logged = 0;
            // Full: it has been asked already. Closed: a tool's log is small.
            let _ = much.try_send(());
        }
        for (op, answer) in group.into_iter().zip(answers) {
            op.answer(answer);
        }
    }
}

/// Moves what is in the log to the file, while the writer goes on.
fn checkpoint_all(connection: &Connection, asked: &Receiver<()>) {
    while asked.recv().is_ok() {
        let done = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        if let Err(error) = done {
            tracing::warn!(%error, "the store's log can't be moved to its file now");
        }
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, StoreError> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(run)
        .map_err(|error| StoreError::Unavailable(error.to_string()))
}

/// What became of one operation.
enum Done {
    Commit(Commit),
    Lease(Vec<Task>),
    Write(u64),
    Failed(String),
}

impl Op {
    /// Whoever asked may have gone away; the change stands all the same.
    fn answer(self, done: Done) {
        match (self, done) {
            (Self::Commit(_, _, reply), Done::Commit(commit)) => drop(reply.send(Ok(commit))),
            (Self::Lease(_, _, reply), Done::Lease(tasks)) => drop(reply.send(Ok(tasks))),
            (Self::Write(_, reply), Done::Write(count)) => drop(reply.send(Ok(count))),
            (op, Done::Failed(text)) => {
                let error = StoreError::Unavailable(text);
                match op {
                    Self::Commit(_, _, reply) => drop(reply.send(Err(error))),
                    Self::Lease(_, _, reply) => drop(reply.send(Err(error))),
                    Self::Write(_, reply) => drop(reply.send(Err(error))),
                }
            }
            _ => tracing::error!("an operation of the store got another one's answer"),
        }
    }
}

fn weight(op: &Op) -> usize {
    match op {
        Op::Commit(batch, ..) => batch.put.iter().map(|put| put.value.len()).sum(),
        Op::Lease(..) | Op::Write(..) => 0,
    }
}

fn write_group(
    connection: &mut Connection,
    group: &[Op],
    facts: Facts,
) -> rusqlite::Result<Vec<Done>> {
    let tx = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    let answers = group
        .iter()
        .map(|op| match op {
            Op::Commit(batch, now, _) => apply(&tx, batch, millis(*now), facts).map(Done::Commit),
            Op::Lease(want, lanes, _) => lease(&tx, want, lanes).map(Done::Lease),
            Op::Write(write, _) => write(&tx).map(Done::Write),
        })
        .collect::<rusqlite::Result<_>>()?;
    tx.commit()?;
    Ok(answers)
}

/// A limit as SQLite takes it.
fn rows(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// A number that is never negative.
fn count(row: &rusqlite::Row<'_>, column: usize) -> rusqlite::Result<u64> {
    row.get::<_, i64>(column).map(i64::cast_unsigned)
}

fn state_name(state: i64) -> &'static str {
    match state {
        READY => "ready",
        LEASED => "leased",
        _ => "dead",
    }
}

fn state_number(name: &str) -> Option<i64> {
    [READY, LEASED, DEAD].into_iter().find(|state| state_name(*state) == name)
}

pub fn millis(time: Timestamp) -> i64 {
    time.as_millisecond()
}

pub fn timestamp(millis: i64) -> Timestamp {
    Timestamp::from_millisecond(millis).unwrap_or(Timestamp::UNIX_EPOCH)
}

#[expect(clippy::needless_pass_by_value, reason = "a function for `map_err`")]
fn unavailable(error: rusqlite::Error) -> StoreError {
    StoreError::Unavailable(error.to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::NewTask;
    use crate::suite;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn sqlite_does_what_every_store_does() {
        let folder = tempfile::tempdir().unwrap();
        let count = AtomicU32::new(0);
        suite::all(|| {
            let name = format!("{}.db", count.fetch_add(1, Ordering::Relaxed));
            Sqlite::open(&folder.path().join(name), Role::Server).unwrap()
        })
        .await;
    }

    #[tokio::test]
    async fn reading_leaves_the_file_and_its_folder_as_they_were() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a #1%20?.db");
        let names = || {
            let entries = std::fs::read_dir(folder.path()).unwrap();
            let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        assert!(Sqlite::read_only(&path).is_err());
        assert!(names().is_empty(), "nothing is created");
        let now = timestamp(1_800_000_000_000);
        let mark = |n: u8| Batch {
            tasks: vec![NewTask {
                key: Key::new(&[&n.to_string()]),
                lane: "l".to_owned(),
                payload: String::new(),
                due_at: now,
            }],
            ..Batch::default()
        };
        let server = Sqlite::open(&path, Role::Server).unwrap();
        server.commit(mark(1), now).await.unwrap();
        let beside = Sqlite::read_only(&path).unwrap();
        assert_eq!(beside.tasks(None, 9).await.unwrap().len(), 1, "what is in the log is read");
        assert!(beside.commit(mark(2), now).await.is_err());
        drop((beside, server));
        let (before, bytes) = (names(), std::fs::read(&path).unwrap());
        let alone = Sqlite::read_only(&path).unwrap();
        assert_eq!(alone.tasks(None, 9).await.unwrap().len(), 1);
        drop(alone);
        assert_eq!((names(), std::fs::read(&path).unwrap()), (before, bytes));
        std::fs::write(folder.path().join("other.db"), "").unwrap();
        assert!(Sqlite::read_only(&folder.path().join("other.db")).is_err(), "no relay's");
    }

    fn task(name: String, lane: &str, due_at: Timestamp) -> NewTask {
        let key = Key::new(&[&name]);
        NewTask { key, lane: lane.to_owned(), payload: String::new(), due_at }
    }

    #[tokio::test]
    async fn a_long_backlog_of_one_account_makes_no_lease_slower() {
        let folder = tempfile::tempdir().unwrap();
        let store = Sqlite::open(&folder.path().join("crcr.db"), Role::Server).unwrap();
        let now = timestamp(1_800_000_000_000);
        let busy: std::collections::HashMap<_, _> = [("full".to_owned(), 8)].into();
        let want = Want { now, until: now, max: 1, per_lane: 8, busy };
        let add = async |tasks: Vec<NewTask>| {
            store.commit(Batch { tasks, ..Batch::default() }, now).await.unwrap();
        };
        let lease = async || {
            let started = std::time::Instant::now();
            for n in 0..100 {
                add(vec![task(format!("other-{n}"), "other", now)]).await;
                assert_eq!(store.lease(want.clone()).await.unwrap().len(), 1);
            }
            started.elapsed()
        };
        let alone = lease().await;
        add((0..60_000).map(|n| task(format!("full-{n}"), "full", now)).collect()).await;
        let beside = lease().await;
        assert!(beside < 4 * alone + Duration::from_millis(100), "{beside:?} after {alone:?}");
    }

    #[tokio::test]
    async fn pages_that_hold_every_connection_of_theirs_keep_no_webhook_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let store = Sqlite::open(&folder.path().join("crcr.db"), Role::Server).unwrap();
        let (release, held) = std::sync::mpsc::channel::<()>();
        let held = Arc::new(Mutex::new(held));
        let pages: Vec<_> = (0..2 * SLOW_READERS)
            .map(|_| {
                let held = Arc::clone(&held);
                let page = store.read_slowly(move |_| {
                    let released = held.lock().recv();
                    Ok(released.is_err())
                });
                Box::pin(page)
            })
            .collect();
        let mut pages = futures_util::future::join_all(pages);
        // The pages have begun.
        assert!(futures_util::poll!(&mut pages).is_pending());
        tokio::time::sleep(Duration::from_millis(100)).await;
        let keys = [Key::new(&["a"])];
        let found = tokio::time::timeout(Duration::from_secs(5), store.get(&keys));
        assert_eq!(found.await.expect("the webhook isn't kept waiting").unwrap(), [None]);
        drop(release);
        pages.await;
    }

    #[tokio::test]
    async fn one_server_has_the_file_and_leases_of_a_dead_one_come_back_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("crcr.db");
        let first = Sqlite::open(&path, Role::Server).unwrap();
        assert!(matches!(Sqlite::open(&path, Role::Server), Err(StoreError::InUse(_))));
        assert!(Sqlite::open(&path, Role::Tool).is_ok(), "tools may look beside it");
        let now = timestamp(1_800_000_000_000);
        let task = NewTask {
            key: Key::new(&["t"]),
            lane: "l".to_owned(),
            payload: String::new(),
            due_at: now,
        };
        first.commit(Batch { tasks: vec![task], ..Batch::default() }, now).await.unwrap();
        let until = now + Duration::from_secs(3600);
        let want = Want { now, until, max: 1, per_lane: 1, ..Want::default() };
        assert_eq!(first.lease(want.clone()).await.unwrap().len(), 1);
        drop(first);
        let second = Sqlite::open(&path, Role::Server).unwrap();
        assert_eq!(second.lease(want).await.unwrap().len(), 1);
    }
}
