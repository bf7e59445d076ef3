//! Several relays on one Redis server, under load, while relays and the server are killed: everything
//! that was acknowledged is done afterwards.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crcr_domain::protocol::dispatch::DispatchStatus;
use crcr_relay::admin::deliveries;
use crcr_results::Window;
use crcr_results::sqlite::SqliteResults;
use crcr_standin::runs::Run;
use crcr_standin::world::{Dispatch, PullRequest};
use crcr_store::{RedisStore, RedisUrl, SqliteStore, StateStore, StoreRole, TaskState};
use crcr_testkit::redis::{RedisServer, RedisSettings};
use jiff::Timestamp;
use reqwest::StatusCode;
use serde_json::{Value, json};
use url::Url;

use crate::relay_process::{Place, Running, UPSTREAM, eventually};

const REPLICAS: usize = 3;

/// How much is done: a little by default; `tests/bench/relay_replicas.sh` does much more.
struct LoadSize {
    targets: usize,
    deliveries: usize,
    kill_every: Duration,
    redis_restarts: usize,
    /// Whether the leases of killed relays end by themselves, after two minutes.
    waits_for_leases: bool,
}

impl LoadSize {
    #[expect(clippy::disallowed_methods, reason = "the test's own setting, not the binary's")]
    fn from_env() -> Self {
        let large = std::env::vars().any(|(name, _)| name == "REPLICAS_LARGE");
        if large {
            Self {
                targets: 50,
                deliveries: 2000,
                kill_every: Duration::from_secs(10),
                redis_restarts: 2,
                waits_for_leases: true,
            }
        } else {
            Self {
                targets: 4,
                deliveries: 60,
                kill_every: Duration::from_secs(2),
                redis_restarts: 1,
                waits_for_leases: false,
            }
        }
    }
}

struct Scene {
    place: Place,
    size: LoadSize,
    targets: Vec<String>,
    relays: Mutex<Vec<Running>>,
    redis: Mutex<RedisServer>,
    client: reqwest::Client,
    started: AtomicUsize,
    /// The ids of acknowledged deliveries.
    accepted: Mutex<Vec<String>>,
    /// Delivery and repository of acknowledged ends of jobs.
    reported: Mutex<Vec<(String, String)>>,
    /// What GitHub got, and how often.
    dispatched: Mutex<HashMap<(String, String), usize>>,
    is_over: AtomicBool,
}

/// The last target is at L4, so that it has check runs; the first is at L1, and reports nothing.
fn allowlist(targets: &[String]) -> String {
    let middle = targets[1..targets.len() - 1].join(", ");
    let last = targets.len() - 1;
    format!("L1: [{}]\nL2: [{middle}]\nL4:\n  - {}: [dave]\n", targets[0], targets[last])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs redis-server"]
async fn killed_relays_and_a_restarted_redis_lose_nothing_that_was_acknowledged() {
    let scene = Arc::new(Scene::new());
    for relay in 0..REPLICAS {
        let url = scene.relays.lock().unwrap()[relay].url.clone();
        ready(&url).await;
    }
    let mut load: Vec<_> = (0..4).map(|_| tokio::spawn(Arc::clone(&scene).deliver_all())).collect();
    let downstream = tokio::spawn(Arc::clone(&scene).run_downstream());
    let killer = tokio::spawn(Arc::clone(&scene).kill_by_turns());
    for part in load.drain(..) {
        part.await.unwrap();
    }
    killer.await.unwrap();
    scene.drain().await;
    scene.is_over.store(true, Ordering::Release);
    downstream.await.unwrap();
    scene.end_check_runs().await;
    scene.check().await;
}

async fn ready(url: &Url) {
    let url = url.join("readyz").unwrap();
    eventually("the relay is ready", async || {
        reqwest::get(url.clone()).await.is_ok_and(|answer| answer.status() == StatusCode::OK)
    })
    .await;
}

impl Scene {
    fn new() -> Self {
        let size = LoadSize::from_env();
        let targets: Vec<_> =
            (0..size.targets).map(|n| format!("org{}/backend{n}", n % 7)).collect();
        let redis = RedisServer::start(RedisSettings::default()).unwrap();
        let names: Vec<&str> = targets.iter().map(String::as_str).collect();
        let place = Place::new(&names, &allowlist(&targets))
            .set("CRCR_ADMIN_LISTEN", "off")
            .set("RATE_LIMIT_PER_MIN", "100000")
            .set("CRCR_RUN_WINDOW", "5s")
            .set("CRCR_STORE", &redis.url())
            .set("CRCR_RESULTS", "sqlite:results.db");
        let relays = (0..REPLICAS).map(|_| place.serve()).collect();
        Self {
            place,
            size,
            targets,
            relays: Mutex::new(relays),
            redis: Mutex::new(redis),
            client: reqwest::Client::builder().timeout(Duration::from_secs(15)).build().unwrap(),
            started: AtomicUsize::default(),
            accepted: Mutex::default(),
            reported: Mutex::default(),
            dispatched: Mutex::default(),
            is_over: AtomicBool::default(),
        }
    }

    fn any_relay(&self) -> Url {
        self.relays.lock().unwrap()[rand::random_range(0..REPLICAS)].url.clone()
    }

    async fn store(&self) -> RedisStore {
        let url = RedisUrl::parse(&self.redis.lock().unwrap().url()).unwrap();
        RedisStore::open(&url).await.unwrap()
    }

    /// Sends new deliveries until enough were tried. Like GitHub, it tries each once.
    async fn deliver_all(self: Arc<Self>) {
        while self.started.fetch_add(1, Ordering::Relaxed) < self.size.deliveries {
            let number = rand::random_range(1..self.size.deliveries as u64);
            let head = format!("{:040x}", rand::random::<u128>());
            let state = self.place.github.state();
            let pull = PullRequest::from_fork(number, UPSTREAM, &head, Timestamp::now());
            state.world.put_pull(UPSTREAM, pull);
            let payload = state.pull_request_payload(UPSTREAM, number, "synchronize");
            let delivery = state.world.delivery("pull_request", &payload);
            let target = self.any_relay().join("github/webhook").unwrap();
            match delivery.send(&self.client, &target).await {
                Ok(answer) if answer.status == 202 => {
                    self.accepted.lock().unwrap().push(delivery.id);
                }
                Ok(answer) => assert_eq!(answer.status, 503, "a refusal says that it is temporary"),
                // The relay was killed.
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
            tokio::time::sleep(Duration::from_millis(150)).await;
        }
    }

    /// Every dispatched job starts, ends and reports both.
    async fn run_downstream(self: Arc<Self>) {
        let mut jobs = tokio::task::JoinSet::new();
        loop {
            let is_over = self.is_over.load(Ordering::Acquire);
            for dispatch in self.place.github.state().world.take_dispatches() {
                let id = dispatch.client_payload["delivery_id"].as_str().unwrap().to_owned();
                let key = (id, dispatch.repository.clone());
                let times = *self
                    .dispatched
                    .lock()
                    .unwrap()
                    .entry(key)
                    .and_modify(|times| *times += 1)
                    .or_insert(1);
                if times == 1 && dispatch.repository != self.targets[0] {
                    jobs.spawn(Arc::clone(&self).run_job(dispatch));
                }
            }
            if is_over {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        while let Some(job) = jobs.join_next().await {
            job.unwrap();
        }
    }

    async fn run_job(self: Arc<Self>, dispatch: Dispatch) {
        let run = rand::random_range(10_000..1 << 40);
        self.set_run(&dispatch, run, "in_progress");
        self.report(&dispatch, run, "in_progress").await;
        self.report(&dispatch, run, "completed").await;
        self.set_run(&dispatch, run, "completed");
        let delivery = dispatch.client_payload["delivery_id"].as_str().unwrap().to_owned();
        self.reported.lock().unwrap().push((delivery, dispatch.repository));
    }

    fn set_run(&self, dispatch: &Dispatch, run: u64, status: &str) {
        self.place.github.state().runs.add(Run {
            id: run,
            repository: dispatch.repository.clone(),
            event: "repository_dispatch".to_owned(),
            workflow_path: ".github/workflows/ci.yml".to_owned(),
            status: status.to_owned(),
            conclusion: (status == "completed").then(|| "success".to_owned()),
            created_at: Timestamp::now(),
            ..Run::push()
        });
    }

    /// Reports as `crcr report` does: again, to any relay, until one accepts it.
    async fn report(&self, dispatch: &Dispatch, run: u64, status: &str) {
        let conclusion = (status == "completed").then_some("success");
        let mut body = dispatch.client_payload.clone();
        body["workflow"] = json!({
            "schema_version": "1", "status": status, "conclusion": conclusion, "name": "CI",
            "run_id": run.to_string(), "run_attempt": "1", "job_name": "test",
        });
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let token = self.token(&dispatch.repository, run);
            let url = self.any_relay().join("github/callback").unwrap();
            let sent = self.client.post(url).bearer_auth(token).body(body.to_string()).send().await;
            match sent {
                Ok(answer) if answer.status().is_success() => return,
                Ok(answer) => {
                    let status = answer.status();
                    let text = answer.text().await.unwrap_or_default();
                    assert!(status.is_server_error(), "{status}: {text}");
                }
                Err(_) => {}
            }
            assert!(Instant::now() < until, "no relay accepts a report");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn token(&self, repo: &str, run: u64) -> String {
        let state = self.place.github.state();
        let now = Timestamp::now().as_second();
        let claims: Value = json!({
            "iss": state.origin(), "aud": "pytorch-cross-repo-ci-relay", "iat": now, "nbf": now,
            "exp": now + 300, "jti": format!("{:x}", rand::random::<u128>()), "repository": repo,
            "repository_id": state.world.add_repo(repo).to_string(), "run_id": run.to_string(),
            "run_attempt": "1", "event_name": "repository_dispatch", "ref": "refs/heads/main",
        });
        state.oidc.sign(&claims)
    }

    /// Kills relays by turns, and Redis in between, while there is load.
    async fn kill_by_turns(self: Arc<Self>) {
        let mut redis_restarts = 0;
        let mut turn = 0;
        loop {
            tokio::time::sleep(self.size.kill_every / 2).await;
            let tried = self.started.load(Ordering::Relaxed).min(self.size.deliveries);
            let is_due = tried * (self.size.redis_restarts + 1)
                >= self.size.deliveries * (redis_restarts + 1);
            if is_due && redis_restarts < self.size.redis_restarts {
                redis_restarts += 1;
                self.redis.lock().unwrap().kill().unwrap();
                tokio::time::sleep(Duration::from_millis(300)).await;
                self.redis.lock().unwrap().again().unwrap();
            }
            if tried == self.size.deliveries
                && redis_restarts == self.size.redis_restarts
                && turn > 0
            {
                return;
            }
            tokio::time::sleep(self.size.kill_every / 2).await;
            self.relays.lock().unwrap()[turn % REPLICAS].kill();
            tokio::time::sleep(Duration::from_millis(300)).await;
            let again = self.place.serve();
            self.relays.lock().unwrap()[turn % REPLICAS] = again;
            turn += 1;
        }
    }

    /// Waits until every dispatch was sent or given up, and every fact copied.
    async fn drain(&self) {
        let store = self.store().await;
        if !self.size.waits_for_leases {
            self.end_leases();
        }
        let until = Instant::now() + Duration::from_secs(300);
        loop {
            let mut waiting = 0;
            for state in [TaskState::Ready, TaskState::Leased] {
                let tasks = store.tasks(Some(state), 1_000_000).await.unwrap();
                waiting += tasks.iter().filter(|task| task.kind() == "dispatch").count();
            }
            let facts = store.queue_depth().await.unwrap().facts;
            if waiting == 0 && facts == 0 {
                return;
            }
            assert!(Instant::now() < until, "{waiting} dispatches and {facts} facts still wait");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Makes all leases end now, so that a small test needn't wait for those of killed relays.
    fn end_leases(&self) {
        const SCRIPT: &str =
            "for _, id in ipairs(redis.call('ZRANGE', '{crcr}:tasks:leased', 0, -1)) do
              local lane = redis.call('HGET', '{crcr}:task:' .. id, 'lane')
              redis.call('ZADD', '{crcr}:lane:' .. lane, 1, id)
              redis.call('ZADD', '{crcr}:lanes', 1, lane)
            end return 'OK'";
        let done = self.redis.lock().unwrap().command(&["EVAL", SCRIPT, "0"]).unwrap();
        assert_eq!(done.trim(), "OK");
    }

    /// Waits until the relays have looked at every run, and no check run is open.
    async fn end_check_runs(&self) {
        let world = &self.place.github.state().world;
        let until = Instant::now() + Duration::from_secs(300);
        loop {
            let mut open = world.check_runs(UPSTREAM);
            open.retain(|run| run.status != "completed");
            let Some(first) = open.first() else { return };
            assert!(Instant::now() < until, "{} check runs are open: {first:?}", open.len());
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    async fn check(&self) {
        let store = self.store().await;
        let dispatched = std::mem::take(&mut *self.dispatched.lock().unwrap());
        let accepted = std::mem::take(&mut *self.accepted.lock().unwrap());
        assert!(accepted.len() > self.size.deliveries / 3, "there was load: {}", accepted.len());
        for id in &accepted {
            let overview = deliveries::delivery(&store, id).await.unwrap();
            let overview = overview.unwrap_or_else(|| panic!("{id} was acknowledged and is gone"));
            assert_eq!(overview.dispatches.len(), self.targets.len());
            for dispatch in overview.dispatches {
                let key = (id.clone(), dispatch.repo.as_str().to_owned());
                match &dispatch.status {
                    DispatchStatus::Sent { .. } => {
                        assert!(dispatched.contains_key(&key), "{key:?} never came");
                    }
                    DispatchStatus::Superseded { by } => {
                        let newer = deliveries::delivery(&store, by).await.unwrap();
                        assert!(newer.is_some(), "{key:?} was superseded by the unknown {by}");
                    }
                    other => panic!("{key:?} is {other:?}"),
                }
            }
        }
        eventually("all facts are copied", async || store.queue_depth().await.unwrap().facts == 0)
            .await;
        let results = self.place.folder().join("results.db");
        let results = SqliteStore::open(&results, StoreRole::Tool).unwrap();
        let window = Window::all(Timestamp::UNIX_EPOCH, Timestamp::MAX);
        let ended: HashSet<_> = SqliteResults::new(Arc::new(results))
            .attempts(&window)
            .unwrap()
            .into_iter()
            .filter(|fact| fact.state.status() == "completed")
            .map(|fact| (fact.delivery, fact.repo))
            .collect();
        let reported = std::mem::take(&mut *self.reported.lock().unwrap());
        for report in &reported {
            assert!(ended.contains(report), "{report:?} was acknowledged and isn't in the results");
        }
        assert_eq!(deliveries::dead_letters(&store, 10).await.unwrap(), []);
        let log = self.place.log();
        assert!(!log.contains("the Redis server lost"), "nothing was lost, and nobody says so");
        #[expect(clippy::print_stderr, reason = "shows with --nocapture how much was at stake")]
        {
            eprintln!(
                "{} deliveries accepted, {} dispatches ({} more than once), {} jobs reported, {} \
                 check runs",
                accepted.len(),
                dispatched.len(),
                dispatched.values().filter(|count| **count > 1).count(),
                reported.len(),
                self.place.github.state().world.check_runs(UPSTREAM).len(),
            );
        }
    }
}
