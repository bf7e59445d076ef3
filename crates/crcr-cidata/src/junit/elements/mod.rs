//! Elements of a report → tests. Those of other formats than JUnit are in `dialects`.

mod case;
mod suite;

use std::collections::HashSet;
use std::io::Read;
use std::sync::Arc;

use crcr_domain::ci_data::test_run::{TestCase, TestDetail, TestDetailKind, TestResult};
use quick_xml::events::BytesStart;
use quick_xml::events::attributes::{AttrError, Attribute};

use super::dialect::{ReportDialect, TrxTests};
use super::findings::{FindingList, JunitRule};
use super::input::{AfterText, ReportText};
use super::other_files::OtherFile;
use super::suites::{CaseMarks, NodeSums, OpenSuite};
use super::summary::{
    JunitError, JunitSummary, MAX_DEPTH, MAX_ELEMENT_NAME_BYTES, ReportEnd, SuiteElement,
};
use super::text::{CrashSearch, EntitySearch, LimitedText, RetrySearch, TextFlaws};
use super::values::{parse_sum, shorten, status_result};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReportElement {
    Suites,
    Suite,
    /// Around suites and tests, without a meaning of its own.
    Wrapper,
    Case,
    /// A child of a test or a suite that tells of a failure, a skip or a rerun.
    Detail,
    /// The message in a detail, where it is an element.
    Message,
    /// The result of a test in words, where it is an element.
    Status,
    /// Output of a suite.
    SuiteOutput,
    /// Output of a test, wherever in it.
    Output,
    /// Output behind a failure that says nothing.
    FailureOutput,
    /// Output of a test that may tell of earlier attempts.
    AttemptOutput,
    Properties,
    Other,
}

pub(crate) struct OpenCase {
    pub case: TestCase,
    pub line: u64,
    /// What an attribute says. In formats other than JUnit it decides.
    pub status: Option<TestResult>,
    pub is_classname_blank: bool,
    /// Whether an attribute says `notrun`, as CTest and GoogleTest write.
    pub is_not_run: bool,
    /// Whether it has the time of a test that GoogleTest didn't begin.
    pub is_unbegun: bool,
    /// Whether it says that it failed at first and passed at last.
    pub is_marked_flaky: bool,
    /// Also those beyond [`MAX_DETAILS`].
    details: usize,
    /// How many of them are `<failure>` and `<error>`.
    failure_details: u64,
    /// The id by which TRX names the class at its end.
    pub trx_id: String,
    /// Which run of the test it is, from 1; 0 if it doesn't say.
    pub run: u32,
    /// Whether it is the sum of tests in it, and whether one of those failed.
    pub inner: Option<bool>,
    /// What an element says of its result.
    status_text: LimitedText,
    /// What it printed, if its failure says nothing.
    failure_output: LimitedText,
}

impl OpenCase {
    /// Notes what an attribute says, or an element. The first that denies a success counts.
    pub(crate) fn state(&mut self, result: Option<TestResult>) {
        if self.status.is_none_or(|known| known == TestResult::Success) {
            self.status = result.or(self.status);
        }
    }

    /// The failure that was read last, if it says nothing, as those of CTest, Meson and libtest, or only that it is one, as
    /// VUnit's.
    fn silent_failure(&mut self) -> Option<&mut TestDetail> {
        self.case.details.last_mut().filter(|detail| {
            let message = detail.message.as_deref();
            matches!(detail.kind, TestDetailKind::Failure | TestDetailKind::Error)
                && message.is_none_or(|message| message.eq_ignore_ascii_case("failed"))
                && detail.text.is_none()
        })
    }
}

struct OpenDetail {
    kind: TestDetailKind,
    type_name: Option<String>,
    message: Option<String>,
    message_text: LimitedText,
    text: LimitedText,
}

pub(crate) struct ElementReader<F> {
    on_case: F,
    pub dialect: Option<ReportDialect>,
    open: Vec<ReportElement>,
    pub suites: Vec<OpenSuite>,
    pub case: Option<OpenCase>,
    /// Tests around the innermost open test or suite, each with the number of elements around what
    /// interrupts it.
    outer_cases: Vec<(usize, OpenCase)>,
    pub trx: TrxTests,
    detail: Option<OpenDetail>,
    crash: CrashSearch,
    retries: RetrySearch,
    cases: u64,
    suite_elements: u32,
    names: HashSet<Arc<str>>,
    /// Whether the suites' `hostname` is the name of a project, as Playwright writes it.
    is_hostname_project: bool,
    /// Whether the root has an empty name and id, as Playwright writes it unless it is told another.
    is_root_playwright: bool,
    /// Whether the root has the name that Biome gives it.
    is_root_biome: bool,
    /// Whether the root is a `<testsuites>` without attributes, as Node.js writes it.
    is_root_plain: bool,
    node_sums: NodeSums,
    /// Whether the report has a document type, which may define entities. None is expanded.
    pub has_document_type: bool,
    pub flaws: TextFlaws,
    pub last_classname: Arc<str>,
    last_file: Arc<str>,
    pub empty: Arc<str>,
    summary: JunitSummary,
    pub findings: FindingList,
}

impl<F: FnMut(TestCase, &SuiteElement)> ElementReader<F> {
    pub(crate) fn new(on_case: F) -> Self {
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
            crash: CrashSearch::default(),
            retries: RetrySearch::default(),
            cases: 0,
            suite_elements: 0,
            names: HashSet::new(),
            is_hostname_project: false,
            is_root_playwright: false,
            is_root_biome: false,
            is_root_plain: false,
            node_sums: NodeSums::default(),
            has_document_type: false,
            flaws: TextFlaws::default(),
            last_classname: Arc::clone(&empty),
            last_file: Arc::clone(&empty),
            empty,
            summary: JunitSummary::default(),
            findings: FindingList::default(),
        }
    }

    pub(crate) fn read_text<R: Read>(
        &mut self,
        text: &mut ReportText<R>,
    ) -> std::io::Result<AfterText> {
        let line = text.line();
        if self.dialect.is_some() && self.open.is_empty() {
            let mut behind = LimitedText::default();
            let after = text.read_text(&mut behind)?;
            if let Some(behind) = behind.trimmed().filter(|text| !is_harmless_end(text)) {
                let first = behind.lines().next().unwrap_or_default();
                let message = format_args!("`{}` follows, and isn't a report", shorten(first));
                self.findings.add(JunitRule::Malformed, line, message);
            }
            return Ok(after);
        }
        if self.has_document_type && self.is_between_results() {
            let mut search = EntitySearch::default();
            let after = text.read_text(&mut search)?;
            if search.has_entity {
                self.fail_for_entity(line);
            }
            return Ok(after);
        }
        let (after, flaws) = match (self.open.last(), &mut self.detail) {
            (Some(ReportElement::Suites), _) if self.is_root_plain => {
                return text.read_text(&mut self.node_sums);
            }
            (Some(ReportElement::SuiteOutput), _) => return text.read_text(&mut self.crash),
            (Some(ReportElement::AttemptOutput), _) => return text.read_text(&mut self.retries),
            (Some(ReportElement::Status), _) => match &mut self.case {
                Some(open) => return text.read_text(&mut open.status_text),
                None => return text.read_text(&mut ()),
            },
            (Some(ReportElement::FailureOutput), _) => match &mut self.case {
                Some(open) => return text.read_text(&mut open.failure_output),
                None => return text.read_text(&mut ()),
            },
            (Some(ReportElement::Message), Some(detail)) => {
                let after = text.read_text(&mut detail.message_text);
                (after, std::mem::take(&mut detail.message_text.flaws))
            }
            (Some(ReportElement::Detail | ReportElement::Other), Some(detail)) => {
                let after = text.read_text(&mut detail.text);
                (after, std::mem::take(&mut detail.text.flaws))
            }
            _ => return text.read_text(&mut ()),
        };
        self.note_flaws(flaws, line);
        after
    }

    /// Whether elements of results may stand here, but no text.
    fn is_between_results(&self) -> bool {
        use ReportElement::{Case, Other, Suite, Suites, Wrapper};
        match self.open.last() {
            Some(Suites | Suite | Wrapper | Case) => true,
            Some(Other) => self.detail.is_none(),
            _ => false,
        }
    }

    /// An entity of the file's own may stand for a `<failure>`.
    fn fail_for_entity(&mut self, line: u64) {
        let message = "an entity isn't expanded; where it stands, something may have failed";
        self.findings.add(JunitRule::UnknownEntity, line, message);
        if self.case.is_some() {
            self.count_detail(TestDetailKind::Error);
            let detail = failure_detail(TestDetailKind::Error, message.to_owned());
            self.case.iter_mut().for_each(|open| open.case.details.push(detail.clone()));
        } else if let Some(suite) = self.suites.last_mut() {
            suite.has_failed = true;
        }
    }

    pub(crate) fn open(&mut self, tag: &BytesStart<'_>, line: u64) -> Result<(), JunitError> {
        let name = tag.local_name();
        let name: &str = name.as_ref();
        let dialect = match self.dialect {
            Some(dialect) if !self.open.is_empty() => dialect,
            Some(dialect) => self.dialect_of_next(dialect, name, tag, line),
            None => {
                // TestNG's `testng-failed.xml`. libcheck has such elements in a `<testsuites>`.
                let is_list = name == "suite" && self.has_document_type;
                let root = if is_list { "!DOCTYPE suite" } else { name };
                let dialect = ReportDialect::of_root(name, tag)
                    .ok_or_else(|| JunitError::OtherFile(OtherFile::of_root(root)))?;
                self.suites.push(OpenSuite::root(&self.empty, line));
                *self.dialect.insert(dialect)
            }
        };
        if name.len() > MAX_ELEMENT_NAME_BYTES {
            return Err(JunitError::TagTooLarge);
        }
        if self.open.len() == MAX_DEPTH {
            return Err(JunitError::TooDeep);
        }
        let parent = self.open.last().copied();
        let element = match dialect {
            ReportDialect::Junit => self.open_junit(parent, name, tag, line)?,
            ReportDialect::Nunit => self.open_nunit(parent, name, tag, line),
            ReportDialect::Xunit => self.open_xunit(parent, name, tag, line),
            ReportDialect::Trx => self.open_trx(parent, name, tag, line),
        };
        self.open.push(element);
        Ok(())
    }

    /// The format of another report in the same file.
    fn dialect_of_next(
        &mut self,
        last: ReportDialect,
        name: &str,
        tag: &BytesStart<'_>,
        line: u64,
    ) -> ReportDialect {
        let next = ReportDialect::of_root(name, tag).unwrap_or_else(|| {
            let message = format_args!("`<{}>` follows, and isn't a report", shorten(name));
            self.findings.add(JunitRule::Malformed, line, message);
            last
        });
        *self.dialect.insert(next)
    }

    fn open_junit(
        &mut self,
        parent: Option<ReportElement>,
        name: &str,
        tag: &BytesStart<'_>,
        line: u64,
    ) -> Result<ReportElement, JunitError> {
        Ok(match parent {
            None | Some(ReportElement::Suites | ReportElement::Suite | ReportElement::Wrapper) => {
                match name {
                    "testsuites" => self.open_root(tag, line),
                    "testsuite" => self.open_suite(tag, line),
                    "testcase" => self.open_case(tag, line),
                    // The formats of libcheck and DejaGnu have the same root.
                    "suite" => return Err(JunitError::OtherFile(OtherFile::of_root(name))),
                    "test" if self.open.len() == 1 && tag.attributes().next().is_none() => {
                        return Err(JunitError::OtherFile(OtherFile::of_root("testsuite")));
                    }
                    "failure" => self.open_detail(TestDetailKind::Failure, tag, line),
                    "error" => self.open_detail(TestDetailKind::Error, tag, line),
                    "system-out" | "system-err" => ReportElement::SuiteOutput,
                    "properties" => ReportElement::Properties,
                    _ => match known_name(name) {
                        Some(name) => return self.open_junit(parent, name, tag, line),
                        None => ReportElement::Wrapper,
                    },
                }
            }
            Some(ReportElement::Case) => match name {
                "failure" => self.open_detail(TestDetailKind::Failure, tag, line),
                "error" => self.open_detail(TestDetailKind::Error, tag, line),
                // TestNG writes `<ignored/>`.
                "skipped" | "ignored" => self.open_detail(TestDetailKind::Skipped, tag, line),
                "rerun" | "rerunFailure" | "rerunError" | "flakyFailure" | "flakyError" => {
                    self.open_detail(TestDetailKind::Rerun, tag, line)
                }
                "warning" => {
                    let message = "a `<warning>` doesn't count as a failure";
                    self.findings.add(JunitRule::Warning, line, message);
                    ReportElement::Other
                }
                "system-out" | "system-err" => {
                    let is_silent = |open: &mut OpenCase| open.silent_failure().is_some();
                    let suite = self.suites.last();
                    let is_ginkgo = suite.is_some_and(|suite| suite.marks == CaseMarks::Ginkgo);
                    match self.case.as_mut().is_some_and(is_silent) {
                        true => ReportElement::FailureOutput,
                        false if is_ginkgo && name == "system-err" => ReportElement::AttemptOutput,
                        false => ReportElement::Output,
                    }
                }
                "properties" => ReportElement::Properties,
                // Python's own tests write `<outcome>UNEXPECTED_SUCCESS</outcome>`.
                "outcome" | "result" | "status" => ReportElement::Status,
                "testcase" => self.open_case(tag, line),
                "testsuite" => self.open_suite(tag, line),
                _ => match known_name(name) {
                    Some(name) => return self.open_junit(parent, name, tag, line),
                    None => {
                        if looks_like_result(name) {
                            let message = format_args!("`<{}>` isn't known", shorten(name));
                            self.findings.add(JunitRule::UnknownResult, line, message);
                        }
                        ReportElement::Other
                    }
                },
            },
            Some(ReportElement::Properties) => {
                self.read_property(tag, line);
                ReportElement::Output
            }
            // Such as in the steps of a test.
            Some(ReportElement::Other) if self.detail.is_none() => match name {
                "testcase" => self.open_case(tag, line),
                "failure" => self.open_detail(TestDetailKind::Failure, tag, line),
                "error" => self.open_detail(TestDetailKind::Error, tag, line),
                _ => ReportElement::Other,
            },
            Some(ReportElement::Detail | ReportElement::Message | ReportElement::Other) => {
                match name {
                    "system-out" | "system-err" => ReportElement::Output,
                    _ => ReportElement::Other,
                }
            }
            Some(
                ReportElement::Output
                | ReportElement::FailureOutput
                | ReportElement::AttemptOutput
                | ReportElement::SuiteOutput
                | ReportElement::Status,
            ) => ReportElement::Output,
        })
    }

    pub(crate) fn close(&mut self) -> Result<(), JunitError> {
        match self.open.pop() {
            Some(ReportElement::Suite) => {
                self.close_suite()?;
                self.case = self.interrupted_case();
            }
            Some(ReportElement::Case) => {
                if let Some(case) = self.case.take() {
                    self.case = self.interrupted_case();
                    self.close_case(case, false)?;
                }
            }
            Some(ReportElement::Detail) => self.close_detail()?,
            Some(ReportElement::Status) => {
                if let Some(open) = &mut self.case {
                    let text = std::mem::take(&mut open.status_text).trimmed();
                    open.state(text.and_then(|text| status_result(&text)));
                }
            }
            Some(ReportElement::FailureOutput) => {
                if let Some(open) = &mut self.case {
                    let output = std::mem::take(&mut open.failure_output).trimmed();
                    if let Some(failure) = open.silent_failure() {
                        failure.text = output;
                    }
                }
            }
            Some(ReportElement::AttemptOutput) => {
                let retries = std::mem::take(&mut self.retries).retries();
                if let Some(open) = &mut self.case {
                    open.case.attempts = open.case.attempts.saturating_add(retries);
                }
            }
            Some(ReportElement::SuiteOutput) => {
                let crash = std::mem::take(&mut self.crash).crash();
                let has_failure = self.suites.last().is_some_and(OpenSuite::has_failure);
                if let Some(crash) = crash.filter(|crash| !(crash.fails_test && has_failure)) {
                    self.fail_suite(failure_detail(TestDetailKind::Error, crash.message))?;
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

    /// Calls `each` with the raw value of every attribute in `wanted`, whatever its capitals; of a repeated one, the first.
    pub(crate) fn each_attribute<const N: usize>(
        &mut self,
        tag: &BytesStart<'_>,
        line: u64,
        wanted: [&'static str; N],
        mut each: impl FnMut(&mut Self, &'static str, &str),
    ) {
        let (mut seen, mut is_broken) = ([false; N], false);
        let mut attributes = tag.attributes();
        for attribute in attributes.with_checks(false) {
            let Attribute { key, value } = match attribute {
                Ok(attribute) => attribute,
                Err(error) => {
                    self.note_attribute(&error, line);
                    is_broken = true;
                    continue;
                }
            };
            let exact = wanted.iter().position(|wanted| *wanted == key.0);
            let at = exact
                .or_else(|| wanted.iter().position(|wanted| wanted.eq_ignore_ascii_case(key.0)));
            let Some(at) = at else { continue };
            if std::mem::replace(&mut seen[at], true) {
                let message =
                    format_args!("the attribute `{}` is there twice; the first counts", wanted[at]);
                self.findings.add(JunitRule::DuplicateAttribute, line, message);
                continue;
            }
            each(self, wanted[at], &value);
        }
        if is_broken && holds_tags(tag.attributes_raw()) {
            let message = "a quote in an attribute isn't escaped, and hides the elements behind it";
            self.findings.add(JunitRule::Malformed, line, message);
        }
        let flaws = std::mem::take(&mut self.flaws);
        self.note_flaws(flaws, line);
    }

    /// A sum of failures. One that can't be read is a finding, and failures if it may be more than zero.
    pub(crate) fn failure_sum(&mut self, raw: &str, line: u64) -> u64 {
        let value = LimitedText::of_attribute(raw, &mut self.flaws);
        if let Some(sum) = parse_sum(&value).or(value.trim().is_empty().then_some(0)) {
            return sum;
        }
        let message = format_args!("`{}` isn't a number of failures", shorten(&value));
        self.findings.add(JunitRule::BadSum, line, message);
        let may_be_more =
            !value.trim().starts_with('-') && value.contains(|c| matches!(c, '1'..='9' | '&'));
        u64::from(may_be_more)
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
    pub(crate) fn finish(
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
        self.summary.is_trx = self.dialect == Some(ReportDialect::Trx);
        self.summary.findings = self.findings.finish();
        Ok(self.summary)
    }

    fn close_cut_case(&mut self, tag: &[u8]) -> Result<(), JunitError> {
        if self.detail.is_none() && self.open.last() == Some(&ReportElement::Case) {
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
        let mut outer =
            std::mem::take(&mut self.outer_cases).into_iter().rev().map(|(_, case)| case);
        while let Some(case) = self.case.take().or_else(|| outer.next()) {
            self.case = outer.next();
            self.close_case(case, true)?;
        }
        Ok(())
    }

    /// A test or a suite begins: the test that is open goes on behind it.
    fn interrupt_case(&mut self) {
        if let Some(outer) = self.case.take() {
            self.outer_cases.push((self.open.len(), outer));
        }
    }

    fn interrupted_case(&mut self) -> Option<OpenCase> {
        let depth = self.open.len();
        self.outer_cases.pop_if(|(outer_depth, _)| *outer_depth == depth).map(|(_, case)| case)
    }
}

/// Elements of JUnit that a tool may have written with other capitals.
fn known_name(name: &str) -> Option<&'static str> {
    const NAMES: [&str; 10] = [
        "testsuites",
        "testsuite",
        "testcase",
        "failure",
        "error",
        "skipped",
        "rerunFailure",
        "rerunError",
        "flakyFailure",
        "flakyError",
    ];
    NAMES.into_iter().find(|known| known.eq_ignore_ascii_case(name) && *known != name)
}

/// Whether the attributes of a tag have tags of results in them.
fn holds_tags(attributes: &str) -> bool {
    const NAMES: [&str; 6] =
        ["testcase", "testsuite", "failure", "error", "skipped", "UnitTestResult"];
    attributes.split('<').skip(1).any(|tag| {
        let tag = tag.strip_prefix('/').unwrap_or(tag);
        let mut after = NAMES.iter().filter_map(|name| tag.strip_prefix(name));
        after.any(|rest| rest.starts_with(['>', '/', ' ', '\t', '\r', '\n']))
    })
}

fn looks_like_result(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["fail", "error", "crash", "timeout", "abort"].iter().any(|part| name.contains(part))
}

pub(crate) fn failure_detail(kind: TestDetailKind, message: String) -> TestDetail {
    TestDetail { kind, type_name: None, message: Some(message), text: None }
}

/// A byte order mark, which begins the next one of several reports, or what Yarn 1 prints when a script has passed:
/// its output is often redirected into the report.
fn is_harmless_end(text: &str) -> bool {
    let text = text.trim_start_matches("✨").trim_start();
    text == "\u{feff}" || text.starts_with("Done in ") && text.lines().count() == 1
}
