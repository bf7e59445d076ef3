//! Builds elsewhere than on GitHub: their names, their order, their steps and their ends.

use super::*;

#[test]
fn failed_build_of_one_pipeline_is_not_hidden_by_another_pipelines_build_of_one_name() {
    fn in_pipeline<'a>(id: &'a JobId, pipeline: Option<&'a str>, end: Conclusion) -> HeadJob<'a> {
        HeadJob { is_foreign: true, ends_run: true, pipeline, ..ended(id, end) }
    }
    let found = |pipelines: [Option<&'static str>; 2]| {
        let [one, other] = ["uuid-1", "uuid-2"].map(|build| id(build, 1, "CI", "test"));
        let first = in_pipeline(&one, pipelines[0], BAD);
        let second = HeadJob { heard_at: Some(at(9)), ..in_pipeline(&other, pipelines[1], GOOD) };
        state_of(&[dispatch(&SENT, &[], vec![first, second])])
    };
    let two = [Some("org/one"), Some("org/two")];
    assert_eq!(found(two), FAILED);
    assert_eq!(found([Some("org/one"); 2]), PASSED, "a newer build");
    assert_eq!(found([None, Some("org/two")]), PASSED);
    // Builds of one number: the end of one isn't that of the other.
    let [one, other] = ["test", "lint"].map(|job| id("7", 1, "CI", job));
    let last = in_pipeline(&one, two[0], GOOD);
    let first = HeadJob { ends_run: false, ..in_pipeline(&other, two[1], GOOD) };
    assert_eq!(state_of(&[dispatch(&SENT, &[], vec![last, first])]), RUNNING);
    assert_eq!(job_to_show(&[(last, two[0]), (in_pipeline(&one, two[1], BAD), two[1])]), Some(1));
}

/// Reports name a build by its id or by its number.
#[test]
fn build_is_one_by_either_of_its_names_and_ordered_by_its_number() {
    let pipeline = Some("org/one");
    let job = |id: &'static JobId, number, second, end| HeadJob {
        is_foreign: true,
        ends_run: true,
        pipeline,
        build_number: Some(number),
        heard_at: Some(at(second)),
        ..ended(id, end)
    };
    let leak =
        |run: &str, job: &str| -> &'static JobId { Box::leak(Box::new(id(run, 1, "CI", job))) };
    let state = |jobs: Vec<HeadJob<'_>>| state_of(&[dispatch(&SENT, &[], jobs)]);
    let (by_id, by_number) = (leak("uuid-58", "test"), leak("58", "lint"));
    let failed = job(by_id, 58, 1, BAD);
    assert_eq!(state(vec![failed, job(by_number, 58, 2, GOOD)]), FAILED);
    let both = [proven(leak("58", "test"), JobState::InProgress), job(by_id, 58, 1, BAD)]
        .map(|one| HeadJob { is_foreign: true, pipeline, build_number: Some(58), ..one });
    assert_eq!(state(both.to_vec()), FAILED, "the start and the end have two names");
    // The first report of the newer build was received by a clock that is behind.
    let newer = job(leak("uuid-59", "test"), 59, 0, GOOD);
    assert_eq!(state(vec![failed, newer]), PASSED);
    assert_eq!(job_to_show(&[(failed, None), (newer, None)]), Some(1));
    let newer = job(leak("a-59", "test"), 59, 0, BAD);
    assert_eq!(state(vec![job(by_id, 58, 1, GOOD), newer]), FAILED);
}

/// The step that says that a build is over doesn't run when the build is cancelled.
#[test]
fn strangers_build_that_was_cancelled_blocks_nobody_once_its_pull_request_is_gone() {
    let (first, second) = (id("uuid-1", 1, "CI", "test"), id("uuid-2", 1, "CI", "test"));
    let found = |state, is_abandoned, of_known| {
        let known = HeadJob { is_foreign: true, ends_run: true, ..ended(&first, of_known) };
        let left = HeadJob { is_foreign: true, heard_at: Some(at(9)), ..proven(&second, state) };
        let others = dispatch(&SENT, &[], vec![left]);
        let others = HeadDispatch { pull_request: Some(2), is_abandoned, ..others };
        state_of(&[dispatch(&SENT, &[], vec![known]), others])
    };
    let cancelled = JobState::Completed(Conclusion::Cancelled);
    for state in [cancelled, JobState::Lost] {
        assert_eq!(found(state, true, GOOD), PASSED, "{state:?}");
        assert_eq!(found(state, true, BAD), FAILED, "{state:?}");
        assert_eq!(found(state, false, GOOD), RUNNING, "{state:?}");
    }
    assert_eq!(found(JobState::Completed(BAD), true, GOOD), RUNNING, "it may have failed");
    assert_eq!(found(JobState::InProgress, true, GOOD), RUNNING);
}

#[test]
fn build_elsewhere_ends_by_its_own_word_and_never_by_silence() {
    let (test, lint) = (id("uuid", 1, "pipe", "test"), id("uuid", 1, "pipe", "lint"));
    let retried = id("uuid", 2, "pipe", "test");
    let foreign = |job: HeadJob<'static>| HeadJob { is_foreign: true, ..job };
    let (test, lint, retried): (&'static JobId, &'static JobId, &'static JobId) =
        (Box::leak(Box::new(test)), Box::leak(Box::new(lint)), Box::leak(Box::new(retried)));
    let found = |jobs: Vec<HeadJob<'static>>, is_given_up| {
        state_of(&[HeadDispatch { is_given_up, ..dispatch(&SENT, &[], jobs) }])
    };
    let lint = foreign(ended(lint, GOOD));
    assert_eq!(found(vec![lint], false), RUNNING);
    assert_eq!(found(vec![lint], true), UNKNOWN, "nothing was reported, so it may have failed");
    let last = HeadJob { ends_run: true, ..lint };
    assert_eq!(found(vec![last], false), PASSED);
    let failed = foreign(ended(test, BAD));
    assert_eq!(found(vec![last, failed], false), FAILED);
    let again = foreign(proven(retried, JobState::InProgress));
    assert_eq!(found(vec![last, failed, again], false), RUNNING, "a step is retried");
    let passed = foreign(ended(retried, GOOD));
    assert_eq!(found(vec![last, failed, passed], false), PASSED);
    // What said that the run is over is retried itself.
    let failed_last = HeadJob { ends_run: true, ..failed };
    assert_eq!(found(vec![failed_last, passed], false), PASSED);
    assert_eq!(found(vec![passed, failed_last], false), PASSED);
}

#[test]
fn parallel_step_that_was_not_retried_keeps_its_failure_when_another_one_passes_on_its_retry() {
    let (first, retried) = (&id("a", 1, "CI", "test"), &id("a", 2, "CI", "test"));
    let step = |id, end, reported, without_success| HeadJob {
        is_foreign: true,
        ends_run: true,
        steps: StepCounts { reported, without_success },
        ..ended(id, end)
    };
    let passed = step(retried, GOOD, 1, 0);
    let both = |failed| vec![step(first, BAD, 2, failed), passed];
    let shown = |jobs| verdict(&[dispatch(&SENT, &[], jobs)], L4).unwrap().state;
    assert_eq!(
        shown(both(1)),
        HeadState::Ended(GOOD),
        "the step that failed is the one that was retried"
    );
    assert_eq!(shown(both(2)), HeadState::Ended(BAD), "another one had failed, too");
    let (both_again, other_retried) = (&id("a", 2, "CI", "test"), &id("a", 2, "CI", "lint"));
    let mut jobs = both(2);
    jobs[1] = step(both_again, GOOD, 2, 0);
    jobs.push(step(other_retried, GOOD, 1, 0));
    assert_eq!(shown(jobs), HeadState::Ended(GOOD), "a retry of another step says nothing of this");
    let jobs = both(2).into_iter().map(|job| (job, None)).collect::<Vec<_>>();
    assert_eq!(job_to_show(&jobs), Some(0));
    let jobs = both(1).into_iter().map(|job| (job, None)).collect::<Vec<_>>();
    assert_eq!(job_to_show(&jobs), Some(1));
}

#[test]
fn of_runs_without_an_order_in_their_ids_the_one_heard_last_counts() {
    let (first, second) = (id("uuid-z", 1, "CI", "test"), id("uuid-a", 1, "CI", "test"));
    let job = |id, end, second| HeadJob {
        heard_at: Some(at(second)),
        is_foreign: true,
        ends_run: true,
        ..ended(id, end)
    };
    let jobs = vec![job(&first, BAD, 1), job(&second, GOOD, 2)];
    assert_eq!(state_of(&[dispatch(&SENT, &[], jobs)]), PASSED);
}

#[test]
fn failed_build_elsewhere_is_not_hidden_by_a_github_run_of_the_same_workflow_name() {
    let (build, on_github) = (id("57", 1, "CI", "test"), id("9000", 1, "CI", "test"));
    let elsewhere = |end| HeadJob { is_foreign: true, ends_run: true, ..ended(&build, end) };
    for (there, here) in [(BAD, GOOD), (GOOD, BAD)] {
        let jobs = vec![elsewhere(there), ended(&on_github, here)];
        let runs = [run("9000", "CI", 1, RunState::Over(here))];
        assert_eq!(state_of(&[dispatch(&SENT, &runs, jobs.clone())]), FAILED);
        let shown: Vec<_> = jobs.into_iter().zip([None, Some("ci.yml")]).collect();
        let shown = job_to_show(&shown).map(|index| shown[index].0.state);
        assert_eq!(shown, Some(JobState::Completed(BAD)));
    }
}

/// Tokens may lack both names of a build, and then a report may name any.
#[test]
fn build_that_is_named_like_a_github_run_does_not_end_that_run() {
    let [lint, test] = ["lint", "test"].map(|job| id("9000", 1, "CI", job));
    let elsewhere = HeadJob { is_foreign: true, ends_run: true, ..ended(&lint, GOOD) };
    let on_github = ended(&test, GOOD);
    assert!(!elsewhere.is_of_run_of(&on_github));
    for (state, expected) in [(RunState::Open, RUNNING), (RunState::Over(GOOD), PASSED)] {
        let runs = [run("9000", "ci.yml", 1, state)];
        for jobs in [vec![elsewhere, on_github], vec![on_github, elsewhere]] {
            assert_eq!(state_of(&[dispatch(&SENT, &runs, jobs)]), expected);
        }
    }
}

#[test]
fn late_step_of_an_older_build_does_not_hide_the_newer_build() {
    let (older, newer) = ("uuid-z", "uuid-a");
    let job = |id, end, second| HeadJob {
        heard_at: Some(at(second)),
        is_foreign: true,
        ends_run: true,
        ..ended(id, end)
    };
    let (first, late) = (id(older, 1, "CI", "build"), id(older, 1, "CI", "lint"));
    let second = id(newer, 1, "CI", "build");
    let jobs = vec![job(&first, GOOD, 1), job(&second, BAD, 2), job(&late, GOOD, 3)];
    assert_eq!(state_of(&[dispatch(&SENT, &[], jobs)]), FAILED);
}

/// Its end was reported with a token of something else. So the build before it, of the same pull request, doesn't count
/// again, and neither stands for what failed for others.
#[test]
fn build_of_which_an_end_has_no_proof_is_not_taken_for_a_cancelled_one() {
    let ids = |build: &str| ["lint", "test", "end"].map(|job| id(build, 1, "CI", job));
    let (failed, passed, unproven) = (ids("uuid-1"), ids("uuid-2"), ids("uuid-3"));
    let of_build = |second, ids: &'static [JobId; 3], ends: [Option<Conclusion>; 3]| {
        let job = move |(id, end): (&'static JobId, Option<Conclusion>)| HeadJob {
            is_foreign: true,
            ends_run: id.job.as_deref() == Some("end"),
            ended_without_proof: end.is_none(),
            heard_at: Some(at(second)),
            ..end.map_or(proven(id, JobState::InProgress), |end| ended(id, end))
        };
        ids.iter().zip(ends).map(job).collect::<Vec<_>>()
    };
    let leak = |ids: [JobId; 3]| -> &'static [JobId; 3] { Box::leak(Box::new(ids)) };
    let first = of_build(1, leak(failed), [Some(BAD), Some(BAD), Some(GOOD)]);
    let second = of_build(2, leak(passed), [Some(GOOD); 3]);
    let third = of_build(3, leak(unproven), [Some(GOOD), None, Some(GOOD)]).split_off(1);
    let others = |jobs| HeadDispatch { pull_request: Some(2), ..dispatch(&SENT, &[], jobs) };
    let all = [dispatch(&SENT, &[], first), others(second), others(third)];
    assert_eq!(state_of(&all[..2]), PASSED);
    assert_eq!(state_of(&all), FAILED);
}
