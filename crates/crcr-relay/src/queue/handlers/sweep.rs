//! Follows a dispatch after it was sent: finds out that it never started, that a job was lost, and when
//! its runs are over.

use crcr_domain::RepoName;
use crcr_domain::checks::lifecycle::{self, JobState, JobTransition};
use crcr_domain::checks::proof::ProofStatus;
use crcr_domain::protocol::dispatch::Dispatch;
use crcr_domain::results::facts::Fact;
use crcr_store::{CommitOutcome, NewTask, SetInsert, StoreError, Versioned, WriteBatch};
use jiff::Timestamp;

use super::head::{self, Head, given_up_at, jobs, missing_proof, proof};
use super::{alert, default_branch, runs};
use crate::compat::forward;
use crate::facts::attempt_fact;
use crate::queue::record_dispatch_change;
use crate::queue::task_kind::{TaskDone, TaskError, TaskKind, check_name};
use crate::relay::Relay;
use crate::state_records::{self, CheckRunRecord, JobRecord};
use crate::{limits, uptime};

/// Checks once, and returns when the next check is due.
pub async fn run(relay: &Relay, delivery: &str, repo: &RepoName) -> Result<TaskDone, TaskError> {
    let key = state_records::dispatch_key(delivery, repo);
    let known: Versioned<Dispatch> = relay.read_record(key).await?;
    let Some(dispatch) = known.value.clone() else { return Ok(TaskDone::Finished) };
    let Some(sent_at) = dispatch.sent_at() else { return Ok(TaskDone::Finished) };
    let now = relay.now();
    let mut jobs = jobs(relay, delivery, repo).await?;
    for job in jobs.iter_mut().filter(|job| job.state.is_open()) {
        if now >= lost_at(relay, sent_at, job) {
            mark_lost(relay, &dispatch, sent_at, job).await?;
        }
    }
    let mut changed = dispatch.clone();
    if let Some(branch) = default_branch::renamed(relay, &dispatch, &jobs).await? {
        changed.former_branches.extend(changed.default_branch.replace(branch));
    }
    let is_proven = |job: &JobRecord| proof(&changed, job) == ProofStatus::Proven;
    let answered = jobs.iter().any(is_proven);
    changed.is_answered |= answered;
    let of_commit = Head::read(relay, repo, &dispatch.head_sha, Some(delivery)).await?;
    let is_shown = of_commit.as_ref().is_some_and(Head::is_shown);
    let (mut list_again, mut look_again) = (None, None);
    if is_shown && answered {
        match runs::charge_look(relay, &dispatch).await? {
            // Many may wait, and each evaluates its check runs.
            Some(wait) => look_again = Some(now + wait.max(limits::RUN_POLL)),
            None => list_again = find_runs(relay, &mut changed, &jobs).await?,
        }
    }
    let overdue_at = uptime::extended(relay, sent_at, relay.config.never_started_after).await?;
    if !answered && now >= overdue_at && !changed.is_overdue {
        if jobs.is_empty() {
            changed.silence = runs::silence(relay, &mut changed, overdue_at).await?;
            changed.never_started = true;
        }
        changed.is_overdue = true;
    }
    record(relay, &known, (&dispatch, &changed), &jobs, of_commit).await?;
    let open = jobs.iter().filter(|job| job.state.is_open());
    let lost = open.map(|job| lost_at(relay, sent_at, job)).min();
    let overdue = (now < overdue_at && !answered).then_some(overdue_at);
    // No event tells that a run elsewhere, or one that can't be read, has been given up. The last look comes a minute
    // after that time, so that the replica which evaluates the check run agrees by its own clock.
    let given_up_at = given_up_at(relay, &changed, &jobs).map(|at| at + limits::RUN_POLL);
    let given_up = given_up_at.filter(|at| is_shown && answered && *at > now);
    // What GitHub doesn't show after that time is not asked for until something new is heard of the dispatch.
    let is_over = given_up.is_none() && head::is_given_up(relay, &changed, &jobs);
    let asks_again = !is_over || runs::has_open_ones(&changed);
    let poll = list_again.filter(|_| asks_again).map(|soon| soon.min(poll_at(now, sent_at)));
    Ok([lost, overdue, given_up, poll, look_again]
        .into_iter()
        .flatten()
        .min()
        .map_or(TaskDone::Finished, TaskDone::RunAgain))
}

/// Returns when GitHub has to be asked again, as [`runs::find`] does.
async fn find_runs(
    relay: &Relay,
    dispatch: &mut Dispatch,
    jobs: &[JobRecord],
) -> Result<Option<Timestamp>, TaskError> {
    let late_before = dispatch.late_run_at;
    let ask_again = runs::find(relay, dispatch, jobs).await?;
    if dispatch.late_run_at == late_before {
        return Ok(ask_again);
    }
    // Now that it is known how late GitHub is, the list is of a longer time.
    runs::find(relay, dispatch, jobs).await
}

/// Long runs are polled less often: every minute at first, then whenever the dispatch is a hundredth older.
pub(crate) fn poll_at(now: Timestamp, sent_at: Timestamp) -> Timestamp {
    let age = now.duration_since(sent_at).unsigned_abs();
    now + (age / 100).clamp(limits::RUN_POLL, limits::RUN_POLL_CAP)
}

/// Records what was found, and updates every check run of the dispatch: even time alone can change
/// what they show. `of_commit`: what was known of its commit before.
async fn record(
    relay: &Relay,
    known: &Versioned<Dispatch>,
    (before, after): (&Dispatch, &Dispatch),
    jobs: &[JobRecord],
    of_commit: Option<Head>,
) -> Result<(), TaskError> {
    let mut batch = WriteBatch::default();
    if before != after {
        batch.update(known, after, relay.expiry());
    }
    if after.never_started && !before.never_started {
        record_dispatch_change(relay, &mut batch, after);
        batch.tasks.extend(probe_ended(after, relay.now()));
    }
    let is_other_branch = after.default_branch != before.default_branch;
    for job in jobs.iter().filter(|job| is_other_branch && proof(after, job) == ProofStatus::Proven)
    {
        head::add_proven_job(relay, after, (&job.id, job.pipeline.as_deref()), &mut batch);
    }
    if let Some(of_commit) = of_commit.filter(|_| after.is_answered) {
        // Others may have reported while GitHub was asked for the runs.
        let newest = head::jobs(relay, &after.delivery, &after.repo).await?;
        of_commit.add_weights(relay, &mut batch, (after, newest));
    }
    let now = relay.now();
    if !head::has_check_runs(relay, after) {
        if has_open_check_run(relay, after).await? {
            batch.tasks.push(TaskKind::commit_checks(after).task(now));
        }
        return commit(relay, batch).await;
    }
    if is_other_branch {
        batch.tasks.push(TaskKind::commit_checks(after).task(now));
    }
    batch.tasks.push(TaskKind::check_run(after, None).task(now));
    // Jobs of one name count together if they are of different workflow files, which only GitHub knows.
    let file = |dispatch: &Dispatch, job: &JobRecord| {
        let run = dispatch.runs.iter().find(|run| run.id == job.id.run_id);
        run.map(|run| run.workflow.clone())
    };
    let changed =
        jobs.iter().filter(|job| job.state.is_open() || file(before, job) != file(after, job));
    batch.tasks.extend(changed.map(|job| TaskKind::check_run(after, Some(&job.id)).task(now)));
    commit(relay, batch).await
}

/// Whether GitHub still shows an open check run of a dispatch that has none any more: another replica made it by an older
/// version of the allowlist, and stopped before it read the newest.
async fn has_open_check_run(relay: &Relay, dispatch: &Dispatch) -> Result<bool, StoreError> {
    let name = check_name(&dispatch.repo.key(), None);
    let key = state_records::check_run_key(&dispatch.head_sha, &name);
    let shown = relay.read_record::<CheckRunRecord>(key).await?.value;
    Ok(shown.is_some_and(|shown| shown.may_be_open()))
}

/// The task that tells those who wait for a probe that nothing more is expected of it.
pub(crate) fn probe_ended(dispatch: &Dispatch, now: Timestamp) -> Option<NewTask> {
    dispatch.probe.as_ref()?;
    let (delivery, repo) = (dispatch.delivery.clone(), dispatch.repo.clone());
    Some(TaskKind::ProbeEnded { delivery, repo }.task(now))
}

async fn commit(relay: &Relay, batch: WriteBatch) -> Result<(), TaskError> {
    if batch.records.is_empty() && batch.tasks.is_empty() && batch.set_inserts.is_empty() {
        return Ok(());
    }
    match relay.commit(batch).await? {
        CommitOutcome::Done => Ok(()),
        _ => Err(TaskError::retry("the dispatch was changed in the meantime")),
    }
}

/// When a job is lost if it doesn't report its end before. `sent_at`: when its dispatch was sent.
fn lost_at(relay: &Relay, sent_at: Timestamp, job: &JobRecord) -> Timestamp {
    job.last_started_at.unwrap_or(sent_at) + relay.config.lost_after
}

/// Records that a job started and never reported its end, unless a parallel step of its name has started meanwhile.
pub(crate) async fn mark_lost(
    relay: &Relay,
    dispatch: &Dispatch,
    sent_at: Timestamp,
    job: &mut JobRecord,
) -> Result<(), TaskError> {
    let key = state_records::job_key(&dispatch.delivery, &dispatch.repo, &job.id);
    let (found, is_lost) = relay
        .update(key.clone(), |known: &Versioned<JobRecord>| {
            let Some(found) = &known.value else { return ((None, false), None) };
            let now = relay.now();
            let transition = lifecycle::transition(found.state, JobState::Lost);
            let is_due = now >= lost_at(relay, sent_at, found);
            let (JobTransition::Apply { .. }, true) = (transition, is_due) else {
                return ((Some(found.clone()), false), None);
            };
            let lost = JobRecord { state: JobState::Lost, ended_at: Some(now), ..found.clone() };
            let mut batch = lost_job(relay, dispatch, &lost, now);
            batch.update(known, &lost, relay.expiry());
            ((Some(lost), true), Some(batch))
        })
        .await?;
    let Some(found) = found else { return Ok(()) };
    if is_lost {
        tracing::warn!(delivery = dispatch.delivery, repo = %dispatch.repo, job = %found.id, "lost");
        relay.traces.job_ended(dispatch, &found);
    }
    *job = found;
    Ok(())
}

/// What follows from a lost job.
fn lost_job(relay: &Relay, dispatch: &Dispatch, lost: &JobRecord, now: Timestamp) -> WriteBatch {
    let mut batch = WriteBatch::default();
    // A lost job is read first, however many others reported after it.
    batch.set_inserts.push(SetInsert {
        set: state_records::job_set_key(&dispatch.delivery, &dispatch.repo),
        member: serde_json::to_string(&lost.id).expect("a job is always JSON"),
        score: (1 << 50) + now.as_millisecond(),
        expires_at: relay.expiry(),
    });
    let mut fact = attempt_fact(relay, &dispatch.into(), lost, now);
    fact.missing_proof = missing_proof(dispatch, proof(dispatch, lost));
    batch.tasks.extend(alert::task(relay, &fact, now));
    batch.tasks.extend(probe_ended(dispatch, now));
    batch.facts.push(Fact::Attempt(Box::new(fact)));
    batch.tasks.push(TaskKind::check_run(dispatch, Some(&lost.id)).task(now));
    if relay.config.hud.is_some() && dispatch.probe.is_none() {
        let key = state_records::job_key(&dispatch.delivery, &dispatch.repo, &lost.id);
        let age = lost.started_at.map(|at| now.duration_since(at).as_secs_f64());
        let report = forward::lost_report(dispatch, lost, now);
        let work = forward::result_task(&dispatch.repo, dispatch.level, &key, (None, age), &report);
        batch.tasks.push(work.task(now));
    }
    batch
}
