//! The relay as a server: listeners, workers, timers, and a graceful stop.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::relay::Relay;
use crate::{limits, queue, router};

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

    /// The public address.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.public.local_addr()
    }

    /// The operators' address.
    #[must_use]
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin.as_ref().and_then(|admin| admin.local_addr().ok())
    }

    /// Serves until `stop`: then no new request and no new work is taken, and what is under way is
    /// finished or given back.
    pub async fn serve(self, relay: Arc<Relay>, stop: CancellationToken) -> std::io::Result<()> {
        // GitHub sends a delivery once: those that come now wait for the allowlist.
        let first = relay.allowlist.refresh(&relay.app, relay.now());
        if tokio::time::timeout(limits::FIRST_ALLOWLIST, first).await.is_err() {
            tracing::warn!("the allowlist takes its time; until it is read webhooks get 503");
        }
        let mut parts = JoinSet::new();
        parts.spawn(queue::work(Arc::clone(&relay), stop.clone()));
        let timers = {
            let (relay, stop) = (Arc::clone(&relay), stop.clone());
            async move {
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = relay.allowlist.keep_fresh(&relay.app, &relay.clock) => {}
                    () = relay.verifier.keep_fresh(|| relay.now()) => {}
                    () = providers(&relay) => {}
                    () = prune(&relay) => {}
                }
            }
        };
        parts.spawn(timers);
        if let Some(admin) = self.admin {
            let serve = answer(admin, router::admin(&relay), stop.clone());
            parts.spawn(async move {
                if let Err(error) = serve.await {
                    tracing::error!(%error, "the operators' listener has stopped");
                }
            });
        }
        let served = answer(self.public, router::public(&relay), stop.clone()).await;
        stop.cancel();
        while parts.join_next().await.is_some() {}
        served
    }
}

/// Answers until `stop`; a request that hasn't come whole [`limits::GRACE`] later is dropped.
async fn answer(
    listener: TcpListener,
    router: Router,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let served =
        axum::serve(listener, router).with_graceful_shutdown(stop.clone().cancelled_owned());
    let late = async {
        stop.cancelled().await;
        tokio::time::sleep(limits::GRACE).await;
    };
    tokio::select! {
        served = served.into_future() => served,
        () = late => Ok(()),
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
        match relay.store.prune(relay.now()).await {
            Ok(0) => {}
            Ok(count) => tracing::debug!(count, "expired records are forgotten"),
            Err(error) => tracing::warn!(%error, "expired records can't be forgotten"),
        }
    }
}

async fn providers(relay: &Relay) {
    loop {
        relay.refresh_providers().await;
        tokio::time::sleep(limits::PROVIDERS).await;
    }
}
