//! The durable queue: kinds of tasks, workers, what a task does, and what copies facts to results that
//! are kept elsewhere.

pub(crate) mod fact_feed;
pub(crate) mod handlers;
pub(crate) mod task;
pub(crate) mod workers;

use crcr_domain::dispatch::Dispatch;
use crcr_domain::facts::Fact;
use crcr_store::{Batch, StateStore, StoreError};

use self::task::Work;
use crate::compat::forward;
use crate::facts::dispatch_fact;
use crate::relay::Relay;

/// Adds to a batch what follows from a change of a dispatch: its fact, for the pages here, and the
/// same for an external HUD that takes it.
pub(crate) fn note_dispatch(relay: &Relay, batch: &mut Batch, dispatch: &Dispatch) {
    let fact = dispatch_fact(dispatch, relay.now());
    batch.tasks.extend(forward::dispatch_task(relay, &fact));
    batch.facts.push(Fact::Dispatch(fact));
}

/// How many dispatches are looked after: sent to L2 or above, and not known to be over.
pub(crate) async fn open_dispatches(store: &dyn StateStore) -> Result<u64, StoreError> {
    store.count_of(Work::SWEEP).await
}
