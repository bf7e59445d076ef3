//! `/crcr`: every backend, by level.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crcr_domain::results::criteria::CriterionEvidence;
use crcr_domain::results::facts::DispatchFactStatus;
use crcr_domain::results::review::LevelStanding;
use crcr_domain::results::{
    CriterionVerdict, DurationStats, ExpectedCounts, RepoDay, RepoReview, ResultTotals,
};
use crcr_domain::{AllowlistEntry, Level};
use jiff::Timestamp;
use maud::{Markup, html};
use serde::Serialize;

use super::level::{amount, evidence_path, measured};
use super::relay::{RelayList, link as relay_link};
use super::reported::{self, ReportedKind};
use super::{controls, freshness};
use crate::address::{SortOrder, Sorted, sort_link};
use crate::chart::sparkline;
use crate::context::{Hud, PageError};
use crate::layout::{ago, count_link, counted, distribution, rate};
use crate::model::days::ReportSummary;
use crate::model::{RateSummary, TrendDay, days, total, trend};
use crate::query::{ShownEvents, SpanQuery, TimeSpan};
use crate::view::View;

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct OverviewModel {
    pub(crate) span: TimeSpan,
    pub(crate) sort: SortOrder,
    pub(crate) permalink: String,
    pub(crate) upstream: String,
    /// When the newest report was received.
    pub(crate) newest: Option<Timestamp>,
    /// Whether an allowlist is in force.
    pub(crate) allowlist: bool,
    /// How many backends have each standing, whichever are shown; those that need attention first.
    pub(crate) standings: Vec<(BackendStanding, usize)>,
    pub(crate) levels: Vec<LevelGroup>,
    pub(crate) relay: RelayHealth,
}

/// The backends of one level, sorted as is asked for; the worst first by default.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct LevelGroup {
    pub(crate) level: Level,
    pub(crate) backends: Vec<BackendRow>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct BackendRow {
    pub(crate) repo: String,
    pub(crate) device: Option<String>,
    pub(crate) oncalls: Vec<String>,
    pub(crate) standing: BackendStanding,
    /// What the level page says: each criterion that isn't met is named.
    pub(crate) sentence: String,
    /// The criteria of its level that aren't met.
    pub(crate) failing: Vec<CriterionEvidence>,
    /// The time span of the criteria; the rates may have another one.
    pub(crate) reviewed_from: Option<Timestamp>,
    pub(crate) reviewed_to: Option<Timestamp>,
    /// The page with the evidence.
    #[serde(skip)]
    evidence: String,
    /// How near the next level is; `None` if no criteria lead to it.
    pub(crate) next_level: Option<NextLevel>,
    #[serde(flatten)]
    pub(crate) worth: RateSummary,
    pub(crate) newest: Option<Timestamp>,
    pub(crate) trend: Vec<TrendDay>,
}

/// The criteria of the next level.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct NextLevel {
    pub(crate) criteria: usize,
    pub(crate) met: usize,
    /// The criteria that aren't met, by their names.
    pub(crate) missing: Vec<&'static str>,
}

/// Whether a backend meets its level, as the level page has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum BackendStanding {
    /// A criterion isn't met.
    Below,
    /// It was to be told of commits, and never reported.
    Silent,
    /// There are too few samples, or no results.
    Unknown,
    /// Its level has no criteria.
    NoCriteria,
    /// All criteria are met.
    Met,
}

crcr_domain::names! {
    BackendStanding {
        Below "below", Silent "silent", Unknown "unknown", NoCriteria "no_criteria", Met "met",
    }
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct RelayHealth {
    /// Seconds from accepting an event until GitHub accepted its dispatch.
    pub(crate) dispatch_latency: Option<DurationStats>,
    /// Seconds until a report was answered.
    pub(crate) callback_latency: Option<DurationStats>,
    pub(crate) dispatches: BTreeMap<DispatchFactStatus, u64>,
    /// How many reports had each outcome.
    pub(crate) callbacks: BTreeMap<&'static str, u64>,
    /// Dispatches that never started a run, as far as is known.
    pub(crate) orphans: u64,
    /// Counts the jobs that fail on purpose.
    pub(crate) expected: ExpectedCounts,
}

pub(crate) async fn build(hud: &Hud, (): (), query: SpanQuery) -> Result<OverviewModel, PageError> {
    let span = &hud.span(&query)?;
    let columns = COLUMNS.map(|(name, _)| name);
    let sort =
        SortOrder::new(span.sort.as_deref(), "status", &columns).map_err(PageError::Query)?;
    let show = match span.show.as_deref() {
        None => None,
        Some(show) => {
            let known = BackendStanding::from_name(show);
            let names = BackendStanding::ALL.map(BackendStanding::as_str).join("`, `");
            let wrong = || PageError::Query(format!("`show` has to be one of `{names}`"));
            Some(known.ok_or_else(wrong)?)
        }
    };
    let searched = span.q.as_deref().unwrap_or_default().to_lowercase();
    let (all, reports) = days::day_tallies_and_reports(hud, span).await?;
    let relay = relay_health(&total(&all), reports);
    let (newest, mut by_repo) = (days::newest_report(&all), by_repository(all));
    let policy = (hud.policy)();
    let entries: Vec<AllowlistEntry> =
        policy.iter().flat_map(|policy| policy.iter()).cloned().collect();
    let reviews = days::reviews(hud, &entries, span.to, span.until_now).await?;
    let reviewed: HashMap<String, Arc<RepoReview>> =
        entries.iter().map(|entry| entry.repo.key()).zip(reviews).collect();
    let levels = Level::ALL.into_iter().rev().map(|level| {
        let entries = entries.iter().filter(|entry| {
            entry.level == level
                && has_text(entry, &searched)
                && (span.events == ShownEvents::Nightly || !entry.is_nightly_only())
        });
        let rows = entries.map(|entry| {
            let own = by_repo.remove(&entry.repo.key()).unwrap_or_default();
            backend_row(entry, span, &own, reviewed.get(&entry.repo.key()).map(|review| &**review))
        });
        let mut backends: Vec<_> = rows.collect();
        backends.sort_by(|a, b| {
            let share = |backend: &BackendRow| backend.worth.job_pass.value.unwrap_or(2.0);
            compare(&sort, a, b)
                .then(share(a).total_cmp(&share(b)))
                .then_with(|| a.repo.cmp(&b.repo))
        });
        LevelGroup { level, backends }
    });
    let mut levels: Vec<LevelGroup> = levels.collect();
    let shown = levels.iter().filter(|group| group.level.shows_results());
    let all: Vec<_> = shown.flat_map(|group| &group.backends).map(|row| row.standing).collect();
    let count = |standing| all.iter().filter(|known| **known == standing).count();
    let standings = BackendStanding::ALL.map(|standing| (standing, count(standing))).to_vec();
    if let Some(show) = show {
        for group in &mut levels {
            group.backends.retain(|row| group.level.shows_results() && row.standing == show);
        }
    }
    Ok(OverviewModel {
        standings,
        span: span.clone(),
        sort: sort.clone(),
        permalink: span.permalink(),
        upstream: hud.upstream.as_str().to_owned(),
        newest,
        allowlist: policy.is_some(),
        levels,
        relay,
    })
}

/// Whether a backend has the text in its name, its device or the name of an oncall.
pub(crate) fn has_text(entry: &AllowlistEntry, lower: &str) -> bool {
    let device = entry.device.as_ref().map(|device| device.as_str().to_lowercase());
    let mut oncalls = entry.oncalls.iter().map(|name| name.as_str().to_lowercase());
    entry.repo.key().contains(lower)
        || device.is_some_and(|device| device.contains(lower))
        || oncalls.any(|name| name.contains(lower.trim_start_matches('@')))
}

/// Those without data are last either way.
fn compare(sort: &SortOrder, a: &BackendRow, b: &BackendRow) -> Ordering {
    let missing = if sort.is_reversed { -1.0 } else { f64::INFINITY };
    let by = |of: fn(&RateSummary) -> Option<f64>| {
        let value = |row: &BackendRow| of(&row.worth).unwrap_or(missing);
        value(a).total_cmp(&value(b))
    };
    sort.apply(match sort.column {
        "name" => a.repo.cmp(&b.repo),
        "job_pass" => by(|worth| worth.job_pass.value),
        "test_pass" => by(|worth| worth.test_pass.value),
        "availability" => by(|worth| worth.availability.value),
        "queue" => by(|worth| Some(worth.queue.as_ref()?.p50)),
        "end_to_end" => by(|worth| Some(worth.end_to_end.as_ref()?.p50)),
        _ => a.standing.cmp(&b.standing),
    })
}

fn by_repository(
    days: Vec<(RepoDay, Arc<ResultTotals>)>,
) -> BTreeMap<String, Vec<(RepoDay, Arc<ResultTotals>)>> {
    let mut split: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for (day, tally) in days {
        split.entry(day.repo.clone()).or_default().push((day, tally));
    }
    split
}

fn backend_row(
    entry: &AllowlistEntry,
    span: &TimeSpan,
    own: &[(RepoDay, Arc<ResultTotals>)],
    review: Option<&RepoReview>,
) -> BackendRow {
    let tally = total(own);
    let worth = RateSummary::new(&tally);
    let standing = review.map(RepoReview::standing);
    BackendRow {
        repo: entry.repo.as_str().to_owned(),
        device: entry.device.as_ref().map(|device| device.as_str().to_owned()),
        oncalls: entry.oncalls.iter().map(|name| name.as_str().to_owned()).collect(),
        standing: backend_standing(standing.as_ref(), &worth, &tally),
        sentence: standing.as_ref().map(LevelStanding::sentence).unwrap_or_default(),
        failing: standing.map(|standing| standing.failing).unwrap_or_default(),
        reviewed_from: review.map(|review| review.from),
        reviewed_to: review.map(|review| review.to),
        evidence: review.map_or_else(
            || format!("/crcr/{}/level", entry.repo),
            |review| evidence_path(review, span),
        ),
        next_level: review.and_then(next_level),
        newest: tally.newest,
        trend: trend(span, own),
        worth,
    }
}

fn next_level(review: &RepoReview) -> Option<NextLevel> {
    let (evidence, _) = review.promotion()?;
    let is_met = |item: &&CriterionEvidence| item.verdict == CriterionVerdict::Met;
    let missing = evidence.iter().filter(|item| !is_met(item));
    Some(NextLevel {
        criteria: evidence.len(),
        met: evidence.iter().filter(is_met).count(),
        missing: missing.map(|item| item.criterion.title()).collect(),
    })
}

pub(crate) fn backend_standing(
    standing: Option<&LevelStanding>,
    worth: &RateSummary,
    tally: &ResultTotals,
) -> BackendStanding {
    let fails = standing.is_some_and(|one| one.verdict == Some(CriterionVerdict::NotMet));
    let silent = worth.outcomes.is_empty() && worth.running == 0 && !fails;
    if silent && tally.statuses.keys().any(|status| status.came_to_nothing()) {
        return BackendStanding::Silent;
    }
    match standing {
        Some(LevelStanding { verdict: Some(verdict), .. }) => match verdict {
            CriterionVerdict::Met => BackendStanding::Met,
            CriterionVerdict::NotMet => BackendStanding::Below,
            CriterionVerdict::Unknown => BackendStanding::Unknown,
        },
        Some(LevelStanding { has_criteria: false, .. }) => BackendStanding::NoCriteria,
        _ => BackendStanding::Unknown,
    }
}

fn relay_health(all: &ResultTotals, reports: ReportSummary) -> RelayHealth {
    RelayHealth {
        dispatch_latency: all.dispatch(),
        callbacks: reports.outcomes.clone(),
        callback_latency: reports.latency(),
        orphans: all.statuses.get(&DispatchFactStatus::NeverStarted).copied().unwrap_or_default(),
        expected: all.expected,
        dispatches: all.statuses.clone(),
    }
}

/// What the table can be sorted by, with the headings; on a narrow screen each value shows its own.
const COLUMNS: [(&str, &str); 7] = [
    ("name", "Backend"),
    ("status", "Status"),
    ("job_pass", "CI job pass"),
    ("test_pass", "Test pass"),
    ("availability", "Availability"),
    ("queue", "Queue P50"),
    ("end_to_end", "End to end P50"),
];
const BY_DAY: &str = "Pass by day";

pub(crate) fn page(model: &OverviewModel, view: &View<'_>) -> Markup {
    let is_filtered = model.span.show.is_some() || model.span.q.is_some();
    view.shell(
        &format!("Backends of {}", model.upstream),
        true,
        &html! {
            div.title {
                h1 { "Backends of " bdi { (model.upstream) } }
                a href="/crcr/feed.atom" { "Feed of backends that turn red" }
            }
            (controls("/crcr", &model.span, &model.permalink))
            @if !model.allowlist {
                p.note.bad role="status" { "No allowlist is in force yet: the relay has not been able to read one." }
            }
            (freshness(model.newest, &model.span))
            div.controls {
                (summary(model))
                (search(&model.span))
            }
            // Explicit roles, because the style for narrow screens makes browsers drop the table's own.
            div.scroll tabindex="0" role="region" aria-label="Backends" { table.stack role="table" {
                thead role="rowgroup" { tr role="row" {
                    @for (column, head) in COLUMNS { (header(model, column, head)) }
                    th scope="col" role="columnheader" { (BY_DAY) }
                } }
                @for group in &model.levels {
                    // A level of which nothing matches isn't one without backends.
                    @if !is_filtered || !group.backends.is_empty() { (level(group, &model.span)) }
                }
            } }
            @if is_filtered && model.levels.iter().all(|group| group.backends.is_empty()) {
                p.note role="status" { "No backend matches." }
            }
            (relay(&model.relay, &model.span))
        },
    )
}

fn header(model: &OverviewModel, column: &'static str, head: &str) -> Markup {
    let sort = model.sort.toggled(column);
    let span = TimeSpan { sort: sort.parameter("status"), ..model.span.clone() };
    let sorted = model.sort.sorted(column, Sorted::Ascending);
    html! {
        th scope="col" role="columnheader" aria-sort=[sorted.aria()] {
            (sort_link(head, sorted, &format!("/crcr{}", span.address())))
        }
    }
}

fn search(span: &TimeSpan) -> Markup {
    let others = TimeSpan { q: None, ..span.clone() }.address();
    html! {
        form.span method="get" action="/crcr" role="search" aria-label="Backends" {
            @for (name, value) in url::form_urlencoded::parse(&others.as_bytes()[1..]) { input type="hidden" name=(name) value=(value); }
            label { "Name, device or oncall" input type="search" name="q" value=(span.q.as_deref().unwrap_or_default()) maxlength="200"; }
            button { "Show" }
        }
        @if span.q.is_some() || span.show.is_some() {
            a href=(format!("/crcr{}", TimeSpan { q: None, show: None, ..span.clone() }.address())) { "All backends" }
        }
    }
}

/// How many backends have each status: a link to those, and back.
fn summary(model: &OverviewModel) -> Markup {
    html! {
        ul.chips aria-label="Backends by standing" { @for (standing, count) in &model.standings {
            @let (glyph, class, word) = standing_parts(*standing);
            @let is_shown = model.span.show.as_deref() == Some(standing.as_str());
            @let show = (!is_shown).then(|| standing.as_str().to_owned());
            // Without the order: each filter in each order would be an address of its own.
            @let q = model.span.q.clone();
            @let address = TimeSpan { show, q, ..model.span.unfiltered() }.address();
            @if *count > 0 || is_shown {
                li.(class) { a.outcome.(class) rel="nofollow" aria-current=[is_shown.then_some("true")] href=(format!("/crcr{address}")) {
                    span.glyph aria-hidden="true" { (glyph) } " " strong { (count) } " " (word)
                } }
            }
        } }
    }
}

fn standing_parts(standing: BackendStanding) -> (&'static str, &'static str, &'static str) {
    match standing {
        BackendStanding::Below => ("✗", "bad", "fails its level"),
        BackendStanding::Silent => ("∅", "infra", "silent"),
        BackendStanding::Unknown => ("–", "muted", "unknown"),
        BackendStanding::NoCriteria => ("○", "muted", "no criteria"),
        BackendStanding::Met => ("✓", "good", "meets its level"),
    }
}

fn level(group: &LevelGroup, span: &TimeSpan) -> Markup {
    let query = &*span.unfiltered().address();
    html! {
        tbody role="rowgroup" {
            tr.level role="row" { th colspan="8" scope="rowgroup" role="rowheader" {
                (group.level) " " span.muted { (group.level.title()) }
                @if group.backends.is_empty() { span.detail { " · no backends" } }
                @else if !group.level.shows_results() {
                    span.detail { " · backends at " (Level::L1) " receive events; their results are not shown" }
                }
            } }
            @for backend in &group.backends {
                @if group.level.shows_results() { (row(backend, query, span.events)) }
                @else { tr role="row" { th colspan="8" scope="row" role="rowheader" { (name(backend, query)) } } }
            }
        }
    }
}

fn name(backend: &BackendRow, query: &str) -> Markup {
    html! {
        a href=(format!("/crcr/{}{query}", backend.repo)) { bdi { (backend.repo) } }
        @if let Some(device) = &backend.device { " " span.tag { (device) } }
    }
}

/// Whether it meets its level, with each criterion that isn't met, and how near the next level is.
fn standing_cell(backend: &BackendRow, events: ShownEvents) -> Markup {
    let (glyph, class, word) = standing_parts(backend.standing);
    let has_criteria = !backend.failing.is_empty() || backend.next_level.is_some();
    let reviewed = backend.reviewed_from.zip(backend.reviewed_to).filter(|_| has_criteria);
    html! {
        a.outcome.(class) href=(backend.evidence) { span.glyph aria-hidden="true" { (glyph) } " " (word) }
        @for item in &backend.failing {
            span.detail { (item.criterion.title()) " " @if let Some(value) = measured(item) { (value) ", " }
                "not " (item.bound.sign()) " " (amount(item.criterion, item.target)) }
        }
        @if let Some(next) = &backend.next_level {
            span.detail title=(next.missing.join(", ")) { (next.met) " of " (next.criteria) " for the next level" }
        }
        @if let Some((from, to)) = reviewed {
            span.detail {
                "over " (counted((to.duration_since(from).as_hours() / 24).unsigned_abs(), "day", "days"))
                // The rates beside it are of nightly runs.
                @if events == ShownEvents::Nightly { " of pull requests and pushes" }
            }
        }
    }
}

fn row(backend: &BackendRow, query: &str, events: ShownEvents) -> Markup {
    let worth = &backend.worth;
    let values = [
        standing_cell(backend, events),
        rate(&worth.job_pass),
        rate(&worth.test_pass),
        rate(&worth.availability),
        distribution(worth.queue.as_ref()),
        distribution(worth.end_to_end.as_ref()),
        sparkline(&backend.trend),
    ];
    let heads = COLUMNS.map(|(_, head)| head).into_iter().skip(1).chain([BY_DAY]);
    html! {
        tr role="row" {
            th scope="row" role="rowheader" {
                (name(backend, query))
                div.detail {
                    @match backend.newest { Some(newest) => { "last " (ago(newest)) " · " }, None => "no result · " }
                    a rel="nofollow" href=(format!("/crcr/{}?window=24h&heads=all", backend.repo)) { "last day" span.hidden { " of " bdi { (backend.repo) } } }
                }
            }
            @for (head, value) in heads.zip(&values) {
                td role="cell" data-label=(head) { div { (value) } }
            }
        }
    }
}

fn relay(health: &RelayHealth, span: &TimeSpan) -> Markup {
    let never = DispatchFactStatus::NeverStarted.as_str();
    let dispatches = |kind: &str| relay_link(RelayList::Dispatches, Some(kind), span);
    let reports = |kind: &str| relay_link(RelayList::Reports, Some(kind), span);
    html! {
        section aria-labelledby="relay" {
            h2 #relay { "The relay itself" }
            dl.cards {
                div { dt { "Dispatch latency" } dd { (distribution(health.dispatch_latency.as_ref())) } }
                div { dt { "Answer to a report" } dd { (distribution(health.callback_latency.as_ref())) } }
                div { dt { "Never started" } dd { (count_link(health.orphans, dispatches(never).as_deref())) span.detail { @if health.orphans == 1 { "dispatch" } @else { "dispatches" } } } }
                @if health.expected != ExpectedCounts::default() {
                    div { dt title="Jobs that fail on purpose, such as those of a canary" { "Expected failures" } dd.counts {
                        ul.counts { @for (end, count) in health.expected.nonzero() {
                            li { (count_link(count, reported::link(ReportedKind::Expected(end), None, span).as_deref())) " " span.muted { (reported::expected_word(end)) } }
                        } }
                    } }
                }
                div { dt { "Dispatches" } dd.counts { (counts(health.dispatches.iter().map(|(k, v)| (k.as_str(), *v)), dispatches)) } }
                // A report that is refused doesn't say for which event its job ran.
                div { dt { "Reports of all events" } dd.counts { (counts(health.callbacks.iter().map(|(k, v)| (*k, *v)), reports)) } }
            }
        }
    }
}

fn counts<'a>(
    counts: impl Iterator<Item = (&'a str, u64)>,
    link: impl Fn(&str) -> Option<String>,
) -> Markup {
    let mut counts: Vec<_> = counts.collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    html! {
        @if counts.is_empty() { span.muted { "none" } }
        ul.counts { @for (word, count) in counts {
            li { (count_link(count, link(word).as_deref())) " " span.muted { (word.replace('_', " ")) } }
        } }
    }
}
