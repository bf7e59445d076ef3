//! The criteria for promotion to L3 and for staying there.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::jobs::{JobOfRecord, jobs_of_record};
use super::outcome::JobOutcome;
use super::rates::{
    DurationStats, MIN_SAMPLES, Rate, ResultCounts, end_to_end_seconds, execution_seconds,
    queue_seconds,
};
use crate::facts::{AttemptFact, DispatchFact};
use crate::level::Level;

/// Thresholds, which a configuration file can override.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct LevelCriteria {
    /// Length of the window for promotions.
    pub promotion_days: u32,
    /// Length of the window for demotions.
    pub demotion_days: u32,
    /// Days at L2 before a promotion.
    pub days_at_l2: u32,
    /// Days with results before a promotion.
    pub coverage_days: u32,
    /// Limit for the average wait of first attempts.
    pub queue_seconds: f64,
    /// A job that runs longer is an overrun.
    pub overrun_seconds: f64,
    /// Share of jobs that may overrun.
    pub overrun_share: f64,
    /// Limit for the median time from dispatch to the last result.
    pub end_to_end_seconds: f64,
    /// Share of jobs that may time out.
    pub timeout_share: f64,
    /// Share of jobs that must pass.
    pub job_pass_share: f64,
    /// Whether failures that upstream caused count against this share.
    pub upstream_failures: UpstreamFailures,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UpstreamFailures {
    #[default]
    Count,
    LeaveOut,
}

impl Default for LevelCriteria {
    fn default() -> Self {
        Self {
            promotion_days: 14,
            demotion_days: 7,
            days_at_l2: 30,
            coverage_days: 14,
            queue_seconds: 30.0 * 60.0,
            overrun_seconds: 3.0 * 3600.0,
            overrun_share: 0.01,
            end_to_end_seconds: 3.0 * 3600.0,
            timeout_share: 0.01,
            job_pass_share: 0.9,
            upstream_failures: UpstreamFailures::Count,
        }
    }
}

/// The longest window of a review.
pub const LOOK_BACK_DAYS: u32 = 366;

impl LevelCriteria {
    /// Describes every invalid threshold.
    pub fn problems(&self) -> Vec<String> {
        let days = [
            ("promotion-days", self.promotion_days, 1),
            ("demotion-days", self.demotion_days, 1),
            ("days-at-l2", self.days_at_l2, 0),
            ("coverage-days", self.coverage_days, 0),
        ];
        let seconds = [
            ("queue-seconds", self.queue_seconds),
            ("overrun-seconds", self.overrun_seconds),
            ("end-to-end-seconds", self.end_to_end_seconds),
        ];
        let shares = [
            ("overrun-share", self.overrun_share),
            ("timeout-share", self.timeout_share),
            ("job-pass-share", self.job_pass_share),
        ];
        let mut problems = Vec::new();
        for (name, value, least) in days {
            if !(least..=LOOK_BACK_DAYS).contains(&value) {
                problems.push(format!("`{name}`: {least} to {LOOK_BACK_DAYS} days, not {value}"));
            }
        }
        if self.coverage_days > self.promotion_days {
            problems.push(format!(
                "`coverage-days`: at most `promotion-days`, {}, not {}",
                self.promotion_days, self.coverage_days
            ));
        }
        for (name, value) in seconds {
            if !(value.is_finite() && value > 0.0) {
                problems.push(format!("`{name}`: a number of seconds above 0, not {value}"));
            }
        }
        for (name, value) in shares {
            if !(0.0..=1.0).contains(&value) {
                problems.push(format!("`{name}`: a share from 0 to 1, not {value}"));
            }
        }
        problems
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Criterion {
    /// Days since the repository has been at L2.
    TimeAtL2,
    /// Days in the window with results.
    Coverage,
    /// Average wait of first attempts, in seconds.
    Queue,
    /// Share of jobs over the limit, without timeouts.
    Overrun,
    /// Median time from dispatch to last result, in seconds.
    EndToEnd,
    /// Share of jobs that timed out.
    Timeouts,
    /// Share of jobs that passed.
    JobPass,
}

impl Criterion {
    pub fn title(self) -> &'static str {
        match self {
            Self::TimeAtL2 => "time at L2",
            Self::Coverage => "data coverage",
            Self::Queue => "average queue",
            Self::Overrun => "overrun",
            Self::EndToEnd => "end to end P50",
            Self::Timeouts => "timeouts",
            Self::JobPass => "CI job pass rate",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CriterionVerdict {
    Met,
    NotMet,
    /// Too few samples.
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ThresholdBound {
    #[serde(rename = ">=")]
    AtLeast,
    #[serde(rename = ">")]
    Over,
    #[serde(rename = "<=")]
    AtMost,
    #[serde(rename = "<")]
    Under,
}

impl ThresholdBound {
    pub fn sign(self) -> &'static str {
        match self {
            Self::AtLeast => "≥",
            Self::Over => ">",
            Self::AtMost => "≤",
            Self::Under => "<",
        }
    }

    fn holds(self, value: f64, target: f64) -> bool {
        match self {
            Self::AtLeast => value >= target,
            Self::Over => value > target,
            Self::AtMost => value <= target,
            Self::Under => value < target,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CriterionEvidence {
    pub criterion: Criterion,
    /// Days, seconds or a share from 0 to 1; `None` without samples.
    pub value: Option<f64>,
    pub bound: ThresholdBound,
    /// In the same unit as `value`.
    pub target: f64,
    pub n: u64,
    pub verdict: CriterionVerdict,
}

/// The facts of one repository within a window.
#[derive(Debug, Clone, Copy)]
pub struct ReviewWindow<'a> {
    pub attempts: &'a [&'a AttemptFact],
    /// The newest row of each of its dispatches.
    pub dispatches: &'a [&'a DispatchFact],
    pub until: Timestamp,
    /// How many of its jobs of record failed because of upstream.
    pub upstream_failures: u64,
}

/// Evidence for a promotion to L3. `at_l2_since`: when the repository reached L2.
pub fn promotion(
    window: ReviewWindow<'_>,
    at_l2_since: Option<Timestamp>,
    criteria: &LevelCriteria,
) -> Vec<CriterionEvidence> {
    let jobs = jobs_of_record(window.attempts.iter().copied(), window.dispatches.iter().copied());
    promotion_of_jobs(&jobs, window, at_l2_since, criteria)
}

/// `jobs` are the jobs of record of the window.
pub(super) fn promotion_of_jobs(
    jobs: &[JobOfRecord<'_>],
    window: ReviewWindow<'_>,
    at_l2_since: Option<Timestamp>,
    criteria: &LevelCriteria,
) -> Vec<CriterionEvidence> {
    let days_at_l2 =
        at_l2_since.map(|since| window.until.duration_since(since).as_secs_f64() / 86_400.0);
    let covered: BTreeSet<_> = window
        .attempts
        .iter()
        .map(|row| row.received_at.to_zoned(jiff::tz::TimeZone::UTC).date())
        .collect();
    // For days, the value itself is the number of samples.
    let days = |value: Option<f64>, criterion, target: u32| {
        let n = value.map_or(0, |value| value as u64);
        evidence(criterion, value, n, 0, ThresholdBound::AtLeast, f64::from(target))
    };
    let mut found = vec![
        days(days_at_l2, Criterion::TimeAtL2, criteria.days_at_l2),
        days(Some(covered.len() as f64), Criterion::Coverage, criteria.coverage_days),
    ];
    found.extend(common_evidence(jobs, window, criteria, ThresholdBound::Under));
    found
}

/// Evidence for staying at L3. If a criterion isn't met, a demotion is proposed.
pub fn demotion(window: ReviewWindow<'_>, criteria: &LevelCriteria) -> Vec<CriterionEvidence> {
    let jobs = jobs_of_record(window.attempts.iter().copied(), window.dispatches.iter().copied());
    demotion_of_jobs(&jobs, window, criteria)
}

/// `jobs` are the jobs of record of the window.
pub(super) fn demotion_of_jobs(
    jobs: &[JobOfRecord<'_>],
    window: ReviewWindow<'_>,
    criteria: &LevelCriteria,
) -> Vec<CriterionEvidence> {
    common_evidence(jobs, window, criteria, ThresholdBound::AtMost)
}

/// When the repository reached `level`: the first dispatch of the newest series at that level.
///
/// `dispatches`: all of the repository, in any order. A dispatch at another level ends the series.
pub fn at_level_since(dispatches: &[DispatchFact], level: Level) -> Option<Timestamp> {
    let mut by_time: Vec<_> = dispatches.iter().collect();
    by_time.sort_by_key(|dispatch| std::cmp::Reverse(dispatch.enqueued_at));
    by_time
        .iter()
        .take_while(|dispatch| dispatch.level == level)
        .last()
        .map(|dispatch| dispatch.enqueued_at)
}

/// The verdict is unknown with fewer than `least` samples.
fn evidence(
    criterion: Criterion,
    value: Option<f64>,
    n: u64,
    least: u64,
    bound: ThresholdBound,
    target: f64,
) -> CriterionEvidence {
    let verdict = match value.filter(|_| n >= least) {
        Some(value) if bound.holds(value, target) => CriterionVerdict::Met,
        Some(_) => CriterionVerdict::NotMet,
        None => CriterionVerdict::Unknown,
    };
    CriterionEvidence { criterion, value, bound, target, n, verdict }
}

/// Evidence for the criteria that promotions and demotions share. They only differ in the bound for the
/// end-to-end median: `< 3 h` promotes, `> 3 h` demotes, and exactly 3 h does neither.
fn common_evidence(
    jobs: &[JobOfRecord<'_>],
    window: ReviewWindow<'_>,
    criteria: &LevelCriteria,
    end_to_end: ThresholdBound,
) -> Vec<CriterionEvidence> {
    let sums = ResultCounts::of(jobs, window.dispatches.iter().copied());
    let ended = jobs
        .iter()
        .filter(|job| !matches!(job.outcome, Some(JobOutcome::TimedOut | JobOutcome::Lost)));
    let mut overrun = Rate::default();
    for seconds in execution_seconds(ended) {
        let numerator = u64::from(seconds > criteria.overrun_seconds);
        overrun += Rate { numerator, denominator: 1 };
    }
    let duration =
        |criterion, of: Option<DurationStats>, value: fn(DurationStats) -> f64, bound, target| {
            let n = of.map_or(0, |of| of.n);
            evidence(criterion, of.map(value), n, MIN_SAMPLES, bound, target)
        };
    let share = |criterion, rate: Rate, bound, target| {
        evidence(criterion, rate.value(), rate.denominator, MIN_SAMPLES, bound, target)
    };
    let queue = DurationStats::of(queue_seconds(jobs));
    let whole = DurationStats::of(end_to_end_seconds(jobs, window.dispatches.iter().copied()));
    let left_out = match criteria.upstream_failures {
        UpstreamFailures::Count => 0,
        UpstreamFailures::LeaveOut => window.upstream_failures,
    };
    let (timeouts, job_pass) = (sums.timeouts(), sums.job_pass().without_failures(left_out));
    use Criterion as C;
    vec![
        duration(C::Queue, queue, |d| d.mean, ThresholdBound::Under, criteria.queue_seconds),
        share(C::Overrun, overrun, ThresholdBound::Under, criteria.overrun_share),
        duration(C::EndToEnd, whole, |d| d.p50, end_to_end, criteria.end_to_end_seconds),
        share(C::Timeouts, timeouts, ThresholdBound::Under, criteria.timeout_share),
        share(C::JobPass, job_pass, ThresholdBound::Over, criteria.job_pass_share),
    ]
}
