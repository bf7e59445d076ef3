//! `/test/OWNER/REPO?id=…`: one test, and what became of it.

use std::collections::BTreeMap;

use aws_lc_rs::digest::{SHA256, digest};
use crcr_domain::RepoName;
use crcr_domain::ci_data::test_run::{TestResult, full_name};
use crcr_domain::probes::Culprit;
use crcr_domain::results::Rate;
use crcr_results::retention::day_of;
use crcr_results::test_history::{
    MAX_JOBS, MAX_RESULTS_OF_JOB, TestIdentity, TestJobDay, TestResultRow,
};
use crcr_results::test_runs::{date, hex_id};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use maud::{Markup, html};
use serde::{Deserialize, Serialize};

use crate::address::{self, Sorted, address, order_header};
use crate::context::{Hud, PageError, repo_name};
use crate::files::QuarantineView;
use crate::layout::{ago, count_link, counted, culprit_list, duration, rate, short_sha};
use crate::model::RateView;
use crate::plot::{Plot, PlotLine, Unit};
use crate::query::{MAX_SEARCH_CHARS, SortOrder};
use crate::view::View;

const DEFAULT_DAYS: i64 = 30;
const MAX_DAYS: i64 = 90;
/// Commits of the strip.
const MAX_COMMITS: usize = 40;
/// A job without a result on this many commits doesn't run any more.
const MAX_SILENT: usize = 5;
/// Failures that are read one by one.
const MAX_FAILURES: usize = 1000;
const MAX_MESSAGES: usize = 20;
const MESSAGE_SORTS: [&str; 4] = ["failures", "jobs", "newest", "oldest"];
/// A pass that is older says little about now.
const STALE: SignedDuration = SignedDuration::from_hours(72);
const RUNS_PER_PAGE: usize = 50;
/// Tests of one name.
const MAX_CHOICES: usize = 50;

/// `?id=HEX` or `?name=CLASS.NAME`, `?days=N`, `?runs=failed|flaky`, `?message=HEX` for the failures that say the same,
/// `?page=N`, `?messages=failures|jobs|newest|oldest` to sort what it says.
#[derive(Debug, Clone, Default, Deserialize, schemars::JsonSchema)]
pub(crate) struct TestPageQuery {
    id: Option<String>,
    name: Option<String>,
    days: Option<String>,
    runs: Option<String>,
    message: Option<String>,
    page: Option<String>,
    messages: Option<String>,
}

impl TestPageQuery {
    /// The test with an id, or with a name; `None` without both.
    pub(crate) fn of(id: Option<String>, name: Option<String>) -> Option<Self> {
        (id.is_some() || name.is_some()).then(|| Self { id, name, ..Self::default() })
    }
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct TestModel {
    pub(crate) repository: String,
    pub(crate) name: String,
    pub(crate) days: i64,
    /// The tests of this name, if there are several: nothing else is told then.
    pub(crate) choices: Vec<TestIdentity>,
    #[serde(flatten)]
    pub(crate) test: Option<OneTest>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct OneTest {
    pub(crate) identity: TestIdentity,
    pub(crate) runs: u64,
    pub(crate) failed: RateView,
    pub(crate) flaky: RateView,
    /// In seconds.
    pub(crate) mean_time: Option<f64>,
    pub(crate) state: TestState,
    /// Whether it ran on the default branch; else all of this is of other branches and of pull requests.
    pub(crate) is_on_default_branch: bool,
    /// When the newest run began in which it wasn't skipped, of those that the state is of.
    pub(crate) newest_at: Option<Timestamp>,
    /// Whether that is days ago.
    pub(crate) is_stale: bool,
    pub(crate) owners: Vec<String>,
    /// Whether the repository's CODEOWNERS is known.
    pub(crate) owners_known: bool,
    pub(crate) quarantine: Option<QuarantineView>,
    pub(crate) quarantine_known: bool,
    /// The newest commits first. Those of the default branch, unless the test never ran there.
    pub(crate) commits: Vec<StripCommit>,
    /// The jobs that the test runs in, each with a result for each commit.
    pub(crate) jobs: Vec<StripJob>,
    pub(crate) messages: Vec<MessageGroup>,
    pub(crate) message_sort: SortOrder,
    pub(crate) charts: Vec<Plot>,
    /// Which runs are listed.
    #[serde(flatten)]
    pub(crate) listed: RunFilter,
    /// Single results, the newest first.
    pub(crate) results: Vec<TestResultRow>,
    pub(crate) has_older: bool,
    /// Which commits broke jobs of backends in which this test failed.
    pub(crate) culprits: Vec<Culprit>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub(crate) struct RunFilter {
    pub(crate) only_failed: bool,
    pub(crate) only_flaky: bool,
    /// The [`MessageGroup::id`] of those that failed.
    pub(crate) message_id: Option<String>,
    pub(crate) page: usize,
}

impl RunFilter {
    fn includes(&self, row: &TestResultRow) -> bool {
        match &self.message_id {
            Some(id) => row.result.is_failed() && message_id(row) == *id,
            None if self.only_flaky => row.flaky,
            None => !self.only_failed || row.result.is_failed(),
        }
    }
}

/// How a test stands on the newest commits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(tag = "state", rename_all = "snake_case")]
pub(crate) enum TestState {
    NoResults,
    Passing,
    /// It failed on each of these commits.
    Failing {
        first_failing: String,
        since: Timestamp,
        last_good: Option<String>,
        commits: usize,
    },
    /// It passes now, and failed before.
    Recovered {
        last_failing: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub(crate) struct StripCommit {
    pub(crate) sha: String,
    pub(crate) at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub(crate) struct StripJob {
    pub(crate) job: String,
    pub(crate) cells: Vec<Option<StripCell>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub(crate) struct StripCell {
    pub(crate) state: CellState,
    pub(crate) run_id: u64,
    pub(crate) job_id: Option<u64>,
}

/// Ordered from the worst to the best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CellState {
    Failed,
    Unfinished,
    Flaky,
    Passed,
    Skipped,
}

/// Failures that say the same, whatever their numbers are.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub(crate) struct MessageGroup {
    pub(crate) id: String,
    pub(crate) message: String,
    pub(crate) failures: usize,
    pub(crate) jobs: usize,
    pub(crate) newest: TestResultRow,
    pub(crate) oldest_at: Timestamp,
}

pub(crate) async fn build(
    hud: &Hud,
    (owner, repo): (String, String),
    query: TestPageQuery,
) -> Result<TestModel, PageError> {
    let repo = repo_name(&owner, &repo)?;
    let days = number("days", query.days.as_deref(), DEFAULT_DAYS, 1..=MAX_DAYS)?;
    let page = number("page", query.page.as_deref(), 1, 1..=10_000)?;
    let (only_failed, only_flaky) = match query.runs.as_deref().unwrap_or_default() {
        "" | "all" => (false, false),
        "failed" => (true, false),
        "flaky" => (false, true),
        _ => {
            return Err(PageError::Query("`runs` has to be `all`, `failed` or `flaky`".to_owned()));
        }
    };
    let message_sort =
        SortOrder::named("messages", query.messages.as_deref(), "failures", &MESSAGE_SORTS)
            .map_err(PageError::Query)?;
    let name: String =
        query.name.unwrap_or_default().trim().chars().take(MAX_SEARCH_CHARS * 5).collect();
    let mut model = TestModel {
        repository: repo.to_string(),
        name: name.clone(),
        days,
        choices: vec![],
        test: None,
    };
    let identity = match query.id.as_deref().filter(|id| !id.is_empty()) {
        Some(id) => {
            let wrong = |_| PageError::Query("`id` has to be 16 hexadecimal digits".to_owned());
            let id = u64::from_str_radix(id, 16).map_err(wrong)?;
            hud.results.test_identity(repo.as_str(), id).await?
        }
        None if name.is_empty() => {
            return Err(PageError::Query(
                "`name` has to be a test's name, as CLASS.NAME".to_owned(),
            ));
        }
        None => {
            let mut named = hud.results.tests_named(repo.as_str(), &name, MAX_CHOICES).await?;
            if named.len() > 1 {
                model.choices = named;
                return Ok(model);
            }
            named.pop()
        }
    };
    let identity = identity.ok_or_else(|| no_such_test(&repo, &name))?;
    model.name = full_name(&identity.suite, &identity.classname, &identity.name);
    let message_id = query.message.filter(|id| !id.is_empty());
    let listed = RunFilter { only_failed, only_flaky, message_id, page: page as usize };
    let mut test = one_test(hud, &repo, identity, days, listed).await?;
    sort_messages(&mut test.messages, &message_sort);
    test.message_sort = message_sort;
    model.test = Some(test);
    Ok(model)
}

fn number(
    name: &str,
    given: Option<&str>,
    default: i64,
    allowed: std::ops::RangeInclusive<i64>,
) -> Result<i64, PageError> {
    let Some(given) = given.filter(|given| !given.is_empty()) else { return Ok(default) };
    given.parse().ok().filter(|number| allowed.contains(number)).ok_or_else(|| {
        let (from, to) = (allowed.start(), allowed.end());
        PageError::Query(format!("`{name}` has to be a number from {from} to {to}"))
    })
}

fn no_such_test(repo: &RepoName, name: &str) -> PageError {
    let named = if name.is_empty() { String::new() } else { format!(" `{name}`") };
    PageError::NotFound(format!(
        "no results of a test{named} of {repo} are stored; {} lists the tests that are",
        address("/tests", [("repo", Some(repo.as_str()))])
    ))
}

async fn one_test(
    hud: &Hud,
    repo: &RepoName,
    identity: TestIdentity,
    days: i64,
    listed: RunFilter,
) -> Result<OneTest, PageError> {
    let today = day_of(hud.now());
    let span = (today - days + 1, today);
    let of_days = hud.results.test_job_days(repo.as_str(), identity.test_id, span).await?;
    let results =
        hud.results.test_results(repo.as_str(), identity.test_id, span, MAX_FAILURES).await?;
    let on_default = of_days.iter().any(|day| day.on_default_branch);
    let counted: Vec<&TestJobDay> =
        of_days.iter().filter(|day| day.on_default_branch == on_default).collect();
    let sum = |count: fn(&TestJobDay) -> u64| counted.iter().map(|day| count(day)).sum::<u64>();
    let ran = sum(|day| day.runs).saturating_sub(sum(|day| day.skipped));
    let share =
        |numerator: u64| RateView::from(Rate { numerator, denominator: ran.max(numerator) });
    let timed = sum(|day| day.timed);
    let seconds: f64 = counted.iter().map(|day| day.seconds).sum();
    let shown: Vec<&TestResultRow> =
        results.iter().filter(|row| row.on_default_branch == on_default).collect();
    let (commits, jobs) = strip(&shown);
    let ran_at = shown.iter().filter(|row| row.result != TestResult::Skipped).map(|row| row.at);
    let newest_at = ran_at.max();
    let files = (hud.files)(repo.as_str());
    let owners = files.as_ref().and_then(|files| files.codeowners.as_ref());
    let entries = files.as_ref().and_then(|files| files.quarantine.as_ref());
    let date_today = hud.now().to_zoned(TimeZone::UTC).date();
    let covering = entries
        .into_iter()
        .flatten()
        .filter(|entry| entry.matches(&identity.suite, &identity.classname, &identity.name));
    let first = (listed.page - 1) * RUNS_PER_PAGE;
    let chosen = || results.iter().filter(|row| listed.includes(row));
    let full = full_name(&identity.suite, &identity.classname, &identity.name);
    let is_named = |one: &Culprit| {
        let mut tests = one.tests.iter();
        one.upstream.eq_ignore_ascii_case(repo.as_str()) && tests.any(|test| *test == full)
    };
    let culprits = (hud.probes)().await.culprits.into_iter().filter(is_named).collect();
    Ok(OneTest {
        culprits,
        runs: ran,
        failed: share(sum(|day| day.failures)),
        flaky: share(sum(|day| day.flaky)),
        mean_time: (timed > 0).then(|| seconds / timed as f64),
        state: state(&commits, &jobs),
        is_on_default_branch: on_default,
        is_stale: newest_at.is_some_and(|newest| hud.now().duration_since(newest) > STALE),
        newest_at,
        owners: owners
            .map(|owners| {
                owners
                    .owners_of_test(repo.as_str(), identity.file.as_deref(), &identity.classname)
                    .to_vec()
            })
            .unwrap_or_default(),
        owners_known: owners.is_some(),
        quarantine: covering
            .max_by_key(|entry| entry.expiry)
            .map(|entry| QuarantineView::new(entry, date_today)),
        quarantine_known: entries.is_some(),
        messages: messages(&results),
        message_sort: SortOrder { column: MESSAGE_SORTS[0], is_reversed: false },
        charts: charts(&counted, span),
        has_older: chosen().count() > first + RUNS_PER_PAGE,
        results: chosen().skip(first).take(RUNS_PER_PAGE).cloned().collect(),
        listed,
        identity,
        commits,
        jobs,
    })
}

/// The newest commits, and each job's result on them.
fn strip(results: &[&TestResultRow]) -> (Vec<StripCommit>, Vec<StripJob>) {
    let mut commits: Vec<StripCommit> = vec![];
    for row in results.iter().filter(|row| !row.head_sha.is_empty()) {
        match commits.iter().position(|commit| commit.sha == row.head_sha) {
            // The commit is as old as its first run.
            Some(known) => commits[known].at = commits[known].at.min(row.at),
            None if commits.len() < MAX_COMMITS => {
                commits.push(StripCommit { sha: row.head_sha.clone(), at: row.at });
            }
            None => {}
        }
    }
    commits.sort_by(|a, b| b.at.cmp(&a.at).then_with(|| a.sha.cmp(&b.sha)));
    let mut jobs: BTreeMap<&str, Vec<Option<StripCell>>> = BTreeMap::new();
    for row in results {
        let Some(at) = commits.iter().position(|commit| commit.sha == row.head_sha) else {
            continue;
        };
        let cells = jobs.entry(&row.job).or_insert_with(|| vec![None; commits.len()]);
        let cell = StripCell { state: cell_state(row), run_id: row.run_id, job_id: row.job_id };
        cells[at] = Some(match cells[at] {
            None => cell,
            // It passed and failed on this commit.
            Some(known) if is_mixed(known.state, cell.state) => {
                let failed = if known.state == CellState::Failed { known } else { cell };
                StripCell { state: CellState::Flaky, ..failed }
            }
            Some(known) => {
                if cell.state < known.state {
                    cell
                } else {
                    known
                }
            }
        });
    }
    let jobs = jobs.into_iter().map(|(job, cells)| StripJob { job: job.to_owned(), cells });
    (commits, jobs.collect())
}

fn is_mixed(a: CellState, b: CellState) -> bool {
    let (worst, best) = (a.min(b), a.max(b));
    worst == CellState::Failed && matches!(best, CellState::Passed | CellState::Flaky)
}

fn cell_state(row: &TestResultRow) -> CellState {
    match row.result {
        TestResult::Failure | TestResult::Error => CellState::Failed,
        TestResult::Unfinished => CellState::Unfinished,
        TestResult::Skipped => CellState::Skipped,
        TestResult::Success if row.flaky => CellState::Flaky,
        TestResult::Success => CellState::Passed,
    }
}

/// The newest commits first, with whether it failed there. A job that failed fails until it passes again: one that hasn't
/// run on a commit yet, while others passed there, says nothing. Commits on which nothing ran are left out.
pub(crate) fn on_commits<'a>(
    commits: &'a [StripCommit],
    jobs: &[StripJob],
) -> Vec<(&'a StripCommit, bool)> {
    let mut found = vec![];
    // The jobs that fail, each with the commits since its last result.
    let mut failing: BTreeMap<&str, usize> = BTreeMap::new();
    for (at, commit) in commits.iter().enumerate().rev() {
        let cell = |job: &StripJob| job.cells[at].filter(|cell| cell.state != CellState::Skipped);
        if !jobs.iter().any(|job| cell(job).is_some()) {
            continue;
        }
        failing.values_mut().for_each(|silent| *silent += 1);
        for job in jobs {
            match cell(job).map(|cell| cell.state <= CellState::Unfinished) {
                Some(true) => drop(failing.insert(&job.job, 0)),
                Some(false) => drop(failing.remove(&*job.job)),
                None => {}
            }
        }
        failing.retain(|_, silent| *silent <= MAX_SILENT);
        found.push((commit, !failing.is_empty()));
    }
    found.reverse();
    found
}

fn state(commits: &[StripCommit], jobs: &[StripJob]) -> TestState {
    let on_commits = on_commits(commits, jobs);
    let failing = on_commits.iter().take_while(|(_, failed)| *failed).count();
    match on_commits.first() {
        None => TestState::NoResults,
        Some((_, true)) => {
            let first = on_commits[failing - 1].0;
            TestState::Failing {
                first_failing: first.sha.clone(),
                since: first.at,
                last_good: on_commits.get(failing).map(|(commit, _)| commit.sha.clone()),
                commits: failing,
            }
        }
        Some((_, false)) => match on_commits.iter().find(|(_, failed)| *failed) {
            Some((commit, _)) => TestState::Recovered { last_failing: commit.sha.clone() },
            None => TestState::Passing,
        },
    }
}

fn messages(results: &[TestResultRow]) -> Vec<MessageGroup> {
    let mut groups: BTreeMap<String, (MessageGroup, std::collections::BTreeSet<&str>)> =
        BTreeMap::new();
    for row in results.iter().filter(|row| row.result.is_failed()) {
        let message = row.message.as_deref().unwrap_or_default();
        let (group, jobs) = groups.entry(alike(message)).or_insert_with(|| {
            let message = message.chars().take(600).collect();
            let (id, newest) = (message_id(row), row.clone());
            let group =
                MessageGroup { id, message, failures: 0, jobs: 0, newest, oldest_at: row.at };
            (group, std::collections::BTreeSet::new())
        });
        group.failures += 1;
        group.oldest_at = group.oldest_at.min(row.at);
        jobs.insert(&row.job);
    }
    let mut groups: Vec<MessageGroup> = groups
        .into_values()
        .map(|(group, jobs)| MessageGroup { jobs: jobs.len(), ..group })
        .collect();
    groups.sort_by(|a, b| b.failures.cmp(&a.failures).then_with(|| b.newest.at.cmp(&a.newest.at)));
    groups.truncate(MAX_MESSAGES);
    groups
}

/// The most failures and jobs first, and the newest and the oldest.
fn sort_messages(groups: &mut [MessageGroup], order: &SortOrder) {
    groups.sort_by(|a, b| {
        order.apply(match order.column {
            "jobs" => b.jobs.cmp(&a.jobs),
            "newest" => b.newest.at.cmp(&a.newest.at),
            "oldest" => a.oldest_at.cmp(&b.oldest_at),
            _ => b.failures.cmp(&a.failures),
        })
    });
}

/// The first line of a message, with one sign for each number: addresses and times differ from run to run.
fn alike(message: &str) -> String {
    let line = message.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let mut text = String::new();
    for c in line.chars().take(300) {
        let c = if c.is_ascii_digit() { '#' } else { c };
        if c != '#' || !text.ends_with('#') {
            text.push(c);
        }
    }
    text
}

/// Names what a failure says in an address.
fn message_id(row: &TestResultRow) -> String {
    let sum = digest(&SHA256, alike(row.message.as_deref().unwrap_or_default()).as_bytes());
    sum.as_ref()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn charts(days: &[&TestJobDay], (first, last): (i64, i64)) -> Vec<Plot> {
    #[derive(Default)]
    struct DaySum {
        ran: u64,
        failures: u64,
        flaky: u64,
        timed: u64,
        seconds: f64,
    }
    let mut by_day: BTreeMap<i64, DaySum> = BTreeMap::new();
    for day in days {
        let sum = by_day.entry(day.day).or_default();
        sum.ran += day.runs.saturating_sub(day.skipped);
        sum.failures += day.failures;
        sum.flaky += day.flaky;
        sum.timed += day.timed;
        sum.seconds += day.seconds;
    }
    let of_days = |value: fn(&DaySum) -> Option<f64>| -> Vec<Option<f64>> {
        (first..=last).map(|day| by_day.get(&day).and_then(value)).collect()
    };
    let line = |name: &str, values| PlotLine { name: name.to_owned(), values };
    let plot = |title: &str, unit, lines| Plot {
        title: title.to_owned(),
        unit,
        times: (first..=last).map(date).collect(),
        hours: vec![],
        lines,
    };
    vec![
        plot(
            "Failed and flaky results a day",
            Unit::Count,
            vec![
                line("failed", of_days(|sum| (sum.ran > 0).then_some(sum.failures as f64))),
                line("flaky", of_days(|sum| (sum.ran > 0).then_some(sum.flaky as f64))),
            ],
        ),
        plot(
            "Mean duration",
            Unit::Seconds,
            vec![line(
                "mean",
                of_days(|sum| (sum.timed > 0).then(|| sum.seconds / sum.timed as f64)),
            )],
        ),
    ]
}

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
    html! {
        dl.cards {
            div { dt { "Failed" } dd { (rate(&test.failed)) " " @if test.failed.rate.numerator > 0 { a rel="nofollow" href=(runs_address(test, model, Some("failed"), None, 1)) { "which" } } } }
            div { dt { "Flaky" } dd { (rate(&test.flaky)) " " @if test.flaky.rate.numerator > 0 { a rel="nofollow" href=(runs_address(test, model, Some("flaky"), None, 1)) { "which" } } } }
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
    let link = |days: i64| {
        let (id, days) = (hex_id(test.identity.test_id), days.to_string());
        address(
            &format!("/test/{}", model.repository),
            [("id", Some(&*id)), ("days", Some(&*days))],
        )
    };
    html! {
        nav.controls aria-label="Time span" { span.group { @for days in [7, 30, 90] {
            a aria-current=[(model.days == days).then_some("true")] href=(link(days)) { (days) " d" }
        } } }
    }
}

pub(crate) fn cell_parts(state: CellState) -> (&'static str, &'static str, &'static str) {
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
        div.scroll { table.stack {
            thead { tr {
                th scope="col" { "Message" } (header("failures", "Failures", Sorted::Descending)) (header("jobs", "Jobs", Sorted::Descending))
                (header("newest", "Newest", Sorted::Descending)) (header("oldest", "Oldest", Sorted::Ascending))
            } }
            tbody { @for group in &test.messages { tr {
                th scope="row" { @if group.message.is_empty() { span.muted { "no message" } } @else { code { bdi { (group.message) } } } }
                @let runs = runs_address(test, model, Some("failed"), Some(&group.id), 1);
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
    }
}

/// The address of the runs of a test.
fn runs_address(
    test: &OneTest,
    model: &TestModel,
    runs: Option<&str>,
    message: Option<&str>,
    page: usize,
) -> String {
    let (id, days, page) =
        (hex_id(test.identity.test_id), model.days.to_string(), page.to_string());
    let asked = [
        ("id", Some(&*id)),
        ("days", Some(&*days)),
        ("runs", runs),
        ("message", message),
        ("page", (page != "1").then_some(&*page)),
    ];
    format!("{}#runs", address(&format!("/test/{}", model.repository), asked))
}

fn runs_table(test: &OneTest, model: &TestModel, view: &View<'_>) -> Markup {
    let RunFilter { only_failed, only_flaky, message_id, page } = &test.listed;
    let runs = only_failed.then_some("failed").or(only_flaky.then_some("flaky"));
    let beside = |page: usize| runs_address(test, model, runs, message_id.as_deref(), page);
    let is_all = runs.is_none() && message_id.is_none();
    html! {
        h2 #runs { "Every run" }
        nav.controls aria-label="Runs" { span.group {
            a rel="nofollow" aria-current=[is_all.then_some("true")] href=(runs_address(test, model, None, None, 1)) { "All" }
            a rel="nofollow" aria-current=[(*only_failed && message_id.is_none()).then_some("true")] href=(runs_address(test, model, Some("failed"), None, 1)) { "Failed" }
            a rel="nofollow" aria-current=[(*only_flaky && message_id.is_none()).then_some("true")] href=(runs_address(test, model, Some("flaky"), None, 1)) { "Flaky" }
            @if message_id.is_some() { a rel="nofollow" aria-current="true" href=(beside(1)) { "With this message" } }
        } }
        @if test.results.is_empty() { p.note { "No such run in these days." } } @else {
            div.scroll { table.stack {
                thead { tr { th scope="col" { "Run" } th scope="col" { "Result" } th scope="col" { "Commit" } th scope="col" { "Job" } th scope="col" { "Took" } th scope="col" { "Message" } } }
                tbody { @for row in &test.results { (run_row(row, model, view)) } }
            } }
        }
        p.detail { "The newest " (MAX_RESULTS_OF_JOB) " results of each of at most " (MAX_JOBS) " jobs, and the newest " (MAX_FAILURES) " failures: on the default branch, and as many elsewhere." }
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
