//! Why a request to S3 failed, whether the SDK or our own client sent it.

use std::fmt;
use std::time::Duration;

use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use crcr_aws::sdk_error::sdk_cause;
use crcr_aws::sts::AwsError;
use crcr_github::artifact::one_line;
use crcr_github::http::{self, RetryLoop, pause_of};
use jiff::Timestamp;
use reqwest::header::HeaderMap;

use super::REGION_HEADER;
use super::credentials::{is_outage, of_credentials};

/// How a refusal reads that the clock explains.
pub const SKEWED: &str = "this machine's clock differs from S3's";

#[derive(Debug, Default)]
pub struct S3Refusal {
    /// `None` without a response.
    pub(crate) status: Option<u16>,
    pub(crate) code: Option<String>,
    /// S3's message, or the transport's error.
    pub(crate) message: String,
    /// The bucket's region, if the server names it.
    pub(crate) region: Option<String>,
    /// Where a redirect leads to.
    pub(crate) location: Option<String>,
    /// The request couldn't be built or signed, mostly because there are no credentials.
    pub(crate) not_sent: bool,
    /// What provides the credentials can't be reached.
    pub(crate) credentials_outage: bool,
    /// The answer isn't from S3, mostly because it is a web page.
    pub(crate) is_web_page: bool,
    /// A time limit of ours ended the request.
    pub(crate) is_timeout: bool,
    pub(crate) retry_after: Option<Duration>,
    /// How often and how long it was tried.
    pub(crate) history: Option<String>,
}

impl fmt::Display for S3Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.status, self.code.as_deref()) {
            _ if self.credentials_outage => write!(f, "no credentials for S3: {}", self.message),
            (Some(status), _) if self.is_web_page => {
                write!(f, "something in between answered {status} instead of S3")
            }
            (Some(status), Some(code)) => write!(f, "S3 answered {status} {code}"),
            (Some(status), None) => write!(f, "S3 answered {status}"),
            (None, _) => write!(f, "no answer from S3: {}", self.message),
        }
    }
}

impl S3Refusal {
    pub(crate) fn before_sending(error: &(dyn std::error::Error + 'static)) -> Self {
        let (message, credentials_outage) = (one_line(&sdk_cause(error)), is_outage(error));
        Self { message, not_sent: true, credentials_outage, ..Self::default() }
    }

    pub(crate) fn is_transient(&self) -> bool {
        match (self.status, self.code.as_deref()) {
            // A success has one of these in its body, too, if S3 failed after it had begun to answer.
            (_, Some("SlowDown" | "InternalError" | "ServiceUnavailable")) => true,
            (_, Some("RequestTimeout" | "RequestTimeoutException" | "PriorRequestNotComplete")) => {
                true
            }
            (_, Some(code)) if is_throttling(code) => true,
            // Another writer is at work. AWS asks to send the request again.
            (_, Some("ConditionalRequestConflict" | "OperationAborted")) => true,
            // What arrived isn't what was sent.
            (_, Some("BadDigest" | "IncompleteBody" | "XAmzContentSHA256Mismatch")) => true,
            // What is full stays full.
            (Some(507), _) => false,
            (Some(408 | 421 | 425 | 429 | 499 | 500 | 502..=599), _) => true,
            // A success that isn't S3's.
            (Some(200..300), None) => true,
            // S3 leads to another region by 301 and 307 alone; a login page is behind these.
            (Some(302 | 303), None) => true,
            (Some(407), _) => false,
            (Some(200..500), _) => self.is_web_page,
            (Some(_), _) => false,
            (None, _) if http::is_untrusted(&self.message) => false,
            (None, _) => !self.not_sent || self.credentials_outage,
        }
    }

    /// This refusal with what `tries` did to avoid it.
    pub(crate) fn after(self, tries: &RetryLoop) -> Self {
        Self { history: tries.history().filter(|_| self.is_transient()), ..self }
    }

    pub(crate) fn is_throttled(&self) -> bool {
        matches!(self.status, Some(429 | 503)) || self.code.as_deref().is_some_and(is_throttling)
    }

    /// S3 answers 412, or 409 for two simultaneous writers; or it says so in the body of a success.
    pub(crate) fn is_precondition_failed(&self) -> bool {
        matches!(self.status, Some(409 | 412)) || self.code.as_deref() == Some("PreconditionFailed")
    }

    /// Whether the requested range starts behind the object's last byte.
    pub(crate) fn is_beyond_the_end(&self) -> bool {
        self.status == Some(416) || self.code.as_deref() == Some("InvalidRange")
    }

    /// Whether the server doesn't know a header. Not all of them name it, and some call it invalid.
    pub(crate) fn is_about_a_header(&self) -> bool {
        let is_checksum = || self.message.to_ascii_lowercase().contains("checksum");
        match (self.status, self.code.as_deref()) {
            (Some(501), _) | (_, Some("NotImplemented")) => true,
            (Some(400), _) => !self.is_transient() && is_checksum(),
            _ => false,
        }
    }

    /// Maybe the credentials may not tag, or the server doesn't know tags.
    pub(crate) fn may_be_about_tagging(&self) -> bool {
        matches!(self.status, Some(400 | 403 | 501))
    }
}

impl<E> From<&SdkError<E, HttpResponse>> for S3Refusal
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    fn from(error: &SdkError<E, HttpResponse>) -> Self {
        let response = error.raw_response();
        let message = match response {
            Some(it) => match error.message() {
                Some(message) => one_line(message),
                None if it.status().as_u16() == 403 => skew(it).unwrap_or_default(),
                None => String::new(),
            },
            None => one_line(&http::with_advice(sdk_cause(error))),
        };
        Self {
            status: response.map(|response| {
                let original = response.headers().get(super::ORIGINAL_STATUS_HEADER);
                let original = original.and_then(|status| status.parse().ok());
                original.unwrap_or(response.status().as_u16())
            }),
            code: error.code().map(str::to_owned),
            message,
            region: response.and_then(|it| {
                // Servers other than Amazon's name it in the body.
                let in_body = || AwsError::read(it.body().bytes()?)?.region;
                it.headers().get(REGION_HEADER).map(str::to_owned).or_else(in_body)
            }),
            location: response.and_then(|it| Some(one_line(it.headers().get("location")?))),
            not_sent: matches!(error, SdkError::ConstructionFailure(_))
                || of_credentials(error).is_some(),
            credentials_outage: is_outage(error),
            is_web_page: response.is_some_and(|response| {
                let has_text = response.body().bytes().is_some_and(|body| !body.is_empty());
                response.headers().get(super::ORIGINAL_STATUS_HEADER).is_some()
                    || is_web_page(response)
                    || (has_text
                        && error.code().is_none()
                        && needs_code(response.status().as_u16()))
            }),
            is_timeout: match error {
                SdkError::TimeoutError(_) => true,
                SdkError::DispatchFailure(failure) => failure.is_timeout(),
                _ => false,
            },
            retry_after: response.and_then(|it| pause_of(it.headers().get("retry-after")?)),
            history: None,
        }
    }
}

/// Whether AWS asks by this code for fewer requests. It does so with status 400, too, as for KMS behind a bucket.
fn is_throttling(code: &str) -> bool {
    // As botocore's retries know them.
    const OTHERS: [&str; 5] = [
        "BandwidthLimitExceeded",
        "RequestLimitExceeded",
        "SlowDown",
        "TooManyRequests",
        "TooManyRequestsException",
    ];
    code.contains("Throttl") || OTHERS.contains(&code)
}

/// What a refusal without a body, as of a HEAD, may be about: S3 takes nothing that is signed more than 15 minutes off.
fn skew(response: &HttpResponse) -> Option<String> {
    let date = jiff::fmt::rfc2822::parse(response.headers().get("date")?).ok()?.timestamp();
    let minutes = Timestamp::now().duration_since(date).as_mins().unsigned_abs();
    (minutes >= 15).then(|| format!("{SKEWED} by {minutes} minutes"))
}

/// Whether an answer of S3 with this status has a code, except to a HEAD. One without a code, such as "no route", comes
/// from something in between.
fn needs_code(status: u16) -> bool {
    matches!(status, 403 | 404)
}

/// Some servers call a refusal without a body `text/html`, too, unless it is a 403. The answer to a HEAD says only how
/// long its body would be.
fn is_web_page(response: &HttpResponse) -> bool {
    let kind = response.headers().get("content-type").unwrap_or_default();
    let body = response.body().bytes().unwrap_or_default();
    let is_called_so = kind.to_ascii_lowercase().starts_with("text/html");
    let can_be_empty = match response.status().as_u16() {
        200..300 | 403 | 500.. => true,
        // S3 itself leads to a bucket's region.
        300..400 => response.headers().get(REGION_HEADER).is_none(),
        _ => false,
    };
    let length = response.headers().get("content-length").unwrap_or("0");
    (is_called_so && (can_be_empty || !body.is_empty() || length != "0"))
        || http::is_web_page(&HeaderMap::new(), body)
}

impl From<&http::HttpError> for S3Refusal {
    fn from(error: &http::HttpError) -> Self {
        let (status, headers, body, is_web_page) = match error.last() {
            http::HttpError::Status { status, headers, body, .. } => {
                (status, &**headers, body, false)
            }
            http::HttpError::Intermediary { status, body } => {
                (status, &HeaderMap::default(), body, true)
            }
            last => {
                let message = one_line(&last.to_string());
                let not_sent =
                    matches!(last, http::HttpError::Transport(error) if error.is_builder());
                let is_timeout = last.is_timeout();
                return Self { message, not_sent, is_timeout, ..Self::default() };
            }
        };
        let error_retry_after = error.retry_after();
        let error = AwsError::read(body);
        let region = headers.get(REGION_HEADER).and_then(|region| region.to_str().ok());
        let region = region.map(str::to_owned);
        let region = region.or_else(|| error.as_ref()?.region.clone());
        let is_web_page = is_web_page || (error.is_none() && needs_code(status.as_u16()));
        Self {
            status: Some(status.as_u16()),
            code: error.as_ref().map(|error| one_line(&error.code)),
            message: error.map(|error| one_line(&error.message)).unwrap_or_default(),
            region,
            is_web_page,
            retry_after: error_retry_after,
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(status: Option<u16>, code: Option<&str>) -> S3Refusal {
        S3Refusal { status, code: code.map(str::to_owned), ..S3Refusal::default() }
    }

    #[test]
    fn only_what_may_pass_is_tried_again() {
        for (status, code, again) in [
            (Some(200), Some("InternalError"), true),
            (Some(200), None, true),
            (Some(299), None, true),
            (Some(301), Some("PermanentRedirect"), false),
            (Some(302), None, true),
            (Some(303), None, true),
            (Some(307), Some("TemporaryRedirect"), false),
            (Some(200), Some("AccessDenied"), false),
            (Some(400), Some("RequestTimeout"), true),
            (Some(400), Some("RequestTimeoutException"), true),
            (Some(400), Some("ThrottlingException"), true),
            (Some(400), Some("KMS.ThrottlingException"), true),
            (Some(400), Some("RequestThrottled"), true),
            (Some(400), Some("RequestLimitExceeded"), true),
            (Some(400), Some("IllegalLocationConstraintException"), false),
            (Some(400), Some("BadDigest"), true),
            (Some(400), Some("InvalidArgument"), false),
            (Some(403), Some("AccessDenied"), false),
            (Some(404), None, false),
            (Some(407), None, false),
            (Some(408), None, true),
            (Some(409), Some("OperationAborted"), true),
            (Some(421), None, true),
            (Some(425), None, true),
            (Some(499), None, true),
            (Some(429), None, true),
            (Some(500), None, true),
            (Some(501), Some("NotImplemented"), false),
            (Some(502), None, true),
            (Some(507), Some("XMinioStorageFull"), false),
            (Some(599), None, true),
            (Some(600), None, false),
            (None, None, true),
        ] {
            assert_eq!(refusal(status, code).is_transient(), again, "{status:?} {code:?}");
        }
        let message = "invalid peer certificate: UnknownIssuer".to_owned();
        assert!(!S3Refusal { message, ..refusal(None, None) }.is_transient());
        let unsent = S3Refusal { not_sent: true, ..refusal(None, None) };
        assert!(!unsent.is_transient());
        assert!(S3Refusal { credentials_outage: true, ..unsent }.is_transient());
        for (status, again) in [(403, true), (407, false), (499, true)] {
            let page = S3Refusal { is_web_page: true, ..refusal(Some(status), None) };
            assert_eq!(page.is_transient(), again, "{status}");
        }
    }

    #[test]
    fn refusals_with_a_meaning_of_their_own_are_told_apart() {
        let throttled = [
            (Some(429), None),
            (Some(503), None),
            (Some(200), Some("SlowDown")),
            (Some(400), Some("ThrottlingException")),
        ];
        assert!(throttled.iter().all(|(status, code)| refusal(*status, *code).is_throttled()));
        let exists =
            [(Some(409), None), (Some(412), None), (Some(200), Some("PreconditionFailed"))];
        assert!(
            exists.iter().all(|(status, code)| refusal(*status, *code).is_precondition_failed())
        );
        let other = refusal(Some(403), Some("AccessDenied"));
        assert!(
            !other.is_throttled() && !other.is_precondition_failed() && !other.is_about_a_header()
        );
        assert!(other.may_be_about_tagging() && !refusal(Some(404), None).may_be_about_tagging());
        let said = |message: &str| S3Refusal {
            message: message.to_owned(),
            ..refusal(Some(400), Some("InvalidArgument"))
        };
        assert!(said("x-amz-Checksum-crc64nvme isn't known").is_about_a_header());
        assert!(!said("x-amz-acl isn't known").is_about_a_header());
        assert!(refusal(Some(501), None).is_about_a_header());
        assert_eq!(one_line(&"a\n".repeat(300)), "a ".repeat(250));
    }
}
