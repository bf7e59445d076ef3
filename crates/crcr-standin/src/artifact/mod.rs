//! The artifact service (v4) and its blob storage.
//!
//! [`twirp`] is what the runtime token opens, [`rest`] what a `GitHub` token opens from other runs,
//! [`azure`] where the bytes go. `tests/peers` checks all of it with GitHub's own client.

mod azure;
mod blob;
mod rest;
mod sas;
#[cfg(test)]
mod tests;
mod twirp;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use jiff::Timestamp;

use crate::State;
use blob::Blobs;

/// An artifact, finished or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artifact {
    /// The id that users see.
    pub id: u64,
    /// The run that it belongs to.
    pub run_id: u64,
    /// The service's own id of the job that created it.
    pub job_backend_id: String,
    /// Its name, unique in its run.
    pub name: String,
    /// Bytes of the blob, once finalized.
    pub size: u64,
    /// `sha256:<hex>` of the blob, once finalized by a client that told it.
    pub digest: Option<String>,
    /// The media type that Create named.
    pub mime_type: String,
    pub created: Timestamp,
    pub expires: Timestamp,
    /// Whether it is finished: only then it is listed.
    pub finalized: bool,
    blob: String,
}

impl Artifact {
    /// The file name that a download suggests.
    fn file_name(&self) -> String {
        let zip = self.mime_type == "application/zip";
        if zip { format!("{}.zip", self.name) } else { self.name.clone() }
    }
}

#[derive(Debug)]
pub struct Artifacts {
    records: Mutex<Vec<Artifact>>,
    blobs: Blobs,
    signer: sas::Signer,
    quota_spent: AtomicBool,
}

impl Artifacts {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            records: Mutex::default(),
            blobs: Blobs::new()?,
            signer: sas::Signer::new(),
            quota_spent: AtomicBool::new(false),
        })
    }

    /// Every artifact, unfinished ones included, in the order of Create.
    pub fn all(&self) -> Vec<Artifact> {
        self.lock().clone()
    }

    /// The bytes of an artifact, when its blob is there.
    pub fn bytes(&self, id: u64) -> Option<Vec<u8>> {
        let blob = self.lock().iter().find(|artifact| artifact.id == id)?.blob.clone();
        self.blobs.get(&blob)?.bytes().ok()
    }

    /// Lets `change` alter an artifact, so that the service lies about it; false when there is
    /// none with this id.
    pub fn alter(&self, id: u64, change: impl FnOnce(&mut Artifact)) -> bool {
        let mut records = self.lock();
        let found = records.iter_mut().find(|artifact| artifact.id == id);
        found.map(change).is_some()
    }

    /// From now on Create fails, or works again: the account's storage is used up.
    pub fn spend_quota(&self, spent: bool) {
        self.quota_spent.store(spent, Ordering::SeqCst);
    }

    /// From now on bodies of uploads are counted and dropped, for benchmarks: Finalize compares
    /// the size only, and nothing can be downloaded.
    pub fn drop_bodies(&self) {
        self.blobs.drop_bodies();
    }

    /// Bytes of blobs and staged blocks on disk.
    pub fn stored_bytes(&self) -> u64 {
        self.blobs.stored_bytes()
    }

    /// Bytes of blobs and blocks that have arrived, those of broken requests included.
    pub fn received_bytes(&self) -> u64 {
        self.blobs.received_bytes()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Artifact>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn routes() -> Router<Arc<State>> {
    twirp::routes().merge(rest::routes()).merge(azure::routes())
}
