//! The reviews of backends by the criteria of their levels, kept until a day changes.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use crcr_domain::results::RepoReview;
use crcr_domain::{AllowlistEntry, Level, RepoName};
use crcr_results::retention::{day_of, midnight};
use crcr_results::review::ReviewInputs;
use crcr_results::{DayRevision, Window, review};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;

use super::blame::{BlameRevisions, blame, blame_together};
use super::cache::{CacheScope, DaySlice};
use super::{callback_outcomes, facts, reports_of_repository};
use crate::context::{Hud, PageError};

/// Reviews that are read at the same time: as many as SQLite has connections for pages.
const CONCURRENT_REVIEWS: usize = 4;

/// One review of each entry, up to `to`; with `until_now` that is now, and there is nothing later.
pub(crate) async fn reviews(
    hud: &Hud,
    entries: &[AllowlistEntry],
    to: Timestamp,
    until_now: bool,
) -> Result<Vec<Arc<RepoReview>>, PageError> {
    let windows = entries
        .iter()
        .map(|entry| review::window(&entry.repo, Some(entry.level), (None, to), &hud.criteria));
    let windows: Vec<Window> = windows.collect();
    let Some(first) = windows.iter().map(|window| window.from).min() else { return Ok(vec![]) };
    // Whose fault a failure is depends on all backends, also on those of the next day.
    let all = Window::all(first, midnight(day_of(to) + 2));
    let mut revisions = hud.results.day_revisions(&all).await?;
    revisions.sort_unstable_by(|a, b| (a.day, &a.repo).cmp(&(b.day, &b.repo)));
    let mut changes = DefaultHasher::new();
    revisions.hash(&mut changes);
    let changes = changes.finish();
    let key = |(entry, window): (&AllowlistEntry, &Window)| {
        let day = day_of(window.from);
        let repo = format!("{} {}", entry.level, entry.repo.key());
        let scope = until_now.then_some(CacheScope::Review);
        let slice = DaySlice { day, from: window.from, to: window.to, scope };
        (DayRevision { repo, day, changes }, slice)
    };
    let keys: Vec<(DayRevision, DaySlice)> = entries.iter().zip(&windows).map(key).collect();
    let known = keys.iter().map(|(revision, slice)| hud.days.reviews.get(revision, slice));
    let known: Vec<Option<Arc<RepoReview>>> = known.collect();
    let stale = windows.into_iter().zip(&known).filter(|(_, known)| known.is_none());
    let stale: Vec<Window> = stale.map(|(window, _)| window).collect();
    let blame = blame_together(hud, &stale).await?;
    let asked = entries.iter().zip(keys).zip(known);
    let asked = stream::iter(asked).map(async |((entry, (revision, slice)), known)| {
        if let Some(known) = known {
            return Ok(known);
        }
        let own_slice =
            DaySlice { scope: slice.scope.map(|_| CacheScope::ReviewOfOwnFacts), ..slice };
        let own = own_changes(hud, &blame, &entry.repo, &slice).await?;
        let own = own.map(|changes| DayRevision { changes, ..revision.clone() });
        let known = own.as_ref().and_then(|own| hud.days.reviews.get(own, &own_slice));
        let review = match known {
            Some(known) => known,
            None => Arc::new(review_of(hud, &entry.repo, Some(entry.level), (None, to)).await?),
        };
        if let Some(own) = own {
            hud.days.reviews.insert(own, &own_slice, Arc::clone(&review));
        }
        hud.days.reviews.insert(revision, &slice, Arc::clone(&review));
        Ok::<_, PageError>(review)
    });
    asked.buffered(CONCURRENT_REVIEWS).try_collect().await
}

/// Differs from an earlier one if a review would: nearly every new fact is of another backend, and changes neither this one's
/// results nor whose fault its failures are. `None` if that isn't known.
async fn own_changes(
    hud: &Hud,
    blame: &BlameRevisions,
    repo: &RepoName,
    slice: &DaySlice,
) -> Result<Option<u64>, PageError> {
    // Their results come from reports of tests, which have no revision.
    if !hud.criteria.core_tests().is_empty() {
        return Ok(None);
    }
    let days = day_of(slice.from)..=day_of(slice.to);
    let Some(facts) = blame.of_repository(hud, &repo.key(), days.clone()) else { return Ok(None) };
    // None is ever taken back, so their number tells whether there are others.
    let reports = reports_of_repository(hud, repo.as_str(), blame.of_reports(days)).await?;
    let mut reports: Vec<_> = reports.iter().map(|(day, reports)| (*day, reports.len())).collect();
    reports.sort_unstable();
    let mut changes = DefaultHasher::new();
    (facts, reports).hash(&mut changes);
    Ok(Some(changes.finish()))
}

/// Reviews the repository at `level`, or at its level on the allowlist.
pub(crate) async fn review_of(
    hud: &Hud,
    repo: &RepoName,
    level: Option<Level>,
    window: (Option<Timestamp>, Timestamp),
) -> Result<RepoReview, PageError> {
    let entry = hud.entry_of(repo);
    let repo = entry.as_ref().map_or(repo, |entry| &entry.repo);
    let level = level.or(entry.as_ref().map(|entry| entry.level));
    let window = review::window(repo, level, window, &hud.criteria);
    let beside = ReviewInputs::read(
        &*hud.results,
        (repo, level),
        &window,
        &hud.criteria,
        callback_outcomes(hud, &window),
    );
    let (beside, facts) = tokio::try_join!(beside, facts(hud, &window))?;
    let blamed = blame(hud, &facts).await?;
    let facts = (facts.attempts(&window).collect(), facts.dispatches(&window).collect());
    let review = beside.review(repo, level, &window, facts, blamed, &hud.criteria);
    if entry.is_none() && !review.has_results() {
        let text = format!("{repo} is not on the allowlist and has no results in this span");
        return Err(PageError::NotFound(text));
    }
    Ok(review)
}
