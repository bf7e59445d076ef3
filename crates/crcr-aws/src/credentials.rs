//! Credentials and regions that can be sent. The AWS SDK panics where one can't be in a header, such as a key that was
//! stored with a line break.

use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider, future};
use aws_types::SdkConfig;
use aws_types::region::Region;

/// Whether a header can hold a text.
pub fn can_be_sent(text: &str) -> bool {
    text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic())
}

/// The credentials without white space around them, which a secret may be stored with.
///
/// Fails if they still can't be sent.
pub fn sendable_credentials(credentials: Credentials) -> Result<Credentials, CredentialsError> {
    let (id, secret) = (credentials.access_key_id(), credentials.secret_access_key());
    let token = credentials.session_token();
    for (what, text) in [("access key's id", id), ("session token", token.unwrap_or_default())] {
        if !can_be_sent(text.trim()) {
            let why = format!(
                "the {what} has a line break or another character that a header can't hold"
            );
            return Err(CredentialsError::invalid_configuration(why));
        }
    }
    let is_trimmed = |text: &str| text.trim() == text;
    if is_trimmed(id) && is_trimmed(secret) && token.is_none_or(is_trimmed) {
        return Ok(credentials);
    }
    let mut trimmed = Credentials::builder()
        .access_key_id(id.trim())
        .secret_access_key(secret.trim())
        .provider_name("trimmed");
    trimmed.set_session_token(token.map(|token| token.trim().to_owned()));
    trimmed.set_expiry(credentials.expiry());
    trimmed.set_account_id(credentials.account_id().cloned());
    Ok(trimmed.build())
}

#[derive(Debug)]
struct SendableCredentials(SharedCredentialsProvider);

impl ProvideCredentials for SendableCredentials {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(async {
            sendable_credentials(self.0.provide_credentials().await?)
        })
    }
}

/// A configuration of the SDK with [`sendable_credentials`]. A region that can't be sent is left out.
pub fn with_sendable_credentials(shared: SdkConfig) -> SdkConfig {
    let region = shared.region().map(|region| region.as_ref().trim().to_owned());
    let region = region.filter(|region| can_be_sent(region)).map(Region::new);
    let provider = shared.credentials_provider().map(SendableCredentials);
    let mut builder = shared.into_builder().region(region);
    builder.set_credentials_provider(provider.map(SharedCredentialsProvider::new));
    builder.build()
}

#[cfg(test)]
mod tests {
    use aws_config::BehaviorVersion;

    use super::*;

    #[tokio::test]
    async fn line_breaks_around_credentials_are_cut_and_others_are_refused() {
        let config = |id: &str, token: &str, region: &'static str| {
            let credentials =
                Credentials::new(id, "secret\n", Some(token.to_owned()), None, "test");
            with_sendable_credentials(
                SdkConfig::builder()
                    .behavior_version(BehaviorVersion::latest())
                    .credentials_provider(SharedCredentialsProvider::new(credentials))
                    .region(Region::new(region))
                    .build(),
            )
        };
        let good = config(" AKIA\r\n", "token\n", "us-east-1\n");
        let credentials = good.credentials_provider().unwrap().provide_credentials().await.unwrap();
        assert_eq!(
            (credentials.access_key_id(), credentials.secret_access_key()),
            ("AKIA", "secret")
        );
        assert_eq!(credentials.session_token(), Some("token"));
        assert_eq!(good.region().unwrap().as_ref(), "us-east-1");
        for (id, token, what) in
            [("AK\nIA", "t", "access key's id"), ("AKIA", "t\u{e9}", "session token")]
        {
            let bad = config(id, token, "us\neast").credentials_provider().unwrap();
            let error = crate::sdk_error::sdk_cause(&bad.provide_credentials().await.unwrap_err());
            assert!(error.contains(what), "{error}");
        }
        assert_eq!(config("a", "b", "us\neast").region(), None);
    }
}
