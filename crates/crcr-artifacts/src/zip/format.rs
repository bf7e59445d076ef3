//! The records of a zip, according to APPNOTE 6.3.
//!
//! rawzip's writer isn't used: it puts checksum and sizes after the data of every entry, where readers
//! of a stream (such as the official download action) can't find the end of a stored file, and it has
//! no 64-bit sizes before the data. Here small files have their sizes first.
//!
//! <https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT>

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CompressionMethod {
    Stored = 0,
    Deflated = 8,
}

/// A record of the central directory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EntryRecord {
    pub(crate) method: CompressionMethod,
    pub(crate) crc: u32,
    pub(crate) packed: u64,
    pub(crate) size: u64,
    /// The offset of the local header.
    pub(crate) offset: u64,
    /// Whether checksum and sizes follow the data, in a data descriptor.
    pub(crate) has_descriptor: bool,
    pub(crate) mode: Option<u32>,
    /// The data is the target of a symbolic link.
    pub(crate) is_link: bool,
}

/// The type of a file in a Unix mode.
const REGULAR_FILE: u32 = 0o100_000;
const SYMBOLIC_LINK: u32 = 0o120_000;

/// Sizes and offsets from this one on need the 64-bit fields.
const ZIP64_THRESHOLD: u64 = 0xFFFF_FFFF;
/// Deflate may make an entry larger by this much.
const DEFLATE_MARGIN_BYTES: u64 = 16 * 1024 * 1024;
/// 1980-01-01, the first date of the format, so that equal files give equal archives.
const DOS_DATE: u16 = 0x0021;
const UTF8_FLAG: u16 = 1 << 11;
/// Checksum and sizes follow the data.
const DESCRIPTOR_FLAG: u16 = 1 << 3;
/// Version 4.5 of the format has Zip64, version 2.0 has deflate.
const ZIP64_VERSION: u16 = 45;
const PLAIN_VERSION: u16 = 20;
/// The attributes are Unix permissions.
const MADE_BY_UNIX: u16 = 3 << 8;

/// Whether an entry of `size` bytes, packed or not, may need 64-bit sizes.
pub(crate) fn is_large(size: u64) -> bool {
    size >= ZIP64_THRESHOLD - DEFLATE_MARGIN_BYTES
}

impl EntryRecord {
    fn flags(&self) -> u16 {
        UTF8_FLAG | if self.has_descriptor { DESCRIPTOR_FLAG } else { 0 }
    }

    /// Appends the local header, which precedes the data.
    pub(crate) fn put_local(&self, name: &str, out: &mut Vec<u8>) {
        let large = self.has_descriptor && is_large(self.size);
        put32(out, 0x0403_4b50);
        put16(out, if large { ZIP64_VERSION } else { PLAIN_VERSION });
        put16(out, self.flags());
        put16(out, self.method as u16);
        put16(out, 0);
        put16(out, DOS_DATE);
        if self.has_descriptor {
            put32(out, 0);
            let size = if large { ZIP64_THRESHOLD } else { 0 };
            put_capped(out, size);
            put_capped(out, size);
        } else {
            put32(out, self.crc);
            put_capped(out, self.packed);
            put_capped(out, self.size);
        }
        put16(out, name.len() as u16);
        put16(out, if large { 20 } else { 0 });
        out.extend_from_slice(name.as_bytes());
        if large {
            put16(out, 1);
            put16(out, 16);
            put64(out, 0);
            put64(out, 0);
        }
    }

    /// Appends the data descriptor, which follows the data.
    pub(crate) fn put_descriptor(&self, out: &mut Vec<u8>) {
        put32(out, 0x0807_4b50);
        put32(out, self.crc);
        if is_large(self.size) {
            put64(out, self.packed);
            put64(out, self.size);
        } else {
            put_capped(out, self.packed);
            put_capped(out, self.size);
        }
    }

    /// Appends the record of the central directory.
    pub(crate) fn put_central(&self, name: &str, out: &mut Vec<u8>) {
        let mut extra = Vec::new();
        for value in [self.size, self.packed, self.offset] {
            if value >= ZIP64_THRESHOLD {
                put64(&mut extra, value);
            }
        }
        let zip64 = !extra.is_empty() || (self.has_descriptor && is_large(self.size));
        put32(out, 0x0201_4b50);
        put16(out, MADE_BY_UNIX | if zip64 { ZIP64_VERSION } else { PLAIN_VERSION });
        put16(out, if zip64 { ZIP64_VERSION } else { PLAIN_VERSION });
        put16(out, self.flags());
        put16(out, self.method as u16);
        put16(out, 0);
        put16(out, DOS_DATE);
        put32(out, self.crc);
        put_capped(out, self.packed);
        put_capped(out, self.size);
        put16(out, name.len() as u16);
        put16(out, if extra.is_empty() { 0 } else { extra.len() as u16 + 4 });
        put16(out, 0);
        put16(out, 0);
        put16(out, 0);
        // The Unix mode is in the upper half.
        let kind = if self.is_link { SYMBOLIC_LINK } else { REGULAR_FILE };
        put32(out, (kind | self.mode.unwrap_or(0o644)) << 16);
        put_capped(out, self.offset);
        out.extend_from_slice(name.as_bytes());
        if !extra.is_empty() {
            put16(out, 1);
            put16(out, extra.len() as u16);
            out.extend_from_slice(&extra);
        }
    }
}

/// Appends the end of the archive, for a directory of `entries` and `size` bytes at `offset`.
pub(crate) fn put_end(entries: u64, size: u64, offset: u64, out: &mut Vec<u8>) {
    if entries >= 0xFFFF || size >= ZIP64_THRESHOLD || offset >= ZIP64_THRESHOLD {
        put32(out, 0x0606_4b50);
        put64(out, 44);
        put16(out, MADE_BY_UNIX | ZIP64_VERSION);
        put16(out, ZIP64_VERSION);
        put32(out, 0);
        put32(out, 0);
        put64(out, entries);
        put64(out, entries);
        put64(out, size);
        put64(out, offset);
        put32(out, 0x0706_4b50);
        put32(out, 0);
        put64(out, offset + size);
        put32(out, 1);
    }
    put32(out, 0x0605_4b50);
    put16(out, 0);
    put16(out, 0);
    let entries = entries.min(0xFFFF) as u16;
    put16(out, entries);
    put16(out, entries);
    put_capped(out, size);
    put_capped(out, offset);
    put16(out, 0);
}

fn put16(out: &mut Vec<u8>, value: u16) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// Writes a 32-bit field; larger values are in a 64-bit field elsewhere.
fn put_capped(out: &mut Vec<u8>, value: u64) {
    put32(out, value.min(ZIP64_THRESHOLD) as u32);
}
