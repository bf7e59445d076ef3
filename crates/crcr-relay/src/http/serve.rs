//! The relay as a server: listeners, workers, timers, and a graceful stop.

use std::net::SocketAddr;
use std::sync::Arc;

use crcr_hud::Hud;
use crcr_results::retention;
use crcr_store::StoreError;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::http::connections::{self, Bounds};
use crate::http::router;
use crate::limits;
use crate::queue::fact_feed;
use crate::queue::open_dispatches;
use crate::queue::workers;
use crate::relay::Relay;

/// Listeners that are bound and not served yet.
pub struct Bound {
    public: TcpListener,
    admin: Option<TcpListener>,
}

/// An address that can't be listened on.
#[derive(Debug, thiserror::Error)]
#[error("can't listen on `{address}`")]
pub struct BindError {
    address: String,
    #[source]
    source: std::io::Error,
}

impl Bound {
    /// Binds what the settings name; port 0 takes a free one.
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

    /// Serves until `stop`: then no new request and no new work is taken, and what is under way is
    /// finished or given back.
    pub async fn serve(self, relay: Arc<Relay>, stop: CancellationToken) {
        relay.allowlist.restore().await;
        // GitHub sends a delivery once: those that come now wait for the allowlist.
        let first = relay.allowlist.refresh(&relay.app, relay.now());
        if tokio::time::timeout(limits::FIRST_ALLOWLIST, first).await.is_err() {
            tracing::warn!("the allowlist takes its time; until it is read webhooks get 503");
        }
        let mut parts = JoinSet::new();
        parts.spawn(workers::run(
            Arc::clone(&relay),
            stop.clone(),
            workers::WorkerTimeouts::default(),
        ));
        parts.spawn(fact_feed::run(Arc::clone(&relay), stop.clone()));
        let timers = {
            let (relay, stop) = (Arc::clone(&relay), stop.clone());
            async move {
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = relay.allowlist.keep_fresh(&relay.app, &relay.clock) => {}
                    () = relay.verifier.keep_fresh(|| relay.now()) => {}
                    () = providers(&relay) => {}
                    () = prune(&relay) => {}
                    () = secrets(&relay) => {}
                    () = retain(&relay) => {}
                }
            }
        };
        parts.spawn(timers);
        let bounds = Bounds::default();
        let hud = Arc::new(hud_of(&relay));
        let loopback = self.admin_address().is_some_and(|address| address.ip().is_loopback());
        if let Some(admin) = self.admin {
            let router = router::admin(&relay, &hud, loopback);
            let bounds = Bounds { most: limits::ADMIN_CONNECTIONS, ..bounds };
            parts.spawn(connections::serve(admin, router, bounds, stop.clone()));
        }
        connections::serve(self.public, router::public(&relay, &hud), bounds, stop).await;
        while parts.join_next().await.is_some() {}
    }
}

async fn bind(address: &str) -> Result<TcpListener, BindError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| BindError { address: address.to_owned(), source })
}

async fn prune(relay: &Relay) {
    loop {
        tokio::time::sleep(limits::PRUNE).await;
        match prune_all(relay).await {
            Ok(0) => {}
            Ok(count) => tracing::debug!(count, "expired records are forgotten"),
            Err(error) => tracing::warn!(%error, "expired records can't be forgotten"),
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

/// Forgets everything that has expired, in portions; returns how many rows.
pub(crate) async fn prune_all(relay: &Relay) -> Result<u64, StoreError> {
    let mut all = 0;
    loop {
        match relay.store.delete_expired(relay.now()).await? {
            0 => return Ok(all),
            count => all += count,
        }
        tokio::time::sleep(limits::PRUNE_PAUSE).await;
    }
}

async fn retain(relay: &Relay) {
    loop {
        tokio::time::sleep(limits::RETAIN).await;
        let before = relay.now() - relay.config.results_retention;
        match retention::roll_up(&*relay.results, before).await {
            Ok(0) => {}
            Ok(days) => tracing::info!(days, %before, "old results are kept as sums of days"),
            Err(error) => tracing::warn!(%error, "old results can't be rolled up"),
        }
    }
}

async fn providers(relay: &Relay) {
    loop {
        let good = relay.refresh_providers().await;
        tokio::time::sleep(if good { limits::PROVIDERS } else { limits::PROVIDERS_AGAIN }).await;
    }
}

async fn secrets(relay: &Arc<Relay>) {
    loop {
        tokio::time::sleep(limits::SECRETS).await;
        let relay = Arc::clone(relay);
        if let Err(error) = tokio::task::spawn_blocking(move || relay.reload_secrets()).await {
            tracing::error!(%error, "the files of secrets can't be looked at");
        }
    }
}

/// The HUD of a relay: its facts, its allowlist, its clock.
pub fn hud_of(relay: &Arc<Relay>) -> Hud {
    let (policy, clock) = (Arc::clone(relay), Arc::clone(relay));
    let mut hud = Hud::new(
        Arc::clone(&relay.results),
        Box::new(move || policy.allowlist.get()),
        Box::new(move || clock.now()),
        relay.config.upstream.clone(),
    );
    hud.criteria = relay.config.criteria.clone();
    hud
}
