//! What is wrong with a report.

use std::fmt;

/// More findings of one rule are counted only.
const MAX_PER_RULE: usize = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum JunitRule {
    /// The report ends early.
    Truncated,
    /// It stops being XML.
    Malformed,
    MissingName,
    LongName,
    NoDuration,
    BadDuration,
    StaleTimestamp,
    NoTests,
    /// A suite that failed outside its tests, or whose program crashed.
    SuiteFailure,
    /// A suite, or the report, that declares more failures and errors than its tests have.
    FailureCount,
    /// A sum of failures that isn't a number.
    BadSum,
    /// A result in words that aren't known.
    UnknownResult,
    /// A suite that declares more tests than it has.
    TestCount,
    /// A test whose status says that it failed, without an element that says why.
    StatusOnly,
    /// A test of gotestsum or XCTest that failed and passed: as a rerun, which other repetitions look like, too.
    GuessedRerun,
    /// A test that CTest or GoogleTest couldn't run, which fails the run.
    NotRun,
    /// A `<warning>`, which doesn't count as a failure.
    Warning,
    DuplicateAttribute,
    BadAttribute,
    ControlCharacter,
    UnknownEntity,
    Encoding,
    /// Lines among those of `go test -json` that aren't JSON.
    OtherLines,
    /// More failures, skips and reruns of a test than are kept.
    ManyDetails,
}

crcr_domain::names! {
    JunitRule {
        Truncated "truncated", Malformed "malformed", MissingName "missing-name",
        LongName "long-name", NoDuration "no-duration", BadDuration "bad-duration",
        StaleTimestamp "stale-timestamp", NoTests "no-tests", SuiteFailure "suite-failure",
        FailureCount "failure-count", BadSum "bad-sum", UnknownResult "unknown-result",
        TestCount "test-count", StatusOnly "status-only", GuessedRerun "guessed-rerun",
        NotRun "not-run", Warning "warning", DuplicateAttribute "duplicate-attribute",
        BadAttribute "bad-attribute", ControlCharacter "control-character",
        UnknownEntity "unknown-entity", Encoding "encoding", OtherLines "other-lines",
        ManyDetails "many-details",
    }
}

impl JunitRule {
    /// Whether tests or results may be missing or mixed up.
    fn makes_invalid(self) -> bool {
        matches!(
            self,
            Self::Truncated
                | Self::Malformed
                | Self::MissingName
                | Self::FailureCount
                | Self::BadSum
                | Self::UnknownResult
        )
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JunitFinding {
    pub rule: JunitRule,
    pub line: u64,
    pub message: String,
}

/// How well a report can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum JunitGrade {
    Valid,
    /// Every test counts, but something about it is missing or had to be guessed.
    Suboptimal,
    /// Tests or results may be missing.
    Invalid,
}

crcr_domain::names! { JunitGrade { Valid "valid", Suboptimal "suboptimal", Invalid "invalid" } }

impl JunitGrade {
    pub fn of(findings: &[JunitFinding]) -> Self {
        match findings {
            [] => Self::Valid,
            _ if findings.iter().any(|finding| finding.rule.makes_invalid()) => Self::Invalid,
            _ => Self::Suboptimal,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct FindingList {
    findings: Vec<JunitFinding>,
    counts: [usize; JunitRule::ALL.len()],
}

impl FindingList {
    pub(crate) fn add(&mut self, rule: JunitRule, line: u64, message: impl fmt::Display) {
        let count = &mut self.counts[rule as usize];
        *count += 1;
        if *count <= MAX_PER_RULE {
            self.findings.push(JunitFinding { rule, line, message: message.to_string() });
        }
    }

    pub(crate) fn finish(mut self) -> Vec<JunitFinding> {
        for rule in 0..JunitRule::ALL.len() {
            let more = self.counts[rule].saturating_sub(MAX_PER_RULE);
            let last = self.findings.iter_mut().rev().find(|finding| finding.rule as usize == rule);
            if let Some(last) = last.filter(|_| more > 0) {
                last.message.push_str(&format!(", and {more} more"));
            }
        }
        self.findings.sort_by_key(|finding| finding.line);
        self.findings
    }
}
