//! A required check is about the branch that a pull request goes to, and about one that is ready for review.

use crcr_standin::world::PullRequest;

use super::verdicts::{MINUTE, ended, ended_after, of, press_rerun};
use super::*;

#[tokio::test]
pub(crate) async fn another_base_has_a_required_check_run_again() {
    let (world, four) = World::listening(&[]).await.opened("acme/four").await;
    four.complete(&world, "success").await;
    assert_eq!(ended_after(&world, 5 * MINUTE).await.as_deref(), Some("success"));
    // Against the branch of before, a workflow may have left out what counts.
    send_to_another_branch(&world).await;
    assert_eq!(of(&world, DISPATCH), Some(("queued".to_owned(), None)));
    required_again(&world).complete(&world, "failure").await;
    assert_eq!(ended_after(&world, 5 * MINUTE).await.as_deref(), Some("failure"));
}

/// Pull request 7 shall be merged into another branch.
pub(crate) async fn send_to_another_branch(world: &World) {
    world.change(|pull| pull.base_ref = "release".to_owned());
    let state = world.github.state();
    let mut payload = state.pull_request_payload(UPSTREAM, 7, "edited");
    payload["changes"] = json!({ "base": { "ref": { "from": "main" } } });
    world.deliver("pull_request", &payload).await;
}

/// The second run at the backend whose check blocks the merge, the only one that got the last event.
fn required_again(world: &World) -> Downstream {
    let dispatches = world.github.state().world.take_dispatches();
    let repos: Vec<_> = dispatches.iter().map(|one| one.repository.as_str()).collect();
    assert_eq!(repos, ["acme/four"], "nothing else blocks the merge");
    let client_payload = dispatches[0].client_payload.clone();
    Downstream { repo: "acme/four", client_payload, job: "test", run: RUN + 1, attempt: 1 }
}

#[tokio::test]
pub(crate) async fn another_base_that_nobody_tests_is_no_success() {
    let (world, four) = World::listening(&[]).await.opened("acme/four").await;
    four.complete(&world, "success").await;
    world.wait(5 * MINUTE).await;
    send_to_another_branch(&world).await;
    required_again(&world);
    world.wait(3 * 60 * MINUTE).await;
    assert_eq!(ended(&world).as_deref(), Some("failure"), "no report came in");
    // The run of before is for the other branch.
    press_rerun(&world).await;
    assert_eq!(of(&world, DISPATCH), Some(("queued".to_owned(), None)));
    required_again(&world).complete(&world, "success").await;
    assert_eq!(ended_after(&world, 5 * MINUTE).await.as_deref(), Some("success"));
}

/// Closes pull request 7, and opens it again as `change` makes it.
async fn close_and_reopen(world: &World, change: impl FnOnce(&mut PullRequest)) {
    world.close().await;
    world.github.state().world.take_dispatches();
    world.change(|pull| pull.open = true);
    world.change(change);
    world.event("reopened").await;
}

/// Pushes this head to pull request 7.
async fn push(world: &World, head: &str) {
    world.later(Duration::from_secs(2));
    world.push(head).await;
}

/// `edited` may have been lost, or have come while the pull request was closed.
#[tokio::test]
pub(crate) async fn pull_request_reopened_for_another_branch_that_nobody_tests_is_no_success() {
    for (branch, expected) in [("main", "success"), ("release", "failure")] {
        let world = World::listening(&[]).await;
        open(&world).await("acme/four").complete(&world, "success").await;
        world.wait(5 * MINUTE).await;
        close_and_reopen(&world, |pull| pull.base_ref = branch.to_owned()).await;
        assert_eq!(of(&world, DISPATCH), Some(("queued".to_owned(), None)));
        world.wait(3 * 60 * MINUTE).await;
        assert_eq!(ended(&world).as_deref(), Some(expected), "{branch}");
    }
}

#[tokio::test]
pub(crate) async fn commit_pushed_again_for_another_branch_that_nobody_tests_is_no_success() {
    let world = World::listening(&[]).await;
    open(&world).await("acme/four").complete(&world, "success").await;
    world.wait(5 * MINUTE).await;
    push(&world, NEWER).await;
    send_to_another_branch(&world).await;
    push(&world, HEAD).await;
    world.wait(3 * 60 * MINUTE).await;
    assert_eq!(ended(&world).as_deref(), Some("failure"), "it was tested for `main`");
}

/// While the file holds the heads in between back, the backend hears nothing of them.
#[tokio::test]
async fn commit_pushed_again_for_another_branch_is_required_to_pass_for_it_in_spite_of_quiet_time()
{
    let world = World::listening(&[]).await;
    world.push_file("acme/four", "dispatch: {quiet-minutes: 10}\n").await;
    world.send(&world.pull_request("opened")).await;
    world.wait(11 * MINUTE).await;
    received(&world)("acme/four").complete(&world, "failure").await;
    world.wait(5 * MINUTE).await;
    // On this branch the workflow leaves out what has failed.
    send_to_another_branch(&world).await;
    world.wait(11 * MINUTE).await;
    let elsewhere = received(&world)("acme/four").in_run(RUN + 1);
    elsewhere.of_job("lint").complete(&world, "success").await;
    assert_eq!(ended_after(&world, 5 * MINUTE).await.as_deref(), Some("success"));
    push(&world, NEWER).await;
    world.change(|pull| pull.base_ref = "main".to_owned());
    push(&world, HEAD).await;
    world.wait(11 * MINUTE).await;
    assert_eq!(of(&world, DISPATCH), Some(("queued".to_owned(), None)));
    received(&world)("acme/four").in_run(RUN + 2).complete(&world, "failure").await;
    assert_eq!(ended_after(&world, 5 * MINUTE).await.as_deref(), Some("failure"));
}

/// A workflow may leave out the tests of drafts.
#[tokio::test]
pub(crate) async fn required_check_that_ran_for_a_draft_runs_again_when_that_is_ready() {
    let (world, four) = World::listening(&[]).await.opened("acme/four").await;
    four.complete(&world, "failure").await;
    assert_eq!(ended_after(&world, 5 * MINUTE).await.as_deref(), Some("failure"));
    // Its author makes it a draft, and opens it again as such.
    close_and_reopen(&world, |pull| pull.draft = true).await;
    let draft = received(&world)("acme/four").in_run(RUN + 2);
    draft.of_job("lint").complete(&world, "success").await;
    world.wait(5 * MINUTE).await;
    assert_eq!(ended(&world).as_deref(), Some("success"), "a draft can't be merged");
    world.change(|pull| pull.draft = false);
    world.event("ready_for_review").await;
    assert_eq!(of(&world, DISPATCH), Some(("queued".to_owned(), None)));
    required_again(&world).in_run(RUN + 3).complete(&world, "failure").await;
    assert_eq!(ended_after(&world, 5 * MINUTE).await.as_deref(), Some("failure"));
}

/// Below L4 a backend isn't asked again.
#[tokio::test]
async fn backend_that_comes_to_l4_tests_again_what_it_ran_as_a_draft_or_for_another_branch() {
    for (is_draft, waits_for, expected) in [
        (true, MINUTE, "failure"),
        (false, MINUTE, "failure"),
        // The event of before can't be sent any more.
        (true, 8 * 24 * 60 * MINUTE, "silent"),
    ] {
        let world = World::listening(&[]).await;
        world.settle_with("L3:\n  npu:\n    acme/three: [carol]\n").await;
        world.change(|pull| pull.draft = is_draft);
        let three = open(&world).await("acme/three");
        three.of_job("lint").complete(&world, "success").await;
        world.wait(5 * MINUTE).await;
        if is_draft {
            world.change(|pull| pull.draft = false);
            world.event("ready_for_review").await;
        } else {
            send_to_another_branch(&world).await;
        }
        assert_eq!(world.dispatched(), Vec::<String>::new(), "it isn't at L4");
        world.wait(waits_for).await;
        world.settle_with("L4:\n  - acme/three: [carol]\n").await;
        let of_three = || of(&world, "crcr/acme/three/relay/dispatch").unwrap();
        if expected == "silent" {
            world.wait(5 * MINUTE).await;
            assert_eq!(of_three().1.as_deref(), Some("failure"), "nobody has tested it");
            assert_eq!(world.dispatched(), Vec::<String>::new());
            continue;
        }
        assert_eq!(of_three(), ("queued".to_owned(), None));
        let again = received(&world)("acme/three").in_run(RUN + 1);
        let pull = &again.client_payload["payload"]["pull_request"];
        assert_eq!(pull["draft"], false);
        assert_eq!(pull["base"]["ref"], if is_draft { "main" } else { "release" });
        again.complete(&world, "failure").await;
        world.wait(5 * MINUTE).await;
        assert_eq!(of_three().1.as_deref(), Some(expected));
        world.wait(60 * MINUTE).await;
        assert_eq!(world.dispatched(), Vec::<String>::new(), "once");
    }
}

/// A run of upstream's push doesn't stand for a pull request that is there, and does once that has left.
#[tokio::test]
pub(crate) async fn failure_of_a_pull_request_that_has_left_its_commit_gives_way_to_what_passed_there()
 {
    let (world, four) = World::listening(&[]).await.opened("acme/four").await;
    four.complete(&world, "failure").await;
    world.wait(Duration::from_secs(5 * 60)).await;
    let shown = || {
        let runs = world.github.state().world.check_runs(UPSTREAM);
        let mut of_head = runs.into_iter().rev().filter(|run| run.head_sha == HEAD);
        of_head.find(|run| run.name == DISPATCH).and_then(|run| run.conclusion)
    };
    assert_eq!(shown().as_deref(), Some("failure"));
    let push = world.github.state().push_payload(UPSTREAM, "refs/heads/main", HEAD);
    world.deliver("push", &push).await;
    received(&world)("acme/four").in_run(RUN + 1).complete(&world, "success").await;
    world.wait(Duration::from_secs(5 * 60)).await;
    assert_eq!(shown().as_deref(), Some("failure"));
    world.push(NEWER).await;
    world.wait(Duration::from_secs(60)).await;
    assert_eq!(shown().as_deref(), Some("success"));
}
