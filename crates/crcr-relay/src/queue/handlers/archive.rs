//! Puts webhooks into the archive. Every verified webhook is stored with the task that archives it, before
//! it is acknowledged, so neither a crash nor an outage of the object store leaves a gap.

use std::collections::BTreeMap;

use axum::http::HeaderMap;
use bytes::Bytes;
use crcr_cidata::webhook_archive::{ArchiveError, ArchivedWebhook, WebhookHead};
use crcr_domain::ci_data::webhook::is_event_name;
use crcr_store::{NewTask, RecordWrite, WriteBatch};
use jiff::Timestamp;

use crate::queue::task_kind::{TaskDone, TaskError, TaskKind};
use crate::relay::Relay;
use crate::state_records;

/// Headers with this start are archived.
const HEADER_PREFIX: &str = "x-github-";

/// A webhook on its way to the archive.
pub(crate) struct PendingArchive {
    body: RecordWrite,
    task: NewTask,
}

impl PendingArchive {
    pub(crate) fn add_to(&self, batch: &mut WriteBatch) {
        batch.records.push(self.body.clone());
        batch.tasks.push(self.task.clone());
    }
}

/// `None` without an archive, or for an event that GitHub can't have named so.
pub(crate) fn prepare(
    relay: &Relay,
    headers: &HeaderMap,
    event: &str,
    delivery: &str,
    body: &Bytes,
) -> Option<PendingArchive> {
    relay.config.archive.as_ref()?;
    if !is_event_name(event) {
        tracing::warn!(delivery, event, "not archived: this isn't the name of an event");
        return None;
    }
    let now = relay.now();
    let head = WebhookHead {
        event: event.to_owned(),
        delivery: delivery.to_owned(),
        received_at: now,
        headers: github_headers(headers),
    };
    let webhook = ArchivedWebhook { head, body: body.clone() };
    let body = RecordWrite {
        key: state_records::archived_body_key(event, delivery),
        value: webhook.pack(),
        expires_at: relay.expiry(),
    };
    let task = TaskKind::Archive { webhook: webhook.head }.task(&relay.config.upstream, now);
    Some(PendingArchive { body, task })
}

fn github_headers(headers: &HeaderMap) -> BTreeMap<String, String> {
    let named = headers.iter().filter(|(name, _)| name.as_str().starts_with(HEADER_PREFIX));
    named
        .filter_map(|(name, value)| {
            Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned()))
        })
        .collect()
}

pub(crate) async fn run(relay: &Relay, webhook: &WebhookHead) -> Result<TaskDone, TaskError> {
    let key = state_records::archived_body_key(&webhook.event, &webhook.delivery);
    let stored = relay.store.records(std::slice::from_ref(&key)).await?.pop().flatten();
    // An empty body was archived by a try whose end wasn't recorded.
    let Some(stored) = stored.filter(|stored| !stored.value.is_empty()) else {
        return Ok(TaskDone::Finished);
    };
    let Some(archive) = relay.archive().await.map_err(retry)? else {
        return Err(TaskError::retry("CRCR_ARCHIVE isn't set any more"));
    };
    archive.add(webhook, stored.value.into()).await.map_err(retry)?;
    let mut batch = WriteBatch::default();
    batch.records.push(RecordWrite { key, value: vec![], expires_at: Timestamp::UNIX_EPOCH });
    relay.commit(batch).await?;
    Ok(TaskDone::Finished)
}

fn retry(error: impl Into<ArchiveError>) -> TaskError {
    TaskError::retry(error.into().to_string())
}
