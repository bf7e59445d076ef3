//! What the person sees who pressed "Re-run" and is refused, and what a check run shows after two workers changed it.

use crcr_domain::RepoName;
use crcr_github::checks::{CheckRun, CheckRunOutput};
use crcr_standin::world::Started;
use crcr_store::LeaseRequest;

use super::strangers::draft_of_the_author;
use super::verdicts::press_rerun;
use super::*;
use crate::admin::deliveries;
use crate::limits;
use crate::queue::handlers;
use crate::queue::task_kind::{ParsedTask, TaskKind};
use crate::queue::workers;
use crate::state_records;

const THREE: &str = "crcr/acme/three/relay/dispatch";
const OWN_CHECK_RUNS: &str =
    "GET /repos/acme/upstream/commits/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa/check-runs";
const CREATIONS: &str = "POST /repos/acme/upstream/check-runs";
const UPDATES: &str = "PATCH /repos/acme/upstream/check-runs/*";

#[tokio::test]
pub(crate) async fn worker_whose_lease_ended_early_leaves_no_old_check_run_behind() {
    let (world, four) = World::new().await.opened("acme/four").await;
    four.begin(&world).await;
    let slow = lease_verdict(&world).await;
    let state = world.github.state();
    let before = state.world.count(UPDATES);
    state.world.fail(UPDATES, 1, Fault::Delay(Duration::from_secs(2)));
    let frozen = async {
        let result = handlers::run(&world.relay, &slow).await;
        workers::settle(&world.relay, &slow, result).await.unwrap();
    };
    let others = async {
        while state.world.count(UPDATES) == before {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        four.finish(&world, "success").await;
        world.work_after(Duration::from_secs(5 * 60)).await;
        assert_eq!(checks(&world)[0], check(DISPATCH, "completed", Some("success")));
    };
    tokio::join!(frozen, others);
    world.work().await;
    assert_eq!(checks(&world)[0], check(DISPATCH, "completed", Some("success")));
}

/// Of many deliveries of one author, those that failed are read first.
#[tokio::test]
async fn failure_that_is_reported_while_github_is_asked_for_the_runs_still_goes_first() {
    let (world, four) = World::new().await.opened("acme/four").await;
    let newer = draft_of_the_author(&world, 100).await.in_run(RUN + 1);
    for one in [&newer, &four] {
        one.on_github(&world, "in_progress", None);
        one.of_job("lint").start(&world).await;
    }
    world.settle().await;
    let repo = RepoName::new("acme/four").unwrap();
    let delivery = |of: &Downstream| of.client_payload["delivery_id"].as_str().unwrap().to_owned();
    let state = world.github.state();
    let before = state.traffic.calls("runs");
    state.traffic.fail("runs", 1, Fault::Delay(Duration::from_millis(300)));
    let own = delivery(&four);
    let sweep = async { assert!(handlers::sweep::run(&world.relay, &own, &repo).await.is_ok()) };
    let report = async {
        while state.traffic.calls("runs") == before {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        four.end(&world, "failure").await;
    };
    tokio::join!(sweep, report);
    let author = state.world.pull(UPSTREAM, 7).unwrap().author.to_ascii_lowercase();
    let set = state_records::commit_evidence_key(HEAD, &format!("author {author}"), &repo);
    let read = world.relay.store.members(&set, 2).await.unwrap();
    assert_eq!(read, [own, delivery(&newer)]);
}

/// Runs the task of the verdict until its request reaches GitHub, and stops it there: the process ends.
async fn stop_within(world: &World, task: &ParsedTask, route: &'static str) {
    let state = world.github.state();
    let before = state.world.count(route);
    state.world.fail(route, 1, Fault::Delay(Duration::from_secs(60)));
    let is_there = async {
        while state.world.count(route) == before {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        _ = handlers::run(&world.relay, task) => panic!("GitHub answers in a minute"),
        () = is_there => {}
    }
}

async fn lease_verdict(world: &World) -> ParsedTask {
    lease_verdict_of(world, "acme/four").await
}

/// Leases the task of the verdict for a second, as if the clock of the other relay were ahead.
async fn lease_verdict_of(world: &World, of: &str) -> ParsedTask {
    let now = world.relay.now();
    let until = now + Duration::from_secs(1);
    let want =
        LeaseRequest { now, until, max_tasks: 100, max_per_lane: 100, ..LeaseRequest::default() };
    let tasks = world.relay.store.lease_tasks(want).await.unwrap();
    let mut tasks = tasks.into_iter().map(ParsedTask::new);
    let is_it = |task: &ParsedTask| match &task.kind {
        Ok(TaskKind::CheckRun { repo, job: None, .. }) => repo.as_str() == of,
        _ => false,
    };
    tasks.find(is_it).unwrap()
}

/// What a worker that stopped had sent, when GitHub gets it.
fn late(status: &'static str) -> CheckRun {
    CheckRun {
        name: DISPATCH.to_owned(),
        external_id: None,
        details_url: None,
        status,
        conclusion: None,
        started_at: None,
        completed_at: None,
        output: CheckRunOutput { title: String::new(), summary: String::new() },
    }
}

#[tokio::test]
pub(crate) async fn update_of_a_worker_that_stopped_does_not_stay_although_it_arrives_last() {
    let (world, four) = World::new().await.opened("acme/four").await;
    four.begin(&world).await;
    let task = lease_verdict(&world).await;
    stop_within(&world, &task, UPDATES).await;
    four.finish(&world, "success").await;
    world.wait(Duration::from_secs(100)).await;
    assert_eq!(checks(&world)[0], check(DISPATCH, "completed", Some("success")));
    let runs = world.github.state().world.check_runs(UPSTREAM);
    let id = runs.iter().find(|run| run.name == DISPATCH).unwrap().id;
    let failure = CheckRun { conclusion: Some("failure".to_owned()), ..late("completed") };
    world.relay.app.update_check_run(UPSTREAM, id, &failure).await.unwrap();
    assert_eq!(checks(&world)[0], check(DISPATCH, "completed", Some("failure")));
    world.wait(Duration::from_secs(5 * 60)).await;
    assert_eq!(checks(&world)[0], check(DISPATCH, "completed", Some("success")));
}

#[tokio::test]
pub(crate) async fn check_run_is_not_created_while_a_worker_that_stopped_may_have_asked_for_it() {
    let world = World::new().await;
    world.send(&world.pull_request("opened")).await;
    let task = lease_verdict(&world).await;
    stop_within(&world, &task, CREATIONS).await;
    world.later(Duration::from_secs(100));
    // Once when it is due, and once when the dispatch was sent.
    assert_eq!(world.work().await, ["another worker may be creating the check run"; 2]);
    assert!(checks(&world).is_empty());
    world.relay.app.create_check_run(UPSTREAM, HEAD, &late("in_progress")).await.unwrap();
    world.wait(Duration::from_secs(5 * 60)).await;
    assert_eq!(checks(&world), [check(DISPATCH, "queued", None)]);
    world.github.state().world.take_dispatches();
}

#[tokio::test]
pub(crate) async fn check_run_that_two_workers_created_has_one_result() {
    let world = World::new().await;
    let state = world.github.state();
    state.world.fail(CREATIONS, 1, Fault::Delay(Duration::from_secs(2)));
    world.send(&world.pull_request("opened")).await;
    let others = async {
        while state.world.count(CREATIONS) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        world.wait(Duration::from_secs(5 * 60)).await;
        assert_eq!(checks(&world), [check(DISPATCH, "queued", None)]);
    };
    tokio::join!(world.work(), others);
    let four = received(&world)("acme/four");
    four.complete(&world, "success").await;
    world.wait(Duration::from_secs(5 * 60)).await;
    let all = world.github.state().world.all_check_runs(UPSTREAM);
    let shown = all.iter().filter(|run| run.name == DISPATCH);
    let ends: Vec<_> = shown.map(|run| run.conclusion.as_deref()).collect();
    // GitHub shows the newest and counts no other.
    assert_eq!(ends, [Some("cancelled"), Some("success")]);
}

/// GitHub would leave it green while the new run goes on.
#[tokio::test]
pub(crate) async fn check_run_that_has_ended_is_opened_again_by_a_new_one_of_its_name() {
    let world = World::new().await;
    let all = || {
        let all = world.github.state().world.all_check_runs(UPSTREAM);
        let of_verdict = all.into_iter().filter(|run| run.name == DISPATCH);
        of_verdict.map(|run| (run.status, run.conclusion)).collect::<Vec<_>>()
    };
    let ended = |end: &str| ("completed".to_owned(), Some(end.to_owned()));
    let open = |status: &str| (status.to_owned(), None);
    let four = super::open(&world).await("acme/four");
    four.complete(&world, "success").await;
    world.wait(Duration::from_secs(5 * 60)).await;
    assert_eq!(all(), [ended("success")]);
    world.event("reopened").await;
    assert_eq!(all(), [ended("success"), open("queued")]);
    let again = received(&world)("acme/four").in_run(RUN + 1);
    again.begin(&world).await;
    world.work().await;
    assert_eq!(all(), [ended("success"), open("in_progress")]);
    again.complete(&world, "failure").await;
    world.wait(Duration::from_secs(5 * 60)).await;
    assert_eq!(all(), [ended("success"), ended("failure")]);
    // The answer to the creation is lost, and comes much later than the end of the run.
    let third = again.run_again();
    third.begin(&world).await;
    let task = lease_verdict(&world).await;
    stop_within(&world, &task, CREATIONS).await;
    third.complete(&world, "success").await;
    world.work_after(Duration::from_secs(100)).await;
    assert_eq!(all().len(), 2, "GitHub may still get the other request");
    world.relay.app.create_check_run(UPSTREAM, HEAD, &late("in_progress")).await.unwrap();
    world.wait(Duration::from_secs(5 * 60)).await;
    assert_eq!(all().len(), 3);
    assert_eq!(all()[2], ended("success"));
}

/// The relay stopped before its request had left, so nobody answers it. Until then a required check stays green.
#[tokio::test]
pub(crate) async fn check_run_whose_reopening_never_left_is_open_three_minutes_later() {
    let world = World::new().await;
    open(&world).await("acme/four").complete(&world, "success").await;
    world.wait(Duration::from_secs(5 * 60)).await;
    let shown = || checks(&world).into_iter().find(|(name, ..)| name == DISPATCH);
    assert_eq!(shown(), Some(check(DISPATCH, "completed", Some("success"))));
    world.send(&world.pull_request("reopened")).await;
    let task = lease_verdict(&world).await;
    stop_within(&world, &task, CREATIONS).await;
    world.later(Duration::from_secs(2));
    let waits = "another worker may be creating the check run".to_owned();
    assert!(world.work().await.contains(&waits));
    assert_eq!(shown(), Some(check(DISPATCH, "completed", Some("success"))));
    world.wait(limits::UNDER_WAY - Duration::from_secs(1)).await;
    assert_eq!(shown(), Some(check(DISPATCH, "queued", None)));
    world.github.state().world.take_dispatches();
}

/// Opens pull request 7 with the label of `acme/three`.
async fn open_labelled(world: &World) {
    world.change(|pull| pull.labels = ["ciflow/crcr/npu".to_owned()].into());
    world.send(&world.pull_request("opened")).await;
}

async fn remove_label(world: &World) {
    world.change(|pull| pull.labels.clear());
    let state = world.github.state();
    let payload = state.label_payload(UPSTREAM, 7, "ciflow/crcr/npu", false);
    world.send(&state.world.delivery("pull_request", &payload)).await;
}

fn of_three(world: &World) -> Vec<(String, String, Option<String>)> {
    checks(world).into_iter().filter(|(name, ..)| name == THREE).collect()
}

#[tokio::test]
pub(crate) async fn worker_whose_lease_has_ended_changes_no_check_run() {
    let world = World::new().await;
    open_labelled(&world).await;
    world.work().await;
    assert_eq!(of_three(&world), [check(THREE, "queued", None)]);
    let (repo, head_sha) = (RepoName::new("acme/three").unwrap(), HEAD.to_owned());
    let tasks = vec![TaskKind::CheckRun { repo, head_sha, job: None }.task(world.relay.now())];
    world.relay.commit(crcr_store::WriteBatch { tasks, ..Default::default() }).await.unwrap();
    let slow = lease_verdict_of(&world, "acme/three").await;
    world.later(Duration::from_secs(100));
    assert_eq!(world.work().await, Vec::<String>::new(), "another worker does it");
    remove_label(&world).await;
    // It would stop after that, and nobody would know that GitHub may get a change.
    assert!(handlers::run(&world.relay, &slow).await.is_err());
    assert_eq!(of_three(&world), [check(THREE, "queued", None)]);
    assert_eq!(world.work().await, Vec::<String>::new());
    assert_eq!(of_three(&world), [check(THREE, "completed", Some("skipped"))]);
    world.github.state().world.take_dispatches();
}

#[tokio::test]
pub(crate) async fn worker_that_was_frozen_does_not_create_a_check_run_whose_label_has_gone() {
    let world = World::new().await;
    open_labelled(&world).await;
    let task = lease_verdict_of(&world, "acme/three").await;
    let state = world.github.state();
    let before = state.world.count(OWN_CHECK_RUNS);
    state.world.fail(OWN_CHECK_RUNS, 1, Fault::Delay(Duration::from_secs(2)));
    let others = async {
        while state.world.count(OWN_CHECK_RUNS) == before {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        remove_label(&world).await;
        world.work_after(Duration::from_secs(100)).await;
    };
    let (frozen, ()) = tokio::join!(handlers::run(&world.relay, &task), others);
    assert!(frozen.is_err());
    assert_eq!(of_three(&world), []);
    state.world.take_dispatches();
}

#[tokio::test]
pub(crate) async fn check_run_whose_creation_is_on_its_way_when_the_label_goes_is_ended() {
    let world = World::new().await;
    open_labelled(&world).await;
    let task = lease_verdict_of(&world, "acme/three").await;
    stop_within(&world, &task, CREATIONS).await;
    remove_label(&world).await;
    world.later(Duration::from_secs(100));
    let waits = "another worker may be creating the check run".to_owned();
    assert!(world.work().await.contains(&waits));
    assert_eq!(of_three(&world), []);
    let late = CheckRun { name: THREE.to_owned(), ..late("queued") };
    world.relay.app.create_check_run(UPSTREAM, HEAD, &late).await.unwrap();
    world.later(Duration::from_secs(5 * 60));
    assert_eq!(world.work().await, Vec::<String>::new());
    assert_eq!(of_three(&world), [check(THREE, "completed", Some("skipped"))]);
    world.github.state().world.take_dispatches();
}

#[tokio::test]
pub(crate) async fn refused_rerun_is_seen_on_the_check_run_by_the_person_who_pressed_it() {
    let (world, four) = World::new().await.opened("acme/four").await;
    four.complete(&world, "failure").await;
    world.work_after(Duration::from_secs(5 * 60)).await;
    let state = world.github.state();
    let shown = |name: &str| {
        let runs = state.world.check_runs(UPSTREAM);
        runs.into_iter().find(|run| run.name == name).unwrap()
    };
    let press = || {
        let payload = state.check_run_payload(UPSTREAM, shown(JOB).id, "rerequested");
        state.world.delivery("check_run", &payload)
    };
    let why = "Unable to retry this workflow run because it was created over a month ago";
    let refusal = Fault::Answer {
        status: StatusCode::FORBIDDEN,
        retry_after: None,
        body: json!({"message": why}).to_string(),
    };
    for which in ["rerun-failed-jobs", "rerun"] {
        let call = format!("POST /repos/acme/four/actions/runs/9000/{which}");
        state.world.fail(&call, 1, refusal.clone());
    }
    world.send(&press()).await;
    assert_eq!(world.work().await.len(), 1, "the on-call sees it, too");
    for name in [DISPATCH, JOB] {
        let run = shown(name);
        assert_eq!(run.conclusion.as_deref(), Some("failure"), "what is known stays");
        assert!(run.title.starts_with("Re-run refused by GitHub. "), "{}", run.title);
        assert!(run.summary.contains(why), "{}", run.summary);
    }
    // The next one is accepted.
    world.send(&press()).await;
    world.settle().await;
    assert!(!shown(JOB).title.contains("refused"), "{}", shown(JOB).title);
    state.world.take_reruns();
}

/// A run of another workflow, long after it has failed. It has no reporter, so nothing but the list of runs says whose it is.
///
/// `late`: how long GitHub takes to create the runs.
async fn failed_run_that_never_reports(late: Duration) -> (World, Downstream) {
    let (world, four) = World::new().await.opened("acme/four").await;
    world.wait(late).await;
    four.complete(&world, "success").await;
    let lint = four.in_run(RUN + 1);
    lint.workflow_on_github(&world, "lint.yml", "completed", Some("failure"));
    world.wait(Duration::from_secs(5 * 60)).await;
    assert_eq!(checks(&world)[0], check(DISPATCH, "completed", Some("failure")));
    // Nothing of it is looked at any more.
    world.wait(2 * world.relay.config.lost_after).await;
    (world, lint)
}

#[tokio::test]
pub(crate) async fn rerun_of_a_run_that_never_reports_reopens_the_check_and_ends_it() {
    let (world, lint) = failed_run_that_never_reports(Duration::ZERO).await;
    let state = world.github.state();
    let runs = state.world.check_runs(UPSTREAM);
    let shown = runs.into_iter().find(|run| run.name == DISPATCH).unwrap();
    let payload = state.check_run_payload(UPSTREAM, shown.id, "rerequested");
    world.deliver("check_run", &payload).await;
    let reruns = state.world.take_reruns();
    assert!(matches!(&reruns[..], [Started::Rerun { run_id: 9001, .. }]), "{reruns:?}");
    let again = Downstream { attempt: 2, ..lint };
    again.workflow_on_github(&world, "lint.yml", "in_progress", None);
    world.wait(Duration::from_secs(60)).await;
    assert_eq!(checks(&world)[0], check(DISPATCH, "in_progress", None));
    again.workflow_on_github(&world, "lint.yml", "completed", Some("success"));
    world.wait(Duration::from_secs(10 * 60)).await;
    assert_eq!(checks(&world)[0], check(DISPATCH, "completed", Some("success")));
}

/// Nobody has pressed a button upstream. The minute in which a run was created needn't be one in which its dispatch was
/// sent.
#[tokio::test]
pub(crate) async fn run_that_never_reports_counts_anew_when_it_is_run_again_downstream() {
    for late in [Duration::ZERO, Duration::from_secs(10 * 60)] {
        let (world, lint) = failed_run_that_never_reports(late).await;
        let state = world.github.state();
        let again = Downstream { attempt: 2, ..lint };
        again.workflow_on_github(&world, "lint.yml", "in_progress", None);
        world.deliver("workflow_run", &state.workflow_run_payload(RUN + 1, "in_progress")).await;
        assert_eq!(checks(&world)[0], check(DISPATCH, "in_progress", None), "{late:?}");
        again.workflow_on_github(&world, "lint.yml", "completed", Some("success"));
        world.deliver("workflow_run", &state.workflow_run_payload(RUN + 1, "completed")).await;
        assert_eq!(checks(&world)[0], check(DISPATCH, "completed", Some("success")), "{late:?}");
    }
}

/// If only one of them ran again, the check would stay failed, and the button would have to be pressed once more.
#[tokio::test]
async fn rerun_of_a_verdict_or_of_all_checks_runs_both_workflows_again_that_have_failed() {
    let world = World::new().await;
    let state = world.github.state();
    let four = open(&world).await("acme/four");
    four.complete(&world, "failure").await;
    // These have no reporters, and so no check runs of their own.
    for (run, end) in [(RUN + 1, "failure"), (RUN + 2, "success")] {
        let file = format!("{run}.yml");
        four.in_run(run).workflow_on_github(&world, &file, "completed", Some(end));
    }
    world.wait(Duration::from_secs(5 * 60)).await;
    assert_eq!(checks(&world)[0], check(DISPATCH, "completed", Some("failure")));
    let rerun = || {
        let run_of = |started: Started| match started {
            Started::Rerun { run_id, .. } => Some(run_id),
            Started::Dispatch(_) => None,
        };
        let mut runs: Vec<u64> = state.world.take_reruns().into_iter().filter_map(run_of).collect();
        runs.sort_unstable();
        runs
    };
    press_rerun(&world).await;
    assert_eq!(rerun(), [RUN, RUN + 1]);
    for run in [RUN, RUN + 1] {
        let file = if run == RUN { "ci.yml".to_owned() } else { format!("{run}.yml") };
        let again = Downstream { attempt: 2, ..four.in_run(run) };
        again.workflow_on_github(&world, &file, "completed", Some("failure"));
    }
    world.wait(Duration::from_secs(5 * 60)).await;
    let suite = state.world.check_runs(UPSTREAM)[0].suite;
    let payload = state.check_suite_payload(UPSTREAM, suite, "rerequested");
    world.deliver("check_suite", &payload).await;
    assert_eq!(rerun(), [RUN, RUN + 1]);
}

#[tokio::test]
pub(crate) async fn rerun_of_a_run_without_a_failed_job_runs_all_of_it() {
    let (world, four) = World::new().await.opened("acme/four").await;
    // The job continues on an error.
    four.on_github(&world, "completed", Some("success"));
    four.start_and_end(&world, "failure").await;
    world.work_after(Duration::from_secs(5 * 60)).await;
    let state = world.github.state();
    let runs = state.world.check_runs(UPSTREAM);
    let job = runs.into_iter().find(|run| run.name == JOB).unwrap();
    assert_eq!(job.conclusion.as_deref(), Some("failure"));
    let payload = state.check_run_payload(UPSTREAM, job.id, "rerequested");
    world.deliver("check_run", &payload).await;
    let reruns = state.world.take_reruns();
    assert!(
        matches!(&reruns[..], [Started::Rerun { failed_only: false, run_id: 9000, .. }]),
        "{reruns:?}"
    );
}

#[tokio::test]
pub(crate) async fn operator_who_looks_at_a_delivery_reads_why_it_waits() {
    let world = World::new().await;
    let limited = Fault::Answer {
        status: StatusCode::TOO_MANY_REQUESTS,
        retry_after: Some(600),
        body: json!({"message": "You have exceeded a secondary rate limit"}).to_string(),
    };
    world.github.state().world.fail("POST /repos/acme/two/dispatches", 1, limited);
    world.send_and_work("opened").await;
    let newest = deliveries::newest(&*world.relay.store, 1).await.unwrap().remove(0);
    let lines = deliveries::explanations(&*world.relay.store, &newest).await.unwrap();
    let about = |repo: &str| {
        lines.iter().find(|line| line.contains(repo)).unwrap_or_else(|| panic!("{lines:#?}"))
    };
    assert!(about("acme/two").contains("tried again at"), "{lines:#?}");
    assert!(about("acme/two").contains("rate limit"), "{lines:#?}");
    assert_eq!(
        about("acme/four"),
        "acme/four: no proven report: the relay waits for the first one"
    );
    assert!(!lines.iter().any(|line| line.contains("acme/one")), "L1 reports nothing: {lines:#?}");
    world.github.state().world.take_dispatches();
}

/// GitHub is away for a moment while somebody closes a pull request and opens it again. A backend's workflow cancels the
/// run of the event before the one that it gets.
#[tokio::test]
async fn closing_that_github_did_not_take_is_not_sent_after_the_reopening() {
    let world = World::new().await;
    world.event("opened").await;
    world.github.state().world.take_dispatches();
    let route = "POST /repos/acme/four/dispatches";
    world.github.state().world.fail(route, 1, Fault::status(502));
    world.change(|pull| pull.open = false);
    assert_eq!(world.send_and_work("closed").await.len(), 1, "GitHub is away");
    world.change(|pull| pull.open = true);
    world.event("reopened").await;
    let four = received(&world)("acme/four");
    assert_eq!(four.client_payload["payload"]["action"], "reopened");
    four.complete(&world, "success").await;
    world.wait(Duration::from_secs(600)).await;
    assert_eq!(world.dispatched(), Vec::<String>::new(), "it would cancel the run");
    assert_eq!(checks(&world)[0], check(DISPATCH, "completed", Some("success")));
}

#[tokio::test]
async fn closing_that_was_given_up_is_not_sent_after_the_reopening_if_an_operator_redelivers_all() {
    let world = World::new().await;
    world.event("opened").await;
    world.github.state().world.take_dispatches();
    world.change(|pull| pull.open = false);
    world.send(&world.pull_request("closed")).await;
    world.work_giving_up("acme/four").await;
    world.change(|pull| pull.open = true);
    world.event("reopened").await;
    let four = received(&world)("acme/four");
    assert_eq!(four.client_payload["payload"]["action"], "reopened");
    let (store, relay) = (world.relay.store.as_ref(), &world.relay);
    let again = deliveries::redeliver_all(store, relay.now(), limits::RECORD_RETENTION);
    assert_eq!(again.await.unwrap().requeued, 1);
    world.settle().await;
    assert_eq!(world.dispatched(), Vec::<String>::new(), "it would cancel the run");
    four.complete(&world, "success").await;
    world.wait(Duration::from_secs(600)).await;
    assert_eq!(checks(&world)[0], check(DISPATCH, "completed", Some("success")));
}
