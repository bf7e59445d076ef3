//! The machine's own credentials, which are used only with `ambient: allow`.

use std::time::Duration;

use aws_config::BehaviorVersion;
use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_credential_types::Credentials;
use aws_credential_types::provider::ProvideCredentials as _;
use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_sts::config::Region;
use crcr_aws::credentials::with_sendable_credentials;
use crcr_aws::sdk_error::sdk_cause;

use crate::cli::oidc::ConfigureArgs;
use crate::commands::oidc::inputs;
use crate::commands::oidc::unsupported_inputs::invalid;
use crate::failure::Failure;

pub struct AmbientCredentials {
    pub credentials: Credentials,
    pub account: String,
    pub arn: String,
}

/// Gets credentials from the AWS SDK's default chain, and their identity from STS.
///
/// Fails if there are none, or if they are refused or belong to another account.
pub async fn find(args: &ConfigureArgs) -> Result<AmbientCredentials, Failure> {
    let limit = Duration::from_secs(args.timeout);
    tokio::time::timeout(limit, ask(args)).await.unwrap_or_else(|_| {
        let seconds = args.timeout;
        Err(invalid(format!("the machine's credentials took longer than {seconds} s")))
    })
}

async fn ask(args: &ConfigureArgs) -> Result<AmbientCredentials, Failure> {
    let mut loader = aws_config::defaults(BehaviorVersion::latest())
        .retry_config(RetryConfig::standard().with_max_attempts(3))
        .timeout_config(
            TimeoutConfig::builder()
                .operation_attempt_timeout(Duration::from_secs(10))
                .connect_timeout(Duration::from_secs(3))
                .build(),
        );
    if let Some(region) = args.aws_region.as_deref() {
        loader = loader.region(Region::new(region.trim().to_owned()));
    }
    if let Some(text) = args.sts_endpoint.as_deref() {
        let endpoint = inputs::endpoint("sts-endpoint", text)?;
        loader = loader.endpoint_url(endpoint.as_str().trim_end_matches('/'));
    }
    let config = with_sendable_credentials(loader.load().await);
    let none = || invalid("the machine has no AWS credentials");
    let provider = config.credentials_provider().ok_or_else(none)?;
    let credentials = provider.provide_credentials().await.map_err(|error| match &error {
        CredentialsError::CredentialsNotLoaded(..) => none(),
        // A place for credentials is configured, and gave none.
        error => none().because(anyhow::Error::msg(sdk_cause(error))),
    })?;
    if config.region().is_none() {
        return Err(invalid("the input `aws-region` is empty, and the machine names no region"));
    }
    let identity = aws_sdk_sts::Client::new(&config).get_caller_identity().send().await;
    let identity = identity.map_err(|e| {
        let why = crcr_aws::object_store::reason(&e);
        invalid("AWS doesn't know the machine's credentials").because(anyhow::anyhow!(why))
    })?;
    let (account, arn) =
        (identity.account().unwrap_or_default(), identity.arn().unwrap_or_default());
    inputs::allow_account(account, &args.allowed_account_ids)?;
    Ok(AmbientCredentials { credentials, account: account.to_owned(), arn: arn.to_owned() })
}
