//! One backend: what it is worth, what ran where, what fails, what was refused.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crcr_domain::facts::CallbackOutcome;
use crcr_domain::results::{Job, Outcome};
use crcr_domain::{Level, RepoName};
use jiff::Timestamp;
use serde::Serialize;

use super::super::query::Span;
use super::super::{Hud, Problem};
use super::level::{self, LevelReview};
use super::overview::entry_of;
use super::{Day, Worth, days, facts, total, trend};
use crate::results::Window;

/// The most commits that the matrix shows.
const ROWS: usize = 50;
/// The most jobs that the matrix shows.
const COLUMNS: usize = 40;

/// The page.
#[derive(Debug, Serialize)]
pub(in super::super) struct Repository {
    pub(in super::super) repo: String,
    /// Where it stands on the allowlist; `None` when it isn't on it (any more).
    pub(in super::super) level: Option<Level>,
    pub(in super::super) oncalls: Vec<String>,
    pub(in super::super) span: Span,
    pub(in super::super) permalink: String,
    pub(in super::super) upstream: String,
    pub(in super::super) newest: Option<Timestamp>,
    #[serde(flatten)]
    pub(in super::super) worth: Worth,
    pub(in super::super) trend: Vec<Day>,
    /// How far it is from what its level, or the next one, asks for; of a listed one.
    pub(in super::super) review: Option<LevelReview>,
    pub(in super::super) matrix: Matrix,
    pub(in super::super) failing_tests: Vec<FailingTest>,
    pub(in super::super) refused: Vec<Refused>,
}

/// Commits by jobs.
#[derive(Debug, Serialize)]
pub(in super::super) struct Matrix {
    pub(in super::super) columns: Vec<String>,
    pub(in super::super) rows: Vec<Row>,
    /// Commits and jobs that are left out.
    pub(in super::super) more_rows: usize,
    pub(in super::super) more_columns: usize,
    /// Older heads of pull requests that are folded away.
    pub(in super::super) older_heads: usize,
}

/// One commit.
#[derive(Debug, Serialize)]
pub(in super::super) struct Row {
    pub(in super::super) pull_request: Option<u64>,
    pub(in super::super) upstream: String,
    pub(in super::super) head_sha: String,
    /// When the newest event of it was accepted.
    pub(in super::super) at: Timestamp,
    /// The pull request has a newer head.
    pub(in super::super) older: bool,
    /// One per column; `None` where the job did not run.
    pub(in super::super) cells: Vec<Option<Cell>>,
}

/// One job on one commit.
#[derive(Debug, Clone, Serialize)]
pub(in super::super) struct Cell {
    /// `None` while it runs.
    pub(in super::super) outcome: Option<Outcome>,
    pub(in super::super) attempts: usize,
    pub(in super::super) url: Option<String>,
}

/// A test and how often it failed.
#[derive(Debug, Serialize)]
pub(in super::super) struct FailingTest {
    pub(in super::super) name: String,
    pub(in super::super) file: Option<String>,
    pub(in super::super) count: u64,
    pub(in super::super) last: Timestamp,
    pub(in super::super) message: Option<String>,
}

/// A report that was refused.
#[derive(Debug, Serialize)]
pub(in super::super) struct Refused {
    pub(in super::super) at: Timestamp,
    pub(in super::super) outcome: CallbackOutcome,
    pub(in super::super) answer: u16,
    pub(in super::super) detail: Option<String>,
}

pub(in super::super) async fn build(
    hud: &Hud,
    repo: &RepoName,
    span: &Span,
) -> Result<Repository, Problem> {
    let own = facts(hud, span, Some(repo.as_str())).await?;
    let days = days::days(hud, span, Some(repo.as_str())).await?;
    let entry = entry_of(hud, repo);
    if entry.is_none() && days.is_empty() {
        let text = format!("{repo} is not on the allowlist and has no results in this span");
        return Err(Problem::NotFound(text));
    }
    let window = Window { from: span.from, to: span.to, repo: Some(repo.as_str().to_owned()) };
    let mut refused: Vec<_> = hud
        .results
        .callbacks(&window)
        .await?
        .into_iter()
        .filter(|callback| callback.answer >= 400)
        .map(|callback| Refused {
            at: callback.at,
            outcome: callback.outcome,
            answer: callback.answer,
            detail: callback.detail,
        })
        .collect();
    refused.reverse();
    refused.truncate(20);
    Ok(Repository {
        repo: entry.as_ref().map_or(repo.as_str(), |entry| entry.repo.as_str()).to_owned(),
        level: entry.as_ref().map(|entry| entry.level),
        oncalls: entry
            .iter()
            .flat_map(|entry| &entry.oncalls)
            .map(|name| name.as_str().to_owned())
            .collect(),
        span: span.clone(),
        permalink: span.permalink(),
        upstream: hud.upstream.as_str().to_owned(),
        newest: own.newest,
        worth: Worth::of(&total(&days)),
        trend: trend(span, &days),
        review: match &entry {
            Some(_) => Some(level::build(hud, repo, None, (None, span.to)).await?),
            None => None,
        },
        matrix: matrix(&own.jobs, span),
        failing_tests: failing_tests(&own.jobs),
        refused,
    })
}

fn matrix(jobs: &[Job], span: &Span) -> Matrix {
    let names: BTreeSet<String> = jobs.iter().map(Job::name).collect();
    let more_columns = names.len().saturating_sub(COLUMNS);
    let columns: Vec<String> = names.into_iter().take(COLUMNS).collect();
    let place: HashMap<&str, usize> =
        columns.iter().enumerate().map(|(n, name)| (name.as_str(), n)).collect();
    let mut rows: BTreeMap<(Option<u64>, &str, &str), Row> = BTreeMap::new();
    for job in jobs {
        let record = &job.record;
        let key = (record.pull_request, record.upstream.as_str(), record.head_sha.as_str());
        let row = rows.entry(key).or_insert_with(|| Row {
            pull_request: record.pull_request,
            upstream: record.upstream.clone(),
            head_sha: record.head_sha.clone(),
            at: record.dispatched_at,
            older: false,
            cells: vec![None; columns.len()],
        });
        row.at = row.at.max(record.dispatched_at);
        if let Some(at) = place.get(job.name().as_str()) {
            row.cells[*at] = Some(Cell {
                outcome: job.outcome,
                attempts: job.attempts,
                url: record.url.clone(),
            });
        }
    }
    let mut rows: Vec<_> = rows.into_values().collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.at));
    let mut pulls = BTreeSet::new();
    for row in &mut rows {
        let pull = row.pull_request.map(|number| (row.upstream.to_ascii_lowercase(), number));
        row.older = pull.is_some_and(|pull| !pulls.insert(pull));
    }
    let older_heads = rows.iter().filter(|row| row.older).count();
    rows.retain(|row| {
        (span.all_heads || !row.older)
            && (!span.only_failing || row.cells.iter().flatten().any(failed))
    });
    let more_rows = rows.len().saturating_sub(ROWS);
    rows.truncate(ROWS);
    Matrix { columns, rows, more_rows, more_columns, older_heads }
}

fn failed(cell: &Cell) -> bool {
    cell.outcome
        .is_some_and(|o| !o.is_pass() && !matches!(o, Outcome::Neutral | Outcome::Superseded))
}

fn failing_tests(jobs: &[Job]) -> Vec<FailingTest> {
    let mut tests: BTreeMap<(&str, Option<&str>), FailingTest> = BTreeMap::new();
    for job in jobs {
        for test in &job.record.failed_tests {
            let seen = tests.entry((&test.name, test.file.as_deref())).or_insert(FailingTest {
                name: test.name.clone(),
                file: test.file.clone(),
                count: 0,
                last: job.record.received_at,
                message: test.message.clone(),
            });
            seen.count += 1;
            if job.record.received_at > seen.last {
                seen.last = job.record.received_at;
                seen.message.clone_from(&test.message);
            }
        }
    }
    let mut tests: Vec<_> = tests.into_values().collect();
    tests.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.name.cmp(&b.name)));
    tests.truncate(20);
    tests
}
