//! Upstream events. GitHub's webhook JSON is converted here and used nowhere else.
//!
//! Protocol: <https://docs.github.com/en/webhooks/webhook-events-and-payloads>

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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PullRequest {
    pub action: PullRequestAction,
    pub number: u64,
    #[serde(default)]
    pub author: Option<String>,
    /// The label that was set or removed, for `labeled` and `unlabeled`.
    #[serde(default)]
    pub label: Option<String>,
    pub head_sha: String,
    /// The previous head, for `synchronize`.
    #[serde(default)]
    pub before: Option<String>,
    /// The head of the target branch, if the event contains it.
    pub base_sha: Option<String>,
    /// Orders the events of a pull request regardless of arrival order.
    pub updated_at: Timestamp,
    pub labels: Vec<String>,
    /// Whether its commits have landed: it was merged, or it is closed and has the label that a merge bot
    /// sets instead of merging on GitHub.
    #[serde(default)]
    pub has_landed: bool,
    #[serde(default)]
    pub is_draft: bool,
    /// Whether the author has contributed to upstream before.
    #[serde(default)]
    pub is_known_author: bool,
    /// What its author has chosen and a downstream workflow may repeat in the title of its runs, a line each: the title,
    /// the branch, the login and the fork.
    #[serde(default)]
    pub author_texts: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PullRequestAction {
    Opened,
    Reopened,
    /// A new head was pushed.
    Synchronize,
    /// It isn't a draft any more. Only those backends get it that take no drafts.
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

/// A push to a ref.
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
    /// out. Empty: only the default branch.
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
                let (git_ref, head_sha) = (raw.git_ref, raw.after);
                let author_texts = message_texts(raw.head_commit);
                UpstreamEvent::Push(Push { git_ref, head_sha, author_texts })
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

impl EventFilter {
    fn is_upstream(&self, name: &str) -> bool {
        self.upstream.eq_ignore_ascii_case(name)
    }

    fn is_landed_label(&self, name: &str) -> bool {
        self.landed_label.eq_ignore_ascii_case(name)
    }

    /// The ref is followed and wasn't deleted.
    fn matches_push(&self, push: &raw::PushEvent) -> bool {
        let branch = push.git_ref.strip_prefix("refs/heads/");
        let matches = |pattern: &String| {
            matches_wildcard(pattern, &push.git_ref)
                || branch.is_some_and(|name| matches_wildcard(pattern, name))
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
/// Of the message of a merge commit: its subject, an empty line, and the title of the pull request.
const MESSAGE_LINES: usize = 3;

fn pull_request(
    raw: raw::PullRequestEvent,
    filter: &EventFilter,
) -> Result<Option<UpstreamEvent>, EventError> {
    let label = raw.label.map(|label| label.name).unwrap_or_default();
    let prefixed = label
        .get(..filter.label_prefix.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(&filter.label_prefix));
    let action = match raw.action.as_str() {
        "opened" => PullRequestAction::Opened,
        "reopened" => PullRequestAction::Reopened,
        "synchronize" => PullRequestAction::Synchronize,
        "ready_for_review" => PullRequestAction::ReadyForReview,
        // Of a closed one, nothing is merged; if it is opened again, that is an event of its own.
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
        base_sha: pull.base.map(|base| base.sha).filter(|sha| is_sha(sha)),
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

/// [`PullRequest::author_texts`].
fn author_texts<'a>(texts: impl Iterator<Item = &'a str>) -> String {
    let texts = texts.map(|text| text.chars().take(TEXT_CHARS).collect());
    texts.collect::<Vec<String>>().join("\n")
}

fn message_texts(commit: Option<raw::HeadCommit>) -> String {
    let message = commit.and_then(|commit| commit.message).unwrap_or_default();
    author_texts(message.lines().take(MESSAGE_LINES))
}

fn not_a_sha(event: &str, field: &str) -> EventError {
    let reason = format!("`{field}` is not 40 hexadecimal digits");
    EventError::Shape { event: event.to_owned(), reason }
}

/// The fields of GitHub's payloads that are used. Its schemas call many of them nullable.
mod raw {
    use jiff::Timestamp;
    use serde::Deserialize;
    use serde::de::IgnoredAny;

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
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const SHA: &str = "0123456789abcdef0123456789abcdef01234567";
    const BASE: &str = "89abcdef0123456789abcdef0123456789abcdef";

    fn filter() -> EventFilter {
        EventFilter {
            upstream: "acme/upstream".to_owned(),
            push_refs: vec![],
            label_prefix: "ciflow/crcr/".to_owned(),
            landed_label: "Merged".to_owned(),
        }
    }

    fn pull(action: &str) -> Value {
        json!({
            "action": action, "number": 7, "repository": {"full_name": "Acme/Upstream"},
            "label": {"name": "ciflow/crcr/npu"},
            "pull_request": {
                "number": 7, "updated_at": "2026-08-01T10:00:00Z", "head": {"sha": SHA},
                "base": {"sha": BASE},
                "labels": [{"name": "bug"}, {"name": "ciflow/crcr/npu"}]
            }
        })
    }

    fn push(git_ref: &str) -> Value {
        json!({
            "ref": git_ref, "after": SHA, "deleted": false,
            "repository": {"full_name": "acme/upstream", "default_branch": "main"}
        })
    }

    fn read_value(event: &str, value: &Value) -> Result<Option<UpstreamEvent>, EventError> {
        read(event, value.to_string().as_bytes(), &filter())
    }

    #[test]
    fn event_names_convert_from_and_to_text() {
        for name in
            ["pull_request", "push", "merge_group", "landed", "nightly", "periodic", "probe"]
        {
            let event = EventName::from(name);
            assert!(!matches!(event, EventName::Other(_)), "{name}");
            assert_eq!(serde_json::to_value(&event).unwrap(), name);
            assert_eq!(event.to_string(), name);
            let sent_as = if name == "probe" { "push" } else { name };
            assert_eq!(event.event_type(), sent_as);
            assert_eq!(event.is_self_reported(), ["nightly", "periodic"].contains(&name));
        }
        assert_eq!(EventName::from("Push").as_str(), "Push");
        assert_ne!(EventName::from("Push"), EventName::Push);
    }

    #[test]
    fn texts_of_an_author_include_the_name_of_the_fork_unless_that_was_deleted() {
        let texts = |fork: Value| {
            let mut event = pull("opened");
            let pull = &mut event["pull_request"];
            (pull["title"], pull["user"]) = ("push".into(), json!({"login": "mallory"}));
            (pull["head"]["ref"], pull["head"]["repo"]) = ("topic".into(), fork);
            match read_value("pull_request", &event).unwrap().unwrap() {
                UpstreamEvent::PullRequest(pull) => pull.author_texts,
                other => panic!("{other:?}"),
            }
        };
        let fork = json!({"full_name": "mallory/72d3162e-cc79"});
        assert_eq!(texts(fork), "push\ntopic\nmallory\nmallory/72d3162e-cc79");
        assert_eq!(texts(Value::Null), "push\ntopic\nmallory");
    }

    #[test]
    fn only_relevant_pull_request_actions_are_accepted() {
        for (action, ours) in [
            ("opened", true),
            ("reopened", true),
            ("synchronize", true),
            ("closed", true),
            ("labeled", true),
            ("unlabeled", true),
            ("edited", false),
            ("assigned", false),
            ("ready_for_review", true),
            ("converted_to_draft", false),
        ] {
            let read = read_value("pull_request", &pull(action)).unwrap();
            assert_eq!(read.is_some(), ours, "{action}");
            if let Some(UpstreamEvent::PullRequest(pull)) = read {
                let is_label = action.ends_with("labeled");
                assert_eq!(pull.action.dispatches(), !is_label, "a label asks for no build");
            }
        }
        let Some(UpstreamEvent::PullRequest(read)) =
            read_value("pull_request", &pull("opened")).unwrap()
        else {
            panic!("a pull request")
        };
        assert_eq!((read.number, read.head_sha.as_str()), (7, SHA));
        assert_eq!(read.base_sha.as_deref(), Some(BASE));
        assert_eq!(read.labels, ["bug", "ciflow/crcr/npu"]);
        assert_eq!(read.label.as_deref(), Some("ciflow/crcr/npu"));
    }

    #[test]
    fn another_title_changes_nothing_and_another_base_does() {
        let mut event = pull("edited");
        event["changes"] = json!({ "title": { "from": "Old" } });
        assert_eq!(read_value("pull_request", &event).unwrap(), None);
        event["changes"] =
            json!({ "base": { "ref": { "from": "other" }, "sha": { "from": SHA } } });
        let Some(UpstreamEvent::PullRequest(read)) = read_value("pull_request", &event).unwrap()
        else {
            panic!("a pull request")
        };
        assert_eq!(read.action, PullRequestAction::BaseChanged);
        event["pull_request"]["state"] = json!("closed");
        assert_eq!(read_value("pull_request", &event).unwrap(), None, "nothing of it is merged");
    }

    #[test]
    fn null_means_that_nothing_is_said() {
        let mut event = pull("opened");
        for field in ["labels", "state", "merged", "draft", "user", "base", "author_association"] {
            event["pull_request"][field] = Value::Null;
        }
        event["label"] = Value::Null;
        let Some(UpstreamEvent::PullRequest(read)) = read_value("pull_request", &event).unwrap()
        else {
            panic!("a pull request")
        };
        assert!(!read.has_landed && !read.is_draft && read.labels.is_empty());
        let push = json!({
            "ref": "refs/heads/main", "after": SHA, "deleted": null,
            "repository": { "full_name": "acme/upstream", "default_branch": "main" },
        });
        assert!(read_value("push", &push).unwrap().is_some());
    }

    #[test]
    fn only_labels_with_the_prefix_are_accepted() {
        let mut event = pull("labeled");
        event["label"]["name"] = json!("CIFLOW/crcr/npu");
        assert!(read_value("pull_request", &event).unwrap().is_some());
        event["label"]["name"] = json!("bug");
        assert_eq!(read_value("pull_request", &event).unwrap(), None);
        event["action"] = json!("unlabeled");
        assert_eq!(read_value("pull_request", &event).unwrap(), None);
    }

    #[test]
    fn pull_request_has_landed_if_merged_or_closed_with_the_label() {
        let landed = |action: &str, label: &str, state: &str, merged: bool, labels: &[&str]| {
            let mut event = pull(action);
            event["label"]["name"] = json!(label);
            event["pull_request"]["state"] = json!(state);
            event["pull_request"]["merged"] = json!(merged);
            event["pull_request"]["labels"] =
                labels.iter().map(|name| json!({ "name": name })).collect();
            match read_value("pull_request", &event).unwrap() {
                Some(UpstreamEvent::PullRequest(pull)) => Some(pull.has_landed),
                _ => None,
            }
        };
        assert_eq!(landed("closed", "", "closed", false, &["bug"]), Some(false));
        assert_eq!(landed("closed", "", "closed", true, &[]), Some(true));
        assert_eq!(landed("closed", "", "closed", false, &["merged"]), Some(true));
        assert_eq!(landed("labeled", "Merged", "closed", false, &["Merged"]), Some(true));
        assert_eq!(landed("labeled", "Merged", "open", false, &["Merged"]), None, "not yet");
        assert_eq!(landed("labeled", "bug", "closed", true, &[]), None, "it landed before");
        assert_eq!(landed("labeled", "ciflow/crcr/npu", "open", false, &["Merged"]), Some(false));
    }

    #[test]
    fn merge_group_is_accepted_when_checks_are_requested() {
        let group = |action: &str, repo: &str, sha: &str| {
            let event = json!({
                "action": action, "repository": {"full_name": repo},
                "merge_group": {
                    "head_sha": sha, "base_sha": BASE, "head_ref": "refs/heads/x",
                    "head_commit": {"message": "Merge pull request #7\n\npush\n\nmore"},
                },
            });
            read_value("merge_group", &event)
        };
        let expected = MergeGroup {
            head_sha: SHA.to_owned(),
            base_sha: Some(BASE.to_owned()),
            author_texts: "Merge pull request #7\n\npush".to_owned(),
        };
        let asked = group("checks_requested", "acme/upstream", SHA).unwrap();
        assert_eq!(asked, Some(UpstreamEvent::MergeGroup(expected)));
        assert_eq!(group("destroyed", "acme/upstream", SHA).unwrap(), None);
        assert_eq!(group("checks_requested", "acme/other", SHA).unwrap(), None);
        assert!(group("checks_requested", "acme/upstream", "main").is_err());
        assert_eq!(group("destroyed", "acme/upstream", "main").unwrap(), None);
    }

    #[test]
    fn commit_id_is_a_whole_sha1_or_sha256() {
        for (text, is_id) in [
            (SHA.to_owned(), true),
            ("F".repeat(64), true),
            ("a".repeat(39), false),
            ("a".repeat(41), false),
            ("g".repeat(40), false),
            (String::new(), false),
        ] {
            assert_eq!(is_sha(&text), is_id, "{text}");
        }
    }

    #[test]
    fn events_of_other_repositories_are_ignored() {
        let mut event = pull("opened");
        event["repository"]["full_name"] = json!("acme/other");
        assert_eq!(read_value("pull_request", &event).unwrap(), None);
    }

    #[test]
    fn message_of_a_push_is_text_of_an_author() {
        let mut event = push("refs/heads/main");
        event["head_commit"] =
            json!({ "message": "Merge pull request #7\n\npull_request\n\nmore" });
        let read = read_value("push", &event).unwrap();
        let author_texts = "Merge pull request #7\n\npull_request".to_owned();
        let (git_ref, head_sha) = ("refs/heads/main".to_owned(), SHA.to_owned());
        assert_eq!(read, Some(UpstreamEvent::Push(Push { git_ref, head_sha, author_texts })));
        event["head_commit"] = Value::Null;
        assert!(read_value("push", &event).unwrap().is_some(), "GitHub calls it nullable");
    }

    #[test]
    fn pushes_to_the_default_branch_or_configured_refs_are_accepted() {
        assert!(read_value("push", &push("refs/heads/main")).unwrap().is_some());
        for other in ["refs/heads/topic", "refs/tags/main", "refs/heads/gh/x/1/base"] {
            assert_eq!(read_value("push", &push(other)).unwrap(), None, "{other}");
        }
        let mut deleted = push("refs/heads/main");
        deleted["deleted"] = json!(true);
        assert_eq!(read_value("push", &deleted).unwrap(), None);
        let chosen = EventFilter {
            push_refs: vec!["release/*".to_owned(), "refs/tags/v*".to_owned()],
            ..filter()
        };
        for (name, ours) in [
            ("refs/heads/release/2.9", true),
            ("refs/tags/v2.9.0", true),
            ("refs/heads/main", false),
            ("refs/tags/ciflow/trunk/1", false),
        ] {
            let read = read("push", push(name).to_string().as_bytes(), &chosen).unwrap();
            assert_eq!(read.is_some(), ours, "{name}");
        }
    }

    #[test]
    fn star_matches_any_text() {
        for (pattern, text, matches) in [
            ("main", "main", true),
            ("main", "main2", false),
            ("*", "", true),
            ("a*b*c", "a--b--c", true),
            ("a*b*c", "a--c--b", false),
            ("a*a", "a", false),
        ] {
            assert_eq!(matches_wildcard(pattern, text), matches, "{pattern} {text}");
        }
    }

    #[test]
    fn invalid_bodies_are_rejected() {
        let read = |body: &[u8]| read("pull_request", body, &filter());
        assert_eq!(read(b""), Err(EventError::NotJson));
        assert_eq!(read(b"payload=%7B%7D"), Err(EventError::NotJson));
        assert_eq!(read(b"[]"), Err(EventError::NotAnObject));
        assert_eq!(read(b"{"), Err(EventError::NotJson));
        assert!(matches!(read(b"{}"), Err(EventError::Shape { .. })));
        let mut event = pull("opened");
        event["pull_request"]["head"]["sha"] = json!("../../etc");
        assert!(read(event.to_string().as_bytes()).unwrap_err().to_string().contains("head.sha"));
    }

    #[test]
    fn only_rerequested_check_runs_are_accepted() {
        let run = json!({
            "action": "rerequested", "repository": {"full_name": "acme/upstream"},
            "check_run": {"name": "crcr/o/r/w/j", "external_id": "12:7", "head_sha": SHA}
        });
        assert!(matches!(
            read_value("check_run", &run).unwrap(),
            Some(UpstreamEvent::CheckRunRerequested(run)) if run.external_id == "12:7"
        ));
        for event in ["check_run", "check_suite"] {
            for (action, repo, ours) in [
                ("rerequested", "acme/upstream", true),
                ("completed", "acme/upstream", false),
                ("rerequested", "acme/other", false),
            ] {
                let suite = json!({"id": 5, "head_sha": SHA});
                let asked = json!({
                    "action": action, "repository": {"full_name": repo},
                    "check_run": run["check_run"], "check_suite": suite
                });
                let read = read_value(event, &asked).unwrap();
                assert_eq!(read.is_some(), ours, "{event} {action} {repo}");
            }
        }
    }
}
