//! Elements of a report → tests. The elements of other formats than JUnit are in `dialects`.

use std::collections::HashSet;
use std::io::Read;
use std::sync::Arc;

use crcr_domain::ci_data::stable_name::stable_name;
use crcr_domain::ci_data::test_run::{
    TestCase, TestDetail, TestDetailKind, TestResult, TestRowKind,
};
use quick_xml::events::BytesStart;
use quick_xml::events::attributes::{AttrError, Attribute};

use super::dialects::{Dialect, TrxTests};
use super::findings::{FindingList, JunitRule};
use super::input::{AfterText, ReportText};
use super::other_files::OtherFile;
use super::reader::{
    JunitError, JunitSummary, MAX_CASES, MAX_DEPTH, MAX_ELEMENT_NAME, Repeats, ReportEnd,
    SuiteElement, SuiteLabels,
};
use super::suites::{Hidden, OpenSuite};
use super::text::{GoCrashSearch, LimitedText, TextFlaws};
use super::values::{
    is_machine_name, parse_seconds, parse_timestamp, shared, shorten, status_result,
};

/// More failures, skips and reruns of one element are counted only.
const MAX_DETAILS: usize = 100;
/// In characters.
const MAX_NAME: usize = 1000;
/// More names of suites are dropped.
const MAX_SUITES: usize = 10_000;
/// In characters.
const MAX_VARIANT: usize = 100;
/// Properties whose value says what a test ran with.
const VARIANT_PROPERTIES: [&str; 7] =
    ["browser", "browserName", "device", "deviceName", "os", "platform", "platformName"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Element {
    Suites,
    Suite,
    /// Around suites and tests, without a meaning of its own.
    Wrapper,
    Case,
    /// A child of a test or a suite that tells of a failure, a skip or a rerun.
    Detail,
    /// The message in a detail, where it is an element.
    Message,
    /// Output of a suite.
    SuiteOutput,
    /// Output of a test, wherever in it.
    Output,
    Properties,
    Other,
}

pub(super) struct OpenCase {
    pub case: TestCase,
    pub line: u64,
    /// What an attribute says. In formats other than JUnit it decides.
    pub status: Option<TestResult>,
    pub is_classname_blank: bool,
    /// Also those beyond [`MAX_DETAILS`].
    details: usize,
    /// `<failure>` and `<error>`.
    failure_details: u64,
    /// The id by which TRX names the class at its end.
    pub trx_id: String,
    /// Whether it is the sum of tests in it, and whether one of those failed.
    pub inner: Option<bool>,
}

struct OpenDetail {
    kind: TestDetailKind,
    type_name: Option<String>,
    message: Option<String>,
    message_text: LimitedText,
    text: LimitedText,
}

pub(super) struct Elements<F> {
    on_case: F,
    pub dialect: Option<Dialect>,
    open: Vec<Element>,
    pub suites: Vec<OpenSuite>,
    pub case: Option<OpenCase>,
    /// Tests around the open one. Only TRX nests them.
    pub outer_cases: Vec<OpenCase>,
    pub trx: TrxTests,
    detail: Option<OpenDetail>,
    crash: GoCrashSearch,
    cases: u64,
    suite_elements: u32,
    names: HashSet<Arc<str>>,
    /// Whether the suites' `hostname` is the name of a project, as Playwright writes it.
    is_hostname_project: bool,
    pub flaws: TextFlaws,
    pub last_classname: Arc<str>,
    last_file: Arc<str>,
    pub empty: Arc<str>,
    summary: JunitSummary,
    pub findings: FindingList,
}

impl<F: FnMut(TestCase, &SuiteElement)> Elements<F> {
    pub(super) fn new(on_case: F) -> Self {
        let empty: Arc<str> = Arc::from("");
        Self {
            on_case,
            dialect: None,
            open: Vec::new(),
            suites: Vec::new(),
            case: None,
            outer_cases: Vec::new(),
            trx: TrxTests::default(),
            detail: None,
            crash: GoCrashSearch::default(),
            cases: 0,
            suite_elements: 0,
            names: HashSet::new(),
            is_hostname_project: false,
            flaws: TextFlaws::default(),
            last_classname: Arc::clone(&empty),
            last_file: Arc::clone(&empty),
            empty,
            summary: JunitSummary::default(),
            findings: FindingList::default(),
        }
    }

    pub(super) fn read_text<R: Read>(
        &mut self,
        text: &mut ReportText<R>,
    ) -> std::io::Result<AfterText> {
        let line = text.line();
        let (after, flaws) = match (self.open.last(), &mut self.detail) {
            (Some(Element::SuiteOutput), _) => return text.read_text(&mut self.crash),
            (Some(Element::Message), Some(detail)) => {
                let after = text.read_text(&mut detail.message_text);
                (after, std::mem::take(&mut detail.message_text.flaws))
            }
            (Some(Element::Detail | Element::Other), Some(detail)) => {
                let after = text.read_text(&mut detail.text);
                (after, std::mem::take(&mut detail.text.flaws))
            }
            _ => return text.read_text(&mut ()),
        };
        self.note_flaws(flaws, line);
        after
    }

    pub(super) fn open(&mut self, tag: &BytesStart<'_>, line: u64) -> Result<(), JunitError> {
        let name = tag.local_name();
        let name: &str = name.as_ref();
        let dialect = match self.dialect {
            Some(dialect) => dialect,
            None => {
                let dialect = Dialect::of_root(name, tag)
                    .ok_or_else(|| JunitError::OtherFile(OtherFile::of_root(name)))?;
                self.suites.push(OpenSuite::root(&self.empty, line));
                *self.dialect.insert(dialect)
            }
        };
        if name.len() > MAX_ELEMENT_NAME {
            return Err(JunitError::TagTooLarge);
        }
        if self.open.len() == MAX_DEPTH {
            return Err(JunitError::TooDeep);
        }
        let parent = self.open.last().copied();
        let element = match dialect {
            Dialect::Junit => self.open_junit(parent, name, tag, line)?,
            Dialect::Nunit => self.open_nunit(parent, name, tag, line),
            Dialect::Xunit => self.open_xunit(parent, name, tag, line),
            Dialect::Trx => self.open_trx(parent, name, tag, line),
        };
        self.open.push(element);
        Ok(())
    }

    fn open_junit(
        &mut self,
        parent: Option<Element>,
        name: &str,
        tag: &BytesStart<'_>,
        line: u64,
    ) -> Result<Element, JunitError> {
        Ok(match parent {
            None | Some(Element::Suites | Element::Suite | Element::Wrapper) => match name {
                "testsuites" => {
                    self.read_root(tag, line);
                    Element::Suites
                }
                "testsuite" => self.open_suite(tag, line),
                "testcase" => self.open_case(tag, line),
                // libcheck's format has the same root.
                "suite" => return Err(JunitError::OtherFile(OtherFile::of_root(name))),
                "failure" => self.open_detail(TestDetailKind::Failure, tag, line),
                "error" => self.open_detail(TestDetailKind::Error, tag, line),
                "system-out" | "system-err" => Element::SuiteOutput,
                "properties" => Element::Properties,
                _ => Element::Wrapper,
            },
            Some(Element::Case) => match name {
                "failure" => self.open_detail(TestDetailKind::Failure, tag, line),
                "error" => self.open_detail(TestDetailKind::Error, tag, line),
                "skipped" => self.open_detail(TestDetailKind::Skipped, tag, line),
                "rerun" | "rerunFailure" | "rerunError" | "flakyFailure" | "flakyError" => {
                    self.open_detail(TestDetailKind::Rerun, tag, line)
                }
                "warning" => {
                    let message = "a `<warning>` doesn't count as a failure";
                    self.findings.add(JunitRule::Warning, line, message);
                    Element::Other
                }
                "system-out" | "system-err" => Element::Output,
                "properties" => Element::Properties,
                _ => Element::Other,
            },
            Some(Element::Properties) => {
                self.read_property(tag, line);
                Element::Output
            }
            Some(Element::Detail | Element::Message | Element::Other) => match name {
                "system-out" | "system-err" => Element::Output,
                _ => Element::Other,
            },
            Some(Element::Output | Element::SuiteOutput) => Element::Output,
        })
    }

    pub(super) fn close(&mut self) -> Result<(), JunitError> {
        match self.open.pop() {
            Some(Element::Suite) => self.close_suite()?,
            Some(Element::Case) => {
                if let Some(case) = self.case.take() {
                    self.case = self.outer_cases.pop();
                    self.close_case(case, false)?;
                }
            }
            Some(Element::Detail) => self.close_detail()?,
            Some(Element::SuiteOutput) => {
                let message = std::mem::take(&mut self.crash).message();
                let has_failure = self.suites.last().is_some_and(OpenSuite::has_failure);
                if let Some(message) = message.filter(|_| !has_failure) {
                    self.fail_suite(failure_detail(TestDetailKind::Error, message))?;
                }
            }
            _ => {}
        }
        if self.open.is_empty() {
            self.close_root()?;
            // Another report can follow in the same file.
            self.suites.push(OpenSuite::root(&self.empty, 1));
        }
        Ok(())
    }

    fn close_root(&mut self) -> Result<(), JunitError> {
        for case in std::mem::take(&mut self.trx).named() {
            self.pass_on(case)?;
        }
        self.close_suite()
    }

    fn read_root(&mut self, tag: &BytesStart<'_>, line: u64) {
        let mut has_id = false;
        let mut declared = Default::default();
        let mut is_pytest = false;
        self.each_attribute(
            tag,
            line,
            ["name", "failures", "errors", "tests", "id"],
            |_, key, raw| {
                let declared: &mut super::suites::Declared = &mut declared;
                let number = || raw.trim().parse::<u64>().unwrap_or_default();
                match key {
                    "failures" => declared.failures = number(),
                    "errors" => declared.errors = number(),
                    "tests" => declared.tests = number(),
                    "id" => has_id = true,
                    _ => is_pytest = raw == "pytest tests",
                }
            },
        );
        if let Some(root) = self.suites.last_mut().filter(|suite| suite.is_root) {
            (root.declared, root.line) = (declared, line);
            if is_pytest {
                root.element.repeats = Repeats::Pytest;
            }
            self.is_hostname_project = has_id;
        }
    }

    fn open_suite(&mut self, tag: &BytesStart<'_>, line: u64) -> Element {
        let mut suite = self.new_suite(line);
        let (mut timestamp, mut day, mut name) = (None, None, None);
        let (mut hostname, mut package) = (None, None);
        self.each_attribute(
            tag,
            line,
            [
                "name",
                "file",
                "filepath",
                "failures",
                "errors",
                "tests",
                "timestamp",
                "hostname",
                "package",
            ],
            |this, key, raw| {
                let number = || raw.trim().parse::<u64>().unwrap_or_default();
                let text = |this: &mut Self| LimitedText::of_attribute(raw, &mut this.flaws);
                match key {
                    "name" if !raw.is_empty() => name = Some(text(this)),
                    "file" | "filepath" if !raw.is_empty() => {
                        suite.file = Some(text(this).into());
                    }
                    "failures" => suite.declared.failures = number(),
                    "errors" => suite.declared.errors = number(),
                    "tests" => suite.declared.tests = number(),
                    "timestamp" => {
                        timestamp = parse_timestamp(raw);
                        day = raw.trim().get(..10).map(str::to_owned);
                    }
                    "hostname" if !raw.is_empty() => hostname = Some(Arc::from(text(this))),
                    "package" if !raw.is_empty() => package = Some(Arc::from(text(this))),
                    _ => {}
                }
            },
        );
        if let Some(name) = name {
            if name == "pytest" {
                suite.element.repeats = Repeats::Pytest;
            }
            suite.name = stable_name(&name, day.as_deref().filter(|day| day.len() == 10)).into();
        }
        if self.is_hostname_project
            && hostname.as_deref().is_some_and(|host| !is_machine_name(host))
        {
            suite.variant = hostname.take();
        }
        let file = suite.file.clone();
        suite.element.labels = Arc::new(SuiteLabels { hostname, package, file });
        if let Some(time) = timestamp
            && self.summary.earliest.is_none_or(|(earliest, _)| time < earliest)
        {
            self.summary.earliest = Some((time, line));
        }
        self.push_suite(suite)
    }

    pub(super) fn new_suite(&mut self, line: u64) -> OpenSuite {
        self.suite_elements = self.suite_elements.saturating_add(1);
        match self.suites.last() {
            Some(parent) => parent.child(self.suite_elements, line),
            None => OpenSuite::root(&self.empty, line),
        }
    }

    pub(super) fn push_suite(&mut self, suite: OpenSuite) -> Element {
        if self.summary.suites.len() < MAX_SUITES {
            self.summary.suites.push(Arc::clone(&suite.name));
        }
        if !self.summary.has_namesakes {
            self.summary.has_namesakes =
                !self.names.insert(Arc::clone(&suite.name)) || self.names.len() > MAX_SUITES;
        }
        self.suites.push(suite);
        Element::Suite
    }

    /// Of a suite or a test: the browser, the device or the system that it ran with.
    fn read_property(&mut self, tag: &BytesStart<'_>, line: u64) {
        let (mut known, mut value) = (None, None);
        self.each_attribute(tag, line, ["name", "value"], |this, key, raw| match key {
            "name" if raw == "go.version" => known = Some("go.version"),
            "name" => known = VARIANT_PROPERTIES.into_iter().find(|name| *name == raw),
            _ if raw.len() <= MAX_VARIANT => {
                value = Some(LimitedText::of_attribute(raw, &mut this.flaws));
            }
            _ => {}
        });
        let Some((known, value)) = known.zip(value.filter(|value| !value.trim().is_empty())) else {
            return;
        };
        let suite = self.suites.last_mut();
        if known == "go.version" {
            // go-junit-report, which never runs a test again, writes it as well, and a host.
            let has_host = |suite: &OpenSuite| suite.element.labels.hostname.is_some();
            if let Some(suite) = suite.filter(|suite| !has_host(suite)) {
                suite.element.repeats = Repeats::Go;
            }
            return;
        }
        let variant = match (&mut self.case, suite) {
            (Some(open), _) => &mut open.case.variant,
            (None, Some(suite)) => &mut suite.variant,
            (None, None) => return,
        };
        *variant = Some(match variant {
            Some(other) if other.len() + value.len() < MAX_VARIANT => {
                format!("{other}, {value}").into()
            }
            _ => value.into(),
        });
    }

    pub(super) fn close_suite(&mut self) -> Result<(), JunitError> {
        let Some(suite) = self.suites.last_mut() else { return Ok(()) };
        if let Some(detail) = suite.failure.take().filter(|_| !suite.has_failure()) {
            self.fail_suite(detail)?;
        }
        let Some(suite) = self.suites.last_mut() else { return Ok(()) };
        let what = if suite.is_root {
            "the report".to_owned()
        } else {
            format!("the suite `{}`", shorten(&suite.name))
        };
        let (tests, declared) = (suite.counted.tests, suite.declared);
        if declared.tests > tests {
            let text = format!("{what} declares {} tests and has {tests}", declared.tests);
            self.findings.add(JunitRule::TestCount, suite.line, text);
            // Once for the innermost suite that lacks them.
            suite.counted.tests = declared.tests;
        }
        let seen = suite.counted.failures + suite.counted.errors;
        let hidden = suite.hidden_failures();
        if let Some(hidden) = hidden {
            let said = declared.failures.saturating_add(declared.errors);
            self.add_hidden(hidden, &format!("{what} declares {said} failures or errors"), seen)?;
        } else if suite.has_failed && !suite.has_failure() {
            let text = format!("{what} failed, and no test in it did");
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
    fn add_hidden(&mut self, hidden: Hidden, what: &str, seen: u64) -> Result<(), JunitError> {
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
    pub(super) fn fail_suite(&mut self, detail: TestDetail) -> Result<(), JunitError> {
        let Some(suite) = self.suites.last_mut() else { return Ok(()) };
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

    fn open_case(&mut self, tag: &BytesStart<'_>, line: u64) -> Element {
        let mut open = self.new_case(line);
        let case = &mut open.case;
        let mut has_time = false;
        self.each_attribute(
            tag,
            line,
            ["name", "classname", "file", "time", "status", "result"],
            |this, key, raw| match key {
                "name" => case.name = LimitedText::of_attribute(raw, &mut this.flaws),
                "classname" => {
                    open.is_classname_blank = raw.trim().is_empty();
                    case.classname = shared(raw, &mut this.last_classname, &mut this.flaws);
                }
                "file" if !raw.is_empty() => {
                    case.file = Some(shared(raw, &mut this.last_file, &mut this.flaws));
                }
                "time" => {
                    has_time = true;
                    case.time = parse_seconds(raw);
                    if case.time.is_none() {
                        let message =
                            format_args!("`{}` isn't a duration in seconds", shorten(raw));
                        this.findings.add(JunitRule::BadDuration, line, message);
                    }
                }
                "status" | "result" => open.status = open.status.or(status_result(raw)),
                _ => {}
            },
        );
        self.push_case(open, has_time)
    }

    pub(super) fn new_case(&self, line: u64) -> OpenCase {
        let case = match self.suites.last() {
            Some(suite) => new_case(suite, &self.empty),
            None => new_case(&OpenSuite::root(&self.empty, line), &self.empty),
        };
        OpenCase {
            case,
            line,
            status: None,
            is_classname_blank: false,
            details: 0,
            failure_details: 0,
            trx_id: String::new(),
            inner: None,
        }
    }

    pub(super) fn push_case(&mut self, open: OpenCase, has_time: bool) -> Element {
        let (name, line) = (&open.case.name, open.line);
        if !has_time {
            let message = format_args!("`{}` has no duration", shorten(name));
            self.findings.add(JunitRule::NoDuration, line, message);
        }
        if name.len() > MAX_NAME && name.chars().count() > MAX_NAME {
            let message =
                format_args!("the name `{}` is longer than {MAX_NAME} characters", shorten(name));
            self.findings.add(JunitRule::LongName, line, message);
        }
        self.outer_cases.extend(self.case.replace(open));
        Element::Case
    }

    /// Determines the result. `is_cut` tells that the report ends within the test.
    fn close_case(&mut self, mut open: OpenCase, is_cut: bool) -> Result<(), JunitError> {
        if open.details > MAX_DETAILS {
            let message = format_args!(
                "of {} failures, skips and reruns {MAX_DETAILS} are kept",
                open.details
            );
            self.findings.add(JunitRule::ManyDetails, open.line, message);
        }
        self.decide_result(&mut open, is_cut);
        let is_nameless = open.case.name.trim().is_empty();
        if open.case.result.is_failed() && is_of_suite(&open) {
            open.case.kind = TestRowKind::Suite;
        } else if is_nameless {
            self.findings.add(JunitRule::MissingName, open.line, "a test has no name");
        }
        let OpenCase { case, failure_details, inner, trx_id, .. } = open;
        if let Some(outer) = &mut self.case {
            *outer.inner.get_or_insert(false) |= case.result.is_failed();
        }
        if let Some(suite) = self.suites.last_mut() {
            suite.count_failure(case.result);
            suite.counted.details += failure_details;
            suite.counted.tests += 1;
        }
        // The sum of other tests, unless it failed for a reason of its own.
        if inner.is_some_and(|has_failed| has_failed || !case.result.is_failed()) {
            return Ok(());
        }
        if self.dialect == Some(Dialect::Trx) {
            self.trx.hold(trx_id, case);
            return Ok(());
        }
        self.pass_on(case)
    }

    fn decide_result(&mut self, open: &mut OpenCase, is_cut: bool) {
        let case = &mut open.case;
        if self.dialect != Some(Dialect::Junit) {
            case.result = open.status.unwrap_or(TestResult::Unfinished);
            return;
        }
        // Node.js: a test to do may fail.
        let is_todo = |detail: &TestDetail| {
            detail.kind == TestDetailKind::Skipped && detail.type_name.as_deref() == Some("todo")
        };
        if case.details.iter().any(is_todo) {
            case.result = TestResult::Skipped;
            open.failure_details = 0;
        }
        let has_failed = case.result.is_failed();
        match open.status {
            Some(status) if status.is_failed() && !has_failed => {
                case.result = status;
                let message = format_args!(
                    "the status of `{}` says that it failed, but there is no `<failure>`",
                    shorten(&case.name)
                );
                self.findings.add(JunitRule::StatusOnly, open.line, message);
            }
            _ if is_cut && !has_failed => case.result = TestResult::Unfinished,
            Some(TestResult::Skipped) if !has_failed => case.result = TestResult::Skipped,
            _ => {}
        }
        case.flaky = case.result == TestResult::Success && case.attempts > 1;
    }

    /// Passes on a test of the innermost suite.
    fn pass_on(&mut self, case: TestCase) -> Result<(), JunitError> {
        self.cases += 1;
        if self.cases > MAX_CASES {
            return Err(JunitError::TooManyCases);
        }
        if let Some(suite) = self.suites.last() {
            (self.on_case)(case, &suite.element);
        }
        Ok(())
    }

    pub(super) fn open_detail(
        &mut self,
        kind: TestDetailKind,
        tag: &BytesStart<'_>,
        line: u64,
    ) -> Element {
        let mut detail = OpenDetail {
            kind,
            type_name: None,
            message: None,
            message_text: LimitedText::default(),
            text: LimitedText::default(),
        };
        self.each_attribute(tag, line, ["message", "type", "exception-type"], |this, key, raw| {
            let value = LimitedText::of_attribute(raw, &mut this.flaws);
            let value = Some(value).filter(|value| !value.trim().is_empty());
            if key == "message" {
                detail.message = value;
            } else {
                detail.type_name = value;
            }
        });
        self.detail = Some(detail);
        self.count_detail(kind);
        Element::Detail
    }

    /// Of several results the worst counts, and so does one whose element has no end.
    fn count_detail(&mut self, kind: TestDetailKind) {
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

    fn close_detail(&mut self) -> Result<(), JunitError> {
        let Some(detail) = self.detail.take() else { return Ok(()) };
        let OpenDetail { kind, type_name, message, message_text, text } = detail;
        let message = message.or(message_text.trimmed());
        let mut detail = TestDetail { kind, type_name, message, text: text.trimmed() };
        match &mut self.case {
            Some(open) if open.case.details.len() < MAX_DETAILS => open.case.details.push(detail),
            Some(_) => {}
            None => match self.suites.last_mut().filter(|suite| suite.may_sum_up) {
                Some(suite) => suite.failure = Some(detail),
                None => {
                    detail.message = detail.message.or(detail.text.take());
                    self.fail_suite(detail)?;
                }
            },
        }
        Ok(())
    }

    /// Calls `each` with the raw value of every attribute in `wanted`; of a repeated one, the first.
    pub(super) fn each_attribute<const N: usize>(
        &mut self,
        tag: &BytesStart<'_>,
        line: u64,
        wanted: [&'static str; N],
        mut each: impl FnMut(&mut Self, &'static str, &str),
    ) {
        let mut seen = [false; N];
        let mut attributes = tag.attributes();
        for attribute in attributes.with_checks(false) {
            let Attribute { key, value } = match attribute {
                Ok(attribute) => attribute,
                Err(error) => {
                    self.note_attribute(&error, line);
                    continue;
                }
            };
            let Some(at) = wanted.iter().position(|wanted| *wanted == key.0) else { continue };
            if std::mem::replace(&mut seen[at], true) {
                let message =
                    format_args!("the attribute `{}` is there twice; the first counts", wanted[at]);
                self.findings.add(JunitRule::DuplicateAttribute, line, message);
                continue;
            }
            each(self, wanted[at], &value);
        }
        let flaws = std::mem::take(&mut self.flaws);
        self.note_flaws(flaws, line);
    }

    fn note_attribute(&mut self, error: &AttrError, line: u64) {
        self.findings.add(
            JunitRule::BadAttribute,
            line,
            format_args!("an attribute can't be read: {error}"),
        );
    }

    fn note_flaws(&mut self, flaws: TextFlaws, line: u64) {
        if flaws.control_character {
            let message = "characters that XML doesn't allow are replaced";
            self.findings.add(JunitRule::ControlCharacter, line, message);
        }
        if flaws.unknown_entity {
            let message = "an entity that XML doesn't define stays as it is";
            self.findings.add(JunitRule::UnknownEntity, line, message);
        }
    }

    /// `tag` is what there is of a tag that was cut, at `line`.
    pub(super) fn finish(
        mut self,
        ending: ReportEnd,
        tag: &[u8],
        line: u64,
    ) -> Result<JunitSummary, JunitError> {
        if self.dialect.is_none() {
            return Err(match ending {
                ReportEnd::Malformed(..) => JunitError::NotXml,
                _ => JunitError::NoElement,
            });
        }
        match ending {
            ReportEnd::End if self.open.is_empty() => {}
            ReportEnd::End | ReportEnd::Cut => {
                self.summary.is_truncated = true;
                let message = "the report ends early; the tests up to here count";
                self.findings.add(JunitRule::Truncated, line, message);
            }
            ReportEnd::Malformed(line, error) => {
                self.summary.is_truncated = true;
                let message = format_args!(
                    "the report isn't XML from here on; the tests before count: {error}"
                );
                self.findings.add(JunitRule::Malformed, line, message);
            }
        }
        self.close_cut_case(tag)?;
        let open = self.suites.iter().filter(|suite| !suite.is_root);
        self.summary.open_suites = open.map(|suite| Arc::clone(&suite.name)).collect();
        // What they declare counts, even if the report ends before it says which tests those are.
        while self.suites.len() > 1 {
            self.close_suite()?;
        }
        self.close_root()?;
        if self.cases == 0 {
            self.findings.add(JunitRule::NoTests, 1, "the report has no tests");
        }
        self.summary.findings = self.findings.finish();
        Ok(self.summary)
    }

    fn close_cut_case(&mut self, tag: &[u8]) -> Result<(), JunitError> {
        if self.detail.is_none() && self.open.last() == Some(&Element::Case) {
            // `<failure message="…` without its end.
            let name = tag.split(|byte| byte.is_ascii_whitespace()).next();
            match name {
                Some(b"<failure") => self.count_detail(TestDetailKind::Failure),
                Some(b"<error") => self.count_detail(TestDetailKind::Error),
                _ => {}
            }
        } else if self.detail.is_some() {
            self.close_detail()?;
        }
        while let Some(case) = self.case.take() {
            self.case = self.outer_cases.pop();
            self.close_case(case, true)?;
        }
        Ok(())
    }
}

pub(super) fn failure_detail(kind: TestDetailKind, message: String) -> TestDetail {
    TestDetail { kind, type_name: None, message: Some(message), text: None }
}

fn new_case(suite: &OpenSuite, empty: &Arc<str>) -> TestCase {
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
        // jest-junit and Vitest, for a file that can't be loaded.
        || &*case.classname == "Test suite failed to run"
        || (case.name == *case.classname && case.name == *case.suite)
        // pytest, Go, and Python's unittest. Bun and Mocha write tests without a class, too.
        || (open.is_classname_blank
            && (case.details.iter().any(is_collection) || name == "TestMain" || is_setup_of_class()))
}
