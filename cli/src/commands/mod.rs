//! One file per command.

mod allowlist;
mod allowlist_file;
mod artifact;
mod checkout;
mod completions;
#[cfg(feature = "relay")]
mod demo;
mod doctor;
mod downstream;
mod git;
mod github;
mod init;
mod levels;
mod logs;
mod man;
mod oidc;
mod quarantine;
#[cfg(feature = "relay")]
mod relay;
mod report;
mod reproduce;
mod stats;
mod stranger_code;
mod workflow;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use futures_util::future::LocalBoxFuture;

use crate::cli::{Cli, CliCommand, ColorChoice, GlobalArgs};
use crate::env_vars::{self, Env};
use crate::failure::{Failure, Outcome, plain_words};
use crate::printer::Printer;
use crate::runner::Runner;

/// Prints the help or the version, which clap takes for errors.
pub fn print_help(env: &Env, help: &clap::Error) -> ExitCode {
    let printer = plain_printer(env);
    printer.note_written(help.print());
    printer.stdout_failure().map_or(ExitCode::SUCCESS, |failure| {
        printer.failure(&failure);
        failure.exit_code()
    })
}

/// Where no flags are known.
fn plain_printer(env: &Env) -> Printer {
    Printer::new(&GlobalArgs { color: ColorChoice::Auto, quiet: false, verbose: 0 }, env)
}

/// Reports wrong arguments and sets the outputs that later steps of the job read in any case. The exit
/// code is 2, unless the inputs say that the job goes on without credentials.
pub fn report_usage_error(args: &[OsString], env: &Env, error: &clap::Error) -> ExitCode {
    let printer = plain_printer(env);
    if let Some(failure) = missing_server(error) {
        printer.failure(&failure);
        return failure.exit_code();
    }
    if set_empty_artifact_outputs(args, env, &printer) && is_not_required(args, env) {
        let failure = Failure::unexpected("usage", usage_text(error)).hint(FLAGS);
        artifact::sources::warn_instead(&failure, &printer);
        return ExitCode::SUCCESS;
    }
    let job_continues = oidc::handle_usage_error(args, env, &printer).unwrap_or_else(|failure| {
        printer.failure(&failure);
        false
    });
    if printer.is_under_actions() {
        let text = usage_text(error);
        if job_continues {
            let text = format!("no AWS credentials; the job continues without them: {text}");
            printer.warning(&text, Some(FLAGS));
            return ExitCode::SUCCESS;
        }
        printer.failure(&Failure::unexpected("usage", text).hint(FLAGS));
    } else {
        let text = error.to_string();
        // If stderr is closed, nobody can read the message anyway.
        let _ = match plain_words(&text) {
            same if same == text => error.print(),
            plain => io::stderr().write_all(plain.as_bytes()),
        };
    }
    ExitCode::from(2)
}

/// What actions/install builds from source has no server, so that the build is short.
fn missing_server(error: &clap::Error) -> Option<Failure> {
    let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand) else {
        return None;
    };
    (!cfg!(feature = "relay") && ["demo", "relay"].contains(&&**name)).then(|| {
        Failure::unexpected("no-server", format!("this `crcr` was built without `crcr {name}`"))
            .hint("use the `crcr` of a release, or build all of it: `cargo build --release`")
    })
}

fn working_folder() -> Result<PathBuf, Failure> {
    std::env::current_dir().map_err(no_working_folder)
}

fn no_working_folder(error: io::Error) -> Failure {
    Failure::unexpected("working-folder", "the working folder can't be used").because(error)
}

fn no_temporary_folder(error: io::Error) -> Failure {
    Failure::unexpected("temporary-folder", "no temporary folder can be used").because(error)
}

/// Reads a file; `-` is standard input.
fn read_file(name: &str, limit: usize) -> io::Result<Vec<u8>> {
    match name {
        "-" => read_bounded(io::stdin().lock(), limit),
        _ => read_bounded(File::open(name)?, limit),
    }
}

/// What is longer than `limit`, which is what its parser accepts, is cut one byte above.
fn read_bounded(from: impl Read, limit: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(limit as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

const FLAGS: &str = "each input of an action is the flag of the same name";

/// What clap says, without its own hints about the command line.
fn usage_text(error: &clap::Error) -> String {
    let text = plain_words(&error.to_string());
    let text = text.trim_start_matches("error: ").split("\n\nFor more").next();
    text.unwrap_or_default().trim().to_owned()
}

/// Whether `required` is `false`; a flag wins over the input.
fn is_not_required(args: &[OsString], env: &Env) -> bool {
    let pair = args.windows(2).rfind(|pair| pair[0] == "--required").map(|pair| &pair[1]);
    let joined =
        args.iter().filter_map(|arg| arg.to_str()?.strip_prefix("--required=")).next_back();
    let flag = joined.or_else(|| pair.and_then(|value| value.to_str()));
    let input = || env.get(env_vars::INPUT_REQUIRED).map(str::trim);
    flag.or_else(input).is_some_and(|value| value.eq_ignore_ascii_case("false"))
}

/// Writes the outputs of an artifact's step; `false` for every other command.
fn set_empty_artifact_outputs(args: &[OsString], env: &Env, printer: &Printer) -> bool {
    let is =
        |command: &str| args.windows(2).any(|pair| pair[0] == "artifact" && pair[1] == command);
    let outputs: &[&str] = match () {
        () if is("upload") || is("merge") => &artifact::upload::OUTPUTS,
        () if is("download") => &artifact::download::OUTPUTS,
        () => return false,
    };
    if env.get(env_vars::GITHUB_OUTPUT).is_some() {
        let runner = Runner::new(env, printer);
        artifact::sources::set_empty_outputs(outputs, "usage", &runner, printer);
    }
    true
}

/// The command's future is boxed, so that its code is in the binary once and not for each kind of runtime.
pub fn run<'a>(cli: Cli, env: &'a Env, printer: &'a Printer) -> LocalBoxFuture<'a, Outcome> {
    match cli.command {
        CliCommand::Allowlist(command) => Box::pin(allowlist::run(command, env, printer)),
        CliCommand::Artifact(command) => Box::pin(artifact::run(command, env, printer)),
        CliCommand::Oidc(command) => Box::pin(oidc::run(command, env, printer)),
        #[cfg(feature = "relay")]
        CliCommand::Relay(command) => Box::pin(relay::run(command, env, printer)),
        CliCommand::Levels(command) => Box::pin(levels::run(command, env, printer)),
        #[cfg(feature = "relay")]
        CliCommand::Demo(args) => Box::pin(async move { demo::run(&args, env, printer).await }),
        CliCommand::Report(args) => Box::pin(async move { report::run(&args, env, printer).await }),
        CliCommand::Logs(command) => Box::pin(logs::run(command, env, printer)),
        CliCommand::Stats(command) => Box::pin(stats::run(command, env, printer)),
        CliCommand::Quarantine(command) => Box::pin(quarantine::run(command, env, printer)),
        CliCommand::Downstream(command) => {
            Box::pin(async move { downstream::run(&command, env, printer) })
        }
        CliCommand::Doctor(args) => Box::pin(doctor::run(args, env, printer)),
        CliCommand::Reproduce(args) => {
            Box::pin(async move { reproduce::run(&args, env, printer).await })
        }
        CliCommand::Init(command) => Box::pin(init::run(command, env, printer)),
        CliCommand::Checkout(args) => {
            Box::pin(async move { checkout::run(&args, env, printer).await })
        }
        CliCommand::Man { out } => Box::pin(async move { man::run(&out, printer) }),
        CliCommand::Completions { shell } => {
            Box::pin(async move { completions::run(shell, printer) })
        }
    }
}
