//! `POST /github/webhook`: checks size and signature, reads the event, and stores what follows from it in
//! one transaction before the response.

pub mod payload;
pub(crate) mod planner;
pub mod signature;
pub(crate) mod turns;

use std::sync::{Arc, OnceLock};

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use crcr_domain::RepoName;
use crcr_domain::probes::LeftOut;
use crcr_domain::protocol::dispatch::{Dispatch, DispatchStatus};
use crcr_domain::protocol::event::{self, EventName, PullRequestAction, UpstreamEvent};
use crcr_store::{
    CommitOutcome, RecordWrite, SetInsert, StoreError, Versioned, WriteBatch, decode_record,
    read_record, read_records,
};
use jiff::Timestamp;
use serde_json::json;

use crate::config::secrets::Secret;
use crate::http::http_response::{self, Refusal};
use crate::limits;
use crate::probes::backend_file;
use crate::queue::handlers::keep_webhook::{self, PendingWebhook};
use crate::queue::handlers::supersede::supersede;
use crate::queue::record_dispatch_change;
use crate::queue::task_kind::TaskKind;
use crate::relay::Relay;
use crate::state_records::{self, DeliveryRecord, PullRecord};

enum DeliveryOutcome {
    Ping,
    Ignored,
    Duplicate,
    /// With the number of tasks.
    Accepted(usize),
}

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
        Ok(_) => relay.note_webhook(false),
        Err(refusal) if refusal.status.is_server_error() => relay.note_webhook(true),
        Err(_) => {}
    }
    let id = text(&head.headers, "x-github-delivery");
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
            let status = refusal.status.as_u16();
            tracing::warn!(delivery = id, status, detail = refusal.detail, "webhook refused");
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
        if name == "push" {
            let noted = backend_file::note_push(relay, body).await;
            noted.map_err(|error| Refusal::unavailable(error.to_string()))?;
        }
        note_upstream(relay, name, body).await;
        return Ok(if name == "ping" { DeliveryOutcome::Ping } else { DeliveryOutcome::Ignored });
    };
    let webhook =
        VerifiedWebhook { id, name, event: &event, body, pending, stored_body: OnceLock::new() };
    for _ in 0..limits::CONFLICTS {
        match accept(relay, &webhook).await {
            Ok(Some(DeliveryOutcome::Ignored)) => {
                keep_ignored(relay, webhook.pending).await?;
                return Ok(DeliveryOutcome::Ignored);
            }
            Ok(Some(accepted)) => {
                if !relay.upstream_identity.is_known() {
                    note_upstream(relay, name, body).await;
                }
                return Ok(accepted);
            }
            Ok(None) => {}
            Err(WebhookError::Refused(refusal)) => return Err(refusal),
            Err(WebhookError::Store(error)) => return Err(Refusal::unavailable(error.to_string())),
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
    match relay.commit(batch).await {
        Ok(CommitOutcome::Limited(_)) => {
            pending.note_dropped();
            Ok(())
        }
        Ok(_) => Ok(()),
        Err(error) => Err(Refusal::unavailable(error.to_string())),
    }
}

enum WebhookError {
    Refused(Refusal),
    Store(StoreError),
}

impl From<StoreError> for WebhookError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// A webhook with a valid signature.
struct VerifiedWebhook<'a> {
    id: &'a str,
    name: &'a str,
    event: &'a UpstreamEvent,
    body: &'a Bytes,
    /// `None` if webhooks of this event aren't kept.
    pending: Option<PendingWebhook>,
    /// The body as it is stored, computed once it is known that a backend gets it.
    stored_body: OnceLock<StoredBody>,
}

/// `Ok(None)` when another change came first, so that the decision has to be made again.
async fn accept(
    relay: &Relay,
    webhook: &VerifiedWebhook<'_>,
) -> Result<Option<DeliveryOutcome>, WebhookError> {
    let VerifiedWebhook { id, name, event, .. } = *webhook;
    let store = relay.store.as_ref();
    let upstream = &relay.config.upstream;
    let pull_key = match event {
        UpstreamEvent::PullRequest(pull) => {
            Some(state_records::pull_request_key(upstream, pull.number))
        }
        _ => None,
    };
    let turn = match &pull_key {
        Some(key) => Some(relay.turns.wait(key).await),
        None => None,
    };
    if let Some(turn) = turn.as_ref().filter(|turn| turn.may_have(id)) {
        turn.wait_for_disk().await;
    }
    let keys: Vec<_> =
        [state_records::delivery_key(id)].into_iter().chain(pull_key.clone()).collect();
    let mut found = store.records(&keys).await?.into_iter();
    let seen: Versioned<DeliveryRecord> =
        decode_record(state_records::delivery_key(id), found.next().flatten())?;
    if seen.value.is_some() {
        return Ok(Some(DeliveryOutcome::Duplicate));
    }
    let mut newest = None;
    let now = relay.now();
    let mut batch = WriteBatch::default();
    let mut delivery = DeliveryRecord::new(id, name, now);
    let mut landed_now = None;
    let mut replacement = None;
    match event {
        UpstreamEvent::PullRequest(pull) => {
            delivery.pull_request = Some(pull.number);
            delivery.head_sha.clone_from(&pull.head_sha);
            let (turn, key) = turn.as_ref().zip(pull_key).expect("pull requests have both");
            let known = match turn.newest() {
                Some((by, newest)) => {
                    batch.expected_versions.push((state_records::delivery_key(&by), 1));
                    newest
                }
                None => decode_record(key, found.next().flatten())?,
            };
            let had_landed = known.value.as_ref().is_some_and(|known| known.has_landed);
            landed_now = (pull.has_landed && !had_landed).then_some(pull);
            let order = planner::order(known.value.as_ref(), pull, id, now);
            let reads_deliveries = !order.replaces.is_empty()
                || order.is_of_newest_head
                || pull.action == PullRequestAction::BaseChanged;
            // Other deliveries have to be in the store before they can be read from it.
            if reads_deliveries && !turn.wait_for_disk().await {
                return Ok(None);
            }
            match &order.superseded_by {
                Some(by) if order.is_of_newest_head => {
                    let newer: Versioned<DeliveryRecord> =
                        read_record(store, state_records::delivery_key(by)).await?;
                    replacement = newer.value;
                }
                by => delivery.superseded_by.clone_from(by),
            }
            for replaced in &order.replaces {
                supersede(relay, replaced, id, &mut batch).await?;
            }
            batch.update(&known, &order.pull, relay.expiry());
            let version = known.version + 1;
            batch.set_inserts.push(open_head(relay, pull.number.to_string(), now));
            newest = Some(Versioned { key: known.key, version, value: Some(order.pull) });
            if !pull.action.dispatches() {
                batch.tasks.push(TaskKind::Labels { pull: pull.number }.task(now));
            }
        }
        UpstreamEvent::Push(push) => {
            delivery.head_sha.clone_from(&push.head_sha);
            relay.allowlist.refresh_soon();
        }
        UpstreamEvent::MergeGroup(group) => {
            delivery.head_sha.clone_from(&group.head_sha);
            batch.set_inserts.push(open_head(relay, group.head_sha.clone(), now));
        }
        UpstreamEvent::CheckRunRerequested(run) => {
            delivery.head_sha.clone_from(&run.head_sha);
            let Some(work) = TaskKind::rerun_of(&run.name, &run.external_id, &run.head_sha, true)
            else {
                return Ok(Some(DeliveryOutcome::Ignored));
            };
            batch.tasks.push(work.task(now));
        }
        UpstreamEvent::CheckSuiteRerequested(suite) => {
            delivery.head_sha.clone_from(&suite.head_sha);
            batch.tasks.push(TaskKind::RerunSuite { suite: suite.id }.task(now));
        }
    }
    if is_dispatched(event) {
        let Some(allowlist) = relay.allowlist.get() else {
            return Err(WebhookError::Refused(Refusal::unavailable(
                "the allowlist is not loaded yet",
            )));
        };
        let mut dispatches = planner::dispatches(event, id, upstream, &allowlist, now);
        let pull = newest.as_ref().and_then(|newest| newest.value.as_ref());
        let waiting = match dispatches.first().and_then(|one| one.action).zip(pull) {
            // The others have got it as a draft.
            Some((PullRequestAction::ReadyForReview, _)) => {
                Some(backend_file::without_drafts(relay, &repos_of(&dispatches)).await?)
            }
            Some((PullRequestAction::BaseChanged, pull)) => {
                Some(left_out_for_paths(relay, pull, &repos_of(&dispatches)).await?)
            }
            _ => None,
        };
        if let Some(waiting) = waiting {
            dispatches.retain(|one| waiting.contains(&one.repo));
        }
        if let Some(pull) = pull {
            for dispatch in &mut dispatches {
                // A label of the same second may be missing in the event.
                dispatch.labels.clone_from(&pull.labels);
                dispatch.order = pull.order;
            }
        }
        if let Some(newer) = replacement {
            // Not every backend gets that a draft is ready for review: the others may lack its head.
            let is_replaced = |one: &Dispatch| newer.targets.contains(&one.repo);
            for dispatch in dispatches.iter_mut().filter(|one| is_replaced(one)) {
                dispatch.status = DispatchStatus::Superseded { by: newer.id.clone() };
            }
            if dispatches.iter().all(is_replaced) {
                delivery.superseded_by = Some(newer.id);
            }
        }
        add_dispatches(relay, &mut batch, &mut delivery, dispatches);
        if let Some(pull) = landed_now {
            // It needs a delivery of its own, because a backend gets one dispatch for each delivery.
            let event = EventName::Landed;
            let mut landed = DeliveryRecord::new(&format!("{id}:{event}"), event.as_str(), now);
            landed.pull_request = Some(pull.number);
            landed.head_sha.clone_from(&pull.head_sha);
            let dispatches = planner::landed(pull, &landed.id, upstream, &allowlist, now);
            add_dispatches(relay, &mut batch, &mut landed, dispatches);
            let unseen =
                Versioned { key: state_records::delivery_key(&landed.id), version: 0, value: None };
            add_delivery(relay, &mut batch, &unseen, &landed, webhook);
        }
    }
    let tasks = batch.tasks.len();
    if let Some(pending) = &webhook.pending {
        pending.add_to(&mut batch);
    }
    add_delivery(relay, &mut batch, &seen, &delivery, webhook);
    let submitted = relay.submit(batch).await?;
    let pending = turn.zip(newest).map(|(turn, newest)| turn.submitted(id, newest));
    let commit = relay.durable(submitted).await;
    if let Some(pending) = pending
        && !matches!(commit, Ok(CommitOutcome::Done))
    {
        pending.reject();
    }
    Ok(match commit? {
        CommitOutcome::Done => {
            tracing::info!(delivery = id, event = name, tasks, "webhook accepted");
            relay.traces.webhook_accepted(&delivery, relay.now());
            Some(DeliveryOutcome::Accepted(tasks))
        }
        CommitOutcome::Conflict | CommitOutcome::Limited(_) | CommitOutcome::LeaseLost => None,
    })
}

fn repos_of(dispatches: &[Dispatch]) -> Vec<RepoName> {
    dispatches.iter().map(|one| one.repo.clone()).collect()
}

/// Those of these backends whose newest dispatch of the head is left out because no changed file concerns them, isn't
/// decided yet, or isn't known: its event may come later, with the base of before.
async fn left_out_for_paths(
    relay: &Relay,
    pull: &PullRecord,
    repos: &[RepoName],
) -> Result<Vec<RepoName>, StoreError> {
    let mut left_out = vec![];
    for repo in repos {
        let keys = pull.deliveries.iter().map(|id| state_records::dispatch_key(id, repo)).collect();
        let known = read_records::<Dispatch>(relay.store.as_ref(), keys).await?;
        let newest = known.into_iter().rev().find_map(|read| read.value);
        if newest.is_none_or(|dispatch| {
            let paths = DispatchStatus::LeftOut { why: LeftOut::Paths };
            dispatch.status == paths || dispatch.status == DispatchStatus::Queued
        }) {
            left_out.push(repo.clone());
        }
    }
    Ok(left_out)
}

fn is_dispatched(event: &UpstreamEvent) -> bool {
    matches!(
        event,
        UpstreamEvent::PullRequest(_) | UpstreamEvent::Push(_) | UpstreamEvent::MergeGroup(_)
    )
}

fn open_head(relay: &Relay, member: String, now: Timestamp) -> SetInsert {
    SetInsert {
        set: state_records::open_heads_key(&relay.config.upstream),
        member,
        score: now.as_millisecond(),
        expires_at: relay.expiry(),
    }
}

/// Adds the delivery of `dispatch` to those about its commit.
fn add_to_commit(relay: &Relay, batch: &mut WriteBatch, dispatch: &Dispatch) {
    let (head, expires_at) = (&dispatch.head_sha, relay.expiry());
    let origin = match (&dispatch.event, dispatch.pull_request, &dispatch.author) {
        (_, Some(_), Some(author)) => format!("author {}", author.to_ascii_lowercase()),
        (_, Some(number), None) => format!("pull {number}"),
        (event, None, _) => event.to_string(),
    };
    // Nobody else's pull requests can take the place of upstream's own events.
    let first = if dispatch.pull_request.is_none() { 1 << 50 } else { 0 };
    batch.set_inserts.push(SetInsert {
        set: state_records::commit_deliveries_key(head, &origin),
        member: dispatch.delivery.clone(),
        score: dispatch.order,
        expires_at,
    });
    batch.set_inserts.push(SetInsert {
        set: state_records::commit_origins_key(head),
        member: origin,
        score: first + dispatch.order,
        expires_at,
    });
}

/// Adds a delivery's dispatches to a batch, and the tasks that send them and create their check runs.
fn add_dispatches(
    relay: &Relay,
    batch: &mut WriteBatch,
    delivery: &mut DeliveryRecord,
    dispatches: Vec<Dispatch>,
) {
    if let Some(dispatch) = dispatches.iter().find(|dispatch| dispatch.is_about_commit()) {
        add_to_commit(relay, batch, dispatch);
    }
    for mut dispatch in dispatches {
        delivery.targets.push(dispatch.repo.clone());
        if let Some(by) = &delivery.superseded_by {
            dispatch.status = DispatchStatus::Superseded { by: by.clone() };
        }
        if matches!(dispatch.status, DispatchStatus::Superseded { .. }) {
            record_dispatch_change(relay, batch, &dispatch);
            // Others may have had results at this commit before it had a pull request, or one with the label.
            if dispatch.may_have_check_runs() {
                batch.tasks.push(TaskKind::commit_checks(&dispatch).task(delivery.received_at));
            }
        } else {
            batch.tasks.push(TaskKind::dispatch(&dispatch).task(delivery.received_at));
            if dispatch.has_check_run_when_dispatched(&relay.config.event_filter.label_prefix) {
                let work = TaskKind::check_run(&dispatch, None);
                batch.tasks.push(work.task(delivery.received_at));
            }
        }
        batch.set(
            state_records::dispatch_key(&delivery.id, &dispatch.repo),
            &dispatch,
            relay.expiry(),
        );
    }
}

/// Adds a delivery to a batch, with its body if it is dispatched.
fn add_delivery(
    relay: &Relay,
    batch: &mut WriteBatch,
    seen: &Versioned<DeliveryRecord>,
    delivery: &DeliveryRecord,
    webhook: &VerifiedWebhook<'_>,
) {
    let now = delivery.received_at;
    batch.update(seen, delivery, relay.expiry());
    batch.set_inserts.push(SetInsert {
        set: state_records::delivery_set_key(),
        member: delivery.id.clone(),
        score: now.as_millisecond(),
        expires_at: relay.expiry(),
    });
    // Nothing but a dispatch reads the body.
    if !delivery.targets.is_empty() {
        let body = webhook.stored_body.get_or_init(|| StoredBody::new(webhook.body));
        let key = if body.is_reduced {
            state_records::reduced_body_key(&delivery.id)
        } else {
            state_records::body_key(&delivery.id)
        };
        batch.records.push(RecordWrite {
            key,
            value: body.packed.clone(),
            expires_at: now + limits::KEEP_BODY.min(relay.config.keep),
        });
    }
}

/// A webhook's body, small enough to be dispatched.
struct StoredBody {
    packed: Vec<u8>,
    is_reduced: bool,
}

impl StoredBody {
    fn new(body: &[u8]) -> Self {
        // The event was read from it, so it is JSON.
        let reduced = payload::reduce(body).unwrap_or_default();
        Self {
            packed: state_records::pack(reduced.as_deref().unwrap_or(body)),
            is_reduced: reduced.is_some(),
        }
    }
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
