//! Why a request to S3 failed, whether the SDK or our own client sent it.

use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use crcr_github::http;
use crcr_github::sts::AwsError;

use super::REGION_HEADER;

#[derive(Debug, Default)]
pub struct S3Refusal {
    /// `None` without a response.
    pub(super) status: Option<u16>,
    /// S3's error code.
    pub(super) code: Option<String>,
    /// S3's message, or the transport's error.
    pub(super) message: String,
    /// The bucket's region, if the server names it.
    pub(super) region: Option<String>,
    /// The request couldn't be built or signed, mostly because there are no credentials.
    pub(super) not_sent: bool,
}

impl S3Refusal {
    pub(super) fn before_sending(error: &dyn std::error::Error) -> Self {
        Self { message: one_line(&root_cause(error)), not_sent: true, ..Self::default() }
    }

    pub(super) fn is_slow_down_or_timeout(&self) -> bool {
        matches!(self.code.as_deref(), Some("SlowDown" | "RequestTimeout"))
    }

    pub(super) fn is_throttled(&self) -> bool {
        matches!(self.status, Some(429 | 503)) || self.code.as_deref() == Some("SlowDown")
    }

    /// S3 answers 412, or 409 for two simultaneous writers.
    pub(super) fn is_precondition_failed(&self) -> bool {
        matches!(self.status, Some(409 | 412))
    }

    /// Maybe the credentials may not tag, or the server doesn't know tags.
    pub(super) fn may_be_about_tagging(&self) -> bool {
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
            Some(_) => error.message().map(one_line).unwrap_or_default(),
            None => one_line(&root_cause(error)),
        };
        Self {
            status: response.map(|response| response.status().as_u16()),
            code: error.code().map(str::to_owned),
            message,
            region: response.and_then(|it| it.headers().get(REGION_HEADER)).map(str::to_owned),
            // The SDK gets the credentials while it builds the request.
            not_sent: matches!(error, SdkError::ConstructionFailure(_)),
        }
    }
}

impl From<&http::HttpError> for S3Refusal {
    fn from(error: &http::HttpError) -> Self {
        let http::HttpError::Status { status, headers, body, .. } = error else {
            let message = one_line(&error.to_string());
            let not_sent = matches!(error, http::HttpError::Transport(error) if error.is_builder());
            return Self { message, not_sent, ..Self::default() };
        };
        let error = AwsError::read(body);
        let region = headers.get(REGION_HEADER).and_then(|region| region.to_str().ok());
        Self {
            status: Some(status.as_u16()),
            code: error.as_ref().map(|error| one_line(&error.code)),
            message: error.map(|error| one_line(&error.message)).unwrap_or_default(),
            region: region.map(str::to_owned),
            not_sent: false,
        }
    }
}

/// A server's text, of bounded length and without control characters.
pub(super) fn one_line(text: &str) -> String {
    text.chars().take(500).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

pub(super) fn root_cause(error: &dyn std::error::Error) -> String {
    let mut source = error;
    while let Some(next) = source.source() {
        source = next;
    }
    source.to_string()
}
