//! `.github/crcr.yml`: what a backend takes, and how many probes it spends on finding out why something
//! failed. The allowlist is upstream's word on levels, this file the backend's own on its load.

pub mod bisect;
pub mod confirm;
#[cfg(test)]
mod month;
mod paths;
mod reader;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use self::paths::PathFilter;
pub use self::reader::ParsedDownstreamFile;
use crate::protocol::event::EventName;
use crate::text::pull_request_of_title;

/// Where the file is in a downstream repository.
pub const DOWNSTREAM_FILE: &str = ".github/crcr.yml";
/// A larger file is refused.
pub const MAX_BYTES: usize = 64 * 1024;

/// What a file says. The default is that of a backend without one: everything is dispatched, nothing is probed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct DownstreamConfig {
    pub dispatch: DispatchFilter,
    pub probes: ProbeBudget,
}

/// What is dispatched to a backend, and when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct DispatchFilter {
    pub events: Vec<TakenEvent>,
    /// A pull request is dispatched if it changes one of these files. `None`: whatever it changes.
    pub paths: Option<PathFilter>,
    pub drafts: Drafts,
    /// A head of a pull request is dispatched after this long without a newer one.
    pub quiet_minutes: u32,
    /// `None`: without a limit.
    pub max_per_day: Option<u64>,
}

impl Default for DispatchFilter {
    fn default() -> Self {
        Self {
            events: TakenEvent::ALL.to_vec(),
            paths: None,
            drafts: Drafts::default(),
            quiet_minutes: 0,
            max_per_day: None,
        }
    }
}

/// An event that a backend can take or leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TakenEvent {
    PullRequest,
    Push,
    Landed,
    MergeGroup,
}

names! {
    TakenEvent {
        PullRequest "pull_request", Push "push", Landed "landed", MergeGroup "merge_group",
    }
}

impl TakenEvent {
    fn of(event: &EventName) -> Option<Self> {
        Self::from_name(event.as_str())
    }
}

/// What is done with pull requests that are drafts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Drafts {
    #[default]
    Dispatch,
    /// They are dispatched when they are ready for review.
    Skip,
}

/// How many probes a backend spends on a day, in UTC.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct ProbeBudget {
    /// Runs whose failed jobs are run once more.
    pub reruns_per_day: u64,
    /// Commits of upstream that are run to learn whether they fail, too.
    pub commits_per_day: u64,
}

/// What a probe is to explain, as its payload says it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeTag {
    pub reason: ProbeReason,
    /// The upstream commit whose failure it is to explain.
    pub of: String,
    /// From 1: the same commit may be probed again.
    pub attempt: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeReason {
    /// Whether a failure of a pull request is older than it.
    MergeBase,
    /// Which of several commits broke a test.
    Bisect,
}

/// The answer to which commit broke a backend's job on a branch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Culprit {
    pub repo: String,
    pub upstream: String,
    pub workflow: String,
    pub job: Option<String>,
    /// The tests that failed, as far as they are known.
    pub tests: Vec<String>,
    /// Between these commits the candidates are.
    pub good_sha: String,
    pub bad_sha: String,
    pub candidates: usize,
    /// `None` if the failure was a flake, or the backend changed.
    pub suspect: Option<SuspectCommit>,
    /// Whether the good commit fails now, too, so that no commit of upstream is at fault.
    pub backend_changed: bool,
    /// The probability of it.
    pub certainty: f64,
    /// Whether that is enough to name it. Otherwise the runs weren't enough.
    pub is_certain: bool,
    pub runs: usize,
    pub at: Timestamp,
}

/// A commit of upstream that may have broken something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SuspectCommit {
    pub sha: String,
    /// The first line of its message.
    pub title: String,
    pub author: Option<String>,
    /// The pull request that its message names.
    pub pull_request: Option<u64>,
}

impl SuspectCommit {
    pub fn new(sha: String, title: String, author: Option<String>) -> Self {
        let pull_request = pull_request_of_title(&title);
        let title = title.chars().filter(|c| !c.is_control()).take(200).collect();
        Self { sha, title, author, pull_request }
    }
}

impl Culprit {
    /// The answer in a sentence.
    pub fn sentence(&self) -> String {
        let job = self.job.as_deref().unwrap_or(&self.workflow);
        let runs = self.runs;
        let per_cent = (self.certainty * 1000.0).floor() / 10.0;
        let good = self.good_sha.get(..12).unwrap_or(&self.good_sha);
        match &self.suspect {
            _ if self.is_certain && self.backend_changed => format!(
                "No commit broke {job}: the backend changed after {good}, which passed and fails now \
                 ({runs} runs)"
            ),
            Some(commit) if self.is_certain => {
                let short = commit.sha.get(..12).unwrap_or(&commit.sha);
                let pull = commit.pull_request.map(|n| format!(", #{n}")).unwrap_or_default();
                let author = commit.author.as_ref().map(|name| format!(", by {name}"));
                let author = author.unwrap_or_default();
                format!(
                    "{job} broke with {short}{pull}{author}: {per_cent} % certain after {runs} runs"
                )
            }
            None if self.is_certain => {
                format!("{job} has no culprit: its failure was a flake ({runs} runs)")
            }
            _ => format!(
                "Not enough runs to say which of {} commits after {good} broke {job} ({runs} runs)",
                self.candidates
            ),
        }
    }
}

/// What the HUD shows of backends' files and of the answers.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ProbesOverview {
    /// Why the newest version of a backend's file isn't in force, by the name of the repository in lower case.
    pub file_problems: BTreeMap<String, String>,
    /// The newest first.
    pub culprits: Vec<Culprit>,
}

/// Why a dispatch isn't sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeftOut {
    Event,
    Paths,
    Draft,
    /// The pull request was closed while its head waited.
    Closed,
    /// It waited a whole day for a place among `max-per-day`.
    MaxPerDay,
    /// The backend has got the same head with another event of its pull request, or will get it with a later one.
    SameHead,
}

impl LeftOut {
    /// A sentence for check runs and pages.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Event => {
                "This backend doesn't take such events (`events` in its `.github/crcr.yml`)"
            }
            Self::Paths => {
                "No changed file concerns this backend (`paths` in its `.github/crcr.yml`)"
            }
            Self::Draft => {
                "This backend waits until the pull request is ready for review (`drafts` in its \
                 `.github/crcr.yml`)"
            }
            Self::Closed => {
                "The pull request was closed before its head was quiet for long enough \
                 (`quiet-minutes` in this backend's `.github/crcr.yml`)"
            }
            Self::MaxPerDay => {
                "This backend had no place for it within a day (`max-per-day` in its \
                 `.github/crcr.yml`)"
            }
            Self::SameHead => "The same head is dispatched with another event of the pull request",
        }
    }
}

/// The event of a dispatch, as far as a filter decides about it.
#[derive(Debug, Clone, Copy)]
pub struct FilteredEvent<'a> {
    pub event: &'a EventName,
    /// Whether it announces a head that may be built: not that a pull request was closed.
    pub has_head: bool,
    pub is_draft: bool,
}

impl DispatchFilter {
    /// Why the event is left out, as far as that doesn't depend on the changed files.
    pub fn leaves_out(&self, event: FilteredEvent<'_>) -> Option<LeftOut> {
        let is_taken = TakenEvent::of(event.event).is_none_or(|one| self.events.contains(&one));
        if !is_taken {
            return Some(LeftOut::Event);
        }
        (event.is_draft && self.drafts == Drafts::Skip).then_some(LeftOut::Draft)
    }

    /// The filter of changed files, if the event has such files.
    pub fn paths_of(&self, event: FilteredEvent<'_>) -> Option<&PathFilter> {
        self.paths.as_ref().filter(|_| *event.event == EventName::PullRequest)
    }

    /// For how many seconds no newer head may come before the event is sent.
    pub fn quiet_seconds(&self, event: FilteredEvent<'_>) -> i64 {
        let waits = *event.event == EventName::PullRequest && event.has_head;
        if waits { i64::from(self.quiet_minutes) * 60 } else { 0 }
    }
}
