//! Credentials that are asked for once, and again when they are about to end.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider, future};
use tokio::sync::Mutex;

/// How long it may take: making credentials anew takes a token and an answer of STS, each maybe
/// more than once.
const PROVIDER_TIMEOUT: Duration = Duration::from_secs(60);
/// How long before their end credentials are no longer used.
const EXPIRY_MARGIN: Duration = Duration::from_secs(10);

/// The one place that both the SDK and our own requests have their credentials from.
#[derive(Debug, Clone)]
pub(super) struct CachedCredentials {
    provider: SharedCredentialsProvider,
    last: Arc<Mutex<Option<Credentials>>>,
}

impl CachedCredentials {
    pub(super) fn new(provider: SharedCredentialsProvider) -> Self {
        Self { provider, last: Arc::default() }
    }

    /// Credentials that hold for a while yet. Of all who wait for new ones, one asks.
    pub(super) async fn get(&self) -> Result<Credentials, CredentialsError> {
        let mut last = self.last.lock().await;
        let fresh = |credentials: &&Credentials| {
            credentials.expiry().is_none_or(|end| end > SystemTime::now() + EXPIRY_MARGIN)
        };
        if let Some(credentials) = last.as_ref().filter(fresh) {
            return Ok(credentials.clone());
        }
        let asked =
            tokio::time::timeout(PROVIDER_TIMEOUT, self.provider.provide_credentials()).await;
        let credentials =
            asked.map_err(|_| CredentialsError::provider_timed_out(PROVIDER_TIMEOUT))??;
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
