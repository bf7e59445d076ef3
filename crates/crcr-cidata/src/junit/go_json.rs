//! The lines that `go test -json` prints: <https://pkg.go.dev/cmd/test2json>

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::Read;
use std::sync::Arc;

use crcr_domain::ci_data::test_run::{
    MAX_TEXT_BYTES, TestCase, TestDetail, TestDetailKind, TestResult, TestRowKind, cause_of_go,
};
use serde::Deserialize;

use super::findings::{FindingList, JunitRule};
use super::input::ReportText;
use super::summary::{
    JunitError, JunitSummary, MAX_CASES, RepeatedTest, SuiteElement, SuiteLabels, read_error,
};
use super::text::cut;

/// Output of all running tests together; what is beyond this isn't kept.
const MAX_OUTPUT_BYTES: usize = 64 << 20;
/// Tests that run at one time, and packages.
const MAX_OPEN: usize = 200_000;

/// What a report in XML begins with that was put into the same file.
const XML_STARTS: [&[u8]; 3] = [b"<?xml", b"<testsuite", b"\xef\xbb\xbf<"];

/// A package that failed.
const FAIL: &str = "FAIL\t";

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Event<'a> {
    #[serde(borrow)]
    action: Cow<'a, str>,
    #[serde(borrow, default)]
    package: Cow<'a, str>,
    #[serde(borrow, default)]
    test: Cow<'a, str>,
    #[serde(borrow, default)]
    output: Cow<'a, str>,
    elapsed: Option<f64>,
    /// The package, in lines about a build.
    #[serde(borrow, default)]
    import_path: Cow<'a, str>,
    #[serde(borrow, default)]
    failed_build: Cow<'a, str>,
}

struct Package {
    name: Arc<str>,
    element: SuiteElement,
    running: HashMap<String, RunningTest>,
    output: String,
    is_open: bool,
    has_failure: bool,
    /// Whether any run of it failed.
    has_failed: bool,
    line: u64,
}

#[derive(Default)]
struct RunningTest {
    output: String,
    /// The result and the seconds that a line of output tells.
    end: Option<(TestResult, Option<f64>)>,
}

struct GoReader<F> {
    on_case: F,
    /// In the order in which they begin.
    packages: Vec<Package>,
    positions: HashMap<String, usize>,
    builds: HashMap<String, String>,
    /// Builds that failed, and the numbers of the lines that say so.
    failed_builds: Vec<(String, u64)>,
    /// The build that a line `# PACKAGE` began.
    build: Option<String>,
    /// Lines that begin with [`FAIL`], and their numbers.
    failed: Vec<(String, u64)>,
    /// In bytes, and in tests.
    held: usize,
    running: usize,
    cases: u64,
    findings: FindingList,
}

/// Whether there are lines of `go test -json`, maybe below others, such as `go: downloading …`, what a compiler prints, or
/// another program's log in JSON.
pub(crate) fn begins_below(start: &[u8]) -> bool {
    let is_event = |line: &[u8]| match serde_json::from_slice::<Event<'_>>(line) {
        Ok(_) => true,
        // It ends early, or goes on behind `start`.
        Err(error) => error.is_eof(),
    };
    start.split(|byte| *byte == b'\n').any(|line| {
        line.starts_with(b"{")
            && memchr::memmem::find(line, b"\"Action\":").is_some()
            && is_event(line)
    })
}

pub(crate) fn read<R: Read>(
    mut text: ReportText<R>,
    on_case: impl FnMut(TestCase, &SuiteElement),
) -> Result<JunitSummary, JunitError> {
    let mut reader = GoReader {
        on_case,
        packages: vec![],
        positions: HashMap::new(),
        builds: HashMap::new(),
        failed_builds: vec![],
        build: None,
        failed: vec![],
        held: 0,
        running: 0,
        cases: 0,
        findings: FindingList::default(),
    };
    let mut line = vec![];
    let mut is_truncated = false;
    loop {
        let number = text.line();
        if !text.read_line(&mut line).map_err(|error| read_error(&text, error))? {
            break;
        }
        let trimmed = line.trim_ascii();
        if trimmed.is_empty() {
            continue;
        }
        match serde_json::from_slice::<Event<'_>>(trimmed) {
            Ok(event) => {
                reader.build = None;
                reader.read_event(&event, number)?;
            }
            Err(_) => {
                is_truncated = !line.ends_with(b"\n") && trimmed.starts_with(b"{");
                let (rule, message) = match XML_STARTS.iter().any(|xml| trimmed.starts_with(xml)) {
                    true => (JunitRule::Malformed, "a report in XML follows, and isn't read"),
                    false => (
                        JunitRule::OtherLines,
                        "a line isn't one of `go test -json`, and is left out",
                    ),
                };
                reader.findings.add(rule, number, message);
                reader.read_other_line(&String::from_utf8_lossy(&line), number);
            }
        }
    }
    reader.finish(is_truncated, text.line())
}

impl<F: FnMut(TestCase, &SuiteElement)> GoReader<F> {
    fn read_event(&mut self, event: &Event<'_>, line: u64) -> Result<(), JunitError> {
        if event.action == "build-output" {
            if self.builds.len() < MAX_OPEN {
                let output = self.builds.entry(event.import_path.to_string()).or_default();
                self.held += keep(output, &event.output, self.held);
            }
            return Ok(());
        }
        // `go tool test2json` names a package only with `-p`. Lines about a build have none.
        if event.package.is_empty() && !event.import_path.is_empty() {
            if event.action == "build-fail" && self.failed_builds.len() < MAX_OPEN {
                self.failed_builds.push((event.import_path.to_string(), line));
            }
            return Ok(());
        }
        let at = self.package(&event.package, line)?;
        if event.action == "start" && self.packages[at].is_open {
            self.end_run(at, false)?;
        }
        let package = &mut self.packages[at];
        package.is_open = true;
        match (&*event.action, event.test.is_empty()) {
            ("output", true) => {
                self.held += keep(&mut package.output, &event.output, self.held);
            }
            ("output", false) => {
                if let Some((name, end)) = printed_end(&event.test, &event.output)
                    && let Some(test) = package.running.get_mut(name)
                {
                    test.end = Some(end);
                }
                if let Some(test) = package.running.get_mut(&*event.test) {
                    self.held += keep(&mut test.output, &event.output, self.held);
                }
            }
            ("run", false) => {
                self.running += 1;
                if self.running > MAX_OPEN {
                    return Err(JunitError::TooManyCases);
                }
                let test = RunningTest::default();
                if package.running.insert(event.test.to_string(), test).is_some() {
                    self.running -= 1;
                }
            }
            ("pass" | "fail" | "skip", false) => self.end_test(at, event)?,
            ("pass" | "fail" | "skip", true) => self.end_package(at, event)?,
            _ => {}
        }
        Ok(())
    }

    fn package(&mut self, name: &str, line: u64) -> Result<usize, JunitError> {
        if let Some(at) = self.positions.get(name) {
            return Ok(*at);
        }
        let at = self.packages.len();
        if at == MAX_OPEN {
            return Err(JunitError::TooManyCases);
        }
        let labels = Arc::new(SuiteLabels::default());
        // Without a name, tests of one name may be of two packages.
        let repeats = if name.is_empty() { RepeatedTest::OtherTests } else { RepeatedTest::Go };
        self.packages.push(Package {
            name: name.into(),
            element: SuiteElement { number: at as u32 + 1, run: 1, repeats, labels },
            running: HashMap::new(),
            output: String::new(),
            is_open: false,
            has_failure: false,
            has_failed: false,
            line,
        });
        self.positions.insert(name.to_owned(), at);
        Ok(at)
    }

    fn end_test(&mut self, at: usize, event: &Event<'_>) -> Result<(), JunitError> {
        let package = &mut self.packages[at];
        let running = package.running.remove(&*event.test);
        self.running -= usize::from(running.is_some());
        let output = running.unwrap_or_default().output;
        self.held = self.held.saturating_sub(output.len());
        let result = match &*event.action {
            "pass" => TestResult::Success,
            "skip" => TestResult::Skipped,
            _ => TestResult::Failure,
        };
        let time = event.elapsed.filter(|seconds| *seconds >= 0.0);
        self.pass_on_test(at, event.test.to_string(), result, time, output)
    }

    fn pass_on_test(
        &mut self,
        at: usize,
        name: String,
        result: TestResult,
        time: Option<f64>,
        output: String,
    ) -> Result<(), JunitError> {
        let package = &mut self.packages[at];
        package.has_failure |= result.is_failed();
        let mut case = new_case(package, name, result);
        case.time = time;
        let kind = match result {
            TestResult::Skipped => Some(TestDetailKind::Skipped),
            TestResult::Failure => Some(TestDetailKind::Failure),
            _ => None,
        };
        case.details.extend(kind.map(|kind| detail(kind, output)));
        self.pass_on(case, at)
    }

    /// Later events of the package are of another run, in which its tests are other attempts.
    fn end_run(&mut self, at: usize, has_passed: bool) -> Result<(String, bool), JunitError> {
        self.end_running(at, has_passed)?;
        let package = &mut self.packages[at];
        package.is_open = false;
        package.element.run += 1;
        let output = std::mem::take(&mut package.output);
        self.held = self.held.saturating_sub(output.len());
        Ok((output, std::mem::take(&mut package.has_failure)))
    }

    fn end_package(&mut self, at: usize, event: &Event<'_>) -> Result<(), JunitError> {
        let (mut output, has_failure) = self.end_run(at, event.action == "pass")?;
        self.packages[at].has_failed |= event.action == "fail";
        if event.action != "fail" || has_failure {
            return Ok(());
        }
        let name = Arc::clone(&self.packages[at].name);
        if let Some(build) = self.build_of(&name, &event.failed_build) {
            output = format!("{build}{output}");
        }
        self.fail_package(at, output)
    }

    /// A row for a package that failed outside its tests.
    fn fail_package(&mut self, at: usize, mut output: String) -> Result<(), JunitError> {
        cut(&mut output, MAX_TEXT_BYTES);
        let package = &self.packages[at];
        let text = format_args!("the package `{}` failed outside its tests", package.name);
        self.findings.add(JunitRule::SuiteFailure, package.line, text);
        let mut case = new_case(package, String::new(), TestResult::Error);
        case.kind = TestRowKind::Suite;
        case.classname = "".into();
        case.details.push(detail(TestDetailKind::Error, output));
        self.pass_on(case, at)
    }

    /// Up to Go 1.23, a package that can't be set up has no events, only what is printed of it and a line
    /// `FAIL`. In older ones that is so for one that isn't built, too.
    fn read_other_line(&mut self, line: &str, number: u64) {
        if let Some(build) = line.strip_prefix("# ") {
            self.build = Some(build.trim_end().to_owned()).filter(|_| self.builds.len() < MAX_OPEN);
        } else if line.starts_with(FAIL) {
            self.build = None;
            if self.failed.len() < MAX_OPEN {
                self.failed.push((line.trim_end().to_owned(), number));
            }
            return;
        }
        if let Some(build) = &self.build {
            let output = self.builds.entry(build.clone()).or_default();
            self.held += keep(output, line, self.held);
        }
    }

    /// What the compiler printed of a package. Up to Go 1.23, no event names the build.
    fn build_of(&self, package: &str, build: &str) -> Option<&String> {
        let of = |build: &str| self.builds.get(build);
        of(build).or_else(|| of(&format!("{package} [{package}.test]"))).or_else(|| of(package))
    }

    /// Packages that failed without an event that says so.
    fn end_failed(&mut self) -> Result<(), JunitError> {
        for (text, line) in std::mem::take(&mut self.failed) {
            let name = text[FAIL.len()..].split(['\t', ' ']).next().unwrap_or_default();
            if name.is_empty() {
                continue;
            }
            let at = self.package(name, line)?;
            if std::mem::replace(&mut self.packages[at].has_failed, true) {
                continue;
            }
            self.packages[at].is_open = false;
            let output = self.build_of(name, "").unwrap_or(&text).clone();
            self.fail_package(at, output)?;
        }
        Ok(())
    }

    /// `go test -c -json` and `go build -json` tell of builds only. Otherwise the event of a package says that it failed.
    fn end_failed_builds(&mut self) -> Result<(), JunitError> {
        if self.packages.iter().any(|package| package.has_failed) {
            return Ok(());
        }
        for (build, line) in std::mem::take(&mut self.failed_builds) {
            // The build of a package's tests is called `p [p.test]`.
            let name = build.split(' ').next().unwrap_or_default();
            let at = self.package(name, line)?;
            if !std::mem::replace(&mut self.packages[at].has_failed, true) {
                let output = self.build_of(name, &build).cloned().unwrap_or_default();
                self.fail_package(at, output)?;
            }
        }
        Ok(())
    }

    /// Tests without an event that ends them. A benchmark that passes never has one, and neither has a test
    /// that `go test -v -json` runs and whose last output doesn't end its line. Of others the process ended
    /// before them.
    fn end_running(&mut self, at: usize, has_passed: bool) -> Result<(), JunitError> {
        let mut running: Vec<_> = self.packages[at].running.drain().collect();
        running.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        self.running -= running.len();
        for (name, RunningTest { output, end }) in running {
            self.held = self.held.saturating_sub(output.len());
            let (result, time) = match end {
                Some(end) => end,
                None if has_passed && name.starts_with("Benchmark") => (TestResult::Success, None),
                None => (TestResult::Unfinished, None),
            };
            // Why the process ended is printed as the output of a test that ran.
            if result == TestResult::Unfinished {
                self.held += keep(&mut self.packages[at].output, &output, self.held);
            }
            self.pass_on_test(at, name, result, time, output)?;
        }
        Ok(())
    }

    fn pass_on(&mut self, case: TestCase, at: usize) -> Result<(), JunitError> {
        self.cases += 1;
        if self.cases > MAX_CASES {
            return Err(JunitError::TooManyCases);
        }
        (self.on_case)(case, &self.packages[at].element);
        Ok(())
    }

    fn finish(mut self, is_cut: bool, line: u64) -> Result<JunitSummary, JunitError> {
        let mut summary = JunitSummary::default();
        self.end_failed()?;
        self.end_failed_builds()?;
        for at in 0..self.packages.len() {
            self.end_running(at, false)?;
            let package = &self.packages[at];
            summary.suites.push(Arc::clone(&package.name));
            if package.is_open {
                summary.open_suites.push(Arc::clone(&package.name));
            }
        }
        if is_cut || !summary.open_suites.is_empty() {
            summary.is_truncated = true;
            let message = "the report ends early; the tests up to here count";
            self.findings.add(JunitRule::Truncated, line, message);
        }
        if self.cases == 0 {
            self.findings.add(JunitRule::NoTests, 1, "the report has no tests");
        }
        summary.findings = self.findings.finish();
        Ok(summary)
    }
}

/// The test whose end is told by a line of output of `test`, its result and its seconds: `--- PASS: TestA (0.01s)`,
/// maybe behind other output, or the figures of a benchmark.
fn printed_end<'a>(test: &'a str, output: &'a str) -> Option<(&'a str, (TestResult, Option<f64>))> {
    if let Some(at) = output.find("--- ") {
        let (word, rest) = output[at + 4..].split_once(": ")?;
        let result = match word {
            "PASS" => TestResult::Success,
            "FAIL" => TestResult::Failure,
            "SKIP" => TestResult::Skipped,
            _ => return None,
        };
        let (name, time) = rest.trim_end().rsplit_once(" (")?;
        let time = time.strip_suffix("s)").and_then(|seconds| seconds.parse().ok());
        return Some((name, (result, time.filter(|seconds| *seconds >= 0.0))));
    }
    let is_measured = test.starts_with("Benchmark") && output.contains(" ns/op");
    is_measured.then_some((test, (TestResult::Success, None)))
}

/// Adds to an output what there is room for, and returns its length.
fn keep(output: &mut String, text: &str, held: usize) -> usize {
    let room = (MAX_TEXT_BYTES + 4)
        .saturating_sub(output.len())
        .min(MAX_OUTPUT_BYTES.saturating_sub(held));
    let text = &text[..text.floor_char_boundary(room)];
    output.push_str(text);
    text.len()
}

/// As gotestsum identifies tests in JUnit.
fn new_case(package: &Package, name: String, result: TestResult) -> TestCase {
    let (suite, classname) = (Arc::clone(&package.name), Arc::clone(&package.name));
    TestCase { suite, classname, ..TestCase::new(name, result) }
}

fn detail(kind: TestDetailKind, mut output: String) -> TestDetail {
    cut(&mut output, MAX_TEXT_BYTES);
    let cause = cause_of_go(&output).or_else(|| {
        let is_failure = matches!(kind, TestDetailKind::Failure | TestDetailKind::Error);
        result_of_go(&output).filter(|_| is_failure)
    });
    let message = cause.map(str::to_owned);
    let text = Some(output).filter(|output| !output.trim().is_empty());
    TestDetail { kind, type_name: None, message, text }
}

/// The line that tells of a failure where the test or package printed nothing itself, as a test whose subtest failed.
fn result_of_go(output: &str) -> Option<&str> {
    let mut lines = output.lines().map(str::trim).filter(|line| !line.is_empty());
    let exit = lines.clone().find(|line| line.starts_with("exit status "));
    exit.or_else(|| lines.rfind(|line| line.starts_with("--- FAIL") || line.starts_with("FAIL")))
}
