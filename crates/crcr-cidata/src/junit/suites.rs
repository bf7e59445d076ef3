//! Suites that are open, and the sums that they declare.

use std::sync::Arc;

use crcr_domain::ci_data::test_run::{TestDetail, TestDetailKind, TestResult};

use super::summary::{RepeatedTest, SuiteElement, SuiteLabels};
use super::text::TextSink;

/// Longer comments aren't sums.
const MAX_SUM_BYTES: usize = 40;

pub(crate) struct OpenSuite {
    /// Whether it is the root `<testsuites>`.
    pub is_root: bool,
    /// The name of the innermost suite that has one.
    pub name: Arc<str>,
    pub file: Option<Arc<str>>,
    /// The browser, device or project that its tests run with.
    pub variant: Option<Arc<str>>,
    pub has_hostname: bool,
    /// What every class in it begins with and that isn't a part of its name.
    pub class_prefix: Option<String>,
    pub element: SuiteElement,
    pub line: u64,
    pub declared: DeclaredSums,
    pub counted: CountedResults,
    pub marks: CaseMarks,
    /// Whether it counts tests that failed at first, and marks them: Firebase Test Lab.
    pub has_flakes: bool,
    /// Whether the errors that it declares are counted among its failures, too.
    pub errors_are_failures: bool,
    /// Whether it counts itself among its tests, and among its failures if it failed: node-tap.
    pub counts_itself: bool,
    /// Whether it says that it failed.
    pub has_failed: bool,
    /// Why it failed apart from its tests.
    pub special_failure: Option<String>,
    /// Whether it says that it ended early, which no failed test explains, and nothing else has told so.
    pub is_aborted: bool,
    /// Whether what it says of a failure may only say that tests failed.
    pub may_sum_up: bool,
    /// That failure, until it is known whether a test failed.
    pub failure: Option<TestDetail>,
}

/// What some tools write into the attributes of a test and isn't part of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CaseMarks {
    None,
    /// That a test is unstable, and where its screenshots are.
    Testcafe,
    /// The browser, as the class.
    Testem,
    /// No result, for a test that is skipped: Qt Test before Qt 6. The errors of its suites are messages, also
    /// warnings.
    QtTest,
    /// In the output that a test was run again because it failed.
    Ginkgo,
    /// Errors and warnings of a linter, which fails for errors only.
    Linter(LinterReport),
}

/// How a linter's report tells a warning from an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinterReport {
    /// By its text. Warnings are counted among its suites' `errors`.
    Eslint,
    /// By the `type` of the failure, as stylelint's does.
    Tslint,
    /// By the first word of the failure.
    Swiftlint,
    /// An `<error>` is an error, a `<failure>` a warning.
    Oxlint,
    /// Not at all, but all are warnings if the report declares no errors.
    Biome,
}

impl LinterReport {
    pub(crate) fn is_warning(self, detail: &TestDetail) -> bool {
        let text = detail.text.as_deref().unwrap_or_default();
        match self {
            Self::Eslint => {
                // `line 1, col 1, Warning - …`
                let place = text.strip_prefix("line ").and_then(|text| text.split(" - ").next());
                place.is_some_and(|place| place.ends_with(", Warning"))
            }
            Self::Tslint => detail.type_name.as_deref() == Some("warning"),
            Self::Swiftlint => text.starts_with("Warning:") || text.starts_with("warning:"),
            Self::Oxlint => detail.kind == TestDetailKind::Failure,
            Self::Biome => true,
        }
    }
}

/// The sums in the attributes of a suite.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DeclaredSums {
    pub tests: u64,
    pub failures: u64,
    pub errors: u64,
    /// The sum that some tools call `failed`; the errors may be in it.
    failed: u64,
    /// Sums of what failed in one way, which may be among the others.
    of_kinds: u64,
}

impl DeclaredSums {
    pub(crate) fn read(&mut self, attribute: &str, sum: u64) {
        match attribute {
            "failures" => self.failures = sum,
            "errors" | "errored" => self.errors = self.errors.max(sum),
            "failed" | "failure" => self.failed = sum,
            _ => self.of_kinds = self.of_kinds.saturating_add(sum),
        }
    }

    /// Linters count their warnings, too.
    pub(crate) fn forget_warning(&mut self, linter: LinterReport) {
        let sum =
            if linter == LinterReport::Eslint { &mut self.errors } else { &mut self.failures };
        *sum = sum.saturating_sub(1);
    }

    /// Once all attributes are read: `failed` may have the errors in it.
    pub(crate) fn count_failed(&mut self) {
        self.failures = self.failures.max(self.failed.saturating_sub(self.errors));
        self.errors = self.errors.max(self.of_kinds.saturating_sub(self.failures));
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CountedResults {
    pub tests: u64,
    /// Elements, of which a test that is repeated has several, and rows of suites.
    pub failures: u64,
    pub errors: u64,
    /// `<failure>` and `<error>`, of which a test can have several.
    pub details: u64,
    /// Attempts that the tool marks as such, beside each test's last one.
    pub reruns: u64,
    /// Suites in it with a failure.
    pub failed_suites: u64,
}

/// What Node.js writes as comments at the end: how many tests failed or were cancelled, and tests around others are
/// among them. Those it writes as suites.
#[derive(Debug, Default)]
pub(crate) struct NodeSums {
    comment: String,
    pub failed: u64,
}

impl TextSink for NodeSums {
    fn is_wanted(&self) -> bool {
        false
    }

    fn push(&mut self, _: &str) {}

    fn push_comment(&mut self, text: &str) {
        let room = MAX_SUM_BYTES.saturating_sub(self.comment.len());
        self.comment.push_str(&text[..text.floor_char_boundary(room)]);
    }

    fn end_comment(&mut self) {
        let comment = std::mem::take(&mut self.comment);
        let comment = comment.trim();
        let sum = comment.strip_prefix("fail ").or_else(|| comment.strip_prefix("cancelled "));
        let sum = sum.and_then(|sum| sum.parse().ok()).unwrap_or_default();
        self.failed = self.failed.saturating_add(sum);
    }
}

/// Failures and errors that are declared and have no test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HiddenResults {
    /// The kind of the first failure.
    pub kind: TestDetailKind,
    pub count: u64,
}

impl OpenSuite {
    pub(crate) fn root(empty: &Arc<str>, line: u64) -> Self {
        let labels = Arc::new(SuiteLabels::default());
        Self {
            is_root: true,
            name: Arc::clone(empty),
            file: None,
            variant: None,
            has_hostname: false,
            class_prefix: None,
            marks: CaseMarks::None,
            has_flakes: false,
            errors_are_failures: false,
            element: SuiteElement { number: 0, run: 0, repeats: RepeatedTest::OtherTests, labels },
            line,
            declared: DeclaredSums::default(),
            counted: CountedResults::default(),
            counts_itself: false,
            has_failed: false,
            special_failure: None,
            is_aborted: false,
            may_sum_up: false,
            failure: None,
        }
    }

    /// A suite in `self`.
    pub(crate) fn child(&self, number: u32, line: u64) -> Self {
        Self {
            is_root: false,
            name: Arc::clone(&self.name),
            file: self.file.clone(),
            variant: self.variant.clone(),
            marks: match self.marks {
                CaseMarks::Linter(_) => self.marks,
                _ => CaseMarks::None,
            },
            errors_are_failures: self.errors_are_failures,
            counts_itself: self.counts_itself,
            element: SuiteElement { number, ..self.element.clone() },
            ..Self::root(&self.name, line)
        }
    }

    /// Whether the suite declares more tests only because it counts attempts: Gradle's `mergeReruns` writes all
    /// attempts into one test, but counts each attempt, and each failed one as a failure.
    pub(crate) fn declares_attempts(&self) -> bool {
        let Self { declared, counted, .. } = self;
        let attempts = declared.tests.saturating_sub(counted.tests);
        let said = declared.failures.saturating_add(declared.errors);
        let failures = said.saturating_sub(counted.failures + counted.errors);
        attempts > 0 && failures <= attempts && attempts <= counted.reruns
    }

    /// Compares the sums, and counts what is missing, so that suites around this one don't miss it again.
    pub(crate) fn hidden_failures(&mut self) -> Option<HiddenResults> {
        let declares_attempts = self.declares_attempts();
        let counts_itself = self.counts_itself && !self.is_root;
        let Self { declared, counted, .. } = self;
        let errors = if self.errors_are_failures { 0 } else { declared.errors };
        let said = declared.failures.saturating_add(errors);
        let seen = counted.failures + counted.errors;
        if said <= seen || declares_attempts {
            return None;
        }
        let count = said - seen;
        let kind = if declared.errors > counted.errors && declared.failures <= counted.failures {
            TestDetailKind::Error
        } else {
            TestDetailKind::Failure
        };
        match kind {
            TestDetailKind::Error => counted.errors += count,
            _ => counted.failures += count,
        }
        // Catch2, doctest and Boost.Test declare assertions, of which each failed one is an element.
        let are_assertions = said == counted.details && seen > 0;
        let is_itself = counts_itself && count == 1 && seen > 0;
        (!are_assertions && !is_itself).then_some(HiddenResults { kind, count })
    }

    /// Makes the name of a suite, which is that of a browser as Karma writes it, its variant without the versions: the
    /// tests are the same ones after an update of the browser.
    pub(crate) fn take_browser_of_name(&mut self) {
        self.class_prefix = Some(format!("{}.", self.name.replace([' ', '.'], "_")));
        self.variant = Some(without_versions(&self.name).into());
        self.name = "".into();
    }

    /// The same for WebdriverIO's `chrome.119_0_6045_105.linux`.
    pub(crate) fn take_browser_of_classes(&mut self, capabilities: &str) {
        if capabilities.contains('.') && !capabilities.contains(char::is_whitespace) {
            self.class_prefix = Some(format!("{capabilities}."));
            self.variant = Some(without_versions(&capabilities.replace('.', " ")).into());
        }
    }

    /// The same for TestCafe's `TestCafe Tests: Chrome 119.0.0.0 / Windows 10`. It declares each failure as
    /// an error as well.
    pub(crate) fn take_browsers_of_testcafe(&mut self, name: &str) {
        let Some(browsers) = name.strip_prefix("TestCafe Tests: ") else { return };
        let browsers: Vec<_> = browsers.split(", ").map(without_versions).collect();
        self.variant = Some(browsers.join(", ").into());
        self.name = "TestCafe Tests".into();
        (self.marks, self.errors_are_failures) = (CaseMarks::Testcafe, true);
    }

    /// Takes what Ginkgo says: whether the suite passed, or, behind that, a reason, as for `--fail-on-pending`. A suite that
    /// passed can have one, too.
    pub(crate) fn read_verdict_of_ginkgo(&mut self, is_reason: bool, value: String) {
        self.marks = CaseMarks::Ginkgo;
        if is_reason {
            self.special_failure = Some(value).filter(|_| self.has_failed);
        } else {
            self.has_failed = value == "false";
        }
    }

    pub(crate) fn count_failure(&mut self, result: TestResult) {
        match result {
            TestResult::Failure => self.counted.failures += 1,
            TestResult::Error => self.counted.errors += 1,
            _ => {}
        }
    }

    pub(crate) fn has_failure(&self) -> bool {
        self.counted.failures + self.counted.errors > 0
    }
}

impl CountedResults {
    pub(crate) fn add(&mut self, inner: &Self) {
        self.tests += inner.tests;
        self.failures += inner.failures;
        self.errors += inner.errors;
        self.details += inner.details;
        self.reruns += inner.reruns;
        self.failed_suites += inner.failed_suites + u64::from(inner.failures + inner.errors > 0);
    }
}

/// What an update leaves of a browser or a system that a property names. Versions of three numbers and more change with
/// every image of the runner; of two, they are often chosen. Pester's platform ends with the number of a partition:
/// `Microsoft Windows Server 2025|C:\Windows|\Device\Harddisk0\Partition4`.
pub(crate) fn without_builds(value: &str) -> String {
    let value = value.split('|').next().unwrap_or_default();
    let words = value.split_whitespace().map(|word| {
        let is_version = |&(at, first): &(usize, char)| {
            let is_start = !word[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '.');
            let digits = word[at..].split(|c: char| !c.is_ascii_digit() && c != '.').next();
            let numbers = digits.unwrap_or_default().split('.').filter(|part| !part.is_empty());
            first.is_ascii_digit() && is_start && numbers.count() > 2
        };
        let version = word.char_indices().find(is_version);
        version.map_or(word, |(at, _)| word[..at].trim_end_matches(['-', '_', '/', '(']))
    });
    words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

pub(crate) fn without_versions(browser: &str) -> String {
    let is_version = |word: &str| word.starts_with(|first: char| first.is_ascii_digit());
    let words = browser.split_whitespace().map(|word| word.trim_matches(['(', ')']));
    words.filter(|word| !is_version(word)).collect::<Vec<_>>().join(" ")
}

/// Kotlin/JS has the browser and the system behind the name of a test, each with its version:
/// `adds[js, browser, ChromeHeadless143.0.0.0, Linux0.0.0]`.
pub(crate) fn without_versions_of_kotlin(name: &str) -> Option<String> {
    let (test, target) = name.strip_suffix(']')?.rsplit_once('[')?;
    let parts: Vec<&str> = target.split(", ").collect();
    if parts.len() < 3 || parts[1] != "browser" {
        return None;
    }
    let parts = parts.into_iter().map(|part| {
        let plain = part.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
        let is_versioned = !plain.is_empty() && part[plain.len()..].contains('.');
        if is_versioned { plain.trim_end() } else { part }
    });
    Some(format!("{test}[{}]", parts.collect::<Vec<_>>().join(", ")))
}

/// cargo2junit numbers test programs, and a new crate shifts the numbers: `cargo test #3` becomes `cargo test` if its
/// package is `testsuite/cargo test #3`.
pub(crate) fn without_program<'a>(name: &'a str, package: Option<&str>) -> Option<&'a str> {
    let (plain, number) = name.rsplit_once(" #")?;
    let is_number = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    let is_of_package = package?.strip_prefix("testsuite/") == Some(name);
    (is_number && is_of_package).then_some(plain)
}

/// A worker's number is another one in the next run: to RSpec's suite parallel_tests adds that of a process, which runs
/// other files each time, and Gradle numbers all processes of its tests.
pub(crate) fn without_worker(name: &str) -> &str {
    let worker = ["rspec", "Gradle Test Executor "].into_iter().find(|worker| {
        name.strip_prefix(*worker).is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_digit()))
    });
    match worker {
        Some(worker) => worker.trim_end(),
        None => name,
    }
}
