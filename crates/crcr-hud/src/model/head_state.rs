//! What a backend says of a head.

use crcr_domain::results::JobOutcome;
use crcr_domain::results::facts::DispatchFactStatus;
use serde::Serialize;

/// What a backend says of a head: the worst of its jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HeadState {
    /// Its tests failed.
    Failed,
    /// Something else than its tests: infrastructure, time, or no report at all.
    Broken,
    Running,
    Passed,
    /// It didn't run, and nothing waits for it.
    Skipped,
}

impl HeadState {
    /// `unproven` results change no check run, so the check waits for proven ones.
    pub(crate) fn of_job(outcome: Option<JobOutcome>, unproven: bool) -> Self {
        match outcome {
            _ if unproven => Self::Broken,
            None => Self::Running,
            Some(JobOutcome::TestFailed) => Self::Failed,
            Some(JobOutcome::Neutral | JobOutcome::Superseded) => Self::Skipped,
            Some(outcome) if outcome.is_pass() => Self::Passed,
            Some(_) => Self::Broken,
        }
    }

    /// The state of a backend that has no jobs yet.
    pub(crate) fn of_dispatch(status: DispatchFactStatus) -> Self {
        match status {
            DispatchFactStatus::Sent | DispatchFactStatus::Queued => Self::Running,
            // The backend doesn't take it by its own file, so nothing is missing.
            DispatchFactStatus::LeftOut => Self::Skipped,
            _ => Self::Broken,
        }
    }

    pub(crate) fn class(self) -> &'static str {
        match self {
            Self::Failed => "bad",
            Self::Broken => "infra",
            Self::Running => "running",
            Self::Passed => "good",
            Self::Skipped => "muted",
        }
    }

    pub(crate) fn glyph(self) -> &'static str {
        match self {
            Self::Failed => "✗",
            Self::Broken => "⚠",
            Self::Running => "◐",
            Self::Passed => "✓",
            Self::Skipped => "–",
        }
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Broken => "broken",
            Self::Running => "running",
            Self::Passed => "passed",
            Self::Skipped => "skipped",
        }
    }
}
