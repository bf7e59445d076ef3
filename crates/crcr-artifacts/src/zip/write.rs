//! Writes a zip as a stream: without a temporary file, and with the same bytes for the same files.
//!
//! The work is split into pieces of at most 1 MiB: several small files, or a chunk of a large one.
//! Worker threads read, checksum and deflate pieces, and the calling thread writes the results in
//! order. The chunks of a large file end in a sync flush, so that together they are one deflate
//! stream. A large file that is stored is read directly into the output buffer. The checksum of a
//! large file isn't known when it starts, so it follows the data, in a data descriptor.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use bytes::Bytes;
use flate2::{Compress, Compression, FlushCompress, Status};
use parking_lot::Mutex;

use crate::blocks::{BlobSink, BlobSourceError, FilePrefix, GrownFiles};
use crate::collect::FileEntry;
use crate::digest::Digest;
use crate::zip::fast_deflate::FastDeflate;
use crate::zip::format::{CompressionMethod, EntryRecord, put_end};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeflateLevel {
    /// Fast; files whose samples don't shrink are stored.
    Auto,
    /// 0 (stored) to 9 (smallest).
    Fixed(u8),
}

/// The zlib level for files that [`FastDeflate`] leaves too large. The result is at most two per cent
/// larger than with level 6.
const ZLIB_LEVEL: u32 = 5;
/// [`FastDeflate`] is used if its samples are at most this much larger than with [`ZLIB_LEVEL`]. A
/// whole file can be three per cent worse than its samples, because zlib finds matches over a longer
/// distance there.
const MAX_FAST_RATIO: f64 = 1.02;

const PIECE_BYTES: usize = 1024 * 1024;
const PIECE_FILES: usize = 256;
const SAMPLE_BYTES: usize = 64 * 1024;
const SAMPLE_COUNT: u64 = 4;
/// More threads would produce bytes faster than one thread hashes them.
const MAX_THREADS: usize = 8;
/// Small enough for the processor's cache, which the checksum reads from.
const READ_BYTES: usize = 256 * 1024;
/// In addition to one piece for each thread.
const QUEUED_PIECES: usize = 2;

#[derive(Clone, Copy)]
pub struct FileSet<'a> {
    pub root: &'a Path,
    pub entries: &'a [FileEntry],
    pub grown: &'a GrownFiles,
}

/// Writes the archive of `files`. With `with_digests`, it returns the digests of small files by their
/// index, and the sink computes those of large ones. `progress` gets the number of bytes read.
pub fn write(
    sink: &mut BlobSink,
    files: FileSet<'_>,
    level: DeflateLevel,
    with_digests: bool,
    progress: &dyn Fn(u64),
) -> Result<BTreeMap<usize, Digest>, BlobSourceError> {
    let threads = std::thread::available_parallelism().map_or(2, usize::from).min(MAX_THREADS);
    let (jobs, queue) = sync_channel::<PieceJob>(threads + QUEUED_PIECES);
    let queue = Mutex::new(queue);
    let spare = SpareBuffers::default();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| run_worker(&queue, files, level, with_digests, &spare));
        }
        let (directory, digests) = (Vec::new(), BTreeMap::new());
        let mut archive = ArchiveWriter {
            sink,
            entries: files.entries,
            directory,
            with_digests,
            digests,
            large: None,
            spare: spare.clone(),
        };
        // The threads end when `jobs` is dropped, also after an error.
        archive.assemble(PiecePlan::new(files, level), jobs, threads + QUEUED_PIECES, progress)?;
        Ok(archive.digests)
    })
}

/// Buffers to reuse, because the kernel has to clear the pages of new memory.
#[derive(Clone, Default)]
struct SpareBuffers(Arc<Mutex<Vec<Vec<u8>>>>);

impl SpareBuffers {
    fn take(&self) -> Vec<u8> {
        let buffer = self.0.lock().pop();
        buffer.unwrap_or_else(|| Vec::with_capacity(PIECE_BYTES))
    }

    fn put_back(&self, buffer: Vec<u8>) {
        self.0.lock().push(buffer);
    }
}

/// A buffer that returns to its [`SpareBuffers`] when it is dropped.
struct LentBuffer(Vec<u8>, SpareBuffers);

impl AsRef<[u8]> for LentBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for LentBuffer {
    fn drop(&mut self) {
        self.1.put_back(std::mem::take(&mut self.0));
    }
}

struct PieceJob {
    piece: ZipPiece,
    done: Sender<Result<PieceResult, BlobSourceError>>,
}

enum ZipPiece {
    /// Small files, by their indexes.
    Files(Range<usize>),
    /// A part of a large file, to be deflated.
    Chunk(FileChunk),
}

/// The next part of the archive.
enum NextPart<P> {
    /// A piece, or the receiver of its result.
    Piece(P),
    /// A large file that is stored without compression, with its index.
    Stored(usize, FilePrefix),
}

#[derive(Clone)]
struct FileChunk {
    index: usize,
    source: Arc<FilePrefix>,
    offset: u64,
    len: usize,
    last: bool,
    effort: DeflateEffort,
}

enum PieceResult {
    /// Offsets in `records` are relative to `bytes`, which has the entries with their headers.
    Files {
        bytes: Vec<u8>,
        records: Vec<EntryRecord>,
        digests: Vec<Digest>,
        first: usize,
    },
    Chunk {
        chunk: FileChunk,
        crc: crc32fast::Hasher,
        raw: Vec<u8>,
        packed: Vec<u8>,
    },
}

/// Splits the entries into pieces, in order.
struct PiecePlan<'a> {
    files: FileSet<'a>,
    packer: EntryPacker,
    next: usize,
    open: Option<(Arc<FilePrefix>, u64, DeflateEffort)>,
}

impl<'a> PiecePlan<'a> {
    fn new(files: FileSet<'a>, level: DeflateLevel) -> Self {
        Self { files, packer: EntryPacker::new(level), next: 0, open: None }
    }

    fn next(&mut self) -> Result<Option<NextPart<ZipPiece>>, BlobSourceError> {
        let first = self.next;
        let Some(entry) = self.files.entries.get(first) else { return Ok(None) };
        if entry.size <= PIECE_BYTES as u64 {
            let mut bytes = 0;
            while let Some(entry) = self.files.entries.get(self.next) {
                bytes += entry.size;
                if bytes > PIECE_BYTES as u64 || self.next - first >= PIECE_FILES {
                    break;
                }
                self.next += 1;
            }
            return Ok(Some(NextPart::Piece(ZipPiece::Files(first..self.next))));
        }
        let (source, offset, effort) = match self.open.take() {
            Some(open) => open,
            None => {
                let source = FilePrefix::open(
                    self.files.root.join(&entry.path),
                    entry.size,
                    self.files.grown,
                )?;
                let Some(effort) = self.packer.effort_for(&source, entry.size)? else {
                    self.next += 1;
                    return Ok(Some(NextPart::Stored(first, source)));
                };
                (Arc::new(source), 0, effort)
            }
        };
        let len = (entry.size - offset).min(PIECE_BYTES as u64);
        let last = offset + len == entry.size;
        let (index, len) = (first, len as usize);
        let chunk = FileChunk { index, source: source.clone(), offset, len, last, effort };
        if last {
            self.next += 1;
        } else {
            self.open = Some((source, offset + len as u64, effort));
        }
        Ok(Some(NextPart::Piece(ZipPiece::Chunk(chunk))))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DeflateEffort {
    Fast,
    /// zlib, at the requested level or [`ZLIB_LEVEL`].
    Full,
}

/// Deflates at the requested level, or at one that samples decide.
struct EntryPacker {
    level: DeflateLevel,
    fast: FastDeflate,
    full: Compress,
}

impl EntryPacker {
    fn new(level: DeflateLevel) -> Self {
        let full = match level {
            DeflateLevel::Auto => ZLIB_LEVEL,
            DeflateLevel::Fixed(level) => u32::from(level),
        };
        let full = Compress::new(Compression::new(full), false);
        Self { level, fast: FastDeflate::new(), full }
    }

    /// Appends `input`, deflated independently of earlier input, to `out`. It ends the stream if
    /// `last`, and else ends at a byte boundary where the next chunk continues.
    fn deflate(&mut self, effort: DeflateEffort, input: &[u8], last: bool, out: &mut Vec<u8>) {
        match effort {
            DeflateEffort::Fast if last => self.fast.finish(input, out),
            DeflateEffort::Fast => {
                for piece in input.chunks(FastDeflate::MAX_PIECE_BYTES) {
                    if !self.fast.flush(piece, out) {
                        deflate(&mut self.full, piece, false, out);
                    }
                }
            }
            DeflateEffort::Full => deflate(&mut self.full, input, last, out),
        }
    }

    /// The effort for a large file; `None` if it is to be stored.
    fn effort_for(
        &mut self,
        source: &FilePrefix,
        size: u64,
    ) -> Result<Option<DeflateEffort>, BlobSourceError> {
        let mut samples = vec![];
        if self.level == DeflateLevel::Auto {
            for n in 0..SAMPLE_COUNT {
                let mut sample = vec![0; SAMPLE_BYTES];
                source.read(&mut sample, (size - SAMPLE_BYTES as u64) / (SAMPLE_COUNT - 1) * n)?;
                samples.push(sample);
            }
        }
        Ok(self.effort(samples.iter().map(Vec::as_slice)))
    }

    /// The effort for content with these samples, which only `auto` needs.
    fn effort<'a>(&mut self, samples: impl Iterator<Item = &'a [u8]>) -> Option<DeflateEffort> {
        match self.level {
            DeflateLevel::Fixed(0) => return None,
            DeflateLevel::Fixed(_) => return Some(DeflateEffort::Full),
            DeflateLevel::Auto => {}
        }
        let (mut raw, mut fast, mut full) = (0, Vec::new(), Vec::new());
        for sample in samples {
            raw += sample.len();
            self.deflate(DeflateEffort::Fast, sample, false, &mut fast);
            self.deflate(DeflateEffort::Full, sample, false, &mut full);
        }
        let is_enough = fast.len() as f64 <= full.len() as f64 * MAX_FAST_RATIO;
        shrinks(full.len(), raw).then_some(if is_enough {
            DeflateEffort::Fast
        } else {
            DeflateEffort::Full
        })
    }
}

/// Deflating is worth it if it saves three per cent or more.
fn shrinks(packed: usize, raw: usize) -> bool {
    packed < raw - raw / 32
}

/// Processes pieces until there are no more.
fn run_worker(
    queue: &Mutex<Receiver<PieceJob>>,
    files: FileSet<'_>,
    level: DeflateLevel,
    digests: bool,
    spare: &SpareBuffers,
) {
    let mut packer = EntryPacker::new(level);
    loop {
        let job = queue.lock().recv();
        let Ok(PieceJob { piece, done }) = job else { return };
        let result = match piece {
            ZipPiece::Files(range) => pack_files(files, range, digests, &mut packer, spare.take()),
            ZipPiece::Chunk(chunk) => read_chunk(chunk, &mut packer, spare),
        };
        // The receiver is gone after an error elsewhere.
        let _ = done.send(result);
    }
}

fn pack_files(
    files: FileSet<'_>,
    range: Range<usize>,
    with_digests: bool,
    packer: &mut EntryPacker,
    mut bytes: Vec<u8>,
) -> Result<PieceResult, BlobSourceError> {
    let first = range.start;
    bytes.clear();
    let (mut records, mut digests) = (Vec::with_capacity(range.len()), Vec::new());
    for entry in &files.entries[range] {
        let raw = match &entry.link {
            Some(target) => target.clone().into_bytes(),
            None => read_whole(&files.root.join(&entry.path), entry.size, files.grown)?,
        };
        let packed = pack(&raw, packer);
        let stored = packed.as_deref().unwrap_or(&raw);
        let record = EntryRecord {
            method: if packed.is_some() {
                CompressionMethod::Deflated
            } else {
                CompressionMethod::Stored
            },
            crc: crc32fast::hash(&raw),
            packed: stored.len() as u64,
            size: entry.size,
            offset: bytes.len() as u64,
            has_descriptor: false,
            mode: entry.mode,
            is_link: entry.link.is_some(),
        };
        record.put_local(&entry.path, &mut bytes);
        bytes.extend_from_slice(stored);
        records.push(record);
        if with_digests {
            digests.push(Digest::of_file(&raw));
        }
    }
    Ok(PieceResult::Files { bytes, records, digests, first })
}

/// Reads the first `size` bytes of a file; fails if it is shorter.
pub(crate) fn read_whole(
    path: &Path,
    size: u64,
    grown: &GrownFiles,
) -> Result<Vec<u8>, BlobSourceError> {
    use std::io::Read as _;
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0) + 1);
    let read = std::fs::File::open(path)
        .and_then(|file| file.take(size + 1).read_to_end(&mut bytes))
        .map_err(|source| BlobSourceError::Read { path: path.to_path_buf(), source })?;
    if (read as u64) < size {
        return Err(BlobSourceError::Changed(path.to_path_buf()));
    }
    if read as u64 > size {
        grown.add(path.to_path_buf());
        bytes.pop();
    }
    Ok(bytes)
}

/// Whether all bytes are about equally frequent, as in compressed or encrypted data, so that deflating
/// can be skipped. This takes a fiftieth of the time of deflating.
///
/// If the byte frequencies alone allowed to save three per cent, the sum of their squares would be at
/// least 1.18 times that of noise.
fn is_noise(raw: &[u8]) -> bool {
    const MIN_BYTES: usize = 1024;
    if raw.len() < MIN_BYTES {
        return false;
    }
    let mut counts = [0_u64; 256];
    for byte in raw {
        counts[usize::from(*byte)] += 1;
    }
    let (len, squares) = (raw.len() as u64, counts.iter().map(|n| n * n).sum::<u64>());
    squares < len + len * len / 256 * 11 / 10
}

/// Deflates a small file; `None` if it isn't worth it.
fn pack(raw: &[u8], packer: &mut EntryPacker) -> Option<Vec<u8>> {
    let is_auto = packer.level == DeflateLevel::Auto;
    if is_auto && is_noise(raw) {
        return None;
    }
    let effort = if is_auto && raw.len() <= 2 * SAMPLE_BYTES {
        DeflateEffort::Full
    } else {
        let samples = [raw, &raw[raw.len() / 2..]].into_iter();
        packer.effort(samples.map(|from| &from[..from.len().min(SAMPLE_BYTES)]))?
    };
    let mut packed = Vec::with_capacity(raw.len() / 2 + 1024);
    packer.deflate(effort, raw, true, &mut packed);
    let pays = if is_auto { shrinks(packed.len(), raw.len()) } else { packed.len() < raw.len() };
    pays.then_some(packed)
}

fn read_chunk(
    chunk: FileChunk,
    packer: &mut EntryPacker,
    spare: &SpareBuffers,
) -> Result<PieceResult, BlobSourceError> {
    let mut raw = spare.take();
    raw.resize(chunk.len, 0);
    chunk.source.read(&mut raw, chunk.offset)?;
    if chunk.last {
        chunk.source.check_unchanged()?;
    }
    let mut crc = crc32fast::Hasher::new();
    crc.update(&raw);
    let mut packed = spare.take();
    packed.clear();
    packer.deflate(chunk.effort, &raw, chunk.last, &mut packed);
    Ok(PieceResult::Chunk { chunk, crc, raw, packed })
}

fn deflate(compress: &mut Compress, input: &[u8], last: bool, out: &mut Vec<u8>) {
    compress.reset();
    let flush = if last { FlushCompress::Finish } else { FlushCompress::Sync };
    loop {
        out.reserve(input.len() / 4 + 1024);
        let rest = &input[usize::try_from(compress.total_in()).unwrap_or(input.len())..];
        let status = compress.compress_vec(rest, out, flush).unwrap_or(Status::BufError);
        let taken = compress.total_in() == input.len() as u64;
        let room = out.len() < out.capacity();
        if status == Status::StreamEnd || (!last && taken && room) {
            return;
        }
    }
}

struct ArchiveWriter<'a> {
    sink: &'a mut BlobSink,
    entries: &'a [FileEntry],
    directory: Vec<u8>,
    with_digests: bool,
    digests: BTreeMap<usize, Digest>,
    /// The deflated file whose chunks are coming.
    large: Option<(EntryRecord, crc32fast::Hasher)>,
    spare: SpareBuffers,
}

impl ArchiveWriter<'_> {
    fn assemble(
        &mut self,
        mut plan: PiecePlan<'_>,
        jobs: SyncSender<PieceJob>,
        ahead: usize,
        progress: &dyn Fn(u64),
    ) -> Result<(), BlobSourceError> {
        let mut waiting = VecDeque::<NextPart<Receiver<_>>>::new();
        loop {
            while waiting.len() < ahead
                && let Some(next) = plan.next()?
            {
                waiting.push_back(match next {
                    NextPart::Stored(index, source) => NextPart::Stored(index, source),
                    NextPart::Piece(piece) => {
                        let (done, result) = channel();
                        jobs.send(PieceJob { piece, done })
                            .map_err(|_| BlobSourceError::Stopped)?;
                        NextPart::Piece(result)
                    }
                });
            }
            match waiting.pop_front() {
                Some(NextPart::Piece(result)) => {
                    let result = result.recv().map_err(|_| BlobSourceError::Stopped)??;
                    progress(self.put_piece(result)?);
                }
                Some(NextPart::Stored(index, source)) => {
                    self.put_stored(index, &source, progress)?;
                }
                None => break,
            }
        }
        let (offset, size) = (self.sink.position(), self.directory.len() as u64);
        put_end(self.entries.len() as u64, size, offset, &mut self.directory);
        self.sink.write(&self.directory)
    }

    /// Writes a piece and returns how many bytes were read for it.
    fn put_piece(&mut self, done: PieceResult) -> Result<u64, BlobSourceError> {
        match done {
            PieceResult::Files { bytes, records, digests, first } => {
                let start = self.sink.position();
                let mut read = 0;
                for (n, mut record) in records.into_iter().enumerate() {
                    record.offset += start;
                    read += record.size;
                    record.put_central(&self.entries[first + n].path, &mut self.directory);
                }
                self.digests.extend((first..).zip(digests));
                self.sink.write(&bytes)?;
                self.spare.put_back(bytes);
                Ok(read)
            }
            PieceResult::Chunk { chunk, crc, raw, packed } => {
                self.put_chunk(&chunk, &crc, raw, packed)
            }
        }
    }

    fn put_chunk(
        &mut self,
        chunk: &FileChunk,
        crc: &crc32fast::Hasher,
        raw: Vec<u8>,
        packed: Vec<u8>,
    ) -> Result<u64, BlobSourceError> {
        let (mut record, mut whole) = match self.large.take() {
            Some(large) => large,
            None => (
                self.begin_entry(chunk.index, CompressionMethod::Deflated)?,
                crc32fast::Hasher::new(),
            ),
        };
        let read = raw.len() as u64;
        self.sink.write(&packed)?;
        record.packed += packed.len() as u64;
        whole.combine(crc);
        self.spare.put_back(packed);
        let raw = LentBuffer(raw, self.spare.clone());
        if self.with_digests {
            self.sink.hash(chunk.index, Bytes::from_owner(raw))?;
        }
        if !chunk.last {
            self.large = Some((record, whole));
            return Ok(read);
        }
        record.crc = whole.finalize();
        self.end_entry(chunk.index, &record)?;
        Ok(read)
    }

    /// Writes a large file without compression.
    fn put_stored(
        &mut self,
        index: usize,
        source: &FilePrefix,
        progress: &dyn Fn(u64),
    ) -> Result<(), BlobSourceError> {
        let mut record = self.begin_entry(index, CompressionMethod::Stored)?;
        let mut crc = crc32fast::Hasher::new();
        let read = |room: &mut [u8], offset: u64| {
            let mut at = offset;
            for piece in room.chunks_mut(READ_BYTES) {
                source.read(piece, at)?;
                crc.update(piece);
                at += piece.len() as u64;
            }
            progress(at - offset);
            Ok(())
        };
        record.packed = record.size;
        self.sink.fill(record.size, self.with_digests.then_some(index), read)?;
        source.check_unchanged()?;
        record.crc = crc.finalize();
        self.end_entry(index, &record)
    }

    fn begin_entry(
        &mut self,
        index: usize,
        method: CompressionMethod,
    ) -> Result<EntryRecord, BlobSourceError> {
        let entry = &self.entries[index];
        let record = EntryRecord {
            method,
            crc: 0,
            packed: 0,
            size: entry.size,
            offset: self.sink.position(),
            has_descriptor: true,
            mode: entry.mode,
            is_link: false,
        };
        let mut header = Vec::new();
        record.put_local(&entry.path, &mut header);
        self.sink.write(&header)?;
        Ok(record)
    }

    fn end_entry(&mut self, index: usize, record: &EntryRecord) -> Result<(), BlobSourceError> {
        let mut descriptor = Vec::new();
        record.put_descriptor(&mut descriptor);
        self.sink.write(&descriptor)?;
        record.put_central(&self.entries[index].path, &mut self.directory);
        Ok(())
    }
}

#[cfg(test)]
#[path = "write_tests.rs"]
mod tests;
