//! The artifact service (v4) and its blob storage.
//!
//! [`twirp`] is the service for the runtime token, [`rest`] the public API for other runs, [`azure`]
//! the storage. The tests in `tests/peers` check them with GitHub's own client.

mod azure;
mod blob;
mod rest;
mod sas;
#[cfg(test)]
mod tests;
mod twirp;

use parking_lot::{Mutex, MutexGuard};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use axum::Router;
use jiff::Timestamp;
use url::Url;

use crate::State;
use blob::BlobStore;

/// An artifact, finished or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artifact {
    /// The id in the REST API.
    pub id: u64,
    pub run_id: u64,
    /// The attempt of the run that uploaded it, from 1.
    pub attempt: u32,
    /// The service's id of the job that uploaded it.
    pub job_backend_id: String,
    /// Unique in its attempt of its run; lists have the artifacts of all attempts.
    pub name: String,
    /// In bytes; 0 until it is finalized.
    pub size: u64,
    /// `sha256:<hex>` of the blob, if the client that finalized it sent one.
    pub digest: Option<String>,
    pub mime_type: String,
    pub created: Timestamp,
    pub expires: Timestamp,
    /// Only finalized artifacts are listed.
    pub finalized: bool,
    blob: String,
}

impl Artifact {
    fn file_name(&self) -> String {
        let zip = self.mime_type == "application/zip";
        if zip { format!("{}.zip", self.name) } else { self.name.clone() }
    }
}

#[derive(Debug)]
pub struct Artifacts {
    records: Mutex<Vec<Artifact>>,
    blobs: BlobStore,
    signer: sas::SasSigner,
    quota_spent: AtomicBool,
    elsewhere: OnceLock<ExternalBlobs>,
}

/// Makes the signed address of a blob in a storage that isn't ours.
struct ExternalBlobs(Box<dyn Fn(&str) -> Url + Send + Sync>);

impl std::fmt::Debug for ExternalBlobs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ExternalBlobs")
    }
}

impl Artifacts {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            records: Mutex::default(),
            blobs: BlobStore::new()?,
            signer: sas::SasSigner::new(),
            quota_spent: AtomicBool::new(false),
            elsewhere: OnceLock::new(),
        })
    }

    /// All artifacts, including unfinished ones, oldest first.
    pub fn all(&self) -> Vec<Artifact> {
        self.lock().clone()
    }

    /// The bytes of an artifact; `None` when its blob was deleted or dropped.
    pub fn bytes(&self, id: u64) -> Option<Vec<u8>> {
        let blob = self.lock().iter().find(|artifact| artifact.id == id)?.blob.clone();
        self.blobs.get(&blob)?.bytes().ok()
    }

    /// Changes what the service says of an artifact. Returns false when there is none with this id.
    pub fn alter(&self, id: u64, change: impl FnOnce(&mut Artifact)) -> bool {
        let mut records = self.lock();
        let found = records.iter_mut().find(|artifact| artifact.id == id);
        found.map(change).is_some()
    }

    /// Whether the account's storage is full, which makes Create fail.
    pub fn spend_quota(&self, spent: bool) {
        self.quota_spent.store(spent, Ordering::SeqCst);
    }

    /// Counts and drops the bodies of uploads from now on, for benchmarks. Finalize compares only the
    /// size, and nothing can be downloaded.
    pub fn drop_bodies(&self) {
        self.blobs.drop_bodies();
    }

    /// Keeps blobs in another storage, whose signed addresses `url` makes of their names. Finalize then
    /// believes the client.
    ///
    /// # Panics
    /// When it is called twice.
    pub fn keep_blobs_at(&self, url: impl Fn(&str) -> Url + Send + Sync + 'static) {
        let set = self.elsewhere.set(ExternalBlobs(Box::new(url)));
        assert!(set.is_ok(), "the blobs are elsewhere already");
    }

    /// The address of a blob in another storage.
    fn external_url(&self, blob: &str) -> Option<Url> {
        self.elsewhere.get().map(|ExternalBlobs(url)| url(blob))
    }

    /// Bytes of blobs and staged blocks on disk.
    pub fn stored_bytes(&self) -> u64 {
        self.blobs.stored_bytes()
    }

    /// Bytes of blobs and blocks that have arrived, including those of broken requests.
    pub fn received_bytes(&self) -> u64 {
        self.blobs.received_bytes()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Artifact>> {
        self.records.lock()
    }
}

pub(crate) fn routes() -> Router<Arc<State>> {
    twirp::routes().merge(rest::routes()).merge(azure::routes())
}
