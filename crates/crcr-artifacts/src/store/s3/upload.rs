//! Storing an artifact in a bucket: one zip, or an object for each file.
//!
//! The locator beside the objects is written last and holds the digest, which an object in parts
//! can't be told beforehand. Whoever stores an object first wins: every write is tied to what was
//! there before, so that of two uploads at the same time one ends whole and the other one finds a
//! conflict.

mod multipart;
mod tidy;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aws_sdk_s3::error::SdkError;
use aws_sdk_s3::operation::put_object::builders::PutObjectFluentBuilder;
use aws_sdk_s3::primitives::ByteStream;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use crc_fast::CrcAlgorithm;
use futures_util::StreamExt as _;
use tokio::sync::Semaphore;
use tokio_util::task::AbortOnDropHandle;

use super::{S3Store, STORE};
use crate::blocks::{self, Blocks};
use crate::collect::Entry;
use crate::digest::{Digest, Hasher};
use crate::layout::{self, META_ATTEMPT, META_JOB, META_MODE, META_SHA256};
use crate::locator::{Archive, Locator, MAX_BYTES, Place, files_digest};
use crate::source::{Source, Stored, content_type};
use crate::store::Error;
use crate::store::send::{self, Start};
use crate::zip::write::read_whole;

/// The usual size of a part; S3 wants at least 5 MiB.
const PART: usize = 8 * 1024 * 1024;
/// The most parts of an object.
const MAX_PARTS: u64 = 10_000;
/// Objects on their way at once.
const OBJECTS: usize = 64;
/// The bytes of small files in memory at once, in KiB.
const MEMORY_KIB: u32 = 16 * 1024;

/// What an object is told about itself.
struct Object<'a> {
    key: String,
    content_type: &'static str,
    mode: Option<u32>,
    source: &'a Source,
}

/// What may be done to a key.
enum Claim {
    /// Nothing is there: write, unless somebody else is faster.
    Free,
    /// Write, whatever is there: it can't be seen, or its server gives no versions.
    Any,
    /// Write, as long as this version is there.
    Version(String),
}

/// The locator that was beside the objects when an upload began, as far as it can be read.
pub struct Beside {
    version: Option<String>,
    locator: Option<Locator>,
}

impl S3Store {
    /// Stores an artifact below `folder`, and gives what [`Self::put_locator`] wants then. What
    /// fails or is stopped on the way leaves no unfinished upload behind.
    pub async fn put(&self, source: &Source, folder: &str) -> Result<(Stored, Beside), Error> {
        let beside = self.beside(folder).await?;
        let before = beside.locator.as_ref();
        let (is_zip, key) = match source.archive {
            Archive::Zip => (true, layout::archive_key(folder)),
            Archive::None => (false, format!("{folder}/")),
        };
        let ours = before
            .filter(|locator| locator.run_attempt == source.attempt && is_of_job(locator, source));
        let at_key = |locator: &&Locator| match &locator.place {
            Place::S3 { key: there, .. } => *there == key,
            Place::GitHub { .. } => false,
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
        self.abort_others(source, folder).await;
        if let Some(before) = before.filter(|locator| is_of_job(locator, source)) {
            stored.leftover = self.delete_stale(source, folder, before).await;
        }
        Ok((stored, beside))
    }

    /// Stores the locator beside the objects, in place of the one that was there before.
    ///
    /// Fails with [`Error::Conflict`] when another upload has stored its own meanwhile.
    pub async fn put_locator(
        &self,
        locator: &Locator,
        folder: &str,
        before: &Beside,
    ) -> Result<(), Error> {
        let key = layout::locator_key(folder);
        let bytes = Bytes::from(locator.to_json(MAX_BYTES));
        let put = self
            .client()
            .put_object()
            .bucket(self.bucket())
            .key(&key)
            .content_type("application/json");
        let put = match &before.version {
            Some(version) => put.if_match(version),
            None => put.if_none_match("*"),
        };
        match self.send_put(put, bytes).await {
            Ok(()) => Ok(()),
            // It may be ours after all, when the answer to a first try was lost.
            Err(error) if is_unmet(&error) => match self.beside(folder).await?.locator {
                Some(there) if is_same(&there, locator) => Ok(()),
                _ => Err(conflict(&key)),
            },
            Err(error) => Err(self.error(&error, &key)),
        }
    }

    async fn put_zip(
        &self,
        source: &Source,
        key: &str,
        known: Option<Digest>,
    ) -> Result<Stored, Error> {
        let size = send::block_size(PART, source.size_limit(), MAX_PARTS);
        let object =
            Object { key: key.to_owned(), content_type: "application/zip", mode: None, source };
        let (made, already, untagged) = self.put_blob(&object, known, || source.zip(size)).await?;
        Ok(Stored {
            digest: made.digest,
            size: made.size,
            files: source.files(&made.files),
            already,
            untagged,
            leftover: None,
            artifact_id: None,
            archive: Archive::Zip,
        })
    }

    /// Stores an object for each file. An artifact that is there already, of digest `known`, is
    /// compared as a whole first, so that the objects of two artifacts never mix.
    async fn put_files(
        &self,
        source: &Source,
        folder: &str,
        known: Option<Digest>,
    ) -> Result<Stored, Error> {
        let known = match known.filter(|_| !source.overwrite) {
            Some(known) => {
                let digests = source.digests().await?;
                if files_digest(&source.files(&digests)) != known {
                    return Err(conflict(folder));
                }
                digests.into_iter().map(Some).collect::<Vec<_>>()
            }
            None => vec![None; source.entries.len()],
        };
        let memory = Arc::new(Semaphore::new(MEMORY_KIB as usize));
        let failed = Arc::new(AtomicBool::new(false));
        let written = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::new(source.clone());
        // Each is a task of its own, so that signing and sending use every processor.
        let put = |(n, known): (usize, Option<Digest>)| {
            let (store, source, folder) = (self.clone(), shared.clone(), folder.to_owned());
            let (memory, failed, written) = (memory.clone(), failed.clone(), written.clone());
            let put = async move {
                let entry = &source.entries[n];
                if failed.load(Ordering::Relaxed) {
                    return Err(Error::Stopped);
                }
                let put = store.put_file(&source, &folder, entry, known, &memory).await;
                match &put {
                    Ok((_, already, _)) if !already => {
                        lock(&written).push(format!("{folder}/{}", entry.path));
                    }
                    Ok(_) => {}
                    Err(_) => failed.store(true, Ordering::Relaxed),
                }
                put
            };
            AbortOnDropHandle::new(tokio::spawn(put))
        };
        let stopped = async {
            source.stop.cancelled().await;
            vec![Err(Error::Stopped)]
        };
        // What is on its way when a file fails goes on to its end, so that it is known what there
        // is to remove.
        let all = futures_util::stream::iter(known.into_iter().enumerate())
            .map(put)
            .buffered(OBJECTS)
            .map(send::joined)
            .collect::<Vec<_>>();
        let (done, errors): (Vec<_>, Vec<_>) =
            tokio::select! { done = all => done, stopped = stopped => stopped }
                .into_iter()
                .partition(Result::is_ok);
        let mut errors = errors.into_iter().filter_map(Result::err);
        if let Some(first) = errors.next() {
            let written = std::mem::take(&mut *lock(&written));
            self.delete(written).await;
            let told = |error: &Error| !matches!(error, Error::Stopped);
            return Err(Some(first).into_iter().chain(errors).find(told).unwrap_or(Error::Stopped));
        }
        let done: Vec<_> = done.into_iter().filter_map(Result::ok).collect();
        let digests: Vec<_> = done.iter().map(|(digest, ..)| *digest).collect();
        let files = source.files(&digests);
        Ok(Stored {
            digest: files_digest(&files),
            size: source.raw_size(),
            files,
            already: done.iter().all(|(_, already, _)| *already),
            untagged: done.iter().any(|(.., untagged)| *untagged),
            leftover: None,
            artifact_id: None,
            archive: Archive::None,
        })
    }

    async fn put_file(
        &self,
        source: &Source,
        folder: &str,
        entry: &Entry,
        known: Option<Digest>,
        memory: &Semaphore,
    ) -> Result<(Digest, bool, bool), Error> {
        let object = Object {
            key: format!("{folder}/{}", entry.path),
            content_type: content_type(&entry.path),
            mode: entry.mode,
            source,
        };
        // A long file takes the whole memory: its parts are what is on its way.
        let long = entry.size > PART as u64;
        let kib = if long { MEMORY_KIB } else { (entry.size / 1024) as u32 + 1 };
        let _room = memory.acquire_many(kib).await.map_err(|_| Error::Stopped)?;
        if long {
            let size = send::block_size(PART, entry.size, MAX_PARTS);
            let open = || source.file(entry, size);
            let (made, already, untagged) = self.put_blob(&object, known, open).await?;
            return Ok((made.digest, already, untagged));
        }
        let path = source.root.join(&entry.path);
        let size = entry.size;
        let read = move || {
            let bytes = read_whole(&path, size)?;
            Ok::<_, blocks::Error>((Digest::of(&bytes), Bytes::from(bytes)))
        };
        let read = tokio::task::spawn_blocking(read).await;
        let (digest, bytes) = read.map_err(|_| blocks::Error::Stopped)??;
        (source.progress)(entry.size);
        let (already, untagged) = self.put_whole(&object, known, &bytes, digest).await?;
        Ok((digest, already, untagged))
    }

    /// Stores a blob of any length; `known` is the digest of the object that the locator is about.
    /// Says whether it was there already, and whether the tag was refused.
    async fn put_blob(
        &self,
        object: &Object<'_>,
        known: Option<Digest>,
        open: impl Fn() -> Blocks,
    ) -> Result<(blocks::Made, bool, bool), Error> {
        match self.try_blob(object, known, &open).await {
            // Another upload of the key has ended and has aborted this one: once more, to see it.
            Err(Error::NotFound { .. }) => self.try_blob(object, known, &open).await,
            done => done,
        }
    }

    async fn try_blob(
        &self,
        object: &Object<'_>,
        known: Option<Digest>,
        open: &impl Fn() -> Blocks,
    ) -> Result<(blocks::Made, bool, bool), Error> {
        match send::start(open()).await? {
            Start::Whole(bytes, made) => {
                let (already, untagged) =
                    self.put_whole(object, known, &bytes, made.digest).await?;
                Ok((made, already, untagged))
            }
            Start::Long(first, blocks) => {
                let claim = match self.look(object, known).await? {
                    Look::Write(claim) => claim,
                    Look::Compare(digest) => {
                        drop((first, blocks));
                        let made = open().digest().await?;
                        if made.digest == digest {
                            return Ok((made, true, false));
                        }
                        return Err(conflict(&object.key));
                    }
                };
                self.put_parts(object, &claim, (first, blocks)).await
            }
        }
    }

    /// Stores a blob of one request: first as if nothing were there, then with a look.
    async fn put_whole(
        &self,
        object: &Object<'_>,
        known: Option<Digest>,
        bytes: &Bytes,
        digest: Digest,
    ) -> Result<(bool, bool), Error> {
        if let Some(untagged) = self.put_claimed(object, &Claim::Free, bytes, digest).await? {
            return Ok((false, untagged));
        }
        match self.look(object, known).await? {
            Look::Compare(there) if there == digest => Ok((true, false)),
            Look::Compare(_) => Err(conflict(&object.key)),
            Look::Write(claim) => match self.put_claimed(object, &claim, bytes, digest).await? {
                Some(untagged) => Ok((false, untagged)),
                None => Err(conflict(&object.key)),
            },
        }
    }

    /// Puts a whole object; `None` when the claim doesn't hold, else whether the tag was refused.
    async fn put_claimed(
        &self,
        object: &Object<'_>,
        claim: &Claim,
        bytes: &Bytes,
        digest: Digest,
    ) -> Result<Option<bool>, Error> {
        let tag = tag(object.source);
        let put = |tag: Option<String>| {
            let mut put = self
                .client()
                .put_object()
                .bucket(self.bucket())
                .key(&object.key)
                .content_type(object.content_type)
                .metadata(META_SHA256, digest.hex())
                .metadata(META_ATTEMPT, object.source.attempt.to_string())
                .metadata(META_JOB, &object.source.job)
                .set_tagging(tag);
            if let Some(mode) = object.mode {
                put = put.metadata(META_MODE, format!("{mode:o}"));
            }
            match claim {
                Claim::Free => put.if_none_match("*"),
                Claim::Version(etag) => put.if_match(etag),
                Claim::Any => put,
            }
        };
        let mut error = match self.send_put(put(tag.clone()), bytes.clone()).await {
            Ok(()) => return Ok(Some(false)),
            Err(error) => error,
        };
        if tag.is_some() && may_be_the_tag(&error) {
            match self.send_put(put(None), bytes.clone()).await {
                Ok(()) => return Ok(Some(true)),
                Err(again) => error = again,
            }
        }
        if is_unmet(&error) { Ok(None) } else { Err(self.error(&error, &object.key)) }
    }

    /// Sends a whole object with its checksum. Over TLS the payload needs no signature.
    async fn send_put(
        &self,
        put: PutObjectFluentBuilder,
        bytes: Bytes,
    ) -> Result<(), SdkError<aws_sdk_s3::operation::put_object::PutObjectError, super::HttpResponse>>
    {
        let put = put.checksum_crc64_nvme(checksum(&bytes)).body(ByteStream::from(bytes));
        let put = put.customize();
        let put = if self.is_secure() { put.disable_payload_signing() } else { put };
        put.send().await.map(drop)
    }

    /// What is at the key, and what may be done about it.
    async fn look(&self, object: &Object<'_>, known: Option<Digest>) -> Result<Look, Error> {
        let source = object.source;
        let head = self.client().head_object().bucket(self.bucket()).key(&object.key).send().await;
        let there = match head {
            Ok(there) => there,
            Err(error) => {
                return match self.error(&error, &object.key) {
                    Error::NotFound { .. } => Ok(Look::Write(Claim::Free)),
                    // Who may only write sees nothing of what is there.
                    Error::Denied { .. } if source.overwrite => Ok(Look::Write(Claim::Any)),
                    // Without the right to list, S3 answers 403 for what isn't there.
                    Error::Denied { .. } => Ok(Look::Write(Claim::Free)),
                    error => Err(error),
                };
            }
        };
        let meta = |name: &str| there.metadata().and_then(|all| all.get(name));
        let attempt: Option<u64> = meta(META_ATTEMPT).and_then(|text| text.parse().ok());
        let attempt = attempt.filter(|_| meta(META_JOB) == Some(&source.job));
        let noted = meta(META_SHA256).and_then(|text| text.parse().ok());
        let version = there.e_tag().map_or(Claim::Any, |etag| Claim::Version(etag.to_owned()));
        match (attempt, noted.or(known)) {
            _ if source.overwrite => Ok(Look::Write(version)),
            (Some(attempt), _) if attempt < source.attempt => Ok(Look::Write(version)),
            (_, Some(digest)) => Ok(Look::Compare(digest)),
            // Of an upload that was killed, or of one at the same time as this: its bytes tell.
            (Some(_), None) => match self.read_digest(&object.key).await? {
                Some(digest) => Ok(Look::Compare(digest)),
                None => Ok(Look::Write(Claim::Free)),
            },
            (None, None) => Err(conflict(&object.key)),
        }
    }

    /// The locator beside the objects.
    async fn beside(&self, folder: &str) -> Result<Beside, Error> {
        let key = layout::locator_key(folder);
        let get = self.client().get_object().bucket(self.bucket()).key(&key).send().await;
        let answer = match get {
            Ok(answer) => answer,
            Err(error) => {
                return match self.error(&error, &key) {
                    Error::NotFound { .. } | Error::Denied { .. } | Error::Refused { .. } => {
                        Ok(Beside { version: None, locator: None })
                    }
                    error => Err(error),
                };
            }
        };
        let version = answer.e_tag().map(str::to_owned);
        let nothing = Beside { version: version.clone(), locator: None };
        if answer.content_length().is_none_or(|length| length > MAX_BYTES as i64) {
            return Ok(nothing);
        }
        let Ok(body) = answer.body.collect().await else { return Ok(nothing) };
        Ok(Beside { version, locator: Locator::parse(&body.into_bytes()).ok() })
    }

    /// The digest of an object, read to be sure; `None` when there is none.
    async fn read_digest(&self, key: &str) -> Result<Option<Digest>, Error> {
        let get = self.client().get_object().bucket(self.bucket()).key(key).send().await;
        let mut answer = match get.map_err(|e| self.error(&e, key)) {
            Ok(answer) => answer,
            Err(Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut hasher = Hasher::default();
        let broken = |error: aws_sdk_s3::primitives::ByteStreamError| Error::Unreachable {
            store: STORE,
            message: error.to_string(),
        };
        while let Some(chunk) = answer.body.try_next().await.map_err(broken)? {
            hasher.update(&chunk);
        }
        Ok(Some(hasher.finish()))
    }
}

/// Whether a locator is about an artifact that this job has stored, in whatever attempt.
fn is_of_job(locator: &Locator, source: &Source) -> bool {
    locator.job == source.job && locator.name == source.name
}

/// Whether two uploads stored the same.
fn is_same(one: &Locator, other: &Locator) -> bool {
    let told = |locator: &Locator| (locator.job.clone(), locator.run_attempt, locator.digest);
    told(one) == told(other)
}

/// What follows from what is at a key.
enum Look {
    /// It may be written.
    Write(Claim),
    /// It has this digest: the same one is success, another one a conflict.
    Compare(Digest),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn conflict(key: &str) -> Error {
    Error::Conflict { store: STORE, message: format!("`{key}` has other content") }
}

/// The tag that a lifecycle rule of the bucket can act on.
fn tag(source: &Source) -> Option<String> {
    source.retention_days.map(|days| format!("retention-days={days}"))
}

/// Whether the refusal may be about the tag: no right to tag, or a server without tags.
fn may_be_the_tag<E>(error: &SdkError<E, super::HttpResponse>) -> bool {
    error
        .raw_response()
        .is_some_and(|response| matches!(response.status().as_u16(), 400 | 403 | 501))
}

/// Whether a condition doesn't hold: 412, or 409 for two writers at once.
fn is_unmet<E>(error: &SdkError<E, super::HttpResponse>) -> bool {
    error.raw_response().is_some_and(|response| matches!(response.status().as_u16(), 409 | 412))
}

/// A CRC-64/NVME as S3 writes it.
fn checksum(bytes: &[u8]) -> String {
    STANDARD.encode(crc_fast::checksum(CrcAlgorithm::Crc64Nvme, bytes).to_be_bytes())
}
