//! `/crcr/tests`: flaky, slow, failing and new tests.

use crcr_results::retention::day_of;
use crcr_results::test_runs::{TestQuery, TestRanking, TestStats, date};
use maud::{Markup, html};
use serde::{Deserialize, Serialize};

use super::search::SearchHit;
use crate::context::{Hud, PageError};
use crate::layout::{duration, percent};
use crate::query::MAX_SEARCH_CHARS;
use crate::view::View;

/// Tests on a page.
const LIMIT: usize = 200;
/// As long as days are offered.
const MAX_DAYS: i64 = 366;
/// Repositories in which a test is looked for: anybody may search, and each costs a ranking of 30 days.
const MAX_REPOSITORIES: usize = 5;

/// `?repo=OWNER/REPO&show=flaky|slow|failing|new&days=N&job=NAME&branches=all&q=TEXT`.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct TestsQuery {
    repo: Option<String>,
    show: Option<String>,
    days: Option<String>,
    job: Option<String>,
    branches: Option<String>,
    q: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ShownTests {
    Flaky,
    Slow,
    Failing,
    New,
}

impl ShownTests {
    pub(crate) const ALL: [Self; 4] = [Self::Flaky, Self::Slow, Self::Failing, Self::New];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Flaky => "flaky",
            Self::Slow => "slow",
            Self::Failing => "failing",
            Self::New => "new",
        }
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct TestsModel {
    /// Empty if no repository has results of tests.
    pub(crate) repository: String,
    pub(crate) show: ShownTests,
    pub(crate) days: i64,
    /// The first day.
    pub(crate) since: String,
    pub(crate) job: Option<String>,
    pub(crate) all_branches: bool,
    pub(crate) q: Option<String>,
    pub(crate) tests: Vec<TestStats>,
    pub(crate) repositories: Vec<String>,
    /// With results in these days.
    pub(crate) jobs: Vec<String>,
}

impl TestsModel {
    /// The address of the page with these filters, of which `show` is replaced.
    pub(crate) fn url(&self, show: ShownTests) -> String {
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        query.append_pair("repo", &self.repository).append_pair("show", show.as_str());
        query.append_pair("days", &self.days.to_string());
        let optional = [
            ("job", self.job.as_deref()),
            ("branches", self.all_branches.then_some("all")),
            ("q", self.q.as_deref()),
        ];
        for (name, value) in optional {
            if let Some(value) = value {
                query.append_pair(name, value);
            }
        }
        format!("/crcr/tests?{}", query.finish())
    }
}

pub(crate) async fn build(hud: &Hud, (): (), query: TestsQuery) -> Result<TestsModel, PageError> {
    let given = |text: &Option<String>| text.clone().filter(|text| !text.trim().is_empty());
    let wrong = |text: &str| PageError::Query(text.to_owned());
    let show = given(&query.show).unwrap_or_else(|| "flaky".to_owned());
    let show = ShownTests::ALL.into_iter().find(|known| known.as_str() == show);
    let show = show.ok_or_else(|| wrong("`show` has to be `flaky`, `slow`, `failing` or `new`"))?;
    let days = given(&query.days).unwrap_or_else(|| "7".to_owned());
    let days = days.parse().ok().filter(|days| (1..=MAX_DAYS).contains(days));
    let days = days.ok_or_else(|| wrong("`days` has to be a number from 1 to 366"))?;
    let all_branches = match query.branches.as_deref().unwrap_or_default() {
        "" => false,
        "all" => true,
        _ => return Err(wrong("`branches` has to be `all`, or absent")),
    };
    let repositories = hud.results.tested_repositories().await?;
    let is_upstream = |name: &&String| name.eq_ignore_ascii_case(hud.upstream.as_str());
    let first = repositories.iter().find(is_upstream).or(repositories.first()).cloned();
    let repository = given(&query.repo).or(first).unwrap_or_default();
    let today = day_of((hud.clock)());
    let span = (today - days + 1, today);
    let q = given(&query.q).map(|q| q.chars().take(MAX_SEARCH_CHARS).collect::<String>());
    let stored = TestQuery {
        repository: repository.clone(),
        ranking: match show {
            ShownTests::Flaky => TestRanking::Flaky,
            ShownTests::Slow => TestRanking::Slow,
            ShownTests::Failing => TestRanking::Failing,
            ShownTests::New => TestRanking::New,
        },
        days: span,
        job: given(&query.job),
        all_branches,
        search: q.clone(),
        limit: LIMIT,
    };
    let tests = hud.results.test_stats(&stored).await?;
    let jobs = hud.results.tested_jobs(&repository, span).await?;
    Ok(TestsModel {
        repository,
        show,
        days,
        since: date(span.0),
        job: stored.job,
        all_branches,
        q,
        tests,
        repositories,
        jobs,
    })
}

/// For each repository that ran a test with `text` in its name in the last 30 days, the page of these
/// tests.
pub(crate) async fn search(hud: &Hud, text: &str) -> Result<Vec<SearchHit>, PageError> {
    // Every test with a time has a place in this ranking.
    let show = ShownTests::Slow;
    let repositories = hud.results.tested_repositories().await?;
    let mut hits = vec![];
    for repository in repositories.into_iter().take(MAX_REPOSITORIES) {
        let query = TestsQuery {
            repo: Some(repository),
            show: Some(show.as_str().to_owned()),
            days: Some("30".to_owned()),
            job: None,
            branches: Some("all".to_owned()),
            q: Some(text.to_owned()),
        };
        let model = build(hud, (), query).await?;
        if !model.tests.is_empty() {
            let name = format!("{}: tests with {text}", model.repository);
            hits.push(SearchHit { path: model.url(show), name });
        }
    }
    Ok(hits)
}

pub(crate) fn page(model: &TestsModel, view: &View<'_>) -> Markup {
    view.shell(
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
