//! What the stand-in was asked, and what it does wrong on purpose.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Mutex;
use std::time::Duration;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};

use crate::server::Connection;

/// One thing that goes wrong.
#[derive(Debug, Clone)]
pub enum Fault {
    /// Answers with a status and a body instead of doing it.
    Answer {
        status: StatusCode,
        /// `Retry-After`, in seconds.
        retry_after: Option<u64>,
        body: String,
    },
    /// Does it after this long.
    Delay(Duration),
    /// Never answers; the connection stays open.
    Stall,
    /// Resets the connection instead of doing it.
    Reset,
    /// Does it, and resets the connection instead of answering: the caller can't know.
    ResetAfterwards,
    /// Resets the connection after this many bytes of the body that flows (the request's of an
    /// upload, the answer's of a download).
    ResetAfterBytes(u64),
    /// Stops after this many bytes of the body that flows, and keeps the connection open.
    StallAfterBytes(u64),
    /// Ends an answer after this many bytes, although `Content-Length` says more.
    CutAfterBytes(u64),
    /// Answers a download with this many bytes as if they were all: the length is a lie.
    ShortenTo(u64),
    /// Answers a download with its first bytes turned over: the digest is a lie.
    Corrupt,
    /// Signs a URL that is expired already.
    ExpiredUrl,
}

impl Fault {
    /// An answer with `status` and no body.
    ///
    /// # Panics
    /// When `status` isn't one.
    pub fn status(status: u16) -> Self {
        let status = StatusCode::from_u16(status).expect("a test names a valid status");
        Self::Answer { status, retry_after: None, body: String::new() }
    }
}

/// Calls counted and faults queued, by operation. The names are the services' own
/// (`CreateArtifact`, `PutBlock`, `mint`, …): see the handlers.
#[derive(Debug, Default)]
pub struct Traffic(Mutex<BTreeMap<&'static str, Place>>);

#[derive(Debug, Default)]
struct Place {
    calls: usize,
    faults: VecDeque<Fault>,
}

impl Traffic {
    /// Lets the next `times` calls of `operation` meet `fault`, after those queued before.
    pub fn fail(&self, operation: &'static str, times: usize, fault: Fault) {
        let queue = std::iter::repeat_n(fault, times);
        self.lock().entry(operation).or_default().faults.extend(queue);
    }

    /// How often `operation` was called, failures included.
    pub fn calls(&self, operation: &'static str) -> usize {
        self.lock().get(operation).map_or(0, |place| place.calls)
    }

    /// The operations whose faults nobody met: a test that queued them and passes proves nothing.
    pub fn unmet(&self) -> Vec<&'static str> {
        self.lock().iter().filter(|(_, p)| !p.faults.is_empty()).map(|(name, _)| *name).collect()
    }

    /// Counts a call of `operation` and meets its next fault: an answer to give instead, or the
    /// fault that the handler itself has to act out ([`Fault::ResetAfterwards`] and those that
    /// count bytes).
    pub async fn pass(
        &self,
        operation: &'static str,
        connection: &Connection,
    ) -> Result<Option<Fault>, Response> {
        let fault = {
            let mut places = self.lock();
            let place = places.entry(operation).or_default();
            place.calls += 1;
            place.faults.pop_front()
        };
        meet(fault, connection).await
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<&'static str, Place>> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Passes a body on and acts out `fault` on its bytes.
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
                    // What came before the fault is to leave: a pause lets the connection flush.
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

/// Acts out a fault as far as it can be without the handler: an answer to give instead of serving,
/// or the fault that is left to act out.
pub(crate) async fn meet(
    fault: Option<Fault>,
    connection: &Connection,
) -> Result<Option<Fault>, Response> {
    match fault {
        Some(Fault::Answer { status, retry_after, body }) => {
            let mut response = (status, body).into_response();
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
