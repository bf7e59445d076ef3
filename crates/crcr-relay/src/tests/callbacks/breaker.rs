//! A backend whose infrastructure keeps failing blocks nobody, and is only probed until it works again.

use super::*;

const MINUTE: Duration = Duration::from_secs(60);

/// Pushes a new head.
async fn push(world: &World, head: &str) {
    world.github.state().world.add_commit(UPSTREAM, head);
    world.change(|pull| head.clone_into(&mut pull.head_sha));
    world.send(&world.pull_request("synchronize")).await;
    assert_eq!(world.work().await, Vec::<String>::new());
}

/// Conclusion and text of the dispatch's check run on a head.
fn shown(world: &World, head: &str) -> (Option<String>, String) {
    let runs = world.github.state().world.check_runs(UPSTREAM);
    let run = runs.into_iter().find(|run| run.name == DISPATCH && run.head_sha == head).unwrap();
    (run.conclusion, run.summary)
}

#[tokio::test]
async fn dead_lab_blocks_nobody_after_some_failures_and_returns_by_itself() {
    let world =
        World::with(&[("CRCR_BREAKER_FAILURES", "3"), ("CRCR_ONCALL_COMMENTS", "on")]).await;
    world.allow("L4:\n  - acme/four: [dave]\n");
    world.relay.allowlist.refresh(&world.relay.app, world.relay.now()).await;
    let heads = ["a", "b", "c", "d", "e", "f", "9"].map(|digit| digit.repeat(40));
    let silent_for = 121 * MINUTE;
    let fails = Some("failure".to_owned());
    for head in &heads[..2] {
        push(&world, head).await;
        assert_eq!(world.dispatched(), ["acme/four"]);
        world.later(silent_for);
        assert_eq!(world.work().await, Vec::<String>::new());
        assert_eq!(shown(&world, head).0, fails, "it may be this pull request's fault");
    }
    push(&world, &heads[2]).await;
    assert_eq!(world.dispatched(), ["acme/four"]);
    world.later(silent_for);
    world.work().await;
    let (conclusion, text) = shown(&world, &heads[2]);
    assert_eq!(conclusion.as_deref(), Some("neutral"), "{text}");
    assert!(text.contains("failed several times in a row"), "{text}");

    // It opened a moment ago, so the next push isn't dispatched, and blocks nobody.
    push(&world, &heads[3]).await;
    assert_eq!(world.dispatched(), Vec::<String>::new());
    let (conclusion, text) = shown(&world, &heads[3]);
    assert_eq!(conclusion.as_deref(), Some("neutral"));
    assert!(text.contains("only a probe every ten minutes is sent"), "{text}");
    assert_eq!(world.github.state().world.comments(UPSTREAM, 7).len(), 1, "told once");

    // The probe gets through and passes, which closes the breaker.
    world.later(10 * MINUTE);
    push(&world, &heads[4]).await;
    let four = received(&world)("acme/four");
    four.on_github(&world, "completed", Some("success"));
    four.start(&world).await;
    four.end(&world, "success").await;
    world.work().await;
    world.later(5 * MINUTE);
    world.work().await;
    assert_eq!(shown(&world, &heads[4]).0.as_deref(), Some("success"));
    push(&world, &heads[5]).await;
    assert_eq!(world.dispatched(), ["acme/four"]);
    world.later(silent_for);
    world.work().await;
    assert_eq!(shown(&world, &heads[5]).0, fails, "it has to fail as often again");
}

#[tokio::test]
async fn failing_tests_never_open_the_breaker() {
    let world = World::with(&[("CRCR_BREAKER_FAILURES", "1")]).await;
    let four = open(&world).await("acme/four");
    four.on_github(&world, "completed", Some("failure"));
    four.start(&world).await;
    four.end(&world, "failure").await;
    world.work().await;
    world.later(5 * MINUTE);
    world.work().await;
    assert_eq!(shown(&world, HEAD).0.as_deref(), Some("failure"));
    push(&world, &"a".repeat(40)).await;
    assert!(world.dispatched().contains(&"acme/four".to_owned()));
}
