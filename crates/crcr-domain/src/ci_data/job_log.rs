//! What the log of a failed job says about the failure.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The line of a log that explains why the job failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct LogMatch {
    /// Name of the rule that knows the line.
    pub rule: Option<String>,
    pub category: Option<String>,
    pub line_number: u64,
    /// Without timestamp and escape sequences; a very long line is cut.
    pub line: String,
    /// The rule's capture groups; the whole match if it has none. Failures with the same rule and
    /// the same captures are taken to have the same cause.
    pub captures: Vec<String>,
    /// A few lines before and after, with the line itself.
    pub context: Vec<String>,
    pub by: LogMatchSource,
    /// How certain it is that this line explains the failure, from 0 to 100.
    pub certainty_percent: u8,
    /// What speaks for and against the line, the most important first. Empty if a rule that counts anywhere in a log
    /// found it.
    pub reasons: Vec<LogReason>,
}

/// Something that speaks for a line of a log, or against it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct LogReason {
    pub name: String,
    /// Negative if it speaks against the line.
    pub points: f32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogMatchSource {
    Rule,
    /// What speaks for the line, among that that it never occurs in the last green run of the job.
    Diff,
    /// What speaks for the line.
    Evidence,
}

names! { LogMatchSource { Rule "rule", Diff "diff", Evidence "evidence" } }

/// A line that never occurs in the last green run of the job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct NovelLine {
    pub line_number: u64,
    pub line: String,
}

/// Everything that is known about a log.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct LogClassification {
    /// `None` if nothing in the log says why, or no line is certain enough.
    #[serde(rename = "match")]
    pub found: Option<LogMatch>,
    /// Up to three lines that may explain it, the most certain first.
    pub candidates: Vec<LogMatch>,
    /// The most telling first: rare lines, then those near the end. Empty without a baseline.
    pub novel: Vec<NovelLine>,
}

/// A job of GitHub Actions that has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct EndedJob {
    pub repository: String,
    pub run_id: u64,
    pub run_attempt: u64,
    pub job_id: u64,
    pub job_name: String,
    pub workflow: String,
    pub branch: String,
    pub head_sha: String,
    pub completed_at: Timestamp,
}

impl EndedJob {
    pub fn title(&self) -> String {
        match self.workflow.as_str() {
            "" => self.job_name.clone(),
            workflow => format!("{workflow} / {}", self.job_name),
        }
    }
}

/// What became of the log of a failed job.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct JobLogRow {
    #[serde(flatten)]
    pub job: EndedJob,
    pub looked_at: Timestamp,
    /// The key of the log in the object store, if it is kept.
    pub log_key: Option<String>,
    #[serde(flatten)]
    pub outcome: JobLogOutcome,
}

#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobLogOutcome {
    Classified(Box<LogClassification>),
    NoLog(NoLogReason),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NoLogReason {
    /// GitHub has deleted it, or the job never started.
    Gone,
    TooLarge,
    /// GitHub doesn't give it to the App.
    Refused,
}

names! { NoLogReason { Gone "gone", TooLarge "too_large", Refused "refused" } }

impl NoLogReason {
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Gone => "GitHub has no log of this job",
            Self::TooLarge => "the log of this job is too large to be read",
            Self::Refused => "GitHub doesn't let the App read the log of this job",
        }
    }
}

/// Failures with the same cause, as far as their logs tell. All texts are empty where there is nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, schemars::JsonSchema)]
pub struct FailureCause {
    pub category: String,
    pub rule: String,
    /// The rule's first capture, or the line without a rule.
    pub capture: String,
}

impl JobLogRow {
    pub fn classification(&self) -> Option<&LogClassification> {
        match &self.outcome {
            JobLogOutcome::Classified(classification) => Some(classification),
            JobLogOutcome::NoLog(_) => None,
        }
    }

    pub fn no_log_reason(&self) -> Option<NoLogReason> {
        match &self.outcome {
            JobLogOutcome::Classified(_) => None,
            JobLogOutcome::NoLog(reason) => Some(*reason),
        }
    }

    pub fn cause(&self) -> FailureCause {
        let Some(found) = self.classification().and_then(|known| known.found.as_ref()) else {
            return FailureCause::default();
        };
        FailureCause {
            category: found.category.clone().unwrap_or_default(),
            rule: found.rule.clone().unwrap_or_default(),
            capture: found.captures.first().unwrap_or(&found.line).chars().take(500).collect(),
        }
    }

    /// The start of the line that explains the failure, for lists.
    pub fn short_line(&self) -> String {
        let found = self.classification().and_then(|known| known.found.as_ref());
        found.map(|found| found.line.chars().take(300).collect()).unwrap_or_default()
    }

    /// Of several rows of one job, the one with the greatest version is current: a classification is
    /// never replaced by a reason why there is no log.
    pub fn version(&self) -> u64 {
        const CLASSIFIED: u64 = 1 << 62;
        let time = self.looked_at.as_millisecond().max(0).cast_unsigned();
        if self.classification().is_some() { CLASSIFIED | time } else { time }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(outcome: JobLogOutcome, second: i64) -> JobLogRow {
        JobLogRow {
            job: EndedJob {
                repository: "acme/backend".to_owned(),
                run_id: 1,
                run_attempt: 1,
                job_id: 2,
                job_name: "test".to_owned(),
                workflow: "CI".to_owned(),
                branch: "main".to_owned(),
                head_sha: "0".repeat(40),
                completed_at: Timestamp::UNIX_EPOCH,
            },
            looked_at: Timestamp::from_second(second).unwrap(),
            log_key: None,
            outcome,
        }
    }

    fn classified(found: Option<LogMatch>) -> JobLogOutcome {
        JobLogOutcome::Classified(Box::new(LogClassification {
            found,
            ..LogClassification::default()
        }))
    }

    fn found(captures: &[&str]) -> LogMatch {
        serde_json::from_value(serde_json::json!({
            "rule": "oom", "category": "infra", "by": "rule", "line_number": 7,
            "line": "x".repeat(600), "captures": captures, "context": [],
            "certainty_percent": 90, "reasons": [],
        }))
        .unwrap()
    }

    #[test]
    fn failure_is_listed_by_its_cause_and_the_start_of_its_line() {
        let known = row(classified(Some(found(&["cuda"]))), 1);
        let cause = |capture: String| FailureCause {
            category: "infra".to_owned(),
            rule: "oom".to_owned(),
            capture,
        };
        assert_eq!(known.cause(), cause("cuda".to_owned()));
        assert_eq!(known.short_line(), "x".repeat(300));
        let without = row(classified(Some(found(&[]))), 1);
        assert_eq!(without.cause(), cause("x".repeat(500)));
        for nothing in [classified(None), JobLogOutcome::NoLog(NoLogReason::Gone)] {
            let nothing = row(nothing, 1);
            assert_eq!((nothing.cause(), &*nothing.short_line()), (FailureCause::default(), ""));
        }
        assert_eq!(known.job.title(), "CI / test");
        let unnamed = EndedJob { workflow: String::new(), ..known.job };
        assert_eq!(unnamed.title(), "test");
    }

    #[test]
    fn classification_is_not_replaced_by_a_reason_why_there_is_no_log() {
        let lost = row(JobLogOutcome::NoLog(NoLogReason::Refused), 9);
        let known = |second| row(classified(None), second);
        assert!(known(1).version() > lost.version());
        assert!(known(2).version() > known(1).version());
        assert!(lost.version() > row(lost.outcome.clone(), 8).version());
        assert_eq!(
            (lost.classification(), lost.no_log_reason()),
            (None, Some(NoLogReason::Refused))
        );
        assert_eq!(known(1).classification(), Some(&LogClassification::default()));
        assert_eq!(known(1).no_log_reason(), None);
    }

    #[test]
    fn reason_without_log_is_stored_under_its_name_and_read_again() {
        for reason in NoLogReason::ALL {
            assert_eq!(serde_json::to_value(reason).unwrap(), reason.as_str());
            assert_eq!(NoLogReason::from_name(reason.as_str()), Some(reason));
            assert!(reason.sentence().contains("log of this job"));
        }
        assert_eq!(NoLogReason::from_name("Gone"), None);
        for source in [LogMatchSource::Rule, LogMatchSource::Diff, LogMatchSource::Evidence] {
            assert_eq!(serde_json::to_value(source).unwrap(), source.as_str());
        }
    }
}
