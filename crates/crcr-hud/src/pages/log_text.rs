//! `/failure/OWNER/REPO/JOB/log.txt`: the stored log as text, as fast as it is taken.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use crcr_cidata::logs::StoredLog;
use futures_util::{StreamExt as _, stream};
use serde::Deserialize;

use super::failure::{key_of_log, unreadable, webhook_of};
use crate::context::{Hud, PageError, repo_name};
use crate::errors::{error_json, wrong_address, wrong_query};

/// A reader that takes no piece of the text for this long gets no more of it ...
const TEXT_PATIENCE: Duration = Duration::from_secs(30);
/// ... and later on neither does one that is slower than this: a few such readers would keep everybody else out.
const LEAST_BYTES_A_SECOND: u64 = 32 * 1024;

#[derive(Debug, Default, Deserialize, schemars::JsonSchema)]
pub(crate) struct LogTextQuery {
    download: Option<String>,
}

pub(crate) async fn send_log(
    State(hud): State<Arc<Hud>>,
    path: Result<Path<(String, String, u64)>, PathRejection>,
    query: Result<Query<LogTextQuery>, QueryRejection>,
) -> Response {
    let (owner, repo, job_id) = match path {
        Ok(Path(path)) => path,
        Err(problem) => return error_json(&wrong_address(&problem)),
    };
    let Query(query) = match query {
        Ok(query) => query,
        Err(problem) => return error_json(&wrong_query(&problem)),
    };
    let Ok(permit) = Arc::clone(&hud.text_permits).try_acquire_owned() else {
        let text = "too many logs are being sent; try again in some seconds\n";
        return (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "10")], text)
            .into_response();
    };
    let log = match open_log(&hud, &owner, &repo, job_id).await {
        Ok(log) => log,
        Err(problem) => return error_json(&problem),
    };
    let (pieces, taken) = tokio::sync::mpsc::channel::<Bytes>(1);
    tokio::spawn(async move {
        let _permit = permit;
        if let Err(error) = send_pieces(&log, &pieces).await {
            let _ = pieces.send(format!("\n[the log ends here: {error}]\n").into()).await;
        }
    });
    let body = stream::unfold(taken, |mut taken| async {
        taken.recv().await.map(|piece| (Ok::<_, std::convert::Infallible>(piece), taken))
    });
    // What compresses it asks again after its end.
    let body = body.fuse();
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, "text/plain; charset=utf-8".parse().expect("a header"));
    if query.download.is_some()
        && let Ok(value) = format!("attachment; filename=\"job-{job_id}.txt\"").parse()
    {
        headers.insert(header::CONTENT_DISPOSITION, value);
    }
    (headers, Body::from_stream(body)).into_response()
}

/// How long a reader may take for the next piece. `elapsed`: since the first one. `sent`: in bytes.
fn text_patience(elapsed: Duration, sent: u64) -> Duration {
    let allowed = TEXT_PATIENCE + Duration::from_secs(sent / LEAST_BYTES_A_SECOND);
    allowed.saturating_sub(elapsed).min(TEXT_PATIENCE)
}

/// Ends when nobody takes a piece for a while: a reader that stands still would keep others out.
async fn send_pieces(
    log: &StoredLog,
    pieces: &tokio::sync::mpsc::Sender<Bytes>,
) -> Result<(), String> {
    let (inner, mut ready) = tokio::sync::mpsc::channel::<Bytes>(1);
    let unpack = async {
        let sent = log.send_text(&inner).await.map(drop).map_err(|error| unreadable(&error));
        drop(inner);
        sent
    };
    let forward = async {
        let (begun, mut sent) = (tokio::time::Instant::now(), 0);
        while let Some(piece) = ready.recv().await {
            sent += piece.len() as u64;
            let patience = text_patience(begun.elapsed(), sent);
            if pieces.send_timeout(piece, patience).await.is_err() {
                ready.close();
                return;
            }
        }
    };
    let (sent, ()) = tokio::join!(unpack, forward);
    sent
}

async fn open_log(hud: &Hud, owner: &str, repo: &str, job_id: u64) -> Result<StoredLog, PageError> {
    let missing = || PageError::NotFound("no log of this job is stored".to_owned());
    let repo = repo_name(owner, repo)?;
    let row = hud.results.job_logs(repo.as_str(), &[job_id]).await?.pop();
    if row.is_none() && webhook_of(hud, &repo, job_id).await?.is_none() {
        return Err(missing());
    }
    let key = key_of_log(&repo, job_id, row.as_ref()).ok_or_else(missing)?;
    let log = hud.logs.open(&key).await.map_err(|error| PageError::Store(error.to_string()))?;
    log.ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reader_of_a_log_who_takes_a_piece_every_29_seconds_is_not_waited_for_all_day() {
        let piece = 64 * 1024;
        let mut elapsed = Duration::ZERO;
        for taken in 0.. {
            let slow = Duration::from_secs(29);
            if text_patience(elapsed, taken * piece) < slow {
                break;
            }
            elapsed += slow;
        }
        assert!(elapsed < Duration::from_secs(120), "{elapsed:?}");
        // A gigabyte over a line of 1 MB a second.
        let (minutes, bytes) = (Duration::from_secs(900), 900 << 20);
        assert_eq!(text_patience(minutes, bytes), TEXT_PATIENCE);
    }
}
