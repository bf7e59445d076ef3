//! The relay on AWS Lambda: the same router, called once for each event.
//!
//! Lambda freezes the process between events, so nothing runs in the background. A request works what is due before it
//! is answered, and a schedule works the rest.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use axum::response::{IntoResponse as _, Response};
use jiff::Timestamp;
use lambda_http::RequestExt as _;
use lambda_http::request::RequestContext;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tower::ServiceExt as _;

use crate::http::http_response::{self, Refusal};
use crate::http::{router, serve};
use crate::limits;
use crate::queue::fact_feed;
use crate::queue::workers::{self, WorkerTimeouts};
use crate::relay::Relay;

/// The sources of events that ask for the work that is due: a rule of EventBridge, and what the deployed relay's
/// schedule sends.
const SCHEDULES: [&str; 2] = ["aws.events", "crcr.sweeper"];

pub struct LambdaRelay {
    relay: Arc<Relay>,
    router: Router,
    refreshed_at: Mutex<Option<Timestamp>>,
}

/// Answers events until Lambda ends the process.
pub async fn run(relay: Arc<Relay>) -> Result<(), lambda_http::Error> {
    let handler = LambdaRelay::new(relay).await;
    lambda_http::run(lambda_http::service_fn(|request| handler.handle(request))).await
}

impl LambdaRelay {
    pub async fn new(relay: Arc<Relay>) -> Self {
        relay.allowlist.restore().await;
        let router = router::public(&relay, &Arc::new(serve::hud_of(&relay)));
        Self { relay, router, refreshed_at: Mutex::default() }
    }

    pub async fn handle(&self, request: lambda_http::Request) -> Result<Response, Infallible> {
        self.refresh().await;
        if matches!(request.request_context_ref(), Some(RequestContext::PassThrough)) {
            return Ok(self.answer_schedule(request.body()).await);
        }
        let (parts, body) = request.into_parts();
        let is_post = parts.method == Method::POST;
        let request = Request::from_parts(parts, Body::from(body.to_vec()));
        let response = self.router.clone().oneshot(request).await?;
        if is_post && response.status().is_success() {
            let timeouts = WorkerTimeouts { shutdown: limits::LAMBDA_GRACE, ..Default::default() };
            workers::work_due(&self.relay, limits::LAMBDA_WORK, timeouts).await;
        }
        Ok(response)
    }

    async fn answer_schedule(&self, event: &[u8]) -> Response {
        let event: Value = serde_json::from_slice(event).unwrap_or_default();
        if !event["source"].as_str().is_some_and(|source| SCHEDULES.contains(&source)) {
            tracing::warn!(source = %event["source"], "an event is neither a request nor a schedule");
            return Refusal::new(StatusCode::BAD_REQUEST, "Unknown event").into_response();
        }
        let relay = &self.relay;
        let timeouts = WorkerTimeouts { shutdown: limits::LAMBDA_GRACE, ..Default::default() };
        let worked = workers::work_due(relay, limits::LAMBDA_SCHEDULED_WORK, timeouts).await;
        let copied = fact_feed::copy_waiting(relay).await;
        if let Err(error) = serve::delete_all_expired(relay).await {
            tracing::warn!(%error, "expired records can't be deleted");
        }
        http_response::ok(json!({ "ok": copied.is_ok(), "tasks": worked }))
    }

    /// Reads what other processes read in the background, once per period of the allowlist.
    async fn refresh(&self) {
        let relay = &self.relay;
        let mut refreshed_at = self.refreshed_at.lock().await;
        match *refreshed_at {
            Some(at) if relay.now() < at + relay.config.allowlist_ttl => return,
            Some(_) => {}
            // Later than now, so that many new processes don't all have the log read.
            None => {
                serve::schedule_reconciliation(relay, relay.now() + limits::RECONCILE).await;
            }
        }
        let all = async {
            tokio::join!(
                relay.allowlist.refresh(&relay.app, relay.now()),
                relay.demotions.refresh(&relay.app),
                relay.verifier.refresh(relay.now()),
                relay.refresh_providers(),
            )
        };
        if tokio::time::timeout(limits::FIRST_ALLOWLIST, all).await.is_err() {
            tracing::warn!("the allowlist or the issuers' keys aren't read yet");
        }
        *refreshed_at = Some(relay.now());
    }
}
