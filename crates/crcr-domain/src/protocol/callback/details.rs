//! What a report says about its job beyond the result: how it is kept, and how it is read.

use std::collections::HashSet;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    FAILED_TESTS, FAILED_TESTS_BYTES, FailedTest, MESSAGE_CHARS, NAME_CHARS, SHOWN_TESTS,
    STACK_TRACE_CHARS, TestCounts, URL_BYTES, WorkflowFields, is_blank, kind_of,
    limit_failed_tests, one_line, received_text,
};
use crate::checks::lifecycle::Conclusion;
use crate::results::triage::TriageVerdict;
use crate::text::{breaks_text, fnv1a, utc_time};

/// How many warnings are kept of the reports of one job.
const WARNINGS_OF_A_JOB: usize = 20;

/// What a report says about its job beyond the result. Records and facts have it as JSON.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReportDetails {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The check run of the downstream job, or `<run id>-<attempt>`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub check_run_id: Option<String>,
    /// According to the reporter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// According to the reporter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tests: Option<TestCounts>,
    /// At most [`FAILED_TESTS`] and [`FAILED_TESTS_BYTES`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failed_tests: Vec<FailedTest>,
    /// How many more tests failed than `failed_tests` names.
    pub more_failed_tests: usize,
    /// The downstream repository's own verdict on a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub triage: Option<TriageVerdict>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub artifact_url: Option<String>,
    /// The phase in which the job ended, such as `checkout`, `setup`, `build` or `test`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Where it ran, as the reporter describes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environment: Option<String>,
    /// What was dropped from the report or changed in it, and why: for its sender and for the job's page.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

impl ReportDetails {
    /// The bytes of texts whose length the reporter chooses.
    pub fn text_bytes(&self) -> u64 {
        let tests: usize = self.failed_tests.iter().map(FailedTest::text_bytes).sum();
        let triage = self
            .triage
            .as_ref()
            .map_or(0, |triage| serde_json::to_vec(triage).map_or(0, |text| text.len()));
        let others = [&self.environment, &self.artifact_url, &self.long_url().cloned()];
        let others: usize = others.into_iter().flatten().map(String::len).sum();
        (tests + triage + others) as u64
    }

    /// The job's address, if it is longer than those of CI systems are.
    fn long_url(&self) -> Option<&String> {
        self.url.as_ref().filter(|url| url.len() > 300)
    }

    /// Keeps the names of the tests that a check run shows, and how many more there are.
    pub fn keep_shown_tests(&mut self) {
        let more = self.failed_tests.len().saturating_sub(SHOWN_TESTS);
        self.more_failed_tests += more;
        self.failed_tests.truncate(SHOWN_TESTS);
        self.keep_names_of_tests();
    }

    pub fn keep_names_of_tests(&mut self) {
        for test in &mut self.failed_tests {
            let FailedTest { name, file, .. } = std::mem::take(test);
            *test = FailedTest { name, file, ..FailedTest::default() };
        }
    }

    /// Whether `failed_tests` has every test that failed.
    pub fn names_all_failed_tests(&self) -> bool {
        let named = self.failed_tests.len() as u64;
        named > 0
            && self.more_failed_tests == 0
            && self.tests.is_none_or(|counts| counts.failed <= named)
    }

    /// Drops the texts, of which their owner has sent too many, and tells the reporter why.
    pub fn drop_texts(&mut self, warning: &str) {
        self.more_failed_tests += self.failed_tests.len();
        self.failed_tests.clear();
        self.environment = None;
        self.artifact_url = None;
        self.triage = None;
        if self.long_url().is_some() {
            self.url = None;
        }
        self.warnings.push(warning.to_owned());
    }

    /// Adds what an earlier report of the same job said and this one leaves out.
    #[must_use]
    pub fn after(self, earlier: Self) -> Self {
        let mut warnings = earlier.warnings;
        warnings.extend(self.warnings);
        warnings.sort_unstable();
        warnings.dedup();
        // Many steps of a build may share the name, each with warnings of its own.
        warnings.truncate(WARNINGS_OF_A_JOB);
        Self {
            url: self.url.or(earlier.url),
            check_run_id: self.check_run_id.or(earlier.check_run_id),
            started_at: self.started_at.or(earlier.started_at),
            completed_at: self.completed_at.or(earlier.completed_at),
            tests: self.tests.or(earlier.tests),
            failed_tests: self.failed_tests,
            more_failed_tests: self.more_failed_tests,
            triage: self.triage,
            artifact_url: self.artifact_url.or(earlier.artifact_url),
            phase: self.phase.or(earlier.phase),
            environment: self.environment.or(earlier.environment),
            warnings,
        }
    }
}

/// Collects what it had to drop.
#[derive(Default)]
pub(crate) struct DetailReader {
    warnings: Vec<String>,
    dropped_tests: usize,
}

impl DetailReader {
    pub(crate) fn details(mut self, workflow: &WorkflowFields) -> ReportDetails {
        let get = |name| workflow.get(name);
        ReportDetails {
            url: self.url(get("url"), "workflow.url"),
            check_run_id: self.name(get("check_run_id"), "workflow.check_run_id"),
            started_at: self.time(get("started_at"), "workflow.started_at"),
            completed_at: self.time(get("completed_at"), "workflow.completed_at"),
            tests: self.tests(get("test_results")),
            failed_tests: self.failed_tests(get("failed_tests"), get("failed_tests_detail")),
            more_failed_tests: self.dropped_tests,
            triage: self.triage(get("triage_verdict")),
            artifact_url: self.url(get("artifact_url"), "workflow.artifact_url"),
            phase: self.name(get("phase"), "workflow.phase"),
            environment: self.name(get("environment"), "workflow.environment"),
            warnings: self.warnings,
        }
    }

    /// Records that a detail is left out.
    pub(crate) fn drop<T>(&mut self, field: &str, received: &Value, expected: &str) -> Option<T> {
        let received = received_text(received);
        self.warnings
            .push(format!("`{field}` was dropped: received {received}, expected {expected}"));
        None
    }

    /// An unknown conclusion isn't a success, nor proof of a failure: somebody has to look.
    pub(crate) fn conclusion(&mut self, value: &Value) -> Conclusion {
        let text = value.as_str().unwrap_or_default().trim().to_ascii_lowercase();
        match text.replace(['-', ' '], "_").as_str() {
            // Buildkite's and GitLab's words for what isn't good. A success has to be said in GitHub's.
            "canceled" => return Conclusion::Cancelled,
            "failed" => return Conclusion::Failure,
            name => {
                if let Ok(conclusion) = name.parse() {
                    return conclusion;
                }
            }
        }
        let unknown = Conclusion::ActionRequired;
        let known = Conclusion::BEST_TO_WORST.map(Conclusion::as_str).join(", ");
        let received = if is_blank(value) { "nothing".to_owned() } else { received_text(value) };
        self.warnings.push(format!(
            "`workflow.conclusion`: received {received}, expected one of {known}; the result counts as \
             `{unknown}`"
        ));
        unknown
    }

    pub(crate) fn unnamed_workflow(&mut self) -> String {
        self.warnings.push("`workflow.name` is empty; it is shown as `unnamed`".to_owned());
        "unnamed".to_owned()
    }

    /// A text on one line, of at most [`NAME_CHARS`] characters. A longer one ends in a hash, so that two
    /// long names stay two. A blank one counts as absent.
    pub(crate) fn name(&mut self, value: &Value, field: &str) -> Option<String> {
        let text = match value {
            Value::Null => return None,
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            other => return self.drop(field, other, "a string"),
        };
        let line = one_line(&text);
        if text.chars().any(breaks_text) && !line.is_empty() {
            self.warnings.push(format!("`{field}`: characters that break a line became spaces"));
        }
        let length = line.chars().count();
        if length <= NAME_CHARS {
            return (length > 0).then_some(line);
        }
        self.warnings.push(format!(
            "`{field}` was cut: it has {length} characters, and {NAME_CHARS} are kept"
        ));
        let start: String = line.chars().take(NAME_CHARS - 18).collect();
        Some(format!("{start}… {:016x}", fnv1a(&line)))
    }

    fn url(&mut self, value: &Value, field: &str) -> Option<String> {
        let expected = "an https URL without a user name";
        let text = match value {
            _ if is_blank(value) => return None,
            Value::String(text) => text.trim(),
            other => return self.drop(field, other, expected),
        };
        if !is_plain_url(text, URL_BYTES) {
            return self.drop(field, value, expected);
        }
        if text.starts_with("http://") {
            self.warnings.push(format!(
                "`{field}` isn't https, so anybody on the way can change what it shows"
            ));
        }
        Some(text.to_owned())
    }

    fn time(&mut self, value: &Value, field: &str) -> Option<Timestamp> {
        if is_blank(value) {
            return None;
        }
        value
            .as_str()
            .and_then(utc_time)
            .or_else(|| self.drop(field, value, "a time such as 2026-08-01T10:00:00Z"))
    }

    /// One wrong number makes the others worthless: they would add up to a total that nobody counted.
    fn tests(&mut self, value: &Value) -> Option<TestCounts> {
        const FIELD: &str = "workflow.test_results";
        let expected = "an object with the whole numbers passed, failed and skipped";
        let parsed = json_text(value).unwrap_or_else(|_| value.clone());
        let counts = match &parsed {
            Value::Null => return None,
            Value::Object(counts) => counts,
            _ => return self.drop(FIELD, value, expected),
        };
        let read = |name: &str| count(counts.get(name).unwrap_or(&Value::Null));
        let (Ok(passed), Ok(failed), Ok(skipped), Ok(total)) =
            (read("passed"), read("failed"), read("skipped"), read("total"))
        else {
            return self.drop(FIELD, value, expected);
        };
        let [passed, failed, skipped] = [passed, failed, skipped].map(Option::unwrap_or_default);
        let total = total.unwrap_or(passed + failed + skipped);
        Some(TestCounts { passed, failed, skipped, total })
    }

    fn failed_tests(&mut self, names: &Value, detail: &Value) -> Vec<FailedTest> {
        let mut nameless = 0;
        let mut list = |value, field: &str| {
            let (tests, unnamed) = test_list(value).unwrap_or_else(|problem| {
                self.warnings.push(format!("`{field}` was dropped: {problem}"));
                (vec![], 0)
            });
            if unnamed > 0 {
                let what = format!("`{field}`: {unnamed} without a `name` were dropped");
                self.warnings.push(what);
            }
            nameless += unnamed;
            tests
        };
        let mut tests = list(detail, "workflow.failed_tests_detail");
        let known: HashSet<String> = tests.iter().map(|test| test.name.clone()).collect();
        let others = list(names, "workflow.failed_tests");
        tests.extend(others.into_iter().filter(|test| !known.contains(&test.name)));
        let all = tests.len();
        let is_cut = limit_failed_tests(&mut tests);
        self.dropped_tests = all - tests.len() + nameless;
        if is_cut {
            self.warnings.push(format!(
                "failing tests were cut to {FAILED_TESTS} and {} KiB of text",
                FAILED_TESTS_BYTES / 1024
            ));
        }
        tests
    }

    fn triage(&mut self, value: &Value) -> Option<TriageVerdict> {
        let verdict = json_text(value).and_then(|value| match value {
            Value::Null => Ok(None),
            value => TriageVerdict::read(&value).map(Some).map_err(|fault| fault.to_string()),
        });
        match verdict {
            Ok(Some(verdict)) => {
                if verdict.truncated {
                    self.warnings.push("the triage verdict was too long and was cut".to_owned());
                }
                Some(verdict)
            }
            Ok(None) => None,
            Err(why) => {
                self.warnings.push(format!("the triage verdict was dropped: {why}"));
                None
            }
        }
    }
}

/// An http or https address without a user name: `https://github.com@evil.test` is a page of `evil.test`.
fn is_plain_url(text: &str, most_bytes: usize) -> bool {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let host = rest.unwrap_or_default().split(['/', '?', '#']).next().unwrap_or_default();
    text.len() <= most_bytes
        && host.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '[')
        && !host.contains('@')
        && !text.chars().any(|c| breaks_text(c) || c.is_whitespace() || "<>\"`\\".contains(c))
}

/// A whole number, also as a float or a text. `None` if it is absent.
fn count(value: &Value) -> Result<Option<u64>, ()> {
    if is_blank(value) {
        return Ok(None);
    }
    let number = match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse::<f64>().ok(),
        _ => None,
    };
    let is_whole = |n: &f64| n.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(n);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "in range and whole"
    )]
    number.filter(is_whole).map(|n| Some(n as u64)).ok_or(())
}

/// A value that an action's input can also carry as JSON text.
fn json_text(value: &Value) -> Result<Value, String> {
    match value {
        Value::String(text) if text.trim().is_empty() => Ok(Value::Null),
        Value::String(text) => super::body_fields::value_of(text),
        other => Ok(other.clone()),
    }
}

/// The tests with a name, and how many have none.
fn test_list(value: &Value) -> Result<(Vec<FailedTest>, usize), String> {
    match json_text(value)? {
        Value::Null => Ok((vec![], 0)),
        Value::Array(list) => {
            let given = list.len().min(FAILED_TESTS + 1);
            let tests: Vec<_> = list[..given].iter().filter_map(failed_test).collect();
            if tests.is_empty() && given > 0 {
                return Err("an entry has no `name`".to_owned());
            }
            let nameless = given - tests.len();
            Ok((tests, nameless))
        }
        other => Err(format!("received {}, expected a list", kind_of(&other))),
    }
}

/// Long texts are cut, and optional values of another type are left out. A test may be given as its name alone.
/// Returns `None` for a test without a name.
fn failed_test(test: &Value) -> Option<FailedTest> {
    let cut = |value: &Value, most: usize| -> Option<String> {
        let text = value.as_str().filter(|text| !text.is_empty())?;
        let shown = |c: char| if breaks_text(c) && c != '\n' { ' ' } else { c };
        Some(text.chars().take(most).map(shown).collect())
    };
    let text = |name: &str, most: usize| cut(test.get(name)?, most);
    let name = if test.is_string() { cut(test, NAME_CHARS) } else { text("name", NAME_CHARS) };
    let seconds = |value: &Value| value.as_f64().or_else(|| value.as_str()?.trim().parse().ok());
    Some(FailedTest {
        name: name?,
        classname: text("classname", NAME_CHARS),
        file: text("file", NAME_CHARS),
        message: text("message", MESSAGE_CHARS),
        stacktrace: text("stacktrace", STACK_TRACE_CHARS),
        duration: test.get("duration").and_then(seconds).filter(|s| (0.0..1e8).contains(s)),
    })
}
