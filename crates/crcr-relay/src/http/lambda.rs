//! The relay on AWS Lambda: the same router, called once for each event.
//!
//! Lambda freezes the process between events, so nothing runs in the background. A request works what is due before it
//! is answered, and a schedule works the rest.
//!
//! The runtime's API is two requests, and of a function URL's event a few fields matter: the `lambda_http` crate would
//! make the executable 0.7 MB larger.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use crcr_store::WriteBatch;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};
use tower::ServiceExt as _;

use crate::callback::kept_trust;
use crate::http::http_response::{self, Refusal};
use crate::http::{router, serve};
use crate::queue::fact_feed;
use crate::queue::workers::{self, Pauses, WorkerTimeouts};
use crate::relay::Relay;
use crate::{demotions, limits, state_records, uptime};

/// The sources of events that ask for the work that is due: a rule of EventBridge, and what the deployed relay's
/// schedule sends.
const SCHEDULES: [&str; 2] = ["aws.events", "crcr.sweeper"];

pub struct LambdaRelay {
    relay: Arc<Relay>,
    router: Router,
    refreshed_at: Mutex<Option<Timestamp>>,
    paused: Mutex<Pauses>,
}

#[derive(Debug, thiserror::Error)]
pub enum LambdaError {
    #[error("AWS Lambda's runtime API can't be used")]
    Http(#[from] reqwest::Error),
    #[error("AWS Lambda's runtime API gave an event without `Lambda-Runtime-Aws-Request-Id`")]
    NoRequestId,
}

/// A request to a function URL or an HTTP API, format 2.0.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct HttpEvent {
    raw_path: String,
    /// Empty on AWS, `null` in `cargo lambda`, if there is none.
    raw_query_string: Option<String>,
    headers: BTreeMap<String, String>,
    #[serde(default)]
    cookies: Vec<String>,
    body: Option<String>,
    #[serde(default)]
    is_base64_encoded: bool,
    request_context: RequestContext,
}

#[derive(Deserialize)]
struct RequestContext {
    http: HttpContext,
}

#[derive(Deserialize)]
struct HttpContext {
    method: String,
}

impl HttpEvent {
    /// `None` when it isn't a valid request.
    fn into_request(self) -> Option<Request<Body>> {
        let query = self.raw_query_string.unwrap_or_default();
        let separator = if query.is_empty() { "" } else { "?" };
        let mut request = Request::builder()
            .method(self.request_context.http.method.as_str())
            .uri(format!("{}{separator}{query}", self.raw_path));
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        if !self.cookies.is_empty() {
            request = request.header(header::COOKIE, self.cookies.join("; "));
        }
        let body = self.body.unwrap_or_default();
        let body = if self.is_base64_encoded { BASE64.decode(body).ok()? } else { body.into() };
        request.body(Body::from(body)).ok()
    }
}

/// Answers events for as long as Lambda runs the process. `address` is that of the runtime's API.
pub async fn run(relay: Arc<Relay>, address: &str) -> Result<(), LambdaError> {
    let lambda = LambdaRelay::new(relay).await;
    // The next event can be hours away, and nothing is between Lambda and its function.
    let http = reqwest::Client::builder().no_proxy().build()?;
    let invocation = format!("http://{address}/2018-06-01/runtime/invocation");
    loop {
        let next = http.get(format!("{invocation}/next")).send().await?.error_for_status()?;
        let id = next.headers().get("lambda-runtime-aws-request-id");
        let id = id.and_then(|id| id.to_str().ok()).ok_or(LambdaError::NoRequestId)?.to_owned();
        let answer = lambda.handle(&next.bytes().await?).await;
        // Lambda stops the process's clock between events.
        lambda.relay.send_spans().await;
        let response = http.post(format!("{invocation}/{id}/response")).json(&answer);
        // An answer that is too late or too large is refused; the next event has nothing to do with it.
        if let Err(error) = response.send().await.and_then(reqwest::Response::error_for_status) {
            tracing::error!(%error, "AWS Lambda didn't take the answer");
        }
    }
}

impl LambdaRelay {
    pub async fn new(relay: Arc<Relay>) -> Self {
        serve::restore(&relay).await;
        let router = router::public(&relay, &Arc::new(serve::hud_of(&relay)));
        Self { relay, router, refreshed_at: Mutex::default(), paused: Mutex::default() }
    }

    /// The answer to one event, in the format of a function URL's responses.
    pub async fn handle(&self, event: &[u8]) -> Value {
        let end = Instant::now() + limits::LAMBDA_SCHEDULED;
        self.refresh().await;
        let response = match serde_json::from_slice::<HttpEvent>(event) {
            Ok(event) => self.answer_request(event).await,
            Err(why) => self.answer_schedule(event, &why, end).await,
        };
        as_json(response).await
    }

    async fn answer_request(&self, event: HttpEvent) -> Response {
        let Some(request) = event.into_request() else {
            return Refusal::new(StatusCode::BAD_REQUEST, "Invalid request").into_response();
        };
        let is_post = request.method() == Method::POST;
        let Ok(response) = self.router.clone().oneshot(request).await;
        if is_post && response.status().is_success() {
            self.work(limits::LAMBDA_WORK).await;
        }
        response
    }

    /// `why` says why it isn't a request. It is answered soon after `end`.
    async fn answer_schedule(
        &self,
        event: &[u8],
        why: &serde_json::Error,
        end: Instant,
    ) -> Response {
        let event: Value = serde_json::from_slice(event).unwrap_or_default();
        if !event["source"].as_str().is_some_and(|source| SCHEDULES.contains(&source)) {
            let source = &event["source"];
            tracing::warn!(%source, %why, "an event is neither a request nor a schedule");
            return Refusal::new(StatusCode::BAD_REQUEST, "Unknown event").into_response();
        }
        if let Err(error) = uptime::beat(&self.relay).await {
            tracing::warn!(%error, "it can't be written down that the relay is up");
        }
        let tasks = self.work(limits::LAMBDA_SCHEDULED_WORK).await;
        if let Err(error) = serve::delete_all_expired(&self.relay).await {
            tracing::warn!(%error, "expired records can't be deleted");
        }
        // Last, because the results may hang. What isn't copied waits for the next event.
        let copied = timeout_at(end, fact_feed::copy_waiting(&self.relay)).await;
        if copied.is_ok() && timeout_at(end, self.roll_up_hourly()).await.is_err() {
            tracing::warn!("old results aren't rolled up: the results are too slow for this event");
        }
        if copied.is_err() {
            tracing::warn!("facts wait in the outbox: the results are too slow for this event");
        }
        http_response::ok(json!({ "ok": matches!(copied, Ok(Ok(()))), "tasks": tasks }))
    }

    /// Processes come and go, so the store has when it was last done.
    async fn roll_up_hourly(&self) {
        let relay = &self.relay;
        let last = relay.read_record::<Timestamp>(state_records::rolled_up_key()).await;
        let last = match last {
            Ok(last) => last,
            Err(error) => return tracing::warn!(%error, "old results can't be rolled up"),
        };
        if last.value.is_some_and(|at| relay.is_recent(at, limits::RETENTION_INTERVAL)) {
            return;
        }
        serve::roll_up(relay).await;
        let mut batch = WriteBatch::default();
        batch.update(&last, &relay.now(), relay.expiry());
        if let Err(error) = relay.commit(batch).await {
            tracing::warn!(%error, "it can't be written down that old results were rolled up");
        }
    }

    async fn work(&self, limit: std::time::Duration) -> usize {
        let timeouts = WorkerTimeouts { shutdown: limits::LAMBDA_GRACE, ..Default::default() };
        workers::work_due(&self.relay, limit, timeouts, &mut *self.paused.lock().await).await
    }

    /// Reads what other processes read in the background, once per period of the allowlist.
    async fn refresh(&self) {
        let relay = &self.relay;
        let mut refreshed_at = self.refreshed_at.lock().await;
        match *refreshed_at {
            Some(at) if relay.is_recent(at, relay.config.allowlist_ttl) => return,
            Some(_) => {}
            // Later than now, so that many new processes don't all have the log read.
            None => {
                serve::schedule_reconciliation(relay, relay.now() + limits::RECONCILE_INTERVAL)
                    .await;
                serve::look_at_feeds(relay).await;
            }
        }
        relay.reload_stored_secrets().await;
        let all = async {
            tokio::join!(
                relay.allowlist.refresh(&relay.app, relay.now()),
                demotions::refresh(relay),
                kept_trust::refresh_keys(relay),
                kept_trust::refresh_providers(relay),
            )
        };
        if tokio::time::timeout(limits::FIRST_ALLOWLIST, all).await.is_err() {
            tracing::warn!("the allowlist or the issuers' keys aren't read yet");
        }
        // Without an allowlist every webhook gets a 503, so the next event reads it again.
        if relay.allowlist.get().is_some() {
            *refreshed_at = Some(relay.now());
        }
    }
}

async fn as_json(response: Response) -> Value {
    let (parts, body) = response.into_parts();
    let Ok(body) = axum::body::to_bytes(body, limits::LAMBDA_ANSWER_BYTES).await else {
        return json!({ "statusCode": 500, "body": "the answer is too large for AWS Lambda" });
    };
    let joined = |name: &header::HeaderName, headers: &HeaderMap| {
        let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.collect::<Vec<_>>().join(", ")
    };
    let names = parts.headers.keys().filter(|name| **name != header::SET_COOKIE);
    let headers: BTreeMap<_, _> =
        names.map(|name| (name.as_str(), joined(name, &parts.headers))).collect();
    let cookies = parts.headers.get_all(header::SET_COOKIE).iter();
    let cookies: Vec<_> = cookies.filter_map(|cookie| cookie.to_str().ok()).collect();
    let (body, is_base64) = match std::str::from_utf8(&body) {
        Ok(text) => (text.to_owned(), false),
        Err(_) => (BASE64.encode(&body), true),
    };
    json!({
        "statusCode": parts.status.as_u16(), "headers": headers, "cookies": cookies,
        "body": body, "isBase64Encoded": is_base64,
    })
}
