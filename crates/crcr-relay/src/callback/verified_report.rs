//! A valid report of a verified caller, and what reports of every kind have in common.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use crcr_domain::checks::lifecycle::{self, JobTransition};
use crcr_domain::checks::proof::MissingProof;
use crcr_domain::protocol::callback::Callback;
use crcr_domain::protocol::identity::CallerIdentity;
use crcr_domain::results::facts::{CallbackOutcome, Fact};
use crcr_domain::{AllowlistEntry, Level};
use crcr_store::{
    BudgetCharge, CommitOutcome, LimitedBy, StoreError, StoreKey, Versioned, WriteBatch,
};
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};

use super::response::{CallbackAnswer, CallbackResponse, KnownReport, callback_fact};
use crate::compat::forward;
use crate::http::http_response::Refusal;
use crate::limits;
use crate::queue::task_kind::TaskKind;
use crate::relay::Relay;
use crate::repository_pins::{self, Pin};
use crate::state_records::{self, UsedToken};
use crate::usage::Resource;
use crate::webhook::signature::digest;

pub(crate) struct VerifiedReport<'a> {
    pub(crate) relay: &'a Relay,
    pub(crate) identity: &'a CallerIdentity,
    /// `None` if results of its level aren't stored now; a dispatch may have been made at a higher one.
    pub(crate) entry: Option<&'a AllowlistEntry>,
    pub(crate) callback: &'a Callback,
    /// The report as it was received, which is valid JSON.
    pub(crate) body: &'a [u8],
    pub(crate) started: Instant,
    /// Whether an external HUD gets it as it came.
    pub(crate) forwards_all: bool,
    pub(crate) over_budget: &'a OverBudget,
}

/// Set when the repository has used its bytes of this day: the report has to be decided again with less.
#[derive(Default)]
pub(crate) struct OverBudget {
    /// Without the texts of the report.
    pub(crate) texts: AtomicBool,
    /// With what the external HUD reads of it, and not as it came.
    pub(crate) forwards: AtomicBool,
}

/// What came of one try to record a report.
pub(crate) enum RecordAttempt {
    Answered(CallbackResponse),
    /// Nothing was recorded: another change came first, or [`OverBudget`] says what to leave out.
    Again,
}

impl VerifiedReport<'_> {
    /// The answer to a report that doesn't change its job's state, but may change what `batch` has.
    pub(crate) async fn reject_step(
        &self,
        step: JobTransition,
        batch: WriteBatch,
        token: &Versioned<UsedToken>,
    ) -> Result<RecordAttempt, StoreError> {
        let (answer, outcome) = match step {
            JobTransition::Duplicate => (CallbackAnswer::Duplicate, CallbackOutcome::Duplicate),
            JobTransition::Stale => (CallbackAnswer::Stale, CallbackOutcome::Stale),
            // The worse end of a job of this name stays; the report itself was fine.
            JobTransition::Apply { .. } | JobTransition::Better => {
                (CallbackAnswer::Recorded(self.callback.state), CallbackOutcome::Stale)
            }
        };
        self.commit(batch, token, answer, (outcome, None)).await
    }

    /// Commits a report's changes, together with the use of its token.
    pub(crate) async fn commit(
        &self,
        mut batch: WriteBatch,
        token: &Versioned<UsedToken>,
        answer: CallbackAnswer,
        (outcome, missing): (CallbackOutcome, Option<MissingProof>),
    ) -> Result<RecordAttempt, StoreError> {
        let relay = self.relay;
        let until = self.identity.expires_at + Duration::from_secs(60);
        batch.update(
            token,
            &UsedToken { body: digest(self.body), state: self.callback.state },
            until,
        );
        if outcome.is_stored() {
            let known = KnownReport {
                repo: Some(self.identity.repository.clone()),
                callback: Some(self.callback.clone()),
            };
            let response = CallbackResponse::accepted(outcome, answer);
            let mut fact = callback_fact(relay, &known, &response, self.started.elapsed());
            fact.detail = missing.map(|missing| format!("reported without proof: {missing}"));
            batch.facts.push(Fact::Callback(fact));
        }
        let ways_out = self.charge(&mut batch);
        let repo = &self.identity.repository;
        Ok(match relay.commit(batch).await? {
            CommitOutcome::Done => {
                let now = relay.now();
                relay.usage.add(now, Resource::Reports, repo.as_str(), 1);
                let bytes = self.callback.details.text_bytes();
                relay.usage.add(now, Resource::TextBytes, repo.as_str(), bytes);
                RecordAttempt::Answered(CallbackResponse::accepted(outcome, answer))
            }
            CommitOutcome::Conflict | CommitOutcome::LeaseLost => RecordAttempt::Again,
            CommitOutcome::Limited(limited) => match ways_out.get(limited.charge) {
                Some(Some(over)) => {
                    over.store(true, Ordering::Relaxed);
                    RecordAttempt::Again
                }
                _ => RecordAttempt::Answered(self.over_limit(limited)),
            },
        })
    }

    /// The answer to a report that its repository may not send now, by the place of the limit in [`Self::charge`].
    fn over_limit(&self, limited: LimitedBy) -> CallbackResponse {
        let (relay, job) = (self.relay, &self.callback.job);
        let (wait, what) = match limited.charge {
            0 => (limited.wait, None),
            1 => {
                let most = limits::REPORTS_PER_RUN;
                let what = format!("run {} has sent {most} reports at once", job.run_id);
                (limited.wait, Some(what))
            }
            _ => {
                let most = limits::REPORTS_PER_DAY;
                let what = format!("{most} reports were sent on this day, which ends at 00:00 UTC");
                let seconds = 86_400 - relay.now().as_second().rem_euclid(86_400);
                (Duration::from_secs(seconds.unsigned_abs()), Some(what))
            }
        };
        CallbackResponse::rate_limited(relay, &self.identity.repository, wait, what.as_deref())
    }

    /// Adds to a batch what the report costs its repository: a matrix of many jobs is one run in a minute,
    /// and neither a run nor a day has reports or bytes without end. Returns for each charge what is set if it is too
    /// much; without anything, the report is refused.
    fn charge(&self, batch: &mut WriteBatch) -> Vec<Option<&AtomicBool>> {
        let (relay, repo, job) = (self.relay, &self.identity.repository, &self.callback.job);
        let per_minute = relay.config.rate_per_minute;
        let run = state_records::run_reports_key(repo, &job.run_id, job.run_attempt);
        let one = |bucket| BudgetCharge::per_minute(bucket, per_minute);
        let of_day = |what: &str, capacity, cost| BudgetCharge {
            capacity,
            per_minute: 0.0,
            cost,
            ..one(state_records::budget_of_day_key(what, relay.now(), repo.as_str()))
        };
        let forwarded = batch.tasks.iter().filter(|task| TaskKind::is_forward(task));
        let forwarded: u64 = forwarded.map(|task| task.payload.len() as u64).sum();
        let mut ways_out = vec![None, None, None];
        batch.charges = vec![
            BudgetCharge {
                first_of: Some(run.clone()),
                ..one(state_records::report_limit_key(repo))
            },
            BudgetCharge { capacity: limits::REPORTS_PER_RUN, ..one(run) },
            of_day("reports", limits::REPORTS_PER_DAY, 1),
        ];
        let bytes = self.callback.details.text_bytes();
        if bytes > 0 {
            batch.charges.push(of_day("text", limits::TEXT_BYTES_PER_DAY, bytes));
            ways_out.push(Some(&self.over_budget.texts));
        }
        if forwarded > 0 && self.forwards_all {
            batch.charges.push(of_day("forwarded", limits::FORWARDED_BYTES_PER_DAY, forwarded));
            ways_out.push(Some(&self.over_budget.forwards));
        }
        ways_out
    }

    /// The answer to a token that was used before. With the same body it is a repeated request. With
    /// another body it is refused, unless the token serves many reports and this one says the same, or worse: another
    /// step of the same name may have failed.
    pub(crate) fn check_replay(&self, used: Option<&UsedToken>) -> Option<CallbackResponse> {
        let used = used?;
        if used.body == digest(self.body) {
            let answer = CallbackAnswer::Duplicate;
            return Some(CallbackResponse::accepted(CallbackOutcome::Duplicate, answer));
        }
        if self.identity.is_minted_per_report() {
            let detail = "the token was used for another report; mint one per report";
            return Some(CallbackResponse::bad_token(detail));
        }
        // Sent again with another time of day, for example: the job's state says that it is a duplicate.
        let detail =
            "the token was used for another conclusion of this job; mint one to correct it";
        let step = lifecycle::transition(used.state, self.callback.state);
        (step == JobTransition::Better).then(|| CallbackResponse::bad_token(detail))
    }

    /// The record of the token's use: of the token, or of the token for one status of one step of a job, where a token
    /// serves many.
    pub(crate) fn token_key(&self) -> StoreKey {
        let (issuer, token) = (&self.identity.issuer, &self.identity.token_id);
        if self.identity.is_minted_per_report() {
            return state_records::used_token_key(issuer, token);
        }
        let Callback { delivery, job, state, details, .. } = self.callback;
        let parts = json!([token, delivery, job, details.check_run_id, state.status()]);
        state_records::used_token_key(issuer, &parts.to_string())
    }

    /// Refuses a token of another repository that has the name now.
    pub(crate) async fn check_pin(
        &self,
        pin: &Versioned<Pin>,
    ) -> Result<Option<CallbackResponse>, StoreError> {
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
    pub(crate) fn add_forward(
        &self,
        job_key: &StoreKey,
        level: Level,
        times: (Option<f64>, Option<f64>),
        batch: &mut WriteBatch,
    ) {
        if self.relay.config.hud.is_none() {
            return;
        }
        let fits = self.body.len() <= limits::FORWARD_BYTES - limits::FORWARD_ENVELOPE_BYTES;
        let body = if self.forwards_all && fits {
            serde_json::from_slice::<Box<RawValue>>(self.body)
        } else {
            serde_json::from_slice(self.body).and_then(|body| to_raw_value(&forward::short(&body)))
        };
        let Ok(body) = body else { return };
        let repo = &self.identity.repository;
        let kind = forward::result_task(repo, level, job_key, times, &body);
        batch.tasks.push(kind.task(self.relay.now()));
    }

    pub(crate) fn level(&self) -> Level {
        self.entry.map_or(Level::L1, |entry| entry.level)
    }
}
