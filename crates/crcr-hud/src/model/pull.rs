//! One pull request, at its current head only.

use std::collections::HashMap;

use crcr_domain::callback::{FailedTest, TestCounts};
use crcr_domain::facts::{AttemptFact, DispatchFact, DispatchFactStatus, MergeBaseFact};
use crcr_domain::proof::MissingProof;
use crcr_domain::results::{JobOfRecord, JobOutcome, jobs_of_record};
use crcr_domain::{Level, RepoName};
use crcr_results::Window;
use jiff::Timestamp;
use serde::Serialize;

use super::days::push_facts;
use super::overview::entry_of;
use crate::query::EventFilter;
use crate::{Hud, PageError};

/// How many days back to look for the last result on an upstream push.
const PUSH_LOOKBACK_DAYS: i64 = 14;
/// A commit may be pushed some days after its date, because a rebase keeps the date.
const PUSH_DELAY_DAYS: i64 = 7;

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
    /// The same job without this pull request; `None` if its tests didn't fail here or nothing is
    /// known.
    pub(crate) before: Option<EarlierResult>,
    /// What its reports lack as proof. An unproven result changes no check run.
    pub(crate) missing_proof: Option<MissingProof>,
}

/// The result of the same job on an upstream push.
#[derive(Debug, Serialize)]
pub(crate) struct EarlierResult {
    pub(crate) head_sha: String,
    /// Whether it ran on the merge base; otherwise on the newest push with a result.
    pub(crate) is_merge_base: bool,
    pub(crate) passed: bool,
    pub(crate) at: Timestamp,
}

pub(crate) async fn build(
    hud: &Hud,
    upstream: &RepoName,
    number: u64,
) -> Result<PullModel, PageError> {
    let ((attempts, dispatches), merge_bases) = tokio::try_join!(
        hud.results.pull_request_facts(upstream.as_str(), number),
        hud.results.merge_bases(upstream.as_str(), number),
    )?;
    let Some(head_sha) = head(&dispatches).or_else(|| attempts.last().map(|r| r.head_sha.clone()))
    else {
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
    let mut by_repo: HashMap<String, Vec<JobOfRecord<'_>>> = HashMap::new();
    for job in jobs {
        by_repo.entry(job.record.repo.to_ascii_lowercase()).or_default().push(job);
    }
    let failing: Vec<String> = by_repo
        .iter()
        .filter(|(_, jobs)| jobs.iter().any(|job| job.outcome == Some(JobOutcome::TestFailed)))
        .map(|(repo, _)| repo.clone())
        .collect();
    let merge_base = merge_bases.into_iter().find(|found| found.head_sha == head_sha);
    let branch = attempts_on_pushes(hud, upstream, failing, merge_base.as_ref()).await?;
    let branch = jobs_of_record(&branch, &[]);
    let merge_base = merge_base.map(|found| found.merge_base);
    let mut backends: Vec<PullBackend> = newest_of_head(&dispatches, &head_sha)
        .into_iter()
        .map(|dispatch| {
            let jobs = by_repo.remove(&dispatch.repo.to_ascii_lowercase()).unwrap_or_default();
            backend(hud, dispatch, jobs, &branch, merge_base.as_deref())
        })
        .collect();
    backends.sort_by(|a, b| b.level.cmp(&a.level).then_with(|| a.repo.cmp(&b.repo)));
    Ok(PullModel {
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

fn backend(
    hud: &Hud,
    dispatch: &DispatchFact,
    jobs: Vec<JobOfRecord<'_>>,
    branch: &[JobOfRecord<'_>],
    merge_base: Option<&str>,
) -> PullBackend {
    let entry = RepoName::new(&dispatch.repo).ok().and_then(|repo| entry_of(hud, &repo));
    let jobs = jobs
        .into_iter()
        .map(|job| PullJob {
            before: earlier_result(&job, branch, merge_base),
            name: job.name(),
            outcome: job.outcome,
            attempts: job.attempts,
            url: job.record.url.clone(),
            tests: job.record.tests,
            failed_tests: job.record.failed_tests.clone(),
            missing_proof: job.record.missing_proof,
        })
        .collect();
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
        jobs,
    }
}

/// The result of `job` on the merge base, or else on the newest push reported before it.
fn earlier_result(
    job: &JobOfRecord<'_>,
    branch: &[JobOfRecord<'_>],
    merge_base: Option<&str>,
) -> Option<EarlierResult> {
    if job.outcome != Some(JobOutcome::TestFailed) {
        return None;
    }
    let is_base = |other: &JobOfRecord<'_>| merge_base == Some(&*other.record.head_sha);
    // Only jobs that ran their tests to the end count.
    let known = branch.iter().filter(|other| {
        other.record.repo.eq_ignore_ascii_case(&job.record.repo)
            && (&other.record.workflow, &other.record.job)
                == (&job.record.workflow, &job.record.job)
            && other.outcome.is_some_and(|o| o.is_pass() || o == JobOutcome::TestFailed)
            && (is_base(other) || other.record.received_at < job.record.received_at)
    });
    let other = known.max_by_key(|other| (is_base(other), other.record.received_at))?;
    Some(EarlierResult {
        head_sha: other.record.head_sha.clone(),
        is_merge_base: is_base(other),
        passed: other.outcome.is_some_and(JobOutcome::is_pass),
        at: other.record.received_at,
    })
}

/// The attempts of these backends on upstream's latest pushes, and on the merge base if that is
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
    rows.retain(|row| {
        EventFilter::Pr.includes(&row.event) && row.upstream.eq_ignore_ascii_case(upstream.as_str())
    });
    Ok(rows)
}
