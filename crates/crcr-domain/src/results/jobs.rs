//! Which attempt of a job counts.

use std::cmp::Ordering;
use std::collections::HashMap;

use jiff::Timestamp;
use serde::Serialize;

use super::outcome::{JobOutcome, outcome};
use crate::facts::{AttemptFact, DispatchFact};

/// A job on a commit, by its attempt of record.
#[derive(Debug, Clone, Serialize)]
pub struct JobOfRecord<'a> {
    /// The attempt of record: the highest attempt of the newest run.
    pub record: &'a AttemptFact,
    /// How that attempt turned out; `None` while it runs.
    pub outcome: Option<JobOutcome>,
    /// The first attempt of that run, whose queue and execution times count: a person decides
    /// when a re-run begins.
    pub first: &'a AttemptFact,
    /// Attempts seen on this commit, over all runs.
    pub attempts: usize,
}

impl JobOfRecord<'_> {
    /// Its workflow and its own name, as people read them.
    pub fn name(&self) -> String {
        match &self.record.job {
            Some(name) => format!("{} / {name}", self.record.workflow),
            None => self.record.workflow.clone(),
        }
    }
}

/// The jobs of record, in the order of their commit, repository, workflow and name.
///
/// A job is (repository, upstream, head SHA, event, workflow, job). Of it counts the highest
/// attempt within the newest run; the newest run is the one that began last. `dispatches` tell which
/// commit of a pull request was its head when an attempt ended.
pub fn jobs_of_record<'a, 'd>(
    rows: impl IntoIterator<Item = &'a AttemptFact>,
    dispatches: impl IntoIterator<Item = &'d DispatchFact>,
) -> Vec<JobOfRecord<'a>> {
    find_jobs_of_record(rows.into_iter().collect(), &HeadHistory::new(dispatches))
}

/// The jobs of record of `rows`; `heads` may know of more than these rows' dispatches.
pub(super) fn find_jobs_of_record<'a>(
    mut rows: Vec<&'a AttemptFact>,
    heads: &HeadHistory<'_>,
) -> Vec<JobOfRecord<'a>> {
    // Sorted, and not hashed: of most keys the commit alone is looked at.
    rows.sort_unstable_by(|a, b| job_key(a).cmp(&job_key(b)).then_with(|| by_version(a, b)));
    let same = |a: &&AttemptFact, b: &&AttemptFact| job_key(a) == job_key(b);
    let began = began(&rows, rows.chunk_by(same));
    rows.chunk_by(same)
        .filter_map(|rows| {
            // Of an attempt's rows, which are ordered by version, the last one holds: a late
            // `in_progress` hides nothing.
            let mut attempts: Vec<&AttemptFact> = Vec::with_capacity(rows.len());
            for row in rows {
                match attempts.last_mut().filter(|last| attempt_key(last) == attempt_key(row)) {
                    Some(last) => *last = row,
                    None => attempts.push(row),
                }
            }
            attempts.sort_by_key(|row| {
                let run = row.run_id.as_str();
                (began.get(&(row.repo.as_str(), run)).copied(), run, row.version())
            });
            let record = *attempts.last()?;
            let first = *attempts.iter().find(|row| row.run_id == record.run_id)?;
            let failed_before = attempts.iter().any(|row| {
                !std::ptr::eq(*row, record)
                    && matches!(
                        outcome(row, false, false),
                        Some(
                            JobOutcome::TestFailed | JobOutcome::InfraFailed | JobOutcome::TimedOut
                        )
                    )
            });
            Some(JobOfRecord {
                outcome: outcome(record, heads.had_newer_head(record), failed_before),
                record,
                first,
                attempts: attempts.len(),
            })
        })
        .collect()
}

type JobKey<'a> = (&'a str, &'a str, &'a str, &'a str, &'a str, Option<&'a str>);

/// The commit comes first: it tells most jobs apart.
fn job_key(row: &AttemptFact) -> JobKey<'_> {
    (&row.head_sha, &row.repo, &row.upstream, row.event.as_str(), &row.workflow, row.job.as_deref())
}

type AttemptKey<'a> = (&'a str, &'a str, u32, Option<&'a str>);

/// What tells attempts of one job apart.
fn attempt_key(row: &AttemptFact) -> AttemptKey<'_> {
    (&row.delivery, &row.run_id, row.run_attempt, row.check_run_id.as_deref())
}

fn by_version(a: &AttemptFact, b: &AttemptFact) -> Ordering {
    (attempt_key(a), a.version()).cmp(&(attempt_key(b), b.version()))
}

/// When runs began, of the jobs that more than one run had; others needn't be compared.
fn began<'a: 'r, 'r>(
    rows: &[&'a AttemptFact],
    jobs: impl Iterator<Item = &'r [&'a AttemptFact]>,
) -> HashMap<(&'a str, &'a str), Timestamp> {
    let run = |row: &'a AttemptFact| (row.repo.as_str(), row.run_id.as_str());
    let several = jobs.filter(|rows| rows.iter().any(|row| row.run_id != rows[0].run_id));
    let mut began: HashMap<_, _> =
        several.flatten().map(|row| (run(row), Timestamp::MAX)).collect();
    if !began.is_empty() {
        for row in rows {
            if let Some(at) = began.get_mut(&run(row)) {
                *at = row.began().min(*at);
            }
        }
    }
    began
}

/// The heads of pull requests that a downstream repository was told of, in the order of time.
///
/// A head that it was not told of cancels nothing there; and whoever reads one repository's facts
/// has to come to the same as who reads all.
pub(super) struct HeadHistory<'a>(HashMap<PullKey<'a>, Vec<(Timestamp, &'a str)>>);

/// The downstream repository, the upstream one, and the number.
type PullKey<'a> = (&'a str, &'a str, u64);

impl<'a> HeadHistory<'a> {
    pub(super) fn new(dispatches: impl IntoIterator<Item = &'a DispatchFact>) -> Self {
        let mut heads: HashMap<_, Vec<_>> = HashMap::new();
        for dispatch in dispatches {
            if let Some(number) = dispatch.pull_request {
                heads
                    .entry((dispatch.repo.as_str(), dispatch.upstream.as_str(), number))
                    .or_default()
                    .push((dispatch.enqueued_at, dispatch.head_sha.as_str()));
            }
        }
        for list in heads.values_mut() {
            list.sort_unstable();
        }
        Self(heads)
    }

    /// Whether the pull request of `row` had another head when the row was received.
    fn had_newer_head(&self, row: &AttemptFact) -> bool {
        let Some(number) = row.pull_request else { return false };
        let key = (row.repo.as_str(), row.upstream.as_str(), number);
        let Some(list) = self.0.get(&key) else { return false };
        let until = list.partition_point(|(at, _)| *at <= row.received_at);
        list[..until].last().is_some_and(|(_, head)| *head != row.head_sha)
    }
}
