//! `/search`: finds the page that a search is about, or lists what it may be about, by kind.

use std::collections::{BTreeMap, BTreeSet};

use crcr_domain::RepoName;
use crcr_domain::ci_data::pull_request::PullRequestState;
use crcr_domain::ci_data::workflow::BranchCommit;
use crcr_results::ci_times::{CiGrouping, CiTimesQuery, CiUnit};
use crcr_results::webhook_tables::{ThingQuery, ThingSelection};
use jiff::{SignedDuration, Timestamp};
use maud::{Markup, html};
use serde::{Deserialize, Serialize};

use super::{commit, tests};
use crate::address::{address, branch_path};
use crate::context::{Hud, PageError};
use crate::layout::short_sha;
use crate::model::red_branches::TRUNKS;
use crate::query::MAX_SEARCH_CHARS;
use crate::view::View;

/// Pages of one kind that are listed.
const MAX_OF_A_KIND: usize = 50;
/// Pull requests that changed last, and commits that were pushed last: they are looked at for a title or an author.
const MAX_NEWEST: usize = 300;
const MAX_BRANCHES: usize = 200;
/// Jobs that ended since then are known by their name.
const JOB_DAYS: i64 = 7;

/// `?q=TEXT`.
#[derive(Debug, Default, Deserialize, schemars::JsonSchema)]
pub(crate) struct SearchQuery {
    #[serde(default)]
    q: String,
}

impl SearchQuery {
    pub(crate) fn text(&self) -> String {
        self.q.trim().chars().take(MAX_SEARCH_CHARS).collect()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HitKind {
    PullRequest,
    Commit,
    Backend,
    Repository,
    Branch,
    Job,
    Test,
}

impl HitKind {
    fn title(self) -> &'static str {
        match self {
            Self::PullRequest => "Pull requests",
            Self::Commit => "Commits",
            Self::Backend => "Backends",
            Self::Repository => "Repositories",
            Self::Branch => "Branches",
            Self::Job => "Jobs",
            Self::Test => "Tests",
        }
    }
}

/// A page that the search may be about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub(crate) struct SearchHit {
    pub(crate) kind: HitKind,
    pub(crate) path: String,
    pub(crate) name: String,
}

pub(crate) enum SearchResult {
    /// The address of the one page.
    Page(String),
    Hits {
        text: String,
        hits: Vec<SearchHit>,
    },
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct SearchModel {
    /// The address of the page that the search is about, if there is only one.
    page: Option<String>,
    /// Otherwise those that it may be about.
    hits: Vec<SearchHit>,
}

pub(crate) async fn build(hud: &Hud, (): (), query: SearchQuery) -> Result<SearchModel, PageError> {
    Ok(match find(hud, &query.text()).await? {
        SearchResult::Page(page) => SearchModel { page: Some(page), hits: vec![] },
        SearchResult::Hits { hits, .. } => SearchModel { page: None, hits },
    })
}

pub(crate) async fn find(hud: &Hud, text: &str) -> Result<SearchResult, PageError> {
    let mut hits: Vec<SearchHit> = vec![];
    if !text.is_empty() {
        match pasted_url(hud, text) {
            Some(page) => return Ok(SearchResult::Page(page)),
            None => hits = everything(hud, text).await?,
        }
    }
    Ok(match hits.as_slice() {
        [hit] => SearchResult::Page(hit.path.clone()),
        _ => SearchResult::Hits { text: text.to_owned(), hits },
    })
}

/// The page about what a pasted address of GitHub or of this HUD shows, or `OWNER/REPO#NUMBER`.
fn pasted_url(hud: &Hud, text: &str) -> Option<String> {
    if let Some((repo, number)) = text.split_once('#')
        && let (Ok(repo), Ok(number)) = (RepoName::new(repo), number.parse::<u64>())
    {
        return Some(format!("/pr/{number}?upstream={repo}"));
    }
    // A path is one of this HUD.
    let here = url::Url::parse("http://here.invalid").ok()?;
    let url = match text.strip_prefix('/') {
        Some(path) => here.join(&format!("/{}", path.trim_start_matches(['/', '\\']))).ok()?,
        None => url::Url::parse(text).ok()?,
    };
    if !["http", "https"].contains(&url.scheme()) {
        return None;
    }
    let parts: Vec<&str> = url.path().split('/').filter(|part| !part.is_empty()).collect();
    let github = url::Url::parse(&hud.github_url).ok()?;
    if url.host_str() != github.host_str() {
        // Of this HUD, wherever it is served.
        let own = ["pr", "prs", "commit", "hud", "crcr", "test", "tests", "failure", "failures"];
        let is_own = parts.first().is_some_and(|first| own.contains(first));
        let query = url.query().map(|query| format!("?{query}")).unwrap_or_default();
        return is_own.then(|| format!("{}{query}", url.path()));
    }
    let [owner, repo, rest @ ..] = parts.as_slice() else { return None };
    let repo = RepoName::new(&format!("{owner}/{repo}")).ok()?;
    Some(match rest {
        ["pull" | "pulls", number, ..] => {
            format!("/pr/{}?upstream={repo}", number.parse::<u64>().ok()?)
        }
        ["commit" | "commits", sha, ..] if commit::is_prefix(sha) => format!("/commit/{sha}"),
        ["actions", "runs", _, "job", job, ..] => {
            format!("/failure/{repo}/{}", job.parse::<u64>().ok()?)
        }
        ["tree", branch @ ..] if !branch.is_empty() => format!("/hud/{repo}/{}", branch.join("/")),
        _ => {
            let is_backend = hud.entry_of(&repo).is_some();
            if is_backend { format!("/crcr/{repo}") } else { format!("/hud/{repo}") }
        }
    })
}

/// All that fits, in the order of its kinds.
async fn everything(hud: &Hud, text: &str) -> Result<Vec<SearchHit>, PageError> {
    let mut hits = vec![];
    let digits = text.trim_start_matches('#');
    let number = digits.parse::<u64>().ok();
    let is_only_number =
        number.is_some() && (text.starts_with('#') || digits.len() < commit::MIN_DIGITS);
    if let Some(number) = number {
        let (path, name) = (format!("/pr/{number}"), format!("{} #{number}", hud.upstream));
        hits.push(SearchHit { kind: HitKind::PullRequest, path, name });
    }
    if is_only_number {
        return Ok(hits);
    }
    let sha = text.to_ascii_lowercase();
    if commit::is_prefix(&sha) {
        let commits = commit::find(hud, &sha).await?;
        hits.extend(commits.into_iter().map(|commit| SearchHit {
            kind: HitKind::Commit,
            path: format!("/commit/{}", commit.sha),
            name: format!("{} {} {}", commit.repository, short_sha(&commit.sha), commit.title),
        }));
        if !hits.is_empty() {
            return Ok(hits);
        }
    }
    hits.extend(backends(hud, text));
    hits.extend(repositories(hud, text).await?);
    hits.extend(pulls(hud, text).await?);
    hits.extend(commits(hud, text).await?);
    hits.extend(branches(hud, text).await?);
    hits.sort_by_key(|hit| hit.kind);
    // A whole name is about that one, even if others contain it.
    let exact: Vec<_> =
        hits.iter().filter(|hit| hit.name.eq_ignore_ascii_case(text)).cloned().collect();
    if let [hit] = exact.as_slice() {
        return Ok(vec![hit.clone()]);
    }
    if hits.is_empty() {
        hits = jobs(hud, text).await?;
    }
    if hits.is_empty() {
        let found = tests::search(hud, text).await?;
        let hit = |(path, name)| SearchHit { kind: HitKind::Test, path, name };
        hits = found.into_iter().map(hit).collect();
    }
    Ok(hits)
}

/// The backends with the text in their name, their owner's, their device's or an oncall's.
fn backends(hud: &Hud, text: &str) -> Vec<SearchHit> {
    let text = text.to_lowercase();
    let policy = (hud.policy)();
    let entries = policy.iter().flat_map(|policy| policy.iter());
    let found = entries.filter(|entry| {
        let device = entry.device.as_ref().map(|device| device.as_str().to_lowercase());
        entry.repo.key().contains(&text)
            || device.is_some_and(|device| device.contains(&text))
            || entry
                .oncalls
                .iter()
                .any(|name| name.as_str().to_lowercase() == text.trim_start_matches('@'))
    });
    let hit = |entry: &crcr_domain::AllowlistEntry| SearchHit {
        kind: HitKind::Backend,
        path: format!("/crcr/{}", entry.repo),
        name: entry.repo.as_str().to_owned(),
    };
    found.take(MAX_OF_A_KIND).map(hit).collect()
}

/// The repositories whose own CI is known. A backend is found as one.
async fn repositories(hud: &Hud, text: &str) -> Result<Vec<SearchHit>, PageError> {
    let text = text.to_lowercase();
    let known = hud.results.repositories("workflow_job").await?;
    let is_backend =
        |name: &str| RepoName::new(name).is_ok_and(|name| hud.entry_of(&name).is_some());
    let found = known.into_iter().filter(|known| known.name.to_lowercase().contains(&text));
    let found = found.filter(|known| !is_backend(&known.name)).take(MAX_OF_A_KIND);
    Ok(found
        .map(|known| SearchHit {
            kind: HitKind::Repository,
            path: format!("/hud/{}", known.name),
            name: known.name,
        })
        .collect())
}

/// The pull requests with the text in their title, their branch's name, or of this author.
async fn pulls(hud: &Hud, text: &str) -> Result<Vec<SearchHit>, PageError> {
    let lower = text.to_lowercase();
    let selection = ThingSelection::Newest { before: Timestamp::MAX, limit: MAX_NEWEST };
    let repository = hud.upstream.as_str();
    let query = ThingQuery { event: "pull_request", repository, selection };
    let rows = hud.results.current_things(&query).await?;
    let found = rows.iter().filter_map(PullRequestState::from_row).filter(|pull| {
        format!("#{} {}", pull.number, pull.title).to_lowercase().contains(&lower)
            || pull.branch.to_lowercase() == lower
            || pull.author.to_lowercase() == lower.trim_start_matches('@')
    });
    let hit = |pull: PullRequestState| SearchHit {
        kind: HitKind::PullRequest,
        path: format!("/pr/{}", pull.number),
        name: format!("#{} {}", pull.number, pull.title),
    };
    Ok(found.take(MAX_OF_A_KIND).map(hit).collect())
}

/// The commits with the text in their title, or of this author.
async fn commits(hud: &Hud, text: &str) -> Result<Vec<SearchHit>, PageError> {
    let lower = text.to_lowercase();
    let selection = ThingSelection::Newest { before: Timestamp::MAX, limit: MAX_NEWEST };
    let repository = hud.upstream.as_str();
    let query = ThingQuery { event: "push", repository, selection };
    let rows = hud.results.current_things(&query).await?;
    let found = rows.iter().filter_map(BranchCommit::from_row).filter(|commit| {
        commit.title.to_lowercase().contains(&lower) || commit.author.to_lowercase() == lower
    });
    let hit = |commit: BranchCommit| SearchHit {
        kind: HitKind::Commit,
        path: format!("/commit/{}", commit.sha),
        name: format!("{} {}", short_sha(&commit.sha), commit.title),
    };
    Ok(found.take(MAX_OF_A_KIND).map(hit).collect())
}

/// The branches with the text in their name.
async fn branches(hud: &Hud, text: &str) -> Result<Vec<SearchHit>, PageError> {
    let (lower, upstream) = (text.to_lowercase(), hud.upstream.as_str());
    let known = hud.results.branches("push", upstream, MAX_BRANCHES).await?;
    let found = known.into_iter().filter(|name| name.to_lowercase().contains(&lower));
    let hit = |name: String| SearchHit {
        kind: HitKind::Branch,
        path: branch_path(upstream, &name),
        name,
    };
    Ok(found.take(MAX_OF_A_KIND).map(hit).collect())
}

/// The jobs of the newest branch with the text in their name: shown on its grid.
async fn jobs(hud: &Hud, text: &str) -> Result<Vec<SearchHit>, PageError> {
    let (lower, now) = (text.to_lowercase(), hud.now());
    let query = CiTimesQuery {
        repository: hud.upstream.to_string(),
        grouping: CiGrouping::Job,
        unit: CiUnit::Day,
        from: now - SignedDuration::from_hours(24 * JOB_DAYS),
        to: now,
        name: None,
    };
    let rows = hud.results.ci_times(&query).await?;
    // The shards of a job are one column of the grid.
    let titles = rows.iter().map(|row| row.name.split(" (").next().unwrap_or_default());
    let names: BTreeSet<&str> =
        titles.filter(|title| title.to_lowercase().contains(&lower)).collect();
    let branches = hud.results.branches("push", hud.upstream.as_str(), MAX_BRANCHES).await?;
    let main = branches.iter().find(|name| TRUNKS.contains(&name.as_str())).or(branches.first());
    let Some(branch) = main else { return Ok(vec![]) };
    let grid = branch_path(hud.upstream.as_str(), branch);
    let hit = |name: &str| SearchHit {
        kind: HitKind::Job,
        path: address(&grid, [("q", Some(name))]),
        name: name.to_owned(),
    };
    Ok(names.into_iter().take(MAX_OF_A_KIND).map(hit).collect())
}

pub(crate) fn page(text: &str, hits: &[SearchHit], view: &View<'_>) -> Markup {
    let mut kinds: BTreeMap<HitKind, Vec<&SearchHit>> = BTreeMap::new();
    for hit in hits {
        kinds.entry(hit.kind).or_default().push(hit);
    }
    view.shell(
        "Search",
        false,
        &html! {
            h1 { "Search" }
            @if hits.is_empty() {
                @if text.is_empty() { p.muted { "Nothing was asked for." } }
                @else { p role="status" { "Nothing is known about " strong { bdi { (text) } } "." } }
                p.muted { "Search for the number, the title or the author of a pull request, seven digits of a commit, a part of the name of a repository, a device, an oncall or a test, a branch or a job, or paste an address." }
            }
            @for (kind, hits) in &kinds {
                h2 { (kind.title()) }
                ul.plain { @for hit in hits { li { a href=(hit.path) { bdi { (hit.name) } } } } }
            }
        },
    )
}
