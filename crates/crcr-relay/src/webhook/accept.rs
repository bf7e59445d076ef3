//! What follows from a webhook: it is decided on the records of its pull request and stored in one transaction.

use std::sync::OnceLock;

use axum::http::StatusCode;
use bytes::Bytes;
use crcr_domain::RepoName;
use crcr_domain::probes::LeftOut;
use crcr_domain::protocol::dispatch::{Dispatch, DispatchStatus};
use crcr_domain::protocol::event::{EventName, PullRequest, PullRequestAction, UpstreamEvent};
use crcr_store::{
    CommitOutcome, RecordWrite, SetInsert, StoreError, Versioned, WriteBatch, decode_record,
};
use jiff::Timestamp;

use super::turns::RecordTurn;
use super::{merge_groups, payload, planner};
use crate::http::http_response::Refusal;
use crate::limits;
use crate::probes::backend_file;
use crate::queue::handlers::head;
use crate::queue::handlers::keep_webhook::PendingWebhook;
use crate::queue::handlers::supersede::supersede;
use crate::queue::record_dispatch_change;
use crate::queue::task_kind::TaskKind;
use crate::relay::Relay;
use crate::state_records::{self, DeliveryRecord, PullRecord};

pub(crate) enum DeliveryOutcome {
    Ping,
    Ignored,
    Duplicate,
    /// With the number of tasks.
    Accepted(usize),
}

/// A webhook with a valid signature.
pub(crate) struct VerifiedWebhook<'a> {
    pub(crate) id: &'a str,
    pub(crate) name: &'a str,
    pub(crate) event: &'a UpstreamEvent,
    pub(crate) body: &'a Bytes,
    /// `None` if webhooks of this event aren't kept.
    pub(crate) pending: Option<PendingWebhook>,
    /// The body as it is stored, computed once it is known that a backend gets it.
    pub(crate) stored_body: OnceLock<Result<StoredBody, Refusal>>,
}

/// Decides what a webhook changes and commits it. `Ok(None)` when another change came first, so that the decision has
/// to be made again.
pub(crate) async fn accept(
    relay: &Relay,
    webhook: &VerifiedWebhook<'_>,
) -> Result<Option<DeliveryOutcome>, Refusal> {
    let turn = match webhook.event {
        UpstreamEvent::PullRequest(pull) => {
            let key = state_records::pull_request_key(&relay.config.upstream, pull.number);
            let turn = relay.turns.wait(&key).await;
            if turn.may_have(webhook.id) {
                turn.wait_for_disk().await;
            }
            Some((pull, turn))
        }
        _ => None,
    };
    let mut keys = vec![state_records::delivery_key(webhook.id)];
    keys.extend(turn.as_ref().map(|(_, turn)| turn.key().clone()));
    let mut found = relay.store.records(&keys).await?.into_iter();
    let seen: Versioned<DeliveryRecord> =
        decode_record(keys.swap_remove(0), found.next().flatten())?;
    if seen.value.is_some() {
        return Ok(Some(DeliveryOutcome::Duplicate));
    }
    let mut changes = WebhookChanges::new(relay, webhook);
    match &turn {
        Some((pull, turn)) => {
            let known = match turn.newest() {
                Some((by, newest)) => {
                    let version = (state_records::delivery_key(&by), 1);
                    changes.batch.expected_versions.push(version);
                    newest
                }
                None => decode_record(turn.key().clone(), found.next().flatten())?,
            };
            if !changes.order_pull_request(pull, known, turn).await? {
                return Ok(None);
            }
        }
        None => {
            if !changes.add_work().await? {
                return Ok(Some(DeliveryOutcome::Ignored));
            }
        }
    }
    if is_dispatched(webhook.event) {
        changes.add_all_dispatches().await?;
    }
    changes.commit(&seen, turn.map(|(_, turn)| turn)).await
}

/// What a webhook changes, before it is committed.
struct WebhookChanges<'a> {
    relay: &'a Relay,
    webhook: &'a VerifiedWebhook<'a>,
    now: Timestamp,
    batch: WriteBatch,
    delivery: DeliveryRecord,
    /// The pull request's record as the batch leaves it behind.
    pull: Option<Versioned<PullRecord>>,
    /// The pull request, if it has landed by this event.
    landed: Option<&'a PullRequest>,
    /// The newer delivery of the same head, if there is one: backends that got it don't get this one.
    newer: Option<DeliveryRecord>,
}

impl<'a> WebhookChanges<'a> {
    fn new(relay: &'a Relay, webhook: &'a VerifiedWebhook<'a>) -> Self {
        let now = relay.now();
        Self {
            relay,
            webhook,
            now,
            batch: WriteBatch::default(),
            delivery: DeliveryRecord::new(webhook.id, webhook.name, now),
            pull: None,
            landed: None,
            newer: None,
        }
    }

    /// Places the event among those of its pull request. `false` if what was `known` isn't in the store.
    async fn order_pull_request(
        &mut self,
        pull: &'a PullRequest,
        known: Versioned<PullRecord>,
        turn: &RecordTurn<'_>,
    ) -> Result<bool, StoreError> {
        let (relay, id) = (self.relay, self.webhook.id);
        self.delivery.pull_request = Some(pull.number);
        self.delivery.head_sha.clone_from(&pull.head_sha);
        let had_landed = known.value.as_ref().is_some_and(|known| known.has_landed);
        let order = planner::order(known.value.as_ref(), pull, id, self.now);
        self.landed = (order.pull.has_landed && !had_landed).then_some(pull);
        let reads_deliveries =
            !order.replaces.is_empty() || order.is_of_newest_head || is_head_again(pull);
        // Other deliveries have to be in the store before they can be read from it.
        if reads_deliveries && !turn.wait_for_disk().await {
            return Ok(false);
        }
        match &order.superseded_by {
            Some(by) if order.is_of_newest_head => {
                let key = state_records::delivery_key(by);
                self.newer = relay.read_record(key).await?.value;
            }
            by => self.delivery.superseded_by.clone_from(by),
        }
        for replaced in &order.replaces {
            supersede(relay, replaced, id, &mut self.batch).await?;
        }
        self.batch.update(&known, &order.pull, relay.expiry_of_pull(&order.pull));
        let version = known.version + 1;
        self.batch.set_inserts.push(open_head(relay, pull.number.to_string(), self.now));
        self.pull = Some(Versioned { key: known.key, version, value: Some(order.pull) });
        if !pull.action.dispatches() {
            self.batch.tasks.push(TaskKind::Labels { pull: pull.number }.task(self.now));
        }
        Ok(true)
    }

    /// What an event of no pull request causes besides dispatches. `false` if it causes nothing.
    async fn add_work(&mut self) -> Result<bool, StoreError> {
        let (relay, now) = (self.relay, self.now);
        let head_sha = match self.webhook.event {
            // Those are ordered.
            UpstreamEvent::PullRequest(_) => return Ok(true),
            UpstreamEvent::Push(push) => {
                relay.allowlist.refresh_soon();
                &push.head_sha
            }
            UpstreamEvent::MergeGroup(group) => {
                self.batch.set_inserts.push(open_head(relay, group.head_sha.clone(), now));
                let id = self.webhook.id;
                merge_groups::note_start(relay, &group.head_sha, id, &mut self.batch).await?;
                &group.head_sha
            }
            UpstreamEvent::CheckRunRerequested(run) => {
                let work = TaskKind::rerun_of(&run.name, &run.external_id, &run.head_sha, true);
                let Some(work) = work else { return Ok(false) };
                self.batch.tasks.push(work.task(now));
                &run.head_sha
            }
            UpstreamEvent::CheckSuiteRerequested(suite) => {
                self.batch.tasks.push(TaskKind::RerunSuite { suite: suite.id }.task(now));
                &suite.head_sha
            }
        };
        self.delivery.head_sha.clone_from(head_sha);
        Ok(true)
    }

    async fn add_all_dispatches(&mut self) -> Result<(), Refusal> {
        let (relay, id, upstream) = (self.relay, self.webhook.id, &self.relay.config.upstream);
        let allowlist = relay.allowlist.get();
        let allowlist =
            allowlist.ok_or_else(|| Refusal::unavailable("the allowlist is not loaded yet"))?;
        let planned = planner::dispatches(self.webhook.event, id, upstream, &allowlist, self.now);
        let dispatches = self.adapt(planned).await?;
        add_dispatches(relay, &mut self.batch, &mut self.delivery, dispatches);
        if let Some(pull) = self.landed {
            // It needs a delivery of its own, because a backend gets one dispatch for each delivery.
            let event = EventName::Landed;
            let id = format!("{id}:{event}");
            let mut landed = DeliveryRecord::new(&id, event.as_str(), self.now);
            landed.pull_request = Some(pull.number);
            landed.head_sha.clone_from(&pull.head_sha);
            let dispatches = planner::landed(pull, &id, upstream, &allowlist, self.now);
            add_dispatches(relay, &mut self.batch, &mut landed, dispatches);
            let key = state_records::delivery_key(&id);
            let unseen = Versioned { key, version: 0, value: None };
            add_delivery(relay, &mut self.batch, &unseen, &landed, self.webhook)?;
        }
        Ok(())
    }

    /// Adapts the dispatches of an event to what is known of its pull request.
    async fn adapt(&mut self, mut dispatches: Vec<Dispatch>) -> Result<Vec<Dispatch>, StoreError> {
        let Some(pull) = self.pull.as_ref().and_then(|pull| pull.value.as_ref()) else {
            return Ok(dispatches);
        };
        let repos = || dispatches.iter().map(|one| one.repo.clone()).collect::<Vec<_>>();
        let required = || {
            let required = dispatches.iter().filter(|one| one.level.blocks_merge());
            required.map(|one| one.repo.clone()).collect::<Vec<_>>()
        };
        let waiting = match dispatches.first().and_then(|one| one.action) {
            Some(PullRequestAction::ReadyForReview) => {
                // The others have got it as a draft, for which a workflow may leave out what blocks the merge.
                let mut waiting = backend_file::without_drafts(self.relay, &repos()).await?;
                let ran_as_draft = |newest: Option<&Dispatch>| newest.is_none_or(|it| it.is_draft);
                waiting.extend(with_newest(self.relay, pull, required(), ran_as_draft).await?);
                Some(waiting)
            }
            Some(PullRequestAction::BaseChanged) => {
                let mut waiting =
                    with_newest(self.relay, pull, repos(), is_left_out_for_paths).await?;
                // What blocks a merge is about the branch that the head is merged into.
                waiting.extend(required());
                Some(waiting)
            }
            _ => None,
        };
        if let Some(waiting) = waiting {
            dispatches.retain(|one| waiting.contains(&one.repo));
        }
        for dispatch in &mut dispatches {
            // A label of the same second may be missing in the event.
            dispatch.labels.clone_from(&pull.labels);
            dispatch.order = pull.order;
        }
        if let Some(newer) = self.newer.take() {
            // A `ready_for_review` event doesn't go to every backend, so the others may still lack this head.
            let is_replaced = |one: &Dispatch| newer.targets.contains(&one.repo);
            for dispatch in dispatches.iter_mut().filter(|one| is_replaced(one)) {
                dispatch.status = DispatchStatus::Superseded { by: newer.id.clone() };
            }
            if dispatches.iter().all(is_replaced) {
                self.delivery.superseded_by = Some(newer.id);
            }
        }
        Ok(dispatches)
    }

    /// Ends the turn as soon as the batch is in line for the writer.
    async fn commit(
        self,
        seen: &Versioned<DeliveryRecord>,
        turn: Option<RecordTurn<'_>>,
    ) -> Result<Option<DeliveryOutcome>, Refusal> {
        let Self { relay, webhook, mut batch, delivery, pull, .. } = self;
        let tasks = batch.tasks.len();
        if let Some(pending) = &webhook.pending {
            pending.add_to(&mut batch);
        }
        add_delivery(relay, &mut batch, seen, &delivery, webhook)?;
        let submitted = relay.submit(batch).await?;
        let pending = turn.zip(pull).map(|(turn, pull)| turn.submitted(webhook.id, pull));
        let commit = relay.durable(submitted).await;
        if let Some(pending) = pending
            && !matches!(commit, Ok(CommitOutcome::Done))
        {
            pending.reject();
        }
        Ok(match commit? {
            CommitOutcome::Done => {
                let VerifiedWebhook { id, name, .. } = *webhook;
                tracing::info!(delivery = id, event = name, tasks, "webhook accepted");
                relay.traces.webhook_accepted(&delivery, relay.now());
                Some(DeliveryOutcome::Accepted(tasks))
            }
            CommitOutcome::Conflict | CommitOutcome::Limited(_) | CommitOutcome::LeaseLost => None,
        })
    }
}

/// The backends for which `is_wanted` holds. It gets the backend's newest dispatch of the head, or `None` if none is known,
/// because its event may come later.
async fn with_newest(
    relay: &Relay,
    pull: &PullRecord,
    repos: Vec<RepoName>,
    is_wanted: impl Fn(Option<&Dispatch>) -> bool,
) -> Result<Vec<RepoName>, StoreError> {
    let mut wanted = vec![];
    for repo in repos {
        let keys =
            pull.deliveries.iter().map(|id| state_records::dispatch_key(id, &repo)).collect();
        let known = relay.read_records::<Dispatch>(keys).await?;
        if is_wanted(known.iter().rev().find_map(|read| read.value.as_ref())) {
            wanted.push(repo);
        }
    }
    Ok(wanted)
}

/// Whether a dispatch is left out because no changed file concerns the backend, isn't decided yet, or isn't known.
fn is_left_out_for_paths(newest: Option<&Dispatch>) -> bool {
    newest.is_none_or(|dispatch| {
        let paths = DispatchStatus::LeftOut { why: LeftOut::Paths };
        dispatch.status == paths || dispatch.status == DispatchStatus::Queued
    })
}

/// Whether it tells something new of a head that is known. Not every backend gets that.
fn is_head_again(pull: &PullRequest) -> bool {
    matches!(pull.action, PullRequestAction::BaseChanged | PullRequestAction::ReadyForReview)
}

/// Whether it tells that a pull request has this head.
fn is_about_open_head(pull: &PullRequest) -> bool {
    pull.action.dispatches() && pull.action != PullRequestAction::Closed
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

/// Adds a delivery's dispatches to a batch, and the tasks that send them and create their check runs.
fn add_dispatches(
    relay: &Relay,
    batch: &mut WriteBatch,
    delivery: &mut DeliveryRecord,
    dispatches: Vec<Dispatch>,
) {
    if let Some(dispatch) = dispatches.iter().find(|dispatch| dispatch.is_about_commit()) {
        head::add_to_commit(relay, batch, dispatch);
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
) -> Result<(), Refusal> {
    let now = delivery.received_at;
    batch.update(seen, delivery, relay.expiry());
    batch.set_inserts.push(SetInsert {
        set: state_records::delivery_set_key(),
        member: delivery.id.clone(),
        score: now.as_millisecond(),
        expires_at: relay.expiry(),
    });
    // Nothing but a dispatch reads the body. A backend whose check is required later may need that of an open head.
    let may_get_it_later = match webhook.event {
        UpstreamEvent::PullRequest(pull) => is_about_open_head(pull),
        UpstreamEvent::MergeGroup(_) => true,
        _ => false,
    };
    if !delivery.targets.is_empty() || may_get_it_later {
        let body = webhook.stored_body.get_or_init(|| StoredBody::new(webhook));
        let body = match body {
            Ok(body) => body,
            Err(_) if delivery.targets.is_empty() => return Ok(()),
            Err(error) => return Err(error.clone()),
        };
        let key = if body.is_reduced {
            state_records::reduced_body_key(&delivery.id)
        } else {
            state_records::body_key(&delivery.id)
        };
        batch.records.push(RecordWrite {
            key,
            value: body.packed.clone(),
            expires_at: now + limits::BODY_RETENTION.min(relay.config.status_ttl),
        });
    }
    Ok(())
}

/// A webhook's body, small enough to be dispatched.
pub(crate) struct StoredBody {
    packed: Vec<u8>,
    is_reduced: bool,
}

impl StoredBody {
    /// Fails for what no backend could get: the event was read from it, but the rest of it was only skipped.
    fn new(webhook: &VerifiedWebhook<'_>) -> Result<Self, Refusal> {
        let reduced = payload::reduce(webhook.body).map_err(|error| {
            Refusal::new(StatusCode::BAD_REQUEST, format!("Invalid JSON body: {error}"))
        })?;
        let packed = match (&reduced, &webhook.pending) {
            (Some(reduced), _) => state_records::pack(reduced),
            (None, Some(pending)) => pending.packed_body().to_vec(),
            (None, None) => state_records::pack(webhook.body),
        };
        Ok(Self { packed, is_reduced: reduced.is_some() })
    }
}
