//! Azure block blob storage over HTTP, behind signed URLs.
//!
//! <https://learn.microsoft.com/rest/api/storageservices/put-block>, `put-block-list`, `put-blob`,
//! `get-blob`. MD5 checks of uploads, leases, snapshots and tiers are left out.

use std::ops::Range;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{OriginalUri, Path, State as Shared};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::put;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::{TryStreamExt as _, stream};
use jiff::Timestamp;
use url::form_urlencoded::parse;

use super::blob::{BlobContent, BlobProperties, BlockSource, StoredBody};
use super::sas::{SasError, SasPermission};
use crate::State;
use crate::server::{Connection, Peer};
use crate::traffic::{Fault, answer_or_lose, flow};

/// The container that signed URLs point to.
pub(crate) const CONTAINER: &str = "/_blob/actions-results";
const MAX_BLOCK_BYTES: u64 = 4000 << 20;
/// For a blob in one request.
const MAX_BLOB_BYTES: u64 = 5000 << 20;
const MAX_LISTED_BLOCKS: usize = 50_000;
/// Blocks that no list has committed yet.
const MAX_STAGED_BLOCKS: usize = 100_000;
const MAX_LIST_BYTES: usize = 8 << 20;

/// Operations `PutBlock`, `PutBlockList`, `PutBlob`, `GetBlob`, `HeadBlob`.
pub(crate) fn routes() -> Router<Arc<State>> {
    Router::new().route(&format!("{CONTAINER}/{{blob}}"), put(write).get(read))
}

struct BlobRequest {
    state: Arc<State>,
    connection: Connection,
    blob: String,
    headers: HeaderMap,
    query: Vec<(String, String)>,
}

impl BlobRequest {
    fn parameter(&self, name: &str) -> Option<&str> {
        let found = self.query.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value.as_str())
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    fn about(&self) -> BlobProperties {
        let text = |name| self.header(name).map(str::to_owned);
        BlobProperties {
            content_type: text("x-ms-blob-content-type").or_else(|| text("content-type")),
            content_md5: text("x-ms-blob-content-md5"),
        }
    }

    /// Every write needs a `Content-Length`, also one without a body.
    fn declared_length(&self) -> Result<u64, Response> {
        let length = self.header("content-length").and_then(|text| text.parse::<u64>().ok());
        length.ok_or_else(|| {
            error(StatusCode::LENGTH_REQUIRED, "MissingContentLengthHeader", "no Content-Length")
        })
    }

    /// Checks the declared length, then stores the body, with `fault` applied.
    async fn receive(
        &self,
        body: Body,
        limit: u64,
        fault: Option<&Fault>,
    ) -> Result<StoredBody, Response> {
        let length = self.declared_length()?;
        if length > limit {
            let text = "The request body is too large and exceeds the maximum permissible limit.";
            return Err(error(StatusCode::PAYLOAD_TOO_LARGE, "RequestBodyTooLarge", text));
        }
        let chunks = body.into_data_stream().map_err(std::io::Error::other);
        let chunks = flow(chunks, fault.cloned(), self.connection.clone());
        let piece = self.state.artifacts.blobs.receive(chunks).await;
        piece.map_err(|failed| {
            let text = failed.to_string();
            error(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", &text)
        })
    }
}

fn open(
    state: Arc<State>,
    peer: Peer,
    blob: String,
    uri: &Uri,
    headers: HeaderMap,
    wanted: SasPermission,
) -> Result<(BlobRequest, super::sas::ResponseOverrides), Response> {
    if headers.contains_key(header::AUTHORIZATION) {
        let text = "Authentication information is not given in the correct format. Check the value \
                    of Authorization header.";
        return Err(error(StatusCode::BAD_REQUEST, "InvalidAuthenticationInfo", text));
    }
    let query = uri.query().unwrap_or_default();
    let now = state.clock.now();
    let answer = state.artifacts.signer.check(uri.path(), query, wanted, now).map_err(sas_error)?;
    if !state.artifacts.blobs.exists(&blob) {
        return Err(not_found());
    }
    let query = parse(query.as_bytes()).into_owned().collect();
    Ok((BlobRequest { state, connection: peer.0, blob, headers, query }, answer))
}

async fn write(
    Shared(state): Shared<Arc<State>>,
    peer: Peer,
    Path(blob): Path<String>,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Response> {
    let (request, _) = open(state, peer, blob, &uri, headers, SasPermission::Write)?;
    match request.parameter("comp") {
        Some("block") => put_block(&request, body).await,
        Some("blocklist") => put_block_list(&request, body).await,
        None => put_blob(&request, body).await,
        Some(_) => Err(invalid_parameter("comp")),
    }
}

async fn put_block(request: &BlobRequest, body: Body) -> Result<Response, Response> {
    let state = &request.state;
    let fault = state.traffic.pass("PutBlock", &request.connection).await?;
    let id = request.parameter("blockid").ok_or_else(|| invalid_parameter("blockid"))?;
    let decoded = STANDARD.decode(id).map_err(|_| invalid_parameter("blockid"))?;
    if decoded.is_empty() || decoded.len() > 64 {
        return Err(invalid_parameter("blockid"));
    }
    if !state.artifacts.blobs.fits(&request.blob, id) {
        let text = "The specified blob or block content is invalid.";
        return Err(error(StatusCode::BAD_REQUEST, "InvalidBlobOrBlock", text));
    }
    let piece = request.receive(body, MAX_BLOCK_BYTES, fault.as_ref()).await?;
    if piece.length == 0 {
        let text = "The value for one of the HTTP headers is not in the correct format.";
        return Err(error(StatusCode::BAD_REQUEST, "InvalidHeaderValue", text));
    }
    if state.artifacts.blobs.stage(&request.blob, id.to_owned(), piece) > MAX_STAGED_BLOCKS {
        let text = "The uncommitted block count cannot exceed the maximum limit of 100,000 blocks.";
        return Err(error(StatusCode::CONFLICT, "BlockCountExceedsLimit", text));
    }
    Ok(answer_or_lose(fault, &request.connection, created(None)).await)
}

async fn put_block_list(request: &BlobRequest, body: Body) -> Result<Response, Response> {
    let state = &request.state;
    let fault = state.traffic.pass("PutBlockList", &request.connection).await?;
    request.declared_length()?;
    let text = axum::body::to_bytes(body, MAX_LIST_BYTES).await.map_err(|failed| {
        error(StatusCode::PAYLOAD_TOO_LARGE, "RequestBodyTooLarge", &failed.to_string())
    })?;
    let list = block_list(&text).ok_or_else(|| {
        let text = "XML specified is not syntactically valid.";
        error(StatusCode::BAD_REQUEST, "InvalidXmlDocument", text)
    })?;
    if list.len() > MAX_LISTED_BLOCKS {
        let text = "The block list may not contain more than 50,000 blocks.";
        return Err(error(StatusCode::BAD_REQUEST, "BlockListTooLong", text));
    }
    let now = state.clock.now();
    let about = BlobProperties {
        content_type: request.header("x-ms-blob-content-type").map(str::to_owned),
        ..request.about()
    };
    let content = state.artifacts.blobs.commit(&request.blob, list, about, now);
    let content = content.ok_or_else(|| {
        let text = "The specified block list is invalid.";
        error(StatusCode::BAD_REQUEST, "InvalidBlockList", text)
    })?;
    Ok(answer_or_lose(fault, &request.connection, created(Some(&content))).await)
}

async fn put_blob(request: &BlobRequest, body: Body) -> Result<Response, Response> {
    let state = &request.state;
    let fault = state.traffic.pass("PutBlob", &request.connection).await?;
    match request.header("x-ms-blob-type") {
        Some("BlockBlob") => {}
        Some(_) => {
            let text = "The value for one of the HTTP headers is not in the correct format.";
            return Err(error(StatusCode::BAD_REQUEST, "InvalidHeaderValue", text));
        }
        None => {
            let text = "An HTTP header that's mandatory for this request is not specified.";
            return Err(error(StatusCode::BAD_REQUEST, "MissingRequiredHeader", text));
        }
    }
    let piece = request.receive(body, MAX_BLOB_BYTES, fault.as_ref()).await?;
    let now = state.clock.now();
    let content = state.artifacts.blobs.put(&request.blob, piece, request.about(), now);
    Ok(answer_or_lose(fault, &request.connection, created(Some(&content))).await)
}

async fn read(
    Shared(state): Shared<Arc<State>>,
    peer: Peer,
    method: Method,
    Path(blob): Path<String>,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
) -> Result<Response, Response> {
    let operation = if method == Method::HEAD { "HeadBlob" } else { "GetBlob" };
    let fault = state.traffic.pass(operation, &peer).await?;
    let (request, answer) = open(state, peer, blob, &uri, headers, SasPermission::Read)?;
    let content = request.state.artifacts.blobs.get(&request.blob);
    let content = content.filter(|content| content.is_kept()).ok_or_else(not_found)?;
    check_conditions(&request, &content)?;
    let wanted = wanted_range(&request, content.length)?;
    let mut range = wanted.clone().unwrap_or(0..content.length);
    if let Some(Fault::ShortenTo(bytes)) = fault {
        range.end = range.end.min(range.start + bytes);
    }

    let mut response = Response::new(Body::empty());
    let fields = response.headers_mut();
    common_headers(fields, &content);
    let mut set = |name: &'static str, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            fields.insert(name, value);
        }
    };
    set("content-length", &(range.end - range.start).to_string());
    set("accept-ranges", "bytes");
    set("x-ms-blob-type", "BlockBlob");
    let stored = content.content_type.as_deref();
    let kind = answer.content_type.as_deref().or(stored).unwrap_or("application/octet-stream");
    set("content-type", kind);
    if let Some(disposition) = &answer.disposition {
        set("content-disposition", disposition);
    }
    if let Some(md5) = content.content_md5.as_ref().filter(|_| wanted.is_none()) {
        set("content-md5", md5);
    }
    if let Some(Range { start, end }) = wanted {
        set("content-range", &format!("bytes {start}-{}/{}", end - 1, content.length));
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    if method == Method::GET {
        *response.body_mut() = body(content, range, fault, request.connection);
    }
    Ok(response)
}

/// The bytes of `range`, with `fault` applied.
fn body(
    content: Arc<BlobContent>,
    range: Range<u64>,
    fault: Option<Fault>,
    peer: Connection,
) -> Body {
    let chunks = stream::unfold(content.read(range), async |mut receiver| {
        let chunk = receiver.recv().await?;
        Some((chunk, receiver))
    });
    Body::from_stream(flow(chunks, fault, peer))
}

fn check_conditions(request: &BlobRequest, content: &BlobContent) -> Result<(), Response> {
    let matches = |tags: &str| {
        tags.split(',').any(|tag| {
            let tag = tag.trim();
            tag == "*" || tag == content.etag || format!("\"{tag}\"") == content.etag
        })
    };
    if request.header("if-match").is_some_and(|tags| !matches(tags)) {
        let text = "The condition specified using HTTP conditional header(s) is not met.";
        return Err(error(StatusCode::PRECONDITION_FAILED, "ConditionNotMet", text));
    }
    if request.header("if-none-match").is_some_and(matches) {
        return Err(StatusCode::NOT_MODIFIED.into_response());
    }
    Ok(())
}

/// The range that a read asks for. Several or malformed ranges are ignored, as HTTP allows.
fn wanted_range(request: &BlobRequest, length: u64) -> Result<Option<Range<u64>>, Response> {
    let text = request.header("x-ms-range").or_else(|| request.header("range"));
    let Some((first, last)) =
        text.and_then(|text| text.strip_prefix("bytes=")).and_then(|text| text.split_once('-'))
    else {
        return Ok(None);
    };
    let (first, last) = match (first.parse::<u64>(), last.parse::<u64>()) {
        (Ok(first), Ok(last)) if first <= last => (first, last),
        (Ok(first), Err(_)) if last.is_empty() => (first, u64::MAX),
        _ => return Ok(None),
    };
    if first >= length {
        let text = "The range specified is invalid for the current size of the resource.";
        let mut response = error(StatusCode::RANGE_NOT_SATISFIABLE, "InvalidRange", text);
        if let Ok(value) = HeaderValue::from_str(&format!("bytes */{length}")) {
            response.headers_mut().insert(header::CONTENT_RANGE, value);
        }
        return Err(response);
    }
    Ok(Some(first..last.saturating_add(1).min(length)))
}

/// The block ids of a list, in order; `None` for malformed XML.
fn block_list(text: &[u8]) -> Option<Vec<(BlockSource, String)>> {
    let text = std::str::from_utf8(text).ok()?;
    let (_, rest) = text.split_once("<BlockList>").or_else(|| text.split_once("<BlockList/>"))?;
    let mut rest = rest.split("</BlockList>").next()?.trim();
    let mut list = Vec::new();
    while !rest.is_empty() {
        let (tag, after) = rest.strip_prefix('<')?.split_once('>')?;
        let source = match tag {
            "Latest" => BlockSource::Latest,
            "Committed" => BlockSource::Committed,
            "Uncommitted" => BlockSource::Uncommitted,
            _ => return None,
        };
        let (id, after) = after.split_once("</")?;
        rest = after.strip_prefix(tag)?.strip_prefix('>')?.trim();
        list.push((source, id.trim().to_owned()));
    }
    Some(list)
}

fn created(content: Option<&BlobContent>) -> Response {
    let mut response = StatusCode::CREATED.into_response();
    let fields = response.headers_mut();
    match content {
        Some(content) => common_headers(fields, content),
        None => service_headers(fields),
    }
    fields.insert("x-ms-request-server-encrypted", HeaderValue::from_static("true"));
    response
}

fn common_headers(fields: &mut HeaderMap, content: &BlobContent) {
    service_headers(fields);
    let modified = http_date(content.modified);
    for (name, value) in [(header::ETAG, &content.etag), (header::LAST_MODIFIED, &modified)] {
        if let Ok(value) = HeaderValue::from_str(value) {
            fields.insert(name, value);
        }
    }
}

fn service_headers(fields: &mut HeaderMap) {
    fields.insert("server", HeaderValue::from_static("Windows-Azure-Blob/1.0 (stand-in)"));
    fields.insert("x-ms-version", HeaderValue::from_static("2025-11-05"));
    if let Ok(id) = HeaderValue::from_str(&uuid::Uuid::new_v4().to_string()) {
        fields.insert("x-ms-request-id", id);
    }
}

fn http_date(time: Timestamp) -> String {
    time.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()
}

fn sas_error(reason: SasError) -> Response {
    match reason {
        SasError::Signature => {
            let text = "Server failed to authenticate the request. Make sure the value of \
                        Authorization header is formed correctly including the signature.";
            error(StatusCode::FORBIDDEN, "AuthenticationFailed", text)
        }
        SasError::Permission => {
            let text = "This request is not authorized to perform this operation using this \
                        permission.";
            error(StatusCode::FORBIDDEN, "AuthorizationPermissionMismatch", text)
        }
    }
}

fn not_found() -> Response {
    error(StatusCode::NOT_FOUND, "BlobNotFound", "The specified blob does not exist.")
}

fn invalid_parameter(name: &str) -> Response {
    let text = format!(
        "Value for one of the query parameters specified in the request URI is invalid: {name}"
    );
    error(StatusCode::BAD_REQUEST, "InvalidQueryParameterValue", &text)
}

fn error(status: StatusCode, code: &'static str, text: &str) -> Response {
    let body = format!(
        "\u{feff}<?xml version=\"1.0\" encoding=\"utf-8\"?><Error><Code>{code}</Code><Message>{text}\
         </Message></Error>"
    );
    let mut response = (status, [(header::CONTENT_TYPE, "application/xml")], body).into_response();
    service_headers(response.headers_mut());
    response.headers_mut().insert("x-ms-error-code", HeaderValue::from_static(code));
    response
}
