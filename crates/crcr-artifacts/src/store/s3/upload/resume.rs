//! What a process that was killed has sent of an object in parts.
//!
//! S3 lists unfinished uploads and their parts, but says neither whose they are nor what metadata
//! the object would have. So each upload has a part that never becomes one of the object's, whose
//! content tells both and whose checksum the list shows: its mark. An upload with our mark is taken
//! up once nothing has come for longer than a live process tries to send a part; each of its parts
//! counts if its size and checksum are those of what would be sent. Should the other process live
//! after all, who completes first wins: S3 completes an upload only of the parts that are named
//! with it, each by its entity tag, and the other process finds the upload gone and begins anew.

use std::collections::HashMap;
use std::time::SystemTime;

use aws_sdk_s3::types::{CompletedPart, Part};
use bytes::Bytes;
use percent_encoding::utf8_percent_encode;
use tokio_util::task::AbortOnDropHandle;

use super::multipart::Upload;
use super::{CHECKSUM, Object, checksum, tag};
use crate::digest::Digest;
use crate::store::s3::S3Store;
use crate::store::s3::refusal::Refusal;
use crate::store::s3::wire::{Put, RETRY, UNRESERVED};

/// The number of the mark: the highest that there is.
const MARK: i32 = 10_000;

/// A part that is there.
pub(super) struct Sent {
    size: i64,
    sum: String,
    etag: Option<String>,
}

/// What tells an upload of this object apart from others of its key.
fn mark(object: &Object<'_>, tag: Option<&str>) -> Bytes {
    let Object { content_type, mode, source, .. } = object;
    let about = (&source.job, source.attempt, content_type, mode, tag);
    Bytes::from(format!("crcr upload {about:?}"))
}

impl S3Store {
    /// The unfinished upload of this object that a killed process has left, if there is one. Where
    /// the bucket doesn't let us look there is none.
    pub(super) async fn left(&self, object: &Object<'_>, tag: Option<&str>) -> Option<Upload> {
        let sum = checksum(&mark(object, tag));
        let list = self.client().list_multipart_uploads().bucket(self.bucket());
        let list = list.prefix(&object.key).send().await.ok()?;
        for upload in list.uploads().iter().filter(|it| it.key() == Some(&*object.key)) {
            if let Some(id) = upload.upload_id()
                && let Some(sent) = self.sent(&object.key, id, &sum).await
            {
                tracing::debug!(parts = sent.len(), "an unfinished upload is taken up");
                return Some(Upload { id: id.to_owned(), untagged: false, sent });
            }
        }
        None
    }

    /// The parts of an upload, if it has the mark and nobody is at it any more.
    async fn sent(&self, key: &str, id: &str, mark: &str) -> Option<HashMap<i32, Sent>> {
        let list = self.client().list_parts().bucket(self.bucket()).key(key).upload_id(id);
        let mut pages = list.into_paginator().send();
        let mut parts = Vec::new();
        while let Some(page) = pages.next().await {
            parts.extend(page.ok()?.parts.unwrap_or_default());
            // No upload has more; a server that lists without end is none to go on with.
            if parts.len() > MARK as usize {
                return None;
            }
        }
        let is_mark = |part: &Part| {
            part.part_number() == Some(MARK) && part.checksum_crc64_nvme() == Some(mark)
        };
        let last = parts.iter().filter_map(|part| part.last_modified()?.to_millis().ok()).max()?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok()?;
        let lease = self.config.silence * RETRY.tries;
        if !parts.iter().any(is_mark)
            || now.as_millis() < u128::try_from(last).ok()? + lease.as_millis()
        {
            return None;
        }
        let sent = |part: Part| {
            let (size, sum) = (part.size()?, part.checksum_crc64_nvme()?.to_owned());
            Some((part.part_number()?, Sent { size, sum, etag: part.e_tag }))
        };
        Some(parts.into_iter().filter_map(sent).collect())
    }

    /// Marks an upload while its parts are sent. Without the mark nobody takes it up, which is no
    /// harm.
    pub(super) fn put_mark(&self, object: &Object<'_>, upload: &Upload) -> AbortOnDropHandle<()> {
        let tag = tag(object.source).filter(|_| !upload.untagged);
        let body = mark(object, tag.as_deref());
        let (store, key, id) = (self.clone(), object.key.clone(), upload.id.clone());
        AbortOnDropHandle::new(tokio::spawn(async move {
            if let Err(refusal) = store.send_part(&key, &id, MARK, body).await {
                tracing::debug!(?refusal, "the upload can't be marked");
            }
        }))
    }

    /// Sends a part.
    pub(super) async fn send_part(
        &self,
        key: &str,
        id: &str,
        number: i32,
        body: Bytes,
    ) -> Result<CompletedPart, Refusal> {
        let sum = checksum(&body);
        let id = utf8_percent_encode(id, UNRESERVED);
        let put = Put {
            key,
            query: format!("partNumber={number}&uploadId={id}"),
            headers: vec![(CHECKSUM.into(), sum.clone())],
            digest: (!self.is_secure()).then(|| Digest::of(&body)),
            body,
        };
        let done = self.wire.put(put).await?;
        let etag = done.headers().get("etag").and_then(|etag| etag.to_str().ok());
        Ok(completed(number, sum, etag.map(str::to_owned)))
    }
}

impl Upload {
    /// The part of this number, if it is there already with these bytes.
    pub(super) fn part(&self, number: i32, bytes: &Bytes) -> Option<CompletedPart> {
        let Sent { size, sum, etag } = self.sent.get(&number)?;
        let same = u64::try_from(*size).is_ok_and(|size| size == bytes.len() as u64)
            && *sum == checksum(bytes);
        same.then(|| completed(number, sum.clone(), etag.clone()))
    }
}

/// A part as the request that completes the upload names it.
fn completed(number: i32, sum: String, etag: Option<String>) -> CompletedPart {
    CompletedPart::builder().part_number(number).checksum_crc64_nvme(sum).set_e_tag(etag).build()
}
