//! How fast results get into ClickHouse, and that none is lost when it restarts in between.
//!
//! `cargo bench --workspace --bench results_ingest -- $PWD/target/release/crcr [REPORTS]`
//! sends REPORTS results to a relay whose results are in ClickHouse (`chdb`), kills that
//! server half-way, starts it again, and counts what is there.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a program for measuring: it stops at what is wrong and reads its arguments"
)]

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crcr_results::{ResultsUrl, Window};
use crcr_standin::StandIn;
use crcr_store::StoreRole;
use crcr_testkit::clickhouse::ClickHouse;
use jiff::Timestamp;
use serde_json::json;

/// What `cargo bench` adds to the arguments.
const CARGO_BENCH: &str = "--bench";

const CONNECTIONS: usize = 64;

#[tokio::main]
async fn main() {
    let mut args = std::env::args().skip(1).filter(|arg| arg != CARGO_BENCH);
    let binary = std::fs::canonicalize(args.next().expect("the path of the crcr binary")).unwrap();
    let reports: usize = args.next().map_or(100_000, |text| text.parse().unwrap());
    let mut server = ClickHouse::start().unwrap();
    let github = StandIn::start().unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("allowlist.yml"), "L2: [acme/backend]\n").unwrap();
    let app = github.state().world.app();
    let mut relay = Command::new(binary)
        .args(["relay", "serve", "--listen", "127.0.0.1:0", "--admin-listen", "off"])
        .current_dir(folder.path())
        .env("GITHUB_APP_ID", &app.id)
        .env("GITHUB_APP_SECRET", &app.webhook_secret)
        .env("GITHUB_APP_PRIVATE_KEY", &app.private_key)
        .env("GITHUB_API_URL", github.state().origin())
        .env("CRCR_OIDC_ISSUERS", github.state().origin())
        .env("ALLOWLIST_URL", "file:allowlist.yml")
        .env("CRCR_RESULTS", server.url())
        .env("INTERNAL_API_TOKEN", "bot")
        .env("CRCR_LOG", "error")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(relay.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let origin = line.trim().trim_start_matches("listening on ").to_owned();
    let target = Arc::new(format!("{origin}/api/crcr/results"));
    let (client, sent) = (reqwest::Client::new(), Arc::new(AtomicUsize::new(0)));
    let started = Instant::now();
    let senders: Vec<_> = (0..CONNECTIONS)
        .map(|_| {
            let (client, sent, target) = (client.clone(), Arc::clone(&sent), Arc::clone(&target));
            tokio::spawn(async move {
                loop {
                    let n = sent.fetch_add(1, Ordering::Relaxed);
                    if n >= reports {
                        return;
                    }
                    let request = client.post(&*target).header("x-hud-internal-bot", "bot");
                    let answer = request.body(body(n)).send().await.unwrap();
                    assert_eq!(answer.status(), 200, "{}", answer.text().await.unwrap());
                }
            })
        })
        .collect();
    while sent.load(Ordering::Relaxed) < reports / 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    server.kill().unwrap();
    let killed = started.elapsed();
    tokio::time::sleep(Duration::from_secs(3)).await;
    server.again().unwrap();
    let back = started.elapsed();
    for sender in senders {
        sender.await.unwrap();
    }
    let taken = started.elapsed();
    let url = ResultsUrl::parse(&server.url()).unwrap();
    let results = crcr_results::open(&url, StoreRole::Tool).await.unwrap();
    let always = Window::all(Timestamp::MIN, Timestamp::MAX);
    let there = loop {
        let there = results.attempts(&always).await.map_or(0, |rows| rows.len());
        if there >= reports {
            break there;
        }
        assert!(started.elapsed() < Duration::from_secs(300), "{there} of {reports}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    let all = started.elapsed();
    relay.kill().unwrap();
    relay.wait().unwrap();
    println!("{reports} results acknowledged in {taken:.1?}");
    println!("ClickHouse was killed after {killed:.1?} and back after {back:.1?}");
    println!("{there} attempts in ClickHouse after {all:.1?}: none lost, none twice");
    assert_eq!(there, reports);
}

fn body(n: usize) -> String {
    json!({
        "trusted": {
            "ci_metrics": { "queue_time": 12.5, "execution_time": 600.0 },
            "verified_repo": "acme/backend", "downstream_repo_level": "L2",
        },
        "untrusted": { "callback_payload": {
            "delivery_id": format!("delivery-{n}"),
            "payload": { "pull_request": { "number": 7, "head": { "sha": format!("{n:040x}") } } },
            "workflow": {
                "status": "completed", "conclusion": "success", "name": "ci", "run_id": n,
                "job_name": "test", "check_run_id": n,
                "url": format!("https://github.com/acme/backend/actions/runs/{n}"),
            },
        } },
    })
    .to_string()
}
