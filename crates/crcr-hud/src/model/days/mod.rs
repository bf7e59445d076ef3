//! Facts and tallies by day, read once and cached until the day changes.

mod blame;
pub(crate) mod cache;
mod day_facts;
mod reviews;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use crcr_domain::EventKind;
use crcr_domain::protocol::event::EventName;
use crcr_domain::results::facts::{AttemptFact, CallbackOutcome, DispatchFact};
use crcr_domain::results::totals::by_day;
use crcr_domain::results::{Regression, find_regressions, jobs_of_record};
use crcr_results::blame::PushQuery;
use crcr_results::retention::{day_number, day_of, heads_until, midnight};
use crcr_results::{DayRevision, ReportOutcome, Window};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;

pub(crate) use self::blame::blame;
use self::cache::{CacheScope, DayCache, DaySlice};
use self::day_facts::DayFacts;
pub(crate) use self::day_facts::{DayTally, ReportSummary, SharedFacts};
pub(crate) use self::reviews::{review_of, reviews};
use crate::context::{Hud, PageError};
use crate::query::{ShownEvents, TimeSpan};

/// About how many facts one batch reads, so that a long span takes time instead of memory.
const FACTS_PER_BATCH: u64 = 30_000;
/// How many batches are read and computed at the same time.
const CONCURRENT_BATCHES: usize = 2;

/// Days that have to be read, each with the repositories whose revision isn't cached.
type StaleDays = BTreeMap<i64, Vec<DayRevision>>;

/// The tallies of the span's days and kind of event, of all repositories or one.
pub(crate) async fn day_tallies(
    hud: &Hud,
    span: &TimeSpan,
    repo: Option<&str>,
) -> Result<Vec<DayTally>, PageError> {
    let all = Window::all(span.from, span.to);
    let window = match repo {
        Some(repo) => all.of_repos(vec![repo.to_owned()]),
        None => all,
    };
    let revisions = async { hud.results.day_revisions(&window).await.map_err(PageError::from) };
    let (rolled_up, revisions) = tokio::try_join!(rolled_up_days(hud, &window), revisions)?;
    combine_days(hud, span, rolled_up, &revisions).await
}

/// As [`day_tallies`] for all repositories, with a summary of the span's reports.
pub(crate) async fn day_tallies_and_reports(
    hud: &Hud,
    span: &TimeSpan,
) -> Result<(Vec<DayTally>, ReportSummary), PageError> {
    let window = Window::all(span.from, span.to);
    let revisions = async { hud.results.day_revisions(&window).await.map_err(PageError::from) };
    let (rolled_up, revisions) = tokio::try_join!(rolled_up_days(hud, &window), revisions)?;
    tokio::try_join!(
        combine_days(hud, span, rolled_up, &revisions),
        summarize_reports(hud, span, &revisions)
    )
}

async fn rolled_up_days(hud: &Hud, window: &Window) -> Result<Vec<DayTally>, PageError> {
    let rolled_up = hud.results.rolled_up_days(window).await?;
    Ok(rolled_up.into_iter().map(|rolled| (rolled.day, Arc::new(rolled.tally))).collect())
}

/// Takes days from the rolled-up ones and the cache, and computes the others from facts.
async fn combine_days(
    hud: &Hud,
    span: &TimeSpan,
    rolled_up: Vec<DayTally>,
    revisions: &[DayRevision],
) -> Result<Vec<DayTally>, PageError> {
    let slice = |day| DaySlice::within(span, day);
    // Facts that remain of a rolled-up day don't count.
    let without_facts: HashSet<_> =
        rolled_up.iter().map(|(day, _)| (day.repo.clone(), day_number(day))).collect();
    // A rolled-up day can't be divided, so the span has to cover it.
    let mut found: Vec<DayTally> = rolled_up
        .into_iter()
        .filter(|(day, _)| slice(day_number(day)).scope == Some(CacheScope::WholeDay))
        .collect();
    let mut stale = StaleDays::new();
    for revision in revisions {
        // The revision without a repository is that of the reports.
        if revision.repo.is_empty()
            || without_facts.contains(&(revision.repo.clone(), revision.day))
        {
            continue;
        }
        match hud.days.tallies.get(revision, &slice(revision.day)) {
            Some(days) => found.extend(days),
            None => stale.entry(revision.day).or_default().push(revision.clone()),
        }
    }
    let mut computed = stream::iter(split_into_batches(stale))
        .map(|batch| compute_days(hud, span, batch))
        .buffer_unordered(CONCURRENT_BATCHES);
    while let Some(days) = computed.try_next().await? {
        found.extend(days);
    }
    found.retain(|(day, _)| day.nightly == (span.events == ShownEvents::Nightly));
    Ok(found)
}

/// Reads the facts of consecutive days, and adds them up.
async fn compute_days(
    hud: &Hud,
    span: &TimeSpan,
    mut stale: StaleDays,
) -> Result<Vec<DayTally>, PageError> {
    let slices: Vec<DaySlice> = stale.keys().map(|day| DaySlice::within(span, *day)).collect();
    let mut batch = read_batch(hud, &slices, repositories(&stale)).await?;
    // On another thread, so that the next batch is read meanwhile.
    let computed = tokio::task::spawn_blocking(move || {
        let compute = |slice: DaySlice| {
            let (attempts, dispatches, later) = batch.take_slice(&slice);
            (slice, by_day(&attempts, dispatches, later))
        };
        slices.into_iter().map(compute).collect::<Vec<_>>()
    });
    let computed = computed.await.map_err(|error| PageError::Store(error.to_string()))?;
    let mut found = vec![];
    for (slice, days) in computed {
        let mut tallies: HashMap<String, Vec<DayTally>> = HashMap::new();
        for (day, tally) in days {
            tallies.entry(day.repo.clone()).or_default().push((day, Arc::new(tally)));
        }
        for revision in stale.remove(&slice.day).unwrap_or_default() {
            let days = tallies.remove(&revision.repo).unwrap_or_default();
            found.extend(days.iter().cloned());
            hud.days.tallies.insert(revision, &slice, days);
        }
    }
    Ok(found)
}

fn repositories(days: &StaleDays) -> Vec<String> {
    let repos: BTreeSet<_> =
        days.values().flatten().map(|revision| revision.repo.clone()).collect();
    repos.into_iter().collect()
}

/// Groups consecutive days into batches of about [`FACTS_PER_BATCH`].
fn split_into_batches(days: StaleDays) -> Vec<StaleDays> {
    let mut batches: Vec<StaleDays> = Vec::new();
    let (mut facts, mut next_day) = (0, None);
    for (day, revisions) in days {
        let more: u64 = revisions.iter().map(|revision| revision.changes).sum();
        facts += more;
        if next_day != Some(day) || facts > FACTS_PER_BATCH {
            batches.push(BTreeMap::new());
            facts = more;
        }
        next_day = Some(day + 1);
        batches.last_mut().expect("one was just pushed").insert(day, revisions);
    }
    batches
}

/// The facts of consecutive days.
struct FactBatch {
    attempts: HashMap<i64, Vec<AttemptFact>>,
    /// Sorted by time, and including later days: a dispatch there may supersede one here.
    dispatches: Vec<DispatchFact>,
}

async fn read_batch(
    hud: &Hud,
    slices: &[DaySlice],
    repos: Vec<String>,
) -> Result<FactBatch, PageError> {
    let from = slices.first().map_or(Timestamp::MIN, |slice| slice.from);
    let to = slices.last().map_or(Timestamp::MIN, |slice| slice.to);
    let window = Window::all(from, to).of_repos(repos);
    let with_later_heads = Window { to: heads_until(to), ..window.clone() };
    let (attempts, dispatches) =
        tokio::try_join!(hud.results.attempts(&window), hud.results.dispatches(&with_later_heads))?;
    let mut by_day: HashMap<i64, Vec<AttemptFact>> = HashMap::new();
    for row in attempts {
        by_day.entry(day_of(row.dispatched_at)).or_default().push(row);
    }
    Ok(FactBatch { attempts: by_day, dispatches })
}

impl FactBatch {
    /// Removes the attempts of a slice, and returns them with its dispatches and with the later
    /// dispatches that may supersede these.
    fn take_slice(
        &mut self,
        slice: &DaySlice,
    ) -> (Vec<AttemptFact>, &[DispatchFact], &[DispatchFact]) {
        let attempts = self.attempts.remove(&slice.day).unwrap_or_default();
        let until = |time| self.dispatches.partition_point(|sent| sent.enqueued_at < time);
        let (from, to) = (until(slice.from), until(slice.to));
        let later = &self.dispatches[to..until(heads_until(slice.to))];
        (attempts, &self.dispatches[from..to], later)
    }
}

/// What became of the span's reports, by day.
pub(crate) async fn reports_by_day(
    hud: &Hud,
    span: &TimeSpan,
) -> Result<Vec<(i64, Arc<ReportSummary>)>, PageError> {
    let window = Window::all(span.from, span.to);
    let revisions = hud.results.day_revisions(&window.of_repos(vec![String::new()])).await?;
    summaries_by_day(hud, span, &revisions).await
}

async fn summarize_reports(
    hud: &Hud,
    span: &TimeSpan,
    revisions: &[DayRevision],
) -> Result<ReportSummary, PageError> {
    let mut sum = ReportSummary::default();
    for (_, reports) in summaries_by_day(hud, span, revisions).await? {
        sum.add(&reports);
    }
    Ok(sum)
}

async fn summaries_by_day(
    hud: &Hud,
    span: &TimeSpan,
    revisions: &[DayRevision],
) -> Result<Vec<(i64, Arc<ReportSummary>)>, PageError> {
    let mut found = vec![];
    let mut stale = StaleDays::new();
    for revision in revisions.iter().filter(|revision| revision.repo.is_empty()) {
        match hud.days.reports.get(revision, &DaySlice::within(span, revision.day)) {
            Some(reports) => found.push((revision.day, reports)),
            None => stale.entry(revision.day).or_default().push(revision.clone()),
        }
    }
    for batch in split_into_batches(stale) {
        let slices: Vec<_> = batch.keys().map(|day| DaySlice::within(span, *day)).collect();
        let from = slices.first().map_or(Timestamp::MIN, |slice| slice.from);
        let to = slices.last().map_or(Timestamp::MIN, |slice| slice.to);
        let mut by_day = answers_by_day(hud, &Window::all(from, to)).await?;
        for (slice, revision) in slices.iter().zip(batch.into_values().flatten()) {
            let answers = by_day.remove(&slice.day).unwrap_or_default();
            let reports = Arc::new(ReportSummary::new(&answers));
            found.push((slice.day, Arc::clone(&reports)));
            hud.days.reports.insert(revision, slice, reports);
        }
    }
    Ok(found)
}

async fn answers_by_day(
    hud: &Hud,
    window: &Window,
) -> Result<HashMap<i64, Vec<ReportOutcome>>, PageError> {
    let mut by_day: HashMap<i64, Vec<ReportOutcome>> = HashMap::new();
    for answer in hud.results.report_outcomes(window).await? {
        by_day.entry(day_of(answer.at)).or_default().push(answer);
    }
    Ok(by_day)
}

/// The outcomes of one repository's reports in a window, unordered.
pub(crate) async fn callback_outcomes(
    hud: &Hud,
    window: &Window,
) -> Result<Vec<CallbackOutcome>, PageError> {
    let repo = window.repos.iter().flatten().next().cloned().unwrap_or_default();
    // Reports have one revision a day for all repositories together.
    let revisions =
        hud.results.day_revisions(&window.clone().of_repos(vec![String::new()])).await?;
    let found = reports_of_repository(hud, &repo, revisions).await?;
    let all = found.iter().flat_map(|(_, reports)| &**reports);
    Ok(all.filter(|answer| window.contains(answer.at)).map(|answer| answer.outcome).collect())
}

/// One repository's reports on days of these revisions, by day, unordered.
async fn reports_of_repository(
    hud: &Hud,
    repo: &str,
    revisions: impl IntoIterator<Item = DayRevision>,
) -> Result<Vec<(i64, Arc<Vec<ReportOutcome>>)>, PageError> {
    let mut found = vec![];
    let mut stale = StaleDays::new();
    for revision in revisions {
        let revision = DayRevision { repo: repo.to_ascii_lowercase(), ..revision };
        match hud.days.outcomes.get(&revision, &DaySlice::whole(revision.day)) {
            Some(answers) => found.push((revision.day, answers)),
            None => stale.entry(revision.day).or_default().push(revision),
        }
    }
    for batch in split_into_batches(stale) {
        let days = window_of(&batch).of_repos(vec![repo.to_owned()]);
        let mut by_day = answers_by_day(hud, &days).await?;
        for revision in batch.into_values().flatten() {
            let answers = Arc::new(by_day.remove(&revision.day).unwrap_or_default());
            found.push((revision.day, Arc::clone(&answers)));
            let slice = DaySlice::whole(revision.day);
            hud.days.outcomes.insert(revision, &slice, answers);
        }
    }
    Ok(found)
}

/// From the start of the first day to the end of the last.
fn window_of(days: &StaleDays) -> Window {
    let first = days.keys().next().copied().unwrap_or_default();
    let last = days.keys().next_back().copied().unwrap_or_default();
    Window::all(midnight(first), midnight(last + 1))
}

/// The attempts and dispatches of every day that the window touches.
pub(crate) async fn facts(hud: &Hud, window: &Window) -> Result<SharedFacts, PageError> {
    facts_of_days(hud, hud.results.day_revisions(window).await?).await
}

/// The attempts and dispatches of these days.
async fn facts_of_days(hud: &Hud, revisions: Vec<DayRevision>) -> Result<SharedFacts, PageError> {
    read_whole_days(revisions, &hud.days.facts, async |window: &Window| {
        let (attempts, dispatches) =
            tokio::try_join!(hud.results.attempts(window), hud.results.dispatches(window))?;
        Ok((attempts, dispatches))
    })
    .await
}

/// The attempts on upstream's own commits and the dispatches of these, on every day that the window touches.
pub(crate) async fn push_facts(hud: &Hud, window: &Window) -> Result<SharedFacts, PageError> {
    push_facts_of_days(hud, hud.results.day_revisions(window).await?).await
}

/// The attempts on upstream's own commits that failures are compared with.
pub(crate) async fn push_attempts(
    hud: &Hud,
    query: PushQuery,
) -> Result<Vec<AttemptFact>, PageError> {
    let facts = push_facts(hud, &query.window).await?;
    let found = facts.attempts(&query.window).filter(|attempt| query.includes(attempt));
    Ok(found.cloned().collect())
}

/// Attempts on upstream's own commits, and dispatches of such commits.
async fn push_facts_of_days(
    hud: &Hud,
    revisions: Vec<DayRevision>,
) -> Result<SharedFacts, PageError> {
    let _turn = hud.days.push_turn.lock().await;
    read_whole_days(revisions, &hud.days.pushes, async |window: &Window| {
        let (attempts, mut dispatches) =
            tokio::try_join!(hud.results.push_attempts(window), hud.results.dispatches(window))?;
        dispatches.retain(|sent| sent.pull_request.is_none());
        Ok((attempts, dispatches))
    })
    .await
}

/// The regressions in a window that begins at a full hour, unordered.
pub(crate) async fn regressions(hud: &Hud, window: &Window) -> Result<Vec<Regression>, PageError> {
    let day = day_of(window.from);
    // There is nothing after now, so the end of today is as good as now.
    let window = Window { to: midnight(day_of(window.to) + 1), ..window.clone() };
    let scope = Some(CacheScope::Feed);
    let slice = DaySlice { day, from: window.from, to: window.to, scope };
    let mut by_repo: BTreeMap<String, Vec<DayRevision>> = BTreeMap::new();
    for revision in hud.results.day_revisions(&window).await? {
        by_repo.entry(revision.repo.clone()).or_default().push(revision);
    }
    // The revision without a repository is that of the reports.
    by_repo.remove("");
    let (mut found, mut stale, mut unread) = (vec![], vec![], vec![]);
    for (repo, mut revisions) in by_repo {
        revisions.sort_unstable_by_key(|revision| revision.day);
        // One entry for the whole feed, valid while none of its days has changed.
        let mut changes = DefaultHasher::new();
        revisions.hash(&mut changes);
        let revision = DayRevision { repo, day, changes: changes.finish() };
        match hud.days.regressions.get(&revision, &slice) {
            Some(regressions) => found.extend(regressions.iter().cloned()),
            None => {
                stale.push(revision);
                unread.extend(revisions);
            }
        }
    }
    let facts = push_facts_of_days(hud, unread).await?;
    for revision in stale {
        let own =
            SharedFacts(facts.0.iter().filter(|day| day.repo == revision.repo).cloned().collect());
        // A failure on a pull request says nothing about the backend.
        let counts = |event: &EventName| EventKind::from_event_name(event).is_some();
        let attempts = own.attempts(&window).filter(|row| counts(&row.event));
        let dispatches = own.dispatches(&window).filter(|sent| counts(&sent.event));
        let regressions = Arc::new(find_regressions(&jobs_of_record(attempts, []), dispatches));
        found.extend(regressions.iter().cloned());
        hud.days.regressions.insert(revision, &slice, regressions);
    }
    Ok(found)
}

/// Takes days from the cache, and reads the others.
async fn read_whole_days(
    revisions: Vec<DayRevision>,
    cache: &DayCache<Arc<DayFacts>>,
    read: impl AsyncFn(&Window) -> Result<(Vec<AttemptFact>, Vec<DispatchFact>), PageError>,
) -> Result<SharedFacts, PageError> {
    let mut found = vec![];
    let mut stale = StaleDays::new();
    for revision in revisions.into_iter().filter(|revision| !revision.repo.is_empty()) {
        match cache.get(&revision, &DaySlice::whole(revision.day)) {
            Some(facts) => found.push(facts),
            None => stale.entry(revision.day).or_default().push(revision),
        }
    }
    for batch in split_into_batches(stale) {
        let (attempts, dispatches) =
            read(&window_of(&batch).of_repos(repositories(&batch))).await?;
        let mut by_day: HashMap<(String, i64), DayFacts> = HashMap::new();
        for row in attempts {
            let key = (row.repo.to_ascii_lowercase(), day_of(row.dispatched_at));
            by_day.entry(key).or_default().attempts.push(row);
        }
        for sent in dispatches {
            let key = (sent.repo.to_ascii_lowercase(), day_of(sent.enqueued_at));
            by_day.entry(key).or_default().dispatches.push(sent);
        }
        for revision in batch.into_values().flatten() {
            let facts = by_day.remove(&(revision.repo.clone(), revision.day)).unwrap_or_default();
            let (repo, day) = (revision.repo.clone(), revision.day);
            let facts = Arc::new(DayFacts { repo, day, ..facts });
            found.push(Arc::clone(&facts));
            let slice = DaySlice::whole(revision.day);
            cache.insert(revision, &slice, facts);
        }
    }
    Ok(SharedFacts(found))
}

/// When the newest report of these days was received.
pub(crate) fn newest_report(days: &[DayTally]) -> Option<Timestamp> {
    days.iter().filter_map(|(_, tally)| tally.newest).max()
}
