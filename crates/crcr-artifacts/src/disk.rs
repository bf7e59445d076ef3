//! A fetched blob on disk, laid out so that the content of its first entry can become a file
//! without being copied.

use std::fs::{self, File, Permissions};
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use rawzip::ReaderAt;

/// The longest start of a blob that is kept apart, in bytes.
pub(crate) const MAX_HEAD: usize = 4096;

/// A blob: its first bytes in memory, the rest in a file.
///
/// The head is what comes before the content of a stored entry at the start of a zip, so that this
/// content starts where the file starts. It is empty for every other blob.
pub struct Disk {
    head: Vec<u8>,
    file: File,
    /// Where the file is, when it may be moved away.
    path: Option<PathBuf>,
    sums: BlockChecksums,
}

/// How many bytes of a file each of [`BlockChecksums`] is about.
const STEP: u64 = 8 << 20;

/// The CRCs of a file's consecutive parts of [`STEP`] bytes, made on the way, so that the CRC of a
/// content that turns out to start where the file starts needs no second reading.
#[derive(Default)]
pub(crate) struct BlockChecksums(Vec<crc32fast::Hasher>);

impl BlockChecksums {
    /// Adds the bytes that follow those added before; `at` is how many these are.
    pub(crate) fn add(&mut self, mut at: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let n = (STEP - at % STEP).min(bytes.len() as u64);
            if at.is_multiple_of(STEP) {
                self.0.push(crc32fast::Hasher::new());
            }
            let (these, rest) = bytes.split_at(n as usize);
            if let Some(sum) = self.0.last_mut() {
                sum.update(these);
            }
            (at, bytes) = (at + n, rest);
        }
    }
}

impl From<File> for Disk {
    fn from(file: File) -> Self {
        Self { head: vec![], file, path: None, sums: BlockChecksums::default() }
    }
}

impl Disk {
    /// The blob of `head` and `file`, which lies at `path` and has no other use.
    pub(crate) fn new(head: Vec<u8>, file: File, path: PathBuf) -> Self {
        Self { head, file, path: Some(path), sums: BlockChecksums::default() }
    }

    /// The same with the sums of its file.
    pub(crate) fn with_sums(self, sums: BlockChecksums) -> Self {
        Self { sums, ..self }
    }

    /// The CRC of the first `len` bytes of the file.
    pub(crate) fn crc(&self, len: u64) -> io::Result<u32> {
        let known = self.sums.0.iter().take((len / STEP) as usize);
        let mut at = known.len() as u64 * STEP;
        let mut crc = crc32fast::Hasher::new();
        known.for_each(|sum| crc.combine(sum));
        let mut buffer = vec![0; 256 * 1024];
        while at < len {
            let n = buffer.len().min(usize::try_from(len - at).unwrap_or(usize::MAX));
            self.read_exact_at(&mut buffer[..n], self.head_len() + at)?;
            crc.update(&buffer[..n]);
            at += n as u64;
        }
        Ok(crc.finalize())
    }

    /// The blob's length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "it asks the file, and may fail")]
    pub fn len(&self) -> io::Result<u64> {
        Ok(self.head.len() as u64 + self.file.metadata()?.len())
    }

    /// How many bytes come before the file.
    pub(crate) fn head_len(&self) -> u64 {
        self.head.len() as u64
    }

    /// Whether the file may be moved away.
    pub(crate) fn is_movable(&self) -> bool {
        self.path.is_some()
    }

    /// Writes `bytes` at offset `at` of the blob; what belongs to the head is there already.
    pub(crate) fn write_all_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let head = self.head_len();
        let skip = head.saturating_sub(at).min(bytes.len() as u64);
        write_all_at(&self.file, &bytes[skip as usize..], (at + skip).saturating_sub(head))
    }

    /// Moves the first `len` bytes of the file to `to`, an empty file whose permissions they get.
    ///
    /// False when that can't be: on another file system, or where the file is held.
    pub(crate) fn move_to(&self, to: &Path, len: u64, permissions: Permissions) -> bool {
        let Some(path) = &self.path else { return false };
        // Cut first: where the move fails, the content can still be copied.
        let moved = self
            .file
            .set_len(len)
            .and_then(|()| self.file.set_permissions(permissions))
            .and_then(|()| fs::rename(path, to));
        moved.is_ok()
    }

    /// Makes the whole blob the file `to`, which doesn't exist.
    pub(crate) fn copy_to(&self, to: &Path) -> io::Result<()> {
        let mut file = File::create_new(to)?;
        let (len, permissions) = (self.len()?, file.metadata()?.permissions());
        if self.head.is_empty() && self.move_to(to, len, permissions) {
            return Ok(());
        }
        file.write_all(&self.head)?;
        (&self.file).seek(SeekFrom::Start(0))?;
        io::copy(&mut &self.file, &mut file).map(drop)
    }
}

impl ReaderAt for Disk {
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        let head = self.head_len();
        if at >= head {
            return read_at(&self.file, buffer, at - head);
        }
        let head = &self.head[at as usize..];
        let n = head.len().min(buffer.len());
        buffer[..n].copy_from_slice(&head[..n]);
        Ok(n)
    }
}

/// How many bytes at the start of a zip come before the content of its first entry, when that is
/// stored as it is; `bytes` is a start of the zip.
pub(crate) fn stored_head(bytes: &[u8]) -> Option<usize> {
    const SIGNATURE: &[u8] = b"PK\x03\x04";
    let number =
        |at: usize| Some(usize::from(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?)));
    let len = 30 + number(26)? + number(28)?;
    (bytes.starts_with(SIGNATURE) && number(8)? == 0 && len <= MAX_HEAD.min(bytes.len()))
        .then_some(len)
}

#[cfg(unix)]
fn read_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, buffer, at)
}

#[cfg(unix)]
fn write_all_at(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, at)
}

#[cfg(windows)]
fn read_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, buffer, at)
}

#[cfg(windows)]
fn write_all_at(file: &File, mut bytes: &[u8], mut at: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = std::os::windows::fs::FileExt::seek_write(file, bytes, at)?;
        bytes = &bytes[written..];
        at += written as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crc_of_a_start_is_the_same_with_sums_and_without() {
        let bytes: Vec<u8> = (0..(2 * STEP + 1000)).map(|n| (n * n / 251) as u8).collect();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, &bytes).unwrap();
        let mut sums = BlockChecksums::default();
        for (n, piece) in bytes.chunks(700_001).enumerate() {
            sums.add(n as u64 * 700_001, piece);
        }
        let open = || Disk::new(b"head".to_vec(), File::open(&path).unwrap(), path.clone());
        let with = open().with_sums(sums);
        for len in [0, 5, STEP, STEP + 1, 2 * STEP, 2 * STEP + 1000] {
            let expected = crc32fast::hash(&bytes[..len as usize]);
            assert_eq!((open().crc(len).unwrap(), with.crc(len).unwrap()), (expected, expected));
        }
    }

    #[test]
    fn a_blob_reads_as_one_whatever_is_kept_apart() {
        let folder = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..100).collect();
        for head in [0, 1, 30, 99, 100] {
            let path = folder.path().join(head.to_string());
            let open = fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path);
            let disk = Disk::new(bytes[..head].to_vec(), open.unwrap(), path);
            // In pieces that lie before, across and after the end of the head.
            for at in (0..100).step_by(7).rev() {
                disk.write_all_at(&bytes[at..(at + 7).min(100)], at as u64).unwrap();
            }
            assert_eq!(disk.len().unwrap(), 100);
            for at in [0, 1, 29, 50, 98] {
                let mut read = vec![0; 100 - at];
                disk.read_exact_at(&mut read, at as u64).unwrap();
                assert!(read == bytes[at..], "{head} {at}");
            }
        }
    }

    #[test]
    fn only_a_zip_that_starts_with_a_stored_entry_has_a_head() {
        let local = |method: u8, name: &str, extra: usize| {
            let mut header = b"PK\x03\x04\x14\0\0\x08".to_vec();
            header.extend([method, 0]);
            header.resize(26, 0);
            header.extend((name.len() as u16).to_le_bytes());
            header.extend((extra as u16).to_le_bytes());
            header.extend(name.as_bytes());
            header.resize(header.len() + extra, 7);
            header
        };
        assert_eq!(stored_head(&local(0, "file", 20)), Some(54));
        assert_eq!(stored_head(&local(0, "", 0)), Some(30));
        assert_eq!(stored_head(&local(8, "file", 20)), None);
        assert_eq!(stored_head(&local(0, "file", MAX_HEAD)), None);
        assert_eq!(stored_head(&local(0, "file", 20)[..53]), None);
        assert_eq!(stored_head(b"no zip at all, though it is long enough for one"), None);
        assert_eq!(stored_head(b""), None);
    }
}
