//! What people are told outside the pages: the text of feed entries and of alerts.

use std::fmt::Write as _;

use crcr_domain::results::Turn;

use crate::layout::{outcome_parts, short};

/// What happened, in a few lines.
pub fn turned_red(turn: &Turn) -> String {
    let mut text = format!(
        "{} failed on {} of {}; it last did well on {}.",
        turn.repo,
        short(&turn.head_sha),
        turn.upstream,
        short(&turn.good_sha)
    );
    if turn.failed.is_empty() {
        text.push_str("\nIt never started.");
    }
    for (job, outcome) in &turn.failed {
        let (_, _, word) = outcome_parts(Some(*outcome));
        let _ = write!(text, "\n{job}: {word}");
    }
    // XML has no way to say them.
    text.replace(
        |c: char| (c.is_control() && c != '\n') || matches!(c, '\u{fffe}' | '\u{ffff}'),
        " ",
    )
}
