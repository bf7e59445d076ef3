//! The messages for each situation: what happened, why, what to do.

use crate::commands::oidc::decide::{AuthPlan, AuthReason, JobFacts};
use crate::env_vars;
use crate::failure::Failure;
use crate::runner::Runner;

/// Why the event gives no credentials. It is an error with `on-unavailable: fail`, else a notice.
pub fn no_credentials(reason: AuthReason, facts: &JobFacts) -> Failure {
    let repository = facts.repository.as_deref().unwrap_or("this repository");
    let message = match reason {
        AuthReason::ForeignRepo => {
            format!("no AWS credentials: `{repository}` belongs to none of the `owners`")
        }
        AuthReason::Dependabot if facts.token_url => {
            return Failure::user(
                reason.word(),
                "this run of Dependabot's has an OIDC token and no role: `role-to-assume` is empty",
            )
            .hint(
                "Dependabot's runs don't get the secrets of Actions: take a variable (`vars`) for the \
                 role, or make it a secret of Dependabot's, too",
            );
        }
        AuthReason::Dependabot => {
            return Failure::user(reason.word(), "this run of Dependabot's has no OIDC token").hint(
                "GitHub starts Dependabot's runs with read-only permissions, and those of the job \
                 raise them: add `permissions: id-token: write` to it, if it isn't there",
            );
        }
        _ => {
            let head = facts.pull_request.as_ref().and_then(|p| p.head.as_deref());
            let whose =
                head.map_or("a deleted fork".to_owned(), |head| format!("the fork `{head}`"));
            let what =
                if facts.token_url { "secret, so `role-to-assume` is empty" } else { "OIDC token" };
            format!("no AWS credentials: GitHub gives a pull request from {whose} no {what}")
        }
    };
    Failure::user(reason.word(), message)
        .hint("to let the job go on without, take `on-unavailable: auto`")
}

/// Why a run in a repository that was forked from another one has no credentials.
pub fn no_credentials_in_a_copy(facts: &JobFacts, why: &Failure) -> Failure {
    let repository = facts.repository.as_deref().unwrap_or("this repository");
    let owner = repository.split('/').next().unwrap_or_default();
    Failure::user(
        AuthReason::ForeignRepo.word(),
        format!(
            "no AWS credentials: `{repository}` is a fork, whose own runs need none ({}). If this is \
             the repository that the role is for, add `owners: {owner}`",
            why.message()
        ),
    )
    .hint("to let the job go on without, take `on-unavailable: auto`")
}

/// What is wrong with the job's token variables.
pub fn broken_setup(reason: AuthReason, facts: &JobFacts, runner: &Runner) -> Failure {
    match reason {
        AuthReason::PartialToken => {
            let (url, token) =
                (env_vars::ACTIONS_ID_TOKEN_REQUEST_URL, env_vars::ACTIONS_ID_TOKEN_REQUEST_TOKEN);
            let (here, gone) = if facts.token_url { (url, token) } else { (token, url) };
            Failure::user(
                reason.word(),
                format!(
                    "only one half of the OIDC request is here: `{here}` is set, `{gone}` is not"
                ),
            )
            .hint(format!(
                "something passes the variables on by name: pass `{url}` and `{token}`, into the \
                 container too"
            ))
        }
        _ if !runner.env().is_true(env_vars::GITHUB_ACTIONS) => Failure::user(
            reason.word(),
            "there is no OIDC token to be had: this is not a job of GitHub Actions",
        )
        .hint("elsewhere, use the credentials of the machine: `--ambient allow`"),
        _ if runner.env().is_true(env_vars::GITEA_ACTIONS) => {
            Failure::user(reason.word(), "this server gives the job no OIDC token").hint(
                "Forgejo gives one since version 15 to a job with `enable-openid-connect: true`; where there are \
                 none, `on-unavailable: degrade` goes on without credentials",
            )
        }
        _ => Failure::user(
            reason.word(),
            "this job may not mint an OIDC token: `ACTIONS_ID_TOKEN_REQUEST_URL` and \
             `ACTIONS_ID_TOKEN_REQUEST_TOKEN` are not set",
        )
        .hint(
            "add `permissions: id-token: write` to this job; for a reusable workflow to the \
             caller's job too; for a container that you start yourself, pass both variables into it",
        ),
    }
}

/// The hint for a variable that can't be unset.
pub const REMOVE_VARIABLE: &str =
    "remove the `env:` entry that defines it, or the step that exported it";

pub fn quoted(names: &[&str]) -> String {
    let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
    match names.split_last() {
        Some((last, front)) if !front.is_empty() => format!("{} and {last}", front.join(", ")),
        _ => names.concat(),
    }
}

/// Such as "`A` is" or "`A` and `B` are".
pub fn are(names: &[&str]) -> String {
    let verb = if names.len() == 1 { "is" } else { "are" };
    format!("{} {verb}", quoted(names))
}

/// The message and the hint for a clock that S3 refuses.
pub fn clock_skew(minutes: u64, way: &str) -> (String, &'static str) {
    let what = format!(
        "the clock of this machine is {minutes} minutes {way}: S3 refuses requests that are more \
         than 15 minutes off"
    );
    (what, "set the clock of the runner, by NTP for example")
}

pub fn plan(plan: AuthPlan) -> String {
    match plan {
        AuthPlan::Token => "mint a token and assume the role".to_owned(),
        AuthPlan::Ambient => "use the credentials of the machine".to_owned(),
        AuthPlan::Anonymous(reason) => format!("go on without credentials ({reason})"),
        AuthPlan::Broken(reason) => format!("stop: something is broken ({reason})"),
    }
}
