//! The first thing that a relay does on a store that was put back to a backup.

use super::commit_checks;
use crate::queue::task_kind::{TaskDone, TaskError};
use crate::relay::Relay;
use crate::restore::RestoreRecord;

/// Evaluates the check runs of every open head: what GitHub shows may be newer than what the store says.
pub(crate) async fn run(relay: &Relay) -> Result<TaskDone, TaskError> {
    let Some(restore) = RestoreRecord::read(relay.store.as_ref()).await? else {
        return Ok(TaskDone::Finished);
    };
    let (backup_at, now) = (restore.backup_at, relay.now());
    tracing::warn!(
        %backup_at,
        restored_at = %restore.restored_at,
        "the store was restored from a backup: webhooks since then are asked for again, and dispatches that were \
         open are sent again"
    );
    if let Some((from, to)) = restore.out_of_reach(now) {
        tracing::error!(%from, %to, "GitHub doesn't deliver webhooks of this time again");
    }
    commit_checks::of_all_backends(relay).await
}
