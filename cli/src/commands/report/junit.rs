//! Counts of JUnit reports, and the tests that failed.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use crcr_artifacts::collect::{CollectedFiles, FileEntry, FileQuery, LinkRule, collect};
use crcr_cidata::junit::{
    COMPRESSED_REPORT, EarlierAttempts, JunitError, JunitGrade, NOT_A_REPORT_FILE, TestReport,
    is_compressed_report, is_report_file, join_spread_attempts, of_one_class, unread_file,
};
use crcr_domain::checks::lifecycle::Conclusion;
use crcr_domain::ci_data::quarantine::Quarantine;
use crcr_domain::ci_data::test_run::{TestCase, TestResult, TestTally, name_with_variant};
use crcr_domain::protocol::callback::{
    FAILED_TESTS, FailedTest, MESSAGE_CHARS, NAME_CHARS, STACK_TRACE_CHARS, TestCounts,
};

use super::quarantined::QuarantinedFailures;
use crate::commands::working_folder;
use crate::env_vars::{self, Env};
use crate::failure::Failure;
use crate::printer::Printer;
use crate::render::plural;

/// How much of a file tells whether it may be a report.
const START_BYTES: u64 = 512;
/// Files that aren't read; more are only counted.
const MAX_UNREAD_NAMED: usize = 20;

#[derive(Debug)]
pub struct Tests {
    pub counts: TestCounts,
    /// The first ones, in the order of the files' names, quarantined ones included.
    pub failed: Vec<FailedTest>,
    pub quarantined: QuarantinedFailures,
}

impl Tests {
    /// The conclusion of a job that says that it ended with `job`. A step with `continue-on-error` is
    /// green after failed tests, too.
    pub fn conclusion(&self, job: Conclusion, printer: &Printer) -> Conclusion {
        let counted = self.counts.failed - self.quarantined.count;
        match job {
            Conclusion::Success if counted > 0 => {
                let text = format!(
                    "the job succeeded, and {} in its reports failed: it is reported as `failure`",
                    plural(counted, "test", "tests")
                );
                let hint = "a step with `continue-on-error` hides failed tests; leave reports of \
                            tests that may fail out of `junit`";
                printer.warning(&text, Some(hint));
                Conclusion::Failure
            }
            Conclusion::Failure if self.counts.failed == 0 => {
                let hint = "another step failed, or a suite crashed before it wrote its report";
                printer.warning("the job failed, and no test in its reports did", Some(hint));
                job
            }
            Conclusion::Failure if counted == 0 => {
                let Some(why) = self.quarantined.not_all.first() else {
                    printer.notice(
                        "all tests that failed are quarantined: the job is reported as `success`",
                    );
                    return Conclusion::Success;
                };
                let text = format!(
                    "all tests that failed are quarantined, but {why}: the job is reported as `failure`"
                );
                printer.warning(&text, None);
                job
            }
            _ => job,
        }
    }
}

/// Reads every report that the globs find; `None` without globs, or when nothing was found.
///
/// A broken report costs a warning and what comes after the break, not the result of the job.
pub fn read(
    globs: &[String],
    quarantine: &Quarantine,
    env: &Env,
    printer: &Printer,
) -> Result<Option<Tests>, Failure> {
    if globs.is_empty() {
        return Ok(None);
    }
    let cwd = working_folder()?;
    let home = env.get(env_vars::HOME).map(Path::new);
    // Strangers' code made the reports.
    let links = LinkRule::SkipFolders;
    let query = FileQuery { patterns: globs, cwd: &cwd, home, hidden: false, links };
    let found = collect(&query).map_err(|error| {
        Failure::user("junit-glob", "the input `junit` finds nothing to read").because(error)
    })?;
    let mut sums = ReportSums::default();
    sums.note_unread(&found, printer);
    sums.add_all(&found, quarantine, printer);
    let ReportSums { reports, tally, failed, mut quarantined } = sums;
    if reports == 0 {
        let globs = globs.join("`, `");
        let hint = "the tests may have died before they wrote a report";
        printer.warning(&format!("no JUnit report at `{globs}`"), Some(hint));
        return Ok(None);
    }
    let counts = TestCounts {
        passed: tally.successes,
        // A test without an end took its process down, or was killed with it.
        failed: tally.failures + tally.errors + tally.unfinished,
        skipped: tally.skipped,
        total: tally.tests,
    };
    if quarantined.count > 0 {
        quarantined.not_all.extend(globs_without_report(&query));
    }
    Ok(Some(Tests { counts, failed, quarantined }))
}

fn is_report(entry: &FileEntry) -> bool {
    is_report_file(&entry.path)
}

/// Whether a file of another name has one of a report's, or begins as XML or JSON does. One that can't be read may be one.
fn may_be_report(path: &Path) -> bool {
    if unread_file(&path.to_string_lossy()).is_some() {
        return true;
    }
    let mut start = vec![];
    let read = File::open(path).and_then(|file| file.take(START_BYTES).read_to_end(&mut start));
    let text =
        String::from_utf8_lossy(&start).trim_start_matches('\u{feff}').trim_start().to_owned();
    let is_page = ["<!doctype html", "<html"]
        .iter()
        .any(|tag| text.get(..tag.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(tag)));
    read.is_err() || (text.starts_with(['<', '{', '[']) && !is_page)
}

#[derive(Debug, thiserror::Error)]
enum ReportProblem {
    #[error("{0}")]
    Unopened(std::io::Error),
    #[error("{0}")]
    Unreadable(JunitError),
    #[error("the report stops in the middle; what it says up to there counts")]
    Truncated,
}

/// A suite that crashed may have left no report, so each glob has to find one.
fn globs_without_report(query: &FileQuery<'_>) -> Vec<String> {
    let lines: Vec<_> =
        query.patterns.iter().flat_map(|text| text.lines()).map(str::trim).collect();
    let is_search = |line: &&&str| !line.is_empty() && !line.starts_with(['!', '#']);
    let excludes: Vec<_> = lines.iter().filter(|line| line.starts_with('!')).copied().collect();
    let missing = lines.iter().filter(is_search).filter(|line| {
        let patterns = [&[**line][..], &excludes].concat().join("\n");
        let found = collect(&FileQuery { patterns: &[patterns], ..query.clone() });
        !found.is_ok_and(|found| found.entries.iter().any(is_report))
    });
    missing.map(|line| format!("there is no report at `{line}`")).collect()
}

/// What the reports of a job add up to.
#[derive(Default)]
struct ReportSums {
    /// Broken ones included.
    reports: usize,
    tally: TestTally,
    failed: Vec<FailedTest>,
    quarantined: QuarantinedFailures,
}

impl ReportSums {
    /// Warns of files that aren't read: a failure in one of them isn't known to be quarantined.
    fn note_unread(&mut self, found: &CollectedFiles, printer: &Printer) {
        for (path, why) in &found.unreadable {
            let path = path.display().to_string();
            printer.warning(&format!("`{}` can't be read: {why}", path.escape_debug()), None);
            self.quarantined.not_all.push(format!("`{}` can't be read", path.escape_debug()));
        }
        self.note_links(found, printer);
        for entry in found.entries.iter().filter(|entry| is_compressed_report(&entry.path)) {
            printer.warning(&format!("`{}` isn't read: {COMPRESSED_REPORT}", entry.path), None);
            self.quarantined.not_all.push(format!("`{}` is compressed", entry.path));
        }
        self.note_other_files(found, printer);
    }

    fn note_links(&mut self, found: &CollectedFiles, printer: &Printer) {
        let Some(link) = found.not_entered.first() else { return };
        let link = link.display().to_string();
        let text = format!("`{}` is a link to a folder, which isn't entered", link.escape_debug());
        let others = if found.not_entered.len() > 1 { "; nor are others like it" } else { "" };
        let hint = "begin a line of `junit` with the link, if its reports are to be read";
        printer.warning(&format!("{text}{others}"), Some(hint));
        self.quarantined.not_all.push(text);
    }

    /// Warns of files that a glob finds and that aren't read although they may be reports by another name. What tools put
    /// beside their reports, such as texts and pages, hides nothing.
    fn note_other_files(&mut self, found: &CollectedFiles, printer: &Printer) {
        let is_other = |entry: &&FileEntry| {
            let is_read_or_named = is_report(entry) || is_compressed_report(&entry.path);
            !is_read_or_named && may_be_report(&found.root.join(&entry.path))
        };
        let others: Vec<_> = found.entries.iter().filter(is_other).collect();
        for entry in others.iter().take(MAX_UNREAD_NAMED) {
            let hint = "let `junit` find reports only";
            let text = format!("`{}` isn't read: {NOT_A_REPORT_FILE}", entry.path);
            printer.warning(&text, Some(hint));
        }
        if others.len() > MAX_UNREAD_NAMED {
            let more = others.len() - MAX_UNREAD_NAMED;
            printer.warning(&format!("{more} more files like these aren't read"), None);
        }
        let first = others.first();
        self.quarantined.not_all.extend(first.map(|entry| format!("`{}` isn't read", entry.path)));
    }

    fn add_all(&mut self, found: &CollectedFiles, quarantine: &Quarantine, printer: &Printer) {
        let attempts = EarlierAttempts::of(found.entries.iter().map(|entry| entry.path.as_str()));
        let is_counted = |entry: &&FileEntry| is_report(entry) && !attempts.contains(&entry.path);
        let counted = found.entries.iter().filter(is_counted);
        for entries in of_one_class(counted, |entry| entry.path.as_str()) {
            let read = |entry: &&FileEntry| {
                let earlier = attempts.before(&entry.path).iter();
                let earlier = earlier.map(|path| found.root.join(path));
                read_report(&found.root.join(&entry.path), earlier)
            };
            let mut reports: Vec<_> = entries.iter().map(read).collect();
            join_spread_attempts(reports.iter_mut().flatten());
            for (entry, report) in entries.into_iter().zip(reports) {
                let added = report.and_then(|report| self.add(&report, quarantine));
                self.note(&entry.path, added, printer);
            }
        }
    }

    fn note(&mut self, path: &str, added: Result<(), ReportProblem>, printer: &Printer) {
        match added {
            Ok(()) => self.reports += 1,
            // Such as a coverage report that the glob finds as well.
            Err(ReportProblem::Unreadable(JunitError::OtherFile(other)))
                if other.has_no_tests() =>
            {
                printer.notice(&format!("`{path}` is left out: {other}"));
            }
            Err(problem) => {
                self.reports += 1;
                let hint = match &problem {
                    ReportProblem::Unreadable(JunitError::OtherFile(other)) => other.hint(),
                    _ => None,
                };
                printer.warning(&format!("`{path}`: {problem}"), hint);
                self.quarantined.not_all.push(format!("`{path}` isn't a whole report"));
            }
        }
    }

    fn add(&mut self, report: &TestReport, quarantine: &Quarantine) -> Result<(), ReportProblem> {
        self.tally.add(&report.tally);
        let cases = report.cases.iter();
        let of_file = cases.filter(|case| case.result.is_failed() || is_unfinished(case));
        let room = FAILED_TESTS - self.failed.len();
        self.failed.extend(of_file.take(room).map(failed_test));
        for case in report.cases.iter().filter(|case| case.result.is_failed()) {
            self.quarantined.add(case, quarantine);
        }
        let not_all = &mut self.quarantined.not_all;
        if report.grade() == JunitGrade::Invalid {
            not_all.push("tests may be missing in a report that isn't valid".to_owned());
        }
        not_all.extend(report.uncounted_failure().map(str::to_owned));
        if report.summary.is_truncated {
            return Err(ReportProblem::Truncated);
        }
        Ok(())
    }
}

fn read_report(
    path: &Path,
    earlier: impl Iterator<Item = PathBuf>,
) -> Result<TestReport, ReportProblem> {
    let file = File::open(path).map_err(ReportProblem::Unopened)?;
    let mut report = TestReport::read(file).map_err(ReportProblem::Unreadable)?;
    let earlier = earlier.filter_map(|path| TestReport::read(File::open(path).ok()?).ok());
    earlier.for_each(|earlier| report.add_earlier_attempt(earlier));
    Ok(report)
}

fn is_unfinished(case: &TestCase) -> bool {
    case.result == TestResult::Unfinished
}

fn failed_test(case: &TestCase) -> FailedTest {
    let class = if case.classname.is_empty() { &case.suite } else { &case.classname };
    let name = match (case.classname.is_empty(), case.name.is_empty()) {
        (true, false) => case.name.clone(),
        (_, true) => class.to_string(),
        (false, false) => format!("{class}.{}", case.name),
    };
    let name = name_with_variant(name, case.variant.as_deref());
    let cut = |text: &str, most: usize| text.chars().take(most).collect::<String>();
    let message =
        if is_unfinished(case) { Some("the report ends within this test") } else { case.message() };
    // A tool without messages puts all it knows into the text, which then is the message.
    let stacktrace = case.message_details();
    FailedTest {
        name: cut(&name, NAME_CHARS),
        file: case.file.as_deref().map(|file| cut(file, NAME_CHARS)),
        message: message.map(|message| cut(message, MESSAGE_CHARS)),
        stacktrace: stacktrace.map(|text| cut(text, STACK_TRACE_CHARS)),
        duration: case.time,
        classname: None,
    }
}
