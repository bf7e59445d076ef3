//! `crcr relay replay`: signs and sends stored webhook payloads.

use std::fs;
use std::process::ExitCode;

use crcr_relay::webhook::signature;
use secrecy::SecretString;

use super::replay_archive;
use crate::cli::relay::ReplayArgs;
use crate::commands::github;
use crate::env_vars::{self, Env};
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;

const MAX_RESPONSE_BYTES: usize = 64 * 1024;

/// Sends the files in order and prints the responses.
pub async fn run(args: &ReplayArgs, env: &Env, printer: &Printer) -> Outcome {
    if let Some(from) = args.from {
        return replay_archive::run(args, from, env, printer).await;
    }
    let event = args.event.as_deref().unwrap_or("pull_request");
    let secret = webhook_secret(env)?;
    let client = github::http()?;
    let url = format!("{}/github/webhook", args.url.trim_end_matches('/'));
    for path in &args.files {
        let name = path.display();
        let body = fs::read(path).map_err(|error| {
            Failure::user("file", format!("`{name}` can't be read")).because(error)
        })?;
        let request = client
            .post(&url)
            .header("content-type", "application/json")
            .header("x-github-event", event)
            .header("x-github-delivery", signature::digest(&body))
            .header("x-hub-signature-256", signature::sign(&secret, &body))
            .body(body);
        let response = crcr_github::http::send_once(request).await.map_err(|error| {
            let what = format!("the relay didn't accept `{name}`");
            match error.status() {
                Some(status) if status.as_u16() == 401 => Failure::user("replay", what)
                    .because(error)
                    .hint("GITHUB_APP_SECRET isn't the relay's"),
                Some(status) if status.is_client_error() => Failure::user("replay", what)
                    .because(error)
                    .hint("check that the file is the body of a webhook, and that `--event` names its event"),
                _ => Failure::unexpected("relay-failed", what).because(error),
            }
        })?;
        let body =
            crcr_github::http::read(response, MAX_RESPONSE_BYTES).await.map_err(|error| {
                Failure::unexpected("relay-failed", "the relay's response can't be read")
                    .because(error)
            })?;
        printer.data_line(&format!("{name}: {}", String::from_utf8_lossy(&body)));
    }
    Ok(ExitCode::SUCCESS)
}

fn webhook_secret(env: &Env) -> Result<SecretString, Failure> {
    let secret = env.secret(env_vars::GITHUB_APP_SECRET)?.ok_or_else(|| {
        Failure::user("settings", "GITHUB_APP_SECRET is missing")
            .hint("set it, or GITHUB_APP_SECRET_FILE, to the App's webhook secret")
    })?;
    Ok(first_line(&secret))
}

/// While a secret is rotated, the new value is on the first line and the old one on the second.
fn first_line(text: &str) -> SecretString {
    text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().into()
}
