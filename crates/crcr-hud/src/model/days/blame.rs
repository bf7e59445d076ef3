//! Whose fault failures are, kept by repository and day.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use crcr_domain::results::facts::DispatchFact;
use crcr_domain::results::triage::TriageVerdict;
use crcr_domain::results::{AttemptId, BlamedJobs, jobs_of_days};
use crcr_results::blame::blame_jobs;
use crcr_results::retention::{after, day_of, midnight};
use crcr_results::{DayRevision, Window};

use super::cache::DaySlice;
use super::day_facts::{DayFacts, SharedFacts};
use super::{StaleDays, facts_of_days, push_attempts, repositories, split_into_batches, window_of};
use crate::context::{Hud, PageError};

/// Whose fault the failures on the whole days of these facts are. The answer of a repository's day is kept until some
/// repository has new facts of that day or of the next.
pub(crate) async fn blame(hud: &Hud, facts: &SharedFacts) -> Result<BlamedJobs, PageError> {
    let days = || facts.0.iter().map(|facts| facts.day);
    let (Some(first), Some(last)) = (days().min(), days().max()) else {
        return Ok(BlamedJobs::default());
    };
    let revisions = BlameRevisions::read(hud, first, last).await?;
    blame_days(hud, &facts.0, &[], &revisions).await
}

/// Finds the answers of all backends of these windows for [`blame`]. A commit on which several backends failed, and
/// upstream's own commits, are read once for all of them instead of once for each.
pub(crate) async fn blame_together(hud: &Hud, windows: &[Window]) -> Result<(), PageError> {
    let first = windows.iter().map(|window| day_of(window.from)).min();
    let last = windows.iter().map(|window| day_of(window.to)).max();
    let (Some(first), Some(last)) = (first, last) else { return Ok(()) };
    let starts = windows.iter().flat_map(|window| {
        let start = day_of(window.from);
        window.repos.iter().flatten().map(move |repo| (repo.to_ascii_lowercase(), start))
    });
    let starts: HashMap<String, i64> = starts.collect();
    let _turn = hud.days.blame_turn.lock().await;
    let revisions = BlameRevisions::read(hud, first, last).await?;
    let mut stale = StaleDays::new();
    for revision in revisions.0.range(first..=last).flat_map(|(_, of_day)| of_day) {
        let is_wanted = starts.get(&revision.repo).is_some_and(|start| *start <= revision.day);
        let key = revisions.of_day(&revision.repo, revision.day);
        if is_wanted && hud.days.blamed.get(&key, &DaySlice::whole(revision.day)).is_none() {
            stale.entry(revision.day).or_default().push(revision.clone());
        }
    }
    // One batch after another, so that many backends take time instead of memory.
    for batch in split_into_batches(stale) {
        let window = window_of(&batch).of_repos(repositories(&batch));
        let later = hud.results.dispatches(&after(&window)).await?;
        let facts = facts_of_days(hud, batch.into_values().flatten().collect()).await?;
        blame_days(hud, &facts.0, &later, &revisions).await?;
    }
    Ok(())
}

/// `later`: dispatches of later days, which show which heads were replaced.
async fn blame_days(
    hud: &Hud,
    days: &[Arc<DayFacts>],
    later: &[DispatchFact],
    revisions: &BlameRevisions,
) -> Result<BlamedJobs, PageError> {
    let mut found = BlamedJobs::default();
    let mut stale: Vec<(DayRevision, &DayFacts)> = vec![];
    for facts in days {
        let revision = revisions.of_day(&facts.repo, facts.day);
        match hud.days.blamed.get(&revision, &DaySlice::whole(facts.day)) {
            Some(blamed) => found.add(&blamed),
            None => stale.push((revision, facts)),
        }
    }
    let attempts = stale.iter().flat_map(|(_, facts)| &facts.attempts);
    let dispatches = days.iter().flat_map(|day| &day.dispatches).chain(later);
    let jobs = jobs_of_days(attempts, dispatches);
    let read = async |query| push_attempts(hud, query).await;
    let blamed = blame_jobs(&*hud.results, &jobs, read).await?;
    let mut by_day: HashMap<(String, i64), Vec<(AttemptId, TriageVerdict)>> = HashMap::new();
    for record in jobs.iter().map(|job| job.record) {
        if let Some(verdict) = blamed.verdict(record) {
            let day = (record.repo.to_ascii_lowercase(), day_of(record.dispatched_at));
            by_day.entry(day).or_default().push((AttemptId::of(record), verdict.clone()));
        }
    }
    for (revision, facts) in stale {
        let own = by_day.remove(&(revision.repo.clone(), facts.day)).unwrap_or_default();
        let own: BlamedJobs = own.into_iter().collect();
        found.add(&own);
        hud.days.blamed.insert(revision, &DaySlice::whole(facts.day), Arc::new(own));
    }
    Ok(found)
}

/// By day: the facts of all repositories, on which whose fault a failure is depends.
struct BlameRevisions(BTreeMap<i64, Vec<DayRevision>>);

impl BlameRevisions {
    async fn read(hud: &Hud, first: i64, last: i64) -> Result<Self, PageError> {
        let mut days: BTreeMap<i64, Vec<DayRevision>> = BTreeMap::new();
        let window = Window::all(midnight(first), midnight(last + 2));
        for revision in hud.results.day_revisions(&window).await? {
            // The revision without a repository is that of the reports.
            if !revision.repo.is_empty() {
                days.entry(revision.day).or_default().push(revision);
            }
        }
        for revisions in days.values_mut() {
            revisions.sort_unstable_by(|a, b| a.repo.cmp(&b.repo));
        }
        Ok(Self(days))
    }

    /// Differs from an earlier one if some repository has new facts of this day or of the next.
    fn of_day(&self, repo: &str, day: i64) -> DayRevision {
        let mut changes = DefaultHasher::new();
        [self.0.get(&day), self.0.get(&(day + 1))].hash(&mut changes);
        DayRevision { repo: repo.to_owned(), day, changes: changes.finish() }
    }
}
