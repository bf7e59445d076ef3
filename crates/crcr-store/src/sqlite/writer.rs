//! The writer thread: commits whatever operations have arrived as one transaction.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::Instant;

use jiff::Timestamp;
use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio::sync::oneshot;

use super::database_lock::DatabaseLock;
use super::millis;
use super::statements::{FactTarget, apply, lease};
use crate::task::Turns;
use crate::{CommitOutcome, LeaseRequest, LeasedTask, OutageLog, StoreError, WriteBatch};

/// The most operations in one transaction. They share one fsync.
const GROUP_OPERATIONS: usize = 512;
/// A transaction takes no further operation when its records have this many bytes.
const GROUP_BYTES: usize = 16 * 1024 * 1024;
/// About how many bytes are written to the log between two checkpoints.
const CHECKPOINT_BYTES: usize = 16 * 1024 * 1024;
/// Pages of 4 KiB that an operation changes besides its records, to estimate that.
const PAGES_PER_OPERATION: usize = 8;

pub(crate) enum WriteOperation {
    Commit(Box<WriteBatch>, Timestamp, Reply<CommitOutcome>),
    /// With the lanes that have tasks due, in the order of their turns.
    Lease(LeaseRequest, Vec<String>, Reply<Vec<LeasedTask>>),
    /// Returns the number of rows that it wrote.
    Custom(CustomWrite, Reply<u64>),
}

pub(crate) type Reply<T> = oneshot::Sender<Result<T, StoreError>>;
type CustomWrite = Box<dyn Fn(&Transaction<'_>) -> rusqlite::Result<u64> + Send>;

/// The database that the writer writes to.
pub(crate) struct WriteTarget {
    pub(crate) connection: Connection,
    pub(crate) fact_target: FactTarget,
    /// A server's.
    pub(crate) lock: Option<Arc<DatabaseLock>>,
}

impl WriteTarget {
    fn write(&mut self, group: &[WriteOperation]) -> Result<Vec<OperationResult>, String> {
        if let Some(loss) = self.lock.as_ref().and_then(|lock| lock.loss()) {
            return Err(loss);
        }
        let written = write_group(&mut self.connection, group, self.fact_target);
        written.map_err(|error| error.to_string())
    }
}

/// Runs until every sender of operations is gone. After about [`CHECKPOINT_BYTES`] it asks for a
/// checkpoint by `log_is_long`.
pub(crate) fn commit_operations(
    target: &mut WriteTarget,
    operations: &Receiver<WriteOperation>,
    log_is_long: &SyncSender<()>,
) {
    let mut logged = 0;
    let mut outage = OutageLog::default();
    while let Ok(first) = operations.recv() {
        let mut bytes = first.record_bytes();
        let mut group = vec![first];
        while group.len() < GROUP_OPERATIONS && bytes < GROUP_BYTES {
            let Ok(next) = operations.try_recv() else { break };
            bytes += next.record_bytes();
            group.push(next);
        }
        let results = match target.write(&group) {
            Ok(results) => {
                if outage.worked() {
                    tracing::info!("the store can be written again");
                }
                results
            }
            Err(text) => {
                if outage.failed(&text, Instant::now()) {
                    tracing::error!(
                        error = text,
                        operations = group.len(),
                        "the store can't be written"
                    );
                }
                group.iter().map(|_| OperationResult::Failed(text.clone())).collect()
            }
        };
        logged += bytes + group.len() * PAGES_PER_OPERATION * 4096;
        if logged > CHECKPOINT_BYTES {
            logged = 0;
            // An error means that a checkpoint was asked for already, or that this is a tool, whose
            // log stays small.
            let _ = log_is_long.try_send(());
        }
        for (operation, result) in group.into_iter().zip(results) {
            operation.reply(result);
        }
    }
}

/// Moves the log into the file, while the writer goes on.
pub struct CheckpointTrigger {
    pub(crate) connection: Connection,
    pub(crate) requests: Receiver<()>,
}

impl CheckpointTrigger {
    /// Makes those that the writer asks for, until it has ended.
    pub(crate) fn make_requested(&self) {
        while self.requests.recv().is_ok() {
            self.make();
        }
    }

    pub fn make(&self) {
        let done = self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        if let Err(error) = done {
            tracing::warn!(%error, "the store's log can't be moved into its file now");
        }
    }
}

enum OperationResult {
    Committed(CommitOutcome),
    Leased(Vec<LeasedTask>),
    Written(u64),
    Failed(String),
}

impl WriteOperation {
    /// Whoever asked may have gone away; the change stands all the same.
    fn reply(self, result: OperationResult) {
        match (self, result) {
            (Self::Commit(_, _, reply), OperationResult::Committed(outcome)) => {
                drop(reply.send(Ok(outcome)));
            }
            (Self::Lease(_, _, reply), OperationResult::Leased(tasks)) => {
                drop(reply.send(Ok(tasks)));
            }
            (Self::Custom(_, reply), OperationResult::Written(rows)) => drop(reply.send(Ok(rows))),
            (operation, OperationResult::Failed(text)) => {
                let error = StoreError::Unavailable(text);
                match operation {
                    Self::Commit(_, _, reply) => drop(reply.send(Err(error))),
                    Self::Lease(_, _, reply) => drop(reply.send(Err(error))),
                    Self::Custom(_, reply) => drop(reply.send(Err(error))),
                }
            }
            _ => tracing::error!("an operation of the store got the result of another one"),
        }
    }

    fn record_bytes(&self) -> usize {
        match self {
            Self::Commit(batch, ..) => batch.records.iter().map(|record| record.value.len()).sum(),
            Self::Lease(..) | Self::Custom(..) => 0,
        }
    }
}

fn write_group(
    connection: &mut Connection,
    group: &[WriteOperation],
    fact_target: FactTarget,
) -> rusqlite::Result<Vec<OperationResult>> {
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let results = group
        .iter()
        .map(|operation| match operation {
            WriteOperation::Commit(batch, now, _) => {
                apply(&tx, batch, millis(*now), fact_target).map(OperationResult::Committed)
            }
            WriteOperation::Lease(request, lanes, _) => {
                let mut turns = Turns::new(request);
                lanes.iter().for_each(|lane| turns.add(lane.clone()));
                lease(&tx, request, &turns).map(OperationResult::Leased)
            }
            WriteOperation::Custom(write, _) => write(&tx).map(OperationResult::Written),
        })
        .collect::<rusqlite::Result<_>>()?;
    tx.commit()?;
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As when the disk is full or broken.
    #[test]
    fn operations_whose_commit_fails_are_not_acknowledged() {
        let connection = Connection::open_in_memory().unwrap();
        connection.pragma_update(None, "foreign_keys", true).unwrap();
        let (requests, operations) = std::sync::mpsc::channel();
        let mut replies = vec![];
        for statements in [
            "CREATE TABLE fine (id INTEGER)",
            // SQLite looks for the parent when the transaction is committed.
            "CREATE TABLE parent (id INTEGER PRIMARY KEY);
             CREATE TABLE child (parent INTEGER REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
             INSERT INTO child VALUES (1)",
        ] {
            let (reply, answer) = oneshot::channel();
            let write = move |tx: &Transaction<'_>| tx.execute_batch(statements).map(|()| 1);
            requests.send(WriteOperation::Custom(Box::new(write), reply)).unwrap();
            replies.push(answer);
        }
        drop(requests);
        let (log_is_long, _) = std::sync::mpsc::sync_channel(1);
        let mut target = WriteTarget { connection, fact_target: FactTarget::Tables, lock: None };
        commit_operations(&mut target, &operations, &log_is_long);
        for mut reply in replies {
            let answer = reply.try_recv().unwrap();
            assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{answer:?}");
        }
        let tables: u32 = target
            .connection
            .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
            .unwrap();
        assert_eq!(tables, 0, "they share a transaction");
    }
}
