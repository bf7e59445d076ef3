//! Parses and validates the report of a downstream job (callback body, schema version 1).
//!
//! The body is the dispatched `client_payload` with an additional key `workflow`. Facts about the upstream
//! pull request are never taken from it. A fault in a detail costs that detail and leaves a warning, but
//! never the result: reporters in the field send what they like there.

mod body_fields;
mod details;
mod sent_workflow;

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Number, Value};

use self::details::DetailReader;
pub use self::details::ReportDetails;
pub use self::sent_workflow::SentWorkflow;
use crate::checks::lifecycle::JobState;
use crate::protocol::event::is_sha;
use crate::text::breaks_text;

pub const NAME_CHARS: usize = 200;
pub(crate) const URL_BYTES: usize = 2000;
/// More failing tests of one report are dropped.
pub const FAILED_TESTS: usize = 1000;
/// A longer message of a failing test is cut.
pub const MESSAGE_CHARS: usize = 1000;
/// A longer stack trace is cut.
pub const STACK_TRACE_CHARS: usize = 4000;
/// All texts of a report's failing tests, in bytes. What doesn't fit is dropped.
pub(crate) const FAILED_TESTS_BYTES: usize = 128 * 1024;
/// A check run names this many failing tests. The others are only counted.
pub(crate) const SHOWN_TESTS: usize = 20;
/// Maximum nesting of arrays and objects.
pub(crate) const DEPTH: usize = 64;

#[derive(Debug, Clone, PartialEq)]
pub struct Callback {
    pub kind: CallbackKind,
    /// The delivery that caused the run. For self-reports any text: some name the upstream commit.
    pub delivery: String,
    /// The upstream commit that a self-report says it tested. Nobody has looked whether it exists.
    pub claimed_commit: Option<String>,
    /// The token of the dispatch, if the report contains it.
    pub callback_token: Option<String>,
    pub state: JobState,
    /// Whether nothing else of the run will report. Runs elsewhere than on GitHub end by it.
    pub run_ended: bool,
    pub job: JobId,
    /// Whether it doesn't say which attempt of the run it is of. Then it counts as one of the first.
    pub lacks_attempt: bool,
    pub details: ReportDetails,
}

/// What caused the run that a report is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallbackKind {
    Dispatch,
    /// A nightly run, started by the downstream repository.
    Nightly,
    /// A periodic run, started by the downstream repository.
    Periodic,
}

impl CallbackKind {
    pub fn is_self_report(self) -> bool {
        self != Self::Dispatch
    }
}

/// One job of one attempt of one run.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct JobId {
    /// A decimal number on GitHub, a UUID elsewhere.
    pub run_id: String,
    pub run_attempt: u32,
    pub workflow: String,
    /// The name of the job, if the reporter sends it.
    pub job: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct TestCounts {
    pub passed: u64,
    pub failed: u64,
    pub skipped: u64,
    /// The sum of the others, unless the reporter sends a total.
    pub total: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct FailedTest {
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub classname: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stacktrace: Option<String>,
    /// How long it took, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration: Option<f64>,
}

impl FailedTest {
    fn text_bytes(&self) -> usize {
        let texts = [&self.classname, &self.file, &self.message, &self.stacktrace];
        self.name.len() + texts.into_iter().flatten().map(String::len).sum::<usize>()
    }
}

/// Keeps the first tests within [`FAILED_TESTS`] and [`FAILED_TESTS_BYTES`]. The names of all tests go
/// before messages, and messages before stack traces. Returns whether something was dropped.
pub fn limit_failed_tests(tests: &mut Vec<FailedTest>) -> bool {
    let mut is_cut = tests.len() > FAILED_TESTS;
    tests.truncate(FAILED_TESTS);
    let mut total: usize = tests.iter().map(FailedTest::text_bytes).sum();
    let parts: [fn(&mut FailedTest) -> &mut Option<String>; 2] =
        [|test| &mut test.stacktrace, |test| &mut test.message];
    for part in parts {
        for test in tests.iter_mut().rev() {
            if total <= FAILED_TESTS_BYTES {
                return is_cut;
            }
            if let Some(dropped) = part(test).take() {
                total -= dropped.len();
                is_cut = true;
            }
        }
    }
    while total > FAILED_TESTS_BYTES
        && let Some(dropped) = tests.pop()
    {
        total -= dropped.text_bytes();
        is_cut = true;
    }
    is_cut
}

/// Why a body is rejected: the field, what was received and what is expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    #[error("Invalid JSON body")]
    NotJson,
    #[error("Invalid JSON body: received {0}, expected an object")]
    NotAnObject(&'static str),
    /// Nested deeper than [`DEPTH`].
    #[error("Invalid JSON body: nested deeper than {DEPTH}")]
    TooDeep,
    #[error("callback body missing required field: {0}")]
    Missing(&'static str),
    #[error(
        "unknown callback status: '{0}' (`workflow.status`, expected 'in_progress' or 'completed')"
    )]
    Status(String),
    /// Self-reports are only sent for completed runs.
    #[error("nightly/periodic callbacks must have status 'completed', got '{0}'")]
    SelfReportStatus(String),
    #[error("callback body field `{field}`: received {received}, expected {expected}")]
    Field { field: &'static str, received: String, expected: String },
}

/// Parses and validates a callback body. Unknown fields are ignored. The caller limits the size.
pub fn read(body: &[u8]) -> Result<Callback, BodyError> {
    match body.iter().find(|byte| !byte.is_ascii_whitespace()) {
        Some(b'{') => {}
        _ => {
            let value: Value = serde_json::from_slice(body).map_err(|_| BodyError::NotJson)?;
            return Err(BodyError::NotAnObject(kind_of(&value)));
        }
    }
    let mut fields = body_fields::read(body)?;
    let mut take = |name: &str| fields.remove(name).unwrap_or_default();
    let workflow = match take("workflow") {
        Value::Object(fields) => WorkflowFields(fields),
        Value::Null => return Err(BodyError::Missing("workflow")),
        other => return Err(unexpected("workflow", &other, "an object")),
    };
    let mut reader = DetailReader::default();
    let kind = match take("event_type").as_str() {
        Some("nightly") => CallbackKind::Nightly,
        Some("periodic") => CallbackKind::Periodic,
        _ => CallbackKind::Dispatch,
    };
    let delivery_id = take("delivery_id");
    let delivery = delivery(&delivery_id)?;
    let claimed_commit = [&delivery_id, &take("payload.head_sha")]
        .into_iter()
        .filter(|_| kind.is_self_report())
        .filter_map(|value| Some(value.as_str()?.trim().to_ascii_lowercase()))
        .find(|text| is_sha(text));
    let callback_token = match take("callback_token") {
        Value::String(token) if token.len() <= NAME_CHARS => Some(token),
        Value::Null => None,
        other => reader.drop("callback_token", &other, "a string"),
    };
    let attempt = run_attempt(&workflow)?;
    let job = JobId {
        run_id: run_id(&workflow)?,
        run_attempt: attempt.unwrap_or(1),
        workflow: match workflow.get("name") {
            Value::Null => return Err(BodyError::Missing("workflow.name")),
            other @ (Value::Array(_) | Value::Object(_) | Value::Bool(_)) => {
                return Err(unexpected("workflow.name", other, "a string"));
            }
            name => reader.name(name, "workflow.name").unwrap_or_else(|| reader.unnamed_workflow()),
        },
        job: reader.name(workflow.get("job_name"), "workflow.job_name"),
    };
    let state = state(&workflow, kind, &mut reader)?;
    let mut details = reader.details(&workflow);
    if take(body_fields::LEFT_OUT) != Value::Null {
        let text =
            "too many values in its fields: lists and objects are left out from some point on";
        details.warnings.push(text.to_owned());
    }
    let run_ended = matches!(workflow.get("run_ended"), Value::Bool(true));
    let lacks_attempt = attempt.is_none();
    Ok(Callback {
        kind,
        delivery,
        claimed_commit,
        callback_token,
        state,
        run_ended,
        job,
        lacks_attempt,
        details,
    })
}

struct WorkflowFields(serde_json::Map<String, Value>);

impl WorkflowFields {
    fn get(&self, name: &str) -> &Value {
        self.0.get(name).unwrap_or(&Value::Null)
    }
}

/// 1 to [`NAME_CHARS`] characters. Reporters outside GitHub Actions make up their own.
fn delivery(value: &Value) -> Result<String, BodyError> {
    const FIELD: &str = "delivery_id";
    let text = match value {
        Value::String(text) => one_line(text),
        Value::Number(number) => number.to_string(),
        Value::Null => return Err(BodyError::Missing(FIELD)),
        other => return Err(unexpected(FIELD, other, "a string")),
    };
    match text.chars().count() {
        0 => Err(BodyError::Missing(FIELD)),
        1..=NAME_CHARS => Ok(text),
        _ => Err(unexpected(FIELD, value, "at most 200 characters")),
    }
}

fn state(
    workflow: &WorkflowFields,
    kind: CallbackKind,
    reader: &mut DetailReader,
) -> Result<JobState, BodyError> {
    let status = match workflow.get("status") {
        Value::Null => return Err(BodyError::Missing("workflow.status")),
        Value::String(status) => status.as_str(),
        other => return Err(unexpected("workflow.status", other, "'in_progress' or 'completed'")),
    };
    if kind.is_self_report() && status != "completed" {
        return Err(BodyError::SelfReportStatus(shorten(status)));
    }
    let conclusion = workflow.get("conclusion");
    match status {
        "in_progress" => {
            if !is_blank(conclusion) {
                reader.drop::<()>("workflow.conclusion", conclusion, "null while in progress");
            }
            Ok(JobState::InProgress)
        }
        "completed" => Ok(JobState::Completed(reader.conclusion(conclusion))),
        other => Err(BodyError::Status(shorten(other))),
    }
}

fn run_id(workflow: &WorkflowFields) -> Result<String, BodyError> {
    const FIELD: &str = "workflow.run_id";
    let value = workflow.get("run_id");
    let text = match value {
        Value::Null => return Err(BodyError::Missing(FIELD)),
        Value::String(text) => text.trim().to_owned(),
        Value::Number(number) => whole(number).map_or(String::new(), |id| id.to_string()),
        other => return Err(unexpected(FIELD, other, "a number or a UUID")),
    };
    let is_valid = (1..=64).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if is_valid { Ok(text) } else { Err(unexpected(FIELD, value, "a number or a UUID")) }
}

fn run_attempt(workflow: &WorkflowFields) -> Result<Option<u32>, BodyError> {
    let value = workflow.get("run_attempt");
    let digits = value.as_str().unwrap_or_default().trim();
    let number: Option<u32> = match value {
        _ if is_blank(value) => return Ok(None),
        Value::String(_) if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().ok(),
        Value::Number(number) => whole(number).and_then(|number| number.try_into().ok()),
        _ => None,
    };
    // The deployed HUD stores 0 as 1.
    number
        .map(|number| Some(number.max(1)))
        .ok_or_else(|| unexpected("workflow.run_attempt", value, "a whole number from 1"))
}

/// Some languages write every number as a float, such as `2.0`.
fn whole(number: &Number) -> Option<u64> {
    number.as_u64().or_else(|| number.as_f64()?.to_string().parse().ok())
}

fn unexpected(field: &'static str, received: &Value, expected: &str) -> BodyError {
    BodyError::Field { field, received: received_text(received), expected: expected.to_owned() }
}

fn received_text(received: &Value) -> String {
    match received {
        Value::Array(_) | Value::Object(_) => kind_of(received).to_owned(),
        other => shorten(&other.to_string()),
    }
}

fn is_blank(value: &Value) -> bool {
    value.is_null() || value.as_str().is_some_and(|text| text.trim().is_empty())
}

/// A stranger's text without what [breaks text](breaks_text), and without blanks around it.
fn one_line(text: &str) -> String {
    let spaced: String = text.chars().map(|c| if breaks_text(c) { ' ' } else { c }).collect();
    spaced.trim().to_owned()
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// The start of a stranger's text, for a message.
fn shorten(text: &str) -> String {
    let mut start: String =
        text.chars().take(80).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if start.len() < text.len() {
        start.push('…');
    }
    start
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let job = self.job.as_deref().unwrap_or("None");
        write!(f, "{}/{job} of run {}, attempt {}", self.workflow, self.run_id, self.run_attempt)
    }
}

#[cfg(test)]
mod tests;
