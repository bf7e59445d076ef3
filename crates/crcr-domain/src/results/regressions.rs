//! Regressions: a backend fails on an upstream commit after it passed on an earlier one. They appear in
//! the feed and trigger alerts.
//!
//! Failures on pull requests concern their authors and aren't regressions, which concern maintainers.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::jobs::JobOfRecord;
use super::outcome::JobOutcome;
use crate::protocol::event::EventName;
use crate::results::facts::{DispatchFact, DispatchFactStatus};

/// A backend failed on a merged upstream commit after it passed on an earlier one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Regression {
    pub repo: String,
    pub upstream: String,
    /// Push, nightly or periodic. Each event has its own history.
    pub event: EventName,
    pub head_sha: String,
    /// The last commit on which it passed.
    pub good_sha: String,
    /// When the first failure on the commit was reported.
    pub at: Timestamp,
    /// The failed jobs and their outcomes; empty if the backend never started.
    pub failed: Vec<(String, JobOutcome)>,
    /// The first commit after it on which everything passed again.
    pub recovery: Option<BackendRecovery>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackendRecovery {
    pub head_sha: String,
    /// When the last job on that commit was reported.
    pub at: Timestamp,
}

#[derive(Debug)]
struct CommitResult {
    regression: Regression,
    began: Timestamp,
    /// When its last report was received.
    ended: Timestamp,
    passed: bool,
    /// Whether a job hasn't ended, or was cancelled.
    incomplete: bool,
    failed: bool,
}

/// Finds regressions in jobs of record and dispatches, newest first.
///
/// Only commits without a pull request count, ordered by the time their events were accepted. Commits with
/// running or cancelled jobs and without failures are skipped, and so are superseded and neutral jobs.
pub fn find_regressions<'a>(
    jobs: &[JobOfRecord<'_>],
    dispatches: impl IntoIterator<Item = &'a DispatchFact>,
) -> Vec<Regression> {
    let commits = commit_results(jobs, dispatches);
    let mut commits: Vec<_> = commits.into_iter().collect();
    commits.sort_by(|(a, one), (b, other)| (&a[..3], one.began).cmp(&(&b[..3], other.began)));
    let mut regressions: Vec<Regression> = Vec::new();
    let mut good: Option<([String; 3], String)> = None;
    // The regression from which this history has not recovered, by its place.
    let mut red: Option<([String; 3], usize)> = None;
    for ([repo, event, upstream, _], commit) in commits {
        let history = [repo, event, upstream];
        good = good.filter(|(of, _)| *of == history);
        red = red.filter(|(of, _)| *of == history);
        if commit.failed {
            if let Some((_, good_sha)) = good.take() {
                red = Some((history, regressions.len()));
                regressions.push(Regression { good_sha, ..commit.regression });
            }
        } else if commit.passed && !commit.incomplete {
            if let Some((_, at)) = red.take() {
                let head_sha = commit.regression.head_sha.clone();
                regressions[at].recovery = Some(BackendRecovery { head_sha, at: commit.ended });
            }
            good = Some((history, commit.regression.head_sha));
        }
    }
    regressions.sort_by(|a, b| b.at.cmp(&a.at).then_with(|| a.repo.cmp(&b.repo)));
    regressions
}

/// The results of each commit, by repository, event, upstream and commit.
fn commit_results<'a>(
    jobs: &[JobOfRecord<'_>],
    dispatches: impl IntoIterator<Item = &'a DispatchFact>,
) -> BTreeMap<[String; 4], CommitResult> {
    let mut commits: BTreeMap<[String; 4], CommitResult> = BTreeMap::new();
    for job in jobs.iter().filter(|job| {
        is_of_branch(&job.record.event, job.record.pull_request) && job.record.is_evidence()
    }) {
        let record = &job.record;
        let id = [&record.repo, record.event.as_str(), &record.upstream, &record.head_sha]
            .map(str::to_ascii_lowercase);
        let commit = commits.entry(id).or_insert_with(|| CommitResult {
            regression: Regression {
                repo: record.repo.clone(),
                upstream: record.upstream.clone(),
                event: record.event.clone(),
                head_sha: record.head_sha.clone(),
                good_sha: String::new(),
                at: record.received_at,
                failed: vec![],
                recovery: None,
            },
            began: record.dispatched_at,
            ended: record.received_at,
            passed: false,
            incomplete: false,
            failed: false,
        });
        commit.ended = commit.ended.max(record.received_at);
        match job.outcome {
            // A newer push may have cancelled it.
            None | Some(JobOutcome::Cancelled) => commit.incomplete = true,
            Some(outcome) if outcome.is_pass() => commit.passed = true,
            Some(outcome) if outcome.is_failure() => {
                let first = commit.regression.at.min(record.received_at);
                commit.regression.at = if commit.failed { first } else { record.received_at };
                commit.failed = true;
                commit.regression.failed.push((job.name(), outcome));
            }
            Some(_) => {}
        }
    }
    let never_started = |d: &&DispatchFact| {
        is_of_branch(&d.event, d.pull_request) && d.status == DispatchFactStatus::NeverStarted
    };
    for dispatch in dispatches.into_iter().filter(never_started) {
        let id = [&dispatch.repo, dispatch.event.as_str(), &dispatch.upstream, &dispatch.head_sha]
            .map(str::to_ascii_lowercase);
        commits.entry(id).or_insert_with(|| CommitResult {
            regression: Regression {
                repo: dispatch.repo.clone(),
                upstream: dispatch.upstream.clone(),
                event: dispatch.event.clone(),
                head_sha: dispatch.head_sha.clone(),
                good_sha: String::new(),
                at: dispatch.at,
                failed: vec![],
                recovery: None,
            },
            began: dispatch.enqueued_at,
            ended: dispatch.at,
            passed: false,
            incomplete: false,
            failed: true,
        });
    }
    commits
}

/// A probe explains a failure that is known, and begins none.
fn is_of_branch(event: &EventName, pull_request: Option<u64>) -> bool {
    pull_request.is_none() && event.is_of_branch() && *event != EventName::Probe
}

#[cfg(test)]
mod tests {
    use super::super::tests::{at, attempt, dispatch};
    use super::*;
    use crate::checks::lifecycle::{Conclusion, JobState};
    use crate::results::facts::AttemptFact;
    use crate::results::jobs_of_record;

    /// A job on a push: its commit, its end, and the second in which it ended.
    fn push(sha: &str, conclusion: Option<Conclusion>, s: i64) -> AttemptFact {
        let state = conclusion.map_or(JobState::InProgress, JobState::Completed);
        AttemptFact {
            pull_request: None,
            event: EventName::Push,
            ..attempt(sha, sha, sha, 1, state, s)
        }
    }

    fn turns(rows: &[AttemptFact], dispatches: &[DispatchFact]) -> Vec<(String, String, usize)> {
        find_regressions(&jobs_of_record(rows, dispatches), dispatches)
            .into_iter()
            .map(|turn| (turn.good_sha, turn.head_sha, turn.failed.len()))
            .collect()
    }

    const GOOD: Option<Conclusion> = Some(Conclusion::Success);
    const BAD: Option<Conclusion> = Some(Conclusion::Failure);

    #[test]
    fn only_the_first_failure_after_a_success_is_a_regression() {
        let rows = [
            push("a", BAD, 1),
            push("b", GOOD, 2),
            push("c", BAD, 3),
            push("d", BAD, 4),
            push("e", GOOD, 5),
            push("f", Some(Conclusion::Neutral), 6),
            push("g", None, 7),
            push("h", BAD, 8),
        ];
        let expected = [("e", "h", 1), ("b", "c", 1)];
        assert_eq!(turns(&rows, &[]), expected.map(|(a, b, n)| (a.into(), b.into(), n)));
        let found = find_regressions(&jobs_of_record(&rows, []), []);
        let recovery = found.iter().map(|found| found.recovery.as_ref().map(|r| &*r.head_sha));
        assert_eq!(
            recovery.collect::<Vec<_>>(),
            [None, Some("e")],
            "green again on the next success"
        );
    }

    #[test]
    fn commit_with_a_cancelled_job_is_neither_green_nor_red() {
        let cancelled = |sha: &str, s| {
            let row = push(sha, Some(Conclusion::Cancelled), s);
            AttemptFact { job: Some("cancelled".into()), ..row }
        };
        let rows = [
            push("a", GOOD, 1),
            cancelled("b", 2),
            push("c", BAD, 3),
            push("d", GOOD, 4),
            cancelled("d", 5),
            push("e", GOOD, 6),
            push("f", GOOD, 7),
            cancelled("f", 8),
            push("g", BAD, 9),
            cancelled("g", 10),
        ];
        let expected = [("e", "g", 1), ("a", "c", 1)];
        assert_eq!(turns(&rows, &[]), expected.map(|(a, b, n)| (a.into(), b.into(), n)));
        let found = find_regressions(&jobs_of_record(&rows, []), []);
        let recovery = found.iter().map(|found| found.recovery.as_ref().map(|r| &*r.head_sha));
        assert_eq!(recovery.collect::<Vec<_>>(), [None, Some("e")], "not on d");
    }

    #[test]
    fn pull_requests_are_ignored_and_each_event_has_its_own_history() {
        let pull = AttemptFact { pull_request: Some(7), ..push("b", BAD, 2) };
        let nightly = AttemptFact { event: EventName::Nightly, ..push("c", BAD, 3) };
        assert_eq!(turns(&[push("a", GOOD, 1), pull, nightly], &[]), []);
    }

    #[test]
    fn red_merge_group_is_no_regression_and_a_green_one_no_recovery() {
        let of_group = |sha: &str, conclusion, s| AttemptFact {
            event: EventName::MergeGroup,
            ..push(sha, conclusion, s)
        };
        let never_started = DispatchFact {
            pull_request: None,
            event: EventName::MergeGroup,
            status: DispatchFactStatus::NeverStarted,
            ..dispatch("d", "d", 4)
        };
        let groups = [of_group("a", GOOD, 1), of_group("b", BAD, 2), of_group("c", GOOD, 3)];
        assert_eq!(turns(&groups, &[never_started]), []);
    }

    #[test]
    fn commits_are_ordered_by_event_and_never_started_is_a_failure() {
        let dispatches = ["a", "b"].map(|sha| DispatchFact {
            pull_request: None,
            event: EventName::Push,
            status: if sha == "b" {
                DispatchFactStatus::NeverStarted
            } else {
                DispatchFactStatus::Sent
            },
            ..dispatch(sha, sha, if sha == "a" { 10 } else { 20 })
        });
        let of = |sha: &str, s| AttemptFact { dispatched_at: at(s), ..push(sha, GOOD, 90) };
        // The older commit's jobs end after the newer one was given up.
        assert_eq!(turns(&[of("a", 10)], &dispatches), [("a".into(), "b".into(), 0)]);
        let late = [of("a", 10), of("b", 20)];
        assert_eq!(turns(&late, &dispatches), [], "it came after all");
        let sent = dispatches.map(|one| DispatchFact { status: DispatchFactStatus::Sent, ..one });
        assert_eq!(turns(&[of("a", 10)], &sent), [], "it may still come");
    }

    #[test]
    fn regression_began_with_the_first_failure_and_not_with_what_passed_before() {
        let of = |job: &str, conclusion, s| AttemptFact {
            job: Some(job.into()),
            dispatched_at: at(10),
            ..push("b", conclusion, s)
        };
        for (first, second) in [(30, 40), (40, 30)] {
            let rows = [
                push("a", GOOD, 1),
                of("lint", GOOD, 20),
                of("test", BAD, first),
                of("test-2", BAD, second),
            ];
            let found = find_regressions(&jobs_of_record(&rows, []), []);
            assert_eq!(found[0].at, at(30));
        }
    }
}
