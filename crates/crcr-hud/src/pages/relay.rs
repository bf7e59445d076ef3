//! `/relay`: the dispatches and the reports of a time span one by one, by what became of them. The counts of other pages
//! lead here.

use std::collections::BTreeMap;

use crcr_domain::RepoName;
use crcr_domain::results::facts::{CallbackOutcome, DispatchFact, DispatchFactStatus};
use crcr_results::Window;
use crcr_results::retention::{day_number, midnight};
use jiff::Timestamp;
use maud::{Markup, html};
use serde::{Deserialize, Serialize};

use crate::address::{self, address};
use crate::context::{Hud, PageError, repo_parameter};
use crate::layout::{ago, commit_of, duration, time, zone};
use crate::model::days::{day_tallies, facts, reports_by_day};
use crate::query::{ShownEvents, TimeQuery, TimeSpan, given, parse_time};
use crate::view::View;

/// Rows on a page. Rows of the same moment aren't parted: one event is dispatched to many backends.
const PER_PAGE: usize = 100;
/// Reports of one moment that are read beyond those of a page.
const MAX_TIED: usize = 200;
/// Days that are read for a page, of those that have such rows; older ones are on the next.
const MAX_DAYS_READ: usize = 7;
/// All reports that weren't valid.
const REFUSED: &str = "refused";

/// `?list=dispatches|reports&kind=KIND&backend=OWNER/REPO&window=24h|7d|30d` or `from=…&to=…`, `events=pr|nightly`, and
/// `before=TIME` for older rows. A kind is what became of a dispatch or a report, such as `dead` or `bad_token`, or
/// `refused` for all reports that weren't valid.
#[derive(Debug, Clone, Default, Deserialize, schemars::JsonSchema)]
pub(crate) struct RelayQuery {
    #[serde(flatten)]
    span: TimeQuery,
    list: Option<String>,
    kind: Option<String>,
    backend: Option<String>,
    before: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RelayList {
    Dispatches,
    Reports,
}

crcr_domain::names! { RelayList { Dispatches "dispatches", Reports "reports" } }

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct RelayModel {
    pub(crate) upstream: String,
    pub(crate) list: RelayList,
    pub(crate) kind: Option<String>,
    pub(crate) backend: Option<String>,
    pub(crate) span: TimeSpan,
    pub(crate) before: Option<Timestamp>,
    /// How many of the span are of each kind: dispatches of the backend, if one is named, and reports of all.
    pub(crate) counts: BTreeMap<&'static str, u64>,
    pub(crate) dispatches: Vec<ListedDispatch>,
    pub(crate) reports: Vec<ListedReport>,
    /// Older rows are before this time.
    pub(crate) older: Option<Timestamp>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct ListedDispatch {
    pub(crate) at: Timestamp,
    pub(crate) repo: String,
    pub(crate) upstream: String,
    pub(crate) event: String,
    pub(crate) pull_request: Option<u64>,
    pub(crate) head_sha: String,
    pub(crate) status: DispatchFactStatus,
    /// Until GitHub accepted it.
    pub(crate) seconds: Option<f64>,
    pub(crate) last_error: Option<String>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct ListedReport {
    pub(crate) at: Timestamp,
    pub(crate) outcome: CallbackOutcome,
    /// HTTP status.
    pub(crate) answer: u16,
    /// The backend; `None` for a repository that isn't one, about which nothing else is shown.
    pub(crate) repo: Option<String>,
    pub(crate) job: Option<String>,
    pub(crate) detail: Option<String>,
}

pub(crate) async fn build(hud: &Hud, (): (), query: RelayQuery) -> Result<RelayModel, PageError> {
    let span = hud.span(&query.span.into())?;
    let list = match given(query.list.as_deref()).as_deref() {
        None | Some("dispatches") => RelayList::Dispatches,
        Some("reports") => RelayList::Reports,
        Some(_) => {
            return Err(PageError::Query("`list` has to be `dispatches` or `reports`".to_owned()));
        }
    };
    let backend = repo_parameter("backend", query.backend.as_deref())?;
    let before = given(query.before.as_deref()).as_deref().map(parse_time);
    let mut model = RelayModel {
        upstream: hud.upstream.to_string(),
        list,
        kind: given(query.kind.as_deref()),
        backend: backend.map(|name| name.to_string()),
        span,
        before: before.transpose().map_err(PageError::Query)?,
        counts: BTreeMap::new(),
        dispatches: vec![],
        reports: vec![],
        older: None,
    };
    match list {
        RelayList::Dispatches => add_dispatches(hud, &mut model).await?,
        RelayList::Reports => add_reports(hud, &mut model).await?,
    }
    Ok(model)
}

impl RelayModel {
    /// The time until which rows are listed. Rows that a backend's file holds back have a time in the future.
    fn end(&self) -> Timestamp {
        let last = if self.span.until_now { Timestamp::MAX } else { self.span.to };
        self.before.unwrap_or(Timestamp::MAX).min(last)
    }

    /// The part of a day that is listed.
    fn window(&self, day: i64) -> Window {
        let window =
            Window::all(midnight(day).max(self.span.from), midnight(day + 1).min(self.end()));
        match &self.backend {
            Some(backend) => window.of_repos(vec![backend.clone()]),
            None => window,
        }
    }
}

async fn add_dispatches(hud: &Hud, model: &mut RelayModel) -> Result<(), PageError> {
    let kind = match &model.kind {
        None => None,
        Some(kind) => Some(DispatchFactStatus::from_name(kind).ok_or_else(|| {
            let names = DispatchFactStatus::ALL.map(DispatchFactStatus::as_str).join("`, `");
            PageError::Query(format!("`kind` has to be one of `{names}`"))
        })?),
    };
    // By day, the backends that have such dispatches.
    let mut days: BTreeMap<i64, Vec<String>> = BTreeMap::new();
    for (day, totals) in day_tallies(hud, &model.span, model.backend.as_deref()).await? {
        for (status, count) in &totals.statuses {
            *model.counts.entry(status.as_str()).or_default() += count;
        }
        if totals.statuses.keys().any(|status| kind.is_none_or(|kind| kind == *status)) {
            days.entry(day_number(&day)).or_default().push(day.repo);
        }
    }
    let end = model.end();
    let mut left: Vec<i64> = days.keys().copied().filter(|day| midnight(*day) < end).collect();
    let mut found: Vec<DispatchFact> = vec![];
    for _ in 0..MAX_DAYS_READ {
        if found.len() > PER_PAGE {
            break;
        }
        let Some(day) = left.pop() else { break };
        let window = model.window(day).of_repos(days.remove(&day).unwrap_or_default());
        let shared = facts(hud, &window).await?;
        let listed = shared.dispatches(&window).filter(|sent| {
            kind.is_none_or(|kind| kind == sent.status) && model.span.events.includes(&sent.event)
        });
        let mut listed: Vec<DispatchFact> = listed.cloned().collect();
        listed.sort_by(|a, b| (b.enqueued_at, &a.repo).cmp(&(a.enqueued_at, &b.repo)));
        found.extend(listed);
        model.older = Some(midnight(day)).filter(|_| !left.is_empty());
    }
    let shown = page_end(&found, |sent| sent.enqueued_at);
    if shown < found.len() {
        model.older = Some(found[shown - 1].enqueued_at);
        found.truncate(shown);
    }
    model.dispatches = found
        .into_iter()
        .map(|sent| ListedDispatch {
            at: sent.enqueued_at,
            event: sent.event.as_str().to_owned(),
            seconds: sent.sent_at.map(|at| at.duration_since(sent.enqueued_at).as_secs_f64()),
            repo: sent.repo,
            upstream: sent.upstream,
            pull_request: sent.pull_request,
            head_sha: sent.head_sha,
            status: sent.status,
            last_error: sent.last_error,
        })
        .collect();
    Ok(())
}

async fn add_reports(hud: &Hud, model: &mut RelayModel) -> Result<(), PageError> {
    let kinds: Vec<CallbackOutcome> = match model.kind.as_deref() {
        None => CallbackOutcome::ALL.to_vec(),
        Some(REFUSED) => {
            CallbackOutcome::ALL.into_iter().filter(|outcome| !outcome.is_valid()).collect()
        }
        Some(kind) => vec![CallbackOutcome::from_name(kind).ok_or_else(|| {
            let names = CallbackOutcome::ALL.map(CallbackOutcome::as_str).join("`, `");
            PageError::Query(format!("`kind` has to be `{REFUSED}` or one of `{names}`"))
        })?],
    };
    let mut days = vec![];
    for (day, summary) in reports_by_day(hud, &model.span).await? {
        for (outcome, count) in &summary.outcomes {
            *model.counts.entry(*outcome).or_default() += count;
        }
        if kinds.iter().any(|kind| summary.outcomes.contains_key(kind.as_str())) {
            days.push(day);
        }
    }
    let end = model.end();
    days.retain(|day| midnight(*day) < end);
    days.sort_unstable();
    let mut found = vec![];
    for _ in 0..MAX_DAYS_READ {
        if found.len() > PER_PAGE {
            break;
        }
        let Some(day) = days.pop() else { break };
        let window = model.window(day);
        found.extend(hud.results.newest_callbacks(&window, &kinds, PER_PAGE + MAX_TIED).await?);
        model.older = Some(midnight(day)).filter(|_| !days.is_empty());
    }
    let shown = page_end(&found, |report| report.at);
    if shown < found.len() {
        model.older = Some(found[shown - 1].at);
        found.truncate(shown);
    }
    model.reports = found
        .into_iter()
        .map(|report| {
            // Everybody can send a report, and a private repository's name isn't for everybody.
            let name = report
                .repo
                .filter(|name| RepoName::new(name).is_ok_and(|name| hud.entry_of(&name).is_some()));
            let is_known = name.is_some();
            ListedReport {
                at: report.at,
                outcome: report.outcome,
                answer: report.answer,
                repo: name,
                job: report.job.filter(|_| is_known),
                detail: report.detail.filter(|_| is_known),
            }
        })
        .collect();
    Ok(())
}

/// How many of these rows, the newest first, are on a page.
fn page_end<T>(rows: &[T], at: impl Fn(&T) -> Timestamp) -> usize {
    let Some(last) = rows.get(PER_PAGE - 1) else { return rows.len() };
    PER_PAGE + rows[PER_PAGE..].iter().take_while(|row| at(row) == at(last)).count()
}

/// The address of the dispatches or reports of a span of which a page shows the count. Spans that are given by their
/// ends have none: each minute would have addresses of its own.
pub(crate) fn link(list: RelayList, kind: Option<&str>, span: &TimeSpan) -> Option<String> {
    let window = span.window?;
    Some(url(list, kind, None, window, span.events))
}

/// The address of one backend's reports.
pub(crate) fn reports_of_backend(repo: &str, kind: &str, window: &str) -> String {
    url(RelayList::Reports, Some(kind), Some(repo), window, ShownEvents::Pr)
}

fn url(
    list: RelayList,
    kind: Option<&str>,
    backend: Option<&str>,
    window: &str,
    events: ShownEvents,
) -> String {
    address(
        "/relay",
        [
            ("list", Some(list.as_str())),
            ("kind", kind),
            ("backend", backend),
            ("window", Some(window)),
            ("events", Some(events.as_str()).filter(|_| events != ShownEvents::Pr)),
        ],
    )
}

impl RelayModel {
    fn url(&self, list: RelayList, kind: Option<&str>, before: Option<Timestamp>) -> String {
        let (from, to) = (self.span.from.to_string(), self.span.to.to_string());
        let before = before.map(|before| before.to_string());
        let is_given = self.span.window.is_none();
        address(
            "/relay",
            [
                ("list", Some(list.as_str())),
                ("kind", kind),
                ("backend", self.backend.as_deref()),
                ("window", self.span.window),
                ("from", Some(&*from).filter(|_| is_given)),
                ("to", Some(&*to).filter(|_| is_given)),
                ("events", Some("nightly").filter(|_| self.span.events == ShownEvents::Nightly)),
                ("before", before.as_deref()),
            ],
        )
    }
}

pub(crate) fn page(model: &RelayModel, view: &View<'_>) -> Markup {
    let title = match model.list {
        RelayList::Dispatches => "Dispatches",
        RelayList::Reports => "Reports",
    };
    view.shell(
        title,
        false,
        &html! {
            div.title {
                h1 { (title) @if let Some(backend) = &model.backend { " " span.muted { bdi { (backend) } } } }
                span.detail { (time(model.span.from)) " – " (time(model.span.to)) " " (zone()) }
            }
            (controls(model))
            @match model.list {
                RelayList::Dispatches => (dispatches(model)),
                RelayList::Reports => (reports(model)),
            }
            @if let Some(older) = model.older {
                p.pager { a rel="nofollow" href=(model.url(model.list, model.kind.as_deref(), Some(older))) { "Older" } }
            }
        },
    )
}

fn controls(model: &RelayModel) -> Markup {
    let is = |kind: Option<&str>| (model.kind.as_deref() == kind).then_some("true");
    html! {
        div.controls {
            nav.group aria-label="List" { @for (list, name) in [(RelayList::Dispatches, "Dispatches"), (RelayList::Reports, "Reports")] {
                a rel="nofollow" aria-current=[(model.list == list).then_some("true")] href=(model.url(list, None, None)) { (name) }
            } }
            nav.group aria-label="Time span" { @for (window, name) in [("24h", "24 h"), ("7d", "7 d"), ("30d", "30 d")] {
                a rel="nofollow" aria-current=[(model.span.window == Some(window)).then_some("true")]
                    href=(url(model.list, model.kind.as_deref(), model.backend.as_deref(), window, model.span.events)) { (name) }
            } }
            @if let (Some(_), Some(window)) = (&model.backend, model.span.window) {
                a rel="nofollow" href=(url(model.list, model.kind.as_deref(), None, window, model.span.events)) { "All backends" }
            }
        }
        ul.chips aria-label="By what became of them" {
            li.muted { a rel="nofollow" aria-current=[is(None)] href=(model.url(model.list, None, None)) { strong { (model.counts.values().sum::<u64>()) } " all" } }
            @for (kind, count) in &model.counts {
                li.muted { a rel="nofollow" aria-current=[is(Some(kind))] href=(model.url(model.list, Some(kind), None)) { strong { (count) } " " (kind.replace('_', " ")) } }
            }
        }
    }
}

fn dispatches(model: &RelayModel) -> Markup {
    html! {
        @if model.dispatches.is_empty() { p.note role="status" { "No such dispatch in these days." } } @else {
            div.scroll tabindex="0" role="region" aria-label="Dispatches" { table.stack {
                thead { tr { th scope="col" { "Backend" } th scope="col" { "Accepted" } th scope="col" { "Of" } th scope="col" { "Commit" } th scope="col" { "Status" } th scope="col" { "Sent after" } th scope="col" { "Why" } } }
                tbody { @for sent in &model.dispatches { tr {
                    th scope="row" { a rel="nofollow" href=(format!("/crcr/{}{}", sent.repo, model.span.unfiltered().address())) { bdi { (sent.repo) } } }
                    td data-label="Accepted" { (ago(sent.at)) }
                    td data-label="Of" { @match sent.pull_request {
                        Some(number) => a href=(address::pull(&sent.upstream, number)) { "#" (number) },
                        None => (sent.event.replace('_', " ")),
                    } }
                    td data-label="Commit" { @if sent.head_sha.is_empty() { span.muted { "none" } } @else { (commit_of(&sent.upstream, &model.upstream, &sent.head_sha)) } }
                    td data-label="Status" { (sent.status.as_str().replace('_', " ")) }
                    td data-label="Sent after" { @match sent.seconds { Some(seconds) => (duration(seconds)), None => span.muted { "not sent" } } }
                    @let why = why(sent);
                    td.message.none[why.is_none()] data-label="Why" { @match why { Some(why) => bdi { (why) }, None => span.muted { "–" } } }
                } } }
            } }
        }
    }
}

fn why(sent: &ListedDispatch) -> Option<&str> {
    let never_started = sent.status == DispatchFactStatus::NeverStarted;
    let silent = never_started.then_some("no run of it was reported in time");
    sent.last_error.as_deref().or(silent)
}

fn reports(model: &RelayModel) -> Markup {
    html! {
        @if model.backend.is_some() { p.detail { "The counts above are of all repositories." } }
        @if model.reports.is_empty() { p.note role="status" { "No such report in these days." } } @else {
            div.scroll tabindex="0" role="region" aria-label="Reports" { table.stack {
                thead { tr { th scope="col" { "Backend" } th scope="col" { "Received" } th scope="col" { "Answer" } th scope="col" { "Job" } th scope="col" { "Why" } } }
                tbody { @for report in &model.reports { tr {
                    th scope="row" { @match &report.repo {
                        Some(repo) => a href=(format!("/crcr/{repo}")) { bdi { (repo) } },
                        None => span.muted { "not a backend" },
                    } }
                    td data-label="Received" { (ago(report.at)) }
                    td data-label="Answer" { (report.answer) " " (report.outcome.as_str().replace('_', " ")) }
                    td.message.none[report.job.is_none()] data-label="Job" { @match &report.job { Some(job) => bdi { (job) }, None => span.muted { "–" } } }
                    td.message.none[report.detail.is_none()] data-label="Why" { @match &report.detail { Some(detail) => bdi { (detail) }, None => span.muted { "–" } } }
                } } }
            } }
        }
    }
}
