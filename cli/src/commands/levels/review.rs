//! `crcr levels review`: every listed repository against the criteria of its level.

use std::fmt::Write as _;
use std::process::ExitCode;

use crcr_domain::Level;
use crcr_domain::results::{CriterionVerdict, RepoReview};
use serde_json::json;

use super::reviewer::{LevelReviewer, describe_evidence};
use crate::cli::allowlist::ReviewFormat;
use crate::cli::levels::ReviewArgs;
use crate::commands::allowlist_file::AllowlistFile;
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;

/// Prints a review of every repository to stdout, and with `--propose` the level changes that follow.
pub async fn run(args: &ReviewArgs, printer: &Printer) -> Outcome {
    let to = args.to.unwrap_or_else(jiff::Timestamp::now);
    if args.from.is_some_and(|from| from >= to) {
        return Err(Failure::unexpected("window", "`--from` isn't before `--to`"));
    }
    let policy = AllowlistFile::read(&args.allowlist)?.parse_valid(&args.upstream, printer)?.policy;
    let reviewer = LevelReviewer::open(&args.results, &args.options).await?;
    let mut reviews = Vec::with_capacity(policy.len());
    for level in Level::ALL.into_iter().rev() {
        for entry in policy.at_level(level) {
            reviews.push(reviewer.review(&entry.repo, level, (args.from, to)).await?);
        }
    }
    let proposals: Vec<_> = reviews.iter().filter_map(LevelProposal::from_review).collect();
    let proposals = args.propose.then_some(&*proposals);
    let text = match args.format {
        ReviewFormat::Text => text(&reviewer, &reviews, proposals),
        ReviewFormat::Json => json(&reviewer, &reviews, proposals),
        ReviewFormat::Markdown => markdown(&reviewer, &reviews, proposals),
    };
    printer.data_as(args.format, &text);
    Ok(ExitCode::SUCCESS)
}

/// A change of level that the results ask for.
struct LevelProposal<'a> {
    review: &'a RepoReview,
    from: Level,
    to: Level,
    /// For a promotion, all criteria; for a demotion, those that aren't met.
    reasons: Vec<String>,
}

impl<'a> LevelProposal<'a> {
    fn from_review(review: &'a RepoReview) -> Option<Self> {
        let (from, to) = (review.level?, review.proposal()?);
        let is_promotion = to > from;
        let decides = if is_promotion { CriterionVerdict::Met } else { CriterionVerdict::NotMet };
        let answer = if is_promotion { review.promotion() } else { review.staying() };
        let reasons = answer
            .map_or(&[][..], |(evidence, _)| evidence)
            .iter()
            .filter(|evidence| evidence.verdict == decides)
            .map(describe_evidence);
        Some(Self { review, from, to, reasons: reasons.collect() })
    }

    fn verb(&self) -> &'static str {
        if self.to > self.from { "promote" } else { "demote" }
    }

    /// Such as `promote acme/backend from L2 to L3: …`.
    fn line(&self, name: &str) -> String {
        let (verb, from, to) = (self.verb(), self.from, self.to);
        format!("{verb} {name} from {from} to {to}: {}", self.reasons.join("; "))
    }
}

const NO_PROPOSAL: &str = "the results ask for no promotion and no demotion";

fn text(
    reviewer: &LevelReviewer,
    reviews: &[RepoReview],
    proposals: Option<&[LevelProposal<'_>]>,
) -> String {
    let reviews: Vec<_> = reviews.iter().map(|review| reviewer.text(review)).collect();
    let mut out = reviews.join("\n");
    if let Some(proposals) = proposals {
        out.push('\n');
        for proposal in proposals {
            let _ = writeln!(out, "{}", proposal.line(&proposal.review.repo));
        }
        if proposals.is_empty() {
            let _ = writeln!(out, "{NO_PROPOSAL}");
        }
    }
    out
}

fn markdown(
    reviewer: &LevelReviewer,
    reviews: &[RepoReview],
    proposals: Option<&[LevelProposal<'_>]>,
) -> String {
    let mut out = "### Levels\n".to_owned();
    if let Some(proposals) = proposals {
        out.push('\n');
        for proposal in proposals {
            let name = format!("`{}`", proposal.review.repo);
            let _ = writeln!(out, "- {}", proposal.line(&name).replace('<', "&lt;"));
        }
        if proposals.is_empty() {
            let _ = writeln!(out, "{NO_PROPOSAL}");
        }
    }
    for review in reviews {
        out.push_str(&reviewer.markdown(review));
    }
    out
}

fn json(
    reviewer: &LevelReviewer,
    reviews: &[RepoReview],
    proposals: Option<&[LevelProposal<'_>]>,
) -> String {
    let mut document = json!({
        "version": 1,
        "criteria": reviewer.criteria(),
        "repositories": reviews.iter().map(|review| reviewer.json(review)).collect::<Vec<_>>(),
    });
    if let Some(proposals) = proposals {
        let list = proposals.iter().map(|proposal| {
            json!({
                "repository": proposal.review.repo,
                "change": proposal.verb(),
                "from": proposal.from,
                "to": proposal.to,
                "reasons": proposal.reasons,
                "permalink": reviewer.link(proposal.review),
            })
        });
        document["proposals"] = list.collect();
    }
    format!("{document:#}\n")
}
