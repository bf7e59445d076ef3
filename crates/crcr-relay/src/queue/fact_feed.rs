//! Copies facts from the store's outbox to where results are kept, in batches.
//!
//! A fact is on disk in the outbox before anybody is told that it was taken, and leaves it only
//! once the results have it. A batch that was sent and not recorded as sent goes again, and
//! replaces itself.

use std::sync::Arc;
use std::time::Duration;

use crcr_results::ResultsError;
use tokio_util::sync::CancellationToken;

use crate::limits;
use crate::relay::Relay;

/// Copies until `stop`. What can't be taken waits, for up to [`limits::FEED_PAUSE_CAP`] between
/// two tries.
pub async fn run(relay: Arc<Relay>, stop: CancellationToken) {
    if relay.store.keeps_facts() {
        return;
    }
    let mut failed = 0_u32;
    while !stop.is_cancelled() {
        let pause = match batch(&relay).await {
            Ok(0) => {
                failed = 0;
                *relay.results_problem.lock() = None;
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = relay.facts.notified() => {}
                    () = tokio::time::sleep(limits::FEED_PAUSE_CAP) => {}
                }
                // A few more come along: one insert takes them all.
                limits::FEED_LINGER
            }
            Ok(count) => {
                failed = 0;
                *relay.results_problem.lock() = None;
                relay.metrics.fed(count);
                if count < limits::FEED_ROWS { limits::FEED_LINGER } else { Duration::ZERO }
            }
            Err(error) => {
                tracing::warn!(%error, failed, "results wait in the outbox");
                *relay.results_problem.lock() = Some(error.to_string());
                relay.metrics.feed_failed();
                let pause = limits::FEED_PAUSE.saturating_mul(1 << failed.min(10));
                failed += 1;
                pause.min(limits::FEED_PAUSE_CAP).mul_f64(rand::random_range(0.5..=1.0))
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Copies the oldest facts; returns how many.
async fn batch(relay: &Relay) -> Result<usize, ResultsError> {
    let waiting = relay.store.outbox(limits::FEED_ROWS).await?;
    let Some(last) = waiting.last().map(|fact| fact.id.clone()) else {
        // The pages want tables, also before the first fact.
        relay.results.prepare().await?;
        return Ok(0);
    };
    let count = waiting.len();
    relay.results.append(waiting.into_iter().map(|waiting| waiting.fact).collect()).await?;
    relay.store.forget(&last).await?;
    Ok(count)
}
