//! Stores an artifact in a bucket: one zip, or an object for each file.
//!
//! The locator is written last. It holds the digest, which isn't known yet when a multipart upload
//! begins. Every write is conditional (`If-None-Match`, `If-Match`), so that of two simultaneous
//! uploads one succeeds and the other one gets a conflict. With `overwrite` the other one writes again, object and
//! locator: it has read the locator before it writes the object, so the last locator is of the last object.

mod files;
mod multipart;
mod tidy;

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use crc_fast::CrcAlgorithm;
use url::Url;

use super::refusal::S3Refusal;
use super::wire::{CONDITIONS, PutRequest, TAGS};
use super::{S3Config, S3Store, STORE};
use crate::blocks::{BlobBlocks, FinishedBlob};
use crate::byte_range::is_strong;
use crate::digest::{Digest, DigestAlgorithm, DigestHasher};
use crate::layout::{self, META_ATTEMPT, META_BLAKE3, META_JOB, META_MODE, META_SHA256};
use crate::locator::{ArchiveFormat, Locator, MAX_BYTES, StoredPlace};
use crate::source::{StoredArtifact, UploadSource};
use crate::store::send::{self, BlobStart};
use crate::store::{ArtifactStoreError, MAX_REPLACED, OTHER_STORE_WAIT, with_other_store};

/// Small, so that many parts are sent in parallel when latency is high. A little over the 5 MiB that
/// S3 requires: a proxy that cuts connections after a round number of MiB would cut a part of 5 MiB
/// just before its end.
const PART_BYTES: usize = 5 * 1024 * 1024 + 256 * 1024;
/// S3's limit for one object.
const MAX_PARTS: u64 = 10_000;
/// <https://www.scaleway.com/en/docs/object-storage/api-cli/multipart-uploads/>
const MAX_PARTS_AT_SCALEWAY: u64 = 1000;
const CHECKSUM_HEADER: &str = "x-amz-checksum-crc64nvme";
const PARALLEL_OBJECTS: usize = 64;

pub(crate) struct NewObject<'a> {
    key: String,
    content_type: String,
    mode: Option<u32>,
    source: &'a UploadSource,
}

type RequestHeader = (Cow<'static, str>, String);

impl NewObject<'_> {
    /// How its content is digested.
    fn algorithm(&self) -> DigestAlgorithm {
        match self.source.archive {
            ArchiveFormat::Zip => DigestAlgorithm::Sha256,
            ArchiveFormat::None => DigestAlgorithm::Blake3,
        }
    }

    fn headers(&self, tag: Option<String>) -> Vec<RequestHeader> {
        let mut headers = vec![
            ("content-type".into(), self.content_type.clone()),
            metadata_header(META_ATTEMPT, self.source.job.run_attempt.to_string()),
            metadata_header(META_JOB, self.source.job.label()),
        ];
        headers.extend(self.mode.map(|mode| metadata_header(META_MODE, format!("{mode:o}"))));
        headers.extend(tag.map(|tag| ("x-amz-tagging".into(), tag)));
        headers
    }
}

#[derive(Clone, Copy)]
pub(crate) struct PutOutcome {
    /// The store had the same content.
    already_stored: bool,
    /// The bucket refused the tag `retention-days`.
    tag_refused: bool,
}

impl PutOutcome {
    const ALREADY_STORED: Self = Self { already_stored: true, tag_refused: false };
}

pub(crate) enum WriteCondition {
    /// The key doesn't exist.
    Free,
    /// No condition: we may not read the object, or the server sends no ETag that can be a condition.
    Any,
    /// The object has this ETag.
    Version(String),
}

impl WriteCondition {
    /// That the object is still the one with this ETag.
    fn of(etag: Option<&str>) -> Self {
        let etag = etag.filter(|etag| is_strong(etag));
        etag.map_or(Self::Any, |etag| Self::Version(etag.to_owned()))
    }
}

/// The locator that existed when an upload began.
pub struct ExistingLocator {
    /// For writing the next one in its place.
    condition: WriteCondition,
    /// `None` if there is none that can be read.
    locator: Option<Locator>,
}

impl S3Store {
    /// Stores an artifact below `folder`. The second result is for [`Self::put_locator`]. A failed or
    /// stopped upload leaves nothing unfinished behind.
    pub async fn put(
        &self,
        source: &UploadSource,
        folder: &str,
    ) -> Result<(StoredArtifact, ExistingLocator), ArtifactStoreError> {
        let existing = self.existing_locator(source, folder).await?;
        let before = existing.locator.as_ref();
        // `overwrite` is for the artifact of this name alone, but a fixed prefix may hold the newest run's.
        let is_another =
            |locator: &&Locator| locator.run_id == source.job.run_id && locator.name != source.name;
        if let Some(locator) = before.filter(is_another) {
            let message = format!(
                "`{folder}` has the artifact `{}`, as `s3-prefix` doesn't contain `{{name}}`",
                locator.name
            );
            return Err(ArtifactStoreError::Conflict { store: STORE, message });
        }
        let (is_zip, key) = match source.archive {
            ArchiveFormat::Zip => (true, layout::archive_key(folder)),
            ArchiveFormat::None => (false, format!("{folder}/")),
        };
        // Without an archive only the locator says which job stored the files, so keep another job's.
        let others = before.filter(|locator| !is_of_job(locator, source) && !source.overwrite);
        if !is_zip && let Some(locator) = others {
            return Err(conflict_with_job(locator, folder));
        }
        let ours = before.filter(|locator| {
            locator.run_attempt == source.job.run_attempt && is_of_job(locator, source)
        });
        let at_key = |locator: &&Locator| match &locator.place {
            StoredPlace::S3 { key: there, .. } => *there == key,
            StoredPlace::GitHub { .. } => false,
        };
        let known = ours.filter(at_key).map(|locator| locator.digest);
        if ours.is_some() && known.is_none() && !source.overwrite {
            return Err(conflict(folder));
        }
        let mut stored = if is_zip {
            self.put_zip(source, &key, known).await
        } else {
            self.put_files(source, folder, known).await
        }?;
        if let Some(before) = before.filter(|locator| is_of_job(locator, source)) {
            stored.leftover_warning = self.delete_stale(source, folder, before).await;
        }
        Ok((stored, existing))
    }

    /// Stores the locator in place of the earlier one. Fails with [`ArtifactStoreError::Conflict`] if another
    /// upload has stored its own meanwhile.
    pub async fn put_locator(
        &self,
        source: &UploadSource,
        locator: &Locator,
        folder: &str,
        before: &ExistingLocator,
    ) -> Result<(), ArtifactStoreError> {
        let key = layout::locator_key(folder);
        let bytes = Bytes::from(locator.to_json(MAX_BYTES));
        let digest = Digest::of(&bytes);
        let headers = vec![("content-type".into(), "application/json".to_owned())];
        match self.put_object(&key, headers, &before.condition, bytes, digest).await {
            Ok(()) => Ok(()),
            // It may be ours, if the response to an earlier try was lost.
            Err(refusal) if refusal.is_precondition_failed() => {
                match self.existing_locator(source, folder).await?.locator {
                    Some(there) if is_same_upload(&there, locator) => Ok(()),
                    Some(there) if source.overwrite && there.digest == locator.digest => Ok(()),
                    _ => Err(conflict(&key)),
                }
            }
            Err(refusal) => Err(self.error(refusal, &key)),
        }
    }

    /// For an artifact that is stored elsewhere: fails if another job of the run, or this attempt, has stored other files
    /// under its name in the bucket. A bucket that can't be read says nothing.
    pub(crate) async fn refuse_another_copy(
        config: &S3Config,
        source: &UploadSource,
        folder: &str,
        stored: &StoredArtifact,
    ) -> Result<(), ArtifactStoreError> {
        let config = S3Config { retry: with_other_store(config.retry), ..config.clone() };
        let key = layout::locator_key(folder);
        let read = async { Self::connect(config).await?.read_locator(&key).await };
        let Ok(Ok((Ok(there), _))) = tokio::time::timeout(OTHER_STORE_WAIT, Box::pin(read)).await
        else {
            return Ok(());
        };
        let is_same = there.digest == stored.digest
            || (!there.files.is_empty() && there.files == stored.files);
        let job = &source.job;
        let is_replaced = is_of_job(&there, source) && there.run_attempt < job.run_attempt;
        if (there.run_id, &there.name) != (job.run_id, &source.name) || is_same || is_replaced {
            return Ok(());
        }
        Err(conflict_with_job(&there, folder))
    }

    async fn put_zip(
        &self,
        source: &UploadSource,
        key: &str,
        known: Option<Digest>,
    ) -> Result<StoredArtifact, ArtifactStoreError> {
        let size = send::block_size(PART_BYTES, source.size_limit(), max_parts(self.endpoint()));
        let (key, content_type) = (key.to_owned(), "application/zip".to_owned());
        let object = NewObject { key, content_type, mode: None, source };
        let open = || source.zip_blocks(size);
        let (made, put) = self.put_blob(&object, source.raw_size(), known, open).await?;
        Ok(StoredArtifact {
            digest: made.digest,
            size: made.size,
            files: source.located_files(&made.files),
            already_stored: put.already_stored,
            tag_refused: put.tag_refused,
            leftover_warning: None,
            artifact_id: None,
            archive: ArchiveFormat::Zip,
        })
    }

    /// Stores a blob of about `size` bytes. `known` is the digest of the existing object according to
    /// the locator.
    async fn put_blob(
        &self,
        object: &NewObject<'_>,
        size: u64,
        known: Option<Digest>,
        open: impl Fn() -> BlobBlocks,
    ) -> Result<(FinishedBlob, PutOutcome), ArtifactStoreError> {
        // Another upload of the same key may finish and abort this one. Try again, to compare or to overwrite.
        let mut left = if object.source.overwrite { MAX_REPLACED } else { 1 };
        loop {
            match self.try_blob(object, size, known, &open).await {
                Err(ArtifactStoreError::NotFound { .. }) if left > 0 => left -= 1,
                done => return done,
            }
        }
    }

    async fn try_blob(
        &self,
        object: &NewObject<'_>,
        size: u64,
        known: Option<Digest>,
        open: &impl Fn() -> BlobBlocks,
    ) -> Result<(FinishedBlob, PutOutcome), ArtifactStoreError> {
        // Only a long blob needs this; look while its first blocks are produced.
        let look = || Box::pin(self.existing_object(object, known));
        let (start, looked) = if size > PART_BYTES as u64 {
            tokio::join!(send::start_blob(open()), async { Some(look().await) })
        } else {
            (send::start_blob(open()).await, None)
        };
        match start? {
            BlobStart::Whole(bytes, made) => {
                let put = self.put_whole(object, known, &bytes, made.digest).await?;
                Ok((made, put))
            }
            BlobStart::Long(first, blocks) => {
                let looked = match looked {
                    Some(looked) => looked,
                    None => look().await,
                };
                let condition = match looked? {
                    ExistingObject::Write(condition) => condition,
                    ExistingObject::Compare(digest) => {
                        drop((first, blocks));
                        let made = open().digest().await?;
                        if made.digest == digest {
                            return Ok((made, PutOutcome::ALREADY_STORED));
                        }
                        return Err(conflict(&object.key));
                    }
                };
                self.put_multipart(object, condition, (first, blocks)).await
            }
        }
    }

    /// Stores a blob in one request: first as if the key were free, and after a conflict by what exists.
    async fn put_whole(
        &self,
        object: &NewObject<'_>,
        known: Option<Digest>,
        bytes: &Bytes,
        digest: Digest,
    ) -> Result<PutOutcome, ArtifactStoreError> {
        // Some servers ignore the condition of a write, so look before an archive is written.
        let may_ignore = self.config.endpoint.is_some()
            && (object.source.archive == ArchiveFormat::Zip || !self.wire.knows(CONDITIONS));
        if !may_ignore
            && let Some(put) = self.put_if(object, &WriteCondition::Free, bytes, digest).await?
        {
            return Ok(put);
        }
        let mut left = if object.source.overwrite { MAX_REPLACED } else { 0 };
        loop {
            let there = match self.existing_object(object, known).await? {
                ExistingObject::Compare(there) => Some(there),
                ExistingObject::Write(condition) => {
                    if let Some(put) = self.put_if(object, &condition, bytes, digest).await? {
                        return Ok(put);
                    }
                    // An earlier try may have stored it although its answer was lost.
                    self.read_digest(&object.key, digest.algorithm()).await?
                }
            };
            if there == Some(digest) {
                return Ok(PutOutcome::ALREADY_STORED);
            }
            if left == 0 {
                return Err(conflict(&object.key));
            }
            left -= 1;
        }
    }

    /// Puts a whole object; `None` if the condition doesn't hold.
    async fn put_if(
        &self,
        object: &NewObject<'_>,
        condition: &WriteCondition,
        bytes: &Bytes,
        digest: Digest,
    ) -> Result<Option<PutOutcome>, ArtifactStoreError> {
        let stored = |tag_refused| Ok(Some(PutOutcome { already_stored: false, tag_refused }));
        let put = |tag: Option<String>| {
            let mut headers = object.headers(tag);
            let name = match digest.algorithm() {
                DigestAlgorithm::Sha256 => META_SHA256,
                DigestAlgorithm::Blake3 => META_BLAKE3,
            };
            headers.push(metadata_header(name, digest.hex()));
            self.put_object(&object.key, headers, condition, bytes.clone(), digest)
        };
        let wanted = retention_tag(object.source);
        let tag = wanted.clone().filter(|_| self.wire.knows(TAGS));
        let mut refusal = match put(tag.clone()).await {
            Ok(()) => return stored(tag != wanted),
            Err(refusal) => refusal,
        };
        if tag.is_some() && refusal.may_be_about_tagging() {
            match put(None).await {
                Ok(()) => {
                    self.wire.leave_out(TAGS);
                    return stored(true);
                }
                Err(again) => refusal = again,
            }
        }
        if refusal.is_precondition_failed() {
            Ok(None)
        } else {
            Err(self.error(refusal, &object.key))
        }
    }

    async fn put_object(
        &self,
        key: &str,
        mut headers: Vec<RequestHeader>,
        condition: &WriteCondition,
        body: Bytes,
        digest: Digest,
    ) -> Result<(), S3Refusal> {
        let own = self.config.object_headers.iter();
        headers.extend(own.map(|(name, value)| ((*name).into(), value.clone())));
        if self.config.checksum {
            headers.push((CHECKSUM_HEADER.into(), checksum(&body)));
        }
        match condition {
            WriteCondition::Free => headers.push(("if-none-match".into(), "*".to_owned())),
            WriteCondition::Version(etag) => headers.push(("if-match".into(), etag.clone())),
            WriteCondition::Any => {}
        }
        // Without TLS the signature covers the body.
        let digest = match digest.algorithm() {
            DigestAlgorithm::Sha256 => Some(digest),
            DigestAlgorithm::Blake3 => (!self.is_secure()).then(|| Digest::of(&body)),
        };
        let put = PutRequest { key, query: String::new(), headers, body, digest };
        self.wire.put(put).await.map(drop)
    }

    /// Looks at the object with this key and decides whether it may be written.
    async fn existing_object(
        &self,
        object: &NewObject<'_>,
        known: Option<Digest>,
    ) -> Result<ExistingObject, ArtifactStoreError> {
        let source = object.source;
        let there = match self.head(&object.key).await {
            Ok(there) => there,
            // These credentials may write but not read.
            Err(ArtifactStoreError::Denied { .. }) if source.overwrite => {
                return Ok(ExistingObject::Write(WriteCondition::Any));
            }
            // Without `s3:ListBucket`, S3 answers 403 for a missing object.
            Err(ArtifactStoreError::NotFound { .. } | ArtifactStoreError::Denied { .. }) => {
                return Ok(ExistingObject::Write(WriteCondition::Free));
            }
            Err(error) => return Err(error),
        };
        let meta = |name: &str| there.metadata().and_then(|all| all.get(name));
        let attempt: Option<u64> = meta(META_ATTEMPT).and_then(|text| text.parse().ok());
        let attempt = attempt.filter(|_| meta(META_JOB) == Some(&source.job.label()));
        let noted = layout::digest_in_metadata(meta);
        let version = WriteCondition::of(there.e_tag());
        match (attempt, noted.or(known)) {
            _ if source.overwrite => Ok(ExistingObject::Write(version)),
            (Some(attempt), _) if attempt < source.job.run_attempt => {
                Ok(ExistingObject::Write(version))
            }
            (_, Some(digest)) => Ok(ExistingObject::Compare(digest)),
            // From a killed or a simultaneous upload: compare its bytes.
            (Some(_), None) => match self.read_digest(&object.key, object.algorithm()).await? {
                Some(digest) => Ok(ExistingObject::Compare(digest)),
                None => Ok(ExistingObject::Write(WriteCondition::Free)),
            },
            (None, None) => Err(conflict(&object.key)),
        }
    }

    async fn existing_locator(
        &self,
        source: &UploadSource,
        folder: &str,
    ) -> Result<ExistingLocator, ArtifactStoreError> {
        let key = layout::locator_key(folder);
        match self.read_locator(&key).await {
            // It is somebody's, and says not whose.
            Ok((Err(error), _)) if !source.overwrite => {
                let message = format!("`{key}` can't be read: {error}");
                Err(ArtifactStoreError::Conflict { store: STORE, message })
            }
            Ok((read, etag)) => {
                let condition = WriteCondition::of(etag.as_deref());
                Ok(ExistingLocator { condition, locator: read.ok() })
            }
            // These credentials may write but not read.
            Err(ArtifactStoreError::Denied { .. }) if source.overwrite => {
                Ok(ExistingLocator { condition: WriteCondition::Any, locator: None })
            }
            Err(
                ArtifactStoreError::NotFound { .. }
                | ArtifactStoreError::Denied { .. }
                | ArtifactStoreError::Refused { .. },
            ) => Ok(ExistingLocator { condition: WriteCondition::Free, locator: None }),
            Err(error) => Err(error),
        }
    }

    /// Downloads an object to compute its digest; `None` if it doesn't exist.
    async fn read_digest(
        &self,
        key: &str,
        algorithm: DigestAlgorithm,
    ) -> Result<Option<Digest>, ArtifactStoreError> {
        let mut tries = self.retry().start();
        loop {
            let mut answer = match self.get(key).await {
                Ok(answer) => answer,
                Err(ArtifactStoreError::NotFound { .. }) => return Ok(None),
                Err(error) => return Err(error),
            };
            let mut hasher = DigestHasher::new(algorithm);
            let broken = loop {
                match answer.body.try_next().await {
                    Ok(Some(chunk)) => hasher.update(&chunk),
                    Ok(None) => return Ok(Some(hasher.finish())),
                    Err(error) => break error.to_string(),
                }
            };
            if !tries.wait_to_retry(&broken, None).await {
                return Err(ArtifactStoreError::Unreachable { store: STORE, message: broken });
            }
        }
    }
}

/// Whether the locator's artifact was stored by this job, in any attempt.
fn is_of_job(locator: &Locator, source: &UploadSource) -> bool {
    // Each attempt has its own check run, so compare check runs only within an attempt.
    let check_runs = locator.check_run_id.zip(source.job.check_run_id);
    let other_call =
        locator.run_attempt == source.job.run_attempt && check_runs.is_some_and(|(a, b)| a != b);
    let same = locator.job == source.job.key && locator.leg == source.job.leg;
    same && locator.name == source.name && !other_call
}

fn is_same_upload(a: &Locator, b: &Locator) -> bool {
    (&a.job, &a.leg, a.run_attempt, a.digest) == (&b.job, &b.leg, b.run_attempt, b.digest)
}

enum ExistingObject {
    Write(WriteCondition),
    /// The same digest means success, another one a conflict.
    Compare(Digest),
}

/// How many parts the server takes for one object.
fn max_parts(endpoint: Option<&Url>) -> u64 {
    let is_scaleway = |url: &Url| url.host_str().is_some_and(|host| host.ends_with(".scw.cloud"));
    if endpoint.is_some_and(is_scaleway) { MAX_PARTS_AT_SCALEWAY } else { MAX_PARTS }
}

fn conflict_with_job(locator: &Locator, folder: &str) -> ArtifactStoreError {
    let leg = locator.leg.as_deref().map_or_else(String::new, |leg| format!(", leg `{leg}`"));
    let message = format!("`{folder}` belongs to the job `{}`{leg}", locator.job);
    ArtifactStoreError::Conflict { store: STORE, message }
}

fn conflict(key: &str) -> ArtifactStoreError {
    ArtifactStoreError::Conflict { store: STORE, message: format!("`{key}` has other content") }
}

/// A lifecycle rule of the bucket can filter by this tag.
fn retention_tag(source: &UploadSource) -> Option<String> {
    source.retention_days.map(|days| format!("retention-days={days}"))
}

fn metadata_header(name: &str, value: String) -> RequestHeader {
    (format!("x-amz-meta-{name}").into(), value)
}

/// A CRC-64/NVME in base64, big-endian.
fn checksum(bytes: &[u8]) -> String {
    STANDARD.encode(crc_fast::checksum(CrcAlgorithm::Crc64Nvme, bytes).to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_artifact_has_no_more_parts_than_its_server_takes() {
        let parts = |endpoint: Option<&str>, size: u64| {
            let url = endpoint.map(|url| url.parse::<Url>().unwrap());
            size.div_ceil(send::block_size(PART_BYTES, size, max_parts(url.as_ref())) as u64)
        };
        let size = 20_u64 << 30;
        let scaleway = Some("https://s3.fr-par.scw.cloud");
        assert!(parts(scaleway, size) <= 1000, "{}", parts(scaleway, size));
        for other in [None, Some("https://minio.example.org:9000")] {
            assert_eq!(parts(other, size), size.div_ceil(PART_BYTES as u64));
        }
    }
}
