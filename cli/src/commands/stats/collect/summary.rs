//! What a run's tests come to: for the log, as JSON, and as the step's summary.

use std::cmp::Ordering;
use std::collections::{BTreeSet, HashSet};
use std::fmt::Write as _;

use crcr_domain::ci_data::quarantine::{Quarantine, QuarantineEntry};
use crcr_domain::ci_data::test_row::{ReportRows, ReportSource, TestRunRow};
use crcr_domain::ci_data::test_run::{TestCase, TestRowKind, name_with_variant};
use serde_json::{Value, json};

use super::read::{QuarantinedFile, ReadCounts};
use crate::escape::escape_markdown;
use crate::render::plural;

/// Tests in each list of the summary.
const LISTED: usize = 20;
/// Longer messages of failures are cut.
const MAX_MESSAGE_CHARS: usize = 200;

#[derive(Debug, Default)]
pub struct CollectedTests {
    slowest: BTreeSet<SlowTest>,
    failing: TestList,
    quarantine: Quarantine,
    quarantined: TestList,
    /// Suites that crashed, and jobs without a report.
    lost: TestList,
    flaky: TestList,
    new: TestList,
}

/// The first tests of a kind, and how many there are.
#[derive(Debug, Default)]
struct TestList {
    count: u64,
    first: Vec<ListedTest>,
}

#[derive(Debug)]
struct ListedTest {
    name: String,
    job: String,
    note: String,
}

#[derive(Debug)]
struct SlowTest {
    seconds: f64,
    name: String,
    job: String,
}

impl TestList {
    fn add(&mut self, source: &ReportSource, case: &TestCase, note: impl FnOnce() -> String) {
        self.count += 1;
        if self.first.len() < LISTED {
            let (name, job) = (shown_name(case), source.job.to_string());
            self.first.push(ListedTest { name, job, note: note() });
        }
    }
}

/// With what it ran with, such as a browser.
fn shown_name(case: &TestCase) -> String {
    name_with_variant(case.full_name(), case.variant.as_deref())
}

impl CollectedTests {
    pub fn new(quarantine: Quarantine) -> Self {
        Self { quarantine, ..Self::default() }
    }

    pub fn add(&mut self, report: &ReportRows) {
        let source = &report.source;
        for TestRunRow { case, .. } in &report.rows {
            let message =
                || case.message().unwrap_or_default().chars().take(MAX_MESSAGE_CHARS).collect();
            match case.kind {
                TestRowKind::Crashed | TestRowKind::NoReport => {
                    self.lost.add(source, case, message);
                }
                _ if case.result.is_failed() => match self.quarantine.covers(case) {
                    Some(QuarantineEntry { owner, expiry, reason, .. }) => {
                        let note = || format!("{owner}, until {expiry}: {reason}");
                        self.quarantined.add(source, case, note);
                    }
                    None => self.failing.add(source, case, message),
                },
                _ if case.flaky => {
                    self.flaky.add(source, case, || format!("{} attempts", case.attempts));
                }
                _ => {}
            }
            let Some(seconds) = case.time else { continue };
            if self.slowest.len() < LISTED
                || self.slowest.first().is_some_and(|least| least.seconds < seconds)
            {
                let (name, job) = (shown_name(case), source.job.to_string());
                self.slowest.insert(SlowTest { seconds, name, job });
                if self.slowest.len() > LISTED {
                    self.slowest.pop_first();
                }
            }
        }
    }

    /// Adds the tests in `rows` that are in `new`.
    pub fn add_new(&mut self, rows: &[ReportRows], mut new: HashSet<u64>) {
        for report in rows {
            for row in &report.rows {
                if new.remove(&row.test_id) && row.case.kind == TestRowKind::Test {
                    self.new.add(&report.source, &row.case, || row.case.result.as_str().to_owned());
                }
            }
        }
    }

    /// Markdown for the step's summary. Names and messages may be anything.
    pub fn markdown(&self, counts: &ReadCounts, quarantined: &[QuarantinedFile]) -> String {
        let mut text = format!(
            "### Test results\n\n{} in {}\n",
            super::super::counts(&counts.tally),
            plural(counts.files, "report", "reports")
        );
        for (title, list) in [
            ("Crashed, or without a report", &self.lost),
            ("Failing", &self.failing),
            ("Failing, in quarantine", &self.quarantined),
            ("Flaky: passed after a rerun", &self.flaky),
            ("New: never run on the default branch", &self.new),
        ] {
            if list.count > 0 {
                table(&mut text, title, list.count, &list.first);
            }
        }
        if !self.slowest.is_empty() {
            text.push_str("\n#### Slowest\n\n| test | job | seconds |\n|---|---|--:|\n");
            for test in self.slowest.iter().rev() {
                let (name, job) = (escape_markdown(&test.name), escape_markdown(&test.job));
                let _ = writeln!(text, "| {name} | {job} | {:.1} |", test.seconds);
            }
        }
        if counts.quarantined > 0 {
            let _ = write!(text, "\n#### Files that can't be read ({})\n\n", counts.quarantined);
            for file in quarantined.iter().take(LISTED) {
                let (name, why) = (escape_markdown(&file.file), escape_markdown(&file.reason));
                let _ = writeln!(text, "- {name}: {why}");
            }
        }
        text
    }
}

fn table(text: &mut String, title: &str, count: u64, tests: &[ListedTest]) {
    let _ = write!(text, "\n#### {title} ({count})\n\n| test | job | |\n|---|---|---|\n");
    for test in tests {
        let cells = [&test.name, &test.job, &test.note].map(|cell| escape_markdown(cell));
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    if count > tests.len() as u64 {
        let _ = writeln!(text, "\n… and {} more", count - tests.len() as u64);
    }
}

pub fn json(counts: &ReadCounts, quarantined: &[QuarantinedFile]) -> Value {
    let tally = &counts.tally;
    json!({
        "tests": tally.tests, "successes": tally.successes, "failures": tally.failures,
        "errors": tally.errors, "skipped": tally.skipped, "unfinished": tally.unfinished,
        "flaky": tally.flaky, "files": counts.files, "rows": counts.rows,
        "quarantined": quarantined,
    })
}

impl PartialEq for SlowTest {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for SlowTest {}

impl PartialOrd for SlowTest {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for SlowTest {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.seconds.total_cmp(&other.seconds))
            .then_with(|| (&other.name, &other.job).cmp(&(&self.name, &self.job)))
    }
}
