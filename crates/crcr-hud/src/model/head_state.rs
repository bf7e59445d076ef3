//! What a backend says of a head.

use crcr_domain::checks::check_run::CheckRunStatus;
use crcr_domain::checks::lifecycle::Conclusion;
use crcr_domain::results::facts::{CheckFact, DispatchFactStatus};
use crcr_domain::results::{JobOfRecord, JobOutcome};
use serde::Serialize;

/// What a backend says of a head: the worst of its jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum BackendOnHead {
    /// Its tests failed.
    Failed,
    /// Something else than its tests: infrastructure, time, or no report at all.
    Broken,
    Running,
    Passed,
    /// It didn't run, and nothing waits for it.
    Skipped,
}

impl BackendOnHead {
    /// The worst of the jobs, or how far the dispatch got. `check`: the check run that pull requests wait for, which knows
    /// whether more runs may come, what nobody knows, and that a backend which keeps failing blocks nobody.
    pub(crate) fn of_head<'a, 'b: 'a>(
        jobs: impl Iterator<Item = &'a JobOfRecord<'b>> + Clone,
        status: DispatchFactStatus,
        check: Option<&CheckFact>,
    ) -> Self {
        let state =
            |job: &JobOfRecord<'_>| Self::of_job(job.outcome, job.record.missing_proof.is_some());
        let Some(check) = check else {
            return jobs.map(state).min().unwrap_or_else(|| Self::of_dispatch(status));
        };
        let proven = jobs.filter(|job| job.record.missing_proof.is_none());
        let heard = proven.clone().map(|job| job.record.received_at).max();
        let found = proven.map(state).min();
        match check.status {
            CheckRunStatus::Queued | CheckRunStatus::InProgress => {
                found.map_or(Self::Running, |found| found.min(Self::Running))
            }
            // It follows a report within seconds; until it does, a failure still blocks.
            CheckRunStatus::Completed(conclusion)
                if conclusion.is_good() && heard > Some(check.at) =>
            {
                found.unwrap_or(Self::Running)
            }
            CheckRunStatus::Completed(Conclusion::Success) => Self::Passed,
            CheckRunStatus::Completed(conclusion) if conclusion.is_good() => Self::Skipped,
            CheckRunStatus::Completed(_) => {
                found.filter(|found| *found <= Self::Broken).unwrap_or(Self::Broken)
            }
        }
    }

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
            // The backend doesn't take it by its own file, or it stands for a newer head: nothing is missing.
            DispatchFactStatus::LeftOut | DispatchFactStatus::Superseded => Self::Skipped,
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
            Self::Broken => "not tested",
            Self::Running => "running",
            Self::Passed => "passed",
            Self::Skipped => "skipped",
        }
    }
}
