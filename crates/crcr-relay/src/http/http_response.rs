//! Responses in the format of the deployed relay: JSON, with errors as `{"detail": …}`.

use axum::Json;
use axum::body::HttpBody as _;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use crcr_store::StoreError;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde_json::{Value, json};

use super::body_memory::{BodyMemory, BodyShare};
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

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        Self::unavailable(error.to_string())
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

static MEMORY: BodyMemory = BodyMemory::new(limits::BODY_MEMORY_BYTES);

/// Reads the body of a request, at most `limit` bytes. All bodies together take at most
/// [`limits::BODY_MEMORY_BYTES`], so that nobody can fill the memory.
pub async fn body(body: axum::body::Body, limit: usize) -> Result<Bytes, Refusal> {
    read_within(&MEMORY, body, limit).await
}

async fn read_within(
    memory: &'static BodyMemory,
    body: axum::body::Body,
    limit: usize,
) -> Result<Bytes, Refusal> {
    // What is announced may never arrive: no more is set aside than a usual webhook takes.
    let expected = body.size_hint().lower().min(64 * 1024) as usize;
    let mut body = Limited::new(body, limit);
    let mut held = HeldBody { bytes: BytesMut::with_capacity(expected), share: memory.begin() };
    let dropped = held.share.dropped.clone();
    let whole = async {
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| refused(&*error, limit))?;
            let Ok(data) = frame.into_data() else { continue };
            held.share.add(data.len()).await;
            held.bytes.extend_from_slice(&data);
        }
        Ok::<(), Refusal>(())
    };
    tokio::select! {
        biased;
        () = dropped.cancelled() => {
            let detail = "The body arrived too slowly while the relay had much to do; send it again";
            let status = StatusCode::REQUEST_TIMEOUT;
            return Err(Refusal { retry_after: Some(5), ..Refusal::new(status, detail) });
        }
        read = whole => read?,
    }
    held.share.arrived();
    Ok(Bytes::from_owner(held))
}

/// A body that frees its memory when it is dropped.
struct HeldBody {
    bytes: BytesMut,
    share: BodyShare<'static>,
}

impl AsRef<[u8]> for HeldBody {
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
    use futures_util::StreamExt as _;

    use super::*;

    /// A body that sends some bytes and then nothing more.
    fn stalled(bytes: usize) -> Body {
        let first = futures_util::stream::iter([Ok::<_, std::io::Error>(vec![b'x'; bytes])]);
        Body::from_stream(first.chain(futures_util::stream::pending()))
    }

    #[tokio::test]
    async fn bodies_that_stall_lose_their_memory_to_one_that_arrives() {
        static MEMORY: BodyMemory = BodyMemory::new(100_000);
        let slow: Vec<_> =
            (0..9).map(|_| tokio::spawn(read_within(&MEMORY, stalled(10_000), 50_000))).collect();
        tokio::time::sleep(Duration::from_millis(50)).await;
        let arrives = || read_within(&MEMORY, Body::from(vec![b'x'; 50_000]), 50_000);
        let soon = Duration::from_secs(5);
        let held = tokio::time::timeout(soon, arrives()).await.expect("it doesn't wait").unwrap();
        assert_eq!(held.len(), 50_000);
        let dropped = slow.iter().filter(|task| task.is_finished()).count();
        assert_eq!(dropped, 4, "no more than it takes");
        // What has arrived is never dropped, and further ones wait until it is worked on. A part of a body
        // is a body.
        let part = held.slice(..1);
        drop(held);
        let more = tokio::time::timeout(soon, arrives()).await.expect("the rest stall").unwrap();
        let waits = tokio::time::timeout(Duration::from_millis(50), arrives()).await;
        assert!(waits.is_err(), "both halves are in use");
        drop(part);
        assert_eq!(arrives().await.unwrap().len(), 50_000);
        drop(more);
        for task in slow {
            let refusal = task.await.unwrap().unwrap_err();
            assert_eq!(refusal.status, StatusCode::REQUEST_TIMEOUT);
        }
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
