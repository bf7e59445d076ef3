//! The report of a job in the document. `crcr_domain::protocol::callback` reads it.

use crcr_domain::protocol::callback::SentWorkflow;
use schemars::{JsonSchema as _, Schema, SchemaGenerator};
use serde_json::{Value, json};

pub(crate) const ADDRESS: &str = "/github/callback";
pub(crate) const TAG: &str = "reports";
/// The name of the scheme by which a job says who it is.
pub(crate) const SECURITY: &str = "job";

pub(crate) fn described(generator: &mut SchemaGenerator) -> Value {
    let problem = json!({ "$ref": "#/components/responses/Problem" });
    json!({
        "operationId": "post_github_callback",
        "summary": "A job has started or ended",
        "description": "The body is the `client_payload` of the dispatch as it came, and the key `workflow`. A nightly \
                        or periodic run, which no dispatch started, has `event_type` and any `delivery_id` instead, \
                        and reports its end only. Unknown fields are ignored; a wrong detail is left out, and the \
                        answer has a warning. After a 429 or 503 send the same report again.",
        "tags": [TAG],
        "security": [{ (SECURITY): [] }],
        "requestBody": {
            "required": true,
            "content": { "application/json": { "schema": body(generator) } },
        },
        "responses": {
            "200": {
                "description": "The report was taken, or changes nothing",
                "content": { "application/json": { "schema": answer() } },
            },
            "400": problem, "401": problem, "403": problem, "408": problem, "413": problem, "429": problem,
            "503": problem,
        },
    })
}

fn body(generator: &mut SchemaGenerator) -> Value {
    let text = json!({ "type": "string" });
    json!({
        "type": "object",
        "required": ["delivery_id", "workflow"],
        "properties": {
            "delivery_id": text,
            "event_type": { "type": "string", "description": "`nightly` and `periodic` for runs of one's own" },
            "callback_token": { "type": "string", "description": "What proves to which dispatch the run belongs" },
            "payload": { "type": "object", "description": "For runs of one's own, `head_sha` is the commit" },
            "workflow": workflow(generator),
        },
    })
}

fn workflow(generator: &mut SchemaGenerator) -> Schema {
    let mut workflow = SentWorkflow::json_schema(generator);
    workflow.insert("required".to_owned(), json!(["status", "run_id", "name"]));
    workflow
}

fn answer() -> Value {
    let said = json!({ "type": "boolean" });
    json!({
        "type": "object",
        "required": ["ok"],
        "properties": {
            "ok": said, "duplicate": said, "dry_dispatch": said,
            "stale": { "type": "boolean", "description": "A later state was reported before" },
            "status": { "enum": ["in_progress", "completed", "ignored"] },
            "warnings": { "type": "array", "items": { "type": "string" } },
        },
    })
}
