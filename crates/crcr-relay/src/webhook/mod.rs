//! `POST /github/webhook`: checks size and signature, reads the event, and stores what follows from it
//! before the response.

mod accept;
mod downstream_rerun;
pub(crate) mod merge_groups;
pub mod payload;
pub(crate) mod planner;
pub(crate) mod repository;
pub mod signature;
pub(crate) mod turns;

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use crcr_domain::protocol::event;
use crcr_store::{CommitOutcome, WriteBatch};
use serde_json::json;

use self::accept::{DeliveryOutcome, VerifiedWebhook, accept};
use crate::config::secrets::Secret;
use crate::http::http_response::{self, Refusal};
use crate::limits;
use crate::probes::backend_file;
use crate::queue::handlers::keep_webhook::{self, PendingWebhook};
use crate::relay::Relay;

pub async fn handle(State(relay): State<Arc<Relay>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    // Anybody can send what isn't signed, so that is counted apart.
    let mut is_signed = false;
    let signed = http_response::body(body, limits::WEBHOOK_BYTES).await.and_then(|body| {
        verify(&head.headers, &body, &relay.config.webhook_secret)?;
        is_signed = true;
        Ok(body)
    });
    let result = match signed {
        Ok(body) => receive(&relay, &head.headers, &body).await,
        Err(refusal) => Err(refusal),
    };
    match &result {
        Ok(_) => {
            relay.note_taken();
            relay.note_webhook(false);
        }
        Err(refusal) if refusal.status.is_server_error() => relay.note_webhook(true),
        Err(_) => {}
    }
    let id = delivery_id(&head.headers).unwrap_or_default();
    let (label, response) = match result {
        Ok(DeliveryOutcome::Ping) => ("ping", http_response::ok(json!({ "ok": true }))),
        Ok(DeliveryOutcome::Ignored) => ("ignored", http_response::ok(json!({ "ignored": true }))),
        Ok(DeliveryOutcome::Duplicate) => {
            ("duplicate", http_response::ok(json!({ "ok": true, "duplicate": true })))
        }
        Ok(DeliveryOutcome::Accepted(tasks)) => {
            let body = json!({ "ok": true, "delivery": id, "tasks": tasks });
            ("accepted", (StatusCode::ACCEPTED, Json(body)).into_response())
        }
        Err(refusal) => {
            if is_signed || relay.strangers_log.takes_one(Instant::now()) {
                let status = refusal.status.as_u16();
                tracing::warn!(delivery = id, status, detail = refusal.detail, "webhook refused");
            }
            (if is_signed { "refused" } else { "unsigned" }, refusal.into_response())
        }
    };
    relay.metrics.webhook(label);
    response
}

/// The order of these checks is part of the contract.
async fn receive(
    relay: &Relay,
    headers: &HeaderMap,
    body: &Bytes,
) -> Result<DeliveryOutcome, Refusal> {
    let name = text(headers, "x-github-event");
    receive_signed(relay, Some(headers), name, delivery_id(headers), body).await
}

/// Takes a webhook that this relay puts together from what GitHub's API says, because GitHub didn't send it.
pub(crate) async fn take_made_up(
    relay: &Relay,
    name: &str,
    id: &str,
    body: &str,
) -> Result<(), String> {
    let body = Bytes::from(body.to_owned());
    let taken = receive_signed(relay, None, name, Ok(id), &body).await;
    taken.map(drop).map_err(|refusal| refusal.detail)
}

/// `headers`: those of GitHub's request.
async fn receive_signed(
    relay: &Relay,
    headers: Option<&HeaderMap>,
    name: &str,
    id: Result<&str, Refusal>,
    body: &Bytes,
) -> Result<DeliveryOutcome, Refusal> {
    let event = event::read(name, body, &relay.config.event_filter)
        .map_err(|error| Refusal::new(StatusCode::BAD_REQUEST, error.to_string()))?;
    relay.demotions.note_webhook(name, body);
    let id = id?;
    let pending = headers.and_then(|headers| keep_webhook::prepare(relay, headers, name, id, body));
    let Some(event) = event else {
        keep_ignored(relay, pending).await?;
        match name {
            "push" => backend_file::note_push(relay, body).await?,
            "merge_group" => merge_groups::note_end(relay, body).await?,
            "workflow_run" => downstream_rerun::note(relay, body).await?,
            _ => {}
        }
        note_upstream(relay, name, body).await;
        return Ok(if name == "ping" { DeliveryOutcome::Ping } else { DeliveryOutcome::Ignored });
    };
    let webhook =
        VerifiedWebhook { id, name, event: &event, body, pending, stored_body: OnceLock::new() };
    for _ in 0..limits::CONFLICT_TRIES {
        match accept(relay, &webhook).await? {
            Some(DeliveryOutcome::Ignored) => {
                keep_ignored(relay, webhook.pending).await?;
                return Ok(DeliveryOutcome::Ignored);
            }
            Some(accepted) => {
                if !relay.upstream_identity.is_known() {
                    note_upstream(relay, name, body).await;
                }
                return Ok(accepted);
            }
            None => {}
        }
    }
    Err(Refusal::unavailable("too many deliveries of one pull request at once"))
}

/// Learns from a webhook whether upstream has another name. A fault costs nothing: the next one tells it again.
async fn note_upstream(relay: &Relay, name: &str, body: &[u8]) {
    let (store, upstream) = (relay.store.as_ref(), &relay.config.upstream);
    let noted = relay.upstream_identity.note(store, upstream, name, body, relay.now()).await;
    if let Err(error) = noted {
        tracing::warn!(%error, "the upstream repository's number can't be kept");
    }
}

/// Keeps a webhook that causes nothing else.
async fn keep_ignored(relay: &Relay, pending: Option<PendingWebhook>) -> Result<(), Refusal> {
    let Some(pending) = pending else { return Ok(()) };
    let mut batch = WriteBatch::default();
    pending.add_to(&mut batch);
    pending.charge_owner(relay, &mut batch);
    if let CommitOutcome::Limited(_) = relay.commit(batch).await? {
        pending.note_dropped();
    }
    Ok(())
}

/// Checks `X-Hub-Signature-256` over the raw bytes, in constant time.
fn verify(headers: &HeaderMap, body: &[u8], secret: &Secret) -> Result<(), Refusal> {
    let Some(given) = headers.get("x-hub-signature-256").filter(|value| !value.is_empty()) else {
        return Err(Refusal::new(StatusCode::BAD_REQUEST, "No signature"));
    };
    if secret.all().iter().any(|value| signature::is_valid(value, body, given.as_bytes())) {
        return Ok(());
    }
    Err(Refusal::new(StatusCode::UNAUTHORIZED, "Bad signature"))
}

fn delivery_id(headers: &HeaderMap) -> Result<&str, Refusal> {
    let id = text(headers, "x-github-delivery");
    if id.is_empty() {
        return Err(Refusal::new(StatusCode::BAD_REQUEST, "No X-GitHub-Delivery"));
    }
    let proper =
        id.len() <= limits::DELIVERY_CHARS && id.bytes().all(|byte| byte.is_ascii_graphic());
    if !proper {
        return Err(Refusal::new(StatusCode::BAD_REQUEST, "X-GitHub-Delivery isn't a GUID"));
    }
    Ok(id)
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}
