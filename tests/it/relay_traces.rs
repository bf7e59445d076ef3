//! Traces, as an OpenTelemetry collector gets them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::routing::post;
use crcr_standin::world::PullRequest;
use jiff::Timestamp;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;

use crate::relay_process::{Place, UPSTREAM, eventually};

#[derive(Clone, Default)]
struct Collector {
    spans: Arc<Mutex<Vec<Span>>>,
    services: Arc<Mutex<Vec<String>>>,
    authorizations: Arc<Mutex<Vec<String>>>,
}

impl Collector {
    /// Starts it, and returns its address.
    async fn start(&self) -> String {
        let app = Router::new().route("/v1/traces", post(take)).with_state(self.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await });
        address
    }

    fn spans(&self) -> BTreeMap<String, Span> {
        self.spans.lock().unwrap().iter().map(|span| (span.name.clone(), span.clone())).collect()
    }
}

async fn take(State(collector): State<Collector>, headers: HeaderMap, body: Bytes) {
    let sent = headers.get("authorization").map(|value| value.to_str().unwrap().to_owned());
    collector.authorizations.lock().unwrap().extend(sent);
    let request = ExportTraceServiceRequest::decode(body).unwrap();
    for resource in request.resource_spans {
        let attributes = resource.resource.unwrap().attributes;
        let name = attributes.iter().find(|attribute| attribute.key == "service.name").unwrap();
        let name = name.value.clone().unwrap().value.unwrap();
        let Value::StringValue(name) = name else { panic!("{name:?}") };
        collector.services.lock().unwrap().push(name);
        let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
        collector.spans.lock().unwrap().extend(spans);
    }
}

fn attribute(span: &Span, key: &str) -> Option<String> {
    let found = span.attributes.iter().find(|attribute| attribute.key == key)?;
    match found.value.clone()?.value? {
        Value::StringValue(text) => Some(text),
        Value::IntValue(number) => Some(number.to_string()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delivery_is_one_trace_from_the_webhook_to_the_last_report() {
    let collector = Collector::default();
    let place = Place::new(&["acme/one"], "L2: [acme/one]\n")
        .set("CRCR_ADMIN_LISTEN", "off")
        .set("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.start().await)
        .set("OTEL_SERVICE_NAME", "our-relay")
        .set("OTEL_BSP_SCHEDULE_DELAY", "50");
    let file = place.folder().join("headers");
    std::fs::write(&file, "Authorization=Bearer%20hush\n").unwrap();
    let place = place.set("OTEL_EXPORTER_OTLP_HEADERS_FILE", file.to_str().unwrap());
    let mut relay = place.serving().await;
    let client = reqwest::Client::new();
    let state = place.github.state();
    let pull = PullRequest::from_fork(7, UPSTREAM, &"a".repeat(40), Timestamp::now());
    state.world.put_pull(UPSTREAM, pull);
    let payload = state.pull_request_payload(UPSTREAM, 7, "synchronize");
    let delivery = state.world.delivery("pull_request", &payload);
    let answer = delivery.send(&client, &relay.url.join("github/webhook").unwrap()).await.unwrap();
    assert_eq!(answer.status, 202);
    eventually("the dispatch was sent and traced", async || {
        collector.spans().contains_key("dispatch acme/one")
    })
    .await;
    for conclusion in [None, Some("failure")] {
        let job = (delivery.id.as_str(), &payload);
        let report = place.report(&client, &relay.url, "acme/one", job, 5, conclusion);
        assert_eq!(report.send().await.unwrap().status(), 200);
    }
    // What still waits is sent before the process ends.
    relay.terminate();
    assert_eq!(relay.end(Duration::from_secs(20)).await, 0);

    let spans = collector.spans();
    let names: Vec<&str> = spans.keys().map(String::as_str).collect();
    let expected = [
        "dispatch acme/one",
        "report completed",
        "report in_progress",
        "test",
        "webhook pull_request",
    ];
    assert_eq!(names, expected);
    let trace = &spans["webhook pull_request"].trace_id;
    assert!(spans.values().all(|span| span.trace_id == *trace));
    let parent = |name: &str| {
        let parent = &spans[name].parent_span_id;
        let found = spans.values().find(|span| span.span_id == *parent);
        found.map_or("none", |found| found.name.as_str())
    };
    assert_eq!(
        expected.map(parent),
        ["webhook pull_request", "test", "test", "dispatch acme/one", "none"]
    );
    assert!(spans.values().all(|span| span.start_time_unix_nano <= span.end_time_unix_nano));
    let job = &spans["test"];
    for (key, value) in [
        ("cicd.pipeline.name", "CI"),
        ("cicd.pipeline.run.id", "5"),
        ("cicd.pipeline.task.name", "test"),
        ("cicd.pipeline.task.run.result", "failure"),
        ("vcs.change.id", "7"),
        ("vcs.repository.name", "acme/one"),
        ("crcr.delivery", &delivery.id),
    ] {
        assert_eq!(attribute(job, key).as_deref(), Some(value), "{key}");
    }
    assert!(collector.services.lock().unwrap().iter().all(|name| name == "our-relay"));
    let authorizations = collector.authorizations.lock().unwrap();
    assert!(!authorizations.is_empty() && authorizations.iter().all(|it| it == "Bearer hush"));
    assert_eq!(place.log().matches("ERROR").count(), 0, "{}", place.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn collector_that_is_away_costs_spans_only_and_the_log_says_so() {
    let place = Place::new(&["acme/one"], "L2: [acme/one]\n")
        .set("CRCR_ADMIN_LISTEN", "off")
        .set("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
        .set("OTEL_BSP_SCHEDULE_DELAY", "50");
    let relay = place.serving().await;
    let state = place.github.state();
    let pull = PullRequest::from_fork(7, UPSTREAM, &"a".repeat(40), Timestamp::now());
    state.world.put_pull(UPSTREAM, pull);
    let payload = state.pull_request_payload(UPSTREAM, 7, "opened");
    let delivery = state.world.delivery("pull_request", &payload);
    let target = relay.url.join("github/webhook").unwrap();
    let answer = delivery.send(&reqwest::Client::new(), &target).await.unwrap();
    assert_eq!(answer.status, 202);
    eventually("the backend got the dispatch", async || !state.world.take_dispatches().is_empty())
        .await;
    eventually("the log says it", async || place.log().contains("BatchSpanProcessor")).await;
}
