//! `crcr relay sweep`: what waits for its time is due now.

use std::process::ExitCode;

use crcr_relay::admin::deliveries;

use super::{now, open_store, store_failure};
use crate::cli::relay::StoreArgs;
use crate::env_vars::Env;
use crate::failure::Outcome;
use crate::printer::Printer;

/// Makes every open dispatch's next look due, for the running relay to take.
pub async fn run(args: &StoreArgs, env: &Env, printer: &Printer) -> Outcome {
    let store = open_store(args, env)?;
    let count = deliveries::sweep_now(&store, now()).await.map_err(store_failure)?;
    printer.line(&format!("{count} open dispatches are looked after now"));
    Ok(ExitCode::SUCCESS)
}
