//! Every backend by level, worst first, and the relay's own health.

use std::collections::BTreeMap;
use std::sync::Arc;

use crcr_domain::facts::DispatchFactStatus;
use crcr_domain::results::{DurationStats, ExpectedCounts, RepoDay, ResultTotals};
use crcr_domain::{AllowlistEntry, EventKind, Level, RepoName};
use jiff::Timestamp;
use serde::Serialize;

use super::days::{self, ReportSummary};
use super::{RateSummary, TrendDay, total, trend};
use crate::query::{EventFilter, TimeSpan};
use crate::{Hud, PageError};

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

pub(crate) async fn build(hud: &Hud, span: &TimeSpan) -> Result<OverviewModel, PageError> {
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

/// The repository's entry in the allowlist in force.
pub(crate) fn entry_of(hud: &Hud, repo: &RepoName) -> Option<AllowlistEntry> {
    (hud.policy)()?.get(repo).cloned()
}
