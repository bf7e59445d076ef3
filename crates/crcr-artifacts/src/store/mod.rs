//! The two stores of artifacts, and what they have in common.

pub mod github;
pub mod s3;
mod send;

/// Why a store didn't do it. The texts hold no secret.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The store knows who asks and says no, or wants credentials.
    #[error("{store} refused: {message}")]
    Denied { store: &'static str, message: String },
    #[error("the bucket `{0}` doesn't exist")]
    MissingBucket(String),
    /// The bucket is in another region than the one that was asked.
    #[error("the bucket `{bucket}` is in {}, not in `{asked}`", quoted(.there.as_deref()))]
    WrongRegion {
        bucket: String,
        /// The region that was asked.
        asked: String,
        /// The bucket's own region, where the server says it.
        there: Option<String>,
    },
    /// There is no such object or artifact.
    #[error("{store} has no {what}")]
    NotFound {
        store: &'static str,
        /// A key in backticks, or words that name a thing.
        what: String,
    },
    /// No answer after all tries, or only 429 and 5xx.
    #[error("{store} can't be reached: {message}")]
    Unreachable {
        store: &'static str,
        /// What the last try met.
        message: String,
    },
    /// Something else holds the name, and it isn't ours to replace.
    #[error("{store} has another artifact in this place: {message}")]
    Conflict { store: &'static str, message: String },
    /// The account's storage is full.
    #[error("{store} has no storage left: {message}")]
    Quota { store: &'static str, message: String },
    #[error("{store} refused: {message}")]
    Refused { store: &'static str, message: String },
    /// The bytes to store can't be made.
    #[error(transparent)]
    Source(#[from] crate::blocks::BlobSourceError),
    /// The upload was stopped from outside.
    #[error("the upload was stopped")]
    Stopped,
}

fn quoted(region: Option<&str>) -> String {
    region.map_or_else(|| "another region".to_owned(), |region| format!("`{region}`"))
}
