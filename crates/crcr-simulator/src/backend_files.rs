//! `.github/crcr.yml` of the backends: what each of them takes, and how much it spends on finding out why something
//! failed.

use std::collections::BTreeMap;
use std::time::Duration;

use crcr_domain::RepoName;
use crcr_domain::probes::LeftOut;
use crcr_relay::state_records;
use crcr_store::memory::MemoryStore;
use jiff::Timestamp;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use crate::inputs::SeedInputs;
use crate::ledger::KnownWebhook;
use crate::names::{BACKENDS, UPSTREAM};

pub(crate) const FILE_PATH: &str = ".github/crcr.yml";
/// The backends that may pay for probes.
const PROBING: [&str; 2] = ["acme/two", "acme/four"];
/// The clocks of the replicas differ by less.
const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_secs(120);

/// The good version of a file.
#[derive(Debug, Clone, Copy, Default)]
struct SimulatedBackendFile {
    quiet_minutes: u32,
    has_paths: bool,
    skips_drafts: bool,
    leaves_out_pushes: bool,
    max_per_day: Option<u64>,
    reruns_per_day: u64,
    commits_per_day: u64,
    /// Since when the relay has read it.
    known_since: Option<Timestamp>,
    /// Whether it was broken before it was read: then it was never in force.
    is_void: bool,
}

#[derive(Debug, Default)]
pub(crate) struct BackendFiles(BTreeMap<&'static str, SimulatedBackendFile>);

impl BackendFiles {
    pub(crate) fn new(inputs: SeedInputs, seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed ^ 0xf11e_5000);
        let mut files = BTreeMap::new();
        for repo in &BACKENDS[1..] {
            let mut file = SimulatedBackendFile::default();
            if inputs.backend_files && random.random_ratio(2, 3) {
                file = SimulatedBackendFile::filtering(&mut random);
            }
            if inputs.probes && PROBING.contains(repo) {
                file.reruns_per_day = [0, 2, 8][random.random_range(0..3)];
                file.commits_per_day = [4, 24, 200][random.random_range(0..3)];
            }
            if inputs.backend_files || file.commits_per_day > 0 {
                files.insert(*repo, file);
            }
        }
        Self(files)
    }

    /// Each file with its repository.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (&'static str, String)> {
        self.0.iter().map(|(repo, file)| (*repo, file.text()))
    }

    /// What is in force for certain as soon as the relay has read it.
    fn get(&self, repo: &str) -> Option<&SimulatedBackendFile> {
        self.0.get(repo).filter(|file| !file.is_void)
    }

    /// What probes may cost on a day: re-runs, and commits.
    pub(crate) fn budget(&self, repo: &str) -> (u64, u64) {
        self.0.get(repo).map_or((0, 0), |file| (file.reruns_per_day, file.commits_per_day))
    }

    /// A backend whose file gets a broken version; returns it.
    pub(crate) fn break_one(&mut self, random: &mut StdRng) -> Option<&'static str> {
        let index = random.random_range(0..self.0.len().max(1));
        let (repo, file) = self.0.iter_mut().nth(index)?;
        file.is_void |= file.known_since.is_none();
        Some(*repo)
    }

    /// Notices which files the relay has read.
    pub(crate) fn note_read(&mut self, memory: &MemoryStore, now: Timestamp) {
        for (repo, file) in self.0.iter_mut().filter(|(_, file)| file.known_since.is_none()) {
            let upstream = RepoName::new(UPSTREAM).expect("it is a name");
            let name = RepoName::new(repo).expect("it is a name");
            if memory.record(&state_records::backend_file_key(&upstream, &name)).is_some() {
                file.known_since = Some(now);
            }
        }
    }

    /// Whether a backend gets a draft when it is ready for review, for certain.
    pub(crate) fn waits_for_review(&self, repo: &str, now: Timestamp) -> bool {
        self.get(repo)
            .is_some_and(|file| file.skips_drafts && file.known_since.is_some_and(|at| at < now))
    }

    /// Whether a dispatch may be left out for this reason: nearly always because a file says so.
    pub(crate) fn may_leave_out(
        &self,
        repo: &str,
        why: LeftOut,
        webhook: &KnownWebhook,
        level: u8,
    ) -> bool {
        if why == LeftOut::SameHead && webhook.repeats_head() {
            return true;
        }
        let Some(file) = self.0.get(repo) else { return false };
        match why {
            LeftOut::Event => file.leaves_out_pushes && webhook.event == "push",
            LeftOut::Paths => {
                file.has_paths && webhook.event == "pull_request" && !webhook.has_code
            }
            LeftOut::Draft => file.skips_drafts && webhook.is_draft,
            LeftOut::Closed => file.quiet_minutes > 0 || file.max_per_day.is_some(),
            LeftOut::SameHead => {
                webhook.pull.is_some() && (file.quiet_minutes > 0 || file.max_per_day.is_some())
            }
            LeftOut::MaxPerDay => file.max_per_day.is_some() && level != 4,
        }
    }

    /// Whether GitHub gets a dispatch before its head was quiet for long enough.
    pub(crate) fn is_too_early(&self, repo: &str, webhook: &KnownWebhook, now: Timestamp) -> bool {
        let waits = webhook.event == "pull_request" && !webhook.is_closing;
        let Some(file) = self.get(repo).filter(|_| waits) else { return false };
        let was_known = file.known_since.is_some_and(|at| at + MAX_CLOCK_DIFFERENCE < webhook.at);
        let quiet = Duration::from_secs(u64::from(file.quiet_minutes) * 60);
        was_known && now + MAX_CLOCK_DIFFERENCE < webhook.at + quiet
    }

    /// For how long a file may hold a dispatch back. At L4 none waits for its place.
    pub(crate) fn longest_hold(&self, repo: &str, level: u8) -> Duration {
        let Some(file) = self.0.get(repo) else { return Duration::ZERO };
        let days = if file.max_per_day.is_some() && level != 4 { 2 } else { 0 };
        Duration::from_secs(u64::from(file.quiet_minutes) * 60 + days * 24 * 3600)
    }
}

impl SimulatedBackendFile {
    fn filtering(random: &mut StdRng) -> Self {
        Self {
            quiet_minutes: [0, 3, 20][random.random_range(0..3)],
            has_paths: random.random_ratio(1, 3),
            skips_drafts: random.random_ratio(1, 2),
            leaves_out_pushes: random.random_ratio(1, 4),
            max_per_day: random.random_ratio(1, 4).then_some(3),
            ..Self::default()
        }
    }

    fn text(&self) -> String {
        let mut text = "dispatch:\n".to_owned();
        text += &format!("  quiet-minutes: {}\n", self.quiet_minutes);
        if self.has_paths {
            text += "  paths: [\"aten/**\"]\n";
        }
        if self.skips_drafts {
            text += "  drafts: skip\n";
        }
        if self.leaves_out_pushes {
            text += "  events: [pull_request, landed, merge_group]\n";
        }
        if let Some(count) = self.max_per_day {
            text += &format!("  max-per-day: {count}\n");
        }
        let Self { reruns_per_day, commits_per_day, .. } = self;
        text + &format!(
            "probes:\n  reruns-per-day: {reruns_per_day}\n  commits-per-day: {commits_per_day}\n"
        )
    }
}
