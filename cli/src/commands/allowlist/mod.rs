//! `crcr allowlist …`

mod approval;
mod diff;
mod explain;
mod fix;
mod level_changes;
mod online;
mod show;
mod validate;

use std::process::ExitCode;

use crate::cli::allowlist::AllowlistCommand;
use crate::env_vars::Env;
use crate::failure::Outcome;
use crate::printer::Printer;

pub async fn run(command: AllowlistCommand, env: &Env, printer: &Printer) -> Outcome {
    match command {
        AllowlistCommand::Validate(args) => validate::run(&args, env, printer).await,
        AllowlistCommand::Show(args) => show::run(&args, printer),
        AllowlistCommand::Explain(args) => explain::run(&args, printer),
        AllowlistCommand::Diff(args) => diff::run(&args, env, printer).await,
        AllowlistCommand::Fix(args) => fix::run(&args, env, printer).await,
        AllowlistCommand::Schema => {
            printer.data(include_str!("../../../../schemas/allowlist.json"));
            Ok(ExitCode::SUCCESS)
        }
    }
}
