//! Since which commit the default branch fails as a job of it does.

use std::collections::BTreeSet;

use crcr_domain::RepoName;
use crcr_domain::ci_data::workflow::{BranchCommit, CiState};
use maud::{Markup, html};
use serde::Serialize;

use super::JobModel;
use crate::address;
use crate::context::{Hud, PageError};
use crate::layout::{ago, short_sha};
use crate::model::commit_jobs::{branch_jobs, commits, last_ended_of_each};

/// Commits whose jobs are read at once. Most chains of failures are shorter.
const COMMITS_AT_ONCE: usize = 10;

/// The oldest commit on which the job failed for the same cause, without having passed since.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub(crate) struct AlikeSince {
    pub(crate) commit: BranchCommit,
    /// The job that failed on it.
    pub(crate) job: u64,
    /// Whether an older commit is known on which it passed.
    pub(crate) is_first: bool,
}

/// The failures of the job on the commits of its branch before its own, until it passed.
struct EarlierFailures {
    /// Commits and jobs, the newest first.
    failed: Vec<(BranchCommit, u64)>,
    has_passed: bool,
}

/// `None` if no earlier commit failed for the same cause since the job passed last.
pub(crate) async fn since(
    hud: &Hud,
    repo: &RepoName,
    model: &JobModel,
) -> Result<Option<AlikeSince>, PageError> {
    let Some(log) = &model.log else { return Ok(None) };
    let EarlierFailures { failed, has_passed } = earlier_failures(hud, repo, model).await?;
    let ids: Vec<u64> = failed.iter().map(|(_, job)| *job).collect();
    if ids.is_empty() {
        return Ok(None);
    }
    let (logs, cause) = (hud.results.job_logs(repo.as_str(), &ids).await?, log.cause());
    let alike: BTreeSet<u64> =
        logs.iter().filter(|log| log.cause() == cause).map(|log| log.job.job_id).collect();
    let first = failed.into_iter().rev().find(|(_, job)| alike.contains(job));
    Ok(first.map(|(commit, job)| AlikeSince { commit, job, is_first: has_passed }))
}

async fn earlier_failures(
    hud: &Hud,
    repo: &RepoName,
    model: &JobModel,
) -> Result<EarlierFailures, PageError> {
    let mut found = EarlierFailures { failed: vec![], has_passed: false };
    let (Some(own), Some(name)) = (&model.commit, model.name()) else { return Ok(found) };
    let branch = model.branch();
    let (mut before, _) = commits(hud, repo, branch, own.at).await?;
    // A run may have been created before its push was heard of.
    before.retain(|commit| commit.at < own.at && commit.sha != own.sha);
    for part in before.chunks(COMMITS_AT_ONCE) {
        let (jobs, _) = branch_jobs(hud, repo, branch, part).await?;
        let ended = last_ended_of_each(&jobs);
        for commit in part {
            let of_commit = ended
                .iter()
                .map(|ended| ended.job)
                .find(|job| job.head_sha == commit.sha && (&*job.workflow, &*job.name) == name);
            match of_commit {
                Some(job) if job.state == CiState::Passed => {
                    found.has_passed = true;
                    return Ok(found);
                }
                Some(job) if job.state.is_failure() => found.failed.push((commit.clone(), job.id)),
                _ => {}
            }
        }
    }
    Ok(found)
}

pub(crate) fn sentence(model: &JobModel) -> Markup {
    html! { @if let Some(AlikeSince { commit, is_first, .. }) = &model.alike_since {
        p {
            strong { "Not new here" } ": " bdi { (model.branch()) } " first failed alike at "
            @if !is_first { "or before " }
            a href=(address::commit(&model.repository, &commit.sha)) { code { (short_sha(&commit.sha)) } }
            @if !commit.title.is_empty() { " " bdi { (commit.title) } }
            @if !commit.author.is_empty() { " by " bdi { (commit.author) } }
            " (" (ago(commit.at)) ")."
        }
    } }
}
