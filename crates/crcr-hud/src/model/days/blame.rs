//! Whose fault failures are, kept by repository and day.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::ops::RangeInclusive;
use std::sync::Arc;

use crcr_domain::results::facts::DispatchFact;
use crcr_domain::results::triage::TriageVerdict;
use crcr_domain::results::{AttemptId, BlamedJobs, jobs_of_days};
use crcr_results::blame::blame_jobs;
use crcr_results::retention::{after, day_of, midnight};
use crcr_results::{DayRevision, Window};

use super::cache::DaySlice;
use super::day_facts::{DayBlame, DayFacts, SharedFacts};
use super::{StaleDays, facts_of_days, push_attempts, repositories, split_into_batches, window_of};
use crate::context::{Hud, PageError};

impl DayBlame {
    fn new(verdicts: Vec<(AttemptId, TriageVerdict)>) -> Self {
        // They come in no order.
        let digest = verdicts.iter().fold(0, |all, verdict| all ^ digest_of(verdict));
        Self { verdicts: verdicts.into_iter().collect(), digest }
    }
}

fn digest_of(value: impl Hash) -> u64 {
    let mut digest = DefaultHasher::new();
    value.hash(&mut digest);
    digest.finish()
}

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
pub(crate) async fn blame_together(
    hud: &Hud,
    windows: &[Window],
) -> Result<BlameRevisions, PageError> {
    let first = windows.iter().map(|window| day_of(window.from)).min();
    let last = windows.iter().map(|window| day_of(window.to)).max();
    let (Some(first), Some(last)) = (first, last) else { return Ok(BlameRevisions::default()) };
    let starts = windows.iter().flat_map(|window| {
        let start = day_of(window.from);
        window.repos.iter().flatten().map(move |repo| (repo.to_ascii_lowercase(), start))
    });
    let starts: HashMap<String, i64> = starts.collect();
    let _turn = hud.days.blame_turn.lock().await;
    let revisions = BlameRevisions::read(hud, first, last).await?;
    let mut stale = StaleDays::new();
    for revision in revisions.0.range(first..=last).flat_map(|(_, of_day)| &of_day.repos) {
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
    Ok(revisions)
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
            Some(blamed) => found.add(&blamed.verdicts),
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
        let own = DayBlame::new(own);
        found.add(&own.verdicts);
        hud.days.blamed.insert(revision, &DaySlice::whole(facts.day), Arc::new(own));
    }
    Ok(found)
}

/// By day: the facts of all repositories, on which whose fault a failure is depends, and their reports.
#[derive(Default)]
pub(crate) struct BlameRevisions(BTreeMap<i64, DayChanges>);

#[derive(Default)]
struct DayChanges {
    /// Sorted by repository.
    repos: Vec<DayRevision>,
    digest: u64,
    /// The revision of the reports of all repositories.
    reports: Option<DayRevision>,
}

impl BlameRevisions {
    async fn read(hud: &Hud, first: i64, last: i64) -> Result<Self, PageError> {
        let mut days: BTreeMap<i64, DayChanges> = BTreeMap::new();
        let window = Window::all(midnight(first), midnight(last + 2));
        for revision in hud.results.day_revisions(&window).await? {
            let of_day = days.entry(revision.day).or_default();
            if revision.repo.is_empty() {
                of_day.reports = Some(revision);
            } else {
                of_day.repos.push(revision);
            }
        }
        for changes in days.values_mut() {
            changes.repos.sort_unstable_by(|a, b| a.repo.cmp(&b.repo));
            changes.digest = digest_of(&changes.repos);
        }
        Ok(Self(days))
    }

    /// Differs from an earlier one if some repository has new facts of this day or of the next.
    fn of_day(&self, repo: &str, day: i64) -> DayRevision {
        let changes = [day, day + 1].map(|day| self.0.get(&day).map(|changes| changes.digest));
        DayRevision { repo: repo.to_owned(), day, changes: digest_of(changes) }
    }

    /// Those of the reports on these days.
    pub(crate) fn of_reports(
        &self,
        days: RangeInclusive<i64>,
    ) -> impl Iterator<Item = DayRevision> {
        self.0.range(days).filter_map(|(_, of_day)| of_day.reports.clone())
    }

    /// Differs from an earlier one if the repository has new facts of these days, or another answer to whose fault one of
    /// its failures is. `None` if an answer isn't kept.
    pub(crate) fn of_repository(
        &self,
        hud: &Hud,
        repo: &str,
        days: RangeInclusive<i64>,
    ) -> Option<u64> {
        let mut all = DefaultHasher::new();
        for (day, changes) in self.0.range(days) {
            let Ok(at) = changes.repos.binary_search_by(|of_repo| (*of_repo.repo).cmp(repo)) else {
                continue;
            };
            let blame = hud.days.blamed.get(&self.of_day(repo, *day), &DaySlice::whole(*day))?;
            (&changes.repos[at], blame.digest).hash(&mut all);
        }
        Some(all.finish())
    }
}
