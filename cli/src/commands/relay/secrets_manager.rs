//! Reads settings from AWS Secrets Manager.

use std::collections::BTreeMap;
use std::time::Duration;

use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region};
use aws_sdk_secretsmanager::{Client, config};
use crcr_aws::credentials::with_sendable_credentials;

use crate::env_vars::{self, Env};
use crate::failure::Failure;

/// All tries together. Whoever starts the relay waits for it.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// The settings in the secret `SECRET_STORE_ARN`, which is JSON. Empty if the variable isn't set.
pub async fn fetch(env: &Env) -> Result<BTreeMap<String, String>, Failure> {
    let Some(arn) = env.get(env_vars::SECRET_STORE_ARN) else { return Ok(BTreeMap::new()) };
    let failure = |what: &str| {
        Failure::unexpected("secret-store", format!("the secret `{arn}` can't be read: {what}"))
            .hint(
                "check SECRET_STORE_ARN, and that the role may call secretsmanager:GetSecretValue",
            )
    };
    let region = region_of(arn).ok_or_else(|| failure("it isn't the ARN of a secret"))?;
    let timeouts = TimeoutConfig::builder().operation_timeout(CALL_TIMEOUT).build();
    let shared = aws_config::defaults(BehaviorVersion::latest())
        .region(Region::new(region.to_owned()))
        .timeout_config(timeouts)
        .load()
        .await;
    let mut own = config::Builder::from(&with_sendable_credentials(shared));
    if let Some(endpoint) = env.get(env_vars::AWS_ENDPOINT_URL_SECRETS_MANAGER) {
        own = own.endpoint_url(endpoint);
    }
    let asked = Client::from_conf(own.build()).get_secret_value().secret_id(arn);
    let found = asked.send().await.map_err(|error| {
        let is_answer = error.as_service_error().is_some();
        let what = if is_answer { "AWS refused" } else { "AWS can't be asked" };
        // What is between says only which layer of the SDK passed it on.
        failure(what).because(anyhow::Error::msg(crcr_github::http::root_cause(&error)))
    })?;
    let text = found.secret_string().ok_or_else(|| failure("it has no text"))?;
    // The parser's message may quote the secret, so it isn't printed.
    serde_json::from_str(text).map_err(|_| failure("it isn't a JSON object with string values"))
}

/// The region of a secret's ARN, if it can be a part of a host's name.
fn region_of(arn: &str) -> Option<&str> {
    let mut parts = arn.split(':');
    let is_arn = parts.next() == Some("arn")
        && parts.next().is_some_and(|partition| partition.starts_with("aws"))
        && parts.next() == Some("secretsmanager");
    let region = parts.next().filter(|_| is_arn)?;
    let is_valid = region.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    (is_valid && !region.is_empty()).then_some(region)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn region_of_a_secret_is_that_of_its_arn_in_every_partition() {
        for (arn, found) in [
            ("arn:aws:secretsmanager:us-east-1:1:secret:a", Some("us-east-1")),
            ("arn:aws-cn:secretsmanager:cn-north-1:1:secret:a", Some("cn-north-1")),
            ("arn:aws-iso:secretsmanager:us-iso-east-1:1:secret:a", Some("us-iso-east-1")),
            ("arn:aws:s3:us-east-1:1:a", None),
            ("arn:aws:secretsmanager::1:secret:a", None),
            ("arn:aws:secretsmanager:evil.example/:1:secret:a", None),
            ("arn:elsewhere:secretsmanager:us-east-1:1:secret:a", None),
            ("crcr-relay", None),
        ] {
            assert_eq!(region_of(arn), found, "{arn}");
        }
    }
}
