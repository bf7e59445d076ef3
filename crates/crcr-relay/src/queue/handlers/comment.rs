//! Mentions the oncalls of a repository on a pull request, once for each pull request and repository.

use std::fmt::Write as _;

use crcr_domain::RepoName;
use crcr_domain::checks::check_run::code;
use crcr_github::GithubError;
use crcr_store::WriteBatch;

use crate::queue::task_kind::{TaskDone, TaskError};
use crate::relay::Relay;
use crate::state_records;

/// Does nothing if the relay, or the deployed bot with the same marker, has commented already.
pub async fn run(
    relay: &Relay,
    number: u64,
    repo: &RepoName,
    check_run: &str,
) -> Result<TaskDone, TaskError> {
    let upstream = &relay.config.upstream;
    let key = state_records::oncall_comment_key(upstream, number, repo);
    let known = relay.read_record::<bool>(key).await?;
    if known.value == Some(true) {
        return Ok(TaskDone::Finished);
    }
    let allowlist = super::allowlist(relay)?;
    let Some(entry) = allowlist.get(repo).filter(|entry| !entry.oncalls.is_empty()) else {
        return Ok(TaskDone::Finished);
    };
    let marker = format!("<!-- crcr-oncall:{repo} -->");
    let mention = async || -> Result<(), GithubError> {
        let comments = relay.app.comments(upstream.as_str(), number).await?;
        // Anybody may have another App repeat the marker within its text.
        let is_mention = |body: &str| body.trim_start().starts_with(&marker);
        if comments.iter().any(|comment| comment.is_by_app() && is_mention(&comment.body)) {
            return Ok(());
        }
        let mut text = format!("{marker}\n");
        for oncall in &entry.oncalls {
            let _ = write!(text, "@{oncall} ");
        }
        let _ = write!(
            text,
            "{} failed in {} on this pull request. Please have a look.",
            code(check_run),
            code(repo.as_str())
        );
        if let Some(page) = relay.config.pull_request_page(number) {
            let _ = write!(text, " All results: {page}");
        }
        relay.app.create_comment(upstream.as_str(), number, &text).await.map(drop)
    };
    if let Err(error) = mention().await {
        if !nobody_can_comment(&error) {
            return Err(error.into());
        }
        tracing::info!(number, %error, "the oncalls aren't mentioned");
        return Ok(TaskDone::Finished);
    }
    let mut batch = WriteBatch::default();
    batch.update(&known, &true, relay.expiry());
    relay.commit(batch).await?;
    Ok(TaskDone::Finished)
}

/// The pull request is locked, or hidden because GitHub takes its author for a spammer.
fn nobody_can_comment(error: &GithubError) -> bool {
    match error {
        GithubError::NotFound(_) => true,
        GithubError::Forbidden(why) => why.contains("locked"),
        _ => false,
    }
}
