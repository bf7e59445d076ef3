//! What crosses the wire: an entity tag for every answer, 304 for one that the client has, compression,
//! and what crawlers may fetch.

use aws_lc_rs::digest::{SHA256, digest};
use axum::Router;
use axum::body::{Body, HttpBody as _, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use tower_http::compression::CompressionLayer;

/// A longer answer is sent as it comes, without a tag: it isn't held in memory.
const MAX_TAGGED_BYTES: u64 = 8 << 20;

/// Crawlers get the pages that lead to everything else. Each other page costs a computation, and its
/// filters make many addresses of one page.
pub(crate) const ROBOTS: &str = "User-agent: *\nAllow: /$\nAllow: /prs$\nAllow: /crcr$\nAllow: /hud$\n\
                                 Allow: /crcr/assets/\nAllow: /robots.txt$\nDisallow: /\n";

/// Adds tags, 304 and compression to the answers of a router.
pub(crate) fn with_transfer<S: Clone + Send + Sync + 'static>(router: Router<S>) -> Router<S> {
    router
        .layer(middleware::from_fn(with_tag))
        // Outermost: a tag is of the text, whatever its encoding.
        .layer(CompressionLayer::new().gzip(true).br(true))
}

async fn with_tag(mut request: Request, next: Next) -> Response {
    if request.method() == Method::HEAD {
        // Its tag and its length are those of the text, which the router drops.
        *request.method_mut() = Method::GET;
    }
    let is_get = request.method() == Method::GET;
    let known = request.headers().get(header::IF_NONE_MATCH).cloned();
    let answer = next.run(request).await;
    let length = answer.body().size_hint().exact();
    if !is_get
        || answer.status() != StatusCode::OK
        || length.is_none_or(|length| length > MAX_TAGGED_BYTES)
    {
        return answer;
    }
    let (mut head, body) = answer.into_parts();
    let Ok(body) = to_bytes(body, MAX_TAGGED_BYTES as usize).await else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let tag = tag_of(&body);
    set_cache_headers(&mut head.headers, &tag);
    if known.is_some_and(|known| is_among(&tag, &known)) {
        head.status = StatusCode::NOT_MODIFIED;
        head.headers.remove(header::CONTENT_LENGTH);
        return Response::from_parts(head, Body::empty());
    }
    Response::from_parts(head, Body::from(body))
}

/// Weak, because the bytes differ by encoding.
fn tag_of(body: &[u8]) -> HeaderValue {
    let hex = hex::encode(&digest(&SHA256, body).as_ref()[..16]);
    HeaderValue::try_from(format!("W/\"{hex}\"")).expect("hexadecimal digits")
}

fn set_cache_headers(headers: &mut HeaderMap, tag: &HeaderValue) {
    headers.insert(header::ETAG, tag.clone());
    // Asks each time whether it changed. What operators see beside a page depends on their cookie.
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache"));
    // The encoding is also said with a 304, from which a cache between takes the headers of what it has stored.
    headers.append(header::VARY, HeaderValue::from_static("cookie, accept-encoding"));
}

/// <https://www.rfc-editor.org/rfc/rfc9110.html#section-13.1.2>: weak comparison, a list, or `*`.
fn is_among(tag: &HeaderValue, known: &HeaderValue) -> bool {
    let (Ok(tag), Ok(known)) = (tag.to_str(), known.to_str()) else { return false };
    let opaque = |tag: &str| tag.trim().trim_start_matches("W/").to_owned();
    known.trim() == "*" || known.split(',').any(|one| opaque(one) == opaque(tag))
}
