//! How far expired things may be deleted: a clock that is ahead must not delete what has not expired, and one
//! that was ahead must not delay what is due.

use std::time::Duration;

use crcr_store::{CommitOutcome, StoreError, Versioned, WriteBatch};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::limits;
use crate::relay::Relay;
use crate::state_records;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClockRecord {
    /// The newest time that this store has seen.
    seen: Timestamp,
    /// What expired before this may be deleted.
    pruned_until: Timestamp,
}

/// Compares the clock with what the store has seen. Returns the time before which expired things may be
/// deleted: the clock's, but every call comes at most [`limits::PRUNE_STEP`] further than the one before. So a
/// clock that is weeks ahead deletes hours' worth until somebody sets it right, and after weeks without a relay the
/// deletion catches up in a day.
pub(crate) async fn advance(relay: &Relay) -> Result<Timestamp, StoreError> {
    let now = relay.now();
    for _ in 0..limits::CONFLICT_TRIES {
        let known: Versioned<ClockRecord> = relay.read_record(state_records::clock_key()).await?;
        let before = known.value.clone().unwrap_or(ClockRecord { seen: now, pruned_until: now });
        if before.seen > now + limits::CLOCK_BACK {
            let ahead = Duration::try_from(before.seen.duration_since(now)).unwrap_or_default();
            let repaired = relay.store.repair_times(now).await?;
            tracing::warn!(
                ahead_seconds = ahead.as_secs(),
                repaired,
                "the clock was ahead and has been set back: what is due later than it should be is moved"
            );
        }
        let pruned_until = now.min(before.pruned_until + limits::PRUNE_STEP);
        let mut batch = WriteBatch::default();
        let after = ClockRecord { seen: now, pruned_until };
        batch.update(&known, &after, now + 10 * limits::RECORD_RETENTION);
        match relay.commit(batch).await {
            Ok(CommitOutcome::Done) => return Ok(pruned_until),
            Ok(_) => {}
            Err(error) => {
                // A full store takes no writes until something is deleted. The next call comes no further than this one.
                tracing::warn!(%error, "it can't be written down until when expired records are deleted");
                return Ok(pruned_until);
            }
        }
    }
    Err(StoreError::Unavailable("the record of the clock changed in every try".to_owned()))
}
