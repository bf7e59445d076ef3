//! `/crcr`: every backend, by level.

use crcr_domain::Level;
use maud::{Markup, html};

use super::super::chart::spark;
use super::super::layout::{distribution, duration, rate, shell, time};
use super::super::model::overview::{Backend, LevelGroup, Overview, RelayHealth, Standing};
use super::{controls, freshness};

pub(in super::super) fn page(model: &Overview) -> Markup {
    shell(
        &format!("Backends of {}", model.upstream),
        true,
        &html! {
            h1 { "Backends of " (model.upstream) }
            (controls("/crcr", &model.span, &model.permalink))
            @if !model.allowlist {
                p.note role="status" { "No allowlist is in force yet: the relay has not been able to read one." }
            }
            (freshness(model.newest, &model.span))
            @for group in &model.levels { (level(group, &model.permalink)) }
            (relay(&model.relay))
        },
    )
}

fn level(group: &LevelGroup, permalink: &str) -> Markup {
    html! {
        section aria-labelledby=(format!("level-{}", group.level)) {
            h2 id=(format!("level-{}", group.level)) {
                (group.level) " " span.muted { (group.level.title()) }
            }
            @if group.backends.is_empty() {
                p.muted { "No backends at this level." }
            } @else if group.level.shows_results() {
                div.scroll tabindex="0" role="region" aria-label=(format!("Backends at {}", group.level)) {
                    table {
                        thead { tr {
                            th scope="col" { "Backend" } th scope="col" { "Standing" }
                            th scope="col" { "CI job pass" } th scope="col" { "Test pass" }
                            th scope="col" { "Availability" } th scope="col" { "Queue P50" }
                            th scope="col" { "End to end P50" } th scope="col" { "Trend" }
                            th scope="col" { "Last result" }
                        } }
                        tbody { @for backend in &group.backends { (row(backend, permalink)) } }
                    }
                }
            } @else {
                ul.plain { @for backend in &group.backends {
                    li { a href=(format!("/crcr/{}{permalink}", backend.repo)) { bdi { (backend.repo) } } }
                } }
                p.detail { "Backends at " (Level::L1) " receive events; their results are not shown." }
            }
        }
    }
}

fn row(backend: &Backend, permalink: &str) -> Markup {
    let (glyph, class, word) = match backend.standing {
        Standing::Below => ("✗", "bad", "below the bar"),
        Standing::Silent => ("∅", "infra", "silent"),
        Standing::Unknown => ("–", "muted", "unknown"),
        Standing::Met => ("✓", "good", "at the bar"),
    };
    html! {
        tr {
            th scope="row" {
                a href=(format!("/crcr/{}{permalink}", backend.repo)) { bdi { (backend.repo) } }
                @if let Some(device) = &backend.device { " " span.tag { (device) } }
            }
            td { span.outcome.(class) { span.glyph aria-hidden="true" { (glyph) } " " (word) } }
            td { (rate(&backend.worth.job_pass)) }
            td { (rate(&backend.worth.test_pass)) }
            td { (rate(&backend.worth.availability)) }
            td { (distribution(backend.worth.queue.as_ref())) }
            td { (distribution(backend.worth.end_to_end.as_ref())) }
            td { (spark(&backend.trend)) }
            td { @match backend.newest { Some(newest) => (time(newest)), None => span.muted { "never" } } }
        }
    }
}

fn relay(health: &RelayHealth) -> Markup {
    html! {
        section aria-labelledby="relay" {
            h2 #relay { "The relay itself" }
            dl.cards {
                div { dt { "Dispatch latency" } dd { (distribution(health.dispatch_latency.as_ref())) } }
                div { dt { "Answer to a report" } dd {
                    @match &health.callback_latency {
                        Some(d) => { (duration(d.p50)) " " span.detail { "P95 " (duration(d.p95)) " · n " (d.n) } },
                        None => span.muted { "no data" },
                    }
                } }
                div { dt { "Nothing heard of" } dd { (health.orphans) span.detail { " dispatches" } } }
                div { dt { "Dispatches" } dd { (counts(health.dispatches.iter().map(|(k, v)| (k.as_str(), *v)))) } }
                div { dt { "Reports" } dd { (counts(health.callbacks.iter().map(|(k, v)| (*k, *v)))) } }
            }
        }
    }
}

fn counts<'a>(counts: impl Iterator<Item = (&'a str, u64)>) -> Markup {
    let counts: Vec<_> = counts.collect();
    html! {
        @if counts.is_empty() { span.muted { "none" } }
        @for (n, (word, count)) in counts.iter().enumerate() {
            @if n > 0 { " · " }
            (count) " " span.detail { (word.replace('_', " ")) }
        }
    }
}
