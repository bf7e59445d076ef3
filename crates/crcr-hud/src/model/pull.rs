//! One pull request, at its current head only.

use std::collections::HashMap;

use crcr_domain::callback::{FailedTest, TestCounts};
use crcr_domain::ci_data::job_log::JobLogRow;
use crcr_domain::ci_data::workflow::WorkflowJob;
use crcr_domain::facts::{AttemptFact, DispatchFact, DispatchFactStatus, MergeBaseFact};
use crcr_domain::proof::MissingProof;
use crcr_domain::results::{BlameContext, BranchResults, JobOfRecord, JobOutcome, jobs_of_record};
use crcr_domain::triage::{TriageCategory, TriageVerdict};
use crcr_domain::{Level, RepoName};
use crcr_results::Window;
use crcr_results::webhook_tables::{ThingQuery, ThingSelection};
use jiff::Timestamp;
use serde::Serialize;

use super::branch;
use super::days::push_facts;
use super::overview::entry_of;
use crate::{Hud, PageError};

/// How many days back to look for the last result on an upstream push.
const PUSH_LOOKBACK_DAYS: i64 = 14;
/// A commit may be pushed some days after its date, because a rebase keeps the date.
const PUSH_DELAY_DAYS: i64 = 7;
/// Logs of failed jobs on a page.
const MAX_LOGS: usize = 50;

#[derive(Debug, Serialize)]
pub(crate) struct PullModel {
    pub(crate) upstream: String,
    pub(crate) number: u64,
    pub(crate) head_sha: String,
    /// The commit that the head and its base branch have in common; `None` when unknown.
    pub(crate) merge_base: Option<String>,
    /// When the newest report on this head was received.
    pub(crate) newest: Option<Timestamp>,
    /// How many older heads this page leaves out.
    pub(crate) older_heads: usize,
    /// From L4 down to L1.
    pub(crate) backends: Vec<PullBackend>,
    /// The upstream repository's own jobs on this head, failures first.
    pub(crate) in_tree: Vec<WorkflowJob>,
    /// What the logs of those that failed say.
    pub(crate) in_tree_logs: Vec<JobLogRow>,
}

#[derive(Debug, Serialize)]
pub(crate) struct PullBackend {
    pub(crate) repo: String,
    pub(crate) level: Level,
    /// Whether a failure blocks the merge.
    pub(crate) blocks: bool,
    pub(crate) oncalls: Vec<String>,
    pub(crate) dispatch: DispatchFactStatus,
    pub(crate) last_error: Option<String>,
    /// The verdict on its most telling failure.
    pub(crate) verdict: Option<TriageVerdict>,
    pub(crate) jobs: Vec<PullJob>,
}

#[derive(Debug, Serialize)]
pub(crate) struct PullJob {
    pub(crate) name: String,
    /// `None` while it runs.
    pub(crate) outcome: Option<JobOutcome>,
    pub(crate) attempts: usize,
    pub(crate) url: Option<String>,
    pub(crate) tests: Option<TestCounts>,
    pub(crate) failed_tests: Vec<FailedTest>,
    /// Whether each failing test is new; `None` if there is nothing to compare with.
    pub(crate) new_tests: Option<Vec<bool>>,
    /// Whose fault it is, computed from stored results; `None` if nothing failed.
    pub(crate) verdict: Option<TriageVerdict>,
    /// The verdict of the backend itself.
    pub(crate) reported_verdict: Option<TriageVerdict>,
    /// Where it ran, as the backend says.
    pub(crate) environment: Option<String>,
    pub(crate) artifact_url: Option<String>,
    /// What was dropped from its reports or changed in them, and why.
    pub(crate) warnings: Vec<String>,
    /// What its reports lack as proof. An unproven result changes no check run.
    pub(crate) missing_proof: Option<MissingProof>,
}

pub(crate) async fn build(
    hud: &Hud,
    upstream: &RepoName,
    number: u64,
) -> Result<PullModel, PageError> {
    let numbers = [number];
    let ((attempts, dispatches), merge_bases) = tokio::try_join!(
        hud.results.pull_request_facts(upstream.as_str(), &numbers),
        hud.results.merge_bases(upstream.as_str(), &numbers),
    )?;
    let reported = head(&dispatches).or_else(|| attempts.last().map(|r| r.head_sha.clone()));
    let head_sha = match reported {
        Some(head_sha) => Some(head_sha),
        None => head_from_webhooks(hud, upstream, number).await?,
    };
    let Some(head_sha) = head_sha else {
        let text = format!("no results of pull request {number} of {upstream} are known");
        return Err(PageError::NotFound(text));
    };
    let mut heads: Vec<&str> = (dispatches.iter().map(|dispatch| dispatch.head_sha.as_str()))
        .chain(attempts.iter().map(|row| row.head_sha.as_str()))
        .collect();
    heads.sort_unstable();
    heads.dedup();
    let older_heads = heads.len().saturating_sub(1);
    let jobs: Vec<JobOfRecord<'_>> = jobs_of_record(&attempts, &dispatches)
        .into_iter()
        .filter(|job| job.record.head_sha == head_sha)
        .collect();
    let newest = jobs.iter().map(|job| job.record.received_at).max();
    let mut failing: Vec<String> = jobs
        .iter()
        .filter(|job| job.outcome == Some(JobOutcome::TestFailed))
        .map(|job| job.record.repo.to_ascii_lowercase())
        .collect();
    failing.sort_unstable();
    failing.dedup();
    let merge_base = merge_bases.into_iter().find(|found| found.head_sha == head_sha);
    let pushed = attempts_on_pushes(hud, upstream, failing, merge_base.as_ref()).await?;
    let pushed = jobs_of_record(&pushed, &[]);
    let merge_base = merge_base.map(|found| found.merge_base);
    let context = BlameContext {
        head: &jobs,
        branch: &BranchResults::new(&pushed),
        merge_base: merge_base.as_deref(),
        pull_request: Some(number),
    };
    let mut backends: Vec<PullBackend> = newest_of_head(&dispatches, &head_sha)
        .into_iter()
        .map(|dispatch| backend(hud, dispatch, &context))
        .collect();
    backends.sort_by(|a, b| b.level.cmp(&a.level).then_with(|| a.repo.cmp(&b.repo)));
    let in_tree = branch::jobs_of_commit(hud, upstream, &head_sha).await?;
    let failed: Vec<u64> = in_tree
        .iter()
        .filter(|job| job.state.is_failure())
        .take(MAX_LOGS)
        .map(|job| job.id)
        .collect();
    let in_tree_logs = hud.results.job_logs(upstream.as_str(), &failed).await?;
    Ok(PullModel {
        in_tree,
        in_tree_logs,
        upstream: upstream.as_str().to_owned(),
        number,
        head_sha,
        merge_base,
        newest,
        older_heads,
        backends,
    })
}

/// The head of the newest dispatch that wasn't superseded.
fn head(dispatches: &[DispatchFact]) -> Option<String> {
    let current =
        dispatches.iter().filter(|dispatch| dispatch.status != DispatchFactStatus::Superseded);
    current
        .max_by_key(|dispatch| dispatch.enqueued_at)
        .or_else(|| dispatches.iter().max_by_key(|dispatch| dispatch.enqueued_at))
        .map(|dispatch| dispatch.head_sha.clone())
}

/// The head of a pull request that no backend was told of, from the stored webhooks.
async fn head_from_webhooks(
    hud: &Hud,
    upstream: &RepoName,
    number: u64,
) -> Result<Option<String>, PageError> {
    for event in ["pull_request", "workflow_run"] {
        let selection = ThingSelection::Number(number);
        let query = ThingQuery { event, repository: upstream.as_str(), selection };
        let rows = hud.results.current_things(&query).await?;
        if let Some(row) = rows.into_iter().find(|row| !row.sha.is_empty()) {
            return Ok(Some(row.sha));
        }
    }
    Ok(None)
}

/// The newest dispatch of this head to each repository. Labels and reopening cause further ones.
fn newest_of_head<'a>(dispatches: &'a [DispatchFact], head: &str) -> Vec<&'a DispatchFact> {
    let mut newest: HashMap<String, &DispatchFact> = HashMap::new();
    for dispatch in dispatches.iter().filter(|dispatch| dispatch.head_sha == head) {
        let slot = newest.entry(dispatch.repo.to_ascii_lowercase()).or_insert(dispatch);
        if dispatch.enqueued_at > slot.enqueued_at {
            *slot = dispatch;
        }
    }
    newest.into_values().collect()
}

fn backend(hud: &Hud, dispatch: &DispatchFact, context: &BlameContext<'_>) -> PullBackend {
    let entry = RepoName::new(&dispatch.repo).ok().and_then(|repo| entry_of(hud, &repo));
    let own =
        context.head.iter().filter(|job| job.record.repo.eq_ignore_ascii_case(&dispatch.repo));
    let jobs: Vec<PullJob> = own
        .map(|job| PullJob {
            new_tests: context.new_tests(job),
            verdict: context.verdict(job),
            reported_verdict: job.record.details.triage.clone(),
            name: job.name(),
            outcome: job.outcome,
            attempts: job.attempts,
            url: job.record.details.url.clone(),
            tests: job.record.details.tests,
            failed_tests: job.record.details.failed_tests.clone(),
            environment: job.record.details.environment.clone(),
            artifact_url: job.record.details.artifact_url.clone(),
            warnings: job.record.details.warnings.clone(),
            missing_proof: job.record.missing_proof,
        })
        .collect();
    let judged = jobs.iter().filter_map(|job| Some((job.outcome, job.verdict.as_ref()?)));
    // A failed test says most about a pull request, and a passed re-run least.
    let verdict = judged.max_by_key(|(outcome, verdict)| {
        (*outcome == Some(JobOutcome::TestFailed), verdict.category != TriageCategory::Flake)
    });
    PullBackend {
        repo: dispatch.repo.clone(),
        level: dispatch.level,
        blocks: dispatch.level.blocks_merge(),
        oncalls: entry
            .iter()
            .flat_map(|entry| &entry.oncalls)
            .map(|name| name.as_str().to_owned())
            .collect(),
        dispatch: dispatch.status,
        last_error: dispatch.last_error.clone(),
        verdict: verdict.map(|(_, verdict)| verdict.clone()),
        jobs,
    }
}

/// The attempts of these backends on upstream's latest commits, and on the merge base if that is
/// older.
async fn attempts_on_pushes(
    hud: &Hud,
    upstream: &RepoName,
    repos: Vec<String>,
    merge_base: Option<&MergeBaseFact>,
) -> Result<Vec<AttemptFact>, PageError> {
    if repos.is_empty() {
        return Ok(vec![]);
    }
    let days = |days| jiff::SignedDuration::from_hours(24 * days);
    let to = (hud.clock)();
    let from = to - days(PUSH_LOOKBACK_DAYS);
    let recent = Window::all(from, to).of_repos(repos);
    let known = push_facts(hud, &recent).await?;
    let mut rows: Vec<_> = known.attempts(&recent).cloned().collect();
    if let Some(MergeBaseFact { committed_at, merge_base, .. }) = merge_base
        && *committed_at < from
    {
        let pushed = committed_at.checked_add(days(PUSH_DELAY_DAYS)).unwrap_or(from);
        let then = Window { from: *committed_at, to: from.min(pushed), ..recent };
        let old = hud.results.push_attempts(&then).await?;
        rows.extend(old.into_iter().filter(|row| row.head_sha == *merge_base));
    }
    rows.retain(|row| row.upstream.eq_ignore_ascii_case(upstream.as_str()));
    Ok(rows)
}
