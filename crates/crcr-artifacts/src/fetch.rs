//! Fetches a blob into a file: several ranges in flight, each going on where it broke off, hashed
//! while it arrives.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use bytes::{Buf as _, Bytes};
use crcr_github::http::{RetryLoop, RetryPolicy};
use rawzip::ReaderAt as _;
use tokio::task::{JoinSet, spawn_blocking};

use crate::blob::{ByteRange, OpenError, RemoteBlob};
use crate::digest::{Digest, Hasher};
use crate::disk::{BlockChecksums, Disk, MAX_HEAD, stored_head};
use crate::store;

/// How many ranges are in flight.
const IN_FLIGHT: usize = 8;
/// The length of each range but the last, in bytes.
const RANGE: u64 = 8 << 20;
/// What the first request asks for; a small blob is whole then.
const FIRST: u64 = 8 << 20;
/// Bytes that are hashed at once.
const HASHED_AT_ONCE: usize = 1 << 20;

/// Is told how many bytes have arrived.
pub type ByteProgress = Arc<dyn Fn(u64) + Send + Sync>;

/// Why a blob isn't there.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error(transparent)]
    Store(#[from] store::StoreError),
    /// The server broke off again and again without a byte of progress.
    #[error("the connection broke {tries} times in a row: {message}")]
    Broken {
        tries: u32,
        /// What the last one met.
        message: String,
    },
    /// The blob was replaced again and again.
    #[error("the artifact was replaced while it was read")]
    Changed,
    /// The server announces another length than the artifact has.
    #[error("the server announces {announced} bytes, and the artifact has {expected}")]
    Length { announced: u64, expected: u64 },
    /// The server sent more than it announced, or not what was asked for.
    #[error("the server sent other bytes than those that were asked for")]
    Range,
    #[error("its digest isn't the one that GitHub recorded")]
    Digest,
    /// The file can't be written or read.
    #[error("`{path}` can't be written: {source}")]
    Disk { path: PathBuf, source: io::Error },
}

/// A blob that has been fetched.
pub(crate) struct FetchedBlob {
    pub(crate) path: PathBuf,
    /// The bytes.
    pub(crate) disk: Disk,
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    /// The type that the server gives.
    pub(crate) content_type: Option<String>,
    /// The name of the file that is stored as it is.
    pub(crate) file_name: Option<String>,
}

/// Fetches a blob into the file `path`, which may not exist yet.
///
/// A broken connection is taken up where it broke; a replaced blob is fetched anew, once.
pub(crate) async fn fetch(
    blob: &Arc<RemoteBlob>,
    path: &Path,
    size: Option<u64>,
    arrived: &ByteProgress,
) -> Result<FetchedBlob, FetchError> {
    match fetch_once(blob, path, size, arrived).await {
        Err(FetchError::Changed) => fetch_once(blob, path, size, arrived).await,
        done => done,
    }
}

async fn fetch_once(
    blob: &Arc<RemoteBlob>,
    path: &Path,
    size: Option<u64>,
    arrived: &ByteProgress,
) -> Result<FetchedBlob, FetchError> {
    let disk = |source| FetchError::Disk { path: path.to_owned(), source };
    let mut first = open(blob, 0, FIRST, None).await?;
    let total = first.total;
    if let Some(expected) = size.filter(|size| *size != total) {
        return Err(FetchError::Length { announced: total, expected });
    }
    let start = if first.start == 0 { first.look_ahead(MAX_HEAD).await } else { &[] };
    let head = start[..stored_head(start).unwrap_or(0)].to_vec();
    // A server that knows no ranges sends everything for each of them.
    let range = if first.whole { total.max(1) } else { RANGE };
    let ranges = usize::try_from(total.div_ceil(range)).unwrap_or(usize::MAX);
    let file = File::options().read(true).write(true).create(true).truncate(true).open(path);
    let (content_type, file_name) = (first.content_type.take(), first.file_name.take());
    let shared = Arc::new(FetchState {
        blob: blob.clone(),
        disk: Disk::new(head, file.map_err(disk)?, path.to_owned()),
        path: path.to_owned(),
        etag: first.etag.clone(),
        total,
        range,
        progress: Mutex::new(FetchProgress { done: vec![0; ranges], over: false }),
        writing: tokio::sync::Mutex::default(),
        news: Condvar::new(),
        // The first range is open already, and belongs to the reader that gets it.
        next: AtomicUsize::new(1),
        arrived: arrived.clone(),
    });
    let (digest, sums) = transfer(&shared, first).await?;
    let shared = Arc::into_inner(shared).expect("the readers and the hasher have ended");
    let (path, disk) = (shared.path, shared.disk.with_sums(sums));
    Ok(FetchedBlob { path, disk, digest, size: total, content_type, file_name })
}

/// Reads all ranges and hashes the bytes in order behind them.
async fn transfer(
    shared: &Arc<FetchState>,
    first: ByteRange,
) -> Result<(Digest, BlockChecksums), FetchError> {
    let mut readers = JoinSet::new();
    let mut first = Some(first);
    for _ in 0..IN_FLIGHT {
        let (shared, first) = (shared.clone(), first.take());
        readers.spawn(async move { shared.read_ranges(first).await });
    }
    // Ends the hasher when this future is dropped, too.
    let end = EndOnDrop(shared.clone());
    let hashing = shared.clone();
    let hasher = spawn_blocking(move || hashing.hash());
    let mut failed = None;
    while let Some(ended) = readers.join_next().await {
        let ended = ended.unwrap_or_else(|e| Err(shared.failed(io::Error::other(e))));
        if let Err(error) = ended {
            failed.get_or_insert(error);
            readers.abort_all();
        }
    }
    drop(end);
    // The hasher ends with the readers, so nothing of this transfer outlives it.
    let hashed = hasher.await.unwrap_or_else(|e| Err(io::Error::other(e)));
    match failed {
        Some(error) => Err(error),
        None => hashed.map_err(|source| shared.failed(source)),
    }
}

/// What the readers of the ranges, and the hasher, share.
struct FetchState {
    blob: Arc<RemoteBlob>,
    disk: Disk,
    path: PathBuf,
    etag: Option<String>,
    total: u64,
    /// The length of each range but the last, in bytes.
    range: u64,
    progress: Mutex<FetchProgress>,
    /// Who writes: the system takes one writer of a file at a time and lets the others spin.
    writing: tokio::sync::Mutex<()>,
    news: Condvar,
    next: AtomicUsize,
    arrived: ByteProgress,
}

struct FetchProgress {
    /// For each range, how many of its bytes are there, from its start.
    done: Vec<u64>,
    /// Set when no more bytes will come.
    over: bool,
}

struct EndOnDrop(Arc<FetchState>);

impl Drop for EndOnDrop {
    /// Tells the hasher that nothing more comes.
    fn drop(&mut self) {
        self.0.progress().over = true;
        self.0.news.notify_all();
    }
}

impl FetchState {
    /// Reads one range after the other until there are none left; `first` is the first one.
    async fn read_ranges(&self, mut first: Option<ByteRange>) -> Result<(), FetchError> {
        loop {
            let n = match first {
                Some(_) => 0,
                None => self.next.fetch_add(1, Ordering::Relaxed),
            };
            let start = n as u64 * self.range;
            if start >= self.total {
                return Ok(());
            }
            let end = self.total.min(start + self.range);
            let etag = self.etag.clone();
            let mut reader =
                RangeReader::new(&self.blob, first.take(), start..end, self.total, etag);
            while let Some(bytes) = reader.next().await? {
                let at = reader.position() - bytes.len() as u64;
                let turn = self.writing.lock().await;
                self.disk.write_all_at(&bytes, at).map_err(|source| self.failed(source))?;
                drop(turn);
                self.progress().done[n] += bytes.len() as u64;
                self.news.notify_all();
                (self.arrived)(bytes.len() as u64);
            }
        }
    }

    /// How many bytes are there from the start without a gap, when all up to `known` are.
    fn contiguous(&self, done: &[u64], known: u64) -> u64 {
        let mut at = known;
        while at < self.total {
            let n = at / self.range;
            at = at.max(n * self.range + done[n as usize]);
            if at < self.total.min((n + 1) * self.range) {
                break;
            }
        }
        at
    }

    /// Hashes the bytes in order as they arrive; the digest is worth nothing when the readers fail.
    fn hash(&self) -> io::Result<(Digest, BlockChecksums)> {
        let (mut hasher, mut sums) = (Hasher::default(), BlockChecksums::default());
        let head = self.disk.head_len();
        let mut buffer = vec![0; HASHED_AT_ONCE];
        let (mut at, mut there) = (0, 0);
        loop {
            if at == there {
                let mut progress = self.progress();
                loop {
                    there = self.contiguous(&progress.done, at);
                    if there > at || there == self.total || progress.over {
                        break;
                    }
                    progress = self.news.wait(progress).unwrap_or_else(PoisonError::into_inner);
                }
                if at == there {
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

    fn progress(&self) -> MutexGuard<'_, FetchProgress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, source: io::Error) -> FetchError {
        FetchError::Disk { path: self.path.clone(), source }
    }
}

/// The bytes of a range, in order, across broken connections.
pub(crate) struct RangeReader<'a> {
    blob: &'a RemoteBlob,
    part: Option<ByteRange>,
    range: Range<u64>,
    total: u64,
    etag: Option<String>,
    tries: RetryLoop,
}

impl<'a> RangeReader<'a> {
    /// Reads `range` of the version `etag` of a blob of `total` bytes; `part` may be open already.
    pub(crate) fn new(
        blob: &'a RemoteBlob,
        part: Option<ByteRange>,
        range: Range<u64>,
        total: u64,
        etag: Option<String>,
    ) -> Self {
        Self { blob, part, range, total, etag, tries: RetryPolicy::PATIENT.start() }
    }

    /// Where the next bytes are in the blob.
    pub(crate) fn position(&self) -> u64 {
        self.range.start
    }

    /// The next bytes; `None` when the range has been read.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, FetchError> {
        while !self.range.is_empty() {
            let Range { start, end } = self.range;
            let part = match &mut self.part {
                Some(part) => part,
                None => {
                    let part = open(self.blob, start, end, self.etag.as_deref()).await?;
                    if part.total != self.total || (part.etag.is_some() && part.etag != self.etag) {
                        return Err(FetchError::Changed);
                    }
                    self.part.insert(part)
                }
            };
            let message = match part.chunk().await {
                Ok(Some(mut bytes)) => {
                    // A server that knows no ranges starts at the blob's start.
                    let behind = start.checked_sub(part.start).ok_or(FetchError::Range)?;
                    part.start += bytes.len() as u64;
                    bytes.advance(behind.min(bytes.len() as u64) as usize);
                    if bytes.len() as u64 > end - start {
                        if !part.whole {
                            return Err(FetchError::Range);
                        }
                        bytes.truncate((end - start) as usize);
                    }
                    if bytes.is_empty() {
                        continue;
                    }
                    self.range.start += bytes.len() as u64;
                    self.tries.progressed();
                    return Ok(Some(bytes));
                }
                Ok(None) => "the server ended the answer early".to_owned(),
                Err(message) => message,
            };
            self.part = None;
            if !self.tries.again(&message, None).await {
                return Err(FetchError::Broken { tries: self.tries.tried(), message });
            }
        }
        Ok(None)
    }
}

/// Opens a range, again while that may help.
pub(crate) async fn open(
    blob: &RemoteBlob,
    start: u64,
    end: u64,
    etag: Option<&str>,
) -> Result<ByteRange, FetchError> {
    let mut tries = RetryPolicy::PATIENT.start();
    loop {
        match blob.open(start, end, etag).await {
            Ok(part) => return Ok(part),
            Err(OpenError::Changed) => return Err(FetchError::Changed),
            Err(OpenError::Store(error)) => return Err(error.into()),
            Err(OpenError::Transient { message, retry_after }) => {
                if !tries.again(&message, retry_after).await {
                    return Err(FetchError::Broken { tries: tries.tried(), message });
                }
            }
        }
    }
}
