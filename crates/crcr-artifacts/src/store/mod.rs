//! The two stores of artifacts, S3 and GitHub.

pub mod github;
pub mod s3;
mod send;

use std::time::Duration;

use crcr_github::http::RetryPolicy;

/// How often an upload with `overwrite` begins again after another one has replaced it.
pub(crate) const MAX_REPLACED: usize = 20;
/// How long an upload to one store waits for what the other one says about its name.
const OTHER_STORE_WAIT: Duration = Duration::from_secs(5);
/// What to do about time-outs, for messages.
const SLOW_CONNECTION: &str = "on a slow connection give each request more time by the environment \
                               variable `CRCR_READ_TIMEOUT`, in seconds";

/// An error of a store. Its text never contains a secret.
#[derive(Debug, thiserror::Error)]
pub enum ArtifactStoreError {
    /// Missing, expired or insufficient credentials.
    #[error("{store} refused: {message}")]
    Denied { store: &'static str, message: String },
    #[error("the bucket `{0}` doesn't exist")]
    MissingBucket(String),
    #[error("the bucket `{bucket}` is in {}, not in `{requested}`", quoted(.actual.as_deref()))]
    WrongRegion {
        bucket: String,
        requested: String,
        /// The bucket's own region, if the server names it.
        actual: Option<String>,
    },
    #[error("{store} has no {what}")]
    NotFound {
        store: &'static str,
        /// A key in backticks, or a description.
        what: String,
    },
    /// It was there, and is kept no longer.
    #[error("{what} has expired")]
    Expired { what: String },
    /// No response after all tries, or only 429 and 5xx.
    #[error("{store} can't be reached: {message}")]
    Unreachable { store: &'static str, message: String },
    /// Another artifact has the name, and we may not replace it.
    #[error("{store} has another artifact in this place: {message}")]
    Conflict { store: &'static str, message: String },
    #[error("{store} has no storage left: {message}")]
    Quota { store: &'static str, message: String },
    #[error("{store} refused: {message}")]
    Refused { store: &'static str, message: String },
    #[error(transparent)]
    Source(#[from] crate::blocks::BlobSourceError),
    /// The job was cancelled.
    #[error("the upload was stopped")]
    Stopped,
}

/// How patient an upload is with the store that it doesn't go to.
fn with_other_store(retry: RetryPolicy) -> RetryPolicy {
    RetryPolicy { tries: 3, ..retry.within(retry.total.min(OTHER_STORE_WAIT)) }
}

/// How patient a clean-up is after a failed upload: a store that couldn't be reached is asked once.
fn after_failure(error: Option<&ArtifactStoreError>, retry: RetryPolicy) -> RetryPolicy {
    match error {
        Some(ArtifactStoreError::Unreachable { .. }) => RetryPolicy::ONCE,
        _ => retry,
    }
}

fn quoted(region: Option<&str>) -> String {
    region.map_or_else(|| "another region".to_owned(), |region| format!("`{region}`"))
}
