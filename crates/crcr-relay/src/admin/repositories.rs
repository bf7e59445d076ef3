//! HTTP endpoints for pinned repositories: the list, and the confirmation of a change.

use std::num::NonZeroU64;
use std::sync::Arc;

use axum::Form;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{Redirect, Response};
use crcr_domain::RepoName;
use serde::Deserialize;
use serde_json::json;

use super::operators;
use crate::http::http_response::{self, Refusal};
use crate::limits;
use crate::relay::Relay;
use crate::repository_pins::{self, ConfirmError, Pin};

pub(crate) async fn list(State(relay): State<Arc<Relay>>) -> Result<Response, Refusal> {
    let (store, upstream) = (relay.store.as_ref(), &relay.config.upstream);
    let pins = repository_pins::list(store, upstream, limits::MAX_PINS_LISTED).await?;
    Ok(http_response::ok(json!({ "repositories": pins })))
}

/// The operator names the id, so that they can only confirm a repository that they have seen.
#[derive(Debug, Deserialize)]
pub(crate) struct Confirmation {
    repo: RepoName,
    repository_id: NonZeroU64,
}

/// `POST /api/v1/repositories` with a [`Confirmation`].
pub(crate) async fn confirm(
    State(relay): State<Arc<Relay>>,
    request: Request,
) -> Result<Response, Refusal> {
    let expected = "expected {\"repo\": \"OWNER/REPO\", \"repository_id\": NUMBER}";
    let given: Confirmation = operators::json_body(request, expected).await?;
    let pin = confirm_pin(&relay, &given).await?;
    Ok(http_response::ok(json!({ "ok": true, "repository": pin })))
}

/// `POST /crcr/repositories`: a button of the operators' page.
pub(crate) async fn handle_button(
    State(relay): State<Arc<Relay>>,
    headers: HeaderMap,
    Form(given): Form<Confirmation>,
) -> Result<Redirect, Refusal> {
    operators::check_origin(&headers)?;
    confirm_pin(&relay, &given).await?;
    Ok(Redirect::to(super::HOME))
}

async fn confirm_pin(relay: &Relay, given: &Confirmation) -> Result<Pin, Refusal> {
    let (store, upstream) = (relay.store.as_ref(), &relay.config.upstream);
    let id = Some(given.repository_id.get());
    repository_pins::confirm(store, upstream, &given.repo, id, relay.now()).await.map_err(|error| {
        match error {
            ConfirmError::Store(error) => error.into(),
            error => Refusal::new(StatusCode::NOT_FOUND, error.to_string()),
        }
    })
}
