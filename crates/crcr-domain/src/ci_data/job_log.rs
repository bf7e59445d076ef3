//! What the log of a failed job says about the failure.

use serde::{Deserialize, Serialize};

/// The line of a log that explains why the job failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogMatch {
    /// Name of the rule; `None` if the line was found by comparing with a green run.
    pub rule: Option<String>,
    /// The rule's category.
    pub category: Option<String>,
    /// Counted from 1.
    pub line_number: u64,
    /// Without timestamp and escape sequences; a very long line is cut.
    pub line: String,
    /// The rule's capture groups; the whole match if it has none. Failures with the same rule and
    /// the same captures are taken to have the same cause.
    pub captures: Vec<String>,
    /// A few lines before and after, with the line itself.
    pub context: Vec<String>,
    pub by: LogMatchSource,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogMatchSource {
    Rule,
    /// The line never occurs in the last green run of the job.
    Diff,
}

impl LogMatchSource {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rule => "rule",
            Self::Diff => "diff",
        }
    }
}

/// A line that never occurs in the last green run of the job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NovelLine {
    /// Counted from 1.
    pub line_number: u64,
    pub line: String,
}

/// Everything that is known about a log.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogClassification {
    #[serde(rename = "match")]
    pub found: Option<LogMatch>,
    /// The most telling first: rare lines, then those near the end. Empty without a baseline.
    pub novel: Vec<NovelLine>,
}
