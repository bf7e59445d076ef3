//! The criteria with the text in their name, of each backend whose level they decide.

use crcr_domain::results::CriterionVerdict;
use crcr_domain::results::criteria::{Criterion, CriterionEvidence};
use crcr_domain::{AllowlistEntry, RepoName};

use super::{HitKind, MAX_OF_A_KIND, SearchHit, words};
use crate::context::{Hud, PageError};
use crate::model::days;
use crate::pages::level::{amount, measured};

/// Those that aren't met come first.
pub(super) async fn criteria(hud: &Hud, text: &str) -> Result<Vec<SearchHit>, PageError> {
    let wanted = words(text);
    let is_found = |criterion: Criterion| words(criterion.title()).contains(&wanted);
    if !Criterion::ALL.into_iter().any(is_found) {
        return Ok(vec![]);
    }
    let policy = (hud.policy)();
    let entries: Vec<AllowlistEntry> =
        policy.iter().flat_map(|policy| policy.iter()).cloned().collect();
    let reviews = days::reviews(hud, &entries, hud.now(), true).await?;
    let mut found: Vec<(&RepoName, &CriterionEvidence)> = vec![];
    for (entry, review) in entries.iter().zip(&reviews) {
        let evidence = review.evidence.iter().filter(|item| is_found(item.criterion));
        found.extend(evidence.map(|item| (&entry.repo, item)));
    }
    found.sort_by_key(|(_, item)| item.verdict != CriterionVerdict::NotMet);
    Ok(found.into_iter().take(MAX_OF_A_KIND).map(|(repo, item)| hit(repo, item)).collect())
}

fn hit(repo: &RepoName, item: &CriterionEvidence) -> SearchHit {
    let value = measured(item).unwrap_or_else(|| "unknown".to_owned());
    let not = if item.verdict == CriterionVerdict::NotMet { "not " } else { "" };
    let target = format!("{not}{} {}", item.bound.sign(), amount(item.criterion, item.target));
    SearchHit {
        kind: HitKind::Criterion,
        path: format!("/crcr/{repo}/level"),
        name: format!("{repo}: {} {value}, {target}", item.criterion.title()),
    }
}
