//! Reads the App's log of deliveries every ten minutes, and asks for what is missing.

use crate::limits;
use crate::queue::task_kind::{TaskDone, TaskError};
use crate::reconcile::{ReconcileError, reconcile};
use crate::relay::Relay;

pub(super) async fn run(relay: &Relay) -> Result<TaskDone, TaskError> {
    let found = reconcile(&relay.app, relay.store.as_ref(), &relay.clock).await;
    let found = found.map_err(|error| match error {
        ReconcileError::Github(error) => error.into(),
        ReconcileError::Store(error) => TaskError::from(error),
    })?;
    relay.metrics.reconciled(&found);
    let pause = match found.settled_until {
        Some(_) => limits::RECONCILE,
        None => limits::RECONCILE_PAUSE,
    };
    Ok(TaskDone::RunAgain(relay.now() + pause))
}
