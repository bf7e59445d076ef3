//! SQLite: one file, one writer thread that commits whatever has come in as one transaction, and
//! readers beside it.
//!
//! `journal_mode=WAL` and `synchronous=FULL`: a batch is answered after its transaction is on disk.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, params};
use tokio::sync::oneshot;

use super::{Batch, Commit, Depth, Key, Record, Store, StoreError, Task, TaskView, Waiting, Want};
use crate::results;

mod statements;

use statements::{apply, empty_outbox, lease, prune};

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
/// Pages of the log at which the writer makes a checkpoint of its own, and waits for it: 128 MiB.
const LOG_PAGES: i64 = 32 * 1024;
/// What stands for itself in the path of a `file:` URI.
const PATH_IN_URI: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.').remove(b'~');
/// Connections that read.
const READERS: usize = 4;

const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS record (
    key TEXT PRIMARY KEY, version INTEGER NOT NULL, expires_at INTEGER NOT NULL,
    value BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS record_expires ON record (expires_at);
CREATE TABLE IF NOT EXISTS member (
    set_key TEXT NOT NULL, member TEXT NOT NULL, score INTEGER NOT NULL,
    expires_at INTEGER NOT NULL, PRIMARY KEY (set_key, member)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS member_score ON member (set_key, score);
CREATE INDEX IF NOT EXISTS member_expires ON member (expires_at);
CREATE TABLE IF NOT EXISTS bucket (
    key TEXT PRIMARY KEY, tokens REAL NOT NULL, at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS task (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, lane TEXT NOT NULL, payload TEXT NOT NULL,
    state INTEGER NOT NULL, due_at INTEGER NOT NULL, again_at INTEGER, lease INTEGER,
    failed INTEGER NOT NULL DEFAULT 0, created_at INTEGER NOT NULL, last_error TEXT
);
CREATE INDEX IF NOT EXISTS task_due ON task (due_at) WHERE state < 2;
CREATE TABLE IF NOT EXISTS outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, fact TEXT NOT NULL);
";

/// Values of `task.state`. A leased task's `due_at` is the end of its lease.
const READY: i64 = 0;
const LEASED: i64 = 1;
const DEAD: i64 = 2;

/// A relay's state in one SQLite file.
pub struct Sqlite {
    writer: Option<SyncSender<Op>>,
    threads: Vec<JoinHandle<()>>,
    readers: Arc<Readers>,
    path: PathBuf,
    facts: Facts,
    /// Held for as long as the store is open by a server.
    _lock: Option<File>,
}

enum Op {
    Commit(Box<Batch>, Timestamp, oneshot::Sender<Result<Commit, StoreError>>),
    Lease(Want, oneshot::Sender<Result<Vec<Task>, StoreError>>),
    Prune(Timestamp, oneshot::Sender<Result<u64, StoreError>>),
    Forget(i64, oneshot::Sender<Result<(), StoreError>>),
}

/// Where the facts of a batch go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Facts {
    /// Into the tables that results are read from.
    Tables,
    /// Into the outbox, to be copied elsewhere.
    Outbox,
}

/// Who opens the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The one server: leases that a crash left behind come back at once.
    Server,
    /// A tool beside it.
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
            Role::Server => Some(lock(path)?),
            Role::Tool => None,
        };
        let mut connection = connect(path, OpenFlags::default()).map_err(unavailable)?;
        let prepare = |connection: &mut Connection| -> rusqlite::Result<()> {
            // One transaction, so that a new file costs one wait for the disk.
            let connection = connection.transaction()?;
            connection.execute_batch(SCHEMA)?;
            connection.execute_batch(results::sqlite::SCHEMA)?;
            if role == Role::Server {
                connection.execute(
                    "UPDATE task SET state = ?1, due_at = created_at WHERE state = ?2",
                    [READY, LEASED],
                )?;
                if facts == Facts::Tables {
                    empty_outbox(&connection)?;
                }
            }
            connection.commit()
        };
        prepare(&mut connection).map_err(unavailable)?;
        let readers = Arc::new(Readers::open(path).map_err(unavailable)?);
        let (writer, ops) = sync_channel(WAITING);
        let (much, asked) = sync_channel(1);
        let mut threads = vec![];
        if role == Role::Server {
            connection.pragma_update(None, "wal_autocheckpoint", LOG_PAGES).map_err(unavailable)?;
            let beside = connect(path, OpenFlags::default()).map_err(unavailable)?;
            threads.push(spawn("checkpoint", move || checkpoint_all(&beside, &asked))?);
        }
        threads.push(spawn("store", move || write_all(&mut connection, &ops, &much, facts))?);
        let (writer, path) = (Some(writer), path.to_owned());
        Ok(Self { writer, threads, readers, path, facts, _lock: lock })
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
        let readers = if Path::new(&log).exists() {
            Readers::open(path)
        } else {
            let path = percent_encode(path.as_os_str().as_encoded_bytes(), PATH_IN_URI);
            Readers::open(Path::new(&format!("file:{path}?mode=ro&immutable=1")))
        };
        let readers = Arc::new(readers.map_err(unavailable)?);
        readers.with(|connection| connection.prepare("SELECT 1 FROM fact_dispatch").map(drop))?;
        let (path, facts) = (path.to_owned(), Facts::Tables);
        Ok(Self { writer: None, threads: vec![], readers, path, facts, _lock: None })
    }

    /// The connections that read; results are read through them too.
    pub(crate) fn readers(&self) -> &Arc<Readers> {
        &self.readers
    }

    /// Runs `work` on a connection of its own beside the writer: for what may take long.
    pub(crate) fn beside<T>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let connection = connect(&self.path, OpenFlags::default()).map_err(unavailable)?;
        work(&connection).map_err(unavailable)
    }

    async fn send<T>(
        &self,
        op: impl FnOnce(oneshot::Sender<Result<T, StoreError>>) -> Op,
    ) -> Result<T, StoreError> {
        let gone =
            || StoreError::Unavailable("it is open to read, or its writer has stopped".to_owned());
        let (reply, answer) = oneshot::channel();
        let mut op = op(reply);
        let writer = self.writer.as_ref().ok_or_else(gone)?;
        loop {
            match writer.try_send(op) {
                Ok(()) => return answer.await.map_err(|_| gone())?,
                Err(std::sync::mpsc::TrySendError::Disconnected(_)) => return Err(gone()),
                Err(std::sync::mpsc::TrySendError::Full(back)) => op = back,
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        drop(self.writer.take());
        // The writer ends first, and then has nobody to ask for a checkpoint.
        for thread in self.threads.drain(..).rev() {
            // One that panicked has said so already.
            let _ = thread.join();
        }
    }
}

#[async_trait]
impl Store for Sqlite {
    async fn get(&self, keys: &[Key]) -> Result<Vec<Option<Record>>, StoreError> {
        // A few index look-ups in memory: shorter than handing them to another thread.
        self.readers.with(|connection| {
            let mut statement =
                connection.prepare_cached("SELECT version, value FROM record WHERE key = ?1")?;
            keys.iter()
                .map(|key| {
                    statement
                        .query_row([key.as_str()], |row| {
                            Ok(Record { version: count(row, 0)?, value: row.get(1)? })
                        })
                        .optional()
                })
                .collect()
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

    async fn commit(&self, batch: Batch, now: Timestamp) -> Result<Commit, StoreError> {
        self.send(|reply| Op::Commit(Box::new(batch), now, reply)).await
    }

    async fn lease(&self, want: Want) -> Result<Vec<Task>, StoreError> {
        let due = self.readers.with(|connection| {
            connection
                .prepare_cached("SELECT 1 FROM task WHERE due_at <= ?1 AND state < 2 LIMIT 1")?
                .exists([millis(want.now)])
        })?;
        if due { self.send(|reply| Op::Lease(want, reply)).await } else { Ok(vec![]) }
    }

    async fn tasks(&self, state: Option<&str>, limit: usize) -> Result<Vec<TaskView>, StoreError> {
        let state = state.map(|state| state_number(state).unwrap_or(-1));
        self.readers.with(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT key, lane, payload, state, failed, due_at, created_at, last_error FROM task
                 WHERE ?1 IS NULL OR state = ?1 ORDER BY due_at LIMIT ?2",
            )?;
            let view = |row: &rusqlite::Row<'_>| {
                Ok(TaskView {
                    key: row.get(0)?,
                    lane: row.get(1)?,
                    payload: row.get(2)?,
                    state: state_name(row.get(3)?).to_owned(),
                    failed: row.get(4)?,
                    due_at: timestamp(row.get(5)?),
                    created_at: timestamp(row.get(6)?),
                    last_error: row.get(7)?,
                })
            };
            statement.query_map(params![state, rows(limit)], view)?.collect()
        })
    }

    async fn depth(&self) -> Result<Depth, StoreError> {
        self.readers.with(|connection| {
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
    }

    async fn count_of(&self, kind: &str) -> Result<u64, StoreError> {
        // Keys are JSON lists, and `-` comes after the `,` that ends their first part.
        let key = Key::new(&[kind]);
        let start = key.as_str().trim_end_matches(']');
        self.readers.with(|connection| {
            connection
                .prepare_cached("SELECT count(*) FROM task WHERE key >= ?1 AND key < ?2")?
                .query_row([format!("{start},"), format!("{start}-")], |row| count(row, 0))
        })
    }

    fn keeps_facts(&self) -> bool {
        self.facts == Facts::Tables
    }

    async fn outbox(&self, limit: usize) -> Result<Vec<Waiting>, StoreError> {
        let readers = Arc::clone(&self.readers);
        let read = move || {
            let waiting: Vec<(i64, String)> = readers.with(|connection| {
                connection
                    .prepare_cached("SELECT id, fact FROM outbox ORDER BY id LIMIT ?1")?
                    .query_map([rows(limit)], |row| Ok((row.get(0)?, row.get(1)?)))?
                    .collect()
            })?;
            let parsed = waiting.into_iter().map(|(id, text)| {
                let fact = serde_json::from_str(&text).map_err(|error| StoreError::Malformed {
                    key: format!("outbox {id}"),
                    reason: error.to_string(),
                })?;
                Ok(Waiting { id: id.to_string(), fact })
            });
            parsed.collect()
        };
        let read = tokio::task::spawn_blocking(read).await;
        read.map_err(|error| StoreError::Unavailable(error.to_string()))?
    }

    async fn forget(&self, last: &str) -> Result<(), StoreError> {
        let last = last.parse().map_err(|_| StoreError::Malformed {
            key: format!("outbox {last}"),
            reason: "it is no number".to_owned(),
        })?;
        self.send(|reply| Op::Forget(last, reply)).await
    }

    async fn prune(&self, now: Timestamp) -> Result<u64, StoreError> {
        self.send(|reply| Op::Prune(now, reply)).await
    }
}

/// Connections that read, one user each at a time.
pub(crate) struct Readers {
    idle: [Mutex<Connection>; READERS],
}

impl Readers {
    fn open(path: &Path) -> rusqlite::Result<Self> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
        let open = || connect(path, flags).map(Mutex::new);
        Ok(Self { idle: [open()?, open()?, open()?, open()?] })
    }

    /// Runs `query` on an idle connection.
    pub(crate) fn with<T>(
        &self,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let idle = self.idle.iter().find_map(|connection| connection.try_lock().ok());
        let connection = match idle {
            Some(connection) => connection,
            None => self.idle[0].lock().unwrap_or_else(PoisonError::into_inner),
        };
        query(&connection).map_err(unavailable)
    }
}

fn connect(path: &Path, flags: OpenFlags) -> rusqlite::Result<Connection> {
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(Duration::from_secs(5))?;
    if !flags.contains(OpenFlags::SQLITE_OPEN_READ_ONLY) {
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "wal_autocheckpoint", 4000)?;
        // Keep a log that grew under load from staying large for ever.
        connection.pragma_update(None, "journal_size_limit", 64 * 1024 * 1024)?;
    }
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

fn lock(path: &Path) -> Result<File, StoreError> {
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
    Prune(u64),
    Forget,
    Failed(String),
}

impl Op {
    /// Whoever asked may have gone away; the change stands all the same.
    fn answer(self, done: Done) {
        match (self, done) {
            (Self::Commit(_, _, reply), Done::Commit(commit)) => drop(reply.send(Ok(commit))),
            (Self::Lease(_, reply), Done::Lease(tasks)) => drop(reply.send(Ok(tasks))),
            (Self::Prune(_, reply), Done::Prune(count)) => drop(reply.send(Ok(count))),
            (Self::Forget(_, reply), Done::Forget) => drop(reply.send(Ok(()))),
            (Self::Forget(_, reply), Done::Failed(text)) => {
                drop(reply.send(Err(StoreError::Unavailable(text))));
            }
            (Self::Commit(_, _, reply), Done::Failed(text)) => {
                drop(reply.send(Err(StoreError::Unavailable(text))));
            }
            (Self::Lease(_, reply), Done::Failed(text)) => {
                drop(reply.send(Err(StoreError::Unavailable(text))));
            }
            (Self::Prune(_, reply), Done::Failed(text)) => {
                drop(reply.send(Err(StoreError::Unavailable(text))));
            }
            _ => tracing::error!("an operation of the store got another one's answer"),
        }
    }
}

fn weight(op: &Op) -> usize {
    match op {
        Op::Commit(batch, ..) => batch.put.iter().map(|put| put.value.len()).sum(),
        Op::Lease(..) | Op::Prune(..) | Op::Forget(..) => 0,
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
            Op::Lease(want, _) => lease(&tx, want).map(Done::Lease),
            Op::Prune(now, _) => prune(&tx, millis(*now)).map(Done::Prune),
            Op::Forget(last, _) => tx
                .prepare_cached("DELETE FROM outbox WHERE id <= ?1")?
                .execute([last])
                .map(|_| Done::Forget),
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

pub(crate) fn millis(time: Timestamp) -> i64 {
    time.as_millisecond()
}

pub(crate) fn timestamp(millis: i64) -> Timestamp {
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
    use crate::store::NewTask;
    use crate::store::suite;

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
