//! What GitHub's API answers when it doesn't do what was asked, as callers branch on it.

use std::time::Duration;

use http::header::{self, HeaderMap};
use jiff::Timestamp;
use serde::Deserialize;

use crate::http as web;

/// GitHub asks for a minute when it names no time.
/// <https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api>
const UNNAMED_PAUSE: Duration = Duration::from_secs(60);

/// Why a call to GitHub's API did not do what it was asked. The texts name the call and what
/// GitHub said, never a token.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// 404 or 410: it doesn't exist, or the token may not know that it does.
    #[error("GitHub doesn't know it: {0}")]
    NotFound(String),
    /// 401: the App's identity or the token was refused.
    #[error("GitHub refused the credentials: {0}")]
    Unauthorized(String),
    /// 403 that is no rate limit, 451: not allowed.
    #[error("GitHub forbids it: {0}")]
    Forbidden(String),
    /// 400, 409, 413, 422: GitHub understood and refused; another try gets the same answer.
    #[error("GitHub refused it: {0}")]
    Unprocessable(String),
    /// The primary or a secondary rate limit; nothing helps before `until`.
    #[error("GitHub's rate limit is spent until {until}: {call}")]
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
        /// `owner/repo`.
        repo: String,
        /// The permissions asked for, like `contents: write`.
        permission: String,
    },
    /// 301, 307, 308: the repository was renamed or moved, and its old name leads elsewhere.
    #[error("`{call}`: the repository is {to} now; write that name into the allowlist")]
    Moved {
        call: String,
        /// Where it is: its name, or else what GitHub says.
        to: String,
    },
    /// The name belongs to another repository than the caller expected; nothing was sent.
    #[error("`{repo}` is repository number {found} now, and number {expected} was expected")]
    OtherRepository {
        /// `owner/repo`.
        repo: String,
        /// The number that the caller expected.
        expected: u64,
        /// The number that GitHub names.
        found: u64,
    },
    /// The run that should be re-run is still running.
    #[error("the run is already running: {0}")]
    AlreadyRunning(String),
    /// No answer, a time-out or 5xx: another try may help.
    #[error("GitHub didn't answer `{call}`")]
    Transient {
        call: String,
        #[source]
        source: web::Error,
    },
    /// An answer that isn't what GitHub documents.
    #[error("GitHub answered `{call}` with something else than it documents")]
    Malformed {
        call: String,
        /// What was wrong with it.
        #[source]
        source: web::Error,
    },
}

impl Error {
    /// Whether another try may help, at once or after [`Error::retry_at`].
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::RateLimited { .. } | Self::Transient { .. } | Self::Malformed { .. })
    }

    /// The time that GitHub named for the next try.
    pub fn retry_at(&self) -> Option<Timestamp> {
        match self {
            Self::RateLimited { until, .. } => Some(*until),
            _ => None,
        }
    }

    /// Reads an HTTP error as GitHub means it. `call` is what was asked, like `GET /app`.
    pub(crate) fn from_http(call: &str, error: web::Error, now: Timestamp) -> Self {
        let web::Error::Status { status, headers, body, retry_after } = &error else {
            return match error {
                web::Error::Transport(_) | web::Error::Unreachable(_) => {
                    Self::Transient { call: call.to_owned(), source: error }
                }
                _ => Self::Malformed { call: call.to_owned(), source: error },
            };
        };
        let message = message(body);
        let told = format!("`{call}`: {} {message}", status.as_u16());
        match status.as_u16() {
            403 | 429 => match limited_until(headers, *retry_after, &message, now) {
                Some(until) => Self::RateLimited { until, call: call.to_owned() },
                None if status.as_u16() == 429 => {
                    Self::RateLimited { until: now + UNNAMED_PAUSE, call: call.to_owned() }
                }
                None => Self::Forbidden(told),
            },
            301 | 307 | 308 => {
                let to = headers.get(header::LOCATION).and_then(|to| to.to_str().ok());
                Self::Moved { call: call.to_owned(), to: to.map_or("elsewhere".to_owned(), line) }
            }
            401 => Self::Unauthorized(told),
            404 | 410 => Self::NotFound(told),
            451 => Self::Forbidden(told),
            400 | 409 | 413 | 422 => Self::Unprocessable(told),
            _ if error.is_transient() => Self::Transient { call: call.to_owned(), source: error },
            _ => Self::Malformed { call: call.to_owned(), source: error },
        }
    }
}

/// When the limit that this answer speaks of is over; `None` when it speaks of none.
fn limited_until(
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
        // A reset in the past means clocks that differ; asking again at once would be rude.
        return Some(reset.filter(|at| *at > now).unwrap_or(now + UNNAMED_PAUSE));
    }
    message.to_lowercase().contains("secondary rate limit").then_some(now + UNNAMED_PAUSE)
}

/// GitHub's `message`, else the start of the text; one line of at most 300 characters.
fn message(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Answer {
        message: String,
    }
    let text = serde_json::from_slice::<Answer>(body)
        .map_or_else(|_| String::from_utf8_lossy(body).into_owned(), |answer| answer.message);
    line(&text)
}

fn line(text: &str) -> String {
    text.chars().take(300).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderValue, StatusCode};

    const NOW: i64 = 1_760_000_000;

    fn read(status: u16, headers: &[(&'static str, &str)], body: &str) -> Error {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, HeaderValue::from_str(value).unwrap());
        }
        let retry_after = map
            .get("retry-after")
            .map(|v| Duration::from_secs(v.to_str().unwrap().parse().unwrap()));
        let error = web::Error::Status {
            status: StatusCode::from_u16(status).unwrap(),
            retry_after,
            headers: Box::new(map),
            body: body.to_owned().into(),
        };
        Error::from_http("GET /x", error, Timestamp::from_second(NOW).unwrap())
    }

    fn until(error: &Error) -> Option<i64> {
        error.retry_at().map(|at| at.as_second() - NOW)
    }

    #[test]
    fn the_primary_limit_ends_at_its_reset() {
        let reset = (NOW + 1234).to_string();
        let headers = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", reset.as_str())];
        assert_eq!(until(&read(403, &headers, "{}")), Some(1234));
        assert_eq!(until(&read(429, &headers, "{}")), Some(1234));
        let past = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "5")];
        assert_eq!(until(&read(403, &past, "{}")), Some(60));
    }

    #[test]
    fn a_secondary_limit_ends_when_github_says_or_after_a_minute() {
        assert_eq!(until(&read(403, &[("retry-after", "7")], "{}")), Some(7));
        let told = r#"{"message":"You have exceeded a secondary rate limit."}"#;
        assert_eq!(until(&read(403, &[("x-ratelimit-remaining", "12")], told)), Some(60));
        assert_eq!(until(&read(429, &[], "{}")), Some(60));
    }

    #[test]
    fn a_plain_403_is_no_rate_limit() {
        let error = read(
            403,
            &[("x-ratelimit-remaining", "12")],
            r#"{"message":"Resource not accessible by integration"}"#,
        );
        assert!(matches!(error, Error::Forbidden(_)) && !error.is_transient());
        assert_eq!(
            error.to_string(),
            "GitHub forbids it: `GET /x`: 403 Resource not accessible by integration"
        );
    }

    #[test]
    fn statuses_have_meanings_that_callers_branch_on() {
        assert!(matches!(read(404, &[], "{}"), Error::NotFound(_)));
        assert!(matches!(read(401, &[], "{}"), Error::Unauthorized(_)));
        assert!(matches!(read(422, &[], "{}"), Error::Unprocessable(_)));
        assert!(read(502, &[], "<html>").is_transient());
        assert!(read(408, &[], "").is_transient());
        assert!(matches!(read(302, &[], ""), Error::Malformed { .. }));
        for status in [301, 307, 308] {
            let moved = read(status, &[("location", "https://a.test/repositories/7")], "{}");
            assert!(matches!(&moved, Error::Moved { to, .. } if to.ends_with("/7")), "{moved}");
            assert!(!moved.is_transient());
        }
    }
}
