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

/// Waits for Ctrl-C or the SIGTERM of a cancelled job.
#[cfg(unix)]
pub async fn stop_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut terminate) = signal(SignalKind::terminate()) else {
        return std::future::pending().await;
    };
    tokio::select! {
        done = tokio::signal::ctrl_c() => if done.is_err() { std::future::pending().await },
        _ = terminate.recv() => {}
    }
}

#[cfg(not(unix))]
pub async fn stop_signal() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending().await
    }
}
