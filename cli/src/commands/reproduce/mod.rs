//! `crcr reproduce`: commits, workflow, environment and failing tests of a backend's failure, from the
//! HUD and, with a token, from GitHub.
//!
//! What backends report is untrusted text: it is bounded, escaped where it is printed, and quoted where
//! it becomes a word of a command. Nothing of it is run.

mod act;
mod recipe;
mod test_command;

use std::collections::BTreeMap;
use std::process::ExitCode;

use crcr_github::http::{self, RetryPolicy};
use crcr_github::lookup::GithubLookup;
use crcr_github::lookup::cache::LookupCache;
use crcr_github::{SecureUrl, SecureUrlError};

use self::recipe::{HudPull, Recipe, RunPins};
use crate::cli::reproduce::ReproduceArgs;
use crate::commands::{git, github, workflow};
use crate::env_vars::{self, Env};
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;

const MAX_HUD_BYTES: usize = 16 * 1024 * 1024;
/// Runs whose workflow is read.
const MAX_RUNS: usize = 10;
/// Actions of a workflow whose commits are looked up.
const MAX_USES: usize = 50;

pub async fn run(args: &ReproduceArgs, env: &Env, printer: &Printer) -> Outcome {
    let pull = ask_hud(args).await?;
    let mut recipe = Recipe::of(pull, args)?;
    match env.get(env_vars::GITHUB_TOKEN) {
        Some(_) => read_workflows(&mut recipe, env, printer).await?,
        None => recipe.workflows_unknown = Some("`GITHUB_TOKEN` isn't set".to_owned()),
    }
    printer.data_as(args.format, &recipe.render(args.format));
    if args.act {
        return act::run(args, &recipe, env, printer).await;
    }
    Ok(ExitCode::SUCCESS)
}

async fn ask_hud(args: &ReproduceArgs) -> Result<HudPull, Failure> {
    let base: SecureUrl = args.hud.as_str().parse().map_err(|error: SecureUrlError| {
        Failure::unexpected("hud-url", format!("`--hud` {error}"))
    })?;
    let base = base.as_str().trim_end_matches('/').to_owned();
    let named = args.upstream.as_ref().map(|upstream| format!("?upstream={upstream}"));
    let url = format!("{base}/api/v1/pulls/{}{}", args.number, named.unwrap_or_default());
    let client = github::http()?;
    let unavailable = |error: http::HttpError| {
        Failure::unexpected("hud-unavailable", format!("`{url}` can't be read")).because(error)
    };
    let response = http::send(RetryPolicy::CALL, || client.get(&url)).await;
    let response = response.map_err(|error| match error.status() {
        Some(status) if status.as_u16() == 404 => {
            let of = args.upstream.as_ref().map_or("its upstream", |upstream| upstream.as_str());
            let message = format!("the HUD has no results of {of}#{}", args.number);
            Failure::user("no-results", message)
                .hint("check the number and `--upstream`; results are kept for some months only")
        }
        _ => unavailable(error),
    })?;
    http::read_json(response, MAX_HUD_BYTES).await.map_err(unavailable)
}

/// Adds the workflow of each failed run, at the commit that ran.
async fn read_workflows(recipe: &mut Recipe, env: &Env, printer: &Printer) -> Result<(), Failure> {
    let lookup = github::lookup(None, LookupCache::default(), env, printer)?;
    for run in recipe.run_ids().into_iter().take(MAX_RUNS) {
        match run_pins(&lookup, &recipe.backend, run).await {
            Ok(Some(pins)) => recipe.workflows.push(pins),
            Ok(None) => {
                let why = format!("GitHub doesn't have run {run} or its workflow any more");
                recipe.workflows_unknown = Some(why);
            }
            Err(error) => {
                recipe.workflows_unknown = Some(format!("GitHub can't be asked: {error}"));
                break;
            }
        }
    }
    Ok(())
}

async fn run_pins(
    lookup: &GithubLookup,
    backend: &str,
    run: u64,
) -> Result<Option<RunPins>, crcr_github::GithubError> {
    let Some(found) = lookup.run(backend, run).await? else { return Ok(None) };
    let Some(commit) = found.head_sha else { return Ok(None) };
    // GitHub names called workflows as `path@ref`.
    let path = found.path.split('@').next().unwrap_or_default().to_owned();
    let Some(text) = lookup.file_at(backend, &path, &commit).await? else { return Ok(None) };
    let (uses, runs_on) = workflow::pins(&text);
    let mut commits = BTreeMap::new();
    for used in uses.iter().take(MAX_USES) {
        // Without the commit, the recipe has the name alone.
        if let Some((repository, reference)) = workflow::unpinned_action(used)
            && let Ok(Some(commit)) = lookup.commit_of(&repository, reference).await
            && git::is_commit(&commit)
        {
            commits.insert(used.clone(), commit);
        }
    }
    Ok(Some(RunPins { run, path, commit, uses, commits, runs_on }))
}
