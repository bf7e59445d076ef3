//! Rotation of secrets while the relay runs.

use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use secrecy::SecretString;
use serde_json::json;
use wiremock::matchers::{any, header as with_header};
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::support::World;
use crate::admin::deliveries;

async fn push(world: &World, secret: &str) -> StatusCode {
    let mut delivery = world.pull_request("opened");
    delivery.id = uuid();
    let signature = crate::webhook::signature::sign(&SecretString::from(secret), &delivery.body);
    let request = Request::post("/github/webhook")
        .header("x-github-event", "pull_request")
        .header("x-github-delivery", &delivery.id)
        .header("x-hub-signature-256", signature);
    world.call(request.body(Body::from(delivery.body)).unwrap()).await.0
}

fn uuid() -> String {
    format!("{:032x}", rand::random::<u128>())
}

async fn as_operator(world: &World, token: &str) -> StatusCode {
    let bearer = format!("Bearer {token}");
    let request = Request::get("/api/v1/deliveries").header(header::AUTHORIZATION, bearer);
    world.call(request.body(Body::empty()).unwrap()).await.0
}

#[tokio::test]
async fn both_values_are_valid_during_a_rotation_and_files_are_reloaded() {
    let folder = tempfile::tempdir().unwrap();
    let (secret, token) = (folder.path().join("secret"), folder.path().join("token"));
    std::fs::write(&secret, "first\n").unwrap();
    std::fs::write(&token, "a-token-of-operators\n").unwrap();
    let world = World::with(&[
        ("GITHUB_APP_SECRET", ""),
        ("GITHUB_APP_SECRET_FILE", secret.to_str().unwrap()),
        ("CRCR_ADMIN_TOKEN_FILE", token.to_str().unwrap()),
    ])
    .await;
    let ok = StatusCode::ACCEPTED;
    assert_eq!(push(&world, "first").await, ok);
    assert_eq!(push(&world, "second").await, StatusCode::UNAUTHORIZED);

    std::fs::write(&secret, "second\nfirst\n").unwrap();
    std::fs::write(&token, "another-token-of-operators\na-token-of-operators\n").unwrap();
    assert_eq!(push(&world, "second").await, StatusCode::UNAUTHORIZED, "nobody has looked yet");
    world.relay.reload_secrets();
    assert_eq!((push(&world, "first").await, push(&world, "second").await), (ok, ok));
    assert_eq!(push(&world, "second\nfirst").await, StatusCode::UNAUTHORIZED);
    for token in ["another-token-of-operators", "a-token-of-operators"] {
        assert_eq!(as_operator(&world, token).await, StatusCode::OK);
    }

    std::fs::write(&secret, "").unwrap();
    std::fs::write(&token, "another-token-of-operators\n").unwrap();
    world.relay.reload_secrets();
    assert_eq!(push(&world, "second").await, ok, "a broken file changes nothing");
    assert_eq!(as_operator(&world, "a-token-of-operators").await, StatusCode::NOT_FOUND);
    std::fs::write(&secret, "second\n").unwrap();
    world.relay.reload_secrets();
    assert_eq!(push(&world, "first").await, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn derived_callback_tokens_survive_a_rotation_of_the_webhook_secret() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "first").unwrap();
    let file = secret.to_str().unwrap();
    let world = World::with(&[("GITHUB_APP_SECRET", ""), ("GITHUB_APP_SECRET_FILE", file)]).await;
    assert_eq!(push(&world, "first").await, StatusCode::ACCEPTED);
    world.work().await;
    let dispatches = world.github.state().world.take_dispatches();
    let payload = &dispatches[0].client_payload;
    let (token, delivery) =
        (payload["callback_token"].as_str().unwrap(), payload["delivery_id"].as_str().unwrap());
    let repo = crcr_domain::RepoName::new(&dispatches[0].repository).unwrap();
    let key = crate::state_records::dispatch_key(delivery, &repo);
    let dispatch =
        crcr_store::read_record(world.relay.store.as_ref(), key).await.unwrap().value.unwrap();
    for (values, holds) in [("second\nfirst", true), ("second", false)] {
        std::fs::write(&secret, values).unwrap();
        world.relay.reload_secrets();
        let verified = world.relay.keys.verify(token, &dispatch, world.relay.now());
        assert_eq!(verified, holds, "{values}");
    }
}

/// A result for the external HUD waits in the queue.
async fn result(world: &World) {
    let four = super::callbacks::open(world).await("acme/four");
    assert_eq!(four.start(world).await.1, json!({ "ok": true, "status": "in_progress" }));
}

#[tokio::test]
async fn external_hud_with_the_old_key_gets_the_result_at_once() {
    let hud = MockServer::start().await;
    let knows = Mock::given(with_header("x-hud-internal-bot", "old"));
    knows.respond_with(ResponseTemplate::new(200)).mount(&hud).await;
    Mock::given(any()).respond_with(ResponseTemplate::new(401)).mount(&hud).await;
    let url = format!("{}/api", hud.uri());
    let world = World::with(&[("HUD_API_URL", &url), ("HUD_BOT_KEY", "new\nold")]).await;
    result(&world).await;
    world.settle().await;
    let keys = hud.received_requests().await.unwrap();
    let keys: Vec<_> = keys
        .iter()
        .map(|request| request.headers["x-hud-internal-bot"].to_str().unwrap())
        .collect();
    assert_eq!(keys, ["new", "old"]);
}

/// A HUD may be deployed anew at the end of an outage, and answer 404 in between.
#[tokio::test]
async fn result_that_waited_for_the_end_of_an_outage_is_not_given_up_at_the_first_refusal() {
    for refused in [308_u16, 401, 403, 404] {
        let hud = MockServer::start().await;
        Mock::given(any()).respond_with(ResponseTemplate::new(502)).mount(&hud).await;
        let url = format!("{}/api", hud.uri());
        let world = World::with(&[("HUD_API_URL", &url), ("HUD_BOT_KEY", "key")]).await;
        result(&world).await;
        for _ in 0..2 {
            world.work().await;
            world.later(Duration::from_secs(3600));
        }
        for status in [refused, 200] {
            hud.reset().await;
            Mock::given(any()).respond_with(ResponseTemplate::new(status)).mount(&hud).await;
            world.work().await;
            world.later(Duration::from_secs(600));
        }
        assert_eq!(hud.received_requests().await.unwrap().len(), 1, "{refused}");
        let found = deliveries::dead_letters(world.relay.store.as_ref(), 10).await.unwrap();
        assert!(found.is_empty(), "{refused}: {found:?}");
    }
}

#[tokio::test]
async fn result_is_retried_for_an_hour_after_a_401_of_the_external_hud() {
    for (minutes, dead) in [(50, 0), (70, 1)] {
        let hud = MockServer::start().await;
        Mock::given(any()).respond_with(ResponseTemplate::new(401)).mount(&hud).await;
        let url = format!("{}/api", hud.uri());
        let settings =
            [("HUD_API_URL", url.as_str()), ("HUD_BOT_KEY", "key"), ("HUD_MAX_RETRIES", "0")];
        let world = World::with(&settings).await;
        result(&world).await;
        for _ in 0..minutes / 10 {
            world.work().await;
            world.later(Duration::from_secs(600));
        }
        hud.reset().await;
        Mock::given(any()).respond_with(ResponseTemplate::new(200)).mount(&hud).await;
        world.work_after(Duration::from_secs(600)).await;
        let found = deliveries::dead_letters(world.relay.store.as_ref(), 10).await.unwrap();
        assert_eq!(found.len(), dead, "{found:?}");
        assert_eq!(hud.received_requests().await.unwrap().len(), 1 - dead);
    }
}
