//! Exchanges the job's OIDC token for AWS credentials, with retries.

use std::time::{Duration, Instant};

use crcr_aws::sts::{self, AssumeRole, SessionCredentials, StsError, StsErrorClass};
use crcr_github::http::RetryPolicy;
use crcr_github::oidc::{MintError, TokenEndpoint, unverified_claims};
use jiff::Timestamp;
use reqwest::Client;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::Value;

use crate::commands::oidc::decide::AuthReason;
use crate::commands::oidc::messages;
use crate::failure::Failure;
use crate::printer::Printer;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// S3 refuses signatures from a clock that is off by more than this.
const MAX_SKEW: Duration = Duration::from_secs(15 * 60);
/// The claims that a trust policy can match.
const CLAIMS: [&str; 6] = ["sub", "aud", "repository", "ref", "environment", "job_workflow_ref"];

/// The code of the reason, and the message.
pub type AuthFailure = (AuthReason, Failure);

pub struct Exchange<'a> {
    pub client: &'a Client,
    pub endpoint: &'a TokenEndpoint,
    pub audience: &'a str,
    pub request: &'a AssumeRole,
    pub timeout: Duration,
    pub printer: &'a Printer,
}

impl Exchange<'_> {
    /// Gets a token and assumes the role; both end within `timeout`, whether a server answers or not.
    pub async fn run(&self) -> Result<SessionCredentials, AuthFailure> {
        let started = Instant::now();
        let total = time_for_tries(self.timeout);
        let outage = RetryPolicy { tries: u32::MAX, total, ..RetryPolicy::default() };
        // It may take seconds until every STS server sees a changed policy.
        let (base, cap) = (Duration::from_secs(2), Duration::from_secs(3));
        let denial = RetryPolicy { tries: 3, base, cap, total };
        let (mut after_outage, mut after_denial) = (outage.start(), denial.start());
        let mut token = None;
        let mut warned_of_skew = false;
        let mut first = true;
        loop {
            let current = match token.take() {
                Some(token) => token,
                None => self.mint(started).await?,
            };
            let limit = self.try_limit(started);
            let answered =
                sts::assume_role_with_web_identity(self.client, self.request, &current, limit)
                    .await;
            if let Some(server) = answered.server_time.filter(|_| !warned_of_skew) {
                warned_of_skew = self.warn_of_clock_skew(server, Timestamp::now());
            }
            let error = match answered.result {
                Ok(credentials) => return Ok(credentials),
                Err(error) => error,
            };
            let again = match error.class() {
                StsErrorClass::Denied => after_denial.wait_to_retry(&error, None).await,
                StsErrorClass::Expired | StsErrorClass::Transient => {
                    after_outage.wait_to_retry(&error, error.retry_after()).await
                }
                StsErrorClass::Refused | StsErrorClass::Foreign => false,
            };
            if !again {
                return Err(self.refused(&error, &current, started));
            }
            // The second try gets a new token; later ones only if it has expired.
            if !first && error.class() != StsErrorClass::Expired {
                token = Some(current);
            }
            first = false;
        }
    }

    fn left(&self, started: Instant) -> Duration {
        self.timeout.saturating_sub(started.elapsed())
    }

    /// How long a try that starts now may take.
    fn try_limit(&self, started: Instant) -> Duration {
        REQUEST_TIMEOUT.min(self.left(started))
    }

    async fn mint(&self, started: Instant) -> Result<SecretString, AuthFailure> {
        let total = time_for_tries(self.left(started));
        let retry = RetryPolicy { tries: u32::MAX, total, ..RetryPolicy::default() };
        let limit = || self.try_limit(started);
        let minted = self.endpoint.mint(self.client, self.audience, retry, limit).await;
        let token = minted.map_err(|error| match (token_endpoint(&error), error) {
            ((reason, failure), MintError::Http(error)) if error.is_transient() => {
                (reason, self.gave_up(failure, started))
            }
            (refused, _) => refused,
        })?;
        self.printer.mask(token.expose_secret());
        Ok(token)
    }

    fn gave_up(&self, failure: Failure, started: Instant) -> Failure {
        let (waited, limit) = (started.elapsed().as_secs(), self.timeout.as_secs());
        failure.because(anyhow::anyhow!("gave up after {waited} of {limit} s"))
    }

    fn refused(&self, error: &StsError, token: &SecretString, started: Instant) -> AuthFailure {
        let role = &self.request.role_arn;
        match (error, error.class()) {
            (
                StsError::Answer { code, message, .. },
                StsErrorClass::Denied | StsErrorClass::Refused,
            ) => {
                let failure = Failure::user(
                    AuthReason::StsDenied.word(),
                    format!("STS refused the role `{role}`: `{code}`: {message}"),
                )
                .hint(denied_hint(code, message, token));
                (AuthReason::StsDenied, failure)
            }
            _ => {
                let host = self.request.endpoint.host_str().unwrap_or_default();
                let failure = Failure::unexpected(
                    AuthReason::StsUnreachable.word(),
                    format!("STS at `{host}` gave no credentials"),
                )
                .because(anyhow::anyhow!("{error}"));
                let failure = match error.class() {
                    StsErrorClass::Foreign => failure.hint(FOREIGN_HINT),
                    _ => self.gave_up(failure.hint(OUTAGE_HINT), started),
                };
                (AuthReason::StsUnreachable, failure)
            }
        }
    }

    /// Warns of a clock that S3 will refuse. Returns whether it did.
    fn warn_of_clock_skew(&self, server: Timestamp, now: Timestamp) -> bool {
        let Some((minutes, way)) = skew(server, now) else { return false };
        let (what, hint) = messages::clock_skew(minutes, way);
        self.printer.warning(&what, Some(hint));
        true
    }
}

const FOREIGN_HINT: &str = "STS itself doesn't answer so: look at `sts-endpoint` or `AWS_ENDPOINT_URL_STS`, the proxy and the \
                            root certificates here; `on-unavailable: degrade` goes on without credentials";
const OUTAGE_HINT: &str = "run the job again; if it fails again, look at the network, the proxy and the state of AWS; \
                           `timeout` gives it more time, `sts-endpoint` takes the STS of another region, and \
                           `on-unavailable: degrade` goes on without credentials";

/// For how long new tries may start, so that the last of them has time for its answer.
fn time_for_tries(time: Duration) -> Duration {
    time - REQUEST_TIMEOUT.min(time / 4)
}

/// By how many minutes this machine's clock is off, if that is too much for S3.
pub fn skew(server: Timestamp, now: Timestamp) -> Option<(u64, &'static str)> {
    let off = now.duration_since(server);
    let way = if off.is_negative() { "slow" } else { "fast" };
    let off = off.unsigned_abs();
    (off > MAX_SKEW).then_some((off.as_secs() / 60, way))
}

/// The failure when GitHub gives no token.
pub fn token_endpoint(error: &MintError) -> AuthFailure {
    let hint = match error {
        MintError::Http(error) if error.status().is_some_and(|status| status.is_client_error()) => {
            "GitHub refused: the job may have run for longer than its request token lives, or the \
             variables belong to another job"
        }
        MintError::Url(_) => {
            "the runner sets this variable: find the step or setting that changes it. AWS accepts no token of a GitHub server \
             without TLS; to go on without credentials, set `on-unavailable: degrade`"
        }
        _ => {
            "run the job again; if it fails again, look at the network, the proxy and GitHub's status; \
             `timeout` gives it more time"
        }
    };
    let failure = Failure::unexpected(
        AuthReason::TokenEndpoint.word(),
        "GitHub's token endpoint gave no token",
    )
    .because(anyhow::anyhow!("{error}"))
    .hint(hint);
    (AuthReason::TokenEndpoint, failure)
}

/// The hint after a refusal by STS. It lists the claims that a trust policy matches, but never the token.
fn denied_hint(code: &str, message: &str, token: &SecretString) -> String {
    let what = match code {
        "ValidationError" if message.contains("MaxSessionDuration") => {
            return "lower `role-duration-seconds`, or raise the role's maximum session duration"
                .to_owned();
        }
        "PackedPolicyTooLarge" => {
            return "shorten the session policies: STS has one limited space for `inline-session-policy`, \
                    `managed-session-policies` and `s3-scope`"
                .to_owned();
        }
        "RegionDisabledException" => {
            return "activate STS in this region (IAM, \"Account settings\"), or take another `aws-region`"
                .to_owned();
        }
        "AccessDenied" | "InvalidIdentityToken" | "IDPRejectedClaim" => {
            "the role's trust policy, and the identity provider in that account, must match the \
             claims of this job's token:"
        }
        _ => "correct what AWS names above; the claims of this job's token are:",
    };
    let claims = unverified_claims(token).unwrap_or_default();
    let mut text = what.to_owned();
    // A tenant of ghe.com and an enterprise can have an issuer of their own, and each needs a provider in the account.
    let issuer = (code == "InvalidIdentityToken").then_some("iss");
    for name in issuer.into_iter().chain(CLAIMS) {
        let value = match claims.get(name) {
            Some(Value::String(value)) => value.clone(),
            Some(value) => value.to_string(),
            None => continue,
        };
        text.push_str(&format!("\n  {name}: {value}"));
    }
    let subject = claims.get("sub").and_then(Value::as_str).unwrap_or_default();
    if subject.starts_with("repo:") && subject.contains('@') {
        text.push_str(
            "\n`sub` has the ids of owner and repository, as for each repository that was created, \
             renamed or transferred since 2026-07-15: a trust policy from before must list this form",
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_skew_is_reported_above_fifteen_minutes() {
        let server: Timestamp = "2026-11-20T12:00:00Z".parse().unwrap();
        let at = |text: &str| skew(server, text.parse().unwrap());
        assert_eq!(at("2026-11-20T12:15:00Z"), None);
        assert_eq!(at("2026-11-20T11:45:00Z"), None);
        assert_eq!(at("2026-11-20T12:16:00Z"), Some((16, "fast")));
        assert_eq!(at("2026-11-20T11:30:00Z"), Some((30, "slow")));
    }

    #[test]
    fn token_address_without_tls_is_refused_with_its_name_and_not_as_an_outage() {
        let error = TokenEndpoint::new("http://192.0.2.1/?a=b", "bearer").unwrap_err();
        let (reason, failure) = token_endpoint(&error);
        assert_eq!(reason.word(), "token-endpoint");
        let cause = failure.causes().concat();
        assert!(cause.starts_with("`ACTIONS_ID_TOKEN_REQUEST_URL` isn't an https URL"), "{cause}");
        assert!(
            failure.help().is_some_and(|hint| hint.starts_with("the runner sets this variable"))
        );
    }

    #[test]
    fn denied_hint_has_the_claims_but_not_the_token() {
        // {"sub":"repo:a/b:ref:x","aud":["sts.amazonaws.com"],"jti":"j"}
        let payload =
            "eyJzdWIiOiJyZXBvOmEvYjpyZWY6eCIsImF1ZCI6WyJzdHMuYW1hem9uYXdzLmNvbSJdLCJqdGkiOiJqIn0";
        let token = format!("head.{payload}.sig").into();
        let hint = denied_hint("AccessDenied", "Not authorized", &token);
        assert!(
            hint.ends_with("\n  sub: repo:a/b:ref:x\n  aud: [\"sts.amazonaws.com\"]"),
            "{hint}"
        );
        assert!(!hint.contains("jti") && !hint.contains(payload), "{hint}");
        // {"iss":"https://token.actions.acme.ghe.com","sub":"s"}
        let payload = "eyJpc3MiOiJodHRwczovL3Rva2VuLmFjdGlvbnMuYWNtZS5naGUuY29tIiwic3ViIjoicyJ9";
        let of_tenant = format!("head.{payload}.sig").into();
        let hint =
            denied_hint("InvalidIdentityToken", "No OpenIDConnect provider found", &of_tenant);
        assert!(hint.contains("\n  iss: https://token.actions.acme.ghe.com\n  sub: s"), "{hint}");
        let longer =
            "The requested DurationSeconds exceeds the MaxSessionDuration set for this role.";
        for (code, message, expected) in [
            ("ValidationError", longer, "lower `role-duration-seconds`"),
            ("PackedPolicyTooLarge", "Packed policy consumes 110%", "shorten the session policies"),
            ("RegionDisabledException", "STS is not activated in this region", "activate STS"),
        ] {
            let hint = denied_hint(code, message, &token);
            assert!(hint.starts_with(expected) && !hint.contains("sub:"), "{hint}");
        }
    }
}
