//! The two replicas of the relay: how they start, how their commits reach the disk, and how they crash.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use crcr_github::{GithubApp, Transport};
use crcr_relay::http::{router, serve};
use crcr_relay::{Config, Relay, WorkerTimeouts, run_workers};
use crcr_results::sqlite::SqliteResults;
use crcr_standin::State;
use crcr_store::{SqliteStore, StoreRole};
use http::{Request, StatusCode};
use rand::Rng as _;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::github_calls::{answer, refusal};
use super::{RelayReplica, ScheduledEvent, SimulatedTraffic, Simulation};
use crate::gates::{GithubCall, SimulatedStore, SubmittedBatch, unavailable};
use crate::invariants::Broken;
use crate::upstream::{ALLOWLIST_PATH, UPSTREAM};

/// Results that stay empty: nothing that the invariants look at is read from them.
static RESULTS: LazyLock<(tempfile::TempDir, SqliteResults)> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let store = SqliteStore::open(&folder.path().join("results.db"), StoreRole::Server);
    (folder, SqliteResults::new(Arc::new(store.expect("a new store can be opened"))))
});
static HTTP: LazyLock<reqwest::Client> =
    LazyLock::new(|| crcr_github::http::client().expect("the HTTP client can be set up"));

impl Simulation {
    pub(super) fn start(&mut self, replica: usize) {
        self.trace(format!("r{replica} starts"));
        let gates = Arc::clone(&self.gates);
        let clock = Arc::new(move || gates.lock().clock(replica));
        let app = self.github.world.app();
        let key = app.private_key.clone().into();
        let github =
            GithubApp::in_process(self.transport(replica), app.id.as_str(), &key, clock.clone())
                .expect("the stand-in's key is valid");
        let store = Arc::new(SimulatedStore {
            gates: Arc::clone(&self.gates),
            memory: Arc::clone(&self.memory),
            replica,
        });
        let results = Arc::new(RESULTS.1.clone());
        let config = config(&self.github, self.traffic);
        let relay = Arc::new(Relay::with_app(config, store, results, clock, HTTP.clone(), github));
        let hud = Arc::new(serve::hud_of(&relay));
        let router = router::public(&relay, &hud);
        let jwks = self.github.oidc.jwks().to_string();
        let issuer = self.github.origin().to_owned();
        relay.verifier.accept_keys(&issuer, jwks.as_bytes(), relay.now());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            serve::prepare(&relay).await;
            let stop = CancellationToken::new();
            let keys = async {
                loop {
                    tokio::time::sleep(Duration::from_secs(60)).await;
                    relay.verifier.accept_keys(&issuer, jwks.as_bytes(), relay.now());
                }
            };
            tokio::join!(
                run_workers(Arc::clone(&relay), stop, WorkerTimeouts::default()),
                relay.allowlist.keep_fresh(&relay.app, &relay.clock),
                serve::reconcile_periodically(&relay),
                keys,
            );
        });
        self.replicas[replica] = Some(RelayReplica { router, tasks });
    }

    pub(super) fn transport(&self, replica: usize) -> Transport {
        let gates = Arc::clone(&self.gates);
        let api = self.api.clone();
        Arc::new(move |request: Request<Bytes>| {
            let (gates, api) = (Arc::clone(&gates), api.clone());
            Box::pin(async move {
                let path = request.uri().path();
                let is_setup = path.contains("/contents/")
                    || path.ends_with("/access_tokens")
                    || path.ends_with("/installation");
                let waiting = {
                    let mut gates = gates.lock();
                    // Tokens and the allowlist are asked for often and rarely interesting.
                    let passes = is_setup && !gates.happens(20);
                    (!passes).then(|| {
                        let (reply, waiting) = oneshot::channel();
                        let request = request.clone();
                        gates.calls.push(GithubCall { replica, request, reply });
                        waiting
                    })
                };
                match waiting {
                    None => answer(&api, request).await,
                    Some(waiting) => {
                        waiting.await.unwrap_or_else(|_| refusal(StatusCode::BAD_GATEWAY))
                    }
                }
            })
        })
    }

    /// Ends a replica. What it has submitted reaches the disk up to some point, in order; what it has
    /// asked GitHub for may still arrive.
    pub(super) async fn crash(&mut self, replica: usize) -> Result<(), Broken> {
        let Some(crashed) = self.replicas[replica].take() else { return Ok(()) };
        drop(crashed);
        self.summary.crashes += 1;
        self.settle().await;
        let batches: Vec<_> = self.gates.lock().commits[replica].drain(..).collect();
        let written = self.random.random_range(0..=batches.len());
        self.trace(format!("r{replica} crashes, {written} of {} batches written", batches.len()));
        for submitted in batches.into_iter().take(written) {
            self.memory.apply(submitted.batch, submitted.at);
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
                self.answered(request, None);
            }
        }
        let at = self.now() + Duration::from_secs(self.random.random_range(1..120));
        self.plan(at, ScheduledEvent::Restart(replica));
        Ok(())
    }

    /// The next batch of a replica reaches the disk, or doesn't.
    pub(super) async fn commit(&mut self, replica: usize) -> Result<(), Broken> {
        let fate = self.random.random_range(0..1000);
        if fate < 12 {
            return self.crash(replica).await;
        }
        let Some(submitted) = self.pop_batch(replica) else { return Ok(()) };
        if fate < 30 {
            self.trace(format!("r{replica} a commit fails"));
            let _ = submitted.reply.send(Err(unavailable()));
            return Ok(());
        }
        let outcome = self.memory.apply(submitted.batch, submitted.at);
        self.trace(format!("r{replica} commits: {outcome:?}"));
        let _ = submitted.reply.send(Ok(outcome));
        Ok(())
    }

    pub(super) fn pop_batch(&self, replica: usize) -> Option<SubmittedBatch> {
        self.gates.lock().commits[replica].pop_front()
    }
}

fn config(github: &State, traffic: SimulatedTraffic) -> Config {
    let app = github.world.app();
    let settings = BTreeMap::from([
        ("GITHUB_APP_ID", app.id.clone()),
        ("GITHUB_APP_SECRET", app.webhook_secret.clone()),
        ("GITHUB_APP_PRIVATE_KEY", app.private_key.clone()),
        ("ALLOWLIST_URL", format!("https://github.com/{UPSTREAM}/blob/main/{ALLOWLIST_PATH}")),
        ("UPSTREAM_REPO", UPSTREAM.to_owned()),
        ("GITHUB_API_URL", github.origin().to_owned()),
        ("CRCR_OIDC_ISSUERS", github.origin().to_owned()),
        ("CRCR_WEBHOOK_EVENTS", "off".to_owned()),
        ("CRCR_JOB_LOGS", "off".to_owned()),
        // The plain model doesn't know what a breaker withholds.
        ("CRCR_BREAKER_FAILURES", if traffic.has_hours() { "off" } else { "5" }.to_owned()),
        // The limit on reports isn't what is simulated.
        ("RATE_LIMIT_PER_MIN", "10000".to_owned()),
    ]);
    Config::read(&|name| settings.get(name).cloned(), BTreeMap::new())
        .unwrap_or_else(|problems| panic!("{problems:?}"))
}
