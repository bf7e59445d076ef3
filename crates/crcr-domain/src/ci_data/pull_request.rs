//! Pull requests, read from the documents of webhook rows.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::part;
use super::webhook::{WebhookRow, cut};

/// More labels aren't read.
const MAX_LABELS: usize = 50;

/// A pull request in its current state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct PullRequestState {
    pub number: u64,
    pub title: String,
    /// The login of who opened it; empty if the webhook doesn't say.
    pub author: String,
    /// The branch that it comes from, and the one that it goes to.
    pub branch: String,
    pub base: String,
    pub head_sha: String,
    pub labels: Vec<String>,
    pub is_draft: bool,
    pub is_open: bool,
    pub is_merged: bool,
    pub created_at: Option<Timestamp>,
    /// When its newest webhook was received.
    pub received_at: Timestamp,
}

impl PullRequestState {
    /// `None` if the row isn't about a pull request.
    pub fn from_row(row: &WebhookRow) -> Option<Self> {
        if row.event != "pull_request" {
            return None;
        }
        let PullDocument { pull_request: pull } = serde_json::from_str(&row.document).ok()?;
        let text = |field| cut(&part::<String>(field).unwrap_or_default());
        let branch = |field| text(part::<BranchFields<'_>>(field).unwrap_or_default().name);
        let labels: Vec<LabelFields<'_>> = part(pull.labels).unwrap_or_default();
        Some(Self {
            number: row.number.or_else(|| part(pull.number))?,
            title: text(pull.title),
            author: text(part::<UserFields<'_>>(pull.user).unwrap_or_default().login),
            branch: branch(pull.head),
            base: branch(pull.base),
            head_sha: row.sha.clone(),
            labels: labels.into_iter().take(MAX_LABELS).map(|label| text(label.name)).collect(),
            is_draft: part(pull.draft).unwrap_or_default(),
            is_open: part::<String>(pull.state).as_deref() == Some("open"),
            is_merged: part(pull.merged).unwrap_or_default(),
            created_at: part::<String>(pull.created_at).and_then(|time| time.parse().ok()),
            received_at: row.received_at,
        })
    }
}

#[derive(Deserialize)]
struct PullDocument<'a> {
    #[serde(borrow)]
    pull_request: PullFields<'a>,
}

/// Kept as text, so that a field of another type than expected counts as absent, and the rest of a large
/// document is only skipped.
#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct PullFields<'a> {
    number: Option<&'a RawValue>,
    title: Option<&'a RawValue>,
    user: Option<&'a RawValue>,
    head: Option<&'a RawValue>,
    base: Option<&'a RawValue>,
    labels: Option<&'a RawValue>,
    draft: Option<&'a RawValue>,
    state: Option<&'a RawValue>,
    merged: Option<&'a RawValue>,
    created_at: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct UserFields<'a> {
    login: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct BranchFields<'a> {
    #[serde(rename = "ref")]
    name: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct LabelFields<'a> {
    name: Option<&'a RawValue>,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn row(payload: &Value) -> WebhookRow {
        super::super::row("pull_request", payload)
    }

    #[test]
    fn pull_request_has_its_title_author_branches_labels_and_whether_it_is_open() {
        let pull = json!({
            "id": 70, "number": 7, "title": "Fuse <b>kernels</b>", "state": "open", "draft": true,
            "user": { "login": "ada" }, "labels": [{ "name": "ciflow/crcr" }],
            "head": { "sha": "abc", "ref": "topic" }, "base": { "sha": "def", "ref": "main" },
            "created_at": "2026-08-31T00:00:00Z", "merged": false, "additions": 12,
        });
        let found = PullRequestState::from_row(&row(&json!({ "number": 7, "pull_request": pull })));
        let found = found.unwrap();
        assert_eq!((found.number, found.title.as_str()), (7, "Fuse <b>kernels</b>"));
        assert_eq!((found.author.as_str(), found.branch.as_str()), ("ada", "topic"));
        assert_eq!((found.base.as_str(), found.head_sha.as_str()), ("main", "abc"));
        assert_eq!(found.labels, ["ciflow/crcr"]);
        assert!(found.is_open && found.is_draft && !found.is_merged);
    }

    #[test]
    fn odd_fields_of_a_pull_request_count_as_absent() {
        let long = "x".repeat(1000);
        let pull = json!({
            "id": 70, "number": 7, "title": long, "state": 5, "user": null, "labels": "all",
            "head": [], "created_at": "soon",
        });
        let found = PullRequestState::from_row(&row(&json!({ "number": 7, "pull_request": pull })));
        let found = found.unwrap();
        assert_eq!(found.title.chars().count(), 255);
        assert!(found.author.is_empty() && found.labels.is_empty() && !found.is_open);
        assert_eq!(found.created_at, None);
        assert_eq!(PullRequestState::from_row(&row(&json!({ "pull_request": 3 }))), None);
    }
}
