//! `/reported`: the jobs that backends reported one by one, by what they came to. The counts of the overview and of a
//! backend's page lead here.

use std::collections::BTreeMap;

use crcr_domain::results::facts::AttemptFact;
use crcr_domain::results::triage::TriageCategory;
use crcr_domain::results::{
    BlamedJobs, ExpectedEnd, ExpectedJob, JobOfRecord, JobOutcome, ResultTotals, expected_jobs,
    jobs_by_day,
};
use crcr_results::Window;
use crcr_results::retention::{day_number, heads_until, midnight};
use jiff::Timestamp;
use maud::{Markup, html};
use serde::{Deserialize, Serialize};

use super::EVENTS;
use crate::address::{self, address};
use crate::context::{Hud, PageError, repo_parameter};
use crate::layout::{ago, commit_of, external_link, outcome, outcome_parts, time, zone};
use crate::model::days::{blame, day_tallies, facts};
use crate::query::{ShownEvents, TimeQuery, TimeSpan, given, parse_time};
use crate::view::View;

const PER_PAGE: usize = 100;
/// Days that are read for a page, of those that have such jobs; older ones are on the next.
const MAX_DAYS_READ: usize = 7;
/// The same for one backend: all days of the longest window, so that no count leads to a page without rows.
const MAX_DAYS_OF_BACKEND: usize = 31;
/// Rows of one moment that pages are turned through.
const MAX_SKIP: usize = 100_000;

/// `?kind=KIND&backend=OWNER/REPO&test=NAME&file=PATH&window=24h|7d|30d` or `from=…&to=…`, `events=pr|nightly`, and
/// `before=TIME&skip=N` for older ones. A kind is an outcome such as `test_failed`, or `running`, `upstream` (it failed
/// because of upstream), `expected_seen`, `expected_not_seen` or `expected_missing`.
#[derive(Debug, Clone, Default, Deserialize, schemars::JsonSchema)]
pub(crate) struct ReportedQuery {
    #[serde(flatten)]
    span: TimeQuery,
    kind: Option<String>,
    backend: Option<String>,
    test: Option<String>,
    file: Option<String>,
    before: Option<String>,
    #[schemars(with = "Option<u64>")]
    skip: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReportedKind {
    Running,
    /// Failed because of upstream.
    Upstream,
    Ended(JobOutcome),
    /// Fails on purpose.
    Expected(ExpectedEnd),
}

impl ReportedKind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Upstream => "upstream",
            Self::Ended(outcome) => outcome.as_str(),
            Self::Expected(end) => end.as_str(),
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        let known = [Self::Running, Self::Upstream].into_iter().find(|kind| kind.as_str() == name);
        known
            .or_else(|| JobOutcome::from_name(name).map(Self::Ended))
            .or_else(|| ExpectedEnd::from_name(name).map(Self::Expected))
    }

    fn title(self) -> String {
        match self {
            Self::Running => outcome_parts(None).2.to_owned(),
            Self::Upstream => "failed because of upstream".to_owned(),
            Self::Ended(outcome) => outcome_parts(Some(outcome)).2.to_owned(),
            Self::Expected(end) => format!("fail on purpose: {}", expected_word(end)),
        }
    }

    /// How many jobs of a day may be of this kind.
    fn at_most(self, totals: &ResultTotals) -> u64 {
        match self {
            Self::Running => totals.sums.running,
            Self::Upstream => totals.sums.count(JobOutcome::TestFailed),
            Self::Ended(outcome) => totals.sums.count(outcome),
            Self::Expected(end) => totals.expected.count(end),
        }
    }
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct ReportedModel {
    pub(crate) upstream: String,
    pub(crate) span: TimeSpan,
    /// As the query names it.
    pub(crate) kind: Option<&'static str>,
    #[serde(skip)]
    asked: Option<ReportedKind>,
    pub(crate) backend: Option<String>,
    /// Only the jobs in which this test failed.
    pub(crate) test: Option<String>,
    pub(crate) file: Option<String>,
    /// How many jobs of the span are of each kind; only the backend's, if one is named.
    pub(crate) counts: BTreeMap<&'static str, u64>,
    /// The newest dispatches first.
    pub(crate) jobs: Vec<ReportedJob>,
    /// Older jobs were dispatched before this time, or at it and come after `older_skip` others.
    pub(crate) older: Option<Timestamp>,
    pub(crate) older_skip: usize,
    #[serde(skip)]
    before: Option<Timestamp>,
    #[serde(skip)]
    skip: usize,
}

#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub(crate) struct ReportedJob {
    /// When its commit was dispatched.
    pub(crate) at: Timestamp,
    pub(crate) repo: String,
    /// `workflow / job`.
    pub(crate) name: String,
    pub(crate) upstream: String,
    /// In GitHub's spelling, or `nightly`; `None` if nothing was reported.
    pub(crate) event: Option<String>,
    pub(crate) pull_request: Option<u64>,
    /// Empty if no commit of upstream is known.
    pub(crate) head_sha: String,
    pub(crate) run_id: String,
    /// `None` while it runs, and if nothing was reported.
    pub(crate) outcome: Option<JobOutcome>,
    /// How a job that fails on purpose ended.
    pub(crate) expected: Option<ExpectedEnd>,
    pub(crate) url: Option<String>,
    /// What the failed test says, or why it is upstream's failure.
    pub(crate) why: Option<String>,
}

impl ReportedJob {
    fn new(name: String, row: &AttemptFact) -> Self {
        Self {
            at: row.dispatched_at,
            repo: row.repo.clone(),
            name,
            upstream: row.upstream.clone(),
            event: Some(row.event.as_str().to_owned()),
            pull_request: row.pull_request,
            head_sha: row.head_sha.clone(),
            run_id: row.run_id.clone(),
            outcome: None,
            expected: None,
            url: row.details.url.clone(),
            why: None,
        }
    }

    fn expected(job: &ExpectedJob<'_>, upstream: &str) -> Self {
        let name =
            job.job.map_or(job.workflow.to_owned(), |name| format!("{} / {name}", job.workflow));
        let row = match job.record {
            Some(row) => Self::new(name, row),
            None => Self {
                at: job.at,
                repo: job.repo.to_owned(),
                name,
                upstream: upstream.to_owned(),
                event: None,
                pull_request: None,
                head_sha: job.commit.to_owned(),
                run_id: String::new(),
                outcome: None,
                expected: None,
                url: None,
                why: None,
            },
        };
        Self { expected: Some(job.end), ..row }
    }
}

pub(crate) async fn build(
    hud: &Hud,
    (): (),
    query: ReportedQuery,
) -> Result<ReportedModel, PageError> {
    let wrong = |text: &str| PageError::Query(text.to_owned());
    let kind = given(query.kind.as_deref()).map(|kind| {
        ReportedKind::from_name(&kind).ok_or_else(|| {
            let outcomes = JobOutcome::ALL.map(JobOutcome::as_str).join("`, `");
            let ends = ExpectedEnd::ALL.map(ExpectedEnd::as_str).join("`, `");
            let text =
                format!("`kind` has to be one of `running`, `upstream`, `{outcomes}`, `{ends}`");
            PageError::Query(text)
        })
    });
    let backend = repo_parameter("backend", query.backend.as_deref())?;
    let before = given(query.before.as_deref()).as_deref().map(parse_time);
    let skip = given(query.skip.as_deref()).map_or(Ok(0), |skip| {
        let known = skip.parse().ok().filter(|skip| *skip <= MAX_SKIP);
        known.ok_or_else(|| wrong("`skip` has to be a number, as links to older jobs have it"))
    })?;
    let asked = kind.transpose()?;
    let mut model = ReportedModel {
        upstream: hud.upstream.to_string(),
        span: hud.span(&query.span.into())?,
        kind: asked.map(ReportedKind::as_str),
        asked,
        backend: backend.map(|name| name.to_string()),
        test: query.test.filter(|name| !name.trim().is_empty()),
        file: query.file.filter(|file| !file.trim().is_empty()),
        counts: BTreeMap::new(),
        jobs: vec![],
        older: None,
        older_skip: 0,
        before: before.transpose().map_err(PageError::Query)?,
        skip,
    };
    add_jobs(hud, &mut model).await?;
    Ok(model)
}

async fn add_jobs(hud: &Hud, model: &mut ReportedModel) -> Result<(), PageError> {
    // By day, the backends that have such jobs.
    let mut days: BTreeMap<i64, Vec<String>> = BTreeMap::new();
    for (day, totals) in day_tallies(hud, &model.span, model.backend.as_deref()).await? {
        let all = totals.sums.running + totals.sums.outcomes.values().sum::<u64>();
        model.count(&totals);
        if model.asked.map_or(all, |kind| kind.at_most(&totals)) > 0 {
            days.entry(day_number(&day)).or_default().push(day.repo);
        }
    }
    days.retain(|day, _| model.begins_before(midnight(*day)));
    let mut found: Vec<ReportedJob> = vec![];
    let max_days = if model.backend.is_some() { MAX_DAYS_OF_BACKEND } else { MAX_DAYS_READ };
    for _ in 0..max_days {
        if found.len() > PER_PAGE {
            break;
        }
        let Some((day, repos)) = days.pop_last() else { break };
        found.extend(jobs_of(hud, model, day, repos).await?);
        (model.older, model.older_skip) = (Some(midnight(day)).filter(|_| !days.is_empty()), 0);
    }
    if found.len() > PER_PAGE {
        found.truncate(PER_PAGE);
        let last = found[PER_PAGE - 1].at;
        let tied = found.iter().filter(|job| job.at == last).count();
        let skipped = if model.before == Some(last) { model.skip } else { 0 };
        (model.older, model.older_skip) = (Some(last), skipped + tied);
    }
    model.jobs = found;
    Ok(())
}

/// The jobs of one day that are listed, the newest first.
async fn jobs_of(
    hud: &Hud,
    model: &ReportedModel,
    day: i64,
    repos: Vec<String>,
) -> Result<Vec<ReportedJob>, PageError> {
    let span = &model.span;
    let last = if span.until_now { Timestamp::MAX } else { span.to };
    let window =
        Window::all(midnight(day).max(span.from), midnight(day + 1).min(last)).of_repos(repos);
    let later = Window { from: window.to, to: heads_until(window.to), ..window.clone() };
    let shared = facts(hud, &Window { to: later.to, ..window.clone() }).await?;
    let blamed = match model.asked {
        Some(ReportedKind::Upstream) => blame(hud, &facts(hud, &window).await?).await?,
        _ => BlamedJobs::default(),
    };
    let attempts = shared.attempts(&window);
    let dispatches: Vec<_> = shared.dispatches(&window).collect();
    let days = jobs_by_day(attempts, dispatches.iter().copied(), shared.dispatches(&later));
    let is_nightly = span.events == ShownEvents::Nightly;
    let mut found = vec![];
    for (_, (jobs, dispatches)) in days.into_iter().filter(|(day, _)| day.nightly == is_nightly) {
        if let Some(ReportedKind::Expected(end)) = model.asked {
            let jobs = expected_jobs(&jobs, &dispatches);
            let listed = jobs.iter().filter(|job| job.end == end);
            found.extend(listed.map(|job| ReportedJob::expected(job, &model.upstream)));
        } else {
            let counted = jobs.iter().filter(|job| job.record.expected.is_none());
            found.extend(counted.filter_map(|job| model.listed(job, &blamed)));
        }
    }
    found.sort_by(|a, b| {
        (b.at, &a.repo, &a.head_sha, &a.name, &a.run_id).cmp(&(
            a.at,
            &b.repo,
            &b.head_sha,
            &b.name,
            &b.run_id,
        ))
    });
    if let Some(before) = model.before {
        let tied = found.iter().filter(|job| job.at == before).count();
        let mut skip = if model.skip > 0 { model.skip } else { tied };
        found.retain(|job| {
            let is_shown = job.at < before || job.at == before && skip == 0;
            skip -= usize::from(job.at == before && skip > 0);
            is_shown
        });
    }
    Ok(found)
}

impl ReportedModel {
    fn begins_before(&self, day: Timestamp) -> bool {
        self.before.is_none_or(|before| day < before || self.skip > 0 && day == before)
    }

    fn listed(&self, job: &JobOfRecord<'_>, blamed: &BlamedJobs) -> Option<ReportedJob> {
        let mut row =
            ReportedJob { outcome: job.outcome, ..ReportedJob::new(job.name(), job.record) };
        match self.asked {
            None | Some(ReportedKind::Expected(_)) => {}
            Some(ReportedKind::Running) if job.outcome.is_none() => {}
            Some(ReportedKind::Ended(outcome)) if job.outcome == Some(outcome) => {}
            Some(ReportedKind::Upstream) if job.outcome == Some(JobOutcome::TestFailed) => {
                let verdict = blamed.verdict(job.record)?;
                row.why = Some(verdict.summary.clone());
                return (verdict.category == TriageCategory::Upstream).then_some(row);
            }
            Some(_) => return None,
        }
        if let Some(name) = &self.test {
            let is_asked = |file: &Option<String>| self.file.is_none() || *file == self.file;
            let mut tests = job.record.details.failed_tests.iter();
            let test = tests.find(|test| test.name == *name && is_asked(&test.file))?;
            row.why.clone_from(&test.message);
        }
        Some(row)
    }

    fn count(&mut self, totals: &ResultTotals) {
        let ended = totals.sums.outcomes.iter().map(|(end, count)| (end.as_str(), *count));
        let expected = totals.expected.nonzero().into_iter().map(|(end, n)| (end.as_str(), n));
        let running = std::iter::once((ReportedKind::Running.as_str(), totals.sums.running));
        for (kind, count) in running.chain(ended).chain(expected).filter(|(_, count)| *count > 0) {
            *self.counts.entry(kind).or_default() += count;
        }
    }

    /// The newest jobs that are listed.
    fn link(&self) -> ReportedLink<'_> {
        ReportedLink {
            kind: self.kind,
            backend: self.backend.as_deref(),
            test: self.test.as_deref(),
            file: self.file.as_deref(),
            window: self.span.window,
            ends: (self.span.from, self.span.to),
            events: self.span.events,
            older: None,
        }
    }

    fn older_url(&self) -> Option<String> {
        let older = Some((self.older?, self.older_skip));
        Some(ReportedLink { older, ..self.link() }.address())
    }
}

/// What a link of the page asks for.
struct ReportedLink<'a> {
    kind: Option<&'a str>,
    backend: Option<&'a str>,
    test: Option<&'a str>,
    file: Option<&'a str>,
    /// `None`: from one time to another.
    window: Option<&'a str>,
    ends: (Timestamp, Timestamp),
    events: ShownEvents,
    /// Before which time, and how many of that time are skipped.
    older: Option<(Timestamp, usize)>,
}

impl ReportedLink<'_> {
    fn address(&self) -> String {
        let (from, to) = (self.ends.0.to_string(), self.ends.1.to_string());
        let (before, skip) = self.older.unzip();
        let before = before.map(|before| before.to_string());
        let skip = skip.filter(|skip| *skip > 0).map(|skip| skip.to_string());
        let is_given = self.window.is_none();
        address(
            "/reported",
            [
                ("kind", self.kind),
                ("backend", self.backend),
                ("test", self.test),
                ("file", self.file),
                ("window", self.window),
                ("from", Some(&*from).filter(|_| is_given)),
                ("to", Some(&*to).filter(|_| is_given)),
                ("events", Some(self.events.as_str())),
                ("before", before.as_deref()),
                ("skip", skip.as_deref()),
            ],
        )
    }
}

/// The address of the jobs of a span of which a page shows the count, of one backend or of all. Spans that are given by
/// their ends have none: each minute would have addresses of its own.
pub(crate) fn link(kind: ReportedKind, backend: Option<&str>, span: &TimeSpan) -> Option<String> {
    link_with(&[("kind", Some(kind.as_str())), ("backend", backend)], span)
}

/// The address of the jobs of a backend between two times.
pub(crate) fn link_between(
    kind: ReportedKind,
    backend: &str,
    (from, to): (Timestamp, Timestamp),
) -> String {
    let (kind, from, to) = (kind.as_str(), from.to_string(), to.to_string());
    let times = [("from", Some(&*from)), ("to", Some(&*to))];
    address(
        "/reported",
        [("kind", Some(kind)), ("backend", Some(backend))].into_iter().chain(times),
    )
}

/// The address of the jobs of a backend in which a test failed.
pub(crate) fn link_of_test(
    backend: &str,
    (test, file): (&str, Option<&str>),
    span: &TimeSpan,
) -> Option<String> {
    link_with(&[("backend", Some(backend)), ("test", Some(test)), ("file", file)], span)
}

/// The address of the jobs of a backend in which a test failed, as long ago as a window goes. The page of the backend
/// has the same, so that crawlers get no other.
pub(crate) fn link_of_failures(backend: &str, (test, file): (&str, Option<&str>)) -> String {
    let asked = [("backend", Some(backend)), ("test", Some(test)), ("file", file)];
    let times = [("window", Some("30d")), ("events", Some(ShownEvents::Pr.as_str()))];
    address("/reported", asked.into_iter().chain(times))
}

fn link_with(asked: &[(&str, Option<&str>)], span: &TimeSpan) -> Option<String> {
    let times = [("window", Some(span.window?)), ("events", Some(span.events.as_str()))];
    Some(address("/reported", asked.iter().copied().chain(times)))
}

pub(crate) fn expected_word(end: ExpectedEnd) -> &'static str {
    match end {
        ExpectedEnd::Seen => "seen",
        ExpectedEnd::NotSeen => "not seen",
        ExpectedEnd::Missing => "missing",
    }
}

pub(crate) fn page(model: &ReportedModel, view: &View<'_>) -> Markup {
    view.shell(
        "Reported jobs",
        false,
        &html! {
            div.title {
                h1 { "Reported jobs" @if let Some(backend) = &model.backend { " of " a href=(format!("/crcr/{backend}")) { bdi { (backend) } } } }
                span.detail { (time(model.span.from)) " – " (time(model.span.to)) " " (zone()) }
            }
            (controls(model))
            p.detail {
                @match model.asked {
                    None => "All",
                    Some(ReportedKind::Upstream) => "Failed because of upstream",
                    Some(ReportedKind::Expected(_)) => "Jobs that fail on purpose, such as those of a canary",
                    Some(ReportedKind::Running) => "running",
                    Some(ReportedKind::Ended(outcome)) => (outcome_parts(Some(outcome)).2),
                }
                @if let Some(test) = &model.test { ", in which " bdi { (test) } " failed" }
                " · the newest dispatches first"
            }
            @if !model.jobs.is_empty() { (table(model)) }
            @else if let Some(older) = model.older {
                p.note role="status" { "No such job was dispatched since " (time(older)) " " (zone()) ". There may be older ones." }
            } @else { p.note role="status" { "No such job in these days." } }
            @if let Some(older) = model.older_url() { p.pager { a rel="nofollow" href=(older) { "Older" } } }
        },
    )
}

fn controls(model: &ReportedModel) -> Markup {
    let is = |chosen: bool| chosen.then_some("true");
    let all = ReportedLink { backend: None, test: None, file: None, ..model.link() };
    html! {
        nav.controls aria-label="Time span and events" {
            span.group { @for (window, name) in [("24h", "24 h"), ("7d", "7 d"), ("30d", "30 d")] {
                a rel="nofollow" aria-current=[is(model.span.window == Some(window))]
                    href=(ReportedLink { window: Some(window), ..model.link() }.address()) { (name) }
            } }
            // Other pages link here with the ends of a span, which change each minute. If those pages had filters, a
            // crawler would never end.
            @if model.span.window.is_some() {
                span.group { @for (events, name) in EVENTS {
                    a rel="nofollow" aria-current=[is(model.span.events == events)]
                        href=(ReportedLink { events, ..model.link() }.address()) { (name) }
                } }
                @if model.backend.is_some() || model.test.is_some() {
                    a rel="nofollow" href=(all.address()) { "All backends" @if model.test.is_some() { " and tests" } }
                }
            } @else { span.detail { @for (events, name) in EVENTS { @if model.span.events == events { (name) } } } }
        }
        @if model.test.is_none() && model.span.window.is_some() { (kinds(model)) }
    }
}

/// How many jobs are of each kind: a link to those.
fn kinds(model: &ReportedModel) -> Markup {
    let link = |kind| ReportedLink { kind, ..model.link() }.address();
    let is = |kind: Option<&str>| (model.kind == kind).then_some("true");
    html! {
        ul.chips aria-label="By what they came to" {
            li.muted { a rel="nofollow" aria-current=[is(None)] href=(link(None)) { "all" } }
            @for (kind, count) in &model.counts {
                li.muted { a rel="nofollow" aria-current=[is(Some(kind))] href=(link(Some(kind))) {
                    strong { (count) } " " (ReportedKind::from_name(kind).map(ReportedKind::title).unwrap_or_default())
                } }
            }
            @if model.counts.contains_key(JobOutcome::TestFailed.as_str()) {
                @let kind = ReportedKind::Upstream;
                li.muted { a rel="nofollow" aria-current=[is(Some(kind.as_str()))] href=(link(Some(kind.as_str()))) { (kind.title()) } }
            }
        }
    }
}

fn table(model: &ReportedModel) -> Markup {
    let has_why = model.jobs.iter().any(|job| job.why.is_some());
    html! {
        div.scroll tabindex="0" role="region" aria-label="Jobs" { table.stack {
            thead { tr {
                th scope="col" { "Job" } @if model.backend.is_none() { th scope="col" { "Backend" } }
                th scope="col" aria-sort="descending" { "Dispatched" } th scope="col" { "Of" } th scope="col" { "Commit" } th scope="col" { "Result" }
                @if has_why { th scope="col" { "Why" } }
            } }
            tbody { @for job in &model.jobs { tr {
                th scope="row" { @match &job.url { Some(url) => (external_link(url, &job.name)), None => bdi { (job.name) } } }
                @if model.backend.is_none() { td data-label="Backend" { a rel="nofollow" href=(format!("/crcr/{}{}", job.repo, model.span.unfiltered().address())) { bdi { (job.repo) } } } }
                td data-label="Dispatched" { (ago(job.at)) }
                td data-label="Of" { @match (job.pull_request, &job.event) {
                    (Some(number), _) => a href=(address::pull(&job.upstream, number)) { "#" (number) },
                    (None, Some(event)) => (event.replace('_', " ")),
                    (None, None) => span.muted { "–" },
                } }
                td data-label="Commit" { @if job.head_sha.is_empty() { "run " bdi { (job.run_id) } } @else { (commit_of(&job.upstream, &model.upstream, &job.head_sha)) } }
                td data-label="Result" { @match job.expected {
                    Some(end) => (expected_word(end)),
                    None => (outcome(job.outcome)),
                } }
                @if has_why { td.message data-label="Why" { bdi { (job.why.as_deref().unwrap_or("–")) } } }
            } } }
        } }
    }
}
