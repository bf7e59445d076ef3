//! The artifact service of GitHub Actions ("v4"): five methods over Twirp.
//!
//! The service is undocumented; the wire format is the one of the official client,
//! <https://github.com/actions/toolkit/tree/main/packages/artifact>. Requests are JSON with the
//! names of the protocol, 64-bit numbers as strings, defaults left out; answers may use camel case
//! and have fields that are unknown here.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use reqwest::{Client, Response, StatusCode};
use secrecy::{ExposeSecret as _, SecretString};
use serde::de::{self, DeserializeOwned};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use url::Url;

use crate::http::{self, HttpError, RetryLoop, RetryPolicy};

const SERVICE_PATH: &str = "/twirp/github.actions.results.api.v1.ArtifactService/";
/// The artifact format of this client.
const ARTIFACT_VERSION: u32 = 7;
/// A list takes less than a kilobyte per artifact.
const MAX_ANSWER_BYTES: usize = 16 * 1024 * 1024;
const MAX_TOKEN_BYTES: usize = 64 * 1024;
/// How often a list is asked for whose answer is `{}`. Servers that imitate GitHub's leave an empty list out like this,
/// and something in between may answer with it, too.
const MAX_ASKED_FOR_NOTHING: u32 = 3;

/// The artifact service, called with one job's token.
#[derive(Debug, Clone)]
pub struct ArtifactService {
    http: Client,
    base: Url,
    token: SecretString,
    ids: BackendIds,
    retry: RetryPolicy,
    server: ArtifactServer,
}

/// Which server has the service, where that shows in its answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArtifactServer {
    GitHub,
    /// It may have no artifact service. Then its page of status 404 says so, and isn't an outage.
    Enterprise,
    /// Or Forgejo: a run without artifacts has a list of status 404.
    Gitea,
}

/// The service's own ids of a workflow run and of one job in it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct BackendIds {
    #[serde(rename = "workflow_run_backend_id", alias = "workflowRunBackendId")]
    pub run: String,
    #[serde(rename = "workflow_job_run_backend_id", alias = "workflowJobRunBackendId")]
    pub job: String,
}

/// Where a reserved artifact's blob goes.
#[derive(Debug, Clone)]
pub struct UploadTarget {
    /// Signed, so it is a secret.
    pub url: SecretString,
    /// Whether the service knows the content type. It takes an artifact without one for a zip.
    pub has_mime_type: bool,
}

impl UploadTarget {
    /// Whether the service itself stores the blob, as Gitea, Forgejo and act do. GitHub has Azure for
    /// that. These servers write blocks in the order in which they arrive, and check nothing.
    pub fn is_on_service(&self) -> bool {
        is_on_service(&self.url)
    }
}

#[derive(Debug, Clone, Deserialize)]
pub struct Artifact {
    /// The run and job that uploaded it.
    #[serde(flatten)]
    pub ids: BackendIds,
    /// Its number in the REST API.
    #[serde(alias = "databaseId", deserialize_with = "number")]
    pub database_id: u64,
    /// Unique in an attempt of the run; the list has those of all attempts.
    pub name: String,
    /// The size of the stored blob, in bytes.
    #[serde(default, deserialize_with = "number")]
    pub size: u64,
    #[serde(alias = "createdAt")]
    pub created_at: Option<Timestamp>,
    /// `sha256:` and the digest of the stored blob; old artifacts have none.
    pub digest: Option<String>,
}

/// Why a call to the artifact service failed.
#[derive(Debug, thiserror::Error)]
pub enum ArtifactServiceError {
    #[error("the runtime token isn't one of GitHub Actions: {0}")]
    Token(&'static str),
    #[error("the address of the artifact service isn't a URL: {0}")]
    Address(#[from] url::ParseError),
    /// Names are unique in an attempt of a run; an unfinished upload counts.
    #[error("the run has an artifact of this name, or an unfinished upload of it")]
    NameTaken {
        /// Whether an earlier try failed so that it may have reserved the name.
        maybe_by_us: bool,
    },
    #[error("the artifact service has no such artifact")]
    NotFound,
    /// The account's storage for artifacts is full.
    #[error("the storage for artifacts is full: {0}")]
    Quota(String),
    /// The service doesn't accept the token for this call.
    #[error("the artifact service refused {method}: {message}")]
    Denied { method: &'static str, message: String },
    #[error("the artifact service refused {method}: {message}")]
    Refused { method: &'static str, message: String },
    /// All tries are used up.
    #[error("the artifact service gave no usable answer to {method}")]
    Http { method: &'static str, source: HttpError },
}

impl ArtifactServiceError {
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Http { source, .. } if source.is_transient())
    }

    /// Whether the call may have been served although this is its answer.
    pub(crate) fn may_be_applied(&self) -> bool {
        matches!(self, Self::Http { source, .. } if source.may_be_applied())
    }

    /// The status of the answer, when the service gave no reason of its own.
    pub fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Http { source, .. } => source.status(),
            _ => None,
        }
    }

    /// This error and its cause, on one line.
    pub fn with_cause(&self) -> String {
        match self {
            Self::Http { source, .. } => format!("{self}: {source}"),
            error => error.to_string(),
        }
    }

    /// This error with what `tries` did to avoid it.
    #[must_use]
    pub fn after(self, tries: &RetryLoop) -> Self {
        match self {
            Self::Http { method, source } => Self::Http { method, source: source.after(tries) },
            error => error,
        }
    }

    /// How long the service wants us to wait.
    pub fn retry_after(&self) -> Option<std::time::Duration> {
        match self {
            Self::Http { source, .. } => source.retry_after(),
            _ => None,
        }
    }
}

impl BackendIds {
    /// Reads the ids from the claim `scp` of a runtime token, without checking its signature: the
    /// service does.
    fn from_token(token: &SecretString) -> Result<Self, ArtifactServiceError> {
        #[derive(Deserialize)]
        struct Claims {
            scp: String,
        }
        let token = token.expose_secret();
        if token.len() > MAX_TOKEN_BYTES {
            return Err(ArtifactServiceError::Token("it is too long"));
        }
        let payload =
            token.split('.').nth(1).ok_or(ArtifactServiceError::Token("it isn't a JWT"))?;
        let claims = URL_SAFE_NO_PAD
            .decode(payload.trim_end_matches('='))
            .map_err(|_| ArtifactServiceError::Token("its claims aren't base64"))?;
        let Claims { scp } = serde_json::from_slice(&claims)
            .map_err(|_| ArtifactServiceError::Token("its claims have no `scp`"))?;
        scp.split(' ')
            .find_map(|scope| match *scope.split(':').collect::<Vec<_>>() {
                ["Actions.Results", run, job] if !run.is_empty() && !job.is_empty() => {
                    Some(Self { run: run.to_owned(), job: job.to_owned() })
                }
                _ => None,
            })
            .ok_or(ArtifactServiceError::Token("its `scp` has no `Actions.Results:{run}:{job}`"))
    }
}

impl ArtifactService {
    /// The service at the origin of `results_url`, for the job that `token` belongs to.
    pub fn new(
        http: Client,
        results_url: &str,
        token: SecretString,
    ) -> Result<Self, ArtifactServiceError> {
        let base = Url::parse(results_url)?.join(SERVICE_PATH)?;
        let ids = BackendIds::from_token(&token)?;
        let (retry, server) = (RetryPolicy::default(), ArtifactServer::GitHub);
        Ok(Self { http, base, token, ids, retry, server })
    }

    #[must_use]
    pub fn on(self, server: ArtifactServer) -> Self {
        Self { server, ..self }
    }

    pub fn server(&self) -> ArtifactServer {
        self.server
    }

    /// Whether the server says by this error that it has no artifact service.
    pub fn is_missing(&self, error: &ArtifactServiceError) -> bool {
        let status = error.status().map_or(0, |status| status.as_u16());
        self.server == ArtifactServer::Enterprise && matches!(status, 404 | 405)
    }

    #[must_use]
    pub fn with_retry(self, retry: RetryPolicy) -> Self {
        Self { retry, ..self }
    }

    /// The HTTP client, for the signed URLs that the service returns.
    pub fn http(&self) -> &Client {
        &self.http
    }

    pub fn retry(&self) -> RetryPolicy {
        self.retry
    }

    pub fn ids(&self) -> &BackendIds {
        &self.ids
    }

    /// Reserves a name, and returns where to upload the blob to, which works for about an hour.
    ///
    /// Servers that imitate GitHub's answer 500 to a field that they don't know, as `mime_type`. So
    /// after a 500 every second try leaves it out; without it an artifact is a zip.
    pub async fn create(
        &self,
        name: &str,
        expires_at: Option<Timestamp>,
        mime_type: &str,
    ) -> Result<UploadTarget, ArtifactServiceError> {
        #[derive(Deserialize)]
        struct Answer {
            #[serde(default, alias = "signedUploadUrl")]
            signed_upload_url: String,
        }
        let mut body = self.body_with_name(name);
        body["version"] = ARTIFACT_VERSION.into();
        if let Some(expires_at) = expires_at {
            body["expires_at"] = expires_at.to_string().into();
        }
        let plain = body.clone();
        body["mime_type"] = mime_type.into();
        let (mut tries, mut maybe_by_us, mut has_mime_type) = (self.retry.start(), false, true);
        let answer: Answer = loop {
            let request = if has_mime_type { &body } else { &plain };
            let error = match self.call("CreateArtifact", RetryPolicy::ONCE, request).await {
                Ok(answer) => break answer,
                Err(ArtifactServiceError::NameTaken { .. }) => {
                    return Err(ArtifactServiceError::NameTaken { maybe_by_us });
                }
                Err(error) => error,
            };
            // The request may have reserved the name although its answer is an error.
            maybe_by_us |= error.may_be_applied();
            let is_500 = error.status() == Some(StatusCode::INTERNAL_SERVER_ERROR);
            has_mime_type = !(is_500 && has_mime_type);
            if !error.is_transient()
                || !tries.wait_to_retry(&error.with_cause(), error.retry_after()).await
            {
                return Err(error.after(&tries));
            }
        };
        if answer.signed_upload_url.is_empty() {
            return Err(refused("CreateArtifact", "it gave no URL for the upload"));
        }
        Ok(UploadTarget { url: answer.signed_upload_url.into(), has_mime_type })
    }

    /// Turns the uploaded blob into an artifact, and returns its number. Tried once: after a lost
    /// answer the caller has to look at [`Self::list`] first.
    ///
    /// `hash` is `sha256:` and the hexadecimal digest of the blob of `size` bytes.
    pub async fn finalize(
        &self,
        name: &str,
        size: u64,
        hash: &str,
    ) -> Result<u64, ArtifactServiceError> {
        #[derive(Deserialize)]
        struct Answer {
            #[serde(default, alias = "artifactId", deserialize_with = "number")]
            artifact_id: u64,
        }
        let mut body = self.body_with_name(name);
        body["size"] = size.to_string().into();
        body["hash"] = hash.into();
        let answer: Answer = self.call("FinalizeArtifact", RetryPolicy::ONCE, &body).await?;
        match answer.artifact_id {
            0 => Err(refused("FinalizeArtifact", "it gave no artifact")),
            id => Ok(id),
        }
    }

    /// The finished artifacts of all jobs of the run, or only the one called `name`.
    pub async fn list(&self, name: Option<&str>) -> Result<Vec<Artifact>, ArtifactServiceError> {
        #[derive(Deserialize)]
        struct Answer {
            artifacts: Option<Vec<Artifact>>,
        }
        let mut body = Self::body_with_ids(&self.ids);
        if let Some(name) = name {
            body["name_filter"] = name.into();
        }
        let tries = self.retry.tries.min(MAX_ASKED_FOR_NOTHING);
        let mut tries = RetryPolicy { tries, ..self.retry }.start();
        let mut artifacts = loop {
            let Answer { artifacts } = match self.call("ListArtifacts", self.retry, &body).await {
                Err(ArtifactServiceError::Http { source, .. })
                    if self.server == ArtifactServer::Gitea
                        && source.status() == Some(StatusCode::NOT_FOUND) =>
                {
                    return Ok(vec![]);
                }
                answer => answer?,
            };
            let is_sure = artifacts.is_some() || self.server == ArtifactServer::Gitea;
            if is_sure || !tries.wait_to_retry(&"the answer has no list", None).await {
                break artifacts.unwrap_or_default();
            }
        };
        artifacts.retain(|artifact| name.is_none_or(|name| artifact.name == name));
        Ok(artifacts)
    }

    /// A signed URL to download the blob of `artifact` from, which works for about ten minutes.
    pub async fn signed_url(
        &self,
        artifact: &Artifact,
    ) -> Result<SecretString, ArtifactServiceError> {
        #[derive(Deserialize)]
        struct Answer {
            #[serde(default, alias = "signedUrl")]
            signed_url: String,
        }
        let mut body = Self::body_with_ids(&artifact.ids);
        body["name"] = artifact.name.as_str().into();
        let answer: Answer = self.call("GetSignedArtifactURL", self.retry, &body).await?;
        if answer.signed_url.is_empty() {
            return Err(refused("GetSignedArtifactURL", "it gave no URL"));
        }
        Ok(answer.signed_url.into())
    }

    /// Deletes the artifact or the unfinished upload called `name` of this job.
    pub async fn delete_own(&self, name: &str) -> Result<(), ArtifactServiceError> {
        self.delete(&self.ids, name).await
    }

    /// Deletes the artifact or the unfinished upload called `name` of the job with these ids. An
    /// answer that was lost counts as a success when there is nothing to delete any more.
    pub async fn delete(&self, ids: &BackendIds, name: &str) -> Result<(), ArtifactServiceError> {
        let mut body = Self::body_with_ids(ids);
        body["name"] = name.into();
        let (mut tries, mut maybe_done) = (self.retry.start(), false);
        loop {
            match self.call::<Value>("DeleteArtifact", RetryPolicy::ONCE, &body).await {
                Ok(_) => return Ok(()),
                Err(ArtifactServiceError::NotFound) if maybe_done => return Ok(()),
                Err(error) => {
                    maybe_done |= error.may_be_applied();
                    if !error.is_transient()
                        || !tries.wait_to_retry(&error.with_cause(), error.retry_after()).await
                    {
                        return Err(error.after(&tries));
                    }
                }
            }
        }
    }

    fn body_with_ids(ids: &BackendIds) -> Value {
        json!({"workflow_run_backend_id": ids.run, "workflow_job_run_backend_id": ids.job})
    }

    fn body_with_name(&self, name: &str) -> Value {
        let mut body = Self::body_with_ids(&self.ids);
        body["name"] = name.into();
        body
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: &'static str,
        retry: RetryPolicy,
        body: &Value,
    ) -> Result<T, ArtifactServiceError> {
        let url = self.base.join(method)?;
        let value = http::with_retries(retry, || async {
            let answer = self.send(url.clone(), body).await?;
            let status = answer.status();
            let body = http::read(answer, MAX_ANSWER_BYTES).await?;
            // All answers of the service are JSON with certain fields, so another one is a proxy's.
            match serde_json::from_slice::<Value>(&body) {
                Ok(value) if is_answer(method, &value) => Ok(value),
                _ => Err(HttpError::Intermediary { status, body }),
            }
        });
        let value = value.await.map_err(|error| service_error(method, error))?;
        if value.get("ok") == Some(&Value::Bool(false)) {
            return Err(refused(method, "it answered `ok: false`"));
        }
        serde_json::from_value(value).map_err(|error| {
            let source = HttpError::Malformed(error.to_string());
            ArtifactServiceError::Http { method, source }
        })
    }
}

impl ArtifactService {
    /// Sends a call. A refusal that isn't JSON may be of something in between, or of a server that refuses in plain text,
    /// as Gitea and Forgejo do; so it is sent again some times.
    async fn send(&self, url: Url, body: &Value) -> Result<Response, HttpError> {
        let mut unclear = RetryPolicy { tries: 4, ..self.retry }.start();
        loop {
            let request = self.http.post(url.clone()).bearer_auth(self.token.expose_secret());
            let error = match http::send_once(request.json(body)).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let status = error.status().map_or(0, |status| status.as_u16());
            if self.server == ArtifactServer::Enterprise && matches!(status, 404 | 405) {
                return Err(error);
            }
            let error = error.unless_page_or_redirect();
            let is_unclear = matches!(&error, HttpError::Status { body, .. }
                if matches!(status, 403 | 405..=499) && status != 407 && !error.is_transient()
                    && serde_json::from_slice::<Value>(body).is_err());
            if !is_unclear || !unclear.wait_to_retry(&error, None).await {
                return Err(error);
            }
        }
    }
}

/// Whether `server_url` (`GITHUB_SERVER_URL`) is a GitHub Enterprise Server, which doesn't have
/// this artifact service.
pub fn is_enterprise_server(server_url: &str) -> bool {
    let Ok(url) = Url::parse(server_url) else { return false };
    let host = url.host_str().unwrap_or_default().to_ascii_lowercase();
    !(host == "github.com" || host.ends_with(".ghe.com") || host.ends_with(".localhost"))
}

/// Whether a signed URL is of the service itself, as those of Gitea, Forgejo and act are.
pub fn is_on_service(signed_url: &SecretString) -> bool {
    Url::parse(signed_url.expose_secret()).is_ok_and(|url| url.path().contains(SERVICE_PATH))
}

/// The values of `sig` in the query of a signed URL, raw, decoded and encoded, to mask in logs.
pub fn signatures(signed_url: &SecretString) -> Vec<SecretString> {
    let query = signed_url.expose_secret().split_once('?').map_or("", |(_, query)| query);
    let mut found = Vec::new();
    for raw in query.split('&').filter_map(|pair| pair.strip_prefix("sig=")) {
        let decoded = percent_encoding::percent_decode_str(raw).decode_utf8_lossy();
        let encoded =
            percent_encoding::utf8_percent_encode(&decoded, percent_encoding::NON_ALPHANUMERIC);
        let mut forms = vec![raw.to_owned(), decoded.to_string(), encoded.to_string()];
        forms.sort_unstable();
        forms.dedup();
        found.extend(forms.into_iter().filter(|form| !form.is_empty()).map(SecretString::from));
    }
    found
}

/// Whether JSON may be an answer to this method: it has one of the fields that matter.
fn is_answer(method: &str, value: &Value) -> bool {
    let fields: &[&str] = match method {
        "CreateArtifact" => &["signed_upload_url", "signedUploadUrl"],
        "FinalizeArtifact" => &["artifact_id", "artifactId"],
        "GetSignedArtifactURL" => &["signed_url", "signedUrl"],
        "ListArtifacts" => &["artifacts"],
        _ => &["ok", "artifact_id", "artifactId"],
    };
    let Some(object) = value.as_object() else { return false };
    let is_empty_list = method == "ListArtifacts" && object.is_empty();
    let is_refusal = object.get("ok") == Some(&Value::Bool(false));
    is_empty_list || is_refusal || fields.iter().any(|field| object.contains_key(*field))
}

fn refused(method: &'static str, message: &str) -> ArtifactServiceError {
    ArtifactServiceError::Refused { method, message: message.to_owned() }
}

/// Reads Twirp's error object `{code, msg}`.
fn service_error(method: &'static str, error: HttpError) -> ArtifactServiceError {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct TwirpError {
        code: String,
        msg: String,
    }
    let HttpError::Status { status, body, .. } = error.last() else {
        return ArtifactServiceError::Http { method, source: error };
    };
    let twirp: TwirpError = serde_json::from_slice(body).unwrap_or_default();
    if twirp.msg.to_ascii_lowercase().contains("insufficient usage") {
        return ArtifactServiceError::Quota(one_line(&twirp.msg));
    }
    match (*status, twirp.code.as_str()) {
        (StatusCode::CONFLICT, _) | (_, "already_exists") => {
            ArtifactServiceError::NameTaken { maybe_by_us: false }
        }
        (StatusCode::NOT_FOUND, "not_found") => ArtifactServiceError::NotFound,
        (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _) if !twirp.msg.is_empty() => {
            ArtifactServiceError::Denied { method, message: one_line(&twirp.msg) }
        }
        _ if error.is_transient() || twirp.msg.is_empty() => {
            ArtifactServiceError::Http { method, source: error }
        }
        _ => ArtifactServiceError::Refused { method, message: one_line(&twirp.msg) },
    }
}

/// A stranger's text for a message: short, without control characters.
pub fn one_line(text: &str) -> String {
    text.chars().take(500).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A 64-bit number, which protobuf's JSON writes as a string; a plain number is accepted too.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::String(text) => text.parse().map_err(de::Error::custom),
        Value::Number(n) => n.as_u64().ok_or_else(|| de::Error::custom("a negative number")),
        Value::Null => Ok(0),
        _ => Err(de::Error::custom("not a number")),
    }
}

#[cfg(test)]
mod tests {
    use wiremock::matchers::{body_json, header, method, path};
    use wiremock::{Mock, MockServer, ResponseTemplate};

    use super::*;

    fn token(claims: &Value) -> SecretString {
        format!("e30.{}.sig", URL_SAFE_NO_PAD.encode(claims.to_string())).into()
    }

    async fn service(server: &MockServer) -> ArtifactService {
        let token = token(&json!({"scp": "Actions.Results:run-1:job-2"}));
        let base = std::time::Duration::from_millis(1);
        let retry = RetryPolicy { base, tries: 5, ..RetryPolicy::default() };
        ArtifactService::new(
            http::client().unwrap(),
            &format!("{}/some/path/", server.uri()),
            token,
        )
        .unwrap()
        .with_retry(retry)
    }

    async fn answering(method_name: &str, status: u16, answer: Value) -> MockServer {
        let server = MockServer::start().await;
        let path_ = format!("/twirp/github.actions.results.api.v1.ArtifactService/{method_name}");
        Mock::given(method("POST"))
            .and(path(path_))
            .respond_with(ResponseTemplate::new(status).set_body_json(answer))
            .mount(&server)
            .await;
        server
    }

    #[test]
    fn backend_ids_are_read_from_the_results_scope() {
        let claims = json!({"scp": "Actions.ExampleScope Actions.Results:run-1:job-2 x:y:z"});
        let ids = BackendIds::from_token(&token(&claims)).unwrap();
        assert_eq!(ids, BackendIds { run: "run-1".into(), job: "job-2".into() });
        for bad in [json!({}), json!({"scp": "Actions.Results:run-1"}), json!({"scp": 3})] {
            assert!(BackendIds::from_token(&token(&bad)).is_err(), "{bad}");
        }
        assert!(BackendIds::from_token(&"gibberish".to_owned().into()).is_err());
    }

    #[tokio::test]
    async fn finalize_sends_snake_case_names_and_numbers_as_strings() {
        let server = MockServer::start().await;
        Mock::given(header(
            "authorization",
            token(&json!({"scp": "Actions.Results:run-1:job-2"}))
                .expose_secret()
                .replace("e30", "Bearer e30")
                .as_str(),
        ))
        .and(path("/twirp/github.actions.results.api.v1.ArtifactService/FinalizeArtifact"))
        .and(body_json(json!({
            "workflow_run_backend_id": "run-1", "workflow_job_run_backend_id": "job-2",
            "name": "a", "size": "242", "hash": "sha256:00",
        })))
        .respond_with(
            ResponseTemplate::new(200)
                .set_body_json(json!({"ok": true, "artifactId": "77", "new": 1})),
        )
        .mount(&server)
        .await;
        assert_eq!(service(&server).await.finalize("a", 242, "sha256:00").await.unwrap(), 77);
    }

    #[tokio::test]
    async fn list_accepts_snake_case_and_camel_case() {
        let server = answering(
            "ListArtifacts",
            200,
            json!({"artifacts": [
                {"workflow_run_backend_id": "r", "workflow_job_run_backend_id": "j",
                 "database_id": "9", "name": "a", "size": "5", "created_at": "2026-01-02T03:04:05Z",
                 "digest": "sha256:1"},
                {"workflowRunBackendId": "r", "workflowJobRunBackendId": "j", "databaseId": 10,
                 "name": "b"},
            ]}),
        )
        .await;
        let all = service(&server).await.list(None).await.unwrap();
        assert_eq!((all[0].database_id, all[0].size, all[1].database_id), (9, 5, 10));
        assert_eq!(service(&server).await.list(Some("b")).await.unwrap().len(), 1);
    }

    /// Protobuf's JSON may leave fields with their default out.
    #[tokio::test]
    async fn list_without_a_field_is_asked_for_again_and_is_empty_then() {
        let server = answering("ListArtifacts", 200, json!({})).await;
        assert!(service(&server).await.list(None).await.unwrap().is_empty());
        assert_eq!(server.received_requests().await.unwrap().len(), 3);
        let server = answering("ListArtifacts", 200, json!({"artifacts": []})).await;
        assert!(service(&server).await.list(None).await.unwrap().is_empty());
        assert_eq!(server.received_requests().await.unwrap().len(), 1);
        for other in [json!({"error": "try later"}), json!(["try later"])] {
            let server = answering("ListArtifacts", 200, other).await;
            let error = service(&server).await.list(None).await.unwrap_err();
            assert!(error.is_transient() && error.with_cause().contains("try later"), "{error:?}");
        }
    }

    #[tokio::test]
    async fn each_refusal_maps_to_its_error_kind() {
        let twirp = |code: &str, msg: &str| json!({"code": code, "msg": msg});
        let server = answering("CreateArtifact", 409, twirp("already_exists", "taken")).await;
        let error = service(&server).await.create("a", None, "application/zip").await;
        assert!(matches!(error, Err(ArtifactServiceError::NameTaken { maybe_by_us: false })));
        let quota = twirp("resource_exhausted", "insufficient usage to create artifact");
        let server = answering("CreateArtifact", 403, quota).await;
        let error = service(&server).await.create("a", None, "application/zip").await;
        assert!(matches!(error, Err(ArtifactServiceError::Quota(_))));
        let server = answering("CreateArtifact", 401, twirp("unauthenticated", "expired")).await;
        let error = service(&server).await.create("a", None, "application/zip").await;
        assert!(matches!(error, Err(ArtifactServiceError::Denied { .. })));
        let server = answering("DeleteArtifact", 404, twirp("not_found", "no")).await;
        assert!(matches!(
            service(&server).await.delete_own("a").await,
            Err(ArtifactServiceError::NotFound)
        ));
        let server = answering("DeleteArtifact", 200, json!({"ok": false})).await;
        assert!(matches!(
            service(&server).await.delete_own("a").await,
            Err(ArtifactServiceError::Refused { .. })
        ));
        let server = answering("DeleteArtifact", 200, json!({"error": "try later"})).await;
        let error = service(&server).await.delete_own("a").await.unwrap_err();
        assert!(error.is_transient() && error.with_cause().contains("try later"), "{error:?}");
        let server = answering("DeleteArtifact", 503, json!({})).await;
        let error = service(&server).await.delete_own("a").await.unwrap_err();
        assert!(error.is_transient(), "{error}");
        assert_eq!(server.received_requests().await.unwrap().len(), 5, "it was tried again");
    }

    #[test]
    fn signatures_include_the_raw_and_the_decoded_form() {
        let url = "https://x.test/a?se=1&sig=ab%2Bc%3D&b=1".to_owned().into();
        let mut forms: Vec<_> =
            signatures(&url).iter().map(|s| s.expose_secret().to_owned()).collect();
        forms.sort();
        assert_eq!(forms, ["ab%2Bc%3D", "ab+c="]);
        assert!(signatures(&"https://x.test/".to_owned().into()).is_empty());
    }

    #[test]
    fn github_com_and_data_residency_hosts_are_not_enterprise_servers() {
        for cloud in ["https://github.com", "https://acme.ghe.com", "http://gh.localhost"] {
            assert!(!is_enterprise_server(cloud), "{cloud}");
        }
        assert!(is_enterprise_server("https://github.acme.test"));
    }
}
