//! Storing an artifact with GitHub: take the name, put the blocks, commit them, finalize.
//!
//! Blocks: <https://learn.microsoft.com/en-us/rest/api/storageservices/put-block>

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use crcr_github::artifact::{self, Artifact};
use crcr_github::http::{self, Retry};
use jiff::{SignedDuration, Timestamp};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Client;
use secrecy::{ExposeSecret as _, SecretString};

use super::{GitHubStore, STORE};
use crate::blocks::{Blocks, Made};
use crate::digest::Digest;
use crate::locator::{Archive, Locator, MAX_BYTES, SUFFIX};
use crate::source::{Source, Stored, content_type};
use crate::store::Error;
use crate::store::send::{self, Start};

/// The usual size of a block: small, so that many are on their way on a line with latency.
const BLOCK: usize = 4 * 1024 * 1024;
/// The most blocks of a blob.
const MAX_BLOCKS: u64 = 50_000;

/// Time for slow lines, and for a storage that is down for a while.
const PATIENT: Retry = Retry { tries: 6, ..Retry::PATIENT };

/// What holds a name that is taken.
enum Holder {
    /// An artifact with these bytes.
    Same(u64, Made),
    /// An unfinished upload, or an artifact to replace.
    Replaceable,
}

impl GitHubStore {
    /// Stores an artifact. What fails or is stopped on the way is deleted again.
    pub async fn put(&self, source: &Source) -> Result<Stored, Error> {
        // A blob of GitHub is one zip, or one file that whoever fetches it finds under the
        // artifact's name.
        let raw = source.archive == Archive::None
            && matches!(source.entries.as_slice(), [only] if only.path == source.name);
        let archive = if raw { Archive::None } else { Archive::Zip };
        let size = send::block_size(BLOCK, source.size_limit(), MAX_BLOCKS);
        let open = || match source.entries.as_slice() {
            [only] if raw => source.file(only, size),
            _ => source.zip(size),
        };
        let mime = match raw {
            true => content_type(&source.entries[0].path),
            false => "application/zip".to_owned(),
        };
        let (id, made, already) = match self.take(source, &mime, &open).await? {
            Ok((url, blocks)) => {
                let stored = self.fill(source, &url, &mime, blocks).await;
                let (id, made) = self.or_delete(&source.name, stored).await?;
                (id, made, false)
            }
            Err((id, made)) => (id, made, true),
        };
        let digests = if raw { vec![made.digest] } else { made.files.clone() };
        Ok(Stored {
            digest: made.digest,
            size: made.size,
            files: source.files(&digests),
            already,
            untagged: false,
            leftover: None,
            artifact_id: Some(id),
            archive,
        })
    }

    /// Stores the locator of an artifact as one of its own, in place of an older one.
    pub async fn put_locator(
        &self,
        locator: &Locator,
        retention: Option<u32>,
    ) -> Result<(), Error> {
        let name = format!("{}{SUFFIX}", locator.name);
        let bytes = Bytes::from(locator.to_json(MAX_BYTES));
        let mime = "application/json";
        let url = match self.create(&name, retention, mime).await {
            Err(artifact::Error::NameTaken) => {
                self.delete(&name).await?;
                self.create(&name, retention, mime).await
            }
            other => other,
        };
        let url = url.map_err(|e| self.error(e, &name))?;
        let made = Made { size: bytes.len() as u64, digest: Digest::of(&bytes), files: vec![] };
        let stored = match self.put_blob(&url, mime, &bytes).await {
            Ok(()) => self.finalize(&name, &made).await,
            Err(error) => Err(error),
        };
        self.or_delete(&name, stored).await.map(|_| ())
    }

    /// Takes the name, for a blob that is made meanwhile; the inner error is an artifact with the
    /// same bytes.
    async fn take(
        &self,
        source: &Source,
        mime: &str,
        open: &impl Fn() -> Blocks,
    ) -> Result<Result<(SecretString, Blocks), (u64, Made)>, Error> {
        let create = || self.create(&source.name, source.retention_days, mime);
        let blocks = open();
        match create().await {
            Ok(url) => return Ok(Ok((url, blocks))),
            // One blob's buffers are enough.
            Err(artifact::Error::NameTaken) => drop(blocks),
            Err(error) => return Err(self.error(error, &source.name)),
        }
        if let Holder::Same(id, made) = self.holder(source, open).await? {
            return Ok(Err((id, made)));
        }
        self.delete(&source.name).await?;
        let url = create().await.map_err(|e| self.error(e, &source.name))?;
        Ok(Ok((url, open())))
    }

    /// Who holds the name, and whether it may be taken from them.
    async fn holder(&self, source: &Source, open: &impl Fn() -> Blocks) -> Result<Holder, Error> {
        let list = |name: String| async move {
            self.service().list(Some(&name)).await.map_err(|e| self.error(e, &name))
        };
        let Some(there) = list(source.name.clone()).await?.into_iter().next() else {
            return Ok(Holder::Replaceable);
        };
        let digest: Option<Digest> = there.digest.as_deref().and_then(|text| text.parse().ok());
        if digest.is_some() {
            let made = open().digest().await?;
            if digest == Some(made.digest) {
                return Ok(Holder::Same(there.database_id, made));
            }
        }
        if source.overwrite || self.is_of_earlier_attempt(source, &there).await? {
            return Ok(Holder::Replaceable);
        }
        let message = format!("the run has an artifact `{}` with other content", source.name);
        Err(Error::Conflict { store: STORE, message })
    }

    /// Whether `there` was left by an earlier attempt of this job: its locator says so. Without
    /// one (an upload that was killed before it wrote it), another job of the service's made it in
    /// a run that has been tried before.
    async fn is_of_earlier_attempt(
        &self,
        source: &Source,
        there: &Artifact,
    ) -> Result<bool, Error> {
        let name = format!("{}{SUFFIX}", source.name);
        if source.attempt <= 1 || there.ids == *self.service().ids() {
            return Ok(false);
        }
        let found = self.service().list(Some(&name)).await.map_err(|e| self.error(e, &name))?;
        let Some(locator) = found.into_iter().next() else { return Ok(true) };
        let url = self.service().signed_url(&locator).await.map_err(|e| self.error(e, &name))?;
        self.mask_signature(&url);
        let read = async {
            let get = || self.service().http().get(url.expose_secret());
            http::read(http::send(Retry::default(), get).await?, MAX_BYTES).await
        };
        let bytes = read.await.map_err(|e| blob_error(&e))?;
        Ok(match Locator::parse(&bytes) {
            Ok(locator) => locator.job == source.job && locator.run_attempt < source.attempt,
            Err(_) => true,
        })
    }

    async fn create(
        &self,
        name: &str,
        retention_days: Option<u32>,
        mime: &str,
    ) -> Result<SecretString, artifact::Error> {
        let expires = retention_days.and_then(|days| {
            Timestamp::now().checked_add(SignedDuration::from_hours(i64::from(days) * 24)).ok()
        });
        let url = self.service().create(name, expires, mime).await?;
        self.mask_signature(&url);
        Ok(url)
    }

    async fn delete(&self, name: &str) -> Result<(), Error> {
        match self.service().delete(name).await {
            Ok(()) | Err(artifact::Error::NotFound) => Ok(()),
            Err(error) => Err(self.error(error, name)),
        }
    }

    /// Deletes what a failed upload leaves behind; its own error is the one that is told.
    async fn or_delete<T>(&self, name: &str, result: Result<T, Error>) -> Result<T, Error> {
        if result.is_err()
            && let Err(error) = self.delete(name).await
        {
            tracing::debug!(%error, "the unfinished upload can't be deleted");
        }
        result
    }

    async fn fill(
        &self,
        source: &Source,
        url: &SecretString,
        mime: &str,
        blocks: Blocks,
    ) -> Result<(u64, Made), Error> {
        let made = match send::start(blocks).await? {
            Start::Whole(bytes, made) => {
                self.put_blob(url, mime, &bytes).await?;
                made
            }
            Start::Long(first, blocks) => {
                let put =
                    |n, block| put_block(self.service().http().clone(), url.clone(), n, block);
                let (ids, made) = send::all(first, blocks, &source.stop, put).await?;
                self.put_block_list(url, mime, &ids).await?;
                made
            }
        };
        if source.stop.is_cancelled() {
            return Err(Error::Stopped);
        }
        self.finalize(&source.name, &made).await
    }

    async fn put_blob(&self, url: &SecretString, mime: &str, bytes: &Bytes) -> Result<(), Error> {
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
    ) -> Result<(), Error> {
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

    /// Finalizes; before every further try the list tells whether the last one arrived after all.
    async fn finalize(&self, name: &str, made: &Made) -> Result<(u64, Made), Error> {
        let hash = made.digest.to_string();
        let mut tries = self.service().retry().start();
        loop {
            let error = match self.service().finalize(name, made.size, &hash).await {
                Ok(id) => return Ok((id, made.clone())),
                Err(error) => error,
            };
            if !error.is_transient() || !tries.again(&error, error.retry_after()).await {
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

/// Puts block `n` and gives its id. All ids of a blob must have one length.
async fn put_block(
    client: Client,
    url: SecretString,
    n: usize,
    bytes: Bytes,
) -> Result<String, Error> {
    let id = STANDARD.encode(format!("crcr-{n:08}"));
    let encoded = utf8_percent_encode(&id, NON_ALPHANUMERIC);
    let url = format!("{}&comp=block&blockid={encoded}", url.expose_secret());
    let put =
        || client.put(&url).header("content-type", "application/octet-stream").body(bytes.clone());
    http::send(PATIENT, put).await.map_err(|e| blob_error(&e))?;
    Ok(id)
}

fn blob_error(error: &http::Error) -> Error {
    let message = error.to_string();
    match error.status().map(|status| status.as_u16()) {
        Some(401 | 403) => Error::Denied {
            store: STORE,
            message: format!("{message}; a URL for an upload lives about an hour"),
        },
        None | Some(408 | 429 | 500..) => Error::Unreachable { store: STORE, message },
        Some(_) => Error::Refused { store: STORE, message },
    }
}
