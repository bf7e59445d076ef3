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
    let region = arn
        .split(':')
        .nth(3)
        .filter(|region| !region.is_empty())
        .ok_or_else(|| failure("it is no ARN"))?;
    let endpoint = match env.get(env_vars::AWS_ENDPOINT_URL_SECRETS_MANAGER) {
        Some(endpoint) => endpoint.to_owned(),
        None => format!("https://secretsmanager.{region}.amazonaws.com/"),
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
