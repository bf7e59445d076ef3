//! Follows a dispatch after it was sent: finds out that it never started, that a job was lost, and when
//! its runs are over.

use std::collections::BTreeMap;
use std::time::Duration;

use crcr_domain::callback::JobId;
use crcr_domain::dispatch::{CheckRunVisibility, Dispatch};
use crcr_domain::downstream_run::{
    DownstreamRun, ListedRun, RunState, creation_window, runs_of_dispatch,
};
use crcr_domain::facts::Fact;
use crcr_domain::head_verdict::HeadState;
use crcr_domain::lifecycle::{self, JobState, JobTransition};
use crcr_domain::proof::ProofStatus;
use crcr_domain::{CheckRunPolicy, RepoName};
use crcr_github::GithubError;
use crcr_github::runs::WorkflowRun;
use crcr_store::{CommitOutcome, StoreError, Versioned, WriteBatch, read_record, read_records};
use jiff::Timestamp;

use super::alert;
use super::head::{Head, jobs, missing_proof, proof};
use crate::compat::forward;
use crate::facts::attempt_fact;
use crate::limits;
use crate::queue::record_dispatch_change;
use crate::queue::task_kind::{TaskDone, TaskError, TaskKind};
use crate::relay::Relay;
use crate::state_records::{self, JobRecord};

/// Checks once, and returns when the next check is due.
pub async fn run(relay: &Relay, delivery: &str, repo: &RepoName) -> Result<TaskDone, TaskError> {
    let key = state_records::dispatch_key(delivery, repo);
    let known: Versioned<Dispatch> = read_record(relay.store.as_ref(), key).await?;
    let Some(dispatch) = known.value.clone() else { return Ok(TaskDone::Finished) };
    let Some(sent_at) = dispatch.sent_at() else { return Ok(TaskDone::Finished) };
    let now = relay.now();
    let overdue_at = sent_at + relay.config.never_started_after;
    let mut jobs = jobs(relay, delivery, repo).await?;
    let lost_at = |job: &JobRecord| job.started_at.unwrap_or(sent_at) + relay.config.lost_after;
    for job in jobs.iter_mut().filter(|job| job.state.is_open()) {
        if now >= lost_at(job) {
            mark_lost(relay, &dispatch, job).await?;
        }
    }
    let mut changed = dispatch.clone();
    changed.never_started |= jobs.is_empty() && now >= overdue_at;
    let head = Head::read(relay, &dispatch).await?;
    let is_shown = head.check_runs == CheckRunVisibility::Shown;
    let answered = jobs.iter().any(|job| proof(&dispatch, job) == ProofStatus::Proven);
    if is_shown && answered {
        changed.runs = find_runs(relay, &dispatch, sent_at, &jobs).await?;
    }
    record(relay, &known, &dispatch, &changed, &jobs).await?;
    let lost = jobs.iter().filter(|job| job.state.is_open()).map(lost_at).min();
    let overdue = (now < overdue_at && !answered).then_some(overdue_at);
    // The verdict may wait for another dispatch of the head now, and for these runs afterwards.
    let is_open = changed.runs.iter().any(|run| run.state == RunState::Open);
    let poll = (is_shown && answered && (is_open || is_running(relay, &changed).await?))
        .then(|| now + poll_interval(now.duration_since(sent_at).unsigned_abs()));
    Ok([lost, overdue, poll]
        .into_iter()
        .flatten()
        .min()
        .map_or(TaskDone::Finished, TaskDone::RunAgain))
}

/// Long runs are polled less often: every two minutes at first, then whenever the dispatch is a tenth
/// older.
fn poll_interval(age: Duration) -> Duration {
    (age / 10).clamp(limits::RUN_POLL, limits::RUN_POLL_CAP)
}

async fn is_running(relay: &Relay, dispatch: &Dispatch) -> Result<bool, TaskError> {
    let verdict = Head::read(relay, dispatch).await?.verdict(relay);
    Ok(verdict.is_some_and(|verdict| verdict.standing == HeadState::Running))
}

/// Records what was found, and updates every check run of the dispatch: even time alone can change
/// what they show.
async fn record(
    relay: &Relay,
    known: &Versioned<Dispatch>,
    before: &Dispatch,
    after: &Dispatch,
    jobs: &[JobRecord],
) -> Result<(), TaskError> {
    let mut batch = WriteBatch::default();
    if before != after {
        batch.update(known, after, relay.expiry());
    }
    if after.never_started && !before.never_started {
        record_dispatch_change(relay, &mut batch, after);
    }
    if after.level.check_run() == CheckRunPolicy::Never {
        return commit(relay, batch).await;
    }
    let now = relay.now();
    batch.tasks.push(TaskKind::check_run(after, None).task(&relay.config.upstream, now));
    let open = jobs.iter().filter(|job| job.state.is_open());
    batch.tasks.extend(
        open.map(|job| TaskKind::check_run(after, Some(&job.id)).task(&relay.config.upstream, now)),
    );
    commit(relay, batch).await
}

async fn commit(relay: &Relay, batch: WriteBatch) -> Result<(), TaskError> {
    if batch.records.is_empty() && batch.tasks.is_empty() {
        return Ok(());
    }
    match relay.commit(batch).await? {
        CommitOutcome::Done => Ok(()),
        _ => Err(TaskError::retry("the dispatch was changed in the meantime")),
    }
}

/// Records that a job started and never reported its end.
async fn mark_lost(
    relay: &Relay,
    dispatch: &Dispatch,
    job: &mut JobRecord,
) -> Result<(), TaskError> {
    let key = state_records::job_key(&dispatch.delivery, &dispatch.repo, &job.id);
    for _ in 0..limits::CONFLICTS {
        let known: Versioned<JobRecord> = read_record(relay.store.as_ref(), key.clone()).await?;
        let Some(mut lost) = known.value.clone() else { return Ok(()) };
        let JobTransition::Apply { .. } = lifecycle::transition(lost.state, JobState::Lost) else {
            *job = lost;
            return Ok(());
        };
        let now = relay.now();
        lost.state = JobState::Lost;
        lost.ended_at = Some(now);
        let mut batch = WriteBatch::default();
        batch.update(&known, &lost, relay.expiry());
        let mut fact = attempt_fact(&dispatch.into(), &lost, now);
        fact.missing_proof = missing_proof(dispatch, proof(dispatch, &lost));
        batch.tasks.extend(alert::task(relay, &fact, now));
        batch.facts.push(Fact::Attempt(Box::new(fact)));
        batch
            .tasks
            .push(TaskKind::check_run(dispatch, Some(&lost.id)).task(&relay.config.upstream, now));
        if relay.config.hud.is_some() {
            let age = lost.started_at.map(|at| now.duration_since(at).as_secs_f64());
            let report = forward::lost_report(dispatch, &lost, now);
            let work =
                forward::result_task(&dispatch.repo, dispatch.level, &key, (None, age), &report);
            batch.tasks.push(work.task(&relay.config.upstream, now));
        }
        if relay.commit(batch).await? == CommitOutcome::Done {
            tracing::warn!(delivery = dispatch.delivery, repo = %dispatch.repo, job = %lost.id, "lost");
            relay.traces.job_ended(dispatch, &lost);
            *job = lost;
            return Ok(());
        }
    }
    Err(StoreError::Unavailable("a job changed in every try to change it".to_owned()).into())
}

/// The runs that the dispatch started: those that GitHub lists for the event around the time of the
/// dispatch, and those that proven reports name.
async fn find_runs(
    relay: &Relay,
    dispatch: &Dispatch,
    sent_at: Timestamp,
    jobs: &[JobRecord],
) -> Result<Vec<DownstreamRun>, TaskError> {
    let mut by_run: BTreeMap<&str, Vec<&JobRecord>> = BTreeMap::new();
    for job in jobs.iter().filter(|job| proof(dispatch, job) == ProofStatus::Proven) {
        by_run.entry(&job.id.run_id).or_default().push(job);
    }
    let on_github = |id: &str| id.parse::<u64>().is_ok();
    let mut runs = if by_run.keys().any(|id| on_github(id)) {
        listed_runs(relay, dispatch, sent_at).await?
    } else {
        vec![]
    };
    for (id, jobs) in by_run {
        if !runs.iter().any(|run| run.id == id) {
            runs.push(reported_run(relay, dispatch, &jobs).await?);
        }
    }
    runs.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(runs)
}

/// The runs of GitHub's list that the dispatch started. If the list can't be read, the caller asks for
/// each run that reported.
async fn listed_runs(
    relay: &Relay,
    dispatch: &Dispatch,
    sent_at: Timestamp,
) -> Result<Vec<DownstreamRun>, TaskError> {
    let repo = &dispatch.repo;
    let window = creation_window(sent_at);
    let asked = relay.app.runs_of_event(repo.as_str(), "repository_dispatch", window).await;
    let listed: Vec<ListedRun> = match asked {
        Ok(runs) => runs.into_iter().filter_map(listed_run).collect(),
        Err(error) if error.is_transient() || matches!(error, GithubError::Unauthorized(_)) => {
            return Err(error.into());
        }
        Err(error) => {
            tracing::warn!(delivery = dispatch.delivery, %repo, %error, "runs can't be listed");
            return Ok(vec![]);
        }
    };
    let store = relay.store.as_ref();
    let keys =
        listed.iter().map(|run| state_records::run_claim_key(repo, &run.id.to_string())).collect();
    let claims: Vec<Option<String>> =
        read_records(store, keys).await?.into_iter().map(|read| read.value).collect();
    let claims: BTreeMap<u64, String> =
        listed.iter().zip(claims).filter_map(|(run, delivery)| Some((run.id, delivery?))).collect();
    let others = other_sends(relay, dispatch).await?;
    Ok(runs_of_dispatch(&listed, &dispatch.delivery, sent_at, &others, |id| {
        claims.get(&id).map(String::as_str)
    }))
}

/// When other deliveries were sent to the same repository recently.
async fn other_sends(relay: &Relay, dispatch: &Dispatch) -> Result<Vec<Timestamp>, StoreError> {
    let store = relay.store.as_ref();
    let recent = store
        .members(&state_records::recent_sends_key(&dispatch.repo), limits::RECENT_SENDS)
        .await?;
    let keys = recent
        .iter()
        .filter(|delivery| **delivery != dispatch.delivery)
        .map(|delivery| state_records::dispatch_key(delivery, &dispatch.repo))
        .collect();
    let others = read_records::<Dispatch>(store, keys).await?;
    Ok(others.iter().filter_map(|read| read.value.as_ref()?.sent_at()).collect())
}

fn listed_run(run: WorkflowRun) -> Option<ListedRun> {
    let state = run_state(&run);
    Some(ListedRun {
        id: run.id,
        workflow: run.path,
        attempt: u32::try_from(run.run_attempt).ok()?,
        state,
        created_at: run.created_at?,
        title: run.display_title,
    })
}

fn run_state(run: &WorkflowRun) -> RunState {
    if !run.is_completed() {
        return RunState::Open;
    }
    RunState::Over(run.conclusion.as_deref().and_then(|text| text.parse().ok()))
}

/// The state of a run that proven reports name. If GitHub can't tell, or the run is elsewhere, it is
/// over when no job was open for long enough.
async fn reported_run(
    relay: &Relay,
    dispatch: &Dispatch,
    jobs: &[&JobRecord],
) -> Result<DownstreamRun, TaskError> {
    let JobId { run_id, workflow, .. } = &jobs[0].id;
    let attempt = jobs.iter().map(|job| job.id.run_attempt).max().unwrap_or(1);
    let run_in = |workflow: &str, attempt, state| DownstreamRun {
        id: run_id.clone(),
        workflow: workflow.to_owned(),
        attempt,
        state,
        certain: true,
    };
    let by_time = if is_quiet(jobs, relay.now()) { RunState::Over(None) } else { RunState::Open };
    let Ok(number) = run_id.parse::<u64>() else {
        return Ok(run_in(workflow, attempt, by_time));
    };
    match relay.app.run(dispatch.repo.as_str(), number).await {
        Ok(run) => {
            let attempt = u32::try_from(run.run_attempt).unwrap_or(attempt);
            Ok(run_in(&run.path, attempt, run_state(&run)))
        }
        Err(error) if error.is_transient() || matches!(error, GithubError::Unauthorized(_)) => {
            Err(error.into())
        }
        // The run was deleted, so nothing more will be reported.
        Err(GithubError::NotFound(_)) if !jobs.iter().any(|job| job.state.is_open()) => {
            Ok(run_in(workflow, attempt, RunState::Over(None)))
        }
        Err(error) => {
            let (delivery, repo) = (&dispatch.delivery, &dispatch.repo);
            tracing::warn!(delivery, %repo, run_id, %error, "the run's state can't be read");
            Ok(run_in(workflow, attempt, by_time))
        }
    }
}

fn is_quiet(jobs: &[&JobRecord], now: Timestamp) -> bool {
    let last = jobs.iter().filter_map(|job| job.ended_at).max();
    let open = jobs.iter().any(|job| job.state.is_open());
    !open && last.is_some_and(|last| now >= last + limits::FOREIGN_RUN_QUIET)
}
