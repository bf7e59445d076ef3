//! `crcr allowlist schema`: the JSON Schema of the file, for editors.

use std::process::ExitCode;

use crcr_domain::EventKind;
use serde_json::{Value, json};

use crate::failure::Outcome;
use crate::printer::Printer;

pub fn run(printer: &Printer) -> Outcome {
    printer.data(&format!("{:#}\n", schema()));
    Ok(ExitCode::SUCCESS)
}

/// Covers shapes and names, which is what editors can check. Rules that compare entries are left to
/// `crcr allowlist validate`.
fn schema() -> Value {
    let owner = "[A-Za-z0-9]+(-[A-Za-z0-9]+)*(_[A-Za-z0-9]+)?";
    let suffix = r"\.([gG][iI][tT]|[wW][iI][kK][iI])";
    let repository =
        format!(r"^(?=.{{1,39}}/){owner}/(?!\.{{1,2}}$)(?!.*{suffix}$)[A-Za-z0-9._-]{{1,100}}$");
    let oncall =
        format!("@?(?=[A-Za-z0-9_-]{{1,39}}([^A-Za-z0-9_-]|$)){owner}(/[A-Za-z0-9_-]{{1,100}})?");
    let oncalls = format!(r"^[\s,]*({oncall}(\s*,[\s,]*{oncall})*)?[\s,]*$");
    json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": "https://raw.githubusercontent.com/pytorch/crcr/main/schemas/allowlist.json",
        "title": "Allowlist of cross-repository CI",
        "description": "Which downstream repositories take part, and how deeply",
        "type": ["object", "null"],
        "additionalProperties": false,
        "properties": {
            "L1": {"$ref": "#/definitions/list", "description":
                "Onboarding: receives events; nothing of its results is kept"},
            "L2": {"$ref": "#/definitions/list", "description":
                "Observation: results on the HUD"},
            "L3": {"$ref": "#/definitions/devices", "description":
                "Stable: a check run where the pull request carries `ciflow/crcr/<device>`"},
            "L4": {"$ref": "#/definitions/list", "description":
                "Mature: always a check run, and it blocks the merge"},
        },
        "definitions": {
            "repository": {"type": "string", "pattern": repository},
            "list": {
                "type": ["array", "null"],
                "items": {"anyOf": [
                    {"$ref": "#/definitions/repository"},
                    {
                        "allOf": [{"$ref": "#/definitions/members"}],
                        "type": "object",
                        "minProperties": 1,
                        "maxProperties": 1,
                    },
                ]},
            },
            "devices": {
                "type": ["object", "null"],
                "propertyNames": {"pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,37}$"},
                "additionalProperties": {"$ref": "#/definitions/members"},
            },
            "members": {
                "type": ["object", "null"],
                "propertyNames": {"$ref": "#/definitions/repository"},
                "additionalProperties": {"$ref": "#/definitions/entry"},
            },
            "entry": {"anyOf": [
                {"$ref": "#/definitions/oncalls"},
                {
                    "type": "object",
                    "additionalProperties": false,
                    "properties": {
                        "oncalls": {"$ref": "#/definitions/oncalls"},
                        "events": {
                            "type": "array",
                            "minItems": 1,
                            "items": {"enum": EventKind::ALL},
                        },
                    },
                },
            ]},
            "oncalls": {"anyOf": [
                {"type": "null"},
                {
                    "type": "string",
                    "pattern": oncalls,
                    "description": "Names with commas between them",
                },
                {"type": "array", "items": {"type": "string", "pattern": format!("^{oncall}$")}},
            ]},
        },
    })
}
