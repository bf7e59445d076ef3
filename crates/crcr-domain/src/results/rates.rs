//! Rates with their sample sizes, and statistics of durations.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::{Deserialize, Serialize};

use super::jobs::JobOfRecord;
use super::outcome::JobOutcome;
use crate::results::facts::{DispatchFact, DispatchFactStatus};

/// With fewer samples a rate is unknown.
pub(crate) const MIN_SAMPLES: u64 = 20;

#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema,
)]
pub struct Rate {
    pub numerator: u64,
    pub denominator: u64,
}

impl Rate {
    /// From 0 to 1; `None` without samples.
    pub fn value(self) -> Option<f64> {
        (self.denominator > 0).then(|| self.numerator as f64 / self.denominator as f64)
    }

    /// The same rate without this many of its failures.
    #[must_use]
    pub fn without_failures(self, failures: u64) -> Self {
        let denominator = self.denominator.saturating_sub(failures).max(self.numerator);
        Self { denominator, ..self }
    }

    /// Whether there are enough samples.
    pub fn is_known(self) -> bool {
        self.denominator >= MIN_SAMPLES
    }

    /// The 95 % Wilson score interval; `None` without samples.
    ///
    /// <https://en.wikipedia.org/wiki/Binomial_proportion_confidence_interval#Wilson_score_interval>
    pub fn wilson(self) -> Option<(f64, f64)> {
        const Z: f64 = 1.959_963_984_540_054;
        let p = self.value()?;
        let n = self.denominator as f64;
        let scale = 1.0 + Z * Z / n;
        let middle = (p + Z * Z / (2.0 * n)) / scale;
        let half = Z / scale * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt();
        Some(((middle - half).max(0.0), (middle + half).min(1.0)))
    }
}

impl std::ops::AddAssign for Rate {
    fn add_assign(&mut self, other: Self) {
        self.numerator += other.numerator;
        self.denominator += other.denominator;
    }
}

/// Counts from which rates are computed. The counts of several days can be added up.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ResultCounts {
    /// Jobs of record by outcome.
    pub outcomes: BTreeMap<JobOutcome, u64>,
    /// Jobs of record that still run.
    pub running: u64,
    /// Dispatches whose jobs all reached a verdict, out of those that are complete and weren't superseded.
    pub availability: Rate,
}

impl std::ops::AddAssign<&Self> for ResultCounts {
    fn add_assign(&mut self, other: &Self) {
        for (outcome, count) in &other.outcomes {
            *self.outcomes.entry(*outcome).or_default() += count;
        }
        self.running += other.running;
        self.availability += other.availability;
    }
}

impl ResultCounts {
    /// `jobs`: jobs of record. `dispatches`: the newest row of each.
    pub fn of<'a>(
        jobs: &[JobOfRecord<'_>],
        dispatches: impl IntoIterator<Item = &'a DispatchFact>,
    ) -> Self {
        let mut sums = Self::default();
        for job in jobs {
            match job.outcome {
                Some(outcome) => *sums.outcomes.entry(outcome).or_default() += 1,
                None => sums.running += 1,
            }
        }
        sums.availability = availability(jobs, dispatches);
        sums
    }

    pub fn count(&self, outcome: JobOutcome) -> u64 {
        self.outcomes.get(&outcome).copied().unwrap_or_default()
    }

    /// Jobs that passed, out of those whose tests passed or failed. Ignores infrastructure failures.
    pub fn test_pass(&self) -> Rate {
        let passed = self.passed();
        Rate { numerator: passed, denominator: passed + self.count(JobOutcome::TestFailed) }
    }

    /// Jobs that passed, out of all completed jobs that weren't superseded. Infrastructure failures and
    /// timeouts count as not passed.
    pub fn job_pass(&self) -> Rate {
        let ended: u64 = self.outcomes.values().sum();
        Rate { numerator: self.passed(), denominator: ended - self.count(JobOutcome::Superseded) }
    }

    /// Jobs that timed out or were lost, out of all completed jobs that weren't superseded.
    pub fn timeouts(&self) -> Rate {
        let numerator = self.count(JobOutcome::TimedOut) + self.count(JobOutcome::Lost);
        Rate { numerator, denominator: self.job_pass().denominator }
    }

    fn passed(&self) -> u64 {
        self.count(JobOutcome::Passed) + self.count(JobOutcome::PassedAfterRerun)
    }
}

/// Availability, per dispatch: one that never started is one failure; one with a job still
/// running is not counted yet.
fn availability<'a>(
    jobs: &[JobOfRecord<'_>],
    dispatches: impl IntoIterator<Item = &'a DispatchFact>,
) -> Rate {
    let mut by_dispatch: HashMap<(&str, &str), Vec<Option<JobOutcome>>> = HashMap::new();
    for job in jobs {
        let key = (job.record.repo.as_str(), job.record.delivery.as_str());
        by_dispatch.entry(key).or_default().push(job.outcome);
    }
    let mut seen = HashSet::new();
    let mut rate = Rate::default();
    for dispatch in dispatches {
        let key = (dispatch.repo.as_str(), dispatch.delivery.as_str());
        if !seen.insert(key) || dispatch.status == DispatchFactStatus::Superseded {
            continue;
        }
        let outcomes = by_dispatch.get(&key).map(Vec::as_slice).unwrap_or_default();
        let open = outcomes.iter().any(Option::is_none);
        let waiting = outcomes.is_empty() && dispatch.status != DispatchFactStatus::NeverStarted;
        let superseded = outcomes.contains(&Some(JobOutcome::Superseded));
        if open || waiting || superseded {
            continue;
        }
        rate.denominator += 1;
        let verdicts = outcomes.iter().flatten().all(|outcome| outcome.is_verdict());
        rate.numerator += u64::from(verdicts && !outcomes.is_empty());
    }
    rate
}

/// Statistics of durations in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, schemars::JsonSchema)]
pub struct DurationStats {
    pub n: u64,
    pub mean: f64,
    /// Half are at or under this.
    pub p50: f64,
    /// 95 % are at or under this.
    pub p95: f64,
    pub max: f64,
}

impl DurationStats {
    /// The statistics of these durations; `None` if there are none. Values that aren't finite and non-negative are left
    /// out. A percentile is the nearest rank: a duration that was seen, never one in between.
    pub fn of(seconds: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut all: Vec<f64> =
            seconds.into_iter().filter(|s| s.is_finite() && *s >= 0.0).collect();
        all.sort_by(f64::total_cmp);
        let max = *all.last()?;
        let rank = |share: f64| all[((share * all.len() as f64).ceil() as usize).max(1) - 1];
        Some(Self {
            n: all.len() as u64,
            mean: all.iter().sum::<f64>() / all.len() as f64,
            p50: rank(0.5),
            p95: rank(0.95),
            max,
        })
    }
}

/// Seconds that first attempts waited; re-runs and unknown starts are left out.
pub fn queue_seconds<'a>(
    jobs: impl IntoIterator<Item = &'a JobOfRecord<'a>>,
) -> impl Iterator<Item = f64> {
    first_attempts(jobs).filter_map(|job| job.first.queue_seconds)
}

/// Seconds that first attempts ran; re-runs and unknown starts are left out.
pub fn execution_seconds<'a>(
    jobs: impl IntoIterator<Item = &'a JobOfRecord<'a>>,
) -> impl Iterator<Item = f64> {
    first_attempts(jobs).filter_map(|job| job.first.execution_seconds)
}

fn first_attempts<'a>(
    jobs: impl IntoIterator<Item = &'a JobOfRecord<'a>>,
) -> impl Iterator<Item = &'a JobOfRecord<'a>> {
    jobs.into_iter().filter(|job| job.first.run_attempt <= 1 && !job.first.start_unknown)
}

/// Seconds from the dispatch to the end of its last job, per dispatch with nothing running. First
/// attempts count: a person decides when a re-run begins. A run whose last job never ended counts up
/// to the sweep.
pub fn end_to_end_seconds<'a>(
    jobs: &[JobOfRecord<'_>],
    dispatches: impl IntoIterator<Item = &'a DispatchFact>,
) -> Vec<f64> {
    let mut last: HashMap<(&str, &str), Option<jiff::Timestamp>> = HashMap::new();
    for job in jobs.iter().filter(|job| job.first.run_attempt <= 1) {
        let key = (job.first.repo.as_str(), job.first.delivery.as_str());
        let end = (!job.first.state.is_open()).then_some(job.first.received_at);
        last.entry(key)
            .and_modify(|known| *known = known.zip(end).map(|(a, b)| a.max(b)))
            .or_insert(end);
    }
    let mut seen = HashSet::new();
    dispatches
        .into_iter()
        .filter_map(|dispatch| {
            let key = (dispatch.repo.as_str(), dispatch.delivery.as_str());
            let end = last.get(&key).copied().flatten().filter(|_| seen.insert(key))?;
            Some(end.duration_since(dispatch.enqueued_at).as_secs_f64())
        })
        .collect()
}
