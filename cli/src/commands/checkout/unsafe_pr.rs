//! Refuses the code of a fork where the run has the base repository's secrets and cache, as
//! `actions/checkout` does since version 7. Whoever runs such code there gives the secrets to everybody.
//!
//! Commits of forks are in the base repository, too, and in every fork of it. So what counts isn't where a
//! commit is fetched from: in these runs only commits that are known to be the repository's own are taken.

use crcr_artifacts::trust::STRANGERS_EVENTS;

use crate::cli::checkout::CheckoutArgs;
use crate::commands::checkout::source::CheckoutSource;
use crate::env_vars;
use crate::failure::Failure;
use crate::runner::{Event, Runner};

/// Events that only people with write access cause, or that name no code of a pull request. A run of
/// `workflow_run` after another event may be about a stranger's, as after a relay's `repository_dispatch`.
const OWN_TRIGGERS: [&str; 7] =
    ["push", "schedule", "workflow_dispatch", "release", "merge_group", "create", "delete"];

/// Fails if the commit is, or may be, of a fork's pull request.
///
/// A relay's `repository_dispatch` isn't refused: its whole purpose is such code, and its jobs have no
/// secrets (`actions/checkout-pr/README.md`).
pub fn refuse_fork_code(
    args: &CheckoutArgs,
    source: &CheckoutSource,
    runner: &Runner,
) -> Result<(), Failure> {
    let name = runner.event_name();
    let is_about_strangers = match name {
        "workflow_run" => runner
            .event()?
            .workflow_run
            .is_none_or(|run| !OWN_TRIGGERS.contains(&run.event.as_str())),
        name => STRANGERS_EVENTS.contains(&name),
    };
    if args.allow_unsafe_pr_checkout || !is_about_strangers || is_known(source, runner) {
        return Ok(());
    }
    Err(Failure::user(
        "unsafe-pr-checkout",
        format!(
            "`{}` of `{}` may be a fork's code, and this `{name}` run has the secrets, the token and \
             the cache of the base repository",
            source.sha, source.repository
        ),
    )
    .hint(
        "build the fork's code in a run of `pull_request`, which has none of them; if this job runs \
         nothing of what it checks out, set `allow-unsafe-pr-checkout: true`",
    ))
}

/// Whether the commit is of the repository itself, or of another one of its owner, where the run's strangers
/// have no pull request.
fn is_known(source: &CheckoutSource, runner: &Runner) -> bool {
    let Some(own) = runner.repository() else { return false };
    let repository = source.repository.to_string();
    if !own.eq_ignore_ascii_case(&repository) {
        let owner = |name: &str| name.split('/').next().map(str::to_lowercase);
        let is_forks_head = || {
            let event = runner.event().unwrap_or_default();
            head_repository(&event).is_some_and(|head| head.eq_ignore_ascii_case(&repository))
        };
        return owner(own) == owner(&repository) && !is_forks_head();
    }
    let own_commit = runner.env().get(env_vars::GITHUB_SHA).map(str::to_owned);
    let event = runner.event().unwrap_or_default();
    let commits = own_commit.into_iter().chain(own_commits(&event, own));
    commits.into_iter().any(|commit| commit.eq_ignore_ascii_case(&source.sha))
}

/// The commits of an event that people with write access made: the base of its pull request, and the head if
/// it is a branch of this repository.
fn own_commits(event: &Event, own: &str) -> Vec<String> {
    let is_own_head = head_repository(event).is_some_and(|head| head.eq_ignore_ascii_case(own));
    let mut commits = vec![];
    if let Some(pull) = &event.pull_request {
        commits.push(pull.base.sha.clone());
        if is_own_head {
            commits.push(pull.head.sha.clone());
            commits.extend(pull.merge_commit_sha.clone());
        }
    }
    if let Some(run) = &event.workflow_run
        && is_own_head
    {
        commits.extend(run.head_sha.clone());
    }
    commits
}

/// `None` if it was deleted, or if the event names none.
fn head_repository(event: &Event) -> Option<&str> {
    let pull = event.pull_request.as_ref().and_then(|pull| pull.head.repo.as_ref());
    let run = event.workflow_run.as_ref().and_then(|run| run.head_repository.as_ref());
    let run = run.map(|repository| repository.full_name.as_str());
    pull.map(|repository| repository.full_name.as_str()).or(run)
}
