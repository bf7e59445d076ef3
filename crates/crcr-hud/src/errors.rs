//! Errors, as pages for people and as JSON for programs.

use std::sync::Arc;

use axum::Json;
use axum::body::to_bytes;
use axum::extract::path::ErrorKind;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use crcr_domain::RepoName;
use maud::{Markup, html};
use percent_encoding::percent_decode_str;
use serde::Deserialize;

use crate::address::address;
use crate::context::{Hud, PageError};
use crate::layout::PAGES;
use crate::pages::commit::is_prefix;
use crate::query::MAX_SEARCH_CHARS;
use crate::security_headers::set_security_headers;
use crate::view::View;

/// Addresses that a wrong one is told about.
const MAX_NEAR: usize = 5;
/// How alike two addresses have to be, from 0 to 1.
const LEAST_LIKENESS: f64 = 0.85;
/// A longer message isn't shown.
const MAX_MESSAGE_BYTES: usize = 64 * 1024;

const NO_PAGE: &str = "there is no page at this address";

/// The status, the text, and the seconds after which to come back.
fn parts(problem: &PageError) -> (StatusCode, &str, Option<u16>) {
    match problem {
        PageError::NotFound(text) => (StatusCode::NOT_FOUND, text, None),
        PageError::Query(text) => (StatusCode::BAD_REQUEST, text, None),
        PageError::Store(reason) => {
            // It names servers, folders and tables, and anybody reads the pages.
            tracing::error!(reason, "a page can't be computed");
            (StatusCode::SERVICE_UNAVAILABLE, "the results can't be read now", Some(60))
        }
        PageError::Busy => (
            StatusCode::SERVICE_UNAVAILABLE,
            "too many pages are being computed; try again in 5 seconds",
            Some(5),
        ),
    }
}

pub(crate) fn error_response(problem: &PageError, hud: &Hud, asked: &Parts) -> Response {
    if wants(&asked.headers, "application/json") && !wants(&asked.headers, "text/html") {
        return error_json(problem);
    }
    let (status, text, wait) = parts(problem);
    let links = match (status, asked.uri.query()) {
        (StatusCode::NOT_FOUND, _) => {
            let path = asked.uri.path();
            let lists = lists(path);
            let links = if lists.is_empty() { near(hud, path) } else { lists };
            links.into_iter().chain(on_github(hud, asked)).collect()
        }
        // The page of a test needs the test's name.
        (StatusCode::BAD_REQUEST, _) if asked.uri.path().starts_with("/test/") => {
            let repository = asked.uri.path().trim_start_matches("/test/");
            let tests = address("/tests", [("repo", Some(repository))]);
            vec![(tests, "The tests of this repository".to_owned())]
        }
        // Without its parameters the page is as narrow as people mostly want it.
        (_, Some(query)) if !query.is_empty() => {
            vec![(asked.uri.path().to_owned(), "This page with its usual filters".to_owned())]
        }
        _ => vec![],
    };
    let page = page(&View::of(hud, asked), status.as_u16(), text, &links);
    with_retry_after(wait, (status, page).into_response())
}

pub(crate) fn error_json(problem: &PageError) -> Response {
    let (status, text, wait) = parts(problem);
    let body = Json(serde_json::json!({ "detail": text }));
    with_retry_after(wait, (status, body).into_response())
}

/// Names the part of the address that can't be read.
pub(crate) fn wrong_address(problem: &PathRejection) -> PageError {
    let PathRejection::FailedToDeserializePathParams(problem) = problem else {
        return PageError::Query("the address can't be read".to_owned());
    };
    match problem.kind() {
        ErrorKind::ParseErrorAtKey { value, .. }
        | ErrorKind::ParseErrorAtIndex { value, .. }
        | ErrorKind::ParseError { value, .. }
        | ErrorKind::DeserializeError { value, .. } => {
            let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
            let value: String = value.chars().take(100).collect();
            let wrong = if is_number { "is too large" } else { "has to be a whole number" };
            PageError::Query(format!("`{value}` in the address {wrong}"))
        }
        ErrorKind::InvalidUtf8InPathParam { .. } => {
            PageError::Query("the address isn't UTF-8".to_owned())
        }
        _ => PageError::Query("the address can't be read".to_owned()),
    }
}

/// Says which parameter can't be read, in the parser's words.
pub(crate) fn wrong_query(problem: &QueryRejection) -> PageError {
    let text = problem.body_text();
    let reason = text.strip_prefix("Failed to deserialize query string: ").unwrap_or(&text);
    PageError::Query(reason.to_owned())
}

fn with_retry_after(wait: Option<u16>, mut answer: Response) -> Response {
    if let Some(seconds) = wait {
        answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    answer
}

fn wants(headers: &HeaderMap, kind: &str) -> bool {
    let accepted = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    accepted.is_some_and(|accept| accept.contains(kind))
}

#[derive(Deserialize)]
struct JsonError {
    detail: String,
}

/// Middleware: a browser gets a page for an error that a part of the relay tells as JSON, such as that of
/// an unknown address.
pub async fn errors_as_pages(
    State(hud): State<Arc<Hud>>,
    request: Request,
    next: Next,
) -> Response {
    let (asked, body) = request.into_parts();
    let is_read = [Method::GET, Method::HEAD].contains(&asked.method);
    let for_people = is_read && wants(&asked.headers, "text/html");
    let path = asked.uri.path();
    // `/hud/` is `/hud`; no page's address ends with a slash.
    let trimmed = path.trim_end_matches('/');
    let is_of_this_host = !path.contains("//") && !path.contains('\\');
    if for_people && !trimmed.is_empty() && trimmed != path && is_of_this_host {
        let query = asked.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
        return axum::response::Redirect::permanent(&format!("{trimmed}{query}")).into_response();
    }
    let asked_again = asked.clone();
    let mut answer = next.run(Request::from_parts(asked, body)).await;
    if answer.status().is_client_error() || answer.status().is_server_error() {
        // What isn't there now may be in a second, and a page isn't JSON.
        let cache = answer.headers_mut().entry(header::CACHE_CONTROL);
        cache.or_insert(HeaderValue::from_static("no-store"));
    }
    let kind = answer.headers().get(header::CONTENT_TYPE);
    let is_json = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
    let status = answer.status();
    if !for_people || !is_json || !(status.is_client_error() || status.is_server_error()) {
        return answer;
    }
    let (mut head, body) = answer.into_parts();
    let text = match to_bytes(body, MAX_MESSAGE_BYTES).await {
        Ok(text) => text,
        Err(_) => return status.into_response(),
    };
    let Ok(JsonError { detail }) = serde_json::from_slice(&text) else {
        return (head, text).into_response();
    };
    let is_unknown = status == StatusCode::NOT_FOUND;
    let mut links = if is_unknown { near(&hud, asked_again.uri.path()) } else { vec![] };
    let is_no_page = is_unknown && detail == "Not found";
    if is_no_page {
        links.extend(searched(asked_again.uri.path()));
    }
    let text = if is_no_page { NO_PAGE } else { detail.as_str() };
    let page = page(&View::of(&hud, &asked_again), status.as_u16(), text, &links);
    for name in [header::CONTENT_TYPE, header::CONTENT_LENGTH] {
        head.headers.remove(name);
    }
    let mut answer = (status, page).into_response();
    set_security_headers(answer.headers_mut());
    for (name, value) in head.headers {
        if let Some(name) = name {
            answer.headers_mut().insert(name, value);
        }
    }
    answer
}

/// The search for what an address ends with, such as the number in `/pull/7` or the SHA in `/commits/1a2b3c4`.
fn searched(path: &str) -> Option<(String, String)> {
    let last = path.rsplit('/').next().filter(|last| !last.is_empty())?;
    let last = percent_decode_str(last).decode_utf8_lossy();
    let last: String = last.chars().take(MAX_SEARCH_CHARS).collect();
    Some((address("/search", [("q", Some(&*last))]), format!("Search for {last}")))
}

/// Where GitHub shows a commit or a pull request of which nothing is known here.
fn on_github(hud: &Hud, asked: &Parts) -> Option<(String, String)> {
    let query = asked.uri.query().unwrap_or_default();
    let mut query = url::form_urlencoded::parse(query.as_bytes());
    let named = query.find(|(name, _)| name == "upstream").map(|(_, value)| value.into_owned());
    let (upstream, view) = (hud.upstream_of(named.as_deref()).ok()?, View::of(hud, asked));
    match asked.uri.path().rsplit_once('/')? {
        ("/commit", sha) if is_prefix(sha) => {
            Some((view.commit_url(upstream.as_str(), sha), "This commit on GitHub".to_owned()))
        }
        ("/pr", number) => {
            let url = view.pull_url(upstream.as_str(), number.parse().ok()?);
            Some((url, "This pull request on GitHub".to_owned()))
        }
        _ => None,
    }
}

/// Lists of a repository's jobs, tests or branches, for a page about one that isn't known.
fn lists(path: &str) -> Vec<(String, String)> {
    let parts: Vec<&str> = path.trim_start_matches('/').splitn(4, '/').collect();
    let [kind, owner, repo, rest @ ..] = parts.as_slice() else { return vec![] };
    let Ok(repo) = RepoName::new(&format!("{owner}/{repo}")) else { return vec![] };
    let list = |path: &str| address(path, [("repo", Some(repo.as_str()))]);
    let branches = (format!("/hud/{repo}"), format!("Branches of {repo}"));
    let repositories = ("/hud".to_owned(), "All repositories".to_owned());
    match *kind {
        "failure" => vec![(list("/failures"), format!("Failed jobs of {repo}")), branches],
        "test" => vec![(list("/tests"), format!("Tests of {repo}"))],
        // Whether the repository is known isn't looked up.
        "hud" if !rest.is_empty() => vec![branches, repositories],
        "hud" => vec![repositories],
        _ => vec![],
    }
}

/// Pages whose address is like this one, the likest first.
fn near(hud: &Hud, path: &str) -> Vec<(String, String)> {
    let policy = (hud.policy)();
    let backends = policy.iter().flat_map(|policy| policy.iter());
    let mut known: Vec<(String, String)> = backends
        .map(|entry| (format!("/crcr/{}", entry.repo), entry.repo.as_str().to_owned()))
        .collect();
    known.extend(PAGES.map(|(address, name)| (address.to_owned(), name.to_owned())));
    let path: String = path.chars().take(200).collect::<String>().to_lowercase();
    let name = path.rsplit('/').next().unwrap_or_default().to_owned();
    let mut like: Vec<(f64, (String, String))> = known
        .into_iter()
        .map(|page| {
            let address = page.0.to_lowercase();
            let last = address.rsplit('/').next().unwrap_or_default();
            let likeness = if last.is_empty() || name.is_empty() {
                0.0
            } else {
                strsim::jaro_winkler(&address, &path).max(strsim::jaro_winkler(last, &name))
            };
            (likeness, page)
        })
        .filter(|(likeness, _)| *likeness >= LEAST_LIKENESS)
        .collect();
    like.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    like.into_iter().take(MAX_NEAR).map(|(_, page)| page).collect()
}

/// The page of an error. `links` are addresses that may be meant or cost less, with their names.
pub fn page(view: &View<'_>, status: u16, text: &str, links: &[(String, String)]) -> Markup {
    let title = match status {
        404 => "Not found",
        400 => "Wrong address",
        401 | 403 => "Not allowed",
        405 => "Not a page",
        429 => "Too many requests",
        503 => "Not available now",
        _ => "An error of the relay",
    };
    view.shell(
        title,
        false,
        &html! {
            h1 { (title) }
            p { bdi { (text) } }
            @if !links.is_empty() {
                // GitHub knows whether it exists; other pages here would be a guess.
                @let is_near = links[0].0.starts_with('/') && !links[0].0.starts_with("/search?");
                @if status == 404 && is_near { p { "Is it one of these?" } }
                ul.plain { @for (address, name) in links { li { a href=(address) { bdi { (name) } } } } }
            }
            @if status >= 500 { p { "No result is lost: reports get a 503 meanwhile and are sent again. Reload this page in a minute." } }
            p { a href="/" { "What is going on now" } " · " a href="/crcr" { "All backends" } }
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn why_the_store_cannot_be_read_is_not_for_the_public() {
        let problem = PageError::Store(
            "the results can't be used: ClickHouse at https://ch.corp.internal:8443/: 500"
                .to_owned(),
        );
        let answer = error_json(&problem);
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(answer.headers()[header::RETRY_AFTER], "60");
        let body = to_bytes(answer.into_body(), MAX_MESSAGE_BYTES).await.unwrap();
        assert_eq!(body, r#"{"detail":"the results can't be read now"}"#);
    }
}
