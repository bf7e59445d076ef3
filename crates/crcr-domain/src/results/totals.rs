//! Daily totals that can be added up, so that a month is computed from thirty of them instead of a
//! hundred thousand rows.

use std::collections::BTreeMap;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use super::expected_counts::ExpectedCounts;
use super::jobs::{HeadHistory, JobOfRecord, find_jobs_of_record};
use super::rates::{
    DurationStats, ResultCounts, end_to_end_seconds, execution_seconds, queue_seconds,
};
use crate::results::facts::{AttemptFact, DispatchFact, DispatchFactStatus};

/// Totals of a set of dispatches and their jobs. Times are in milliseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResultTotals {
    pub sums: ResultCounts,
    queue: Vec<i64>,
    execution: Vec<i64>,
    end_to_end: Vec<i64>,
    dispatch: Vec<i64>,
    /// When the newest attempt was received.
    pub newest: Option<Timestamp>,
    pub statuses: BTreeMap<DispatchFactStatus, u64>,
    /// Counts the jobs that fail on purpose.
    pub expected: ExpectedCounts,
}

/// One UTC day of one downstream repository, whose name is in lower case.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RepoDay {
    pub repo: String,
    pub day: Date,
    /// Whether it counts nightly and periodic runs, or pull requests and pushes.
    pub nightly: bool,
}

impl ResultTotals {
    /// `jobs` are the jobs of record of `dispatches`, with those that fail on purpose.
    pub fn of(jobs: Vec<JobOfRecord<'_>>, dispatches: &[&DispatchFact]) -> Self {
        let newest = jobs.iter().map(|job| job.record.received_at).max();
        let expected = ExpectedCounts::of(&jobs, dispatches);
        let mut jobs = jobs;
        jobs.retain(|job| job.record.expected.is_none());
        let jobs = &*jobs;
        let all = || dispatches.iter().copied();
        let mut statuses: BTreeMap<DispatchFactStatus, u64> = BTreeMap::new();
        for dispatch in all() {
            *statuses.entry(dispatch.status).or_default() += 1;
        }
        Self {
            sums: ResultCounts::of(jobs, all()),
            queue: milliseconds(queue_seconds(jobs)),
            execution: milliseconds(execution_seconds(jobs)),
            end_to_end: milliseconds(end_to_end_seconds(jobs, all())),
            dispatch: milliseconds(all().filter_map(|dispatch| {
                Some(dispatch.sent_at?.duration_since(dispatch.enqueued_at).as_secs_f64())
            })),
            newest,
            statuses,
            expected,
        }
    }

    pub fn add(&mut self, other: &Self) {
        self.sums += &other.sums;
        self.queue.extend(&other.queue);
        self.execution.extend(&other.execution);
        self.end_to_end.extend(&other.end_to_end);
        self.dispatch.extend(&other.dispatch);
        self.newest = self.newest.max(other.newest);
        self.expected += other.expected;
        for (status, count) in &other.statuses {
            *self.statuses.entry(*status).or_default() += count;
        }
    }

    pub fn bytes(&self) -> usize {
        let times = [&self.queue, &self.execution, &self.end_to_end, &self.dispatch];
        size_of::<Self>() + times.map(|times| size_of_val(&**times)).iter().sum::<usize>()
    }

    pub fn queue(&self) -> Option<DurationStats> {
        seconds(&self.queue)
    }

    /// Run times of first attempts.
    pub fn execution(&self) -> Option<DurationStats> {
        seconds(&self.execution)
    }

    /// Times from a dispatch to the end of its last job.
    pub fn end_to_end(&self) -> Option<DurationStats> {
        seconds(&self.end_to_end)
    }

    /// Times from the acceptance of an event until GitHub accepted the dispatch.
    pub fn dispatch(&self) -> Option<DurationStats> {
        seconds(&self.dispatch)
    }
}

/// The jobs of record of each day by itself. Attempts belong to the day of their dispatch, so a job that
/// is dispatched again on another day counts on both. Every rate is computed from these: days can be
/// added up, and a sum of days agrees with a review of the same days.
pub fn jobs_of_days<'a, 'd>(
    attempts: impl IntoIterator<Item = &'a AttemptFact>,
    dispatches: impl IntoIterator<Item = &'d DispatchFact>,
) -> Vec<JobOfRecord<'a>> {
    let heads = HeadHistory::new(dispatches);
    let attempts = attempts.into_iter().filter(|row| row.expected.is_none());
    let days = split_days(attempts).into_values();
    days.flat_map(|attempts| find_jobs_of_record(attempts, &heads)).collect()
}

fn split_days<'a>(
    attempts: impl IntoIterator<Item = &'a AttemptFact>,
) -> BTreeMap<RepoDay, Vec<&'a AttemptFact>> {
    let mut days: BTreeMap<RepoDay, Vec<&AttemptFact>> = BTreeMap::new();
    for row in attempts {
        let day = RepoDay::new(&row.repo, row.dispatched_at, row.event.is_self_reported());
        days.entry(day).or_default().push(row);
    }
    days
}

/// Totals by repository and day. Attempts belong to the day of their dispatch.
///
/// `later`: dispatches of later days, which show which heads were replaced.
pub fn by_day(
    attempts: &[AttemptFact],
    dispatches: &[DispatchFact],
    later: &[DispatchFact],
) -> BTreeMap<RepoDay, ResultTotals> {
    let days = jobs_by_day(attempts, dispatches, later).into_iter();
    days.map(|(day, (jobs, dispatches))| (day, ResultTotals::of(jobs, &dispatches))).collect()
}

/// The jobs of record of a repository's day, with those that fail on purpose, and its dispatches.
pub type DayJobs<'a> = (Vec<JobOfRecord<'a>>, Vec<&'a DispatchFact>);

/// The jobs and the dispatches of each day, which [`by_day`] counts.
pub fn jobs_by_day<'a>(
    attempts: impl IntoIterator<Item = &'a AttemptFact>,
    dispatches: impl IntoIterator<Item = &'a DispatchFact, IntoIter: Clone>,
    later: impl IntoIterator<Item = &'a DispatchFact>,
) -> BTreeMap<RepoDay, DayJobs<'a>> {
    let dispatches = dispatches.into_iter();
    let heads = HeadHistory::new(dispatches.clone().chain(later));
    let jobs = |(day, rows)| (day, (find_jobs_of_record(rows, &heads), vec![]));
    let mut days: BTreeMap<RepoDay, DayJobs<'_>> =
        split_days(attempts).into_iter().map(jobs).collect();
    for dispatch in dispatches {
        let day =
            RepoDay::new(&dispatch.repo, dispatch.enqueued_at, dispatch.event.is_self_reported());
        days.entry(day).or_default().1.push(dispatch);
    }
    days
}

impl RepoDay {
    /// The UTC day of `at`.
    pub fn new(repo: &str, at: Timestamp, nightly: bool) -> Self {
        let day = at.to_zoned(TimeZone::UTC).date();
        Self { repo: repo.to_ascii_lowercase(), day, nightly }
    }
}

/// Sorted, which makes sorting the times of several days fast.
fn milliseconds(seconds: impl IntoIterator<Item = f64>) -> Vec<i64> {
    let rounded = seconds.into_iter().map(|seconds| (seconds * 1000.0).round() as i64);
    let mut all: Vec<i64> = rounded.collect();
    all.sort_unstable();
    all
}

fn seconds(milliseconds: &[i64]) -> Option<DurationStats> {
    DurationStats::of(milliseconds.iter().map(|number| *number as f64 / 1000.0))
}
