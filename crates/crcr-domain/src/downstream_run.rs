//! Downstream runs, and which of them a dispatch started.
//!
//! GitHub's answer to `repository_dispatch` names no run, and a run names no dispatch. What is known:
//! the runs that proven reports name, the runs that GitHub lists for the event, and when both were.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::lifecycle::Conclusion;

/// How far a run's creation may be from the sending of its dispatch. GitHub creates runs within
/// seconds; its clock and ours differ by a few more.
const CREATED_WITHIN: SignedDuration = SignedDuration::from_secs(60);
const CREATED_BEFORE: SignedDuration = SignedDuration::from_secs(5);

/// The most runs of one dispatch that are kept: workflows that listen for the event.
pub const RUNS_PER_DISPATCH: usize = 50;

/// A downstream run that a dispatch started, or may have started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DownstreamRun {
    /// Its id: a decimal number on GitHub, a UUID elsewhere.
    pub id: String,
    /// The workflow: its file on GitHub, its name elsewhere. Of one workflow the newest run counts.
    pub workflow: String,
    /// The attempt that the state is about, from 1.
    pub attempt: u32,
    pub state: RunState,
    /// Whether it is sure that the dispatch started it. A run that reported nothing is told by its
    /// time alone, which several dispatches may share.
    pub certain: bool,
}

/// How a downstream run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state", content = "conclusion")]
pub enum RunState {
    Open,
    /// It is over; the conclusion is GitHub's own, `None` where nobody tells one.
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
    /// What GitHub shows of it, which a workflow's `run-name` may set to the delivery's id.
    pub title: String,
}

/// The time in which GitHub creates the runs of a dispatch that was sent at `sent_at`.
pub fn creation_window(sent_at: Timestamp) -> (Timestamp, Timestamp) {
    (sent_at - CREATED_BEFORE, sent_at + CREATED_WITHIN)
}

/// Which of the listed runs a dispatch started.
///
/// `delivery` was sent at `sent_at`; `other_sends` are the times at which other dispatches were sent
/// to the same repository; `claimed_by` tells the delivery that proven reports of a run answered.
pub fn runs_of_dispatch<'a>(
    listed: &[ListedRun],
    delivery: &str,
    sent_at: Timestamp,
    other_sends: &[Timestamp],
    claimed_by: impl Fn(u64) -> Option<&'a str>,
) -> Vec<DownstreamRun> {
    let (from, to) = creation_window(sent_at);
    let shares_its_time = other_sends.iter().any(|other| {
        let (other_from, other_to) = creation_window(*other);
        other_from <= to && from <= other_to
    });
    let own: Vec<(&ListedRun, bool)> = listed
        .iter()
        .filter_map(|run| match claimed_by(run.id) {
            Some(claim) => (claim == delivery).then_some((run, true)),
            None if run.title.contains(delivery) => Some((run, true)),
            None => {
                (from <= run.created_at && run.created_at <= to).then_some((run, !shares_its_time))
            }
        })
        .collect();
    let known: Vec<&str> =
        own.iter().filter(|(_, certain)| *certain).map(|(run, _)| run.workflow.as_str()).collect();
    own.iter()
        // One dispatch starts a workflow once: a second run of it is another dispatch's.
        .filter(|(run, certain)| *certain || !known.contains(&run.workflow.as_str()))
        .take(RUNS_PER_DISPATCH)
        .map(|(run, certain)| DownstreamRun {
            id: run.id.to_string(),
            workflow: run.workflow.clone(),
            attempt: run.attempt,
            state: run.state,
            certain: *certain,
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
    fn a_silent_run_belongs_to_the_only_dispatch_of_its_time() {
        let all = [listed(1, "lint.yml", -60), listed(2, "lint.yml", 3), listed(3, "ci.yml", 400)];
        let own = runs_of_dispatch(&all, "d", at(0), &[], |_| None);
        assert_eq!(ids(&own), [("2", true)]);
    }

    #[test]
    fn a_silent_run_is_uncertain_while_another_dispatch_went_out_at_the_same_time() {
        let all = [listed(2, "lint.yml", 3)];
        let own = runs_of_dispatch(&all, "d", at(0), &[at(1)], |_| None);
        assert_eq!(ids(&own), [("2", false)]);
        let own = runs_of_dispatch(&all, "d", at(0), &[at(600), at(-600)], |_| None);
        assert_eq!(ids(&own), [("2", true)]);
    }

    #[test]
    fn a_run_that_answered_another_delivery_is_never_taken() {
        let all = [listed(2, "ci.yml", 3), listed(3, "ci.yml", 4)];
        let claims = |id| Some(if id == 2 { "d" } else { "e" });
        let own = runs_of_dispatch(&all, "d", at(0), &[at(1)], claims);
        assert_eq!(ids(&own), [("2", true)]);
    }

    #[test]
    fn a_run_that_answered_is_taken_whenever_it_was_created() {
        let own = runs_of_dispatch(&[listed(2, "ci.yml", 9000)], "d", at(0), &[], |_| Some("d"));
        assert_eq!(ids(&own), [("2", true)]);
    }

    #[test]
    fn a_second_silent_run_of_a_workflow_that_answered_is_another_dispatchs() {
        let all = [listed(2, "ci.yml", 3), listed(3, "ci.yml", 4), listed(4, "lint.yml", 4)];
        let claims = |id| (id == 2).then_some("d");
        let own = runs_of_dispatch(&all, "d", at(0), &[at(1)], claims);
        assert_eq!(ids(&own), [("2", true), ("4", false)]);
    }

    #[test]
    fn a_run_whose_title_names_the_delivery_is_certain() {
        let titled =
            ListedRun { title: "CI for 72d3162e-cc78".to_owned(), ..listed(2, "ci.yml", 3) };
        let own = runs_of_dispatch(&[titled], "72d3162e-cc78", at(0), &[at(1)], |_| None);
        assert_eq!(ids(&own), [("2", true)]);
    }
}
