//! Stores an object for each file, with many requests in parallel.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::StreamExt as _;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::task::AbortOnDropHandle;

use super::{NewObject, PARALLEL_OBJECTS, PART_BYTES, PutOutcome, conflict, max_parts};
use crate::blocks::{self, GrownFiles};
use crate::collect::FileEntry;
use crate::digest::{Digest, DigestAlgorithm};
use crate::locator::{ArchiveFormat, files_digest};
use crate::source::{StoredArtifact, UploadSource, content_type};
use crate::store::s3::{MAX_REQUESTS, S3Store};
use crate::store::{ArtifactStoreError, send};
use crate::zip::write::read_whole;

/// The content of small files in memory.
const MEMORY_KIB: u32 = 16 * 1024;
/// Limits of a batch of more than one file.
const BATCH_BYTES: u64 = 64 * 1024;
const BATCH_FILES: usize = 8;
/// Parallel requests to a bucket that throttles.
const MIN_REQUESTS: usize = 8;
/// The target rate, more than one processor can send. S3 serves 3,500 requests a second for each
/// prefix before it partitions it, and answers 503 above that.
const REQUESTS_PER_SECOND: u128 = 15_000;
#[cfg(unix)]
const WANTED_OPEN_FILES: u64 = 1024;

struct FileUploads {
    store: S3Store,
    source: UploadSource,
    folder: String,
    known: Option<Vec<Digest>>,
    pace: RequestPacing,
    memory: Semaphore,
    failed: AtomicBool,
    written: Mutex<Vec<String>>,
}

/// Limits the parallel requests: more when latency is high, fewer when the bucket throttles.
struct RequestPacing {
    room: Semaphore,
    state: Mutex<PacingState>,
}

struct PacingState {
    /// How many parallel requests are allowed now.
    allowed: usize,
    /// What `allowed` may grow to.
    max: usize,
    /// Permits to drop when their requests end, because `allowed` was lowered meanwhile.
    permits_to_drop: usize,
    /// The shortest response time so far, an estimate of the round trip.
    shortest: Duration,
    /// How many responses were throttled so far.
    throttled: usize,
    /// Responses that say nothing about the current limit: the first ones, which include setting up
    /// the connection, and those of requests sent before `allowed` was lowered.
    answers_to_ignore: usize,
}

impl RequestPacing {
    fn new(max: usize) -> Self {
        let allowed = max.min(PARALLEL_OBJECTS);
        let state = PacingState {
            allowed,
            max,
            permits_to_drop: 0,
            shortest: Duration::MAX,
            throttled: 0,
            answers_to_ignore: allowed,
        };
        Self { room: Semaphore::new(allowed), state: Mutex::new(state) }
    }

    /// Adapts the limit to a response; `throttled` counts the throttled ones so far.
    fn adapt(&self, after: Duration, throttled: usize) {
        let mut state = self.state.lock();
        state.shortest = state.shortest.min(after);
        let refused = std::mem::replace(&mut state.throttled, throttled) < throttled;
        if state.answers_to_ignore > 0 {
            state.answers_to_ignore -= 1;
        } else if refused {
            state.answers_to_ignore = state.allowed;
            let fewer = (state.allowed / 2).max(MIN_REQUESTS);
            let taken = state.allowed.saturating_sub(fewer);
            state.permits_to_drop += taken - self.room.forget_permits(taken);
            state.allowed -= taken;
            state.max = state.allowed;
        } else {
            let wanted = state.shortest.as_micros() * REQUESTS_PER_SECOND / 1_000_000;
            let wanted = usize::try_from(wanted).unwrap_or(state.max).min(state.max);
            self.room.add_permits(wanted.saturating_sub(state.allowed));
            state.allowed = state.allowed.max(wanted);
        }
    }

    fn release(&self, turn: SemaphorePermit<'_>) {
        let mut state = self.state.lock();
        if state.permits_to_drop > 0 {
            state.permits_to_drop -= 1;
            turn.forget();
        }
    }
}

/// [`MAX_REQUESTS`], or fewer if this process may not open so many files: each request needs a
/// connection.
fn max_requests() -> usize {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        let wanted = maximum.map_or(WANTED_OPEN_FILES, |most| most.min(WANTED_OPEN_FILES));
        let raised = Rlimit { current: Some(wanted), maximum };
        let may = match current {
            Some(current) if current < wanted && setrlimit(Resource::Nofile, raised).is_err() => {
                current
            }
            _ => wanted,
        };
        // Half, because the client may open a second connection while the first one is being set up.
        usize::try_from(may / 2).map_or(MAX_REQUESTS, |half| half.clamp(1, MAX_REQUESTS))
    }
    #[cfg(not(unix))]
    MAX_REQUESTS
}

struct SentFile {
    digest: Digest,
    put: PutOutcome,
}

impl S3Store {
    /// Stores an object for each file. An existing artifact with the digest `known` is compared as a
    /// whole first, so that the objects of two artifacts never mix.
    pub(crate) async fn put_files(
        &self,
        source: &UploadSource,
        folder: &str,
        known: Option<Digest>,
    ) -> Result<StoredArtifact, ArtifactStoreError> {
        let known = match known.filter(|_| !source.overwrite) {
            Some(known) => {
                let digests = source.digests().await?;
                if files_digest(&source.located_files(&digests)) != known {
                    return Err(conflict(folder));
                }
                Some(digests)
            }
            None => None,
        };
        let files = Arc::new(FileUploads {
            store: self.clone(),
            source: source.clone(),
            folder: folder.to_owned(),
            known,
            pace: RequestPacing::new(max_requests()),
            memory: Semaphore::new(MEMORY_KIB as usize),
            failed: AtomicBool::new(false),
            written: Mutex::default(),
        });
        // Each batch is sent by its own task, so that signing and TLS use all processors.
        let put = |batch| {
            let files = files.clone();
            AbortOnDropHandle::new(tokio::spawn(async move { files.put(batch).await }))
        };
        let stopped = async {
            source.stop.cancelled().await;
            vec![Err(ArtifactStoreError::Stopped)]
        };
        // When a file fails, wait for the requests that were sent, to know which objects to delete.
        let all = futures_util::stream::iter(batches(&source.entries))
            .map(put)
            .buffered(MAX_REQUESTS)
            .map(send::task_result)
            .collect::<Vec<_>>();
        let (done, errors): (Vec<_>, Vec<_>) =
            tokio::select! { done = all => done, stopped = stopped => stopped }
                .into_iter()
                .partition(Result::is_ok);
        if !errors.is_empty() {
            let errors = errors.into_iter().filter_map(Result::err).collect();
            return Err(self.undo(&files, errors).await);
        }
        let done: Vec<SentFile> = done.into_iter().filter_map(Result::ok).flatten().collect();
        let digests: Vec<_> = done.iter().map(|sent| sent.digest).collect();
        let files = source.located_files(&digests);
        Ok(StoredArtifact {
            digest: files_digest(&files),
            size: source.raw_size(),
            files,
            already_stored: done.iter().all(|sent| sent.put.already_stored),
            tag_refused: done.iter().any(|sent| sent.put.tag_refused),
            leftover_warning: None,
            artifact_id: None,
            archive: ArchiveFormat::None,
        })
    }

    /// Deletes what a failed upload has written, and returns the error that caused the others.
    async fn undo(
        &self,
        files: &FileUploads,
        errors: Vec<ArtifactStoreError>,
    ) -> ArtifactStoreError {
        // After a conflict delete nothing: the other upload may rely on files that we stored.
        if !errors.iter().any(|error| matches!(error, ArtifactStoreError::Conflict { .. })) {
            let written = std::mem::take(&mut *files.written.lock());
            self.delete(written).await;
        }
        let is_cause = |error: &ArtifactStoreError| !matches!(error, ArtifactStoreError::Stopped);
        errors.into_iter().find(is_cause).unwrap_or(ArtifactStoreError::Stopped)
    }
}

impl FileUploads {
    async fn put(&self, batch: Range<usize>) -> Result<Vec<SentFile>, ArtifactStoreError> {
        let turn = self.pace.room.acquire().await.map_err(|_| ArtifactStoreError::Stopped)?;
        let put = self.put_batch(batch).await;
        self.pace.release(turn);
        if put.is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        put
    }

    async fn put_batch(&self, batch: Range<usize>) -> Result<Vec<SentFile>, ArtifactStoreError> {
        let size: u64 = self.source.entries[batch.clone()].iter().map(|entry| entry.size).sum();
        // A long file takes the whole memory budget, because its parts are sent in parallel.
        let long = size > PART_BYTES as u64;
        let kib = if long { MEMORY_KIB } else { (size / 1024) as u32 + 1 };
        let _room = self.memory.acquire_many(kib).await.map_err(|_| ArtifactStoreError::Stopped)?;
        if self.failed.load(Ordering::Relaxed) {
            return Err(ArtifactStoreError::Stopped);
        }
        if long {
            return Ok(vec![Box::pin(self.put_long(batch.start)).await?]);
        }
        let UploadSource { root, entries, grown, .. } = self.source.clone();
        let files = batch.clone();
        let read =
            move || files.map(|n| read(&root, &entries[n], &grown)).collect::<Result<Vec<_>, _>>();
        let read = tokio::task::spawn_blocking(read).await;
        let read = read.map_err(|_| blocks::BlobSourceError::Stopped)??;
        let mut sent = Vec::with_capacity(batch.len());
        for (n, (bytes, digest)) in batch.zip(read) {
            if self.failed.load(Ordering::Relaxed) {
                return Err(ArtifactStoreError::Stopped);
            }
            (self.source.progress)(bytes.len() as u64);
            let (object, asked) = (self.object(n), Instant::now());
            let put = self.store.put_whole(&object, self.known_digest(n), &bytes, digest);
            let put = put.await?;
            self.pace.adapt(asked.elapsed(), self.store.wire.throttled());
            sent.push(self.record_sent(object, SentFile { digest, put }));
        }
        Ok(sent)
    }

    async fn put_long(&self, n: usize) -> Result<SentFile, ArtifactStoreError> {
        let entry = &self.source.entries[n];
        let size = send::block_size(PART_BYTES, entry.size, max_parts(self.store.endpoint()));
        let (object, algorithm) = (self.object(n), DigestAlgorithm::Blake3);
        let open = || self.source.file_blocks(entry, size, algorithm);
        let (made, put) =
            self.store.put_blob(&object, entry.size, self.known_digest(n), open).await?;
        Ok(self.record_sent(object, SentFile { digest: made.digest, put }))
    }

    fn object(&self, n: usize) -> NewObject<'_> {
        let entry = &self.source.entries[n];
        NewObject {
            key: format!("{}/{}", self.folder, entry.path),
            content_type: content_type(&entry.path),
            mode: entry.mode,
            source: &self.source,
        }
    }

    fn known_digest(&self, n: usize) -> Option<Digest> {
        self.known.as_ref().map(|digests| digests[n])
    }

    /// Records the key, to delete the object if another file fails.
    fn record_sent(&self, object: NewObject<'_>, sent: SentFile) -> SentFile {
        if !sent.put.already_stored {
            self.written.lock().push(object.key);
        }
        sent
    }
}

/// Groups small files, because each batch is read by one blocking task; yet makes enough batches to
/// keep every connection busy to the end.
fn batches(entries: &[FileEntry]) -> Vec<Range<usize>> {
    let (mut batches, mut start, mut size) = (Vec::new(), 0, 0);
    for (n, entry) in entries.iter().enumerate() {
        let most = ((entries.len() - start) / (4 * MAX_REQUESTS)).clamp(1, BATCH_FILES);
        if n > start && (n - start == most || size + entry.size > BATCH_BYTES) {
            batches.push(start..n);
            (start, size) = (n, 0);
        }
        size += entry.size;
    }
    if start < entries.len() {
        batches.push(start..entries.len());
    }
    batches
}

fn read(
    root: &Path,
    entry: &FileEntry,
    grown: &GrownFiles,
) -> Result<(Bytes, Digest), blocks::BlobSourceError> {
    let bytes = Bytes::from(read_whole(&root.join(&entry.path), entry.size, grown)?);
    let digest = Digest::of_file(&bytes);
    Ok((bytes, digest))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pacing after some responses on a connection with a round trip of `millis`.
    fn after_answers(millis: u64) -> RequestPacing {
        let pace = RequestPacing::new(MAX_REQUESTS);
        for n in 0..2 * PARALLEL_OBJECTS as u64 {
            assert!(
                n > PARALLEL_OBJECTS as u64 || pace.room.available_permits() == PARALLEL_OBJECTS
            );
            // A slow response now and then doesn't mean a slow connection.
            pace.adapt(Duration::from_millis(if n % 7 == 0 { 5_000 } else { millis }), 0);
        }
        pace
    }

    #[test]
    fn higher_latency_allows_more_parallel_requests() {
        for (millis, expected) in
            [(1, PARALLEL_OBJECTS), (10, 150), (30, MAX_REQUESTS), (500, MAX_REQUESTS)]
        {
            assert_eq!(after_answers(millis).room.available_permits(), expected, "{millis}");
        }
    }

    #[tokio::test]
    async fn throttling_halves_the_parallel_requests() {
        let pace = after_answers(30);
        let mut turns = Vec::new();
        for _ in 0..MAX_REQUESTS {
            turns.push(pace.room.acquire().await.unwrap());
        }
        let answer = |throttled| pace.adapt(Duration::from_millis(30), throttled);
        // Refusals of requests that were sent before the first one count once.
        (1..=MAX_REQUESTS).for_each(answer);
        for turn in turns.drain(..) {
            pace.release(turn);
        }
        assert_eq!(pace.room.available_permits(), MAX_REQUESTS / 2);
        (0..MAX_REQUESTS).for_each(|_| answer(MAX_REQUESTS));
        assert_eq!(pace.room.available_permits(), MAX_REQUESTS / 2, "doesn't grow again");
        for n in 1..20 * MAX_REQUESTS {
            answer(MAX_REQUESTS + n);
        }
        assert_eq!(pace.room.available_permits(), MIN_REQUESTS);
    }

    #[test]
    fn batches_hold_every_entry_once_and_keep_their_limits() {
        let entry = |size| FileEntry { path: "a".to_owned(), size, mode: None, link: None };
        for (count, size) in
            [(0, 1), (1, 1), (255, 4096), (9999, 4096), (600, 40_000), (9, 1 << 30)]
        {
            let entries: Vec<_> = (0..count).map(|_| entry(size)).collect();
            let batches = batches(&entries);
            assert!(batches.iter().cloned().flatten().eq(0..count), "{batches:?}");
            let small = |it: &Range<usize>| it.len() == 1 || it.len() as u64 * size <= BATCH_BYTES;
            assert!(batches.iter().all(small), "{batches:?}");
            assert!(batches.len() >= count.min(4 * MAX_REQUESTS), "{count}: {}", batches.len());
        }
    }
}
