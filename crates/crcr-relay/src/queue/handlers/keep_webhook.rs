//! Keeps webhooks: in the archive as they came, and as rows in the results. Every verified webhook is stored
//! with the task that keeps it, before it is acknowledged, so neither a crash nor an outage leaves a gap.

use std::collections::BTreeMap;

use axum::http::HeaderMap;
use bytes::Bytes;
use crcr_cidata::webhook_archive::{ArchivedWebhook, WebhookHead};
use crcr_domain::ci_data::webhook::{WebhookRow, is_event_name, is_private};
use crcr_store::{BudgetCharge, NewTask, RecordWrite, WriteBatch};
use jiff::Timestamp;
use serde::Deserialize;

use super::job_log;
use super::webhook_owner::owner_of;
use crate::config::JobLogs;
use crate::limits;
use crate::queue::task_kind::{TaskDone, TaskError, TaskKind};
use crate::relay::Relay;
use crate::state_records;
use crate::usage::Resource;
use crate::webhook::repository::WebhookRepository;

/// Headers with this start are archived.
const HEADER_PREFIX: &str = "x-github-";

/// A webhook that is stored until its task has kept it.
pub(crate) struct PendingWebhook {
    /// The body, by [`state_records::pack`].
    packed: RecordWrite,
    task: NewTask,
    /// The body as GitHub sent it.
    received: Bytes,
    received_at: Timestamp,
}

#[derive(Default, Deserialize)]
struct OwnedWebhook {
    repository: Option<WebhookRepository>,
}

impl PendingWebhook {
    pub(crate) fn add_to(&self, batch: &mut WriteBatch) {
        batch.records.push(self.packed.clone());
        batch.tasks.push(self.task.clone());
    }

    pub(crate) fn packed_body(&self) -> &[u8] {
        &self.packed.value
    }

    /// Charges the webhook to whoever caused it: everybody in an organisation with the App can make
    /// repositories and jobs without end.
    pub(crate) fn charge_owner(&self, relay: &Relay, batch: &mut WriteBatch) {
        let Some(owner) = owner_of(relay, &self.repository()) else { return };
        let capacity = if owner.is_known {
            limits::WEBHOOK_BYTES_PER_DAY
        } else {
            limits::UNLISTED_WEBHOOK_BYTES_PER_DAY
        };
        batch.charges.push(BudgetCharge {
            bucket: state_records::budget_of_day_key("webhooks", self.received_at, &owner.name),
            capacity,
            per_minute: 0.0,
            cost: (self.packed.value.len() as u64).min(capacity),
            first_of: None,
        });
    }

    /// The repository that caused it, as the webhook names it.
    fn repository(&self) -> String {
        repository_of(&self.received).unwrap_or_default()
    }

    pub(crate) fn note_dropped(&self) {
        tracing::info!(
            repository = self.repository(),
            "not kept: its owner has used the bytes of this day for webhooks"
        );
    }
}

fn repository_of(body: &[u8]) -> Option<String> {
    let owned: OwnedWebhook = serde_json::from_slice(body).ok()?;
    owned.repository.map(|repository| repository.full_name)
}

/// `None` if webhooks of this event aren't kept.
pub(crate) fn prepare(
    relay: &Relay,
    headers: &HeaderMap,
    event: &str,
    delivery: &str,
    body: &Bytes,
) -> Option<PendingWebhook> {
    if !relay.config.keeps_webhooks(event) {
        return None;
    }
    if !is_event_name(event) {
        tracing::warn!(delivery, event, "not kept: this isn't the name of an event");
        return None;
    }
    let now = relay.now();
    let webhook = WebhookHead {
        event: event.to_owned(),
        delivery: delivery.to_owned(),
        received_at: now,
        headers: github_headers(headers),
    };
    let packed = RecordWrite {
        key: state_records::pending_webhook_key(event, delivery),
        value: state_records::pack(body),
        expires_at: relay.expiry(),
    };
    let task = TaskKind::KeepWebhook { webhook }.task(now);
    Some(PendingWebhook { packed, task, received: body.clone(), received_at: now })
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
    let key = state_records::pending_webhook_key(&webhook.event, &webhook.delivery);
    let stored = relay.store.records(std::slice::from_ref(&key)).await?.pop().flatten();
    // An empty one was kept by a try whose end wasn't recorded.
    let Some(stored) = stored.filter(|stored| !stored.value.is_empty()) else {
        return Ok(TaskDone::Finished);
    };
    let webhook = match state_records::unpack(&key, &stored.value) {
        Ok(body) => ArchivedWebhook { head: webhook.clone(), body: body.into() },
        // Stored before an upgrade, as the archive does.
        Err(error) => ArchivedWebhook::unpack(&stored.value).map_err(|_| error)?,
    };
    // First, as it can be repeated: each try to add the row charges the day's logs.
    let archive = relay.archive().await.map_err(|error| TaskError::retry(error.to_string()))?;
    if let Some(archive) = archive {
        let added = archive.add(&webhook.head, webhook.pack().into()).await;
        added.map_err(|error| TaskError::retry(error.to_string()))?;
    }
    let mut batch = WriteBatch::default();
    if relay.config.webhook_events.includes(&webhook.head.event) {
        batch.tasks.extend(add_row(relay, &webhook).await?);
    }
    batch.records.push(RecordWrite { key, value: vec![], expires_at: Timestamp::UNIX_EPOCH });
    relay.commit(batch).await?;
    Ok(TaskDone::Finished)
}

/// Returns the task that follows from the webhook, if there is one.
async fn add_row(relay: &Relay, webhook: &ArchivedWebhook) -> Result<Option<NewTask>, TaskError> {
    let WebhookHead { event, delivery, received_at, .. } = &webhook.head;
    // Everybody reads on the pages what is a row: titles of commits, branches, jobs.
    let is_upstream = |name: &str| name.eq_ignore_ascii_case(relay.config.upstream.as_str());
    if is_private(&webhook.body)
        && relay.config.job_logs != JobLogs::All
        && !repository_of(&webhook.body).is_some_and(|name| is_upstream(&name))
    {
        return Ok(None);
    }
    let row = match WebhookRow::new(event, delivery, *received_at, &webhook.body) {
        Ok(row) => row,
        // The archive has it all the same.
        Err(error) => {
            tracing::warn!(delivery, event, %error, "a webhook has no row");
            return Ok(None);
        }
    };
    let appended = relay.results.append_webhooks(vec![row.clone()]).await;
    appended.map_err(|error| TaskError::retry(error.to_string()))?;
    relay.usage.add(relay.now(), Resource::WebhookRows, &row.repository, 1);
    job_log::after_webhook(relay, &row, &webhook.body).await
}
