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

impl JunitRule {
    const COUNT: usize = Self::ManyDetails as usize + 1;

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Truncated => "truncated",
            Self::Malformed => "malformed",
            Self::MissingName => "missing-name",
            Self::LongName => "long-name",
            Self::NoDuration => "no-duration",
            Self::BadDuration => "bad-duration",
            Self::StaleTimestamp => "stale-timestamp",
            Self::NoTests => "no-tests",
            Self::SuiteFailure => "suite-failure",
            Self::FailureCount => "failure-count",
            Self::BadSum => "bad-sum",
            Self::UnknownResult => "unknown-result",
            Self::TestCount => "test-count",
            Self::StatusOnly => "status-only",
            Self::GuessedRerun => "guessed-rerun",
            Self::NotRun => "not-run",
            Self::Warning => "warning",
            Self::DuplicateAttribute => "duplicate-attribute",
            Self::BadAttribute => "bad-attribute",
            Self::ControlCharacter => "control-character",
            Self::UnknownEntity => "unknown-entity",
            Self::Encoding => "encoding",
            Self::OtherLines => "other-lines",
            Self::ManyDetails => "many-details",
        }
    }

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

impl JunitGrade {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Valid => "valid",
            Self::Suboptimal => "suboptimal",
            Self::Invalid => "invalid",
        }
    }

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
    counts: [usize; JunitRule::COUNT],
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
        for rule in 0..JunitRule::COUNT {
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
