//! The pages: what each asks, and what it shows. The templates escape all text from outside.

pub(crate) mod branch;
pub(crate) mod branches;
pub(crate) mod commit;
pub(crate) mod failure;
pub(crate) mod failures;
pub(crate) mod feed;
pub(crate) mod head;
pub(crate) mod jobs;
pub(crate) mod level;
pub(crate) mod level_status;
pub(crate) mod log_text;
pub(crate) mod now;
pub(crate) mod overview;
pub(crate) mod pull;
pub(crate) mod pulls;
pub(crate) mod quarantine;
pub(crate) mod relay;
pub(crate) mod reported;
pub(crate) mod repository;
pub(crate) mod search;
pub(crate) mod test;
pub(crate) mod tests;
pub(crate) mod trends;

use crcr_domain::results::triage::TriageCategory;
use jiff::Timestamp;
use maud::{Markup, html};

use crate::layout::{time, zone};
use crate::model::open_pulls::OpenPull;
use crate::query::{ShownEvents, TimeSpan};

/// The kinds of event to choose from.
const EVENTS: [(ShownEvents, &str); 2] =
    [(ShownEvents::Pr, "Pull requests and pushes"), (ShownEvents::Nightly, "Nightly")];

fn category_text(category: TriageCategory) -> &'static str {
    match category {
        TriageCategory::Upstream => "upstream",
        TriageCategory::Backend => "backend",
        TriageCategory::Infra => "infrastructure",
        TriageCategory::Flake => "flaky",
        TriageCategory::Unknown => "undecided",
    }
}

/// Whose fault it is, by a verdict of the relay. Upstream's is that of the change that was tested, or of an earlier one.
fn fault_text(category: TriageCategory, was_broken_before: bool) -> &'static str {
    match category {
        TriageCategory::Upstream if was_broken_before => "broken before",
        TriageCategory::Upstream => "this change",
        other => category_text(other),
    }
}

/// Whose fault it is that something is wrong with a pull request.
fn pull_fault(pull: &OpenPull) -> &'static str {
    pull.fault.map_or("undecided", |fault| fault_text(fault, pull.was_broken_before))
}

/// Links to windows and kinds of event, a form for another time span, and the permalink, if there is one. Crawlers aren't to follow
/// them: their combinations never end.
fn controls(path: &str, span: &TimeSpan, permalink: &str) -> Markup {
    let link = |window: Option<&'static str>, events: ShownEvents| {
        let span = TimeSpan { window: window.or(span.window), events, page: 1, ..span.clone() };
        format!("{path}{}", span.address())
    };
    let others = TimeSpan { page: 1, ..span.clone() }.address();
    let others = url::form_urlencoded::parse(others.trim_start_matches('?').as_bytes());
    let others: Vec<_> =
        others.filter(|(name, _)| !["window", "from", "to"].contains(&&**name)).collect();
    let minute = |time: Timestamp| time.strftime("%Y-%m-%dT%H:%M").to_string();
    html! {
        nav.controls aria-label="Time span and events" {
            span.group { @for (window, name) in [("24h", "24 h"), ("7d", "7 d"), ("30d", "30 d")] {
                a rel="nofollow" aria-current=[(span.window == Some(window)).then_some("true")]
                    href=(link(Some(window), span.events)) { (name) }
            } }
            span.group { @for (events, name) in EVENTS {
                a rel="nofollow" aria-current=[(span.events == events).then_some("true")] href=(link(None, events)) { (name) }
            } }
            span.detail { (time(span.from)) " – " (time(span.to)) " " (zone()) }
            details open[span.window.is_none()] {
                summary { "Other time span" }
                form.span method="get" action=(path) {
                    label { "From (UTC)" input type="datetime-local" name="from" value=(minute(span.from)) required; }
                    label { "To (UTC)" input type="datetime-local" name="to" value=(minute(span.to)) required; }
                    @for (name, value) in &others { input type="hidden" name=(name) value=(value); }
                    button { "Show" }
                }
            }
            @if !permalink.is_empty() && span.sort.is_none() && span.show.is_none() { a rel="nofollow" href=(format!("{path}{permalink}")) { "Permalink" } }
        }
    }
}

/// A note when there are no results, or no new ones.
fn freshness(newest: Option<Timestamp>, span: &TimeSpan) -> Markup {
    html! {
        @match newest {
            None => p.note role="status" { "No results in this span." },
            Some(newest) => {
                @if span.window.is_some() && span.to.duration_since(newest).as_hours() >= 24 {
                    p.note role="status" { "Stale: no data since " (time(newest)) " " (zone()) "." }
                }
            }
        }
    }
}
