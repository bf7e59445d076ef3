//! A backend whose infrastructure keeps failing blocks nobody, and is only probed until it works again.

use crcr_standin::world::{Delivery, PullRequest};
use crcr_store::read_record;

use super::strangers::{stranger, strangers_run_after};
use super::verdicts::press_rerun;
use super::*;
use crate::admin::deliveries;
use crate::state_records::{self, Uptime};

const MINUTE: Duration = Duration::from_secs(60);

/// Another author opens a pull request.
async fn push(world: &World, head: &str) {
    open_as(world, head, false).await;
}

/// `is_stranger`: whether the author hasn't contributed to upstream before.
async fn open_as(world: &World, head: &str, is_stranger: bool) {
    world.send(&open_payload(world, head, is_stranger)).await;
    world.settle().await;
}

fn open_payload(world: &World, head: &str, is_stranger: bool) -> Delivery {
    let state = world.github.state();
    let number = 100 + u64::from(head.as_bytes()[0]);
    let pull = PullRequest {
        author: format!("author-{number}"),
        is_stranger,
        ..PullRequest::from_fork(number, UPSTREAM, head, state.clock.now())
    };
    state.world.put_pull(UPSTREAM, pull);
    let payload = state.pull_request_payload(UPSTREAM, number, "opened");
    state.world.delivery("pull_request", &payload)
}

/// Conclusion and text of the dispatch's check run on a head.
fn shown(world: &World, head: &str) -> (Option<String>, String) {
    let runs = world.github.state().world.check_runs(UPSTREAM);
    let run = runs.into_iter().find(|run| run.name == DISPATCH && run.head_sha == head).unwrap();
    (run.conclusion, run.summary)
}

#[tokio::test]
pub(crate) async fn dead_lab_blocks_nobody_after_some_failures_and_returns_by_itself() {
    let world =
        World::with(&[("CRCR_BREAKER_FAILURES", "3"), ("CRCR_ONCALL_COMMENTS", "on")]).await;
    world.enforce("L4:\n  - acme/four: [dave]\n").await;
    let heads = ["a", "b", "c", "d", "e", "f", "9"].map(|digit| digit.repeat(40));
    let silent_for = 121 * MINUTE;
    let fails = Some("failure".to_owned());
    for head in &heads[..2] {
        push(&world, head).await;
        assert_eq!(world.dispatched(), ["acme/four"]);
        world.wait(silent_for).await;
        assert_eq!(shown(&world, head).0, fails, "it may be this pull request's fault");
    }
    push(&world, &heads[2]).await;
    assert_eq!(world.dispatched(), ["acme/four"]);
    world.work_after(silent_for).await;
    let (conclusion, text) = shown(&world, &heads[2]);
    assert_eq!(conclusion.as_deref(), Some("neutral"), "{text}");
    assert!(text.contains("failed several times in a row"), "{text}");

    // It opened a moment ago, so the next push isn't dispatched, and blocks nobody.
    push(&world, &heads[3]).await;
    assert_eq!(world.dispatched(), Vec::<String>::new());
    let (conclusion, text) = shown(&world, &heads[3]);
    assert_eq!(conclusion.as_deref(), Some("neutral"));
    assert!(text.contains("only a trial every ten minutes is sent"), "{text}");
    let is_told = async || {
        let request = http::Request::get("/api/v1/now").body(axum::body::Body::empty());
        let (_, now) = world.call(request.unwrap()).await;
        let warnings = now["relay"]["warnings"].as_array().unwrap();
        warnings.iter().any(|warning| warning["page"] == "/crcr/acme/four")
    };
    assert!(is_told().await, "on-call reads it on the first page");
    let told = |head: &String| {
        let number = 100 + u64::from(head.as_bytes()[0]);
        world.github.state().world.comments(UPSTREAM, number).len()
    };
    assert_eq!(told(&heads[2]), 1, "told when it opened");
    assert_eq!(told(&heads[3]), 0, "and not again");

    // The probe gets through and passes, which closes the breaker.
    world.later(10 * MINUTE);
    push(&world, &heads[4]).await;
    let four = received(&world)("acme/four");
    four.complete(&world, "success").await;
    world.work().await;
    world.work_after(5 * MINUTE).await;
    assert_eq!(shown(&world, &heads[4]).0.as_deref(), Some("success"));
    assert!(!is_told().await, "it is closed");
    push(&world, &heads[5]).await;
    assert_eq!(world.dispatched(), ["acme/four"]);
    world.work_after(silent_for).await;
    assert_eq!(shown(&world, &heads[5]).0, fails, "it has to fail as often again");
}

/// A relay whose breaker a silent backend has opened with the first three of these heads.
async fn world_with_open_breaker() -> (World, [String; 5]) {
    let world = World::with(&[("CRCR_BREAKER_FAILURES", "3")]).await;
    world.enforce("L4:\n  - acme/four: [dave]\n").await;
    let heads = ["a", "b", "c", "d", "e"].map(|digit| digit.repeat(40));
    for head in &heads[..3] {
        push(&world, head).await;
        assert_eq!(world.dispatched(), ["acme/four"]);
        world.work_after(121 * MINUTE).await;
    }
    (world, heads)
}

#[tokio::test]
async fn trial_that_github_does_not_take_at_once_is_tried_again_and_closes_the_breaker() {
    let (world, heads) = world_with_open_breaker().await;
    world.later(11 * MINUTE);
    let github = &world.github.state().world;
    github.fail("POST /repos/acme/four/dispatches", 2, Fault::status(502));
    let opened = open_payload(&world, &heads[3], false);
    world.send(&opened).await;
    assert_eq!(world.work().await.len(), 1, "GitHub is away");
    // Another one meanwhile isn't the trial.
    world.send(&open_payload(&world, &heads[4], false)).await;
    world.work().await;
    assert_eq!(shown(&world, &heads[4]).0.as_deref(), Some("neutral"));
    for _ in 0..5 {
        world.work_after(MINUTE).await;
    }
    let trial = received(&world)("acme/four");
    assert_eq!(trial.client_payload["delivery_id"], opened.id.as_str());
    trial.complete(&world, "success").await;
    world.wait(5 * MINUTE).await;
    assert_eq!(shown(&world, &heads[3]).0.as_deref(), Some("success"));
}

/// Others were dispatched later, before anybody knew that the lab was dead.
#[tokio::test]
async fn rerun_that_passes_closes_the_breaker_although_its_pull_request_is_an_older_one() {
    let world = World::with(&[("CRCR_BREAKER_FAILURES", "3")]).await;
    world.enforce("L4:\n  - acme/four: [dave]\n").await;
    for digit in ["a", "b", "c", "d"] {
        push(&world, &digit.repeat(40)).await;
        world.later(MINUTE);
    }
    world.dispatched();
    world.work_after(121 * MINUTE).await;
    press_rerun(&world).await;
    received(&world)("acme/four").complete(&world, "success").await;
    world.wait(5 * MINUTE).await;
    assert_eq!(shown(&world, HEAD).0.as_deref(), Some("success"));
    push(&world, &"e".repeat(40)).await;
    assert_eq!(world.dispatched(), ["acme/four"], "the backend works again");
}

/// GitHub runs the job again, for which nothing is dispatched.
#[tokio::test]
async fn new_attempt_that_passes_closes_the_breaker_although_its_pull_request_is_an_older_one() {
    let world = World::with(&[("CRCR_BREAKER_FAILURES", "3")]).await;
    world.enforce("L4:\n  - acme/four: [dave]\n").await;
    push(&world, HEAD).await;
    let four = received(&world)("acme/four");
    four.complete(&world, "timed_out").await;
    for digit in ["b", "c", "d"] {
        world.later(MINUTE);
        push(&world, &digit.repeat(40)).await;
    }
    world.dispatched();
    world.work_after(121 * MINUTE).await;
    push(&world, &"e".repeat(40)).await;
    assert_eq!(world.dispatched(), Vec::<String>::new(), "the breaker is open");
    press_rerun(&world).await;
    assert_eq!(world.github.state().world.take_reruns().len(), 1);
    let again = Downstream { attempt: 2, ..four };
    again.on_github(&world, "in_progress", None);
    world.wait(MINUTE).await;
    again.complete(&world, "success").await;
    world.wait(5 * MINUTE).await;
    assert_eq!(shown(&world, HEAD).0.as_deref(), Some("success"));
    push(&world, &"f".repeat(40)).await;
    assert_eq!(world.dispatched(), ["acme/four"], "the backend works again");
}

#[tokio::test]
async fn withheld_dispatch_that_an_operator_redelivers_is_sent() {
    let (world, heads) = world_with_open_breaker().await;
    let opened = open_payload(&world, &heads[3], false);
    world.send(&opened).await;
    world.settle().await;
    assert_eq!(world.dispatched(), Vec::<String>::new());
    let (store, relay) = (world.relay.store.as_ref(), &world.relay);
    let again =
        deliveries::redeliver(store, &opened.id, None, relay.now(), relay.config.status_ttl);
    assert_eq!(again.await.unwrap(), 1);
    world.settle().await;
    assert_eq!(world.dispatched(), ["acme/four"]);
}

/// No report answers that, so nobody would know any more than before.
#[tokio::test]
async fn closed_pull_request_takes_no_trials_place() {
    let (world, heads) = world_with_open_breaker().await;
    world.later(11 * MINUTE);
    let state = world.github.state();
    let number = 100 + u64::from(heads[0].as_bytes()[0]);
    state.world.change_pull(UPSTREAM, number, |pull| {
        pull.open = false;
        pull.updated_at += MINUTE;
    });
    let payload = state.pull_request_payload(UPSTREAM, number, "closed");
    world.deliver("pull_request", &payload).await;
    assert_eq!(world.dispatched(), ["acme/four"], "nothing is built for it");
    push(&world, &heads[3]).await;
    assert_eq!(world.dispatched(), ["acme/four"], "the trial");
}

/// The jobs hang, and the author of the trial pushes again before they are over.
#[tokio::test]
async fn trial_that_is_cancelled_does_not_close_the_breaker() {
    let (world, heads) = world_with_open_breaker().await;
    world.later(11 * MINUTE);
    push(&world, &heads[3]).await;
    received(&world)("acme/four").complete(&world, "cancelled").await;
    world.wait(5 * MINUTE).await;
    assert_eq!(shown(&world, &heads[3]).0.as_deref(), Some("cancelled"));
    push(&world, &heads[4]).await;
    assert_eq!(world.dispatched(), Vec::<String>::new(), "nobody knows that it works again");
    assert_eq!(shown(&world, &heads[4]).0.as_deref(), Some("neutral"));
}

#[tokio::test]
pub(crate) async fn clock_that_was_a_day_ahead_keeps_no_backend_from_its_trials_when_it_is_set_right()
 {
    let (world, heads) = world_with_open_breaker().await;
    let day = 24 * 60 * MINUTE;
    world.later(day);
    push(&world, &heads[3]).await;
    assert_eq!(world.dispatched(), ["acme/four"], "a trial");
    world.github.state().clock.set_back(day);
    world.later(11 * MINUTE);
    push(&world, &heads[4]).await;
    assert_eq!(world.dispatched(), ["acme/four"], "the next trial");
}

#[tokio::test]
pub(crate) async fn clock_that_was_a_day_ahead_is_no_downtime_that_excuses_a_dead_backend() {
    let world = World::new().await;
    let day = 24 * 60 * MINUTE;
    crate::uptime::beat(&world.relay).await.unwrap();
    world.later(day);
    crate::uptime::beat(&world.relay).await.unwrap();
    world.github.state().clock.set_back(day);
    crate::uptime::beat(&world.relay).await.unwrap();
    push(&world, &"a".repeat(40)).await;
    world.dispatched();
    for _ in 0..121 {
        world.later(MINUTE);
        crate::uptime::beat(&world.relay).await.unwrap();
    }
    world.work().await;
    assert_eq!(shown(&world, &"a".repeat(40)).0.as_deref(), Some("failure"));
}

#[tokio::test]
async fn relays_whose_clocks_differ_write_down_real_downtimes_only() {
    let world = World::new().await;
    let ahead = world.replica_ahead(Duration::from_secs(290)).await;
    let beat_in_turns = async || {
        for _ in 0..10 {
            for relay in [&world.relay, &ahead] {
                crate::uptime::beat(relay).await.unwrap();
                world.later(Duration::from_secs(30));
            }
        }
    };
    let downtimes = async || {
        let (store, key) = (world.relay.store.as_ref(), state_records::uptime_key());
        let known = read_record::<Uptime>(store, key).await.unwrap();
        known.value.unwrap().downtimes.len()
    };
    beat_in_turns().await;
    assert_eq!(downtimes().await, 0);
    world.later(20 * MINUTE);
    beat_in_turns().await;
    assert_eq!(downtimes().await, 1);
}

#[tokio::test]
pub(crate) async fn failing_tests_never_open_the_breaker() {
    let world = World::with(&[("CRCR_BREAKER_FAILURES", "1")]).await;
    let four = open(&world).await("acme/four");
    four.complete(&world, "failure").await;
    world.work().await;
    world.work_after(5 * MINUTE).await;
    assert_eq!(shown(&world, HEAD).0.as_deref(), Some("failure"));
    push(&world, &"a".repeat(40)).await;
    assert!(world.dispatched().contains(&"acme/four".to_owned()));
}

#[tokio::test]
pub(crate) async fn one_authors_broken_pull_request_does_not_turn_off_the_checks_of_everybody() {
    let world = World::with(&[("CRCR_BREAKER_FAILURES", "3")]).await;
    for (round, digit) in ["a", "b", "c", "d", "e"].into_iter().enumerate() {
        let head = digit.repeat(40);
        world.github.state().world.add_commit(UPSTREAM, &head);
        world.change(|pull| pull.head_sha = head);
        world.send_and_work("synchronize").await;
        let four = Downstream { run: RUN + round as u64, ..received(&world)("acme/four") };
        four.on_github(&world, "completed", Some("failure"));
        let mut body = four.body("completed", Some("failure"));
        body["workflow"]["phase"] = json!("setup");
        four.report(&world, &body).await;
        world.wait(2 * MINUTE).await;
    }
    assert_eq!(shown(&world, &"e".repeat(40)).0.as_deref(), Some("failure"));
    push(&world, &"f".repeat(40)).await;
    assert!(world.dispatched().contains(&"acme/four".to_owned()), "others are dispatched");
}

/// Their own runs are fine, but the commit's failure is everybody's.
#[tokio::test]
async fn failure_at_a_commit_that_others_share_counts_for_the_one_whose_run_failed() {
    let world = World::with(&[("CRCR_BREAKER_FAILURES", "3")]).await;
    let four = open(&world).await("acme/four");
    four.on_github(&world, "completed", Some("failure"));
    let mut body = four.body("completed", Some("failure"));
    body["workflow"]["phase"] = json!("setup");
    four.report(&world, &body).await;
    world.wait(2 * MINUTE).await;
    for number in 1..5 {
        let state = world.github.state();
        let pull = PullRequest {
            author: format!("author-{number}"),
            ..PullRequest::from_fork(100 + number, UPSTREAM, HEAD, state.clock.now())
        };
        state.world.put_pull(UPSTREAM, pull);
        let payload = state.pull_request_payload(UPSTREAM, 100 + number, "opened");
        world.deliver("pull_request", &payload).await;
        world.settle().await;
        received(&world)("acme/four").in_run(RUN + number).complete(&world, "success").await;
        world.wait(2 * MINUTE).await;
    }
    assert_eq!(shown(&world, HEAD).0.as_deref(), Some("failure"));
}

#[tokio::test]
pub(crate) async fn newcomers_whose_jobs_hang_do_not_turn_off_the_checks_of_everybody() {
    let world = World::with(&[("CRCR_BREAKER_FAILURES", "3")]).await;
    for digit in ["a", "b", "c", "d", "e"] {
        open_as(&world, &digit.repeat(40), true).await;
        world.dispatched();
        world.wait(121 * MINUTE).await;
    }
    assert_eq!(shown(&world, &"e".repeat(40)).0.as_deref(), Some("failure"));
    push(&world, &"f".repeat(40)).await;
    assert!(world.dispatched().contains(&"acme/four".to_owned()), "others are dispatched");
}

#[tokio::test]
pub(crate) async fn runs_whose_reports_were_lost_while_the_relay_was_down_do_not_open_the_breaker()
{
    let world = World::with(&[("CRCR_BREAKER_FAILURES", "3")]).await;
    let heads = ["a", "b", "c", "d"].map(|digit| digit.repeat(40));
    for (round, head) in heads.iter().enumerate() {
        push(&world, head).await;
        let four = Downstream { run: RUN + round as u64, ..received(&world)("acme/four") };
        four.on_github(&world, "completed", Some("success"));
        world.work_after(2 * MINUTE).await;
    }
    world.later(3 * 60 * MINUTE);
    let world = world.restart(&[("CRCR_BREAKER_FAILURES", "3")]).await;
    world.settle().await;
    let (conclusion, text) = shown(&world, &heads[0]);
    assert_eq!(conclusion.as_deref(), Some("failure"), "without a report nothing is proven");
    assert!(text.contains("no report of it came in"), "{text}");
    push(&world, &"f".repeat(40)).await;
    assert!(world.dispatched().contains(&"acme/four".to_owned()));
}

#[tokio::test]
pub(crate) async fn runs_whose_reports_were_lost_below_l3_do_not_open_the_breaker_after_a_promotion()
 {
    let world = World::with(&[("CRCR_BREAKER_FAILURES", "3")]).await;
    world.enforce("L2: [acme/four]\n").await;
    let heads = ["a", "b", "c", "d"].map(|digit| digit.repeat(40));
    for (round, head) in heads.iter().enumerate() {
        push(&world, head).await;
        let four = Downstream { run: RUN + round as u64, ..received(&world)("acme/four") };
        four.on_github(&world, "completed", Some("success"));
        world.wait(121 * MINUTE).await;
    }
    world.settle_with("L4:\n  - acme/four: [dave]\n").await;
    let conclusion = shown(&world, &heads[0]).0;
    assert_eq!(conclusion.as_deref(), Some("failure"), "without a report nothing is proven");
    push(&world, &"f".repeat(40)).await;
    assert_eq!(world.dispatched(), ["acme/four"], "it may well work");
}

#[tokio::test]
pub(crate) async fn jobs_whose_end_was_lost_while_the_relay_was_down_do_not_open_the_breaker() {
    let world = World::with(&[("CRCR_BREAKER_FAILURES", "3")]).await;
    let heads = ["a", "b", "c", "d"].map(|digit| digit.repeat(40));
    for (round, head) in heads.iter().enumerate() {
        push(&world, head).await;
        let four = Downstream { run: RUN + round as u64, ..received(&world)("acme/four") };
        four.start(&world).await;
        four.on_github(&world, "completed", Some("success"));
        world.work_after(MINUTE).await;
    }
    // Their ends are reported while nobody listens.
    crate::uptime::beat(&world.relay).await.unwrap();
    world.later(7 * 60 * MINUTE);
    let world = world.restart(&[("CRCR_BREAKER_FAILURES", "3")]).await;
    crate::uptime::beat(&world.relay).await.unwrap();
    world.settle().await;
    let (conclusion, text) = shown(&world, &heads[0]);
    assert_eq!(conclusion.as_deref(), Some("timed_out"), "an end is missing: {text}");
    push(&world, &"f".repeat(40)).await;
    assert!(world.dispatched().contains(&"acme/four".to_owned()));
}

/// A stranger's run at the commit is cancelled, and its job lost: it says nothing about what failed there.
#[tokio::test]
async fn while_the_breaker_is_open_a_strangers_lost_job_makes_no_failure_neutral() {
    let world = World::with(&[("CRCR_BREAKER_FAILURES", "2")]).await;
    let strangers = strangers_run_after(&world, "failure").await;
    strangers.begin(&world).await;
    world.wait(2 * MINUTE).await;
    stranger(&world, "closed", HEAD).await;
    strangers.on_github(&world, "completed", Some("cancelled"));
    for digit in ["d", "e"] {
        push(&world, &digit.repeat(40)).await;
    }
    world.wait(121 * MINUTE).await;
    assert_eq!(shown(&world, &"e".repeat(40)).0.as_deref(), Some("neutral"), "it is open");
    for _ in 0..3 {
        world.wait(world.relay.config.lost_after).await;
    }
    let (conclusion, text) = shown(&world, HEAD);
    assert_eq!(conclusion.as_deref(), Some("failure"), "{text}");
}

#[tokio::test]
pub(crate) async fn while_the_breaker_is_open_a_failure_stays_and_rerun_is_the_probe() {
    let world = World::with(&[("CRCR_BREAKER_FAILURES", "2")]).await;
    // A genuine failure, before the lab dies.
    let four = open(&world).await("acme/four");
    four.complete(&world, "failure").await;
    world.work_after(5 * MINUTE).await;
    assert_eq!(shown(&world, HEAD).0.as_deref(), Some("failure"));
    for digit in ["d", "e"] {
        push(&world, &digit.repeat(40)).await;
    }
    world.work_after(121 * MINUTE).await;
    world.dispatched();
    // Its author closes and reopens the pull request.
    for (action, is_open) in [("closed", false), ("reopened", true)] {
        world.change(|pull| pull.open = is_open);
        world.send(&world.pull_request(action)).await;
        world.settle().await;
    }
    let (conclusion, text) = shown(&world, HEAD);
    assert_eq!(conclusion.as_deref(), Some("failure"), "a withheld delivery says nothing: {text}");
    // Another one is withheld, and its author presses "Re-run".
    let head = "c".repeat(40);
    push(&world, &head).await;
    world.dispatched();
    assert_eq!(shown(&world, &head).0.as_deref(), Some("neutral"));
    let state = world.github.state();
    let runs = state.world.check_runs(UPSTREAM);
    let run = runs.iter().find(|run| run.name == DISPATCH && run.head_sha == head).unwrap();
    let payload = state.check_run_payload(UPSTREAM, run.id, "rerequested");
    world.deliver("check_run", &payload).await;
    assert_eq!(world.dispatched(), ["acme/four"]);
    let (conclusion, text) = shown(&world, &head);
    assert_eq!(conclusion, None);
    assert!(text.contains("as a trial, because somebody asked for it"), "{text}");
}
