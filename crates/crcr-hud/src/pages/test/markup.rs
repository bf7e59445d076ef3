//! How the page of a test looks.

use crcr_domain::ci_data::test_run::full_name;
use crcr_results::test_history::{MAX_JOBS, MAX_RESULTS_OF_JOB, TestResultRow};
use crcr_results::test_runs::{date, hex_id};
use maud::{Markup, html};

use super::history::cell_state;
use super::{CellState, MAX_FAILURES, MESSAGE_SORTS, OneTest, RunFilter, TestModel, TestState};
use crate::address::{self, SortOrder, Sorted, address, order_header};
use crate::layout::{ago, count_link, counted, culprit_list, duration, rate, short_sha};
use crate::view::View;

pub(crate) fn page(model: &TestModel, view: &View<'_>) -> Markup {
    let title = if model.name.is_empty() { "Test" } else { &model.name };
    view.shell(
        title,
        false,
        &html! {
            div.title { h1 { bdi { (title) } } }
            p.detail {
                a href=(address("/tests", [("repo", Some(&*model.repository))])) { "Tests" } " of " bdi { (model.repository) }
                @if let Some(test) = &model.test {
                    @if let Some(file) = &test.identity.file { " · " bdi { (file) } }
                    @if let Some(variant) = &test.identity.variant { " · " bdi { (variant) } }
                    " · first seen " (date(test.identity.first_day)) " (UTC)"
                    " · " a href=(feed_address(&model.repository, test)) { "Feed" }
                }
            }
            @match &model.test {
                None => (choices(model)),
                Some(test) => (one(test, model, view)),
            }
        },
    )
}

pub(crate) fn feed_address(repository: &str, test: &OneTest) -> String {
    format!("/test/{repository}/feed.atom?id={}", hex_id(test.identity.test_id))
}

fn choices(model: &TestModel) -> Markup {
    html! {
        p { "Several tests go by this name:" }
        ul.plain { @for test in &model.choices { li {
            a href=(address::test(&model.repository, test.test_id)) { bdi { (full_name(&test.suite, &test.classname, &test.name)) } }
            " " span.detail {
                @if let Some(variant) = &test.variant { bdi { (variant) } " " }
                @if let Some(file) = &test.file { bdi { (file) } } @else { bdi { (test.suite) } }
            }
        } } }
    }
}

fn one(test: &OneTest, model: &TestModel, view: &View<'_>) -> Markup {
    html! {
        (verdict(test, model))
        (culprit_list(&test.culprits))
        (cards(test, model))
        (days_links(test, model))
        (strip_table(test, model, view))
        @if !test.messages.is_empty() { (message_list(test, model, view)) }
        h2 { "Over time" }
        div.charts { @for chart in &test.charts { (chart.markup()) } }
        (runs_table(test, model, view))
    }
}

fn commit_link(model: &TestModel, sha: &str) -> Markup {
    html! { a href=(address::commit(&model.repository, sha)) { code { (short_sha(sha)) } } }
}

fn verdict(test: &OneTest, model: &TestModel) -> Markup {
    // A pass of last week, or of a pull request, isn't one of now and of the branch.
    let stale = test.newest_at.filter(|_| test.is_stale);
    let is_good = stale.is_none() && test.is_on_default_branch;
    let since =
        html! { @if let Some(newest) = stale { " It hasn't run since: " (ago(newest)) "." } };
    html! {
        @match &test.state {
            TestState::NoResults => p.note role="status" { "No result of this test in these days." },
            TestState::Passing => p.note.good[is_good] {
                @if stale.is_some() { "Passed on the newest commits that it ran on." } @else { "Passes on the newest commits." } (since)
            },
            TestState::Recovered { last_failing } => p.note.good[is_good] {
                @if stale.is_some() { "Passed when it ran last" } @else { "Passes now" } "; it failed last on " (commit_link(model, last_failing)) "." (since)
            },
            TestState::Failing { first_failing, since, last_good, commits } => p.note.bad {
                strong { "Fails since " (commit_link(model, first_failing)) } " (" (ago(*since)) "), on "
                (counted(*commits, "commit", "commits"))
                @match last_good {
                    Some(good) => { "; it passed last on " (commit_link(model, good)) "." },
                    None => "; no commit is known on which it passed.",
                }
            },
        }
        @if !test.is_on_default_branch && test.state != TestState::NoResults {
            p.note role="status" { "It didn't run on the default branch in these days: this is of other branches and of pull requests." }
        }
        @if let Some(entry) = &test.quarantine {
            p.note.running {
                "Quarantined by " bdi { (entry.owner) } ": " bdi { (entry.reason) } ". It " (entry.end()) ". "
                a href=(address("/quarantine", [("repo", Some(&*model.repository))])) { "The quarantine" }
            }
        }
    }
}

fn cards(test: &OneTest, model: &TestModel) -> Markup {
    // What is counted here.
    let all = RunFilter { only_default_branch: test.is_on_default_branch, ..RunFilter::default() };
    let only_failed = RunFilter { only_failed: true, ..all.clone() };
    let only_flaky = RunFilter { only_flaky: true, ..all };
    html! {
        dl.cards {
            div { dt { "Failed" } dd { (rate(&test.failed)) " " @if test.failed.rate.numerator > 0 { a rel="nofollow" href=(runs_address(test, model, &only_failed)) { "which" } } } }
            div { dt { "Flaky" } dd { (rate(&test.flaky)) " " @if test.flaky.rate.numerator > 0 { a rel="nofollow" href=(runs_address(test, model, &only_flaky)) { "which" } } } }
            div { dt { "Mean duration" } dd { @match test.mean_time { Some(time) => (duration(time)), None => span.muted { "no data" } } } }
            div { dt { "Owner" } dd {
                @if !test.owners.is_empty() { @for owner in &test.owners { bdi { (owner) } " " } }
                @else if test.owners_known { span.muted { "none in CODEOWNERS" } }
                @else { span.muted { "CODEOWNERS isn't known" } }
            } }
            // An entry is told above.
            @if test.quarantine.is_none() { div { dt { "Quarantine" } dd.muted {
                @if test.quarantine_known { "no entry" } @else { "no quarantine file is known" }
            } } }
        }
        p.detail { "A result is flaky when the test passed and failed on one commit, in the same job. The interval is the 95 % Wilson interval." }
    }
}

fn days_links(test: &OneTest, model: &TestModel) -> Markup {
    let listed = RunFilter { page: 1, ..test.listed.clone() };
    let link = |days| test_address(test, model, days, &listed);
    html! {
        nav.controls aria-label="Time span" { span.group { @for days in [7, 30, 90] {
            a aria-current=[(model.days == days).then_some("true")] href=(link(days)) { (days) " d" }
        } } }
    }
}

fn cell_parts(state: CellState) -> (&'static str, &'static str, &'static str) {
    match state {
        CellState::Failed => ("✗", "bad", "failed"),
        CellState::Unfinished => ("?", "infra", "has no end"),
        CellState::Flaky => ("↻", "infra", "flaky"),
        CellState::Passed => ("✓", "good", "passed"),
        CellState::Skipped => ("–", "muted", "skipped"),
    }
}

/// Where the job of a result is explained: here if it failed, else on GitHub.
fn job_link(
    model: &TestModel,
    view: &View<'_>,
    failed: bool,
    run_id: u64,
    job_id: Option<u64>,
) -> Option<String> {
    let job_id = job_id?;
    Some(if failed {
        address::failure(&model.repository, job_id)
    } else {
        view.job_url(&model.repository, run_id, job_id)
    })
}

fn strip_table(test: &OneTest, model: &TestModel, view: &View<'_>) -> Markup {
    if test.commits.is_empty() {
        return html! {};
    }
    html! {
        h2 { "By commit and job" }
        div.scroll tabindex="0" role="region" aria-label="Results by commit and job" { table.matrix.dense {
            thead { tr {
                th scope="col" { "Job" span.detail { " newest commit first" } }
                @for commit in &test.commits { th.job scope="col" title=(format!("{} {}", short_sha(&commit.sha), commit.at)) {
                    a href=(address::commit(&model.repository, &commit.sha)) { span { (commit.sha.chars().take(7).collect::<String>()) } }
                } }
            } }
            tbody { @for job in &test.jobs { tr {
                th scope="row" { bdi { (job.job) } }
                @for (cell, commit) in job.cells.iter().zip(&test.commits) { @match cell {
                    None => td { span.outcome.muted { span aria-hidden="true" { "·" } span.hidden { "did not run" } } },
                    Some(cell) => {
                        @let (glyph, class, word) = cell_parts(cell.state);
                        @let label = format!("{word} on {}", short_sha(&commit.sha));
                        td.(class) { @match job_link(model, view, cell.state <= CellState::Flaky, cell.run_id, cell.job_id) {
                            Some(link) => a.outcome.(class) href=(link) title=(label) aria-label=(label) { span.glyph aria-hidden="true" { (glyph) } },
                            None => span.outcome.(class) title=(label) { span.glyph aria-hidden="true" { (glyph) } span.hidden { (word) } },
                        } }
                    }
                } }
            } } }
        } }
        p.detail { @for state in [CellState::Passed, CellState::Failed, CellState::Flaky, CellState::Skipped, CellState::Unfinished] {
            @let (glyph, _, word) = cell_parts(state);
            span.legend { (glyph) " " (word) }
        } }
    }
}

fn message_list(test: &OneTest, model: &TestModel, view: &View<'_>) -> Markup {
    let sorted = |order: &SortOrder| {
        let (id, days) = (hex_id(test.identity.test_id), model.days.to_string());
        let order = order.parameter(MESSAGE_SORTS[0]);
        let asked = [("id", Some(&*id)), ("days", Some(&*days)), ("messages", order.as_deref())];
        format!("{}#messages", address(&format!("/test/{}", model.repository), asked))
    };
    let header = |column: &'static str, name: &str, first: Sorted| {
        order_header((column, name), &test.message_sort, first, sorted)
    };
    html! {
        h2 #messages { "What it says when it fails" }
        div.scroll tabindex="0" role="region" aria-label="Messages of its failures" { table.stack {
            thead { tr {
                th scope="col" { "Message" } (header("failures", "Failures", Sorted::Descending)) (header("jobs", "Jobs", Sorted::Descending))
                (header("newest", "Newest", Sorted::Descending)) (header("oldest", "Oldest", Sorted::Ascending))
            } }
            tbody { @for group in &test.messages { tr {
                th scope="row" { @if group.message.is_empty() { span.muted { "no message" } } @else { code { bdi { (group.message) } } } }
                @let same = RunFilter { only_failed: true, only_default_branch: test.is_on_default_branch, message_id: Some(group.id.clone()), ..RunFilter::default() };
                @let runs = runs_address(test, model, &same);
                td data-label="Failures" { (count_link(group.failures, Some(&runs))) }
                td data-label="Jobs" { (count_link(group.jobs, Some(&runs))) }
                td data-label="Newest" {
                    @match job_link(model, view, true, group.newest.run_id, group.newest.job_id) {
                        Some(link) => a href=(link) { (ago(group.newest.at)) },
                        None => (ago(group.newest.at)),
                    }
                }
                td data-label="Oldest" { (ago(group.oldest_at)) }
            } } }
        } }
        @if test.message_count > test.messages.len() { p.detail { (test.messages.len()) " of " (test.message_count) " messages" } }
    }
}

/// The address of the runs of a test.
fn runs_address(test: &OneTest, model: &TestModel, chosen: &RunFilter) -> String {
    format!("{}#runs", test_address(test, model, model.days, chosen))
}

/// The address of the page with these runs.
fn test_address(test: &OneTest, model: &TestModel, days: i64, chosen: &RunFilter) -> String {
    let (id, days, page) =
        (hex_id(test.identity.test_id), days.to_string(), chosen.page.to_string());
    let runs = chosen.only_failed.then_some("failed").or(chosen.only_flaky.then_some("flaky"));
    let asked = [
        ("id", Some(&*id)),
        ("days", Some(&*days)),
        ("runs", runs),
        ("branches", chosen.only_default_branch.then_some("default")),
        ("job", chosen.job.as_deref()),
        ("message", chosen.message_id.as_deref()),
        ("page", (chosen.page > 1).then_some(&*page)),
    ];
    address(&format!("/test/{}", model.repository), asked)
}

fn runs_table(test: &OneTest, model: &TestModel, view: &View<'_>) -> Markup {
    let listed = &test.listed;
    let RunFilter { only_failed, only_flaky, only_default_branch, job, message_id, page } = listed;
    let beside = |page: usize| runs_address(test, model, &RunFilter { page, ..listed.clone() });
    let is_all = !only_failed && !only_flaky && message_id.is_none();
    let (only_default_branch, job) = (*only_default_branch, job.clone());
    let all = RunFilter { only_default_branch, job, ..RunFilter::default() };
    let failed = RunFilter { only_failed: true, ..all.clone() };
    let flaky = RunFilter { only_flaky: true, ..all.clone() };
    html! {
        h2 #runs { "Every run" }
        nav.controls aria-label="Runs" { span.group {
            a rel="nofollow" aria-current=[is_all.then_some("true")] href=(runs_address(test, model, &all)) { "All" }
            a rel="nofollow" aria-current=[(*only_failed && message_id.is_none()).then_some("true")] href=(runs_address(test, model, &failed)) { "Failed" }
            a rel="nofollow" aria-current=[(*only_flaky && message_id.is_none()).then_some("true")] href=(runs_address(test, model, &flaky)) { "Flaky" }
            @if message_id.is_some() { a rel="nofollow" aria-current="true" href=(beside(1)) { "With this message" } }
        } }
        @if all != RunFilter::default() {
            p { "Only" @if only_default_branch { " on the default branch" } @if let Some(job) = &all.job { " in " bdi { (job) } } ". "
                a rel="nofollow" href=(runs_address(test, model, &RunFilter::default())) { "Every branch and job" } }
        }
        @if test.results.is_empty() { p.note { "No such run in these days." } } @else {
            div.scroll tabindex="0" role="region" aria-label="Runs" { table.stack {
                thead { tr { th scope="col" { "Run" } th scope="col" { "Result" } th scope="col" { "Commit" } th scope="col" { "Job" } th scope="col" { "Took" } th scope="col" { "Message" } } }
                tbody { @for row in &test.results { (run_row(row, model, view)) } }
            } }
        }
        p.detail { "The newest " (MAX_RESULTS_OF_JOB) " results of each of at most " (MAX_JOBS) " jobs, the newest " (MAX_FAILURES) " failures, and the newest results of the jobs that failed: on the default branch, and as many elsewhere." }
        p.pager {
            @if *page > 1 { a rel="nofollow" href=(beside(page - 1)) { "Newer" } " " }
            @if test.has_older { a rel="nofollow" href=(beside(page + 1)) { "Older" } }
        }
    }
}

fn run_row(row: &TestResultRow, model: &TestModel, view: &View<'_>) -> Markup {
    let (glyph, class, word) = cell_parts(cell_state(row));
    html! { tr {
        th scope="row" {
            @match job_link(model, view, row.result.is_failed(), row.run_id, row.job_id) {
                Some(link) => a href=(link) { (ago(row.at)) },
                None => (ago(row.at)),
            }
        }
        td data-label="Result" { span.outcome.(class) { span.glyph aria-hidden="true" { (glyph) } " " (word) } @if row.attempts > 1 { span.detail { (row.attempts) " attempts" } } }
        td data-label="Commit" {
            @if row.head_sha.is_empty() { span.muted { "not known" } } @else { (commit_link(model, &row.head_sha)) }
            " " span.detail { bdi { (row.head_branch) } }
        }
        td.message data-label="Job" { bdi { (row.job) } }
        td data-label="Took" { @match row.seconds { Some(seconds) => (duration(seconds)), None => span.muted { "no data" } } }
        td.message data-label="Message" { @if let Some(message) = &row.message { bdi { (message.lines().next().unwrap_or_default().chars().take(160).collect::<String>()) } } }
    } }
}
