//! `crcr relay reconcile`: asks GitHub for the webhooks that it couldn't deliver.

use std::process::ExitCode;
use std::sync::Arc;

use crcr_github::app::{Clock, GithubApp};
use crcr_relay::Config;
use crcr_relay::reconcile::{FailedDelivery, ReconcileError, Reconciliation, reconcile};
use serde_json::json;

use super::serve::invalid_settings;
use super::{now, open_store, secrets_manager, store_failure};
use crate::cli::DataFormat;
use crate::cli::relay::ReconcileArgs;
use crate::commands::github;
use crate::env_vars::Env;
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;

pub async fn run(args: &ReconcileArgs, env: &Env, printer: &Printer) -> Outcome {
    let stored = secrets_manager::fetch(env).await?;
    let lookup = |name: &str| env.get(name).map(str::to_owned);
    let config = Config::read(&lookup, stored).map_err(invalid_settings)?;
    let store = open_store(&args.store, env).await?;
    let client = github::http()?;
    let clock: Clock = Arc::new(now);
    let key = config.private_key.first();
    let id = config.app_id.clone();
    let app = GithubApp::new(client, &config.api_url, id, &key, Arc::clone(&clock));
    let app = app.map_err(|error| {
        Failure::user("settings", "the App's settings can't be used").because(error)
    })?;
    let keeps = |event: &str| config.keeps_webhooks(event);
    let mut all = Reconciliation::default();
    while all.settled_until.is_none() {
        let part = reconcile(&app, &*store, &clock, &keeps).await.map_err(|error| match error {
            ReconcileError::Store(error) => store_failure(error),
            ReconcileError::Github(error) => {
                Failure::unexpected("github", "the App's log of deliveries can't be read")
                    .because(error)
                    .hint("run the same command again; nothing is asked for twice")
            }
        })?;
        all.read += part.read;
        all.stored += part.stored;
        all.waiting = part.waiting;
        all.asked.extend(part.asked);
        all.refused.extend(part.refused);
        all.settled_until = part.settled_until;
        all.out_of_reach = part.out_of_reach;
    }
    match args.format {
        DataFormat::Json => printer.data_line(&json!(all).to_string()),
        DataFormat::Text => print_text(&all, printer),
    }
    // What GitHub refuses is lost unless a person does something about it.
    Ok(if all.refused.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print_text(all: &Reconciliation, printer: &Printer) {
    let Reconciliation { read, stored, waiting, asked, refused, .. } = all;
    let one = |delivery: &FailedDelivery| {
        let FailedDelivery { id, event, delivered_at, status_code } = delivery;
        let answer = match status_code {
            0 => "no answer".to_owned(),
            status => format!("answered {status}"),
        };
        format!("{id} {event} {delivered_at:.0}, {answer}")
    };
    for delivery in asked {
        printer.data_line(&format!("asked for again: {}", one(delivery)));
    }
    for refused in refused {
        let what = one(&refused.delivery);
        printer.data_line(&format!("refused by GitHub: {what}: {}", refused.reason));
    }
    if let Some((from, to)) = &all.out_of_reach {
        printer.data_line(&format!(
            "the store was restored, and GitHub doesn't deliver webhooks from {from:.0} to {to:.0} again"
        ));
    }
    printer.data_line(&format!(
        "{read} attempts read: {} asked for again, {} refused by GitHub, {waiting} asked for before, \
         {stored} failed but stored",
        asked.len(),
        refused.len(),
    ));
}
