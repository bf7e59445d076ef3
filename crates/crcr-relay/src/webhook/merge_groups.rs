//! Which merge groups still wait for their checks.

use bytes::Bytes;
use crcr_store::{StoreError, Versioned, WriteBatch};
use serde::Deserialize;

use super::repository::WebhookRepository;
use crate::limits;
use crate::relay::Relay;
use crate::state_records::{self, DeliveryRecord};

#[derive(Deserialize)]
struct RawEvent {
    action: String,
    repository: WebhookRepository,
    merge_group: RawGroup,
}

#[derive(Deserialize)]
struct RawGroup {
    head_sha: String,
}

/// Writes down which delivery asks for the checks of a group, unless the group's end was delivered first.
pub(crate) async fn note_start(
    relay: &Relay,
    head_sha: &str,
    delivery: &str,
    batch: &mut WriteBatch,
) -> Result<(), StoreError> {
    let key = state_records::merge_group_key(&relay.config.upstream, head_sha);
    let known: Versioned<Option<String>> = relay.read_record(key).await?;
    if known.value.is_none() {
        batch.update(&known, &Some(delivery.to_owned()), relay.expiry());
    }
    Ok(())
}

/// Whether the group of a delivery still waits for the checks that this delivery has asked for.
pub(crate) async fn is_waiting(
    relay: &Relay,
    delivery: &DeliveryRecord,
) -> Result<bool, StoreError> {
    let key = state_records::merge_group_key(&relay.config.upstream, &delivery.head_sha);
    let by: Versioned<Option<String>> = relay.read_record(key).await?;
    let is_recent = relay.now() < delivery.received_at + limits::MERGE_GROUP_WAIT;
    Ok(is_recent && by.value.flatten().as_deref() == Some(delivery.id.as_str()))
}

/// Writes down that a group has left the queue: it was merged or given up.
pub(crate) async fn note_end(relay: &Relay, body: &Bytes) -> Result<(), StoreError> {
    let Ok(event) = serde_json::from_slice::<RawEvent>(body) else { return Ok(()) };
    let upstream = &relay.config.upstream;
    let is_of_upstream = event.repository.full_name.eq_ignore_ascii_case(upstream.as_str());
    if !is_of_upstream || event.action != "destroyed" {
        return Ok(());
    }
    let key = state_records::merge_group_key(upstream, &event.merge_group.head_sha);
    let mut batch = WriteBatch::default();
    batch.set(key, &None::<String>, relay.expiry());
    relay.commit(batch).await.map(drop)
}
