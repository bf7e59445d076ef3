//! The HUD: what every backend's CI is worth, as server-rendered pages with JSON twins.
//!
//! A page is a query ([`query`]), a model computed from facts ([`model`]) and its markup
//! ([`pages`]); the JSON twin under `/api/v1` is the same model. Pages read without JavaScript and
//! ask no other host for anything.

mod chart;
pub mod layout;
pub mod message;
mod model;
pub mod pages;
mod query;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use crcr_domain::results::Criteria;
use crcr_domain::{Allowlist, RepoName};
use crcr_results::{Results, ResultsError};
use jiff::Timestamp;
use maud::Markup;
use serde::Serialize;
use tokio::sync::Semaphore;
use tower_http::set_header::SetResponseHeaderLayer;

use self::model::days::Days;
use self::query::{PullQuery, Span, SpanQuery};

/// HUD pages that are computed at a time; the next ones wait.
const PAGES: usize = 8;
/// How long a page waits for that.
const PAGE_WAIT: Duration = Duration::from_secs(5);

/// Gives the allowlist in force, if there is one.
pub type PolicyInForce = Box<dyn Fn() -> Option<Arc<Allowlist>> + Send + Sync>;

/// What the pages are made of.
pub struct Hud {
    pub results: Arc<dyn Results>,
    pub policy: PolicyInForce,
    pub clock: Box<dyn Fn() -> Timestamp + Send + Sync>,
    /// The upstream repository, whose pull requests need no `?upstream=`.
    pub upstream: RepoName,
    /// What a level asks for.
    pub criteria: Criteria,
    days: Days,
    /// Pages that may be computed now.
    places: Arc<Semaphore>,
}

impl Hud {
    /// The pages of these facts.
    pub fn new(
        results: Arc<dyn Results>,
        policy: PolicyInForce,
        clock: Box<dyn Fn() -> Timestamp + Send + Sync>,
        upstream: RepoName,
    ) -> Self {
        let criteria = Criteria::default();
        let places = Arc::new(Semaphore::new(PAGES));
        Self { results, policy, clock, upstream, criteria, days: Days::default(), places }
    }
}

/// The pages and their twins.
pub fn router(hud: Arc<Hud>) -> Router {
    with_headers(
        Router::new()
            .route("/crcr", get(overview))
            .route("/api/v1/overview", get(overview_json))
            .route("/crcr/{owner}/{repo}", get(repository))
            .route("/api/v1/repositories/{owner}/{repo}", get(repository_json))
            .route("/crcr/{owner}/{repo}/level", get(level))
            .route("/api/v1/repositories/{owner}/{repo}/level", get(level_json))
            .route("/crcr/{owner}/{repo}/badge.svg", get(badge))
            .route("/crcr/feed.atom", get(feed))
            .route("/crcr/{owner}/{repo}/feed.atom", get(feed_of_one))
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

/// The headers of every page: it asks no other host for anything, and no other site frames it.
/// The referrer stays on this site, where a form's `Origin` is made of it.
pub fn with_headers<S: Clone + Send + Sync + 'static>(router: Router<S>) -> Router<S> {
    // Inline style attributes are used by no page; the one script and style sheet are our own.
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

/// Why there is no page.
enum Problem {
    /// What the address names doesn't exist.
    NotFound(String),
    Query(String),
    Store(String),
    /// Too many pages are being computed.
    Busy,
}

impl From<ResultsError> for Problem {
    fn from(error: ResultsError) -> Self {
        Self::Store(error.to_string())
    }
}

impl Problem {
    fn parts(&self) -> (StatusCode, &str) {
        match self {
            Self::NotFound(text) => (StatusCode::NOT_FOUND, text),
            Self::Query(text) => (StatusCode::BAD_REQUEST, text),
            Self::Store(text) => (StatusCode::SERVICE_UNAVAILABLE, text),
            Self::Busy => {
                (StatusCode::SERVICE_UNAVAILABLE, "too many pages are asked for; try again soon")
            }
        }
    }

    fn page(&self) -> Response {
        let (status, text) = self.parts();
        self.with_pause((status, pages::problem(status.as_u16(), text)).into_response())
    }

    fn json(&self) -> Response {
        let (status, text) = self.parts();
        self.with_pause((status, Json(serde_json::json!({ "detail": text }))).into_response())
    }

    fn with_pause(&self, mut answer: Response) -> Response {
        if matches!(self, Self::Busy) {
            answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
        }
        answer
    }
}

fn as_page<T>(model: Result<T, Problem>, page: impl Fn(&T) -> Markup) -> Response {
    match model {
        Ok(model) => page(&model).into_response(),
        Err(problem) => problem.page(),
    }
}

fn as_json<T: Serialize>(model: Result<T, Problem>) -> Response {
    match model {
        Ok(model) => Json(model).into_response(),
        Err(problem) => problem.json(),
    }
}

/// Computes a model off the threads that serve requests: reading waits, and computing takes long.
///
/// Only [`PAGES`] at a time: each one holds a thread of the pool that files, names of hosts
/// and its own reads need too, and a pool whose threads all wait for another one of it stands still.
async fn compute<T: Send + 'static>(
    hud: Arc<Hud>,
    build: impl AsyncFnOnce(&Hud) -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    let place = Arc::clone(&hud.places).acquire_owned();
    let Ok(Ok(place)) = tokio::time::timeout(PAGE_WAIT, place).await else {
        return Err(Problem::Busy);
    };
    let runtime = tokio::runtime::Handle::current();
    let computed = tokio::task::spawn_blocking(move || {
        // Held to the end, also when nobody waits for the page any more.
        let _place = place;
        runtime.block_on(build(&hud))
    });
    computed.await.unwrap_or_else(|error| Err(Problem::Store(error.to_string())))
}

fn span(hud: &Hud, query: &SpanQuery) -> Result<Span, Problem> {
    Span::of(query, (hud.clock)()).map_err(Problem::Query)
}

fn repo_name(owner: &str, repo: &str) -> Result<RepoName, Problem> {
    RepoName::new(&format!("{owner}/{repo}"))
        .map_err(|_| Problem::NotFound("there is no repository of this name".to_owned()))
}

async fn build_overview(
    hud: Arc<Hud>,
    query: SpanQuery,
) -> Result<model::overview::Overview, Problem> {
    compute(hud, async move |hud| model::overview::build(hud, &span(hud, &query)?).await).await
}

async fn overview(State(hud): State<Arc<Hud>>, Query(query): Query<SpanQuery>) -> Response {
    as_page(build_overview(hud, query).await, pages::overview::page)
}

async fn overview_json(State(hud): State<Arc<Hud>>, Query(query): Query<SpanQuery>) -> Response {
    as_json(build_overview(hud, query).await)
}

async fn build_repository(
    hud: Arc<Hud>,
    (owner, repo): (String, String),
    query: SpanQuery,
) -> Result<model::repository::Repository, Problem> {
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
    as_page(build_repository(hud, path, query).await, pages::repository::page)
}

async fn repository_json(
    State(hud): State<Arc<Hud>>,
    Path(path): Path<(String, String)>,
    Query(query): Query<SpanQuery>,
) -> Response {
    as_json(build_repository(hud, path, query).await)
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
    as_feed(hud, None).await
}

async fn feed_of_one(
    State(hud): State<Arc<Hud>>,
    Path((owner, repo)): Path<(String, String)>,
) -> Response {
    match repo_name(&owner, &repo) {
        Ok(repo) => as_feed(hud, Some(repo)).await,
        Err(problem) => problem.json(),
    }
}

async fn as_feed(hud: Arc<Hud>, repo: Option<RepoName>) -> Response {
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
) -> Result<model::level::LevelReview, Problem> {
    compute(hud, async move |hud| {
        let span = span(hud, &query)?;
        // Without a start, the criteria say how far back to look.
        let window = (query.has_start().then_some(span.from), span.to);
        let level = query.level().map_err(Problem::Query)?;
        model::level::build(hud, &repo_name(&owner, &repo)?, level, window).await
    })
    .await
}

async fn level(
    State(hud): State<Arc<Hud>>,
    Path(path): Path<(String, String)>,
    Query(query): Query<SpanQuery>,
) -> Response {
    as_page(build_level(hud, path, query).await, pages::level::page)
}

async fn level_json(
    State(hud): State<Arc<Hud>>,
    Path(path): Path<(String, String)>,
    Query(query): Query<SpanQuery>,
) -> Response {
    as_json(build_level(hud, path, query).await)
}

async fn build_pull(
    hud: Arc<Hud>,
    number: u64,
    query: PullQuery,
) -> Result<model::pull::Pull, Problem> {
    compute(hud, async move |hud| {
        let upstream = match &query.upstream {
            Some(text) => RepoName::new(text)
                .map_err(|_| Problem::Query("`upstream` has to be `owner/repo`".to_owned()))?,
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
    as_page(build_pull(hud, number, query).await, pages::pull::page)
}

async fn pull_json(
    State(hud): State<Arc<Hud>>,
    Path(number): Path<u64>,
    Query(query): Query<PullQuery>,
) -> Response {
    as_json(build_pull(hud, number, query).await)
}

#[cfg(test)]
mod tests;
