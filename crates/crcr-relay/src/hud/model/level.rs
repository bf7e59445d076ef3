//! The evidence for a level: each criterion, what the facts say, and what follows.

use crcr_domain::results::criteria::{
    Evidence, Window as Facts, demotion, demotion_from, promotion, promotion_from,
};
use crcr_domain::results::{Sums, Verdict, jobs_of_record};
use crcr_domain::{Level, RepoName};
use jiff::Timestamp;
use serde::Serialize;

use super::super::query::Events;
use super::super::{Hud, Problem};
use super::RateView;
use super::overview::entry_of;
use crate::results::Window;

/// How far back the time at a level is looked for.
const LOOK_BACK_DAYS: i64 = 366;

/// The page.
#[derive(Debug, Serialize)]
pub(in super::super) struct LevelReview {
    pub(in super::super) repo: String,
    pub(in super::super) level: Option<Level>,
    pub(in super::super) from: Timestamp,
    pub(in super::super) to: Timestamp,
    pub(in super::super) permalink: String,
    /// What the criteria are about.
    pub(in super::super) question: Question,
    pub(in super::super) evidence: Vec<Evidence>,
    /// What follows from all of them.
    pub(in super::super) verdict: Verdict,
    /// Infrastructure apart from tests.
    pub(in super::super) availability: RateView,
    pub(in super::super) test_pass: RateView,
}

/// What a review asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(in super::super) enum Question {
    /// May it be promoted to L3?
    Promotion,
    /// May it stay at L3?
    Stay,
}

pub(in super::super) async fn build(
    hud: &Hud,
    repo: &RepoName,
    to: Timestamp,
) -> Result<LevelReview, Problem> {
    let entry = entry_of(hud, repo);
    let level = entry.as_ref().map(|entry| entry.level);
    let stays = level >= Some(Level::L3);
    let from =
        if stays { demotion_from(to, &hud.criteria) } else { promotion_from(to, &hud.criteria) };
    let read = |from: Timestamp| Window { from, to, repo: Some(repo.as_str().to_owned()) };
    let mut attempts = hud.results.attempts(&read(from)).await?;
    attempts.retain(|row| Events::Pr.has(&row.event));
    let dispatches = hud.results.dispatches(&read(from)).await?;
    if entry.is_none() && attempts.is_empty() && dispatches.is_empty() {
        let text = format!("{repo} is not on the allowlist and has no results in this span");
        return Err(Problem::NotFound(text));
    }
    let facts = Facts { attempts: &attempts, dispatches: &dispatches, until: to };
    let evidence = if stays {
        demotion(facts, &hud.criteria)
    } else {
        let start = to - jiff::SignedDuration::from_hours(24 * LOOK_BACK_DAYS);
        let since = hud.results.at_level_since(&read(start), Level::L2).await?;
        promotion(facts, since, &hud.criteria)
    };
    let verdict = if evidence.iter().any(|e| e.verdict == Verdict::NotMet) {
        Verdict::NotMet
    } else if evidence.iter().any(|e| e.verdict == Verdict::Unknown) {
        Verdict::Unknown
    } else {
        Verdict::Met
    };
    let sums = Sums::of(&jobs_of_record(&attempts, &dispatches), &dispatches);
    let second = Timestamp::from_second(to.as_second()).unwrap_or(to);
    Ok(LevelReview {
        repo: entry.as_ref().map_or(repo.as_str(), |entry| entry.repo.as_str()).to_owned(),
        level,
        from,
        to,
        permalink: format!("?to={second}"),
        question: if stays { Question::Stay } else { Question::Promotion },
        evidence,
        verdict,
        availability: sums.availability.into(),
        test_pass: sums.test_pass().into(),
    })
}
