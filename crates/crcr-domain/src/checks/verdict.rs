//! The verdict of one backend on one upstream commit, which the check run `crcr/<owner>/<repo>/relay/dispatch`
//! shows. `docs/decisions/verdict.md` is the rule in words.
//!
//! It is computed from the stored dispatches, downstream runs and reported jobs whenever one of them
//! changes, and never stored itself. So an old verdict can't override a re-run or a late report.

#[cfg(test)]
mod model;

use jiff::Timestamp;

use crate::allowlist::level::Level;
use crate::checks::downstream_run::{DownstreamRun, RunState, SharedRuns};
use crate::checks::lifecycle::{Conclusion, JobState};
use crate::checks::proof::{MissingProof, ProofStatus};
use crate::probes::LeftOut;
use crate::protocol::callback::JobId;
use crate::protocol::dispatch::DispatchStatus;

/// A dispatch of the commit to the backend.
#[derive(Debug, Clone)]
pub struct HeadDispatch<'a> {
    pub status: &'a DispatchStatus,
    /// Why the last try failed.
    pub last_error: Option<&'a str>,
    pub pull_request: Option<u64>,
    /// Whether its pull request was a draft.
    pub is_draft: bool,
    /// The branch that its pull request was to be merged into. `None`: it isn't known, or there is no pull request.
    pub base_branch: Option<&'a str>,
    /// Whether its pull request has become ready for review, or goes to another branch: what ran for the head before was
    /// about something else.
    pub asks_anew: bool,
    /// Whether its pull request is closed or has another head now.
    pub is_abandoned: bool,
    /// Whether it was sent although the breaker is open, because somebody asked for it.
    pub is_trial: bool,
    /// Until when the backend's own file holds it back.
    pub held_until: Option<Timestamp>,
    /// Whether the time for a first report is over.
    pub is_overdue: bool,
    /// Why no report is known although it may have run: the relay was down, or GitHub lists runs of it.
    pub silence: Option<&'a str>,
    /// Whether nothing more is expected of runs whose state can't be read.
    pub is_given_up: bool,
    /// Whether GitHub's list of its runs was read as a whole, after no more of them can be created.
    pub are_runs_known: bool,
    /// Why the list can't be read.
    pub runs_problem: Option<&'a str>,
    pub runs: &'a [DownstreamRun],
    pub shared_runs: &'a [SharedRuns],
    /// The jobs that reported for it.
    pub jobs: Vec<HeadJob<'a>>,
}

#[derive(Debug, Clone, Copy)]
pub struct HeadJob<'a> {
    pub id: &'a JobId,
    pub state: JobState,
    /// The pull request that its run was dispatched for; `None` for upstream's own events.
    pub pull_request: Option<u64>,
    /// Orders the dispatches of a pull request by the events that caused them.
    pub asked: i64,
    pub proof: ProofStatus,
    /// When the first report came in. Orders runs whose ids have no order.
    pub heard_at: Option<Timestamp>,
    /// Whether its start was proven, but not its end.
    pub ended_without_proof: bool,
    /// Whether it ran elsewhere than on GitHub, so that nobody can be asked about its run.
    pub is_foreign: bool,
    /// The pipeline of a build elsewhere, as far as it is known. Two of them may give their workflows one name.
    pub pipeline: Option<&'a str>,
    /// The check run that GitHub has of it downstream, if it was reported.
    pub check_run_id: Option<u64>,
    /// Whether it said that it is the last one of its run.
    pub ends_run: bool,
    pub steps: StepCounts,
}

/// The steps of a build elsewhere that reported under one name in one attempt: parallel ones may share it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepCounts {
    pub reported: usize,
    /// Those that failed or haven't reported their end.
    pub without_success: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeadVerdict {
    pub state: HeadState,
    /// The run to link and to re-run.
    pub run: Option<String>,
    /// Whether that run is elsewhere than on GitHub.
    pub is_foreign: bool,
    pub reason: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadState {
    Queued,
    Running,
    Ended(Conclusion),
}

/// What a backend that can't be reached, or whose result isn't known, is shown as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VerdictPolicy {
    pub level: Level,
    pub silent: Conclusion,
}

/// The verdict for all dispatches of one commit to one backend, in the order in which they were accepted. `None`
/// without dispatches.
pub fn verdict(dispatches: &[HeadDispatch<'_>], policy: VerdictPolicy) -> Option<HeadVerdict> {
    if !dispatches.iter().any(HeadDispatch::is_answered) {
        return verdict_without_evidence(dispatches, policy);
    }
    let evidence = Evidence::new(dispatches);
    let asked_again = (0..dispatches.len()).rev().find(|index| {
        let asked = &dispatches[*index];
        let is_again = dispatches[..*index].iter().any(|one| asked.is_answered_by(one));
        asked.waits()
            && !asked.is_abandoned
            && !is_answered_later(dispatches, *index)
            && (is_again || asked.finds_only_drafts(dispatches))
    });
    if let Some(asked) = asked_again.map(|index| &dispatches[index])
        && !evidence.has_failed_for_others(asked.pull_request)
    {
        return Some(evidence.shows(HeadState::Queued, None, asked.waiting_reason()));
    }
    if let Some((run, reason)) = evidence.open() {
        return Some(evidence.shows(HeadState::Running, run, reason));
    }
    let (end, run, reason) = evidence.end(policy);
    Some(evidence.shows(HeadState::Ended(end), run, reason))
}

/// The job whose result its check run shows: of `jobs`, proven ones of one name, each with the file of its workflow or
/// its pipeline if that is known, and heard of when the first job of its run was. Of each file the newest run and
/// attempt counts, of a pull request that of its newest event, unless it was left out there for another pull request; of
/// several files the worst.
pub fn job_to_show(jobs: &[(HeadJob<'_>, Option<&str>)]) -> Option<usize> {
    let order = |job: &HeadJob<'_>| (run_number(job.id), job.heard_at, job.id.run_attempt);
    let newest_of_run = |a: &HeadJob<'_>, b: &HeadJob<'_>| {
        if a.id.run_id == b.id.run_id {
            a.id.run_attempt.cmp(&b.id.run_attempt)
        } else {
            order(a).cmp(&order(b))
        }
    };
    let is_of_one_workflow = |a: usize, b: usize| {
        let ((one, file), (other, of_other)) = (&jobs[a], &jobs[b]);
        // A workflow on GitHub and a build elsewhere may have one name.
        one.is_foreign == other.is_foreign
            // The file isn't known before GitHub was asked.
            && (file == of_other || file.is_none() || of_other.is_none())
    };
    // What another pull request's run leaves out or cancels says nothing of what ran before.
    let is_needless = |index: &usize| {
        let job = &jobs[*index].0;
        job.says_nothing()
            && (0..jobs.len()).any(|older| {
                let before = &jobs[older].0;
                is_of_one_workflow(older, *index)
                    && before.pull_request != job.pull_request
                    && !before.says_nothing()
                    && newest_of_run(before, job).is_lt()
            })
    };
    // Those that no other one comes after.
    let newest = |among: Vec<usize>, is_after: &dyn Fn(&HeadJob<'_>, &HeadJob<'_>) -> bool| {
        let is_newest = |index: &usize| {
            let job = &jobs[*index].0;
            let is_unretried = has_unretried_step(job, jobs.iter().map(|(other, _)| other));
            among
                .iter()
                .filter(|other| is_of_one_workflow(**other, *index))
                .map(|other| &jobs[*other].0)
                .filter(|other| !(is_unretried && other.id.run_id == job.id.run_id))
                .all(|other| !is_after(other, job))
        };
        among.iter().copied().filter(is_newest).collect::<Vec<usize>>()
    };
    let counted = (0..jobs.len()).filter(|index| !is_needless(index)).collect();
    // A dispatch that was sent late is still of the earlier event.
    let of_pulls = newest(counted, &|other, job| {
        other.pull_request == job.pull_request
            && other.asked.cmp(&job.asked).then(newest_of_run(other, job)).is_gt()
    });
    let shown = newest(of_pulls, &|other, job| newest_of_run(other, job).is_gt());
    let weight = |index: &usize| match jobs[*index].0.state.conclusion() {
        Some(end) if end.is_good() => (0, end.severity()),
        None => (1, 0),
        Some(end) => (2, end.severity()),
    };
    shown.into_iter().max_by_key(weight)
}

/// Whether more steps of an attempt are without success than its next attempt ran again. Each step of a build elsewhere
/// is retried alone, so one that wasn't retried keeps its result.
fn has_unretried_step<'a>(
    job: &HeadJob<'_>,
    mut others: impl Iterator<Item = &'a HeadJob<'a>>,
) -> bool {
    job.is_foreign
        && others.any(|next| {
            let (of, next_id) = (job.id, next.id);
            (&of.run_id, job.pipeline, &of.workflow, &of.job)
                == (&next_id.run_id, next.pipeline, &next_id.workflow, &next_id.job)
                && next_id.run_attempt == of.run_attempt + 1
                && (1..job.steps.without_success).contains(&next.steps.reported)
        })
}

impl HeadJob<'_> {
    fn is_skipped(&self) -> bool {
        self.state == JobState::Completed(Conclusion::Skipped)
    }

    /// Whether it has ended, and doesn't tell of what it was to test.
    fn says_nothing(&self) -> bool {
        let was_cancelled = self.state == JobState::Completed(Conclusion::Cancelled);
        let was_lost = matches!(self.state, JobState::Lost | JobState::NeverStarted);
        self.is_skipped() || was_cancelled || was_lost || self.ended_without_proof
    }
}

fn run_number(id: &JobId) -> u64 {
    id.run_id.parse().unwrap_or(0)
}

/// The verdict while no dispatch has a proven report.
fn verdict_without_evidence(
    dispatches: &[HeadDispatch<'_>],
    policy: VerdictPolicy,
) -> Option<HeadVerdict> {
    let shows = |state, reason| Some(HeadVerdict { state, run: None, is_foreign: false, reason });
    if let Some(waiting) = dispatches.iter().rev().find(|dispatch| dispatch.waits()) {
        return shows(HeadState::Queued, waiting.waiting_reason());
    }
    // Of several of one kind, the newest.
    let (dispatch, silence) =
        dispatches.iter().map(|one| (one, one.silence_kind())).max_by_key(|(_, kind)| *kind)?;
    // A required check that was skipped lets the commit be merged, and it may become a head again.
    let untested =
        if policy.level == Level::L4 { Conclusion::ActionRequired } else { Conclusion::Skipped };
    let why = dispatch.last_error.unwrap_or("unknown");
    match silence {
        Silence::Superseded => {
            let reason = "Superseded by a newer head before it was tested";
            shows(HeadState::Ended(untested), reason.to_owned())
        }
        Silence::LeftOut => {
            let reason = dispatch.last_error.unwrap_or("This backend doesn't take it");
            // A draft becomes ready before the webhook that says so is worked on.
            let may_be_tested = [LeftOut::Closed, LeftOut::Draft]
                .iter()
                .any(|why| *dispatch.status == DispatchStatus::LeftOut { why: *why });
            let end = if may_be_tested { untested } else { Conclusion::Skipped };
            shows(HeadState::Ended(end), reason.to_owned())
        }
        Silence::Withheld => shows(
            HeadState::Ended(Conclusion::Neutral),
            dispatch.last_error.unwrap_or("Its infrastructure keeps failing").to_owned(),
        ),
        Silence::NotSent => {
            shows(HeadState::Ended(policy.silent), format!("It could not be dispatched: {why}"))
        }
        Silence::NoReport => {
            let reason = match (dispatch.missing_proof(), dispatch.silence) {
                (Some(missing), _) => format!("It was reported without proof: {missing}"),
                (None, Some(silence)) => silence.to_owned(),
                (None, None) => "It never started: no report came in time".to_owned(),
            };
            shows(HeadState::Ended(policy.silent), reason)
        }
    }
}

/// Why a dispatch has no answer. What comes later says more about the backend, and is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Silence {
    Superseded,
    LeftOut,
    Withheld,
    NotSent,
    NoReport,
}

/// Whether a later dispatch for the same pull request has an answer, or this one has.
fn is_answered_later(dispatches: &[HeadDispatch<'_>], index: usize) -> bool {
    dispatches[index..].iter().any(|later| dispatches[index].is_answered_by(later))
}

impl HeadDispatch<'_> {
    fn is_answered(&self) -> bool {
        self.jobs.iter().any(|job| job.proof == ProofStatus::Proven)
    }

    /// Whether `other` has an answer and is for the same pull request.
    fn is_answered_by(&self, other: &Self) -> bool {
        other.pull_request == self.pull_request && other.is_answered()
    }

    /// Whether all that is known is of drafts, for which a workflow may leave out jobs, and this one is for none.
    fn finds_only_drafts(&self, dispatches: &[Self]) -> bool {
        !self.is_draft && dispatches.iter().filter(|one| one.is_answered()).all(|one| one.is_draft)
    }

    /// Whether the newest of the `earlier` ones that its pull request has an answer to was about another branch. The event
    /// that changed it may have had another head, or got lost.
    fn goes_to_another_branch(&self, earlier: &[Self]) -> bool {
        let tested = earlier.iter().rfind(|one| self.is_answered_by(one));
        let tested = tested.and_then(|one| one.base_branch);
        tested.zip(self.base_branch).is_some_and(|(tested, own)| tested != own)
    }

    /// Whether it should have been tested, and nobody has answered.
    fn is_in_vain(&self) -> bool {
        !self.is_answered() && matches!(self.silence_kind(), Silence::NotSent | Silence::NoReport)
    }

    /// Whether an answer may still come.
    fn waits(&self) -> bool {
        match self.status {
            DispatchStatus::Queued => true,
            DispatchStatus::Sent { .. } => !self.is_overdue && !self.is_answered(),
            _ => false,
        }
    }

    fn waiting_reason(&self) -> String {
        let reason = match self.status {
            DispatchStatus::Queued => match self.held_until {
                Some(until) => {
                    return format!(
                        "Held back until {until:.0} by this backend's `.github/crcr.yml`"
                    );
                }
                None => "Waiting to be dispatched",
            },
            _ => "Dispatched",
        };
        let trial = if self.is_trial {
            " as a trial, because somebody asked for it: the breaker of this backend is open"
        } else {
            ""
        };
        format!("{reason}{trial}")
    }

    fn silence_kind(&self) -> Silence {
        match self.status {
            DispatchStatus::Superseded { .. } => Silence::Superseded,
            DispatchStatus::Withheld => Silence::Withheld,
            DispatchStatus::LeftOut { .. } => Silence::LeftOut,
            DispatchStatus::Dead
            | DispatchStatus::Unreachable
            | DispatchStatus::RepositoryChanged
            | DispatchStatus::Queued => Silence::NotSent,
            DispatchStatus::Sent { .. } => Silence::NoReport,
        }
    }

    fn missing_proof(&self) -> Option<MissingProof> {
        self.jobs.iter().find_map(|job| match job.proof {
            ProofStatus::Missing(missing) => Some(missing),
            ProofStatus::Undecided | ProofStatus::Proven => None,
        })
    }

    fn knows_workflow(&self, workflow: &str) -> bool {
        self.runs.iter().any(|run| run.workflow == workflow)
            || self.shared_runs.iter().any(|run| run.workflow == workflow)
    }
}

/// What the answered dispatches of a commit say.
struct Evidence<'a> {
    /// Those that count, oldest first.
    runs: Vec<EffectiveRun<'a>>,
    shared: Vec<&'a SharedRuns>,
    /// A dispatch whose runs aren't all known.
    incomplete: Option<&'a HeadDispatch<'a>>,
    /// Why the others don't stand for a dispatch without an answer.
    untested: Option<&'static str>,
}

/// A run that the verdict depends on, with the newest attempt of each of its proven jobs.
struct EffectiveRun<'a> {
    id: &'a str,
    /// `None`: GitHub hasn't been asked about it yet, or it is elsewhere.
    known: Option<&'a DownstreamRun>,
    jobs: Vec<HeadJob<'a>>,
    /// The pull request that it was dispatched for; `None` for upstream's own events.
    pull_request: Option<u64>,
    /// [`HeadJob::pipeline`].
    pipeline: Option<&'a str>,
    is_given_up: bool,
    /// Orders the runs of one workflow: by GitHub's increasing ids, or by time.
    order: (u64, Option<Timestamp>),
    /// The position of its dispatch. Of one pull request it orders runs before `order` does: the dispatch of an earlier
    /// event may have been sent later.
    asked: usize,
}

impl<'a> Evidence<'a> {
    fn new(dispatches: &'a [HeadDispatch<'a>]) -> Self {
        let answered: Vec<_> =
            dispatches.iter().filter(|dispatch| dispatch.is_answered()).collect();
        let later = |index: usize| {
            let own = answered[index].pull_request;
            answered[index + 1..].iter().filter(move |later| later.pull_request == own)
        };
        // What can't be found out about an older dispatch doesn't matter once a newer one's runs are known.
        let matters = |index: usize, dispatch: &HeadDispatch<'_>| {
            !(dispatch.is_given_up && later(index).any(|later| later.are_runs_known))
        };
        let incomplete = answered
            .iter()
            .enumerate()
            .find(|(index, dispatch)| !dispatch.are_runs_known && matters(*index, dispatch));
        let shared = answered.iter().enumerate().flat_map(|(index, dispatch)| {
            let is_known_later = move |group: &&SharedRuns| {
                later(index).any(|later| later.knows_workflow(&group.workflow))
            };
            dispatch.shared_runs.iter().filter(move |group| !is_known_later(group))
        });
        let untested = (0..dispatches.len()).find_map(|index| {
            let asked = &dispatches[index];
            if !asked.is_in_vain() || is_answered_later(dispatches, index) {
                return None;
            }
            // What others know of the commit isn't taken back by a pull request that has left it.
            let matters =
                !asked.is_abandoned || answered.iter().all(|one| asked.is_answered_by(one));
            let is_new = asked.asks_anew || asked.goes_to_another_branch(&dispatches[..index]);
            if is_new && matters {
                return Some(
                    "No report came in since it became ready for review, or goes to another branch",
                );
            }
            asked.finds_only_drafts(dispatches).then_some("It was tested as a draft only")
        });
        Self {
            shared: shared.collect(),
            incomplete: incomplete.map(|(_, dispatch)| *dispatch),
            untested,
            runs: effective_runs(&answered),
        }
    }

    fn shows(
        &self,
        state: HeadState,
        run: Option<&EffectiveRun<'_>>,
        reason: impl Into<String>,
    ) -> HeadVerdict {
        let open = || self.runs.iter().find(|run| run.is_open());
        // Where a dispatch lacks an answer, "Re-run" sends that again, and not what another one has started.
        let is_run_wanted = self.untested.is_none();
        let run = run.or_else(|| open().or(self.runs.last()).filter(|_| is_run_wanted));
        HeadVerdict {
            state,
            run: run.map(|run| run.id.to_owned()),
            is_foreign: run.is_some_and(EffectiveRun::is_foreign),
            reason: reason.into(),
        }
    }

    /// Whether everything is over, and has failed for another pull request than this one.
    fn has_failed_for_others(&self, pull_request: Option<u64>) -> bool {
        let is_bad = |run: &EffectiveRun<'_>| run.conclusion().is_some_and(|end| !end.is_good());
        self.open().is_none()
            && self.runs.iter().any(|run| run.pull_request != pull_request && is_bad(run))
    }

    /// Why it isn't over, with the run to look at.
    fn open(&self) -> Option<(Option<&EffectiveRun<'a>>, String)> {
        if let Some(run) = self.runs.iter().find(|run| run.is_open()) {
            return Some((Some(run), run.open_reason()));
        }
        if let Some(group) = self.shared.iter().find(|group| group.is_open) {
            let reason = format!("A run of `{}` that may be this commit's is open", group.workflow);
            return Some((None, reason));
        }
        let incomplete = self.incomplete.filter(|dispatch| !dispatch.is_given_up)?;
        let reason = match incomplete.runs_problem {
            Some(problem) => format!("Waiting for GitHub's list of its runs: {problem}"),
            None => "Waiting until GitHub can't start further runs".to_owned(),
        };
        Some((None, reason))
    }

    /// The verdict when everything is over.
    fn end(&self, policy: VerdictPolicy) -> (Conclusion, Option<&EffectiveRun<'a>>, String) {
        let severity = |run: &&EffectiveRun<'_>| run.conclusion().map(Conclusion::severity);
        let worst = self.runs.iter().max_by_key(severity);
        let conclusion = worst.and_then(EffectiveRun::conclusion);
        if let Some(end) = conclusion.filter(|end| !end.is_good()) {
            let word = end.as_str().replace('_', " ");
            return (end, worst, format!("The worst of its runs and jobs: {word}"));
        }
        if let Some((run, reason)) = self.unknown() {
            return (policy.silent, run, reason);
        }
        let mut reported = self.runs.iter().flat_map(|run| &run.jobs);
        if reported.all(HeadJob::is_skipped) {
            let end = if policy.level == Level::L4 { policy.silent } else { Conclusion::Skipped };
            return (
                end,
                worst,
                "Every job that reported was skipped, so nothing was tested".into(),
            );
        }
        let reason = "Every run ended well, and so did every job that reported";
        (Conclusion::Success, worst, reason.to_owned())
    }

    /// What isn't known and so can't be called a success.
    fn unknown(&self) -> Option<(Option<&EffectiveRun<'a>>, String)> {
        if let Some(run) = self.runs.iter().find(|run| run.is_unknown()) {
            let reason = if run.is_foreign() {
                "Its run never said that it ended (`workflow.run_ended`)".to_owned()
            } else {
                format!("It isn't known how run {} ended", run.id)
            };
            return Some((Some(run), reason));
        }
        if let Some(group) = self.shared.iter().find(|group| group.include_own && !group.are_good) {
            let reason = format!(
                "A run of `{}` failed, and it isn't known whether it is this commit's: put the \
                 delivery id into its `run-name`",
                group.workflow
            );
            return Some((None, reason));
        }
        if let Some(incomplete) = self.incomplete {
            let problem = incomplete.runs_problem.unwrap_or("it was never read as a whole");
            return Some((None, format!("It isn't known which runs it had: {problem}")));
        }
        Some((None, self.untested?.to_owned()))
    }
}

impl EffectiveRun<'_> {
    fn is_foreign(&self) -> bool {
        self.jobs.iter().any(|job| job.is_foreign)
    }

    /// Whether the job is one of it. Two pipelines may have builds of one number.
    fn has(&self, job: &HeadJob<'_>) -> bool {
        self.id == job.id.run_id && !are_of_two_pipelines(self.pipeline, job.pipeline)
    }

    fn open_job(&self) -> Option<&HeadJob<'_>> {
        self.jobs.iter().find(|job| job.state.is_open() && !job.ended_without_proof)
    }

    fn open_reason(&self) -> String {
        match (self.open_job(), self.known.map(|run| run.state)) {
            (Some(job), Some(state)) if state != RunState::Open => {
                let job = job.id.job.as_deref().unwrap_or("a job");
                format!("Waiting for the end of job `{job}`, which was never reported")
            }
            _ => "Running".to_owned(),
        }
    }

    /// GitHub's state of the run only counts if it isn't older than the newest reported attempt.
    fn is_open(&self) -> bool {
        self.open_job().is_some() || (!self.is_over() && !self.is_given_up_open())
    }

    /// Whether it is known to be over.
    fn is_over(&self) -> bool {
        if self.is_foreign() {
            return self.jobs.iter().any(|job| job.ends_run);
        }
        let reported = self.jobs.iter().map(|job| job.id.run_attempt).max().unwrap_or(0);
        self.known.is_some_and(|run| run.state != RunState::Open && run.attempt >= reported)
    }

    /// GitHub's word that a run is open holds for as long as GitHub says so.
    fn is_given_up_open(&self) -> bool {
        self.is_given_up && self.known.is_none_or(|run| run.state != RunState::Open)
    }

    fn is_unknown(&self) -> bool {
        !self.is_over() || self.known.is_some_and(|run| run.state == RunState::OverUnknown)
    }

    /// The worst of GitHub's conclusion and the reported ones, when it isn't open.
    fn conclusion(&self) -> Option<Conclusion> {
        let own = match self.known.map(|run| run.state) {
            Some(RunState::Over(own)) => Some(own),
            _ => None,
        };
        let counted = self.jobs.iter().filter(|job| !self.is_replaced(job));
        // In a run that isn't open, a job without an end has one without proof.
        let ends = counted.map(|job| job.state.conclusion().unwrap_or(Conclusion::Cancelled));
        Conclusion::worst(ends.chain(own))
    }

    /// Whether a later attempt, which ended well, ran in the place of the job under another name.
    fn is_replaced(&self, job: &HeadJob<'_>) -> bool {
        self.known.is_some_and(|run| {
            run.state.is_good()
                && job.id.run_attempt < run.attempt
                && run.replaced_jobs.contains(job.id)
        })
    }

    /// Whether it is the next run of the workflow for the same pull request, or a later one.
    fn follows(&self, older: &Self) -> bool {
        self.pull_request == older.pull_request
            && (self.asked, self.order) > (older.asked, older.order)
            && older.is_of_workflow_of(self)
    }

    /// Whether everything that isn't known to be good of another pull request's run has run here again. A workflow may
    /// leave out jobs, such as for a draft or another base branch, and so says nothing about them.
    fn repeats(&self, other: &Self) -> bool {
        if !other.is_over() {
            // What it is still going to run isn't known.
            return false;
        }
        if other.known.is_some_and(|run| other.hides_failure(run)) {
            return false;
        }
        other.not_good().all(|job| self.has_run(job))
    }

    /// Whether a job may have failed that doesn't report. Which ones have failed is what GitHub says.
    fn hides_failure(&self, run: &DownstreamRun) -> bool {
        let is_unknown = matches!(run.state, RunState::Open | RunState::OverUnknown);
        if self.not_good().next().is_none() {
            return is_unknown || run.state.has_failed();
        }
        if !run.state.has_failed() {
            return false;
        }
        let Some(failed) = &run.failed_jobs else { return true };
        // A job that GitHub calls failed may have reported success before that.
        let is_reported = |id: &&u64| self.not_good().any(|job| job.check_run_id == Some(**id));
        // Not every reporter names its check run.
        let nameless = self.not_good().filter(|job| job.check_run_id.is_none()).count();
        failed.iter().filter(|id| !is_reported(id)).count() > nameless
    }

    /// Its jobs that aren't known to be good.
    fn not_good(&self) -> impl Iterator<Item = &HeadJob<'_>> {
        self.jobs.iter().filter(|job| !job.state.conclusion().is_some_and(Conclusion::is_good))
    }

    /// Whether a job of another run has run here to its end, too.
    fn has_run(&self, job: &HeadJob<'_>) -> bool {
        self.jobs.iter().any(|own| {
            (&own.id.workflow, &own.id.job) == (&job.id.workflow, &job.id.job)
                && !own.state.is_open()
                && !own.says_nothing()
        })
    }

    /// Whether it was cancelled before anything failed. A job that is killed may not get to report its end, and is lost.
    fn was_cancelled(&self) -> bool {
        let said_so =
            self.known.is_some_and(|run| run.state == RunState::Over(Conclusion::Cancelled));
        let is_known = !self.is_open() && !self.is_unknown();
        is_known
            && (self.conclusion() == Some(Conclusion::Cancelled)
                || (said_so && self.not_good().all(HeadJob::says_nothing)))
    }

    /// Whether GitHub has cancelled it, and the end of a job isn't known. If that is lost, the run may say nothing.
    fn may_be_needless(&self) -> bool {
        let is_cancelled = |run: &DownstreamRun| run.state == RunState::Over(Conclusion::Cancelled);
        self.known.is_some_and(is_cancelled) && self.open_job().is_some()
    }

    /// Whether it or a job of it has an earlier attempt, which said something.
    fn ran_again(&self) -> bool {
        self.known.is_some_and(|run| run.attempt > 1)
            || self.jobs.iter().any(|job| job.id.run_attempt > 1)
    }

    /// Whether it says nothing beside `older`: anybody can open a pull request at another's commit and close it, which
    /// has its run cancelled. A job that was cancelled and didn't run there isn't known to be good.
    fn is_needless_after(&self, older: &Self) -> bool {
        self.was_cancelled()
            && !self.ran_again()
            && !older.was_cancelled()
            && self.pull_request != older.pull_request
            && older.is_of_workflow_of(self)
            && self.not_good().all(|job| older.has_run(job))
    }

    /// Whether both are of one workflow. The file isn't known before GitHub was asked. A build elsewhere is never of the
    /// same one as a run on GitHub, or as a build of another pipeline, whatever their names.
    fn is_of_workflow_of(&self, later: &Self) -> bool {
        if self.is_foreign() != later.is_foreign()
            || are_of_two_pipelines(self.pipeline, later.pipeline)
        {
            return false;
        }
        match (self.known, later.known) {
            (Some(run), Some(later)) => run.workflow == later.workflow,
            _ => {
                let name = |run: &Self| run.jobs.first().map(|job| job.id.workflow.clone());
                name(self).is_some() && name(self) == name(later)
            }
        }
    }
}

/// Whether it is known of two builds that they are of two pipelines.
fn are_of_two_pipelines(one: Option<&str>, other: Option<&str>) -> bool {
    one.zip(other).is_some_and(|(one, other)| one != other)
}

/// The runs that count, oldest first: of each workflow the newest one, and those that it doesn't stand for.
fn effective_runs<'a>(answered: &[&'a HeadDispatch<'a>]) -> Vec<EffectiveRun<'a>> {
    let mut runs: Vec<EffectiveRun<'a>> = Vec::new();
    let new = |id: &'a str, known, (asked, dispatch): (usize, &HeadDispatch<'_>)| EffectiveRun {
        id,
        known,
        jobs: vec![],
        pull_request: dispatch.pull_request,
        pipeline: None,
        is_given_up: dispatch.is_given_up,
        order: (id.parse().unwrap_or(0), None),
        asked,
    };
    for (asked, dispatch) in answered.iter().enumerate() {
        for run in dispatch.runs {
            match runs.iter_mut().find(|seen| seen.id == run.id) {
                // It may be any of these.
                Some(seen) => seen.asked = asked,
                None => runs.push(new(&run.id, Some(run), (asked, dispatch))),
            }
        }
    }
    let proven = || {
        let all = answered.iter().flat_map(|dispatch| &dispatch.jobs);
        all.filter(|job| job.proof == ProofStatus::Proven)
    };
    for (asked, dispatch) in answered.iter().enumerate() {
        for job in dispatch.jobs.iter().filter(|job| job.proof == ProofStatus::Proven) {
            let id = job.id.run_id.as_str();
            let index = runs.iter().position(|run| run.has(job)).unwrap_or_else(|| {
                runs.push(new(id, None, (asked, dispatch)));
                runs.len() - 1
            });
            let run = &mut runs[index];
            run.asked = asked;
            run.pipeline = run.pipeline.or(job.pipeline);
            // Its first report: a step of an older build may start long after a newer build did.
            run.order.1 = run.order.1.into_iter().chain(job.heard_at).min();
            let same = |other: &HeadJob<'_>| {
                other.id.workflow == job.id.workflow && other.id.job == job.id.job
            };
            match run.jobs.iter_mut().find(|other| same(other)) {
                Some(other) if other.id.run_attempt < job.id.run_attempt => {
                    // What ends a run isn't taken back by running one of its jobs again.
                    let ends_run = other.ends_run || job.ends_run;
                    *other = HeadJob { ends_run, ..*job };
                }
                Some(other) => other.ends_run |= job.ends_run,
                None => run.jobs.push(*job),
            }
        }
    }
    for job in proven().filter(|job| has_unretried_step(job, proven())) {
        if let Some(run) = runs.iter_mut().find(|run| run.has(job)) {
            run.jobs.push(*job);
        }
    }
    runs.sort_by_key(|run| run.order);
    retain(&mut runs, |runs, index| {
        !runs[..index].iter().any(|older| {
            // What its own pull request has run since then counts instead.
            let is_newest = runs
                .iter()
                .all(|run| !run.follows(older) || (run.was_cancelled() && !run.ran_again()));
            is_newest && runs[index].is_needless_after(older)
        })
    });
    retain(&mut runs, |runs, index| !runs.iter().any(|run| run.follows(&runs[index])));
    // Only those that still count stand for another pull request's: what ran again there may be left out later.
    retain(&mut runs, |runs, index| {
        let run = &runs[index];
        !runs[index + 1..].iter().any(|later| {
            run.is_of_workflow_of(later) && !later.may_be_needless() && later.repeats(run)
        })
    });
    runs
}

fn retain<'a>(
    runs: &mut Vec<EffectiveRun<'a>>,
    counts: impl Fn(&[EffectiveRun<'a>], usize) -> bool,
) {
    let counting: Vec<bool> = (0..runs.len()).map(|index| counts(runs, index)).collect();
    let mut counting = counting.into_iter();
    runs.retain(|_| counting.next().unwrap_or_default());
}

#[cfg(test)]
mod tests;
