//! Names of repositories and commits.

use crcr_domain::RepoName;

pub(crate) const UPSTREAM: &str = "acme/upstream";
/// The backends of the first allowlist, in lower case.
pub(crate) const BACKENDS: [&str; 5] =
    ["acme/one", "acme/two", "lab/three", "acme/four", "lab/five"];

/// The backend of a check run's or repository's name, whatever its case.
pub(crate) fn backend(name: &str) -> Option<&'static str> {
    BACKENDS.into_iter().find(|repo| repo.eq_ignore_ascii_case(name))
}

/// The name of a backend of the allowlist, from the one that GitHub uses.
pub(crate) fn key_of(repo: &str) -> String {
    RepoName::new(repo).map_or_else(|_| repo.to_owned(), |repo| repo.key())
}

/// Enough of a commit to tell it from the others of one seed.
pub(crate) fn short(sha: &str) -> &str {
    &sha[sha.len().saturating_sub(4)..]
}
