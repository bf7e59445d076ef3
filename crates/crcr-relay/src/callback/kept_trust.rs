//! What reports are verified with is kept in the store: the issuers' keys, and the map of pipelines to repositories. So a
//! relay that starts while an issuer or GitHub is down takes reports all the same.

use std::collections::BTreeMap;
use std::time::Duration;

use crcr_github::jwks::{KeyDocument, REFRESH, REFRESH_AFTER_FAILURE};
use crcr_store::{StoreError, Versioned, WriteBatch};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::auth::ProviderMap;
use crate::admin::preflight;
use crate::relay::Relay;
use crate::{limits, state_records};

/// Unchanged keys are stored with a new time when the stored one is this old. They serve for a day after that time.
const STORED_AGAIN: Duration = Duration::from_secs(3600);

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct KeptProviders {
    /// A map from another URL isn't restored.
    url: String,
    text: String,
}

/// Fetches the keys every five minutes, or sooner after a failure, forever.
pub(crate) async fn keep_fresh(relay: &Relay) {
    loop {
        let good = refresh_keys(relay).await;
        tokio::time::sleep(if good { REFRESH } else { REFRESH_AFTER_FAILURE }).await;
    }
}

/// Fetches the keys of all issuers; returns `false` if one of the requests failed.
pub(crate) async fn refresh_keys(relay: &Relay) -> bool {
    let good = relay.verifier.refresh(relay.now()).await;
    if let Err(error) = store_keys(relay).await {
        tracing::warn!(%error, "the issuers' keys can't be stored for the next start");
    }
    good
}

async fn store_keys(relay: &Relay) -> Result<(), StoreError> {
    let found = relay.verifier.key_documents();
    let key = state_records::issuer_keys_key();
    let stored = relay.update(key, |known: &Versioned<BTreeMap<String, KeyDocument>>| {
        let is_known = |(issuer, document): (&String, &KeyDocument)| {
            let before = known.value.as_ref().and_then(|known| known.get(issuer));
            before.is_some_and(|before| {
                let is_older = document.fetched_at < before.fetched_at;
                let is_unchanged = (&before.url, &before.text) == (&document.url, &document.text)
                    && document.fetched_at < before.fetched_at + STORED_AGAIN;
                // One of the future was stored by a clock that was ahead.
                (is_older || is_unchanged)
                    && before.fetched_at <= relay.now() + limits::CLOCKS_APART
            })
        };
        if found.iter().all(is_known) {
            return ((), None);
        }
        let mut all = known.value.clone().unwrap_or_default();
        all.extend(found.clone());
        let mut batch = WriteBatch::default();
        batch.update(known, &all, Timestamp::MAX);
        ((), Some(batch))
    });
    stored.await
}

/// Reads the map from pipelines of other CI systems to repositories, if there is one. If it can't
/// be used, the last good one stays in force and the result is `false`.
pub(crate) async fn refresh_providers(relay: &Relay) -> bool {
    let Some(url) = &relay.config.providers_url else { return true };
    let (text, providers) = match preflight::providers(url, &relay.app).await {
        Ok(found) => found,
        Err(problem) => {
            tracing::error!(%problem, "the provider map can't be used");
            return false;
        }
    };
    relay.verifier.set_providers(providers);
    let found = KeptProviders { url: url.to_string(), text };
    let key = state_records::provider_map_key();
    let stored = relay.update(key, |known: &Versioned<KeptProviders>| {
        if known.value.as_ref() == Some(&found) {
            return ((), None);
        }
        let mut batch = WriteBatch::default();
        batch.update(known, &found, Timestamp::MAX);
        ((), Some(batch))
    });
    if let Err(error) = stored.await {
        tracing::warn!(%error, "the provider map can't be stored for the next start");
    }
    true
}

/// Puts in force what a relay read last. It holds until something newer is read.
pub(crate) async fn restore(relay: &Relay) {
    if let Err(error) = restore_all(relay).await {
        tracing::warn!(%error, "the issuers' keys and the provider map of the last start can't be read");
    }
}

async fn restore_all(relay: &Relay) -> Result<(), StoreError> {
    let keys: Versioned<BTreeMap<String, KeyDocument>> =
        relay.read_record(state_records::issuer_keys_key()).await?;
    for (issuer, document) in keys.value.unwrap_or_default() {
        relay.verifier.restore_keys(&issuer, &document, relay.now());
    }
    let Some(url) = &relay.config.providers_url else { return Ok(()) };
    let kept: Versioned<KeptProviders> =
        relay.read_record(state_records::provider_map_key()).await?;
    let kept = kept.value.filter(|kept| kept.url == url.to_string());
    if let Some(providers) = kept.and_then(|kept| ProviderMap::parse(&kept.text).ok()) {
        relay.verifier.set_providers(providers);
    }
    Ok(())
}
