//! Facts: append-only records of everything that happened. Dashboards, rates and reviews are computed from
//! facts only.

use jiff::{SignedDuration, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::allowlist::level::Level;
use crate::checks::check_run::CheckRunStatus;
use crate::checks::lifecycle::{Conclusion, JobState};
use crate::checks::proof::MissingProof;
use crate::protocol::callback::ReportDetails;
use crate::protocol::dispatch::DispatchStatus;
use crate::protocol::event::EventName;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "fact")]
pub enum Fact {
    /// A dispatch was created or changed its status.
    Dispatch(DispatchFact),
    /// An attempt of a downstream job changed its state.
    Attempt(Box<AttemptFact>),
    Callback(CallbackFact),
    /// The merge base of a pull request became known.
    MergeBase(MergeBaseFact),
    /// The check run of a backend's verdict changed.
    Check(CheckFact),
}

/// The status of a dispatch at time `at`. For each delivery and repository, the row with the highest
/// [`DispatchFact::version`] wins.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DispatchFact {
    pub at: Timestamp,
    pub delivery: String,
    pub upstream: String,
    pub pull_request: Option<u64>,
    pub head_sha: String,
    pub event: EventName,
    pub repo: String,
    /// The level when the event arrived.
    pub level: Level,
    /// The pull request's labels when the event arrived.
    pub labels: Vec<String>,
    /// When the event was accepted.
    pub enqueued_at: Timestamp,
    /// When GitHub accepted the dispatch.
    pub sent_at: Option<Timestamp>,
    pub status: DispatchFactStatus,
    /// The delivery that replaced it.
    pub superseded_by: Option<String>,
    /// Number of calls to GitHub.
    pub tries: u32,
    pub last_error: Option<String>,
}

/// The state of one attempt of a downstream job at `received_at`.
///
/// For each key (repository, delivery, workflow, job, run, attempt, check run) the row with the highest
/// [`AttemptFact::version`] wins, so that a late `in_progress` doesn't hide the conclusion.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AttemptFact {
    /// When the relay received the report.
    pub received_at: Timestamp,
    /// When the upstream event was accepted; for self-reports, when the report arrived. An attempt is
    /// assigned to time windows by this time, so that its duration doesn't move it to another window.
    pub dispatched_at: Timestamp,
    pub repo: String,
    /// For self-reports what the reporter calls it.
    pub delivery: String,
    pub workflow: String,
    pub job: Option<String>,
    pub run_id: String,
    pub run_attempt: u32,
    pub state: JobState,
    /// The job ended without a report of its start.
    pub start_unknown: bool,
    /// Seconds from dispatch to start, by the relay's clock; `None` when unknown.
    pub queue_seconds: Option<f64>,
    /// Seconds from start to end, by the relay's clock; `None` when unknown.
    pub execution_seconds: Option<f64>,
    /// What its reports say, which pages show.
    pub details: ReportDetails,
    /// Why the result isn't proven: at levels that require proof, and of self-reports.
    pub missing_proof: Option<MissingProof>,
    /// How the job ends on purpose. Such a job shows whether the relay works, and isn't counted for the backend.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<Conclusion>,
    pub level: Level,
    pub event: EventName,
    pub upstream: String,
    pub pull_request: Option<u64>,
    /// Empty for a self-report that names no upstream commit.
    pub head_sha: String,
}

/// How far a dispatch got, as facts record it.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum DispatchFactStatus {
    Dead,
    /// The backend's own file leaves it out.
    LeftOut,
    /// It was sent, and no report came in time.
    NeverStarted,
    Queued,
    RepositoryChanged,
    Sent,
    Superseded,
    Unreachable,
}

names! {
    DispatchFactStatus {
        Dead "dead", LeftOut "left_out", NeverStarted "never_started", Queued "queued",
        RepositoryChanged "repository_changed", Sent "sent", Superseded "superseded",
        Unreachable "unreachable",
    }
}

impl DispatchFactStatus {
    /// Whether the dispatch came to nothing, and neither the backend's own file nor a newer head is the reason.
    pub fn came_to_nothing(self) -> bool {
        !matches!(self, Self::LeftOut | Self::Queued | Self::Sent | Self::Superseded)
    }
}

impl From<&DispatchStatus> for DispatchFactStatus {
    fn from(status: &DispatchStatus) -> Self {
        match status {
            DispatchStatus::Queued => Self::Queued,
            DispatchStatus::Sent { .. } => Self::Sent,
            DispatchStatus::Superseded { .. } => Self::Superseded,
            DispatchStatus::Dead => Self::Dead,
            // A backend whose infrastructure fails isn't available, whoever notices first.
            DispatchStatus::Unreachable | DispatchStatus::Withheld => Self::Unreachable,
            DispatchStatus::RepositoryChanged => Self::RepositoryChanged,
            DispatchStatus::LeftOut { .. } => Self::LeftOut,
        }
    }
}

impl DispatchFact {
    /// Orders rows of one key: by time, and within a millisecond by the order of statuses.
    pub fn version(&self) -> (i64, u8) {
        let rank = match self.status {
            DispatchFactStatus::Queued => 0,
            DispatchFactStatus::Sent => 1,
            DispatchFactStatus::Dead
            | DispatchFactStatus::LeftOut
            | DispatchFactStatus::RepositoryChanged
            | DispatchFactStatus::Unreachable => 2,
            DispatchFactStatus::NeverStarted => 3,
            DispatchFactStatus::Superseded => 4,
        };
        (self.at.as_millisecond(), rank)
    }
}

impl AttemptFact {
    /// Orders rows of one key.
    pub fn version(&self) -> (u32, u8, Timestamp) {
        (self.run_attempt, self.state.rank(), self.received_at)
    }

    /// Whether something may be concluded from it. A self-report without a commit of upstream, or from a run
    /// that anybody could have started, is only shown.
    pub fn is_evidence(&self) -> bool {
        let names_commit = !self.head_sha.is_empty() && self.missing_proof.is_none();
        !self.event.is_self_reported() || names_commit
    }

    /// The commit, or else the run: what belongs together on pages and in rates.
    pub fn commit_or_run(&self) -> &str {
        if self.head_sha.is_empty() { &self.run_id } else { &self.head_sha }
    }

    /// When the attempt began: dispatch time plus queue time, or when the report arrived if the queue time
    /// isn't known.
    pub fn began(&self) -> Timestamp {
        let queue = self.queue_seconds.and_then(|s| SignedDuration::try_from_secs_f64(s).ok());
        queue
            .and_then(|queue| self.dispatched_at.checked_add(queue).ok())
            .unwrap_or(self.received_at)
    }
}

/// The merge base of a pull request. Results on this commit show whether a failure is new in the pull
/// request. For each head the newest row wins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergeBaseFact {
    pub at: Timestamp,
    pub upstream: String,
    pub pull_request: u64,
    pub head_sha: String,
    pub merge_base: String,
    /// The date of its committer, not of its author.
    pub committed_at: Timestamp,
    /// Files that the head changes since then, as many as [`MergeBaseFact::some_files`] keeps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changed_files: Vec<String>,
}

impl MergeBaseFact {
    /// The archive of webhooks has these beside them, as if they were of this event: GitHub is asked only once.
    pub const EVENT: &str = "merge_base";
    const MAX_FILES_BYTES: usize = 16 * 1024;

    /// The first files, in the order of GitHub's list, whose names take 16 KiB at most.
    pub fn some_files(files: impl IntoIterator<Item = String>) -> Vec<String> {
        let mut bytes = 0;
        let fits = |file: &String| {
            bytes += file.len();
            bytes <= Self::MAX_FILES_BYTES
        };
        files.into_iter().take_while(fits).collect()
    }
}

/// What the check run with a backend's verdict on an upstream commit shows. Jobs that passed don't say it: the verdict may
/// wait for runs that GitHub hasn't listed yet. For each commit and backend the newest row wins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckFact {
    pub at: Timestamp,
    pub upstream: String,
    pub head_sha: String,
    pub repo: String,
    pub status: CheckRunStatus,
    /// Its title, which says why.
    pub title: String,
}

/// A received report, accepted or not. `delivery` to `conclusion` are what its body says, unchecked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallbackFact {
    pub at: Timestamp,
    /// The repository of the verified token; `None` if the token is invalid.
    pub repo: Option<String>,
    pub delivery: Option<String>,
    pub run_id: Option<String>,
    pub job: Option<String>,
    pub status: Option<String>,
    pub conclusion: Option<String>,
    pub outcome: CallbackOutcome,
    /// HTTP status of the response.
    pub answer: u16,
    /// Why the report was rejected.
    pub detail: Option<String>,
    /// From request to response.
    pub latency_ms: f64,
}

/// How the relay handled a report.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum CallbackOutcome {
    Accepted,
    /// Stored and shown as reported without proof; changed no check run.
    Unproven,
    Duplicate,
    Stale,
    /// At the repository's level results aren't stored.
    BelowLevel,
    /// No such dispatch, or its state doesn't allow the report.
    RejectedState,
    RateLimited,
    /// The token is invalid or belongs to something else.
    BadToken,
    BadBody,
    /// The name belongs to a new repository that no operator has confirmed.
    RepositoryChanged,
}

names! {
    CallbackOutcome {
        Accepted "accepted", Unproven "unproven", Duplicate "duplicate", Stale "stale",
        BelowLevel "below_level", RejectedState "rejected_state", RateLimited "rate_limited",
        BadToken "bad_token", BadBody "bad_body", RepositoryChanged "repository_changed",
    }
}

impl CallbackOutcome {
    /// Whether the report is stored with its job.
    pub fn is_stored(self) -> bool {
        matches!(self, Self::Accepted | Self::Unproven)
    }

    /// Whether the report was valid, even if the level ignores it.
    pub fn is_valid(self) -> bool {
        matches!(self, Self::Accepted | Self::Duplicate | Self::Stale | Self::BelowLevel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_of_a_pull_request_take_a_bounded_space() {
        let named = |bytes: usize| "a".repeat(bytes);
        assert_eq!(MergeBaseFact::some_files(["a.py".to_owned(), named(20_000)]), ["a.py"]);
        let many = MergeBaseFact::some_files(std::iter::repeat_n(named(4_000), 300));
        assert_eq!(many.len(), 4, "16 KiB");
        let most = MergeBaseFact::MAX_FILES_BYTES;
        assert_eq!(MergeBaseFact::some_files([named(most)]).len(), 1);
        assert!(MergeBaseFact::some_files([named(most + 1)]).is_empty());
    }
}
