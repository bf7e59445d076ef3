//! The HTTP client of the whole program, and how it retries.

use std::fmt::Display;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rand::Rng as _;
use reqwest::header::{HeaderMap, RETRY_AFTER};
use reqwest::{Client, RequestBuilder, Response, StatusCode};
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

/// [`client`] with another limit than [`SILENCE`].
pub fn client_with(silence: Duration) -> Result<Client, HttpError> {
    Client::builder()
        .user_agent(concat!("crcr/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(Duration::from_secs(10))
        .read_timeout(silence)
        .redirect(reqwest::redirect::Policy::none())
        .tcp_nodelay(true)
        .build()
        .map_err(HttpError::Transport)
}

/// The longest pause that a server's `Retry-After` can cause.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// How often a task is tried, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct RetryPolicy {
    /// RetryLoop in all, at least one.
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
        Self::FEW
    }
}

impl RetryPolicy {
    /// The default: five tries within a minute.
    pub const FEW: Self = Self {
        tries: 5,
        base: Duration::from_millis(250),
        cap: Duration::from_secs(8),
        total: Duration::from_secs(60),
    };
    /// Five tries within ten minutes, for large bodies on slow connections.
    pub const PATIENT: Self = Self { total: Duration::from_secs(600), ..Self::FEW };
    pub const ONCE: Self =
        Self { tries: 1, base: Duration::ZERO, cap: Duration::ZERO, total: Duration::ZERO };

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
        RetryLoop { retry: self, tried: 1, started: Instant::now() }
    }
}

/// The tries of one task. Every retry loop uses it, so that all wait and give up by the same rules.
#[derive(Debug)]
pub struct RetryLoop {
    retry: RetryPolicy,
    tried: u32,
    started: Instant,
}

impl RetryLoop {
    /// The number of the current try, from 1.
    pub fn tried(&self) -> u32 {
        self.tried
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
        let pause = self.retry.pause(self.tried.max(1), retry_after);
        if self.tried >= tries
            || retry_after.is_some_and(|asked| asked > total)
            || self.started.elapsed() + pause > total
        {
            return false;
        }
        tracing::debug!(%error, tried = self.tried, ?pause, "trying again");
        tokio::time::sleep(pause).await;
        self.tried += 1;
        true
    }
}

/// Why a request failed.
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
    #[error("no answer from the server: {}", root_cause(.0))]
    Transport(reqwest::Error),
    /// The body is larger than the caller allows.
    #[error("the answer is larger than {0} bytes")]
    TooLarge(usize),
    /// The body isn't what the protocol says.
    #[error("the answer isn't what the protocol says: {0}")]
    Malformed(String),
}

impl HttpError {
    /// The status, when there was an answer.
    pub fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Status { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Whether another try may help: no answer, 408, 429 or 5xx other than 501.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Status { status, .. } => is_transient(*status),
            Self::Transport(error) => !error.is_builder(),
            Self::TooLarge(_) | Self::Malformed(_) => false,
        }
    }

    /// How long the server wants us to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

fn is_transient(status: StatusCode) -> bool {
    matches!(status.as_u16(), 408 | 429) || (status.is_server_error() && status.as_u16() != 501)
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
pub(crate) async fn with_retries<T, F: Future<Output = Result<T, HttpError>>>(
    retry: RetryPolicy,
    attempt: impl Fn() -> F,
) -> Result<T, HttpError> {
    let mut tries = retry.start();
    loop {
        match attempt().await {
            Err(error)
                if error.is_transient()
                    && tries.wait_to_retry(&error, error.retry_after()).await => {}
            result => return result,
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
    let retry_after = retry_after(&headers);
    let body = read_at_most(response, ERROR_BODY_BYTES, true).await.unwrap_or_default();
    Err(HttpError::Status { status, retry_after, headers, body })
}

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

/// `Retry-After` in seconds, at most an hour. Its other form, a date, is ignored.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds: u64 = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds.min(3600)))
}

/// The start of a server's text, on one line and without control characters.
fn excerpt(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(500)]);
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.trim().is_empty() { "(no text)".to_owned() } else { text.trim().to_owned() }
}

/// reqwest's own text is "error sending request"; the reason is at the end of the chain.
fn root_cause(error: &reqwest::Error) -> String {
    let mut source: &dyn std::error::Error = error;
    while let Some(next) = source.source() {
        source = next;
    }
    if error.is_timeout() { format!("timed out ({source})") } else { source.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_cap_and_honour_retry_after() {
        let retry = RetryPolicy::default();
        for tried in 1..40 {
            let pause = retry.pause(tried, None);
            assert!(pause >= Duration::from_millis(125) && pause <= Duration::from_secs(8));
        }
        assert!(retry.pause(4, None) >= Duration::from_secs(1));
        assert!(retry.pause(1, Some(Duration::from_secs(30))) >= Duration::from_secs(30));
    }

    #[tokio::test]
    async fn retry_after_longer_than_the_task_gives_up_at_once() {
        let hour = Some(Duration::from_secs(3600));
        let started = Instant::now();
        assert!(!RetryPolicy::PATIENT.start().wait_to_retry(&"busy", hour).await);
        assert!(started.elapsed() < Duration::from_secs(5));
        assert_eq!(RetryPolicy::PATIENT.pause(1, hour), Duration::from_secs(60));
        let waits = RetryPolicy::PATIENT.tries
            * RetryPolicy::PATIENT.pause(1, Some(Duration::from_secs(300)));
        assert!(waits <= RetryPolicy::PATIENT.total, "the rest of the task has its time");
    }

    #[tokio::test]
    async fn retries_end_by_count_or_time_unless_there_is_progress() {
        let quick = RetryPolicy { base: Duration::from_millis(1), ..RetryPolicy::FEW };
        let mut tries = quick.start();
        while tries.wait_to_retry(&"broken", None).await {}
        assert_eq!(tries.tried(), 5);
        for _ in 0..20 {
            tries.progressed();
            assert!(tries.wait_to_retry(&"broken", None).await);
        }
        let mut short = RetryPolicy { total: Duration::ZERO, ..quick }.start();
        assert!(!short.wait_to_retry(&"broken", None).await);
    }

    #[test]
    fn excerpt_has_one_line_without_control_characters() {
        assert_eq!(excerpt(b"a\n::error::b"), "a ::error::b");
        assert_eq!(excerpt(b" \n"), "(no text)");
    }
}
