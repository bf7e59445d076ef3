//! Which attempt of a job counts.

use std::collections::HashMap;

use jiff::Timestamp;
use serde::Serialize;

use super::outcome::{Outcome, outcome};
use crate::facts::{AttemptFact, DispatchFact};
use crate::lifecycle::State;

/// A job on a commit, by its attempt of record.
#[derive(Debug, Clone, Serialize)]
pub struct Job<'a> {
    /// The attempt of record: the highest attempt of the newest run.
    pub record: &'a AttemptFact,
    /// How that attempt turned out; `None` while it runs.
    pub outcome: Option<Outcome>,
    /// The first attempt of that run, whose queue and execution times count: a person decides
    /// when a re-run begins.
    pub first: &'a AttemptFact,
    /// Attempts seen on this commit, over all runs.
    pub attempts: usize,
}

impl Job<'_> {
    /// Its workflow and its own name, as people read them.
    #[must_use]
    pub fn name(&self) -> String {
        match &self.record.job {
            Some(name) => format!("{} / {name}", self.record.workflow),
            None => self.record.workflow.clone(),
        }
    }
}

/// The newest row of every attempt: of the rows with one key the one with the greatest version,
/// so that a late `in_progress` hides nothing.
#[must_use]
pub fn current_rows(rows: &[AttemptFact]) -> Vec<&AttemptFact> {
    let mut newest: HashMap<AttemptKey<'_>, &AttemptFact> = HashMap::new();
    for row in rows {
        let slot = newest.entry(attempt_key(row)).or_insert(row);
        if row.version() > slot.version() {
            *slot = row;
        }
    }
    let mut rows: Vec<_> = newest.into_values().collect();
    rows.sort_by(|a, b| (a.received_at, attempt_key(a)).cmp(&(b.received_at, attempt_key(b))));
    rows
}

type AttemptKey<'a> = (&'a str, &'a str, &'a str, Option<&'a str>, &'a str, u32, Option<&'a str>);

fn attempt_key(row: &AttemptFact) -> AttemptKey<'_> {
    (
        &row.repo,
        &row.delivery,
        &row.workflow,
        row.job.as_deref(),
        &row.run_id,
        row.run_attempt,
        row.check_run_id.as_deref(),
    )
}

/// The jobs of record, in the order of their repository, commit, workflow and name.
///
/// A job is (repository, upstream, head SHA, event, workflow, job). Of it counts the highest
/// attempt within the newest run; the newest run is the one that began last. `dispatches` tell which commit of a pull request was its head when an attempt ended.
#[must_use]
pub fn jobs_of_record<'a>(rows: &'a [AttemptFact], dispatches: &[DispatchFact]) -> Vec<Job<'a>> {
    jobs_among(rows, &Heads::new(dispatches))
}

/// The jobs of record of `rows`; `heads` may know of more than these rows' dispatches.
pub(super) fn jobs_among<'a>(rows: &'a [AttemptFact], heads: &Heads<'_>) -> Vec<Job<'a>> {
    let mut began: HashMap<(&str, &str), Timestamp> = HashMap::new();
    for row in rows {
        let at = began.entry((&row.repo, &row.run_id)).or_insert(row.began());
        *at = row.began().min(*at);
    }
    let mut by_job: HashMap<_, Vec<&AttemptFact>> = HashMap::new();
    for row in current_rows(rows) {
        let key = (
            row.repo.as_str(),
            row.upstream.as_str(),
            row.head_sha.as_str(),
            row.event.as_str(),
            row.workflow.as_str(),
            row.job.as_deref(),
        );
        by_job.entry(key).or_default().push(row);
    }
    let mut jobs: Vec<_> = by_job.into_iter().collect();
    jobs.sort_by(|a, b| a.0.cmp(&b.0));
    jobs.into_iter()
        .filter_map(|(_, mut attempts)| {
            attempts.sort_by_key(|row| {
                let began = began[&(row.repo.as_str(), row.run_id.as_str())];
                (began, row.run_id.as_str(), row.version())
            });
            let record = *attempts.last()?;
            let first = *attempts.iter().find(|row| row.run_id == record.run_id)?;
            let failed_before = attempts.iter().any(|row| {
                !std::ptr::eq(*row, record)
                    && matches!(
                        outcome(row, false, false),
                        Some(Outcome::TestFailed | Outcome::InfraFailed | Outcome::TimedOut)
                    )
            });
            Some(Job {
                outcome: outcome(record, heads.moved_on(record), failed_before),
                record,
                first,
                attempts: attempts.len(),
            })
        })
        .collect()
}

/// The heads of pull requests that a downstream repository was told of, in the order of time.
///
/// A head that it was not told of cancels nothing there; and whoever reads one repository's facts
/// has to come to the same as who reads all.
pub(super) struct Heads<'a>(HashMap<PullKey<'a>, Vec<(Timestamp, &'a str)>>);

/// The downstream repository, the upstream one, and the number.
type PullKey<'a> = (&'a str, &'a str, u64);

impl<'a> Heads<'a> {
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
    fn moved_on(&self, row: &AttemptFact) -> bool {
        let Some(number) = row.pull_request else { return false };
        let key = (row.repo.as_str(), row.upstream.as_str(), number);
        let Some(list) = self.0.get(&key) else { return false };
        let until = list.partition_point(|(at, _)| *at <= row.received_at);
        list[..until].last().is_some_and(|(_, head)| *head != row.head_sha)
    }
}

/// Whether a row of this state may still change.
#[must_use]
pub fn is_open(row: &AttemptFact) -> bool {
    matches!(row.state, State::Dispatched | State::InProgress)
}
