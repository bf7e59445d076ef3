//! Settings that decide what check runs show. If they have changed when a relay starts, open heads are evaluated again:
//! nothing else would, and a check that nobody reports to any more would show what the settings of before made of it.

use crcr_store::{StoreError, Versioned, WriteBatch};
use jiff::Timestamp;
use serde_json::json;

use crate::config::StoreUrl;
use crate::queue::task_kind::TaskKind;
use crate::relay::Relay;
use crate::{limits, state_records};

/// Compares them with those of the last start. Replicas that are updated one after the other store them once.
pub async fn compare(relay: &Relay) {
    if let Err(error) = store_changes(relay).await {
        tracing::warn!(
            %error,
            "settings can't be compared with those of the last start: if they have changed, open heads show what \
             those of before made of them until something happens to them"
        );
    }
}

/// When open heads are evaluated once more after a change: until then a replica with the settings of before may have done
/// the evaluations that followed.
pub(crate) async fn evaluated_again_at(relay: &Relay) -> Result<Option<Timestamp>, StoreError> {
    let changed: Versioned<Timestamp> =
        relay.read_record(state_records::settings_changed_key()).await?;
    let recent = changed.value.filter(|at| relay.is_recent(*at, limits::ROLLOUT));
    Ok(recent.map(|at| at + limits::ROLLOUT))
}

/// Without settings and without the time at which a relay was last up, none has used this store.
fn tell_of_new_store(store: &StoreUrl) {
    tracing::warn!(
        %store,
        "the store is new and empty: it knows nothing of before. If there was one, stop the relay, and move it back or \
         restore a backup (docs/operating/back-up.md)"
    );
}

async fn store_changes(relay: &Relay) -> Result<(), StoreError> {
    let config = &relay.config;
    let settings = json!({
        "silent_l4": config.silent_l4.as_str(),
        "nonblocking": config.nonblocking.map(|conclusion| conclusion.as_str()),
        "breaker_failures": config.breaker_failures,
        "label_prefix": config.event_filter.label_prefix,
    });
    let settings = settings.to_string();
    let uptime = relay.store.records(&[state_records::uptime_key()]).await?;
    let was_used = uptime.iter().any(Option::is_some);
    let key = state_records::deciding_settings_key();
    let stored = relay.update(key, |known: &Versioned<String>| {
        if known.value.as_ref() == Some(&settings) {
            return ((), None);
        }
        let mut batch = WriteBatch::default();
        batch.update(known, &settings, Timestamp::MAX);
        batch.set(state_records::settings_changed_key(), &relay.now(), relay.expiry());
        // Without settings before them nothing was evaluated, or by a version that didn't store them.
        if known.value.is_some() {
            tracing::info!(
                settings,
                "settings that decide check runs have changed: open heads are evaluated"
            );
            batch.tasks.push(TaskKind::AllChecks.task(relay.now()));
        } else if !was_used {
            tell_of_new_store(&config.store);
        }
        ((), Some(batch))
    });
    stored.await
}
