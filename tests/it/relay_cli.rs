//! `crcr relay`: the server as a process, and its subcommands.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::Duration;

use crcr_standin::traffic::Fault;
use crcr_standin::world::{Answer, HookSettings, PullRequest};
use crcr_store::{SqliteStore, StoreRole};
use jiff::Timestamp;
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::oidc_configure::Moto;
use crate::relay_process::{Place, Running, UPSTREAM, eventually};
use crate::support::Crcr;

const ALL: [&str; 3] = ["acme/one", "acme/two", "acme/four"];
const ALLOWLIST: &str = "L1: [acme/one]\nL2: [acme/two]\nL4:\n  - acme/four: [dave]\n";
const HEAD: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

fn place() -> Place {
    let place = Place::new(&ALL, ALLOWLIST);
    let pull = PullRequest::from_fork(7, UPSTREAM, HEAD, Timestamp::now());
    place.github.state().world.put_pull(UPSTREAM, pull);
    place
}

fn payload(place: &Place) -> Value {
    place.github.state().pull_request_payload(UPSTREAM, 7, "opened")
}

/// Opens pull request 7; returns the delivery's id and the response.
async fn open(place: &Place, relay: &Running) -> (String, Answer) {
    let delivery = place.github.state().world.delivery("pull_request", &payload(place));
    let target = relay.url.join("github/webhook").unwrap();
    let answer = delivery.send(&reqwest::Client::new(), &target).await.unwrap();
    (delivery.id, answer)
}

async fn get(url: &url::Url, path: &str) -> (StatusCode, String) {
    let response = reqwest::get(url.join(path).unwrap()).await.unwrap();
    (response.status(), response.text().await.unwrap())
}

/// Waits for the dispatches to these repositories, and for nothing else.
async fn dispatched(place: &Place, expected: &[&str]) {
    let mut found = vec![];
    eventually("the dispatches", async || {
        let dispatches = place.github.state().world.take_dispatches();
        found.extend(dispatches.into_iter().map(|dispatch| dispatch.repository));
        found.len() >= expected.len()
    })
    .await;
    found.sort();
    assert_eq!(found, expected);
}

/// `crcr relay deliveries show ID --format json`, waited for until no dispatch is queued.
async fn settled(place: &Place, id: &str) -> Value {
    let mut shown = Value::Null;
    eventually("every dispatch is settled", async || {
        let args = ["relay", "deliveries", "show", id, "--format", "json"];
        let (stdout, _) = place.run_to(0, &args);
        shown = serde_json::from_str(&stdout).unwrap();
        !stdout.contains("\"queued\"")
    })
    .await;
    shown
}

#[test]
fn check_lists_all_missing_and_invalid_settings() {
    let ran = Crcr::new(&["relay", "serve", "--check"])
        .env("CRCR_STORE", "mongodb://somewhere")
        .env("RATE_LIMIT_PER_MIN", "0")
        .env("GITHUB_APP_PRIVATE_KEY_FILE", "/nowhere/key.pem")
        .env("HUD_API_URL", "https://hud.example.com/api")
        .run();
    insta::assert_snapshot!(ran.report());
}

/// The name that is misspelled explains why another one is missing.
#[test]
fn misspelled_setting_is_named_beside_what_is_missing_for_it() {
    let place = place().set("CRCR_STORE", "redis://127.0.0.1:1").set("CRCR_RESULT", "sqlite:r.db");
    let (code, _, stderr) = place.run(&["relay", "serve"]);
    assert!(code == 1 && stderr.contains("CRCR_RESULTS: missing beside a Redis store"), "{stderr}");
    assert!(stderr.contains("CRCR_RESULT: no setting has this name, did you mean `CRCR_RESULTS`?"));
    assert!(stderr.contains("2 settings are missing or can't be used"), "{stderr}");
}

#[test]
fn values_that_no_relay_can_use_are_refused() {
    let place = place();
    let repository = ["relay", "repository", "confirm", "acme/one", "--id", "0"];
    let size = ["relay", "size", "--pulls", "1", "--backends", "2", "--check-runs", "3"];
    for (args, expected) in [
        (&repository[..], "'--id <NUMBER>': expected a number from 1 up"),
        (&size, "`--check-runs` is more than `--backends`"),
        (
            &["relay", "size", "--pulls", "0"],
            "'--pulls <N>': expected a number from 1 to 1,000,000",
        ),
        (&["relay", "simulate", "--seeds", "0"], "'--seeds <COUNT>': expected a number from 1 up"),
        (&["relay", "restore", "--since", "2026-11-25"], "a time such as 2026-11-25T09:00Z"),
        (&["relay", "sweep", "--store", "mysql:x"], "`--store`: expected sqlite:PATH"),
        (&["relay", "import", "--results", "mysql:x", "-"], "error[results]: `--results`: "),
    ] {
        let (code, stdout, stderr) = place.run(args);
        assert!(code > 0 && stderr.contains(expected), "{args:?}: {stdout}{stderr}");
    }
    // What names it is the flag or the variable that has the value.
    let place = place.set("CRCR_STORE", "mysql:x").set("CRCR_RESULTS", "mysql:x");
    for (args, expected) in [
        (&["relay", "sweep"][..], "error[store]: CRCR_STORE: expected sqlite:PATH"),
        (&["relay", "import", "-"], "error[results]: CRCR_RESULTS: "),
    ] {
        let (code, stdout, stderr) = place.run(args);
        assert!(code == 1 && stderr.contains(expected), "{args:?}: {stdout}{stderr}");
    }
}

#[test]
fn check_accepts_valid_settings_without_serving() {
    let place = place();
    let (code, stdout, stderr) = place.run(&["relay", "serve", "--check"]);
    assert_eq!((code, stdout.as_str()), (0, ""), "{stderr}");
    assert!(stderr.contains("all settings work"), "{stderr}");
}

#[test]
#[ignore = "needs moto_server"]
fn settings_of_a_secret_count_and_a_secret_that_cannot_be_had_is_named() {
    let moto = Moto::start();
    let create = reqwest::blocking::Client::new()
        .post(&moto.1)
        .header("x-amz-target", "secretsmanager.CreateSecret")
        .header("content-type", "application/x-amz-json-1.1")
        .header(
            "authorization",
            "AWS4-HMAC-SHA256 Credential=key/20261101/us-east-1/secretsmanager/aws4_request",
        )
        .body(
            json!({ "Name": "relay", "SecretString": r#"{"CRCR_PUBLIC_URL": "relay"}"# })
                .to_string(),
        );
    let created: Value = create.send().unwrap().json().unwrap();
    let arn = created["ARN"].as_str().expect("moto creates it").to_owned();
    let place = place()
        .set("AWS_ENDPOINT_URL_SECRETS_MANAGER", &moto.1)
        .set("AWS_ACCESS_KEY_ID", "key")
        .set("AWS_SECRET_ACCESS_KEY", "secret")
        .set("SECRET_STORE_ARN", &arn);
    let (_, stderr) = place.run_to(1, &["relay", "serve", "--check"]);
    assert!(stderr.contains("CRCR_PUBLIC_URL"), "the secret's value counts: {stderr}");
    let other = arn.replace("relay", "other");
    let place = place.set("SECRET_STORE_ARN", &other);
    let (_, stderr) = place.run_to(2, &["relay", "serve", "--check"]);
    for told in
        [&*other, "AWS refused", "ResourceNotFoundException", "secretsmanager:GetSecretValue"]
    {
        assert!(stderr.contains(told), "{told} is not in {stderr}");
    }
}

#[test]
fn check_finds_what_keeps_webhooks_from_arriving() {
    let place = place()
        .set("CRCR_PUBLIC_UR", "https://relay.example.com")
        .set("CRCR_CALLBACK_KEYS_FILE", "/run/secrets/key")
        .set("CRCR_RATE_LIMIT_PER_MIN", "60")
        .set("ALLOWLIST_TTL_SECOND", "900")
        .set("CRCR_SPLENDID", "on");
    place.github.state().world.set_hook_settings(HookSettings {
        url: "https://old.example.com/hook".to_owned(),
        content_type: "form".to_owned(),
        verifies_certificates: false,
        events: vec!["push".to_owned()],
    });
    place.github.state().world.remove_hook_secret();
    let (_, stderr) = place.run_to(1, &["relay", "serve", "--check"]);
    for told in [
        "the App isn't subscribed to pull_request, check_run, check_suite",
        "GitHub sends it as `form`: set the content type to application/json",
        "GitHub sends it to `https://old.example.com/hook`",
        "the App's webhook: it has no secret",
        "enable SSL verification",
        "the App isn't subscribed to all events of CRCR_WEBHOOK_EVENTS",
        "pull_request, workflow_job, workflow_run",
        "CRCR_PUBLIC_UR: no setting has this name, did you mean `CRCR_PUBLIC_URL`?",
        "CRCR_CALLBACK_KEYS_FILE: no setting has this name, did you mean `CRCR_CALLBACK_KEY_FILE`?",
        "CRCR_RATE_LIMIT_PER_MIN: no setting has this name, did you mean `RATE_LIMIT_PER_MIN`?",
        "ALLOWLIST_TTL_SECOND: no setting has this name, did you mean `ALLOWLIST_TTL_SECONDS`?",
        "CRCR_SPLENDID: no setting has this name\n",
    ] {
        assert!(stderr.contains(told), "{told} is not in {stderr}");
    }
    let place = self::place().set("CRCR_PUBLIC_URL", "https://relay.example.com");
    let (code, _, stderr) = place.run(&["relay", "serve", "--check"]);
    assert_eq!(code, 0, "the address fits: {stderr}");
    place.github.state().world.set_hook_settings(HookSettings {
        url: "https://Relay.Example.com:443/github/webhook".to_owned(),
        ..HookSettings::default()
    });
    let (code, _, stderr) = place.run(&["relay", "serve", "--check"]);
    assert_eq!(code, 0, "it is the same address: {stderr}");
    let place = place.set("CRCR_PUBLIC_URL", "https://other.example.com");
    let (code, _, stderr) = place.run(&["relay", "serve", "--check"]);
    assert!(code == 1 && stderr.contains("expected https://other.example.com/github/webhook"));
}

#[test]
fn check_finds_a_log_filter_that_would_log_nothing_and_a_collector_without_a_scheme() {
    let (code, _, stderr) = place().set("CRCR_LOG", "verbose").run(&["relay", "serve", "--check"]);
    assert!(code == 1 && stderr.contains("CRCR_LOG: `verbose` is neither one of"), "{stderr}");
    let place = place().set("OTEL_EXPORTER_OTLP_ENDPOINT", "127.0.0.1:4318");
    let (_, stderr) = place.run_to(1, &["relay", "serve", "--check"]);
    assert!(stderr.contains("OTEL_EXPORTER_OTLP_ENDPOINT: "), "{stderr}");
    assert!(stderr.contains("1 setting does not work"), "{stderr}");
}

/// On many clouds, a machine doesn't have its public address itself.
#[test]
fn check_finds_a_listener_at_an_address_of_another_machine() {
    let place = place().set("CRCR_LISTEN", "192.0.2.1:8080").set("CRCR_ADMIN_LISTEN", "8081");
    let (_, stderr) = place.run_to(1, &["relay", "serve", "--check"]);
    for told in [
        "CRCR_LISTEN: `192.0.2.1:8080` isn't an address of this machine",
        "CRCR_ADMIN_LISTEN: `8081` can't be resolved as HOST:PORT",
    ] {
        assert!(stderr.contains(told), "{told} is not in {stderr}");
    }
}

#[test]
fn check_finds_an_external_hud_that_takes_no_results() {
    let hud = place().set("INTERNAL_API_TOKEN", "the-hud-key");
    let mut running = hud.serve();
    let check = |path: &str, key: &str| {
        let address = running.url.join(path).unwrap();
        let place = place().set("HUD_API_URL", address.as_str()).set("HUD_BOT_KEY", key);
        place.run(&["relay", "serve", "--check"])
    };
    let (code, _, stderr) = check("api", "the-hud-key");
    assert_eq!(code, 0, "{stderr}");
    let (code, _, stderr) = check("api", "an-old-key");
    assert!(code == 1 && stderr.contains("HUD_BOT_KEY: the HUD refuses it"), "{stderr}");
    assert!(!stderr.contains("an-old-key"), "{stderr}");
    let (code, _, stderr) = check("", "the-hud-key");
    assert!(code == 1 && stderr.contains("HUD_API_URL: `http://127.0.0.1"), "{stderr}");
    running.kill();
}

#[test]
fn check_tells_how_to_find_the_new_name_of_a_renamed_upstream() {
    let place = place();
    place.github.state().world.rename_repo(UPSTREAM, "acme/renamed");
    let (_, stderr) = place.run_to(1, &["relay", "serve", "--check"]);
    let told = format!("the name that `gh api repos/{UPSTREAM} --jq .full_name` prints");
    assert!(stderr.contains(&told), "{stderr}");
}

#[test]
fn check_names_the_backend_whose_buildkite_pipeline_is_not_mapped() {
    let place = place();
    let map = "buildkite: {org-1/pipe-1: acme/two}";
    let world = &place.github.state().world;
    world.add_repo("pytorch/test-infra");
    let path = "aws/lambda/cross_repo_ci_relay/config/ci_providers.yml";
    world.put_file("pytorch/test-infra", path, map);
    let (_, stderr) = place.run_to(1, &["relay", "serve", "--check"]);
    let told = "CI_PROVIDERS_URL: `acme/two` is on the allowlist and reports from Buildkite";
    assert!(stderr.contains(told), "{stderr}");
    std::fs::write(place.folder().join("providers.yml"), map).unwrap();
    let place = place.set("CI_PROVIDERS_URL", "file:providers.yml");
    place.run_to(0, &["relay", "serve", "--check"]);
}

#[test]
fn check_rejects_a_broken_allowlist_and_an_invalid_key() {
    let place = place();
    std::fs::write(place.folder().join("allowlist.yml"), "L9: [acme/one]\n").unwrap();
    let (_, stderr) = place.run_to(1, &["relay", "serve", "--check"]);
    assert!(stderr.contains("allowlist") && stderr.contains("hint"), "{stderr}");
    let place = place.set("GITHUB_APP_PRIVATE_KEY", "not-even-a-key");
    let (_, stderr) = place.run_to(1, &["relay", "serve", "--check"]);
    assert!(!stderr.contains("not-even-a-key"), "{stderr}");
    let public = place.github.state().world.app().private_key.replace("PRIVATE", "PUBLIC");
    let place = place.set("GITHUB_APP_PRIVATE_KEY", &public);
    let (code, _, stderr) = place.run(&["relay", "serve", "--check"]);
    let told = "GITHUB_APP_PRIVATE_KEY: the App's private key is a public key";
    assert!(code == 1 && stderr.contains(told), "{stderr}");
    assert!(!stderr.contains("GITHUB_APP_ID"), "{stderr}");
}

#[test]
fn check_writes_to_the_store_the_results_and_the_archive() {
    let place = place()
        .set("CRCR_RESULTS", "sqlite:/dev/null/results.db")
        .set("CRCR_ARCHIVE", "file:/dev/null/archive");
    drop(SqliteStore::open(&place.database(), StoreRole::Server).unwrap());
    let full = "CREATE TRIGGER full BEFORE INSERT ON record BEGIN SELECT RAISE(ABORT, 'full'); END";
    rusqlite::Connection::open(place.database()).unwrap().execute(full, []).unwrap();
    let (_, stderr) = place.run_to(1, &["relay", "serve", "--check"]);
    for told in [
        "3 settings do not work",
        "CRCR_STORE: `crcr.db`: ",
        "full",
        "CRCR_RESULTS: `/dev/null/results.db`: ",
        "CRCR_ARCHIVE: `file:/dev/null/archive`: ",
    ] {
        assert!(stderr.contains(told), "{told} is not in {stderr}");
    }
    let place = self::place()
        .set("CRCR_RESULTS", "sqlite:results.db")
        .set("CRCR_ARCHIVE", "s3://bucket")
        .set("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
        .set("AWS_REGION", "us-east-1")
        .set("AWS_ACCESS_KEY_ID", "key")
        .set("AWS_SECRET_ACCESS_KEY", "secret");
    let (code, _, stderr) = place.run(&["relay", "serve", "--check"]);
    assert!(code == 1 && stderr.contains("1 setting does not work"), "{stderr}");
    assert!(stderr.contains("CRCR_ARCHIVE: `s3://bucket`: "), "{stderr}");
    let place = place.set("CRCR_ARCHIVE", "file:archive");
    place.run_to(0, &["relay", "serve", "--check"]);
}

#[tokio::test]
async fn check_lists_all_problems_while_a_relay_is_running() {
    let place = place();
    let _relay = place.serving().await;
    let (code, _, stderr) = place.run(&["relay", "serve", "--check"]);
    assert_eq!(code, 0, "the store is in use and good: {stderr}");
    place.github.state().world.install_with(UPSTREAM, &[("checks", "write"), ("contents", "read")]);
    std::fs::write(place.folder().join("allowlist.yml"), "L9: [acme/one]\n").unwrap();
    let place = place
        .set("CRCR_STORE", "sqlite:/nowhere/crcr.db")
        .set("CRCR_LISTEN", "everywhere")
        .set("CI_PROVIDERS_URL", "file:/nowhere/providers.yml")
        .set("CRCR_OIDC_ISSUERS", "http://127.0.0.1:1");
    let (_, stderr) = place.run_to(1, &["relay", "serve", "--check"]);
    for told in [
        "8 settings do not work",
        "CRCR_STORE: `/nowhere/crcr.db`",
        "CRCR_LISTEN: `everywhere` can't be resolved",
        "CRCR_OIDC_ISSUERS: the keys of `http://127.0.0.1:1` can't be fetched",
        "UPSTREAM_REPO: the App has `actions: none`, and needs `write`",
        "UPSTREAM_REPO: the App has `contents: read`, and needs `write`",
        "UPSTREAM_REPO: the App has `pull_requests: none`, and needs `read`",
        "ALLOWLIST_URL: the newest version has 1 error in line 1: ",
        "CI_PROVIDERS_URL: ",
    ] {
        assert!(stderr.contains(told), "{told} is not in {stderr}");
    }
    let place = place.set("GITHUB_APP_ID", "999");
    let (_, _, stderr) = place.run(&["relay", "serve", "--check"]);
    assert!(stderr.contains("GITHUB_APP_ID: not the App of this private key"), "{stderr}");
}

#[tokio::test]
async fn serve_listens_on_free_ports_and_stops_on_sigterm() {
    let place = place().set("MAX_CLEANUP_WORKERS", "3");
    let mut relay = place.serve();
    assert_ne!(relay.url.port(), Some(0));
    assert_eq!(get(&relay.url, "healthz").await, (StatusCode::OK, r#"{"ok":true}"#.to_owned()));
    relay.ready().await;
    let admin = relay.admin.clone().unwrap();
    let (status, text) = get(&admin, "metrics").await;
    assert!(status == StatusCode::OK && text.contains("crcr_allowlist_repositories 3"), "{text}");
    assert_eq!(get(&relay.url, "metrics").await.0, StatusCode::NOT_FOUND);
    // A second relay on the same file is refused.
    let (code, _, stderr) = place.run(&["relay", "serve"]);
    assert!(code == 2 && stderr.contains("another relay is using the store"), "{code}: {stderr}");
    relay.terminate();
    assert_eq!(relay.end(Duration::from_secs(5)).await, 0, "{}", place.log());
    assert!(place.log().contains("stopped; open work continues"), "{}", place.log());
    assert!(place.log().contains(r#""setting":"MAX_CLEANUP_WORKERS""#), "{}", place.log());
    assert!(reqwest::get(relay.url.join("healthz").unwrap()).await.is_err(), "it is gone");
}

/// Its file was deleted, or it looks at another place than before.
#[tokio::test]
async fn relay_says_that_its_store_is_new_and_not_that_a_known_one_is() {
    let place = place();
    let told = || place.log().matches("the store is new and empty").count();
    for (deleted, expected) in [(false, 1), (false, 1), (true, 2)] {
        if deleted {
            for end in ["", "-wal", "-shm"] {
                // The last connection may have removed it.
                let _ = std::fs::remove_file(place.folder().join(format!("crcr.db{end}")));
            }
        }
        let mut relay = place.serving().await;
        relay.kill();
        assert_eq!(told(), expected, "{}", place.log());
    }
    assert!(place.log().contains(r#""store":"sqlite:crcr.db""#), "{}", place.log());
}

/// Programs that collect logs read JSON only, such as the CloudWatch filter of deploy/terraform/alarms.tf.
#[tokio::test]
async fn logs_of_the_server_are_json_whatever_is_chosen_to_be_logged() {
    let place = place().set("CRCR_LOG", "info");
    let mut relay = place.serving().await;
    relay.kill();
    let log = place.log();
    let levels = log.lines().map(|line| {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
        line["level"].as_str().unwrap().to_owned()
    });
    assert!(levels.collect::<Vec<_>>().contains(&"INFO".to_owned()), "{log}");
    let (code, _, stderr) = place.run(&["relay", "serve", "--check", "-vv"]);
    let is_json = |line: &&str| serde_json::from_str::<Value>(line).is_ok();
    let others: Vec<_> = stderr.lines().filter(|line| !is_json(line)).collect();
    assert_eq!((code, others), (0, vec!["all settings work"]), "{stderr}");
}

#[tokio::test]
async fn incomplete_request_doesnt_delay_the_shutdown() {
    let place = place();
    let mut relay = place.serve();
    let address = relay.url.socket_addrs(|| None).unwrap()[0];
    let mut slow = TcpStream::connect(address).unwrap();
    slow.write_all(b"POST /github/webhook HTTP/1.1\r\ncontent-length: 10\r\nhost: a\r\n\r\n{")
        .unwrap();
    relay.ready().await;
    relay.terminate();
    assert_eq!(relay.end(Duration::from_secs(20)).await, 0, "{}", place.log());
}

#[tokio::test]
async fn broken_allowlist_is_reported_and_the_last_valid_one_stays_in_force() {
    let place = place();
    let relay = place.serve();
    // The first webhook after the start finds the allowlist in force.
    assert_eq!(open(&place, &relay).await.1.status, 202);
    dispatched(&place, &["acme/four", "acme/one", "acme/two"]).await;
    let admin = relay.admin.clone().unwrap();
    let file = place.folder().join("allowlist.yml");
    std::fs::write(&file, "L9: [acme/one]\n").unwrap();
    eventually("the operators are told", async || {
        get(&admin, "metrics").await.1.contains("crcr_allowlist_good 0")
    })
    .await;
    let told = get(&admin, "readyz").await.1;
    assert!(told.contains("the newest version has"), "{told}");
    let told = get(&relay.url, "readyz").await.1;
    assert!(told.contains(r#""problem":"broken""#), "{told}");
    assert!(place.log().contains("the allowlist is invalid"), "{}", place.log());
    let (_, answer) = open(&place, &relay).await;
    assert_eq!((answer.status, &answer.body["tasks"]), (202, &json!(4)));
    dispatched(&place, &["acme/four", "acme/one", "acme/two"]).await;
    std::fs::write(&file, "L2: [acme/two]\n").unwrap();
    eventually("the repaired one is in force", async || {
        let metrics = get(&admin, "metrics").await.1;
        metrics.contains("crcr_allowlist_good 1")
            && metrics.contains("crcr_allowlist_repositories 1")
    })
    .await;
}

#[tokio::test]
async fn accepted_events_are_dispatched_after_a_restart() {
    let place = place();
    let fault = Fault::Answer {
        status: StatusCode::BAD_GATEWAY,
        retry_after: Some(1),
        body: String::new(),
    };
    place.github.state().world.fail("POST /repos/acme/two/dispatches", 1, fault);
    let mut relay = place.serving().await;
    let (id, answer) = open(&place, &relay).await;
    assert_eq!((answer.status, &answer.body["ok"]), (202, &json!(true)));
    dispatched(&place, &["acme/four", "acme/one"]).await;
    relay.terminate();
    assert_eq!(relay.end(Duration::from_secs(15)).await, 0);
    let (_, stdout, _) = place.run(&["relay", "deliveries", "show", &id]);
    assert!(stdout.contains("acme/two queued after 1 try"), "{stdout}");
    let _relay = place.serve();
    dispatched(&place, &["acme/two"]).await;
}

#[tokio::test]
async fn secrets_are_read_from_files_and_never_printed() {
    let hud = place().set("INTERNAL_API_TOKEN", "the-hud-key");
    let mut hud = hud.serve();
    let place = place()
        .set("CRCR_ADMIN_TOKEN", "the-admins-token")
        .set("CRCR_CALLBACK_KEY", "the-callback-key")
        .set("HUD_API_URL", hud.url.join("api").unwrap().as_str())
        .set("HUD_BOT_KEY", "the-hud-key")
        .set("CRCR_LOG", "trace");
    let app = place.github.state().world.app();
    let mut secrets = vec![app.webhook_secret.clone()];
    secrets
        .extend(app.private_key.lines().filter(|line| !line.starts_with('-')).map(str::to_owned));
    secrets.extend(["the-admins-token", "the-callback-key", "the-hud-key"].map(str::to_owned));
    // Installation tokens and the App's own.
    secrets.extend(["ghs_", "eyJ"].map(str::to_owned));
    let place = [
        "GITHUB_APP_SECRET",
        "GITHUB_APP_PRIVATE_KEY",
        "CRCR_ADMIN_TOKEN",
        "CRCR_CALLBACK_KEY",
        "HUD_BOT_KEY",
    ]
    .into_iter()
    .fold(place, Place::move_to_file);
    let mut relay = place.serving().await;
    let (id, answer) = open(&place, &relay).await;
    assert_eq!(answer.status, 202, "the secret of the file holds");
    dispatched(&place, &["acme/four", "acme/one", "acme/two"]).await;
    let metrics = relay.url.join("metrics").unwrap();
    let client = reqwest::Client::new();
    let with = async |token| client.get(metrics.clone()).bearer_auth(token).send().await.unwrap();
    assert_eq!(with("the-admins-token").await.status(), StatusCode::OK);
    assert_eq!(with("eyJ-wrong").await.status(), StatusCode::NOT_FOUND);
    let callback = client.post(relay.url.join("github/callback").unwrap());
    let refused = callback.bearer_auth("eyJhbGciOiJub25lIn0.e30.").body("{}").send().await.unwrap();
    assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
    let mut said = refused.text().await.unwrap();
    settled(&place, &id).await;
    relay.terminate();
    relay.end(Duration::from_secs(15)).await;
    for args in [&["relay", "deliveries", "list"][..], &["relay", "serve", "--check"]] {
        let (stdout, stderr) = place.run_to(0, args);
        said.extend([stdout, stderr]);
    }
    said.push_str(&place.log());
    assert!(said.contains(&id), "it logs what it does");
    for secret in secrets {
        let found = said.lines().find(|line| line.contains(&secret));
        assert_eq!(found, None, "`{secret}` was printed");
    }
    hud.kill();
}

#[tokio::test]
async fn replayed_payloads_are_signed_and_dispatched_once() {
    let place = place();
    let mut relay = place.serving().await;
    std::fs::write(place.folder().join("opened.json"), payload(&place).to_string()).unwrap();
    let url = relay.url.to_string();
    let args = ["relay", "replay", "--url", &url, "opened.json", "opened.json"];
    let (code, stdout, stderr) = place.run(&args);
    assert_eq!(code, 0, "{stderr}");
    let answers: Vec<_> = stdout.lines().collect();
    assert_eq!(answers.len(), 2);
    assert!(answers[0].starts_with("opened.json: {") && answers[0].contains(r#""tasks":4"#));
    assert_eq!(answers[1], r#"opened.json: {"ok":true,"duplicate":true}"#);
    dispatched(&place, &["acme/four", "acme/one", "acme/two"]).await;
    // A wrong secret is exit code 1, an unreachable relay is exit code 2.
    let place = place.set("GITHUB_APP_SECRET", "another");
    let (code, _, stderr) = place.run(&args);
    assert!(code == 1 && stderr.contains("Bad signature"), "{code}: {stderr}");
    let (code, _, stderr) = place.run(&["relay", "replay", "--url", &url, "closed.json"]);
    assert!(code == 1 && stderr.contains("`closed.json` can't be read"), "{code}: {stderr}");
    relay.kill();
    let (code, _, stderr) = place.run(&args);
    assert!(code == 2 && stderr.contains("no answer"), "{code}: {stderr}");
}

#[tokio::test]
async fn delivery_that_no_backend_takes_is_listed_with_no_dispatch() {
    let place = Place::new(&[], "L1:\n  - acme/one: {events: [nightly]}\n");
    let pull = PullRequest::from_fork(7, UPSTREAM, HEAD, Timestamp::now());
    place.github.state().world.put_pull(UPSTREAM, pull);
    let relay = place.serving().await;
    let (_, answer) = open(&place, &relay).await;
    assert_eq!(answer.status, 202);
    let (stdout, _) = place.run_to(0, &["relay", "deliveries", "list"]);
    assert!(stdout.trim_end().ends_with("pull_request #7: no dispatch"), "{stdout}");
}

#[test]
fn file_that_is_not_a_store_is_told_once_with_what_to_check() {
    let (_, stderr) = place().run_to(2, &["relay", "sweep", "--store", "sqlite:allowlist.yml"]);
    insta::assert_snapshot!(stderr, @r"
    error[store-unavailable]: the store can't be used
      because: `allowlist.yml`: file is not a database
    hint: check `--store`, the space on its disk, or its Redis server
    ");
}

#[tokio::test]
async fn deliveries_can_be_listed_and_redelivered_with_the_relay_running_or_stopped() {
    let place = place();
    let body = json!({ "message": "Not Found" }).to_string();
    let fault = Fault::Answer { status: StatusCode::UNPROCESSABLE_ENTITY, retry_after: None, body };
    let world = &place.github.state().world;
    world.fail("POST /repos/acme/two/dispatches", 2, fault);
    let (code, _, stderr) = place.run(&["relay", "deliveries", "list"]);
    assert!(code == 1 && stderr.contains("no store exists at `crcr.db`"), "{code}: {stderr}");
    // What a copy to a full disk leaves isn't a store in which nothing is.
    std::fs::write(place.folder().join("empty.db"), "").unwrap();
    for args in [&["relay", "deliveries", "list"][..], &["relay", "backup", "copy"]] {
        let args = [args, &["--store", "sqlite:empty.db"]].concat();
        let (code, _, stderr) = place.run(&args);
        assert!(code == 1 && stderr.contains("exists at `empty.db`"), "{args:?}: {stderr}");
    }
    let mut relay = place.serving().await;
    for (what, said) in
        [("deliveries", "no webhook is stored"), ("repository", "no name is pinned")]
    {
        let (code, stdout, stderr) = place.run(&["relay", what, "list"]);
        assert!(code == 0 && stdout.is_empty() && stderr.contains(said), "{stderr}");
    }
    let (id, _) = open(&place, &relay).await;
    dispatched(&place, &["acme/four", "acme/one"]).await;
    let show = |what: Value| {
        let of = |repo: &str| {
            let all = what["dispatches"].as_array().unwrap();
            all.iter().find(|one| one["repo"] == repo).unwrap().to_string()
        };
        (of("acme/one"), of("acme/two"))
    };
    let (one, two) = show(settled(&place, &id).await);
    assert!(one.contains("sent") && two.contains("unreachable"), "{one} {two}");
    let (_, listed, _) = place.run(&["relay", "deliveries", "list"]);
    let lines: Vec<_> = listed.lines().collect();
    assert!(lines[0].starts_with(&id) && lines[0].contains("pull_request #7"), "{listed}");
    assert!(lines[0].contains("2 sent") && lines[0].contains("1 unreachable"), "{listed}");
    assert_eq!(lines.len(), 1, "a broken backend is no dead letter: {listed}");
    // While the relay runs: it dispatches immediately, and GitHub refuses a second time.
    let again = ["relay", "deliveries", "redeliver", &id, "--repo", "acme/two"];
    assert_eq!(place.run(&again).1, "1 dispatch was put back into the queue\n");
    eventually("the second refusal", async || world.count("POST /repos/acme/two/dispatches") == 2)
        .await;
    settled(&place, &id).await;
    relay.terminate();
    assert_eq!(relay.end(Duration::from_secs(15)).await, 0);
    // While the relay is stopped: only this one is dispatched after the next start.
    assert_eq!(place.run(&again).1, "1 dispatch was put back into the queue\n");
    let _relay = place.serve();
    dispatched(&place, &["acme/two"]).await;
    settled(&place, &id).await;
    assert_eq!(place.run(&again).1, "0 dispatches were put back into the queue\n");
    // No task is dead.
    let discard = ["relay", "deliveries", "discard", r#"["dispatch","x","acme/two"]"#];
    let (code, _, stderr) = place.run(&discard);
    assert!(code == 1 && stderr.contains("dead task"), "{code}: {stderr}");
    let discard = ["relay", "deliveries", "discard", "--repo", "acme/two"];
    assert_eq!(place.run(&discard).1, "0 tasks of `acme/two` were discarded\n");
    let (code, _, stderr) = place.run(&["relay", "deliveries", "show", "unknown"]);
    assert!(code == 1 && stderr.contains("no delivery `unknown` is stored"), "{code}: {stderr}");
    let (code, _, stderr) = place.run(&["relay", "deliveries", "redeliver", &id, "--repo", "two"]);
    assert!(code == 2 && stderr.contains("'two' for '--repo <OWNER/REPO>'"), "{code}: {stderr}");
}

#[tokio::test]
async fn repository_that_the_hud_does_not_know_is_reviewed_over_a_time_like_any_other() {
    let place = place();
    let relay = place.serving().await;
    std::fs::write(place.folder().join("next.yml"), "L2: [acme/two, acme/stranger]\n").unwrap();
    let hud = relay.url.as_str();
    let args = ["levels", "review", "--results", hud, "--allowlist", "next.yml"];
    let (code, stdout, stderr) = place.run(&[&args[..], &["--format", "json"]].concat());
    assert_eq!(code, 0, "{stderr}");
    let document: Value = serde_json::from_str(&stdout).unwrap();
    let reviews = document["repositories"].as_array().unwrap();
    assert_eq!(reviews.len(), 2, "{stdout}");
    for review in reviews {
        let (from, to) = (review["from"].as_str().unwrap(), review["to"].as_str().unwrap());
        assert!(from.ends_with(":00:00Z") && !to.contains('.'), "{review}");
    }
}

#[tokio::test]
async fn sweep_checks_open_dispatches_immediately() {
    let place = place();
    let mut relay = place.serving().await;
    let (id, _) = open(&place, &relay).await;
    dispatched(&place, &["acme/four", "acme/one", "acme/two"]).await;
    settled(&place, &id).await;
    relay.terminate();
    assert_eq!(relay.end(Duration::from_secs(15)).await, 0);
    // The next sweep is in two hours, unless it is requested.
    let place = place.set("CRCR_NEVER_STARTED_AFTER", "1s");
    let _relay = place.serving().await;
    let checks = || place.github.state().world.check_runs(UPSTREAM);
    assert!(checks().iter().all(|run| run.conclusion.is_none()));
    let (code, _, stderr) = place.run(&["relay", "sweep"]);
    assert!(code == 0 && stderr.contains("2 open dispatches"), "{code}: {stderr}");
    eventually("the silent repository at L4 has failed", async || {
        checks().iter().any(|run| run.conclusion.as_deref() == Some("failure"))
    })
    .await;
    let (_, shown, _) = place.run(&["relay", "deliveries", "show", &id, "--format", "json"]);
    assert!(shown.contains("\"never_started\":true"), "{shown}");
}

#[tokio::test]
async fn rotated_webhook_secret_file_needs_no_restart() {
    let place = place().move_to_file("GITHUB_APP_SECRET");
    let relay = place.serving().await;
    let file = place.folder().join("github_app_secret");
    let old = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("the-new-secret\n{old}")).unwrap();
    std::fs::write(place.folder().join("opened.json"), payload(&place).to_string()).unwrap();
    // `replay` signs with the new value; GitHub here still signs with the old one.
    let replay = ["relay", "replay", "--url", relay.url.as_str(), "opened.json"];
    eventually("the new secret is in force", async || place.run(&replay).0 == 0).await;
    assert_eq!(open(&place, &relay).await.1.status, StatusCode::ACCEPTED);
    assert!(!place.log().contains("the-new-secret"), "{}", place.log());
}

#[tokio::test]
async fn repository_with_a_new_owner_is_confirmed_by_number() {
    let place = place();
    let relay = place.serving().await;
    let (code, _, stderr) = place.run(&["relay", "repository", "confirm", "acme/two"]);
    assert!(code == 1 && stderr.contains("never dispatched to"), "{code}: {stderr}");
    let (id, _) = open(&place, &relay).await;
    dispatched(&place, &["acme/four", "acme/one", "acme/two"]).await;
    settled(&place, &id).await;
    let number = place.github.state().world.add_repo("acme/two");
    let listed = || {
        let (_, listed, _) = place.run(&["relay", "repository", "list", "--format", "json"]);
        let listed: Value = serde_json::from_str(&listed).unwrap();
        let all = listed["repositories"].as_array().unwrap().clone();
        all.into_iter().find(|pin| pin["repo"] == "acme/two").unwrap()
    };
    eventually("its number is pinned", async || {
        place.run(&["relay", "repository", "list"]).1.contains(&format!("acme/two {number} "))
    })
    .await;
    let (code, _, stderr) = place.run(&["relay", "repository", "confirm", "acme/two"]);
    assert!(code == 1 && stderr.contains("no other one was seen"), "{code}: {stderr}");

    // As if it had been another repository until now.
    place.run(&["relay", "repository", "confirm", "acme/two", "--id", "5"]);
    let world = &place.github.state().world;
    world.change_pull(UPSTREAM, 7, |pull| {
        pull.updated_at += Duration::from_secs(1);
        pull.head_sha = "b".repeat(40);
    });
    let (id, _) = open(&place, &relay).await;
    dispatched(&place, &["acme/four", "acme/one"]).await;
    assert!(settled(&place, &id).await.to_string().contains("\"repository_changed\""));
    assert_eq!(listed()["changed"]["repository_id"], json!(number));
    let (code, stdout, _) = place.run(&["relay", "repository", "confirm", "acme/two"]);
    assert_eq!((code, listed()["repository_id"].clone()), (0, json!(number)));
    assert!(stdout.contains(&format!("repository number {number}")), "{stdout}");
    place.run(&["relay", "deliveries", "redeliver", &id]);
    dispatched(&place, &["acme/two"]).await;
}

#[tokio::test]
async fn webhooks_that_nobody_answered_are_dispatched_after_a_start_and_after_reconcile() {
    let place = place();
    let world = &place.github.state().world;
    let lose = |action: &str| {
        let payload = place.github.state().pull_request_payload(UPSTREAM, 7, action);
        let delivery = world.delivery("pull_request", &payload);
        world.log_delivery(&delivery, Timestamp::now() - Duration::from_secs(120), false, 0);
        delivery.id
    };
    lose("opened");
    // The relay isn't there yet; its port is known only after its start.
    let relay = place.serve();
    world.set_webhook_url(relay.url.join("github/webhook").unwrap());
    let mut asked = world.take_redeliveries();
    eventually("the start has asked for it", async || {
        asked.extend(world.take_redeliveries());
        !asked.is_empty() || world.delivery_log().len() > 1
    })
    .await;
    for delivery in asked {
        place.github.state().deliver(&delivery, true).await;
    }
    dispatched(&place, &["acme/four", "acme/one", "acme/two"]).await;

    let id = lose("reopened");
    let (stdout, _) = place.run_to(0, &["relay", "reconcile"]);
    assert!(stdout.contains(&format!("asked for again: {id} pull_request ")), "{stdout}");
    assert!(stdout.contains(", no answer\n") && stdout.contains(" 1 asked for again, 0"));
    dispatched(&place, &["acme/four", "acme/one", "acme/two"]).await;
    let (stdout, _) = place.run_to(0, &["relay", "reconcile", "--format", "json"]);
    let found: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((&found["asked"], &found["refused"]), (&json!([]), &json!([])));

    world.fail("GET /app/hook/deliveries", 1, Fault::status(502));
    let (code, _, stderr) = place.run(&["relay", "reconcile"]);
    assert!(code == 2 && stderr.contains("log of deliveries can't be read"), "{code}: {stderr}");
}
