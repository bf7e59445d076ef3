//! Whether jobs that fail on purpose did. If they didn't, or weren't heard of, the relay doesn't pass failures on.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::jobs::JobOfRecord;
use super::outcome::JobOutcome;
use crate::results::facts::{AttemptFact, DispatchFact, DispatchFactStatus};

#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema,
)]
pub struct ExpectedCounts {
    /// Jobs that ended as expected.
    pub seen: u64,
    /// Jobs that ended in another way.
    pub not_seen: u64,
    /// Jobs whose end was never reported, and jobs that other commits of that day have and this one hasn't.
    pub missing: u64,
}

/// A repository, an event and a commit, or the run if there is none.
type HeadKey<'a> = (&'a str, &'a str, &'a str);

#[derive(Default)]
struct HeadJobs<'a> {
    names: BTreeSet<(&'a str, Option<&'a str>)>,
    is_open: bool,
    never_started: bool,
    sent_at: Timestamp,
}

/// How a job that fails on purpose ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExpectedEnd {
    /// As expected.
    Seen,
    /// In another way.
    NotSeen,
    /// Its end was never reported, or other commits of that day have it and this one hasn't.
    Missing,
}

names! { ExpectedEnd { Seen "expected_seen", NotSeen "expected_not_seen", Missing "expected_missing" } }

/// A job that fails on purpose, on a commit.
#[derive(Debug, Clone, Copy)]
pub struct ExpectedJob<'a> {
    pub repo: &'a str,
    pub workflow: &'a str,
    pub job: Option<&'a str>,
    /// The commit, or the run if there is none.
    pub commit: &'a str,
    /// When its commit was dispatched.
    pub at: Timestamp,
    pub end: ExpectedEnd,
    /// `None` if nothing was reported.
    pub record: Option<&'a AttemptFact>,
}

/// The jobs of one day that fail on purpose, among these.
pub fn expected_jobs<'a>(
    jobs: &[JobOfRecord<'a>],
    dispatches: &[&'a DispatchFact],
) -> Vec<ExpectedJob<'a>> {
    let mut found = vec![];
    let mut heads: BTreeMap<HeadKey<'_>, HeadJobs<'_>> = BTreeMap::new();
    let mut known: BTreeMap<(&str, &str), BTreeSet<_>> = BTreeMap::new();
    for dispatch in dispatches {
        let is_sent =
            matches!(dispatch.status, DispatchFactStatus::Sent | DispatchFactStatus::NeverStarted);
        if is_sent {
            let key = (&*dispatch.repo, dispatch.event.as_str(), &*dispatch.head_sha);
            let head = heads.entry(key).or_default();
            head.never_started |= dispatch.status == DispatchFactStatus::NeverStarted;
            head.sent_at = head.sent_at.max(dispatch.enqueued_at);
        }
    }
    for job in jobs {
        let row = job.record;
        let key = (&*row.repo, row.event.as_str(), row.commit_or_run());
        let mut head = heads.get_mut(&key);
        if let Some(head) = head.as_mut() {
            head.is_open |= job.outcome.is_none();
        }
        let Some(expected) = row.expected else { continue };
        let name = (&*row.workflow, row.job.as_deref());
        known.entry((key.0, key.1)).or_default().insert(name);
        if let Some(head) = head {
            head.names.insert(name);
        }
        let end = match job.outcome {
            None | Some(JobOutcome::NeverStarted) => continue,
            Some(JobOutcome::Lost) => ExpectedEnd::Missing,
            Some(_) if row.state.conclusion() == Some(expected) => ExpectedEnd::Seen,
            // A newer head of the pull request cancelled it.
            Some(JobOutcome::Superseded) => continue,
            Some(_) => ExpectedEnd::NotSeen,
        };
        let ((repo, _, commit), (workflow, job), at) = (key, name, row.dispatched_at);
        found.push(ExpectedJob { repo, workflow, job, commit, at, end, record: Some(row) });
    }
    for ((repo, event, commit), head) in &heads {
        let is_waiting = head.names.is_empty() && !head.never_started;
        let known = known.get(&(*repo, *event)).filter(|_| !head.is_open && !is_waiting);
        let missing = known.into_iter().flat_map(|known| known.difference(&head.names));
        found.extend(missing.map(|(workflow, job)| ExpectedJob {
            repo,
            workflow,
            job: *job,
            commit,
            at: head.sent_at,
            end: ExpectedEnd::Missing,
            record: None,
        }));
    }
    found
}

impl ExpectedCounts {
    pub(crate) fn of(jobs: &[JobOfRecord<'_>], dispatches: &[&DispatchFact]) -> Self {
        let mut counts = Self::default();
        for job in expected_jobs(jobs, dispatches) {
            match job.end {
                ExpectedEnd::Seen => counts.seen += 1,
                ExpectedEnd::NotSeen => counts.not_seen += 1,
                ExpectedEnd::Missing => counts.missing += 1,
            }
        }
        counts
    }

    pub fn count(self, end: ExpectedEnd) -> u64 {
        match end {
            ExpectedEnd::Seen => self.seen,
            ExpectedEnd::NotSeen => self.not_seen,
            ExpectedEnd::Missing => self.missing,
        }
    }

    pub fn nonzero(self) -> Vec<(ExpectedEnd, u64)> {
        let all = ExpectedEnd::ALL.map(|end| (end, self.count(end)));
        all.into_iter().filter(|(_, count)| *count > 0).collect()
    }
}

impl std::ops::AddAssign for ExpectedCounts {
    fn add_assign(&mut self, other: Self) {
        self.seen += other.seen;
        self.not_seen += other.not_seen;
        self.missing += other.missing;
    }
}

#[cfg(test)]
mod tests {
    use super::super::jobs_of_record;
    use super::super::tests::{at, attempt, dispatch};
    use super::super::totals::{ResultTotals, by_day};
    use super::ExpectedEnd::{Missing, NotSeen, Seen};
    use crate::checks::lifecycle::{Conclusion, JobState};
    use crate::results::facts::{AttemptFact, DispatchFact, DispatchFactStatus};

    const FAILED: JobState = JobState::Completed(Conclusion::Failure);
    const PASSED: JobState = JobState::Completed(Conclusion::Success);

    fn canary(sha: &str, state: JobState) -> AttemptFact {
        AttemptFact {
            job: Some("xfail".into()),
            expected: Some(Conclusion::Failure),
            pull_request: None,
            ..attempt(sha, sha, sha, 1, state, 100)
        }
    }

    fn push(sha: &str) -> DispatchFact {
        DispatchFact { pull_request: None, enqueued_at: at(40), ..dispatch(sha, sha, 40) }
    }

    fn totals(rows: &[AttemptFact], dispatches: &[DispatchFact]) -> ResultTotals {
        let days = by_day(rows, dispatches, &[]);
        let mut total = ResultTotals::default();
        days.values().for_each(|day| total.add(day));
        total
    }

    #[test]
    fn jobs_that_fail_on_purpose_show_whether_the_relay_works_and_not_how_the_backend_is() {
        let rows = [
            canary("a", FAILED),
            canary("b", PASSED),
            canary("c", JobState::Lost),
            AttemptFact { job: Some("xfail-2".into()), ..canary("a", FAILED) },
            attempt("a", "a", "a", 1, PASSED, 100),
        ];
        let never = DispatchFact { status: DispatchFactStatus::NeverStarted, ..push("d") };
        let waiting = push("e");
        let all = totals(&rows, &[push("a"), push("b"), push("c"), never, waiting]);
        assert_eq!((all.expected.seen, all.expected.not_seen), (2, 1));
        // The lost one, `xfail-2` on b and c, and both on the dispatch that started nothing.
        assert_eq!(all.expected.missing, 1 + 2 + 2);
        assert_eq!(all.expected.nonzero(), [(Seen, 2), (NotSeen, 1), (Missing, 5)]);
        assert_eq!(super::ExpectedCounts::default().nonzero(), []);
        let rate = all.sums.job_pass();
        assert_eq!((rate.numerator, rate.denominator), (1, 1));
        assert_eq!(jobs_of_record(&rows, []).len(), 1);
    }

    #[test]
    fn job_that_fails_on_purpose_may_still_come_while_others_of_its_commit_run() {
        let second = |sha| AttemptFact { job: Some("xfail-2".into()), ..canary(sha, FAILED) };
        let running = |job: &str| AttemptFact {
            job: Some(job.into()),
            ..attempt("b", "b", "b", 1, JobState::InProgress, 100)
        };
        let all = [canary("a", FAILED), second("a"), canary("b", FAILED)];
        let missing = |rows: &[AttemptFact]| totals(rows, &[push("a"), push("b")]).expected.missing;
        assert_eq!(missing(&all), 1);
        assert_eq!(missing(&[&all[..], &[running("test"), running("lint")][..]].concat()), 0);
    }

    #[test]
    fn commit_that_was_sent_twice_and_never_started_misses_its_jobs_once() {
        let never = |delivery: &str| DispatchFact {
            delivery: delivery.into(),
            status: DispatchFactStatus::NeverStarted,
            ..push("b")
        };
        let all = totals(&[canary("a", FAILED)], &[push("a"), never("b"), never("b2")]);
        assert_eq!((all.expected.seen, all.expected.missing), (1, 1));
    }

    #[test]
    fn running_jobs_that_will_fail_on_purpose_are_not_missing() {
        let rows = [canary("a", FAILED), attempt("b", "b", "b", 1, JobState::InProgress, 100)];
        let all = totals(&rows, &[push("a"), push("b")]);
        assert_eq!((all.expected.seen, all.expected.not_seen, all.expected.missing), (1, 0, 0));
    }
}
