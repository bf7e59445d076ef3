//! `crcr oidc drop`: later steps of the job have no credentials any more.
//!
//! A step can't unset a variable for later steps, so those that exist become empty. AWS's tools take an
//! empty key for none.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use tokio::process::Command;

use crate::commands::oidc::compiler_cache;
use crate::commands::oidc::decide::AuthMode;
use crate::commands::oidc::env_file::{self, Export};
use crate::commands::oidc::runner_identity;
use crate::env_vars;
use crate::env_vars::Env;
use crate::failure::Outcome;
use crate::printer::Printer;
use crate::runner::Runner;

/// The value of `CRCR_AUTH_REASON` afterwards.
const REASON: &str = "dropped";
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
const EMPTIED: [&str; 9] = [
    env_vars::AWS_ACCESS_KEY_ID,
    env_vars::AWS_SECRET_ACCESS_KEY,
    env_vars::AWS_SESSION_TOKEN,
    env_vars::CRCR_AUTH_ROLE_ARN,
    env_vars::CRCR_AUTH_AUDIENCE,
    env_vars::CRCR_AUTH_STS_ENDPOINT,
    env_vars::CRCR_AUTH_EXPIRATION,
    env_vars::CRCR_AUTH_FINGERPRINT,
    env_vars::CRCR_AUTH_ENV_FILE,
];

pub async fn run(env: &Env, printer: &Printer) -> Outcome {
    let runner = Runner::new(env, printer);
    let mut exports: Vec<Export> = EMPTIED
        .into_iter()
        .filter(|name| env.is_defined(name))
        .map(|name| (name, String::new()))
        .collect();
    exports.push((env_vars::CRCR_AUTH_MODE, AuthMode::Anonymous.word().to_owned()));
    exports.push((env_vars::CRCR_AUTH_REASON, REASON.to_owned()));
    exports.push((env_vars::AWS_EC2_METADATA_DISABLED, "true".to_owned()));
    // sccache refuses to start anonymously beside a key that is defined, even if it is empty.
    exports.extend(compiler_cache::disk_only(None, &runner, false));
    exports.extend(runner_identity::overrides(&runner)?);
    let exports: Vec<_> = exports.iter().map(|(name, value)| (*name, value.as_str())).collect();
    runner.export(&exports)?;
    if let Some(path) = env.get(env_vars::CRCR_AUTH_ENV_FILE) {
        env_file::remove(&env_file::path(Path::new(path), &runner)?)?;
    }
    stop_sccache(env).await;
    if env.get(env_vars::ACTIONS_ID_TOKEN_REQUEST_TOKEN).is_some() {
        printer.warning(
            "the credentials are dropped, but this job has `id-token: write`: code of later steps \
             can ask for a token and get new ones",
            Some("run code that you don't trust in a job without that permission"),
        );
    } else {
        printer.line("AWS credentials: dropped, later steps have none");
    }
    Ok(ExitCode::SUCCESS)
}

/// sccache's server has the keys in its environment. Where there is none, there is nothing to stop.
async fn stop_sccache(env: &Env) {
    if env.get(env_vars::AWS_ACCESS_KEY_ID).is_none() {
        return;
    }
    let stop = Command::new("sccache").arg("--stop-server").kill_on_drop(true).output();
    let _ = tokio::time::timeout(STOP_TIMEOUT, stop).await;
}
