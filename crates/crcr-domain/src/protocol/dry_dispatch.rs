//! A dispatch that `crcr doctor downstream` sends in the relay's place. Its delivery tells everybody what it
//! is: the workflow runs no upstream code for it, and the relay records nothing of its report.

use std::time::Duration;

use jiff::Timestamp;

/// Workflows compare with it, so it can't change.
const DELIVERY_PREFIX: &str = "crcr-doctor-";
/// The job of a workflow that answers a dry dispatch, as GitHub shows its name.
pub const JOB_NAME: &str = "dry dispatch";
/// How long a relay accepts its signature.
const VALID_FOR: Duration = Duration::from_secs(3600);
/// How far the clock that signed may be ahead.
const CLOCK_DIFFERENCE: Duration = Duration::from_secs(300);

/// A delivery id of the form `crcr-doctor-<seconds>-<32 hex digits>`.
pub fn delivery(now: Timestamp, random: u128) -> String {
    format!("{DELIVERY_PREFIX}{}-{random:032x}", now.as_second())
}

pub fn is_dry(delivery: &str) -> bool {
    delivery.starts_with(DELIVERY_PREFIX)
}

/// Whether `delivery` names a dry dispatch that is young enough to be answered.
pub fn is_current(delivery: &str, now: Timestamp) -> bool {
    let sent_at = delivery
        .strip_prefix(DELIVERY_PREFIX)
        .and_then(|rest| rest.split_once('-'))
        .and_then(|(seconds, _)| seconds.parse().ok())
        .and_then(|seconds| Timestamp::from_second(seconds).ok());
    sent_at.is_some_and(|at| at <= now + CLOCK_DIFFERENCE && now <= at + VALID_FOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dry_dispatch_is_current_for_an_hour() {
        let at = |seconds: i64| Timestamp::from_second(1_000_000 + seconds).unwrap();
        let sent = delivery(at(0), 7);
        assert_eq!(sent, format!("crcr-doctor-1000000-{:032x}", 7));
        assert!(is_dry(&sent) && !is_dry("72d3162e-cc78"));
        for (seconds, current) in [(-301, false), (-300, true), (3600, true), (3601, false)] {
            assert_eq!(is_current(&sent, at(seconds)), current, "{seconds}");
        }
        for other in ["72d3162e-cc78", "crcr-doctor-", "crcr-doctor-x-1", "crcr-doctor-1000000"] {
            assert!(!is_current(other, at(0)), "{other}");
        }
    }
}
