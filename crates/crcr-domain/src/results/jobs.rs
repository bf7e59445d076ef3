//! Selects the attempt of a job that counts: its attempt of record.

use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap, HashSet};

use jiff::Timestamp;
use serde::Serialize;

use super::outcome::{JobOutcome, outcome};
use crate::results::facts::{AttemptFact, DispatchFact};

/// A job on a commit, by its attempt of record.
#[derive(Debug, Clone, Serialize)]
pub struct JobOfRecord<'a> {
    /// The attempt of record: the highest attempt of the newest run.
    pub record: &'a AttemptFact,
    /// `None` while it runs.
    pub outcome: Option<JobOutcome>,
    /// The first attempt of that run. Its queue and execution times count, because the start of a re-run
    /// is a human decision.
    pub first: &'a AttemptFact,
    /// Number of attempts on this commit, in all runs.
    pub attempts: usize,
    /// In how many attempts of its runs its tests failed. Several legs of a matrix may have its name.
    #[serde(skip)]
    pub failed_attempts: usize,
}

impl JobOfRecord<'_> {
    /// What pages call it: `workflow / job`.
    pub fn name(&self) -> String {
        match &self.record.job {
            Some(name) => format!("{} / {name}", self.record.workflow),
            None => self.record.workflow.clone(),
        }
    }
}

/// The jobs of record, ordered by commit, repository, workflow and name.
///
/// Two attempts belong to the same job if they have the same repository, upstream, event, workflow, job name and head SHA
/// (without a commit, the same run). Of the run that began last, the highest attempt counts. `dispatches` show which
/// commit was the head of a pull request when an attempt ended. Jobs that fail on purpose are left out.
pub fn jobs_of_record<'a, 'd>(
    rows: impl IntoIterator<Item = &'a AttemptFact>,
    dispatches: impl IntoIterator<Item = &'d DispatchFact>,
) -> Vec<JobOfRecord<'a>> {
    let rows = rows.into_iter().filter(|row| row.expected.is_none()).collect();
    find_jobs_of_record(rows, &HeadHistory::new(dispatches))
}

/// `heads` may include dispatches without rows.
pub(crate) fn find_jobs_of_record<'a>(
    mut rows: Vec<&'a AttemptFact>,
    heads: &HeadHistory<'_>,
) -> Vec<JobOfRecord<'a>> {
    // Sorting is faster than hashing here: most comparisons end at the commit.
    rows.sort_unstable_by(|a, b| job_key(a).cmp(&job_key(b)).then_with(|| by_version(a, b)));
    let same = |a: &&AttemptFact, b: &&AttemptFact| job_key(a) == job_key(b);
    let began = began(&rows, rows.chunk_by(same));
    rows.chunk_by(same)
        .filter_map(|rows| {
            // Rows are ordered by version, and the last row of an attempt wins.
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
            // Only asked of a record that has passed.
            let has_failed = attempts.iter().any(|row| {
                matches!(
                    outcome(row, false, false),
                    Some(JobOutcome::TestFailed | JobOutcome::InfraFailed | JobOutcome::TimedOut)
                )
            });
            let failed = attempts.iter().filter(|row| {
                outcome(row, false, false) == Some(JobOutcome::TestFailed)
                    && may_have_failed_alike(row, record)
            });
            let failed: BTreeSet<_> =
                failed.map(|row| (row.run_id.as_str(), row.run_attempt)).collect();
            Some(JobOfRecord {
                failed_attempts: failed.len(),
                outcome: outcome(record, heads.had_newer_head(record), has_failed),
                record,
                first,
                attempts: attempts.len(),
            })
        })
        .collect()
}

/// Whether both failed in a common test, as far as their tests are known.
pub(crate) fn may_have_failed_alike(one: &AttemptFact, other: &AttemptFact) -> bool {
    let (one, other) = (&one.details.failed_tests, &other.details.failed_tests);
    let names: HashSet<&str> = one.iter().map(|test| test.name.as_str()).collect();
    names.is_empty() || other.is_empty() || other.iter().any(|test| names.contains(&*test.name))
}

type JobKey<'a> = (&'a str, &'a str, &'a str, &'a str, &'a str, Option<&'a str>);

/// The commit comes first, because it differs most often.
fn job_key(row: &AttemptFact) -> JobKey<'_> {
    (
        row.commit_or_run(),
        &row.repo,
        &row.upstream,
        row.event.as_str(),
        &row.workflow,
        row.job.as_deref(),
    )
}

type AttemptKey<'a> = (&'a str, &'a str, u32, Option<&'a str>);

fn attempt_key(row: &AttemptFact) -> AttemptKey<'_> {
    (&row.delivery, &row.run_id, row.run_attempt, row.details.check_run_id.as_deref())
}

fn by_version(a: &AttemptFact, b: &AttemptFact) -> Ordering {
    (attempt_key(a), a.version()).cmp(&(attempt_key(b), b.version()))
}

/// When runs began, only for jobs with more than one run.
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

/// The heads of pull requests that were dispatched to a downstream repository, ordered by time.
///
/// Heads that were not dispatched to a repository supersede nothing there. So the facts of one repository
/// give the same result as the facts of all.
pub(crate) struct HeadHistory<'a>(HashMap<PullKey<'a>, Vec<(Timestamp, &'a str)>>);

/// The downstream repository, the upstream one, and the number.
type PullKey<'a> = (&'a str, &'a str, u64);

impl<'a> HeadHistory<'a> {
    pub(crate) fn new(dispatches: impl IntoIterator<Item = &'a DispatchFact>) -> Self {
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

    /// Whether the pull request had another head when the row was received.
    fn had_newer_head(&self, row: &AttemptFact) -> bool {
        let Some(number) = row.pull_request else { return false };
        let key = (row.repo.as_str(), row.upstream.as_str(), number);
        let Some(list) = self.0.get(&key) else { return false };
        let until = list.partition_point(|(at, _)| *at <= row.received_at);
        list[..until].last().is_some_and(|(_, head)| *head != row.head_sha)
    }
}
