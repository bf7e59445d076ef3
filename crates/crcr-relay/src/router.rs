//! Every path of the relay, on one page.

use std::sync::Arc;

use aws_lc_rs::constant_time;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use secrecy::ExposeSecret as _;
use serde_json::json;
use tower_http::catch_panic::CatchPanicLayer;

use crate::answer::{self, Refusal};
use crate::hud::{self, Hud};
use crate::relay::Relay;
use crate::store::StoreError;
use crate::{callback, deliveries, limits, records, webhook};

/// The public listener.
pub fn public(relay: &Arc<Relay>) -> Router {
    let admin = admin_routes()
        .route_layer(middleware::from_fn_with_state(Arc::clone(relay), with_admin_token));
    finish(relay, routes().merge(admin))
}

/// The operators' listener: the same and, without a token, their pages.
pub fn admin(relay: &Arc<Relay>) -> Router {
    finish(relay, routes().merge(admin_routes()))
}

fn routes() -> Router<Arc<Relay>> {
    Router::new()
        .route("/github/webhook", post(webhook::handle))
        .route("/github/callback", post(callback::handle))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
}

fn admin_routes() -> Router<Arc<Relay>> {
    Router::new()
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

fn not_found() -> Response {
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
    let body = json!({ "ready": ready, "store": store, "allowlist": allowlist, "keys_missing_of": issuers });
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

/// On the public listener operators need the token, and everybody else finds nothing.
async fn with_admin_token(
    State(relay): State<Arc<Relay>>,
    request: Request,
    next: Next,
) -> Response {
    if is_admin(&relay, request.headers()) { next.run(request).await } else { not_found() }
}

/// Whether a request carries the admin token: as a bearer, or as the cookie `crcr_admin`.
#[must_use]
pub fn is_admin(relay: &Relay, headers: &HeaderMap) -> bool {
    let Some(token) = &relay.config.admin_token else { return false };
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("");
    let bearer = header(header::AUTHORIZATION).strip_prefix("Bearer ");
    let cookie =
        header(header::COOKIE).split(';').find_map(|pair| pair.trim().strip_prefix("crcr_admin="));
    [bearer, cookie].into_iter().flatten().any(|given| {
        let token = token.expose_secret().as_bytes();
        constant_time::verify_slices_are_equal(given.as_bytes(), token).is_ok()
    })
}
