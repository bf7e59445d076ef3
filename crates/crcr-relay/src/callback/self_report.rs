//! The report of a nightly or periodic run, which no dispatch started.

use crcr_domain::EventKind;
use crcr_domain::callback::CallbackKind;
use crcr_domain::event::EventName;
use crcr_domain::facts::{CallbackOutcome, Fact};
use crcr_domain::lifecycle::{self, JobState, JobTransition};
use crcr_domain::proof::ReportProvenance;
use crcr_store::{CommitOutcome, StoreError, Versioned, WriteBatch, read_record};

use super::response::{CallbackAnswer, CallbackResponse};
use super::verified_report::{Decision, VerifiedReport};
use crate::facts::{JobCause, attempt_fact};
use crate::limits;
use crate::queue::handlers::alert;
use crate::repository_pins::Pin;
use crate::state_records::{self, CommitLookup, JobRecord, UsedToken};

impl VerifiedReport<'_> {
    pub(super) async fn record_self_report(&self) -> Decision {
        let (relay, callback) = (self.relay, self.callback);
        let (store, upstream) = (relay.store.as_ref(), &relay.config.upstream);
        let repo = &self.identity.repository;
        let Some(entry) = self.entry else {
            let answer = CallbackAnswer::Ignored;
            return Ok(Some(CallbackResponse::accepted(CallbackOutcome::BelowLevel, answer)));
        };
        if !entry.events.contains(EventKind::Nightly) {
            let detail = format!("`{repo}` takes no part in nightly runs");
            let outcome = CallbackOutcome::RejectedState;
            return Ok(Some(CallbackResponse::bad_request(outcome, detail)));
        }
        if let Some(claims) = self.identity.github()
            && !matches!(claims.event_name.as_deref(), Some("schedule" | "workflow_dispatch"))
        {
            let detail =
                "nightly/periodic callbacks come from `schedule` or `workflow_dispatch` runs";
            return Ok(Some(CallbackResponse::bad_token(detail)));
        }
        let pin: Versioned<Pin> =
            read_record(store, state_records::pin_key(upstream, repo)).await?;
        if let Some(refused) = self.check_pin(&pin).await? {
            return Ok(Some(refused));
        }
        let token: Versioned<UsedToken> = read_record(store, self.token_key()).await?;
        if let Some(replayed) = self.check_replay(token.value.as_ref()) {
            return Ok(Some(replayed));
        }
        let job_key = state_records::job_key(&callback.delivery, repo, &callback.job);
        let job: Versioned<JobRecord> = read_record(store, job_key.clone()).await?;
        let current = job.value.as_ref().map_or(JobState::Dispatched, |job| job.state);
        match lifecycle::transition(current, callback.state) {
            JobTransition::Apply { .. } => {}
            step => return self.reject_step(step, &token).await,
        }
        // Charged before GitHub is asked, so that a flood of reports can't use up the API quota.
        let charge = WriteBatch { rate_limit: Some(self.rate_limit()), ..WriteBatch::default() };
        if let CommitOutcome::Limited(wait) = relay.commit(charge).await? {
            return Ok(Some(CallbackResponse::rate_limited(repo, wait)));
        }
        match self.commit_exists().await? {
            Ok(true) => {}
            Ok(false) => {
                let detail = format!(
                    "callback body field `delivery_id`: received {}, expected a commit of {upstream}",
                    callback.delivery
                );
                let outcome = CallbackOutcome::BadBody;
                return Ok(Some(CallbackResponse::bad_request(outcome, detail)));
            }
            Err(error) => {
                let detail = format!("the commit can't be looked up: {error}");
                return Ok(Some(CallbackResponse::unavailable(detail)));
            }
        }
        let now = relay.now();
        let next = JobRecord {
            id: callback.job.clone(),
            state: callback.state,
            start_unknown: false,
            started_at: None,
            ended_at: Some(now),
            details: callback.details.clone(),
            evidence: ReportProvenance::default(),
            ended_without_proof: false,
            ends_run: false,
        };
        let mut batch = WriteBatch::default();
        batch.update(&job, &next, relay.expiry());
        let cause = JobCause {
            repo: &entry.repo,
            delivery: &callback.delivery,
            level: entry.level,
            dispatched_at: now,
            event: if callback.kind == CallbackKind::Nightly {
                &EventName::Nightly
            } else {
                &EventName::Periodic
            },
            upstream: upstream.as_str(),
            pull_request: None,
            head_sha: &callback.delivery,
            queued_since: None,
        };
        let fact = attempt_fact(&cause, &next, now);
        batch.tasks.extend(alert::task(relay, &fact, now));
        batch.facts.push(Fact::Attempt(Box::new(fact)));
        self.add_forward(&job_key, entry.level, (None, None), &mut batch);
        let answer = CallbackAnswer::Recorded(callback.state);
        self.commit(batch, &token, answer, (CallbackOutcome::Accepted, None)).await
    }

    /// Whether upstream has the commit that the report names. The answer is cached, so that all jobs
    /// that report on one commit cost one request.
    async fn commit_exists(&self) -> Result<Result<bool, crcr_github::GithubError>, StoreError> {
        let (relay, sha) = (self.relay, &self.callback.delivery);
        let upstream = &relay.config.upstream;
        let now = relay.now();
        let key = state_records::commit_key(upstream, sha);
        let cached: Versioned<CommitLookup> = read_record(relay.store.as_ref(), key).await?;
        if let Some(cached) = cached.value.filter(|cached| cached.until > now) {
            return Ok(Ok(cached.exists));
        }
        let exists = match relay.app.commit_exists(upstream.as_str(), sha).await {
            Ok(exists) => exists,
            Err(error) => return Ok(Err(error)),
        };
        let lifetime = if exists { limits::COMMIT_EXISTS } else { limits::COMMIT_ABSENT };
        let until = now + lifetime;
        let mut batch = WriteBatch::default();
        batch.set(cached.key, &CommitLookup { exists, until }, until);
        relay.commit(batch).await?;
        Ok(Ok(exists))
    }
}
