//! Blobs on disk: uploaded blocks, and lists that put them in order.

use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::ops::Range;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use aws_lc_rs::digest;
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use jiff::Timestamp;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::mpsc;

const READ_BYTES: usize = 256 * 1024;
const WRITE_BUFFER_BYTES: usize = 1024 * 1024;

/// The body of one upload request. Dropping it deletes its file.
#[derive(Debug)]
pub(crate) struct StoredBody {
    /// `None` with [`BlobStore::drop_bodies`].
    path: Option<PathBuf>,
    pub(crate) length: u64,
}

impl Drop for StoredBody {
    fn drop(&mut self) {
        if let Some(path) = &self.path
            && let Err(error) = std::fs::remove_file(path)
        {
            tracing::debug!(%error, "a blob's file is already gone");
        }
    }
}

/// One version of a blob. A new upload replaces it, so that readers keep theirs.
#[derive(Debug)]
pub(crate) struct BlobContent {
    pub(crate) etag: String,
    pub(crate) modified: Timestamp,
    pub(crate) content_type: Option<String>,
    pub(crate) content_md5: Option<String>,
    pub(crate) length: u64,
    /// With their block ids; a blob from one request has one piece without an id.
    pieces: Vec<(String, Arc<StoredBody>)>,
}

/// The headers that an upload sets.
#[derive(Debug, Default)]
pub(crate) struct BlobProperties {
    pub(crate) content_type: Option<String>,
    pub(crate) content_md5: Option<String>,
}

impl BlobContent {
    fn new(pieces: Vec<(String, Arc<StoredBody>)>, about: BlobProperties, now: Timestamp) -> Self {
        Self {
            etag: format!("\"0x{:X}\"", rand::random::<u64>()),
            modified: now,
            content_type: about.content_type,
            content_md5: about.content_md5,
            length: pieces.iter().map(|(_, piece)| piece.length).sum(),
            pieces,
        }
    }

    /// Whether the bytes are on disk; false with [`BlobStore::drop_bodies`].
    pub(crate) fn is_kept(&self) -> bool {
        self.pieces.iter().all(|(_, piece)| piece.path.is_some())
    }

    /// Passes `range` of the content to `take` in chunks, until `take` returns false.
    pub(crate) fn each_chunk(
        &self,
        range: Range<u64>,
        mut take: impl FnMut(Bytes) -> bool,
    ) -> io::Result<()> {
        let mut start = 0;
        for (_, piece) in &self.pieces {
            let wanted = range.start.max(start)..range.end.min(start + piece.length);
            if let Some(path) = piece.path.as_ref().filter(|_| !wanted.is_empty()) {
                let mut file = File::open(path)?;
                file.seek(SeekFrom::Start(wanted.start - start))?;
                let mut file = file.take(wanted.end - wanted.start);
                loop {
                    let mut chunk = Vec::with_capacity(READ_BYTES);
                    let read = (&mut file).take(READ_BYTES as u64).read_to_end(&mut chunk)?;
                    if read == 0 {
                        break;
                    }
                    if !take(chunk.into()) {
                        return Ok(());
                    }
                }
            }
            start += piece.length;
        }
        Ok(())
    }

    pub(crate) fn bytes(&self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.each_chunk(0..self.length, |chunk| {
            bytes.extend_from_slice(&chunk);
            true
        })?;
        Ok(bytes)
    }

    /// `sha256:<hex>` of the content.
    pub(crate) fn digest(&self) -> io::Result<String> {
        let mut context = digest::Context::new(&digest::SHA256);
        self.each_chunk(0..self.length, |chunk| {
            context.update(&chunk);
            true
        })?;
        Ok(format!("sha256:{}", hex::encode(context.finish())))
    }

    /// `range` of the content, read by another thread.
    pub(crate) fn read(self: Arc<Self>, range: Range<u64>) -> mpsc::Receiver<io::Result<Bytes>> {
        let (sender, receiver) = mpsc::channel(4);
        tokio::task::spawn_blocking(move || {
            let read = self.each_chunk(range, |chunk| sender.blocking_send(Ok(chunk)).is_ok());
            if let Err(error) = read {
                // The reader may be gone.
                let _ = sender.blocking_send(Err(error));
            }
        });
        receiver
    }
}

#[derive(Debug, Default)]
struct StoredBlob {
    staged: BTreeMap<String, Arc<StoredBody>>,
    committed: Option<Arc<BlobContent>>,
}

/// Where a block list takes a block from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockSource {
    Latest,
    Committed,
    Uncommitted,
}

#[derive(Debug)]
pub(crate) struct BlobStore {
    folder: TempDir,
    known: Mutex<BTreeMap<String, StoredBlob>>,
    files: AtomicU64,
    dropping: AtomicBool,
    received: AtomicU64,
}

impl BlobStore {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            folder: tempfile::Builder::new().prefix("standin-blobs-").tempdir()?,
            known: Mutex::default(),
            files: AtomicU64::new(0),
            dropping: AtomicBool::new(false),
            received: AtomicU64::new(0),
        })
    }

    pub(crate) fn drop_bodies(&self) {
        self.dropping.store(true, Ordering::SeqCst);
    }

    /// Stores a body, with at most one buffer of it in memory.
    pub(crate) async fn receive(
        &self,
        chunks: impl Stream<Item = io::Result<Bytes>>,
    ) -> io::Result<StoredBody> {
        let dropping = self.dropping.load(Ordering::SeqCst);
        let number = self.files.fetch_add(1, Ordering::SeqCst);
        let path = (!dropping).then(|| self.folder.path().join(number.to_string()));
        let mut file = match &path {
            Some(path) => Some(tokio::fs::File::create(path).await?),
            None => None,
        }
        .map(|file| tokio::io::BufWriter::with_capacity(WRITE_BUFFER_BYTES, file));
        let mut piece = StoredBody { path, length: 0 };
        let mut chunks = pin!(chunks);
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk?;
            piece.length += chunk.len() as u64;
            self.received.fetch_add(chunk.len() as u64, Ordering::Relaxed);
            if let Some(file) = &mut file {
                file.write_all(&chunk).await?;
            }
        }
        if let Some(file) = &mut file {
            file.flush().await?;
        }
        Ok(piece)
    }

    /// Creates a blob without content.
    pub(crate) fn create(&self, name: &str) {
        self.lock().entry(name.to_owned()).or_default();
    }

    pub(crate) fn exists(&self, name: &str) -> bool {
        self.lock().contains_key(name)
    }

    pub(crate) fn remove(&self, name: &str) {
        self.lock().remove(name);
    }

    pub(crate) fn get(&self, name: &str) -> Option<Arc<BlobContent>> {
        self.lock().get(name)?.committed.clone()
    }

    /// Whether the id is as long as the ids of the blob's other blocks, as Azure demands.
    pub(crate) fn fits(&self, name: &str, id: &str) -> bool {
        let known = self.lock();
        let Some(blob) = known.get(name) else { return true };
        let committed = blob.committed.iter().flat_map(|content| &content.pieces);
        let mut ids = blob.staged.keys().chain(committed.map(|(id, _)| id));
        ids.all(|other| other.is_empty() || other.len() == id.len())
    }

    /// Stores a block until a list commits it. Returns the number of staged blocks.
    pub(crate) fn stage(&self, name: &str, id: String, piece: StoredBody) -> usize {
        let mut known = self.lock();
        let blob = known.entry(name.to_owned()).or_default();
        blob.staged.insert(id, Arc::new(piece));
        blob.staged.len()
    }

    /// Makes the listed blocks the content and deletes the others; `None` when one is missing.
    pub(crate) fn commit(
        &self,
        name: &str,
        list: Vec<(BlockSource, String)>,
        about: BlobProperties,
        now: Timestamp,
    ) -> Option<Arc<BlobContent>> {
        let mut known = self.lock();
        let blob = known.get_mut(name)?;
        let mut pieces = Vec::with_capacity(list.len());
        for (source, id) in list {
            let staged = blob.staged.get(&id).filter(|_| source != BlockSource::Committed);
            let old = blob.committed.as_ref().filter(|_| source != BlockSource::Uncommitted);
            let old = || old?.pieces.iter().find(|(other, _)| *other == id).map(|(_, piece)| piece);
            let piece = staged.or_else(old)?.clone();
            pieces.push((id, piece));
        }
        blob.staged.clear();
        let content = Arc::new(BlobContent::new(pieces, about, now));
        blob.committed = Some(content.clone());
        Some(content)
    }

    /// Makes the body of one request the content.
    pub(crate) fn put(
        &self,
        name: &str,
        piece: StoredBody,
        about: BlobProperties,
        now: Timestamp,
    ) -> Arc<BlobContent> {
        let pieces = vec![(String::new(), Arc::new(piece))];
        let content = Arc::new(BlobContent::new(pieces, about, now));
        let blob = StoredBlob { staged: BTreeMap::new(), committed: Some(content.clone()) };
        self.lock().insert(name.to_owned(), blob);
        content
    }

    pub(crate) fn received_bytes(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    pub(crate) fn stored_bytes(&self) -> u64 {
        let files = std::fs::read_dir(self.folder.path()).into_iter().flatten().flatten();
        files.filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, StoredBlob>> {
        self.known.lock()
    }
}
