//! Notices that the upstream repository has another name than the settings say: its webhooks are then those
//! of a repository that nobody knows, and would be ignored without a word.

use crcr_domain::RepoName;
use crcr_github::null_as_default;
use crcr_store::{StateStore, StoreError, Versioned, WriteBatch, read_record};
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::Deserialize;

use crate::limits;
use crate::state_records::{self, HeadsLook};

#[derive(Debug, Default)]
pub struct UpstreamIdentity {
    /// GitHub's number of the repository that had the configured name.
    number: Mutex<Option<u64>>,
    moved_to: Mutex<Option<String>>,
}

/// What every webhook of a repository has.
#[derive(Deserialize)]
struct RepositoryWebhook {
    #[serde(default, deserialize_with = "null_as_default")]
    action: String,
    repository: Option<Repository>,
    #[serde(default, deserialize_with = "null_as_default")]
    changes: Changes,
}

#[derive(Deserialize)]
struct Repository {
    id: u64,
    name: String,
    full_name: String,
    owner: Owner,
}

#[derive(Deserialize, Default)]
struct Owner {
    login: String,
}

/// What `renamed` and `transferred` change.
///
/// <https://docs.github.com/en/webhooks/webhook-events-and-payloads#repository>
#[derive(Deserialize, Default)]
#[serde(default)]
struct Changes {
    repository: Option<RenamedRepository>,
    owner: Option<TransferredOwner>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RenamedRepository {
    name: PreviousText,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct PreviousText {
    from: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct TransferredOwner {
    from: PreviousOwner,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct PreviousOwner {
    user: Option<Owner>,
    organization: Option<Owner>,
}

impl RepositoryWebhook {
    /// The name before, of an event that changes it.
    fn previous_name(&self, event: &str) -> Option<String> {
        let repository = self.repository.as_ref()?;
        let (owner, name) = (&repository.owner.login, &repository.name);
        match (event, &*self.action) {
            ("repository", "renamed") => {
                let before = &self.changes.repository.as_ref()?.name.from;
                Some(format!("{owner}/{before}"))
            }
            ("repository", "transferred") => {
                let from = &self.changes.owner.as_ref()?.from;
                let before = from.organization.as_ref().or(from.user.as_ref())?;
                Some(format!("{}/{name}", before.login))
            }
            _ => None,
        }
    }
}

impl UpstreamIdentity {
    /// Whether a webhook of the configured name has arrived since the start, and nothing else since.
    pub(crate) fn is_known(&self) -> bool {
        self.number.lock().is_some() && self.moved_to.lock().is_none()
    }

    /// The new name of the upstream repository, if it has one.
    pub fn moved_to(&self) -> Option<String> {
        self.moved_to.lock().clone()
    }

    /// Reads a webhook with a valid signature.
    pub(crate) async fn note(
        &self,
        store: &dyn StateStore,
        upstream: &RepoName,
        event: &str,
        body: &[u8],
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let Ok(webhook) = serde_json::from_slice::<RepositoryWebhook>(body) else { return Ok(()) };
        let Some(repository) = &webhook.repository else { return Ok(()) };
        let is_upstream = repository.full_name.eq_ignore_ascii_case(upstream.as_str());
        if is_upstream {
            self.remember(store, upstream, repository.id, now).await?;
            return Ok(());
        }
        let was_upstream = webhook
            .previous_name(event)
            .is_some_and(|name| name.eq_ignore_ascii_case(upstream.as_str()));
        let mut known = *self.number.lock();
        if known.is_none() {
            let key = state_records::upstream_number_key(upstream);
            let stored: Versioned<u64> = read_record(store, key).await?;
            known = stored.value;
            *self.number.lock() = known;
        }
        if !was_upstream && known != Some(repository.id) {
            return Ok(());
        }
        let name = repository.full_name.clone();
        let mut moved_to = self.moved_to.lock();
        if moved_to.as_ref() != Some(&name) {
            tracing::error!(
                configured = %upstream, now = name,
                "the upstream repository was renamed or transferred, and its webhooks are ignored: set \
                 UPSTREAM_REPO to its new name and restart"
            );
            *moved_to = Some(name);
        }
        Ok(())
    }

    async fn remember(
        &self,
        store: &dyn StateStore,
        upstream: &RepoName,
        number: u64,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        *self.moved_to.lock() = None;
        if *self.number.lock() == Some(number) {
            return Ok(());
        }
        let mut batch = WriteBatch::default();
        let until = now + limits::UPSTREAM_MEMORY;
        batch.set(state_records::upstream_number_key(upstream), &number, until);
        let key = state_records::upstream_name_key(number);
        let name: Versioned<RepoName> = read_record(store, key).await?;
        if let Some(former) = name.value.filter(|name| name.key() != upstream.key()) {
            batch.set(state_records::former_upstream_key(upstream), &former, until);
            // What has changed while the settings had the old name is found like a head that GitHub never sent.
            let key = state_records::heads_since_key(&former);
            let since: Versioned<Timestamp> = read_record(store, key).await?;
            if let Some(since) = since.value {
                batch.set(state_records::heads_since_key(upstream), &since, until);
                batch.set(state_records::heads_compared_key(upstream), &since, until);
                batch.set(state_records::heads_look_key(upstream), &None::<HeadsLook>, until);
            }
        }
        batch.set(name.key, upstream, until);
        store.commit(batch, now).await?;
        *self.number.lock() = Some(number);
        Ok(())
    }
}
