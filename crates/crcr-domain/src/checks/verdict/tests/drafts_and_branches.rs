//! A required check is about the branch that a pull request goes to, and about one that is ready for review.

use super::*;

/// A workflow may leave out the tests of a draft, and of a pull request to another branch.
#[test]
fn what_ran_before_a_draft_was_ready_or_the_branch_changed_is_no_success() {
    let job_id = id("5", 1, "CI", "lint");
    let found = |end, asked: &DispatchStatus, is_overdue, is_abandoned| {
        let runs = [run("5", "ci.yml", 1, RunState::Over(end))];
        let before = dispatch(&SENT, &runs, vec![ended(&job_id, end)]);
        let asked = dispatch(asked, &[], vec![]);
        let asked = HeadDispatch { asks_anew: true, is_overdue, is_abandoned, ..asked };
        state_of(&[before, asked])
    };
    assert_eq!(found(GOOD, &SENT, false, false), HeadState::Queued);
    for (asked, expected) in [
        (&SENT, UNKNOWN),
        (&DispatchStatus::Dead, UNKNOWN),
        (&DispatchStatus::Unreachable, UNKNOWN),
        // The breaker, and the backend's own file, decide that nothing is asked.
        (&DispatchStatus::Withheld, PASSED),
        (&DispatchStatus::LeftOut { why: LeftOut::Paths }, PASSED),
    ] {
        assert_eq!(found(GOOD, asked, true, false), expected, "{asked:?}");
        assert_eq!(found(GOOD, asked, true, true), expected, "it may come back: {asked:?}");
        assert_eq!(found(BAD, asked, true, false), FAILED, "{asked:?}");
    }
    // It doesn't take back what is known of the commit from another pull request, and left it.
    let runs = [run("5", "ci.yml", 1, RunState::Over(GOOD))];
    let others = dispatch(&SENT, &runs, vec![ended(&job_id, GOOD)]);
    let asked = HeadDispatch {
        pull_request: Some(2),
        asks_anew: true,
        is_abandoned: true,
        ..dispatch(&SENT, &[], vec![])
    };
    assert_eq!(state_of(&[others, asked]), PASSED);
}

/// Anybody can open a pull request at another's commit, and send it to a branch that nobody tests.
#[test]
fn new_accounts_pull_request_that_asks_again_takes_back_nothing_that_is_known_from_others() {
    let [own, strangers] = ["5", "6"].map(|run| id(run, 1, "CI", "test"));
    let runs = ["5", "6"].map(|of| [run(of, "ci.yml", 1, RunState::Over(GOOD))]);
    let own = dispatch(&SENT, &runs[0], vec![ended(&own, GOOD)]);
    let first = dispatch(&SENT, &runs[1], vec![ended(&strangers, GOOD)]);
    let first = HeadDispatch { pull_request: Some(2), ..first };
    let found = |is_strangers, is_overdue, is_alone: bool| {
        let first = HeadDispatch { is_strangers, ..first.clone() };
        let again = dispatch(&SENT, &[], vec![]);
        let again = HeadDispatch { pull_request: Some(2), asks_anew: true, is_overdue, ..again };
        let all = [own.clone(), first, HeadDispatch { is_strangers, ..again }];
        state_of(&all[usize::from(is_alone)..])
    };
    for is_overdue in [false, true] {
        let unanswered = if is_overdue { UNKNOWN } else { HeadState::Queued };
        assert_eq!(found(true, is_overdue, false), PASSED);
        assert_eq!(found(true, is_overdue, true), unanswered, "nobody else knows anything");
        assert_eq!(found(false, is_overdue, false), unanswered);
    }
}

/// The backend's file leaves out what changes other files, and drafts.
#[test]
fn draft_of_a_new_account_does_not_block_a_pull_request_that_the_backend_does_not_take() {
    let [paths, draft, closed] = [LeftOut::Paths, LeftOut::Draft, LeftOut::Closed]
        .map(|why| DispatchStatus::LeftOut { why });
    let own = dispatch(&paths, &[], vec![]);
    let found = |status: &DispatchStatus, is_strangers, is_abandoned| {
        let pull_request = Some(2);
        let other = dispatch(status, &[], vec![]);
        let other = HeadDispatch { pull_request, is_strangers, is_abandoned, ..other };
        state_of(&[own.clone(), other])
    };
    let skipped = HeadState::Ended(Conclusion::Skipped);
    let untested = HeadState::Ended(Conclusion::ActionRequired);
    assert_eq!(found(&draft, true, false), skipped);
    assert_eq!(found(&closed, false, true), skipped);
    assert_eq!(found(&draft, false, false), untested, "it may become ready for review");
}

#[test]
fn closed_pull_request_without_an_answer_does_not_hold_one_that_the_backend_does_not_take() {
    let paths = DispatchStatus::LeftOut { why: LeftOut::Paths };
    let skipped = HeadState::Ended(Conclusion::Skipped);
    let own = dispatch(&paths, &[], vec![]);
    for (status, is_overdue, unanswered) in [
        (&DispatchStatus::Queued, false, HeadState::Queued),
        (&SENT, false, HeadState::Queued),
        (&SENT, true, UNKNOWN),
        (&DispatchStatus::Dead, false, UNKNOWN),
        (&DispatchStatus::Withheld, false, HeadState::Ended(Conclusion::Neutral)),
    ] {
        let other = |is_abandoned| HeadDispatch {
            pull_request: Some(2),
            is_overdue,
            is_abandoned,
            ..dispatch(status, &[], vec![])
        };
        let left = other(true);
        assert_eq!(state_of(&[own.clone(), left.clone()]), skipped, "{status:?}");
        assert_eq!(state_of(&[left.clone(), own.clone()]), skipped, "{status:?}");
        assert_eq!(state_of(&[own.clone(), other(false)]), unanswered, "it is there: {status:?}");
        assert_eq!(state_of(std::slice::from_ref(&left)), unanswered, "it is the only one");
        let push = HeadDispatch { pull_request: None, ..own.clone() };
        assert_eq!(state_of(&[push, left]), unanswered, "a push isn't merged: {status:?}");
    }
    // What upstream has pushed itself is waited for.
    let push = HeadDispatch { pull_request: None, ..dispatch(&SENT, &[], vec![]) };
    assert_eq!(state_of(&[push, own]), HeadState::Queued);
}

#[test]
fn draft_that_passed_passes_no_other_pull_request_at_its_commit() {
    let (lint, test) = (id("5", 1, "CI", "lint"), id("8", 1, "CI", "test"));
    let runs = [run("5", "ci.yml", 1, RunState::Over(GOOD))];
    let draft = dispatch(&SENT, &runs, vec![ended(&lint, GOOD)]);
    let draft = HeadDispatch { is_draft: true, ..draft };
    assert_eq!(state_of(std::slice::from_ref(&draft)), PASSED);
    let ready = HeadDispatch { pull_request: Some(2), ..dispatch(&SENT, &[], vec![]) };
    assert_eq!(state_of(&[draft.clone(), ready.clone()]), HeadState::Queued);
    let silent = HeadDispatch { is_overdue: true, ..ready.clone() };
    assert_eq!(state_of(&[draft.clone(), silent]), UNKNOWN);
    let runs = [run("8", "ci.yml", 1, RunState::Over(GOOD))];
    let passed = HeadDispatch { runs: &runs, jobs: vec![ended(&test, GOOD)], ..ready };
    assert_eq!(state_of(&[draft.clone(), passed.clone()]), PASSED);
    let third = HeadDispatch { pull_request: Some(3), ..dispatch(&SENT, &[], vec![]) };
    assert_eq!(state_of(&[draft, passed, third]), PASSED, "it is known already");
}

/// A job that takes longer than its workflow allows is cancelled.
#[test]
fn cancelled_job_that_another_pull_request_left_out_is_no_success() {
    let [lint, own_lint, own_test] =
        [("5", "lint"), ("8", "lint"), ("8", "test")].map(|(run, job)| id(run, 1, "CI", job));
    let passed = [run("5", "ci.yml", 1, RunState::Over(GOOD))];
    let cancelled = [run("8", "ci.yml", 1, RunState::Over(Conclusion::Cancelled))];
    let draft = dispatch(&SENT, &passed, vec![ended(&lint, GOOD)]);
    let draft = HeadDispatch { pull_request: Some(2), ..draft };
    let jobs = vec![ended(&own_lint, GOOD), ended(&own_test, Conclusion::Cancelled)];
    let own = dispatch(&SENT, &cancelled, jobs);
    assert_eq!(state_of(&[draft, own]), HeadState::Ended(Conclusion::Cancelled));
}

#[test]
fn what_was_tested_for_another_branch_is_no_success() {
    let job_id = id("5", 1, "CI", "lint");
    let runs = [run("5", "ci.yml", 1, RunState::Over(GOOD))];
    let tested = |base_branch| HeadDispatch {
        base_branch,
        ..dispatch(&SENT, &runs, vec![ended(&job_id, GOOD)])
    };
    let asked = |base_branch, is_overdue| HeadDispatch {
        base_branch,
        is_overdue,
        ..dispatch(&SENT, &[], vec![])
    };
    let (main, release) = (Some("main"), Some("release"));
    for (before, now, expected) in [
        (main, main, PASSED),
        (main, release, UNKNOWN),
        // One of the branches isn't known.
        (None, release, PASSED),
        (main, None, PASSED),
    ] {
        let found = state_of(&[tested(before), asked(now, true)]);
        assert_eq!(found, expected, "{before:?} {now:?}");
        assert_eq!(state_of(&[tested(before), asked(now, false)]), HeadState::Queued);
    }
    // The one between them was never sent.
    let superseded = DispatchStatus::Superseded { by: "newer".to_owned() };
    let between = HeadDispatch { status: &superseded, ..asked(release, true) };
    let found = state_of(&[tested(main), between, asked(release, true)]);
    assert_eq!(found, UNKNOWN, "what counts is what was tested");
    assert_eq!(state_of(&[tested(main), asked(release, true), tested(release)]), PASSED);
    // What is known of another pull request isn't taken back.
    let others = HeadDispatch { pull_request: Some(2), ..asked(release, true) };
    assert_eq!(state_of(&[tested(main), others]), PASSED);
}

/// A run that was cancelled before its other jobs began, such as those that a draft leaves out, says nothing of them.
#[test]
fn cancelled_run_is_not_hidden_by_a_draft_or_another_branch_that_leaves_out_its_jobs() {
    let cancelled = Conclusion::Cancelled;
    let ids = ["5", "8"].map(|run| id(run, 1, "CI", "build"));
    let found = |draft_first: bool, is_draft, base, is_abandoned| {
        let (of_draft, of_cut) = if draft_first { (0, 1) } else { (1, 0) };
        let runs = |index: usize, end| [run(&ids[index].run_id, "ci.yml", 1, RunState::Over(end))];
        let (passed, cut) = (runs(of_draft, GOOD), runs(of_cut, cancelled));
        let draft = dispatch(&SENT, &passed, vec![ended(&ids[of_draft], GOOD)]);
        let base_branch = Some(base);
        let draft = HeadDispatch { is_draft, base_branch, pull_request: Some(2), ..draft };
        let cut = dispatch(&SENT, &cut, vec![ended(&ids[of_cut], GOOD)]);
        let cut = HeadDispatch { base_branch: Some("main"), is_abandoned, ..cut };
        let all = if draft_first { [draft, cut] } else { [cut, draft] };
        let another = HeadDispatch { pull_request: Some(3), ..dispatch(&SENT, &[], vec![]) };
        let [first, second] = all.clone();
        (state_of(&all), state_of(&[first, second, another]))
    };
    for draft_first in [true, false] {
        let shown = HeadState::Ended(cancelled);
        for (is_draft, base) in [(true, "main"), (false, "release")] {
            assert_eq!(found(draft_first, is_draft, base, false), (shown, shown), "{base}");
        }
        assert_eq!(found(draft_first, false, "main", false).0, PASSED, "all of it ran again");
        // Nobody waits for a pull request that has left, and a new one waits for its own run.
        let left = found(draft_first, true, "main", true);
        assert_eq!(left, (PASSED, HeadState::Queued), "{draft_first}");
    }
}

/// A job of the same name may test another merge there, or less.
#[test]
fn failure_stays_beside_a_run_that_passes_for_another_branch_or_as_a_draft() {
    let [failed, passed] = ["5", "8"].map(|run| id(run, 1, "CI", "test"));
    let over = |id: &str, end| {
        let failed_jobs = Some(vec![]);
        [DownstreamRun { failed_jobs, ..run(id, "ci.yml", 1, RunState::Over(end)) }]
    };
    let (first_runs, second_runs) = (over("5", BAD), over("8", GOOD));
    let found = |branch, is_draft, is_abandoned| {
        let first = dispatch(&SENT, &first_runs, vec![ended(&failed, BAD)]);
        let second = dispatch(&SENT, &second_runs, vec![ended(&passed, GOOD)]);
        let (base_branch, pull_request) = (Some(branch), Some(2));
        state_of(&[
            HeadDispatch { base_branch: Some("main"), is_abandoned, ..first },
            HeadDispatch { base_branch, pull_request, is_draft, ..second },
        ])
    };
    assert_eq!(found("main", false, false), PASSED);
    assert_eq!(found("release/2.9", false, false), FAILED);
    assert_eq!(found("main", true, false), FAILED);
    assert_eq!(found("release/2.9", false, true), PASSED, "nobody waits for the first one");
}
