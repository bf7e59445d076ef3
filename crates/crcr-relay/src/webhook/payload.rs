//! The `client_payload` of a dispatch, within GitHub's limit of 65,535 characters.
//!
//! A webhook of up to [`limits::PAYLOAD_BYTES`] is dispatched unchanged. A larger one is reduced once,
//! when it is accepted; the payload then has `"reduced": true`. These go, in this order, until the
//! rest fits:
//!
//! 1. texts: `body`, `description`, `message` and `text` are cut to 256 characters;
//! 2. repositories: only id, name, full name, default branch, clone URL, page, private, fork and the
//!    owner's login stay;
//! 3. links: every key that ends with `_url`, except `html_url` and `clone_url`, and `_links`;
//! 4. long lists: all but the first 20 elements of every list except labels;
//! 5. everything that downstream doesn't need. What stays is action, number, head and base (SHA, ref,
//!    the repository's full name and clone URL), labels, user, title, state, merged, `html_url`,
//!    `repository.full_name`, sender; for a push, ref, before, after and the head commit's id; for a
//!    merge group, its head and base.

use crcr_domain::probes::ProbeTag;
use crcr_domain::protocol::standard_json::standard_json;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::limits;

/// The body of a dispatch, below GitHub's `event_type`.
#[derive(Debug, Serialize)]
pub(crate) struct ClientPayload {
    pub(crate) event_type: String,
    /// The delivery, by which a downstream workflow can recognise a repeated dispatch.
    pub(crate) delivery_id: String,
    pub(crate) payload: Box<RawValue>,
    /// Proves that a run received this dispatch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) callback_token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) callback_url: Option<String>,
    /// Set when the webhook was reduced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reduced: Option<bool>,
    /// Set in what the relay itself asks for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) crcr: Option<ProbePayload>,
}

#[derive(Debug, Serialize)]
pub(crate) struct ProbePayload {
    pub(crate) probe: ProbeTag,
}

/// Reduces a webhook that is too large to be dispatched; `None` when it fits as it is.
///
/// If it stays too large after every step, the result is what the last one left. Fails when it isn't JSON, or is
/// nested too deep to be read.
pub fn reduce(webhook: &[u8]) -> Result<Option<Vec<u8>>, serde_json::Error> {
    if weight(webhook) <= limits::PAYLOAD_BYTES {
        return Ok(None);
    }
    // Most webhooks are what the standard allows, and looking for the rest takes as long as reading.
    let read = serde_json::from_slice::<Value>(webhook);
    let mut value = read.or_else(|_| serde_json::from_slice(&standard_json(webhook)))?;
    let mut reduced = vec![];
    for step in [cut_texts, cut_repositories, cut_links, cut_lists, keep_the_needed] {
        step(&mut value);
        reduced = serde_json::to_vec(&value)?;
        if weight(&reduced) <= limits::PAYLOAD_BYTES {
            break;
        }
    }
    Ok(Some(reduced))
}

/// Takes a webhook as it was stored.
///
/// Fails when it isn't JSON or is larger than GitHub accepts.
pub(crate) fn parse(webhook: &[u8]) -> Result<Box<RawValue>, String> {
    if weight(webhook) > limits::PAYLOAD_BYTES {
        let most = limits::PAYLOAD_BYTES;
        return Err(format!("the payload stays over {most} bytes after every reduction"));
    }
    serde_json::from_slice(webhook).map_err(|error| error.to_string())
}

/// The length of JSON as GitHub counts it: its serialiser writes `<`, `>` and `&` as `\u003c` and so
/// on.
fn weight(json: &[u8]) -> usize {
    json.len() + 5 * memchr::memchr3_iter(b'<', b'>', b'&', json).count()
}

fn cut_texts(value: &mut Value) {
    visit(value, &|object| {
        for key in ["body", "description", "message", "text"] {
            if let Some(Value::String(text)) = object.get_mut(key)
                && let Some((end, _)) = text.char_indices().nth(256)
            {
                text.truncate(end);
                text.push('…');
            }
        }
    });
}

fn cut_repositories(value: &mut Value) {
    visit(value, &|object| {
        if object.contains_key("full_name") && object.contains_key("owner") {
            let login = object["owner"].get("login").cloned().unwrap_or_default();
            let kept = [
                "id",
                "name",
                "full_name",
                "default_branch",
                "clone_url",
                "html_url",
                "private",
                "fork",
            ];
            object.retain(|key, _| kept.contains(&key.as_str()));
            object.insert("owner".to_owned(), json!({ "login": login }));
        }
    });
}

fn cut_links(value: &mut Value) {
    visit(value, &|object| {
        object.retain(|key, _| {
            let link = key.ends_with("_url") && key != "html_url" && key != "clone_url";
            !link && key != "_links" && key != "url"
        });
    });
}

fn cut_lists(value: &mut Value) {
    visit(value, &|object| {
        for (key, value) in object.iter_mut() {
            if let Value::Array(list) = value
                && key != "labels"
            {
                list.truncate(20);
            }
        }
    });
}

fn keep_the_needed(value: &mut Value) {
    let side = |side: &Value| {
        json!({
            "sha": side["sha"], "ref": side["ref"],
            "repo": {"full_name": side["repo"]["full_name"], "clone_url": side["repo"]["clone_url"]}
        })
    };
    let login = |user: &Value| json!({ "login": user["login"], "id": user["id"] });
    let mut kept = Map::new();
    for key in ["action", "number", "ref", "before", "after", "created", "deleted", "forced"] {
        if let Some(value) = value.get(key) {
            kept.insert(key.to_owned(), value.clone());
        }
    }
    if let Some(pull) = value.get("pull_request") {
        let names: Vec<Value> = pull["labels"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|label| json!({ "name": label["name"] }))
            .collect();
        kept.insert(
            "pull_request".to_owned(),
            json!({
                "number": pull["number"], "title": pull["title"], "html_url": pull["html_url"],
                "updated_at": pull["updated_at"], "state": pull["state"],
                "merged": pull["merged"], "user": login(&pull["user"]), "labels": names,
                "head": side(&pull["head"]), "base": side(&pull["base"])
            }),
        );
    }
    if let Some(group) = value.get("merge_group") {
        kept.insert(
            "merge_group".to_owned(),
            json!({
                "head_sha": group["head_sha"], "head_ref": group["head_ref"],
                "base_sha": group["base_sha"], "base_ref": group["base_ref"]
            }),
        );
    }
    if let Some(commit) = value.get("head_commit") {
        kept.insert("head_commit".to_owned(), json!({ "id": commit["id"] }));
    }
    let repository = json!({
        "full_name": value["repository"]["full_name"], "clone_url": value["repository"]["clone_url"]
    });
    kept.insert("repository".to_owned(), repository);
    kept.insert("sender".to_owned(), login(&value["sender"]));
    *value = Value::Object(kept);
}

fn visit(value: &mut Value, change: &dyn Fn(&mut Map<String, Value>)) {
    match value {
        Value::Object(object) => {
            change(object);
            object.values_mut().for_each(|inner| visit(inner, change));
        }
        Value::Array(list) => list.iter_mut().for_each(|inner| visit(inner, change)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn webhook(body: &str, files: usize) -> Value {
        let repo = json!({
            "id": 1, "full_name": "acme/upstream", "clone_url": "https://github.com/acme/upstream.git",
            "owner": {"login": "acme", "avatar_url": "https://a.test/".repeat(20)},
            "keys_url": "https://api.github.com/{/key_id}"
        });
        json!({
            "action": "synchronize", "number": 7,
            "pull_request": {
                "number": 7, "title": "Add <ops>", "body": body, "html_url": "https://github.com/x",
                "updated_at": "2026-08-01T10:00:00Z", "labels": [{"name": "bug", "color": "f00"}],
                "user": {"login": "alice", "id": 5},
                "head": {"sha": "0".repeat(40), "ref": "topic", "repo": repo},
                "base": {"sha": "1".repeat(40), "ref": "main", "repo": repo}
            },
            "files": vec!["x".repeat(100); files],
            "repository": repo, "sender": {"login": "alice", "id": 5}
        })
    }

    fn reduced(webhook: &Value) -> Option<Value> {
        let reduced = reduce(webhook.to_string().as_bytes()).unwrap()?;
        Some(serde_json::from_str(parse(&reduced).unwrap().get()).unwrap())
    }

    #[test]
    fn webhook_that_fits_is_unchanged() {
        let text = br#"{"action": "opened",  "number": 1.0, "big": 12345678901234567890123}"#;
        assert_eq!(reduce(text).unwrap(), None);
        assert_eq!(parse(text).unwrap().get().as_bytes(), text);
    }

    #[test]
    fn long_texts_are_cut_first() {
        let payload = reduced(&webhook(&"b".repeat(80_000), 0)).unwrap();
        assert!(payload["repository"]["keys_url"].is_string(), "the rest stays");
        assert_eq!(payload["pull_request"]["body"].as_str().unwrap().chars().count(), 257);
    }

    #[test]
    fn angle_bracket_counts_as_six_bytes() {
        let webhook = webhook(&"<".repeat(12_000), 0);
        assert!(webhook.to_string().len() < limits::PAYLOAD_BYTES);
        assert!(reduced(&webhook).is_some());
    }

    #[test]
    fn reduced_webhook_keeps_what_downstream_needs() {
        let mut huge = webhook(&"b".repeat(80_000), 5000);
        huge["junk"] =
            Value::Object((0..5000).map(|n| (format!("key-{n}"), json!("v".repeat(50)))).collect());
        let payload = reduced(&huge).unwrap();
        assert_eq!(payload["pull_request"]["head"]["sha"], "0".repeat(40));
        assert_eq!(
            payload["pull_request"]["base"]["repo"]["clone_url"],
            "https://github.com/acme/upstream.git"
        );
        assert_eq!(payload["pull_request"]["labels"][0]["name"], "bug");
        assert_eq!(payload["sender"]["login"], "alice");
        assert_eq!(payload["action"], "synchronize");
    }

    #[test]
    fn webhook_that_stays_too_large_is_an_error() {
        let mut huge = webhook("", 0);
        huge["pull_request"]["labels"] = json!(vec![json!({ "name": "l".repeat(100) }); 1000]);
        let reduced = reduce(huge.to_string().as_bytes()).unwrap().unwrap();
        assert!(parse(&reduced).unwrap_err().contains("stays over 60000 bytes"));
    }
}
