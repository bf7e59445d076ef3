//! The durable queue: kinds of tasks, workers and handlers.

pub(crate) mod blame_cache;
pub(crate) mod fact_feed;
pub(crate) mod handlers;
pub(crate) mod lanes;
pub(crate) mod task_kind;
pub(crate) mod workers;

use crcr_domain::protocol::dispatch::Dispatch;
use crcr_domain::results::facts::Fact;
use crcr_store::{StateStore, StoreError, WriteBatch};

use self::task_kind::TaskKind;
use crate::compat::forward;
use crate::facts::dispatch_fact;
use crate::relay::Relay;

/// Adds the fact of a changed dispatch to a batch, and the task that sends it to an external HUD.
pub(crate) fn record_dispatch_change(relay: &Relay, batch: &mut WriteBatch, dispatch: &Dispatch) {
    let fact = dispatch_fact(dispatch, relay.now());
    batch.tasks.extend(forward::dispatch_task(relay, &fact));
    batch.facts.push(Fact::Dispatch(fact));
}

/// How many dispatches are followed by a sweep: sent to a backend at L2 or above, and not over.
pub(crate) async fn open_dispatches(store: &dyn StateStore) -> Result<u64, StoreError> {
    store.count_tasks(TaskKind::SWEEP).await
}
