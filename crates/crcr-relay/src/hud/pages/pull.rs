//! `/pr/{number}`: what the author of a pull request needs to know.

use crcr_domain::Level;
use crcr_domain::results::Outcome;
use maud::{Markup, html};

use super::super::layout::{external, outcome, shell, short, time};
use super::super::model::pull::{Backend, Pull, PullJob};

pub(in super::super) fn page(model: &Pull) -> Markup {
    let (shown, folded): (Vec<_>, Vec<_>) =
        model.backends.iter().partition(|backend| backend.level >= Level::L3);
    shell(
        &format!("{}#{}", model.upstream, model.number),
        true,
        &html! {
            h1 { bdi { (model.upstream) } " #" (model.number) }
            p {
                "Head " code { (short(&model.head_sha)) }
                @if let Some(newest) = model.newest { " · newest report " (time(newest)) }
                @if model.older_heads > 0 { " · " (model.older_heads) " older heads left out" }
            }
            section aria-labelledby="out-of-tree" {
                h2 #out-of-tree { "Out-of-tree backends" }
                @if shown.is_empty() { p.muted { "No backend at L3 or L4 received this pull request." } }
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

fn backend(backend: &Backend) -> Markup {
    html! {
        article {
            h3 {
                a href=(format!("/crcr/{}", backend.repo)) { bdi { (backend.repo) } } " "
                span.tag { (backend.level) @if backend.blocks { ", blocks the merge" } }
            }
            @if backend.level.shows_results() {
                @if backend.jobs.is_empty() {
                    p.muted { (waiting(&backend.dispatch)) }
                    @if let Some(error) = &backend.last_error { p.detail { bdi { (error) } } }
                }
                ul.jobs { @for one in &backend.jobs { li { (job(one)) } } }
                @let failed = backend.jobs.iter().any(|job| job.outcome.is_some_and(|outcome| !outcome.is_pass()));
                @if failed {
                    p.detail {
                        @if backend.oncalls.is_empty() { "Ask the maintainers of " bdi { (backend.repo) } "." }
                        @else { "Ask " (backend.oncalls.join(", ")) "." }
                        " To run it again, press “Re-run” on its check, or comment in the downstream repository."
                    }
                }
            } @else {
                p.muted { "Received the event; results are not shown at this level." }
            }
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
        @if job.outcome == Some(Outcome::TestFailed) {
            div.detail {
                @match job.on_branch {
                    Some(Outcome::Passed | Outcome::PassedAfterRerun) => "New: it passed on upstream's newest push.",
                    Some(_) => "Not new: it did not pass on upstream's newest push either.",
                    None => "Whether it is new is unknown: the backend reported on no push lately.",
                }
            }
        }
        @if !job.failed_tests.is_empty() {
            ul.tests { @for test in job.failed_tests.iter().take(10) {
                li { bdi { (test.name) } @if let Some(message) = &test.message { div.detail { bdi { (message) } } } }
            } }
            @if job.failed_tests.len() > 10 { p.detail { "and " (job.failed_tests.len() - 10) " more" } }
        }
    }
}
