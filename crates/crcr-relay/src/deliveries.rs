//! Deliveries as operators see them, and another try for what was given up.

use std::sync::Arc;

use axum::Form;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Redirect, Response};
use crcr_domain::RepoName;
use crcr_domain::dispatch::{Dispatch, Status};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::answer::{self, Refusal};
use crate::handlers::Work;
use crate::hud::pages;
use crate::records::{self, Delivery};
use crate::relay::Relay;
use crate::store::{Batch, Commit, Depth, Store, StoreError, TaskView, read, read_all};
use crate::{limits, operators};

/// A delivery and what became of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Overview {
    /// The delivery.
    #[serde(flatten)]
    pub delivery: Delivery,
    /// Its dispatches.
    pub dispatches: Vec<Dispatch>,
}

/// The newest deliveries, at most `limit`.
pub async fn newest(store: &dyn Store, limit: usize) -> Result<Vec<Overview>, StoreError> {
    let ids = store.members(&records::deliveries(), limit).await?;
    let mut found = Vec::with_capacity(ids.len());
    for id in ids {
        found.extend(one(store, &id).await?);
    }
    Ok(found)
}

/// One delivery.
pub async fn one(store: &dyn Store, id: &str) -> Result<Option<Overview>, StoreError> {
    let Some(delivery) = read::<Delivery>(store, records::delivery(id)).await?.value else {
        return Ok(None);
    };
    let keys = delivery.targets.iter().map(|repo| records::dispatch(id, repo)).collect();
    let dispatches = read_all::<Dispatch>(store, keys).await?;
    let dispatches = dispatches.into_iter().filter_map(|read| read.value).collect();
    Ok(Some(Overview { delivery, dispatches }))
}

/// Tasks that were given up.
pub async fn dead(store: &dyn Store, limit: usize) -> Result<Vec<TaskView>, StoreError> {
    store.tasks(Some("dead"), limit).await
}

/// Puts the dispatches of a delivery that were given up, or couldn't be made, back into the queue
/// (of one repository when it is named); returns how many.
pub async fn again(
    store: &dyn Store,
    id: &str,
    repo: Option<&RepoName>,
    now: Timestamp,
) -> Result<usize, StoreError> {
    let Some(overview) = one(store, id).await? else { return Ok(0) };
    let mut count = 0;
    for target in &overview.delivery.targets {
        if repo.is_some_and(|repo| repo != target) {
            continue;
        }
        let known = read::<Dispatch>(store, records::dispatch(id, target)).await?;
        let Some(mut dispatch) = known.value.clone() else { continue };
        if !dispatch.status.may_come_again() {
            continue;
        }
        dispatch.status = Status::Queued;
        dispatch.never_started = false;
        let mut batch = Batch::default();
        batch.update(&known, &dispatch, now + limits::KEEP);
        batch.tasks.push(Work::dispatch(&dispatch).task_at(now));
        if store.commit(batch, now).await? == Commit::Done {
            count += 1;
        }
    }
    Ok(count)
}

/// Puts everything that was given up back into the queue, of every delivery; returns how much.
pub async fn given_up_again(store: &dyn Store, now: Timestamp) -> Result<usize, StoreError> {
    let mut count = 0;
    for task in dead(store, limits::DEAD).await? {
        count += task_again(store, &task, now).await?;
    }
    Ok(count)
}

/// Puts a task that was given up back into the queue; returns how much that is.
async fn task_again(
    store: &dyn Store,
    task: &TaskView,
    now: Timestamp,
) -> Result<usize, StoreError> {
    match serde_json::from_str::<Work>(&task.payload) {
        Ok(Work::Dispatch { delivery, repo }) => again(store, &delivery, Some(&repo), now).await,
        Ok(work) => {
            let tasks = vec![work.task_at(now)];
            store.commit(Batch { tasks, ..Batch::default() }, now).await?;
            Ok(1)
        }
        Err(error) => {
            tracing::warn!(%error, key = task.key, "not a task of this version");
            Ok(0)
        }
    }
}

/// Makes the next look at every open dispatch due now; returns how many.
pub async fn sweep_now(store: &dyn Store, now: Timestamp) -> Result<usize, StoreError> {
    let tasks: Vec<TaskView> = store.tasks(Some("ready"), 100_000).await?;
    let sweeps = tasks.iter().filter_map(|task| serde_json::from_str::<Work>(&task.payload).ok());
    let sweeps = sweeps.filter(|work| matches!(work, Work::Sweep { .. }));
    let tasks: Vec<_> = sweeps.map(|work| work.task_at(now)).collect();
    let count = tasks.len();
    store.commit(Batch { tasks, ..Batch::default() }, now).await?;
    Ok(count)
}

const ODD_LIMIT: &str = "`limit` is no whole number: expected 1 to 500";

/// What operators look at.
#[derive(Debug, Serialize)]
pub struct Board {
    /// How many tasks there are.
    pub depth: Depth,
    /// The newest deliveries.
    pub deliveries: Vec<Overview>,
    /// Tasks that were given up.
    pub dead: Vec<TaskView>,
    /// Tasks that failed and come again.
    pub retries: Vec<TaskView>,
}

impl Board {
    async fn read(store: &dyn Store, query: &ListQuery) -> Result<Self, StoreError> {
        let limit = query.limit.unwrap_or(50).min(500);
        // Those that come again soon are due before most of the looks at open dispatches.
        let mut retries = store.tasks(Some("ready"), 10 * limit).await?;
        retries.retain(|task| task.failed > 0);
        retries.truncate(limit);
        Ok(Self {
            depth: store.depth().await?,
            deliveries: newest(store, limit).await?,
            dead: dead(store, limit).await?,
            retries,
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
    match Board::read(relay.store.as_ref(), &query).await {
        Ok(board) => answer::ok(json!(board)),
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
        return (StatusCode::BAD_REQUEST, pages::problem(400, ODD_LIMIT)).into_response();
    };
    match Board::read(relay.store.as_ref(), &query).await {
        Ok(board) => {
            let can_log_out = operators::has_cookie(&headers);
            pages::deliveries::page(&board, query.done, can_log_out).into_response()
        }
        Err(error) => {
            let page = pages::problem(503, &error.to_string());
            (StatusCode::SERVICE_UNAVAILABLE, page).into_response()
        }
    }
}

/// What a button of the page asks for: one of these.
#[derive(Debug, Deserialize)]
pub struct Button {
    /// A delivery.
    delivery: Option<String>,
    /// The key of a task that was given up.
    task: Option<String>,
    /// Everything that was given up.
    all: Option<bool>,
}

/// `POST /crcr/deliveries`: another try, from a button of the page.
pub async fn press(
    State(relay): State<Arc<Relay>>,
    headers: HeaderMap,
    Form(button): Form<Button>,
) -> Response {
    if !operators::is_own_origin(&headers) {
        return Refusal::new(StatusCode::FORBIDDEN, "Another site's request").into_response();
    }
    let (store, now) = (relay.store.as_ref(), relay.now());
    let pressed = async {
        match button {
            Button { all: Some(true), .. } => given_up_again(store, now).await,
            Button { delivery: Some(id), .. } => again(store, &id, None, now).await,
            Button { task: Some(key), .. } => {
                let known = dead(store, limits::DEAD).await?;
                match known.iter().find(|task| task.key == key) {
                    Some(task) => task_again(store, task, now).await,
                    None => Ok(0),
                }
            }
            _ => Ok(0),
        }
    };
    match pressed.await {
        Ok(count) => {
            relay.work.notify_one();
            Redirect::to(&format!("{}?done={count}", operators::HOME)).into_response()
        }
        Err(error) => Refusal::unavailable(error.to_string()).into_response(),
    }
}

/// What to list.
#[derive(Debug, Deserialize)]
pub struct ListQuery {
    limit: Option<usize>,
    /// How much was put back just now.
    done: Option<u64>,
}

/// What to redeliver.
#[derive(Debug, Deserialize)]
pub struct Redelivery {
    delivery: String,
    repo: Option<RepoName>,
}

/// `POST /api/v1/deliveries` with a delivery's id: another try for what was given up of it.
///
/// A browser's request must come from this site.
pub async fn redeliver(State(relay): State<Arc<Relay>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    if !operators::is_own_origin(&head.headers) {
        return Refusal::new(StatusCode::FORBIDDEN, "Another site's request").into_response();
    }
    let what = match answer::body(body, limits::ADMIN_BYTES).await {
        Ok(body) => serde_json::from_slice::<Redelivery>(&body),
        Err(refusal) => return refusal.into_response(),
    };
    let what = match what {
        Ok(what) => what,
        Err(error) => {
            let detail = format!(
                "Body is no {{\"delivery\": ID, \"repo\": \"OWNER/REPO\"}} (`repo` may be left out): {error}"
            );
            return Refusal::new(StatusCode::BAD_REQUEST, detail).into_response();
        }
    };
    let now = relay.now();
    match again(relay.store.as_ref(), &what.delivery, what.repo.as_ref(), now).await {
        Ok(count) => {
            relay.work.notify_one();
            answer::ok(json!({ "ok": true, "redelivered": count }))
        }
        Err(error) => Refusal::unavailable(error.to_string()).into_response(),
    }
}
