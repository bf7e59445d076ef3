//! Middleware in front of all routes: records calls, applies faults and the rate limit.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State as Shared};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::api::refusal;
use crate::State;
use crate::server::{Connection, Peer};
use crate::traffic::{Fault, answer_or_lose, meet};

const MAX_BODY_BYTES: usize = 4 * 1024 * 1024;
/// Calls an hour, as for an installation.
const CALLS_PER_HOUR: u64 = 5000;

/// One call of the REST API.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    pub method: String,
    pub path: String,
    /// Without the `?`; empty when there is none.
    pub query: String,
    /// The JSON body; `null` when there is none.
    pub body: Value,
    /// The status of the answer; 0 when the connection was reset instead.
    pub status: u16,
}

impl Call {
    pub fn route(&self) -> String {
        format!("{} {}", self.method, self.path)
    }
}

#[derive(Debug, Default)]
pub(crate) struct ApiCalls {
    pub(crate) all: Vec<Call>,
    faults: Vec<(String, VecDeque<Fault>)>,
    rate: Option<(u64, Timestamp)>,
}

/// Whether `route` is `pattern`, or starts with it up to its `*`.
pub(crate) fn matches(pattern: &str, route: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == route, |start| route.starts_with(start))
}

impl ApiCalls {
    pub(crate) fn fail(&mut self, route: &str, times: usize, fault: Fault) {
        self.faults.push((route.to_owned(), std::iter::repeat_n(fault, times).collect()));
    }

    pub(crate) fn clear_faults(&mut self) {
        self.faults.clear();
    }

    pub(crate) fn limit(&mut self, remaining: u64, reset: Timestamp) {
        self.rate = Some((remaining, reset));
    }

    pub(crate) fn unmet(&self) -> Vec<String> {
        let open = self.faults.iter().filter(|(_, faults)| !faults.is_empty());
        open.map(|(route, faults)| format!("{} faults at {route}", faults.len())).collect()
    }

    fn next_fault(&mut self, route: &str) -> Option<Fault> {
        let of_route = |(pattern, faults): &&mut (String, VecDeque<Fault>)| {
            !faults.is_empty() && matches(pattern, route)
        };
        self.faults.iter_mut().find(of_route)?.1.pop_front()
    }

    /// Counts one call against the limit. Returns what remains and when the limit is reset; `Err`
    /// with that time when nothing was left.
    fn spend(&mut self, now: Timestamp) -> Result<(u64, Timestamp), Timestamp> {
        let fresh = (CALLS_PER_HOUR, now + SignedDuration::from_hours(1));
        let (remaining, reset) = self.rate.filter(|(_, reset)| *reset > now).unwrap_or(fresh);
        let left = remaining.checked_sub(1).ok_or(reset)?;
        self.rate = Some((left, reset));
        Ok((left, reset))
    }

    /// A 304 doesn't count against the limit.
    fn give_back(&mut self) {
        if let Some((left, _)) = &mut self.rate {
            *left += 1;
        }
    }
}

/// Records a call, applies its fault and the rate limit, and passes it on.
pub(crate) async fn observe(
    Shared(state): Shared<Arc<State>>,
    peer: Peer,
    request: Request,
    next: Next,
) -> Response {
    let (parts, body) = request.into_parts();
    let Ok(bytes) = axum::body::to_bytes(body, MAX_BODY_BYTES).await else {
        return refusal(413, "Payload too large");
    };
    let call = Call {
        method: parts.method.to_string(),
        path: parts.uri.path().trim_start_matches("/api/v3").to_owned(),
        query: parts.uri.query().unwrap_or_default().to_owned(),
        body: serde_json::from_slice(&bytes).unwrap_or_default(),
        status: 0,
    };
    let route = call.route();
    let now = state.clock.now();
    let (index, fault, spent) = {
        let mut inner = state.world.lock();
        inner.calls.all.push(call);
        let fault = inner.calls.next_fault(&route);
        (inner.calls.all.len() - 1, fault, inner.calls.spend(now))
    };
    let request = Request::from_parts(parts, Body::from(bytes));
    let mut response = match spent {
        Err(_) => refusal(403, "API rate limit exceeded for installation."),
        Ok(_) => act(fault, &peer, || next.run(request)).await,
    };
    let (left, reset) = spent.unwrap_or_else(|reset| (0, reset));
    let numbers = [
        ("x-ratelimit-limit", CALLS_PER_HOUR),
        ("x-ratelimit-remaining", left),
        ("x-ratelimit-used", CALLS_PER_HOUR.saturating_sub(left)),
        ("x-ratelimit-reset", u64::try_from(reset.as_second()).unwrap_or_default()),
    ];
    for (name, number) in numbers {
        response.headers_mut().insert(name, HeaderValue::from(number));
    }
    let mut inner = state.world.lock();
    if let Some(call) = inner.calls.all.get_mut(index) {
        call.status = response.status().as_u16();
    }
    if response.status() == StatusCode::NOT_MODIFIED {
        inner.calls.give_back();
    }
    drop(inner);
    response
}

async fn act<F: Future<Output = Response>>(
    fault: Option<Fault>,
    connection: &Connection,
    serve: impl FnOnce() -> F,
) -> Response {
    match meet(fault, connection).await {
        Err(instead) => instead,
        Ok(None) => serve().await,
        Ok(Some(fault @ (Fault::ResetAfterwards | Fault::AnswerAfterwards(_)))) => {
            let response = serve().await;
            answer_or_lose(Some(fault), connection, response).await
        }
        Ok(Some(_)) => refusal(500, "this fault is for blobs, not for the REST API"),
    }
}
