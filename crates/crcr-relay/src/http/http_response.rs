//! Responses in the format of the deployed relay: JSON, with errors as `{"detail": …}`.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::limits;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub status: StatusCode,
    pub detail: String,
    /// Seconds to wait before a retry.
    pub retry_after: Option<u64>,
}

impl Refusal {
    pub fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into(), retry_after: None }
    }

    /// A 503: nothing was recorded, and the same request may be sent again.
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

pub fn ok(body: Value) -> Response {
    Json(body).into_response()
}

/// Further large bodies wait until one is dropped.
static LARGE_BODIES: Semaphore = Semaphore::const_new(limits::LARGE_BODIES);

/// Reads the body of a request, at most `limit` bytes. At most [`limits::LARGE_BODIES`] bodies larger
/// than [`limits::SMALL_BODY`] are in memory at a time, so that nobody can fill the memory.
pub async fn body(body: axum::body::Body, limit: usize) -> Result<Bytes, Refusal> {
    let mut body = Limited::new(body, limit);
    let mut held = CountedBody { bytes: BytesMut::new(), permit: None };
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| refused(&*error, limit))?;
        let Ok(data) = frame.into_data() else { continue };
        if held.permit.is_none() && held.bytes.len() + data.len() > limits::SMALL_BODY {
            held.permit = Some(LARGE_BODIES.acquire().await.expect("it is never closed"));
        }
        held.bytes.extend_from_slice(&data);
    }
    Ok(Bytes::from_owner(held))
}

/// A body that releases its permit when it is dropped.
struct CountedBody {
    bytes: BytesMut,
    permit: Option<SemaphorePermit<'static>>,
}

impl AsRef<[u8]> for CountedBody {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

fn refused(error: &(dyn std::error::Error + 'static), limit: usize) -> Refusal {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    if causes.any(|cause| cause.is::<LengthLimitError>()) {
        let detail = format!("Body is larger than {limit} bytes");
        return Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, detail);
    }
    Refusal::new(StatusCode::BAD_REQUEST, "Body did not arrive whole")
}

/// The response for a path that doesn't exist, or that the caller must not know about.
pub(crate) fn not_found() -> Response {
    Refusal::new(StatusCode::NOT_FOUND, "Not found").into_response()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::body::Body;

    use super::*;

    #[tokio::test]
    async fn only_so_many_large_bodies_are_held_and_small_ones_never_wait() {
        let large = || body(Body::from(vec![b'x'; limits::SMALL_BODY + 1]), limits::WEBHOOK_BYTES);
        let mut held = vec![];
        for _ in 0..limits::LARGE_BODIES {
            held.push(large().await.unwrap());
        }
        let soon = Duration::from_millis(50);
        let waits = tokio::time::timeout(soon, large()).await;
        assert!(waits.is_err(), "one more than there are places");
        let small = Body::from(vec![b'x'; limits::SMALL_BODY]);
        assert_eq!(body(small, limits::WEBHOOK_BYTES).await.unwrap().len(), limits::SMALL_BODY);
        // A part of a body is a body.
        let part = held.pop().unwrap().slice(..1);
        assert!(tokio::time::timeout(soon, large()).await.is_err());
        drop(part);
        assert_eq!(large().await.unwrap().len(), limits::SMALL_BODY + 1);
    }

    #[tokio::test]
    async fn a_body_over_its_limit_or_cut_short_is_refused() {
        let over = body(Body::from("12345"), 4).await.unwrap_err();
        assert_eq!(over.status, StatusCode::PAYLOAD_TOO_LARGE);
        let broken = futures_util::stream::iter([Ok("1"), Err(std::io::Error::other("reset"))]);
        let cut = body(Body::from_stream(broken), 4).await.unwrap_err();
        assert_eq!(cut.status, StatusCode::BAD_REQUEST);
    }
}
