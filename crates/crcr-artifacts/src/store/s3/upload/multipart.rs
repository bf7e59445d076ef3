//! Stores an object as a multipart upload. Each process has its own upload, so that the parts of two
//! processes can't mix.

use std::sync::Arc;

use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::error::SdkError;
use aws_sdk_s3::operation::create_multipart_upload::{
    CreateMultipartUploadError, CreateMultipartUploadOutput,
};
use aws_sdk_s3::types::{ChecksumAlgorithm, CompletedMultipartUpload, CompletedPart};
use bytes::Bytes;
use crcr_github::http::RetryPolicy;
use percent_encoding::utf8_percent_encode;

use super::{
    CHECKSUM_HEADER, ExistingObject, NewObject, PutOutcome, WriteCondition, checksum, conflict,
    retention_tag,
};
use crate::blocks::{BlobBlocks, FinishedBlob};
use crate::digest::Digest;
use crate::layout::{META_ATTEMPT, META_JOB, META_MODE};
use crate::store::s3::refusal::S3Refusal;
use crate::store::s3::wire::{CHECKSUMS, CONDITIONS, PutRequest, TAGS, UNRESERVED};
use crate::store::s3::{S3Store, WITHOUT_REASON, send_with_retries};
use crate::store::send;
use crate::store::{ArtifactStoreError, MAX_REPLACED, after_failure};

pub(crate) struct MultipartUpload {
    id: String,
    tag_refused: bool,
}

impl S3Store {
    /// Stores a long blob. A failure aborts the upload.
    pub(crate) async fn put_multipart(
        &self,
        object: &NewObject<'_>,
        condition: WriteCondition,
        (first, blocks): (Vec<Bytes>, BlobBlocks),
    ) -> Result<(FinishedBlob, PutOutcome), ArtifactStoreError> {
        let upload = Arc::new(self.create_multipart(object).await?);
        let put = |n, block| {
            let (store, key, upload) = (self.clone(), object.key.clone(), upload.clone());
            async move { store.put_part(&key, &upload, n, block).await }
        };
        let sent = send::send_blocks(first, blocks, &object.source.stop, put).await;
        let stored = match sent {
            Ok((parts, made)) => self
                .complete(object, &upload, condition, &made, parts)
                .await
                .map(|already_stored| (made, already_stored)),
            Err(error) => Err(error),
        };
        if !matches!(stored, Ok((_, false))) {
            let retry = after_failure(stored.as_ref().err(), self.config.retry);
            self.abort(&object.key, &upload.id, retry).await;
        }
        let tag_refused = upload.tag_refused;
        stored.map(|(made, already_stored)| (made, PutOutcome { already_stored, tag_refused }))
    }

    async fn create_multipart(
        &self,
        object: &NewObject<'_>,
    ) -> Result<MultipartUpload, ArtifactStoreError> {
        let create = |tag: Option<String>, checksum: bool| {
            let mut create = self
                .client()
                .create_multipart_upload()
                .bucket(self.bucket())
                .key(&object.key)
                .content_type(&object.content_type)
                .set_checksum_algorithm(checksum.then_some(ChecksumAlgorithm::Crc64Nvme))
                .metadata(META_ATTEMPT, object.source.job.run_attempt.to_string())
                .metadata(META_JOB, object.source.job.label())
                .set_tagging(tag);
            if let Some(mode) = object.mode {
                create = create.metadata(META_MODE, format!("{mode:o}"));
            }
            let headers = self.config.object_headers.clone();
            create
                .customize()
                .interceptor(WITHOUT_REASON)
                .mutate_request(move |request| {
                    for (name, value) in &headers {
                        request.headers_mut().insert(*name, value.clone());
                    }
                })
                .send()
        };
        let wanted = retention_tag(object.source);
        let tag = wanted.clone().filter(|_| self.wire.knows(TAGS));
        let summed = self.sends_checksums();
        let mut first: Option<S3Refusal> = None;
        for (with_tag, with_sum) in [(true, true), (true, false), (false, true), (false, false)] {
            let tag_refused = tag.is_some() && !with_tag;
            let sum_refused = summed && !with_sum;
            let is_new = (!with_tag || tag.is_some()) && (!with_sum || summed);
            let may_help = first.as_ref().is_none_or(|refusal| {
                (!tag_refused || refusal.may_be_about_tagging())
                    && (!sum_refused || self.wire.may_lack_feature(refusal))
            });
            if !(is_new && may_help) {
                continue;
            }
            let tag = tag.clone().filter(|_| with_tag);
            let refusal = match self.upload_id(|| create(tag.clone(), with_sum)).await {
                Ok(id) => {
                    if sum_refused {
                        self.wire.leave_out(CHECKSUMS);
                    }
                    if tag_refused {
                        self.wire.leave_out(TAGS);
                    }
                    return Ok(MultipartUpload { id, tag_refused: tag != wanted });
                }
                Err(refusal) => refusal,
            };
            first.get_or_insert(refusal);
        }
        Err(self.error(first.unwrap_or_default(), &object.key))
    }

    /// Begins an upload with what `create` sends, and again if something in between has cut the id off the answer. The
    /// upload that nobody knows then is aborted with those of killed processes.
    async fn upload_id<F>(&self, create: impl Fn() -> F) -> Result<String, S3Refusal>
    where
        F: Future<
            Output = Result<
                CreateMultipartUploadOutput,
                SdkError<CreateMultipartUploadError, HttpResponse>,
            >,
        >,
    {
        let mut tries = self.retry().start();
        loop {
            let created = self.send(&create).await?;
            if let Some(id) = created.upload_id.filter(|id| !id.is_empty()) {
                return Ok(id);
            }
            let cut = S3Refusal { status: Some(200), is_web_page: true, ..S3Refusal::default() };
            if !tries.wait_to_retry(&cut, None).await {
                return Err(cut.after(&tries));
            }
        }
    }

    fn sends_checksums(&self) -> bool {
        self.config.checksum && self.wire.knows(CHECKSUMS)
    }

    async fn put_part(
        &self,
        key: &str,
        upload: &MultipartUpload,
        n: usize,
        bytes: Bytes,
    ) -> Result<CompletedPart, ArtifactStoreError> {
        let number = i32::try_from(n + 1).unwrap_or(i32::MAX);
        let sum = self.sends_checksums().then(|| checksum(&bytes));
        let id = utf8_percent_encode(&upload.id, UNRESERVED);
        let put = PutRequest {
            key,
            query: format!("partNumber={number}&uploadId={id}"),
            headers: sum.iter().map(|sum| (CHECKSUM_HEADER.into(), sum.clone())).collect(),
            digest: (!self.is_secure()).then(|| Digest::of(&bytes)),
            body: bytes,
        };
        let done = self.wire.put(put).await.map_err(|refusal| self.error(refusal, key))?;
        let etag = done.headers().get("etag").and_then(|etag| etag.to_str().ok());
        let sum = sum.filter(|_| self.sends_checksums());
        let part = CompletedPart::builder().part_number(number).set_checksum_crc64_nvme(sum);
        Ok(part.set_e_tag(etag.map(str::to_owned)).build())
    }

    /// Completes the upload. Returns whether the object existed already with the same bytes.
    ///
    /// If the condition doesn't hold or the upload doesn't exist any more, the object is compared: an
    /// earlier try may have completed it although its response was lost, or another upload may have
    /// finished first and aborted this one. With `overwrite` it is then completed over the other one.
    async fn complete(
        &self,
        object: &NewObject<'_>,
        upload: &MultipartUpload,
        mut condition: WriteCondition,
        made: &FinishedBlob,
        mut parts: Vec<CompletedPart>,
    ) -> Result<bool, ArtifactStoreError> {
        if !self.sends_checksums() {
            parts.iter_mut().for_each(|part| part.checksum_crc64_nvme = None);
        }
        let unconditional = self
            .client()
            .complete_multipart_upload()
            .bucket(self.bucket())
            .key(&object.key)
            .upload_id(&upload.id)
            .multipart_upload(CompletedMultipartUpload::builder().set_parts(Some(parts)).build());
        let mut left = MAX_REPLACED;
        loop {
            if !self.wire.knows(CONDITIONS) {
                condition = WriteCondition::Any;
            }
            let complete = match &condition {
                WriteCondition::Free => unconditional.clone().if_none_match("*"),
                WriteCondition::Version(etag) => unconditional.clone().if_match(etag),
                WriteCondition::Any => unconditional.clone(),
            };
            let Err(refusal) = self.send(|| complete.clone().send()).await else {
                return Ok(false);
            };
            if self.wire.may_lack_feature(&refusal) && self.wire.knows(CONDITIONS) {
                self.wire.leave_out(CONDITIONS);
                continue;
            }
            let is_precondition_failed = refusal.is_precondition_failed();
            let error = self.error(refusal, &object.key);
            if !is_precondition_failed && !matches!(error, ArtifactStoreError::NotFound { .. }) {
                return Err(error);
            }
            let overwrite = object.source.overwrite;
            if !is_precondition_failed || !overwrite {
                return match self.read_digest(&object.key, object.algorithm()).await? {
                    Some(there) if there == made.digest => Ok(true),
                    // The caller begins again.
                    Some(_) if !is_precondition_failed && overwrite => Err(error),
                    None if !is_precondition_failed => Err(error),
                    _ => Err(conflict(&object.key)),
                };
            }
            if left == 0 {
                return Err(conflict(&object.key));
            }
            left -= 1;
            condition = match self.existing_object(object, None).await? {
                ExistingObject::Write(condition) => condition,
                ExistingObject::Compare(_) => return Err(conflict(&object.key)),
            };
        }
    }

    /// Aborts an upload. If that fails, the bucket's lifecycle rules have to delete it.
    pub(crate) async fn abort(&self, key: &str, id: &str, retry: RetryPolicy) {
        let abort = || {
            self.client()
                .abort_multipart_upload()
                .bucket(self.bucket())
                .key(key)
                .upload_id(id)
                .send()
        };
        if let Err(refusal) = send_with_retries(retry, abort).await {
            let error = self.error(refusal, key);
            tracing::debug!(%error, "an unfinished upload can't be aborted");
        }
    }
}
