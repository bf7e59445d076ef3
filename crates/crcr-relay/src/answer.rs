//! Answers as the deployed relay words them: JSON, errors as `{"detail": …}`.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// A refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The status.
    pub status: StatusCode,
    /// Why, for the caller.
    pub detail: String,
    /// Seconds to wait before another try.
    pub retry_after: Option<u64>,
}

impl Refusal {
    /// A refusal.
    pub fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into(), retry_after: None }
    }

    /// The store can't be used: nothing was recorded, and the same request may come again.
    pub fn unavailable(detail: impl Into<String>) -> Self {
        let retry_after = Some(5);
        Self { status: StatusCode::SERVICE_UNAVAILABLE, detail: detail.into(), retry_after }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(json!({ "detail": self.detail }))).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// A good answer.
pub fn ok(body: Value) -> Response {
    Json(body).into_response()
}

/// The whole body of a request, of at most `limit` bytes.
pub async fn body(body: axum::body::Body, limit: usize) -> Result<bytes::Bytes, Refusal> {
    axum::body::to_bytes(body, limit).await.map_err(|error| {
        let mut source: &dyn std::error::Error = &error;
        loop {
            if source.is::<http_body_util::LengthLimitError>() {
                let detail = format!("Body is larger than {limit} bytes");
                return Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, detail);
            }
            match source.source() {
                Some(next) => source = next,
                None => return Refusal::new(StatusCode::BAD_REQUEST, "Body did not arrive whole"),
            }
        }
    })
}
