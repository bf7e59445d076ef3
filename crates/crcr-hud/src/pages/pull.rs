//! `/pr/{number}`: the results of one pull request, for its author.

use crcr_domain::Level;
use crcr_domain::ci_data::job_log::JobLogRow;
use crcr_domain::ci_data::workflow::{CiState, WorkflowJob};
use crcr_domain::facts::DispatchFactStatus;
use crcr_domain::results::JobOutcome;
use crcr_domain::triage::{TriageCategory, TriageVerdict};
use maud::{Markup, html};

use super::branch::state_parts;
use super::logs::short_explanation;
use crate::layout::{external_link, outcome, shell, short_sha, time};
use crate::model::pull::{PullBackend, PullJob, PullModel};

/// Failing tests shown for each job.
const MAX_FAILED_TESTS: usize = 10;

pub(crate) fn page(model: &PullModel) -> Markup {
    let (shown, folded): (Vec<_>, Vec<_>) =
        model.backends.iter().partition(|backend| backend.level >= Level::L3);
    shell(
        &format!("{}#{}", model.upstream, model.number),
        true,
        &html! {
            div.title {
                h1 { bdi { (model.upstream) } " #" (model.number) }
                a href=(format!("https://github.com/{}/pull/{}", model.upstream, model.number)) rel="noreferrer" { "on GitHub" }
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
            section aria-labelledby="out-of-tree" {
                h2 #out-of-tree { "Out-of-tree backends" }
                (summary(&shown))
                @for result in &shown { (backend(result)) }
                @if !folded.is_empty() {
                    details {
                        summary { (folded.len()) " backends at L2 and L1, which aren't shown on the pull request" }
                        @for result in &folded { (backend(result)) }
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

fn backend(backend: &PullBackend) -> Markup {
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
