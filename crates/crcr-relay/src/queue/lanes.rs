//! Who works on what. Each pool has workers of its own, so that work that hangs or piles up in one of them
//! takes none from another: dispatches, and what is shown upstream, always have theirs. Within a pool, lanes
//! take turns, and each of them has a limit.

use std::collections::{BTreeMap, HashMap};

use crcr_domain::RepoName;
use crcr_store::{PoolRoom, pool_of};

/// The share of the work that a task belongs to.
pub(crate) enum Lane {
    /// Dispatches and re-runs of an account downstream.
    Dispatches(String),
    /// The check runs of one backend on one upstream commit.
    CheckRuns {
        repo: String,
        head_sha: String,
    },
    /// What decides which check runs of a backend have to be evaluated: after a change of the allowlist, those of every open
    /// head.
    Evaluations(String),
    /// What else is asked of the App's installation on the upstream account.
    Upstream,
    /// Asking about the runs of an account downstream.
    Sweeps(String),
    /// What explains failures, for an account downstream. Nobody waits for it.
    Probes(String),
    /// The logs of an account's jobs.
    JobLogs(String),
    /// Results of an account downstream, to the external HUD.
    ExternalHud(String),
    AlertWebhook,
    /// The archive and the results.
    KeptWebhooks,
    /// Cancelling dispatches, which asks no server.
    Superseding,
    /// The App's own log of deliveries, whose rate limit no installation shares.
    DeliveryLog,
}

struct Pool {
    name: &'static str,
    workers: usize,
    max_per_lane: usize,
}

const DISPATCHES: &str = "dispatch";
const UPSTREAM: &str = "upstream";
const SWEEPS: &str = "sweep";
const PROBES: &str = "probe";
const JOB_LOGS: &str = "log";
pub(crate) const EXTERNAL_HUD: &str = "hud";
pub(crate) const KEPT_WEBHOOKS: &str = "keep";

/// The pools. `workers` is how many dispatches are sent at a time.
fn pools(workers: usize) -> [Pool; 11] {
    let pool = |name, workers, max_per_lane| Pool { name, workers, max_per_lane };
    [
        pool(DISPATCHES, workers, 8),
        // Eight calls at a time for one installation. Half of them is left for others than one backend.
        pool(UPSTREAM, 8, 4),
        pool(SWEEPS, workers.div_ceil(2), 4),
        pool(PROBES, 4, 1),
        pool(JOB_LOGS, 4, 2),
        // One server behind all lanes: if it hangs, so do these and no others.
        pool(EXTERNAL_HUD, 8, 2),
        pool("alert", 2, 2),
        pool(KEPT_WEBHOOKS, 8, 8),
        pool("supersede", 2, 2),
        pool("deliveries", 1, 1),
        // For a task of another version, whose lane has no pool.
        pool("", 1, 1),
    ]
}

impl Lane {
    /// The name under which the store keeps the lane. Neither accounts nor repositories have a colon in
    /// their names.
    pub(crate) fn name(&self) -> String {
        let account =
            |pool: &str, account: &str| format!("{pool}:{}", account.to_ascii_lowercase());
        match self {
            Self::Dispatches(name) => account(DISPATCHES, name),
            Self::CheckRuns { repo, head_sha } => format!("{UPSTREAM}:{repo}@{head_sha}"),
            Self::Evaluations(repo) => format!("{UPSTREAM}:{repo}"),
            Self::Upstream => format!("{UPSTREAM}:"),
            Self::Sweeps(name) => account(SWEEPS, name),
            Self::Probes(name) => account(PROBES, name),
            Self::JobLogs(name) => account(JOB_LOGS, name),
            Self::ExternalHud(name) => account(EXTERNAL_HUD, name),
            Self::AlertWebhook => "alert:".to_owned(),
            Self::KeptWebhooks => format!("{KEPT_WEBHOOKS}:"),
            Self::Superseding => "supersede:".to_owned(),
            Self::DeliveryLog => "deliveries:".to_owned(),
        }
    }
}

/// The server that the tasks of a lane ask, or the account whose rate limit they share there. When it asks
/// for a pause, all of its lanes pause.
pub(crate) fn server_of(lane: &str, upstream: &RepoName) -> String {
    match lane.split_once(':') {
        Some((DISPATCHES | SWEEPS | PROBES | JOB_LOGS, account)) => account.to_owned(),
        Some((UPSTREAM, _)) => upstream.owner().to_ascii_lowercase(),
        _ => lane.to_owned(),
    }
}

#[derive(Default)]
pub(crate) struct BusyLanes {
    tasks: BTreeMap<String, usize>,
}

impl BusyLanes {
    pub(crate) fn add(&mut self, lane: &str) {
        *self.tasks.entry(lane.to_owned()).or_default() += 1;
    }

    pub(crate) fn remove(&mut self, lane: &str) {
        if let Some(count) = self.tasks.get_mut(lane) {
            *count -= 1;
            if *count == 0 {
                self.tasks.remove(lane);
            }
        }
    }

    pub(crate) fn count_of_pool(&self, pool: &str) -> usize {
        self.tasks.iter().filter(|(lane, _)| pool_of(lane) == pool).map(|(_, count)| count).sum()
    }

    /// How many tasks each pool is working on, by its name.
    pub(crate) fn by_pool(&self) -> Vec<(&'static str, usize)> {
        pools(1).into_iter().map(|pool| (pool.name, self.count_of_pool(pool.name))).collect()
    }

    /// The room in each pool while these servers pause, and the lanes with what they are working on. A
    /// paused lane counts as full.
    pub(crate) fn room<'a>(
        &self,
        workers: usize,
        upstream: &RepoName,
        paused: impl Iterator<Item = &'a String>,
    ) -> (HashMap<String, PoolRoom>, HashMap<String, usize>) {
        let mut rooms: HashMap<String, PoolRoom> = pools(workers)
            .into_iter()
            .map(|pool| {
                let free = pool.workers.saturating_sub(self.count_of_pool(pool.name));
                (pool.name.to_owned(), PoolRoom { free, max_per_lane: pool.max_per_lane })
            })
            .collect();
        let mut busy: HashMap<String, usize> =
            self.tasks.iter().map(|(lane, count)| (lane.clone(), *count)).collect();
        for server in paused {
            let pools = [DISPATCHES, SWEEPS, PROBES, JOB_LOGS];
            for lane in pools.map(|pool| format!("{pool}:{server}")) {
                busy.insert(lane, usize::MAX);
            }
            // The server of another pool is named like its lane.
            busy.insert(server.clone(), usize::MAX);
            if *server == server_of(&Lane::Upstream.name(), upstream)
                && let Some(room) = rooms.get_mut(UPSTREAM)
            {
                room.free = 0;
            }
        }
        (rooms, busy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(busy: &[&str], paused: &[&str]) -> (HashMap<String, PoolRoom>, HashMap<String, usize>) {
        let mut lanes = BusyLanes::default();
        busy.iter().for_each(|lane| lanes.add(lane));
        let paused: Vec<String> = paused.iter().map(|name| (*name).to_owned()).collect();
        lanes.room(32, &RepoName::new("PyTorch/pytorch").unwrap(), paused.iter())
    }

    #[test]
    fn hanging_hud_and_alert_webhook_leave_all_workers_of_dispatches_and_check_runs() {
        let hud: Vec<String> = (0..6).map(|n| Lane::ExternalHud(format!("a{n}")).name()).collect();
        let alert = Lane::AlertWebhook.name();
        let mut busy: Vec<&str> = hud.iter().map(String::as_str).collect();
        busy.extend(["hud:a0", "hud:a1", &alert, &alert]);
        let (rooms, _) = room(&busy, &[]);
        assert_eq!((rooms["hud"].free, rooms["alert"].free), (0, 0));
        assert_eq!((rooms["dispatch"].free, rooms["upstream"].free), (32, 8));
    }

    #[test]
    fn rate_limit_of_an_account_pauses_all_that_asks_github_for_it() {
        let (rooms, busy) = room(&[], &["acme"]);
        for lane in ["dispatch:acme", "sweep:acme", "probe:acme", "log:acme"] {
            assert_eq!(busy[lane], usize::MAX, "{lane}");
        }
        assert!(!busy.contains_key("hud:acme") && rooms["upstream"].free == 8);
        // If upstream's account also has backends, they share the installation.
        let upstream = RepoName::new("PyTorch/pytorch").unwrap();
        let lane = Lane::CheckRuns { repo: "acme/one".to_owned(), head_sha: "a".repeat(40) };
        let server = server_of(&lane.name(), &upstream);
        let (rooms, busy) = room(&[], &[&server]);
        assert_eq!((rooms["upstream"].free, busy["dispatch:pytorch"]), (0, usize::MAX));
        assert!(rooms["dispatch"].free > 0);
    }
}
