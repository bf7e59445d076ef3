//! What a repository has to show to be promoted to L3, and what takes it back to L2.

use std::collections::BTreeSet;

use jiff::{Timestamp, ToSpan as _};
use serde::{Deserialize, Serialize};

use super::jobs::jobs_of_record;
use super::outcome::Outcome;
use super::rates::{
    Distribution, MIN_SAMPLES, Rate, Sums, end_to_end_seconds, execution_seconds, queue_seconds,
};
use crate::facts::{AttemptFact, DispatchFact};
use crate::level::Level;

/// The thresholds; a configuration file may change each of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Criteria {
    /// Days that a promotion looks back.
    pub promotion_days: u32,
    /// Days that a demotion looks back.
    pub demotion_days: u32,
    /// Days at L2 before a promotion.
    pub days_at_l2: u32,
    /// Days with results before a promotion.
    pub coverage_days: u32,
    /// Seconds that the average first attempt may wait.
    pub queue_seconds: f64,
    /// Seconds after which a job overruns.
    pub overrun_seconds: f64,
    /// Share of jobs that may overrun.
    pub overrun_share: f64,
    /// Seconds from dispatch to the last result, in the median.
    pub end_to_end_seconds: f64,
    /// Share of jobs that may time out.
    pub timeout_share: f64,
    /// Share of jobs that have to pass.
    pub job_pass_share: f64,
}

impl Default for Criteria {
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
        }
    }
}

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Criterion {
    /// Days since the repository has been at L2.
    TimeAtL2,
    /// Days of the window with results.
    Coverage,
    /// Average wait of first attempts, in seconds.
    Queue,
    /// Share of jobs over the limit, time-outs left out.
    Overrun,
    /// Median of dispatch to last result, in seconds.
    EndToEnd,
    /// Share of jobs that timed out.
    Timeouts,
    /// Share of jobs that passed.
    JobPass,
}

impl Criterion {
    /// As people call it.
    #[must_use]
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

/// What the facts say to a criterion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It holds.
    Met,
    /// It doesn't.
    NotMet,
    /// There are too few samples to tell.
    Unknown,
}

/// A criterion with the evidence for its verdict.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Evidence {
    /// What is asked.
    pub criterion: Criterion,
    /// What the facts say: days, seconds or a share of 1; `None` of nothing.
    pub value: Option<f64>,
    /// What it is compared with, in the same unit.
    pub target: f64,
    /// How many samples.
    pub n: u64,
    /// What follows.
    pub verdict: Verdict,
}

/// The facts of one repository within a window.
#[derive(Debug, Clone, Copy)]
pub struct Window<'a> {
    /// Rows of its jobs.
    pub attempts: &'a [AttemptFact],
    /// The newest row of each of its dispatches.
    pub dispatches: &'a [DispatchFact],
    /// When the window ends.
    pub until: Timestamp,
}

/// What speaks for a promotion to L3. `at_l2_since` is when the repository came to L2.
#[must_use]
pub fn promotion(
    window: Window<'_>,
    at_l2_since: Option<Timestamp>,
    criteria: &Criteria,
) -> Vec<Evidence> {
    let days_at_l2 =
        at_l2_since.map(|since| window.until.duration_since(since).as_secs_f64() / 86_400.0);
    let covered: BTreeSet<_> = window
        .attempts
        .iter()
        .map(|row| row.received_at.to_zoned(jiff::tz::TimeZone::UTC).date())
        .collect();
    let days = |value: Option<f64>, criterion, target: u32| Evidence {
        criterion,
        value,
        target: f64::from(target),
        n: value.map_or(0, |value| value as u64),
        verdict: match value {
            Some(value) if value >= f64::from(target) => Verdict::Met,
            Some(_) => Verdict::NotMet,
            None => Verdict::Unknown,
        },
    };
    let mut evidence = vec![
        days(days_at_l2, Criterion::TimeAtL2, criteria.days_at_l2),
        days(Some(covered.len() as f64), Criterion::Coverage, criteria.coverage_days),
    ];
    evidence.extend(signals(window, criteria, Side::Promotion));
    evidence
}

/// What speaks for keeping L3: a criterion that isn't met asks for a demotion.
#[must_use]
pub fn demotion(window: Window<'_>, criteria: &Criteria) -> Vec<Evidence> {
    signals(window, criteria, Side::Demotion)
}

/// The start of the window that a promotion looks at.
#[must_use]
pub fn promotion_from(until: Timestamp, criteria: &Criteria) -> Timestamp {
    until
        .saturating_sub((24 * i64::from(criteria.promotion_days)).hours())
        .unwrap_or(Timestamp::MIN)
}

/// The start of the window that a demotion looks at.
#[must_use]
pub fn demotion_from(until: Timestamp, criteria: &Criteria) -> Timestamp {
    until.saturating_sub((24 * i64::from(criteria.demotion_days)).hours()).unwrap_or(Timestamp::MIN)
}

/// Since when the repository is at `level`: when the newest run of dispatches at that level began.
///
/// `dispatches` are all of the repository's, in any order; a dispatch at another level ends a run.
#[must_use]
pub fn at_level_since(dispatches: &[DispatchFact], level: Level) -> Option<Timestamp> {
    let mut by_time: Vec<_> = dispatches.iter().collect();
    by_time.sort_by_key(|dispatch| std::cmp::Reverse(dispatch.enqueued_at));
    by_time
        .iter()
        .take_while(|dispatch| dispatch.level == level)
        .last()
        .map(|dispatch| dispatch.enqueued_at)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Promotion,
    Demotion,
}

fn signals(window: Window<'_>, criteria: &Criteria, side: Side) -> Vec<Evidence> {
    let jobs = jobs_of_record(window.attempts, window.dispatches);
    let sums = Sums::of(&jobs, window.dispatches);
    let queue = Distribution::of(queue_seconds(&jobs));
    let end_to_end = Distribution::of(end_to_end_seconds(&jobs, window.dispatches));
    let mut overrun = Rate::default();
    let ended: Vec<_> = jobs
        .iter()
        .filter(|job| !matches!(job.outcome, Some(Outcome::TimedOut | Outcome::Lost)))
        .cloned()
        .collect();
    for seconds in execution_seconds(&ended) {
        overrun +=
            Rate { numerator: u64::from(seconds > criteria.overrun_seconds), denominator: 1 };
    }
    // On the threshold itself a promotion and a demotion differ only for the median of end to end
    // (`< 3 h` promotes, `> 3 h` demotes); everywhere else one is the other's opposite.
    let evidence =
        |criterion, value: Option<f64>, n, target, good: fn(f64, f64) -> bool| Evidence {
            criterion,
            value,
            target,
            n,
            verdict: match value {
                Some(value) if n >= MIN_SAMPLES => {
                    if good(value, target) {
                        Verdict::Met
                    } else {
                        Verdict::NotMet
                    }
                }
                _ => Verdict::Unknown,
            },
        };
    let median_holds: fn(f64, f64) -> bool =
        if side == Side::Promotion { |v, t| v < t } else { |v, t| v <= t };
    let (timeouts, job_pass) = (sums.timeouts(), sums.job_pass());
    vec![
        evidence(
            Criterion::Queue,
            queue.map(|d| d.mean),
            queue.map_or(0, |d| d.n),
            criteria.queue_seconds,
            |v, t| v < t,
        ),
        evidence(
            Criterion::Overrun,
            overrun.value(),
            overrun.denominator,
            criteria.overrun_share,
            |v, t| v < t,
        ),
        evidence(
            Criterion::EndToEnd,
            end_to_end.map(|d| d.p50),
            end_to_end.map_or(0, |d| d.n),
            criteria.end_to_end_seconds,
            median_holds,
        ),
        evidence(
            Criterion::Timeouts,
            timeouts.value(),
            timeouts.denominator,
            criteria.timeout_share,
            |v, t| v < t,
        ),
        evidence(
            Criterion::JobPass,
            job_pass.value(),
            job_pass.denominator,
            criteria.job_pass_share,
            |v, t| v > t,
        ),
    ]
}
