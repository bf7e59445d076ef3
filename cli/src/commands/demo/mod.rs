//! `crcr demo`: the build of a fork's pull request, and an upstream pull request from its webhook to its
//! check runs and pages.

mod demo_relay;
mod downstream;
mod fork_build;
mod results;
mod runner_job;
mod scenario;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crcr_standin::StandIn;
use tokio_util::sync::CancellationToken;

use self::demo_relay::DemoRelay;
use self::scenario::DemoScenario;
use super::relay::stop_on_signal;
use crate::cli::demo::DemoArgs;
use crate::env_vars::Env;
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;

/// Includes generating the longest history.
const START_TIMEOUT: Duration = Duration::from_secs(120);
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs in a temporary folder that is deleted at the end.
pub async fn run(args: &DemoArgs, env: &Env, printer: &Printer) -> Outcome {
    let unusable = |error: std::io::Error| {
        demo_failure("the demo needs a loopback port and a temporary folder").because(error)
    };
    let stop = CancellationToken::new();
    tokio::spawn(stop_on_signal(stop.clone()));
    let folder = tempfile::Builder::new().prefix("crcr-demo-").tempdir().map_err(unusable)?;
    let github = StandIn::start().map_err(unusable)?;
    let scenario = DemoScenario::read(args, github.state())?;
    printer.data(&format!(
        "GitHub is replaced by a stand-in at {}, the only part that isn't real. Everything else is\n\
         the shipped code, run by this executable, and nothing leaves this machine.\n\n",
        github.url()
    ));
    let start = DemoRelay::start(&scenario, args, github.state(), folder.path());
    let relay = tokio::time::timeout(START_TIMEOUT, start).await.map_err(|_| {
        demo_failure(format!("the relay didn't start within {} seconds", START_TIMEOUT.as_secs()))
    })??;
    let shown = tokio::select! {
        shown = run_scenario(&scenario, &github, &relay, folder.path(), env, printer) => shown,
        () = stop.cancelled() => Err(demo_failure("the demo was interrupted")),
    };
    if shown.is_ok() {
        print_page_addresses(&scenario, args, &relay, printer);
        if !args.exit {
            printer.data("\nPress Ctrl-C to stop\n");
            stop.cancelled().await;
        }
    }
    let stopped = tokio::time::timeout(STOP_TIMEOUT, relay.stop()).await;
    shown?;
    stopped.unwrap_or_else(|_| {
        Err(demo_failure(format!(
            "the relay didn't stop within {} seconds",
            STOP_TIMEOUT.as_secs()
        )))
    })?;
    Ok(ExitCode::SUCCESS)
}

async fn run_scenario(
    scenario: &DemoScenario,
    github: &StandIn,
    relay: &DemoRelay,
    folder: &Path,
    env: &Env,
    printer: &Printer,
) -> Result<(), Failure> {
    let started = Instant::now();
    fork_build::run(github, folder, env, printer).await?;
    let done = downstream::run(scenario, github.state(), relay, folder, env, printer).await?;
    results::show(scenario, &done, github.state(), relay, printer).await?;
    printer.data(&format!("\nThe demo took {} ms\n", started.elapsed().as_millis()));
    Ok(())
}

fn print_page_addresses(
    scenario: &DemoScenario,
    args: &DemoArgs,
    relay: &DemoRelay,
    printer: &Printer,
) {
    if let Some(days) = args.history {
        printer.data(&format!(
            "\nThe pages also show generated results of the last {days} days, of repositories that \
             don't exist\n"
        ));
    }
    if args.exit {
        return;
    }
    let url = relay.url();
    printer.data(&format!(
        "\nThe pages are open\n  what needs you    {url}\n  all backends      {url}crcr\n  \
         the pull request  {url}pr/{}\n",
        scenario.number
    ));
    if let Some(entry) = scenario.allowlist.iter().max_by_key(|entry| entry.level) {
        printer.data(&format!("  one backend       {url}crcr/{}\n", entry.repo));
    }
    printer.data(&format!("  the same as JSON  {url}api/v1/pulls/{}\n", scenario.number));
}

fn demo_failure(what: impl Into<String>) -> Failure {
    Failure::unexpected("demo", what)
}
