//! The repositories that webhooks tell of. Whoever installs the App adds to them, so they are looked at in an order that
//! keeps those that matter.

use crcr_domain::RepoName;
use crcr_results::webhook_tables::KnownRepository;

use crate::context::{Hud, PageError};

/// Repositories in a list or a choice.
pub(crate) const MAX_LISTED: usize = 200;

/// The upstream repository, then those of the allowlist, then those that were heard of last; `limit` at most.
pub(crate) async fn read(
    hud: &Hud,
    event: &str,
    limit: usize,
) -> Result<Vec<KnownRepository>, PageError> {
    let mut known = hud.results.repositories(event).await?;
    let policy = (hud.policy)();
    known.sort_by_cached_key(|known| {
        let name = RepoName::new(&known.name).ok();
        let is_upstream = name.as_ref() == Some(&hud.upstream);
        let is_listed = name
            .is_some_and(|name| policy.as_ref().is_some_and(|policy| policy.get(&name).is_some()));
        std::cmp::Reverse((is_upstream, is_listed, known.newest))
    });
    known.truncate(limit);
    Ok(known)
}

/// The names of at most [`MAX_LISTED`] of them, sorted.
pub(crate) async fn names(hud: &Hud, event: &str) -> Result<Vec<String>, PageError> {
    let known = read(hud, event, MAX_LISTED).await?;
    let mut names: Vec<String> = known.into_iter().map(|known| known.name).collect();
    names.sort_by_cached_key(|name| name.to_ascii_lowercase());
    Ok(names)
}
