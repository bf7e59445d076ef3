//! `/crcr/{owner}/{repo}`: one backend.

mod matrix;

use std::collections::{BTreeMap, BTreeSet};

use crcr_domain::probes::Culprit;
use crcr_domain::results::facts::{CallbackFact, CallbackOutcome};
use crcr_domain::results::review::ReviewQuestion;
use crcr_domain::results::{BlamedJobs, CriterionVerdict, JobOfRecord, JobOutcome, jobs_of_days};
use crcr_domain::{Level, RepoName};
use crcr_results::retention::{day_of, midnight};
use crcr_results::review::ReviewInputs;
use crcr_results::{Window, review};
use jiff::Timestamp;
use maud::{Markup, html};
use serde::Serialize;

use self::matrix::{CellBlame, JobMatrix, MatrixCell, MatrixRow};
use super::level::{
    LevelReview, amount, evidence_path, measured, reports_between, verdict as verdict_parts,
};
use super::relay::reports_of_backend;
use super::reported::{self, ReportedKind};
use super::{controls, fault_text, freshness};
use crate::address::{SortOrder, Sorted, address, order_header};
use crate::chart::{durations, shares};
use crate::context::repo_name;
use crate::context::{Hud, PageError};
use crate::layout::{
    ago, commit_of, count_link, counted, culprit_list, distribution, outcome_parts, rate, time,
    zone,
};
use crate::model::days::SharedFacts;
use crate::model::{RateSummary, RateView, TrendDay, days, hourly_trend, total, trend};
use crate::query::{ShownEvents, SpanQuery, TimeSpan};
use crate::view::View;

/// How many days are shown of a backend that left the allowlist, and how far back they may be.
const DAYS_OF_THE_PAST: i64 = 7;
const MAX_DAYS_BACK: i64 = 400;

const MAX_REFUSED: usize = 20;
const MAX_FAILING_TESTS: usize = 20;
const TEST_SORTS: [&str; 3] = ["failures", "name", "last"];

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct BackendModel {
    pub(crate) repo: String,
    /// Its level on the allowlist; `None` if it isn't listed.
    pub(crate) level: Option<Level>,
    pub(crate) oncalls: Vec<String>,
    pub(crate) span: TimeSpan,
    pub(crate) permalink: String,
    pub(crate) upstream: String,
    pub(crate) newest: Option<Timestamp>,
    #[serde(flatten)]
    pub(crate) worth: RateSummary,
    /// How many jobs failed because of upstream, and the rates without these.
    pub(crate) upstream_failures: u64,
    pub(crate) job_pass_without_upstream: RateView,
    pub(crate) test_pass_without_upstream: RateView,
    pub(crate) trend: Vec<TrendDay>,
    /// The criteria for its level or the next one; `None` if it isn't listed.
    pub(crate) review: Option<LevelReview>,
    pub(crate) matrix: JobMatrix,
    pub(crate) failing_tests: Vec<FailingTest>,
    /// How many others failed, which are left out.
    pub(crate) more_failing_tests: usize,
    pub(crate) test_sort: SortOrder,
    /// Whether results of tests are stored, so that a search may find one.
    #[serde(skip)]
    has_test_results: bool,
    pub(crate) refused: Vec<RefusedReport>,
    /// How many older reports were refused or unproven.
    pub(crate) more_refused: usize,
    /// Why the newest version of its own file isn't in force.
    pub(crate) file_problem: Option<String>,
    /// Which commits broke its jobs, the newest answer first.
    pub(crate) culprits: Vec<Culprit>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct FailingTest {
    pub(crate) name: String,
    pub(crate) file: Option<String>,
    /// In how many jobs.
    pub(crate) count: u64,
    pub(crate) last: Timestamp,
    pub(crate) message: Option<String>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct RefusedReport {
    pub(crate) at: Timestamp,
    pub(crate) outcome: CallbackOutcome,
    pub(crate) answer: u16,
    pub(crate) detail: Option<String>,
}

impl From<CallbackFact> for RefusedReport {
    fn from(callback: CallbackFact) -> Self {
        let CallbackFact { at, outcome, answer, detail, .. } = callback;
        Self { at, outcome, answer, detail }
    }
}

pub(crate) async fn build(
    hud: &Hud,
    (owner, repo): (String, String),
    query: SpanQuery,
) -> Result<BackendModel, PageError> {
    let repo = &repo_name(&owner, &repo)?;
    let mut span = span_with_results(hud, repo, &query).await?;
    // Other links leave the order of the tests out: it would double their addresses.
    let test_sort = SortOrder::new(span.sort.take().as_deref(), TEST_SORTS[0], &TEST_SORTS)
        .map_err(PageError::Query)?;
    let span = &span;
    let entry = hud.entry_of(repo);
    let level = entry.as_ref().map(|entry| entry.level);
    let named = entry.as_ref().map_or(repo, |entry| &entry.repo);
    let window = Window::all(span.from, span.to).of_repos(vec![repo.as_str().to_owned()]);
    let reviewed = review::window(named, level, (None, span.to), &hud.criteria);
    // The page usually covers the review's window already, so both are read together.
    let both_windows = Window { from: window.from.min(reviewed.from), ..window.clone() };
    let refused = async { Ok(hud.results.refused_callbacks(&window, MAX_REFUSED).await?) };
    let (days, beside, refused, shown) = tokio::try_join!(
        days::day_tallies(hud, span, Some(repo.as_str())),
        ReviewInputs::read(
            &*hud.results,
            (named, level),
            &reviewed,
            &hud.criteria,
            days::callback_outcomes(hud, &reviewed)
        ),
        refused,
        // Computed while the other reads wait for the store.
        ShownJobs::read(hud, (&window, &both_windows), span, &test_sort),
    )?;
    let more_refused = more_refused(hud, &window, refused.len()).await?;
    let ShownJobs { facts, blamed, newest, mut matrix, failing_tests, upstream_failures } = shown;
    let (failing_tests, more_failing_tests) = failing_tests;
    matrix.add_titles(hud).await?;
    if entry.is_none() && days.is_empty() {
        let text = format!("{repo} is not on the allowlist and has no results in this span");
        return Err(PageError::NotFound(text));
    }
    let review = entry.is_some().then(|| {
        let facts = (facts.attempts(&reviewed).collect(), facts.dispatches(&reviewed).collect());
        LevelReview::from(beside.review(named, level, &reviewed, facts, blamed, &hud.criteria))
    });
    let total = total(&days);
    let sums = &total.sums;
    let probes = (hud.probes)().await;
    let culprits =
        probes.culprits.into_iter().filter(|one| one.repo.eq_ignore_ascii_case(repo.as_str()));
    Ok(BackendModel {
        file_problem: probes.file_problems.get(&repo.key()).cloned(),
        culprits: culprits.collect(),
        repo: named.as_str().to_owned(),
        level,
        oncalls: entry
            .iter()
            .flat_map(|entry| &entry.oncalls)
            .map(|name| name.as_str().to_owned())
            .collect(),
        span: span.clone(),
        permalink: span.permalink(),
        upstream: hud.upstream.as_str().to_owned(),
        newest,
        job_pass_without_upstream: sums.job_pass().without_failures(upstream_failures).into(),
        test_pass_without_upstream: sums.test_pass().without_failures(upstream_failures).into(),
        upstream_failures,
        worth: RateSummary::new(&total),
        trend: match span.window {
            Some("24h") => hourly_trend(span, &facts),
            _ => trend(span, &days),
        },
        review,
        matrix,
        failing_tests,
        more_failing_tests,
        test_sort,
        has_test_results: !hud.results.tested_repositories().await?.is_empty(),
        refused: refused.into_iter().map(RefusedReport::from).collect(),
        more_refused,
    })
}

/// How many refused and unproven reports there are beside the newest ones, which were read.
async fn more_refused(hud: &Hud, window: &Window, read: usize) -> Result<usize, PageError> {
    if read < MAX_REFUSED {
        return Ok(0);
    }
    let all = days::callback_outcomes(hud, window).await?;
    Ok(all.iter().filter(|outcome| !outcome.is_valid()).count().saturating_sub(read))
}

/// What the page shows of the backend's jobs, and the facts from which the review is made, too.
struct ShownJobs {
    facts: SharedFacts,
    blamed: BlamedJobs,
    newest: Option<Timestamp>,
    matrix: JobMatrix,
    /// With the number of those that are left out.
    failing_tests: (Vec<FailingTest>, usize),
    upstream_failures: u64,
}

impl ShownJobs {
    /// `both_windows` covers the page's window and the review's.
    async fn read(
        hud: &Hud,
        (window, both_windows): (&Window, &Window),
        span: &TimeSpan,
        test_sort: &SortOrder,
    ) -> Result<Self, PageError> {
        let facts = days::facts(hud, both_windows).await?;
        let newest = facts.attempts(window).map(|row| row.received_at).max();
        let blamed = days::blame(hud, &facts).await?;
        // Ordered by day, so that the matrix shows the last result of a job.
        let jobs = jobs_of_days(
            facts.attempts(window).filter(|row| span.events.includes(&row.event)),
            facts.dispatches(window).filter(|sent| span.events.includes(&sent.event)),
        );
        let upstream_failures = blamed.upstream_failures(&jobs);
        let matrix = JobMatrix::new(&jobs, span, &blamed);
        let failing_tests = failing_tests(&jobs, test_sort);
        Ok(Self { facts, blamed, newest, matrix, failing_tests, upstream_failures })
    }
}

/// A backend that only has nightly runs begins with those, unless the query names the events. One that left the allowlist
/// is still linked from what was dispatched to it: without a span in the query, it is shown as it was last.
async fn span_with_results(
    hud: &Hud,
    repo: &RepoName,
    query: &SpanQuery,
) -> Result<TimeSpan, PageError> {
    let mut span = hud.span(query)?;
    let is_listed = hud.entry_of(repo).is_some();
    if !is_listed
        && !query.has_span()
        && let Some(last) = last_day(hud, repo, &span).await?
    {
        let (from, to) = (midnight(last - DAYS_OF_THE_PAST + 1), midnight(last + 1));
        span = TimeSpan { from, to, until_now: false, window: None, ..span };
    }
    let nightly = TimeSpan { events: ShownEvents::Nightly, ..span.clone() };
    if span.events_named {
        return Ok(span);
    }
    if hud.entry_of(repo).is_some_and(|entry| entry.is_nightly_only()) {
        return Ok(nightly);
    }
    let is_empty = days::day_tallies(hud, &span, Some(repo.as_str())).await?.is_empty()
        && !days::day_tallies(hud, &nightly, Some(repo.as_str())).await?.is_empty();
    Ok(if is_empty { nightly } else { span })
}

/// The last day with something of a repository, if that is before the span.
async fn last_day(hud: &Hud, repo: &RepoName, span: &TimeSpan) -> Result<Option<i64>, PageError> {
    let year = Window::all(midnight(day_of(span.to) - MAX_DAYS_BACK), span.to)
        .of_repos(vec![repo.as_str().to_owned()]);
    let days = hud.results.day_revisions(&year).await?;
    let last = days.iter().filter(|known| !known.repo.is_empty()).map(|known| known.day).max();
    Ok(last.filter(|last| midnight(last + 1) <= span.from))
}

/// The first ones in this order, and how many others there are.
fn failing_tests(jobs: &[JobOfRecord<'_>], order: &SortOrder) -> (Vec<FailingTest>, usize) {
    let mut tests: BTreeMap<(&str, Option<&str>), FailingTest> = BTreeMap::new();
    for job in jobs {
        // Two cases of a name are one row of the jobs that the count leads to.
        let mut named = BTreeSet::new();
        let failed = job.record.details.failed_tests.iter();
        for test in failed.filter(|test| named.insert((&test.name, &test.file))) {
            let seen = tests.entry((&test.name, test.file.as_deref())).or_insert(FailingTest {
                name: test.name.clone(),
                file: test.file.clone(),
                count: 0,
                last: job.record.received_at,
                message: test.message.clone(),
            });
            seen.count += 1;
            if job.record.received_at > seen.last {
                seen.last = job.record.received_at;
                seen.message.clone_from(&test.message);
            }
        }
    }
    let mut tests: Vec<_> = tests.into_values().collect();
    tests.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.name.cmp(&b.name)));
    tests.sort_by(|a, b| {
        order.apply(match order.column {
            "name" => a.name.cmp(&b.name),
            "last" => b.last.cmp(&a.last),
            _ => b.count.cmp(&a.count),
        })
    });
    let more = tests.len().saturating_sub(MAX_FAILING_TESTS);
    tests.truncate(MAX_FAILING_TESTS);
    (tests, more)
}

pub(crate) fn page(model: &BackendModel, view: &View<'_>) -> Markup {
    let path = format!("/crcr/{}", model.repo);
    view.shell(
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
            @if let (Some(review), Some(failing)) = (&model.review, failing_level(model)) {
                p { span.outcome.bad { span.glyph aria-hidden="true" { "✗" } } " It " a href=(evidence_path(&review.review, &model.span)) { (failing) } "." }
            }
            // A page in another order has no permalink of its own: each minute there would be one more.
            @let permalink = if model.test_sort.parameter(TEST_SORTS[0]).is_some() { "" } else { &*model.permalink };
            (controls(&path, &model.span, permalink))
            (freshness(model.newest, &model.span))
            @if let Some(problem) = &model.file_problem {
                p role="status" { "The newest " code { ".github/crcr.yml" } " isn't in force: " bdi { (problem) } ". The last good version holds; if there is none, everything is dispatched." }
            }
            (culprit_list(&model.culprits))
            @if model.level.is_some_and(|level| !level.shows_results()) {
                p.note { "At " (Level::L1) " a backend receives events; its results aren't shown." }
            } @else { (cards(model)) }
            @if let Some(review) = &model.review { (criteria_summary(review, &model.span)) }
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
                        @match model.span.events { ShownEvents::Pr => "Pull requests by job", ShownEvents::Nightly => "Nightly commits by job" }
                    }
                    (filters(&path, &model.span, model.matrix.older_heads))
                }
                (matrix_table(model))
            }
            section aria-labelledby="tests" {
                div.title {
                    h2 #tests { "Failing tests" }
                    (some_of(model.failing_tests.len(), model.more_failing_tests))
                }
                (failing_tests_table(model, &path))
            }
            section aria-labelledby="refused" {
                div.title {
                    h2 #refused { "Refused and unproven reports" }
                    (some_of(model.refused.len(), model.more_refused))
                    @if !model.refused.is_empty() { a rel="nofollow" href=(refused_address(model)) { "All" } }
                }
                (refused_table(&model.refused))
            }
        },
    )
}

fn cards(model: &BackendModel) -> Markup {
    let listed = |kind: ReportedKind| reported::link(kind, Some(&model.repo), &model.span);
    html! {
        dl.cards {
            div { dt { "CI job pass" } dd { (rate(&model.worth.job_pass)) } }
            div { dt { "Test pass" } dd { (rate(&model.worth.test_pass)) } }
            @if model.upstream_failures > 0 {
                div { dt { "CI job pass without upstream's failures (" (count_link(model.upstream_failures, listed(ReportedKind::Upstream).as_deref())) ")" } dd { (rate(&model.job_pass_without_upstream)) } }
                div { dt { "Test pass without upstream's failures" } dd { (rate(&model.test_pass_without_upstream)) } }
            }
            div { dt { "Availability" } dd { (rate(&model.worth.availability)) } }
            div { dt { "Queue P50" } dd { (distribution(model.worth.queue.as_ref())) } }
            div { dt { "Run time P50" } dd { (distribution(model.worth.execution.as_ref())) } }
            div { dt { "End to end P50" } dd { (distribution(model.worth.end_to_end.as_ref())) } }
            div { dt { "Running now" } dd { (count_link(model.worth.running, listed(ReportedKind::Running).filter(|_| model.worth.running > 0).as_deref())) } }
        }
    }
}

/// How many rows a table shows of how many, if it doesn't show all.
fn some_of(shown: usize, more: usize) -> Markup {
    html! { @if more > 0 { span.detail { (shown) " of " (shown + more) } } }
}

/// The list of all refused and unproven reports in the span.
fn refused_address(model: &BackendModel) -> String {
    let (kind, span) = ("refused", &model.span);
    match span.window {
        Some(window) => reports_of_backend(&model.repo, kind, window),
        None => reports_between(&model.repo, kind, (span.from, span.to)),
    }
}

fn failing_tests_table(model: &BackendModel, path: &str) -> Markup {
    let tests = &model.failing_tests;
    let sorted = |order: &SortOrder| {
        let sort = order.parameter(TEST_SORTS[0]);
        format!("{path}{}#tests", TimeSpan { sort, ..model.span.unfiltered() }.address())
    };
    let header = |column: &'static str, name: &str, first: Sorted| {
        order_header((column, name), &model.test_sort, first, sorted)
    };
    html! {
        @if tests.is_empty() { p.muted { "None reported in this span." } }
        @else {
            div.scroll tabindex="0" role="region" aria-label="Table of failing tests" { table {
                thead { tr {
                    (header("name", "Test", Sorted::Ascending)) (header("failures", "Failures", Sorted::Descending))
                    (header("last", "Last", Sorted::Descending)) th scope="col" { "Last message" }
                } }
                tbody { @for test in tests { tr {
                    th scope="row" {
                        @if model.has_test_results { a rel="nofollow" href=(address("/search", [("q", Some(&*test.name))])) { bdi { (test.name) } } }
                        @else { bdi { (test.name) } }
                        @if let Some(file) = &test.file { div.detail { bdi { (file) } } }
                    }
                    td { (count_link(test.count, reported::link_of_test(&model.repo, (&test.name, test.file.as_deref()), &model.span).as_deref())) }
                    td { (ago(test.last)) }
                    td.message { bdi { (test.message.as_deref().unwrap_or("–")) } }
                } } }
            } }
        }
    }
}

fn refused_table(reports: &[RefusedReport]) -> Markup {
    html! {
        @if reports.is_empty() { p.muted { "None in this span." } }
        @else {
            div.scroll tabindex="0" role="region" aria-label="Table of refused and unproven reports" { table {
                thead { tr { th scope="col" { "When" } th scope="col" { "Answer" } th scope="col" { "Why" } } }
                tbody { @for refused in reports { tr {
                    td { (ago(refused.at)) }
                    td { (refused.answer) " " (refused.outcome.as_str().replace('_', " ")) }
                    td.message { bdi { (refused.detail.as_deref().unwrap_or("–")) } }
                } } }
            } }
        }
    }
}

/// Which criteria of its level a backend fails.
fn failing_level(model: &BackendModel) -> Option<String> {
    let standing = model.review.as_ref()?.review.standing();
    (standing.verdict == Some(CriterionVerdict::NotMet)).then(|| standing.sentence())
}

/// The criteria, with those that aren't met first.
fn criteria_summary(model: &LevelReview, span: &TimeSpan) -> Markup {
    let review = &model.review;
    let what = match review.question {
        ReviewQuestion::Signal => return html! {},
        ReviewQuestion::Promotion => "Distance to L3",
        ReviewQuestion::Stay => "Criteria of its level",
    };
    let mut evidence: Vec<_> = review.evidence.iter().collect();
    let count = |verdict| review.evidence.iter().filter(|e| e.verdict == verdict).count();
    let (met, unknown) = (count(CriterionVerdict::Met), count(CriterionVerdict::Unknown));
    evidence.sort_by_key(|e| match e.verdict {
        CriterionVerdict::NotMet => 0,
        CriterionVerdict::Unknown => 1,
        CriterionVerdict::Met => 2,
    });
    html! {
        section aria-labelledby="distance" {
            div.title {
                h2 #distance { (what) }
                span.muted { (met) " of " (evidence.len()) " criteria met" @if unknown > 0 { ", " (unknown) " with too few results" } }
                // The cards above are of the page's span.
                span.detail {
                    (time(review.from)) " to " (time(review.to)) " " (zone())
                    @if span.events == ShownEvents::Nightly { " of pull requests and pushes" }
                }
                a href=(evidence_path(review, span)) { "Evidence" }
            }
            ul.chips { @for evidence in evidence {
                @let (glyph, class, word) = verdict_parts(evidence.verdict);
                li.(class) {
                    span.outcome.(class) { span.glyph aria-hidden="true" { (glyph) } span.hidden { (word) ":" } }
                    " " (evidence.criterion.title()) " "
                    @match measured(evidence) { Some(value) => strong { (value) }, None => span.muted { "no data" } }
                    " " span.detail { (evidence.bound.sign()) " " (amount(evidence.criterion, evidence.target)) }
                }
            } }
        }
    }
}

/// Links that choose the rows of the matrix.
fn filters(path: &str, span: &TimeSpan, older_heads: usize) -> Markup {
    let link = |all_heads: bool, only_failing: bool| {
        let span = TimeSpan { all_heads, only_failing, page: 1, ..span.clone() };
        format!("{path}{}#matrix", span.address())
    };
    let whole = TimeSpan { q: None, page: 1, ..span.clone() }.address();
    html! {
        span.group { @for (only_failing, name) in [(false, "All"), (true, "Failing")] {
            a aria-current=[(span.only_failing == only_failing).then_some("true")] href=(link(span.all_heads, only_failing)) { (name) }
        } }
        @if span.events == ShownEvents::Pr {
            span.group { @for (all_heads, name) in [(false, "Current heads"), (true, "All heads")] {
                a aria-current=[(span.all_heads == all_heads).then_some("true")] href=(link(all_heads, span.only_failing)) { (name) }
            } }
            @if !span.all_heads && older_heads > 0 { span.detail { (counted(older_heads, "older head", "older heads")) " folded" } }
        }
        form.span method="get" action=(format!("{path}#matrix")) role="search" aria-label="Jobs" {
            @for (name, value) in url::form_urlencoded::parse(&whole.as_bytes()[1..]) { input type="hidden" name=(name) value=(value); }
            label { "Jobs with" input type="search" name="q" value=(span.q.as_deref().unwrap_or_default()) maxlength="200"; }
            button { "Show" }
        }
    }
}

/// With more columns, cells show only the symbol; screen readers still get the word.
const MAX_COLUMNS_WITH_WORDS: usize = 8;

fn matrix_table(page: &BackendModel) -> Markup {
    let matrix = &page.matrix;
    if matrix.rows.is_empty() {
        let is_filtered = page.span.q.is_some() || page.span.only_failing;
        let text = if is_filtered {
            "No such job in this time span."
        } else {
            "No jobs in this time span."
        };
        return html! { p.muted { (text) } (pager(page)) };
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
        @if matrix.more_columns > 0 {
            p.detail {
                (counted(matrix.more_columns, "job is", "jobs are")) " left out"
                @match matrix.more_failed_columns { 0 => ", none of which failed", failed => { ", of which " (failed) " failed" } }
                "; a search above shows them."
            }
        }
        (pager(page))
        @if dense { p.detail {
            @for outcome in [None].into_iter().chain(JobOutcome::ALL.map(Some)) {
                @let (glyph, _, word) = outcome_parts(outcome);
                span.legend { (glyph) " " (word) }
            }
        } }
    }
}

/// Newer and older commits.
fn pager(page: &BackendModel) -> Markup {
    let link = |number: usize| {
        let span = TimeSpan { page: number, ..page.span.clone() };
        format!("/crcr/{}{}#matrix", page.repo, span.address())
    };
    let (number, more) = (page.span.page, page.matrix.more_rows);
    html! { @if number > 1 || more > 0 { p.pager {
        @if number > 1 { a rel="nofollow" href=(link(number - 1)) { "Newer commits" } }
        @if more > 0 { a rel="nofollow" href=(link(number + 1)) { (counted(more, "older commit", "older commits")) } }
    } } }
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
                    None => strong.muted { @match page.span.events { ShownEvents::Pr => "push", ShownEvents::Nightly => "nightly" } },
                }
                @if row.head_sha.is_empty() { " run " bdi { (row.run_id) } " " } @else { " " (commit_of(&row.upstream, &page.upstream, &row.head_sha)) " " }
                span.detail { (ago(row.at)) @if row.older { " · older head" } }
                @if let Some(title) = &row.title { div.detail.subject title=(title) { bdi { (title) } } }
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
        div { span.tag { (fault_text(blame.category, blame.was_broken_before)) } " " span.detail title=(jobs.join(", ")) { bdi { (blame.summary) } } }
    } }
}

/// Where the jobs of a commit ran, their artifacts, and what is wrong with their reports.
fn row_artifacts(row: &MatrixRow, matrix: &JobMatrix) -> Markup {
    let told: Vec<_> = (row.cells.iter().zip(&matrix.columns))
        .filter_map(|(cell, name)| Some((cell.as_ref()?, name)))
        .filter(|(cell, _)| {
            cell.details.is_shown()
                || cell.missing_proof.is_some()
                || !cell.details.warnings.is_empty()
        })
        .collect();
    html! { @if !told.is_empty() { details {
        summary.detail { "Details of the jobs" }
        ul.tests { @for (cell, name) in told { li.detail {
            bdi { (name) }
            (cell.details.markup())
            @if let Some(missing) = cell.missing_proof { " · reported without proof: " (missing) }
            @for warning in &cell.details.warnings { " · in its report, " bdi { (warning) } }
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
    let link = cell
        .details
        .url
        .as_deref()
        .filter(|url| url.starts_with("https://") || url.starts_with("http://"));
    let shown = html! { span.glyph aria-hidden="true" { (glyph) } " " span.word { (word) } };
    // The address is the reporter's choice.
    let host = link.and_then(|url| Some(url::Url::parse(url).ok()?.host_str()?.to_owned()));
    let title = host.map_or_else(|| label.clone(), |host| format!("{label} ({host})"));
    html! {
        td.(class) { @match link {
            Some(url) => a.outcome.(class) href=(url) rel="noreferrer nofollow" title=(title) aria-label=(label) { (shown) },
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
