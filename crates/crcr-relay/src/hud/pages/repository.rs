//! `/crcr/{owner}/{repo}`: one backend.

use crcr_domain::results::Outcome;
use maud::{Markup, html};

use super::super::chart::{durations, shares};
use super::super::layout::{distribution, outcome_parts, rate, shell, short, time};
use super::super::model::repository::{Cell, Matrix, Repository, Row};
use super::super::query::Events;
use super::{controls, freshness};

pub(in super::super) fn page(model: &Repository) -> Markup {
    let path = format!("/crcr/{}", model.repo);
    shell(
        &model.repo,
        true,
        &html! {
            h1 { bdi { (model.repo) } " "
                @match model.level {
                    Some(level) => span.tag { (level) " " (level.title()) },
                    None => span.tag { "not on the allowlist" },
                }
            }
            (controls(&path, &model.span, &model.permalink))
            (freshness(model.newest, &model.span))
            p {
                a href=(format!("{path}/level")) { "Evidence for its level" }
                @if !model.oncalls.is_empty() { " · on call: " (model.oncalls.join(", ")) }
            }
            dl.cards {
                div { dt { "CI job pass" } dd { (rate(&model.worth.job_pass)) } }
                div { dt { "Test pass" } dd { (rate(&model.worth.test_pass)) } }
                div { dt { "Availability" } dd { (rate(&model.worth.availability)) } }
                div { dt { "Queue P50" } dd { (distribution(model.worth.queue.as_ref())) } }
                div { dt { "Run time P50" } dd { (distribution(model.worth.execution.as_ref())) } }
                div { dt { "End to end P50" } dd { (distribution(model.worth.end_to_end.as_ref())) } }
                div { dt { "Running now" } dd { (model.worth.running) } }
            }
            section aria-labelledby="trends" {
                h2 #trends { "Trends" }
                div.charts {
                    (shares("Pass and availability", &model.trend))
                    (durations("Queue", &model.trend, |day| day.queue_p50, |day| day.queue_p95))
                    (durations("Run time", &model.trend, |day| day.execution_p50, |day| day.execution_p95))
                }
            }
            section aria-labelledby="matrix" {
                h2 #matrix {
                    @match model.span.events { Events::Pr => "Pull requests by job", Events::Nightly => "Nightly commits by job" }
                }
                (matrix(&model.matrix, &model.upstream))
            }
            section aria-labelledby="tests" {
                h2 #tests { "Failing tests" }
                @if model.failing_tests.is_empty() { p.muted { "None reported in this span." } }
                @else {
                    div.scroll tabindex="0" role="region" aria-label="Failing tests" { table {
                        thead { tr { th scope="col" { "Test" } th scope="col" { "Failures" } th scope="col" { "Last" } th scope="col" { "Last message" } } }
                        tbody { @for test in &model.failing_tests { tr {
                            th scope="row" { bdi { (test.name) } @if let Some(file) = &test.file { div.detail { bdi { (file) } } } }
                            td { (test.count) }
                            td { (time(test.last)) }
                            td.message { bdi { (test.message.as_deref().unwrap_or("–")) } }
                        } } }
                    } }
                }
            }
            section aria-labelledby="refused" {
                h2 #refused { "Refused reports" }
                @if model.refused.is_empty() { p.muted { "None in this span." } }
                @else {
                    div.scroll tabindex="0" role="region" aria-label="Refused reports" { table {
                        thead { tr { th scope="col" { "When" } th scope="col" { "Answer" } th scope="col" { "Why" } } }
                        tbody { @for refused in &model.refused { tr {
                            td { (time(refused.at)) }
                            td { (refused.answer) " " (refused.outcome.as_str().replace('_', " ")) }
                            td.message { bdi { (refused.detail.as_deref().unwrap_or("–")) } }
                        } } }
                    } }
                }
            }
        },
    )
}

fn matrix(matrix: &Matrix, upstream: &str) -> Markup {
    if matrix.rows.is_empty() {
        return html! { p.muted { "No jobs in this span." } };
    }
    html! {
        div.scroll tabindex="0" role="region" aria-label="Jobs by commit" {
            table.matrix {
                thead { tr {
                    th scope="col" { "Commit" }
                    @for name in &matrix.columns { th.job scope="col" title=(name) { span { bdi { (name) } } } }
                } }
                tbody { @for row in &matrix.rows { (matrix_row(row, &matrix.columns, upstream)) } }
            }
        }
        @if matrix.more_rows > 0 || matrix.more_columns > 0 {
            p.detail { "Left out: " (matrix.more_rows) " older commits, " (matrix.more_columns) " jobs." }
        }
        p.detail {
            @for outcome in [None].into_iter().chain(Outcome::ALL.map(Some)) {
                @let (glyph, _, word) = outcome_parts(outcome);
                span.legend { (glyph) " " (word) }
            }
        }
    }
}

fn matrix_row(row: &Row, columns: &[String], upstream: &str) -> Markup {
    html! {
        tr {
            th scope="row" {
                @match row.pull_request {
                    Some(number) => {
                        @let query = if row.upstream.eq_ignore_ascii_case(upstream) { String::new() } else { format!("?upstream={}", row.upstream) };
                        a href=(format!("/pr/{number}{query}")) { "#" (number) }
                    },
                    None => "commit",
                }
                " " code { (short(&row.head_sha)) }
                div.detail { (time(row.at)) }
            }
            @for (cell, name) in row.cells.iter().zip(columns) { td { (matrix_cell(cell.as_ref(), name)) } }
        }
    }
}

fn matrix_cell(cell: Option<&Cell>, name: &str) -> Markup {
    let Some(cell) = cell else {
        return html! { span.muted title=(format!("{name}: did not run")) { "·" } };
    };
    let (glyph, class, word) = outcome_parts(cell.outcome);
    let attempts =
        if cell.attempts > 1 { format!(", {} attempts", cell.attempts) } else { String::new() };
    let label = format!("{name}: {word}{attempts}");
    let link = cell.url.as_deref().filter(|url| url.starts_with("https://"));
    html! {
        @match link {
            Some(url) => a.outcome.(class) href=(url) rel="noreferrer nofollow" title=(label) aria-label=(label) { (glyph) },
            None => span.outcome.(class) title=(label) { span aria-hidden="true" { (glyph) } span.hidden { (word) } },
        }
    }
}
