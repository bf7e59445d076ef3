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

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD as BASE64;
    use crcr_standin::traffic::Fault;

    use super::*;
    use crate::tests::support::{ALL, World};

    /// The event of a function URL for a request.
    fn event(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Value {
        let headers: serde_json::Map<_, _> =
            headers.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        json!({
            "version": "2.0", "routeKey": "$default", "rawPath": path, "rawQueryString": "",
            "headers": headers, "body": BASE64.encode(body), "isBase64Encoded": true,
            "requestContext": {
                "accountId": "anonymous", "apiId": "id", "domainName": "id.lambda-url.example",
                "domainPrefix": "id", "requestId": "1", "routeKey": "$default", "stage": "$default",
                "time": "23/Nov/2026:12:00:00 +0000", "timeEpoch": 1_795_435_200_000_u64,
                "http": {
                    "method": method, "path": path, "protocol": "HTTP/1.1",
                    "sourceIp": "192.0.2.1", "userAgent": "GitHub-Hookshot/1",
                },
            },
        })
    }

    fn schedule() -> Value {
        json!({
            "version": "0", "id": "53dc4d37", "detail-type": "Scheduled Event",
            "source": "aws.events", "account": "123456789012", "time": "2026-11-23T12:00:00Z",
            "region": "us-east-1", "resources": [], "detail": {},
        })
    }

    async fn handle(lambda: &LambdaRelay, event: &Value) -> (StatusCode, Value) {
        let request = lambda_http::request::from_str(&event.to_string()).unwrap();
        let response = lambda.handle(request).await.unwrap();
        let status = response.status();
        let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (status, serde_json::from_slice(&body).unwrap())
    }

    #[tokio::test]
    async fn webhook_is_dispatched_before_lambda_freezes_and_the_schedule_works_the_rest() {
        let world = World::new().await;
        let lambda = LambdaRelay::new(Arc::clone(&world.relay)).await;
        let away = Fault::status(502);
        world.github.state().world.fail("POST /repos/acme/two/dispatches", 1, away);
        let delivery = world.pull_request("opened");
        let webhook = event("POST", "/github/webhook", &delivery.headers(), &delivery.body);
        let (status, body) = handle(&lambda, &webhook).await;
        assert_eq!((status, &body["ok"]), (StatusCode::ACCEPTED, &json!(true)), "{body}");
        let mut first = ALL.to_vec();
        first.retain(|repo| *repo != "acme/two");
        assert_eq!(world.dispatched(), first);
        world.later(limits::TASK_RETRY.cap);
        let (status, body) = handle(&lambda, &schedule()).await;
        assert_eq!((status, &body["ok"]), (StatusCode::OK, &json!(true)));
        assert!(body["tasks"].as_u64().unwrap() >= 1, "{body}");
        assert_eq!(world.dispatched(), ["acme/two"]);
    }

    #[tokio::test]
    async fn forged_webhook_and_event_of_unknown_source_start_no_work() {
        let world = World::new().await;
        let lambda = LambdaRelay::new(Arc::clone(&world.relay)).await;
        let delivery = world.pull_request("opened");
        let forged = event("POST", "/github/webhook", &delivery.headers(), b"{}");
        assert_eq!(handle(&lambda, &forged).await.0, StatusCode::UNAUTHORIZED);
        let unknown = json!({ "source": "aws.s3" });
        assert_eq!(handle(&lambda, &unknown).await.0, StatusCode::BAD_REQUEST);
        assert_eq!(world.dispatched(), Vec::<String>::new());
    }
}
