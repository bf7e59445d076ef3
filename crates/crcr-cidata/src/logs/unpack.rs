//! Compressed logs.

use std::io::{self, BufReader, Cursor, Read};

use flate2::read::MultiGzDecoder;

/// As a power of two, in bytes: the most memory that a frame of zstd may ask for.
const MAX_ZSTD_WINDOW: u32 = 25;

/// The text of a log that may be compressed with gzip or zstd, which its first bytes tell.
pub fn unpacked<'r>(mut input: impl Read + 'r) -> io::Result<Box<dyn Read + 'r>> {
    let mut start = Vec::new();
    input.by_ref().take(4).read_to_end(&mut start)?;
    let is_gzip = start.starts_with(&[0x1f, 0x8b]);
    let is_zstd = start == [0x28, 0xb5, 0x2f, 0xfd];
    let input = Cursor::new(start).chain(input);
    if is_gzip {
        Ok(Box::new(MultiGzDecoder::new(BufReader::new(input))))
    } else if is_zstd {
        let mut decoder = zstd::Decoder::new(input)?;
        decoder.window_log_max(MAX_ZSTD_WINDOW)?;
        Ok(Box::new(decoder))
    } else {
        Ok(Box::new(input))
    }
}
