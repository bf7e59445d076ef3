//! Logs of jobs: the API redirects to a signed address of a store that refuses tokens.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Query, State as Shared};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::Deserialize;

use super::World;
use super::api::{ApiResult, refusal};
use super::repo_call::{PathBelowRepo, RepoCall};
use crate::State;

const SIGNATURE: &str = "c2lnbmVk";
/// How long an address is good for:
/// <https://docs.github.com/en/rest/actions/workflow-jobs#download-job-logs-for-a-workflow-run>
const ADDRESS_SECONDS: i64 = 60;

impl World {
    /// Stores the log of a job, in place of the one that may be there.
    pub fn put_job_log(&self, name: &str, job: u64, log: impl Into<Vec<u8>>) {
        self.lock().expect(name).job_logs.insert(job, log.into());
    }

    /// Deletes a log, as GitHub does after its retention. The address that the API gave stays valid.
    pub fn remove_job_log(&self, name: &str, job: u64) {
        self.lock().expect(name).job_logs.remove(&job);
    }
}

pub(crate) async fn redirect(call: RepoCall, Path((.., job)): PathBelowRepo<u64>) -> ApiResult {
    let mut inner = call.state.world.lock();
    let known = call.permitted(&mut inner, "actions", "read")?;
    if !known.job_logs.contains_key(&job) {
        return Err(refusal(404, "Not Found"));
    }
    let until = call.state.clock.now().as_second() + ADDRESS_SECONDS;
    let query = format!("se={until}&sig={SIGNATURE}");
    let to = format!("{}/log-store/{}/{job}?{query}", call.state.origin(), call.name);
    Ok((StatusCode::FOUND, [(header::LOCATION, to)]).into_response())
}

/// The store has no rate limit, and its requests aren't calls of the API.
pub(crate) fn storage() -> Router<Arc<State>> {
    Router::new().route("/log-store/{owner}/{repo}/{job}", get(download))
}

#[derive(Deserialize)]
struct SignedQuery {
    /// Until when, in seconds.
    se: i64,
    sig: String,
}

async fn download(
    Shared(state): Shared<Arc<State>>,
    Path((owner, repo, job)): Path<(String, String, u64)>,
    Query(query): Query<SignedQuery>,
    headers: HeaderMap,
) -> Response {
    // Azure refuses requests that are signed and authorized at once.
    if headers.contains_key(header::AUTHORIZATION) {
        return StatusCode::BAD_REQUEST.into_response();
    }
    if query.sig != SIGNATURE || query.se < state.clock.now().as_second() {
        return StatusCode::FORBIDDEN.into_response();
    }
    let inner = state.world.lock();
    let log = inner.repo(&format!("{owner}/{repo}")).and_then(|repo| repo.job_logs.get(&job));
    match log {
        Some(log) => ([(header::CONTENT_TYPE, "text/plain")], log.clone()).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}
