//! Results that another relay sends, as the deployed one does.

use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use crcr_domain::checks::lifecycle::{Conclusion, JobState};
use serde_json::{Value, json};

use super::support::{HEAD, UPSTREAM, World};

const TOKEN: &str = "the-bot's-token";

async fn world() -> World {
    World::with(&[("INTERNAL_API_TOKEN", TOKEN)]).await
}

fn forward(status: &str, conclusion: Option<&str>) -> Value {
    let (queue, execution) = match status {
        "in_progress" => (Some(45.5), None),
        _ => (None, Some(120.0)),
    };
    json!({
        "trusted": {
            "ci_metrics": { "queue_time": queue, "execution_time": execution },
            "verified_repo": "acme/two", "downstream_repo_level": "L2",
        },
        "untrusted": { "callback_payload": {
            "event_type": "pull_request", "delivery_id": "guid-1",
            "payload": {
                "repository": { "full_name": UPSTREAM },
                "pull_request": { "number": 7, "head": { "sha": HEAD } },
            },
            "workflow": {
                "schema_version": "1", "status": status, "conclusion": conclusion, "name": "ci",
                "url": "https://github.com/acme/two/actions/runs/9", "run_id": "9",
                "run_attempt": "1", "job_name": "test", "check_run_id": "77",
            },
        } },
    })
}

async fn send(world: &World, token: Option<&str>, body: impl Into<Body>) -> (StatusCode, Value) {
    let mut request = Request::post("/api/crcr/results");
    if let Some(token) = token {
        request = request.header("x-hud-internal-bot", token);
    }
    world.call(request.body(body.into()).unwrap()).await
}

async fn sent(world: &World, body: &Value) -> (StatusCode, Value) {
    send(world, Some(TOKEN), body.to_string()).await
}

#[tokio::test]
async fn forwarded_result_has_the_times_of_both_reports() {
    let world = world().await;
    let (status, answer) = sent(&world, &forward("in_progress", None)).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let expected = json!({
        "ok": true, "status": "in_progress", "dynamoKey": "acme/two/guid-1/ci/test/77",
    });
    assert_eq!(answer, expected);
    world.later(Duration::from_secs(120));
    let end = forward("completed", Some("failure"));
    assert_eq!(sent(&world, &end).await.1["status"], "completed");
    assert_eq!(sent(&world, &end).await.1["status"], "completed", "again is as good");
    assert_eq!(sent(&world, &forward("in_progress", None)).await.0, StatusCode::OK);
    let rows = world.results.attempts(&world.always()).unwrap();
    let [row] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!(row.state, JobState::Completed(Conclusion::Failure));
    assert_eq!((row.queue_seconds, row.execution_seconds), (Some(45.5), Some(120.0)));
    assert_eq!((row.pull_request, row.head_sha.as_str()), (Some(7), HEAD));
    let page = Request::get("/api/v1/pulls/7").body(Body::empty()).unwrap();
    let (status, pull) = world.call(page).await;
    assert_eq!(status, StatusCode::OK, "{pull}");
    assert_eq!(pull["backends"][0]["jobs"][0]["outcome"], "test_failed");
    world.nothing_else();
}

#[tokio::test]
async fn forwarded_result_as_python_writes_it_is_stored_and_an_odd_time_costs_that_time() {
    let world = world().await;
    let mut body = forward("completed", Some("failure"));
    body["trusted"]["ci_metrics"] = json!({ "queue_time": "45.5", "execution_time": "SOON" });
    body["untrusted"]["callback_payload"]["title"] = json!("cut HALF");
    let text = body.to_string().replace("\"SOON\"", "NaN").replace("HALF", "\\ud83d");
    let (status, answer) = send(&world, Some(TOKEN), text).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let rows = world.results.attempts(&world.always()).unwrap();
    assert_eq!(rows[0].state, JobState::Completed(Conclusion::Failure));
    assert_eq!((rows[0].queue_seconds, rows[0].execution_seconds), (Some(45.5), None));
    for odd in [Value::Null, json!(""), json!([1]), json!({ "queue_time": {} })] {
        body["trusted"]["ci_metrics"] = odd.clone();
        let (status, answer) = sent(&world, &body).await;
        assert_eq!(status, StatusCode::OK, "{odd}: {answer}");
    }
}

#[tokio::test]
async fn forwarded_result_without_the_bot_token_is_401() {
    let world = world().await;
    let body = forward("completed", Some("success")).to_string();
    for token in [None, Some(""), Some("the-bot's-toke"), Some("the-bot's-token2")] {
        let (status, answer) = send(&world, token, body.clone()).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{token:?}: {answer}");
    }
    let cookie = Request::post("/api/crcr/results").header("cookie", "session=of-a-person");
    let (status, _) = world.call(cookie.body(Body::from(body.clone())).unwrap()).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED, "a logged-in person has no way in");
    let closed = World::new().await;
    assert_eq!(send(&closed, Some(""), body.clone()).await.0, StatusCode::UNAUTHORIZED);
    assert_eq!(send(&closed, Some(TOKEN), body).await.0, StatusCode::UNAUTHORIZED);
    assert!(world.results.attempts(&world.always()).unwrap().is_empty());
    let get = Request::get("/api/crcr/results").body(Body::empty()).unwrap();
    assert_eq!(world.call(get).await.0, StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn invalid_forwarded_result_is_400_with_the_field() {
    let world = world().await;
    let large = send(&world, Some(TOKEN), vec![b' '; 2 * 1024 * 1024 + 1]).await;
    assert_eq!(large.0, StatusCode::PAYLOAD_TOO_LARGE);
    let mut body = forward("completed", Some("success"));
    body["untrusted"]["callback_payload"]["workflow"]["job_name"] = Value::Null;
    let (status, answer) = sent(&world, &body).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_eq!(answer["detail"], "Missing required field: workflow.job_name");
    for (pointer, value, named) in [
        ("/trusted/verified_repo", json!("no repository"), "verified_repo"),
        ("/trusted/downstream_repo_level", json!("L7"), "downstream_repo_level"),
        ("/untrusted/callback_payload/workflow/status", json!("splendid"), "status"),
        ("/untrusted", json!(1), "Invalid body"),
    ] {
        let mut body = forward("completed", Some("success"));
        *body.pointer_mut(pointer).unwrap() = value;
        let (status, answer) = sent(&world, &body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert!(answer["detail"].as_str().unwrap().contains(named), "{answer}");
    }
    assert!(world.results.attempts(&world.always()).unwrap().is_empty());
}
