//! How often an outage is logged.

use std::time::{Duration, Instant};

/// The same error is logged again after this.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Decides which failures of something that is tried again and again are logged: the first one, one with another text,
/// and one a minute.
#[derive(Debug, Default)]
pub struct OutageLog {
    error: String,
    logged_at: Option<Instant>,
    is_logged: bool,
}

impl OutageLog {
    /// Whether to log this failure.
    pub fn failed(&mut self, error: &str, now: Instant) -> bool {
        let is_same = self.error == error;
        if is_same && self.logged_at.is_some_and(|at| now < at + LOG_INTERVAL) {
            return false;
        }
        *self = Self { error: error.to_owned(), logged_at: Some(now), is_logged: true };
        true
    }

    /// Whether to log that it works again: if its failure was logged.
    pub fn worked(&mut self) -> bool {
        std::mem::take(&mut self.is_logged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outage_is_logged_when_its_error_changes_and_once_a_minute_and_its_end_once() {
        let (mut log, start) = (OutageLog::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(!log.worked());
        let logged = (0..150).filter(|second| log.failed("disk full", at(*second)));
        assert_eq!(logged.collect::<Vec<_>>(), [0, 60, 120]);
        assert!(log.failed("disk gone", at(150)));
        assert!(log.worked() && !log.worked());
        assert!(!log.failed("disk gone", at(151)), "it fails every other time");
        assert!(!log.worked());
        assert!(log.failed("disk gone", at(210)) && log.worked());
    }
}
