//! The content of each page as data, computed from facts as `crcr_domain::results` defines it. The
//! JSON twins serialise these types.

pub(crate) mod backend_cells;
pub(crate) mod breakage;
pub(crate) mod commit_jobs;
pub(crate) mod days;
pub(crate) mod head;
pub(crate) mod head_state;
pub(crate) mod job_details;
pub(crate) mod known_repositories;
pub(crate) mod oncall_reaction;
pub(crate) mod open_pulls;
pub(crate) mod red_branches;

use std::collections::BTreeMap;
use std::sync::Arc;

use crcr_domain::results::totals::DayJobs;
use crcr_domain::results::{DurationStats, JobOutcome, Rate, RepoDay, ResultTotals, jobs_by_day};
use crcr_results::Window;
use crcr_results::retention::{last_day, midnight};
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use crate::query::{ShownEvents, TimeSpan};

/// A window of 24 hours begins at a full hour, so it touches one more.
const MAX_HOURS: i64 = 25;

/// A rate with its value, confidence interval and whether there are enough samples.
#[derive(Debug, Clone, Copy, Serialize, schemars::JsonSchema)]
pub(crate) struct RateView {
    #[serde(flatten)]
    pub(crate) rate: Rate,
    /// 0 to 1; `None` without samples.
    pub(crate) value: Option<f64>,
    /// Wilson interval at 95 %, 0 to 1.
    pub(crate) interval: Option<(f64, f64)>,
    /// Whether there are enough samples to show the value.
    pub(crate) known: bool,
}

impl From<Rate> for RateView {
    fn from(rate: Rate) -> Self {
        Self { rate, value: rate.value(), interval: rate.wilson(), known: rate.is_known() }
    }
}

/// Rates, times and counts of a set of jobs.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub(crate) struct RateSummary {
    pub(crate) availability: RateView,
    pub(crate) test_pass: RateView,
    pub(crate) job_pass: RateView,
    pub(crate) queue: Option<DurationStats>,
    pub(crate) execution: Option<DurationStats>,
    pub(crate) end_to_end: Option<DurationStats>,
    pub(crate) outcomes: BTreeMap<JobOutcome, u64>,
    pub(crate) running: u64,
}

impl RateSummary {
    pub(crate) fn new(tally: &ResultTotals) -> Self {
        let sums = &tally.sums;
        Self {
            availability: sums.availability.into(),
            test_pass: sums.test_pass().into(),
            job_pass: sums.job_pass().into(),
            queue: tally.queue(),
            execution: tally.execution(),
            end_to_end: tally.end_to_end(),
            running: sums.running,
            outcomes: sums.outcomes.clone(),
        }
    }
}

/// One day of a trend chart, or one hour; times in seconds.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub(crate) struct TrendDay {
    pub(crate) date: Date,
    /// When the hour began; `None` for a day.
    pub(crate) hour: Option<Timestamp>,
    pub(crate) job_pass: Rate,
    pub(crate) availability: Rate,
    pub(crate) queue_p50: Option<f64>,
    pub(crate) queue_p95: Option<f64>,
    pub(crate) execution_p50: Option<f64>,
    pub(crate) execution_p95: Option<f64>,
}

/// One entry for every day of the span, including days without results. A job belongs to the day of
/// its dispatch.
pub(crate) fn trend(span: &TimeSpan, tallies: &[(RepoDay, Arc<ResultTotals>)]) -> Vec<TrendDay> {
    let mut days: BTreeMap<Date, ResultTotals> = BTreeMap::new();
    let mut date = utc_date(span.from);
    let last = utc_date(midnight(last_day(&Window::all(span.from, span.to))));
    while date <= last && days.len() < 400 {
        days.insert(date, ResultTotals::default());
        let Ok(next) = date.tomorrow() else { break };
        date = next;
    }
    for (of, tally) in tallies {
        if let Some(day) = days.get_mut(&of.day) {
            day.add(tally);
        }
    }
    days.into_iter().map(|(date, tally)| TrendDay::new(date, None, &tally)).collect()
}

/// One entry for each hour of a short span, of one repository.
pub(crate) fn hourly_trend(span: &TimeSpan, facts: &days::SharedFacts) -> Vec<TrendDay> {
    let window = Window::all(span.from, span.to);
    let mut hours: BTreeMap<i64, ResultTotals> = BTreeMap::new();
    for ((hour, _), totals) in totals_by_hour(facts, &window, span.events) {
        hours.insert(hour, totals);
    }
    let starts = (0..MAX_HOURS).map(|n| (n, span.from + SignedDuration::from_hours(n)));
    let starts = starts.take_while(|(_, start)| *start < span.to);
    let of_hour = |(n, start): (i64, Timestamp)| {
        let totals = hours.remove(&n).unwrap_or_default();
        TrendDay::new(utc_date(start), Some(start), &totals)
    };
    starts.map(of_hour).collect()
}

/// Totals by hour since the window's start, and by repository in lower case. A job counts once a day, in the hour of
/// the dispatch of its attempt of record, so the hours of a day add up to [`days::day_tallies`]. `facts` reach beyond
/// the window if heads may be replaced after it.
pub(crate) fn totals_by_hour(
    facts: &days::SharedFacts,
    window: &Window,
    events: ShownEvents,
) -> BTreeMap<(i64, String), ResultTotals> {
    let later = Window::all(window.to, Timestamp::MAX);
    let sent: Vec<_> = facts.dispatches(window).collect();
    let days = jobs_by_day(facts.attempts(window), sent.iter().copied(), facts.dispatches(&later));
    let nightly = events == ShownEvents::Nightly;
    let hour = |at: Timestamp| at.duration_since(window.from).as_hours();
    let mut hours: BTreeMap<(i64, String), DayJobs<'_>> = BTreeMap::new();
    for (day, (jobs, dispatches)) in days.into_iter().filter(|(day, _)| day.nightly == nightly) {
        for job in jobs {
            let key = (hour(job.record.dispatched_at), day.repo.clone());
            hours.entry(key).or_default().0.push(job);
        }
        for dispatch in dispatches {
            let key = (hour(dispatch.enqueued_at), day.repo.clone());
            hours.entry(key).or_default().1.push(dispatch);
        }
    }
    let totals = |(key, (jobs, sent)): (_, DayJobs<'_>)| (key, ResultTotals::of(jobs, &sent));
    hours.into_iter().map(totals).collect()
}

impl TrendDay {
    fn new(date: Date, hour: Option<Timestamp>, tally: &ResultTotals) -> Self {
        let (queue, execution) = (tally.queue(), tally.execution());
        Self {
            date,
            hour,
            job_pass: tally.sums.job_pass(),
            availability: tally.sums.availability,
            queue_p50: queue.map(|d| d.p50),
            queue_p95: queue.map(|d| d.p95),
            execution_p50: execution.map(|d| d.p50),
            execution_p95: execution.map(|d| d.p95),
        }
    }
}

/// The sum of these days.
pub(crate) fn total(tallies: &[(RepoDay, Arc<ResultTotals>)]) -> ResultTotals {
    let mut total = ResultTotals::default();
    for (_, tally) in tallies {
        total.add(tally);
    }
    total
}

fn utc_date(time: Timestamp) -> Date {
    time.to_zoned(TimeZone::UTC).date()
}
