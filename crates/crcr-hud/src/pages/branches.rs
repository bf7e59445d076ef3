//! `/hud` and `/hud/OWNER/REPO`: the repositories whose CI is known, and their branches.

use crcr_domain::RepoName;
use crcr_results::webhook_tables::KnownRepository;
use jiff::Timestamp;
use maud::{Markup, html};
use serde::{Deserialize, Serialize};

use crate::address::{SortOrder, Sorted, address, branch_path, order_header};
use crate::context::{Hud, PageError, repo_name};
use crate::layout::ago;
use crate::model::known_repositories::{self, MAX_LISTED};
use crate::model::red_branches::trunk;
use crate::query::NoQuery;
use crate::view::View;

const MAX_BRANCHES: usize = 200;

/// The repositories with webhooks of jobs.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct RepositoriesModel {
    pub(crate) repositories: Vec<RepositoryLink>,
    pub(crate) sort: SortOrder,
    /// Whether there are more, which were heard of earlier.
    pub(crate) has_more: bool,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct RepositoryLink {
    pub(crate) name: String,
    /// When the newest webhook of a job was received.
    pub(crate) newest: Timestamp,
}

/// The branches of a repository: the main one, then the newest.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct BranchesModel {
    pub(crate) repository: String,
    pub(crate) branches: Vec<String>,
    /// Whether there are more, which changed earlier.
    pub(crate) has_more: bool,
}

/// `?sort=name|newest`; a `-` before it sorts the other way.
#[derive(Debug, Clone, Default, Deserialize, schemars::JsonSchema)]
pub(crate) struct ListQuery {
    sort: Option<String>,
}

const SORTS: [&str; 2] = ["name", "newest"];

pub(crate) async fn repositories(
    hud: &Hud,
    (): (),
    query: ListQuery,
) -> Result<RepositoriesModel, PageError> {
    let sort = SortOrder::new(query.sort.as_deref(), SORTS[0], &SORTS).map_err(PageError::Query)?;
    let mut known = known_repositories::read(hud, "workflow_job", MAX_LISTED + 1).await?;
    let has_more = known.len() > MAX_LISTED;
    known.truncate(MAX_LISTED);
    known.sort_by(|a, b| {
        let by_name = a.name.to_ascii_lowercase().cmp(&b.name.to_ascii_lowercase());
        sort.apply(match sort.column {
            "newest" => b.newest.cmp(&a.newest).then(by_name),
            _ => by_name,
        })
    });
    let link = |known: KnownRepository| RepositoryLink { name: known.name, newest: known.newest };
    Ok(RepositoriesModel { repositories: known.into_iter().map(link).collect(), has_more, sort })
}

pub(crate) async fn branches(
    hud: &Hud,
    (owner, repo): (String, String),
    _: NoQuery,
) -> Result<BranchesModel, PageError> {
    let repo = &repo_name(&owner, &repo)?;
    // Jobs are on branches of forks, too, whose commits aren't on any branch here.
    let mut branches = hud.results.branches("push", repo.as_str(), MAX_BRANCHES + 1).await?;
    if branches.is_empty() {
        branches = hud.results.branches("workflow_run", repo.as_str(), MAX_BRANCHES + 1).await?;
    }
    if branches.is_empty() {
        return Err(no_webhooks(repo));
    }
    let has_more = branches.len() > MAX_BRANCHES;
    branches.truncate(MAX_BRANCHES);
    if let Some(trunk) = trunk(hud, repo.as_str()).await? {
        branches.retain(|name| *name != trunk);
        branches.insert(0, trunk);
    }
    Ok(BranchesModel { repository: repo.as_str().to_owned(), branches, has_more })
}

fn no_webhooks(repo: &RepoName) -> PageError {
    PageError::NotFound(format!(
        "no job of {repo} is known: its jobs appear here once the App is installed on it and subscribed \
         to `workflow_job`"
    ))
}

pub(crate) fn repositories_page(model: &RepositoriesModel, view: &View<'_>) -> Markup {
    let sorted =
        |order: &SortOrder| address("/hud", [("sort", order.parameter(SORTS[0]).as_deref())]);
    let header = |column: &'static str, name: &str, first: Sorted| {
        order_header((column, name), &model.sort, first, sorted)
    };
    view.shell(
        "Repositories",
        true,
        &html! {
            h1 { "Repositories" }
            @if model.repositories.is_empty() {
                p.muted { "No jobs are known. A repository appears here once the GitHub App is installed on it and subscribed to workflow jobs." }
            } @else {
                div.scroll tabindex="0" role="region" aria-label="Repositories" { table.stack {
                    thead { tr { (header("name", "Repository", Sorted::Ascending)) (header("newest", "Newest job", Sorted::Descending)) } }
                    tbody { @for repository in &model.repositories { tr {
                        th scope="row" { a href=(format!("/hud/{}", repository.name)) { bdi { (repository.name) } } }
                        td data-label="Newest job" { (ago(repository.newest)) }
                    } } }
                } }
            }
            @if model.has_more {
                p.detail { "The upstream repository, those of the allowlist, and others that were heard of last. Another one is at " code { "/hud/OWNER/REPO" } "." }
            }
        },
    )
}

pub(crate) fn branches_page(model: &BranchesModel, view: &View<'_>) -> Markup {
    view.shell(
        &model.repository,
        true,
        &html! {
            h1 { bdi { (model.repository) } }
            h2 { "Branches" }
            ul.plain { @for branch in &model.branches {
                li { a href=(branch_path(&model.repository, branch)) { bdi { (branch) } } }
            } }
            @if model.has_more {
                p.detail { "The main branch and those of the newest pushes. Another one is at " code { "/hud/" (model.repository) "/NAME" } "." }
            }
        },
    )
}
