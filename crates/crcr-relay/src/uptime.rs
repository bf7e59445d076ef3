//! When the relay was down. Such times don't count against the time that a backend has for its
//! first report.

use std::time::Duration;

use crcr_store::{StoreError, Versioned, WriteBatch};
use jiff::Timestamp;

use crate::limits;
use crate::relay::Relay;
use crate::state_records::{self, Uptime};

/// The beats of a relay that followed each other without a downtime, by its own clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OwnBeats {
    first: Timestamp,
    last: Timestamp,
}

/// Writes down that a relay is up, and the downtime before it if there was one.
pub async fn beat(relay: &Relay) -> Result<(), StoreError> {
    let known: Versioned<Uptime> = relay.read_record(state_records::uptime_key()).await?;
    let now = relay.now();
    // Whose own last beat is recent knows that a relay was up, however far the clocks of others are from its own.
    let is_recent = |own: &OwnBeats| own.last <= now && now <= own.last + limits::SHORTEST_DOWNTIME;
    let own = (*relay.own_beats.lock()).filter(is_recent);
    let mut uptime = known.value.clone().unwrap_or_default();
    // One far in the future was written down by a clock that was ahead.
    let last = uptime.alive_at.filter(|last| *last <= now + limits::CLOCK_BACK);
    if let Some(last) = last.filter(|last| own.is_none() && *last + limits::SHORTEST_DOWNTIME < now)
    {
        tracing::warn!(from = %last, to = %now, "no relay was up in this time");
        uptime.downtimes.push((last, now));
        let surplus = uptime.downtimes.len().saturating_sub(limits::KEPT_DOWNTIMES);
        uptime.downtimes.drain(..surplus);
    }
    // It doesn't go back to a clock that is behind, and one that is far ahead moves it by a step only.
    uptime.alive_at = Some(match last {
        None => now,
        Some(last) if own.is_some() => now.clamp(last, last + limits::SHORTEST_DOWNTIME),
        Some(last) => now.max(last),
    });
    // One that ends in the future, or begins while this relay was up, was written down by a clock that was ahead.
    uptime.downtimes.retain(|(down, up)| {
        *up <= now + limits::CLOCK_BACK && own.is_none_or(|own| *down < own.first)
    });
    let mut batch = WriteBatch::default();
    batch.update(&known, &uptime, relay.expiry());
    // A conflict means that another relay has written the same.
    relay.commit(batch).await?;
    let first = own.map_or(now, |own| own.first);
    *relay.own_beats.lock() = Some(OwnBeats { first, last: now });
    Ok(())
}

/// Beats as long as the relay runs.
pub(crate) async fn beat_periodically(relay: &Relay) {
    loop {
        if let Err(error) = beat(relay).await {
            tracing::warn!(%error, "it can't be written down that the relay is up");
        }
        tokio::time::sleep(limits::HEARTBEAT_INTERVAL).await;
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
    let known: Versioned<Uptime> = relay.read_record(state_records::uptime_key()).await?;
    Ok(extend(due, from, &known.value.unwrap_or_default().downtimes))
}

/// Whether no relay was up for a part of the time between two times.
pub(crate) async fn was_down(
    relay: &Relay,
    from: Option<Timestamp>,
    to: Option<Timestamp>,
) -> Result<bool, StoreError> {
    let known: Versioned<Uptime> = relay.read_record(state_records::uptime_key()).await?;
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
