//! Counts calls, and makes them fail on purpose.

use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::time::Duration;

use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};

use crate::server::Connection;

/// One way for a call to fail.
#[derive(Debug, Clone)]
pub enum Fault {
    /// Answers with a status and a body, and does nothing else.
    Answer {
        status: StatusCode,
        /// Seconds, for the header `Retry-After`.
        retry_after: Option<u64>,
        body: String,
    },
    /// Works, but only after this time.
    Delay(Duration),
    /// Never answers; the connection stays open.
    Stall,
    /// Resets the connection, and does nothing else.
    Reset,
    /// Does what was asked, then resets the connection instead of answering.
    ResetAfterwards,
    /// Does what was asked, then answers with this status and no body.
    AnswerAfterwards(u16),
    /// Resets the connection after this many bytes of the body: the request's body of an upload, the
    /// answer's body of a download.
    ResetAfterBytes(u64),
    /// Stops after this many bytes of the body, and keeps the connection open.
    StallAfterBytes(u64),
    /// Ends an answer after this many bytes, though `Content-Length` is larger.
    CutAfterBytes(u64),
    /// Answers a download with its first bytes only, with a matching `Content-Length`.
    ShortenTo(u64),
    /// Answers a download with its first chunk inverted, so that the digest doesn't match.
    Corrupt,
    /// Returns a signed URL that has already expired.
    ExpiredUrl,
}

impl Fault {
    /// An answer with `status` and no body.
    ///
    /// # Panics
    /// When `status` isn't an HTTP status.
    pub fn status(status: u16) -> Self {
        let status = StatusCode::from_u16(status).expect("a test names a valid status");
        Self::Answer { status, retry_after: None, body: String::new() }
    }
}

/// Counted calls and queued faults by operation. The handlers name the operations, such as
/// `CreateArtifact`, `PutBlock` or `mint`.
#[derive(Debug, Default)]
pub struct Traffic(Mutex<BTreeMap<&'static str, OperationTraffic>>);

#[derive(Debug, Default)]
struct OperationTraffic {
    calls: usize,
    faults: VecDeque<Fault>,
}

impl Traffic {
    /// Queues `fault` for the next `times` calls of `operation`.
    pub fn fail(&self, operation: &'static str, times: usize, fault: Fault) {
        let queue = std::iter::repeat_n(fault, times);
        self.lock().entry(operation).or_default().faults.extend(queue);
    }

    /// How often `operation` was called, failures included.
    pub fn calls(&self, operation: &'static str) -> usize {
        self.lock().get(operation).map_or(0, |traffic| traffic.calls)
    }

    /// The operations with faults left in their queues. A test that ends with some proves nothing.
    pub fn unmet(&self) -> Vec<&'static str> {
        self.lock().iter().filter(|(_, p)| !p.faults.is_empty()).map(|(name, _)| *name).collect()
    }

    /// Counts a call of `operation` and applies its next fault. `Err` is the answer to give instead;
    /// `Ok(Some)` is a fault that the handler has to apply: [`Fault::ResetAfterwards`],
    /// [`Fault::AnswerAfterwards`] and those that count bytes.
    pub async fn pass(
        &self,
        operation: &'static str,
        connection: &Connection,
    ) -> Result<Option<Fault>, Response> {
        let fault = {
            let mut operations = self.lock();
            let traffic = operations.entry(operation).or_default();
            traffic.calls += 1;
            traffic.faults.pop_front()
        };
        meet(fault, connection).await
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, BTreeMap<&'static str, OperationTraffic>> {
        self.0.lock()
    }
}

/// The answer after the work is done: `response`, unless the fault is to lose it.
pub async fn answer_or_lose(
    fault: Option<Fault>,
    connection: &Connection,
    response: Response,
) -> Response {
    match fault {
        Some(Fault::ResetAfterwards) => connection.reset().await,
        Some(Fault::AnswerAfterwards(status)) => {
            StatusCode::from_u16(status).expect("a test names a valid status").into_response()
        }
        _ => response,
    }
}

/// The chunks of a body, with `fault` applied to them.
pub fn flow(
    chunks: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    fault: Option<Fault>,
    peer: Connection,
) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    let state = (chunks.boxed(), fault, peer, 0);
    stream::unfold(state, async |(mut chunks, mut fault, peer, passed)| {
        let mut chunk = match chunks.next().await? {
            Ok(chunk) => chunk,
            failed => return Some((failed, (chunks, fault, peer, passed))),
        };
        match fault {
            Some(Fault::Corrupt) => {
                chunk = chunk.iter().map(|byte| !byte).collect();
                fault = None;
            }
            Some(
                Fault::ResetAfterBytes(at) | Fault::StallAfterBytes(at) | Fault::CutAfterBytes(at),
            ) if passed + chunk.len() as u64 > at => {
                if passed == at {
                    // Lets the connection send what came before the fault.
                    tokio::task::yield_now().await;
                    match fault {
                        Some(Fault::ResetAfterBytes(_)) => peer.reset().await,
                        Some(Fault::StallAfterBytes(_)) => std::future::pending().await,
                        _ => {}
                    }
                    let cut = io::ErrorKind::UnexpectedEof.into();
                    return Some((Err(cut), (chunks, fault, peer, passed)));
                }
                let rest = chunk.split_off(usize::try_from(at - passed).unwrap_or(usize::MAX));
                chunks = stream::once(async { Ok(rest) }).chain(chunks).boxed();
            }
            _ => {}
        }
        let passed = passed + chunk.len() as u64;
        Some((Ok(chunk), (chunks, fault, peer, passed)))
    })
}

/// Applies a fault that needs no handler, and returns the others. `Err` is the answer to give.
pub(crate) async fn meet(
    fault: Option<Fault>,
    connection: &Connection,
) -> Result<Option<Fault>, Response> {
    match fault {
        Some(Fault::Answer { status, retry_after, body }) => {
            let mut response = match body.starts_with("<html") {
                true => (status, Html(body)).into_response(),
                false => (status, body).into_response(),
            };
            if let Some(seconds) = retry_after {
                response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
            }
            Err(response)
        }
        Some(Fault::Delay(time)) => {
            tokio::time::sleep(time).await;
            Ok(None)
        }
        Some(Fault::Stall) => std::future::pending().await,
        Some(Fault::Reset) => connection.reset().await,
        other => Ok(other),
    }
}
