//! Sends results to an external HUD, in the format of the deployed relay.

use axum::http::StatusCode;
use bytes::Bytes;
use crcr_domain::RepoName;
use crcr_domain::protocol::callback::ReportDetails;
use crcr_domain::protocol::dispatch::Dispatch;
use crcr_domain::protocol::event::EventName;
use crcr_domain::results::facts::{DispatchFact, DispatchFactStatus};
use crcr_github::http;
use crcr_results::deployed::{DISPATCH_JOB, DISPATCH_WORKFLOW};
use crcr_store::{LeasedTask, NewTask, StoreKey};
use jiff::Timestamp;
use reqwest::RequestBuilder;
use reqwest::header::CONTENT_TYPE;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};

use crate::config::ExternalHud;
use crate::limits;
use crate::queue::task_kind::{TaskDone, TaskError, TaskKind};
use crate::relay::Relay;
use crate::state_records::{self, JobRecord};

/// Gives up what the HUD rejects, and retries what it can't take now. While its key is rotated, the
/// HUD may know the new one, the old one, or neither yet: a 401 is retried for an hour. So is every
/// other answer that any result would get, such as a redirect while the HUD moves. An outage of the
/// HUD isn't a try, unless the operator has set how many there are.
pub(crate) async fn run(
    relay: &Relay,
    task: &LeasedTask,
    body: &str,
) -> Result<TaskDone, TaskError> {
    let Some(hud) = &relay.config.hud else { return Ok(TaskDone::Finished) };
    let body = Bytes::from(body.to_owned());
    let mut fail = TaskError::retry("no key for the HUD");
    for key in hud.key.all().iter() {
        let request = request(&relay.http, hud, key, body.clone());
        // It answers with JSON (pytorch/test-infra, `torchci/pages/api/crcr/results.ts`).
        let Err(error) = http::send_unless_page(request).await else {
            return Ok(TaskDone::Finished);
        };
        let status = error.status().unwrap_or_default();
        if status == StatusCode::CONFLICT {
            // The HUD has this job's end already. The deployed relay answers `duplicate`.
            return Ok(TaskDone::Finished);
        }
        let unauthorized = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        let elsewhere = status.is_redirection()
            || matches!(status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED);
        fail = TaskError::retry(format!("the HUD: {error}"));
        // Without a status, as with a certificate that has expired, the HUD didn't judge the result.
        let is_outage = error.is_transient() || error.status().is_none();
        fail.is_outage = is_outage && hud.retries.is_none();
        fail.permanent = !is_outage;
        fail.retry_at = error.retry_after().map(|pause| relay.now() + pause);
        fail.retry_until = (unauthorized || elsewhere).then(|| refused_until(relay, hud, task));
        if !unauthorized {
            break;
        }
    }
    Err(fail)
}

/// Until when a result is tried that the HUD refused as it would any. One that waited for the end of an outage hasn't been
/// refused for as long as it is old, so it gets the usual tries first, which take about as long.
fn refused_until(relay: &Relay, hud: &ExternalHud, task: &LeasedTask) -> Timestamp {
    let has_tries = hud.retries.is_none() && task.failed + 1 < limits::TASK_TRIES;
    let since = if has_tries { relay.now() } else { task.created_at };
    since + limits::HUD_CHANGE
}

/// The request that brings the HUD a result.
pub(crate) fn request(
    client: &reqwest::Client,
    hud: &ExternalHud,
    key: &SecretString,
    body: Bytes,
) -> RequestBuilder {
    client
        .post(format!("{}/crcr/results", hud.url.as_str().trim_end_matches('/')))
        .timeout(std::time::Duration::from_secs(10))
        .header(CONTENT_TYPE, "application/json")
        .header("x-hud-internal-bot", key.expose_secret())
        .body(body)
}

/// The task that sends a result: what the relay has verified, and the report as it came. `times` are
/// seconds in the queue and of execution.
///
/// All results of one job share the task with `record_key`: if the start waits for a retry, the end
/// replaces it, and is never sent before it.
pub(crate) fn result_task(
    repo: &RepoName,
    level: crcr_domain::Level,
    record_key: &StoreKey,
    times: (Option<f64>, Option<f64>),
    callback: &RawValue,
) -> TaskKind {
    let envelope = json!({
        "ci_metrics": { "queue_time": times.0, "execution_time": times.1 },
        "verified_repo": repo.as_str(),
        "downstream_repo_level": level.as_str(),
    });
    // Put together by hand, so that the report stays byte for byte as it came.
    let body = format!(
        "{{\"trusted\":{envelope},\"untrusted\":{{\"callback_payload\":{}}}}}",
        callback.get()
    );
    let key = vec![record_key.as_str().to_owned()];
    TaskKind::Forward { key, lane: repo.owner().to_ascii_lowercase(), body }
}

/// The fields of `workflow` that the deployed HUD stores.
const STORED_FIELDS: [&str; 13] = [
    "status",
    "conclusion",
    "name",
    "url",
    "run_id",
    "run_attempt",
    "job_name",
    "check_run_id",
    "started_at",
    "completed_at",
    "test_results",
    "artifact_url",
    "schema_version",
];

/// What the deployed HUD stores of a report, without values that are long.
pub(crate) fn short(report: &Value) -> Value {
    let short = |value: &Value| {
        let is_short = value.to_string().len() <= limits::FORWARDED_VALUE_BYTES;
        if is_short { value.clone() } else { Value::Null }
    };
    let workflow = STORED_FIELDS.map(|name| (name.to_owned(), short(&report["workflow"][name])));
    let given = workflow.into_iter().filter(|(_, value)| !value.is_null());
    let payload = &report["payload"];
    let pull = &payload["pull_request"];
    let pull = pull.is_object().then(|| {
        json!({ "number": short(&pull["number"]), "head": { "sha": short(&pull["head"]["sha"]) } })
    });
    json!({
        "event_type": short(&report["event_type"]),
        "delivery_id": short(&report["delivery_id"]),
        "payload": {
            "repository": { "full_name": short(&payload["repository"]["full_name"]) },
            "pull_request": pull,
            "head_sha": short(&payload["head_sha"]),
        },
        "workflow": given.collect::<Map<String, Value>>(),
    })
}

/// The task that sends a dispatch's status; `None` if that isn't configured, the level has no results,
/// or the dispatch is still queued.
pub(crate) fn dispatch_task(relay: &Relay, fact: &DispatchFact) -> Option<NewTask> {
    let hud = relay.config.hud.as_ref()?;
    if !hud.dispatches
        || !fact.level.shows_results()
        || fact.status == DispatchFactStatus::Queued
        || fact.event == EventName::Probe
    {
        return None;
    }
    let repo = RepoName::new(&fact.repo).ok()?;
    let status = match fact.status {
        DispatchFactStatus::Sent => "dispatched",
        status => status.as_str(),
    };
    let mut workflow = json!({
        "schema_version": "1", "status": status, "conclusion": null, "name": DISPATCH_WORKFLOW,
        "job_name": DISPATCH_JOB, "check_run_id": DISPATCH_JOB, "run_id": "0", "run_attempt": 1,
        "started_at": time(fact.at), "completed_at": null,
    });
    if let Some(by) = &fact.superseded_by {
        workflow["superseded_by"] = json!(by);
    }
    let about = (fact.event.as_str(), fact.delivery.as_str(), fact.upstream.as_str());
    let report = report(about, fact.pull_request, &fact.head_sha, workflow);
    let key = state_records::dispatch_key(&fact.delivery, &repo);
    let work = result_task(&repo, fact.level, &key, (None, None), &report);
    Some(work.task(relay.now()))
}

/// A report in place of the one that a lost job never sent.
pub(crate) fn lost_report(dispatch: &Dispatch, job: &JobRecord, now: Timestamp) -> Box<RawValue> {
    let ReportDetails { url, check_run_id, .. } = &job.details;
    let workflow = json!({
        "schema_version": "1", "status": "completed", "conclusion": "timed_out",
        "name": job.id.workflow, "job_name": job.id.job, "url": url,
        "run_id": job.id.run_id, "run_attempt": job.id.run_attempt,
        "check_run_id": check_run_id, "started_at": Value::Null, "completed_at": time(now),
    });
    let about = (dispatch.event.as_str(), dispatch.delivery.as_str(), dispatch.upstream.as_str());
    report(about, dispatch.pull_request, &dispatch.head_sha, workflow)
}

/// A report that the relay makes itself, about an event's name, delivery and upstream repository.
fn report(
    (event, delivery, upstream): (&str, &str, &str),
    pull_request: Option<u64>,
    head_sha: &str,
    workflow: Value,
) -> Box<RawValue> {
    let head = pull_request.map(|number| json!({ "number": number, "head": { "sha": head_sha } }));
    to_raw_value(&json!({
        "event_type": event,
        "delivery_id": delivery,
        "payload": {
            "repository": { "full_name": upstream }, "pull_request": head, "head_sha": head_sha,
        },
        "workflow": workflow,
    }))
    .expect("values are always JSON")
}

fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
