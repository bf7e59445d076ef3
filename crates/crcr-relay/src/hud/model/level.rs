//! The evidence for a level: each criterion, what the facts say, and what follows.

use crcr_domain::results::Review;
use crcr_domain::{Level, RepoName};
use jiff::Timestamp;
use serde::Serialize;

use super::super::{Hud, Problem};
use super::overview::entry_of;
use crate::results::review::review;

/// The page.
#[derive(Debug, Serialize)]
pub(in super::super) struct LevelReview {
    #[serde(flatten)]
    pub(in super::super) review: Review,
    pub(in super::super) permalink: String,
}

/// Reviews at the level that the address names, else at the one of the allowlist.
pub(in super::super) async fn build(
    hud: &Hud,
    repo: &RepoName,
    level: Option<Level>,
    window: (Option<Timestamp>, Timestamp),
) -> Result<LevelReview, Problem> {
    let entry = entry_of(hud, repo);
    let repo = entry.as_ref().map_or(repo, |entry| &entry.repo);
    let level = level.or(entry.as_ref().map(|entry| entry.level));
    let review = review(&*hud.results, repo, level, window, &hud.criteria).await?;
    if entry.is_none() && !review.has_results() {
        let text = format!("{repo} is not on the allowlist and has no results in this span");
        return Err(Problem::NotFound(text));
    }
    Ok(LevelReview { permalink: review.permalink(), review })
}
