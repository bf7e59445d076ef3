//! A test of one report, and its result.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A longer text is cut and ends with [`CUT_MARK`].
pub const MAX_TEXT_BYTES: usize = 16 * 1024;
/// The last line of a text that was cut.
pub const CUT_MARK: &str = "\n[cut]";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TestResult {
    Success,
    /// An assertion of the test failed.
    Failure,
    /// Something other than an assertion failed, such as the setup.
    Error,
    /// Also a test that is disabled, or that the tool didn't run.
    Skipped,
    /// The report ends within this test, before a failure.
    Unfinished,
}

names! {
    TestResult {
        Success "success", Failure "failure", Error "error", Skipped "skipped",
        Unfinished "unfinished",
    }
}

impl TestResult {
    pub fn is_failed(self) -> bool {
        matches!(self, Self::Failure | Self::Error)
    }
}

/// What a row is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TestRowKind {
    Test,
    /// A suite that failed outside its tests: it couldn't be loaded, or its setup failed.
    Suite,
    /// A suite that began and has no end.
    Crashed,
    /// A failed job whose reports contain no failure.
    NoReport,
}

names! { TestRowKind { Test "test", Suite "suite", Crashed "crashed", NoReport "no_report" } }

/// A test of one report, with all its attempts.
///
/// `suite`, `classname`, `name` and `variant` identify a test within its repository; a name is empty if the
/// report doesn't have it. Parameters are part of the name. `file` can change without making it another test.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TestCase {
    pub kind: TestRowKind,
    /// The name of the innermost suite that has one.
    pub suite: Arc<str>,
    pub classname: Arc<str>,
    pub name: String,
    pub file: Option<Arc<str>>,
    /// The browser, device, system or project that the test ran with, if the report tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variant: Option<Arc<str>>,
    /// The result of the last attempt; with pytest, the worst of all attempts.
    pub result: TestResult,
    /// Seconds of all attempts together. `None` if the report has no usable time.
    pub time: Option<f64>,
    /// At least 1. More if the report repeats the test, or says that it was rerun.
    pub attempts: u32,
    /// Whether it succeeded after an attempt that failed.
    pub flaky: bool,
    /// What the report says about failures, skips and reruns, of all attempts in their order.
    pub details: Vec<TestDetail>,
}

impl TestCase {
    pub fn full_name(&self) -> String {
        full_name(&self.suite, &self.classname, &self.name)
    }

    /// Message or text of the detail that explains the result.
    pub fn message(&self) -> Option<&str> {
        let kind = self.explaining_kind()?;
        self.explaining(kind)
            .find_map(|detail| detail.message.as_deref().or(detail.text.as_deref().map(cause)))
    }

    /// The text of the detail whose message is [`message`](Self::message), if it has both.
    pub fn message_details(&self) -> Option<&str> {
        let kind = self.explaining_kind()?;
        let has_message = |detail: &&TestDetail| {
            detail.message.is_some()
                || detail.text.as_deref().is_some_and(|text| cause(text) != text)
        };
        let detail = self.explaining(kind).find(has_message)?;
        detail.text.as_deref().filter(|text| !text.trim().is_empty())
    }

    fn explaining_kind(&self) -> Option<TestDetailKind> {
        match self.result {
            TestResult::Failure => Some(TestDetailKind::Failure),
            TestResult::Error => Some(TestDetailKind::Error),
            TestResult::Skipped => Some(TestDetailKind::Skipped),
            TestResult::Success | TestResult::Unfinished => None,
        }
    }

    /// The first is the cause: what fails after it, such as the teardown, is often a consequence.
    fn explaining(&self, kind: TestDetailKind) -> impl Iterator<Item = &TestDetail> {
        self.details.iter().filter(move |detail| detail.kind == kind)
    }
}

/// The part of a text without a message of its own that says what failed: of Python's tracebacks the exception at the
/// end, and of the YAML that follows a line of TAP all but its markers. Anything else is taken whole.
fn cause(text: &str) -> &str {
    let first = text.lines().next().unwrap_or_default();
    if first.ends_with("Traceback (most recent call last):") {
        let frames = text.rfind("\n  File \"").map(|at| &text[at + 1..]).unwrap_or_default();
        let is_frame = |line: &&str| line.starts_with([' ', '\t']) || line.trim().is_empty();
        let length = frames.split_inclusive('\n').take_while(is_frame).map(str::len).sum();
        return Some(frames[length..].trim()).filter(|cause| !cause.is_empty()).unwrap_or(text);
    }
    match text.strip_prefix("---\n") {
        Some(yaml) => yaml.trim_end().trim_end_matches("...").trim(),
        None => text,
    }
}

/// Class, else suite, and name, as far as there are any.
pub fn full_name(suite: &str, classname: &str, name: &str) -> String {
    let class = if classname.is_empty() { suite } else { classname };
    match (class.is_empty(), name.is_empty()) {
        (false, false) => format!("{class}.{name}"),
        (false, true) => class.to_owned(),
        (true, _) => name.to_owned(),
    }
}

/// A child of a test's element, such as `<failure>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TestDetail {
    pub kind: TestDetailKind,
    /// The attribute `type`, often an exception's class.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_name: Option<String>,
    /// The attribute `message`, at most [`MAX_TEXT_BYTES`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The text in the element, at most [`MAX_TEXT_BYTES`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TestDetailKind {
    Failure,
    Error,
    Skipped,
    /// An attempt that failed before the last one, whatever the tool calls its element.
    Rerun,
}

/// Numbers of tests. Each test counts once, however many attempts it had.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TestTally {
    /// The sum of the next five.
    pub tests: u64,
    pub successes: u64,
    pub failures: u64,
    pub errors: u64,
    pub skipped: u64,
    pub unfinished: u64,
    /// Those of `successes` that failed first.
    pub flaky: u64,
}

impl TestTally {
    pub fn count(&mut self, case: &TestCase) {
        self.tests += 1;
        self.flaky += u64::from(case.flaky);
        *match case.result {
            TestResult::Success => &mut self.successes,
            TestResult::Failure => &mut self.failures,
            TestResult::Error => &mut self.errors,
            TestResult::Skipped => &mut self.skipped,
            TestResult::Unfinished => &mut self.unfinished,
        } += 1;
    }

    pub fn add(&mut self, other: &Self) {
        self.tests += other.tests;
        self.successes += other.successes;
        self.failures += other.failures;
        self.errors += other.errors;
        self.skipped += other.skipped;
        self.unfinished += other.unfinished;
        self.flaky += other.flaky;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESULTS: [TestResult; 5] = [
        TestResult::Success,
        TestResult::Failure,
        TestResult::Error,
        TestResult::Skipped,
        TestResult::Unfinished,
    ];

    fn case(result: TestResult, details: Vec<TestDetail>) -> TestCase {
        TestCase {
            kind: TestRowKind::Test,
            suite: "suite".into(),
            classname: "Ops".into(),
            name: "test_add".to_owned(),
            file: None,
            variant: None,
            result,
            time: None,
            attempts: 1,
            flaky: false,
            details,
        }
    }

    fn detail(kind: TestDetailKind, message: Option<&str>, text: Option<&str>) -> TestDetail {
        let [message, text] = [message, text].map(|text| text.map(str::to_owned));
        TestDetail { kind, type_name: None, message, text }
    }

    #[test]
    fn test_result_is_stored_under_its_name_and_read_again() {
        for result in RESULTS {
            assert_eq!(serde_json::to_value(result).unwrap(), result.as_str());
            assert_eq!(TestResult::from_name(result.as_str()), Some(result));
            let is_failed = [TestResult::Failure, TestResult::Error].contains(&result);
            assert_eq!(result.is_failed(), is_failed);
        }
        assert_eq!(TestResult::from_name("passed"), None);
        let kinds =
            [TestRowKind::Test, TestRowKind::Suite, TestRowKind::Crashed, TestRowKind::NoReport];
        for kind in kinds {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
            assert_eq!(TestRowKind::from_name(kind.as_str()), Some(kind));
        }
        assert_eq!(TestRowKind::from_name("Test"), None);
    }

    #[test]
    fn a_test_is_named_by_what_its_report_has() {
        assert_eq!(case(TestResult::Success, vec![]).full_name(), "Ops.test_add");
        for (class, name, full) in
            [("", "t", "suite.t"), ("Ops", "", "Ops"), ("", "", "suite"), ("Ops", "t", "Ops.t")]
        {
            assert_eq!(full_name("suite", class, name), full);
        }
        assert_eq!(full_name("", "", "t"), "t");
    }

    #[test]
    fn message_is_that_of_the_first_detail_that_explains_the_result() {
        use TestDetailKind::{Error, Failure, Rerun, Skipped};
        let details = || {
            vec![
                detail(Rerun, Some("rerun"), None),
                detail(Failure, None, None),
                detail(Failure, None, Some("trace")),
                detail(Failure, Some("1 != 2"), Some("where")),
                detail(Error, Some("teardown"), Some(" ")),
                detail(Skipped, Some("no GPU"), None),
            ]
        };
        for (result, message, details_of_it) in [
            (TestResult::Success, None, None),
            (TestResult::Failure, Some("trace"), Some("where")),
            (TestResult::Error, Some("teardown"), None),
            (TestResult::Skipped, Some("no GPU"), None),
            (TestResult::Unfinished, None, None),
        ] {
            let case = case(result, details());
            assert_eq!((case.message(), case.message_details()), (message, details_of_it));
        }
    }

    #[test]
    fn each_test_counts_once_and_sums_of_reports_add_up() {
        let mut tally = TestTally::default();
        for (times, result) in RESULTS.into_iter().enumerate() {
            for _ in 0..=times {
                tally.count(&case(result, vec![]));
            }
        }
        tally.count(&TestCase { flaky: true, ..case(TestResult::Success, vec![]) });
        let expected = TestTally {
            tests: 16,
            successes: 2,
            failures: 2,
            errors: 3,
            skipped: 4,
            unfinished: 5,
            flaky: 1,
        };
        assert_eq!(tally, expected);
        let mut sum = tally;
        sum.add(&tally);
        sum.add(&TestTally::default());
        let doubled = TestTally {
            tests: 32,
            successes: 4,
            failures: 4,
            errors: 6,
            skipped: 8,
            unfinished: 10,
            flaky: 2,
        };
        assert_eq!(sum, doubled);
    }
}
