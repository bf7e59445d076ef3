//! Which connections a listener has open, and which of them goes when there are too many: a client that holds
//! a place without sending its request loses it to one that wants to send one.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// How often it is logged that connections are closed early.
const LOG_PAUSE: Duration = Duration::from_secs(3600);

/// For so long, what a client sends may be on its way.
const ON_ITS_WAY: Duration = Duration::from_secs(1);

/// What a connection is waiting for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The head of its first request.
    FirstHead,
    RequestBody,
    Idle,
    /// The answer. It isn't closed.
    Answer,
}

/// How many connections were closed early, by what they were waiting for, since the process started.
pub(crate) static CLOSED_EARLY: [(&str, AtomicU64); 3] =
    [("head", AtomicU64::new(0)), ("body", AtomicU64::new(0)), ("idle", AtomicU64::new(0))];

#[derive(Default)]
pub(crate) struct OpenConnections {
    open: Mutex<Vec<Arc<OpenConnection>>>,
    logged_at: Mutex<Option<Instant>>,
}

pub(crate) struct OpenConnection {
    /// Since when it has been in this phase, or the client has sent nothing of a body.
    phase: Mutex<(Phase, Instant)>,
    /// Closes it at once.
    pub(crate) close: CancellationToken,
}

impl OpenConnections {
    /// Adds a new connection. If there are more than `max_open` then, the one is closed that has waited
    /// longest for its client, those without a request first. One that has just begun to wait goes only if all of
    /// them have.
    pub(crate) fn add(&self, max_open: usize) -> Arc<OpenConnection> {
        let mut open = self.open.lock();
        if open.len() >= max_open {
            let waiting = open.iter().enumerate().map(|(n, one)| (*one.phase.lock(), n));
            let waiting = waiting.filter(|((phase, _), _)| *phase != Phase::Answer);
            let longest = waiting.min_by_key(|((phase, since), _)| {
                let is_new = since.elapsed() < ON_ITS_WAY;
                (is_new, !is_new && *phase != Phase::FirstHead, *since)
            });
            if let Some(((phase, since), n)) = longest {
                open.swap_remove(n).close.cancel();
                self.closed_early(phase, since.elapsed());
            }
        }
        let phase = Mutex::new((Phase::FirstHead, Instant::now()));
        let connection = Arc::new(OpenConnection { phase, close: CancellationToken::new() });
        open.push(Arc::clone(&connection));
        connection
    }

    pub(crate) fn remove(&self, connection: &Arc<OpenConnection>) {
        self.open.lock().retain(|one| !Arc::ptr_eq(one, connection));
    }

    fn closed_early(&self, phase: Phase, waited: Duration) {
        if let Some((_, count)) = CLOSED_EARLY.get(phase as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        let mut logged_at = self.logged_at.lock();
        if logged_at.is_none_or(|at| at.elapsed() > LOG_PAUSE) {
            *logged_at = Some(Instant::now());
            tracing::warn!(
                ?phase,
                waited_seconds = waited.as_secs_f64(),
                "all connections are in use: those that have waited longest for their clients are closed. \
                 This is logged once an hour and counted in `crcr_connections_closed_early`"
            );
        }
    }
}

impl OpenConnection {
    pub(crate) fn enter(&self, phase: Phase) {
        *self.phase.lock() = (phase, Instant::now());
    }
}

/// A request's body that notes when it has arrived.
pub(crate) struct NotedBody {
    pub(crate) body: Incoming,
    pub(crate) connection: Arc<OpenConnection>,
}

impl Body for NotedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if matches!(frame, Poll::Ready(None)) || self.body.is_end_stream() {
            self.connection.enter(Phase::Answer);
        } else if frame.is_ready() {
            // The client sends, however slowly.
            self.connection.enter(Phase::RequestBody);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(open: &OpenConnections, phase: Phase, seconds: u64) -> Arc<OpenConnection> {
        let connection = open.add(usize::MAX);
        let since = Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap();
        *connection.phase.lock() = (phase, since);
        connection
    }

    #[test]
    fn new_connection_keeps_its_place_while_others_wait_for_long() {
        let open = OpenConnections::default();
        let idle = waiting(&open, Phase::Idle, 60);
        let half = waiting(&open, Phase::FirstHead, 30);
        let is_open = |one: &Arc<OpenConnection>| !one.close.is_cancelled();
        let first = open.add(3);
        let second = open.add(3);
        assert!(!is_open(&half) && is_open(&idle), "half a head holds a place for nothing");
        let third = open.add(3);
        assert!(!is_open(&idle) && is_open(&first), "its head may be on its way");
        let _fourth = open.add(3);
        assert!(!is_open(&first) && is_open(&second) && is_open(&third), "all are new");
    }

    #[test]
    fn body_that_paused_goes_after_connections_that_are_idle_for_longer() {
        let open = OpenConnections::default();
        let body = waiting(&open, Phase::RequestBody, 3);
        let idle = waiting(&open, Phase::Idle, 60);
        let stuck = waiting(&open, Phase::RequestBody, 50);
        let is_open = |one: &Arc<OpenConnection>| !one.close.is_cancelled();
        let _first = open.add(3);
        assert!(!is_open(&idle) && is_open(&stuck) && is_open(&body));
        let _second = open.add(3);
        assert!(!is_open(&stuck) && is_open(&body));
    }
}
