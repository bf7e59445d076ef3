use super::*;
use crate::checks::downstream_run::RunState;

mod builds_elsewhere;
mod drafts_and_branches;
mod replaced;
mod runs_that_count;

const GOOD: Conclusion = Conclusion::Success;
const BAD: Conclusion = Conclusion::Failure;
const SILENT: Conclusion = Conclusion::TimedOut;
const L4: VerdictPolicy = VerdictPolicy { level: Level::L4, silent: SILENT };
const SENT: DispatchStatus = DispatchStatus::Sent { at: Timestamp::UNIX_EPOCH };

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
        replaced_jobs: vec![],
        failed_jobs: None,
    }
}

fn proven(id: &JobId, state: JobState) -> HeadJob<'_> {
    HeadJob {
        id,
        state,
        pull_request: Some(1),
        event_order: (0, ""),
        proof: ProofStatus::Proven,
        heard_at: Some(at(1)),
        ended_without_proof: false,
        is_foreign: false,
        pipeline: None,
        build_number: None,
        check_run_id: None,
        ends_run: false,
        steps: StepCounts::default(),
    }
}

fn ended(id: &JobId, end: Conclusion) -> HeadJob<'_> {
    proven(id, JobState::Completed(end))
}

fn dispatch<'a>(
    status: &'a DispatchStatus,
    runs: &'a [DownstreamRun],
    jobs: Vec<HeadJob<'a>>,
) -> HeadDispatch<'a> {
    HeadDispatch {
        status,
        last_error: Some("404"),
        pull_request: Some(1),
        is_draft: false,
        base_branch: None,
        asks_anew: false,
        is_abandoned: false,
        is_strangers: false,
        is_trial: false,
        held_until: None,
        is_overdue: false,
        silence: None,
        is_given_up: false,
        are_runs_known: true,
        runs_problem: None,
        runs,
        shared_runs: &[],
        jobs,
    }
}

fn state_of(dispatches: &[HeadDispatch<'_>]) -> HeadState {
    verdict(dispatches, L4).unwrap().state
}

const RUNNING: HeadState = HeadState::Running;
const PASSED: HeadState = HeadState::Ended(GOOD);
const FAILED: HeadState = HeadState::Ended(BAD);
const UNKNOWN: HeadState = HeadState::Ended(SILENT);

#[test]
fn verdict_for_every_combination_of_one_job_and_its_run() {
    use JobState::{Completed, Dispatched, InProgress, Lost, NeverStarted};
    let mut states = vec![Dispatched, InProgress, NeverStarted, Lost];
    states.extend(Conclusion::BEST_TO_WORST.map(Completed));
    let mut looks = vec![None, Some(RunState::Open), Some(RunState::OverUnknown)];
    looks.extend(Conclusion::BEST_TO_WORST.map(|end| Some(RunState::Over(end))));
    for state in &states {
        for attempt in [1, 2] {
            for look in &looks {
                for is_known in [true, false] {
                    for is_given_up in [true, false] {
                        let job_id = id("5", attempt, "CI", "test");
                        let runs: Vec<_> =
                            look.iter().map(|look| run("5", "ci.yml", 1, *look)).collect();
                        let facts = HeadDispatch {
                            are_runs_known: is_known,
                            is_given_up,
                            ..dispatch(&SENT, &runs, vec![proven(&job_id, *state)])
                        };
                        // What GitHub said of attempt 1 says nothing of attempt 2.
                        let over = look.filter(|look| attempt == 1 && *look != RunState::Open);
                        let github_says_open = *look == Some(RunState::Open);
                        let waits = state.is_open()
                            || (over.is_none() && (github_says_open || !is_given_up))
                            || (!is_known && !is_given_up);
                        let expected = if waits {
                            RUNNING
                        } else {
                            let own = match look {
                                Some(RunState::Over(own)) => Some(*own),
                                _ => None,
                            };
                            let worst =
                                Conclusion::worst(state.conclusion().into_iter().chain(own));
                            let is_unknown = !is_known || !matches!(over, Some(RunState::Over(_)));
                            let all_skipped = *state == Completed(Conclusion::Skipped);
                            match worst {
                                Some(end) if !end.is_good() => HeadState::Ended(end),
                                _ if is_unknown || all_skipped => UNKNOWN,
                                _ => PASSED,
                            }
                        };
                        assert_eq!(
                            state_of(&[facts]),
                            expected,
                            "{state:?} {attempt} {look:?} known {is_known} given up {is_given_up}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn dispatch_without_evidence_says_why_and_an_unproven_report_is_none() {
    let superseded = DispatchStatus::Superseded { by: "e".to_owned() };
    let job_id = id("5", 1, "CI", "test");
    let forged = HeadJob {
        proof: ProofStatus::Missing(MissingProof::CallbackToken),
        ..ended(&job_id, GOOD)
    };
    let left_out = DispatchStatus::LeftOut { why: LeftOut::Paths };
    for jobs in [vec![], vec![forged]] {
        for (status, overdue, expected) in [
            (&DispatchStatus::Queued, false, HeadState::Queued),
            (&SENT, false, HeadState::Queued),
            (&SENT, true, UNKNOWN),
            (&superseded, false, HeadState::Ended(Conclusion::ActionRequired)),
            (&left_out, false, HeadState::Ended(Conclusion::Skipped)),
            (&DispatchStatus::Withheld, false, HeadState::Ended(Conclusion::Neutral)),
            (&DispatchStatus::Dead, false, UNKNOWN),
            (&DispatchStatus::Unreachable, false, UNKNOWN),
            (&DispatchStatus::RepositoryChanged, false, UNKNOWN),
        ] {
            let one = HeadDispatch { is_overdue: overdue, ..dispatch(status, &[], jobs.clone()) };
            assert_eq!(state_of(&[one]), expected, "{status:?} {overdue}");
        }
    }
    assert_eq!(verdict(&[], L4), None);
}

#[test]
fn reason_says_what_is_waited_for_and_what_was_missing() {
    let job_id = id("5", 1, "CI", "test");
    let missing = ProofStatus::Missing(MissingProof::CallbackToken);
    let forged = HeadJob { proof: missing, ..ended(&job_id, GOOD) };
    let queued = dispatch(&DispatchStatus::Queued, &[], vec![]);
    let overdue = HeadDispatch { is_overdue: true, ..dispatch(&SENT, &[], vec![]) };
    let held = HeadDispatch { held_until: Some(Timestamp::UNIX_EPOCH), ..queued.clone() };
    let down = HeadDispatch { silence: Some("The relay was down"), ..overdue.clone() };
    let unproven = HeadDispatch { jobs: vec![forged], ..overdue.clone() };
    let until = "Held back until 1970-01-01T00:00:00Z by this backend's `.github/crcr.yml`";
    for (one, reason) in [
        (queued, "Waiting to be dispatched"),
        (held, until),
        (dispatch(&SENT, &[], vec![]), "Dispatched"),
        (overdue, "It never started: no report came in time"),
        (down, "The relay was down"),
        (
            unproven,
            "It was reported without proof: it doesn't carry the dispatch's `callback_token`",
        ),
    ] {
        assert_eq!(verdict(&[one], L4).unwrap().reason, reason);
    }
}

#[test]
fn failure_is_not_hidden_by_sending_its_dispatch_again() {
    let job_id = id("5", 1, "CI", "test");
    let runs = [run("5", "ci.yml", 1, RunState::Over(BAD))];
    let again = dispatch(&DispatchStatus::Queued, &runs, vec![ended(&job_id, BAD)]);
    assert_eq!(state_of(&[again]), FAILED);
}

#[test]
fn another_pull_request_at_the_commit_neither_hides_nor_delays_a_result() {
    let superseded = DispatchStatus::Superseded { by: "e".to_owned() };
    let job_id = id("5", 1, "CI", "test");
    for (end, expected) in [(BAD, FAILED), (GOOD, PASSED)] {
        let runs = [run("5", "ci.yml", 1, RunState::Over(end))];
        let first = dispatch(&SENT, &runs, vec![ended(&job_id, end)]);
        for status in [
            &superseded,
            &DispatchStatus::LeftOut { why: LeftOut::Draft },
            &DispatchStatus::Withheld,
            &DispatchStatus::Queued,
            &DispatchStatus::Dead,
            &SENT,
        ] {
            for overdue in [false, true] {
                let other = HeadDispatch {
                    pull_request: Some(2),
                    is_overdue: overdue,
                    ..dispatch(status, &[], vec![])
                };
                assert_eq!(state_of(&[first.clone(), other.clone()]), expected, "{status:?}");
                assert_eq!(state_of(&[other, first.clone()]), expected, "{status:?} before");
            }
        }
        // A new head of the stranger's pull request leaves what is known.
        let withheld = dispatch(&DispatchStatus::Withheld, &[], vec![]);
        assert_eq!(state_of(&[first, withheld]), expected, "reopened while the breaker is open");
    }
}

#[test]
fn pull_request_that_asks_again_is_waited_for_although_another_one_is_answered_later() {
    let (first, other) = (id("5", 1, "CI", "test"), id("8", 1, "CI", "lint"));
    let passed = [run("5", "ci.yml", 1, RunState::Over(GOOD))];
    let passed_too = [run("8", "ci.yml", 1, RunState::Over(GOOD))];
    let opened = dispatch(&SENT, &passed, vec![ended(&first, GOOD)]);
    let another = dispatch(&SENT, &passed_too, vec![ended(&other, GOOD)]);
    let another = HeadDispatch { pull_request: Some(2), ..another };
    for asked in [&SENT, &DispatchStatus::Queued] {
        let asked = dispatch(asked, &[], vec![]);
        for all in [[&opened, &asked, &another], [&another, &opened, &asked]] {
            assert_eq!(state_of(&all.map(Clone::clone)), HeadState::Queued);
        }
        // Nobody waits for a pull request that was closed, or has another head.
        let left = HeadDispatch { is_abandoned: true, ..asked };
        assert_eq!(state_of(&[opened.clone(), left, another.clone()]), PASSED);
    }
}

#[test]
fn failure_stays_while_a_strangers_pull_request_asks_again() {
    let (failed, lint) = (id("5", 1, "CI", "test"), id("8", 1, "CI", "lint"));
    let (old, new) = (
        [run("5", "ci.yml", 1, RunState::Over(BAD))],
        [run("8", "ci.yml", 1, RunState::Over(GOOD))],
    );
    let first = dispatch(&SENT, &old, vec![ended(&failed, BAD)]);
    let strangers = dispatch(&SENT, &new, vec![ended(&lint, GOOD)]);
    let strangers = HeadDispatch { pull_request: Some(2), ..strangers };
    let again = HeadDispatch { pull_request: Some(2), ..dispatch(&SENT, &[], vec![]) };
    assert_eq!(state_of(&[first.clone(), strangers.clone(), again]), FAILED);
    let own = dispatch(&SENT, &[], vec![]);
    assert_eq!(state_of(&[first, strangers, own]), HeadState::Queued, "it is tested again");
}

#[test]
fn passing_rerun_turns_a_failed_verdict_into_success() {
    let (first, second) = (id("5", 1, "CI", "test"), id("5", 2, "CI", "test"));
    let jobs = vec![ended(&first, BAD), ended(&second, GOOD)];
    let over = |attempt, end| [run("5", "ci.yml", attempt, RunState::Over(end))];
    let before = over(1, BAD);
    assert_eq!(state_of(&[dispatch(&SENT, &before, jobs[..1].to_vec())]), FAILED);
    assert_eq!(state_of(&[dispatch(&SENT, &before, jobs.clone())]), RUNNING);
    let after = over(2, GOOD);
    assert_eq!(state_of(&[dispatch(&SENT, &after, jobs.clone())]), PASSED);
    let in_other_order = jobs.into_iter().rev().collect();
    assert_eq!(state_of(&[dispatch(&SENT, &after, in_other_order)]), PASSED);
}

#[test]
fn failed_job_of_an_older_attempt_counts_unless_another_one_ran_in_its_place() {
    let (one, two) = (id("5", 1, "CI", "test #1"), id("5", 2, "CI", "test #2"));
    let jobs = || vec![ended(&one, BAD), ended(&two, GOOD)];
    let known = run("5", "ci.yml", 2, RunState::Over(GOOD));
    let runs = [known.clone()];
    assert_eq!(state_of(&[dispatch(&SENT, &runs, jobs())]), FAILED);
    let replaced = |replaced_jobs, state| [DownstreamRun { replaced_jobs, state, ..known.clone() }];
    let runs = replaced(vec![one.clone()], RunState::Over(GOOD));
    assert_eq!(state_of(&[dispatch(&SENT, &runs, jobs())]), PASSED);
    let runs = replaced(vec![one.clone()], RunState::OverUnknown);
    assert_eq!(
        state_of(&[dispatch(&SENT, &runs, jobs())]),
        FAILED,
        "the later one may have failed"
    );
    let runs = replaced(vec![two.clone()], RunState::Over(GOOD));
    let failed_again = vec![ended(&two, BAD)];
    assert_eq!(state_of(&[dispatch(&SENT, &runs, failed_again)]), FAILED, "nothing ran after it");
}

#[test]
fn a_quick_workflow_never_turns_the_check_green_while_another_one_runs() {
    let lint = id("6", 1, "Lint", "lint");
    let runs =
        |build| [run("5", "build.yml", 1, build), run("6", "lint.yml", 1, RunState::Over(GOOD))];
    let found = |build| state_of(&[dispatch(&SENT, &runs(build), vec![ended(&lint, GOOD)])]);
    assert_eq!(found(RunState::Open), RUNNING);
    assert_eq!(found(RunState::Over(BAD)), FAILED);
    assert_eq!(found(RunState::OverUnknown), UNKNOWN);
    assert_eq!(found(RunState::Over(GOOD)), PASSED);
}

#[test]
fn runs_that_may_be_this_commits_are_waited_for_and_a_failed_one_is_never_success() {
    let job_id = id("6", 1, "CI", "test");
    let runs = [run("6", "ci.yml", 1, RunState::Over(GOOD))];
    let found = |is_open, are_good, include_own| {
        let shared =
            [SharedRuns { workflow: "lint.yml".to_owned(), is_open, are_good, include_own }];
        let one = dispatch(&SENT, &runs, vec![ended(&job_id, GOOD)]);
        state_of(&[HeadDispatch { shared_runs: &shared, ..one }])
    };
    assert_eq!(found(true, true, true), RUNNING);
    assert_eq!(found(true, true, false), RUNNING);
    assert_eq!(found(false, true, true), PASSED);
    assert_eq!(found(false, false, true), UNKNOWN);
    assert_eq!(found(false, false, false), PASSED, "the workflow doesn't run for each dispatch");
}

#[test]
fn failed_run_that_may_be_this_commits_counts_until_a_newer_dispatch_ran_its_workflow() {
    let (first, second) = (id("5", 1, "CI", "test"), id("8", 1, "CI", "test"));
    let group = |are_good| SharedRuns {
        workflow: "lint.yml".to_owned(),
        is_open: false,
        are_good,
        include_own: true,
    };
    let ci = |id| run(id, "ci.yml", 1, RunState::Over(GOOD));
    let older_runs = [ci("5")];
    let failed = [group(false)];
    let older = HeadDispatch {
        shared_runs: &failed,
        ..dispatch(&SENT, &older_runs, vec![ended(&first, GOOD)])
    };
    let found = |runs: &[DownstreamRun], shared_runs: &[SharedRuns]| {
        let newer = dispatch(&SENT, runs, vec![ended(&second, GOOD)]);
        state_of(&[older.clone(), HeadDispatch { shared_runs, ..newer }])
    };
    assert_eq!(found(&[ci("8")], &[]), UNKNOWN, "it ran another workflow only");
    let lint = run("9", "lint.yml", 1, RunState::Over(GOOD));
    assert_eq!(found(&[ci("8"), lint], &[]), PASSED);
    assert_eq!(found(&[ci("8")], &[group(true)]), PASSED);
    assert_eq!(found(&[ci("8")], &[group(false)]), UNKNOWN);
}

#[test]
fn a_second_delivery_of_the_pull_request_is_waited_for_and_its_run_replaces_the_first() {
    let (first, second) = (id("5", 1, "CI", "test"), id("8", 1, "CI", "test"));
    let old_runs = [run("5", "ci.yml", 1, RunState::Over(BAD))];
    let opened = dispatch(&SENT, &old_runs, vec![ended(&first, BAD)]);
    let reopened = dispatch(&SENT, &[], vec![]);
    assert_eq!(state_of(&[opened.clone(), reopened]), HeadState::Queued);
    let new_runs = [run("8", "ci.yml", 1, RunState::Over(GOOD))];
    let answered = dispatch(&SENT, &new_runs, vec![ended(&second, GOOD)]);
    assert_eq!(state_of(&[opened, answered]), PASSED);
}

#[test]
fn what_a_strangers_pull_request_leaves_out_stays_failed_and_what_it_runs_again_counts() {
    let [failed, lint, again] =
        [("5", "test"), ("8", "lint"), ("8", "test")].map(|(run, job)| id(run, 1, "CI", job));
    let early = id("5", 1, "CI", "build");
    let new_runs = [run("8", "ci.yml", 1, RunState::Over(GOOD))];
    let with = |on_github: Option<&[u64]>, pull, of_old: &[HeadJob<'_>], jobs: &[HeadJob<'_>]| {
        let failed_jobs = on_github.map(<[u64]>::to_vec);
        let old_run = run("5", "ci.yml", 1, RunState::Over(BAD));
        let old_runs = [DownstreamRun { failed_jobs, ..old_run }];
        let first = dispatch(&SENT, &old_runs, of_old.to_vec());
        let second = dispatch(&SENT, &new_runs, jobs.to_vec());
        state_of(&[first, HeadDispatch { pull_request: Some(pull), ..second }])
    };
    let found =
        |pull, of_old: &[HeadJob<'_>], jobs: &[HeadJob<'_>]| with(Some(&[]), pull, of_old, jobs);
    let bad = [ended(&failed, BAD)];
    // The workflow skips the tests of a draft, or of a pull request to another branch.
    let skips = [ended(&lint, GOOD)];
    assert_eq!(found(2, &bad, &skips), FAILED);
    let says_so = [ended(&lint, GOOD), ended(&again, Conclusion::Skipped)];
    assert_eq!(found(2, &bad, &says_so), FAILED);
    assert_eq!(found(1, &bad, &skips), PASSED, "it's the pull request's own newest run");
    let begun = [proven(&again, JobState::InProgress)];
    assert_eq!(found(2, &bad, &begun), HeadState::Running);
    let tests = [ended(&lint, GOOD), ended(&again, GOOD)];
    assert_eq!(found(2, &bad, &tests), PASSED, "the commit has passed its tests");
    // GitHub's list of what failed in the older run has another job.
    let named = [HeadJob { check_run_id: Some(77), ..bad[0] }];
    for (on_github, of_old, expected) in [
        (Some([77].as_slice()), &named, PASSED),
        (Some(&[77, 78]), &named, FAILED),
        (Some(&[78]), &named, FAILED),
        (Some(&[77]), &bad, PASSED),
        (Some(&[77, 78]), &bad, FAILED),
        (None, &named, FAILED),
    ] {
        assert_eq!(with(on_github, 2, of_old, &tests), expected, "{on_github:?}");
        assert_eq!(with(on_github, 1, of_old, &tests), PASSED, "its own newest run");
    }
    // It reported success, and failed in a later step.
    let too_early = HeadJob { check_run_id: Some(78), ..ended(&early, GOOD) };
    assert_eq!(with(Some(&[77, 78]), 2, &[named[0], too_early], &tests), FAILED);
    // What failed in the older run reports nothing.
    let good = [ended(&failed, GOOD)];
    assert_eq!(found(2, &good, &tests), FAILED);
    assert_eq!(found(1, &good, &tests), PASSED);
    let open = [proven(&failed, JobState::InProgress)];
    assert_eq!(found(2, &open, &skips), RUNNING);
    let cancelled = [run("5", "ci.yml", 1, RunState::Over(Conclusion::Cancelled))];
    let first = dispatch(&SENT, &cancelled, good.to_vec());
    let second = dispatch(&SENT, &new_runs, tests.to_vec());
    let second = HeadDispatch { pull_request: Some(2), ..second };
    assert_eq!(state_of(&[first, second]), PASSED, "as its pull request was closed");
}

#[test]
fn strangers_run_that_was_cancelled_changes_nothing_that_is_known() {
    let [first, again] = ["5", "8"].map(|run| id(run, 1, "CI", "test"));
    let cancelled = [run("8", "ci.yml", 1, RunState::Over(Conclusion::Cancelled))];
    let found = |pull, end, job: JobState| {
        let runs = [run("5", "ci.yml", 1, RunState::Over(end))];
        let first = dispatch(&SENT, &runs, vec![ended(&first, end)]);
        let second = dispatch(&SENT, &cancelled, vec![proven(&again, job)]);
        state_of(&[first, HeadDispatch { pull_request: Some(pull), ..second }])
    };
    // Its pull request was opened at another's commit and closed at once.
    let was_cancelled = JobState::Completed(Conclusion::Cancelled);
    for end in [GOOD, BAD, Conclusion::TimedOut] {
        assert_eq!(found(2, end, was_cancelled), HeadState::Ended(end));
        assert_eq!(found(2, end, JobState::Lost), HeadState::Ended(end), "it was killed");
        assert_eq!(found(1, end, was_cancelled), HeadState::Ended(Conclusion::Cancelled));
    }
    assert_eq!(found(1, GOOD, JobState::Lost), HeadState::Ended(Conclusion::TimedOut));
    assert_eq!(found(2, GOOD, JobState::Completed(BAD)), FAILED, "it failed before");
    assert_eq!(found(2, BAD, JobState::Completed(GOOD)), FAILED);
    assert_eq!(found(2, GOOD, JobState::InProgress), RUNNING);
    // It failed, and was cancelled when it ran again.
    let cancelled_again = [run("8", "ci.yml", 2, RunState::Over(Conclusion::Cancelled))];
    let failed_before = [ended(&again, BAD)];
    let [retry, build, of_first] =
        [("8", 2), ("b2", 2), ("b1", 1)].map(|(run, attempt)| id(run, attempt, "CI", "test"));
    let heard_at = Some(at(2));
    let of_build =
        |state| HeadJob { is_foreign: true, ends_run: true, heard_at, ..proven(&build, state) };
    let lost_end = HeadJob { ended_without_proof: true, ..of_build(JobState::InProgress) };
    for (runs, job) in [
        (&cancelled_again[..], proven(&retry, was_cancelled)),
        (&[], of_build(was_cancelled)),
        (&[], lost_end),
    ] {
        let older = match job.is_foreign {
            true => HeadJob { is_foreign: true, ends_run: true, ..ended(&of_first, GOOD) },
            false => ended(&first, GOOD),
        };
        let first_runs = [run("5", "ci.yml", 1, RunState::Over(GOOD))];
        let first_runs = if job.is_foreign { &[][..] } else { &first_runs };
        let first = dispatch(&SENT, first_runs, vec![older]);
        let mut jobs = vec![job];
        jobs.extend(failed_before.iter().filter(|_| !job.is_foreign));
        let second = HeadDispatch { pull_request: Some(2), ..dispatch(&SENT, runs, jobs) };
        assert_eq!(state_of(&[first, second]), HeadState::Ended(Conclusion::Cancelled));
    }
    // Only the stranger's run is known.
    let second = dispatch(&SENT, &cancelled, vec![proven(&again, was_cancelled)]);
    assert_eq!(state_of(&[second]), HeadState::Ended(Conclusion::Cancelled));
}

#[test]
fn run_that_its_own_pull_request_has_replaced_stands_for_no_other_one() {
    let [failed, again, lint] =
        [("5", "test"), ("8", "test"), ("9", "lint")].map(|(run, job)| id(run, 1, "CI", job));
    let cancelled = Conclusion::Cancelled;
    for (first_end, second_end) in [(BAD, BAD), (cancelled, BAD), (GOOD, BAD)] {
        let over = |id: &str, end| {
            let failed_jobs = Some(vec![]);
            [DownstreamRun { failed_jobs, ..run(id, "ci.yml", 1, RunState::Over(end)) }]
        };
        let (one, two, three) = (over("5", first_end), over("8", second_end), over("9", GOOD));
        let of_two = |runs, job| {
            let dispatch = dispatch(&SENT, runs, vec![job]);
            HeadDispatch { pull_request: Some(2), ..dispatch }
        };
        let dispatches = [
            dispatch(&SENT, &one, vec![ended(&failed, first_end)]),
            of_two(&two, ended(&again, second_end)),
            // For another branch, where the workflow leaves the tests out.
            of_two(&three, ended(&lint, GOOD)),
        ];
        let expected = HeadState::Ended(first_end);
        assert_eq!(state_of(&dispatches), expected, "{first_end:?}, {second_end:?}");
    }
    // A stranger's run is cancelled while a job still runs. Once that is lost, the run says nothing, so it stands for
    // nothing before.
    let other_ids = [("5", "lint"), ("5", "test"), ("8", "lint"), ("8", "test"), ("9", "test")];
    let [old_lint, old_test, new_lint, killed, last] =
        other_ids.map(|(run, job)| id(run, 1, "CI", job));
    let over = |id: &str, end| {
        let failed_jobs = Some(vec![]);
        [DownstreamRun { failed_jobs, ..run(id, "ci.yml", 1, RunState::Over(end)) }]
    };
    let (one, two, three) = (over("5", BAD), over("8", cancelled), over("9", GOOD));
    for state in [JobState::InProgress, JobState::Lost] {
        let of = |pull, runs, jobs| HeadDispatch {
            pull_request: Some(pull),
            ..dispatch(&SENT, runs, jobs)
        };
        let dispatches = [
            of(1, &one, vec![ended(&old_lint, BAD), ended(&old_test, GOOD)]),
            of(2, &two, vec![ended(&new_lint, GOOD), proven(&killed, state)]),
            of(3, &three, vec![ended(&last, GOOD)]),
        ];
        assert_eq!(state_of(&dispatches), FAILED, "{state:?}");
    }
    // What was cancelled for a stranger isn't known by a result that its pull request has replaced since.
    let over = |id: &str, end| [run(id, "ci.yml", 1, RunState::Over(end))];
    let (one, two, three) = (over("5", GOOD), over("8", cancelled), over("9", GOOD));
    let second = dispatch(&SENT, &two, vec![ended(&again, cancelled)]);
    let dispatches = [
        dispatch(&SENT, &one, vec![ended(&failed, GOOD)]),
        HeadDispatch { pull_request: Some(2), ..second },
        dispatch(&SENT, &three, vec![ended(&lint, GOOD)]),
    ];
    assert_eq!(state_of(&dispatches), HeadState::Ended(cancelled));
}

#[test]
fn dispatch_of_an_earlier_event_that_is_sent_later_does_not_count_as_the_newest() {
    // The draft's dispatch waited for longer than the one of when it became ready for review.
    let [of_draft, failed] = [("9", "lint"), ("8", "test")].map(|(run, job)| id(run, 1, "CI", job));
    let draft_runs = [run("9", "ci.yml", 1, RunState::Over(GOOD))];
    for (end, expected) in
        [(RunState::Over(BAD), FAILED), (RunState::Open, RUNNING), (RunState::Over(GOOD), PASSED)]
    {
        let job = match end {
            RunState::Over(end) => JobState::Completed(end),
            _ => JobState::InProgress,
        };
        let runs = [run("8", "ci.yml", 1, end)];
        let draft = dispatch(&SENT, &draft_runs, vec![ended(&of_draft, GOOD)]);
        let dispatches = [
            HeadDispatch { is_draft: true, ..draft },
            HeadDispatch { asks_anew: true, ..dispatch(&SENT, &runs, vec![proven(&failed, job)]) },
        ];
        assert_eq!(state_of(&dispatches), expected, "{end:?}");
    }
    let skipped = id("9", 1, "CI", "test");
    for [earlier, later] in [[(1, "b"), (2, "a")], [(1, "a"), (1, "b")]] {
        let shown = [
            HeadJob { event_order: earlier, ..ended(&skipped, Conclusion::Skipped) },
            HeadJob { event_order: later, ..ended(&failed, BAD) },
        ];
        assert_eq!(job_to_show(&shown.map(|job| (job, Some("ci.yml")))), Some(1));
    }
    // Another pull request's run between the two doesn't leave it open which is shown.
    let third = id("85", 1, "CI", "test");
    let ids = [("90", 1), ("80", 2)].map(|(run, asked)| (id(run, 1, "CI", "test"), asked));
    let mut shown = ids
        .each_ref()
        .map(|(id, asked)| HeadJob { event_order: (*asked, ""), ..ended(id, BAD) })
        .to_vec();
    shown.push(HeadJob { pull_request: Some(2), ..ended(&third, GOOD) });
    let shown: Vec<_> = shown.into_iter().map(|job| (job, Some("ci.yml"))).collect();
    assert_eq!(job_to_show(&shown), Some(2));
}

#[test]
fn strangers_pull_request_does_not_end_the_wait_for_a_run_that_is_not_over() {
    let (lint, other) = (id("5", 1, "CI", "lint"), id("8", 1, "CI", "lint"));
    let again = id("5", 2, "CI", "lint");
    let strangers = [run("8", "ci.yml", 1, RunState::Over(GOOD))];
    let found = |pull, runs: &[DownstreamRun], jobs: &[HeadJob<'_>], is_given_up| {
        let first = HeadDispatch { is_given_up, ..dispatch(&SENT, runs, jobs.to_vec()) };
        let second = dispatch(&SENT, &strangers, vec![ended(&other, GOOD)]);
        state_of(&[first, HeadDispatch { pull_request: Some(pull), ..second }])
    };
    // The tests come after the linter, and haven't begun.
    let passed = [ended(&lint, GOOD)];
    let open = [run("5", "ci.yml", 1, RunState::Open)];
    assert_eq!(found(2, &open, &passed, false), RUNNING);
    assert_eq!(found(1, &open, &passed, false), PASSED, "its own newest run");
    assert_eq!(found(2, &[], &passed, false), RUNNING, "GitHub wasn't asked yet");
    assert_eq!(found(2, &[], &passed, true), UNKNOWN);
    let failed = [run("5", "ci.yml", 1, RunState::Over(BAD))];
    let rerun = [ended(&lint, BAD), ended(&again, GOOD)];
    assert_eq!(found(2, &failed, &rerun, false), RUNNING, "it runs again");
    // How it ended isn't known, and nothing says what failed in it.
    let unknown = [run("5", "ci.yml", 1, RunState::OverUnknown)];
    assert_eq!(found(2, &unknown, &passed, false), UNKNOWN);
    assert_eq!(found(1, &unknown, &passed, false), PASSED);
}

#[test]
fn strangers_pull_request_does_not_end_the_wait_for_a_build_elsewhere() {
    let (lint, other) = (id("uuid-1", 1, "CI", "lint"), id("uuid-2", 1, "CI", "lint"));
    let elsewhere = |id, second, ends_run| HeadJob {
        heard_at: Some(at(second)),
        is_foreign: true,
        ends_run,
        ..ended(id, GOOD)
    };
    let found = |pull, ends_run| {
        let first = dispatch(&SENT, &[], vec![elsewhere(&lint, 1, ends_run)]);
        let second = dispatch(&SENT, &[], vec![elsewhere(&other, 2, true)]);
        state_of(&[first, HeadDispatch { pull_request: Some(pull), ..second }])
    };
    assert_eq!(found(2, false), RUNNING, "a step waits for a machine");
    assert_eq!(found(2, true), PASSED);
    assert_eq!(found(1, false), PASSED, "its own newest build");
}

#[test]
fn commit_that_was_superseded_before_it_was_tested_passes_no_required_check() {
    let superseded = DispatchStatus::Superseded { by: "e".to_owned() };
    let closed = DispatchStatus::LeftOut { why: LeftOut::Closed };
    let l3 = VerdictPolicy { level: Level::L3, silent: SILENT };
    let draft = DispatchStatus::LeftOut { why: LeftOut::Draft };
    for status in [&superseded, &closed, &draft] {
        let one = [dispatch(status, &[], vec![])];
        assert_eq!(state_of(&one), HeadState::Ended(Conclusion::ActionRequired));
        assert_eq!(verdict(&one, l3).unwrap().state, HeadState::Ended(Conclusion::Skipped));
    }
    assert!(!Conclusion::ActionRequired.is_good() && !Conclusion::ActionRequired.alerts_oncall());
    // It was closed while it waited, and has changed nothing that concerns the backend since it was opened again.
    let paths = DispatchStatus::LeftOut { why: LeftOut::Paths };
    let both = [dispatch(&closed, &[], vec![]), dispatch(&paths, &[], vec![])];
    assert_eq!(state_of(&both), HeadState::Ended(Conclusion::Skipped));
}

#[test]
fn failed_run_that_may_be_this_commits_is_not_settled_by_a_strangers_pull_request() {
    let (first, second) = (id("5", 1, "CI", "test"), id("8", 1, "CI", "test"));
    let old_runs = [run("5", "ci.yml", 1, RunState::Over(GOOD))];
    let new_runs = [("8", "ci.yml"), ("9", "lint.yml")];
    let new_runs = new_runs.map(|(id, file)| run(id, file, 1, RunState::Over(GOOD)));
    let (workflow, is_open) = ("lint.yml".to_owned(), false);
    let shared = [SharedRuns { workflow, is_open, are_good: false, include_own: true }];
    let given_up = |first| HeadDispatch { are_runs_known: false, is_given_up: true, ..first };
    for (pull, expected) in [(1, PASSED), (2, UNKNOWN)] {
        let older = dispatch(&SENT, &old_runs, vec![ended(&first, GOOD)]);
        let newer = dispatch(&SENT, &new_runs, vec![ended(&second, GOOD)]);
        let newer = HeadDispatch { pull_request: Some(pull), ..newer };
        let doubtful = HeadDispatch { shared_runs: &shared, ..older.clone() };
        assert_eq!(state_of(&[doubtful, newer.clone()]), expected, "{pull}");
        assert_eq!(state_of(&[given_up(older), newer]), expected, "{pull}");
    }
}

#[test]
fn skipped_jobs_alone_are_a_success_nowhere() {
    let job_id = id("5", 1, "CI", "test");
    let runs = [run("5", "ci.yml", 1, RunState::Over(GOOD))];
    let one = [dispatch(&SENT, &runs, vec![ended(&job_id, Conclusion::Skipped)])];
    assert_eq!(state_of(&one), UNKNOWN);
    let l3 = VerdictPolicy { level: Level::L3, silent: SILENT };
    let found = verdict(&one, l3).unwrap().state;
    assert_eq!(found, HeadState::Ended(Conclusion::Skipped));
}

#[test]
fn dispatch_sent_as_a_trial_says_so() {
    let trial = HeadDispatch { is_trial: true, ..dispatch(&SENT, &[], vec![]) };
    let reason = verdict(&[trial], L4).unwrap().reason;
    assert!(reason.contains("as a trial, because somebody asked for it"), "{reason}");
}

#[test]
fn what_is_not_known_of_an_older_dispatch_is_settled_by_a_newer_one() {
    let (first, second) = (id("5", 1, "CI", "test"), id("8", 1, "CI", "test"));
    let lost = HeadDispatch {
        are_runs_known: false,
        is_given_up: true,
        ..dispatch(&SENT, &[], vec![ended(&first, GOOD)])
    };
    assert_eq!(state_of(std::slice::from_ref(&lost)), UNKNOWN);
    let runs = [run("8", "ci.yml", 1, RunState::Over(GOOD))];
    let newer = dispatch(&SENT, &runs, vec![ended(&second, GOOD)]);
    assert_eq!(state_of(&[lost, newer]), PASSED);
}

#[test]
fn job_that_is_open_when_its_run_is_over_is_waited_for_by_its_name() {
    let job_id = id("5", 1, "CI", "test");
    let open = proven(&job_id, JobState::InProgress);
    let reason = |state| {
        let runs = [run("5", "ci.yml", 1, state)];
        verdict(&[dispatch(&SENT, &runs, vec![open])], L4).unwrap().reason
    };
    assert_eq!(reason(RunState::Open), "Running");
    let waits = "Waiting for the end of job `test`, which was never reported";
    assert_eq!(reason(RunState::Over(GOOD)), waits);
    let runs = [run("5", "ci.yml", 1, RunState::Over(GOOD))];
    let unproven = HeadJob { ended_without_proof: true, ..open };
    let found = state_of(&[dispatch(&SENT, &runs, vec![unproven])]);
    assert_eq!(
        found,
        HeadState::Ended(Conclusion::Cancelled),
        "an end without proof isn't a success"
    );
}

#[test]
fn run_of_another_workflow_that_github_does_not_list_replaces_none() {
    let (build, lint) = (id("5", 1, "Build", "b"), id("6", 1, "Lint", "l"));
    let jobs = vec![ended(&build, BAD), ended(&lint, GOOD)];
    let one = HeadDispatch { is_given_up: true, ..dispatch(&SENT, &[], jobs) };
    assert_eq!(state_of(&[one]), FAILED);
}

#[test]
fn run_that_github_has_not_listed_is_not_replaced_by_one_of_another_file_with_its_workflows_name() {
    let (build, test) = (id("5", 1, "CI", "build"), id("6", 1, "CI", "test"));
    let runs = [run("6", "test.yml", 1, RunState::Over(GOOD))];
    let jobs = vec![ended(&build, GOOD), ended(&test, GOOD)];
    assert_eq!(state_of(&[dispatch(&SENT, &runs, jobs)]), RUNNING);
}

#[test]
fn the_verdict_names_the_run_to_look_at() {
    let (build, lint) = (id("5", 1, "Build", "b"), id("6", 1, "Lint", "l"));
    let runs = [
        run("5", "build.yml", 1, RunState::Over(BAD)),
        run("6", "lint.yml", 1, RunState::Over(GOOD)),
    ];
    let jobs = vec![ended(&build, BAD), ended(&lint, GOOD)];
    let found = verdict(&[dispatch(&SENT, &runs, jobs)], L4).unwrap();
    assert_eq!(found.run.as_deref(), Some("5"), "the one that failed");
}

#[test]
fn job_of_two_workflow_files_of_one_name_shows_the_worse_of_both() {
    let (a, b) = (id("5", 1, "CI", "test"), id("6", 1, "CI", "test"));
    let (failed, passed) = (ended(&a, BAD), ended(&b, GOOD));
    let two_files = [(failed, Some("a.yml")), (passed, Some("b.yml"))];
    assert_eq!(job_to_show(&two_files), Some(0));
    let one_file = [(failed, Some("a.yml")), (passed, Some("a.yml"))];
    assert_eq!(job_to_show(&one_file), Some(1), "the newest run");
    let open = proven(&b, JobState::InProgress);
    assert_eq!(job_to_show(&[(failed, Some("a.yml")), (open, Some("b.yml"))]), Some(0));
    let good = ended(&a, GOOD);
    let is_awaited = job_to_show(&[(good, Some("a.yml")), (open, Some("b.yml"))]) == Some(1);
    assert!(is_awaited, "success of one file says nothing of the other's run");
    // Until GitHub said which file a run is of, it may be the same.
    for (first, second) in [(None, Some("b.yml")), (Some("a.yml"), None)] {
        assert_eq!(job_to_show(&[(failed, first), (open, second)]), Some(1), "the newest run");
    }
    assert_eq!(job_to_show(&[]), None);
}

#[test]
fn job_that_a_strangers_pull_request_skips_or_cancels_shows_what_it_was() {
    let (older, newer) = (id("5", 1, "CI", "test"), id("6", 1, "CI", "test"));
    for end in [BAD, GOOD] {
        let shown = |newer| job_to_show(&[(ended(&older, end), None), (newer, None)]);
        let of_pull = |pull_request, state| HeadJob { pull_request, ..proven(&newer, state) };
        let nothing = [Conclusion::Skipped, Conclusion::Cancelled].map(JobState::Completed);
        for state in nothing.into_iter().chain([JobState::Lost]) {
            assert_eq!(shown(of_pull(Some(2), state)), Some(0), "{end} {state:?}");
            assert_eq!(shown(of_pull(None, state)), Some(0), "{end} {state:?}");
            assert_eq!(shown(of_pull(Some(1), state)), Some(1), "its own newest run");
        }
        for state in [JobState::Completed(GOOD), JobState::Completed(BAD)] {
            assert_eq!(shown(of_pull(Some(2), state)), Some(1), "it ran again");
        }
    }
}
