//! What is known of a day: its tally, its reports and its facts.

use std::collections::BTreeMap;
use std::sync::Arc;

use crcr_domain::results::facts::{AttemptFact, DispatchFact};
use crcr_domain::results::{BlamedJobs, DurationStats, RepoDay, ResultTotals};
use crcr_results::{ReportOutcome, Window};

/// The tally of one repository's day.
pub(crate) type DayTally = (RepoDay, Arc<ResultTotals>);

/// Counts and latencies of the reports of one or more days.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReportSummary {
    pub(crate) outcomes: BTreeMap<&'static str, u64>,
    /// Whole microseconds, ascending within a day.
    pub(crate) latencies: Vec<i64>,
}

impl ReportSummary {
    pub(crate) fn new(answers: &[ReportOutcome]) -> Self {
        let mut outcomes: BTreeMap<&'static str, u64> = BTreeMap::new();
        for answer in answers {
            *outcomes.entry(answer.outcome.as_str()).or_default() += 1;
        }
        let microseconds = |answer: &ReportOutcome| (answer.latency_ms * 1000.0).round() as i64;
        let mut latencies: Vec<i64> = answers.iter().map(microseconds).collect();
        latencies.sort_unstable();
        Self { outcomes, latencies }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (outcome, count) in &other.outcomes {
            *self.outcomes.entry(outcome).or_default() += count;
        }
        self.latencies.extend(&other.latencies);
    }

    /// How long the relay took to answer, in seconds.
    pub(crate) fn latency(mut self) -> Option<DurationStats> {
        // The days are sorted already, so the stable sort only merges them.
        self.latencies.sort();
        DurationStats::of(self.latencies.iter().map(|latency| *latency as f64 / 1e6))
    }
}

/// The attempts and dispatches of one repository's day, for events of every kind.
#[derive(Default)]
pub(crate) struct DayFacts {
    pub(crate) repo: String,
    /// The UTC day, as days since 1970.
    pub(crate) day: i64,
    pub(crate) attempts: Vec<AttemptFact>,
    pub(crate) dispatches: Vec<DispatchFact>,
}

/// Whose fault the failures of a repository's day are.
pub(crate) struct DayBlame {
    pub(crate) verdicts: BlamedJobs,
    /// Differs if a verdict does.
    pub(crate) digest: u64,
}

/// Facts of whole days, unordered and shared with the cache.
pub(crate) struct SharedFacts(pub(crate) Vec<Arc<DayFacts>>);

impl SharedFacts {
    pub(crate) fn attempts(&self, window: &Window) -> impl Iterator<Item = &AttemptFact> {
        let all = self.0.iter().flat_map(|day| &day.attempts);
        all.filter(|row| window.contains(row.dispatched_at))
    }

    pub(crate) fn dispatches(&self, window: &Window) -> impl Iterator<Item = &DispatchFact> {
        let all = self.0.iter().flat_map(|day| &day.dispatches);
        all.filter(|sent| window.contains(sent.enqueued_at))
    }
}
