//! The picture that a backend's README shows: its level and pass rate.

use crcr_domain::results::CriterionVerdict;
use maud::{Markup, html};

use crate::pages::repository::BackendModel;

/// A badge for a README: level, whether its criteria are met, and pass rate.
pub(crate) fn svg(model: &BackendModel) -> Markup {
    let level = model.level.map_or("not listed", |level| level.as_str());
    let rate = model.worth.job_pass;
    let standing = model.review.as_ref().map(|review| review.review.standing());
    let (word, color) = match standing.map(|standing| (standing.verdict, standing.has_criteria)) {
        Some((Some(CriterionVerdict::Met), _)) => ("good", "#1a7f37"),
        Some((Some(CriterionVerdict::NotMet), _)) => ("fails", "#cf222e"),
        Some((_, false)) => ("no criteria", "#6e7781"),
        _ => ("unknown", "#6e7781"),
    };
    let text = match rate.value.filter(|_| rate.known) {
        // One failure among thousands isn't 100 %.
        Some(share) => {
            let most = if share < 1.0 { 99.0 } else { 100.0 };
            format!("{level} · {word} · {:.0} % pass", (share * 100.0).min(most))
        }
        None => format!("{level} · {word}"),
    };
    let width = 40 + 7 * text.chars().count();
    html! {
        svg xmlns="http://www.w3.org/2000/svg" width=(width) height="20" role="img" aria-label=(format!("crcr: {text}")) {
            title { "crcr: " (text) }
            rect width="36" height="20" fill="#444" {}
            rect x="36" width=(width - 36) height="20" fill=(color) {}
            g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" {
                text x="6" y="14" { "crcr" }
                text x="42" y="14" { (text) }
            }
        }
    }
}
