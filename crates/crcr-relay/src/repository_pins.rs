//! Pins the names of the allowlist to GitHub's repository ids.
//!
//! After a repository is deleted or renamed, somebody else can register its name, but not get its id. The
//! id is pinned when GitHub accepts the first dispatch, and stays pinned when the allowlist drops the
//! name. Another repository with that name is refused until an operator confirms it.

use std::collections::HashMap;

use crcr_domain::RepoName;
use crcr_github::app::AppRepository;
use crcr_store::{
    CommitOutcome, SetInsert, StateStore, StoreError, Versioned, WriteBatch, read_record,
    read_records,
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::queue::task_kind::TaskKind;
use crate::relay::Relay;
use crate::{limits, state_records};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pin {
    pub repo: RepoName,
    pub repository_id: u64,
    /// When GitHub accepted the first dispatch to it, or an operator confirmed it.
    pub since: Timestamp,
    /// Another repository that has the name now and is refused.
    pub changed: Option<OtherRepository>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherRepository {
    pub repository_id: u64,
    pub seen_at: Timestamp,
}

/// The pinned names by number, by which a repository is known that has another name now. They are read at most once in
/// [`limits::PINNED_NAMES_INTERVAL`], however many strangers report.
#[derive(Default)]
pub(crate) struct PinnedNames(tokio::sync::Mutex<Option<ReadNames>>);

struct ReadNames {
    read_at: Timestamp,
    by_number: HashMap<u64, Vec<RepoName>>,
}

impl PinnedNames {
    /// The names that are pinned to repository `number`, the newest one first.
    pub(crate) async fn of(&self, relay: &Relay, number: u64) -> Result<Vec<RepoName>, StoreError> {
        let mut names = self.0.lock().await;
        let is_new =
            |names: &ReadNames| relay.is_recent(names.read_at, limits::PINNED_NAMES_INTERVAL);
        if !names.as_ref().is_some_and(is_new) {
            let (store, upstream) = (relay.store.as_ref(), &relay.config.upstream);
            let mut by_number: HashMap<u64, Vec<RepoName>> = HashMap::new();
            for pin in list(store, upstream, limits::MAX_PINS_LISTED).await? {
                by_number.entry(pin.repository_id).or_default().push(pin.repo);
            }
            *names = Some(ReadNames { read_at: relay.now(), by_number });
        }
        Ok(names.as_ref().and_then(|it| it.by_number.get(&number).cloned()).unwrap_or_default())
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ConfirmError {
    #[error("`{0}` was never dispatched to, so no number is pinned and none was refused")]
    Unknown(RepoName),
    #[error("`{repo}` is pinned to repository number {repository_id}, and no other one was seen")]
    Unchanged { repo: RepoName, repository_id: u64 },
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Pins the repository that GitHub accepted a dispatch for, unless one is pinned already.
pub(crate) async fn pin(
    relay: &Relay,
    repo: &RepoName,
    target: &AppRepository,
) -> Result<(), StoreError> {
    let upstream = &relay.config.upstream;
    let known: Versioned<Pin> = relay.read_record(state_records::pin_key(upstream, repo)).await?;
    if known.value.is_some() {
        return Ok(());
    }
    let now = relay.now();
    let mut batch = WriteBatch::default();
    let repository_id = target.repository_id;
    let pin = Pin { repo: repo.clone(), repository_id, since: now, changed: None };
    add_pin(&mut batch, upstream, &known, &pin, now);
    // A conflict means that a concurrent dispatch has pinned it.
    relay.commit(batch).await?;
    Ok(())
}

/// Pins never expire: a name that hasn't been used for long is most likely to be taken over.
fn add_pin(
    batch: &mut WriteBatch,
    upstream: &RepoName,
    known: &Versioned<Pin>,
    pin: &Pin,
    now: Timestamp,
) {
    batch.update(known, pin, Timestamp::MAX);
    batch.set_inserts.push(SetInsert {
        set: state_records::pin_set_key(upstream),
        member: pin.repo.key(),
        score: now.as_millisecond(),
        expires_at: Timestamp::MAX,
    });
}

/// Takes over the pins that were made while the settings had another name of upstream: a backend's name that belongs to
/// somebody else now stays refused.
pub(crate) async fn take_over(relay: &Relay) -> Result<(), StoreError> {
    let (store, upstream) = (relay.store.as_ref(), &relay.config.upstream);
    let last: Versioned<RepoName> = relay.read_record(state_records::last_upstream_key()).await?;
    if last.value.as_ref().is_some_and(|name| name.key() == upstream.key()) {
        return Ok(());
    }
    let now = relay.now();
    let mut batch = WriteBatch::default();
    batch.update(&last, upstream, Timestamp::MAX);
    let pins = match &last.value {
        Some(former) => list(store, former, limits::MAX_PINS_LISTED).await?,
        None => vec![],
    };
    let keys = pins.iter().map(|pin| state_records::pin_key(upstream, &pin.repo)).collect();
    let known = read_records::<Pin>(store, keys).await?;
    for (pin, known) in pins.iter().zip(known).filter(|(_, known)| known.value.is_none()) {
        add_pin(&mut batch, upstream, &known, pin, now);
    }
    // A conflict means that another relay has done it.
    relay.commit(batch).await.map(drop)
}

/// Records that repository `found` has the name of `pin`, and alerts operators the first time.
pub(crate) async fn refuse(
    relay: &Relay,
    pin: &Versioned<Pin>,
    found: u64,
    refused: &'static str,
) -> Result<(), StoreError> {
    relay.metrics.repository_changed(refused);
    let Some(value) = &pin.value else { return Ok(()) };
    if value.changed.as_ref().is_some_and(|change| change.repository_id == found) {
        return Ok(());
    }
    let now = relay.now();
    let (repo, pinned) = (value.repo.clone(), value.repository_id);
    tracing::error!(
        %repo,
        pinned,
        found,
        refused,
        "the name belongs to another repository than before; it is refused until an operator \
         confirms it: crcr relay repository confirm {repo}"
    );
    let change = Some(OtherRepository { repository_id: found, seen_at: now });
    let mut batch = WriteBatch::default();
    batch.update(pin, &Pin { changed: change, ..value.clone() }, Timestamp::MAX);
    if relay.config.alert_url.is_some() {
        batch.tasks.push(TaskKind::RepositoryChanged { repo, pinned, found }.task(now));
    }
    // A conflict means that it was recorded or confirmed at the same time.
    relay.commit(batch).await?;
    Ok(())
}

/// The response to a report of another repository.
pub(crate) fn refusal(pin: &Pin, found: Option<u64>) -> String {
    let Pin { repo, repository_id, since, .. } = pin;
    let found = found.map_or("no number".to_owned(), |found| format!("number {found}"));
    format!(
        "repository_changed: the token is of repository {found}, and `{repo}` is number \
         {repository_id} since {since:.0}; when the change is meant, ask an operator of the relay \
         to run `crcr relay repository confirm {repo}`"
    )
}

/// The pinned repositories, the newest first, at most `limit`.
pub async fn list(
    store: &dyn StateStore,
    upstream: &RepoName,
    limit: usize,
) -> Result<Vec<Pin>, StoreError> {
    let names = store.members(&state_records::pin_set_key(upstream), limit).await?;
    let names = names.iter().filter_map(|name| RepoName::new(name).ok());
    let keys = names.map(|repo| state_records::pin_key(upstream, &repo)).collect();
    let pins = read_records::<Pin>(store, keys).await?;
    Ok(pins.into_iter().filter_map(|read| read.value).collect())
}

/// Pins a name to `repository_id`, or without one to the repository that was seen and refused.
pub async fn confirm(
    store: &dyn StateStore,
    upstream: &RepoName,
    repo: &RepoName,
    repository_id: Option<u64>,
    now: Timestamp,
) -> Result<Pin, ConfirmError> {
    for _ in 0..limits::CONFLICT_TRIES {
        let known: Versioned<Pin> =
            read_record(store, state_records::pin_key(upstream, repo)).await?;
        let seen = known.value.as_ref().and_then(|pin| pin.changed.as_ref());
        let Some(repository_id) = repository_id.or(seen.map(|change| change.repository_id)) else {
            return Err(match known.value {
                Some(Pin { repo, repository_id, .. }) => {
                    ConfirmError::Unchanged { repo, repository_id }
                }
                None => ConfirmError::Unknown(repo.clone()),
            });
        };
        let pin = Pin { repo: repo.clone(), repository_id, since: now, changed: None };
        let mut batch = WriteBatch::default();
        add_pin(&mut batch, upstream, &known, &pin, now);
        if store.commit(batch, now).await? == CommitOutcome::Done {
            let before = known.value.map(|pin| pin.repository_id);
            tracing::warn!(%repo, repository_id, before, "a repository was confirmed");
            return Ok(pin);
        }
    }
    Err(StoreError::Unavailable("the pin changed in every try to change it".to_owned()).into())
}
