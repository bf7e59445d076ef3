//! Data that CI jobs leave behind, as both its readers and the results database know it.

pub mod codeowners;
pub mod ended_ci;
pub mod job_log;
pub mod pull_request;
pub mod quarantine;
pub mod stable_name;
pub mod test_row;
pub mod test_run;
pub mod webhook;
pub mod workflow;

use serde::Deserialize;
use serde_json::value::RawValue;

/// A field of a document; `None` if it is absent or of another type.
fn part<'a, T: Deserialize<'a>>(field: Option<&'a RawValue>) -> Option<T> {
    serde_json::from_str(field?.get()).ok()
}

#[cfg(test)]
fn row(event: &str, payload: &serde_json::Value) -> webhook::WebhookRow {
    let at = "2026-09-01T00:00:00Z".parse().unwrap();
    webhook::WebhookRow::new(event, "d", at, payload.to_string().as_bytes()).unwrap()
}
