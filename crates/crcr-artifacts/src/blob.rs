//! A stored blob of either store, opened range by range.

use std::time::Duration;

use aws_sdk_s3::primitives::ByteStream;
use bytes::Bytes;

use crate::digest::Digest;
use crate::store;
use crate::store::github::download::UrlBlob;
use crate::store::s3::download::S3Blob;

pub enum RemoteBlob {
    /// An object of a bucket.
    S3(S3Blob),
    /// A blob behind signed URLs.
    Url(UrlBlob),
}

/// An open range of a blob. What the server says about the blob is untrusted.
pub(crate) struct ByteRange {
    /// Where the body starts in the blob; a server that knows no ranges starts at 0.
    pub(crate) start: u64,
    /// Whether the body is the whole blob, whatever was asked for.
    pub(crate) whole: bool,
    /// The blob's length in bytes.
    pub(crate) total: u64,
    /// The version of the blob.
    pub(crate) etag: Option<String>,
    /// The type of the content.
    pub(crate) content_type: Option<String>,
    /// The name of the file, where it is stored as it is.
    pub(crate) file_name: Option<String>,
    /// The digest that the uploader noted beside the object.
    pub(crate) sha256: Option<Digest>,
    /// The permission bits that the uploader noted beside the object.
    pub(crate) mode: Option<u32>,
    /// The bytes.
    pub(crate) body: BlobBody,
    /// Bytes that were taken from the body to be looked at, before those that it still has.
    pub(crate) ahead: Bytes,
}

/// The bytes of an open range.
pub(crate) enum BlobBody {
    S3(Box<ByteStream>),
    Http(Box<reqwest::Response>),
    Empty,
}

/// Why a range isn't open.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    /// The blob isn't the version that was asked for.
    #[error("it was replaced while it was read")]
    Changed,
    #[error("{message}")]
    Transient {
        message: String,
        /// What the server asked to wait.
        retry_after: Option<Duration>,
    },
    #[error(transparent)]
    Store(#[from] store::StoreError),
}

impl ByteRange {
    /// The range of a blob that has no bytes, for which servers answer "not satisfiable".
    pub(crate) fn empty() -> Self {
        Self {
            start: 0,
            whole: true,
            total: 0,
            etag: None,
            content_type: None,
            file_name: None,
            sha256: None,
            mode: None,
            body: BlobBody::Empty,
            ahead: Bytes::new(),
        }
    }

    /// The first `want` bytes, or fewer where there are no more or the answer breaks off.
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

    /// The next bytes; `None` at the end, which may come early. The text of an error holds no URL.
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

impl RemoteBlob {
    /// Opens the bytes from `start` up to `end` (exclusive), of the version `etag` if it is given.
    pub(crate) async fn open(
        &self,
        start: u64,
        end: u64,
        etag: Option<&str>,
    ) -> Result<ByteRange, OpenError> {
        match self {
            Self::S3(blob) => blob.open(start, end, etag).await,
            Self::Url(blob) => blob.open(start, end, etag).await,
        }
    }
}
