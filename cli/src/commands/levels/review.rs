//! `crcr levels review`: every listed repository against the bar of its level.

use std::fmt::Write as _;
use std::process::ExitCode;

use crcr_domain::Level;
use crcr_domain::results::{Review, Verdict};
use serde_json::json;

use super::evidence::{Reviewer, told};
use crate::cli::allowlist::ReviewFormat;
use crate::cli::levels::ReviewArgs;
use crate::commands::allowlist::input::Input;
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;

/// Prints the reviews, those with a proposal first among the proposals, to stdout.
pub async fn run(args: &ReviewArgs, printer: &Printer) -> Outcome {
    let to = args.to.unwrap_or_else(jiff::Timestamp::now);
    if args.from.is_some_and(|from| from >= to) {
        return Err(Failure::unexpected("window", "`--from` isn't before `--to`"));
    }
    let policy = Input::read(&args.allowlist)?.parse_valid(&args.upstream, printer)?.policy;
    let reviewer = Reviewer::open(&args.results, &args.bar).await?;
    let mut reviews = Vec::with_capacity(policy.len());
    for level in Level::ALL.into_iter().rev() {
        for entry in policy.at_level(level) {
            reviews.push(reviewer.review(&entry.repo, level, (args.from, to)).await?);
        }
    }
    let proposals: Vec<_> = reviews.iter().filter_map(Proposal::of).collect();
    let proposals = args.propose.then_some(&*proposals);
    printer.data(&match args.format {
        ReviewFormat::Text => text(&reviewer, &reviews, proposals),
        ReviewFormat::Json => json(&reviewer, &reviews, proposals),
        ReviewFormat::Markdown => markdown(&reviewer, &reviews, proposals),
    });
    Ok(ExitCode::SUCCESS)
}

/// A change of level that the results ask for.
struct Proposal<'a> {
    review: &'a Review,
    from: Level,
    to: Level,
    /// The criteria that decide it: all of a promotion, those that aren't met of a demotion.
    reasons: Vec<String>,
}

impl<'a> Proposal<'a> {
    fn of(review: &'a Review) -> Option<Self> {
        let (from, to) = (review.level?, review.proposal()?);
        let decides = if to > from { Verdict::Met } else { Verdict::NotMet };
        let reasons = review.evidence.iter().filter(|one| one.verdict == decides).map(told);
        Some(Self { review, from, to, reasons: reasons.collect() })
    }

    fn word(&self) -> &'static str {
        if self.to > self.from { "promote" } else { "demote" }
    }

    /// `promote acme/backend from L2 to L3: …`, with `name` for the repository.
    fn line(&self, name: &str) -> String {
        let (word, from, to) = (self.word(), self.from, self.to);
        format!("{word} {name} from {from} to {to}: {}", self.reasons.join("; "))
    }
}

const NO_PROPOSAL: &str = "the results ask for no promotion and no demotion";

fn text(reviewer: &Reviewer, reviews: &[Review], proposals: Option<&[Proposal<'_>]>) -> String {
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

fn markdown(reviewer: &Reviewer, reviews: &[Review], proposals: Option<&[Proposal<'_>]>) -> String {
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

fn json(reviewer: &Reviewer, reviews: &[Review], proposals: Option<&[Proposal<'_>]>) -> String {
    let mut document = json!({
        "version": 1,
        "criteria": reviewer.criteria,
        "repositories": reviews.iter().map(|review| reviewer.json(review)).collect::<Vec<_>>(),
    });
    if let Some(proposals) = proposals {
        let list = proposals.iter().map(|proposal| {
            json!({
                "repository": proposal.review.repo,
                "change": proposal.word(),
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
