//! Markup of the pages; every word of a stranger is escaped by the template.

pub(crate) mod feed;
pub(crate) mod level;
pub(crate) mod overview;
pub(crate) mod pull;
pub(crate) mod repository;

use jiff::Timestamp;
use maud::{Markup, html};

use crate::layout::{shell, time};
use crate::query::{Events, Span};

/// The page of an error.
pub fn problem(status: u16, text: &str) -> Markup {
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

/// Windows and kinds of event as links, a form for another span, and the permalink.
fn controls(path: &str, span: &Span, permalink: &str) -> Markup {
    let link = |window: Option<&'static str>, events: Events| {
        let span = Span { window: window.or(span.window), events, ..span.clone() };
        format!("{path}{}", span.address())
    };
    let minute = |time: Timestamp| time.strftime("%Y-%m-%dT%H:%M").to_string();
    html! {
        nav.controls aria-label="Time span and events" {
            span.group { @for (window, name) in [("24h", "24 h"), ("7d", "7 d"), ("30d", "30 d")] {
                a aria-current=[(span.window == Some(window)).then_some("true")]
                    href=(link(Some(window), span.events)) { (name) }
            } }
            span.group { @for (events, name) in [(Events::Pr, "Pull requests"), (Events::Nightly, "Nightly")] {
                a aria-current=[(span.events == events).then_some("true")] href=(link(None, events)) { (name) }
            } }
            span.detail { (time(span.from)) " – " (time(span.to)) " UTC" }
            details open[span.window.is_none()] {
                summary { "Other span" }
                form.span method="get" action=(path) {
                    label { "From (UTC)" input type="datetime-local" name="from" value=(minute(span.from)) required; }
                    label { "To (UTC)" input type="datetime-local" name="to" value=(minute(span.to)) required; }
                    input type="hidden" name="events" value=(span.events.word());
                    button { "Show" }
                }
            }
            a href=(format!("{path}{permalink}")) { "Permalink" }
        }
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
