//! Every backend against its level's bar, worst first, by level; the relay's own health apart.

use std::collections::BTreeMap;

use crcr_domain::facts::{CallbackFact, DispatchFact};
use crcr_domain::results::{Distribution, Job};
use crcr_domain::{Level, RepoName};
use jiff::Timestamp;
use serde::Serialize;

use super::super::query::Span;
use super::super::{Hud, Problem};
use super::{Day, Facts, Worth, facts, trend};
use crate::results::Window;

/// The page.
#[derive(Debug, Serialize)]
pub(in super::super) struct Overview {
    pub(in super::super) span: Span,
    pub(in super::super) permalink: String,
    pub(in super::super) upstream: String,
    /// The newest report of all; a page that has none for long is stale.
    pub(in super::super) newest: Option<Timestamp>,
    /// Whether an allowlist is in force.
    pub(in super::super) allowlist: bool,
    pub(in super::super) levels: Vec<LevelGroup>,
    pub(in super::super) relay: RelayHealth,
}

/// The backends of one level, the worst first.
#[derive(Debug, Serialize)]
pub(in super::super) struct LevelGroup {
    pub(in super::super) level: Level,
    pub(in super::super) backends: Vec<Backend>,
}

/// One backend.
#[derive(Debug, Serialize)]
pub(in super::super) struct Backend {
    pub(in super::super) repo: String,
    pub(in super::super) device: Option<String>,
    pub(in super::super) oncalls: Vec<String>,
    pub(in super::super) standing: Standing,
    #[serde(flatten)]
    pub(in super::super) worth: Worth,
    pub(in super::super) newest: Option<Timestamp>,
    pub(in super::super) trend: Vec<Day>,
}

/// A backend against the bar of its level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(in super::super) enum Standing {
    /// Under the bar.
    Below,
    /// Dispatched to, and silent.
    Silent,
    /// Too few results to tell.
    Unknown,
    /// At or over the bar.
    Met,
}

/// How the relay itself does.
#[derive(Debug, Serialize)]
pub(in super::super) struct RelayHealth {
    /// Seconds from an event's acceptance to GitHub's taking of the dispatch.
    pub(in super::super) dispatch_latency: Option<Distribution>,
    /// Seconds that the answers to reports took.
    pub(in super::super) callback_latency: Option<Distribution>,
    /// Dispatches by status.
    pub(in super::super) dispatches: BTreeMap<String, u64>,
    /// Reports by what became of them.
    pub(in super::super) callbacks: BTreeMap<&'static str, u64>,
    /// Dispatches that nothing was heard of.
    pub(in super::super) orphans: u64,
}

pub(in super::super) async fn build(hud: &Hud, span: &Span) -> Result<Overview, Problem> {
    let all = facts(hud, span, None).await?;
    let window = Window { from: span.from, to: span.to, repo: None };
    let callbacks = hud.results.callbacks(&window).await?;
    let relay = health(&all.dispatches, &callbacks);
    let (newest, mut by_repo) = (all.newest, split(all));
    let policy = (hud.policy)();
    let mut levels = Vec::new();
    for level in Level::ALL.into_iter().rev() {
        let mut backends: Vec<_> = policy
            .iter()
            .flat_map(|policy| policy.at_level(level))
            .map(|entry| {
                let facts = by_repo.remove(&entry.repo.key()).unwrap_or_default();
                let worth = Worth::of(&facts.jobs, &facts.dispatches);
                Backend {
                    repo: entry.repo.as_str().to_owned(),
                    device: entry.device.as_ref().map(|device| device.as_str().to_owned()),
                    oncalls: entry.oncalls.iter().map(|name| name.as_str().to_owned()).collect(),
                    standing: standing(hud, level, &worth, &facts),
                    newest: facts.jobs.iter().map(|job| job.record.received_at).max(),
                    trend: trend(span, &facts.jobs, &facts.dispatches),
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

#[derive(Default)]
struct Own {
    jobs: Vec<Job>,
    dispatches: Vec<DispatchFact>,
}

fn split(facts: Facts) -> BTreeMap<String, Own> {
    let key = |repo: &str| repo.to_ascii_lowercase();
    let mut split: BTreeMap<String, Own> = BTreeMap::new();
    for job in facts.jobs {
        split.entry(key(&job.record.repo)).or_default().jobs.push(job);
    }
    for dispatch in facts.dispatches {
        split.entry(key(&dispatch.repo)).or_default().dispatches.push(dispatch);
    }
    split
}

fn standing(hud: &Hud, level: Level, worth: &Worth, facts: &Own) -> Standing {
    if !level.shows_results() {
        return if facts.dispatches.is_empty() { Standing::Unknown } else { Standing::Met };
    }
    if facts.jobs.is_empty() && facts.dispatches.iter().any(|d| d.status == "never_started") {
        return Standing::Silent;
    }
    match worth.job_pass.value.filter(|_| worth.job_pass.known) {
        None => Standing::Unknown,
        Some(share) if share > hud.criteria.job_pass_share => Standing::Met,
        Some(_) => Standing::Below,
    }
}

fn health(dispatches: &[DispatchFact], callbacks: &[CallbackFact]) -> RelayHealth {
    let mut by_status: BTreeMap<String, u64> = BTreeMap::new();
    for dispatch in dispatches {
        *by_status.entry(dispatch.status.clone()).or_default() += 1;
    }
    let mut by_outcome: BTreeMap<&'static str, u64> = BTreeMap::new();
    for callback in callbacks {
        *by_outcome.entry(callback.outcome.as_str()).or_default() += 1;
    }
    RelayHealth {
        dispatch_latency: Distribution::of(dispatches.iter().filter_map(|dispatch| {
            Some(dispatch.sent_at?.duration_since(dispatch.enqueued_at).as_secs_f64())
        })),
        callback_latency: Distribution::of(callbacks.iter().map(|c| c.latency_ms / 1000.0)),
        orphans: by_status.get("never_started").copied().unwrap_or_default(),
        dispatches: by_status,
        callbacks: by_outcome,
    }
}

/// Whether a repository's name is in the policy, and at which level.
pub(in super::super) fn entry_of(hud: &Hud, repo: &RepoName) -> Option<crcr_domain::Entry> {
    (hud.policy)()?.get(repo).cloned()
}
