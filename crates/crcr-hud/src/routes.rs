//! The address of every page and of its JSON twin.

use std::sync::Arc;

use axum::extract::path::ErrorKind;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Query, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use axum::{Json, Router};
use maud::Markup;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tower_http::set_header::SetResponseHeaderLayer;

use crate::context::{Hud, PageError, compute, repo_name};
use crate::pages::{
    branch, feed, level, level_status, logs, overview, problem, pull, repository, search, tests,
};
use crate::query::SpanQuery;
use crate::view::View;
use crate::{chart, layout};

/// The pages and their JSON twins.
pub fn router(hud: Arc<Hud>) -> Router {
    let pages = Routes::default()
        .page("/crcr", "/api/v1/overview", overview::build, overview::page)
        .page("/crcr/tests", "/api/v1/tests", tests::build, tests::page)
        .page("/crcr/logs", "/api/v1/logs", logs::build, logs::page)
        .page(
            "/crcr/logs/{owner}/{repo}/{job}",
            "/api/v1/logs/{owner}/{repo}/{job}",
            logs::build_job,
            logs::job_page,
        )
        .page(
            "/crcr/{owner}/{repo}",
            "/api/v1/repositories/{owner}/{repo}",
            repository::build,
            repository::page,
        )
        .page(
            "/crcr/{owner}/{repo}/level",
            "/api/v1/repositories/{owner}/{repo}/level",
            level::build,
            level::page,
        )
        .page("/hud", "/api/v1/hud", branch::repositories, branch::repositories_page)
        .page(
            "/hud/{owner}/{repo}",
            "/api/v1/hud/{owner}/{repo}",
            branch::branches,
            branch::branches_page,
        )
        .page(
            "/hud/{owner}/{repo}/{*branch}",
            "/api/v1/hud/{owner}/{repo}/{*branch}",
            branch::build,
            branch::page,
        )
        .page("/pr/{number}", "/api/v1/pulls/{number}", pull::build, pull::page)
        .json("/api/crcr/level-status", level_status::build);
    let others = Router::new()
        .route("/crcr/{owner}/{repo}/badge.svg", get(badge))
        .route("/crcr/feed.atom", get(all_backends_feed))
        .route("/crcr/{owner}/{repo}/feed.atom", get(backend_feed))
        .route("/search", get(search_page))
        .route("/crcr/assets/hud.css", get(|| async { asset("text/css", layout::STYLE) }))
        .route("/crcr/assets/icon.svg", get(|| async { asset("image/svg+xml", layout::ICON) }))
        .route("/crcr/assets/hud.js", get(|| async { asset("text/javascript", layout::SCRIPT) }));
    with_headers(pages.0.merge(others).with_state(hud))
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

#[derive(Default)]
struct Routes(Router<Arc<Hud>>);

/// A page asks for its model with the parameters of its address and of its query.
trait Build<P, Q, M>:
    AsyncFn(&Hud, P, Q) -> Result<M, PageError> + Copy + Send + Sync + 'static
{
}

impl<F, P, Q, M> Build<P, Q, M> for F where
    F: AsyncFn(&Hud, P, Q) -> Result<M, PageError> + Copy + Send + Sync + 'static
{
}

impl Routes {
    /// Registers a page, and its model as JSON.
    fn page<P, Q, M>(
        self,
        address: &str,
        twin: &str,
        build: impl Build<P, Q, M>,
        show: fn(&M, &View<'_>) -> Markup,
    ) -> Self
    where
        P: DeserializeOwned + Send + 'static,
        Q: DeserializeOwned + Send + 'static,
        M: Serialize + Send + 'static,
    {
        let html = async move |State(hud): State<Arc<Hud>>, asked: Parts, path| {
            let model = answer(&hud, &asked, path, build).await;
            let view = view_of(&hud, &asked);
            match model {
                Ok(model) => show(&model, &view).into_response(),
                Err(problem) => error_response(&problem, &view, &asked.headers),
            }
        };
        Self(self.0.route(address, get(html))).json(twin, build)
    }

    /// Registers JSON that no page shows.
    fn json<P, Q, M>(self, address: &str, build: impl Build<P, Q, M>) -> Self
    where
        P: DeserializeOwned + Send + 'static,
        Q: DeserializeOwned + Send + 'static,
        M: Serialize + Send + 'static,
    {
        let json = async move |State(hud): State<Arc<Hud>>, asked: Parts, path| match answer(
            &hud, &asked, path, build,
        )
        .await
        {
            Ok(model) => Json(model).into_response(),
            Err(problem) => error_json(&problem),
        };
        Self(self.0.route(address, get(json)))
    }
}

async fn answer<P, Q, M>(
    hud: &Arc<Hud>,
    asked: &Parts,
    path: Result<Path<P>, PathRejection>,
    build: impl Build<P, Q, M>,
) -> Result<M, PageError>
where
    P: Send + 'static,
    Q: DeserializeOwned + Send + 'static,
    M: Send + 'static,
{
    let Path(path) = path.map_err(|problem| wrong_address(&problem))?;
    let query = Query::<Q>::try_from_uri(&asked.uri);
    // The reason says which parameter, in the parser's words.
    let Query(query) = query.map_err(|problem| PageError::Query(problem.body_text()))?;
    compute(Arc::clone(hud), async move |hud| build(hud, path, query).await).await
}

/// Names the part of the address that can't be read.
fn wrong_address(problem: &PathRejection) -> PageError {
    let PathRejection::FailedToDeserializePathParams(problem) = problem else {
        return PageError::Query("the address can't be read".to_owned());
    };
    match problem.kind() {
        ErrorKind::ParseErrorAtKey { value, .. }
        | ErrorKind::ParseErrorAtIndex { value, .. }
        | ErrorKind::ParseError { value, .. }
        | ErrorKind::DeserializeError { value, .. } => {
            let value: String = value.chars().take(100).collect();
            PageError::Query(format!("`{value}` in the address has to be a whole number"))
        }
        ErrorKind::InvalidUtf8InPathParam { .. } => {
            PageError::Query("the address isn't UTF-8".to_owned())
        }
        _ => PageError::Query("the address can't be read".to_owned()),
    }
}

fn view_of<'a>(hud: &'a Hud, asked: &'a Parts) -> View<'a> {
    View { github_url: &hud.github_url, path: asked.uri.path(), is_operator: false }
}

fn error_parts(problem: &PageError) -> (StatusCode, &str) {
    match problem {
        PageError::NotFound(text) => (StatusCode::NOT_FOUND, text),
        PageError::Query(text) => (StatusCode::BAD_REQUEST, text),
        PageError::Store(text) => (StatusCode::SERVICE_UNAVAILABLE, text),
        PageError::Busy => (
            StatusCode::SERVICE_UNAVAILABLE,
            "too many pages are being computed; try again in some seconds",
        ),
    }
}

fn error_response(error: &PageError, view: &View<'_>, headers: &HeaderMap) -> Response {
    if wants_json(headers) {
        return error_json(error);
    }
    let (status, text) = error_parts(error);
    with_retry_after(error, (status, problem(view, status.as_u16(), text)).into_response())
}

fn error_json(error: &PageError) -> Response {
    let (status, text) = error_parts(error);
    let body = Json(serde_json::json!({ "detail": text }));
    with_retry_after(error, (status, body).into_response())
}

fn with_retry_after(error: &PageError, mut answer: Response) -> Response {
    if matches!(error, PageError::Busy) {
        answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
    }
    answer
}

/// Whether a client asks for JSON and not for a page.
fn wants_json(headers: &HeaderMap) -> bool {
    let accepted = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    accepted.is_some_and(|accept| accept.contains("application/json") && !accept.contains("html"))
}

fn asset(kind: &'static str, text: &'static str) -> Response {
    ([(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "max-age=300")], text).into_response()
}

async fn badge(
    State(hud): State<Arc<Hud>>,
    Path(path): Path<(String, String)>,
    Query(query): Query<SpanQuery>,
) -> Response {
    match compute(hud, async move |hud| repository::build(hud, path, query).await).await {
        Ok(model) => {
            let kind =
                [(header::CONTENT_TYPE, "image/svg+xml"), (header::CACHE_CONTROL, "max-age=300")];
            (kind, chart::badge(&model).into_string()).into_response()
        }
        Err(problem) => error_json(&problem),
    }
}

async fn all_backends_feed(State(hud): State<Arc<Hud>>) -> Response {
    feed_response(hud, None).await
}

async fn backend_feed(State(hud): State<Arc<Hud>>, Path(path): Path<(String, String)>) -> Response {
    feed_response(hud, Some(path)).await
}

async fn feed_response(hud: Arc<Hud>, of: Option<(String, String)>) -> Response {
    let built = compute(hud, async move |hud| {
        let repo = of.map(|(owner, repo)| repo_name(&owner, &repo)).transpose()?;
        feed::build(hud, repo.as_ref()).await
    });
    match built.await {
        Ok(model) => {
            let kind = [
                (header::CONTENT_TYPE, "application/atom+xml"),
                (header::CACHE_CONTROL, "max-age=300"),
            ];
            (kind, feed::feed(&model).into_string()).into_response()
        }
        Err(problem) => error_json(&problem),
    }
}

async fn search_page(State(hud): State<Arc<Hud>>, asked: Parts) -> Response {
    let query = Query::<search::SearchQuery>::try_from_uri(&asked.uri);
    let text = query.map(|Query(query)| query.text()).unwrap_or_default();
    let found = compute(Arc::clone(&hud), async move |hud| search::find(hud, &text).await).await;
    let view = view_of(&hud, &asked);
    match found {
        Ok(search::SearchResult::Page(path)) => Redirect::to(&path).into_response(),
        Ok(search::SearchResult::Hits { text, hits }) => {
            search::page(&text, &hits, &view).into_response()
        }
        Err(problem) => error_response(&problem, &view, &asked.headers),
    }
}
