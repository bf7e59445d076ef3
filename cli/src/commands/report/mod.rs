//! `crcr report`: reports the state of a downstream job to the relay, with retries.

mod body;
mod detail_file;
mod junit;
mod outcome_file;
mod quarantined;
mod relay_response;
mod token;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use bytes::Bytes;
use crcr_domain::ci_data::quarantine::Quarantine;
use crcr_github::http::{self, RetryPolicy};
use crcr_github::{SecureUrl, SecureUrlError};
use reqwest::Client;
use secrecy::{ExposeSecret as _, SecretString};
use url::Url;

use self::relay_response::{Cause, ReportOutcome, RetryableFailure};
use crate::cli::report::{OnUnreachable, ReportArgs, Status};
use crate::commands::artifact::sources::patience;
use crate::commands::github;
use crate::commands::quarantine::read_committed;
use crate::env_vars::{self, Env};
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;
use crate::runner::Runner;

const MAX_RESPONSE_BYTES: usize = 64 * 1024;
const AUDIENCE: &str = "pytorch-cross-repo-ci-relay";

pub async fn run(args: &ReportArgs, env: &Env, printer: &Printer) -> Outcome {
    let runner = Runner::new(env, printer);
    let mut args = args.clone();
    if let Some(path) = args.failed_tests_detail_file.as_deref() {
        args.failed_tests_detail = detail_file::read(path, printer);
    }
    let args = &args;
    let quarantine = match args.status {
        Status::Completed if !args.junit.is_empty() => {
            read_committed(args.quarantine_file.as_deref(), env, printer)
        }
        _ => Quarantine::default(),
    };
    let tests = junit::read(&args.junit, &quarantine, env, printer)?;
    if let Some(tests) = &tests {
        tests.quarantined.show(&runner, printer)?;
    }
    let outcome_file = outcome_file::read(args.outcome_file.as_deref(), printer);
    let body = body::build(args, &outcome_file, &runner, tests, printer, jiff::Timestamp::now())?;
    let url = callback_url(args, env, body.callback_url.as_deref())?;
    let (job, state, is_dry) = (body.job, body.state, body.is_dry);
    let source = token::TokenSource::find(args.audience.as_deref(), env)?;
    let client = github::http()?;
    let per_try = Duration::from_secs(args.max_time);
    let call = RelayCall {
        client,
        url,
        body: Bytes::from(body.json),
        source,
        per_try,
        outage: patience(env)?.unwrap_or(RetryPolicy::CALL.within(PATIENCE.max(per_try * 3))),
        printer,
    };
    match call.send_with_retries().await {
        // Its step's end is what `crcr doctor` reads.
        outcome if is_dry => print_dry_outcome(outcome, &call.url, &runner, printer),
        Ok(outcome) => print_outcome(&outcome, &job, &state, &call.url, &runner, printer),
        Err(CallError::Refused(failure)) => Err(failure),
        Err(CallError::Unreachable(failure)) => match args.on_unreachable {
            OnUnreachable::Fail => Err(failure),
            OnUnreachable::Warn => {
                runner.set_outputs(&[("outcome", "unreachable")])?;
                printer.warning(&failure.with_causes(), failure.help());
                Ok(ExitCode::SUCCESS)
            }
        },
    }
}

/// The relay's address without a final slash. The input wins over the variable, which wins over the
/// address in the dispatch.
fn callback_url(
    args: &ReportArgs,
    env: &Env,
    dispatched: Option<&str>,
) -> Result<SecureUrl, Failure> {
    let given = args.callback_url.as_deref().or_else(|| env.get(env_vars::CRCR_CALLBACK_URL));
    let given = given.or(dispatched);
    let Some(given) = given else {
        return Err(Failure::user("no-callback-url", "no relay to report to").hint(
            "set the input `callback-url` or the variable `CRCR_CALLBACK_URL` to the relay's \
             address, which ends with `/github/callback`",
        ));
    };
    given.trim().trim_end_matches('/').parse().map_err(|error: SecureUrlError| {
        Failure::user("callback-url", format!("the callback URL {error}")).hint(
            "it looks like `https://relay.example.org/github/callback`; the request carries a token",
        )
    })
}

/// How long an outage of the relay, or of GitHub's token endpoint, is waited out.
const PATIENCE: Duration = RetryPolicy::CALL.total;
/// How long a report waits while the relay has many of the same repository to take.
const TURN_PATIENCE: Duration = Duration::from_secs(600);

enum CallError {
    Refused(Failure),
    Unreachable(Failure),
}

struct RelayCall<'a> {
    client: Client,
    url: SecureUrl,
    body: Bytes,
    source: token::TokenSource,
    per_try: Duration,
    outage: RetryPolicy,
    printer: &'a Printer,
}

impl RelayCall<'_> {
    /// Sends the report until the response is final, with a new token each time.
    async fn send_with_retries(&self) -> Result<ReportOutcome, CallError> {
        let mut outage = self.outage.start();
        // What a relay may refuse only because it doesn't know yet, such as a new dispatch.
        let mut refusal = RetryPolicy { tries: 4, ..self.outage }.start();
        let mut earlier = relay_response::EarlierTry::Nothing;
        let started = Instant::now();
        loop {
            let again = match self.attempt(earlier).await {
                ReportOutcome::Retry(again) => again,
                ReportOutcome::Refused(failure) => return Err(CallError::Refused(failure)),
                good => return Ok(good),
            };
            // With many jobs at once, each gets a turn of its own. Keeping to it isn't a try.
            if let Some(wait) = again.after.filter(|_| again.cause == Cause::RateLimit)
                && started.elapsed() + wait < TURN_PATIENCE
            {
                tracing::info!(seconds = wait.as_secs(), "the relay takes this report later");
                tokio::time::sleep(wait).await;
                continue;
            }
            let tries = if again.cause == Cause::Refusal { &mut refusal } else { &mut outage };
            if !tries.wait_to_retry(&again.end.with_causes(), again.after).await {
                return Err(match again.cause {
                    Cause::Outage => CallError::Unreachable(match tries.history() {
                        Some(history) => again.end.because(anyhow::anyhow!(history)),
                        None => again.end,
                    }),
                    Cause::RateLimit | Cause::Refusal => CallError::Refused(again.end),
                });
            }
            earlier = earlier.max(again.leaves);
        }
    }

    async fn attempt(&self, earlier: relay_response::EarlierTry) -> ReportOutcome {
        let token = match self.source.mint(&self.client, self.per_try).await {
            Ok(token) => token,
            Err(token::TokenError::Final(failure)) => return ReportOutcome::Refused(failure),
            Err(token::TokenError::Retry(failure, after)) => {
                let leaves = relay_response::EarlierTry::Nothing;
                let again = RetryableFailure::unreachable(failure, leaves);
                return ReportOutcome::Retry(RetryableFailure { after, ..again });
            }
        };
        self.printer.mask(token.expose_secret());
        match self.post(&token).await {
            Ok((status, body, after)) => relay_response::read(status, &body, after, earlier),
            Err(error) => {
                let host = self.url.host_str().unwrap_or_default();
                let hint = match error {
                    http::HttpError::Intermediary { .. } => {
                        "the callback URL has to be the relay's, which ends with \
                         `/github/callback`; if it is, a proxy answered, and the job can be run again"
                    }
                    _ => "the result of this job isn't recorded; run the job again to report it",
                };
                let failure = Failure::unexpected(
                    "relay-unreachable",
                    format!("the relay at `{host}` can't be reached"),
                )
                .because(error)
                .hint(hint);
                ReportOutcome::Retry(RetryableFailure::unreachable(
                    failure,
                    relay_response::EarlierTry::Silence,
                ))
            }
        }
    }

    async fn post(
        &self,
        token: &SecretString,
    ) -> Result<(u16, Bytes, Option<Duration>), http::HttpError> {
        let request = self
            .client
            .post(Url::from(self.url.clone()))
            .timeout(self.per_try)
            .bearer_auth(token.expose_secret())
            .header("content-type", "application/json")
            .body(self.body.clone());
        match http::send_once(request).await.map_err(http::HttpError::unless_page) {
            Ok(response) => {
                let status = response.status();
                let body = http::read(response, MAX_RESPONSE_BYTES).await?;
                // Each relay says `ok` or a detail in JSON, so this is from something in between.
                if !is_relays(&body) {
                    return Err(http::HttpError::Intermediary { status, body });
                }
                Ok((status.as_u16(), body, None))
            }
            Err(http::HttpError::Status { status, body, .. })
                if status.as_u16() == 403 && !is_json(&body) =>
            {
                Err(http::HttpError::Intermediary { status, body })
            }
            Err(http::HttpError::Status { status, body, retry_after, headers }) => {
                let moved = headers.get("location").map(|to| Bytes::copy_from_slice(to.as_bytes()));
                Ok((
                    status.as_u16(),
                    moved.filter(|_| status.is_redirection()).unwrap_or(body),
                    retry_after,
                ))
            }
            Err(error) => Err(error),
        }
    }
}

fn is_relays(body: &[u8]) -> bool {
    let answer: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    answer.is_some_and(|answer| ["ok", "detail"].iter().any(|field| answer.get(field).is_some()))
}

fn is_json(body: &[u8]) -> bool {
    serde_json::from_slice::<serde::de::IgnoredAny>(body).is_ok()
}

fn print_outcome(
    outcome: &ReportOutcome,
    job: &str,
    state: &str,
    url: &Url,
    runner: &Runner,
    printer: &Printer,
) -> Outcome {
    let host = url.host_str().unwrap_or_default();
    let repository = runner.repository().unwrap_or("this repository");
    let outcome = match outcome {
        ReportOutcome::Recorded => {
            printer.line(&format!("reported to {host}: `{job}` is {state}"));
            "recorded"
        }
        ReportOutcome::Duplicate => {
            printer
                .line(&format!("the relay at {host} has this report already: `{job}` is {state}"));
            "duplicate"
        }
        ReportOutcome::Unsaved => {
            printer.warning(
                &format!("the relay noted that `{job}` is {state}, and then failed to save it"),
                Some("the result may be missing on the HUD; run the job again to report it anew"),
            );
            "duplicate"
        }
        ReportOutcome::Stale => {
            printer.line(&format!("a later report of `{job}` reached the relay before this one"));
            "stale"
        }
        ReportOutcome::Ignored => {
            printer.warning(
                &format!(
                    "the relay ignored this report: results need L2, and `{repository}` is at L1 \
                     or not on the allowlist"
                ),
                Some("ask for L2 by a pull request to the allowlist, or remove the report step"),
            );
            "ignored"
        }
        ReportOutcome::DryDispatch => {
            printer.warning("the relay took this report for that of a dry dispatch", None);
            "ignored"
        }
        ReportOutcome::Retry(_) | ReportOutcome::Refused(_) => {
            unreachable!("these never leave the loop")
        }
    };
    runner.set_outputs(&[("outcome", outcome)])?;
    Ok(ExitCode::SUCCESS)
}

/// The report of a dry dispatch succeeds only if the relay has proven token and signature.
fn print_dry_outcome(
    outcome: Result<ReportOutcome, CallError>,
    url: &Url,
    runner: &Runner,
    printer: &Printer,
) -> Outcome {
    let host = url.host_str().unwrap_or_default();
    match outcome {
        Ok(ReportOutcome::DryDispatch) => {
            printer.line(&format!(
                "the relay at {host} accepts this run's token and the signature of its dispatch"
            ));
            runner.set_outputs(&[("outcome", "verified")])?;
            Ok(ExitCode::SUCCESS)
        }
        Err(CallError::Unreachable(failure)) => Err(failure),
        Err(CallError::Refused(failure)) if failure.code() != "no-dispatch" => Err(failure),
        Ok(_) | Err(CallError::Refused(_)) => {
            let message =
                format!("the relay at {host} doesn't know the signature of this dry dispatch");
            Err(Failure::user("dry-dispatch", message).hint(
                "`crcr doctor downstream --dispatch` needs the relay's own `CRCR_CALLBACK_KEY`, and \
                 the relay a version of crcr that answers dry dispatches",
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ReportArgs,
    }

    fn url(given: &str) -> Result<String, String> {
        let line = ["crcr", "--status", "in_progress", "--callback-url", given];
        let args = Line::parse_from(line).args;
        callback_url(&args, &Env::default(), None)
            .map(|url| url.to_string())
            .map_err(|failure| failure.to_string())
    }

    #[test]
    fn callback_url_must_be_https_or_on_this_machine() {
        let ours = "https://relay.example.org/github/callback";
        assert_eq!(url(ours).unwrap(), ours);
        assert_eq!(url(&format!("{ours}/")).unwrap(), ours);
        for local in ["http://127.0.0.1:8080/x", "http://localhost/x", "http://[::1]:1/x"] {
            assert_eq!(url(local).unwrap(), local);
        }
        for wrong in [
            "http://relay.example.org/x",
            "http://127.0.0.1.example.org/x",
            "ftp://relay.example.org",
            "relay.example.org",
            "https://user:secret@relay.example.org/x",
            "https://token@relay.example.org/x",
        ] {
            let error = url(wrong).unwrap_err();
            assert!(error.starts_with("the callback URL") && !error.contains("secret"), "{error}");
        }
    }
}
