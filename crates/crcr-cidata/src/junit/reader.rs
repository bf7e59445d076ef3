//! Elements of a report → tests.

use std::io::Read;
use std::sync::Arc;

use crcr_domain::ci_data::test_run::{
    TestCase, TestDetail, TestDetailKind, TestResult, TestRowKind,
};
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::fmt::rfc2822;
use jiff::tz::TimeZone;
use quick_xml::Reader;
use quick_xml::events::attributes::{AttrError, Attribute};
use quick_xml::events::{BytesStart, Event};

use super::findings::{FindingList, JunitFinding, JunitRule};
use super::input::{AfterText, ExceededLimit, ReportText};
use super::text::{GoCrashSearch, LimitedText, TextFlaws};

/// Maximum nesting of elements.
const MAX_DEPTH: usize = 128;
/// In bytes.
const MAX_ELEMENT_NAME: usize = 1000;
/// Elements, not tests.
const MAX_CASES: u64 = 10_000_000;
/// More failures, skips and reruns of one element are counted only.
const MAX_DETAILS: usize = 100;
/// In characters.
const MAX_NAME: usize = 1000;
/// In seconds.
const YEAR: f64 = 366.0 * 86_400.0;
/// In seconds since 1970.
const YEAR_2000: i64 = 946_684_800;
/// More names of suites are dropped.
const MAX_SUITES: usize = 10_000;

/// Why a report is quarantined: nothing in it counts.
#[derive(Debug, thiserror::Error)]
pub enum JunitError {
    #[error("it isn't XML")]
    NotXml,
    #[error("it isn't a JUnit report: it starts with `<{0}>` instead of `<testsuites>`")]
    OtherRoot(String),
    #[error("it has no XML element: it is empty, ends early, or isn't XML")]
    NoElement,
    #[error("cap `depth`: its elements are nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
    #[error(
        "cap `tag-size`: it has a tag larger than 16 MiB, or a tag name longer than {MAX_ELEMENT_NAME} bytes"
    )]
    TagTooLarge,
    #[error("cap `file-size`: it is larger than 1 GiB")]
    TooLarge,
    #[error("cap `cases`: it has more than {MAX_CASES} tests")]
    TooManyCases,
    #[error("it can't be read: {0}")]
    Read(#[source] std::io::Error),
}

/// What a report says apart from its tests.
#[derive(Debug, Default)]
pub struct JunitSummary {
    /// Whether the report ends, or stops being XML, within an element.
    pub is_truncated: bool,
    /// Names of the suites in the order in which they begin; at most 10,000.
    pub suites: Vec<Arc<str>>,
    /// Those that have no end because the report is truncated, outermost first.
    pub open_suites: Vec<Arc<str>>,
    /// The earliest `timestamp` of a suite and its line. UTC, unless it names a zone.
    pub earliest: Option<(Timestamp, u64)>,
    /// By line.
    pub findings: Vec<JunitFinding>,
}

/// Reads a report and passes each `<testcase>` to `on_case` as soon as it ends, and each suite that
/// failed outside its tests.
///
/// An element that repeats a test isn't merged with the earlier ones; [`TestReport`](super::TestReport)
/// does that. The memory that is needed doesn't depend on the size of the report.
pub fn read_cases(
    input: impl Read,
    on_case: impl FnMut(TestCase),
) -> Result<JunitSummary, JunitError> {
    let mut xml = Reader::from_reader(ReportText::new(input));
    let mut elements = Elements::new(on_case);
    let mut tag = Vec::new();
    let ending = loop {
        let text = xml.get_mut();
        // quick-xml would hold the whole text in memory.
        match elements.read_text(text) {
            Ok(AfterText::Markup) => {}
            Ok(AfterText::End) => break ReportEnd::End,
            Ok(AfterText::CutSection) => break ReportEnd::Cut,
            Err(error) => return Err(read_error(text, error)),
        }
        let line = text.line();
        tag.clear();
        match xml.read_event_into(&mut tag) {
            Ok(Event::Start(tag)) => elements.open(&tag, line)?,
            Ok(Event::Empty(tag)) => {
                elements.open(&tag, line)?;
                elements.close()?;
            }
            Ok(Event::End(_)) => elements.close()?,
            Ok(_) => {}
            Err(quick_xml::Error::Io(error)) => {
                let kind = error.kind();
                let error = Arc::into_inner(error).unwrap_or_else(|| kind.into());
                return Err(read_error(xml.get_ref(), error));
            }
            Err(quick_xml::Error::Syntax(_)) if xml.get_ref().is_at_end() => break ReportEnd::Cut,
            Err(error) => break ReportEnd::Malformed(line, error),
        }
    };
    let text = xml.get_ref();
    if let Some(line) = text.invalid_line() {
        let message = "bytes that aren't text in the report's encoding are replaced";
        elements.findings.add(JunitRule::Encoding, line, message);
    }
    if let Some(encoding) = text.unknown_encoding() {
        let message =
            format_args!("the encoding `{encoding}` isn't known; the report is read as UTF-8");
        elements.findings.add(JunitRule::Encoding, 1, message);
    }
    elements.finish(ending, &tag, text)
}

fn read_error<R: Read>(text: &ReportText<R>, error: std::io::Error) -> JunitError {
    match text.exceeded() {
        Some(ExceededLimit::FileSize) => JunitError::TooLarge,
        Some(ExceededLimit::TagSize) => JunitError::TagTooLarge,
        None => JunitError::Read(error),
    }
}

enum ReportEnd {
    End,
    /// Within a tag, comment or section.
    Cut,
    /// At a line.
    Malformed(u64, quick_xml::Error),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Element {
    Suites,
    Suite,
    Case,
    /// A child of a test or a suite that tells of a failure, a skip or a rerun.
    Detail,
    /// Output of a suite.
    SuiteOutput,
    /// Output of a test, wherever in it.
    Output,
    Other,
}

struct OpenSuite {
    /// Of the innermost suite that has one.
    name: Arc<str>,
    file: Option<Arc<str>>,
    line: u64,
    declared_failures: u64,
    declared_tests: u64,
    tests: u64,
    /// Whether a test in it failed, also if a later attempt succeeded.
    has_failure: bool,
}

struct OpenCase {
    case: TestCase,
    line: u64,
    status: Option<TestResult>,
    is_classname_blank: bool,
    /// Also those beyond [`MAX_DETAILS`].
    details: usize,
}

struct OpenDetail {
    kind: TestDetailKind,
    type_name: Option<String>,
    message: Option<String>,
    text: LimitedText,
}

struct Elements<F> {
    on_case: F,
    open: Vec<Element>,
    suites: Vec<OpenSuite>,
    case: Option<OpenCase>,
    detail: Option<OpenDetail>,
    crash: GoCrashSearch,
    has_root: bool,
    cases: u64,
    flaws: TextFlaws,
    last_classname: Arc<str>,
    last_file: Arc<str>,
    empty: Arc<str>,
    summary: JunitSummary,
    findings: FindingList,
}

impl<F: FnMut(TestCase)> Elements<F> {
    fn new(on_case: F) -> Self {
        let empty: Arc<str> = Arc::from("");
        Self {
            on_case,
            open: Vec::new(),
            suites: Vec::new(),
            case: None,
            detail: None,
            crash: GoCrashSearch::default(),
            has_root: false,
            cases: 0,
            flaws: TextFlaws::default(),
            last_classname: Arc::clone(&empty),
            last_file: Arc::clone(&empty),
            empty,
            summary: JunitSummary::default(),
            findings: FindingList::default(),
        }
    }

    fn read_text<R: Read>(&mut self, text: &mut ReportText<R>) -> std::io::Result<AfterText> {
        match (self.open.last(), &mut self.detail) {
            (Some(Element::SuiteOutput), _) => text.read_text(&mut self.crash),
            (Some(Element::Detail | Element::Other), Some(detail)) => {
                let line = text.line();
                let after = text.read_text(&mut detail.text);
                let flaws = std::mem::take(&mut detail.text.flaws);
                self.note_flaws(flaws, line);
                after
            }
            _ => text.read_text(&mut ()),
        }
    }

    fn open(&mut self, tag: &BytesStart<'_>, line: u64) -> Result<(), JunitError> {
        let name = tag.local_name();
        let name: &str = name.as_ref();
        if !self.has_root && !matches!(name, "testsuites" | "testsuite" | "testcase") {
            return Err(JunitError::OtherRoot(name.chars().take(40).collect()));
        }
        self.has_root = true;
        if name.len() > MAX_ELEMENT_NAME {
            return Err(JunitError::TagTooLarge);
        }
        if self.open.len() == MAX_DEPTH {
            return Err(JunitError::TooDeep);
        }
        let element = match self.open.last() {
            None | Some(Element::Suites | Element::Suite) => match name {
                "testsuites" => Element::Suites,
                "testsuite" => {
                    self.open_suite(tag, line);
                    Element::Suite
                }
                "testcase" => {
                    self.open_case(tag, line);
                    Element::Case
                }
                "failure" | "error" if !self.suites.is_empty() => {
                    let kind = if name == "error" {
                        TestDetailKind::Error
                    } else {
                        TestDetailKind::Failure
                    };
                    self.open_detail(kind, tag, line);
                    Element::Detail
                }
                "system-out" | "system-err" if !self.suites.is_empty() => Element::SuiteOutput,
                _ => Element::Other,
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
                _ => Element::Other,
            },
            Some(Element::Detail | Element::Other) => match name {
                "system-out" | "system-err" => Element::Output,
                _ => Element::Other,
            },
            Some(Element::Output | Element::SuiteOutput) => Element::Output,
        };
        self.open.push(element);
        Ok(())
    }

    fn close(&mut self) -> Result<(), JunitError> {
        match self.open.pop() {
            Some(Element::Suite) => self.close_suite(),
            Some(Element::Case) => match self.case.take() {
                Some(case) => self.close_case(case, false),
                None => Ok(()),
            },
            Some(Element::Detail) => self.close_detail(),
            Some(Element::SuiteOutput) => match std::mem::take(&mut self.crash).message() {
                Some(message) => self.fail_suite(TestDetailKind::Error, Some(message)),
                None => Ok(()),
            },
            Some(Element::Suites | Element::Output | Element::Other) | None => Ok(()),
        }
    }

    fn open_suite(&mut self, tag: &BytesStart<'_>, line: u64) {
        let parent = self.suites.last();
        let mut suite = OpenSuite {
            name: Arc::clone(parent.map_or(&self.empty, |parent| &parent.name)),
            file: parent.and_then(|parent| parent.file.clone()),
            line,
            declared_failures: 0,
            declared_tests: 0,
            tests: 0,
            has_failure: false,
        };
        let mut timestamp = None;
        self.each_attribute(
            tag,
            line,
            ["name", "file", "filepath", "failures", "errors", "tests", "timestamp"],
            |this, key, raw| {
                let number = || raw.trim().parse::<u64>().unwrap_or_default();
                match key {
                    "name" if !raw.is_empty() => {
                        let name = LimitedText::of_attribute(raw, &mut this.flaws);
                        suite.name = without_time(&name).into();
                    }
                    "file" | "filepath" if !raw.is_empty() => {
                        suite.file = Some(LimitedText::of_attribute(raw, &mut this.flaws).into());
                    }
                    "failures" | "errors" => {
                        suite.declared_failures = suite.declared_failures.saturating_add(number());
                    }
                    "tests" => suite.declared_tests = number(),
                    "timestamp" => timestamp = parse_timestamp(raw),
                    _ => {}
                }
            },
        );
        if let Some(time) = timestamp
            && self.summary.earliest.is_none_or(|(earliest, _)| time < earliest)
        {
            self.summary.earliest = Some((time, line));
        }
        if self.summary.suites.len() < MAX_SUITES {
            self.summary.suites.push(Arc::clone(&suite.name));
        }
        self.suites.push(suite);
    }

    fn close_suite(&mut self) -> Result<(), JunitError> {
        if let Some(suite) = self.suites.last() {
            if suite.declared_tests > suite.tests {
                let message = format!(
                    "the suite `{}` declares {} tests and has {}",
                    shorten(&suite.name),
                    suite.declared_tests,
                    suite.tests
                );
                self.findings.add(JunitRule::TestCount, suite.line, message);
            }
            if suite.declared_failures > 0 && !suite.has_failure {
                let message = format!(
                    "the suite declares {} failures or errors, and no test in it failed",
                    suite.declared_failures
                );
                self.fail_suite(TestDetailKind::Error, Some(message))?;
            }
        }
        if let Some(suite) = self.suites.pop()
            && let Some(parent) = self.suites.last_mut()
        {
            parent.has_failure |= suite.has_failure;
            parent.tests += suite.tests;
        }
        Ok(())
    }

    /// Adds a row for the innermost suite, unless a test in it has failed already.
    fn fail_suite(
        &mut self,
        kind: TestDetailKind,
        message: Option<String>,
    ) -> Result<(), JunitError> {
        let Some(suite) = self.suites.last_mut().filter(|suite| !suite.has_failure) else {
            return Ok(());
        };
        suite.has_failure = true;
        let text = format_args!("the suite `{}` failed outside its tests", shorten(&suite.name));
        self.findings.add(JunitRule::SuiteFailure, suite.line, text);
        let case = TestCase {
            kind: TestRowKind::Suite,
            suite: Arc::clone(&suite.name),
            classname: Arc::clone(&self.empty),
            name: String::new(),
            file: suite.file.clone(),
            result: if kind == TestDetailKind::Failure {
                TestResult::Failure
            } else {
                TestResult::Error
            },
            time: None,
            attempts: 1,
            flaky: false,
            details: vec![TestDetail { kind, type_name: None, message, text: None }],
        };
        self.pass_on(case)
    }

    fn open_case(&mut self, tag: &BytesStart<'_>, line: u64) {
        let suite = self.suites.last();
        let mut case = TestCase {
            kind: TestRowKind::Test,
            suite: Arc::clone(suite.map_or(&self.empty, |suite| &suite.name)),
            classname: Arc::clone(&self.empty),
            name: String::new(),
            file: suite.and_then(|suite| suite.file.clone()),
            result: TestResult::Success,
            time: None,
            attempts: 1,
            flaky: false,
            details: Vec::new(),
        };
        let mut status = None;
        let mut is_classname_blank = false;
        let mut has_time = false;
        self.each_attribute(
            tag,
            line,
            ["name", "classname", "file", "time", "status", "result"],
            |this, key, raw| match key {
                "name" => case.name = LimitedText::of_attribute(raw, &mut this.flaws),
                "classname" => {
                    is_classname_blank = raw.trim().is_empty();
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
                "status" | "result" => status = status.or(status_result(raw)),
                _ => {}
            },
        );
        if !has_time {
            let message = format_args!("`{}` has no duration", shorten(&case.name));
            self.findings.add(JunitRule::NoDuration, line, message);
        }
        if case.name.len() > MAX_NAME && case.name.chars().count() > MAX_NAME {
            let message = format_args!(
                "the name `{}` is longer than {MAX_NAME} characters",
                shorten(&case.name)
            );
            self.findings.add(JunitRule::LongName, line, message);
        }
        self.case = Some(OpenCase { case, line, status, is_classname_blank, details: 0 });
    }

    /// Determines the result. `is_cut` tells that the report ends within the test.
    fn close_case(&mut self, open: OpenCase, is_cut: bool) -> Result<(), JunitError> {
        let OpenCase { mut case, line, status, is_classname_blank, details } = open;
        if details > MAX_DETAILS {
            let message =
                format_args!("of {details} failures, skips and reruns {MAX_DETAILS} are kept");
            self.findings.add(JunitRule::ManyDetails, line, message);
        }
        let has_failed = case.result.is_failed();
        match status {
            Some(status) if status.is_failed() && !has_failed => {
                case.result = status;
                let message = format_args!(
                    "the status of `{}` says that it failed, but there is no `<failure>`",
                    shorten(&case.name)
                );
                self.findings.add(JunitRule::StatusOnly, line, message);
            }
            _ if is_cut && !has_failed => case.result = TestResult::Unfinished,
            Some(TestResult::Skipped) if !has_failed => case.result = TestResult::Skipped,
            _ => {}
        }
        case.flaky = case.result == TestResult::Success && case.attempts > 1;
        let is_nameless = case.name.trim().is_empty();
        let is_of_suite = is_nameless
            || is_classname_blank
            // jest-junit and Vitest, for a file that can't be loaded.
            || &*case.classname == "Test suite failed to run"
            || (case.name == *case.classname && case.name == *case.suite);
        if case.result.is_failed() && is_of_suite {
            case.kind = TestRowKind::Suite;
        } else if is_nameless {
            self.findings.add(JunitRule::MissingName, line, "a test has no name");
        }
        if let Some(suite) = self.suites.last_mut() {
            suite.tests += 1;
            suite.has_failure |= case.result.is_failed() || case.attempts > 1;
        }
        self.pass_on(case)
    }

    fn pass_on(&mut self, case: TestCase) -> Result<(), JunitError> {
        self.cases += 1;
        if self.cases > MAX_CASES {
            return Err(JunitError::TooManyCases);
        }
        (self.on_case)(case);
        Ok(())
    }

    fn open_detail(&mut self, kind: TestDetailKind, tag: &BytesStart<'_>, line: u64) -> Element {
        let mut detail =
            OpenDetail { kind, type_name: None, message: None, text: LimitedText::default() };
        self.each_attribute(tag, line, ["message", "type"], |this, key, raw| {
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
    }

    fn close_detail(&mut self) -> Result<(), JunitError> {
        let Some(OpenDetail { kind, type_name, message, text }) = self.detail.take() else {
            return Ok(());
        };
        let detail = TestDetail { kind, type_name, message, text: text.trimmed() };
        match &mut self.case {
            Some(open) if open.case.details.len() < MAX_DETAILS => open.case.details.push(detail),
            Some(_) => {}
            None => return self.fail_suite(kind, detail.message.or(detail.text)),
        }
        Ok(())
    }

    /// Calls `each` with the raw value of every attribute in `wanted`; of a repeated one, the first.
    fn each_attribute<const N: usize>(
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

    /// `tag` is what there is of a tag that was cut.
    fn finish<R: Read>(
        mut self,
        ending: ReportEnd,
        tag: &[u8],
        text: &ReportText<R>,
    ) -> Result<JunitSummary, JunitError> {
        if !self.has_root {
            return Err(match ending {
                ReportEnd::Malformed(..) => JunitError::NotXml,
                _ => JunitError::NoElement,
            });
        }
        let line = text.line();
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
        if let Some(case) = self.case.take() {
            self.close_case(case, true)?;
        }
        self.summary.open_suites =
            self.suites.iter().map(|suite| Arc::clone(&suite.name)).collect();
        if self.cases == 0 {
            self.findings.add(JunitRule::NoTests, 1, "the report has no tests");
        }
        self.summary.findings = self.findings.finish();
        Ok(self.summary)
    }
}

/// The value of an attribute, which is often that of the test before.
fn shared(raw: &str, last: &mut Arc<str>, flaws: &mut TextFlaws) -> Arc<str> {
    // With entities or other whitespace, equal values needn't look equal.
    let is_plain = raw.bytes().fold(true, |plain, byte| plain & (byte >= 0x20) & (byte != b'&'));
    if !is_plain || raw != &**last {
        *last = LimitedText::of_attribute(raw, flaws).into();
    }
    Arc::clone(last)
}

/// For a message.
fn shorten(text: &str) -> String {
    if text.chars().nth(80).is_none() {
        return text.to_owned();
    }
    text.chars().take(80).chain(['…']).collect()
}

/// The result that the attributes `status` and `result` state. Most tools write neither.
fn status_result(value: &str) -> Option<TestResult> {
    match value.to_ascii_lowercase().as_str() {
        "notrun" | "disabled" | "suppressed" | "skipped" | "ignored" => Some(TestResult::Skipped),
        "fail" | "failed" | "failure" => Some(TestResult::Failure),
        "error" => Some(TestResult::Error),
        _ => None,
    }
}

/// Not negative and at most a year. A comma may separate thousands.
fn parse_seconds(raw: &str) -> Option<f64> {
    let raw = raw.trim();
    let seconds = match raw.split_once(',') {
        None => raw.parse::<f64>().ok()?,
        Some((first, rest)) => {
            let whole = rest.split('.').next().unwrap_or_default();
            let is_grouped =
                matches!(first.as_bytes(), [b'1'..=b'9'] | [b'1'..=b'9', _] | [b'1'..=b'9', _, _])
                    && whole.split(',').all(|group| group.len() == 3);
            is_grouped.then(|| raw.replace(',', "").parse::<f64>().ok())??
        }
    };
    (0.0..=YEAR).contains(&seconds).then_some(seconds)
}

/// `None` also for what tools write where they have no time, such as the years 1 and 1970.
fn parse_timestamp(raw: &str) -> Option<Timestamp> {
    let raw = raw.trim();
    let local = || raw.parse::<DateTime>().ok()?.to_zoned(TimeZone::UTC).ok();
    let time = raw
        .parse()
        .ok()
        .or_else(|| local().map(|zoned| zoned.timestamp()))
        .or_else(|| rfc2822::parse(raw).ok().map(|zoned| zoned.timestamp()))?;
    (time > Timestamp::constant(YEAR_2000, 0)).then_some(time)
}

/// The name of a suite without the time of the run, which unittest-xml-reporting adds as
/// `-20261123061909`: it would be another suite in every run.
fn without_time(name: &str) -> &str {
    let is_time = |text: &str| text.len() == 14 && text.bytes().all(|byte| byte.is_ascii_digit());
    match name.rsplit_once('-') {
        Some((suite, time)) if is_time(time) => suite,
        _ => name,
    }
}
