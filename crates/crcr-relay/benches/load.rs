//! A load on `crcr relay serve` as a process of its own, with GitHub's stand-in behind it.
//!
//! `cargo bench --workspace --bench load -- $PWD/target/release/crcr [WEBHOOKS] [REPORTS]`
//! prints what the relay did; the load and the stand-in run on the same cores. With `pulls SECONDS`
//! in place of the counts it compares webhooks of one pull request and of many, over 64 connections
//! and over one, in rounds, with the relay's CPU time for each webhook.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a program for measuring: it stops at what is wrong and reads its arguments"
)]

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crcr_standin::StandIn;
use crcr_standin::world::PullRequest;
use jiff::Timestamp;
use reqwest::{Client, RequestBuilder};
use serde_json::{Value, json};
use url::Url;

/// What `cargo bench` adds to the arguments.
const CARGO_BENCH: &str = "--bench";

const UPSTREAM: &str = "acme/upstream";
const TARGETS: usize = 20;
const CONNECTIONS: usize = 64;
/// The size of a webhook's body, in bytes.
const BODY: usize = 30 * 1024;

/// A relay in a folder of its own.
struct Relay {
    child: Child,
    url: Url,
    started: Instant,
    _folder: tempfile::TempDir,
}

/// What a load is made with.
struct Load {
    github: StandIn,
    client: Client,
    binary: std::path::PathBuf,
    targets: Vec<String>,
}

#[tokio::main]
async fn main() {
    let mut args = std::env::args().skip(1).filter(|arg| arg != CARGO_BENCH);
    let binary = args.next().expect("the path of the crcr binary");
    let mut args = args.peekable();
    let pulls = args.next_if_eq("pulls").is_some();
    let mut count = |default| args.next().map_or(default, |text| text.parse().unwrap());
    let (webhooks, reports): (usize, usize) = (count(20_000), count(10_000));
    let github = StandIn::start().unwrap();
    let world = &github.state().world;
    world.limit(u64::MAX / 2, Timestamp::now() + Duration::from_secs(24 * 3600));
    let targets: Vec<String> = (0..TARGETS).map(|n| format!("acme-{n}/backend")).collect();
    for repo in targets.iter().map(String::as_str).chain([UPSTREAM, "acme/one"]) {
        world.install(repo);
    }
    let binary = std::fs::canonicalize(binary).unwrap();
    let load = Load { github, client: Client::new(), binary, targets };

    if pulls {
        return pulls_of(&Arc::new(load), Duration::from_secs(webhooks as u64)).await;
    }
    // Nobody who takes part wants pull requests: the deployed relay's figure is without targets.
    let relay = load.start("L1:\n  - acme/one:\n      events: [nightly]\n");
    load.answers(&relay, "healthz").await;
    println!("first answer {:.0} ms after the start", millis(relay.started.elapsed()));
    load.answers(&relay, "readyz").await;
    println!("resident when idle: {}", relay.resident());
    load.accept("without a target", &relay, webhooks).await;
    println!("resident after the webhooks: {}", relay.resident());
    drop(relay);

    let relay = load.start("L1: [acme/one]\n");
    load.answers(&relay, "readyz").await;
    load.accept("with one target, dispatched meanwhile", &relay, webhooks).await;
    println!("resident after the webhooks: {}", relay.resident());
    drop(relay);

    let relay = load.start(&format!("L2: [{}]\n", load.targets.join(", ")));
    load.answers(&relay, "readyz").await;
    load.github.state().world.take_dispatches();
    for round in 0..10 {
        load.fan_out(&relay, round).await;
    }
    load.report(&relay, reports).await;
    println!("resident after the reports: {}", relay.resident());
}

impl Relay {
    /// Seconds of CPU time so far, in the program and in the kernel for it, as Linux tells it.
    fn cpu(&self) -> [f64; 2] {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        // The name may hold spaces; after it comes the third field. Times are in hundredths.
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        [fields[11], fields[12]].map(|ticks| ticks.parse::<f64>().unwrap() / 100.0)
    }

    /// Resident memory, as Linux tells it.
    fn resident(&self) -> String {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().to_owned()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Load {
    fn start(&self, allowlist: &str) -> Relay {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("allowlist.yml"), allowlist).unwrap();
        let started = Instant::now();
        let mut child = self.command(folder.path()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = Url::parse(line.trim().strip_prefix("listening on ").unwrap()).unwrap();
        Relay { child, url, started, _folder: folder }
    }

    fn command(&self, folder: &Path) -> Command {
        let app = self.github.state().world.app();
        let origin = self.github.state().origin();
        let mut command = Command::new(&self.binary);
        command
            .args(["relay", "serve", "--listen", "127.0.0.1:0", "--admin-listen", "off"])
            .current_dir(folder)
            .env_clear()
            .env("GITHUB_APP_ID", &app.id)
            .env("GITHUB_APP_SECRET", &app.webhook_secret)
            .env("GITHUB_APP_PRIVATE_KEY", &app.private_key)
            .env("GITHUB_API_URL", origin)
            .env("CRCR_OIDC_ISSUERS", origin)
            .env("ALLOWLIST_URL", "file:allowlist.yml")
            .env("UPSTREAM_REPO", UPSTREAM)
            .env("RATE_LIMIT_PER_MIN", "10000000")
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        command
    }

    /// Asks until the answer is a good one.
    async fn answers(&self, relay: &Relay, path: &str) {
        let url = relay.url.join(path).unwrap();
        while !self.client.get(url.clone()).send().await.is_ok_and(|got| got.status().is_success())
        {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// A webhook of a pull request of its own, of [`BODY`] bytes.
    fn payload(&self, number: u64) -> Value {
        let state = self.github.state();
        let head = format!("{:040x}", rand::random::<u128>());
        let pull = PullRequest::from_fork(number, UPSTREAM, &head, Timestamp::now());
        state.world.put_pull(UPSTREAM, pull);
        let mut payload = state.pull_request_payload(UPSTREAM, number, "opened");
        let mut left = BODY.saturating_sub(payload.to_string().len());
        let mut reviewers = vec![];
        while left > 0 {
            let reviewer = user();
            left = left.saturating_sub(reviewer.to_string().len() + 1);
            reviewers.push(reviewer);
        }
        payload["pull_request"]["requested_reviewers"] = json!(reviewers);
        payload
    }

    /// Webhooks, each of a pull request of its own.
    async fn accept(&self, what: &str, relay: &Relay, count: usize) {
        let url = relay.url.join("github/webhook").unwrap();
        let requests = (1..=count as u64).map(|number| {
            let world = &self.github.state().world;
            let delivery = world.delivery("pull_request", &self.payload(number));
            let mut request = self.client.post(url.clone());
            for (name, value) in delivery.headers() {
                request = request.header(name, value);
            }
            request.body(delivery.body.clone())
        });
        send(&format!("webhooks accepted {what}"), requests.collect(), 202).await;
    }

    /// Delivers one webhook after the other: the times of those that were accepted, and how many were
    /// refused.
    async fn deliver_until(
        &self,
        relay: &Relay,
        payload: &Value,
        one: bool,
        until: Instant,
    ) -> (Vec<Duration>, usize) {
        let url = relay.url.join("github/webhook").unwrap();
        let world = &self.github.state().world;
        let (mut times, mut refused) = (vec![], 0);
        let mut payload = payload.clone();
        while Instant::now() < until {
            if !one {
                payload["number"] = json!(rand::random::<u32>());
                payload["pull_request"]["number"] = payload["number"].clone();
            }
            let delivery = world.delivery("pull_request", &payload);
            let begun = Instant::now();
            match delivery.send(&self.client, &url).await.unwrap().status {
                202 => times.push(begun.elapsed()),
                _ => refused += 1,
            }
        }
        (times, refused)
    }

    /// One webhook with [`TARGETS`] targets; the first one also fetches their tokens.
    async fn fan_out(&self, relay: &Relay, round: u64) {
        let (accepted, _) = self.open(relay, 1_000_000 + round).await;
        let after = millis(accepted.elapsed());
        println!("{TARGETS} targets dispatched {after:.0} ms after acceptance (round {round})");
    }

    /// Delivers a webhook and waits for its dispatches: when it was accepted, and a
    /// `client_payload`.
    async fn open(&self, relay: &Relay, number: u64) -> (Instant, Value) {
        let world = &self.github.state().world;
        let delivery = world.delivery("pull_request", &self.payload(number));
        let url = relay.url.join("github/webhook").unwrap();
        assert_eq!(delivery.send(&self.client, &url).await.unwrap().status, 202);
        let accepted = Instant::now();
        let mut seen = vec![];
        while seen.len() < TARGETS {
            seen.extend(world.take_dispatches());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        (accepted, seen.swap_remove(0).client_payload)
    }

    /// The ends of as many jobs, each with a token of its own and the whole dispatched payload.
    async fn report(&self, relay: &Relay, count: usize) {
        let (_, client_payload) = self.open(relay, 2_000_000).await;
        let state = self.github.state();
        let url = relay.url.join("github/callback").unwrap();
        let now = Timestamp::now().as_second();
        let requests = (1..=count).map(|run| {
            let repo = &self.targets[run % TARGETS];
            let mut body = client_payload.clone();
            body["workflow"] = json!({
                "schema_version": "1", "status": "completed", "conclusion": "success",
                "name": "CI", "run_id": run.to_string(), "run_attempt": "1", "job_name": "test",
            });
            let token = state.oidc.sign(&json!({
                "iss": state.origin(), "aud": "pytorch-cross-repo-ci-relay", "iat": now,
                "nbf": now, "exp": now + 3600, "jti": format!("jti-{run}"), "repository": repo,
                "repository_id": state.world.add_repo(repo).to_string(),
                "run_id": run.to_string(), "run_attempt": "1",
                "event_name": "repository_dispatch", "ref": "refs/heads/main",
            }));
            self.client.post(url.clone()).bearer_auth(token).body(body.to_string())
        });
        send("reports taken", requests.collect(), 200).await;
    }
}

/// Webhooks for `time` in each round, of one pull request and of a new one each time; at last over one
/// connection again, to a store that has grown.
async fn pulls_of(load: &Arc<Load>, time: Duration) {
    let relay = Arc::new(load.start("L1:\n  - acme/one:\n      events: [nightly]\n"));
    load.answers(&relay, "readyz").await;
    let payload = Arc::new(load.payload(1));
    for (connections, one, rounds) in
        [(1, false, 2), (CONNECTIONS, true, 3), (CONNECTIONS, false, 3), (1, false, 2)]
    {
        for round in 1..=rounds {
            let (until, cpu) = (Instant::now() + time, relay.cpu());
            let workers = (0..connections).map(|_| {
                let (load, relay, payload) =
                    (Arc::clone(load), Arc::clone(&relay), Arc::clone(&payload));
                tokio::spawn(async move { load.deliver_until(&relay, &payload, one, until).await })
            });
            let workers: Vec<_> = workers.collect();
            let results = futures_util::future::join_all(workers).await;
            let results: Vec<_> = results.into_iter().map(Result::unwrap).collect();
            let refused: usize = results.iter().map(|(_, refused)| refused).sum();
            let mut times: Vec<_> = results.into_iter().flat_map(|(times, _)| times).collect();
            times.sort();
            let at = |percent: usize| millis(times[(times.len() - 1) * percent / 100]);
            let each = |now: f64, before: f64| (now - before) * 1e3 / times.len() as f64;
            let [program, kernel] = relay.cpu();
            println!(
                "{connections} connections, {} (round {round}): {:.0}/s, p50 {:.1} ms, \
                 p99 {:.1} ms, CPU each {:.2} ms and {:.2} ms in the kernel, {refused} refused",
                if one { "one pull request" } else { "others each time" },
                times.len() as f64 / time.as_secs_f64(),
                at(50),
                at(99),
                each(program, cpu[0]),
                each(kernel, cpu[1]),
            );
        }
    }
}

/// A user as GitHub describes one: mostly links, which is what a webhook consists of.
fn user() -> Value {
    let id: u32 = rand::random();
    let (login, node) = (format!("user-{id:x}"), format!("U_{:x}", rand::random::<u64>()));
    let of = |rest: &str| format!("https://api.github.com/users/{login}{rest}");
    json!({
        "login": login, "id": id, "node_id": node, "gravatar_id": "", "type": "User",
        "avatar_url": format!("https://avatars.githubusercontent.com/u/{id}?v=4"), "url": of(""),
        "html_url": format!("https://github.com/{login}"), "followers_url": of("/followers"),
        "following_url": of("/following{/other_user}"), "gists_url": of("/gists{/gist_id}"),
        "starred_url": of("/starred{/owner}{/repo}"), "subscriptions_url": of("/subscriptions"),
        "organizations_url": of("/orgs"), "repos_url": of("/repos"),
        "events_url": of("/events{/privacy}"), "received_events_url": of("/received_events"),
        "site_admin": false,
    })
}

/// Sends prepared requests over [`CONNECTIONS`] connections; every answer must have `status`.
async fn send(what: &str, requests: Vec<RequestBuilder>, status: u16) {
    let requests = Arc::new(requests);
    let next = Arc::new(AtomicUsize::new(0));
    let started = Instant::now();
    let workers: Vec<_> = (0..CONNECTIONS)
        .map(|_| tokio::spawn(worker(Arc::clone(&requests), Arc::clone(&next), status)))
        .collect();
    let times = futures_util::future::join_all(workers).await;
    let seconds = started.elapsed().as_secs_f64();
    let mut times: Vec<Duration> = times.into_iter().flat_map(Result::unwrap).collect();
    times.sort();
    let at = |percent: usize| millis(times[(times.len() - 1) * percent / 100]);
    let (count, rate) = (times.len(), times.len() as f64 / seconds);
    println!(
        "{what}: {count} in {seconds:.1} s, {rate:.0}/s, p50 {:.1} ms, p99 {:.1} ms",
        at(50),
        at(99)
    );
}

async fn worker(
    requests: Arc<Vec<RequestBuilder>>,
    next: Arc<AtomicUsize>,
    status: u16,
) -> Vec<Duration> {
    let mut times = vec![];
    while let Some(request) = requests.get(next.fetch_add(1, Ordering::Relaxed)) {
        let begun = Instant::now();
        let answer = request.try_clone().unwrap().send().await.unwrap();
        assert_eq!(answer.status().as_u16(), status);
        answer.bytes().await.unwrap();
        times.push(begun.elapsed());
    }
    times
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
