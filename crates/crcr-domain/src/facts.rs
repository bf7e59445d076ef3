//! What is kept of everything that happened: append-only rows, one type each.
//!
//! Dashboards, rates and reviews are computed from these and from nothing else.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::callback::{FailedTest, TestCounts};
use crate::dispatch::DispatchStatus;
use crate::event::EventName;
use crate::level::Level;
use crate::lifecycle::JobState;
use crate::proof::MissingProof;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "fact")]
pub enum Fact {
    /// An event for one downstream repository got somewhere.
    Dispatch(DispatchFact),
    /// A downstream job's attempt got somewhere.
    Attempt(Box<AttemptFact>),
    Callback(CallbackFact),
    /// Where a pull request branched off was learned.
    MergeBase(MergeBaseFact),
}

/// An upstream event for one downstream repository, as it stands at `at`. Of the rows of a
/// (delivery, repository) the one with the greatest [`DispatchFact::version`] holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DispatchFact {
    /// When this row was written.
    pub at: Timestamp,
    pub delivery: String,
    pub upstream: String,
    /// The pull request, if there is one.
    pub pull_request: Option<u64>,
    pub head_sha: String,
    pub event: EventName,
    pub repo: String,
    /// Its level when the event came.
    pub level: Level,
    /// The pull request's labels when the event came.
    pub labels: Vec<String>,
    /// When the event was accepted.
    pub enqueued_at: Timestamp,
    /// When GitHub took the dispatch.
    pub sent_at: Option<Timestamp>,
    pub status: DispatchFactStatus,
    /// The delivery that replaced it.
    pub superseded_by: Option<String>,
    /// Calls made to GitHub for it.
    pub tries: u32,
    /// Why the last of them failed.
    pub last_error: Option<String>,
}

/// One attempt of one downstream job, as it stands at `received_at`.
///
/// Of the rows with the same key (repository, delivery, workflow, job, run, attempt, check run)
/// the one with the greatest [`AttemptFact::version`] holds, so that a late `in_progress` can't
/// hide the end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AttemptFact {
    /// When the relay received what this row says.
    pub received_at: Timestamp,
    /// When the upstream event was accepted; of a self-report, when it was received. An attempt
    /// belongs to this time, so that it stays in one window however long it takes.
    pub dispatched_at: Timestamp,
    pub repo: String,
    /// The delivery; of a self-report, the upstream commit.
    pub delivery: String,
    pub workflow: String,
    pub job: Option<String>,
    pub run_id: String,
    /// The attempt, from 1.
    pub run_attempt: u32,
    /// The downstream job's own check run.
    pub check_run_id: Option<String>,
    /// Where the job is in its life.
    pub state: JobState,
    /// The job ended and its start was never heard.
    pub start_unknown: bool,
    /// What it was doing when it ended.
    pub phase: Option<String>,
    /// Seconds from dispatch to start, by the relay's clock; `None` when unknown.
    pub queue_seconds: Option<f64>,
    /// Seconds from start to end, by the relay's clock; `None` when unknown.
    pub execution_seconds: Option<f64>,
    /// The start as the reporter tells it.
    pub started_at: Option<Timestamp>,
    /// The end as the reporter tells it.
    pub completed_at: Option<Timestamp>,
    /// How many tests did what.
    pub tests: Option<TestCounts>,
    pub failed_tests: Vec<FailedTest>,
    pub url: Option<String>,
    pub artifact_url: Option<String>,
    pub environment: Option<String>,
    /// What its reports lack, at a level at which results need proof.
    #[serde(default)]
    pub missing_proof: Option<MissingProof>,
    pub level: Level,
    pub event: EventName,
    pub upstream: String,
    /// The pull request, if there is one.
    pub pull_request: Option<u64>,
    pub head_sha: String,
}

/// How far a dispatch got, as facts record it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DispatchFactStatus {
    Dead,
    /// It was sent, and no report came in time.
    NeverStarted,
    Queued,
    RepositoryChanged,
    Sent,
    Superseded,
    Unreachable,
}

impl DispatchFactStatus {
    pub const ALL: [Self; 7] = [
        Self::Dead,
        Self::NeverStarted,
        Self::Queued,
        Self::RepositoryChanged,
        Self::Sent,
        Self::Superseded,
        Self::Unreachable,
    ];

    /// The name in stores.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Dead => "dead",
            Self::NeverStarted => "never_started",
            Self::Queued => "queued",
            Self::RepositoryChanged => "repository_changed",
            Self::Sent => "sent",
            Self::Superseded => "superseded",
            Self::Unreachable => "unreachable",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == name)
    }
}

impl From<&DispatchStatus> for DispatchFactStatus {
    fn from(status: &DispatchStatus) -> Self {
        match status {
            DispatchStatus::Queued => Self::Queued,
            DispatchStatus::Sent { .. } => Self::Sent,
            DispatchStatus::Superseded { .. } => Self::Superseded,
            DispatchStatus::Dead => Self::Dead,
            DispatchStatus::Unreachable => Self::Unreachable,
            DispatchStatus::RepositoryChanged => Self::RepositoryChanged,
        }
    }
}

impl DispatchFact {
    /// What decides between rows of one key: time, and within a millisecond what can only follow.
    pub fn version(&self) -> (i64, u8) {
        let rank = match self.status {
            DispatchFactStatus::Queued => 0,
            DispatchFactStatus::Sent => 1,
            DispatchFactStatus::Dead
            | DispatchFactStatus::RepositoryChanged
            | DispatchFactStatus::Unreachable => 2,
            DispatchFactStatus::NeverStarted => 3,
            DispatchFactStatus::Superseded => 4,
        };
        (self.at.as_millisecond(), rank)
    }
}

impl AttemptFact {
    /// What decides between rows of one key.
    pub fn version(&self) -> (u32, u8, Timestamp) {
        (self.run_attempt, self.state.rank(), self.received_at)
    }

    /// When it began, as well as it is known: by its time in the queue, else when it was received.
    pub fn began(&self) -> Timestamp {
        let queue = self.queue_seconds.and_then(|s| SignedDuration::try_from_secs_f64(s).ok());
        queue
            .and_then(|queue| self.dispatched_at.checked_add(queue).ok())
            .unwrap_or(self.received_at)
    }
}

/// The commit that a pull request's head and its base branch have in common: what a backend reported
/// on it tells whether a failure came with the pull request. Of the rows of a head the newest holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergeBaseFact {
    pub at: Timestamp,
    pub upstream: String,
    pub pull_request: u64,
    pub head_sha: String,
    pub merge_base: String,
    /// When it was committed, as its committer tells.
    pub committed_at: Timestamp,
}

/// A report that came in, whatever became of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallbackFact {
    pub at: Timestamp,
    /// The repository that the token proves; `None` when it proves none.
    pub repo: Option<String>,
    /// The delivery that the body names.
    pub delivery: Option<String>,
    /// The run that the body names.
    pub run_id: Option<String>,
    /// The job that the body names.
    pub job: Option<String>,
    /// The status that the body reports.
    pub status: Option<String>,
    /// The conclusion that the body reports.
    pub conclusion: Option<String>,
    pub outcome: CallbackOutcome,
    /// The HTTP status of the answer.
    pub answer: u16,
    /// The text of a refusal.
    pub detail: Option<String>,
    /// Milliseconds from the request to the answer.
    pub latency_ms: f64,
}

/// What became of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallbackOutcome {
    Accepted,
    /// Stored and shown as reported without proof; no check run moved.
    Unproven,
    Duplicate,
    Stale,
    /// The repository's level has no results.
    BelowLevel,
    /// No such dispatch, or the state forbids it.
    RejectedState,
    RateLimited,
    /// The token doesn't hold, or not for this.
    BadToken,
    /// The body isn't what it has to be.
    BadBody,
    /// The name belongs to another repository than before, and no operator has confirmed that.
    RepositoryChanged,
}

impl CallbackOutcome {
    pub const ALL: [Self; 10] = [
        Self::Accepted,
        Self::Unproven,
        Self::Duplicate,
        Self::Stale,
        Self::BelowLevel,
        Self::RejectedState,
        Self::RateLimited,
        Self::BadToken,
        Self::BadBody,
        Self::RepositoryChanged,
    ];

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|outcome| outcome.as_str() == name)
    }

    /// The name in stores and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Unproven => "unproven",
            Self::Duplicate => "duplicate",
            Self::Stale => "stale",
            Self::BelowLevel => "below_level",
            Self::RejectedState => "rejected_state",
            Self::RateLimited => "rate_limited",
            Self::BadToken => "bad_token",
            Self::BadBody => "bad_body",
            Self::RepositoryChanged => "repository_changed",
        }
    }

    /// Whether the report is stored as part of its job.
    pub fn is_stored(self) -> bool {
        matches!(self, Self::Accepted | Self::Unproven)
    }

    /// Whether the report was one: a proven sender and a state that fits, at whatever level.
    pub fn is_valid(self) -> bool {
        matches!(self, Self::Accepted | Self::Duplicate | Self::Stale | Self::BelowLevel)
    }
}
