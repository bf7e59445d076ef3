//! What is known of a job before any input is read.

use crate::commands::oidc::decide::{JobFacts, PullRequestFacts};
use crate::env_vars;
use crate::failure::Failure;
use crate::runner::Runner;

/// What the runner and the event say, without the inputs.
pub fn job_facts(runner: &Runner) -> Result<JobFacts, Failure> {
    let env = runner.env();
    let text = |name: &str| env.get(name).map(str::to_owned);
    let event = runner.event()?;
    let is_fork = event.repository.as_ref().is_some_and(|repository| repository.fork);
    let default_branch = event.repository.map(|repository| repository.default_branch);
    let pull_request = event.pull_request.map(|pull_request| PullRequestFacts {
        head: pull_request.head.repo.map(|repo| repo.full_name),
        base: pull_request.base.repo.map(|repo| repo.full_name),
        author: pull_request.user.map(|user| user.login),
    });
    Ok(JobFacts {
        event: runner.event_name().to_owned(),
        git_ref: text(env_vars::GITHUB_REF),
        default_branch: default_branch.filter(|name| !name.is_empty()),
        repository: runner.repository().map(str::to_owned),
        is_fork_of_another: is_fork,
        actor: text(env_vars::GITHUB_ACTOR),
        pull_request,
        token_url: env.get(env_vars::ACTIONS_ID_TOKEN_REQUEST_URL).is_some(),
        token_bearer: env.get(env_vars::ACTIONS_ID_TOKEN_REQUEST_TOKEN).is_some(),
        ..JobFacts::default()
    })
}
