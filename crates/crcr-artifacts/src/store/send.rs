//! Sends the blocks of a blob in parallel. The number of buffers limits how many.

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::blocks::{BlobBlocks, FinishedBlob};
use crate::store::StoreError;

/// A blob of one block, or the start of a longer one.
pub(super) enum BlobStart {
    Whole(Bytes, FinishedBlob),
    /// The first two blocks, and the others.
    Long(Vec<Bytes>, BlobBlocks),
}

/// Waits for the first two blocks, to know whether the blob has more than one.
pub(super) async fn start_blob(mut blocks: BlobBlocks) -> Result<BlobStart, StoreError> {
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
pub(super) async fn send_blocks<T, F>(
    first: Vec<Bytes>,
    mut blocks: BlobBlocks,
    stop: &CancellationToken,
    send: impl Fn(usize, Bytes) -> F,
) -> Result<(Vec<T>, FinishedBlob), StoreError>
where
    F: Future<Output = Result<T, StoreError>> + Send + 'static,
    T: Send + 'static,
{
    let mut first = first.into_iter();
    let mut sending = FuturesUnordered::new();
    let mut sent = Vec::new();
    let (mut count, mut more) = (0, true);
    while more || !sending.is_empty() {
        tokio::select! {
            () = stop.cancelled() => return Err(StoreError::Stopped),
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
pub(super) fn task_result<T>(
    done: Result<Result<T, StoreError>, tokio::task::JoinError>,
) -> Result<T, StoreError> {
    done.unwrap_or(Err(StoreError::Stopped))
}

/// The size of a block for a blob of at most `limit` bytes in at most `count` blocks: `usual`, or
/// larger if that would be too many blocks.
pub(super) fn block_size(usual: usize, limit: u64, count: u64) -> usize {
    const MIB: u64 = 1024 * 1024;
    let needed = limit.div_ceil(count).div_ceil(MIB) * MIB;
    usual.max(usize::try_from(needed).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn blocks_of_a_long_blob_are_larger_to_stay_below_the_maximum_number() {
        const MIB: usize = 1024 * 1024;
        assert_eq!(block_size(8 * MIB, 1 << 30, 10_000), 8 * MIB);
        let tib = 1_u64 << 40;
        let size = block_size(8 * MIB, 5 * tib, 10_000);
        assert!((5 * tib).div_ceil(size as u64) <= 10_000 && size.is_multiple_of(MIB));
    }

    #[tokio::test]
    async fn results_are_in_order_and_an_error_or_stop_ends_the_upload() {
        let make = || BlobBlocks::start(10, |sink| sink.write(&[7; 95]).map(|()| BTreeMap::new()));
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
            if n == 4 { Err(StoreError::MissingBucket("b".to_owned())) } else { Ok(()) }
        };
        assert!(matches!(
            send_blocks(vec![], make(), &stop, fail).await,
            Err(StoreError::MissingBucket(_))
        ));
        stop.cancel();
        let never = |_: usize, _: Bytes| std::future::pending::<Result<(), StoreError>>();
        assert!(matches!(
            send_blocks(vec![], make(), &stop, never).await,
            Err(StoreError::Stopped)
        ));
    }
}
