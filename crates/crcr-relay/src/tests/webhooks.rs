//! Webhooks: from the request to the dispatches that it causes.

use std::path::Path;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use crcr_domain::RepoName;
use crcr_domain::protocol::dispatch::DispatchStatus;
use crcr_domain::results::facts::DispatchFactStatus;
use crcr_standin::traffic::Fault;
use crcr_store::read_record;
use jiff::SignedDuration;
use serde_json::{Value, json};

use super::support::{ALL, HEAD, NEWER, UPSTREAM, World};
use crate::admin::deliveries;
use crate::{limits, state_records};

fn detail(text: &str) -> Value {
    json!({ "detail": text })
}

#[tokio::test]
async fn signed_event_is_dispatched_to_every_level() {
    let world = World::new().await;
    let delivery = world.pull_request("opened");
    let (status, body) = world.send(&delivery).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    assert_eq!(body, json!({ "ok": true, "delivery": delivery.id, "tasks": 5 }));
    world.settle().await;
    let dispatches = world.github.state().world.take_dispatches();
    assert_eq!(dispatches.len(), 4);
    for dispatch in dispatches {
        assert_eq!(dispatch.event_type, "pull_request");
        let payload = &dispatch.client_payload;
        assert_eq!(payload["delivery_id"], delivery.id.as_str());
        assert_eq!(payload["payload"], serde_json::from_slice::<Value>(&delivery.body).unwrap());
        assert!(payload["callback_token"].as_str().unwrap().starts_with("v1."));
    }
    let runs = world.github.state().world.check_runs(UPSTREAM);
    let names: Vec<_> = runs.iter().map(|run| (run.name.as_str(), run.status.as_str())).collect();
    assert_eq!(names, [("crcr/acme/four/relay/dispatch", "queued")]);
    let facts = world.results.dispatches(&world.always()).unwrap();
    assert!(
        facts.len() == 4
            && facts.iter().all(|fact| fact.status == DispatchFactStatus::Sent && fact.tries == 1)
    );
    world.nothing_else();
}

#[tokio::test]
async fn webhook_checks_run_in_the_documented_order() {
    let world = World::new().await;
    let good = world.pull_request("opened");
    let post = |headers: &[(&str, &str)], body: Vec<u8>| {
        let mut request = Request::post("/github/webhook");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        world.call(request.body(Body::from(body)).unwrap())
    };
    let bad = |text: &str| (StatusCode::BAD_REQUEST, detail(text));
    let unauthorized = (StatusCode::UNAUTHORIZED, detail("Bad signature"));
    assert_eq!(post(&[], b"junk".to_vec()).await, bad("No signature"));
    for signature in ["sha1=00", "sha256=zz", "sha256=00", &good.signature.to_uppercase()] {
        let got = post(&[("x-hub-signature-256", signature)], good.body.clone()).await;
        assert_eq!(got, unauthorized, "{signature}");
    }
    // An unsigned ping or an unknown event is refused like any other.
    let ping = post(&[("x-github-event", "ping")], b"{}".to_vec()).await;
    assert_eq!(ping, bad("No signature"));
    let signed = |body: &[u8]| world.github.state().world.delivery_of_bytes("push", body.to_vec());
    let form = "Invalid JSON body: it is a form; choose the content type `application/json` in the App's webhook \
                settings";
    for (body, text) in [
        (&b""[..], "Invalid JSON body"),
        (b"payload=%7B%7D", form),
        (b"[1]", "Invalid JSON body: expected an object"),
    ] {
        assert_eq!(world.send(&signed(body)).await, bad(text));
    }
    let headers = [("x-hub-signature-256", good.signature.as_str()), ("x-github-event", "push")];
    let pull_headers = [headers[0], ("x-github-event", "pull_request")];
    assert_eq!(post(&pull_headers, good.body.clone()).await, bad("No X-GitHub-Delivery"));
    let large = post(&[], vec![b' '; 25 * 1024 * 1024 + 1]).await;
    assert_eq!(large.0, StatusCode::PAYLOAD_TOO_LARGE);
    let ping = world.github.state().world.delivery("ping", &json!({ "zen": "Keep it simple" }));
    assert_eq!(world.send(&ping).await, (StatusCode::OK, json!({ "ok": true })));
    let ignored = (StatusCode::OK, json!({ "ignored": true }));
    assert_eq!(world.send(&world.pull_request("edited")).await, ignored);
    let mut foreign: Value = serde_json::from_slice(&good.body).unwrap();
    foreign["repository"]["full_name"] = json!("acme/other");
    let foreign = world.github.state().world.delivery("pull_request", &foreign);
    assert_eq!(world.send(&foreign).await, ignored);
    assert_eq!(world.dispatched(), Vec::<String>::new());
}

#[tokio::test]
async fn large_webhook_with_half_a_surrogate_is_dispatched_and_one_nested_too_deep_is_400() {
    let world = World::new().await;
    let opened = String::from_utf8(world.pull_request("opened").body).unwrap();
    let with = |odd: &str| {
        let body = opened.replacen('{', &format!("{{\"odd\": {odd},"), 1);
        world.github.state().world.delivery_of_bytes("pull_request", body.into_bytes())
    };
    let deep = "[".repeat(40_000) + &"]".repeat(40_000);
    let (status, answer) = world.send(&with(&deep)).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let told = answer["detail"].as_str().unwrap();
    assert!(told.starts_with("Invalid JSON body: recursion limit exceeded"), "{told}");
    assert_eq!(world.dispatched(), Vec::<String>::new());
    let long = "b".repeat(limits::PAYLOAD_BYTES);
    let odd = format!(r#"{{"body": "{long}", "cut": "half \ud83d", "large": 1e400}}"#);
    assert_eq!(world.send(&with(&odd)).await.0, StatusCode::ACCEPTED);
    world.settle().await;
    let dispatches = world.github.state().world.take_dispatches();
    assert_eq!(dispatches.len(), 4);
    let odd = &dispatches[0].client_payload["payload"]["odd"];
    assert_eq!((&odd["cut"], &odd["large"]), (&json!("half \u{fffd}"), &Value::Null));
}

#[tokio::test]
async fn unknown_paths_and_methods_are_json_errors() {
    let world = World::new().await;
    let get = |path: &str| world.call(Request::get(path).body(Body::empty()).unwrap());
    let not_found = (StatusCode::NOT_FOUND, detail("Not found"));
    for path in ["/github", "/github/webhook/", "/nowhere"] {
        assert_eq!(get(path).await, not_found, "{path}");
    }
    let wrong = (StatusCode::METHOD_NOT_ALLOWED, detail("Method not allowed"));
    assert_eq!(get("/github/webhook").await, wrong);
    assert_eq!(get("/healthz").await.0, StatusCode::OK);
}

#[tokio::test]
async fn operators_pages_are_404_without_the_token() {
    let world = World::with(&[("CRCR_ADMIN_TOKEN", "let-me-in; please")]).await;
    let get = |token: &str| {
        let request = Request::get("/metrics").header("authorization", format!("Bearer {token}"));
        world.call(request.body(Body::empty()).unwrap())
    };
    assert_eq!(get("let-me-in; pleas").await.0, StatusCode::NOT_FOUND);
    assert_eq!(get("").await.0, StatusCode::NOT_FOUND);
    assert_eq!(get("let-me-in; please").await.0, StatusCode::OK);
    let world = World::new().await;
    let open = Request::get("/metrics").header("authorization", "Bearer ");
    assert_eq!(world.call(open.body(Body::empty()).unwrap()).await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn invalid_operator_requests_are_400_with_the_reason() {
    let world = World::with(&[("CRCR_ADMIN_TOKEN", "let-me-in; please")]).await;
    let path = "/api/v1/deliveries";
    let ask = |request: http::request::Builder, body: &'static str| {
        let request = request.header("authorization", "Bearer let-me-in; please");
        world.call(request.body(Body::from(body)).unwrap())
    };
    let (status, body) = ask(Request::get(format!("{path}?limit=all")), "").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_eq!(body, detail("`limit` isn't a whole number: expected 1 to 500"));
    for junk in ["", "[", "{}", r#"{"delivery": 7}"#, r#"{"delivery": "d", "repo": "two"}"#] {
        let (status, body) = ask(Request::post(path), junk).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{junk}");
        let told = body["detail"].as_str().unwrap();
        assert!(told.starts_with(r#"The body is neither {"delivery": ID"#), "{told}");
    }
    let (status, _) = ask(Request::post(path), Box::leak(" ".repeat(65_537).into())).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    let (status, body) = ask(Request::post(path), r#"{"delivery": "unknown"}"#).await;
    assert_eq!((status, &body["redelivered"]), (StatusCode::OK, &json!(0)));
    let foreign = Request::post(path).header("origin", "https://evil.test");
    assert_eq!(ask(foreign.header("host", "relay.test"), "{}").await.0, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn only_pushes_to_the_default_branch_are_dispatched() {
    let world = World::new().await;
    let state = world.github.state();
    let push =
        |git_ref: &str| state.world.delivery("push", &state.push_payload(UPSTREAM, git_ref, NEWER));
    let (status, body) = world.send(&push("refs/heads/main")).await;
    assert_eq!((status, &body["tasks"]), (StatusCode::ACCEPTED, &json!(4)));
    for git_ref in ["refs/heads/gh/alice/1/base", "refs/tags/ciflow/trunk/7", "refs/heads/topic"] {
        let answer = world.send(&push(git_ref)).await;
        assert_eq!(answer, (StatusCode::OK, json!({ "ignored": true })), "{git_ref}");
    }
    world.work().await;
    assert_eq!(world.dispatched(), ALL);
}

#[tokio::test]
async fn newer_head_cancels_unsent_dispatches() {
    let world = World::new().await;
    let first = world.pull_request("opened");
    world.send(&first).await;
    world.change(|pull| pull.head_sha = NEWER.to_owned());
    let second = world.pull_request("synchronize");
    world.send(&second).await;
    world.work().await;
    let dispatches = world.github.state().world.take_dispatches();
    assert_eq!(dispatches.len(), 4);
    assert!(dispatches.iter().all(|one| one.client_payload["delivery_id"] == second.id.as_str()));
    let facts = world.results.dispatches(&world.always()).unwrap();
    let replaced: Vec<_> = facts.iter().filter(|fact| fact.delivery == first.id).collect();
    assert_eq!(replaced.len(), 4);
    for fact in replaced {
        assert_eq!(fact.status, DispatchFactStatus::Superseded);
        assert_eq!(fact.superseded_by.as_deref(), Some(second.id.as_str()));
    }
    world.github.state().world.check_runs(UPSTREAM);
    world.nothing_else();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn burst_on_one_pull_request_is_accepted_with_a_bounded_record() {
    let world = World::new().await;
    let deliveries: Vec<_> = (0..300).map(|_| world.pull_request("synchronize")).collect();
    let answers = deliveries.iter().map(|delivery| world.send(delivery));
    for (status, body) in futures_util::future::join_all(answers).await {
        assert_eq!(status, StatusCode::ACCEPTED, "{body}");
    }
    // Each is in the list of all and in that of its commit; one author asked for it, and one head is open.
    assert_eq!(world.rows("member"), 300 + 300 + 1 + 1);
    let key = state_records::pull_request_key(&world.relay.config.upstream, 7);
    let pull =
        read_record::<state_records::PullRecord>(world.relay.store.as_ref(), key).await.unwrap();
    assert_eq!(pull.version, 300, "each was decided on the one before, and none twice");
    assert_eq!(pull.value.unwrap().deliveries.len(), limits::DELIVERIES_PER_HEAD);
    // The same deliveries again, concurrently, are all duplicates.
    let answers = deliveries.iter().map(|delivery| world.send(delivery));
    for (_, body) in futures_util::future::join_all(answers).await {
        assert_eq!(body["duplicate"], true, "{body}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_heads_dispatch_only_the_newest_once() {
    let world = World::new().await;
    let mut deliveries = vec![];
    for n in 0..30_u8 {
        world.change(|pull| pull.head_sha = format!("{n:040x}"));
        let delivery = world.pull_request("synchronize");
        // GitHub may send one twice.
        deliveries.extend([delivery.clone(), delivery]);
    }
    let newest = deliveries.last().unwrap().id.clone();
    // Neither the oldest first nor the newest.
    deliveries.sort_by(|a, b| a.id.cmp(&b.id));
    let answers = deliveries.iter().map(|delivery| world.send(delivery));
    let mut accepted = 0;
    for (status, body) in futures_util::future::join_all(answers).await {
        assert!(status.is_success(), "{body}");
        accepted += usize::from(status == StatusCode::ACCEPTED);
    }
    assert_eq!(accepted, 30);
    world.work().await;
    let dispatches = world.github.state().world.take_dispatches();
    assert_eq!(dispatches.len(), 4);
    assert!(dispatches.iter().all(|one| one.client_payload["delivery_id"] == newest.as_str()));
    let facts = world.results.dispatches(&world.always()).unwrap();
    assert_eq!(facts.len(), 120);
    assert_eq!(
        facts.iter().filter(|fact| fact.status == DispatchFactStatus::Superseded).count(),
        116
    );
}

#[tokio::test]
async fn late_older_event_is_superseded() {
    let world = World::new().await;
    let older = world.pull_request("opened");
    world.change(|pull| pull.head_sha = NEWER.to_owned());
    let newer = world.pull_request("synchronize");
    world.send(&newer).await;
    world.send(&older).await;
    world.work().await;
    assert_eq!(world.dispatched(), ALL);
    let facts = world.results.dispatches(&world.always()).unwrap();
    let late: Vec<_> = facts.iter().filter(|fact| fact.delivery == older.id).collect();
    assert_eq!(late.len(), 4);
    assert!(late.iter().all(|fact| fact.superseded_by.as_deref() == Some(newer.id.as_str())));
}

#[tokio::test]
async fn newer_head_is_accepted_after_a_batch_of_its_pull_request_was_rejected() {
    let world = World::new().await;
    world.send(&world.pull_request("opened")).await;
    world.sql(
        "CREATE TRIGGER full BEFORE INSERT ON record
         BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END",
    );
    world.change(|_| {});
    assert_eq!(
        world.send(&world.pull_request("reopened")).await.0,
        StatusCode::SERVICE_UNAVAILABLE
    );
    world.sql("DROP TRIGGER full");
    world.change(|pull| pull.head_sha = NEWER.to_owned());
    assert_eq!(world.send(&world.pull_request("synchronize")).await.0, StatusCode::ACCEPTED);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn event_that_was_decided_on_a_rejected_one_is_decided_again() {
    let world = World::new().await;
    let opened = world.pull_request("opened");
    world.change(|_| {});
    let reopened = world.pull_request("reopened");
    world.change(|pull| pull.head_sha = NEWER.to_owned());
    let newest = world.pull_request("synchronize");
    // Another replica has accepted the newest one, and made the first version of the record; here, nobody
    // sees it before both others are decided.
    world.send(&newest).await;
    let key = state_records::pull_request_key(&world.relay.config.upstream, 7);
    let hide = "UPDATE record SET key = 'hidden' WHERE key = ?1";
    assert_eq!(world.database().execute(hide, [key.as_str()]).unwrap(), 1);
    let writer = world.database();
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    let others = async { tokio::join!(world.send(&opened), world.send(&reopened)) };
    let show = async {
        while !world.relay.turns.wait(&key).await.may_have(&reopened.id) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let show = "UPDATE record SET key = ?1 WHERE key = 'hidden'";
        assert_eq!(writer.execute(show, [key.as_str()]).unwrap(), 1);
        writer.execute_batch("COMMIT").unwrap();
    };
    let ((first, second), ()) = tokio::join!(others, show);
    assert_eq!((first.0, second.0), (StatusCode::ACCEPTED, StatusCode::ACCEPTED));
    world.work().await;
    let dispatches = world.github.state().world.take_dispatches();
    assert_eq!(dispatches.len(), 4);
    assert!(dispatches.iter().all(|one| one.client_payload["delivery_id"] == newest.id.as_str()));
}

#[tokio::test]
async fn repository_without_the_app_is_unreachable() {
    let world = World::new().await;
    world.github.state().world.uninstall("acme/two");
    world.github.state().world.suspend("acme/one", Some(world.relay.now()));
    world.github.state().world.install_with("acme/three", &[("contents", "read")]);
    let delivery = world.pull_request("opened");
    world.send(&delivery).await;
    world.settle().await;
    assert_eq!(world.dispatched(), ["acme/four"]);
    let overview =
        deliveries::delivery(world.relay.store.as_ref(), &delivery.id).await.unwrap().unwrap();
    for dispatch in overview.dispatches {
        let unreachable = ["acme/one", "acme/three", "acme/two"].contains(&dispatch.repo.as_str());
        assert_eq!(dispatch.status == DispatchStatus::Unreachable, unreachable, "{dispatch:?}");
        assert_eq!(dispatch.last_error.is_some(), unreachable);
    }
    // Installed at last, it can be redelivered.
    world.github.state().world.install("acme/two");
    let store = world.relay.store.as_ref();
    let repo = "acme/two".parse().unwrap();
    let again = deliveries::redeliver(
        store,
        &delivery.id,
        Some(&repo),
        world.relay.now(),
        limits::RECORD_RETENTION,
    );
    assert_eq!(again.await.unwrap(), 1);
    world.work().await;
    assert_eq!(world.dispatched(), ["acme/two"]);
}

#[tokio::test]
async fn retry_after_of_github_delays_the_dispatch() {
    let world = World::new().await;
    let fault = Fault::Answer {
        status: StatusCode::FORBIDDEN,
        retry_after: Some(90),
        body: json!({ "message": "You have exceeded a secondary rate limit" }).to_string(),
    };
    world.github.state().world.fail("POST /repos/acme/two/dispatches", 1, fault);
    world.send(&world.pull_request("opened")).await;
    assert_eq!(world.work().await.len(), 1);
    assert_eq!(world.dispatched().len(), 3);
    world.work_after(Duration::from_secs(80)).await;
    assert_eq!(world.dispatched(), Vec::<String>::new(), "too early");
    world.wait(Duration::from_secs(11)).await;
    assert_eq!(world.dispatched(), ["acme/two"]);
    let facts = world.results.dispatches(&world.always()).unwrap();
    let two = facts.iter().find(|fact| fact.repo == "acme/two").unwrap();
    assert_eq!((two.status.as_str(), two.tries), ("sent", 2));
}

#[tokio::test]
async fn retry_after_of_an_outage_or_of_something_in_between_delays_the_dispatch() {
    for status in [StatusCode::SERVICE_UNAVAILABLE, StatusCode::FORBIDDEN] {
        let world = World::new().await;
        let fault = Fault::Answer { status, retry_after: Some(90), body: "come back".to_owned() };
        world.github.state().world.fail("POST /repos/acme/two/dispatches", 1, fault);
        world.send(&world.pull_request("opened")).await;
        assert_eq!(world.work().await.len(), 1);
        assert_eq!(world.dispatched().len(), 3, "{status}");
        world.work_after(Duration::from_secs(80)).await;
        assert_eq!(world.dispatched(), Vec::<String>::new(), "{status}: too early");
        world.wait(Duration::from_secs(11)).await;
        assert_eq!(world.dispatched(), ["acme/two"], "{status}");
    }
}

#[tokio::test]
async fn dispatch_takes_one_request_when_cached() {
    let world = World::new().await;
    world.send_and_work("opened").await;
    let before = world.github.state().world.calls().len();
    let state = world.github.state();
    let push = state.push_payload(UPSTREAM, "refs/heads/main", HEAD);
    world.send(&state.world.delivery("push", &push)).await;
    world.work().await;
    let calls = world.github.state().world.calls();
    let routes: Vec<_> = calls[before..].iter().map(crcr_standin::world::Call::route).collect();
    assert_eq!(routes.len(), 4, "{routes:?}");
}

#[tokio::test]
async fn expired_records_are_deleted() {
    let world = World::new().await;
    let delivery = world.pull_request("opened");
    world.send(&delivery).await;
    world.work().await;
    let now = world.relay.now() + SignedDuration::from_hours(36 * 24);
    assert!(world.relay.store.delete_expired(now).await.unwrap() > 4);
    assert_eq!(deliveries::delivery(world.relay.store.as_ref(), &delivery.id).await.unwrap(), None);
}

#[tokio::test]
async fn redelivered_dispatch_is_kept_for_the_full_retention() {
    let world = World::with(&[("CRCR_STATUS_TTL", "8h")]).await;
    world.github.state().world.fail("POST /repos/acme/two/dispatches", 1, Fault::status(422));
    let delivery = world.pull_request("opened");
    world.send(&delivery).await;
    world.work().await;
    let (relay, store) = (&world.relay, world.relay.store.as_ref());
    let again =
        deliveries::redeliver(store, &delivery.id, None, relay.now(), relay.config.status_ttl);
    assert_eq!(again.await.unwrap(), 1);
    let repo = RepoName::new("acme/two").unwrap();
    let key = state_records::dispatch_key(&delivery.id, &repo);
    store.delete_expired(relay.now() + SignedDuration::from_hours(7)).await.unwrap();
    assert!(store.records(std::slice::from_ref(&key)).await.unwrap()[0].is_some());
    store.delete_expired(relay.now() + SignedDuration::from_hours(9)).await.unwrap();
    assert_eq!(store.records(&[key]).await.unwrap()[0], None);
    world.dispatched();
}

#[tokio::test]
#[ignore = "needs the npm package @octokit/webhooks-examples below tests/peers"]
async fn every_published_webhook_is_accepted_or_ignored() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(
        "../../tests/peers/node_modules/@octokit/webhooks-examples/api.github.com/index.json",
    );
    let text = std::fs::read(&path).expect("install it: npm ci in tests/peers");
    let groups: Vec<Value> = serde_json::from_slice(&text).unwrap();
    let world = World::with(&[("UPSTREAM_REPO", "Codertocat/Hello-World")]).await;
    let (mut seen, mut accepted) = (0, 0);
    for group in &groups {
        let name = group["name"].as_str().unwrap();
        for example in group["examples"].as_array().unwrap() {
            let (status, body) =
                world.send(&world.github.state().world.delivery(name, example)).await;
            assert!(status.is_success(), "{name}: {status} {body}: {example}");
            accepted += usize::from(status == StatusCode::ACCEPTED);
            seen += 1;
        }
    }
    assert!(seen >= 329, "{seen}");
    assert!(accepted >= 5, "{accepted}");
}
