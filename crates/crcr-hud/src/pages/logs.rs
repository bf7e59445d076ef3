//! `/crcr/logs`: why jobs failed. Anybody who runs a job writes its log, so all of it is hostile text.

use std::collections::BTreeSet;

use crcr_domain::RepoName;
use crcr_domain::ci_data::job_log::{
    EndedJob, JobLogRow, LogClassification, LogMatch, LogMatchSource,
};
use crcr_results::job_logs::{FailureGroup, FailureQuery, MAX_GROUPED};
use jiff::{SignedDuration, Timestamp};
use maud::{Markup, html};
use serde::{Deserialize, Serialize};

use crate::context::repo_name;
use crate::context::{Hud, PageError};
use crate::layout::{short_sha, time};
use crate::query::NoQuery;
use crate::view::View;

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

pub(crate) async fn build(hud: &Hud, (): (), query: LogsQuery) -> Result<LogsModel, PageError> {
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
    (owner, repo, job_id): (String, String, u64),
    _: NoQuery,
) -> Result<JobLogModel, PageError> {
    let repo = &repo_name(&owner, &repo)?;
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

/// Lines that aren't in the green run and are shown at once.
const SHOWN_NOVEL: usize = 20;

pub(crate) fn job_path(job: &EndedJob) -> String {
    format!("/crcr/logs/{}/{}", job.repository, job.job_id)
}

pub(crate) fn page(model: &LogsModel, view: &View<'_>) -> Markup {
    view.shell(
        "Failures",
        true,
        &html! {
            div.title { h1 { "Failures" } }
            (filters(model))
            p.detail {
                "Failed jobs since " (time(model.since)) ", by what their logs say."
                @if let Some(newest) = model.newest_only { " Only the newest " (newest) " are counted." }
            }
            @if model.groups.is_empty() {
                p.note { "No failed job with a log in these days." }
            } @else {
                div.scroll { table.stack {
                    thead { tr {
                        th scope="col" { "Cause" } th scope="col" { "Category" } th scope="col" { "Failures" }
                        th scope="col" { "Newest" } th scope="col" { "Oldest" }
                    } }
                    tbody { @for group in &model.groups { (group_row(group)) } }
                } }
            }
        },
    )
}

fn filters(model: &LogsModel) -> Markup {
    html! {
        form.span method="get" action="/crcr/logs" {
            label { "Repository " select name="repo" {
                option value="" { "all" }
                @for name in &model.repositories {
                    option selected[model.repository.as_ref().is_some_and(|repo| repo.eq_ignore_ascii_case(name))] { (name) }
                }
            } }
            " " label { "Category " select name="category" {
                option value="" { "all" }
                @for name in &model.categories {
                    option selected[model.category.as_ref() == Some(name)] { (name) }
                }
            } }
            " " label { "Days " input type="number" name="days" min="1" max="366" value=(model.days); }
            " " button { "Show" }
        }
    }
}

fn group_row(group: &FailureGroup) -> Markup {
    let job = &group.newest;
    html! {
        tr {
            th scope="row" {
                @match group.reason {
                    Some(reason) => span.muted { (reason.sentence()) },
                    None if group.line.is_empty() => span.muted { "no line explains the failure" },
                    None => {
                        code { bdi { (group.line) } }
                        div.detail { @if group.cause.rule.is_empty() { "found by what speaks for it" } @else { bdi { (group.cause.rule) } } }
                    }
                }
            }
            td.category data-label="Category" { @if group.cause.category.is_empty() { span.muted { "none" } } @else { bdi { (group.cause.category) } } }
            td.number data-label="Failures" { (group.failures) }
            td.message data-label="Newest" {
                a href=(job_path(job)) { bdi { (job.title()) } }
                " " span.detail { bdi { (job.repository) } " · " (time(job.completed_at)) }
            }
            td data-label="Oldest" { (time(group.oldest)) }
        }
    }
}

pub(crate) fn job_page(model: &JobLogModel, view: &View<'_>) -> Markup {
    let job = &model.log.job;
    let on_github = view.job_url(&job.repository, job.run_id, job.job_id);
    view.shell(
        &job.title(),
        false,
        &html! {
            div.title { h1 { bdi { (job.title()) } } a href=(on_github) rel="noreferrer" { "on GitHub" } }
            p.detail {
                bdi { (job.repository) } " · " bdi { (job.branch) } " · commit " code { (short_sha(&job.head_sha)) }
                " · attempt " (job.run_attempt) " · ended " (time(job.completed_at))
            }
            (explanation(model))
            p { a href="/crcr/logs" { "All failures" } }
        },
    )
}

/// What a log says about a failure, for a page of its own or as a part of another one.
pub(crate) fn explanation(model: &JobLogModel) -> Markup {
    html! {
        @match model.log.classification() {
            None => { @if let Some(reason) = model.log.no_log_reason() { p.muted { "No explanation: " (reason.sentence()) "." } } }
            Some(known) => { (found(known)) (candidates(known)) (novel(known)) }
        }
        @if !model.similar.is_empty() {
            h3 { "More like this" }
            ul.plain { @for job in &model.similar { li {
                a href=(job_path(job)) { bdi { (job.title()) } }
                " " span.detail { bdi { (job.repository) } " · " bdi { (job.branch) } " · " (time(job.completed_at)) }
            } } }
        }
    }
}

fn found(known: &LogClassification) -> Markup {
    let Some(found) = &known.found else {
        let text = if known.candidates.is_empty() {
            "No line of the log explains the failure."
        } else {
            "Not sure which line of the log explains the failure."
        };
        return html! { p.muted { (text) } };
    };
    html! {
        p {
            (reason(found)) " " span.detail {
                "line " (found.line_number)
                @if found.certainty_percent > 0 { ", " (found.certainty_percent) " % certain" }
            }
            (reasons(found))
        }
        pre.log { @for line in &found.context {
            @if is_found(line, found) { mark { bdi { (line) } } } @else { bdi { (line) } }
            "\n"
        } }
    }
}

/// The other lines that may explain it.
fn candidates(known: &LogClassification) -> Markup {
    let is_shown = |line: &&LogMatch| {
        let is_found =
            known.found.as_ref().is_some_and(|found| found.line_number == line.line_number);
        !is_found && line.certainty_percent > 0
    };
    let others: Vec<&LogMatch> = known.candidates.iter().filter(is_shown).collect();
    html! {
        @if !others.is_empty() {
            h3 { @if known.found.is_some() { "Or else" } @else { "Perhaps" } }
            ul.plain { @for line in others { li {
                code { bdi { (line.line) } }
                " " span.detail { "line " (line.line_number) ", " (line.certainty_percent) " % certain" }
                (reasons(line))
            } } }
        }
    }
}

/// What speaks for a line, and what against it.
fn reasons(line: &LogMatch) -> Markup {
    html! {
        @if !line.reasons.is_empty() {
            details {
                summary { "Why this line" }
                ul.plain { @for reason in &line.reasons { li.detail {
                    (format!("{:+.1}", reason.points)) " " (reason.name)
                } } }
            }
        }
    }
}

/// A long line is cut in the context, and shown from its match on as the line itself.
fn is_found(line: &str, found: &LogMatch) -> bool {
    match line.strip_suffix('…') {
        Some(start) => found.line.starts_with(start),
        None => *line == found.line,
    }
}

/// The rule with its category, or that there was none.
fn reason(found: &LogMatch) -> Markup {
    html! {
        @match (&found.category, &found.rule) {
            (Some(category), Some(rule)) => { span.tag { bdi { (category) } } " " strong { bdi { (rule) } } },
            _ if found.by == LogMatchSource::Diff => strong { "Not in the last green run" },
            _ => strong { "The likeliest line" },
        }
    }
}

fn novel(known: &LogClassification) -> Markup {
    if known.novel.is_empty() {
        return html! {};
    }
    html! {
        details {
            summary { (known.novel.len()) " new lines, which the last green run of this job doesn't have" }
            pre.log { @for line in known.novel.iter().take(SHOWN_NOVEL) {
                span.muted { (line.line_number) } " " bdi { (line.line) } "\n"
            } }
            @if known.novel.len() > SHOWN_NOVEL { p.detail { "The JSON of this page has all of them." } }
        }
    }
}

/// One line below a job in a list.
pub(crate) fn short_explanation(log: &JobLogRow) -> Markup {
    html! {
        @match (log.no_log_reason(), log.classification().and_then(|known| known.found.as_ref())) {
            (Some(reason), _) => span.detail { (reason.sentence()) },
            (None, None) => span.detail { "no line of the log explains it" },
            (None, Some(found)) => { (reason(found)) " " code { bdi { (log.short_line()) } } }
        }
        " " a href=(job_path(&log.job)) { "Log" span.hidden { " of " bdi { (log.job.title()) } } }
    }
}
