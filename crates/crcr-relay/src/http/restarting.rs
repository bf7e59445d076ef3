//! Parts of the server that run until it stops.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt as _;

const PAUSE: Duration = Duration::from_secs(10);

/// Runs a part of the server, and starts it again if it panics. Otherwise the relay would be ready and go on without it,
/// such as with an allowlist that is never read again.
pub(crate) async fn restarting<F: Future<Output = ()>>(part: &str, start: impl Fn() -> F) {
    while AssertUnwindSafe(start()).catch_unwind().await.is_err() {
        tracing::error!(part, "a part of the relay panicked; it starts again in {PAUSE:?}");
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn part_of_the_server_that_panics_is_started_again_until_it_ends_by_itself() {
        let starts = AtomicU32::new(0);
        let start = || async {
            tokio::task::yield_now().await;
            assert_eq!(starts.fetch_add(1, Ordering::Relaxed), 2, "the first two starts panic");
        };
        restarting("test", start).await;
        assert_eq!(starts.load(Ordering::Relaxed), 3);
    }
}
