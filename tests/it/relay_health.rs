//! `crcr relay health`, as Compose and the image call it.

use std::fs;

use serde_json::{Value, json};

use crate::relay_process::{Place, eventually};

/// Exit code and the one line of `crcr relay health`.
fn health(place: &Place, args: &[&str]) -> (i32, String) {
    let output = place
        .crcr(&["relay", "health"])
        .args(args)
        // A proxy can't reach this machine's own addresses.
        .env("HTTP_PROXY", "http://127.0.0.1:1")
        .env("http_proxy", "http://127.0.0.1:1")
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "", "everything is in the one line");
    let line = String::from_utf8(output.stdout).unwrap();
    assert_eq!(line.matches('\n').count(), 1, "{line:?}");
    (output.status.code().unwrap(), line.trim_end().to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_says_in_one_line_whether_the_relay_is_ready_and_why_not() {
    let place = Place::new(&["acme/one"], "L2: [acme/one]\n");
    fs::remove_file(place.folder().join("allowlist.yml")).unwrap();
    let mut relay = place.serve();
    let (public, admin) = (relay.url.to_string(), relay.admin.clone().unwrap().to_string());
    let (code, line) = health(&place, &["--url", &public]);
    assert_eq!(code, 1, "{line}");
    assert!(line.starts_with("not ready: no allowlist is in force (unreadable)"), "{line}");
    // Operators learn which file.
    let (code, line) = health(&place, &["--url", &admin]);
    assert!(code == 1 && line.contains("allowlist.yml"), "{line}");

    fs::write(place.folder().join("allowlist.yml"), "L2: [acme/one]\n").unwrap();
    relay.ready().await;
    assert_eq!(health(&place, &["--url", &public]), (0, "ready".to_owned()));
    let address = relay.url.socket_addrs(|| None).unwrap()[0].to_string();
    fs::write(place.folder().join("address"), format!("{address}\n")).unwrap();
    for (name, value) in [("CRCR_LISTEN", address.as_str()), ("CRCR_LISTEN_FILE", "address")] {
        let mut command = place.crcr(&["relay", "health"]);
        command.env_remove("CRCR_LISTEN").env(name, value);
        assert_eq!(command.output().unwrap().status.code(), Some(0), "the relay of {name}");
    }

    relay.kill();
    let (code, line) = health(&place, &["--url", &public]);
    assert!(code == 2 && line.contains("no answer from the server"), "{line}");
}

/// As in a container, which has no other program that could ask.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_sends_the_admin_token_on_this_machine_and_is_told_everything() {
    let place = Place::new(&["acme/one"], "L2: [acme/one]\n")
        .set("CRCR_ADMIN_TOKEN", "the new token of operators\nthe old token of operators")
        .move_to_file("CRCR_ADMIN_TOKEN");
    fs::remove_file(place.folder().join("allowlist.yml")).unwrap();
    let mut relay = place.serve();
    let public = relay.url.to_string();
    let (code, line) = health(&place, &["--url", &public]);
    assert!(code == 1 && line.contains("allowlist.yml"), "{line}");
    let (code, line) = health(&place, &["--url", &public, "--format", "json"]);
    let answer: Value = serde_json::from_str(&line).unwrap();
    assert_eq!((code, &answer["ready"], &answer["store_lost"]), (1, &json!(false), &Value::Null));
    assert!(answer["allowlist"]["problem"].as_str().unwrap().contains("allowlist.yml"), "{line}");
    assert!(
        place.log().contains("the allowlist can't be read; none is in force"),
        "{}",
        place.log()
    );
    // Without the token, and with one that can't be read, it is a stranger.
    for variable in [None, Some(("CRCR_ADMIN_TOKEN_FILE", "/absent"))] {
        let mut command = place.crcr(&["relay", "health", "--url", &public]);
        command.env_remove("CRCR_ADMIN_TOKEN_FILE").envs(variable);
        let line = String::from_utf8(command.output().unwrap().stdout).unwrap();
        assert!(line.contains("(unreadable)"), "{line}");
    }
    relay.kill();
    let (code, line) = health(&place, &["--url", &public, "--format", "json"]);
    let answer: Value = serde_json::from_str(&line).unwrap();
    assert!(code == 2 && answer["problem"].as_str().unwrap().contains("no answer"), "{line}");
}

#[test]
fn server_that_is_no_relay_is_not_called_healthy() {
    let place = Place::new(&[], "L1: []\n");
    let other = place.github.state().origin().to_owned();
    let (code, line) = health(&place, &["--url", &other]);
    assert_eq!(code, 2, "{line}");
    for odd in ["ftp://127.0.0.1", "127.0.0.1", "http://relay.example/?a=b"] {
        let (code, _, stderr) = place.run(&["relay", "health", "--url", odd]);
        assert!(code == 2 && stderr.contains("isn't the address of a relay"), "{odd}: {stderr}");
    }
}

/// The default issuers are GitHub's and Buildkite's, and many firewalls let only GitHub through.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relay_behind_a_firewall_that_blocks_buildkite_gets_ready_and_passes_its_check() {
    let place = Place::new(&["acme/one"], "L2: [acme/one]\n");
    let github = place.github.state().origin().to_owned();
    let blocked = "https://agent.buildkite.com=http://127.0.0.1:1/keys";
    let place = place.set("CRCR_OIDC_ISSUERS", &format!("{github},{blocked}"));
    let (_, _, stderr) = place.run(&["relay", "serve", "--check"]);
    assert!(!stderr.contains("CRCR_OIDC_ISSUERS"), "{stderr}");
    let relay = place.serving().await;

    fs::write(place.folder().join("providers.yml"), "buildkite: {o/p: acme/one}\n").unwrap();
    let place =
        place.set("CI_PROVIDERS_URL", "file:providers.yml").set("CRCR_STORE", "sqlite:2.db");
    let (_, _, stderr) = place.run(&["relay", "serve", "--check"]);
    assert!(stderr.contains("the keys of `https://agent.buildkite.com`"), "{stderr}");
    let needy = place.serve();
    eventually("it says which issuer is missing", async || {
        let (code, line) = health(&place, &["--url", needy.url.as_str()]);
        let said = "ready, but no keys of https://agent.buildkite.com (unreachable)";
        (code, line.as_str()) == (0, said)
    })
    .await;
    drop(relay);
}
