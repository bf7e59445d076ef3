//! Why jobs of a repository's own CI failed, as their logs tell.

use std::collections::BTreeSet;

use crcr_domain::RepoName;
use crcr_domain::ci_data::job_log::{EndedJob, JobLogRow};
use crcr_results::job_logs::{FailureGroup, FailureQuery, MAX_GROUPED};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::{Hud, PageError};

/// Groups on a page.
const MAX_GROUPS: usize = 100;
/// Groups whose categories are offered.
const MAX_CATEGORY_GROUPS: usize = 1000;
const MAX_DAYS: i64 = 366;
const DEFAULT_DAYS: i64 = 7;
const MAX_SIMILAR: usize = 10;
/// Failures with the same cause are looked for from this long before the job on.
const SIMILAR_SINCE: SignedDuration = SignedDuration::from_hours(14 * 24);
/// Characters of a filter.
const MAX_FILTER: usize = 200;

#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct LogsQuery {
    repo: Option<String>,
    category: Option<String>,
    days: Option<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct LogsModel {
    pub(crate) repository: Option<String>,
    pub(crate) category: Option<String>,
    pub(crate) days: i64,
    pub(crate) since: Timestamp,
    /// The most frequent first.
    pub(crate) groups: Vec<FailureGroup>,
    /// Only this many of the newest failures are grouped, if there are more.
    pub(crate) newest_only: Option<usize>,
    pub(crate) repositories: Vec<String>,
    pub(crate) categories: Vec<String>,
}

/// The log of one job, and failures with the same cause.
#[derive(Debug, Serialize)]
pub(crate) struct JobLogModel {
    pub(crate) log: JobLogRow,
    /// Sorted, the newest first.
    pub(crate) similar: Vec<EndedJob>,
}

pub(crate) async fn build(hud: &Hud, query: &LogsQuery) -> Result<LogsModel, PageError> {
    let given = |value: &Option<String>| -> Option<String> {
        let value = value.as_deref().map(str::trim).filter(|value| !value.is_empty())?;
        Some(value.chars().take(MAX_FILTER).collect())
    };
    let days = match given(&query.days) {
        None => DEFAULT_DAYS,
        Some(text) => {
            let days = text.parse().ok().filter(|days| (1..=MAX_DAYS).contains(days));
            days.ok_or_else(|| {
                PageError::Query("`days` has to be a number from 1 to 366".to_owned())
            })?
        }
    };
    let (repository, category) = (given(&query.repo), given(&query.category));
    let now = (hud.clock)();
    let since = now - SignedDuration::from_hours(24 * days);
    let asked = FailureQuery {
        repository: repository.as_deref(),
        category: category.as_deref(),
        from: since,
        to: Timestamp::MAX,
        limit: MAX_CATEGORY_GROUPS,
    };
    let mut groups = hud.results.failure_groups(&asked).await?;
    let any_category = match &category {
        None => groups.clone(),
        Some(_) => {
            let asked = FailureQuery { category: None, ..asked };
            hud.results.failure_groups(&asked).await?
        }
    };
    let categories: BTreeSet<String> = any_category
        .into_iter()
        .map(|group| group.cause.category)
        .chain(category.clone())
        .filter(|category| !category.is_empty())
        .collect();
    let known = hud.results.repositories("workflow_job").await?;
    let failures: u64 = groups.iter().map(|group| group.failures).sum();
    groups.truncate(MAX_GROUPS);
    Ok(LogsModel {
        repository,
        category,
        days,
        since,
        groups,
        newest_only: (failures >= MAX_GROUPED as u64).then_some(MAX_GROUPED),
        repositories: known.into_iter().map(|known| known.name).collect(),
        categories: categories.into_iter().collect(),
    })
}

pub(crate) async fn build_job(
    hud: &Hud,
    repo: &RepoName,
    job_id: u64,
) -> Result<JobLogModel, PageError> {
    job_log(hud, repo, job_id).await?.ok_or_else(|| {
        PageError::NotFound(format!(
            "nothing is known about the log of job {job_id} of {repo}: logs of failed jobs are read a \
             few seconds after the job ends"
        ))
    })
}

pub(crate) async fn job_log(
    hud: &Hud,
    repo: &RepoName,
    job_id: u64,
) -> Result<Option<JobLogModel>, PageError> {
    let found = hud.results.job_logs(repo.as_str(), &[job_id]).await?.pop();
    let Some(log) = found else { return Ok(None) };
    let since = log.job.completed_at.checked_sub(SIMILAR_SINCE).unwrap_or(Timestamp::MIN);
    let similar = hud.results.similar_failures(&log.cause(), since, MAX_SIMILAR + 1).await?;
    let similar = similar.into_iter().map(|row| row.job);
    let similar = similar.filter(|job| *job != log.job).take(MAX_SIMILAR).collect();
    Ok(Some(JobLogModel { similar, log }))
}
