//! `/failure/OWNER/REPO/JOB`: why a job failed, with its stored log. Anybody who runs a job writes its log, so all of
//! it is hostile text.

mod alike;
mod attempts;
mod whose_fault;

use crcr_cidata::logs::{LogIndex, LogLine, LogPage, LogStep, log_key};
use crcr_domain::RepoName;
use crcr_domain::ci_data::job_log::{
    EndedJob, JobLogRow, LogClassification, LogMatch, LogMatchSource, NoLogReason,
};
use crcr_domain::ci_data::test_run::TestRowKind;
use crcr_domain::ci_data::webhook::WebhookRow;
use crcr_domain::ci_data::workflow::{
    BranchCommit, CiState, WorkflowJob, WorkflowStep, changed_files, steps_of,
};
use crcr_results::test_history::FailedTestOfJob;
use crcr_results::webhook_tables::{ThingQuery, ThingSelection};
use jiff::{SignedDuration, Timestamp};
use maud::{Markup, html};
use serde::{Deserialize, Serialize};

use self::alike::AlikeSince;
pub(crate) use self::whose_fault::name_in_pytest;
use self::whose_fault::{EarlierFailure, KnownTest};
use crate::address::{self, address, branch_path};
use crate::context::{Hud, PageError, repo_name};
use crate::layout::{ago, changed_file_list, counted, duration, short_sha, state_parts};
use crate::query::given;
use crate::view::View;

const MAX_SIMILAR: usize = 10;
const MAX_TESTS: usize = 50;
/// Failed jobs of a run that are listed.
const MAX_FAILED_JOBS: usize = 50;
/// Failures with the same cause are looked for from this long before the job on.
const SIMILAR_SINCE: SignedDuration = SignedDuration::from_hours(14 * 24);
/// A log that isn't known this long after the job's end won't be.
const LOG_WAIT: SignedDuration = SignedDuration::from_mins(15);
/// Lines of the log on a page.
const LINES: usize = 400;
/// Lines before the one that explains the failure.
const LINES_BEFORE: u64 = 40;
/// Lines that aren't in the green run and are shown at once.
const SHOWN_NOVEL: usize = 20;
/// Steps in the list beside the log.
const SHOWN_STEPS: usize = 60;
/// `?from=LINE`: the log from this line on.
#[derive(Debug, Clone, Default, Deserialize, schemars::JsonSchema)]
pub(crate) struct FailurePageQuery {
    #[schemars(with = "Option<u64>")]
    from: Option<String>,
}

/// What is known about a job.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct JobModel {
    pub(crate) repository: String,
    pub(crate) job_id: u64,
    /// What its webhooks said; `None` if none was received.
    pub(crate) job: Option<WorkflowJob>,
    pub(crate) steps: Vec<WorkflowStep>,
    /// The failed jobs, if this is a whole run.
    pub(crate) failed_jobs: Vec<WorkflowJob>,
    /// The later attempt that passed, if it failed.
    pub(crate) passed_later: Option<WorkflowJob>,
    pub(crate) log: Option<JobLogRow>,
    pub(crate) commit: Option<BranchCommit>,
    /// Whether it was pushed to the job's branch. That of a pull request may be a fork's.
    pub(crate) is_on_branch: bool,
    pub(crate) pull_request: Option<u64>,
    /// Files that the push of the commit changed.
    pub(crate) changed_files: Vec<String>,
    /// Those of them that the log's line or its context names.
    pub(crate) named_files: Vec<String>,
    pub(crate) failed_tests: Vec<FailedTestOfJob>,
    /// What is known of the first of them, or of the test that the log's line names.
    pub(crate) known_tests: Vec<KnownTest>,
    /// The newest green run of the same job.
    pub(crate) last_green: Option<EndedJob>,
    /// Others with the same cause, the newest first.
    pub(crate) similar: Vec<EndedJob>,
    /// The same failure before, elsewhere; not looked for on the default branch.
    pub(crate) earlier: Option<EarlierFailure>,
    /// Since when the default branch fails alike, if this is a job of it.
    pub(crate) alike_since: Option<AlikeSince>,
    /// Whether nobody else had this failure in the two weeks before.
    pub(crate) is_only_here: bool,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct FailureModel {
    #[serde(flatten)]
    pub(crate) job: JobModel,
    /// Whether its log may become known in the next minutes.
    pub(crate) awaits_log: bool,
    pub(crate) stored: Option<StoredPage>,
    /// Why the stored log can't be shown, if there should be one.
    pub(crate) stored_problem: Option<String>,
}

/// A page of a stored log.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct StoredPage {
    pub(crate) line_count: u64,
    /// Size of the whole text.
    pub(crate) bytes: u64,
    pub(crate) steps: Vec<LogStep>,
    /// The first line of the page.
    pub(crate) first: u64,
    #[serde(flatten)]
    pub(crate) page: LogPage,
}

pub(crate) async fn build(
    hud: &Hud,
    (owner, repo, job_id): (String, String, u64),
    query: FailurePageQuery,
) -> Result<FailureModel, PageError> {
    let repo = repo_name(&owner, &repo)?;
    let job = job(hud, &repo, job_id).await?;
    let from = given(query.from.as_deref()).map(|from| {
        let wrong = |_| PageError::Query("`from` has to be the number of a line".to_owned());
        from.parse::<u64>().map_err(wrong)
    });
    let from = from.transpose()?;
    let (stored, stored_problem) = match stored_page(hud, &repo, &job, from).await {
        Ok(stored) => (stored, None),
        Err(problem) => (None, Some(problem)),
    };
    let is_recent = |ended| hud.now().duration_since(ended) < LOG_WAIT;
    let has_no_log = job.log.is_none() && !job.is_run();
    let awaits_log = has_no_log && job.ended_at().is_none_or(is_recent);
    Ok(FailureModel { job, awaits_log, stored, stored_problem })
}

/// `/panel/OWNER/REPO/JOB`: the same without its log, for the side of a grid.
pub(crate) async fn build_panel(
    hud: &Hud,
    (owner, repo, job_id): (String, String, u64),
    _: crate::query::NoQuery,
) -> Result<JobModel, PageError> {
    job(hud, &repo_name(&owner, &repo)?, job_id).await
}

pub(crate) async fn job(hud: &Hud, repo: &RepoName, job_id: u64) -> Result<JobModel, PageError> {
    let row = webhook_of(hud, repo, job_id).await?;
    let job = match row.as_ref().and_then(WorkflowJob::from_row) {
        Some(job) => Some(job),
        None => run(hud, repo, job_id).await?,
    };
    let log = hud.results.job_logs(repo.as_str(), &[job_id]).await?.pop();
    if job.is_none() && log.is_none() {
        return Err(PageError::NotFound(format!("no job {job_id} of {repo} is known")));
    }
    let mut model = JobModel {
        repository: repo.to_string(),
        job_id,
        steps: row.as_ref().map(steps_of).unwrap_or_default(),
        failed_jobs: vec![],
        passed_later: None,
        job,
        log,
        commit: None,
        is_on_branch: false,
        pull_request: None,
        changed_files: vec![],
        named_files: vec![],
        failed_tests: vec![],
        known_tests: vec![],
        last_green: None,
        similar: vec![],
        earlier: None,
        alike_since: None,
        is_only_here: false,
    };
    if let Some(run) = model.job.as_ref().filter(|_| model.is_run()) {
        model.failed_jobs = failed_jobs_of(hud, repo, run).await?;
    } else {
        model.passed_later = attempts::passed_later(hud, repo, &model).await?;
    }
    add_commit(hud, repo, &mut model).await?;
    add_history(hud, repo, &mut model).await?;
    whose_fault::add(hud, repo, &mut model).await?;
    Ok(model)
}

/// A run that failed though no known job of it did, which grids show like a job.
async fn run(hud: &Hud, repo: &RepoName, id: u64) -> Result<Option<WorkflowJob>, PageError> {
    let thing = id.to_string();
    let selection = ThingSelection::Id(&thing);
    let query = ThingQuery { event: "workflow_run", repository: repo.as_str(), selection };
    Ok(hud.results.current_things(&query).await?.iter().find_map(WorkflowJob::of_run))
}

/// The failed jobs of a run, whose webhooks may come after the run's own.
async fn failed_jobs_of(
    hud: &Hud,
    repo: &RepoName,
    run: &WorkflowJob,
) -> Result<Vec<WorkflowJob>, PageError> {
    let shas = [run.head_sha.clone()];
    let selection = ThingSelection::Commits(&shas);
    let query = ThingQuery { event: "workflow_job", repository: repo.as_str(), selection };
    let rows = hud.results.current_things(&query).await?;
    let failed = rows.iter().filter_map(WorkflowJob::from_row).filter(|job| {
        let attempt = (job.run_id, job.run_attempt);
        attempt == (run.run_id, run.run_attempt) && job.state.is_failure()
    });
    Ok(failed.take(MAX_FAILED_JOBS).collect())
}

/// The current state of a job.
pub(crate) async fn webhook_of(
    hud: &Hud,
    repo: &RepoName,
    job_id: u64,
) -> Result<Option<WebhookRow>, PageError> {
    let thing = job_id.to_string();
    let selection = ThingSelection::Id(&thing);
    let query = ThingQuery { event: "workflow_job", repository: repo.as_str(), selection };
    Ok(hud.results.current_things(&query).await?.pop())
}

impl JobModel {
    pub(crate) fn title(&self) -> String {
        match (&self.job, &self.log) {
            (Some(job), _) if job.workflow.is_empty() => job.name.clone(),
            (Some(job), _) => format!("{} / {}", job.workflow, job.name),
            (None, Some(log)) => log.job.title(),
            (None, None) => format!("job {}", self.job_id),
        }
    }

    fn sha(&self) -> &str {
        let job = self.job.as_ref().map(|job| &*job.head_sha);
        job.or(self.log.as_ref().map(|log| &*log.job.head_sha)).unwrap_or_default()
    }

    fn branch(&self) -> &str {
        let job = self.job.as_ref().map(|job| &*job.branch);
        job.or(self.log.as_ref().map(|log| &*log.job.branch)).unwrap_or_default()
    }

    /// The run and its attempt.
    fn run(&self) -> (u64, u64) {
        let job = self.job.as_ref().map(|job| (job.run_id, job.run_attempt));
        let log = self.log.as_ref().map(|log| (log.job.run_id, log.job.run_attempt));
        job.or(log).unwrap_or_default()
    }

    fn name(&self) -> Option<(&str, &str)> {
        let job = self.job.as_ref().map(|job| (&*job.workflow, &*job.name));
        job.or(self.log.as_ref().map(|log| (&*log.job.workflow, &*log.job.job_name)))
    }

    fn ended_at(&self) -> Option<Timestamp> {
        let log = self.log.as_ref().map(|log| log.job.completed_at);
        log.or(self.job.as_ref()?.completed_at)
    }

    /// Whether it is a whole run.
    fn is_run(&self) -> bool {
        self.job.as_ref().is_some_and(|job| job.id == job.run_id)
    }

    fn found(&self) -> Option<&LogMatch> {
        self.log.as_ref()?.classification()?.found.as_ref()
    }
}

/// The commit, its pull request and what it changed: webhooks of pushes list that, and for a pull request the relay
/// has asked GitHub.
async fn add_commit(hud: &Hud, repo: &RepoName, model: &mut JobModel) -> Result<(), PageError> {
    let shas = [model.sha().to_owned()];
    if shas[0].is_empty() {
        return Ok(());
    }
    let mut other_pull = None;
    for event in ["push", "workflow_run", "pull_request"] {
        let selection = ThingSelection::Commits(&shas);
        let query = ThingQuery { event, repository: repo.as_str(), selection };
        for row in hud.results.current_things(&query).await? {
            if event == "push" && model.changed_files.is_empty() {
                model.changed_files = changed_files(&row);
            }
            // Others may ask to merge the same commit.
            let is_own = event != "pull_request" || row.branch == model.branch();
            match row.number {
                Some(number) if is_own => model.pull_request = model.pull_request.or(Some(number)),
                number => other_pull = other_pull.or(number),
            }
            let commit = BranchCommit::from_row(&row);
            model.is_on_branch |= commit.is_some() && row.branch == model.branch();
            model.commit = model.commit.take().or(commit);
        }
    }
    let titled = model.commit.as_ref().and_then(|commit| commit.pull_request);
    model.pull_request = model.pull_request.or(titled).or(other_pull);
    if let Some(number) = model.pull_request.filter(|_| model.changed_files.is_empty()) {
        let bases = hud.results.merge_bases(repo.as_str(), &[number]).await?;
        let own = bases.into_iter().find(|base| base.head_sha == shas[0]);
        model.changed_files = own.map(|base| base.changed_files).unwrap_or_default();
    }
    let said: String = model
        .found()
        .map(|found| {
            std::iter::once(&found.line)
                .chain(&found.context)
                .cloned()
                .collect::<Vec<_>>()
                .join("\n")
        })
        .unwrap_or_default();
    let is_named = |file: &&String| {
        let name = file.rsplit('/').next().unwrap_or(file);
        name.len() >= 4 && said.contains(name)
    };
    model.named_files = model.changed_files.iter().filter(is_named).cloned().collect();
    Ok(())
}

async fn add_history(hud: &Hud, repo: &RepoName, model: &mut JobModel) -> Result<(), PageError> {
    let (run_id, attempt) = model.run();
    if run_id > 0 {
        let attempt = u32::try_from(attempt).unwrap_or(1);
        let tests = hud.results.failed_tests_of_job(
            repo.as_str(),
            (run_id, attempt),
            model.job_id,
            MAX_TESTS,
        );
        model.failed_tests = tests.await?;
    }
    if let Some((workflow, name)) = model.name() {
        let green = hud.results.green_jobs(repo.as_str(), workflow, name).await?;
        model.last_green = green.into_iter().next();
    }
    if let Some(log) = &model.log {
        let since = log.job.completed_at.checked_sub(SIMILAR_SINCE).unwrap_or(Timestamp::MIN);
        let similar = hud.results.similar_failures(&log.cause(), since, MAX_SIMILAR + 1).await?;
        let others = similar.into_iter().map(|row| row.job).filter(|job| *job != log.job);
        model.similar = others.take(MAX_SIMILAR).collect();
    }
    Ok(())
}

async fn stored_page(
    hud: &Hud,
    repo: &RepoName,
    model: &JobModel,
    from: Option<u64>,
) -> Result<Option<StoredPage>, String> {
    let Some(key) = key_of_log(repo, model.job_id, model.log.as_ref()) else { return Ok(None) };
    let log = hud.logs.open(&key).await.map_err(|error| unreadable(&error))?;
    let Some(log) = log else {
        // Without a row of it, there need not be one.
        let gone = "the stored log isn't there any more".to_owned();
        return if model.log.is_some() { Err(gone) } else { Ok(None) };
    };
    let found = model.found().map_or(1, |found| found.line_number.saturating_sub(LINES_BEFORE));
    let first = from.unwrap_or(found).clamp(1, log.index.lines.max(1));
    let page = log.page(first, LINES).await.map_err(|error| unreadable(&error))?;
    let LogIndex { lines, bytes, steps, .. } = log.index;
    Ok(Some(StoredPage { line_count: lines, bytes, steps, first, page }))
}

/// The reason names a bucket or a folder, and anybody reads the page.
pub(crate) fn unreadable(error: &impl std::fmt::Display) -> String {
    tracing::error!(%error, "a stored log can't be read");
    "the archive can't be read now".to_owned()
}

/// Where a log is kept. After `crcr relay replay` the job is known and what was said of its log isn't.
pub(crate) fn key_of_log(repo: &RepoName, job_id: u64, log: Option<&JobLogRow>) -> Option<String> {
    log.map_or_else(|| Some(log_key(repo, job_id)), |log| log.log_key.clone())
}

pub(crate) fn page(model: &FailureModel, view: &View<'_>) -> Markup {
    let title = model.job.title();
    // A job fails on many commits, and a tab shows its title only.
    let tab = match model.job.sha() {
        "" => title.clone(),
        sha => format!("{title} on {}", short_sha(sha)),
    };
    view.shell(
        &tab,
        model.awaits_log,
        &html! {
            div.title { h1 { bdi { (title) } } (state_tag(&model.job)) }
            (attempts::note(&model.job))
            (facts(&model.job, view))
            (explanation(&model.job))
            (tests(&model.job))
            (steps(&model.job))
            (next_steps(&model.job, view))
            (similar(&model.job))
            (stored_log(model))
        },
    )
}

/// The side of a grid; `close` leads back to the grid alone.
pub(crate) fn panel(model: &JobModel, view: &View<'_>, close: Option<&str>) -> Markup {
    html! {
        div.title {
            h2 { bdi { (model.title()) } } (state_tag(model))
            @if let Some(close) = close { a.close href=(close) { "Close" } }
        }
        (attempts::note(model))
        (facts(model, view))
        (explanation(model))
        (tests(model))
        (steps(model))
        (next_steps(model, view))
        (similar(model))
    }
}

/// The panel alone, which a script puts beside the grid.
pub(crate) fn panel_fragment(model: &JobModel, view: &View<'_>) -> Markup {
    panel(model, view, None)
}

fn state_tag(model: &JobModel) -> Markup {
    html! { @match &model.job {
        Some(job) => {
            @let (glyph, class, word) = state_parts(job.state);
            span.tag.outcome.(class) { span.glyph aria-hidden="true" { (glyph) } " " (word) }
        }
        None => span.tag.outcome.bad { "failed" },
    } }
}

fn facts(model: &JobModel, view: &View<'_>) -> Markup {
    let (sha, branch) = (model.sha(), model.branch());
    html! {
        @if let Some(commit) = &model.commit { p { strong { bdi { (commit.title) } } @if !commit.author.is_empty() { " by " bdi { (commit.author) } } } }
        p.detail {
            @if !sha.is_empty() { "commit " a href=(address::commit(&model.repository, sha)) { code { (short_sha(sha)) } } " · " }
            @if let Some(number) = model.pull_request { a href=(address::pull(&model.repository, number)) { "#" (number) } " · " }
            @if model.is_on_branch && !branch.is_empty() {
                a href=(format!("{}?job={}#job", branch_path(&model.repository, branch), model.job_id)) { "grid of " bdi { (branch) } } " · "
            }
            bdi { (model.repository) } " · attempt " (model.run().1.max(1))
            @if let Some(job) = &model.job {
                @if let (Some(created), Some(started)) = (job.created_at, job.started_at) { " · waited " (duration(started.duration_since(created).as_secs_f64().max(0.0))) }
                @if let (Some(started), Some(ended)) = (job.started_at, job.completed_at) { " · took " (duration(ended.duration_since(started).as_secs_f64().max(0.0))) }
                @if let Some(runner) = &job.runner { " · on " bdi { (runner) } }
                @let asked_for = job.asked_for();
                @if !asked_for.is_empty() { " (" bdi { (asked_for) } ")" }
            }
            @if let Some(ended) = model.ended_at() { " · ended " (ago(ended)) }
        }
        @if !sha.is_empty() && model.run().0 > 0 {
            p.detail { a href=(view.job_url(&model.repository, model.run().0, model.job_id)) rel="noreferrer" { "This job on GitHub" } }
        }
    }
}

/// What a log says about a failure.
pub(crate) fn explanation(model: &JobModel) -> Markup {
    if !model.failed_jobs.is_empty() {
        return html! {
            p { strong { "Its failed jobs" } }
            ul.plain { @for job in &model.failed_jobs { li {
                a href=(address::failure(&model.repository, job.id)) { bdi { (job.name) } }
            } } }
        };
    }
    let Some(log) = &model.log else {
        let state = model.job.as_ref().map(|job| job.state);
        if model.is_run() && state == Some(CiState::Cancelled) {
            return html! { p.muted { "This run was cancelled, perhaps before it had jobs." } };
        }
        return html! { @if model.job.as_ref().is_some_and(|job| job.state.is_failure()) {
            p.muted {
                @if model.is_run() { "No failed job of this run is known: its workflow file may be broken, so that nothing ran." }
                @else { "Nothing is known about its log yet: logs of failed jobs are read a few seconds after the job ends." }
            }
        } };
    };
    html! {
        @match log.classification() {
            None => { @if let Some(reason) = log.no_log_reason() { p.muted { "No explanation: " (reason.sentence()) "." } } }
            Some(known) => { (found(known, model)) (candidates(known, model)) (novel(known, model)) }
        }
    }
}

/// A line of the stored log, or its number if there is none.
fn line_link(model: &JobModel, line: u64) -> Markup {
    let is_stored = model.log.as_ref().is_some_and(|log| log.log_key.is_some());
    html! { @if is_stored {
        a href=(format!("{}?from={}#L{line}", address::failure(&model.repository, model.job_id), line.saturating_sub(LINES_BEFORE).max(1))) { "line " (line) }
    } @else { "line " (line) } }
}

fn found(known: &LogClassification, model: &JobModel) -> Markup {
    let Some(found) = &known.found else {
        let text = if known.candidates.is_empty() {
            "No line of the log explains the failure."
        } else {
            "Not sure which line of the log explains the failure."
        };
        return html! { p.muted { (text) } };
    };
    let is_novel = known.novel.iter().any(|line| line.line_number == found.line_number);
    // The last green run may be many commits ago.
    let is_new = is_novel && model.alike_since.is_none();
    html! {
        p {
            (reason(found)) " " span.detail {
                (line_link(model, found.line_number))
                @if found.certainty_percent > 0 { ", " (found.certainty_percent) " % certain" }
                @if is_new { ", " strong { "new" } ": the last green run of this job doesn't have it" }
                @else if !is_novel && !known.novel.is_empty() { ", not new: the last green run has it, too" }
            }
            (reasons(found))
        }
        (alike::sentence(model))
        (whose_fault::sentence(model))
        pre.log { @for line in &found.context {
            @if is_found(line, found) { mark { bdi { (line) } } } @else { bdi { (line) } }
            "\n"
        } }
        @if !model.named_files.is_empty() {
            p { "Changed by this commit or pull request, and named by these lines: " @for file in model.named_files.iter().take(5) { code { bdi { (file) } } " " } }
        }
    }
}

/// The other lines that may explain it.
fn candidates(known: &LogClassification, model: &JobModel) -> Markup {
    let is_shown = |line: &&LogMatch| {
        let is_found =
            known.found.as_ref().is_some_and(|found| found.line_number == line.line_number);
        !is_found && line.certainty_percent > 0
    };
    let others: Vec<&LogMatch> = known.candidates.iter().filter(is_shown).take(3).collect();
    html! {
        @if !others.is_empty() {
            p { strong { @if known.found.is_some() { "Or else" } @else { "Perhaps" } } }
            ul.plain { @for line in others { li {
                code { bdi { (line.line) } }
                " " span.detail { (line_link(model, line.line_number)) ", " (line.certainty_percent) " % certain" }
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

fn novel(known: &LogClassification, model: &JobModel) -> Markup {
    if known.novel.is_empty() {
        return html! {};
    }
    html! {
        details {
            summary { (counted(known.novel.len(), "new line", "new lines")) ", which the last green run of this job doesn't have" }
            ul.plain.log { @for line in known.novel.iter().take(SHOWN_NOVEL) { li {
                span.detail { (line_link(model, line.line_number)) } " " code { bdi { (line.line) } }
            } } }
            @if known.novel.len() > SHOWN_NOVEL { p.detail { "The JSON of this page has all of them." } }
        }
    }
}

fn tests(model: &JobModel) -> Markup {
    html! { (whose_fault::test_of_line(model)) @if !model.failed_tests.is_empty() {
        p { strong { "Failed tests" } }
        ul.tests { @for test in &model.failed_tests { li {
            @if test.kind == TestRowKind::Test {
                a href=(address::test(&model.repository, test.test_id)) { bdi { (test.name) } }
            } @else { bdi { (test.name) } " " span.detail { "outside its tests" } }
            @if let Some(message) = &test.message { div.detail { bdi { (message.lines().next().unwrap_or_default().chars().take(200).collect::<String>()) } } }
            (whose_fault::about(model, test.test_id))
        } } }
        @if model.failed_tests.len() == MAX_TESTS { p.detail { "Only the first " (MAX_TESTS) " are shown." } }
    } }
}

fn steps(model: &JobModel) -> Markup {
    let failed = model.steps.iter().find(|step| step.state.is_failure());
    html! { @if !model.steps.is_empty() {
        details {
            summary {
                @match failed {
                    Some(step) => { "Failed in step " (step.number) ": " strong { bdi { (step.name) } } },
                    None => (counted(model.steps.len(), "step", "steps")),
                }
            }
            ol.steps { @for step in &model.steps {
                @let (glyph, class, word) = state_parts(step.state);
                li value=(step.number) {
                    span.outcome.(class) { span.glyph aria-hidden="true" { (glyph) } span.hidden { (word) } } " " bdi { (step.name) }
                    @if let Some(seconds) = step.seconds { " " span.detail { (duration(seconds)) } }
                }
            } }
        }
    } @else if let Some(step) = model.job.as_ref().and_then(|job| job.failed_step.as_ref()) {
        p { "Failed in step " strong { bdi { (step) } } }
    } }
}

/// What to do next, with the link.
fn next_steps(model: &JobModel, view: &View<'_>) -> Markup {
    let (run_id, _) = model.run();
    let (branch, name) = (model.branch(), model.name().map(|(_, name)| name).unwrap_or_default());
    html! {
        ul.next {
            @if run_id > 0 && model.passed_later.is_none() { li { a href=(view.job_url(&model.repository, run_id, model.job_id)) rel="noreferrer" { "Run it again on GitHub" } } }
            @if let Some(green) = &model.last_green {
                li { "It passed last on " a href=(address::commit(&green.repository, &green.head_sha)) { code { (short_sha(&green.head_sha)) } } " of " bdi { (green.branch) } ", " (ago(green.completed_at)) }
            }
            @if model.is_on_branch && !branch.is_empty() && !name.is_empty() {
                @let base = name.split_once(" (").map_or(name, |(base, _)| base);
                li { a href=(address(&branch_path(&model.repository, branch), [("q", Some(base))])) { "This job on the grid" } }
            } @else if let Some(number) = model.pull_request {
                li { a href=(address::pull(&model.repository, number)) { "The other jobs of its pull request" } }
            }
            @if !model.changed_files.is_empty() {
                li { (changed_file_list(&model.changed_files, false)) }
            }
        }
    }
}

fn similar(model: &JobModel) -> Markup {
    let like = format!("{}/{}", model.repository, model.job_id);
    html! { @if !model.similar.is_empty() {
        p { strong { "Others with the same cause" } " " a rel="nofollow" href=(address("/failures", [("list", Some("jobs")), ("like", Some(&*like)), ("days", Some("30"))])) { "all of 30 days" } }
        ul.plain { @for job in &model.similar { li {
            a href=(address::failure(&job.repository, job.job_id)) { bdi { (job.title()) } }
            " " span.detail { bdi { (job.repository) } " · " bdi { (job.branch) } " · " code { (short_sha(&job.head_sha)) } " · " (ago(job.completed_at)) }
        } } }
    } }
}

fn stored_log(model: &FailureModel) -> Markup {
    let path = address::failure(&model.job.repository, model.job.job_id);
    html! {
        h2 #log { "Log" }
        @if let Some(problem) = &model.stored_problem { p.note { "The stored log can't be shown: " bdi { (problem) } "." } }
        @match &model.stored {
            None => { @if model.stored_problem.is_none() { p.muted { "The log isn't stored here; " (elsewhere(&model.job)) "." } } }
            Some(stored) => {
                p {
                    (counted(stored.line_count, "line", "lines")) ", " (bytes(stored.bytes)) ": "
                    a href=(format!("{path}/log.txt")) { "as text" } " · "
                    a href=(format!("{path}/log.txt?download=1")) { "download" }
                }
                (step_list(stored, &path))
                (log_lines(stored, model))
                p.pager {
                    @if stored.first > 1 { a rel="nofollow" href=(format!("{path}?from={}#log", stored.first.saturating_sub(LINES as u64).max(1))) { "Earlier lines" } " " }
                    @if let Some(next) = stored.page.next { a rel="nofollow" href=(format!("{path}?from={next}#log")) { "Later lines" } " " }
                }
            }
        }
    }
}

/// Where a log is that isn't stored.
fn elsewhere(model: &JobModel) -> &'static str {
    match model.log.as_ref().and_then(JobLogRow::no_log_reason) {
        Some(NoLogReason::Gone) => "GitHub had none when it was asked",
        _ => "GitHub may still have it",
    }
}

fn bytes(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} bytes"),
        10_000..10_000_000 => format!("{} kB", bytes / 1000),
        _ => format!("{} MB", bytes / 1_000_000),
    }
}

/// Steps with errors come first where not all can be shown.
fn step_list(stored: &StoredPage, path: &str) -> Markup {
    let mut steps: Vec<_> = stored.steps.iter().collect();
    if steps.len() > SHOWN_STEPS {
        steps.sort_by_key(|step| std::cmp::Reverse(step.errors));
        steps.truncate(SHOWN_STEPS);
        steps.sort_by_key(|step| step.first_line);
    }
    html! {
        details { summary { (counted(stored.steps.len(), "step", "steps")) " in the log" }
            ul.plain { @for step in steps { li {
                a rel="nofollow" href=(format!("{path}?from={0}#L{0}", step.first_line)) { bdi { (step.title) } }
                " " span.detail { "line " (step.first_line) @if step.errors > 0 { ", " (counted(step.errors, "error", "errors")) } }
            } } }
        }
    }
}

/// The page's lines, folded by step.
fn log_lines(stored: &StoredPage, model: &FailureModel) -> Markup {
    let found = model.job.found().map(|found| found.line_number);
    let mut parts: Vec<(&str, u64, &[LogLine])> = vec![];
    let mut rest = &stored.page.lines[..];
    while let Some(first) = rest.first() {
        let next = stored.steps.partition_point(|step| step.first_line <= first.number);
        let step = next.checked_sub(1).map(|at| &stored.steps[at]);
        let end = stored.steps.get(next).map_or(u64::MAX, |step| step.first_line);
        let count = rest.partition_point(|line| line.number < end);
        let (lines, later) = rest.split_at(count);
        parts.push((step.map_or("Log", |step| &step.title), first.number, lines));
        rest = later;
    }
    html! {
        div.stored { @for (title, first, lines) in parts {
            details open {
                summary { bdi { (title) } " " span.detail { "from line " (first) } }
                ol.lines { @for line in lines {
                    li #(format!("L{}", line.number)) value=(line.number) class=[line_class(&line.text, found == Some(line.number))] { bdi { (line.text) } }
                } }
            }
        } }
    }
}

fn line_class(text: &str, is_found: bool) -> Option<&'static str> {
    match text {
        _ if is_found => Some("found"),
        text if text.starts_with("##[error]") => Some("error"),
        text if text.starts_with("##[") => Some("group"),
        _ => None,
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
        " " a href=(address::failure(&log.job.repository, log.job.job_id)) { "Why" span.hidden { " did " bdi { (log.job.title()) } " fail?" } }
    }
}
