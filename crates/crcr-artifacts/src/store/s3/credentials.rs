//! Caches credentials and renews them shortly before they expire.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider, future};
use tokio::sync::Mutex;

/// Longer than an exchange of an OIDC token with all its tries, which has a limit and an error of its own.
const PROVIDER_TIMEOUT: Duration = Duration::from_secs(120);
/// Credentials aren't used during this time before they expire.
const EXPIRY_MARGIN: Duration = Duration::from_secs(10);

/// No credentials because of an outage: a later try may get some.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct CredentialsOutage(pub String);

/// Whether `error` was caused by an outage of what provides the credentials.
pub(crate) fn is_outage(mut error: &(dyn std::error::Error + 'static)) -> bool {
    loop {
        let timed_out = matches!(error.downcast_ref(), Some(CredentialsError::ProviderTimedOut(_)));
        if timed_out || error.is::<CredentialsOutage>() {
            return true;
        }
        match error.source() {
            Some(source) => error = source,
            None => return false,
        }
    }
}

/// Shared by the SDK and our own client.
#[derive(Debug, Clone)]
pub(crate) struct CachedCredentials {
    provider: SharedCredentialsProvider,
    last: Arc<Mutex<Option<Credentials>>>,
}

impl CachedCredentials {
    pub(crate) fn new(provider: SharedCredentialsProvider) -> Self {
        Self { provider, last: Arc::default() }
    }

    /// Valid credentials. The lock is held while renewing, so that only one caller renews.
    pub(crate) async fn get(&self) -> Result<Credentials, CredentialsError> {
        let mut last = self.last.lock().await;
        let fresh = |credentials: &&Credentials| {
            credentials.expiry().is_none_or(|end| end > SystemTime::now() + EXPIRY_MARGIN)
        };
        if let Some(credentials) = last.as_ref().filter(fresh) {
            return Ok(credentials.clone());
        }
        let result =
            tokio::time::timeout(PROVIDER_TIMEOUT, self.provider.provide_credentials()).await;
        let credentials =
            result.map_err(|_| CredentialsError::provider_timed_out(PROVIDER_TIMEOUT))??;
        *last = Some(credentials.clone());
        Ok(credentials)
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
    }
}
