//! Facts computed from records.

use crcr_domain::protocol::dispatch::{Dispatch, DispatchStatus};
use crcr_domain::protocol::event::EventName;
use crcr_domain::results::facts::{AttemptFact, DispatchFact, DispatchFactStatus};
use crcr_domain::{Level, RepoName};
use jiff::Timestamp;

use crate::relay::Relay;
use crate::state_records::JobRecord;

/// Why a job ran: a dispatch, or the repository's own schedule.
pub(crate) struct JobCause<'a> {
    pub(crate) repo: &'a RepoName,
    pub(crate) delivery: &'a str,
    pub(crate) level: Level,
    pub(crate) event: &'a EventName,
    pub(crate) upstream: &'a str,
    pub(crate) pull_request: Option<u64>,
    pub(crate) head_sha: &'a str,
    /// When the event was accepted.
    pub(crate) dispatched_at: Timestamp,
    /// `None` when the time in the queue isn't known.
    pub(crate) queued_since: Option<Timestamp>,
}

impl<'a> From<&'a Dispatch> for JobCause<'a> {
    fn from(dispatch: &'a Dispatch) -> Self {
        Self {
            repo: &dispatch.repo,
            delivery: &dispatch.delivery,
            level: dispatch.level,
            event: &dispatch.event,
            upstream: &dispatch.upstream,
            pull_request: dispatch.pull_request,
            head_sha: &dispatch.head_sha,
            dispatched_at: dispatch.enqueued_at,
            queued_since: Some(dispatch.sent_at().unwrap_or(dispatch.enqueued_at)),
        }
    }
}

pub(crate) fn attempt_fact(
    relay: &Relay,
    cause: &JobCause<'_>,
    job: &JobRecord,
    now: Timestamp,
) -> AttemptFact {
    let expected = &relay.config.expected_conclusions;
    let seconds = |(from, to): (Timestamp, Timestamp)| {
        (to.duration_since(from).as_secs_f64().max(0.0) * 1000.0).round() / 1000.0
    };
    AttemptFact {
        received_at: now,
        dispatched_at: cause.dispatched_at,
        repo: cause.repo.as_str().to_owned(),
        delivery: cause.delivery.to_owned(),
        workflow: job.id.workflow.clone(),
        job: job.id.job.clone(),
        run_id: job.id.run_id.clone(),
        run_attempt: job.id.run_attempt,
        state: job.state,
        start_unknown: job.start_unknown,
        queue_seconds: cause
            .queued_since
            .filter(|_| job.is_first_of_run)
            .zip(job.started_at)
            .map(seconds),
        execution_seconds: job.started_at.zip(job.ended_at).map(seconds),
        details: job.details.clone(),
        missing_proof: None,
        expected: expected.conclusion(cause.repo.as_str(), job.id.job.as_deref()),
        level: cause.level,
        event: cause.event.clone(),
        upstream: cause.upstream.to_owned(),
        pull_request: cause.pull_request,
        head_sha: cause.head_sha.to_owned(),
    }
}

pub(crate) fn dispatch_fact(dispatch: &Dispatch, now: Timestamp) -> DispatchFact {
    DispatchFact {
        at: now,
        delivery: dispatch.delivery.clone(),
        upstream: dispatch.upstream.clone(),
        pull_request: dispatch.pull_request,
        head_sha: dispatch.head_sha.clone(),
        event: dispatch.event.clone(),
        repo: dispatch.repo.as_str().to_owned(),
        level: dispatch.level,
        labels: dispatch.labels.clone(),
        enqueued_at: dispatch.enqueued_at,
        sent_at: dispatch.sent_at(),
        status: if dispatch.never_started {
            DispatchFactStatus::NeverStarted
        } else {
            (&dispatch.status).into()
        },
        superseded_by: match &dispatch.status {
            DispatchStatus::Superseded { by } => Some(by.clone()),
            _ => None,
        },
        tries: dispatch.tries,
        last_error: dispatch.last_error.clone(),
    }
}
