//! Handles "Re-run" on the relay's check runs.

use std::collections::BTreeMap;

use crcr_domain::check_run as names;
use crcr_domain::dispatch::{Dispatch, DispatchStatus};
use crcr_domain::{Level, RepoName};
use crcr_github::GithubError;
use crcr_store::{CommitOutcome, Versioned, WriteBatch, read_record};

use crate::limits;
use crate::queue::task_kind::{TaskDone, TaskError, TaskKind};
use crate::relay::Relay;
use crate::state_records::{self, CheckRunRecord};

/// Re-runs one downstream run. Below L3 there are no check runs, so nothing happens.
pub async fn run(
    relay: &Relay,
    repo: &RepoName,
    run_id: u64,
    failed_only: bool,
) -> Result<TaskDone, TaskError> {
    if !may_rerun(relay, repo)? {
        tracing::info!(%repo, run_id, "not re-run: the repository isn't at L3 or L4");
        return Ok(TaskDone::Finished);
    }
    let asked = if failed_only {
        relay.app.rerun_failed_jobs(repo.as_str(), run_id).await
    } else {
        relay.app.rerun(repo.as_str(), run_id).await
    };
    match asked {
        Ok(()) | Err(GithubError::AlreadyRunning(_)) => {}
        Err(error) => return Err(error.into()),
    }
    // The sweep reopens the check run as soon as GitHub reports the new run, before its first job does.
    let claim = state_records::run_claim_key(repo, &run_id.to_string());
    if let Some(delivery) = read_record::<String>(relay.store.as_ref(), claim).await?.value {
        let work = TaskKind::Sweep { delivery, repo: repo.clone() };
        let tasks = vec![work.task(&relay.config.upstream, relay.now() + limits::RERUN_LOOK)];
        relay.commit(WriteBatch { tasks, ..WriteBatch::default() }).await?;
    }
    Ok(TaskDone::Finished)
}

/// Sends a dispatch again that never started, was given up, or couldn't be made.
pub async fn redispatch(
    relay: &Relay,
    repo: &RepoName,
    head_sha: &str,
) -> Result<TaskDone, TaskError> {
    if !may_rerun(relay, repo)? {
        return Ok(TaskDone::Finished);
    }
    let store = relay.store.as_ref();
    let shown = state_records::check_run_key(head_sha, &names::dispatch_name(repo.as_str()));
    let Some(shown) = read_record::<CheckRunRecord>(store, shown).await?.value else {
        return Ok(TaskDone::Finished);
    };
    let key = state_records::dispatch_key(&shown.delivery, repo);
    let known: Versioned<Dispatch> = read_record(store, key).await?;
    let Some(mut dispatch) = known.value.clone() else { return Ok(TaskDone::Finished) };
    let is_settled =
        matches!(dispatch.status, DispatchStatus::Queued | DispatchStatus::Superseded { .. });
    if is_settled || dispatch.is_answered {
        return Ok(TaskDone::Finished);
    }
    let now = relay.now();
    dispatch.status = DispatchStatus::Queued;
    dispatch.never_started = false;
    let mut batch = WriteBatch::default();
    batch.update(&known, &dispatch, relay.expiry());
    batch.tasks.push(TaskKind::dispatch(&dispatch).task(&relay.config.upstream, now));
    batch.tasks.push(TaskKind::check_run(&dispatch, None).task(&relay.config.upstream, now));
    match relay.commit(batch).await? {
        CommitOutcome::Done => Ok(TaskDone::Finished),
        _ => Err(TaskError::retry("the dispatch was changed in the meantime")),
    }
}

/// Re-runs every downstream run of a check suite, each once.
pub(crate) async fn rerun_suite(relay: &Relay, suite: u64) -> Result<TaskDone, TaskError> {
    let listed = relay.app.check_runs_of_suite(relay.config.upstream.as_str(), suite).await?;
    let mut tasks = BTreeMap::new();
    for run in listed {
        let external_id = run.external_id.unwrap_or_default();
        let Some(work) = TaskKind::rerun_of(&run.name, &external_id, &run.head_sha, false) else {
            continue;
        };
        let task = work.task(&relay.config.upstream, relay.now());
        tasks.insert(task.key.as_str().to_owned(), task);
    }
    let tasks = tasks.into_values().collect();
    relay.commit(WriteBatch { tasks, ..WriteBatch::default() }).await?;
    Ok(TaskDone::Finished)
}

fn may_rerun(relay: &Relay, repo: &RepoName) -> Result<bool, TaskError> {
    let allowlist = super::allowlist(relay)?;
    Ok(allowlist.get(repo).is_some_and(|entry| entry.level >= Level::L3))
}
