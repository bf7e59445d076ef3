//! What became of a test: its results by commit and job, what it says when it fails, and its charts.

use std::collections::{BTreeMap, BTreeSet};

use aws_lc_rs::digest::{SHA256, digest};
use crcr_domain::ci_data::test_run::TestResult;
use crcr_results::test_history::{TestJobDay, TestResultRow};
use crcr_results::test_runs::date;

use super::{CellState, MessageGroup, StripCell, StripCommit, StripJob, TestState};
use crate::address::SortOrder;
use crate::plot::{Plot, PlotLine, Unit};

/// Commits of the strip.
const MAX_COMMITS: usize = 40;
/// A job without a result on this many commits doesn't run any more.
const MAX_SILENT: usize = 5;
/// Characters of a message that are quoted.
const MAX_QUOTED: usize = 600;

/// The newest commits, and each job's result on them.
pub(crate) fn strip(results: &[&TestResultRow]) -> (Vec<StripCommit>, Vec<StripJob>) {
    let mut commits: Vec<StripCommit> = vec![];
    for row in results.iter().filter(|row| !row.head_sha.is_empty()) {
        match commits.iter().position(|commit| commit.sha == row.head_sha) {
            // The commit is as old as its first run.
            Some(known) => commits[known].at = commits[known].at.min(row.at),
            None if commits.len() < MAX_COMMITS => {
                let (sha, at) = (row.head_sha.clone(), row.at);
                commits.push(StripCommit { sha, at, message: None });
            }
            None => {}
        }
    }
    commits.sort_by(|a, b| b.at.cmp(&a.at).then_with(|| a.sha.cmp(&b.sha)));
    let mut jobs: BTreeMap<&str, Vec<Option<StripCell>>> = BTreeMap::new();
    for row in results {
        let Some(at) = commits.iter().position(|commit| commit.sha == row.head_sha) else {
            continue;
        };
        let cells = jobs.entry(&row.job).or_insert_with(|| vec![None; commits.len()]);
        let cell = StripCell { state: cell_state(row), run_id: row.run_id, job_id: row.job_id };
        cells[at] = Some(match cells[at] {
            None => cell,
            // It passed and failed on this commit.
            Some(known) if is_mixed(known.state, cell.state) => {
                let failed = if known.state == CellState::Failed { known } else { cell };
                StripCell { state: CellState::Flaky, ..failed }
            }
            Some(known) => {
                if cell.state < known.state {
                    cell
                } else {
                    known
                }
            }
        });
    }
    for (at, commit) in commits.iter_mut().enumerate() {
        // A job that also passed there isn't why the commit is red.
        let is_red = |job: &str| {
            let cell = jobs.get(job).and_then(|cells| cells[at]);
            cell.is_some_and(|cell| cell.state == CellState::Failed)
        };
        let failed = results.iter().filter(|row| row.result.is_failed());
        let said = failed
            .filter(|row| row.head_sha == commit.sha && is_red(&row.job))
            .find_map(|row| row.message.as_deref());
        commit.message = said.map(quoted);
    }
    let jobs = jobs.into_iter().map(|(job, cells)| StripJob { job: job.to_owned(), cells });
    (commits, jobs.collect())
}

fn quoted(message: &str) -> String {
    message.chars().take(MAX_QUOTED).collect()
}

fn is_mixed(a: CellState, b: CellState) -> bool {
    let (worst, best) = (a.min(b), a.max(b));
    worst == CellState::Failed && matches!(best, CellState::Passed | CellState::Flaky)
}

/// What results have in common that are compared: whether they are of the default branch, the job, the kind of its
/// reports, and the commit.
pub(crate) type SetupOnCommit<'a> = (bool, &'a str, &'a str, &'a str);

fn setup_on_commit(row: &TestResultRow) -> SetupOnCommit<'_> {
    (row.on_default_branch, row.job.as_str(), row.setup.as_str(), row.head_sha.as_str())
}

fn has_failed_or_passed(row: &TestResultRow) -> bool {
    matches!(cell_state(row), CellState::Failed | CellState::Flaky | CellState::Passed)
}

/// Where the test both failed and passed, as after a re-run.
pub(crate) fn mixed_setups(results: &[TestResultRow]) -> BTreeSet<SetupOnCommit<'_>> {
    let mut found: BTreeMap<SetupOnCommit<'_>, (CellState, CellState)> = BTreeMap::new();
    let of_commits = results.iter().filter(|row| !row.head_sha.is_empty());
    for row in of_commits.filter(|row| has_failed_or_passed(row)) {
        let state = cell_state(row);
        let (worst, best) = found.entry(setup_on_commit(row)).or_insert((state, state));
        (*worst, *best) = (state.min(*worst), state.max(*best));
    }
    let mixed = found.into_iter().filter(|(_, (worst, best))| is_mixed(*worst, *best));
    mixed.map(|(setup, _)| setup).collect()
}

/// Whether a result is one of those that differ.
pub(crate) fn is_of_mixed(row: &TestResultRow, mixed: &BTreeSet<SetupOnCommit<'_>>) -> bool {
    has_failed_or_passed(row) && mixed.contains(&setup_on_commit(row))
}

pub(crate) fn cell_state(row: &TestResultRow) -> CellState {
    match row.result {
        TestResult::Failure | TestResult::Error => CellState::Failed,
        TestResult::Unfinished => CellState::Unfinished,
        TestResult::Skipped => CellState::Skipped,
        TestResult::Success if row.flaky => CellState::Flaky,
        TestResult::Success => CellState::Passed,
    }
}

/// The newest commits first, with whether it failed there. A job that failed fails until it passes again: one that hasn't
/// run on a commit yet, while others passed there, says nothing. Commits on which nothing ran are left out.
pub(crate) fn on_commits<'a>(
    commits: &'a [StripCommit],
    jobs: &[StripJob],
) -> Vec<(&'a StripCommit, bool)> {
    let mut found = vec![];
    // The jobs that fail, each with the commits since its last result.
    let mut failing: BTreeMap<&str, usize> = BTreeMap::new();
    for (at, commit) in commits.iter().enumerate().rev() {
        let cell = |job: &StripJob| job.cells[at].filter(|cell| cell.state != CellState::Skipped);
        if !jobs.iter().any(|job| cell(job).is_some()) {
            continue;
        }
        failing.values_mut().for_each(|silent| *silent += 1);
        for job in jobs {
            match cell(job).map(|cell| cell.state <= CellState::Unfinished) {
                Some(true) => drop(failing.insert(&job.job, 0)),
                Some(false) => drop(failing.remove(&*job.job)),
                None => {}
            }
        }
        failing.retain(|_, silent| *silent <= MAX_SILENT);
        found.push((commit, !failing.is_empty()));
    }
    found.reverse();
    found
}

pub(crate) fn state(commits: &[StripCommit], jobs: &[StripJob]) -> TestState {
    let on_commits = on_commits(commits, jobs);
    let failing = on_commits.iter().take_while(|(_, failed)| *failed).count();
    match on_commits.first() {
        None => TestState::NoResults,
        Some((_, true)) => {
            let first = on_commits[failing - 1].0;
            TestState::Failing {
                first_failing: first.sha.clone(),
                since: first.at,
                last_good: on_commits.get(failing).map(|(commit, _)| commit.sha.clone()),
                commits: failing,
            }
        }
        Some((_, false)) => match on_commits.iter().find(|(_, failed)| *failed) {
            Some((commit, _)) => TestState::Recovered { last_failing: commit.sha.clone() },
            None => TestState::Passing,
        },
    }
}

/// All of them, the most frequent first.
pub(crate) fn messages(results: &[&TestResultRow]) -> Vec<MessageGroup> {
    let mut groups: BTreeMap<String, (MessageGroup, BTreeSet<&str>)> = BTreeMap::new();
    for row in results.iter().copied().filter(|row| row.result.is_failed()) {
        let message = row.message.as_deref().unwrap_or_default();
        let (group, jobs) = groups.entry(alike(message)).or_insert_with(|| {
            let (id, message, newest) = (message_id(row), quoted(message), row.clone());
            let group =
                MessageGroup { id, message, failures: 0, jobs: 0, newest, oldest_at: row.at };
            (group, BTreeSet::new())
        });
        group.failures += 1;
        group.oldest_at = group.oldest_at.min(row.at);
        jobs.insert(&row.job);
    }
    let mut groups: Vec<MessageGroup> = groups
        .into_values()
        .map(|(group, jobs)| MessageGroup { jobs: jobs.len(), ..group })
        .collect();
    groups.sort_by(|a, b| b.failures.cmp(&a.failures).then_with(|| b.newest.at.cmp(&a.newest.at)));
    groups
}

/// The most failures and jobs first, and the newest and the oldest.
pub(crate) fn sort_messages(groups: &mut [MessageGroup], order: &SortOrder) {
    groups.sort_by(|a, b| {
        order.apply(match order.column {
            "jobs" => b.jobs.cmp(&a.jobs),
            "newest" => b.newest.at.cmp(&a.newest.at),
            "oldest" => a.oldest_at.cmp(&b.oldest_at),
            _ => b.failures.cmp(&a.failures),
        })
    });
}

/// The first line of a message, with one sign for each number: addresses and times differ from run to run.
fn alike(message: &str) -> String {
    let line = message.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let mut text = String::new();
    for c in line.chars().take(300) {
        let c = if c.is_ascii_digit() { '#' } else { c };
        if c != '#' || !text.ends_with('#') {
            text.push(c);
        }
    }
    text
}

/// Names what a failure says in an address.
pub(crate) fn message_id(row: &TestResultRow) -> String {
    let sum = digest(&SHA256, alike(row.message.as_deref().unwrap_or_default()).as_bytes());
    hex::encode(&sum.as_ref()[..8])
}

pub(crate) fn charts(days: &[&TestJobDay], (first, last): (i64, i64)) -> Vec<Plot> {
    #[derive(Default)]
    struct DaySum {
        ran: u64,
        failures: u64,
        flaky: u64,
        timed: u64,
        seconds: f64,
    }
    let mut by_day: BTreeMap<i64, DaySum> = BTreeMap::new();
    for day in days {
        let sum = by_day.entry(day.day).or_default();
        sum.ran += day.runs.saturating_sub(day.skipped);
        sum.failures += day.failures;
        sum.flaky += day.flaky;
        sum.timed += day.timed;
        sum.seconds += day.seconds;
    }
    let of_days = |value: fn(&DaySum) -> Option<f64>| -> Vec<Option<f64>> {
        (first..=last).map(|day| by_day.get(&day).and_then(value)).collect()
    };
    let line = |name: &str, values| PlotLine { name: name.to_owned(), values };
    let plot = |title: &str, unit, lines| Plot {
        title: title.to_owned(),
        unit,
        times: (first..=last).map(date).collect(),
        hours: vec![],
        lines,
    };
    vec![
        plot(
            "Failed and flaky results a day",
            Unit::Count,
            vec![
                line("failed", of_days(|sum| (sum.ran > 0).then_some(sum.failures as f64))),
                line("flaky", of_days(|sum| (sum.ran > 0).then_some(sum.flaky as f64))),
            ],
        ),
        plot(
            "Mean duration",
            Unit::Seconds,
            vec![line(
                "mean",
                of_days(|sum| (sum.timed > 0).then(|| sum.seconds / sum.timed as f64)),
            )],
        ),
    ]
}
