//! CODEOWNERS and quarantine files of the repositories whose tests the HUD shows. They are read in the background, so
//! that a page never waits for GitHub and a visitor never causes a call.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crcr_domain::RepoName;
use crcr_domain::ci_data::codeowners::{self, Codeowners};
use crcr_domain::ci_data::quarantine::{self, ParsedQuarantine};
use crcr_github::GithubError;
use crcr_github::contents::FileContents;
use crcr_hud::RepositoryFiles;
use jiff::tz::TimeZone;
use parking_lot::RwLock;

use crate::limits;
use crate::relay::Relay;

/// Where `crcr quarantine` looks for the file.
const QUARANTINE: &str = ".github/quarantine.yml";
/// Upstream, and repositories of the allowlist that have results of tests.
const MAX_REPOSITORIES: usize = 50;

#[derive(Debug, Default)]
pub(crate) struct KnownFiles {
    /// The files of each repository, by its name in lower case.
    known: RwLock<HashMap<String, Arc<RepositoryFiles>>>,
}

impl KnownFiles {
    pub(crate) fn get(&self, repository: &str) -> Option<Arc<RepositoryFiles>> {
        self.known.read().get(&repository.to_ascii_lowercase()).cloned()
    }

    /// Reads the files of every repository again. What can't be read now stays as it was known.
    pub(crate) async fn refresh(&self, relay: &Relay) {
        for repo in repositories(relay).await {
            let before = self.get(repo.as_str());
            let files = read(relay, &repo, before.as_deref()).await;
            self.known.write().insert(repo.key(), Arc::new(files));
        }
    }
}

pub(crate) async fn refresh_periodically(relay: &Relay) {
    loop {
        relay.read_repository_files().await;
        tokio::time::sleep(limits::REPOSITORY_FILES_INTERVAL).await;
    }
}

async fn repositories(relay: &Relay) -> BTreeSet<RepoName> {
    let tested = relay.results.tested_repositories().await.unwrap_or_else(|error| {
        tracing::warn!(%error, "the repositories with tests can't be looked up");
        vec![]
    });
    let policy = relay.allowlist.get();
    let is_listed =
        |repo: &RepoName| policy.as_ref().is_some_and(|policy| policy.get(repo).is_some());
    let listed = tested.iter().filter_map(|name| RepoName::new(name).ok()).filter(is_listed);
    std::iter::once(relay.config.upstream.clone()).chain(listed).take(MAX_REPOSITORIES).collect()
}

async fn read(relay: &Relay, repo: &RepoName, before: Option<&RepositoryFiles>) -> RepositoryFiles {
    let mut files = RepositoryFiles { read_at: relay.now(), ..RepositoryFiles::default() };
    let today = relay.now().to_zoned(TimeZone::UTC).date();
    match file(relay, repo, &[QUARANTINE], quarantine::MAX_BYTES).await {
        Ok(Some(bytes)) => {
            let parsed = ParsedQuarantine::parse(&bytes, today);
            if parsed.findings.errors() > 0 {
                files.problem = Some(format!(
                    "`{QUARANTINE}` has errors, which `crcr quarantine validate` explains; entries without one are shown"
                ));
            }
            files.quarantine = Some(parsed.entries);
        }
        Ok(None) => {}
        Err(error) => {
            files.problem = Some(format!("`{QUARANTINE}` can't be read: {error}"));
            files.quarantine = before.and_then(|before| before.quarantine.clone());
        }
    }
    match file(relay, repo, &codeowners::PLACES, codeowners::MAX_BYTES).await {
        Ok(Some(bytes)) => {
            files.codeowners = Some(Codeowners::parse(&String::from_utf8_lossy(&bytes)));
        }
        Ok(None) => {}
        Err(error) => {
            tracing::info!(%repo, %error, "CODEOWNERS can't be read");
            files.codeowners = before.and_then(|before| before.codeowners.clone());
        }
    }
    files
}

/// The first of these files that there is, on the default branch.
async fn file(
    relay: &Relay,
    repo: &RepoName,
    places: &[&str],
    limit: usize,
) -> Result<Option<Vec<u8>>, GithubError> {
    for place in places {
        match relay.app.contents(repo.as_str(), place, None, None, limit).await {
            Ok(FileContents::File { bytes, .. }) => return Ok(Some(bytes.to_vec())),
            Ok(FileContents::NotModified) | Err(GithubError::NotFound(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}
