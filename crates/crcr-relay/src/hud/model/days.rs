//! What the days of a span came to, computed once and kept until their facts change.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use crcr_domain::facts::CallbackFact;
use crcr_domain::results::tally::by_day;
use crcr_domain::results::{DayOf, Distribution, Tally};
use jiff::Timestamp;

use super::super::query::{Events, Span};
use super::super::{Hud, Problem};
use crate::results::retention::{after, midnight};
use crate::results::{Mark, Window};

/// Days of repositories that are kept at most.
const KEPT: usize = 20_000;

/// Days by repository, whose name is in lower case, and number, with the mark that their facts had.
type Known<T> = HashMap<(String, i64), (u64, T)>;

/// A day and what it came to.
pub(super) type OneDay = (DayOf, Arc<Tally>);

/// Days that were computed.
#[derive(Default)]
pub(in super::super) struct Days {
    tallies: Mutex<Known<Vec<OneDay>>>,
    callbacks: Mutex<Known<Arc<Reports>>>,
}

/// The reports of a day.
#[derive(Debug, Clone, Default)]
pub(in super::super) struct Reports {
    /// Reports by what became of them.
    pub(in super::super) outcomes: BTreeMap<&'static str, u64>,
    milliseconds: Vec<f64>,
}

impl Reports {
    fn of(callbacks: &[CallbackFact]) -> Self {
        let mut outcomes: BTreeMap<&'static str, u64> = BTreeMap::new();
        for callback in callbacks {
            *outcomes.entry(callback.outcome.as_str()).or_default() += 1;
        }
        Self { outcomes, milliseconds: callbacks.iter().map(|c| c.latency_ms).collect() }
    }

    fn add(&mut self, other: &Self) {
        for (outcome, count) in &other.outcomes {
            *self.outcomes.entry(outcome).or_default() += count;
        }
        self.milliseconds.extend(&other.milliseconds);
    }

    /// Seconds that the answers took.
    pub(in super::super) fn latency(&self) -> Option<Distribution> {
        Distribution::of(self.milliseconds.iter().map(|latency| latency / 1000.0))
    }
}

/// A day within a span, or the part of it that the span has.
struct Part {
    day: i64,
    window: Window,
    /// The whole day, or all of it that there is yet.
    whole: bool,
}

fn part(hud: &Hud, span: &Span, day: i64, repo: Option<&str>) -> Part {
    let (from, to) = (midnight(day).max(span.from), midnight(day + 1).min(span.to));
    let whole = from == midnight(day) && (to == midnight(day + 1) || span.to >= (hud.clock)());
    Part { day, window: Window { from, to, repo: repo.map(str::to_owned) }, whole }
}

fn lock<T>(known: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The tallies of the span's days and kind of event, of all repositories or one.
pub(in super::super) async fn days(
    hud: &Hud,
    span: &Span,
    repo: Option<&str>,
) -> Result<Vec<OneDay>, Problem> {
    let window = Window { from: span.from, to: span.to, repo: repo.map(str::to_owned) };
    let mut found = vec![];
    let mut rolled = HashSet::new();
    for day in hud.results.rolled(&window).await? {
        let number = crate::results::retention::day_number(&day.day);
        rolled.insert((day.day.repo.clone(), number));
        if part(hud, span, number, repo).whole {
            found.push((day.day, Arc::new(day.tally)));
        }
    }
    let mut missing: BTreeMap<i64, Vec<Mark>> = BTreeMap::new();
    for mark in hud.results.marks(&window).await? {
        let key = (mark.repo.clone(), mark.day);
        // Reports have marks of their own; a rolled-up day has no facts that count.
        if mark.repo.is_empty() || rolled.contains(&key) {
            continue;
        }
        let known = lock(&hud.days.tallies);
        match known.get(&key).filter(|(known, _)| *known == mark.mark) {
            Some((_, days)) if part(hud, span, mark.day, repo).whole => {
                found.extend(days.iter().cloned());
            }
            _ => missing.entry(mark.day).or_default().push(mark),
        }
    }
    // A day at a time, so that a long span costs time and not memory.
    for (day, marks) in missing {
        let only = match &marks[..] {
            [one] => Some(one.repo.as_str()),
            _ => repo,
        };
        let Part { window, whole, .. } = part(hud, span, day, only);
        let mut tallies: HashMap<String, Vec<OneDay>> = HashMap::new();
        let later = hud.results.dispatches(&after(&window)).await?;
        let attempts = hud.results.attempts(&window).await?;
        for (day, tally) in by_day(attempts, hud.results.dispatches(&window).await?, &later) {
            tallies.entry(day.repo.clone()).or_default().push((day, Arc::new(tally)));
        }
        let mut known = lock(&hud.days.tallies);
        if known.len() > KEPT {
            known.clear();
        }
        for mark in marks {
            let days = tallies.remove(&mark.repo).unwrap_or_default();
            found.extend(days.iter().cloned());
            if whole {
                known.insert((mark.repo, day), (mark.mark, days));
            }
        }
    }
    found.retain(|(day, _)| day.nightly == (span.events == Events::Nightly));
    Ok(found)
}

/// The reports of the span, of all repositories.
pub(in super::super) async fn reports(hud: &Hud, span: &Span) -> Result<Reports, Problem> {
    let window = Window { from: span.from, to: span.to, repo: Some(String::new()) };
    let mut sum = Reports::default();
    for mark in hud.results.marks(&window).await? {
        let Part { day, window, whole } = part(hud, span, mark.day, None);
        let key = (mark.repo, day);
        let known = lock(&hud.days.callbacks).get(&key).filter(|(m, _)| *m == mark.mark).cloned();
        if let Some((_, reports)) = known.filter(|_| whole) {
            sum.add(&reports);
            continue;
        }
        let reports = Arc::new(Reports::of(&hud.results.callbacks(&window).await?));
        sum.add(&reports);
        if whole {
            lock(&hud.days.callbacks).insert(key, (mark.mark, reports));
        }
    }
    Ok(sum)
}

/// The newest report of all that `days` tell of.
pub(in super::super) fn newest(days: &[OneDay]) -> Option<Timestamp> {
    days.iter().filter_map(|(_, tally)| tally.newest).max()
}
