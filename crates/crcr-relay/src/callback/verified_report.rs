//! A valid report of a verified caller, and what reports of every kind have in common.

use std::time::{Duration, Instant};

use axum::http::StatusCode;
use bytes::Bytes;
use crcr_domain::callback::Callback;
use crcr_domain::facts::{CallbackOutcome, Fact};
use crcr_domain::identity::CallerIdentity;
use crcr_domain::lifecycle::JobTransition;
use crcr_domain::proof::MissingProof;
use crcr_domain::{AllowlistEntry, Level};
use crcr_store::{CommitOutcome, RateLimitCharge, StoreError, StoreKey, Versioned, WriteBatch};
use serde_json::json;
use serde_json::value::RawValue;

use super::response::{CallbackAnswer, CallbackResponse, ReportSummary, callback_fact};
use crate::compat::forward;
use crate::http::http_response::Refusal;
use crate::relay::Relay;
use crate::repository_pins::{self, Pin};
use crate::state_records::{self, UsedToken};
use crate::webhook::signature::digest;

pub(super) struct VerifiedReport<'a> {
    pub(super) relay: &'a Relay,
    pub(super) identity: &'a CallerIdentity,
    /// `None` if results of its level aren't stored now; a dispatch may have been made at a higher one.
    pub(super) entry: Option<&'a AllowlistEntry>,
    pub(super) callback: &'a Callback,
    pub(super) body: &'a Bytes,
    /// When the request arrived.
    pub(super) started: Instant,
}

/// `None` when another change came first, so that the decision has to be made again.
pub(super) type Decision = Result<Option<CallbackResponse>, StoreError>;

impl VerifiedReport<'_> {
    /// The answer to a report that doesn't change its job's state.
    pub(super) async fn reject_step(
        &self,
        step: JobTransition,
        token: &Versioned<UsedToken>,
    ) -> Decision {
        let (answer, outcome) = match step {
            JobTransition::Duplicate => (CallbackAnswer::Duplicate, CallbackOutcome::Duplicate),
            JobTransition::Stale => (CallbackAnswer::Stale, CallbackOutcome::Stale),
            // The worse end of a job of this name stays; the report itself was fine.
            JobTransition::Apply { .. } | JobTransition::Better => {
                (CallbackAnswer::Recorded(self.callback.state), CallbackOutcome::Stale)
            }
        };
        let batch = WriteBatch { rate_limit: Some(self.rate_limit()), ..WriteBatch::default() };
        self.commit(batch, token, answer, (outcome, None)).await
    }

    /// Commits a report's changes, together with the use of its token.
    pub(super) async fn commit(
        &self,
        mut batch: WriteBatch,
        token: &Versioned<UsedToken>,
        answer: CallbackAnswer,
        (outcome, missing): (CallbackOutcome, Option<MissingProof>),
    ) -> Decision {
        let relay = self.relay;
        let until = self.identity.expires_at + Duration::from_secs(60);
        batch.update(token, &UsedToken { body: digest(self.body) }, until);
        if outcome.is_stored() {
            let summary = ReportSummary {
                repo: Some(self.identity.repository.clone()),
                callback: Some(self.callback.clone()),
            };
            let response = CallbackResponse::accepted(outcome, answer);
            let mut fact = callback_fact(relay, &summary, &response, self.started.elapsed());
            fact.detail = missing.map(|missing| format!("reported without proof: {missing}"));
            batch.facts.push(Fact::Callback(fact));
        }
        Ok(match relay.commit(batch).await? {
            CommitOutcome::Done => Some(CallbackResponse::accepted(outcome, answer)),
            CommitOutcome::Conflict | CommitOutcome::LeaseLost => None,
            CommitOutcome::Limited(wait) => {
                Some(CallbackResponse::rate_limited(&self.identity.repository, wait))
            }
        })
    }

    /// The answer to a token that was used before. With the same body it is a repeated request. With
    /// another body it is refused, but only if the token has an id of its own: otherwise the job's
    /// state decides.
    pub(super) fn check_replay(&self, used: Option<&UsedToken>) -> Option<CallbackResponse> {
        let used = used?;
        if used.body == digest(self.body) {
            let answer = CallbackAnswer::Duplicate;
            return Some(CallbackResponse::accepted(CallbackOutcome::Duplicate, answer));
        }
        self.identity.jti.as_ref()?;
        Some(CallbackResponse::bad_token(
            "the token was used for another report; mint one per report",
        ))
    }

    /// The record of the token's use. Buildkite's tokens have no id, so pipeline, job and state stand
    /// in for one.
    pub(super) fn token_key(&self) -> StoreKey {
        let job = &self.callback.job;
        match &self.identity.jti {
            Some(jti) => state_records::used_token_key(&self.identity.issuer, jti),
            None => {
                let pipeline = self.identity.buildkite().map(|claims| &claims.pipeline_id);
                let parts = json!([pipeline, job, self.callback.state]);
                state_records::used_token_key(&self.identity.issuer, &parts.to_string())
            }
        }
    }

    /// Refuses a token of another repository that has the name now.
    pub(super) async fn check_pin(&self, pin: &Versioned<Pin>) -> Decision {
        let Some(claims) = self.identity.github() else { return Ok(None) };
        let Some(pinned) = &pin.value else { return Ok(None) };
        let found = claims.repository_id;
        if found == Some(pinned.repository_id) {
            return Ok(None);
        }
        if let Some(found) = found {
            repository_pins::refuse(self.relay, pin, found, "report").await?;
        }
        let detail = repository_pins::refusal(pinned, found);
        let refusal = Refusal::new(StatusCode::FORBIDDEN, detail);
        Ok(Some(CallbackResponse::refused(CallbackOutcome::RepositoryChanged, refusal)))
    }

    /// Adds the task that sends the report to an external HUD, if there is one. `times` are seconds
    /// in the queue and of execution.
    pub(super) fn add_forward(
        &self,
        job_key: &StoreKey,
        level: Level,
        times: (Option<f64>, Option<f64>),
        batch: &mut WriteBatch,
    ) {
        if self.relay.config.hud.is_none() {
            return;
        }
        let Ok(body) = serde_json::from_slice::<Box<RawValue>>(self.body) else { return };
        let repo = &self.identity.repository;
        let kind = forward::result_task(repo, level, job_key, times, &body);
        batch.tasks.push(kind.task(&self.relay.config.upstream, self.relay.now()));
    }

    /// The backend's level now.
    pub(super) fn level(&self) -> Level {
        self.entry.map_or(Level::L1, |entry| entry.level)
    }

    pub(super) fn rate_limit(&self) -> RateLimitCharge {
        RateLimitCharge {
            bucket: state_records::report_limit_key(&self.identity.repository),
            per_minute: self.relay.config.rate_per_minute,
        }
    }
}
