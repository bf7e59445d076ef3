//! `crcr relay serve`

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::sync::Arc;

use crcr_relay::admin::preflight;
use crcr_relay::config::StoreUrl;
use crcr_relay::http::lambda;
use crcr_relay::http::serve::BoundListeners;
use crcr_relay::{Config, Relay, SettingProblem, Traces, config, relay};
use futures_util::TryFutureExt as _;
use tokio_util::sync::CancellationToken;

use super::{now, secrets_manager};
use crate::cli::relay::ServeArgs;
use crate::env_vars::{self, Env};
use crate::failure::{Failure, Outcome};
use crate::printer::{self, Printer};

/// Serves, or only validates with `--check`.
pub async fn run(args: &ServeArgs, env: &Env, printer: &Printer) -> Outcome {
    let stored = secrets_manager::fetch(env).await?;
    let flags = flags_by_variable(args);
    let asked = RefCell::new(BTreeSet::new());
    let lookup = |name: &str| {
        asked.borrow_mut().insert(name.to_owned());
        flags.get(name).cloned().or_else(|| env.get(name).map(str::to_owned))
    };
    for setting in config::settings_without_effect(&lookup) {
        tracing::warn!(setting = setting.name, why = setting.what, "a setting has no effect");
    }
    let log_problem = printer::log_filter_problem(env)
        .map(|what| SettingProblem { name: env_vars::CRCR_LOG.to_owned(), what });
    let config = match (Config::read(&lookup, stored), log_problem) {
        (Ok(config), None) => config,
        (read, log_problem) => {
            let mut problems = read.err().unwrap_or_default();
            problems.extend(log_problem);
            // A misspelled one is why another one is missing.
            problems.extend(unknown_settings(env, &asked.borrow()));
            return Err(invalid_settings(problems));
        }
    };
    if let Some(address) = config.open_admin_address() {
        tracing::warn!(
            address,
            "everybody who reaches the operators' listener can use it: set CRCR_ADMIN_TOKEN"
        );
    }
    let unknown = unknown_settings(env, &asked.borrow());
    if args.check {
        return check(&config, env, unknown, printer).await;
    }
    for setting in unknown {
        tracing::warn!(setting = setting.name, why = setting.what, "a variable has no effect");
    }
    let runtime_api = env.get(env_vars::AWS_LAMBDA_RUNTIME_API);
    if runtime_api.is_some() && matches!(config.store, StoreUrl::Sqlite(_)) {
        let what = "SQLite can't be the relay's store on AWS Lambda: the next request may run on another machine";
        return Err(
            Failure::user("store", what).hint("set CRCR_STORE to the address of a Redis server")
        );
    }
    let (store, results) = relay::open(&config).await.map_err(|error| {
        Failure::unexpected("store-unavailable", "the store or the results can't be opened")
            .because(error)
    })?;
    let (listen, admin_listen) = (config.listen.clone(), config.admin_listen.clone());
    let mut relay = Relay::new(config, store, results, Arc::new(now)).map_err(|error| {
        Failure::user("relay", "the relay can't start with these settings").because(error)
    })?;
    relay.traces = traces(env, &relay.config).map_err(|problem| invalid_settings(vec![problem]))?;
    if env.get(env_vars::SECRET_STORE_ARN).is_some() {
        let env = env.clone();
        relay.stored_secrets = Some(Box::new(move || {
            let env = env.clone();
            let fetch = async move { secrets_manager::fetch(&env).await };
            Box::pin(fetch.map_err(|failure| failure.to_string()))
        }));
    }
    let relay = Arc::new(relay);
    if let Some(address) = runtime_api {
        return lambda::run(relay, address).await.map(|()| ExitCode::SUCCESS).map_err(|error| {
            Failure::unexpected("lambda", "AWS Lambda gives no more events").because(error)
        });
    }
    listen_until_stopped(relay, &listen, admin_listen.as_deref(), printer).await
}

/// Tries everything that the settings name.
async fn check(
    config: &Config,
    env: &Env,
    unknown: Vec<SettingProblem>,
    printer: &Printer,
) -> Outcome {
    let mut problems = preflight::problems(config, Arc::new(now)).await;
    problems.extend(traces(env, config).err());
    problems.extend(unknown);
    if !problems.is_empty() {
        return Err(settings_failure("does not work", "do not work", &problems));
    }
    printer.line("all settings work");
    Ok(ExitCode::SUCCESS)
}

async fn listen_until_stopped(
    relay: Arc<Relay>,
    listen: &str,
    admin_listen: Option<&str>,
    printer: &Printer,
) -> Outcome {
    let bound = BoundListeners::new(listen, admin_listen).await.map_err(|error| {
        Failure::user("listen", error.to_string()).because(error).hint(
            "`--listen` and `--admin-listen` take an address of this machine with a free port",
        )
    })?;
    let address = bound.address().map_err(|error| {
        Failure::unexpected("runtime", "the address that was bound is unknown").because(error)
    })?;
    printer.data_line(&format!("listening on http://{address}"));
    if let Some(admin) = bound.admin_address() {
        printer.data_line(&format!("operators on http://{admin}"));
    }
    let stop = CancellationToken::new();
    tokio::spawn(stop_on_signal(stop.clone()));
    bound.serve(Arc::clone(&relay), stop).await;
    relay.send_spans().await;
    printer.line("stopped; open work continues after the next start");
    Ok(ExitCode::SUCCESS)
}

/// Variables that look like settings of crcr and that nothing reads, most likely misspelled.
fn unknown_settings(env: &Env, asked: &BTreeSet<String>) -> Vec<SettingProblem> {
    let is_known = |name: &str| {
        let setting = name.strip_suffix("_FILE").unwrap_or(name);
        asked.contains(name) || asked.contains(setting) || env_vars::CRCR_NAMES.contains(&name)
    };
    let settings: Vec<&str> =
        asked.iter().map(String::as_str).filter(|known| !known.ends_with("_FILE")).collect();
    let unknown = env.names().filter(|name| !is_known(name));
    unknown
        .filter_map(|name| {
            let (setting, suffix) =
                name.strip_suffix("_FILE").map_or((name, ""), |setting| (setting, "_FILE"));
            // The settings of the deployed relay have no prefix.
            let own = setting.strip_prefix("CRCR_");
            let near = crcr_domain::find_similar(setting, &settings)
                .or_else(|| crcr_domain::find_similar(own?, &settings));
            if own.is_none() && near.is_none() {
                return None;
            }
            let near = near.map(|known| format!(", did you mean `{known}{suffix}`?"));
            let what = format!("no setting has this name{}", near.unwrap_or_default());
            Some(SettingProblem { name: name.to_owned(), what })
        })
        .collect()
}

fn traces(env: &Env, config: &Config) -> Result<Traces, SettingProblem> {
    if !sends_traces(env) {
        return Ok(Traces::default());
    }
    // The library reads this variable, and by OpenTelemetry's rule the other one then has no effect.
    let is_replaced = env.get(env_vars::OTEL_EXPORTER_OTLP_TRACES_HEADERS).is_some();
    let headers: &[_] = if is_replaced { &[] } else { &config.trace_headers };
    let name = env_vars::OTEL_EXPORTER_OTLP_ENDPOINT.to_owned();
    Traces::from_env(env.get(env_vars::OTEL_SERVICE_NAME), headers)
        .map_err(|error| SettingProblem { name, what: error.to_string() })
}

/// Whether OpenTelemetry's variables name a collector and don't turn it off.
fn sends_traces(env: &Env) -> bool {
    let names =
        [env_vars::OTEL_EXPORTER_OTLP_ENDPOINT, env_vars::OTEL_EXPORTER_OTLP_TRACES_ENDPOINT];
    names.iter().any(|name| env.get(name).is_some())
        && env.get(env_vars::OTEL_TRACES_EXPORTER) != Some("none")
        && !env.is_switched_on(env_vars::OTEL_SDK_DISABLED)
}

/// The flags that are set, by the name of their environment variable.
fn flags_by_variable(args: &ServeArgs) -> BTreeMap<&'static str, String> {
    let single = [
        ("CRCR_LISTEN", &args.listen),
        ("CRCR_ADMIN_LISTEN", &args.admin_listen),
        ("CRCR_STORE", &args.store.store),
        ("CRCR_RESULTS", &args.results),
        ("CRCR_RESULTS_RETENTION", &args.results_retention),
        ("CRCR_ARCHIVE", &args.archive),
        ("CRCR_LOG_RULES", &args.log_rules),
        ("ALLOWLIST_URL", &args.allowlist_url),
        ("CRCR_PUBLIC_URL", &args.public_url),
        ("UPSTREAM_REPO", &args.upstream_repo),
        ("CRCR_NEVER_STARTED_AFTER", &args.never_started_after),
        ("ZOMBIE_TIMEOUT_SECONDS", &args.lost_after),
        ("CRCR_SILENT_L4", &args.silent_l4),
        ("CRCR_NONBLOCKING_CONCLUSION", &args.nonblocking_conclusion),
        ("CRCR_ONCALL_COMMENTS", &args.oncall_comments),
    ];
    let mut flags: BTreeMap<_, _> =
        single.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))).collect();
    if !args.push_ref.is_empty() {
        flags.insert("CRCR_PUSH_REF", args.push_ref.join(","));
    }
    flags
}

#[expect(clippy::needless_pass_by_value, reason = "a function for `map_err`")]
pub(crate) fn invalid_settings(problems: Vec<SettingProblem>) -> Failure {
    settings_failure("is missing or can't be used", "are missing or can't be used", &problems)
}

fn settings_failure(one: &str, several: &str, problems: &[SettingProblem]) -> Failure {
    let is_missing = problems.iter().any(|problem| problem.what == "missing");
    let lines: Vec<String> =
        problems.iter().map(|problem| format!("  {}: {}", problem.name, problem.what)).collect();
    let count = match problems.len() {
        1 => format!("1 setting {one}"),
        count => format!("{count} settings {several}"),
    };
    let failure = Failure::user("settings", format!("{count}:\n{}", lines.join("\n")));
    if is_missing {
        failure.hint("each can also be set as NAME_FILE, the path of a file with the value; see `crcr relay serve --help`")
    } else {
        failure.hint("`crcr relay serve --help` describes the settings")
    }
}

/// Cancels `stop` at SIGTERM or SIGINT.
#[cfg(unix)]
pub async fn stop_on_signal(stop: CancellationToken) {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut terminate), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        tracing::error!("signals can't be handled; the relay stops only when it is killed");
        return;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    stop.cancel();
}

/// Cancels `stop` at Ctrl-C.
#[cfg(not(unix))]
pub async fn stop_on_signal(stop: CancellationToken) {
    if tokio::signal::ctrl_c().await.is_ok() {
        stop.cancel();
    }
}
