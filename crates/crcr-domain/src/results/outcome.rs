//! How an attempt of a job turned out, with infrastructure and tests kept apart.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::checks::lifecycle::{Conclusion, JobState};
use crate::results::facts::AttemptFact;

/// How an ended attempt turned out.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum JobOutcome {
    /// Dispatched, and nothing was heard in time.
    NeverStarted,
    /// Started, and its end was not heard in time.
    Lost,
    TimedOut,
    /// Cancelled because the pull request has a newer head.
    Superseded,
    Cancelled,
    /// Failed before it got to the commit: in the checkout, the set-up or the build of the
    /// environment.
    InfraFailed,
    /// Failed in what it is there to test: in the commit's own build, or in its tests.
    TestFailed,
    Passed,
    /// Passed, after an earlier attempt on the same commit had failed.
    PassedAfterRerun,
    /// Says nothing: neutral, skipped, or waiting for a person for too long.
    Neutral,
}

names! {
    JobOutcome {
        NeverStarted "never_started", Lost "lost", TimedOut "timed_out", Superseded "superseded",
        Cancelled "cancelled", InfraFailed "infra_failed", TestFailed "test_failed",
        Passed "passed", PassedAfterRerun "passed_after_rerun", Neutral "neutral",
    }
}

impl JobOutcome {
    /// Whether the attempt says something about the commit. Availability counts these.
    pub fn is_verdict(self) -> bool {
        matches!(self, Self::TestFailed | Self::Passed | Self::PassedAfterRerun | Self::Neutral)
    }

    /// Whether it passed, possibly after a re-run.
    pub fn is_pass(self) -> bool {
        matches!(self, Self::Passed | Self::PassedAfterRerun)
    }

    /// Whether it turns a commit of a branch red. A cancelled job leaves open what it would have come to.
    pub fn is_failure(self) -> bool {
        !self.is_pass() && !matches!(self, Self::Superseded | Self::Neutral | Self::Cancelled)
    }
}

/// Failures in these phases say nothing about the commit. `build` isn't included, because a commit that
/// doesn't build has failed. The documentation of `report-ci-result` lists them.
const INFRA_PHASES: [&str; 4] = ["checkout", "setup", "environment", "build-environment"];

/// The outcome of an attempt; `None` while it runs.
///
/// `superseded`: the pull request had a newer head when the attempt ended. `failed_before`: an
/// earlier attempt of the same job on the same commit failed.
pub fn outcome(row: &AttemptFact, superseded: bool, failed_before: bool) -> Option<JobOutcome> {
    Some(match row.state {
        JobState::Dispatched | JobState::InProgress => return None,
        JobState::NeverStarted => JobOutcome::NeverStarted,
        JobState::Lost => JobOutcome::Lost,
        JobState::Completed(Conclusion::TimedOut) => JobOutcome::TimedOut,
        JobState::Completed(Conclusion::Cancelled) if superseded => JobOutcome::Superseded,
        JobState::Completed(Conclusion::Cancelled) => JobOutcome::Cancelled,
        JobState::Completed(Conclusion::StartupFailure) => JobOutcome::InfraFailed,
        JobState::Completed(Conclusion::Failure) => {
            let phase = row.details.phase.as_deref().unwrap_or_default();
            let infra = INFRA_PHASES.iter().any(|name| phase.eq_ignore_ascii_case(name));
            if infra { JobOutcome::InfraFailed } else { JobOutcome::TestFailed }
        }
        JobState::Completed(Conclusion::Success) if failed_before => JobOutcome::PassedAfterRerun,
        JobState::Completed(Conclusion::Success) => JobOutcome::Passed,
        JobState::Completed(
            Conclusion::Neutral
            | Conclusion::Skipped
            | Conclusion::Stale
            | Conclusion::ActionRequired,
        ) => JobOutcome::Neutral,
    })
}

#[cfg(test)]
mod tests {
    use super::INFRA_PHASES;

    #[test]
    fn report_action_documents_all_infrastructure_phases() {
        for page in [
            include_str!("../../../../actions/report-ci-result/action.yml"),
            include_str!("../../../../actions/report-ci-result/README.md"),
        ] {
            let words = page.split_whitespace().collect::<Vec<_>>().join(" ");
            let (first, last) = INFRA_PHASES.split_at(INFRA_PHASES.len() - 1);
            let list = format!("`{}` or `{}`", first.join("`, `"), last[0]);
            assert!(words.contains(&list), "{list} isn't in\n{page}");
        }
    }
}
