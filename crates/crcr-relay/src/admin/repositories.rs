//! Pinned repositories for operators: a list, and the confirmation of a change.

use std::sync::Arc;

use axum::Form;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Redirect, Response};
use crcr_domain::RepoName;
use serde::Deserialize;
use serde_json::json;

use super::operators;
use crate::http::http_response::{self, Refusal};
use crate::limits;
use crate::relay::Relay;
use crate::repository_pins::{ConfirmError, Pin, confirm, list};

/// `GET /api/v1/repositories`.
pub(crate) async fn index(State(relay): State<Arc<Relay>>) -> Response {
    match list(relay.store.as_ref(), &relay.config.upstream, limits::PINS).await {
        Ok(pins) => http_response::ok(json!({ "repositories": pins })),
        Err(error) => Refusal::unavailable(error.to_string()).into_response(),
    }
}

/// What an operator confirms. The number is asked for, so that nothing is confirmed that wasn't
/// seen.
#[derive(Debug, Deserialize)]
pub(crate) struct Confirmation {
    repo: RepoName,
    repository_id: u64,
}

/// `POST /api/v1/repositories` with a [`Confirmation`].
pub(crate) async fn confirm_one(State(relay): State<Arc<Relay>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    if !operators::is_own_origin(&head.headers) {
        return Refusal::new(StatusCode::FORBIDDEN, "Another site's request").into_response();
    }
    let given = match http_response::body(body, limits::ADMIN_BYTES).await {
        Ok(body) => serde_json::from_slice::<Confirmation>(&body),
        Err(refusal) => return refusal.into_response(),
    };
    match given {
        Ok(given) => match confirmed(&relay, &given).await {
            Ok(pin) => http_response::ok(json!({ "ok": true, "repository": pin })),
            Err(refusal) => refusal.into_response(),
        },
        Err(error) => {
            let expected = "expected {\"repo\": \"OWNER/REPO\", \"repository_id\": NUMBER}";
            Refusal::new(StatusCode::BAD_REQUEST, format!("{expected}: {error}")).into_response()
        }
    }
}

/// `POST /crcr/repositories`: the same from a button of the operators' page.
pub(crate) async fn press(
    State(relay): State<Arc<Relay>>,
    headers: HeaderMap,
    Form(given): Form<Confirmation>,
) -> Response {
    if !operators::is_own_origin(&headers) {
        return Refusal::new(StatusCode::FORBIDDEN, "Another site's request").into_response();
    }
    match confirmed(&relay, &given).await {
        Ok(_) => Redirect::to(super::HOME).into_response(),
        Err(refusal) => refusal.into_response(),
    }
}

async fn confirmed(relay: &Relay, given: &Confirmation) -> Result<Pin, Refusal> {
    let (store, upstream) = (relay.store.as_ref(), &relay.config.upstream);
    let id = Some(given.repository_id);
    confirm(store, upstream, &given.repo, id, relay.now()).await.map_err(|error| match error {
        ConfirmError::Store(error) => Refusal::unavailable(error.to_string()),
        error => Refusal::new(StatusCode::NOT_FOUND, error.to_string()),
    })
}
