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

use super::cache::{CacheScope, DaySlice};
use super::{blame, callback_outcomes, facts};
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
    let asked = stream::iter(entries.iter().zip(windows)).map(async |(entry, window)| {
        let day = day_of(window.from);
        let repo = format!("{} {}", entry.level, entry.repo.key());
        let revision = DayRevision { repo, day, changes };
        let scope = until_now.then_some(CacheScope::Review);
        let slice = DaySlice { day, from: window.from, to: window.to, scope };
        if let Some(known) = hud.days.reviews.get(&revision, &slice) {
            return Ok(known);
        }
        let review = review_of(hud, &entry.repo, Some(entry.level), (None, to)).await?;
        let review = Arc::new(review);
        hud.days.reviews.insert(revision, &slice, Arc::clone(&review));
        Ok::<_, PageError>(review)
    });
    asked.buffered(CONCURRENT_REVIEWS).try_collect().await
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
