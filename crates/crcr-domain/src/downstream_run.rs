//! Downstream runs, and which of them a dispatch started.
//!
//! GitHub's response to `repository_dispatch` doesn't name a run, and a run doesn't name its dispatch. Runs
//! are matched by proven reports, by GitHub's list of runs for the event, and by time.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::lifecycle::Conclusion;

/// The longest time between a dispatch and the creation of its run. GitHub creates runs within seconds;
/// the rest allows for clock differences.
const CREATED_WITHIN: SignedDuration = SignedDuration::from_secs(60);
const CREATED_BEFORE: SignedDuration = SignedDuration::from_secs(15);

/// Each workflow that listens for the event starts one run.
pub const RUNS_PER_DISPATCH: usize = 50;

/// A downstream run that a dispatch started, or may have started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DownstreamRun {
    /// A decimal number on GitHub, a UUID elsewhere.
    pub id: String,
    /// The workflow file on GitHub, the name elsewhere. For each workflow only the newest run counts.
    pub workflow: String,
    /// The attempt that `state` describes, from 1.
    pub attempt: u32,
    pub state: RunState,
    /// Whether the dispatch certainly started it. A run without reports is matched by time only, and
    /// several dispatches may fit.
    pub certain: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state", content = "conclusion")]
pub enum RunState {
    Open,
    /// With GitHub's conclusion, if there is one.
    Over(Option<Conclusion>),
}

/// A run of the downstream repository, as GitHub lists it for `event=repository_dispatch`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedRun {
    pub id: u64,
    pub workflow: String,
    pub attempt: u32,
    pub state: RunState,
    /// When its first attempt was created.
    pub created_at: Timestamp,
    /// The display title. A workflow's `run-name` may put the delivery id into it.
    pub title: String,
}

/// When GitHub creates the runs of a dispatch that was sent at `sent_at`.
pub fn creation_window(sent_at: Timestamp) -> (Timestamp, Timestamp) {
    (sent_at - CREATED_BEFORE, sent_at + CREATED_WITHIN)
}

/// The listed runs that the dispatch of `delivery` started.
///
/// `other_sends`: when other dispatches were sent to the same repository. `claimed_by` returns the
/// delivery that proven reports of a run belong to.
pub fn runs_of_dispatch<'a>(
    listed: &[ListedRun],
    delivery: &str,
    sent_at: Timestamp,
    other_sends: &[Timestamp],
    claimed_by: impl Fn(u64) -> Option<&'a str>,
) -> Vec<DownstreamRun> {
    let (from, to) = creation_window(sent_at);
    let overlaps_another = other_sends.iter().any(|other| {
        let (other_from, other_to) = creation_window(*other);
        other_from <= to && from <= other_to
    });
    // Each with whether a report or its title proves it.
    let own: Vec<(&ListedRun, bool)> = listed
        .iter()
        .filter_map(|run| match claimed_by(run.id) {
            Some(claim) => (claim == delivery).then_some((run, true)),
            None if run.title.contains(delivery) => Some((run, true)),
            None => (from <= run.created_at && run.created_at <= to).then_some((run, false)),
        })
        .collect();
    let of_workflow =
        |workflow: &str| own.iter().filter(|(run, _)| run.workflow == workflow).count();
    let is_proven =
        |workflow: &str| own.iter().any(|(run, proven)| *proven && run.workflow == workflow);
    own.iter()
        // A dispatch starts each workflow once, so a second run belongs to another dispatch, perhaps to one
        // that was superseded while GitHub accepted it.
        .filter(|(run, proven)| *proven || !is_proven(&run.workflow))
        .take(RUNS_PER_DISPATCH)
        .map(|(run, proven)| DownstreamRun {
            id: run.id.to_string(),
            workflow: run.workflow.clone(),
            attempt: run.attempt,
            state: run.state,
            certain: *proven || (!overlaps_another && of_workflow(&run.workflow) == 1),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    fn listed(id: u64, workflow: &str, second: i64) -> ListedRun {
        ListedRun {
            id,
            workflow: workflow.to_owned(),
            attempt: 1,
            state: RunState::Open,
            created_at: at(second),
            title: "pull_request".to_owned(),
        }
    }

    fn ids(runs: &[DownstreamRun]) -> Vec<(&str, bool)> {
        runs.iter().map(|run| (run.id.as_str(), run.certain)).collect()
    }

    #[test]
    fn run_without_reports_belongs_to_the_only_dispatch_of_its_time() {
        let all = [listed(1, "lint.yml", -60), listed(2, "lint.yml", 3), listed(3, "ci.yml", 400)];
        let own = runs_of_dispatch(&all, "d", at(0), &[], |_| None);
        assert_eq!(ids(&own), [("2", true)]);
    }

    #[test]
    fn run_that_seems_older_than_its_dispatch_because_the_clocks_differ_belongs_to_it() {
        let own = runs_of_dispatch(&[listed(2, "lint.yml", -12)], "d", at(0), &[], |_| None);
        assert_eq!(ids(&own), [("2", true)]);
    }

    #[test]
    fn run_without_reports_is_uncertain_if_two_dispatches_fit() {
        let all = [listed(2, "lint.yml", 3)];
        let own = runs_of_dispatch(&all, "d", at(0), &[at(1)], |_| None);
        assert_eq!(ids(&own), [("2", false)]);
        let own = runs_of_dispatch(&all, "d", at(0), &[at(600), at(-600)], |_| None);
        assert_eq!(ids(&own), [("2", true)]);
    }

    #[test]
    fn run_with_reports_for_another_delivery_is_not_matched() {
        let all = [listed(2, "ci.yml", 3), listed(3, "ci.yml", 4)];
        let claims = |id| Some(if id == 2 { "d" } else { "e" });
        let own = runs_of_dispatch(&all, "d", at(0), &[at(1)], claims);
        assert_eq!(ids(&own), [("2", true)]);
    }

    #[test]
    fn run_with_reports_is_matched_regardless_of_time() {
        let own = runs_of_dispatch(&[listed(2, "ci.yml", 9000)], "d", at(0), &[], |_| Some("d"));
        assert_eq!(ids(&own), [("2", true)]);
    }

    #[test]
    fn second_run_of_a_workflow_belongs_to_another_dispatch() {
        let all = [listed(2, "ci.yml", 3), listed(3, "ci.yml", 4), listed(4, "lint.yml", 4)];
        let claims = |id| (id == 2).then_some("d");
        let own = runs_of_dispatch(&all, "d", at(0), &[at(1)], claims);
        assert_eq!(ids(&own), [("2", true), ("4", false)]);
    }

    #[test]
    fn run_of_a_dispatch_that_is_not_known_as_sent_decides_nothing() {
        let all = [listed(2, "ci.yml", 3), listed(3, "ci.yml", 4)];
        let own = runs_of_dispatch(&all, "d", at(0), &[], |id| (id == 2).then_some("d"));
        assert_eq!(ids(&own), [("2", true)]);
        let own = runs_of_dispatch(&all, "d", at(0), &[], |_| None);
        assert_eq!(ids(&own), [("2", false), ("3", false)]);
    }

    #[test]
    fn run_with_the_delivery_in_its_title_is_certain() {
        let titled =
            ListedRun { title: "CI for 72d3162e-cc78".to_owned(), ..listed(2, "ci.yml", 3) };
        let own = runs_of_dispatch(&[titled], "72d3162e-cc78", at(0), &[at(1)], |_| None);
        assert_eq!(ids(&own), [("2", true)]);
    }
}
