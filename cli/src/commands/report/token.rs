//! Gets the job's OIDC token from GitHub Actions or from Buildkite's agent.

use std::process::Stdio;
use std::time::Duration;

use crcr_github::http::RetryPolicy;
use crcr_github::oidc::{MintError, TokenEndpoint};
use reqwest::Client;
use secrecy::SecretString;
use tokio::process::Command;

use super::AUDIENCE;
use crate::env_vars::{self, Env};
use crate::failure::Failure;

/// The lifetime of a Buildkite token in seconds, as long as one of GitHub's.
const BUILDKITE_SECONDS: &str = "300";

pub enum TokenError {
    /// A retry can't help.
    Final(Failure),
    /// With how long GitHub wants us to wait.
    Retry(Failure, Option<Duration>),
}

/// Mints tokens for one audience.
pub struct TokenSource {
    audience: String,
    issuer: Issuer,
}

enum Issuer {
    GitHub(TokenEndpoint),
    Buildkite,
}

impl TokenSource {
    pub fn find(audience: Option<&str>, env: &Env) -> Result<Self, Failure> {
        let audience = audience.or_else(|| env.get(env_vars::CRCR_OIDC_AUDIENCE));
        let audience = audience.unwrap_or(AUDIENCE).to_owned();
        let url = env.get(env_vars::ACTIONS_ID_TOKEN_REQUEST_URL);
        let bearer = env.get(env_vars::ACTIONS_ID_TOKEN_REQUEST_TOKEN);
        let issuer = match (url, bearer) {
            (Some(url), Some(bearer)) => {
                Issuer::GitHub(TokenEndpoint::new(url, bearer).map_err(|error| {
                    Failure::user("no-permission", "no OIDC token").because(error)
                })?)
            }
            _ if env.is_true(env_vars::BUILDKITE) => Issuer::Buildkite,
            _ => {
                return Err(Failure::user("no-permission", "this job can't mint an OIDC token")
                    .hint(
                        "add `permissions: id-token: write` to this job, and to the caller's for \
                         a reusable workflow; pass `ACTIONS_ID_TOKEN_REQUEST_URL` and \
                         `ACTIONS_ID_TOKEN_REQUEST_TOKEN` into a container",
                    ));
            }
        };
        Ok(Self { audience, issuer })
    }

    /// A new token for each try, because the relay accepts each only once.
    pub async fn mint(
        &self,
        client: &Client,
        per_try: Duration,
    ) -> Result<SecretString, TokenError> {
        match &self.issuer {
            Issuer::GitHub(endpoint) => endpoint
                .mint(client, &self.audience, RetryPolicy::ONCE, || per_try)
                .await
                .map_err(|error| {
                    let (again, after) = match &error {
                        MintError::Http(error) => (error.is_transient(), error.retry_after()),
                        MintError::Url(_) => (false, None),
                    };
                    let failure =
                        Failure::unexpected("token-endpoint", "GitHub gave no OIDC token")
                            .because(error)
                            .hint("run the job again; look at githubstatus.com if it fails again");
                    if again {
                        TokenError::Retry(failure, after)
                    } else {
                        TokenError::Final(failure)
                    }
                }),
            Issuer::Buildkite => self.ask_agent(per_try).await,
        }
    }

    async fn ask_agent(&self, limit: Duration) -> Result<SecretString, TokenError> {
        let failed = || {
            Failure::unexpected(
                "token-endpoint",
                "`buildkite-agent oidc request-token` gave no token",
            )
            .hint("the agent's own message is above; the step must run where the agent runs")
        };
        let run = Command::new("buildkite-agent")
            .args(["oidc", "request-token", "--audience", &self.audience])
            .args(["--lifetime", BUILDKITE_SECONDS])
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(limit, run)
            .await
            .map_err(|_| TokenError::Retry(failed(), None))?
            .map_err(|error| {
                let failure = failed().because(error);
                TokenError::Final(failure.hint("run this step where `buildkite-agent` is on PATH"))
            })?;
        let token = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if !output.status.success() || token.split('.').count() != 3 {
            return Err(TokenError::Retry(failed(), None));
        }
        Ok(token.into())
    }
}
