//! `/trends`: how red the branch is, how long authors wait, where the queue is, and what backends report.

use std::collections::BTreeMap;

use crcr_domain::Level;
use crcr_domain::results::facts::DispatchFactStatus;
use crcr_domain::results::{DurationHistogram, JobOutcome, Rate, ResultTotals};
use crcr_results::Window;
use crcr_results::ci_times::{
    BranchCommitRuns, CiGrouping, CiTimes, CiTimesQuery, CiUnit, OTHER_NAMES,
};
use crcr_results::retention::heads_until;
use jiff::{SignedDuration, Timestamp};
use maud::{Markup, html};
use serde::{Deserialize, Serialize};

use crate::address::{self, SortOrder, Sorted, address, branch_path, order_header};
use crate::context::{Hud, PageError, repo_parameter};
use crate::layout::{count_link, duration, percent, time, zone};
use crate::model::days::{day_tallies, facts};
use crate::model::known_repositories;
use crate::model::red_branches::trunk;
use crate::model::{RateView, totals_by_hour};
use crate::plot::{HOUR, Plot, PlotLine, Unit};
use crate::query::{ShownEvents, SpanQuery, end_of_minute, given_name};
use crate::view::View;

/// Rows of a table on a page.
const PER_PAGE: usize = 30;
/// Commits of a branch that are counted.
const MAX_COMMITS: usize = 20_000;
/// Backends whose share of passed jobs is drawn.
const MAX_BACKENDS: usize = 4;

/// `?repo=OWNER/REPO&branch=NAME&window=24h|7d|30d|90d&runner=LABELS&job=NAME&sort=queue|run|ended|failed|name&all=1`; a
/// `-` before the column sorts the other way.
#[derive(Debug, Clone, Default, Deserialize, schemars::JsonSchema)]
pub(crate) struct TrendsQuery {
    repo: Option<String>,
    branch: Option<String>,
    window: Option<String>,
    runner: Option<String>,
    job: Option<String>,
    sort: Option<String>,
    all: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TimesSort {
    Queue,
    Run,
    Ended,
    Failed,
    Name,
}

impl TimesSort {
    const ALL: [(Self, &'static str, &'static str); 5] = [
        (Self::Name, "name", "Name"),
        (Self::Ended, "ended", "Jobs"),
        (Self::Failed, "failed", "Failed"),
        (Self::Queue, "queue", "Queue P95"),
        (Self::Run, "run", "Duration P95"),
    ];

    fn as_str(self) -> &'static str {
        Self::ALL.into_iter().find(|(sort, ..)| *sort == self).map_or("", |(_, name, _)| name)
    }
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct TrendsModel {
    pub(crate) repository: String,
    pub(crate) repositories: Vec<String>,
    pub(crate) branch: String,
    pub(crate) branches: Vec<String>,
    pub(crate) window: &'static str,
    pub(crate) from: Timestamp,
    pub(crate) to: Timestamp,
    pub(crate) runner: Option<String>,
    pub(crate) job: Option<String>,
    /// The greatest first, names by the alphabet, unless it is the other way.
    pub(crate) sort: TimesSort,
    pub(crate) is_reversed: bool,
    /// Whether the tables are whole.
    pub(crate) all: bool,
    /// Commits of the branch on which a run failed.
    pub(crate) red: RateView,
    pub(crate) charts: Vec<Plot>,
    pub(crate) runners: Vec<TimesRow>,
    pub(crate) jobs: Vec<TimesRow>,
    pub(crate) workflows: Vec<TimesRow>,
}

/// What ended in the whole span. Times are seconds, within 5 %.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub(crate) struct TimesRow {
    pub(crate) name: String,
    pub(crate) ended: u64,
    pub(crate) failed: u64,
    pub(crate) queue_p50: Option<f64>,
    pub(crate) queue_p95: Option<f64>,
    pub(crate) run_p50: Option<f64>,
    pub(crate) run_p95: Option<f64>,
}

/// The times of a chart: hours, days or weeks.
struct Buckets {
    unit: CiUnit,
    from: Timestamp,
    to: Timestamp,
    millis: i64,
    count: usize,
}

/// The time spans to choose from.
pub(crate) const WINDOWS: [&str; 4] = ["24h", "7d", "30d", "90d"];

/// The window of a query, the week by default.
pub(crate) fn window_of(given: Option<&str>) -> Result<&'static str, PageError> {
    let Some(given) = given else { return Ok("7d") };
    let known = WINDOWS.into_iter().find(|window| *window == given);
    known.ok_or_else(|| {
        PageError::Query("`window` has to be `24h`, `7d`, `30d` or `90d`".to_owned())
    })
}

pub(crate) fn window_name(window: &str) -> String {
    window.replace('h', " h").replace('d', " d")
}

/// From when to when a window's charts and tables go: whole hours or days.
pub(crate) fn span_of(window: &str, now: Timestamp) -> (Timestamp, Timestamp) {
    let Buckets { from, to, .. } = Buckets::of(window, now);
    (from, to)
}

impl Buckets {
    fn of(window: &str, now: Timestamp) -> Self {
        const DAY: i64 = 86_400_000;
        let (unit, millis, count) = match window {
            "24h" => (CiUnit::Hour, 3_600_000, 24),
            "30d" => (CiUnit::Day, DAY, 30),
            "90d" => (CiUnit::Day, 7 * DAY, 13),
            _ => (CiUnit::Day, DAY, 7),
        };
        let last = unit.start(now);
        let to = last + SignedDuration::from_millis(unit.millis());
        let from = to - SignedDuration::from_millis(millis * count as i64);
        Self { unit, from, to, millis, count }
    }

    /// The bucket that a time belongs to.
    fn at(&self, time: Timestamp) -> Option<usize> {
        let since = time.as_millisecond() - self.from.as_millisecond();
        let at = usize::try_from(since.div_euclid(self.millis)).ok()?;
        (at < self.count).then_some(at)
    }

    /// When each hour begins. Days are those of UTC, as everywhere, and so are weeks.
    fn hours(&self) -> Vec<Timestamp> {
        let start = |n: usize| self.from + SignedDuration::from_millis(self.millis * n as i64);
        match self.unit {
            CiUnit::Hour => (0..self.count).map(start).collect(),
            CiUnit::Day => vec![],
        }
    }

    fn times(&self) -> Vec<String> {
        let start = |n: usize| self.from + SignedDuration::from_millis(self.millis * n as i64);
        let name = |n: usize| match self.unit {
            CiUnit::Hour => start(n).strftime(HOUR).to_string(),
            CiUnit::Day if self.millis > CiUnit::Day.millis() => {
                format!("week of {}", start(n).strftime("%Y-%m-%d"))
            }
            CiUnit::Day => start(n).strftime("%Y-%m-%d").to_string(),
        };
        (0..self.count).map(name).collect()
    }

    fn plot(&self, title: &str, unit: Unit, lines: Vec<PlotLine>) -> Plot {
        let (times, hours) = (self.times(), self.hours());
        Plot { title: title.to_owned(), unit, times, hours, lines }
    }
}

fn line(name: impl Into<String>, values: Vec<Option<f64>>) -> PlotLine {
    PlotLine { name: name.into(), values }
}

pub(crate) async fn build(hud: &Hud, (): (), query: TrendsQuery) -> Result<TrendsModel, PageError> {
    let given = |text: &Option<String>| given_name(text.as_deref());
    let window = window_of(given(&query.window).as_deref())?;
    let columns = TimesSort::ALL.map(|(_, name, _)| name);
    let order = SortOrder::new(given(&query.sort).as_deref(), "queue", &columns)
        .map_err(PageError::Query)?;
    let sort = TimesSort::ALL.into_iter().find(|(_, name, _)| *name == order.column);
    let sort = sort.map_or(TimesSort::Queue, |(sort, ..)| sort);
    let repositories = known_repositories::names(hud, "workflow_job").await?;
    let named = repo_parameter("repo", query.repo.as_deref())?;
    let repository = named.unwrap_or_else(|| hud.upstream.clone()).to_string();
    let branches = hud.results.branches("push", &repository, 20).await?;
    let branch = match given(&query.branch) {
        Some(branch) => branch,
        None => trunk(hud, &repository).await?.unwrap_or_default(),
    };
    let buckets = Buckets::of(window, hud.now());
    let mut model = TrendsModel {
        repository,
        repositories,
        branch,
        branches,
        window,
        from: buckets.from,
        to: buckets.to.min(end_of_minute(hud.now())),
        runner: given(&query.runner),
        job: given(&query.job),
        sort,
        is_reversed: order.is_reversed,
        all: given(&query.all).is_some(),
        red: RateView::from(Rate::default()),
        charts: vec![],
        runners: vec![],
        jobs: vec![],
        workflows: vec![],
    };
    add_red(hud, &mut model, &buckets).await?;
    add_times(hud, &mut model, &buckets).await?;
    add_reports(hud, &mut model, &buckets).await?;
    Ok(model)
}

/// How many commits of the branch were red.
async fn add_red(hud: &Hud, model: &mut TrendsModel, buckets: &Buckets) -> Result<(), PageError> {
    let span = (buckets.from, buckets.to);
    let (repository, branch) = (&model.repository, &model.branch);
    let commits: Vec<BranchCommitRuns> =
        hud.results.branch_commit_runs(repository, branch, span, MAX_COMMITS).await?;
    let mut sums = vec![Rate::default(); buckets.count];
    for commit in &commits {
        let Some(at) = buckets.at(commit.first_run_at) else { continue };
        sums[at].denominator += 1;
        sums[at].numerator += u64::from(commit.failed > 0);
    }
    let mut whole = Rate::default();
    sums.iter().for_each(|sum| whole += *sum);
    model.red = whole.into();
    let share = sums.iter().map(|sum| sum.value()).collect();
    let title = format!("Red commits of {}", if branch.is_empty() { "the branch" } else { branch });
    model.charts.push(buckets.plot(&title, Unit::Share, vec![line("red", share)]));
    Ok(())
}

async fn add_times(hud: &Hud, model: &mut TrendsModel, buckets: &Buckets) -> Result<(), PageError> {
    let ask = async |grouping: CiGrouping| {
        let query = CiTimesQuery {
            repository: model.repository.clone(),
            grouping,
            unit: buckets.unit,
            from: buckets.from,
            to: buckets.to,
            name: None,
        };
        hud.results.ci_times(&query).await
    };
    let (pulls, pushes) = (ask(CiGrouping::Pull).await?, ask(CiGrouping::Branch).await?);
    let (runners, jobs) = (ask(CiGrouping::Runner).await?, ask(CiGrouping::Job).await?);
    let of_pulls = percentiles(buckets, &pulls, None, |row| &row.run);
    let of_branch = percentiles(buckets, &pushes, None, |row| &row.run);
    model.charts.push(buckets.plot(
        "Time to signal: from a run's start to its end",
        Unit::Seconds,
        vec![
            line("pull requests P50", of_pulls.0),
            line("pull requests P95", of_pulls.1),
            line("branches P50", of_branch.0),
            line("branches P95", of_branch.1),
        ],
    ));
    let runner = model.runner.as_deref();
    let queue = percentiles(buckets, &runners, runner, |row| &row.queue);
    let title = format!("Queue of {}", runner.unwrap_or("all runners"));
    let lines = |(p50, p95)| vec![line("P50", p50), line("P95", p95)];
    model.charts.push(buckets.plot(&title, Unit::Seconds, lines(queue)));
    let job = model.job.as_deref();
    let run = match (job, runner) {
        (None, Some(_)) => percentiles(buckets, &runners, runner, |row| &row.run),
        _ => percentiles(buckets, &jobs, job, |row| &row.run),
    };
    let title = format!("Duration of {}", job.or(runner).unwrap_or("all jobs"));
    model.charts.push(buckets.plot(&title, Unit::Seconds, lines(run)));
    model.runners = rows(&runners, model.sort, model.is_reversed);
    model.jobs = rows(&jobs, model.sort, model.is_reversed);
    model.workflows = rows(&pulls, TimesSort::Run, false);
    Ok(())
}

type Percentiles = (Vec<Option<f64>>, Vec<Option<f64>>);

/// P50 and P95 of each bucket.
fn percentiles(
    buckets: &Buckets,
    times: &[CiTimes],
    name: Option<&str>,
    of: fn(&CiTimes) -> &DurationHistogram,
) -> Percentiles {
    let mut sums = vec![DurationHistogram::default(); buckets.count];
    for row in times.iter().filter(|row| name.is_none_or(|name| row.name == name)) {
        if let Some(at) = buckets.at(row.start) {
            sums[at].merge(of(row));
        }
    }
    let of_share = |share| sums.iter().map(|sum| sum.percentile(share)).collect();
    (of_share(0.5), of_share(0.95))
}

fn rows(times: &[CiTimes], sort: TimesSort, is_reversed: bool) -> Vec<TimesRow> {
    let mut sums: BTreeMap<&str, (u64, u64, DurationHistogram, DurationHistogram)> =
        BTreeMap::new();
    for row in times {
        let sum = sums.entry(&row.name).or_default();
        sum.0 += row.ended;
        sum.1 += row.failed;
        sum.2.merge(&row.queue);
        sum.3.merge(&row.run);
    }
    let row = |(name, (ended, failed, queue, run)): (
        &str,
        (u64, u64, DurationHistogram, DurationHistogram),
    )| TimesRow {
        name: name.to_owned(),
        ended,
        failed,
        queue_p50: queue.percentile(0.5),
        queue_p95: queue.percentile(0.95),
        run_p50: run.percentile(0.5),
        run_p95: run.percentile(0.95),
    };
    let mut rows: Vec<TimesRow> = sums.into_iter().map(row).collect();
    let key = |row: &TimesRow| match sort {
        TimesSort::Queue => row.queue_p95.unwrap_or(-1.0),
        TimesSort::Run => row.run_p95.unwrap_or(-1.0),
        TimesSort::Ended => row.ended as f64,
        TimesSort::Failed => row.failed as f64,
        TimesSort::Name => 0.0,
    };
    // Those without data are last either way.
    let has_data = |row: &TimesRow| key(row) >= 0.0;
    rows.sort_by(|a, b| {
        let order = key(b).total_cmp(&key(a)).then_with(|| a.name.cmp(&b.name));
        let order = if is_reversed { order.reverse() } else { order };
        has_data(b).cmp(&has_data(a)).then(order)
    });
    rows
}

/// Dispatches, reports and what backends' jobs came to. Days are computed once and kept; hours from the facts.
async fn add_reports(
    hud: &Hud,
    model: &mut TrendsModel,
    buckets: &Buckets,
) -> Result<(), PageError> {
    let mut sums: Vec<BTreeMap<String, ResultTotals>> = vec![BTreeMap::new(); buckets.count];
    if buckets.unit == CiUnit::Hour {
        let window = Window::all(buckets.from, buckets.to);
        let with_later_heads = Window { to: heads_until(window.to), ..window.clone() };
        let shared = facts(hud, &with_later_heads).await?;
        for ((hour, repo), totals) in totals_by_hour(&shared, &window, ShownEvents::Pr) {
            if let Some(sum) = sums.get_mut(hour as usize) {
                sum.insert(repo, totals);
            }
        }
    } else {
        let span = hud.span(&SpanQuery::starting(buckets.from))?;
        for (day, totals) in day_tallies(hud, &span, None).await? {
            let start = day.day.to_zoned(jiff::tz::TimeZone::UTC).map(|day| day.timestamp());
            let Some(at) = start.ok().and_then(|start| buckets.at(start)) else { continue };
            sums[at].entry(day.repo).or_default().add(&totals);
        }
    }
    let count = |of: fn(&ResultTotals) -> u64| -> Vec<Option<f64>> {
        sums.iter().map(|repos| Some(repos.values().map(of).sum::<u64>() as f64)).collect()
    };
    let dispatched = count(|totals| totals.statuses.values().sum());
    let silent = count(|totals| {
        totals.statuses.get(&DispatchFactStatus::NeverStarted).copied().unwrap_or_default()
    });
    let ended = count(|totals| totals.sums.outcomes.values().sum());
    let passed = count(|totals| {
        totals.sums.count(JobOutcome::Passed) + totals.sums.count(JobOutcome::PassedAfterRerun)
    });
    model.charts.push(buckets.plot(
        "Dispatches and reports",
        Unit::Count,
        vec![
            line("dispatches", dispatched),
            line("never answered", silent),
            line("jobs reported", ended),
            line("of them passed", passed),
        ],
    ));
    model.charts.push(backends(hud, buckets, &sums));
    Ok(())
}

/// The share of passed jobs of the backends with the highest levels.
fn backends(hud: &Hud, buckets: &Buckets, sums: &[BTreeMap<String, ResultTotals>]) -> Plot {
    let policy = (hud.policy)();
    let mut entries: Vec<(Level, String)> = policy
        .iter()
        .flat_map(|policy| policy.iter())
        .filter(|entry| entry.level >= Level::L2)
        .map(|entry| (entry.level, entry.repo.to_string()))
        .collect();
    entries.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    let lines = entries.into_iter().take(MAX_BACKENDS).map(|(level, repo)| {
        let key = repo.to_ascii_lowercase();
        let values = sums.iter().map(|repos| repos.get(&key)?.sums.job_pass().value()).collect();
        line(format!("{repo} ({})", level.as_str()), values)
    });
    buckets.plot("Jobs that pass, by backend", Unit::Share, lines.collect())
}

impl TrendsModel {
    fn url(&self, change: impl FnOnce(&mut TrendsLink)) -> String {
        let mut link = TrendsLink {
            repo: self.repository.clone(),
            branch: Some(self.branch.clone()).filter(|branch| !branch.is_empty()),
            window: self.window.to_owned(),
            runner: self.runner.clone(),
            job: self.job.clone(),
            sort: format!("{}{}", if self.is_reversed { "-" } else { "" }, self.sort.as_str()),
            all: self.all,
        };
        change(&mut link);
        address(
            "/trends",
            [
                ("repo", Some(&*link.repo)),
                ("branch", link.branch.as_deref()),
                ("window", Some(&*link.window)),
                ("runner", link.runner.as_deref()),
                ("job", link.job.as_deref()),
                ("sort", Some(&*link.sort)),
                ("all", link.all.then_some("1")),
            ],
        )
    }
}

struct TrendsLink {
    repo: String,
    branch: Option<String>,
    window: String,
    runner: Option<String>,
    job: Option<String>,
    sort: String,
    all: bool,
}

pub(crate) fn page(model: &TrendsModel, view: &View<'_>) -> Markup {
    view.shell(
        &format!("Trends of {}", model.repository),
        false,
        &html! {
            div.title { h1 { "Trends of " bdi { (model.repository) } }
                @if !model.branch.is_empty() { a href=(branch_path(&model.repository, &model.branch)) { "Grid of " bdi { (model.branch) } } }
            }
            (controls(model))
            dl.cards { div { dt { "Red commits of " @if model.branch.is_empty() { "the branch" } @else { bdi { (model.branch) } } } dd { (red_commits(&model.red)) " "
                // The grid has no time spans, so these aren't the commits that are counted.
                @if model.red.rate.numerator > 0 { a rel="nofollow" href=(format!("{}?rows=failing", branch_path(&model.repository, &model.branch))) { "newest on the grid" } }
            } }
                @if let Some(worst) = model.workflows.first() { div { dt { "Longest time to signal" } dd {
                    @match worst.run_p95 { Some(seconds) => (duration(seconds)), None => "no data" } " " span.detail { "P95 of " bdi { (worst.name) } }
                } } }
                @if let Some(worst) = longest_queue(&model.runners) { div { dt { "Longest queue" } dd {
                    @match worst.queue_p95 { Some(seconds) => (duration(seconds)), None => "no data" } " " span.detail { "P95 on " bdi { (worst.name) } }
                } } }
            }
            div.charts { @for chart in &model.charts { (chart.markup()) } }
            (table(model, CiGrouping::Runner))
            (table(model, CiGrouping::Job))
            p.detail { "A commit is red if one of its own runs failed in the newest attempt that has ended. The grid also shows re-runs that haven't ended, and failures of backends." }
            p.detail { "Each attempt of a job counts, but of a backend's job on a commit only the highest attempt of the newest run." }
            p.detail { "Percentiles are right within 5 %. Cancelled and skipped jobs don't count. A runner is named by the labels that a job asks for, or by its group if it names only that." }
        },
    )
}

/// The chart shows the share of however few commits.
fn red_commits(red: &RateView) -> Markup {
    let Rate { numerator, denominator } = red.rate;
    html! { @match red.value {
        None => span.muted { "no data" },
        Some(share) => {
            strong { (numerator) " of " (denominator) }
            @if red.known { " " span.detail { (percent(share)) } }
        }
    } }
}

fn longest_queue(runners: &[TimesRow]) -> Option<&TimesRow> {
    runners
        .iter()
        .filter(|row| row.queue_p95.is_some())
        .max_by(|a, b| a.queue_p95.unwrap_or(0.0).total_cmp(&b.queue_p95.unwrap_or(0.0)))
}

fn controls(model: &TrendsModel) -> Markup {
    html! {
        div.controls {
            nav.group aria-label="Time span" { @for window in WINDOWS {
                a aria-current=[(model.window == window).then_some("true")] href=(model.url(|link| link.window = window.to_owned())) { (window_name(window)) }
            } }
            span.detail { (time(model.from)) " – " (time(model.to)) " " (zone()) }
            form.span method="get" action="/trends" {
                label { "Repository " select name="repo" {
                    @if !model.repositories.contains(&model.repository) { option selected { (model.repository) } }
                    @for name in &model.repositories { option selected[*name == model.repository] { (name) } }
                } }
                @if !model.branches.is_empty() { " " label { "Branch " select name="branch" {
                    @if !model.branches.contains(&model.branch) { option selected { (model.branch) } }
                    @for name in &model.branches { option selected[*name == model.branch] { (name) } }
                } } }
                input type="hidden" name="window" value=(model.window);
                input type="hidden" name="sort" value=(format!("{}{}", if model.is_reversed { "-" } else { "" }, model.sort.as_str()));
                @if let Some(runner) = &model.runner { input type="hidden" name="runner" value=(runner); }
                @if let Some(job) = &model.job { input type="hidden" name="job" value=(job); }
                " " button { "Show" }
            }
            @if model.runner.is_some() || model.job.is_some() {
                a href=(model.url(|link| { link.runner = None; link.job = None; })) { "All runners and jobs" }
            }
        }
    }
}

/// The runners, or the jobs.
fn table(model: &TrendsModel, of: CiGrouping) -> Markup {
    let (title, heading, rows) = match of {
        CiGrouping::Runner => ("Runners", "Labels", &model.runners),
        _ => ("Jobs", "Job", &model.jobs),
    };
    let names = |name: &str| match of {
        CiGrouping::Runner => (Some(name.to_owned()), None),
        _ => (None, Some(name.to_owned())),
    };
    // Several names are counted as one if there are too many.
    let listed = |row: &TimesRow, only_failed: bool| {
        let (runner, job) = names(&row.name);
        let names = (runner.as_deref(), job.as_deref());
        (row.name != OTHER_NAMES)
            .then(|| address::jobs(&model.repository, model.window, names, only_failed))
    };
    let order = SortOrder { column: model.sort.as_str(), is_reversed: model.is_reversed };
    let sorted = |order: &SortOrder| {
        let sign = if order.is_reversed { "-" } else { "" };
        model.url(|link| link.sort = format!("{sign}{}", order.column))
    };
    let header = |sort: TimesSort, column: &'static str, title: &str| match sort {
        TimesSort::Name => order_header((column, heading), &order, Sorted::Ascending, sorted),
        _ => order_header((column, title), &order, Sorted::Descending, sorted),
    };
    let shown = if model.all { rows.len() } else { PER_PAGE };
    html! {
        h2 { (title) }
        @if rows.is_empty() { p.note { "Nothing ended in this span." } } @else {
            div.scroll tabindex="0" role="region" aria-label=(title) { table.stack {
                thead { tr {
                    @for (sort, column, title) in TimesSort::ALL { (header(sort, column, title)) }
                } }
                tbody { @for row in rows.iter().take(shown) { tr {
                    th scope="row" { a rel="nofollow" href=(model.url(|link| (link.runner, link.job) = names(&row.name))) { bdi { (row.name) } } }
                    td data-label="Jobs" { (count_link(row.ended, listed(row, false).as_deref())) }
                    td data-label="Failed" { (count_link(row.failed, listed(row, true).filter(|_| row.failed > 0).as_deref())) " " span.detail { (percent(row.failed as f64 / row.ended.max(1) as f64)) } }
                    td data-label="Queue P95" { (seconds(row.queue_p95)) span.detail { "P50 " (seconds(row.queue_p50)) } }
                    td data-label="Duration P95" { (seconds(row.run_p95)) span.detail { "P50 " (seconds(row.run_p50)) } }
                } } }
            } }
            @if rows.len() > shown { p.pager { a rel="nofollow" href=(model.url(|link| link.all = true)) { "All " (rows.len()) } } }
        }
    }
}

fn seconds(seconds: Option<f64>) -> Markup {
    html! { @match seconds { Some(seconds) => (duration(seconds)), None => span.muted { "no data" } } }
}
