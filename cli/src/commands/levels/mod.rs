//! `crcr levels …`

pub mod review;
pub mod reviewer;
mod sync;

use std::process::ExitCode;

use crate::cli::levels::LevelsCommand;
use crate::env_vars::Env;
use crate::failure::Outcome;
use crate::printer::Printer;

pub async fn run(command: LevelsCommand, env: &Env, printer: &Printer) -> Outcome {
    match command {
        LevelsCommand::Review(args) => review::run(&args, printer).await,
        LevelsCommand::Sync(args) => sync::run(&args, env, printer).await,
        LevelsCommand::Schema => {
            printer.data(include_str!("../../../../schemas/criteria.json"));
            Ok(ExitCode::SUCCESS)
        }
    }
}
