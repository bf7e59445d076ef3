//! The text of feed entries and alerts.

use std::fmt::Write as _;

use crcr_domain::results::Regression;

use crate::layout::{outcome_parts, short_sha};

pub fn regression_text(regression: &Regression) -> String {
    let mut text = format!(
        "{} failed on {} of {}; it last passed on {}.",
        regression.repo,
        short_sha(&regression.head_sha),
        regression.upstream,
        short_sha(&regression.good_sha)
    );
    if regression.failed.is_empty() {
        text.push_str("\nIt never started.");
    }
    for (job, outcome) in &regression.failed {
        let (_, _, word) = outcome_parts(Some(*outcome));
        let _ = write!(text, "\n{job}: {word}");
    }
    printable(&text)
}

/// Empty if it hasn't recovered.
pub fn recovery_text(regression: &Regression) -> String {
    let Some(green) = &regression.recovery else { return String::new() };
    printable(&format!(
        "{} passed on {} of {}; it had failed since {}.",
        regression.repo,
        short_sha(&green.head_sha),
        regression.upstream,
        short_sha(&regression.head_sha)
    ))
}

/// XML can't represent some characters.
pub(crate) fn printable(text: &str) -> String {
    text.replace(
        |c: char| (c.is_control() && c != '\n') || matches!(c, '\u{fffe}' | '\u{ffff}'),
        " ",
    )
}
