//! Which of a branch's jobs are red now, and since which commit.

use std::collections::{BTreeMap, HashMap};

use crcr_domain::RepoName;
use crcr_domain::ci_data::workflow::{BranchCommit, CiState};
use jiff::Timestamp;
use serde::Serialize;

use crate::context::{Hud, PageError};
use crate::pages::branch::{JobGroup, commits, jobs_of_commits, newest_of_each};

/// The newest commits of a branch that are looked at.
const MAX_COMMITS: usize = 15;
/// Commits whose jobs are read at once, until there are so many jobs.
const COMMITS_AT_ONCE: usize = 5;
const MAX_JOBS_READ: usize = 12_000;
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
}

/// A job that failed on the newest commit on which it ended.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct RedJob {
    pub(crate) title: String,
    /// How many commits in a row it failed on, of those that are looked at.
    pub(crate) commits: usize,
    /// The first of them.
    pub(crate) since: BranchCommit,
    /// Whether there may be an earlier one.
    pub(crate) may_be_older: bool,
    /// A failed job of the newest of them.
    pub(crate) job: u64,
}

/// The branches of a repository that matter most, with what is red on them.
pub(crate) async fn read(hud: &Hud, repo: &RepoName) -> Result<Vec<BranchHealth>, PageError> {
    let branches = hud.results.branches("push", repo.as_str(), 50).await?;
    let matters = |name: &&String| TRUNKS.contains(&name.as_str()) || name.starts_with("release/");
    let mut chosen: Vec<&String> = branches.iter().filter(matters).take(MAX_BRANCHES).collect();
    if chosen.is_empty() {
        chosen.extend(branches.first());
    }
    let mut found = vec![];
    for branch in chosen {
        let (mut commits, _) = commits(hud, repo, branch, Timestamp::MAX).await?;
        commits.truncate(MAX_COMMITS);
        let Some(newest) = commits.first().cloned() else { continue };
        let mut red = red_jobs(hud, repo, branch, &commits).await?;
        red.sort_by(|a, b| b.commits.cmp(&a.commits).then_with(|| a.title.cmp(&b.title)));
        let more = red.len().saturating_sub(MAX_RED_JOBS);
        red.truncate(MAX_RED_JOBS);
        let (repository, branch) = (repo.as_str().to_owned(), branch.clone());
        found.push(BranchHealth { repository, branch, red, more, newest });
    }
    Ok(found)
}

/// A job turned red or green on a commit.
#[derive(Debug)]
pub(crate) struct JobTurn {
    pub(crate) title: String,
    pub(crate) commit: BranchCommit,
    pub(crate) is_red: bool,
}

/// How the jobs of a branch turned on its newest commits.
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
    for (group, states) in ended_groups(hud, repo, branch, &commits).await? {
        let mut was_red = None;
        for (n, is_red, _) in states.into_iter().rev() {
            // A job that is red from its first known commit on didn't turn there.
            if was_red.is_some_and(|was_red| was_red != is_red) {
                turns.push(JobTurn { title: group.title(), commit: commits[n].clone(), is_red });
            }
            was_red = Some(is_red);
        }
    }
    Ok(turns)
}

/// `commits` are sorted, the newest first.
async fn red_jobs(
    hud: &Hud,
    repo: &RepoName,
    branch: &str,
    commits: &[BranchCommit],
) -> Result<Vec<RedJob>, PageError> {
    let groups = ended_groups(hud, repo, branch, commits).await?;
    let red = groups.into_iter().filter_map(|(group, states)| {
        let failed: Vec<_> = states.iter().take_while(|(_, is_red, _)| *is_red).collect();
        let ((_, _, job), (first, ..)) = (failed.first()?, failed.last()?);
        Some(RedJob {
            title: group.title(),
            commits: failed.len(),
            since: commits[*first].clone(),
            may_be_older: failed.len() == states.len() && commits.len() == MAX_COMMITS,
            job: *job,
        })
    });
    Ok(red.collect())
}

/// For each group, the commits on which it ended, by their places: whether it failed, and a job in that state.
type EndedGroup = (JobGroup, Vec<(usize, bool, u64)>);

async fn ended_groups(
    hud: &Hud,
    repo: &RepoName,
    branch: &str,
    commits: &[BranchCommit],
) -> Result<Vec<EndedGroup>, PageError> {
    let shas: Vec<String> = commits.iter().map(|commit| commit.sha.clone()).collect();
    let mut jobs = vec![];
    for part in shas.chunks(COMMITS_AT_ONCE) {
        jobs.extend(jobs_of_commits(hud, repo, part).await?);
        if jobs.len() > MAX_JOBS_READ {
            break;
        }
    }
    jobs.retain(|job| job.branch == branch);
    // The worst state of each group on each commit, with a job in it.
    let mut groups: BTreeMap<JobGroup, HashMap<&str, (CiState, u64)>> = BTreeMap::new();
    let newest = newest_of_each(&jobs);
    for job in &newest {
        let states = groups.entry(JobGroup::new(job.job, |_| false)).or_default();
        let found = (job.job.state, job.job.id);
        let worst = states.entry(job.job.head_sha.as_str()).or_insert(found);
        *worst = (*worst).min(found);
    }
    let ended = |states: HashMap<&str, (CiState, u64)>| -> Vec<(usize, bool, u64)> {
        let places = commits.iter().enumerate();
        let found = places.filter_map(|(n, commit)| {
            let (state, job) = states.get(commit.sha.as_str())?;
            (state.is_failure() || *state == CiState::Passed).then_some((
                n,
                state.is_failure(),
                *job,
            ))
        });
        found.collect()
    };
    Ok(groups.into_iter().map(|(group, states)| (group, ended(states))).collect())
}
