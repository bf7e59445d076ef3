//! `/crcr/feed.atom`: backends that turned red, as RFC 4287 has it.

use std::fmt::Write as _;

use crcr_domain::results::Turn;
use jiff::Timestamp;
use maud::{Markup, PreEscaped, html};

use super::super::layout::{outcome_parts, short};
use super::super::model::feed::Feed;

/// Addresses in it are relative to its own: the relay needn't know how it is reached.
pub(crate) fn feed(model: &Feed) -> Markup {
    let (path, title) = match &model.repo {
        Some(repo) => (format!("/crcr/{repo}"), format!("{repo} turned red")),
        None => ("/crcr".to_owned(), format!("Backends of {} that turned red", model.upstream)),
    };
    let second = |time: Timestamp| Timestamp::from_second(time.as_second()).unwrap_or(time);
    let updated = model.turns.first().map_or(model.now, |turn| turn.at);
    html! {
        (PreEscaped("<?xml version=\"1.0\" encoding=\"utf-8\"?>"))
        feed xmlns="http://www.w3.org/2005/Atom" {
            id { "urn:crcr:red:" (model.repo.as_deref().unwrap_or(&model.upstream)) }
            title { (title) }
            updated { (second(updated)) }
            author { name { "Cross-repository CI" } }
            link rel="self" href=(format!("{path}/feed.atom")) {}
            link rel="alternate" type="text/html" href=(path) {}
            @for turn in &model.turns {
                entry {
                    id { "urn:crcr:red:" (turn.repo) ":" (turn.event) ":" (turn.head_sha) }
                    title { (turn.repo) " turned red on " (turn.event) " " (short(&turn.head_sha)) }
                    updated { (second(turn.at)) }
                    link rel="alternate" type="text/html" href=(format!("/crcr/{}", turn.repo)) {}
                    content type="text" { (text(turn)) }
                }
            }
        }
    }
}

/// What happened, in a few lines.
pub(crate) fn text(turn: &Turn) -> String {
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
