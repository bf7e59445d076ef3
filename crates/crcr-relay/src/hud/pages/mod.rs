//! Markup of the pages; every word of a stranger is escaped by the template.

pub(super) mod level;
pub(super) mod overview;
pub(super) mod pull;
pub(super) mod repository;

use jiff::Timestamp;
use maud::{Markup, html};

use super::layout::{shell, time};
use super::query::{Events, Span};

/// The page of an error.
pub(super) fn problem(status: u16, text: &str) -> Markup {
    let title = match status {
        404 => "Not found",
        400 => "Not a valid address",
        _ => "The store doesn't answer",
    };
    shell(
        title,
        false,
        &html! {
            h1 { (title) }
            p { (text) }
            @if status >= 500 { p { "Nothing is lost: reports are answered with 503 and come again. Reload in a minute." } }
            p { a href="/crcr" { "All backends" } }
        },
    )
}

/// Windows and kinds of event as links, and the permalink.
fn controls(path: &str, span: &Span, permalink: &str) -> Markup {
    html! {
        nav.controls aria-label="Time span and events" {
            @for window in ["24h", "7d", "30d"] {
                a aria-current=[(span.window == Some(window)).then_some("true")]
                    href=(format!("{path}?window={window}&events={}", span.events.word())) { (window) }
            }
            span.gap {}
            @for events in [Events::Pr, Events::Nightly] {
                @let window = span.window.map_or_else(String::new, |window| format!("window={window}&"));
                a aria-current=[(span.events == events).then_some("true")]
                    href=(format!("{path}?{window}events={}", events.word())) {
                    @match events { Events::Pr => "pull requests", Events::Nightly => "nightly" }
                }
            }
            span.gap {}
            a href=(format!("{path}{permalink}")) { "permalink" }
        }
        p.detail { (time(span.from)) " to " (time(span.to)) }
    }
}

/// Says so when there is nothing, or nothing new.
fn freshness(newest: Option<Timestamp>, span: &Span) -> Markup {
    html! {
        @match newest {
            None => p.note role="status" { "No results in this span." },
            Some(newest) => {
                @if span.window.is_some() && span.to.duration_since(newest).as_hours() >= 24 {
                    p.note role="status" { "Stale: no data since " (time(newest)) "." }
                }
            }
        }
    }
}
