//! Which unusual inputs a seed has. Each seed has a few of them, so that a finding has few possible causes.

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

/// How far a clock that drifts is off at most.
const MAX_DRIFT_SECONDS: i64 = 45;
/// How far a clock that nobody has set is off at most.
const WRONG_CLOCK_SECONDS: i64 = 900;

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SeedInputs {
    /// Pull requests, pushes and merge groups at commits that others have, too.
    pub(crate) shared_heads: bool,
    /// Two events of a pull request within a second: a push and a push back, or an opening and a label.
    pub(crate) quick_events: bool,
    /// Runs that GitHub creates up to 50 s after their dispatch, and workflows that never report.
    pub(crate) late_runs: bool,
    /// Other senders' runs in GitHub's list: more than one page of them.
    pub(crate) crowded_lists: bool,
    /// Both replicas' clocks are off from GitHub's, by up to [`MAX_DRIFT_SECONDS`].
    pub(crate) clock_drift: bool,
    /// Backends that change their level, leave the allowlist, return, or are spelled in another case.
    pub(crate) allowlist_changes: bool,
    /// One author whose jobs all fail in their setup, while nobody's infrastructure fails.
    pub(crate) setup_attacker: bool,
    /// GitHub's check API is down for hours.
    pub(crate) check_outage: bool,
    /// The relay is down for hours while runs pass, whose reports are lost.
    pub(crate) relay_downtime: bool,
    /// One backend runs on Buildkite: parallel steps under one name, waits, retries of a step.
    pub(crate) foreign_ci: bool,
    /// Two legs of a run under one job name, and two workflow files with one name.
    pub(crate) shared_names: bool,
    /// Runs of which every job was skipped, conclusions that nobody knows, and runs that ended better than a job.
    pub(crate) odd_conclusions: bool,
    /// A backend's default branch gets another name.
    pub(crate) branch_rename: bool,
    /// An external HUD answers nothing.
    pub(crate) slow_hud: bool,
    /// Workers that go on after the end of their lease, while another one has their task.
    pub(crate) early_lease_ends: bool,
    /// Processes that stop, or go on later, while a change of a check run is on its way.
    pub(crate) frozen_workers: bool,
    /// The key that signs callback tokens is replaced, in two steps, while runs are open.
    pub(crate) key_rotation: bool,
    /// Demotions of a backend at L3 are opened and closed.
    pub(crate) demotions: bool,
    /// Backends whose own files leave dispatches out or hold them back, and drafts.
    pub(crate) backend_files: bool,
    /// Backends that pay for probes, and a branch whose commits break and repair a test, which flakes.
    pub(crate) probes: bool,
    /// Tests on that branch that fail one time in ten for no reason.
    pub(crate) flaky_tests: bool,
    /// Labels that are set and removed within a second.
    pub(crate) label_flips: bool,
    /// The issuer of GitHub's tokens signs with another key.
    pub(crate) issuer_rotation: bool,
    /// The webhook secret is replaced, from which the key of callback tokens is derived.
    pub(crate) secret_rotation: bool,
    /// Both replicas' clocks are wrong by up to [`WRONG_CLOCK_SECONDS`] until somebody sets them right.
    pub(crate) wrong_clocks: bool,
    /// Pull requests whose base branch changes, and back.
    pub(crate) base_changes: bool,
}

impl SeedInputs {
    /// The inputs of a seed, which are chosen apart from everything else that it does.
    pub(crate) fn of(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed ^ 0x1a9d_0175);
        let mut has = |one_in: u32| random.random_ratio(1, one_in);
        let mut inputs = Self {
            shared_heads: has(3),
            quick_events: has(3),
            late_runs: has(3),
            crowded_lists: has(12),
            clock_drift: has(3),
            allowlist_changes: has(4),
            setup_attacker: has(10),
            check_outage: has(12),
            relay_downtime: has(10),
            foreign_ci: has(4),
            shared_names: has(4),
            odd_conclusions: has(4),
            branch_rename: has(12),
            slow_hud: has(6),
            early_lease_ends: has(4),
            key_rotation: has(8),
            demotions: has(8),
            backend_files: has(5),
            probes: has(6),
            flaky_tests: has(2),
            label_flips: has(8),
            frozen_workers: has(6),
            issuer_rotation: has(10),
            secret_rotation: has(10),
            wrong_clocks: has(12),
            base_changes: has(8),
        };
        // Whoever opens the breaker must be the only cause of it.
        if inputs.relay_downtime {
            inputs.setup_attacker = false;
        }
        inputs.flaky_tests &= inputs.probes;
        // A report that a wrong clock refuses never comes again.
        inputs.wrong_clocks &= !inputs.has_sound_backends();
        inputs
    }

    /// How far both replicas' clocks may be off.
    pub(crate) fn max_drift(self) -> Option<i64> {
        match self.wrong_clocks {
            true => Some(WRONG_CLOCK_SECONDS),
            false => self.clock_drift.then_some(MAX_DRIFT_SECONDS),
        }
    }

    /// Whether only what these inputs are about lets a backend's infrastructure seem to fail.
    pub(crate) fn has_sound_backends(self) -> bool {
        self.setup_attacker || self.relay_downtime
    }

    /// The names of the inputs that it has.
    pub(crate) fn names(self) -> Vec<String> {
        let text = format!("{self:?}");
        let fields = text.trim_start_matches("SeedInputs { ").trim_end_matches(" }").split(", ");
        fields.filter_map(|field| field.strip_suffix(": true")).map(str::to_owned).collect()
    }
}
