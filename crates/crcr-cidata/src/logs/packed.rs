//! Logs as they are kept in the object store: compressed, under the name of their job.

use std::io::{self, Cursor, Read, Write as _};

use bytes::Bytes;
use crcr_domain::RepoName;

use super::unpacked;

/// The first part of the keys of logs.
pub(crate) const PREFIX: &str = "logs";
/// In bytes. The longest logs of large projects have a tenth of this.
pub const MAX_LOG: u64 = 1024 * 1024 * 1024;
/// In bytes, compressed. Logs shrink to a tenth, so this is far more than one needs.
pub const MAX_PACKED_LOG: usize = 32 * 1024 * 1024;
const ZSTD_LEVEL: i32 = 3;

/// Where the log of a job is kept. Every part is a name, whatever a repository is called: names that begin
/// with a dot, as `.github` does, begin with `=2e` here.
pub fn log_key(repository: &RepoName, job_id: u64) -> String {
    let repository = repository.key().replace("/.", "/=2e");
    format!("{PREFIX}/{repository}/{job_id}.txt.zst")
}

/// Compresses a log piece by piece.
pub struct LogPacker {
    encoder: zstd::Encoder<'static, Vec<u8>>,
    unpacked: u64,
}

#[derive(Debug, thiserror::Error)]
#[error("the log is larger than {MAX_LOG} bytes, or than {MAX_PACKED_LOG} bytes compressed")]
pub struct LogTooLarge;

impl LogPacker {
    pub fn new() -> io::Result<Self> {
        Ok(Self { encoder: zstd::Encoder::new(vec![], ZSTD_LEVEL)?, unpacked: 0 })
    }

    pub fn add(&mut self, piece: &[u8]) -> Result<(), LogTooLarge> {
        self.unpacked += piece.len() as u64;
        self.encoder.write_all(piece).map_err(|_| LogTooLarge)?;
        let is_too_large = self.unpacked > MAX_LOG || self.encoder.get_ref().len() > MAX_PACKED_LOG;
        if is_too_large { Err(LogTooLarge) } else { Ok(()) }
    }

    pub fn finish(self) -> Result<Bytes, LogTooLarge> {
        let packed = self.encoder.finish().map_err(|_| LogTooLarge)?;
        if packed.len() > MAX_PACKED_LOG { Err(LogTooLarge) } else { Ok(packed.into()) }
    }
}

/// The text of a packed log, at most [`MAX_LOG`] bytes of it.
pub fn unpack_log(packed: Bytes) -> io::Result<impl Read> {
    Ok(unpacked(Cursor::new(packed))?.take(MAX_LOG))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_log_is_read_back_byte_by_byte() {
        let mut packer = LogPacker::new().unwrap();
        let mut text = String::new();
        for line in 0..10_000 {
            let line = format!("line {line}\r\n");
            packer.add(line.as_bytes()).unwrap();
            text.push_str(&line);
        }
        let packed = packer.finish().unwrap();
        assert!(packed.len() < text.len() / 5, "{} of {}", packed.len(), text.len());
        let mut read = String::new();
        unpack_log(packed).unwrap().read_to_string(&mut read).unwrap();
        assert_eq!(read, text);
    }

    #[test]
    fn log_that_hardly_shrinks_is_refused_before_it_fills_the_memory() {
        let mut packer = LogPacker::new().unwrap();
        let mut state = 1_u64;
        let mut added = 0;
        let refused = std::iter::repeat_with(|| {
            let noise: Vec<u8> = std::iter::repeat_with(|| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state.to_le_bytes()
            })
            .take(64 * 1024)
            .flatten()
            .collect();
            added += noise.len();
            packer.add(&noise)
        })
        .find(Result::is_err);
        assert!(refused.is_some() && added < MAX_PACKED_LOG + 2 * 1024 * 1024, "{added}");
    }

    #[test]
    fn key_of_a_log_is_never_a_path_elsewhere() {
        let key = |name: &str| log_key(&RepoName::new(name).unwrap(), 7);
        assert_eq!(key("Acme/Upstream"), "logs/acme/upstream/7.txt.zst");
        assert_eq!(key("acme/.github"), "logs/acme/=2egithub/7.txt.zst");
        assert_eq!(key("acme/..x"), "logs/acme/=2e.x/7.txt.zst");
    }
}
