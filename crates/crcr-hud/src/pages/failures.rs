//! `/failures`: why jobs failed, by cause or one by one. Anybody who runs a job writes its log, so all of it is hostile
//! text.

use std::collections::BTreeSet;

use crcr_domain::ci_data::job_log::JobLogRow;
use crcr_results::job_logs::{
    CauseFilter, FailedJobsQuery, FailureGroup, FailureQuery, MAX_GROUPED,
};
use jiff::{SignedDuration, Timestamp};
use maud::{Markup, html};
use serde::{Deserialize, Serialize};

use crate::address::{self, Sorted, address, sort_header};
use crate::context::{Hud, PageError, repo_parameter};
use crate::layout::{ago, short_sha, time, zone};
use crate::model::known_repositories;
use crate::query::{end_of_minute, given, given_name, parse_time};
use crate::view::View;

const PER_PAGE: usize = 50;
/// Groups that are sorted.
const MAX_GROUPS: usize = 1000;
const MAX_DAYS: i64 = 366;
const DEFAULT_DAYS: i64 = 7;

/// `?repo=OWNER/REPO&category=NAME&days=N&sort=failures|newest|oldest&page=N` groups failures by cause. `?list=jobs`
/// lists them one by one, `?like=OWNER/REPO/JOB` those with the cause of this job, `job=WORKFLOW / NAME` those of a job,
/// `before=TIME&before_job=ID` older ones.
#[derive(Debug, Clone, Default, Deserialize, schemars::JsonSchema)]
pub(crate) struct FailuresQuery {
    repo: Option<String>,
    category: Option<String>,
    #[schemars(with = "Option<u64>")]
    days: Option<String>,
    sort: Option<String>,
    #[schemars(with = "Option<u64>")]
    page: Option<String>,
    list: Option<String>,
    like: Option<String>,
    job: Option<String>,
    before: Option<String>,
    #[schemars(with = "Option<u64>")]
    before_job: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FailureSort {
    Failures,
    Newest,
    Oldest,
}

crcr_domain::names! { FailureSort { Failures "failures", Newest "newest", Oldest "oldest" } }

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct FailuresModel {
    pub(crate) repository: Option<String>,
    pub(crate) category: Option<String>,
    pub(crate) days: i64,
    pub(crate) since: Timestamp,
    pub(crate) sort: FailureSort,
    pub(crate) page: usize,
    pub(crate) has_more: bool,
    pub(crate) groups: Vec<FailureGroup>,
    /// Only this many of the newest failures are grouped, if there are more.
    pub(crate) newest_only: Option<usize>,
    /// Only this many of the most frequent causes are sorted and listed, if there are more.
    pub(crate) most_frequent_only: Option<usize>,
    /// Jobs one by one, if those were asked for.
    pub(crate) jobs: Option<FailedJobs>,
    pub(crate) repositories: Vec<String>,
    pub(crate) categories: Vec<String>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct FailedJobs {
    /// The job whose cause they have.
    pub(crate) like: Option<String>,
    /// What its log says.
    pub(crate) line: Option<String>,
    /// The name of the job that they are of.
    pub(crate) job: Option<String>,
    pub(crate) jobs: Vec<JobLogRow>,
    /// Older ones ended before this time, or at it and have a smaller id than `older_job`.
    pub(crate) older: Option<Timestamp>,
    pub(crate) older_job: Option<u64>,
}

pub(crate) async fn build(
    hud: &Hud,
    (): (),
    query: FailuresQuery,
) -> Result<FailuresModel, PageError> {
    let given = |value: &Option<String>| given(value.as_deref());
    let number = |name: &str, value: &Option<String>, default: i64, last: i64| match given(value) {
        None => Ok(default),
        Some(text) => text.parse().ok().filter(|days| (1..=last).contains(days)).ok_or_else(|| {
            PageError::Query(format!("`{name}` has to be a number from 1 to {last}"))
        }),
    };
    let days = number("days", &query.days, DEFAULT_DAYS, MAX_DAYS)?;
    let page = number("page", &query.page, 1, (MAX_GROUPS / PER_PAGE) as i64)? as usize;
    let sort = match given(&query.sort).as_deref() {
        None | Some("failures") => FailureSort::Failures,
        Some("newest") => FailureSort::Newest,
        Some("oldest") => FailureSort::Oldest,
        Some(_) => {
            let text = "`sort` has to be `failures`, `newest` or `oldest`";
            return Err(PageError::Query(text.to_owned()));
        }
    };
    let is_list = match given(&query.list).as_deref() {
        None => given(&query.like).is_some(),
        Some("jobs") => true,
        Some(_) => return Err(PageError::Query("`list` has to be `jobs`".to_owned())),
    };
    let before = before(&query)?;
    let repository = repo_parameter("repo", query.repo.as_deref())?.map(|name| name.to_string());
    let category = given(&query.category);
    let since = end_of_minute(hud.now()) - SignedDuration::from_hours(24 * days);
    let repositories = known_repositories::names(hud, "workflow_job").await?;
    let mut model = FailuresModel {
        repository,
        category,
        days,
        since,
        sort,
        page,
        has_more: false,
        groups: vec![],
        newest_only: None,
        most_frequent_only: None,
        jobs: None,
        repositories,
        categories: vec![],
    };
    if is_list {
        model.categories.extend(model.category.clone());
        model.jobs = Some(one_by_one(hud, &model, &query, before).await?);
    } else {
        add_groups(hud, &mut model).await?;
    }
    Ok(model)
}

async fn add_groups(hud: &Hud, model: &mut FailuresModel) -> Result<(), PageError> {
    let asked = FailureQuery {
        repository: model.repository.as_deref(),
        category: model.category.as_deref(),
        from: model.since,
        to: Timestamp::MAX,
        limit: MAX_GROUPS,
    };
    let found = hud.results.failure_groups(&asked).await?;
    let mut groups = found.groups;
    let any_category = match &model.category {
        None => groups.clone(),
        Some(_) => {
            let asked = FailureQuery { category: None, ..asked };
            hud.results.failure_groups(&asked).await?.groups
        }
    };
    let categories: BTreeSet<String> = any_category
        .into_iter()
        .map(|group| group.cause.category)
        .chain(model.category.clone())
        .filter(|category| !category.is_empty())
        .collect();
    match model.sort {
        FailureSort::Failures => {}
        FailureSort::Newest => {
            groups.sort_by_key(|group| std::cmp::Reverse(group.newest.completed_at));
        }
        FailureSort::Oldest => groups.sort_by_key(|group| group.oldest),
    }
    let rest = groups.split_off(groups.len().min((model.page - 1) * PER_PAGE));
    model.has_more = rest.len() > PER_PAGE || found.are_cut;
    model.groups = rest.into_iter().take(PER_PAGE).collect();
    model.newest_only = (found.grouped >= MAX_GROUPED as u64).then_some(MAX_GROUPED);
    model.most_frequent_only = found.are_cut.then_some(MAX_GROUPS);
    model.categories = categories.into_iter().collect();
    Ok(())
}

/// Where a page of jobs begins.
fn before(query: &FailuresQuery) -> Result<(Timestamp, Option<u64>), PageError> {
    let time = given(query.before.as_deref()).as_deref().map(parse_time);
    let job = given(query.before_job.as_deref()).map(|job| job.parse());
    let job = job
        .transpose()
        .map_err(|_| PageError::Query("`before_job` has to be the number of a job".to_owned()))?;
    Ok((time.transpose().map_err(PageError::Query)?.unwrap_or(Timestamp::MAX), job))
}

async fn one_by_one(
    hud: &Hud,
    model: &FailuresModel,
    query: &FailuresQuery,
    (to, to_job): (Timestamp, Option<u64>),
) -> Result<FailedJobs, PageError> {
    let named = given(query.like.as_deref());
    let like = match named.as_deref() {
        None => None,
        Some(like) => Some(log_of(hud, like).await?),
    };
    let cause = like.as_ref().map(|like| (like.cause(), like.no_log_reason()));
    let name = given_name(query.job.as_deref());
    let asked = FailedJobsQuery {
        repository: model.repository.as_deref(),
        cause: cause.as_ref().map(|(cause, reason)| CauseFilter {
            rule: &cause.rule,
            capture: &cause.capture,
            reason: *reason,
        }),
        category: model.category.as_deref(),
        job: name.as_deref(),
        from: model.since,
        to,
        to_job,
        limit: PER_PAGE + 1,
    };
    let mut jobs = hud.results.failed_jobs(&asked).await?;
    let has_more = jobs.len() > PER_PAGE;
    jobs.truncate(PER_PAGE);
    // Many jobs end in the same moment, such as the legs of a cancelled run.
    let last =
        jobs.last().filter(|_| has_more).map(|last| (last.job.completed_at, last.job.job_id));
    let (older, older_job) = last.unzip();
    Ok(FailedJobs {
        line: like.as_ref().map(JobLogRow::short_line),
        job: name,
        like: named,
        jobs,
        older,
        older_job,
    })
}

/// The stored explanation of a job that is named as `OWNER/REPO/JOB`.
async fn log_of(hud: &Hud, like: &str) -> Result<JobLogRow, PageError> {
    let wrong = || PageError::Query("`like` has to be OWNER/REPO/JOB".to_owned());
    let (repository, job) = like.rsplit_once('/').ok_or_else(wrong)?;
    let job: u64 = job.parse().map_err(|_| wrong())?;
    let found = hud.results.job_logs(repository, &[job]).await?.pop();
    found.ok_or_else(|| {
        PageError::NotFound(format!(
            "nothing is known about the log of job {job} of that repository"
        ))
    })
}

impl FailuresModel {
    fn url(&self, sort: FailureSort, page: usize) -> String {
        let (days, page) = (self.days.to_string(), page.to_string());
        address(
            "/failures",
            [
                ("repo", self.repository.as_deref()),
                ("category", self.category.as_deref()),
                ("days", Some(&*days)),
                ("sort", (sort != FailureSort::Failures).then_some(sort.as_str())),
                ("page", (page != "1").then_some(&*page)),
            ],
        )
    }

    fn jobs_url(&self, like: Option<&str>, before: Option<(Timestamp, u64)>) -> String {
        let job =
            self.jobs.as_ref().and_then(|jobs| jobs.job.as_deref()).filter(|_| before.is_some());
        let days = self.days.to_string();
        let (before, before_job) =
            before.map(|(at, job)| (at.to_string(), job.to_string())).unzip();
        address(
            "/failures",
            [
                ("list", Some("jobs")),
                ("like", like),
                ("job", job),
                ("repo", self.repository.as_deref()),
                ("category", self.category.as_deref().filter(|_| like.is_none())),
                ("days", Some(&*days)),
                ("before", before.as_deref()),
                ("before_job", before_job.as_deref()),
            ],
        )
    }
}

pub(crate) fn page(model: &FailuresModel, view: &View<'_>) -> Markup {
    view.shell(
        "Failures",
        true,
        &html! {
            div.title { h1 { "Failures" } }
            div.controls {
                nav.group aria-label="List" {
                    a href=(model.url(model.sort, 1)) aria-current=[model.jobs.is_none().then_some("page")] { "By cause" }
                    a href=(model.jobs_url(None, None)) aria-current=[model.jobs.is_some().then_some("page")] { "One by one" }
                }
                (filters(model))
            }
            @match &model.jobs {
                Some(jobs) => (job_list(jobs, model)),
                None => (groups(model)),
            }
        },
    )
}

fn filters(model: &FailuresModel) -> Markup {
    html! {
        form.span method="get" action="/failures" {
            @if let Some(jobs) = &model.jobs {
                input type="hidden" name="list" value="jobs";
                @if let Some(like) = &jobs.like { input type="hidden" name="like" value=(like); }
                @if let Some(job) = &jobs.job { input type="hidden" name="job" value=(job); }
            } @else { input type="hidden" name="sort" value=(model.sort.as_str()); }
            label { "Repository " select name="repo" {
                option value="" { "all" }
                @if let Some(repo) = model.repository.as_ref().filter(|repo| !model.repositories.iter().any(|name| name.eq_ignore_ascii_case(repo))) { option selected { (repo) } }
                @for name in &model.repositories {
                    option selected[model.repository.as_ref().is_some_and(|repo| repo.eq_ignore_ascii_case(name))] { (name) }
                }
            } }
            @if !model.categories.is_empty() || model.jobs.is_none() { " " label { "Category " select name="category" {
                option value="" { "all" }
                @for name in &model.categories { option selected[model.category.as_ref() == Some(name)] { (name) } }
            } } }
            " " label { "Days " input type="number" name="days" min="1" max="366" value=(model.days); }
            " " button { "Show" }
        }
    }
}

fn groups(model: &FailuresModel) -> Markup {
    let header = |sort: FailureSort, name: &str| {
        let sorted = match sort {
            sort if sort != model.sort => Sorted::No,
            FailureSort::Oldest => Sorted::Ascending,
            FailureSort::Failures | FailureSort::Newest => Sorted::Descending,
        };
        sort_header(name, sorted, &model.url(sort, 1))
    };
    html! {
        p.detail {
            "Failed jobs since " (time(model.since)) " " (zone()) ", by what their logs say."
            @if let Some(newest) = model.newest_only {
                " Only the newest " (newest) " are counted. Fewer days or one repository count all: "
                a href=(FailuresModel { days: 1, ..model.filters() }.url(model.sort, 1)) { "one day" } "."
            }
            @if let Some(most) = model.most_frequent_only { " There are more causes than the " (most) " most frequent, which are listed and sorted here." }
        }
        @if model.groups.is_empty() {
            @let is_filtered = model.repository.is_some() || model.category.is_some();
            p.note { @if is_filtered { "No such failed job with a log in these days." } @else { "No failed job with a log in these days." } }
        } @else {
            div.scroll tabindex="0" role="region" aria-label="Causes of failures" { table.stack {
                thead { tr {
                    th scope="col" { "Cause" } th scope="col" { "Category" } (header(FailureSort::Failures, "Failures"))
                    (header(FailureSort::Newest, "Newest")) (header(FailureSort::Oldest, "Oldest"))
                } }
                tbody { @for group in &model.groups { (group_row(group, model)) } }
            } }
        }
        p.pager {
            @if model.page > 1 { a rel="nofollow" href=(model.url(model.sort, model.page - 1)) { "Back" } " " }
            @if model.has_more {
                @if model.page * PER_PAGE < MAX_GROUPS { a rel="nofollow" href=(model.url(model.sort, model.page + 1)) { "More causes" } }
                @else { "There are more; choose a repository or a category above." }
            }
        }
    }
}

impl FailuresModel {
    /// The filters without what was found.
    fn filters(&self) -> Self {
        Self {
            repository: self.repository.clone(),
            category: self.category.clone(),
            groups: vec![],
            newest_only: None,
            most_frequent_only: None,
            jobs: None,
            repositories: vec![],
            categories: vec![],
            ..*self
        }
    }
}

fn group_row(group: &FailureGroup, model: &FailuresModel) -> Markup {
    let job = &group.newest;
    let like = format!("{}/{}", job.repository, job.job_id);
    html! {
        tr {
            th scope="row" {
                @match group.reason {
                    Some(reason) => span.muted { (reason.sentence()) },
                    None if group.line.is_empty() => span.muted { "no line explains the failure" },
                    None => {
                        code { bdi { (group.line) } }
                        div.detail { @if group.cause.rule.is_empty() { "no rule names it" } @else { bdi { (group.cause.rule) } } }
                    }
                }
            }
            td.category data-label="Category" { @if group.cause.category.is_empty() { span.muted { "none" } } @else { bdi { (group.cause.category) } } }
            td data-label="Failures" { a rel="nofollow" href=(model.jobs_url(Some(&like), None)) { (group.failures) } }
            td.message data-label="Newest" {
                a href=(address::failure(&job.repository, job.job_id)) { bdi { (job.title()) } }
                " " span.detail { bdi { (job.repository) } " · " (ago(job.completed_at)) }
            }
            td data-label="Oldest" { (ago(group.oldest)) }
        }
    }
}

fn job_list(list: &FailedJobs, model: &FailuresModel) -> Markup {
    html! {
        p.detail { "Failed jobs since " (time(model.since)) " " (zone()) ", the newest first." @if let Some(job) = &list.job { " Those of " bdi { (job) } "." } }
        @if let Some(like) = &list.like {
            p { "Those with the cause of " a href=(format!("/failure/{like}")) { bdi { (like) } } ":" }
            @if let Some(line) = list.line.as_ref().filter(|line| !line.is_empty()) { pre.log { bdi { (line) } } }
        }
        @if list.jobs.is_empty() { p.note { "No failed job in these days." } } @else {
            div.scroll tabindex="0" role="region" aria-label="Failed jobs" { table.stack {
                thead { tr { th scope="col" { "Job" } th scope="col" { "Ended" } th scope="col" { "Commit" } th scope="col" { "Branch" } th scope="col" { "Line" } } }
                tbody { @for row in &list.jobs { (job_row(row)) } }
            } }
        }
        @if let Some(older) = list.older.zip(list.older_job) {
            p.pager { a rel="nofollow" href=(model.jobs_url(list.like.as_deref(), Some(older))) { "Older failures" } }
        }
    }
}

fn job_row(row: &JobLogRow) -> Markup {
    let job = &row.job;
    html! { tr {
        th scope="row" { a href=(address::failure(&job.repository, job.job_id)) { bdi { (job.title()) } } " " span.detail { bdi { (job.repository) } } }
        td data-label="Ended" { (ago(job.completed_at)) }
        td data-label="Commit" { a href=(address::commit(&job.repository, &job.head_sha)) { code { (short_sha(&job.head_sha)) } } }
        td.category data-label="Branch" { bdi { (job.branch) } }
        td.message data-label="Line" {
            @match row.no_log_reason() {
                Some(reason) => span.muted { (reason.sentence()) },
                None if row.short_line().is_empty() => span.muted { "no line explains the failure" },
                None => code { bdi { (row.short_line()) } },
            }
        }
    } }
}
