//! A load on `crcr relay serve` as processes of their own, with GitHub's stand-in behind them.
//!
//! `cargo bench --workspace --bench load -- $PWD/target/release/crcr [all|pulls|growth|shares]
//! [--redis] [--replicas N]` prints what the relays did; the load, the stand-in and Redis run on the same
//! cores.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a program for measuring: it stops at what is wrong and reads its arguments"
)]

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use crcr_standin::StandIn;
use crcr_standin::world::PullRequest;
use crcr_testkit::redis::{RedisServer, RedisSettings};
use jiff::Timestamp;
use reqwest::{Client, RequestBuilder};
use serde_json::{Value, json};
use url::Url;

const UPSTREAM: &str = "acme/upstream";
const MAX_TARGETS: usize = 1000;
const CONNECTIONS: usize = 64;
/// The size of a webhook's body, in bytes.
const BODY: usize = 30 * 1024;
/// No backend wants pull requests: the deployed relay's figure is without targets.
const NO_TARGET: &str = "L1:\n  - acme/one:\n      events: [nightly]\n";

#[derive(Parser)]
struct LoadArgs {
    /// The `crcr` binary.
    binary: PathBuf,
    #[arg(value_enum, default_value = "all")]
    load: LoadKind,
    /// Keep the state in a Redis server that is started for it, with every change on disk.
    #[arg(long)]
    redis: bool,
    /// More than one needs Redis. Each request goes to the next one.
    #[arg(long, default_value_t = 1)]
    replicas: usize,
    #[arg(long, default_value_t = 20_000)]
    webhooks: usize,
    #[arg(long, default_value_t = 10_000)]
    reports: usize,
    /// How long each round of `pulls` takes.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// The most deliveries that `growth` stores.
    #[arg(long, default_value_t = 1_000_000)]
    deliveries: usize,
    /// Added by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum LoadKind {
    /// Webhooks, dispatches and reports.
    All,
    /// Webhooks of one pull request and of many, over 64 connections and over one, in rounds.
    Pulls,
    /// More and more backends, then more and more stored deliveries.
    Growth,
    /// What one loud pull request, and an external HUD that hangs, cost the others.
    Shares,
}

/// Relays with one store, in a folder of their own.
struct Relays {
    children: Vec<Child>,
    urls: Vec<Url>,
    next: AtomicUsize,
    started: Instant,
    folder: tempfile::TempDir,
    redis: Option<RedisServer>,
}

/// What a load is made with.
struct Load {
    args: LoadArgs,
    github: StandIn,
    client: Client,
    targets: Vec<String>,
}

#[tokio::main]
async fn main() {
    let mut args = LoadArgs::parse();
    args.binary = std::fs::canonicalize(args.binary).unwrap();
    let github = StandIn::start().unwrap();
    let world = &github.state().world;
    world.limit(u64::MAX / 2, Timestamp::now() + Duration::from_secs(24 * 3600));
    let targets: Vec<String> = (0..MAX_TARGETS).map(|n| format!("acme-{n}/backend")).collect();
    for repo in targets.iter().map(String::as_str).chain([UPSTREAM, "acme/one"]) {
        world.install(repo);
    }
    let load = Arc::new(Load { args, github, client: Client::new(), targets });
    match load.args.load {
        LoadKind::All => load.all().await,
        LoadKind::Pulls => load.pulls().await,
        LoadKind::Shares => {
            for conclusion in ["success", "failure"] {
                load.loud_pull_request(conclusion).await;
            }
            for hangs in [false, true] {
                load.hanging_hud(hangs).await;
            }
        }
        LoadKind::Growth => {
            load.more_backends().await;
            load.more_deliveries().await;
        }
    }
}

impl Relays {
    fn next_url(&self, path: &str) -> Url {
        let next = self.next.fetch_add(1, Ordering::Relaxed) % self.urls.len();
        self.urls[next].join(path).unwrap()
    }

    /// Seconds of CPU time so far, in the program and in the kernel for it, as Linux tells it.
    fn cpu(&self) -> [f64; 2] {
        let mut sum = [0.0; 2];
        for child in &self.children {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
            // The name may hold spaces; after it comes the third field. Times are in hundredths.
            let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
            for (sum, ticks) in sum.iter_mut().zip([fields[11], fields[12]]) {
                *sum += ticks.parse::<f64>().unwrap() / 100.0;
            }
        }
        sum
    }

    /// Size of everything that the relays store, except in Redis.
    fn folder_bytes(&self) -> u64 {
        let files = std::fs::read_dir(self.folder.path()).unwrap();
        files.map(|file| file.unwrap().metadata().unwrap().len()).sum()
    }

    /// Resident memory of each process in MiB, as Linux tells it, and of Redis as it tells itself.
    fn resident(&self) -> String {
        let of = |child: &Child| {
            let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
            let kibibytes: u64 = line.split_whitespace().next().unwrap().parse().unwrap();
            format!("{} MiB", kibibytes / 1024)
        };
        let mut all: Vec<String> = self.children.iter().map(of).collect();
        if let Some(redis) = &self.redis {
            let info = redis.command(&["INFO", "memory"]).unwrap();
            let used = info.lines().find_map(|line| line.strip_prefix("used_memory_rss:")).unwrap();
            let bytes: u64 = used.trim().parse().unwrap();
            all.push(format!("Redis {} MiB", bytes >> 20));
        }
        all.join(", ")
    }
}

impl Drop for Relays {
    fn drop(&mut self) {
        for child in &mut self.children {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Load {
    async fn all(&self) {
        let relays = self.start(NO_TARGET);
        self.answer(&relays, "healthz").await;
        println!("first answer {:.0} ms after the start", millis(relays.started.elapsed()));
        self.answer(&relays, "readyz").await;
        println!("resident when idle: {}", relays.resident());
        self.accept("without a target", &relays, self.args.webhooks).await;
        println!("resident after the webhooks: {}", relays.resident());
        drop(relays);

        let relays = self.start("L1: [acme/one]\n");
        self.answer(&relays, "readyz").await;
        self.accept("with one target, dispatched meanwhile", &relays, self.args.webhooks).await;
        println!("resident after the webhooks: {}", relays.resident());
        drop(relays);

        for targets in [200, 20] {
            let relays = self.start_with(targets).await;
            self.fan_out(&relays, targets, 20).await;
            if targets == 20 {
                self.report(&relays, targets, self.args.reports).await;
                println!("resident after the reports: {}", relays.resident());
            }
        }
    }

    async fn more_backends(&self) {
        for targets in [1, 10, 100, MAX_TARGETS] {
            let relays = self.start_with(targets).await;
            let before = relays.cpu();
            let rounds = (1000 / targets).clamp(5, 100);
            self.fan_out(&relays, targets, rounds).await;
            let [program, kernel] = relays.cpu();
            let spent = program + kernel - before[0] - before[1];
            let each = spent * 1e3 / (targets * rounds) as f64;
            println!("CPU {each:.2} ms a dispatch; resident: {}", relays.resident());
        }
    }

    /// With one target each, and small bodies: a body is deleted long before its delivery.
    async fn more_deliveries(self: &Arc<Self>) {
        let relays = Arc::new(self.start("L1: [acme/one]\n"));
        self.answer(&relays, "readyz").await;
        let state = self.github.state();
        let pull = PullRequest::from_fork(1, UPSTREAM, &"a".repeat(40), Timestamp::now());
        state.world.put_pull(UPSTREAM, pull);
        let payload = Arc::new(state.pull_request_payload(UPSTREAM, 1, "opened"));
        let (mut stored, mut goal) = (0, 10_000);
        while stored < self.args.deliveries {
            // A tenth of the goal is measured, after the rest.
            for count in [goal - stored - goal / 10, goal / 10] {
                let cpu = relays.cpu();
                let started = Instant::now();
                let times = self.deliver_each(&relays, &payload, count).await;
                let seconds = started.elapsed().as_secs_f64();
                stored += count;
                if stored == goal {
                    let [program, kernel] = relays.cpu();
                    let each = (program + kernel - cpu[0] - cpu[1]) * 1e3 / count as f64;
                    println!(
                        "{stored} deliveries stored, the last {count}: {:.0}/s, {}, CPU {each:.2} ms each; \
                         resident: {}; folder {} MiB",
                        count as f64 / seconds,
                        percentiles(times),
                        relays.resident(),
                        relays.folder_bytes() >> 20,
                    );
                }
            }
            goal = (goal * 10).min(self.args.deliveries.max(stored + 1));
        }
    }

    /// Delivers `count` webhooks over [`CONNECTIONS`] connections, each of another pull request.
    async fn deliver_each(
        self: &Arc<Self>,
        relays: &Arc<Relays>,
        payload: &Arc<Value>,
        count: usize,
    ) -> Vec<Duration> {
        let left = Arc::new(AtomicUsize::new(count));
        let workers = (0..CONNECTIONS).map(|_| {
            let (load, relays, payload, left) =
                (Arc::clone(self), Arc::clone(relays), Arc::clone(payload), Arc::clone(&left));
            tokio::spawn(async move {
                let is_left = || {
                    let take = |left: usize| left.checked_sub(1);
                    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
                };
                let (times, refused) = load.deliver_while(&relays, &payload, false, is_left).await;
                assert_eq!(refused, 0);
                times
            })
        });
        let workers: Vec<_> = workers.collect();
        let drained = async {
            loop {
                tokio::time::sleep(Duration::from_millis(100)).await;
                self.github.state().world.take_dispatches();
            }
        };
        let times = tokio::select! {
            times = futures_util::future::join_all(workers) => times,
            () = drained => unreachable!("it never ends"),
        };
        times.into_iter().flat_map(Result::unwrap).collect()
    }

    /// Relays whose allowlist has `targets` backends, after a first webhook that fetched their tokens.
    async fn start_with(&self, targets: usize) -> Relays {
        let relays = self.start(&format!("L2: [{}]\n", self.targets[..targets].join(", ")));
        self.answer(&relays, "readyz").await;
        self.github.state().world.take_dispatches();
        for _ in &relays.urls {
            self.open(&relays, 900_000, targets).await;
        }
        relays
    }

    fn start(&self, allowlist: &str) -> Relays {
        self.start_set(allowlist, &[])
    }

    /// Relays with further settings.
    fn start_set(&self, allowlist: &str, settings: &[(&str, &str)]) -> Relays {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("allowlist.yml"), allowlist).unwrap();
        let redis = self.args.redis.then(|| RedisServer::start(RedisSettings::default()).unwrap());
        let started = Instant::now();
        let (mut children, mut urls) = (vec![], vec![]);
        for _ in 0..self.args.replicas {
            let mut command = self.command(folder.path());
            command.envs(settings.iter().copied());
            if let Some(redis) = &redis {
                command.env("CRCR_STORE", redis.url()).env("CRCR_RESULTS", "sqlite:results.db");
            }
            let mut child = command.spawn().unwrap();
            let mut line = String::new();
            BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
            urls.push(Url::parse(line.trim().strip_prefix("listening on ").unwrap()).unwrap());
            children.push(child);
        }
        Relays { children, urls, next: AtomicUsize::default(), started, folder, redis }
    }

    fn command(&self, folder: &Path) -> Command {
        let app = self.github.state().world.app();
        let origin = self.github.state().origin();
        let mut command = Command::new(&self.args.binary);
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

    /// Asks every relay until its answer is a good one.
    async fn answer(&self, relays: &Relays, path: &str) {
        for url in &relays.urls {
            let url = url.join(path).unwrap();
            let is_good = async || {
                let got = self.client.get(url.clone()).send().await;
                got.is_ok_and(|got| got.status().is_success())
            };
            while !is_good().await {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
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
    async fn accept(&self, what: &str, relays: &Relays, count: usize) {
        let requests = (1..=count as u64).map(|number| {
            let world = &self.github.state().world;
            let delivery = world.delivery("pull_request", &self.payload(number));
            let mut request = self.client.post(relays.next_url("github/webhook"));
            for (name, value) in delivery.headers() {
                request = request.header(name, value);
            }
            request.body(delivery.body.clone())
        });
        send(&format!("webhooks accepted {what}"), requests.collect(), 202).await;
        self.github.state().world.take_dispatches();
    }

    /// Delivers one webhook after the other: the times of those that were accepted, and how many were
    /// refused.
    async fn deliver_while(
        &self,
        relays: &Relays,
        payload: &Value,
        one: bool,
        go_on: impl Fn() -> bool,
    ) -> (Vec<Duration>, usize) {
        let world = &self.github.state().world;
        let (mut times, mut refused) = (vec![], 0);
        let mut payload = payload.clone();
        while go_on() {
            if !one {
                payload["number"] = json!(rand::random::<u32>());
                payload["pull_request"]["number"] = payload["number"].clone();
            }
            let delivery = world.delivery("pull_request", &payload);
            let url = relays.next_url("github/webhook");
            let begun = Instant::now();
            match delivery.send(&self.client, &url).await.unwrap().status {
                202 => times.push(begun.elapsed()),
                _ => refused += 1,
            }
        }
        (times, refused)
    }

    /// Webhooks one after the other, each until all `targets` have been sent.
    async fn fan_out(&self, relays: &Relays, targets: usize, rounds: usize) {
        let mut times = vec![];
        for round in 0..rounds {
            let (accepted, _) = self.open(relays, 1_000_000 + round as u64, targets).await;
            times.push(accepted.elapsed());
        }
        println!("{targets} targets dispatched after acceptance: {}", percentiles(times));
    }

    /// Delivers a webhook and waits for its dispatches: when it was accepted, and a
    /// `client_payload`.
    async fn open(&self, relays: &Relays, number: u64, targets: usize) -> (Instant, Value) {
        let (accepted, mut seen) = self.open_each(relays, number, targets).await;
        (accepted, seen.swap_remove(0).1)
    }

    /// The same, with the repository and the `client_payload` of each dispatch.
    async fn open_each(
        &self,
        relays: &Relays,
        number: u64,
        targets: usize,
    ) -> (Instant, Vec<(String, Value)>) {
        let world = &self.github.state().world;
        let delivery = world.delivery("pull_request", &self.payload(number));
        let url = relays.next_url("github/webhook");
        assert_eq!(delivery.send(&self.client, &url).await.unwrap().status, 202);
        let accepted = Instant::now();
        let mut seen = vec![];
        while seen.len() < targets {
            let new = world.take_dispatches().into_iter();
            seen.extend(new.map(|dispatch| (dispatch.repository, dispatch.client_payload)));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        (accepted, seen)
    }

    /// The ends of as many jobs, each with a token of its own and the whole dispatched payload.
    async fn report(&self, relays: &Relays, targets: usize, count: usize) {
        let (_, client_payload) = self.open(relays, 2_000_000, targets).await;
        let state = self.github.state();
        let now = Timestamp::now().as_second();
        let requests = (1..=count).map(|run| {
            let repo = &self.targets[run % targets];
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
            let url = relays.next_url("github/callback");
            self.client.post(url).bearer_auth(token).body(body.to_string())
        });
        send("reports taken", requests.collect(), 200).await;
    }

    /// The start and the end of 256 jobs of each of 16 backends at L4 on one pull request. Halfway another pull
    /// request is opened: when does it have its first check run?
    async fn loud_pull_request(&self, conclusion: &str) {
        const BACKENDS: usize = 16;
        const JOBS: usize = 256;
        let entries: String =
            (self.targets[..BACKENDS].iter()).map(|repo| format!("  - {repo}: [dave]\n")).collect();
        let relays = self.start(&format!("L4:\n{entries}"));
        self.answer(&relays, "readyz").await;
        let world = &self.github.state().world;
        world.take_dispatches();
        let (_, dispatches) = self.open_each(&relays, 3_000_000, BACKENDS).await;
        let mut requests = vec![];
        for (status, conclusion) in [("in_progress", None), ("completed", Some(conclusion))] {
            for job in 0..JOBS {
                for (n, (repo, client_payload)) in dispatches.iter().enumerate() {
                    let workflow = json!({
                        "schema_version": "1", "status": status, "conclusion": conclusion,
                        "name": "CI", "run_id": (7_000 + n).to_string(), "run_attempt": "1",
                        "job_name": format!("job {job}"),
                    });
                    requests.push(self.job_report(&relays, client_payload, repo, &workflow));
                }
            }
        }
        let second_half = requests.split_off(BACKENDS * JOBS);
        let cpu = relays.cpu();
        send("starts taken", requests, 200).await;
        let sending = tokio::spawn(send("ends taken", second_half, 200));
        tokio::time::sleep(Duration::from_millis(500)).await;
        let quiet = self.payload(3_000_001);
        let head = quiet["pull_request"]["head"]["sha"].as_str().unwrap().to_owned();
        let delivery = world.delivery("pull_request", &quiet);
        let opened = Instant::now();
        let answer = delivery.send(&self.client, &relays.next_url("github/webhook")).await.unwrap();
        assert_eq!(answer.status, 202);
        while !world.check_runs(UPSTREAM).iter().any(|run| run.head_sha == head) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let first = opened.elapsed();
        sending.await.unwrap();
        // Until the relays have nothing more to do.
        let mut calls = 0;
        while calls != world.calls().len() {
            calls = world.calls().len();
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        let [program, kernel] = relays.cpu();
        let each = (program + kernel - cpu[0] - cpu[1]) * 1e3 / (BACKENDS * JOBS) as f64;
        println!(
            "{BACKENDS} × {JOBS} jobs with {conclusion}: CPU {each:.1} ms a job; another pull request's first \
             check run after {:.0} ms",
            millis(first)
        );
        world.take_dispatches();
    }

    /// Results of six accounts for an external HUD, and then a dispatch.
    async fn hanging_hud(&self, hangs: bool) {
        let hud = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/api", hud.local_addr().unwrap());
        let serving = tokio::spawn(async move {
            let mut held = vec![];
            while let Ok((mut stream, _)) = hud.accept().await {
                if !hangs {
                    let answer =
                        b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                    tokio::io::AsyncWriteExt::write_all(&mut stream, answer).await.unwrap();
                    let mut rest = vec![0; 65_536];
                    drop(tokio::io::AsyncReadExt::read(&mut stream, &mut rest).await);
                } else {
                    held.push(stream);
                }
            }
        });
        let backends = &self.targets[..6];
        let settings = [("HUD_API_URL", url.as_str()), ("HUD_BOT_KEY", "key")];
        let relays = self.start_set(&format!("L2: [{}]\n", backends.join(", ")), &settings);
        self.answer(&relays, "readyz").await;
        self.github.state().world.take_dispatches();
        let (_, client_payload) = self.open(&relays, 4_000_000, backends.len()).await;
        let reports = (0..120).map(|n| {
            let workflow = json!({
                "schema_version": "1", "status": "completed", "conclusion": "success", "name": "CI",
                "run_id": "8000", "run_attempt": "1", "job_name": format!("job {n}"),
            });
            self.job_report(&relays, &client_payload, &backends[n % backends.len()], &workflow)
        });
        send("reports taken", reports.collect(), 200).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (accepted, _) = self.open(&relays, 4_000_001, backends.len()).await;
        let state = if hangs { "hangs" } else { "answers" };
        println!(
            "while the HUD {state}: six dispatches after {:.0} ms",
            millis(accepted.elapsed())
        );
        serving.abort();
    }

    fn job_report(
        &self,
        relays: &Relays,
        client_payload: &Value,
        repo: &str,
        workflow: &Value,
    ) -> RequestBuilder {
        let state = self.github.state();
        let now = Timestamp::now().as_second();
        let mut body = client_payload.clone();
        body["workflow"] = workflow.clone();
        let token = state.oidc.sign(&json!({
            "iss": state.origin(), "aud": "pytorch-cross-repo-ci-relay", "iat": now, "nbf": now,
            "exp": now + 3600, "jti": format!("jti-{:x}", rand::random::<u128>()), "repository": repo,
            "repository_id": state.world.add_repo(repo).to_string(),
            "run_id": workflow["run_id"], "run_attempt": "1",
            "event_name": "repository_dispatch", "ref": "refs/heads/main",
        }));
        let url = relays.next_url("github/callback");
        self.client.post(url).bearer_auth(token).body(body.to_string())
    }

    /// Webhooks in rounds, of one pull request and of a new one each time; at last over one connection
    /// again, to a store that has grown.
    async fn pulls(self: &Arc<Self>) {
        let time = Duration::from_secs(self.args.seconds);
        let relays = Arc::new(self.start(NO_TARGET));
        self.answer(&relays, "readyz").await;
        let payload = Arc::new(self.payload(1));
        for (connections, one, rounds) in
            [(1, false, 2), (CONNECTIONS, true, 3), (CONNECTIONS, false, 3), (1, false, 2)]
        {
            for round in 1..=rounds {
                let (until, cpu) = (Instant::now() + time, relays.cpu());
                let workers = (0..connections).map(|_| {
                    let (load, relays, payload) =
                        (Arc::clone(self), Arc::clone(&relays), Arc::clone(&payload));
                    tokio::spawn(async move {
                        let go_on = || Instant::now() < until;
                        load.deliver_while(&relays, &payload, one, go_on).await
                    })
                });
                let workers: Vec<_> = workers.collect();
                let results = futures_util::future::join_all(workers).await;
                let results: Vec<_> = results.into_iter().map(Result::unwrap).collect();
                let refused: usize = results.iter().map(|(_, refused)| refused).sum();
                let times: Vec<_> = results.into_iter().flat_map(|(times, _)| times).collect();
                let each = |now: f64, before: f64| (now - before) * 1e3 / times.len() as f64;
                let [program, kernel] = relays.cpu();
                println!(
                    "{connections} connections, {} (round {round}): {:.0}/s, CPU each {:.2} ms and {:.2} ms \
                     in the kernel, {refused} refused, {}",
                    if one { "one pull request" } else { "others each time" },
                    times.len() as f64 / time.as_secs_f64(),
                    each(program, cpu[0]),
                    each(kernel, cpu[1]),
                    percentiles(times),
                );
            }
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
    let times: Vec<Duration> = times.into_iter().flat_map(Result::unwrap).collect();
    let (count, rate) = (times.len(), times.len() as f64 / seconds);
    println!("{what}: {count} in {seconds:.1} s, {rate:.0}/s, {}", percentiles(times));
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

fn percentiles(mut times: Vec<Duration>) -> String {
    times.sort();
    let at = |percent: usize| millis(times[(times.len() - 1) * percent / 100]);
    format!("p50 {:.1} ms, p99 {:.1} ms", at(50), at(99))
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
