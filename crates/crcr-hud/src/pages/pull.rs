//! `/pr/{number}`: the results of one pull request, for its author.

use crcr_domain::Level;
use crcr_domain::facts::DispatchFactStatus;
use crcr_domain::results::JobOutcome;
use maud::{Markup, html};

use crate::layout::{external_link, outcome, shell, short_sha, time};
use crate::model::pull::{EarlierResult, PullBackend, PullJob, PullModel};

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
            }
            @if !folded.is_empty() {
                details {
                    summary { (folded.len()) " backends at L2 and L1, which aren't shown on the pull request" }
                    @for result in &folded { (backend(result)) }
                }
            }
        },
    )
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
        @if job.outcome == Some(JobOutcome::TestFailed) { div.detail { (is_new_failure(job.before.as_ref())) } }
        @if !job.failed_tests.is_empty() {
            ul.tests { @for test in job.failed_tests.iter().take(MAX_FAILED_TESTS) {
                li { bdi { (test.name) } @if let Some(message) = &test.message { div.detail { bdi { (message) } } } }
            } }
            @if job.failed_tests.len() > MAX_FAILED_TESTS { p.detail { "and " (job.failed_tests.len() - MAX_FAILED_TESTS) " more" } }
        }
    }
}

/// Whether a failure came with this pull request.
fn is_new_failure(before: Option<&EarlierResult>) -> Markup {
    html! {
        @match before {
            Some(before) => {
                @if before.passed { strong { "New" } ": it passed on " } @else { strong { "Not new" } ": it failed on " }
                @if before.is_merge_base { "the merge base " } @else { "the newest push with a result, " }
                code { (short_sha(&before.head_sha)) } ", " (time(before.at)) " UTC"
            }
            None => { strong { "Unknown" } " whether it is new: the backend has no result for the merge base or a recent push" }
        }
    }
}
