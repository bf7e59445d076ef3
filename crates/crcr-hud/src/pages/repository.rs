//! `/crcr/{owner}/{repo}`: one backend.

use crcr_domain::results::review::ReviewQuestion;
use crcr_domain::results::{CriterionVerdict, JobOutcome};
use maud::{Markup, html};

use super::level::{amount, verdict as verdict_parts};
use super::{controls, freshness};
use crate::chart::{durations, shares};
use crate::layout::{distribution, external_link, outcome_parts, rate, shell, short_sha, time};
use crate::model::level::LevelReview;
use crate::model::repository::{BackendModel, CellBlame, JobMatrix, MatrixCell, MatrixRow};
use crate::query::{EventFilter, TimeSpan};

pub(crate) fn page(model: &BackendModel) -> Markup {
    let path = format!("/crcr/{}", model.repo);
    shell(
        &model.repo,
        true,
        &html! {
            div.title {
                h1 { bdi { (model.repo) } }
                @match model.level {
                    Some(level) => span.tag { (level) " " (level.title()) },
                    None => span.tag { "not on the allowlist" },
                }
                a href=(format!("{path}/feed.atom")) { "Feed" }
                a href=(format!("{path}/badge.svg")) { "Badge" }
                @if !model.oncalls.is_empty() { span.detail { "on call: " bdi { (model.oncalls.join(", ")) } } }
            }
            (controls(&path, &model.span, &model.permalink))
            (freshness(model.newest, &model.span))
            dl.cards {
                div { dt { "CI job pass" } dd { (rate(&model.worth.job_pass)) } }
                div { dt { "Test pass" } dd { (rate(&model.worth.test_pass)) } }
                @if model.upstream_failures > 0 {
                    div { dt { "CI job pass without upstream's failures (" (model.upstream_failures) ")" } dd { (rate(&model.job_pass_without_upstream)) } }
                    div { dt { "Test pass without upstream's failures" } dd { (rate(&model.test_pass_without_upstream)) } }
                }
                div { dt { "Availability" } dd { (rate(&model.worth.availability)) } }
                div { dt { "Queue P50" } dd { (distribution(model.worth.queue.as_ref())) } }
                div { dt { "Run time P50" } dd { (distribution(model.worth.execution.as_ref())) } }
                div { dt { "End to end P50" } dd { (distribution(model.worth.end_to_end.as_ref())) } }
                div { dt { "Running now" } dd { (model.worth.running) } }
            }
            @if let Some(review) = &model.review { (criteria_summary(review)) }
            section aria-labelledby="trends" {
                h2 #trends { "Trends" }
                div.charts {
                    (shares("Pass and availability", &model.trend))
                    (durations("Queue", &model.trend, |day| day.queue_p50, |day| day.queue_p95))
                    (durations("Run time", &model.trend, |day| day.execution_p50, |day| day.execution_p95))
                }
            }
            section aria-labelledby="matrix" {
                div.title {
                    h2 #matrix {
                        @match model.span.events { EventFilter::Pr => "Pull requests by job", EventFilter::Nightly => "Nightly commits by job" }
                    }
                    (filters(&path, &model.span, model.matrix.older_heads))
                }
                (matrix(model))
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
                h2 #refused { "Refused and unproven reports" }
                @if model.refused.is_empty() { p.muted { "None in this span." } }
                @else {
                    div.scroll tabindex="0" role="region" aria-label="Refused and unproven reports" { table {
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

/// The criteria, with those that aren't met first.
fn criteria_summary(model: &LevelReview) -> Markup {
    let review = &model.review;
    let what = match review.question {
        ReviewQuestion::Signal => return html! {},
        ReviewQuestion::Promotion => "Distance to L3",
        ReviewQuestion::Stay => "Criteria of its level",
    };
    let mut evidence: Vec<_> = review.evidence.iter().collect();
    let met = evidence.iter().filter(|e| e.verdict == CriterionVerdict::Met).count();
    evidence.sort_by_key(|e| match e.verdict {
        CriterionVerdict::NotMet => 0,
        CriterionVerdict::Unknown => 1,
        CriterionVerdict::Met => 2,
    });
    html! {
        section aria-labelledby="distance" {
            div.title {
                h2 #distance { (what) }
                span.muted { (met) " of " (evidence.len()) " criteria met" }
                a href=(format!("/crcr/{}/level", review.repo)) { "Evidence" }
            }
            ul.chips { @for evidence in evidence {
                @let (glyph, class, word) = verdict_parts(evidence.verdict);
                li.(class) {
                    span.outcome.(class) { span.glyph aria-hidden="true" { (glyph) } span.hidden { (word) ":" } }
                    " " (evidence.criterion.title()) " "
                    @match evidence.value { Some(value) => strong { (amount(evidence.criterion, value)) }, None => span.muted { "no data" } }
                    " " span.detail { (evidence.bound.sign()) " " (amount(evidence.criterion, evidence.target)) }
                }
            } }
        }
    }
}

/// Links that choose the rows of the matrix.
fn filters(path: &str, span: &TimeSpan, older_heads: usize) -> Markup {
    let link = |all_heads: bool, only_failing: bool| {
        let span = TimeSpan { all_heads, only_failing, ..span.clone() };
        format!("{path}{}#matrix", span.address())
    };
    html! {
        span.group { @for (only_failing, name) in [(false, "All"), (true, "Failing")] {
            a aria-current=[(span.only_failing == only_failing).then_some("true")] href=(link(span.all_heads, only_failing)) { (name) }
        } }
        @if span.events == EventFilter::Pr {
            span.group { @for (all_heads, name) in [(false, "Current heads"), (true, "All heads")] {
                a aria-current=[(span.all_heads == all_heads).then_some("true")] href=(link(all_heads, span.only_failing)) { (name) }
            } }
            @if !span.all_heads && older_heads > 0 { span.detail { (older_heads) " older heads folded" } }
        }
    }
}

/// With more columns, cells show only the symbol; screen readers still get the word.
const MAX_COLUMNS_WITH_WORDS: usize = 8;

fn matrix(page: &BackendModel) -> Markup {
    let matrix = &page.matrix;
    if matrix.rows.is_empty() {
        return html! { p.muted { "No jobs in this time span." } };
    }
    let dense = matrix.columns.len() > MAX_COLUMNS_WITH_WORDS;
    let shared = if dense { common_prefix(&matrix.columns) } else { "" };
    html! {
        div.scroll tabindex="0" role="region" aria-label="Jobs by commit" {
            table.matrix.dense[dense] {
                thead { tr {
                    th scope="col" {
                        "Commit"
                        @if !shared.is_empty() { div.detail aria-hidden="true" { "Jobs: " bdi { (shared) } "…" } }
                    }
                    @for name in &matrix.columns { th.job scope="col" title=(name) { span {
                        span.hidden { bdi { (shared) } }
                        bdi { (&name[shared.len()..]) }
                    } } }
                    th scope="col" { "Whose fault" }
                } }
                tbody { @for row in &matrix.rows { (matrix_row(row, matrix, page)) } }
            }
        }
        @if matrix.more_rows > 0 || matrix.more_columns > 0 {
            p.detail { "Left out: " (matrix.more_rows) " older commits, " (matrix.more_columns) " jobs." }
        }
        @if dense { p.detail {
            @for outcome in [None].into_iter().chain(JobOutcome::ALL.map(Some)) {
                @let (glyph, _, word) = outcome_parts(outcome);
                span.legend { (glyph) " " (word) }
            }
        } }
    }
}

/// The common start of all names, cut at the end of a word. The table shows it once.
fn common_prefix(names: &[String]) -> &str {
    let Some((first, others)) = names.split_first() else { return "" };
    let same = |n: &usize| others.iter().all(|name| name.get(..*n) == first.get(..*n));
    let ends = first.char_indices().filter(|(_, c)| !c.is_alphanumeric());
    let ends = ends.map(|(n, c)| n + c.len_utf8()).filter(|n| *n < first.len());
    &first[..ends.take_while(same).last().unwrap_or(0)]
}

fn matrix_row(row: &MatrixRow, matrix: &JobMatrix, page: &BackendModel) -> Markup {
    html! {
        tr.older[row.older] {
            th scope="row" {
                @match row.pull_request {
                    Some(number) => {
                        @let query = if row.upstream.eq_ignore_ascii_case(&page.upstream) { String::new() } else { format!("?upstream={}", row.upstream) };
                        a href=(format!("/pr/{number}{query}")) { "#" (number) }
                    },
                    None => strong.muted { @match page.span.events { EventFilter::Pr => "push", EventFilter::Nightly => "nightly" } },
                }
                @if row.head_sha.is_empty() { " run " bdi { (row.run_id) } " " } @else { " " code { (short_sha(&row.head_sha)) } " " }
                span.detail { (time(row.at)) @if row.older { " · older head" } }
            }
            @for (cell, name) in row.cells.iter().zip(&matrix.columns) { (matrix_cell(cell.as_ref(), name)) }
            td.blame { (row_blame(row, matrix)) (row_artifacts(row, matrix)) }
        }
    }
}

/// Whose fault the failures of a commit are: each answer once, with the jobs that it is about.
fn row_blame(row: &MatrixRow, matrix: &JobMatrix) -> Markup {
    let mut found: Vec<(&CellBlame, Vec<&str>)> = vec![];
    for (cell, name) in row.cells.iter().zip(&matrix.columns) {
        let Some(blame) = cell.as_ref().and_then(|cell| cell.blame.as_ref()) else { continue };
        match found.iter_mut().find(|(other, _)| other.summary == blame.summary) {
            Some((_, jobs)) => jobs.push(name),
            None => found.push((blame, vec![name])),
        }
    }
    html! { @for (blame, jobs) in found {
        div { span.tag { (blame.category.as_str()) } " " span.detail title=(jobs.join(", ")) { bdi { (blame.summary) } } }
    } }
}

/// Where the jobs of a commit ran, their artifacts, and what is wrong with their reports.
fn row_artifacts(row: &MatrixRow, matrix: &JobMatrix) -> Markup {
    let told: Vec<_> = (row.cells.iter().zip(&matrix.columns))
        .filter_map(|(cell, name)| Some((cell.as_ref()?, name)))
        .filter(|(cell, _)| {
            cell.environment.is_some()
                || cell.artifact_url.is_some()
                || cell.missing_proof.is_some()
                || !cell.warnings.is_empty()
        })
        .collect();
    html! { @if !told.is_empty() { details {
        summary.detail { "Details of the jobs" }
        ul.tests { @for (cell, name) in told { li.detail {
            bdi { (name) }
            @if let Some(environment) = &cell.environment { " · on " bdi { (environment) } }
            @if let Some(url) = &cell.artifact_url { " · " (external_link(url, "artifact")) }
            @if let Some(missing) = cell.missing_proof { " · reported without proof: " (missing) }
            @for warning in &cell.warnings { " · in its report, " bdi { (warning) } }
        } } }
    } } }
}

fn matrix_cell(cell: Option<&MatrixCell>, name: &str) -> Markup {
    let Some(cell) = cell else {
        return html! { td { span.outcome.muted title=(format!("{name}: did not run")) { span aria-hidden="true" { "·" } span.hidden { "did not run" } } } };
    };
    let (glyph, class, word) = outcome_parts(cell.outcome);
    let attempts =
        if cell.attempts > 1 { format!(", {} attempts", cell.attempts) } else { String::new() };
    let label = format!("{name}: {word}{attempts}");
    let link =
        cell.url.as_deref().filter(|url| url.starts_with("https://") || url.starts_with("http://"));
    let shown = html! { span.glyph aria-hidden="true" { (glyph) } " " span.word { (word) } };
    html! {
        td.(class) { @match link {
            Some(url) => a.outcome.(class) href=(url) rel="noreferrer nofollow" title=(label) aria-label=(label) { (shown) },
            None => span.outcome.(class) title=(label) { (shown) },
        } }
    }
}

#[cfg(test)]
mod tests {
    use super::common_prefix;

    #[test]
    fn common_prefix_ends_at_a_word_and_leaves_something_of_each_name() {
        for (names, shared) in [
            (
                &["ci / test (default, 1, 3)", "ci / test (default, 12, 3)"][..],
                "ci / test (default, ",
            ),
            (&["ci / build", "ci / built"], "ci / "),
            (&["ci / ", "ci / x"], "ci /"),
            (&["é/ä", "é/ö"], "é/"),
            (&["a", "b"], ""),
            (&["same"], ""),
            (&[], ""),
        ] {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            assert_eq!(common_prefix(&names), shared);
        }
    }
}
