//! What a backend takes and how its failures are explained: its own file, the filter of dispatches, and probes.

pub(crate) mod backend_file;
pub(crate) mod bisect;
pub(crate) mod confirm;
pub(crate) mod dispatch_filter;
pub(crate) mod probe;

use crcr_domain::probes::{Culprit, ProbesOverview};
use crcr_store::StoreError;

use self::backend_file::BackendFile;
use crate::limits;
use crate::relay::Relay;
use crate::state_records;

/// What the HUD shows of backends' files, and which commits broke something.
pub(crate) async fn overview(relay: &Relay) -> Result<ProbesOverview, StoreError> {
    let upstream = &relay.config.upstream;
    let repos: Vec<_> = relay
        .allowlist
        .get()
        .map(|list| list.iter().map(|entry| entry.repo.clone()).collect())
        .unwrap_or_default();
    let keys = repos.iter().map(|repo| backend_file::key(relay, repo)).collect();
    let files = relay.read_records::<BackendFile>(keys).await?;
    let problems = repos.iter().zip(files).filter_map(|(repo, file)| {
        let problem = file.value?.problem?;
        Some((repo.key(), problem))
    });
    let culprits = state_records::culprits_key(upstream);
    let culprits = relay.store.members(&culprits, limits::SHOWN_CULPRITS).await?;
    Ok(ProbesOverview {
        file_problems: problems.collect(),
        culprits: culprits
            .iter()
            .filter_map(|text| serde_json::from_str::<Culprit>(text).ok())
            .collect(),
    })
}
