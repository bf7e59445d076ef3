//! The states of a downstream job and the transitions between them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The conclusions that GitHub defines.
///
/// <https://docs.github.com/en/rest/checks/runs#create-a-check-run>
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
// Nothing on an Enterprise server links to github.com.
#[schemars(description = "As GitHub defines them")]
pub enum Conclusion {
    Success,
    Failure,
    Neutral,
    Cancelled,
    Skipped,
    TimedOut,
    ActionRequired,
    /// GitHub gave up after 14 days.
    Stale,
    /// The workflow could not start.
    StartupFailure,
}

names! {
    Conclusion {
        Success "success", Failure "failure", Neutral "neutral", Cancelled "cancelled",
        Skipped "skipped", TimedOut "timed_out", ActionRequired "action_required", Stale "stale",
        StartupFailure "startup_failure",
    }
}

impl Conclusion {
    /// All conclusions, the best first. The conclusion of several jobs is the one that comes last here.
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

    /// Success, neutral or skipped.
    pub fn is_good(self) -> bool {
        matches!(self, Self::Success | Self::Neutral | Self::Skipped)
    }

    /// Whether an oncall is alerted. The deployed on-call bot uses the same conclusions.
    pub fn alerts_oncall(self) -> bool {
        matches!(self, Self::Failure | Self::StartupFailure | Self::Cancelled | Self::TimedOut)
    }

    /// `None` if there are none.
    pub fn worst(all: impl IntoIterator<Item = Self>) -> Option<Self> {
        all.into_iter().max_by_key(|conclusion| conclusion.severity())
    }

    /// Index in [`Self::BEST_TO_WORST`]; higher is worse.
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
        Self::from_name(text).ok_or(())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state", content = "conclusion")]
pub enum JobState {
    Dispatched,
    InProgress,
    /// Set by a sweep: no report came in time.
    NeverStarted,
    /// Set by a sweep: it started, and its end wasn't reported in time.
    Lost,
    Completed(Conclusion),
}

impl JobState {
    /// A job never moves to a state of a lower rank.
    pub fn rank(self) -> u8 {
        match self {
            Self::Dispatched => 0,
            Self::InProgress => 1,
            Self::NeverStarted | Self::Lost => 2,
            Self::Completed(_) => 3,
        }
    }

    pub fn is_open(self) -> bool {
        self.rank() < 2
    }

    /// The status in callbacks: `in_progress` or `completed`, and `dispatched` before the first one.
    pub fn status(self) -> &'static str {
        match self {
            Self::Dispatched => "dispatched",
            Self::InProgress => "in_progress",
            Self::NeverStarted | Self::Lost | Self::Completed(_) => "completed",
        }
    }

    /// A job that a sweep ended counts as timed out.
    pub fn conclusion(self) -> Option<Conclusion> {
        match self {
            Self::Dispatched | Self::InProgress => None,
            Self::NeverStarted | Self::Lost => Some(Conclusion::TimedOut),
            Self::Completed(conclusion) => Some(conclusion),
        }
    }
}

/// How a report changes the state of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobTransition {
    /// The job takes the state of the report.
    Apply {
        /// The job ended without a report of its start, so queue and execution time are unknown.
        start_unknown: bool,
    },
    /// The job has this state already.
    Duplicate,
    /// The job has moved on from this state.
    Stale,
    /// The job ended with a worse conclusion, which stays: jobs of one name can't hide each other's failures.
    Better,
}

/// How `report` changes a job in state `current`. A job without a record is [`JobState::Dispatched`].
pub fn transition(current: JobState, report: JobState) -> JobTransition {
    if current == report {
        return JobTransition::Duplicate;
    }
    if report.rank() > current.rank() {
        let start_was_missed = matches!(current, JobState::Dispatched | JobState::NeverStarted);
        return JobTransition::Apply {
            start_unknown: start_was_missed && matches!(report, JobState::Completed(_)),
        };
    }
    match (current, report) {
        (JobState::Completed(before), JobState::Completed(end)) => {
            if end.severity() > before.severity() {
                JobTransition::Apply { start_unknown: false }
            } else {
                JobTransition::Better
            }
        }
        _ => JobTransition::Stale,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transition_of_every_pair_of_states() {
        use JobState::{Completed, Dispatched, InProgress, Lost, NeverStarted};
        const HEARD: JobTransition = JobTransition::Apply { start_unknown: false };
        const UNHEARD: JobTransition = JobTransition::Apply { start_unknown: true };
        let good = Completed(Conclusion::Success);
        let bad = Completed(Conclusion::Failure);
        let states = [Dispatched, InProgress, NeverStarted, Lost, good, bad];
        use JobTransition::{Better, Duplicate, Stale};
        let table = [
            // reported: dispatched, in_progress, never_started, lost, success, failure
            (Dispatched, [Duplicate, HEARD, HEARD, HEARD, UNHEARD, UNHEARD]),
            (InProgress, [Stale, Duplicate, HEARD, HEARD, HEARD, HEARD]),
            (NeverStarted, [Stale, Stale, Duplicate, Stale, UNHEARD, UNHEARD]),
            (Lost, [Stale, Stale, Stale, Duplicate, HEARD, HEARD]),
            (good, [Stale, Stale, Stale, Stale, Duplicate, HEARD]),
            (bad, [Stale, Stale, Stale, Stale, Better, Duplicate]),
        ];
        assert_eq!(table.map(|(state, _)| state), states);
        for (current, row) in table {
            for (report, expected) in states.into_iter().zip(row) {
                assert_eq!(transition(current, report), expected, "{current:?} then {report:?}");
            }
        }
    }

    #[test]
    fn of_several_ends_the_worst_stays_in_any_order() {
        for first in Conclusion::BEST_TO_WORST {
            for second in Conclusion::BEST_TO_WORST {
                let (first, second) = (JobState::Completed(first), JobState::Completed(second));
                let mut state = first;
                if let JobTransition::Apply { .. } = transition(state, second) {
                    state = second;
                }
                let worst =
                    Conclusion::worst([first, second].iter().filter_map(|s| s.conclusion()));
                assert_eq!(state.conclusion(), worst, "{first:?} then {second:?}");
            }
        }
    }

    #[test]
    fn rank_never_decreases_in_any_order_of_reports() {
        let good = JobState::Completed(Conclusion::Success);
        let reports = [JobState::InProgress, JobState::Lost, JobState::NeverStarted, good];
        for a in reports {
            for b in reports {
                for c in reports {
                    let mut state = JobState::Dispatched;
                    for report in [a, b, c] {
                        let before = state.rank();
                        if let JobTransition::Apply { .. } = transition(state, report) {
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
    fn reports_have_the_status_words_of_callbacks() {
        for (state, status) in [
            (JobState::Dispatched, "dispatched"),
            (JobState::InProgress, "in_progress"),
            (JobState::NeverStarted, "completed"),
            (JobState::Lost, "completed"),
            (JobState::Completed(Conclusion::Success), "completed"),
        ] {
            assert_eq!(state.status(), status);
        }
    }

    #[test]
    fn oncalls_are_alerted_of_what_failed_and_not_of_what_waits_for_somebody_else() {
        use Conclusion::{Cancelled, Failure, StartupFailure, TimedOut};
        for conclusion in Conclusion::BEST_TO_WORST {
            let alerts = [Failure, StartupFailure, Cancelled, TimedOut].contains(&conclusion);
            assert_eq!(conclusion.alerts_oncall(), alerts, "{conclusion}");
        }
    }

    #[test]
    fn conclusions_parse_their_names_and_the_worst_wins() {
        for conclusion in Conclusion::BEST_TO_WORST {
            assert_eq!(conclusion.to_string(), conclusion.as_str());
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
