//! The one client of GitHub's REST API, on [`octocrab`].
//!
//! octocrab carries each call: the base address, the token, the connections of our own
//! [`reqwest::Client`] (its proxy, TLS roots and time-outs). These are done here, because octocrab
//! would lose something:
//!
//! - Bodies are read up to a limit. octocrab's typed methods and pages read whatever comes.
//! - Errors keep `Location`, `Retry-After` and the rate limit's headers ([`GithubError`]).
//!   octocrab's keep the text only.
//! - Redirects aren't followed: a renamed repository is an error for the relay, and the address of
//!   an artifact is a secret to be fetched without a token.
//! - Retries follow [`RetryPolicy`], which bounds the time of a whole task.
//! - The App's JWT and installation tokens are made in [`crate::app`]: octocrab's App has a number
//!   and one key, and asks for tokens without naming permissions.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures_util::future::BoxFuture;
use http::request::Builder;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Uri, header};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use jiff::Timestamp;
use octocrab::service::middleware::base_uri::BaseUriLayer;
use octocrab::service::middleware::reqwest_connector::ReqwestConnector;
use octocrab::{AuthState, OctoBody, Octocrab, OctocrabBuilder};
use parking_lot::Mutex;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use secrecy::SecretString;
use serde::de::{DeserializeOwned, IgnoredAny};

use crate::error::GithubError;
use crate::http::{self as web, HttpError, RetryPolicy};
use crate::{ClientSetupError, SecureUrl};

/// The source of the current time, an argument so that a test can set it.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Accounts whose rate limit is remembered.
const MAX_ACCOUNTS: usize = 1_000;
/// The largest JSON answer that is read, in bytes.
pub(crate) const MAX_JSON_BYTES: usize = 8 * 1024 * 1024;
/// Entries per page of a list; GitHub's maximum.
pub(crate) const PAGE_SIZE: usize = 100;
/// The same where each entry has a text of up to 65,536 characters: an answer may have [`MAX_JSON_BYTES`].
pub(crate) const LONG_TEXTS_PER_PAGE: usize = 25;
/// Tries of a call whose answer isn't what GitHub documents.
const MALFORMED_TRIES: u32 = 4;
pub(crate) const JSON: &str = "application/vnd.github+json";
/// The media type that returns a file's bytes in the place of a JSON object.
pub(crate) const RAW: &str = "application/vnd.github.raw+json";

/// What may stand in a path segment or query value as it is: the unreserved characters of RFC 3986.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// GitHub's answer; its body isn't read yet.
pub(crate) type RestResponse = Response<BoxBody<Bytes, octocrab::Error>>;

pub(crate) struct RestClient {
    octocrab: Octocrab,
    clock: Clock,
    /// How many calls each account's installation has left, as GitHub said last.
    calls_left: Mutex<BTreeMap<String, CallsLeft>>,
}

#[derive(Clone, Copy)]
struct CallsLeft {
    left: u64,
    /// How many there are in an hour.
    limit: u64,
    resets_at: Timestamp,
}

impl fmt::Debug for RestClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RestClient")
    }
}

/// Takes the place of the network in a simulation.
pub type Transport =
    Arc<dyn Fn(http::Request<Bytes>) -> BoxFuture<'static, Response<Bytes>> + Send + Sync>;

/// One call, without its token.
#[derive(Clone)]
pub(crate) struct RestRequest {
    method: Method,
    /// With the leading `/`, below the base address.
    path: String,
    body: Option<Bytes>,
    accept: &'static str,
    etag: Option<HeaderValue>,
}

impl RestRequest {
    pub(crate) fn new(method: Method, path: String) -> Self {
        Self { method, path, body: None, accept: JSON, etag: None }
    }

    pub(crate) fn get(path: String) -> Self {
        Self::new(Method::GET, path)
    }

    pub(crate) fn with_json(self, body: &serde_json::Value) -> Self {
        self.with_body(body.to_string().into())
    }

    /// `body` is JSON already.
    pub(crate) fn with_body(self, body: Bytes) -> Self {
        Self { body: Some(body), ..self }
    }

    pub(crate) fn accepting(self, accept: &'static str) -> Self {
        Self { accept, ..self }
    }

    /// Asks for an answer only when it isn't what `etag` names any more.
    pub(crate) fn unless_etag(self, etag: Option<&str>) -> Self {
        Self { etag: etag.and_then(|etag| HeaderValue::from_str(etag).ok()), ..self }
    }

    /// The same request for another path.
    pub(crate) fn at(&self, path: &str) -> Self {
        Self { path: path.to_owned(), ..self.clone() }
    }

    /// Such as `GET /app`, for messages.
    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.method, self.path)
    }
}

impl RestClient {
    /// For the API at `base`, on the program's one HTTP client, which follows no redirect.
    ///
    /// Needs to be called within a tokio runtime: octocrab starts a task.
    pub(crate) fn new(
        http: reqwest::Client,
        base: &SecureUrl,
        clock: Clock,
    ) -> Result<Self, ClientSetupError> {
        let uri = base.as_str().parse::<Uri>();
        let uri = uri.map_err(|_| ClientSetupError::Address(base.clone()))?;
        let Ok(octocrab) = OctocrabBuilder::new_empty()
            .with_service(ReqwestConnector::new(http))
            .with_layer(&BaseUriLayer::new(uri))
            .with_auth(AuthState::None)
            .build();
        Ok(Self { octocrab, clock, calls_left: Mutex::default() })
    }

    /// For an API in this process.
    pub(crate) fn in_process(transport: Transport, clock: Clock) -> Self {
        let service = tower::service_fn(move |request: http::Request<OctoBody>| {
            let transport = Arc::clone(&transport);
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await?.to_bytes();
                let response = transport(http::Request::from_parts(parts, body)).await;
                Ok::<_, octocrab::Error>(response.map(Full::new))
            }
        });
        let Ok(octocrab) =
            OctocrabBuilder::new_empty().with_service(service).with_auth(AuthState::None).build();
        Self { octocrab, clock, calls_left: Mutex::default() }
    }

    /// Sends a call once. Any status but 2xx is an error, except 304 as the answer to an ETag.
    pub(crate) async fn send(
        &self,
        request: &RestRequest,
        token: &SecretString,
    ) -> Result<RestResponse, GithubError> {
        self.send_raw(request, Some(token)).await.map_err(|error| self.error(request, error))
    }

    /// Sends a call as nobody, for what everybody may read.
    pub(crate) async fn send_public(
        &self,
        request: &RestRequest,
    ) -> Result<RestResponse, GithubError> {
        self.send_raw(request, None).await.map_err(|error| self.error(request, error))
    }

    /// Calls `attempt`, which sends and reads, again during an outage or until a rate limit ends, while `retry` allows
    /// it.
    pub(crate) async fn with_retries<T, F: Future<Output = Result<T, GithubError>>>(
        &self,
        retry: RetryPolicy,
        attempt: impl Fn() -> F,
    ) -> Result<T, GithubError> {
        let mut tries = retry.start();
        loop {
            match attempt().await {
                Err(GithubError::Transient { call, source }) => {
                    let text = format!("GitHub didn't answer `{call}`: {source}");
                    if !tries.wait_to_retry(&text, source.retry_after()).await {
                        return Err(GithubError::Transient { call, source: source.after(&tries) });
                    }
                }
                Err(error @ GithubError::RateLimited { until, .. }) => {
                    let left = until.duration_since(self.now()).unsigned_abs();
                    if !tries.wait_to_retry(&error, Some(left)).await {
                        return Err(error);
                    }
                }
                // JSON of something in between. A change of GitHub's own isn't worth waiting for.
                Err(error @ GithubError::Malformed { .. })
                    if !error.is_too_large() && tries.tried() < MALFORMED_TRIES =>
                {
                    if !tries.wait_to_retry(&error.with_cause(), None).await {
                        return Err(error);
                    }
                }
                result => return result,
            }
        }
    }

    /// Sends a call and reads its JSON, as [`RestClient::with_retries`] does.
    pub(crate) async fn json_with_retries<T: DeserializeOwned>(
        &self,
        request: &RestRequest,
        token: &SecretString,
        retry: RetryPolicy,
    ) -> Result<T, GithubError> {
        self.with_retries(retry, || async {
            self.read_json(request, self.send(request, token).await?).await
        })
        .await
    }

    /// The whole body of an answer to `request`, at most `limit` bytes.
    pub(crate) async fn read(
        &self,
        request: &RestRequest,
        response: RestResponse,
        limit: usize,
    ) -> Result<Bytes, GithubError> {
        read_at_most(response.into_body(), limit, false)
            .await
            .map_err(|error| self.error(request, error))
    }

    /// The body of an answer to `request`, as JSON.
    pub(crate) async fn read_json<T: DeserializeOwned>(
        &self,
        request: &RestRequest,
        response: RestResponse,
    ) -> Result<T, GithubError> {
        let status = response.status();
        let body = self.read(request, response, MAX_JSON_BYTES).await?;
        serde_json::from_slice(&body).map_err(|error| {
            let error = match error.is_data() {
                true => HttpError::Malformed(error.to_string()),
                // GitHub's own answer is JSON, whatever it says.
                false => HttpError::Intermediary { status, body },
            };
            self.error(request, error)
        })
    }

    /// Fails if the answer isn't GitHub's, for a caller that doesn't read it. With 200, GitHub answers JSON; a proxy in
    /// between may answer with a text, or with nothing, and GitHub has done nothing then.
    pub(crate) async fn confirm(
        &self,
        request: &RestRequest,
        response: RestResponse,
    ) -> Result<(), GithubError> {
        match response.status() {
            StatusCode::OK => self.read_json::<IgnoredAny>(request, response).await.map(drop),
            _ => Ok(()),
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        (self.clock)()
    }

    /// An account that wasn't called since its hour was over has all of its calls.
    pub(crate) fn calls_left(&self) -> BTreeMap<String, u64> {
        let now = self.now();
        let left =
            |known: &CallsLeft| if known.resets_at <= now { known.limit } else { known.left };
        let all = self.calls_left.lock();
        all.iter().map(|(owner, known)| (owner.clone(), left(known))).collect()
    }

    /// Remembers the rate limit of the account whose repository was asked. Limits other than the
    /// usual one (`core`), such as that of searches, are left out.
    fn remember_calls_left(&self, path: &str, headers: &HeaderMap) {
        let value = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let Some(owner) = path.strip_prefix("/repos/").and_then(|rest| rest.split('/').next())
        else {
            return;
        };
        let number = |name: &str| value(name).and_then(|number| number.parse::<u64>().ok());
        let Some(left) = number("x-ratelimit-remaining") else { return };
        let resets_at = number("x-ratelimit-reset").and_then(|at| i64::try_from(at).ok());
        let resets_at = resets_at.and_then(|at| Timestamp::from_second(at).ok());
        if value("x-ratelimit-resource").is_some_and(|resource| resource != "core") {
            return;
        }
        let mut all = self.calls_left.lock();
        let owner = owner.to_ascii_lowercase();
        if all.len() < MAX_ACCOUNTS || all.contains_key(&owner) {
            let limit = number("x-ratelimit-limit").unwrap_or(left).max(left);
            let resets_at = resets_at.unwrap_or(Timestamp::MAX);
            all.insert(owner, CallsLeft { left, limit, resets_at });
        }
    }

    async fn send_raw(
        &self,
        request: &RestRequest,
        token: Option<&SecretString>,
    ) -> Result<RestResponse, HttpError> {
        let mut builder = Builder::new()
            .method(request.method.clone())
            .uri(&request.path)
            .header(header::ACCEPT, request.accept)
            .header("x-github-api-version", "2022-11-28");
        if let Some(etag) = &request.etag {
            builder = builder.header(header::IF_NONE_MATCH, etag);
        }
        if request.body.is_some() {
            builder = builder.header(header::CONTENT_TYPE, "application/json");
        }
        let http = builder
            .body(request.body.clone().unwrap_or_default())
            .map_err(|error| HttpError::Malformed(error.to_string()))?;
        let octocrab = match token {
            Some(token) => self.octocrab.user_access_token(token.clone()).map_err(transport)?,
            None => self.octocrab.clone(),
        };
        let response = octocrab.execute(http).await.map_err(transport)?;
        self.remember_calls_left(&request.path, response.headers());
        let status = response.status();
        if status.is_success() && web::is_web_page(response.headers(), b"") {
            // A login page in between.
            let body = read_at_most(response.into_body(), web::ERROR_BODY_BYTES, true).await;
            return Err(HttpError::Intermediary { status, body: body.unwrap_or_default() });
        }
        let unchanged = status == StatusCode::NOT_MODIFIED && request.etag.is_some();
        if status.is_success() || unchanged {
            return Ok(response);
        }
        let (parts, body) = response.into_parts();
        let body = read_at_most(body, web::ERROR_BODY_BYTES, true).await.unwrap_or_default();
        // GitHub's own refusal is JSON. A proxy's may have any text, or none.
        if status == StatusCode::FORBIDDEN && serde_json::from_slice::<IgnoredAny>(&body).is_err() {
            return Err(match web::retry_after(&parts.headers) {
                // A limit, whoever sets it.
                pause @ Some(_) => HttpError::Status {
                    status,
                    retry_after: pause,
                    headers: Box::new(parts.headers),
                    body,
                },
                None => HttpError::Intermediary { status, body },
            });
        }
        Err(HttpError::refused(status, Box::new(parts.headers), body).unless_page())
    }

    fn error(&self, request: &RestRequest, error: HttpError) -> GithubError {
        GithubError::from_http(&request.name(), error, self.now())
    }
}

/// The entries of a list, page by page: `per_page` of them, at most `max_pages`. `get` fetches one page, which is an
/// array or an object that has one.
pub(crate) async fn all_pages<T, P, F>(
    path: &str,
    (per_page, max_pages): (usize, usize),
    get: impl Fn(RestRequest) -> F,
) -> Result<Vec<T>, GithubError>
where
    P: Into<Vec<T>>,
    F: Future<Output = Result<P, GithubError>>,
{
    let separator = if path.contains('?') { '&' } else { '?' };
    let mut all = Vec::new();
    for page in 1..=max_pages {
        let path = format!("{path}{separator}per_page={per_page}&page={page}");
        let entries: Vec<T> = get(RestRequest::get(path)).await?.into();
        let is_last = entries.len() < per_page;
        all.extend(entries);
        if is_last {
            break;
        }
    }
    Ok(all)
}

/// What GitHub's clock said when it answered, in whole seconds.
pub(crate) fn response_date(headers: &HeaderMap) -> Option<Timestamp> {
    let text = headers.get(header::DATE)?.to_str().ok()?;
    jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text).ok()
}

/// The path of a repository that GitHub redirects to by its number, with what follows the number.
/// Only the path is taken, so that a token never goes to another server.
pub(crate) fn path_by_number(location: &str) -> Option<&str> {
    let path = &location[location.find("/repositories/")?..];
    let number = path.split('/').nth(2)?;
    (!number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())).then_some(path)
}

/// `/repos/{owner}/{repo}`, with nothing in the name that could leave its segment.
pub(crate) fn repo_path(repo: &str) -> String {
    let (owner, name) = repo.split_once('/').unwrap_or((repo, ""));
    format!("/repos/{}/{}", encoded(owner), encoded(name))
}

/// A path of a repository's file, each segment of it encoded.
pub(crate) fn contents_path(repo: &str, path: &str) -> String {
    let segments: Vec<String> = path.trim_matches('/').split('/').map(encoded).collect();
    format!("{}/contents/{}", repo_path(repo), segments.join("/"))
}

/// One path segment, or the value of a query parameter. `.` and `..` can't be escaped in a URL, so
/// they become what no repository, file or branch is called.
pub(crate) fn encoded(text: &str) -> String {
    match text {
        "." | ".." => "%2E".to_owned(),
        _ => utf8_percent_encode(text, ENCODED).to_string(),
    }
}

async fn read_at_most(
    mut body: BoxBody<Bytes, octocrab::Error>,
    limit: usize,
    cut: bool,
) -> Result<Bytes, HttpError> {
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(transport)?.into_data() else { continue };
        if bytes.len() + data.len() > limit {
            if !cut {
                return Err(HttpError::TooLarge(limit));
            }
            bytes.extend_from_slice(&data[..limit - bytes.len()]);
            break;
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes.freeze())
}

/// octocrab wraps the failure of our HTTP client, sometimes twice.
fn transport(error: octocrab::Error) -> HttpError {
    match error {
        octocrab::Error::Reqwest { source, .. } => HttpError::Transport(source.without_url()),
        octocrab::Error::Service { source, .. } => match source.downcast() {
            Ok(inner) => transport(*inner),
            Err(other) => HttpError::Malformed(other.to_string()),
        },
        other => HttpError::Malformed(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use wiremock::matchers::{header, path};
    use wiremock::{Mock, MockServer, ResponseTemplate};

    use super::*;

    async fn answering(answer: ResponseTemplate) -> (MockServer, RestClient) {
        let server = MockServer::start().await;
        Mock::given(path("/api/v3/x")).respond_with(answer).mount(&server).await;
        let base = format!("{}/api/v3/", server.uri()).parse().unwrap();
        let client = RestClient::new(web::client().unwrap(), &base, Arc::new(Timestamp::now));
        (server, client.unwrap())
    }

    fn get_x() -> RestRequest {
        RestRequest::get("/x".to_owned())
    }

    #[tokio::test]
    async fn calls_name_this_program_and_carry_the_token() {
        let (server, client) = answering(ResponseTemplate::new(500)).await;
        let agent = concat!("crcr/", env!("CARGO_PKG_VERSION"));
        Mock::given(header("user-agent", agent))
            .and(header("authorization", "Bearer t0ken"))
            .and(header("x-github-api-version", "2022-11-28"))
            .and(path("/api/v3/x"))
            .respond_with(ResponseTemplate::new(204))
            .with_priority(1)
            .expect(1)
            .mount(&server)
            .await;
        client.send(&get_x(), &"t0ken".into()).await.unwrap();
    }

    #[tokio::test]
    async fn oversized_answer_is_an_error_and_oversized_error_text_is_cut() {
        let large = ResponseTemplate::new(200).set_body_string("x".repeat(1001));
        let (_server, client) = answering(large).await;
        let response = client.send(&get_x(), &"t".into()).await.unwrap();
        let error = client.read(&get_x(), response, 1000).await.unwrap_err();
        assert!(
            matches!(error, GithubError::Malformed { source: HttpError::TooLarge(1000), .. }),
            "{error:?}"
        );
        let large = ResponseTemplate::new(502).set_body_string("x".repeat(1_000_000));
        let (_server, client) = answering(large).await;
        let error = client.send_raw(&get_x(), Some(&"t".into())).await.unwrap_err();
        let HttpError::Status { body, .. } = error else { panic!("{error:?}") };
        assert_eq!(body.len(), web::ERROR_BODY_BYTES);
    }

    #[tokio::test]
    async fn calls_left_are_all_again_when_the_hour_is_over_although_nobody_called() {
        let second = Arc::new(std::sync::atomic::AtomicI64::new(1_790_000_000));
        let clock = Arc::clone(&second);
        let clock: Clock = Arc::new(move || {
            Timestamp::from_second(clock.load(std::sync::atomic::Ordering::Relaxed)).unwrap()
        });
        let answer = |_| -> BoxFuture<'static, Response<Bytes>> {
            let headers = [("limit", "5000"), ("remaining", "17"), ("reset", "1790001800")];
            let response = headers.iter().fold(Response::builder(), |response, (name, value)| {
                response.header(format!("x-ratelimit-{name}"), *value)
            });
            Box::pin(async { response.body(Bytes::new()).unwrap() })
        };
        let client = RestClient::in_process(Arc::new(answer), clock);
        let request = RestRequest::get("/repos/Acme/backend/x".to_owned());
        client.send(&request, &"t".into()).await.unwrap();
        assert_eq!(client.calls_left(), [("acme".to_owned(), 17)].into());
        second.fetch_add(1799, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(client.calls_left()["acme"], 17);
        second.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(client.calls_left()["acme"], 5000);
    }

    #[tokio::test]
    async fn web_page_with_200_is_no_answer_of_githubs() {
        let page = ResponseTemplate::new(200).set_body_raw("<html>log in</html>", "text/html");
        let (_server, client) = answering(page).await;
        let error = client.send(&get_x(), &"t".into()).await.unwrap_err();
        assert!(error.is_transient() && error.is_unanswered(), "{error:?}");
    }

    #[tokio::test]
    async fn a_200_without_json_confirms_nothing() {
        let text = |body: &str| ResponseTemplate::new(200).set_body_string(body);
        for (answer, is_githubs) in [
            (ResponseTemplate::new(204), true),
            (ResponseTemplate::new(201), true),
            (text(r#"{"id": 1}"#), true),
            (text(""), false),
            (text("OK"), false),
            (text("<html>log in</html>"), false),
        ] {
            let (_server, client) = answering(answer).await;
            let response = client.send(&get_x(), &"t".into()).await.unwrap();
            match client.confirm(&get_x(), response).await {
                Ok(()) => assert!(is_githubs),
                Err(error) => assert!(!is_githubs && error.is_unanswered(), "{error:?}"),
            }
        }
    }

    #[tokio::test]
    async fn redirects_arent_followed() {
        let moved = ResponseTemplate::new(301).insert_header("location", "/api/v3/repositories/7");
        let (server, client) = answering(moved).await;
        let error = client.send(&get_x(), &"t".into()).await.unwrap_err();
        assert!(matches!(error, GithubError::Moved { .. }), "{error:?}");
        assert_eq!(server.received_requests().await.unwrap().len(), 1);
    }

    #[test]
    fn redirect_targets_keep_their_path_only() {
        let path = path_by_number("https://evil.test/api/v3/repositories/7/labels/a?x=1");
        assert_eq!(path, Some("/repositories/7/labels/a?x=1"));
        for other in ["https://evil.test/repos/a/b", "/repositories/", "/repositories/x/y"] {
            assert_eq!(path_by_number(other), None, "{other}");
        }
    }

    #[test]
    fn names_cant_leave_their_path_segment() {
        assert_eq!(repo_path("acme/../x?y#z"), "/repos/acme/..%2Fx%3Fy%23z");
        assert_eq!(repo_path("../.."), "/repos/%2E/%2E");
        assert_eq!(
            contents_path("a/b", "/.github/../x y.yml"),
            "/repos/a/b/contents/.github/%2E/x%20y.yml"
        );
    }
}
