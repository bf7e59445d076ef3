//! The response to a report, and the fact that is recorded about it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use crcr_domain::RepoName;
use crcr_domain::checks::lifecycle::JobState;
use crcr_domain::protocol::callback::Callback;
use crcr_domain::results::facts::{CallbackFact, CallbackOutcome, Fact};
use crcr_store::{BudgetCharge, StoreError, WriteBatch};
use serde_json::json;

use crate::http::http_response::{self, Refusal};
use crate::relay::Relay;
use crate::state_records;

/// The body of a 200.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CallbackAnswer {
    /// The report was recorded, with this state.
    Recorded(JobState),
    /// The repository's level has no results.
    Ignored,
    /// Nothing is recorded, as with `Ignored`, and the run was proven to be of a dry dispatch.
    DryDispatch,
    Duplicate,
    /// A later state was reported before.
    Stale,
}

pub(crate) struct CallbackResponse {
    pub(crate) outcome: CallbackOutcome,
    pub(crate) result: Result<CallbackAnswer, Refusal>,
}

/// What is known about a report, however far its checks got.
#[derive(Default)]
pub(crate) struct KnownReport {
    pub(crate) repo: Option<RepoName>,
    pub(crate) callback: Option<Callback>,
}

impl KnownReport {
    /// The repository that sent the report, if it is on the allowlist.
    fn listed_repo(&self, relay: &Relay) -> Option<&RepoName> {
        let allowlist = relay.allowlist.get()?;
        self.repo.as_ref().filter(|repo| allowlist.get(repo).is_some())
    }
}

impl CallbackAnswer {
    fn into_response(self, report: Option<&Callback>) -> Response {
        let mut body = match self {
            Self::Recorded(state) => json!({ "ok": true, "status": state.status() }),
            Self::Ignored => json!({ "ok": true, "status": "ignored" }),
            Self::DryDispatch => json!({ "ok": true, "status": "ignored", "dry_dispatch": true }),
            Self::Duplicate => json!({ "ok": true, "duplicate": true }),
            Self::Stale => json!({ "ok": true, "stale": true }),
        };
        if let Some(report) = report.filter(|report| !report.details.warnings.is_empty()) {
            body["warnings"] = json!(report.details.warnings);
        }
        http_response::ok(body)
    }
}

impl CallbackResponse {
    pub(crate) fn accepted(outcome: CallbackOutcome, answer: CallbackAnswer) -> Self {
        Self { outcome, result: Ok(answer) }
    }

    pub(crate) fn refused(outcome: CallbackOutcome, refusal: Refusal) -> Self {
        Self { outcome, result: Err(refusal) }
    }

    pub(crate) fn bad_request(outcome: CallbackOutcome, detail: impl Into<String>) -> Self {
        Self::refused(outcome, Refusal::new(StatusCode::BAD_REQUEST, detail))
    }

    pub(crate) fn bad_token(detail: impl Into<String>) -> Self {
        let refusal = Refusal::new(StatusCode::UNAUTHORIZED, detail);
        Self::refused(CallbackOutcome::BadToken, refusal)
    }

    /// Nothing was recorded, and the same report may be sent again.
    pub(crate) fn unavailable(detail: impl Into<String>) -> Self {
        Self::refused(CallbackOutcome::RejectedState, Refusal::unavailable(detail.into()))
    }

    pub(crate) fn store_failed(error: &StoreError) -> Self {
        Self::unavailable(format!("temporary outage: failed to persist callback state ({error})"))
    }

    /// Each caller gets a time of its own: if all of them came back at once, all but one would be refused
    /// again.
    ///
    /// `what`: the limit that was reached; without it, the limit per minute.
    pub(crate) fn rate_limited(
        relay: &Relay,
        repo: &RepoName,
        wait: Duration,
        what: Option<&str>,
    ) -> Self {
        let which = what.map(|what| format!(": {what}")).unwrap_or_default();
        let detail = format!("rate limit exceeded for {repo}{which}");
        let wait = relay.usage.next_turn(repo, wait, relay.config.rate_per_minute);
        let mut refusal = Refusal::new(StatusCode::TOO_MANY_REQUESTS, detail);
        refusal.retry_after = Some(wait.as_secs() + 1);
        Self::refused(CallbackOutcome::RateLimited, refusal)
    }

    pub(crate) fn into_response(self, relay: &Relay, report: &KnownReport) -> Response {
        match self.result {
            Ok(answer) => answer.into_response(report.callback.as_ref()),
            Err(refusal) => {
                let is_listed = report.listed_repo(relay).is_some();
                if is_listed || relay.strangers_log.takes_one(Instant::now()) {
                    let repo = report.repo.as_ref().map(RepoName::as_str);
                    let callback = report.callback.as_ref();
                    let delivery = callback.map(|callback| callback.delivery.as_str());
                    let (status, detail) = (refusal.status.as_u16(), &refusal.detail);
                    tracing::warn!(delivery, repo, status, detail, "callback refused");
                }
                refusal.into_response()
            }
        }
    }
}

/// The fact about a report, and the response to it.
pub(crate) fn callback_fact(
    relay: &Relay,
    report: &KnownReport,
    response: &CallbackResponse,
    latency: Duration,
) -> CallbackFact {
    let callback = report.callback.as_ref();
    let refusal = response.result.as_ref().err();
    CallbackFact {
        at: relay.now(),
        repo: report.repo.as_ref().map(|repo| repo.as_str().to_owned()),
        delivery: callback.map(|callback| callback.delivery.clone()),
        run_id: callback.map(|callback| callback.job.run_id.clone()),
        job: callback.and_then(|callback| callback.job.job.clone()),
        status: callback.map(|callback| callback.state.status().to_owned()),
        conclusion: callback
            .and_then(|callback| callback.state.conclusion())
            .map(|conclusion| conclusion.as_str().to_owned()),
        outcome: response.outcome,
        answer: refusal.map_or(200, |refusal| refusal.status.as_u16()),
        detail: refusal.map(|refusal| refusal.detail.clone()),
        latency_ms: latency.as_micros() as f64 / 1000.0,
    }
}

/// Records a report that changed nothing. The answer doesn't depend on it, so nobody waits for it.
/// Nothing is recorded for repositories that aren't on the allowlist, nor above a limit for each
/// repository, so that nobody can fill the disk.
pub(crate) fn record_unchanged(
    relay: &Arc<Relay>,
    report: &KnownReport,
    response: &CallbackResponse,
    latency: Duration,
) {
    let is_outage = response.result.as_ref().is_err_and(|refusal| refusal.status.is_server_error());
    let Some(repo) = report.listed_repo(relay) else { return };
    if is_outage {
        return;
    }
    // A separate bucket: refused reports don't count against the limit of good ones.
    let bucket = state_records::refused_report_limit_key(repo);
    let charges = vec![BudgetCharge::per_minute(bucket, relay.config.rate_per_minute)];
    let facts = vec![Fact::Callback(callback_fact(relay, report, response, latency))];
    let batch = WriteBatch { charges, facts, ..WriteBatch::default() };
    let relay = Arc::clone(relay);
    tokio::spawn(async move {
        if let Err(error) = relay.commit(batch).await {
            tracing::warn!(%error, "the fact of a report is lost");
        }
    });
}
