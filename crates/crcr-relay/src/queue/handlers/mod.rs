//! What the queue works on: one file per kind of task.

pub(crate) mod alert;
mod check_run;
mod comment;
pub(crate) mod dispatch;
pub(crate) mod head;
mod labels;
pub(crate) mod merge_base;
mod rerun;
mod sweep;

use crcr_store::Task;

use super::task::{Fail, Outcome, Work};
use crate::compat::forward;
use crate::relay::Relay;

pub(crate) async fn run(relay: &Relay, task: &Task) -> Result<Outcome, Fail> {
    let work: Work = serde_json::from_str(&task.payload)
        .map_err(|error| Fail::permanent(format!("not a task of this version: {error}")))?;
    match work {
        Work::Dispatch { delivery, repo } => dispatch::run(relay, task, &delivery, &repo).await,
        Work::CheckRun { delivery, repo, head_sha, job } => {
            check_run::run(relay, &delivery, &repo, &head_sha, job.as_ref()).await
        }
        Work::Labels { pull } => labels::run(relay, pull).await,
        Work::Rerun { repo, run_id, failed_only } => {
            rerun::run(relay, &repo, run_id, failed_only).await
        }
        Work::Redispatch { repo, head_sha } => rerun::redispatch(relay, &repo, &head_sha).await,
        Work::RerunSuite { suite } => rerun::suite(relay, suite).await,
        Work::Sweep { delivery, repo } => sweep::run(relay, &delivery, &repo).await,
        Work::Forward { body, .. } => forward::run(relay, task, body).await,
        Work::Alert { repo, event, head_sha } => alert::run(relay, &repo, &event, &head_sha).await,
        Work::RepositoryChanged { repo, pinned, found } => {
            alert::repository_changed(relay, &repo, pinned, found).await
        }
        Work::MergeBase { pull, head_sha, base_sha } => {
            merge_base::run(relay, pull, &head_sha, &base_sha).await
        }
        Work::Comment { pull, repo, check_run } => {
            comment::run(relay, pull, &repo, &check_run).await
        }
    }
}
