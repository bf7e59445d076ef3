//! The relay: everything that its requests and tasks share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crcr_aws::object_store::{ObjectStore, ObjectStoreError};
use crcr_cidata::webhook_archive::WebhookArchive;
use crcr_github::app::{Clock, GithubApp};
use crcr_results::sqlite::SqliteResults;
use crcr_results::{Results, ResultsError, ResultsUrl};
use crcr_store::{
    CommitOutcome, PendingCommit, RedisStore, RedisUrl, SqliteStore, StateStore, StoreError,
    StoreRole, WriteBatch,
};
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use parking_lot::Mutex;
use secrecy::SecretString;
use tokio::sync::{Notify, OnceCell, Semaphore};

use crate::admin::wrong_tokens::WrongTokens;
use crate::allowlist::{AllowlistSource, AllowlistStatus};
use crate::callback::auth::{Issuer, IssuerStatus, ProviderMap, Verifier};
use crate::callback::token::CallbackKeys;
use crate::config::secrets::{ReloadResult, Secret};
use crate::config::{Config, StoreUrl};
use crate::demotions::OpenDemotions;
use crate::http::metrics::Metrics;
use crate::line_budget::LineBudget;
use crate::probes::bisect::CommitComparisons;
use crate::probes::dispatch_filter::ChangedFilesTurns;
use crate::queue::blame_cache::BlameCache;
use crate::repository_files::KnownFiles;
use crate::repository_pins::PinnedNames;
use crate::traces::Traces;
use crate::upstream_identity::UpstreamIdentity;
use crate::uptime::OwnBeats;
use crate::usage::Usage;
use crate::webhook::turns::PullRequestTurns;
use crate::{limits, state_records};

/// Reads all settings of a secret store, or says why it can't.
pub type FetchStoredSecrets =
    Box<dyn Fn() -> BoxFuture<'static, Result<BTreeMap<String, String>, String>> + Send + Sync>;

pub struct Relay {
    pub config: Config,
    pub store: Arc<dyn StateStore>,
    pub results: Arc<dyn Results>,
    pub app: GithubApp,
    pub allowlist: AllowlistSource,
    pub demotions: OpenDemotions,
    pub upstream_identity: UpstreamIdentity,
    pub(crate) pinned_names: PinnedNames,
    pub(crate) files: KnownFiles,
    pub verifier: Verifier,
    pub keys: CallbackKeys,
    pub clock: Clock,
    pub metrics: Metrics,
    pub traces: Traces,
    pub(crate) usage: Usage,
    pub(crate) blame: BlameCache,
    pub(crate) comparisons: CommitComparisons,
    /// For requests to anything but GitHub.
    pub http: reqwest::Client,
    pub work: Notify,
    /// Wakes the copying of facts to the results.
    pub facts: Notify,
    /// Whether a webhook was answered with an error of the relay since the last accepted one.
    pub(crate) lost_webhooks: AtomicBool,
    /// When the last webhook or report was taken, in milliseconds after `created`.
    taken_at: AtomicU64,
    created: Instant,
    /// The beats that this relay has written down.
    pub(crate) own_beats: Mutex<Option<OwnBeats>>,
    /// Has the delivery log read soon, because an outage is over.
    pub(crate) outage_over: Notify,
    /// Why the last batch of facts couldn't be copied to the results; `None` when it could.
    pub(crate) results_problem: Mutex<Option<String>>,
    archive: OnceCell<WebhookArchive>,
    pub(crate) log_permits: Arc<Semaphore>,
    pub(crate) turns: PullRequestTurns,
    pub(crate) changed_files: ChangedFilesTurns,
    pub(crate) wrong_bearers: WrongTokens,
    pub(crate) wrong_logins: WrongTokens,
    pub(crate) strangers_log: LineBudget,
    pub(crate) failed_tasks_log: LineBudget,
    /// Reads the secret store again, if there is one.
    pub stored_secrets: Option<FetchStoredSecrets>,
    stored_secrets_read_at: Mutex<Option<Timestamp>>,
    /// When a test record was last written to the store, or why it couldn't be.
    last_write: tokio::sync::Mutex<Option<(Timestamp, Result<(), String>)>>,
}

/// What a relay needs for webhooks and reports.
pub(crate) struct Readiness {
    /// Why the store can't be written.
    pub(crate) store: Option<String>,
    pub(crate) allowlist: AllowlistStatus,
    pub(crate) issuers: Vec<IssuerStatus>,
}

impl Readiness {
    pub(crate) fn is_ready(&self) -> bool {
        self.store.is_none() && self.allowlist.loaded && self.has_keys()
    }

    /// Whether tokens of any backend can be verified. Reports of others are answered with 503 until theirs can, and webhooks
    /// need no keys.
    fn has_keys(&self) -> bool {
        let mut needed = self.issuers.iter().filter(|issuer| issuer.needed).peekable();
        needed.peek().is_none() || needed.any(|issuer| issuer.has_keys)
    }

    /// The issuers that backends need and whose keys aren't known.
    pub(crate) fn missing_keys(&self) -> Vec<String> {
        let missing = self.issuers.iter().filter(|issuer| issuer.is_missing());
        missing.map(|issuer| issuer.issuer.clone()).collect()
    }
}

/// A batch that may not be on disk yet.
pub(crate) struct SubmittedBatch {
    pending: PendingCommit,
    tasks: bool,
    facts: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Key(#[from] crcr_github::ClientSetupError),
    #[error("the HTTP client can't be set up")]
    Http(#[source] crcr_github::http::HttpError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Results(#[from] ResultsError),
}

/// Opens the store and the results for a server. Only one server can use a SQLite store; several can
/// use one on Redis.
pub async fn open(config: &Config) -> Result<(Arc<dyn StateStore>, Arc<dyn Results>), StartError> {
    let path = match &config.store {
        StoreUrl::Sqlite(path) => path,
        StoreUrl::Redis(url) => {
            let store = open_redis(url).await?;
            let url = config.results.as_ref().expect("settings on Redis name the results");
            return Ok((Arc::new(store), open_shared_results(url).await?));
        }
    };
    match &config.results {
        Some(url) if !matches!(url, ResultsUrl::Sqlite(other) if other == path) => {
            let results = crcr_results::open(url, StoreRole::Server).await?;
            Ok((Arc::new(SqliteStore::open_with_outbox(path)?), results))
        }
        _ => {
            let store = Arc::new(SqliteStore::open(path, StoreRole::Server)?);
            Ok((Arc::clone(&store) as _, Arc::new(SqliteResults::new(store))))
        }
    }
}

async fn open_redis(url: &RedisUrl) -> Result<RedisStore, StoreError> {
    if url.exposes_password() {
        tracing::warn!(%url, "the password and all data go to Redis without encryption: use rediss://");
    }
    RedisStore::open(url).await
}

/// Opens the store of a relay that may be running.
pub async fn open_beside(url: &StoreUrl) -> Result<Arc<dyn StateStore>, StoreError> {
    Ok(match url {
        StoreUrl::Sqlite(path) => Arc::new(SqliteStore::open(path, StoreRole::Tool)?),
        StoreUrl::Redis(url) => Arc::new(open_redis(url).await?),
    })
}

/// Opens results that several servers write.
async fn open_shared_results(url: &ResultsUrl) -> Result<Arc<dyn Results>, StartError> {
    let ResultsUrl::Sqlite(path) = url else {
        return Ok(crcr_results::open(url, StoreRole::Server).await?);
    };
    tracing::warn!(
        path = %path.display(),
        "the results are in a SQLite file: every relay of this store has to run on this machine"
    );
    // Another server may just be creating the tables.
    for _ in 0..50 {
        match SqliteStore::open(path, StoreRole::Tool) {
            Err(StoreError::InUse(_) | StoreError::Older(_)) => {
                tokio::time::sleep(limits::QUEUE_POLL / 5).await;
            }
            opened => return Ok(Arc::new(SqliteResults::new(Arc::new(opened?)))),
        }
    }
    Err(StoreError::InUse(path.display().to_string()).into())
}

impl Relay {
    pub fn new(
        config: Config,
        store: Arc<dyn StateStore>,
        results: Arc<dyn Results>,
        clock: Clock,
    ) -> Result<Self, StartError> {
        let http = crcr_github::http::client().map_err(StartError::Http)?;
        let app = GithubApp::new(
            http.clone(),
            &config.api_url,
            config.app_id.clone(),
            &config.private_key.first(),
            Arc::clone(&clock),
        )?;
        Ok(Self::with_app(config, store, results, clock, http, app))
    }

    /// A relay that reaches GitHub through `app`, and everything else through `http`.
    pub fn with_app(
        config: Config,
        store: Arc<dyn StateStore>,
        results: Arc<dyn Results>,
        clock: Clock,
        http: reqwest::Client,
        app: GithubApp,
    ) -> Self {
        let verifier = Verifier::new(
            &http,
            Issuer::from_settings(&config.issuers, &config.api_url),
            &config.audience,
        );
        if config.providers_url.is_none() {
            verifier.set_providers(ProviderMap::default());
        }
        Self {
            verifier,
            allowlist: AllowlistSource::new(
                config.allowlist.clone(),
                config.upstream.clone(),
                config.allowlist_ttl,
            )
            .kept_in(Arc::clone(&store)),
            demotions: OpenDemotions::new(
                config.upstream.clone(),
                &config.demotion_branch,
                config.allowlist_ttl,
            ),
            upstream_identity: UpstreamIdentity::default(),
            pinned_names: PinnedNames::default(),
            files: KnownFiles::default(),
            keys: CallbackKeys::new(&config.callback_secrets()),
            metrics: Metrics::new(),
            traces: Traces::default(),
            usage: Usage::default(),
            blame: BlameCache::default(),
            comparisons: CommitComparisons::default(),
            work: Notify::new(),
            facts: Notify::new(),
            lost_webhooks: AtomicBool::new(false),
            taken_at: AtomicU64::new(0),
            created: Instant::now(),
            own_beats: Mutex::default(),
            outage_over: Notify::new(),
            results_problem: Mutex::default(),
            archive: OnceCell::new(),
            log_permits: Arc::new(Semaphore::new(limits::JOB_LOGS_AT_ONCE)),
            turns: PullRequestTurns::new(),
            changed_files: ChangedFilesTurns::default(),
            wrong_bearers: WrongTokens::default(),
            wrong_logins: WrongTokens::default(),
            strangers_log: LineBudget::new(
                limits::STRANGERS_LINES,
                "many requests of strangers are refused: for the rest of this minute they aren't logged, only \
                 counted in `crcr_webhooks_total` and `crcr_callbacks_total`",
            ),
            failed_tasks_log: LineBudget::new(
                limits::FAILED_TASK_LINES,
                "many tasks fail: for the rest of this minute those that are tried again aren't logged, only \
                 counted in `crcr_tasks_total`",
            ),
            stored_secrets: None,
            stored_secrets_read_at: Mutex::default(),
            last_write: tokio::sync::Mutex::default(),
            store,
            results,
            app,
            clock,
            http,
            config,
        }
    }

    /// Reads CODEOWNERS and quarantine files, as the server does from time to time.
    pub async fn read_repository_files(&self) {
        self.files.refresh(self).await;
    }

    /// The archive of webhooks, if one is configured.
    pub(crate) async fn archive(&self) -> Result<Option<&WebhookArchive>, ObjectStoreError> {
        let Some(url) = &self.config.archive else { return Ok(None) };
        let open = || async { ObjectStore::open(url).await.map(WebhookArchive::new) };
        self.archive.get_or_try_init(open).await.map(Some)
    }

    /// Notes whether a webhook was taken, or would be lost because of an error of the relay.
    pub(crate) fn note_webhook(&self, is_lost: bool) {
        if is_lost {
            self.lost_webhooks.store(true, Ordering::Relaxed);
        } else if self.lost_webhooks.load(Ordering::Relaxed)
            && self.lost_webhooks.swap(false, Ordering::Relaxed)
        {
            self.outage_over.notify_one();
        }
    }

    pub(crate) fn note_taken(&self) {
        let millis = u64::try_from(self.created.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.taken_at.store(millis, Ordering::Relaxed);
    }

    /// Whether no webhook or report was taken in the last moment.
    pub(crate) fn is_quiet(&self) -> bool {
        let taken_at = Duration::from_millis(self.taken_at.load(Ordering::Relaxed));
        self.created.elapsed().saturating_sub(taken_at) >= limits::QUIET_PERIOD
    }

    pub fn now(&self) -> Timestamp {
        (self.clock)()
    }

    /// Whether `at` is less than `period` ago. A time that is further ahead than another relay's clock may be isn't: it
    /// was written by a clock that has been set right since.
    pub(crate) fn is_recent(&self, at: Timestamp, period: Duration) -> bool {
        let now = self.now();
        at <= now + limits::CLOCKS_APART && now < at + period
    }

    /// Commits a batch and wakes the queue when it holds tasks.
    pub async fn commit(&self, batch: WriteBatch) -> Result<CommitOutcome, StoreError> {
        let submitted = self.submit(batch).await?;
        self.durable(submitted).await
    }

    /// Puts a batch in line for the writer.
    pub(crate) async fn submit(&self, batch: WriteBatch) -> Result<SubmittedBatch, StoreError> {
        let tasks = !batch.tasks.is_empty();
        let facts = !batch.facts.is_empty() && !self.store.stores_facts();
        Ok(SubmittedBatch { pending: self.store.submit(batch, self.now()).await?, tasks, facts })
    }

    /// Waits until a batch is on disk, and wakes the workers if it has tasks.
    pub(crate) async fn durable(
        &self,
        submitted: SubmittedBatch,
    ) -> Result<CommitOutcome, StoreError> {
        let commit = submitted.pending.durable().await?;
        if submitted.facts && commit == CommitOutcome::Done {
            self.facts.notify_one();
        }
        if submitted.tasks && commit == CommitOutcome::Done {
            self.work.notify_one();
        }
        Ok(commit)
    }

    /// Sends the spans that wait to be sent together.
    pub async fn send_spans(self: &Arc<Self>) {
        let relay = Arc::clone(self);
        if tokio::task::spawn_blocking(move || relay.traces.flush()).await.is_err() {
            tracing::error!("the thread that sends spans has panicked");
        }
    }

    pub(crate) async fn readiness(&self) -> Readiness {
        Readiness {
            store: self.can_write().await.err(),
            allowlist: self.allowlist.status(),
            issuers: self.issuers(),
        }
    }

    /// What is known of the token issuers' keys, and which of them the allowlist in force needs.
    pub(crate) fn issuers(&self) -> Vec<IssuerStatus> {
        self.verifier.issuers(self.allowlist.get().as_deref(), self.now())
    }

    /// Whether the store can be written: it can be read even when the disk is full. While it works, it is tried at most
    /// once in [`limits::READINESS_PERIOD`], so that health checks don't load the disk. Callers who waited for a write that
    /// failed share its answer: one after the other, each would wait for as long as all before it.
    pub(crate) async fn can_write(&self) -> Result<(), String> {
        let mut last = self.last_write.lock().await;
        if let Some((at, answer)) = &*last {
            let period = if answer.is_ok() {
                limits::READINESS_PERIOD
            } else {
                limits::FAILED_READINESS_PERIOD
            };
            if self.is_recent(*at, period) {
                return answer.clone();
            }
        }
        *last = None;
        let now = self.now();
        let mut batch = WriteBatch::default();
        batch.set(state_records::write_probe_key(), &now, self.expiry());
        let commit =
            tokio::time::timeout(limits::READINESS_PERIOD, self.store.commit(batch, now)).await;
        let commit = commit.unwrap_or_else(|_| {
            let what =
                format!("it hasn't written anything for {} s", limits::READINESS_PERIOD.as_secs());
            Err(StoreError::Unavailable(what))
        });
        let answer = commit.map(drop).map_err(|error| error.to_string());
        let tried_at = if answer.is_ok() { now } else { self.now() };
        *last = Some((tried_at, answer.clone()));
        answer
    }

    /// Reads the secrets' files that have changed. If one can't be used, the old values stay. Blocks
    /// while it reads.
    pub(crate) fn reload_secrets(&self) {
        self.reload_each(|secret, accept| secret.reload(accept));
    }

    /// Reads the secret store again, if there is one and it is time. If it can't be read, the old values stay.
    pub(crate) async fn reload_stored_secrets(&self) {
        let Some(fetch) = &self.stored_secrets else { return };
        let now = self.now();
        {
            let mut read_at = self.stored_secrets_read_at.lock();
            if read_at.is_some_and(|at| self.is_recent(at, limits::SECRET_STORE_INTERVAL)) {
                return;
            }
            // The start has just read them.
            if read_at.replace(now).is_none() {
                return;
            }
        }
        match fetch().await {
            Ok(stored) => self.take_stored_secrets(&stored),
            Err(problem) => {
                tracing::error!(
                    problem,
                    "the secret store can't be read again; the old values stay"
                );
            }
        }
    }

    fn take_stored_secrets(&self, stored: &BTreeMap<String, String>) {
        self.reload_each(|secret, accept| {
            secret.reload_stored(stored.get(secret.name()).map(String::as_str), accept)
        });
    }

    fn reload_each(
        &self,
        reload: impl Fn(&Secret, &dyn Fn(&[SecretString]) -> Result<(), String>) -> ReloadResult,
    ) {
        let log = |secret: &Secret, reloaded: ReloadResult| match reloaded {
            ReloadResult::Unchanged => false,
            ReloadResult::New => {
                tracing::info!(setting = secret.name(), "the secret was read again");
                true
            }
            ReloadResult::Broken(problem) => {
                let setting = secret.name();
                tracing::error!(
                    setting,
                    problem,
                    "the secret's new value can't be used; the old value stays"
                );
                false
            }
        };
        let config = &self.config;
        let key = &config.private_key;
        let new_key = |values: &[SecretString]| {
            self.app.set_private_key(&values[0]).map_err(|error| error.to_string())
        };
        log(key, reload(key, &new_key));
        let hud = config.hud.as_ref().map(|hud| &hud.key);
        let signing = [Some(&config.webhook_secret), config.callback_keys.as_ref()];
        let others = [config.admin_token.as_ref(), config.results_token.as_ref(), hud];
        let mut changed = false;
        for secret in signing.into_iter().chain(others).flatten() {
            changed |= log(secret, reload(secret, &|_| Ok(())));
        }
        if changed {
            self.keys.replace(&config.callback_secrets());
        }
    }

    /// Reads the file of log rules if it has changed. If it can't be used, the old rules stay. Blocks
    /// while it reads.
    pub(crate) fn reload_log_rules(&self) {
        match self.config.log_rules.reload() {
            ReloadResult::Unchanged => {}
            ReloadResult::New => tracing::info!("the log rules were read again"),
            ReloadResult::Broken(problem) => {
                tracing::error!(problem, "the new log rules can't be used; the old ones stay");
            }
        }
    }

    /// When records that are written now may be deleted.
    pub fn expiry(&self) -> Timestamp {
        self.now() + self.config.status_ttl
    }

    /// The same for what is known of a pull request: an open one may be heard of again after months.
    pub(crate) fn expiry_of_pull(&self, pull: &state_records::PullRecord) -> Timestamp {
        let memory = if pull.is_closed { Duration::ZERO } else { limits::OPEN_PULL_MEMORY };
        self.now() + self.config.status_ttl.max(memory)
    }
}
