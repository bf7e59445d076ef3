//! An open range of a blob of either store.

use std::time::Duration;

use aws_sdk_s3::primitives::ByteStream;
use bytes::Bytes;

use crate::digest::Digest;
use crate::store;

/// An open range of a blob. Everything that the server says about it is untrusted.
#[derive(Default)]
pub(crate) struct ByteRange {
    /// Where the body starts in the blob; 0 if the server ignores ranges.
    pub(crate) start: u64,
    /// Whether the body is the whole blob, in spite of the requested range.
    pub(crate) whole: bool,
    /// The length of the whole blob in bytes.
    pub(crate) total: u64,
    pub(crate) etag: Option<String>,
    pub(crate) content_type: Option<String>,
    /// The server may say `application/octet-stream` of a zip.
    pub(crate) has_vague_type: bool,
    /// The name in `Content-Disposition`, unchecked.
    pub(crate) file_name: Option<String>,
    /// From the object's metadata, as the uploader wrote it.
    pub(crate) digest: Option<Digest>,
    /// Permission bits, from the same metadata.
    pub(crate) mode: Option<u32>,
    pub(crate) body: BlobBody,
    /// Bytes that [`Self::look_ahead`] took from the body and nobody has read yet.
    pub(crate) ahead: Bytes,
}

#[derive(Default)]
pub(crate) enum BlobBody {
    S3(Box<ByteStream>),
    Http(Box<reqwest::Response>),
    #[default]
    Empty,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error("it was replaced while it was read")]
    Changed,
    #[error("{message}")]
    Transient { message: String, retry_after: Option<Duration> },
    #[error(transparent)]
    Store(#[from] store::ArtifactStoreError),
}

/// Whether an `ETag` can be a condition. A weak one, which proxies make of a strong one, never holds in `If-Match`.
pub(crate) fn is_strong(etag: &str) -> bool {
    !etag.starts_with("W/")
}

/// The first byte and the length of the whole in a `Content-Range`, such as `bytes 5-9/100`.
pub(crate) fn start_and_total(content_range: &str) -> Option<(u64, u64)> {
    let (range, total) = content_range.trim().strip_prefix("bytes")?.trim().split_once('/')?;
    Some((range.split('-').next()?.parse().ok()?, total.parse().ok()?))
}

impl ByteRange {
    /// The range of an empty blob, for which servers answer 416 (range not satisfiable).
    pub(crate) fn empty() -> Self {
        Self { whole: true, ..Self::default() }
    }

    /// The first `want` bytes, or fewer if the body ends before.
    pub(crate) async fn look_ahead(&mut self, want: usize) -> &[u8] {
        while self.ahead.len() < want
            && let Ok(Some(bytes)) = self.body.chunk().await
        {
            self.ahead = if self.ahead.is_empty() {
                bytes
            } else {
                [&self.ahead[..], &bytes[..]].concat().into()
            };
        }
        &self.ahead[..self.ahead.len().min(want)]
    }

    /// The next bytes; `None` at the end, which may come early. Errors don't contain the signed URL.
    pub(crate) async fn chunk(&mut self) -> Result<Option<Bytes>, String> {
        if self.ahead.is_empty() {
            self.body.chunk().await
        } else {
            Ok(Some(std::mem::take(&mut self.ahead)))
        }
    }
}

impl BlobBody {
    async fn chunk(&mut self) -> Result<Option<Bytes>, String> {
        match self {
            Self::S3(stream) => stream.try_next().await.map_err(|e| e.to_string()),
            Self::Http(response) => response.chunk().await.map_err(|e| e.without_url().to_string()),
            Self::Empty => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_range_names_the_first_byte_and_the_length() {
        assert_eq!(start_and_total("bytes 5-9/100"), Some((5, 100)));
        for other in ["bytes */100", "bytes 5-9/*", "5-9/100", ""] {
            assert_eq!(start_and_total(other), None, "{other}");
        }
        assert!(is_strong("\"a\"") && !is_strong("W/\"a\""));
    }
}
