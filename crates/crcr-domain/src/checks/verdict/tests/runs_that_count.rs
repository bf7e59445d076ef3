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
