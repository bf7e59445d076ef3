//! `crcr demo`: a fork's build, and an upstream pull request from its webhook to what it shows.

mod downstream;
mod fork;
mod input;
mod job;
mod relay;
mod results;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crcr_standin::StandIn;
use tokio_util::sync::CancellationToken;

use self::input::Input;
use self::relay::Running;
use super::relay::stop_on_signal;
use crate::cli::demo::DemoArgs;
use crate::env_vars::Env;
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;

/// How long the relay may take to start, with the longest history.
const STARTING: Duration = Duration::from_secs(120);
/// How long the relay may take to end what it is at.
const STOPPING: Duration = Duration::from_secs(10);

/// Shows it, in a folder that is gone afterwards.
pub async fn run(args: &DemoArgs, env: &Env, printer: &Printer) -> Outcome {
    let unusable = |error: std::io::Error| {
        failed("the demo needs a loopback port and a temporary folder").because(error)
    };
    let stop = CancellationToken::new();
    tokio::spawn(stop_on_signal(stop.clone()));
    let folder = tempfile::Builder::new().prefix("crcr-demo-").tempdir().map_err(unusable)?;
    let github = StandIn::start().map_err(unusable)?;
    let input = Input::read(args, github.state())?;
    printer.data(&format!(
        "GitHub is a stand-in at {}: the only part that isn't real. Everything else is\n\
         what ships, run by this executable, and nothing leaves this machine.\n\n",
        github.url()
    ));
    let start = Running::start(&input, args.history, github.state(), folder.path());
    let relay = tokio::time::timeout(STARTING, start).await.map_err(|_| {
        failed(format!("the relay didn't start within {} seconds", STARTING.as_secs()))
    })??;
    let shown = tokio::select! {
        shown = show(&input, &github, &relay, folder.path(), env, printer) => shown,
        () = stop.cancelled() => Err(failed("the demo was interrupted")),
    };
    if shown.is_ok() {
        open_pages(&input, args, &relay, printer);
        if !args.exit {
            printer.data("\nEnd with Ctrl-C\n");
            stop.cancelled().await;
        }
    }
    let closed = tokio::time::timeout(STOPPING, relay.close()).await;
    shown?;
    closed.unwrap_or_else(|_| {
        Err(failed(format!("the relay didn't stop within {} seconds", STOPPING.as_secs())))
    })?;
    Ok(ExitCode::SUCCESS)
}

async fn show(
    input: &Input,
    github: &StandIn,
    relay: &Running,
    folder: &Path,
    env: &Env,
    printer: &Printer,
) -> Result<(), Failure> {
    let started = Instant::now();
    fork::build(github, folder, env, printer).await?;
    let done = downstream::run(input, github.state(), relay, folder, env, printer).await?;
    results::show(input, &done, github.state(), relay, printer).await?;
    printer.data(&format!("\nAll of it took {} ms\n", started.elapsed().as_millis()));
    Ok(())
}

fn open_pages(input: &Input, args: &DemoArgs, relay: &Running, printer: &Printer) {
    if let Some(days) = args.history {
        printer.data(&format!(
            "\nGenerated: the results of the last {days} days that the pages show beside the pull\n\
             request above were invented; repositories of these names don't exist\n"
        ));
    }
    if args.exit {
        return;
    }
    let url = relay.url();
    printer.data(&format!(
        "\nThe pages are open\n  all backends      {url}crcr\n  the pull request  {url}pr/{}\n",
        input.number
    ));
    if let Some(entry) = input.allowlist.iter().max_by_key(|entry| entry.level) {
        printer.data(&format!("  one backend       {url}crcr/{}\n", entry.repo));
    }
    printer.data(&format!("  the same as JSON  {url}api/v1/pulls/{}\n", input.number));
}

/// What the demo itself fails with.
fn failed(what: impl Into<String>) -> Failure {
    Failure::unexpected("demo", what)
}
