//! The verdict of one backend on one upstream head, which the check run
//! `crcr/<owner>/<repo>/relay/dispatch` shows.
//!
//! It is computed from the stored dispatches, downstream runs and reported jobs whenever one of them
//! changes, and never stored itself. So an old verdict can't override a re-run or a late report.

use jiff::Timestamp;

use crate::callback::JobId;
use crate::dispatch::DispatchStatus;
use crate::downstream_run::{DownstreamRun, RunState};
use crate::lifecycle::{Conclusion, JobState};
use crate::proof::{MissingProof, ProofStatus};

/// A dispatch of the head.
#[derive(Debug, Clone)]
pub struct HeadDispatch<'a> {
    pub status: &'a DispatchStatus,
    /// Why the last try failed.
    pub last_error: Option<&'a str>,
    /// Whether the time for a first report is over.
    pub is_overdue: bool,
    pub runs: &'a [DownstreamRun],
    /// The jobs that reported for it.
    pub jobs: Vec<HeadJob<'a>>,
}

/// A reported job.
#[derive(Debug, Clone, Copy)]
pub struct HeadJob<'a> {
    pub id: &'a JobId,
    pub state: JobState,
    pub proof: ProofStatus,
    /// When the first report came in. Orders runs whose ids have no order.
    pub heard_at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeadVerdict {
    pub standing: HeadState,
    /// The run to link and to re-run.
    pub run: Option<String>,
    pub reason: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadState {
    Queued,
    Running,
    Ended(Conclusion),
}

/// The verdict for all dispatches of one head to one backend, the newest last: the verdict waits for that one.
/// `silent`: the conclusion for a backend that can't be reached or doesn't report its result. `None` without
/// dispatches.
pub fn head_verdict(dispatches: &[HeadDispatch<'_>], silent: Conclusion) -> Option<HeadVerdict> {
    let newest = dispatches.last()?;
    let runs = effective_runs(dispatches);
    let open = runs.iter().find(|run| run.is_open()).or(runs.last());
    let current = open.map(|run| run.id.to_owned());
    if !newest.jobs.iter().any(|job| job.proof == ProofStatus::Proven) {
        return Some(verdict_without_report(newest, current, silent));
    }
    if let Some(run) = runs.iter().find(|run| run.is_open()) {
        return Some(HeadVerdict {
            standing: HeadState::Running,
            run: Some(run.id.to_owned()),
            reason: "Running".to_owned(),
        });
    }
    let worst = runs.iter().max_by_key(|run| run.conclusion().map_or(0, |end| 1 + end.severity()));
    let conclusion = worst.and_then(EffectiveRun::conclusion);
    let (conclusion, reason) = match conclusion {
        // An unknown conclusion must not allow a merge.
        None => (silent, "It ended without a conclusion".to_owned()),
        Some(end) if end.is_good() => {
            (Conclusion::Success, "Every run ended well, and so did every job that reported".into())
        }
        Some(end) => {
            let word = end.as_str().replace('_', " ");
            (end, format!("The worst of its runs and jobs: {word}"))
        }
    };
    Some(HeadVerdict {
        standing: HeadState::Ended(conclusion),
        run: worst.map(|run| run.id.to_owned()),
        reason,
    })
}

/// The verdict while the newest dispatch has no proven report.
fn verdict_without_report(
    newest: &HeadDispatch<'_>,
    run: Option<String>,
    silent: Conclusion,
) -> HeadVerdict {
    let failed = HeadState::Ended(silent);
    let (standing, reason) = match newest.status {
        DispatchStatus::Superseded { .. } => {
            (HeadState::Ended(Conclusion::Skipped), "Superseded by a newer head".to_owned())
        }
        DispatchStatus::Dead | DispatchStatus::Unreachable | DispatchStatus::RepositoryChanged => {
            let why = newest.last_error.unwrap_or("unknown");
            (failed, format!("It could not be dispatched: {why}"))
        }
        DispatchStatus::Withheld => (
            HeadState::Ended(Conclusion::Neutral),
            newest.last_error.unwrap_or("Its infrastructure keeps failing").to_owned(),
        ),
        DispatchStatus::Queued => (HeadState::Queued, "Waiting to be dispatched".to_owned()),
        DispatchStatus::Sent { .. } if !newest.is_overdue => {
            (HeadState::Queued, "Dispatched".to_owned())
        }
        DispatchStatus::Sent { .. } => match newest.missing_proof() {
            Some(missing) => (failed, format!("It was reported without proof: {missing}")),
            None => (failed, "It never started: no report came in time".to_owned()),
        },
    };
    HeadVerdict { standing, run, reason }
}

impl HeadDispatch<'_> {
    fn missing_proof(&self) -> Option<MissingProof> {
        self.jobs.iter().find_map(|job| match job.proof {
            ProofStatus::Missing(missing) => Some(missing),
            ProofStatus::Undecided | ProofStatus::Proven => None,
        })
    }
}

/// A run that the verdict depends on, with the newest attempt of each of its proven jobs.
struct EffectiveRun<'a> {
    id: &'a str,
    workflow: &'a str,
    /// `None`: GitHub hasn't been asked about it yet.
    known: Option<&'a DownstreamRun>,
    jobs: Vec<HeadJob<'a>>,
    /// Orders the runs of one workflow: by GitHub's increasing ids, or by time.
    order: (u64, Option<Timestamp>),
}

impl EffectiveRun<'_> {
    /// GitHub's state of the run only counts if it isn't older than the newest reported attempt.
    fn is_open(&self) -> bool {
        let Some(run) = self.known else { return true };
        let reported = self.jobs.iter().map(|job| job.id.run_attempt).max().unwrap_or(0);
        run.state == RunState::Open || run.attempt < reported
    }

    /// Whether the run certainly belongs to this head: a proven report says so, or GitHub's list does.
    fn is_certain(&self) -> bool {
        !self.jobs.is_empty() || self.known.is_some_and(|run| run.certain)
    }

    /// The worst of GitHub's conclusion and the reported ones.
    fn conclusion(&self) -> Option<Conclusion> {
        let own = match self.known {
            Some(DownstreamRun { state: RunState::Over(own), .. }) if self.is_certain() => *own,
            _ => None,
        };
        Conclusion::worst(self.jobs.iter().filter_map(|job| job.state.conclusion()).chain(own))
    }
}

/// The newest run of each workflow, oldest first.
fn effective_runs<'a>(dispatches: &'a [HeadDispatch<'a>]) -> Vec<EffectiveRun<'a>> {
    let mut runs: Vec<EffectiveRun<'a>> = Vec::new();
    for run in dispatches.iter().flat_map(|dispatch| dispatch.runs) {
        if !runs.iter().any(|seen| seen.id == run.id) {
            let order = (run.id.parse().unwrap_or(0), None);
            let workflow = run.workflow.as_str();
            runs.push(EffectiveRun {
                id: &run.id,
                workflow,
                known: Some(run),
                jobs: vec![],
                order,
            });
        }
    }
    let jobs = dispatches.iter().flat_map(|dispatch| &dispatch.jobs);
    for job in jobs.filter(|job| job.proof == ProofStatus::Proven) {
        let id = job.id.run_id.as_str();
        let index = runs.iter().position(|run| run.id == id).unwrap_or_else(|| {
            let order = (id.parse().unwrap_or(0), None);
            let workflow = job.id.workflow.as_str();
            runs.push(EffectiveRun { id, workflow, known: None, jobs: vec![], order });
            runs.len() - 1
        });
        let run = &mut runs[index];
        run.order.1 = run.order.1.max(job.heard_at);
        let same = |other: &HeadJob<'_>| {
            other.id.workflow == job.id.workflow && other.id.job == job.id.job
        };
        match run.jobs.iter_mut().find(|other| same(other)) {
            Some(other) if other.id.run_attempt < job.id.run_attempt => *other = *job,
            Some(_) => {}
            None => run.jobs.push(*job),
        }
    }
    runs.sort_by_key(|run| run.order);
    // Only a run that certainly belongs to this head replaces an older one of its workflow.
    let replaced: Vec<bool> = (0..runs.len())
        .map(|index| {
            let later = &runs[index + 1..];
            later.iter().any(|run| run.workflow == runs[index].workflow && run.is_certain())
        })
        .collect();
    let mut replaced = replaced.into_iter();
    runs.retain(|_| !replaced.next().unwrap_or_default());
    // A run that may belong to another head keeps the verdict open, but its conclusion doesn't count.
    runs.retain(|run| run.is_open() || run.is_certain());
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Conclusion = Conclusion::Success;
    const BAD: Conclusion = Conclusion::Failure;
    const SILENT: Conclusion = Conclusion::TimedOut;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    fn id(run: &str, attempt: u32, workflow: &str, job: &str) -> JobId {
        JobId {
            run_id: run.to_owned(),
            run_attempt: attempt,
            workflow: workflow.to_owned(),
            job: Some(job.to_owned()),
        }
    }

    fn run(id: &str, workflow: &str, attempt: u32, state: RunState) -> DownstreamRun {
        DownstreamRun {
            id: id.to_owned(),
            workflow: workflow.to_owned(),
            attempt,
            state,
            certain: true,
        }
    }

    fn job(id: &JobId, state: JobState, proof: ProofStatus) -> HeadJob<'_> {
        HeadJob { id, state, proof, heard_at: Some(at(1)) }
    }

    fn proven(id: &JobId, state: JobState) -> HeadJob<'_> {
        job(id, state, ProofStatus::Proven)
    }

    const SENT: DispatchStatus = DispatchStatus::Sent { at: Timestamp::UNIX_EPOCH };

    fn dispatch<'a>(
        status: &'a DispatchStatus,
        runs: &'a [DownstreamRun],
        jobs: Vec<HeadJob<'a>>,
    ) -> HeadDispatch<'a> {
        HeadDispatch { status, last_error: Some("404"), is_overdue: false, runs, jobs }
    }

    fn standing(dispatches: &[HeadDispatch<'_>]) -> HeadState {
        head_verdict(dispatches, SILENT).unwrap().standing
    }

    #[test]
    fn verdict_for_every_combination_of_one_job() {
        use JobState::{Completed, Dispatched, InProgress, Lost, NeverStarted};
        let statuses = [
            DispatchStatus::Queued,
            SENT,
            DispatchStatus::Superseded { by: "e".to_owned() },
            DispatchStatus::Dead,
            DispatchStatus::Unreachable,
            DispatchStatus::RepositoryChanged,
        ];
        let proofs = [
            ProofStatus::Proven,
            ProofStatus::Undecided,
            ProofStatus::Missing(MissingProof::CallbackToken),
            ProofStatus::Missing(MissingProof::Branch),
            ProofStatus::Missing(MissingProof::Event),
            ProofStatus::Missing(MissingProof::Evidence),
        ];
        let mut states = vec![Dispatched, InProgress, NeverStarted, Lost];
        states.extend(Conclusion::BEST_TO_WORST.map(Completed));
        let mut looks = vec![None, Some(RunState::Open), Some(RunState::Over(None))];
        looks.extend(Conclusion::BEST_TO_WORST.map(|end| Some(RunState::Over(Some(end)))));
        let mut cases = 0;
        for status in &statuses {
            for overdue in [false, true] {
                for proof in proofs {
                    for state in &states {
                        for attempt in [1, 2] {
                            for look in &looks {
                                let job_id = id("5", attempt, "CI", "test");
                                // GitHub was asked when the run was at its first attempt.
                                let runs: Vec<_> =
                                    look.iter().map(|look| run("5", "ci.yml", 1, *look)).collect();
                                let facts = HeadDispatch {
                                    is_overdue: overdue,
                                    ..dispatch(status, &runs, vec![job(&job_id, *state, proof)])
                                };
                                let expected = if proof == ProofStatus::Proven {
                                    match look {
                                        // What GitHub said of attempt 1 says nothing of attempt 2.
                                        _ if attempt == 2 => HeadState::Running,
                                        None | Some(RunState::Open) => HeadState::Running,
                                        Some(RunState::Over(own)) => {
                                            let all = state.conclusion().into_iter().chain(*own);
                                            HeadState::Ended(match Conclusion::worst(all) {
                                                None => SILENT,
                                                Some(end) if end.is_good() => GOOD,
                                                Some(end) => end,
                                            })
                                        }
                                    }
                                } else {
                                    match status {
                                        DispatchStatus::Queued => HeadState::Queued,
                                        DispatchStatus::Sent { .. } if !overdue => {
                                            HeadState::Queued
                                        }
                                        DispatchStatus::Superseded { .. } => {
                                            HeadState::Ended(Conclusion::Skipped)
                                        }
                                        _ => HeadState::Ended(SILENT),
                                    }
                                };
                                let found = standing(&[facts]);
                                assert_eq!(
                                    found, expected,
                                    "{status:?} {overdue} {proof:?} {state:?} {attempt} {look:?}"
                                );
                                cases += 1;
                            }
                        }
                    }
                }
            }
        }
        assert_eq!(cases, statuses.len() * 2 * proofs.len() * states.len() * 2 * looks.len());
    }

    #[test]
    fn passing_rerun_turns_a_failed_verdict_into_success() {
        let (first, second) = (id("5", 1, "CI", "test"), id("5", 2, "CI", "test"));
        let jobs = vec![
            proven(&first, JobState::Completed(BAD)),
            proven(&second, JobState::Completed(GOOD)),
        ];
        let over = |attempt, end| [run("5", "ci.yml", attempt, RunState::Over(Some(end)))];
        let before = over(1, BAD);
        assert_eq!(
            standing(&[dispatch(&SENT, &before, jobs[..1].to_vec())]),
            HeadState::Ended(BAD)
        );
        assert_eq!(standing(&[dispatch(&SENT, &before, jobs.clone())]), HeadState::Running);
        let after = over(2, GOOD);
        assert_eq!(standing(&[dispatch(&SENT, &after, jobs)]), HeadState::Ended(GOOD));
    }

    #[test]
    fn a_rerun_of_the_failed_jobs_keeps_what_the_other_jobs_reported() {
        let (test, lint) = (id("5", 1, "CI", "test"), id("5", 1, "CI", "lint"));
        let again = id("5", 2, "CI", "test");
        let runs = [run("5", "ci.yml", 2, RunState::Over(Some(GOOD)))];
        let jobs = vec![
            proven(&test, JobState::Completed(BAD)),
            proven(&lint, JobState::Completed(Conclusion::Cancelled)),
            proven(&again, JobState::Completed(GOOD)),
        ];
        let verdict = standing(&[dispatch(&SENT, &runs, jobs)]);
        assert_eq!(verdict, HeadState::Ended(Conclusion::Cancelled));
    }

    #[test]
    fn a_quick_workflow_never_turns_the_check_green_while_another_one_runs() {
        let lint = id("6", 1, "Lint", "lint");
        let jobs = || vec![proven(&lint, JobState::Completed(GOOD))];
        let runs = |build| {
            [run("5", "build.yml", 1, build), run("6", "lint.yml", 1, RunState::Over(Some(GOOD)))]
        };
        let verdict = |build| standing(&[dispatch(&SENT, &runs(build), jobs())]);
        assert_eq!(verdict(RunState::Open), HeadState::Running);
        assert_eq!(verdict(RunState::Over(Some(BAD))), HeadState::Ended(BAD));
        assert_eq!(verdict(RunState::Over(Some(GOOD))), HeadState::Ended(GOOD));
    }

    #[test]
    fn a_run_that_may_be_another_heads_is_waited_for_and_decides_nothing() {
        let job = id("6", 1, "CI", "test");
        let other = |workflow: &str, state| {
            let other = DownstreamRun { certain: false, ..run("9", workflow, 1, state) };
            let runs = [run("6", "ci.yml", 1, RunState::Over(Some(BAD))), other];
            standing(&[dispatch(&SENT, &runs, vec![proven(&job, JobState::Completed(BAD))])])
        };
        for workflow in ["lint.yml", "ci.yml"] {
            assert_eq!(other(workflow, RunState::Open), HeadState::Running);
            assert_eq!(other(workflow, RunState::Over(Some(GOOD))), HeadState::Ended(BAD));
        }
    }

    #[test]
    fn a_second_delivery_of_a_head_is_waited_for_and_its_run_replaces_the_first() {
        let (first, second) = (id("5", 1, "CI", "test"), id("8", 1, "CI", "test"));
        let old_runs = [run("5", "ci.yml", 1, RunState::Over(Some(BAD)))];
        let opened = dispatch(&SENT, &old_runs, vec![proven(&first, JobState::Completed(BAD))]);
        let reopened = dispatch(&SENT, &[], vec![]);
        assert_eq!(standing(&[opened.clone(), reopened]), HeadState::Queued);
        let new_runs = [run("8", "ci.yml", 1, RunState::Over(Some(GOOD)))];
        let answered = dispatch(&SENT, &new_runs, vec![proven(&second, JobState::Completed(GOOD))]);
        assert_eq!(standing(&[opened, answered]), HeadState::Ended(GOOD));
    }

    #[test]
    fn of_runs_without_an_order_in_their_ids_the_one_heard_last_counts() {
        let (first, second) = (id("uuid-z", 1, "CI", "test"), id("uuid-a", 1, "CI", "test"));
        let runs = [
            run("uuid-z", "CI", 1, RunState::Over(None)),
            run("uuid-a", "CI", 1, RunState::Over(None)),
        ];
        let jobs = vec![
            HeadJob { heard_at: Some(at(1)), ..proven(&first, JobState::Completed(BAD)) },
            HeadJob { heard_at: Some(at(2)), ..proven(&second, JobState::Completed(GOOD)) },
        ];
        assert_eq!(standing(&[dispatch(&SENT, &runs, jobs)]), HeadState::Ended(GOOD));
    }

    #[test]
    fn the_verdict_names_the_run_to_look_at() {
        let (build, lint) = (id("5", 1, "Build", "b"), id("6", 1, "Lint", "l"));
        let runs = [
            run("5", "build.yml", 1, RunState::Over(Some(BAD))),
            run("6", "lint.yml", 1, RunState::Over(Some(GOOD))),
        ];
        let jobs = vec![
            proven(&build, JobState::Completed(BAD)),
            proven(&lint, JobState::Completed(GOOD)),
        ];
        let found = head_verdict(&[dispatch(&SENT, &runs, jobs)], SILENT).unwrap();
        assert_eq!(found.run.as_deref(), Some("5"), "the one that failed");
        assert_eq!(head_verdict(&[], SILENT), None);
    }
}
