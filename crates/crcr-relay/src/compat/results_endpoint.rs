//! `POST /api/crcr/results`: accepts results from another relay, in the format that the deployed relay
//! sends to its HUD.

use std::sync::Arc;

use aws_lc_rs::constant_time;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use crcr_domain::protocol::standard_json::standard_json;
use crcr_domain::results::facts::{AttemptFact, Fact};
use crcr_results::deployed::{self, DISPATCH_JOB, DISPATCH_WORKFLOW, ForwardedResult};
use crcr_store::{CommitOutcome, StoreKey, WriteBatch};
use secrecy::ExposeSecret as _;
use serde_json::json;

use crate::http::http_response::{self, Refusal};
use crate::limits;
use crate::relay::Relay;

/// 401 without the token, 413 over [`limits::FORWARD_BYTES`], 400 for an invalid body.
pub(crate) async fn handle(
    State(relay): State<Arc<Relay>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    receive(&relay, &headers, body).await
}

/// The deployed relay echoes what it got, as Python writes it.
fn read_result(body: &[u8]) -> serde_json::Result<ForwardedResult> {
    serde_json::from_slice(body).or_else(|_| serde_json::from_slice(&standard_json(body)))
}

async fn receive(relay: &Relay, headers: &HeaderMap, body: Body) -> Result<Response, Refusal> {
    let given = headers.get("x-hud-internal-bot").map(|value| value.as_bytes()).unwrap_or_default();
    let known = relay.config.results_token.as_ref().is_some_and(|token| {
        token.all().iter().any(|token| {
            let token = token.expose_secret().as_bytes();
            constant_time::verify_slices_are_equal(given, token).is_ok()
        })
    });
    if !known {
        let detail = "`x-hud-internal-bot` is not this HUD's token";
        return Err(Refusal::new(StatusCode::UNAUTHORIZED, detail));
    }
    let refused = |detail: String| Refusal::new(StatusCode::BAD_REQUEST, detail);
    let body = http_response::body(body, limits::FORWARD_BYTES).await?;
    let forward = read_result(&body).map_err(|error| refused(format!("Invalid body: {error}")))?;
    if let Some(fact) = forward.dispatch(relay.now()) {
        let status = fact.status;
        let key = [&fact.repo, &fact.delivery, DISPATCH_WORKFLOW, DISPATCH_JOB].join("/");
        let batch = WriteBatch { facts: vec![Fact::Dispatch(fact)], ..WriteBatch::default() };
        relay.commit(batch).await?;
        return Ok(http_response::ok(json!({ "ok": true, "status": status, "dynamoKey": key })));
    }
    let received = forward.read().map_err(|why| refused(why.what))?;
    let (status, key) = (received.status(), received.key().join("/"));
    let mut answer = json!({ "ok": true, "status": status, "dynamoKey": key });
    if !received.warnings().is_empty() {
        answer["warnings"] = json!(received.warnings());
    }
    let mut parts = vec!["forwarded"];
    parts.extend(received.key());
    let place = StoreKey::new(&parts);
    for _ in 0..limits::CONFLICT_TRIES {
        // The end of a job comes without its time in the queue, which its start has.
        let before = relay.read_record::<AttemptFact>(place.clone()).await?;
        let mut batch = WriteBatch::default();
        let overtaken = before.value.as_ref().is_some_and(|known| known.state.rank() > 1);
        if !(overtaken && status == "in_progress") {
            let mut attempt = received.clone().attempt(before.value.clone(), relay.now());
            let expected = &relay.config.expected_conclusions;
            attempt.expected = expected.conclusion(&attempt.repo, attempt.job.as_deref());
            batch.update(&before, &attempt, relay.expiry());
            batch.facts = deployed::facts(attempt);
        }
        if relay.commit(batch).await? != CommitOutcome::Conflict {
            return Ok(http_response::ok(answer));
        }
    }
    Err(Refusal::unavailable("too many changes of the same result at once"))
}
