//! The calls that the App makes, checked against GitHub's own OpenAPI description.
//!
//! prism stands between the App and the stand-in and says what it finds wrong with each request.
#![expect(clippy::unwrap_used, reason = "tests say what went wrong by stopping")]

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use crcr_github::checks::{CheckRun, CheckRunOutput};
use crcr_github::{GithubApp, http};
use crcr_standin::StandIn;
use crcr_standin::runs::Run;
use crcr_standin::world::PullRequest;
use serde_json::json;

const REPO: &str = "acme/backend";

struct Prism {
    child: Child,
    lines: Receiver<String>,
    url: url::Url,
}

impl Drop for Prism {
    fn drop(&mut self) {
        // It has no other way to end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Prism {
    fn start(folder: &Path, upstream: &str) -> Self {
        let peers = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/peers");
        let cut = folder.join("github.json");
        let cutting = Command::new("node")
            .arg(peers.join("openapi/cut.mjs"))
            .arg(peers.join("node_modules/@octokit/openapi/generated/api.github.com.json"))
            .arg(&cut)
            .status()
            .unwrap();
        assert!(cutting.success());
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut child = Command::new("prism")
            .args(["proxy", cut.to_str().unwrap(), upstream, "--port", &port.to_string()])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let reader = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in reader.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let url = format!("http://127.0.0.1:{port}/").parse().unwrap();
        let prism = Self { child, lines, url };
        prism.until("Prism is listening", 1);
        prism
    }

    /// The lines up to the one that holds `text` for the `times`-th time.
    fn until(&self, text: &str, times: usize) -> Vec<String> {
        let deadline = Instant::now() + Duration::from_secs(120);
        let mut all = Vec::new();
        let mut seen = 0;
        while seen < times {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left).unwrap();
            seen += usize::from(line.contains(text));
            all.push(line);
        }
        all
    }
}

#[tokio::test]
#[ignore = "needs prism and @octokit/openapi and node"]
async fn every_call_is_one_that_github_describes() {
    let github = StandIn::start().unwrap();
    let world = &github.state().world;
    let sha = "a1".repeat(20);
    world.install(REPO);
    let pull = PullRequest::from_fork(7, REPO, &sha, github.state().clock.now());
    world.put_pull(REPO, pull);
    let completed = Run {
        repository: REPO.to_owned(),
        status: "completed".to_owned(),
        conclusion: Some("failure".to_owned()),
        ..Run::push()
    };
    let (first, second) = (completed.clone(), Run { id: completed.id + 1, ..completed });
    let (first, second) = (github.state().runs.add(first), github.state().runs.add(second));
    for _ in 0..101 {
        let delivery = world.delivery("ping", &json!({}));
        world.log_delivery(&delivery, github.state().clock.now(), false, 502);
    }
    let folder = std::env::temp_dir().join(format!("crcr-contract-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let prism = Prism::start(&folder, github.state().origin());
    let identity = world.app();
    let key = identity.private_key.clone().into();
    let clock = Arc::new(jiff::Timestamp::now);
    let client = http::client().unwrap();
    let app = GithubApp::new(
        client,
        &prism.url.clone().try_into().unwrap(),
        identity.id.as_str(),
        &key,
        clock,
    )
    .unwrap();

    let run = CheckRun {
        name: "crcr/acme/backend/test/unit".to_owned(),
        external_id: Some("4242:7".to_owned()),
        details_url: Some("https://github.com/acme/backend/actions/runs/4242".to_owned()),
        status: "in_progress",
        conclusion: None,
        started_at: Some(github.state().clock.now()),
        completed_at: None,
        output: CheckRunOutput { title: "In progress".to_owned(), summary: "Fine".to_owned() },
    };
    app.slug().await.unwrap();
    app.dispatch(REPO, None, "pull_request", &json!({ "delivery_id": "d" })).await.unwrap();
    let id = app.create_check_run(REPO, &sha, &run).await.unwrap();
    let ended = CheckRun {
        status: "completed",
        conclusion: Some("timed_out".to_owned()),
        completed_at: Some(github.state().clock.now()),
        ..run
    };
    app.update_check_run(REPO, id, &ended).await.unwrap();
    let suite = world.check_runs(REPO)[0].suite;
    app.check_runs_of_suite(REPO, suite).await.unwrap();
    app.own_check_runs(REPO, &sha, "crcr/acme/backend/relay/dispatch").await.unwrap();
    app.run(REPO, first).await.unwrap();
    let now = github.state().clock.now();
    app.runs_of_event(REPO, "repository_dispatch", (now, now)).await.unwrap();
    app.rerun(REPO, first).await.unwrap();
    app.rerun_failed_jobs(REPO, second).await.unwrap();
    assert!(app.commit_exists(REPO, &sha).await.unwrap());
    assert!(app.merge_base(REPO, &sha, &sha).await.unwrap().is_some());
    app.create_comment(REPO, 7, "@alice look").await.unwrap();
    app.comments(REPO, 7).await.unwrap();
    app.labels(REPO, 7).await.unwrap();
    let page = app.hook_deliveries(None).await.unwrap();
    app.hook_deliveries(page.next.as_deref()).await.unwrap();
    app.redeliver(page.deliveries[0].id).await.unwrap();
    // The last one is a mistake on purpose: it proves that prism looks.
    app.dispatch(REPO, None, "", &json!({})).await.unwrap_err();

    let routes = world.calls().len();
    let lines = prism.until("Violation", 1);
    let asked = lines.iter().filter(|line| line.contains("Request received")).count();
    // `GET …/actions/runs` and `…/runs/{id}` are the runs' own routes and not among the world's calls.
    assert_eq!(asked, routes + 2, "{lines:#?}");
    let wrong: Vec<_> = lines.iter().filter(|line| line.contains("Violation")).collect();
    assert!(wrong.len() == 1 && wrong[0].contains("event_type"), "{wrong:#?}");
    std::fs::remove_dir_all(folder).unwrap();
}
