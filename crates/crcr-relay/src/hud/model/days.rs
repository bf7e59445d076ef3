//! The facts of days and what they came to, read and computed once and kept until they change.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use crcr_domain::facts::{AttemptFact, DispatchFact};
use crcr_domain::results::tally::by_day;
use crcr_domain::results::{DayOf, Distribution, Tally};
use jiff::Timestamp;

use super::super::query::{Events, Span};
use super::super::{Hud, Problem};
use crate::results::retention::{day_number, day_of, heads_until, midnight};
use crate::results::{Answer, Mark, Window};

/// Days of repositories whose sums are kept at most.
const SUMS_KEPT: usize = 20_000;
/// Facts that are kept at most: about a kilobyte each.
const FACTS_KEPT: usize = 50_000;
/// Facts that are read at a time, more or less, so that a long span costs time and not memory.
const AT_A_TIME: u64 = 20_000;

/// A day and what it came to.
pub(super) type OneDay = (DayOf, Arc<Tally>);

/// Days that were read and computed.
pub(in super::super) struct Days {
    tallies: Known<Vec<OneDay>>,
    reports: Known<Arc<Reports>>,
    facts: Known<Arc<Facts>>,
    pushes: Known<Arc<Facts>>,
}

impl Default for Days {
    fn default() -> Self {
        Self {
            tallies: Known::new(SUMS_KEPT),
            reports: Known::new(SUMS_KEPT),
            facts: Known::new(FACTS_KEPT),
            pushes: Known::new(FACTS_KEPT),
        }
    }
}

/// The reports of a day.
#[derive(Debug, Clone, Default)]
pub(in super::super) struct Reports {
    /// Reports by what became of them.
    pub(in super::super) outcomes: BTreeMap<&'static str, u64>,
    /// Whole microseconds, ascending within a day.
    latencies: Vec<i64>,
}

impl Reports {
    fn of(answers: &[Answer]) -> Self {
        let mut outcomes: BTreeMap<&'static str, u64> = BTreeMap::new();
        for answer in answers {
            *outcomes.entry(answer.outcome.as_str()).or_default() += 1;
        }
        let microseconds = |answer: &Answer| (answer.latency_ms * 1000.0).round() as i64;
        let mut latencies: Vec<i64> = answers.iter().map(microseconds).collect();
        latencies.sort_unstable();
        Self { outcomes, latencies }
    }

    fn add(&mut self, other: &Self) {
        for (outcome, count) in &other.outcomes {
            *self.outcomes.entry(outcome).or_default() += count;
        }
        self.latencies.extend(&other.latencies);
    }

    /// Seconds that the answers took.
    pub(in super::super) fn latency(mut self) -> Option<Distribution> {
        // Of runs that are sorted, the sort is a merge.
        self.latencies.sort();
        Distribution::of(self.latencies.iter().map(|latency| *latency as f64 / 1e6))
    }
}

/// A day within a span, or the part of it that the span has.
#[derive(Debug, Clone, Copy)]
struct Part {
    day: i64,
    from: Timestamp,
    to: Timestamp,
    kept: Option<Kept>,
}

/// As what a part is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kept {
    /// The whole day.
    Whole,
    /// The first day of the window of this name, which begins at a full hour.
    First(&'static str),
}

impl Part {
    fn of(span: &Span, day: i64) -> Self {
        let (begin, end) = (midnight(day), midnight(day + 1));
        let from = begin.max(span.from);
        // Of today there is nothing after now.
        let to = if span.until_now { end } else { end.min(span.to) };
        let kept = match (from == begin, to == end) {
            (true, true) => Some(Kept::Whole),
            // Anybody may ask for any other part.
            (false, true) => span.window.map(Kept::First),
            _ => None,
        };
        Self { day, from, to, kept }
    }
}

/// What parts of days came to, by repository, whose name is in lower case, and day, with how often
/// the day had been written.
struct Known<T> {
    limit: usize,
    found: Mutex<HashMap<(String, i64, Kept), Found<T>>>,
}

struct Found<T> {
    changes: u64,
    from: Timestamp,
    weight: usize,
    what: T,
}

impl<T: Clone> Known<T> {
    fn new(limit: usize) -> Self {
        Self { limit, found: Mutex::default() }
    }

    fn get(&self, mark: &Mark, part: &Part) -> Option<T> {
        let known = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known.get(&(mark.repo.clone(), mark.day, part.kept?))?;
        (found.changes == mark.changes && found.from == part.from).then(|| found.what.clone())
    }

    fn put(&self, mark: Mark, part: &Part, weight: usize, what: T) {
        let Some(kept) = part.kept else { return };
        let mut known = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let Mark { repo, day, changes } = mark;
        known.insert((repo, day, kept), Found { changes, from: part.from, weight, what });
        // Counted anew each time: a sum kept beside it could go wrong.
        if known.values().map(|found| found.weight).sum::<usize>() > self.limit {
            known.clear();
        }
    }
}

/// The tallies of the span's days and kind of event, of all repositories or one.
pub(in super::super) async fn days(
    hud: &Hud,
    span: &Span,
    repo: Option<&str>,
) -> Result<Vec<OneDay>, Problem> {
    let all = Window::all(span.from, span.to);
    let window = match repo {
        Some(repo) => all.of(vec![repo.to_owned()]),
        None => all,
    };
    let marks = async { hud.results.marks(&window).await.map_err(Problem::from) };
    let (rolled, marks) = tokio::try_join!(rolled(hud, &window), marks)?;
    days_of(hud, span, rolled, &marks).await
}

/// The same, and the span's reports, of all repositories.
pub(in super::super) async fn days_and_reports(
    hud: &Hud,
    span: &Span,
) -> Result<(Vec<OneDay>, Reports), Problem> {
    let window = Window::all(span.from, span.to);
    let marks = async { hud.results.marks(&window).await.map_err(Problem::from) };
    let (rolled, marks) = tokio::try_join!(rolled(hud, &window), marks)?;
    tokio::try_join!(days_of(hud, span, rolled, &marks), reports(hud, span, &marks))
}

async fn rolled(hud: &Hud, window: &Window) -> Result<Vec<OneDay>, Problem> {
    let rolled = hud.results.rolled(window).await?;
    Ok(rolled.into_iter().map(|rolled| (rolled.day, Arc::new(rolled.tally))).collect())
}

async fn days_of(
    hud: &Hud,
    span: &Span,
    rolled: Vec<OneDay>,
    marks: &[Mark],
) -> Result<Vec<OneDay>, Problem> {
    let part = |day| Part::of(span, day);
    // A rolled-up day has no facts that count, and no parts.
    let gone: HashSet<_> =
        rolled.iter().map(|(day, _)| (day.repo.clone(), day_number(day))).collect();
    let mut found: Vec<OneDay> = rolled
        .into_iter()
        .filter(|(day, _)| part(day_number(day)).kept == Some(Kept::Whole))
        .collect();
    let mut missing: BTreeMap<i64, Vec<Mark>> = BTreeMap::new();
    for mark in marks {
        // Reports have marks of their own.
        if mark.repo.is_empty() || gone.contains(&(mark.repo.clone(), mark.day)) {
            continue;
        }
        match hud.days.tallies.get(mark, &part(mark.day)) {
            Some(days) => found.extend(days),
            None => missing.entry(mark.day).or_default().push(mark.clone()),
        }
    }
    for mut missing in portions(missing) {
        let parts: Vec<Part> = missing.keys().map(|day| part(*day)).collect();
        let repos: BTreeSet<String> =
            missing.values().flatten().map(|mark| mark.repo.clone()).collect();
        let mut facts = read(hud, &parts, repos.into_iter().collect()).await?;
        for part in parts {
            let (attempts, dispatches, later) = facts.of(&part);
            let mut tallies: HashMap<String, Vec<OneDay>> = HashMap::new();
            for (day, tally) in by_day(attempts, dispatches, later) {
                tallies.entry(day.repo.clone()).or_default().push((day, Arc::new(tally)));
            }
            for mark in missing.remove(&part.day).unwrap_or_default() {
                let days = tallies.remove(&mark.repo).unwrap_or_default();
                found.extend(days.iter().cloned());
                hud.days.tallies.put(mark, &part, 1, days);
            }
        }
    }
    found.retain(|(day, _)| day.nightly == (span.events == Events::Nightly));
    Ok(found)
}

/// Days in a row, as many as are read at a time.
fn portions(missing: BTreeMap<i64, Vec<Mark>>) -> Vec<BTreeMap<i64, Vec<Mark>>> {
    let mut portions: Vec<BTreeMap<i64, Vec<Mark>>> = Vec::new();
    let (mut facts, mut next) = (0, None);
    for (day, marks) in missing {
        let more: u64 = marks.iter().map(|mark| mark.changes).sum();
        facts += more;
        if next != Some(day) || facts > AT_A_TIME {
            portions.push(BTreeMap::new());
            facts = more;
        }
        next = Some(day + 1);
        portions.last_mut().expect("one was just pushed").insert(day, marks);
    }
    portions
}

/// Facts of a few days in a row.
struct Several {
    /// By day.
    attempts: HashMap<i64, Vec<AttemptFact>>,
    /// In the order of time.
    dispatches: Vec<DispatchFact>,
}

async fn read(hud: &Hud, parts: &[Part], repos: Vec<String>) -> Result<Several, Problem> {
    let from = parts.first().map_or(Timestamp::MIN, |part| part.from);
    let to = parts.last().map_or(Timestamp::MIN, |part| part.to);
    let window = Window::all(from, to).of(repos);
    // The heads of the days after tell what they replaced.
    let heads = Window { to: heads_until(to), ..window.clone() };
    let (attempts, dispatches) =
        tokio::try_join!(hud.results.attempts(&window), hud.results.dispatches(&heads))?;
    let mut by_day: HashMap<i64, Vec<AttemptFact>> = HashMap::new();
    for row in attempts {
        by_day.entry(day_of(row.dispatched_at)).or_default().push(row);
    }
    Ok(Several { attempts: by_day, dispatches })
}

impl Several {
    /// Takes the attempts of a part; and tells its dispatches and the later ones that matter to it.
    fn of(&mut self, part: &Part) -> (Vec<AttemptFact>, Vec<DispatchFact>, &[DispatchFact]) {
        let attempts = self.attempts.remove(&part.day).unwrap_or_default();
        let until = |time| self.dispatches.partition_point(|sent| sent.enqueued_at < time);
        let (from, to) = (until(part.from), until(part.to));
        let later = &self.dispatches[to..until(heads_until(part.to))];
        (attempts, self.dispatches[from..to].to_vec(), later)
    }
}

/// The reports of the span, of all repositories.
async fn reports(hud: &Hud, span: &Span, marks: &[Mark]) -> Result<Reports, Problem> {
    let mut sum = Reports::default();
    let mut missing: BTreeMap<i64, Vec<Mark>> = BTreeMap::new();
    for mark in marks.iter().filter(|mark| mark.repo.is_empty()) {
        match hud.days.reports.get(mark, &Part::of(span, mark.day)) {
            Some(reports) => sum.add(&reports),
            None => missing.entry(mark.day).or_default().push(mark.clone()),
        }
    }
    for missing in portions(missing) {
        let parts: Vec<Part> = missing.keys().map(|day| Part::of(span, *day)).collect();
        let from = parts.first().map_or(Timestamp::MIN, |part| part.from);
        let to = parts.last().map_or(Timestamp::MIN, |part| part.to);
        let mut by_day: HashMap<i64, Vec<Answer>> = HashMap::new();
        for answer in hud.results.answers(&Window::all(from, to)).await? {
            by_day.entry(day_of(answer.at)).or_default().push(answer);
        }
        for (part, mark) in parts.iter().zip(missing.into_values().flatten()) {
            let reports = Arc::new(Reports::of(&by_day.remove(&part.day).unwrap_or_default()));
            sum.add(&reports);
            hud.days.reports.put(mark, part, 1, reports);
        }
    }
    Ok(sum)
}

/// Attempts and dispatches, of events of every kind.
#[derive(Default)]
pub(in super::super) struct Facts {
    pub(in super::super) attempts: Vec<AttemptFact>,
    pub(in super::super) dispatches: Vec<DispatchFact>,
}

impl Facts {
    /// Those of a window.
    pub(in super::super) fn within(&self, window: &Window) -> Self {
        let mut found = Self::default();
        found.add(self, window);
        found
    }

    fn add(&mut self, other: &Self, window: &Window) {
        let attempts = other.attempts.iter().filter(|row| window.has(row.dispatched_at));
        self.attempts.extend(attempts.cloned());
        let dispatches = other.dispatches.iter().filter(|sent| window.has(sent.enqueued_at));
        self.dispatches.extend(dispatches.cloned());
    }

    fn count(&self) -> usize {
        self.attempts.len() + self.dispatches.len()
    }
}

/// The attempts and dispatches of a window, in no order.
pub(in super::super) async fn facts(hud: &Hud, window: &Window) -> Result<Facts, Problem> {
    of_whole_days(hud, window, &hud.days.facts, async |window: &Window| {
        let (attempts, dispatches) =
            tokio::try_join!(hud.results.attempts(window), hud.results.dispatches(window))?;
        Ok(Facts { attempts, dispatches })
    })
    .await
}

/// The attempts of a window on upstream's own commits, and the dispatches of such commits that
/// nothing was heard of; in no order.
pub(in super::super) async fn pushes(hud: &Hud, window: &Window) -> Result<Facts, Problem> {
    of_whole_days(hud, window, &hud.days.pushes, async |window: &Window| {
        let (attempts, mut dispatches) =
            tokio::try_join!(hud.results.pushes(window), hud.results.dispatches(window))?;
        dispatches.retain(|sent| sent.pull_request.is_none() && sent.status == "never_started");
        Ok(Facts { attempts, dispatches })
    })
    .await
}

/// Reads the whole days that aren't known, and gives what the window has of all.
async fn of_whole_days(
    hud: &Hud,
    window: &Window,
    known: &Known<Arc<Facts>>,
    read: impl AsyncFn(&Window) -> Result<Facts, Problem>,
) -> Result<Facts, Problem> {
    let whole = |day| {
        let (from, to) = (midnight(day), midnight(day + 1));
        Part { day, from, to, kept: Some(Kept::Whole) }
    };
    let mut found = Facts::default();
    let mut missing: BTreeMap<i64, Vec<Mark>> = BTreeMap::new();
    for mark in hud.results.marks(window).await? {
        if mark.repo.is_empty() {
            continue;
        }
        match known.get(&mark, &whole(mark.day)) {
            Some(facts) => found.add(&facts, window),
            None => missing.entry(mark.day).or_default().push(mark),
        }
    }
    for missing in portions(missing) {
        let (first, last) =
            (*missing.keys().next().unwrap_or(&0), *missing.keys().last().unwrap_or(&0));
        let repos: BTreeSet<String> =
            missing.values().flatten().map(|mark| mark.repo.clone()).collect();
        let days = Window::all(midnight(first), midnight(last + 1));
        let facts = read(&days.of(repos.into_iter().collect())).await?;
        let mut by_day: HashMap<(String, i64), Facts> = HashMap::new();
        for row in facts.attempts {
            let key = (row.repo.to_ascii_lowercase(), day_of(row.dispatched_at));
            by_day.entry(key).or_default().attempts.push(row);
        }
        for sent in facts.dispatches {
            let key = (sent.repo.to_ascii_lowercase(), day_of(sent.enqueued_at));
            by_day.entry(key).or_default().dispatches.push(sent);
        }
        for mark in missing.into_values().flatten() {
            let part = whole(mark.day);
            let facts = by_day.remove(&(mark.repo.clone(), mark.day)).unwrap_or_default();
            found.add(&facts, window);
            known.put(mark, &part, facts.count() + 1, Arc::new(facts));
        }
    }
    Ok(found)
}

/// The newest report of all that `days` tell of.
pub(in super::super) fn newest(days: &[OneDay]) -> Option<Timestamp> {
    days.iter().filter_map(|(_, tally)| tally.newest).max()
}
