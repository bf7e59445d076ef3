//! Tests, and the failures, skips and reruns in them.

use std::sync::Arc;

use crcr_domain::ci_data::test_run::{
    TestCase, TestDetail, TestDetailKind, TestResult, TestRowKind,
};
use quick_xml::events::BytesStart;

use super::{ElementReader, OpenCase, OpenDetail, ReportElement};
use crate::junit::dialect::ReportDialect;
use crate::junit::failure_messages::better_message;
use crate::junit::findings::JunitRule;
use crate::junit::suites::{
    CaseMarks, LinterReport, OpenSuite, without_versions, without_versions_of_kotlin,
    without_worker,
};
use crate::junit::summary::{JunitError, MAX_CASES, RepeatedTest, SuiteElement};
use crate::junit::text::LimitedText;
use crate::junit::values::{parse_seconds, path_of_place, shared, shorten, status_result};

/// More failures, skips and reruns of one element are counted only.
const MAX_DETAILS: usize = 100;
const MAX_NAME_CHARS: usize = 1000;

/// What a trace of Lua begins with.
const LUA_TRACE: &str = "stack traceback:";

/// Classes of failures outside the tests: jest-junit's of a file that can't be loaded, Vitest's of an error that no test
/// awaits, and those of JUnit for a class that Ant can't set up or tear down, and for one without tests.
const CLASSES_OF_SUITES: [&str; 4] = [
    "Test suite failed to run",
    "vitest unhandled errors",
    "junit.framework.TestSuite",
    "junit.framework.TestSuite$1",
];

/// The name that jest-junit gives a failed hook such as `afterAll`, behind those of its template.
const HOOK_OF_JEST: &str = "Test execution failure: could be caused by test hooks like 'afterAll'.";

/// What the class begins with where Gradle couldn't run a class at all: `Gradle Test Executor 9`, `Gradle Test Run :test`.
const GRADLE_PROCESSES: [&str; 2] = ["Gradle Test Executor ", "Gradle Test Run :"];

impl OpenCase {
    /// Its failures don't count.
    fn overrule(&mut self, result: TestResult) {
        self.case.result = result;
        self.failure_details = 0;
    }

    /// A run of Erlang's Common Test fails for a test that a failed setup didn't let run, and one of nose2 for a test that
    /// is expected to fail and passed.
    fn fail_skips_that_fail_the_run(&mut self) {
        for detail in &mut self.case.details {
            let text = detail.text.as_deref().unwrap_or_default();
            let is_failure = text.starts_with("{tc_auto_skip,")
                || detail.message.as_deref() == Some("test passes unexpectedly");
            if detail.kind == TestDetailKind::Skipped && is_failure {
                detail.kind = TestDetailKind::Error;
                self.case.result = TestResult::Error;
                self.failure_details += 1;
            }
        }
    }

    /// A failure that says nothing else is told by its type, as nextest's `test timeout`.
    fn tell_silent_failures_by_type(&mut self) {
        for detail in &mut self.case.details {
            let is_silent = detail.message.is_none() && detail.text.is_none();
            if is_silent && detail.kind != TestDetailKind::Skipped {
                let says_more = |kind: &String| {
                    let results = ["failure", "failed", "error"];
                    !results.iter().any(|result| result.eq_ignore_ascii_case(kind))
                };
                detail.message = detail.type_name.clone().filter(says_more);
            }
        }
    }

    fn take_failures_for_reruns(&mut self) {
        for detail in &mut self.case.details {
            if matches!(detail.kind, TestDetailKind::Failure | TestDetailKind::Error) {
                detail.kind = TestDetailKind::Rerun;
                self.case.attempts = self.case.attempts.saturating_add(1);
            }
        }
        self.overrule(TestResult::Success);
    }
}

fn skips(case: &TestCase) -> impl Iterator<Item = &TestDetail> + Clone {
    case.details.iter().filter(|detail| detail.kind == TestDetailKind::Skipped)
}

/// A test to do of Node.js, and one that Catch2 marks.
fn may_fail(skip: &TestDetail) -> bool {
    skip.type_name.as_deref() == Some("todo")
        || skip.message.as_deref() == Some("TEST_CASE tagged with !mayfail")
}

impl<F: FnMut(TestCase, &SuiteElement)> ElementReader<F> {
    pub(crate) fn open_case(&mut self, tag: &BytesStart<'_>, line: u64) -> ReportElement {
        let mut open = self.new_case(line);
        let (mut has_time, mut class) = (false, None);
        self.each_attribute(
            tag,
            line,
            [
                "name",
                "classname",
                "class",
                "file",
                "time",
                "status",
                "result",
                "outcome",
                "success",
                "passed",
                "flaky",
                "timestamp",
            ],
            |this, key, raw| match key {
                "name" => open.case.name = LimitedText::of_attribute(raw, &mut this.flaws),
                "classname" => {
                    open.is_classname_blank = raw.trim().is_empty();
                    open.case.classname = shared(raw, &mut this.last_classname, &mut this.flaws);
                }
                "class" => class = Some(LimitedText::of_attribute(raw, &mut this.flaws)),
                "file" if !raw.is_empty() => {
                    let file = path_of_place(raw);
                    open.case.file = Some(shared(file, &mut this.last_file, &mut this.flaws));
                }
                "time" => {
                    has_time = true;
                    open.case.time = parse_seconds(raw);
                    if open.case.time.is_none() {
                        let message =
                            format_args!("`{}` isn't a duration in seconds", shorten(raw));
                        this.findings.add(JunitRule::BadDuration, line, message);
                    }
                }
                "status" | "result" | "outcome" => {
                    open.is_not_run |= raw == "notrun";
                    open.state(status_result(raw));
                }
                "success" | "passed" if raw.eq_ignore_ascii_case("false") => {
                    open.status = Some(TestResult::Failure);
                }
                "flaky" => open.is_marked_flaky = raw == "true",
                // The start of Unix time, in the zone of the machine.
                "timestamp" => {
                    open.is_unbegun =
                        raw.starts_with("1970-01-01T") || raw.starts_with("1969-12-31T");
                }
                _ => {}
            },
        );
        // Codeception and old PHPUnit have no `classname`.
        if let Some(class) = class.filter(|_| open.case.classname.is_empty()) {
            open.case.classname = class.into();
        }
        if let Some(name) = without_versions_of_kotlin(&open.case.name) {
            open.case.name = name;
        }
        if self.is_root_plain && &*open.case.classname == "test" {
            self.replace_class_of_node(&mut open.case);
        }
        if let Some(suite) = self.suites.last() {
            open.is_marked_flaky &= suite.has_flakes;
            match suite.marks {
                CaseMarks::None | CaseMarks::Ginkgo | CaseMarks::Linter(_) => {}
                CaseMarks::QtTest => open.status = open.status.or(Some(TestResult::Skipped)),
                CaseMarks::Testcafe => read_marks_of_testcafe(&mut open.case),
                CaseMarks::Testem => {
                    open.case.variant = Some(without_versions(&open.case.classname).into());
                    open.case.classname = Arc::clone(&self.empty);
                }
            }
        }
        self.push_case(open, has_time)
    }

    /// Node.js writes one class for all tests, and each `describe` as a suite in that around it.
    fn replace_class_of_node(&self, case: &mut TestCase) {
        let suites = self.suites.iter().filter(|suite| !suite.is_root);
        if suites.clone().all(|suite| suite.element.repeats == RepeatedTest::OtherTests) {
            let path: Vec<&str> = suites.map(|suite| &*suite.name).collect();
            case.classname = path.join(" > ").into();
        }
    }

    pub(crate) fn new_case(&self, line: u64) -> OpenCase {
        let case = match self.suites.last() {
            Some(suite) => new_case(suite, &self.empty),
            None => new_case(&OpenSuite::root(&self.empty, line), &self.empty),
        };
        OpenCase {
            case,
            line,
            status: None,
            is_classname_blank: false,
            is_not_run: false,
            is_unbegun: false,
            is_marked_flaky: false,
            details: 0,
            failure_details: 0,
            trx_id: String::new(),
            run: 0,
            inner: None,
            status_text: LimitedText::default(),
            failure_output: LimitedText::default(),
        }
    }

    pub(crate) fn push_case(&mut self, open: OpenCase, has_time: bool) -> ReportElement {
        let (name, line) = (&open.case.name, open.line);
        if !has_time {
            let message = format_args!("`{}` has no duration", shorten(name));
            self.findings.add(JunitRule::NoDuration, line, message);
        }
        if name.len() > MAX_NAME_CHARS && name.chars().count() > MAX_NAME_CHARS {
            let message = format_args!(
                "the name `{}` is longer than {MAX_NAME_CHARS} characters",
                shorten(name)
            );
            self.findings.add(JunitRule::LongName, line, message);
        }
        self.interrupt_case();
        self.case = Some(open);
        ReportElement::Case
    }

    /// Determines the result. `is_cut` tells that the report ends within the test.
    pub(crate) fn close_case(
        &mut self,
        mut open: OpenCase,
        is_cut: bool,
    ) -> Result<(), JunitError> {
        if open.details > MAX_DETAILS {
            let message = format_args!(
                "of {} failures, skips and reruns {MAX_DETAILS} are kept",
                open.details
            );
            self.findings.add(JunitRule::ManyDetails, open.line, message);
        }
        self.decide_result(&mut open, is_cut);
        open.tell_silent_failures_by_type();
        let is_nameless = open.case.name.trim().is_empty();
        let is_only = || {
            let suite = self.suites.last();
            suite.is_some_and(|suite| suite.declared.tests == 1 && suite.counted.tests == 0)
        };
        if open.case.result.is_failed() && (is_of_suite(&open) || is_file(&open.case) && is_only())
        {
            open.case.kind = TestRowKind::Suite;
            if is_of_gradle_process(&open.case) {
                open.case.classname = without_worker(&open.case.classname).into();
            }
        } else if is_nameless {
            self.findings.add(JunitRule::MissingName, open.line, "a test has no name");
        }
        let OpenCase { mut case, failure_details, inner, trx_id, run, .. } = open;
        let prefix = self.suites.last().and_then(|suite| suite.class_prefix.as_deref());
        if let Some(class) = prefix.and_then(|prefix| case.classname.strip_prefix(prefix)) {
            case.classname = class.into();
        }
        let repeats = self.suites.last().map(|suite| suite.element.repeats);
        if repeats == Some(RepeatedTest::Surefire) && is_suite_of_other(&case) {
            case.suite = Arc::clone(&case.classname);
            self.summary.has_moved_tests = true;
        }
        // In JUnit, a test around others is one of its own.
        if let Some(outer) = self.case.as_mut().filter(|_| self.dialect == Some(ReportDialect::Trx))
        {
            *outer.inner.get_or_insert(false) |= case.result.is_failed();
        }
        if let Some(suite) = self.suites.last_mut() {
            suite.count_failure(case.result);
            suite.counted.details += failure_details;
            suite.counted.reruns += u64::from(case.attempts - 1);
            suite.counted.tests += 1;
        }
        // The sum of other tests, unless it failed for a reason of its own.
        if inner.is_some_and(|has_failed| has_failed || !case.result.is_failed()) {
            return Ok(());
        }
        if self.dialect == Some(ReportDialect::Trx) {
            self.trx.hold(trx_id, case);
            return Ok(());
        }
        self.pass_on_run(case, run)
    }

    fn decide_result(&mut self, open: &mut OpenCase, is_cut: bool) {
        if self.dialect != Some(ReportDialect::Junit) {
            open.case.result = open.status.unwrap_or(TestResult::Unfinished);
            return;
        }
        self.note_not_run(open);
        if skips(&open.case).any(may_fail) {
            open.overrule(TestResult::Skipped);
        }
        open.fail_skips_that_fail_the_run();
        self.forgive_warnings(open);
        if open.is_marked_flaky {
            open.take_failures_for_reruns();
        }
        self.take_status(open, is_cut);
        let case = &mut open.case;
        case.flaky = case.result == TestResult::Success && case.attempts > 1;
    }

    fn note_not_run(&mut self, open: &OpenCase) {
        let (case, mut skips) = (&open.case, skips(&open.case));
        // CTest fails for such a test, unless it was told to skip or disable it.
        if let Some(why) = skips.clone().find_map(|skip| skip.message.as_deref())
            && open.is_not_run
            && !why.starts_with("SKIP_")
            && why != "Disabled"
        {
            let message = format_args!("`{}` couldn't run: {why}", shorten(&case.name));
            self.findings.add(JunitRule::NotRun, open.line, message);
        }
        // GoogleTest writes the place of the test, without a reason, if `SetUpTestSuite` failed. Newer
        // versions may write the same for a `GTEST_SKIP()` there, with which the run passes.
        let is_place = |skip: &TestDetail| {
            let place = skip.message.as_deref().and_then(|why| why.trim_end().rsplit_once(':'));
            place.is_some_and(|(file, line)| {
                case.file.as_deref() == Some(file) && line.parse::<u32>().is_ok()
            })
        };
        if open.is_unbegun && skips.any(is_place) {
            let message = format_args!(
                "`{}` didn't run: `SetUpTestSuite` failed or skips",
                shorten(&case.name)
            );
            self.findings.add(JunitRule::NotRun, open.line, message);
        }
    }

    /// What a linter only warns of is a success.
    fn forgive_warnings(&mut self, open: &mut OpenCase) {
        let linter = match self.suites.last().map(|suite| suite.marks) {
            Some(CaseMarks::Linter(linter)) => linter,
            _ if &*open.case.classname == "Formatting Test" => LinterReport::Swiftlint,
            _ => return,
        };
        let details = &open.case.details;
        if details.is_empty() || !details.iter().all(|detail| linter.is_warning(detail)) {
            return;
        }
        let message = "a warning of a linter doesn't count as a failure";
        self.findings.add(JunitRule::Warning, open.line, message);
        for suite in &mut self.suites {
            suite.declared.forget_warning(linter);
        }
        open.overrule(TestResult::Success);
    }

    /// What an attribute says counts where no element says more, and so does an early end.
    fn take_status(&mut self, open: &mut OpenCase, is_cut: bool) {
        let case = &mut open.case;
        if case.result.is_failed() {
            return;
        }
        // All that pytest knows of a test that was interrupted, as by Ctrl-C or `pytest.exit`: its setup passed.
        let repeats = self.suites.last().map(|suite| suite.element.repeats);
        let is_interrupted = repeats == Some(RepeatedTest::Pytest)
            && case.name.is_empty()
            && case.classname.is_empty()
            && open.details == 0;
        match open.status {
            Some(status) if status.is_failed() => {
                case.result = status;
                let message = format_args!(
                    "the status of `{}` says that it failed, but there is no `<failure>`",
                    shorten(&case.name)
                );
                self.findings.add(JunitRule::StatusOnly, open.line, message);
            }
            _ if is_cut || is_interrupted => case.result = TestResult::Unfinished,
            Some(stated @ (TestResult::Skipped | TestResult::Unfinished)) => case.result = stated,
            _ => {}
        }
    }

    /// Passes on a test of the innermost suite.
    pub(crate) fn pass_on(&mut self, case: TestCase) -> Result<(), JunitError> {
        self.pass_on_run(case, 0)
    }

    fn pass_on_run(&mut self, case: TestCase, run: u32) -> Result<(), JunitError> {
        self.cases += 1;
        if self.cases > MAX_CASES {
            return Err(JunitError::TooManyCases);
        }
        let Some(suite) = self.suites.last() else { return Ok(()) };
        if run == 0 {
            (self.on_case)(case, &suite.element);
        } else {
            let repeats = RepeatedTest::Numbered;
            let element = SuiteElement { run, repeats, ..suite.element.clone() };
            (self.on_case)(case, &element);
        }
        Ok(())
    }

    pub(crate) fn open_detail(
        &mut self,
        mut kind: TestDetailKind,
        tag: &BytesStart<'_>,
        line: u64,
    ) -> ReportElement {
        let mut detail = OpenDetail {
            kind,
            type_name: None,
            message: None,
            message_text: LimitedText::default(),
            text: LimitedText::default(),
        };
        // cocotb 2 writes `error_type` with `error_msg`, or `msg`.
        let wanted = ["message", "type", "exception-type", "error_type", "error_msg", "msg"];
        self.each_attribute(tag, line, wanted, |this, key, raw| {
            let value = LimitedText::of_attribute(raw, &mut this.flaws);
            // Messages of AssertJ, Hamcrest and RSpec begin with a line break.
            let value = Some(value.trim().to_owned()).filter(|value| !value.is_empty());
            match key {
                "message" => detail.message = value.or(detail.message.take()),
                "error_msg" | "msg" => detail.message = detail.message.take().or(value),
                "error_type" => detail.type_name = detail.type_name.take().or(value),
                _ => detail.type_name = value.or(detail.type_name.take()),
            }
        });
        // godog writes each step that it skips as an error, and counts none of them.
        let is_error = kind == TestDetailKind::Error && self.case.is_some();
        if is_error && detail.type_name.as_deref() == Some("skipped") {
            kind = TestDetailKind::Skipped;
            detail.kind = kind;
        }
        self.detail = Some(detail);
        self.count_detail(kind);
        ReportElement::Detail
    }

    /// The worst of several results counts, and so does one whose element has no end.
    pub(crate) fn count_detail(&mut self, kind: TestDetailKind) {
        let Some(open) = &mut self.case else { return };
        let case = &mut open.case;
        open.details += 1;
        match kind {
            TestDetailKind::Failure => case.result = TestResult::Failure,
            TestDetailKind::Error if case.result != TestResult::Failure => {
                case.result = TestResult::Error;
            }
            TestDetailKind::Skipped if case.result == TestResult::Success => {
                case.result = TestResult::Skipped;
            }
            TestDetailKind::Rerun => case.attempts = case.attempts.saturating_add(1),
            TestDetailKind::Error | TestDetailKind::Skipped => {}
        }
        let is_failure = matches!(kind, TestDetailKind::Failure | TestDetailKind::Error);
        open.failure_details += u64::from(is_failure);
    }

    pub(crate) fn close_detail(&mut self) -> Result<(), JunitError> {
        let Some(detail) = self.detail.take() else { return Ok(()) };
        let OpenDetail { kind, type_name, message, message_text, text } = detail;
        let (mut message, text) = (message.or(message_text.trimmed()), text.trimmed());
        // LuaUnit has the message where the type is expected.
        if message.is_none() && text.as_deref().is_some_and(|text| text.starts_with(LUA_TRACE)) {
            message = type_name.clone();
        }
        let name = self.case.as_ref().map_or("", |open| open.case.name.as_str());
        let better =
            better_message(name, type_name.as_deref(), message.as_deref(), text.as_deref());
        let message = better.or(message);
        let mut detail = TestDetail { kind, type_name, message, text };
        match &mut self.case {
            Some(open) if open.case.details.len() < MAX_DETAILS => open.case.details.push(detail),
            Some(_) => {}
            None => match self.suites.last_mut().filter(|suite| {
                suite.may_sum_up || detail.message.as_deref().is_some_and(restates_failed_test)
            }) {
                Some(suite) => suite.failure = Some(detail),
                None => {
                    detail.message = detail.message.or(detail.text.take());
                    self.fail_suite(detail)?;
                }
            },
        }
        Ok(())
    }
}

pub(crate) fn new_case(suite: &OpenSuite, empty: &Arc<str>) -> TestCase {
    TestCase {
        kind: TestRowKind::Test,
        suite: Arc::clone(&suite.name),
        classname: Arc::clone(empty),
        name: String::new(),
        file: suite.file.clone(),
        variant: suite.variant.clone(),
        result: TestResult::Success,
        time: None,
        attempts: 1,
        flaky: false,
        details: Vec::new(),
    }
}

/// Whether a problem of a whole run in TRX is only that a test failed: a line of xUnit.net's adapter, or the exit code
/// of Microsoft.Testing.Platform.
fn restates_failed_test(text: &str) -> bool {
    (text.starts_with("[xUnit.net ") && text.ends_with(" [FAIL]"))
        || text.starts_with("Exit code indicates failure: '2'.")
}

/// TestCafe writes ` (unstable)` behind the name of a test that failed in one of its attempts, and the folder
/// of its screenshots, which has a time.
fn read_marks_of_testcafe(case: &mut TestCase) {
    if let Some(at) = case.name.rfind(" (screenshots: ").filter(|_| case.name.ends_with(')')) {
        case.name.truncate(at);
    }
    let name = case.name.strip_suffix(" (unstable)").map(str::len);
    if let Some(length) = name {
        case.name.truncate(length);
        case.attempts = 2;
    }
}

/// Whether a failed test stands for a failure outside the tests: of a file that can't be loaded, of a
/// package that isn't built, or of a class's setup.
fn is_of_suite(open: &OpenCase) -> bool {
    let case = &open.case;
    let name = case.name.trim();
    let is_collection = |detail: &TestDetail| {
        detail.message.as_deref().is_some_and(|message| message.starts_with("collection failure"))
    };
    let is_setup_of_class = || {
        ["setUpClass (", "tearDownClass (", "setUpModule (", "tearDownModule ("]
            .iter()
            .any(|setup| name.starts_with(setup))
    };
    name.is_empty()
        // pytest, when it or one of its plugins crashes.
        || (&*case.classname, name) == ("pytest", "internal")
        || CLASSES_OF_SUITES.contains(&&*case.classname)
        // JUnit and Gradle, for a class that can't be made or set up, Bun for a hook, and sbt for a class that crashed.
        || ["initializationError", "executionError", "classMethod", "(unnamed)"].contains(&name)
        || name.starts_with("(It is not a test it is a sbt.testing.")
        || name.ends_with(HOOK_OF_JEST)
        || is_of_gradle_process(case)
        || case.details.iter().any(|detail| is_of_go_package(name, detail))
        // gotestsum, with `--junitfile-testcase-classname=short`.
        || (&*case.classname, name) == (".", "TestMain")
        // pytest, Go, and Python's unittest. Bun and Mocha write tests without a class, too.
        || (open.is_classname_blank
            && (case.details.iter().any(is_collection) || name == "TestMain" || is_setup_of_class()))
}

/// Whether the suite is a nested class, and the test of another class around or beside it: Surefire 3.0 to 3.5.2 put the
/// tests of all of them into the report of the one that ended last.
fn is_suite_of_other(case: &TestCase) -> bool {
    let (suite, class) = (&*case.suite, &*case.classname);
    suite.contains('$') && suite != class && outermost_class(suite) == outermost_class(class)
}

fn outermost_class(class: &str) -> &str {
    class.split('$').next().unwrap_or(class)
}

fn is_of_gradle_process(case: &TestCase) -> bool {
    GRADLE_PROCESSES.iter().any(|process| case.classname.starts_with(*process))
}

/// Whether go-junit-report tells of a package that isn't built, or whose process crashed. Version 1 has the message
/// `Failed` for each failure.
fn is_of_go_package(name: &str, detail: &TestDetail) -> bool {
    match name {
        "[build failed]" | "[setup failed]" => {
            matches!(detail.kind, TestDetailKind::Failure | TestDetailKind::Error)
        }
        "Failure" => detail.message.as_deref() == Some("Runtime error"),
        _ => false,
    }
}

/// As Vitest names the one test of a file that can't be loaded. GoogleTest has `TEST(Regex, Regex)`.
fn is_file(case: &TestCase) -> bool {
    let extension = case.name.rsplit_once('.').map_or("", |(_, extension)| extension);
    let is_extension =
        matches!(extension.len(), 1..=5) && extension.bytes().all(|b| b.is_ascii_alphanumeric());
    is_extension && case.name == *case.classname && case.name == *case.suite
}
