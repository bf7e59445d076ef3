//! What anybody can send raises no alert: a real relay is flooded, and Prometheus's own evaluator looks at what it then
//! counts.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
use std::process::Command;

use crcr_standin::world::PullRequest;
use jiff::Timestamp;
use reqwest::{Client, Method, StatusCode};

use crate::contracts::root;
use crate::relay_process::{Place, Running, UPSTREAM, eventually};

/// The samples of a scrape, by name and labels.
async fn scrape(relay: &Running) -> BTreeMap<String, f64> {
    let url = relay.admin.as_ref().unwrap().join("metrics").unwrap();
    let text = reqwest::get(url).await.unwrap().text().await.unwrap();
    let samples = text.lines().filter(|line| !line.starts_with('#') && !line.contains("_bucket"));
    samples
        .filter_map(|line| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        })
        .collect()
}

async fn flood(place: &Place, relay: &Running) {
    let client = Client::new();
    let state = place.github.state();
    // Held open, with half a request each.
    let address = relay.url.socket_addrs(|| None).unwrap()[0];
    let mut held = vec![];
    for _ in 0..50 {
        let mut half = TcpStream::connect(address).unwrap();
        half.write_all(b"POST /github/webhook HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n{")
            .unwrap();
        held.push(half);
    }
    for number in 0..150_u64 {
        let url = |path: &str| relay.url.join(path).unwrap();
        let unsigned = client
            .post(url("github/webhook"))
            .header("x-github-event", "pull_request")
            .header("x-github-delivery", number.to_string())
            .header("x-hub-signature-256", "sha256=00")
            .body("{}");
        assert_eq!(unsigned.send().await.unwrap().status(), StatusCode::UNAUTHORIZED);
        let foreign = crcr_standin::oidc::Issuer::sign_with_foreign_key(&serde_json::json!({
            "iss": state.origin(), "aud": "pytorch-cross-repo-ci-relay", "iat": Timestamp::now().as_second(),
            "exp": Timestamp::now().as_second() + 300, "repository": "acme/one", "n": number,
        }));
        for token in ["junk", &foreign] {
            let report = client.post(url("github/callback")).bearer_auth(token).body("{}");
            assert_eq!(report.send().await.unwrap().status(), StatusCode::UNAUTHORIZED);
        }
        let odd = Method::from_bytes(format!("M{number}").as_bytes()).unwrap();
        for (method, path) in [
            (Method::GET, format!("no/such/page/{number}")),
            (odd, "readyz".to_owned()),
            (Method::GET, "crcr".to_owned()),
            (Method::GET, "metrics".to_owned()),
        ] {
            // Whatever the answer is.
            let _ = client.request(method, url(&path)).send().await.unwrap();
        }
    }
    // Anybody may open pull requests upstream.
    for number in 1..40 {
        let head = format!("{number:040x}");
        state
            .world
            .put_pull(UPSTREAM, PullRequest::from_fork(number, UPSTREAM, &head, Timestamp::now()));
        let payload = state.pull_request_payload(UPSTREAM, number, "opened");
        let delivery = state.world.delivery("pull_request", &payload);
        let target = relay.url.join("github/webhook").unwrap();
        assert_eq!(delivery.send(&client, &target).await.unwrap().status, 202);
    }
    eventually("all are dispatched", async || {
        state.world.count("POST /repos/acme/one/dispatches") >= 39
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs promtool"]
async fn flood_of_a_stranger_raises_no_alert_and_makes_no_series_of_its_own() {
    let place = Place::new(&["acme/one"], "L4:\n  - acme/one: [dave]\n");
    let relay = place.serving().await;
    let before = scrape(&relay).await;
    flood(&place, &relay).await;
    let after = scrape(&relay).await;
    let requests = after.keys().filter(|name| name.starts_with("crcr_http_requests_total"));
    assert!(requests.clone().count() < 20, "{:?}", requests.collect::<Vec<_>>());
    assert!(
        after.contains_key(
            "crcr_http_requests_total{route=\"other\",method=\"GET\",status=\"404\"}"
        )
    );

    // What was counted goes on for an hour.
    let mut series = String::from("      - { series: 'up{job=\"crcr\"}', values: 1x60 }\n");
    for (name, value) in &after {
        let (metric, labels) = name.split_once('{').unwrap_or((name, "}"));
        let comma = if labels == "}" { "" } else { "," };
        let labelled = format!("{metric}{{job=\"crcr\"{comma}{labels}");
        let values = if metric.ends_with("_total") {
            let first = before.get(name).copied().unwrap_or_default();
            format!("{first}+{}x60", value - first)
        } else {
            format!("{value}x60")
        };
        writeln!(series, "      - {{ series: '{labelled}', values: '{values}' }}").unwrap();
    }
    let rules = root().join("deploy/prometheus/alerts.yml");
    let text = fs::read_to_string(&rules).unwrap();
    let alerts = text.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    let checks: String =
        alerts.map(|alert| format!("      - {{ eval_time: 50m, alertname: {alert} }}\n")).collect();
    assert!(checks.lines().count() > 10);
    let test = format!(
        "rule_files: ['{}']\nevaluation_interval: 1m\ntests:\n  - interval: 1m\n    input_series:\n{series}    \
         alert_rule_test:\n{checks}",
        rules.display()
    );
    let file = place.folder().join("flood.test.yml");
    fs::write(&file, &test).unwrap();
    let output = Command::new("promtool").args(["test", "rules"]).arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{test}");
    // A test that can't fail would be none.
    let wrong = test.replace(
        "crcr_ready{job=\"crcr\"}', values: '1x60'",
        "crcr_ready{job=\"crcr\"}', values: '0x60'",
    );
    assert_ne!(wrong, test);
    fs::write(&file, wrong).unwrap();
    let failed = Command::new("promtool").args(["test", "rules"]).arg(&file).output().unwrap();
    assert!(!failed.status.success());
}
