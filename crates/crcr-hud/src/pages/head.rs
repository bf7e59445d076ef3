//! What a commit's page and its pull request's page show alike: backends, their jobs, the next step, and
//! the upstream repository's own jobs.

use crcr_domain::Level;
use crcr_domain::ci_data::workflow::{CiState, WorkflowJob};
use crcr_domain::results::JobOutcome;
use crcr_domain::results::triage::{TriageCategory, TriageVerdict};
use maud::{Markup, html};

use super::failure::short_explanation;
use super::{category_text, fault_text, reported};
use crate::address;
use crate::layout::{ago, counted, duration, external_link, outcome, short_sha, state_parts};
use crate::model::head::{InTreeJobs, OwnRuns, PullBackend, PullJob};
use crate::model::head_state::BackendOnHead;
use crate::view::View;

/// Jobs of each kind that are listed: a commit of a large project has two thousand.
const MAX_JOBS: usize = 3000;
/// More jobs of a backend that passed are folded.
const MAX_OPEN_PASSED: usize = 10;
/// Failing tests shown for each job.
const MAX_FAILED_TESTS: usize = 10;

/// The backends: a sentence for all, then each; those that aren't shown on the pull request folded.
pub(crate) fn out_of_tree(backends: &[PullBackend], next: &NextStep<'_>) -> Markup {
    let (shown, folded): (Vec<_>, Vec<_>) =
        backends.iter().partition(|backend| backend.level >= Level::L3);
    html! {
        section aria-labelledby="out-of-tree" {
            h2 #out-of-tree { "Out-of-tree backends" }
            (summary(&shown, next.is_merged))
            @for result in &shown { (backend_card(result, next)) }
            @if !folded.is_empty() {
                details {
                    summary {
                        @if next.is_merged { (counted(folded.len(), "backend at L2 or L1", "backends at L2 and L1")) }
                        @else { (counted(folded.len(), "backend at L2 or L1, which isn't", "backends at L2 and L1, which aren't")) " shown on the pull request" }
                    }
                    @for result in &folded { (backend_card(result, next)) }
                }
            }
        }
    }
}

/// What backends reported of runs that the relay didn't start.
pub(crate) fn own_runs(backends: &[OwnRuns], upstream: &str) -> Markup {
    html! {
        section aria-labelledby="own-runs" {
            h2 #own-runs { "Backends' own runs" }
            p.detail { "Nightly runs and others that the relay didn't start. They block nothing." }
            @for backend in backends {
                article.muted {
                    div.title {
                        h3 { a href=(format!("/crcr/{}", backend.repo)) { bdi { (backend.repo) } } }
                        span.tag { (backend.level) }
                    }
                    ul.jobs { @for result in &backend.jobs { li { (job(result, None, upstream)) } } }
                }
            }
        }
    }
}

/// The upstream repository's own jobs: failures at once, the others folded.
pub(crate) fn in_tree(found: &InTreeJobs, repository: &str) -> Markup {
    let (jobs, logs) = (&found.in_tree, &found.in_tree_logs);
    let count = |wanted: fn(CiState) -> bool| jobs.iter().filter(|job| wanted(job.state)).count();
    let cancelled = count(|state| state == CiState::Cancelled);
    let (bad, others): (Vec<_>, Vec<_>) = jobs.iter().partition(|job| job.state.is_failure());
    let line = |job: &WorkflowJob| {
        let (glyph, class, word) = state_parts(job.state);
        html! {
            span.outcome.(class) { span.glyph aria-hidden="true" { (glyph) } " " (word) } " "
            @let name = format!("{} / {}", job.workflow, job.name);
            @match &job.url { Some(url) => (external_link(url, &name)), None => bdi { (name) } }
            @if let (Some(started), Some(ended)) = (job.started_at, job.completed_at) {
                span.detail { " · ran " (duration(ended.duration_since(started).as_secs_f64().max(0.0))) }
            }
            @if let Some(step) = job.failed_step.as_ref().filter(|_| job.state.is_failure()) { span.detail { " · in step " bdi { (step) } } }
            @match logs.iter().find(|log| log.job.job_id == job.id) {
                Some(log) => div { (short_explanation(log)) },
                // A whole run never has a log, and not every job has one yet.
                None => { @if job.state.is_failure() {
                    div { a href=(address::failure(repository, job.id)) { "Why" span.hidden { " did " bdi { (name) } " fail?" } } }
                } }
            }
        }
    };
    let more = |count: usize| match count.saturating_sub(MAX_JOBS) {
        0 => html! {},
        more => {
            html! { p.detail { (more) " more aren't listed; the JSON of this page has them." } }
        }
    };
    html! {
        section aria-labelledby="in-tree" {
            h2 #in-tree { "In-tree jobs" }
            p { (bad.len()) " failed, " (count(|state| state == CiState::Passed)) " passed, "
                @if cancelled > 0 { (cancelled) " cancelled, " }
                (count(|state| matches!(state, CiState::Running | CiState::Queued))) " still to end" }
            ul.jobs { @for job in bad.iter().take(MAX_JOBS) { li { (line(job)) } } }
            (more(bad.len()))
            @if !others.is_empty() {
                details { summary { (counted(others.len(), "other job", "other jobs")) }
                    ul.jobs { @for job in others.iter().take(MAX_JOBS) { li { (line(job)) } } }
                    (more(others.len()))
                }
            }
        }
    }
}

/// Of what is merged, the reason alone: nothing waits for backends any more.
fn unblocked(is_merged: bool, blocks: &str, why: &str) -> String {
    let (first, rest) = why.split_at(1);
    if is_merged { first.to_uppercase() + rest } else { format!("{blocks}: {why}") }
}

/// One sentence: do backends block the merge, or did they fail?
fn summary(shown: &[&PullBackend], is_merged: bool) -> Markup {
    let blocking: Vec<_> = shown.iter().filter(|backend| backend.blocks).collect();
    let with = |states: &[BackendOnHead]| -> Vec<&str> {
        let ours =
            blocking.iter().filter(|backend| backend.state.is_some_and(|s| states.contains(&s)));
        ours.map(|backend| backend.repo.as_str()).collect()
    };
    let (failed, open) =
        (with(&[BackendOnHead::Failed, BackendOnHead::Broken]), with(&[BackendOnHead::Running]));
    let (class, glyph, text) = if shown.is_empty() {
        return html! { p.muted { "No backend at L3 or L4 was told of this commit." } };
    } else if !failed.is_empty() {
        let word = if is_merged { "Failed at" } else { "Blocked by" };
        ("bad", "✗", format!("{word} {}", failed.join(", ")))
    } else if !open.is_empty() {
        let word = if is_merged { "Running at" } else { "Waiting for" };
        ("running", "◐", format!("{word} {}", open.join(", ")))
    } else if blocking.is_empty() {
        ("muted", "–", unblocked(is_merged, "Nothing blocks", "no backend at L4 takes part"))
    } else if with(&[BackendOnHead::Skipped]).len() == blocking.len() {
        ("muted", "–", unblocked(is_merged, "Nothing blocks", "no backend at L4 ran"))
    } else if blocking.iter().all(|backend| backend.is_decided) {
        let text = "every backend at L4 has ended, and none failed";
        ("good", "✓", unblocked(is_merged, "Nothing blocks", text))
    } else {
        // Whether more jobs will come, only the check run says.
        let text = "every job that backends at L4 reported passed";
        ("good", "✓", unblocked(is_merged, "Nothing blocks so far", text))
    };
    html! { p.note.(class) role="status" { strong { span aria-hidden="true" { (glyph) } " " bdi { (text) } } } }
}

pub(crate) fn backend_card(backend: &PullBackend, next: &NextStep<'_>) -> Markup {
    let class = backend.state.map_or("muted", BackendOnHead::class);
    html! {
        article.(class) {
            div.title {
                h3 { a href=(format!("/crcr/{}", backend.repo)) { bdi { (backend.repo) } } }
                span.tag { (backend.level) @if !next.is_merged { @if backend.blocks { " · blocks the merge" } @else { " · doesn't block" } } }
            }
            p {
                @if let Some(state) = backend.state { span.outcome.(class) { span.glyph aria-hidden="true" { (state.glyph()) } " " span.hidden { (state.word()) ": " } } }
                @match backend.verdict.as_ref().filter(|_| !backend.quotes_check_run) {
                    Some(found) => { strong { bdi { (found.summary) } } " " span.tag { (fault_text(found.category, found.was_broken_before())) " · " (found.confidence.as_str()) " confidence" } },
                    None => bdi { (backend.sentence) },
                }
            }
            @if let Some(found) = backend.verdict.as_ref().filter(|found| !found.evidence.is_empty()) { (evidence(found)) }
            @if let Some(error) = &backend.last_error { p.detail { bdi { (error) } } }
            @if backend.state.is_some() {
                (jobs_of_backend(backend, next.upstream))
                @if backend.state.is_some_and(|state| state <= BackendOnHead::Broken) { (next_step(backend, next)) }
            }
        }
    }
}

/// What failed comes first: a backend may have hundreds of jobs.
fn jobs_of_backend(backend: &PullBackend, upstream: &str) -> Markup {
    let state = |job: &PullJob| BackendOnHead::of_job(job.outcome, job.missing_proof.is_some());
    let item = |result: &PullJob| html! { li { (job(result, Some(&backend.repo), upstream)) } };
    let mut sorted: Vec<&PullJob> = backend.jobs.iter().collect();
    sorted.sort_by_key(|job| state(job));
    let passed_from = sorted.partition_point(|job| state(job) < BackendOnHead::Passed);
    let is_folded = sorted.len() - passed_from > MAX_OPEN_PASSED;
    let (open, folded) = sorted.split_at(if is_folded { passed_from } else { sorted.len() });
    html! {
        @if !open.is_empty() { ul.jobs { @for result in open { (item(result)) } } }
        @if is_folded {
            details {
                summary { (folded.len()) " other jobs" }
                ul.jobs { @for result in folded { (item(result)) } }
            }
        }
    }
}

/// Where the next step is taken.
pub(crate) struct NextStep<'a> {
    pub(crate) view: &'a View<'a>,
    pub(crate) upstream: &'a str,
    pub(crate) pull_request: Option<u64>,
    pub(crate) head_sha: &'a str,
    pub(crate) merge_base_url: Option<&'a str>,
    /// Whether nothing waits for backends any more.
    pub(crate) is_merged: bool,
}

impl NextStep<'_> {
    /// The page with the button "Re-run" of the check runs.
    fn checks_url(&self) -> String {
        match self.pull_request {
            Some(number) => format!("{}/checks", self.view.pull_url(self.upstream, number)),
            None => format!("{}/checks", self.view.commit_url(self.upstream, self.head_sha)),
        }
    }

    /// Where to write to those who are asked.
    fn thread_url(&self) -> String {
        match self.pull_request {
            Some(number) => self.view.pull_url(self.upstream, number),
            None => self.view.commit_url(self.upstream, self.head_sha),
        }
    }
}

/// What to do about a failure: fix, re-run, revert, or ask; by whose fault it is.
fn next_step(backend: &PullBackend, next: &NextStep<'_>) -> Markup {
    let state = |job: &PullJob| BackendOnHead::of_job(job.outcome, job.missing_proof.is_some());
    // The job that the verdict is about; without a verdict the worst one.
    let failed = backend.jobs.iter().filter(|job| state(job) <= BackendOnHead::Broken);
    let cause = failed.min_by_key(|job| (job.verdict != backend.verdict, state(job)));
    let run = cause.and_then(|job| job.details.url.as_deref());
    let is_cancelled = cause.is_some_and(|job| job.outcome == Some(JobOutcome::Cancelled));
    let has_failed_tests = cause.is_some_and(|job| !job.failed_tests.is_empty());
    let was_broken_before = backend.verdict.as_ref().is_some_and(TriageVerdict::was_broken_before);
    let rerun = html! {
        @if backend.level >= Level::L3 { a href=(next.checks_url()) rel="noreferrer nofollow" { "Re-run it" } " with its check's button" }
        @else { "Have its run started again downstream" }
        @if let Some(url) = run { ", or open " (external_link(url, "its run")) }
    };
    let ask = html! {
        @if backend.oncalls.is_empty() { "ask the maintainers of " bdi { (backend.repo) } }
        @else { "ask " @for (n, name) in backend.oncalls.iter().enumerate() { @if n > 0 { ", " } "@" bdi { (name) } } }
        " " a href=(next.thread_url()) rel="noreferrer nofollow" { "in a comment" }
    };
    html! {
        p.next { strong { "Next: " }
            @match backend.verdict.as_ref().map(|verdict| verdict.category) {
                _ if is_cancelled => { "it was cancelled: " (rerun) "; if it is cancelled again, " (ask) "." }
                Some(TriageCategory::Upstream) if !was_broken_before => {
                    "this change is the likely cause: "
                    @if has_failed_tests { "look at the failing tests below their job, and " }
                    "fix it, or revert it if it has landed. In doubt: " (rerun) "; or " (ask) "."
                }
                Some(TriageCategory::Upstream) => {
                    "it isn't this change. "
                    @match next.merge_base_url {
                        Some(url) => { "See " a href=(url) { "the commit that it began from" } " for what to revert" },
                        None => { "See " a href=(format!("/hud/{}", next.upstream)) { "the branch" } " for what to revert" },
                    }
                    "; " (rerun) " after that; or " (ask) "."
                }
                Some(TriageCategory::Infra | TriageCategory::Flake) => { (rerun) "; if it fails again, " (ask) "." }
                Some(TriageCategory::Backend) => { (ask) "; " (rerun) " once it is fixed." }
                _ => { @if has_failed_tests { "look at the failing tests below their job; " } (rerun) "; or " (ask) "." }
            }
        }
    }
}

/// How long a job waited and ran.
fn job_times(job: &PullJob) -> Markup {
    html! { span.detail {
        @if let Some(seconds) = job.execution_seconds { " · ran " (duration(seconds)) }
        @if let Some(seconds) = job.queue_seconds { " after " (duration(seconds)) " in the queue" }
        " · " (ago(job.received_at))
    } }
}

/// `backend` ran it for a dispatch; where else its tests failed is listed by backend.
fn job(job: &PullJob, backend: Option<&str>, upstream: &str) -> Markup {
    html! {
        (outcome(job.outcome)) " "
        @match &job.details.url { Some(url) => (external_link(url, &job.name)), None => bdi { (job.name) } }
        (job_times(job))
        @if job.attempts > 1 { span.detail { " · " (job.attempts) " attempts" } }
        @if let Some(tests) = &job.tests {
            span.detail { " · " (tests.passed) " passed, " (tests.failed) " failed, " (tests.skipped) " skipped" }
        }
        @if let Some(missing) = job.missing_proof {
            div.detail { strong { "Reported without proof" } ": " (missing) ". It changes no check run." }
        }
        @for warning in &job.details.warnings { div.detail { "In its report, " bdi { (warning) } } }
        @if job.details.is_shown() { span.detail { (job.details.markup()) } }
        @if let Some(reported) = &job.reported_verdict { (reported_verdict(reported, upstream)) }
        @if !job.failed_tests.is_empty() {
            ul.tests { @for (n, test) in job.failed_tests.iter().enumerate().take(MAX_FAILED_TESTS) {
                li {
                    @if let Some(is_new) = job.new_tests.as_ref().and_then(|tests| tests.get(n)) {
                        span.tag { @if *is_new { "new" } @else { "known" } } " "
                    }
                    @match backend {
                        Some(repo) => a rel="nofollow" href=(reported::link_of_failures(repo, (&test.name, test.file.as_deref()))) { bdi { (test.name) } },
                        None => bdi { (test.name) },
                    }
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

/// The backend's own verdict. It accuses whom it likes, so it is attributed to its analyzer.
fn reported_verdict(verdict: &TriageVerdict, upstream: &str) -> Markup {
    html! {
        div.detail {
            bdi { @match &verdict.analyzer { Some(analyzer) => (analyzer), None => "The backend" } } " says: "
            (category_text(verdict.category)) " (" (verdict.confidence.as_str()) " confidence): "
            bdi { (verdict.summary) }
            @if let Some(suspect) = &verdict.suspected_upstream {
                @if let Some(number) = suspect.pr { " · suspects " a href=(address::pull(upstream, number)) { "pull request " (number) } }
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
