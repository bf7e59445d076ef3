//! Artifacts in a bucket of S3, or of another server that speaks its protocol.

mod credentials;
pub mod download;
mod refusal;
mod upload;
mod wire;

use std::time::Duration;

use aws_credential_types::provider::SharedCredentialsProvider;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::config::interceptors::{
    BeforeDeserializationInterceptorContextMut, BeforeTransmitInterceptorContextMut,
};
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::config::{
    BehaviorVersion, Builder, ConfigBag, IdentityCache, Intercept, Region,
    RequestChecksumCalculation, ResponseChecksumValidation, RuntimeComponents, SharedHttpClient,
    StalledStreamProtectionConfig,
};
use aws_sdk_s3::error::{BoxError, ProvideErrorMetadata, SdkError};
use aws_sdk_s3::operation::head_object::HeadObjectOutput;
use aws_sdk_s3::presigning::PresigningConfig;
use aws_smithy_http_client::proxy::ProxyConfig;
use aws_smithy_http_client::tls::Provider;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_http_client::{Builder as HttpBuilder, Connector};
use crcr_aws::credentials::can_be_sent;
pub use crcr_aws::object_store::is_path_style;
use crcr_github::http::RetryPolicy;
use secrecy::SecretString;
use url::Url;

use self::credentials::CachedCredentials;
pub use self::credentials::CredentialsOutage;
pub use self::refusal::{S3Refusal, SKEWED};
use self::wire::SignedClient;
pub use self::wire::{SigningScope, signature};
use crate::store::{ArtifactStoreError, SLOW_CONNECTION};

pub const STORE: &str = "S3";
/// How a redirect reads.
pub const LEADS_TO: &str = "it leads to";
/// How the refusal of a request reads that wasn't sent, mostly for lack of credentials.
pub const NOT_SIGNED: &str = "no request could be signed";
/// Names the bucket's region, even in the response to a refused request.
const REGION_HEADER: &str = "x-amz-bucket-region";
/// The status of an answer that [`NotOfS3`] turned into an error.
const ORIGINAL_STATUS_HEADER: &str = "crcr-original-status";
const REQUESTER_PAYS: (&str, &str) = ("x-amz-request-payer", "requester");
const MAX_IDLE_CONNECTIONS: usize = 64;
/// Parallel requests on a connection with high latency.
const MAX_REQUESTS: usize = 448;

#[derive(Debug, Clone)]
pub struct S3Config {
    pub bucket: String,
    /// `None`: ask the server.
    pub region: Option<String>,
    /// Set for another server than Amazon's.
    pub endpoint: Option<Url>,
    pub access: S3Access,
    pub fips: bool,
    /// Use Amazon's dual-stack endpoints (IPv4 and IPv6).
    pub dual_stack: bool,
    /// Send a CRC-64/NVME with every object, which some other servers refuse.
    pub checksum: bool,
    /// Headers of every new object, such as `x-amz-acl`: some buckets' policies require them.
    pub object_headers: Vec<(&'static str, String)>,
    /// The account of the credentials pays for requests, not the bucket's owner.
    pub requester_pays: bool,
    /// A request fails after this time without a byte from the server.
    pub silence: Duration,
    /// How long an outage may last.
    pub retry: RetryPolicy,
}

/// How long an upload of `size` bytes waits for S3 before it goes elsewhere: as long as it would take
/// to send the bytes to the other store, at 10 MiB a second, and never less than half a minute.
pub fn patience_before_fallback(size: u64) -> Duration {
    const BYTES_PER_SECOND: u64 = 10 * 1024 * 1024;
    let seconds = 40_u64.saturating_add(size / BYTES_PER_SECOND);
    Duration::from_secs(seconds).min(RetryPolicy::PATIENT.total)
}

#[derive(Debug, Clone)]
pub enum S3Access {
    /// Requests are not signed.
    Anonymous,
    /// Whatever the machine has: profiles, container and instance roles.
    Ambient,
    /// Provided credentials, which may be renewed during a long upload.
    Given(SharedCredentialsProvider),
}

#[derive(Debug, Clone)]
pub struct S3Store {
    client: Client,
    wire: SignedClient,
    config: S3Config,
    region: String,
}

impl S3Store {
    /// Prepares the clients. The server is asked only for the region if that isn't configured, so a
    /// missing bucket may show only at the first use.
    pub async fn connect(config: S3Config) -> Result<Self, ArtifactStoreError> {
        let region = match (arn_region(&config.bucket), &config.region) {
            (Some(region), _) => region.to_owned(),
            (None, Some(region)) => region.clone(),
            (None, None) => discover_region(&config).await?,
        };
        if !can_be_sent(&region) {
            let message = format!("`{}` isn't a region", region.escape_debug());
            return Err(ArtifactStoreError::Refused { store: STORE, message });
        }
        let credentials = credentials(&config.access, &region).await.map(CachedCredentials::new);
        let wire = SignedClient::new(&config, &region, credentials.clone()).await?;
        Ok(Self { client: client(&config, &region, credentials), wire, config, region })
    }

    /// The same bucket in another region; `None` asks the server for the region.
    pub(crate) async fn in_region(
        &self,
        region: Option<String>,
    ) -> Result<Self, ArtifactStoreError> {
        Self::connect(S3Config { region, ..self.config.clone() }).await
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Sends what `request` builds, again during an outage.
    pub(crate) async fn send<T, E, F>(&self, request: impl Fn() -> F) -> Result<T, S3Refusal>
    where
        F: Future<Output = Result<T, SdkError<E, HttpResponse>>>,
        E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
    {
        send_with_retries(self.config.retry, request).await
    }

    pub(crate) async fn head(&self, key: &str) -> Result<HeadObjectOutput, ArtifactStoreError> {
        let head = || {
            let head = self.client().head_object().bucket(self.bucket()).key(key);
            head.customize().interceptor(WITHOUT_ETAG).send()
        };
        self.send(head).await.map_err(|refusal| self.error(refusal, key))
    }

    pub(crate) fn retry(&self) -> RetryPolicy {
        self.config.retry
    }

    pub fn bucket(&self) -> &str {
        &self.config.bucket
    }

    pub fn region(&self) -> &str {
        &self.region
    }

    pub fn endpoint(&self) -> Option<&Url> {
        self.config.endpoint.as_ref()
    }

    /// Over TLS the signature needn't cover the payload.
    pub(crate) fn is_secure(&self) -> bool {
        self.config.endpoint.as_ref().is_none_or(|url| url.scheme() == "https")
    }

    /// A presigned URL, valid for `validity` but not longer than the credentials.
    pub(crate) async fn presigned(
        &self,
        key: &str,
        validity: Duration,
    ) -> Result<SecretString, ArtifactStoreError> {
        let refused = |message: String| ArtifactStoreError::Refused { store: STORE, message };
        let config = PresigningConfig::expires_in(validity).map_err(|e| refused(e.to_string()))?;
        let get = self.client().get_object().bucket(self.bucket()).key(key).presigned(config);
        let request = get.await.map_err(|e| self.error(&e, key))?;
        Ok(request.uri().to_owned().into())
    }

    /// Converts the error of a request; `what` is usually the key.
    pub fn error(&self, refusal: impl Into<S3Refusal>, what: &str) -> ArtifactStoreError {
        let refusal = refusal.into();
        if let Some(actual) = wrong_region(&refusal, &self.region) {
            let (bucket, requested) = (self.config.bucket.clone(), self.region.clone());
            return ArtifactStoreError::WrongRegion { bucket, requested, actual };
        }
        let S3Refusal { status, code, message, not_sent, .. } = &refusal;
        let leads_to = refusal.location.as_ref().map(|to| format!("{LEADS_TO} `{to}`"));
        let text = |word: &str| {
            let code = code.as_deref().unwrap_or(word);
            match (message.is_empty(), &leads_to) {
                (false, _) => format!("{code}: {}", message.trim_end_matches('.')),
                (true, Some(leads_to)) => format!("{code}: {leads_to}"),
                (true, None) => code.to_owned(),
            }
        };
        match (code.as_deref().unwrap_or_default(), status) {
            ("NoSuchBucket" | "NoSuchAccessPoint", _) => {
                ArtifactStoreError::MissingBucket(self.config.bucket.clone())
            }
            _ if refusal.is_transient() => {
                let message = match refusal.status {
                    Some(status) if refusal.is_web_page => {
                        let leads_to = leads_to.as_deref().map(|to| format!("; {to}"));
                        format!("{}{}", not_of_s3(status), leads_to.unwrap_or_default())
                    }
                    Some(status) => text(&status.to_string()),
                    None if refusal.is_timeout => format!("{message}; {SLOW_CONNECTION}"),
                    None => message.clone(),
                };
                let history = refusal.history.as_ref().map(|history| format!(" ({history})"));
                let message = format!("{message}{}", history.unwrap_or_default());
                ArtifactStoreError::Unreachable { store: STORE, message }
            }
            (_, Some(401 | 403))
            | ("AccessDenied" | "ExpiredToken" | "InvalidToken" | "TokenRefreshRequired", _) => {
                ArtifactStoreError::Denied {
                    store: STORE,
                    message: format!("{} for `{what}`", text(&status.unwrap_or(403).to_string())),
                }
            }
            // Cloudflare's R2 refuses each request without a signature like this, even for a public bucket.
            (_, Some(400)) if matches!(self.config.access, S3Access::Anonymous) => {
                let message =
                    format!("without a signature it answers {} for `{what}`", text("400"));
                ArtifactStoreError::Denied { store: STORE, message }
            }
            // The response to a HEAD has no body. A 400 then means bad credentials, mostly expired
            // ones, because nothing else in our HEAD requests can be malformed.
            ("", Some(400)) if message.is_empty() => {
                let message = format!("400 without a reason for `{what}`");
                ArtifactStoreError::Denied { store: STORE, message }
            }
            // A 404 with another code isn't about the object, such as versitygw's for an unknown access key.
            ("NoSuchKey" | "NoSuchUpload" | "NotFound", _) | ("", Some(404)) => {
                ArtifactStoreError::NotFound { store: STORE, what: format!("`{what}`") }
            }
            (_, Some(status)) => {
                let message = format!("{} for `{what}`", text(&status.to_string()));
                ArtifactStoreError::Refused { store: STORE, message }
            }
            (_, None) if *not_sent => ArtifactStoreError::Denied {
                store: STORE,
                message: format!("{NOT_SIGNED}: {message}"),
            },
            (_, None) => ArtifactStoreError::Unreachable { store: STORE, message: message.clone() },
        }
    }
}

/// `Some` if the request went to the wrong region; inside, the right one if the server names it. The
/// response to a HEAD has no body and so no error code: status and header have to be enough.
fn wrong_region(refusal: &S3Refusal, requested: &str) -> Option<Option<String>> {
    let actual = refusal.region.as_deref().filter(|region| *region != requested);
    let is_wrong_by_status = match refusal.status? {
        // A server, or what is before it, that wants TLS or has moved.
        301 if refusal.is_web_page || refusal.location.is_some() => actual.is_some(),
        301 => true,
        307 | 400 => actual.is_some(),
        _ => false,
    };
    // The last is of regions that an account has to opt in to.
    let codes =
        ["PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"];
    let is_wrong =
        is_wrong_by_status || refusal.code.as_deref().is_some_and(|code| codes.contains(&code));
    is_wrong.then(|| actual.map(str::to_owned))
}

/// The region in the ARN of an access point; `None` for a bucket's name.
fn arn_region(bucket: &str) -> Option<&str> {
    let mut parts = bucket.strip_prefix("arn:")?.split(':');
    Some(parts.nth(2).unwrap_or_default())
}

async fn credentials(access: &S3Access, region: &str) -> Option<SharedCredentialsProvider> {
    match access {
        S3Access::Anonymous => None,
        S3Access::Given(provider) => Some(provider.clone()),
        S3Access::Ambient => {
            let chain =
                aws_config::default_provider::credentials::DefaultCredentialsChain::builder()
                    .region(Region::new(region.to_owned()))
                    .build()
                    .await;
            Some(SharedCredentialsProvider::new(chain))
        }
    }
}

fn client(config: &S3Config, region: &str, credentials: Option<CachedCredentials>) -> Client {
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(Duration::from_secs(10))
        .read_timeout(config.silence)
        .build();
    let stalls = StalledStreamProtectionConfig::enabled().grace_period(config.silence);
    let mut builder = Builder::new()
        .behavior_version(BehaviorVersion::latest())
        .use_fips(config.fips)
        .use_dual_stack(config.dual_stack)
        .region(Region::new(region.to_owned()))
        .http_client(http_client())
        .timeout_config(timeouts)
        // The SDK counts its tries, and we go by time.
        .retry_config(RetryConfig::disabled())
        .stalled_stream_protection(stalls.build())
        .identity_cache(IdentityCache::no_cache())
        // The upload computes its own checksums; other servers refuse those that the SDK adds.
        .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
        .response_checksum_validation(ResponseChecksumValidation::WhenRequired);
    builder = builder.interceptor(WEB_PAGE);
    if config.requester_pays {
        builder = builder.interceptor(RequesterPays);
    }
    if let Some(endpoint) = &config.endpoint {
        builder =
            builder.endpoint_url(with_slash(endpoint)).force_path_style(is_path_style(endpoint));
    }
    builder = match credentials {
        Some(credentials) => builder.credentials_provider(credentials),
        None => builder.allow_no_auth(),
    };
    Client::from_conf(builder.build())
}

/// Turns an answer for which the function is true into an error: it is of something in between, and says nothing about
/// the object.
#[derive(Debug)]
struct NotOfS3(fn(&HttpResponse) -> bool);

/// A proxy's web page with a good status. The answer to a HEAD has no body that would give it away.
const WEB_PAGE: NotOfS3 = NotOfS3(|response| {
    let header = |name| response.headers().get(name).unwrap_or_default();
    // An artifact may be a web page, and has an ETag then.
    let is_page = header("content-type").to_ascii_lowercase().starts_with("text/html");
    // Some servers call 204, which has no body, a page, too.
    let has_body = response.status().as_u16() != 204;
    is_page && has_body && response.status().is_success() && header("etag").is_empty()
});

/// A good answer about an object without its version, which each S3 server names.
const WITHOUT_ETAG: NotOfS3 = NotOfS3(|response| {
    let etag = response.headers().get("etag").unwrap_or_default();
    response.status().is_success() && etag.is_empty()
});

/// A 403 without a body. To all requests but HEAD, S3 gives a reason with it.
const WITHOUT_REASON: NotOfS3 = NotOfS3(|response| {
    response.status().as_u16() == 403 && response.headers().get("content-length") == Some("0")
});

impl Intercept for NotOfS3 {
    fn name(&self) -> &'static str {
        "NotOfS3"
    }

    fn modify_before_deserialization(
        &self,
        context: &mut BeforeDeserializationInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let response = context.response_mut();
        if (self.0)(response) {
            let status = response.status().as_u16().to_string();
            response.headers_mut().insert(ORIGINAL_STATUS_HEADER, status);
            *response.status_mut() = 502.try_into()?;
        }
        Ok(())
    }
}

/// Adds the header that every request to a requester-pays bucket needs.
/// <https://docs.aws.amazon.com/AmazonS3/latest/userguide/ObjectsinRequesterPaysBuckets.html>
#[derive(Debug)]
struct RequesterPays;

impl Intercept for RequesterPays {
    fn name(&self) -> &'static str {
        "RequesterPays"
    }

    fn modify_before_signing(
        &self,
        context: &mut BeforeTransmitInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let (name, value) = REQUESTER_PAYS;
        context.request_mut().headers_mut().try_insert(name, value)?;
        Ok(())
    }
}

async fn send_with_retries<T, E, F>(
    retry: RetryPolicy,
    request: impl Fn() -> F,
) -> Result<T, S3Refusal>
where
    F: Future<Output = Result<T, SdkError<E, HttpResponse>>>,
    E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
{
    let mut tries = retry.start();
    loop {
        let refusal = match request().await {
            Ok(answer) => return Ok(answer),
            Err(error) => S3Refusal::from(&error),
        };
        if !refusal.is_transient() || !tries.wait_to_retry(&refusal, refusal.retry_after).await {
            return Err(refusal.after(&tries));
        }
    }
}

/// The SDK needs the final slash: without it, it appends the bucket's name to the last part.
fn with_slash(endpoint: &Url) -> String {
    format!("{}/", endpoint.as_str().trim_end_matches('/'))
}

/// The SDK's HTTP client, with the proxies of the environment and more idle connections.
fn http_client() -> SharedHttpClient {
    HttpBuilder::new().pool_max_idle_per_host(MAX_IDLE_CONNECTIONS).build_with_connector_fn(
        |settings, components| {
            let mut connector = Connector::builder().proxy_config(ProxyConfig::from_env());
            if let Some(settings) = settings {
                connector = connector.connector_settings(settings.clone());
            }
            if let Some(components) = components {
                connector.set_sleep_impl(components.sleep_impl());
            }
            connector.tls_provider(Provider::Rustls(CryptoMode::AwsLc)).build()
        },
    )
}

/// Asks the server for the bucket's region, without credentials: even a refusal has the header. Servers
/// other than Amazon's may not send it, and `us-east-1` works for them.
async fn discover_region(config: &S3Config) -> Result<String, ArtifactStoreError> {
    const DEFAULT: &str = "us-east-1";
    let client = client(config, DEFAULT, None);
    let head = || client.head_bucket().bucket(&config.bucket).send();
    let refusal = match send_with_retries(config.retry, head).await {
        Ok(output) => return Ok(output.bucket_region().unwrap_or(DEFAULT).to_owned()),
        Err(refusal) => refusal,
    };
    let unreachable = |message: &str| {
        let history = refusal.history.as_ref().map(|history| format!(" ({history})"));
        let message = format!("{message}{}", history.unwrap_or_default());
        Err(ArtifactStoreError::Unreachable { store: STORE, message })
    };
    match (&refusal.region, refusal.status) {
        (_, None) => unreachable(&refusal.message),
        (Some(region), _) => Ok(region.clone()),
        (None, Some(404)) if refusal.is_web_page => unreachable(&not_of_s3(404)),
        (None, Some(404)) => Err(ArtifactStoreError::MissingBucket(config.bucket.clone())),
        (None, Some(_)) => Ok(DEFAULT.to_owned()),
    }
}

fn not_of_s3(status: u16) -> String {
    format!("something in between answered {status}, or the endpoint isn't that of S3")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_of_another_region_is_told_by_each_answer_that_s3_has_for_it() {
        let wrong = |status, code: Option<&str>, region: Option<&str>| {
            let (code, region) = (code.map(str::to_owned), region.map(str::to_owned));
            let refusal = S3Refusal { status: Some(status), code, region, ..S3Refusal::default() };
            wrong_region(&refusal, "us-east-1")
        };
        let there = Some(Some("me-south-1".to_owned()));
        assert_eq!(wrong(301, None, Some("me-south-1")), there);
        assert_eq!(wrong(307, Some("TemporaryRedirect"), Some("me-south-1")), there);
        assert_eq!(wrong(400, Some("AuthorizationHeaderMalformed"), Some("me-south-1")), there);
        assert_eq!(wrong(301, Some("PermanentRedirect"), None), Some(None));
        // Of a region that an account has to opt in to.
        assert_eq!(wrong(400, Some("IllegalLocationConstraintException"), None), Some(None));
        assert_eq!(wrong(400, Some("InvalidArgument"), None), None);
        let location = Some("https://minio.example.org/".to_owned());
        let moved = S3Refusal { status: Some(301), location, ..S3Refusal::default() };
        assert_eq!(wrong_region(&moved, "us-east-1"), None);
    }
}
