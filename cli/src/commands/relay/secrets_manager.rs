//! Reads settings from AWS Secrets Manager with one signed `GetSecretValue` call.
//!
//! <https://docs.aws.amazon.com/secretsmanager/latest/apireference/API_GetSecretValue.html>

use std::collections::BTreeMap;
use std::time::SystemTime;

use aws_credential_types::provider::ProvideCredentials as _;
use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningSettings, sign};
use aws_sigv4::sign::v4;
use serde::Deserialize;

use crate::env_vars::{self, Env};
use crate::failure::Failure;

/// A secret has at most 64 KiB.
const MAX_RESPONSE_BYTES: usize = 256 * 1024;

#[derive(Deserialize)]
struct SecretValue {
    #[serde(rename = "SecretString")]
    secret: String,
}

/// The settings in the secret `SECRET_STORE_ARN`, which is JSON. Empty if the variable isn't set.
pub async fn fetch(env: &Env) -> Result<BTreeMap<String, String>, Failure> {
    let Some(arn) = env.get(env_vars::SECRET_STORE_ARN) else { return Ok(BTreeMap::new()) };
    let failure = |what: &str| {
        Failure::unexpected("secret-store", format!("the secret `{arn}` can't be read: {what}"))
            .hint(
                "check SECRET_STORE_ARN, and that the role may call secretsmanager:GetSecretValue",
            )
    };
    let (region, suffix) = region_and_host_suffix(arn)
        .ok_or_else(|| failure("it isn't the ARN of a secret in a known AWS partition"))?;
    let endpoint = match env.get(env_vars::AWS_ENDPOINT_URL_SECRETS_MANAGER) {
        Some(endpoint) => endpoint.to_owned(),
        None => format!("https://secretsmanager.{region}.{suffix}/"),
    };
    let config = aws_config::load_defaults(aws_config::BehaviorVersion::latest()).await;
    let provider = config.credentials_provider().ok_or_else(|| failure("no AWS credentials"))?;
    let identity = provider
        .provide_credentials()
        .await
        .map_err(|error| failure("no AWS credentials").because(error))?
        .into();
    let body = serde_json::json!({ "SecretId": arn }).to_string();
    let headers = [
        ("content-type", "application/x-amz-json-1.1"),
        ("x-amz-target", "secretsmanager.GetSecretValue"),
    ];
    let parameters = v4::SigningParams::builder()
        .identity(&identity)
        .region(region)
        .name("secretsmanager")
        .time(SystemTime::now())
        .settings(SigningSettings::default())
        .build()
        .map_err(|error| failure("the request can't be signed").because(error))?;
    let signable = SignableRequest::new(
        "POST",
        endpoint.as_str(),
        headers.into_iter(),
        SignableBody::Bytes(body.as_bytes()),
    )
    .map_err(|error| failure("the request can't be signed").because(error))?;
    let (signed, _) = sign(signable, &parameters.into())
        .map_err(|error| failure("the request can't be signed").because(error))?
        .into_parts();
    let (signed_headers, _) = signed.into_parts();
    let client =
        crcr_github::http::client().map_err(|error| failure("no client").because(error))?;
    let request = || {
        let mut request = client.post(&endpoint).body(body.clone());
        for (name, value) in headers {
            request = request.header(name, value);
        }
        for header in &signed_headers {
            request = request.header(header.name(), header.value());
        }
        request
    };
    let sent = crcr_github::http::send(crcr_github::http::RetryPolicy::default(), request)
        .await
        .map_err(|error| failure("AWS refused").because(error))?;
    let response: SecretValue = crcr_github::http::read_json(sent, MAX_RESPONSE_BYTES)
        .await
        .map_err(|_| failure("the response isn't a secret"))?;
    // The parser's message may quote the secret, so it isn't printed.
    serde_json::from_str(&response.secret)
        .map_err(|_| failure("it isn't a JSON object with string values"))
}

/// The region of an ARN, and the host suffix of its partition.
///
/// <https://docs.aws.amazon.com/whitepapers/latest/aws-fault-isolation-boundaries/partitions.html>
fn region_and_host_suffix(arn: &str) -> Option<(&str, &'static str)> {
    let mut parts = arn.split(':');
    let (Some("arn"), Some(partition), Some("secretsmanager"), Some(region)) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return None;
    };
    let suffix = match partition {
        "aws" | "aws-us-gov" => "amazonaws.com",
        "aws-cn" => "amazonaws.com.cn",
        "aws-eusc" => "amazonaws.eu",
        "aws-iso" => "c2s.ic.gov",
        "aws-iso-b" => "sc2s.sgov.gov",
        "aws-iso-e" => "cloud.adc-e.uk",
        "aws-iso-f" => "csp.hci.ic.gov",
        _ => return None,
    };
    let is_valid = region.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    (is_valid && !region.is_empty()).then_some((region, suffix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_endpoint_follows_the_partition_of_the_arn() {
        for (arn, found) in [
            ("arn:aws:secretsmanager:us-east-1:1:secret:a", Some(("us-east-1", "amazonaws.com"))),
            (
                "arn:aws-cn:secretsmanager:cn-north-1:1:secret:a",
                Some(("cn-north-1", "amazonaws.com.cn")),
            ),
            (
                "arn:aws-iso:secretsmanager:us-iso-east-1:1:secret:a",
                Some(("us-iso-east-1", "c2s.ic.gov")),
            ),
            ("arn:aws:s3:us-east-1:1:a", None),
            ("arn:aws:secretsmanager::1:secret:a", None),
            ("arn:aws:secretsmanager:evil.example/:1:secret:a", None),
            ("arn:elsewhere:secretsmanager:us-east-1:1:secret:a", None),
            ("crcr-relay", None),
        ] {
            assert_eq!(region_and_host_suffix(arn), found, "{arn}");
        }
    }
}
