//! `crcr relay …`

mod backup;
mod deliveries;
mod health;
mod import;
mod reconcile;
mod replay;
mod replay_archive;
mod repositories;
mod restore;
mod secrets_manager;
mod serve;
mod simulate;
mod size;
mod sweep;

pub use self::serve::stop_on_signal;

use std::path::Path;
use std::sync::Arc;

use crcr_relay::config::StoreUrl;
use crcr_relay::{config, relay};
use crcr_results::{Results, ResultsError, ResultsUrl};
use crcr_store::{StateStore, StoreError, StoreRole};
use jiff::Timestamp;

use crate::cli::relay::{RelayCommand, StoreArgs};
use crate::env_vars::{self, Env};
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;

pub async fn run(command: RelayCommand, env: &Env, printer: &Printer) -> Outcome {
    match command {
        RelayCommand::Serve(args) => Box::pin(serve::run(&args, env, printer)).await,
        RelayCommand::Health(args) => health::run(&args, env, printer).await,
        RelayCommand::Replay(args) => replay::run(&args, env, printer).await,
        RelayCommand::Sweep(args) => sweep::run(&args, env, printer).await,
        RelayCommand::Reconcile(args) => reconcile::run(&args, env, printer).await,
        RelayCommand::Size(args) => size::run(&args, printer),
        RelayCommand::Backup(args) => backup::run(&args, env, printer).await,
        RelayCommand::Restore(args) => restore::run(&args, env, printer).await,
        RelayCommand::Simulate(args) => simulate::run(&args, printer).await,
        RelayCommand::Import(args) => import::run(&args, env, printer).await,
        RelayCommand::Deliveries(command) => deliveries::run(command, env, printer).await,
        RelayCommand::Repository(command) => repositories::run(command, env, printer).await,
    }
}

/// Opens results to write to them: those of `--results`, else those of the relay's environment.
async fn open_results(flag: Option<&str>, env: &Env) -> Result<Arc<dyn Results>, Failure> {
    let url = results_url(flag, env)?;
    if let ResultsUrl::Sqlite(path) = &url
        && !has_bytes(path)
    {
        let what = format!("no results exist at `{}`", path.display());
        return Err(Failure::user("results", what).hint(
            "start `crcr relay serve` once, which creates them, or set `--results` or CRCR_RESULTS",
        ));
    }
    let results = crcr_results::open(&url, StoreRole::Tool).await.map_err(results_failure)?;
    results.prepare().await.map_err(results_failure)?;
    Ok(results)
}

/// Results that may be new, as for a relay that has never run here, if it is said where they are.
async fn create_results(flag: Option<&str>, env: &Env) -> Result<Arc<dyn Results>, Failure> {
    if named_results(flag, env)?.is_none() && env.setting(env_vars::CRCR_STORE)?.is_none() {
        return open_results(flag, env).await;
    }
    let url = results_url(flag, env)?;
    let results = crcr_results::open_or_create(&url).await.map_err(results_failure)?;
    results.prepare().await.map_err(results_failure)?;
    Ok(results)
}

fn results_url(flag: Option<&str>, env: &Env) -> Result<ResultsUrl, Failure> {
    if let Some(named) = named_results(flag, env)? {
        return Ok(named);
    }
    let store = env.setting(env_vars::CRCR_STORE)?;
    parse_results(env_vars::CRCR_STORE, store.as_deref().unwrap_or("sqlite:crcr.db"))
}

/// The results of `--results`, else those of the relay's environment.
fn named_results(flag: Option<&str>, env: &Env) -> Result<Option<ResultsUrl>, Failure> {
    match flag {
        Some(url) => parse_results("`--results`", url).map(Some),
        None => {
            let set = env.setting(env_vars::CRCR_RESULTS)?;
            set.map(|url| parse_results(env_vars::CRCR_RESULTS, &url)).transpose()
        }
    }
}

/// `name` is the flag or the variable that has the URL.
fn parse_results(name: &str, url: &str) -> Result<ResultsUrl, Failure> {
    ResultsUrl::parse(url).map_err(|what| {
        Failure::user("results", format!("{name}: {what}"))
            .hint("use the value of the relay's `--results` or `--store`")
    })
}

fn results_failure(error: ResultsError) -> Failure {
    Failure::unexpected("results-unwritable", "the results can't be written")
        .because(error)
        .hint("run the same command again later; rows that are stored already aren't duplicated")
}

fn store_url(args: &StoreArgs, env: &Env) -> Result<StoreUrl, Failure> {
    let flag = |name: &str| args.store.clone().filter(|_| name == env_vars::CRCR_STORE);
    let lookup = |name: &str| flag(name).or_else(|| env.get(name).map(str::to_owned));
    config::store(&lookup).map_err(|problem| {
        let is_flag = flag(&problem.name).is_some();
        let name = if is_flag { "`--store`" } else { problem.name.as_str() };
        Failure::user("store", format!("{name}: {}", problem.what))
            .hint("use the value of the relay's `--store`")
    })
}

/// Opens the store of a relay that may be running.
async fn open_store(args: &StoreArgs, env: &Env) -> Result<Arc<dyn StateStore>, Failure> {
    let url = store_url(args, env)?;
    if let StoreUrl::Sqlite(path) = &url
        && !has_bytes(path)
    {
        return Err(Failure::user("store", format!("no store exists at `{}`", path.display()))
            .hint("`crcr relay serve` creates it; set `--store` or CRCR_STORE"));
    }
    relay::open_beside(&url).await.map_err(store_failure)
}

/// Whether the file can be a database. SQLite would turn an empty file into one, and the command would report an empty store.
fn has_bytes(path: &Path) -> bool {
    path.metadata().is_ok_and(|file| file.len() > 0)
}

fn now() -> Timestamp {
    Timestamp::now()
}

fn store_failure(error: StoreError) -> Failure {
    let is_away = matches!(error, StoreError::Unavailable(_));
    let failure =
        Failure::unexpected("store-unavailable", "the store can't be used").because(error);
    if !is_away {
        return failure;
    }
    failure.hint("check `--store`, the space on its disk, or its Redis server")
}
