//! The two replicas of the relay: how they start, how their commits reach the disk, and how they crash.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use crcr_github::{GithubApp, Transport};
use crcr_relay::callback::auth::ProviderMap;
use crcr_relay::http::{router, serve};
use crcr_relay::{Config, Relay, WorkerTimeouts, demotions, run_workers, uptime};
use crcr_store::{CommitOutcome, LeasedTask, StoreError, TaskOutcome, TaskState, WriteBatch};
use http::{HeaderValue, Request, StatusCode, header};
use jiff::{SignedDuration, Timestamp};
use rand::Rng as _;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::agenda::webhook_secrets;
use super::github_calls::{answer, refusal};
use super::{CALLBACK_KEYS, RelayReplica, ScheduledEvent, Simulation};
use crate::gates::{GithubCall, SimulatedStore, SubmittedBatch};
use crate::lab::{BUILDKITE, FOREIGN, PIPELINE};
use crate::ledger::Broken;
use crate::names::UPSTREAM;
use crate::stores::{PowerCut, REPLICAS, StoreClient, StoreKind, unavailable};
use crate::upstream::ALLOWLIST_PATH;

/// Only the external HUD is asked with it, whose name is never resolved: it hangs.
static HTTP: LazyLock<reqwest::Client> = LazyLock::new(|| {
    let client = reqwest::Client::builder().dns_resolver(Arc::new(SilentResolver)).no_proxy();
    client.build().expect("the HTTP client can be set up")
});
/// With this many workers, the forwarders of two accounts could take all of them.
const WORKERS_WITH_HUD: &str = "16";

/// A commit of a few batches makes about as many changes of files.
const MANY_CHANGES: u32 = 60;
/// How long a request is on its way to GitHub at most.
const ON_ITS_WAY_SECONDS: u64 = 60;

struct SilentResolver;

impl reqwest::dns::Resolve for SilentResolver {
    fn resolve(&self, _: reqwest::dns::Name) -> reqwest::dns::Resolving {
        Box::pin(std::future::pending())
    }
}

impl Simulation {
    pub(crate) fn start(&mut self, replica: usize) {
        self.trace(format!("r{replica} starts"));
        self.shared.open(replica);
        let relay = Arc::new(self.relay(replica));
        let hud = Arc::new(serve::hud_of(&relay));
        let router = router::public(&relay, &hud);
        let (github, of_relay) = (Arc::clone(&self.github), Arc::clone(&relay));
        let accept_keys = move || {
            let jwks = github.oidc.jwks().to_string();
            for issuer in [github.origin(), BUILDKITE] {
                of_relay.verifier.accept_keys(issuer, jwks.as_bytes(), of_relay.now());
            }
        };
        accept_keys();
        let accept_again = accept_keys.clone();
        let is_known_up = Arc::new(AtomicBool::new(false));
        let has_beaten = Arc::clone(&is_known_up);
        let has_demotions = self.inputs.demotions;
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            // From then on the scheduler writes down that it is up.
            while uptime::beat(&relay).await.is_err() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            is_known_up.store(true, Ordering::Relaxed);
            serve::prepare(&relay).await;
            let stop = CancellationToken::new();
            let keys = async {
                loop {
                    tokio::time::sleep(Duration::from_secs(60)).await;
                    accept_again();
                }
            };
            let demotions = async {
                if has_demotions {
                    demotions::keep_fresh(&relay, demotions::MIN_PAUSE).await;
                }
            };
            tokio::join!(
                run_workers(Arc::clone(&relay), stop, WorkerTimeouts::default()),
                relay.allowlist.keep_fresh(&relay.app, &relay.clock),
                serve::reconcile_periodically(&relay),
                keys,
                demotions,
            );
        });
        self.replicas[replica] =
            Some(RelayReplica { router, tasks, accept_keys: Box::new(accept_keys), has_beaten });
    }

    fn relay(&self, replica: usize) -> Relay {
        let gates = Arc::clone(&self.gates);
        let clock = Arc::new(move || gates.lock().clock(replica));
        let app = self.github.world.app();
        let key = app.private_key.clone().into();
        let github =
            GithubApp::in_process(self.transport(replica), app.id.as_str(), &key, clock.clone())
                .expect("the stand-in's key is valid");
        let store = Arc::new(SimulatedStore {
            gates: Arc::clone(&self.gates),
            store: StoreClient { shared: Arc::clone(&self.shared), number: replica },
        });
        let results = Arc::new(self.results.sqlite());
        let config = self.config();
        let pipelines =
            ProviderMap::parse(&format!("buildkite: {{{}/{}: {FOREIGN}}}", PIPELINE.0, PIPELINE.1))
                .expect("the map is valid");
        let relay = Relay::with_app(config, store, results, clock, HTTP.clone(), github);
        relay.verifier.set_providers(pipelines);
        relay
    }

    pub(crate) fn transport(&self, replica: usize) -> Transport {
        let gates = Arc::clone(&self.gates);
        let api = self.api.clone();
        Arc::new(move |request: Request<Bytes>| {
            let (gates, api) = (Arc::clone(&gates), api.clone());
            Box::pin(async move {
                let path = request.uri().path();
                let is_of_head = |query: &str| query.contains("head=");
                let is_demotion =
                    path.ends_with("/pulls") && request.uri().query().is_some_and(is_of_head);
                let is_setup = path.contains("/contents/")
                    || path.contains("/matching-refs/")
                    || path.ends_with("/pulls")
                    || path.ends_with("/access_tokens")
                    || path.ends_with("/installation");
                let waiting = {
                    let mut gates = gates.lock();
                    // Tokens, the allowlist and demotions are asked for often and rarely interesting.
                    let passes = is_setup && !gates.happens(20) && !gates.is_frozen(replica);
                    (!passes).then(|| {
                        let (reply, waiting) = oneshot::channel();
                        let request = request.clone();
                        let sent_at = gates.now;
                        gates.calls.push(GithubCall { replica, sent_at, request, reply });
                        waiting
                    })
                };
                let mut response = match waiting {
                    None => answer(&api, request).await,
                    Some(waiting) => {
                        waiting.await.unwrap_or_else(|_| refusal(StatusCode::BAD_GATEWAY))
                    }
                };
                if is_demotion && response.status() == StatusCode::OK {
                    let mut gates = gates.lock();
                    gates.demotions_read_at[replica] = gates.now;
                }
                // The HTTP server would add it.
                let date = gates.lock().now.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
                if let Ok(date) = HeaderValue::from_str(&date) {
                    response.headers_mut().insert(header::DATE, date);
                }
                response
            })
        })
    }

    /// Ends a replica. What it has submitted reaches the disk up to some point, in order; what it has
    /// asked GitHub for may still arrive.
    pub(crate) async fn crash(&mut self, replica: usize) -> Result<(), Broken> {
        let Some(crashed) = self.replicas[replica].take() else { return Ok(()) };
        drop(crashed);
        self.gates.lock().frozen_until[replica] = None;
        self.summary.crashes += 1;
        self.settle().await;
        let batches: Vec<_> = self.gates.lock().commits[replica].drain(..).collect();
        if self.store_kind == StoreKind::Sqlite {
            self.cut_power(batches);
        } else {
            let written = self.random.random_range(0..=batches.len());
            let count = batches.len();
            self.trace(format!("r{replica} crashes, {written} of {count} batches written"));
            for submitted in batches.into_iter().take(written) {
                // While the server is down, none is.
                let _ = self.apply(replica, submitted.batch, submitted.at);
            }
            self.shared.close(replica);
        }
        self.gates.lock().reads.retain(|read| read.replica != replica);
        self.drop_abandoned_calls().await?;
        let broken: Vec<u64> = self
            .requests
            .iter()
            .filter(|(_, request)| request.replica == replica)
            .map(|(id, _)| *id)
            .collect();
        for id in broken {
            if let Some(request) = self.requests.remove(&id) {
                self.answered(request, None, false);
            }
        }
        let at = self.now() + Duration::from_secs(self.random.random_range(1..120));
        self.plan(at, ScheduledEvent::Restart(replica));
        Ok(())
    }

    /// The machine of the only replica loses its power, perhaps in the middle of a write.
    fn cut_power(&mut self, batches: Vec<SubmittedBatch>) {
        let cut = PowerCut {
            after: self.random.random_range(0..MANY_CHANGES),
            during_checkpoint: self.chance(50),
            seed: self.random.random(),
        };
        let count = batches.len();
        let batches = batches.into_iter().map(|one| (one.batch, one.at)).collect();
        let (written, answered) = self.shared.cut_power(batches, cut);
        self.results.append(self.memory.take_facts());
        self.trace(format!(
            "the power is cut: of {count} batches {written} are written, and {answered} were answered"
        ));
    }

    /// Redis is killed, and starts again later.
    pub(crate) fn kill_server(&mut self) {
        if self.shared.has_server() {
            self.trace("Redis is killed".to_owned());
            self.shared.kill_server();
            let at = self.now() + Duration::from_secs(self.random.random_range(1..40));
            self.plan(at, ScheduledEvent::ServerStart);
        }
    }

    pub(crate) fn start_server(&mut self) {
        if !self.shared.has_server() {
            self.trace("Redis starts again".to_owned());
            let running = (0..REPLICAS).filter(|one| self.replicas[*one].is_some());
            self.shared.start_server(running);
        }
    }

    /// A worker is frozen until its lease has ended, or the other replica's clock is ahead: both work on one task.
    pub(crate) fn end_a_lease(&mut self) {
        let mut leased = vec![];
        self.memory.for_each_task(|key, state, _| {
            if state == TaskState::Leased && may_have_two_workers(key) {
                leased.push(key.to_owned());
            }
        });
        let writing: Vec<String> =
            leased.iter().filter(|key| self.check_run_write(key).is_some()).cloned().collect();
        if !writing.is_empty() && self.chance(50) {
            leased = writing;
        }
        if leased.is_empty() {
            return;
        }
        let key = &leased[self.random.random_range(0..leased.len())];
        self.trace(format!("the lease of {key} ends early"));
        let Some(task) = self.gates.lock().leased.get(key).cloned() else { return };
        self.release(&task);
        // What its worker has sent may be the last that GitHub gets.
        if let Some(index) = self.check_run_write(key)
            && !self.was_held_up(index)
            && self.chance(75)
        {
            let call = self.gates.lock().calls.remove(index);
            let on_its_way = Duration::from_secs(self.random.random_range(0..ON_ITS_WAY_SECONDS));
            let at = self.now().max(call.sent_at + on_its_way);
            self.plan(at, ScheduledEvent::LateCall(call));
        }
    }

    /// Another worker may lease a task.
    pub(crate) fn release(&self, task: &LeasedTask) {
        let settlement = Some(task.settle(TaskOutcome::Release));
        // By every clock it's due then.
        let at = self.now() - SignedDuration::from_mins(2);
        let batch = WriteBatch { settlement, ..WriteBatch::default() };
        // Without a store nobody leases anything.
        let _ = self.apply(REPLICAS, batch, at);
    }

    /// The request that waits to create or update the check run that a task is about.
    pub(crate) fn check_run_write(&self, key: &str) -> Option<usize> {
        let parts: Vec<String> = serde_json::from_str(key).ok()?;
        let [kind, head, name] = <[String; 3]>::try_from(parts).ok()?;
        let check_runs = self.github.world.all_check_runs(UPSTREAM);
        let is_known = |id: &str| {
            check_runs.iter().any(|run| {
                run.id.to_string() == id
                    && run.head_sha == head
                    && run.name.eq_ignore_ascii_case(&name)
            })
        };
        let is_write = |call: &GithubCall| {
            let (_, id) = call.request.uri().path().split_once("/check-runs")?;
            let body: Value = serde_json::from_slice(call.request.body()).ok()?;
            let created_name = body["name"].as_str().unwrap_or_default();
            let is_creation =
                body["head_sha"] == head.as_str() && created_name.eq_ignore_ascii_case(&name);
            Some(is_creation || is_known(id.trim_start_matches('/')))
        };
        let gates = self.gates.lock();
        gates.calls.iter().position(|call| kind == "check_run" && is_write(call) == Some(true))
    }

    /// No replica runs for hours, in which runs go on and their reports are lost.
    pub(crate) async fn fall_silent(&mut self) -> Result<(), Broken> {
        self.trace("the relay is down for hours".to_owned());
        for replica in 0..REPLICAS {
            self.crash(replica).await?;
        }
        self.agenda.retain(|_, event| !matches!(event, ScheduledEvent::Restart(_)));
        let end = self.now() + Duration::from_secs(self.random.random_range(2..5) * 3600);
        while let Some(((at, _), _)) = self.agenda.first_key_value()
            && *at <= end
        {
            let pause = at.duration_since(self.now()).max(SignedDuration::ZERO);
            self.advance(pause.unsigned_abs()).await;
            self.next_event().await?;
            self.check().await?;
        }
        let pause = end.duration_since(self.now()).max(SignedDuration::ZERO);
        self.advance(pause.unsigned_abs()).await;
        for replica in self.replica_numbers() {
            self.start(replica);
        }
        Ok(())
    }

    /// The next batch of a replica reaches the disk, or doesn't.
    pub(crate) async fn commit(&mut self, replica: usize) -> Result<(), Broken> {
        let fate = self.random.random_range(0..1000);
        if fate < 12 {
            return self.crash(replica).await;
        }
        if self.freeze_before_change(replica) {
            return Ok(());
        }
        let Some(submitted) = self.pop_batch(replica) else { return Ok(()) };
        if fate < 30 {
            self.trace(format!("r{replica} a commit fails"));
            let _ = submitted.reply.send(Err(unavailable()));
            return Ok(());
        }
        let outcome = self.apply(replica, submitted.batch, submitted.at);
        let Ok(done) = outcome else {
            self.trace(format!("r{replica} a commit fails: Redis is down"));
            let _ = submitted.reply.send(outcome);
            return Ok(());
        };
        if fate < 45 && self.store_kind == StoreKind::Redis {
            self.trace(format!("r{replica} commits, and the answer is lost: {done:?}"));
            let _ = submitted.reply.send(Err(unavailable()));
            return Ok(());
        }
        self.trace(format!("r{replica} commits: {done:?}"));
        let _ = submitted.reply.send(Ok(done));
        Ok(())
    }

    /// A batch reaches the disk, and its facts the results.
    pub(crate) fn apply(
        &self,
        client: usize,
        batch: WriteBatch,
        at: Timestamp,
    ) -> Result<CommitOutcome, StoreError> {
        let outcome = self.shared.apply(client, batch, at);
        self.results.append(self.memory.take_facts());
        outcome
    }

    pub(crate) fn pop_batch(&self, replica: usize) -> Option<SubmittedBatch> {
        let mut gates = self.gates.lock();
        gates.was_frozen[replica] = false;
        gates.commits[replica].pop_front()
    }
}

/// Whether two workers may have a task without harm.
fn may_have_two_workers(key: &str) -> bool {
    let kind = key.trim_start_matches("[\"").split('"').next().unwrap_or_default();
    ["check_run", "commit_checks", "backend_checks", "labels", "dispatch", "sweep"].contains(&kind)
}

impl Simulation {
    fn config(&self) -> Config {
        let (traffic, inputs) = (self.traffic, self.inputs);
        let github = &self.github;
        let app = github.world.app();
        let mut settings = BTreeMap::from([
            ("GITHUB_APP_ID", app.id.clone()),
            ("GITHUB_APP_SECRET", webhook_secrets(&app.webhook_secret, self.secrets)),
            ("GITHUB_APP_PRIVATE_KEY", app.private_key.clone()),
            ("ALLOWLIST_URL", format!("https://github.com/{UPSTREAM}/blob/main/{ALLOWLIST_PATH}")),
            ("UPSTREAM_REPO", UPSTREAM.to_owned()),
            ("GITHUB_API_URL", github.origin().to_owned()),
            ("CRCR_OIDC_ISSUERS", format!("{},{BUILDKITE}", github.origin())),
            ("CRCR_WEBHOOK_EVENTS", "off".to_owned()),
            ("CRCR_JOB_LOGS", "off".to_owned()),
            // The plain model doesn't know what a breaker withholds.
            ("CRCR_BREAKER_FAILURES", if traffic.has_hours() { "off" } else { "5" }.to_owned()),
            // The limit on reports isn't what is simulated.
            ("RATE_LIMIT_PER_MIN", "10000".to_owned()),
        ]);
        if !inputs.secret_rotation {
            settings.insert("CRCR_CALLBACK_KEY", CALLBACK_KEYS[self.keys].to_owned());
        }
        if inputs.slow_hud {
            settings.extend([
                ("HUD_API_URL", "https://hud.example/api".to_owned()),
                ("HUD_BOT_KEY", "a-key-of-the-hud".to_owned()),
                // Else each result is tried for a day.
                ("HUD_MAX_RETRIES", "14".to_owned()),
                ("CRCR_HUD_DISPATCHES", "on".to_owned()),
                ("MAX_DISPATCH_WORKERS", WORKERS_WITH_HUD.to_owned()),
            ]);
        }
        Config::read(&|name| settings.get(name).cloned(), BTreeMap::new())
            .unwrap_or_else(|problems| panic!("{problems:?}"))
    }
}
