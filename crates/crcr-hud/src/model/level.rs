//! The evidence for a level: each criterion with its value, and the conclusion.

use crcr_domain::results::RepoReview;
use crcr_domain::{Level, RepoName};
use crcr_results::review::{self, ReviewInputs};
use jiff::Timestamp;
use serde::Serialize;

use super::days::{blame, callback_outcomes, facts};
use super::overview::entry_of;
use crate::{Hud, PageError};

#[derive(Debug, Serialize)]
pub(crate) struct LevelReview {
    #[serde(flatten)]
    pub(crate) review: RepoReview,
    pub(crate) permalink: String,
}

impl From<RepoReview> for LevelReview {
    fn from(review: RepoReview) -> Self {
        Self { permalink: review.permalink(), review }
    }
}

/// Reviews the repository at `level`, or at its level on the allowlist.
pub(crate) async fn build(
    hud: &Hud,
    repo: &RepoName,
    level: Option<Level>,
    window: (Option<Timestamp>, Timestamp),
) -> Result<LevelReview, PageError> {
    let entry = entry_of(hud, repo);
    let repo = entry.as_ref().map_or(repo, |entry| &entry.repo);
    let level = level.or(entry.as_ref().map(|entry| entry.level));
    let window = review::window(repo, level, window, &hud.criteria);
    let beside = ReviewInputs::read(&*hud.results, &window, callback_outcomes(hud, &window));
    let (beside, facts) = tokio::try_join!(beside, facts(hud, &window))?;
    let blamed = blame(hud, &facts).await?;
    let facts = (facts.attempts(&window).collect(), facts.dispatches(&window).collect());
    let review = beside.review(repo, level, &window, facts, blamed, &hud.criteria);
    if entry.is_none() && !review.has_results() {
        let text = format!("{repo} is not on the allowlist and has no results in this span");
        return Err(PageError::NotFound(text));
    }
    Ok(review.into())
}
