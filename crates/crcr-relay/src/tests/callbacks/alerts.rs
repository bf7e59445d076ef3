//! Alerts when a backend starts to fail.

use std::time::Duration;

use crcr_domain::ci_data::webhook::WebhookRow;
use serde_json::{Value, json};
use wiremock::matchers::{method, path};
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::{HEAD, NEWER, UPSTREAM, World, open, received};
use crate::http::serve;

const THIRD: &str = "cccccccccccccccccccccccccccccccccccccccc";

/// An alert webhook whose first response is a failure.
async fn listener() -> MockServer {
    let server = MockServer::start().await;
    let answer = |status| Mock::given(method("POST")).and(path("/red")).respond_with(status);
    answer(ResponseTemplate::new(503)).up_to_n_times(1).mount(&server).await;
    answer(ResponseTemplate::new(200)).mount(&server).await;
    server
}

/// Dispatches a push of `sha`, and reports this conclusion of two jobs of `acme/two`.
async fn push(world: &World, run: u64, sha: &str, conclusion: &str) {
    let state = world.github.state();
    let payload = state.push_payload(UPSTREAM, "refs/heads/main", sha);
    world.deliver("push", &payload).await;
    let downstream = received(world)("acme/two");
    for job in ["test", "lint"] {
        super::Downstream {
            job,
            run,
            client_payload: downstream.client_payload.clone(),
            ..downstream
        }
        .end(world, conclusion)
        .await;
    }
}

#[tokio::test]
async fn regression_on_a_push_is_alerted_once() {
    let listener = listener().await;
    let url = format!("{}/red", listener.uri());
    let page = ("CRCR_PUBLIC_URL", "https://relay.test/");
    let world = World::with(&[("CRCR_ALERT_URL", &url), page]).await;
    push(&world, 1, HEAD, "success").await;
    world.later(Duration::from_secs(60));
    push(&world, 2, NEWER, "failure").await;
    world.work().await;
    assert!(listener.received_requests().await.unwrap().is_empty(), "other jobs may still fail");
    world.later(Duration::from_secs(61));
    assert_eq!(world.work().await.len(), 1, "the first call failed");
    // Neither a repeated failure nor a pull request's failure is alerted.
    world.later(Duration::from_secs(60));
    push(&world, 3, THIRD, "failure").await;
    open(&world).await("acme/two").end(&world, "failure").await;
    for _ in 0..3 {
        world.work_after(Duration::from_secs(700)).await;
    }
    let requests = listener.received_requests().await.unwrap();
    assert_eq!(requests.len(), 2, "once in vain, once for good");
    let told: Value = serde_json::from_slice(&requests[1].body).unwrap();
    assert_eq!(told["event"], "backend_turned_red");
    assert_eq!(told["turn"]["repo"], "acme/two");
    assert_eq!(
        (&told["turn"]["good_sha"], &told["turn"]["head_sha"]),
        (&HEAD.into(), &NEWER.into())
    );
    assert_eq!(told["turn"]["failed"].as_array().unwrap().len(), 2);
    let text = "acme/two failed on bbbbbbbbbb of acme/upstream; it last passed on aaaaaaaaaa.\n\
                CI / lint: tests failed\nCI / test: tests failed\n\
                https://relay.test/crcr/acme/two";
    assert_eq!(told["url"], "https://relay.test/crcr/acme/two");
    assert_eq!(told["text"], text);
}

/// What was told so far.
async fn told_by(listener: &MockServer) -> Vec<Value> {
    let requests = listener.received_requests().await.unwrap();
    requests.iter().map(|request| serde_json::from_slice(&request.body).unwrap()).collect()
}

/// A push of `sha` to `main`, and an attempt of a job of upstream's own CI on it; without a conclusion it runs still.
async fn ran(world: &World, sha: &str, id: u64, name: &str, conclusion: Option<&str>) {
    let at = world.relay.now();
    let repository = json!({ "full_name": UPSTREAM });
    let push = json!({
        "ref": "refs/heads/main", "after": sha, "repository": repository,
        "head_commit": { "message": "Tune <it>", "author": { "name": "Ada" } },
    });
    let (status, completed_at) = match conclusion {
        Some(_) => ("completed", Some(at.to_string())),
        None => ("in_progress", None),
    };
    let job = json!({
        "action": status, "repository": repository,
        "workflow_job": {
            "id": id, "run_id": id, "run_attempt": 1, "name": name, "workflow_name": "CI",
            "status": status, "conclusion": conclusion, "head_sha": sha,
            "head_branch": "main", "started_at": at.to_string(), "completed_at": completed_at,
        },
    });
    let rows = [("push", push, format!("p{sha}")), ("workflow_job", job, format!("j{id}{status}"))];
    let row = |(event, payload, delivery): (&str, Value, String)| {
        WebhookRow::new(event, &delivery, at, payload.to_string().as_bytes()).unwrap()
    };
    world.relay.results.append_webhooks(rows.map(row).to_vec()).await.unwrap();
}

async fn ended(world: &World, sha: &str, id: u64, name: &str, conclusion: &str) {
    ran(world, sha, id, name, Some(conclusion)).await;
}

#[tokio::test]
async fn branch_that_turns_red_and_green_is_told_once_each_after_a_first_look() {
    let listener = listener().await;
    let url = format!("{}/red", listener.uri());
    let world = World::with(&[
        ("CRCR_ALERT_URL", &url),
        ("CRCR_ALERT_FEEDS", "https://relay.test/feeds/acme/upstream/main"),
        ("CRCR_PUBLIC_URL", "https://relay.test/"),
    ])
    .await;
    let look = async || {
        world.later(Duration::from_secs(121));
        world.work().await
    };
    serve::look_at_feeds(&world.relay).await;
    world.settle().await;
    ended(&world, HEAD, 1, "test", "success").await;
    ended(&world, HEAD, 2, "lint", "failure").await;
    assert_eq!(
        (look().await.len(), told_by(&listener).await.len()),
        (0, 0),
        "the first look tells nothing"
    );
    ended(&world, NEWER, 3, "test", "failure").await;
    ended(&world, NEWER, 4, "lint", "failure").await;
    assert_eq!(look().await.len(), 1, "the first call failed");
    for _ in 0..3 {
        world.wait(Duration::from_secs(700)).await;
    }
    ended(&world, THIRD, 5, "test", "success").await;
    ended(&world, THIRD, 6, "lint", "success").await;
    for _ in 0..2 {
        assert_eq!(look().await, Vec::<String>::new());
    }
    let told = told_by(&listener).await;
    let events: Vec<_> = told.iter().map(|told| told["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["branch_turned_red", "branch_turned_red", "branch_green_again"]);
    assert_eq!(told[1]["things"], json!([{ "name": "CI / test", "head_sha": NEWER }]));
    let text = "CI / test turned red on main of acme/upstream at bbbbbbbbbb Tune <it> by Ada.\n\
                https://relay.test/hud/acme/upstream/main";
    assert_eq!(told[1]["content"], text);
    assert_eq!(told[1]["url"], "https://relay.test/hud/acme/upstream/main");
    let green = told[2]["content"].as_str().unwrap();
    assert_eq!(green.matches("is green again on main").count(), 2, "{green}");
}

/// A relay that tells what turns on `main`, after its first look.
async fn watching(listener: &MockServer) -> World {
    Mock::given(method("POST")).respond_with(ResponseTemplate::new(200)).mount(listener).await;
    let feed = ("CRCR_ALERT_FEEDS", "/feeds/acme/upstream/main");
    let world = World::with(&[("CRCR_ALERT_URL", &listener.uri()), feed]).await;
    serve::look_at_feeds(&world.relay).await;
    world.settle().await;
    world
}

/// The events that were told, after one more look.
async fn events_after_a_look(world: &World, listener: &MockServer) -> Vec<String> {
    world.work_after(Duration::from_secs(121)).await;
    let told = told_by(listener).await;
    told.iter().map(|told| told["event"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn red_job_that_is_run_again_is_told_once_and_green_when_the_re_run_has_passed() {
    let listener = MockServer::start().await;
    let world = watching(&listener).await;
    ended(&world, HEAD, 1, "test", "success").await;
    events_after_a_look(&world, &listener).await;
    ended(&world, NEWER, 2, "test", "failure").await;
    assert_eq!(events_after_a_look(&world, &listener).await, ["branch_turned_red"]);
    ran(&world, NEWER, 3, "test", None).await;
    assert_eq!(events_after_a_look(&world, &listener).await, ["branch_turned_red"]);
    ended(&world, NEWER, 3, "test", "failure").await;
    assert_eq!(events_after_a_look(&world, &listener).await, ["branch_turned_red"]);
    ran(&world, NEWER, 4, "test", None).await;
    ended(&world, NEWER, 4, "test", "success").await;
    let all = ["branch_turned_red", "branch_green_again"];
    assert_eq!(events_after_a_look(&world, &listener).await, all);
    // Running what is green again says nothing, either.
    ran(&world, NEWER, 5, "test", None).await;
    assert_eq!(events_after_a_look(&world, &listener).await, all);
}

#[tokio::test]
async fn red_job_without_a_result_among_the_newest_commits_is_not_told_again_when_it_is_back() {
    let listener = MockServer::start().await;
    let world = watching(&listener).await;
    ended(&world, HEAD, 1, "nightly", "success").await;
    events_after_a_look(&world, &listener).await;
    ended(&world, NEWER, 2, "nightly", "failure").await;
    assert_eq!(events_after_a_look(&world, &listener).await, ["branch_turned_red"]);
    // A day of commits on which it doesn't run.
    for n in 0..51_u64 {
        world.later(Duration::from_secs(60));
        ended(&world, &format!("{n:040x}"), 100 + n, "lint", "success").await;
    }
    assert_eq!(events_after_a_look(&world, &listener).await, ["branch_turned_red"]);
    ended(&world, THIRD, 3, "nightly", "success").await;
    world.later(Duration::from_secs(1));
    ended(&world, &"d".repeat(40), 4, "nightly", "failure").await;
    assert_eq!(events_after_a_look(&world, &listener).await, ["branch_turned_red"]);
    world.later(Duration::from_secs(1));
    ended(&world, &"e".repeat(40), 5, "nightly", "success").await;
    let all = ["branch_turned_red", "branch_green_again"];
    assert_eq!(events_after_a_look(&world, &listener).await, all);
}

/// The events of all alerts of a backend after these pushes to `main`, by run, commit and the end of their jobs, each
/// followed by enough time.
async fn events_of_pushes(pushes: &[(u64, &str, &str)]) -> Vec<String> {
    let listener = MockServer::start().await;
    Mock::given(method("POST")).respond_with(ResponseTemplate::new(200)).mount(&listener).await;
    let world = World::with(&[("CRCR_ALERT_URL", &listener.uri())]).await;
    for (run, sha, conclusion) in pushes {
        push(&world, *run, sha, conclusion).await;
        world.work_after(Duration::from_secs(130)).await;
    }
    let told = told_by(&listener).await;
    told.iter().map(|told| told["event"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn push_that_the_next_one_has_cancelled_turns_no_backend_red() {
    let pushes = [(1, HEAD, "success"), (2, NEWER, "cancelled"), (3, THIRD, "success")];
    assert_eq!(events_of_pushes(&pushes).await, [""; 0]);
}

#[tokio::test]
async fn backend_whose_failed_push_passes_when_it_is_run_again_is_told_to_be_green() {
    let listener = MockServer::start().await;
    Mock::given(method("POST")).respond_with(ResponseTemplate::new(200)).mount(&listener).await;
    let world = World::with(&[("CRCR_ALERT_URL", &listener.uri())]).await;
    push(&world, 1, HEAD, "success").await;
    world.work_after(Duration::from_secs(130)).await;
    let state = world.github.state();
    world.deliver("push", &state.push_payload(UPSTREAM, "refs/heads/main", NEWER)).await;
    let failed = super::Downstream { run: 2, ..received(&world)("acme/two") };
    failed.end(&world, "failure").await;
    world.work_after(Duration::from_secs(130)).await;
    super::Downstream { attempt: 2, ..failed }.end(&world, "success").await;
    world.work_after(Duration::from_secs(130)).await;
    let told = told_by(&listener).await;
    let events: Vec<_> = told.iter().map(|told| told["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["backend_turned_red", "backend_green_again"]);
}

/// A runner dies, and hours later its job counts as lost.
#[tokio::test]
async fn failure_that_is_known_after_a_later_push_has_passed_is_not_told() {
    let listener = MockServer::start().await;
    Mock::given(method("POST")).respond_with(ResponseTemplate::new(200)).mount(&listener).await;
    let world = World::with(&[("CRCR_ALERT_URL", &listener.uri())]).await;
    push(&world, 1, HEAD, "success").await;
    world.later(Duration::from_secs(60));
    let state = world.github.state();
    world.deliver("push", &state.push_payload(UPSTREAM, "refs/heads/main", NEWER)).await;
    let late = super::Downstream { run: 2, ..received(&world)("acme/two") };
    world.later(Duration::from_secs(60));
    push(&world, 3, THIRD, "success").await;
    world.work_after(Duration::from_secs(130)).await;
    late.end(&world, "failure").await;
    world.work_after(Duration::from_secs(130)).await;
    assert_eq!(told_by(&listener).await, [Value::Null; 0]);
}

#[tokio::test]
async fn backend_that_is_green_again_is_told_once_and_names_reach_no_channel() {
    let listener = MockServer::start().await;
    Mock::given(method("POST")).respond_with(ResponseTemplate::new(200)).mount(&listener).await;
    let world = World::with(&[("CRCR_ALERT_URL", &listener.uri())]).await;
    for (n, sha, conclusion) in [(1, HEAD, "success"), (2, NEWER, "failure"), (3, THIRD, "success")]
    {
        push(&world, n, sha, conclusion).await;
        world.work_after(Duration::from_secs(61)).await;
    }
    for _ in 0..2 {
        world.work_after(Duration::from_secs(61)).await;
    }
    let requests = listener.received_requests().await.unwrap();
    let told: Vec<Value> =
        requests.iter().map(|request| serde_json::from_slice(&request.body).unwrap()).collect();
    let events: Vec<_> = told.iter().map(|told| told["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["backend_turned_red", "backend_green_again"]);
    let text = "acme/two passed on cccccccccc of acme/upstream; it had failed since bbbbbbbbbb.";
    assert_eq!((&told[1]["text"], &told[1]["content"]), (&text.into(), &text.into()));
    assert_eq!(told[1]["allowed_mentions"], serde_json::json!({ "parse": [] }));
}
