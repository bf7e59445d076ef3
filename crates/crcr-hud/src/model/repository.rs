//! One backend: rates, the matrix of commits and jobs, failing tests, refused reports.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crcr_domain::facts::CallbackOutcome;
use crcr_domain::proof::MissingProof;
use crcr_domain::results::{BlamedJobs, JobOfRecord, JobOutcome, jobs_of_days};
use crcr_domain::triage::TriageCategory;
use crcr_domain::{Level, RepoName};
use crcr_results::Window;
use crcr_results::review::{self, ReviewInputs};
use jiff::Timestamp;
use serde::Serialize;

use super::level::LevelReview;
use super::overview::{entry_of, is_nightly_only};
use super::{RateSummary, RateView, TrendDay, days, total, trend};
use crate::query::{EventFilter, TimeSpan};
use crate::{Hud, PageError};

const MAX_ROWS: usize = 50;
const MAX_COLUMNS: usize = 40;

const MAX_REFUSED: usize = 20;

#[derive(Debug, Serialize)]
pub(crate) struct BackendModel {
    pub(crate) repo: String,
    /// Its level on the allowlist; `None` if it isn't listed.
    pub(crate) level: Option<Level>,
    pub(crate) oncalls: Vec<String>,
    pub(crate) span: TimeSpan,
    pub(crate) permalink: String,
    pub(crate) upstream: String,
    pub(crate) newest: Option<Timestamp>,
    #[serde(flatten)]
    pub(crate) worth: RateSummary,
    /// How many jobs failed because of upstream, and the rates without these.
    pub(crate) upstream_failures: u64,
    pub(crate) job_pass_without_upstream: RateView,
    pub(crate) test_pass_without_upstream: RateView,
    pub(crate) trend: Vec<TrendDay>,
    /// The criteria for its level or the next one; `None` if it isn't listed.
    pub(crate) review: Option<LevelReview>,
    pub(crate) matrix: JobMatrix,
    pub(crate) failing_tests: Vec<FailingTest>,
    pub(crate) refused: Vec<RefusedReport>,
}

#[derive(Debug, Serialize)]
pub(crate) struct JobMatrix {
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<MatrixRow>,
    /// How many commits and jobs are left out.
    pub(crate) more_rows: usize,
    pub(crate) more_columns: usize,
    /// How many older heads of pull requests are left out.
    pub(crate) older_heads: usize,
}

#[derive(Debug, Serialize)]
pub(crate) struct MatrixRow {
    pub(crate) pull_request: Option<u64>,
    pub(crate) upstream: String,
    /// Empty if no commit of upstream is known.
    pub(crate) head_sha: String,
    /// A run on it.
    pub(crate) run_id: String,
    /// When the newest event of it was accepted.
    pub(crate) at: Timestamp,
    /// Whether the pull request has a newer head.
    pub(crate) older: bool,
    /// One for each column; `None` if the job didn't run.
    pub(crate) cells: Vec<Option<MatrixCell>>,
}

/// One job on one commit.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct MatrixCell {
    /// `None` while it runs.
    pub(crate) outcome: Option<JobOutcome>,
    pub(crate) attempts: usize,
    pub(crate) url: Option<String>,
    /// Hardware, driver and image, as reported.
    pub(crate) environment: Option<String>,
    pub(crate) artifact_url: Option<String>,
    /// What was dropped from its reports or changed in them, and why.
    pub(crate) warnings: Vec<String>,
    /// Why nothing is concluded from it.
    pub(crate) missing_proof: Option<MissingProof>,
    /// Whose fault a failure is, and why; `None` if it didn't fail.
    pub(crate) blame: Option<CellBlame>,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct CellBlame {
    pub(crate) category: TriageCategory,
    pub(crate) summary: String,
}

#[derive(Debug, Serialize)]
pub(crate) struct FailingTest {
    pub(crate) name: String,
    pub(crate) file: Option<String>,
    pub(crate) count: u64,
    pub(crate) last: Timestamp,
    pub(crate) message: Option<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct RefusedReport {
    pub(crate) at: Timestamp,
    pub(crate) outcome: CallbackOutcome,
    pub(crate) answer: u16,
    pub(crate) detail: Option<String>,
}

pub(crate) async fn build(
    hud: &Hud,
    repo: &RepoName,
    span: &TimeSpan,
) -> Result<BackendModel, PageError> {
    let span = &span_with_results(hud, repo, span).await?;
    let entry = entry_of(hud, repo);
    let level = entry.as_ref().map(|entry| entry.level);
    let named = entry.as_ref().map_or(repo, |entry| &entry.repo);
    let window = Window::all(span.from, span.to).of_repos(vec![repo.as_str().to_owned()]);
    let reviewed = review::window(named, level, (None, span.to), &hud.criteria);
    // The page usually covers the review's window already, so both are read together.
    let both_windows = Window { from: window.from.min(reviewed.from), ..window.clone() };
    let refused = async { Ok(hud.results.refused_callbacks(&window, MAX_REFUSED).await?) };
    // Computed while the other reads wait for the store.
    let shown = async {
        let facts = days::facts(hud, &both_windows).await?;
        let newest = facts.attempts(&window).map(|row| row.received_at).max();
        let blamed = days::blame(hud, &facts).await?;
        // Ordered by day, so that the matrix shows the last result of a job.
        let jobs = jobs_of_days(
            facts.attempts(&window).filter(|row| span.events.includes(&row.event)),
            facts.dispatches(&window).filter(|sent| span.events.includes(&sent.event)),
        );
        let upstream_failures = blamed.upstream_failures(&jobs);
        let (matrix, tests) = (matrix(&jobs, span, &blamed), failing_tests(&jobs));
        Ok((facts, newest, matrix, tests, blamed, upstream_failures))
    };
    let (days, beside, refused, shown) = tokio::try_join!(
        days::day_tallies(hud, span, Some(repo.as_str())),
        ReviewInputs::read(
            &*hud.results,
            named,
            &reviewed,
            &hud.criteria,
            days::callback_outcomes(hud, &reviewed)
        ),
        refused,
        shown,
    )?;
    let (facts, newest, matrix, failing_tests, blamed, upstream_failures) = shown;
    if entry.is_none() && days.is_empty() {
        let text = format!("{repo} is not on the allowlist and has no results in this span");
        return Err(PageError::NotFound(text));
    }
    let review = entry.is_some().then(|| {
        let facts = (facts.attempts(&reviewed).collect(), facts.dispatches(&reviewed).collect());
        LevelReview::from(beside.review(named, level, &reviewed, facts, blamed, &hud.criteria))
    });
    let total = total(&days);
    let sums = &total.sums;
    let refused = refused
        .into_iter()
        .map(|callback| RefusedReport {
            at: callback.at,
            outcome: callback.outcome,
            answer: callback.answer,
            detail: callback.detail,
        })
        .collect();
    Ok(BackendModel {
        repo: named.as_str().to_owned(),
        level,
        oncalls: entry
            .iter()
            .flat_map(|entry| &entry.oncalls)
            .map(|name| name.as_str().to_owned())
            .collect(),
        span: span.clone(),
        permalink: span.permalink(),
        upstream: hud.upstream.as_str().to_owned(),
        newest,
        job_pass_without_upstream: sums.job_pass().without_failures(upstream_failures).into(),
        test_pass_without_upstream: sums.test_pass().without_failures(upstream_failures).into(),
        upstream_failures,
        worth: RateSummary::new(&total),
        trend: trend(span, &days),
        review,
        matrix,
        failing_tests,
        refused,
    })
}

/// A backend that only has nightly runs begins with those, unless the query names the events.
async fn span_with_results(
    hud: &Hud,
    repo: &RepoName,
    span: &TimeSpan,
) -> Result<TimeSpan, PageError> {
    let nightly = TimeSpan { events: EventFilter::Nightly, ..span.clone() };
    if span.events_named {
        return Ok(span.clone());
    }
    if entry_of(hud, repo).is_some_and(|entry| is_nightly_only(&entry)) {
        return Ok(nightly);
    }
    let is_empty = days::day_tallies(hud, span, Some(repo.as_str())).await?.is_empty()
        && !days::day_tallies(hud, &nightly, Some(repo.as_str())).await?.is_empty();
    Ok(if is_empty { nightly } else { span.clone() })
}

fn matrix<'a>(jobs: &[JobOfRecord<'a>], span: &TimeSpan, blamed: &BlamedJobs) -> JobMatrix {
    // Names are built once for each (workflow, job), which many jobs share.
    let id = |job: &JobOfRecord<'a>| (&*job.record.workflow, job.record.job.as_deref());
    let ids: HashMap<_, _> = jobs.iter().map(|job| (id(job), job)).collect();
    let names: BTreeSet<String> = ids.values().map(|job| job.name()).collect();
    let more_columns = names.len().saturating_sub(MAX_COLUMNS);
    let columns: Vec<String> = names.into_iter().take(MAX_COLUMNS).collect();
    let place: HashMap<_, usize> = (ids.into_iter())
        .filter_map(|(id, job)| Some((id, columns.binary_search(&job.name()).ok()?)))
        .collect();
    let mut rows: BTreeMap<(Option<u64>, &str, &str), MatrixRow> = BTreeMap::new();
    for job in jobs {
        let record = job.record;
        // Self-reports may have no commit; the jobs of one run belong together then.
        let key = (record.pull_request, record.upstream.as_str(), record.commit_or_run());
        let row = rows.entry(key).or_insert_with(|| MatrixRow {
            pull_request: record.pull_request,
            upstream: record.upstream.clone(),
            head_sha: record.head_sha.clone(),
            run_id: record.run_id.clone(),
            at: record.dispatched_at,
            older: false,
            cells: vec![None; columns.len()],
        });
        row.at = row.at.max(record.dispatched_at);
        if let Some(at) = place.get(&id(job)) {
            row.cells[*at] = Some(MatrixCell {
                outcome: job.outcome,
                attempts: job.attempts,
                url: record.details.url.clone(),
                environment: record.details.environment.clone(),
                artifact_url: record.details.artifact_url.clone(),
                warnings: record.details.warnings.clone(),
                missing_proof: record.missing_proof,
                blame: blamed.verdict(record).map(|verdict| CellBlame {
                    category: verdict.category,
                    summary: verdict.summary.clone(),
                }),
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
    let more_rows = rows.len().saturating_sub(MAX_ROWS);
    rows.truncate(MAX_ROWS);
    JobMatrix { columns, rows, more_rows, more_columns, older_heads }
}

fn failed(cell: &MatrixCell) -> bool {
    cell.outcome
        .is_some_and(|o| !o.is_pass() && !matches!(o, JobOutcome::Neutral | JobOutcome::Superseded))
}

fn failing_tests(jobs: &[JobOfRecord<'_>]) -> Vec<FailingTest> {
    let mut tests: BTreeMap<(&str, Option<&str>), FailingTest> = BTreeMap::new();
    for job in jobs {
        for test in &job.record.details.failed_tests {
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
