//! What backends reported of the newest commits of a branch: a column for each backend, a cell for each commit.

use std::collections::HashMap;

use crcr_domain::checks::check_run::CheckRunStatus;
use crcr_domain::checks::lifecycle::Conclusion;
use crcr_domain::ci_data::workflow::BranchCommit;
use crcr_domain::protocol::event::EventName;
use crcr_domain::results::facts::{AttemptFact, DispatchFact, DispatchFactStatus};
use crcr_domain::results::{JobOutcome, jobs_of_record};
use crcr_domain::{Level, RepoName};
use crcr_results::Window;
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use super::days::push_facts;
use super::head::checks_of_heads;
use crate::context::{Hud, PageError};

/// Results of backends are looked for in this many days.
const BACKEND_DAYS: i64 = 31;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub(crate) struct BackendColumn {
    pub(crate) repo: String,
    pub(crate) level: Level,
}

#[derive(Debug, Clone, Copy, Serialize, schemars::JsonSchema)]
pub(crate) struct BackendCell {
    /// The worst of its jobs; `None` while one runs and none failed.
    pub(crate) outcome: Option<JobOutcome>,
    pub(crate) jobs: usize,
    pub(crate) failed: usize,
    /// The same as `outcome`, with what a job came to before a re-run that hasn't ended.
    #[serde(skip)]
    ended: Option<JobOutcome>,
}

impl BackendCell {
    /// Whether it turned red or green; `None` while it runs, and if it neither passed nor failed: cancelled is neither.
    pub(crate) fn is_red(&self) -> Option<bool> {
        is_red_outcome(self.outcome?)
    }

    /// The same, as it was before a re-run began.
    pub(crate) fn was_red(&self) -> Option<bool> {
        is_red_outcome(self.ended?)
    }

    /// Adds a job: what it came to, and what it had come to before a re-run.
    fn add(&mut self, outcome: Option<JobOutcome>, ended: Option<JobOutcome>) {
        self.jobs += 1;
        self.failed += usize::from(outcome.is_some_and(JobOutcome::is_failure));
        self.outcome = worse(self.outcome, outcome);
        self.ended = worse(self.ended, ended);
    }
}

fn is_red_outcome(outcome: JobOutcome) -> Option<bool> {
    (outcome.is_pass() || outcome.is_failure()).then(|| outcome.is_failure())
}

fn worse(known: Option<JobOutcome>, other: Option<JobOutcome>) -> Option<JobOutcome> {
    if rank(other) < rank(known) { other } else { known }
}

/// The worst first: a failure, a job that was cancelled, one that runs, one that passed.
fn rank(outcome: Option<JobOutcome>) -> u8 {
    match outcome {
        Some(outcome) if outcome.is_failure() => 0,
        Some(JobOutcome::Cancelled) => 1,
        None => 2,
        Some(outcome) if outcome.is_pass() => 3,
        Some(_) => 4,
    }
}

/// A commit with a cancelled job isn't green, though it isn't red either.
pub(crate) fn is_good(outcome: JobOutcome) -> bool {
    !outcome.is_failure() && outcome != JobOutcome::Cancelled
}

pub(crate) type ReportedCells = HashMap<String, Vec<Option<BackendCell>>>;

/// What backends at L3 and L4 reported of these commits, by commit.
pub(crate) async fn backend_cells(
    hud: &Hud,
    repo: &RepoName,
    commits: &[BranchCommit],
    is_shown: impl Fn(&str) -> bool,
) -> Result<(Vec<BackendColumn>, ReportedCells), PageError> {
    let policy = (hud.policy)().filter(|_| *repo == hud.upstream);
    let mut backends: Vec<BackendColumn> = policy
        .iter()
        .flat_map(|policy| policy.iter())
        .filter(|entry| entry.level >= Level::L3 && is_shown(entry.repo.as_str()))
        .map(|entry| BackendColumn { repo: entry.repo.to_string(), level: entry.level })
        .collect();
    backends.sort_by(|a, b| b.level.cmp(&a.level).then_with(|| a.repo.cmp(&b.repo)));
    let (Some(newest), Some(oldest)) = (commits.first(), commits.last()) else {
        return Ok((backends, HashMap::new()));
    };
    if backends.is_empty() {
        return Ok((backends, HashMap::new()));
    }
    let to = newest.at.saturating_add(SignedDuration::from_hours(24)).unwrap_or(Timestamp::MAX);
    let first = to - SignedDuration::from_hours(24 * BACKEND_DAYS);
    let from = (oldest.at - SignedDuration::from_hours(1)).max(first);
    let names = backends.iter().map(|backend| backend.repo.clone()).collect();
    let window = Window::all(from, to).of_repos(names);
    let facts = push_facts(hud, &window).await?;
    let is_here = |upstream: &str| upstream.eq_ignore_ascii_case(repo.as_str());
    let mut cells: ReportedCells = HashMap::new();
    let none = || vec![None; backends.len()];
    let of_page = || facts.attempts(&window).filter(|row| is_here(&row.upstream));
    let name = |row: &AttemptFact| {
        (row.repo.clone(), row.head_sha.clone(), row.workflow.clone(), row.job.clone())
    };
    let ended = jobs_of_record(of_page().filter(|row| !row.state.is_open()), []);
    let ended: HashMap<_, _> = ended.iter().map(|job| (name(job.record), job.outcome)).collect();
    for job in jobs_of_record(of_page(), []) {
        let Some(at) = column_of(&backends, &job.record.repo) else { continue };
        let row = cells.entry(job.record.head_sha.clone()).or_insert_with(none);
        let before = || ended.get(&name(job.record)).copied().flatten();
        let ended = job.outcome.or_else(before);
        let first = BackendCell { outcome: job.outcome, jobs: 0, failed: 0, ended };
        row[at].get_or_insert(first).add(job.outcome, ended);
    }
    let is_push = |sent: &&DispatchFact| sent.event == EventName::Push && is_here(&sent.upstream);
    for sent in facts.dispatches(&window).filter(is_push) {
        // A backend that was told of a commit and hasn't answered hasn't passed.
        let outcome = match sent.status {
            DispatchFactStatus::Queued | DispatchFactStatus::Sent => None,
            DispatchFactStatus::NeverStarted => Some(JobOutcome::NeverStarted),
            _ => continue,
        };
        let Some(at) = column_of(&backends, &sent.repo) else { continue };
        let row = cells.entry(sent.head_sha.clone()).or_insert_with(none);
        let failed = usize::from(outcome.is_some());
        row[at].get_or_insert(BackendCell { outcome, jobs: 0, failed, ended: outcome });
    }
    add_check_runs(hud, repo, commits, &backends, &mut cells).await?;
    Ok((backends, cells))
}

fn column_of(backends: &[BackendColumn], name: &str) -> Option<usize> {
    backends.iter().position(|backend| backend.repo.eq_ignore_ascii_case(name))
}

/// For backends that block the merge, a check run that isn't green counts more than what their jobs reported.
async fn add_check_runs(
    hud: &Hud,
    repo: &RepoName,
    commits: &[BranchCommit],
    backends: &[BackendColumn],
    cells: &mut ReportedCells,
) -> Result<(), PageError> {
    let shas: Vec<String> = commits.iter().map(|commit| commit.sha.clone()).collect();
    for ((sha, name), check) in checks_of_heads(hud, repo, &shas).await? {
        let Some(at) = column_of(backends, &name).filter(|at| backends[*at].level.blocks_merge())
        else {
            continue;
        };
        let cell = cells.get_mut(&sha).and_then(|row| row[at].as_mut());
        let Some(cell) = cell.filter(|cell| cell.failed == 0) else { continue };
        match check.status {
            CheckRunStatus::Queued | CheckRunStatus::InProgress => {
                cell.outcome = worse(cell.outcome, None);
                cell.ended = cell.ended.filter(|outcome| !is_good(*outcome));
            }
            // What its jobs said isn't all.
            CheckRunStatus::Completed(end) if !end.is_good() => {
                let is_cancelled = end == Conclusion::Cancelled;
                let known = if is_cancelled { JobOutcome::Cancelled } else { JobOutcome::Lost };
                (cell.outcome, cell.failed) = (Some(known), usize::from(known.is_failure()));
                cell.ended = cell.outcome;
            }
            CheckRunStatus::Completed(_) => {}
        }
    }
    Ok(())
}
