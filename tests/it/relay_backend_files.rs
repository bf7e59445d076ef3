//! A backend's `.github/crcr.yml` with the real relay: what its maintainers push is what counts, over HTTP.

use crcr_standin::world::{Delivery, PullRequest};
use serde_json::json;

use crate::relay_process::{Place, Running, UPSTREAM, eventually};

const BACKENDS: [&str; 2] = ["acme/four", "acme/two"];
const ALLOWLIST: &str = "L2: [acme/two]\nL4:\n  - acme/four: [dave]\n";
const FILE: &str = ".github/crcr.yml";

async fn send(relay: &Running, delivery: &Delivery) {
    let url = relay.url.join("github/webhook").unwrap();
    let mut request = reqwest::Client::new().post(url).body(delivery.body.clone());
    for (name, value) in delivery.headers() {
        request = request.header(name, value);
    }
    assert!(request.send().await.unwrap().status().is_success());
}

/// Pushes the file of both backends, and waits until the relay says what became of it.
async fn push_files(place: &Place, relay: &Running, text: &str, said: &str) {
    let state = place.github.state();
    let before = place.log().matches(said).count();
    for repo in BACKENDS {
        state.world.put_file(repo, FILE, text);
        let mut payload = state.push_payload(repo, "refs/heads/main", &"a".repeat(40));
        payload["commits"] = json!([{ "modified": [FILE] }]);
        send(relay, &state.world.delivery("push", &payload)).await;
    }
    let all = before + BACKENDS.len();
    eventually(said, async || place.log().matches(said).count() == all).await;
}

/// Opens a pull request whose head changes these files; returns who gets it.
async fn open(place: &Place, relay: &Running, number: u64, files: &[&str]) -> Vec<String> {
    let state = place.github.state();
    let head = format!("{number:040x}");
    let pull = PullRequest::from_fork(number, UPSTREAM, &head, state.clock.now());
    state.world.put_pull(UPSTREAM, pull);
    state.world.set_changed_files(UPSTREAM, &head, files);
    let payload = state.pull_request_payload(UPSTREAM, number, "opened");
    send(relay, &state.world.delivery("pull_request", &payload)).await;
    let verdict = || {
        let runs = state.world.check_runs(UPSTREAM);
        runs.into_iter().find(|run| run.head_sha == head && run.status == "completed")
    };
    let mut got = vec![];
    eventually("it is dispatched, or left out", async || {
        got.extend(state.world.take_dispatches().into_iter().map(|sent| sent.repository));
        got.len() == BACKENDS.len() || verdict().is_some()
    })
    .await;
    if let Some(run) = verdict() {
        assert_eq!(run.conclusion.as_deref(), Some("skipped"));
        assert!(run.title.contains("No changed file concerns this backend"), "{}", run.title);
    }
    got.sort();
    got
}

#[tokio::test]
async fn a_pushed_file_decides_what_is_dispatched_and_a_broken_one_changes_nothing() {
    let place = Place::new(&BACKENDS, ALLOWLIST);
    let relay = place.serving().await;
    assert_eq!(open(&place, &relay, 1, &["docs/a.rst"]).await, BACKENDS, "no file: everything");
    push_files(&place, &relay, "dispatch: {paths: ['aten/**']}\n", "file is in force").await;
    assert_eq!(open(&place, &relay, 2, &["docs/a.rst"]).await, Vec::<String>::new());
    assert_eq!(open(&place, &relay, 3, &["docs/a.rst", "aten/x.cpp"]).await, BACKENDS);
    push_files(&place, &relay, "dispatch: {path: []}\n", "file isn't in force").await;
    assert_eq!(open(&place, &relay, 4, &["docs/a.rst"]).await, Vec::<String>::new());
    let page = reqwest::get(relay.url.join("crcr/acme/two").unwrap()).await.unwrap();
    let page = page.text().await.unwrap();
    assert!(page.contains("in force: <bdi>its newest version has 1 error in line 1: "), "{page}");
}
