//! Runs the relay, with its state in the demo's folder.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::sync::Arc;

use crcr_aws::object_store::ObjectStore;
use crcr_cidata::logs::{LogPacker, log_key};
use crcr_domain::RepoName;
use crcr_relay::http::serve::BoundListeners;
use crcr_relay::relay::Relay;
use crcr_results::Results;
use crcr_results::sqlite::SqliteResults;
use crcr_standin::State;
use crcr_standin::generate;
use crcr_store::{SqliteStore, StoreRole};
use jiff::Timestamp;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use url::Url;

use super::demo_failure;
use super::scenario::{ALLOWLIST_PATH, DemoScenario};
use crate::cli::demo::DemoArgs;
use crate::failure::Failure;

const GENERATED_EVENTS_PER_DAY: u32 = 12;
const FACTS_PER_COMMIT: usize = 5000;

pub struct DemoRelay {
    url: Url,
    stop: CancellationToken,
    serving: JoinHandle<()>,
}

impl DemoRelay {
    /// Starts the relay, with generated results if they are asked for.
    pub async fn start(
        scenario: &DemoScenario,
        args: &DemoArgs,
        state: &State,
        folder: &Path,
    ) -> Result<Self, Failure> {
        let app = state.world.app();
        let (origin, upstream) = (state.origin(), &scenario.upstream);
        let archive = format!("file:{}", folder.join("archive").display());
        let settings = BTreeMap::from([
            ("CRCR_ARCHIVE", archive.clone()),
            ("GITHUB_APP_ID", app.id.clone()),
            ("GITHUB_APP_SECRET", app.webhook_secret.clone()),
            ("GITHUB_APP_PRIVATE_KEY", app.private_key.clone()),
            ("GITHUB_API_URL", origin.to_owned()),
            ("ALLOWLIST_URL", format!("https://github.com/{upstream}/blob/main/{ALLOWLIST_PATH}")),
            ("UPSTREAM_REPO", upstream.to_string()),
            ("CRCR_OIDC_ISSUERS", format!("{origin}={origin}/.well-known/jwks")),
            // The stand-in creates runs at once.
            ("CRCR_RUN_WINDOW", "1s".to_owned()),
        ]);
        let lookup = |name: &str| settings.get(name).cloned();
        let config = crcr_relay::Config::read(&lookup, BTreeMap::new()).map_err(|problems| {
            let list: Vec<_> = problems.iter().map(|p| format!("{}: {}", p.name, p.what)).collect();
            demo_failure(format!("the relay refused its settings: {}", list.join("; ")))
        })?;
        let store = SqliteStore::open(&folder.join("crcr.db"), StoreRole::Server)
            .map_err(|error| demo_failure("the relay's store can't be opened").because(error))?;
        let store = Arc::new(store);
        let results = Arc::new(SqliteResults::new(Arc::clone(&store)));
        if let Some(days) = args.history {
            store_generated_history(&*results, days, upstream.as_str(), &archive).await?;
            for (path, text) in generate::FILES_OF_UPSTREAM {
                state.world.put_file(upstream.as_str(), path, text(Timestamp::now()));
            }
        }
        let relay = Relay::new(config, store, results, Arc::new(Timestamp::now))
            .map_err(|error| demo_failure("the relay can't start").because(error))?;
        let relay = Arc::new(relay);
        relay.allowlist.refresh(&relay.app, relay.now()).await;
        if relay.allowlist.get().is_none() {
            return Err(demo_failure("the relay couldn't read the allowlist from the stand-in"));
        }
        let bound = BoundListeners::new(&args.listen, None).await.map_err(|error| {
            Failure::user("listen", format!("the demo {error}")).because(error).hint(
                "`--listen` takes an address of this machine and a port, such as 0.0.0.0:8080",
            )
        })?;
        let mut address = bound
            .address()
            .map_err(|error| demo_failure("the relay has no address").because(error))?;
        // The jobs of the demo report from this machine.
        if address.ip().is_unspecified() {
            address.set_ip(if address.is_ipv4() {
                Ipv4Addr::LOCALHOST.into()
            } else {
                Ipv6Addr::LOCALHOST.into()
            });
        }
        let url = Url::parse(&format!("http://{address}/"))
            .map_err(|error| demo_failure("the relay has no address").because(error))?;
        let stop = CancellationToken::new();
        let serving = tokio::spawn(bound.serve(relay, stop.clone()));
        Ok(Self { url, stop, serving })
    }

    /// Ends with a slash.
    pub fn url(&self) -> &Url {
        &self.url
    }

    pub fn join(&self, path: &str) -> Result<Url, Failure> {
        self.url.join(path).map_err(|error| demo_failure("not a valid address").because(error))
    }

    /// Stops the relay and waits for running work.
    pub async fn stop(self) -> Result<(), Failure> {
        self.stop.cancel();
        self.serving
            .await
            .map_err(|error| demo_failure("the relay crashed while it stopped").because(error))
    }
}

async fn store_generated_history(
    results: &dyn Results,
    days: u32,
    upstream: &str,
    archive: &str,
) -> Result<(), Failure> {
    let failed = |error| demo_failure("the generated results can't be stored").because(error);
    let now = Timestamp::now();
    let facts = generate::facts(1, now, days, GENERATED_EVENTS_PER_DAY, upstream);
    let mut ci = generate::UpstreamCi::new(&facts, now)
        .map_err(|error| demo_failure("the generated webhooks are invalid").because(error))?;
    store_logs(&mut ci, archive).await?;
    ci.store(results).await.map_err(failed)?;
    let mut facts = facts.into_iter();
    loop {
        let part: Vec<_> = facts.by_ref().take(FACTS_PER_COMMIT).collect();
        if part.is_empty() {
            return Ok(());
        }
        results.append(part).await.map_err(failed)?;
    }
}

async fn store_logs(ci: &mut generate::UpstreamCi, archive: &str) -> Result<(), Failure> {
    let archive = ObjectStore::open(archive)
        .await
        .map_err(|error| demo_failure("the archive can't be opened").because(error))?;
    let key = |repository: &str, job: u64| {
        RepoName::new(repository).map(|repository| log_key(&repository, job)).unwrap_or_default()
    };
    for (key, text) in ci.keep_logs(key) {
        let packed = LogPacker::packed(text.as_bytes())
            .map_err(|error| demo_failure("a generated log can't be packed").because(error))?;
        archive
            .put(&key, packed)
            .await
            .map_err(|error| demo_failure("a generated log can't be stored").because(error))?;
    }
    Ok(())
}
