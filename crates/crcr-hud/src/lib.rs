//! The HUD: results of every backend as server-rendered pages, each with a JSON twin.
//!
//! A page has query parameters ([`query`]), a model that is computed from facts ([`model`]), and
//! markup ([`pages`]). The JSON twin under `/api/v1` is the same model. Pages can be read without
//! JavaScript and load nothing from other hosts.

mod chart;
pub mod layout;
pub mod message;
mod model;
pub mod pages;
mod query;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Query, RawQuery, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use axum::{Json, Router};
use crcr_domain::results::LevelCriteria;
use crcr_domain::{Allowlist, RepoName};
use crcr_results::{Results, ResultsError};
use jiff::Timestamp;
use maud::Markup;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tower_http::set_header::SetResponseHeaderLayer;

use self::model::days::DayCaches;
use self::query::{PullQuery, SpanQuery, TimeSpan};

/// Further pages wait for [`PAGE_QUEUE_TIMEOUT`].
const MAX_CONCURRENT_PAGES: usize = 8;
const PAGE_QUEUE_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the allowlist in force, if there is one.
pub type PolicyInForce = Box<dyn Fn() -> Option<Arc<Allowlist>> + Send + Sync>;

/// What the pages are built from.
pub struct Hud {
    pub results: Arc<dyn Results>,
    pub policy: PolicyInForce,
    pub clock: Box<dyn Fn() -> Timestamp + Send + Sync>,
    /// Pull request pages are about this repository unless `?upstream=` names another one.
    pub upstream: RepoName,
    pub criteria: LevelCriteria,
    days: DayCaches,
    page_permits: Arc<Semaphore>,
}

impl Hud {
    pub fn new(
        results: Arc<dyn Results>,
        policy: PolicyInForce,
        clock: Box<dyn Fn() -> Timestamp + Send + Sync>,
        upstream: RepoName,
    ) -> Self {
        let criteria = LevelCriteria::default();
        let page_permits = Arc::new(Semaphore::new(MAX_CONCURRENT_PAGES));
        Self {
            results,
            policy,
            clock,
            upstream,
            criteria,
            days: DayCaches::default(),
            page_permits,
        }
    }
}

/// The pages and their JSON twins.
pub fn router(hud: Arc<Hud>) -> Router {
    with_headers(
        Router::new()
            .route("/crcr", get(overview))
            .route("/api/v1/overview", get(overview_json))
            .route("/crcr/tests", get(tests_page))
            .route("/api/v1/tests", get(tests_json))
            .route("/crcr/logs", get(logs_page))
            .route("/api/v1/logs", get(logs_json))
            .route("/crcr/logs/{owner}/{repo}/{job}", get(job_log_page))
            .route("/api/v1/logs/{owner}/{repo}/{job}", get(job_log_json))
            .route("/crcr/{owner}/{repo}", get(repository))
            .route("/api/v1/repositories/{owner}/{repo}", get(repository_json))
            .route("/crcr/{owner}/{repo}/level", get(level))
            .route("/api/v1/repositories/{owner}/{repo}/level", get(level_json))
            .route("/crcr/{owner}/{repo}/badge.svg", get(badge))
            .route("/crcr/feed.atom", get(feed))
            .route("/crcr/{owner}/{repo}/feed.atom", get(backend_feed))
            .route("/hud", get(repositories))
            .route("/api/v1/hud", get(repositories_json))
            .route("/hud/{owner}/{repo}", get(branches))
            .route("/api/v1/hud/{owner}/{repo}", get(branches_json))
            .route("/hud/{owner}/{repo}/{*branch}", get(branch))
            .route("/api/v1/hud/{owner}/{repo}/{*branch}", get(branch_json))
            .route("/api/crcr/level-status", get(level_status))
            .route("/search", get(search))
            .route("/pr/{number}", get(pull))
            .route("/api/v1/pulls/{number}", get(pull_json))
            .route("/crcr/assets/hud.css", get(|| async { asset("text/css", layout::STYLE) }))
            .route("/crcr/assets/icon.svg", get(|| async { asset("image/svg+xml", layout::ICON) }))
            .route(
                "/crcr/assets/hud.js",
                get(|| async { asset("text/javascript", layout::SCRIPT) }),
            )
            .with_state(hud),
    )
}

/// Adds the headers of every page: it may load nothing from other hosts, and no other site may frame
/// it. The referrer is sent to this site only; without it browsers send forms with `Origin: null`.
pub fn with_headers<S: Clone + Send + Sync + 'static>(router: Router<S>) -> Router<S> {
    // No page has inline styles or scripts.
    let policy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; \
                  connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";
    let set =
        |name, value| SetResponseHeaderLayer::overriding(name, HeaderValue::from_static(value));
    router
        .layer(set(header::CONTENT_SECURITY_POLICY, policy))
        .layer(set(header::X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .layer(set(header::REFERRER_POLICY, "same-origin"))
}

fn asset(kind: &'static str, text: &'static str) -> Response {
    ([(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "max-age=300")], text).into_response()
}

/// Why a page can't be shown.
enum PageError {
    NotFound(String),
    Query(String),
    Store(String),
    Busy,
}

impl From<ResultsError> for PageError {
    fn from(error: ResultsError) -> Self {
        Self::Store(error.to_string())
    }
}

impl PageError {
    fn parts(&self) -> (StatusCode, &str) {
        match self {
            Self::NotFound(text) => (StatusCode::NOT_FOUND, text),
            Self::Query(text) => (StatusCode::BAD_REQUEST, text),
            Self::Store(text) => (StatusCode::SERVICE_UNAVAILABLE, text),
            Self::Busy => (
                StatusCode::SERVICE_UNAVAILABLE,
                "too many pages are being computed; try again in some seconds",
            ),
        }
    }

    fn page(&self) -> Response {
        let (status, text) = self.parts();
        self.with_retry_after((status, pages::problem(status.as_u16(), text)).into_response())
    }

    fn json(&self) -> Response {
        let (status, text) = self.parts();
        self.with_retry_after((status, Json(serde_json::json!({ "detail": text }))).into_response())
    }

    fn with_retry_after(&self, mut answer: Response) -> Response {
        if matches!(self, Self::Busy) {
            answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
        }
        answer
    }
}

fn html_response<T>(model: Result<T, PageError>, page: impl Fn(&T) -> Markup) -> Response {
    match model {
        Ok(model) => page(&model).into_response(),
        Err(problem) => problem.page(),
    }
}

fn json_response<T: Serialize>(model: Result<T, PageError>) -> Response {
    match model {
        Ok(model) => Json(model).into_response(),
        Err(problem) => problem.json(),
    }
}

/// Computes a model on a thread of the blocking pool, because it reads from disk and uses much CPU.
///
/// At most [`MAX_CONCURRENT_PAGES`] at the same time: the reads of each page need a second thread of
/// the same pool, so pages on all of its threads would wait for each other for ever.
async fn compute<T: Send + 'static>(
    hud: Arc<Hud>,
    build: impl AsyncFnOnce(&Hud) -> Result<T, PageError> + Send + 'static,
) -> Result<T, PageError> {
    let permit = Arc::clone(&hud.page_permits).acquire_owned();
    let Ok(Ok(permit)) = tokio::time::timeout(PAGE_QUEUE_TIMEOUT, permit).await else {
        return Err(PageError::Busy);
    };
    let runtime = tokio::runtime::Handle::current();
    let computed = tokio::task::spawn_blocking(move || {
        // Held until the work is done, even when the client has gone away.
        let _place = permit;
        runtime.block_on(build(&hud))
    });
    computed.await.unwrap_or_else(|error| Err(PageError::Store(error.to_string())))
}

fn span(hud: &Hud, query: &SpanQuery) -> Result<TimeSpan, PageError> {
    TimeSpan::from_query(query, (hud.clock)()).map_err(PageError::Query)
}

fn repo_name(owner: &str, repo: &str) -> Result<RepoName, PageError> {
    RepoName::new(&format!("{owner}/{repo}"))
        .map_err(|_| PageError::NotFound("there is no repository of this name".to_owned()))
}

async fn build_overview(
    hud: Arc<Hud>,
    query: SpanQuery,
) -> Result<model::overview::OverviewModel, PageError> {
    compute(hud, async move |hud| model::overview::build(hud, &span(hud, &query)?).await).await
}

async fn overview(State(hud): State<Arc<Hud>>, Query(query): Query<SpanQuery>) -> Response {
    html_response(build_overview(hud, query).await, pages::overview::page)
}

async fn overview_json(State(hud): State<Arc<Hud>>, Query(query): Query<SpanQuery>) -> Response {
    json_response(build_overview(hud, query).await)
}

async fn build_tests(
    hud: Arc<Hud>,
    query: model::tests::TestsQuery,
) -> Result<model::tests::TestsModel, PageError> {
    compute(hud, async move |hud| model::tests::build(hud, &query).await).await
}

async fn tests_page(
    State(hud): State<Arc<Hud>>,
    Query(query): Query<model::tests::TestsQuery>,
) -> Response {
    html_response(build_tests(hud, query).await, pages::tests::page)
}

async fn tests_json(
    State(hud): State<Arc<Hud>>,
    Query(query): Query<model::tests::TestsQuery>,
) -> Response {
    json_response(build_tests(hud, query).await)
}

async fn build_logs(
    hud: Arc<Hud>,
    query: model::logs::LogsQuery,
) -> Result<model::logs::LogsModel, PageError> {
    compute(hud, async move |hud| model::logs::build(hud, &query).await).await
}

async fn logs_page(
    State(hud): State<Arc<Hud>>,
    Query(query): Query<model::logs::LogsQuery>,
) -> Response {
    html_response(build_logs(hud, query).await, pages::logs::page)
}

async fn logs_json(
    State(hud): State<Arc<Hud>>,
    Query(query): Query<model::logs::LogsQuery>,
) -> Response {
    json_response(build_logs(hud, query).await)
}

async fn build_job_log(
    hud: Arc<Hud>,
    (owner, repo, job): (String, String, u64),
) -> Result<model::logs::JobLogModel, PageError> {
    let repo = repo_name(&owner, &repo)?;
    compute(hud, async move |hud| model::logs::build_job(hud, &repo, job).await).await
}

async fn job_log_page(
    State(hud): State<Arc<Hud>>,
    Path(path): Path<(String, String, u64)>,
) -> Response {
    html_response(build_job_log(hud, path).await, pages::logs::job_page)
}

async fn job_log_json(
    State(hud): State<Arc<Hud>>,
    Path(path): Path<(String, String, u64)>,
) -> Response {
    json_response(build_job_log(hud, path).await)
}

async fn build_repository(
    hud: Arc<Hud>,
    (owner, repo): (String, String),
    query: SpanQuery,
) -> Result<model::repository::BackendModel, PageError> {
    compute(hud, async move |hud| {
        model::repository::build(hud, &repo_name(&owner, &repo)?, &span(hud, &query)?).await
    })
    .await
}

async fn repository(
    State(hud): State<Arc<Hud>>,
    Path(path): Path<(String, String)>,
    Query(query): Query<SpanQuery>,
) -> Response {
    html_response(build_repository(hud, path, query).await, pages::repository::page)
}

async fn repository_json(
    State(hud): State<Arc<Hud>>,
    Path(path): Path<(String, String)>,
    Query(query): Query<SpanQuery>,
) -> Response {
    json_response(build_repository(hud, path, query).await)
}

async fn badge(
    State(hud): State<Arc<Hud>>,
    Path(path): Path<(String, String)>,
    Query(query): Query<SpanQuery>,
) -> Response {
    match build_repository(hud, path, query).await {
        Ok(model) => {
            let kind =
                [(header::CONTENT_TYPE, "image/svg+xml"), (header::CACHE_CONTROL, "max-age=300")];
            (kind, chart::badge(&model).into_string()).into_response()
        }
        Err(problem) => problem.json(),
    }
}

async fn feed(State(hud): State<Arc<Hud>>) -> Response {
    feed_response(hud, None).await
}

async fn backend_feed(
    State(hud): State<Arc<Hud>>,
    Path((owner, repo)): Path<(String, String)>,
) -> Response {
    match repo_name(&owner, &repo) {
        Ok(repo) => feed_response(hud, Some(repo)).await,
        Err(problem) => problem.json(),
    }
}

async fn feed_response(hud: Arc<Hud>, repo: Option<RepoName>) -> Response {
    let built = compute(hud, async move |hud| {
        model::feed::build(hud, repo.as_ref().map(RepoName::as_str)).await
    });
    match built.await {
        Ok(model) => {
            let kind = [
                (header::CONTENT_TYPE, "application/atom+xml"),
                (header::CACHE_CONTROL, "max-age=300"),
            ];
            (kind, pages::feed::feed(&model).into_string()).into_response()
        }
        Err(problem) => problem.json(),
    }
}

async fn build_level(
    hud: Arc<Hud>,
    (owner, repo): (String, String),
    query: SpanQuery,
) -> Result<model::level::LevelModel, PageError> {
    compute(hud, async move |hud| {
        let span = span(hud, &query)?;
        // Without a start, the criteria define how far back to look.
        let window = (query.has_start().then_some(span.from), span.to);
        let level = query.level().map_err(PageError::Query)?;
        model::level::build_page(hud, &repo_name(&owner, &repo)?, level, window).await
    })
    .await
}

async fn level(
    State(hud): State<Arc<Hud>>,
    Path(path): Path<(String, String)>,
    Query(query): Query<SpanQuery>,
) -> Response {
    html_response(build_level(hud, path, query).await, pages::level::page)
}

async fn level_json(
    State(hud): State<Arc<Hud>>,
    Path(path): Path<(String, String)>,
    Query(query): Query<SpanQuery>,
) -> Response {
    json_response(build_level(hud, path, query).await)
}

async fn repositories(State(hud): State<Arc<Hud>>) -> Response {
    let model = compute(hud, async move |hud| model::branch::repositories(hud).await).await;
    html_response(model, pages::branch::repositories)
}

async fn repositories_json(State(hud): State<Arc<Hud>>) -> Response {
    json_response(compute(hud, async move |hud| model::branch::repositories(hud).await).await)
}

async fn build_branches(
    hud: Arc<Hud>,
    (owner, repo): (String, String),
) -> Result<model::branch::BranchesModel, PageError> {
    compute(hud, async move |hud| model::branch::branches(hud, &repo_name(&owner, &repo)?).await)
        .await
}

async fn branches(State(hud): State<Arc<Hud>>, Path(path): Path<(String, String)>) -> Response {
    html_response(build_branches(hud, path).await, pages::branch::branches)
}

async fn branches_json(
    State(hud): State<Arc<Hud>>,
    Path(path): Path<(String, String)>,
) -> Response {
    json_response(build_branches(hud, path).await)
}

async fn build_branch(
    hud: Arc<Hud>,
    (owner, repo, branch): (String, String, String),
    query: Option<String>,
) -> Result<model::branch::BranchModel, PageError> {
    let query = query::BranchQuery::parse(&query.unwrap_or_default());
    compute(hud, async move |hud| {
        model::branch::build(hud, &repo_name(&owner, &repo)?, &branch, query).await
    })
    .await
}

async fn branch(
    State(hud): State<Arc<Hud>>,
    Path(path): Path<(String, String, String)>,
    RawQuery(query): RawQuery,
) -> Response {
    html_response(build_branch(hud, path, query).await, pages::branch::page)
}

async fn branch_json(
    State(hud): State<Arc<Hud>>,
    Path(path): Path<(String, String, String)>,
    RawQuery(query): RawQuery,
) -> Response {
    json_response(build_branch(hud, path, query).await)
}

#[derive(Deserialize)]
struct SearchQuery {
    #[serde(default)]
    q: String,
}

async fn search(State(hud): State<Arc<Hud>>, Query(query): Query<SearchQuery>) -> Response {
    let text: String = query.q.trim().chars().take(query::MAX_SEARCH_CHARS).collect();
    let found = compute(hud, async move |hud| model::search::find(hud, &text).await).await;
    match found {
        Ok(model::search::SearchResult::Page(path)) => Redirect::to(&path).into_response(),
        Ok(model::search::SearchResult::Hits { text, hits }) => {
            pages::search::page(&text, &hits).into_response()
        }
        Err(problem) => problem.page(),
    }
}

async fn level_status(State(hud): State<Arc<Hud>>) -> Response {
    json_response(compute(hud, async move |hud| model::level_status::build(hud).await).await)
}

async fn build_pull(
    hud: Arc<Hud>,
    number: u64,
    query: PullQuery,
) -> Result<model::pull::PullModel, PageError> {
    compute(hud, async move |hud| {
        let upstream = match &query.upstream {
            Some(text) => RepoName::new(text)
                .map_err(|_| PageError::Query("`upstream` has to be `owner/repo`".to_owned()))?,
            None => hud.upstream.clone(),
        };
        model::pull::build(hud, &upstream, number).await
    })
    .await
}

async fn pull(
    State(hud): State<Arc<Hud>>,
    Path(number): Path<u64>,
    Query(query): Query<PullQuery>,
) -> Response {
    html_response(build_pull(hud, number, query).await, pages::pull::page)
}

async fn pull_json(
    State(hud): State<Arc<Hud>>,
    Path(number): Path<u64>,
    Query(query): Query<PullQuery>,
) -> Response {
    json_response(build_pull(hud, number, query).await)
}

#[cfg(test)]
mod tests;
