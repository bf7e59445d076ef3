//! Runs that are run again downstream, by a button on GitHub. Where the workflow reports nothing, only GitHub's webhook
//! tells that the newest attempt counts now.

use bytes::Bytes;
use crcr_domain::RepoName;
use crcr_store::{StoreError, WriteBatch};
use jiff::Timestamp;
use serde::Deserialize;

use super::repository::WebhookRepository;
use crate::limits;
use crate::queue::handlers::runs;
use crate::queue::task_kind::TaskKind;
use crate::relay::Relay;

#[derive(Deserialize)]
struct RawEvent {
    repository: WebhookRepository,
    workflow_run: RawRun,
}

#[derive(Deserialize)]
struct RawRun {
    event: String,
    run_attempt: u32,
    /// When its first attempt was created.
    created_at: Timestamp,
}

/// Schedules a sweep of each dispatch that may have started this run, if the run is a backend's and in its second attempt or
/// later.
pub(crate) async fn note(relay: &Relay, body: &Bytes) -> Result<(), StoreError> {
    let Ok(RawEvent { repository, workflow_run: run }) = serde_json::from_slice(body) else {
        return Ok(());
    };
    let Ok(repo) = RepoName::new(&repository.full_name) else { return Ok(()) };
    let is_listed = relay.allowlist.get().is_some_and(|list| list.get(&repo).is_some());
    if !is_listed || run.event != runs::EVENT || run.run_attempt < 2 {
        return Ok(());
    }
    let deliveries = runs::deliveries_of_run(relay, &repo, run.created_at).await?;
    let sweep = |delivery| TaskKind::Sweep { delivery, repo: repo.clone() }.task(relay.now());
    let tasks = deliveries.into_iter().take(limits::SWEEPS_PER_RERUN).map(sweep).collect();
    relay.commit(WriteBatch { tasks, ..WriteBatch::default() }).await.map(drop)
}
