//! Facts as the records tell them.

use crcr_domain::dispatch::Dispatch;
use crcr_domain::facts::AttemptFact;
use jiff::Timestamp;

use crate::records::Job;

/// The fact of how a job of a dispatch stands.
pub(crate) fn attempt_fact(dispatch: &Dispatch, job: &Job, now: Timestamp) -> AttemptFact {
    let seconds = |from: Timestamp, to: Timestamp| {
        (to.duration_since(from).as_secs_f64().max(0.0) * 1000.0).round() / 1000.0
    };
    let first = dispatch.sent_at().unwrap_or(dispatch.enqueued_at);
    AttemptFact {
        received_at: now,
        dispatched_at: dispatch.enqueued_at,
        repo: dispatch.repo.as_str().to_owned(),
        delivery: dispatch.delivery.clone(),
        workflow: job.id.workflow.clone(),
        job: job.id.job.clone(),
        run_id: job.id.run_id.clone(),
        run_attempt: job.id.run_attempt,
        check_run_id: job.details.check_run_id.clone(),
        state: job.state,
        start_unknown: job.start_unknown,
        phase: job.details.phase.clone(),
        queue_seconds: job.started_at.map(|started| seconds(first, started)),
        execution_seconds: job
            .started_at
            .zip(job.ended_at)
            .map(|(started, ended)| seconds(started, ended)),
        started_at: job.details.started_at,
        completed_at: job.details.completed_at,
        tests: job.details.tests,
        failed_tests: job.details.failed_tests.clone(),
        url: job.details.url.clone(),
        artifact_url: job.details.artifact_url.clone(),
        environment: job.details.environment.clone(),
        level: dispatch.level,
        event: dispatch.event.clone(),
        upstream: dispatch.upstream.clone(),
        pull_request: dispatch.pull_request,
        head_sha: dispatch.head_sha.clone(),
    }
}
