//! Copies facts from the store's outbox to the results, when those are kept elsewhere.
//!
//! A fact is in the outbox, on disk, before its cause is acknowledged, and leaves the outbox when the
//! results have it. If the relay stops in between, the batch is sent again and replaces itself.

use std::sync::Arc;
use std::time::Duration;

use crcr_results::ResultsError;
use crcr_store::{StoreError, WriteBatch};
use tokio_util::sync::CancellationToken;

use crate::limits;
use crate::queue::task_kind::TaskKind;
use crate::relay::Relay;

#[derive(Debug, thiserror::Error)]
pub(crate) enum CopyError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Results(#[from] ResultsError),
}

pub(crate) async fn run(relay: Arc<Relay>, stop: CancellationToken) {
    if relay.store.stores_facts() {
        return;
    }
    // Facts of other relays don't wake this one.
    let idle =
        if relay.store.is_shared() { limits::SHARED_FEED_POLL } else { limits::FEED_RETRY.cap };
    let mut failed = 0_u32;
    while !stop.is_cancelled() {
        let copied = tokio::select! {
            copied = copy_batch(&relay) => copied,
            // What was sent meanwhile is sent again after the next start.
            () = grace_is_over(&stop) => return,
        };
        let pause = match copied {
            Ok(0) => {
                failed = 0;
                *relay.results_problem.lock() = None;
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = relay.facts.notified() => {}
                    () = tokio::time::sleep(idle) => {}
                }
                // More facts are likely to follow, and one insert can take them all.
                limits::FEED_LINGER
            }
            Ok(count) => {
                failed = 0;
                *relay.results_problem.lock() = None;
                relay.metrics.facts_copied(count);
                if count < limits::FEED_ROWS { limits::FEED_LINGER } else { Duration::ZERO }
            }
            Err(error) => {
                failed = failed.saturating_add(1);
                tracing::warn!(%error, failed, "facts wait in the outbox");
                if note_failure(&relay, &error) {
                    *relay.results_problem.lock() = Some(error.to_string());
                }
                limits::FEED_RETRY.pause(failed, None)
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Counts a failure of the results, and returns whether it is one: an outage of the store is told of by itself.
fn note_failure(relay: &Relay, error: &CopyError) -> bool {
    let is_of_results = matches!(error, CopyError::Results(_));
    if is_of_results {
        relay.metrics.fact_copy_failed();
    }
    is_of_results
}

async fn grace_is_over(stop: &CancellationToken) {
    stop.cancelled().await;
    tokio::time::sleep(limits::SHUTDOWN_GRACE).await;
}

/// Copies all facts that wait, for a process that doesn't run in between.
pub(crate) async fn copy_waiting(relay: &Relay) -> Result<(), CopyError> {
    while !relay.store.stores_facts() {
        match copy_batch(relay).await {
            Ok(0) => break,
            Ok(count) => relay.metrics.facts_copied(count),
            Err(error) => {
                tracing::warn!(%error, "facts wait in the outbox");
                note_failure(relay, &error);
                return Err(error);
            }
        }
    }
    Ok(())
}

/// Copies the oldest facts; returns how many.
async fn copy_batch(relay: &Relay) -> Result<usize, CopyError> {
    let entries = relay.store.outbox(limits::FEED_ROWS).await?;
    let Some(last) = entries.last().map(|entry| entry.id.clone()) else {
        // The pages need the tables even before the first fact.
        relay.results.prepare().await?;
        return Ok(0);
    };
    let count = entries.len();
    let (mut facts, mut tasks) = (vec![], vec![]);
    for entry in entries {
        match entry.fact {
            Ok(fact) => facts.push(fact),
            Err(unread) => {
                let (id, error) = (entry.id, unread.error);
                tracing::warn!(id, %error, "a fact of another version of crcr waits for one");
                tasks.push(TaskKind::UnreadFact { text: unread.text }.task(relay.now()));
            }
        }
    }
    if !tasks.is_empty() {
        relay.commit(WriteBatch { tasks, ..WriteBatch::default() }).await?;
    }
    relay.results.append(facts).await?;
    relay.store.remove_from_outbox(&last).await?;
    Ok(count)
}
