//! The fields of GitHub's payloads that are used. Its schemas call many of them nullable.

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::is_sha;

#[derive(Deserialize)]
pub(super) struct Repository {
    pub(super) full_name: String,
    pub(super) default_branch: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct PullRequestEvent {
    pub(super) action: String,
    pub(super) repository: Repository,
    pub(super) pull_request: PullRequest,
    pub(super) before: Option<String>,
    pub(super) label: Option<Label>,
    pub(super) changes: Option<PullRequestChanges>,
}

#[derive(Deserialize)]
pub(super) struct PullRequestChanges {
    pub(super) base: Option<IgnoredAny>,
}

#[derive(Deserialize)]
pub(super) struct PullRequest {
    pub(super) number: u64,
    pub(super) title: Option<String>,
    pub(super) updated_at: Timestamp,
    pub(super) head: Head,
    pub(super) base: Option<Head>,
    pub(super) user: Option<User>,
    pub(super) labels: Option<Vec<Label>>,
    pub(super) state: Option<String>,
    pub(super) merged: Option<bool>,
    pub(super) draft: Option<bool>,
    pub(super) author_association: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct User {
    pub(super) login: String,
}

#[derive(Deserialize)]
pub(super) struct MergeGroupEvent {
    pub(super) action: String,
    pub(super) repository: Repository,
    pub(super) merge_group: MergeGroup,
}

#[derive(Deserialize)]
pub(super) struct MergeGroup {
    pub(super) head_sha: String,
    pub(super) base_sha: Option<String>,
    pub(super) head_commit: Option<HeadCommit>,
}

#[derive(Deserialize)]
pub(super) struct HeadCommit {
    pub(super) id: Option<String>,
    pub(super) message: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct Head {
    pub(super) sha: String,
    #[serde(rename = "ref")]
    pub(super) git_ref: Option<String>,
    /// `None` when the fork was deleted.
    pub(super) repo: Option<HeadRepository>,
}

#[derive(Deserialize)]
pub(super) struct HeadRepository {
    pub(super) full_name: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct Label {
    pub(super) name: String,
}

#[derive(Deserialize)]
pub(super) struct PushEvent {
    #[serde(rename = "ref")]
    pub(super) git_ref: String,
    pub(super) after: String,
    pub(super) deleted: Option<bool>,
    pub(super) head_commit: Option<HeadCommit>,
    pub(super) repository: Repository,
}

impl PushEvent {
    /// The commit that was pushed. For an annotated tag, `after` is the object of the tag.
    pub(super) fn commit(&self) -> &str {
        let head = self.head_commit.as_ref().and_then(|commit| commit.id.as_deref());
        let is_tag = self.git_ref.starts_with("refs/tags/");
        head.filter(|id| is_tag && is_sha(id)).unwrap_or(&self.after)
    }
}

#[derive(Deserialize)]
pub(super) struct CheckRunEvent {
    pub(super) action: String,
    pub(super) repository: Repository,
    pub(super) check_run: CheckRun,
}

#[derive(Deserialize)]
pub(super) struct CheckRun {
    pub(super) name: String,
    pub(super) external_id: Option<String>,
    pub(super) head_sha: String,
}

#[derive(Deserialize)]
pub(super) struct CheckSuiteEvent {
    pub(super) action: String,
    pub(super) repository: Repository,
    pub(super) check_suite: CheckSuite,
}

#[derive(Deserialize)]
pub(super) struct CheckSuite {
    pub(super) id: u64,
    pub(super) head_sha: String,
}
