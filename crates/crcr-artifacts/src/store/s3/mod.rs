//! Artifacts in a bucket of S3, or of another server that speaks its protocol.

mod credentials;
pub mod download;
mod refusal;
mod upload;
mod wire;

use std::time::Duration;

use aws_credential_types::provider::SharedCredentialsProvider;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::interceptors::BeforeTransmitInterceptorContextMut;
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::config::{
    BehaviorVersion, Builder, ConfigBag, IdentityCache, Intercept, Region,
    RequestChecksumCalculation, ResponseChecksumValidation, RuntimeComponents, SharedHttpClient,
    StalledStreamProtectionConfig,
};
use aws_sdk_s3::error::BoxError;
use aws_sdk_s3::presigning::PresigningConfig;
use aws_smithy_http_client::proxy::ProxyConfig;
use aws_smithy_http_client::tls::Provider;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_http_client::{Builder as HttpBuilder, Connector};
use secrecy::SecretString;
use url::Url;

use self::credentials::CachedCredentials;
pub use self::refusal::S3Refusal;
use self::refusal::{one_line, root_cause};
use self::wire::SignedClient;
pub use self::wire::signature;
use crate::store::StoreError;

/// What messages call this store.
pub const STORE: &str = "S3";
/// The header that tells where a bucket is, even to those it refuses.
const REGION_HEADER: &str = "x-amz-bucket-region";
/// Says that the requester pays.
const REQUESTER_PAYS: (&str, &str) = ("x-amz-request-payer", "requester");
/// Connections that are kept open between requests.
const MAX_IDLE_CONNECTIONS: usize = 64;

/// Where the bucket is and who asks.
#[derive(Debug, Clone)]
pub struct S3Config {
    pub bucket: String,
    /// Its region; asked for where it isn't given.
    pub region: Option<String>,
    /// Another server than Amazon's; keys then follow the bucket in the path.
    pub endpoint: Option<Url>,
    pub access: S3Access,
    /// Whether Amazon's endpoints with FIPS-validated cryptography are used.
    pub fips: bool,
    /// Whether Amazon's endpoints that have IPv6 addresses too are used.
    pub dual_stack: bool,
    /// Whether what is sent carries a CRC-64/NVME, which some other servers refuse.
    pub checksum: bool,
    /// Headers of every new object, such as `x-amz-acl`: some buckets' policies demand them.
    pub object_headers: Vec<(&'static str, String)>,
    /// Whether the account of the credentials pays for requests, not the bucket's owner.
    pub requester_pays: bool,
    /// How long the server may be silent before a request counts as broken.
    pub silence: Duration,
}

#[derive(Debug, Clone)]
pub enum S3Access {
    /// Nobody: requests are not signed.
    Anonymous,
    /// Whatever the machine has: profiles, container and instance roles.
    Ambient,
    /// These credentials, which may renew themselves while a long upload goes on.
    Given(SharedCredentialsProvider),
}

/// A bucket, ready to be read and written.
#[derive(Debug, Clone)]
pub struct S3Store {
    client: Client,
    wire: SignedClient,
    config: S3Config,
    region: String,
}

impl S3Store {
    /// Prepares the client. Only a region that isn't given costs a request, and ambient credentials
    /// may; whether the bucket is there shows at the first use.
    ///
    /// Fails with [`StoreError::MissingBucket`] when the request for the region says so.
    pub async fn connect(config: S3Config) -> Result<Self, StoreError> {
        let region = match (arn_region(&config.bucket), &config.region) {
            (Some(region), _) => region.to_owned(),
            (None, Some(region)) => region.clone(),
            (None, None) => discover_region(&config).await?,
        };
        let credentials = credentials(&config.access, &region).await.map(CachedCredentials::new);
        let wire = SignedClient::new(&config, &region, credentials.clone()).await?;
        Ok(Self { client: client(&config, &region, credentials), wire, config, region })
    }

    /// The same bucket in the region that a refusal named; asked for where it named none.
    pub async fn in_region(&self, there: Option<String>) -> Result<Self, StoreError> {
        Self::connect(S3Config { region: there, ..self.config.clone() }).await
    }

    /// The client of the SDK.
    pub fn client(&self) -> &Client {
        &self.client
    }

    pub fn bucket(&self) -> &str {
        &self.config.bucket
    }

    pub fn region(&self) -> &str {
        &self.region
    }

    /// The server, where it isn't Amazon's.
    pub fn endpoint(&self) -> Option<&Url> {
        self.config.endpoint.as_ref()
    }

    /// Whether the bytes travel over TLS, so that the payload needs no signature of its own.
    pub fn is_secure(&self) -> bool {
        self.config.endpoint.as_ref().is_none_or(|url| url.scheme() == "https")
    }

    /// An address that gives the object to anybody, as long as `validity` and as the credentials last.
    pub async fn presigned(
        &self,
        key: &str,
        validity: Duration,
    ) -> Result<SecretString, StoreError> {
        let refused = |message: String| StoreError::Refused { store: STORE, message };
        let config = PresigningConfig::expires_in(validity).map_err(|e| refused(e.to_string()))?;
        let get = self.client().get_object().bucket(self.bucket()).key(key).presigned(config);
        let request = get.await.map_err(|e| self.error(&e, key))?;
        Ok(request.uri().to_owned().into())
    }

    /// What a failed request means.
    pub fn error(&self, refusal: impl Into<S3Refusal>, what: &str) -> StoreError {
        let refusal = refusal.into();
        if let Some(there) = wrong_region(&refusal, &self.region) {
            let (bucket, asked) = (self.config.bucket.clone(), self.region.clone());
            return StoreError::WrongRegion { bucket, asked, there };
        }
        let S3Refusal { status, code, message, not_sent, .. } = &refusal;
        let text = |word: &str| {
            let code = code.as_deref().unwrap_or(word);
            if message.is_empty() { code.to_owned() } else { format!("{code}: {message}") }
        };
        match (code.as_deref().unwrap_or_default(), status) {
            ("NoSuchBucket", _) => StoreError::MissingBucket(self.config.bucket.clone()),
            (_, Some(429 | 500 | 502..=599)) | ("SlowDown" | "RequestTimeout", _) => {
                StoreError::Unreachable { store: STORE, message: text("no answer") }
            }
            (_, Some(401 | 403))
            | ("ExpiredToken" | "InvalidToken" | "TokenRefreshRequired", _) => StoreError::Denied {
                store: STORE,
                message: format!("{} for `{what}`", text("403")),
            },
            // A HEAD is refused without a body. Of what it can ask for, only the credentials can be
            // wrong in a way that is a 400: expired, mostly.
            ("", Some(400)) if message.is_empty() => {
                let message = format!("400 without a reason for `{what}`");
                StoreError::Denied { store: STORE, message }
            }
            ("NoSuchKey" | "NoSuchUpload" | "NotFound", _) | (_, Some(404)) => {
                StoreError::NotFound { store: STORE, what: format!("`{what}`") }
            }
            (_, Some(status)) => {
                let message = format!("{} for `{what}`", text(&status.to_string()));
                StoreError::Refused { store: STORE, message }
            }
            (_, None) if *not_sent => StoreError::Denied { store: STORE, message: message.clone() },
            (_, None) => StoreError::Unreachable { store: STORE, message: message.clone() },
        }
    }
}

/// The bucket's own region, as far as the server names it, where it isn't `asked`, to which the
/// request went. The refusal of a HEAD has no body, so no code: status and header tell then.
fn wrong_region(refusal: &S3Refusal, asked: &str) -> Option<Option<String>> {
    let there = refusal.region.as_deref().filter(|region| *region != asked);
    let elsewhere = match refusal.status? {
        301 => true,
        307 | 400 => there.is_some(),
        _ => false,
    };
    let code = refusal.code.as_deref();
    let told = matches!(code, Some("PermanentRedirect" | "AuthorizationHeaderMalformed"));
    (elsewhere || told).then(|| there.map(str::to_owned))
}

/// The region of an access point, which is in its ARN; `None` for a bucket's name.
fn arn_region(bucket: &str) -> Option<&str> {
    let mut parts = bucket.strip_prefix("arn:")?.split(':');
    Some(parts.nth(2).unwrap_or_default())
}

/// Who provides the credentials, if requests have any.
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
    let retries = RetryConfig::standard()
        .with_max_attempts(5)
        .with_initial_backoff(Duration::from_millis(250))
        .with_max_backoff(Duration::from_secs(8));
    let mut builder = Builder::new()
        .behavior_version(BehaviorVersion::latest())
        .use_fips(config.fips)
        .use_dual_stack(config.dual_stack)
        .region(Region::new(region.to_owned()))
        .http_client(http_client())
        .timeout_config(timeouts)
        .retry_config(retries)
        .stalled_stream_protection(stalls.build())
        .identity_cache(IdentityCache::no_cache())
        // The upload brings its own checksums; other servers refuse those that the SDK adds.
        .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
        .response_checksum_validation(ResponseChecksumValidation::WhenRequired);
    if config.requester_pays {
        builder = builder.interceptor(RequesterPays);
    }
    if let Some(endpoint) = &config.endpoint {
        builder = builder.endpoint_url(with_slash(endpoint)).force_path_style(true);
    }
    builder = match credentials {
        Some(credentials) => builder.credentials_provider(credentials),
        None => builder.allow_no_auth(),
    };
    Client::from_conf(builder.build())
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

/// The endpoint as the SDK takes it: without a slash at the end it joins the bucket to a path.
fn with_slash(endpoint: &Url) -> String {
    format!("{}/", endpoint.as_str().trim_end_matches('/'))
}

/// The SDK's own client, with the proxies of the environment and a larger pool.
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

/// Asks the bucket where it is, without credentials: the header comes with a refusal too. A server
/// that doesn't say (others than Amazon's) is taken for `us-east-1`.
async fn discover_region(config: &S3Config) -> Result<String, StoreError> {
    const DEFAULT: &str = "us-east-1";
    let answer = client(config, DEFAULT, None).head_bucket().bucket(&config.bucket).send().await;
    let error = match answer {
        Ok(output) => return Ok(output.bucket_region().unwrap_or(DEFAULT).to_owned()),
        Err(error) => error,
    };
    let Some(response) = error.raw_response() else {
        return Err(StoreError::Unreachable {
            store: STORE,
            message: one_line(&root_cause(&error)),
        });
    };
    match response.headers().get(REGION_HEADER) {
        Some(region) => Ok(region.to_owned()),
        None if response.status().as_u16() == 404 => {
            Err(StoreError::MissingBucket(config.bucket.clone()))
        }
        None => Ok(DEFAULT.to_owned()),
    }
}
