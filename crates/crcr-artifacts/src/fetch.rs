//! Downloads a blob into a file: several ranges in parallel, each resumed where its connection broke,
//! hashed while they arrive.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Buf as _, Bytes};
use crcr_github::http::{RetryLoop, RetryPolicy};
use parking_lot::{Condvar, Mutex};
use rawzip::ReaderAt as _;
use tokio::task::{JoinSet, spawn_blocking};

use crate::blob::RemoteBlob;
use crate::blob_file::{BlobFile, BlockChecksums, MAX_HEAD_BYTES, stored_head};
use crate::byte_range::{ByteRange, OpenError};
use crate::digest::{Digest, DigestAlgorithm, DigestHasher};
use crate::store;

const PARALLEL_RANGES: usize = 8;
/// The first request asks for one range, which is all of a small blob.
const RANGE_BYTES: u64 = 8 << 20;
const HASH_BUFFER_BYTES: usize = 1 << 20;

/// Called with the number of bytes that have just arrived.
pub type ByteProgress = Arc<dyn Fn(u64) + Send + Sync>;

#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error(transparent)]
    Store(#[from] store::ArtifactStoreError),
    /// No try received a single byte.
    #[error("the connection broke {tries} times in a row, in {seconds} s: {message}")]
    Broken { tries: u32, seconds: u64, message: String },
    #[error("the artifact was replaced while it was read")]
    Changed,
    #[error("the server announces {announced} bytes, and the artifact has {expected}")]
    Length { announced: u64, expected: u64 },
    #[error("the server sent other bytes than those that were requested")]
    Range,
    #[error("its digest isn't the one that GitHub recorded")]
    Digest,
    #[error("`{path}` can't be written: {source}")]
    Disk { path: PathBuf, source: io::Error },
}

pub(crate) struct FetchedBlob {
    pub(crate) path: PathBuf,
    pub(crate) disk: BlobFile,
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    pub(crate) content_type: Option<String>,
    /// The name in `Content-Disposition`, unchecked.
    pub(crate) file_name: Option<String>,
}

/// Downloads a blob into the file `path`. A blob that is replaced meanwhile is downloaded again, once.
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

/// Opens the start of a blob of this size. Another size without an ETag isn't the store's answer, but of something in
/// between, so it is asked again some times.
async fn open_whole(blob: &Arc<RemoteBlob>, size: Option<u64>) -> Result<ByteRange, FetchError> {
    let mut tries = RetryPolicy { tries: 5, ..blob.retry() }.start();
    loop {
        let first = open(blob, 0, RANGE_BYTES, None).await?;
        let Some(expected) = size.filter(|size| *size != first.total) else { return Ok(first) };
        let error = FetchError::Length { announced: first.total, expected };
        if first.etag.is_some() || !tries.wait_to_retry(&error, None).await {
            return Err(error);
        }
    }
}

async fn fetch_once(
    blob: &Arc<RemoteBlob>,
    path: &Path,
    size: Option<u64>,
    arrived: &ByteProgress,
) -> Result<FetchedBlob, FetchError> {
    let disk = |source| FetchError::Disk { path: path.to_owned(), source };
    let mut first = open_whole(blob, size).await?;
    let total = first.total;
    let start = if first.start == 0 { first.look_ahead(MAX_HEAD_BYTES).await } else { &[] };
    let head = start[..stored_head(start).unwrap_or(0)].to_vec();
    let is_zip = start.starts_with(b"PK");
    // A server without ranges sends everything for each request.
    let range = if first.whole { total.max(1) } else { RANGE_BYTES };
    let ranges = usize::try_from(total.div_ceil(range)).unwrap_or(usize::MAX);
    let file = File::options().read(true).write(true).create(true).truncate(true).open(path);
    let (content_type, file_name) = (first.content_type.take(), first.file_name.take());
    let content_type = content_type.filter(|_| !(is_zip && first.has_vague_type));
    let shared = Arc::new(FetchState {
        blob: blob.clone(),
        disk: BlobFile::new(head, file.map_err(disk)?, path.to_owned()),
        path: path.to_owned(),
        etag: first.etag.clone(),
        total,
        range,
        progress: Mutex::new(FetchProgress { done: vec![0; ranges], over: false }),
        writing: tokio::sync::Mutex::default(),
        news: Condvar::new(),
        // Range 0 is open already, as `first`.
        next: AtomicUsize::new(1),
        arrived: arrived.clone(),
    });
    let (digest, checksums) = transfer(&shared, first).await?;
    let shared = Arc::into_inner(shared).expect("the readers and the hasher have ended");
    let (path, disk) = (shared.path, shared.disk.with_checksums(checksums));
    Ok(FetchedBlob { path, disk, digest, size: total, content_type, file_name })
}

/// Downloads all ranges, and hashes the bytes in order as soon as they have no gap before them.
async fn transfer(
    shared: &Arc<FetchState>,
    first: ByteRange,
) -> Result<(Digest, BlockChecksums), FetchError> {
    let mut readers = JoinSet::new();
    let mut first = Some(first);
    for _ in 0..PARALLEL_RANGES {
        let (shared, first) = (shared.clone(), first.take());
        readers.spawn(async move { shared.read_ranges(first).await });
    }
    // Stops the hasher if this future is dropped, too.
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
    // Nothing of this transfer may outlive it, so wait for the hasher even after a failure.
    let hashed = hasher.await.unwrap_or_else(|e| Err(io::Error::other(e)));
    match failed {
        Some(error) => Err(error),
        None => hashed.map_err(|source| shared.failed(source)),
    }
}

/// Shared by the readers of the ranges and the hasher.
struct FetchState {
    blob: Arc<RemoteBlob>,
    disk: BlobFile,
    path: PathBuf,
    etag: Option<String>,
    total: u64,
    /// The bytes of each range but the last.
    range: u64,
    progress: Mutex<FetchProgress>,
    /// The kernel lets one thread write to a file and makes the others spin, so let them wait here.
    writing: tokio::sync::Mutex<()>,
    news: Condvar,
    next: AtomicUsize,
    arrived: ByteProgress,
}

struct FetchProgress {
    /// For each range, how many bytes have been written.
    done: Vec<u64>,
    /// No more bytes will arrive.
    over: bool,
}

struct EndOnDrop(Arc<FetchState>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.progress.lock().over = true;
        self.0.news.notify_all();
    }
}

impl FetchState {
    /// Downloads one range after the other until none is left; `first` is range 0, already open.
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
                self.progress.lock().done[n] += bytes.len() as u64;
                self.news.notify_all();
                (self.arrived)(bytes.len() as u64);
            }
        }
    }

    /// How many bytes from the start have arrived without a gap; at least `known`.
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

    /// Hashes the bytes in order as they arrive. If a reader fails, the digest is incomplete.
    fn hash(&self) -> io::Result<(Digest, BlockChecksums)> {
        let (mut hasher, mut checksums) =
            (DigestHasher::new(DigestAlgorithm::Sha256), BlockChecksums::default());
        let head = self.disk.head_len();
        let mut buffer = vec![0; HASH_BUFFER_BYTES];
        let (mut at, mut there) = (0, 0);
        loop {
            if at == there {
                let mut progress = self.progress.lock();
                loop {
                    there = self.contiguous(&progress.done, at);
                    if there > at || there == self.total || progress.over {
                        break;
                    }
                    self.news.wait(&mut progress);
                }
                if at == there {
                    return Ok((hasher.finish(), checksums));
                }
            }
            let want = usize::try_from(there - at).unwrap_or(usize::MAX).min(buffer.len());
            self.disk.read_exact_at(&mut buffer[..want], at)?;
            hasher.update(&buffer[..want]);
            if head > 0 {
                let skip = head.saturating_sub(at).min(want as u64);
                checksums.add((at + skip).saturating_sub(head), &buffer[skip as usize..want]);
            }
            at += want as u64;
        }
    }

    fn failed(&self, source: io::Error) -> FetchError {
        FetchError::Disk { path: self.path.clone(), source }
    }
}

/// Reads a range in order and resumes it when the connection breaks.
pub(crate) struct RangeReader<'a> {
    blob: &'a RemoteBlob,
    part: Option<ByteRange>,
    range: Range<u64>,
    total: u64,
    etag: Option<String>,
    tries: RetryLoop,
}

impl<'a> RangeReader<'a> {
    /// Reads `range` of a blob of `total` bytes and version `etag`. `part` is the open response, if any.
    pub(crate) fn new(
        blob: &'a RemoteBlob,
        part: Option<ByteRange>,
        range: Range<u64>,
        total: u64,
        etag: Option<String>,
    ) -> Self {
        Self { blob, part, range, total, etag, tries: blob.retry().start() }
    }

    /// The offset of the next bytes in the blob.
    pub(crate) fn position(&self) -> u64 {
        self.range.start
    }

    /// The next bytes; `None` at the end of the range.
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
                    // A server without ranges starts at the start of the blob.
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
                Ok(None) => "the server ended the response early".to_owned(),
                Err(message) => message,
            };
            self.part = None;
            if !self.tries.wait_to_retry(&message, None).await {
                return Err(broken(&self.tries, message));
            }
        }
        Ok(None)
    }
}

fn broken(tries: &RetryLoop, message: String) -> FetchError {
    FetchError::Broken { tries: tries.tried(), seconds: tries.elapsed().as_secs(), message }
}

/// Opens a range, with retries.
pub(crate) async fn open(
    blob: &RemoteBlob,
    start: u64,
    end: u64,
    etag: Option<&str>,
) -> Result<ByteRange, FetchError> {
    let mut tries = blob.retry().start();
    loop {
        match blob.open(start, end, etag).await {
            Ok(part) => return Ok(part),
            Err(OpenError::Changed) => return Err(FetchError::Changed),
            Err(OpenError::Store(error)) => return Err(error.into()),
            Err(OpenError::Transient { message, retry_after }) => {
                if !tries.wait_to_retry(&message, retry_after).await {
                    return Err(broken(&tries, message));
                }
            }
        }
    }
}
