//! `/pr/{number}`: the results of one pull request, for its author.

use std::collections::HashMap;

use crcr_domain::callback::{FailedTest, TestCounts};
use crcr_domain::ci_data::job_log::JobLogRow;
use crcr_domain::ci_data::workflow::{CiState, WorkflowJob};
use crcr_domain::facts::{AttemptFact, DispatchFact, DispatchFactStatus, MergeBaseFact};
use crcr_domain::probes::Culprit;
use crcr_domain::proof::MissingProof;
use crcr_domain::results::{BlameContext, BranchResults, JobOfRecord, JobOutcome, jobs_of_record};
use crcr_domain::triage::{TriageCategory, TriageVerdict};
use crcr_domain::{Level, RepoName};
use crcr_results::Window;
use crcr_results::webhook_tables::{ThingQuery, ThingSelection};
use jiff::Timestamp;
use maud::{Markup, html};
use serde::Serialize;

use super::branch;
use super::branch::state_parts;
use super::logs::short_explanation;
use crate::context::{Hud, PageError};
use crate::layout::{culprit_list, external_link, outcome, short_sha, time};
use crate::model::days::push_facts;
use crate::query::PullQuery;
use crate::view::View;

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
    /// What it broke after it had landed.
    pub(crate) culprits: Vec<Culprit>,
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
    number: u64,
    query: PullQuery,
) -> Result<PullModel, PageError> {
    let upstream = &query.upstream(hud)?;
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
    let is_own = |one: &Culprit| {
        let suspect = one.suspect.as_ref().filter(|_| one.is_certain);
        one.upstream.eq_ignore_ascii_case(upstream.as_str())
            && suspect.and_then(|suspect| suspect.pull_request) == Some(number)
    };
    let culprits = (hud.probes)().await.culprits.into_iter().filter(is_own).collect();
    Ok(PullModel {
        culprits,
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
    let entry = RepoName::new(&dispatch.repo).ok().and_then(|repo| hud.entry_of(&repo));
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

/// Failing tests shown for each job.
const MAX_FAILED_TESTS: usize = 10;

pub(crate) fn page(model: &PullModel, view: &View<'_>) -> Markup {
    let (shown, folded): (Vec<_>, Vec<_>) =
        model.backends.iter().partition(|backend| backend.level >= Level::L3);
    view.shell(
        &format!("{}#{}", model.upstream, model.number),
        true,
        &html! {
            div.title {
                h1 { bdi { (model.upstream) } " #" (model.number) }
                a href=(view.pull_url(&model.upstream, model.number)) rel="noreferrer" { "on GitHub" }
            }
            p.detail {
                "Head " code { (short_sha(&model.head_sha)) }
                @if let Some(sha) = &model.merge_base { " · merge base " code { (short_sha(sha)) } }
                @match model.newest {
                    Some(newest) => { " · newest report " (time(newest)) " UTC" }
                    None => " · no report yet",
                }
                @if model.older_heads > 0 { " · " (model.older_heads) @if model.older_heads == 1 { " older head" } @else { " older heads" } " left out" }
            }
            (culprit_list(&model.culprits))
            section aria-labelledby="out-of-tree" {
                h2 #out-of-tree { "Out-of-tree backends" }
                (summary(&shown))
                @for result in &shown { (backend_card(result)) }
                @if !folded.is_empty() {
                    details {
                        summary { (folded.len()) " backends at L2 and L1, which aren't shown on the pull request" }
                        @for result in &folded { (backend_card(result)) }
                    }
                }
            }
            @if !model.in_tree.is_empty() { (in_tree(&model.in_tree, &model.in_tree_logs)) }
        },
    )
}

/// The upstream repository's own jobs: failures at once, the others folded.
fn in_tree(jobs: &[WorkflowJob], logs: &[JobLogRow]) -> Markup {
    let count = |wanted: fn(CiState) -> bool| jobs.iter().filter(|job| wanted(job.state)).count();
    let (bad, others): (Vec<_>, Vec<_>) = jobs.iter().partition(|job| job.state.is_failure());
    let line = |job: &WorkflowJob| {
        let (glyph, class, word) = state_parts(job.state);
        html! {
            span.outcome.(class) { span.glyph aria-hidden="true" { (glyph) } " " (word) } " "
            @let name = format!("{} / {}", job.workflow, job.name);
            @match &job.url { Some(url) => (external_link(url, &name)), None => bdi { (name) } }
            @if let Some(step) = job.failed_step.as_ref().filter(|_| job.state.is_failure()) { span.detail { " · in step " bdi { (step) } } }
            @if let Some(log) = logs.iter().find(|log| log.job.job_id == job.id) { div { (short_explanation(log)) } }
        }
    };
    html! {
        section aria-labelledby="in-tree" {
            h2 #in-tree { "In-tree jobs" }
            p { (bad.len()) " failed, " (count(|state| state == CiState::Passed)) " passed, "
                (count(|state| matches!(state, CiState::Running | CiState::Queued))) " still to end" }
            ul.jobs { @for job in bad { li { (line(job)) } } }
            @if !others.is_empty() {
                details { summary { (others.len()) " other jobs" } ul.jobs { @for job in others { li { (line(job)) } } } }
            }
        }
    }
}

/// The worst state of a backend's jobs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum JobsStanding {
    Failed,
    Broken,
    Open,
    Passed,
}

impl JobsStanding {
    fn new(backend: &PullBackend) -> Self {
        let of_job = |job: &PullJob| match job.outcome {
            _ if job.missing_proof.is_some() => Self::Broken,
            None => Self::Open,
            Some(JobOutcome::TestFailed) => Self::Failed,
            Some(JobOutcome::Neutral | JobOutcome::Superseded) => Self::Passed,
            Some(outcome) if outcome.is_pass() => Self::Passed,
            Some(_) => Self::Broken,
        };
        match (backend.jobs.iter().map(of_job).min(), backend.dispatch.as_str()) {
            (Some(standing), _) => standing,
            (None, "sent" | "queued") => Self::Open,
            (None, _) => Self::Broken,
        }
    }

    fn class(self) -> &'static str {
        match self {
            Self::Failed => "bad",
            Self::Broken => "infra",
            Self::Open => "running",
            Self::Passed => "good",
        }
    }
}

/// One sentence: do backends block the merge?
fn summary(shown: &[&PullBackend]) -> Markup {
    let blocking: Vec<_> = shown.iter().filter(|backend| backend.blocks).collect();
    let with = |standings: &[JobsStanding]| -> Vec<&str> {
        let ours =
            blocking.iter().filter(|backend| standings.contains(&JobsStanding::new(backend)));
        ours.map(|backend| backend.repo.as_str()).collect()
    };
    let (failed, open) =
        (with(&[JobsStanding::Failed, JobsStanding::Broken]), with(&[JobsStanding::Open]));
    let (class, glyph, text) = if shown.is_empty() {
        return html! { p.muted { "No backend at L3 or L4 received this pull request." } };
    } else if !failed.is_empty() {
        ("bad", "✗", format!("Blocked by {}", failed.join(", ")))
    } else if !open.is_empty() {
        ("running", "◐", format!("Waiting for {}", open.join(", ")))
    } else if blocking.is_empty() {
        ("good", "✓", "Nothing blocks: no backend at L4 takes part".to_owned())
    } else {
        ("good", "✓", "Nothing blocks: every backend at L4 passed".to_owned())
    };
    html! { p.note.(class) role="status" { strong { span aria-hidden="true" { (glyph) } " " bdi { (text) } } } }
}

fn backend_card(backend: &PullBackend) -> Markup {
    let standing = backend.level.shows_results().then(|| JobsStanding::new(backend).class());
    html! {
        article.(standing.unwrap_or("muted")) {
            div.title {
                h3 { a href=(format!("/crcr/{}", backend.repo)) { bdi { (backend.repo) } } }
                span.tag { (backend.level) @if backend.blocks { " · blocks the merge" } @else { " · doesn't block" } }
            }
            @if backend.level.shows_results() {
                @if let Some(found) = &backend.verdict { (verdict(found)) }
                @if backend.jobs.is_empty() {
                    p.muted { (dispatch_status_text(backend.dispatch)) }
                    @if let Some(error) = &backend.last_error { p.detail { bdi { (error) } } }
                }
                ul.jobs { @for result in &backend.jobs { li { (job(result)) } } }
                @if matches!(standing, Some("bad" | "infra")) { (help(backend)) }
            } @else {
                p.muted { "Received the event; results are not shown at this level." }
            }
        }
    }
}

/// Whom to ask, and how to run the jobs again.
fn help(backend: &PullBackend) -> Markup {
    html! {
        p.detail {
            @if backend.oncalls.is_empty() { "Ask the maintainers of " bdi { (backend.repo) } "." }
            @else { "Ask " @for (n, name) in backend.oncalls.iter().enumerate() { @if n > 0 { ", " } "@" bdi { (name) } } "." }
            " To run it again, "
            @if backend.level >= Level::L3 { "press “Re-run” on its check on the pull request" }
            @else { "have its run started again downstream" }
            @if let Some(url) = backend.jobs.iter().find_map(|job| job.url.as_deref()) { ", or open " (external_link(url, "its run")) }
            "."
        }
    }
}

fn dispatch_status_text(status: DispatchFactStatus) -> &'static str {
    match status {
        DispatchFactStatus::Queued => "Waiting to be sent.",
        DispatchFactStatus::Sent => "Sent; no report yet.",
        DispatchFactStatus::NeverStarted => "Sent, but no report arrived in time.",
        DispatchFactStatus::Superseded => "A newer head of this pull request replaced it.",
        DispatchFactStatus::Dead => "It could not be sent.",
        DispatchFactStatus::LeftOut => {
            "The backend's .github/crcr.yml says that it doesn't take it."
        }
        DispatchFactStatus::RepositoryChanged => {
            "Not sent: this name now belongs to another repository. An operator has to confirm it."
        }
        DispatchFactStatus::Unreachable => "The backend can't be reached now.",
    }
}

fn job(job: &PullJob) -> Markup {
    html! {
        (outcome(job.outcome)) " "
        @match &job.url { Some(url) => (external_link(url, &job.name)), None => bdi { (job.name) } }
        @if job.attempts > 1 { span.detail { " · " (job.attempts) " attempts" } }
        @if let Some(tests) = &job.tests {
            span.detail { " · " (tests.passed) " passed, " (tests.failed) " failed, " (tests.skipped) " skipped" }
        }
        @if let Some(missing) = job.missing_proof {
            div.detail { strong { "Reported without proof" } ": " (missing) ". It changes no check run." }
        }
        @for warning in &job.warnings { div.detail { "In its report, " bdi { (warning) } } }
        @if let Some(environment) = &job.environment { span.detail { " · on " bdi { (environment) } } }
        @if let Some(url) = &job.artifact_url { span.detail { " · " (external_link(url, "artifact")) } }
        @if let Some(reported) = &job.reported_verdict { (reported_verdict(reported)) }
        @if !job.failed_tests.is_empty() {
            ul.tests { @for (n, test) in job.failed_tests.iter().enumerate().take(MAX_FAILED_TESTS) {
                li {
                    @if let Some(is_new) = job.new_tests.as_ref().and_then(|tests| tests.get(n)) {
                        span.tag { @if *is_new { "new" } @else { "known" } } " "
                    }
                    bdi { (test.name) }
                    @if let Some(message) = &test.message { div.detail { bdi { (message) } } }
                    @if let Some(trace) = &test.stacktrace {
                        details { summary.detail { "Stack trace" } pre { bdi { (trace) } } }
                    }
                }
            } }
            @if job.failed_tests.len() > MAX_FAILED_TESTS { p.detail { "and " (job.failed_tests.len() - MAX_FAILED_TESTS) " more" } }
        }
    }
}

/// Whose fault the failure is, in one sentence, with the results that say so.
fn verdict(verdict: &TriageVerdict) -> Markup {
    html! {
        p { strong { (verdict.summary) } " " span.tag { (category_text(verdict.category)) " · " (verdict.confidence.as_str()) " confidence" } }
        @if !verdict.evidence.is_empty() { (evidence(verdict)) }
    }
}

/// The backend's own verdict. It accuses whom it likes, so it is attributed to its analyzer.
fn reported_verdict(verdict: &TriageVerdict) -> Markup {
    html! {
        div.detail {
            bdi { @match &verdict.analyzer { Some(analyzer) => (analyzer), None => "The backend" } } " says: "
            (category_text(verdict.category)) " (" (verdict.confidence.as_str()) " confidence): "
            bdi { (verdict.summary) }
            @if let Some(suspect) = &verdict.suspected_upstream {
                @if let Some(number) = suspect.pr { " · suspects " a href=(format!("/pr/{number}")) { "pull request " (number) } }
                @if let Some(commit) = &suspect.commit { " · suspects commit " code { (short_sha(commit)) } }
                @if let Some(reason) = &suspect.reason { ": " bdi { (reason) } }
            }
            @if verdict.reproduced_on_retry == Some(true) { " · reproduced on a re-run" }
            @if verdict.truncated { " · shortened" }
            @if !verdict.evidence.is_empty() { (evidence(verdict)) }
        }
    }
}

fn evidence(verdict: &TriageVerdict) -> Markup {
    html! {
        details {
            summary.detail { "Evidence" }
            ul.tests { @for item in &verdict.evidence { li.detail {
                @let what = item.job.as_deref().or(item.test.as_deref()).unwrap_or("log");
                @match &item.log_url { Some(url) => (external_link(url, what)), None => bdi { (what) } }
                @if let Some(test) = item.test.as_ref().filter(|_| item.job.is_some()) { " · " bdi { (test) } }
                @if let Some(excerpt) = &item.excerpt { ": " bdi { (excerpt) } }
            } } }
        }
    }
}

fn category_text(category: TriageCategory) -> &'static str {
    match category {
        TriageCategory::Upstream => "upstream",
        TriageCategory::Backend => "backend",
        TriageCategory::Infra => "infrastructure",
        TriageCategory::Flake => "flaky",
        TriageCategory::Unknown => "undecided",
    }
}
