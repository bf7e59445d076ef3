//! A whole report, in which each test is there once.

use std::hash::BuildHasher as _;
use std::io::Read;
use std::sync::Arc;

use crcr_domain::ci_data::test_run::{
    TestCase, TestDetailKind, TestResult, TestRowKind, TestTally,
};
use hashbrown::DefaultHashBuilder;
use hashbrown::hash_table::{Entry, HashTable};
use jiff::{SignedDuration, Timestamp};

use super::findings::{JunitFinding, JunitGrade, JunitRule};
use super::reader::{JunitError, JunitSummary, read_cases};
use super::text::cut;

/// In bytes. Texts of failures beyond this sum are cut to [`SHORT_TEXT`].
const FULL_TEXTS: usize = 64 << 20;
/// In bytes.
const SHORT_TEXT: usize = 1024;
/// More details of one test are dropped.
const MAX_DETAILS: usize = 1000;
/// Older suites are from another run. Their timestamps often lack a zone.
const STALE: SignedDuration = SignedDuration::from_hours(24);

#[derive(Debug)]
pub struct TestReport {
    /// In the order of their first attempts.
    pub cases: Vec<TestCase>,
    pub tally: TestTally,
    /// Of all attempts of all tests, in seconds.
    pub time: f64,
    pub summary: JunitSummary,
}

impl TestReport {
    /// Reads a report. One that is truncated, or stops being XML, yields the tests up to there.
    pub fn read(input: impl Read) -> Result<Self, JunitError> {
        let hasher = DefaultHashBuilder::default();
        let hash = |case: &TestCase| hasher.hash_one(identity(case));
        let mut cases: Vec<TestCase> = Vec::new();
        // Positions in `cases`.
        let mut positions: HashTable<u32> = HashTable::new();
        let mut texts = 0;
        let summary = read_cases(input, |mut case| {
            limit_texts(&mut case, &mut texts);
            let position = cases.len() as u32;
            if case.name.trim().is_empty() && case.kind == TestRowKind::Test {
                cases.push(case);
                return;
            }
            let entry = positions.entry(
                hash(&case),
                |at| identity(&cases[*at as usize]) == identity(&case),
                |at| hash(&cases[*at as usize]),
            );
            match entry {
                Entry::Occupied(earlier) => add_attempt(&mut cases[*earlier.get() as usize], case),
                Entry::Vacant(vacant) => {
                    vacant.insert(position);
                    cases.push(case);
                }
            }
        })?;
        let mut tally = TestTally::default();
        cases.iter().for_each(|case| tally.count(case));
        let time = cases.iter().filter_map(|case| case.time).sum();
        Ok(Self { cases, tally, time, summary })
    }

    /// Adds a finding if a suite ran long before `now`.
    pub fn check_age(&mut self, now: Timestamp) {
        if let Some((time, line)) = self.summary.earliest
            && now.duration_since(time) > STALE
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
}

fn identity(case: &TestCase) -> (&Arc<str>, &Arc<str>, &str) {
    (&case.suite, &case.classname, &case.name)
}

/// A later attempt of the same test: its result counts. What is said of a suite repeatedly is one
/// failure.
fn add_attempt(case: &mut TestCase, later: TestCase) {
    if later.kind == TestRowKind::Test {
        let has_failed = case.result.is_failed() || has_rerun(case) || has_rerun(&later);
        for detail in &mut case.details {
            if detail.kind != TestDetailKind::Skipped {
                detail.kind = TestDetailKind::Rerun;
            }
        }
        case.kind = later.kind;
        case.attempts = case.attempts.saturating_add(later.attempts);
        case.result = later.result;
        case.flaky = later.result == TestResult::Success && has_failed;
    }
    case.details.extend(later.details);
    case.details.truncate(MAX_DETAILS);
    case.time = match (case.time, later.time) {
        (Some(first), Some(second)) => Some(first + second),
        (first, second) => first.or(second),
    };
    case.file = case.file.take().or(later.file);
}

fn has_rerun(case: &TestCase) -> bool {
    case.details.iter().any(|detail| detail.kind == TestDetailKind::Rerun)
}

fn limit_texts(case: &mut TestCase, texts: &mut usize) {
    for text in case.details.iter_mut().flat_map(|detail| [&mut detail.message, &mut detail.text]) {
        let Some(text) = text else { continue };
        if *texts > FULL_TEXTS {
            cut(text, SHORT_TEXT);
            text.shrink_to_fit();
        }
        *texts += text.len();
    }
}
