//! The JSON Schema of the file, for editors.

use serde_json::{Value, json};

use super::TakenEvent;
use super::paths::{MAX_PATTERN_CHARS, MAX_PATTERNS};
use super::reader::{MAX_DISPATCHES, MAX_PROBES, MAX_QUIET_MINUTES};

/// The name of the schema, which is also its address.
pub const SCHEMA_ID: &str =
    "https://raw.githubusercontent.com/pytorch/crcr/main/schemas/downstream.json";

/// Covers shapes, names and bounds, which is what editors can check.
pub fn schema() -> Value {
    let other = r"?\[\]{}\\\u0000-\u001f\u007f-\u009f";
    let most = MAX_PATTERN_CHARS - 1;
    let path = format!(r"^(?!!?(\./|/))(?!!$)!?[^{other}]{{0,{most}}}[^/{other}]$");
    let number = |description: &str, least: u64, most: u64| {
        json!({
            "type": ["integer", "null"], "minimum": least, "maximum": most,
            "description": description,
        })
    };
    json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": SCHEMA_ID,
        "title": "What a backend takes of cross-repository CI",
        "description": "`.github/crcr.yml` of a downstream repository. Without it, everything is dispatched",
        "type": ["object", "null"],
        "additionalProperties": false,
        "properties": {
            "dispatch": {
                "type": ["object", "null"],
                "additionalProperties": false,
                "properties": {
                    "events": {
                        "type": ["array", "null"],
                        "minItems": 1,
                        "items": {"enum": TakenEvent::ALL},
                        "description": "The events that are dispatched; all of them if it is absent",
                    },
                    "paths": {
                        "type": ["array", "null"],
                        "minItems": 1,
                        "maxItems": MAX_PATTERNS,
                        "items": [{"allOf": [{"$ref": "#/definitions/path"}], "pattern": "^[^!]"}],
                        "additionalItems": {"$ref": "#/definitions/path"},
                        "description": "Changed files of a pull request that concern the backend; the last \
                                        pattern that matches a file decides",
                    },
                    "drafts": {
                        "enum": ["skip", "dispatch", null],
                        "description": "What is done with pull requests that are drafts",
                    },
                    "quiet-minutes": number(
                        "A head is dispatched after so many minutes without a newer one",
                        0,
                        MAX_QUIET_MINUTES,
                    ),
                    "max-per-day": number(
                        "Dispatches of a day, in UTC; required checks never wait for it",
                        1,
                        MAX_DISPATCHES,
                    ),
                },
            },
            "probes": {
                "type": ["object", "null"],
                "additionalProperties": false,
                "properties": {
                    "reruns-per-day": number(
                        "Failed runs of a day whose failed jobs run once more",
                        0,
                        MAX_PROBES,
                    ),
                    "commits-per-day": number(
                        "Commits of upstream that are run on a day to explain a failure",
                        0,
                        MAX_PROBES,
                    ),
                },
            },
        },
        "definitions": {"path": {"type": "string", "pattern": path}},
    })
}
