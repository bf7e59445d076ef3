//! `GET /api/crcr/level-status`, as the deployed HUD answers it: who would be demoted, and why.

use crcr_domain::Level;
use crcr_domain::results::CriterionVerdict;
use crcr_domain::results::review::ReviewQuestion;
use serde::Serialize;

use super::level::{amount, measured};
use crate::context::{Hud, PageError};
use crate::model::days::review_of;
use crate::query::NoQuery;

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct LevelStatusModel {
    pub(crate) repos: Vec<RepoLevelStatus>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RepoLevelStatus {
    pub(crate) repo: String,
    pub(crate) level: Level,
    /// `demote`, if its level has criteria and one of them isn't met.
    pub(crate) change: Option<&'static str>,
    /// Whether nothing was reported in the window. Such a repository is never demoted.
    pub(crate) no_data: bool,
    pub(crate) window_days: u32,
    pub(crate) criteria: Vec<CriterionStatus>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct CriterionStatus {
    /// Its name on the pages.
    pub(crate) criterion: &'static str,
    /// As the pages show it; `–` without samples.
    pub(crate) measured: String,
    /// With its sign, such as `> 90 %`.
    pub(crate) target: String,
    /// `None` with too few samples.
    pub(crate) met: Option<bool>,
}

/// The repositories at L3, in the allowlist's order. The workflow upstream that opens pull requests for
/// demotions reads this, and knows no other level.
pub(crate) async fn build(hud: &Hud, (): (), _: NoQuery) -> Result<LevelStatusModel, PageError> {
    let policy = (hud.policy)();
    let mut repos = vec![];
    for entry in policy.iter().flat_map(|policy| policy.iter()) {
        if entry.level != Level::L3 {
            continue;
        }
        let span = (None, (hud.clock)());
        let review = review_of(hud, &entry.repo, Some(entry.level), span).await?;
        let no_data = !review.has_results();
        let fails = !no_data && review.proposal().is_some_and(|to| to < entry.level);
        let window_days = match review.question {
            ReviewQuestion::Stay => hud.criteria.demotion_days,
            ReviewQuestion::Signal | ReviewQuestion::Promotion => hud.criteria.promotion_days,
        };
        let criteria = review.evidence.iter().map(|evidence| CriterionStatus {
            criterion: evidence.criterion.title(),
            measured: measured(evidence).unwrap_or_else(|| "–".to_owned()),
            target: format!(
                "{} {}",
                evidence.bound.sign(),
                amount(evidence.criterion, evidence.target)
            ),
            met: match evidence.verdict {
                CriterionVerdict::Met => Some(true),
                CriterionVerdict::NotMet => Some(false),
                CriterionVerdict::Unknown => None,
            },
        });
        repos.push(RepoLevelStatus {
            repo: entry.repo.as_str().to_owned(),
            level: entry.level,
            change: fails.then_some("demote"),
            no_data,
            window_days,
            criteria: criteria.collect(),
        });
    }
    Ok(LevelStatusModel { repos })
}
