//! The writer thread: commits whatever operations have arrived as one transaction.

use std::sync::mpsc::{Receiver, SyncSender};

use jiff::Timestamp;
use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio::sync::oneshot;

use super::millis;
use super::statements::{FactTarget, apply, lease};
use crate::task::Turns;
use crate::{CommitOutcome, LeaseRequest, LeasedTask, StoreError, WriteBatch};

/// The most operations in one transaction. They share one fsync.
const GROUP_OPERATIONS: usize = 512;
/// A transaction takes no further operation when its records have this many bytes.
const GROUP_BYTES: usize = 16 * 1024 * 1024;
/// About how many bytes are written to the log between two checkpoints.
const CHECKPOINT_BYTES: usize = 16 * 1024 * 1024;
/// Pages of 4 KiB that an operation changes besides its records, to estimate that.
const PAGES_PER_OPERATION: usize = 8;

pub(super) enum WriteOperation {
    Commit(Box<WriteBatch>, Timestamp, Reply<CommitOutcome>),
    /// With the lanes that have tasks due, in the order of their turns.
    Lease(LeaseRequest, Vec<String>, Reply<Vec<LeasedTask>>),
    /// Returns the number of rows that it wrote.
    Custom(CustomWrite, Reply<u64>),
}

pub(super) type Reply<T> = oneshot::Sender<Result<T, StoreError>>;
type CustomWrite = Box<dyn Fn(&Transaction<'_>) -> rusqlite::Result<u64> + Send>;

/// Runs until every sender of operations is gone. After about [`CHECKPOINT_BYTES`] it asks for a
/// checkpoint by `log_is_long`.
pub(super) fn commit_operations(
    connection: &mut Connection,
    operations: &Receiver<WriteOperation>,
    log_is_long: &SyncSender<()>,
    fact_target: FactTarget,
) {
    let mut logged = 0;
    while let Ok(first) = operations.recv() {
        let mut bytes = first.record_bytes();
        let mut group = vec![first];
        while group.len() < GROUP_OPERATIONS && bytes < GROUP_BYTES {
            let Ok(next) = operations.try_recv() else { break };
            bytes += next.record_bytes();
            group.push(next);
        }
        let results = match write_group(connection, &group, fact_target) {
            Ok(results) => results,
            Err(error) => {
                tracing::error!(%error, operations = group.len(), "the store can't be written");
                let text = error.to_string();
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
    pub(super) connection: Connection,
    pub(super) requests: Receiver<()>,
}

impl CheckpointTrigger {
    /// Makes those that the writer asks for, until it has ended.
    pub(super) fn make_requested(&self) {
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
