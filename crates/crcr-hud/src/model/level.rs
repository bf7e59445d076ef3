//! The evidence for a level: each criterion with its value, and the conclusion.

use crcr_domain::results::review::LevelPeriod;
use crcr_domain::results::{RepoReview, jobs_of_days};
use crcr_domain::{Level, RepoName};
use crcr_results::Window;
use crcr_results::review::{self, ReviewInputs};
use jiff::Timestamp;
use serde::Serialize;

use super::days::{blame, callback_outcomes, facts};
use super::oncall_reaction::{self, OncallReaction};
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

/// The page: the review, and what no threshold decides.
#[derive(Debug, Serialize)]
pub(crate) struct LevelModel {
    #[serde(flatten)]
    pub(crate) review: LevelReview,
    /// Sorted, the newest first.
    pub(crate) history: Vec<LevelPeriod>,
    pub(crate) oncall_reaction: Option<OncallReaction>,
}

pub(crate) async fn build_page(
    hud: &Hud,
    repo: &RepoName,
    level: Option<Level>,
    window: (Option<Timestamp>, Timestamp),
) -> Result<LevelModel, PageError> {
    let review = build(hud, repo, level, window).await?;
    let history = async { Ok(review::level_history(&*hud.results, repo, window.1).await?) };
    let reaction = async {
        let Some(entry) = entry_of(hud, repo) else { return Ok(None) };
        let window = Window::all(review.review.from, review.review.to)
            .of_repos(vec![entry.repo.as_str().to_owned()]);
        let facts = facts(hud, &window).await?;
        let jobs = jobs_of_days(facts.attempts(&window), facts.dispatches(&window));
        oncall_reaction::read(hud, &entry, &jobs).await
    };
    let (history, oncall_reaction) = tokio::try_join!(history, reaction)?;
    Ok(LevelModel { review, history, oncall_reaction })
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
    let beside = ReviewInputs::read(
        &*hud.results,
        repo,
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
    Ok(review.into())
}
