//! `/crcr`: every backend, by level.

use std::collections::BTreeMap;
use std::sync::Arc;

use crcr_domain::facts::DispatchFactStatus;
use crcr_domain::results::{DurationStats, ExpectedCounts, RepoDay, ResultTotals};
use crcr_domain::{AllowlistEntry, EventKind, Level};
use jiff::Timestamp;
use maud::{Markup, html};
use serde::Serialize;

use super::{controls, freshness};
use crate::chart::sparkline;
use crate::context::{Hud, PageError};
use crate::layout::{distribution, rate, time};
use crate::model::days::ReportSummary;
use crate::model::{RateSummary, TrendDay, days, total, trend};
use crate::query::SpanQuery;
use crate::query::{EventFilter, TimeSpan};
use crate::view::View;

#[derive(Debug, Serialize)]
pub(crate) struct OverviewModel {
    pub(crate) span: TimeSpan,
    pub(crate) permalink: String,
    pub(crate) upstream: String,
    /// When the newest report was received.
    pub(crate) newest: Option<Timestamp>,
    /// Whether an allowlist is in force.
    pub(crate) allowlist: bool,
    pub(crate) levels: Vec<LevelGroup>,
    pub(crate) relay: RelayHealth,
}

/// The backends of one level, worst first.
#[derive(Debug, Serialize)]
pub(crate) struct LevelGroup {
    pub(crate) level: Level,
    pub(crate) backends: Vec<BackendRow>,
}

#[derive(Debug, Serialize)]
pub(crate) struct BackendRow {
    pub(crate) repo: String,
    pub(crate) device: Option<String>,
    pub(crate) oncalls: Vec<String>,
    pub(crate) standing: BackendStanding,
    #[serde(flatten)]
    pub(crate) worth: RateSummary,
    pub(crate) newest: Option<Timestamp>,
    pub(crate) trend: Vec<TrendDay>,
}

/// A first look at a backend: its CI job pass rate compared with the criterion of that name. The
/// level page has all criteria.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum BackendStanding {
    Below,
    Silent,
    Unknown,
    Met,
}

#[derive(Debug, Serialize)]
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
    /// Of the jobs that fail on purpose.
    pub(crate) expected: ExpectedCounts,
}

pub(crate) async fn build(hud: &Hud, (): (), query: SpanQuery) -> Result<OverviewModel, PageError> {
    let span = &hud.span(&query)?;
    let (all, reports) = days::day_tallies_and_reports(hud, span).await?;
    let relay = relay_health(&total(&all), reports);
    let (newest, mut by_repo) = (days::newest_report(&all), by_repository(all));
    let policy = (hud.policy)();
    let mut levels = Vec::new();
    for level in Level::ALL.into_iter().rev() {
        let mut backends: Vec<_> = policy
            .iter()
            .flat_map(|policy| policy.at_level(level))
            .filter(|entry| span.events == EventFilter::Nightly || !is_nightly_only(entry))
            .map(|entry| {
                let own = by_repo.remove(&entry.repo.key()).unwrap_or_default();
                let tally = total(&own);
                let worth = RateSummary::new(&tally);
                BackendRow {
                    repo: entry.repo.as_str().to_owned(),
                    device: entry.device.as_ref().map(|device| device.as_str().to_owned()),
                    oncalls: entry.oncalls.iter().map(|name| name.as_str().to_owned()).collect(),
                    standing: backend_standing(hud, level, &worth, &tally),
                    newest: tally.newest,
                    trend: trend(span, &own),
                    worth,
                }
            })
            .collect();
        backends.sort_by(|a, b| {
            let share = |backend: &BackendRow| backend.worth.job_pass.value.unwrap_or(2.0);
            (a.standing.cmp(&b.standing))
                .then(share(a).total_cmp(&share(b)))
                .then_with(|| a.repo.cmp(&b.repo))
        });
        levels.push(LevelGroup { level, backends });
    }
    Ok(OverviewModel {
        span: span.clone(),
        permalink: span.permalink(),
        upstream: hud.upstream.as_str().to_owned(),
        newest,
        allowlist: policy.is_some(),
        levels,
        relay,
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

fn backend_standing(
    hud: &Hud,
    level: Level,
    worth: &RateSummary,
    tally: &ResultTotals,
) -> BackendStanding {
    if !level.shows_results() {
        return if tally.statuses.is_empty() {
            BackendStanding::Unknown
        } else {
            BackendStanding::Met
        };
    }
    let silent = worth.outcomes.is_empty() && worth.running == 0;
    if silent && tally.statuses.contains_key(&DispatchFactStatus::NeverStarted) {
        return BackendStanding::Silent;
    }
    match worth.job_pass.value.filter(|_| worth.job_pass.known) {
        None => BackendStanding::Unknown,
        Some(share) if share > hud.criteria.job_pass_share => BackendStanding::Met,
        Some(_) => BackendStanding::Below,
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

/// Whether a backend takes part in nightly runs only. It has nothing to show of pull requests.
pub(crate) fn is_nightly_only(entry: &AllowlistEntry) -> bool {
    entry.events.iter().all(|kind| kind == EventKind::Nightly)
}

/// Column headings; on a narrow screen each value shows its own.
const HEADINGS: [&str; 7] = [
    "Status",
    "CI job pass",
    "Test pass",
    "Availability",
    "Queue P50",
    "End to end P50",
    "Pass by day",
];

pub(crate) fn page(model: &OverviewModel, view: &View<'_>) -> Markup {
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
            (summary(&model.levels))
            // Explicit roles, because the style for narrow screens makes browsers drop the table's own.
            div.scroll tabindex="0" role="region" aria-label="Backends" { table.stack role="table" {
                thead role="rowgroup" { tr role="row" {
                    th scope="col" role="columnheader" { "Backend" }
                    @for head in HEADINGS { th scope="col" role="columnheader" { (head) } }
                } }
                @for group in &model.levels { (level(group, &model.span.address())) }
            } }
            (relay(&model.relay))
        },
    )
}

/// How many backends have each status; the ones that need attention come first.
fn summary(levels: &[LevelGroup]) -> Markup {
    let shown = levels.iter().filter(|group| group.level.shows_results());
    let all: Vec<_> = shown.flat_map(|group| &group.backends).map(|b| b.standing).collect();
    let standings = [
        BackendStanding::Below,
        BackendStanding::Silent,
        BackendStanding::Unknown,
        BackendStanding::Met,
    ];
    html! {
        ul.chips aria-label="Backends by standing" { @for standing in standings {
            @let count = all.iter().filter(|other| **other == standing).count();
            @let (glyph, class, word) = standing_parts(standing);
            @if count > 0 {
                li.(class) { span.outcome.(class) { span.glyph aria-hidden="true" { (glyph) } " " strong { (count) } " " (word) } }
            }
        } }
    }
}

fn standing_parts(standing: BackendStanding) -> (&'static str, &'static str, &'static str) {
    match standing {
        BackendStanding::Below => ("✗", "bad", "low pass rate"),
        BackendStanding::Silent => ("∅", "infra", "silent"),
        BackendStanding::Unknown => ("–", "muted", "unknown"),
        BackendStanding::Met => ("✓", "good", "good pass rate"),
    }
}

fn level(group: &LevelGroup, query: &str) -> Markup {
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
                @if group.level.shows_results() { (row(backend, query)) }
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

fn row(backend: &BackendRow, query: &str) -> Markup {
    let (glyph, class, word) = standing_parts(backend.standing);
    let worth = &backend.worth;
    let values = [
        html! { span.outcome.(class) { span.glyph aria-hidden="true" { (glyph) } " " (word) } },
        rate(&worth.job_pass),
        rate(&worth.test_pass),
        rate(&worth.availability),
        distribution(worth.queue.as_ref()),
        distribution(worth.end_to_end.as_ref()),
        sparkline(&backend.trend),
    ];
    html! {
        tr role="row" {
            th scope="row" role="rowheader" {
                (name(backend, query))
                div.detail { @match backend.newest { Some(newest) => { "last " (time(newest)) }, None => "no result" } }
            }
            @for (head, value) in HEADINGS.iter().zip(&values) {
                td role="cell" data-label=(head) { div { (value) } }
            }
        }
    }
}

fn relay(health: &RelayHealth) -> Markup {
    html! {
        section aria-labelledby="relay" {
            h2 #relay { "The relay itself" }
            dl.cards {
                div { dt { "Dispatch latency" } dd { (distribution(health.dispatch_latency.as_ref())) } }
                div { dt { "Answer to a report" } dd { (distribution(health.callback_latency.as_ref())) } }
                div { dt { "Never started" } dd { (health.orphans) span.detail { "dispatches" } } }
                @if health.expected != ExpectedCounts::default() {
                    div { dt title="Jobs that fail on purpose, such as those of a canary" { "Expected failures" } dd.counts {
                        (counts(health.expected.named().into_iter()))
                    } }
                }
                div { dt { "Dispatches" } dd.counts { (counts(health.dispatches.iter().map(|(k, v)| (k.as_str(), *v)))) } }
                div { dt { "Reports" } dd.counts { (counts(health.callbacks.iter().map(|(k, v)| (*k, *v)))) } }
            }
        }
    }
}

fn counts<'a>(counts: impl Iterator<Item = (&'a str, u64)>) -> Markup {
    let mut counts: Vec<_> = counts.collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    html! {
        @if counts.is_empty() { span.muted { "none" } }
        ul.counts { @for (word, count) in counts {
            li { (count) " " span.muted { (word.replace('_', " ")) } }
        } }
    }
}
