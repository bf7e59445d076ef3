//! Whose share of the budgets for webhooks and logs a repository uses.

use crcr_domain::RepoName;

use crate::relay::Relay;

/// Who pays for what a repository causes.
pub(crate) struct WebhookOwner {
    /// A repository of the allowlist, or else an account.
    pub(crate) name: String,
    /// Whether it is on the allowlist, or upstream's account.
    pub(crate) is_known: bool,
}

/// `None` for upstream itself.
pub(crate) fn owner_of(relay: &Relay, repository: &str) -> Option<WebhookOwner> {
    let (repo, upstream) = (RepoName::new(repository).ok(), &relay.config.upstream);
    if repo.as_ref() == Some(upstream) {
        return None;
    }
    let is_listed = repo.is_some_and(|repo| {
        relay.allowlist.get().is_some_and(|allowlist| allowlist.get(&repo).is_some())
    });
    let account = repository.split('/').next().unwrap_or_default();
    let is_known = is_listed || account.eq_ignore_ascii_case(upstream.owner());
    let name = if is_listed { repository } else { account };
    Some(WebhookOwner { name: name.to_owned(), is_known })
}
