//! The checks of a report before it meets the state.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use crcr_domain::AllowlistEntry;
use crcr_domain::protocol::callback::{self, Callback, JobId};
use crcr_domain::protocol::dispatch::Dispatch;
use crcr_domain::protocol::identity::{CallerIdentity, ProviderClaims};
use crcr_domain::protocol::standard_json::standard_json;
use crcr_domain::results::facts::CallbackOutcome;
use crcr_store::StoreError;

use super::dry_dispatch;
use super::response::{CallbackAnswer, CallbackResponse, KnownReport, record_unchanged};
use super::verified_report::{OverBudget, RecordAttempt, VerifiedReport};
use crate::http::http_response::{self, Refusal};
use crate::relay::Relay;
use crate::usage::Resource;
use crate::{limits, state_records};

pub(crate) async fn handle(State(relay): State<Arc<Relay>>, request: Request) -> Response {
    let started = Instant::now();
    let (head, body) = request.into_parts();
    let mut known = KnownReport::default();
    let response = match http_response::body(body, limits::CALLBACK_BYTES).await {
        Ok(body) => receive(&relay, &head.headers, &body, &mut known, started).await,
        Err(refusal) => CallbackResponse::refused(CallbackOutcome::BadBody, refusal),
    };
    let is_dry = matches!(response.result, Ok(CallbackAnswer::DryDispatch));
    let outcome = match &response.result {
        // Nobody has proven who it is: strangers can cause as many as they like.
        Err(refusal) if refusal.status.is_server_error() && known.repo.is_none() => "unverified",
        Err(refusal) if refusal.status.is_server_error() => "unavailable",
        _ if is_dry => "dry_dispatch",
        _ => response.outcome.as_str(),
    };
    if response.result.is_ok() {
        relay.note_taken();
    }
    relay.metrics.callback(outcome, started.elapsed().as_secs_f64());
    if !response.outcome.is_stored() && !is_dry {
        record_unchanged(&relay, &known, &response, started.elapsed());
    }
    response.into_response(&relay, &known)
}

/// The order of these checks is part of the contract.
async fn receive(
    relay: &Relay,
    headers: &HeaderMap,
    body: &Bytes,
    known: &mut KnownReport,
    started: Instant,
) -> CallbackResponse {
    // Before the token, only whether the body is JSON is checked; its content comes after.
    let (mut standard, mut parsed) = (Cow::Borrowed(&**body), callback::read(body));
    if matches!(parsed, Err(callback::BodyError::NotJson)) {
        // Most reporters write what the standard allows, and looking for the rest takes as long as reading.
        standard = standard_json(body);
        parsed = callback::read(&standard);
    }
    let body = standard.as_ref();
    if let Err(callback::BodyError::NotJson) = &parsed
        && headers.contains_key(header::CONTENT_ENCODING)
    {
        let detail =
            "a compressed body isn't taken: send the JSON as it is, without `Content-Encoding`";
        let refusal = Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail);
        return CallbackResponse::refused(CallbackOutcome::BadBody, refusal);
    }
    if let Err(error @ (callback::BodyError::NotJson | callback::BodyError::TooDeep)) = &parsed {
        return CallbackResponse::bad_request(CallbackOutcome::BadBody, error.to_string());
    }
    let authorization = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let now = relay.now();
    let mut identity = match relay.verifier.verify(authorization, now).await {
        Ok(identity) => identity,
        Err(error) => {
            let mut refusal = Refusal::new(error.status, error.detail);
            refusal.retry_after = error.retry_after.map(|pause| pause.as_secs().max(1));
            return CallbackResponse::refused(CallbackOutcome::BadToken, refusal);
        }
    };
    known.repo = Some(identity.repository.clone());
    // Otherwise a report of a re-run would be of the first attempt, and be refused.
    if let Ok(callback) = &mut parsed
        && callback.lacks_attempt
        && let Some(attempt) = identity.github().and_then(|claims| claims.run_attempt)
    {
        callback.job.run_attempt = u32::try_from(attempt).unwrap_or(u32::MAX);
    }
    if let Ok(callback) = &parsed
        && dry_dispatch::is_proven(relay, &identity, callback, now)
    {
        return check_run_of_token(&identity, &callback.job).unwrap_or_else(|| {
            let answer = CallbackAnswer::DryDispatch;
            CallbackResponse::accepted(CallbackOutcome::BelowLevel, answer)
        });
    }
    let Some(allowlist) = relay.allowlist.get() else {
        return CallbackResponse::unavailable("the allowlist is not loaded yet");
    };
    if allowlist.get(&identity.repository).is_none()
        && let Err(error) = find_pinned_name(relay, &mut identity).await
    {
        return CallbackResponse::store_failed(&error);
    }
    known.repo = Some(identity.repository.clone());
    let identity = identity;
    let entry = allowlist.get(&identity.repository);
    let ignored =
        || CallbackResponse::accepted(CallbackOutcome::BelowLevel, CallbackAnswer::Ignored);
    let entry = entry.filter(|entry| entry.level.shows_results());
    if entry.is_none() {
        // Its level may have been higher when it was dispatched.
        let Ok(callback) = &parsed else { return ignored() };
        match was_asked_for_results(relay, &identity, callback).await {
            Ok(true) => {}
            Ok(false) => return ignored(),
            Err(error) => return CallbackResponse::store_failed(&error),
        }
    }
    let mut callback = match parsed {
        Ok(callback) => callback,
        Err(error) => {
            return CallbackResponse::bad_request(CallbackOutcome::BadBody, error.to_string());
        }
    };
    if let Cow::Owned(_) = standard {
        let warning =
            "half a character, bytes that aren't UTF-8, or a number that isn't finite: replaced";
        callback.details.warnings.push(warning.to_owned());
    }
    known.callback = Some(callback.clone());
    if let Some(refused) = check_run_of_token(&identity, &callback.job) {
        return refused;
    }
    let report = CheckedReport { identity: &identity, entry, callback, body, started };
    record(relay, report, known).await
}

/// A repository that isn't on the allowlist may have been renamed since it was dispatched to. If so, its report is of
/// the name that it was pinned under.
async fn find_pinned_name(relay: &Relay, identity: &mut CallerIdentity) -> Result<(), StoreError> {
    let Some(number) = identity.github().and_then(|claims| claims.repository_id) else {
        return Ok(());
    };
    if let Some(name) = relay.pinned_names.of(relay, number).await?.into_iter().next() {
        tracing::warn!(repo = %name, now = %identity.repository, "a renamed repository reports");
        identity.repository = name;
    }
    Ok(())
}

/// A report that passed all checks which need no state.
struct CheckedReport<'a> {
    identity: &'a CallerIdentity,
    entry: Option<&'a AllowlistEntry>,
    callback: Callback,
    body: &'a [u8],
    started: Instant,
}

/// Decides the report until no other change comes first, with less of it if its repository has used up a day's bytes.
async fn record(
    relay: &Relay,
    report: CheckedReport<'_>,
    known: &mut KnownReport,
) -> CallbackResponse {
    let CheckedReport { identity, entry, mut callback, body, started } = report;
    let mut forwards_all = true;
    for _ in 0..limits::CONFLICT_TRIES {
        let over_budget = OverBudget::default();
        let report = VerifiedReport {
            relay,
            identity,
            entry,
            callback: &callback,
            body,
            started,
            forwards_all,
            over_budget: &over_budget,
        };
        let attempt = if callback.kind.is_self_report() {
            report.record_self_report().await
        } else {
            report.record_dispatched_job().await
        };
        match attempt {
            Ok(RecordAttempt::Answered(response)) => {
                if response.result.is_ok() && response.outcome.is_stored() {
                    log_warnings(&callback, identity);
                }
                return response;
            }
            Ok(RecordAttempt::Again) if over_budget.forwards.into_inner() => forwards_all = false,
            Ok(RecordAttempt::Again) if over_budget.texts.into_inner() => {
                let repo = identity.repository.as_str();
                relay.usage.add(relay.now(), Resource::DroppedTexts, repo, 1);
                callback.details.drop_texts(&format!(
                    "`{}` has sent {} MB of texts today, which is the limit: the result is recorded, and \
                     the texts of this report aren't",
                    identity.repository,
                    limits::TEXT_BYTES_PER_DAY >> 20
                ));
                known.callback = Some(callback.clone());
            }
            Ok(RecordAttempt::Again) => {}
            Err(error) => return CallbackResponse::store_failed(&error),
        }
    }
    CallbackResponse::unavailable("too many reports of one job at once")
}

/// Whether the backend was at a level with results when it got the dispatch that a report answers.
async fn was_asked_for_results(
    relay: &Relay,
    identity: &CallerIdentity,
    callback: &Callback,
) -> Result<bool, StoreError> {
    if callback.kind.is_self_report() {
        return Ok(false);
    }
    let key = state_records::dispatch_key(&callback.delivery, &identity.repository);
    let dispatch = relay.read_record::<Dispatch>(key).await?.value;
    Ok(dispatch.is_some_and(|dispatch| dispatch.level.shows_results()))
}

fn log_warnings(callback: &Callback, identity: &CallerIdentity) {
    let (delivery, repo, job) = (&callback.delivery, &identity.repository, &callback.job);
    for warning in &callback.details.warnings {
        tracing::warn!(delivery, %repo, %job, warning, "a part of a report was dropped or changed");
    }
}

/// If the token names a run, the body has to name the same one.
fn check_run_of_token(identity: &CallerIdentity, job: &JobId) -> Option<CallbackResponse> {
    let differs = |field: &str, body: &str, token: &str| {
        let detail = format!(
            "callback body field `workflow.{field}`: received {body}, the token is of {token}"
        );
        Some(CallbackResponse::bad_token(detail))
    };
    match &identity.claims {
        ProviderClaims::GitHub(claims) => {
            let (Some(run), Some(attempt)) = (claims.run_id, claims.run_attempt) else {
                return Some(CallbackResponse::bad_token("the token names no run"));
            };
            if job.run_id != run.to_string() {
                return differs("run_id", &job.run_id, &run.to_string());
            }
            if u64::from(job.run_attempt) != attempt {
                return differs("run_attempt", &job.run_attempt.to_string(), &attempt.to_string());
            }
            None
        }
        ProviderClaims::Buildkite(claims) => {
            let builds = [&claims.build_id, &claims.build_number].map(Option::as_deref);
            let is_own = builds.contains(&Some(&*job.run_id)) || builds == [None, None];
            let builds: Vec<&str> = builds.into_iter().flatten().collect();
            if is_own { None } else { differs("run_id", &job.run_id, &builds.join(" or ")) }
        }
    }
}
