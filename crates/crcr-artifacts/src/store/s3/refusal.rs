//! Why a request to a bucket failed, whoever sent it.

use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use crcr_github::http;
use crcr_github::sts::AwsError;

use super::REGION_HEADER;

/// A request without a good answer.
#[derive(Debug)]
pub struct S3Refusal {
    /// The status of the answer, if there was one.
    pub(super) status: Option<u16>,
    /// S3's word for what is wrong.
    pub(super) code: Option<String>,
    /// What it says about it; without an answer, what is in the way.
    pub(super) message: String,
    /// The bucket's region, where the server names it.
    pub(super) region: Option<String>,
    /// Whether the request was never made, as there are no credentials for it.
    pub(super) not_sent: bool,
}

impl S3Refusal {
    /// Of a request that can't be made.
    pub(super) fn before_sending(error: &dyn std::error::Error) -> Self {
        let message = one_line(&root_cause(error));
        Self { status: None, code: None, message, region: None, not_sent: true }
    }

    /// Whether the server can't keep up, or the line couldn't, whatever the status.
    pub(super) fn is_slow_down_or_timeout(&self) -> bool {
        matches!(self.code.as_deref(), Some("SlowDown" | "RequestTimeout"))
    }

    /// Whether it was more than the server takes at once.
    pub(super) fn is_throttled(&self) -> bool {
        matches!(self.status, Some(429 | 503)) || self.code.as_deref() == Some("SlowDown")
    }

    /// Whether a condition doesn't hold: 412, or 409 for two writers at once.
    pub(super) fn is_precondition_failed(&self) -> bool {
        matches!(self.status, Some(409 | 412))
    }

    /// Whether it may be about the tag: no right to tag, or a server without tags.
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
            // Credentials are looked for while the request is made.
            not_sent: matches!(error, SdkError::ConstructionFailure(_)),
        }
    }
}

impl From<&http::HttpError> for S3Refusal {
    fn from(error: &http::HttpError) -> Self {
        let http::HttpError::Status { status, headers, body, .. } = error else {
            let message = one_line(&error.to_string());
            let not_sent = matches!(error, http::HttpError::Transport(error) if error.is_builder());
            return Self { status: None, code: None, message, region: None, not_sent };
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
