//! What days added up to, kept in memory until a day changes.

use std::sync::Arc;

use crcr_domain::results::facts::{AttemptFact, DispatchFact};
use crcr_domain::results::{Regression, RepoReview, ResultTotals};
use crcr_results::retention::midnight;
use crcr_results::{DayRevision, ReportOutcome};
use jiff::Timestamp;
use quick_cache::sync::Cache;
use quick_cache::{OptionsBuilder, Weighter};

use super::day_facts::{DayBlame, DayFacts, DayTally, ReportSummary};
use crate::query::TimeSpan;

/// The limit of each cache, in bytes as [`CacheWeight`] estimates them.
const CACHE_BYTES: u64 = 64 << 20;
/// What an entry takes in addition to its value: the key and its place in the table, in bytes.
const ENTRY_BYTES: usize = 200;
/// A fact without its failed tests, in bytes.
const FACT_BYTES: usize = 1024;

/// One cache for each kind of value that pages are built from.
pub(crate) struct DayCaches {
    pub(crate) tallies: DayCache<Vec<DayTally>>,
    pub(crate) reports: DayCache<Arc<ReportSummary>>,
    pub(crate) outcomes: DayCache<Arc<Vec<ReportOutcome>>>,
    pub(crate) regressions: DayCache<Arc<Vec<Regression>>>,
    pub(crate) facts: DayCache<Arc<DayFacts>>,
    pub(crate) pushes: DayCache<Arc<DayFacts>>,
    /// Held while `pushes` is filled: reviews need the same days, and whoever waits finds them there.
    pub(crate) push_turn: tokio::sync::Mutex<()>,
    pub(crate) blamed: DayCache<Arc<DayBlame>>,
    /// Held while `blamed` is filled for many backends: each page that shows them all needs the same answers.
    pub(crate) blame_turn: tokio::sync::Mutex<()>,
    pub(crate) reviews: DayCache<Arc<RepoReview>>,
}

impl Default for DayCaches {
    fn default() -> Self {
        Self {
            tallies: DayCache::new(CACHE_BYTES),
            reports: DayCache::new(CACHE_BYTES),
            outcomes: DayCache::new(CACHE_BYTES),
            regressions: DayCache::new(CACHE_BYTES),
            facts: DayCache::new(CACHE_BYTES),
            pushes: DayCache::new(CACHE_BYTES),
            push_turn: tokio::sync::Mutex::default(),
            blamed: DayCache::new(CACHE_BYTES),
            blame_turn: tokio::sync::Mutex::default(),
            reviews: DayCache::new(CACHE_BYTES),
        }
    }
}

/// The part of a UTC day that a time span covers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DaySlice {
    /// The UTC day, as days since 1970.
    pub(crate) day: i64,
    pub(crate) from: Timestamp,
    pub(crate) to: Timestamp,
    /// `None` for slices that anybody can request in any number; those aren't cached.
    pub(crate) scope: Option<CacheScope>,
}

/// Which slice of a day an entry is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum CacheScope {
    WholeDay,
    /// The first day of the window `24h`, `7d` or `30d`, which begins at a full hour.
    WindowStart(&'static str),
    /// All days of a feed, under its first day.
    Feed,
    /// All days of a review, under its first day and by all facts.
    Review,
    /// All days of a review, under its first day and by the facts that the review is made of.
    ReviewOfOwnFacts,
}

impl DaySlice {
    pub(crate) fn whole(day: i64) -> Self {
        let (from, to) = (midnight(day), midnight(day + 1));
        Self { day, from, to, scope: Some(CacheScope::WholeDay) }
    }

    pub(crate) fn within(span: &TimeSpan, day: i64) -> Self {
        let (begin, end) = (midnight(day), midnight(day + 1));
        let from = begin.max(span.from);
        // There is nothing after now, so today up to now is the whole of today.
        let to = if span.until_now { end } else { end.min(span.to) };
        let scope = match (from == begin, to == end) {
            (true, true) => Some(CacheScope::WholeDay),
            (false, true) => span.window.map(CacheScope::WindowStart),
            _ => None,
        };
        Self { day, from, to, scope }
    }
}

/// A cache by repository (in lower case), day and scope. An entry is valid while the day's
/// revision is the one that it was computed from.
pub(crate) struct DayCache<T> {
    entries: Cache<(String, i64, CacheScope), CachedDay<T>, EntryWeight>,
}

#[derive(Clone)]
struct CachedDay<T> {
    revision: u64,
    from: Timestamp,
    bytes: u64,
    value: T,
}

#[derive(Clone)]
struct EntryWeight;

impl<T> Weighter<(String, i64, CacheScope), CachedDay<T>> for EntryWeight {
    fn weight(&self, _: &(String, i64, CacheScope), entry: &CachedDay<T>) -> u64 {
        entry.bytes
    }
}

impl<T: Clone + CacheWeight> DayCache<T> {
    fn new(limit: u64) -> Self {
        let options = OptionsBuilder::new()
            .weight_capacity(limit)
            .estimated_items_capacity(10_000)
            // One shard, because an entry must fit into one. Eight pages at a time don't compete.
            .shards(1)
            .build()
            .expect("both capacities are set");
        let entries = Cache::with_options(
            options,
            EntryWeight,
            quick_cache::DefaultHashBuilder::default(),
            quick_cache::sync::DefaultLifecycle::default(),
        );
        Self { entries }
    }

    pub(crate) fn get(&self, mark: &DayRevision, slice: &DaySlice) -> Option<T> {
        let entry = self.entries.get(&(mark.repo.clone(), mark.day, slice.scope?))?;
        (entry.revision == mark.changes && entry.from == slice.from).then_some(entry.value)
    }

    pub(crate) fn insert(&self, mark: DayRevision, slice: &DaySlice, value: T) {
        let Some(scope) = slice.scope else { return };
        let bytes = (value.bytes() + ENTRY_BYTES) as u64;
        let entry = CachedDay { revision: mark.changes, from: slice.from, bytes, value };
        self.entries.insert((mark.repo, mark.day, scope), entry);
    }
}

/// How many bytes of memory a value takes, roughly.
pub(crate) trait CacheWeight {
    fn bytes(&self) -> usize;
}

impl CacheWeight for Vec<DayTally> {
    fn bytes(&self) -> usize {
        self.iter().map(|(_, tally): &(_, Arc<ResultTotals>)| tally.bytes()).sum()
    }
}

impl CacheWeight for Arc<ReportSummary> {
    fn bytes(&self) -> usize {
        size_of::<ReportSummary>() + size_of_val(&*self.latencies)
    }
}

impl CacheWeight for Arc<Vec<ReportOutcome>> {
    fn bytes(&self) -> usize {
        size_of_val(&***self)
    }
}

impl CacheWeight for Arc<Vec<Regression>> {
    fn bytes(&self) -> usize {
        self.len() * FACT_BYTES
    }
}

impl CacheWeight for Arc<RepoReview> {
    fn bytes(&self) -> usize {
        size_of::<RepoReview>() + self.evidence.len() * FACT_BYTES
    }
}

impl CacheWeight for Arc<DayBlame> {
    fn bytes(&self) -> usize {
        self.verdicts.len() * FACT_BYTES
    }
}

impl CacheWeight for Arc<DayFacts> {
    fn bytes(&self) -> usize {
        let length = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let tests = self.attempts.iter().flat_map(|row: &AttemptFact| &row.details.failed_tests);
        let tests = tests.map(|test| {
            size_of_val(test) + test.name.len() + length(&test.file) + length(&test.message)
        });
        let dispatches: &[DispatchFact] = &self.dispatches;
        (self.attempts.len() + dispatches.len()) * FACT_BYTES + tests.sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl CacheWeight for usize {
        fn bytes(&self) -> usize {
            *self
        }
    }

    fn mark(day: i64, changes: u64) -> DayRevision {
        DayRevision { repo: "acme/one".to_owned(), day, changes }
    }

    #[test]
    fn a_cached_day_is_valid_for_its_revision_and_start_only() {
        let cache = DayCache::new(10_000);
        let slice = DaySlice::whole(3);
        cache.insert(mark(3, 1), &slice, 800);
        assert_eq!(cache.get(&mark(3, 1), &slice), Some(800));
        assert_eq!(cache.get(&mark(3, 2), &slice), None, "the day was written to");
        let later = DaySlice { from: slice.to, ..slice };
        assert_eq!(cache.get(&mark(3, 1), &later), None, "another start");
        let uncached = DaySlice { scope: None, ..slice };
        cache.insert(mark(4, 1), &uncached, 800);
        assert_eq!(cache.get(&mark(4, 1), &uncached), None);
    }

    #[test]
    fn the_cache_never_holds_more_than_its_limit() {
        let cache = DayCache::new(10_000);
        for day in 0..100 {
            cache.insert(mark(day, 1), &DaySlice::whole(day), 800);
        }
        let held = |day| cache.get(&mark(day, 1), &DaySlice::whole(day)).is_some();
        assert_eq!((0..100).filter(|day| held(*day)).count(), 10);
        cache.insert(mark(100, 1), &DaySlice::whole(100), 20_000);
        assert!(!held(100), "an entry over the limit isn't kept");
        assert!(cache.entries.weight() <= 10_000);
    }
}
