//! The relay, on a free port, with its state in a file of the demo's folder.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crcr_relay::http::serve::Bound;
use crcr_relay::relay::Relay;
use crcr_results::generate;
use crcr_results::sqlite::SqliteResults;
use crcr_standin::State;
use crcr_store::{SqliteStore, StateStore as _, StoreRole, WriteBatch};
use jiff::Timestamp;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use url::Url;

use super::failed;
use super::input::{ALLOWLIST_PATH, Input};
use crate::failure::Failure;

/// Upstream events on each day of an invented history.
const EVENTS_A_DAY: u32 = 12;
/// Facts that are written at a time.
const FACTS: usize = 5000;

/// A relay that is serving.
pub struct Running {
    url: Url,
    stop: CancellationToken,
    serving: JoinHandle<()>,
}

impl Running {
    /// Starts it with `history` days of invented results.
    pub async fn start(
        input: &Input,
        history: Option<u32>,
        state: &State,
        folder: &Path,
    ) -> Result<Self, Failure> {
        let app = state.world.app();
        let (origin, upstream) = (state.origin(), &input.upstream);
        let settings = BTreeMap::from([
            ("GITHUB_APP_ID", app.id.clone()),
            ("GITHUB_APP_SECRET", app.webhook_secret.clone()),
            ("GITHUB_APP_PRIVATE_KEY", app.private_key.clone()),
            ("GITHUB_API_URL", origin.to_owned()),
            ("ALLOWLIST_URL", format!("https://github.com/{upstream}/blob/main/{ALLOWLIST_PATH}")),
            ("UPSTREAM_REPO", upstream.to_string()),
            ("CRCR_OIDC_ISSUERS", format!("{origin}={origin}/.well-known/jwks")),
        ]);
        let lookup = |name: &str| settings.get(name).cloned();
        let config = crcr_relay::Config::read(&lookup, BTreeMap::new()).map_err(|problems| {
            let told: Vec<_> = problems.iter().map(|p| format!("{}: {}", p.name, p.what)).collect();
            failed(format!("the relay takes other settings: {}", told.join("; ")))
        })?;
        let store = SqliteStore::open(&folder.join("crcr.db"), StoreRole::Server)
            .map_err(|error| failed("the relay has no store").because(error))?;
        if let Some(days) = history {
            invent(&store, days, upstream.as_str()).await?;
        }
        let store = Arc::new(store);
        let results = Arc::new(SqliteResults::new(Arc::clone(&store)));
        let relay = Relay::new(config, store, results, Arc::new(Timestamp::now))
            .map_err(|error| failed("the relay can't start").because(error))?;
        let relay = Arc::new(relay);
        relay.allowlist.refresh(&relay.app, relay.now()).await;
        if relay.allowlist.get().is_none() {
            return Err(failed("the relay didn't get the allowlist from the stand-in"));
        }
        let bound = Bound::new("127.0.0.1:0", None)
            .await
            .map_err(|error| failed("the relay can't listen").because(error))?;
        let address =
            bound.address().map_err(|error| failed("the relay has no address").because(error))?;
        let url = Url::parse(&format!("http://{address}/"))
            .map_err(|error| failed("the relay has no address").because(error))?;
        let stop = CancellationToken::new();
        let serving = tokio::spawn(bound.serve(relay, stop.clone()));
        Ok(Self { url, stop, serving })
    }

    /// Its address, with a slash at the end.
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// A place below its address.
    pub fn at(&self, path: &str) -> Result<Url, Failure> {
        self.url.join(path).map_err(|error| failed("no such address").because(error))
    }

    /// Stops it, and waits until what it was at is done.
    pub async fn close(self) -> Result<(), Failure> {
        self.stop.cancel();
        self.serving.await.map_err(|error| failed("the relay didn't end well").because(error))
    }
}

/// Fills the store with invented results of the last `days` days.
async fn invent(store: &SqliteStore, days: u32, upstream: &str) -> Result<(), Failure> {
    let now = Timestamp::now();
    let mut facts = generate::facts(1, now, days, EVENTS_A_DAY, upstream).into_iter();
    loop {
        let part: Vec<_> = facts.by_ref().take(FACTS).collect();
        if part.is_empty() {
            return Ok(());
        }
        store
            .commit(WriteBatch { facts: part, ..WriteBatch::default() }, now)
            .await
            .map_err(|error| failed("the generated results can't be stored").because(error))?;
    }
}
