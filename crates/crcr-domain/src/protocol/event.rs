//! Upstream events. The webhooks that cause dispatches are converted here; the few that only note something are read where
//! that is noted.
//!
//! Protocol: <https://docs.github.com/en/webhooks/webhook-events-and-payloads>

mod raw;
#[cfg(test)]
mod tests;

use std::fmt;

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The name of the event that a dispatch or a fact is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", from = "String")]
pub enum EventName {
    PullRequest,
    Push,
    /// A merge queue's group of pull requests.
    MergeGroup,
    /// A pull request whose commits have landed upstream.
    Landed,
    /// A nightly run that the downstream repository starts itself.
    Nightly,
    /// A periodic run that the downstream repository starts itself.
    Periodic,
    /// A commit of upstream that the relay asked a backend to run, to explain a failure. It goes out as a push.
    Probe,
    /// An event that this relay never dispatches, in results that another relay forwarded.
    Other(Box<str>),
}

impl EventName {
    pub fn as_str(&self) -> &str {
        match self {
            Self::PullRequest => "pull_request",
            Self::Push => "push",
            Self::MergeGroup => "merge_group",
            Self::Landed => "landed",
            Self::Nightly => "nightly",
            Self::Periodic => "periodic",
            Self::Probe => "probe",
            Self::Other(name) => name,
        }
    }

    /// The `event_type` of its dispatches.
    pub fn event_type(&self) -> &str {
        if *self == Self::Probe { Self::Push.as_str() } else { self.as_str() }
    }

    /// Whether a commit without a pull request is in upstream's history. That of a merge group has pull requests in it
    /// that may be at fault, and may never get there.
    pub fn is_of_branch(&self) -> bool {
        matches!(self, Self::Push | Self::Nightly | Self::Periodic | Self::Probe)
    }

    /// Whether the downstream repository starts the run itself and only reports it.
    pub fn is_self_reported(&self) -> bool {
        matches!(self, Self::Nightly | Self::Periodic)
    }
}

impl From<&str> for EventName {
    fn from(name: &str) -> Self {
        match name {
            "pull_request" => Self::PullRequest,
            "push" => Self::Push,
            "merge_group" => Self::MergeGroup,
            "landed" => Self::Landed,
            "nightly" => Self::Nightly,
            "periodic" => Self::Periodic,
            "probe" => Self::Probe,
            other => Self::Other(other.into()),
        }
    }
}

impl From<String> for EventName {
    fn from(name: String) -> Self {
        Self::from(name.as_str())
    }
}

impl From<EventName> for String {
    fn from(name: EventName) -> Self {
        name.as_str().to_owned()
    }
}

impl fmt::Display for EventName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// An upstream webhook event that the relay acts on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpstreamEvent {
    PullRequest(PullRequest),
    /// Commits were pushed to a ref that the relay follows.
    Push(Push),
    /// A merge queue requests checks for a group of pull requests.
    MergeGroup(MergeGroup),
    /// A re-run of one check run was requested.
    CheckRunRerequested(CheckRunRerequested),
    /// A re-run of all checks of a commit was requested.
    CheckSuiteRerequested(CheckSuiteRerequested),
}

/// A pull request at the time of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullRequest {
    pub action: PullRequestAction,
    pub number: u64,
    pub author: Option<String>,
    /// The label that was set or removed, for `labeled` and `unlabeled`.
    pub label: Option<String>,
    pub head_sha: String,
    /// The previous head, for `synchronize`.
    pub before: Option<String>,
    /// The head of the target branch, if the event contains it.
    pub base_sha: Option<String>,
    /// The name of the target branch, if the event contains it.
    pub base_branch: Option<String>,
    /// Orders the events of a pull request regardless of arrival order.
    pub updated_at: Timestamp,
    pub labels: Vec<String>,
    /// Whether its commits have landed: it was merged, or it is closed and has the label that a merge bot
    /// sets instead of merging on GitHub.
    pub has_landed: bool,
    pub is_draft: bool,
    /// Whether the author has contributed to upstream before.
    pub is_known_author: bool,
    /// What its author has chosen and a downstream workflow may repeat in the title of its runs, a line each: the title,
    /// the branch, the login and the fork.
    pub author_texts: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PullRequestAction {
    Opened,
    Reopened,
    /// A new head was pushed.
    Synchronize,
    /// It isn't a draft any more. Only those backends get it that take no drafts, or whose check blocks the merge.
    ReadyForReview,
    /// GitHub's `edited`, with another base branch, so other files count as changed. Only those backends get it that
    /// were left out for their paths, or whose check blocks the merge into that branch.
    BaseChanged,
    Closed,
    /// Got a label with the relay's prefix.
    Labeled,
    /// Lost a label with the relay's prefix.
    Unlabeled,
}

impl PullRequestAction {
    /// Whether the event is dispatched to downstream repositories.
    pub fn dispatches(self) -> bool {
        !matches!(self, Self::Labeled | Self::Unlabeled)
    }
}

/// A merge queue's group of pull requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergeGroup {
    /// The merge commit of the group, on a branch of the queue. Its checks are required on this commit.
    pub head_sha: String,
    /// The commit that the group is merged onto.
    pub base_sha: Option<String>,
    /// The first lines of its message, which has the title of a pull request: [`PullRequest::author_texts`].
    pub author_texts: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Push {
    /// The whole name of a branch or a tag: `refs/heads/…` or `refs/tags/…`.
    pub git_ref: String,
    pub head_sha: String,
    /// The first lines of its message, which the author of a pull request has written: [`PullRequest::author_texts`].
    pub author_texts: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckRunRerequested {
    pub name: String,
    /// Empty if the check run has none.
    pub external_id: String,
    pub head_sha: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckSuiteRerequested {
    pub id: u64,
    pub head_sha: String,
}

/// Which webhook events the relay acts on.
#[derive(Debug, Clone)]
pub struct EventFilter {
    /// `owner/repo` of the upstream repository, compared ignoring case.
    pub upstream: String,
    /// Patterns of refs whose pushes are dispatched; `*` matches any text, and `refs/heads/` may be left
    /// out. Empty: only the default branch. The branches of the merge queue match only a pattern that names them.
    pub push_refs: Vec<String>,
    /// Prefix of the labels that request check runs, such as `ciflow/crcr/`.
    pub label_prefix: String,
    /// Label of closed pull requests that have landed, compared ignoring case.
    pub landed_label: String,
}

/// Why a webhook body is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    #[error("Invalid JSON body")]
    NotJson,
    #[error("Invalid JSON body: expected an object")]
    NotAnObject,
    /// GitHub's other content type for webhooks.
    #[error(
        "Invalid JSON body: it is a form; choose the content type `application/json` in the App's webhook settings"
    )]
    Form,
    /// A required field is missing or has the wrong type.
    #[error("Invalid `{event}` event: {reason}")]
    Shape { event: String, reason: String },
}

/// Parses a webhook body. `Ok(None)`: a valid event that the relay doesn't act on.
///
/// Validates every field that is used later; ignores unknown fields.
pub fn read(
    event: &str,
    body: &[u8],
    filter: &EventFilter,
) -> Result<Option<UpstreamEvent>, EventError> {
    // Fields that aren't read here are dispatched, and serde_json skips them without looking at their text.
    std::str::from_utf8(body).map_err(|_| EventError::NotJson)?;
    if body.starts_with(b"payload=") {
        return Err(EventError::Form);
    }
    if body.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
        serde_json::from_slice::<serde::de::IgnoredAny>(body).map_err(|_| EventError::NotJson)?;
        return Err(EventError::NotAnObject);
    }
    match event {
        "pull_request" => {
            let raw: raw::PullRequestEvent = parse(event, body)?;
            Ok(if filter.is_upstream(&raw.repository.full_name) {
                pull_request(raw, filter)?
            } else {
                None
            })
        }
        "push" => {
            let raw: raw::PushEvent = parse(event, body)?;
            Ok(Some(raw).filter(|raw| filter.matches_push(raw)).map(|raw| {
                let head_sha = raw.commit().to_owned();
                let author_texts = message_texts(raw.head_commit);
                UpstreamEvent::Push(Push { git_ref: raw.git_ref, head_sha, author_texts })
            }))
        }
        "merge_group" => {
            let raw: raw::MergeGroupEvent = parse(event, body)?;
            let is_relevant =
                raw.action == "checks_requested" && filter.is_upstream(&raw.repository.full_name);
            let group = raw.merge_group;
            if is_relevant && !is_sha(&group.head_sha) {
                return Err(not_a_sha(event, "merge_group.head_sha"));
            }
            let base_sha = group.base_sha.filter(|sha| is_sha(sha));
            let author_texts = message_texts(group.head_commit);
            let group = MergeGroup { head_sha: group.head_sha, base_sha, author_texts };
            Ok(is_relevant.then_some(UpstreamEvent::MergeGroup(group)))
        }
        "check_run" => {
            let raw: raw::CheckRunEvent = parse(event, body)?;
            let is_relevant =
                raw.action == "rerequested" && filter.is_upstream(&raw.repository.full_name);
            Ok(is_relevant.then(|| {
                UpstreamEvent::CheckRunRerequested(CheckRunRerequested {
                    name: raw.check_run.name,
                    external_id: raw.check_run.external_id.unwrap_or_default(),
                    head_sha: raw.check_run.head_sha,
                })
            }))
        }
        "check_suite" => {
            let raw: raw::CheckSuiteEvent = parse(event, body)?;
            let is_relevant =
                raw.action == "rerequested" && filter.is_upstream(&raw.repository.full_name);
            let suite = raw.check_suite;
            let event = CheckSuiteRerequested { id: suite.id, head_sha: suite.head_sha };
            Ok(is_relevant.then_some(UpstreamEvent::CheckSuiteRerequested(event)))
        }
        _ => {
            serde_json::from_slice::<serde::de::IgnoredAny>(body)
                .map_err(|_| EventError::NotJson)?;
            Ok(None)
        }
    }
}

/// Whether `text` is a commit id: 40 or 64 hexadecimal digits.
pub fn is_sha(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The names of the branches of GitHub's merge queue begin with this.
const MERGE_QUEUE: &str = "gh-readonly-queue/";

impl EventFilter {
    fn is_upstream(&self, name: &str) -> bool {
        self.upstream.eq_ignore_ascii_case(name)
    }

    /// Whether a label has the prefix of those that request check runs.
    pub fn asks_for_check_runs(&self, label: &str) -> bool {
        let start = label.get(..self.label_prefix.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(&self.label_prefix))
    }

    fn is_landed_label(&self, name: &str) -> bool {
        self.landed_label.eq_ignore_ascii_case(name)
    }

    /// The ref is followed and wasn't deleted.
    fn matches_push(&self, push: &raw::PushEvent) -> bool {
        let branch = push.git_ref.strip_prefix("refs/heads/");
        let is_of_queue = branch.is_some_and(|name| name.starts_with(MERGE_QUEUE));
        let matches = |pattern: &String| {
            let short = pattern.strip_prefix("refs/heads/").unwrap_or(pattern);
            // The merge queue's commits come as merge groups, which the run of a push would replace.
            (!is_of_queue || short.starts_with(MERGE_QUEUE))
                && (matches_wildcard(pattern, &push.git_ref)
                    || branch.is_some_and(|name| matches_wildcard(pattern, name)))
        };
        let wanted = if self.push_refs.is_empty() {
            branch.is_some() && branch == push.repository.default_branch.as_deref()
        } else {
            self.push_refs.iter().any(matches)
        };
        wanted
            && push.deleted != Some(true)
            && is_sha(&push.after)
            && self.is_upstream(&push.repository.full_name)
    }
}

/// Whether `text` matches `pattern`, in which `*` matches any text.
pub(crate) fn matches_wildcard(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut parts: Vec<_> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

fn parse<T: DeserializeOwned>(event: &str, body: &[u8]) -> Result<T, EventError> {
    serde_json::from_slice(body).map_err(|error| {
        if error.is_data() {
            EventError::Shape { event: event.to_owned(), reason: error.to_string() }
        } else {
            EventError::NotJson
        }
    })
}

/// GitHub's titles have at most 256 characters, and names of branches 255 bytes.
const TEXT_CHARS: usize = 256;
/// What is kept of a merge commit's message: its subject, an empty line, and the title of the pull request.
const MESSAGE_LINES: usize = 3;

fn pull_request(
    raw: raw::PullRequestEvent,
    filter: &EventFilter,
) -> Result<Option<UpstreamEvent>, EventError> {
    let label = raw.label.map(|label| label.name).unwrap_or_default();
    let prefixed = filter.asks_for_check_runs(&label);
    let action = match raw.action.as_str() {
        "opened" => PullRequestAction::Opened,
        "reopened" => PullRequestAction::Reopened,
        "synchronize" => PullRequestAction::Synchronize,
        "ready_for_review" => PullRequestAction::ReadyForReview,
        // A closed pull request isn't merged; opening it again is an event of its own.
        "edited"
            if raw.changes.is_some_and(|changes| changes.base.is_some())
                && raw.pull_request.state.as_deref() != Some("closed") =>
        {
            PullRequestAction::BaseChanged
        }
        "closed" => PullRequestAction::Closed,
        "labeled" if prefixed || filter.is_landed_label(&label) => PullRequestAction::Labeled,
        "unlabeled" if prefixed => PullRequestAction::Unlabeled,
        _ => return Ok(None),
    };
    let pull = raw.pull_request;
    if !is_sha(&pull.head.sha) {
        return Err(not_a_sha("pull_request", "pull_request.head.sha"));
    }
    let labels: Vec<String> =
        pull.labels.unwrap_or_default().into_iter().map(|label| label.name).collect();
    let says_landed =
        pull.merged == Some(true) || labels.iter().any(|label| filter.is_landed_label(label));
    let has_landed = pull.state.as_deref() == Some("closed") && says_landed;
    if action == PullRequestAction::Labeled && !prefixed && !has_landed {
        return Ok(None);
    }
    let (base_sha, base_branch) = pull.base.map(|base| (base.sha, base.git_ref)).unzip();
    let author = pull.user.map(|user| user.login);
    let fork = pull.head.repo.and_then(|repo| repo.full_name);
    let texts = [pull.title, pull.head.git_ref, author.clone(), fork];
    let author_texts = author_texts(texts.iter().flatten().map(String::as_str));
    Ok(Some(UpstreamEvent::PullRequest(PullRequest {
        action,
        number: pull.number,
        author,
        label: Some(label).filter(|label| !label.is_empty()),
        head_sha: pull.head.sha,
        before: raw.before.filter(|sha| is_sha(sha)),
        base_sha: base_sha.filter(|sha| is_sha(sha)),
        base_branch: base_branch.flatten(),
        updated_at: pull.updated_at,
        labels,
        has_landed,
        is_draft: pull.draft == Some(true),
        is_known_author: pull.author_association.is_some_and(|word| {
            // <https://docs.github.com/en/graphql/reference/enums#commentauthorassociation>
            ["OWNER", "MEMBER", "COLLABORATOR", "CONTRIBUTOR"].contains(&word.as_str())
        }),
        author_texts,
    })))
}

/// The value of [`PullRequest::author_texts`]: the start of each text.
fn author_texts<'a>(texts: impl Iterator<Item = &'a str>) -> String {
    let texts = texts.map(|text| text.chars().take(TEXT_CHARS).collect());
    texts.collect::<Vec<String>>().join("\n")
}

fn message_texts(commit: Option<raw::HeadCommit>) -> String {
    let message = commit.and_then(|commit| commit.message).unwrap_or_default();
    author_texts(message.lines().take(MESSAGE_LINES))
}

fn not_a_sha(event: &str, field: &str) -> EventError {
    let reason = format!("`{field}` isn't a commit id of 40 or 64 hexadecimal digits");
    EventError::Shape { event: event.to_owned(), reason }
}
