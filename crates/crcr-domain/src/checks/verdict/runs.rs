//! The runs that the verdict depends on: of each workflow the newest one, and those of other pull requests that it
//! doesn't stand for.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;

use super::{HeadDispatch, HeadJob};
use crate::checks::downstream_run::{DownstreamRun, RunState};
use crate::checks::lifecycle::Conclusion;
use crate::checks::proof::ProofStatus;

/// A run that the verdict depends on, with the newest attempt of each of its proven jobs.
pub(crate) struct EffectiveRun<'a> {
    pub(crate) id: &'a str,
    /// `None`: GitHub hasn't been asked about it yet, or it is elsewhere.
    known: Option<&'a DownstreamRun>,
    pub(crate) jobs: Vec<HeadJob<'a>>,
    /// The first dispatch that it may be of.
    pub(crate) dispatch: &'a HeadDispatch<'a>,
    /// As in [`HeadJob::pipeline`].
    pipeline: Option<&'a str>,
    /// As in [`HeadJob::build_number`].
    build_number: Option<u64>,
    /// Orders the runs of one workflow: by GitHub's increasing ids or a pipeline's build numbers, or by time.
    order: (u64, Option<Timestamp>),
    /// The position of the last dispatch that it may be of. Of one pull request it orders runs before `order` does: the
    /// dispatch of an earlier event may have been sent later.
    position: usize,
}

impl<'a> EffectiveRun<'a> {
    pub(crate) fn is_foreign(&self) -> bool {
        self.jobs.iter().any(|job| job.is_foreign)
    }

    /// Whether the job is one of it.
    fn has(&self, job: &HeadJob<'_>) -> bool {
        self.is_foreign() == job.is_foreign
            && is_one_run((self.id, self.pipeline, self.build_number), job.run_name())
    }

    /// Adds what a job has reported. Of its attempts the newest counts. A build that was named in two ways may have two
    /// records of an attempt: the worse end counts.
    fn add(&mut self, job: &HeadJob<'a>) {
        self.pipeline = self.pipeline.or(job.pipeline);
        self.build_number = self.build_number.or(job.build_number);
        self.order.0 = self.build_number.unwrap_or(self.order.0);
        // Its first report: a step of an older build may start long after a newer build did.
        self.order.1 = self.order.1.into_iter().chain(job.heard_at).min();
        let (workflow, name) = (&job.id.workflow, &job.id.job);
        let known =
            self.jobs.iter_mut().find(|one| (&one.id.workflow, &one.id.job) == (workflow, name));
        let Some(known) = known else { return self.jobs.push(*job) };
        let rank = |one: &HeadJob<'_>| {
            (one.id.run_attempt, one.state.conclusion().map(Conclusion::severity))
        };
        // What ends a run isn't taken back by running one of its jobs again.
        let ends_run = known.ends_run || job.ends_run;
        if rank(known) < rank(job) {
            *known = *job;
        }
        known.ends_run = ends_run;
    }

    fn open_job(&self) -> Option<&HeadJob<'a>> {
        self.jobs.iter().find(|job| job.state.is_open() && !job.ended_without_proof)
    }

    pub(crate) fn open_reason(&self) -> String {
        match (self.open_job(), self.known.map(|run| run.state)) {
            (Some(job), Some(state)) if state != RunState::Open => {
                let job = job.id.job.as_deref().unwrap_or("a job");
                format!("Waiting for the end of job `{job}`, which was never reported")
            }
            _ => "Running".to_owned(),
        }
    }

    /// GitHub's state of the run only counts if it isn't older than the newest reported attempt.
    pub(crate) fn is_open(&self) -> bool {
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
        self.dispatch.is_given_up && self.known.is_none_or(|run| run.state != RunState::Open)
    }

    pub(crate) fn is_unknown(&self) -> bool {
        !self.is_over() || self.known.is_some_and(|run| run.state == RunState::OverUnknown)
    }

    /// The worst of GitHub's conclusion and the reported ones, when it isn't open.
    pub(crate) fn conclusion(&self) -> Option<Conclusion> {
        let own = match self.known.map(|run| run.state) {
            Some(RunState::Over(own)) => Some(own),
            _ => None,
        };
        // In a run that isn't open, a job without an end has one without proof.
        let ends =
            self.counted_jobs().map(|job| job.state.conclusion().unwrap_or(Conclusion::Cancelled));
        Conclusion::worst(ends.chain(own))
    }

    /// Its jobs, without those in whose place others ran.
    pub(crate) fn counted_jobs(&self) -> impl Iterator<Item = &HeadJob<'a>> {
        self.jobs.iter().filter(|job| !self.is_replaced(job))
    }

    /// Whether a later attempt, which ended well, ran in the place of the job under another name.
    fn is_replaced(&self, job: &HeadJob<'_>) -> bool {
        self.known.is_some_and(|run| {
            run.state.is_good()
                && job.id.run_attempt < run.attempt
                && run.replaced_jobs.contains(job.id)
        })
    }

    /// Whether it is the next run of the workflow for the same pull request, or a later one. If GitHub got a dispatch twice,
    /// both runs count until the second one has reported all that the first one did.
    fn follows(&self, older: &Self) -> bool {
        if self.position == older.position && !self.tells_all_of(older) {
            return false;
        }
        // One dispatch starts all workflow files, of which two may have one name.
        let is_of_known_file = older.known.is_some() || older.is_foreign();
        (self.position > older.position || is_of_known_file)
            && self.dispatch.pull_request == older.dispatch.pull_request
            && (self.position, self.order) > (older.position, older.order)
            && older.is_of_workflow_of(self)
    }

    /// Whether everything that isn't known to be good of another pull request's run has run here again. A workflow may
    /// leave out jobs, such as for a draft or another base branch, and so says nothing about them.
    fn repeats(&self, other: &Self) -> bool {
        if !other.is_over() {
            // What it is still going to run isn't known.
            return false;
        }
        let is_good = other.not_good().next().is_none();
        if (other.was_cut() || !is_good) && !self.covers(other) {
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

    /// Whether it has reported all that an earlier run of the same dispatch did, and has run again what isn't good there.
    fn tells_all_of(&self, older: &Self) -> bool {
        let hides_failure = || older.known.is_some_and(|run| older.hides_failure(run));
        older.jobs.is_empty()
            || (older.jobs.iter().all(|job| self.has_job_of(job))
                && older.not_good().all(|job| self.has_run(job))
                && !hides_failure())
    }

    /// Whether it has reported on a job of another run.
    fn has_job_of(&self, job: &HeadJob<'_>) -> bool {
        let mut own = self.jobs.iter().map(|own| (&own.id.workflow, &own.id.job));
        own.any(|own| own == (&job.id.workflow, &job.id.job))
    }

    /// Its jobs that aren't known to be good.
    fn not_good(&self) -> impl Iterator<Item = &HeadJob<'a>> {
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

    /// Whether GitHub has cancelled it, so that jobs which never reported may not have run.
    fn was_cut(&self) -> bool {
        self.known.is_some_and(|run| run.state == RunState::Over(Conclusion::Cancelled))
    }

    /// Whether it may stand for what another pull request's run failed in, or was cancelled before. For a draft or another
    /// branch a workflow may leave out jobs, and a job of the same name may test less, or another merge. Nobody waits for a
    /// pull request that has left the commit.
    fn covers(&self, other: &Self) -> bool {
        let (own, of_other) = (self.dispatch, other.dispatch);
        of_other.is_abandoned
            || (own.base_branch == of_other.base_branch && (of_other.is_draft || !own.is_draft))
    }

    /// Whether it is a build of a pull request that has left the commit, and the last that was heard of it is that something
    /// of it was cancelled or lost: the step that says that a build is over doesn't run then.
    fn was_left(&self) -> bool {
        self.is_foreign()
            && self.dispatch.is_abandoned
            && !self.is_over()
            && self.open_job().is_none()
            && self.not_good().next().is_some()
            && self.not_good().all(HeadJob::says_nothing)
    }

    /// Whether it was cancelled before anything failed. A job that is killed may not get to report its end, and is lost. What
    /// became of one whose end has no proof isn't known, unless GitHub has cancelled the run.
    fn was_cancelled(&self) -> bool {
        let has_proof = |job: &HeadJob<'_>| !(job.state.is_open() && job.ended_without_proof);
        let has_cancelled = self.conclusion() == Some(Conclusion::Cancelled);
        let is_known = !self.is_open() && !self.is_unknown();
        is_known
            && ((has_cancelled && self.jobs.iter().all(has_proof))
                || (self.was_cut() && self.not_good().all(HeadJob::says_nothing)))
    }

    /// Whether it is over, and was not cancelled.
    fn says_something(&self) -> bool {
        !self.is_open() && !self.is_unknown() && !self.was_cancelled()
    }

    /// Whether GitHub has cancelled it, and the end of a job isn't known. If that is lost, the run may say nothing.
    fn may_be_needless(&self) -> bool {
        self.was_cut() && self.open_job().is_some()
    }

    /// Whether it or a job of it has an earlier attempt, which said something.
    fn ran_again(&self) -> bool {
        self.known.is_some_and(|run| run.attempt > 1)
            || self.jobs.iter().any(|job| job.id.run_attempt > 1)
    }

    /// Whether it says nothing beside `older`: anybody can open a pull request at another's commit and close it, which
    /// has its run cancelled. A job that was cancelled and didn't run there isn't known to be good.
    fn is_needless_after(&self, older: &Self) -> bool {
        (self.was_cancelled() || self.was_left())
            && !self.ran_again()
            && !older.was_cancelled()
            && !older.may_be_needless()
            && older.covers(self)
            && self.dispatch.pull_request != older.dispatch.pull_request
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

impl HeadJob<'_> {
    /// Whether both are of one run.
    pub fn is_of_run_of(&self, other: &HeadJob<'_>) -> bool {
        self.is_foreign == other.is_foreign && is_one_run(self.run_name(), other.run_name())
    }

    fn run_name(&self) -> (&str, Option<&str>, Option<u64>) {
        (&self.id.run_id, self.pipeline, self.build_number)
    }
}

/// Whether two ids, each with the pipeline and the number of a build elsewhere, are of one run. Two pipelines may have
/// builds of one number, and reports name a build by its id or its number.
fn is_one_run(
    (id, pipeline, number): (&str, Option<&str>, Option<u64>),
    (other_id, of_other, other_number): (&str, Option<&str>, Option<u64>),
) -> bool {
    let is_same_build = number.is_some() && number == other_number;
    (id == other_id || is_same_build) && !are_of_two_pipelines(pipeline, of_other)
}

/// Whether it is known of two builds that they are of two pipelines.
fn are_of_two_pipelines(one: Option<&str>, other: Option<&str>) -> bool {
    one.zip(other).is_some_and(|(one, other)| one != other)
}

/// The runs that count, oldest first: of each workflow the newest one, and those that it doesn't stand for.
pub(crate) fn effective_runs<'a>(answered: &[&'a HeadDispatch<'a>]) -> Vec<EffectiveRun<'a>> {
    let mut runs = all_runs(answered);
    retain(&mut runs, |run, near| {
        !near.before(run).any(|older| {
            run.is_needless_after(older)
                // What its own pull request has run since then counts instead.
                && near.of(older).iter().all(|next| {
                    !next.follows(older) || (next.was_cancelled() && !next.ran_again())
                })
        })
    });
    retain(&mut runs, |run, near| !near.of(run).iter().any(|next| next.follows(run)));
    // Only those that still count stand for another pull request's: what ran again there may be left out later.
    retain(&mut runs, |run, near| {
        !near.after(run).any(|later| {
            run.dispatch.pull_request != later.dispatch.pull_request
                && run.is_of_workflow_of(later)
                && !later.may_be_needless()
                && later.repeats(run)
        })
    });
    runs
}

/// Those of these dispatches, by their index, that have been replaced: a later run for the same pull request counts
/// instead of each of their runs, whatever else happens.
pub(crate) fn replaced<'a>(answered: &[&'a HeadDispatch<'a>]) -> Vec<usize> {
    let runs = all_runs(answered);
    let near = NearRuns::new(&runs);
    let is_followed = |run: &EffectiveRun<'a>| {
        near.of(run).iter().any(|next| next.follows(run) && next.says_something())
    };
    let live: Vec<&EffectiveRun<'a>> = runs.iter().filter(|run| !is_followed(run)).collect();
    let live_ids: HashSet<&str> = live.iter().map(|run| run.id).collect();
    let is_live = |job: &HeadJob<'a>| {
        live_ids.contains(job.id.run_id.as_str())
            || (job.is_foreign && live.iter().any(|run| run.has(job)))
    };
    let is_replaced = |dispatch: &HeadDispatch<'a>| {
        dispatch.are_runs_known
            && dispatch.shared_runs.is_empty()
            && !dispatch.runs.iter().any(|run| live_ids.contains(run.id.as_str()))
            && !dispatch.jobs.iter().any(is_live)
    };
    (0..answered.len()).filter(|index| is_replaced(answered[*index])).collect()
}

/// The runs of these dispatches, oldest first.
fn all_runs<'a>(answered: &[&'a HeadDispatch<'a>]) -> Vec<EffectiveRun<'a>> {
    let mut runs: Vec<EffectiveRun<'a>> = Vec::new();
    let new = |id: &'a str, known, (position, dispatch)| EffectiveRun {
        id,
        known,
        jobs: vec![],
        dispatch,
        pipeline: None,
        build_number: None,
        order: (id.parse().unwrap_or(0), None),
        position,
    };
    let answered = || answered.iter().copied().enumerate();
    let mut by_id: HashMap<&str, usize> = HashMap::new();
    for (position, dispatch) in answered() {
        for run in dispatch.runs {
            let index = *by_id.entry(&run.id).or_insert_with(|| {
                runs.push(new(&run.id, Some(run), (position, dispatch)));
                runs.len() - 1
            });
            // It may be any of these.
            runs[index].position = position;
        }
    }
    let proven = || {
        let all = answered().flat_map(|(position, dispatch)| {
            dispatch.jobs.iter().map(move |job| (position, dispatch, job))
        });
        all.filter(|(.., job)| job.proof == ProofStatus::Proven)
    };
    for (position, dispatch, job) in proven() {
        let named = by_id.get(job.id.run_id.as_str()).copied().filter(|run| runs[*run].has(job));
        let index = named.or_else(|| runs.iter().position(|run| run.has(job)));
        let index = index.unwrap_or_else(|| {
            runs.push(new(&job.id.run_id, None, (position, dispatch)));
            runs.len() - 1
        });
        runs[index].position = position;
        runs[index].add(job);
    }
    let jobs = || proven().map(|(.., job)| job);
    for job in jobs().filter(|job| has_unretried_step(job, jobs())) {
        if let Some(run) = runs.iter_mut().find(|run| run.has(job)) {
            run.jobs.push(*job);
        }
    }
    runs.sort_by_key(|run| run.order);
    runs
}

fn retain<'a>(
    runs: &mut Vec<EffectiveRun<'a>>,
    counts: impl Fn(&EffectiveRun<'a>, &NearRuns<'_, 'a>) -> bool,
) {
    let near = NearRuns::new(runs);
    let counting: Vec<bool> = runs.iter().map(|run| counts(run, &near)).collect();
    let mut counting = counting.into_iter();
    runs.retain(|_| counting.next().unwrap_or_default());
}

/// For each run those that may be of its workflow, oldest first: a commit may have thousands of runs, of many workflows.
struct NearRuns<'r, 'a> {
    all: Vec<&'r EffectiveRun<'a>>,
    by_file: HashMap<&'a str, Vec<&'r EffectiveRun<'a>>>,
}

impl<'r, 'a> NearRuns<'r, 'a> {
    fn new(runs: &'r [EffectiveRun<'a>]) -> Self {
        let file = |run: &EffectiveRun<'a>| run.known.map(|run| run.workflow.as_str());
        let files = runs.iter().filter_map(file);
        let mut by_file: HashMap<&str, Vec<_>> = files.map(|file| (file, vec![])).collect();
        for run in runs {
            match file(run) {
                Some(file) => by_file.entry(file).or_default().push(run),
                // The file isn't known before GitHub was asked.
                None => by_file.values_mut().for_each(|near| near.push(run)),
            }
        }
        Self { all: runs.iter().collect(), by_file }
    }

    fn of(&self, run: &EffectiveRun<'a>) -> &[&'r EffectiveRun<'a>] {
        let of_file = run.known.and_then(|run| self.by_file.get(run.workflow.as_str()));
        of_file.unwrap_or(&self.all)
    }

    fn before(&self, run: &EffectiveRun<'a>) -> impl Iterator<Item = &'r EffectiveRun<'a>> {
        self.of(run).iter().copied().take_while(|other| !std::ptr::eq(*other, run))
    }

    fn after(&self, run: &EffectiveRun<'a>) -> impl Iterator<Item = &'r EffectiveRun<'a>> {
        self.of(run).iter().copied().skip_while(|other| !std::ptr::eq(*other, run)).skip(1)
    }
}

/// Whether more steps of an attempt are without success than its next attempt ran again. Each step of a build elsewhere
/// is retried alone, so one that wasn't retried keeps its result.
pub(crate) fn has_unretried_step<'a>(
    job: &HeadJob<'_>,
    mut others: impl Iterator<Item = &'a HeadJob<'a>>,
) -> bool {
    job.is_foreign
        && others.any(|next| {
            let (of, next_id) = (job.id, next.id);
            job.is_of_run_of(next)
                && (&of.workflow, &of.job) == (&next_id.workflow, &next_id.job)
                && next_id.run_attempt == of.run_attempt + 1
                && (1..job.steps.without_success).contains(&next.steps.reported)
        })
}
