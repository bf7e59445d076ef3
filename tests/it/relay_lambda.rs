//! `crcr relay serve` on AWS Lambda: the test is Lambda's runtime API.

use std::fs::{self, File};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::{Json, Router};
use crcr_standin::traffic::Fault;
use crcr_standin::world::{Delivery, PullRequest};
use crcr_testkit::redis::{RedisServer, RedisSettings};
use crcr_testkit::unused_port;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::{Mutex, mpsc};

use crate::relay_process::{Place, UPSTREAM, eventually};

const HEAD: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

/// A process that is killed when it is dropped.
struct Killed(Child);

impl Killed {
    /// Its messages go to the relay's log.
    fn start(mut command: Command, place: &Place) -> Self {
        let log = place.folder().join("relay.log");
        let log = File::options().create(true).append(true).open(log).unwrap();
        Self(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap())
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Gives the function one event at a time, and hears its answers.
struct RuntimeApi {
    address: String,
    events: mpsc::Sender<Value>,
    answers: Mutex<mpsc::Receiver<(String, Value)>>,
}

type ApiState = Arc<(Mutex<mpsc::Receiver<Value>>, mpsc::Sender<(String, Value)>)>;

async fn next(State(api): State<ApiState>) -> impl IntoResponse {
    let event = api.0.lock().await.recv().await.expect("the test goes on");
    let deadline = Timestamp::now().as_millisecond() + 60_000;
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("lambda-runtime-aws-request-id", "8476a536-e9f4-11e8-9739-2dfe598c3fcd".to_owned()),
        ("lambda-runtime-deadline-ms", deadline.to_string()),
        ("lambda-runtime-invoked-function-arn", "arn:aws:lambda:us-east-1:1:function:r".to_owned()),
    ] {
        headers.insert(name, value.parse().unwrap());
    }
    (headers, Json(event))
}

async fn answered(
    State(api): State<ApiState>,
    Path((_, what)): Path<(String, String)>,
    Json(body): Json<Value>,
) -> StatusCode {
    api.1.send((what, body)).await.unwrap();
    StatusCode::ACCEPTED
}

impl RuntimeApi {
    async fn start() -> Self {
        let (events, waiting) = mpsc::channel(9);
        let (sender, answers) = mpsc::channel(9);
        let state: ApiState = Arc::new((Mutex::new(waiting), sender));
        let router = Router::new()
            .route("/2018-06-01/runtime/invocation/next", get(next))
            .route("/2018-06-01/runtime/invocation/{id}/{what}", post(answered))
            .with_state(state);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, events, answers: Mutex::new(answers) }
    }

    async fn invoke(&self, event: Value) -> Value {
        self.events.send(event).await.unwrap();
        let wait = async { self.answers.lock().await.recv().await.unwrap() };
        let waited = tokio::time::timeout(std::time::Duration::from_secs(60), wait).await;
        let (what, body) = waited.expect("the function answers");
        assert_eq!(what, "response", "{body}");
        body
    }
}

/// What a function URL makes of a request.
fn event(delivery: &Delivery) -> Value {
    let headers: serde_json::Map<_, _> =
        delivery.headers().iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
    json!({
        "version": "2.0", "routeKey": "$default", "rawPath": "/github/webhook", "rawQueryString": "",
        "headers": headers, "body": String::from_utf8(delivery.body.clone()).unwrap(),
        "isBase64Encoded": false,
        "requestContext": {
            "accountId": "anonymous", "apiId": "id", "domainName": "id.lambda-url.example",
            "domainPrefix": "id", "requestId": "1", "routeKey": "$default", "stage": "$default",
            "time": "23/Nov/2026:12:00:00 +0000", "timeEpoch": 1_795_435_200_000_u64,
            "http": {
                "method": "POST", "path": "/github/webhook", "protocol": "HTTP/1.1",
                "sourceIp": "192.0.2.1", "userAgent": "GitHub-Hookshot/1",
            },
        },
    })
}

fn place() -> Place {
    let place = Place::new(&["acme/one", "acme/two"], "L1: [acme/one, acme/two]\n");
    let pull = PullRequest::from_fork(7, UPSTREAM, HEAD, Timestamp::now());
    place.github.state().world.put_pull(UPSTREAM, pull);
    place
}

#[test]
fn sqlite_is_refused_on_lambda() {
    let place = place().set("AWS_LAMBDA_RUNTIME_API", "127.0.0.1:9");
    let (_, stderr) = place.run_to(1, &["relay", "serve"]);
    assert!(stderr.contains("SQLite can't be the relay's store on AWS Lambda"), "{stderr}");
    assert!(!place.database().exists());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs redis-server"]
async fn function_dispatches_what_it_accepts_and_the_schedule_works_the_rest() {
    let api = RuntimeApi::start().await;
    let redis = RedisServer::start(RedisSettings::default()).unwrap();
    let place = place().set("AWS_LAMBDA_RUNTIME_API", &api.address).on_redis(&redis);
    let world = &place.github.state().world;
    world.fail("POST /repos/acme/two/dispatches", 1, Fault::status(502));
    let _relay = Killed::start(place.crcr(&["relay", "serve"]), &place);
    let payload = place.github.state().pull_request_payload(UPSTREAM, 7, "opened");
    let delivery = world.delivery("pull_request", &payload);
    let answer = api.invoke(event(&delivery)).await;
    assert_eq!(answer["statusCode"], 202, "{answer}\n{}", place.log());
    let sent = world.take_dispatches();
    assert_eq!(sent.len(), 1, "{}", place.log());
    assert_eq!(sent[0].repository, "acme/one");
    let again = api.invoke(event(&delivery)).await;
    assert!(again["body"].as_str().unwrap().contains("\"duplicate\":true"), "{again}");
    let mut rest = Vec::new();
    eventually("the schedule sends the rest", async || {
        let answer = api.invoke(json!({ "source": "aws.events", "detail": {} })).await;
        assert_eq!(answer["statusCode"], 200, "{answer}");
        rest.extend(world.take_dispatches().into_iter().map(|dispatch| dispatch.repository));
        !rest.is_empty()
    })
    .await;
    assert_eq!(rest, ["acme/two"]);
}

/// The runtime API and the function URL are those of `cargo lambda`, which needs a package to run in.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs redis-server and cargo-lambda"]
async fn function_url_of_cargo_lambda_takes_a_webhook() {
    let port = unused_port();
    let redis = RedisServer::start(RedisSettings::default()).unwrap();
    let place =
        place().set("AWS_LAMBDA_RUNTIME_API", &format!("127.0.0.1:{port}/.rt")).on_redis(&redis);
    fs::create_dir(place.folder().join("src")).unwrap();
    fs::write(place.folder().join("src/main.rs"), "fn main() {}").unwrap();
    let package = "[package]\nname = \"crcr\"\nversion = \"0.0.0\"\nedition = \"2024\"\n";
    fs::write(place.folder().join("Cargo.toml"), package).unwrap();
    let mut emulator = Command::new("cargo-lambda");
    emulator.args(["lambda", "watch", "--only-lambda-apis", "--invoke-address", "127.0.0.1"]);
    emulator.args(["--invoke-port", &port.to_string()]).current_dir(place.folder());
    let _emulator = Killed::start(emulator, &place);
    eventually("cargo lambda listens", async || {
        std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
    })
    .await;
    let _relay = Killed::start(place.crcr(&["relay", "serve"]), &place);
    let payload = place.github.state().pull_request_payload(UPSTREAM, 7, "opened");
    let world = &place.github.state().world;
    let delivery = world.delivery("pull_request", &payload);
    // A function without a name is called `_` there.
    let url = format!("http://127.0.0.1:{port}/lambda-url/_/github/webhook").parse().unwrap();
    let answer = delivery.send(&reqwest::Client::new(), &url).await.unwrap();
    assert_eq!(answer.status, 202, "{}", place.log());
    assert_eq!(world.take_dispatches().len(), 2, "{}", place.log());
}
