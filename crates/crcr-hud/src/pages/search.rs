//! `/search`: from a number, a commit or a name to its page.

use crcr_domain::ci_data::workflow::BranchCommit;
use crcr_domain::{RepoName, event};
use crcr_results::webhook_tables::{KnownRepository, ThingQuery, ThingSelection};
use maud::{Markup, html};
use serde::Deserialize;

use super::branch::branch_path;
use super::tests;
use crate::context::{Hud, PageError};
use crate::query::MAX_SEARCH_CHARS;
use crate::view::View;

/// Repositories in which a commit is looked for.
const MAX_REPOSITORIES: usize = 100;
const MAX_BACKENDS: usize = 50;

#[derive(Debug, Default, Deserialize)]
pub(crate) struct SearchQuery {
    #[serde(default)]
    q: String,
}

impl SearchQuery {
    pub(crate) fn text(&self) -> String {
        self.q.trim().chars().take(MAX_SEARCH_CHARS).collect()
    }
}

pub(crate) enum SearchResult {
    /// The address of the one page.
    Page(String),
    Hits {
        text: String,
        hits: Vec<SearchHit>,
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
        if hud.entry_of(&repo).is_some() {
            return Ok(SearchResult::Page(format!("/crcr/{repo}")));
        }
    }
    let mut hits = vec![];
    if event::is_sha(&text.to_ascii_lowercase()) {
        hits = commit_hits(hud, &text.to_ascii_lowercase()).await?;
        if let [hit] = hits.as_slice() {
            return Ok(SearchResult::Page(hit.path.clone()));
        }
    }
    if hits.is_empty() && !text.is_empty() {
        hits = backend_hits(hud, text);
        if let [hit] = hits.as_slice() {
            return Ok(SearchResult::Page(hit.path.clone()));
        }
    }
    if hits.is_empty() && !text.is_empty() {
        hits = tests::search(hud, text).await?;
        if let [hit] = hits.as_slice() {
            return Ok(SearchResult::Page(hit.path.clone()));
        }
    }
    Ok(SearchResult::Hits { text: text.to_owned(), hits })
}

/// The backends with the text in their name, their owner's or their device's.
fn backend_hits(hud: &Hud, text: &str) -> Vec<SearchHit> {
    let text = text.to_lowercase();
    let policy = (hud.policy)();
    let entries = policy.iter().flat_map(|policy| policy.iter());
    entries
        .filter(|entry| {
            let device = entry.device.as_ref().map(|device| device.as_str().to_lowercase());
            entry.repo.key().contains(&text) || device.is_some_and(|device| device.contains(&text))
        })
        .take(MAX_BACKENDS)
        .map(|entry| SearchHit {
            path: format!("/crcr/{}", entry.repo),
            name: entry.repo.as_str().to_owned(),
        })
        .collect()
}

/// The branches and pull requests that a commit is on. Of a pull request from a fork, a run has no
/// number, and its branch isn't one of the repository.
async fn commit_hits(hud: &Hud, sha: &str) -> Result<Vec<SearchHit>, PageError> {
    let shas = [sha.to_owned()];
    let mut hits: Vec<SearchHit> = vec![];
    let known = hud.results.repositories("workflow_job").await?;
    for KnownRepository { name: repository, .. } in known.into_iter().take(MAX_REPOSITORIES) {
        for event in ["push", "workflow_run", "pull_request"] {
            let selection = ThingSelection::Commits(&shas);
            let query = ThingQuery { event, repository: &repository, selection };
            for row in hud.results.current_things(&query).await? {
                let hit = if let Some(number) = row.number {
                    SearchHit {
                        path: format!("/pr/{number}?upstream={repository}"),
                        name: format!("{repository} #{number}"),
                    }
                } else if !row.branch.is_empty() && BranchCommit::from_row(&row).is_some() {
                    SearchHit {
                        path: branch_path(&repository, &row.branch),
                        name: format!("{repository} {}", row.branch),
                    }
                } else {
                    continue;
                };
                if !hits.contains(&hit) {
                    hits.push(hit);
                }
            }
        }
    }
    Ok(hits)
}

/// A page that the search may be about: a branch or pull request that a commit is on, or tests.
#[derive(PartialEq, Eq)]
pub(crate) struct SearchHit {
    pub(crate) path: String,
    pub(crate) name: String,
}

pub(crate) fn page(text: &str, hits: &[SearchHit], view: &View<'_>) -> Markup {
    view.shell(
        "Search",
        false,
        &html! {
            h1 { "Search" }
            @if hits.is_empty() {
                p role="status" { "Nothing is known about " strong { bdi { (text) } } "." }
                p.muted { "Search for the number of a pull request, the whole SHA of a commit, OWNER/REPO, or a part of the name of a backend, a device or a test." }
            } @else {
                ul.plain { @for hit in hits { li {
                    a href=(hit.path) { bdi { (hit.name) } }
                } } }
            }
        },
    )
}
