//! How many lines of one kind a minute of the log has.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

const MINUTE: Duration = Duration::from_secs(60);

pub(crate) struct LineBudget {
    per_minute: u32,
    /// What is logged once if there are more.
    overflow: &'static str,
    /// The start of the current minute, and the lines since then.
    used: Mutex<Option<(Instant, u32)>>,
}

impl LineBudget {
    pub(crate) fn new(per_minute: u32, overflow: &'static str) -> Self {
        Self { per_minute, overflow, used: Mutex::default() }
    }

    /// Whether to log one more. Says so once if further ones aren't.
    pub(crate) fn takes_one(&self, now: Instant) -> bool {
        let mut used = self.used.lock();
        let (since, lines) = used.filter(|(since, _)| now < *since + MINUTE).unwrap_or((now, 0));
        *used = Some((since, lines.saturating_add(1)));
        if lines == self.per_minute {
            tracing::warn!("{}", self.overflow);
        }
        lines < self.per_minute
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minute_of_the_log_has_a_bounded_number_of_lines() {
        let (log, start) = (LineBudget::new(60, "there are more"), Instant::now());
        let logged = |second| {
            let now = start + Duration::from_secs(second);
            (0..1000).filter(|_| log.takes_one(now)).count()
        };
        assert_eq!([logged(0), logged(59), logged(60), logged(61)], [60, 0, 60, 0]);
    }
}
