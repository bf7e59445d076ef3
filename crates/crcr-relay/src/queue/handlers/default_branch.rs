//! Notices that a backend's default branch was renamed. What is known of a repository is remembered for almost an hour,
//! and in this time every report would seem to come from another branch.

use crcr_domain::checks::proof::{MissingProof, ProofStatus, ReportOrigin};
use crcr_domain::protocol::dispatch::Dispatch;
use crcr_github::GithubError;
use crcr_store::{Versioned, WriteBatch};
use jiff::Timestamp;

use super::head::proof;
use crate::limits;
use crate::queue::task_kind::TaskError;
use crate::relay::Relay;
use crate::state_records::{self, JobRecord};

/// The new name, if reports lack nothing but the branch and GitHub says that theirs is the default one now.
pub(crate) async fn renamed(
    relay: &Relay,
    dispatch: &Dispatch,
    jobs: &[JobRecord],
) -> Result<Option<String>, TaskError> {
    let branches: Vec<&str> = jobs
        .iter()
        .filter(|job| proof(dispatch, job) == ProofStatus::Missing(MissingProof::Branch))
        .filter_map(|job| match &job.provenance.origin {
            ReportOrigin::GitHub { git_ref, .. } => git_ref.as_deref(),
            ReportOrigin::MappedPipeline => None,
        })
        .filter_map(|name| name.strip_prefix("refs/heads/"))
        .collect();
    if branches.is_empty() || !super::head::has_check_runs(relay, dispatch) {
        return Ok(None);
    }
    let key = state_records::branch_look_key(&dispatch.repo);
    let last: Versioned<(Timestamp, String)> = relay.read_record(key).await?;
    let recent = last.value.as_ref().filter(|(at, _)| relay.is_recent(*at, limits::BRANCH_LOOK));
    let branch = match recent {
        Some((_, branch)) => branch.clone(),
        None => {
            relay.app.forget(dispatch.repo.as_str());
            let found = match relay.app.dispatch_target(dispatch.repo.as_str()).await {
                Ok(found) => found,
                Err(error) if error.is_transient() => return Err(error.into()),
                Err(error @ GithubError::Unauthorized(_)) => return Err(error.into()),
                Err(_) => return Ok(None),
            };
            if dispatch.repository_id.is_some_and(|sent_to| sent_to != found.repository_id) {
                return Ok(None);
            }
            let mut batch = WriteBatch::default();
            batch.set(last.key, &(relay.now(), &found.default_branch), relay.expiry());
            relay.commit(batch).await?;
            found.default_branch
        }
    };
    Ok(Some(branch).filter(|branch| branches.contains(&branch.as_str())))
}
