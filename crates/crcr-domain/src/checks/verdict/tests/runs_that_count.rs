//! The jobs and runs that a verdict rests on.

use super::*;

#[test]
fn jobs_of_a_replaced_run_do_not_count() {
    let ids = [("5", "test"), ("6", "test"), ("6", "lint")].map(|(run, job)| id(run, 1, "CI", job));
    let [old, new] =
        [("5", BAD), ("6", GOOD)].map(|(name, end)| [run(name, "ci.yml", 1, RunState::Over(end))]);
    let dispatches = [
        dispatch(&SENT, &old, vec![ended(&ids[0], BAD)]),
        dispatch(&SENT, &new, vec![ended(&ids[1], GOOD), ended(&ids[2], GOOD)]),
    ];
    assert_eq!(counted_jobs(&dispatches), [[&ids[1], &ids[2]]]);
    assert!(failed_runs(&dispatches).is_empty());
}

/// *Re-run* runs them again. GitHub refuses that for an open run, and a build elsewhere isn't GitHub's.
#[test]
fn failed_runs_are_over_and_on_github() {
    let ids = [("5", "CI"), ("6", "Lint"), ("7", "Docs"), ("b1", "Build")]
        .map(|(run, workflow)| id(run, 1, workflow, "job"));
    let runs = [
        run("5", "ci.yml", 1, RunState::Over(BAD)),
        run("6", "lint.yml", 1, RunState::Over(GOOD)),
        run("7", "docs.yml", 1, RunState::Open),
    ];
    let elsewhere = HeadJob { is_foreign: true, ends_run: true, ..ended(&ids[3], BAD) };
    let jobs = vec![ended(&ids[0], BAD), ended(&ids[1], GOOD), ended(&ids[2], BAD), elsewhere];
    assert_eq!(failed_runs(&[dispatch(&SENT, &runs, jobs)]), ["5"]);
}

/// A backend that notices that it got a dispatch twice ends the second run, which then reports nothing.
#[test]
fn second_run_of_a_dispatch_counts_alone_once_it_has_reported_what_the_first_one_did() {
    let [test, lint, test_again, lint_again] =
        [("5", "test"), ("5", "lint"), ("8", "test"), ("8", "lint")]
            .map(|(run, job)| id(run, 1, "CI", job));
    let found = |end, second: &[(&JobId, Conclusion)]| {
        let failed_jobs = Some(vec![]);
        let first = run("5", "ci.yml", 1, RunState::Over(end));
        let runs =
            [DownstreamRun { failed_jobs, ..first }, run("8", "ci.yml", 1, RunState::Over(GOOD))];
        let mut jobs = vec![ended(&test, end), ended(&lint, GOOD)];
        jobs.extend(second.iter().map(|(job, end)| ended(job, *end)));
        state_of(&[dispatch(&SENT, &runs, jobs)])
    };
    assert_eq!(found(GOOD, &[]), PASSED);
    assert_eq!(found(BAD, &[]), FAILED);
    assert_eq!(found(BAD, &[(&lint_again, GOOD)]), FAILED);
    assert_eq!(found(BAD, &[(&test_again, Conclusion::Skipped), (&lint_again, GOOD)]), FAILED);
    assert_eq!(found(BAD, &[(&test_again, GOOD), (&lint_again, GOOD)]), PASSED);
    // A job that reports nothing has failed in the first one.
    let runs =
        [run("5", "ci.yml", 1, RunState::Over(BAD)), run("8", "ci.yml", 1, RunState::Over(GOOD))];
    let jobs = vec![ended(&lint, GOOD), ended(&lint_again, GOOD)];
    assert_eq!(state_of(&[dispatch(&SENT, &runs, jobs)]), FAILED);
}
