//! Puts the evaluation of check runs into the queue after a change that concerns all of a commit, or all open heads.

use crcr_domain::probes::LeftOut;
use crcr_domain::protocol::dispatch::{CheckRunVisibility, Dispatch, DispatchStatus};
use crcr_domain::{CheckRunPolicy, Level, RepoName};
use crcr_store::WriteBatch;

use super::head::Head;
use super::{allowlist, promoted_backend, renamed_backend, required_dispatch};
use crate::queue::task_kind::{OpenHeads, TaskDone, TaskError, TaskKind};
use crate::relay::Relay;
use crate::state_records::{self, PullRecord};
use crate::{deciding_settings, limits};

/// Queues the evaluation of every check run that a commit has or may have of one backend.
pub async fn of_commit(
    relay: &Relay,
    repo: &RepoName,
    head_sha: &str,
) -> Result<TaskDone, TaskError> {
    let Some(head) = Head::read(relay, repo, head_sha, None).await? else {
        return renamed_backend::dispatch_again(relay, repo, head_sha).await;
    };
    promoted_backend::dispatch_again(relay, repo, &head).await?;
    let mut batch = WriteBatch::default();
    head.add_all_checks(relay, &mut batch);
    if head.is_shown() {
        // While nothing was to be shown, sweeps have ended, and the check runs may have stayed open meanwhile.
        let sweep = |dispatch| TaskKind::sweep(dispatch).task(relay.now());
        batch.tasks.extend(head.answered().map(sweep));
    }
    if head.level.blocks_merge() && head.check_runs != CheckRunVisibility::NoneOfEvents {
        add_required_dispatches(relay, repo, &head, &mut batch);
    }
    relay.commit(batch).await?;
    Ok(TaskDone::Finished)
}

/// Sends what the backend's file held back for want of a place among those of a day: a backend that has come to L4
/// needs none.
fn add_required_dispatches(relay: &Relay, repo: &RepoName, head: &Head, batch: &mut WriteBatch) {
    let now = relay.now();
    let is_held = |dispatch: &&Dispatch| {
        dispatch.status == DispatchStatus::Queued && dispatch.held_until.is_some()
    };
    let held = head.dispatches().filter(is_held);
    batch.tasks.extend(held.map(|dispatch| TaskKind::dispatch(dispatch).task(now)));
    if let Some(newest) = head.dispatches().next_back()
        && newest.status == (DispatchStatus::LeftOut { why: LeftOut::MaxPerDay })
    {
        let (repo, head_sha) = (repo.clone(), newest.head_sha.clone());
        batch.tasks.push(TaskKind::Redispatch { repo, head_sha }.task(now));
    }
}

/// Does so for the heads of a pull request whose labels have changed: an earlier one may be that of another pull request.
/// Only backends at L3 depend on labels.
pub async fn of_labels(relay: &Relay, number: u64) -> Result<TaskDone, TaskError> {
    let key = state_records::pull_request_key(&relay.config.upstream, number);
    let pull = relay.read_record::<PullRecord>(key).await?.value;
    let Some(pull) = pull else { return Ok(TaskDone::Finished) };
    let allowlist = allowlist(relay)?;
    let mut batch = WriteBatch::default();
    let older = pull.older.iter().map(|older| &older.head_sha);
    for head_sha in older.chain([&pull.head_sha]) {
        for entry in allowlist.at_level(Level::L3) {
            let (repo, head_sha) = (entry.repo.clone(), head_sha.clone());
            let work = TaskKind::CommitChecks { repo, head_sha };
            batch.tasks.push(work.task(relay.now()));
        }
    }
    relay.commit(batch).await?;
    Ok(TaskDone::Finished)
}

/// Evaluates all open heads, and once more when no replica has the settings of before any more.
pub async fn after_change_of_settings(relay: &Relay) -> Result<TaskDone, TaskError> {
    of_all_backends(relay).await?;
    let again = deciding_settings::evaluated_again_at(relay).await?;
    Ok(again.map_or(TaskDone::Finished, TaskDone::RunAgain))
}

/// Does so for the open heads of every backend that has check runs.
pub async fn of_all_backends(relay: &Relay) -> Result<TaskDone, TaskError> {
    let list = allowlist(relay)?;
    let shown = list.iter().filter(|entry| entry.level.check_run() != CheckRunPolicy::Never);
    let work = shown.map(|entry| TaskKind::backend_checks(&entry.repo, false));
    let tasks = work.map(|work| work.task(relay.now())).collect();
    relay.commit(WriteBatch { tasks, ..WriteBatch::default() }).await?;
    Ok(TaskDone::Finished)
}

/// Does so for the open heads of upstream, the most recently changed ones first.
pub async fn of_backend(
    relay: &Relay,
    repo: &RepoName,
    was_listed: bool,
) -> Result<TaskDone, TaskError> {
    renamed_backend::pin(relay, repo).await?;
    let set = state_records::open_heads_key(&relay.config.upstream);
    let open = relay.store.members(&set, limits::OPEN_HEADS).await?;
    let parts = open.chunks(limits::HEADS_PER_TASK).enumerate().map(|(index, members)| {
        let part = Some(OpenHeads { index, members: members.to_vec() });
        TaskKind::BackendChecks { repo: repo.clone(), was_listed, part }.task(relay.now())
    });
    let tasks = parts.collect();
    relay.commit(WriteBatch { tasks, ..WriteBatch::default() }).await?;
    Ok(TaskDone::Finished)
}

/// Does so for a part of these. `was_listed`: before the change that it follows from.
pub async fn of_heads(
    relay: &Relay,
    repo: &RepoName,
    was_listed: bool,
    part: &[String],
) -> Result<TaskDone, TaskError> {
    let upstream = &relay.config.upstream;
    let numbers = part.iter().filter_map(|member| member.parse::<u64>().ok());
    let keys = numbers.map(|number| state_records::pull_request_key(upstream, number)).collect();
    let pulls = relay.read_records::<PullRecord>(keys).await?;
    let pulls = pulls.into_iter().filter_map(|read| read.value);
    let pulls: Vec<PullRecord> = pulls.filter(|pull| !pull.is_closed).collect();
    let groups = part.iter().filter(|member| crcr_domain::protocol::event::is_sha(member));
    let groups: Vec<&String> = groups.collect();
    let mut batch = WriteBatch::default();
    for head_sha in pulls.iter().map(|pull| &pull.head_sha).chain(groups.iter().copied()) {
        let work = TaskKind::CommitChecks { repo: repo.clone(), head_sha: head_sha.clone() };
        batch.tasks.push(work.task(relay.now()));
    }
    if was_listed {
        let newest = pulls.iter().filter_map(|pull| pull.deliveries.last().cloned());
        let mut newest: Vec<String> = newest.collect();
        newest.extend(required_dispatch::of_groups(relay, &groups).await?);
        required_dispatch::add_lacking(relay, repo, newest, &mut batch).await?;
    }
    relay.commit(batch).await?;
    Ok(TaskDone::Finished)
}
