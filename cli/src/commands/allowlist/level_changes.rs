//! Reviews promotions and demotions by recorded results.

use crcr_domain::allowlist::ParseOutcome;
use crcr_domain::allowlist::diff::{ChangeKind, EntryChange, RepositoryRename, changes};
use crcr_domain::diagnostic::{Diagnostic, Rule};
use crcr_domain::results::review::ReviewQuestion;
use crcr_domain::results::{CriterionVerdict, RepoReview};
use crcr_domain::{Allowlist, Level};
use jiff::Timestamp;

use crate::commands::levels::reviewer::{LevelReviewer, describe_evidence};
use crate::failure::Failure;

/// Reviews every promotion and every demotion by the results before `until`. Returns the reviews and
/// the findings about them.
pub async fn review(
    (base, renames): (&Allowlist, &[RepositoryRename]),
    head: &ParseOutcome,
    reviewer: &LevelReviewer,
    until: Timestamp,
) -> Result<(Vec<RepoReview>, Vec<Diagnostic>), Failure> {
    let (mut reviews, mut found) = (vec![], vec![]);
    for change in changes(base, &head.policy, renames) {
        let Some((step, level)) = describe_step(&change) else { continue };
        // The relay stores results under the name that the allowlist has had until now.
        let repo = change.rename.map_or(change.repo(), |rename| &rename.from);
        let review = reviewer.review(repo, level, (None, until)).await?;
        found.extend(finding(&change, &step, &review, reviewer, head));
        reviews.push(review);
    }
    Ok((reviews, found))
}

/// Describes the change and returns the level whose criteria decide about it: for a promotion the level
/// below the new one, for a demotion the level that is given up. No criteria decide about L1; its
/// review shows which reports came in.
fn describe_step(change: &EntryChange<'_>) -> Option<(String, Level)> {
    let (before, after) = (change.before?, change.after?);
    let (way, level) = match (change.kind(), after.level) {
        (ChangeKind::Promoted, Level::L3) => ("up", Level::L2),
        (ChangeKind::Promoted, Level::L4) => ("up", Level::L3),
        (ChangeKind::Promoted, _) => ("up", Level::L1),
        (ChangeKind::Demoted, _) if before.level == Level::L2 => ("down", Level::L1),
        (ChangeKind::Demoted, _) => ("down", before.level),
        _ => return None,
    };
    let step = format!("`{}` goes {way} from {} to {}", after.repo, before.level, after.level);
    Some((step, level))
}

fn finding(
    change: &EntryChange<'_>,
    step: &str,
    review: &RepoReview,
    reviewer: &LevelReviewer,
    head: &ParseOutcome,
) -> Option<Diagnostic> {
    let up = change.kind() == ChangeKind::Promoted;
    // For a promotion from L3 the criteria of L4 decide, if there are any.
    let second = review.second.as_ref().filter(|one| up && one.question != ReviewQuestion::Stay);
    let (evidence, verdict) = match second {
        Some(second) => (&second.evidence, second.verdict),
        None => (&review.evidence, review.verdict),
    };
    let criteria = |verdict| -> String {
        let decided = evidence.iter().filter(|evidence| evidence.verdict == verdict);
        decided.map(describe_evidence).collect::<Vec<_>>().join("; ")
    };
    let days = (review.to.duration_since(review.from).as_hours()) / 24;
    let reports = review.signal.denominator;
    let (rule, message, label) = match (review.question, verdict) {
        (ReviewQuestion::Signal, _) if up && reports == 0 => {
            (Rule::NoEvidence, format!("{step} and has not reported in {days} days"), "no reports")
        }
        (ReviewQuestion::Signal, _) if up && review.signal.numerator == 0 => {
            let message = format!("{step}, but all of its {reports} reports were refused");
            (Rule::NoEvidence, message, "no valid reports")
        }
        (ReviewQuestion::Signal, _) if evidence.is_empty() => return None,
        _ if !review.has_results() => {
            (Rule::NoEvidence, format!("{step} without any results"), "no results")
        }
        (_, CriterionVerdict::NotMet) if up => {
            let message =
                format!("{step} but doesn't meet: {}", criteria(CriterionVerdict::NotMet));
            (Rule::CriteriaNotMet, message, "criteria not met")
        }
        (_, CriterionVerdict::Unknown) => {
            let message =
                format!("{step} with too few results for: {}", criteria(CriterionVerdict::Unknown));
            (Rule::NoEvidence, message, "too few results")
        }
        (_, CriterionVerdict::Met) if !up => {
            let message = format!("{step}, but its results meet every criterion");
            (Rule::NoEvidence, message, "its results don't ask for it")
        }
        _ => return None,
    };
    let place = head.policy.position(change.repo()).map(|at| head.places[at].repo.clone());
    let span = place.unwrap_or_else(|| head.source.span(0..0));
    let help = format!("the evidence: {}", reviewer.link(review));
    Some(Diagnostic::new(rule, span, message).label(label).help(help))
}
