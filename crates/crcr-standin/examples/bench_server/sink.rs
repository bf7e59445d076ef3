//! A bucket that accepts all objects and stores none, for measuring uploads: a server that hashed
//! and stored them would be slower than its clients.
//!
//! Nothing is checked, nothing can be read back, and all lists are empty.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::TryStreamExt as _;

#[derive(Debug, Default)]
pub(crate) struct Received {
    /// Bytes of bodies, including those of broken requests.
    pub(crate) bytes: AtomicU64,
}

/// The routes of a bucket of any name, in path style.
pub(crate) fn router(received: Arc<Received>) -> Router {
    Router::new().fallback(answer).with_state(received)
}

async fn answer(State(received): State<Arc<Received>>, request: Request) -> Response {
    let query = request.uri().query().unwrap_or_default().to_owned();
    let method = request.method().clone();
    match (&method, query.as_str()) {
        (&Method::PUT, _) => {
            if drain(request.into_body(), &received).await.is_err() {
                return StatusCode::BAD_REQUEST.into_response();
            }
            [(header::ETAG, "\"dropped\"")].into_response()
        }
        (&Method::POST, "uploads" | "uploads=") => xml(
            "<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>",
        ),
        (&Method::POST, _) => xml(
            "<CompleteMultipartUploadResult><ETag>\"dropped\"</ETag></CompleteMultipartUploadResult>",
        ),
        (&Method::DELETE, _) => StatusCode::NO_CONTENT.into_response(),
        (&Method::GET, query) if query.starts_with("uploads") => {
            xml("<ListMultipartUploadsResult></ListMultipartUploadsResult>")
        }
        (&Method::GET, query) if query.contains("list-type=2") => {
            xml("<ListBucketResult></ListBucketResult>")
        }
        _ => {
            let text = "<Error><Code>NoSuchKey</Code><Message>nothing is kept</Message></Error>";
            (StatusCode::NOT_FOUND, xml(text)).into_response()
        }
    }
}

async fn drain(body: Body, received: &Received) -> Result<(), axum::Error> {
    let mut chunks = body.into_data_stream();
    while let Some(chunk) = chunks.try_next().await? {
        received.bytes.fetch_add(chunk.len() as u64, Ordering::Relaxed);
    }
    Ok(())
}

fn xml(text: &'static str) -> Response {
    ([(header::CONTENT_TYPE, "application/xml")], text).into_response()
}
