//! Sends a result to the external HUD, as the deployed relay does.

use crcr_domain::callback::Details;
use crcr_domain::dispatch::Dispatch;
use jiff::Timestamp;
use reqwest::header::CONTENT_TYPE;
use secrecy::ExposeSecret as _;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use super::{Fail, Outcome, Work};
use crate::records::Job;
use crate::relay::Relay;

/// Sends it; what the HUD refuses is given up, what it can't take now comes again.
pub async fn run(relay: &Relay, body: String) -> Result<Outcome, Fail> {
    let Some(hud) = &relay.config.hud else { return Ok(Outcome::Done) };
    let url = format!("{}/crcr/results", hud.url.as_str().trim_end_matches('/'));
    let request = relay
        .http
        .post(url)
        .timeout(std::time::Duration::from_secs(10))
        .header(CONTENT_TYPE, "application/json")
        .header("x-hud-internal-bot", hud.key.expose_secret())
        .body(body);
    match crcr_github::http::send_once(request).await {
        Ok(_) => Ok(Outcome::Done),
        Err(error) => {
            let mut fail = Fail::retry(format!("the HUD: {error}"));
            fail.permanent = !error.is_transient();
            fail.retry_at = error.retry_after().map(|pause| relay.now() + pause);
            Err(fail)
        }
    }
}

/// What the HUD gets of a result: what the relay proves, and what the reporter says.
#[must_use]
pub fn work(
    repo: &crcr_domain::RepoName,
    level: crcr_domain::Level,
    key: Vec<String>,
    times: (Option<f64>, Option<f64>),
    callback: &RawValue,
) -> Work {
    let envelope = json!({
        "ci_metrics": { "queue_time": times.0, "execution_time": times.1 },
        "verified_repo": repo.as_str(),
        "downstream_repo_level": level.as_str(),
    });
    // By hand, so that the reporter's own text goes through as it came.
    let body = format!(
        "{{\"trusted\":{envelope},\"untrusted\":{{\"callback_payload\":{}}}}}",
        callback.get()
    );
    Work::Forward { key, lane: repo.owner().to_ascii_lowercase(), body }
}

/// The report that a lost job never sent.
#[must_use]
pub fn lost_report(dispatch: &Dispatch, job: &Job, now: Timestamp) -> Box<RawValue> {
    let Details { url, check_run_id, .. } = &job.details;
    let head = match dispatch.pull_request {
        Some(number) => json!({ "number": number, "head": { "sha": dispatch.head_sha } }),
        None => Value::Null,
    };
    to_raw_value(&json!({
        "event_type": dispatch.event,
        "delivery_id": dispatch.delivery,
        "payload": {
            "repository": { "full_name": dispatch.upstream },
            "pull_request": head, "head_sha": dispatch.head_sha,
        },
        "workflow": {
            "schema_version": "1", "status": "completed", "conclusion": "timed_out",
            "name": job.id.workflow, "job_name": job.id.job, "url": url,
            "run_id": job.id.run_id, "run_attempt": job.id.run_attempt,
            "check_run_id": check_run_id, "started_at": Value::Null,
            "completed_at": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        }
    }))
    .expect("values are always JSON")
}
