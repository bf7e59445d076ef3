//! A proxy in front of a loopback server that makes chosen requests fail, and records all of them.

use parking_lot::{Mutex, MutexGuard};
use std::io;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, HttpBody as _};
use axum::extract::Request;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use crcr_standin::server::{Bound, Connection, Peer, Server};
use crcr_standin::traffic::{Fault, answer_or_lose, flow};
use futures_util::TryStreamExt as _;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::sync::watch;
use url::Url;

/// Which requests fail, and how.
#[derive(Debug, Clone)]
pub struct Rule {
    method: Option<Method>,
    path: String,
    query: String,
    sent: Option<&'static str>,
    lacking: Option<&'static str>,
    skip: usize,
    times: usize,
    headers: Vec<(&'static str, String)>,
    fault: Option<Fault>,
}

impl Rule {
    /// Requests wait until [`FaultProxy::release`], and are served then.
    pub fn hold() -> Self {
        Self { fault: None, ..Self::any(Fault::Stall) }
    }

    /// Requests fail with `fault`.
    ///
    /// [`Fault::ResetAfterBytes`] and [`Fault::StallAfterBytes`] count the request's body if it has
    /// one, else the answer's. The other faults of bodies apply to the answer.
    pub fn any(fault: Fault) -> Self {
        Self {
            method: None,
            path: String::new(),
            query: String::new(),
            sent: None,
            lacking: None,
            skip: 0,
            times: usize::MAX,
            headers: Vec::new(),
            fault: Some(fault),
        }
    }

    #[must_use]
    pub fn method(mut self, method: Method) -> Self {
        self.method = Some(method);
        self
    }

    /// Only requests whose encoded path contains `part`.
    #[must_use]
    pub fn path(mut self, part: &str) -> Self {
        part.clone_into(&mut self.path);
        self
    }

    /// Only requests whose encoded query contains `part`.
    #[must_use]
    pub fn query(mut self, part: &str) -> Self {
        part.clone_into(&mut self.query);
        self
    }

    /// Only requests that send this header.
    #[must_use]
    pub fn sending(mut self, name: &'static str) -> Self {
        self.sent = Some(name);
        self
    }

    /// Only requests that don't have this header.
    #[must_use]
    pub fn lacking(mut self, name: &'static str) -> Self {
        self.lacking = Some(name);
        self
    }

    /// Lets the first `count` matching requests pass.
    #[must_use]
    pub fn after(mut self, count: usize) -> Self {
        self.skip = count;
        self
    }

    #[must_use]
    pub fn times(mut self, count: usize) -> Self {
        self.times = count;
        self
    }

    /// Sets a header of the answer.
    #[must_use]
    pub fn header(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }

    fn matches(&self, request: &Request) -> bool {
        self.method.as_ref().is_none_or(|method| method == request.method())
            && request.uri().path().contains(&self.path)
            && self.sent.is_none_or(|name| request.headers().contains_key(name))
            && self.lacking.is_none_or(|name| !request.headers().contains_key(name))
            && request.uri().query().unwrap_or_default().contains(&self.query)
    }
}

/// A request, and the answer that it got.
#[derive(Debug, Clone)]
pub struct SeenRequest {
    pub method: Method,
    pub path: String,
    /// Encoded, without its question mark.
    pub query: String,
    pub headers: HeaderMap,
    /// The status of the answer; `None` before it, and after a reset or a stall.
    pub status: Option<StatusCode>,
}

/// A running proxy. Dropping it stops the proxy, but not the server behind it.
#[derive(Debug)]
pub struct FaultProxy {
    server: Server,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    upstream: Url,
    client: Client<HttpConnector, Body>,
    known: Mutex<ProxyState>,
    released: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct ProxyState {
    rules: Vec<Rule>,
    seen: Vec<SeenRequest>,
}

impl FaultProxy {
    /// Starts in front of `upstream`, without rules.
    pub fn start(upstream: &Url) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            upstream: upstream.clone(),
            client: Client::builder(TokioExecutor::new()).build_http(),
            known: Mutex::default(),
            released: watch::Sender::new(false),
        });
        let handler = shared.clone();
        let router = Router::new().fallback(async move |peer: Peer, request: Request| {
            handler.handle(peer.0, request).await
        });
        let server = Bound::loopback()?.serve(router)?;
        Ok(Self { server, shared })
    }

    pub fn url(&self) -> &Url {
        self.server.url()
    }

    /// Adds a rule. The first one that matches a request applies.
    pub fn add(&self, rule: Rule) {
        self.shared.lock().rules.push(rule);
    }

    pub fn clear(&self) {
        self.shared.lock().rules.clear();
    }

    /// Ends the waiting of [`Rule::hold`], also for later requests.
    pub fn release(&self) {
        self.shared.released.send_replace(true);
    }

    /// All requests so far, in order.
    pub fn seen(&self) -> Vec<SeenRequest> {
        self.shared.lock().seen.clone()
    }

    /// The number of requests with this method whose path and query contain these parts.
    pub fn count(&self, method: &Method, path: &str, query: &str) -> usize {
        let known = self.shared.lock();
        let seen = known.seen.iter().filter(|seen| {
            seen.method == method && seen.path.contains(path) && seen.query.contains(query)
        });
        seen.count()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, ProxyState> {
        self.known.lock()
    }

    async fn handle(&self, peer: Connection, request: Request) -> Response {
        let (number, rule) = self.record(&request);
        let response = match rule {
            None => self.forward(request).await,
            Some(rule) => self.act(rule, peer, request).await,
        };
        self.lock().seen[number].status = Some(response.status());
        response
    }

    /// Records a request, and finds the rule that applies to it.
    fn record(&self, request: &Request) -> (usize, Option<Rule>) {
        let mut known = self.lock();
        known.seen.push(SeenRequest {
            method: request.method().clone(),
            path: request.uri().path().to_owned(),
            query: request.uri().query().unwrap_or_default().to_owned(),
            headers: request.headers().clone(),
            status: None,
        });
        let number = known.seen.len() - 1;
        for rule in &mut known.rules {
            if rule.times == 0 || !rule.matches(request) {
                continue;
            }
            if rule.skip > 0 {
                rule.skip -= 1;
                continue;
            }
            rule.times -= 1;
            return (number, Some(rule.clone()));
        }
        (number, None)
    }

    async fn act(&self, rule: Rule, peer: Connection, request: Request) -> Response {
        let has_body = !request.body().is_end_stream();
        let Some(fault) = rule.fault else {
            // The sender lives as long as `self`, so only a release ends the wait.
            let _ = self.released.subscribe().wait_for(|released| *released).await;
            return self.forward(request).await;
        };
        let mut response = match fault {
            Fault::Reset => peer.reset().await,
            Fault::Stall => std::future::pending().await,
            Fault::Answer { status, retry_after, body } => {
                let mut response = (status, body).into_response();
                if let Some(seconds) = retry_after {
                    response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
                }
                response
            }
            Fault::Delay(time) => {
                tokio::time::sleep(time).await;
                self.forward(request).await
            }
            fault @ (Fault::ResetAfterwards | Fault::AnswerAfterwards(_)) => {
                // Waits until the server has done its work.
                let response = self.forward(request).await;
                let _ = axum::body::to_bytes(response.into_body(), usize::MAX).await;
                answer_or_lose(Some(fault), &peer, Response::default()).await
            }
            fault @ (Fault::ResetAfterBytes(_) | Fault::StallAfterBytes(_)) if has_body => {
                let request = request.map(|body| through(body, fault, peer));
                self.forward(request).await
            }
            fault => {
                let response = self.forward(request).await;
                shortened(response, &fault).map(|body| through(body, fault, peer))
            }
        };
        for (name, value) in rule.headers {
            let value = value.parse().expect("a test names a valid header");
            response.headers_mut().insert(name, value);
        }
        response
    }

    /// Forwards a request. Only its address changes, so that signatures stay valid.
    async fn forward(&self, mut request: Request) -> Response {
        let mut parts = request.uri().clone().into_parts();
        parts.scheme = self.upstream.scheme().parse().ok();
        parts.authority = self.upstream.authority().parse().ok();
        *request.uri_mut() = Uri::from_parts(parts).expect("the upstream is a whole address");
        match self.client.request(request).await {
            Ok(response) => response.map(Body::new),
            Err(error) => (StatusCode::BAD_GATEWAY, format!("{error:?}")).into_response(),
        }
    }
}

/// A body with `fault` applied to its bytes.
fn through(body: Body, fault: Fault, peer: Connection) -> Body {
    let limit = match fault {
        Fault::ShortenTo(bytes) => Some(bytes),
        _ => None,
    };
    let chunks = body.into_data_stream().map_err(io::Error::other);
    let chunks = flow(chunks, Some(fault), peer);
    match limit {
        Some(limit) => Body::from_stream(limited(chunks, limit)),
        None => Body::from_stream(chunks),
    }
}

/// The first `limit` bytes of a body.
fn limited(
    chunks: impl futures_util::Stream<Item = io::Result<bytes::Bytes>> + Send + 'static,
    limit: u64,
) -> impl futures_util::Stream<Item = io::Result<bytes::Bytes>> + Send + 'static {
    let mut left = limit;
    chunks.try_filter_map(move |mut chunk| {
        chunk.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        left -= chunk.len() as u64;
        std::future::ready(Ok((!chunk.is_empty()).then_some(chunk)))
    })
}

/// Sets the `Content-Length` that [`Fault::ShortenTo`] leaves.
fn shortened(mut response: Response, fault: &Fault) -> Response {
    if let Fault::ShortenTo(bytes) = fault {
        response.headers_mut().insert(header::CONTENT_LENGTH, (*bytes).into());
    }
    response
}

/// What a proxy or a load balancer answers instead of the server.
///
/// # Panics
/// When `status` isn't an HTTP status.
pub fn web_page(status: u16) -> Rule {
    let page = format!("<!DOCTYPE html><html><head><title>{status} gateway</title></head></html>");
    let status = StatusCode::from_u16(status).expect("a test names a valid status");
    let fault = Fault::Answer { status, retry_after: None, body: page };
    Rule::any(fault).header("content-type", "text/html")
}

/// S3's `503 Slow Down`.
pub fn slow_down() -> Fault {
    let body = "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>SlowDown</Code>\
                <Message>Please reduce your request rate.</Message></Error>";
    Fault::Answer {
        status: StatusCode::SERVICE_UNAVAILABLE,
        retry_after: None,
        body: body.to_owned(),
    }
}

/// An error of S3; its answer to a HEAD has no body.
///
/// # Panics
/// When `status` isn't an HTTP status.
pub fn s3_error(status: u16, code: &str) -> Fault {
    Fault::Answer {
        status: StatusCode::from_u16(status).expect("a test names a valid status"),
        retry_after: None,
        body: format!("<Error><Code>{code}</Code><Message>No.</Message></Error>"),
    }
}

/// S3's `403 Access Denied`.
pub fn access_denied() -> Fault {
    let body = "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>AccessDenied</Code>\
                <Message>Access Denied</Message></Error>";
    Fault::Answer { status: StatusCode::FORBIDDEN, retry_after: None, body: body.to_owned() }
}

/// S3's `301 Permanent Redirect` for a bucket of `region`.
pub fn other_region(region: &str) -> Rule {
    let body = "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>PermanentRedirect</Code>\
                <Message>The bucket you are attempting to access must be addressed using the \
                specified endpoint.</Message></Error>";
    let status = StatusCode::MOVED_PERMANENTLY;
    let fault = Fault::Answer { status, retry_after: None, body: body.to_owned() };
    Rule::any(fault).header("x-amz-bucket-region", region)
}

#[cfg(test)]
mod tests {
    use axum::routing::any;

    use super::*;

    /// A server that answers with a prefix and the bytes that it got.
    fn echo() -> Server {
        let answer = async |request: Request| {
            let host = request.headers()["host"].to_str().unwrap().to_owned();
            let body =
                axum::body::to_bytes(request.into_body(), usize::MAX).await.unwrap_or_default();
            ([("x-host", host)], [b"echo:", &body[..]].concat())
        };
        let router = Router::new().fallback(any(answer));
        Bound::loopback().unwrap().serve(router).unwrap()
    }

    async fn post(url: &Url, path: &str) -> reqwest::Result<reqwest::Response> {
        let client = reqwest::Client::new();
        client.post(url.join(path).unwrap()).body("x".repeat(200_000)).send().await
    }

    #[tokio::test]
    async fn requests_without_a_rule_pass_unchanged_and_are_recorded() {
        let server = echo();
        let proxy = FaultProxy::start(server.url()).unwrap();
        let response = post(proxy.url(), "a/b%20c?d=e").await.unwrap();
        let host = proxy.url().authority().to_owned();
        assert_eq!(response.headers()["x-host"], host, "what was signed is still true");
        assert_eq!(response.bytes().await.unwrap().len(), 200_005);
        let seen = &proxy.seen()[0];
        assert_eq!((seen.path.as_str(), seen.query.as_str()), ("/a/b%20c", "d=e"));
        assert_eq!(seen.status, Some(StatusCode::OK));
        assert_eq!(proxy.count(&Method::POST, "/a/", "d="), 1);
        assert_eq!(proxy.count(&Method::GET, "", ""), 0);
    }

    #[tokio::test]
    async fn rules_apply_to_matching_requests_in_order() {
        let server = echo();
        let proxy = FaultProxy::start(server.url()).unwrap();
        let rule = Rule::any(Fault::status(503)).method(Method::POST).path("/a").query("q");
        proxy.add(rule.after(1).times(2).header("retry-after", "1"));
        let mut statuses = Vec::new();
        for path in ["a?q", "b?q", "a", "a?q", "a?q", "a?q"] {
            statuses.push(post(proxy.url(), path).await.unwrap().status().as_u16());
        }
        assert_eq!(statuses, [200, 200, 200, 503, 503, 200]);
        proxy.add(other_region("eu-west-1"));
        let response = post(proxy.url(), "a").await.unwrap();
        assert_eq!(response.status(), 301);
        assert_eq!(response.headers()["x-amz-bucket-region"], "eu-west-1");
    }

    #[tokio::test]
    async fn body_faults_apply_to_uploads_and_downloads() {
        let server = echo();
        let proxy = FaultProxy::start(server.url()).unwrap();
        for fault in [Fault::Reset, Fault::ResetAfterwards, Fault::ResetAfterBytes(1000)] {
            proxy.add(Rule::any(fault.clone()).times(1));
            assert!(post(proxy.url(), "a").await.is_err(), "{fault:?}");
        }
        assert!(proxy.seen().iter().all(|seen| seen.status.is_none()));
        proxy.add(Rule::any(Fault::CutAfterBytes(1000)).times(1));
        assert!(post(proxy.url(), "a").await.unwrap().bytes().await.is_err());
        proxy.add(Rule::any(Fault::ShortenTo(7)).times(1));
        assert_eq!(post(proxy.url(), "a").await.unwrap().bytes().await.unwrap(), "echo:xx");
        proxy.add(Rule::any(Fault::Corrupt).times(1));
        let turned = post(proxy.url(), "a").await.unwrap().bytes().await.unwrap();
        assert_eq!((turned.len(), turned[0]), (200_005, !b'e'));
        proxy.clear();
        assert_eq!(post(proxy.url(), "a").await.unwrap().status(), 200);
    }
}
