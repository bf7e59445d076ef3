//! All paths of the relay.

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use crcr_hud::Hud;
use serde_json::json;
use tower_http::catch_panic::CatchPanicLayer;

use crate::admin::deliveries_endpoint;
use crate::admin::operators;
use crate::admin::operators::Listener;
use crate::admin::repositories;
use crate::admin::{HOME, LOGIN};
use crate::compat::results_endpoint;
use crate::http::http_response::{self, Refusal, not_found};
use crate::http::metrics::MetricsInput;
use crate::http::server_metrics;
use crate::relay::{Readiness, Relay};
use crate::{callback, limits, webhook};

/// The public listener. All listeners share one `hud` with its caches.
pub fn public(relay: &Arc<Relay>, hud: &Arc<Hud>) -> Router {
    build(relay, hud, Listener::Public)
}

/// The operators' listener, with the same paths. See `Listener` for who may use the operators' pages.
pub fn admin(relay: &Arc<Relay>, hud: &Arc<Hud>, loopback: bool) -> Router {
    build(relay, hud, if loopback { Listener::Loopback } else { Listener::Network })
}

fn build(relay: &Arc<Relay>, hud: &Arc<Hud>, listener: Listener) -> Router {
    let state = (Arc::clone(relay), listener);
    let operators = admin_routes()
        .route_layer(middleware::from_fn_with_state(state, operators::require_operator));
    let login = Router::new()
        .route(LOGIN, get(operators::login_form).post(operators::log_in))
        .route("/crcr/logout", post(operators::log_out))
        .layer(DefaultBodyLimit::max(operators::FORM_BYTES));
    routes()
        .merge(operators)
        .merge(crcr_hud::with_headers(login))
        .layer(Extension(listener))
        .with_state(Arc::clone(relay))
        .merge(crcr_hud::router(Arc::clone(hud)))
        .method_not_allowed_fallback(async || {
            Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "Method not allowed").into_response()
        })
        .fallback(async || not_found())
        .layer(CatchPanicLayer::custom(|_| {
            Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "Internal server error").into_response()
        }))
        .layer(middleware::from_fn_with_state(Arc::clone(hud), crcr_hud::errors_as_pages))
        .layer(middleware::from_fn_with_state(
            (Arc::clone(relay), listener),
            operators::note_operator,
        ))
        .layer(middleware::from_fn(time_out_slow_requests))
        .layer(middleware::from_fn_with_state(Arc::clone(relay), server_metrics::count_request))
}

fn routes() -> Router<Arc<Relay>> {
    Router::new()
        .route("/github/webhook", post(webhook::handle))
        .route("/github/callback", post(callback::handle))
        .route("/github/callback/", post(callback::handle))
        .route("/api/crcr/results", post(results_endpoint::handle))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
}

fn admin_routes() -> Router<Arc<Relay>> {
    let page = Router::new()
        .route(HOME, get(deliveries_endpoint::page).post(deliveries_endpoint::handle_button))
        .route("/crcr/repositories", post(repositories::handle_button))
        .layer(DefaultBodyLimit::max(operators::FORM_BYTES));
    crcr_hud::with_headers(page)
        .route("/api/v1/repositories", get(repositories::list).post(repositories::confirm))
        .route("/metrics", get(metrics))
        .route(
            "/api/v1/deliveries",
            get(deliveries_endpoint::list).post(deliveries_endpoint::change),
        )
}

/// Ends requests that take longer than [`limits::REQUEST_TIMEOUT`], for example with a slow body.
async fn time_out_slow_requests(request: Request, next: Next) -> Response {
    match tokio::time::timeout(limits::REQUEST_TIMEOUT, next.run(request)).await {
        Ok(response) => response,
        Err(_) => Refusal::new(StatusCode::REQUEST_TIMEOUT, "The request did not arrive in time")
            .into_response(),
    }
}

async fn healthz() -> Response {
    http_response::ok(json!({ "ok": true }))
}

/// Ready when the store can be written, an allowlist is in force, and the keys of an issuer that its
/// backends need are known, if they need one. Operators see the errors; everybody else only gets codes, because errors can
/// contain addresses.
async fn readyz(
    State(relay): State<Arc<Relay>>,
    Extension(listener): Extension<Listener>,
    headers: HeaderMap,
) -> Response {
    let readiness = relay.readiness().await;
    let (ready, missing) = (readiness.is_ready(), readiness.missing_keys());
    let Readiness { store, allowlist, mut issuers } = readiness;
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    // Facts wait in the store while the results can't be written, so the relay is still ready.
    let results = relay.results_problem.lock().clone();
    let health = relay.store.health();
    let moved_to = relay.upstream_identity.moved_to();
    let body = if operators::is_operator(&relay, listener, &headers) == Ok(true) {
        json!({
            "ready": ready, "store": store, "allowlist": allowlist, "keys_missing_of": missing,
            "issuers": issuers, "results": results, "upstream_moved_to": moved_to, "store_promises_less": health.weaker_promise,
            "store_lost": health.loss,
        })
    } else {
        for issuer in &mut issuers {
            issuer.problem = issuer.problem.take().map(|_| "unreachable".to_owned());
        }
        json!({
            "ready": ready, "store": store.map(|_| "unwritable"),
            "allowlist": { "loaded": allowlist.loaded, "problem": allowlist.problem_code },
            "keys_missing_of": missing, "issuers": issuers, "results": results.map(|_| "waiting"),
            "upstream_moved_to": moved_to.map(|_| "elsewhere"),
            "store_promises_less": health.weaker_promise.map(|_| "weaker"),
            "store_lost": health.loss.map(|_| "data-lost"),
        })
    };
    (status, axum::Json(body)).into_response()
}

async fn metrics(State(relay): State<Arc<Relay>>) -> Response {
    let input = MetricsInput::read(&relay).await;
    relay.metrics.store_health(&relay.store.health());
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], relay.metrics.text(&input)).into_response()
}
