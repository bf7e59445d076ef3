//! The HTTP client of the whole program, and how it retries.

use std::convert::Infallible;
use std::fmt::Display;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::OnceLock;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::stream;
use jiff::Timestamp;
use jiff::fmt::rfc2822;
use parking_lot::Mutex;
use rand::Rng as _;
use reqwest::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::{Body, Client, ClientBuilder, RequestBuilder, Response, StatusCode};
use tokio::sync::watch;
use tokio::time::Instant;

/// The most of an error's body that is kept, in bytes.
pub(crate) const ERROR_BODY_BYTES: usize = 64 * 1024;

/// How long a server may send nothing before the connection counts as broken.
pub const SILENCE: Duration = Duration::from_secs(60);

/// The client for everything but the AWS SDK. It uses the system's TLS roots and proxies, waits
/// 10 s for a connection and [`SILENCE`] for data, and follows no redirects.
///
/// Fails when the machine's TLS set-up is broken.
pub fn client() -> Result<Client, HttpError> {
    client_with(SILENCE)
}

/// A client for servers on this machine, which no proxy can reach.
pub fn direct_client() -> Result<Client, HttpError> {
    builder().read_timeout(SILENCE).no_proxy().build().map_err(HttpError::Transport)
}

/// [`client`] with another limit than [`SILENCE`].
pub fn client_with(silence: Duration) -> Result<Client, HttpError> {
    builder().read_timeout(silence).build().map_err(HttpError::Transport)
}

fn builder() -> ClientBuilder {
    Client::builder()
        .user_agent(concat!("crcr/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(Duration::from_secs(10))
        .redirect(reqwest::redirect::Policy::none())
        .tcp_nodelay(true)
}

/// A client for large bodies. A connection may be as slow as it likes, as long as it takes something.
#[derive(Debug, Clone)]
pub struct UploadClient {
    client: Client,
    silence: Duration,
    patience: Duration,
}

impl UploadClient {
    /// A body is given to the connection in pieces of this size, so that progress shows.
    const PIECE_BYTES: usize = 256 * 1024;

    /// A client that gives up if the connection takes nothing for `silence`. `patience` is how long an outage is
    /// waited out.
    ///
    /// Fails when the machine's TLS set-up is broken.
    pub fn new(silence: Duration, patience: Duration) -> Result<Self, HttpError> {
        let client = builder().build().map_err(HttpError::Transport)?;
        Ok(Self { client, silence, patience })
    }

    pub fn put(&self, url: &str) -> RequestBuilder {
        self.client.put(url)
    }

    /// Sends `request` with `body` once, as [`send_once`] does. Once the system has taken all of the body,
    /// the answer has the `silence` of [`UploadClient::new`] for each MiB of it, because the system may still send, but
    /// no longer than the `patience`.
    pub async fn send(&self, request: RequestBuilder, body: Bytes) -> Result<Response, HttpError> {
        // hyper leaves the length of an empty body out, and S3 refuses that with 411.
        let (size, request) = (body.len(), request.header(CONTENT_LENGTH, body.len()));
        let last_limit = self.silence * (1 + u32::try_from(size >> 20).unwrap_or(u32::MAX));
        let last_limit = last_limit.min(self.patience.max(self.silence));
        let taken = watch::Sender::new(0);
        let mut progress = taken.subscribe();
        let pieces = (0..size).step_by(Self::PIECE_BYTES).map(move |start| {
            let end = size.min(start + Self::PIECE_BYTES);
            taken.send_replace(end);
            Ok::<_, Infallible>(body.slice(start..end))
        });
        let answer = send_once(request.body(Body::wrap_stream(stream::iter(pieces))));
        tokio::pin!(answer);
        let mut is_open = size > 0;
        loop {
            let limit = if is_open { self.silence } else { last_limit };
            tokio::select! {
                answer = &mut answer => return answer,
                changed = progress.changed(), if is_open => {
                    is_open = changed.is_ok() && *progress.borrow_and_update() < size;
                }
                () = tokio::time::sleep(limit) => return Err(HttpError::Silence(limit)),
            }
        }
    }
}

/// The longest pause that a server's `Retry-After` can cause.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// An outage that is shorter than this isn't worth a line.
const QUIET: Duration = Duration::from_secs(2);
/// The time between two lines that say what is waited for. Parallel requests wait together.
const NOTICE_INTERVAL: Duration = Duration::from_secs(60);

/// How long an outage may last, and how often a task is tried meanwhile.
#[derive(Debug, Clone, Copy)]
pub struct RetryPolicy {
    /// Tries in all, at least one.
    pub tries: u32,
    /// Pause before the second try. It doubles with each try, with jitter.
    pub base: Duration,
    /// The longest pause, unless the server asks for more.
    pub cap: Duration,
    /// No new try starts once this much time has passed.
    pub total: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self::CALL
    }
}

impl RetryPolicy {
    /// For a small call: an outage of a minute is survived.
    pub const CALL: Self = Self {
        tries: u32::MAX,
        base: Duration::from_millis(250),
        cap: Duration::from_secs(8),
        total: Duration::from_secs(75),
    };
    /// For what nothing can replace, such as GitHub's artifact service: an outage of five minutes is
    /// survived.
    pub const LAST_RESORT: Self = Self { total: Duration::from_secs(330), ..Self::CALL };
    /// For large bodies on slow connections: ten minutes.
    pub const PATIENT: Self = Self { total: Duration::from_secs(600), ..Self::CALL };
    pub const ONCE: Self =
        Self { tries: 1, base: Duration::ZERO, cap: Duration::ZERO, total: Duration::ZERO };

    /// The same with another limit of time.
    #[must_use]
    pub const fn within(self, total: Duration) -> Self {
        Self { total, ..self }
    }

    /// The pause after try number `tried` (from 1) failed: exponential, with jitter over the upper
    /// half. At least the server's `Retry-After`, of which at most [`LONGEST_WAIT`] counts.
    pub fn pause(&self, tried: u32, retry_after: Option<Duration>) -> Duration {
        let jittered = self.full_pause(tried).mul_f64(rand::rng().random_range(0.5..=1.0));
        jittered.max(retry_after.unwrap_or_default().min(LONGEST_WAIT))
    }

    /// [`RetryPolicy::pause`] with jitter that depends only on `key`: what failed together doesn't come
    /// back together, and the same history has the same pauses.
    pub fn pause_of(&self, tried: u32, key: &str) -> Duration {
        let mut hasher = DefaultHasher::new();
        (tried, key).hash(&mut hasher);
        let fraction = 0.5 + (hasher.finish() % 1000) as f64 / 2000.0;
        self.full_pause(tried).mul_f64(fraction)
    }

    fn full_pause(&self, tried: u32) -> Duration {
        self.base.saturating_mul(1 << tried.saturating_sub(1).min(16)).min(self.cap)
    }

    pub fn start(self) -> RetryLoop {
        let now = Instant::now();
        RetryLoop { retry: self, tried: 1, started: now, alive_at: now }
    }
}

/// The tries of one task. Every retry loop uses it, so that all wait and give up by the same rules.
#[derive(Debug)]
pub struct RetryLoop {
    retry: RetryPolicy,
    tried: u32,
    started: Instant,
    /// When the server last showed that it is there. An outage is measured from then.
    alive_at: Instant,
}

impl RetryLoop {
    /// The number of the current try, from 1.
    pub fn tried(&self) -> u32 {
        self.tried
    }

    /// The time since the task started or made progress.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// What an error says of the tries, such as `tried 12 times in 75 s`; `None` after a single one that
    /// failed at once.
    pub fn history(&self) -> Option<String> {
        let elapsed = self.elapsed();
        (self.tried > 1 || elapsed >= QUIET).then(|| tries_text(self.tried, elapsed))
    }

    /// The server was there `at` this time for another task, so an outage of this one began later.
    pub fn server_was_alive(&mut self, at: Instant) {
        self.alive_at = self.alive_at.max(at);
    }

    /// Whether the server has been away for as long as it is waited for.
    pub fn is_out_of_time(&self) -> bool {
        self.alive_at.elapsed() >= self.retry.total
    }

    /// Starts counting again, because the task made progress.
    pub fn progressed(&mut self) {
        *self = Self { tried: 0, ..self.retry.start() };
    }

    /// After a failed try, waits until the next one may start. Returns false at once when there is
    /// none: tries or time are used up, or the server asks for more time than the task has.
    pub async fn wait_to_retry(
        &mut self,
        error: &(dyn Display + Sync),
        retry_after: Option<Duration>,
    ) -> bool {
        let RetryPolicy { tries, total, .. } = self.retry;
        let left = total.saturating_sub(self.alive_at.elapsed());
        if self.tried >= tries
            || retry_after.is_some_and(|asked| asked > total || asked.min(LONGEST_WAIT) > left)
            || left.is_zero()
        {
            return false;
        }
        // The last pause ends with the time, and not before: the server may be back by then.
        let pause = self.retry.pause(self.tried.max(1), retry_after).min(left);
        tracing::debug!(%error, tried = self.tried, ?pause, "trying again");
        // With less than a second left, the line would say that nothing is waited for.
        if self.elapsed() + pause >= QUIET && left.as_secs() > 0 {
            say_waiting(error, left);
        }
        tokio::time::sleep(pause).await;
        self.tried += 1;
        true
    }
}

fn tries_text(tries: u32, time: Duration) -> String {
    match (tries, time.as_secs()) {
        (0 | 1, seconds) => format!("waited {seconds} s"),
        (_, seconds) => format!("tried {tries} times in {seconds} s"),
    }
}

type WaitPrinter = Box<dyn Fn(&str) + Send + Sync>;

/// Prints what this process waits for, and when it last did. Retry loops are everywhere, so a command
/// sets its printer once.
static WAIT_PRINTER: OnceLock<(WaitPrinter, Mutex<Option<Instant>>)> = OnceLock::new();

/// Calls `print` with a line when a task waits for a server, at most once a minute. Only the first
/// call in a process counts.
pub fn print_waiting(print: impl Fn(&str) + Send + Sync + 'static) {
    // A second printer would print the same lines again.
    let _ = WAIT_PRINTER.set((Box::new(print), Mutex::default()));
}

fn say_waiting(error: &(dyn Display + Sync), left: Duration) {
    let Some((print, last)) = WAIT_PRINTER.get() else { return };
    let mut last = last.lock();
    if last.is_none_or(|at| at.elapsed() >= NOTICE_INTERVAL) {
        *last = Some(Instant::now());
        print(&format!("waiting, and trying again for up to {} s: {error}", left.as_secs()));
    }
}

#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// Any status but 2xx; a redirect counts, because none is followed.
    #[error("the server answered {status}: {}", excerpt(.body))]
    Status {
        status: StatusCode,
        retry_after: Option<Duration>,
        headers: Box<HeaderMap>,
        /// The first 64 KiB of the body.
        body: Bytes,
    },
    /// No answer: DNS, connection, TLS, a reset, a time-out.
    #[error("{}", transport_text(.0))]
    Transport(reqwest::Error),
    /// Our own limit of time for a body that is sent.
    #[error("timed out (nothing could be sent, and no answer came, for {} s)", .0.as_secs())]
    Silence(Duration),
    /// The body is larger than the caller allows.
    #[error("the answer is larger than {0} bytes")]
    TooLarge(usize),
    /// The body isn't what the protocol says.
    #[error("the answer isn't what the protocol says: {0}")]
    Malformed(String),
    /// Something between here and the server answered in its place, such as a proxy or a load
    /// balancer that lost the server.
    #[error("something in between answered {status} instead of the server: {}", excerpt(.body))]
    Intermediary { status: StatusCode, body: Bytes },
    /// The last error, after several tries or a long one.
    #[error("{last} ({})", tries_text(*.tries, *.time))]
    GaveUp { last: Box<HttpError>, tries: u32, time: Duration },
}

impl HttpError {
    /// The error of an answer that isn't 2xx. A 403 from a proxy in between isn't a refusal.
    pub(crate) fn refused(status: StatusCode, headers: Box<HeaderMap>, body: Bytes) -> Self {
        let foreign = is_web_page(&headers, &body)
            || body.windows(INTERMEDIARY_TEXT.len()).any(|part| part == INTERMEDIARY_TEXT);
        if status == StatusCode::FORBIDDEN && foreign {
            return Self::Intermediary { status, body };
        }
        let retry_after = retry_after(&headers);
        Self::Status { status, retry_after, headers, body }
    }

    /// This error of a service that never answers with a web page. A proxy that asks who we are (407) may refuse; any
    /// other page is an outage in between, whatever its status.
    #[must_use]
    pub fn unless_page(self) -> Self {
        match self {
            Self::Status { status, headers, body, .. }
                if status.is_client_error()
                    && status != StatusCode::PROXY_AUTHENTICATION_REQUIRED
                    && !is_transient(status)
                    && is_web_page(&headers, &body) =>
            {
                Self::Intermediary { status, body }
            }
            error => error,
        }
    }

    /// As [`Self::unless_page`], of a service that leads nowhere else. A login page in between does.
    #[must_use]
    pub fn unless_page_or_redirect(self) -> Self {
        match self {
            Self::Status { status, headers, body, .. }
                if status.is_redirection() && (body.is_empty() || is_web_page(&headers, &body)) =>
            {
                Self::Intermediary { status, body }
            }
            error => error.unless_page(),
        }
    }

    /// The error of the last try.
    pub fn last(&self) -> &Self {
        match self {
            Self::GaveUp { last, .. } => last.last(),
            error => error,
        }
    }

    /// The status, when the server answered.
    pub fn status(&self) -> Option<StatusCode> {
        match self.last() {
            Self::Status { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Whether another try may help: no answer, a status that says so, or an answer that isn't the
    /// server's own.
    pub fn is_transient(&self) -> bool {
        match self.last() {
            Self::Status { status, .. } => is_transient(*status),
            Self::Transport(error) => !error.is_builder() && !is_untrusted(&root_cause(error)),
            Self::Intermediary { .. } | Self::Silence(_) => true,
            Self::TooLarge(_) | Self::Malformed(_) | Self::GaveUp { .. } => false,
        }
    }

    /// Whether the request may have arrived and been served although this is an error.
    pub(crate) fn may_be_applied(&self) -> bool {
        match self.last() {
            Self::Transport(error) => !error.is_connect() && !error.is_builder(),
            Self::Status { status, .. } => {
                is_transient(*status) && !matches!(status.as_u16(), 421 | 425 | 429)
            }
            Self::Intermediary { .. }
            | Self::Silence(_)
            | Self::Malformed(_)
            | Self::TooLarge(_) => true,
            Self::GaveUp { .. } => false,
        }
    }

    /// Whether a time limit of ours ended the request.
    pub fn is_timeout(&self) -> bool {
        match self.last() {
            Self::Transport(error) => error.is_timeout(),
            Self::Silence(_) => true,
            _ => false,
        }
    }

    /// How long the server wants us to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.last() {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// This error with what `tries` did to avoid it.
    #[must_use]
    pub fn after(self, tries: &RetryLoop) -> Self {
        if tries.history().is_none() || !self.is_transient() {
            return self;
        }
        let last = match self {
            Self::GaveUp { last, .. } => last,
            error => Box::new(error),
        };
        Self::GaveUp { last, tries: tries.tried(), time: tries.elapsed() }
    }
}

/// Whether another try may help after this status: every 5xx but 501, and of 4xx those that don't refuse. Proxies send
/// 421 and 425 for a connection that they don't take the request from, and nginx 499 when the other side hung up.
fn is_transient(status: StatusCode) -> bool {
    matches!(status.as_u16(), 408 | 421 | 425 | 429 | 499)
        || (status.is_server_error() && status.as_u16() != 501)
}

/// Sends what `request` builds, again while the failure is transient and `retry` allows it.
///
/// Only for requests that may arrive twice. A success is any 2xx; everything else is an error.
pub async fn send(
    retry: RetryPolicy,
    request: impl Fn() -> RequestBuilder,
) -> Result<Response, HttpError> {
    with_retries(retry, || send_once(request())).await
}

/// Calls `attempt` until it succeeds, fails for good, or `retry` allows no other try.
pub async fn with_retries<T, F: Future<Output = Result<T, HttpError>>>(
    retry: RetryPolicy,
    attempt: impl Fn() -> F,
) -> Result<T, HttpError> {
    let mut tries = retry.start();
    loop {
        match attempt().await {
            Err(error)
                if error.is_transient()
                    && tries.wait_to_retry(&error, error.retry_after()).await => {}
            result => return result.map_err(|error| error.after(&tries)),
        }
    }
}

/// Sends one request once; any answer but 2xx is an error with the start of its body.
pub async fn send_once(request: RequestBuilder) -> Result<Response, HttpError> {
    let response = request.send().await.map_err(|e| HttpError::Transport(e.without_url()))?;
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let headers = Box::new(response.headers().clone());
    let body = read_at_most(response, ERROR_BODY_BYTES, true).await.unwrap_or_default();
    Err(HttpError::refused(status, headers, body))
}

/// As [`send_once`], for a service that never answers with a web page. One with a success is of a login or a proxy in
/// between, and the service has nothing.
pub async fn send_unless_page(request: RequestBuilder) -> Result<Response, HttpError> {
    let response = send_once(request).await?;
    let status = response.status();
    if !is_web_page(response.headers(), b"") {
        return Ok(response);
    }
    let body = read_at_most(response, ERROR_BODY_BYTES, true).await.unwrap_or_default();
    Err(HttpError::Intermediary { status, body })
}

/// Whether an answer is a web page. None of the services that are asked here answers with one, but
/// proxies and load balancers do.
pub fn is_web_page(headers: &HeaderMap, body: &[u8]) -> bool {
    let html = |text: &[u8]| {
        let start = text.trim_ascii_start();
        [&b"<!doctype html"[..], b"<html"]
            .iter()
            .any(|tag| start.get(..tag.len()).is_some_and(|start| start.eq_ignore_ascii_case(tag)))
    };
    let kind = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    kind.to_ascii_lowercase().starts_with(b"text/html") || html(body)
}

/// GitHub's services say this of an answer that came from a proxy of theirs.
const INTERMEDIARY_TEXT: &[u8] = b"Error from intermediary";

/// Reads a whole body of at most `limit` bytes; a longer one is [`HttpError::TooLarge`].
pub async fn read(response: Response, limit: usize) -> Result<Bytes, HttpError> {
    read_at_most(response, limit, false).await
}

/// Reads a JSON body of at most `limit` bytes.
pub async fn read_json<T: serde::de::DeserializeOwned>(
    response: Response,
    limit: usize,
) -> Result<T, HttpError> {
    let body = read(response, limit).await?;
    serde_json::from_slice(&body).map_err(|e| HttpError::Malformed(e.to_string()))
}

async fn read_at_most(mut response: Response, limit: usize, cut: bool) -> Result<Bytes, HttpError> {
    let mut body = BytesMut::new();
    while let Some(chunk) =
        response.chunk().await.map_err(|e| HttpError::Transport(e.without_url()))?
    {
        if body.len() + chunk.len() > limit {
            if cut {
                body.extend_from_slice(&chunk[..limit - body.len()]);
                break;
            }
            return Err(HttpError::TooLarge(limit));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.freeze())
}

pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    pause_of(headers.get(RETRY_AFTER)?.to_str().ok()?)
}

/// The pause that a header `Retry-After` asks for, by a number of seconds or a date (RFC 9110, 10.2.3), at most an hour.
pub fn pause_of(retry_after: &str) -> Option<Duration> {
    const LONGEST: Duration = Duration::from_secs(3600);
    let text = retry_after.trim();
    let pause = match text.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let until = rfc2822::DateTimeParser::new().parse_timestamp(text).ok()?;
            until.duration_since(Timestamp::now()).try_into().unwrap_or_default()
        }
    };
    Some(pause.min(LONGEST))
}

/// The start of a server's text, on one line and without control characters; of a web page only the
/// title.
fn excerpt(body: &[u8]) -> String {
    let mut text = String::from_utf8_lossy(&body[..body.len().min(2000)]);
    if is_web_page(&HeaderMap::new(), body) {
        let title = text.split_once("<title>").and_then(|(_, rest)| rest.split("</title>").next());
        text = format!("a web page, `{}`", title.unwrap_or("without a title").trim()).into();
    }
    let end = text.floor_char_boundary(500);
    let text = &text[..end];
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.trim().is_empty() { "(no text)".to_owned() } else { text.trim().to_owned() }
}

/// Small images, such as Ubuntu's own, have no root certificates, and then no client can be made.
fn transport_text(error: &reqwest::Error) -> String {
    let cause = transport_cause(error);
    if cause.contains("No CA certificates") {
        return "this machine has no root certificates: install them, such as by `apt-get install \
                ca-certificates`, or name a file of them by `SSL_CERT_FILE`"
            .to_owned();
    }
    format!("no answer from the server: {}", with_advice(cause))
}

/// Whether this machine doesn't trust the server's certificate, which another try doesn't change.
pub fn is_untrusted(cause: &str) -> bool {
    cause.contains("invalid peer certificate")
}

/// The cause of a failed connection, and what to do about a certificate.
pub fn with_advice(cause: String) -> String {
    match is_untrusted(&cause) {
        true => format!(
            "{cause}; if a proxy between has a root of its own, name a file with all roots by `SSL_CERT_FILE`, or one \
             with this root by `NODE_EXTRA_CA_CERTS`"
        ),
        false => cause,
    }
}

/// reqwest's own text is "error sending request"; the reason is at the end of the chain.
fn transport_cause(error: &reqwest::Error) -> String {
    let cause = root_cause(error);
    if error.is_timeout() { format!("timed out ({cause})") } else { cause }
}

/// The innermost cause. Libraries have layers, and what is between says only which of them passed it on.
pub fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests;
