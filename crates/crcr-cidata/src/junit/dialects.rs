//! Formats other than JUnit, by their published schemas:
//! [NUnit 3](https://docs.nunit.org/articles/nunit/technical-notes/usage/Test-Result-XML-Format.html),
//! [xUnit.net v2](https://xunit.net/docs/format-xml-v2), and TRX of .NET, whose schema `vstst.xsd` comes
//! with Visual Studio.

use std::sync::Arc;

use crcr_domain::ci_data::test_run::{TestCase, TestDetailKind, TestResult};
use quick_xml::events::BytesStart;

use super::dialect::drop_class_of_name;
use super::elements::{ElementReader, ReportElement};
use super::findings::JunitRule;
use super::summary::{SuiteElement, SuiteLabels};
use super::text::LimitedText;
use super::values::{
    file_name, parse_seconds, parse_sum, parse_time_span, shared, shorten, status_result,
};

impl<F: FnMut(TestCase, &SuiteElement)> ElementReader<F> {
    pub(crate) fn open_nunit(
        &mut self,
        parent: Option<ReportElement>,
        name: &str,
        tag: &BytesStart<'_>,
        line: u64,
    ) -> ReportElement {
        match (parent, name) {
            (None, "test-run") => {
                self.read_nunit_sums(tag, line);
                ReportElement::Suites
            }
            (Some(ReportElement::Suites | ReportElement::Suite), "test-suite") => {
                self.open_nunit_suite(tag, line)
            }
            (Some(ReportElement::Suites | ReportElement::Suite), "test-case") => {
                self.open_nunit_case(tag, line)
            }
            (Some(ReportElement::Suite), "failure") => self.open_result_detail(tag, line),
            // Of an assembly that can't be loaded. A suite that is skipped has one, too.
            (Some(ReportElement::Suite), "reason")
                if self.suites.last().is_some_and(|suite| suite.has_failed) =>
            {
                self.open_result_detail(tag, line)
            }
            _ => self.open_in_result(parent, name, tag, line),
        }
    }

    /// What NUnit and xUnit.net write alike.
    fn open_in_result(
        &mut self,
        parent: Option<ReportElement>,
        name: &str,
        tag: &BytesStart<'_>,
        line: u64,
    ) -> ReportElement {
        match (parent, name) {
            (Some(ReportElement::Case), "failure") => self.open_result_detail(tag, line),
            (Some(ReportElement::Case), "reason") => {
                self.open_detail(TestDetailKind::Skipped, tag, line)
            }
            (Some(ReportElement::Detail), "message") => ReportElement::Message,
            (Some(ReportElement::Detail), "stack-trace") => ReportElement::Other,
            _ => ReportElement::Output,
        }
    }

    /// Reads the counts of the whole run, or of a suite.
    fn read_nunit_sums(&mut self, tag: &BytesStart<'_>, line: u64) {
        let (mut failed, mut total, mut has_failed) = (0, 0, false);
        self.each_attribute(tag, line, ["failed", "total", "result"], |this, key, raw| match key {
            "failed" => failed = this.failure_sum(raw, line),
            "total" => total = parse_sum(raw).unwrap_or_default(),
            // Unity writes `Failed(Child)`.
            _ => has_failed = nunit_status(raw) == "Failed",
        });
        if let Some(suite) = self.suites.last_mut() {
            suite.line = line;
            suite.declared.failures = failed;
            suite.declared.tests = total;
            suite.has_failed = has_failed;
        }
    }

    fn open_nunit_suite(&mut self, tag: &BytesStart<'_>, line: u64) -> ReportElement {
        let mut suite = self.new_suite(line);
        let is_outermost = self.suites.last().is_none_or(|parent| parent.name.is_empty());
        suite.may_sum_up = true;
        self.each_attribute(tag, line, ["name", "site"], |this, key, raw| match key {
            "name" if is_outermost => {
                let name = LimitedText::of_attribute(raw, &mut this.flaws);
                suite.name = file_name(&name).into();
            }
            // Its tests had ended by then.
            "site" => suite.may_sum_up = raw != "TearDown",
            _ => {}
        });
        let element = self.push_suite(suite);
        self.read_nunit_sums(tag, line);
        element
    }

    fn open_nunit_case(&mut self, tag: &BytesStart<'_>, line: u64) -> ReportElement {
        let mut open = self.new_case(line);
        let (mut result, mut label, mut has_time) = (TestResult::Unfinished, String::new(), false);
        let mut full_name = String::new();
        self.each_attribute(
            tag,
            line,
            ["name", "fullname", "classname", "result", "label", "duration"],
            |this, key, raw| match key {
                "name" => open.case.name = LimitedText::of_attribute(raw, &mut this.flaws),
                "fullname" => full_name = LimitedText::of_attribute(raw, &mut this.flaws),
                "classname" => {
                    open.case.classname = shared(raw, &mut this.last_classname, &mut this.flaws);
                }
                "duration" => {
                    has_time = true;
                    open.case.time = parse_seconds(raw);
                }
                "label" => label = raw.to_owned(),
                _ => result = this.nunit_result(raw, line),
            },
        );
        if result == TestResult::Failure && !label.is_empty() {
            // `Error`, `Cancelled`, `Invalid`: not an assertion.
            result = TestResult::Error;
        }
        open.status = Some(result);
        if let Some(fixture) = fixture_with_arguments(&full_name, &open.case) {
            open.case.classname = fixture.into();
        }
        self.push_case(open, has_time)
    }

    fn nunit_result(&mut self, raw: &str, line: u64) -> TestResult {
        match nunit_status(raw) {
            "Passed" => TestResult::Success,
            "Warning" => {
                let message = "a result `Warning` doesn't count as a failure";
                self.findings.add(JunitRule::Warning, line, message);
                TestResult::Success
            }
            "Skipped" | "Inconclusive" => TestResult::Skipped,
            _ => TestResult::Failure,
        }
    }

    /// A detail that explains the result, which an attribute has stated already.
    fn open_result_detail(&mut self, tag: &BytesStart<'_>, line: u64) -> ReportElement {
        let kind = match self.case.as_ref().and_then(|open| open.status) {
            // Some tools write an empty one for every test.
            Some(TestResult::Success) => return ReportElement::Output,
            Some(TestResult::Error) => TestDetailKind::Error,
            Some(TestResult::Skipped) => TestDetailKind::Skipped,
            _ => TestDetailKind::Failure,
        };
        self.open_detail(kind, tag, line)
    }

    pub(crate) fn open_xunit(
        &mut self,
        parent: Option<ReportElement>,
        name: &str,
        tag: &BytesStart<'_>,
        line: u64,
    ) -> ReportElement {
        match (parent, name) {
            (None, "assemblies") => ReportElement::Suites,
            (Some(ReportElement::Suites), "assembly") => self.open_xunit_suite(tag, line, true),
            // In the reports of xUnit.net v1 that have the same root.
            (Some(ReportElement::Suite), "collection" | "class") => {
                self.open_xunit_suite(tag, line, false)
            }
            (Some(ReportElement::Suite), "failure") => self.open_xunit_error(tag, line),
            (Some(ReportElement::Suites | ReportElement::Suite), "errors") => {
                ReportElement::Wrapper
            }
            (Some(ReportElement::Wrapper), "error") => ReportElement::Wrapper,
            (Some(ReportElement::Wrapper), "failure") => self.open_xunit_error(tag, line),
            (Some(ReportElement::Suite), "test") => self.open_xunit_case(tag, line),
            _ => self.open_in_result(parent, name, tag, line),
        }
    }

    /// A failure outside the tests, such as of a fixture's end. Each is one that the assembly declares.
    fn open_xunit_error(&mut self, tag: &BytesStart<'_>, line: u64) -> ReportElement {
        if let Some(suite) = self.suites.last_mut() {
            suite.has_failed = true;
        }
        self.open_detail(TestDetailKind::Error, tag, line)
    }

    fn open_xunit_suite(
        &mut self,
        tag: &BytesStart<'_>,
        line: u64,
        has_name: bool,
    ) -> ReportElement {
        let mut suite = self.new_suite(line);
        let wanted = ["name", "target-framework", "total", "failed", "errors"];
        self.each_attribute(tag, line, wanted, |this, key, raw| {
            match key {
                "name" if has_name => {
                    let name = LimitedText::of_attribute(raw, &mut this.flaws);
                    suite.name = file_name(&name).into();
                }
                // One assembly may have been built for several.
                "target-framework" if has_name && !raw.is_empty() => {
                    let framework = LimitedText::of_attribute(raw, &mut this.flaws);
                    let package = Some(framework.into());
                    suite.element.labels = Arc::new(SuiteLabels { package, file: None });
                }
                "total" => suite.declared.tests = parse_sum(raw).unwrap_or_default(),
                "failed" => suite.declared.failures = this.failure_sum(raw, line),
                "errors" => suite.declared.errors = this.failure_sum(raw, line),
                _ => {}
            }
        });
        self.push_suite(suite)
    }

    fn open_xunit_case(&mut self, tag: &BytesStart<'_>, line: u64) -> ReportElement {
        let mut open = self.new_case(line);
        let mut has_time = false;
        self.each_attribute(
            tag,
            line,
            ["name", "type", "method", "time", "result", "source-file"],
            |this, key, raw| match key {
                "name" => open.case.name = LimitedText::of_attribute(raw, &mut this.flaws),
                "type" => {
                    open.case.classname = shared(raw, &mut this.last_classname, &mut this.flaws);
                }
                "time" => {
                    has_time = true;
                    open.case.time = parse_seconds(raw);
                }
                "result" => {
                    open.status = Some(match raw {
                        "Pass" => TestResult::Success,
                        "Skip" | "NotRun" => TestResult::Skipped,
                        _ => TestResult::Failure,
                    });
                }
                "source-file" if !raw.is_empty() => {
                    let file = LimitedText::of_attribute(raw, &mut this.flaws);
                    open.case.file = Some(file.into());
                }
                _ => {}
            },
        );
        drop_class_of_name(&mut open.case);
        self.push_case(open, has_time)
    }

    pub(crate) fn open_trx(
        &mut self,
        parent: Option<ReportElement>,
        name: &str,
        tag: &BytesStart<'_>,
        line: u64,
    ) -> ReportElement {
        match (parent, name) {
            (None, "TestRun") => ReportElement::Suites,
            (Some(ReportElement::Suites), "Results" | "TestDefinitions" | "ResultSummary") => {
                if name == "ResultSummary" {
                    self.read_trx_outcome(tag, line);
                }
                ReportElement::Wrapper
            }
            (Some(ReportElement::Case), "InnerResults") => ReportElement::Wrapper,
            (Some(ReportElement::Wrapper), "UnitTest") => {
                self.read_trx_definition(tag, line);
                ReportElement::Wrapper
            }
            (Some(ReportElement::Wrapper), "TestMethod") => {
                self.read_trx_class(tag, line);
                ReportElement::Output
            }
            (Some(ReportElement::Wrapper), "Counters") => {
                self.read_trx_counters(tag, line);
                ReportElement::Output
            }
            (Some(ReportElement::Wrapper), "RunInfos") => ReportElement::Wrapper,
            (Some(ReportElement::Wrapper), "RunInfo") => self.open_trx_info(tag, line),
            (Some(ReportElement::Detail), "Text" | "Message") => ReportElement::Message,
            (Some(ReportElement::Wrapper), name) if name.ends_with("Result") => {
                self.open_trx_case(tag, line)
            }
            (Some(ReportElement::Wrapper), "TestResultAggregation") => {
                self.open_trx_case(tag, line)
            }
            (Some(ReportElement::Case), "Output") => ReportElement::Other,
            (Some(ReportElement::Other), "ErrorInfo") => self.open_result_detail(tag, line),
            (Some(ReportElement::Detail), "StackTrace") => ReportElement::Other,
            _ => ReportElement::Output,
        }
    }

    fn open_trx_case(&mut self, tag: &BytesStart<'_>, line: u64) -> ReportElement {
        let mut open = self.new_case(line);
        let mut has_time = false;
        // vstest doesn't write the first of its outcomes, which is `Error`.
        open.status = Some(TestResult::Error);
        self.each_attribute(
            tag,
            line,
            ["testId", "testName", "duration", "outcome"],
            |this, key, raw| match key {
                "testId" => open.trx_id = raw.to_owned(),
                "testName" => open.case.name = LimitedText::of_attribute(raw, &mut this.flaws),
                "duration" => {
                    has_time = true;
                    open.case.time = parse_time_span(raw);
                }
                _ => open.status = Some(this.trx_result(raw, line)),
            },
        );
        // A test that didn't run has no duration.
        let is_timed = has_time || open.status == Some(TestResult::Skipped);
        self.push_case(open, is_timed)
    }

    fn read_trx_definition(&mut self, tag: &BytesStart<'_>, line: u64) {
        let (mut id, mut assembly) = (String::new(), Arc::clone(&self.empty));
        self.each_attribute(tag, line, ["id", "storage"], |this, key, raw| match key {
            "id" => id = raw.to_owned(),
            _ => {
                let path = LimitedText::of_attribute(raw, &mut this.flaws);
                assembly = file_name(&path).into();
            }
        });
        self.trx.open_definition(id, assembly);
    }

    fn read_trx_class(&mut self, tag: &BytesStart<'_>, line: u64) {
        let mut class = None;
        self.each_attribute(tag, line, ["className"], |this, _, raw| {
            // Older files have the assembly behind a comma.
            let raw = raw.split(", ").next().unwrap_or(raw);
            class = Some(shared(raw, &mut this.last_classname, &mut this.flaws));
        });
        if let Some(class) = class {
            self.trx.name_class(class);
        }
    }

    fn read_trx_counters(&mut self, tag: &BytesStart<'_>, line: u64) {
        let (mut total, mut failures, mut errors) = (0, 0, 0_u64);
        self.each_attribute(
            tag,
            line,
            ["total", "failed", "error", "timeout", "aborted", "disconnected"],
            |this, key, raw| match key {
                "total" => total = parse_sum(raw).unwrap_or_default(),
                "failed" => failures = this.failure_sum(raw, line),
                _ => errors = errors.saturating_add(this.failure_sum(raw, line)),
            },
        );
        if let Some(suite) = self.suites.last_mut() {
            suite.line = line;
            suite.declared.tests = total;
            (suite.declared.failures, suite.declared.errors) = (failures, errors);
        }
    }

    /// The outcome of the run, which follows its tests.
    fn read_trx_outcome(&mut self, tag: &BytesStart<'_>, line: u64) {
        let (mut result, mut is_aborted) = (TestResult::Success, false);
        self.each_attribute(tag, line, ["outcome"], |this, _, raw| {
            result = this.trx_result(raw, line);
            let word = raw.to_ascii_lowercase();
            is_aborted = word.contains("abort") || word.contains("disconnect");
        });
        if let Some(suite) = self.suites.last_mut() {
            is_aborted |= match result {
                TestResult::Unfinished => true,
                TestResult::Error => suite.counted.errors == 0,
                _ => false,
            };
            (suite.line, suite.has_failed) = (line, result.is_failed());
            suite.is_aborted = is_aborted;
        }
    }

    /// What TRX says of the whole run, such as that the process of the tests crashed.
    fn open_trx_info(&mut self, tag: &BytesStart<'_>, line: u64) -> ReportElement {
        let mut is_failure = false;
        self.each_attribute(tag, line, ["outcome"], |this, _, raw| {
            is_failure = this.trx_result(raw, line).is_failed();
        });
        if is_failure {
            self.open_detail(TestDetailKind::Error, tag, line)
        } else {
            ReportElement::Output
        }
    }

    fn trx_result(&mut self, outcome: &str, line: u64) -> TestResult {
        if let Some(result) = status_result(outcome) {
            return result;
        }
        let message =
            format_args!("the outcome `{}` isn't known and counts as an error", shorten(outcome));
        self.findings.add(JunitRule::UnknownResult, line, message);
        TestResult::Error
    }
}

/// A result without its label and place, as in `Skipped:Ignored` and `Failed:Error(SetUp)`.
fn nunit_status(raw: &str) -> &str {
    raw.split([':', '(']).next().unwrap_or(raw)
}

/// The class of a fixture that runs several times, with its arguments: `A.F(1)` and `A.F<Int32>`. `classname` leaves them
/// out, so tests of one name would only be told apart by their order.
fn fixture_with_arguments<'a>(full_name: &'a str, case: &TestCase) -> Option<&'a str> {
    let fixture = full_name.strip_suffix(case.name.as_str())?.strip_suffix('.')?;
    // Of a generic class, as in ``A.F`1``.
    let class = case.classname.split('`').next().unwrap_or_default();
    fixture.strip_prefix(class)?.starts_with(['(', '<']).then_some(fixture)
}
