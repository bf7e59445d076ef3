//! Reads a blob from the storage behind GitHub's artifacts, through signed URLs that are valid for ten
//! minutes.

use bytes::Bytes;
use crcr_github::artifact::{self, Artifact, ArtifactServer};
use crcr_github::http::{self, RetryPolicy};
use crcr_github::runs_artifacts::ActionsApi;
use reqwest::{Client, Response, StatusCode, header};
use secrecy::{ExposeSecret as _, SecretString};
use tokio::sync::Mutex;

use super::{GitHubStore, STORE, SecretMask};
use crate::byte_range::{BlobBody, ByteRange, OpenError, is_strong, start_and_total};
use crate::store::ArtifactStoreError;

/// Requests a new signed URL when the current one has expired.
pub struct UrlBlob {
    http: Client,
    signer: UrlSigner,
    mask: SecretMask,
    url: Mutex<Option<SecretString>>,
    /// The length, when the server doesn't say it.
    counted: Mutex<Option<u64>>,
}

pub enum UrlSigner {
    /// For artifacts of the job's own run.
    Run {
        store: GitHubStore,
        artifact: Box<Artifact>,
    },
    Rest {
        actions: ActionsApi,
        repository: String,
        id: u64,
    },
}

impl UrlBlob {
    /// `mask` gets the signature of each URL before the URL is used.
    pub fn new(signer: UrlSigner, mask: SecretMask) -> Self {
        let http = match &signer {
            UrlSigner::Run { store, .. } => store.service().http().clone(),
            UrlSigner::Rest { actions, .. } => actions.http().clone(),
        };
        Self { http, signer, mask, url: Mutex::new(None), counted: Mutex::new(None) }
    }

    pub(crate) fn retry(&self) -> RetryPolicy {
        match &self.signer {
            UrlSigner::Run { store, .. } => store.service().retry(),
            UrlSigner::Rest { actions, .. } => actions.retry(),
        }
    }

    /// Opens the bytes from `start` up to `end` (exclusive), of the version `etag` if it is given.
    pub(crate) async fn open(
        &self,
        start: u64,
        end: u64,
        etag: Option<&str>,
    ) -> Result<ByteRange, OpenError> {
        let mut url = self.url().await?;
        let mut answer = self.get(&url, start, end, etag).await;
        // An expired URL gets the same status as an invalid one.
        if let Err(http::HttpError::Status { status, .. }) = &answer
            && is_refusal(*status)
        {
            self.forget(&url).await;
            url = self.url().await?;
            answer = self.get(&url, start, end, etag).await;
        }
        // What answers with a page may have given the URL, too.
        let is_page = match &answer {
            Ok(response) => is_foreign_page(response),
            Err(error) => matches!(error, http::HttpError::Intermediary { .. }),
        };
        if is_page {
            self.forget(&url).await;
        }
        match answer {
            Ok(response) => {
                let counted = match response.status() == StatusCode::OK && is_unsized(&response) {
                    true => Some(self.count(&url).await?),
                    false => None,
                };
                let mut range = byte_range(response, start, counted)?;
                let is_vague = range.content_type.as_deref().is_some_and(is_vague_type);
                range.has_vague_type = is_vague && self.is_imitation(&url);
                Ok(range)
            }
            Err(error) => self.failed(error),
        }
    }

    /// Whether the server isn't GitHub's. Gitea and Forgejo can have a storage of their own behind them, which knows
    /// no types.
    fn is_imitation(&self, url: &SecretString) -> bool {
        let is_gitea = match &self.signer {
            UrlSigner::Run { store, .. } => store.service().server() == ArtifactServer::Gitea,
            UrlSigner::Rest { .. } => false,
        };
        is_gitea || artifact::is_on_service(url)
    }

    /// Reads the blob once to count its bytes: act's server says its length nowhere.
    async fn count(&self, url: &SecretString) -> Result<u64, OpenError> {
        let mut counted = self.counted.lock().await;
        if let Some(total) = *counted {
            return Ok(total);
        }
        let broken = |message| OpenError::Transient { message, retry_after: None };
        let request = self.http.get(url.expose_secret());
        let mut body = http::send_once(request).await.map_err(|e| broken(e.to_string()))?;
        let mut total = 0;
        while let Some(chunk) =
            body.chunk().await.map_err(|e| broken(e.without_url().to_string()))?
        {
            total += chunk.len() as u64;
            if total > MAX_UNSIZED_BYTES {
                let message = "the server doesn't say how long the blob is, and it doesn't end";
                let message = message.to_owned();
                return Err(ArtifactStoreError::Refused { store: STORE, message }.into());
            }
        }
        *counted = Some(total);
        Ok(total)
    }

    async fn url(&self) -> Result<SecretString, OpenError> {
        let mut held = self.url.lock().await;
        if let Some(url) = &*held {
            return Ok(url.clone());
        }
        let url = match &self.signer {
            UrlSigner::Run { store, artifact } => store
                .service()
                .signed_url(artifact)
                .await
                .map_err(|error| store.error(error, &artifact.name))?,
            UrlSigner::Rest { actions, repository, id } => actions
                .archive_url(repository, *id)
                .await
                .map_err(|error| rest_error(error, &format!("artifact {id} of `{repository}`")))?,
        };
        for signature in artifact::signatures(&url) {
            (self.mask)(signature.expose_secret());
        }
        *held = Some(url.clone());
        Ok(url)
    }

    /// Drops the URL, unless another reader has replaced it already.
    async fn forget(&self, used: &SecretString) {
        let mut held = self.url.lock().await;
        if held.as_ref().is_some_and(|url| url.expose_secret() == used.expose_secret()) {
            *held = None;
        }
    }

    async fn get(
        &self,
        url: &SecretString,
        start: u64,
        end: u64,
        etag: Option<&str>,
    ) -> Result<Response, http::HttpError> {
        let mut request = self
            .http
            .get(url.expose_secret())
            .header(header::RANGE, format!("bytes={start}-{}", end - 1))
            .header(header::ACCEPT_ENCODING, "identity");
        if let Some(etag) = etag {
            request = request.header(header::IF_MATCH, etag);
        }
        http::send_once(request).await.map_err(http::HttpError::unless_page_or_redirect)
    }

    fn failed(&self, error: http::HttpError) -> Result<ByteRange, OpenError> {
        let message = error.to_string();
        match error.status() {
            Some(StatusCode::PRECONDITION_FAILED) => Err(OpenError::Changed),
            Some(StatusCode::RANGE_NOT_SATISFIABLE) => Ok(ByteRange::empty()),
            Some(StatusCode::NOT_FOUND) => Err(ArtifactStoreError::NotFound {
                store: STORE,
                what: format!(
                    "such blob ({message}); another upload may have replaced the artifact"
                ),
            }
            .into()),
            Some(status) if is_refusal(status) => {
                Err(ArtifactStoreError::Denied { store: STORE, message }.into())
            }
            _ if error.is_transient() => {
                Err(OpenError::Transient { message, retry_after: error.retry_after() })
            }
            _ => Err(ArtifactStoreError::Refused { store: STORE, message }.into()),
        }
    }
}

/// Converts an error of the REST API; `what` is what the call was about.
pub(crate) fn rest_error(error: crcr_github::GithubError, what: &str) -> ArtifactStoreError {
    use crcr_github::GithubError as Rest;
    let mut message = error.to_string();
    if let Some(source) = std::error::Error::source(&error) {
        message = format!("{message}: {source}");
    }
    match error {
        // GitHub answers 410 and "Artifact has expired".
        Rest::NotFound(text) if text.contains("has expired") => {
            ArtifactStoreError::Expired { what: what.to_owned() }
        }
        Rest::NotFound(_) => ArtifactStoreError::NotFound { store: STORE, what: what.to_owned() },
        Rest::Unauthorized(_) | Rest::Forbidden(_) => {
            ArtifactStoreError::Denied { store: STORE, message }
        }
        error if error.is_transient() => ArtifactStoreError::Unreachable { store: STORE, message },
        _ => ArtifactStoreError::Refused { store: STORE, message },
    }
}

/// Forgejo says this of every zip, and other servers of what they don't know.
pub(crate) fn is_vague_type(content_type: &str) -> bool {
    content_type.trim().eq_ignore_ascii_case("application/octet-stream")
}

fn is_refusal(status: StatusCode) -> bool {
    matches!(status.as_u16(), 401 | 403 | 410)
}

/// The most bytes that are read of a blob whose length isn't known.
const MAX_UNSIZED_BYTES: u64 = 64 << 30;

fn is_unsized(response: &Response) -> bool {
    response.content_length().is_none()
}

/// Whether a page isn't the storage's. That sends an ETag, also with a page that is an artifact.
fn is_foreign_page(response: &Response) -> bool {
    response.status() != StatusCode::PARTIAL_CONTENT
        && http::is_web_page(response.headers(), b"")
        && !response.headers().contains_key(header::ETAG)
}

/// `counted` is the length of the blob where the server doesn't say it.
fn byte_range(
    response: Response,
    requested_start: u64,
    counted: Option<u64>,
) -> Result<ByteRange, OpenError> {
    let text = |name: header::HeaderName| {
        response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
    };
    let whole = response.status() != StatusCode::PARTIAL_CONTENT;
    if is_foreign_page(&response) {
        let error = http::HttpError::Intermediary { status: response.status(), body: Bytes::new() };
        return Err(OpenError::Transient { message: error.to_string(), retry_after: None });
    }
    let (start, total) = if whole {
        (0, response.content_length().or(counted))
    } else {
        let range = text(header::CONTENT_RANGE).and_then(|range| start_and_total(&range));
        range.map_or((requested_start, None), |(start, total)| (start, Some(total)))
    };
    let unsized_error = || ArtifactStoreError::Refused {
        store: STORE,
        message: "the blob's storage doesn't say how long the blob is".to_owned(),
    };
    Ok(ByteRange {
        start,
        whole,
        total: total.ok_or_else(unsized_error)?,
        etag: text(header::ETAG).filter(|etag| is_strong(etag)),
        content_type: text(header::CONTENT_TYPE),
        file_name: text(header::CONTENT_DISPOSITION).as_deref().and_then(file_name),
        body: BlobBody::Http(Box::new(response)),
        ..ByteRange::default()
    })
}

/// The file name in a `Content-Disposition`; `filename*=UTF-8''…` wins over `filename="…"`. Only the
/// part after the last separator, because the name is untrusted.
fn file_name(disposition: &str) -> Option<String> {
    let parameter = |name: &str| {
        disposition.split(';').find_map(|pair| {
            let (key, value) = pair.split_once('=')?;
            key.trim().eq_ignore_ascii_case(name).then(|| value.trim().trim_matches('"').to_owned())
        })
    };
    let encoded = parameter("filename*").and_then(|value| {
        let (_, value) = value.split_once("''")?;
        Some(percent_encoding::percent_decode_str(value).decode_utf8().ok()?.into_owned())
    });
    let name = encoded.or_else(|| parameter("filename"))?;
    let name = name.rsplit(['/', '\\']).next().unwrap_or_default();
    (!name.is_empty()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_name_is_read_from_both_forms_of_content_disposition() {
        for (header, name) in [
            ("attachment; filename=\"a b.txt\"", Some("a b.txt")),
            ("attachment; filename=plain.txt; filename*=UTF-8''%C3%B6l.txt", Some("öl.txt")),
            ("attachment; filename=\"../../etc/passwd\"", Some("passwd")),
            ("attachment", None),
            ("attachment; filename=\"\"", None),
        ] {
            assert_eq!(file_name(header).as_deref(), name, "{header}");
        }
    }
}
