//! The fields of GitHub's payloads that are used. Its schemas call many of them nullable.

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::is_sha;

#[derive(Deserialize)]
pub(crate) struct Repository {
    pub(crate) full_name: String,
    pub(crate) default_branch: Option<String>,
}

#[derive(Deserialize)]
pub(crate) struct PullRequestEvent {
    pub(crate) action: String,
    pub(crate) repository: Repository,
    pub(crate) pull_request: PullRequest,
    pub(crate) before: Option<String>,
    pub(crate) label: Option<Label>,
    pub(crate) changes: Option<PullRequestChanges>,
}

#[derive(Deserialize)]
pub(crate) struct PullRequestChanges {
    pub(crate) base: Option<IgnoredAny>,
}

#[derive(Deserialize)]
pub(crate) struct PullRequest {
    pub(crate) number: u64,
    pub(crate) title: Option<String>,
    pub(crate) updated_at: Timestamp,
    pub(crate) head: Head,
    pub(crate) base: Option<Head>,
    pub(crate) user: Option<User>,
    pub(crate) labels: Option<Vec<Label>>,
    pub(crate) state: Option<String>,
    pub(crate) merged: Option<bool>,
    pub(crate) draft: Option<bool>,
    pub(crate) author_association: Option<String>,
}

#[derive(Deserialize)]
pub(crate) struct User {
    pub(crate) login: String,
}

#[derive(Deserialize)]
pub(crate) struct MergeGroupEvent {
    pub(crate) action: String,
    pub(crate) repository: Repository,
    pub(crate) merge_group: MergeGroup,
}

#[derive(Deserialize)]
pub(crate) struct MergeGroup {
    pub(crate) head_sha: String,
    pub(crate) base_sha: Option<String>,
    pub(crate) head_commit: Option<HeadCommit>,
}

#[derive(Deserialize)]
pub(crate) struct HeadCommit {
    pub(crate) id: Option<String>,
    pub(crate) message: Option<String>,
}

#[derive(Deserialize)]
pub(crate) struct Head {
    pub(crate) sha: String,
    #[serde(rename = "ref")]
    pub(crate) git_ref: Option<String>,
    /// `None` when the fork was deleted.
    pub(crate) repo: Option<HeadRepository>,
}

#[derive(Deserialize)]
pub(crate) struct HeadRepository {
    pub(crate) full_name: Option<String>,
}

#[derive(Deserialize)]
pub(crate) struct Label {
    pub(crate) name: String,
}

#[derive(Deserialize)]
pub(crate) struct PushEvent {
    #[serde(rename = "ref")]
    pub(crate) git_ref: String,
    pub(crate) after: String,
    pub(crate) deleted: Option<bool>,
    pub(crate) head_commit: Option<HeadCommit>,
    pub(crate) repository: Repository,
}

impl PushEvent {
    /// The commit that was pushed. For an annotated tag, `after` is the object of the tag.
    pub(crate) fn commit(&self) -> &str {
        let head = self.head_commit.as_ref().and_then(|commit| commit.id.as_deref());
        let is_tag = self.git_ref.starts_with("refs/tags/");
        head.filter(|id| is_tag && is_sha(id)).unwrap_or(&self.after)
    }
}

#[derive(Deserialize)]
pub(crate) struct CheckRunEvent {
    pub(crate) action: String,
    pub(crate) repository: Repository,
    pub(crate) check_run: CheckRun,
}

#[derive(Deserialize)]
pub(crate) struct CheckRun {
    pub(crate) name: String,
    pub(crate) external_id: Option<String>,
    pub(crate) head_sha: String,
}

#[derive(Deserialize)]
pub(crate) struct CheckSuiteEvent {
    pub(crate) action: String,
    pub(crate) repository: Repository,
    pub(crate) check_suite: CheckSuite,
}

#[derive(Deserialize)]
pub(crate) struct CheckSuite {
    pub(crate) id: u64,
    pub(crate) head_sha: String,
}
