//! The upstream repository gets another name while the settings have the old one.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use crcr_standin::world::PullRequest;
use crcr_store::WriteBatch;
use serde_json::{Value, json};

use super::support::{ALL, ALLOWLIST, HEAD, NEWER, UPSTREAM, World};
use crate::http::metrics::MetricsInput;
use crate::limits;
use crate::queue::task_kind::TaskKind;

/// The same webhook as it comes from the repository under another name.
fn renamed(payload: &Value, full_name: &str) -> Value {
    let (owner, name) = full_name.split_once('/').unwrap();
    let mut payload = payload.clone();
    payload["repository"]["full_name"] = json!(full_name);
    payload["repository"]["name"] = json!(name);
    payload["repository"]["owner"]["login"] = json!(owner);
    payload
}

async fn moved_to(world: &World) -> (Value, bool) {
    let request = Request::get("/readyz").body(Body::empty()).unwrap();
    let (_, ready) = world.call(request).await;
    let metrics = world.relay.metrics.text(&MetricsInput::read(&world.relay).await);
    (ready["upstream_moved_to"].clone(), metrics.contains("\ncrcr_upstream_moved 1"))
}

#[tokio::test]
async fn webhooks_of_a_renamed_upstream_are_ignored_and_reported() {
    let world = World::new().await;
    assert_eq!(world.send(&world.pull_request("opened")).await.0, StatusCode::ACCEPTED);
    assert_eq!(moved_to(&world).await, (Value::Null, false));
    let state = world.github.state();
    let payload = state.pull_request_payload(UPSTREAM, 7, "opened");
    let foreign = renamed(&payload, "acme/other");
    let mut foreign = foreign.clone();
    foreign["repository"]["id"] = json!(987_654);
    world.send(&state.world.delivery("pull_request", &foreign)).await;
    assert_eq!(moved_to(&world).await, (Value::Null, false), "another repository");
    // A new process knows the number, too.
    let world = world.restart(&[]).await;
    let state = world.github.state();
    let delivery = state.world.delivery("pull_request", &renamed(&payload, "acme/main"));
    let (status, answer) = world.send(&delivery).await;
    assert_eq!((status, &answer["ignored"]), (StatusCode::OK, &json!(true)));
    assert_eq!(moved_to(&world).await, (json!("elsewhere"), true));
    assert_eq!(world.relay.upstream_identity.moved_to().as_deref(), Some("acme/main"));
    // It gets its name back.
    world.send(&world.pull_request("reopened")).await;
    assert_eq!(moved_to(&world).await, (Value::Null, false));
}

/// Pushes and reviews go on while the settings have the old name.
#[tokio::test]
async fn head_that_was_pushed_before_the_settings_had_the_new_name_is_dispatched() {
    let world = World::new().await;
    let reconcile = async |world: &World| {
        let tasks = vec![TaskKind::Reconcile.task(world.relay.now())];
        world.relay.commit(WriteBatch { tasks, ..WriteBatch::default() }).await.unwrap();
        world.settle().await;
    };
    // Pull request 7 is older than the relay.
    world.later(limits::RECONCILE_MARGIN);
    reconcile(&world).await;
    let state = Arc::clone(world.github.state());
    let now = || state.clock.now();
    for number in [8, 9] {
        state.world.put_pull(UPSTREAM, PullRequest::from_fork(number, UPSTREAM, HEAD, now()));
        let payload = state.pull_request_payload(UPSTREAM, number, "opened");
        world.send(&state.world.delivery("pull_request", &payload)).await;
    }
    world.settle().await;
    assert_eq!(world.dispatched().len(), 2 * ALL.len());
    world.later(limits::RECONCILE_INTERVAL);
    let to = "acme/main";
    state.world.rename_repo(UPSTREAM, to);
    state.world.change_pull(to, 8, |pull| {
        (pull.head_sha, pull.updated_at) = (NEWER.to_owned(), now());
    });
    let payload = state.pull_request_payload(to, 8, "synchronize");
    world.send(&state.world.delivery("pull_request", &payload)).await;
    state.world.put_pull(to, PullRequest::from_fork(10, to, NEWER, now()));
    world.work().await;
    assert_eq!(world.dispatched(), Vec::<String>::new(), "it isn't known by that name");
    let world = world.restart(&[("UPSTREAM_REPO", to)]).await;
    for number in [8, 9] {
        let label = state.label_payload(to, number, "ciflow/crcr/npu", true);
        world.send(&state.world.delivery("pull_request", &label)).await;
    }
    world.later(limits::RECONCILE_MARGIN);
    reconcile(&world).await;
    let mut twice = [ALL, ALL].concat();
    twice.sort_unstable();
    assert_eq!(world.dispatched(), twice, "8 and 10, and 9 was dispatched before");
    world.later(limits::RECONCILE_INTERVAL);
    reconcile(&world).await;
    assert_eq!(world.dispatched(), Vec::<String>::new(), "once");
    // What is required later is seen on 9, too.
    let list = format!("{ALLOWLIST}  - acme/two: [dave]\n").replace("L2: [acme/two]\n", "");
    world.settle_with(&list).await;
    let check_runs = state.world.check_runs(to);
    let is_of_two = |head: &str| {
        check_runs.iter().any(|run| run.name.contains("acme/two/relay") && run.head_sha == head)
    };
    assert!(is_of_two(HEAD) && is_of_two(NEWER));
}

#[tokio::test]
async fn event_that_renames_or_transfers_upstream_is_reported_even_by_a_new_relay() {
    let (owner, name) = UPSTREAM.split_once('/').unwrap();
    for (action, to, changes) in [
        ("renamed", "acme/main", json!({ "repository": { "name": { "from": name } } })),
        (
            "transferred",
            "else/upstream",
            json!({ "owner": { "from": { "organization": { "login": owner } } } }),
        ),
        (
            "transferred",
            "else/upstream",
            json!({ "owner": { "from": { "user": { "login": owner } } } }),
        ),
    ] {
        let world = World::new().await;
        let state = world.github.state();
        let mut payload = renamed(&state.push_payload(UPSTREAM, "refs/heads/main", HEAD), to);
        payload["action"] = json!(action);
        payload["changes"] = changes;
        let (status, _) = world.send(&state.world.delivery("repository", &payload)).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(world.relay.upstream_identity.moved_to().as_deref(), Some(to), "{action}");
    }
}
