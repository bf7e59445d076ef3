//! The paths of deliveries: a page and its JSON twin, and the buttons.

use std::sync::Arc;

use axum::Form;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Redirect, Response};
use crcr_domain::RepoName;
use crcr_hud::pages::problem;
use crcr_store::StoreError;
use serde::Deserialize;
use serde_json::json;

use super::deliveries::{Board, again, discard, given_up_again, task_again};
use super::{operators, pages};
use crate::http::http_response::{self, Refusal};
use crate::limits;
use crate::relay::Relay;

const ODD_LIMIT: &str = "`limit` is no whole number: expected 1 to 500";

/// `GET /api/v1/deliveries?limit=`.
pub async fn list(
    State(relay): State<Arc<Relay>>,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Response {
    let Ok(Query(query)) = query else {
        return Refusal::new(StatusCode::BAD_REQUEST, ODD_LIMIT).into_response();
    };
    match Board::read(&relay, query.limit).await {
        Ok(board) => http_response::ok(json!(board)),
        Err(error) => Refusal::unavailable(error.to_string()).into_response(),
    }
}

/// `GET /crcr/deliveries?limit=`: the same as a page.
pub async fn board(
    State(relay): State<Arc<Relay>>,
    query: Result<Query<ListQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Response {
    let Ok(Query(query)) = query else {
        return (StatusCode::BAD_REQUEST, problem(400, ODD_LIMIT)).into_response();
    };
    match Board::read(&relay, query.limit).await {
        Ok(board) => {
            let can_log_out = operators::has_cookie(&headers);
            let note = match (query.done, query.discarded) {
                (Some(count), _) => Some(format!("{count} back in the queue.")),
                (None, Some(count)) => Some(format!("{count} discarded.")),
                (None, None) => None,
            };
            pages::deliveries::page(&board, note.as_deref(), can_log_out).into_response()
        }
        Err(error) => {
            let page = problem(503, &error.to_string());
            (StatusCode::SERVICE_UNAVAILABLE, page).into_response()
        }
    }
}

/// What a button of the page asks for: one of these.
#[derive(Debug, Deserialize)]
pub struct Button {
    delivery: Option<String>,
    /// The key of a task that was given up.
    task: Option<String>,
    /// The key of a task that was given up and is to be removed.
    discard: Option<String>,
    /// Everything that was given up.
    all: Option<bool>,
}

/// `POST /crcr/deliveries`: another try or the end of all tries, from a button of the page.
pub async fn press(
    State(relay): State<Arc<Relay>>,
    headers: HeaderMap,
    Form(button): Form<Button>,
) -> Response {
    if !operators::is_own_origin(&headers) {
        return Refusal::new(StatusCode::FORBIDDEN, "Another site's request").into_response();
    }
    let (store, now, keep) = (relay.store.as_ref(), relay.now(), relay.config.keep);
    let pressed = async {
        match button {
            Button { all: Some(true), .. } => Ok(("done", given_up_again(store, now, keep).await?)),
            Button { delivery: Some(id), .. } => {
                Ok(("done", again(store, &id, None, now, keep).await?))
            }
            Button { task: Some(key), .. } => {
                Ok(("done", task_again(store, &key, now, keep).await?))
            }
            Button { discard: Some(key), .. } => {
                Ok(("discarded", usize::from(discard(&relay, &key).await?)))
            }
            _ => Ok(("done", 0)),
        }
    };
    match pressed.await {
        Ok((what, count)) => {
            relay.work.notify_one();
            Redirect::to(&format!("{}?{what}={count}", super::HOME)).into_response()
        }
        Err::<_, StoreError>(error) => Refusal::unavailable(error.to_string()).into_response(),
    }
}

#[derive(Debug, Deserialize)]
pub struct ListQuery {
    limit: Option<usize>,
    /// How much was put back just now.
    done: Option<u64>,
    /// How much was discarded just now.
    discarded: Option<u64>,
}

/// What an operator's program asks for.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Order {
    Redeliver { delivery: String, repo: Option<RepoName> },
    Discard { discard: String },
}

/// `POST /api/v1/deliveries` with a delivery's id: another try for what was given up of it; with the
/// key of a task that was given up as `discard`: removes it.
///
/// A browser's request must come from this site.
pub async fn change(State(relay): State<Arc<Relay>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    if !operators::is_own_origin(&head.headers) {
        return Refusal::new(StatusCode::FORBIDDEN, "Another site's request").into_response();
    }
    let order = match http_response::body(body, limits::ADMIN_BYTES).await {
        Ok(body) => serde_json::from_slice::<Order>(&body),
        Err(refusal) => return refusal.into_response(),
    };
    let order = match order {
        Ok(order) => order,
        Err(error) => {
            let detail = format!(
                "Body is no {{\"delivery\": ID, \"repo\": \"OWNER/REPO\"}} (`repo` may be left out) \
                 and no {{\"discard\": KEY}}: {error}"
            );
            return Refusal::new(StatusCode::BAD_REQUEST, detail).into_response();
        }
    };
    let (store, now, keep) = (relay.store.as_ref(), relay.now(), relay.config.keep);
    let done = match order {
        Order::Redeliver { delivery, repo } => again(store, &delivery, repo.as_ref(), now, keep)
            .await
            .map(|count| json!({ "ok": true, "redelivered": count })),
        Order::Discard { discard: key } => discard(&relay, &key)
            .await
            .map(|found| json!({ "ok": true, "discarded": usize::from(found) })),
    };
    match done {
        Ok(answer) => {
            relay.work.notify_one();
            http_response::ok(answer)
        }
        Err(error) => Refusal::unavailable(error.to_string()).into_response(),
    }
}
