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
    /// Whether it succeeded after an attempt that failed. With pytest-repeat, which runs a test that passed again as well,
    /// whether it did both.
    pub flaky: bool,
    /// What the report says about failures, skips and reruns, of all attempts in their order.
    pub details: Vec<TestDetail>,
}

impl TestCase {
    /// A test that ran once, and of which no more is known.
    pub fn new(name: String, result: TestResult) -> Self {
        Self {
            kind: TestRowKind::Test,
            suite: "".into(),
            classname: "".into(),
            name,
            file: None,
            variant: None,
            result,
            time: None,
            attempts: 1,
            flaky: false,
            details: vec![],
        }
    }

    pub fn full_name(&self) -> String {
        full_name(&self.suite, &self.classname, &self.name)
    }

    /// Message or text of the detail that explains the result.
    pub fn message(&self) -> Option<&str> {
        let kind = self.explaining_kind()?;
        self.explaining(kind).find_map(TestDetail::explanation)
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

/// Whether a message says no more than the result, as those of gotestsum, pytest (of a file), nose2, Boost.Test, Behave, mypy
/// and Common Test do.
fn says_only_result(message: &str) -> bool {
    const WORDS: [&str; 8] = [
        "failed",
        "skipped",
        "failure",
        "test failure",
        "collection failure",
        "collection skipped",
        "none",
        "mypy produced messages",
    ];
    let message = message.trim();
    let is_of_common_test = || {
        message.starts_with("Test ")
            && (message.ends_with(" failed!") || message.ends_with(" skipped!"))
    };
    WORDS.iter().any(|word| message.eq_ignore_ascii_case(word)) || is_of_common_test()
}

/// The part of a text that says what failed, where the message doesn't. A Go test around others often prints nothing.
fn cause_instead_of_result(text: &str) -> Option<&str> {
    let is_pytest = |line: &&str| !line.starts_with(' ');
    let of_pytest = text.lines().filter_map(|line| line.strip_prefix("E   ")).find(is_pytest);
    let of_boost = || text.lines().find_map(|line| line.strip_prefix("- message: "));
    let of_python = || Some(cause(text)).filter(|cause| *cause != text);
    let found = of_pytest.or_else(of_boost).or_else(of_python).or_else(|| cause_of_go(text));
    found.or(Some(text).filter(|text| !text.starts_with("=== RUN "))).map(str::trim)
}

/// What failed in the output of a test or a package of Go: the crash or the time-out, else the first line that the test
/// itself has printed.
pub fn cause_of_go(output: &str) -> Option<&str> {
    let is_own = |line: &&str| {
        let starts = ["=== ", "--- ", "FAIL", "ok ", "PASS", "exit status", "#"];
        !line.is_empty() && !starts.iter().any(|start| line.starts_with(start))
    };
    let is_crash = |line: &&str| line.starts_with("panic: ") || line.starts_with("fatal error: ");
    let crash = output.lines().find(is_crash).filter(|_| output.contains("\ngoroutine "));
    if crash.is_some() {
        return crash;
    }
    let mut own = output.lines().map(str::trim).filter(is_own);
    let first = own.next()?;
    // Testify and Gomega begin with a line break. Testify's next line is the trace.
    let is_place = first.ends_with(':') && first.contains(".go:") && !first.contains(' ');
    if !is_place {
        return Some(first);
    }
    let second = own.clone().next();
    let error = own.find_map(|line| line.strip_prefix("Error:")).map(str::trim);
    error.filter(|error| !error.is_empty()).or(second).or(Some(first))
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

/// The name of a test with what it ran with behind it, such as `login (Mobile Safari)`.
pub fn name_with_variant(name: String, variant: Option<&str>) -> String {
    match variant {
        Some(variant) => format!("{name} ({variant})"),
        None => name,
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

impl TestDetail {
    /// The message, or what the text says where there is none, or one that says no more than the result.
    pub fn explanation(&self) -> Option<&str> {
        let text = self.text.as_deref();
        match self.message.as_deref() {
            None => text.map(cause),
            Some(message) => {
                let text = text.filter(|text| says_only_result(message) && !text.trim().is_empty());
                let is_output = message.starts_with("=== RUN ");
                let of_output = || cause_of_go(message).filter(|_| is_output);
                text.and_then(cause_instead_of_result).or_else(of_output).or(Some(message))
            }
        }
    }
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
    /// Those of `successes` that failed first, and with pytest-repeat those of the others that passed as well.
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
            suite: "suite".into(),
            classname: "Ops".into(),
            details,
            ..TestCase::new("test_add".to_owned(), result)
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
    fn message_that_says_only_the_result_gives_way_to_the_cause_in_the_text() {
        let go = "=== RUN   TestA\n    a_test.go:3: 1 isn't 2\n--- FAIL: TestA (0.00s)\n";
        let testify = "=== RUN   TestAdd\n    add_test.go:9: \n        \tError Trace:\t/w/add_test.go:9\n        \t\
                       Error:      \tShould be true\n        \tTest:       \tTestAdd\n--- FAIL: TestAdd (0.00s)\n";
        let pytest = "ImportError while importing test module 'a.py'.\nTraceback:\na.py:1: in <module>\n    \
                      import b\nE   ModuleNotFoundError: No module named 'b'";
        let syntax =
            "E     File \"a.py\", line 1\nE       def x(:\nE   SyntaxError: invalid syntax";
        let nose2 =
            "Traceback (most recent call last):\n  File \"a.py\", line 7, in t\n    f()\nE: boom\n";
        let crash = "panic: no setup\n\ngoroutine 1 [running]:\nmain.main()\nFAIL\tp\t0.005s\n";
        let boost = "\nASSERTION FAILURE:\n- line   : 5\n- message: check 1 == 2 has failed\n";
        for (message, text, cause) in [
            ("Failed", go, "a_test.go:3: 1 isn't 2"),
            ("Failed", testify, "Should be true"),
            ("Failed", "    a_test.go:3: \n        Expected\n        1", "Expected"),
            ("Failed", crash, "panic: no setup"),
            (
                "Failed",
                "=== RUN   TestA\nstarting\npanic: no setup\n\ngoroutine 1 [running]:\n",
                "panic: no setup",
            ),
            (
                "Failed",
                "starting\nfatal error: all goroutines are asleep\n\ngoroutine 1:\n",
                "fatal error: all goroutines are asleep",
            ),
            ("Failed", "expected:\n1\n", "expected:"),
            ("Failed", "=== RUN   TestA\nboom\nmore\n", "boom"),
            ("Failed", "FAIL\tp [build failed]\n", "FAIL\tp [build failed]"),
            ("Failed", " ", "Failed"),
            ("Failed", "=== RUN   TestAll\n--- FAIL: TestAll (0.00s)\n", "Failed"),
            ("collection failure", pytest, "ModuleNotFoundError: No module named 'b'"),
            ("collection failure", syntax, "SyntaxError: invalid syntax"),
            ("test failure", nose2, "E: boom"),
            ("failure", boost, "check 1 == 2 has failed"),
            ("Test t in s failed!", "{badmatch,2}", "{badmatch,2}"),
            ("Test t in s skipped!", "no GPU", "no GPU"),
            ("Test data is wrong", "a trace", "Test data is wrong"),
            ("the upload failed!", "a trace", "the upload failed!"),
            ("1 isn't 2", "E   other", "1 isn't 2"),
            ("Test of failed!", "", "Test of failed!"),
            (go, " ", "a_test.go:3: 1 isn't 2"),
        ] {
            let failure = detail(TestDetailKind::Failure, Some(message), Some(text));
            let case = case(TestResult::Failure, vec![failure]);
            assert_eq!(case.message(), Some(cause), "{message}: {text}");
            let whole = Some(text).filter(|text| !text.trim().is_empty());
            assert_eq!(case.message_details(), whole, "{message}");
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
