//! One file for each kind of task.

mod after_restore;
pub(crate) mod alert;
mod check_run;
mod comment;
mod commit_checks;
mod default_branch;
pub(crate) mod dispatch;
pub(crate) mod head;
mod job_checks;
mod job_log;
pub(crate) mod keep_webhook;
pub(crate) mod merge_base;
mod promoted_backend;
mod reconcile;
mod renamed_backend;
mod required_dispatch;
mod rerun;
pub(crate) mod runs;
pub(crate) mod supersede;
pub(crate) mod sweep;
mod unread_fact;
mod webhook_owner;

use std::sync::Arc;

use crcr_domain::Allowlist;

use super::task_kind::{ParsedTask, TaskDone, TaskError, TaskKind};
use crate::callback::self_report;
use crate::compat::forward;
use crate::probes::{backend_file, bisect, confirm, probe};
use crate::relay::Relay;

/// The allowlist in force. After a start there may be none for a while, which says nothing about any repository.
pub(crate) fn allowlist(relay: &Relay) -> Result<Arc<Allowlist>, TaskError> {
    relay.allowlist.get().ok_or_else(|| TaskError::retry("no allowlist is in force yet"))
}

pub(crate) async fn run(relay: &Relay, task: &ParsedTask) -> Result<TaskDone, TaskError> {
    // While relays are replaced one after the other, those of both versions take tasks.
    let kind = task.kind.as_ref().map_err(|error| TaskError {
        is_outage: true,
        ..TaskError::retry(format!("the task is of another version of crcr: {error}"))
    })?;
    match kind {
        TaskKind::Dispatch { delivery, repo, .. } => {
            dispatch::run(relay, &task.lease, delivery, repo).await
        }
        TaskKind::CheckRun { repo, head_sha, job } => {
            check_run::run(relay, &task.lease, (repo, head_sha), job.as_ref()).await
        }
        TaskKind::CommitChecks { repo, head_sha } => {
            commit_checks::of_commit(relay, repo, head_sha).await
        }
        TaskKind::BackendChecks { repo, was_listed, part: None } => {
            commit_checks::of_backend(relay, repo, *was_listed).await
        }
        TaskKind::BackendChecks { repo, was_listed, part: Some(part) } => {
            commit_checks::of_heads(relay, repo, *was_listed, &part.members).await
        }
        TaskKind::RequiredDispatch { delivery, repo } => {
            required_dispatch::run(relay, delivery, repo).await
        }
        TaskKind::Labels { pull } => commit_checks::of_labels(relay, *pull).await,
        TaskKind::Rerun { is_of_verdict: true, .. } => rerun::rerun_verdict(relay, kind).await,
        TaskKind::Rerun { repo, run_id, failed_only, head_sha, .. } => {
            rerun::run(relay, (repo, *run_id), *failed_only, head_sha).await
        }
        TaskKind::Redispatch { repo, head_sha } => rerun::redispatch(relay, repo, head_sha).await,
        TaskKind::RerunSuite { suite } => rerun::rerun_suite(relay, *suite).await,
        TaskKind::Sweep { delivery, repo } => sweep::run(relay, delivery, repo).await,
        TaskKind::Forward { body, .. } => forward::run(relay, &task.lease, body).await,
        TaskKind::Alert { repo, event, head_sha, passed: false } => {
            alert::turned_red(relay, repo, event, head_sha).await
        }
        TaskKind::Alert { repo, event, head_sha, passed: true } => {
            alert::turned_green(relay, repo, event, head_sha).await
        }
        TaskKind::RepositoryChanged { repo, pinned, found } => {
            alert::repository_changed(relay, repo, *pinned, *found).await
        }
        TaskKind::MergeBase { pull, head_sha, base_sha } => {
            merge_base::run(relay, *pull, head_sha, base_sha).await
        }
        TaskKind::Comment { pull, repo, check_run } => {
            comment::run(relay, *pull, repo, check_run).await
        }
        TaskKind::KeepWebhook { webhook } => keep_webhook::run(relay, webhook).await,
        TaskKind::UnreadFact { text } => unread_fact::run(relay, text).await,
        TaskKind::JobLog { job } => job_log::run(relay, job).await,
        TaskKind::SelfReportCommit { attempt, commit, missing } => {
            self_report::look_up_commit(relay, attempt, commit, *missing).await
        }
        TaskKind::Supersede { older, newer } => supersede::run(relay, older, newer).await,
        TaskKind::Reconcile => reconcile::run(relay).await,
        TaskKind::AfterRestore => after_restore::run(relay).await,
        TaskKind::AllChecks => commit_checks::after_change_of_settings(relay).await,
        TaskKind::Confirm { delivery, repo } => confirm::run(relay, delivery, repo).await,
        TaskKind::ProbeEnded { delivery, repo } => probe::ended(relay, delivery, repo).await,
        TaskKind::Bisect { repo, workflow, job, bad_sha } => {
            bisect::run(relay, repo, (workflow, job.as_deref()), bad_sha).await
        }
        TaskKind::AlertFeed { address } => alert::feed(relay, address).await,
        TaskKind::CulpritFound { culprit } => alert::culprit_found(relay, culprit).await,
        TaskKind::BackendFile { repo } => backend_file::run(relay, repo).await,
    }
}
