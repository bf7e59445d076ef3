//! The address of every page and of its JSON twin.

use std::sync::{Arc, LazyLock};
use std::time::Instant;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Query, State};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Uri, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{MethodRouter, get};
use axum::{Json, Router};
use maud::Markup;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tower_http::set_header::SetResponseHeaderLayer;

use crate::context::{Hud, PageError, compute};
use crate::errors::{error_json, error_response, wrong_address, wrong_query};
use crate::openapi::{self, Operation, schemas_of};
use crate::pages::log_text::send_log;
use crate::pages::{
    branch, branches, commit, failure, failures, feed, jobs, level, level_status, now, overview,
    pull, pulls, quarantine, relay, reported, repository, search, test, tests, trends,
};
use crate::query::NoQuery;
use crate::security_headers::SECURITY_HEADERS;
use crate::transfer::{ROBOTS, with_transfer};
use crate::view::View;
use crate::{badge, layout};

/// The pages and their JSON twins.
pub fn router(hud: Arc<Hud>) -> Router {
    let pages = PageRoutes::default()
        .page("/", "/api/v1/now", now::build, now::page)
        .page("/prs", "/api/v1/pulls", pulls::build, pulls::page)
        .page("/crcr", "/api/v1/overview", overview::build, overview::page)
        .page("/tests", "/api/v1/tests", tests::build, tests::page)
        .page("/test/{owner}/{repo}", "/api/v1/test/{owner}/{repo}", test::build, test::page)
        .page("/quarantine", "/api/v1/quarantine", quarantine::build, quarantine::page)
        .page("/failures", "/api/v1/failures", failures::build, failures::page)
        .page(
            "/failure/{owner}/{repo}/{job}",
            "/api/v1/failure/{owner}/{repo}/{job}",
            failure::build,
            failure::page,
        )
        .page(
            "/panel/{owner}/{repo}/{job}",
            "/api/v1/job/{owner}/{repo}/{job}",
            failure::build_panel,
            failure::panel_fragment,
        )
        .page("/trends", "/api/v1/trends", trends::build, trends::page)
        .page("/jobs", "/api/v1/jobs", jobs::build, jobs::page)
        .page("/relay", "/api/v1/relay", relay::build, relay::page)
        .page("/reported", "/api/v1/reported", reported::build, reported::page)
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
        .page("/hud", "/api/v1/hud", branches::repositories, branches::repositories_page)
        .page(
            "/hud/{owner}/{repo}",
            "/api/v1/hud/{owner}/{repo}",
            branches::branches,
            branches::branches_page,
        )
        .page(
            "/hud/{owner}/{repo}/{*branch}",
            "/api/v1/hud/{owner}/{repo}/{*branch}",
            branch::build,
            branch::page,
        )
        .page("/commit/{sha}", "/api/v1/commits/{sha}", commit::build, commit::page)
        .page("/pr/{number}", "/api/v1/pulls/{number}", pull::build, pull::page)
        .json("/api/v1/search", search::build)
        .json("/api/crcr/level-status", level_status::build);
    let operations = pages.operations.clone();
    let document = Arc::new(LazyLock::new(move || openapi::document(&operations)));
    let others = Router::new()
        .route("/api/v1/openapi.json", get(async move || Json((**document).clone())))
        .route("/failure/{owner}/{repo}/{job}/log.txt", get(send_log))
        .route("/crcr/{owner}/{repo}/badge.svg", get(badge))
        .route("/crcr/feed.atom", get(all_backends_feed))
        .route("/crcr/{owner}/{repo}/feed.atom", named_feed(feed::build_backend))
        .route("/feeds/{owner}/{repo}/{*branch}", named_feed(feed::build_branch))
        .route("/test/{owner}/{repo}/feed.atom", named_feed(feed::build_test))
        .route("/search", get(search_page))
        .route("/robots.txt", get(|| async { asset("text/plain", ROBOTS) }))
        .route("/crcr/assets/hud.css", get(|| async { asset("text/css", layout::STYLE) }))
        .route("/crcr/assets/icon.svg", get(|| async { asset("image/svg+xml", layout::ICON) }))
        .route("/crcr/assets/hud.js", get(|| async { asset("text/javascript", layout::SCRIPT) }));
    let moved = MOVED.iter().fold(Router::new(), |router, old| router.route(old, get(moved)));
    with_headers(with_transfer(pages.router.merge(others).merge(moved))).with_state(hud)
}

/// Adds the headers of every page: it may load nothing from other hosts, and no other site may frame
/// it. The referrer is sent to this site only; without it browsers send forms with `Origin: null`.
pub fn with_headers<S: Clone + Send + Sync + 'static>(router: Router<S>) -> Router<S> {
    let set =
        |(name, value)| SetResponseHeaderLayer::overriding(name, HeaderValue::from_static(value));
    let [policy, kind, referrer] = SECURITY_HEADERS;
    router.layer(set(policy)).layer(set(kind)).layer(set(referrer))
}

/// Reads what the first page needs, so that nobody waits for it after the start of the relay.
pub async fn warm(hud: Arc<Hud>) {
    let begun_at = Instant::now();
    match compute(hud, async |hud| now::build(hud, (), NoQuery {}).await).await {
        Ok(_) => tracing::debug!(took = ?begun_at.elapsed(), "the first page was read"),
        Err(problem) => tracing::debug!(?problem, "the first page can't be read yet"),
    }
}

#[derive(Default)]
struct PageRoutes {
    router: Router<Arc<Hud>>,
    /// For the OpenAPI document.
    operations: Vec<Operation>,
}

/// A page asks for its model with the parameters of its address and of its query.
trait Build<P, Q, M>:
    AsyncFn(&Hud, P, Q) -> Result<M, PageError> + Copy + Send + Sync + 'static
{
}

impl<F, P, Q, M> Build<P, Q, M> for F where
    F: AsyncFn(&Hud, P, Q) -> Result<M, PageError> + Copy + Send + Sync + 'static
{
}

impl PageRoutes {
    /// Registers a page, and its model as JSON.
    fn page<P, Q, M>(
        self,
        address: &'static str,
        twin: &'static str,
        build: impl Build<P, Q, M>,
        show: fn(&M, &View<'_>) -> Markup,
    ) -> Self
    where
        P: DeserializeOwned + Send + 'static,
        Q: DeserializeOwned + JsonSchema + Send + 'static,
        M: Serialize + JsonSchema + Send + 'static,
    {
        let html = async move |State(hud): State<Arc<Hud>>, asked: Parts, path| {
            let model = answer(&hud, &asked, path, build).await;
            let view = View::of(&hud, &asked);
            match model {
                Ok(model) => show(&model, &view).into_response(),
                Err(problem) => error_response(&problem, &hud, &asked),
            }
        };
        let with_page = Self { router: self.router.route(address, get(html)), ..self };
        with_page.twin(Some(address), twin, build)
    }

    /// Registers JSON that no page shows.
    fn json<P, Q, M>(self, address: &'static str, build: impl Build<P, Q, M>) -> Self
    where
        P: DeserializeOwned + Send + 'static,
        Q: DeserializeOwned + JsonSchema + Send + 'static,
        M: Serialize + JsonSchema + Send + 'static,
    {
        self.twin(None, address, build)
    }

    fn twin<P, Q, M>(
        mut self,
        page: Option<&'static str>,
        address: &'static str,
        build: impl Build<P, Q, M>,
    ) -> Self
    where
        P: DeserializeOwned + Send + 'static,
        Q: DeserializeOwned + JsonSchema + Send + 'static,
        M: Serialize + JsonSchema + Send + 'static,
    {
        let json = async move |State(hud): State<Arc<Hud>>, asked: Parts, path| match answer(
            &hud, &asked, path, build,
        )
        .await
        {
            Ok(model) => Json(model).into_response(),
            Err(problem) => error_json(&problem),
        };
        self.operations.push(Operation { page, address, schemas: schemas_of::<Q, M> });
        Self { router: self.router.route(address, get(json)), ..self }
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
    let Query(query) = query.map_err(|problem| wrong_query(&problem))?;
    compute(Arc::clone(hud), async move |hud| build(hud, path, query).await).await
}

fn asset(kind: &'static str, text: &'static str) -> Response {
    ([(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "max-age=300")], text).into_response()
}

/// Addresses of before, which people have written down.
const MOVED: [&str; 5] = [
    "/crcr/tests",
    "/crcr/logs",
    "/crcr/logs/{owner}/{repo}/{job}",
    "/api/v1/logs",
    "/api/v1/logs/{owner}/{repo}/{job}",
];

/// Leads on; the query stays as it is.
async fn moved(uri: Uri) -> Redirect {
    const NAMES: [(&str, &str); 5] = [
        ("/crcr/tests", "/tests"),
        ("/crcr/logs/", "/failure/"),
        ("/crcr/logs", "/failures"),
        ("/api/v1/logs/", "/api/v1/failure/"),
        ("/api/v1/logs", "/api/v1/failures"),
    ];
    let address = uri.path_and_query().map_or_else(|| uri.path(), |address| address.as_str());
    let new =
        NAMES.iter().find_map(|(old, new)| Some(format!("{new}{}", address.strip_prefix(old)?)));
    Redirect::permanent(&new.unwrap_or_else(|| "/crcr".to_owned()))
}

async fn badge(
    State(hud): State<Arc<Hud>>,
    asked: Parts,
    path: Result<Path<(String, String)>, PathRejection>,
) -> Response {
    match answer(&hud, &asked, path, repository::build).await {
        Ok(model) => {
            let kind =
                [(header::CONTENT_TYPE, "image/svg+xml"), (header::CACHE_CONTROL, "max-age=300")];
            (kind, badge::svg(&model).into_string()).into_response()
        }
        Err(problem) => error_json(&problem),
    }
}

async fn all_backends_feed(State(hud): State<Arc<Hud>>) -> Response {
    feed_response(compute(hud, async |hud| feed::build(hud, None).await).await)
}

/// Registers a feed that an address names.
fn named_feed<P, Q>(build: impl Build<P, Q, feed::FeedModel>) -> MethodRouter<Arc<Hud>>
where
    P: DeserializeOwned + Send + 'static,
    Q: DeserializeOwned + Send + 'static,
{
    let feed = async move |State(hud): State<Arc<Hud>>, asked: Parts, path| {
        feed_response(answer(&hud, &asked, path, build).await)
    };
    get(feed)
}

fn feed_response(built: Result<feed::FeedModel, PageError>) -> Response {
    match built {
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
    let found = answer(&hud, &asked, Ok(Path(())), search::find).await;
    let view = View::of(&hud, &asked);
    match found {
        Ok(search::SearchResult::Page(path)) => Redirect::to(&path).into_response(),
        Ok(search::SearchResult::Hits { text, hits }) => {
            search::page(&text, &hits, &view).into_response()
        }
        Err(problem) => error_response(&problem, &hud, &asked),
    }
}
