//! Finds the page that a search is about.

use crcr_domain::{RepoName, event};
use crcr_results::webhook_tables::{ThingQuery, ThingSelection};

use super::overview::entry_of;
use crate::pages::search::CommitHit;
use crate::{Hud, PageError};

/// Repositories in which a commit is looked for.
const MAX_REPOSITORIES: usize = 100;

pub(crate) enum SearchResult {
    /// The address of the one page.
    Page(String),
    Hits {
        text: String,
        hits: Vec<CommitHit>,
    },
}

pub(crate) async fn find(hud: &Hud, text: &str) -> Result<SearchResult, PageError> {
    if let Ok(number) = text.trim_start_matches('#').parse::<u64>() {
        return Ok(SearchResult::Page(format!("/pr/{number}")));
    }
    if let Ok(repo) = RepoName::new(text) {
        let known = hud.results.repositories("workflow_job").await?;
        if known.iter().any(|known| known.name.eq_ignore_ascii_case(repo.as_str())) {
            return Ok(SearchResult::Page(format!("/hud/{repo}")));
        }
        if entry_of(hud, &repo).is_some() {
            return Ok(SearchResult::Page(format!("/crcr/{repo}")));
        }
    }
    let mut hits = vec![];
    if event::is_sha(&text.to_ascii_lowercase()) {
        hits = commit_hits(hud, &text.to_ascii_lowercase()).await?;
        if let [hit] = hits.as_slice() {
            let path = crate::pages::branch::branch_path(&hit.repository, &hit.branch);
            return Ok(SearchResult::Page(path));
        }
    }
    Ok(SearchResult::Hits { text: text.to_owned(), hits })
}

async fn commit_hits(hud: &Hud, sha: &str) -> Result<Vec<CommitHit>, PageError> {
    let shas = [sha.to_owned()];
    let mut hits: Vec<CommitHit> = vec![];
    let known = hud.results.repositories("workflow_job").await?;
    for repository in known.into_iter().take(MAX_REPOSITORIES) {
        let selection = ThingSelection::Commits(&shas);
        let query = ThingQuery { event: "workflow_job", repository: &repository.name, selection };
        for row in hud.results.current_things(&query).await? {
            let is_known =
                |hit: &CommitHit| hit.repository == repository.name && hit.branch == row.branch;
            if !row.branch.is_empty() && !hits.iter().any(is_known) {
                hits.push(CommitHit { repository: repository.name.clone(), branch: row.branch });
            }
        }
    }
    Ok(hits)
}
