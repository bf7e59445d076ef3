//! When the relay was down. Such times don't count against the time that a backend has for its
//! first report.

use std::time::Duration;

use crcr_store::{StoreError, Versioned, WriteBatch, read_record};
use jiff::Timestamp;

use crate::limits;
use crate::relay::Relay;
use crate::state_records::{self, Uptime};

/// Writes down that a relay is up, and the downtime before it if there was one.
pub async fn beat(relay: &Relay) -> Result<(), StoreError> {
    let known: Versioned<Uptime> =
        read_record(relay.store.as_ref(), state_records::uptime_key()).await?;
    let now = relay.now();
    let mut uptime = known.value.clone().unwrap_or_default();
    if let Some(last) = uptime.alive_at.filter(|last| *last + limits::DOWNTIME < now) {
        tracing::warn!(from = %last, to = %now, "no relay was up in this time");
        uptime.downtimes.push((last, now));
        let surplus = uptime.downtimes.len().saturating_sub(limits::DOWNTIMES);
        uptime.downtimes.drain(..surplus);
    }
    uptime.alive_at = Some(now);
    // One that ends in the future was written down by a clock that was ahead.
    uptime.downtimes.retain(|(_, up)| *up <= now + limits::CLOCK_BACK);
    let mut batch = WriteBatch::default();
    batch.update(&known, &uptime, relay.expiry());
    // A conflict means that another relay has written the same.
    relay.commit(batch).await?;
    Ok(())
}

/// Beats as long as the relay runs.
pub async fn beat_periodically(relay: &Relay) {
    loop {
        if let Err(error) = beat(relay).await {
            tracing::warn!(%error, "it can't be written down that the relay is up");
        }
        tokio::time::sleep(limits::HEARTBEAT).await;
    }
}

/// `patience` after `from`, and as much later as relays were down in between.
pub(crate) async fn extended(
    relay: &Relay,
    from: Timestamp,
    patience: Duration,
) -> Result<Timestamp, StoreError> {
    let due = from + patience;
    // Only a time that seems to be over can be wrong.
    if relay.now() < due {
        return Ok(due);
    }
    let known: Versioned<Uptime> =
        read_record(relay.store.as_ref(), state_records::uptime_key()).await?;
    Ok(extend(due, from, &known.value.unwrap_or_default().downtimes))
}

/// Whether no relay was up for a part of the time between two times.
pub(crate) async fn was_down(
    relay: &Relay,
    from: Option<Timestamp>,
    to: Option<Timestamp>,
) -> Result<bool, StoreError> {
    let known: Versioned<Uptime> =
        read_record(relay.store.as_ref(), state_records::uptime_key()).await?;
    let downtimes = known.value.unwrap_or_default().downtimes;
    let overlaps = |(down, up): &(Timestamp, Timestamp)| {
        to.is_none_or(|to| *down < to) && from.is_none_or(|from| from < *up)
    };
    Ok(downtimes.iter().any(overlaps))
}

fn extend(mut due: Timestamp, from: Timestamp, downtimes: &[(Timestamp, Timestamp)]) -> Timestamp {
    for (down, up) in downtimes {
        let start = (*down).max(from);
        if start < due && start < *up {
            due += up.duration_since(start).unsigned_abs();
        }
    }
    due
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn downtimes_within_the_patience_extend_it_and_others_dont() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let due = |downtimes: &[(i64, i64)]| {
            let downtimes: Vec<_> =
                downtimes.iter().map(|(down, up)| (at(*down), at(*up))).collect();
            extend(at(200), at(100), &downtimes).as_second()
        };
        assert_eq!(due(&[]), 200);
        assert_eq!(due(&[(120, 150)]), 230);
        assert_eq!(due(&[(50, 110)]), 210, "what was before isn't counted");
        assert_eq!(due(&[(20, 80), (300, 400)]), 200);
        assert_eq!(due(&[(190, 290), (295, 305)]), 310, "the first one has extended it to 300");
    }
}
