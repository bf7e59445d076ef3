//! Every path of the relay, on one page.

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use serde_json::json;
use tower_http::catch_panic::CatchPanicLayer;

use crate::answer::{self, Refusal};
use crate::hud::{self, Hud};
use crate::relay::Relay;
use crate::store::StoreError;
use crate::{callback, deliveries, limits, operators, receive, records, webhook};

/// The public listener.
pub fn public(relay: &Arc<Relay>) -> Router {
    let admin = admin_routes()
        .route_layer(middleware::from_fn_with_state(Arc::clone(relay), operators::only));
    let login = Router::new()
        .route(operators::LOGIN, get(operators::form).post(operators::log_in))
        .route("/crcr/logout", post(operators::log_out))
        .layer(DefaultBodyLimit::max(operators::FORM_BYTES));
    finish(relay, routes().merge(admin).merge(hud::with_headers(login)))
}

/// The operators' listener: the same and, without a token, their pages. On `loopback` these are
/// for who names this machine.
pub fn admin(relay: &Arc<Relay>, loopback: bool) -> Router {
    let mut admin = admin_routes();
    if loopback {
        let own = operators::by_a_name_of_this_machine;
        admin = admin.route_layer(middleware::from_fn_with_state(Arc::clone(relay), own));
    }
    finish(relay, routes().merge(admin))
}

fn routes() -> Router<Arc<Relay>> {
    Router::new()
        .route("/github/webhook", post(webhook::handle))
        .route("/github/callback", post(callback::handle))
        .route("/api/crcr/results", post(receive::handle))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
}

fn admin_routes() -> Router<Arc<Relay>> {
    let page = Router::new()
        .route(operators::HOME, get(deliveries::board).post(deliveries::press))
        .layer(DefaultBodyLimit::max(operators::FORM_BYTES));
    hud::with_headers(page)
        .route("/metrics", get(metrics))
        .route("/api/v1/deliveries", get(deliveries::list).post(deliveries::redeliver))
}

fn finish(relay: &Arc<Relay>, router: Router<Arc<Relay>>) -> Router {
    router
        .with_state(Arc::clone(relay))
        .merge(hud::router(Arc::new(Hud::of(relay))))
        .method_not_allowed_fallback(async || {
            Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "Method not allowed").into_response()
        })
        .fallback(async || not_found())
        .layer(CatchPanicLayer::custom(|_| {
            Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "Internal server error").into_response()
        }))
        .layer(middleware::from_fn(in_time))
}

/// Whoever sends a body byte by byte gets no more than [`limits::REQUEST`].
async fn in_time(request: Request, next: Next) -> Response {
    match tokio::time::timeout(limits::REQUEST, next.run(request)).await {
        Ok(response) => response,
        Err(_) => Refusal::new(StatusCode::REQUEST_TIMEOUT, "The request did not arrive in time")
            .into_response(),
    }
}

pub(crate) fn not_found() -> Response {
    Refusal::new(StatusCode::NOT_FOUND, "Not found").into_response()
}

async fn healthz() -> Response {
    answer::ok(json!({ "ok": true }))
}

/// Green when the store answers, an allowlist is in force, and every issuer's keys are known.
async fn readyz(State(relay): State<Arc<Relay>>) -> Response {
    let store = relay.store.get(&[records::deliveries()]).await;
    let store = store.err().map(|error| error.to_string());
    let allowlist = relay.allowlist.standing();
    let issuers = relay.verifier.unready(relay.now());
    let ready = store.is_none() && allowlist.loaded && issuers.is_empty();
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    // Results that can't be written wait in the store: no reason to send webhooks elsewhere.
    let body = json!({
        "ready": ready, "store": store, "allowlist": allowlist, "keys_missing_of": issuers,
        "results": relay.feed.problem(),
    });
    (status, axum::Json(body)).into_response()
}

async fn metrics(State(relay): State<Arc<Relay>>) -> Response {
    let counted =
        async { Ok::<_, StoreError>((relay.store.depth().await?, relay.open_dispatches().await?)) };
    match counted.await {
        Ok((depth, open)) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            let text = relay.metrics.text(depth, open, &relay.allowlist.standing());
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(error) => Refusal::unavailable(error.to_string()).into_response(),
    }
}
