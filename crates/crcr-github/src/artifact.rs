//! The artifact service of GitHub Actions ("v4"): five methods over Twirp.
//!
//! The service is undocumented; the wire format is the one of the official client,
//! <https://github.com/actions/toolkit/tree/main/packages/artifact>. Requests are JSON with the
//! names of the protocol, 64-bit numbers as strings, defaults left out; answers may use camel case
//! and have fields that are unknown here.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use reqwest::{Client, StatusCode};
use secrecy::{ExposeSecret as _, SecretString};
use serde::de::{self, DeserializeOwned};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use url::Url;

use crate::http::{self, Retry};

/// The version of an artifact's format that this client writes.
const ARTIFACT_VERSION: u32 = 7;
/// The largest answer that is read, in bytes; a list has at most a few kilobytes an artifact.
const MAX_ANSWER_BYTES: usize = 16 * 1024 * 1024;
/// The largest runtime token that is looked at, in bytes.
const MAX_TOKEN_BYTES: usize = 64 * 1024;

/// The artifact service, as one job sees it.
#[derive(Debug, Clone)]
pub struct ArtifactService {
    http: Client,
    base: Url,
    token: SecretString,
    ids: BackendIds,
    retry: Retry,
}

/// The service's own names of a workflow run and of a job of it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct BackendIds {
    #[serde(rename = "workflow_run_backend_id", alias = "workflowRunBackendId")]
    pub run: String,
    #[serde(rename = "workflow_job_run_backend_id", alias = "workflowJobRunBackendId")]
    pub job: String,
}

/// A finished artifact of the run.
#[derive(Debug, Clone, Deserialize)]
pub struct Artifact {
    /// The run and the job that made it.
    #[serde(flatten)]
    pub ids: BackendIds,
    /// Its number, as the REST API knows it.
    #[serde(alias = "databaseId", deserialize_with = "number")]
    pub database_id: u64,
    /// Its name, unique in the run.
    pub name: String,
    /// The size of the stored blob, in bytes.
    #[serde(default, deserialize_with = "number")]
    pub size: u64,
    #[serde(default, alias = "createdAt")]
    pub created_at: Option<Timestamp>,
    /// `sha256:` and the digest of the stored blob; old artifacts have none.
    #[serde(default)]
    pub digest: Option<String>,
}

/// Why the service didn't do it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The runtime token isn't one.
    #[error("the runtime token is none of GitHub Actions: {0}")]
    Token(&'static str),
    /// The service's address isn't one.
    #[error("the address of the artifact service isn't a URL: {0}")]
    Address(#[from] url::ParseError),
    /// The name is taken in this run, by a finished artifact or by an unfinished upload.
    #[error("the run has an artifact of this name, or an unfinished upload of it")]
    NameTaken {
        /// Whether the answer to an earlier try was lost, so that this call may have taken it.
        maybe_by_us: bool,
    },
    /// There is no such artifact.
    #[error("the artifact service knows no such artifact")]
    NotFound,
    /// The account's storage is full.
    #[error("the storage for artifacts is full: {0}")]
    Quota(String),
    /// The service doesn't take the token, or not for this.
    #[error("the artifact service refused {method}: {message}")]
    Denied { method: &'static str, message: String },
    /// The service refused for another reason.
    #[error("the artifact service refused {method}: {message}")]
    Refused {
        method: &'static str,
        /// What it said, or its status.
        message: String,
    },
    /// No usable answer after all tries.
    #[error("the artifact service gave no usable answer to {method}")]
    Http { method: &'static str, source: http::Error },
}

impl Error {
    /// Whether the same call may succeed later.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Http { source, .. } if source.is_transient())
    }

    /// How long the service asked to wait.
    pub fn retry_after(&self) -> Option<std::time::Duration> {
        match self {
            Self::Http { source, .. } => source.retry_after(),
            _ => None,
        }
    }
}

impl BackendIds {
    /// Reads the ids from the claim `scp` of a runtime token. The signature isn't looked at: the
    /// token is our own, and the service checks it.
    ///
    /// Fails with [`Error::Token`] when it is no JWT or its scopes name no run.
    pub fn from_token(token: &SecretString) -> Result<Self, Error> {
        #[derive(Deserialize)]
        struct Claims {
            scp: String,
        }
        let token = token.expose_secret();
        if token.len() > MAX_TOKEN_BYTES {
            return Err(Error::Token("it is too long"));
        }
        let payload = token.split('.').nth(1).ok_or(Error::Token("it isn't a JWT"))?;
        let claims = URL_SAFE_NO_PAD
            .decode(payload.trim_end_matches('='))
            .map_err(|_| Error::Token("its claims aren't base64"))?;
        let Claims { scp } = serde_json::from_slice(&claims)
            .map_err(|_| Error::Token("its claims have no `scp`"))?;
        scp.split(' ')
            .find_map(|scope| match *scope.split(':').collect::<Vec<_>>() {
                ["Actions.Results", run, job] if !run.is_empty() && !job.is_empty() => {
                    Some(Self { run: run.to_owned(), job: job.to_owned() })
                }
                _ => None,
            })
            .ok_or(Error::Token("its `scp` has no `Actions.Results:{run}:{job}`"))
    }
}

impl ArtifactService {
    /// The service at the origin of `results_url`, for the job that `token` belongs to.
    ///
    /// Fails when the URL or the token isn't one.
    pub fn new(http: Client, results_url: &str, token: SecretString) -> Result<Self, Error> {
        let base = Url::parse(results_url)?
            .join("/twirp/github.actions.results.api.v1.ArtifactService/")?;
        let ids = BackendIds::from_token(&token)?;
        Ok(Self { http, base, token, ids, retry: Retry::default() })
    }

    /// The same service, tried as `retry` says.
    #[must_use]
    pub fn with_retry(self, retry: Retry) -> Self {
        Self { retry, ..self }
    }

    /// The client, for the signed URLs that the service gives.
    pub fn http(&self) -> &Client {
        &self.http
    }

    /// How often and how long a call is tried.
    pub fn retry(&self) -> Retry {
        self.retry
    }

    /// The run and job of the runtime token.
    pub fn ids(&self) -> &BackendIds {
        &self.ids
    }

    /// Takes the name and gives the URL that the blob goes to, alive for about an hour.
    pub async fn create(
        &self,
        name: &str,
        expires_at: Option<Timestamp>,
        mime_type: &str,
    ) -> Result<SecretString, Error> {
        #[derive(Deserialize)]
        struct Answer {
            #[serde(default, alias = "signedUploadUrl")]
            signed_upload_url: String,
        }
        let mut body = self.request(name);
        body["version"] = ARTIFACT_VERSION.into();
        body["mime_type"] = mime_type.into();
        if let Some(expires_at) = expires_at {
            body["expires_at"] = expires_at.to_string().into();
        }
        let (mut tries, mut lost) = (self.retry.start(), false);
        let answer: Answer = loop {
            let error = match self.call("CreateArtifact", Retry::ONCE, &body).await {
                Ok(answer) => break answer,
                Err(Error::NameTaken { .. }) => {
                    return Err(Error::NameTaken { maybe_by_us: lost });
                }
                Err(error) => error,
            };
            if !error.is_transient() || !tries.again(&error, error.retry_after()).await {
                return Err(error);
            }
            // A refusal took no name. A request that broke off after it was sent may have.
            lost |= matches!(&error, Error::Http { source: http::Error::Transport(broken), .. }
                if !broken.is_connect());
        };
        if answer.signed_upload_url.is_empty() {
            return Err(refused("CreateArtifact", "it gave no URL for the upload"));
        }
        Ok(answer.signed_upload_url.into())
    }

    /// Makes the uploaded blob an artifact and gives its number; one try, since a second one after
    /// a lost answer needs a look at [`Self::list`] first.
    ///
    /// `hash` is `sha256:` and the hexadecimal digest of the blob of `size` bytes.
    pub async fn finalize(&self, name: &str, size: u64, hash: &str) -> Result<u64, Error> {
        #[derive(Deserialize)]
        struct Answer {
            #[serde(default, alias = "artifactId", deserialize_with = "number")]
            artifact_id: u64,
        }
        let mut body = self.request(name);
        body["size"] = size.to_string().into();
        body["hash"] = hash.into();
        let answer: Answer = self.call("FinalizeArtifact", Retry::ONCE, &body).await?;
        Ok(answer.artifact_id)
    }

    /// The finished artifacts of the run, of all its jobs, or the one with this name.
    pub async fn list(&self, name: Option<&str>) -> Result<Vec<Artifact>, Error> {
        #[derive(Deserialize)]
        struct Answer {
            #[serde(default)]
            artifacts: Vec<Artifact>,
        }
        let mut body = self.ids_of(&self.ids);
        if let Some(name) = name {
            body["name_filter"] = name.into();
        }
        let Answer { mut artifacts } = self.call("ListArtifacts", self.retry, &body).await?;
        artifacts.retain(|artifact| name.is_none_or(|name| artifact.name == name));
        Ok(artifacts)
    }

    /// A URL that the blob of `artifact` is read from, alive for about ten minutes.
    pub async fn signed_url(&self, artifact: &Artifact) -> Result<SecretString, Error> {
        #[derive(Deserialize)]
        struct Answer {
            #[serde(default, alias = "signedUrl")]
            signed_url: String,
        }
        let mut body = self.ids_of(&artifact.ids);
        body["name"] = artifact.name.as_str().into();
        let answer: Answer = self.call("GetSignedArtifactURL", self.retry, &body).await?;
        if answer.signed_url.is_empty() {
            return Err(refused("GetSignedArtifactURL", "it gave no URL"));
        }
        Ok(answer.signed_url.into())
    }

    /// Deletes the artifact, or the unfinished upload, of this name.
    ///
    /// Fails with [`Error::NotFound`] when there is none, which a caller that retries may ignore.
    pub async fn delete(&self, name: &str) -> Result<(), Error> {
        let _: Value = self.call("DeleteArtifact", self.retry, &self.request(name)).await?;
        Ok(())
    }

    fn ids_of(&self, ids: &BackendIds) -> Value {
        json!({"workflow_run_backend_id": ids.run, "workflow_job_run_backend_id": ids.job})
    }

    fn request(&self, name: &str) -> Value {
        let mut body = self.ids_of(&self.ids);
        body["name"] = name.into();
        body
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: &'static str,
        retry: Retry,
        body: &Value,
    ) -> Result<T, Error> {
        let failed = |source| Error::Http { method, source };
        let url = self.base.join(method)?;
        let answer = http::send(retry, || {
            self.http.post(url.clone()).bearer_auth(self.token.expose_secret()).json(body)
        })
        .await;
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => return Err(refusal(method, error)),
        };
        let value: Value = http::read_json(answer, MAX_ANSWER_BYTES).await.map_err(failed)?;
        if value.get("ok") == Some(&Value::Bool(false)) {
            return Err(refused(method, "it answered `ok: false`"));
        }
        serde_json::from_value(value).map_err(|e| failed(http::Error::Malformed(e.to_string())))
    }
}

/// Whether `server_url` (`GITHUB_SERVER_URL`) is a GitHub Enterprise Server, which has no artifact
/// service of this kind.
pub fn is_enterprise_server(server_url: &str) -> bool {
    let Ok(url) = Url::parse(server_url) else { return false };
    let host = url.host_str().unwrap_or_default().to_ascii_lowercase();
    !(host == "github.com" || host.ends_with(".ghe.com") || host.ends_with(".localhost"))
}

/// The values of `sig` in the query of a signed URL, as they stand there and decoded: what a log
/// must not show.
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

fn refused(method: &'static str, message: &str) -> Error {
    Error::Refused { method, message: message.to_owned() }
}

/// Twirp's errors: `{code, msg}` with a status that follows from the code.
fn refusal(method: &'static str, error: http::Error) -> Error {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Twirp {
        code: String,
        msg: String,
    }
    let http::Error::Status { status, body, .. } = &error else {
        return Error::Http { method, source: error };
    };
    let twirp: Twirp = serde_json::from_slice(body).unwrap_or_default();
    if twirp.msg.to_ascii_lowercase().contains("insufficient usage") {
        return Error::Quota(one_line(&twirp.msg));
    }
    match (*status, twirp.code.as_str()) {
        (StatusCode::CONFLICT, _) | (_, "already_exists") => {
            Error::NameTaken { maybe_by_us: false }
        }
        (StatusCode::NOT_FOUND, "not_found") => Error::NotFound,
        (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _) if !twirp.msg.is_empty() => {
            Error::Denied { method, message: one_line(&twirp.msg) }
        }
        _ if error.is_transient() || twirp.msg.is_empty() => Error::Http { method, source: error },
        _ => Error::Refused { method, message: one_line(&twirp.msg) },
    }
}

/// The service's text, of bounded length and without control characters.
fn one_line(text: &str) -> String {
    text.chars().take(500).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A 64-bit number of protobuf's JSON: a string, or a number from a lenient server.
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
        let retry = Retry { base: std::time::Duration::from_millis(1), ..Retry::default() };
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
    fn ids_come_from_the_scope_that_names_run_and_job() {
        let claims = json!({"scp": "Actions.ExampleScope Actions.Results:run-1:job-2 x:y:z"});
        let ids = BackendIds::from_token(&token(&claims)).unwrap();
        assert_eq!(ids, BackendIds { run: "run-1".into(), job: "job-2".into() });
        for bad in [json!({}), json!({"scp": "Actions.Results:run-1"}), json!({"scp": 3})] {
            assert!(BackendIds::from_token(&token(&bad)).is_err(), "{bad}");
        }
        assert!(BackendIds::from_token(&"gibberish".to_owned().into()).is_err());
    }

    #[tokio::test]
    async fn a_request_is_in_the_names_of_the_protocol() {
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
    async fn a_list_is_read_in_either_case() {
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

    #[tokio::test]
    async fn refusals_are_told_apart() {
        let twirp = |code: &str, msg: &str| json!({"code": code, "msg": msg});
        let server = answering("CreateArtifact", 409, twirp("already_exists", "taken")).await;
        let error = service(&server).await.create("a", None, "application/zip").await;
        assert!(matches!(error, Err(Error::NameTaken { maybe_by_us: false })));
        let quota = twirp("resource_exhausted", "insufficient usage to create artifact");
        let server = answering("CreateArtifact", 403, quota).await;
        let error = service(&server).await.create("a", None, "application/zip").await;
        assert!(matches!(error, Err(Error::Quota(_))));
        let server = answering("CreateArtifact", 401, twirp("unauthenticated", "expired")).await;
        let error = service(&server).await.create("a", None, "application/zip").await;
        assert!(matches!(error, Err(Error::Denied { .. })));
        let server = answering("DeleteArtifact", 404, twirp("not_found", "no")).await;
        assert!(matches!(service(&server).await.delete("a").await, Err(Error::NotFound)));
        let server = answering("DeleteArtifact", 200, json!({"ok": false})).await;
        assert!(matches!(service(&server).await.delete("a").await, Err(Error::Refused { .. })));
        let server = answering("DeleteArtifact", 503, json!({})).await;
        let error = service(&server).await.delete("a").await.unwrap_err();
        assert!(error.is_transient(), "{error}");
        assert_eq!(server.received_requests().await.unwrap().len(), 5, "it was tried again");
    }

    #[test]
    fn signatures_are_found_raw_and_encoded() {
        let url = "https://x.test/a?se=1&sig=ab%2Bc%3D&b=1".to_owned().into();
        let mut forms: Vec<_> =
            signatures(&url).iter().map(|s| s.expose_secret().to_owned()).collect();
        forms.sort();
        assert_eq!(forms, ["ab%2Bc%3D", "ab+c="]);
        assert!(signatures(&"https://x.test/".to_owned().into()).is_empty());
    }

    #[test]
    fn only_an_enterprise_server_is_one() {
        for cloud in ["https://github.com", "https://acme.ghe.com", "http://gh.localhost"] {
            assert!(!is_enterprise_server(cloud), "{cloud}");
        }
        assert!(is_enterprise_server("https://github.acme.test"));
    }
}
