//! A fetched blob on disk. When it is a zip whose first entry is stored uncompressed, the file holds
//! everything from that entry's content on, so that renaming the file unpacks the entry.

use std::fs::{self, File, Permissions};
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use rawzip::ReaderAt;

pub(crate) const MAX_HEAD_BYTES: usize = 4096;
const CHECKSUM_BLOCK_BYTES: u64 = 8 << 20;

/// A blob: its first bytes in memory, the rest in a file.
pub struct BlobFile {
    /// The local header of an uncompressed first entry; empty for every other blob.
    head: Vec<u8>,
    file: File,
    /// Set when the file may be renamed.
    path: Option<PathBuf>,
    checksums: BlockChecksums,
}

/// The CRCs of consecutive blocks of [`CHECKSUM_BLOCK_BYTES`], computed during the download, so that
/// the CRC of the first entry doesn't need a second read of the file.
#[derive(Default)]
pub(crate) struct BlockChecksums(Vec<crc32fast::Hasher>);

impl BlockChecksums {
    /// Adds the bytes at offset `at`, which is how many bytes were added before.
    pub(crate) fn add(&mut self, mut at: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let n = (CHECKSUM_BLOCK_BYTES - at % CHECKSUM_BLOCK_BYTES).min(bytes.len() as u64);
            if at.is_multiple_of(CHECKSUM_BLOCK_BYTES) {
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

impl From<File> for BlobFile {
    fn from(file: File) -> Self {
        Self { head: vec![], file, path: None, checksums: BlockChecksums::default() }
    }
}

impl BlobFile {
    /// `file` is at `path`, and nothing else uses it.
    pub(crate) fn new(head: Vec<u8>, file: File, path: PathBuf) -> Self {
        Self { head, file, path: Some(path), checksums: BlockChecksums::default() }
    }

    pub(crate) fn with_checksums(self, checksums: BlockChecksums) -> Self {
        Self { checksums, ..self }
    }

    pub(crate) fn crc_of_prefix(&self, len: u64) -> io::Result<u32> {
        let known = self.checksums.0.iter().take((len / CHECKSUM_BLOCK_BYTES) as usize);
        let mut at = known.len() as u64 * CHECKSUM_BLOCK_BYTES;
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

    #[expect(clippy::len_without_is_empty, reason = "it asks the file, and may fail")]
    pub fn len(&self) -> io::Result<u64> {
        Ok(self.head.len() as u64 + self.file.metadata()?.len())
    }

    pub(crate) fn head_len(&self) -> u64 {
        self.head.len() as u64
    }

    pub(crate) fn is_movable(&self) -> bool {
        self.path.is_some()
    }

    /// Writes `bytes` at offset `at` of the blob; bytes of the head are skipped, they are in memory.
    pub(crate) fn write_all_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let head = self.head_len();
        let skip = head.saturating_sub(at).min(bytes.len() as u64);
        write_all_at(&self.file, &bytes[skip as usize..], (at + skip).saturating_sub(head))
    }

    /// Renames the file to `to`, cut to `len` bytes. Returns false when that isn't possible, such as
    /// on another file system.
    pub(crate) fn move_to(&self, to: &Path, len: u64, permissions: Permissions) -> bool {
        let Some(path) = &self.path else { return false };
        // Cut first: if the rename fails, the caller can still copy the content.
        let cut = self.file.set_len(len);
        cut.and_then(|()| self.file.set_permissions(permissions))
            .and_then(|()| fs::rename(path, to))
            .is_ok()
    }

    /// Writes the whole blob to the new file `to`.
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

impl ReaderAt for BlobFile {
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

/// The length of the header before the first entry's content, when that entry isn't compressed.
/// `bytes` is the start of the zip.
pub(crate) fn stored_head(bytes: &[u8]) -> Option<usize> {
    const SIGNATURE: &[u8] = b"PK\x03\x04";
    let number =
        |at: usize| Some(usize::from(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?)));
    let len = 30 + number(26)? + number(28)?;
    (bytes.starts_with(SIGNATURE) && number(8)? == 0 && len <= MAX_HEAD_BYTES.min(bytes.len()))
        .then_some(len)
}

#[cfg(unix)]
pub(crate) fn read_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, buffer, at)
}

#[cfg(unix)]
fn write_all_at(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, at)
}

#[cfg(windows)]
pub(crate) fn read_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
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
    fn crc_of_prefix_is_the_same_with_and_without_block_checksums() {
        let bytes: Vec<u8> =
            (0..(2 * CHECKSUM_BLOCK_BYTES + 1000)).map(|n| (n * n / 251) as u8).collect();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, &bytes).unwrap();
        let mut checksums = BlockChecksums::default();
        for (n, piece) in bytes.chunks(700_001).enumerate() {
            checksums.add(n as u64 * 700_001, piece);
        }
        let open = || BlobFile::new(b"head".to_vec(), File::open(&path).unwrap(), path.clone());
        let with = open().with_checksums(checksums);
        for len in [
            0,
            5,
            CHECKSUM_BLOCK_BYTES,
            CHECKSUM_BLOCK_BYTES + 1,
            2 * CHECKSUM_BLOCK_BYTES,
            2 * CHECKSUM_BLOCK_BYTES + 1000,
        ] {
            let expected = crc32fast::hash(&bytes[..len as usize]);
            assert_eq!(
                (open().crc_of_prefix(len).unwrap(), with.crc_of_prefix(len).unwrap()),
                (expected, expected)
            );
        }
    }

    #[test]
    fn blob_reads_back_whole_for_every_head_length() {
        let folder = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..100).collect();
        for head in [0, 1, 30, 99, 100] {
            let path = folder.path().join(head.to_string());
            let open = fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path);
            let disk = BlobFile::new(bytes[..head].to_vec(), open.unwrap(), path);
            // In pieces before, across and after the end of the head.
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
    fn only_a_zip_with_an_uncompressed_first_entry_has_a_head() {
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
        assert_eq!(stored_head(&local(0, "file", MAX_HEAD_BYTES)), None);
        assert_eq!(stored_head(&local(0, "file", 20)[..53]), None);
        assert_eq!(stored_head(b"no zip at all, though it is long enough for one"), None);
        assert_eq!(stored_head(b""), None);
    }
}
