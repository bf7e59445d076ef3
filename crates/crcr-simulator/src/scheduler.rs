//! Decides what happens next, by the seed: which request is answered, which commit reaches the disk, what
//! fails, when time passes, and when a replica crashes.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use bytes::Bytes;
use crcr_github::{GithubApp, Transport};
use crcr_relay::http::{router, serve};
use crcr_relay::{Config, Relay, WorkerTimeouts, admin, run_workers};
use crcr_results::sqlite::SqliteResults;
use crcr_standin::State;
use crcr_standin::server::{self, Connection};
use crcr_standin::world::{Delivery, Started};
use crcr_store::memory::MemoryStore;
use crcr_store::{SqliteStore, StoreRole, TaskState};
use http::{Method, Request, Response, StatusCode, header};
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use crate::gates::{
    CommitGates, GithubCall, REPLICAS, SharedGates, SimulatedStore, dispatch, unavailable,
};
use crate::invariants::{Broken, KnownWebhook, PromiseLedger, key_of};
use crate::lab::{BackendLab, LabEvent, LabReport, NIGHTLY_COMMIT, NightlyReport};
use crate::plain_model;
use crate::upstream::{
    ALLOWLIST, ALLOWLIST_PATH, BACKENDS, L2, UPSTREAM, UpstreamModel, UpstreamWebhook,
    delivery_delay,
};
use crate::{BrokenPromise, SeedSummary};

/// The faulty part of a seed ends after this long, so that GitHub can still redeliver everything.
const FAULTY_TIME: SignedDuration = SignedDuration::from_hours(30);
/// The part without faults is over long before.
const SETTLING_TIME: SignedDuration = SignedDuration::from_hours(24 * 12);
const SETTLING_STEPS: usize = 20_000;
/// Open pull requests of an upstream whose hours are simulated.
const PULLS: u64 = 40;
/// GitHub closes the connection after this long.
const WEBHOOK_TIMEOUT: SignedDuration = SignedDuration::from_secs(10);
/// Like every address here it is never connected to.
const ORIGIN: &str = "http://127.0.0.1:9/";

/// Results that stay empty: nothing that the invariants look at is read from them.
static RESULTS: LazyLock<(tempfile::TempDir, SqliteResults)> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let store = SqliteStore::open(&folder.path().join("results.db"), StoreRole::Server);
    (folder, SqliteResults::new(Arc::new(store.expect("a new store can be opened"))))
});
static HTTP: LazyLock<reqwest::Client> =
    LazyLock::new(|| crcr_github::http::client().expect("the HTTP client can be set up"));
/// Signing takes longer than everything else, and equal claims have equal signatures.
static TOKENS: LazyLock<Mutex<BTreeMap<String, String>>> = LazyLock::new(Mutex::default);
const MAX_TOKENS: usize = 200_000;

/// What a seed is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// This many steps with faults, in which anything may happen at any time.
    Steps(usize),
    /// Hours of a large upstream.
    Hours(u32),
}

impl Traffic {
    fn has_hours(self) -> bool {
        matches!(self, Self::Hours(_))
    }
}

enum ScheduledEvent {
    Upstream,
    Nightly(NightlyReport),
    Deliver { delivery: Delivery, is_redelivery: bool },
    BackendLab(LabEvent),
    Restart(usize),
}

/// A request to a replica that wasn't answered yet.
struct OpenRequest {
    replica: usize,
    sent_at: Timestamp,
    what: RequestKind,
}

enum RequestKind {
    Webhook { delivery: Delivery, is_redelivery: bool },
    Report(LabReport),
    Nightly(NightlyReport),
}

struct RelayReplica {
    router: Router,
    /// The background work and the open requests; dropping it is a crash.
    tasks: JoinSet<()>,
}

type Answers = Arc<Mutex<Vec<(u64, StatusCode, Value)>>>;

struct Simulation {
    seed: u64,
    traffic: Traffic,
    random: StdRng,
    gates: SharedGates,
    memory: Arc<MemoryStore>,
    github: Arc<State>,
    api: Router,
    replicas: [Option<RelayReplica>; REPLICAS],
    upstream: UpstreamModel,
    lab: BackendLab,
    ledger: PromiseLedger,
    /// In the order of their times; the number keeps equal times in order.
    agenda: BTreeMap<(Timestamp, u64), ScheduledEvent>,
    requests: BTreeMap<u64, OpenRequest>,
    answers: Answers,
    counter: u64,
    summary: SeedSummary,
}

pub(crate) async fn run(
    seed: u64,
    traffic: Traffic,
    trace_lines: usize,
) -> Result<SeedSummary, Box<BrokenPromise>> {
    let mut simulation = Simulation::new(seed, traffic, trace_lines);
    match simulation.run_all().await {
        Ok(()) => {
            let trace_hash = simulation.gates.lock().trace.hash;
            Ok(SeedSummary { trace_hash, ..simulation.summary })
        }
        Err((invariant, detail)) => {
            let gates = simulation.gates.lock();
            let trace = gates.trace.lines.iter().cloned().collect();
            let step = gates.trace.step;
            Err(Box::new(BrokenPromise { seed, step, invariant, detail, trace, traffic }))
        }
    }
}

impl Simulation {
    fn new(seed: u64, traffic: Traffic, trace_lines: usize) -> Self {
        let start = Timestamp::from_second(1_900_000_000).expect("2030 is a time");
        let url = ORIGIN.parse().expect("it is a URL");
        let mut github = State::new(url).expect("a temporary folder can be made");
        github.clock = crcr_standin::clock::Clock::stopped_at(start);
        let github = Arc::new(github);
        let world = &github.world;
        world.limit(u64::MAX, Timestamp::MAX);
        world.install(UPSTREAM);
        for repo in BACKENDS {
            world.install(repo);
        }
        world.put_file(UPSTREAM, ALLOWLIST_PATH, ALLOWLIST);
        world.add_commit(UPSTREAM, NIGHTLY_COMMIT);
        Self {
            seed,
            traffic,
            random: StdRng::seed_from_u64(seed),
            gates: Arc::new(Mutex::new(CommitGates::new(seed, start, trace_lines))),
            memory: Arc::new(MemoryStore::default()),
            api: server::router(Arc::clone(&github)),
            github,
            replicas: [None, None],
            upstream: UpstreamModel::new(match traffic {
                Traffic::Steps(_) => 3,
                Traffic::Hours(_) => PULLS,
            }),
            lab: BackendLab::default(),
            ledger: PromiseLedger::default(),
            agenda: BTreeMap::new(),
            requests: BTreeMap::new(),
            answers: Arc::default(),
            counter: 0,
            summary: SeedSummary {
                trace_hash: 0,
                steps: 0,
                webhooks: 0,
                dispatches: 0,
                reports: 0,
                crashes: 0,
                compared: 0,
            },
        }
    }

    async fn run_all(&mut self) -> Result<(), Broken> {
        for replica in 0..REPLICAS {
            self.start(replica);
        }
        self.settle().await;
        let (steps, end) = match self.traffic {
            Traffic::Steps(steps) => (steps, self.now() + FAULTY_TIME),
            Traffic::Hours(hours) => {
                self.plan_hours(hours);
                (usize::MAX, self.now() + SignedDuration::from_hours(hours.into()))
            }
        };
        while self.summary.steps < steps && self.now() < end {
            self.next_step();
            self.faulty_step().await?;
            self.check().await?;
        }
        self.trace("no more faults".to_owned());
        self.repair().await;
        let end = self.now() + SETTLING_TIME;
        for _ in 0..SETTLING_STEPS.max(self.summary.steps) {
            self.next_step();
            if !self.good_step().await? {
                self.settle().await;
                let runs = self.github.world.check_runs(UPSTREAM);
                self.ledger.check_deliveries(&self.memory)?;
                self.ledger.check_end(&runs, &self.lab, &self.memory)?;
                if self.traffic.has_hours() {
                    self.summary.compared =
                        plain_model::compare(&self.ledger, &self.lab, &self.github, &self.memory)?;
                }
                return Ok(());
            }
            self.check().await?;
            if self.now() > end {
                break;
            }
        }
        Err(("never-settles", self.what_is_left()))
    }

    fn next_step(&mut self) {
        self.summary.steps += 1;
        self.gates.lock().trace.step = self.summary.steps;
    }

    fn now(&self) -> Timestamp {
        self.gates.lock().now
    }

    fn trace(&self, line: String) {
        self.gates.lock().trace.add(line);
    }

    /// Waits until every task of the relay waits for something. The runtime's clock is paused and moves
    /// only then.
    async fn settle(&self) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.random.random_range(0..100) < percent
    }

    fn plan(&mut self, at: Timestamp, event: ScheduledEvent) {
        self.counter += 1;
        self.agenda.insert((at, self.counter), event);
    }

    fn plan_lab(&mut self, events: Vec<(Timestamp, LabEvent)>) {
        for (at, event) in events {
            self.plan(at, ScheduledEvent::BackendLab(event));
        }
    }

    // --- replicas ---

    fn start(&mut self, replica: usize) {
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

    fn transport(&self, replica: usize) -> Transport {
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
    async fn crash(&mut self, replica: usize) -> Result<(), Broken> {
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

    // --- steps ---

    async fn faulty_step(&mut self) -> Result<(), Broken> {
        let (calls, commits, reads) = {
            let gates = self.gates.lock();
            let commits: Vec<usize> =
                (0..REPLICAS).filter(|one| !gates.commits[*one].is_empty()).collect();
            (gates.calls.len(), commits, gates.reads.len())
        };
        let is_due = self.agenda.first_key_value().is_some_and(|((at, _), _)| *at <= self.now());
        let has_hours = self.traffic.has_hours();
        let is_idle = calls + reads + commits.len() == 0;
        let weights = [
            if calls > 0 { 60 } else { 0 },
            if commits.is_empty() { 0 } else { 80 },
            if reads > 0 { 40 } else { 0 },
            if is_due { 50 } else { 0 },
            if has_hours { 0 } else { 6 },
            // In such hours almost everything is answered within seconds, as GitHub and a disk do.
            if has_hours && !is_idle { 1 } else { 16 },
            if has_hours && !is_idle { 0 } else { 2 },
            1,
        ];
        match self.weighted(&weights) {
            0 => {
                let index = self.random.random_range(0..calls);
                let call = self.gates.lock().calls.remove(index);
                self.answer_call(call).await?;
            }
            1 => {
                let replica = commits[self.random.random_range(0..commits.len())];
                self.commit(replica).await?;
            }
            2 => {
                let index = self.random.random_range(0..reads);
                let read = self.gates.lock().reads.remove(index);
                // The replica may have crashed.
                let _ = read.reply.send(());
            }
            3 => self.next_event(),
            4 => self.happen_upstream(),
            5 => self.pass_time().await,
            6 => {
                let replica = self.random.random_range(0..REPLICAS);
                self.crash(replica).await?;
            }
            _ => {
                let replica = self.random.random_range(0..REPLICAS);
                let skew = SignedDuration::from_secs(self.random.random_range(-12..=12));
                self.gates.lock().skews[replica] = skew;
                self.trace(format!("r{replica}'s clock jumps to {skew:#}"));
            }
        }
        Ok(())
    }

    /// One step without faults; `false` when nothing is left to do.
    async fn good_step(&mut self) -> Result<bool, Broken> {
        let calls = {
            let mut gates = self.gates.lock();
            for read in gates.reads.drain(..) {
                let _ = read.reply.send(());
            }
            std::mem::take(&mut gates.calls)
        };
        let mut has_written = !calls.is_empty();
        for call in calls {
            let response = self.serve(call.request).await?;
            let _ = call.reply.send(response);
        }
        for replica in 0..REPLICAS {
            while let Some(submitted) = self.pop_batch(replica) {
                let outcome = self.memory.apply(submitted.batch, submitted.at);
                let _ = submitted.reply.send(Ok(outcome));
                has_written = true;
            }
        }
        if has_written {
            return Ok(true);
        }
        if self.agenda.first_key_value().is_some_and(|((at, _), _)| *at <= self.now()) {
            self.next_event();
            return Ok(true);
        }
        let mut next = self.agenda.first_key_value().map(|((at, _), _)| *at);
        let mut reconcile = None;
        self.memory.for_each_task(|key, state, due_at| {
            if key == "[\"reconcile\"]" {
                reconcile = Some(due_at);
            } else if state != TaskState::Dead {
                next = Some(next.map_or(due_at, |next| next.min(due_at)));
            }
        });
        self.ledger.note_stored(&self.memory);
        let is_waiting = self.ledger.acknowledged.len() < self.ledger.webhooks.len();
        if is_waiting && let Some(reconcile) = reconcile {
            next = Some(next.map_or(reconcile, |next| next.min(reconcile)));
        }
        let Some(next) = next else {
            return Ok(self.redeliver_dead_letters().await > 0 || !self.requests.is_empty());
        };
        let pause = next.duration_since(self.now()).max(SignedDuration::ZERO);
        self.advance(pause.unsigned_abs() + Duration::from_millis(600)).await;
        Ok(true)
    }

    fn weighted(&mut self, weights: &[u32]) -> usize {
        let mut left = self.random.random_range(0..weights.iter().sum());
        for (index, weight) in weights.iter().enumerate() {
            if left < *weight {
                return index;
            }
            left -= weight;
        }
        weights.len() - 1
    }

    /// Everything works from now on.
    async fn repair(&mut self) {
        {
            let mut gates = self.gates.lock();
            gates.faults = false;
            gates.skews = [SignedDuration::ZERO; REPLICAS];
        }
        for replica in 0..REPLICAS {
            if self.replicas[replica].is_none() {
                self.start(replica);
            }
        }
        self.settle().await;
    }

    async fn redeliver_dead_letters(&mut self) -> usize {
        let again = admin::deliveries::redeliver_all(&*self.memory, self.now(), KEEP).await;
        let count = again.unwrap_or_default();
        self.trace(format!("an operator redelivers {count} tasks"));
        count
    }

    async fn advance(&mut self, by: Duration) {
        {
            let mut gates = self.gates.lock();
            gates.now += by;
            let line = format!("{:.1} s pass", by.as_secs_f64());
            gates.trace.add(line);
        }
        self.github.clock.advance(by);
        tokio::time::advance(by).await;
        let now = self.now();
        let late = |request: &OpenRequest| {
            matches!(request.what, RequestKind::Webhook { .. })
                && now.duration_since(request.sent_at) > WEBHOOK_TIMEOUT
        };
        let late: Vec<u64> =
            self.requests.iter().filter(|(_, one)| late(one)).map(|(id, _)| *id).collect();
        for id in late {
            if let Some(request) = self.requests.remove(&id) {
                self.answered(request, None);
            }
        }
    }

    async fn pass_time(&mut self) {
        let by = match self.random.random_range(0..100) {
            0..50 => Duration::from_millis(self.random.random_range(100..3000)),
            50..85 => {
                let mut next = self.agenda.first_key_value().map(|((at, _), _)| *at);
                self.memory.for_each_task(|_, state, due_at| {
                    if state != TaskState::Dead {
                        next = Some(next.map_or(due_at, |next| next.min(due_at)));
                    }
                });
                let pause = next.map_or(0, |next| next.duration_since(self.now()).as_secs().max(0));
                Duration::from_secs(pause.cast_unsigned().min(3600)) + Duration::from_millis(600)
            }
            85..97 => Duration::from_secs(self.random.random_range(30..200)),
            _ if self.traffic.has_hours() => Duration::ZERO,
            _ => Duration::from_secs(self.random.random_range(600..9000)),
        };
        self.advance(by).await;
    }

    fn happen_upstream(&mut self) {
        let Some(webhook) = self.upstream.next(&self.github, self.seed, &mut self.random) else {
            return;
        };
        let UpstreamWebhook { delivery, targets, head, has_check_runs, pull, what } = webhook;
        self.trace(what);
        self.summary.webhooks += 1;
        let second = self.now().as_second();
        let known = KnownWebhook { targets, head, has_check_runs, pull, second };
        self.ledger.webhooks.insert(delivery.id.clone(), known);
        for is_redelivery in [false, true] {
            if is_redelivery && !self.chance(10) {
                break;
            }
            let at = self.now() + delivery_delay(&mut self.random);
            self.plan(at, ScheduledEvent::Deliver { delivery: delivery.clone(), is_redelivery });
        }
    }

    fn next_event(&mut self) {
        let Some((_, event)) = self.agenda.pop_first() else { return };
        match event {
            ScheduledEvent::Restart(replica) if self.replicas[replica].is_none() => {
                self.start(replica);
            }
            ScheduledEvent::Restart(_) => {}
            ScheduledEvent::Upstream => self.happen_upstream(),
            ScheduledEvent::Nightly(nightly) => self.report_nightly(nightly),
            ScheduledEvent::Deliver { delivery, is_redelivery } => {
                self.trace(format!("GitHub delivers {}", delivery.id));
                let mut request = Request::post("/github/webhook");
                for (name, value) in delivery.headers() {
                    request = request.header(name, value);
                }
                let body = Body::from(delivery.body.clone());
                self.send(request.body(body), RequestKind::Webhook { delivery, is_redelivery });
            }
            ScheduledEvent::BackendLab(LabEvent::RunOver { run, attempt, conclusion }) => {
                self.trace(format!("run {run} attempt {attempt} is over: {conclusion}"));
                self.lab.close(&self.github, run, attempt, conclusion);
            }
            ScheduledEvent::BackendLab(LabEvent::Report(report)) => self.report(report),
        }
    }

    /// There are quiet and busy hours, a burst every four hours, and a nightly run of each backend.
    fn plan_hours(&mut self, hours: u32) {
        let (start, hours) = (self.now(), u64::from(hours));
        for hour in 0..hours {
            // Events in this hour, from UTC midnight on.
            let events = [6, 12, 24, 18][(hour / 6 % 4) as usize];
            for _ in 0..events {
                let at = Duration::from_secs(hour * 3600 + self.random.random_range(0..3600));
                self.plan(start + at, ScheduledEvent::Upstream);
            }
        }
        for _ in 0..hours.div_ceil(4) {
            let burst = self.random.random_range(0..hours * 3600 - 60);
            for _ in 0..20 {
                let at = Duration::from_secs(burst + self.random.random_range(0..60));
                self.plan(start + at, ScheduledEvent::Upstream);
            }
        }
        for repo in &BACKENDS[1..] {
            let at = Duration::from_secs(self.random.random_range(0..hours * 600));
            self.plan(start + at, ScheduledEvent::Nightly(NightlyReport { repo, tries: 0 }));
        }
    }

    fn report_nightly(&mut self, nightly: NightlyReport) {
        self.trace(format!("{} reports its nightly run", nightly.repo));
        self.summary.reports += 1;
        self.ledger.nightlies.entry(nightly.repo).or_default();
        let (claims, body) = nightly.request(&self.github, self.now());
        let token = signed(&self.github, &claims);
        let request = Request::post("/github/callback")
            .header(header::AUTHORIZATION, format!("Bearer {token}"))
            .body(Body::from(body.to_string()));
        self.send(request, RequestKind::Nightly(nightly));
    }

    fn report(&mut self, report: LabReport) {
        self.summary.reports += 1;
        let LabReport { run, attempt, job, conclusion, forgery, .. } = &report;
        let forged = forgery.map(|forgery| format!(", forged: {forgery:?}")).unwrap_or_default();
        let status = conclusion.unwrap_or("started");
        self.trace(format!("run {run} attempt {attempt} reports {job} {status}{forged}"));
        let (claims, body) = self.lab.request(&self.github, &report, self.now());
        let reports = self.lab.jobs.entry(self.lab.check_run_of(&report)).or_default();
        match (forgery, conclusion) {
            (Some(forgery), _) => reports.was_forged_end |= !forgery.is_of_another_run(),
            (None, None) => reports.started = true,
            (None, Some(end)) => drop(reports.conclusions.insert(end)),
        }
        let token = signed(&self.github, &claims);
        let request = Request::post("/github/callback")
            .header(header::AUTHORIZATION, format!("Bearer {token}"))
            .body(Body::from(body.to_string()));
        self.send(request, RequestKind::Report(report));
    }

    /// Sends a request to some replica that runs.
    fn send(&mut self, request: http::Result<Request<Body>>, what: RequestKind) {
        let running: Vec<usize> =
            (0..REPLICAS).filter(|replica| self.replicas[*replica].is_some()).collect();
        let sent_at = self.now();
        let replica = match running.len() {
            0 => None,
            count => Some(running[self.random.random_range(0..count)]),
        };
        let open = OpenRequest { replica: replica.unwrap_or(REPLICAS), sent_at, what };
        let target = replica.and_then(|replica| self.replicas[replica].as_mut());
        let Some((target, request)) = target.zip(request.ok()) else {
            return self.answered(open, None);
        };
        self.counter += 1;
        let (id, answers, router) =
            (self.counter, Arc::clone(&self.answers), target.router.clone());
        target.tasks.spawn(async move {
            let Ok(response) = router.oneshot(request).await;
            let status = response.status();
            let body = axum::body::to_bytes(response.into_body(), 1 << 20).await;
            let body = serde_json::from_slice(&body.unwrap_or_default()).unwrap_or_default();
            answers.lock().push((id, status, body));
        });
        self.requests.insert(id, open);
    }

    /// A request was answered, or its connection broke.
    fn answered(&mut self, request: OpenRequest, answer: Option<StatusCode>) {
        let status = answer.map_or(0, |status| status.as_u16());
        match request.what {
            RequestKind::Webhook { delivery, is_redelivery } => {
                self.trace(format!("{} is answered with {status}", delivery.id));
                let now = self.now();
                self.github.world.log_delivery(&delivery, now, is_redelivery, status);
                if (200..300).contains(&status) {
                    self.ledger.acknowledge(&delivery.id);
                }
            }
            RequestKind::Nightly(nightly) if (200..300).contains(&status) => {
                self.ledger.nightlies.insert(nightly.repo, true);
            }
            RequestKind::Nightly(nightly) => {
                self.trace(format!(
                    "the nightly run of {} is answered with {status}",
                    nightly.repo
                ));
                let again = NightlyReport { tries: nightly.tries + 1, ..nightly };
                let at = self.now() + Duration::from_secs(20 << nightly.tries.min(5));
                self.plan(at, ScheduledEvent::Nightly(again));
            }
            RequestKind::Report(report) => {
                let LabReport { run, attempt, conclusion, .. } = report;
                self.trace(format!("the report of run {run} is answered with {status}"));
                let is_taken = (200..300).contains(&status);
                if is_taken && report.forgery.is_none() {
                    let reports = self.lab.jobs.entry(self.lab.check_run_of(&report)).or_default();
                    let known = reports.acknowledged.entry((run, attempt)).or_default();
                    *known = known.or(conclusion);
                }
                if matches!(status, 0 | 408 | 429) || status >= 500 {
                    let pause = Duration::from_secs(20 << report.tries.min(5));
                    let again = LabReport { tries: report.tries + 1, ..report };
                    self.plan(
                        self.now() + pause,
                        ScheduledEvent::BackendLab(LabEvent::Report(again)),
                    );
                }
            }
        }
    }

    fn pop_batch(&self, replica: usize) -> Option<crate::gates::SubmittedBatch> {
        self.gates.lock().commits[replica].pop_front()
    }

    /// The next batch of a replica reaches the disk, or doesn't.
    async fn commit(&mut self, replica: usize) -> Result<(), Broken> {
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

    /// GitHub answers a call, or fails in one of its ways.
    async fn answer_call(&mut self, call: GithubCall) -> Result<(), Broken> {
        let name = format!("{} {}", call.request.method(), call.request.uri().path());
        let replica = call.replica;
        let (what, response) = match self.random.random_range(0..1000) {
            0..12 => {
                self.gates.lock().calls.push(call);
                return self.crash(replica).await;
            }
            12..42 => ("502", refusal(StatusCode::BAD_GATEWAY)),
            42..72 => {
                self.serve(call.request).await?;
                ("done, and the answer lost", refusal(StatusCode::GATEWAY_TIMEOUT))
            }
            72..86 => {
                let reset = self.now() + Duration::from_secs(self.random.random_range(30..900));
                let mut response = refusal(StatusCode::FORBIDDEN);
                let headers = response.headers_mut();
                headers.insert("x-ratelimit-remaining", 0.into());
                headers.insert("x-ratelimit-reset", reset.as_second().into());
                ("rate limit", response)
            }
            86..100 => {
                let mut response = refusal(StatusCode::TOO_MANY_REQUESTS);
                let pause = self.random.random_range(1..120);
                response.headers_mut().insert(header::RETRY_AFTER, pause.into());
                ("secondary rate limit", response)
            }
            100..106 => ("401", refusal(StatusCode::UNAUTHORIZED)),
            106..112 if name.ends_with("/dispatches") => ("404", refusal(StatusCode::NOT_FOUND)),
            _ => ("", self.serve(call.request).await?),
        };
        let status = if what.is_empty() { response.status().to_string() } else { what.to_owned() };
        self.trace(format!("r{replica} {name}: {status}"));
        let _ = call.reply.send(response);
        Ok(())
    }

    /// GitHub does what a call asks for.
    async fn serve(&mut self, request: Request<Bytes>) -> Result<Response<Bytes>, Broken> {
        let is_write = request.method() != Method::GET;
        let response = answer(&self.api, request).await;
        if !is_write {
            return Ok(response);
        }
        for dispatch in self.github.world.take_dispatches() {
            let payload = &dispatch.client_payload;
            let delivery = payload["delivery_id"].as_str().unwrap_or_default().to_owned();
            let key = (delivery.clone(), key_of(&dispatch.repository));
            let leased = self.gates.lock().leases.get(&key).copied().unwrap_or_default();
            let accepted = self.ledger.accepted.entry(key).or_default();
            *accepted += 1;
            let accepted = *accepted;
            self.summary.dispatches += 1;
            let first = self.lab.next_run();
            if accepted > leased {
                let detail = format!(
                    "{delivery} to {}: {accepted} times, and its task was leased unsent {leased} times",
                    dispatch.repository
                );
                return Err(("recorded-dispatch-repeated", detail));
            }
            let repo = BACKENDS.into_iter().find(|repo| *repo == dispatch.repository);
            let head = self.ledger.webhooks.get(&delivery).map(|webhook| webhook.head.clone());
            if let Some((repo, head)) = repo.zip(head) {
                let events =
                    self.lab.receive(&self.github, &dispatch, repo, &head, &mut self.random);
                self.plan_lab(events);
            }
            let runs: Vec<_> = (first..self.lab.next_run()).collect();
            self.trace(format!(
                "GitHub accepts {delivery} for {}: runs {runs:?}",
                dispatch.repository
            ));
        }
        for started in self.github.world.take_reruns() {
            let Started::Rerun { run_id, attempt, failed_only, .. } = started else { continue };
            let now = self.now();
            let events = self.lab.rerun(run_id, attempt, failed_only, now, &mut self.random);
            self.plan_lab(events);
        }
        for delivery in self.github.world.take_redeliveries() {
            let at = self.now() + delivery_delay(&mut self.random);
            self.plan(at, ScheduledEvent::Deliver { delivery, is_redelivery: true });
        }
        let runs = self.github.world.check_runs(UPSTREAM);
        for line in self.ledger.check_shown(&runs, &self.lab, &self.memory)? {
            self.trace(line);
        }
        Ok(response)
    }

    /// A handler that took too long has closed its connections. GitHub may have got the request.
    async fn drop_abandoned_calls(&mut self) -> Result<(), Broken> {
        let abandoned = {
            let mut gates = self.gates.lock();
            if !gates.calls.iter().any(|call| call.reply.is_closed()) {
                return Ok(());
            }
            let calls = std::mem::take(&mut gates.calls);
            let (abandoned, open) = calls.into_iter().partition(|call| call.reply.is_closed());
            gates.calls = open;
            abandoned
        };
        let abandoned: Vec<GithubCall> = abandoned;
        for call in abandoned {
            if self.chance(50) {
                self.serve(call.request).await?;
            }
        }
        Ok(())
    }

    /// Takes the relay's answers, and checks what always has to hold.
    async fn check(&mut self) -> Result<(), Broken> {
        self.settle().await;
        self.drop_abandoned_calls().await?;
        let answers = std::mem::take(&mut *self.answers.lock());
        for (id, status, body) in answers {
            let Some(request) = self.requests.remove(&id) else { continue };
            let is_final = status.is_client_error()
                && !matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT);
            let genuine = match &request.what {
                RequestKind::Report(report)
                    if report.forgery.is_none() && self.needs_proof(report.run) =>
                {
                    Some(format!("run {}", report.run))
                }
                RequestKind::Nightly(nightly) => Some(format!("nightly run of {}", nightly.repo)),
                _ => None,
            };
            if let Some(what) = genuine.filter(|_| is_final) {
                let detail = format!("{what}: {status} {}", body["detail"]);
                return Err(("genuine-report-refused", detail));
            }
            self.answered(request, Some(status));
        }
        self.ledger.check_deliveries(&self.memory)?;
        // Looking at every check run takes longer the more there are.
        let period = if self.traffic.has_hours() { 2048 } else { 16 };
        if self.summary.steps.is_multiple_of(period) {
            let runs = self.github.world.check_runs(UPSTREAM);
            self.ledger.check_open_check_runs(&runs, &self.memory)?;
        }
        Ok(())
    }

    /// Whether reports of a run are compared by their proof. A dispatch that was superseded while GitHub
    /// accepted it has no proven ones.
    fn needs_proof(&self, run: u64) -> bool {
        let run = &self.lab.runs[&run];
        let dispatch = dispatch(&self.memory, &run.delivery, run.repo);
        run.repo != L2 && dispatch.is_some_and(|dispatch| dispatch.sent_at().is_some())
    }

    fn what_is_left(&self) -> String {
        let mut left = vec![];
        self.memory
            .for_each_task(|key, state, due_at| left.push(format!("{key} {state:?} {due_at}")));
        left.truncate(12);
        format!("{} requests, {} events, tasks: {left:?}", self.requests.len(), self.agenda.len())
    }
}

const KEEP: Duration = Duration::from_secs(35 * 24 * 3600);

fn refusal(status: StatusCode) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from_static(b"{\"message\": \"simulated\"}"));
    *response.status_mut() = status;
    response
}

async fn answer(api: &Router, request: Request<Bytes>) -> Response<Bytes> {
    let mut request = request.map(Body::from);
    request.extensions_mut().insert(ConnectInfo(Connection::default()));
    let Ok(response) = api.clone().oneshot(request).await;
    let (parts, body) = response.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap_or_default();
    Response::from_parts(parts, body)
}

fn signed(github: &State, claims: &Value) -> String {
    let text = claims.to_string();
    if let Some(token) = TOKENS.lock().get(&text) {
        return token.clone();
    }
    let token = github.oidc.sign(claims);
    let mut tokens = TOKENS.lock();
    if tokens.len() < MAX_TOKENS {
        tokens.insert(text, token.clone());
    }
    token
}

fn config(github: &State, traffic: Traffic) -> Config {
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
