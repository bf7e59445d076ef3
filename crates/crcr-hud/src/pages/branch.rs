//! `/hud/OWNER/REPO/BRANCH`: the CI of a repository itself, commits by jobs.

use std::collections::{BTreeMap, HashMap, HashSet};

use crcr_domain::RepoName;
use crcr_domain::ci_data::workflow::{BranchCommit, CiState, WorkflowJob};
use crcr_domain::probes::Culprit;
use crcr_domain::results::JobOutcome;
use jiff::{SignedDuration, Timestamp};
use maud::{Markup, html};
use serde::Serialize;

use super::failure::{self, JobModel};
use crate::address::{self, branch_path};
use crate::context::{Hud, PageError, repo_name};
use crate::layout::{ago, counted, culprit_list, outcome_parts, short_sha, state_parts};
use crate::model::backend_cells::{BackendCell, BackendColumn, backend_cells, is_good};
use crate::model::breakage::ColumnHistory;
use crate::model::commit_jobs::{
    JobGroup, JobOnCommit, branch_jobs, commits, heard_at, last_ended_of_each, newest_of_each,
};
use crate::query::{BranchQuery, without_level};
use crate::view::View;

/// Groups of jobs beyond these are left out, those that nothing failed in first.
const MAX_GROUPS: usize = 60;
/// Green commits in a row that are folded into one line.
const FOLDED: usize = 4;
/// What a cell of a backend shows and none of a job does.
const BACKENDS_ONLY: [JobOutcome; 4] =
    [JobOutcome::InfraFailed, JobOutcome::Lost, JobOutcome::NeverStarted, JobOutcome::Superseded];
/// Red columns that are told in words.
const MAX_TOLD: usize = 6;
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct BranchModel {
    pub(crate) repository: String,
    pub(crate) branch: String,
    pub(crate) query: BranchQuery,
    /// Jobs that differ only in what is in parentheses at the end of their name are one group.
    pub(crate) groups: Vec<JobGroup>,
    pub(crate) more_groups: usize,
    pub(crate) commits: Vec<CommitRow>,
    /// Whether the query names a commit that isn't known on the branch.
    pub(crate) is_commit_unknown: bool,
    /// Older commits are before this time; `None` on the last page.
    pub(crate) older: Option<Timestamp>,
    /// For each group whose newest result is a failure, since when. Nothing on a page of older commits.
    pub(crate) red: Vec<Option<RedSince>>,
    /// Backends at L3 and L4, which upstream's own commits are dispatched to.
    pub(crate) backends: Vec<BackendColumn>,
    /// For each backend whose newest result is a failure, since when. Nothing on a page of older commits.
    pub(crate) red_backends: Vec<Option<RedSince>>,
    /// Which commits broke jobs of backends, the newest answer first.
    pub(crate) culprits: Vec<Culprit>,
    /// The job that the query names.
    pub(crate) job: Option<JobModel>,
}

/// The first of the newest commits on which a job of a group that is still red, or a backend, failed without a green one
/// in between.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub(crate) struct RedSince {
    pub(crate) sha: String,
    /// Commits since then with a failure of what is still red.
    pub(crate) commits: usize,
    /// Whether an older commit is known on which it passed.
    pub(crate) is_first: bool,
    /// A failed job of that commit; `None` for a backend.
    pub(crate) job: Option<u64>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct CommitRow {
    #[serde(flatten)]
    pub(crate) commit: BranchCommit,
    /// One for each group; `None` if none of its jobs ran.
    pub(crate) cells: Vec<Option<GroupCell>>,
    /// One for each backend; `None` if nothing was reported.
    pub(crate) backend_cells: Vec<Option<BackendCell>>,
    /// Whether a job passed, every other one that ran did, also one without a column, and nothing runs any more.
    pub(crate) is_green: bool,
}

#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub(crate) struct GroupCell {
    /// The worst of the jobs.
    pub(crate) state: CiState,
    pub(crate) jobs: usize,
    /// How many of them failed.
    pub(crate) failed: usize,
    /// Whether one of them ran more than once.
    pub(crate) was_rerun: bool,
    /// Whether one of them failed in an earlier attempt, and passed in its newest.
    pub(crate) passed_after_rerun: bool,
    /// A job in that state.
    pub(crate) job: u64,
}

pub(crate) async fn build(
    hud: &Hud,
    (owner, repo, branch): (String, String, String),
    mut query: BranchQuery,
) -> Result<BranchModel, PageError> {
    let repo = &repo_name(&owner, &repo)?;
    let branch = branch.as_str();
    let ReadCommits { commits, older, mut jobs, is_commit_unknown } =
        ReadCommits::around(hud, repo, branch, &mut query).await?;
    if commits.is_empty() && query.before.is_none() {
        return Err(PageError::NotFound(format!("no commit on `{branch}` of {repo} is known")));
    }
    let search = query.q.as_deref().unwrap_or_default().to_lowercase();
    let matches = |job: &WorkflowJob| {
        search.is_empty()
            || format!("{} / {}", job.workflow, job.name).to_lowercase().contains(&search)
    };
    jobs.retain(matches);
    let grouped = GroupedJobs::new(&jobs, &commits, &query.open);
    let groups = &grouped.groups;
    let named = without_level(query.q.as_deref().unwrap_or_default()).to_lowercase();
    let is_shown = |backend: &str| backend.to_lowercase().contains(&named);
    let (backends, mut reported) = backend_cells(hud, repo, &commits, is_shown).await?;
    let mut commits: Vec<CommitRow> = commits
        .into_iter()
        .map(|commit| {
            let cell = |group| grouped.cell(&commit.sha, group);
            let none = || vec![None; backends.len()];
            let backend_cells = reported.remove(&commit.sha).unwrap_or_else(none);
            let mut told = backend_cells.iter().flatten();
            CommitRow {
                cells: groups.iter().map(cell).collect(),
                is_green: grouped.green.get(commit.sha.as_str()) == Some(&(true, true))
                    && told.all(|cell| cell.outcome.is_some_and(is_good)),
                backend_cells,
                commit,
            }
        })
        .collect();
    let job = match query.job {
        Some(id) => known_job(hud, repo, id).await?,
        None => None,
    };
    // What is red on a page of older commits may be green by now.
    let is_newest = query.before.is_none();
    let in_tree =
        |group: &JobGroup| red_since(&commits, grouped.histories.get(group).filter(|_| is_newest)?);
    let out_of_tree = |at: usize| {
        if !is_newest {
            return None;
        }
        let rows = commits.iter().enumerate();
        let turns = rows.filter_map(|(n, row)| Some((n, row.backend_cells[at]?.was_red()?)));
        red_since(&commits, &ColumnHistory::of_backend(turns))
    };
    let red = groups.iter().map(in_tree).collect();
    let red_backends = (0..backends.len()).map(out_of_tree).collect();
    if query.only_failing() {
        commits.retain(|row| {
            grouped.failed.contains(row.commit.sha.as_str())
                || row.backend_cells.iter().flatten().any(|cell| cell.failed > 0)
        });
    }
    Ok(BranchModel {
        culprits: culprits_on(hud, repo, &commits).await,
        repository: repo.as_str().to_owned(),
        branch: branch.to_owned(),
        query,
        red,
        red_backends,
        more_groups: grouped.more_groups,
        groups: grouped.groups,
        commits,
        is_commit_unknown,
        older,
        backends,
        job,
    })
}

/// The commits of a page.
struct ReadCommits {
    /// The newest first.
    commits: Vec<BranchCommit>,
    older: Option<Timestamp>,
    jobs: Vec<WorkflowJob>,
    /// Whether the query names a commit that isn't known on the branch.
    is_commit_unknown: bool,
}

impl ReadCommits {
    /// The newest, or those before the query's time. If it names a commit that isn't among the newest, those from it on.
    async fn around(
        hud: &Hud,
        repo: &RepoName,
        branch: &str,
        query: &mut BranchQuery,
    ) -> Result<Self, PageError> {
        let newest = Self::before(hud, repo, branch, query.before).await?;
        let Some(sha) = query.commit.as_deref().filter(|_| query.before.is_none()) else {
            return Ok(newest);
        };
        if newest.commits.iter().any(|commit| commit.sha.starts_with(sha)) {
            return Ok(newest);
        }
        let Some(at) = heard_at(hud, repo, branch, sha).await? else {
            return Ok(Self { is_commit_unknown: true, ..newest });
        };
        query.before = Some(at + SignedDuration::from_millis(1));
        Self::before(hud, repo, branch, query.before).await
    }

    async fn before(
        hud: &Hud,
        repo: &RepoName,
        branch: &str,
        before: Option<Timestamp>,
    ) -> Result<Self, PageError> {
        let before = before.unwrap_or(Timestamp::MAX);
        let (mut commits, mut older) = commits(hud, repo, branch, before).await?;
        let (jobs, read) = branch_jobs(hud, repo, branch, &commits).await?;
        if read < commits.len() {
            commits.truncate(read);
            older = commits.last().map(|last| last.at);
        }
        Ok(Self { commits, older, jobs, is_commit_unknown: false })
    }
}

/// The newest attempts of jobs, by commit and group.
struct GroupedJobs<'a> {
    groups: Vec<JobGroup>,
    /// How many groups are left out.
    more_groups: usize,
    cells: HashMap<(&'a str, JobGroup), Vec<JobOnCommit<'a>>>,
    /// What the jobs of each group came to.
    histories: HashMap<JobGroup, ColumnHistory>,
    /// The commits on which a job failed, in whichever group.
    failed: HashSet<&'a str>,
    /// By commit: whether a job passed, and whether every other one did that ran.
    green: HashMap<&'a str, (bool, bool)>,
}

impl<'a> GroupedJobs<'a> {
    /// `commits`: the newest first. `open`: titles of the groups whose jobs are shown one by one.
    fn new(jobs: &'a [WorkflowJob], commits: &[BranchCommit], open: &[String]) -> Self {
        let is_open = |group: &JobGroup| open.contains(&group.title());
        let mut cells: HashMap<_, Vec<_>> = HashMap::new();
        let (mut failed, mut green) = (HashSet::new(), HashMap::new());
        // By group: whether a job of it failed.
        let mut groups: BTreeMap<JobGroup, bool> = BTreeMap::new();
        for job in newest_of_each(jobs) {
            let (sha, group) = (job.job.head_sha.as_str(), JobGroup::new(job.job, is_open));
            let has_failed = job.job.state.is_failure();
            *groups.entry(group.clone()).or_default() |= has_failed;
            if has_failed {
                failed.insert(sha);
            }
            let (passed, only) = green.entry(sha).or_insert((false, true));
            *passed |= job.job.state == CiState::Passed;
            *only &= matches!(job.job.state, CiState::Passed | CiState::Neutral);
            cells.entry((sha, group)).or_default().push(job);
        }
        let places: HashMap<&str, usize> =
            commits.iter().enumerate().map(|(n, commit)| (commit.sha.as_str(), n)).collect();
        let mut histories: HashMap<JobGroup, ColumnHistory> = HashMap::new();
        for JobOnCommit { job, .. } in last_ended_of_each(jobs) {
            let Some(place) = places.get(job.head_sha.as_str()) else { continue };
            let history = histories.entry(JobGroup::new(job, is_open)).or_default();
            history.add(*place, &job.name, job.state, job.id);
        }
        let more_groups = groups.len().saturating_sub(MAX_GROUPS);
        Self { groups: most_telling(groups), more_groups, cells, histories, failed, green }
    }

    fn cell(&self, sha: &'a str, group: &JobGroup) -> Option<GroupCell> {
        let key = (sha, group.clone());
        Some(group_cell(self.cells.get(&key)?))
    }
}

/// The groups that are shown: if there are too many, those in which something failed first. Sorted by name.
fn most_telling(groups: BTreeMap<JobGroup, bool>) -> Vec<JobGroup> {
    let mut kept: Vec<_> = groups.into_iter().collect();
    if kept.len() > MAX_GROUPS {
        kept.sort_by_key(|(_, failed)| !failed);
        kept.truncate(MAX_GROUPS);
        kept.sort();
    }
    kept.into_iter().map(|(group, _)| group).collect()
}

async fn known_job(hud: &Hud, repo: &RepoName, id: u64) -> Result<Option<JobModel>, PageError> {
    match failure::job(hud, repo, id).await {
        Ok(job) => Ok(Some(job)),
        Err(PageError::NotFound(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The answers about the commits that are shown.
async fn culprits_on(hud: &Hud, repo: &RepoName, commits: &[CommitRow]) -> Vec<Culprit> {
    let is_shown = |sha: &String| commits.iter().any(|row| row.commit.sha == *sha);
    let is_here = |one: &Culprit| {
        let suspect = one.suspect.as_ref().map(|suspect| &suspect.sha);
        one.upstream.eq_ignore_ascii_case(repo.as_str())
            && [Some(&one.bad_sha), suspect].into_iter().flatten().any(is_shown)
    };
    (hud.probes)().await.culprits.into_iter().filter(is_here).collect()
}

fn red_since(commits: &[CommitRow], history: &ColumnHistory) -> Option<RedSince> {
    let broken = history.breakage()?;
    Some(RedSince {
        sha: commits[broken.first].commit.sha.clone(),
        commits: broken.commits,
        is_first: broken.is_first,
        job: broken.first_job,
    })
}

fn group_cell(jobs: &[JobOnCommit<'_>]) -> GroupCell {
    let worst = jobs.iter().min_by_key(|job| job.job.state).expect("a cell has a job");
    GroupCell {
        state: worst.job.state,
        jobs: jobs.len(),
        failed: jobs.iter().filter(|job| job.job.state.is_failure()).count(),
        was_rerun: jobs.iter().any(|job| job.attempts > 1),
        passed_after_rerun: jobs
            .iter()
            .any(|job| job.has_failed && job.job.state == CiState::Passed),
        job: worst.job.id,
    }
}

pub(crate) fn page(model: &BranchModel, view: &View<'_>) -> Markup {
    let path = branch_path(&model.repository, &model.branch);
    let close = BranchQuery { job: None, ..model.query.clone() };
    view.shell(
        &format!("{} {}", model.repository, model.branch),
        model.query.before.is_none(),
        &html! {
            div.title {
                h1 { bdi { (model.repository) } " " span.muted { bdi { (model.branch) } } }
                @if let Some(newest) = newest(model) { span.detail { "newest commit " (ago(newest)) } }
                a href=(format!("/hud/{}", model.repository)) { "Other branches" }
                a href=(branch_path(&model.repository, &model.branch).replacen("/hud/", "/feeds/", 1)) { "Feed" }
                a href=(address::address("/trends", [("repo", Some(&*model.repository)), ("branch", Some(&*model.branch))])) { "Trends" }
            }
            (controls(&path, &model.query))
            (red_columns(model))
            (culprit_list(&model.culprits))
            @if let Some(commit) = model.query.commit.as_ref().filter(|_| model.is_commit_unknown) {
                p.note role="status" { "No commit " code { (commit) } " on this branch is known." }
            }
            @if model.query.job.is_some() && model.job.is_none() {
                p.note role="status" { "This job isn't known." }
            }
            div.beside.open[model.job.is_some()] {
                (grid(model, &path))
                aside #job tabindex="-1" aria-label="Job" hidden[model.job.is_none()] { @if let Some(job) = &model.job {
                    (failure::panel(job, view, Some(&format!("{path}{}", close.address()))))
                } }
            }
            @if let Some(older) = model.older {
                p.pager { a rel="nofollow" href=(format!("{path}{}", BranchQuery { before: Some(older), job: None, ..model.query.clone() }.address())) { "Older commits" } }
            }
        },
    )
}

fn controls(path: &str, query: &BranchQuery) -> Markup {
    let rows = |rows: Option<&str>| {
        let query = BranchQuery { rows: rows.map(str::to_owned), job: None, ..query.clone() };
        format!("{path}{}", query.address())
    };
    let is = |rows: Option<&str>| (query.rows.as_deref() == rows).then_some("true");
    html! {
        div.controls {
            span.group {
                a aria-current=[is(None)] href=(rows(None)) { "Green folded" }
                a aria-current=[is(Some("all"))] href=(rows(Some("all"))) { "All commits" }
                a aria-current=[is(Some("failing"))] href=(rows(Some("failing"))) { "Failing" }
            }
            form.span method="get" action=(path) role="search" aria-label="Jobs" {
                label { "Jobs with" input type="search" name="q" value=(query.q.as_deref().unwrap_or_default()) maxlength="100"; }
                @if let Some(rows) = &query.rows { input type="hidden" name="rows" value=(rows); }
                @if let Some(before) = query.before { input type="hidden" name="before" value=(before); }
                @for open in &query.open { input type="hidden" name="open" value=(open); }
                button { "Show" }
            }
            @if query.q.is_some() || !query.open.is_empty() || query.before.is_some() { a href=(path) { "Reset" } }
        }
    }
}

/// When the newest commit was pushed, if its row is on the page.
fn newest(model: &BranchModel) -> Option<Timestamp> {
    let is_newest = model.query.before.is_none() && !model.query.only_failing();
    Some(model.commits.first().filter(|_| is_newest)?.commit.at)
}

/// What is red now, in words: since which commit, and whose.
fn red_columns(model: &BranchModel) -> Markup {
    let backends =
        model.backends.iter().map(|backend| backend.repo.clone()).zip(&model.red_backends);
    let columns = model.groups.iter().map(JobGroup::title).zip(&model.red).chain(backends);
    let red: Vec<_> = columns.filter_map(|(title, red)| Some((title, red.as_ref()?))).collect();
    if red.is_empty() {
        return html! {};
    }
    html! {
        ul.note.bad.red { @for (title, red) in red.iter().take(MAX_TOLD) { li {
            strong { bdi { (title) } } " is red since "
            @let first = model.commits.iter().find(|row| row.commit.sha == red.sha);
            @if !red.is_first { "at least " }
            a href=(address::commit(&model.repository, &red.sha)) { code { (short_sha(&red.sha)) } }
            @if let Some(row) = first { " " bdi { (row.commit.title) } @if !row.commit.author.is_empty() { " by " bdi { (row.commit.author) } } ", " (ago(row.commit.at)) }
            ", " (counted(red.commits, "commit", "commits")) ". "
            a href=(red.job.map_or_else(|| address::commit(&model.repository, &red.sha), |job| address::failure(&model.repository, job))) { "Why" }
        } }
        @if red.len() > MAX_TOLD { li { (counted(red.len() - MAX_TOLD, "more is", "more are")) " marked below." } } }
    }
}

fn grid(model: &BranchModel, path: &str) -> Markup {
    if model.commits.is_empty() {
        return html! { p.muted { "No commits match." } };
    }
    if model.groups.is_empty() && model.backends.is_empty() && model.query.q.is_some() {
        return html! { p.note role="status" { "No job of these commits and no backend has this in its name." } };
    }
    html! {
        div {
            div.scroll.grid tabindex="0" role="region" aria-label="Jobs by commit" {
                table.matrix.dense.branch data-panel=(format!("/panel/{}/", model.repository)) {
                    thead { tr {
                        th scope="col" { "Commit" }
                        @for (group, red) in model.groups.iter().zip(&model.red) { (group_header(group, red.as_ref(), model, path)) }
                        @for (backend, red) in model.backends.iter().zip(&model.red_backends) {
                            th.job.backend.bad[red.is_some()] scope="col" title=[red.as_ref().map(|red| format!("{}, red since {}", backend.repo, short_sha(&red.sha)))] {
                                @if red.is_some() { span.mark aria-hidden="true" { "✗" } }
                                a href=(format!("/crcr/{}", backend.repo)) { span { bdi { (backend.repo.rsplit('/').next().unwrap_or_default()) } " " (backend.level.as_str()) } } }
                        }
                    } }
                    tbody { (commit_rows(model, path)) }
                }
            }
            @if model.more_groups > 0 { p.detail { (counted(model.more_groups, "more job has", "more jobs have")) " no column: those that failed come first. A search above shows others." } }
            p.detail { @for state in CiState::ALL {
                @let (glyph, _, word) = state_parts(state);
                span.legend { (glyph) " " (word) }
            }
            @let (glyph, _, word) = outcome_parts(Some(JobOutcome::PassedAfterRerun));
            span.legend { (glyph) " " (word) }
            @if !model.backends.is_empty() { @for outcome in BACKENDS_ONLY {
                @let (glyph, _, word) = outcome_parts(Some(outcome));
                span.legend { (glyph) " " (word) }
            } }
            @if has_counts(model) { span.legend { "✗" sup { "2" } " so many of its jobs failed" } } }
        }
    }
}

/// Whether a cell shows how many of its jobs failed.
fn has_counts(model: &BranchModel) -> bool {
    model.commits.iter().any(|row| {
        let groups = row.cells.iter().flatten().map(|cell| (cell.jobs, cell.failed));
        let backends = row.backend_cells.iter().flatten().map(|cell| (cell.jobs, cell.failed));
        groups.chain(backends).any(|(jobs, failed)| jobs > 1 && failed > 0)
    })
}

/// A group of several jobs is a link that shows each of them, and back.
fn group_header(
    group: &JobGroup,
    red: Option<&RedSince>,
    model: &BranchModel,
    path: &str,
) -> Markup {
    let title = group.title();
    let base = JobGroup {
        name: group.name.split_once(" (").map_or(&*group.name, |(base, _)| base).to_owned(),
        ..group.clone()
    };
    let is_open = model.query.open.contains(&base.title());
    let at = model.groups.iter().position(|other| other == group).unwrap_or_default();
    let cells = || model.commits.iter().filter_map(|row| row.cells[at].as_ref());
    let is_foldable = is_open || cells().any(|cell| cell.jobs > 1);
    // One at a time: with every set of groups as an address, a crawler would never end.
    let open = if is_open { vec![] } else { vec![base.title()] };
    let query = BranchQuery { open, job: None, ..model.query.clone() };
    let since = red.map(|red| format!(", red since {}", short_sha(&red.sha)));
    let label = format!("{title}{}", since.unwrap_or_default());
    html! {
        th.job.bad[red.is_some()] scope="col" title=(label) {
            @if red.is_some() { span.mark aria-hidden="true" { "✗" } }
            @if is_foldable {
                a rel="nofollow" href=(format!("{path}{}", query.address())) aria-label=(format!("{label}, {}", if is_open { "fold" } else { "show each job" })) {
                    span { bdi { (title) } @if !is_open { " +" } @else { " −" } }
                }
            } @else { span { bdi { (title) } } }
        }
    }
}

/// Runs of green commits are one line each, unless all are to be shown.
fn commit_rows(model: &BranchModel, path: &str) -> Markup {
    let folds = model.query.rows.is_none();
    let mut parts: Vec<&[CommitRow]> = vec![];
    let mut rest = &model.commits[..];
    while !rest.is_empty() {
        let green = rest.iter().take_while(|row| row.is_green).count();
        let count = if folds && green >= FOLDED { green } else { 1 };
        let (part, later) = rest.split_at(count);
        parts.push(part);
        rest = later;
    }
    let unfold = BranchQuery { rows: Some("all".to_owned()), job: None, ..model.query.clone() };
    let columns = model.groups.len() + model.backends.len();
    html! {
        @for part in parts { @match part {
            [row] => (commit_row(row, model)),
            rows => tr.folded {
                th scope="row" { a href=(format!("{path}{}", unfold.address())) {
                    // Other jobs and backends aren't looked at.
                    (rows.len()) @if model.query.q.is_some() { " commits, green in these" } @else { " green commits" }
                } }
                td.good colspan=(columns) {
                    span aria-hidden="true" { "✓ " } (rows.last().map(|row| short_sha(&row.commit.sha)).unwrap_or_default()) " to " (short_sha(&rows[0].commit.sha))
                }
            },
        } }
    }
}

fn commit_row(row: &CommitRow, model: &BranchModel) -> Markup {
    let commit = &row.commit;
    let short = short_sha(&commit.sha);
    let when = commit.at.strftime("%Y-%m-%d %H:%M UTC");
    html! {
        tr id=(format!("c-{short}")) {
            th scope="row" title=(format!("{}\n{} {when}", commit.title, commit.author)) {
                a href=(address::commit(&model.repository, &short)) { (commit.sha.chars().take(7).collect::<String>()) }
                @if let Some(number) = commit.pull_request { " " a href=(address::pull(&model.repository, number)) { "#" (number) } }
                " " bdi { (commit.title) }
            }
            @for (cell, red) in row.cells.iter().zip(&model.red) {
                (cell_markup(cell.as_ref(), is_first_red(red.as_ref(), row), model))
            }
            @for (cell, red) in row.backend_cells.iter().zip(&model.red_backends) {
                (backend_cell(cell.as_ref(), is_first_red(red.as_ref(), row), model, &short))
            }
        }
    }
}

fn is_first_red(red: Option<&RedSince>, row: &CommitRow) -> bool {
    red.is_some_and(|red| red.is_first && red.sha == row.commit.sha)
}

/// The headers of its row and column say whose it is. A script shows it beside the grid.
fn cell_markup(cell: Option<&GroupCell>, is_first_red: bool, model: &BranchModel) -> Markup {
    let Some(cell) = cell else { return html! { td {} } };
    let is_rerun = cell.state == CiState::Passed && cell.passed_after_rerun;
    let (glyph, class, word) = if is_rerun {
        outcome_parts(Some(JobOutcome::PassedAfterRerun))
    } else {
        state_parts(cell.state)
    };
    let mut label = word.to_owned();
    if cell.jobs > 1 && cell.failed > 0 {
        label.push_str(&format!(", {} of {} jobs", cell.failed, cell.jobs));
    }
    if cell.was_rerun && !is_rerun {
        label.push_str(", re-run");
    }
    if is_first_red {
        label.push_str(", the first red one");
    }
    // On a cell that shows more than the mark of its state; a page has thousands of others.
    let title = (label != word).then_some(&label);
    let is_open = model.query.job == Some(cell.job);
    // Without the other parameters, so that a job has one address here. The script keeps them.
    let query =
        BranchQuery { job: Some(cell.job), before: model.query.before, ..BranchQuery::default() };
    html! {
        td.(class).first[is_first_red] {
            a rel="nofollow" href=(query.address()) title=[title] aria-label=(label) aria-current=[is_open.then_some("true")] {
                (glyph) @if cell.jobs > 1 && cell.failed > 0 { sup { (cell.failed) } }
            }
        }
    }
}

fn backend_cell(
    cell: Option<&BackendCell>,
    is_first_red: bool,
    model: &BranchModel,
    short_sha: &str,
) -> Markup {
    let Some(cell) = cell else { return html! { td {} } };
    let (glyph, class, word) = outcome_parts(cell.outcome);
    let mut label = match cell {
        BackendCell { failed: 0, .. } | BackendCell { jobs: ..=1, .. } => word.to_owned(),
        BackendCell { failed, jobs, .. } => format!("{word}, {failed} of {jobs} jobs"),
    };
    if is_first_red {
        label.push_str(", the first red one");
    }
    html! {
        td.(class).first[is_first_red] { a href=(address::commit(&model.repository, short_sha)) title=(label) aria-label=(label) { (glyph) @if cell.failed > 0 && cell.jobs > 1 { sup { (cell.failed) } } } }
    }
}
