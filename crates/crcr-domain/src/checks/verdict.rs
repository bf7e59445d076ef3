//! The verdict of one backend on one upstream commit, which the check run `crcr/<owner>/<repo>/relay/dispatch`
//! shows. `docs/decisions/verdict.md` is the rule in words.
//!
//! It is computed from the stored dispatches, downstream runs and reported jobs whenever one of them
//! changes, and never stored itself. So an old verdict can't override a re-run or a late report.

#[cfg(test)]
mod model;
mod runs;

use jiff::Timestamp;
use runs::{EffectiveRun, effective_runs, has_unretried_step, replaced};

use crate::allowlist::level::Level;
use crate::checks::downstream_run::{DownstreamRun, SharedRuns};
use crate::checks::lifecycle::{Conclusion, JobState};
use crate::checks::proof::{MissingProof, ProofStatus};
use crate::probes::LeftOut;
use crate::protocol::callback::JobId;
use crate::protocol::dispatch::DispatchStatus;

/// A dispatch of the commit to the backend.
#[derive(Debug, Clone)]
pub struct HeadDispatch<'a> {
    pub status: &'a DispatchStatus,
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
    /// Whether its pull request's author hasn't contributed to upstream before.
    pub is_strangers: bool,
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
    /// Orders the dispatches of a pull request by the events that caused them: their time in milliseconds and, as two may
    /// come in one, their delivery.
    pub event_order: (i64, &'a str),
    pub proof: ProofStatus,
    /// When the first report came in. Orders runs without numbers.
    pub heard_at: Option<Timestamp>,
    /// Whether its start was proven, but not its end.
    pub ended_without_proof: bool,
    /// Whether it ran elsewhere than on GitHub, so that nobody can be asked about its run.
    pub is_foreign: bool,
    /// The number of a build elsewhere in its pipeline, if its tokens say it. A report may name the build by its id.
    pub build_number: Option<u64>,
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
        let is_again = dispatches[..*index].iter().any(|one| asked.is_answered_by(one))
            && !(asked.is_strangers && asked.is_beside_others(dispatches));
        asked.waits()
            && !asked.is_abandoned
            && !is_answered_later(dispatches, *index)
            && (is_again || are_only_of_drafts_for(asked, &evidence.runs))
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

/// The jobs that the verdict rests on, by their runs.
pub fn counted_jobs<'a>(dispatches: &'a [HeadDispatch<'a>]) -> Vec<Vec<&'a JobId>> {
    let jobs_of = |run: EffectiveRun<'a>| run.jobs.iter().map(|job| job.id).collect();
    Evidence::new(dispatches).runs.into_iter().map(jobs_of).collect()
}

/// The ids of the backend's own runs that count and have failed.
pub fn failed_runs<'a>(dispatches: &'a [HeadDispatch<'a>]) -> Vec<&'a str> {
    let has_failed = |run: &EffectiveRun<'a>| {
        let is_over = !run.is_foreign() && !run.is_open();
        is_over && run.conclusion().is_some_and(|end| !end.is_good())
    };
    Evidence::new(dispatches).runs.into_iter().filter(has_failed).map(|run| run.id).collect()
}

/// The dispatches, by their index, that say nothing any more: for each of their runs, one that their pull request has
/// had since counts instead.
pub fn replaced_dispatches(dispatches: &[HeadDispatch<'_>]) -> Vec<usize> {
    let answered: Vec<usize> =
        (0..dispatches.len()).filter(|index| dispatches[*index].is_answered()).collect();
    let of_answered: Vec<_> = answered.iter().map(|index| &dispatches[*index]).collect();
    replaced(&of_answered).into_iter().map(|index| answered[index]).collect()
}

/// The job whose result its check run shows: of `jobs`, proven ones of one name, each with the file of its workflow or
/// its pipeline if that is known, and heard of when the first job of its run was. Of each file the newest run and
/// attempt counts, of a pull request that of its newest event, unless it was left out there for another pull request; of
/// several files the worst.
pub fn job_to_show(jobs: &[(HeadJob<'_>, Option<&str>)]) -> Option<usize> {
    let order = |job: &HeadJob<'_>| {
        let number = job.build_number.or(job.id.run_id.parse().ok());
        (number.unwrap_or(0), job.heard_at, job.id.run_attempt)
    };
    let newest_of_run = |a: &HeadJob<'_>, b: &HeadJob<'_>| {
        if a.is_of_run_of(b) {
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
                .filter(|other| !(is_unretried && other.is_of_run_of(job)))
                .all(|other| !is_after(other, job))
        };
        among.iter().copied().filter(is_newest).collect::<Vec<usize>>()
    };
    let counted = (0..jobs.len()).filter(|index| !is_needless(index)).collect();
    // A dispatch that was sent late is still of the earlier event.
    let of_pulls = newest(counted, &|other, job| {
        other.pull_request == job.pull_request
            && other.event_order.cmp(&job.event_order).then(newest_of_run(other, job)).is_gt()
    });
    let shown = newest(of_pulls, &|other, job| newest_of_run(other, job).is_gt());
    let weight = |index: &usize| match jobs[*index].0.state.conclusion() {
        Some(end) if end.is_good() => (0, end.severity()),
        None => (1, 0),
        Some(end) => (2, end.severity()),
    };
    shown.into_iter().max_by_key(weight)
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

/// The verdict while no dispatch has a proven report.
fn verdict_without_evidence(
    dispatches: &[HeadDispatch<'_>],
    policy: VerdictPolicy,
) -> Option<HeadVerdict> {
    let shows = |state, reason| Some(HeadVerdict { state, run: None, is_foreign: false, reason });
    // Nobody waits for a pull request that has left the commit while another one is there.
    let is_there = |one: &HeadDispatch<'_>| one.pull_request.is_some() && !one.is_abandoned;
    let has_one = dispatches.iter().any(is_there);
    let counted = || dispatches.iter().filter(|one| !(has_one && one.is_abandoned));
    if let Some(waiting) = counted().rev().find(|dispatch| dispatch.waits()) {
        return shows(HeadState::Queued, waiting.waiting_reason());
    }
    // The newest dispatch of the most important kind. Another author's draft, or a closed pull request, doesn't hide why this
    // one isn't tested.
    let rank = |one: &&HeadDispatch<'_>| (one.silence_kind(), !one.is_abandoned, !one.is_strangers);
    let dispatch = counted().max_by_key(rank)?;
    // A required check that was skipped lets the commit be merged, and it may become a head again.
    let untested =
        if policy.level == Level::L4 { Conclusion::ActionRequired } else { Conclusion::Skipped };
    let why = dispatch.last_error.unwrap_or("unknown");
    match dispatch.silence_kind() {
        Silence::Superseded => {
            let reason = "Superseded by a newer event of its pull request before it was tested";
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

    /// Whether another pull request has an answer.
    fn is_beside_others(&self, all: &[Self]) -> bool {
        all.iter().any(|one| one.is_answered() && one.pull_request != self.pull_request)
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

/// Whether all that counts is of drafts, for which a workflow may leave out jobs, and what is asked for is of none.
fn are_only_of_drafts_for(asked: &HeadDispatch<'_>, runs: &[EffectiveRun<'_>]) -> bool {
    !asked.is_draft && runs.iter().all(|run| run.dispatch.is_draft)
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
        let runs = effective_runs(&answered);
        let untested = (0..dispatches.len()).find_map(|index| {
            let asked = &dispatches[index];
            if !asked.is_in_vain() || is_answered_later(dispatches, index) {
                return None;
            }
            // What is known of the commit from others isn't taken back by a pull request that has left it, or that anybody
            // may have opened there.
            let matters =
                !((asked.is_abandoned || asked.is_strangers) && asked.is_beside_others(dispatches));
            let is_new = asked.asks_anew || asked.goes_to_another_branch(&dispatches[..index]);
            if is_new && matters {
                return Some(
                    "No report came in since it became ready for review, or goes to another branch",
                );
            }
            are_only_of_drafts_for(asked, &runs).then_some("It was tested as a draft only")
        });
        Self {
            shared: shared.collect(),
            incomplete: incomplete.map(|(_, dispatch)| *dispatch),
            untested,
            runs,
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
            && self.runs.iter().any(|run| run.dispatch.pull_request != pull_request && is_bad(run))
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
        let mut counted = self.runs.iter().flat_map(EffectiveRun::counted_jobs).peekable();
        if counted.peek().is_some() && counted.all(HeadJob::is_skipped) {
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

#[cfg(test)]
mod tests;
