//! A relay with a temporary store and GitHub's stand-in. Workers run only when a test starts them.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::response::Response;
use crcr_hud::Hud;
use crcr_results::Window;
use crcr_results::sqlite::SqliteResults;
use crcr_standin::StandIn;
use crcr_standin::world::{Delivery, PullRequest};
use crcr_store::{LeaseRequest, SqliteStore, StateStore, StoreRole};
use crcr_testkit::redis::{RedisServer, RedisSettings};
use jiff::Timestamp;
use serde_json::Value;
use tower::ServiceExt as _;

use crate::config::Config;
use crate::http::router;
use crate::http::serve::hud_of;
use crate::limits;
use crate::queue::handlers;
use crate::queue::task_kind::{ParsedTask, TaskDone, TaskError, TaskKind};
use crate::queue::workers;
use crate::relay::{self, Relay};
use crate::restore::{ResumedWork, mark_restored};

pub(crate) const UPSTREAM: &str = "acme/upstream";
pub(crate) const HEAD: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
pub(crate) const NEWER: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
pub(crate) const ALLOWLIST: &str = "L1: [acme/one]\nL2: [acme/two]\nL3:\n  npu:\n    acme/three: [carol]\nL4:\n  - acme/four: [dave]\n";
pub(crate) const ALL: [&str; 4] = ["acme/four", "acme/one", "acme/three", "acme/two"];

thread_local! {
    static ON_REDIS: Cell<bool> = const { Cell::new(false) };
    static CLOCK_AHEAD: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Runs a test with relays that each keep their state in a Redis server of their own, and their results in SQLite.
/// The test has a runtime on this thread.
pub(crate) fn on_redis(test: fn()) {
    ON_REDIS.set(true);
    test();
    ON_REDIS.set(false);
}

pub(crate) struct World {
    pub(crate) github: StandIn,
    pub(crate) relay: Arc<Relay>,
    pub(crate) results: SqliteResults,
    pub(crate) hud: Arc<Hud>,
    /// The relay's address; without one, requests are passed directly to its router.
    address: Option<std::net::SocketAddr>,
    pub(crate) folder: tempfile::TempDir,
    redis: Option<RedisServer>,
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with(&[]).await
    }

    pub(crate) async fn with(settings: &[(&str, &str)]) -> Self {
        Self::on(StandIn::start().unwrap(), settings).await
    }

    /// The stand-in's keys are those of `issuer`.
    pub(crate) async fn with_issuer(issuer: &str, settings: &[(&str, &str)]) -> Self {
        let github = StandIn::start().unwrap();
        let issuers = format!("{issuer}={}/.well-known/jwks", github.state().origin());
        let mut settings = settings.to_vec();
        settings.push(("CRCR_OIDC_ISSUERS", &issuers));
        Self::on(github, &settings).await
    }

    /// A relay whose machine's clock is ahead of GitHub's.
    pub(crate) async fn with_clock_ahead(by: Duration) -> Self {
        CLOCK_AHEAD.set(by);
        let world = Self::new().await;
        CLOCK_AHEAD.set(Duration::ZERO);
        world
    }

    pub(crate) async fn on(github: StandIn, settings: &[(&str, &str)]) -> Self {
        let world = &github.state().world;
        world.install(UPSTREAM);
        for repo in ALL {
            world.install(repo);
        }
        let pull = PullRequest::from_fork(7, UPSTREAM, HEAD, github.state().clock.now());
        world.put_pull(UPSTREAM, pull);
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("allowlist.yml"), ALLOWLIST).unwrap();
        let redis = ON_REDIS.get().then(|| {
            let settings = RedisSettings { is_durable: false, ..RedisSettings::default() };
            RedisServer::start(settings).unwrap()
        });
        // A relay is large until it is behind its `Arc`.
        let start = start(&github, folder.path(), redis.as_ref(), settings);
        let (relay, results) = Box::pin(start).await;
        let hud = Arc::new(hud_of(&relay));
        let world = Self { github, relay, results, hud, address: None, folder, redis };
        // Only few tests are about the files of backends, which are read when the allowlist comes into force.
        if world.redis.is_some() {
            world.work().await;
        } else {
            world.sql("DELETE FROM task");
        }
        world
    }

    /// A relay that gets its requests over HTTP, as in production.
    pub(crate) async fn listening(settings: &[(&str, &str)]) -> Self {
        let mut world = Self::with(settings).await;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        world.address = Some(listener.local_addr().unwrap());
        let router = router::public(&world.relay, &world.hud);
        let forever = tokio_util::sync::CancellationToken::new();
        let limits = crate::http::connections::ConnectionLimits::default();
        tokio::spawn(crate::http::connections::serve(listener, router, limits, forever));
        world
    }

    /// The address of its webhooks, when it listens.
    pub(crate) fn webhook_url(&self) -> url::Url {
        let address = self.address.expect("the relay listens");
        format!("http://{address}/github/webhook").parse().unwrap()
    }

    /// The same world with a new process of the relay on the same store.
    pub(crate) async fn restart(self, settings: &[(&str, &str)]) -> Self {
        let Self { github, folder, relay, results, hud, redis, .. } = self;
        drop((relay, results, hud));
        // A relay is large until it is behind its `Arc`.
        let start = start(&github, folder.path(), redis.as_ref(), settings);
        let (relay, results) = Box::pin(start).await;
        let hud = Arc::new(hud_of(&relay));
        Self { github, relay, results, hud, address: None, folder, redis }
    }

    /// Another process of the relay on the same store.
    pub(crate) async fn other_replica(&self) -> Arc<Relay> {
        self.other_replica_with(&[]).await
    }

    pub(crate) async fn other_replica_with(&self, settings: &[(&str, &str)]) -> Arc<Relay> {
        let config = config(&self.github, self.folder.path(), self.redis.as_ref(), settings);
        let (store, kept) = (Arc::clone(&self.relay.store), Arc::clone(&self.relay.results));
        replica(&self.github, config, store, kept).await
    }

    /// Another process on a machine whose clock is ahead.
    pub(crate) async fn replica_ahead(&self, by: Duration) -> Arc<Relay> {
        CLOCK_AHEAD.set(by);
        let replica = self.other_replica().await;
        CLOCK_AHEAD.set(Duration::ZERO);
        replica
    }

    pub(crate) async fn metrics(&self) -> String {
        let input = crate::http::metrics::MetricsInput::read(&self.relay).await;
        self.relay.metrics.text(&input)
    }

    /// A copy of the store as it is now, and the time of it.
    pub(crate) fn backup(&self) -> (tempfile::TempDir, Timestamp) {
        let (folder, at) = (tempfile::tempdir().unwrap(), self.relay.now());
        let copy = folder.path().join("crcr.db");
        crcr_store::sqlite::copy_database(&self.folder.path().join("crcr.db"), &copy).unwrap();
        (folder, at)
    }

    /// The same world with a new relay on a store that was put back to a backup.
    pub(crate) async fn restore(
        self,
        (backup, backup_at): (tempfile::TempDir, Timestamp),
        settings: &[(&str, &str)],
    ) -> (Self, ResumedWork) {
        let Self { github, folder, relay, results, hud, redis, .. } = self;
        let now = relay.now();
        drop((relay, results, hud));
        let path = folder.path().join("crcr.db");
        for end in ["-wal", "-shm"] {
            // The last connection may have removed it.
            let _ = std::fs::remove_file(format!("{}{end}", path.display()));
        }
        std::fs::copy(backup.path().join("crcr.db"), &path).unwrap();
        let store = SqliteStore::open(&path, StoreRole::Tool).unwrap();
        let resumed = mark_restored(&store, backup_at, now).await.unwrap();
        drop(store);
        // A relay is large until it is behind its `Arc`.
        let start = start(&github, folder.path(), redis.as_ref(), settings);
        let (relay, results) = Box::pin(start).await;
        let hud = Arc::new(hud_of(&relay));
        (Self { github, relay, results, hud, address: None, folder, redis }, resumed)
    }

    /// A connection of its own to the relay's store.
    pub(crate) fn database(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(self.folder.path().join("crcr.db")).unwrap()
    }

    /// Changes the store behind the relay's back.
    pub(crate) fn sql(&self, text: &str) {
        self.database().execute_batch(text).unwrap();
    }

    /// Renames a table of the store, so that everything that needs it fails.
    pub(crate) fn rename(&self, from: &str, to: &str) {
        self.sql(&format!("ALTER TABLE {from} RENAME TO {to}"));
    }

    /// The size of the largest record that isn't a webhook's body, in bytes.
    pub(crate) fn largest_record_but_bodies(&self) -> u64 {
        let largest = "SELECT max(length(value)) FROM record WHERE key NOT LIKE '%\"body\"]'";
        self.value(largest).cast_unsigned()
    }

    /// The number of rows of a table.
    pub(crate) fn rows(&self, table: &str) -> u64 {
        self.value(&format!("SELECT count(*) FROM {table}")).cast_unsigned()
    }

    /// The result of a query for one number.
    pub(crate) fn value(&self, query: &str) -> i64 {
        self.database().query_row(query, [], |row| row.get(0)).unwrap()
    }

    pub(crate) fn remove_allowlist(&self) {
        std::fs::remove_file(self.folder.path().join("allowlist.yml")).unwrap();
    }

    pub(crate) fn allow(&self, text: &str) {
        std::fs::write(self.folder.path().join("allowlist.yml"), text).unwrap();
    }

    pub(crate) async fn enforce(&self, text: &str) {
        self.allow(text);
        self.relay.allowlist.refresh(&self.relay.app, self.relay.now()).await;
    }

    pub(crate) async fn send(&self, delivery: &Delivery) -> (StatusCode, Value) {
        let mut request = Request::post("/github/webhook");
        for (name, value) in delivery.headers() {
            request = request.header(name, value);
        }
        self.call(request.body(Body::from(delivery.body.clone())).unwrap()).await
    }

    pub(crate) async fn report(&self, token: Option<&str>, body: Vec<u8>) -> (StatusCode, Value) {
        let mut request = Request::post("/github/callback");
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        self.call(request.body(Body::from(body)).unwrap()).await
    }

    pub(crate) async fn answer(&self, request: Request<Body>) -> Response {
        router::public(&self.relay, &self.hud).oneshot(request).await.unwrap()
    }

    pub(crate) async fn call(&self, request: Request<Body>) -> (StatusCode, Value) {
        if let Some(address) = self.address {
            let (head, body) = request.into_parts();
            let url = format!("http://{address}{}", head.uri);
            let body = axum::body::to_bytes(body, 1 << 25).await.unwrap();
            let request =
                self.relay.http.request(head.method, url).headers(head.headers).body(body);
            let answer = request.send().await.unwrap();
            let status = answer.status();
            return (status, answer.json().await.unwrap_or(Value::Null));
        }
        let response = self.answer(request).await;
        let status = response.status();
        let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
    }

    /// A delivery for pull request 7 in its current state.
    pub(crate) fn pull_request(&self, action: &str) -> Delivery {
        let world = &self.github.state().world;
        let origin = self.github.state();
        world.delivery("pull_request", &origin.pull_request_payload(UPSTREAM, 7, action))
    }

    /// A new head, or another change, a second later.
    pub(crate) fn change(&self, change: impl FnOnce(&mut PullRequest)) {
        self.github.state().world.change_pull(UPSTREAM, 7, |pull| {
            pull.updated_at += Duration::from_secs(1);
            change(pull);
        });
    }

    /// Leases due tasks.
    async fn lease(&self) -> Vec<ParsedTask> {
        let now = self.relay.now();
        let want = LeaseRequest {
            now,
            until: now + limits::TASK_LEASE,
            max_tasks: 100,
            max_per_lane: 100,
            ..LeaseRequest::default()
        };
        let tasks = self.relay.store.lease_tasks(want).await.unwrap();
        tasks.into_iter().map(ParsedTask::new).collect()
    }

    /// Runs the tasks that are due now, and not yet what they put into the queue.
    pub(crate) async fn work_once(&self) {
        for task in self.lease().await {
            let result = handlers::run(&self.relay, &task).await;
            workers::settle(&self.relay, &task, result).await.unwrap();
        }
    }

    /// Runs all due tasks until none is left, and returns their errors.
    pub(crate) async fn work(&self) -> Vec<String> {
        let mut errors = vec![];
        loop {
            let now = self.relay.now();
            let tasks = self.lease().await;
            if tasks.is_empty() {
                return errors;
            }
            for task in tasks {
                let result = handlers::run(&self.relay, &task).await;
                if let Err(fail) = &result {
                    errors.push(fail.message.clone());
                }
                assert!(!matches!(&result, Ok(TaskDone::RunAgain(at)) if *at <= now), "it spins");
                workers::settle(&self.relay, &task, result).await.unwrap();
            }
        }
    }

    /// Runs all due tasks, none of which fails.
    pub(crate) async fn settle(&self) {
        assert_eq!(self.work().await, Vec::<String>::new());
    }

    /// Advances the clock, and runs all that comes due.
    pub(crate) async fn work_after(&self, time: Duration) -> Vec<String> {
        self.later(time);
        self.work().await
    }

    /// Sends an event of pull request 7, and runs all due tasks.
    pub(crate) async fn send_and_work(&self, action: &str) -> Vec<String> {
        self.send(&self.pull_request(action)).await;
        self.work().await
    }

    /// The same, and no task fails; returns the delivery.
    pub(crate) async fn event(&self, action: &str) -> String {
        let delivery = self.pull_request(action);
        self.send(&delivery).await;
        self.settle().await;
        delivery.id
    }

    /// Sends a webhook with this payload, and works.
    pub(crate) async fn deliver(&self, event: &str, payload: &Value) {
        self.send(&self.github.state().world.delivery(event, payload)).await;
        self.settle().await;
    }

    /// Pushes a new head to pull request 7.
    pub(crate) async fn push(&self, head: &str) {
        self.change(|pull| pull.head_sha = head.to_owned());
        self.event("synchronize").await;
    }

    /// Closes pull request 7.
    pub(crate) async fn close(&self) {
        self.change(|pull| pull.open = false);
        self.event("closed").await;
    }

    /// Runs what an allowlist that comes into force asks for.
    pub(crate) async fn settle_with(&self, allowlist: &str) {
        self.enforce(allowlist).await;
        self.settle().await;
    }

    /// Advances the clock, and runs all that comes due without an error.
    pub(crate) async fn wait(&self, time: Duration) {
        self.later(time);
        self.settle().await;
    }

    /// Runs due tasks, but the dispatch to `repo` is given up.
    pub(crate) async fn work_giving_up(&self, repo: &str) {
        for task in self.lease().await {
            let result = match &task.kind {
                Ok(TaskKind::Dispatch { repo: of, .. }) if of.as_str() == repo => {
                    Err(TaskError::permanent("it failed too often"))
                }
                _ => handlers::run(&self.relay, &task).await,
            };
            workers::settle(&self.relay, &task, result).await.unwrap();
        }
        self.work().await;
    }

    /// The repositories that have received a dispatch since the last call, sorted.
    pub(crate) fn dispatched(&self) -> Vec<String> {
        let dispatches = self.github.state().world.take_dispatches();
        let mut repos: Vec<_> =
            dispatches.into_iter().map(|dispatch| dispatch.repository).collect();
        repos.sort();
        repos
    }

    pub(crate) fn later(&self, by: Duration) {
        self.github.state().clock.advance(by);
    }

    pub(crate) fn always(&self) -> Window {
        Window::all(Timestamp::UNIX_EPOCH, Timestamp::MAX)
    }

    /// A completed report of `acme/two` that nobody dispatched, in the name of delivery `id`.
    pub(crate) async fn forwarded(&self, token: &str, id: &str) -> StatusCode {
        let body = serde_json::json!({
            "trusted": { "verified_repo": "acme/two", "downstream_repo_level": "L2" },
            "untrusted": { "callback_payload": { "delivery_id": id, "workflow": {
                "status": "completed", "conclusion": "success", "name": "ci", "run_id": "9",
                "job_name": "test", "check_run_id": "77",
            } } },
        });
        let request = Request::post("/api/crcr/results").header("x-hud-internal-bot", token);
        self.call(request.body(Body::from(body.to_string())).unwrap()).await.0
    }

    /// Asserts that the test has looked at every dispatch and check run on GitHub.
    pub(crate) fn nothing_else(&self) {
        assert_eq!(self.github.state().world.leftovers(), Vec::<String>::new());
    }
}

async fn start(
    github: &StandIn,
    folder: &std::path::Path,
    redis: Option<&RedisServer>,
    settings: &[(&str, &str)],
) -> (Arc<Relay>, SqliteResults) {
    let config = config(github, folder, redis, settings);
    let (store, kept) = relay::open(&config).await.unwrap();
    let database = folder.join("crcr.db");
    let results =
        SqliteResults::new(Arc::new(SqliteStore::open(&database, StoreRole::Tool).unwrap()));
    (replica(github, config, store, kept).await, results)
}

/// A relay on this store that has read everything.
async fn replica(
    github: &StandIn,
    config: Config,
    store: Arc<dyn StateStore>,
    kept: Arc<dyn crcr_results::Results>,
) -> Arc<Relay> {
    let state = Arc::clone(github.state());
    let ahead = CLOCK_AHEAD.get();
    let clock = Arc::new(move || state.clock.now() + ahead);
    let relay = Relay::new(config, store, kept, clock).unwrap();
    crate::http::serve::restore(&relay).await;
    relay.allowlist.refresh(&relay.app, relay.now()).await;
    crate::callback::kept_trust::refresh_keys(&relay).await;
    let has_keys = relay.issuers().iter().any(|issuer| issuer.has_keys);
    assert!(has_keys, "{:?}", relay.issuers());
    Arc::new(relay)
}

fn config(
    github: &StandIn,
    folder: &std::path::Path,
    redis: Option<&RedisServer>,
    settings: &[(&str, &str)],
) -> Config {
    let app = github.state().world.app();
    let allowlist = format!("file:{}", folder.join("allowlist.yml").display());
    let mut map: BTreeMap<&str, String> = BTreeMap::from([
        ("GITHUB_APP_ID", app.id.clone()),
        ("GITHUB_APP_SECRET", app.webhook_secret.clone()),
        ("GITHUB_APP_PRIVATE_KEY", app.private_key.clone()),
        ("ALLOWLIST_URL", allowlist),
        ("UPSTREAM_REPO", UPSTREAM.to_owned()),
        ("GITHUB_API_URL", github.state().origin().to_owned()),
        ("CRCR_OIDC_ISSUERS", github.state().origin().to_owned()),
    ]);
    let database = folder.join("crcr.db");
    let file = format!("sqlite:{}", database.display());
    map.insert("CRCR_STORE", redis.map_or_else(|| file.clone(), RedisServer::url));
    map.insert("CRCR_RESULTS", file);
    map.extend(settings.iter().map(|(name, value)| (*name, (*value).to_owned())));
    Config::read(&|name| map.get(name).cloned(), BTreeMap::new()).unwrap()
}
