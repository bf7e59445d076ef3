//! HTTP endpoints for deliveries: the page with its JSON twin, and its buttons.

use std::sync::Arc;

use axum::Form;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Redirect, Response};
use crcr_domain::RepoName;
use crcr_hud::View;
use crcr_hud::errors;
use serde::Deserialize;
use serde_json::json;

use super::dead_letters::discard_of_repository;
use super::deliveries::{DeliveryBoard, discard, redeliver, redeliver_all, requeue_dead_letter};
use super::{operators, pages};
use crate::http::http_response::{self, Refusal};
use crate::relay::Relay;

const INVALID_LIMIT: &str = "`limit` isn't a whole number: expected 1 to 500";

#[derive(Debug, Deserialize)]
pub(crate) struct ListQuery {
    limit: Option<usize>,
    /// How many tasks the last button put back into the queue.
    done: Option<u64>,
    /// How many tasks the last button discarded.
    discarded: Option<u64>,
    /// How many old events the last button left alone.
    too_old: Option<u64>,
}

pub(crate) async fn list(
    State(relay): State<Arc<Relay>>,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Response, Refusal> {
    let Query(query) = query.map_err(|_| Refusal::new(StatusCode::BAD_REQUEST, INVALID_LIMIT))?;
    let board = DeliveryBoard::read(&relay, query.limit).await?;
    Ok(http_response::ok(json!(board)))
}

pub(crate) async fn page(
    State(relay): State<Arc<Relay>>,
    query: Result<Query<ListQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Response {
    let has_login = relay.config.admin_token.is_some();
    let github_url = &relay.config.server_url;
    let (path, public_url) = (super::HOME, None);
    let view = View { github_url, public_url, path, is_operator: true, has_login };
    let Ok(Query(query)) = query else {
        return (StatusCode::BAD_REQUEST, errors::page(&view, 400, INVALID_LIMIT, &[]))
            .into_response();
    };
    match DeliveryBoard::read(&relay, query.limit).await {
        Ok(board) => {
            let can_log_out = operators::has_cookie(&headers);
            let note = match (query.done, query.discarded) {
                (Some(count), _) => Some(match query.too_old.filter(|old| *old > 0) {
                    Some(old) => format!(
                        "{count} back in the queue. {old} dispatches of events older than a day aren't \
                         sent again; redeliver them one by one, or discard them."
                    ),
                    None => format!("{count} back in the queue."),
                }),
                (None, Some(count)) => Some(format!("{count} discarded.")),
                (None, None) => None,
            };
            pages::deliveries::page(&view, &board, note.as_deref(), can_log_out).into_response()
        }
        Err(error) => {
            (StatusCode::SERVICE_UNAVAILABLE, errors::page(&view, 503, &error.to_string(), &[]))
                .into_response()
        }
    }
}

/// The form of a button: one of these fields.
#[derive(Debug, Deserialize)]
pub(crate) struct ButtonForm {
    /// A delivery to send again.
    delivery: Option<String>,
    /// The key of a dead letter to put back into the queue.
    task: Option<String>,
    /// The key of a dead letter to remove.
    discard: Option<String>,
    /// The repository whose dead letters are removed.
    discard_repository: Option<RepoName>,
    /// Put every dead letter back into the queue.
    all: Option<bool>,
}

pub(crate) async fn handle_button(
    State(relay): State<Arc<Relay>>,
    headers: HeaderMap,
    Form(button): Form<ButtonForm>,
) -> Result<Redirect, Refusal> {
    operators::check_origin(&headers)?;
    let (store, now, keep) = (relay.store.as_ref(), relay.now(), relay.config.status_ttl);
    let mut too_old = 0;
    let (what, count) = match button {
        ButtonForm { all: Some(true), .. } => {
            let all = redeliver_all(store, now, keep).await?;
            too_old = all.too_old;
            ("done", all.requeued)
        }
        ButtonForm { delivery: Some(id), .. } => {
            ("done", redeliver(store, &id, None, now, keep).await?)
        }
        ButtonForm { task: Some(key), .. } => {
            ("done", requeue_dead_letter(store, &key, now, keep).await?)
        }
        ButtonForm { discard: Some(key), .. } => {
            ("discarded", usize::from(discard(&relay, &key).await?))
        }
        ButtonForm { discard_repository: Some(repo), .. } => {
            ("discarded", discard_of_repository(store, &repo).await?)
        }
        _ => ("done", 0),
    };
    relay.work.notify_one();
    let old = if too_old > 0 { format!("&too_old={too_old}") } else { String::new() };
    Ok(Redirect::to(&format!("{}?{what}={count}{old}", super::HOME)))
}

/// What an operator's program may ask for.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum DeliveryRequest {
    Redeliver { delivery: String, repo: Option<RepoName> },
    Discard { discard: String },
    DiscardRepository { discard_repository: RepoName },
}

/// `POST /api/v1/deliveries` with a [`DeliveryRequest`]. A browser's request must come from this
/// site.
pub(crate) async fn change(
    State(relay): State<Arc<Relay>>,
    request: Request,
) -> Result<Response, Refusal> {
    let expected = "The body is neither {\"delivery\": ID, \"repo\": \"OWNER/REPO\"} (`repo` is optional) nor \
                    {\"discard\": KEY} nor {\"discard_repository\": \"OWNER/REPO\"}";
    let request: DeliveryRequest = operators::json_body(request, expected).await?;
    let (store, now, keep) = (relay.store.as_ref(), relay.now(), relay.config.status_ttl);
    let (what, count) = match request {
        DeliveryRequest::Redeliver { delivery, repo } => {
            ("redelivered", redeliver(store, &delivery, repo.as_ref(), now, keep).await?)
        }
        DeliveryRequest::Discard { discard: key } => {
            ("discarded", usize::from(discard(&relay, &key).await?))
        }
        DeliveryRequest::DiscardRepository { discard_repository: repo } => {
            ("discarded", discard_of_repository(store, &repo).await?)
        }
    };
    relay.work.notify_one();
    Ok(http_response::ok(json!({ "ok": true, what: count })))
}
