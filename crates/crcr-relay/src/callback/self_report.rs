//! The report of a nightly or periodic run, which no dispatch started.

use std::collections::BTreeMap;
use std::time::Duration;

use crcr_domain::checks::lifecycle::{self, JobState, JobTransition};
use crcr_domain::checks::proof::MissingProof;
use crcr_domain::protocol::callback::{CallbackKind, JobId};
use crcr_domain::protocol::event::EventName;
use crcr_domain::results::facts::{AttemptFact, CallbackOutcome, Fact};
use crcr_domain::{AllowlistEntry, EventKind, RepoName};
use crcr_github::GithubError;
use crcr_store::{BudgetCharge, CommitOutcome, StoreError, Versioned, WriteBatch, read_record};
use jiff::Timestamp;

use super::response::{CallbackAnswer, CallbackResponse};
use super::verified_report::{RecordAttempt, VerifiedReport};
use crate::facts::{JobCause, attempt_fact};
use crate::limits;
use crate::probes::bisect;
use crate::queue::handlers::alert;
use crate::queue::task_kind::{TaskDone, TaskError, TaskKind};
use crate::relay::Relay;
use crate::repository_pins::Pin;
use crate::state_records::{self, CommitLookup, JobRecord, UsedToken};

impl VerifiedReport<'_> {
    pub(crate) async fn record_self_report(&self) -> Result<RecordAttempt, StoreError> {
        let (relay, callback) = (self.relay, self.callback);
        let (store, upstream) = (relay.store.as_ref(), &relay.config.upstream);
        let repo = &self.identity.repository;
        let Some(entry) = self.entry else {
            let answer = CallbackAnswer::Ignored;
            return Ok(RecordAttempt::Answered(CallbackResponse::accepted(
                CallbackOutcome::BelowLevel,
                answer,
            )));
        };
        if let Some(refused) = self.check_self_report(entry).await? {
            return Ok(RecordAttempt::Answered(refused));
        }
        let token: Versioned<UsedToken> = read_record(store, self.token_key()).await?;
        if let Some(replayed) = self.check_replay(token.value.as_ref()) {
            return Ok(RecordAttempt::Answered(replayed));
        }
        let job_key = state_records::self_report_key(&callback.delivery, repo, &callback.job);
        let job: Versioned<JobRecord> = read_record(store, job_key.clone()).await?;
        let current = job.value.as_ref().map_or(JobState::Dispatched, |job| job.state);
        match lifecycle::transition(current, callback.state) {
            JobTransition::Apply { .. } => {}
            step => return self.reject_step(step, WriteBatch::default(), &token).await,
        }
        if let Some(wait) = self.charge_look_up().await? {
            return Ok(RecordAttempt::Answered(CallbackResponse::rate_limited(
                relay, repo, wait, None,
            )));
        }
        let claimed = callback.claimed_commit.as_deref();
        let exists = match claimed {
            Some(commit) => commit_exists_in_time(relay, commit).await?,
            None => Ok(false),
        };
        let commit = claimed.filter(|_| matches!(exists, Ok(true)));
        let missing = match exists {
            Ok(true) => self.missing_schedule(),
            Ok(false) => Some(MissingProof::Commit),
            Err(_) => Some(MissingProof::CommitUnknown),
        };
        let now = relay.now();
        let mut next = self.self_reported_job(now);
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
            head_sha: commit.unwrap_or_default(),
            queued_since: None,
        };
        let mut fact = attempt_fact(relay, &cause, &next, now);
        fact.missing_proof = missing;
        next.details.keep_shown_tests();
        let mut batch = WriteBatch::default();
        batch.update(&job, &next, relay.expiry());
        if let (Err(retry_at), Some(commit)) = (exists, claimed) {
            let work = TaskKind::SelfReportCommit {
                attempt: Box::new(fact.clone()),
                commit: commit.to_owned(),
                missing: self.missing_schedule(),
            };
            batch.tasks.push(work.task(retry_at.map_or(now, |at| at.max(now))));
        }
        add_attempt(relay, fact, &mut batch);
        self.add_forward(&job_key, entry.level, (None, None), &mut batch);
        let answer = CallbackAnswer::Recorded(callback.state);
        let outcome = match missing {
            Some(_) => CallbackOutcome::Unproven,
            None => CallbackOutcome::Accepted,
        };
        self.commit(batch, &token, answer, (outcome, missing)).await
    }

    /// The job as this report has it, whatever was reported before.
    fn self_reported_job(&self, now: Timestamp) -> JobRecord {
        JobRecord {
            id: self.callback.job.clone(),
            state: self.callback.state,
            start_unknown: false,
            heard_at: now,
            started_at: None,
            last_started_at: None,
            ended_at: Some(now),
            is_first_of_run: false,
            details: self.callback.details.clone(),
            provenance: self.provenance(None),
            ended_without_proof: false,
            pipeline: None,
            build_number: None,
            ends_run: false,
            steps: BTreeMap::new(),
        }
    }

    /// Refuses what isn't the repository's own run, or isn't of this repository.
    async fn check_self_report(
        &self,
        entry: &AllowlistEntry,
    ) -> Result<Option<CallbackResponse>, StoreError> {
        let (store, upstream) = (self.relay.store.as_ref(), &self.relay.config.upstream);
        let repo = &self.identity.repository;
        if !entry.events.contains(EventKind::Nightly) {
            let detail = format!("`{repo}` takes no part in nightly runs");
            let outcome = CallbackOutcome::RejectedState;
            return Ok(Some(CallbackResponse::bad_request(outcome, detail)));
        }
        let dispatch_key = state_records::dispatch_key(&self.callback.delivery, repo);
        if store.records(&[dispatch_key]).await?.iter().any(Option::is_some) {
            // Its row would replace the row of the dispatched job.
            let detail = "callback body field `event_type`: received nightly or periodic, but the relay \
                          dispatched this `delivery_id`";
            let outcome = CallbackOutcome::RejectedState;
            return Ok(Some(CallbackResponse::bad_request(outcome, detail)));
        }
        let pin: Versioned<Pin> =
            read_record(store, state_records::pin_key(upstream, repo)).await?;
        self.check_pin(&pin).await
    }

    /// Why nothing may be concluded from the report, although upstream has its commit.
    fn missing_schedule(&self) -> Option<MissingProof> {
        // Anything else may run for a stranger's pull request, or for its workflow's end.
        let event = self.identity.github().map(|claims| claims.event_name.as_deref());
        match event {
            None | Some(Some("schedule" | "workflow_dispatch")) => None,
            Some(_) => Some(MissingProof::Schedule),
        }
    }

    /// Charges a report before GitHub is asked for its commit, so that a flood of them can't use up the API quota. Returns
    /// how long to wait if there are too many. All jobs of a run share the answer, whatever it was.
    async fn charge_look_up(&self) -> Result<Option<Duration>, StoreError> {
        let Some(commit) = &self.callback.claimed_commit else { return Ok(None) };
        let key = state_records::commit_key(&self.relay.config.upstream, commit);
        let cached: Versioned<CommitLookup> = self.relay.read_record(key).await?;
        if cached.value.is_some_and(|cached| is_current(self.relay, &cached)) {
            return Ok(None);
        }
        let bucket = state_records::report_limit_key(&self.identity.repository);
        let charge = BudgetCharge::per_minute(bucket, self.relay.config.rate_per_minute);
        let batch = WriteBatch { charges: vec![charge], ..WriteBatch::default() };
        Ok(match self.relay.commit(batch).await? {
            CommitOutcome::Limited(limited) => Some(limited.wait),
            _ => None,
        })
    }
}

/// Decides on a report whose commit GitHub couldn't be asked for when it came. `missing`: what it lacks even if upstream has
/// the commit.
pub(crate) async fn look_up_commit(
    relay: &Relay,
    attempt: &AttemptFact,
    commit: &str,
    missing: Option<MissingProof>,
) -> Result<TaskDone, TaskError> {
    let exists = commit_exists(relay, commit).await??;
    let repo = RepoName::new(&attempt.repo)
        .map_err(|error| TaskError::permanent(format!("`{}`: {error}", attempt.repo)))?;
    let job = JobId {
        workflow: attempt.workflow.clone(),
        job: attempt.job.clone(),
        run_id: attempt.run_id.clone(),
        run_attempt: attempt.run_attempt,
    };
    let key = state_records::self_report_key(&attempt.delivery, &repo, &job);
    let known: Versioned<JobRecord> = relay.read_record(key).await?;
    // A worse end that was reported since has a row of its own.
    if known.value.is_none_or(|known| known.state != attempt.state) {
        return Ok(TaskDone::Finished);
    }
    let mut decided = attempt.clone();
    decided.received_at = relay.now();
    decided.missing_proof = if exists { missing } else { Some(MissingProof::Commit) };
    if exists {
        commit.clone_into(&mut decided.head_sha);
    }
    let mut batch = WriteBatch::default();
    batch.expected_versions.push((known.key, known.version));
    add_attempt(relay, decided, &mut batch);
    match relay.commit(batch).await? {
        CommitOutcome::Done => Ok(TaskDone::Finished),
        _ => Err(TaskError::retry("another report of the job came meanwhile")),
    }
}

/// Adds a row to a batch, and what is asked for if something may be concluded from it.
fn add_attempt(relay: &Relay, attempt: AttemptFact, batch: &mut WriteBatch) {
    let now = relay.now();
    if attempt.is_evidence() {
        batch.tasks.extend(alert::task(relay, &attempt, now));
        batch.tasks.extend(bisect::task(&attempt, now));
    }
    batch.facts.push(Fact::Attempt(Box::new(attempt)));
}

/// The same as [`commit_exists`], for somebody who waits: not for longer than a sender of reports does. An error is when
/// GitHub may be asked again.
async fn commit_exists_in_time(
    relay: &Relay,
    commit: &str,
) -> Result<Result<bool, Option<Timestamp>>, StoreError> {
    match tokio::time::timeout(limits::COMMIT_LOOK, commit_exists(relay, commit)).await {
        Ok(answer) => Ok(answer?.map_err(|error| error.retry_at())),
        Err(_) => Ok(Err(None)),
    }
}

/// Whether upstream has the commit. The answer is cached, so that all jobs that report on one commit cost one request.
async fn commit_exists(
    relay: &Relay,
    commit: &str,
) -> Result<Result<bool, GithubError>, StoreError> {
    let upstream = &relay.config.upstream;
    let key = state_records::commit_key(upstream, commit);
    let cached: Versioned<CommitLookup> = relay.read_record(key).await?;
    if let Some(cached) = cached.value.filter(|cached| is_current(relay, cached)) {
        return Ok(Ok(cached.exists));
    }
    let exists = match relay.app.commit_exists(upstream.as_str(), commit).await {
        Ok(exists) => exists,
        Err(error) => return Ok(Err(error)),
    };
    let until = relay.now() + lifetime(exists);
    let mut batch = WriteBatch::default();
    batch.set(cached.key, &CommitLookup { exists, until }, until);
    relay.commit(batch).await?;
    Ok(Ok(exists))
}

fn is_current(relay: &Relay, cached: &CommitLookup) -> bool {
    let lifetime = lifetime(cached.exists);
    relay.is_recent(cached.until - lifetime, lifetime)
}

/// How long GitHub's answer is cached.
fn lifetime(exists: bool) -> Duration {
    if exists { limits::COMMIT_EXISTS } else { limits::COMMIT_ABSENT }
}
