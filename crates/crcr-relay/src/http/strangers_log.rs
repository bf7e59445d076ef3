//! How much of the log people get who haven't proven that they may send anything.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How many of their refused requests are logged in a minute.
const LINES_PER_MINUTE: u32 = 60;
const MINUTE: Duration = Duration::from_secs(60);

/// The start of the current minute, and the lines since then.
#[derive(Default)]
pub(crate) struct StrangersLog(Mutex<Option<(Instant, u32)>>);

impl StrangersLog {
    /// Whether to log one more. Says so once if further ones aren't.
    pub(crate) fn takes_one(&self, now: Instant) -> bool {
        let mut known = self.0.lock();
        let (since, lines) = known.filter(|(since, _)| now < *since + MINUTE).unwrap_or((now, 0));
        *known = Some((since, lines.saturating_add(1)));
        if lines == LINES_PER_MINUTE {
            tracing::warn!(
                "many requests of strangers are refused: for the rest of this minute they aren't logged, only \
                 counted in `crcr_webhooks_total` and `crcr_callbacks_total`"
            );
        }
        lines < LINES_PER_MINUTE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_get_a_bounded_part_of_the_log() {
        let (log, start) = (StrangersLog::default(), Instant::now());
        let logged = |second| {
            let now = start + Duration::from_secs(second);
            (0..1000).filter(|_| log.takes_one(now)).count()
        };
        assert_eq!([logged(0), logged(59), logged(60), logged(61)], [60, 0, 60, 0]);
    }
}
