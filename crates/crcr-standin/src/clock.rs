//! The stand-in's clock.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// The machine's time plus an offset, so that tests can let tokens and signed URLs expire.
#[derive(Debug, Default)]
pub struct Clock {
    /// Takes the place of the machine's time.
    start: Option<Timestamp>,
    ahead_millis: AtomicI64,
}

impl Clock {
    /// A clock that only [`Clock::advance`] moves.
    pub fn stopped_at(start: Timestamp) -> Self {
        Self { start: Some(start), ahead_millis: AtomicI64::new(0) }
    }

    pub fn now(&self) -> Timestamp {
        let ahead = SignedDuration::from_millis(self.ahead_millis.load(Ordering::SeqCst));
        self.start.unwrap_or_else(Timestamp::now).saturating_add(ahead).unwrap_or(Timestamp::MAX)
    }

    pub fn advance(&self, by: Duration) {
        let millis = i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
        self.ahead_millis.fetch_add(millis, Ordering::SeqCst);
    }

    /// Moves the clock back, as when somebody sets one right that was ahead.
    pub fn set_back(&self, by: Duration) {
        let millis = i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
        self.ahead_millis.fetch_sub(millis, Ordering::SeqCst);
    }
}
