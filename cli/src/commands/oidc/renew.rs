//! Renews credentials that expire while a command runs.

use std::fmt;
use std::time::Duration;

use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, future};
use crcr_artifacts::store::s3::CredentialsOutage;
use crcr_aws::sts::AssumeRole;
use crcr_github::http;
use crcr_github::oidc::TokenEndpoint;
use jiff::Timestamp;
use secrecy::ExposeSecret as _;

use super::decide::AuthReason;
use super::exchange::Exchange;
use super::{earlier_credentials, inputs};
use crate::commands::artifact::sources::patience;
use crate::env_vars::{self, Env};
use crate::printer::Printer;
use crate::runner::Runner;

/// A shorter session could expire during a long upload again.
const SESSION_SECONDS: u32 = 3600;
/// The time for one exchange including its retries. Uploads that wait for credentials may begin several.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(90);
/// One try of an exchange takes no longer.
const SHORTEST_EXCHANGE: Duration = Duration::from_secs(10);
/// Credentials are renewed this long before they expire.
const EXPIRY_MARGIN: Duration = Duration::from_secs(60);

/// The credentials that `oidc configure` exported, and the request to renew them.
pub struct RenewingCredentials {
    first: Credentials,
    ends: Timestamp,
    client: reqwest::Client,
    endpoint: TokenEndpoint,
    request: AssumeRole,
    audience: String,
    timeout: Duration,
    printer: Printer,
}

impl RenewingCredentials {
    /// `None` if `first` can't be renewed: they aren't from `oidc configure`, the job may not request
    /// tokens, or the session has policies or a custom name. Those aren't known here, and a session with
    /// more rights must not replace it.
    pub fn new(first: Credentials, env: &Env, printer: &Printer) -> Option<Self> {
        let ends = env.get(env_vars::CRCR_AUTH_EXPIRATION)?.parse().ok()?;
        let sts = env.get(env_vars::CRCR_AUTH_STS_ENDPOINT)?;
        let request = AssumeRole {
            endpoint: inputs::endpoint(env_vars::CRCR_AUTH_STS_ENDPOINT, sts).ok()?,
            role_arn: env.get(env_vars::CRCR_AUTH_ROLE_ARN)?.to_owned(),
            session_name: inputs::session_name(None, &Runner::new(env, printer)),
            duration_seconds: SESSION_SECONDS,
            policy: None,
            policy_arns: vec![],
        };
        let same = earlier_credentials::fingerprint(&request, first.access_key_id());
        if env.get(env_vars::CRCR_AUTH_FINGERPRINT) != Some(&same) {
            return None;
        }
        let url = env.get(env_vars::ACTIONS_ID_TOKEN_REQUEST_URL)?;
        let bearer = env.get(env_vars::ACTIONS_ID_TOKEN_REQUEST_TOKEN)?;
        let endpoint = TokenEndpoint::new(url, bearer).ok()?;
        let client = http::client().ok()?;
        let audience = env.get(env_vars::CRCR_AUTH_AUDIENCE)?.to_owned();
        let patience = patience(env).ok().flatten().map_or(EXCHANGE_TIMEOUT, |retry| retry.total);
        let timeout = patience.clamp(SHORTEST_EXCHANGE, EXCHANGE_TIMEOUT);
        let printer = printer.clone();
        Some(Self { first, ends, client, endpoint, request, audience, timeout, printer })
    }

    async fn load(&self) -> Result<Credentials, CredentialsError> {
        if Timestamp::now() + EXPIRY_MARGIN < self.ends {
            let mut first = self.first.clone();
            *first.expiry_mut() = Some(self.ends.into());
            return Ok(first);
        }
        let exchange = Exchange {
            client: &self.client,
            endpoint: &self.endpoint,
            audience: &self.audience,
            request: &self.request,
            timeout: self.timeout,
            printer: &self.printer,
        };
        let made = exchange.run().await.map_err(|(reason, failure)| match reason {
            AuthReason::TokenEndpoint | AuthReason::StsUnreachable => {
                CredentialsError::provider_error(CredentialsOutage(failure.with_causes()))
            }
            _ => CredentialsError::provider_error(std::io::Error::other(failure.to_string())),
        })?;
        let (secret, token) =
            (made.secret_access_key.expose_secret(), made.session_token.expose_secret());
        for hidden in [made.access_key_id.as_str(), secret, token] {
            self.printer.mask(hidden);
        }
        let ends = Some(made.expiration.into());
        let token = Some(token.to_owned());
        Ok(Credentials::new(made.access_key_id.as_str(), secret, token, ends, "job token"))
    }
}

impl ProvideCredentials for RenewingCredentials {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(self.load())
    }
}

impl fmt::Debug for RenewingCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "credentials of `{}` that end at {}", self.request.role_arn, self.ends)
    }
}
