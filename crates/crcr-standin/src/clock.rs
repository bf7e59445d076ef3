//! The stand-in's time.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// The machine's time plus what tests added, so that tokens and signed URLs expire at once.
#[derive(Debug, Default)]
pub struct Clock(AtomicI64);

impl Clock {
    pub fn now(&self) -> Timestamp {
        let ahead = SignedDuration::from_millis(self.0.load(Ordering::SeqCst));
        Timestamp::now().saturating_add(ahead).unwrap_or(Timestamp::MAX)
    }

    /// Moves forward by `by`, to the millisecond.
    pub fn advance(&self, by: Duration) {
        let millis = i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
        self.0.fetch_add(millis, Ordering::SeqCst);
    }
}
