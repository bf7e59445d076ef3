//! With a public URL, dispatches, check runs and comments have links.

use super::strangers::stranger;
use super::*;

const PAGE: &str = "https://relay.test/ci/pr/7";

#[tokio::test]
async fn dispatches_check_runs_and_comments_link_to_the_public_url() {
    let settings = [("CRCR_PUBLIC_URL", "https://relay.test/ci/"), ("CRCR_ONCALL_COMMENTS", "on")];
    let (world, four) = World::with(&settings).await.opened("acme/four").await;
    let callback = &four.client_payload["callback_url"];
    assert_eq!(callback, "https://relay.test/ci/github/callback");
    let shown = |at: usize| world.github.state().world.check_runs(UPSTREAM)[at].clone();
    assert_eq!(shown(0).details_url.as_deref(), Some(PAGE), "there is no run yet");
    // The payload is echoed with all of its keys.
    assert_eq!(four.start(&world).await, said("in_progress"));
    assert_eq!(four.end(&world, "failure").await, said("completed"));
    world.work().await;
    assert!(shown(1).summary.contains(PAGE), "{}", shown(1).summary);
    assert!(shown(1).details_url.unwrap().ends_with("/actions/runs/9000"));
    let comments = world.github.state().world.comments(UPSTREAM, 7);
    assert!(comments[0].body.contains(PAGE), "{}", comments[0].body);
}

/// Somebody has opened another pull request at its commit by mistake.
#[tokio::test]
async fn check_run_links_the_pull_request_that_has_its_commit_and_oncalls_are_mentioned_there() {
    let world = World::with(&[("CRCR_ONCALL_COMMENTS", "on")]).await;
    let four = open(&world).await("acme/four");
    for action in ["opened", "closed"] {
        world.later(Duration::from_secs(1));
        stranger(&world, action, HEAD).await;
        world.settle().await;
    }
    four.end(&world, "failure").await;
    world.work().await;
    let github = &world.github.state().world;
    let shown = github.check_runs(UPSTREAM).into_iter().find(|run| run.name == JOB).unwrap();
    assert_eq!(shown.external_id.as_deref(), Some("9000:7"));
    assert_eq!(github.comments(UPSTREAM, 7).len(), 1);
    assert!(github.comments(UPSTREAM, 8).is_empty());
    github.take_dispatches();
}

#[tokio::test]
async fn no_links_without_a_public_url() {
    let world = World::with(&[("CRCR_ONCALL_COMMENTS", "on")]).await;
    let four = open(&world).await("acme/four");
    let keys: Vec<_> = four.client_payload.as_object().unwrap().keys().cloned().collect();
    assert_eq!(keys, ["event_type", "delivery_id", "payload", "callback_token"]);
    four.end(&world, "failure").await;
    world.work().await;
    let world = &world.github.state().world;
    assert!(world.check_runs(UPSTREAM).iter().all(|run| !run.summary.contains("/pr/")));
    assert!(!world.comments(UPSTREAM, 7)[0].body.contains("/pr/"));
}
