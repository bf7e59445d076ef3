//! `crcr relay sweep`: makes the checks of open dispatches due now.

use std::process::ExitCode;

use crcr_relay::admin::deliveries;

use super::{now, open_store, store_failure};
use crate::cli::relay::StoreArgs;
use crate::env_vars::Env;
use crate::failure::Outcome;
use crate::printer::Printer;
use crate::render::plural;

/// The running relay then does the checks.
pub async fn run(args: &StoreArgs, env: &Env, printer: &Printer) -> Outcome {
    let store = open_store(args, env).await?;
    let count = deliveries::sweep_now(&*store, now()).await.map_err(store_failure)?;
    let open = plural(count, "open dispatch", "open dispatches");
    printer.line(&format!("{open} will be checked now"));
    Ok(ExitCode::SUCCESS)
}
