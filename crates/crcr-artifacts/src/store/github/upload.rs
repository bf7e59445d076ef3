//! Stores an artifact at GitHub: reserve the name, upload the blocks, commit them, finalize.
//!
//! Blocks: <https://learn.microsoft.com/en-us/rest/api/storageservices/put-block>

use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use crcr_github::artifact::{Artifact, ArtifactServiceError};
use crcr_github::http::{self, RetryPolicy};
use jiff::{SignedDuration, Timestamp};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Client;
use secrecy::{ExposeSecret as _, SecretString};

use super::{GitHubStore, STORE};
use crate::blocks::{BlobBlocks, BlobSourceError, FinishedBlob};
use crate::collect::FileEntry;
use crate::digest::Digest;
use crate::locator::{ARTIFACT_PREFIX, ArchiveFormat, Locator, MAX_BYTES};
use crate::source::{StoredArtifact, UploadSource, content_type};
use crate::store::StoreError;
use crate::store::send::{self, BlobStart};

/// Small, so that many blocks are sent in parallel when latency is high.
const BLOCK_BYTES: usize = 4 * 1024 * 1024;
/// Azure's limit for one blob.
const MAX_BLOCKS: u64 = 50_000;

/// Long enough for slow connections and short outages of the storage.
const PATIENT: RetryPolicy = RetryPolicy { tries: 6, ..RetryPolicy::PATIENT };

/// A file that marks an upload of this job and attempt as begun. It survives a killed process, so that
/// the job's next try recognizes the unfinished upload as its own.
struct UploadMarker(PathBuf);

impl UploadMarker {
    fn exists(&self) -> bool {
        self.0.exists()
    }

    /// Errors are ignored: without the marker, only a retry after a kill fails, with a conflict.
    fn write(&self) {
        let folder = self.0.parent().map_or(Ok(()), std::fs::create_dir_all);
        if let Err(error) = folder.and_then(|()| std::fs::write(&self.0, "")) {
            tracing::debug!(%error, "the marker of the upload can't be written");
        }
    }

    fn remove(&self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl GitHubStore {
    /// Stores an artifact. An upload that fails or is stopped is deleted.
    pub async fn put(&self, source: &UploadSource) -> Result<StoredArtifact, StoreError> {
        // GitHub stores one zip, or one file whose name is the artifact's name.
        let raw = source.archive == ArchiveFormat::None
            && matches!(source.entries.as_slice(), [only] if only.path == source.name);
        let archive = if raw { ArchiveFormat::None } else { ArchiveFormat::Zip };
        let size = send::block_size(BLOCK_BYTES, source.size_limit(), MAX_BLOCKS);
        let open = || match source.entries.as_slice() {
            [only] if raw => source.file_blocks(only, size),
            _ => source.zip_blocks(size),
        };
        let mime = match raw {
            true => content_type(&source.entries[0].path),
            false => "application/zip".to_owned(),
        };
        let (id, made, already_stored) = match self.reserve_name(source, &mime, &open).await? {
            Ok((url, blocks)) => {
                let stored = self.upload_blob(source, &url, &mime, blocks).await;
                let (id, made) = self.delete_on_error(source, stored).await?;
                (id, made, false)
            }
            Err((id, made)) => (id, made, true),
        };
        let digests = if raw { vec![made.digest] } else { made.files.clone() };
        Ok(StoredArtifact {
            digest: made.digest,
            size: made.size,
            files: source.located_files(&digests),
            already_stored,
            tag_refused: false,
            leftover_warning: None,
            artifact_id: Some(id),
            archive,
        })
    }

    /// Stores the locator of an artifact as an artifact of its own. It is a zip, because other clients
    /// expect every artifact to be one.
    pub async fn publish_locator(
        &self,
        locator: &Locator,
        source: &UploadSource,
    ) -> Result<(), StoreError> {
        const FILE: &str = "locator.json";
        let unwritten = |source| BlobSourceError::Read { path: PathBuf::from(FILE), source };
        let folder = tempfile::tempdir().map_err(unwritten)?;
        let json = locator.to_json(MAX_BYTES);
        std::fs::write(folder.path().join(FILE), &json).map_err(unwritten)?;
        let entry = FileEntry { path: FILE.to_owned(), size: json.len() as u64, mode: Some(0o644) };
        let source = UploadSource {
            name: format!("{ARTIFACT_PREFIX}{}", locator.name),
            root: folder.path().to_owned(),
            entries: Arc::new(vec![entry]),
            archive: ArchiveFormat::Zip,
            progress: Arc::new(|_| ()),
            ..source.clone()
        };
        self.put(&source).await.map(drop)
    }

    /// Reserves the name while the blob is produced. The inner error is an existing artifact with the
    /// same bytes.
    ///
    /// An existing artifact is deleted only if this job and attempt created it, or with `overwrite`.
    /// The service lists only finished artifacts, and deletes by name whoever created it, so a name
    /// that is taken but not listed may belong to another job's running upload.
    async fn reserve_name(
        &self,
        source: &UploadSource,
        mime: &str,
        open: &impl Fn() -> BlobBlocks,
    ) -> Result<Result<(SecretString, BlobBlocks), (u64, FinishedBlob)>, StoreError> {
        let create = || self.create(&source.name, source.retention_days, mime);
        let marker = self.marker(source);
        let begun_before = marker.exists();
        marker.write();
        let blocks = open();
        let maybe_by_us = match create().await {
            Ok(url) => return Ok(Ok((url, blocks))),
            Err(ArtifactServiceError::NameTaken { maybe_by_us }) => maybe_by_us || begun_before,
            Err(error) => {
                marker.remove();
                return Err(self.error(error, &source.name));
            }
        };
        // One blob's buffers are enough.
        drop(blocks);
        let list = self.service().list(Some(&source.name)).await;
        let list = list.map_err(|e| self.error(e, &source.name))?;
        if let Some(there) = list.into_iter().next() {
            let digest: Option<Digest> = there.digest.as_deref().and_then(|text| text.parse().ok());
            if digest.is_some() {
                let made = open().digest().await?;
                if digest == Some(made.digest) {
                    marker.remove();
                    return Ok(Err((there.database_id, made)));
                }
            }
            if !source.overwrite {
                marker.remove();
                let message = format!("the run has an artifact `{}`", source.name);
                return Err(StoreError::Conflict { store: STORE, message });
            }
        } else if !maybe_by_us && !source.overwrite {
            marker.remove();
            let message = format!("another upload of `{}` has begun in this run", source.name);
            return Err(StoreError::Conflict { store: STORE, message });
        }
        self.delete(&source.name).await?;
        match create().await {
            Ok(url) => Ok(Ok((url, open()))),
            Err(error) => {
                marker.remove();
                Err(self.error(error, &source.name))
            }
        }
    }

    /// The marker of this run, job and artifact.
    fn marker(&self, source: &UploadSource) -> UploadMarker {
        let ids = self.service().ids();
        let about = format!("{}\n{}\n{}", ids.run, ids.job, source.name);
        UploadMarker(source.marker_folder.join(Digest::of(about.as_bytes()).hex()))
    }

    async fn create(
        &self,
        name: &str,
        retention_days: Option<u32>,
        mime: &str,
    ) -> Result<SecretString, ArtifactServiceError> {
        let expires = retention_days.and_then(|days| {
            Timestamp::now().checked_add(SignedDuration::from_hours(i64::from(days) * 24)).ok()
        });
        let url = self.service().create(name, expires, mime).await?;
        self.mask_signature(&url);
        Ok(url)
    }

    async fn delete(&self, name: &str) -> Result<(), StoreError> {
        match self.service().delete(name).await {
            Ok(()) | Err(ArtifactServiceError::NotFound) => Ok(()),
            Err(error) => Err(self.error(error, name)),
        }
    }

    /// Deletes a failed upload and returns its error; an error of the deletion is only logged.
    async fn delete_on_error<T>(
        &self,
        source: &UploadSource,
        result: Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let result = match result {
            // Another job has replaced our upload with `overwrite`. Don't delete that job's artifact.
            Err(StoreError::NotFound { .. }) => {
                let message =
                    format!("another upload has replaced `{}` by `overwrite`", source.name);
                Err(StoreError::Conflict { store: STORE, message })
            }
            Err(error) => {
                if let Err(error) = self.delete(&source.name).await {
                    tracing::debug!(%error, "the unfinished upload can't be deleted");
                }
                Err(error)
            }
            done => done,
        };
        self.marker(source).remove();
        result
    }

    async fn upload_blob(
        &self,
        source: &UploadSource,
        url: &SecretString,
        mime: &str,
        blocks: BlobBlocks,
    ) -> Result<(u64, FinishedBlob), StoreError> {
        let made = match send::start_blob(blocks).await? {
            BlobStart::Whole(bytes, made) => {
                self.put_blob(url, mime, &bytes).await?;
                made
            }
            BlobStart::Long(first, blocks) => {
                let put =
                    |n, block| put_block(self.service().http().clone(), url.clone(), n, block);
                let (ids, made) = send::send_blocks(first, blocks, &source.stop, put).await?;
                self.put_block_list(url, mime, &ids).await?;
                made
            }
        };
        if source.stop.is_cancelled() {
            return Err(StoreError::Stopped);
        }
        self.finalize(&source.name, &made).await
    }

    async fn put_blob(
        &self,
        url: &SecretString,
        mime: &str,
        bytes: &Bytes,
    ) -> Result<(), StoreError> {
        let put = || {
            self.service()
                .http()
                .put(url.expose_secret())
                .header("x-ms-blob-type", "BlockBlob")
                .header("x-ms-blob-content-type", mime)
                .header("content-type", "application/octet-stream")
                .body(bytes.clone())
        };
        http::send(PATIENT, put).await.map(drop).map_err(|e| blob_error(&e))
    }

    async fn put_block_list(
        &self,
        url: &SecretString,
        mime: &str,
        ids: &[String],
    ) -> Result<(), StoreError> {
        let mut xml = String::from("<?xml version=\"1.0\" encoding=\"utf-8\"?><BlockList>");
        for id in ids {
            xml.push_str("<Latest>");
            xml.push_str(id);
            xml.push_str("</Latest>");
        }
        xml.push_str("</BlockList>");
        let url = format!("{}&comp=blocklist", url.expose_secret());
        let xml = Bytes::from(xml);
        let put = || {
            self.service()
                .http()
                .put(&url)
                .header("x-ms-blob-content-type", mime)
                .header("content-type", "application/xml")
                .body(xml.clone())
        };
        http::send(PATIENT, put).await.map(drop).map_err(|e| blob_error(&e))
    }

    /// Finalizes the upload. Before each retry it lists the artifacts, because the last request may
    /// have succeeded although its response was lost.
    async fn finalize(
        &self,
        name: &str,
        made: &FinishedBlob,
    ) -> Result<(u64, FinishedBlob), StoreError> {
        let hash = made.digest.to_string();
        let mut tries = self.service().retry().start();
        loop {
            let error = match self.service().finalize(name, made.size, &hash).await {
                Ok(id) => return Ok((id, made.clone())),
                Err(error) => error,
            };
            if !error.is_transient() || !tries.wait_to_retry(&error, error.retry_after()).await {
                return Err(self.error(error, name));
            }
            let there = self.service().list(Some(name)).await.map_err(|e| self.error(e, name))?;
            let ours = |artifact: &&Artifact| artifact.digest.as_deref() == Some(hash.as_str());
            if let Some(artifact) = there.iter().find(ours) {
                return Ok((artifact.database_id, made.clone()));
            }
        }
    }
}

/// Uploads block `n` and returns its id. All ids of a blob must have the same length.
async fn put_block(
    client: Client,
    url: SecretString,
    n: usize,
    bytes: Bytes,
) -> Result<String, StoreError> {
    let id = STANDARD.encode(format!("crcr-{n:08}"));
    let encoded = utf8_percent_encode(&id, NON_ALPHANUMERIC);
    let url = format!("{}&comp=block&blockid={encoded}", url.expose_secret());
    let put =
        || client.put(&url).header("content-type", "application/octet-stream").body(bytes.clone());
    http::send(PATIENT, put).await.map_err(|e| blob_error(&e))?;
    Ok(id)
}

fn blob_error(error: &http::HttpError) -> StoreError {
    let message = error.to_string();
    match error.status().map(|status| status.as_u16()) {
        Some(401 | 403) => StoreError::Denied {
            store: STORE,
            message: format!("{message}; a URL for an upload lives about an hour"),
        },
        Some(404) => {
            StoreError::NotFound { store: STORE, what: "the unfinished upload".to_owned() }
        }
        None | Some(408 | 429 | 500..) => StoreError::Unreachable { store: STORE, message },
        Some(_) => StoreError::Refused { store: STORE, message },
    }
}
