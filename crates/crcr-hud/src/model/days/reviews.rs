//! The reviews of backends by the criteria of their levels, kept until a day changes.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use crcr_domain::AllowlistEntry;
use crcr_domain::results::{BlamedJobs, RepoReview};
use crcr_results::retention::{day_of, midnight};
use crcr_results::{DayRevision, Window, review};
use jiff::Timestamp;

use super::cache::{CacheScope, DaySlice};
use super::day_facts::SharedFacts;
use crate::context::{Hud, PageError};
use crate::model::days;
use crate::pages::level;

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
    let (mut found, mut stale) = (vec![], vec![]);
    for (index, (entry, window)) in entries.iter().zip(windows).enumerate() {
        let day = day_of(window.from);
        let repo = format!("{} {}", entry.level, entry.repo.key());
        let revision = DayRevision { repo, day, changes };
        let scope = until_now.then_some(CacheScope::Review);
        let slice = DaySlice { day, from: window.from, to: window.to, scope };
        match hud.days.reviews.get(&revision, &slice) {
            Some(known) => found.push((index, known)),
            None => stale.push((index, entry, window, revision, slice)),
        }
    }
    let (mut all, mut read) = (SharedFacts(vec![]), vec![]);
    for (_, _, window, ..) in &stale {
        let facts = days::facts(hud, window).await?;
        all.0.extend(facts.0.iter().cloned());
        read.push(facts);
    }
    // Whose fault the failures are is found out once for all of them.
    let mut blamed: HashMap<String, BlamedJobs> = HashMap::new();
    for (repo, day) in days::blamed_days(hud, &all).await? {
        blamed.entry(repo).or_default().add(&day);
    }
    for ((index, entry, window, revision, slice), facts) in stale.into_iter().zip(read) {
        let blamed = blamed.remove(&entry.repo.key()).unwrap_or_default();
        let about = (&entry.repo, Some(entry.level));
        let review = Arc::new(level::review_by(hud, about, &window, &facts, blamed).await?);
        found.push((index, Arc::clone(&review)));
        hud.days.reviews.insert(revision, &slice, review);
    }
    found.sort_by_key(|(index, _)| *index);
    Ok(found.into_iter().map(|(_, review)| review).collect())
}
