//! Prometheus metrics.

use crcr_store::QueueDepth;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::allowlist::AllowlistStatus;
use crate::reconcile::Reconciliation;

type LabelSet = Vec<(&'static str, &'static str)>;

pub struct Metrics {
    registry: Registry,
    webhooks: Family<LabelSet, Counter>,
    callbacks: Family<LabelSet, Counter>,
    tasks: Family<LabelSet, Counter>,
    repository_changes: Family<LabelSet, Counter>,
    dispatch_seconds: Histogram,
    callback_seconds: Histogram,
    queue: Family<LabelSet, Gauge>,
    open_dispatches: Gauge,
    allowlist_repositories: Gauge,
    allowlist_good: Gauge,
    copied_facts: Counter,
    fact_copy_failures: Counter,
    outbox: Gauge,
    redeliveries: Family<LabelSet, Counter>,
    reconciled_until: Gauge,
}

impl Metrics {
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("crcr");
        let webhooks = Family::<LabelSet, Counter>::default();
        registry.register("webhooks", "Webhook deliveries by answer", webhooks.clone());
        let callbacks = Family::<LabelSet, Counter>::default();
        registry.register("callbacks", "Reports by outcome", callbacks.clone());
        let tasks = Family::<LabelSet, Counter>::default();
        registry.register("tasks", "Tasks by kind and outcome", tasks.clone());
        let repository_changes = Family::<LabelSet, Counter>::default();
        let help = "Dispatches and reports refused because the name belongs to another repository";
        registry.register("repository_changes", help, repository_changes.clone());
        let seconds = || Histogram::new(exponential_buckets(0.001, 2.0, 20));
        let (dispatch_seconds, callback_seconds) = (seconds(), seconds());
        let help = "Seconds from acceptance to the dispatch at GitHub";
        registry.register("dispatch_seconds", help, dispatch_seconds.clone());
        let help = "Seconds from a report to its answer";
        registry.register("callback_seconds", help, callback_seconds.clone());
        let queue = Family::<LabelSet, Gauge>::default();
        registry.register("queue_tasks", "Tasks in the queue by state", queue.clone());
        let open_dispatches = Gauge::default();
        let help = "Dispatches that were sent to L2 or above and are not known to be over";
        registry.register("open_dispatches", help, open_dispatches.clone());
        let allowlist_repositories = Gauge::default();
        let help = "Repositories of the allowlist in force";
        registry.register("allowlist_repositories", help, allowlist_repositories.clone());
        let allowlist_good = Gauge::default();
        let help = "1 when the newest allowlist is in force, 0 when an older one had to stay";
        registry.register("allowlist_good", help, allowlist_good.clone());
        let (copied_facts, fact_copy_failures, outbox) = Default::default();
        let help = "Facts that were copied to the results";
        registry.register("results_facts", help, Counter::clone(&copied_facts));
        let help = "Batches of facts that the results did not take";
        registry.register("results_failures", help, Counter::clone(&fact_copy_failures));
        let help = "Facts that wait to be copied to the results";
        registry.register("results_waiting", help, Gauge::clone(&outbox));
        let redeliveries = Family::<LabelSet, Counter>::default();
        let help = "Webhooks that GitHub was asked to deliver again, by its answer";
        registry.register("redeliveries", help, redeliveries.clone());
        let reconciled_until = Gauge::default();
        let help = "Unix time before which every webhook is known to have arrived";
        registry.register("reconciled_until_seconds", help, reconciled_until.clone());
        Self {
            registry,
            webhooks,
            callbacks,
            tasks,
            repository_changes,
            dispatch_seconds,
            callback_seconds,
            queue,
            open_dispatches,
            allowlist_repositories,
            allowlist_good,
            copied_facts,
            fact_copy_failures,
            outbox,
            redeliveries,
            reconciled_until,
        }
    }

    pub fn webhook(&self, answer: &'static str) {
        self.webhooks.get_or_create(&vec![("answer", answer)]).inc();
    }

    pub fn callback(&self, outcome: &'static str, seconds: f64) {
        self.callbacks.get_or_create(&vec![("outcome", outcome)]).inc();
        self.callback_seconds.observe(seconds);
    }

    pub fn task(&self, kind: &'static str, outcome: &'static str) {
        self.tasks.get_or_create(&vec![("kind", kind), ("outcome", outcome)]).inc();
    }

    /// `refused` is `dispatch` or `report`.
    pub fn repository_changed(&self, refused: &'static str) {
        self.repository_changes.get_or_create(&vec![("refused", refused)]).inc();
    }

    pub fn dispatched(&self, seconds: f64) {
        self.dispatch_seconds.observe(seconds);
    }

    pub fn facts_copied(&self, count: usize) {
        self.copied_facts.inc_by(count as u64);
    }

    pub fn fact_copy_failed(&self) {
        self.fact_copy_failures.inc();
    }

    pub fn reconciled(&self, found: &Reconciliation) {
        for (answer, count) in [("accepted", found.asked.len()), ("refused", found.refused.len())] {
            self.redeliveries.get_or_create(&vec![("answer", answer)]).inc_by(count as u64);
        }
        if let Some(until) = found.settled_until {
            self.reconciled_until.set(until.as_second());
        }
    }

    pub fn text(&self, depth: QueueDepth, open: u64, allowlist: &AllowlistStatus) -> String {
        let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        for (state, count) in
            [("ready", depth.ready), ("leased", depth.leased), ("dead", depth.dead)]
        {
            self.queue.get_or_create(&vec![("state", state)]).set(gauge(count));
        }
        self.open_dispatches.set(gauge(open));
        self.outbox.set(gauge(depth.facts));
        self.allowlist_repositories.set(gauge(allowlist.repositories as u64));
        self.allowlist_good.set(i64::from(allowlist.loaded && allowlist.problem.is_none()));
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("a String takes all text");
        text
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}
