//! Since when a column of a branch's grid is red. A column may be of several jobs, such as the shards of one.

use std::collections::{BTreeMap, BTreeSet};

use crcr_domain::ci_data::workflow::CiState;

/// What the jobs of a column came to on each commit, by the commits' places; the newest one's is 0.
#[derive(Debug, Default)]
pub(crate) struct ColumnHistory {
    commits: BTreeMap<usize, BTreeMap<String, EndedJob>>,
}

#[derive(Debug, Clone, Copy)]
struct EndedJob {
    state: CiState,
    /// `None` for a backend.
    id: Option<u64>,
}

/// The failures of the jobs of a column that are still red.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ColumnBreakage {
    /// The place of the commit on which the first of these jobs failed, without having passed since.
    pub(crate) first: usize,
    /// Commits since then on which one of them failed.
    pub(crate) commits: usize,
    /// Whether an older commit is known on which that job passed.
    pub(crate) is_first: bool,
    /// The job that failed on the first commit, and one that failed on the newest; `None` for a backend.
    pub(crate) first_job: Option<u64>,
    pub(crate) newest_job: Option<u64>,
}

/// Commits on which a job failed one after another, the newest first.
struct FailedRun {
    /// Places and jobs; not empty.
    failed: Vec<(usize, Option<u64>)>,
    /// Whether it passed before.
    is_first: bool,
}

/// Whether a state is a failure or a pass; `None` if it is neither.
fn is_red(state: CiState) -> Option<bool> {
    (state.is_failure() || state == CiState::Passed).then(|| state.is_failure())
}

/// The same of all jobs on a commit: one that failed makes it red, one that hasn't ended leaves it open.
fn turn(jobs: &BTreeMap<String, EndedJob>) -> Option<bool> {
    is_red(jobs.values().map(|job| job.state).min()?)
}

impl ColumnHistory {
    pub(crate) fn add(&mut self, place: usize, name: &str, state: CiState, id: u64) {
        let job = EndedJob { state, id: Some(id) };
        self.commits.entry(place).or_default().insert(name.to_owned(), job);
    }

    /// `turns`: places of commits, and whether the backend failed there.
    pub(crate) fn of_backend(turns: impl Iterator<Item = (usize, bool)>) -> Self {
        let state = |is_red| if is_red { CiState::Failed } else { CiState::Passed };
        let job = |is_red| EndedJob { state: state(is_red), id: None };
        let on_commit = |(place, is_red)| (place, BTreeMap::from([(String::new(), job(is_red))]));
        Self { commits: turns.map(on_commit).collect() }
    }

    /// The places of the commits on which it was red or green, the newest first.
    pub(crate) fn turns(&self) -> impl Iterator<Item = (usize, bool)> + '_ {
        self.commits.iter().filter_map(|(place, jobs)| Some((*place, turn(jobs)?)))
    }

    /// The commits on which it turned red or green, the oldest first. It turns red again where other jobs fail than before.
    /// One that is red from its first known commit on didn't turn there.
    pub(crate) fn changes(&self) -> Vec<(usize, bool)> {
        let (mut changes, mut was_red): (_, Option<bool>) = (vec![], None);
        let mut red: BTreeSet<&str> = BTreeSet::new();
        for (place, jobs) in self.commits.iter().rev() {
            let Some(turned) = turn(jobs) else {
                let passed =
                    |name: &str| jobs.get(name).is_some_and(|job| job.state == CiState::Passed);
                red.retain(|name| !passed(name));
                continue;
            };
            let mut now = BTreeSet::new();
            for (name, job) in jobs {
                let stays = job.state != CiState::Neutral && red.contains(name.as_str());
                if is_red(job.state).unwrap_or(stays) {
                    now.insert(name.as_str());
                }
            }
            let is_other = turned && now.is_disjoint(&red);
            if was_red.is_some_and(|was_red| was_red != turned || is_other) {
                changes.push((*place, turned));
            }
            (was_red, red) = (Some(turned), now);
        }
        changes
    }

    /// `None` if it isn't red. It is red since the first failure of the jobs that still are: another job may have failed
    /// before and passed since.
    pub(crate) fn breakage(&self) -> Option<ColumnBreakage> {
        let (tip, _) = self.turns().next().filter(|(_, is_red)| *is_red)?;
        // A job that no longer exists stays as it was for ever.
        let known: BTreeSet<&str> = self
            .commits
            .range(..=tip)
            .flat_map(|(_, jobs)| jobs)
            .filter(|(_, job)| job.state != CiState::Neutral)
            .map(|(name, _)| name.as_str())
            .collect();
        let runs: Vec<FailedRun> =
            known.into_iter().filter_map(|name| self.failed_run(name)).collect();
        let begun = |run: &FailedRun| (run.failed.last().map(|(place, _)| *place), run.is_first);
        let longest = runs.iter().max_by_key(|run| begun(run))?;
        let (first, first_job) = *longest.failed.last()?;
        let newest = runs.iter().filter_map(|run| run.failed.first()).min()?;
        let places: BTreeSet<usize> =
            runs.iter().flat_map(|run| &run.failed).map(|(place, _)| *place).collect();
        Some(ColumnBreakage {
            first,
            commits: places.len(),
            is_first: longest.is_first,
            first_job,
            newest_job: newest.1,
        })
    }

    /// `None` if the job didn't fail when it ended last. Commits on which it didn't run, or runs still, neither begin nor
    /// end a breakage.
    fn failed_run(&self, name: &str) -> Option<FailedRun> {
        let (mut failed, mut is_first) = (vec![], false);
        for (place, jobs) in &self.commits {
            let Some(job) = jobs.get(name) else { continue };
            match is_red(job.state) {
                Some(true) => failed.push((*place, job.id)),
                Some(false) => {
                    is_first = true;
                    break;
                }
                None => {}
            }
        }
        (!failed.is_empty()).then_some(FailedRun { failed, is_first })
    }
}
