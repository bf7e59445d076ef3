//! One step of a job.

use serde_yaml::Value;

use super::scope::ContextScope;

pub struct JobStep<'a> {
    pub value: &'a Value,
    pub scope: ContextScope,
    pub events: Vec<String>,
}

/// The action of a step without its version, in lower case as GitHub doesn't distinguish it; a path of this
/// repository as it is.
pub fn action_path(step: &Value) -> String {
    let uses = step.get("uses").and_then(Value::as_str).unwrap_or_default();
    match uses.starts_with("./") {
        true => uses.to_owned(),
        false => uses.split('@').next().unwrap_or_default().to_lowercase(),
    }
}

pub fn is_checkout_pr(path: &str) -> bool {
    path.trim_end_matches('/').ends_with("/checkout-pr")
}

/// An input of a step, as text.
pub fn input(step: &Value, name: &str) -> Option<String> {
    let with = step.get("with")?.as_mapping()?;
    let given =
        with.iter().find(|(key, _)| key.as_str().is_some_and(|key| key.eq_ignore_ascii_case(name)));
    match given?.1 {
        Value::String(text) => Some(text.clone()).filter(|text| !text.trim().is_empty()),
        Value::Bool(value) => Some(value.to_string()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}
