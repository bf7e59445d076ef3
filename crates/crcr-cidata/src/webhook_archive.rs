//! The archive of webhooks: every delivery as GitHub sent it, so that anything computed from webhooks can
//! be computed again.
//!
//! An object is `{event}/{yyyy}/{mm}/{dd}/{delivery}.json.zst`, by the UTC day on which it was received.
//! Unpacked, the first line is JSON with the event, the delivery, the time and the headers; the rest is the
//! body, byte by byte.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Read as _;

use bytes::Bytes;
use crcr_domain::ci_data::webhook::is_event_name;
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};
use zstd::bulk::Compressor;

use crcr_aws::object_store::{ObjectStore, ObjectStoreError};

/// GitHub's limit, in bytes. <https://docs.github.com/en/webhooks/webhook-events-and-payloads>
const MAX_BODY: usize = 25 * 1024 * 1024;
/// The line before the body.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// A third of the size of LZ4 at half its speed, which is fast enough for every webhook.
const ZSTD_LEVEL: i32 = 1;

thread_local! {
    /// Making one takes as long as compressing a webhook.
    static COMPRESSOR: RefCell<Compressor<'static>> =
        RefCell::new(Compressor::new(ZSTD_LEVEL).expect("memory is all that it needs"));
}

/// Keys that one request lists.
const LISTED_KEYS: usize = 1000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchivedWebhook {
    pub head: WebhookHead,
    pub body: Bytes,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WebhookHead {
    /// GitHub's name, such as `workflow_job`.
    pub event: String,
    pub delivery: String,
    pub received_at: Timestamp,
    /// The `X-GitHub-*` headers in lower case, without the signature.
    pub headers: BTreeMap<String, String>,
}

/// Why an object of the archive can't be read.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    #[error(transparent)]
    Store(#[from] ObjectStoreError),
    #[error("`{key}` is damaged: {reason}")]
    Damaged { key: String, reason: String },
    #[error("`{0}` isn't the name of an event")]
    Event(String),
}

impl WebhookHead {
    pub fn key(&self) -> String {
        let day = self.received_at.to_zoned(TimeZone::UTC).date().strftime("%Y/%m/%d");
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        // GitHub sends GUIDs. What else a sender with the secret invents becomes a file name, too.
        let delivery = match self.delivery.bytes().all(is_plain) {
            true => self.delivery.clone(),
            false => hex::encode(&self.delivery),
        };
        format!("{}/{day}/{delivery}.json.zst", self.event)
    }
}

impl ArchivedWebhook {
    pub fn pack(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec(&self.head).expect("a head is always JSON");
        text.push(b'\n');
        text.extend_from_slice(&self.body);
        COMPRESSOR.with_borrow_mut(|compressor| {
            compressor.compress(&text).expect("memory is all that compression needs")
        })
    }

    /// Reads an object that may be damaged or made by somebody else.
    pub fn unpack(object: &[u8]) -> Result<Self, String> {
        let max = MAX_HEAD_BYTES + MAX_BODY;
        let mut text = vec![];
        zstd::Decoder::new(object)
            .and_then(|decoder| decoder.take(max as u64 + 1).read_to_end(&mut text))
            .map_err(|error| error.to_string())?;
        if text.len() > max {
            return Err(format!("it unpacks to more than {max} bytes"));
        }
        let end = text.iter().position(|byte| *byte == b'\n').ok_or("it has no first line")?;
        let head = serde_json::from_slice(&text[..end]).map_err(|error| error.to_string())?;
        Ok(Self { head, body: Bytes::from(text).slice(end + 1..) })
    }
}

#[derive(Debug, Clone)]
pub struct WebhookArchive {
    store: ObjectStore,
}

impl WebhookArchive {
    pub fn new(store: ObjectStore) -> Self {
        Self { store }
    }

    /// Stores a packed webhook. One that was archived before stays as it is.
    pub async fn add(&self, head: &WebhookHead, packed: Bytes) -> Result<(), ArchiveError> {
        if !is_event_name(&head.event) {
            return Err(ArchiveError::Event(head.event.escape_debug().to_string()));
        }
        self.store.put_new(&head.key(), packed).await?;
        Ok(())
    }

    pub async fn read(&self, key: &str) -> Result<ArchivedWebhook, ArchiveError> {
        let damaged =
            |reason: &str| ArchiveError::Damaged { key: key.to_owned(), reason: reason.to_owned() };
        let object = self.store.get(key, MAX_HEAD_BYTES + MAX_BODY).await?;
        let object = object.ok_or_else(|| damaged("it was deleted"))?;
        ArchivedWebhook::unpack(&object).map_err(|reason| damaged(&reason))
    }

    /// Where the archive is kept. Logs of jobs are beside the webhooks.
    pub fn objects(&self) -> &ObjectStore {
        &self.store
    }

    /// The events of which there are webhooks.
    pub async fn events(&self) -> Result<Vec<String>, ArchiveError> {
        let mut events: Vec<String> = vec![];
        let is_event = |name: &String| name != crate::logs::PREFIX;
        loop {
            // `0` is the character after `/`, so this is after all keys of the last event.
            let after = events.last().map(|event| format!("{event}0"));
            let keys = self.store.list("", after.as_deref(), 1).await?;
            let Some(event) = keys.first().and_then(|key| key.split('/').next()) else {
                return Ok(events.into_iter().filter(is_event).collect());
            };
            events.push(event.to_owned());
        }
    }

    /// The keys of one event's webhooks of one UTC day, in no particular order of time.
    pub async fn keys(&self, event: &str, day: Date) -> Result<Vec<String>, ArchiveError> {
        let prefix = format!("{event}/{}/", day.strftime("%Y/%m/%d"));
        let mut keys: Vec<String> = vec![];
        loop {
            let after = keys.last().map(String::as_str);
            let page = self.store.list(&prefix, after, LISTED_KEYS).await?;
            let is_last = page.len() < LISTED_KEYS;
            keys.extend(page);
            if is_last {
                return Ok(keys);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn webhook(event: &str, delivery: &str, at: &str) -> ArchivedWebhook {
        ArchivedWebhook {
            head: WebhookHead {
                event: event.to_owned(),
                delivery: delivery.to_owned(),
                received_at: at.parse().unwrap(),
                headers: BTreeMap::from([("x-github-event".to_owned(), event.to_owned())]),
            },
            body: Bytes::from_static(b"{\"a\":\n \"\xff\"}"),
        }
    }

    #[tokio::test]
    async fn archived_webhooks_are_listed_by_day_and_read_as_they_came() {
        let folder = tempfile::tempdir().unwrap();
        let archive = WebhookArchive::new(ObjectStore::Folder(folder.path().to_owned()));
        let all = [
            webhook("check_run", "a-1", "2026-09-01T23:59:59Z"),
            webhook("check_run", "a-2", "2026-09-02T00:00:00Z"),
            webhook("check_suite", "../../b", "2026-09-02T10:00:00Z"),
            webhook("push", "c", "2026-09-02T10:00:00Z"),
        ];
        for webhook in &all {
            archive.add(&webhook.head, webhook.pack().into()).await.unwrap();
        }
        assert_eq!(archive.events().await.unwrap(), ["check_run", "check_suite", "push"]);
        let day = "2026-09-02".parse().unwrap();
        let keys = archive.keys("check_run", day).await.unwrap();
        assert_eq!(keys, ["check_run/2026/09/02/a-2.json.zst"]);
        assert_eq!(archive.read(&keys[0]).await.unwrap(), all[1]);
        let odd = archive.keys("check_suite", day).await.unwrap();
        assert_eq!(odd, ["check_suite/2026/09/02/2e2e2f2e2e2f62.json.zst"]);
        // A second delivery with this id changes nothing.
        let forged = ArchivedWebhook { body: Bytes::from_static(b"{}"), ..all[1].clone() };
        archive.add(&forged.head, forged.pack().into()).await.unwrap();
        assert_eq!(archive.read(&keys[0]).await.unwrap(), all[1]);
        let odd = webhook("../x", "d", "2026-09-02T10:00:00Z");
        let refused = archive.add(&odd.head, Bytes::new()).await;
        assert!(matches!(refused, Err(ArchiveError::Event(_))), "{refused:?}");
    }

    #[test]
    fn damaged_object_is_an_error_and_a_bomb_is_cut_short() {
        let packed = webhook("push", "a", "2026-09-01T00:00:00Z").pack();
        for end in 0..packed.len() {
            assert!(ArchivedWebhook::unpack(&packed[..end]).is_err(), "cut at {end}");
        }
        let bomb = zstd::bulk::compress(&vec![b'\n'; 64 * 1024 * 1024], 1).unwrap();
        assert!(bomb.len() < 100_000);
        let error = ArchivedWebhook::unpack(&bomb).unwrap_err();
        assert!(error.contains("it unpacks to more than"), "{error}");
    }
}
