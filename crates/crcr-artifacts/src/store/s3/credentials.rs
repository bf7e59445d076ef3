//! Caches credentials and renews them shortly before they expire.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider, future};
use tokio::sync::Mutex;

/// Renewing takes an OIDC token and a call of STS, both with retries.
const PROVIDER_TIMEOUT: Duration = Duration::from_secs(60);
/// Credentials aren't used during this time before they expire.
const EXPIRY_MARGIN: Duration = Duration::from_secs(10);

/// Shared by the SDK and our own client.
#[derive(Debug, Clone)]
pub(super) struct CachedCredentials {
    provider: SharedCredentialsProvider,
    last: Arc<Mutex<Option<Credentials>>>,
}

impl CachedCredentials {
    pub(super) fn new(provider: SharedCredentialsProvider) -> Self {
        Self { provider, last: Arc::default() }
    }

    /// Valid credentials. The lock is held while renewing, so that only one caller renews.
    pub(super) async fn get(&self) -> Result<Credentials, CredentialsError> {
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
