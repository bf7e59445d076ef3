//! The artifact service for the runtime token: five Twirp methods with JSON.
//!
//! Fields are read in snake case and camel case and written in snake case. `int64` is a string,
//! wrapper values are plain, defaults are left out. Messages:
//! <https://github.com/actions/toolkit/tree/main/packages/artifact/src/generated>.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::extract::{Path, State as Shared};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use bytes::Bytes;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::Artifact;
use crate::State;
use crate::oidc::bearer;
use crate::runs::Job;
use crate::server::Peer;
use crate::traffic::{Fault, answer_or_lose};

const MAX_PER_JOB: usize = 500;
const MAX_RETENTION: Duration = Duration::from_secs(90 * 24 * 3600);
/// Characters that a name may not contain.
const FORBIDDEN: &[char] = &['"', ':', '<', '>', '|', '*', '?', '\r', '\n', '\\', '/'];

/// The operations are `CreateArtifact`, `FinalizeArtifact`, `ListArtifacts`, `GetSignedArtifactURL`
/// and `DeleteArtifact`.
pub(crate) fn routes() -> Router<Arc<State>> {
    Router::new().route("/twirp/github.actions.results.api.v1.ArtifactService/{method}", post(call))
}

/// A Twirp error: `{"code", "msg"}`.
struct TwirpError(StatusCode, &'static str, String);

impl TwirpError {
    fn invalid(text: impl Into<String>) -> Self {
        Self(StatusCode::BAD_REQUEST, "invalid_argument", text.into())
    }

    fn not_found(text: impl Into<String>) -> Self {
        Self(StatusCode::NOT_FOUND, "not_found", text.into())
    }
}

impl IntoResponse for TwirpError {
    fn into_response(self) -> Response {
        (self.0, Json(json!({ "code": self.1, "msg": self.2 }))).into_response()
    }
}

async fn call(
    Shared(state): Shared<Arc<State>>,
    peer: Peer,
    Path(method): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Response> {
    let operation = match method.as_str() {
        "CreateArtifact" => "CreateArtifact",
        "FinalizeArtifact" => "FinalizeArtifact",
        "ListArtifacts" => "ListArtifacts",
        "GetSignedArtifactURL" => "GetSignedArtifactURL",
        "DeleteArtifact" => "DeleteArtifact",
        _ => {
            let text = format!("no handler for method {method}");
            return Err(TwirpError(StatusCode::NOT_FOUND, "bad_route", text).into_response());
        }
    };
    let fault = state.traffic.pass(operation, &peer).await?;
    let call = TwirpCall::open(state, &headers, &body, fault.as_ref())
        .map_err(TwirpError::into_response)?;
    let answer = match operation {
        "CreateArtifact" => call.create(),
        "FinalizeArtifact" => call.finalize().await,
        "ListArtifacts" => call.list(),
        "GetSignedArtifactURL" => call.signed_url(),
        _ => call.delete(),
    };
    let answer = answer.map_err(TwirpError::into_response)?;
    Ok(answer_or_lose(fault, &peer, Json(answer).into_response()).await)
}

/// One call, after its token was checked.
struct TwirpCall {
    state: Arc<State>,
    job: Job,
    request: Map<String, Value>,
    /// The time at which URLs are signed.
    signed_at: Timestamp,
}

impl TwirpCall {
    fn open(
        state: Arc<State>,
        headers: &HeaderMap,
        body: &[u8],
        fault: Option<&Fault>,
    ) -> Result<Self, TwirpError> {
        let json = headers.get("content-type").and_then(|value| value.to_str().ok());
        if !json.is_some_and(|kind| kind.starts_with("application/json")) {
            let text = "unexpected Content-Type".to_owned();
            return Err(TwirpError(StatusCode::NOT_FOUND, "bad_route", text));
        }
        let now = state.clock.now();
        let claims = bearer(headers)
            .and_then(|token| state.oidc.verified_runtime_claims(token, now))
            .ok_or_else(|| {
                let text = "invalid or expired runtime token".to_owned();
                TwirpError(StatusCode::UNAUTHORIZED, "unauthenticated", text)
            })?;
        let scopes = claims["scp"].as_str().unwrap_or_default();
        let ids = scopes.split(' ').find_map(|scope| scope.strip_prefix("Actions.Results:"));
        let (run, job) = ids.and_then(|ids| ids.split_once(':')).unwrap_or_default();
        let forbidden =
            |text: &str| TwirpError(StatusCode::FORBIDDEN, "permission_denied", text.to_owned());
        let job = state.runs.job(job).filter(|job| job.run.backend_id() == run);
        let job = job.ok_or_else(|| forbidden("the token's job isn't known"))?;
        let request = serde_json::from_slice(body).map_err(|failed| {
            let text = format!("the json request could not be decoded: {failed}");
            TwirpError(StatusCode::BAD_REQUEST, "malformed", text)
        })?;
        let expired = matches!(fault, Some(Fault::ExpiredUrl));
        let signed_at = if expired { now - Duration::from_secs(24 * 3600) } else { now };
        let call = Self { state, job, request, signed_at };
        if call.text("workflow_run_backend_id")? != run {
            return Err(forbidden("the token is another run's"));
        }
        if call.text("workflow_job_run_backend_id")?.is_empty() {
            return Err(TwirpError::invalid("workflow_job_run_backend_id is empty"));
        }
        Ok(call)
    }

    /// A field by its name in snake case or in camel case.
    fn field(&self, name: &str) -> Option<&Value> {
        let value = self.request.get(name).or_else(|| {
            let mut words = name.split('_');
            let mut camel = words.next().unwrap_or_default().to_owned();
            for word in words {
                camel.extend(word.chars().take(1).flat_map(char::to_uppercase));
                camel.extend(word.chars().skip(1));
            }
            self.request.get(&camel)
        });
        value.filter(|value| !value.is_null())
    }

    /// A string field; empty when it is absent.
    fn text(&self, name: &str) -> Result<&str, TwirpError> {
        match self.field(name) {
            None => Ok(""),
            Some(Value::String(text)) => Ok(text),
            Some(_) => Err(TwirpError::invalid(format!("{name} isn't a string"))),
        }
    }

    /// An `int64` field, a string or a number.
    fn number(&self, name: &str) -> Result<Option<u64>, TwirpError> {
        let number = match self.field(name) {
            None => return Ok(None),
            Some(Value::String(text)) => text.parse().ok(),
            Some(value) => value.as_u64(),
        };
        number.map(Some).ok_or_else(|| TwirpError::invalid(format!("{name} isn't an integer")))
    }

    fn name(&self) -> Result<&str, TwirpError> {
        let name = self.text("name")?;
        if name.is_empty() || name.len() > 255 || name.contains(FORBIDDEN) {
            return Err(TwirpError::invalid(
                "the artifact's name is empty, too long or not allowed",
            ));
        }
        Ok(name)
    }

    /// Fails unless the request is about the caller's job.
    fn only_own_job(&self) -> Result<(), TwirpError> {
        if self.text("workflow_job_run_backend_id")? == self.job.backend_id {
            return Ok(());
        }
        let text = "the token is another job's".to_owned();
        Err(TwirpError(StatusCode::FORBIDDEN, "permission_denied", text))
    }

    fn blob_url(&self, blob: &str) -> url::Url {
        let mut url = self.state.url.clone();
        url.set_path(&format!("{}/{blob}", super::azure::CONTAINER));
        url
    }

    fn create(&self) -> Result<Value, TwirpError> {
        self.only_own_job()?;
        let name = self.name()?;
        if !matches!(self.number("version")?, Some(4..=7)) {
            return Err(TwirpError::invalid("this version of artifacts isn't known"));
        }
        let now = self.state.clock.now();
        let latest = now + MAX_RETENTION;
        let expires = match self.text("expires_at")? {
            "" => latest,
            text => match text.parse::<Timestamp>() {
                Ok(time) if time > now => time.min(latest),
                _ => return Err(TwirpError::invalid("expires_at isn't a time to come")),
            },
        };
        let artifacts = &self.state.artifacts;
        if artifacts.quota_spent.load(Ordering::SeqCst) {
            let text = "insufficient usage to create artifact".to_owned();
            return Err(TwirpError(StatusCode::FORBIDDEN, "resource_exhausted", text));
        }
        let mut records = artifacts.lock();
        let run_id = self.job.run.id;
        let attempt = self.job.run.attempt;
        let same_attempt = |other: &&Artifact| (other.run_id, other.attempt) == (run_id, attempt);
        if records.iter().filter(same_attempt).any(|other| other.name == name) {
            let text = "an artifact with this name already exists on the workflow run".to_owned();
            return Err(TwirpError(StatusCode::CONFLICT, "already_exists", text));
        }
        let own = |other: &&Artifact| other.job_backend_id == self.job.backend_id;
        if records.iter().filter(own).count() >= MAX_PER_JOB {
            let text = format!("a job can have {MAX_PER_JOB} artifacts at most");
            return Err(TwirpError(StatusCode::BAD_REQUEST, "failed_precondition", text));
        }
        let blob = uuid::Uuid::new_v4().simple().to_string();
        artifacts.blobs.create(&blob);
        let mime_type = match self.text("mime_type")? {
            "" => "application/zip",
            kind => kind,
        };
        let own = || artifacts.signer.upload(self.blob_url(&blob), self.signed_at);
        let url = artifacts.external_url(&blob).unwrap_or_else(own);
        let id = records.last().map_or(1000, |last| last.id + 1);
        records.push(Artifact {
            id,
            run_id,
            attempt,
            job_backend_id: self.job.backend_id.clone(),
            name: name.to_owned(),
            size: 0,
            digest: None,
            mime_type: mime_type.to_owned(),
            created: now,
            expires,
            finalized: false,
            blob,
        });
        Ok(json!({ "ok": true, "signed_upload_url": url }))
    }

    async fn finalize(&self) -> Result<Value, TwirpError> {
        self.only_own_job()?;
        let (name, size) = (self.name()?, self.number("size")?.unwrap_or(0));
        let artifacts = &self.state.artifacts;
        let own = |other: &Artifact| {
            other.job_backend_id == self.job.backend_id && other.name == name && !other.finalized
        };
        let blob = artifacts.lock().iter().find(|other| own(other)).map(|it| it.blob.clone());
        let blob =
            blob.ok_or_else(|| TwirpError::not_found("no such artifact is being uploaded"))?;
        let told = Some(self.text("hash")?).filter(|hash| !hash.is_empty());
        if artifacts.external_url(&blob).is_none() {
            self.check_blob(&blob, size, told).await?;
        }
        let mut records = artifacts.lock();
        let artifact = records.iter_mut().find(|other| own(other));
        let artifact = artifact.ok_or_else(|| TwirpError::not_found("the artifact was deleted"))?;
        artifact.size = size;
        artifact.digest = told.map(str::to_owned);
        artifact.finalized = true;
        Ok(json!({ "ok": true, "artifact_id": artifact.id.to_string() }))
    }

    /// Compares the stored blob with what the client says of it.
    async fn check_blob(
        &self,
        blob: &str,
        size: u64,
        told: Option<&str>,
    ) -> Result<(), TwirpError> {
        let content = self.state.artifacts.blobs.get(blob).ok_or_else(|| {
            let text = "the artifact has no content yet".to_owned();
            TwirpError(StatusCode::PRECONDITION_FAILED, "failed_precondition", text)
        })?;
        if content.length != size {
            let text = format!("the blob has {} bytes, not {size}", content.length);
            return Err(TwirpError::invalid(text));
        }
        let Some(told) = told.filter(|_| content.is_kept()) else { return Ok(()) };
        let digest = tokio::task::spawn_blocking(move || content.digest()).await;
        let digest = digest.ok().and_then(Result::ok).ok_or_else(|| {
            let text = "the blob can't be read".to_owned();
            TwirpError(StatusCode::INTERNAL_SERVER_ERROR, "internal", text)
        })?;
        if told != digest {
            return Err(TwirpError::invalid(format!("the blob's hash is {digest}, not {told}")));
        }
        Ok(())
    }

    fn list(&self) -> Result<Value, TwirpError> {
        let (name, id) = (self.text("name_filter")?, self.number("id_filter")?);
        let records = self.state.artifacts.lock();
        let listed = records.iter().filter(|artifact| {
            artifact.run_id == self.job.run.id
                && artifact.finalized
                && artifact.expires > self.state.clock.now()
                && (name.is_empty() || artifact.name == name)
                && id.is_none_or(|id| artifact.id == id)
        });
        let listed: Vec<Value> = listed.map(|artifact| self.listed(artifact)).collect();
        Ok(if listed.is_empty() { json!({}) } else { json!({ "artifacts": listed }) })
    }

    fn listed(&self, artifact: &Artifact) -> Value {
        let mut entry = json!({
            "workflow_run_backend_id": self.job.run.backend_id(),
            "workflow_job_run_backend_id": artifact.job_backend_id,
            "database_id": artifact.id.to_string(),
            "name": artifact.name,
            "created_at": artifact.created.to_string(),
        });
        if artifact.size > 0 {
            entry["size"] = json!(artifact.size.to_string());
        }
        if let Some(digest) = &artifact.digest {
            entry["digest"] = json!(digest);
        }
        entry
    }

    fn signed_url(&self) -> Result<Value, TwirpError> {
        let (job, name) = (self.text("workflow_job_run_backend_id")?, self.name()?);
        let records = self.state.artifacts.lock();
        let artifact = records.iter().find(|artifact| {
            artifact.run_id == self.job.run.id
                && artifact.job_backend_id == job
                && artifact.name == name
                && artifact.finalized
                && artifact.expires > self.state.clock.now()
        });
        let artifact = artifact.ok_or_else(|| TwirpError::not_found("no such artifact"))?;
        let artifacts = &self.state.artifacts;
        let own = || artifacts.download_url(&self.state, artifact, self.signed_at);
        let url = artifacts.external_url(&artifact.blob).unwrap_or_else(own);
        Ok(json!({ "signed_url": url }))
    }

    /// Deletes the artifact or the unfinished upload of the job that the request names, which may be
    /// another one of the run. GitHub's client names the job that the list gives.
    fn delete(&self) -> Result<Value, TwirpError> {
        let (job, name) = (self.text("workflow_job_run_backend_id")?, self.name()?);
        let mut records = self.state.artifacts.lock();
        let found = records.iter().position(|artifact| {
            artifact.run_id == self.job.run.id
                && artifact.job_backend_id == job
                && artifact.name == name
        });
        let found = found.ok_or_else(|| TwirpError::not_found("no such artifact"))?;
        let artifact = records.remove(found);
        self.state.artifacts.blobs.remove(&artifact.blob);
        Ok(json!({ "ok": true, "artifact_id": artifact.id.to_string() }))
    }
}
