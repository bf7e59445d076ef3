//! A blob in either store, opened range by range.

use crcr_github::http::RetryPolicy;

use crate::byte_range::{ByteRange, OpenError};
use crate::store::github::download::UrlBlob;
use crate::store::s3::download::S3Blob;

pub enum RemoteBlob {
    S3(S3Blob),
    /// In GitHub's storage, behind signed URLs.
    Url(UrlBlob),
}

impl RemoteBlob {
    /// How long an outage of its store may last.
    pub(crate) fn retry(&self) -> RetryPolicy {
        match self {
            Self::S3(blob) => blob.store.retry(),
            Self::Url(blob) => blob.retry(),
        }
    }

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
