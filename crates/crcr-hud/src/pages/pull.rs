//! `/pr/{number}`: what the author of a pull request needs to know.

use crcr_domain::Level;
use crcr_domain::results::Outcome;
use maud::{Markup, html};

use crate::layout::{external, outcome, shell, short, time};
use crate::model::pull::{Backend, Before, Pull, PullJob};

/// Failing tests that are shown of a job.
const TESTS: usize = 10;

pub(crate) fn page(model: &Pull) -> Markup {
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
                "Head " code { (short(&model.head_sha)) }
                @if let Some(sha) = &model.merge_base { " · merge base " code { (short(sha)) } }
                @match model.newest {
                    Some(newest) => { " · newest report " (time(newest)) " UTC" }
                    None => " · no report yet",
                }
                @if model.older_heads > 0 { " · " (model.older_heads) @if model.older_heads == 1 { " older head" } @else { " older heads" } " left out" }
            }
            section aria-labelledby="out-of-tree" {
                h2 #out-of-tree { "Out-of-tree backends" }
                (summary(&shown))
                @for one in &shown { (backend(one)) }
            }
            @if !folded.is_empty() {
                details {
                    summary { (folded.len()) " backends at L2 and L1, which don't show on the pull request" }
                    @for one in &folded { (backend(one)) }
                }
            }
        },
    )
}

/// How a backend's jobs stand together, the worst of them first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    Failed,
    Broken,
    Open,
    Passed,
}

impl Standing {
    fn of(backend: &Backend) -> Self {
        let of_job = |job: &PullJob| match job.outcome {
            _ if job.missing_proof.is_some() => Self::Broken,
            None => Self::Open,
            Some(Outcome::TestFailed) => Self::Failed,
            Some(Outcome::Neutral | Outcome::Superseded) => Self::Passed,
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

/// One sentence: may it be merged, as far as backends go?
fn summary(shown: &[&Backend]) -> Markup {
    let blocking: Vec<_> = shown.iter().filter(|backend| backend.blocks).collect();
    let with = |standings: &[Standing]| -> Vec<&str> {
        let ours = blocking.iter().filter(|backend| standings.contains(&Standing::of(backend)));
        ours.map(|backend| backend.repo.as_str()).collect()
    };
    let (failed, open) = (with(&[Standing::Failed, Standing::Broken]), with(&[Standing::Open]));
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

fn backend(backend: &Backend) -> Markup {
    let standing = backend.level.shows_results().then(|| Standing::of(backend).class());
    html! {
        article.(standing.unwrap_or("muted")) {
            div.title {
                h3 { a href=(format!("/crcr/{}", backend.repo)) { bdi { (backend.repo) } } }
                span.tag { (backend.level) @if backend.blocks { " · blocks the merge" } @else { " · doesn't block" } }
            }
            @if backend.level.shows_results() {
                @if backend.jobs.is_empty() {
                    p.muted { (waiting(&backend.dispatch)) }
                    @if let Some(error) = &backend.last_error { p.detail { bdi { (error) } } }
                }
                ul.jobs { @for one in &backend.jobs { li { (job(one)) } } }
                @if matches!(standing, Some("bad" | "infra")) { (help(backend)) }
            } @else {
                p.muted { "Received the event; results are not shown at this level." }
            }
        }
    }
}

/// Whom to ask, and how to run it again.
fn help(backend: &Backend) -> Markup {
    html! {
        p.detail {
            @if backend.oncalls.is_empty() { "Ask the maintainers of " bdi { (backend.repo) } "." }
            @else { "Ask " @for (n, name) in backend.oncalls.iter().enumerate() { @if n > 0 { ", " } "@" bdi { (name) } } "." }
            " To run it again, "
            @if backend.level >= Level::L3 { "press “Re-run” on its check on the pull request" }
            @else { "have its run started again downstream" }
            @if let Some(url) = backend.jobs.iter().find_map(|job| job.url.as_deref()) { ", or open " (external(url, "its run")) }
            "."
        }
    }
}

fn waiting(status: &str) -> &'static str {
    match status {
        "queued" => "Waits to be sent.",
        "sent" => "Sent; nothing heard of it yet.",
        "never_started" => "Sent, and nothing was heard of it in time.",
        "superseded" => "A newer head of this pull request replaced it.",
        "dead" => "It could not be sent.",
        "repository_changed" => {
            "Not sent: the name belongs to another repository than before, and an operator has to \
             confirm it."
        }
        _ => "The backend can't be reached now.",
    }
}

fn job(job: &PullJob) -> Markup {
    html! {
        (outcome(job.outcome)) " "
        @match &job.url { Some(url) => (external(url, &job.name)), None => bdi { (job.name) } }
        @if job.attempts > 1 { span.detail { " · " (job.attempts) " attempts" } }
        @if let Some(tests) = &job.tests {
            span.detail { " · " (tests.passed) " passed, " (tests.failed) " failed, " (tests.skipped) " skipped" }
        }
        @if let Some(missing) = job.missing_proof {
            div.detail { strong { "Reported without proof" } ": " (missing) ". It moves no check." }
        }
        @if job.outcome == Some(Outcome::TestFailed) { div.detail { (novelty(job.before.as_ref())) } }
        @if !job.failed_tests.is_empty() {
            ul.tests { @for test in job.failed_tests.iter().take(TESTS) {
                li { bdi { (test.name) } @if let Some(message) = &test.message { div.detail { bdi { (message) } } } }
            } }
            @if job.failed_tests.len() > TESTS { p.detail { "and " (job.failed_tests.len() - TESTS) " more" } }
        }
    }
}

/// Whether a failure came with the pull request.
fn novelty(before: Option<&Before>) -> Markup {
    html! {
        @match before {
            Some(before) => {
                @if before.passed { strong { "New" } ": it passed on " } @else { strong { "Not new" } ": it failed on " }
                @if before.is_merge_base { "the merge base " } @else { "the newest push that it had reported on, " }
                code { (short(&before.head_sha)) } ", " (time(before.at)) " UTC"
            }
            None => { strong { "Unknown" } " whether it is new: the backend reported neither on the merge base nor on a push lately" }
        }
    }
}
