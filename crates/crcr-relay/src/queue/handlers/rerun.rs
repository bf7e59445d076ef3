//! Handles "Re-run" on the relay's check runs.

use std::collections::BTreeMap;

use crcr_domain::protocol::dispatch::{Dispatch, DispatchStatus, RefusedRerun};
use crcr_domain::{Level, RepoName};
use crcr_github::GithubError;
use crcr_store::{CommitOutcome, NewTask, Versioned, WriteBatch};

use super::head::Head;
use crate::queue::task_kind::{TaskDone, TaskError, TaskKind};
use crate::relay::Relay;
use crate::state_records;
use crate::{breaker, limits};

/// Asks GitHub to re-run one downstream run of a commit, for a backend at L3 or L4: others have no check runs.
pub async fn run(
    relay: &Relay,
    (repo, run_id): (&RepoName, u64),
    failed_only: bool,
    head_sha: &str,
) -> Result<TaskDone, TaskError> {
    if !may_rerun(relay, repo)? {
        tracing::info!(%repo, run_id, "not re-run: the repository isn't at L3 or L4");
        return Ok(TaskDone::Finished);
    }
    let mut asked = if failed_only {
        relay.app.rerun_failed_jobs(repo.as_str(), run_id).await
    } else {
        relay.app.rerun(repo.as_str(), run_id).await
    };
    // GitHub refuses that for a run without a failed job, whose verdict may have failed for a report that was lost.
    let is_refused =
        matches!(&asked, Err(GithubError::Forbidden(_) | GithubError::Unprocessable(_)));
    if failed_only && is_refused {
        asked = relay.app.rerun(repo.as_str(), run_id).await;
    }
    let deliveries = deliveries_of(relay, (repo, run_id), head_sha).await?;
    match asked {
        Ok(()) | Err(GithubError::AlreadyRunning(_)) => {
            note_refusal(relay, (repo, run_id), &deliveries, None).await?;
        }
        Err(error) => {
            let error = TaskError::from(error);
            if error.permanent {
                note_refusal(relay, (repo, run_id), &deliveries, Some(&error.message)).await?;
            }
            return Err(error);
        }
    }
    // The sweep reopens the check run as soon as GitHub reports the new run, before its first job does.
    let sweep = |delivery| TaskKind::Sweep { delivery, repo: repo.clone() };
    let at = relay.now() + limits::RERUN_LOOK;
    let tasks = deliveries.into_iter().map(|delivery| sweep(delivery).task(at)).collect();
    relay.commit(WriteBatch { tasks, ..WriteBatch::default() }).await?;
    Ok(TaskDone::Finished)
}

/// Handles "Re-run" on the check run of a verdict.
pub async fn rerun_verdict(relay: &Relay, work: &TaskKind) -> Result<TaskDone, TaskError> {
    let tasks = reruns(relay, work).await?;
    relay.commit(WriteBatch { tasks, ..WriteBatch::default() }).await?;
    Ok(TaskDone::Finished)
}

/// What "Re-run" on a check run starts: of a verdict, every run that it has failed for, and the one that it links.
async fn reruns(relay: &Relay, work: &TaskKind) -> Result<Vec<NewTask>, TaskError> {
    let TaskKind::Rerun { repo, run_id, failed_only, head_sha, is_of_verdict: true } = work else {
        return Ok(vec![work.task(relay.now())]);
    };
    let head = Head::read(relay, repo, head_sha, None).await?;
    let mut runs = head.map(|head| head.failed_runs(relay)).unwrap_or_default();
    if !runs.contains(run_id) {
        runs.push(*run_id);
    }
    let rerun = |run_id| TaskKind::Rerun {
        repo: repo.clone(),
        run_id,
        failed_only: *failed_only,
        head_sha: head_sha.clone(),
        is_of_verdict: false,
    };
    Ok(runs.into_iter().map(|run_id| rerun(run_id).task(relay.now())).collect())
}

/// The delivery that a run has reported for. If it never did, those of the commit in whose lists of runs it is.
async fn deliveries_of(
    relay: &Relay,
    (repo, run_id): (&RepoName, u64),
    head_sha: &str,
) -> Result<Vec<String>, TaskError> {
    let run_id = run_id.to_string();
    let claim = state_records::run_claim_key(repo, None, &run_id);
    if let Some(delivery) = relay.read_record::<String>(claim).await?.value {
        return Ok(vec![delivery]);
    }
    let Some(head) = Head::read(relay, repo, head_sha, None).await? else { return Ok(vec![]) };
    let listed = head.dispatches().filter(|one| one.runs.iter().any(|run| run.id == run_id));
    Ok(listed.map(|dispatch| dispatch.delivery.clone()).collect())
}

/// Has the check runs of the run's commit say that GitHub refused the re-run, or, without a reason, no longer say it:
/// who pressed "Re-run" sees nothing else of it.
async fn note_refusal(
    relay: &Relay,
    (repo, run_id): (&RepoName, u64),
    deliveries: &[String],
    reason: Option<&str>,
) -> Result<(), TaskError> {
    let now = relay.now();
    let refused = reason.map(|reason| RefusedRerun { at: now, run_id, reason: reason.to_owned() });
    for delivery in deliveries {
        note_refusal_of(relay, (delivery, repo), run_id, refused.as_ref()).await?;
    }
    Ok(())
}

async fn note_refusal_of(
    relay: &Relay,
    (delivery, repo): (&str, &RepoName),
    run_id: u64,
    refused: Option<&RefusedRerun>,
) -> Result<(), TaskError> {
    let key = state_records::dispatch_key(delivery, repo);
    let noted = relay.update(key, |known: &Versioned<Dispatch>| {
        let Some(before) = known.value.as_ref() else { return ((), None) };
        // Of two runs that were asked for at once, one may be refused.
        let is_of_run = before.refused_rerun.as_ref().is_some_and(|known| known.run_id == run_id);
        if !is_of_run && refused.is_none() {
            return ((), None);
        }
        let dispatch = Dispatch { refused_rerun: refused.cloned(), ..before.clone() };
        let mut batch = WriteBatch::default();
        batch.update(known, &dispatch, relay.expiry());
        batch.tasks.push(TaskKind::commit_checks(&dispatch).task(relay.now()));
        ((), Some(batch))
    });
    Ok(noted.await?)
}

/// Sends a dispatch again that never started, was given up, or couldn't be made; or one that was superseded if there is
/// no other.
pub async fn redispatch(
    relay: &Relay,
    repo: &RepoName,
    head_sha: &str,
) -> Result<TaskDone, TaskError> {
    if !may_rerun(relay, repo)? {
        return Ok(TaskDone::Finished);
    }
    let Some(head) = Head::read(relay, repo, head_sha, None).await? else {
        return Ok(TaskDone::Finished);
    };
    let can_be_sent =
        |dispatch: &&Dispatch| dispatch.status != DispatchStatus::Queued && !dispatch.is_answered;
    // "Re-run all checks" is about those, too, whose jobs still wait for a machine.
    let may_be_answered =
        |dispatch: &&Dispatch| dispatch.sent_at().is_some() && !dispatch.is_overdue;
    let is_superseded =
        |dispatch: &&Dispatch| matches!(dispatch.status, DispatchStatus::Superseded { .. });
    // If one of them waits already, or has a result, another one isn't needed.
    let waits = head.dispatches().any(|dispatch| dispatch.status == DispatchStatus::Queued);
    let is_answered = head.dispatches().any(|dispatch| dispatch.is_answered);
    let all = || head.dispatches().rev().filter(can_be_sent);
    let lacking = || all().filter(|one| !is_superseded(one) && !may_be_answered(one));
    let is_over = || !is_answered && !all().any(|one| may_be_answered(&one));
    let silent = lacking().find(|dispatch| !head.is_left_by_pull_of(dispatch));
    let silent = silent.or_else(|| lacking().next());
    let silent = silent.or_else(|| all().next().filter(|_| is_over()));
    let Some(silent) = silent.filter(|_| !waits) else {
        return Ok(TaskDone::Finished);
    };
    let key = state_records::dispatch_key(&silent.delivery, repo);
    let known: Versioned<Dispatch> = relay.read_record(key).await?;
    let Some(known_dispatch) = known.value.as_ref().filter(can_be_sent) else {
        return Ok(TaskDone::Finished);
    };
    let now = relay.now();
    let dispatch = Dispatch {
        status: DispatchStatus::Queued,
        never_started: false,
        is_overdue: false,
        silence: None,
        // A person's request is the best trial there is.
        is_trial: breaker::is_open(relay, repo).await?,
        is_asked_for: true,
        held_until: None,
        ..known_dispatch.clone()
    };
    let mut batch = WriteBatch::default();
    batch.update(&known, &dispatch, relay.expiry());
    batch.tasks.push(TaskKind::dispatch(&dispatch).task(now));
    batch.tasks.push(TaskKind::check_run(&dispatch, None).task(now));
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
        for task in reruns(relay, &work).await? {
            tasks.insert(task.key.as_str().to_owned(), task);
        }
    }
    let tasks = tasks.into_values().collect();
    relay.commit(WriteBatch { tasks, ..WriteBatch::default() }).await?;
    Ok(TaskDone::Finished)
}

fn may_rerun(relay: &Relay, repo: &RepoName) -> Result<bool, TaskError> {
    let allowlist = super::allowlist(relay)?;
    Ok(allowlist.get(repo).is_some_and(|entry| entry.level >= Level::L3))
}
