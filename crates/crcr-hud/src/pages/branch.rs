//! `/hud`: the CI of repositories themselves, commits by jobs.

use crcr_domain::ci_data::workflow::{CiState, WorkflowJob};
use maud::{Markup, html};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::logs::explanation;
use crate::layout::{duration, external_link, shell, short_sha, time};
use crate::model::branch::{
    BranchModel, BranchesModel, CommitRow, GroupCell, JobGroup, RepositoriesModel,
};
use crate::query::BranchQuery;

/// All that has a meaning in an address, except the slashes of a branch's name.
const PATH: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.').remove(b'~');

pub(crate) fn branch_path(repository: &str, branch: &str) -> String {
    format!("/hud/{repository}/{}", utf8_percent_encode(branch, PATH))
}

pub(crate) fn repositories(model: &RepositoriesModel) -> Markup {
    shell(
        "Repositories",
        true,
        &html! {
            h1 { "Repositories" }
            @if model.repositories.is_empty() {
                p.muted { "No jobs are known. A repository appears here once the GitHub App is installed on it and subscribed to workflow jobs." }
            } @else {
                div.scroll { table.stack {
                    thead { tr { th scope="col" { "Repository" } th scope="col" { "Newest job (UTC)" } } }
                    tbody { @for repository in &model.repositories { tr {
                        th scope="row" { a href=(format!("/hud/{}", repository.name)) { bdi { (repository.name) } } }
                        td data-label="Newest job" { (time(repository.newest)) }
                    } } }
                } }
            }
        },
    )
}

pub(crate) fn branches(model: &BranchesModel) -> Markup {
    shell(
        &model.repository,
        true,
        &html! {
            h1 { bdi { (model.repository) } }
            h2 { "Branches" }
            ul.plain { @for branch in &model.branches {
                li { a href=(branch_path(&model.repository, branch)) { bdi { (branch) } } }
            } }
        },
    )
}

pub(crate) fn page(model: &BranchModel) -> Markup {
    let path = branch_path(&model.repository, &model.branch);
    shell(
        &format!("{} {}", model.repository, model.branch),
        model.query.before.is_none(),
        &html! {
            div.title {
                h1 { bdi { (model.repository) } " " span.muted { bdi { (model.branch) } } }
                a href=(format!("/hud/{}", model.repository)) { "Other branches" }
            }
            (controls(&path, &model.query))
            @if let Some(job) = &model.job { (job_panel(job, model, &path)) }
            @if model.query.job.is_some() && model.job.is_none() {
                p.note role="status" { "This job isn't known." }
            }
            (grid(model, &path))
            @if let Some(older) = model.older {
                p { a href=(format!("{path}{}", BranchQuery { before: Some(older), job: None, ..model.query.clone() }.address())) { "Older commits" } }
            }
        },
    )
}

fn controls(path: &str, query: &BranchQuery) -> Markup {
    let rows = |rows: Option<&str>| {
        let query = BranchQuery { rows: rows.map(str::to_owned), job: None, ..query.clone() };
        format!("{path}{}", query.address())
    };
    html! {
        div.controls {
            span.group {
                a aria-current=[(!query.only_failing()).then_some("true")] href=(rows(None)) { "All commits" }
                a aria-current=[query.only_failing().then_some("true")] href=(rows(Some("failing"))) { "Failing" }
            }
            form.span method="get" action=(path) role="search" {
                label { "Jobs with" input type="search" name="q" value=(query.q.as_deref().unwrap_or_default()) maxlength="100"; }
                @if query.only_failing() { input type="hidden" name="rows" value="failing"; }
                button { "Show" }
            }
            @if query.q.is_some() || !query.open.is_empty() || query.before.is_some() { a href=(path) { "Reset" } }
        }
    }
}

fn grid(model: &BranchModel, path: &str) -> Markup {
    if model.commits.is_empty() {
        return html! { p.muted { "No commits match." } };
    }
    html! {
        div.scroll tabindex="0" role="region" aria-label="Jobs by commit" {
            table.matrix.dense.branch {
                thead { tr {
                    th scope="col" { "Commit" }
                    @for group in &model.groups { th.job scope="col" title=(group.title()) { (group_header(group, model, path)) } }
                } }
                tbody { @for row in &model.commits { (commit_row(row, model, path)) } }
            }
        }
        @if model.more_groups > 0 { p.detail { (model.more_groups) " jobs without a failure are left out; search for them above." } }
        p.detail { @for state in CiState::ALL {
            @let (glyph, _, word) = state_parts(state);
            span.legend { (glyph) " " (word) }
        } }
    }
}

/// A group of several jobs is a link that shows each of them, and back.
fn group_header(group: &JobGroup, model: &BranchModel, path: &str) -> Markup {
    let title = group.title();
    let mut open = model.query.open.clone();
    let base = JobGroup {
        name: group.name.split_once(" (").map_or(&*group.name, |(base, _)| base).to_owned(),
        ..group.clone()
    };
    let is_open = open.contains(&base.title());
    let is_foldable = is_open
        || model.commits.iter().zip(0..).any(|(row, _)| {
            let at = model.groups.iter().position(|other| other == group);
            at.and_then(|at| row.cells[at].as_ref()).is_some_and(|cell| cell.jobs > 1)
        });
    if is_open {
        open.retain(|known| *known != base.title());
    } else {
        open.push(base.title());
    }
    let query = BranchQuery { open, job: None, ..model.query.clone() };
    html! {
        @if is_foldable {
            a href=(format!("{path}{}", query.address())) title=(if is_open { "Fold" } else { "Show each job" }) {
                span { bdi { (title) } @if !is_open { " +" } @else { " −" } }
            }
        } @else { span { bdi { (title) } } }
    }
}

fn commit_row(row: &CommitRow, model: &BranchModel, path: &str) -> Markup {
    let commit = &row.commit;
    html! {
        tr {
            th scope="row" {
                code { a href=(format!("https://github.com/{}/commit/{}", model.repository, commit.sha)) rel="noreferrer" { (short_sha(&commit.sha)) } }
                @if let Some(number) = commit.pull_request { " " a href=(format!("/pr/{number}?upstream={}", model.repository)) { "#" (number) } }
                div.commit title=(commit.title) { bdi { (commit.title) } }
                span.detail { (time(commit.at)) " · " bdi { (commit.author) } }
            }
            @for (cell, group) in row.cells.iter().zip(&model.groups) { (cell_markup(cell.as_ref(), group, model, path)) }
        }
    }
}

fn cell_markup(
    cell: Option<&GroupCell>,
    group: &JobGroup,
    model: &BranchModel,
    path: &str,
) -> Markup {
    let title = group.title();
    let Some(cell) = cell else {
        return html! { td { span.outcome.muted title=(format!("{title}: did not run")) { span aria-hidden="true" { "·" } span.hidden { "did not run" } } } };
    };
    let (glyph, class, word) = state_parts(cell.state);
    let mut label = format!("{title}: {word}");
    if cell.jobs > 1 {
        label.push_str(&format!(", {} of {} jobs failed", cell.failed, cell.jobs));
    }
    if cell.was_rerun {
        label.push_str(", re-run");
    }
    let query = BranchQuery { job: Some(cell.job), ..model.query.clone() };
    html! {
        td.(class) { a.outcome.(class) href=(format!("{path}{}#job", query.address())) title=(label) aria-label=(label) {
            span.glyph aria-hidden="true" { (glyph) }
            @if cell.jobs > 1 && cell.failed > 0 { span.count aria-hidden="true" { (cell.failed) } }
        } }
    }
}

/// What is known about one job.
fn job_panel(job: &WorkflowJob, model: &BranchModel, path: &str) -> Markup {
    let (glyph, class, word) = state_parts(job.state);
    let close = BranchQuery { job: None, ..model.query.clone() };
    html! {
        article.(class) #job {
            div.title {
                h2 { span.outcome.(class) { span.glyph aria-hidden="true" { (glyph) } } " " bdi { (job.workflow) " / " (job.name) } }
                span.tag { (word) }
                a href=(format!("{path}{}", close.address())) { "Close" }
            }
            p {
                @if let Some(url) = &job.url { (external_link(url, "Log and steps")) " · " }
                "commit " code { (short_sha(&job.head_sha)) }
                " · attempt " (job.run_attempt)
                @if let (Some(started), Some(ended)) = (job.started_at, job.completed_at) {
                    " · took " (duration(ended.duration_since(started).as_secs_f64().max(0.0)))
                }
                @if let Some(runner) = &job.runner { " · on " bdi { (runner) } }
            }
            @if let Some(step) = &job.failed_step { p { "Failed in step " strong { bdi { (step) } } } }
            @if let Some(log) = &model.log { (explanation(log)) }
        }
    }
}

/// Symbol, CSS class and word.
pub(crate) fn state_parts(state: CiState) -> (&'static str, &'static str, &'static str) {
    match state {
        CiState::Passed => ("✓", "good", "passed"),
        CiState::Failed => ("✗", "bad", "failed"),
        CiState::TimedOut => ("◷", "infra", "timed out"),
        CiState::Cancelled => ("⊘", "infra", "cancelled"),
        CiState::Running => ("◐", "running", "running"),
        CiState::Queued => ("◌", "running", "queued"),
        CiState::Neutral => ("–", "muted", "skipped"),
    }
}
