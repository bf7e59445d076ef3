//! `crcr artifact …`

pub mod download;
mod inputs;
mod list;
mod merge;
pub mod sources;
pub mod upload;

use crate::cli::artifact::ArtifactCommand;
use crate::env_vars::Env;
use crate::failure::Outcome;
use crate::printer::Printer;

pub async fn run(command: ArtifactCommand, env: &Env, printer: &Printer) -> Outcome {
    match command {
        ArtifactCommand::Upload(args) => Box::pin(upload::run(&args, env, printer)).await,
        ArtifactCommand::Download(args) => Box::pin(download::run(&args, env, printer)).await,
        ArtifactCommand::Merge(args) => Box::pin(merge::run(&args, env, printer)).await,
        ArtifactCommand::List(args) => list::run(&args, env, printer).await,
    }
}
