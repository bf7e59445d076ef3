//! The report of a job in the document. `crcr_domain::protocol::callback` reads it, and also takes numbers as texts and
//! lists as JSON texts.

use crcr_domain::checks::lifecycle::Conclusion;
use crcr_domain::protocol::callback::FailedTest;
use crcr_domain::results::triage::TriageVerdict;
use schemars::SchemaGenerator;
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

fn workflow(generator: &mut SchemaGenerator) -> Value {
    let (text, time) =
        (json!({ "type": "string" }), json!({ "type": "string", "format": "date-time" }));
    let (address, count) =
        (json!({ "type": "string", "format": "uri" }), json!({ "type": "integer", "minimum": 0 }));
    let count_names = ["passed", "failed", "skipped", "total"];
    let counts: serde_json::Map<String, Value> =
        count_names.into_iter().map(|name| (name.to_owned(), count.clone())).collect();
    let names = Conclusion::BEST_TO_WORST.iter().map(|conclusion| json!(conclusion.as_str()));
    let conclusions: Vec<Value> = names.chain([Value::Null]).collect();
    let properties = json!({
        "status": { "enum": ["in_progress", "completed"] },
        "conclusion": { "enum": conclusions, "description": "Needed with `completed`" },
        "run_id": { "type": ["string", "integer"], "description": "A number on GitHub, a UUID elsewhere" },
        "run_attempt": { "type": "integer", "minimum": 1, "default": 1 },
        "name": { "type": "string", "description": "Of the workflow" },
        "job_name": text,
        "run_ended": { "type": "boolean", "description": "Nothing else of the run will report" },
        "url": address,
        "check_run_id": text,
        "started_at": time,
        "completed_at": time,
        "test_results": { "type": "object", "properties": counts },
        "failed_tests": { "type": "array", "items": text },
        "failed_tests_detail": { "type": "array", "items": generator.subschema_for::<FailedTest>() },
        "triage_verdict": generator.subschema_for::<TriageVerdict>(),
        "artifact_url": address,
        "phase": { "type": "string", "examples": ["checkout", "setup", "build", "test"] },
        "environment": text,
    });
    json!({
        "type": "object",
        "required": ["status", "run_id", "name"],
        "properties": properties,
    })
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
