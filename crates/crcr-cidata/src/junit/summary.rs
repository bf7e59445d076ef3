//! What reading a report gives apart from its tests, and what a test's `<testsuite>` says.

use std::io::Read;
use std::sync::Arc;

use jiff::Timestamp;

use super::findings::JunitFinding;
use super::input::{ExceededLimit, ReportText};
use super::other_files::OtherFile;

/// Maximum nesting of elements.
pub(crate) const MAX_DEPTH: usize = 128;
pub(crate) const MAX_ELEMENT_NAME_BYTES: usize = 1000;
/// Elements: a test can have several.
pub(crate) const MAX_CASES: u64 = 10_000_000;

/// Why a report is quarantined: nothing in it counts.
#[derive(Debug, thiserror::Error)]
pub enum JunitError {
    #[error("it isn't XML")]
    NotXml,
    #[error("{0}")]
    OtherFile(OtherFile),
    #[error("it has no XML element: it is empty, ends early, or isn't XML")]
    NoElement,
    #[error("cap `depth`: its elements are nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
    #[error(
        "cap `tag-size`: it has a tag or a line larger than 16 MiB, or a tag name longer than {MAX_ELEMENT_NAME_BYTES} bytes"
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
    /// Failures and errors that suites declare beyond those of their tests and of their own rows.
    pub hidden_failures: HiddenFailures,
    /// Whether several suites have one name.
    pub(crate) has_namesakes: bool,
    pub(crate) is_trx: bool,
    /// Whether Surefire put tests into the report of another class, see [`super::join_spread_attempts`].
    pub(crate) has_moved_tests: bool,
    pub findings: Vec<JunitFinding>,
}

/// Failures without a test, each of which has no row of its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HiddenFailures {
    pub failures: u64,
    pub errors: u64,
}

/// The `<testsuite>` that a test is in.
#[derive(Debug, Clone)]
pub struct SuiteElement {
    /// Which one of the report, from 1. 0 stands for the report itself.
    pub number: u32,
    /// Which run of a Go package in one report, or of a test, from 1. 0 if the report doesn't tell runs apart.
    pub run: u32,
    pub repeats: RepeatedTest,
    pub labels: Arc<SuiteLabels>,
}

/// What can tell two suites of one name apart.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SuiteLabels {
    pub package: Option<Arc<str>>,
    pub file: Option<Arc<str>>,
}

/// What it means that a test is in one `<testsuite>` twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RepeatedTest {
    /// They are different tests, such as one for each browser or parameter.
    OtherTests,
    /// pytest names no two tests alike, and its plugins pytest-rerunfailures and flaky write an element
    /// without a failure for each attempt but the last. A failed test whose teardown fails, too, has two
    /// elements.
    Pytest,
    /// pytest-repeat ran all tests several times, and their names are without the counters by now.
    PytestRepeat,
    /// `gotestsum --rerun-fails` adds the later attempts of tests that failed. `go test -count` repeats
    /// tests within one run of their package, those that passed as well, and then each one counts.
    Go,
    /// xcbeautify and xcpretty write an element for each assertion of XCTest that failed, and one for each time that a
    /// test passed: in a run with `-retry-tests-on-failure`, on each device, and with `-test-iterations`.
    Xctest,
    /// unittest-xml-reporting writes an element for each part of a test that failed, such as the test and its `tearDown`.
    Unittest,
    /// TestNG skips a failed test that its `IRetryAnalyzer` runs again, and Surefire writes what it failed with as the
    /// skip's message. A skip of JUnit has a type as well.
    Surefire,
    /// fastlane's `scan` and `trainer` write an element for each run of a test that `-retry-tests-on-failure` ran again,
    /// with a property that tells which one it is.
    Numbered,
}

pub(crate) fn read_error<R: Read>(text: &ReportText<R>, error: std::io::Error) -> JunitError {
    match text.exceeded() {
        Some(ExceededLimit::FileSize) => JunitError::TooLarge,
        Some(ExceededLimit::TagSize) => JunitError::TagTooLarge,
        None => JunitError::Read(error),
    }
}

pub(crate) enum ReportEnd {
    End,
    /// Within a tag, comment or section.
    Cut,
    Malformed(u64, quick_xml::Error),
}
