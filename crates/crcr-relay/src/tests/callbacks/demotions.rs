//! An open demotion upstream: no new check runs at L3, and everything else as before.

use std::time::Duration;

use axum::http::StatusCode;
use crcr_domain::Level;
use crcr_standin::traffic::Fault;
use crcr_standin::world::PullRequest;

use super::super::support::{HEAD, NEWER, UPSTREAM, World};
use super::{Downstream, checks, open};
use crate::demotions;

const BRANCH: &str = "crcr-demotion/acme/three";
const OWN_CHECK_RUNS: &str =
    "GET /repos/acme/upstream/commits/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa/check-runs";
const REFS: &str = "GET /repos/acme/upstream/git/matching-refs/heads/crcr-demotion/";

/// Pull request 7 has the label of the device of `acme/three`.
async fn world() -> World {
    let world = World::new().await;
    world.change(|pull| pull.labels.extend(["ciflow/crcr/npu".to_owned()]));
    world
}

/// Pull request 50 as `crcr levels sync` opens it.
fn demotion(head_repository: &str) -> PullRequest {
    PullRequest {
        head_repository: Some(head_repository.to_owned()),
        head_ref: BRANCH.to_owned(),
        labels: ["crcr-auto-demotion".to_owned()].into(),
        ..PullRequest::from_fork(50, UPSTREAM, NEWER, jiff::Timestamp::UNIX_EPOCH)
    }
}

/// Closes it, and has the relay ask GitHub twice, as it does before it takes a demotion for over.
async fn close(world: &World) {
    world.github.state().world.close_pull(UPSTREAM, 50);
    demotions::refresh(&world.relay).await;
    demotions::refresh(&world.relay).await;
}

/// Opens it, and has the relay ask GitHub.
async fn demote(world: &World, pull: PullRequest) {
    let github = &world.github.state().world;
    github.put_pull(UPSTREAM, pull);
    github.put_branch(UPSTREAM, BRANCH, NEWER);
    demotions::refresh(&world.relay).await;
}

fn of_three(world: &World) -> Vec<(String, String, Option<String>)> {
    checks(world).into_iter().filter(|check| check.0.contains("/three/")).collect()
}

/// The run at `acme/three` from its dispatch to its end.
async fn run_three(world: &World) -> Downstream {
    let three = open(world).await("acme/three");
    three.complete(world, "success").await;
    world.settle().await;
    three
}

#[tokio::test]
async fn open_demotion_stops_new_check_runs_but_not_dispatches_and_results() {
    let world = world().await;
    demote(&world, demotion(UPSTREAM)).await;
    run_three(&world).await;
    assert_eq!(of_three(&world), []);
    let asked = world.github.state().world.count(OWN_CHECK_RUNS);
    assert!(asked < 40, "asked {asked} times for check runs that may not be created");
    let attempts = world.results.attempts(&world.always()).unwrap();
    assert!(attempts.iter().any(|row| row.repo == "acme/three" && row.level == Level::L3));
    assert!(!checks(&world).is_empty(), "the others keep theirs");
}

#[tokio::test]
async fn check_runs_that_have_begun_are_ended_during_a_demotion() {
    let (world, three) = world().await.opened("acme/three").await;
    three.on_github(&world, "completed", Some("success"));
    three.start(&world).await;
    world.work().await;
    assert_eq!(of_three(&world).len(), 2);
    demote(&world, demotion(UPSTREAM)).await;
    three.end(&world, "success").await;
    world.wait(Duration::from_secs(300)).await;
    let ends: Vec<_> = of_three(&world).into_iter().map(|check| check.2).collect();
    assert_eq!(ends, vec![Some("success".to_owned()); 2]);
}

#[tokio::test]
async fn closed_demotion_gives_the_check_runs_back() {
    let world = world().await;
    demote(&world, demotion(UPSTREAM)).await;
    close(&world).await;
    run_three(&world).await;
    assert_eq!(of_three(&world).len(), 2);
}

#[tokio::test]
async fn fork_cannot_demote_a_backend_by_naming_its_branch() {
    for fork in ["mallory/upstream", "acme/upstream-fork"] {
        let world = world().await;
        demote(&world, demotion(fork)).await;
        run_three(&world).await;
        assert_eq!(of_three(&world).len(), 2, "{fork}");
    }
}

#[tokio::test]
async fn demotion_whose_label_could_not_be_set_counts() {
    let world = world().await;
    demote(&world, PullRequest { labels: [].into(), ..demotion(UPSTREAM) }).await;
    run_three(&world).await;
    assert_eq!(of_three(&world), []);
}

#[tokio::test]
async fn run_that_ended_during_a_demotion_is_shown_when_that_is_closed() {
    let world = world().await;
    demote(&world, demotion(UPSTREAM)).await;
    run_three(&world).await;
    assert_eq!(of_three(&world), []);
    close(&world).await;
    world.wait(Duration::from_secs(300)).await;
    let ends: Vec<_> = of_three(&world).into_iter().map(|check| check.2).collect();
    assert_eq!(ends, vec![Some("success".to_owned()); 2]);
}

#[tokio::test]
async fn demotion_that_is_closed_during_a_restart_gives_the_check_runs_back() {
    let world = world().await;
    demote(&world, demotion(UPSTREAM)).await;
    run_three(&world).await;
    assert_eq!(of_three(&world), []);
    let world = world.restart(&[]).await;
    close(&world).await;
    world.wait(Duration::from_secs(300)).await;
    let ends: Vec<_> = of_three(&world).into_iter().map(|check| check.2).collect();
    assert_eq!(ends, vec![Some("success".to_owned()); 2]);
}

#[tokio::test]
async fn open_demotion_holds_after_a_restart_before_github_answers() {
    let world = world().await;
    demote(&world, demotion(UPSTREAM)).await;
    let world = world.restart(&[]).await;
    run_three(&world).await;
    assert_eq!(of_three(&world), []);
}

#[tokio::test]
async fn closed_demotion_gives_the_check_runs_back_although_another_replica_hears_of_it_later() {
    let mut world = world().await;
    demote(&world, demotion(UPSTREAM)).await;
    let mut other = world.other_replica().await;
    demotions::refresh(&other).await;
    run_three(&world).await;
    close(&world).await;
    std::mem::swap(&mut world.relay, &mut other);
    world.later(Duration::from_secs(300));
    assert_eq!(world.work().await, Vec::<String>::new());
    assert_eq!(of_three(&world), [], "it has evaluated them by what it knew");
    close(&world).await;
    assert_eq!(world.work().await, Vec::<String>::new());
    let ends: Vec<_> = of_three(&world).into_iter().map(|check| check.2).collect();
    assert_eq!(ends, vec![Some("success".to_owned()); 2]);
}

/// GitHub's lists sometimes lack what is there.
#[tokio::test]
async fn one_empty_answer_ends_no_demotion() {
    let world = world().await;
    demote(&world, demotion(UPSTREAM)).await;
    let empty = Fault::Answer { status: StatusCode::OK, retry_after: None, body: "[]".to_owned() };
    world.github.state().world.fail(REFS, 1, empty);
    demotions::refresh(&world.relay).await;
    run_three(&world).await;
    assert_eq!(of_three(&world), []);
    demotions::refresh(&world.relay).await;
    world.work().await;
    assert_eq!(of_three(&world), []);
}

#[tokio::test]
async fn outage_of_github_keeps_what_was_known_of_demotions() {
    let world = world().await;
    demote(&world, demotion(UPSTREAM)).await;
    world.github.state().world.fail(REFS, 1, Fault::status(403));
    demotions::refresh(&world.relay).await;
    run_three(&world).await;
    assert_eq!(of_three(&world), []);
}

#[tokio::test]
async fn webhook_of_a_demotion_causes_a_question_to_github_and_others_dont() {
    let world = world().await;
    let github = &world.github.state().world;
    github.put_pull(UPSTREAM, demotion(UPSTREAM));
    let forked = PullRequest { number: 51, ..demotion("mallory/upstream") };
    github.put_pull(UPSTREAM, forked);
    let relay = std::sync::Arc::clone(&world.relay);
    let pause = Duration::from_millis(50);
    let fresh = tokio::spawn(async move { demotions::keep_fresh(&relay, pause).await });
    let asked = async |times: usize| {
        for _ in 0..1000 {
            if github.count(REFS) >= times {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        github.count(REFS)
    };
    assert_eq!(asked(1).await, 1, "at the start");
    assert_eq!(github.pull(UPSTREAM, 7).unwrap().head_sha, HEAD);
    world.send(&world.pull_request("opened")).await;
    // Strangers can write the name into anything, but have no branch upstream.
    world.change(|pull| pull.body = format!("see {BRANCH}"));
    world.send(&world.pull_request("reopened")).await;
    let forked = world.github.state().pull_request_payload(UPSTREAM, 51, "labeled");
    world.send(&github.delivery("pull_request", &forked)).await;
    tokio::time::sleep(3 * pause).await;
    assert_eq!(github.count(REFS), 1);
    let payload = world.github.state().pull_request_payload(UPSTREAM, 50, "labeled");
    world.send(&github.delivery("pull_request", &payload)).await;
    assert_eq!(asked(2).await, 2, "within seconds, and not only after a minute");
    fresh.abort();
    world.work().await;
    world.dispatched();
    checks(&world);
}
