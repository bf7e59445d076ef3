//! Events of AWS Lambda.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use crcr_standin::traffic::Fault;
use crcr_standin::world::Delivery;
use serde_json::{Value, json};

use super::support::{ALL, NEWER, World};
use crate::http::lambda::LambdaRelay;
use crate::{limits, uptime};

/// The event of a function URL for a request.
fn event(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Value {
    let headers: serde_json::Map<_, _> =
        headers.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
    json!({
        "version": "2.0", "routeKey": "$default", "rawPath": path, "rawQueryString": "",
        "headers": headers, "body": BASE64.encode(body), "isBase64Encoded": true,
        "requestContext": {
            "accountId": "anonymous", "apiId": "id", "domainName": "id.lambda-url.example",
            "domainPrefix": "id", "requestId": "1", "routeKey": "$default", "stage": "$default",
            "time": "23/Nov/2026:12:00:00 +0000", "timeEpoch": 1_795_435_200_000_u64,
            "http": {
                "method": method, "path": path, "protocol": "HTTP/1.1",
                "sourceIp": "192.0.2.1", "userAgent": "GitHub-Hookshot/1",
            },
        },
    })
}

fn schedule() -> Value {
    json!({
        "version": "0", "id": "53dc4d37", "detail-type": "Scheduled Event",
        "source": "aws.events", "account": "123456789012", "time": "2026-11-23T12:00:00Z",
        "region": "us-east-1", "resources": [], "detail": {},
    })
}

async fn handle(lambda: &LambdaRelay, event: &Value) -> (u16, Value) {
    let answer = lambda.handle(event.to_string().as_bytes()).await;
    let status = answer["statusCode"].as_u64().unwrap();
    let body = serde_json::from_str(answer["body"].as_str().unwrap()).unwrap_or_default();
    (status.try_into().unwrap(), body)
}

#[tokio::test]
async fn webhook_is_dispatched_before_lambda_freezes_and_the_schedule_works_the_rest() {
    let world = World::new().await;
    let lambda = LambdaRelay::new(Arc::clone(&world.relay)).await;
    let away = Fault::status(502);
    world.github.state().world.fail("POST /repos/acme/two/dispatches", 1, away);
    let delivery = world.pull_request("opened");
    let webhook = event("POST", "/github/webhook", &delivery.headers(), &delivery.body);
    let (status, body) = handle(&lambda, &webhook).await;
    assert_eq!((status, &body["ok"]), (202, &json!(true)), "{body}");
    let mut first = ALL.to_vec();
    first.retain(|repo| *repo != "acme/two");
    assert_eq!(world.dispatched(), first);
    world.later(limits::TASK_RETRY.cap);
    let (status, body) = handle(&lambda, &schedule()).await;
    assert_eq!((status, &body["ok"]), (200, &json!(true)));
    assert!(body["tasks"].as_u64().unwrap() >= 1, "{body}");
    assert_eq!(world.dispatched(), ["acme/two"]);
}

#[tokio::test]
async fn downtime_of_the_function_is_written_down_by_its_schedule() {
    let world = World::new().await;
    let lambda = LambdaRelay::new(Arc::clone(&world.relay)).await;
    let was_down = async || uptime::was_down(&world.relay, None, None).await.unwrap();
    handle(&lambda, &schedule()).await;
    world.later(Duration::from_secs(60));
    handle(&lambda, &schedule()).await;
    assert!(!was_down().await);
    world.later(Duration::from_secs(3 * 3600));
    handle(&lambda, &schedule()).await;
    assert!(was_down().await);
}

#[tokio::test]
async fn account_that_github_wants_to_rest_is_left_alone_by_the_next_event_too() {
    let world = World::new().await;
    let lambda = LambdaRelay::new(Arc::clone(&world.relay)).await;
    let github = &world.github.state().world;
    let rest = Fault::Answer {
        status: StatusCode::FORBIDDEN,
        retry_after: Some(600),
        body: json!({ "message": "You have exceeded a secondary rate limit" }).to_string(),
    };
    let dispatches: Vec<String> =
        ALL.iter().map(|repo| format!("POST /repos/{repo}/dispatches")).collect();
    for route in &dispatches {
        github.fail(route, 100, rest.clone());
    }
    let webhook =
        |delivery: &Delivery| event("POST", "/github/webhook", &delivery.headers(), &delivery.body);
    assert_eq!(handle(&lambda, &webhook(&world.pull_request("opened"))).await.0, 202);
    let asked = || dispatches.iter().map(|route| github.count(route)).sum::<usize>();
    let before = asked();
    assert!(before > 0);
    world.change(|pull| pull.head_sha = NEWER.to_owned());
    assert_eq!(handle(&lambda, &webhook(&world.pull_request("synchronize"))).await.0, 202);
    assert_eq!(asked(), before);
}

#[tokio::test]
async fn process_that_started_while_the_allowlist_could_not_be_read_takes_webhooks_as_soon_as_it_can()
 {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("allowlist.yml");
    let url = format!("file:{}", path.display());
    let world = World::new().await.restart(&[("ALLOWLIST_URL", &url)]).await;
    let lambda = LambdaRelay::new(Arc::clone(&world.relay)).await;
    let delivery = world.pull_request("opened");
    let webhook = event("POST", "/github/webhook", &delivery.headers(), &delivery.body);
    assert_eq!(handle(&lambda, &webhook).await.0, 503);
    std::fs::write(&path, "L2: [acme/two]\n").unwrap();
    let (status, body) = handle(&lambda, &webhook).await;
    assert_eq!(status, 202, "{body}");
    assert_eq!(world.dispatched(), ["acme/two"]);
}

#[tokio::test]
async fn forged_webhook_and_event_of_unknown_source_start_no_work() {
    let world = World::new().await;
    let lambda = LambdaRelay::new(Arc::clone(&world.relay)).await;
    let delivery = world.pull_request("opened");
    let forged = event("POST", "/github/webhook", &delivery.headers(), b"{}");
    assert_eq!(handle(&lambda, &forged).await.0, 401);
    let unknown = json!({ "source": "aws.s3" });
    assert_eq!(handle(&lambda, &unknown).await.0, 400);
    assert_eq!(world.dispatched(), Vec::<String>::new());
}

#[tokio::test]
async fn pages_keep_their_type_and_query_and_a_login_its_cookie() {
    let token = "0123456789abcdef";
    let world = World::with(&[("CRCR_ADMIN_TOKEN", token)]).await;
    let lambda = LambdaRelay::new(Arc::clone(&world.relay)).await;
    let mut page = event("GET", "/crcr", &[], b"");
    page["rawQueryString"] = json!("window=7d");
    let answer = lambda.handle(page.to_string().as_bytes()).await;
    assert_eq!(answer["headers"]["content-type"], "text/html; charset=utf-8");
    assert!(answer["body"].as_str().unwrap().contains("window=7d"));
    let headers = [
        ("content-type", "application/x-www-form-urlencoded"),
        ("host", "relay.example.com"),
        ("origin", "https://relay.example.com"),
    ];
    let form = format!("token={token}");
    let login = event("POST", "/crcr/login", &headers, form.as_bytes());
    let answer = lambda.handle(login.to_string().as_bytes()).await;
    let cookie = answer["cookies"][0].as_str().unwrap().split(';').next().unwrap();
    let mut deliveries = event("GET", "/crcr/deliveries", &[("host", "relay.example.com")], b"");
    assert_eq!(handle(&lambda, &deliveries).await.0, 404);
    deliveries["cookies"] = json!([cookie]);
    assert_eq!(handle(&lambda, &deliveries).await.0, 200);
}
