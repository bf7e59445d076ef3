//! Generated histories of one commit at one backend, compared with a model that is written in the obvious way.
//!
//! The history is what really happened: which dispatch started which run, and what GitHub and the jobs said. The code
//! under test sees records only, as reports, lists of runs and timers have left them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::checks::downstream_run::{AcceptedSend, ListedRun, RunState, runs_of_dispatch};
use crate::checks::lifecycle::{JobTransition, transition};
use crate::protocol::event::EventName;

const WINDOW: i64 = 60;
const OVERDUE: i64 = 7200;
const FILES: [&str; 2] = ["ci.yml", "lint.yml"];
const SILENT: Conclusion = Conclusion::TimedOut;
const L4: VerdictPolicy = VerdictPolicy { level: Level::L4, silent: SILENT };

/// One thing that happens. Indexes are taken modulo what there is.
#[derive(Debug, Clone)]
enum Step {
    /// The pull request is opened, reopened or pushed back to the commit.
    Accept {
        pull: u64,
        /// 1: as a draft. 2: it has become ready for review, or goes to another branch. 3: to one without an event that
        /// says so.
        kind: u8,
    },
    /// The pull request is closed, or has another head.
    Leave {
        pull: u64,
    },
    /// GitHub takes an unsent dispatch; its runs appear after `delays`.
    Send {
        which: usize,
        delays: [i64; 2],
    },
    /// It never gets there.
    Settle {
        how: u8,
    },
    /// A job reports, perhaps late or twice.
    Report {
        run: usize,
        job: bool,
        end: Option<Conclusion>,
    },
    /// GitHub closes a run. If it failed, a job that never reports may have failed, too.
    Close {
        run: usize,
        end: Option<Conclusion>,
        is_hidden: bool,
    },
    /// Somebody runs a run again.
    Rerun {
        run: usize,
    },
    /// A dispatch's runs are listed; the list may be cut, as when a page fails.
    List {
        dispatch: usize,
        is_cut: bool,
    },
    Wait {
        seconds: i64,
    },
    /// The relay is started again: what it doesn't store is gone.
    Restart,
}

#[derive(Debug, Clone)]
struct TrueRun {
    id: u64,
    dispatch: usize,
    file: usize,
    created: i64,
    attempt: u32,
    state: RunState,
    /// Whether a job failed that never reports.
    hides_failure: bool,
}

/// What a list showed of a run.
#[derive(Debug, Clone, Copy)]
struct SeenRun {
    attempt: u32,
    state: RunState,
    hides_failure: bool,
}

/// A dispatch as the relay has it.
#[derive(Debug, Clone)]
struct Record {
    pull: u64,
    is_draft: bool,
    asks_anew: bool,
    base_branch: &'static str,
    is_abandoned: bool,
    is_strangers: bool,
    status: DispatchStatus,
    sent: Option<i64>,
    runs: Vec<DownstreamRun>,
    shared: Vec<SharedRuns>,
    is_known: bool,
    jobs: BTreeMap<(u64, u32, bool), JobState>,
    /// What a list showed of the true runs, for the model.
    seen: BTreeMap<u64, SeenRun>,
    model_is_known: bool,
}

/// How the runs that count have ended.
struct CountedEnds {
    /// Of their jobs and of themselves, with their pull request.
    all: Vec<(u64, Conclusion)>,
    /// Of their jobs only.
    reported: Vec<Conclusion>,
    is_unknown: bool,
}

#[derive(Debug, Default)]
struct History {
    now: i64,
    are_titled: bool,
    runs: Vec<TrueRun>,
    records: Vec<Record>,
}

fn conclusion() -> impl Strategy<Value = Conclusion> {
    prop_oneof![
        4 => Just(Conclusion::Success),
        2 => Just(Conclusion::Failure),
        1 => Just(Conclusion::Cancelled),
        1 => Just(Conclusion::Skipped),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let delay = || 0..50_i64;
    prop_oneof![
        2 => (1..4_u64, 0..5_u8).prop_map(|(pull, kind)| Step::Accept { pull, kind }),
        1 => (1..4_u64).prop_map(|pull| Step::Leave { pull }),
        3 => (any::<usize>(), delay(), delay())
            .prop_map(|(which, a, b)| Step::Send { which, delays: [a, b] }),
        1 => (0..4_u8).prop_map(|how| Step::Settle { how }),
        6 => (any::<usize>(), any::<bool>(), proptest::option::of(conclusion()))
            .prop_map(|(run, job, end)| Step::Report { run, job, end }),
        4 => (any::<usize>(), proptest::option::weighted(0.9, conclusion()), any::<bool>())
            .prop_map(|(run, end, is_hidden)| Step::Close { run, end, is_hidden }),
        1 => any::<usize>().prop_map(|run| Step::Rerun { run }),
        6 => (any::<usize>(), proptest::bool::weighted(0.1))
            .prop_map(|(dispatch, is_cut)| Step::List { dispatch, is_cut }),
        3 => prop_oneof![1..90_i64, Just(OVERDUE)].prop_map(|seconds| Step::Wait { seconds }),
        1 => Just(Step::Restart),
    ]
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

/// The number of a job's check run. No run has one like it.
fn check_run(run: u64, attempt: u32, job: bool) -> u64 {
    run * 1000 + u64::from(attempt) * 2 + u64::from(job)
}

impl History {
    fn take(&mut self, step: &Step) {
        match step {
            Step::Accept { pull, kind } => {
                self.set_abandoned(*pull, false);
                self.records.push(Record {
                    pull: *pull,
                    is_draft: *kind == 1,
                    asks_anew: *kind == 2,
                    base_branch: if *kind == 3 { "release" } else { "main" },
                    is_abandoned: false,
                    is_strangers: *pull == 3,
                    status: DispatchStatus::Queued,
                    sent: None,
                    runs: vec![],
                    shared: vec![],
                    is_known: false,
                    jobs: BTreeMap::new(),
                    seen: BTreeMap::new(),
                    model_is_known: false,
                });
            }
            Step::Leave { pull } => self.set_abandoned(*pull, true),
            Step::Send { which, delays } => self.send(*which, *delays),
            Step::Settle { how } => {
                let queued =
                    self.records.iter_mut().find(|one| one.status == DispatchStatus::Queued);
                let Some(record) = queued else { return };
                record.status = match how {
                    0 => DispatchStatus::Superseded { by: "newer".to_owned() },
                    1 => DispatchStatus::Withheld,
                    2 => DispatchStatus::LeftOut { why: LeftOut::Event },
                    _ => DispatchStatus::Dead,
                };
            }
            Step::Report { run, job, end } => self.report(*run, *job, *end),
            Step::Close { run, end, is_hidden } => {
                let Some(run) = self.pick(*run) else { return };
                self.runs[run].state = end.map_or(RunState::OverUnknown, RunState::Over);
                self.runs[run].hides_failure = *is_hidden && *end == Some(Conclusion::Failure);
            }
            Step::Rerun { run } => {
                let Some(run) = self.pick(*run) else { return };
                let run = &mut self.runs[run];
                if run.state != RunState::Open {
                    (run.attempt, run.state) = (run.attempt + 1, RunState::Open);
                }
            }
            Step::List { dispatch, is_cut } => self.list(*dispatch, *is_cut),
            Step::Wait { seconds } => self.now += seconds,
            Step::Restart => {
                // Everything that the verdict needs has to survive this.
                for record in &mut self.records {
                    let stored = serde_json::to_string(&(&record.runs, &record.shared)).unwrap();
                    (record.runs, record.shared) = serde_json::from_str(&stored).unwrap();
                }
            }
        }
    }

    fn set_abandoned(&mut self, pull: u64, is_abandoned: bool) {
        for record in self.records.iter_mut().filter(|record| record.pull == pull) {
            record.is_abandoned = is_abandoned;
        }
    }

    /// A run that exists by now.
    fn pick(&self, index: usize) -> Option<usize> {
        let existing: Vec<usize> =
            (0..self.runs.len()).filter(|run| self.runs[*run].created <= self.now).collect();
        (!existing.is_empty()).then(|| existing[index % existing.len()])
    }

    /// In any order: those that failed wait for different times.
    fn send(&mut self, which: usize, delays: [i64; 2]) {
        let is_queued = |one: &usize| self.records[*one].status == DispatchStatus::Queued;
        let queued: Vec<usize> = (0..self.records.len()).filter(is_queued).collect();
        let Some(dispatch) = queued.get(which % queued.len().max(1)).copied() else { return };
        self.records[dispatch].status = DispatchStatus::Sent { at: at(self.now) };
        self.records[dispatch].sent = Some(self.now);
        for (file, delay) in delays.into_iter().enumerate() {
            let id = 100 + self.runs.len() as u64;
            let created = self.now + delay;
            let (attempt, state) = (1, RunState::Open);
            let hides_failure = false;
            self.runs.push(TrueRun { id, dispatch, file, created, attempt, state, hides_failure });
        }
    }

    fn report(&mut self, run: usize, job: bool, end: Option<Conclusion>) {
        let Some(run) = self.pick(run).map(|run| self.runs[run].clone()) else { return };
        let state = end.map_or(JobState::InProgress, JobState::Completed);
        let record = &mut self.records[run.dispatch];
        let known = record.jobs.entry((run.id, run.attempt, job)).or_insert(JobState::Dispatched);
        if let JobTransition::Apply { .. } = transition(*known, state) {
            *known = state;
        }
    }

    fn send_of(&self, dispatch: usize) -> Option<AcceptedSend> {
        let at = at(self.records[dispatch].sent?);
        Some(AcceptedSend {
            delivery: format!("delivery-{dispatch}"),
            event: EventName::PullRequest,
            at,
            is_certain: true,
            author_texts: String::new(),
            late_run_at: None,
        })
    }

    fn list(&mut self, dispatch: usize, is_cut: bool) {
        if self.records.is_empty() {
            return;
        }
        let dispatch = dispatch % self.records.len();
        let Some(own) = self.send_of(dispatch) else { return };
        let others: Vec<_> = (0..self.records.len())
            .filter(|other| *other != dispatch)
            .filter_map(|other| self.send_of(other))
            .collect();
        let window = Duration::from_secs(WINDOW as u64);
        // As the relay does: all runs of the windows of the dispatches that it can be confused with.
        let own_window = own.window(window);
        let windows = others.iter().map(|other| other.window(window));
        let near = windows.filter(|(from, to)| *from <= own_window.1 && own_window.0 <= *to);
        let (from, to) =
            near.fold(own_window, |hull, other| (hull.0.min(other.0), hull.1.max(other.1)));
        let claim = |id: u64| {
            let run = self.runs.iter().find(|run| run.id == id)?;
            let reported = self.records[run.dispatch].jobs.keys().any(|(job, ..)| *job == id);
            reported.then(|| format!("delivery-{}", run.dispatch))
        };
        let mut listed: Vec<ListedRun> = self
            .runs
            .iter()
            .filter(|run| {
                run.created <= self.now && from <= at(run.created) && at(run.created) <= to
            })
            .map(|run| ListedRun {
                id: run.id,
                workflow: FILES[run.file].to_owned(),
                attempt: run.attempt,
                state: run.state,
                created_at: at(run.created),
                title: if self.are_titled {
                    format!("CI of delivery-{}", run.dispatch)
                } else {
                    "CI".to_owned()
                },
            })
            .collect();
        if is_cut {
            listed.pop();
        }
        let claims: BTreeMap<u64, String> =
            listed.iter().filter_map(|run| Some((run.id, claim(run.id)?))).collect();
        let found = runs_of_dispatch(&listed, (from, to), &own, &others, window, |id| {
            claims.get(&id).map(String::as_str)
        });
        let is_undecided = found.shared.iter().any(|group| !group.are_good);
        let is_over = at(self.now) >= if is_undecided { to } else { own_window.1 };
        let shown: Vec<u64> = listed.iter().map(|run| run.id).collect();
        let seen =
            self.runs.iter().filter(|run| run.dispatch == dispatch && shown.contains(&run.id));
        let seen = seen.map(|run| {
            let TrueRun { attempt, state, hides_failure, .. } = *run;
            (run.id, SeenRun { attempt, state, hides_failure })
        });
        let seen = seen.collect();
        let mut own = found.own;
        for run in &mut own {
            run.failed_jobs = run.state.has_failed().then(|| self.failed_jobs(&run.id));
        }
        let record = &mut self.records[dispatch];
        (record.runs, record.shared, record.seen) = (own, found.shared, seen);
        record.is_known = (record.is_known || is_over) && !is_cut;
        record.model_is_known = record.is_known;
    }

    /// The check runs of a run's jobs that GitHub shows as failed.
    fn failed_jobs(&self, id: &str) -> Vec<u64> {
        let run = self.runs.iter().find(|run| run.id.to_string() == id).unwrap();
        let of_run = self.records[run.dispatch].jobs.iter();
        let failed = of_run.filter(|((of, attempt, _), state)| {
            (*of, *attempt) == (run.id, run.attempt)
                && state.conclusion().is_some_and(|end| !end.is_good())
        });
        let reported = failed.map(|((run, attempt, job), _)| check_run(*run, *attempt, *job));
        reported.chain(run.hides_failure.then_some(run.id)).collect()
    }

    /// What the code under test says.
    fn found(&self) -> Option<HeadState> {
        let ids: Vec<Vec<(JobId, JobState)>> =
            self.records.iter().map(|record| self.job_ids(record)).collect();
        let dispatches: Vec<HeadDispatch<'_>> = self
            .records
            .iter()
            .zip(&ids)
            .map(|(record, ids)| HeadDispatch {
                status: &record.status,
                last_error: None,
                pull_request: Some(record.pull),
                is_draft: record.is_draft,
                base_branch: Some(record.base_branch),
                asks_anew: record.asks_anew,
                is_abandoned: record.is_abandoned,
                is_strangers: record.is_strangers,
                is_trial: false,
                held_until: None,
                is_overdue: record.sent.is_some_and(|sent| self.now >= sent + OVERDUE),
                silence: None,
                is_given_up: false,
                are_runs_known: record.is_known,
                runs_problem: None,
                runs: &record.runs,
                shared_runs: &record.shared,
                jobs: ids
                    .iter()
                    .map(|(id, state)| HeadJob {
                        id,
                        state: *state,
                        pull_request: Some(record.pull),
                        event_order: (0, ""),
                        proof: ProofStatus::Proven,
                        heard_at: None,
                        ended_without_proof: false,
                        is_foreign: false,
                        pipeline: None,
                        build_number: None,
                        check_run_id: Some(check_run(
                            id.run_id.parse().unwrap(),
                            id.run_attempt,
                            id.job.as_deref() == Some("true"),
                        )),
                        ends_run: false,
                        steps: StepCounts::default(),
                    })
                    .collect(),
            })
            .collect();
        verdict(&dispatches, L4).map(|found| found.state)
    }

    fn job_ids(&self, record: &Record) -> Vec<(JobId, JobState)> {
        let id = |run: u64, attempt, job: bool| JobId {
            run_id: run.to_string(),
            run_attempt: attempt,
            workflow: FILES[self.file(run)].to_owned(),
            job: Some(job.to_string()),
        };
        record
            .jobs
            .iter()
            .map(|((run, attempt, job), state)| (id(*run, *attempt, *job), *state))
            .collect()
    }

    fn file(&self, run: u64) -> usize {
        self.runs.iter().find(|known| known.id == run).map_or(0, |known| known.file)
    }

    /// The same from what really happened, without a look at how it is computed.
    fn expected(&self) -> Option<HeadState> {
        let answered: Vec<usize> =
            (0..self.records.len()).filter(|one| !self.records[*one].jobs.is_empty()).collect();
        let waits = |record: &Record| match record.status {
            DispatchStatus::Queued => true,
            DispatchStatus::Sent { .. } => {
                record.jobs.is_empty() && record.sent.is_some_and(|sent| self.now < sent + OVERDUE)
            }
            _ => false,
        };
        if answered.is_empty() {
            return self.expected_without_evidence(waits);
        }
        let ends = self.ends_that_count(&answered);
        let only_drafts =
            self.runs_that_count(&answered).iter().all(|run| self.records[run.dispatch].is_draft);
        let answers = |one: usize| -> Vec<usize> {
            let of_pull = answered.iter().copied();
            of_pull.filter(|other| self.records[*other].pull == self.records[one].pull).collect()
        };
        let has_others = |one: usize| answers(one).len() < answered.len();
        let lacks_answer = |one: &usize| answers(*one).iter().all(|other| other < one);
        let unanswered: Vec<usize> = (0..self.records.len()).filter(lacks_answer).collect();
        let asked =
            unanswered.iter().rev().map(|one| (*one, &self.records[*one])).find(|(one, record)| {
                let is_again = !answers(*one).is_empty();
                waits(record)
                    && !record.is_abandoned
                    && ((is_again && !(record.is_strangers && has_others(*one)))
                        || (only_drafts && !record.is_draft))
            });
        if let Some((_, asked)) = asked {
            let is_bad = |(pull, end): &(u64, Conclusion)| *pull != asked.pull && !end.is_good();
            if !ends.as_ref().is_some_and(|ends| ends.all.iter().any(is_bad)) {
                return Some(HeadState::Queued);
            }
        }
        let Some(CountedEnds { all, reported, is_unknown }) = ends else {
            return Some(HeadState::Running);
        };
        let is_untested =
            unanswered.iter().map(|one| (*one, &self.records[*one])).any(|(one, record)| {
                let is_left = (record.is_abandoned || record.is_strangers) && has_others(one);
                let is_asked = matches!(
                    record.status,
                    DispatchStatus::Queued | DispatchStatus::Sent { .. } | DispatchStatus::Dead
                );
                let tested_for =
                    answers(one).last().map(|tested| self.records[*tested].base_branch);
                let is_new = record.asks_anew
                    || tested_for.is_some_and(|branch| branch != record.base_branch);
                is_asked && ((is_new && !is_left) || (only_drafts && !record.is_draft))
            });
        let worst = Conclusion::worst(all.into_iter().map(|(_, end)| end));
        let worst = worst.filter(|end| !end.is_good());
        let only_skipped = reported.iter().all(|end| *end == Conclusion::Skipped);
        Some(HeadState::Ended(match worst {
            Some(end) => end,
            None if is_unknown || only_skipped || is_untested => SILENT,
            None => Conclusion::Success,
        }))
    }

    /// How the runs that count have ended; `None` while one of them is open or isn't known.
    fn ends_that_count(&self, answered: &[usize]) -> Option<CountedEnds> {
        if answered.iter().any(|one| !self.records[*one].model_is_known) {
            return None;
        }
        let (mut all_ends, mut reported) = (vec![], vec![]);
        let mut is_unknown = false;
        for run in self.runs_that_count(answered) {
            let record = &self.records[run.dispatch];
            let SeenRun { attempt, state, .. } = record.seen.get(&run.id)?;
            for job in [false, true] {
                let Some((reported_attempt, end)) = self.newest_report(run, job) else { continue };
                // It runs, or GitHub was asked before this attempt.
                let end = end.conclusion().filter(|_| reported_attempt <= *attempt)?;
                all_ends.push((record.pull, end));
                reported.push(end);
            }
            match state {
                RunState::Open => return None,
                RunState::Over(end) => all_ends.push((record.pull, *end)),
                RunState::OverUnknown => is_unknown = true,
            }
        }
        Some(CountedEnds { all: all_ends, reported, is_unknown })
    }

    /// The runs that were heard of and that count, oldest first.
    fn runs_that_count(&self, answered: &[usize]) -> Vec<&TrueRun> {
        let is_heard_of = |run: &&TrueRun| self.is_listed(run) || self.has_reported(run);
        let of_answered = self.runs.iter().filter(|run| answered.contains(&run.dispatch));
        let mut of_commit: Vec<&TrueRun> = of_answered.filter(is_heard_of).collect();
        let pull = |run: &TrueRun| self.records[run.dispatch].pull;
        let is_next = |run: &TrueRun, older: &TrueRun| {
            self.are_known_to_be_of_one_file(run, older)
                && pull(run) == pull(older)
                && (run.dispatch > older.dispatch
                    || (run.dispatch == older.dispatch
                        && run.id > older.id
                        && self.is_listed(older)
                        && self.tells_all_of(run, older)))
        };
        let all = of_commit.clone();
        // A cancelled run of another pull request that never ran again says nothing beside an older one, if that wasn't
        // followed by one that says something.
        of_commit.retain(|run| {
            let mut older = all
                .iter()
                .filter(|older| self.are_known_to_be_of_one_file(run, older) && older.id < run.id);
            let says_nothing = |run: &TrueRun| self.was_cancelled(run) && !self.ran_again(run);
            let stands = |older: &&TrueRun| {
                pull(older) != pull(run)
                    && !self.was_cancelled(older)
                    && !self.may_turn_out_cancelled(older)
                    && self.may_stand_for(older, run)
                    && self.not_good(run).iter().all(|job| self.has_run(older, *job))
                    && all.iter().all(|next| !is_next(next, older) || says_nothing(next))
            };
            !(says_nothing(run) && older.any(stands))
        });
        // For each pull request, the run of its newest event counts.
        let all = of_commit.clone();
        of_commit.retain(|run| !all.iter().any(|next| is_next(next, run)));
        let all = of_commit.clone();
        of_commit.retain(|run| {
            let mut later = all
                .iter()
                .filter(|later| self.are_known_to_be_of_one_file(run, later) && later.id > run.id);
            !later.any(|later| pull(later) != pull(run) && self.stands_for(later, run))
        });
        of_commit
    }

    fn is_listed(&self, run: &TrueRun) -> bool {
        self.records[run.dispatch].seen.contains_key(&run.id)
    }

    fn has_reported(&self, run: &TrueRun) -> bool {
        self.records[run.dispatch].jobs.keys().any(|(id, ..)| *id == run.id)
    }

    /// The jobs that a run has reported on.
    fn reported_by(&self, run: &TrueRun) -> BTreeSet<bool> {
        let jobs = self.records[run.dispatch].jobs.keys();
        jobs.filter(|(id, ..)| *id == run.id).map(|(_, _, job)| *job).collect()
    }

    /// Whether a run has reported all that an earlier one of the same dispatch did, and has run again what isn't good there.
    fn tells_all_of(&self, run: &TrueRun, older: &TrueRun) -> bool {
        let (known, not_good) = (self.reported_by(older), self.not_good(older));
        let seen = self.records[older.dispatch].seen.get(&older.id);
        let may_have_failed = |state: RunState| !matches!(state, RunState::Over(end) if end.is_good() || end == Conclusion::Cancelled);
        let hides_failure = seen.is_some_and(|seen| match not_good.is_empty() {
            true => may_have_failed(seen.state),
            false => seen.state.has_failed() && seen.hides_failure,
        });
        known.is_empty()
            || (known.is_subset(&self.reported_by(run))
                && not_good.iter().all(|job| self.has_run(run, *job))
                && !hides_failure)
    }

    /// The list tells the file of a run, and a report the name of its workflow.
    fn are_known_to_be_of_one_file(&self, one: &TrueRun, other: &TrueRun) -> bool {
        let is_told = (self.is_listed(one) && self.is_listed(other))
            || (self.has_reported(one) && self.has_reported(other));
        one.file == other.file && is_told
    }

    /// The jobs of a run whose newest report isn't a good end.
    fn not_good(&self, run: &TrueRun) -> Vec<bool> {
        let is_bad = |job: &bool| {
            let state = self.newest_report(run, *job).map(|(_, state)| state);
            state.is_some_and(|state| !state.conclusion().is_some_and(Conclusion::is_good))
        };
        [false, true].into_iter().filter(is_bad).collect()
    }

    /// Whether the job has run to its end in a run, and wasn't skipped or cancelled there.
    fn has_run(&self, run: &TrueRun, job: bool) -> bool {
        let nothing = [Conclusion::Skipped, Conclusion::Cancelled];
        let end = self.newest_report(run, job).and_then(|(_, state)| state.conclusion());
        end.is_some_and(|end| !nothing.contains(&end))
    }

    /// The newest attempt of a job that was heard of, and its state.
    fn newest_report(&self, run: &TrueRun, job: bool) -> Option<(u32, JobState)> {
        let jobs = self.records[run.dispatch].jobs.iter();
        let of_job = jobs.filter(|((id, _, name), _)| (*id, *name) == (run.id, job));
        of_job
            .map(|((_, attempt, _), state)| (*attempt, *state))
            .max_by_key(|(attempt, _)| *attempt)
    }

    fn ran_again(&self, run: &TrueRun) -> bool {
        let record = &self.records[run.dispatch];
        let is_later =
            |((id, attempt, _), _): (&(u64, u32, bool), _)| *id == run.id && *attempt > 1;
        record.seen.get(&run.id).is_some_and(|seen| seen.attempt > 1)
            || record.jobs.iter().any(is_later)
    }

    /// Whether a run is over, and the worst of it is that it was cancelled.
    fn was_cancelled(&self, run: &TrueRun) -> bool {
        let Some(SeenRun { attempt, state: RunState::Over(own), .. }) =
            self.records[run.dispatch].seen.get(&run.id)
        else {
            return false;
        };
        let mut ends = vec![*own];
        for (of_attempt, state) in
            [false, true].map(|job| self.newest_report(run, job)).iter().flatten()
        {
            match state.conclusion() {
                Some(end) if of_attempt <= attempt => ends.push(end),
                _ => return false,
            }
        }
        Conclusion::worst(ends) == Some(Conclusion::Cancelled)
    }

    /// Whether a run was cancelled, and the end of a job isn't known.
    fn may_turn_out_cancelled(&self, run: &TrueRun) -> bool {
        let seen = self.records[run.dispatch].seen.get(&run.id);
        let was_cancelled =
            seen.is_some_and(|seen| seen.state == RunState::Over(Conclusion::Cancelled));
        let is_open = |job| self.newest_report(run, job).is_some_and(|(_, state)| state.is_open());
        was_cancelled && [false, true].into_iter().any(is_open)
    }

    /// Whether a run is for what another one was for: another branch's, or a draft's, may have fewer jobs, or test less.
    fn may_stand_for(&self, run: &TrueRun, other: &TrueRun) -> bool {
        let (own, other) = (&self.records[run.dispatch], &self.records[other.dispatch]);
        let is_alike = own.base_branch == other.base_branch && own.is_draft <= other.is_draft;
        other.is_abandoned || is_alike
    }

    /// Whether the older run doesn't count beside a later one of its workflow, for another pull request: it is over and all
    /// of it that isn't good ran again.
    fn stands_for(&self, later: &TrueRun, older: &TrueRun) -> bool {
        let record = &self.records[older.dispatch];
        let Some(SeenRun { attempt, state, hides_failure }) = record.seen.get(&older.id) else {
            return false;
        };
        let cancelled = RunState::Over(Conclusion::Cancelled);
        let not_good = self.not_good(older);
        // Jobs that a cancelled one didn't get to never reported.
        if (*state == cancelled || !not_good.is_empty()) && !self.may_stand_for(later, older) {
            return false;
        }
        // What was cancelled, and may say nothing once its open job is lost, stands for nothing.
        if self.may_turn_out_cancelled(later) {
            return false;
        }
        let reported = [false, true].into_iter().filter_map(|job| self.newest_report(older, job));
        let newest = reported.map(|(attempt, _)| attempt).max();
        if *state == RunState::Open || newest.is_some_and(|newest| newest > *attempt) {
            return false;
        }
        let may_have_failed = !matches!(
            state,
            RunState::Over(end) if end.is_good() || *end == Conclusion::Cancelled
        );
        if *hides_failure || (may_have_failed && not_good.is_empty()) {
            return false;
        }
        not_good.iter().all(|job| self.has_run(later, *job))
    }

    fn expected_without_evidence(&self, waits: impl Fn(&Record) -> bool) -> Option<HeadState> {
        if self.records.is_empty() {
            return None;
        }
        // Nobody waits for a pull request that has left the commit while another one is there.
        let is_left = self.records.iter().all(|one| one.is_abandoned);
        let counted = || self.records.iter().filter(|one| is_left || !one.is_abandoned);
        if counted().any(waits) {
            return Some(HeadState::Queued);
        }
        let any = |test: fn(&DispatchStatus) -> bool| counted().any(|one| test(&one.status));
        let failed =
            any(|status| matches!(status, DispatchStatus::Sent { .. } | DispatchStatus::Dead));
        Some(HeadState::Ended(if failed {
            SILENT
        } else if any(|status| *status == DispatchStatus::Withheld) {
            Conclusion::Neutral
        } else if any(|status| matches!(status, DispatchStatus::LeftOut { .. })) {
            Conclusion::Skipped
        } else {
            Conclusion::ActionRequired
        }))
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    /// With the delivery in their titles, all runs are told apart, and the verdict is the model's after every step.
    #[test]
    fn verdict_is_the_plain_models_after_every_step(steps in vec(step(), 1..60)) {
        let mut history = History { are_titled: true, ..History::default() };
        for step in &steps {
            history.take(step);
            prop_assert_eq!(history.found(), history.expected(), "after {:?}: {:#?}", step, history);
        }
    }

    /// Without titles some runs can't be told apart. Then the verdict may be worse than what really happened, or wait
    /// longer, and is never success where the model's isn't.
    #[test]
    fn verdict_is_never_better_than_what_really_happened(steps in vec(step(), 1..60)) {
        let mut history = History::default();
        for step in &steps {
            history.take(step);
            if history.found() == Some(HeadState::Ended(Conclusion::Success)) {
                let expected = history.expected();
                prop_assert_eq!(
                    expected, Some(HeadState::Ended(Conclusion::Success)), "after {:?}: {:#?}", step, history
                );
            }
        }
    }
}
