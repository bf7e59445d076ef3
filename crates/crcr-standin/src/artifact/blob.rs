//! Blobs on disk: blocks as they come, lists that put them in order.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::ops::Range;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aws_lc_rs::digest;
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use jiff::Timestamp;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::mpsc;

/// Bytes read from disk at a time.
const CHUNK: usize = 256 * 1024;
/// Bytes gathered before they are written.
const BUFFER: usize = 1024 * 1024;

/// Bytes that arrived in one request; its file goes with it.
#[derive(Debug)]
pub(super) struct Piece {
    /// `None` when bodies are dropped.
    path: Option<PathBuf>,
    pub(super) length: u64,
}

impl Drop for Piece {
    fn drop(&mut self) {
        if let Some(path) = &self.path
            && let Err(error) = std::fs::remove_file(path)
        {
            tracing::debug!(%error, "a blob's file is already gone");
        }
    }
}

/// What a reader of a blob sees; never changed, only replaced.
#[derive(Debug)]
pub(super) struct Content {
    pub(super) etag: String,
    pub(super) modified: Timestamp,
    pub(super) content_type: Option<String>,
    pub(super) content_md5: Option<String>,
    pub(super) length: u64,
    /// With the block's id; a blob put whole has one piece without.
    pieces: Vec<(String, Arc<Piece>)>,
}

/// What a writer tells about a blob.
#[derive(Debug, Default)]
pub(super) struct About {
    pub(super) content_type: Option<String>,
    pub(super) content_md5: Option<String>,
}

impl Content {
    fn new(pieces: Vec<(String, Arc<Piece>)>, about: About, now: Timestamp) -> Self {
        Self {
            etag: format!("\"0x{:X}\"", rand::random::<u64>()),
            modified: now,
            content_type: about.content_type,
            content_md5: about.content_md5,
            length: pieces.iter().map(|(_, piece)| piece.length).sum(),
            pieces,
        }
    }

    /// Whether the bytes are there at all: they aren't when bodies are dropped.
    pub(super) fn is_kept(&self) -> bool {
        self.pieces.iter().all(|(_, piece)| piece.path.is_some())
    }

    /// Gives `range` of the content to `take`, a chunk at a time, until it says stop.
    pub(super) fn each_chunk(
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
                    let mut chunk = Vec::with_capacity(CHUNK);
                    let read = (&mut file).take(CHUNK as u64).read_to_end(&mut chunk)?;
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

    pub(super) fn bytes(&self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.each_chunk(0..self.length, |chunk| {
            bytes.extend_from_slice(&chunk);
            true
        })?;
        Ok(bytes)
    }

    /// `sha256:<hex>` of the content.
    pub(super) fn digest(&self) -> io::Result<String> {
        let mut context = digest::Context::new(&digest::SHA256);
        self.each_chunk(0..self.length, |chunk| {
            context.update(&chunk);
            true
        })?;
        Ok(format!("sha256:{}", hex::encode(context.finish())))
    }

    /// `range` of the content as a stream with a few chunks of room.
    pub(super) fn read(self: Arc<Self>, range: Range<u64>) -> mpsc::Receiver<io::Result<Bytes>> {
        let (sender, receiver) = mpsc::channel(4);
        tokio::task::spawn_blocking(move || {
            let read = self.each_chunk(range, |chunk| sender.blocking_send(Ok(chunk)).is_ok());
            if let Err(error) = read {
                // Without a reader nobody wants the error either.
                let _ = sender.blocking_send(Err(error));
            }
        });
        receiver
    }
}

#[derive(Debug, Default)]
struct Blob {
    staged: BTreeMap<String, Arc<Piece>>,
    committed: Option<Arc<Content>>,
}

/// Where a block list looks for a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Latest,
    Committed,
    Uncommitted,
}

#[derive(Debug)]
pub(super) struct Blobs {
    folder: TempDir,
    known: Mutex<BTreeMap<String, Blob>>,
    files: AtomicU64,
    dropping: AtomicBool,
    received: AtomicU64,
}

impl Blobs {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            folder: tempfile::Builder::new().prefix("standin-blobs-").tempdir()?,
            known: Mutex::default(),
            files: AtomicU64::new(0),
            dropping: AtomicBool::new(false),
            received: AtomicU64::new(0),
        })
    }

    pub(super) fn drop_bodies(&self) {
        self.dropping.store(true, Ordering::SeqCst);
    }

    /// Takes in a body, with at most a buffer of it in memory.
    pub(super) async fn receive(
        &self,
        chunks: impl Stream<Item = io::Result<Bytes>>,
    ) -> io::Result<Piece> {
        let dropping = self.dropping.load(Ordering::SeqCst);
        let number = self.files.fetch_add(1, Ordering::SeqCst);
        let path = (!dropping).then(|| self.folder.path().join(number.to_string()));
        let mut file = match &path {
            Some(path) => Some(tokio::fs::File::create(path).await?),
            None => None,
        }
        .map(|file| tokio::io::BufWriter::with_capacity(BUFFER, file));
        let mut piece = Piece { path, length: 0 };
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

    /// Lets a blob exist, without content.
    pub(super) fn create(&self, name: &str) {
        self.lock().entry(name.to_owned()).or_default();
    }

    pub(super) fn exists(&self, name: &str) -> bool {
        self.lock().contains_key(name)
    }

    pub(super) fn remove(&self, name: &str) {
        self.lock().remove(name);
    }

    pub(super) fn get(&self, name: &str) -> Option<Arc<Content>> {
        self.lock().get(name)?.committed.clone()
    }

    /// Whether a block of this id would have the length that the blob's other ids have.
    pub(super) fn fits(&self, name: &str, id: &str) -> bool {
        let known = self.lock();
        let Some(blob) = known.get(name) else { return true };
        let committed = blob.committed.iter().flat_map(|content| &content.pieces);
        let mut ids = blob.staged.keys().chain(committed.map(|(id, _)| id));
        ids.all(|other| other.is_empty() || other.len() == id.len())
    }

    /// Keeps a block until a list names it. Gives the number of staged blocks.
    pub(super) fn stage(&self, name: &str, id: String, piece: Piece) -> usize {
        let mut known = self.lock();
        let blob = known.entry(name.to_owned()).or_default();
        blob.staged.insert(id, Arc::new(piece));
        blob.staged.len()
    }

    /// Makes the listed blocks the content and forgets the others; `None` when one is missing.
    pub(super) fn commit(
        &self,
        name: &str,
        list: Vec<(Source, String)>,
        about: About,
        now: Timestamp,
    ) -> Option<Arc<Content>> {
        let mut known = self.lock();
        let blob = known.get_mut(name)?;
        let mut pieces = Vec::with_capacity(list.len());
        for (source, id) in list {
            let staged = blob.staged.get(&id).filter(|_| source != Source::Committed);
            let old = blob.committed.as_ref().filter(|_| source != Source::Uncommitted);
            let old = || old?.pieces.iter().find(|(other, _)| *other == id).map(|(_, piece)| piece);
            let piece = staged.or_else(old)?.clone();
            pieces.push((id, piece));
        }
        blob.staged.clear();
        let content = Arc::new(Content::new(pieces, about, now));
        blob.committed = Some(content.clone());
        Some(content)
    }

    /// Makes one piece the content.
    pub(super) fn put(
        &self,
        name: &str,
        piece: Piece,
        about: About,
        now: Timestamp,
    ) -> Arc<Content> {
        let pieces = vec![(String::new(), Arc::new(piece))];
        let content = Arc::new(Content::new(pieces, about, now));
        let blob = Blob { staged: BTreeMap::new(), committed: Some(content.clone()) };
        self.lock().insert(name.to_owned(), blob);
        content
    }

    pub(super) fn received_bytes(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Bytes of files on disk.
    pub(super) fn stored_bytes(&self) -> u64 {
        let files = std::fs::read_dir(self.folder.path()).into_iter().flatten().flatten();
        files.filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Blob>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
