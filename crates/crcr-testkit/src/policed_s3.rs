//! An S3 server that decides by policies, as [`crate::iam`] does: rights first, then the object, then conditions.
//!
//! It has what a check of rights needs, and no more: GET and PUT of objects, the list of a bucket and its region.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use crcr_standin::server::{Bound, Server};
use parking_lot::Mutex;
use serde_json::Value;
use url::Url;

use crate::iam::{Caller, Decision, Request, decide};

/// One bucket, with the public access block taken into account by leaving out its policy.
#[derive(Debug, Default)]
pub struct PolicedBucket {
    pub region: String,
    pub policy: Option<Value>,
    pub keys: Vec<String>,
}

#[derive(Debug, Default)]
pub struct PolicedState {
    pub buckets: BTreeMap<String, PolicedBucket>,
    /// The role of whoever signs, and its policy. Signatures aren't checked.
    pub role: Option<(String, Value)>,
    /// What something in between answers instead, this many times: a status, a type and a body.
    pub instead: Option<(usize, u16, &'static str, &'static str)>,
    /// What was stored, which a check must never do.
    pub written: Vec<String>,
}

#[derive(Debug)]
pub struct PolicedS3 {
    server: Server,
    state: Arc<Mutex<PolicedState>>,
}

impl PolicedS3 {
    pub fn start(state: PolicedState) -> std::io::Result<Self> {
        let state = Arc::new(Mutex::new(state));
        let router = Router::new().fallback(serve).with_state(Arc::clone(&state));
        Ok(Self { server: Bound::loopback()?.serve(router)?, state })
    }

    pub fn url(&self) -> &Url {
        self.server.url()
    }

    pub fn change(&self, change: impl FnOnce(&mut PolicedState)) {
        change(&mut self.state.lock());
    }

    pub fn written(&self) -> Vec<String> {
        self.state.lock().written.clone()
    }
}

async fn serve(
    State(state): State<Arc<Mutex<PolicedState>>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let mut state = state.lock();
    if let Some((times @ 1.., status, kind, body)) = &mut state.instead {
        *times -= 1;
        let status = StatusCode::from_u16(*status).unwrap_or_default();
        return (status, [(header::CONTENT_TYPE, *kind)], *body).into_response();
    }
    let path = uri.path().trim_start_matches('/');
    let (name, key) = path.split_once('/').unwrap_or((path, ""));
    let Some(bucket) = state.buckets.get(name) else {
        let body = "<Error><Code>NoSuchBucket</Code></Error>";
        return (StatusCode::NOT_FOUND, body).into_response();
    };
    let region = [("x-amz-bucket-region", bucket.region.clone())];
    let signed = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    // A signature for another region is refused, and so is its address: this server has one for all.
    if signed.is_some_and(|signed| !signed.contains(&format!("/{}/s3/", bucket.region))) {
        return (StatusCode::BAD_REQUEST, region).into_response();
    }
    let may = |action: &str, resource: String| {
        let role = state.role.as_ref().filter(|_| signed.is_some());
        let caller = role.map_or(Caller::Anonymous, |(arn, _)| Caller::Role(arn.clone()));
        let request = Request {
            caller,
            action: action.to_owned(),
            resource,
            context: BTreeMap::from([("aws:SecureTransport".to_owned(), "true".to_owned())]),
        };
        let own: Vec<_> = role.iter().map(|(_, policy)| policy).collect();
        let of_bucket: Vec<_> = bucket.policy.iter().collect();
        decide(&own, &of_bucket, &request) == Decision::Allowed
    };
    let may_list = || may("s3:ListBucket", format!("arn:aws:s3:::{name}"));
    let object = format!("arn:aws:s3:::{name}/{key}");
    let exists = bucket.keys.iter().any(|known| known == key);
    let status = match method {
        Method::GET | Method::HEAD if key.is_empty() => allowed(may_list(), StatusCode::OK),
        Method::GET if !may("s3:GetObject", object.clone()) => StatusCode::FORBIDDEN,
        Method::GET if exists => StatusCode::OK,
        Method::GET => allowed(may_list(), StatusCode::NOT_FOUND),
        Method::PUT if !may("s3:PutObject", object.clone()) => StatusCode::FORBIDDEN,
        Method::PUT if headers.contains_key(header::IF_MATCH) => match exists {
            true => StatusCode::PRECONDITION_FAILED,
            false => StatusCode::NOT_FOUND,
        },
        Method::PUT => {
            state.written.push(object);
            StatusCode::OK
        }
        _ => StatusCode::METHOD_NOT_ALLOWED,
    };
    let body = match status {
        StatusCode::FORBIDDEN => "<Error><Code>AccessDenied</Code></Error>",
        StatusCode::NOT_FOUND => "<Error><Code>NoSuchKey</Code></Error>",
        _ => "",
    };
    // S3 names it there, and not in its answers about objects.
    let region = (method == Method::HEAD).then_some(region);
    let mut answer = (status, region, body).into_response();
    if status.is_success() {
        answer.headers_mut().insert(header::ETAG, HeaderValue::from_static("\"1\""));
    }
    answer
}

/// S3 tells only those who may list that something is missing.
fn allowed(may: bool, status: StatusCode) -> StatusCode {
    if may { status } else { StatusCode::FORBIDDEN }
}
