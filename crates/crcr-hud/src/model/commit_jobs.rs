//! Commits and jobs of a repository's own CI, as its webhooks tell.

use std::collections::{BTreeMap, HashMap, HashSet};

use crcr_domain::RepoName;
use crcr_domain::ci_data::webhook::WebhookRow;
use crcr_domain::ci_data::workflow::{BranchCommit, CiState, WorkflowJob, fork_of_run};
use crcr_results::webhook_tables::{ThingQuery, ThingSelection};
use jiff::Timestamp;
use serde::Serialize;

use crate::context::{Hud, PageError};

const MAX_COMMITS: usize = 50;
/// Commits whose jobs are read at once ...
const COMMITS_AT_ONCE: usize = 10;
/// ... until there are this many jobs. Older commits are on the next page.
const MAX_JOBS: usize = 12_000;

/// The newest commits before a time, and the time before which there may be older ones.
pub(crate) async fn commits(
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

/// When a commit of a branch was first heard of, which begins with these digits.
pub(crate) async fn heard_at(
    hud: &Hud,
    repo: &RepoName,
    branch: &str,
    sha: &str,
) -> Result<Option<Timestamp>, PageError> {
    // A run is heard of again and again, a push once.
    for event in ["push", "workflow_run"] {
        let selection = ThingSelection::CommitPrefix(sha);
        let query = ThingQuery { event, repository: repo.as_str(), selection };
        let rows = hud.results.current_things(&query).await?;
        let is_of_branch =
            |row: &&WebhookRow| row.branch == branch && BranchCommit::from_row(row).is_some();
        let first = rows.iter().filter(is_of_branch).map(|row| row.received_at).min();
        if first.is_some() {
            return Ok(first);
        }
    }
    Ok(None)
}

/// The jobs of the newest commits of a branch, as far as [`MAX_JOBS`] allows, and of how many commits they are.
pub(crate) async fn branch_jobs(
    hud: &Hud,
    repo: &RepoName,
    branch: &str,
    commits: &[BranchCommit],
) -> Result<(Vec<WorkflowJob>, usize), PageError> {
    let shas: Vec<String> = commits.iter().map(|commit| commit.sha.clone()).collect();
    let (mut jobs, mut read) = (vec![], 0);
    for part in shas.chunks(COMMITS_AT_ONCE) {
        if jobs.len() > MAX_JOBS {
            break;
        }
        let rows = rows_of_commits(hud, repo, "workflow_job", part).await?;
        jobs.extend(rows.iter().filter_map(WorkflowJob::from_row));
        read += part.len();
    }
    let runs = rows_of_commits(hud, repo, "workflow_run", &shas[..read]).await?;
    let forks: HashSet<&str> = runs
        .iter()
        .filter(|row| fork_of_run(row).is_some())
        .map(|row| row.thing.as_str())
        .collect();
    jobs.retain(|job| !forks.contains(job.run_id.to_string().as_str()));
    // Runs of pull requests aren't of the branch's own commits.
    add_whole_runs(runs.iter().filter(|row| BranchCommit::from_row(row).is_some()), &mut jobs);
    jobs.retain(|job| job.branch == branch);
    Ok((jobs, read))
}

/// Every job or run of these commits in its current state, re-runs included.
async fn rows_of_commits(
    hud: &Hud,
    repo: &RepoName,
    event: &str,
    shas: &[String],
) -> Result<Vec<WebhookRow>, PageError> {
    let selection = ThingSelection::Commits(shas);
    let query = ThingQuery { event, repository: repo.as_str(), selection };
    Ok(hud.results.current_things(&query).await?)
}

/// Adds the runs that failed or were cancelled though no known job of theirs was, with the other runs of these
/// workflows: those say when it is over.
fn add_whole_runs<'a>(rows: impl Iterator<Item = &'a WebhookRow>, jobs: &mut Vec<WorkflowJob>) {
    let runs: Vec<WorkflowJob> = rows.filter_map(WorkflowJob::of_run).collect();
    // A job that was cancelled or hasn't ended, as far as is known, tells enough.
    let told: HashSet<u64> = jobs
        .iter()
        .filter(|job| !matches!(job.state, CiState::Passed | CiState::Neutral))
        .map(|job| job.run_id)
        .collect();
    let is_bad = |run: &WorkflowJob| run.state.is_failure() || run.state == CiState::Cancelled;
    let untold = runs.iter().filter(|run| is_bad(run) && !told.contains(&run.id));
    let workflows: HashSet<String> = untold.map(|run| run.workflow.clone()).collect();
    let is_told = |run: &WorkflowJob| is_bad(run) && told.contains(&run.id);
    let added = runs.into_iter().filter(|run| workflows.contains(&run.workflow) && !is_told(run));
    jobs.extend(added);
}

/// The jobs of one commit, each in its newest attempt, failures first. A run of another repository's pull request takes
/// the place of none: its workflow may leave out what failed.
pub(crate) async fn jobs_of_commit(
    hud: &Hud,
    repo: &RepoName,
    sha: &str,
) -> Result<Vec<WorkflowJob>, PageError> {
    let shas = [sha.to_owned()];
    let rows = rows_of_commits(hud, repo, "workflow_job", &shas).await?;
    let mut jobs: Vec<_> = rows.iter().filter_map(WorkflowJob::from_row).collect();
    let runs = rows_of_commits(hud, repo, "workflow_run", &shas).await?;
    add_whole_runs(runs.iter(), &mut jobs);
    let forks: HashMap<&str, String> =
        runs.iter().filter_map(|row| Some((row.thing.as_str(), fork_of_run(row)?))).collect();
    let mut origins: BTreeMap<Option<&String>, Vec<WorkflowJob>> = BTreeMap::new();
    for job in jobs {
        let origin = forks.get(job.run_id.to_string().as_str());
        origins.entry(origin).or_default().push(job);
    }
    let newest = origins.values().flat_map(|jobs| newest_of_each(jobs));
    let mut newest: Vec<_> = newest.map(|job| job.job.clone()).collect();
    newest.sort_by(|a, b| (a.state, &a.workflow, &a.name).cmp(&(b.state, &b.workflow, &b.name)));
    Ok(newest)
}

/// The newest attempt of a job on a commit.
pub(crate) struct JobOnCommit<'a> {
    pub(crate) job: &'a WorkflowJob,
    pub(crate) attempts: usize,
    /// Whether one of the attempts failed.
    pub(crate) has_failed: bool,
}

pub(crate) fn newest_of_each(jobs: &[WorkflowJob]) -> Vec<JobOnCommit<'_>> {
    choose_of_each(jobs, |job| job.order())
}

/// The attempt of each job that ended last: what it came to counts until a re-run has ended, too. One that runs for the
/// first time is as it is.
pub(crate) fn last_ended_of_each(jobs: &[WorkflowJob]) -> Vec<JobOnCommit<'_>> {
    let is_open = |state| matches!(state, CiState::Running | CiState::Queued);
    choose_of_each(jobs, |job| (!is_open(job.state), job.order()))
}

/// For each job on each commit, the attempt with the greatest order.
fn choose_of_each<O: Ord>(
    jobs: &[WorkflowJob],
    order: impl Fn(&WorkflowJob) -> O,
) -> Vec<JobOnCommit<'_>> {
    let mut chosen: BTreeMap<(&str, &str, &str), JobOnCommit<'_>> = BTreeMap::new();
    for job in jobs {
        let key = (job.head_sha.as_str(), job.workflow.as_str(), job.name.as_str());
        let has_failed = job.state.is_failure();
        match chosen.get_mut(&key) {
            Some(known) => {
                known.attempts += 1;
                known.has_failed |= has_failed;
                if order(known.job) < order(job) {
                    known.job = job;
                }
            }
            None => drop(chosen.insert(key, JobOnCommit { job, attempts: 1, has_failed })),
        }
    }
    chosen.into_values().collect()
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, schemars::JsonSchema)]
pub(crate) struct JobGroup {
    pub(crate) workflow: String,
    pub(crate) name: String,
}

impl JobGroup {
    pub(crate) fn new(job: &WorkflowJob, is_open: impl Fn(&Self) -> bool) -> Self {
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
