//! What open pull requests and merge groups get when an entry of the allowlist changes.

use crcr_store::{SetInsert, WriteBatch};

use super::super::support::ALLOWLIST;
use super::branches::send_to_another_branch;
use super::verdicts::{MINUTE, ended, of};
use super::*;
use crate::{limits, state_records};

const THREE: &str = "crcr/acme/three/relay/dispatch";

/// An event of a pull request makes it the most recently changed one while the heads are evaluated part by part.
#[tokio::test]
pub(crate) async fn head_that_gets_a_label_while_many_are_evaluated_has_its_required_check() {
    let world = World::new().await;
    let _ = open(&world).await;
    let set = state_records::open_heads_key(&world.relay.config.upstream);
    let score = world.relay.now().as_millisecond() + 1;
    let newer = |number: usize| SetInsert {
        set: set.clone(),
        member: (1000 + number).to_string(),
        score,
        expires_at: world.relay.expiry(),
    };
    let set_inserts = (0..limits::HEADS_PER_TASK).map(newer).collect();
    world.relay.commit(WriteBatch { set_inserts, ..WriteBatch::default() }).await.unwrap();
    world.enforce("L4:\n  - acme/three: [carol]\n").await;
    world.work_once().await;
    world.later(MINUTE);
    world.change(|pull| pull.labels.extend(["ciflow/crcr/gpu".to_owned()]));
    let state = world.github.state();
    let payload = state.label_payload(UPSTREAM, 7, "ciflow/crcr/gpu", true);
    world.deliver("pull_request", &payload).await;
    assert_eq!(of(&world, THREE), Some(("queued".to_owned(), None)));
}

/// Its check is required from then on, and nothing else would ever make it.
#[tokio::test]
pub(crate) async fn open_pull_request_gets_the_required_check_of_a_backend_that_took_only_nightly_runs()
 {
    for others in ["L2: [acme/two]\n", ""] {
        let world = World::new().await;
        let list = |events: &str| {
            format!("{others}L4:\n  - acme/four: {{oncalls: [dave], events: [{events}]}}\n")
        };
        world.enforce(&list("nightly")).await;
        let _ = open(&world).await;
        assert_eq!(of(&world, DISPATCH), None);
        world.settle_with(&list("nightly, pull_request")).await;
        assert_eq!(of(&world, DISPATCH), Some(("queued".to_owned(), None)));
        let four = received(&world)("acme/four");
        assert_eq!(four.client_payload["payload"]["action"], "opened");
        four.complete(&world, "success").await;
        world.wait(5 * MINUTE).await;
        assert_eq!(of(&world, DISPATCH).unwrap().1.as_deref(), Some("success"));
    }
}

/// What it got at L1 expects no report.
#[tokio::test]
pub(crate) async fn open_pull_request_gets_the_required_check_of_a_backend_that_comes_from_l1_to_l4()
 {
    let world = World::new().await;
    world.enforce("L1: [acme/four]\n").await;
    let _ = open(&world).await("acme/four");
    assert_eq!(of(&world, DISPATCH), None);
    world.settle_with("L4:\n  - acme/four: [dave]\n").await;
    assert_eq!(of(&world, DISPATCH), Some(("queued".to_owned(), None)));
    received(&world)("acme/four").complete(&world, "success").await;
    world.wait(5 * MINUTE).await;
    assert_eq!(of(&world, DISPATCH).unwrap().1.as_deref(), Some("success"));
}

/// Without it the queue would wait until it gives the group up.
#[tokio::test]
pub(crate) async fn merge_group_in_the_queue_gets_the_required_check_of_a_backend_that_comes_to_l4()
{
    let world = World::new().await;
    let state = world.github.state();
    let [waiting, gone, gone_before] = ["cc", "dd", "ee"].map(|digits| digits.repeat(20));
    let send = async |group: &str, action: &str| {
        let mut payload = state.merge_group_payload(UPSTREAM, group);
        payload["action"] = json!(action);
        world.send(&state.world.delivery("merge_group", &payload)).await.0
    };
    world.enforce("L3:\n  npu:\n    acme/four: [dave]\n").await;
    send(&gone_before, "destroyed").await;
    for group in [&waiting, &gone, &gone_before] {
        state.world.add_commit(UPSTREAM, group);
        assert_eq!(send(group, "checks_requested").await, StatusCode::ACCEPTED);
    }
    send(&gone, "destroyed").await;
    world.settle().await;
    assert_eq!(world.dispatched(), Vec::<String>::new());
    world.settle_with("L4:\n  - acme/four: [dave]\n").await;
    let four = received(&world)("acme/four");
    assert_eq!(four.client_payload["event_type"], "merge_group");
    four.complete(&world, "success").await;
    world.wait(5 * MINUTE).await;
    let runs = state.world.check_runs(UPSTREAM);
    assert!(runs.iter().all(|run| run.head_sha == waiting), "the others have left the queue");
    let verdict = runs.iter().find(|run| run.name == DISPATCH).unwrap();
    assert_eq!(verdict.conclusion.as_deref(), Some("success"));
}

/// What was opened meanwhile was dispatched to the others only.
#[tokio::test]
pub(crate) async fn pull_request_of_the_time_a_backend_was_away_gets_its_required_check_when_it_returns()
 {
    let world = World::new().await;
    world.settle_with("L2: [acme/two]\n").await;
    let _ = open(&world).await;
    assert_eq!(of(&world, DISPATCH), None);
    // That it was listed is known after a restart, too.
    let world = world.restart(&[]).await;
    world.settle_with(ALLOWLIST).await;
    assert_eq!(of(&world, DISPATCH), Some(("queued".to_owned(), None)));
    received(&world)("acme/four").complete(&world, "success").await;
    world.wait(5 * MINUTE).await;
    assert_eq!(ended(&world).as_deref(), Some("success"));
}

/// A pull request of one branch into another has a head that was pushed before. The check of the push isn't shown.
#[tokio::test]
pub(crate) async fn returning_backend_gets_a_pull_request_whose_head_it_has_got_as_a_push() {
    let world = World::new().await;
    let state = world.github.state();
    let push = state.push_payload(UPSTREAM, "refs/heads/main", HEAD);
    world.deliver("push", &push).await;
    received(&world)("acme/four");
    world.settle_with("L2: [acme/two]\n").await;
    let _ = open(&world).await;
    world.settle_with(ALLOWLIST).await;
    assert_eq!(of(&world, DISPATCH), Some(("queued".to_owned(), None)));
}

#[tokio::test]
async fn versions_that_come_while_the_store_is_down_count_as_they_followed_each_other() {
    let world = World::new().await;
    world.github.state().world.install("acme/five");
    let _ = open(&world).await;
    world.rename("record", "away");
    world.enforce(&ALLOWLIST.replace("acme/one", "acme/one, acme/five")).await;
    world.enforce(ALLOWLIST).await;
    world.rename("away", "record");
    world.settle_with(&format!("{ALLOWLIST}  - acme/five: [erin]\n")).await;
    let five = of(&world, "crcr/acme/five/relay/dispatch");
    assert_eq!(five, Some(("queued".to_owned(), None)), "it was listed before");
}

/// What it doesn't take any more blocks nobody.
#[tokio::test]
pub(crate) async fn required_check_is_withdrawn_when_the_entry_takes_no_pull_requests_any_more() {
    let world = World::new().await;
    open(&world).await("acme/four").complete(&world, "failure").await;
    world.wait(5 * MINUTE).await;
    assert_eq!(ended(&world).as_deref(), Some("failure"));
    let list =
        |events: &str| format!("L4:\n  - acme/four: {{oncalls: [dave], events: [{events}]}}\n");
    for (events, shown) in [
        ("nightly", "neutral"),
        ("nightly, pull_request", "failure"),
        ("nightly, merge_group", "neutral"),
    ] {
        world.settle_with(&list(events)).await;
        assert_eq!(ended(&world).as_deref(), Some(shown), "{events}");
        assert_eq!(of(&world, JOB).unwrap().1.as_deref(), Some(shown), "{events}");
    }
    // Nor is it asked again when another branch is to be tested.
    send_to_another_branch(&world).await;
    world.settle_with(&list("nightly")).await;
    assert_eq!(world.dispatched(), Vec::<String>::new());
}

/// A queue waits for a required check until it ends, or gives the group up.
#[tokio::test]
pub(crate) async fn check_of_a_merge_group_is_withdrawn_when_its_backend_does_not_take_groups_any_more()
 {
    let world = World::new().await;
    let state = world.github.state();
    state.world.add_commit(UPSTREAM, NEWER);
    let payload = state.merge_group_payload(UPSTREAM, NEWER);
    world.deliver("merge_group", &payload).await;
    let four = received(&world)("acme/four");
    let shown = || {
        let runs = state.world.check_runs(UPSTREAM);
        let run = runs.into_iter().find(|run| run.name == DISPATCH && run.head_sha == NEWER);
        run.map(|run| (run.status, run.conclusion))
    };
    let (queued, neutral) =
        (("queued".to_owned(), None), ("completed".to_owned(), Some("neutral".to_owned())));
    assert_eq!(shown(), Some(queued.clone()));
    let at_l3 = "L3:\n  npu:\n    acme/four: {oncalls: [dave], events: [EVENTS]}\n";
    for (list, expected) in [
        ("L2: [acme/two]\n", &neutral),
        (ALLOWLIST, &queued),
        (at_l3.replace("EVENTS", "pull_request").as_str(), &neutral),
        (at_l3.replace("EVENTS", "pull_request, merge_group").as_str(), &queued),
    ] {
        world.settle_with(list).await;
        assert_eq!(shown().as_ref(), Some(expected), "{list}");
    }
    world.settle_with(ALLOWLIST).await;
    assert_eq!(world.dispatched(), Vec::<String>::new(), "it has got the group");
    four.complete(&world, "success").await;
    world.wait(5 * MINUTE).await;
    assert_eq!(shown().unwrap().1.as_deref(), Some("success"));
}

/// Those of a week have been merged, or were given up.
#[tokio::test]
pub(crate) async fn backend_under_another_name_gets_only_the_merge_groups_that_are_in_the_queue() {
    let world = World::new().await;
    let state = world.github.state();
    let groups = ["cc", "dd", "ee"].map(|digits| digits.repeat(20));
    let [waiting, gone, too_old] = &groups;
    let send = async |group: &str, action: &str| {
        let mut payload = state.merge_group_payload(UPSTREAM, group);
        payload["action"] = json!(action);
        world.send(&state.world.delivery("merge_group", &payload)).await
    };
    for group in &groups {
        state.world.add_commit(UPSTREAM, group);
    }
    send(too_old, "checks_requested").await;
    world.wait(7 * 60 * MINUTE).await;
    send(gone, "checks_requested").await;
    send(waiting, "checks_requested").await;
    world.settle().await;
    send(gone, "destroyed").await;
    state.world.take_dispatches();
    state.world.rename_repo("acme/four", "acme/renamed");
    world.settle_with(&ALLOWLIST.replace("acme/four", "acme/renamed")).await;
    let dispatches = state.world.take_dispatches();
    let sent = dispatches.iter().map(|one| {
        let group = &one.client_payload["payload"]["merge_group"];
        (one.repository.as_str(), group["head_sha"].as_str().unwrap())
    });
    assert_eq!(sent.collect::<Vec<_>>(), [("acme/renamed", waiting.as_str())]);
}
