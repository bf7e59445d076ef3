//! Refuses the code of a fork where the run has the base repository's secrets and cache, as
//! `actions/checkout` does since version 7. Whoever runs such code there gives the secrets to everybody.

use crate::cli::checkout::CheckoutArgs;
use crate::commands::checkout::source::CheckoutSource;
use crate::env_vars;
use crate::failure::Failure;
use crate::runner::{Event, Runner};

/// Events that strangers cause, that run on the default branch, and that don't say which commit they are
/// about. A pull request's commits are also in the base repository, so there only the run's own commit is
/// known to be the repository's.
const STRANGERS_EVENTS: [&str; 8] = [
    "issue_comment",
    "issues",
    "discussion",
    "discussion_comment",
    "check_run",
    "check_suite",
    "status",
    "fork",
];

/// Fails if the commit is, or may be, of a fork's pull request.
///
/// A relay's `repository_dispatch` isn't refused: its whole purpose is such code, and its jobs have no
/// secrets (`actions/checkout-pr/README.md`).
pub fn refuse_fork_code(
    args: &CheckoutArgs,
    source: &CheckoutSource,
    runner: &Runner,
) -> Result<(), Failure> {
    if args.allow_unsafe_pr_checkout {
        return Ok(());
    }
    let name = runner.event_name();
    let repository = source.repository.to_string();
    let is_own = runner.repository().is_some_and(|own| own.eq_ignore_ascii_case(&repository));
    let is_runs_commit = runner
        .env()
        .get(env_vars::GITHUB_SHA)
        .is_some_and(|sha| sha.eq_ignore_ascii_case(&source.sha) && is_own);
    let refused = match name {
        "pull_request_target" | "workflow_run" => match ForkHead::of(name, &runner.event()?) {
            None => false,
            Some(head) => head.has(&repository, &source.sha) || (is_own && !is_runs_commit),
        },
        _ if STRANGERS_EVENTS.contains(&name) => is_own && !is_runs_commit,
        _ => false,
    };
    // The base of a pull request is the repository's own code.
    if !refused || is_base(source, is_own, runner) {
        return Ok(());
    }
    Err(Failure::user(
        "unsafe-pr-checkout",
        format!(
            "`{}` of `{repository}` may be a fork's code, and this `{name}` run has the secrets, the \
             token and the cache of the base repository",
            source.sha
        ),
    )
    .hint(
        "build the fork's code in a run of `pull_request`, which has none of them; if this job runs \
         nothing of what it checks out, set `allow-unsafe-pr-checkout: true`",
    ))
}

fn is_base(source: &CheckoutSource, is_own: bool, runner: &Runner) -> bool {
    let pull_request = runner.event().ok().and_then(|event| event.pull_request);
    is_own && pull_request.is_some_and(|pull| pull.base.sha.eq_ignore_ascii_case(&source.sha))
}

/// The head of a pull request from a fork that an event is about.
struct ForkHead {
    /// `None` if it was deleted.
    repository: Option<String>,
    commits: Vec<String>,
}

impl ForkHead {
    /// `None` if the event isn't about a fork.
    fn of(name: &str, event: &Event) -> Option<Self> {
        let base = event.repository.as_ref().map(|repository| repository.full_name.as_str());
        let (repository, commits) = if name == "pull_request_target" {
            let pull = event.pull_request.as_ref()?;
            let head = pull.head.repo.as_ref().map(|repository| repository.full_name.clone());
            let merge = pull.merge_commit_sha.clone();
            (head, [Some(pull.head.sha.clone()), merge].into_iter().flatten().collect())
        } else {
            let run = event.workflow_run.as_ref()?;
            if !run.event.starts_with("pull_request") {
                return None;
            }
            let head = run.head_repository.as_ref().map(|repository| repository.full_name.clone());
            (head, run.head_sha.clone().into_iter().collect())
        };
        let same = repository.as_deref().zip(base).is_some_and(|(a, b)| a.eq_ignore_ascii_case(b));
        (!same).then_some(Self { repository, commits })
    }

    fn has(&self, repository: &str, sha: &str) -> bool {
        self.repository.as_ref().is_some_and(|head| head.eq_ignore_ascii_case(repository))
            || self.commits.iter().any(|commit| commit.eq_ignore_ascii_case(sha))
    }
}
