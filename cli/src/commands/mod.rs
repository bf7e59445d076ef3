//! One file per command; each reads from top to bottom.

mod allowlist;
mod artifact_download;
mod artifact_inputs;
mod artifact_list;
mod artifact_sources;
mod artifact_upload;
mod checkout;
mod completions;
#[cfg(feature = "relay")]
mod demo;
mod oidc;
#[cfg(feature = "relay")]
mod relay;
mod report;

use std::ffi::OsString;

use crate::cli::artifact::ArtifactCommand;
use crate::cli::{Cli, ColorChoice, Command, GlobalArgs};
use crate::env_vars::Env;
use crate::failure::Outcome;
use crate::printer::Printer;

/// What a command owes the later steps of a job although its arguments made no sense.
pub fn misused(args: &[OsString], env: &Env) {
    let global = GlobalArgs { color: ColorChoice::Auto, quiet: false, verbose: 0 };
    let printer = Printer::new(&global, env);
    if let Err(failure) = oidc::misused(args, env, &printer) {
        printer.failure(&failure);
    }
}

/// Runs the command that `cli` names.
pub async fn run(cli: Cli, env: &Env, printer: &Printer) -> Outcome {
    match cli.command {
        Command::Allowlist(command) => Box::pin(allowlist::run(command, env, printer)).await,
        Command::Artifact(ArtifactCommand::Upload(args)) => {
            Box::pin(artifact_upload::run(&args, env, printer)).await
        }
        Command::Artifact(ArtifactCommand::Download(args)) => {
            artifact_download::run(&args, env, printer).await
        }
        Command::Artifact(ArtifactCommand::List(args)) => {
            artifact_list::run(&args, env, printer).await
        }
        Command::Oidc(command) => oidc::run(command, env, printer).await,
        #[cfg(feature = "relay")]
        Command::Relay(command) => relay::run(command, env, printer).await,
        #[cfg(feature = "relay")]
        Command::Demo(args) => demo::run(&args, env, printer).await,
        Command::Report(args) => report::run(&args, env, printer).await,
        Command::Checkout(args) => checkout::run(&args, env, printer).await,
        Command::Completions { shell } => completions::run(shell, printer),
    }
}
