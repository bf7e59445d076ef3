//! Probes: commits of upstream that a backend is asked to run, to explain a failure. On the wire a probe is a `push` of
//! that commit with a delivery of its own, so workflows run it as they are.

use std::collections::BTreeSet;

use crcr_domain::RepoName;
use crcr_domain::probes::confirm::{BaseProbe, Confirmation};
use crcr_domain::probes::{ProbeBudget, ProbeTag};
use crcr_domain::protocol::dispatch::{Dispatch, DispatchStatus};
use crcr_domain::results::{JobOutcome, outcome};
use crcr_store::{BudgetCharge, CommitOutcome, RecordWrite, SetInsert, Versioned, WriteBatch};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::facts::attempt_fact;
use crate::limits;
use crate::queue::blame_cache::BlamedJob;
use crate::queue::handlers::{self, head};
use crate::queue::task_kind::{TaskDone, TaskError, TaskKind};
use crate::relay::Relay;
use crate::state_records::{self, DeliveryRecord, JobRecord};
use crate::webhook::{planner, signature};

/// Who waits for the result of a probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "waiter")]
pub(crate) enum ProbeWaiter {
    /// The head of a pull request.
    Head { head_sha: String },
    /// The search for the commit that broke a job.
    Bisection { workflow: String, job: Option<String>, bad_sha: String },
}

/// A probe, whoever asked for it first.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct ProbeRecord {
    waiters: Vec<ProbeWaiter>,
}

pub(crate) struct ProbeRequest<'a> {
    pub(crate) repo: &'a RepoName,
    pub(crate) commit: &'a str,
    pub(crate) tag: ProbeTag,
    pub(crate) waiter: ProbeWaiter,
    pub(crate) budget: ProbeBudget,
    /// The pull request's dispatch that asks for it; `None` for upstream's own commits.
    pub(crate) asker: Option<&'a Dispatch>,
}

pub(crate) enum Requested {
    /// The delivery of the new dispatch.
    Asked(String),
    OverBudget,
}

/// Asks for a probe, or waits for the result of the one that another has asked for.
pub(crate) async fn request(
    relay: &Relay,
    request: ProbeRequest<'_>,
) -> Result<Requested, TaskError> {
    let ProbeRequest { repo, commit, tag, waiter, budget, asker } = request;
    let delivery = delivery_id(repo, commit, tag.attempt);
    let key = state_records::probe_key(&delivery, repo);
    let known: Versioned<ProbeRecord> = relay.read_record(key).await?;
    let now = relay.now();
    let mut record = known.value.clone().unwrap_or_default();
    let is_new = known.value.is_none();
    if !record.waiters.contains(&waiter) {
        // Later ones see the result when they are evaluated.
        record.waiters.truncate(limits::PROBE_WAITERS - 1);
        record.waiters.push(waiter);
    }
    let mut batch = WriteBatch::default();
    batch.update(&known, &record, relay.expiry());
    if is_new {
        let allowlist = handlers::allowlist(relay)?;
        let Some(entry) = allowlist.get(repo).filter(|entry| entry.level.shows_results()) else {
            return Ok(Requested::OverBudget);
        };
        let body = push_payload(relay, commit).await?;
        let upstream = &relay.config.upstream;
        let dispatch = planner::probe(entry, &delivery, upstream, commit, tag, now);
        add_dispatch(relay, &mut batch, &dispatch, &body);
        batch.charges = charges(relay, repo, "probe_commits", budget.commits_per_day, asker);
    }
    match relay.commit(batch).await? {
        CommitOutcome::Done => Ok(Requested::Asked(delivery)),
        CommitOutcome::Limited(_) => Ok(Requested::OverBudget),
        _ => Err(TaskError::retry("the probe's record changed in the meantime")),
    }
}

/// What a probe or a re-run costs: a part of the backend's day, of which nobody's pull requests can use up more than a
/// share. Those who have never contributed to upstream have one share together.
pub(crate) fn charges(
    relay: &Relay,
    repo: &RepoName,
    what: &str,
    per_day: u64,
    asker: Option<&Dispatch>,
) -> Vec<BudgetCharge> {
    let of_day = charge_of_day(relay, what, repo.as_str(), per_day);
    let share = asker.map(|dispatch| author_share(relay, what, per_day, dispatch));
    std::iter::once(of_day).chain(share).collect()
}

/// The share of a pull request's author in what its backend allows on a day.
pub(crate) fn author_share(
    relay: &Relay,
    what: &str,
    per_day: u64,
    dispatch: &Dispatch,
) -> BudgetCharge {
    let owner = format!("{} {}", dispatch.repo, dispatch.share_owner());
    let share = (per_day / limits::AUTHOR_SHARES).max(1);
    charge_of_day(relay, &format!("{what}_share"), &owner, share)
}

pub(crate) fn charge_of_day(relay: &Relay, what: &str, owner: &str, capacity: u64) -> BudgetCharge {
    BudgetCharge {
        bucket: state_records::budget_of_day_key(what, relay.now(), owner),
        capacity,
        per_minute: 0.0,
        cost: 1,
        first_of: None,
    }
}

fn add_dispatch(relay: &Relay, batch: &mut WriteBatch, dispatch: &Dispatch, body: &Value) {
    let (now, expires_at) = (relay.now(), relay.expiry());
    let id = dispatch.delivery.as_str();
    let mut delivery = DeliveryRecord::new(id, dispatch.event.as_str(), now);
    delivery.head_sha.clone_from(&dispatch.head_sha);
    delivery.targets.push(dispatch.repo.clone());
    batch.set(state_records::delivery_key(id), &delivery, expires_at);
    batch.set_inserts.push(SetInsert {
        set: state_records::delivery_set_key(),
        member: id.to_owned(),
        score: now.as_millisecond(),
        expires_at,
    });
    batch.records.push(RecordWrite {
        key: state_records::body_key(id),
        value: state_records::pack(body.to_string().as_bytes()),
        expires_at: now + limits::BODY_RETENTION.min(relay.config.status_ttl),
    });
    batch.set(state_records::dispatch_key(id, &dispatch.repo), dispatch, expires_at);
    batch.tasks.push(TaskKind::dispatch(dispatch).task(now));
}

/// The delivery of a probe. Nobody else's has such an id, because GitHub's are GUIDs.
pub(crate) fn delivery_id(repo: &RepoName, commit: &str, attempt: u32) -> String {
    let of_repo = signature::digest(repo.key().as_bytes());
    format!("probe-{}-{commit}-{attempt}", &of_repo[..12])
}

/// The dispatch of a probe, as far as it is known.
pub(crate) async fn dispatch(
    relay: &Relay,
    delivery: &str,
    repo: &RepoName,
) -> Result<Option<Dispatch>, TaskError> {
    let key = state_records::dispatch_key(delivery, repo);
    let read: Versioned<Dispatch> = relay.read_record(key).await?;
    Ok(read.value)
}

/// Whether these jobs have a result of their tests; `None` while the probe goes on, and then its waiters are told when
/// it ends.
pub(crate) async fn ended_with_result(
    relay: &Relay,
    delivery: &str,
    repo: &RepoName,
    jobs: &[&BlamedJob],
) -> Result<Option<bool>, TaskError> {
    let Some(dispatch) = dispatch(relay, delivery, repo).await? else { return Ok(Some(false)) };
    let found = head::jobs(relay, delivery, repo).await?;
    let may_go_on = match dispatch.status {
        DispatchStatus::Queued => true,
        DispatchStatus::Sent { .. } if found.is_empty() => !dispatch.never_started,
        DispatchStatus::Sent { .. } => found.iter().any(|job| job.state.is_open()),
        _ => false,
    };
    if may_go_on {
        return Ok(None);
    }
    let has_result = |wanted: &&BlamedJob| {
        let attempts = found
            .iter()
            .filter(|job| job.id.workflow == wanted.workflow && job.id.job == wanted.job);
        attempts.max_by_key(|job| job.id.run_attempt).is_some_and(|job| {
            let fact = attempt_fact(relay, &(&dispatch).into(), job, relay.now());
            let outcome = outcome(&fact, false, false);
            outcome.is_some_and(|one| one.is_pass() || one == JobOutcome::TestFailed)
        })
    };
    if jobs.iter().all(has_result) {
        return Ok(Some(true));
    }
    Ok((!has_more_to_come(relay, &dispatch, &found, jobs).await?).then_some(false))
}

/// Whether a probe without an open job goes on all the same: a job may wait for another one, or for a machine.
async fn has_more_to_come(
    relay: &Relay,
    dispatch: &Dispatch,
    found: &[JobRecord],
    wanted: &[&BlamedJob],
) -> Result<bool, TaskError> {
    let Some(sent_at) = dispatch.sent_at() else { return Ok(false) };
    let now = relay.now();
    let has_reported = |workflow: &str| found.iter().any(|job| job.id.workflow == workflow);
    if wanted.iter().any(|job| !has_reported(&job.workflow))
        && now < sent_at + relay.config.never_started_after
    {
        return Ok(true);
    }
    let (foreign, own): (Vec<_>, Vec<_>) = found.iter().partition(|job| head::is_foreign(job));
    let last_end = foreign.iter().filter_map(|job| job.ended_at).max();
    if !foreign.iter().any(|job| job.ends_run)
        && last_end.is_some_and(|at| now < at + relay.config.lost_after)
    {
        return Ok(true);
    }
    let runs: BTreeSet<u64> = own.iter().filter_map(|job| job.id.run_id.parse().ok()).collect();
    for run_id in runs {
        match relay.app.run(dispatch.repo.as_str(), run_id).await {
            Ok(run) if !run.is_completed() => return Ok(true),
            Ok(_) => {}
            Err(error) => {
                let error = TaskError::from(error);
                if !error.permanent {
                    return Err(error);
                }
            }
        }
    }
    Ok(false)
}

/// A push of one commit to upstream's default branch, with what downstream workflows read of it.
async fn push_payload(relay: &Relay, commit: &str) -> Result<Value, TaskError> {
    let upstream = &relay.config.upstream;
    let found = relay.app.dispatch_target(upstream.as_str()).await?;
    let address = format!("{}/{upstream}", relay.config.server_url.trim_end_matches('/'));
    let owner = json!({ "login": upstream.owner() });
    Ok(json!({
        "ref": format!("refs/heads/{}", found.default_branch), "before": commit, "after": commit,
        "created": false, "deleted": false, "forced": false, "commits": [],
        "head_commit": { "id": commit },
        "repository": {
            "id": found.repository_id, "name": upstream.name(), "full_name": upstream.as_str(),
            "owner": owner, "html_url": address, "clone_url": format!("{address}.git"),
            "default_branch": found.default_branch,
        },
        "sender": owner,
    }))
}

/// Tells those who wait that a job of the probe has ended.
pub(crate) async fn ended(
    relay: &Relay,
    delivery: &str,
    repo: &RepoName,
) -> Result<TaskDone, TaskError> {
    let key = state_records::probe_key(delivery, repo);
    let known: Versioned<ProbeRecord> = relay.read_record(key).await?;
    for waiter in known.value.map(|record| record.waiters).unwrap_or_default() {
        match waiter {
            ProbeWaiter::Head { head_sha } => {
                let key = state_records::confirmation_key(repo, &head_sha);
                relay
                    .update(key, |known: &Versioned<Confirmation>| {
                        let mut next = known.value.clone().unwrap_or_default();
                        next.base = BaseProbe::Ended;
                        ((), Some(changed(relay, repo, &head_sha, known, next)))
                    })
                    .await?;
            }
            ProbeWaiter::Bisection { workflow, job, bad_sha } => {
                let work = TaskKind::Bisect { repo: repo.clone(), workflow, job, bad_sha };
                let tasks = vec![work.task(relay.now())];
                relay.commit(WriteBatch { tasks, ..WriteBatch::default() }).await?;
            }
        }
    }
    Ok(TaskDone::Finished)
}

/// The change of a confirmation, after which the check runs of the head are written again.
pub(crate) fn changed(
    relay: &Relay,
    repo: &RepoName,
    head_sha: &str,
    known: &Versioned<Confirmation>,
    mut next: Confirmation,
) -> WriteBatch {
    next.revision += 1;
    let mut batch = WriteBatch::default();
    batch.update(known, &next, relay.expiry());
    let work = TaskKind::CommitChecks { repo: repo.clone(), head_sha: head_sha.to_owned() };
    batch.tasks.push(work.task(relay.now()));
    batch
}
