//! The upstream repository gets another name while the settings have the old one.

use axum::body::Body;
use axum::http::{Request, StatusCode};
use serde_json::{Value, json};

use super::support::{HEAD, UPSTREAM, World};
use crate::http::metrics::MetricsInput;

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
