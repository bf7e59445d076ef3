//! `/crcr/tests`: flaky, slow, failing and new tests.

use crcr_results::test_runs::{TestStats, date};
use maud::{Markup, html};

use crate::layout::{duration, percent, shell};
use crate::model::tests::{ShownTests, TestsModel};

pub(crate) fn page(model: &TestsModel) -> Markup {
    shell(
        &format!("Tests of {}", model.repository),
        false,
        &html! {
            div.title { h1 { "Tests of " bdi { (model.repository) } } }
            @if model.repositories.is_empty() {
                p.note { "No results of tests are stored. " code { "crcr stats collect" } " loads them." }
            } @else {
                div.controls {
                    nav.group aria-label="Kind of tests" {
                        @for show in ShownTests::ALL {
                            a href=(model.url(show)) aria-current=[(show == model.show).then_some("page")] { (title(show)) }
                        }
                    }
                    (filters(model))
                }
                (table(model))
            }
        },
    )
}

fn title(show: ShownTests) -> &'static str {
    match show {
        ShownTests::Flaky => "Flaky",
        ShownTests::Slow => "Slow",
        ShownTests::Failing => "Failing",
        ShownTests::New => "New",
    }
}

fn filters(model: &TestsModel) -> Markup {
    html! {
        form.span method="get" action="/crcr/tests" {
            input type="hidden" name="show" value=(model.show.as_str());
            label { "Repository " select name="repo" {
                @for name in &model.repositories {
                    option selected[name.eq_ignore_ascii_case(&model.repository)] { (name) }
                }
            } }
            " " label { "Days " input type="number" name="days" min="1" max="366" value=(model.days); }
            " " label { "Job " select name="job" {
                option value="" { "all" }
                @for job in &model.jobs {
                    option selected[model.job.as_deref() == Some(job)] { (job) }
                }
            } }
            " " label { "Branches " select name="branches" {
                option value="" { "default branch" }
                option value="all" selected[model.all_branches] { "all, and pull requests" }
            } }
            " " label { "Name " input type="search" name="q" maxlength="200" value=(model.q.as_deref().unwrap_or_default()); }
            " " button { "Show" }
        }
    }
}

fn table(model: &TestsModel) -> Markup {
    html! {
        p.detail { "Since " (model.since) ". A test is flaky when it passed and failed on one commit, in the same job." }
        @if model.tests.is_empty() {
            p.note { "No such test in these days." }
        } @else {
            div.scroll tabindex="0" role="region" aria-label="Tests" { table.stack {
                thead { tr {
                    th scope="col" { "Test" } th scope="col" { "Flaky" } th scope="col" { "Failed" }
                    th scope="col" { "Mean time" } th scope="col" { "Runs" } th scope="col" { "First seen" }
                } }
                tbody { @for test in &model.tests { tr {
                    th scope="row" {
                        bdi { (test.classname) @if !test.classname.is_empty() && !test.name.is_empty() { "." } (test.name) }
                        @if let Some(variant) = &test.variant { " " span.detail { (variant) } }
                        @if let Some(file) = &test.file { " " span.detail { (file) } }
                    }
                    td data-label="Flaky" { (share(test.flaky, test)) }
                    td data-label="Failed" { (share(test.failures, test)) }
                    td data-label="Mean time" { @match test.mean_time { Some(time) => (duration(time)), None => span.muted { "no data" } } }
                    td data-label="Runs" { (test.runs) }
                    td data-label="First seen" { (date(test.first_day)) }
                } } }
            } }
        }
    }
}

fn share(count: u64, test: &TestStats) -> Markup {
    html! {
        @if count == 0 { span.muted { "0" } } @else {
            (percent(test.share(count))) " " span.detail { (count) " of " (test.runs_not_skipped()) }
        }
    }
}
