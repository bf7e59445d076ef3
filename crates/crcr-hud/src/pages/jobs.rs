//! `/jobs`: the jobs that ended one by one, of a runner or of a name. The counts of `/trends` lead here.

use std::collections::HashMap;

use crcr_domain::ci_data::workflow::{CiState, WorkflowJob};
use crcr_results::ci_times::EndedJobsQuery;
use crcr_results::webhook_tables::{ThingQuery, ThingSelection};
use jiff::Timestamp;
use maud::{Markup, html};
use serde::{Deserialize, Serialize};

use super::trends::{WINDOWS, span_of, window_name, window_of};
use crate::address::{self, address};
use crate::context::{Hud, PageError, repo_parameter};
use crate::layout::{ago, duration, short_sha, state_parts, time, zone};
use crate::query::{end_of_minute, given, parse_time};
use crate::view::View;

const PER_PAGE: usize = 50;

/// `?repo=OWNER/REPO&window=24h|7d|30d|90d&runner=LABELS&job=WORKFLOW / NAME&state=failed`, and
/// `before=TIME&before_job=ID` for those that ended before.
#[derive(Debug, Clone, Default, Deserialize, schemars::JsonSchema)]
pub(crate) struct JobsQuery {
    repo: Option<String>,
    window: Option<String>,
    runner: Option<String>,
    job: Option<String>,
    state: Option<String>,
    before: Option<String>,
    #[schemars(with = "Option<u64>")]
    before_job: Option<String>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct JobsModel {
    pub(crate) repository: String,
    pub(crate) window: &'static str,
    pub(crate) from: Timestamp,
    pub(crate) to: Timestamp,
    pub(crate) runner: Option<String>,
    /// Jobs that differ only in what is in parentheses at the end of their name go by one name.
    pub(crate) job: Option<String>,
    pub(crate) only_failed: bool,
    /// Those that passed or failed, the newest first.
    pub(crate) jobs: Vec<ListedJob>,
    /// Older ones ended before this time, or at it and have a smaller id than `older_job`.
    pub(crate) older: Option<Timestamp>,
    pub(crate) older_job: Option<u64>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct ListedJob {
    pub(crate) id: u64,
    pub(crate) ended_at: Timestamp,
    pub(crate) failed: bool,
    /// `None` if its webhook isn't kept any more.
    pub(crate) details: Option<WorkflowJob>,
}

pub(crate) async fn build(hud: &Hud, (): (), query: JobsQuery) -> Result<JobsModel, PageError> {
    let wrong = |text: &str| PageError::Query(text.to_owned());
    let named = repo_parameter("repo", query.repo.as_deref())?;
    let repository = named.unwrap_or_else(|| hud.upstream.clone());
    let window = window_of(given(query.window.as_deref()).as_deref())?;
    let only_failed = match given(query.state.as_deref()).as_deref() {
        None => false,
        Some("failed") => true,
        Some(_) => return Err(wrong("`state` has to be `failed`, or absent")),
    };
    let before = given(query.before.as_deref()).as_deref().map(parse_time);
    let before = before.transpose().map_err(PageError::Query)?;
    let before_job = given(query.before_job.as_deref()).map(|job| {
        job.parse::<u64>().map_err(|_| wrong("`before_job` has to be the number of a job"))
    });
    let (from, to) = span_of(window, hud.now());
    let mut model = JobsModel {
        repository: repository.to_string(),
        window,
        from,
        to: to.min(end_of_minute(hud.now())),
        runner: given(query.runner.as_deref()),
        job: given(query.job.as_deref()),
        only_failed,
        jobs: vec![],
        older: None,
        older_job: None,
    };
    let mut ended = hud
        .results
        .ended_jobs(&EndedJobsQuery {
            repository: model.repository.clone(),
            runner: model.runner.clone(),
            job: model.job.clone(),
            only_failed,
            from,
            to: before.map_or(to, |before| before.min(to)),
            to_id: before_job.transpose()?,
            limit: PER_PAGE + 1,
        })
        .await?;
    let has_more = ended.len() > PER_PAGE;
    ended.truncate(PER_PAGE);
    let last = ended.last().filter(|_| has_more).map(|last| (last.ended_at, last.id));
    (model.older, model.older_job) = last.unzip();
    let ids: Vec<String> = ended.iter().map(|job| job.id.to_string()).collect();
    let selection = ThingSelection::Ids(&ids);
    let query = ThingQuery { event: "workflow_job", repository: &model.repository, selection };
    let rows = hud.results.current_things(&query).await?;
    let known = rows.iter().filter_map(WorkflowJob::from_row);
    let mut known: HashMap<u64, WorkflowJob> = known.map(|job| (job.id, job)).collect();
    let listed = ended.into_iter().map(|job| ListedJob {
        details: known.remove(&job.id),
        id: job.id,
        ended_at: job.ended_at,
        failed: job.failed,
    });
    model.jobs = listed.collect();
    Ok(model)
}

impl JobsModel {
    fn url(&self, window: &str, only_failed: bool) -> String {
        let names = (self.runner.as_deref(), self.job.as_deref());
        address::jobs(&self.repository, window, names, only_failed)
    }

    fn older_url(&self) -> Option<String> {
        let (before, job) = (self.older?.to_string(), self.older_job?.to_string());
        let query: String = url::form_urlencoded::Serializer::new(String::new())
            .append_pair("before", &before)
            .append_pair("before_job", &job)
            .finish();
        Some(format!("{}&{query}", self.url(self.window, self.only_failed)))
    }
}

pub(crate) fn page(model: &JobsModel, view: &View<'_>) -> Markup {
    let name = model.job.as_deref().or(model.runner.as_deref());
    let trends = address(
        "/trends",
        [
            ("repo", Some(&*model.repository)),
            ("window", Some(model.window)),
            ("runner", model.runner.as_deref()),
            ("job", model.job.as_deref()),
        ],
    );
    view.shell(
        &format!("Jobs of {}", name.unwrap_or(&model.repository)),
        false,
        &html! {
            div.title {
                h1 { "Jobs of " bdi { (name.unwrap_or(&model.repository)) } }
                a href=(trends) rel="nofollow" { "Trends" }
            }
            p.detail {
                bdi { (model.repository) }
                @if let (Some(_), Some(runner)) = (&model.job, &model.runner) { " · on " bdi { (runner) } }
                " · each attempt that passed or failed, " (time(model.from)) " – " (time(model.to)) " " (zone())
            }
            div.controls {
                nav.group aria-label="Time span" { @for window in WINDOWS {
                    a rel="nofollow" aria-current=[(model.window == window).then_some("true")] href=(model.url(window, model.only_failed)) { (window_name(window)) }
                } }
                nav.group aria-label="Result" { @for (only_failed, name) in [(false, "All"), (true, "Failed")] {
                    a rel="nofollow" aria-current=[(model.only_failed == only_failed).then_some("true")] href=(model.url(model.window, only_failed)) { (name) }
                } }
                @if name.is_some() {
                    a rel="nofollow" href=(address::jobs(&model.repository, model.window, (None, None), model.only_failed)) { "All runners and jobs" }
                }
            }
            (table(model))
            @if let Some(older) = model.older_url() { p.pager { a rel="nofollow" href=(older) { "Older jobs" } } }
        },
    )
}

fn table(model: &JobsModel) -> Markup {
    html! {
        @if model.jobs.is_empty() { p.note role="status" { "No such job ended in these days." } } @else {
            div.scroll tabindex="0" role="region" aria-label="Jobs" { table.stack {
                thead { tr {
                    th scope="col" { "Job" } th scope="col" aria-sort="descending" { "Ended" } th scope="col" { "Result" }
                    th scope="col" { "Waited" } th scope="col" { "Took" } th scope="col" { "Commit" }
                    // It is the same in each row if it was asked for.
                    @if model.runner.is_none() { th scope="col" { "Runner" } }
                } }
                tbody { @for job in &model.jobs { (row(job, model)) } }
            } }
        }
    }
}

fn row(listed: &ListedJob, model: &JobsModel) -> Markup {
    let state = if listed.failed { CiState::Failed } else { CiState::Passed };
    let (glyph, class, word) = state_parts(listed.details.as_ref().map_or(state, |job| job.state));
    let job = listed.details.as_ref();
    let between = |from: Option<Timestamp>, to: Option<Timestamp>| {
        Some(to?.duration_since(from?).as_secs_f64()).filter(|seconds| *seconds >= 0.0)
    };
    let waited = job.and_then(|job| between(job.created_at, job.started_at));
    let took = job.and_then(|job| between(job.started_at, job.completed_at));
    let seconds = |seconds: Option<f64>| match seconds {
        Some(seconds) => html! { (duration(seconds)) },
        None => html! { span.muted { "no data" } },
    };
    html! { tr {
        th scope="row" { @match job {
            Some(job) => a href=(address::failure(&model.repository, job.id)) { bdi {
                @if !job.workflow.is_empty() { (job.workflow) " / " } (job.name)
            } },
            None => { "job " (listed.id) },
        } }
        td data-label="Ended" { (ago(listed.ended_at)) }
        td data-label="Result" { span.outcome.(class) { span.glyph aria-hidden="true" { (glyph) } " " (word) } }
        td data-label="Waited" { (seconds(waited)) }
        td data-label="Took" { (seconds(took)) }
        td.category data-label="Commit" { @if let Some(job) = job.filter(|job| !job.head_sha.is_empty()) {
            a href=(address::commit(&model.repository, &job.head_sha)) { code { (short_sha(&job.head_sha)) } }
            " " span.detail { bdi { (job.branch) } }
        } }
        @if model.runner.is_none() {
            td.category data-label="Runner" { @if let Some(job) = job { bdi { (job.asked_for()) } } }
        }
    } }
}
