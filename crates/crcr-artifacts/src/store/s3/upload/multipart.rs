//! An object in parts, with those of an unfinished upload of the same key reused.

use std::collections::HashMap;

use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{ChecksumAlgorithm, CompletedMultipartUpload, CompletedPart, Part};
use bytes::Bytes;

use super::{Claim, Look, Object, checksum, conflict, is_unmet, may_be_the_tag, tag};
use crate::blocks::{Blocks, Made};
use crate::digest::{Digest, Hasher};
use crate::layout::{META_ATTEMPT, META_JOB, META_MODE};
use crate::store::Error;
use crate::store::s3::S3Store;
use crate::store::send;

/// An upload, new or found, and the parts that it has.
struct Upload {
    id: String,
    parts: HashMap<usize, Part>,
    untagged: bool,
}

impl S3Store {
    /// Stores a long blob, going on with an unfinished upload when `reuse` says so; the flags say
    /// whether it was there already and whether the tag was refused. A failure aborts the upload.
    pub(super) async fn put_parts(
        &self,
        object: &Object<'_>,
        known: Option<Digest>,
        claim: Claim,
        (first, blocks): (Vec<Bytes>, Blocks),
        reuse: bool,
    ) -> Result<(Made, bool, bool), Error> {
        let found = if reuse { self.unfinished(&object.key).await } else { None };
        let upload = match found {
            Some(upload) => upload,
            None => self.begin(object).await?,
        };
        let put = |n, bytes| self.put_part(object, &upload, n, bytes);
        let stored = match send::all(first, blocks, &object.source.stop, put).await {
            Ok((parts, made)) => self
                .claim_and_complete(object, &upload, known, claim, &made, parts)
                .await
                .map(|already| (made, already)),
            Err(error) => Err(error),
        };
        if !matches!(stored, Ok((_, false))) {
            self.abort(&object.key, &upload.id).await;
        }
        stored.map(|(made, already)| (made, already, upload.untagged))
    }

    /// Completes the upload; says whether the same bytes were there already. When the claim doesn't
    /// hold, what has come there meanwhile (the last request of an upload that was killed, say) is
    /// looked at once more.
    async fn claim_and_complete(
        &self,
        object: &Object<'_>,
        upload: &Upload,
        known: Option<Digest>,
        claim: Claim,
        made: &Made,
        parts: Vec<CompletedPart>,
    ) -> Result<bool, Error> {
        if self.complete(object, upload, &claim, made, parts.clone()).await? {
            return Ok(false);
        }
        match self.look(object, known).await? {
            Look::Compare(there) if there == made.digest => Ok(true),
            Look::Write(claim) if self.complete(object, upload, &claim, made, parts).await? => {
                Ok(false)
            }
            Look::Compare(_) | Look::Write(_) => Err(conflict(&object.key)),
        }
    }

    /// The newest unfinished upload of the key; older ones are aborted. Its parts are compared by
    /// checksum, so any plan will do. Where the bucket doesn't let us look, there is none.
    async fn unfinished(&self, key: &str) -> Option<Upload> {
        let list = self.client().list_multipart_uploads().bucket(self.bucket()).prefix(key);
        let mut found = list.send().await.ok()?.uploads.unwrap_or_default();
        found.retain(|upload| upload.key() == Some(key));
        found.sort_by_key(|upload| upload.initiated().copied());
        let newest = found.pop()?.upload_id?;
        for stale in found.iter().filter_map(|upload| upload.upload_id()) {
            self.abort(key, stale).await;
        }
        let mut pages = self
            .client()
            .list_parts()
            .bucket(self.bucket())
            .key(key)
            .upload_id(&newest)
            .into_paginator()
            .send();
        let mut parts = HashMap::new();
        while let Some(page) = pages.next().await {
            let Ok(page) = page else {
                self.abort(key, &newest).await;
                return None;
            };
            for part in page.parts.unwrap_or_default() {
                if let Some(n) = part.part_number().and_then(|n| usize::try_from(n).ok()) {
                    parts.insert(n, part);
                }
            }
        }
        tracing::debug!(key, parts = parts.len(), "going on with an unfinished upload");
        Some(Upload { id: newest, parts, untagged: false })
    }

    async fn begin(&self, object: &Object<'_>) -> Result<Upload, Error> {
        let create = |tag: Option<String>| {
            let mut create = self
                .client()
                .create_multipart_upload()
                .bucket(self.bucket())
                .key(&object.key)
                .content_type(object.content_type)
                .checksum_algorithm(ChecksumAlgorithm::Crc64Nvme)
                .metadata(META_ATTEMPT, object.source.attempt.to_string())
                .metadata(META_JOB, &object.source.job)
                .set_tagging(tag);
            if let Some(mode) = object.mode {
                create = create.metadata(META_MODE, format!("{mode:o}"));
            }
            create.send()
        };
        let tag = tag(object.source);
        let mut untagged = false;
        let mut created = create(tag.clone()).await;
        if tag.is_some() && created.as_ref().is_err_and(may_be_the_tag) {
            untagged = true;
            created = create(None).await;
        }
        let created = created.map_err(|e| self.error(&e, &object.key))?;
        let id = created.upload_id.ok_or_else(|| Error::Refused {
            store: super::STORE,
            message: format!("it gave no upload for `{}`", object.key),
        })?;
        Ok(Upload { id, parts: HashMap::new(), untagged })
    }

    async fn put_part(
        &self,
        object: &Object<'_>,
        upload: &Upload,
        n: usize,
        bytes: Bytes,
    ) -> Result<CompletedPart, Error> {
        let number = n + 1;
        let sum = checksum(&bytes);
        let part = CompletedPart::builder()
            .part_number(i32::try_from(number).unwrap_or(i32::MAX))
            .checksum_crc64_nvme(&sum);
        let there = upload.parts.get(&number).filter(|part| {
            part.size() == i64::try_from(bytes.len()).ok()
                && part.checksum_crc64_nvme() == Some(sum.as_str())
        });
        if let Some(there) = there {
            return Ok(part.set_e_tag(there.e_tag.clone()).build());
        }
        let put = self
            .client()
            .upload_part()
            .bucket(self.bucket())
            .key(&object.key)
            .upload_id(&upload.id)
            .part_number(i32::try_from(number).unwrap_or(i32::MAX))
            .checksum_crc64_nvme(sum)
            .body(ByteStream::from(bytes))
            .customize();
        let put = if self.is_secure() { put.disable_payload_signing() } else { put };
        let done = put.send().await.map_err(|e| self.error(&e, &object.key))?;
        Ok(part.set_e_tag(done.e_tag).build())
    }

    /// Says whether the claim held. An upload that is gone may have been completed by a try whose
    /// answer was lost: then the object is there.
    async fn complete(
        &self,
        object: &Object<'_>,
        upload: &Upload,
        claim: &Claim,
        made: &Made,
        parts: Vec<CompletedPart>,
    ) -> Result<bool, Error> {
        let complete = self
            .client()
            .complete_multipart_upload()
            .bucket(self.bucket())
            .key(&object.key)
            .upload_id(&upload.id)
            .multipart_upload(CompletedMultipartUpload::builder().set_parts(Some(parts)).build());
        let complete = match claim {
            Claim::Free => complete.if_none_match("*"),
            Claim::Version(etag) => complete.if_match(etag),
            Claim::Any => complete,
        };
        match complete.send().await {
            Ok(_) => Ok(true),
            Err(error) if is_unmet(&error) => Ok(false),
            Err(error) => match self.error(&error, &object.key) {
                Error::NotFound { .. } if self.holds(&object.key, made).await? => Ok(true),
                error => Err(error),
            },
        }
    }

    /// Whether the object at `key` has the bytes of `made`, read to be sure.
    async fn holds(&self, key: &str, made: &Made) -> Result<bool, Error> {
        let get = self.client().get_object().bucket(self.bucket()).key(key).send().await;
        let mut answer = match get.map_err(|e| self.error(&e, key)) {
            Ok(answer) => answer,
            Err(Error::NotFound { .. }) => return Ok(false),
            Err(error) => return Err(error),
        };
        if answer.content_length().and_then(|len| u64::try_from(len).ok()) != Some(made.size) {
            return Ok(false);
        }
        let mut hasher = Hasher::default();
        let broken = |error: aws_sdk_s3::primitives::ByteStreamError| Error::Unreachable {
            store: super::STORE,
            message: error.to_string(),
        };
        while let Some(chunk) = answer.body.try_next().await.map_err(broken)? {
            hasher.update(&chunk);
        }
        Ok(hasher.finish() == made.digest)
    }

    /// Aborts an upload; what can't be aborted is left to the bucket's lifecycle rules.
    async fn abort(&self, key: &str, id: &str) {
        let abort = self.client().abort_multipart_upload().bucket(self.bucket()).key(key);
        if let Err(error) = abort.upload_id(id).send().await {
            let error = self.error(&error, key);
            tracing::debug!(%error, "an unfinished upload can't be aborted");
        }
    }
}
