//! Which reports decide a check run upstream. Each test is a sequence in which an unproven, late, stale
//! or foreign report once did; timers come due in all of them.

use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use crcr_domain::protocol::dispatch::{Dispatch, DispatchStatus};
use crcr_domain::protocol::event::EventName;
use crcr_domain::results::facts::{CallbackOutcome, DispatchFactStatus};
use crcr_standin::traffic::Fault;
use crcr_standin::world::PullRequest;

use super::super::support::{ALLOWLIST, HEAD, NEWER, UPSTREAM, World};
use super::strangers::stranger;
use super::verdicts::{MINUTE, press_rerun};
use super::{
    DISPATCH, Downstream, JOB, RUN, check, checks, checks_after, open, received, refused, said,
};
use crate::admin::deliveries;
use crate::limits;

const TWO: &str = "crcr/acme/two/relay/dispatch";
const HOUR: Duration = Duration::from_secs(3600);

/// The dispatch's check run at `acme/four`: status, conclusion and title.
fn verdict(world: &World) -> (String, Option<String>, String) {
    let runs = world.github.state().world.check_runs(UPSTREAM);
    let run = runs.into_iter().find(|run| run.name == DISPATCH).unwrap();
    (run.status, run.conclusion, run.title)
}

fn ended(world: &World) -> Option<String> {
    verdict(world).1
}

async fn ended_after(world: &World, time: Duration) -> Option<String> {
    world.wait(time).await;
    ended(world)
}

#[tokio::test]
pub(crate) async fn unproven_success_does_not_pass_a_blocking_check() {
    let (world, four) = World::listening(&[]).await.opened("acme/four").await;
    four.on_github(&world, "completed", Some("success"));
    let forged = four.without_token();
    assert_eq!(forged.end(&world, "success").await, said("completed"));
    assert_eq!(checks_after(&world, MINUTE).await, [check(DISPATCH, "queued", None)]);
    world.wait(2 * HOUR).await;
    let (status, conclusion, title) = verdict(&world);
    assert_eq!((status.as_str(), conclusion.as_deref()), ("completed", Some("failure")));
    assert!(title.contains("reported without proof"), "{title}");
    assert!(title.contains("callback_token"), "the sender can find out why: {title}");
    assert_eq!(checks(&world).len(), 1, "the job has no check run");
}

/// Code of a pull request runs downstream, perhaps in a job that may mint tokens, and callback tokens are public.
#[tokio::test]
pub(crate) async fn run_that_answers_one_dispatch_reports_for_no_other_one() {
    let (world, four) = World::new().await.opened("acme/four").await;
    four.complete(&world, "failure").await;
    assert_eq!(ended_after(&world, Duration::from_secs(300)).await.as_deref(), Some("failure"));
    let state = world.github.state();
    let pull = PullRequest::from_fork(8, UPSTREAM, NEWER, state.clock.now());
    state.world.put_pull(UPSTREAM, pull);
    let payload = state.pull_request_payload(UPSTREAM, 8, "opened");
    world.deliver("pull_request", &payload).await;
    let other = received(&world)("acme/four").in_run(RUN + 1);
    other.on_github(&world, "completed", Some("success"));
    assert_eq!(other.start(&world).await, said("in_progress"));
    let delivery = other.client_payload["delivery_id"].as_str().unwrap();
    let answer = four.in_run(RUN + 1).end(&world, "success").await;
    let text = format!("callback rejected: run {} answers the delivery {delivery}", RUN + 1);
    assert_eq!(answer, refused(StatusCode::BAD_REQUEST, &text));
    assert_eq!(ended_after(&world, Duration::from_secs(300)).await.as_deref(), Some("failure"));
    assert_eq!(other.end(&world, "success").await, said("completed"));
}

/// Below L3 nothing is shown upstream yet.
#[tokio::test]
pub(crate) async fn runs_of_before_a_promotion_are_told_apart_and_answer_one_dispatch_each() {
    let (world, two) = World::listening(&[]).await.opened("acme/two").await;
    two.complete(&world, "success").await;
    stranger(&world, "opened", NEWER).await;
    world.settle().await;
    let state = world.github.state();
    let other = received(&world)("acme/two").in_run(RUN + 1);
    other.complete(&world, "failure").await;
    let forged = two.in_run(RUN + 1).end(&world, "success").await;
    assert_eq!(forged.0, StatusCode::BAD_REQUEST, "{forged:?}");
    world.wait(5 * MINUTE).await;
    assert_eq!(state.world.check_runs(UPSTREAM).iter().find(|run| run.name == TWO), None);
    world.settle_with("L4:\n  - acme/two: [carol]\n").await;
    world.wait(5 * MINUTE).await;
    for (head, expected) in [(HEAD, "success"), (NEWER, "failure")] {
        let runs = state.world.check_runs(UPSTREAM);
        let shown = runs.iter().find(|run| run.name == TWO && run.head_sha == head).unwrap();
        assert_eq!(shown.conclusion.as_deref(), Some(expected), "{}", shown.title);
    }
}

/// At L2 a report counts without proof. Somebody who answers for the dispatch first mustn't take it away for later.
#[tokio::test]
pub(crate) async fn report_with_proof_at_l2_is_what_counts_after_a_promotion() {
    let (world, two) = World::listening(&[]).await.opened("acme/two").await;
    two.on_github(&world, "completed", Some("success"));
    two.without_token().end(&world, "success").await;
    assert_eq!(two.end(&world, "success").await, said("completed"));
    world.settle_with("L4:\n  - acme/two: [carol]\n").await;
    world.wait(5 * MINUTE).await;
    let runs = world.github.state().world.check_runs(UPSTREAM);
    let shown = runs.iter().find(|run| run.name == TWO && run.head_sha == HEAD).unwrap();
    assert_eq!(shown.conclusion.as_deref(), Some("success"), "{}", shown.title);
}

#[tokio::test]
async fn unproven_report_is_stored_and_shown_with_its_reason() {
    let (world, four) = World::listening(&[]).await.opened("acme/four").await;
    four.without_token().end(&world, "success").await;
    assert_eq!(world.results.attempts(&world.always()).unwrap().len(), 1);
    let facts = world.results.callbacks(&world.always()).unwrap();
    let fact = facts.iter().find(|fact| fact.outcome == CallbackOutcome::Unproven).unwrap();
    assert_eq!(fact.answer, 200);
    let get =
        async |path: &str| world.call(Request::get(path).body(Body::empty()).unwrap()).await.1;
    let pull = get("/api/v1/pulls/7").await;
    assert_eq!(pull["backends"][0]["jobs"][0]["missing_proof"], "callback_token", "{pull}");
    let page = get("/api/v1/repositories/acme/four").await;
    let refused = &page["refused"][0];
    assert_eq!(refused["outcome"], "unproven", "{page}");
    assert!(refused["detail"].as_str().unwrap().starts_with("reported without proof: "), "{page}");
}

#[tokio::test]
pub(crate) async fn unproven_newer_run_has_no_check_run() {
    let (world, four) = World::listening(&[]).await.opened("acme/four").await;
    let forged = Downstream { run: four.run + 1000, ..four.without_token() };
    forged.end(&world, "success").await;
    four.on_github(&world, "in_progress", None);
    four.start_and_end(&world, "failure").await;
    world.wait(MINUTE).await;
    let run = &world.github.state().world.check_runs(UPSTREAM)[1];
    assert_eq!((run.name.as_str(), run.conclusion.as_deref()), (JOB, Some("failure")));
    four.on_github(&world, "completed", Some("failure"));
    assert_eq!(ended_after(&world, 10 * MINUTE).await.as_deref(), Some("failure"));
}

#[tokio::test]
pub(crate) async fn unproven_lost_or_labelled_job_has_no_check_run() {
    let world = World::listening(&[]).await;
    let run = open(&world).await;
    run("acme/three").without_token().start(&world).await;
    run("acme/four").without_token().start(&world).await;
    world.wait(7 * HOUR).await;
    world.change(|pull| {
        pull.labels.insert("ciflow/crcr/npu".to_owned());
    });
    let state = world.github.state();
    let payload = state.label_payload(UPSTREAM, 7, "ciflow/crcr/npu", true);
    world.send(&state.world.delivery("pull_request", &payload)).await;
    world.wait(MINUTE).await;
    assert!(checks(&world).iter().all(|check| check.0.ends_with("/relay/dispatch")));
    assert_eq!(ended(&world).as_deref(), Some("failure"));
}

#[tokio::test]
pub(crate) async fn unproven_end_of_a_proven_job_closes_its_check_run_without_success() {
    let (world, four) = World::listening(&[]).await.opened("acme/four").await;
    four.begin(&world).await;
    world.wait(MINUTE).await;
    assert_eq!(four.without_token().end(&world, "success").await, said("completed"));
    assert_eq!(checks_after(&world, MINUTE).await[1], check(JOB, "completed", Some("cancelled")));
    assert_eq!(ended(&world), None, "the run goes on");
    four.on_github(&world, "completed", Some("failure"));
    assert_eq!(ended_after(&world, 10 * MINUTE).await.as_deref(), Some("failure"));
    assert_eq!(four.end(&world, "failure").await, said("completed"), "a proven end still counts");
    assert_eq!(checks_after(&world, MINUTE).await[1], check(JOB, "completed", Some("failure")));
}

#[tokio::test]
pub(crate) async fn proven_report_replaces_unproven_ones() {
    let (world, four) = World::listening(&[]).await.opened("acme/four").await;
    four.on_github(&world, "completed", Some("failure"));
    four.without_token().end(&world, "success").await;
    assert_eq!(four.end(&world, "failure").await, said("completed"), "no conflict");
    assert_eq!(checks_after(&world, MINUTE).await[1], check(JOB, "completed", Some("failure")));
    assert_eq!(ended(&world).as_deref(), Some("failure"));
}

#[tokio::test]
pub(crate) async fn passing_rerun_unblocks_the_merge() {
    let (world, four) = World::listening(&[]).await.opened("acme/four").await;
    four.complete(&world, "failure").await;
    assert_eq!(ended_after(&world, MINUTE).await.as_deref(), Some("failure"));
    press_rerun(&world).await;
    assert_eq!(world.github.state().world.take_reruns().len(), 1);
    let again = Downstream { attempt: 2, ..four };
    again.on_github(&world, "in_progress", None);
    world.wait(MINUTE).await;
    assert_eq!(ended(&world), None, "open again before the first report of the new attempt");
    again.start(&world).await;
    again.finish(&world, "success").await;
    assert_eq!(ended_after(&world, MINUTE).await.as_deref(), Some("success"));
    assert_eq!(checks(&world)[1], check(JOB, "completed", Some("success")));
}

#[tokio::test]
pub(crate) async fn check_stays_open_until_the_slowest_run_ends() {
    let (world, build) = World::listening(&[]).await.opened("acme/four").await;
    build.workflow_on_github(&world, "build.yml", "queued", None);
    let client_payload = build.client_payload.clone();
    let lint = Downstream { run: build.run + 1, job: "lint", client_payload, ..build };
    lint.workflow_on_github(&world, "lint.yml", "completed", Some("success"));
    lint.start_and_end(&world, "success").await;
    world.wait(5 * MINUTE).await;
    assert_eq!(verdict(&world).0, "in_progress", "the build has not even started");
    build.start(&world).await;
    build.workflow_on_github(&world, "build.yml", "completed", Some("failure"));
    build.end(&world, "failure").await;
    assert_eq!(ended_after(&world, 5 * MINUTE).await.as_deref(), Some("failure"));
}

#[tokio::test]
pub(crate) async fn run_that_failed_on_github_is_not_a_success() {
    let (world, four) = World::listening(&[]).await.opened("acme/four").await;
    four.start_and_end(&world, "success").await;
    four.on_github(&world, "completed", Some("failure"));
    assert_eq!(ended_after(&world, MINUTE).await.as_deref(), Some("failure"));
    assert_eq!(checks(&world)[1], check(JOB, "completed", Some("success")));
}

#[tokio::test]
pub(crate) async fn foreign_check_run_of_the_same_name_is_ignored() {
    let world = World::listening(&[]).await;
    world.github.state().world.add_foreign_check_run(UPSTREAM, HEAD, DISPATCH, "success");
    let _ = open(&world).await;
    let own: Vec<_> = checks(&world).into_iter().filter(|check| check.1 == "queued").collect();
    assert_eq!(own, [check(DISPATCH, "queued", None)]);
    assert_eq!(world.relay.store.queue_depth().await.unwrap().dead, 0);
}

#[tokio::test]
pub(crate) async fn reopened_pull_request_gets_the_verdict_of_its_new_run() {
    let (world, first) = World::listening(&[]).await.opened("acme/four").await;
    first.complete(&world, "success").await;
    assert_eq!(ended_after(&world, 5 * MINUTE).await.as_deref(), Some("success"));

    world.close().await;
    let closed = Downstream { run: 9100, ..received(&world)("acme/four") };
    closed.start_and_end(&world, "failure").await;
    world.wait(5 * MINUTE).await;
    assert_eq!(ended(&world).as_deref(), Some("success"), "a run that tidies up decides nothing");

    world.change(|pull| pull.open = true);
    world.event("reopened").await;
    let second = Downstream { run: 9200, ..received(&world)("acme/four") };
    assert_eq!(verdict(&world).0, "queued");
    second.begin(&world).await;
    world.wait(5 * MINUTE).await;
    assert_eq!(verdict(&world).0, "in_progress");
    second.finish(&world, "success").await;
    assert_eq!(ended_after(&world, 5 * MINUTE).await.as_deref(), Some("success"));
}

#[tokio::test]
pub(crate) async fn verdict_waits_for_the_delivery_that_was_accepted_last_even_at_the_same_time() {
    let world = World::listening(&[]).await;
    world.send(&world.pull_request("opened")).await;
    world.change(|_| {});
    world.event("reopened").await;
    let second = world.github.state().world.take_dispatches();
    let second = second.into_iter().rev().find(|sent| sent.repository == "acme/four").unwrap();
    let second = Downstream {
        repo: "acme/four",
        client_payload: second.client_payload,
        job: "test",
        run: RUN,
        attempt: 1,
    };
    second.finish(&world, "success").await;
    assert_eq!(ended_after(&world, 5 * MINUTE).await.as_deref(), Some("success"));
    world.wait(3 * HOUR).await;
    assert_eq!(ended(&world).as_deref(), Some("success"), "the first one never started");
}

#[tokio::test]
pub(crate) async fn run_of_an_earlier_delivery_is_followed_while_the_verdict_waits_for_the_newest()
{
    let (world, first) = World::listening(&[]).await.opened("acme/four").await;
    first.begin(&world).await;
    world.settle().await;
    world.change(|_| {});
    world.event("reopened").await;
    let second = Downstream { run: RUN + 1, ..received(&world)("acme/four") };
    first.end(&world, "success").await;
    world.wait(5 * MINUTE).await;
    assert_eq!(verdict(&world).0, "queued", "the newest delivery has no report");
    second.workflow_on_github(&world, "lint.yml", "completed", Some("success"));
    second.end(&world, "success").await;
    world.wait(5 * MINUTE).await;
    assert_eq!(verdict(&world).0, "in_progress", "the first run isn't over");
    first.on_github(&world, "completed", Some("success"));
    assert_eq!(ended_after(&world, HOUR).await.as_deref(), Some("success"));
}

#[tokio::test]
pub(crate) async fn rerun_of_a_dispatch_that_was_answered_meanwhile_sends_nothing() {
    let (world, four) = World::listening(&[]).await.opened("acme/four").await;
    assert_eq!(ended_after(&world, 2 * HOUR + MINUTE).await.as_deref(), Some("failure"));
    four.begin(&world).await;
    press_rerun(&world).await;
    assert_eq!(world.dispatched(), Vec::<String>::new());
    assert_eq!(verdict(&world).0, "in_progress");
}

#[tokio::test]
pub(crate) async fn report_for_a_dispatch_that_is_given_up_and_then_sent_after_all_is_shown() {
    let world = World::listening(&[]).await;
    let route = "POST /repos/acme/four/dispatches";
    world.github.state().world.fail(route, 1, Fault::Delay(Duration::from_secs(1)));
    let delivery = world.pull_request("opened");
    world.send(&delivery).await;
    let repo = crcr_domain::RepoName::new("acme/four").unwrap();
    let key = crate::state_records::dispatch_key(&delivery.id, &repo);
    let meanwhile = async {
        while world.github.state().world.count(route) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // Another replica, whose lease began when the first one's had ended, has given up.
        let store = world.relay.store.as_ref();
        let known = crcr_store::read_record::<Dispatch>(store, key).await.unwrap();
        let dispatch = known.value.clone().unwrap();
        let mut batch = crcr_store::WriteBatch::default();
        let dead = Dispatch { status: DispatchStatus::Dead, ..dispatch.clone() };
        batch.update(&known, &dead, world.relay.expiry());
        world.relay.commit(batch).await.unwrap();
        let mut four = Downstream { repo: "acme/four", ..received(&world)("acme/three") };
        four.client_payload["callback_token"] = world.relay.keys.sign(&dispatch).into();
        four.on_github(&world, "completed", Some("success"));
        assert_eq!(four.end(&world, "success").await, said("completed"));
    };
    let (errors, ()) = tokio::join!(world.work(), meanwhile);
    assert_eq!(errors, Vec::<String>::new());
    assert_eq!(world.dispatched(), ["acme/four"]);
    world.wait(5 * MINUTE).await;
    assert!(checks(&world).contains(&check(JOB, "completed", Some("success"))));
    assert_eq!(ended(&world).as_deref(), Some("success"));
}

#[tokio::test]
pub(crate) async fn rerun_on_a_silent_backend_redispatches() {
    let world = World::listening(&[]).await;
    let _ = open(&world).await;
    assert_eq!(ended_after(&world, 2 * HOUR + MINUTE).await.as_deref(), Some("failure"));
    press_rerun(&world).await;
    assert_eq!(world.dispatched(), ["acme/four"]);
    assert_eq!(verdict(&world).0, "queued");
    world.wait(2 * HOUR + MINUTE).await;
    assert_eq!(ended(&world).as_deref(), Some("failure"), "it has the same time again");
}

#[tokio::test]
async fn rerun_of_all_checks_sends_nothing_again_that_waits_for_its_first_report() {
    let world = World::listening(&[]).await;
    let _ = open(&world).await;
    world.wait(HOUR).await;
    let state = world.github.state();
    let suite = state.world.check_runs(UPSTREAM)[0].suite;
    let payload = state.check_suite_payload(UPSTREAM, suite, "rerequested");
    world.deliver("check_suite", &payload).await;
    assert_eq!(world.dispatched(), Vec::<String>::new());
    assert_eq!(verdict(&world).0, "queued");
}

#[tokio::test]
pub(crate) async fn rerun_on_a_dead_or_unreachable_dispatch_redispatches() {
    for unreachable in [true, false] {
        let world = World::listening(&[]).await;
        let github = &world.github.state().world;
        if unreachable {
            github.uninstall("acme/four");
        }
        world.send(&world.pull_request("opened")).await;
        world.work_giving_up(if unreachable { "" } else { "acme/four" }).await;
        world.dispatched();
        assert_eq!(ended(&world).as_deref(), Some("failure"));
        github.install("acme/four");
        press_rerun(&world).await;
        assert_eq!(world.dispatched(), ["acme/four"]);
        assert_eq!(verdict(&world).0, "queued");
    }
}

#[tokio::test]
async fn dispatch_that_an_operator_redelivers_is_waited_for_before_it_can_be_sent() {
    let world = World::listening(&[]).await;
    let delivery = world.pull_request("opened");
    world.send(&delivery).await;
    world.work_giving_up("acme/four").await;
    world.dispatched();
    assert_eq!(ended(&world).as_deref(), Some("failure"));
    let limited = Fault::Answer {
        status: StatusCode::TOO_MANY_REQUESTS,
        retry_after: Some(600),
        body: String::new(),
    };
    world.github.state().world.fail("POST /repos/acme/four/dispatches", 1, limited);
    let (store, relay) = (world.relay.store.as_ref(), &world.relay);
    let again =
        deliveries::redeliver(store, &delivery.id, None, relay.now(), relay.config.status_ttl);
    assert_eq!(again.await.unwrap(), 1);
    assert_eq!(world.work().await.len(), 1, "GitHub asks to wait");
    assert_eq!(verdict(&world).0, "queued");
    world.wait(11 * MINUTE).await;
    assert_eq!(world.dispatched(), ["acme/four"]);
}

#[tokio::test]
pub(crate) async fn report_before_the_dispatch_response_is_shown_after_it() {
    let world = World::listening(&[]).await;
    let github = &world.github.state().world;
    // GitHub starts the run, and its response is lost.
    github.fail("POST /repos/acme/four/dispatches", 1, Fault::ResetAfterwards);
    world.send_and_work("opened").await;
    let four = received(&world)("acme/four");
    four.on_github(&world, "in_progress", None);
    assert_eq!(four.start(&world).await, said("in_progress"));
    world.work().await;
    world.wait(5 * MINUTE).await;
    assert!(checks(&world).contains(&check(JOB, "in_progress", None)));
    assert_eq!(verdict(&world).0, "in_progress");
    world.dispatched();
}

#[tokio::test]
pub(crate) async fn report_for_a_dispatch_that_was_given_up_is_shown_after_its_redelivery() {
    let world = World::listening(&[]).await;
    let github = &world.github.state().world;
    // GitHub starts the run, its response is lost, and the next try is refused for good.
    github.fail("POST /repos/acme/four/dispatches", 1, Fault::ResetAfterwards);
    world.send_and_work("opened").await;
    let four = received(&world)("acme/four");
    github.fail("POST /repos/acme/four/dispatches", 1, Fault::status(422));
    world.work_after(5 * MINUTE).await;
    assert_eq!(four.end(&world, "success").await, said("completed"));
    world.work().await;
    assert!(!checks(&world).contains(&check(JOB, "completed", Some("success"))));
    press_rerun(&world).await;
    assert!(checks(&world).contains(&check(JOB, "completed", Some("success"))));
}

#[tokio::test]
pub(crate) async fn demotion_closes_check_runs_without_further_requests() {
    let (world, four) = World::listening(&[]).await.opened("acme/four").await;
    four.begin(&world).await;
    world.work().await;
    world.enforce("L2: [acme/four]\n").await;
    world.wait(5 * MINUTE).await;
    let neutral = Some("neutral");
    let both = [check(DISPATCH, "completed", neutral), check(JOB, "completed", neutral)];
    assert_eq!(checks(&world), both);
}

#[tokio::test]
async fn check_run_that_a_replica_showed_by_the_allowlist_of_before_ends_though_it_stopped() {
    let world = World::new().await;
    let mut late = world.other_replica().await;
    world.settle_with("L2: [acme/four]\n").await;
    let (mut world, four) = world.opened("acme/four").await;
    std::mem::swap(&mut world.relay, &mut late);
    four.begin(&world).await;
    world.work().await;
    assert_eq!(checks(&world)[0], check(DISPATCH, "in_progress", None));
    std::mem::swap(&mut world.relay, &mut late);
    world.wait(5 * MINUTE).await;
    let neutral = Some("neutral");
    let both = [check(DISPATCH, "completed", neutral), check(JOB, "completed", neutral)];
    assert_eq!(checks(&world), both);
}

#[tokio::test]
pub(crate) async fn failed_check_of_a_backend_that_is_demoted_blocks_nobody_any_more() {
    let (world, four) = World::listening(&[]).await.opened("acme/four").await;
    four.start_and_end(&world, "failure").await;
    four.on_github(&world, "completed", Some("failure"));
    world.wait(5 * MINUTE).await;
    assert_eq!(checks(&world)[0], check(DISPATCH, "completed", Some("failure")));
    world.enforce("L2: [acme/four]\n").await;
    world.wait(5 * MINUTE).await;
    let neutral = Some("neutral");
    let both = [check(DISPATCH, "completed", neutral), check(JOB, "completed", neutral)];
    assert_eq!(checks(&world), both);
}

#[tokio::test]
pub(crate) async fn unlabelled_dispatches_at_l3_cost_no_call_to_github() {
    let (world, three) = World::listening(&[]).await.opened("acme/three").await;
    three.on_github(&world, "in_progress", None);
    three.start_and_end(&world, "success").await;
    let before = world.github.state().world.calls().len();
    let traffic =
        world.github.state().traffic.calls("run") + world.github.state().traffic.calls("runs");
    world.wait(HOUR).await;
    assert_eq!(world.github.state().world.calls().len(), before);
    let after =
        world.github.state().traffic.calls("run") + world.github.state().traffic.calls("runs");
    assert_eq!(after, traffic);
}

#[tokio::test]
pub(crate) async fn merge_group_is_dispatched_to_required_backends_with_checks_on_its_head() {
    let world = World::listening(&[]).await;
    let group = "cc".repeat(20);
    world.github.state().world.add_commit(UPSTREAM, &group);
    world
        .enforce(
            "L3:\n  npu:\n    acme/three: {oncalls: [carol], events: [pull_request, merge_group]}\n\
         L4:\n  - acme/four: [dave]\nL2: [acme/two]\n",
        )
        .await;
    let payload = world.github.state().merge_group_payload(UPSTREAM, &group);
    let delivery = world.github.state().world.delivery("merge_group", &payload);
    assert_eq!(world.send(&delivery).await.0, StatusCode::ACCEPTED);
    world.settle().await;
    let run = received(&world);
    let four = run("acme/four");
    assert_eq!(four.client_payload["event_type"], "merge_group");
    run("acme/three");
    four.complete(&world, "success").await;
    world.wait(5 * MINUTE).await;
    let runs = world.github.state().world.check_runs(UPSTREAM);
    assert!(runs.iter().all(|run| run.head_sha == group));
    let of_four = runs.iter().find(|run| run.name == DISPATCH).unwrap();
    assert_eq!(of_four.conclusion.as_deref(), Some("success"));
    assert_eq!(of_four.external_id.as_deref(), Some("9000"));
    assert!(runs.iter().any(|run| run.name == "crcr/acme/three/relay/dispatch"));
    assert_eq!(runs.len(), 3, "L2 isn't asked");
}

#[tokio::test]
pub(crate) async fn landed_pull_request_is_dispatched_once_and_expects_no_report() {
    let world = World::listening(&[]).await;
    let _ = open(&world).await;
    world.close().await;
    let closed = world.github.state().world.take_dispatches();
    assert!(closed.iter().all(|dispatch| dispatch.event_type == "pull_request"));
    let state = world.github.state();
    for expected in [4, 0] {
        world.change(|pull| {
            pull.labels.insert("Merged".to_owned());
        });
        let payload = state.label_payload(UPSTREAM, 7, "Merged", true);
        let answer = world.send(&state.world.delivery("pull_request", &payload)).await;
        assert_eq!(answer.0, StatusCode::ACCEPTED);
        world.settle().await;
        let landed = state.world.take_dispatches();
        assert!(landed.iter().all(|dispatch| dispatch.event_type == "landed"));
        assert_eq!(landed.len(), expected);
    }
    world.wait(3 * HOUR).await;
    let facts = world.results.dispatches(&world.always()).unwrap();
    let silent = facts.iter().filter(|fact| {
        fact.event == EventName::Landed && fact.status == DispatchFactStatus::NeverStarted
    });
    assert_eq!(silent.count(), 0);
}

/// A change that is reverted and lands again breaks what it broke the first time.
#[tokio::test]
async fn pull_request_that_lands_again_after_its_revert_is_announced_again() {
    let world = World::listening(&[]).await;
    let state = world.github.state();
    let _ = open(&world).await;
    let announced = || {
        let all = state.world.take_dispatches();
        all.iter().filter(|dispatch| dispatch.event_type == "landed").count()
    };
    let happen = async |action: &str, landed: bool| {
        world.change(|pull| {
            pull.open = action == "reopened";
            if landed {
                pull.labels.insert("Merged".to_owned());
            }
        });
        world.send(&world.pull_request(action)).await;
        world.settle().await;
        announced()
    };
    assert_eq!(happen("closed", true).await, 4);
    let late = state.label_payload(UPSTREAM, 7, "ciflow/crcr/npu", true);
    let late = state.world.delivery("pull_request", &late);
    assert_eq!(happen("reopened", false).await, 0);
    world.send(&late).await;
    world.settle().await;
    assert_eq!(announced(), 0, "it is about the first landing");
    assert_eq!(happen("closed", true).await, 4);
}

#[tokio::test]
pub(crate) async fn dead_dispatch_of_an_older_head_is_never_redelivered() {
    let world = World::listening(&[]).await;
    let github = &world.github.state().world;
    world.send(&world.pull_request("opened")).await;
    world.work_giving_up("acme/four").await;
    world.dispatched();
    github.add_commit(UPSTREAM, NEWER);
    world.change(|pull| pull.head_sha = NEWER.to_owned());
    world.send_and_work("synchronize").await;
    world.dispatched();
    assert_eq!(world.relay.store.queue_depth().await.unwrap().dead, 0);
    let again = deliveries::redeliver_all(
        world.relay.store.as_ref(),
        world.relay.now(),
        limits::RECORD_RETENTION,
    );
    assert_eq!(again.await.unwrap().requeued, 0);
    world.work().await;
    assert_eq!(world.dispatched(), Vec::<String>::new());
}

#[tokio::test]
pub(crate) async fn often_reopened_pull_request_has_a_bounded_record() {
    let world = World::listening(&[]).await;
    for _ in 0..2 * limits::DELIVERIES_PER_HEAD {
        world.change(|_| {});
        world.send(&world.pull_request("reopened")).await;
    }
    let key = crate::state_records::pull_request_key(&world.relay.config.upstream, 7);
    let pull: crcr_store::Versioned<crate::state_records::PullRecord> =
        crcr_store::read_record(world.relay.store.as_ref(), key).await.unwrap();
    assert_eq!(pull.value.unwrap().deliveries.len(), limits::DELIVERIES_PER_HEAD);
}

#[tokio::test]
pub(crate) async fn job_lost_in_an_older_run_does_not_replace_a_newer_result_after_the_head_has_changed()
 {
    let world = World::listening(&[]).await;
    let github = &world.github.state().world;
    world.send_and_work("opened").await;
    let first = received(&world)("acme/four");
    first.begin(&world).await;
    world.work().await;
    world.change(|_| {});
    world.send_and_work("reopened").await;
    let second = Downstream { run: RUN + 1, ..received(&world)("acme/four") };
    second.on_github(&world, "completed", Some("success"));
    github.add_commit(UPSTREAM, NEWER);
    world.change(|pull| pull.head_sha = NEWER.to_owned());
    world.send_and_work("synchronize").await;
    second.end(&world, "success").await;
    // The update for the second run is still to be sent when the first one's job is found to be lost.
    github.fail("PATCH /repos/acme/upstream/check-runs/*", 5, Fault::status(503));
    world.later(30 * HOUR);
    assert!(!world.work().await.is_empty(), "updates fail");
    world.wait(HOUR).await;
    let shown = github.check_runs(UPSTREAM);
    let job = shown.iter().find(|run| run.name == JOB && run.head_sha == HEAD).unwrap();
    assert_eq!(job.conclusion.as_deref(), Some("success"));
}

#[tokio::test]
async fn relay_without_an_allowlist_leaves_check_runs_as_they_are() {
    let (world, four) = World::new().await.opened("acme/four").await;
    four.begin(&world).await;
    world.work().await;
    let before = checks(&world);
    // After the restart, neither the store nor upstream can tell it.
    world.remove_allowlist();
    world.sql("DELETE FROM record WHERE key LIKE '%allowlist%'");
    let restarted = world.restart(&[]).await;
    assert!(!restarted.relay.allowlist.status().loaded);
    restarted.later(5 * MINUTE);
    restarted.work().await;
    assert_eq!(checks(&restarted), before);
    restarted.enforce(ALLOWLIST).await;
    four.end(&restarted, "success").await;
    restarted.later(5 * MINUTE);
    restarted.work().await;
    assert!(checks(&restarted).contains(&check(JOB, "completed", Some("success"))));
}
