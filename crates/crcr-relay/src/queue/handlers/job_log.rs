//! Fetches the log of a failed job, keeps it, and finds the line that explains the failure.
//!
//! It is a task of its own with a lane of its own, so a webhook is kept and a dispatch is sent whatever
//! happens here.

use crcr_github::null_as_default;
use std::sync::Arc;

use bytes::Bytes;
use crcr_cidata::logs::{
    Baseline, LogPacker, LogTooLarge, MAX_PACKED_LOG, RuleSet, classify, log_key, unpack_log,
};
use crcr_domain::RepoName;
use crcr_domain::ci_data::job_log::{
    EndedJob, JobLogOutcome, JobLogRow, LogClassification, NoLogReason,
};
use crcr_domain::ci_data::webhook::WebhookRow;
use crcr_domain::ci_data::workflow::{CiState, WorkflowJob};
use crcr_github::GithubError;
use crcr_results::ResultsError;
use crcr_results::webhook_tables::{ThingQuery, ThingSelection};
use crcr_store::{BudgetCharge, CommitOutcome, NewTask, WriteBatch};
use serde::Deserialize;
use serde_json::Value;

use super::merge_base;
use super::webhook_owner::owner_of;
use crate::config::JobLogs;
use crate::limits;
use crate::queue::task_kind::{TaskDone, TaskError, TaskKind};
use crate::relay::Relay;
use crate::state_records;
use crate::usage::Resource;

/// Events of workflow runs that only people who may write to the repository cause.
const TRUSTED_EVENTS: [&str; 4] = ["push", "schedule", "workflow_dispatch", "merge_group"];

/// Why there is no log to look at.
enum LogError {
    /// There won't be one.
    NoLog(NoLogReason),
    /// Another try may get it.
    Task(TaskError),
}

impl From<GithubError> for LogError {
    fn from(error: GithubError) -> Self {
        match error {
            GithubError::NotFound(_) => Self::NoLog(NoLogReason::Gone),
            error if error.is_transient() || matches!(error, GithubError::Unauthorized(_)) => {
                Self::Task(error.into())
            }
            error => {
                tracing::warn!(%error, "the log of a failed job can't be fetched");
                Self::NoLog(NoLogReason::Refused)
            }
        }
    }
}

#[derive(Deserialize)]
struct JobWebhook {
    repository: WebhookRepository,
}

#[derive(Deserialize)]
struct WebhookRepository {
    #[serde(default)]
    private: bool,
    #[serde(default, deserialize_with = "null_as_default")]
    default_branch: String,
}

/// What the kept webhook of a job asks for: the log of a failed job is fetched, and a job that succeeded is
/// noted, to compare failures with its log.
pub(crate) async fn after_webhook(
    relay: &Relay,
    row: &WebhookRow,
    body: &[u8],
) -> Result<Option<NewTask>, TaskError> {
    if relay.config.job_logs == JobLogs::Off || row.event != "workflow_job" {
        return Ok(None);
    }
    let Some(job) = WorkflowJob::from_row(row) else { return Ok(None) };
    let Ok(JobWebhook { repository }) = serde_json::from_slice(body) else { return Ok(None) };
    let is_green = job.state == CiState::Passed;
    if !is_green && !job.state.is_failure() {
        return Ok(None);
    }
    // The HUD shows lines of logs to everybody.
    if repository.private && relay.config.job_logs != JobLogs::All {
        return Ok(None);
    }
    let job = EndedJob {
        repository: row.repository.clone(),
        run_id: job.run_id,
        run_attempt: job.run_attempt,
        job_id: job.id,
        job_name: job.name,
        workflow: job.workflow,
        branch: job.branch,
        head_sha: job.head_sha,
        completed_at: job.completed_at.unwrap_or(row.received_at),
    };
    if is_green {
        note_green_job(relay, &job, &repository.default_branch).await?;
        return Ok(None);
    }
    if !may_fetch(relay, &job.repository).await? {
        return Ok(None);
    }
    let due_at = relay.now() + limits::JOB_LOG_DELAY;
    Ok(Some(TaskKind::JobLog { job }.task(due_at)))
}

/// Charges a log to whoever caused it. Returns whether it may be fetched.
async fn may_fetch(relay: &Relay, repository: &str) -> Result<bool, TaskError> {
    let now = relay.now();
    let owner = owner_of(relay, repository);
    let capacity = match &owner {
        Some(owner) if !owner.is_known => limits::UNLISTED_LOGS_PER_DAY,
        _ => limits::LOGS_PER_DAY,
    };
    let name = owner.map_or_else(|| repository.to_owned(), |owner| owner.name);
    let bucket = state_records::budget_of_day_key("logs", now, &name);
    let charges = vec![BudgetCharge { bucket, capacity, per_minute: 0.0, cost: 1, first_of: None }];
    let commit = relay.commit(WriteBatch { charges, ..WriteBatch::default() }).await?;
    if matches!(commit, CommitOutcome::Limited(_)) {
        tracing::info!(
            repository,
            capacity,
            "not fetched: the logs of this day are fetched already"
        );
        return Ok(false);
    }
    relay.usage.add(now, Resource::LogFetches, repository, 1);
    Ok(true)
}

/// Only runs of the repository's own commits are noted: a fork could otherwise hide lines of everybody's
/// failures by printing them in a green job on its branch `main`.
async fn note_green_job(
    relay: &Relay,
    job: &EndedJob,
    default_branch: &str,
) -> Result<(), TaskError> {
    let run_id = job.run_id.to_string();
    let query = ThingQuery {
        event: "workflow_run",
        repository: &job.repository,
        selection: ThingSelection::Id(&run_id),
    };
    let known = relay.results.current_things(&query).await.map_err(results_error)?;
    let document: Option<Value> =
        known.first().and_then(|row| serde_json::from_str(&row.document).ok());
    let Some(document) = document else { return Ok(()) };
    let run = &document["workflow_run"];
    let head = run["head_repository"]["full_name"].as_str().unwrap_or_default();
    if !head.eq_ignore_ascii_case(&job.repository) {
        return Ok(());
    }
    let event = run["event"].as_str().unwrap_or_default();
    let on_default_branch = job.branch == default_branch && TRUSTED_EVENTS.contains(&event);
    relay.results.put_green_job(job, on_default_branch).await.map_err(results_error)
}

pub(crate) async fn run(relay: &Relay, job: &EndedJob) -> Result<TaskDone, TaskError> {
    let Ok(repo) = RepoName::new(&job.repository) else {
        return Err(TaskError::permanent(format!("`{}` isn't a repository", job.repository)));
    };
    // A task that waited here would keep a worker from dispatches.
    let Ok(permit) = Arc::clone(&relay.log_permits).try_acquire_owned() else {
        return Ok(TaskDone::RunAgain(relay.now() + limits::JOB_LOG_BUSY));
    };
    let known = relay.results.job_logs(&job.repository, &[job.job_id]).await;
    if known.map_err(results_error)?.iter().any(|row| row.classification().is_some()) {
        return Ok(TaskDone::Finished);
    }
    let (log_key, outcome) = match log_of(relay, &repo, job.job_id).await {
        Ok((packed, key)) => {
            let baseline = baseline(relay, &repo, job).await;
            let rules = relay.config.log_rules.current();
            let classified = tokio::task::spawn_blocking(move || {
                // A handler that takes too long is dropped; its work isn't.
                let _permit = permit;
                classify_packed(packed, baseline, &rules)
            });
            let classified = classified.await.map_err(|error| error.to_string());
            let classification = classified
                .and_then(|result| result.map_err(|error| error.to_string()))
                .map_err(|error| TaskError::retry(format!("the log can't be read: {error}")))?;
            (key, JobLogOutcome::Classified(Box::new(classification)))
        }
        Err(LogError::NoLog(reason)) => (None, JobLogOutcome::NoLog(reason)),
        Err(LogError::Task(error)) => return Err(error),
    };
    let row = JobLogRow { job: job.clone(), looked_at: relay.now(), log_key, outcome };
    relay.results.put_job_logs(vec![row]).await.map_err(results_error)?;
    if let Some(task) = merge_base::task_of_job(relay, job).await.map_err(results_error)? {
        relay.commit(WriteBatch { tasks: vec![task], ..WriteBatch::default() }).await?;
    }
    Ok(TaskDone::Finished)
}

fn classify_packed(
    log: Bytes,
    baseline: Option<Bytes>,
    rules: &RuleSet,
) -> std::io::Result<LogClassification> {
    let mut known = Baseline::default();
    if let Some(packed) = baseline
        && let Err(error) = unpack_log(packed).and_then(|log| known.add_green(log))
    {
        tracing::warn!(%error, "the log of a green job can't be read");
        known = Baseline::default();
    }
    classify(unpack_log(log)?, rules, Some(&known))
}

/// A log, packed, and its key if it is kept. What isn't kept yet is fetched and kept.
async fn log_of(
    relay: &Relay,
    repo: &RepoName,
    job_id: u64,
) -> Result<(Bytes, Option<String>), LogError> {
    let unavailable =
        |error: &dyn std::fmt::Display| LogError::Task(TaskError::retry(error.to_string()));
    let Some(archive) = relay.archive().await.map_err(|error| unavailable(&error))? else {
        return Ok((download(relay, repo, job_id).await?, None));
    };
    let (objects, key) = (archive.objects(), log_key(repo, job_id));
    let kept = objects.get(&key, MAX_PACKED_LOG).await.map_err(|error| unavailable(&error))?;
    if let Some(packed) = kept {
        return Ok((packed, Some(key)));
    }
    let packed = download(relay, repo, job_id).await?;
    objects.put_new(&key, packed.clone()).await.map_err(|error| unavailable(&error))?;
    Ok((packed, Some(key)))
}

async fn download(relay: &Relay, repo: &RepoName, job_id: u64) -> Result<Bytes, LogError> {
    let mut body = relay.app.job_log(&relay.http, repo.as_str(), job_id).await?;
    // Compression is work for a blocking thread; the channel holds a few pieces at most.
    let (sender, mut pieces) = tokio::sync::mpsc::channel::<Bytes>(16);
    let packing = tokio::task::spawn_blocking(move || {
        let mut packer = LogPacker::new().map_err(|_| LogTooLarge)?;
        while let Some(piece) = pieces.blocking_recv() {
            packer.add(&piece)?;
        }
        packer.finish()
    });
    let mut received = 0;
    let deadline = tokio::time::Instant::now() + limits::JOB_LOG_TIMEOUT;
    loop {
        let piece = match tokio::time::timeout_at(deadline, body.next()).await {
            Ok(piece) => piece?,
            Err(_) if received >= limits::LARGE_LOG_BYTES => {
                return Err(LogError::NoLog(NoLogReason::TooLarge));
            }
            Err(_) => {
                let message =
                    format!("the log took longer than {} s", limits::JOB_LOG_TIMEOUT.as_secs());
                return Err(LogError::Task(TaskError::retry(message)));
            }
        };
        let Some(piece) = piece else { break };
        received += piece.len();
        if sender.send(piece).await.is_err() {
            break;
        }
    }
    drop(sender);
    match packing.await {
        Ok(Ok(packed)) => Ok(packed),
        Ok(Err(LogTooLarge)) => Err(LogError::NoLog(NoLogReason::TooLarge)),
        Err(error) => Err(LogError::Task(TaskError::retry(error.to_string()))),
    }
}

/// The log of the last green run of the job. Without one, the rules alone explain the failure.
async fn baseline(relay: &Relay, repo: &RepoName, job: &EndedJob) -> Option<Bytes> {
    let green = relay.results.green_jobs(&job.repository, &job.workflow, &job.job_name).await;
    let green = green.unwrap_or_else(|error| {
        tracing::warn!(%error, "green jobs can't be looked up");
        vec![]
    });
    for green in green {
        let log = log_of(relay, repo, green.job_id);
        match tokio::time::timeout(limits::BASELINE_LOG_TIMEOUT, log).await {
            Ok(Ok((packed, _))) => return Some(packed),
            Ok(Err(LogError::NoLog(_))) => {}
            Ok(Err(LogError::Task(error))) => {
                tracing::info!(error = error.message, "a failure isn't compared with a green run");
                return None;
            }
            Err(_) => return None,
        }
    }
    None
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn results_error(error: ResultsError) -> TaskError {
    TaskError::retry(error.to_string())
}
