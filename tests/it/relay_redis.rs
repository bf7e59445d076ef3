//! `crcr relay serve` on a real Redis server: with TLS and a user of few rights, stopped, and with lost data.

use crcr_standin::world::PullRequest;
use crcr_testkit::redis::{RedisServer, RedisSettings};
use crcr_testkit::unused_port;
use jiff::Timestamp;
use reqwest::{Client, StatusCode};
use serde_json::Value;

use crate::relay_process::{Place, Running, UPSTREAM, eventually};
use crate::support::write_certificates;

fn place() -> Place {
    let place =
        Place::new(&["acme/one"], "L2: [acme/one]\n").set("CRCR_RESULTS", "sqlite:results.db");
    let pull = PullRequest::from_fork(7, UPSTREAM, &"a".repeat(40), Timestamp::now());
    place.github.state().world.put_pull(UPSTREAM, pull);
    place
}

async fn deliver(place: &Place, relay: &Running) -> reqwest::Response {
    let state = place.github.state();
    let payload = state.pull_request_payload(UPSTREAM, 7, "synchronize");
    let delivery = state.world.delivery("pull_request", &payload);
    let mut request = Client::new().post(relay.url.join("github/webhook").unwrap());
    for (name, value) in delivery.headers() {
        request = request.header(name, value);
    }
    request.body(delivery.body.clone()).send().await.unwrap()
}

/// What the relay tells its operators about itself.
async fn readiness(relay: &Running) -> Value {
    let url = relay.admin.as_ref().unwrap().join("readyz").unwrap();
    reqwest::get(url).await.unwrap().json().await.unwrap()
}

async fn metric(relay: &Running, name: &str) -> String {
    let url = relay.admin.as_ref().unwrap().join("metrics").unwrap();
    let text = reqwest::get(url).await.unwrap().text().await.unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name}: {text}")).to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs redis-server"]
async fn redis_behind_tls_with_a_user_of_few_rights_holds_the_state() {
    let place = place();
    write_certificates(place.folder());
    let tls_port = unused_port().to_string();
    let file = |name: &str| place.folder().join(name).to_str().unwrap().to_owned();
    // The rights that the operating page gives the user, and one without writing.
    let mut arguments = vec![
        "--tls-port".to_owned(),
        tls_port.clone(),
        "--tls-auth-clients".to_owned(),
        "no".to_owned(),
    ];
    for (option, name) in [
        ("--tls-cert-file", "server.pem"),
        ("--tls-key-file", "server.key"),
        ("--tls-ca-cert-file", "ca.pem"),
    ] {
        arguments.extend([option.to_owned(), file(name)]);
    }
    for user in [
        "--user relay on >s3cret ~{crcr}* +@all -@admin +config|get",
        "--user reader on >s3cret ~{crcr}* +@read +script +info +config|get",
    ] {
        arguments.extend(user.split(' ').map(str::to_owned));
    }
    let settings = RedisSettings { arguments, ..RedisSettings::default() };
    let _redis = RedisServer::start(settings).unwrap();
    let address = |user: &str| format!("rediss://{user}@localhost:{tls_port}");
    let ca = file("ca.pem");
    let place = place.set("CRCR_STORE", &address("relay:s3cret")).set("SSL_CERT_FILE", &ca);
    let mut relay = place.serving().await;
    assert_eq!(deliver(&place, &relay).await.status(), StatusCode::ACCEPTED);
    let world = &place.github.state().world;
    eventually("it is dispatched", async || !world.take_dispatches().is_empty()).await;
    relay.kill();

    let place = place.set("SSL_CERT_FILE", "");
    for (store, named) in [
        (address("relay:s3cret"), "certificate"),
        (address("relay:wrong"), "Redis refuses the login"),
        (address("reader:s3cret"), "lacks a permission"),
    ] {
        let is_certificate = named == "certificate";
        let place = &place;
        let mut check = place.crcr(&["relay", "serve", "--check"]);
        check.env("CRCR_STORE", &store);
        if !is_certificate {
            check.env("SSL_CERT_FILE", &ca);
        }
        let output = check.output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{store}: {text}");
        assert!(text.contains(named), "{store}: {text}");
        assert!(text.contains("CRCR_STORE") && !text.contains("s3cret"), "{store}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs redis-server"]
async fn webhook_while_redis_is_away_is_503_with_retry_after_and_is_accepted_afterwards() {
    let mut redis = RedisServer::start(RedisSettings::default()).unwrap();
    let place = place().on_redis(&redis);
    let relay = place.serving().await;
    assert_eq!(readiness(&relay).await["store_promises_less"], Value::Null);
    assert_eq!(metric(&relay, "crcr_store_durable").await, "1");
    redis.kill().unwrap();
    let refused = deliver(&place, &relay).await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(refused.headers()["retry-after"], "5");
    // Whether it can be written is tried every few seconds.
    eventually("it isn't ready, and says why", async || {
        let ready = readiness(&relay).await;
        ready["ready"] == false && ready["store"].as_str().unwrap().contains("Redis")
    })
    .await;
    // Its metrics say the same, so that an outage of Redis doesn't look like one of the relay.
    assert_eq!(metric(&relay, "crcr_ready").await, "0");
    redis.again().unwrap();
    relay.ready().await;
    assert_eq!(deliver(&place, &relay).await.status(), StatusCode::ACCEPTED);
    assert_eq!(metric(&relay, "crcr_store_losses").await, "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs redis-server"]
async fn work_that_redis_forgot_is_reported_by_log_readiness_and_metric() {
    let settings = RedisSettings { is_durable: false, ..RedisSettings::default() };
    let mut redis = RedisServer::start(settings).unwrap();
    let place = place().on_redis(&redis);
    let relay = place.serving().await;
    let ready = readiness(&relay).await;
    assert!(ready["store_promises_less"].as_str().unwrap().contains("appendonly"), "{ready}");
    assert_eq!(ready["store_lost"], Value::Null);
    assert_eq!(metric(&relay, "crcr_store_durable").await, "0");
    assert_eq!(deliver(&place, &relay).await.status(), StatusCode::ACCEPTED);
    redis.kill().unwrap();
    redis.again().unwrap();
    eventually("the relay has noticed", async || readiness(&relay).await["store_lost"].is_string())
        .await;
    assert_eq!(metric(&relay, "crcr_store_losses").await, "1");
    assert!(place.log().contains("lost all data"), "{}", place.log());
    // Strangers learn that something was lost, and nothing about the server.
    let public = reqwest::get(relay.url.join("readyz").unwrap()).await.unwrap();
    let public: Value = public.json().await.unwrap();
    assert_eq!(
        (&public["store_lost"], &public["store_promises_less"]),
        (&"data-lost".into(), &"weaker".into())
    );
}
