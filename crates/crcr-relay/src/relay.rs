//! One relay: its settings, its store, its GitHub, its clock.

use std::sync::Arc;

use crcr_domain::dispatch::Dispatch;
use crcr_domain::facts::{DispatchFact, DispatchFactStatus, Fact};
use crcr_github::app::{App, Clock};
use crcr_results::sqlite::SqliteResults;
use crcr_results::{Results, ResultsError, ResultsUrl};
use crcr_store::{Batch, Commit, Pending, Role, Sqlite, Store, StoreError};
use jiff::Timestamp;
use secrecy::SecretString;
use tokio::sync::Notify;

use crate::admin::preflight;
use crate::admin::wrong_tokens::Guesses;
use crate::allowlist::Source;
use crate::callback::auth::{Issuer, ProviderMap, Verifier};
use crate::callback::token::CallbackKeys;
use crate::compat::forward;
use crate::config::secrets::{Reloaded, Secret};
use crate::config::{Config, StoreUrl};
use crate::http::metrics::Metrics;
use crate::queue::fact_feed::Feed;
use crate::queue::task::Work;
use crate::webhook::turns::Turns;
use crate::{limits, state_records};

/// Everything that requests and tasks share.
pub struct Relay {
    pub config: Config,
    pub store: Arc<dyn Store>,
    /// What happened, for rates and pages.
    pub results: Arc<dyn Results>,
    pub app: App,
    pub allowlist: Source,
    pub verifier: Verifier,
    /// What signs and verifies callback tokens.
    pub keys: CallbackKeys,
    pub clock: Clock,
    pub metrics: Metrics,
    /// For everything that isn't GitHub.
    pub http: reqwest::Client,
    pub work: Notify,
    /// Wakes what copies facts to the results.
    pub facts: Notify,
    pub feed: Feed,
    /// Lets deliveries of one pull request take turns.
    pub(crate) turns: Turns,
    /// Admin tokens that were wrong, as a bearer.
    pub(crate) wrong_bearers: Guesses,
    /// Admin tokens that were wrong, at the login.
    pub(crate) wrong_logins: Guesses,
    /// When the store last took what was written to try it.
    written_at: tokio::sync::Mutex<Option<Timestamp>>,
}

/// A batch that isn't known to be on disk yet.
pub(crate) struct Submitted {
    pending: Pending,
    tasks: bool,
    facts: bool,
}

/// Why a relay can't start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Key(#[from] crcr_github::app::KeyError),
    /// The TLS set-up of the machine.
    #[error("the HTTP client can't be set up")]
    Http(#[source] crcr_github::http::Error),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Results(#[from] ResultsError),
}

/// Opens the store and the results that `config` names, for the one server.
pub async fn open(config: &Config) -> Result<(Arc<dyn Store>, Arc<dyn Results>), StartError> {
    let StoreUrl::Sqlite(path) = &config.store;
    match &config.results {
        Some(url) if !matches!(url, ResultsUrl::Sqlite(other) if other == path) => {
            let results = crcr_results::open(url, Role::Server).await?;
            Ok((Arc::new(Sqlite::open_with_outbox(path)?), results))
        }
        _ => {
            let store = Arc::new(Sqlite::open(path, Role::Server)?);
            Ok((Arc::clone(&store) as _, Arc::new(SqliteResults::new(store))))
        }
    }
}

impl Relay {
    /// A relay of these parts.
    pub fn new(
        config: Config,
        store: Arc<dyn Store>,
        results: Arc<dyn Results>,
        clock: Clock,
    ) -> Result<Self, StartError> {
        let http = crcr_github::http::client().map_err(StartError::Http)?;
        let app = App::new(
            http.clone(),
            config.api_url.clone(),
            config.app_id.clone(),
            &config.private_key.first(),
            Arc::clone(&clock),
        )?;
        let verifier =
            Verifier::new(&http, Issuer::of(&config.issuers, &config.api_url), &config.audience);
        if config.providers_url.is_none() {
            verifier.set_providers(ProviderMap::default());
        }
        Ok(Self {
            verifier,
            allowlist: Source::new(
                config.allowlist.clone(),
                config.upstream.clone(),
                config.allowlist_ttl,
            )
            .kept_in(Arc::clone(&store)),
            keys: CallbackKeys::new(&config.callback_keys()),
            metrics: Metrics::new(),
            work: Notify::new(),
            facts: Notify::new(),
            feed: Feed::default(),
            turns: Turns::new(),
            wrong_bearers: Guesses::default(),
            wrong_logins: Guesses::default(),
            written_at: tokio::sync::Mutex::default(),
            store,
            results,
            app,
            clock,
            http,
            config,
        })
    }

    pub fn now(&self) -> Timestamp {
        (self.clock)()
    }

    /// Commits a batch and wakes the queue when it holds tasks.
    pub async fn commit(&self, batch: Batch) -> Result<Commit, StoreError> {
        let submitted = self.submit(batch).await?;
        self.durable(submitted).await
    }

    /// Gives a batch its place in the order of batches.
    pub(crate) async fn submit(&self, batch: Batch) -> Result<Submitted, StoreError> {
        let tasks = !batch.tasks.is_empty();
        let facts = !batch.facts.is_empty() && !self.store.keeps_facts();
        Ok(Submitted { pending: self.store.submit(batch, self.now()).await?, tasks, facts })
    }

    /// Waits for a batch to be on disk, and wakes whoever has work with it.
    pub(crate) async fn durable(&self, submitted: Submitted) -> Result<Commit, StoreError> {
        let commit = submitted.pending.durable().await?;
        if submitted.facts && commit == Commit::Done {
            self.facts.notify_one();
        }
        if submitted.tasks && commit == Commit::Done {
            self.work.notify_one();
        }
        Ok(commit)
    }

    /// Reads the mapping of other CI systems' pipelines, where one is named; a broken one leaves the
    /// last good one in force. `false` when it can't be used.
    pub async fn refresh_providers(&self) -> bool {
        let Some(url) = &self.config.providers_url else { return true };
        match preflight::providers(url, &self.app).await {
            Ok(providers) => self.verifier.set_providers(providers),
            Err(problem) => {
                tracing::error!(%problem, "the provider map can't be used");
                return false;
            }
        }
        true
    }

    /// Whether the store takes what is written: a full disk reads well. Tried once in
    /// [`limits::PROBE`] at the most while it works, so that questions cost the disk nothing.
    pub(crate) async fn can_write(&self) -> Result<(), StoreError> {
        let mut written_at = self.written_at.lock().await;
        let now = self.now();
        if written_at.is_some_and(|at| at <= now && now < at + limits::PROBE) {
            return Ok(());
        }
        *written_at = None;
        let mut batch = Batch::default();
        batch.set(state_records::probe(), &now, self.expiry());
        match tokio::time::timeout(limits::PROBE, self.store.commit(batch, now)).await {
            Ok(commit) => commit?,
            Err(_) => {
                let what = format!("it has written nothing for {} s", limits::PROBE.as_secs());
                return Err(StoreError::Unavailable(what));
            }
        };
        *written_at = Some(now);
        Ok(())
    }

    /// Reads the files of secrets again that have changed. A broken one leaves the old values in
    /// force. Reads files, so it may block.
    pub fn reload_secrets(&self) {
        let told = |secret: &Secret, reloaded: Reloaded| match reloaded {
            Reloaded::Unchanged => false,
            Reloaded::New => {
                tracing::info!(setting = secret.name(), "the secret's file was read again");
                true
            }
            Reloaded::Broken(problem) => {
                let setting = secret.name();
                tracing::error!(
                    setting,
                    problem,
                    "the secret's new file can't be used; the old value stays"
                );
                false
            }
        };
        let config = &self.config;
        let key = &config.private_key;
        let new_key = |values: &[SecretString]| {
            self.app.set_private_key(&values[0]).map_err(|error| error.to_string())
        };
        told(key, key.reload(new_key));
        let hud = config.hud.as_ref().map(|hud| &hud.key);
        let signing = [Some(&config.webhook_secret), config.callback_keys.as_ref()];
        let others = [config.admin_token.as_ref(), config.results_token.as_ref(), hud];
        let mut changed = false;
        for secret in signing.into_iter().chain(others).flatten() {
            changed |= told(secret, secret.reload(|_| Ok(())));
        }
        if changed {
            self.keys.set(&config.callback_keys());
        }
    }

    /// How many dispatches are looked after: sent to L2 or above, and not known to be over.
    pub async fn open_dispatches(&self) -> Result<u64, StoreError> {
        self.store.count_of(Work::SWEEP).await
    }

    /// When records that are written now may be forgotten.
    pub fn expiry(&self) -> Timestamp {
        self.now() + self.config.keep
    }

    /// Adds to a batch what follows from a change of a dispatch: its fact, for the pages here, and
    /// the same for an external HUD that takes it.
    pub fn note_dispatch(&self, batch: &mut Batch, dispatch: &Dispatch) {
        let fact = self.dispatch_fact(dispatch);
        batch.tasks.extend(forward::dispatch_task(self, &fact));
        batch.facts.push(Fact::Dispatch(fact));
    }

    /// The fact of how a dispatch stands.
    pub fn dispatch_fact(&self, dispatch: &Dispatch) -> DispatchFact {
        DispatchFact {
            at: self.now(),
            delivery: dispatch.delivery.clone(),
            upstream: dispatch.upstream.clone(),
            pull_request: dispatch.pull_request,
            head_sha: dispatch.head_sha.clone(),
            event: dispatch.event.clone(),
            repo: dispatch.repo.as_str().to_owned(),
            level: dispatch.level,
            labels: dispatch.labels.clone(),
            enqueued_at: dispatch.enqueued_at,
            sent_at: dispatch.sent_at(),
            status: if dispatch.never_started {
                DispatchFactStatus::NeverStarted
            } else {
                (&dispatch.status).into()
            },
            superseded_by: match &dispatch.status {
                crcr_domain::dispatch::DispatchStatus::Superseded { by } => Some(by.clone()),
                _ => None,
            },
            tries: dispatch.tries,
            last_error: dispatch.last_error.clone(),
        }
    }
}
