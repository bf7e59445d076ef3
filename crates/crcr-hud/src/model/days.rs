//! The facts of days and what they came to, read and computed once and kept until they change.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, PoisonError};

use crcr_domain::EventKind;
use crcr_domain::facts::{AttemptFact, CallbackOutcome, DispatchFact};
use crcr_domain::results::tally::by_day;
use crcr_domain::results::{DayOf, Distribution, Tally, Turn, jobs_of_record, turned_red};
use crcr_results::retention::{day_number, day_of, heads_until, midnight};
use crcr_results::{Answer, Mark, Window};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;

use crate::query::{Events, Span};
use crate::{Hud, Problem};

/// The most that is kept of tallies, reports, answers, turns, facts and pushes, each, in bytes, about.
const KEPT: usize = 64 << 20;
/// Facts that are read at a time, more or less, so that a long span costs time and not memory.
const AT_A_TIME: u64 = 30_000;
/// Portions of facts that are under way at a time.
const PORTIONS: usize = 2;

/// A day and what it came to.
pub(super) type OneDay = (DayOf, Arc<Tally>);

/// Days that were read and computed.
pub(crate) struct Days {
    tallies: Known<Vec<OneDay>>,
    reports: Known<Arc<Reports>>,
    answers: Known<Arc<Vec<Answer>>>,
    turns: Known<Arc<Vec<Turn>>>,
    facts: Known<Arc<Facts>>,
    pushes: Known<Arc<Facts>>,
}

impl Default for Days {
    fn default() -> Self {
        Self {
            tallies: Known::new(KEPT),
            reports: Known::new(KEPT),
            answers: Known::new(KEPT),
            turns: Known::new(KEPT),
            facts: Known::new(KEPT),
            pushes: Known::new(KEPT),
        }
    }
}

/// The reports of a day.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reports {
    /// Reports by what became of them.
    pub(crate) outcomes: BTreeMap<&'static str, u64>,
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

    fn bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.latencies)
    }

    fn add(&mut self, other: &Self) {
        for (outcome, count) in &other.outcomes {
            *self.outcomes.entry(outcome).or_default() += count;
        }
        self.latencies.extend(&other.latencies);
    }

    /// Seconds that the answers took.
    pub(crate) fn latency(mut self) -> Option<Distribution> {
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
    Whole,
    /// The first day of the window of this name, which begins at a full hour.
    First(&'static str),
    /// All days of a feed, by the first.
    Feed,
}

impl Part {
    fn whole(day: i64) -> Self {
        let (from, to) = (midnight(day), midnight(day + 1));
        Self { day, from, to, kept: Some(Kept::Whole) }
    }

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
    /// The most bytes that are kept.
    limit: usize,
    shelf: Mutex<Shelf<T>>,
}

struct Shelf<T> {
    found: HashMap<(String, i64, Kept), Found<T>>,
    bytes: usize,
    /// Counts what is put and found.
    uses: u64,
}

struct Found<T> {
    changes: u64,
    from: Timestamp,
    bytes: usize,
    used: u64,
    what: T,
}

impl<T: Clone> Known<T> {
    fn new(limit: usize) -> Self {
        let shelf = Shelf { found: HashMap::new(), bytes: 0, uses: 0 };
        Self { limit, shelf: Mutex::new(shelf) }
    }

    fn get(&self, mark: &Mark, part: &Part) -> Option<T> {
        let mut shelf = self.shelf.lock().unwrap_or_else(PoisonError::into_inner);
        shelf.uses += 1;
        let used = shelf.uses;
        let found = shelf.found.get_mut(&(mark.repo.clone(), mark.day, part.kept?))?;
        found.used = used;
        (found.changes == mark.changes && found.from == part.from).then(|| found.what.clone())
    }

    fn put(&self, mark: Mark, part: &Part, bytes: usize, what: T) {
        let Some(kept) = part.kept else { return };
        let mut shelf = self.shelf.lock().unwrap_or_else(PoisonError::into_inner);
        let Mark { repo, day, changes } = mark;
        // Its key and place count, too.
        let bytes = bytes + 200;
        shelf.uses += 1;
        let found = Found { changes, from: part.from, bytes, used: shelf.uses, what };
        let old = shelf.found.insert((repo, day, kept), found);
        shelf.bytes += bytes;
        shelf.bytes -= old.map_or(0, |old| old.bytes);
        if shelf.bytes > self.limit {
            // Not one by one: each time everything is looked at.
            shelf.keep_newest(self.limit / 2);
        }
    }
}

impl<T> Shelf<T> {
    /// Drops what was used longest ago, until the rest has at most so many bytes.
    fn keep_newest(&mut self, most: usize) {
        let mut uses: Vec<_> = self.found.values().map(|found| (found.used, found.bytes)).collect();
        uses.sort_unstable();
        for (used, bytes) in uses {
            if self.bytes <= most {
                self.found.retain(|_, found| found.used >= used);
                return;
            }
            self.bytes -= bytes;
        }
        self.found.clear();
    }
}

/// The tallies of the span's days and kind of event, of all repositories or one.
pub(crate) async fn days(
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
pub(crate) async fn days_and_reports(
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
    let mut computed = stream::iter(portions(missing))
        .map(|missing| computed(hud, span, missing))
        .buffer_unordered(PORTIONS);
    while let Some(days) = computed.try_next().await? {
        found.extend(days);
    }
    found.retain(|(day, _)| day.nightly == (span.events == Events::Nightly));
    Ok(found)
}

/// Reads and computes days in a row.
async fn computed(
    hud: &Hud,
    span: &Span,
    mut missing: BTreeMap<i64, Vec<Mark>>,
) -> Result<Vec<OneDay>, Problem> {
    let parts: Vec<Part> = missing.keys().map(|day| Part::of(span, *day)).collect();
    let repos: BTreeSet<String> =
        missing.values().flatten().map(|mark| mark.repo.clone()).collect();
    let mut facts = read(hud, &parts, repos.into_iter().collect()).await?;
    // Off this thread: meanwhile it reads the next days.
    let computed = tokio::task::spawn_blocking(move || {
        let of = |part: Part| {
            let (attempts, dispatches, later) = facts.of(&part);
            (part, by_day(&attempts, dispatches, later))
        };
        parts.into_iter().map(of).collect::<Vec<_>>()
    });
    let computed = computed.await.map_err(|error| Problem::Store(error.to_string()))?;
    let mut found = vec![];
    for (part, days) in computed {
        let mut tallies: HashMap<String, Vec<OneDay>> = HashMap::new();
        for (day, tally) in days {
            tallies.entry(day.repo.clone()).or_default().push((day, Arc::new(tally)));
        }
        for mark in missing.remove(&part.day).unwrap_or_default() {
            let days = tallies.remove(&mark.repo).unwrap_or_default();
            found.extend(days.iter().cloned());
            let bytes = days.iter().map(|(_, tally)| tally.bytes()).sum();
            hud.days.tallies.put(mark, &part, bytes, days);
        }
    }
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
    fn of(&mut self, part: &Part) -> (Vec<AttemptFact>, &[DispatchFact], &[DispatchFact]) {
        let attempts = self.attempts.remove(&part.day).unwrap_or_default();
        let until = |time| self.dispatches.partition_point(|sent| sent.enqueued_at < time);
        let (from, to) = (until(part.from), until(part.to));
        let later = &self.dispatches[to..until(heads_until(part.to))];
        (attempts, &self.dispatches[from..to], later)
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
            hud.days.reports.put(mark, part, reports.bytes(), reports);
        }
    }
    Ok(sum)
}

/// What became of the reports of a window, which is one repository's, in no order.
pub(crate) async fn answers(hud: &Hud, window: &Window) -> Result<Vec<CallbackOutcome>, Problem> {
    let repo = window.repos.iter().flatten().next().cloned().unwrap_or_default();
    // Reports have marks of their own, those of all repositories together.
    let marks = hud.results.marks(&window.clone().of(vec![String::new()])).await?;
    let mut found = vec![];
    let mut missing: BTreeMap<i64, Vec<Mark>> = BTreeMap::new();
    for mark in marks {
        let mark = Mark { repo: repo.to_ascii_lowercase(), ..mark };
        match hud.days.answers.get(&mark, &Part::whole(mark.day)) {
            Some(answers) => found.push(answers),
            None => missing.entry(mark.day).or_default().push(mark),
        }
    }
    for missing in portions(missing) {
        let (first, last) = ends(&missing);
        let days = Window::all(midnight(first), midnight(last + 1)).of(vec![repo.clone()]);
        let mut by_day: HashMap<i64, Vec<Answer>> = HashMap::new();
        for answer in hud.results.answers(&days).await? {
            by_day.entry(day_of(answer.at)).or_default().push(answer);
        }
        for mark in missing.into_values().flatten() {
            let answers = Arc::new(by_day.remove(&mark.day).unwrap_or_default());
            found.push(Arc::clone(&answers));
            let part = Part::whole(mark.day);
            hud.days.answers.put(mark, &part, size_of_val(&**answers), answers);
        }
    }
    let all = found.iter().flat_map(|day| &**day);
    Ok(all.filter(|answer| window.has(answer.at)).map(|answer| answer.outcome).collect())
}

/// The first and the last day.
fn ends(days: &BTreeMap<i64, Vec<Mark>>) -> (i64, i64) {
    let end = |day: Option<&i64>| day.copied().unwrap_or_default();
    (end(days.keys().next()), end(days.keys().next_back()))
}

/// A repository's attempts and dispatches, of events of every kind.
#[derive(Default)]
struct Facts {
    repo: String,
    attempts: Vec<AttemptFact>,
    dispatches: Vec<DispatchFact>,
}

impl Facts {
    /// The memory that they take: a kilobyte each, about, beside the tests that failed.
    fn bytes(&self) -> usize {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let tests = self.attempts.iter().flat_map(|row| &row.failed_tests);
        let tests = tests.map(|test| {
            size_of_val(test) + test.name.len() + text(&test.file) + text(&test.message)
        });
        (self.attempts.len() + self.dispatches.len()) * 1024 + tests.sum::<usize>()
    }
}

/// The facts of whole days, in no order; shared with whoever reads these days meanwhile.
pub(crate) struct SharedFacts(Vec<Arc<Facts>>);

impl SharedFacts {
    /// The attempts of a window within these days.
    pub(crate) fn attempts(&self, window: &Window) -> impl Iterator<Item = &AttemptFact> {
        let all = self.0.iter().flat_map(|day| &day.attempts);
        all.filter(|row| window.has(row.dispatched_at))
    }

    /// The dispatches of a window within these days.
    pub(crate) fn dispatches(&self, window: &Window) -> impl Iterator<Item = &DispatchFact> {
        let all = self.0.iter().flat_map(|day| &day.dispatches);
        all.filter(|sent| window.has(sent.enqueued_at))
    }
}

/// The attempts and dispatches of the days that a window touches.
pub(crate) async fn facts(hud: &Hud, window: &Window) -> Result<SharedFacts, Problem> {
    let marks = hud.results.marks(window).await?;
    of_whole_days(marks, &hud.days.facts, async |window: &Window| {
        let (attempts, dispatches) =
            tokio::try_join!(hud.results.attempts(window), hud.results.dispatches(window))?;
        Ok((attempts, dispatches))
    })
    .await
}

/// The attempts of the window's days on upstream's own commits.
pub(crate) async fn pushes(hud: &Hud, window: &Window) -> Result<SharedFacts, Problem> {
    pushes_of(hud, hud.results.marks(window).await?).await
}

/// The attempts of these days on upstream's own commits, and the dispatches of such commits that
/// nothing was heard of.
async fn pushes_of(hud: &Hud, marks: Vec<Mark>) -> Result<SharedFacts, Problem> {
    of_whole_days(marks, &hud.days.pushes, async |window: &Window| {
        let (attempts, mut dispatches) =
            tokio::try_join!(hud.results.pushes(window), hud.results.dispatches(window))?;
        dispatches.retain(|sent| sent.pull_request.is_none() && sent.status == "never_started");
        Ok((attempts, dispatches))
    })
    .await
}

/// The turns of a window that begins at a full hour, in no order.
pub(crate) async fn turns(hud: &Hud, window: &Window) -> Result<Vec<Turn>, Problem> {
    let day = day_of(window.from);
    // Of today there is nothing after now.
    let window = Window { to: midnight(day_of(window.to) + 1), ..window.clone() };
    let part = Part { day, from: window.from, to: window.to, kept: Some(Kept::Feed) };
    let mut by_repo: BTreeMap<String, Vec<Mark>> = BTreeMap::new();
    for mark in hud.results.marks(&window).await? {
        by_repo.entry(mark.repo.clone()).or_default().push(mark);
    }
    // Reports have marks of their own.
    by_repo.remove("");
    let (mut found, mut missing, mut unread) = (vec![], vec![], vec![]);
    for (repo, mut marks) in by_repo {
        marks.sort_unstable_by_key(|mark| mark.day);
        let mut changes = DefaultHasher::new();
        marks.hash(&mut changes);
        let mark = Mark { repo, day, changes: changes.finish() };
        match hud.days.turns.get(&mark, &part) {
            Some(turns) => found.extend(turns.iter().cloned()),
            None => {
                missing.push(mark);
                unread.extend(marks);
            }
        }
    }
    let facts = pushes_of(hud, unread).await?;
    for mark in missing {
        let own =
            SharedFacts(facts.0.iter().filter(|day| day.repo == mark.repo).cloned().collect());
        // What happened on pull requests is no turn.
        let counts = |event: &str| EventKind::of_event(event).is_some();
        let attempts = own.attempts(&window).filter(|row| counts(&row.event));
        let dispatches = own.dispatches(&window).filter(|sent| counts(&sent.event));
        let turns = Arc::new(turned_red(&jobs_of_record(attempts, []), dispatches));
        found.extend(turns.iter().cloned());
        hud.days.turns.put(mark, &part, turns.len() * 1024, turns);
    }
    Ok(found)
}

/// Reads those of the days that aren't known, and gives all.
async fn of_whole_days(
    marks: Vec<Mark>,
    known: &Known<Arc<Facts>>,
    read: impl AsyncFn(&Window) -> Result<(Vec<AttemptFact>, Vec<DispatchFact>), Problem>,
) -> Result<SharedFacts, Problem> {
    let mut found = vec![];
    let mut missing: BTreeMap<i64, Vec<Mark>> = BTreeMap::new();
    for mark in marks {
        if mark.repo.is_empty() {
            continue;
        }
        match known.get(&mark, &Part::whole(mark.day)) {
            Some(facts) => found.push(facts),
            None => missing.entry(mark.day).or_default().push(mark),
        }
    }
    for missing in portions(missing) {
        let (first, last) = ends(&missing);
        let repos: BTreeSet<String> =
            missing.values().flatten().map(|mark| mark.repo.clone()).collect();
        let days = Window::all(midnight(first), midnight(last + 1));
        let (attempts, dispatches) = read(&days.of(repos.into_iter().collect())).await?;
        let mut by_day: HashMap<(String, i64), Facts> = HashMap::new();
        for row in attempts {
            let key = (row.repo.to_ascii_lowercase(), day_of(row.dispatched_at));
            by_day.entry(key).or_default().attempts.push(row);
        }
        for sent in dispatches {
            let key = (sent.repo.to_ascii_lowercase(), day_of(sent.enqueued_at));
            by_day.entry(key).or_default().dispatches.push(sent);
        }
        for mark in missing.into_values().flatten() {
            let part = Part::whole(mark.day);
            let facts = by_day.remove(&(mark.repo.clone(), mark.day)).unwrap_or_default();
            let facts = Facts { repo: mark.repo.clone(), ..facts };
            let (bytes, facts) = (facts.bytes(), Arc::new(facts));
            found.push(Arc::clone(&facts));
            known.put(mark, &part, bytes, facts);
        }
    }
    Ok(SharedFacts(found))
}

/// The newest report of all that `days` tell of.
pub(crate) fn newest(days: &[OneDay]) -> Option<Timestamp> {
    days.iter().filter_map(|(_, tally)| tally.newest).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_longest_ago_makes_place() {
        let known = Known::new(10_000);
        let part =
            |day| Part { day, from: midnight(day), to: midnight(day + 1), kept: Some(Kept::Whole) };
        let mark = |day, changes| Mark { repo: "acme/one".to_owned(), day, changes };
        for day in 0..8 {
            known.put(mark(day, 1), &part(day), 1000, day);
        }
        assert_eq!(known.get(&mark(0, 1), &part(0)), Some(0));
        assert_eq!(known.get(&mark(0, 2), &part(0)), None, "it was written to meanwhile");
        known.put(mark(8, 1), &part(8), 1000, 8);
        let kept = |day| known.get(&mark(day, 1), &part(day)).is_some();
        let left: Vec<i64> = (0..9).filter(|day| kept(*day)).collect();
        assert_eq!(left, [0, 6, 7, 8]);
        // What is put again counts once, and what is larger than everything isn't kept.
        for changes in 0..100 {
            known.put(mark(0, changes), &part(0), 1000, 0);
        }
        assert!(kept(8));
        known.put(mark(9, 1), &part(9), 20_000, 9);
        assert!(!kept(9));
        let shelf = known.shelf.lock().unwrap();
        let bytes: usize = shelf.found.values().map(|found| found.bytes).sum();
        assert_eq!(shelf.bytes, bytes);
    }
}
