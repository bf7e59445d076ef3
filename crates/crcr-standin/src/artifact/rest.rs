//! The public API for artifacts of any run, which needs a GitHub token.
//!
//! <https://docs.github.com/rest/actions/artifacts>

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Query, State as Shared};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use jiff::Timestamp;
use serde_json::{Value, json};
use url::Url;

use super::{Artifact, Artifacts};
use crate::State;
use crate::runs::{Run, not_found};
use crate::server::Peer;
use crate::traffic::Fault;

/// The operations are `run-artifacts`, `artifact` and `artifact-zip`.
pub(crate) fn routes() -> Router<Arc<State>> {
    Router::new()
        .route("/repos/{owner}/{repo}/actions/runs/{run}/artifacts", get(list))
        .route("/repos/{owner}/{repo}/actions/artifacts/{artifact}", get(show).delete(delete))
        .route("/repos/{owner}/{repo}/actions/artifacts/{artifact}/zip", get(download))
}

impl Artifacts {
    pub(crate) fn download_url(&self, state: &State, artifact: &Artifact, now: Timestamp) -> Url {
        let mut url = state.url.clone();
        url.set_path(&format!("{}/{}", super::azure::CONTAINER, artifact.blob));
        self.signer.download(url, &artifact.file_name(), &artifact.mime_type, now)
    }
}

/// Whether there is a token. Of one that no installation has, only the form is checked.
fn token(state: &State, headers: &HeaderMap) -> Result<bool, Response> {
    let Some(value) = headers.get(header::AUTHORIZATION) else { return Ok(false) };
    let token = value.to_str().ok().and_then(|value| value.split_once(' '));
    let token = token.map_or("", |(_, token)| token.trim());
    let forms = ["ghs_", "ghp_", "gho_", "ghu_", "github_pat_"];
    if forms.iter().any(|form| token.starts_with(form)) {
        state.world.check_actions_token(headers, state.clock.now())?;
        return Ok(true);
    }
    let body = json!({ "message": "Bad credentials", "status": "401" });
    Err((StatusCode::UNAUTHORIZED, Json(body)).into_response())
}

fn required_token(state: &State, headers: &HeaderMap) -> Result<(), Response> {
    if token(state, headers)? {
        return Ok(());
    }
    let body = json!({ "message": "Requires authentication", "status": "401" });
    Err((StatusCode::UNAUTHORIZED, Json(body)).into_response())
}

async fn list(
    Shared(state): Shared<Arc<State>>,
    peer: Peer,
    Path((owner, repo, run)): Path<(String, String, u64)>,
    Query(query): Query<HashMap<String, String>>,
    headers: HeaderMap,
) -> Result<Response, Response> {
    state.traffic.pass("run-artifacts", &peer).await?;
    token(&state, &headers)?;
    let repository = format!("{owner}/{repo}");
    let run = state.runs.get(run).filter(|run| run.is_of(&repository));
    let run = run.ok_or_else(not_found)?;
    let number = |name: &str, default: usize| {
        query.get(name).and_then(|text| text.parse().ok()).unwrap_or(default).max(1)
    };
    let (per_page, page) = (number("per_page", 30).min(100), number("page", 1));
    let records = state.artifacts.all();
    let mut found: Vec<&Artifact> = records
        .iter()
        .filter(|artifact| artifact.run_id == run.id && artifact.finalized)
        .filter(|artifact| query.get("name").is_none_or(|name| *name == artifact.name))
        .collect();
    found.reverse();
    let shown = found.iter().skip((page - 1).saturating_mul(per_page)).take(per_page);
    let shown: Vec<Value> = shown.map(|artifact| entry(&state, &run, artifact)).collect();
    let body = json!({ "total_count": found.len(), "artifacts": shown });
    let mut response = Json(body).into_response();
    if page.saturating_mul(per_page) < found.len() {
        let next = format!(
            "<{}/repos/{repository}/actions/runs/{}/artifacts?per_page={per_page}&page={}>; \
             rel=\"next\"",
            state.origin(),
            run.id,
            page + 1
        );
        if let Ok(next) = next.parse() {
            response.headers_mut().insert(header::LINK, next);
        }
    }
    Ok(response)
}

fn entry(state: &State, run: &Run, artifact: &Artifact) -> Value {
    let url =
        format!("{}/repos/{}/actions/artifacts/{}", state.origin(), run.repository, artifact.id);
    let shown = run.api(state.origin());
    json!({
        "id": artifact.id,
        "name": artifact.name,
        "size_in_bytes": artifact.size,
        "url": url,
        "archive_download_url": format!("{url}/zip"),
        "expired": artifact.expires <= state.clock.now(),
        "digest": artifact.digest,
        "created_at": artifact.created.to_string(),
        "updated_at": artifact.created.to_string(),
        "expires_at": artifact.expires.to_string(),
        "workflow_run": {
            "id": run.id,
            "repository_id": run.repository_id,
            "head_repository_id": shown["head_repository"]["id"],
            "head_branch": shown["head_branch"],
            "head_sha": run.sha,
        },
    })
}

/// The finished artifact with this id in this repository, and its run.
fn find(state: &State, repository: &str, id: u64) -> Result<(Artifact, Arc<Run>), Response> {
    let mut records = state.artifacts.all().into_iter();
    let artifact = records.find(|artifact| artifact.id == id && artifact.finalized);
    let artifact = artifact.ok_or_else(not_found)?;
    let run = state.runs.get(artifact.run_id).filter(|run| run.is_of(repository));
    Ok((artifact, run.ok_or_else(not_found)?))
}

async fn show(
    Shared(state): Shared<Arc<State>>,
    peer: Peer,
    Path((owner, repo, id)): Path<(String, String, u64)>,
    headers: HeaderMap,
) -> Result<Response, Response> {
    state.traffic.pass("artifact", &peer).await?;
    token(&state, &headers)?;
    let (artifact, run) = find(&state, &format!("{owner}/{repo}"), id)?;
    Ok(Json(entry(&state, &run, &artifact)).into_response())
}

async fn delete(
    Shared(state): Shared<Arc<State>>,
    peer: Peer,
    Path((owner, repo, id)): Path<(String, String, u64)>,
    headers: HeaderMap,
) -> Result<StatusCode, Response> {
    state.traffic.pass("artifact", &peer).await?;
    required_token(&state, &headers)?;
    let (artifact, _) = find(&state, &format!("{owner}/{repo}"), id)?;
    state.artifacts.lock().retain(|other| other.id != artifact.id);
    state.artifacts.blobs.remove(&artifact.blob);
    Ok(StatusCode::NO_CONTENT)
}

async fn download(
    Shared(state): Shared<Arc<State>>,
    peer: Peer,
    Path((owner, repo, id)): Path<(String, String, u64)>,
    headers: HeaderMap,
) -> Result<Response, Response> {
    let fault = state.traffic.pass("artifact-zip", &peer).await?;
    required_token(&state, &headers)?;
    let (artifact, _) = find(&state, &format!("{owner}/{repo}"), id)?;
    let now = state.clock.now();
    if artifact.expires <= now {
        let body = json!({ "message": "Artifact has expired", "status": "410" });
        return Err((StatusCode::GONE, Json(body)).into_response());
    }
    let expired = matches!(fault, Some(Fault::ExpiredUrl));
    let signed_at = if expired { now - Duration::from_secs(24 * 3600) } else { now };
    let url = state.artifacts.download_url(&state, &artifact, signed_at);
    Ok((StatusCode::FOUND, [(header::LOCATION, url.to_string())]).into_response())
}
