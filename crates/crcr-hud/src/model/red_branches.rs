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
const MAX_BRANCHES: usize = 3;
/// Red jobs of a branch that are named.
const MAX_JOBS: usize = 5;
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
        let more = red.len().saturating_sub(MAX_JOBS);
        red.truncate(MAX_JOBS);
        let (repository, branch) = (repo.as_str().to_owned(), branch.clone());
        found.push(BranchHealth { repository, branch, red, more, newest });
    }
    Ok(found)
}

/// `commits` are sorted, the newest first.
async fn red_jobs(
    hud: &Hud,
    repo: &RepoName,
    branch: &str,
    commits: &[BranchCommit],
) -> Result<Vec<RedJob>, PageError> {
    let shas: Vec<String> = commits.iter().map(|commit| commit.sha.clone()).collect();
    let mut jobs = jobs_of_commits(hud, repo, &shas).await?;
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
    let ended = |state: CiState| state.is_failure() || state == CiState::Passed;
    let red = groups.iter().filter_map(|(group, states)| {
        let states: Vec<(usize, CiState, u64)> = commits
            .iter()
            .enumerate()
            .filter_map(|(n, commit)| {
                let (state, job) = states.get(commit.sha.as_str())?;
                ended(*state).then_some((n, *state, *job))
            })
            .collect();
        let failed = states.iter().take_while(|(_, state, _)| state.is_failure());
        let failed: Vec<_> = failed.collect();
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
