//! Produces a blob as blocks of one size, in order, hashed on the way, from a fixed set of buffers.
//!
//! One thread produces the bytes, one hashes them, one hashes the single files in them. The task that
//! sends a block returns its buffer afterwards. So the slowest of them sets the pace, and memory use
//! doesn't depend on the size of the blob.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use tokio::sync::{mpsc, oneshot};

use crate::blob_file::read_at;
use crate::digest::{Digest, DigestAlgorithm, DigestHasher};

/// All buffers of one blob: one being filled, up to two being hashed, the others being sent. More
/// buffers mean more parallel requests, which a connection with high latency needs.
const BUFFER_MEMORY_BYTES: usize = 38 * 1024 * 1024;
/// For blobs so long that their blocks are large.
const MIN_BUFFERS: usize = 4;
const QUEUED_FILE_PIECES: usize = 2;
const DIGEST_BUFFER_BYTES: usize = 256 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum BlobSourceError {
    #[error("`{}` can't be read", .path.display())]
    Read { path: PathBuf, source: io::Error },
    /// It is shorter than when it was found, or was written to.
    #[error("`{}` changed while it was read", .0.display())]
    Changed(PathBuf),
    #[error("the upload was stopped")]
    Stopped,
}

impl BlobSourceError {
    /// Whether a file isn't any more what it was when it was found, such as a log that was rotated. The files
    /// can be looked up again.
    pub fn is_change(&self) -> bool {
        match self {
            Self::Read { source, .. } => source.kind() == io::ErrorKind::NotFound,
            Self::Changed(_) => true,
            Self::Stopped => false,
        }
    }
}

/// The blocks of a blob, as they are produced.
#[derive(Debug)]
pub struct BlobBlocks {
    blocks: mpsc::Receiver<Bytes>,
    made: oneshot::Receiver<Result<FinishedBlob, BlobSourceError>>,
}

#[derive(Debug, Clone)]
pub struct FinishedBlob {
    pub size: u64,
    pub digest: Digest,
    /// The digests of the files in it, in order; empty when there are too many to list.
    pub files: Vec<Digest>,
}

impl BlobBlocks {
    /// Runs `make` on a thread. It writes the blob to the sink and returns digests of files in it, by
    /// their index. The digests of the other files come from [`BlobSink::fill`] and [`BlobSink::hash`].
    /// `algorithm` is that of the whole blob.
    pub fn start<F>(block_size: usize, algorithm: DigestAlgorithm, make: F) -> Self
    where
        F: FnOnce(&mut BlobSink) -> Result<BTreeMap<usize, Digest>, BlobSourceError>
            + Send
            + 'static,
    {
        let (out, hashing) = sync_channel::<Bytes>(1);
        let (to_send, blocks) = mpsc::channel(1);
        let (tell, made) = oneshot::channel();
        std::thread::spawn(move || {
            let hasher = std::thread::spawn(move || {
                let (mut hasher, mut size) = (DigestHasher::new(algorithm), 0);
                for block in hashing {
                    hasher.update(&block);
                    size += block.len() as u64;
                    if to_send.blocking_send(block).is_err() {
                        break;
                    }
                }
                (hasher.finish(), size)
            });
            let (file_bytes_out, file_bytes) = sync_channel(QUEUED_FILE_PIECES);
            let file_hasher = std::thread::spawn(move || hash_files(&file_bytes));
            let pool = BufferPool::new(block_size);
            let mut sink =
                BlobSink { current: None, parts: Vec::new(), pool, out, file_bytes_out, at: 0 };
            let known = make(&mut sink).and_then(|known| sink.flush().map(|()| known));
            drop(sink);
            let (hashed, files) = (hasher.join(), file_hasher.join());
            let made = known.and_then(|mut known| {
                let (digest, size) = hashed.map_err(|_| BlobSourceError::Stopped)?;
                known.extend(files.map_err(|_| BlobSourceError::Stopped)?);
                Ok(FinishedBlob { size, digest, files: known.into_values().collect() })
            });
            // The receiver is gone if sending the blocks has failed.
            let _ = tell.send(made);
        });
        Self { blocks, made }
    }

    /// The next block; `None` at the end or after an error, which [`Self::finish`] returns.
    pub async fn next(&mut self) -> Option<Bytes> {
        self.blocks.recv().await
    }

    /// The blob is complete only if this succeeds.
    pub async fn finish(self) -> Result<FinishedBlob, BlobSourceError> {
        drop(self.blocks);
        self.made.await.unwrap_or(Err(BlobSourceError::Stopped))
    }

    /// Produces the blob only to compute its digest.
    pub async fn digest(mut self) -> Result<FinishedBlob, BlobSourceError> {
        while self.next().await.is_some() {}
        self.finish().await
    }
}

/// The index of a file, and some of its bytes.
type FileBytes = (usize, Bytes);

fn hash_files(bytes: &Receiver<FileBytes>) -> BTreeMap<usize, Digest> {
    let mut hashers = BTreeMap::<usize, DigestHasher>::new();
    for (file, bytes) in bytes {
        let hasher = hashers.entry(file);
        hasher.or_insert_with(|| DigestHasher::new(DigestAlgorithm::Blake3)).update(&bytes);
    }
    hashers.into_iter().map(|(file, hasher)| (file, hasher.finish())).collect()
}

pub struct BlobSink {
    current: Option<PooledBuffer>,
    /// The files in the current block: index, and range in the block.
    parts: Vec<(usize, Range<usize>)>,
    pool: Arc<BufferPool>,
    out: SyncSender<Bytes>,
    file_bytes_out: SyncSender<FileBytes>,
    at: u64,
}

impl BlobSink {
    /// How many bytes have been written.
    pub fn position(&self) -> u64 {
        self.at
    }

    pub fn write(&mut self, mut bytes: &[u8]) -> Result<(), BlobSourceError> {
        while !bytes.is_empty() {
            let space = self.space()?;
            let n = bytes.len().min(space.len());
            space[..n].copy_from_slice(&bytes[..n]);
            self.advance(n)?;
            bytes = &bytes[n..];
        }
        Ok(())
    }

    /// Adds bytes to the digest of `file` without writing them, because the blob has them compressed.
    pub fn hash(&self, file: usize, bytes: Bytes) -> Result<(), BlobSourceError> {
        self.file_bytes_out.send((file, bytes)).map_err(|_| BlobSourceError::Stopped)
    }

    /// Writes `len` bytes that `read` puts into a buffer, given their offset. They also go into the
    /// digest of `file`.
    pub fn fill(
        &mut self,
        len: u64,
        file: Option<usize>,
        mut read: impl FnMut(&mut [u8], u64) -> Result<(), BlobSourceError>,
    ) -> Result<(), BlobSourceError> {
        let mut done = 0;
        while done < len {
            let space = self.space()?;
            let n = usize::try_from(len - done).unwrap_or(usize::MAX).min(space.len());
            read(&mut space[..n], done)?;
            done += n as u64;
            if let (Some(file), Some(buffer)) = (file, &self.current) {
                self.parts.push((file, buffer.len..buffer.len + n));
            }
            self.advance(n)?;
        }
        Ok(())
    }

    fn space(&mut self) -> Result<&mut [u8], BlobSourceError> {
        if self.current.is_none() {
            self.current = Some(self.pool.take());
        }
        match &mut self.current {
            Some(buffer) => Ok(&mut buffer.bytes[buffer.len..]),
            None => Err(BlobSourceError::Stopped),
        }
    }

    fn advance(&mut self, n: usize) -> Result<(), BlobSourceError> {
        self.at += n as u64;
        if let Some(buffer) = &mut self.current {
            buffer.len += n;
            if buffer.len == buffer.bytes.len() {
                return self.flush();
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), BlobSourceError> {
        match self.current.take() {
            Some(buffer) if buffer.len > 0 => {
                let bytes = Bytes::from_owner(buffer);
                self.out.send(bytes.clone()).map_err(|_| BlobSourceError::Stopped)?;
                self.parts
                    .drain(..)
                    .try_for_each(|(file, part)| {
                        self.file_bytes_out.send((file, bytes.slice(part)))
                    })
                    .map_err(|_| BlobSourceError::Stopped)
            }
            _ => Ok(()),
        }
    }
}

struct BufferPool {
    block_size: usize,
    /// Returned buffers, and how many may still be allocated.
    free: Mutex<(Vec<Vec<u8>>, usize)>,
    buffer_freed: Condvar,
}

impl BufferPool {
    fn new(block_size: usize) -> Arc<Self> {
        // A zeroed allocation takes no memory until the buffer is filled.
        let free = Mutex::new((Vec::new(), (BUFFER_MEMORY_BYTES / block_size).max(MIN_BUFFERS)));
        Arc::new(Self { block_size, free, buffer_freed: Condvar::new() })
    }

    fn take(self: &Arc<Self>) -> PooledBuffer {
        let mut free = self.free.lock();
        loop {
            let (back, unmade) = &mut *free;
            if let Some(bytes) = back.pop() {
                return PooledBuffer { bytes, len: 0, pool: self.clone() };
            }
            if *unmade > 0 {
                *unmade -= 1;
                return PooledBuffer {
                    bytes: vec![0; self.block_size],
                    len: 0,
                    pool: self.clone(),
                };
            }
            self.buffer_freed.wait(&mut free);
        }
    }
}

struct PooledBuffer {
    bytes: Vec<u8>,
    len: usize,
    pool: Arc<BufferPool>,
}

impl AsRef<[u8]> for PooledBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        self.pool.free.lock().0.push(bytes);
        self.pool.buffer_freed.notify_one();
    }
}

/// Files that grew during the upload, such as logs. What they held when they were found is stored.
#[derive(Debug, Clone, Default)]
pub struct GrownFiles(Arc<Mutex<BTreeSet<PathBuf>>>);

impl GrownFiles {
    pub(crate) fn add(&self, path: PathBuf) {
        self.0.lock().insert(path);
    }

    pub(crate) fn paths(&self) -> BTreeSet<PathBuf> {
        self.0.lock().clone()
    }
}

/// The first `size` bytes of a file, which was its length when it was found.
pub(crate) struct FilePrefix {
    file: File,
    path: PathBuf,
    size: u64,
    modified: Option<std::time::SystemTime>,
    grown: GrownFiles,
}

impl FilePrefix {
    /// Fails with [`BlobSourceError::Changed`] when the file is shorter than `size` bytes.
    pub(crate) fn open(
        path: PathBuf,
        size: u64,
        grown: &GrownFiles,
    ) -> Result<Self, BlobSourceError> {
        match File::open(&path).and_then(|file| Ok((file.metadata()?, file))) {
            Ok((metadata, _)) if metadata.len() < size => Err(BlobSourceError::Changed(path)),
            Ok((metadata, file)) => {
                let (modified, grown) = (metadata.modified().ok(), grown.clone());
                Ok(Self { file, path, size, modified, grown })
            }
            Err(source) => Err(BlobSourceError::Read { path, source }),
        }
    }

    /// Fills `buffer` with the bytes from `offset` on.
    pub(crate) fn read(
        &self,
        mut buffer: &mut [u8],
        mut offset: u64,
    ) -> Result<(), BlobSourceError> {
        while !buffer.is_empty() {
            match read_at(&self.file, buffer, offset) {
                Ok(0) => return Err(BlobSourceError::Changed(self.path.clone())),
                Ok(n) => {
                    buffer = &mut buffer[n..];
                    offset += n as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => {
                    return Err(BlobSourceError::Read { path: self.path.clone(), source });
                }
            }
        }
        Ok(())
    }

    /// Fails when the file shrank, or was written to without growing. A file that grew is recorded.
    pub(crate) fn check_unchanged(&self) -> Result<(), BlobSourceError> {
        match self.file.metadata() {
            Ok(now) if now.len() > self.size => {
                self.grown.add(self.path.clone());
                Ok(())
            }
            Ok(now) if now.len() == self.size && now.modified().ok() == self.modified => Ok(()),
            _ => Err(BlobSourceError::Changed(self.path.clone())),
        }
    }
}

/// The blocks of a single file.
pub(crate) fn file_blocks(
    path: PathBuf,
    size: u64,
    block_size: usize,
    algorithm: DigestAlgorithm,
    grown: GrownFiles,
    progress: impl Fn(u64) + Send + 'static,
) -> BlobBlocks {
    BlobBlocks::start(block_size, algorithm, move |sink| {
        let source = FilePrefix::open(path, size, &grown)?;
        sink.fill(size, None, |buffer, offset| {
            source.read(buffer, offset)?;
            progress(buffer.len() as u64);
            Ok(())
        })?;
        source.check_unchanged()?;
        Ok(BTreeMap::new())
    })
}

pub(crate) fn digest_of_file(
    path: PathBuf,
    size: u64,
    grown: &GrownFiles,
) -> Result<Digest, BlobSourceError> {
    let source = FilePrefix::open(path, size, grown)?;
    let mut buffer = vec![0; size.min(DIGEST_BUFFER_BYTES as u64) as usize];
    let (mut hasher, mut at) = (DigestHasher::new(DigestAlgorithm::Blake3), 0);
    while at < size {
        let n = buffer.len().min(usize::try_from(size - at).unwrap_or(usize::MAX));
        source.read(&mut buffer[..n], at)?;
        hasher.update(&buffer[..n]);
        at += n as u64;
    }
    source.check_unchanged()?;
    Ok(hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn blocks_arrive_complete_and_in_order() {
        let bytes: Vec<u8> = (0..100_000_u32).map(|n| n as u8).collect();
        let copy = bytes.clone();
        let mut blocks = BlobBlocks::start(4096, DigestAlgorithm::Sha256, move |sink| {
            for part in copy.chunks(777) {
                sink.write(part)?;
            }
            Ok(BTreeMap::new())
        });
        let mut got = Vec::new();
        while let Some(block) = blocks.next().await {
            got.extend_from_slice(&block);
        }
        let made = blocks.finish().await.unwrap();
        assert!(got == bytes && made.size == 100_000 && made.digest == Digest::of(&bytes));
    }

    #[tokio::test]
    async fn dropping_the_blocks_stops_their_producer() {
        let (tell, stopped) = oneshot::channel();
        let mut blocks = BlobBlocks::start(1024, DigestAlgorithm::Sha256, move |sink| {
            let error = loop {
                if let Err(error) = sink.write(&[0; 1000]) {
                    break error;
                }
            };
            let _ = tell.send(());
            Err(error)
        });
        assert!(blocks.next().await.is_some());
        drop(blocks);
        stopped.await.unwrap();
    }

    #[tokio::test]
    async fn file_that_grew_is_stored_as_found_and_file_that_shrank_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("f"), b"12345").unwrap();
        let grown = GrownFiles::default();
        let digest = async |name: &str, size: u64| {
            let path = folder.path().join(name);
            file_blocks(path, size, 1024, DigestAlgorithm::Sha256, grown.clone(), |_| ())
                .digest()
                .await
        };
        let shorter = digest("f", 6).await;
        assert!(matches!(shorter, Err(BlobSourceError::Changed(_))), "{shorter:?}");
        let gone = digest("gone", 6).await;
        assert!(matches!(gone, Err(BlobSourceError::Read { .. })), "{gone:?}");
        assert_eq!(digest("f", 5).await.unwrap().digest, Digest::of(b"12345"));
        assert!(grown.paths().is_empty());
        assert_eq!(digest("f", 4).await.unwrap().digest, Digest::of(b"1234"));
        assert!(grown.paths().contains(&folder.path().join("f")));
    }

    /// Files begin and end anywhere in a block, and one has another between its bytes.
    #[tokio::test]
    async fn every_file_in_the_blob_gets_its_own_digest() {
        let bytes: Vec<u8> = (0..5000_u32).map(|n| n as u8).collect();
        let copy = bytes.clone();
        let mut blocks = BlobBlocks::start(1024, DigestAlgorithm::Sha256, move |sink| {
            sink.write(&copy[..30])?;
            let read = |room: &mut [u8], at: u64| {
                room.copy_from_slice(&copy[at as usize..][..room.len()]);
                Ok(())
            };
            sink.fill(3000, Some(1), read)?;
            sink.hash(3, Bytes::from_static(b"packed "))?;
            sink.fill(10, Some(2), read)?;
            sink.hash(3, Bytes::from_static(b"elsewhere"))?;
            Ok(BTreeMap::from([(0, Digest::of_file(b"small"))]))
        });
        while blocks.next().await.is_some() {}
        let expected =
            [b"small", &bytes[..3000], &bytes[..10], b"packed elsewhere"].map(Digest::of_file);
        assert_eq!(blocks.finish().await.unwrap().files, expected);
    }
}
