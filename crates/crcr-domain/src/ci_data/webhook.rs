//! A webhook of any event as a row of a table, and the order of the rows of one thing.
//!
//! Deliveries arrive late, twice and out of order. Each is kept as a row of its own. The current state of a
//! thing (a job, a run, a pull request) is its row with the greatest [`WebhookRow::version`], whatever arrived
//! last. Protocol: <https://docs.github.com/en/webhooks/webhook-events-and-payloads>

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::protocol::standard_json::standard_json;

/// A longer name, title, branch or identifier is cut.
const MAX_NAME_CHARS: usize = 255;
/// Objects that every payload repeats. They are kept in the archive only.
const REPEATED: [&str; 5] = ["repository", "organization", "enterprise", "installation", "sender"];
/// The statuses of jobs, runs and checks, in the order in which they follow each other.
const STATUSES: [&str; 6] =
    ["requested", "waiting", "pending", "queued", "in_progress", "completed"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookRow {
    /// GitHub's name of the event, such as `workflow_job`.
    pub event: String,
    pub delivery: String,
    pub received_at: Timestamp,
    /// `owner/repo`; empty for events of organizations.
    pub repository: String,
    /// What the event is about, within its event and repository: GitHub's id, or the name of a ref.
    pub thing: String,
    pub action: String,
    /// The commit, if the event is about one.
    pub sha: String,
    /// The branch, if the event is about one, without `refs/heads/`.
    pub branch: String,
    /// The number of the pull request or issue.
    pub number: Option<u64>,
    /// Orders the rows of one thing as text: a deletion after everything else, then by attempt, status
    /// and time of the change. The delivery makes it unique.
    pub version: String,
    pub is_deleted: bool,
    /// The payload as JSON, without the repository, the organization, the sender and addresses of GitHub's API.
    pub document: String,
}

/// GitHub's names of events: lower-case letters, digits and `_`, at most 64.
pub fn is_event_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

/// Why a webhook has no row. It is in the archive all the same.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the body isn't a JSON object: {0}")]
pub struct WebhookRowError(String);

impl WebhookRow {
    /// Odd fields are treated like absent ones.
    pub fn new(
        event: &str,
        delivery: &str,
        received_at: Timestamp,
        body: &[u8],
    ) -> Result<Self, WebhookRowError> {
        let read = serde_json::from_slice::<Map<String, Value>>(body)
            .or_else(|_| serde_json::from_slice(&standard_json(body)));
        let mut payload = read.map_err(|error| WebhookRowError(error.to_string()))?;
        let repository = name(&payload.get("repository").unwrap_or(&Value::Null)["full_name"]);
        for repeated in REPEATED {
            payload.remove(repeated);
        }
        let mut payload = Value::Object(payload);
        remove_api_addresses(&mut payload);
        let object = &payload[object_key(event)];
        let action = name(&payload["action"]);
        let thing = thing(event, &payload, object).unwrap_or_else(|| delivery.to_owned());
        let is_deleted = action == "deleted" || event == "delete";
        let attempt = object["run_attempt"].as_u64().unwrap_or(0).min(99_999);
        let status = object["status"].as_str().unwrap_or_default();
        let rank = STATUSES.iter().position(|known| *known == status).unwrap_or(0);
        let changed = changed_at(event, &payload, object).unwrap_or(received_at);
        let millis = changed.as_millisecond().max(0);
        Ok(Self {
            version: format!("{}{attempt:05}{rank}{millis:014}-{delivery}", u8::from(is_deleted)),
            sha: sha(event, &payload, object),
            branch: branch(event, &payload, object),
            number: number(&payload, object),
            document: payload.to_string(),
            event: event.to_owned(),
            delivery: delivery.to_owned(),
            received_at,
            repository,
            thing,
            action,
            is_deleted,
        })
    }
}

/// Two thirds of a payload are addresses of GitHub's API, which follow from the names and numbers beside them.
fn remove_api_addresses(value: &mut Value) {
    let is_of_api = |text: &str| {
        let (host, path) = text.strip_prefix("https://").unwrap_or(text).split_once('/')?;
        Some(host.starts_with("api.") || path.starts_with("api/v3/"))
    };
    match value {
        Value::Object(fields) => {
            fields.retain(|name, value| {
                let is_address = name == "url" || (name.ends_with("_url") && name != "html_url");
                !(is_address && value.as_str().and_then(is_of_api) == Some(true))
            });
            fields.values_mut().for_each(remove_api_addresses);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_api_addresses),
        _ => {}
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WebhookOfRepository {
    repository: Option<RepositoryVisibility>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RepositoryVisibility {
    private: bool,
}

/// Whether a webhook is about a private repository, or an internal one of an enterprise, of which GitHub says the same.
/// So is one that doesn't say it as GitHub does.
pub fn is_private(body: &[u8]) -> bool {
    serde_json::from_slice::<WebhookOfRepository>(body)
        .map_or(true, |webhook| webhook.repository.is_some_and(|repository| repository.private))
}

/// The key of the object that the event is about. Usually it has the name of the event.
fn object_key(event: &str) -> &str {
    match event {
        "issues" | "sub_issues" | "issue_dependencies" => "issue",
        "issue_comment"
        | "commit_comment"
        | "pull_request_review_comment"
        | "discussion_comment" => "comment",
        "pull_request_review" => "review",
        "pull_request_review_thread" => "thread",
        "branch_protection_rule" => "rule",
        "deploy_key" => "key",
        "code_scanning_alert"
        | "dependabot_alert"
        | "secret_scanning_alert"
        | "repository_vulnerability_alert" => "alert",
        "registry_package" => "registry_package",
        "security_and_analysis" => "changes",
        event => event,
    }
}

fn thing(event: &str, payload: &Value, object: &Value) -> Option<String> {
    match event {
        "create" | "delete" => Some(name(&payload["ref"])),
        "push" => Some(format!("{}@{}", name(&payload["ref"]), name(&payload["after"]))),
        // Its payload has no run; the dispatch has no identity.
        "repository_dispatch" | "workflow_dispatch" => None,
        _ => match (&object["id"], &object["number"], &object["node_id"]) {
            (Value::Number(id), ..) => Some(id.to_string()),
            (_, Value::Number(number), _) => Some(number.to_string()),
            (Value::String(id), ..) | (.., Value::String(id)) => Some(cut(id)),
            _ => None,
        },
    }
}

/// When the thing changed last, according to the payload.
fn changed_at(event: &str, payload: &Value, object: &Value) -> Option<Timestamp> {
    let object = if event == "push" { &payload["head_commit"] } else { object };
    let time = |field: &str| object[field].as_str().and_then(|text| text.parse().ok());
    time("updated_at").or_else(|| {
        // Jobs and check runs have no time of their last change.
        let times = ["completed_at", "started_at", "submitted_at", "created_at", "timestamp"];
        times.into_iter().filter_map(time).max()
    })
}

fn sha(event: &str, payload: &Value, object: &Value) -> String {
    name(match event {
        "push" => &payload["after"],
        "status" => &payload["sha"],
        "issue_comment" | "issues" | "release" => &Value::Null,
        "merge_group" | "workflow_job" | "workflow_run" | "check_run" | "check_suite" => {
            &object["head_sha"]
        }
        "deployment" => &object["sha"],
        _ if payload["pull_request"].is_object() => &payload["pull_request"]["head"]["sha"],
        _ => &object["commit_id"],
    })
}

fn branch(event: &str, payload: &Value, object: &Value) -> String {
    let name = name(match event {
        "push" | "create" | "delete" => &payload["ref"],
        "pull_request" => &object["head"]["ref"],
        "check_run" => &object["check_suite"]["head_branch"],
        _ => &object["head_branch"],
    });
    match name.strip_prefix("refs/heads/") {
        Some(branch) => branch.to_owned(),
        None if name.starts_with("refs/") => String::new(),
        None => name,
    }
}

fn number(payload: &Value, object: &Value) -> Option<u64> {
    let numbers = [
        &payload["number"],
        &object["number"],
        &payload["pull_request"]["number"],
        &payload["issue"]["number"],
        &object["pull_requests"][0]["number"],
    ];
    numbers.into_iter().find_map(Value::as_u64).filter(|number| i64::try_from(*number).is_ok())
}

fn name(value: &Value) -> String {
    value.as_str().map(cut).unwrap_or_default()
}

pub(crate) fn cut(text: &str) -> String {
    text.chars().take(MAX_NAME_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(event: &str, delivery: &str, payload: &Value) -> WebhookRow {
        let at = "2026-09-01T00:00:00Z".parse().unwrap();
        WebhookRow::new(event, delivery, at, payload.to_string().as_bytes()).unwrap()
    }

    fn job(delivery: &str, attempt: u64, status: &str, started_at: &str) -> WebhookRow {
        let job = json!({
            "id": 7, "run_attempt": attempt, "status": status, "started_at": started_at,
            "created_at": "2026-08-01T10:00:00Z", "head_sha": "abc", "head_branch": "main",
        });
        let payload = json!({
            "action": status, "workflow_job": job,
            "repository": { "full_name": "acme/upstream", "owner": {} }, "sender": {},
        });
        row("workflow_job", delivery, &payload)
    }

    #[test]
    fn state_of_a_job_follows_attempt_then_status_then_time() {
        let in_order = [
            job("z", 1, "queued", "2026-08-01T10:00:00Z"),
            job("y", 1, "in_progress", "2026-08-01T12:00:00Z"),
            job("x", 1, "completed", "2026-08-01T10:00:01Z"),
            job("w", 2, "waiting", "2026-08-01T09:00:00Z"),
            job("v", 2, "waiting", "2026-08-01T10:00:01Z"),
            row("workflow_job", "u", &json!({"action": "deleted", "workflow_job": {"id": 7}})),
        ];
        assert!(in_order.is_sorted_by(|a, b| a.version < b.version), "{in_order:#?}");
        assert!(in_order.iter().all(|row| row.thing == "7"));
        assert!(in_order[5].is_deleted);
    }

    #[test]
    fn row_of_a_webhook_with_half_a_surrogate_has_the_rest() {
        let body = br#"{"ref": "refs/heads/main", "after": "def", "pusher": "half \ud83d", "size": 1e400}"#;
        let found = WebhookRow::new("push", "d", Timestamp::UNIX_EPOCH, body).unwrap();
        assert_eq!((&*found.sha, &*found.branch), ("def", "main"));
        assert!(found.document.contains("half \u{fffd}"), "{}", found.document);
    }

    #[test]
    fn webhook_that_does_not_say_whether_its_repository_is_private_as_github_does_is_private() {
        for (body, is_of_private) in [
            (r#"{"repository": {"private": true}}"#, true),
            (r#"{"repository": {"private": false}}"#, false),
            (r#"{"organization": {}}"#, false),
            (r#"{"repository": {"private": null}}"#, true),
            (r#"{"repository": 7}"#, true),
        ] {
            assert_eq!(is_private(body.as_bytes()), is_of_private, "{body}");
        }
    }

    #[test]
    fn row_names_repository_commit_branch_and_number() {
        let found = job("d", 1, "queued", "2026-08-01T10:00:00Z");
        assert_eq!(
            (&*found.repository, &*found.sha, &*found.branch, &*found.action),
            ("acme/upstream", "abc", "main", "queued")
        );
        assert!(!found.document.contains("acme/upstream"), "{}", found.document);
        let push = json!({"ref": "refs/heads/release/2", "after": "def", "head_commit": null});
        let found = row("push", "d", &push);
        assert_eq!(
            (&*found.thing, &*found.sha, &*found.branch),
            ("refs/heads/release/2@def", "def", "release/2")
        );
        assert_eq!(row("push", "d", &json!({"ref": "refs/tags/v1"})).branch, "");
        let review =
            json!({"review": {"id": 3}, "pull_request": {"number": 9, "head": {"sha": "abc"}}});
        let found = row("pull_request_review", "d", &review);
        assert_eq!((&*found.thing, found.number, &*found.sha), ("3", Some(9), "abc"));
        let branch = json!({"ref": "old", "ref_type": "branch"});
        assert!(row("delete", "d", &branch).is_deleted);
    }

    #[test]
    fn row_keeps_addresses_of_pages_and_none_of_githubs_api() {
        let run = |api: &str, pages: &str| {
            json!({ "action": "completed", "workflow_run": {
                "id": 7, "url": format!("{api}/repos/api/v3/actions/runs/7"),
                "html_url": format!("{pages}/api/v3/actions/runs/7"),
                "head_repository": { "id": 8, "keys_url": format!("{api}/repos/api/v3/keys{{/id}}") },
                "pull_requests": [{ "number": 9, "url": format!("{api}/repos/api/v3/pulls/9") }],
                "target_url": "https://ci.example/7", "previous_attempt_url": null,
            }})
        };
        for (api, pages) in [
            ("https://api.github.com", "https://github.com"),
            ("https://api.acme.ghe.com", "https://acme.ghe.com"),
            ("https://ghes.example/api/v3", "https://ghes.example"),
        ] {
            let found = row("workflow_run", "d", &run(api, pages)).document;
            let found: Value = serde_json::from_str(&found).unwrap();
            let kept = json!({ "action": "completed", "workflow_run": {
                "id": 7, "html_url": format!("{pages}/api/v3/actions/runs/7"),
                "head_repository": { "id": 8 }, "pull_requests": [{ "number": 9 }],
                "target_url": "https://ci.example/7", "previous_attempt_url": null,
            }});
            assert_eq!(found, kept);
        }
    }

    #[test]
    fn commit_branch_and_identity_are_found_where_each_event_has_them() {
        let head = json!({"sha": "abc", "ref": "topic"});
        for (event, payload, expected) in [
            (
                "pull_request",
                json!({"pull_request": {"id": 3, "head": head}}),
                ("3", "abc", "topic"),
            ),
            ("status", json!({"sha": "abc", "status": {}}), ("d", "abc", "")),
            ("issue_comment", json!({"comment": {"id": 4, "commit_id": "no"}}), ("4", "", "")),
            ("deployment", json!({"deployment": {"id": 5, "sha": "abc"}}), ("5", "abc", "")),
            (
                "check_run",
                json!({"check_run": {
                    "id": 6, "head_sha": "abc", "check_suite": {"head_branch": "main"}
                }}),
                ("6", "abc", "main"),
            ),
            ("commit_comment", json!({"comment": {"id": 7, "commit_id": "abc"}}), ("7", "abc", "")),
            ("alert", json!({"alert": {"number": 8}}), ("8", "", "")),
            ("package", json!({"package": {"node_id": "N9"}}), ("N9", "", "")),
            ("package", json!({"package": {"id": "P10"}}), ("P10", "", "")),
            (
                "repository_dispatch",
                json!({"repository_dispatch": {"id": 11}, "branch": "main"}),
                ("d", "", ""),
            ),
        ] {
            let found = row(event, "d", &payload);
            assert_eq!((&*found.thing, &*found.sha, &*found.branch), expected, "{event}");
        }
        for (name, is_event) in [
            ("push", true),
            ("pull_request_2", true),
            ("", false),
            ("Push", false),
            ("a-b", false),
            ("../a", false),
            (&*"a".repeat(64), true),
            (&*"a".repeat(65), false),
        ] {
            assert_eq!(is_event_name(name), is_event, "{name}");
        }
    }

    #[test]
    fn unknown_event_and_odd_fields_have_a_row_of_their_own() {
        let odd = json!({"action": ["x"], "workflow_job": "job", "repository": 7, "number": -1});
        for event in ["workflow_job", "from_the_future"] {
            let found = row(event, "the-delivery", &odd);
            assert_eq!((&*found.thing, &*found.action, found.number), ("the-delivery", "", None));
        }
        let long = json!({"action": "ä".repeat(9999), "ref": "x".repeat(9999)});
        let found = row("create", "d", &long);
        assert_eq!(
            (found.action.chars().count(), found.thing.len()),
            (MAX_NAME_CHARS, MAX_NAME_CHARS)
        );
        for body in ["", "[]", "null", "{", "\"a\""] {
            assert!(WebhookRow::new("push", "d", Timestamp::UNIX_EPOCH, body.as_bytes()).is_err());
        }
    }
}
