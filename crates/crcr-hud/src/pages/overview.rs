//! `/crcr`: every backend, by level.

use crcr_domain::Level;
use maud::{Markup, html};

use super::{controls, freshness};
use crate::chart::spark;
use crate::layout::{distribution, rate, shell, time};
use crate::model::overview::{Backend, LevelGroup, Overview, RelayHealth, Standing};

/// The heads of the table's columns, which a narrow screen shows beside each value.
const HEADS: [&str; 7] = [
    "Standing",
    "CI job pass",
    "Test pass",
    "Availability",
    "Queue P50",
    "End to end P50",
    "Pass by day",
];

pub(crate) fn page(model: &Overview) -> Markup {
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
            // Roles by name: a narrow screen's style would take the table's own away.
            div.scroll tabindex="0" role="region" aria-label="Backends" { table.stack role="table" {
                thead role="rowgroup" { tr role="row" {
                    th scope="col" role="columnheader" { "Backend" }
                    @for head in HEADS { th scope="col" role="columnheader" { (head) } }
                } }
                @for group in &model.levels { (level(group, &model.span.address())) }
            } }
            (relay(&model.relay))
        },
    )
}

/// How many backends stand where, those that need somebody first.
fn summary(levels: &[LevelGroup]) -> Markup {
    let shown = levels.iter().filter(|group| group.level.shows_results());
    let all: Vec<_> = shown.flat_map(|group| &group.backends).map(|b| b.standing).collect();
    let standings = [Standing::Below, Standing::Silent, Standing::Unknown, Standing::Met];
    html! {
        ul.chips aria-label="Backends by standing" { @for standing in standings {
            @let count = all.iter().filter(|one| **one == standing).count();
            @let (glyph, class, word) = parts(standing);
            @if count > 0 {
                li.(class) { span.outcome.(class) { span.glyph aria-hidden="true" { (glyph) } " " strong { (count) } " " (word) } }
            }
        } }
    }
}

fn parts(standing: Standing) -> (&'static str, &'static str, &'static str) {
    match standing {
        Standing::Below => ("✗", "bad", "below the bar"),
        Standing::Silent => ("∅", "infra", "silent"),
        Standing::Unknown => ("–", "muted", "unknown"),
        Standing::Met => ("✓", "good", "at the bar"),
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

fn name(backend: &Backend, query: &str) -> Markup {
    html! {
        a href=(format!("/crcr/{}{query}", backend.repo)) { bdi { (backend.repo) } }
        @if let Some(device) = &backend.device { " " span.tag { (device) } }
    }
}

fn row(backend: &Backend, query: &str) -> Markup {
    let (glyph, class, word) = parts(backend.standing);
    let worth = &backend.worth;
    let values = [
        html! { span.outcome.(class) { span.glyph aria-hidden="true" { (glyph) } " " (word) } },
        rate(&worth.job_pass),
        rate(&worth.test_pass),
        rate(&worth.availability),
        distribution(worth.queue.as_ref()),
        distribution(worth.end_to_end.as_ref()),
        spark(&backend.trend),
    ];
    html! {
        tr role="row" {
            th scope="row" role="rowheader" {
                (name(backend, query))
                div.detail { @match backend.newest { Some(newest) => { "last " (time(newest)) }, None => "no result" } }
            }
            @for (head, value) in HEADS.iter().zip(&values) {
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
                div { dt { "Nothing heard of" } dd { (health.orphans) span.detail { "dispatches" } } }
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
