//! Caches credentials and renews them shortly before they expire.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider, future};
use aws_sdk_s3::error::ConnectorError;
use crcr_aws::credentials::sendable_credentials;
use crcr_aws::sdk_error::sdk_cause;
use tokio::sync::Mutex;

/// Longer than an exchange of an OIDC token with all its tries, which has a limit and an error of its own.
const PROVIDER_TIMEOUT: Duration = Duration::from_secs(120);
/// Credentials aren't used during this time before they expire.
const EXPIRY_MARGIN: Duration = Duration::from_secs(10);

/// No credentials because of an outage: a later try may get some.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct CredentialsOutage(pub String);

/// The error of what provides the credentials, if a request failed for that. The SDK calls it a broken connection.
pub(crate) fn of_credentials<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a CredentialsError> {
    chain(error).find_map(|cause| cause.downcast_ref())
}

/// Whether `error` was caused by an outage of what provides the credentials.
pub(crate) fn is_outage(error: &(dyn Error + 'static)) -> bool {
    let is_gone = |cause: &(dyn Error + 'static)| {
        cause.is::<CredentialsOutage>() || cause.is::<ConnectorError>()
    };
    of_credentials(error).is_some_and(|error| {
        matches!(error, CredentialsError::ProviderTimedOut(_)) || chain(error).any(is_gone)
    })
}

fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&cause| cause.source())
}

/// Shared by the SDK and our own client.
#[derive(Debug, Clone)]
pub(crate) struct CachedCredentials {
    provider: SharedCredentialsProvider,
    state: Arc<Mutex<CredentialsState>>,
}

#[derive(Debug, Default)]
struct CredentialsState {
    last: Option<Credentials>,
    /// Why the first call got none. The SDK tells a mistake in a profile only once.
    first_cause: Option<String>,
}

impl CachedCredentials {
    pub(crate) fn new(provider: SharedCredentialsProvider) -> Self {
        Self { provider, state: Arc::default() }
    }

    /// Valid credentials. The lock is held while renewing, so that only one caller renews.
    pub(crate) async fn get(&self) -> Result<Credentials, CredentialsError> {
        let mut state = self.state.lock().await;
        let fresh = |credentials: &&Credentials| {
            credentials.expiry().is_none_or(|end| end > SystemTime::now() + EXPIRY_MARGIN)
        };
        if let Some(credentials) = state.last.as_ref().filter(fresh) {
            return Ok(credentials.clone());
        }
        let result =
            tokio::time::timeout(PROVIDER_TIMEOUT, self.provider.provide_credentials()).await;
        match result.map_err(|_| CredentialsError::provider_timed_out(PROVIDER_TIMEOUT))? {
            Ok(credentials) => {
                let credentials = sendable_credentials(credentials)?;
                state.last = Some(credentials.clone());
                Ok(credentials)
            }
            Err(error) if sdk_cause(&error).ends_with("already taken") => {
                Err(state.first_cause.clone().map_or(error, CredentialsError::provider_error))
            }
            Err(error) => {
                state.first_cause.get_or_insert_with(|| sdk_cause(&error));
                Err(error)
            }
        }
    }
}

impl ProvideCredentials for CachedCredentials {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(self.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outage_of_the_provider_is_told_apart_from_its_refusal() {
        let outage = CredentialsError::provider_error(CredentialsOutage("503".to_owned()));
        assert!(is_outage(&outage));
        assert!(is_outage(&CredentialsError::provider_timed_out(PROVIDER_TIMEOUT)));
        assert!(!is_outage(&CredentialsError::provider_error("the role denies it")));
        assert!(!is_outage(&CredentialsError::not_loaded("there are none")));
        let refused = || ConnectorError::io("connection refused".into());
        assert!(is_outage(&CredentialsError::provider_error(refused())));
        assert!(!is_outage(&refused()), "S3 itself can't be reached");
        let none =
            ConnectorError::other(CredentialsError::not_loaded("there are none").into(), None);
        assert!(of_credentials(&none).is_some() && !is_outage(&none));
    }
}
