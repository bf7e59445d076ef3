//! Finds out from GitHub which runs a dispatch has started, and how they are.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crcr_domain::RepoName;
use crcr_domain::checks::downstream_run::{
    AcceptedSend, DownstreamRun, ListedRun, RUNS_PER_DISPATCH, RunState, runs_of_dispatch,
};
use crcr_domain::checks::lifecycle::Conclusion;
use crcr_domain::checks::proof::ProofStatus;
use crcr_domain::protocol::dispatch::Dispatch;
use crcr_github::GithubError;
use crcr_github::runs::{RunList, WorkflowJob, WorkflowRun};
use crcr_store::{BudgetCharge, CommitOutcome, StoreError, WriteBatch};
use jiff::{SignedDuration, Timestamp};

use super::head::{is_foreign, is_given_up, proof};
use crate::limits;
use crate::queue::task_kind::TaskError;
use crate::relay::Relay;
use crate::state_records::{self, JobRecord};

/// The event of the runs that a dispatch starts.
pub(crate) const EVENT: &str = "repository_dispatch";

/// Takes one of the looks that a backend has for its runs, which use calls that its dispatches need, too. Half of them are
/// left to others than the author of one's pull request; those who have never contributed to upstream share theirs. Returns
/// how long to wait for one if all are used up.
pub(crate) async fn charge_look(
    relay: &Relay,
    dispatch: &Dispatch,
) -> Result<Option<Duration>, StoreError> {
    let repo = &dispatch.repo;
    let looks = |bucket, an_hour: u64| BudgetCharge {
        bucket,
        capacity: an_hour / 5,
        per_minute: an_hour as f64 / 60.0,
        cost: 1,
        first_of: None,
    };
    let mut charges = vec![looks(state_records::run_looks_key(repo), limits::RUN_LOOKS)];
    if dispatch.pull_request.is_some() {
        let bucket = state_records::run_looks_of_author_key(repo, dispatch.share_owner());
        charges.push(looks(bucket, limits::RUN_LOOKS / 2));
    }
    let batch = WriteBatch { charges, ..WriteBatch::default() };
    Ok(match relay.commit(batch).await? {
        CommitOutcome::Limited(limited) => Some(limited.wait),
        _ => None,
    })
}

/// Reads the runs of a dispatch that proven reports have answered. Returns when GitHub has to be asked again at the
/// latest; `None` if all runs are known and over.
pub(crate) async fn find(
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
    let before = dispatch.runs.clone();
    let (window_left, evidence) = match list(relay, dispatch).await? {
        Ok(evidence) => (take_list(relay, dispatch, &evidence).await?, Some(evidence)),
        Err(problem) => {
            dispatch.runs_problem = Some(problem);
            (None, None)
        }
    };
    let mut unread = BTreeSet::new();
    for id in runs_to_ask_for(dispatch, &by_run, &before, evidence.as_ref()) {
        let jobs = by_run.get(id).map(Vec::as_slice).unwrap_or_default();
        let known = before.iter().find(|run| run.id == id);
        match single_run(relay, dispatch, id, jobs, known, evidence.as_ref()).await? {
            SingleRun::Found { run, created_at, is_missing_in_list } => {
                note_late_run(relay, dispatch, id, created_at);
                if is_missing_in_list {
                    // Then it may lack others, too, which nobody has reported.
                    dispatch.are_runs_known = false;
                    dispatch.runs_problem =
                        Some(format!("the list lacks run {id}, which GitHub has"));
                }
                dispatch.runs.retain(|known| known.id != run.id);
                dispatch.runs.push(run);
            }
            SingleRun::Unreadable if evidence.as_ref().is_some_and(|it| it.has(id)) => {}
            SingleRun::Unreadable => {
                unread.insert(id);
                if !dispatch.runs.iter().any(|run| run.id == id) {
                    dispatch.runs.extend(known.cloned());
                }
            }
        }
    }
    for (id, jobs) in &by_run {
        note_replaced_jobs(relay, dispatch, id, jobs).await?;
    }
    note_failed_jobs(relay, dispatch, &before).await?;
    dispatch.runs.sort_by(|a, b| a.id.cmp(&b.id));
    give_up_unread_runs(relay, dispatch, jobs, evidence.is_some(), &unread);
    // A run of which nothing is reported, such as one that failed before its first job, needs no list.
    let lacks_jobs = dispatch.runs.iter().any(|run| {
        by_run.contains_key(&*run.id) && run.state.has_failed() && run.failed_jobs.is_none()
    });
    let is_settled =
        dispatch.are_runs_known && unread.is_empty() && !has_open_ones(dispatch) && !lacks_jobs;
    // A quick look as soon as GitHub's window is over, and otherwise at the usual times.
    let soon = window_left.unwrap_or(SignedDuration::MAX);
    Ok((!is_settled).then(|| relay.now().saturating_add(soon).unwrap_or(Timestamp::MAX)))
}

/// Has further runs waited for if this one was created later than the runs of a dispatch usually are: then GitHub is late,
/// and whatever was listed before isn't all.
fn note_late_run(relay: &Relay, dispatch: &mut Dispatch, id: &str, created_at: Option<Timestamp>) {
    let Some((send, created_at)) = dispatch.accepted_send().zip(created_at) else { return };
    let (_, waited_until) = send.window(relay.config.run_window);
    if waited_until < created_at && created_at <= send.at + limits::LATEST_RUN {
        dispatch.late_run_at = Some(created_at);
        dispatch.are_runs_known = false;
        dispatch.runs_problem =
            Some(format!("GitHub created run {id} late, so there may be others"));
    }
}

/// The runs that have to be asked for one by one: those that were reported and aren't in the list, and those that were
/// known before and aren't in it any more. GitHub's filtered lists are sometimes older than what they are asked about.
fn runs_to_ask_for<'a>(
    dispatch: &Dispatch,
    by_run: &BTreeMap<&'a str, Vec<&JobRecord>>,
    before: &'a [DownstreamRun],
    evidence: Option<&RunEvidence>,
) -> BTreeSet<&'a str> {
    let has_problem = dispatch.runs_problem.is_some();
    let is_known = |id: &str| dispatch.runs.iter().any(|run| run.id == id);
    let reported = by_run.keys().copied().filter(|id| has_problem || !is_known(id));
    let is_unlisted = |run: &&DownstreamRun| match evidence {
        Some(evidence) if !has_problem => !evidence.has(&run.id),
        _ => run.state == RunState::Open,
    };
    reported.chain(before.iter().filter(is_unlisted).map(|run| run.id.as_str())).collect()
}

/// Notes since when runs can't be read, and takes those that were open for ended in an unknown way if that has
/// lasted for too long: otherwise their verdict would wait for ever.
fn give_up_unread_runs(
    relay: &Relay,
    dispatch: &mut Dispatch,
    jobs: &[JobRecord],
    is_list_read: bool,
    unread: &BTreeSet<&str>,
) {
    let now = relay.now();
    if is_list_read && unread.is_empty() {
        dispatch.runs_unread_since = None;
        return;
    }
    let since = dispatch.runs_unread_since.map_or(now, |since| since.min(now));
    dispatch.runs_unread_since = Some(since);
    if now < since + relay.config.lost_after || !is_given_up(relay, dispatch, jobs) {
        return;
    }
    for run in dispatch.runs.iter_mut().filter(|run| run.state == RunState::Open) {
        if unread.contains(run.id.as_str()) {
            run.state = RunState::OverUnknown;
        }
    }
    if !is_list_read && dispatch.shared_runs.iter().any(|group| group.is_open) {
        dispatch.shared_runs.iter_mut().for_each(|group| group.is_open = false);
        dispatch.are_runs_known = false;
    }
}

/// Whether GitHub says of one of its runs, or of one that may be its own, that it is open.
pub(crate) fn has_open_ones(dispatch: &Dispatch) -> bool {
    dispatch.runs.iter().any(|run| run.state == RunState::Open)
        || dispatch.shared_runs.iter().any(|group| group.is_open)
}

/// Why a dispatch without reports doesn't tell that the backend is dead; `None` if nothing ran.
pub(crate) async fn silence(
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

impl RunEvidence {
    fn has(&self, id: &str) -> bool {
        self.list.runs.iter().any(|run| run.id.to_string() == id)
    }

    /// Whether GitHub's list should have the run and doesn't.
    fn lacks(&self, run: &WorkflowRun) -> bool {
        let (from, to) = self.window;
        let is_in_window = run.created_at.is_some_and(|at| from <= at && at <= to);
        self.list.is_complete
            && is_in_window
            && run.event == EVENT
            && !self.list.runs.iter().any(|listed| listed.id == run.id)
    }
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
    match relay.app.runs_of_event(repo.as_str(), EVENT, window).await {
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
    let mut listed: Vec<ListedRun> = list.runs.iter().filter_map(listed_run).collect();
    let lacks_times = listed.len() < list.runs.len();
    let claims = claims(relay, &dispatch.repo, &listed).await?;
    let foreign = others_runs(list, &claims);
    listed.retain(|run| !foreign.contains(&run.id));
    let claimed_by = |id| claims.get(&id).map(String::as_str);
    let found = runs_of_dispatch(&listed, *window, own, others, run_window, claimed_by);
    let is_too_many = found.own.len().max(found.shared.len()) > RUNS_PER_DISPATCH;
    dispatch.runs = found.own;
    dispatch.shared_runs = found.shared;
    // What is dropped makes the rest incomplete.
    dispatch.runs.truncate(RUNS_PER_DISPATCH);
    dispatch.shared_runs.truncate(RUNS_PER_DISPATCH);
    let problem = if lacks_times {
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

/// The runs that somebody else's dispatch has started, such as a scheduler's: nobody has reported for them, and another
/// account has started all those that were reported for.
fn others_runs(list: &RunList, claims: &BTreeMap<u64, String>) -> BTreeSet<u64> {
    let actor = |run: &WorkflowRun| run.actor.as_ref().map(|actor| actor.login.to_lowercase());
    let own = list.runs.iter().filter(|run| claims.contains_key(&run.id));
    let Some(own) = own.map(actor).collect::<Option<BTreeSet<String>>>() else {
        return BTreeSet::new();
    };
    let is_others = |run: &&WorkflowRun| {
        !own.is_empty()
            && !claims.contains_key(&run.id)
            && actor(run).is_some_and(|actor| !own.contains(&actor))
    };
    list.runs.iter().filter(is_others).map(|run| run.id).collect()
}

/// The deliveries that proven reports of the listed runs belong to.
async fn claims(
    relay: &Relay,
    repo: &RepoName,
    listed: &[ListedRun],
) -> Result<BTreeMap<u64, String>, StoreError> {
    let key = |run: &ListedRun| state_records::run_claim_key(repo, None, &run.id.to_string());
    let keys = listed.iter().map(key).collect();
    let claims = relay.read_records::<String>(keys).await?;
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
    let (mut others, are_all) = sends_of_time(relay, repo, (from, to)).await?;
    others.retain(|other| other.delivery != own.delivery);
    Ok((others, are_all))
}

/// The deliveries whose dispatches may have started a run that GitHub created then, also where it is known to be late.
pub(crate) async fn deliveries_of_run(
    relay: &Relay,
    repo: &RepoName,
    created_at: Timestamp,
) -> Result<BTreeSet<String>, StoreError> {
    let has = |send: &AcceptedSend| {
        let (from, to) = send.window(relay.config.run_window);
        from <= created_at && created_at <= to
    };
    let of_time = (created_at - limits::LATEST_RUN, created_at + relay.config.run_window);
    let (sends, _) = accepted_sends(relay, repo, of_time).await?;
    let (usual, earlier): (Vec<_>, Vec<_>) = sends.into_iter().partition(has);
    // Whether GitHub is late shows only after a dispatch was sent, so the set of its minute doesn't know it.
    let newest = earlier.iter().rev().take(limits::SENDS_PER_MINUTE);
    let key = |send: &AcceptedSend| state_records::dispatch_key(&send.delivery, repo);
    let records = relay.read_records::<Dispatch>(newest.map(key).collect()).await?;
    let late = records.into_iter().filter_map(|record| record.value?.accepted_send()).filter(has);
    Ok(usual.into_iter().chain(late).map(|send| send.delivery).collect())
}

/// The dispatches to the repository whose runs GitHub may have created between two times, and whether these are all.
async fn sends_of_time(
    relay: &Relay,
    repo: &RepoName,
    (from, to): (Timestamp, Timestamp),
) -> Result<(Vec<AcceptedSend>, bool), StoreError> {
    let window = relay.config.run_window;
    // They were accepted at most one window before the first run, and at most a request's time after the last one.
    let (mut sends, are_all) = accepted_sends(relay, repo, (from - window, to + window)).await?;
    sends.retain(|send| {
        let (send_from, send_to) = send.window(window);
        send_from <= to && from <= send_to
    });
    Ok((sends, are_all))
}

/// The dispatches to the repository that GitHub accepted in the minutes from one time to another, and whether these are
/// all.
async fn accepted_sends(
    relay: &Relay,
    repo: &RepoName,
    (from, to): (Timestamp, Timestamp),
) -> Result<(Vec<AcceptedSend>, bool), StoreError> {
    let minute = |at: Timestamp| at.as_second().div_euclid(60);
    let (mut sends, mut are_all) = (vec![], true);
    for minute in minute(from)..=minute(to) {
        let set = state_records::sends_key(repo, minute);
        let members = relay.store.members(&set, limits::SENDS_PER_MINUTE).await?;
        are_all &= members.len() < limits::SENDS_PER_MINUTE;
        sends.extend(
            members.iter().filter_map(|text| serde_json::from_str::<AcceptedSend>(text).ok()),
        );
    }
    Ok((sends, are_all))
}

fn listed_run(run: &WorkflowRun) -> Option<ListedRun> {
    Some(ListedRun {
        id: run.id,
        workflow: run.file().to_owned(),
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

/// What GitHub says of one run.
enum SingleRun {
    Found { run: DownstreamRun, created_at: Option<Timestamp>, is_missing_in_list: bool },
    Unreadable,
}

/// The state of a run that the list doesn't have. `jobs`: those that proven reports name. `known`: what GitHub said of
/// it before.
async fn single_run(
    relay: &Relay,
    dispatch: &Dispatch,
    run_id: &str,
    jobs: &[&JobRecord],
    known: Option<&DownstreamRun>,
    evidence: Option<&RunEvidence>,
) -> Result<SingleRun, TaskError> {
    let Ok(number) = run_id.parse::<u64>() else { return Ok(SingleRun::Unreadable) };
    let found = |workflow: &str, attempt, state| DownstreamRun {
        id: run_id.to_owned(),
        workflow: workflow.to_owned(),
        attempt,
        state,
        replaced_jobs: vec![],
        failed_jobs: None,
    };
    match relay.app.run(dispatch.repo.as_str(), number).await {
        Ok(run) => {
            let attempt = u32::try_from(run.run_attempt).unwrap_or(1);
            let is_missing_in_list = evidence.is_some_and(|evidence| evidence.lacks(&run));
            let created_at = run.created_at;
            let run = found(run.file(), attempt, run_state(&run));
            Ok(SingleRun::Found { run, created_at, is_missing_in_list })
        }
        Err(error) if is_passing(&error) => Err(error.into()),
        // The run was deleted, so nothing more will be reported.
        Err(GithubError::NotFound(_)) if !jobs.iter().any(|job| job.state.is_open()) => {
            let reported = jobs.iter().map(|job| job.id.run_attempt).max();
            // How it ended is known all the same, if that was read before.
            let ended = known.filter(|run| {
                matches!(run.state, RunState::Over(_))
                    && reported.is_none_or(|it| it <= run.attempt)
            });
            let run = ended.cloned().or_else(|| {
                let workflow = known.map(|run| run.workflow.as_str());
                let workflow = workflow.or(jobs.first().map(|job| job.id.workflow.as_str()))?;
                let attempt = reported.or(known.map(|run| run.attempt)).unwrap_or(1);
                Some(found(workflow, attempt, RunState::OverUnknown))
            });
            let found = |run| SingleRun::Found { run, created_at: None, is_missing_in_list: false };
            Ok(run.map_or(SingleRun::Unreadable, found))
        }
        Err(error) => {
            let (delivery, repo) = (&dispatch.delivery, &dispatch.repo);
            tracing::warn!(delivery, %repo, run_id, %error, "the run's state can't be read");
            Ok(SingleRun::Unreadable)
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
    if let Some(current) = jobs_of_run(relay, dispatch, number, run.attempt).await? {
        // What doesn't run again is in the list, too, and may have another number there.
        let is_listed = |job: &JobRecord, number: u64| {
            let is_it = |listed: &WorkflowJob| {
                listed.id == number || job.id.job.as_deref() == Some(&*listed.name)
            };
            current.iter().any(is_it)
        };
        let replaced = failed.iter().filter(|(job, number)| !is_listed(job, *number));
        dispatch.runs[at].replaced_jobs = replaced.map(|(job, _)| job.id.clone()).collect();
    }
    Ok(())
}

/// Finds out which jobs of the runs that failed didn't end well. `before`: what was known of them.
async fn note_failed_jobs(
    relay: &Relay,
    dispatch: &mut Dispatch,
    before: &[DownstreamRun],
) -> Result<(), TaskError> {
    for at in 0..dispatch.runs.len() {
        let run = &dispatch.runs[at];
        let same = |known: &&DownstreamRun| {
            (&known.id, known.attempt, known.state) == (&run.id, run.attempt, run.state)
        };
        let known = before.iter().find(same).and_then(|known| known.failed_jobs.clone());
        let failed = match run.id.parse() {
            Ok(number) if run.state.has_failed() && known.is_none() => {
                let jobs = jobs_of_run(relay, dispatch, number, run.attempt).await?;
                let failed: Vec<u64> = jobs
                    .into_iter()
                    .flatten()
                    .filter(|job| !ended_well(job))
                    .map(|job| job.id)
                    .collect();
                // A list in which no job failed is older than the run's end, or the run failed before its first job.
                (!failed.is_empty()).then_some(failed)
            }
            _ => known,
        };
        dispatch.runs[at].failed_jobs = failed;
    }
    Ok(())
}

fn ended_well(job: &WorkflowJob) -> bool {
    let end = job.conclusion.as_deref().and_then(|text| text.parse::<Conclusion>().ok());
    end.is_some_and(Conclusion::is_good)
}

/// GitHub's list of the jobs of an attempt, if it can be read and is all of it.
async fn jobs_of_run(
    relay: &Relay,
    dispatch: &Dispatch,
    run_id: u64,
    attempt: u32,
) -> Result<Option<Vec<WorkflowJob>>, TaskError> {
    match relay.app.jobs_of_run(dispatch.repo.as_str(), run_id, attempt).await {
        Ok(jobs) => Ok(jobs),
        Err(error) if is_passing(&error) => Err(error.into()),
        Err(_) => Ok(None),
    }
}
