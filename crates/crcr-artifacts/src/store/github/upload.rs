//! Stores an artifact at GitHub: reserve the name, upload the blocks, commit them, finalize.
//!
//! Blocks: <https://learn.microsoft.com/en-us/rest/api/storageservices/put-block>

use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use crcr_github::artifact::{Artifact, ArtifactServer, ArtifactServiceError, UploadTarget};
use crcr_github::http::{self, RetryPolicy, UploadClient};
use jiff::{SignedDuration, Timestamp};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{RequestBuilder, Response, StatusCode};
use secrecy::{ExposeSecret as _, SecretString};
use tokio::sync::watch;

use super::download::is_vague_type;
use super::{GitHubStore, STORE};
use crate::blocks::{BlobBlocks, BlobSourceError, FinishedBlob};
use crate::collect::FileEntry;
use crate::digest::{Digest, DigestAlgorithm, DigestHasher};
use crate::locator::{ARTIFACT_PREFIX, ArchiveFormat, Locator, MAX_BYTES};
use crate::source::{StoredArtifact, UploadSource, content_type};
use crate::store::send::{self, BlobStart, BlockPacing};
use crate::store::{
    ArtifactStoreError, MAX_REPLACED, OTHER_STORE_WAIT, SLOW_CONNECTION, after_failure,
    with_other_store,
};

/// Small, so that many blocks are sent in parallel when latency is high.
const BLOCK_BYTES: usize = 4 * 1024 * 1024;
/// Azure's limit for one blob.
const MAX_BLOCKS: u64 = 50_000;

/// Blocks that are sent at a time, as long as none times out; the buffers allow no more.
const PARALLEL_BLOCKS: usize = 16;

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
    pub async fn put(&self, source: &UploadSource) -> Result<StoredArtifact, ArtifactStoreError> {
        self.refuse_to_replace(source).await?;
        let mut replaced = 0;
        loop {
            match self.put_once(source, is_raw(source)).await {
                // Two uploads with `overwrite` delete each other's. One after the other ends whole.
                Err(PutError::Replaced) if source.overwrite && replaced < MAX_REPLACED => {
                    replaced += 1;
                }
                Err(PutError::Replaced) => {
                    let message =
                        format!("another upload has replaced `{}` by `overwrite`", source.name);
                    return Err(ArtifactStoreError::Conflict { store: STORE, message });
                }
                // This server has zips only.
                Err(PutError::OnlyZips) => {
                    let stored = self.put_once(source, false).await;
                    return stored.map_err(|error| error.into_store_error(&source.name));
                }
                Err(PutError::Store(error)) => return Err(error),
                Ok(stored) => return Ok(stored),
            }
        }
    }

    /// Deletes what the run has stored here under this name.
    pub(crate) async fn delete_replaced(&self, name: &str) -> Result<(), ArtifactStoreError> {
        // The artifact is stored elsewhere, so this isn't the last resort.
        let retry = self.service().retry();
        let retry = retry.within(retry.total.min(RetryPolicy::CALL.total));
        let service = self.service().clone().with_retry(retry);
        let list = match service.list(Some(name)).await {
            Err(error) if service.is_missing(&error) => return Ok(()),
            list => list.map_err(|error| self.error(error, name))?,
        };
        for artifact in list {
            match service.delete(&artifact.ids, name).await {
                Ok(()) | Err(ArtifactServiceError::NotFound) => {}
                Err(error) => return Err(self.error(error, name)),
            }
        }
        Ok(())
    }

    /// For an upload to the other store: fails if the run has an artifact of this name here, unless its bytes are the
    /// same. A list that can't be had says nothing.
    pub(crate) async fn refuse_another_copy(
        &self,
        source: &UploadSource,
    ) -> Result<(), ArtifactStoreError> {
        let service = self.service().clone().with_retry(with_other_store(self.service().retry()));
        let list = tokio::time::timeout(OTHER_STORE_WAIT, service.list(Some(&source.name))).await;
        let list = list.map_or_else(|_| vec![], Result::unwrap_or_default);
        // Forgejo lists unfinished uploads, too, without a size.
        let is_finished =
            |there: &&Artifact| there.size > 0 || service.server() != ArtifactServer::Gitea;
        let Some(there) = list.iter().find(is_finished) else { return Ok(()) };
        let digest: Option<Digest> = there.digest.as_deref().and_then(|text| text.parse().ok());
        if source.archive == ArchiveFormat::Zip && digest.is_some() {
            let made = source.zip_blocks(BLOCK_BYTES).digest().await?;
            if digest == Some(made.digest) {
                return Ok(());
            }
        }
        Err(self.taken(source))
    }

    /// Gitea and Forgejo give a name away again, and what had it is lost. A later attempt of the run may replace what an
    /// earlier one stored, as nothing there tells which attempt that was.
    async fn refuse_to_replace(&self, source: &UploadSource) -> Result<(), ArtifactStoreError> {
        let may_replace =
            source.overwrite || source.job.run_attempt > 1 || self.marker(source).exists();
        if self.service().server() != ArtifactServer::Gitea || may_replace {
            return Ok(());
        }
        let list = self.service().list(Some(&source.name)).await;
        let list = list.map_err(|error| self.error(error, &source.name))?;
        // Forgejo lists unfinished uploads, too, without a size.
        match list.iter().any(|artifact| artifact.size > 0) {
            true => Err(self.taken(source)),
            false => Ok(()),
        }
    }

    fn taken(&self, source: &UploadSource) -> ArtifactStoreError {
        let message = format!("the run has an artifact `{}`", source.name);
        ArtifactStoreError::Conflict { store: STORE, message }
    }

    async fn put_once(&self, source: &UploadSource, raw: bool) -> Result<StoredArtifact, PutError> {
        let archive = if raw { ArchiveFormat::None } else { ArchiveFormat::Zip };
        let size = send::block_size(BLOCK_BYTES, source.size_limit(), MAX_BLOCKS);
        let open = || match source.entries.as_slice() {
            [only] if raw => source.file_blocks(only, size, DigestAlgorithm::Sha256),
            _ => source.zip_blocks(size),
        };
        let mime = match raw {
            true => content_type(&source.entries[0].path),
            false => ZIP.to_owned(),
        };
        let (id, made, already_stored) = match self.reserve_name(source, &mime, &open).await? {
            Reservation::New(target, blocks) => {
                let stored = self.upload_blob(source, &target, &mime, blocks).await;
                let (id, made) = self.delete_on_error(source, stored).await?;
                if target.is_on_service() && raw && !self.is_kept_as(&source.name, &mime).await? {
                    self.delete_own(&source.name).await?;
                    return Err(PutError::OnlyZips);
                }
                (id, made, false)
            }
            Reservation::Stored(id, made) => (id, made, true),
        };
        let digests = match raw {
            true => source.digests().await.map_err(ArtifactStoreError::from)?,
            false => made.files.clone(),
        };
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
    ) -> Result<(), ArtifactStoreError> {
        const FILE: &str = "locator.json";
        let unwritten = |source| BlobSourceError::Read { path: PathBuf::from(FILE), source };
        let folder = tempfile::tempdir().map_err(unwritten)?;
        let json = locator.to_json(MAX_BYTES);
        std::fs::write(folder.path().join(FILE), &json).map_err(unwritten)?;
        let (path, size) = (FILE.to_owned(), json.len() as u64);
        let entry = FileEntry { path, size, mode: Some(0o644), link: None };
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

    /// Reserves the name while the blob is produced.
    ///
    /// A finished artifact is deleted only with `overwrite`. The service lists only finished ones, so
    /// a name that is taken but not listed belongs to an upload that is under way: maybe our own, if
    /// the answer to Create was an error. Deleting by our own job's id tells.
    async fn reserve_name(
        &self,
        source: &UploadSource,
        mime: &str,
        open: &impl Fn() -> BlobBlocks,
    ) -> Result<Reservation, PutError> {
        let marker = self.marker(source);
        let mut maybe_by_us = marker.exists();
        marker.write();
        let mut blocks = Some(open());
        let mut others = self.service().retry().start();
        let reserved = loop {
            match self.create(&source.name, source.retention_at_github(), mime).await {
                Ok(target)
                    if target.is_on_service()
                        && mime != ZIP
                        && (!target.has_mime_type || is_vague_type(mime)) =>
                {
                    let _ = self.service().delete_own(&source.name).await;
                    break Err(PutError::OnlyZips);
                }
                // A raw file must not be taken for a zip.
                Ok(target) if !target.has_mime_type && mime != ZIP => {
                    self.delete_own(&source.name).await?;
                }
                Ok(target) => {
                    return Ok(Reservation::New(target, blocks.take().unwrap_or_else(open)));
                }
                Err(ArtifactServiceError::NameTaken { maybe_by_us: lost }) => {
                    maybe_by_us |= lost;
                    // One blob's buffers are enough.
                    drop(blocks.take());
                    match self.make_way(source, maybe_by_us, open).await {
                        Ok(NameState::Free) => {}
                        Ok(NameState::Stored(id, made)) => break Ok(Reservation::Stored(id, made)),
                        Ok(NameState::Busy) if source.overwrite => {
                            let error = "another upload of this name is under way";
                            if !others.wait_to_retry(&error, None).await {
                                break Err(self.busy(source).into());
                            }
                        }
                        Ok(NameState::Busy) => break Err(self.busy(source).into()),
                        Err(error) => break Err(error.into()),
                    }
                    maybe_by_us = false;
                }
                Err(error) => break Err(self.error(error, &source.name).into()),
            }
            if source.stop.is_cancelled() {
                break Err(ArtifactStoreError::Stopped.into());
            }
        };
        marker.remove();
        reserved
    }

    /// Looks at what holds the name, and deletes it if we may.
    async fn make_way(
        &self,
        source: &UploadSource,
        maybe_by_us: bool,
        open: &impl Fn() -> BlobBlocks,
    ) -> Result<NameState, ArtifactStoreError> {
        let list = self.service().list(Some(&source.name)).await;
        let list = list.map_err(|e| self.error(e, &source.name))?;
        let unfinished_is_ours = async || match self.service().delete_own(&source.name).await {
            Ok(()) => Ok(NameState::Free),
            Err(ArtifactServiceError::NotFound) => Ok(NameState::Busy),
            Err(error) => Err(self.error(error, &source.name)),
        };
        // If several attempts have an artifact of the name, the newest one holds it.
        let Some(there) = list.into_iter().max_by_key(|it| (it.created_at, it.database_id)) else {
            if maybe_by_us || source.overwrite {
                return unfinished_is_ours().await;
            }
            return Ok(NameState::Busy);
        };
        let digest: Option<Digest> = there.digest.as_deref().and_then(|text| text.parse().ok());
        if digest.is_some() {
            let made = open().digest().await?;
            if digest == Some(made.digest) {
                return Ok(NameState::Stored(there.database_id, made));
            }
        }
        if maybe_by_us && !source.overwrite {
            // The list may be of an earlier attempt, and our own reservation hold the name.
            if let NameState::Free = unfinished_is_ours().await? {
                return Ok(NameState::Free);
            }
        }
        if !source.overwrite {
            return Err(self.taken(source));
        }
        match self.service().delete(&there.ids, &source.name).await {
            Ok(()) | Err(ArtifactServiceError::NotFound) => Ok(NameState::Free),
            Err(error) => Err(self.error(error, &source.name)),
        }
    }

    fn busy(&self, source: &UploadSource) -> ArtifactStoreError {
        let message = format!("another upload of `{}` has begun in this run", source.name);
        ArtifactStoreError::Conflict { store: STORE, message }
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
    ) -> Result<UploadTarget, ArtifactServiceError> {
        let expires = retention_days.and_then(|days| {
            Timestamp::now().checked_add(SignedDuration::from_hours(i64::from(days) * 24)).ok()
        });
        let target = self.service().create(name, expires, mime).await?;
        self.mask_signature(&target.url);
        Ok(target)
    }

    /// Deletes what this job has stored under this name.
    pub(crate) async fn delete_own(&self, name: &str) -> Result<(), ArtifactStoreError> {
        match self.service().delete_own(name).await {
            Ok(()) | Err(ArtifactServiceError::NotFound) => Ok(()),
            Err(error) => Err(self.error(error, name)),
        }
    }

    /// Deletes a failed upload and returns its error; an error of the deletion is only logged.
    async fn delete_on_error<T>(
        &self,
        source: &UploadSource,
        result: Result<T, ArtifactStoreError>,
    ) -> Result<T, PutError> {
        let result = match result {
            // Another job has replaced our upload with `overwrite`. Don't delete that job's artifact.
            Err(ArtifactStoreError::NotFound { .. }) => Err(PutError::Replaced),
            Err(error) => {
                let retry = after_failure(Some(&error), self.service().retry());
                let service = self.service().clone().with_retry(retry);
                if let Err(error) = service.delete_own(&source.name).await {
                    tracing::debug!(%error, "the unfinished upload can't be deleted");
                }
                Err(error.into())
            }
            Ok(done) => Ok(done),
        };
        self.marker(source).remove();
        result
    }

    async fn upload_blob(
        &self,
        source: &UploadSource,
        target: &UploadTarget,
        mime: &str,
        blocks: BlobBlocks,
    ) -> Result<(u64, FinishedBlob), ArtifactStoreError> {
        let in_order = target.is_on_service();
        let url = &target.url;
        // Gitea and Forgejo keep the blocks of all uploads of a run in one folder, by their ids alone.
        let upload: u64 = rand::random();
        let made = match send::start_blob(blocks).await? {
            BlobStart::Whole(bytes, made) if !in_order => {
                self.put_blob(target, mime, &bytes).await?;
                made
            }
            BlobStart::Whole(bytes, made) => {
                let pacing = BlockPacing::new(1);
                let id = block_id(upload, 0);
                put_block(self.blob_client(), url, &id, bytes, &pacing).await?;
                self.put_block_list(target, mime, &[id]).await?;
                made
            }
            BlobStart::Long(first, blocks) => {
                let pacing = BlockPacing::new(if in_order { 1 } else { PARALLEL_BLOCKS });
                let (pacing, client) = (Arc::new(pacing), self.blob_client());
                let turn = Arc::new(watch::Sender::new(0));
                let put = |n, block| {
                    let (client, url, pacing) = (client.clone(), url.clone(), pacing.clone());
                    let turn = Arc::clone(&turn);
                    async move {
                        if in_order {
                            drop(turn.subscribe().wait_for(|next| *next == n).await);
                        }
                        let id = block_id(upload, n);
                        put_block(client, &url, &id, block, &pacing).await?;
                        turn.send_replace(n + 1);
                        Ok(id)
                    }
                };
                let (ids, made) = send::send_blocks(first, blocks, &source.stop, put).await?;
                self.put_block_list(target, mime, &ids).await?;
                made
            }
        };
        if source.stop.is_cancelled() {
            return Err(ArtifactStoreError::Stopped);
        }
        let finished = self.finalize(&source.name, &made).await?;
        if in_order {
            self.read_back(&source.name, &made).await?;
        }
        Ok(finished)
    }

    fn blob_client(&self) -> BlobClient {
        BlobClient { http: self.uploads.clone(), retry: self.service().retry() }
    }

    /// A signed URL of the artifact that was just stored.
    async fn own_url(&self, name: &str) -> Result<SecretString, ArtifactStoreError> {
        let list = self.service().list(Some(name)).await.map_err(|e| self.error(e, name))?;
        let own = list.iter().find(|artifact| artifact.ids == *self.service().ids());
        let Some(own) = own.or(list.first()) else {
            return Err(unreliable(format!("`{name}` isn't in the list after it was stored")));
        };
        let url = self.service().signed_url(own).await.map_err(|e| self.error(e, name))?;
        self.mask_signature(&url);
        Ok(url)
    }

    /// Whether the server returns a raw file with its content type. Clients take it for a zip otherwise, or the
    /// reverse.
    async fn is_kept_as(&self, name: &str, mime: &str) -> Result<bool, ArtifactStoreError> {
        let url = self.own_url(name).await?;
        let get = || self.service().http().get(url.expose_secret());
        let answer = http::send(self.service().retry(), get).await.map_err(|e| blob_error(&e))?;
        let kind = answer.headers().get("content-type").and_then(|kind| kind.to_str().ok());
        let essence = |kind: &str| kind.split(';').next().unwrap_or_default().trim().to_owned();
        Ok(kind.is_some_and(|kind| essence(kind).eq_ignore_ascii_case(&essence(mime))))
    }

    /// Reads an artifact from a server that checks neither size nor digest.
    async fn read_back(&self, name: &str, made: &FinishedBlob) -> Result<(), ArtifactStoreError> {
        let url = self.own_url(name).await?;
        let found = http::with_retries(self.service().retry(), || async {
            let mut body = http::send_once(self.service().http().get(url.expose_secret())).await?;
            let (mut hasher, mut size) = (DigestHasher::new(DigestAlgorithm::Sha256), 0_u64);
            while let Some(chunk) = body.chunk().await.map_err(http::HttpError::Transport)? {
                hasher.update(&chunk);
                size += chunk.len() as u64;
                if size > made.size {
                    break;
                }
            }
            Ok((size, hasher.finish()))
        });
        let (size, digest) = found.await.map_err(|e| blob_error(&e))?;
        if (size, digest) == (made.size, made.digest) {
            return Ok(());
        }
        let kept = if size > made.size { "more".to_owned() } else { format!("{size}") };
        Err(unreliable(match size == made.size {
            true => format!("`{name}` comes back with other bytes than were sent"),
            false => format!("of the {} bytes of `{name}` {kept} come back", made.size),
        }))
    }

    async fn put_blob(
        &self,
        target: &UploadTarget,
        mime: &str,
        bytes: &Bytes,
    ) -> Result<(), ArtifactStoreError> {
        let put = || {
            self.uploads
                .put(target.url.expose_secret())
                .header("x-ms-blob-type", "BlockBlob")
                .header("x-ms-blob-content-type", mime)
                .header("content-type", "application/octet-stream")
        };
        self.blob_client().send(put, bytes, None).await
    }

    async fn put_block_list(
        &self,
        target: &UploadTarget,
        mime: &str,
        ids: &[String],
    ) -> Result<(), ArtifactStoreError> {
        let mut xml = String::from("<?xml version=\"1.0\" encoding=\"utf-8\"?><BlockList>");
        for id in ids {
            xml.push_str("<Latest>");
            xml.push_str(id);
            xml.push_str("</Latest>");
        }
        xml.push_str("</BlockList>");
        let url = format!("{}&comp=blocklist", target.url.expose_secret());
        let xml = Bytes::from(xml);
        let put = || {
            let put = self.uploads.put(&url).header("x-ms-blob-content-type", mime);
            put.header("content-type", "application/xml")
        };
        self.blob_client().send(put, &xml, None).await
    }

    /// Finalizes the upload. Before each retry it lists the artifacts, because the last request may
    /// have succeeded although its response was lost.
    async fn finalize(
        &self,
        name: &str,
        made: &FinishedBlob,
    ) -> Result<(u64, FinishedBlob), ArtifactStoreError> {
        let hash = made.digest.to_string();
        let mut tries = self.service().retry().start();
        loop {
            let error = match self.service().finalize(name, made.size, &hash).await {
                Ok(id) => return Ok((id, made.clone())),
                Err(error) => error,
            };
            if !error.is_transient()
                || !tries.wait_to_retry(&error.with_cause(), error.retry_after()).await
            {
                return Err(self.error(error.after(&tries), name));
            }
            let there = self.service().list(Some(name)).await.map_err(|e| self.error(e, name))?;
            // An earlier attempt may have stored the same bytes.
            let ours = |artifact: &&Artifact| {
                artifact.ids == *self.service().ids()
                    && artifact.digest.as_deref() == Some(hash.as_str())
            };
            if let Some(artifact) = there.iter().find(ours) {
                return Ok((artifact.database_id, made.clone()));
            }
        }
    }
}

/// What holds a name that is taken.
enum NameState {
    Free,
    /// An artifact with the same bytes, and its id.
    Stored(u64, FinishedBlob),
    /// Another upload that hasn't finished.
    Busy,
}

enum Reservation {
    New(UploadTarget, BlobBlocks),
    /// The id of an artifact with the same bytes.
    Stored(u64, FinishedBlob),
}

enum PutError {
    /// Another upload has deleted this one.
    Replaced,
    /// The server takes no raw files.
    OnlyZips,
    Store(ArtifactStoreError),
}

impl From<ArtifactStoreError> for PutError {
    fn from(error: ArtifactStoreError) -> Self {
        Self::Store(error)
    }
}

impl From<BlobSourceError> for PutError {
    fn from(error: BlobSourceError) -> Self {
        Self::Store(error.into())
    }
}

impl PutError {
    fn into_store_error(self, name: &str) -> ArtifactStoreError {
        match self {
            Self::Store(error) => error,
            Self::Replaced | Self::OnlyZips => ArtifactStoreError::Refused {
                store: STORE,
                message: format!("the server doesn't keep `{name}`"),
            },
        }
    }
}

const ZIP: &str = "application/zip";
/// Every client takes an artifact of these types for an archive, and unpacks it.
const ARCHIVE_TYPES: [&str; 4] =
    [ZIP, "application/x-zip-compressed", "application/zip-compressed", "zip"];

pub(crate) fn is_archive_type(content_type: &str) -> bool {
    let kind = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    ARCHIVE_TYPES.contains(&kind.as_str())
}

/// Whether an artifact is stored as the file that it is: GitHub does that for one file, whose name is
/// the artifact's name. A zip would be unpacked by who downloads it, so it goes into another zip.
fn is_raw(source: &UploadSource) -> bool {
    source.archive == ArchiveFormat::None
        && matches!(source.entries.as_slice(), [only] if only.path == source.name)
        && !is_archive_type(&content_type(&source.name))
}

/// Sends requests to the blob storage.
#[derive(Clone)]
struct BlobClient {
    http: UploadClient,
    retry: RetryPolicy,
}

impl BlobClient {
    /// Sends `body`, with `pacing` when it is its turn.
    async fn send(
        &self,
        put: impl Fn() -> RequestBuilder,
        body: &Bytes,
        pacing: Option<&BlockPacing>,
    ) -> Result<(), ArtifactStoreError> {
        let own_pacing = BlockPacing::new(1);
        let pacing = pacing.unwrap_or(&own_pacing);
        let mut tries = self.retry.start();
        let mut unclear = RetryPolicy { tries: 4, ..self.retry }.start();
        loop {
            let turn = pacing.turn(body.len()).await;
            let sent = pacing.send(turn, self.http.send(put(), body.clone())).await;
            let Err(error) = stored(sent) else {
                pacing.got_through();
                return Ok(());
            };
            tries.server_was_alive(pacing.alive_at());
            let again = match is_unclear(&error) {
                true => unclear.wait_to_retry(&error, None).await,
                false => {
                    error.is_transient() && tries.wait_to_retry(&error, error.retry_after()).await
                }
            };
            if !again {
                return Err(blob_error(&error.after(&tries)));
            }
        }
    }
}

/// Whether a refusal may be of something in between. Azure numbers each of its answers, but servers that imitate
/// GitHub's don't, so it is sent again only some times.
fn is_unclear(error: &http::HttpError) -> bool {
    let http::HttpError::Status { status, headers, .. } = error.last() else { return false };
    let status = status.as_u16();
    matches!(status, 403 | 405..=499)
        && !matches!(status, 407 | 413)
        && !error.is_transient()
        && !headers.contains_key("x-ms-request-id")
}

/// Whether the storage has taken what was sent. It answers 201 then; any other success, and any web page, is of
/// something in between.
fn stored(answer: Result<Response, http::HttpError>) -> Result<(), http::HttpError> {
    let response = answer.map_err(http::HttpError::unless_page_or_redirect)?;
    match response.status() {
        StatusCode::CREATED => Ok(()),
        status => Err(http::HttpError::Intermediary { status, body: Bytes::new() }),
    }
}

/// The id of block `n`. All ids of a blob must have the same length.
fn block_id(upload: u64, n: usize) -> String {
    STANDARD.encode(format!("crcr-{upload:016x}-{n:08}"))
}

async fn put_block(
    client: BlobClient,
    url: &SecretString,
    id: &str,
    bytes: Bytes,
    pacing: &BlockPacing,
) -> Result<(), ArtifactStoreError> {
    let encoded = utf8_percent_encode(id, NON_ALPHANUMERIC);
    let url = format!("{}&comp=block&blockid={encoded}", url.expose_secret());
    let put = || client.http.put(&url).header("content-type", "application/octet-stream");
    client.send(put, &bytes, Some(pacing)).await
}

/// An error of a server that doesn't keep what it was sent.
fn unreliable(message: String) -> ArtifactStoreError {
    let message =
        format!("{message}; this server isn't GitHub's, and its artifacts can't be relied on");
    ArtifactStoreError::Refused { store: STORE, message }
}

fn blob_error(error: &http::HttpError) -> ArtifactStoreError {
    let message = error.to_string();
    match error.status().map(|status| status.as_u16()) {
        Some(_) if error.is_transient() => {
            ArtifactStoreError::Unreachable { store: STORE, message }
        }
        None if error.is_timeout() => ArtifactStoreError::Unreachable {
            store: STORE,
            message: format!("{message}; {SLOW_CONNECTION}"),
        },
        Some(401 | 403) => ArtifactStoreError::Denied {
            store: STORE,
            message: format!("{message}; a URL for an upload lives about an hour"),
        },
        Some(404) => {
            ArtifactStoreError::NotFound { store: STORE, what: "such unfinished upload".to_owned() }
        }
        // Forgejo says so.
        Some(413) if message.contains("Quota") => {
            ArtifactStoreError::Quota { store: STORE, message }
        }
        None | Some(500..) => ArtifactStoreError::Unreachable { store: STORE, message },
        Some(_) => ArtifactStoreError::Refused { store: STORE, message },
    }
}
