//! The metrics that Prometheus reads at `/metrics`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

use crcr_store::{
    QueueDepth, StoreError, StoreHealth, TaskState, TaskView, Versioned, read_record,
};
use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use super::body_memory::DROPPED_BODIES;
use super::open_connections::CLOSED_EARLY;
use super::server_metrics::{ProcessMetrics, ServerMetrics};
use crate::allowlist::AllowlistStatus;
use crate::callback::auth::IssuerStatus;
use crate::limits;
use crate::queue::lanes::server_of;
use crate::queue::open_dispatches;
use crate::reconcile::Reconciliation;
use crate::relay::Relay;
use crate::state_records::{self, ReconcileRecord};
use crate::usage::Resource;

type LabelSet = Vec<(&'static str, &'static str)>;
/// Labels whose values aren't known when this is compiled, such as an account's name.
pub(crate) type NamedLabels = Vec<(&'static str, String)>;

/// What is read when the metrics are asked for.
pub struct MetricsInput {
    pub now: Timestamp,
    /// `None` while the store can't be read: what it said last stays.
    pub stored: Option<StoredState>,
    pub allowlist: AllowlistStatus,
    pub issuers_without_keys: usize,
    pub issuers_unreachable: usize,
    pub upstream_moved: bool,
    pub is_ready: bool,
    pub calls_left: BTreeMap<String, u64>,
    pub(crate) used_today: Vec<(Resource, String, u64)>,
}

/// What all relays of a store have in common.
pub struct StoredState {
    pub depth: QueueDepth,
    pub open_dispatches: u64,
    /// The tasks that are due first, and the dead ones.
    pub tasks: Vec<TaskView>,
    /// Before this, every webhook is known to have arrived.
    pub reconciled_until: Option<Timestamp>,
}

impl StoredState {
    async fn read(relay: &Relay) -> Result<Self, StoreError> {
        let store = relay.store.as_ref();
        let mut tasks = overdue_tasks(relay).await?;
        tasks.extend(store.tasks(Some(TaskState::Dead), limits::METRIC_DEAD_TASKS).await?);
        let reconciled: Versioned<ReconcileRecord> =
            read_record(store, state_records::reconcile_key()).await?;
        Ok(Self {
            depth: store.queue_depth().await?,
            open_dispatches: open_dispatches(store).await?,
            tasks,
            reconciled_until: reconciled.value.map(|record| record.settled_until),
        })
    }
}

/// The tasks that are due first, without those whose server asked to wait: nothing is wrong with these. If they are all
/// that is found, more is read, so that they hide no other.
async fn overdue_tasks(relay: &Relay) -> Result<Vec<TaskView>, StoreError> {
    let paused = relay.metrics.paused_servers();
    let mut limit = limits::METRIC_TASKS;
    loop {
        let mut tasks = relay.store.tasks(Some(TaskState::Ready), limit).await?;
        let is_whole = tasks.len() < limit;
        let upstream = &relay.config.upstream;
        tasks.retain(|task| !paused.contains(&server_of(&task.lane, upstream)));
        if !tasks.is_empty() || is_whole || limit >= limits::METRIC_DEAD_TASKS {
            return Ok(tasks);
        }
        limit *= 10;
    }
}

impl MetricsInput {
    pub async fn read(relay: &Relay) -> Self {
        // A scrape has ten seconds, and an outage of the store mustn't look like one of the relay.
        let stored = tokio::time::timeout(limits::READINESS_PERIOD, StoredState::read(relay));
        let (stored, readiness) = tokio::join!(stored, relay.readiness());
        let issuers = &readiness.issuers;
        let is_unreachable = |issuer: &&IssuerStatus| issuer.needed && issuer.problem.is_some();
        Self {
            now: relay.now(),
            stored: stored.ok().and_then(Result::ok),
            issuers_without_keys: issuers.iter().filter(|issuer| issuer.is_missing()).count(),
            issuers_unreachable: issuers.iter().filter(is_unreachable).count(),
            upstream_moved: relay.upstream_identity.moved_to().is_some(),
            is_ready: readiness.is_ready(),
            allowlist: readiness.allowlist,
            calls_left: relay.app.calls_left(),
            used_today: relay.usage.most(),
        }
    }
}

/// Each metric is in one place: its field, its type, its name after the prefix, and what it says.
macro_rules! metrics {
    ($($field:ident: $kind:ty = $name:literal, $help:literal;)+) => {
        pub struct Metrics {
            registry: Registry,
            /// Metrics without the prefix of the others.
            process: Registry,
            pub(crate) server: ServerMetrics,
            dispatch_seconds: Histogram,
            callback_seconds: Histogram,
            /// The servers and accounts that asked this process to wait.
            paused_servers: Mutex<BTreeSet<String>>,
            $($field: $kind,)+
        }

        impl Metrics {
            pub fn new() -> Self {
                let mut registry = Registry::with_prefix("crcr");
                let mut process = Registry::default();
                process.register_collector(Box::new(ProcessMetrics::new()));
                $(
                    let $field = <$kind>::default();
                    registry.register($name, $help, $field.clone());
                )+
                Self {
                    server: ServerMetrics::register(&mut registry),
                    dispatch_seconds: add_seconds(
                        &mut registry,
                        "dispatch_seconds",
                        "Seconds from acceptance to the dispatch at GitHub",
                    ),
                    callback_seconds: add_seconds(
                        &mut registry,
                        "callback_seconds",
                        "Seconds from a report to its answer",
                    ),
                    paused_servers: Mutex::default(),
                    registry,
                    process,
                    $($field,)+
                }
            }
        }
    };
}

metrics! {
    ready: Gauge = "ready", "1 when `/readyz` answers 200, else 0";
    webhooks: Family<LabelSet, Counter> = "webhooks", "Webhook deliveries by answer";
    callbacks: Family<LabelSet, Counter> = "callbacks", "Reports by outcome";
    tasks: Family<LabelSet, Counter> = "tasks", "Tasks by kind and outcome";
    repository_changes: Family<LabelSet, Counter> = "repository_changes",
        "Dispatches and reports refused because the name belongs to another repository";
    queue: Family<LabelSet, Gauge> = "queue_tasks", "Tasks in the queue by state";
    overdue_seconds: Family<NamedLabels, Gauge> = "overdue_seconds",
        "Seconds since the oldest task of a kind was due that hasn't begun and whose server doesn't ask to wait";
    dead_tasks: Family<NamedLabels, Gauge> = "dead_tasks", "Tasks that were given up, by kind";
    paused_lanes: Gauge = "paused_lanes",
        "Servers and accounts that asked this process to wait, such as for a rate limit";
    busy_workers: Family<LabelSet, Gauge> = "busy_workers",
        "Tasks that are being worked on, by the pool of workers";
    used_today: Family<NamedLabels, Gauge> = "used_today",
        "What the repositories that use most of it have used today (UTC), and all others";
    closed_early: Family<LabelSet, Gauge> = "connections_closed_early",
        "Connections closed for others, by what they were waiting for";
    dropped_bodies: Gauge = "bodies_dropped",
        "Bodies dropped for others because they arrived too slowly";
    calls_left: Family<NamedLabels, Gauge> = "github_calls_left",
        "Calls of GitHub's API that an account's installation has left in this hour";
    issuers_without_keys: Gauge = "issuers_without_keys",
        "Token issuers that backends need and whose keys aren't known; their reports are refused";
    issuers_unreachable: Gauge = "issuers_unreachable",
        "Token issuers that backends need and whose keys couldn't be fetched at the last try";
    upstream_moved: Gauge = "upstream_moved",
        "1 while webhooks come from a renamed or transferred upstream, which are ignored";
    failed_deliveries: Family<NamedLabels, Counter> = "failed_deliveries",
        "Webhooks that failed by GitHub's own log, by the answer that GitHub got";
    missing_heads: Counter = "missing_heads",
        "Changes of pull requests that GitHub never sent a webhook about";
    open_dispatches: Gauge = "open_dispatches",
        "Dispatches that were sent to L2 or above and are not known to be over";
    allowlist_repositories: Gauge = "allowlist_repositories",
        "Repositories of the allowlist in force";
    allowlist_good: Gauge = "allowlist_good",
        "1 when the newest allowlist is in force, 0 when an older one had to stay";
    copied_facts: Counter = "results_facts", "Facts that were copied to the results";
    fact_copy_failures: Counter = "results_failures",
        "Batches of facts that the results did not take";
    outbox: Gauge = "results_waiting", "Facts that wait to be copied to the results";
    redeliveries: Family<LabelSet, Counter> = "redeliveries",
        "Webhooks that GitHub was asked to deliver again, by its answer";
    reconciled_until: Gauge = "reconciled_until_seconds",
        "Unix time before which every webhook is known to have arrived";
    store_losses: Gauge = "store_losses",
        "How often acknowledged changes were missing in the store since the start";
    store_durable: Gauge = "store_durable",
        "1 when a change is on disk before it is acknowledged, 0 when the store may lose it";
}

impl Metrics {
    pub fn webhook(&self, answer: &'static str) {
        self.webhooks.get_or_create(&vec![("answer", answer)]).inc();
    }

    pub fn callback(&self, outcome: &'static str, seconds: f64) {
        self.callbacks.get_or_create(&vec![("outcome", outcome)]).inc();
        self.callback_seconds.observe(seconds);
    }

    pub fn task(&self, kind: &'static str, outcome: &'static str) {
        // Prometheus sees no increase when a counter begins above 0, and alerts ask what got through after a failure.
        for through in ["done", "later"] {
            drop(self.tasks.get_or_create(&vec![("kind", kind), ("outcome", through)]));
        }
        self.tasks.get_or_create(&vec![("kind", kind), ("outcome", outcome)]).inc();
    }

    /// `refused` is `dispatch` or `report`.
    pub fn repository_changed(&self, refused: &'static str) {
        self.repository_changes.get_or_create(&vec![("refused", refused)]).inc();
    }

    pub fn dispatched(&self, seconds: f64) {
        self.dispatch_seconds.observe(seconds);
    }

    pub(crate) fn facts_copied(&self, count: usize) {
        self.copied_facts.inc_by(count as u64);
    }

    pub(crate) fn fact_copy_failed(&self) {
        self.fact_copy_failures.inc();
    }

    pub fn reconciled(&self, found: &Reconciliation) {
        for (answer, count) in [("accepted", found.asked.len()), ("refused", found.refused.len())] {
            self.redeliveries.get_or_create(&vec![("answer", answer)]).inc_by(count as u64);
        }
        // What a restore lost didn't fail.
        let failed =
            found.asked.iter().filter(|delivery| !(200..300).contains(&delivery.status_code));
        for delivery in failed {
            let status = vec![("status", delivery.status_code.to_string())];
            self.failed_deliveries.get_or_create(&status).inc();
        }
    }

    pub(crate) fn head_was_missing(&self) {
        self.missing_heads.inc();
    }

    pub(crate) fn store_health(&self, health: &StoreHealth) {
        self.store_losses.set(gauge(health.losses));
        self.store_durable.set(i64::from(health.weaker_promise.is_none()));
    }

    pub(crate) fn servers_paused<'a>(&self, servers: impl Iterator<Item = &'a String>) {
        let servers: BTreeSet<String> = servers.cloned().collect();
        self.paused_lanes.set(gauge(servers.len() as u64));
        *self.paused_servers.lock() = servers;
    }

    pub(crate) fn paused_servers(&self) -> BTreeSet<String> {
        self.paused_servers.lock().clone()
    }

    pub(crate) fn pool_busy(&self, pool: &'static str, count: usize) {
        self.busy_workers.get_or_create(&vec![("pool", pool)]).set(gauge(count as u64));
    }

    fn count_use(&self, input: &MetricsInput) {
        self.used_today.clear();
        for (resource, repo, count) in &input.used_today {
            let labels = vec![("what", resource.as_str().to_owned()), ("repository", repo.clone())];
            self.used_today.get_or_create(&labels).set(gauge(*count));
        }
        for (phase, count) in &CLOSED_EARLY {
            let closed = self.closed_early.get_or_create(&vec![("waiting_for", *phase)]);
            closed.set(gauge(count.load(Ordering::Relaxed)));
        }
        self.dropped_bodies.set(gauge(DROPPED_BODIES.load(Ordering::Relaxed)));
    }

    pub fn text(&self, input: &MetricsInput) -> String {
        let allowlist = &input.allowlist;
        if let Some(stored) = &input.stored {
            self.count_stored(stored, input.now);
        }
        self.count_use(input);
        self.calls_left.clear();
        for (account, left) in &input.calls_left {
            let labels = vec![("account", account.clone())];
            self.calls_left.get_or_create(&labels).set(gauge(*left));
        }
        self.issuers_without_keys.set(gauge(input.issuers_without_keys as u64));
        self.issuers_unreachable.set(gauge(input.issuers_unreachable as u64));
        self.upstream_moved.set(i64::from(input.upstream_moved));
        self.ready.set(i64::from(input.is_ready));
        self.allowlist_repositories.set(gauge(allowlist.repositories as u64));
        self.allowlist_good.set(i64::from(allowlist.loaded && allowlist.problem.is_none()));
        let mut text = String::new();
        encode_registry(&mut text, &self.registry)
            .and_then(|()| encode_registry(&mut text, &self.process))
            .and_then(|()| encode_eof(&mut text))
            .expect("a String takes all text");
        text
    }

    fn count_stored(&self, stored: &StoredState, now: Timestamp) {
        let StoredState { depth, open_dispatches, tasks, reconciled_until } = stored;
        for (state, count) in
            [("ready", depth.ready), ("leased", depth.leased), ("dead", depth.dead)]
        {
            self.queue.get_or_create(&vec![("state", state)]).set(gauge(count));
        }
        self.open_dispatches.set(gauge(*open_dispatches));
        self.outbox.set(gauge(depth.facts));
        self.reconciled_until.set(reconciled_until.map_or(0, Timestamp::as_second));
        self.overdue_seconds.clear();
        self.dead_tasks.clear();
        for task in tasks {
            let labels = vec![("kind", task.kind())];
            if task.state == TaskState::Dead {
                self.dead_tasks.get_or_create(&labels).inc();
            } else if task.state == TaskState::Ready {
                let overdue = now.duration_since(task.due_at).as_secs().max(0);
                let oldest = self.overdue_seconds.get_or_create(&labels);
                oldest.set(oldest.get().max(overdue));
            }
        }
    }
}

fn gauge(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

fn add_seconds(registry: &mut Registry, name: &str, help: &str) -> Histogram {
    let metric = Histogram::new(exponential_buckets(0.001, 2.0, 20));
    registry.register(name, help, metric.clone());
    metric
}

#[cfg(test)]
mod tests {
    use axum::http::Method;

    use super::*;
    use crate::reconcile::FailedDelivery;

    fn task(kind: &str, state: TaskState, due: i64) -> TaskView {
        TaskView {
            key: format!("[\"{kind}\",\"x\"]"),
            lane: "acme".to_owned(),
            state,
            failed: 0,
            due_at: Timestamp::from_second(due).unwrap(),
            created_at: Timestamp::UNIX_EPOCH,
            last_error: None,
        }
    }

    fn input(tasks: Vec<TaskView>) -> MetricsInput {
        let stored = StoredState {
            depth: QueueDepth::default(),
            open_dispatches: 0,
            tasks,
            reconciled_until: Some(Timestamp::from_second(700).unwrap()),
        };
        MetricsInput {
            now: Timestamp::from_second(1_000).unwrap(),
            stored: Some(stored),
            allowlist: AllowlistStatus::default(),
            issuers_without_keys: 1,
            issuers_unreachable: 1,
            upstream_moved: false,
            is_ready: true,
            calls_left: [("acme".to_owned(), 4_321)].into(),
            used_today: vec![(Resource::Reports, "acme/one".to_owned(), 7)],
        }
    }

    /// The names of all metrics as Prometheus has them.
    fn names() -> BTreeSet<String> {
        let metrics = Metrics::new();
        // A family without a sample isn't in the text.
        metrics.webhook("accepted");
        metrics.callback("recorded", 0.1);
        metrics.task("dispatch", "done");
        metrics.pool_busy("dispatch", 1);
        metrics.repository_changed("dispatch");
        let took = std::time::Duration::from_millis(3);
        metrics.server.answered("/readyz", &Method::GET, 200, took);
        let failed = FailedDelivery {
            id: "d".to_owned(),
            event: "push".to_owned(),
            delivered_at: Timestamp::UNIX_EPOCH,
            status_code: 401,
        };
        metrics.reconciled(&Reconciliation { asked: vec![failed], ..Reconciliation::default() });
        let tasks =
            vec![task("dispatch", TaskState::Ready, 1), task("dispatch", TaskState::Dead, 1)];
        let text = metrics.text(&input(tasks));
        let described = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        described
            .flat_map(|line| {
                let (name, kind) = line.split_once(' ').unwrap();
                let suffixes: &[&str] = match kind {
                    "counter" => &["_total"],
                    "info" => &["_info"],
                    "histogram" => &["_bucket", "_count", "_sum"],
                    _ => &[""],
                };
                suffixes.iter().map(move |suffix| format!("{name}{suffix}"))
            })
            .collect()
    }

    #[test]
    fn dashboard_and_alerts_name_only_existing_metrics_and_the_dashboard_all() {
        let names = names();
        for (file, text) in [
            ("relay.json", include_str!("../../../../deploy/grafana/relay.json")),
            ("alerts.yml", include_str!("../../../../deploy/prometheus/alerts.yml")),
        ] {
            let words = text.split(|char: char| !char.is_ascii_alphanumeric() && char != '_');
            let is_metric = |word: &&str| word.starts_with("crcr_") || word.starts_with("process_");
            let named: BTreeSet<_> = words.filter(is_metric).collect();
            let unknown: Vec<_> = named.iter().filter(|name| !names.contains(**name)).collect();
            assert!(unknown.is_empty() && named.len() > 5, "{file}: {unknown:?}");
            if file == "relay.json" {
                let parts = ["_sum", "_count"];
                let missing = names.iter().filter(|name| {
                    !named.contains(name.as_str()) && !parts.iter().any(|end| name.ends_with(end))
                });
                assert_eq!(missing.collect::<Vec<_>>(), Vec::<&String>::new(), "{file}");
            }
        }
    }

    #[test]
    fn pages_name_only_existing_metrics() {
        let names = names();
        let exists = |name: &str| names.contains(name) || names.contains(&format!("{name}_bucket"));
        let pages = [
            "operating/watch",
            "operating/alerts",
            "operating/set-up",
            "operating/sizing",
            "operating/store",
            "contributing/task-kind",
        ];
        for page in pages {
            let file = format!("{}/../../docs/{page}.md", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(file).unwrap();
            let spans = text.split('`').skip(1).step_by(2);
            let metrics: Vec<_> = spans.filter(|span| span.starts_with("crcr_")).collect();
            assert!(!metrics.is_empty(), "{page}");
            for span in metrics {
                let (name, labels) = span.split_once('{').unwrap_or((span, ""));
                // The tables of ClickHouse are on that page, too.
                let is_table = page == "operating/store" && labels.is_empty();
                assert!(is_table || exists(name), "{page}: `{span}`");
            }
        }
    }

    #[test]
    fn first_success_of_a_kind_after_its_failures_is_an_increase() {
        let metrics = Metrics::new();
        metrics.task("forward", "retry");
        let text = metrics.text(&input(vec![]));
        for (outcome, count) in [("retry", 1), ("done", 0), ("later", 0)] {
            let line =
                format!("crcr_tasks_total{{kind=\"forward\",outcome=\"{outcome}\"}} {count}");
            assert!(text.contains(&line), "{line}\n{text}");
        }
    }

    #[test]
    fn oldest_due_task_and_dead_tasks_are_told_by_kind() {
        let metrics = Metrics::new();
        let text = metrics.text(&input(vec![
            task("dispatch", TaskState::Ready, 400),
            task("dispatch", TaskState::Ready, 900),
            task("sweep", TaskState::Ready, 2_000),
            task("comment", TaskState::Dead, 5_000),
            task("comment", TaskState::Dead, 6_000),
        ]));
        for line in [
            "crcr_overdue_seconds{kind=\"dispatch\"} 600",
            "crcr_overdue_seconds{kind=\"sweep\"} 0",
            "crcr_dead_tasks{kind=\"comment\"} 2",
            "crcr_github_calls_left{account=\"acme\"} 4321",
            "crcr_issuers_without_keys 1",
            "crcr_reconciled_until_seconds 700",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        let text = metrics.text(&MetricsInput { stored: None, is_ready: false, ..input(vec![]) });
        for line in ["crcr_overdue_seconds{kind=\"dispatch\"} 600", "crcr_ready 0"] {
            assert!(text.contains(line), "the store is away, {line}\n{text}");
        }
        let text = metrics.text(&input(vec![]));
        assert!(!text.contains("kind=\"dispatch\""), "what is done is gone:\n{text}");
    }
}
