//! Suites: their names and sums, and failures that no test of theirs has.

use std::sync::Arc;

use crcr_domain::ci_data::stable_name::stable_name;
use crcr_domain::ci_data::test_run::{
    TestCase, TestDetail, TestDetailKind, TestResult, TestRowKind,
};
use quick_xml::events::BytesStart;

use super::case::new_case;
use super::{ElementReader, ReportElement, failure_detail};
use crate::junit::findings::JunitRule;
use crate::junit::suites::{
    CaseMarks, DeclaredSums, HiddenResults, LinterReport, OpenSuite, without_builds,
    without_program, without_worker,
};
use crate::junit::summary::{JunitError, MAX_CASES, RepeatedTest, SuiteElement, SuiteLabels};
use crate::junit::text::LimitedText;
use crate::junit::values::{
    is_machine_name, is_runner_name, parse_sum, parse_timestamp, shorten, status_result,
};

/// More names of suites are dropped.
const MAX_SUITES: usize = 10_000;
const MAX_VARIANT_CHARS: usize = 100;
/// Properties whose value says what a test ran with.
const VARIANT_PROPERTIES: [&str; 7] =
    ["browser", "browserName", "device", "deviceName", "os", "platform", "platformName"];

/// The outermost suite of XCTest, which xcbeautify and xcpretty make the name of the report. The last is xcbeautify's for
/// tests that ran in parallel.
const XCTEST_ROOTS: [&str; 3] = ["All tests", "Selected tests", "PARALLEL_TESTS"];

/// Karma's reporter has it in each suite, whose name is that of the browser.
const KARMA_BROWSER: &str = "browser.fullName";

/// Qt Test has it in each suite.
const QT_TEST_VERSION: &str = "QTestVersion";

/// WebdriverIO's reporter has it in each suite; every class begins with it.
const WEBDRIVERIO_BROWSER: &str = "capabilities";

/// Surefire and Failsafe name their schema in each suite.
const SUREFIRE_SCHEMA: &str = "xsi:noNamespaceSchemaLocation";

/// fastlane has it in each run of a test that ran several times.
const FASTLANE_RUN: &str = "repetition";

/// Ginkgo has them in each suite: whether it passed, and why it failed if not for a test.
const GINKGO_SUCCEEDED: &str = "SuiteSucceeded";
const GINKGO_REASON: &str = "SpecialSuiteFailureReason";

/// node-tap has one of them in each test that is skipped or to do.
const TAP_SKIPS: [&str; 2] = ["skip", "todo"];

impl<F: FnMut(TestCase, &SuiteElement)> ElementReader<F> {
    /// The root, or the root of another report that was put into it and has sums of its own.
    pub(crate) fn open_root(&mut self, tag: &BytesStart<'_>, line: u64) -> ReportElement {
        let (mut has_id, mut has_name, mut is_named) = (false, false, false);
        let mut declared = DeclaredSums::default();
        let (mut is_pytest, mut is_criterion, mut has_failed) = (false, false, false);
        let (mut is_xctest, mut is_node_tap) = (false, false);
        let (mut linter, mut is_biome, mut is_stylelint) = (None, false, false);
        self.each_attribute(
            tag,
            line,
            [
                "name", "failures", "errors", "failed", "failure", "errored", "timeouts",
                "crashed", "aborted", "tests", "status", "result", "id", "package",
            ],
            |this, key, raw| match key {
                "tests" => declared.tests = parse_sum(raw).unwrap_or_default(),
                "failures" | "errors" | "failed" | "failure" | "errored" | "timeouts"
                | "crashed" | "aborted" => declared.read(key, this.failure_sum(raw, line)),
                "status" | "result" => has_failed |= is_failed_status(raw),
                "id" => {
                    has_id = true;
                    is_named |= !raw.is_empty();
                }
                "package" => {
                    is_stylelint = raw == "stylelint.rules";
                    let is_of_type = raw == "tslint" || is_stylelint;
                    linter = linter.or(is_of_type.then_some(LinterReport::Tslint));
                }
                _ => {
                    has_name = true;
                    is_named |= !raw.is_empty();
                    linter = linter.or((raw == "Oxlint").then_some(LinterReport::Oxlint));
                    is_pytest = raw == "pytest tests";
                    is_xctest = XCTEST_ROOTS.contains(&raw) || raw.ends_with(".xctest");
                    is_criterion = raw == "Criterion Tests";
                    is_node_tap = raw == "TAP Tests";
                    is_biome = raw == "Biome";
                }
            },
        );
        declared.count_failed();
        let is_inner = !self.open.is_empty();
        if is_inner {
            let inner = self.new_suite(line);
            self.suites.push(OpenSuite { is_root: true, ..inner });
            self.interrupt_case();
        }
        if let Some(root) = self.suites.last_mut() {
            (root.declared, root.line) = (declared, line);
            root.has_failed = has_failed;
            root.errors_are_failures = is_criterion || is_stylelint;
            root.counts_itself = is_node_tap;
            root.marks = linter.map_or(CaseMarks::None, CaseMarks::Linter);
            if is_pytest {
                root.element.repeats = RepeatedTest::Pytest;
            } else if is_xctest {
                root.element.repeats = RepeatedTest::Xctest;
            }
            self.is_hostname_project = has_id && has_name;
            self.is_root_playwright = self.is_hostname_project && !is_named;
            self.is_root_biome = is_biome;
            self.is_root_plain = tag.attributes().next().is_none();
        }
        if is_inner { ReportElement::Suite } else { ReportElement::Suites }
    }

    pub(crate) fn open_suite(&mut self, tag: &BytesStart<'_>, line: u64) -> ReportElement {
        let mut suite = self.new_suite(line);
        let (mut timestamp, mut day, mut name) = (None, None, None);
        let (mut hostname, mut package) = (None::<Arc<str>>, None);
        let mut is_surefire = false;
        self.each_attribute(
            tag,
            line,
            [
                "name",
                "file",
                "filepath",
                "failures",
                "errors",
                "failed",
                "failure",
                "errored",
                "timeouts",
                "crashed",
                "aborted",
                "tests",
                "status",
                "result",
                "timestamp",
                "hostname",
                "package",
                "device",
                "flakes",
                SUREFIRE_SCHEMA,
            ],
            |this, key, raw| {
                let text = |this: &mut Self| LimitedText::of_attribute(raw, &mut this.flaws);
                match key {
                    "name" if !raw.is_empty() => name = Some(text(this)),
                    "file" | "filepath" if !raw.is_empty() => {
                        suite.file = Some(text(this).into());
                    }
                    "tests" => suite.declared.tests = parse_sum(raw).unwrap_or_default(),
                    "failures" | "errors" | "failed" | "failure" | "errored" | "timeouts"
                    | "crashed" | "aborted" => {
                        suite.declared.read(key, this.failure_sum(raw, line));
                    }
                    "status" | "result" => suite.has_failed |= is_failed_status(raw),
                    "timestamp" => {
                        timestamp = parse_timestamp(raw);
                        day = raw.trim().get(..10).map(str::to_owned);
                    }
                    "hostname" if !raw.is_empty() => hostname = Some(Arc::from(text(this))),
                    "package" if !raw.is_empty() => package = Some(Arc::from(text(this))),
                    // Maestro has one suite for each device, of one name.
                    "device" if !raw.is_empty() => suite.variant = Some(text(this).into()),
                    "flakes" => suite.has_flakes = parse_sum(raw) > Some(0),
                    SUREFIRE_SCHEMA => is_surefire = raw.contains("surefire-test-report"),
                    _ => {}
                }
            },
        );
        suite.declared.count_failed();
        if let Some(name) = name {
            let of_program = without_program(&name, package.as_deref());
            if of_program.is_some() {
                package = None;
            }
            let name = of_program.unwrap_or(&name);
            if name == "pytest" {
                suite.element.repeats = RepeatedTest::Pytest;
            }
            if is_surefire {
                suite.element.repeats = RepeatedTest::Surefire;
            } else if is_of_unittest(name) {
                suite.element.repeats = RepeatedTest::Unittest;
            }
            let name = without_worker(name);
            suite.name = stable_name(name, day.as_deref().filter(|day| day.len() == 10)).into();
            suite.take_browsers_of_testcafe(name);
            // The reporter `xunit` of Mocha up to 5, and of tap-mocha-reporter, which is made from it.
            if ["Mocha Tests", "TAP Tests"].contains(&name) {
                suite.errors_are_failures = suite.declared.failures == suite.declared.errors;
            }
            if name == "Testem Tests" {
                suite.marks = CaseMarks::Testem;
            }
        }
        suite.has_hostname = hostname.is_some();
        let is_machine = if self.is_root_playwright { is_runner_name } else { is_machine_name };
        if let Some(project) = hostname.filter(|host| !is_machine(host))
            && self.is_hostname_project
            && package.is_none()
        {
            suite.variant = Some(project);
        }
        if package.as_deref() == Some("org.eslint") {
            suite.marks = CaseMarks::Linter(LinterReport::Eslint);
        }
        if package.as_deref() == Some("org.biome") && self.is_root_biome {
            suite.marks = self.marks_of_biome();
        }
        let file = suite.file.clone();
        suite.element.labels = Arc::new(SuiteLabels { package, file });
        if let Some(time) = timestamp
            && self.summary.earliest.is_none_or(|(earliest, _)| time < earliest)
        {
            self.summary.earliest = Some((time, line));
        }
        self.push_suite(suite)
    }

    /// Biome writes errors and warnings as failures, and into the root how many errors it found, also those beyond its
    /// limit that it doesn't write.
    fn marks_of_biome(&mut self) -> CaseMarks {
        let root = self.suites.iter_mut().rev().find(|suite| suite.is_root);
        let Some(root) = root else { return CaseMarks::None };
        let errors = root.declared.errors;
        root.declared.failures = root.declared.failures.max(errors);
        root.errors_are_failures = true;
        if errors == 0 { CaseMarks::Linter(LinterReport::Biome) } else { CaseMarks::None }
    }

    pub(crate) fn new_suite(&mut self, line: u64) -> OpenSuite {
        self.suite_elements = self.suite_elements.saturating_add(1);
        match self.suites.last() {
            Some(parent) => parent.child(self.suite_elements, line),
            None => OpenSuite::root(&self.empty, line),
        }
    }

    pub(crate) fn push_suite(&mut self, suite: OpenSuite) -> ReportElement {
        if self.summary.suites.len() < MAX_SUITES {
            self.summary.suites.push(Arc::clone(&suite.name));
        }
        if !self.summary.has_namesakes {
            self.summary.has_namesakes =
                !self.names.insert(Arc::clone(&suite.name)) || self.names.len() > MAX_SUITES;
        }
        self.suites.push(suite);
        self.interrupt_case();
        ReportElement::Suite
    }

    /// Reads the browser, the device or the system that a suite or a test ran with.
    pub(crate) fn read_property(&mut self, tag: &BytesStart<'_>, line: u64) {
        let (mut known, mut value) = (None, None);
        self.each_attribute(tag, line, ["name", "value"], |this, key, raw| match key {
            "name" if raw == "go.version" => known = Some("go.version"),
            "name" if raw == QT_TEST_VERSION => known = Some(QT_TEST_VERSION),
            "name" if raw == KARMA_BROWSER => known = Some(KARMA_BROWSER),
            "name" if raw == WEBDRIVERIO_BROWSER => known = Some(WEBDRIVERIO_BROWSER),
            "name" if raw == FASTLANE_RUN => known = Some(FASTLANE_RUN),
            "name" if raw == GINKGO_SUCCEEDED => known = Some(GINKGO_SUCCEEDED),
            "name" if raw == GINKGO_REASON => known = Some(GINKGO_REASON),
            "name" if TAP_SKIPS.contains(&raw) => known = Some(TAP_SKIPS[0]),
            "name" => known = VARIANT_PROPERTIES.into_iter().find(|name| *name == raw),
            _ if raw.len() <= MAX_VARIANT_CHARS || known == Some(GINKGO_REASON) => {
                value = Some(LimitedText::of_attribute(raw, &mut this.flaws));
            }
            _ => {}
        });
        if known == Some(KARMA_BROWSER) {
            if let Some(suite) = self.suites.last_mut().filter(|suite| !suite.is_root) {
                suite.take_browser_of_name();
            }
            return;
        }
        if known == Some(TAP_SKIPS[0]) {
            let is_node_tap = self.suites.last().is_some_and(|suite| suite.counts_itself);
            if let Some(open) = self.case.as_mut().filter(|_| is_node_tap) {
                open.state(Some(TestResult::Skipped));
            }
            return;
        }
        let Some((known, mut value)) = known.zip(value) else { return };
        if known == FASTLANE_RUN {
            if let Some(open) = &mut self.case {
                open.run = run_of_fastlane(&value);
            }
            return;
        }
        if VARIANT_PROPERTIES.contains(&known) {
            value = without_builds(&value);
        }
        if value.trim().is_empty() {
            return;
        }
        let suite = self.suites.last_mut();
        if [GINKGO_SUCCEEDED, GINKGO_REASON].contains(&known) {
            if let Some(suite) = suite.filter(|suite| !suite.is_root && self.case.is_none()) {
                suite.read_verdict_of_ginkgo(known == GINKGO_REASON, value);
            }
            return;
        }
        if known == QT_TEST_VERSION {
            if let Some(suite) = suite.filter(|_| value.starts_with(['4', '5'])) {
                suite.marks = CaseMarks::QtTest;
                suite.declared.errors = 0;
            }
            return;
        }
        if known == WEBDRIVERIO_BROWSER {
            if let Some(suite) = suite.filter(|suite| !suite.is_root && self.case.is_none()) {
                suite.take_browser_of_classes(&value);
            }
            return;
        }
        if known == "go.version" {
            // go-junit-report, which never runs a test again, writes it as well, and a host.
            if let Some(suite) = suite.filter(|suite| !suite.has_hostname) {
                suite.element.repeats = RepeatedTest::Go;
            }
            return;
        }
        let variant = match (&mut self.case, suite) {
            (Some(open), _) => &mut open.case.variant,
            (None, Some(suite)) => &mut suite.variant,
            (None, None) => return,
        };
        *variant = Some(match variant {
            Some(other) if other.len() + value.len() < MAX_VARIANT_CHARS => {
                format!("{other}, {value}").into()
            }
            _ => value.into(),
        });
    }

    pub(crate) fn close_suite(&mut self) -> Result<(), JunitError> {
        let Some(suite) = self.suites.last_mut() else { return Ok(()) };
        if let Some(detail) = suite.failure.take().filter(|_| !suite.has_failure()) {
            self.fail_suite(detail)?;
        }
        let Some(suite) = self.suites.last_mut() else { return Ok(()) };
        if let Some(why) = suite.special_failure.take() {
            self.fail_suite(failure_detail(TestDetailKind::Error, why))?;
        }
        let Some(suite) = self.suites.last_mut() else { return Ok(()) };
        if suite.is_root {
            let failed = std::mem::take(&mut self.node_sums).failed;
            let failed = failed.saturating_sub(suite.counted.failed_suites);
            suite.declared.failures = suite.declared.failures.max(failed);
        }
        let what = if suite.is_root {
            "the report".to_owned()
        } else {
            format!("the suite `{}`", shorten(&suite.name))
        };
        let (tests, declared) = (suite.counted.tests, suite.declared);
        // pytest counts subtests, which have no element of their own.
        let counts_more =
            suite.element.repeats == RepeatedTest::Pytest || suite.declares_attempts();
        suite.counts_itself &= declared.tests == tests + 1;
        if declared.tests > tests && !counts_more {
            if !suite.counts_itself {
                let text = format!("{what} declares {} tests and has {tests}", declared.tests);
                self.findings.add(JunitRule::TestCount, suite.line, text);
            }
            // Once for the innermost suite that lacks them.
            suite.counted.tests = declared.tests;
        }
        let seen = suite.counted.failures + suite.counted.errors;
        let hidden = suite.hidden_failures();
        if let Some(hidden) = hidden {
            let said = declared.failures.saturating_add(declared.errors);
            self.add_hidden(hidden, &format!("{what} declares {said} failures or errors"), seen)?;
        } else if suite.is_aborted || (suite.has_failed && !suite.has_failure()) {
            let text = match suite.is_aborted {
                true => format!("{what} says that it ended early"),
                false => format!("{what} failed, and no test in it did"),
            };
            self.fail_suite(failure_detail(TestDetailKind::Error, text))?;
        }
        if let Some(suite) = self.suites.pop()
            && let Some(parent) = self.suites.last_mut()
        {
            parent.counted.add(&suite.counted);
        }
        Ok(())
    }

    /// Failures that a suite declares and no test has are one row. The rest is only counted.
    fn add_hidden(
        &mut self,
        hidden: HiddenResults,
        what: &str,
        seen: u64,
    ) -> Result<(), JunitError> {
        let text = match seen {
            0 => format!("{what}, and no test in it failed"),
            seen => format!("{what}, and only {seen} of its tests failed"),
        };
        let line = self.suites.last().map_or(1, |suite| suite.line);
        self.findings.add(JunitRule::FailureCount, line, &text);
        let sums = &mut self.summary.hidden_failures;
        let sum = match hidden.kind {
            TestDetailKind::Error => &mut sums.errors,
            _ => &mut sums.failures,
        };
        *sum = sum.saturating_add(hidden.count - 1).min(MAX_CASES);
        self.pass_on_suite(failure_detail(hidden.kind, text))
    }

    /// Adds a row for a failure of the innermost suite outside its tests.
    pub(crate) fn fail_suite(&mut self, detail: TestDetail) -> Result<(), JunitError> {
        let Some(suite) = self.suites.last_mut() else { return Ok(()) };
        suite.is_aborted = false;
        let is_error = detail.kind == TestDetailKind::Error;
        suite.count_failure(if is_error { TestResult::Error } else { TestResult::Failure });
        suite.counted.details += 1;
        let text = format_args!("the suite `{}` failed outside its tests", shorten(&suite.name));
        self.findings.add(JunitRule::SuiteFailure, suite.line, text);
        self.pass_on_suite(detail)
    }

    fn pass_on_suite(&mut self, detail: TestDetail) -> Result<(), JunitError> {
        let Some(suite) = self.suites.last() else { return Ok(()) };
        let mut case = new_case(suite, &self.empty);
        case.kind = TestRowKind::Suite;
        case.result = match detail.kind {
            TestDetailKind::Error => TestResult::Error,
            _ => TestResult::Failure,
        };
        case.details.push(detail);
        self.pass_on(case)
    }
}

/// `First Run`, and `Retry 1` of a test that failed. With `-test-iterations` alone it is called otherwise, and each result
/// counts.
fn run_of_fastlane(name: &str) -> u32 {
    match name.strip_prefix("Retry ").map(str::parse::<u32>) {
        Some(Ok(number @ 1..=1_000)) => number + 1,
        _ => u32::from(name == "First Run"),
    }
}

/// Whether the suite's name ends with the time of the run, as unittest-xml-reporting writes it: `a.Tests-20261127205552`.
fn is_of_unittest(name: &str) -> bool {
    name.rsplit_once('-').is_some_and(|(_, time)| {
        time.len() == 14 && time.starts_with("20") && time.bytes().all(|b| b.is_ascii_digit())
    })
}

fn is_failed_status(raw: &str) -> bool {
    status_result(raw).is_some_and(TestResult::is_failed)
}
