//! The `client_payload` of a dispatch, within GitHub's limit of 65,535 characters.
//!
//! Within [`limits::PAYLOAD_BYTES`] the webhook goes through unchanged. Over it, these go, in this
//! order, until it fits, and `"reduced": true` says so:
//!
//! 1. texts: `body`, `description`, `message` and `text` longer than 256 characters;
//! 2. repository blobs: of each repository only id, name, full name, default branch, clone URL,
//!    private, fork and owner's login stay;
//! 3. links: every key that ends with `_url`, except `html_url` and `clone_url`, and `_links`;
//! 4. long lists: all but the first 20 elements of any list except labels;
//! 5. everything but what downstream needs: action, number, head and base (SHA, ref, repository's
//!    full name and clone URL), labels, user, title, state, merged, `html_url`,
//!    `repository.full_name`, sender; of a push ref, before, after and the head commit's id; of a
//!    merge group its head and base.

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::limits;

/// The body of a dispatch, below GitHub's `event_type`.
#[derive(Debug, Serialize)]
pub struct ClientPayload {
    pub event_type: String,
    /// The delivery, by which a downstream workflow can tell a second one.
    pub delivery_id: String,
    pub payload: Box<RawValue>,
    /// Proves that a run received this dispatch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub callback_token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub callback_url: Option<String>,
    /// The webhook is not whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reduced: Option<bool>,
}

/// Builds a payload that GitHub takes.
///
/// Fails when `webhook` is no JSON, or when even what has to stay is too large.
pub fn build(
    event: &str,
    delivery: &str,
    webhook: &[u8],
    callback_token: Option<String>,
    callback_url: Option<String>,
) -> Result<ClientPayload, String> {
    let payload: Box<RawValue> =
        serde_json::from_slice(webhook).map_err(|error| error.to_string())?;
    let mut built = ClientPayload {
        event_type: event.to_owned(),
        delivery_id: delivery.to_owned(),
        payload,
        callback_token,
        callback_url,
        reduced: None,
    };
    if weight(&built)? <= limits::PAYLOAD_BYTES {
        return Ok(built);
    }
    built.reduced = Some(true);
    let mut value: Value = serde_json::from_slice(webhook).map_err(|error| error.to_string())?;
    for step in [cut_texts, cut_repositories, cut_links, cut_lists, keep_the_needed] {
        step(&mut value);
        built.payload = serde_json::value::to_raw_value(&value).map_err(|e| e.to_string())?;
        if weight(&built)? <= limits::PAYLOAD_BYTES {
            return Ok(built);
        }
    }
    Err(format!("the payload stays over {} bytes after every reduction", limits::PAYLOAD_BYTES))
}

/// Bytes of the serialised JSON, with `<`, `>` and `&` counted as six: GitHub's serialiser writes
/// them as `\u003c`.
fn weight(payload: &ClientPayload) -> Result<usize, String> {
    let text = serde_json::to_vec(payload).map_err(|error| error.to_string())?;
    Ok(text.iter().map(|byte| if b"<>&".contains(byte) { 6 } else { 1 }).sum())
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

    #[test]
    fn what_fits_goes_through_byte_for_byte() {
        let text = br#"{"action": "opened",  "number": 1.0, "big": 12345678901234567890123}"#;
        let built = build("pull_request", "d", text, Some("v1.a".to_owned()), None).unwrap();
        assert_eq!(built.payload.get().as_bytes(), text);
        assert_eq!(built.reduced, None);
    }

    #[test]
    fn a_long_body_is_the_first_to_go() {
        let text = webhook(&"b".repeat(80_000), 0).to_string();
        let built = build("pull_request", "d", text.as_bytes(), None, None).unwrap();
        let payload: Value = serde_json::from_str(built.payload.get()).unwrap();
        assert_eq!(built.reduced, Some(true));
        assert!(payload["repository"]["keys_url"].is_string(), "the rest stays");
    }

    #[test]
    fn angle_brackets_weigh_six() {
        let text = webhook(&"<".repeat(12_000), 0).to_string();
        assert!(text.len() < limits::PAYLOAD_BYTES);
        assert!(build("pull_request", "d", text.as_bytes(), None, None).unwrap().reduced.is_some());
    }

    #[test]
    fn what_downstream_needs_always_stays() {
        let mut huge = webhook(&"b".repeat(80_000), 5000);
        huge["junk"] =
            Value::Object((0..5000).map(|n| (format!("key-{n}"), json!("v".repeat(50)))).collect());
        let built = build(
            "pull_request",
            "d",
            huge.to_string().as_bytes(),
            Some("v1.a".to_owned()),
            Some("https://relay.test/github/callback".to_owned()),
        )
        .unwrap();
        let keys = serde_json::to_value(&built).unwrap();
        assert!(keys["callback_url"].is_string() && keys.as_object().unwrap().len() <= 10);
        let payload: Value = serde_json::from_str(built.payload.get()).unwrap();
        assert_eq!(payload["pull_request"]["head"]["sha"], "0".repeat(40));
        assert_eq!(
            payload["pull_request"]["base"]["repo"]["clone_url"],
            "https://github.com/acme/upstream.git"
        );
        assert_eq!(payload["pull_request"]["labels"][0]["name"], "bug");
        assert_eq!(payload["sender"]["login"], "alice");
        assert_eq!(payload["action"], "synchronize");
        assert!(weight(&built).unwrap() <= limits::PAYLOAD_BYTES);
    }
}
