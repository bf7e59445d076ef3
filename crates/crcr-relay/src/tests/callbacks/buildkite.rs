//! Reports of Buildkite's builds.

use crcr_domain::RepoName;
use crcr_domain::protocol::dispatch::Dispatch;
use crcr_store::read_record;

use super::strangers::draft_of_the_author;
use super::*;
use crate::callback::kept_trust;
use crate::limits;
use crate::queue::handlers::{head, sweep};
use crate::state_records;

/// A relay at which a Buildkite pipeline reports for `acme/four`.
async fn buildkite_world() -> World {
    let folder = tempfile::tempdir().unwrap();
    let map = folder.path().join("providers.yml");
    std::fs::write(
        &map,
        "providers:\n  buildkite:\n    repo_map:\n      org-1/pipe-1: acme/four\n      org-1/pipe-2: acme/four\n",
    )
    .unwrap();
    let map = format!("file:{}", map.display());
    let world =
        World::with_issuer("https://agent.buildkite.com", &[("CI_PROVIDERS_URL", &map)]).await;
    kept_trust::refresh_providers(&world.relay).await;
    world
}

fn buildkite_claims(world: &World, build: &str) -> Value {
    let now = world.relay.now().as_second();
    json!({
        "iss": "https://agent.buildkite.com", "aud": "pytorch-cross-repo-ci-relay", "iat": now,
        "nbf": now, "exp": now + 300, "organization_id": "org-1", "pipeline_id": "pipe-1",
        "build_id": build, "job_id": "job-1", "build_branch": "main",
    })
}

/// The report of a job of this build, which has started if it has no conclusion.
fn body_of(
    four: &Downstream,
    build: &str,
    (job, conclusion): (&str, Option<&str>),
    is_end_of_build: bool,
) -> Value {
    let status = if conclusion.is_some() { "completed" } else { "in_progress" };
    let mut body = four.body(status, conclusion);
    body["workflow"]["run_id"] = json!(build);
    body["workflow"]["job_name"] = json!(job);
    body["workflow"]["run_ended"] = json!(is_end_of_build);
    body
}

/// The first report of the older build may be the end of a step, whose start got lost.
#[tokio::test]
pub(crate) async fn step_that_starts_late_makes_no_buildkite_build_the_newest_one() {
    let (world, four) = buildkite_world().await.opened("acme/four").await;
    let (older, newer) = ("ffffffff-older", "00000000-newer");
    for (build, step, conclusion) in [
        (older, "job-1", Some("success")),
        (newer, "job-2", Some("failure")),
        (older, "job-3", None),
        (older, "job-3", Some("success")),
    ] {
        let status = if conclusion.is_some() { "completed" } else { "in_progress" };
        let mut body = four.body(status, conclusion);
        body["workflow"]["run_id"] = json!(build);
        body["workflow"]["run_ended"] = json!(step != "job-1");
        let mut claims = buildkite_claims(&world, build);
        claims["job_id"] = json!(step);
        assert_eq!(four.report_as(&world, &claims, &body).await, said(status), "{build} {step}");
        world.later(Duration::from_secs(60));
    }
    world.settle().await;
    assert_eq!(shown_job(&world).1.as_deref(), Some("failure"));
    assert_eq!(checks(&world)[0], check(DISPATCH, "completed", Some("failure")));
}

/// Reports name the build by its id or its number, and the clock that receives the newer build's may be behind.
#[tokio::test]
pub(crate) async fn buildkite_build_is_one_by_either_name_and_ordered_by_its_number() {
    let (world, four) = buildkite_world().await.opened("acme/four").await;
    for (id, number, named, job, conclusion) in [
        ("uuid-58", 58, "uuid-58", "test", "failure"),
        ("uuid-58", 58, "58", "lint", "success"),
        ("uuid-57", 57, "uuid-57", "test", "success"),
    ] {
        let is_end = job == "lint" || number == 57;
        let body = body_of(&four, named, (job, Some(conclusion)), is_end);
        let mut claims = buildkite_claims(&world, id);
        claims["build_number"] = json!(number);
        assert_eq!(four.report_as(&world, &claims, &body).await, said("completed"), "{named}");
        world.later(Duration::from_secs(60));
    }
    world.settle().await;
    assert_eq!(shown_job(&world).1.as_deref(), Some("failure"));
    assert_eq!(checks(&world)[0], check(DISPATCH, "completed", Some("failure")));
}

#[tokio::test]
pub(crate) async fn buildkite_step_that_waits_for_a_machine_is_waited_for() {
    let (world, four) = buildkite_world().await.opened("acme/four").await;
    let report = async |job: &str, conclusion: &str, run_ended: bool| {
        let body = body_of(&four, "12", (job, Some(conclusion)), run_ended);
        let claims = buildkite_claims(&world, "12");
        assert_eq!(four.report_as(&world, &claims, &body).await, said("completed"), "{job}");
        world.settle().await;
    };
    report("lint", "success", false).await;
    for _ in 0..5 {
        world.wait(Duration::from_secs(20 * 60)).await;
        assert_eq!(checks(&world)[0], check(DISPATCH, "in_progress", None));
    }
    report("test", "failure", true).await;
    world.wait(Duration::from_secs(75)).await;
    assert_eq!(checks(&world)[0], check(DISPATCH, "completed", Some("failure")));
}

#[tokio::test]
pub(crate) async fn buildkite_build_that_answers_one_dispatch_reports_for_no_other_one() {
    let (world, older) = buildkite_world().await.opened("acme/four").await;
    world.push(NEWER).await;
    let newer = received(&world)("acme/four");
    let report = async |four: &Downstream, pipeline: &str| {
        let mut body = four.body("completed", OK);
        body["workflow"]["run_id"] = json!("12");
        let mut claims = buildkite_claims(&world, "12");
        claims["pipeline_id"] = json!(pipeline);
        four.report_as(&world, &claims, &body).await.0
    };
    assert_eq!(report(&older, "pipe-1").await, StatusCode::OK);
    assert_eq!(report(&newer, "pipe-1").await, StatusCode::BAD_REQUEST);
    assert_eq!(
        report(&newer, "pipe-2").await,
        StatusCode::OK,
        "its builds have numbers of their own"
    );
}

#[tokio::test]
pub(crate) async fn buildkite_build_answers_one_dispatch_by_whichever_of_its_names() {
    let (world, older) = buildkite_world().await.opened("acme/four").await;
    world.push(NEWER).await;
    let newer = received(&world)("acme/four");
    let report = async |four: &Downstream, name: &str, (id, number): (Option<&str>, &str)| {
        let mut body = four.body("completed", OK);
        body["workflow"]["run_id"] = json!(name);
        let mut claims = buildkite_claims(&world, "");
        // Its agents may leave out the id.
        claims["build_id"] = json!(id);
        claims["build_number"] = json!(number);
        four.report_as(&world, &claims, &body).await.0
    };
    let (one, two) =
        ("0190046e-e199-453b-a302-a21a4d649d31", "0190046e-e199-453b-a302-a21a4d649d32");
    assert_eq!(report(&older, one, (Some(one), "58")).await, StatusCode::OK);
    assert_eq!(report(&newer, "58", (Some(one), "58")).await, StatusCode::BAD_REQUEST);
    assert_eq!(report(&newer, "58", (None, "58")).await, StatusCode::BAD_REQUEST);
    assert_eq!(report(&older, "58", (None, "58")).await, StatusCode::OK);
    assert_eq!(report(&newer, "59", (None, "59")).await, StatusCode::OK);
    assert_eq!(report(&older, two, (Some(two), "59")).await, StatusCode::BAD_REQUEST);
}

#[tokio::test]
pub(crate) async fn failed_build_is_not_hidden_by_the_build_of_another_pipeline_of_one_workflow_name()
 {
    let (world, four) = buildkite_world().await.opened("acme/four").await;
    let failed = Some("failure");
    for (pipeline, build, conclusion) in
        [("pipe-1", "build-1", failed), ("pipe-2", "build-2", OK), ("pipe-2", "build-3", OK)]
    {
        let mut body = four.body("completed", conclusion);
        body["workflow"]["run_id"] = json!(build);
        body["workflow"]["run_ended"] = json!(true);
        let mut claims = buildkite_claims(&world, build);
        claims["pipeline_id"] = json!(pipeline);
        assert_eq!(four.report_as(&world, &claims, &body).await, said("completed"), "{build}");
        world.wait(Duration::from_secs(60)).await;
    }
    assert_eq!(checks(&world)[0], check(DISPATCH, "completed", failed));
    assert_eq!(shown_job(&world).1.as_deref(), failed);
}

const OK: Option<&str> = Some("success");

/// Reports steps of one build, each with its job, attempt and conclusion (none at its start), and then the build's end.
/// All are named as [`JOB`].
async fn report_steps(world: &World, steps: &[(&str, &str, Option<&str>)]) {
    let four = open(world).await("acme/four");
    let build = "0190046e-e199-453b-a302-a21a4d649d31";
    let name = JOB.rsplit('/').next().unwrap();
    let steps = steps.iter().map(|(job, attempt, end)| (*job, *attempt, name, *end));
    for (job, attempt, name, end) in steps.chain([("job-9", "1", "report", Some("success"))]) {
        let mut body = body_of(&four, build, (name, end), name == "report");
        body["workflow"]["run_attempt"] = json!(attempt);
        let mut claims = buildkite_claims(world, build);
        claims["job_id"] = json!(job);
        // A later end under the same name is answered as a duplicate.
        assert_eq!(four.report_as(world, &claims, &body).await.0, StatusCode::OK, "{job}");
        world.settle().await;
    }
    world.wait(Duration::from_secs(5 * 60)).await;
}

fn shown_job(world: &World) -> (String, Option<String>) {
    let runs = world.github.state().world.check_runs(UPSTREAM);
    let run = runs.into_iter().find(|run| run.name == JOB).expect("it is shown");
    (run.status, run.conclusion)
}

#[tokio::test]
pub(crate) async fn parallel_buildkite_step_that_fails_is_not_hidden_by_the_retry_of_another_one() {
    let world = buildkite_world().await;
    // Two parallel steps of one name, of which the first fails and passes on its retry. The second one fails later.
    let failed = [
        ("job-1", "1", Some("failure")),
        ("job-3", "2", Some("success")),
        ("job-2", "1", Some("cancelled")),
    ];
    report_steps(&world, &failed).await;
    assert_eq!(shown_job(&world).1.as_deref(), Some("failure"));
    assert_eq!(checks(&world)[0], check(DISPATCH, "completed", Some("failure")));
}

/// A last step reports for all others. It may name a check run for each of them.
#[tokio::test]
pub(crate) async fn parallel_buildkite_step_that_fails_is_not_hidden_by_another_one_with_the_same_token()
 {
    let (passed, failed) = (("1", OK), ("2", Some("failure")));
    for (steps, are_named) in
        [([passed, failed], false), ([passed, failed], true), ([failed, passed], true)]
    {
        let (world, four) = buildkite_world().await.opened("acme/four").await;
        let build = "0190046e-e199-453b-a302-a21a4d649d31";
        let mut claims = buildkite_claims(&world, build);
        claims["jti"] = json!("of the last step");
        for (number, end) in steps {
            let mut body = body_of(&four, build, ("test", end), true);
            if are_named {
                body["workflow"]["check_run_id"] = json!(number);
            }
            let answer = four.report_as(&world, &claims, &body).await;
            assert_eq!(answer, said("completed"), "{steps:?}");
        }
        world.wait(Duration::from_secs(5 * 60)).await;
        let failure = check(DISPATCH, "completed", Some("failure"));
        assert_eq!(checks(&world)[0], failure, "{steps:?}");
    }
}

#[tokio::test]
pub(crate) async fn parallel_buildkite_step_that_never_ends_is_not_hidden_by_the_success_of_another_one()
 {
    let retried =
        [("job-1", "1", None), ("job-2", "1", None), ("job-3", "2", None), ("job-3", "2", OK)];
    let ended_first = [("job-1", "1", None), ("job-2", "1", None), ("job-1", "1", OK)];
    let started_late = [("job-1", "1", None), ("job-1", "1", OK), ("job-2", "1", None)];
    for steps in [&retried[..], &ended_first, &started_late] {
        let world = buildkite_world().await;
        report_steps(&world, steps).await;
        assert_eq!(checks(&world)[0], check(DISPATCH, "in_progress", None), "{steps:?}");
        world.wait(world.relay.config.lost_after).await;
        assert_eq!(checks(&world)[0], check(DISPATCH, "completed", Some("timed_out")), "{steps:?}");
    }
}

/// Only so many deliveries of one author at a commit are read.
#[tokio::test]
pub(crate) async fn author_cannot_hide_a_lost_buildkite_job_behind_many_drafts() {
    let world = buildkite_world().await;
    report_steps(&world, &[("job-1", "1", None)]).await;
    world.wait(world.relay.config.lost_after).await;
    assert_eq!(checks(&world)[0], check(DISPATCH, "completed", Some("timed_out")));
    for number in 0..limits::DELIVERIES_PER_ORIGIN as u64 {
        let draft = draft_of_the_author(&world, 100 + number).await;
        let build = format!("build-{number}");
        let body = body_of(&draft, &build, ("lint", OK), true);
        let claims = buildkite_claims(&world, &build);
        assert_eq!(draft.report_as(&world, &claims, &body).await, said("completed"), "{build}");
    }
    for _ in 0..3 {
        world.wait(Duration::from_secs(2 * 60)).await;
    }
    assert_eq!(checks(&world)[0], check(DISPATCH, "completed", Some("timed_out")));
}

#[tokio::test]
pub(crate) async fn parallel_buildkite_step_that_starts_late_has_its_own_time_until_it_is_lost() {
    let (world, four) = buildkite_world().await.opened("acme/four").await;
    let build = "0190046e-e199-453b-a302-a21a4d649d31";
    let report = async |step: &str, end: Option<&str>| {
        let status = if end.is_some() { "completed" } else { "in_progress" };
        let mut body = four.body(status, end);
        body["workflow"]["run_id"] = json!(build);
        let mut claims = buildkite_claims(&world, build);
        claims["job_id"] = json!(step);
        assert_eq!(four.report_as(&world, &claims, &body).await, said(status), "{step}");
        world.settle().await;
    };
    let (minute, lost_after) = (Duration::from_secs(60), world.relay.config.lost_after);
    report("job-1", None).await;
    report("job-1", OK).await;
    world.wait(lost_after - minute).await;
    report("job-2", None).await;
    assert_eq!(checks_after(&world, 2 * minute).await[0], check(DISPATCH, "in_progress", None));
    assert_eq!(shown_job(&world), ("in_progress".to_owned(), None));
    world.wait(lost_after).await;
    assert_eq!(shown_job(&world), ("completed".to_owned(), Some("timed_out".to_owned())));
}

/// The sweep has read the job when the other step starts.
#[tokio::test]
pub(crate) async fn parallel_buildkite_step_that_starts_while_its_job_is_found_lost_is_not_lost() {
    let (world, four) = buildkite_world().await.opened("acme/four").await;
    let report = async |step: &str| {
        let mut body = four.body("in_progress", None);
        body["workflow"]["run_id"] = json!("0190046e-e199-453b-a302-a21a4d649d31");
        let mut claims = buildkite_claims(&world, "0190046e-e199-453b-a302-a21a4d649d31");
        claims["job_id"] = json!(step);
        assert_eq!(four.report_as(&world, &claims, &body).await, said("in_progress"), "{step}");
    };
    report("job-1").await;
    let repo = RepoName::new("acme/four").unwrap();
    let delivery = four.client_payload["delivery_id"].as_str().unwrap();
    let mut jobs = head::jobs(&world.relay, delivery, &repo).await.unwrap();
    world.later(world.relay.config.lost_after);
    report("job-2").await;
    let key = state_records::dispatch_key(delivery, &repo);
    let read = read_record::<Dispatch>(world.relay.store.as_ref(), key).await.unwrap();
    let dispatch = read.value.unwrap();
    let sent_at = dispatch.sent_at().unwrap();
    assert!(sweep::mark_lost(&world.relay, &dispatch, sent_at, &mut jobs[0]).await.is_ok());
    assert_eq!(jobs[0].state, JobState::InProgress);
    world.settle().await;
    assert_eq!(shown_job(&world), ("in_progress".to_owned(), None));
}

#[tokio::test]
pub(crate) async fn parallel_buildkite_steps_that_all_end_well_pass_in_any_order() {
    for steps in [
        [("job-1", "1", None), ("job-2", "1", None), ("job-2", "1", OK), ("job-1", "1", OK)],
        [("job-1", "1", None), ("job-1", "1", OK), ("job-2", "1", None), ("job-2", "1", OK)],
    ] {
        let world = buildkite_world().await;
        report_steps(&world, &steps).await;
        assert_eq!(shown_job(&world).1.as_deref(), OK, "{steps:?}");
        assert_eq!(checks(&world)[0], check(DISPATCH, "completed", OK), "{steps:?}");
    }
}

#[tokio::test]
pub(crate) async fn parallel_buildkite_step_that_is_cancelled_hides_none_that_still_runs() {
    let cancelled = Some("cancelled");
    let started = [("job-1", "1", None), ("job-2", "1", None), ("job-1", "1", cancelled)];
    for (end, shown) in [(None, None), (OK, cancelled), (Some("failure"), Some("failure"))] {
        let world = buildkite_world().await;
        let ended = end.map(|end| ("job-2", "1", Some(end)));
        report_steps(&world, &[&started[..], ended.as_slice()].concat()).await;
        let status = if end.is_some() { "completed" } else { "in_progress" };
        assert_eq!(checks(&world)[0], check(DISPATCH, status, shown), "{end:?}");
    }
}

#[tokio::test]
pub(crate) async fn buildkite_step_beyond_the_bound_is_never_a_success() {
    let jobs: Vec<String> = (0..limits::STEPS_OF_A_NAME + 2).map(|n| format!("step-{n}")).collect();
    let (counted, beyond) = jobs.split_at(limits::STEPS_OF_A_NAME);
    let passed: Vec<_> = counted.iter().map(|job| (job.as_str(), "1", OK)).collect();
    let started = [(beyond[0].as_str(), "1", None)];
    let other_passed = [started[0], (beyond[1].as_str(), "1", OK)];
    let failed = [started[0], (beyond[0].as_str(), "1", Some("failure"))];
    let both_failed = [failed[1], (beyond[1].as_str(), "1", Some("failure"))];
    let one_retried = [both_failed[0], both_failed[1], ("step-again", "2", OK)];
    for (further, shown) in [
        (&other_passed[..], check(DISPATCH, "in_progress", None)),
        (&failed, check(DISPATCH, "completed", Some("failure"))),
        (&one_retried, check(DISPATCH, "completed", Some("failure"))),
    ] {
        let world = buildkite_world().await;
        report_steps(&world, &[&passed, further].concat()).await;
        assert_eq!(checks(&world)[0], shown, "{further:?}");
    }
}

#[tokio::test]
async fn warnings_of_many_steps_of_one_name_let_its_record_grow_to_a_bound_only() {
    let (world, four) = buildkite_world().await.opened("acme/four").await;
    let build = "0190046e-e199-453b-a302-a21a4d649d31";
    for step in 0..200 {
        let mut body = four.body("in_progress", None);
        body["workflow"]["run_id"] = json!(build);
        body["workflow"]["conclusion"] = json!(format!("{step} {}", "odd ".repeat(50)));
        let mut claims = buildkite_claims(&world, build);
        claims["job_id"] = json!(format!("job-{step}"));
        let (status, answer) = four.report_as(&world, &claims, &body).await;
        assert_eq!((status, answer["warnings"].as_array().unwrap().len()), (StatusCode::OK, 1));
    }
    let kept = world.largest_record_but_bodies();
    assert!(kept < 16 * 1024, "{kept}");
}

#[tokio::test]
async fn address_of_a_job_that_github_refuses_costs_no_check_run() {
    let long = format!("https://buildkite.test/{}", "x".repeat(1500));
    for (named, shown) in [
        (
            "https://buildkite.test/acme/b\u{fc}ild?q=1",
            Some("https://buildkite.test/acme/b%C3%BCild?q=1"),
        ),
        ("https://buildkite.test:99999/1", None),
        ("https://[/1", None),
        (long.as_str(), None),
    ] {
        let (world, four) = buildkite_world().await.opened("acme/four").await;
        let build = "0190046e-e199-453b-a302-a21a4d649d31";
        let mut body = four.body("completed", Some("failure"));
        body["workflow"]["run_id"] = json!(build);
        body["workflow"]["url"] = json!(named);
        let claims = buildkite_claims(&world, build);
        assert_eq!(four.report_as(&world, &claims, &body).await, said("completed"), "{named}");
        assert_eq!(world.work().await, Vec::<String>::new(), "{named}");
        let runs = world.github.state().world.check_runs(UPSTREAM);
        let job = runs.iter().find(|run| run.name == JOB).expect("it is shown");
        assert_eq!(job.conclusion.as_deref(), Some("failure"));
        assert_eq!(job.details_url.as_deref(), shown, "{named}");
    }
}

#[tokio::test]
async fn buildkite_run_with_a_uuid_is_accepted() {
    let (world, four) = buildkite_world().await.opened("acme/four").await;
    let build = "0190046e-e199-453b-a302-a21a4d649d31";
    let claims = buildkite_claims(&world, build);
    let with_run = |mut body: Value, run: &str| {
        body["workflow"]["run_id"] = json!(run);
        body
    };
    let start = with_run(four.body("in_progress", None), build);
    assert_eq!(four.report_as(&world, &claims, &start).await, said("in_progress"));
    let end = with_run(four.body("completed", Some("success")), build);
    assert_eq!(
        four.report_as(&world, &claims, &end).await,
        said("completed"),
        "no `jti` is needed"
    );
    // The same end at another time is a duplicate, because only the job identifies it.
    let mut later = end.clone();
    later["workflow"]["completed_at"] = json!("2026-08-01T11:00:00Z");
    assert_eq!(four.report_as(&world, &claims, &later).await, noted("duplicate"));
    let other = with_run(four.body("in_progress", None), "0190046e-0000-453b-a302-a21a4d649d31");
    assert_eq!(four.report_as(&world, &claims, &other).await.0, StatusCode::UNAUTHORIZED);
    world.work().await;
    let runs = world.github.state().world.check_runs(UPSTREAM);
    let job = runs.iter().find(|run| run.name == JOB).expect("it is shown");
    assert_eq!(job.external_id.as_deref(), Some(format!("{build}:7").as_str()));
    assert_eq!(job.conclusion.as_deref(), Some("success"));
    // GitHub can't be asked for this run: only its own word ends it.
    for _ in 0..4 {
        world.wait(Duration::from_secs(10 * 60)).await;
        assert_eq!(checks(&world)[0], check(DISPATCH, "in_progress", None));
    }
    assert_eq!(world.results.attempts(&world.always()).unwrap()[0].run_id, build);
    let mut last = with_run(four.body("completed", Some("success")), build);
    last["workflow"]["job_name"] = json!("report");
    last["workflow"]["run_ended"] = json!(true);
    let now = world.relay.now().as_second();
    let mut claims = claims;
    (claims["iat"], claims["nbf"], claims["exp"]) = (json!(now), json!(now), json!(now + 300));
    claims["job_id"] = json!("job-2");
    assert_eq!(four.report_as(&world, &claims, &last).await, said("completed"));
    world.settle().await;
    assert_eq!(checks(&world)[0], check(DISPATCH, "completed", Some("success")));
}
