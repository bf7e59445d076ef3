//! Failed calls of GitHub's REST API, by what a caller can do about them.

use std::time::Duration;

use http::header::{self, HeaderMap};
use jiff::Timestamp;
use serde::Deserialize;

use crate::SecureUrl;
use crate::http::HttpError;

/// How long GitHub wants a client to pause when a rate limit names no time.
/// <https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api>
const DEFAULT_PAUSE: Duration = Duration::from_secs(60);
/// After this, GitHub's primary rate limit has begun anew.
const LIMIT_PERIOD: Duration = Duration::from_secs(3600);

/// Why a call to GitHub's API failed. The texts name the call and quote GitHub, never a token.
#[derive(Debug, thiserror::Error)]
pub enum GithubError {
    /// 404 or 410: it doesn't exist, or the token can't see it.
    #[error("GitHub can't find it: {0}")]
    NotFound(String),
    /// 401: the App's identity or the token was refused.
    #[error("GitHub refused the credentials: {0}")]
    Unauthorized(String),
    /// 451, and 403 unless it is a rate limit.
    #[error("GitHub forbids it: {0}")]
    Forbidden(String),
    /// 400, 409, 413, 422: another try gets the same answer.
    #[error("GitHub refused it: {0}")]
    Unprocessable(String),
    /// The primary limit or a secondary one. GitHub refuses calls before `until`.
    #[error("GitHub's rate limit is used up until {until}: {call}")]
    RateLimited { until: Timestamp, call: String },
    /// The App isn't installed on the repository.
    #[error("the App isn't installed on `{0}`")]
    NotInstalled(String),
    /// The installation is suspended by its owner.
    #[error("the App's installation on `{0}` is suspended")]
    Suspended(String),
    /// The installation hasn't granted a permission that the call needs.
    #[error("the App's installation on `{repo}` hasn't granted `{permission}`")]
    MissingPermission {
        repo: String,
        /// The permissions asked for, like `contents: write`.
        permission: String,
    },
    /// 301, 307, 308: the repository was renamed or transferred.
    #[error("`{call}`: the repository is {to} now; write that name into the allowlist")]
    Moved {
        call: String,
        /// Its new name in backticks, or else the address that GitHub redirects to.
        to: String,
    },
    /// The name belongs to another repository now; nothing was sent.
    #[error("`{repo}` is repository number {found} now, and number {expected} was expected")]
    OtherRepository { repo: String, expected: u64, found: u64 },
    /// GitHub re-runs finished runs only.
    #[error("the run is already running: {0}")]
    AlreadyRunning(String),
    /// No answer, a time-out, 5xx, or an answer of something in between.
    #[error("GitHub didn't answer `{call}`")]
    Transient {
        call: String,
        #[source]
        source: HttpError,
    },
    /// An answer that GitHub doesn't document.
    #[error("GitHub's answer to `{call}` isn't what it documents")]
    Malformed {
        call: String,
        #[source]
        source: HttpError,
    },
}

/// Why no client of the API can be made from the settings.
#[derive(Debug, thiserror::Error)]
pub enum ClientSetupError {
    #[error("`{0}` can't be the address of an API")]
    Address(SecureUrl),
    #[error("the token has characters that can't be sent in a header")]
    Token,
    #[error("the App's private key isn't an RSA key in PEM: {0}")]
    Key(jsonwebtoken::errors::Error),
    #[error("the App's private key is a public key; GitHub's download is the private one")]
    PublicKey,
    #[error("the App's private key can't sign, GitHub's download can: {0}")]
    CannotSign(jsonwebtoken::errors::Error),
    #[error(
        "the App's private key has to be one key in PEM, or the new one and the old one; it has {0}"
    )]
    KeyCount(usize),
}

impl GithubError {
    /// The error with its cause, on one line.
    pub fn with_cause(&self) -> String {
        match self {
            Self::Transient { source, .. } | Self::Malformed { source, .. } => {
                format!("{self}: {source}")
            }
            _ => self.to_string(),
        }
    }

    /// Whether another try may help, at once or after [`GithubError::retry_at`].
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::RateLimited { .. } | Self::Transient { .. } | Self::Malformed { .. })
    }

    /// Whether the request was sent and no answer came, so that GitHub may still do what was asked. What it answers
    /// with 5xx isn't done later: it ends requests that take over 10 s itself
    /// (docs.github.com, "Troubleshooting the REST API").
    pub fn is_unanswered(&self) -> bool {
        matches!(self, Self::Transient { source, .. } if source.status().is_none() && source.may_be_applied())
    }

    /// Whether GitHub may have done what was asked although this is an error.
    pub fn may_be_applied(&self) -> bool {
        match self {
            Self::Transient { source, .. } | Self::Malformed { source, .. } => {
                source.may_be_applied()
            }
            _ => false,
        }
    }

    /// Whether the answer was longer than the caller takes, which another try doesn't change.
    pub fn is_too_large(&self) -> bool {
        matches!(self, Self::Malformed { source, .. } if matches!(source.last(), HttpError::TooLarge(_)))
    }

    /// When GitHub allows the next try.
    pub fn retry_at(&self) -> Option<Timestamp> {
        match self {
            Self::RateLimited { until, .. } => Some(*until),
            _ => None,
        }
    }

    /// How long GitHub asked to wait in an outage, at most an hour.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Transient { source, .. } => source.retry_after(),
            _ => None,
        }
    }

    /// Classifies a failed request. `call` is its name, like `GET /app`.
    pub(crate) fn from_http(call: &str, error: HttpError, now: Timestamp) -> Self {
        let HttpError::Status { status, headers, body, retry_after } = error.last() else {
            return match error.last() {
                HttpError::Transport(_) | HttpError::Intermediary { .. } => {
                    Self::Transient { call: call.to_owned(), source: error }
                }
                _ => Self::Malformed { call: call.to_owned(), source: error },
            };
        };
        let message = message(body);
        let detail = format!("`{call}`: {} {message}", status.as_u16());
        match status.as_u16() {
            403 | 429 => match rate_limit_end(headers, *retry_after, &message, now) {
                Some(until) => Self::RateLimited { until, call: call.to_owned() },
                None if status.as_u16() == 429 => {
                    Self::RateLimited { until: now + DEFAULT_PAUSE, call: call.to_owned() }
                }
                None => Self::Forbidden(detail),
            },
            301 | 307 | 308 => {
                let to = headers.get(header::LOCATION).and_then(|to| to.to_str().ok());
                Self::Moved { call: call.to_owned(), to: to.map_or("elsewhere".to_owned(), line) }
            }
            401 => Self::Unauthorized(detail),
            404 | 410 => Self::NotFound(detail),
            451 => Self::Forbidden(detail),
            400 | 409 | 413 | 422 => Self::Unprocessable(detail),
            _ if error.is_transient() => Self::Transient { call: call.to_owned(), source: error },
            _ => Self::Malformed { call: call.to_owned(), source: error },
        }
    }
}

/// When the rate limit ends; `None` when the answer isn't about one.
fn rate_limit_end(
    headers: &HeaderMap,
    retry_after: Option<Duration>,
    message: &str,
    now: Timestamp,
) -> Option<Timestamp> {
    if let Some(pause) = retry_after {
        return Some(now + pause);
    }
    let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<i64>().ok();
    if number("x-ratelimit-remaining") == Some(0) {
        let reset = number("x-ratelimit-reset").and_then(|s| Timestamp::from_second(s).ok());
        // A reset in the past means that the clocks differ: wait all the same. The limit is that of an hour, so one
        // that comes later means it, too.
        let reset = reset.filter(|at| *at > now).unwrap_or(now + DEFAULT_PAUSE);
        return Some(reset.min(now + LIMIT_PERIOD));
    }
    // GitHub called it "abuse detection mechanism" before 2021, and old Enterprise Servers still do. Where a
    // proxy takes the headers away, only the text tells of the primary limit.
    let message = message.to_lowercase();
    let is_limit = ["rate limit", "abuse detection"].iter().any(|it| message.contains(it));
    is_limit.then_some(now + DEFAULT_PAUSE)
}

/// GitHub's `message` and what its `errors` say, else the start of the text; one line of at most 300 characters.
fn message(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct ErrorAnswer {
        message: String,
        #[serde(default)]
        errors: serde_json::Value,
    }
    let Ok(answer) = serde_json::from_slice::<ErrorAnswer>(body) else {
        return line(&String::from_utf8_lossy(body));
    };
    let reasons = answer.errors.as_array().into_iter().flatten().filter_map(reason);
    let reasons: Vec<String> = reasons.collect();
    if reasons.is_empty() {
        return line(&answer.message);
    }
    line(&format!("{} ({})", answer.message, reasons.join("; ")))
}

/// One of the `errors` of a 422: a text, or an object that says which field is wrong.
/// <https://docs.github.com/en/rest/using-the-rest-api/troubleshooting-the-rest-api#validation-failed>
fn reason(error: &serde_json::Value) -> Option<String> {
    let text = |name: &str| error.get(name).and_then(serde_json::Value::as_str);
    if let Some(message) = error.as_str().or_else(|| text("message")) {
        return Some(message.to_owned());
    }
    let field = [text("resource"), text("field")].into_iter().flatten().collect::<Vec<_>>();
    text("code").map(|code| format!("{}: {code}", field.join(".")))
}

fn line(text: &str) -> String {
    text.chars().take(300).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderValue, StatusCode};

    const NOW: i64 = 1_760_000_000;

    fn classify(status: u16, headers: &[(&'static str, &str)], body: &str) -> GithubError {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, HeaderValue::from_str(value).unwrap());
        }
        let retry_after = map
            .get("retry-after")
            .map(|v| Duration::from_secs(v.to_str().unwrap().parse().unwrap()));
        let error = HttpError::Status {
            status: StatusCode::from_u16(status).unwrap(),
            retry_after,
            headers: Box::new(map),
            body: body.to_owned().into(),
        };
        GithubError::from_http("GET /x", error, Timestamp::from_second(NOW).unwrap())
    }

    fn seconds_to_retry(error: &GithubError) -> Option<i64> {
        error.retry_at().map(|at| at.as_second() - NOW)
    }

    #[test]
    fn primary_rate_limit_ends_at_its_reset_time() {
        let reset = (NOW + 1234).to_string();
        let headers = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", reset.as_str())];
        assert_eq!(seconds_to_retry(&classify(403, &headers, "{}")), Some(1234));
        assert_eq!(seconds_to_retry(&classify(429, &headers, "{}")), Some(1234));
        let day = (NOW + 86_400).to_string();
        let far = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", day.as_str())];
        assert_eq!(seconds_to_retry(&classify(403, &far, "{}")), Some(3600), "our clock is behind");
        let past = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "5")];
        assert_eq!(seconds_to_retry(&classify(403, &past, "{}")), Some(60));
        let told = r#"{"message":"API rate limit exceeded for installation ID 5."}"#;
        assert_eq!(seconds_to_retry(&classify(403, &[], told)), Some(60), "without its headers");
    }

    #[test]
    fn secondary_rate_limit_ends_after_retry_after_or_a_minute() {
        assert_eq!(seconds_to_retry(&classify(403, &[("retry-after", "7")], "{}")), Some(7));
        let told = r#"{"message":"You have exceeded a secondary rate limit."}"#;
        assert_eq!(
            seconds_to_retry(&classify(403, &[("x-ratelimit-remaining", "12")], told)),
            Some(60)
        );
        assert_eq!(seconds_to_retry(&classify(429, &[], "{}")), Some(60));
    }

    #[tokio::test]
    async fn only_a_request_that_was_sent_is_unanswered() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let ask = async || {
            let error = reqwest::Client::new().get(&url).send().await.unwrap_err();
            GithubError::from_http("GET /x", HttpError::Transport(error), Timestamp::now())
        };
        let (unanswered, _) = tokio::join!(ask(), async { drop(listener.accept().await.unwrap()) });
        assert!(unanswered.is_transient() && unanswered.is_unanswered());
        drop(listener);
        let refused = ask().await;
        assert!(refused.is_transient() && !refused.is_unanswered());
        assert!(!classify(504, &[], "").is_unanswered());
        assert!(unanswered.may_be_applied() && !refused.may_be_applied());
        assert!(
            classify(502, &[], "").may_be_applied() && !classify(429, &[], "").may_be_applied()
        );
    }

    #[test]
    fn a_403_without_rate_limit_headers_is_forbidden_and_not_retried() {
        let error = classify(
            403,
            &[("x-ratelimit-remaining", "12")],
            r#"{"message":"Resource not accessible by integration"}"#,
        );
        assert!(matches!(error, GithubError::Forbidden(_)) && !error.is_transient());
        assert_eq!(
            error.to_string(),
            "GitHub forbids it: `GET /x`: 403 Resource not accessible by integration"
        );
    }

    #[test]
    fn reasons_of_a_422_are_quoted_whatever_their_form() {
        let said = |body: &str| classify(422, &[], body).to_string();
        let field = r#"{"message":"Validation Failed","errors":[
            {"resource":"CheckRun","field":"name","code":"missing_field"},
            {"message":"summary is too long"}, "No commit found for SHA", 7, {}]}"#;
        assert!(
            said(field).ends_with(
                "Validation Failed (CheckRun.name: missing_field; summary is too long; No commit found \
                 for SHA)"
            ),
            "{}",
            said(field)
        );
        let plain = r#"{"message":"Validation Failed","errors":"none"}"#;
        assert!(said(plain).ends_with("422 Validation Failed"), "{}", said(plain));
    }

    #[test]
    fn outage_may_say_how_long_it_takes() {
        let pause = Some(Duration::from_secs(90));
        assert_eq!(classify(503, &[("retry-after", "90")], "").retry_after(), pause);
        assert_eq!(classify(503, &[], "").retry_after(), None);
    }

    #[test]
    fn each_status_maps_to_its_error_kind() {
        assert!(matches!(classify(404, &[], "{}"), GithubError::NotFound(_)));
        assert!(matches!(classify(401, &[], "{}"), GithubError::Unauthorized(_)));
        assert!(matches!(classify(422, &[], "{}"), GithubError::Unprocessable(_)));
        assert!(classify(502, &[], "<html>").is_transient());
        assert!(classify(408, &[], "").is_transient());
        assert!(matches!(classify(302, &[], ""), GithubError::Malformed { .. }));
        for status in [301, 307, 308] {
            let moved = classify(status, &[("location", "https://a.test/repositories/7")], "{}");
            assert!(
                matches!(&moved, GithubError::Moved { to, .. } if to.ends_with("/7")),
                "{moved}"
            );
            assert!(!moved.is_transient());
        }
    }
}
