//! Every backend against its level's bar, worst first, by level; the relay's own health apart.

use std::collections::BTreeMap;
use std::sync::Arc;

use crcr_domain::results::{DayOf, Distribution, Tally};
use crcr_domain::{Level, RepoName};
use jiff::Timestamp;
use serde::Serialize;

use super::days::{self, Reports};
use super::{Day, Worth, total, trend};
use crate::query::Span;
use crate::{Hud, Problem};

#[derive(Debug, Serialize)]
pub(crate) struct Overview {
    pub(crate) span: Span,
    pub(crate) permalink: String,
    pub(crate) upstream: String,
    /// The newest report of all; a page that has none for long is stale.
    pub(crate) newest: Option<Timestamp>,
    /// Whether an allowlist is in force.
    pub(crate) allowlist: bool,
    pub(crate) levels: Vec<LevelGroup>,
    pub(crate) relay: RelayHealth,
}

/// The backends of one level, the worst first.
#[derive(Debug, Serialize)]
pub(crate) struct LevelGroup {
    pub(crate) level: Level,
    pub(crate) backends: Vec<Backend>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Backend {
    pub(crate) repo: String,
    pub(crate) device: Option<String>,
    pub(crate) oncalls: Vec<String>,
    pub(crate) standing: Standing,
    #[serde(flatten)]
    pub(crate) worth: Worth,
    pub(crate) newest: Option<Timestamp>,
    pub(crate) trend: Vec<Day>,
}

/// A backend against the bar of its level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Standing {
    Below,
    Silent,
    /// Too few results to tell.
    Unknown,
    /// At or over the bar.
    Met,
}

/// How the relay itself does.
#[derive(Debug, Serialize)]
pub(crate) struct RelayHealth {
    /// Seconds from an event's acceptance to GitHub's taking of the dispatch.
    pub(crate) dispatch_latency: Option<Distribution>,
    /// Seconds that the answers to reports took.
    pub(crate) callback_latency: Option<Distribution>,
    pub(crate) dispatches: BTreeMap<String, u64>,
    /// Reports by what became of them.
    pub(crate) callbacks: BTreeMap<&'static str, u64>,
    /// Dispatches that nothing was heard of.
    pub(crate) orphans: u64,
}

pub(crate) async fn build(hud: &Hud, span: &Span) -> Result<Overview, Problem> {
    let (all, reports) = days::days_and_reports(hud, span).await?;
    let relay = health(&total(&all), reports);
    let (newest, mut by_repo) = (days::newest(&all), split(all));
    let policy = (hud.policy)();
    let mut levels = Vec::new();
    for level in Level::ALL.into_iter().rev() {
        let mut backends: Vec<_> = policy
            .iter()
            .flat_map(|policy| policy.at_level(level))
            .map(|entry| {
                let own = by_repo.remove(&entry.repo.key()).unwrap_or_default();
                let tally = total(&own);
                let worth = Worth::of(&tally);
                Backend {
                    repo: entry.repo.as_str().to_owned(),
                    device: entry.device.as_ref().map(|device| device.as_str().to_owned()),
                    oncalls: entry.oncalls.iter().map(|name| name.as_str().to_owned()).collect(),
                    standing: standing(hud, level, &worth, &tally),
                    newest: tally.newest,
                    trend: trend(span, &own),
                    worth,
                }
            })
            .collect();
        backends.sort_by(|a, b| {
            let share = |backend: &Backend| backend.worth.job_pass.value.unwrap_or(2.0);
            (a.standing.cmp(&b.standing))
                .then(share(a).total_cmp(&share(b)))
                .then_with(|| a.repo.cmp(&b.repo))
        });
        levels.push(LevelGroup { level, backends });
    }
    Ok(Overview {
        span: span.clone(),
        permalink: span.permalink(),
        upstream: hud.upstream.as_str().to_owned(),
        newest,
        allowlist: policy.is_some(),
        levels,
        relay,
    })
}

fn split(days: Vec<(DayOf, Arc<Tally>)>) -> BTreeMap<String, Vec<(DayOf, Arc<Tally>)>> {
    let mut split: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for (day, tally) in days {
        split.entry(day.repo.clone()).or_default().push((day, tally));
    }
    split
}

fn standing(hud: &Hud, level: Level, worth: &Worth, tally: &Tally) -> Standing {
    if !level.shows_results() {
        return if tally.statuses.is_empty() { Standing::Unknown } else { Standing::Met };
    }
    let silent = worth.outcomes.is_empty() && worth.running == 0;
    if silent && tally.statuses.contains_key("never_started") {
        return Standing::Silent;
    }
    match worth.job_pass.value.filter(|_| worth.job_pass.known) {
        None => Standing::Unknown,
        Some(share) if share > hud.criteria.job_pass_share => Standing::Met,
        Some(_) => Standing::Below,
    }
}

fn health(all: &Tally, reports: Reports) -> RelayHealth {
    RelayHealth {
        dispatch_latency: all.dispatch(),
        callbacks: reports.outcomes.clone(),
        callback_latency: reports.latency(),
        orphans: all.statuses.get("never_started").copied().unwrap_or_default(),
        dispatches: all.statuses.clone(),
    }
}

/// Whether a repository's name is in the policy, and at which level.
pub(crate) fn entry_of(hud: &Hud, repo: &RepoName) -> Option<crcr_domain::Entry> {
    (hud.policy)()?.get(repo).cloned()
}
