//! Finds out from GitHub which runs a dispatch has started, and how they are.

use std::collections::BTreeMap;

use crcr_domain::RepoName;
use crcr_domain::checks::downstream_run::{
    AcceptedSend, DownstreamRun, ListedRun, RUNS_PER_DISPATCH, RunState, runs_of_dispatch,
};
use crcr_domain::checks::proof::ProofStatus;
use crcr_domain::protocol::dispatch::Dispatch;
use crcr_github::GithubError;
use crcr_github::runs::{RunList, WorkflowRun};
use crcr_store::{StoreError, read_records};
use jiff::{SignedDuration, Timestamp};

use super::head::{is_foreign, proof};
use crate::limits;
use crate::queue::task_kind::TaskError;
use crate::relay::Relay;
use crate::state_records::{self, JobRecord};

/// Reads the runs of a dispatch that proven reports have answered. Returns when GitHub has to be asked again at the
/// latest; `None` if all runs are known and over.
pub(super) async fn find(
    relay: &Relay,
    dispatch: &mut Dispatch,
    jobs: &[JobRecord],
) -> Result<Option<Timestamp>, TaskError> {
    let mut by_run: BTreeMap<&str, Vec<&JobRecord>> = BTreeMap::new();
    for job in jobs.iter().filter(|job| proof(dispatch, job) == ProofStatus::Proven) {
        if !is_foreign(job) {
            by_run.entry(&job.id.run_id).or_default().push(job);
        }
    }
    let window_left = match list(relay, dispatch).await? {
        Ok(evidence) => take_list(relay, dispatch, &evidence).await?,
        Err(problem) => {
            dispatch.runs_problem = Some(problem);
            None
        }
    };
    let mut is_readable = true;
    for (id, jobs) in by_run {
        if !dispatch.runs.iter().any(|run| run.id == id) || dispatch.runs_problem.is_some() {
            match reported_run(relay, dispatch, id, &jobs).await? {
                Some(run) => {
                    dispatch.runs.retain(|known| known.id != run.id);
                    dispatch.runs.push(run);
                }
                None => is_readable = false,
            }
        }
        note_replaced_jobs(relay, dispatch, id, &jobs).await?;
    }
    dispatch.runs.sort_by(|a, b| a.id.cmp(&b.id));
    let is_settled = dispatch.are_runs_known && is_readable && !has_open_ones(dispatch);
    // A quick look as soon as GitHub's window is over, and otherwise at the usual times.
    let soon = window_left.unwrap_or(SignedDuration::MAX);
    Ok((!is_settled).then(|| relay.now().saturating_add(soon).unwrap_or(Timestamp::MAX)))
}

/// Whether GitHub says of one of its runs, or of one that may be its own, that it is open.
pub(super) fn has_open_ones(dispatch: &Dispatch) -> bool {
    dispatch.runs.iter().any(|run| run.state == RunState::Open)
        || dispatch.shared_runs.iter().any(|group| group.is_open)
}

/// Why a dispatch without reports doesn't tell that the backend is dead; `None` if nothing ran.
pub(super) async fn silence(
    relay: &Relay,
    dispatch: &mut Dispatch,
    overdue_at: Timestamp,
) -> Result<Option<String>, TaskError> {
    if !super::head::has_check_runs(relay, dispatch) {
        return Ok(None);
    }
    if let Ok(evidence) = list(relay, dispatch).await? {
        take_list(relay, dispatch, &evidence).await?;
    }
    let found = std::mem::take(&mut dispatch.runs);
    let may_have_run = dispatch.shared_runs.iter().any(|group| group.include_own);
    dispatch.shared_runs.clear();
    dispatch.are_runs_known = false;
    if let Some(run) = found.first() {
        return Ok(Some(format!("It ran (run {}), and no report of it came in", run.id)));
    }
    if may_have_run {
        return Ok(Some("It ran, and no report of it came in".to_owned()));
    }
    let patience = relay.config.never_started_after;
    let was_down = dispatch.sent_at().is_some_and(|at| overdue_at > at + patience);
    Ok(was_down.then(|| "No report came in; the relay was down for a part of the time".to_owned()))
}

/// What tells which runs are a dispatch's.
struct RunEvidence {
    own: AcceptedSend,
    /// The other dispatches that may have started one of the listed runs, and whether these are all of them.
    others: Vec<AcceptedSend>,
    are_others_known: bool,
    /// The time in which GitHub creates the runs of the dispatch and of those that it can be confused with. Which run
    /// is another's shows only in the other's whole window.
    window: (Timestamp, Timestamp),
    list: RunList,
}

/// GitHub's list of the runs that may be the dispatch's, or why it can't be read.
async fn list(
    relay: &Relay,
    dispatch: &Dispatch,
) -> Result<Result<RunEvidence, String>, TaskError> {
    let (repo, Some(own)) = (&dispatch.repo, dispatch.accepted_send()) else {
        return Ok(Err("it isn't known when GitHub accepted the dispatch".to_owned()));
    };
    let hull = |(from, to): (Timestamp, Timestamp), other: &AcceptedSend| {
        let (other_from, other_to) = other.window(relay.config.run_window);
        (from.min(other_from), to.max(other_to))
    };
    let own_window = own.window(relay.config.run_window);
    let (near, _) = other_sends(relay, repo, &own, own_window).await?;
    let window = near.iter().fold(own_window, hull);
    let (others, are_others_known) = other_sends(relay, repo, &own, window).await?;
    match relay.app.runs_of_event(repo.as_str(), "repository_dispatch", window).await {
        Ok(list) => Ok(Ok(RunEvidence { own, others, are_others_known, window, list })),
        Err(error) if is_passing(&error) => Err(error.into()),
        Err(error) => {
            tracing::warn!(delivery = dispatch.delivery, %repo, %error, "runs can't be listed");
            Ok(Err(error.to_string()))
        }
    }
}

fn is_passing(error: &GithubError) -> bool {
    error.is_transient() || matches!(error, GithubError::Unauthorized(_))
}

/// Takes the dispatch's runs out of a list. Returns for how long GitHub may still create more of them.
async fn take_list(
    relay: &Relay,
    dispatch: &mut Dispatch,
    RunEvidence { own, others, are_others_known, window, list }: &RunEvidence,
) -> Result<Option<SignedDuration>, TaskError> {
    let run_window = relay.config.run_window;
    let listed: Vec<ListedRun> = list.runs.iter().filter_map(listed_run).collect();
    let claims = claims(relay, &dispatch.repo, &listed).await?;
    let claimed_by = |id| claims.get(&id).map(String::as_str);
    let found = runs_of_dispatch(&listed, *window, own, others, run_window, claimed_by);
    let is_too_many = found.own.len().max(found.shared.len()) > RUNS_PER_DISPATCH;
    dispatch.runs = found.own;
    dispatch.shared_runs = found.shared;
    // What is dropped makes the rest incomplete.
    dispatch.runs.truncate(RUNS_PER_DISPATCH);
    dispatch.shared_runs.truncate(RUNS_PER_DISPATCH);
    let problem = if listed.len() < list.runs.len() {
        Some("GitHub doesn't say of one when it was created")
    } else if !list.is_complete {
        Some("GitHub lists more of them than it shows")
    } else if is_too_many {
        Some("there are too many of them")
    } else if !are_others_known {
        Some("too many dispatches were sent at the same time")
    } else {
        None
    };
    dispatch.runs_problem = problem.map(str::to_owned);
    // While GitHub may still start the run of another dispatch, it may turn out whose a failed run is.
    let is_undecided = dispatch.shared_runs.iter().any(|group| !group.are_good);
    let over_at = if is_undecided { window.1 } else { own.window(run_window).1 };
    dispatch.are_runs_known |= problem.is_none() && list.read_at >= over_at;
    dispatch.are_runs_known &= problem.is_none();
    let left = over_at.duration_since(list.read_at) + SignedDuration::from_secs(1);
    Ok((list.read_at < over_at).then_some(left))
}

/// The deliveries that proven reports of the listed runs belong to.
async fn claims(
    relay: &Relay,
    repo: &RepoName,
    listed: &[ListedRun],
) -> Result<BTreeMap<u64, String>, StoreError> {
    let key = |run: &ListedRun| state_records::run_claim_key(repo, &run.id.to_string());
    let keys = listed.iter().map(key).collect();
    let claims = read_records::<String>(relay.store.as_ref(), keys).await?;
    let claims = listed.iter().zip(claims);
    Ok(claims.filter_map(|(run, claim)| Some((run.id, claim.value?))).collect())
}

/// The other dispatches to the repository whose runs GitHub may have created between two times, and whether these are
/// all.
async fn other_sends(
    relay: &Relay,
    repo: &RepoName,
    own: &AcceptedSend,
    (from, to): (Timestamp, Timestamp),
) -> Result<(Vec<AcceptedSend>, bool), StoreError> {
    let window = relay.config.run_window;
    let minute = |at: Timestamp| at.as_second().div_euclid(60);
    let (mut others, mut are_all) = (vec![], true);
    // Others were accepted at most one window before the first run, and at most a request's time after the last one.
    for minute in minute(from - window)..=minute(to + window) {
        let set = state_records::sends_key(repo, minute);
        let members = relay.store.members(&set, limits::SENDS_PER_MINUTE).await?;
        are_all &= members.len() < limits::SENDS_PER_MINUTE;
        others.extend(
            members.iter().filter_map(|text| serde_json::from_str::<AcceptedSend>(text).ok()),
        );
    }
    others.retain(|other| {
        let (other_from, other_to) = other.window(window);
        other.delivery != own.delivery && other_from <= to && from <= other_to
    });
    Ok((others, are_all))
}

fn listed_run(run: &WorkflowRun) -> Option<ListedRun> {
    Some(ListedRun {
        id: run.id,
        workflow: run.path.clone(),
        attempt: u32::try_from(run.run_attempt).unwrap_or(1),
        state: run_state(run),
        // Without it, nobody can say whether the run is the dispatch's.
        created_at: run.created_at?,
        title: run.display_title.clone(),
    })
}

fn run_state(run: &WorkflowRun) -> RunState {
    if !run.is_completed() {
        return RunState::Open;
    }
    let known = run.conclusion.as_deref().and_then(|text| text.parse().ok());
    known.map_or(RunState::OverUnknown, RunState::Over)
}

/// The state of a run that proven reports name and the list doesn't have; `None` if it can't be read.
async fn reported_run(
    relay: &Relay,
    dispatch: &Dispatch,
    run_id: &str,
    jobs: &[&JobRecord],
) -> Result<Option<DownstreamRun>, TaskError> {
    let Ok(number) = run_id.parse::<u64>() else { return Ok(None) };
    let found = |workflow: &str, attempt, state| DownstreamRun {
        id: run_id.to_owned(),
        workflow: workflow.to_owned(),
        attempt,
        state,
        replaced_jobs: vec![],
    };
    match relay.app.run(dispatch.repo.as_str(), number).await {
        Ok(run) => {
            let attempt = u32::try_from(run.run_attempt).unwrap_or(1);
            Ok(Some(found(&run.path, attempt, run_state(&run))))
        }
        Err(error) if is_passing(&error) => Err(error.into()),
        // The run was deleted, so nothing more will be reported.
        Err(GithubError::NotFound(_)) if !jobs.iter().any(|job| job.state.is_open()) => {
            let attempt = jobs.iter().map(|job| job.id.run_attempt).max().unwrap_or(1);
            let known = dispatch.runs.iter().find(|run| run.id == run_id);
            let workflow = known.map_or(&jobs[0].id.workflow, |run| &run.workflow);
            Ok(Some(found(workflow, attempt, RunState::OverUnknown)))
        }
        Err(error) => {
            let (delivery, repo) = (&dispatch.delivery, &dispatch.repo);
            tracing::warn!(delivery, %repo, run_id, %error, "the run's state can't be read");
            Ok(None)
        }
    }
}

/// Finds the jobs of older attempts in whose place the newest attempt ran another one, under another name: a name that
/// contains the attempt is such a case.
async fn note_replaced_jobs(
    relay: &Relay,
    dispatch: &mut Dispatch,
    id: &str,
    jobs: &[&JobRecord],
) -> Result<(), TaskError> {
    let Some(at) = dispatch.runs.iter().position(|run| run.id == id) else { return Ok(()) };
    let run = &dispatch.runs[at];
    let newest = |job: &&&JobRecord| {
        !jobs.iter().any(|other| {
            (&other.id.workflow, &other.id.job) == (&job.id.workflow, &job.id.job)
                && other.id.run_attempt > job.id.run_attempt
        })
    };
    let failed: Vec<_> = jobs
        .iter()
        .filter(newest)
        .filter(|job| job.id.run_attempt < run.attempt)
        .filter(|job| job.state.conclusion().is_some_and(|end| !end.is_good()))
        .filter_map(|job| Some((job, job.details.check_run_id.as_ref()?.parse::<u64>().ok()?)))
        .collect();
    let (Ok(number), true, false) = (id.parse::<u64>(), run.state.is_good(), failed.is_empty())
    else {
        return Ok(());
    };
    let repo = dispatch.repo.as_str();
    let asked = async {
        let run = relay.app.run(repo, number).await?;
        relay.app.jobs_of_run(repo, &run).await
    };
    match asked.await {
        // A page has 100 jobs, and what follows isn't read.
        Ok(current) if current.len() < 100 => {
            let is_replaced = |number: &u64| !current.iter().any(|job| job.id == *number);
            let replaced = failed.iter().filter(|(_, number)| is_replaced(number));
            dispatch.runs[at].replaced_jobs = replaced.map(|(job, _)| job.id.clone()).collect();
            Ok(())
        }
        Ok(_) => Ok(()),
        Err(error) if is_passing(&error) => Err(error.into()),
        Err(_) => Ok(()),
    }
}
