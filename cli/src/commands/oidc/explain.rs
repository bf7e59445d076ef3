//! `--explain`: prints what the command sees and would do, without a request or a change.

use std::process::ExitCode;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::cli::DataFormat;
use crate::cli::oidc::{ConfigureArgs, OnUnavailable};
use crate::commands::oidc::decide::{
    ActionOutputs, AuthMode, AuthPlan, AuthReason, AuthResult, JobFacts, TrustClass, action_outputs,
};
use crate::commands::oidc::sccache::SccacheBucket;
use crate::commands::oidc::{earlier_credentials, inputs, messages, sccache};
use crate::env_vars;
use crate::escape::neutralize;
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;
use crate::runner::Runner;

pub fn run(args: &ConfigureArgs, facts: &JobFacts, runner: &Runner, printer: &Printer) -> Outcome {
    let sees = describe_job(facts, runner);
    let would = describe_plan(args, facts, runner);
    let text = match args.format {
        DataFormat::Json => format!("{:#}\n", json!({"sees": sees, "would": would})),
        DataFormat::Text => {
            let part = |title: &str, pairs: &Map<String, Value>| {
                let lines = pairs.iter().map(|(name, value)| match value {
                    Value::String(value) => format!("  {name}: {value}\n"),
                    value => format!("  {name}: {value}\n"),
                });
                format!("{title}\n{}", lines.collect::<String>())
            };
            neutralize(&format!("{}{}", part("sees", &sees), part("would", &would))).into_owned()
        }
    };
    printer.data_as(args.format, &text);
    Ok(ExitCode::SUCCESS)
}

fn describe_job(facts: &JobFacts, runner: &Runner) -> Map<String, Value> {
    let none = || "none".to_owned();
    let pull_request = facts.pull_request.as_ref().map_or_else(none, |pull_request| {
        let head = pull_request.head.as_deref().unwrap_or("a deleted repository");
        let author = pull_request.author.as_deref().unwrap_or("nobody");
        let fork = if facts.is_fork() { "a fork" } else { "not a fork" };
        format!("from {head} ({fork}), by {author}")
    });
    let variables = match (facts.token_url, facts.token_bearer) {
        (true, true) => "both set",
        (false, false) => "not set: no `id-token: write`, or an event that GitHub gives no token",
        (true, false) => "only the URL is set",
        (false, true) => "only the bearer is set",
    };
    let defined_key_variables = sccache::defined_key_variables(runner.env());
    let mut seen = Map::new();
    let mut put = |name: &str, value: String| drop(seen.insert(name.to_owned(), value.into()));
    put("subject of the token", subject(runner).unwrap_or_else(none));
    put("event", if facts.event.is_empty() { none() } else { facts.event.clone() });
    put("repository", facts.repository.clone().unwrap_or_else(none));
    put("actor", facts.actor.clone().unwrap_or_else(none));
    put("pull request", pull_request);
    put("owners", if facts.owners.is_empty() { "any".into() } else { facts.owners.join(", ") });
    put("token variables", variables.to_owned());
    put(
        "AWS keys defined already",
        if defined_key_variables.is_empty() { none() } else { defined_key_variables.join(", ") },
    );
    seen
}

/// What a trust policy has to match. A repository's own template may make it another text.
fn subject(runner: &Runner) -> Option<String> {
    let env = runner.env();
    let (owner, name) = runner.repository()?.split_once('/')?;
    let old = format!("repo:{owner}/{name}:…");
    let ids =
        env.get(env_vars::GITHUB_REPOSITORY_OWNER_ID).zip(env.get(env_vars::GITHUB_REPOSITORY_ID));
    let Some((owner_id, id)) = ids else { return Some(old) };
    Some(format!(
        "repo:{owner}@{owner_id}/{name}@{id}:… if the repository was created, renamed or \
         transferred since 2026-07-15, else {old}"
    ))
}

fn describe_plan(args: &ConfigureArgs, facts: &JobFacts, runner: &Runner) -> Map<String, Value> {
    let plan = facts.plan();
    let mut would = Map::new();
    let mut put = |name: &str, value: Value| drop(would.insert(name.to_owned(), value));
    put("do", messages::plan(plan).into());
    let ended = match plan {
        AuthPlan::Ambient => AuthResult::Ambient,
        AuthPlan::Anonymous(reason) => AuthResult::Anonymous(reason),
        AuthPlan::Broken(reason) => {
            put(
                "fix",
                messages::broken_setup(reason, facts, runner).help().unwrap_or_default().into(),
            );
            AuthResult::Broken(reason)
        }
        AuthPlan::Token => match inputs::check(args, runner) {
            Ok(inputs) => {
                let request = &inputs.request;
                let kept =
                    earlier_credentials::reusable_until(request, runner.env(), Timestamp::now());
                if kept.is_some_and(|_| args.use_existing) {
                    put("do", "keep the credentials of an earlier step".into());
                }
                put("role", request.role_arn.clone().into());
                put("session", request.session_name.clone().into());
                put("seconds", request.duration_seconds.into());
                put("region", inputs.region.into());
                put("STS", request.endpoint.as_str().into());
                put("audience", args.audience.clone().into());
                if let Some(policy) = &request.policy {
                    put("session policy", policy.clone().into());
                }
                AuthResult::Oidc
            }
            Err(failure) => {
                put("do", wrong(&failure).into());
                if let Some(help) = failure.help() {
                    put("fix", help.into());
                }
                AuthResult::Broken(AuthReason::InvalidInput)
            }
        },
    };
    let ActionOutputs { mode, reason, expected, degraded, can_write, exit, .. } =
        action_outputs(ended, args.on_unavailable);
    let policy = match args.on_unavailable {
        OnUnavailable::Auto => "auto",
        OnUnavailable::Degrade => "degrade",
        OnUnavailable::Fail => "fail",
    };
    put("on-unavailable", policy.into());
    put("sccache", cache(args, facts, mode, can_write, runner).into());
    put("mode", mode.word().into());
    put("reason", reason.word().into());
    put("expected", expected.into());
    put("degraded", degraded.into());
    put("can-write", can_write.into());
    put("exit", exit.into());
    would
}

fn cache(
    args: &ConfigureArgs,
    facts: &JobFacts,
    mode: AuthMode,
    write: bool,
    runner: &Runner,
) -> String {
    let class = if write { facts.trust_class() } else { TrustClass::DefaultBranch };
    let cache = SccacheBucket::from_inputs(args, class).filter(|_| mode != AuthMode::Error);
    let Some(cache) = cache else {
        return "off".to_owned();
    };
    let cache =
        cache.and_then(|cache| sccache::check_key_variables(write, runner.env()).map(|()| cache));
    cache.map_or_else(|off| format!("off: {}", off.why), |cache| cache.plan())
}

fn wrong(failure: &Failure) -> String {
    format!("stop: {}", failure.message())
}
