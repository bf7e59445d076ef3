//! Deliveries as operators see them, and another try for what was given up.

use std::sync::Arc;
use std::time::Duration;

use axum::Form;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Redirect, Response};
use crcr_domain::RepoName;
use crcr_domain::dispatch::{Dispatch, DispatchStatus};
use crcr_hud::pages::problem;
use crcr_store::{Batch, Commit, Depth, Store, StoreError, TaskView, read, read_all};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::pages;
use crate::admin::operators;
use crate::admin::repositories::{self, Pin};
use crate::http::http_response::{self, Refusal};
use crate::limits;
use crate::queue::task::Work;
use crate::relay::Relay;
use crate::state_records::{self, Delivery};

/// A delivery and what became of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Overview {
    #[serde(flatten)]
    pub delivery: Delivery,
    pub dispatches: Vec<Dispatch>,
}

/// The newest deliveries, at most `limit`.
pub async fn newest(store: &dyn Store, limit: usize) -> Result<Vec<Overview>, StoreError> {
    let ids = store.members(&state_records::deliveries(), limit).await?;
    let mut found = Vec::with_capacity(ids.len());
    for id in ids {
        found.extend(one(store, &id).await?);
    }
    Ok(found)
}

pub async fn one(store: &dyn Store, id: &str) -> Result<Option<Overview>, StoreError> {
    let Some(delivery) = read::<Delivery>(store, state_records::delivery(id)).await?.value else {
        return Ok(None);
    };
    let keys = delivery.targets.iter().map(|repo| state_records::dispatch(id, repo)).collect();
    let dispatches = read_all::<Dispatch>(store, keys).await?;
    let dispatches = dispatches.into_iter().filter_map(|read| read.value).collect();
    Ok(Some(Overview { delivery, dispatches }))
}

/// Tasks that were given up.
pub async fn dead(store: &dyn Store, limit: usize) -> Result<Vec<TaskView>, StoreError> {
    store.tasks(Some("dead"), limit).await
}

/// Puts the dispatches of a delivery that were given up, or couldn't be made, back into the queue
/// (of one repository when it is named); returns how many. Their records live for `keep` from now on.
pub async fn again(
    store: &dyn Store,
    id: &str,
    repo: Option<&RepoName>,
    now: Timestamp,
    keep: Duration,
) -> Result<usize, StoreError> {
    let Some(overview) = one(store, id).await? else { return Ok(0) };
    let mut count = 0;
    for target in &overview.delivery.targets {
        if repo.is_some_and(|repo| repo != target) {
            continue;
        }
        let known = read::<Dispatch>(store, state_records::dispatch(id, target)).await?;
        let Some(mut dispatch) = known.value.clone() else { continue };
        if !dispatch.status.can_be_redelivered() {
            continue;
        }
        dispatch.status = DispatchStatus::Queued;
        dispatch.never_started = false;
        let mut batch = Batch::default();
        batch.update(&known, &dispatch, now + keep);
        batch.tasks.push(Work::dispatch(&dispatch).task_at(now));
        if store.commit(batch, now).await? == Commit::Done {
            count += 1;
        }
    }
    Ok(count)
}

/// Puts everything that was given up back into the queue, of every delivery; returns how much.
pub async fn given_up_again(
    store: &dyn Store,
    now: Timestamp,
    keep: Duration,
) -> Result<usize, StoreError> {
    let mut count = 0;
    for task in dead(store, limits::DEAD).await? {
        count += task_again(store, &task.key, now, keep).await?;
    }
    Ok(count)
}

/// Puts the dead task of this key back into the queue; returns how much that is.
async fn task_again(
    store: &dyn Store,
    key: &str,
    now: Timestamp,
    keep: Duration,
) -> Result<usize, StoreError> {
    let Some(payload) = store.payload(key, "dead").await? else { return Ok(0) };
    match serde_json::from_str::<Work>(&payload) {
        Ok(Work::Dispatch { delivery, repo }) => {
            again(store, &delivery, Some(&repo), now, keep).await
        }
        Ok(work) => {
            let tasks = vec![work.task_at(now)];
            store.commit(Batch { tasks, ..Batch::default() }, now).await?;
            Ok(1)
        }
        Err(error) => {
            tracing::warn!(%error, key, "not a task of this version");
            Ok(0)
        }
    }
}

/// Makes the next look at every open dispatch due now; returns how many.
pub async fn sweep_now(store: &dyn Store, now: Timestamp) -> Result<usize, StoreError> {
    let mut tasks = vec![];
    for task in store.tasks(Some("ready"), 100_000).await? {
        if task.kind() != Work::SWEEP {
            continue;
        }
        let payload = store.payload(&task.key, "ready").await?;
        let work = payload.and_then(|payload| serde_json::from_str::<Work>(&payload).ok());
        tasks.extend(work.map(|work| work.task_at(now)));
    }
    let count = tasks.len();
    store.commit(Batch { tasks, ..Batch::default() }, now).await?;
    Ok(count)
}

const ODD_LIMIT: &str = "`limit` is no whole number: expected 1 to 500";

#[derive(Debug, Serialize)]
pub struct Board {
    /// How many tasks there are.
    pub depth: Depth,
    pub deliveries: Vec<Overview>,
    /// Tasks that were given up.
    pub dead: Vec<TaskView>,
    /// Tasks that failed and come again.
    pub retries: Vec<TaskView>,
    /// Names that belong to another repository than before, and are refused.
    pub changed_repositories: Vec<Pin>,
}

impl Board {
    async fn read(relay: &Relay, query: &ListQuery) -> Result<Self, StoreError> {
        let store = relay.store.as_ref();
        let limit = query.limit.unwrap_or(50).min(500);
        // Those that come again soon are due before most of the looks at open dispatches.
        let mut retries = store.tasks(Some("ready"), 10 * limit).await?;
        retries.retain(|task| task.failed > 0);
        retries.truncate(limit);
        let mut changed = repositories::list(store, &relay.config.upstream, limits::PINS).await?;
        changed.retain(|pin| pin.changed.is_some());
        Ok(Self {
            depth: store.depth().await?,
            deliveries: newest(store, limit).await?,
            dead: dead(store, limit).await?,
            retries,
            changed_repositories: changed,
        })
    }
}

/// `GET /api/v1/deliveries?limit=`.
pub async fn list(
    State(relay): State<Arc<Relay>>,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Response {
    let Ok(Query(query)) = query else {
        return Refusal::new(StatusCode::BAD_REQUEST, ODD_LIMIT).into_response();
    };
    match Board::read(&relay, &query).await {
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
    match Board::read(&relay, &query).await {
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

/// Removes the dead task of this key; `false` when there is none.
async fn discard(relay: &Relay, key: &str) -> Result<bool, StoreError> {
    let found = relay.store.discard(key).await?;
    if found {
        tracing::info!(key, "an operator discarded a task that was given up");
    }
    Ok(found)
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
