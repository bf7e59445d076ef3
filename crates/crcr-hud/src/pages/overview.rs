//! `/crcr`: every backend, by level.

use crcr_domain::Level;
use crcr_domain::results::ExpectedCounts;
use maud::{Markup, html};

use super::{controls, freshness};
use crate::chart::sparkline;
use crate::layout::{distribution, rate, shell, time};
use crate::model::overview::{BackendRow, BackendStanding, LevelGroup, OverviewModel, RelayHealth};

/// Column headings; on a narrow screen each value shows its own.
const HEADINGS: [&str; 7] = [
    "Status",
    "CI job pass",
    "Test pass",
    "Availability",
    "Queue P50",
    "End to end P50",
    "Pass by day",
];

pub(crate) fn page(model: &OverviewModel) -> Markup {
    shell(
        &format!("Backends of {}", model.upstream),
        true,
        &html! {
            div.title {
                h1 { "Backends of " bdi { (model.upstream) } }
                a href="/crcr/feed.atom" { "Feed of backends that turn red" }
            }
            (controls("/crcr", &model.span, &model.permalink))
            @if !model.allowlist {
                p.note.bad role="status" { "No allowlist is in force yet: the relay has not been able to read one." }
            }
            (freshness(model.newest, &model.span))
            (summary(&model.levels))
            // Explicit roles, because the style for narrow screens makes browsers drop the table's own.
            div.scroll tabindex="0" role="region" aria-label="Backends" { table.stack role="table" {
                thead role="rowgroup" { tr role="row" {
                    th scope="col" role="columnheader" { "Backend" }
                    @for head in HEADINGS { th scope="col" role="columnheader" { (head) } }
                } }
                @for group in &model.levels { (level(group, &model.span.address())) }
            } }
            (relay(&model.relay))
        },
    )
}

/// How many backends have each status; the ones that need attention come first.
fn summary(levels: &[LevelGroup]) -> Markup {
    let shown = levels.iter().filter(|group| group.level.shows_results());
    let all: Vec<_> = shown.flat_map(|group| &group.backends).map(|b| b.standing).collect();
    let standings = [
        BackendStanding::Below,
        BackendStanding::Silent,
        BackendStanding::Unknown,
        BackendStanding::Met,
    ];
    html! {
        ul.chips aria-label="Backends by standing" { @for standing in standings {
            @let count = all.iter().filter(|other| **other == standing).count();
            @let (glyph, class, word) = standing_parts(standing);
            @if count > 0 {
                li.(class) { span.outcome.(class) { span.glyph aria-hidden="true" { (glyph) } " " strong { (count) } " " (word) } }
            }
        } }
    }
}

fn standing_parts(standing: BackendStanding) -> (&'static str, &'static str, &'static str) {
    match standing {
        BackendStanding::Below => ("✗", "bad", "low pass rate"),
        BackendStanding::Silent => ("∅", "infra", "silent"),
        BackendStanding::Unknown => ("–", "muted", "unknown"),
        BackendStanding::Met => ("✓", "good", "good pass rate"),
    }
}

fn level(group: &LevelGroup, query: &str) -> Markup {
    html! {
        tbody role="rowgroup" {
            tr.level role="row" { th colspan="8" scope="rowgroup" role="rowheader" {
                (group.level) " " span.muted { (group.level.title()) }
                @if group.backends.is_empty() { span.detail { " · no backends" } }
                @else if !group.level.shows_results() {
                    span.detail { " · backends at " (Level::L1) " receive events; their results are not shown" }
                }
            } }
            @for backend in &group.backends {
                @if group.level.shows_results() { (row(backend, query)) }
                @else { tr role="row" { th colspan="8" scope="row" role="rowheader" { (name(backend, query)) } } }
            }
        }
    }
}

fn name(backend: &BackendRow, query: &str) -> Markup {
    html! {
        a href=(format!("/crcr/{}{query}", backend.repo)) { bdi { (backend.repo) } }
        @if let Some(device) = &backend.device { " " span.tag { (device) } }
    }
}

fn row(backend: &BackendRow, query: &str) -> Markup {
    let (glyph, class, word) = standing_parts(backend.standing);
    let worth = &backend.worth;
    let values = [
        html! { span.outcome.(class) { span.glyph aria-hidden="true" { (glyph) } " " (word) } },
        rate(&worth.job_pass),
        rate(&worth.test_pass),
        rate(&worth.availability),
        distribution(worth.queue.as_ref()),
        distribution(worth.end_to_end.as_ref()),
        sparkline(&backend.trend),
    ];
    html! {
        tr role="row" {
            th scope="row" role="rowheader" {
                (name(backend, query))
                div.detail { @match backend.newest { Some(newest) => { "last " (time(newest)) }, None => "no result" } }
            }
            @for (head, value) in HEADINGS.iter().zip(&values) {
                td role="cell" data-label=(head) { div { (value) } }
            }
        }
    }
}

fn relay(health: &RelayHealth) -> Markup {
    html! {
        section aria-labelledby="relay" {
            h2 #relay { "The relay itself" }
            dl.cards {
                div { dt { "Dispatch latency" } dd { (distribution(health.dispatch_latency.as_ref())) } }
                div { dt { "Answer to a report" } dd { (distribution(health.callback_latency.as_ref())) } }
                div { dt { "Never started" } dd { (health.orphans) span.detail { "dispatches" } } }
                @if health.expected != ExpectedCounts::default() {
                    div { dt title="Jobs that fail on purpose, such as those of a canary" { "Expected failures" } dd.counts {
                        (counts(health.expected.named().into_iter()))
                    } }
                }
                div { dt { "Dispatches" } dd.counts { (counts(health.dispatches.iter().map(|(k, v)| (k.as_str(), *v)))) } }
                div { dt { "Reports" } dd.counts { (counts(health.callbacks.iter().map(|(k, v)| (*k, *v)))) } }
            }
        }
    }
}

fn counts<'a>(counts: impl Iterator<Item = (&'a str, u64)>) -> Markup {
    let mut counts: Vec<_> = counts.collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    html! {
        @if counts.is_empty() { span.muted { "none" } }
        ul.counts { @for (word, count) in counts {
            li { (count) " " span.muted { (word.replace('_', " ")) } }
        } }
    }
}
