//! Settings from AWS Secrets Manager: one signed call, `GetSecretValue`.
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

/// The largest answer that is read, in bytes; a secret has 64 KiB at most.
const MAX_ANSWER: usize = 256 * 1024;

#[derive(Deserialize)]
struct Answer {
    #[serde(rename = "SecretString")]
    secret: String,
}

/// The settings that the secret `SECRET_STORE_ARN` holds as JSON; none when it isn't set.
pub async fn fetch(env: &Env) -> Result<BTreeMap<String, String>, Failure> {
    let Some(arn) = env.get(env_vars::SECRET_STORE_ARN) else { return Ok(BTreeMap::new()) };
    let failure = |what: &str| {
        Failure::unexpected("secret-store", format!("the secret `{arn}` can't be read: {what}"))
            .hint(
                "check SECRET_STORE_ARN, and that the role may call secretsmanager:GetSecretValue",
            )
    };
    let place = place(arn).ok_or_else(|| failure("it isn't an ARN of a partition of AWS"))?;
    let (region, suffix) = place;
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
        .map_err(|error| failure("it can't be signed for").because(error))?;
    let signable = SignableRequest::new(
        "POST",
        endpoint.as_str(),
        headers.into_iter(),
        SignableBody::Bytes(body.as_bytes()),
    )
    .map_err(|error| failure("it can't be signed for").because(error))?;
    let (signed, _) = sign(signable, &parameters.into())
        .map_err(|error| failure("it can't be signed for").because(error))?
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
    let response = crcr_github::http::send(crcr_github::http::Retry::default(), request)
        .await
        .map_err(|error| failure("AWS refused").because(error))?;
    let answer: Answer = crcr_github::http::read_json(response, MAX_ANSWER)
        .await
        .map_err(|_| failure("AWS answered with something else than a secret"))?;
    // The parser's words may quote the secret, so they are left out.
    serde_json::from_str(&answer.secret)
        .map_err(|_| failure("it isn't a JSON object of names and texts"))
}

/// The region of an ARN, and the suffix of the hosts of its partition.
///
/// <https://docs.aws.amazon.com/whitepapers/latest/aws-fault-isolation-boundaries/partitions.html>
fn place(arn: &str) -> Option<(&str, &'static str)> {
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
    let proper = region.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    (proper && !region.is_empty()).then_some((region, suffix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_asked_for_in_the_partition_of_its_arn() {
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
            assert_eq!(place(arn), found, "{arn}");
        }
    }
}
