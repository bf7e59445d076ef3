//! Fetches a blob into a file: several ranges in flight, each going on where it broke off, hashed
//! while it arrives.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crcr_github::http::Retry;
use rawzip::ReaderAt as _;
use tokio::task::{JoinSet, spawn_blocking};

use crate::blob::{Blob, OpenError, Part};
use crate::digest::{Digest, Hasher};
use crate::disk::{Disk, MAX_HEAD, Sums, stored_head};
use crate::partial::{Partial, Progress};
use crate::store;

/// How many ranges are in flight.
const IN_FLIGHT: usize = 8;
/// What the first request asks for; a small blob is whole then.
const FIRST: u64 = 8 << 20;
/// Bytes that are hashed at once.
const HASHED_AT_ONCE: usize = 1 << 20;

/// Is told how many bytes have arrived.
pub type Arrived = Arc<dyn Fn(u64) + Send + Sync>;

/// Why a blob isn't there.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store says no.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// The server broke off again and again without a byte of progress.
    #[error("the connection broke {tries} times in a row: {message}")]
    Broken {
        /// Tries without progress.
        tries: u32,
        /// What the last one met.
        message: String,
    },
    /// The blob was replaced again and again.
    #[error("the artifact was replaced while it was read")]
    Changed,
    /// The server announces another length than the artifact has.
    #[error("the server announces {announced} bytes, and the artifact has {expected}")]
    Length {
        /// The server's.
        announced: u64,
        /// The artifact's.
        expected: u64,
    },
    /// The server sent more than it announced, or not what was asked for.
    #[error("the server sent other bytes than those that were asked for")]
    Range,
    /// The file can't be written or read.
    #[error("`{path}` can't be written: {source}")]
    Disk {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

impl Error {
    /// Whether a later process may go on where this one broke off.
    pub(crate) fn is_interruption(&self) -> bool {
        matches!(self, Self::Broken { .. } | Self::Store(store::Error::Unreachable { .. }))
    }
}

/// A blob that has been fetched.
pub(crate) struct Fetched {
    /// The folder of the bytes, which goes with it.
    pub(crate) partial: Partial,
    /// The bytes.
    pub(crate) disk: Disk,
    /// Their digest.
    pub(crate) digest: Digest,
    /// Their number.
    pub(crate) size: u64,
    /// How many of them an earlier process had fetched.
    pub(crate) resumed: u64,
    /// The type that the server gives.
    pub(crate) content_type: Option<String>,
    /// The name of the file that is stored as it is.
    pub(crate) file_name: Option<String>,
}

/// Fetches the blob at `place` into a folder below `cache`.
///
/// A broken connection is taken up where it broke; a replaced blob is fetched anew, once. What has
/// arrived is kept for a later process when the network fails, and removed on every other failure.
pub(crate) async fn fetch(
    blob: &Arc<Blob>,
    place: &str,
    cache: &Path,
    size: Option<u64>,
    arrived: &Arrived,
) -> Result<Fetched, Error> {
    let disk = |source| Error::Disk { path: cache.to_owned(), source };
    let mut partial = Partial::open(cache, place).map_err(disk)?;
    let mut replaced = 0;
    loop {
        let mut transfer = match Transfer::begin(blob, place, partial, size, arrived).await {
            Ok(transfer) => transfer,
            Err((partial, error)) => {
                if !error.is_interruption() {
                    partial.discard();
                }
                return Err(error);
            }
        };
        match transfer.run().await {
            Ok((digest, sums)) => return Ok(transfer.finished(digest, sums)),
            Err(Error::Changed) if replaced == 0 => {
                replaced += 1;
                partial = transfer.into_partial();
                partial.reset().map_err(disk)?;
            }
            Err(error) => {
                let partial = transfer.into_partial();
                if !error.is_interruption() {
                    partial.discard();
                }
                return Err(error);
            }
        }
    }
}

/// What the readers of the ranges, and the hasher, share.
struct Shared {
    blob: Arc<Blob>,
    disk: Disk,
    path: PathBuf,
    partial: Partial,
    progress: Mutex<Progress>,
    /// Who writes: the system takes one writer of a file at a time and lets the others spin.
    writing: tokio::sync::Mutex<()>,
    /// Set when no more bytes will come.
    over: Mutex<bool>,
    news: Condvar,
    next: AtomicUsize,
    arrived: Arrived,
}

struct Transfer {
    shared: Arc<Shared>,
    first: Option<Part>,
    resumed: u64,
}

impl Transfer {
    /// Learns the blob's length and version by opening its first range, or takes both from what an
    /// earlier process has noted.
    async fn begin(
        blob: &Arc<Blob>,
        place: &str,
        partial: Partial,
        size: Option<u64>,
        arrived: &Arrived,
    ) -> Result<Self, (Partial, Error)> {
        let kept = partial.kept().filter(|kept| size.is_none_or(|size| size == kept.total));
        let (progress, first) = match kept.cloned() {
            Some(kept) => (kept, None),
            None => match open(blob, 0, FIRST, None).await {
                Ok(mut part) => {
                    let etag = part.etag.clone();
                    let progress = Progress::new(place, etag, part.total, part.whole);
                    let content_type = part.content_type.clone();
                    let file_name = part.file_name.clone();
                    let start = if part.start == 0 { part.look_ahead(MAX_HEAD).await } else { &[] };
                    let head = start[..stored_head(start).unwrap_or(0)].to_vec();
                    (Progress { content_type, file_name, head, ..progress }, Some(part))
                }
                Err(error) => return Err((partial, error)),
            },
        };
        if let Some(expected) = size.filter(|size| *size != progress.total) {
            return Err((partial, Error::Length { announced: progress.total, expected }));
        }
        let path = partial.path();
        let file = match partial.file() {
            Ok(file) => file,
            Err(source) => return Err((partial, Error::Disk { path, source })),
        };
        let resumed = progress.bytes();
        arrived(resumed);
        let shared = Shared {
            blob: blob.clone(),
            disk: Disk::new(progress.head.clone(), file, path.clone()),
            path,
            partial,
            progress: Mutex::new(progress),
            writing: tokio::sync::Mutex::default(),
            over: Mutex::new(false),
            news: Condvar::new(),
            // The first range is open already, and belongs to the reader that gets it.
            next: AtomicUsize::new(usize::from(first.is_some())),
            arrived: arrived.clone(),
        };
        Ok(Self { shared: Arc::new(shared), first, resumed })
    }

    /// Reads all ranges and hashes the bytes in order behind them.
    async fn run(&mut self) -> Result<(Digest, Sums), Error> {
        let mut readers = JoinSet::new();
        let mut first = self.first.take();
        for _ in 0..IN_FLIGHT {
            let (shared, first) = (self.shared.clone(), first.take());
            readers.spawn(async move { shared.read_ranges(first).await });
        }
        // Ends the hasher when this future is dropped, too.
        let end = EndOnDrop(self.shared.clone());
        let shared = self.shared.clone();
        let hasher = spawn_blocking(move || shared.hash());
        let mut failed = None;
        while let Some(ended) = readers.join_next().await {
            let ended = ended.unwrap_or_else(|e| Err(self.shared.failed(io::Error::other(e))));
            if let Err(error) = ended {
                failed.get_or_insert(error);
                readers.abort_all();
            }
        }
        drop(end);
        // The hasher ends with the readers, so nothing of this transfer outlives it.
        let hashed = hasher.await.unwrap_or_else(|e| Err(io::Error::other(e)));
        if let Some(error) = failed {
            return Err(error);
        }
        hashed.map_err(|source| self.shared.failed(source))
    }

    fn finished(self, digest: Digest, sums: Sums) -> Fetched {
        let Progress { total: size, content_type, file_name, .. } =
            lock(&self.shared.progress).clone();
        let resumed = self.resumed;
        let (partial, disk) = self.into_parts();
        let disk = disk.with_sums(sums);
        Fetched { partial, disk, digest, size, resumed, content_type, file_name }
    }

    fn into_partial(self) -> Partial {
        self.into_parts().0
    }

    fn into_parts(self) -> (Partial, Disk) {
        let shared = Arc::into_inner(self.shared);
        let shared = shared.expect("the readers and the hasher have ended");
        (shared.partial, shared.disk)
    }
}

struct EndOnDrop(Arc<Shared>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.note();
        self.0.end();
    }
}

impl Shared {
    /// Reads one range after the other until there are none left; `first` is the first one.
    async fn read_ranges(&self, first: Option<Part>) -> Result<(), Error> {
        let parts = lock(&self.progress).done.len();
        if let Some(part) = first.filter(|_| parts > 0) {
            self.read_range(0, Some(part)).await?;
            self.note();
        }
        loop {
            let n = self.next.fetch_add(1, Ordering::Relaxed);
            if n >= parts {
                return Ok(());
            }
            self.read_range(n, None).await?;
            self.note();
        }
    }

    async fn read_range(&self, n: usize, mut open_part: Option<Part>) -> Result<(), Error> {
        let retry = Retry::default();
        let mut failures = 0;
        loop {
            let (start, end, done, etag, total) = {
                let progress = lock(&self.progress);
                let (start, end) = progress.range(n);
                (start, end, progress.done[n], progress.etag.clone(), progress.total)
            };
            let at = start + done;
            if at == end {
                return Ok(());
            }
            let part = match open_part.take() {
                Some(part) => part,
                None => open(&self.blob, at, end, etag.as_deref()).await?,
            };
            let same = part.etag == etag || part.etag.is_none();
            if part.total != total || !same {
                return Err(Error::Changed);
            }
            let message = match self.copy(n, part, at, end).await? {
                Ok(()) => continue,
                Err(message) => message,
            };
            let progressed = lock(&self.progress).done[n] > done;
            failures = if progressed { 1 } else { failures + 1 };
            if failures >= retry.tries {
                return Err(Error::Broken { tries: failures, message });
            }
            tracing::debug!(message, failures, "a range broke off");
            tokio::time::sleep(retry.pause(failures, None)).await;
        }
    }

    /// Copies a body to its place in the file. The inner error is a break that can be mended.
    async fn copy(
        &self,
        n: usize,
        mut part: Part,
        mut at: u64,
        end: u64,
    ) -> Result<Result<(), String>, Error> {
        // A server that knows no ranges starts at the blob's start.
        let mut skip = at.checked_sub(part.start).ok_or(Error::Range)?;
        while at < end {
            let mut bytes = match part.chunk().await {
                Ok(Some(bytes)) => bytes,
                Ok(None) => return Ok(Err("the server ended the answer early".to_owned())),
                Err(message) => return Ok(Err(message)),
            };
            let skipped = skip.min(bytes.len() as u64);
            skip -= skipped;
            bytes = bytes.split_off(skipped as usize);
            if bytes.len() as u64 > end - at {
                if !part.whole {
                    return Err(Error::Range);
                }
                bytes.truncate((end - at) as usize);
            }
            let turn = self.writing.lock().await;
            self.disk.write_all_at(&bytes, at).map_err(|source| self.failed(source))?;
            drop(turn);
            at += bytes.len() as u64;
            lock(&self.progress).done[n] += bytes.len() as u64;
            self.news.notify_all();
            (self.arrived)(bytes.len() as u64);
        }
        Ok(Ok(()))
    }

    /// Hashes the bytes in order as they arrive; the digest is worth nothing when the readers fail.
    fn hash(&self) -> io::Result<(Digest, Sums)> {
        let (mut hasher, mut sums) = (Hasher::default(), Sums::default());
        let head = self.disk.head_len();
        let mut buffer = vec![0; HASHED_AT_ONCE];
        let (mut at, mut there) = (0, 0);
        loop {
            if at == there {
                let total = {
                    let mut progress = lock(&self.progress);
                    loop {
                        there = progress.contiguous(at);
                        if there > at || there == progress.total || *lock(&self.over) {
                            break progress.total;
                        }
                        progress = self.news.wait(progress).unwrap_or_else(PoisonError::into_inner);
                    }
                };
                if at == there {
                    debug_assert!(at == total || *lock(&self.over), "bytes are still to come");
                    return Ok((hasher.finish(), sums));
                }
            }
            let want = usize::try_from(there - at).unwrap_or(usize::MAX).min(buffer.len());
            self.disk.read_exact_at(&mut buffer[..want], at)?;
            hasher.update(&buffer[..want]);
            if head > 0 {
                let skip = head.saturating_sub(at).min(want as u64);
                sums.add((at + skip).saturating_sub(head), &buffer[skip as usize..want]);
            }
            at += want as u64;
        }
    }

    /// Tells the hasher that nothing more comes.
    fn end(&self) {
        let _progress = lock(&self.progress);
        *lock(&self.over) = true;
        self.news.notify_all();
    }

    /// Notes what is there. Without the note, a later process starts anew.
    fn note(&self) {
        let progress = lock(&self.progress).clone();
        if let Err(error) = self.partial.note(&progress) {
            tracing::debug!(%error, "what has been fetched can't be noted");
        }
    }

    fn failed(&self, source: io::Error) -> Error {
        Error::Disk { path: self.path.clone(), source }
    }
}

/// Opens a range, again while that may help.
pub(crate) async fn open(
    blob: &Blob,
    start: u64,
    end: u64,
    etag: Option<&str>,
) -> Result<Part, Error> {
    let retry = Retry::default();
    let mut tried = 1;
    loop {
        match blob.open(start, end, etag).await {
            Ok(part) => return Ok(part),
            Err(OpenError::Changed) => return Err(Error::Changed),
            Err(OpenError::Store(error)) => return Err(error.into()),
            Err(OpenError::Transient { message, .. }) if tried >= retry.tries => {
                return Err(Error::Broken { tries: tried, message });
            }
            Err(OpenError::Transient { message, retry_after }) => {
                tracing::debug!(message, tried, "trying again");
                tokio::time::sleep(retry.pause(tried, retry_after)).await;
                tried += 1;
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
