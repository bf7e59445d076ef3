//! Reads objects and lists of a bucket.

use std::collections::HashMap;

use aws_sdk_s3::operation::get_object::GetObjectOutput;
use crcr_github::http::RetryPolicy;

use super::{S3Refusal, S3Store, STORE, WITHOUT_ETAG, WITHOUT_REASON};
use crate::byte_range::{BlobBody, ByteRange, OpenError, is_strong, start_and_total};
use crate::layout::{self, META_MODE};
use crate::locator::{Locator, LocatorError, MAX_BYTES};
use crate::store::ArtifactStoreError;

/// A longer list is refused.
const MAX_KEYS: usize = 2_000_000;

#[derive(Debug, Clone)]
pub struct S3Blob {
    pub store: S3Store,
    pub key: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedObject {
    pub key: String,
    pub size: u64,
    pub modified: Option<jiff::Timestamp>,
}

impl S3Blob {
    /// Opens the bytes from `start` up to `end` (exclusive), of the version `etag` if it is given.
    pub(crate) async fn open(
        &self,
        start: u64,
        end: u64,
        etag: Option<&str>,
    ) -> Result<ByteRange, OpenError> {
        let get = |range: Option<String>| {
            let get = self.store.client().get_object().bucket(self.store.bucket()).key(&self.key);
            let get = get.set_range(range).set_if_match(etag.map(str::to_owned));
            get.customize().interceptor(WITHOUT_ETAG).interceptor(WITHOUT_REASON).send()
        };
        let range = format!("bytes={start}-{}", end - 1);
        let mut answer = self.store.send(|| get(Some(range.clone()))).await;
        // No range of an empty object exists. Without one, its metadata come with it.
        if start == 0 && answer.as_ref().is_err_and(S3Refusal::is_beyond_the_end) {
            answer = self.store.send(|| get(None)).await;
        }
        let output = match answer {
            Ok(output) => output,
            Err(refusal) if refusal.is_beyond_the_end() => return Ok(ByteRange::empty()),
            Err(refusal) if refusal.status == Some(412) => return Err(OpenError::Changed),
            Err(refusal) => return Err(self.store.error(refusal, &self.key).into()),
        };
        let whole = output.content_range().is_none();
        let length = || output.content_length().and_then(|length| u64::try_from(length).ok());
        let (start, total) = match output.content_range().map(start_and_total) {
            Some(range) => range.map_or((start, None), |(start, total)| (start, Some(total))),
            None => (0, length()),
        };
        let meta = |name: &str| output.metadata().and_then(|all: &HashMap<_, _>| all.get(name));
        Ok(ByteRange {
            start,
            whole,
            total: total.ok_or_else(|| ArtifactStoreError::Refused {
                store: STORE,
                message: format!("the server doesn't say how long `{}` is", self.key),
            })?,
            etag: output.e_tag().filter(|etag| is_strong(etag)).map(str::to_owned),
            content_type: output.content_type().map(str::to_owned),
            digest: layout::digest_in_metadata(meta),
            mode: meta(META_MODE).and_then(|text| u32::from_str_radix(text, 8).ok()),
            body: BlobBody::S3(Box::new(output.body)),
            ..ByteRange::default()
        })
    }
}

/// An object that is read as a whole.
pub struct SmallObject {
    /// `None` if there are more bytes than wanted.
    pub bytes: Option<Vec<u8>>,
    pub etag: Option<String>,
}

impl S3Store {
    pub(crate) async fn get(&self, key: &str) -> Result<GetObjectOutput, ArtifactStoreError> {
        let get = || {
            let get = self.client().get_object().bucket(self.bucket()).key(key);
            get.customize().interceptor(WITHOUT_ETAG).interceptor(WITHOUT_REASON).send()
        };
        self.send(get).await.map_err(|refusal| self.error(refusal, key))
    }

    /// Reads an object of at most `max` bytes; again if its answer breaks off.
    pub(crate) async fn read_small(
        &self,
        key: &str,
        max: usize,
    ) -> Result<SmallObject, ArtifactStoreError> {
        let mut tries = self.retry().start();
        loop {
            let mut answer = self.get(key).await?;
            let etag = answer.e_tag().map(str::to_owned);
            let mut bytes = Vec::new();
            let broken = loop {
                match answer.body.try_next().await {
                    Ok(Some(chunk)) if bytes.len() + chunk.len() > max => {
                        return Ok(SmallObject { bytes: None, etag });
                    }
                    Ok(Some(chunk)) => bytes.extend_from_slice(&chunk),
                    Ok(None) => return Ok(SmallObject { bytes: Some(bytes), etag }),
                    Err(error) => break error.to_string(),
                }
            };
            if !tries.wait_to_retry(&broken, None).await {
                return Err(ArtifactStoreError::Unreachable { store: STORE, message: broken });
            }
        }
    }

    /// A locator and its ETag. One that isn't JSON is read again, because something in between may have cut it.
    pub(crate) async fn read_locator(
        &self,
        key: &str,
    ) -> Result<(Result<Locator, LocatorError>, Option<String>), ArtifactStoreError> {
        let mut tries = RetryPolicy { tries: 4, ..self.retry() }.start();
        loop {
            let there = self.read_small(key, MAX_BYTES).await?;
            let too_large = || Err(LocatorError::TooLarge(MAX_BYTES + 1));
            match there.bytes.map_or_else(too_large, |bytes| Locator::parse(&bytes)) {
                Err(error @ LocatorError::Malformed(_))
                    if tries.wait_to_retry(&error, None).await => {}
                parsed => return Ok((parsed, there.etag)),
            }
        }
    }

    /// Lists all objects whose keys start with `prefix`. With `folders`, keys with a further slash are
    /// grouped: the second result has these folders, each with its final slash.
    pub async fn list(
        &self,
        prefix: &str,
        folders: bool,
    ) -> Result<(Vec<ListedObject>, Vec<String>), ArtifactStoreError> {
        let (mut objects, mut below, mut next) = (Vec::new(), Vec::new(), None);
        loop {
            let list = || {
                let list = self.client().list_objects_v2().bucket(self.bucket()).prefix(prefix);
                list.set_delimiter(folders.then(|| "/".to_owned()))
                    .set_continuation_token(next.clone())
                    .customize()
                    .interceptor(WITHOUT_REASON)
                    .send()
            };
            let page = self.send(list).await.map_err(|refusal| self.error(refusal, prefix))?;
            for object in page.contents() {
                let modified = object
                    .last_modified()
                    .and_then(|at| jiff::Timestamp::from_second(at.secs()).ok());
                objects.push(ListedObject {
                    key: object.key().unwrap_or_default().to_owned(),
                    size: object.size().and_then(|size| u64::try_from(size).ok()).unwrap_or(0),
                    modified,
                });
            }
            let folders = page.common_prefixes().iter().filter_map(|common| common.prefix());
            below.extend(folders.map(str::to_owned));
            if objects.len() + below.len() > MAX_KEYS {
                let message = format!("there are more than {MAX_KEYS} objects below `{prefix}`");
                return Err(ArtifactStoreError::Refused { store: STORE, message });
            }
            next = page.next_continuation_token().map(str::to_owned);
            match (&next, page.is_truncated()) {
                // A server that knows only the first version of lists.
                (None, Some(true)) => {
                    let message =
                        format!("the list of `{prefix}` is cut, and doesn't say how to go on");
                    return Err(ArtifactStoreError::Refused { store: STORE, message });
                }
                (None, _) | (_, Some(false)) => return Ok((objects, below)),
                (Some(_), _) => {}
            }
        }
    }
}
