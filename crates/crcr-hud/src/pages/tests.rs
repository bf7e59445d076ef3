//! `/tests`: flaky, slow, failing and new tests.

use std::collections::BTreeSet;
use std::sync::Arc;

use crcr_domain::ci_data::test_run::full_name;
use crcr_results::retention::day_of;
use crcr_results::test_runs::{TestQuery, TestRanking, TestStats, date, hex_id};
use jiff::tz::TimeZone;
use maud::{Markup, html};
use serde::{Deserialize, Serialize};

use super::test::{MAX_DAYS as MAX_TEST_DAYS, number};
use crate::address::{self, Sorted, address, sort_header};
use crate::context::{Hud, PageError, repo_parameter};
use crate::files::RepositoryFiles;
use crate::layout::{duration, percent};
use crate::query::{given, given_name};
use crate::view::View;

/// Tests on a page.
const PER_PAGE: usize = 50;
/// Further ones are found by a narrower question.
const MAX_PAGES: usize = 40;
/// The longest span that the page offers.
const MAX_DAYS: i64 = 366;
/// Jobs to choose from: a pull request can name as many as it likes.
const MAX_JOBS: usize = 500;
/// Days in which the search looks for tests.
const SEARCHED_DAYS: i64 = 30;
/// Tests of a ranking that are compared with an owner: owners aren't stored with tests.
const MAX_OWNED: usize = 2000;
/// Repositories in which a test is looked for: anybody may search, and each costs a ranking of 30 days.
const MAX_REPOSITORIES: usize = 5;

/// `?repo=OWNER/REPO&sort=flaky|failing|slow|new&days=N&job=NAME&branches=all&q=TEXT&owner=TEXT&page=N`. `show` is another
/// name of `sort`.
#[derive(Debug, Clone, Default, Deserialize, schemars::JsonSchema)]
pub(crate) struct TestsQuery {
    repo: Option<String>,
    sort: Option<String>,
    show: Option<String>,
    #[schemars(with = "Option<u64>")]
    days: Option<String>,
    job: Option<String>,
    branches: Option<String>,
    q: Option<String>,
    owner: Option<String>,
    #[schemars(with = "Option<u64>")]
    page: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TestSort {
    Flaky,
    Failing,
    Slow,
    New,
}

crcr_domain::names! { TestSort { Flaky "flaky", Failing "failing", Slow "slow", New "new" } }

impl TestSort {
    fn title(self) -> &'static str {
        match self {
            Self::Flaky => "Flaky",
            Self::Failing => "Failing",
            Self::Slow => "Slow",
            Self::New => "New",
        }
    }

    fn ranking(self) -> TestRanking {
        match self {
            Self::Flaky => TestRanking::Flaky,
            Self::Failing => TestRanking::Failing,
            Self::Slow => TestRanking::Slow,
            Self::New => TestRanking::New,
        }
    }
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct TestsModel {
    /// Empty if no repository has results of tests.
    pub(crate) repository: String,
    /// The greatest first; of flaky, failing and new tests only those that are.
    pub(crate) sort: TestSort,
    pub(crate) days: i64,
    /// The first day.
    pub(crate) since: String,
    pub(crate) job: Option<String>,
    pub(crate) all_branches: bool,
    pub(crate) q: Option<String>,
    /// A part of the name of an owner of the tests.
    pub(crate) owner: Option<String>,
    /// Whether the repository's CODEOWNERS is known.
    pub(crate) owners_known: bool,
    /// How many tests of the ranking were compared with the owner, if there may be more of them.
    pub(crate) first_only: Option<usize>,
    pub(crate) page: usize,
    pub(crate) has_more: bool,
    pub(crate) tests: Vec<ListedTest>,
    pub(crate) repositories: Vec<String>,
    /// With results in these days.
    pub(crate) jobs: Vec<String>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct ListedTest {
    #[serde(flatten)]
    pub(crate) stats: TestStats,
    pub(crate) owners: Vec<String>,
    pub(crate) is_quarantined: bool,
}

impl TestsModel {
    /// The address of the page with these filters.
    fn url(&self, sort: TestSort, page: usize) -> String {
        let (days, page) = (self.days.to_string(), page.to_string());
        address(
            "/tests",
            [
                ("repo", Some(&*self.repository)),
                ("sort", Some(sort.as_str())),
                ("days", Some(&*days)),
                ("job", self.job.as_deref()),
                ("branches", self.all_branches.then_some("all")),
                ("q", self.q.as_deref()),
                ("owner", self.owner.as_deref()),
                ("page", (page != "1").then_some(&*page)),
            ],
        )
    }
}

pub(crate) async fn build(hud: &Hud, (): (), query: TestsQuery) -> Result<TestsModel, PageError> {
    let given = |text: &Option<String>| given(text.as_deref());
    let wrong = |text: &str| PageError::Query(text.to_owned());
    let sort = given(&query.sort).or(given(&query.show)).unwrap_or_else(|| "flaky".to_owned());
    let sort = TestSort::from_name(&sort);
    let sort = sort.ok_or_else(|| wrong("`sort` has to be `flaky`, `failing`, `slow` or `new`"))?;
    let days = number("days", query.days.as_deref(), 7, 1..=MAX_DAYS)?;
    let page = given(&query.page).unwrap_or_else(|| "1".to_owned());
    let page = page.parse().ok().filter(|page| (1..=MAX_PAGES).contains(page));
    let page = page.ok_or_else(|| {
        wrong("`page` has to be a number from 1 to 40; `job` and `q` find tests further down")
    })?;
    let all_branches = match given(&query.branches).as_deref() {
        None => false,
        Some("all") => true,
        Some(_) => return Err(wrong("`branches` has to be `all`, or absent")),
    };
    let repositories = hud.results.tested_repositories().await?;
    let is_upstream = |name: &&String| name.eq_ignore_ascii_case(hud.upstream.as_str());
    let first = repositories.iter().find(is_upstream).or(repositories.first()).cloned();
    let named = repo_parameter("repo", query.repo.as_deref())?.map(|named| named.to_string());
    let repository = named.or(first).unwrap_or_default();
    let today = day_of(hud.now());
    let span = (today - days + 1, today);
    let q = given(&query.q);
    let owner = given(&query.owner);
    let first = (page - 1) * PER_PAGE;
    let (offset, limit) = if owner.is_some() { (0, MAX_OWNED) } else { (first, PER_PAGE + 1) };
    let stored = TestQuery {
        repository: repository.clone(),
        ranking: sort.ranking(),
        days: span,
        job: given_name(query.job.as_deref()),
        all_branches,
        search: q.clone(),
        offset,
        limit,
    };
    let tests = hud.results.test_stats(&stored).await?;
    let jobs = hud.results.tested_jobs(&repository, span, all_branches, MAX_JOBS).await?;
    let files = (hud.files)(&repository);
    let today = hud.now().to_zoned(TimeZone::UTC).date();
    let first_only = (owner.is_some() && tests.len() == MAX_OWNED).then_some(MAX_OWNED);
    let listed = |stats| listed(stats, &repository, files.as_ref(), today);
    let mut tests: Vec<ListedTest> = tests.into_iter().map(listed).collect();
    if let Some(owner) = &owner {
        keep_owned(&mut tests, owner, first);
    }
    let has_more = tests.len() > PER_PAGE;
    tests.truncate(PER_PAGE);
    Ok(TestsModel {
        sort,
        days,
        since: date(span.0),
        job: stored.job,
        all_branches,
        q,
        owner,
        owners_known: files.as_ref().is_some_and(|files| files.codeowners.is_some()),
        first_only,
        page,
        has_more,
        tests,
        repositories,
        jobs,
        repository: repository.clone(),
    })
}

fn listed(
    stats: TestStats,
    repository: &str,
    files: Option<&Arc<RepositoryFiles>>,
    today: jiff::civil::Date,
) -> ListedTest {
    let owners = files.and_then(|files| files.codeowners.as_ref()).map(|owners| {
        owners.owners_of_test(repository, stats.file.as_deref(), &stats.classname).to_vec()
    });
    let entries = files.and_then(|files| files.quarantine.as_deref()).unwrap_or_default();
    let variant = stats.variant.as_deref();
    let is_quarantined = entries.iter().any(|entry| {
        !entry.is_expired(today)
            && entry.matches(&stats.suite, &stats.classname, &stats.name, variant)
    });
    ListedTest { owners: owners.unwrap_or_default(), is_quarantined, stats }
}

/// Keeps the tests of the owners with this text in the name, without the first ones: those of pages before.
fn keep_owned(tests: &mut Vec<ListedTest>, owner: &str, first: usize) {
    let name = owner.to_lowercase();
    tests.retain(|test| test.owners.iter().any(|owner| has_name(owner, &name)));
    tests.drain(..first.min(tests.len()));
}

/// Whether an owner's name has the text, with the `@` before it or without.
fn has_name(owner: &str, lower: &str) -> bool {
    owner.to_lowercase().contains(lower.trim_start_matches('@'))
}

/// For each owner of tests of the last 30 days with `text` in the name, the path and the name of the page of these tests.
pub(crate) async fn search_owners(
    hud: &Hud,
    text: &str,
) -> Result<Vec<(String, String)>, PageError> {
    let name = text.to_lowercase();
    let today = hud.now().to_zoned(TimeZone::UTC).date();
    let mut hits = vec![];
    for repository in searched_repositories(hud).await? {
        let files = (hud.files)(&repository);
        let known = files.as_ref().and_then(|files| files.codeowners.as_ref());
        if known.is_none_or(|known| !known.has_owner(|owner| has_name(owner, &name))) {
            continue;
        }
        let tests = hud.results.test_stats(&of_a_month(hud, &repository, None, MAX_OWNED)).await?;
        let listed = tests.into_iter().map(|test| listed(test, &repository, files.as_ref(), today));
        let owners: BTreeSet<String> = listed.flat_map(|test| test.owners).collect();
        for owner in owners.iter().filter(|owner| has_name(owner, &name)) {
            let path = month_address(&repository, ("owner", owner.as_str()));
            hits.push((path, format!("{repository}: tests of {owner}")));
        }
    }
    Ok(hits)
}

/// For each repository, paths and names of pages: of the test with this name, if there is one only, and of the list of
/// tests with `text` in their name that ran in the last 30 days.
pub(crate) async fn search(hud: &Hud, text: &str) -> Result<Vec<(String, String)>, PageError> {
    let mut hits = vec![];
    for repository in searched_repositories(hud).await? {
        let named = hud.results.tests_named(&repository, text, 2).await?;
        let only = if let [test] = &*named { Some(test) } else { None };
        if let Some(test) = only {
            let name = full_name(&test.suite, &test.classname, &test.name);
            hits.push((address::test(&repository, test.test_id), format!("{repository}: {name}")));
        }
        let query = of_a_month(hud, &repository, Some(text.to_owned()), 2);
        let listed = hud.results.test_stats(&query).await?;
        // A list of nothing but that test tells no more.
        if listed.iter().any(|test| only.is_none_or(|only| only.test_id != test.test_id)) {
            let path = month_address(&repository, ("q", text));
            hits.push((path, format!("{repository}: tests with {text}")));
        }
    }
    Ok(hits)
}

async fn searched_repositories(hud: &Hud) -> Result<Vec<String>, PageError> {
    let mut repositories = hud.results.tested_repositories().await?;
    repositories.sort_by_key(|name| !name.eq_ignore_ascii_case(hud.upstream.as_str()));
    repositories.truncate(MAX_REPOSITORIES);
    Ok(repositories)
}

fn of_a_month(hud: &Hud, repository: &str, search: Option<String>, limit: usize) -> TestQuery {
    let today = day_of(hud.now());
    TestQuery {
        repository: repository.to_owned(),
        // Every test with a time has a place in this ranking.
        ranking: TestSort::Slow.ranking(),
        days: (today - SEARCHED_DAYS + 1, today),
        job: None,
        all_branches: true,
        search,
        offset: 0,
        limit,
    }
}

/// The page of what [`of_a_month`] asks for.
fn month_address(repository: &str, (parameter, text): (&str, &str)) -> String {
    let days = SEARCHED_DAYS.to_string();
    address(
        "/tests",
        [
            ("repo", Some(repository)),
            ("sort", Some(TestSort::Slow.as_str())),
            ("days", Some(&*days)),
            ("branches", Some("all")),
            (parameter, Some(text)),
        ],
    )
}

pub(crate) fn page(model: &TestsModel, view: &View<'_>) -> Markup {
    let title = match model.repository.as_str() {
        "" => "Tests".to_owned(),
        repository => format!("Tests of {repository}"),
    };
    view.shell(
        &title,
        false,
        &html! {
            div.title { h1 { bdi { (title) } } a href=(address("/quarantine", [("repo", Some(&*model.repository))])) { "Quarantine" } }
            @if model.repositories.is_empty() {
                p.note { "No results of tests are stored. " code { "crcr stats collect" } " loads them." }
            } @else {
                div.controls {
                    nav.group aria-label="Kind of tests" {
                        @for sort in TestSort::ALL {
                            a href=(model.url(sort, 1)) aria-current=[(sort == model.sort).then_some("page")] { (sort.title()) }
                        }
                    }
                    (filters(model))
                }
                (table(model))
            }
        },
    )
}

fn filters(model: &TestsModel) -> Markup {
    html! {
        form.span method="get" action="/tests" {
            input type="hidden" name="sort" value=(model.sort.as_str());
            label { "Repository " select name="repo" {
                @if !model.repositories.iter().any(|name| name.eq_ignore_ascii_case(&model.repository)) { option selected { (model.repository) } }
                @for name in &model.repositories {
                    option selected[name.eq_ignore_ascii_case(&model.repository)] { (name) }
                }
            } }
            " " label { "Days " input type="number" name="days" min="1" max="366" value=(model.days); }
            " " label { "Job " select name="job" {
                option value="" { "all" }
                @if let Some(job) = model.job.as_ref().filter(|job| !model.jobs.contains(job)) { option selected { (job) } }
                @for job in &model.jobs {
                    option selected[model.job.as_deref() == Some(job)] { (job) }
                }
            } }
            " " label { "Branches " select name="branches" {
                option value="" { "default branch" }
                option value="all" selected[model.all_branches] { "all, and pull requests" }
            } }
            " " label { "Name or file " input type="search" name="q" maxlength="200" value=(model.q.as_deref().unwrap_or_default()); }
            @if model.owners_known || model.owner.is_some() {
                " " label { "Owner " input type="search" name="owner" maxlength="200" value=(model.owner.as_deref().unwrap_or_default()); }
            }
            " " button { "Show" }
        }
    }
}

fn table(model: &TestsModel) -> Markup {
    let header = |sort: TestSort, name: &str| {
        let sorted = if sort == model.sort { Sorted::Descending } else { Sorted::No };
        sort_header(name, sorted, &model.url(sort, 1))
    };
    html! {
        p.detail {
            "Since " (model.since) " (UTC). A test is flaky when it passed and failed on one commit, in the same job."
            @if let Some(first) = model.first_only { " Only the first " (first) " tests of this order are looked at; a job or a name leaves fewer." }
        }
        @if model.tests.is_empty() {
            (nothing(model))
        } @else {
            div.scroll tabindex="0" role="region" aria-label="Tests" { table.stack {
                thead { tr {
                    th scope="col" { "Test" } (header(TestSort::Flaky, "Flaky")) (header(TestSort::Failing, "Failed"))
                    (header(TestSort::Slow, "Mean time")) th scope="col" { "Runs" } (header(TestSort::New, "First seen (UTC)"))
                    th scope="col" { "Owner" }
                } }
                tbody { @for test in &model.tests { (row(test, model)) } }
            } }
        }
        p.pager {
            @if model.page > 1 { a rel="nofollow" href=(model.url(model.sort, model.page - 1)) { "Back" } " " }
            @if model.has_more {
                @if model.page < MAX_PAGES { a rel="nofollow" href=(model.url(model.sort, model.page + 1)) { "More tests" } }
                @else { "There are more; choose a job or a name above." }
            }
        }
    }
}

/// Why no test is listed.
fn nothing(model: &TestsModel) -> Markup {
    let is_known =
        model.repositories.iter().any(|name| name.eq_ignore_ascii_case(&model.repository));
    html! { p.note {
        @if !is_known { "No result of a test of " bdi { (model.repository) } " is stored." }
        @else if model.owner.is_some() && !model.owners_known { "CODEOWNERS isn't known, so no test has an owner here." }
        @else if model.all_branches { "No such test in these days." }
        @else { "No such test on the default branch in these days." }
    } }
}

fn row(test: &ListedTest, model: &TestsModel) -> Markup {
    let stats = &test.stats;
    let id = hex_id(stats.test_id);
    let days = model.days.min(MAX_TEST_DAYS).to_string();
    let path = format!("/test/{}", model.repository);
    let link = address(&path, [("id", Some(&*id)), ("days", Some(&*days))]);
    let runs = |runs: Option<&str>| {
        let asked = [
            ("id", Some(&*id)),
            ("days", Some(&*days)),
            ("runs", runs),
            ("branches", (!model.all_branches).then_some("default")),
            ("job", model.job.as_deref()),
        ];
        format!("{}#runs", address(&path, asked))
    };
    html! { tr {
        th scope="row" {
            a href=(link) { bdi { (full_name(&stats.suite, &stats.classname, &stats.name)) } }
            @if test.is_quarantined { " " span.tag { "quarantined" } }
            @if let Some(variant) = &stats.variant { " " span.detail { bdi { (variant) } } }
            @if let Some(file) = &stats.file { " " span.detail { bdi { (file) } } }
        }
        td data-label="Flaky" { (share(stats.flaky, stats, &runs(Some("flaky")))) }
        td data-label="Failed" { (share(stats.failures, stats, &runs(Some("failed")))) }
        td data-label="Mean time" { @match stats.mean_time { Some(time) => (duration(time)), None => span.muted { "no data" } } }
        td data-label="Runs" { a href=(runs(None)) { (stats.runs) } }
        td data-label="First seen" { (date(stats.first_day)) }
        td data-label="Owner" { @if test.owners.is_empty() { span.muted { "not known" } } @for owner in &test.owners { bdi { (owner) } " " } }
    } }
}

fn share(count: u64, stats: &TestStats, link: &str) -> Markup {
    html! {
        @if count == 0 { span.muted { "0" } } @else {
            (percent(stats.share(count))) " " span.detail { a href=(link) { (count) } " of " (stats.runs_not_skipped()) }
        }
    }
}
