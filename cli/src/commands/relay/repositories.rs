//! `crcr relay repository`: shows and confirms which repository a name of the allowlist is pinned to.

use std::process::ExitCode;

use crcr_domain::RepoName;
use crcr_relay::repository_pins::{self, ConfirmError, Pin};
use serde_json::json;

use super::{now, open_store, store_failure};
use crate::cli::DataFormat;
use crate::cli::relay::{PinArgs, RepositoryCommand};
use crate::env_vars::{self, Env};
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;

const MAX_LISTED: usize = 10_000;

pub async fn run(command: RepositoryCommand, env: &Env, printer: &Printer) -> Outcome {
    match command {
        RepositoryCommand::List { names, format } => {
            let (store, upstream) = (open_store(&names.store, env).await?, upstream(&names, env)?);
            let pins = repository_pins::list(&*store, &upstream, MAX_LISTED)
                .await
                .map_err(store_failure)?;
            match format {
                DataFormat::Json => printer.data_line(&json!({ "repositories": pins }).to_string()),
                DataFormat::Text => {
                    pins.iter().for_each(|pin| printer.data_line(&summary_line(pin)));
                    if pins.is_empty() {
                        printer.notice("no name is pinned yet: the first dispatch to it does that");
                    }
                }
            }
        }
        RepositoryCommand::Confirm { repo, id, names } => {
            let (store, upstream) = (open_store(&names.store, env).await?, upstream(&names, env)?);
            match repository_pins::confirm(&*store, &upstream, &repo, id, now()).await {
                Ok(pin) => printer.data_line(&format!(
                    "{} is now pinned to repository number {}",
                    pin.repo, pin.repository_id
                )),
                Err(ConfirmError::Store(error)) => return Err(store_failure(error)),
                Err(error) => {
                    return Err(Failure::user("repository", error.to_string())
                        .hint("`crcr relay repository list` shows names and numbers"));
                }
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn upstream(names: &PinArgs, env: &Env) -> Result<RepoName, Failure> {
    let set = env.setting(env_vars::UPSTREAM_REPO)?;
    let given = names.upstream_repo.as_deref().or(set.as_deref()).unwrap_or("pytorch/pytorch");
    RepoName::new(given).map_err(|error| {
        Failure::user("upstream-repo", format!("`{given}` isn't `owner/repo`")).because(error)
    })
}

fn summary_line(pin: &Pin) -> String {
    let Pin { repo, repository_id, since, changed } = pin;
    match changed {
        Some(change) => format!(
            "{repo} {repository_id} since {since:.0}; number {} is refused since {:.0}",
            change.repository_id, change.seen_at
        ),
        None => format!("{repo} {repository_id} since {since:.0}"),
    }
}
