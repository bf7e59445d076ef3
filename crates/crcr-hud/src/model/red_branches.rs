//! Which of a branch's jobs and backends are red now, and since which commit.

use std::collections::{BTreeMap, HashMap};

use crcr_domain::RepoName;
use crcr_domain::ci_data::workflow::{BranchCommit, CiState};
use crcr_results::webhook_tables::{ThingQuery, ThingSelection};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::backend_cells::{backend_cells, is_good};
use super::breakage::ColumnHistory;
use super::commit_jobs::{
    JobGroup, JobOnCommit, branch_jobs, commits, last_ended_of_each, newest_of_each,
};
use crate::context::{Hud, PageError};

/// The newest commits of a branch that are looked at.
const MAX_COMMITS: usize = 15;
const MAX_BRANCHES: usize = 3;
/// Red jobs of a branch that are named.
const MAX_RED_JOBS: usize = 5;
/// Branches that releases or everybody's work depend on.
const TRUNKS: [&str; 4] = ["main", "master", "trunk", "develop"];

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct BranchHealth {
    pub(crate) repository: String,
    pub(crate) branch: String,
    /// The longest red first.
    pub(crate) red: Vec<RedJob>,
    /// How many more are red.
    pub(crate) more: usize,
    /// The newest commit of the branch.
    pub(crate) newest: BranchCommit,
    /// The newest commit on which all jobs and backends ended and none failed, of those that are looked at.
    pub(crate) green: Option<BranchCommit>,
}

/// A job or a backend that failed on the newest commit on which it ended.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct RedJob {
    pub(crate) title: String,
    /// The backend, if it isn't a job of the repository itself.
    pub(crate) backend: Option<String>,
    /// How many commits it failed on since it is red, of those that are looked at.
    pub(crate) commits: usize,
    /// The first of them.
    pub(crate) since: BranchCommit,
    /// Whether there may be an earlier one.
    pub(crate) may_be_older: bool,
    /// A failed job of the newest of them; `None` for a backend.
    pub(crate) job: Option<u64>,
}

/// The branch that everybody's work depends on: the default one, as webhooks of pull requests name it, or else one with
/// a usual name, or else that of the newest push. It is known however many branches were pushed since.
pub(crate) async fn trunk(hud: &Hud, repository: &str) -> Result<Option<String>, PageError> {
    let selection = ThingSelection::Newest { before: Timestamp::MAX, limit: 1 };
    let query = ThingQuery { event: "pull_request", repository, selection };
    let pull = hud.results.current_things(&query).await?.pop();
    let document = pull.and_then(|row| serde_json::from_str::<Value>(&row.document).ok());
    let default = document.and_then(|document| {
        Some(document["pull_request"]["base"]["repo"]["default_branch"].as_str()?.to_owned())
    });
    for name in default.into_iter().chain(TRUNKS.map(str::to_owned)) {
        let selection = ThingSelection::Branch { name: &name, before: Timestamp::MAX, limit: 1 };
        let query = ThingQuery { event: "push", repository, selection };
        if !hud.results.current_things(&query).await?.is_empty() {
            return Ok(Some(name));
        }
    }
    Ok(hud.results.branches("push", repository, 1).await?.pop())
}

/// The branches of a repository that matter most, with what is red on them.
pub(crate) async fn read(hud: &Hud, repo: &RepoName) -> Result<Vec<BranchHealth>, PageError> {
    let mut chosen: Vec<String> = trunk(hud, repo.as_str()).await?.into_iter().collect();
    for name in hud.results.branches("push", repo.as_str(), 50).await? {
        let matters = TRUNKS.contains(&name.as_str()) || name.starts_with("release/");
        if matters && !chosen.contains(&name) && chosen.len() < MAX_BRANCHES {
            chosen.push(name);
        }
    }
    let mut found = vec![];
    for branch in chosen {
        let (mut commits, _) = commits(hud, repo, &branch, Timestamp::MAX).await?;
        commits.truncate(MAX_COMMITS);
        let Some(newest) = commits.first().cloned() else { continue };
        let columns = Columns::read(hud, repo, &branch, &commits).await?;
        let green = columns.newest_green.map(|n| commits[n].clone());
        let mut red = columns.red(&commits);
        red.sort_by(|a, b| b.commits.cmp(&a.commits).then_with(|| a.title.cmp(&b.title)));
        let more = red.len().saturating_sub(MAX_RED_JOBS);
        red.truncate(MAX_RED_JOBS);
        let repository = repo.as_str().to_owned();
        found.push(BranchHealth { repository, branch, red, more, newest, green });
    }
    Ok(found)
}

/// A job or a backend turned red or green on a commit.
#[derive(Debug)]
pub(crate) struct JobTurn {
    pub(crate) title: String,
    pub(crate) commit: BranchCommit,
    pub(crate) is_red: bool,
}

/// How the jobs and backends of a branch turned on its newest commits.
pub(crate) async fn turns(
    hud: &Hud,
    repo: &RepoName,
    branch: &str,
) -> Result<Vec<JobTurn>, PageError> {
    let (commits, _) = commits(hud, repo, branch, Timestamp::MAX).await?;
    if commits.is_empty() {
        return Err(PageError::NotFound(format!("no commit on `{branch}` of {repo} is known")));
    }
    let mut turns = vec![];
    for Column { title, history, .. } in Columns::read(hud, repo, branch, &commits).await?.columns {
        for (n, is_red) in history.changes() {
            let (title, commit) = (title.clone(), commits[n].clone());
            turns.push(JobTurn { title, commit, is_red });
        }
    }
    Ok(turns)
}

/// A job or a backend on the newest commits of a branch.
#[derive(Debug)]
pub(crate) struct ColumnState {
    pub(crate) title: String,
    pub(crate) is_red: bool,
    /// Whether it passed on one of those commits.
    pub(crate) was_green: bool,
    /// The first of the newest commits on which it is that.
    pub(crate) since: BranchCommit,
}

/// What is red and what is green on a branch now.
pub(crate) async fn states(
    hud: &Hud,
    repo: &RepoName,
    branch: &str,
) -> Result<Vec<ColumnState>, PageError> {
    let (commits, _) = commits(hud, repo, branch, Timestamp::MAX).await?;
    if commits.is_empty() {
        return Err(PageError::NotFound(format!("no commit on `{branch}` of {repo} is known")));
    }
    let columns = Columns::read(hud, repo, branch, &commits).await?.columns;
    let state = |Column { title, history, .. }: Column| {
        let broken = history.breakage();
        let since = match &broken {
            Some(broken) => broken.first,
            None => history.turns().take_while(|(_, is_red)| !*is_red).last()?.0,
        };
        let was_green = broken.as_ref().is_some_and(|broken| broken.is_first)
            || history.turns().any(|(_, is_red)| !is_red);
        let (is_red, since) = (broken.is_some(), commits[since].clone());
        Some(ColumnState { title, is_red, was_green, since })
    };
    Ok(columns.into_iter().filter_map(state).collect())
}

/// A group of jobs, or a backend.
struct Column {
    title: String,
    backend: Option<String>,
    history: ColumnHistory,
}

struct Columns {
    columns: Vec<Column>,
    /// The place of the newest commit on which something passed, nothing failed and nothing runs.
    newest_green: Option<usize>,
    /// Whether the jobs of all commits were read.
    is_whole: bool,
}

impl Columns {
    /// `commits` are sorted, the newest first.
    async fn read(
        hud: &Hud,
        repo: &RepoName,
        branch: &str,
        commits: &[BranchCommit],
    ) -> Result<Self, PageError> {
        let (jobs, read) = branch_jobs(hud, repo, branch, commits).await?;
        let is_whole = read == commits.len();
        let (backends, reported) = backend_cells(hud, repo, commits, |_| true).await?;
        let places = || commits.iter().enumerate();
        let place_of: HashMap<&str, usize> =
            places().map(|(n, commit)| (commit.sha.as_str(), n)).collect();
        let mut groups: BTreeMap<JobGroup, ColumnHistory> = BTreeMap::new();
        // By commit: whether something passed, and whether nothing else but that happened.
        let mut green: HashMap<&str, (bool, bool)> = HashMap::new();
        let (newest, ended) = (newest_of_each(&jobs), last_ended_of_each(&jobs));
        for JobOnCommit { job, .. } in &ended {
            let Some(place) = place_of.get(job.head_sha.as_str()) else { continue };
            let history = groups.entry(JobGroup::new(job, |_| false)).or_default();
            history.add(*place, &job.name, job.state, job.id);
        }
        for job in &newest {
            let (sha, state) = (job.job.head_sha.as_str(), job.job.state);
            let (passed, only) = green.entry(sha).or_insert((false, true));
            *passed |= state == CiState::Passed;
            *only &= matches!(state, CiState::Passed | CiState::Neutral);
        }
        for (sha, cells) in &reported {
            let (passed, only) = green.entry(sha).or_insert((false, true));
            for cell in cells.iter().flatten() {
                *passed |= cell.is_red() == Some(false);
                *only &= cell.outcome.is_some_and(is_good);
            }
        }
        let newest_green =
            commits.iter().position(|commit| green.get(commit.sha.as_str()) == Some(&(true, true)));
        let in_tree = groups.into_iter().map(|(group, history)| Column {
            title: group.title(),
            backend: None,
            history,
        });
        let out_of_tree = backends.iter().enumerate().map(|(at, backend)| {
            let turns = places()
                .filter_map(|(n, commit)| Some((n, reported.get(&commit.sha)?[at]?.was_red()?)));
            let (title, backend) = (backend.repo.clone(), Some(backend.repo.clone()));
            Column { title, backend, history: ColumnHistory::of_backend(turns) }
        });
        Ok(Self { columns: in_tree.chain(out_of_tree).collect(), newest_green, is_whole })
    }

    fn red(self, commits: &[BranchCommit]) -> Vec<RedJob> {
        let is_whole = self.is_whole;
        let red = self.columns.into_iter().filter_map(|Column { title, backend, history }| {
            let broken = history.breakage()?;
            Some(RedJob {
                title,
                backend,
                commits: broken.commits,
                since: commits[broken.first].clone(),
                may_be_older: !broken.is_first && (commits.len() == MAX_COMMITS || !is_whole),
                job: broken.newest_job,
            })
        });
        red.collect()
    }
}
