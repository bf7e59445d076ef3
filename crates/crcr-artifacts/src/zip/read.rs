//! Reads a zip archive in a file: the central directory as a stream, entries in any order.
//!
//! The archive is untrusted. No buffer is allocated from a size that it declares, and reading an entry
//! gives exactly the announced number of bytes or an error.
//! Format: <https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT>

use std::io;

use flate2::{Decompress, FlushDecompress, Status};
use rawzip::{
    CompressionMethod, ReaderAt as _, ZipArchive, ZipArchiveEntryWayfinder, ZipFileHeaderRecord,
    ZipLocator,
};

use crate::blob_file::BlobFile;

/// Large enough for any record of a central directory: three fields of 64 KiB and a fixed part.
const RECORD_BYTES: usize = 256 * 1024;
/// The type of a file in a Unix mode.
const S_IFMT: u32 = 0o170_000;
const S_IFREG: u32 = 0o100_000;
const S_IFDIR: u32 = 0o040_000;
const S_IFLNK: u32 = 0o120_000;

#[derive(Debug, thiserror::Error)]
pub enum ZipReadError {
    #[error("it isn't a readable zip archive: {0}")]
    Archive(#[from] rawzip::Error),
    #[error("`{0}` is encrypted")]
    Encrypted(String),
    #[error("`{path}` is compressed by method {method}; `crcr` reads stored and deflated entries")]
    Method { path: String, method: u16 },
    /// Devices, pipes and sockets.
    #[error("`{0}` is neither a file, a folder nor a symbolic link")]
    Kind(String),
    #[error("`{path}` can't be decompressed: {why}")]
    Broken { path: String, why: String },
    #[error("`{0}` isn't what the archive's directory announces (length or CRC differ)")]
    Mismatch(String),
    /// From reading the archive, or from the callback that takes the content.
    #[error(transparent)]
    Io(#[from] io::Error),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    File,
    Folder,
    /// Its content is the target.
    Symlink,
}

/// One record of the central directory.
#[derive(Debug, Clone)]
pub struct ZipEntry {
    /// As the archive has it: it may lead anywhere.
    pub path: String,
    pub kind: EntryKind,
    /// Permission, setuid, setgid and sticky bits, if the archive has them.
    pub mode: Option<u32>,
    /// The announced bytes of the content.
    pub size: u64,
    /// The announced bytes in the archive.
    pub compressed: u64,
    crc: u32,
    deflated: bool,
    place: ZipArchiveEntryWayfinder,
}

/// An archive in a file. Entries can be read from several threads at once.
pub struct ZipReader {
    archive: ZipArchive<BlobFile>,
}

/// The memory for reading an entry; each thread reuses its own.
pub struct ReadBuffers {
    input: Vec<u8>,
    output: Vec<u8>,
    inflate: Decompress,
}

impl Default for ReadBuffers {
    fn default() -> Self {
        Self {
            input: vec![0; 128 * 1024],
            output: vec![0; 512 * 1024],
            inflate: Decompress::new(false),
        }
    }
}

impl ZipReader {
    pub fn open(disk: impl Into<BlobFile>) -> Result<Self, ZipReadError> {
        let disk = disk.into();
        let mut buffer = vec![0; RECORD_BYTES];
        let end = disk.len()?;
        let archive = ZipLocator::new().locate_in_reader(disk, &mut buffer, end);
        Ok(Self { archive: archive.map_err(|(_, error)| error)? })
    }

    pub(crate) fn disk(&self) -> &BlobFile {
        self.archive.get_ref()
    }

    /// Whether the archive's file starts with the uncompressed content of `entry`, and may be renamed.
    pub(crate) fn is_stored_at_start(&self, entry: &ZipEntry) -> bool {
        let disk = self.disk();
        disk.is_movable()
            && !entry.deflated
            && self.archive.get_entry(entry.place).is_ok_and(|place| {
                let (start, end) = place.compressed_data_range();
                start == disk.head_len() && end - start == entry.size
            })
    }

    /// Checks the CRC of the entry that [`Self::is_stored_at_start`].
    pub(crate) fn check_stored_crc(&self, entry: &ZipEntry) -> Result<(), ZipReadError> {
        if self.disk().crc_of_prefix(entry.size)? == entry.crc {
            return Ok(());
        }
        Err(ZipReadError::Mismatch(entry.path.clone()))
    }

    /// Calls `each` with every entry in the order of the central directory, until it fails.
    pub fn entries<E: From<ZipReadError>>(
        &self,
        mut each: impl FnMut(ZipEntry) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut buffer = vec![0; RECORD_BYTES];
        let mut entries = self.archive.entries(&mut buffer);
        while let Some(record) = entries.next_entry().map_err(ZipReadError::from)? {
            each(entry(&record)?)?;
        }
        Ok(())
    }

    /// Calls `take` with the content of `entry`, piece by piece, and checks its length and CRC. `take`
    /// never gets more bytes than announced.
    pub fn read_content(
        &self,
        entry: &ZipEntry,
        buffers: &mut ReadBuffers,
        mut take: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), ZipReadError> {
        let (mut at, end) = self.archive.get_entry(entry.place)?.compressed_data_range();
        let ReadBuffers { input, output, inflate } = buffers;
        let mut crc = crc32fast::Hasher::new();
        let mut left = entry.size;
        let mut give = |bytes: &[u8]| -> Result<(), ZipReadError> {
            let mismatch = || ZipReadError::Mismatch(entry.path.clone());
            left = left.checked_sub(bytes.len() as u64).ok_or_else(mismatch)?;
            crc.update(bytes);
            Ok(take(bytes)?)
        };
        let read = |input: &mut [u8], at: u64| -> io::Result<usize> {
            let want = usize::try_from(end - at).unwrap_or(usize::MAX).min(input.len());
            self.archive.get_ref().read_exact_at(&mut input[..want], at)?;
            Ok(want)
        };
        if entry.deflated {
            let broken = |why| ZipReadError::Broken { path: entry.path.clone(), why };
            inflate.reset(false);
            let mut done = false;
            while !done && at < end {
                let got = read(input, at)?;
                at += got as u64;
                done = inflate_all(&input[..got], output, inflate, &broken, &mut give)?;
            }
            if !done {
                return Err(ZipReadError::Mismatch(entry.path.clone()));
            }
        } else {
            while at < end {
                let got = read(output, at)?;
                at += got as u64;
                give(&output[..got])?;
            }
        }
        if left != 0 || crc.finalize() != entry.crc {
            return Err(ZipReadError::Mismatch(entry.path.clone()));
        }
        Ok(())
    }
}

/// Inflates all of `input`; returns true at the end of the stream.
fn inflate_all(
    mut input: &[u8],
    output: &mut [u8],
    inflate: &mut Decompress,
    broken: &impl Fn(String) -> ZipReadError,
    give: &mut impl FnMut(&[u8]) -> Result<(), ZipReadError>,
) -> Result<bool, ZipReadError> {
    loop {
        let (taken, given) = (inflate.total_in(), inflate.total_out());
        let status = inflate
            .decompress(input, output, FlushDecompress::None)
            .map_err(|e| broken(e.to_string()))?;
        let taken = (inflate.total_in() - taken) as usize;
        let given = (inflate.total_out() - given) as usize;
        input = &input[taken..];
        give(&output[..given])?;
        if status == Status::StreamEnd {
            return Ok(true);
        }
        // The decompressor may hold output after it has taken all input.
        if input.is_empty() && given < output.len() {
            return Ok(false);
        }
        if taken == 0 && given == 0 {
            return Err(broken("no progress".to_owned()));
        }
    }
}

fn entry(record: &ZipFileHeaderRecord<'_>) -> Result<ZipEntry, ZipReadError> {
    let path = path(record);
    if record.flags().is_encrypted() {
        return Err(ZipReadError::Encrypted(path));
    }
    let deflated = match record.compression_method() {
        CompressionMethod::STORE => false,
        CompressionMethod::DEFLATE => true,
        other => return Err(ZipReadError::Method { path, method: other.as_u16() }),
    };
    // The upper half of the attributes is a Unix mode, whatever system the header names: some writers
    // on Windows set it, and others leave it zero.
    let mode = record.external_attributes() >> 16;
    let kind = match mode & S_IFMT {
        S_IFLNK => EntryKind::Symlink,
        S_IFDIR => EntryKind::Folder,
        0 | S_IFREG if record.is_dir() => EntryKind::Folder,
        0 | S_IFREG => EntryKind::File,
        _ => return Err(ZipReadError::Kind(path)),
    };
    let mode = Some(mode & 0o7777).filter(|mode| mode & 0o777 != 0);
    Ok(ZipEntry {
        kind,
        mode,
        size: record.uncompressed_size_hint(),
        compressed: record.compressed_size_hint(),
        crc: record.crc32(),
        deflated,
        place: record.wayfinder(),
        path,
    })
}

/// The name, in UTF-8 if it is valid UTF-8, else in the format's old code page.
fn path(record: &ZipFileHeaderRecord<'_>) -> String {
    const CP437: &str = "ÇüéâäàåçêëèïîìÄÅÉæÆôöòûùÿÖÜ¢£¥₧ƒáíóúñÑªº¿⌐¬½¼¡«»\
                         ░▒▓│┤╡╢╖╕╣║╗╝╜╛┐└┴┬├─┼╞╟╚╔╩╦╠═╬╧╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀\
                         αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■\u{a0}";
    let raw = record.file_path();
    let bytes: &[u8] = raw.as_ref();
    if let Ok(text) = std::str::from_utf8(bytes) {
        return text.to_owned();
    }
    let table: Vec<char> = CP437.chars().collect();
    bytes
        .iter()
        .map(|&b| if b < 128 { char::from(b) } else { table[usize::from(b) - 128] })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write as _;

    use proptest::prelude::*;

    use super::*;

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    fn read_all(zip: &ZipReader) -> Result<Vec<(ZipEntry, Vec<u8>)>, ZipReadError> {
        let mut entries = vec![];
        zip.entries(|entry| {
            entries.push(entry);
            Ok::<_, ZipReadError>(())
        })?;
        let mut buffers = ReadBuffers::default();
        entries
            .into_iter()
            .map(|entry| {
                let mut content = vec![];
                zip.read_content(&entry, &mut buffers, |bytes| content.write_all(bytes))?;
                Ok((entry, content))
            })
            .collect()
    }

    #[test]
    fn archive_of_another_writer_is_read_with_modes_and_content() {
        let mut writer = ::zip::ZipWriter::new(io::Cursor::new(vec![]));
        let options = ::zip::write::SimpleFileOptions::default();
        let text = b"some text ".repeat(200_000);
        writer.start_file("bin/tool", options.unix_permissions(0o755)).unwrap();
        writer.write_all(&text).unwrap();
        let stored = options.compression_method(::zip::CompressionMethod::Stored);
        writer.start_file("öl.txt", stored.large_file(true)).unwrap();
        writer.write_all(b"raw").unwrap();
        writer.add_directory("empty", options).unwrap();
        writer.add_symlink("link", "bin/tool", options).unwrap();
        let zip = ZipReader::open(file(&writer.finish().unwrap().into_inner())).unwrap();
        let all = read_all(&zip).unwrap();
        assert_eq!(all.len(), 4);
        assert_eq!((all[0].0.path.as_str(), all[0].0.mode), ("bin/tool", Some(0o755)));
        assert!(all[0].1 == text && all[0].0.compressed < all[0].0.size);
        assert_eq!((all[1].0.path.as_str(), all[1].1.as_slice()), ("öl.txt", &b"raw"[..]));
        assert_eq!(all[2].0.kind, EntryKind::Folder);
        assert_eq!((all[3].0.kind, all[3].1.as_slice()), (EntryKind::Symlink, &b"bin/tool"[..]));
    }

    #[test]
    fn empty_archive_has_no_entries() {
        let writer = ::zip::ZipWriter::new(io::Cursor::new(vec![]));
        let zip = ZipReader::open(file(&writer.finish().unwrap().into_inner())).unwrap();
        assert!(read_all(&zip).unwrap().is_empty());
    }

    #[test]
    fn content_with_a_wrong_crc_is_an_error() {
        let mut writer = ::zip::ZipWriter::new(io::Cursor::new(vec![]));
        let options = ::zip::write::SimpleFileOptions::default();
        let stored = options.compression_method(::zip::CompressionMethod::Stored);
        writer.start_file("a", stored).unwrap();
        writer.write_all(b"content").unwrap();
        let mut bytes = writer.finish().unwrap().into_inner();
        let at = bytes.windows(7).position(|w| w == b"content").unwrap();
        bytes[at] ^= 1;
        let error = read_all(&ZipReader::open(file(&bytes)).unwrap()).unwrap_err();
        assert!(matches!(error, ZipReadError::Mismatch(_)), "{error}");
    }

    #[test]
    fn name_that_is_not_utf_8_is_read_in_code_page_437() {
        let mut writer = rawzip::ZipArchiveWriter::new(vec![]);
        let name = rawzip::path::EntryPath::verbatim(&b"\x81ber.txt"[..]);
        let (entry, config) = writer.new_file(name).start().unwrap();
        let (entry, descriptor) = config.wrap(entry).finish().unwrap();
        entry.finish(descriptor).unwrap();
        let zip = ZipReader::open(file(&writer.finish().unwrap())).unwrap();
        assert_eq!(read_all(&zip).unwrap()[0].0.path, "über.txt");
    }

    proptest! {
        #[test]
        fn any_bytes_neither_panic_nor_hang(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            if let Ok(zip) = ZipReader::open(file(&bytes)) {
                let _ = read_all(&zip);
            }
        }

        #[test]
        fn a_damaged_archive_neither_panics_nor_hangs(
            content in prop::collection::vec(any::<u8>(), 0..600),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut writer = ::zip::ZipWriter::new(io::Cursor::new(vec![]));
            let options = ::zip::write::SimpleFileOptions::default();
            for name in ["a", "b/c"] {
                writer.start_file(name, options).unwrap();
                writer.write_all(&content).unwrap();
            }
            let mut bytes = writer.finish().unwrap().into_inner();
            for (at, value) in damage {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            let skip = cut.index(bytes.len()) % 8;
            if let Ok(zip) = ZipReader::open(file(&bytes[skip..])) {
                let _ = read_all(&zip);
            }
        }
    }
}
