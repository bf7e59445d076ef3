//! What every page is built from, and why one can't be shown.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crcr_cidata::logs::StoredLogs;
use crcr_domain::probes::ProbesOverview;
use crcr_domain::results::LevelCriteria;
use crcr_domain::{Allowlist, AllowlistEntry, Level, RepoName};
use crcr_results::{Results, ResultsError};
use jiff::Timestamp;
use serde::Serialize;
use tokio::sync::Semaphore;

use crate::files::FilesOf;
use crate::model::days::cache::DayCaches;
use crate::query::{SpanQuery, TimeSpan, given};

/// Further pages wait for [`PAGE_QUEUE_TIMEOUT`].
pub(crate) const MAX_CONCURRENT_PAGES: usize = 8;
/// Each of them holds a connection, and webhooks need some, too.
pub(crate) const MAX_WAITING_PAGES: usize = 256;
/// Logs that are sent as text at the same time.
const MAX_CONCURRENT_TEXTS: usize = 4;
const PAGE_QUEUE_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the allowlist in force, if there is one.
pub type PolicyInForce = Box<dyn Fn() -> Option<Arc<Allowlist>> + Send + Sync>;

/// Reads backends' own files, and which commits broke something. Without them a page has less to say.
pub type ProbesReader =
    Box<dyn Fn() -> Pin<Box<dyn Future<Output = ProbesOverview> + Send>> + Send + Sync>;

/// Something that is wrong with the relay itself, for everybody to read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct RelayWarning {
    /// A sentence.
    pub text: String,
    /// The page about it.
    pub page: Option<String>,
}

/// Reads what is wrong with the relay itself. Every request of the first page calls it.
pub type WarningsReader =
    Box<dyn Fn() -> Pin<Box<dyn Future<Output = Vec<RelayWarning>> + Send>> + Send + Sync>;

/// What the pages are built from.
pub struct Hud {
    pub results: Arc<dyn Results>,
    pub policy: PolicyInForce,
    pub clock: Box<dyn Fn() -> Timestamp + Send + Sync>,
    /// Pull request pages are about this repository unless `?upstream=` names another one.
    pub upstream: RepoName,
    pub criteria: LevelCriteria,
    pub probes: ProbesReader,
    pub warnings: WarningsReader,
    /// GitHub's web pages, such as `https://github.com`, without a slash at the end.
    pub github_url: String,
    /// Where the relay is reached from outside, without a slash at the end; feeds need it.
    pub public_url: Option<String>,
    pub has_login: bool,
    /// CODEOWNERS and quarantine files.
    pub files: FilesOf,
    /// Where logs of failed jobs are kept.
    pub logs: StoredLogs,
    pub(crate) days: DayCaches,
    pub(crate) page_permits: Arc<Semaphore>,
    pub(crate) page_queue: Arc<Semaphore>,
    pub(crate) text_permits: Arc<Semaphore>,
}

impl Hud {
    pub fn new(
        results: Arc<dyn Results>,
        policy: PolicyInForce,
        clock: Box<dyn Fn() -> Timestamp + Send + Sync>,
        upstream: RepoName,
    ) -> Self {
        Self {
            results,
            policy,
            clock,
            upstream,
            criteria: LevelCriteria::default(),
            probes: Box::new(|| Box::pin(async { ProbesOverview::default() })),
            warnings: Box::new(|| Box::pin(async { vec![] })),
            github_url: "https://github.com".to_owned(),
            public_url: None,
            has_login: false,
            files: Box::new(|_| None),
            logs: StoredLogs::default(),
            days: DayCaches::default(),
            page_permits: Arc::new(Semaphore::new(MAX_CONCURRENT_PAGES)),
            page_queue: Arc::new(Semaphore::new(MAX_WAITING_PAGES)),
            text_permits: Arc::new(Semaphore::new(MAX_CONCURRENT_TEXTS)),
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        (self.clock)()
    }

    /// The repository's entry in the allowlist in force.
    pub(crate) fn entry_of(&self, repo: &RepoName) -> Option<AllowlistEntry> {
        (self.policy)()?.get(repo).cloned()
    }

    /// The level by which a backend's result counts now: the lower of the level when it was dispatched and its
    /// present one, as for check runs. A backend that was removed has no check runs, as at L2.
    pub(crate) fn level_now(&self, repo: &str, dispatched: Level) -> Level {
        let Some(policy) = (self.policy)() else { return dispatched };
        let entry = RepoName::new(repo).ok().and_then(|repo| policy.get(&repo).cloned());
        entry.map_or(Level::L2, |entry| entry.level).min(dispatched)
    }

    /// The repository of `?upstream=OWNER/REPO`, or the configured one.
    pub(crate) fn upstream_of(&self, query: Option<&str>) -> Result<RepoName, PageError> {
        Ok(repo_parameter("upstream", query)?.unwrap_or_else(|| self.upstream.clone()))
    }

    pub(crate) fn span(&self, query: &SpanQuery) -> Result<TimeSpan, PageError> {
        TimeSpan::from_query(query, self.now()).map_err(PageError::Query)
    }
}

/// Why a page can't be shown.
#[derive(Debug)]
pub(crate) enum PageError {
    NotFound(String),
    Query(String),
    /// For operators; the page says only that the results can't be read.
    Store(String),
    Busy,
}

impl From<ResultsError> for PageError {
    fn from(error: ResultsError) -> Self {
        Self::Store(error.to_string())
    }
}

/// The repository that a parameter names, if it does.
pub(crate) fn repo_parameter(
    parameter: &str,
    value: Option<&str>,
) -> Result<Option<RepoName>, PageError> {
    let name = given(value).map(|name| RepoName::new(&name)).transpose();
    name.map_err(|_| PageError::Query(format!("`{parameter}` has to be `owner/repo`")))
}

pub(crate) fn repo_name(owner: &str, repo: &str) -> Result<RepoName, PageError> {
    RepoName::new(&format!("{owner}/{repo}"))
        .map_err(|_| PageError::NotFound("there is no repository of this name".to_owned()))
}

/// Computes a model on a thread of the blocking pool, because it reads from disk and uses much CPU.
///
/// At most [`MAX_CONCURRENT_PAGES`] at the same time: the reads of each page need a second thread of
/// the same pool, so pages on all of its threads would wait for each other for ever.
pub(crate) async fn compute<T: Send + 'static>(
    hud: Arc<Hud>,
    build: impl AsyncFnOnce(&Hud) -> Result<T, PageError> + Send + 'static,
) -> Result<T, PageError> {
    let Ok(turn) = Arc::clone(&hud.page_queue).try_acquire_owned() else {
        return Err(PageError::Busy);
    };
    let permit = Arc::clone(&hud.page_permits).acquire_owned();
    let Ok(Ok(permit)) = tokio::time::timeout(PAGE_QUEUE_TIMEOUT, permit).await else {
        return Err(PageError::Busy);
    };
    drop(turn);
    let runtime = tokio::runtime::Handle::current();
    let computed = tokio::task::spawn_blocking(move || {
        // Held until the work is done, even when the client has gone away.
        let _place = permit;
        runtime.block_on(build(&hud))
    });
    computed.await.unwrap_or_else(|error| Err(PageError::Store(error.to_string())))
}
