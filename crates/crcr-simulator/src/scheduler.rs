//! Decides what happens next, by the seed: which request is answered, which commit reaches the disk, what
//! fails, when time passes, and when a replica crashes.

mod agenda;
mod frozen;
mod github_calls;
mod replicas;
mod requests;
mod results;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use crcr_domain::protocol::dispatch::DispatchStatus;
use crcr_relay::admin;
use crcr_relay::state_records::{self, Uptime};
use crcr_standin::State;
use crcr_standin::server;
use crcr_standin::world::Delivery;
use crcr_store::memory::MemoryStore;
use crcr_store::{LeasedTask, StateStore as _, TaskState, WriteBatch, read_record};
use http::StatusCode;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::Value;
use tokio::task::JoinSet;

use self::frozen::{LABEL_CHANGES, MOST_FREEZES};
use self::github_calls::CheckOutage;
use self::results::SimulatedResults;
use crate::backend_files::FILE_PATH;
use crate::gates::{CommitGates, GithubCall, SharedGates};
use crate::inputs::SeedInputs;
use crate::invariants::SeenCheckRuns;
use crate::lab::{BackendLab, LabEvent, LabReport, NIGHTLY_COMMIT, NightlyReport};
use crate::ledger::{Broken, PromiseLedger};
use crate::names::{BACKENDS, UPSTREAM};
use crate::stores::{REPLICAS, SharedStore, StoreClient, StoreKind};
use crate::upstream::{ALLOWLIST_PATH, UpstreamModel};
use crate::{BrokenPromise, CulpritScore, SeedSummary, end_state, probes};

/// The faulty part of a seed ends after this long, so that GitHub can still redeliver everything.
const FAULTY_TIME: SignedDuration = SignedDuration::from_hours(30);
/// The part without faults is over long before.
const SETTLING_TIME: SignedDuration = SignedDuration::from_hours(24 * 12);
const SETTLING_STEPS: usize = 60_000;
/// How many strangers open a pull request at another's head.
const STRANGERS: u32 = 6;
/// Open pull requests of an upstream whose hours are simulated.
const PULLS: u64 = 40;
/// GitHub closes the connection after this long.
const WEBHOOK_TIMEOUT: SignedDuration = SignedDuration::from_secs(10);
/// How often, and for how long, it is looked again whether nothing is left to do.
const QUIET_LOOKS: u32 = 3;
const QUIET_PAUSE: Duration = Duration::from_secs(90);
/// How long the relay waits for an external HUD.
const HUD_TIMEOUT: SignedDuration = SignedDuration::from_secs(10);
/// A dispatch that is due doesn't wait longer for a worker.
const DISPATCH_WAIT: SignedDuration = SignedDuration::from_secs(30);
/// GitHub asks for pauses up to this one.
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_mins(20);
/// Settings of the keys for callback tokens during a rotation. The first one of each signs, all of them verify.
const CALLBACK_KEYS: [&str; 3] = [
    "the-old-callback-key",
    "the-old-callback-key,the-new-callback-key",
    "the-new-callback-key,the-old-callback-key",
];
/// Like every address here it is never connected to.
const ORIGIN: &str = "http://127.0.0.1:9/";

/// What a seed is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SimulatedTraffic {
    /// This many steps with faults, in which anything may happen at any time.
    Steps(usize),
    /// Hours of a large upstream.
    Hours(u32),
}

impl SimulatedTraffic {
    fn has_hours(self) -> bool {
        matches!(self, Self::Hours(_))
    }
}

enum ScheduledEvent {
    Upstream,
    Nightly(NightlyReport),
    Deliver {
        delivery: Delivery,
        is_redelivery: bool,
    },
    BackendLab(LabEvent),
    /// GitHub gets a request of a worker that may have stopped since.
    LateCall(GithubCall),
    Restart(usize),
    /// A killed Redis server starts again.
    ServerStart,
    /// A backend's default branch gets another name.
    BranchRename,
    /// Both replicas are restarted with other keys for callback tokens.
    KeyRotation,
    /// The issuer signs with a new key, or publishes no old one any more.
    IssuerRotation {
        is_over: bool,
    },
    /// The next step of a rotation of the webhook secret.
    SecretRotation(SecretStep),
    /// Another worker may have the task of a frozen one.
    LeaseEnd(LeasedTask),
    /// The label of a pull request is set or removed.
    LabelChange,
    /// A backend's own file gets a version that nobody can read.
    BrokenFile,
    /// A pull request gets a new head.
    HeadMoves(u64),
    /// An entry of the allowlist changes.
    AllowlistChange,
    /// A stranger opens a pull request at another's head.
    StrangerComes,
}

/// A step of a rotation of the webhook secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SecretStep {
    /// The replicas are restarted with other values.
    Restart,
    /// GitHub uses the new one.
    Change,
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
    /// Gives it the keys that the issuers publish.
    accept_keys: Box<dyn Fn()>,
    /// Whether it has written down that it is up, and for how long nobody was before.
    has_beaten: Arc<AtomicBool>,
}

type Answers = Arc<Mutex<Vec<(u64, StatusCode, Value)>>>;

struct Simulation {
    seed: u64,
    traffic: SimulatedTraffic,
    random: StdRng,
    gates: SharedGates,
    store_kind: StoreKind,
    shared: Arc<SharedStore>,
    memory: Arc<MemoryStore>,
    results: SimulatedResults,
    github: Arc<State>,
    api: Router,
    replicas: [Option<RelayReplica>; REPLICAS],
    inputs: SeedInputs,
    /// Which of [`CALLBACK_KEYS`] a replica gets that starts.
    keys: usize,
    /// Which of the values of [`webhook_secrets`](agenda::webhook_secrets) a replica gets that starts.
    secrets: usize,
    /// Whether GitHub signs webhooks with the new secret.
    has_new_secret: bool,
    upstream: UpstreamModel,
    lab: BackendLab,
    ledger: PromiseLedger,
    seen: SeenCheckRuns,
    /// GitHub's check API is down until it is removed.
    outage: Option<CheckOutage>,
    /// How many more processes may be frozen or stop in the middle of a change.
    freezes: u32,
    /// Since then nothing fails, but for that.
    repaired_at: Option<Timestamp>,
    /// When something last happened upstream or at a backend, or the check API began to work again.
    last_input: Timestamp,
    /// In the order of their times; the number keeps equal times in order.
    agenda: BTreeMap<(Timestamp, u64), ScheduledEvent>,
    requests: BTreeMap<u64, OpenRequest>,
    answers: Answers,
    counter: u64,
    summary: SeedSummary,
}

pub(crate) async fn run(
    seed: u64,
    traffic: SimulatedTraffic,
    store: StoreKind,
    trace_lines: usize,
) -> Result<SeedSummary, Box<BrokenPromise>> {
    let shared = SharedStore::start(store, seed).map_err(|error| {
        let (invariant, detail, trace) = ("store-not-started", error.to_string(), vec![]);
        Box::new(BrokenPromise { seed, step: 0, invariant, detail, trace, traffic, store })
    })?;
    let mut simulation = Simulation::new(seed, traffic, (store, Arc::new(shared)), trace_lines);
    match simulation.run_all().await {
        Ok(()) => {
            let gates = simulation.gates.lock();
            let trace = gates.trace.lines.iter().cloned().collect();
            Ok(SeedSummary { trace_hash: gates.trace.hash, trace, ..simulation.summary.clone() })
        }
        Err((invariant, detail)) => {
            let gates = simulation.gates.lock();
            let trace = gates.trace.lines.iter().cloned().collect();
            let step = gates.trace.step;
            Err(Box::new(BrokenPromise { seed, step, invariant, detail, trace, traffic, store }))
        }
    }
}

impl Simulation {
    fn new(
        seed: u64,
        traffic: SimulatedTraffic,
        (store_kind, shared): (StoreKind, Arc<SharedStore>),
        trace_lines: usize,
    ) -> Self {
        let inputs = SeedInputs::of(seed);
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
        let pulls = match traffic {
            SimulatedTraffic::Steps(_) if inputs.relay_downtime => 7,
            SimulatedTraffic::Steps(_) => 3,
            SimulatedTraffic::Hours(_) => PULLS,
        };
        let upstream = UpstreamModel::new(pulls, inputs, seed);
        for (repo, text) in upstream.files.texts() {
            world.put_file(repo, FILE_PATH, text);
        }
        world.put_file(UPSTREAM, ALLOWLIST_PATH, upstream.allowlist.text());
        world.add_commit(UPSTREAM, NIGHTLY_COMMIT);
        Self {
            seed,
            traffic,
            random: StdRng::seed_from_u64(seed),
            gates: Arc::new(Mutex::new(CommitGates::new(seed, start, trace_lines))),
            store_kind,
            memory: Arc::clone(&shared.memory),
            shared,
            results: SimulatedResults::new(inputs.probes),
            api: server::router(Arc::clone(&github)),
            github,
            replicas: [None, None],
            inputs,
            keys: 0,
            secrets: 0,
            has_new_secret: false,
            upstream,
            lab: BackendLab::new(inputs),
            ledger: PromiseLedger::default(),
            seen: SeenCheckRuns::new(),
            outage: None,
            freezes: if inputs.frozen_workers { MOST_FREEZES } else { 0 },
            repaired_at: None,
            last_input: start,
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
                culprits: CulpritScore::default(),
                trace: vec![],
            },
        }
    }

    async fn run_all(&mut self) -> Result<(), Broken> {
        for replica in self.replica_numbers() {
            self.start(replica);
        }
        self.settle().await;
        let (steps, end) = match self.traffic {
            SimulatedTraffic::Steps(steps) => (steps, self.now() + FAULTY_TIME),
            SimulatedTraffic::Hours(hours) => {
                self.plan_hours(hours);
                (usize::MAX, self.now() + SignedDuration::from_hours(hours.into()))
            }
        };
        self.trace(format!("inputs: {}", self.inputs.names().join(", ")));
        if self.inputs.branch_rename {
            let at = self.now() + Duration::from_secs(self.random.random_range(300..20_000));
            self.plan(at, ScheduledEvent::BranchRename);
        }
        if self.inputs.key_rotation {
            let mut at = self.now();
            for _ in 1..CALLBACK_KEYS.len() {
                at += Duration::from_secs(self.random.random_range(300..10_000));
                self.plan(at, ScheduledEvent::KeyRotation);
            }
        }
        self.plan_rotations();
        if self.inputs.setup_attacker {
            self.plan_attack();
        }
        if self.inputs.allowlist_changes && !self.traffic.has_hours() {
            // By then most checks are done, and nothing else has them evaluated.
            for hour in [16, 24, 32] {
                let at = Duration::from_secs(hour * 3600 + self.random.random_range(0..3600));
                self.plan(self.now() + at, ScheduledEvent::AllowlistChange);
            }
        }
        if self.inputs.shared_heads && !self.traffic.has_hours() {
            for _ in 0..STRANGERS {
                let at = self.now() + Duration::from_secs(self.random.random_range(300..20_000));
                self.plan(at, ScheduledEvent::StrangerComes);
            }
        }
        if self.inputs.backend_files {
            let at = self.now() + Duration::from_secs(self.random.random_range(300..20_000));
            self.plan(at, ScheduledEvent::BrokenFile);
        }
        while self.summary.steps < steps && self.now() < end {
            self.next_step();
            self.faulty_step().await?;
            self.check().await?;
        }
        if self.inputs.relay_downtime {
            self.push_to_all().await?;
            self.fall_silent().await?;
        }
        self.trace("no more faults".to_owned());
        self.repair().await;
        self.settle_all().await?;
        self.check_end().await
    }

    /// Lets time pass until nothing is left to do.
    async fn settle_all(&mut self) -> Result<(), Broken> {
        let end = self.now() + SETTLING_TIME;
        let mut quiet = 0;
        let searches = if self.inputs.probes { 5 } else { 1 };
        for _ in 0..(SETTLING_STEPS * searches).max(self.summary.steps) {
            self.next_step();
            if self.good_step().await? && !self.is_idle() {
                quiet = 0;
            } else if quiet < QUIET_LOOKS {
                // Until then every replica has read the newest allowlist.
                quiet += 1;
                self.advance(QUIET_PAUSE).await;
            } else {
                self.settle().await;
                return Ok(());
            }
            self.check().await?;
            if self.outage.as_ref().is_some_and(|outage| outage.until <= self.now()) {
                self.trace("GitHub's check API works again".to_owned());
                self.outage = None;
                self.last_input = self.now();
                self.repaired_at = Some(self.now());
            }
            if self.now() > end {
                break;
            }
        }
        Err(("never-settles", self.what_is_left()))
    }

    async fn check_end(&mut self) -> Result<(), Broken> {
        self.shared.check(true)?;
        self.ledger.check_deliveries(&self.memory, &self.upstream.allowlist)?;
        // What was acknowledged last is known by then.
        let later = self.now() + SignedDuration::from_hours(1);
        let compared = end_state::check(&self.ledger, &self.truth(later), &self.github)?;
        self.summary.compared = compared;
        let has_flaked = self.inputs.flaky_tests;
        let (culprits, wrong) =
            probes::judge(&self.memory, &self.upstream.branch, has_flaked).await?;
        self.summary.culprits = culprits;
        wrong.into_iter().for_each(|answer| self.trace(format!("wrong: {answer}")));
        Ok(())
    }

    fn next_step(&mut self) {
        self.summary.steps += 1;
        self.gates.lock().trace.step = self.summary.steps;
    }

    /// Only one process may have SQLite's file open.
    fn replica_numbers(&self) -> std::ops::Range<usize> {
        if self.store_kind == StoreKind::Sqlite { 0..1 } else { 0..REPLICAS }
    }

    fn operator(&self) -> StoreClient {
        StoreClient { shared: Arc::clone(&self.shared), number: REPLICAS }
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

    async fn faulty_step(&mut self) -> Result<(), Broken> {
        self.thaw();
        let (calls, commits, reads) = {
            let gates = self.gates.lock();
            let commits: Vec<usize> = (0..REPLICAS).filter(|one| gates.has_commits(*one)).collect();
            let (calls, reads) = gates.open_places();
            (calls, commits, reads)
        };
        let is_due = self.agenda.first_key_value().is_some_and(|((at, _), _)| *at <= self.now());
        let has_hours = self.traffic.has_hours();
        let is_idle = calls.is_empty() && reads.is_empty() && commits.is_empty();
        let weights = [
            if calls.is_empty() { 0 } else { 60 },
            if commits.is_empty() { 0 } else { 80 },
            if reads.is_empty() { 0 } else { 40 },
            if is_due { 50 } else { 0 },
            if has_hours { 0 } else { 6 },
            // In such hours almost everything is answered within seconds, as GitHub and a disk do.
            if has_hours && !is_idle { 1 } else { 16 },
            if has_hours && !is_idle { 0 } else { 2 },
            if self.inputs.early_lease_ends { 6 } else { 0 },
            if self.store_kind == StoreKind::Redis { 1 } else { 0 },
            if self.store_kind == StoreKind::Sqlite { 4 } else { 0 },
            1,
        ];
        match self.weighted(&weights) {
            0 => {
                let index = calls[self.random.random_range(0..calls.len())];
                if !self.stop_during(index).await? {
                    let call = self.gates.lock().calls.remove(index);
                    self.answer_call(call).await?;
                }
            }
            1 => {
                let replica = commits[self.random.random_range(0..commits.len())];
                self.commit(replica).await?;
            }
            2 => {
                let index = reads[self.random.random_range(0..reads.len())];
                let read = self.gates.lock().reads.remove(index);
                // The replica may have crashed.
                let _ = read.reply.send(());
            }
            3 => self.next_event().await?,
            4 => self.happen_upstream(),
            5 => self.pass_time().await,
            6 => {
                let replica = self.random.random_range(0..REPLICAS);
                self.crash(replica).await?;
            }
            7 => self.end_a_lease(),
            8 => self.kill_server(),
            9 => self.shared.make_checkpoint(),
            _ => self.clock_jumps(),
        }
        Ok(())
    }

    fn clock_jumps(&mut self) {
        match self.inputs.max_drift().filter(|_| self.chance(50)) {
            Some(max) => {
                let drift = self.random.random_range(-max..=max);
                self.gates.lock().drift = SignedDuration::from_secs(drift);
                self.trace(format!("all clocks are {drift} s ahead of GitHub's"));
            }
            None => {
                let replica = self.random.random_range(0..REPLICAS);
                let skew = SignedDuration::from_secs(self.random.random_range(-12..=12));
                self.gates.lock().skews[replica] = skew;
                self.trace(format!("r{replica}'s clock jumps to {skew:#}"));
            }
        }
    }

    /// One step without faults; `false` when nothing is left to do.
    async fn good_step(&mut self) -> Result<bool, Broken> {
        self.thaw();
        let (_, reads) = self.gates.lock().open_places();
        for index in reads.into_iter().rev() {
            let read = self.gates.lock().reads.remove(index);
            let _ = read.reply.send(());
        }
        if let Some(index) = self.change_on_its_way()
            && self.stop_during(index).await?
        {
            return Ok(true);
        }
        let calls = self.gates.lock().take_open_calls();
        let mut has_written = !calls.is_empty();
        for call in calls {
            let name = format!("{} {}", call.request.method(), call.request.uri().path());
            let response = self.serve(call.request, call.sent_at).await?;
            if response.status().is_client_error() {
                self.trace(format!("r{} {name}: {}", call.replica, response.status()));
            }
            let _ = call.reply.send(response);
        }
        for replica in 0..REPLICAS {
            while !self.freeze_before_change(replica)
                && let Some(submitted) = self.pop_batch(replica)
            {
                let outcome = self.apply(replica, submitted.batch, submitted.at);
                let _ = submitted.reply.send(outcome);
                has_written = true;
            }
        }
        if has_written {
            return Ok(true);
        }
        if self.agenda.first_key_value().is_some_and(|((at, _), _)| *at <= self.now()) {
            self.next_event().await?;
            return Ok(true);
        }
        self.check_waiting_dispatches()?;
        let mut next = self.agenda.first_key_value().map(|((at, _), _)| *at);
        let thaws = self.gates.lock().frozen_until.iter().flatten().min().copied();
        next = next.into_iter().chain(thaws).min();
        let mut reconcile = None;
        let hud_gives_up = self.now() + HUD_TIMEOUT;
        // Tasks are due by the clock of whoever does them.
        let drift = self.gates.lock().drift;
        self.memory.for_each_task(|key, state, due_at| {
            let due_at = due_at - drift;
            if key == "[\"reconcile\"]" {
                reconcile = Some(due_at);
            } else if state == TaskState::Leased && key.starts_with("[\"forward\"") {
                // The request times out before its lease ends.
                next = Some(next.map_or(hud_gives_up, |next| next.min(hud_gives_up)));
            } else if state != TaskState::Dead {
                next = Some(next.map_or(due_at, |next| next.min(due_at)));
            }
        });
        self.ledger.note_stored(&self.memory, self.now());
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

    /// Everything works from now on, but for the check API in some seeds.
    async fn repair(&mut self) {
        if self.inputs.check_outage {
            let hours = self.random.random_range(2..5);
            let until = self.now() + SignedDuration::from_hours(hours);
            let is_rate_limit = self.chance(50);
            self.trace(format!("GitHub's check API is down for {hours} hours"));
            self.outage = Some(CheckOutage { until, is_rate_limit });
        }
        {
            let mut gates = self.gates.lock();
            gates.faults = false;
            gates.skews = [SignedDuration::ZERO; REPLICAS];
            if self.inputs.wrong_clocks {
                gates.drift = SignedDuration::ZERO;
            }
        }
        self.start_server();
        if self.inputs.frozen_workers {
            self.freezes = MOST_FREEZES;
            for hour in 1..=LABEL_CHANGES {
                let at = self.now() + Duration::from_secs(hour * 3600);
                self.plan(at, ScheduledEvent::LabelChange);
            }
        }
        self.repaired_at = Some(self.now());
        for replica in self.replica_numbers() {
            if self.replicas[replica].is_none() {
                self.start(replica);
            }
        }
        self.settle().await;
    }

    /// Whatever else the workers do, a dispatch that is due is sent at once.
    fn check_waiting_dispatches(&self) -> Result<(), Broken> {
        // By the clock of whoever should send it.
        let now = self.now() + self.gates.lock().drift;
        // GitHub may have asked for a pause before.
        let is_limited = self.outage.as_ref().is_some_and(|outage| outage.is_rate_limit);
        let Some(repaired_at) = self.repaired_at.filter(|_| !is_limited) else { return Ok(()) };
        let paused_until = repaired_at + LONGEST_PAUSE;
        let mut waiting = None;
        self.memory.for_each_task(|key, state, due_at| {
            let is_late = now.duration_since(due_at.max(paused_until)) > DISPATCH_WAIT;
            if state == TaskState::Ready && is_late && key.starts_with("[\"dispatch\"") {
                waiting = Some((key.to_owned(), due_at));
            }
        });
        match waiting {
            Some((key, due_at)) => {
                let seconds = now.duration_since(due_at).as_secs();
                Err(("dispatch-starved", format!("{key} has waited for {seconds} s")))
            }
            None => Ok(()),
        }
    }

    async fn redeliver_dead_letters(&mut self) -> usize {
        let operator = self.operator();
        let mut forwarded = vec![];
        self.memory.for_each_task(|key, state, _| {
            if state == TaskState::Dead && key.starts_with("[\"forward\"") {
                forwarded.push(key.to_owned());
            }
        });
        for key in forwarded {
            // The HUD will never answer.
            let _ = operator.discard_dead_task(&key).await;
        }
        // By the replicas' clocks, as the command asks one of them.
        let now = self.now() + self.gates.lock().drift;
        let again = admin::deliveries::redeliver_all(&operator, now, STATUS_TTL).await;
        let mut count = again.unwrap_or_default().requeued;
        // An unreachable dispatch isn't a dead letter: it is redelivered with its delivery.
        let known = admin::deliveries::newest(&operator, usize::MAX).await.unwrap_or_default();
        let unreachable = known.iter().flat_map(|overview| &overview.dispatches);
        for dispatch in unreachable.filter(|one| one.status == DispatchStatus::Unreachable) {
            let (id, repo) = (&dispatch.delivery, Some(&dispatch.repo));
            let again = admin::deliveries::redeliver(&operator, id, repo, now, STATUS_TTL).await;
            count += again.unwrap_or_default();
        }
        self.trace(format!("an operator redelivers {count} tasks"));
        count
    }

    /// Lets time pass, until a call arrives that is on its way: it never takes longer. Meanwhile GitHub creates the runs that
    /// are planned, for which that holds, too.
    async fn advance(&mut self, by: Duration) {
        let mut events = self.agenda.iter();
        let late_call = events.find(|(_, event)| matches!(event, ScheduledEvent::LateCall(_)));
        let end = self.now() + by;
        let end = late_call.map_or(end, |((at, _), _)| end.min(*at));
        loop {
            let due = self.agenda.iter().take_while(|((at, _), _)| *at <= end);
            let is_run = |event: &ScheduledEvent| {
                matches!(event, ScheduledEvent::BackendLab(LabEvent::RunCreated(_)))
            };
            let run = due.into_iter().find(|(_, event)| is_run(event)).map(|(key, _)| *key);
            let until = run.map_or(end, |(at, _)| at);
            self.pass(until.duration_since(self.now()).max(SignedDuration::ZERO).unsigned_abs())
                .await;
            let Some(event) = run.and_then(|key| self.agenda.remove(&key)) else { return };
            if let ScheduledEvent::BackendLab(LabEvent::RunCreated(run)) = event {
                self.create_run(run);
            }
        }
    }

    async fn pass(&mut self, by: Duration) {
        {
            let mut gates = self.gates.lock();
            gates.now += by;
            let line = format!("{:.1} s pass", by.as_secs_f64());
            gates.trace.add(line);
        }
        self.github.clock.advance(by);
        self.note_uptime().await;
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
                self.answered(request, None, false);
            }
        }
    }

    /// A replica that runs writes down every minute that it is up. Time passes in larger steps, in which it would seem
    /// to be down.
    async fn note_uptime(&self) {
        let has_beaten = |one: &RelayReplica| one.has_beaten.load(Ordering::Relaxed);
        if !self.replicas.iter().flatten().any(has_beaten) {
            return;
        }
        let now = self.now();
        let key = state_records::uptime_key();
        let Ok(known) = read_record::<Uptime>(&*self.memory, key).await else { return };
        let Some(before) = known.value.clone() else { return };
        let mut batch = WriteBatch::default();
        batch.update(&known, &Uptime { alive_at: Some(now), ..before }, Timestamp::MAX);
        // While the store is down, nobody writes it down.
        let _ = self.apply(REPLICAS, batch, now);
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

    /// Whether nothing is left but the comparison with GitHub, which is never over, and notes that a replica is up.
    fn is_idle(&self) -> bool {
        let mut is_idle = self.requests.is_empty() && self.agenda.is_empty();
        self.memory.for_each_task(|key, state, _| {
            is_idle &= key == "[\"reconcile\"]" && state == TaskState::Ready;
        });
        is_idle && self.ledger.acknowledged.len() >= self.ledger.webhooks.len()
    }

    fn what_is_left(&self) -> String {
        let mut left = vec![];
        self.memory
            .for_each_task(|key, state, due_at| left.push(format!("{key} {state:?} {due_at}")));
        left.truncate(12);
        format!("{} requests, {} events, tasks: {left:?}", self.requests.len(), self.agenda.len())
    }
}

const STATUS_TTL: Duration = Duration::from_secs(35 * 24 * 3600);
