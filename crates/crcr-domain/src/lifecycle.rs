//! The life of one downstream job, as the relay sees it: one step at a time, by rank.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How a job ended: GitHub's values.
///
/// <https://docs.github.com/en/rest/checks/runs#create-a-check-run>
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Conclusion {
    Success,
    Failure,
    Neutral,
    /// Somebody or something stopped it.
    Cancelled,
    Skipped,
    TimedOut,
    ActionRequired,
    /// Given up by GitHub after 14 days.
    Stale,
    /// The workflow could not start.
    StartupFailure,
}

impl Conclusion {
    /// Every conclusion, the best first: of several jobs, the last one found here speaks for all.
    pub const BEST_TO_WORST: [Self; 9] = [
        Self::Skipped,
        Self::Success,
        Self::Neutral,
        Self::Stale,
        Self::ActionRequired,
        Self::Cancelled,
        Self::TimedOut,
        Self::StartupFailure,
        Self::Failure,
    ];

    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure => "failure",
            Self::Neutral => "neutral",
            Self::Cancelled => "cancelled",
            Self::Skipped => "skipped",
            Self::TimedOut => "timed_out",
            Self::ActionRequired => "action_required",
            Self::Stale => "stale",
            Self::StartupFailure => "startup_failure",
        }
    }

    /// Whether nobody has to look: success, neutral or skipped.
    pub fn is_good(self) -> bool {
        matches!(self, Self::Success | Self::Neutral | Self::Skipped)
    }

    /// Whether an oncall has to look: the conclusions that the deployed on-call bot acts on.
    pub fn alerts_oncall(self) -> bool {
        matches!(self, Self::Failure | Self::StartupFailure | Self::Cancelled | Self::TimedOut)
    }

    /// The worst of several; `None` of none.
    pub fn worst(all: impl IntoIterator<Item = Self>) -> Option<Self> {
        all.into_iter().max_by_key(|conclusion| conclusion.severity())
    }

    /// The place in [`Self::BEST_TO_WORST`]: the greater, the worse.
    pub fn severity(self) -> usize {
        Self::BEST_TO_WORST.iter().position(|other| *other == self).unwrap_or_default()
    }
}

impl fmt::Display for Conclusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Conclusion {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::BEST_TO_WORST.into_iter().find(|conclusion| conclusion.as_str() == text).ok_or(())
    }
}

/// Where a job is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state", content = "conclusion")]
pub enum JobState {
    /// Asked for; nothing heard yet.
    Dispatched,
    InProgress,
    /// Swept: nothing was heard in time.
    NeverStarted,
    /// Swept: it started and its end was not heard in time.
    Lost,
    Completed(Conclusion),
}

impl JobState {
    /// The rank that decides which of two states holds; never goes down.
    pub fn rank(self) -> u8 {
        match self {
            Self::Dispatched => 0,
            Self::InProgress => 1,
            Self::NeverStarted | Self::Lost => 2,
            Self::Completed(_) => 3,
        }
    }

    /// Whether the job still has to end.
    pub fn is_open(self) -> bool {
        self.rank() < 2
    }

    /// What the callback calls it: `in_progress` or `completed`, and `dispatched` before that.
    pub fn status(self) -> &'static str {
        match self {
            Self::Dispatched => "dispatched",
            Self::InProgress => "in_progress",
            Self::NeverStarted | Self::Lost | Self::Completed(_) => "completed",
        }
    }

    /// How it ended; a swept job timed out.
    pub fn conclusion(self) -> Option<Conclusion> {
        match self {
            Self::Dispatched | Self::InProgress => None,
            Self::NeverStarted | Self::Lost => Some(Conclusion::TimedOut),
            Self::Completed(conclusion) => Some(conclusion),
        }
    }
}

/// What a report does to the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobTransition {
    /// The report's state holds from now on.
    Apply {
        /// The job ended and its start was never heard: no queue or execution time is known.
        start_unknown: bool,
    },
    /// The report says what is known already.
    Duplicate,
    /// The report is overtaken by what is known.
    Stale,
    /// The report contradicts the end that is known; that one stays.
    Conflict,
}

/// Decides what `report` does to a job in state `current`; a job without a record is
/// [`JobState::Dispatched`].
pub fn step(current: JobState, report: JobState) -> JobTransition {
    if current == report {
        return JobTransition::Duplicate;
    }
    if report.rank() > current.rank() {
        let unheard = matches!(current, JobState::Dispatched | JobState::NeverStarted);
        return JobTransition::Apply {
            start_unknown: unheard && matches!(report, JobState::Completed(_)),
        };
    }
    match (current, report) {
        (JobState::Completed(_), JobState::Completed(_)) => JobTransition::Conflict,
        _ => JobTransition::Stale,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_of_states() {
        use JobState::{Completed, Dispatched, InProgress, Lost, NeverStarted};
        const HEARD: JobTransition = JobTransition::Apply { start_unknown: false };
        const UNHEARD: JobTransition = JobTransition::Apply { start_unknown: true };
        let good = Completed(Conclusion::Success);
        let bad = Completed(Conclusion::Failure);
        let states = [Dispatched, InProgress, NeverStarted, Lost, good, bad];
        use JobTransition::{Conflict, Duplicate, Stale};
        let table = [
            // reported: dispatched, in_progress, never_started, lost, success, failure
            (Dispatched, [Duplicate, HEARD, HEARD, HEARD, UNHEARD, UNHEARD]),
            (InProgress, [Stale, Duplicate, HEARD, HEARD, HEARD, HEARD]),
            (NeverStarted, [Stale, Stale, Duplicate, Stale, UNHEARD, UNHEARD]),
            (Lost, [Stale, Stale, Stale, Duplicate, HEARD, HEARD]),
            (good, [Stale, Stale, Stale, Stale, Duplicate, Conflict]),
            (bad, [Stale, Stale, Stale, Stale, Conflict, Duplicate]),
        ];
        assert_eq!(table.map(|(state, _)| state), states);
        for (current, row) in table {
            for (report, expected) in states.into_iter().zip(row) {
                assert_eq!(step(current, report), expected, "{current:?} then {report:?}");
            }
        }
    }

    #[test]
    fn every_pair_of_conclusions_conflicts_unless_equal() {
        for first in Conclusion::BEST_TO_WORST {
            for second in Conclusion::BEST_TO_WORST {
                let expected = if first == second {
                    JobTransition::Duplicate
                } else {
                    JobTransition::Conflict
                };
                assert_eq!(step(JobState::Completed(first), JobState::Completed(second)), expected);
            }
        }
    }

    #[test]
    fn a_state_never_goes_down_whatever_the_order() {
        let good = JobState::Completed(Conclusion::Success);
        let reports = [JobState::InProgress, JobState::Lost, JobState::NeverStarted, good];
        for a in reports {
            for b in reports {
                for c in reports {
                    let mut state = JobState::Dispatched;
                    for report in [a, b, c] {
                        let before = state.rank();
                        if let JobTransition::Apply { .. } = step(state, report) {
                            state = report;
                        }
                        assert!(state.rank() >= before);
                    }
                    assert!([a, b, c].contains(&good) == (state == good), "{a:?} {b:?} {c:?}");
                }
            }
        }
    }

    #[test]
    fn names_come_back_and_the_worst_speaks_for_all() {
        for conclusion in Conclusion::BEST_TO_WORST {
            assert_eq!(conclusion.as_str().parse(), Ok(conclusion));
            let json = serde_json::to_value(conclusion).unwrap();
            assert_eq!(json, conclusion.as_str());
        }
        assert_eq!("Success".parse::<Conclusion>(), Err(()));
        assert_eq!(Conclusion::worst([]), None);
        assert_eq!(
            Conclusion::worst([Conclusion::Success, Conclusion::Failure, Conclusion::TimedOut]),
            Some(Conclusion::Failure)
        );
        assert_eq!(
            Conclusion::worst([Conclusion::Skipped, Conclusion::Success]),
            Some(Conclusion::Success)
        );
    }
}
