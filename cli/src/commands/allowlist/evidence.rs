//! What the recorded results say to the repositories that go up or down.

use crcr_domain::allowlist::ParseOutcome;
use crcr_domain::allowlist::diff::{Change, ChangeKind, changes};
use crcr_domain::diagnostic::{Diagnostic, Rule};
use crcr_domain::results::review::Question;
use crcr_domain::results::{Review, Verdict};
use crcr_domain::{Allowlist, Level};
use jiff::Timestamp;

use crate::commands::levels::evidence::{Reviewer, told};
use crate::failure::Failure;

/// Reviews every promotion and every demotion by the facts before `until`: a review each, and what
/// is wrong with them.
pub async fn review(
    base: &Allowlist,
    head: &ParseOutcome,
    reviewer: &Reviewer,
    until: Timestamp,
) -> Result<(Vec<Review>, Vec<Diagnostic>), Failure> {
    let (mut reviews, mut found) = (vec![], vec![]);
    for change in changes(base, &head.policy) {
        let Some((step, level)) = step(&change) else { continue };
        let review = reviewer.review(change.repo(), level, (None, until)).await?;
        found.extend(finding(&change, &step, &review, reviewer, head));
        reviews.push(review);
    }
    Ok((reviews, found))
}

/// The change in words, and the level whose bar decides it: of a promotion the one below, of a
/// demotion the one that is given up. From L2 to L1 no bar decides, and reports are what is shown.
fn step(change: &Change<'_>) -> Option<(String, Level)> {
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
    change: &Change<'_>,
    step: &str,
    review: &Review,
    reviewer: &Reviewer,
    head: &ParseOutcome,
) -> Option<Diagnostic> {
    let up = change.kind() == ChangeKind::Promoted;
    let of = |verdict| -> String {
        let decided = review.evidence.iter().filter(|one| one.verdict == verdict);
        decided.map(told).collect::<Vec<_>>().join("; ")
    };
    let days = (review.to.duration_since(review.from).as_hours()) / 24;
    let reports = review.signal.denominator;
    let (rule, message, label) = match (review.question, review.verdict) {
        (Question::Signal, _) if up && reports == 0 => {
            (Rule::NoEvidence, format!("{step}, and never reported in {days} days"), "no signal")
        }
        (Question::Signal, _) if up && review.signal.numerator == 0 => {
            let message = format!("{step}, and each of its {reports} reports was refused");
            (Rule::NoEvidence, message, "no valid signal")
        }
        (Question::Signal, _) => return None,
        _ if !review.has_results() => {
            (Rule::NoEvidence, format!("{step} without any results"), "no results")
        }
        (_, Verdict::NotMet) if up => {
            let message = format!("{step}, and doesn't meet: {}", of(Verdict::NotMet));
            (Rule::CriteriaNotMet, message, "not shown to be ready")
        }
        (_, Verdict::Unknown) => {
            let message = format!("{step} with too few results for: {}", of(Verdict::Unknown));
            (Rule::NoEvidence, message, "too few results")
        }
        (_, Verdict::Met) if !up => {
            let message = format!("{step}, and its results meet every criterion");
            (Rule::NoEvidence, message, "not asked for by its results")
        }
        _ => return None,
    };
    let place = head.policy.position(change.repo()).map(|at| head.places[at].repo.clone());
    let span = place.unwrap_or_else(|| head.source.span(0..0));
    let help = format!("the evidence: {}", reviewer.link(review));
    Some(Diagnostic::new(rule, span, message).label(label).help(help))
}
