//! The criteria for promotion to L3 and for staying there.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use super::jobs::{JobOfRecord, jobs_of_record};
use super::outcome::JobOutcome;
use super::rates::{
    DurationStats, MIN_SAMPLES, Rate, ResultCounts, end_to_end_seconds, execution_seconds,
    queue_seconds,
};
use crate::allowlist::level::Level;
use crate::results::facts::{AttemptFact, DispatchFact};

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
    /// To reach L2 and to stay there. Without targets, people decide.
    #[serde(skip_serializing_if = "LevelTargets::is_empty")]
    pub l2: LevelTargets,
    /// To reach L3 and to stay there, where it differs from the targets above.
    #[serde(skip_serializing_if = "LevelTargets::is_empty")]
    pub l3: LevelTargets,
    /// To stay at L4, where it differs from the targets above; with any target, also to reach L4.
    #[serde(skip_serializing_if = "LevelTargets::is_empty")]
    pub l4: LevelTargets,
}

#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum UpstreamFailures {
    #[default]
    Count,
    LeaveOut,
}

/// The targets of one level. What isn't set isn't a criterion.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct LevelTargets {
    pub queue_seconds: Option<f64>,
    pub overrun_seconds: Option<f64>,
    pub overrun_share: Option<f64>,
    pub end_to_end_seconds: Option<f64>,
    pub timeout_share: Option<f64>,
    pub job_pass_share: Option<f64>,
    /// Share of reports that must be valid.
    pub valid_report_share: Option<f64>,
    /// Share of passed jobs that may have failed before on the same commit.
    pub flake_share: Option<f64>,
    /// Jobs that must have run and passed: a job's name, or `workflow / job`.
    #[serde(deserialize_with = "names")]
    pub core_jobs: Vec<String>,
    /// Tests that must have run, and passed in most runs of their newest day: `CLASS.NAME` or `NAME`, as in
    /// the collected test results of the repository.
    #[serde(deserialize_with = "names")]
    pub core_tests: Vec<String>,
}

/// Refuses empty names and nulls.
fn names<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let names = Vec::<Option<String>>::deserialize(deserializer)?;
    let given = |name: Option<String>| name.filter(|name| !name.is_empty());
    let names: Option<Vec<_>> = names.into_iter().map(given).collect();
    names.ok_or_else(|| D::Error::custom("a name is empty"))
}

impl LevelTargets {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// More names would make a review slow.
const MAX_CORE_NAMES: usize = 100;

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
            l2: LevelTargets::default(),
            l3: LevelTargets::default(),
            l4: LevelTargets::default(),
        }
    }
}

/// The longest window of a review.
pub(crate) const LOOK_BACK_DAYS: u32 = 366;

impl LevelCriteria {
    /// The tests that the targets of any level name.
    pub fn core_tests(&self) -> Vec<String> {
        let levels = [&self.l2, &self.l3, &self.l4];
        let mut names: Vec<_> = levels.iter().flat_map(|l| l.core_tests.clone()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// What a repository needs to reach `level`, and to stay there.
    pub fn targets(&self, level: Level) -> LevelTargets {
        let own = match level {
            Level::L1 => return LevelTargets::default(),
            Level::L2 => return self.l2.clone(),
            Level::L3 => self.l3.clone(),
            Level::L4 => self.l4.clone(),
        };
        LevelTargets {
            queue_seconds: own.queue_seconds.or(Some(self.queue_seconds)),
            overrun_seconds: own.overrun_seconds.or(Some(self.overrun_seconds)),
            overrun_share: own.overrun_share.or(Some(self.overrun_share)),
            end_to_end_seconds: own.end_to_end_seconds.or(Some(self.end_to_end_seconds)),
            timeout_share: own.timeout_share.or(Some(self.timeout_share)),
            job_pass_share: own.job_pass_share.or(Some(self.job_pass_share)),
            ..own
        }
    }

    pub fn problems(&self) -> Vec<String> {
        let days = [
            ("promotion-days", self.promotion_days, 1),
            ("demotion-days", self.demotion_days, 1),
            ("days-at-l2", self.days_at_l2, 0),
            ("coverage-days", self.coverage_days, 0),
        ];
        let mut seconds = vec![
            ("queue-seconds".to_owned(), self.queue_seconds),
            ("overrun-seconds".to_owned(), self.overrun_seconds),
            ("end-to-end-seconds".to_owned(), self.end_to_end_seconds),
        ];
        let mut shares = vec![
            ("overrun-share".to_owned(), self.overrun_share),
            ("timeout-share".to_owned(), self.timeout_share),
            ("job-pass-share".to_owned(), self.job_pass_share),
        ];
        let levels = [("l2", &self.l2), ("l3", &self.l3), ("l4", &self.l4)];
        for (level, targets) in levels {
            let own = |name: &str, value: Option<f64>| Some((format!("{level}.{name}"), value?));
            seconds.extend(own("queue-seconds", targets.queue_seconds));
            seconds.extend(own("overrun-seconds", targets.overrun_seconds));
            seconds.extend(own("end-to-end-seconds", targets.end_to_end_seconds));
            shares.extend(own("overrun-share", targets.overrun_share));
            shares.extend(own("timeout-share", targets.timeout_share));
            shares.extend(own("job-pass-share", targets.job_pass_share));
            shares.extend(own("valid-report-share", targets.valid_report_share));
            shares.extend(own("flake-share", targets.flake_share));
        }
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
        for (level, targets) in levels {
            let named = [("jobs", &targets.core_jobs), ("tests", &targets.core_tests)];
            for (kind, names) in named.into_iter().filter(|(_, names)| names.len() > MAX_CORE_NAMES)
            {
                let count = names.len();
                problems
                    .push(format!("`{level}.core-{kind}`: at most {MAX_CORE_NAMES}, not {count}"));
            }
        }
        problems
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
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
    /// Share of reports that were valid.
    ValidReports,
    /// Share of passed jobs that had failed before on the same commit.
    Flakes,
    /// Share of the named jobs that ran and whose newest result is a pass.
    CoreJobs,
    /// Share of the named tests that ran and passed in most runs of their newest day.
    CoreTests,
}

names! {
    Criterion {
        TimeAtL2 "time_at_l2", Coverage "coverage", Queue "queue", Overrun "overrun",
        EndToEnd "end_to_end", Timeouts "timeouts", JobPass "job_pass",
        ValidReports "valid_reports", Flakes "flakes", CoreJobs "core_jobs",
        CoreTests "core_tests",
    }
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
            Self::ValidReports => "valid reports",
            Self::Flakes => "flakes",
            Self::CoreJobs => "core jobs",
            Self::CoreTests => "core tests",
        }
    }

    pub fn unit(self) -> CriterionUnit {
        match self {
            Self::TimeAtL2 | Self::Coverage => CriterionUnit::Days,
            Self::Queue | Self::EndToEnd => CriterionUnit::Seconds,
            Self::Overrun
            | Self::Timeouts
            | Self::JobPass
            | Self::ValidReports
            | Self::Flakes
            | Self::CoreJobs
            | Self::CoreTests => CriterionUnit::Share,
        }
    }
}

/// What the value and the target of a criterion are measured in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CriterionUnit {
    Days,
    Seconds,
    /// From 0 to 1.
    Share,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CriterionVerdict {
    Met,
    NotMet,
    /// There are too few samples.
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
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

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
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

impl CriterionEvidence {
    /// How many decimals, `least` or more, tell the value from the target, both times `scale`. A value that is rounded
    /// to its target would read as if it met it. `None` if they are equal.
    pub fn telling_decimals(&self, scale: f64, least: usize) -> Option<usize> {
        let value = self.value?;
        let text = |number: f64, decimals: usize| format!("{:.decimals$}", number * scale);
        (least..least + 6).find(|decimals| text(value, *decimals) != text(self.target, *decimals))
    }
}

/// The results of a test, or of all tests with one name, on one day.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedTestDay {
    /// The name as the criteria have it.
    pub name: String,
    /// The UTC day, as days since 1970.
    pub day: i64,
    /// Skipped runs of the test are left out.
    pub runs: u64,
    /// Failures and errors together.
    pub failures: u64,
}

impl NamedTestDay {
    /// A test that passes now and then isn't broken by one pull request.
    fn passes_mostly(&self) -> bool {
        self.failures * 2 < self.runs
    }
}

/// The facts of one repository within a window.
#[derive(Debug, Clone, Copy)]
pub struct ReviewWindow<'a> {
    pub attempts: &'a [&'a AttemptFact],
    /// The newest row of each of its dispatches.
    pub dispatches: &'a [&'a DispatchFact],
    /// Valid reports out of all received ones.
    pub reports: Rate,
    /// Results of the tests that the criteria name.
    pub core_tests: &'a [NamedTestDay],
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
pub(crate) fn promotion_of_jobs(
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
    found.extend(reaching(jobs, window, criteria, Level::L3));
    found
}

/// Evidence for the targets of a level that the repository may reach.
pub(crate) fn reaching(
    jobs: &[JobOfRecord<'_>],
    window: ReviewWindow<'_>,
    criteria: &LevelCriteria,
    level: Level,
) -> Vec<CriterionEvidence> {
    level_evidence(jobs, window, criteria, level, ThresholdBound::Under)
}

/// Evidence for the targets of the level that the repository has.
pub(crate) fn staying(
    jobs: &[JobOfRecord<'_>],
    window: ReviewWindow<'_>,
    criteria: &LevelCriteria,
    level: Level,
) -> Vec<CriterionEvidence> {
    level_evidence(jobs, window, criteria, level, ThresholdBound::AtMost)
}

/// Evidence for staying at L3. If a criterion isn't met, a demotion is proposed.
pub fn demotion(window: ReviewWindow<'_>, criteria: &LevelCriteria) -> Vec<CriterionEvidence> {
    let jobs = jobs_of_record(window.attempts.iter().copied(), window.dispatches.iter().copied());
    staying(&jobs, window, criteria, Level::L3)
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

/// Evidence for the targets of a level. Promotions and demotions only differ in the bound for the
/// end-to-end median: `< 3 h` promotes, `> 3 h` demotes, and exactly 3 h does neither.
fn level_evidence(
    jobs: &[JobOfRecord<'_>],
    window: ReviewWindow<'_>,
    criteria: &LevelCriteria,
    level: Level,
    end_to_end: ThresholdBound,
) -> Vec<CriterionEvidence> {
    let targets = criteria.targets(level);
    let overrun_seconds = targets.overrun_seconds.unwrap_or(criteria.overrun_seconds);
    let sums = ResultCounts::of(jobs, window.dispatches.iter().copied());
    let ended = jobs
        .iter()
        .filter(|job| !matches!(job.outcome, Some(JobOutcome::TimedOut | JobOutcome::Lost)));
    let mut overrun = Rate::default();
    for seconds in execution_seconds(ended) {
        let numerator = u64::from(seconds > overrun_seconds);
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
    let passed = sums.count(JobOutcome::Passed);
    let after_rerun = sums.count(JobOutcome::PassedAfterRerun);
    let flakes = Rate { numerator: after_rerun, denominator: passed + after_rerun };
    use Criterion as C;
    use ThresholdBound as B;
    let found = [
        targets.queue_seconds.map(|target| duration(C::Queue, queue, |d| d.mean, B::Under, target)),
        targets.overrun_share.map(|target| share(C::Overrun, overrun, B::Under, target)),
        targets
            .end_to_end_seconds
            .map(|target| duration(C::EndToEnd, whole, |d| d.p50, end_to_end, target)),
        targets.timeout_share.map(|target| share(C::Timeouts, timeouts, B::Under, target)),
        targets.job_pass_share.map(|target| share(C::JobPass, job_pass, B::Over, target)),
        targets
            .valid_report_share
            .map(|target| share(C::ValidReports, window.reports, B::AtLeast, target)),
        targets.flake_share.map(|target| share(C::Flakes, flakes, B::AtMost, target)),
        (!targets.core_jobs.is_empty()).then(|| core_jobs(jobs, &targets.core_jobs)),
        (!targets.core_tests.is_empty())
            .then(|| core_tests(window.core_tests, &targets.core_tests)),
    ];
    found.into_iter().flatten().collect()
}

/// Which share of the named jobs ran and passed, by the newest ended job of each. A job that didn't run counts
/// as not passed, unless none ran.
fn core_jobs(jobs: &[JobOfRecord<'_>], names: &[String]) -> CriterionEvidence {
    let newest = names.iter().map(|name| {
        let is_named = |job: &&JobOfRecord<'_>| {
            job.outcome.is_some_and(|outcome| outcome != JobOutcome::Superseded)
                && (job.record.job.as_deref() == Some(name) || job.name() == *name)
        };
        jobs.iter().filter(is_named).max_by_key(|job| job.record.received_at)
    });
    let ran: Vec<_> = newest.flatten().collect();
    let has_passed = |job: &&&JobOfRecord<'_>| {
        matches!(job.outcome, Some(JobOutcome::Passed | JobOutcome::PassedAfterRerun))
    };
    let passed = ran.iter().filter(has_passed).count();
    let value = (!ran.is_empty()).then(|| passed as f64 / names.len() as f64);
    evidence(Criterion::CoreJobs, value, ran.len() as u64, 1, ThresholdBound::AtLeast, 1.0)
}

/// Which share of the named tests ran and passed. A test that didn't run counts as not passed, unless none ran.
fn core_tests(days: &[NamedTestDay], names: &[String]) -> CriterionEvidence {
    let ran = names.iter().filter_map(|name| days.iter().find(|day| day.name == *name));
    let ran: Vec<_> = ran.collect();
    let passed = ran.iter().filter(|day| day.passes_mostly()).count();
    let value = (!ran.is_empty()).then(|| passed as f64 / names.len() as f64);
    evidence(Criterion::CoreTests, value, ran.len() as u64, 1, ThresholdBound::AtLeast, 1.0)
}
