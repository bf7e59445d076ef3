//! A whole report, in which each test is there once.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::io::Read;
use std::sync::Arc;

use crcr_domain::ci_data::test_run::{
    TestCase, TestDetailKind, TestResult, TestRowKind, TestTally,
};
use jiff::{SignedDuration, Timestamp};

use super::attempts::{AttemptFinder, SuiteRanges};
use super::findings::{JunitFinding, JunitGrade, JunitRule};
use super::reader::read_cases;
use super::summary::{JunitError, JunitSummary};
use super::text::cut;
use super::values::shorten;

/// Texts of failures beyond this sum are cut to [`SHORT_TEXT_BYTES`].
const FULL_TEXTS_BYTES: usize = 64 << 20;
const SHORT_TEXT_BYTES: usize = 1024;
/// Older suites are from another run. Their timestamps often lack a zone.
const STALE_AFTER: SignedDuration = SignedDuration::from_hours(24);

#[derive(Debug)]
pub struct TestReport {
    /// In the order of their first attempts.
    pub cases: Vec<TestCase>,
    /// Counts tests, and failures outside of a test.
    pub tally: TestTally,
    /// Seconds that all attempts of all tests took.
    pub time: f64,
    pub summary: JunitSummary,
}

impl TestReport {
    /// Reads a report. One that is truncated, or stops being XML, yields the tests up to there.
    pub fn read(input: impl Read) -> Result<Self, JunitError> {
        let mut cases: Vec<TestCase> = Vec::new();
        let mut repetitions = AttemptFinder::default();
        let mut ranges = SuiteRanges::default();
        let mut texts = 0;
        let mut summary = read_cases(input, |mut case, element| {
            limit_texts(&mut case, &mut texts);
            let position = cases.len() as u32;
            repetitions.note(position, &case, element);
            ranges.note(position, element);
            cases.push(case);
        })?;
        if summary.has_namesakes {
            ranges.tell_apart(&mut cases);
        }
        if let Some(test) = repetitions.merge(&mut cases, &mut summary.hidden_failures) {
            let message = format!(
                "`{}` failed and passed: the report doesn't tell whether it was run again because it \
                 failed, or was repeated anyway, as by `-count`",
                shorten(&test)
            );
            let rule = JunitRule::GuessedRerun;
            summary.findings.insert(0, JunitFinding { rule, line: 1, message });
        }
        let mut report = Self { cases, tally: TestTally::default(), time: 0.0, summary };
        report.add_up();
        Ok(report)
    }

    /// Makes the sums of its tests.
    pub(crate) fn add_up(&mut self) {
        let mut tally = TestTally::default();
        self.cases.iter().for_each(|case| tally.count(case));
        let hidden = self.summary.hidden_failures;
        tally.failures += hidden.failures;
        tally.errors += hidden.errors;
        tally.tests += hidden.failures + hidden.errors;
        self.tally = tally;
        self.time =
            self.cases.iter().filter_map(|case| case.time).fold(0.0, |sum, time| sum + time);
    }

    /// Adds the failures of an earlier attempt, whose report is `earlier`, to the tests that both have; the newest attempt
    /// comes first. An attempt in TRX has only the tests that failed in the one before, so it gets the others from there.
    pub fn add_earlier_attempt(&mut self, earlier: Self) {
        type Identity = (TestRowKind, Arc<str>, Arc<str>, String, Option<Arc<str>>);
        let identity = |case: &TestCase| -> Identity {
            let (suite, class) = (Arc::clone(&case.suite), Arc::clone(&case.classname));
            (case.kind, suite, class, case.name.clone(), case.variant.clone())
        };
        let has_failed =
            |result: TestResult| result.is_failed() || result == TestResult::Unfinished;
        let mut earlier = earlier.cases;
        if self.summary.is_trx {
            // A copy of the last attempt may be kept among the earlier ones.
            if earlier == self.cases {
                return;
            }
            let known: HashSet<Identity> = self.cases.iter().map(identity).collect();
            let others = earlier.extract_if(.., |case| {
                case.kind == TestRowKind::Test && !known.contains(&identity(case))
            });
            for case in others {
                self.tally.count(&case);
                self.time += case.time.unwrap_or_default();
                self.cases.push(case);
            }
        }
        let mut failed: HashMap<Identity, TestCase> = HashMap::new();
        for case in earlier.into_iter().filter(|case| has_failed(case.result)) {
            failed.entry(identity(&case)).or_insert(case);
        }
        for case in self.cases.iter_mut().filter(|case| case.kind == TestRowKind::Test) {
            let Some(mut earlier) = failed.remove(&identity(case)) else { continue };
            case.attempts = case.attempts.saturating_add(earlier.attempts);
            let is_new = case.result == TestResult::Success && !case.flaky;
            case.flaky |= is_new;
            self.tally.flaky += u64::from(is_new);
            earlier.details.iter_mut().for_each(|detail| detail.kind = TestDetailKind::Rerun);
            case.details.splice(..0, earlier.details);
            case.time = case.time.zip(earlier.time).map(|(last, first)| last + first).or(case.time);
        }
    }

    /// Adds a finding if a suite ran long before `now`.
    pub fn check_age(&mut self, now: Timestamp) {
        if let Some((time, line)) = self.summary.earliest
            && now.duration_since(time) > STALE_AFTER
        {
            let message = format!("the suite ran at {time}, more than a day ago");
            let finding = JunitFinding { rule: JunitRule::StaleTimestamp, line, message };
            let at = self.summary.findings.partition_point(|other| other.line <= line);
            self.summary.findings.insert(at, finding);
        }
    }

    pub fn grade(&self) -> JunitGrade {
        JunitGrade::of(&self.summary.findings)
    }

    /// Why the job may have failed although no test is counted as failed for it.
    pub fn uncounted_failure(&self) -> Option<&'static str> {
        self.summary.findings.iter().find_map(|finding| match finding.rule {
            JunitRule::GuessedRerun => {
                Some("a test that is taken as flaky may have been repeated anyway, as by `-count`")
            }
            JunitRule::NotRun => Some("a test couldn't run"),
            JunitRule::Warning => Some("a warning, with which some tools fail"),
            _ => None,
        })
    }
}

/// Which of several reports are of earlier attempts of others.
#[derive(Debug, Default)]
pub struct EarlierAttempts {
    by_last: HashMap<String, Vec<String>>,
}

impl EarlierAttempts {
    pub fn of<'a>(paths: impl Iterator<Item = &'a str> + Clone) -> Self {
        let mut by_last: HashMap<String, Vec<String>> = HashMap::new();
        for path in paths.clone() {
            if let Some(last) = last_attempt_of(path) {
                by_last.entry(last).or_default().push(path.to_owned());
            }
        }
        if !by_last.is_empty() {
            let paths: HashSet<_> = paths.collect();
            by_last.retain(|last, _| paths.contains(last.as_str()));
        }
        for attempts in by_last.values_mut() {
            attempts.sort_by_key(|path| Reverse(attempt_of(path).map(|(_, number)| number)));
        }
        Self { by_last }
    }

    /// Those before the last attempt, whose report is at `last`, the newest first.
    pub fn before(&self, last: &str) -> &[String] {
        self.by_last.get(last).map_or(&[], Vec::as_slice)
    }

    /// Whether the report at `path` is of an earlier attempt.
    pub fn contains(&self, path: &str) -> bool {
        last_attempt_of(path).is_some_and(|last| self.by_last.contains_key(&last))
    }
}

/// For a report of an earlier attempt: the path of the last attempt's report ([`attempt_of`]).
pub fn last_attempt_of(path: &str) -> Option<String> {
    attempt_of(path).map(|(last, _)| last)
}

/// For a report of an earlier attempt: the path of the last attempt's report, and which attempt it is. Bazel writes
/// `X/test_attempts/attempt_1.xml` and `X/test.xml`, and `--retry-failed-tests` of .NET's Microsoft.Testing.Platform
/// `X/Retries/ID/1/a.trx` and `X/a.trx`.
pub fn attempt_of(path: &str) -> Option<(String, u32)> {
    let (folder, name) = path.rsplit_once('/')?;
    let (folder, name, number) = match name.strip_prefix("attempt_") {
        Some(name) => {
            (folder.strip_suffix("test_attempts")?, "test.xml", name.strip_suffix(".xml")?)
        }
        None if name.ends_with(".trx") => {
            let (folder, number) = folder.rsplit_once('/')?;
            let (folder, _) = folder.rsplit_once('/')?;
            (folder.strip_suffix("Retries")?, name, number)
        }
        None => return None,
    };
    let number = number.parse().ok()?;
    (folder.is_empty() || folder.ends_with('/')).then(|| (format!("{folder}{name}"), number))
}

fn limit_texts(case: &mut TestCase, texts: &mut usize) {
    for text in case.details.iter_mut().flat_map(|detail| [&mut detail.message, &mut detail.text]) {
        let Some(text) = text else { continue };
        if *texts > FULL_TEXTS_BYTES {
            cut(text, SHORT_TEXT_BYTES);
            text.shrink_to_fit();
        }
        *texts += text.len();
    }
}
