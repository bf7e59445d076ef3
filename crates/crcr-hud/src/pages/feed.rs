//! `/crcr/feed.atom`: backends that turned red, as RFC 4287 has it.

use jiff::Timestamp;
use maud::{Markup, PreEscaped, html};

use crate::layout::short;
use crate::message::turned_red;
use crate::model::feed::Feed;

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
                    content type="text" { (turned_red(turn)) }
                }
            }
        }
    }
}
