//! The cache service for the runtime token, as far as reserving an entry.
//!
//! The claim `ac` of the token says which branches' entries the job may read (1) and write (2). A job with
//! `cache-mode: none` has none.

use std::sync::Arc;

use axum::extract::State as Shared;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::State;
use crate::oidc::bearer;

const WRITE: u64 = 2;

/// The keys that were reserved.
#[derive(Debug, Default)]
pub struct CacheEntries(Mutex<Vec<String>>);

impl CacheEntries {
    pub fn keys(&self) -> Vec<String> {
        self.0.lock().clone()
    }
}

pub(crate) fn routes() -> Router<Arc<State>> {
    let create = "/twirp/github.actions.results.api.v1.CacheService/CreateCacheEntry";
    Router::new().route(create, post(create_entry))
}

#[derive(Deserialize)]
struct NewEntry {
    key: String,
}

async fn create_entry(
    Shared(state): Shared<Arc<State>>,
    headers: HeaderMap,
    Json(entry): Json<NewEntry>,
) -> Response {
    let now = state.clock.now();
    let claims = bearer(&headers).and_then(|token| state.oidc.verified_runtime_claims(token, now));
    let Some(claims) = claims else {
        let error = json!({ "code": "unauthenticated", "msg": "invalid or expired runtime token" });
        return (StatusCode::UNAUTHORIZED, Json(error)).into_response();
    };
    let scopes: Vec<Value> =
        serde_json::from_str(claims["ac"].as_str().unwrap_or_default()).unwrap_or_default();
    let may_write = |scope: &Value| scope["Permission"].as_u64().is_some_and(|it| it & WRITE != 0);
    if !scopes.iter().any(may_write) {
        let refused = json!({ "ok": false, "message": "cache write denied: no writable scope" });
        return Json(refused).into_response();
    }
    state.caches.0.lock().push(entry.key);
    Json(json!({ "ok": true, "signed_upload_url": format!("{}_cache/1", state.url) }))
        .into_response()
}

#[cfg(test)]
mod tests {
    use crate::StandIn;
    use crate::runs::Run;

    #[tokio::test(flavor = "multi_thread")]
    async fn job_writes_the_cache_unless_its_mode_is_none() {
        let github = StandIn::start().unwrap();
        let state = github.state();
        let mut job = state.runs.add_job(state.runs.add(Run::push()), "test");
        let create = async |job: &crate::runs::Job| {
            let given = state.job_environment(job);
            let call = "twirp/github.actions.results.api.v1.CacheService/CreateCacheEntry";
            let url = format!("{}{call}", given["ACTIONS_RESULTS_URL"]);
            let request =
                reqwest::Client::new().post(url).bearer_auth(&given["ACTIONS_RUNTIME_TOKEN"]);
            let answer = request.json(&serde_json::json!({ "key": "deps", "version": "1" }));
            answer.send().await.unwrap().json::<serde_json::Value>().await.unwrap()["ok"].clone()
        };
        job.may_cache = false;
        assert_eq!((create(&job).await, state.caches.keys()), (false.into(), vec![]));
        job.may_cache = true;
        assert_eq!(
            (create(&job).await, state.caches.keys()),
            (true.into(), vec!["deps".to_owned()])
        );
    }
}
