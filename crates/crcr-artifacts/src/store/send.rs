//! Sends the blocks of a blob in parallel. The number of buffers limits how many.

use std::time::Duration;

use bytes::Bytes;
use crcr_github::http::HttpError;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use reqwest::Response;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::blocks::{BlobBlocks, FinishedBlob};
use crate::store::ArtifactStoreError;

/// Bytes that are in flight at first. A store that takes blocks and says nothing is told from a slow connection by one
/// block that had all of it.
const FIRST_BYTES: usize = 8 * 1024 * 1024;
/// An answer that takes longer than this doesn't ask for more blocks at a time. Many servers far away give each connection
/// some megabytes a second only, so that several are needed to fill the line.
const QUICK_BLOCK: Duration = Duration::from_secs(10);

/// How much is sent at a time: little at first, and more with each quick answer. Blocks that share a slow connection
/// time out together, so each time-out halves their number.
#[derive(Debug)]
pub(crate) struct BlockPacing {
    state: Mutex<PacingState>,
    freed: Notify,
}

#[derive(Debug)]
struct PacingState {
    allowed: usize,
    allowed_bytes: usize,
    in_flight: usize,
    bytes_in_flight: usize,
    /// How often the number was halved. Blocks that were sent together count as one time-out.
    halved: usize,
    alive_at: Instant,
}

impl PacingState {
    fn has_room(&self, bytes: usize) -> bool {
        self.in_flight == 0
            || (self.in_flight < self.allowed && self.bytes_in_flight + bytes <= self.allowed_bytes)
    }
}

/// One block's turn; dropping it lets the next block start.
pub(crate) struct BlockTurn<'a> {
    pacing: &'a BlockPacing,
    bytes: usize,
    halved: usize,
    started: Instant,
}

impl Drop for BlockTurn<'_> {
    fn drop(&mut self) {
        let mut state = self.pacing.state.lock();
        state.in_flight -= 1;
        state.bytes_in_flight -= self.bytes;
        drop(state);
        self.pacing.freed.notify_one();
    }
}

impl BlockPacing {
    pub(crate) fn new(allowed: usize) -> Self {
        let state = PacingState {
            allowed,
            allowed_bytes: FIRST_BYTES,
            in_flight: 0,
            bytes_in_flight: 0,
            halved: 0,
            alive_at: Instant::now(),
        };
        Self { state: Mutex::new(state), freed: Notify::new() }
    }

    /// Waits until a block of this size may be sent.
    pub(crate) async fn turn(&self, bytes: usize) -> BlockTurn<'_> {
        loop {
            let freed = self.freed.notified();
            {
                let mut state = self.state.lock();
                if state.has_room(bytes) {
                    state.in_flight += 1;
                    state.bytes_in_flight += bytes;
                    // One that ended may have left room for several.
                    self.freed.notify_one();
                    let (halved, started) = (state.halved, Instant::now());
                    return BlockTurn { pacing: self, bytes, halved, started };
                }
            }
            freed.await;
        }
    }

    /// When a block last got through. What another one waited until then, for the line or for its turn, isn't an outage.
    pub(crate) fn alive_at(&self) -> Instant {
        self.state.lock().alive_at
    }

    /// The store has taken a block.
    pub(crate) fn got_through(&self) {
        self.state.lock().alive_at = Instant::now();
    }

    /// Sends one block with `send`, in its `turn`.
    pub(crate) async fn send(
        &self,
        turn: BlockTurn<'_>,
        send: impl Future<Output = Result<Response, HttpError>>,
    ) -> Result<Response, HttpError> {
        let sent = send.await;
        self.adapt(&turn, &sent);
        drop(turn);
        sent
    }

    fn adapt(&self, turn: &BlockTurn<'_>, sent: &Result<Response, HttpError>) {
        let mut state = self.state.lock();
        match sent {
            Ok(_) if turn.started.elapsed() < QUICK_BLOCK => {
                state.allowed_bytes = state.allowed_bytes.saturating_add(turn.bytes);
            }
            // A block that was alone had the whole line, so that the store is silent.
            Err(error)
                if error.is_timeout() && state.halved == turn.halved && state.in_flight > 1 =>
            {
                state.allowed = state.allowed.min(state.in_flight) / 2;
                state.halved += 1;
                tracing::debug!(allowed = state.allowed, "blocks time out: fewer at a time");
            }
            _ => {}
        }
    }
}

/// A blob of one block, or the start of a longer one.
pub(crate) enum BlobStart {
    Whole(Bytes, FinishedBlob),
    /// The first two blocks, and the others.
    Long(Vec<Bytes>, BlobBlocks),
}

/// Waits for the first two blocks, to know whether the blob has more than one.
pub(crate) async fn start_blob(mut blocks: BlobBlocks) -> Result<BlobStart, ArtifactStoreError> {
    let first = blocks.next().await;
    match (first, blocks.next().await) {
        (Some(first), Some(second)) => Ok(BlobStart::Long(vec![first, second], blocks)),
        (first, _) => Ok(BlobStart::Whole(first.unwrap_or_default(), blocks.finish().await?)),
    }
}

/// Calls `send` with every block and its index, and returns the results in order. Stops at the first
/// error and when `stop` is cancelled.
///
/// Each block is sent by its own task, so that signing and TLS use all processors.
pub(crate) async fn send_blocks<T, F>(
    first: Vec<Bytes>,
    mut blocks: BlobBlocks,
    stop: &CancellationToken,
    send: impl Fn(usize, Bytes) -> F,
) -> Result<(Vec<T>, FinishedBlob), ArtifactStoreError>
where
    F: Future<Output = Result<T, ArtifactStoreError>> + Send + 'static,
    T: Send + 'static,
{
    let mut first = first.into_iter();
    let mut sending = FuturesUnordered::new();
    let mut sent = Vec::new();
    let (mut count, mut more) = (0, true);
    while more || !sending.is_empty() {
        tokio::select! {
            () = stop.cancelled() => return Err(ArtifactStoreError::Stopped),
            Some(done) = sending.next(), if !sending.is_empty() => {
                sent.push(task_result(done)?);
            }
            block = async { match first.next() { Some(block) => Some(block), None => blocks.next().await } },
                if more =>
            {
                match block {
                    Some(block) => {
                        let (number, sent) = (count, send(count, block));
                        let sent = async move { sent.await.map(|done| (number, done)) };
                        sending.push(AbortOnDropHandle::new(tokio::spawn(sent)));
                        count += 1;
                    }
                    None => more = false,
                }
            }
        }
    }
    let made = blocks.finish().await?;
    sent.sort_unstable_by_key(|(number, _)| *number);
    Ok((sent.into_iter().map(|(_, done)| done).collect(), made))
}

/// The result of a task; a panic or the end of the runtime counts as stopped.
pub(crate) fn task_result<T>(
    done: Result<Result<T, ArtifactStoreError>, tokio::task::JoinError>,
) -> Result<T, ArtifactStoreError> {
    done.unwrap_or(Err(ArtifactStoreError::Stopped))
}

/// The size of a block for a blob of at most `limit` bytes in at most `count` blocks: `usual`, or
/// larger if that would be too many blocks.
pub(crate) fn block_size(usual: usize, limit: u64, count: u64) -> usize {
    const MIB: u64 = 1024 * 1024;
    let needed = limit.div_ceil(count).div_ceil(MIB) * MIB;
    usual.max(usize::try_from(needed).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::digest::DigestAlgorithm;

    #[test]
    fn blocks_of_a_long_blob_are_larger_to_stay_below_the_maximum_number() {
        const MIB: usize = 1024 * 1024;
        assert_eq!(block_size(8 * MIB, 1 << 30, 10_000), 8 * MIB);
        let tib = 1_u64 << 40;
        let size = block_size(8 * MIB, 5 * tib, 10_000);
        assert!((5 * tib).div_ceil(size as u64) <= 10_000 && size.is_multiple_of(MIB));
        assert_eq!(block_size(MIB, 10 << 20, 5), 2 * MIB, "no larger than it has to be");
        assert_eq!(block_size(MIB, (10 << 20) + 1, 5), 3 * MIB);
    }

    #[tokio::test]
    async fn blocks_that_time_out_together_are_sent_one_at_a_time_in_the_end() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let client = crcr_github::http::client_with(Duration::from_millis(50)).unwrap();
        let pacing = BlockPacing::new(8);
        for allowed in [4, 2, 1, 1] {
            let before = pacing.alive_at();
            let send = async |put| pacing.send(pacing.turn(0).await, put).await;
            let sent = (0..8).map(|_| send(crcr_github::http::send_once(client.put(&url))));
            // Those that wait for their turn were sent after the first time-outs, so they count anew.
            let first = sent.take(pacing.state.lock().allowed);
            assert!(futures_util::future::join_all(first).await.iter().all(Result::is_err));
            let state = pacing.state.lock();
            assert_eq!((state.allowed, state.in_flight), (allowed, 0));
            assert_eq!(state.alive_at, before, "silence is an outage, for how many it may be");
        }
        drop(listener);
    }

    #[tokio::test]
    async fn large_blocks_wait_for_the_first_one_and_small_ones_do_not() {
        let pacing = BlockPacing::new(16);
        let first = pacing.turn(FIRST_BYTES).await;
        let small = pacing.turn(0).await;
        let large = pacing.turn(1);
        tokio::pin!(large);
        assert!(futures_util::poll!(&mut large).is_pending());
        drop(small);
        assert!(futures_util::poll!(&mut large).is_pending());
        drop(first);
        large.await;
    }

    #[tokio::test]
    async fn store_far_away_gets_more_blocks_at_a_time_and_a_slow_line_does_not() {
        for (seconds, is_more) in [(1, true), (5, true), (30, false)] {
            let pacing = BlockPacing::new(16);
            let mut turn = pacing.turn(FIRST_BYTES).await;
            turn.started -= Duration::from_secs(seconds);
            let answer = Response::from(::http::Response::new(""));
            pacing.send(turn, async { Ok(answer) }).await.unwrap();
            assert_eq!(pacing.state.lock().allowed_bytes > FIRST_BYTES, is_more, "{seconds} s");
        }
    }

    #[tokio::test]
    async fn results_are_in_order_and_an_error_or_stop_ends_the_upload() {
        let make = || {
            BlobBlocks::start(10, DigestAlgorithm::Sha256, |sink| {
                sink.write(&[7; 95]).map(|()| BTreeMap::new())
            })
        };
        let stop = CancellationToken::new();
        let slow = |n: usize, block: Bytes| async move {
            for _ in 0..(20 - n) {
                tokio::task::yield_now().await;
            }
            Ok((n, block.len()))
        };
        let (sent, made) = send_blocks(vec![], make(), &stop, slow).await.unwrap();
        let expected: Vec<_> = (0..10).map(|n| (n, if n == 9 { 5 } else { 10 })).collect();
        assert_eq!((sent, made.size), (expected, 95));
        let fail = |n: usize, _: Bytes| async move {
            if n == 4 { Err(ArtifactStoreError::MissingBucket("b".to_owned())) } else { Ok(()) }
        };
        assert!(matches!(
            send_blocks(vec![], make(), &stop, fail).await,
            Err(ArtifactStoreError::MissingBucket(_))
        ));
        stop.cancel();
        let never = |_: usize, _: Bytes| std::future::pending::<Result<(), ArtifactStoreError>>();
        assert!(matches!(
            send_blocks(vec![], make(), &stop, never).await,
            Err(ArtifactStoreError::Stopped)
        ));
    }
}
