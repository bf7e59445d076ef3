//! What an upstream webhook means to the relay. GitHub's JSON ends here.
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
            Self::Other(name) => name,
        }
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

/// Something that happened upstream and that the relay acts on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpstreamEvent {
    /// A pull request was opened, reopened, pushed to, closed, labelled or unlabelled.
    PullRequest(PullRequest),
    /// Commits were pushed to a ref that the relay follows.
    Push(Push),
    /// A merge queue asks for the checks of a group of pull requests.
    MergeGroup(MergeGroup),
    /// Somebody asks to run a check run again.
    CheckRunRerequested(CheckRunRerequested),
    /// Somebody asks to run everything of a commit again.
    CheckSuiteRerequested(CheckSuiteRerequested),
}

/// A pull request at the time of an event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PullRequest {
    pub action: PullRequestAction,
    pub number: u64,
    /// The commit at its head.
    pub head_sha: String,
    /// The head before a `synchronize`.
    #[serde(default)]
    pub before: Option<String>,
    /// The commit of the branch that it is to be merged into, as far as the event tells it.
    pub base_sha: Option<String>,
    /// When GitHub last changed it; orders its events, whatever order they arrive in.
    pub updated_at: Timestamp,
    /// The names of its labels.
    pub labels: Vec<String>,
    /// Whether the event says that its commits have landed: it was merged, or it is closed and has the
    /// label that a merge bot sets in the place of GitHub's `merged`.
    #[serde(default)]
    pub has_landed: bool,
}

/// What happened to a pull request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PullRequestAction {
    Opened,
    Reopened,
    /// A new head was pushed.
    Synchronize,
    Closed,
    /// Got a label of the relay's prefix.
    Labeled,
    /// Lost a label of the relay's prefix.
    Unlabeled,
}

impl PullRequestAction {
    /// Whether downstream repositories get the event.
    pub fn dispatches(self) -> bool {
        !matches!(self, Self::Labeled | Self::Unlabeled)
    }
}

/// A merge queue's group of pull requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergeGroup {
    /// The commit of the group, on a branch of the queue's own: where its checks have to stand.
    pub head_sha: String,
    /// The commit that the group is merged onto.
    pub base_sha: Option<String>,
}

/// A push to a ref.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Push {
    /// The full name of the ref, `refs/heads/…` or `refs/tags/…`.
    pub git_ref: String,
    /// The commit that it points at now.
    pub head_sha: String,
}

/// "Re-run" pressed on one check run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckRunRerequested {
    pub name: String,
    /// The check run's `external_id`; empty when it has none.
    pub external_id: String,
    /// The commit that it belongs to.
    pub head_sha: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckSuiteRerequested {
    pub id: u64,
    /// The commit that it belongs to.
    pub head_sha: String,
}

/// Which events of which repository are ours.
#[derive(Debug, Clone)]
pub struct EventFilter {
    /// `owner/repo` of the upstream repository; compared without case.
    pub upstream: String,
    /// Refs whose pushes are dispatched, `*` standing for any text, with or without
    /// `refs/heads/`. Empty: the default branch.
    pub push_refs: Vec<String>,
    /// The start of the labels that ask for check runs, such as `ciflow/crcr/`.
    pub label_prefix: String,
    /// The label that says of a closed pull request that it has landed; compared without case.
    pub landed_label: String,
}

/// Why a delivery is not one that GitHub sends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    /// The body is no JSON.
    #[error("Invalid JSON body")]
    NotJson,
    /// The body is JSON but no object.
    #[error("Invalid JSON body: expected an object")]
    NotAnObject,
    /// A field that the event always has is missing or has another type.
    #[error("Invalid `{event}` event: {reason}")]
    Shape { event: String, reason: String },
}

/// Reads a delivery: `Ok(None)` is a proper one that is not ours to act on.
///
/// Everything is checked that the relay later relies on; unknown fields are skipped. Fails with
/// [`EventError`] when the body is not what GitHub sends for `event`.
pub fn read(
    event: &str,
    body: &[u8],
    interest: &EventFilter,
) -> Result<Option<UpstreamEvent>, EventError> {
    if body.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
        serde_json::from_slice::<serde::de::IgnoredAny>(body).map_err(|_| EventError::NotJson)?;
        return Err(EventError::NotAnObject);
    }
    match event {
        "pull_request" => {
            let raw: raw::PullRequestEvent = parse(event, body)?;
            Ok(if interest.is_upstream(&raw.repository.full_name) {
                pull_request(raw, interest)?
            } else {
                None
            })
        }
        "push" => {
            let raw: raw::PushEvent = parse(event, body)?;
            Ok(Some(raw)
                .filter(|raw| interest.wants_push(raw))
                .map(|raw| UpstreamEvent::Push(Push { git_ref: raw.git_ref, head_sha: raw.after })))
        }
        "merge_group" => {
            let raw: raw::MergeGroupEvent = parse(event, body)?;
            let ours =
                raw.action == "checks_requested" && interest.is_upstream(&raw.repository.full_name);
            let group = raw.merge_group;
            if ours && !is_sha(&group.head_sha) {
                return Err(not_a_sha(event, "merge_group.head_sha"));
            }
            let base_sha = group.base_sha.filter(|sha| is_sha(sha));
            let group = MergeGroup { head_sha: group.head_sha, base_sha };
            Ok(ours.then_some(UpstreamEvent::MergeGroup(group)))
        }
        "check_run" => {
            let raw: raw::CheckRunEvent = parse(event, body)?;
            let ours =
                raw.action == "rerequested" && interest.is_upstream(&raw.repository.full_name);
            Ok(ours.then(|| {
                UpstreamEvent::CheckRunRerequested(CheckRunRerequested {
                    name: raw.check_run.name,
                    external_id: raw.check_run.external_id.unwrap_or_default(),
                    head_sha: raw.check_run.head_sha,
                })
            }))
        }
        "check_suite" => {
            let raw: raw::CheckSuiteEvent = parse(event, body)?;
            let ours =
                raw.action == "rerequested" && interest.is_upstream(&raw.repository.full_name);
            let suite = raw.check_suite;
            let event = CheckSuiteRerequested { id: suite.id, head_sha: suite.head_sha };
            Ok(ours.then_some(UpstreamEvent::CheckSuiteRerequested(event)))
        }
        _ => {
            serde_json::from_slice::<serde::de::IgnoredAny>(body)
                .map_err(|_| EventError::NotJson)?;
            Ok(None)
        }
    }
}

/// Whether `text` is a commit's name: 40 or 64 hexadecimal digits.
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

    /// A deleted ref has nothing to build.
    fn wants_push(&self, push: &raw::PushEvent) -> bool {
        let branch = push.git_ref.strip_prefix("refs/heads/");
        let matches = |pattern: &String| {
            wildcard(pattern, &push.git_ref) || branch.is_some_and(|name| wildcard(pattern, name))
        };
        let wanted = if self.push_refs.is_empty() {
            branch.is_some() && branch == push.repository.default_branch.as_deref()
        } else {
            self.push_refs.iter().any(matches)
        };
        wanted
            && !push.deleted
            && is_sha(&push.after)
            && self.is_upstream(&push.repository.full_name)
    }
}

/// Whether `text` matches `pattern`, in which `*` stands for any text, the empty one included.
fn wildcard(pattern: &str, text: &str) -> bool {
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

fn pull_request(
    raw: raw::PullRequestEvent,
    interest: &EventFilter,
) -> Result<Option<UpstreamEvent>, EventError> {
    let label = raw.label.map(|label| label.name).unwrap_or_default();
    let prefixed = label
        .get(..interest.label_prefix.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(&interest.label_prefix));
    let action = match raw.action.as_str() {
        "opened" => PullRequestAction::Opened,
        "reopened" => PullRequestAction::Reopened,
        "synchronize" => PullRequestAction::Synchronize,
        "closed" => PullRequestAction::Closed,
        "labeled" if prefixed || interest.is_landed_label(&label) => PullRequestAction::Labeled,
        "unlabeled" if prefixed => PullRequestAction::Unlabeled,
        _ => return Ok(None),
    };
    let pull = raw.pull_request;
    if !is_sha(&pull.head.sha) {
        return Err(not_a_sha("pull_request", "pull_request.head.sha"));
    }
    let says_landed =
        pull.merged || pull.labels.iter().any(|label| interest.is_landed_label(&label.name));
    let has_landed = pull.state == "closed" && says_landed;
    if action == PullRequestAction::Labeled && !prefixed && !has_landed {
        return Ok(None);
    }
    Ok(Some(UpstreamEvent::PullRequest(PullRequest {
        action,
        number: pull.number,
        head_sha: pull.head.sha,
        before: raw.before.filter(|sha| is_sha(sha)),
        base_sha: pull.base.map(|base| base.sha).filter(|sha| is_sha(sha)),
        updated_at: pull.updated_at,
        labels: pull.labels.into_iter().map(|label| label.name).collect(),
        has_landed,
    })))
}

fn not_a_sha(event: &str, field: &str) -> EventError {
    let reason = format!("`{field}` is not 40 hexadecimal digits");
    EventError::Shape { event: event.to_owned(), reason }
}

/// The parts of GitHub's payloads that are read.
mod raw {
    use jiff::Timestamp;
    use serde::Deserialize;

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
    }

    #[derive(Deserialize)]
    pub(super) struct PullRequest {
        pub(super) number: u64,
        pub(super) updated_at: Timestamp,
        pub(super) head: Head,
        pub(super) base: Option<Head>,
        #[serde(default)]
        pub(super) labels: Vec<Label>,
        #[serde(default)]
        pub(super) state: String,
        #[serde(default)]
        pub(super) merged: bool,
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
    }

    #[derive(Deserialize)]
    pub(super) struct Head {
        pub(super) sha: String,
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
        #[serde(default)]
        pub(super) deleted: bool,
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

    fn interest() -> EventFilter {
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
        read(event, value.to_string().as_bytes(), &interest())
    }

    #[test]
    fn event_names_convert_from_and_to_text() {
        for name in ["pull_request", "push", "merge_group", "landed", "nightly", "periodic"] {
            let event = EventName::from(name);
            assert!(!matches!(event, EventName::Other(_)), "{name}");
            assert_eq!(serde_json::to_value(&event).unwrap(), name);
        }
        assert_eq!(EventName::from("Push").as_str(), "Push");
        assert_ne!(EventName::from("Push"), EventName::Push);
    }

    #[test]
    fn pull_request_actions_that_matter_are_ours_and_the_others_are_not() {
        for (action, ours) in [
            ("opened", true),
            ("reopened", true),
            ("synchronize", true),
            ("closed", true),
            ("labeled", true),
            ("unlabeled", true),
            ("edited", false),
            ("assigned", false),
            ("ready_for_review", false),
        ] {
            let read = read_value("pull_request", &pull(action)).unwrap();
            assert_eq!(read.is_some(), ours, "{action}");
        }
        let Some(UpstreamEvent::PullRequest(read)) =
            read_value("pull_request", &pull("opened")).unwrap()
        else {
            panic!("a pull request")
        };
        assert_eq!((read.number, read.head_sha.as_str()), (7, SHA));
        assert_eq!(read.base_sha.as_deref(), Some(BASE));
        assert_eq!(read.labels, ["bug", "ciflow/crcr/npu"]);
    }

    #[test]
    fn only_labels_of_the_prefix_matter() {
        let mut event = pull("labeled");
        event["label"]["name"] = json!("CIFLOW/crcr/npu");
        assert!(read_value("pull_request", &event).unwrap().is_some());
        event["label"]["name"] = json!("bug");
        assert_eq!(read_value("pull_request", &event).unwrap(), None);
    }

    #[test]
    fn a_pull_request_has_landed_when_it_was_merged_or_closed_with_the_bots_label() {
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
        assert_eq!(landed("labeled", "ciflow/crcr/npu", "open", false, &["Merged"]), Some(false));
    }

    #[test]
    fn a_merge_group_is_ours_when_its_checks_are_requested() {
        let group = |action: &str, repo: &str, sha: &str| {
            let event = json!({
                "action": action, "repository": {"full_name": repo},
                "merge_group": {"head_sha": sha, "base_sha": BASE, "head_ref": "refs/heads/x"},
            });
            read_value("merge_group", &event)
        };
        let expected = MergeGroup { head_sha: SHA.to_owned(), base_sha: Some(BASE.to_owned()) };
        let asked = group("checks_requested", "acme/upstream", SHA).unwrap();
        assert_eq!(asked, Some(UpstreamEvent::MergeGroup(expected)));
        assert_eq!(group("destroyed", "acme/upstream", SHA).unwrap(), None);
        assert_eq!(group("checks_requested", "acme/other", SHA).unwrap(), None);
        assert!(group("checks_requested", "acme/upstream", "main").is_err());
    }

    #[test]
    fn another_repository_is_not_ours() {
        let mut event = pull("opened");
        event["repository"]["full_name"] = json!("acme/other");
        assert_eq!(read_value("pull_request", &event).unwrap(), None);
    }

    #[test]
    fn pushes_follow_the_default_branch_unless_told_otherwise() {
        assert!(read_value("push", &push("refs/heads/main")).unwrap().is_some());
        for other in ["refs/heads/topic", "refs/tags/main", "refs/heads/gh/x/1/base"] {
            assert_eq!(read_value("push", &push(other)).unwrap(), None, "{other}");
        }
        let mut deleted = push("refs/heads/main");
        deleted["deleted"] = json!(true);
        assert_eq!(read_value("push", &deleted).unwrap(), None);
        let chosen = EventFilter {
            push_refs: vec!["release/*".to_owned(), "refs/tags/v*".to_owned()],
            ..interest()
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
    fn a_star_stands_for_any_text() {
        for (pattern, text, matches) in [
            ("main", "main", true),
            ("main", "main2", false),
            ("*", "", true),
            ("a*b*c", "a--b--c", true),
            ("a*b*c", "a--c--b", false),
            ("a*a", "a", false),
        ] {
            assert_eq!(wildcard(pattern, text), matches, "{pattern} {text}");
        }
    }

    #[test]
    fn junk_is_told_apart() {
        let read = |body: &[u8]| read("pull_request", body, &interest());
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
    fn reruns_are_ours_when_rerequested() {
        let run = json!({
            "action": "rerequested", "repository": {"full_name": "acme/upstream"},
            "check_run": {"name": "crcr/o/r/w/j", "external_id": "12:7", "head_sha": SHA}
        });
        assert!(matches!(
            read_value("check_run", &run).unwrap(),
            Some(UpstreamEvent::CheckRunRerequested(run)) if run.external_id == "12:7"
        ));
        let suite = json!({
            "action": "completed", "repository": {"full_name": "acme/upstream"},
            "check_suite": {"id": 5, "head_sha": SHA}
        });
        assert_eq!(read_value("check_suite", &suite).unwrap(), None);
    }
}
