//! Parses and validates the report of a downstream job (callback body, schema version 1).
//!
//! The body is the dispatched `client_payload` with an additional key `workflow`. Facts about the upstream
//! pull request are never taken from it.

use std::collections::HashSet;
use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::lifecycle::{Conclusion, JobState};
use crate::triage::TriageVerdict;

/// In characters.
pub const NAME_CHARS: usize = 200;
/// In bytes.
pub const URL_CHARS: usize = 2000;
/// More failing tests of one report are dropped.
pub const FAILED_TESTS: usize = 1000;
/// In characters. A longer message of a failing test is cut.
pub const MESSAGE_CHARS: usize = 1000;
/// In characters. A longer stack trace is cut.
pub const STACK_TRACE_CHARS: usize = 4000;
/// All texts of a report's failing tests, in bytes. What doesn't fit is dropped.
pub const FAILED_TESTS_BYTES: usize = 128 * 1024;
/// Maximum nesting of arrays and objects.
pub const DEPTH: usize = 64;

#[derive(Debug, Clone, PartialEq)]
pub struct Callback {
    pub kind: CallbackKind,
    /// The delivery that caused the run. For self-reports the upstream commit.
    pub delivery: String,
    /// The token of the dispatch, if the report contains it.
    pub callback_token: Option<String>,
    /// [`JobState::InProgress`] or [`JobState::Completed`].
    pub state: JobState,
    /// Whether nothing else of the run will report. Runs elsewhere than on GitHub end by it.
    pub run_ended: bool,
    pub job: JobId,
    pub details: ReportDetails,
    /// What was dropped from the report, for its sender.
    pub warnings: Vec<String>,
}

/// What caused the run that a report is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallbackKind {
    /// A dispatch of the relay.
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
    /// From 1.
    pub run_attempt: u32,
    pub workflow: String,
    /// The name of the job, if the reporter sends it.
    pub job: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ReportDetails {
    pub url: Option<String>,
    /// The check run of the downstream job, or `<run id>-<attempt>`.
    pub check_run_id: Option<String>,
    /// According to the reporter.
    pub started_at: Option<Timestamp>,
    /// According to the reporter.
    pub completed_at: Option<Timestamp>,
    pub tests: Option<TestCounts>,
    /// At most [`FAILED_TESTS`] and [`FAILED_TESTS_BYTES`].
    pub failed_tests: Vec<FailedTest>,
    /// The downstream repository's own verdict on a failure.
    #[serde(default)]
    pub triage: Option<TriageVerdict>,
    pub artifact_url: Option<String>,
    /// The phase in which the job ended, such as `checkout`, `setup`, `build` or `test`.
    pub phase: Option<String>,
    /// Where it ran, as the reporter describes it.
    pub environment: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TestCounts {
    pub passed: u64,
    pub failed: u64,
    pub skipped: u64,
    /// The sum of the others, unless the reporter sends a total.
    pub total: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FailedTest {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classname: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stacktrace: Option<String>,
    /// In seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
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
    if depth(body) > DEPTH {
        return Err(BodyError::TooDeep);
    }
    match body.iter().find(|byte| !byte.is_ascii_whitespace()) {
        Some(b'{') => {}
        _ => {
            let value: Value = serde_json::from_slice(body).map_err(|_| BodyError::NotJson)?;
            return Err(BodyError::NotAnObject(kind_of(&value)));
        }
    }
    let raw: RawCallback = serde_json::from_slice(body).map_err(|_| BodyError::NotJson)?;
    let workflow = match raw.workflow {
        Value::Object(fields) => WorkflowFields(fields),
        Value::Null => return Err(BodyError::Missing("workflow")),
        other => return Err(unexpected("workflow", &other, "an object")),
    };
    let kind = match &raw.event_type {
        Value::String(text) if text == "nightly" => CallbackKind::Nightly,
        Value::String(text) if text == "periodic" => CallbackKind::Periodic,
        Value::Null | Value::String(_) => CallbackKind::Dispatch,
        other => return Err(unexpected("event_type", other, "a string")),
    };
    let delivery =
        name(&raw.delivery_id, "delivery_id")?.ok_or(BodyError::Missing("delivery_id"))?;
    if kind.is_self_report() && !crate::event::is_sha(&delivery) {
        return Err(unexpected("delivery_id", &raw.delivery_id, "the upstream commit's 40 digits"));
    }
    let (details, warnings) = details(&workflow)?;
    Ok(Callback {
        kind,
        delivery,
        callback_token: match raw.callback_token {
            Value::String(token) if token.len() <= NAME_CHARS => Some(token),
            Value::Null => None,
            other => return Err(unexpected("callback_token", &other, "a string")),
        },
        state: state(&workflow, kind)?,
        run_ended: matches!(workflow.get("run_ended"), Value::Bool(true)),
        job: JobId {
            run_id: run_id(&workflow)?,
            run_attempt: run_attempt(&workflow)?,
            workflow: name(workflow.get("name"), "workflow.name")?
                .ok_or(BodyError::Missing("workflow.name"))?,
            job: name(workflow.get("job_name"), "workflow.job_name")?,
        },
        details,
        warnings,
    })
}

#[derive(Deserialize)]
struct RawCallback {
    #[serde(default)]
    event_type: Value,
    #[serde(default)]
    delivery_id: Value,
    #[serde(default)]
    callback_token: Value,
    #[serde(default)]
    workflow: Value,
}

struct WorkflowFields(serde_json::Map<String, Value>);

impl WorkflowFields {
    fn get(&self, name: &str) -> &Value {
        self.0.get(name).unwrap_or(&Value::Null)
    }
}

fn state(workflow: &WorkflowFields, kind: CallbackKind) -> Result<JobState, BodyError> {
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
        "in_progress" => match conclusion {
            Value::Null => Ok(JobState::InProgress),
            other => Err(unexpected("workflow.conclusion", other, "null while in progress")),
        },
        "completed" => conclusion
            .as_str()
            .and_then(|text| text.parse().ok())
            .map(JobState::Completed)
            .ok_or_else(|| {
                let known = Conclusion::BEST_TO_WORST.map(Conclusion::as_str).join(", ");
                unexpected("workflow.conclusion", conclusion, &format!("one of {known}"))
            }),
        other => Err(BodyError::Status(shorten(other))),
    }
}

fn run_id(workflow: &WorkflowFields) -> Result<String, BodyError> {
    const FIELD: &str = "workflow.run_id";
    let value = workflow.get("run_id");
    let text = match value {
        Value::Null => return Err(BodyError::Missing(FIELD)),
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_u64() => number.to_string(),
        other => return Err(unexpected(FIELD, other, "a number or a UUID")),
    };
    let is_valid = (1..=64).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if is_valid { Ok(text) } else { Err(unexpected(FIELD, value, "a number or a UUID")) }
}

fn run_attempt(workflow: &WorkflowFields) -> Result<u32, BodyError> {
    let value = workflow.get("run_attempt");
    let number = match value {
        Value::Null => return Ok(1),
        Value::String(text) if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse().ok(),
        Value::Number(number) => number.as_u64().and_then(|number| number.try_into().ok()),
        _ => None,
    };
    number
        .filter(|number| *number > 0)
        .ok_or_else(|| unexpected("workflow.run_attempt", value, "a whole number from 1"))
}

/// The details and what was dropped from them. A fault in what explains a failure never costs the result.
fn details(workflow: &WorkflowFields) -> Result<(ReportDetails, Vec<String>), BodyError> {
    let mut warnings = vec![];
    let mut failed_tests = failed_tests(workflow.get("failed_tests"))?;
    match detailed_tests(workflow.get("failed_tests_detail")) {
        Ok(mut detailed) => {
            let known: HashSet<String> = detailed.iter().map(|test| test.name.clone()).collect();
            detailed.extend(failed_tests.into_iter().filter(|test| !known.contains(&test.name)));
            failed_tests = detailed;
        }
        Err(problem) => {
            warnings.push(format!("`workflow.failed_tests_detail` was dropped: {problem}"));
        }
    }
    if limit_failed_tests(&mut failed_tests) {
        warnings.push(format!(
            "failing tests were cut to {FAILED_TESTS} and {} KiB of text",
            FAILED_TESTS_BYTES / 1024
        ));
    }
    let triage = match json_text(workflow.get("triage_verdict")).as_ref() {
        Ok(Value::Null) => None,
        Ok(value) => TriageVerdict::read(value)
            .map_err(|fault| warnings.push(format!("the triage verdict was dropped: {fault}")))
            .ok(),
        Err(problem) => {
            warnings.push(format!("the triage verdict was dropped: {problem}"));
            None
        }
    };
    if triage.as_ref().is_some_and(|verdict| verdict.truncated) {
        warnings.push("the triage verdict was too long and was cut".to_owned());
    }
    let details = ReportDetails {
        url: url(workflow.get("url"), "workflow.url")?,
        check_run_id: match workflow.get("check_run_id") {
            Value::Number(number) => Some(number.to_string()),
            other => name(other, "workflow.check_run_id")?,
        },
        started_at: time(workflow.get("started_at"), "workflow.started_at")?,
        completed_at: time(workflow.get("completed_at"), "workflow.completed_at")?,
        tests: tests(workflow.get("test_results"))?,
        failed_tests,
        triage,
        artifact_url: url(workflow.get("artifact_url"), "workflow.artifact_url")?,
        phase: name(workflow.get("phase"), "workflow.phase")?,
        environment: name(workflow.get("environment"), "workflow.environment")?,
    };
    Ok((details, warnings))
}

/// A value that an action's input can also carry as JSON text.
fn json_text(value: &Value) -> Result<Value, String> {
    match value {
        Value::String(text) if text.trim().is_empty() => Ok(Value::Null),
        Value::String(text) => serde_json::from_str(text).map_err(|error| error.to_string()),
        other => Ok(other.clone()),
    }
}

/// 1 to 200 characters without control characters. A blank string counts as absent.
fn name(value: &Value, field: &'static str) -> Result<Option<String>, BodyError> {
    match value {
        Value::Null => Ok(None),
        Value::String(text) if text.trim().is_empty() => Ok(None),
        Value::String(text)
            if text.chars().count() <= NAME_CHARS && !text.chars().any(char::is_control) =>
        {
            Ok(Some(text.clone()))
        }
        other => Err(unexpected(
            field,
            other,
            &format!("a string of 1 to {NAME_CHARS} characters without control characters"),
        )),
    }
}

pub(crate) fn url(value: &Value, field: &'static str) -> Result<Option<String>, BodyError> {
    let is_valid = |text: &str| {
        let host = text.strip_prefix("https://").unwrap_or_default();
        text.len() <= URL_CHARS
            && host.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '[')
            && !text.chars().any(|c| c.is_control() || c.is_whitespace() || "<>\"`\\".contains(c))
    };
    match value {
        Value::Null => Ok(None),
        Value::String(text) if text.is_empty() => Ok(None),
        Value::String(text) if is_valid(text) => Ok(Some(text.clone())),
        other => Err(unexpected(field, other, "an https URL")),
    }
}

fn time(value: &Value, field: &'static str) -> Result<Option<Timestamp>, BodyError> {
    match value {
        Value::Null => Ok(None),
        Value::String(text) if text.is_empty() => Ok(None),
        Value::String(text) => text
            .parse()
            .map(Some)
            .map_err(|_| unexpected(field, value, "a time such as 2026-08-01T10:00:00Z")),
        other => Err(unexpected(field, other, "a time such as 2026-08-01T10:00:00Z")),
    }
}

fn tests(value: &Value) -> Result<Option<TestCounts>, BodyError> {
    const FIELD: &str = "workflow.test_results";
    let expected = "an object with the whole numbers passed, failed and skipped";
    let counts = match value {
        Value::Null => return Ok(None),
        Value::Object(counts) => counts,
        other => return Err(unexpected(FIELD, other, expected)),
    };
    let count = |name: &str| match counts.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(count) => count
            .as_u64()
            .filter(|count| *count <= u64::from(u32::MAX))
            .map(Some)
            .ok_or_else(|| unexpected(FIELD, value, expected)),
    };
    let (passed, failed) = (count("passed")?.unwrap_or(0), count("failed")?.unwrap_or(0));
    let skipped = count("skipped")?.unwrap_or(0);
    let total = count("total")?.unwrap_or(passed + failed + skipped);
    Ok(Some(TestCounts { passed, failed, skipped, total }))
}

fn failed_tests(value: &Value) -> Result<Vec<FailedTest>, BodyError> {
    const FIELD: &str = "workflow.failed_tests";
    let list = match value {
        Value::Null => return Ok(vec![]),
        Value::Array(list) => list,
        other => return Err(unexpected(FIELD, other, "a list")),
    };
    let test =
        |test| failed_test(test).ok_or_else(|| unexpected(FIELD, test, "objects with a `name`"));
    list.iter().take(FAILED_TESTS + 1).map(test).collect()
}

/// The list that the deployed action's input `failed-tests-detail` becomes.
fn detailed_tests(value: &Value) -> Result<Vec<FailedTest>, String> {
    match json_text(value)? {
        Value::Null => Ok(vec![]),
        Value::Array(list) => list
            .iter()
            .take(FAILED_TESTS + 1)
            .map(|test| failed_test(test).ok_or_else(|| "an entry has no `name`".to_owned()))
            .collect(),
        other => Err(format!("received {}, expected a list", kind_of(&other))),
    }
}

/// Texts are cut, and odd optional values are left out. `None` if there is no name.
fn failed_test(test: &Value) -> Option<FailedTest> {
    let text = |name: &str, most: usize| -> Option<String> {
        let text = test.get(name).and_then(Value::as_str).filter(|text| !text.is_empty())?;
        let shown = |c: char| if c.is_control() && c != '\n' { ' ' } else { c };
        Some(text.chars().take(most).map(shown).collect())
    };
    Some(FailedTest {
        name: text("name", NAME_CHARS)?,
        classname: text("classname", NAME_CHARS),
        file: text("file", NAME_CHARS),
        message: text("message", MESSAGE_CHARS),
        stacktrace: text("stacktrace", STACK_TRACE_CHARS),
        duration: test.get("duration").and_then(Value::as_f64).filter(|s| (0.0..1e8).contains(s)),
    })
}

fn unexpected(field: &'static str, received: &Value, expected: &str) -> BodyError {
    let received = match received {
        Value::Array(_) | Value::Object(_) => kind_of(received).to_owned(),
        other => shorten(&other.to_string()),
    };
    BodyError::Field { field, received, expected: expected.to_owned() }
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

/// How deep arrays and objects nest, without parsing.
fn depth(body: &[u8]) -> usize {
    let (mut depth, mut deepest, mut in_string, mut escaped) = (0_usize, 0, false, false);
    for byte in body {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let job = self.job.as_deref().unwrap_or("None");
        write!(f, "{}/{job} of run {}, attempt {}", self.workflow, self.run_id, self.run_attempt)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const SHA: &str = "0123456789abcdef0123456789abcdef01234567";

    /// As the deployed action sends it.
    fn body() -> Value {
        json!({
            "event_type": "pull_request",
            "delivery_id": "72d3162e-cc78-11e3-81ab-4c9367dc0958",
            "payload": {"pull_request": {"number": 7, "labels": []}},
            "workflow": {
                "schema_version": "1", "status": "completed", "conclusion": "success",
                "name": "CI", "url": "https://github.com/acme/backend/actions/runs/12",
                "run_id": "12", "run_attempt": "2", "job_name": "test (3.12, linux)",
                "check_run_id": "34", "started_at": null,
                "completed_at": "2026-08-01T10:00:00.123456Z",
                "test_results": {"passed": 10, "failed": 1, "skipped": 2}
            }
        })
    }

    fn with(field: &str, value: Value) -> Result<Callback, BodyError> {
        let mut body = body();
        body["workflow"][field] = value;
        read(body.to_string().as_bytes())
    }

    #[test]
    fn body_of_the_deployed_action_is_accepted() {
        let callback = read(body().to_string().as_bytes()).unwrap();
        assert_eq!(callback.state, JobState::Completed(Conclusion::Success));
        assert_eq!((callback.job.run_id.as_str(), callback.job.run_attempt), ("12", 2));
        assert_eq!(callback.details.tests.unwrap().total, 13);
        assert_eq!(callback.kind, CallbackKind::Dispatch);
    }

    #[test]
    fn numbers_may_be_strings_and_run_ids_may_be_uuids() {
        let callback = with("run_id", json!(12)).unwrap();
        assert_eq!(callback.job.run_id, "12");
        let uuid = "0190a1b2-aaaa-bbbb-cccc-0123456789ab";
        assert_eq!(with("run_id", json!(uuid)).unwrap().job.run_id, uuid);
        assert_eq!(with("run_attempt", json!(3)).unwrap().job.run_attempt, 3);
        assert_eq!(with("run_attempt", Value::Null).unwrap().job.run_attempt, 1);
        assert_eq!(with("job_name", Value::Null).unwrap().job.job, None);
    }

    #[test]
    fn errors_name_field_received_and_expected_value() {
        let refusals: Vec<String> = [
            ("status", Value::Null),
            ("status", json!("queued")),
            ("conclusion", Value::Null),
            ("conclusion", json!("great")),
            ("name", json!("a\u{0}b")),
            ("name", json!("x".repeat(201))),
            ("job_name", json!(["a"])),
            ("run_id", json!(-1)),
            ("run_id", json!("1:2")),
            ("run_attempt", json!(0)),
            ("run_attempt", json!("+1")),
            ("url", json!("javascript:alert(1)")),
            ("url", json!("http://acme.test/")),
            ("artifact_url", json!("https://acme.test/ x")),
            ("started_at", json!("yesterday")),
            ("test_results", json!({"passed": -1})),
            ("test_results", json!({"passed": 1.5})),
            ("failed_tests", json!([{"file": "a.py"}])),
        ]
        .into_iter()
        .map(|(field, value)| with(field, value).unwrap_err().to_string())
        .collect();
        insta::assert_snapshot!(refusals.join("\n"));
    }

    #[test]
    fn body_that_isnt_an_object_is_rejected() {
        let text = |body: &[u8]| read(body).unwrap_err().to_string();
        assert_eq!(text(b""), "Invalid JSON body");
        assert_eq!(text(b"{"), "Invalid JSON body");
        assert_eq!(text(b"[]"), "Invalid JSON body: received a list, expected an object");
        assert_eq!(text(b"null"), "Invalid JSON body: received null, expected an object");
        assert_eq!(text(b"{}"), "callback body missing required field: workflow");
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(70), "]".repeat(70));
        assert_eq!(text(deep.as_bytes()), "Invalid JSON body: nested deeper than 64");
    }

    #[test]
    fn brackets_in_strings_dont_count_as_nesting() {
        assert_eq!(depth(br#"{"a": "[[[[\"[[", "b": [1]}"#), 2);
    }

    #[test]
    fn self_report_must_be_completed_and_name_a_commit() {
        let mut nightly = body();
        nightly["event_type"] = json!("nightly");
        let error = read(nightly.to_string().as_bytes()).unwrap_err().to_string();
        assert!(error.contains("delivery_id"), "{error}");
        nightly["delivery_id"] = json!(SHA);
        assert_eq!(read(nightly.to_string().as_bytes()).unwrap().kind, CallbackKind::Nightly);
        nightly["workflow"]["status"] = json!("in_progress");
        assert_eq!(
            read(nightly.to_string().as_bytes()).unwrap_err().to_string(),
            "nightly/periodic callbacks must have status 'completed', got 'in_progress'"
        );
    }

    #[test]
    fn failing_tests_are_limited_in_number_and_length() {
        let test = json!({"name": "n".repeat(300), "message": "m\u{7}".repeat(2000)});
        let callback = with("failed_tests", Value::Array(vec![test; 80])).unwrap();
        let kept = &callback.details.failed_tests;
        assert_eq!(kept.len(), 80);
        assert_eq!(kept[0].name.len(), NAME_CHARS);
        assert!(!kept[0].message.as_ref().unwrap().contains('\u{7}'));
        assert!(callback.warnings.is_empty());
        let names = (0..2000).map(|n| json!({"name": format!("{n:0200}"), "message": "why"}));
        let callback = with("failed_tests", Value::Array(names.collect())).unwrap();
        let kept = &callback.details.failed_tests;
        assert!((500..FAILED_TESTS).contains(&kept.len()), "{}", kept.len());
        assert!(kept.iter().all(|test| test.message.is_none()), "names go first");
        assert_eq!(callback.warnings, ["failing tests were cut to 1000 and 128 KiB of text"]);
    }

    #[test]
    fn details_of_failing_tests_are_merged_with_their_names() {
        let mut body = body();
        body["workflow"]["failed_tests"] = json!([{"name": "a"}, {"name": "b", "file": "b.py"}]);
        let detail = json!([
            {"name": "a", "classname": "TestA", "message": "1 != 2", "stacktrace": "a.py:7",
             "duration": 0.5, "colour": "red"},
            {"name": "c", "duration": -1}
        ]);
        for detail in [detail.clone(), Value::String(detail.to_string())] {
            body["workflow"]["failed_tests_detail"] = detail;
            let callback = read(body.to_string().as_bytes()).unwrap();
            let tests = callback.details.failed_tests;
            let names: Vec<&str> = tests.iter().map(|test| test.name.as_str()).collect();
            assert_eq!(names, ["a", "c", "b"]);
            assert_eq!(tests[0].classname.as_deref(), Some("TestA"));
            assert_eq!(tests[0].stacktrace.as_deref(), Some("a.py:7"));
            assert_eq!((tests[0].duration, tests[1].duration), (Some(0.5), None));
            assert_eq!(tests[2].file.as_deref(), Some("b.py"));
        }
    }

    #[test]
    fn faulty_explanation_is_dropped_with_a_warning_and_the_result_is_kept() {
        for (field, value, expected) in [
            ("failed_tests_detail", json!("[{"), "`workflow.failed_tests_detail` was dropped: EOF"),
            ("failed_tests_detail", json!([{"message": "m"}]), "an entry has no `name`"),
            ("failed_tests_detail", json!({}), "received an object, expected a list"),
            ("triage_verdict", json!({"schema_version": 1}), "`category`: expected one of"),
            ("triage_verdict", json!("{"), "the triage verdict was dropped: EOF"),
        ] {
            let callback = with(field, value).unwrap();
            assert_eq!(callback.warnings.len(), 1, "{:?}", callback.warnings);
            assert!(callback.warnings[0].contains(expected), "{:?}", callback.warnings);
            assert_eq!(callback.details.triage, None);
        }
    }
}
