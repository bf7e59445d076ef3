//! `/hud`: the CI of repositories themselves, commits by jobs.

use std::collections::{BTreeMap, HashMap};

use crcr_domain::RepoName;
use crcr_domain::ci_data::workflow::{BranchCommit, CiState, WorkflowJob};
use crcr_results::webhook_tables::{ThingQuery, ThingSelection};
use jiff::Timestamp;
use maud::{Markup, html};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;

use super::logs::{JobLogModel, explanation, job_log};
use crate::context::repo_name;
use crate::context::{Hud, PageError};
use crate::layout::{duration, external_link, short_sha, time};
use crate::query::BranchQuery;
use crate::query::NoQuery;
use crate::view::View;

const MAX_COMMITS: usize = 50;
/// Groups of jobs beyond these are left out, those that nothing failed in first.
const MAX_GROUPS: usize = 60;
const MAX_BRANCHES: usize = 50;

/// The repositories with webhooks of jobs.
#[derive(Debug, Serialize)]
pub(crate) struct RepositoriesModel {
    pub(crate) repositories: Vec<RepositoryLink>,
}

#[derive(Debug, Serialize)]
pub(crate) struct RepositoryLink {
    pub(crate) name: String,
    /// When the newest webhook of a job was received.
    pub(crate) newest: Timestamp,
}

/// The branches of a repository, the newest first.
#[derive(Debug, Serialize)]
pub(crate) struct BranchesModel {
    pub(crate) repository: String,
    pub(crate) branches: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct BranchModel {
    pub(crate) repository: String,
    pub(crate) branch: String,
    pub(crate) query: BranchQuery,
    /// Jobs that differ only in what is in parentheses at the end of their name are one group.
    pub(crate) groups: Vec<JobGroup>,
    pub(crate) more_groups: usize,
    pub(crate) commits: Vec<CommitRow>,
    /// Older commits are before this time; `None` on the last page.
    pub(crate) older: Option<Timestamp>,
    /// The job that the query names.
    pub(crate) job: Option<WorkflowJob>,
    /// What its log says, if it failed.
    pub(crate) log: Option<JobLogModel>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(crate) struct JobGroup {
    pub(crate) workflow: String,
    pub(crate) name: String,
}

impl JobGroup {
    fn new(job: &WorkflowJob, is_open: impl Fn(&Self) -> bool) -> Self {
        let base = job.name.split_once(" (").map_or(&*job.name, |(base, _)| base);
        let group = Self { workflow: job.workflow.clone(), name: base.to_owned() };
        if is_open(&group) { Self { name: job.name.clone(), ..group } } else { group }
    }

    pub(crate) fn title(&self) -> String {
        if self.workflow.is_empty() {
            self.name.clone()
        } else {
            format!("{} / {}", self.workflow, self.name)
        }
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct CommitRow {
    #[serde(flatten)]
    pub(crate) commit: BranchCommit,
    /// One for each group; `None` if none of its jobs ran.
    pub(crate) cells: Vec<Option<GroupCell>>,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct GroupCell {
    /// The worst of the jobs.
    pub(crate) state: CiState,
    pub(crate) jobs: usize,
    /// How many of them failed.
    pub(crate) failed: usize,
    /// Whether one of them ran more than once.
    pub(crate) was_rerun: bool,
    /// A job in that state.
    pub(crate) job: u64,
    /// Its page on GitHub.
    pub(crate) url: Option<String>,
}

pub(crate) async fn repositories(
    hud: &Hud,
    (): (),
    _: NoQuery,
) -> Result<RepositoriesModel, PageError> {
    let known = hud.results.repositories("workflow_job").await?;
    let link = |known: crcr_results::webhook_tables::KnownRepository| RepositoryLink {
        name: known.name,
        newest: known.newest,
    };
    Ok(RepositoriesModel { repositories: known.into_iter().map(link).collect() })
}

pub(crate) async fn branches(
    hud: &Hud,
    (owner, repo): (String, String),
    _: NoQuery,
) -> Result<BranchesModel, PageError> {
    let repo = &repo_name(&owner, &repo)?;
    // Jobs are on branches of forks, too, whose commits aren't on any branch here.
    let mut branches = hud.results.branches("push", repo.as_str(), MAX_BRANCHES).await?;
    if branches.is_empty() {
        branches = hud.results.branches("workflow_run", repo.as_str(), MAX_BRANCHES).await?;
    }
    if branches.is_empty() {
        return Err(no_webhooks(repo));
    }
    Ok(BranchesModel { repository: repo.as_str().to_owned(), branches })
}

fn no_webhooks(repo: &RepoName) -> PageError {
    PageError::NotFound(format!(
        "no job of {repo} is known: its jobs appear here once the App is installed on it and subscribed \
         to `workflow_job`"
    ))
}

pub(crate) async fn build(
    hud: &Hud,
    (owner, repo, branch): (String, String, String),
    query: BranchQuery,
) -> Result<BranchModel, PageError> {
    let repo = &repo_name(&owner, &repo)?;
    let branch = branch.as_str();
    let before = query.before.unwrap_or(Timestamp::MAX);
    let (mut commits, older) = commits(hud, repo, branch, before).await?;
    let shas: Vec<String> = commits.iter().map(|commit| commit.sha.clone()).collect();
    let mut jobs = jobs_of_commits(hud, repo, &shas).await?;
    jobs.retain(|job| job.branch == branch);
    if commits.is_empty() && query.before.is_none() {
        return Err(PageError::NotFound(format!("no commit on `{branch}` of {repo} is known")));
    }
    let search = query.q.as_deref().unwrap_or_default().to_lowercase();
    let matches = |job: &WorkflowJob| {
        search.is_empty()
            || format!("{} / {}", job.workflow, job.name).to_lowercase().contains(&search)
    };
    jobs.retain(matches);
    let is_open = |group: &JobGroup| query.open.iter().any(|open| *open == group.title());
    let mut cells: HashMap<(&str, JobGroup), Vec<&JobOnCommit>> = HashMap::new();
    let newest = newest_of_each(&jobs);
    // By group: whether a job of it failed.
    let mut groups: BTreeMap<JobGroup, bool> = BTreeMap::new();
    for job in &newest {
        let group = JobGroup::new(job.job, is_open);
        *groups.entry(group.clone()).or_default() |= job.job.state.is_failure();
        cells.entry((job.job.head_sha.as_str(), group)).or_default().push(job);
    }
    let more_groups = groups.len().saturating_sub(MAX_GROUPS);
    if more_groups > 0 {
        let mut kept: Vec<_> = groups.into_iter().collect();
        kept.sort_by_key(|(_, failed)| !failed);
        kept.truncate(MAX_GROUPS);
        groups = kept.into_iter().collect();
    }
    if query.only_failing() {
        let failed: Vec<&str> = newest
            .iter()
            .filter(|job| job.job.state.is_failure())
            .map(|job| job.job.head_sha.as_str())
            .collect();
        commits.retain(|commit| failed.contains(&commit.sha.as_str()));
    }
    let groups: Vec<JobGroup> = groups.into_keys().collect();
    let commits = commits
        .into_iter()
        .map(|commit| {
            let cell = |group: &JobGroup| {
                cells.get(&(commit.sha.as_str(), group.clone())).map(|jobs| group_cell(jobs))
            };
            CommitRow { cells: groups.iter().map(cell).collect(), commit }
        })
        .collect();
    let (job, log) = match query.job {
        Some(id) => (job_by_id(hud, repo, id).await?, job_log(hud, repo, id).await?),
        None => (None, None),
    };
    let (repository, branch) = (repo.as_str().to_owned(), branch.to_owned());
    Ok(BranchModel { repository, branch, query, groups, more_groups, commits, older, job, log })
}

/// The newest attempt of a job on a commit.
struct JobOnCommit<'a> {
    job: &'a WorkflowJob,
    attempts: usize,
}

fn newest_of_each(jobs: &[WorkflowJob]) -> Vec<JobOnCommit<'_>> {
    let mut newest: BTreeMap<(&str, &str, &str), JobOnCommit<'_>> = BTreeMap::new();
    for job in jobs {
        let key = (job.head_sha.as_str(), job.workflow.as_str(), job.name.as_str());
        match newest.get_mut(&key) {
            Some(known) => {
                known.attempts += 1;
                if known.job.order() < job.order() {
                    known.job = job;
                }
            }
            None => drop(newest.insert(key, JobOnCommit { job, attempts: 1 })),
        }
    }
    newest.into_values().collect()
}

fn group_cell(jobs: &[&JobOnCommit<'_>]) -> GroupCell {
    let worst = jobs.iter().min_by_key(|job| job.job.state).expect("a cell has a job");
    GroupCell {
        state: worst.job.state,
        jobs: jobs.len(),
        failed: jobs.iter().filter(|job| job.job.state.is_failure()).count(),
        was_rerun: jobs.iter().any(|job| job.attempts > 1),
        job: worst.job.id,
        url: worst.job.url.clone(),
    }
}

/// The newest commits before a time, and the time before which there may be older ones.
async fn commits(
    hud: &Hud,
    repo: &RepoName,
    branch: &str,
    before: Timestamp,
) -> Result<(Vec<BranchCommit>, Option<Timestamp>), PageError> {
    let mut by_sha: HashMap<String, BranchCommit> = HashMap::new();
    for event in ["push", "workflow_run"] {
        let selection = ThingSelection::Branch { name: branch, before, limit: 4 * MAX_COMMITS };
        let query = ThingQuery { event, repository: repo.as_str(), selection };
        for row in hud.results.current_things(&query).await? {
            let Some(commit) = BranchCommit::from_row(&row) else { continue };
            match by_sha.get_mut(&commit.sha) {
                Some(known) => known.at = known.at.min(commit.at),
                None => drop(by_sha.insert(commit.sha.clone(), commit)),
            }
        }
    }
    let mut commits: Vec<_> = by_sha.into_values().collect();
    commits.sort_by(|a, b| b.at.cmp(&a.at).then_with(|| a.sha.cmp(&b.sha)));
    let has_more = commits.len() > MAX_COMMITS;
    commits.truncate(MAX_COMMITS);
    let older = commits.last().filter(|_| has_more).map(|last| last.at);
    Ok((commits, older))
}

/// Every job of these commits in its current state, re-runs included.
pub(crate) async fn jobs_of_commits(
    hud: &Hud,
    repo: &RepoName,
    shas: &[String],
) -> Result<Vec<WorkflowJob>, PageError> {
    let selection = ThingSelection::Commits(shas);
    let query = ThingQuery { event: "workflow_job", repository: repo.as_str(), selection };
    let rows = hud.results.current_things(&query).await?;
    Ok(rows.iter().filter_map(WorkflowJob::from_row).collect())
}

/// The jobs of one commit, each in its newest attempt, failures first.
pub(crate) async fn jobs_of_commit(
    hud: &Hud,
    repo: &RepoName,
    sha: &str,
) -> Result<Vec<WorkflowJob>, PageError> {
    let jobs = jobs_of_commits(hud, repo, &[sha.to_owned()]).await?;
    let mut newest: Vec<_> = newest_of_each(&jobs).into_iter().map(|job| job.job.clone()).collect();
    newest.sort_by(|a, b| (a.state, &a.workflow, &a.name).cmp(&(b.state, &b.workflow, &b.name)));
    Ok(newest)
}

async fn job_by_id(hud: &Hud, repo: &RepoName, id: u64) -> Result<Option<WorkflowJob>, PageError> {
    let id = id.to_string();
    let selection = ThingSelection::Id(&id);
    let query = ThingQuery { event: "workflow_job", repository: repo.as_str(), selection };
    let rows = hud.results.current_things(&query).await?;
    Ok(rows.first().and_then(WorkflowJob::from_row))
}

/// All that has a meaning in an address, except the slashes of a branch's name.
const PATH: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.').remove(b'~');

pub(crate) fn branch_path(repository: &str, branch: &str) -> String {
    format!("/hud/{repository}/{}", utf8_percent_encode(branch, PATH))
}

pub(crate) fn repositories_page(model: &RepositoriesModel, view: &View<'_>) -> Markup {
    view.shell(
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
        },
    )
}

pub(crate) fn page(model: &BranchModel, view: &View<'_>) -> Markup {
    let path = branch_path(&model.repository, &model.branch);
    view.shell(
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
            (grid(model, &path, view))
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

fn grid(model: &BranchModel, path: &str, view: &View<'_>) -> Markup {
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
                tbody { @for row in &model.commits { (commit_row(row, model, path, view)) } }
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

fn commit_row(row: &CommitRow, model: &BranchModel, path: &str, view: &View<'_>) -> Markup {
    let commit = &row.commit;
    html! {
        tr {
            th scope="row" {
                code { a href=(view.commit_url(&model.repository, &commit.sha)) rel="noreferrer" { (short_sha(&commit.sha)) } }
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
