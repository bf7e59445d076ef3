//! Runs the relay: listeners, workers, timers, and a graceful shutdown.

use std::net::SocketAddr;
use std::sync::Arc;

use crcr_cidata::logs::StoredLogs;
use crcr_domain::probes::ProbesOverview;
use crcr_hud::{Hud, WatchedFeed};
use crcr_results::retention;
use crcr_store::{StoreError, WriteBatch};
use jiff::Timestamp;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::callback::kept_trust;
use crate::http::connections::{self, ConnectionLimits};
use crate::http::restarting::restarting;
use crate::http::router;
use crate::prune_clock;
use crate::queue::fact_feed;
use crate::queue::open_dispatches;
use crate::queue::task_kind::TaskKind;
use crate::queue::workers;
use crate::relay::Relay;
use crate::warnings::{self, LastWarnings};
use crate::{deciding_settings, demotions, limits, repository_files, repository_pins, uptime};

/// Listeners that are bound but not served yet.
pub struct BoundListeners {
    public: TcpListener,
    admin: Option<TcpListener>,
}

#[derive(Debug, thiserror::Error)]
#[error("can't listen on `{address}`")]
pub struct BindError {
    address: String,
    #[source]
    source: std::io::Error,
}

impl BoundListeners {
    /// Binds the addresses; port 0 takes a free port.
    pub async fn new(listen: &str, admin_listen: Option<&str>) -> Result<Self, BindError> {
        let public = bind(listen).await?;
        let admin = match admin_listen {
            Some(address) => Some(bind(address).await?),
            None => None,
        };
        Ok(Self { public, admin })
    }

    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.public.local_addr()
    }

    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin.as_ref().and_then(|admin| admin.local_addr().ok())
    }

    /// Serves until `stop`. Then no new requests are accepted and no new tasks are leased; open ones are
    /// finished, or released if they take too long.
    pub async fn serve(self, relay: Arc<Relay>, stop: CancellationToken) {
        prepare(&relay).await;
        let mut parts = JoinSet::new();
        let (of_queue, of_facts) = (Arc::clone(&relay), Arc::clone(&relay));
        let (end_of_queue, end_of_facts) = (stop.clone(), stop.clone());
        parts.spawn(restarting("queue", move || {
            let timeouts = workers::WorkerTimeouts::default();
            workers::run(Arc::clone(&of_queue), end_of_queue.clone(), timeouts)
        }));
        parts.spawn(restarting("facts", move || {
            fact_feed::run(Arc::clone(&of_facts), end_of_facts.clone())
        }));
        parts.spawn(run_timers(Arc::clone(&relay), stop.clone()));
        let connection_limits = ConnectionLimits::default();
        let hud = Arc::new(hud_of(&relay));
        tokio::spawn(crcr_hud::warm(Arc::clone(&hud)));
        let loopback = self.admin_address().is_some_and(|address| address.ip().is_loopback());
        if let Some(admin) = self.admin {
            let router = router::admin(&relay, &hud, loopback);
            let max_open = connection_limits.max_open.min(limits::ADMIN_CONNECTIONS);
            let admin_limits = ConnectionLimits { max_open, ..connection_limits };
            parts.spawn(connections::serve(admin, router, admin_limits, stop.clone()));
        }
        connections::serve(self.public, router::public(&relay, &hud), connection_limits, stop)
            .await;
        while parts.join_next().await.is_some() {}
    }
}

async fn run_timers(relay: Arc<Relay>, stop: CancellationToken) {
    let relay = &relay;
    let allowlist = move || relay.allowlist.keep_fresh(&relay.app, &relay.clock);
    let demotions = move || demotions::keep_fresh(relay, demotions::MIN_PAUSE);
    let keys = move || kept_trust::keep_fresh(relay);
    let files = move || repository_files::refresh_periodically(relay);
    tokio::select! {
        () = stop.cancelled() => {}
        () = restarting("allowlist", allowlist) => {}
        () = restarting("demotions", demotions) => {}
        () = restarting("keys of issuers", keys) => {}
        () = restarting("pipelines", move || read_providers_periodically(relay)) => {}
        () = restarting("expiry", move || delete_expired_periodically(relay)) => {}
        () = restarting("secrets and rules", move || reload_files_periodically(relay)) => {}
        () = restarting("files of repositories", files) => {}
        () = restarting("retention", move || roll_up_periodically(relay)) => {}
        () = restarting("reconciliation", move || reconcile_periodically(relay)) => {}
        () = restarting("feeds", move || look_at_feeds_periodically(relay)) => {}
        () = restarting("heartbeat", move || uptime::beat_periodically(relay)) => {}
    }
}

/// Loads what the first request needs.
pub async fn prepare(relay: &Relay) {
    restore(relay).await;
    // GitHub sends a delivery once, so the first ones wait for the allowlist. A check run can't be taken back, so the
    // first ones wait for the open demotions.
    let allowlist = relay.allowlist.refresh(&relay.app, relay.now());
    let (allowlist, demotions) = tokio::join!(
        tokio::time::timeout(limits::FIRST_ALLOWLIST, allowlist),
        tokio::time::timeout(limits::FIRST_ALLOWLIST, demotions::refresh(relay)),
    );
    if allowlist.is_err() {
        tracing::warn!("the allowlist isn't read yet; until it is, webhooks get a 503");
    }
    if demotions.is_err() {
        tracing::warn!("open demotions aren't read yet; those from before the restart hold");
    }
}

/// Puts in force what the store has from before the restart.
pub(crate) async fn restore(relay: &Relay) {
    relay.allowlist.restore().await;
    demotions::restore(relay).await;
    kept_trust::restore(relay).await;
    if let Err(error) = repository_pins::take_over(relay).await {
        tracing::warn!(%error, "the backends' numbers of upstream's former name can't be taken over");
    }
    deciding_settings::compare(relay).await;
}

async fn bind(address: &str) -> Result<TcpListener, BindError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| BindError { address: address.to_owned(), source })
}

async fn delete_expired_periodically(relay: &Relay) {
    // The clock may have been set back while the relay was down.
    if let Err(error) = prune_clock::advance(relay).await {
        tracing::warn!(%error, "the store's times can't be compared with the clock yet");
    }
    loop {
        tokio::time::sleep(limits::PRUNE_INTERVAL).await;
        match delete_all_expired(relay).await {
            Ok(0) => {}
            Ok(count) => tracing::debug!(count, "expired records were deleted"),
            Err(error) => tracing::warn!(%error, "expired records can't be deleted"),
        }
        if let Some(most) = relay.config.warn_open {
            match open_dispatches(&*relay.store).await {
                Ok(open) if open > u64::from(most) => {
                    tracing::warn!(open, most, "more dispatches are open than the threshold");
                }
                Ok(_) => {}
                Err(error) => tracing::warn!(%error, "open dispatches can't be counted"),
            }
        }
    }
}

/// Deletes everything that has expired, in small transactions; returns how many rows.
pub(crate) async fn delete_all_expired(relay: &Relay) -> Result<u64, StoreError> {
    let until = prune_clock::advance(relay).await?;
    let mut all = 0;
    loop {
        match relay.store.delete_expired(until).await? {
            0 => return Ok(all),
            count => all += count,
        }
        tokio::time::sleep(limits::PRUNE_PAUSE).await;
    }
}

async fn roll_up_periodically(relay: &Relay) {
    loop {
        tokio::time::sleep(limits::RETENTION_INTERVAL).await;
        roll_up(relay).await;
    }
}

/// Replaces old results with daily aggregates.
pub(crate) async fn roll_up(relay: &Relay) {
    let until = match prune_clock::advance(relay).await {
        Ok(until) => until,
        Err(error) => return tracing::warn!(%error, "old results can't be rolled up"),
    };
    let before = until - relay.config.results_retention;
    match retention::roll_up(&*relay.results, before).await {
        Ok(0) => {}
        Ok(days) => {
            tracing::info!(days, %before, "old results were rolled up into daily aggregates");
        }
        Err(error) => tracing::warn!(%error, "old results can't be rolled up"),
    }
}

/// Has the delivery log read now, and after every outage. The task itself runs again every ten minutes;
/// this puts it back into the queue if it ever gets lost.
pub async fn reconcile_periodically(relay: &Relay) {
    let mut due_at = relay.now();
    loop {
        if !schedule_reconciliation(relay, due_at).await {
            tokio::time::sleep(limits::QUEUE_POLL).await;
            continue;
        }
        let over =
            tokio::time::timeout(limits::RECONCILE_INTERVAL, relay.outage_over.notified()).await;
        // Attempts that failed just now are old enough by then.
        let pause =
            if over.is_ok() { limits::RECONCILE_MARGIN } else { limits::RECONCILE_INTERVAL };
        due_at = relay.now() + pause;
    }
}

/// Returns whether the task is in the queue.
pub(crate) async fn schedule_reconciliation(relay: &Relay, due_at: Timestamp) -> bool {
    let tasks = vec![TaskKind::Reconcile.task(due_at)];
    match relay.commit(WriteBatch { tasks, ..WriteBatch::default() }).await {
        Ok(_) => true,
        Err(error) => {
            tracing::warn!(%error, "the delivery log can't be read yet");
            false
        }
    }
}

/// Starts the task that watches each feed with alerts. The tasks repeat themselves; this starts them again after they were
/// given up.
async fn look_at_feeds_periodically(relay: &Relay) {
    loop {
        look_at_feeds(relay).await;
        tokio::time::sleep(limits::RECONCILE_INTERVAL).await;
    }
}

pub(crate) async fn look_at_feeds(relay: &Relay) {
    let look = |feed: &WatchedFeed| {
        TaskKind::AlertFeed { address: feed.address().to_owned() }.task(relay.now())
    };
    let tasks: Vec<_> = relay.config.alert_feeds.iter().map(look).collect();
    if tasks.is_empty() {
        return;
    }
    if let Err(error) = relay.commit(WriteBatch { tasks, ..WriteBatch::default() }).await {
        tracing::warn!(%error, "the feeds that alerts are sent of can't be looked at yet");
    }
}

async fn read_providers_periodically(relay: &Relay) {
    loop {
        let good = kept_trust::refresh_providers(relay).await;
        tokio::time::sleep(if good {
            limits::PROVIDER_MAP_INTERVAL
        } else {
            limits::PROVIDER_MAP_RETRY
        })
        .await;
    }
}

async fn reload_files_periodically(relay: &Arc<Relay>) {
    loop {
        tokio::time::sleep(limits::SECRET_FILES_INTERVAL).await;
        let (relay, again) = (Arc::clone(relay), relay);
        let reload = move || {
            relay.reload_secrets();
            relay.reload_log_rules();
        };
        if let Err(error) = tokio::task::spawn_blocking(reload).await {
            tracing::error!(%error, "the files of secrets and rules can't be read");
        }
        again.reload_stored_secrets().await;
    }
}

pub fn hud_of(relay: &Arc<Relay>) -> Hud {
    let (policy, clock) = (Arc::clone(relay), Arc::clone(relay));
    let mut hud = Hud::new(
        Arc::clone(&relay.results),
        Box::new(move || policy.allowlist.get()),
        Box::new(move || clock.now()),
        relay.config.upstream.clone(),
    );
    let probes = Arc::clone(relay);
    hud.probes = Box::new(move || {
        let relay = Arc::clone(&probes);
        Box::pin(async move {
            crate::probes::overview(&relay).await.unwrap_or_else(|error| {
                tracing::warn!(%error, "backends' files and culprits can't be read");
                ProbesOverview::default()
            })
        })
    });
    let (warned, last) = (Arc::clone(relay), Arc::new(LastWarnings::default()));
    hud.warnings = Box::new(move || {
        let (relay, last) = (Arc::clone(&warned), Arc::clone(&last));
        Box::pin(async move { warnings::read(&relay, &last).await })
    });
    hud.criteria = relay.config.criteria.clone();
    hud.github_url.clone_from(&relay.config.server_url);
    hud.public_url = relay.config.public_url.as_ref().map(ToString::to_string);
    hud.has_login = relay.config.admin_token.is_some();
    let files = Arc::clone(relay);
    hud.files = Box::new(move |repository| files.files.get(repository));
    hud.logs = StoredLogs::new(relay.config.archive.clone());
    hud
}
