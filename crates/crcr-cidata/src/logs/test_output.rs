//! What tests print: an error there is often one that the test provokes, handles or expects, and its runner says so.
//!
//! The lines of a test that passed explain nothing. What a failed test printed, or what was printed before a runner's
//! report of failed tests, says less than the report does. Only what starts and ends in one chunk of the log is known.

use std::collections::HashMap;
use std::ops::Range;

use super::cleaner::{CleanChunk, TestOutput};

/// Notes which lines of the chunk are output of tests.
pub(crate) fn mark_test_output(chunk: &mut CleanChunk) {
    for (range, output) in test_output(chunk) {
        chunk.segments[range].iter_mut().for_each(|segment| segment.output = output);
    }
}

/// The segments of a chunk that are output of tests; later entries count over earlier ones.
fn test_output(chunk: &CleanChunk) -> Vec<(Range<usize>, TestOutput)> {
    // Few logs have its tests, and any line may name one.
    let finder = memchr::memmem::Finder::new(b".py::");
    let mut named = finder.find_iter(&chunk.text).peekable();
    let mut scan = OutputScan { has_pytest: named.peek().is_some(), ..OutputScan::default() };
    for index in 0..chunk.segments.len() {
        let line = chunk.segment(index);
        let end = chunk.segment_end(index);
        scan.names_pytest = named.next_if(|at| *at < end).is_some();
        while named.next_if(|at| *at < end).is_some() {}
        if line.len() >= 2 {
            scan.add(index, line, || {
                chunk.segments.get(index + 1).map(|_| chunk.segment(index + 1))
            });
        }
    }
    // What is said of each test counts over what is said of all.
    scan.found.sort_by_key(|(_, output)| *output == TestOutput::Passed);
    scan.found
}

/// What a line says of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RunnerEvent<'l> {
    /// It starts. What follows is printed by it.
    Start(TestRunner, &'l [u8]),
    /// Nobody says any more which test prints.
    Pause,
    /// It passed or was skipped.
    Passed(&'l [u8]),
    Failed(&'l [u8]),
    /// The test of the runner that printed last passed or failed, or the line itself says all about another.
    LastPassed(TestRunner),
    LastFailed,
    /// The tests of a program are over.
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TestRunner {
    GoogleTest,
    Go,
    Gradle,
    Pytest,
    Surefire,
    Unittest,
    XcTest,
}

#[derive(Default)]
struct OutputScan<'l> {
    /// Whether the chunk has names of pytest's tests, and whether the line has one.
    has_pytest: bool,
    names_pytest: bool,
    found: Vec<(Range<usize>, TestOutput)>,
    /// The test that prints, and its first line.
    current: Option<(TestRunner, &'l [u8], usize)>,
    /// What tests printed before others did.
    before: HashMap<&'l [u8], Vec<Range<usize>>>,
    /// Lines that are indented by more belong to what has just passed.
    deeper_than: Option<usize>,
    /// Where the captured output of a failed test starts.
    captured: Option<usize>,
    /// Where the output of pytest's tests starts.
    session: Option<usize>,
    /// Where the output of passed tests starts that Rust's test runner shows on demand.
    successes: Option<usize>,
    /// Where lines start of which no runner has reported yet.
    unreported: usize,
    is_in_report: bool,
}

impl<'l> OutputScan<'l> {
    fn add(&mut self, index: usize, line: &'l [u8], next: impl Fn() -> Option<&'l [u8]>) {
        if let Some(least) = self.deeper_than {
            if indent(line) > least && !line.trim_ascii_start().starts_with(b"--- ") {
                self.found.push((index..index + 1, TestOutput::Passed));
                return;
            }
            self.deeper_than = None;
        }
        match line[0] {
            b'#' | b't' if is_of_ci(line) => self.end_of_section(index),
            // The test may pass all the same; the program fails when it ends.
            b'=' | b'W' | b'0'..=b'9' if is_of_sanitizer(line) => {
                self.apply(index, line, RunnerEvent::End);
            }
            b'=' | b'-' | b'_' | b'0'..=b'9' => self.add_of_report(index, line, next),
            b's' if line == b"successes:" && self.successes.is_none() => {
                self.successes = Some(index);
            }
            b'f' | b't' if line == b"failures:" || line.starts_with(b"test result: ") => {
                if let Some(from) = self.successes.take() {
                    self.found.push((from..index, TestOutput::Passed));
                }
            }
            b'R' if line.starts_with(b"Ran ") && contains(line, b" test") => {
                (self.unreported, self.is_in_report) = (index + 1, false);
            }
            // What Jest's tests wrote to the console stands below their file.
            b'P' if is_passed_file_of_jest(line) => self.deeper_than = Some(0),
            _ => {}
        }
        let of_pytest = || event_of_pytest(line, self.names_pytest).filter(|_| self.has_pytest);
        if let Some(event) = event(line).or_else(of_pytest) {
            self.apply(index, line, event);
        }
    }

    /// Reports of pytest and unittest.
    fn add_of_report(&mut self, index: usize, line: &[u8], next: impl Fn() -> Option<&'l [u8]>) {
        let title = line.trim_ascii_end();
        let of_equals = heading(title, b'=');
        let text = of_equals.unwrap_or(title);
        let is_sum = text.ends_with(b"s")
            && contains(text, b" in ")
            && [&b" passed"[..], b" failed", b" error"].iter().any(|word| contains(text, word));
        let starts_captured =
            heading(title, b'-').is_some_and(|text| text.starts_with(b"Captured "));
        if starts_captured || of_equals.is_some() || is_sum || heading(title, b'_').is_some() {
            self.end_captured(index);
            self.captured = starts_captured.then_some(index + 1);
        }
        match of_equals {
            Some(b"test session starts") => self.session = Some(index + 1),
            Some(b"FAILURES" | b"ERRORS") => {
                if let Some(from) = self.session.take() {
                    self.found.push((from..index, TestOutput::Captured));
                }
            }
            Some(_) if is_sum => self.session = None,
            _ => {}
        }
        let is_rule = || title.len() >= 60 && title.iter().all(|byte| *byte == b'=');
        if is_rule() && next().is_some_and(is_head_of_unittest) {
            if !self.is_in_report {
                self.found.push((self.unreported..index, TestOutput::BeforeReport));
            }
            self.is_in_report = true;
        }
    }

    fn end_captured(&mut self, index: usize) {
        if let Some(from) = self.captured.take() {
            self.found.push((from..index, TestOutput::Captured));
        }
    }

    fn end_of_section(&mut self, index: usize) {
        self.end_captured(index);
        let found = std::mem::take(&mut self.found);
        let has_pytest = self.has_pytest;
        *self = Self { found, has_pytest, unreported: index + 1, ..Self::default() };
    }

    fn apply(&mut self, index: usize, line: &[u8], event: RunnerEvent<'l>) {
        match event {
            RunnerEvent::Start(runner, name) => {
                self.pause(index);
                // Only Go's tests take turns. A test that starts again before it has passed has crashed.
                match runner {
                    TestRunner::Go if line.starts_with(b"=== RUN") => _ = self.before.remove(name),
                    TestRunner::Go | TestRunner::Gradle => {}
                    _ => self.before.clear(),
                }
                self.current = Some((runner, name, index));
            }
            RunnerEvent::Pause => self.pause(index),
            RunnerEvent::Passed(name) => {
                self.pause(index);
                for range in self.before.remove(name).into_iter().flatten() {
                    self.found.push((range, TestOutput::Passed));
                }
                // Before 1.14, Go wrote what a test logged below its result.
                if line.trim_ascii_start().starts_with(b"--- PASS") {
                    self.deeper_than = Some(indent(line));
                }
            }
            RunnerEvent::Failed(name) => {
                self.pause(index);
                self.before.remove(name);
            }
            RunnerEvent::LastPassed(runner) => {
                if let Some((_, _, from)) = self.current.take_if(|(of, _, _)| *of == runner) {
                    self.found.push((from..index, TestOutput::Passed));
                }
            }
            RunnerEvent::LastFailed => self.current = None,
            RunnerEvent::End => {
                self.current = None;
                self.before.clear();
            }
        }
    }

    fn pause(&mut self, index: usize) {
        if let Some((_, name, from)) = self.current.take() {
            self.before.entry(name).or_default().push(from..index);
        }
    }
}

fn event(line: &[u8]) -> Option<RunnerEvent<'_>> {
    let text = line.trim_ascii_start();
    let name = |at: usize| {
        let name = text.get(at..).unwrap_or_default();
        &name[..memchr::memmem::find(name, b" (").unwrap_or(name.len())]
    };
    match text.first()? {
        b'[' | b'0'..=b'9' => {
            // CTest writes the number of a test before each of its lines: `3: [ RUN      ] Core.Adds`.
            let at = memchr::memchr(b'[', &text[..text.len().min(12)])?;
            let is_number = |byte: &u8| byte.is_ascii_digit() || b": ".contains(byte);
            let name = name(at + 13);
            match text[at..].get(..13).filter(|_| text[..at].iter().all(is_number))? {
                b"[ RUN      ] " => Some(RunnerEvent::Start(TestRunner::GoogleTest, name)),
                b"[       OK ] " | b"[  SKIPPED ] " => Some(RunnerEvent::Passed(name)),
                b"[  FAILED  ] " => Some(RunnerEvent::Failed(name)),
                b"[INFO] Runnin" | b"[INFO] Tests " | b"[WARNING] Tes" | b"[ERROR] Tests" => {
                    event_of_surefire(text)
                }
                _ => None,
            }
        }
        b'=' => match text.get(..10)? {
            b"=== RUN   " | b"=== CONT  " | b"=== NAME  " => {
                Some(RunnerEvent::Start(TestRunner::Go, name(10)))
            }
            b"=== PAUSE " => Some(RunnerEvent::Pause),
            _ => None,
        },
        b'-' => match text.get(..10)? {
            b"--- PASS: " | b"--- SKIP: " => Some(RunnerEvent::Passed(name(10))),
            b"--- FAIL: " => Some(RunnerEvent::Failed(name(10))),
            _ => None,
        },
        first => (*first == b'T')
            .then(|| event_of_xctest(text))
            .flatten()
            .or_else(|| event_of_unittest(line))
            .or_else(|| event_of_gradle(line))
            .or_else(|| is_end_of_package(line).then_some(RunnerEvent::End)),
    }
}

/// Surefire: `[INFO] Running core.Test`, what its tests print, then
/// `[INFO] Tests run: 2, Failures: 0, Errors: 0, Skipped: 0, Time elapsed: 0.1 s -- in core.Test`.
fn event_of_surefire(text: &[u8]) -> Option<RunnerEvent<'_>> {
    if let Some(class) = text.strip_prefix(b"[INFO] Running ") {
        return Some(RunnerEvent::Start(TestRunner::Surefire, class));
    }
    let at = memchr::memmem::rfind(text, b" in ")?;
    let class = &text[at + 4..];
    let has_passed = contains(&text[..at], b" Failures: 0, Errors: 0,");
    Some(if has_passed { RunnerEvent::Passed(class) } else { RunnerEvent::Failed(class) })
}

/// `FAIL` and `exit status 1` end the tests of one of Go's packages.
fn is_end_of_package(line: &[u8]) -> bool {
    matches!(line[0], b'F' | b'e')
        && (line == b"FAIL" || line.starts_with(b"FAIL\t") || line.starts_with(b"exit status "))
}

fn event_of_xctest(text: &[u8]) -> Option<RunnerEvent<'_>> {
    let text = text.strip_prefix(b"Test Case '")?;
    let end = memchr::memmem::find(text, b"' ")?;
    let name = &text[..end];
    match text.get(end + 2..end + 8)? {
        b"starte" => Some(RunnerEvent::Start(TestRunner::XcTest, name)),
        b"passed" | b"skippe" => Some(RunnerEvent::Passed(name)),
        b"failed" => Some(RunnerEvent::Failed(name)),
        _ => None,
    }
}

/// Gradle: `CoreTest > adds() STANDARD_ERR`, its lines, then `CoreTest > adds() PASSED`.
fn event_of_gradle(line: &[u8]) -> Option<RunnerEvent<'_>> {
    if !matches!(line.last()?, b'D' | b'R' | b'T') {
        return None;
    }
    let space = memchr::memrchr(b' ', line)?;
    let (name, said) = (&line[..space], &line[space + 1..]);
    let event = match said {
        b"STANDARD_OUT" | b"STANDARD_ERR" | b"STARTED" => {
            RunnerEvent::Start(TestRunner::Gradle, name)
        }
        b"PASSED" | b"SKIPPED" => RunnerEvent::Passed(name),
        b"FAILED" => RunnerEvent::Failed(name),
        _ => return None,
    };
    contains(name, b" > ").then_some(event)
}

/// `test_adds (core.CoreTest.test_adds) ... `, what it prints, then `ok`.
fn event_of_unittest(line: &[u8]) -> Option<RunnerEvent<'_>> {
    match line {
        b"ok" | b"expected failure" => return Some(RunnerEvent::LastPassed(TestRunner::Unittest)),
        b"FAIL" | b"ERROR" | b"unexpected success" => return Some(RunnerEvent::LastFailed),
        [b's', ..] if line.starts_with(b"skipped '") || line.starts_with(b"skipped \"") => {
            return Some(RunnerEvent::LastPassed(TestRunner::Unittest));
        }
        _ => {}
    }
    let after_name = || {
        let name = &line[..memchr::memchr(b' ', line)?];
        let class = line[name.len()..].strip_prefix(b" (")?;
        let end = memchr::memchr(b')', class)?;
        let is_of_path = |byte: &u8| byte.is_ascii_alphanumeric() || b"._".contains(byte);
        let is_path = class[..end].contains(&b'.') && class[..end].iter().all(is_of_path);
        is_path.then_some((name, class[end + 1..].trim_ascii()))
    };
    if line[0] == b't'
        && line.starts_with(b"test")
        && let Some((name, said)) = after_name()
    {
        return match said.strip_prefix(b"...").map(<[u8]>::trim_ascii) {
            // Its description follows in the next line.
            None if said.is_empty() => Some(RunnerEvent::Start(TestRunner::Unittest, name)),
            None => None,
            Some(b"ok" | b"FAIL" | b"ERROR" | b"expected failure" | b"unexpected success") => {
                Some(RunnerEvent::LastFailed)
            }
            Some(said) if said.starts_with(b"skipped ") => Some(RunnerEvent::LastFailed),
            Some(_) => Some(RunnerEvent::Start(TestRunner::Unittest, name)),
        };
    }
    (line.last() == Some(&b'k') && line.ends_with(b" ... ok"))
        .then_some(RunnerEvent::LastPassed(TestRunner::Unittest))
}

/// `tests/test_core.py::test_adds `, what it prints, then `PASSED`.
fn event_of_pytest(line: &[u8], names_test: bool) -> Option<RunnerEvent<'_>> {
    const WORDS: [&[u8]; 6] = [b"PASSED", b"SKIPPED", b"XFAIL", b"FAILED", b"ERROR", b"XPASS"];
    const PASSED: usize = 3;
    if matches!(line[0], b'E' | b'F' | b'P' | b'S' | b'X')
        && let Some(word) = WORDS.iter().position(|word| is_word_of_pytest(line, word))
    {
        let is_passed = word < PASSED;
        return Some(if is_passed {
            RunnerEvent::LastPassed(TestRunner::Pytest)
        } else {
            RunnerEvent::LastFailed
        });
    }
    if !names_test {
        return None;
    }
    let end = memchr::memchr2(b' ', b'[', line).unwrap_or(line.len());
    let (id, after) = line.split_at(end);
    if !contains(id, b".py::") || id.contains(&b'(') {
        return None;
    }
    let is_result = |word: &&[u8]| {
        memchr::memmem::find(after, word).is_some_and(|at| at > 0 && after[at - 1] == b' ')
    };
    let is_over = WORDS.iter().any(is_result);
    Some(if is_over { RunnerEvent::LastFailed } else { RunnerEvent::Start(TestRunner::Pytest, id) })
}

/// `PASSED` or `PASSED      [ 50%]`, but not a line of the summary: `FAILED tests/test_core.py::test_adds`.
fn is_word_of_pytest(line: &[u8], word: &[u8]) -> bool {
    line.strip_prefix(word).is_some_and(|rest| {
        let rest = rest.trim_ascii();
        rest.is_empty() || (rest.starts_with(b"[") && rest.ends_with(b"%]"))
    })
}

/// The text in `===== text =====`.
fn heading(title: &[u8], rule: u8) -> Option<&[u8]> {
    let text = title.strip_prefix(&[rule; 3])?.strip_suffix(&[rule; 3])?;
    let start = text.iter().position(|byte| *byte != rule)?;
    let end = text.iter().rposition(|byte| *byte != rule)?;
    text[start..=end].strip_prefix(b" ")?.strip_suffix(b" ")
}

fn is_passed_file_of_jest(line: &[u8]) -> bool {
    let file = line.strip_prefix(b"PASS ").map(<[u8]>::trim_ascii_start);
    let file = file.and_then(|file| file.split(|byte| *byte == b' ').next()).unwrap_or_default();
    [&b".js"[..], b".jsx", b".ts", b".tsx", b".mjs", b".cjs"].iter().any(|end| file.ends_with(end))
}

/// Whether the line begins a failure of unittest, such as `FAIL: test_adds (core.Test.test_adds)`.
fn is_head_of_unittest(line: &[u8]) -> bool {
    let name = line.strip_prefix(b"FAIL: ").or_else(|| line.strip_prefix(b"ERROR: "));
    name.is_some_and(|name| name.starts_with(b"test") || name.ends_with(b")"))
}

/// A report of a sanitizer, of Go's race detector or of Valgrind, maybe behind the number of a test of CTest:
/// `3: ==7==ERROR: AddressSanitizer: …`.
fn is_of_sanitizer(line: &[u8]) -> bool {
    let text = after_digits(line).strip_prefix(b": ").unwrap_or(line);
    let id_of_process =
        text.strip_prefix(b"==").filter(|id| id.first().is_some_and(u8::is_ascii_digit));
    id_of_process.is_some_and(|id| after_digits(id).starts_with(b"=="))
        || text.starts_with(b"WARNING: ThreadSanitizer")
        || text.starts_with(b"WARNING: DATA RACE")
}

fn after_digits(text: &[u8]) -> &[u8] {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    &text[digits..]
}

/// A line of the CI, which no test prints.
fn is_of_ci(line: &[u8]) -> bool {
    line.starts_with(b"##[") || line.starts_with(b"travis_fold:")
}

fn indent(line: &[u8]) -> usize {
    line.len() - line.trim_ascii_start().len()
}

fn contains(line: &[u8], text: &[u8]) -> bool {
    memchr::memmem::find(line, text).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logs::cleaner::{LogReader, RawChunk};

    /// A letter for each line: `p` of a test that passed, `c` captured, `r` before a report, `-` of none.
    fn marks(log: &str) -> String {
        let (mut raw, mut chunk) = (RawChunk::default(), CleanChunk::default());
        assert!(LogReader::new(log.as_bytes()).read(&mut raw).unwrap());
        chunk.clean(&raw);
        mark_test_output(&mut chunk);
        let letter = |output| match output {
            TestOutput::None => '-',
            TestOutput::BeforeReport => 'r',
            TestOutput::Captured => 'c',
            TestOutput::Passed => 'p',
        };
        chunk.segments.iter().map(|segment| letter(segment.output)).collect()
    }

    #[test]
    fn output_of_a_test_of_googletest_is_known_by_its_result() {
        let log = "[ RUN      ] A.Logs\nerror: a\n[       OK ] A.Logs (3 ms)\n[ RUN      ] A.Fails\n\
            error: b\n[  FAILED  ] A.Fails (0 ms)\n[ RUN      ] A.Skips\nerror: c\n\
            [  SKIPPED ] A.Skips (0 ms)\n";
        assert_eq!(marks(log), "pp----pp-");
        let of_ctest = "1: [ RUN      ] A.Logs\n1: error: a\n1: [       OK ] A.Logs (3 ms)\n";
        assert_eq!(marks(of_ctest), "pp-");
        let crashed = "[ RUN      ] A.Logs\nerror: a\n[ RUN      ] A.Logs\nerror: b\n\
            [       OK ] A.Logs (3 ms)\n";
        assert_eq!(marks(crashed), "--pp-", "the first run of the test has no result");
        assert_eq!(marks("[ RUN      ] A.Logs\nerror: a\nAborted (core dumped)\n"), "---");
    }

    #[test]
    fn output_of_tests_of_go_that_take_turns_is_told_apart() {
        let log = "=== RUN   TestA\n=== PAUSE TestA\n=== RUN   TestB\n    b.go:1: error\n=== PAUSE TestB\n\
            === CONT  TestA\n    a.go:2: error\n=== CONT  TestB\n    b.go:3: error\n\
            --- FAIL: TestB (0.01s)\n--- PASS: TestA (0.01s)\nFAIL\n";
        assert_eq!(marks(log), "p----pp-----");
        let subtest = "=== RUN   TestA\n=== RUN   TestA/x\n    a.go:1: error\n--- FAIL: TestA (0.00s)\n    \
            --- PASS: TestA/x (0.00s)\n        a.go:1: logged below\n    a.go:9: error\n";
        assert_eq!(marks(subtest), "-pp--p-");
        let panicked = "=== RUN   TestA\npanic: a\nexit status 2\nFAIL\tx/a\t0.1s\n=== RUN   TestA\n\
            --- PASS: TestA (0.00s)\n";
        assert_eq!(marks(panicked), "----p-", "another package has a test of this name");
    }

    #[test]
    fn output_of_passed_tests_of_other_runners_is_known() {
        for (log, expected) in [
            (
                "test_a (t.T.test_a) ... ERROR:root:full\nok\ntest_b (t.T.test_b) ... x\nFAIL\n",
                "p---",
            ),
            ("test_a (t.T.test_a)\nSays why ... ERROR:root:full\nerror: b\nok\n", "ppp-"),
            ("tests/test_a.py::test_a error: a\nPASSED         [ 50%]\n", "p-"),
            ("tests/test_a.py::test_a \nerror: a\nFAILED         [ 50%]\n", "---"),
            (
                "Test Case '-[M.T a]' started.\nerror: a\nTest Case '-[M.T a]' passed (0.1 seconds).\n",
                "pp-",
            ),
            (
                "T > a() STANDARD_ERR\n    error: a\nT > a() PASSED\nT > b() FAILED\n    error: b\n",
                "pp---",
            ),
            (
                "PASS src/a.test.ts\n  console.error\n    Error: a\nFAIL src/b.test.ts\n  Error: b\n",
                "-pp--",
            ),
            ("PASS a.sh\n  error: b\nFAIL b.sh\n", "---"),
            ("successes:\n---- a stdout ----\nerror: a\nfailures:\n---- b stdout ----\n", "ppp--"),
            (
                "[INFO] Running a.T\nERROR a\n[INFO] Tests run: 1, Failures: 0, Errors: 0, Skipped: 0, \
                 Time elapsed: 0.1 s -- in a.T\n[INFO] Running a.U\nERROR b\n[ERROR] Tests run: 1, Failures: 1, \
                 Errors: 0, Skipped: 0, Time elapsed: 0.1 s <<< FAILURE! -- in a.U\n",
                "pp----",
            ),
        ] {
            assert_eq!(marks(log), expected, "{log}");
        }
    }

    #[test]
    fn report_of_a_sanitizer_counts_although_the_test_passes() {
        for report in [
            "WARNING: ThreadSanitizer: data race (pid=7)",
            "==7==ERROR: LeakSanitizer: detected memory leaks",
            "==7== Invalid read of size 4",
            "1: ==7== Invalid read of size 4",
        ] {
            let log = format!("[ RUN      ] A.a\nx\n{report}\n    #0 f\n[       OK ] A.a (1 ms)\n");
            assert_eq!(marks(&log), "-----", "{report}");
        }
        let race =
            "=== RUN   TestA\n==================\nWARNING: DATA RACE\n--- PASS: TestA (0.00s)\n";
        assert_eq!(marks(race), "----");
        let other = "[ RUN      ] A.a\n==7 items==\n[       OK ] A.a (1 ms)\n";
        assert_eq!(marks(other), "pp-");
    }

    #[test]
    fn what_pytest_and_unittest_report_on_later_is_known() {
        let pytest = "===== test session starts =====\nerror: a\n===== FAILURES =====\n____ test_b ____\n\
            E   assert 2 == 3\n---- Captured log call ----\nERROR app:a.py:3 b\n---- Captured stderr call ----\n\
            error: c\n===== short test summary info =====\nFAILED a.py::test_b - assert 2 == 3\n\
            ===== 1 failed in 0.12s =====\nerror: d\n";
        assert_eq!(marks(pytest), "-c----c-c----");
        let passed = "===== test session starts =====\nerror: a\n===== 2 passed in 0.12s =====\nerror: b\n\
            ===== FAILURES =====\n";
        assert_eq!(marks(passed), "-----");
        let rule = "=".repeat(70);
        let unittest = format!(
            "##[endgroup]\nerror: a\n.F\n{rule}\nFAIL: test_b (t.T.test_b)\nerror: b\n{rule}\n\
             ERROR: test_c (t.T.test_c)\nerror: c\nRan 2 tests in 0.1s\nerror: d\n"
        );
        assert_eq!(marks(&unittest), "-rr--------");
    }
}
