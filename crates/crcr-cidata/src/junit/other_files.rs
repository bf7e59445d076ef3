//! Files that aren't test reports, or are in a format that isn't read: what they are, and how to get a
//! report instead.

use std::fmt;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherFile {
    pub root: String,
    known: Option<&'static KnownFile>,
}

#[derive(Debug, PartialEq, Eq)]
struct KnownFile {
    /// Empty if it isn't XML.
    root: &'static str,
    is: &'static str,
    /// How to get a report that is read; `None` for files without tests.
    instead: Option<&'static str>,
}

const fn tests(root: &'static str, is: &'static str, instead: &'static str) -> KnownFile {
    KnownFile { root, is, instead: Some(instead) }
}

const fn no_tests(root: &'static str, is: &'static str) -> KnownFile {
    KnownFile { root, is, instead: None }
}

const KNOWN: &[KnownFile] = &[
    tests(
        "test-results",
        "a report of NUnit 2",
        "run the tests with NUnit 3, let `nunit3-console` write it anew, or set Pester's `OutputFormat` to `JUnitXml`",
    ),
    tests(
        "assembly",
        "a report of xUnit.net v1",
        "use a runner of xUnit.net v2 or later, or its option `-junit`",
    ),
    tests(
        "robot",
        "Robot Framework's own output",
        "add `--xunit report.xml` to `robot` or `rebot`",
    ),
    tests(
        "testng-results",
        "TestNG's own report",
        "use the files in `junitreports`, or those of Surefire and Gradle",
    ),
    tests("Site", "CTest's own report", "run `ctest --output-junit report.xml`"),
    tests("suite", "a report of libcheck", "set `CK_TAP_LOG_FILE_NAME`, and convert TAP to JUnit"),
    tests("testsuite", "DejaGnu's own report", "convert it to JUnit in the job"),
    tests("Catch", "Catch2's own report", "run the tests with `--reporter junit`"),
    tests("Catch2TestRun", "Catch2's own report", "run the tests with `--reporter junit`"),
    tests("doctest", "doctest's own report", "run the tests with `--reporters=junit`"),
    tests("TestLog", "Boost.Test's own log", "run the tests with `--log_format=JUNIT`"),
    tests("TestResult", "Boost.Test's own report", "run the tests with `--log_format=JUNIT`"),
    tests("TestCase", "Qt Test's own report", "run the tests with `-o report.xml,junitxml`"),
    tests("QtTest", "Qt Test's own report", "run the tests with `-o report.xml,junitxml`"),
    tests("TestRun", "a report of CppUnit, not of .NET", "convert it to JUnit in the job"),
    tests("events", "an Open Test Report", "keep the `TEST-*.xml` files that the same run writes"),
    tests(
        "execution",
        "an Open Test Report",
        "keep the `TEST-*.xml` files that the same run writes",
    ),
    tests("testResults", "JMeter's own log of samples", "convert it to JUnit in the job"),
    tests("unittest-results", "UnitTest++'s own report", "convert it to JUnit in the job"),
    tests("CUNIT_TEST_RUN_REPORT", "CUnit's own report", "convert it to JUnit in the job"),
    tests("stream", "test-unit's own XML", "convert it to JUnit in the job"),
    tests("testrun", "an export of Eclipse or IntelliJ", "let Surefire, Gradle or Ant write JUnit"),
    tests("test-suite", "a report of Allure 1", "write JUnit as well"),
    tests("testExecutions", "SonarQube's format of tests", "write JUnit as well"),
    tests("unitTest", "SonarQube's format of tests", "write JUnit as well"),
    tests("tests", "PHPUnit's TestDox", "run the tests with `--log-junit report.xml`"),
    tests(
        "plist",
        "a property list, such as Xcode's",
        "convert the `.xcresult` to JUnit in the job",
    ),
    no_tests("failsafe-summary", "the summary of Maven Failsafe, whose tests are in `TEST-*.xml`"),
    no_tests("!DOCTYPE suite", "TestNG's list of tests to run"),
    no_tests("coverage", "a coverage report of Cobertura or Clover"),
    no_tests("report", "a coverage report of JaCoCo"),
    no_tests("CoverageSession", "a coverage report of OpenCover"),
    no_tests("CoverageDSPriv", "a coverage report of Visual Studio"),
    no_tests("phpunit", "a configuration or a coverage report of PHPUnit"),
    no_tests("checkstyle", "a lint report of Checkstyle"),
    no_tests("mutations", "a mutation report of PIT"),
    no_tests("pmd", "a lint report of PMD"),
    no_tests("pmd-cpd", "a report of duplicates by PMD"),
    no_tests("BugCollection", "a lint report of SpotBugs"),
    no_tests("issues", "a report of Android Lint"),
    no_tests("results", "a report of Cppcheck"),
    no_tests("valgrindoutput", "a report of Valgrind"),
    no_tests("project", "a build file of Maven or Ant"),
    no_tests("html", "a page in HTML"),
    no_tests("svg", "a picture"),
];

const JSON: KnownFile = no_tests("", "JSON, and not the lines of `go test -json`");
const JSON_OF_RESULTS: KnownFile =
    tests("", "JSON with results, and not the lines of `go test -json`", "write JUnit as well");

/// In lower case. JSON of a tool that isn't known is taken as results of tests if it has one of these: left out as a file
/// without tests, its failures would be hidden by a quarantine of other tests.
const WORDS_OF_RESULTS: [&str; 5] = ["fail", "\"pass", "\"status\"", "\"outcome\"", "\"result\""];

/// Reports that aren't XML: what all of each are near its start.
const KNOWN_STARTS: &[(&[&str], KnownFile)] = &[
    (&["TAP version "], TAP),
    (
        &["##teamcity["],
        tests("", "a log with messages for TeamCity", "let the test tool write JUnit as well"),
    ),
    (
        &["\"testsuites\":", "\"disabled\":", "\"failures\":"],
        tests("", "GoogleTest's own JSON", "run the tests with `--gtest_output=xml:report.xml`"),
    ),
    (
        &["\"metadata\":", "\"catch2-version\":"],
        tests("", "Catch2's own JSON", "run the tests with `--reporter junit`"),
    ),
    (&["\"testNodes\":", "\"testPlanConfigurations\":"], XCODE),
    (&["\"testFailures\":", "\"totalTestCount\":"], XCODE),
    (&["\"ActionsInvocationRecord\""], XCODE),
    (
        &["\"kind\":", "\"payload\":", "\"version\":"],
        tests("", "the events of Swift Testing", "use `swift test --xunit-output report.xml`"),
    ),
    (
        &["\"started\":", "\"buildToolVersion\":"],
        tests("", "Bazel's build events", "keep the files `test.xml` in `bazel-testlogs`"),
    ),
    (
        &["\"returncode\":", "\"starttime\":", "\"result\":"],
        tests("", "Meson's own JSON", "keep `meson-logs/testlog.junit.xml`"),
    ),
    (
        &["\"reportversion\":", "\"toxversion\":"],
        tests("", "tox's own JSON", "let the commands of its environments write JUnit"),
    ),
    (
        &["\"userAgents\":", "\"fixtures\":"],
        tests("", "TestCafe's own JSON", "use its reporter `xunit`"),
    ),
    (
        &["\"startedTestsAt\":", "\"totalFailed\":"],
        tests("", "the JSON of Cypress", "use `--reporter junit`"),
    ),
    (
        &["\"start\":", "\"capabilities\":", "\"framework\":"],
        tests("", "WebdriverIO's own JSON", "use its reporter `junit`"),
    ),
    (
        &["\"collection\":", "\"info\":", "\"item\":"],
        tests("", "Newman's own JSON", "use its reporter `junit`"),
    ),
    (
        &["\"root_group\":", "\"metrics\":"],
        tests("", "the summary of k6", "let `handleSummary` return `jUnit(data)` of k6-summary"),
    ),
    (
        &["\"event\":", "\"runStart\"", "\"testCount\":"],
        tests("", "the JSON of elm-test", "use `--report=junit`"),
    ),
    (
        &["\"numTotalTestSuites\":", "\"testResults\":"],
        tests("", "the JSON of Jest or Vitest", "use `jest-junit`, or Vitest's `--reporter=junit`"),
    ),
    (
        &["\"stats\":", "\"suites\":", "\"passes\":"],
        tests("", "Mocha's own JSON", "use `--reporter mocha-junit-reporter`"),
    ),
    (
        &["\"config\":", "\"rootDir\":", "\"reporter\":"],
        tests("", "Playwright's own JSON", "use `--reporter=junit`"),
    ),
    (
        &["\"collectors\":", "\"exitcode\":", "\"root\":"],
        tests("", "the JSON of pytest-json-report", "use `--junitxml=report.xml`"),
    ),
    (
        &["\"pytest_version\":", "\"$report_type\":"],
        tests("", "a log of pytest-reportlog", "use `--junitxml=report.xml`"),
    ),
    (&["\"version\":", "\"examples\":[", "\"summary_line\":"], RSPEC),
    (&["\"examples\":[{\"id\":", "\"full_description\":"], RSPEC),
    (
        &["\"type\":", "\"event\":", "\"started\"", "\"test_count\":"],
        tests("", "the JSON of Rust's libtest", "use `cargo nextest` with `junit` in its profile"),
    ),
    (
        &["\"protocolVersion\":", "\"runnerVersion\":"],
        tests("", "the JSON of Dart's tests", "convert it by `tojunit`"),
    ),
    (&["\"meta\":", "\"protocolVersion\":", "\"implementation\":"], CUCUMBER),
    (&["\"uri\":", "\"elements\":", "\"keyword\":"], CUCUMBER),
    (
        &["\"keyword\":", "\"elements\":", "\"location\":"],
        tests("", "Behave's own JSON", "use `--junit`"),
    ),
    (&["\"generator\":", "\"rpa\":"], tests("", "Robot Framework's own JSON", "add `--xunit`")),
    (
        &["\"SuitePath\":", "\"SuiteDescription\":"],
        tests("", "Ginkgo's own JSON", "use `--junit-report=report.xml`"),
    ),
    (
        &["\"stats\":", "\"results\":", "\"passPercent\":"],
        tests("", "the JSON of Mochawesome", "use `--reporter mocha-junit-reporter`"),
    ),
    (&["\"reportFormat\":", "\"CTRF\""], CTRF),
    (&["\"results\":", "\"tool\":", "\"summary\":"], CTRF),
    (&["\"uuid\":", "\"historyId\":"], tests("", "a result of Allure", "write JUnit as well")),
    (&["sarif", "\"runs\":"], no_tests("", "a lint report in SARIF")),
    (&["\"statementMap\":", "\"fnMap\":"], no_tests("", "a coverage report of Istanbul")),
];

/// What other files begin with. The second byte of gzip's isn't text, so it was replaced.
const KNOWN_BEGINNINGS: &[(&str, KnownFile)] = &[
    ("\u{1f}\u{fffd}\u{8}", tests("", "compressed by gzip", UNPACK)),
    ("PK\u{3}\u{4}", tests("", "a zip", UNPACK)),
    ("TN:", LCOV),
    ("SF:", LCOV),
    ("mode: set\n", GO_COVERAGE),
    ("mode: count\n", GO_COVERAGE),
    ("mode: atomic\n", GO_COVERAGE),
    (
        "[\"start\",{",
        tests("", "the events of Mocha's `json-stream`", "use `--reporter mocha-junit-reporter`"),
    ),
    ("=== RUN ", GO_TEXT),
    ("--- FAIL: ", GO_TEXT),
    ("FAIL\t", GO_TEXT),
    ("ok  \t", GO_TEXT),
    ("?   \t", GO_TEXT),
    ("Test run by ", tests("", "a summary of DejaGnu", "convert it to JUnit in the job")),
    ("Test Run By ", tests("", "a summary of DejaGnu", "convert it to JUnit in the job")),
];

const UNPACK: &str = "unpack it first";

const TAP: KnownFile =
    tests("", "the Test Anything Protocol", "convert it to JUnit in the job, as by `tap-junit`");
const SUBUNIT: KnownFile =
    tests("", "a stream of subunit", "convert it to JUnit in the job, as by `subunit2junitxml`");
const RSPEC: KnownFile = tests("", "RSpec's own JSON", "use the formatter `RspecJunitFormatter`");
const GO_TEXT: KnownFile = tests("", "the text of `go test`", "write the lines of `go test -json`");
const XCODE: KnownFile =
    tests("", "the JSON of `xcresulttool`", "convert the `.xcresult` to JUnit in the job");
const GO_COVERAGE: KnownFile = no_tests("", "a coverage profile of Go");
const LCOV: KnownFile = no_tests("", "a coverage report of LCOV");
const CTRF: KnownFile = tests("", "a Common Test Report (CTRF)", "write JUnit as well");
const CUCUMBER: KnownFile = tests("", "Cucumber's own JSON", "use `--format junit:report.xml`");

impl OtherFile {
    pub(crate) fn of_root(root: &str) -> Self {
        let known = KNOWN.iter().find(|known| known.root == root);
        Self { root: root.chars().take(40).collect(), known }
    }

    /// What a file is that starts with this text and isn't XML.
    pub(crate) fn of_start(text: &str) -> Option<Self> {
        let is_all =
            |(parts, _): &&(&[&str], KnownFile)| parts.iter().all(|part| text.contains(part));
        let beginning = KNOWN_BEGINNINGS.iter().find(|(start, _)| text.starts_with(*start));
        let known = beginning
            .map(|(_, known)| known)
            .or_else(|| is_tap(text).then_some(&TAP))
            .or_else(|| is_subunit(text).then_some(&SUBUNIT))
            .or_else(|| KNOWN_STARTS.iter().find(is_all).map(|(_, known)| known))
            .or_else(|| json(text))?;
        Some(Self { root: String::new(), known: Some(known) })
    }

    /// Whether it is known to say nothing of tests.
    pub fn has_no_tests(&self) -> bool {
        self.known.is_some_and(|known| known.instead.is_none())
    }

    /// What to do to have the tests counted.
    pub fn hint(&self) -> Option<&'static str> {
        match self.known {
            Some(known) => known.instead,
            None => Some(
                "reports are read in the formats of JUnit, NUnit 3, xUnit.net v2, TRX and `go test -json`",
            ),
        }
    }
}

/// An object, or a list of objects. A line such as `[INFO] …` isn't JSON.
fn json(text: &str) -> Option<&'static KnownFile> {
    let is_list = || text.strip_prefix('[').is_some_and(|rest| rest.trim_start().starts_with('{'));
    if !text.starts_with('{') && !is_list() {
        return None;
    }
    let text = text.to_lowercase();
    let has_results = WORDS_OF_RESULTS.iter().any(|word| text.contains(word));
    Some(if has_results { &JSON_OF_RESULTS } else { &JSON })
}

/// The Test Anything Protocol without its first line, which old versions don't have.
fn is_tap(text: &str) -> bool {
    let is_result = |line: &str| {
        let line = line.trim_start();
        let rest = line.strip_prefix("not ").unwrap_or(line).strip_prefix("ok");
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    };
    let is_plan = |line: &str| line.strip_prefix("1..").is_some_and(|n| n.parse::<u32>().is_ok());
    let is_comment = |line: &&str| line.trim_start().starts_with('#');
    let mut lines = text.lines().filter(|line| !line.is_empty() && !is_comment(line));
    let first = lines.next().unwrap_or_default();
    is_result(first) || (is_plan(first) && lines.next().is_some_and(is_result))
}

/// Version 1 is lines, and version 2 is binary: of the two bytes of each packet the first isn't text.
fn is_subunit(text: &str) -> bool {
    let mut start = text.chars();
    let is_packet =
        start.next() == Some('\u{fffd}') && start.next().is_some_and(|c| matches!(c, ' '..='/'));
    let has =
        |words: &[&str]| text.lines().any(|line| words.iter().any(|word| line.starts_with(*word)));
    is_packet
        || (has(&["test: ", "testing: "]) && has(&["success: ", "failure: ", "error: ", "skip: "]))
}

impl fmt::Display for OtherFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let root = match &*self.root {
            "" => String::new(),
            root => format!(" (`<{root}>`)"),
        };
        match self.known {
            Some(KnownFile { is, instead: None, .. }) => {
                write!(f, "it isn't a test report: it is {is}{root}")
            }
            Some(KnownFile { is, instead: Some(instead), .. }) => {
                write!(f, "it is {is}{root}, which isn't read: {instead}")
            }
            None => write!(
                f,
                "it isn't a JUnit report: it starts with `<{}>` instead of `<testsuites>`",
                self.root
            ),
        }
    }
}
