//! Signs and sends `PutObject` and `UploadPart` without the SDK, which takes a third of a millisecond
//! of CPU for each request.
//!
//! Signature: <https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html>

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::time::SystemTime;

use aws_credential_types::Credentials;
use aws_sdk_s3::config::endpoint::{DefaultResolver, Params, ResolveEndpoint as _};
use aws_sigv4::http_request::{
    PayloadChecksumKind, PercentEncodingMode, SignableBody, SignableRequest, SigningSettings,
    UriPathNormalizationMode, sign,
};
use aws_sigv4::sign::v4;
use bytes::Bytes;
use crcr_github::http::{self, RetryPolicy, UploadClient};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{RequestBuilder, Response};

use super::credentials::CachedCredentials;
use super::refusal::S3Refusal;
use super::{MAX_REQUESTS, REQUESTER_PAYS, S3Config, STORE, is_path_style, with_slash};
use crate::digest::Digest;
use crate::store::ArtifactStoreError;
use crate::store::send::BlockPacing;

/// The characters that a signature doesn't percent-encode.
pub(crate) const UNRESERVED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
const UNRESERVED_AND_SLASH: &AsciiSet = &UNRESERVED.remove(b'/');

/// A checksum of the body, which Backblaze B2 refuses with 400.
pub(crate) const CHECKSUMS: u8 = 1;
/// `If-None-Match` and `If-Match`, which Backblaze B2 refuses with 501 and Alibaba's OSS with 400.
pub(crate) const CONDITIONS: u8 = 2;
/// The tag `retention-days`, for which Cloudflare's R2 answers 501, and AWS 403 without a right of its own. Whoever
/// writes an object leaves it out.
pub(crate) const TAGS: u8 = 4;

fn is_any_of(header: &str, features: u8) -> bool {
    (features & CHECKSUMS != 0 && header.starts_with("x-amz-checksum-"))
        || (features & CONDITIONS != 0 && header.starts_with("if-"))
}

#[derive(Debug, Clone)]
pub(crate) struct SignedClient {
    http: UploadClient,
    /// The bucket's URL without a final slash.
    bucket: String,
    region: String,
    credentials: Option<CachedCredentials>,
    requester_pays: bool,
    retry: RetryPolicy,
    pacing: Arc<BlockPacing>,
    /// How many responses were throttled (429, 503, `SlowDown`).
    throttled: Arc<AtomicUsize>,
    is_amazons: bool,
    /// What the server has turned out not to know.
    unknown: Arc<AtomicU8>,
    /// The bucket has turned out to refuse bodies that the signature doesn't cover.
    signs_bodies: Arc<AtomicBool>,
}

pub(crate) struct PutRequest<'a> {
    pub(crate) key: &'a str,
    pub(crate) query: String,
    pub(crate) headers: Vec<(Cow<'static, str>, String)>,
    pub(crate) body: Bytes,
    /// Digest of the body. Over TLS it may be `None`; then the signature doesn't cover the body.
    pub(crate) digest: Option<Digest>,
}

impl SignedClient {
    /// Fails if the bucket needs another kind of signature (directory buckets, multi-region access
    /// points, Outposts), or if TLS can't be set up.
    pub(crate) async fn new(
        config: &S3Config,
        region: &str,
        credentials: Option<CachedCredentials>,
    ) -> Result<Self, ArtifactStoreError> {
        let refused = |message: String| ArtifactStoreError::Refused { store: STORE, message };
        let params = Params::builder()
            .bucket(&config.bucket)
            .region(region)
            .set_endpoint(config.endpoint.as_ref().map(with_slash))
            .force_path_style(config.endpoint.as_ref().is_some_and(is_path_style))
            .use_fips(config.fips)
            .use_dual_stack(config.dual_stack)
            .build()
            .map_err(|e| refused(e.to_string()))?;
        let resolver = DefaultResolver::new();
        let endpoint =
            resolver.resolve_endpoint(&params).await.map_err(|e| refused(e.to_string()))?;
        let scheme = endpoint.auth_schemes().first();
        let text = |name: &str| scheme.and_then(|scheme| scheme.get(name)?.as_string());
        let for_s3 = text("signingName").is_none_or(|service| service == "s3");
        if scheme.is_some_and(|scheme| scheme.name() != "sigv4") || !for_s3 {
            let bucket = &config.bucket;
            return Err(refused(format!(
                "`{bucket}` is neither a general purpose bucket nor an access point of one region: \
                 directory buckets, multi-region access points, Outposts and Object Lambda aren't \
                 supported"
            )));
        }
        let region = text("signingRegion").unwrap_or(region);
        Ok(Self {
            http: UploadClient::new(config.silence, config.retry.total)
                .map_err(|e| refused(e.to_string()))?,
            bucket: endpoint.url().trim_end_matches('/').to_owned(),
            region: region.to_owned(),
            credentials,
            requester_pays: config.requester_pays,
            retry: config.retry,
            pacing: Arc::new(BlockPacing::new(MAX_REQUESTS)),
            throttled: Arc::default(),
            is_amazons: config.endpoint.is_none(),
            unknown: Arc::default(),
            signs_bodies: Arc::default(),
        })
    }

    /// Whether the server may have refused the request for a header that only Amazon's knows.
    pub(crate) fn may_lack_feature(&self, refusal: &S3Refusal) -> bool {
        !self.is_amazons && refusal.is_about_a_header()
    }

    pub(crate) fn knows(&self, feature: u8) -> bool {
        self.unknown.load(Ordering::Relaxed) & feature == 0
    }

    /// Sends no more headers of these features.
    pub(crate) fn leave_out(&self, features: u8) {
        self.unknown.fetch_or(features, Ordering::Relaxed);
    }

    /// Sends the request, with retries. A header that the server doesn't know is left out.
    pub(crate) async fn put(&self, put: PutRequest<'_>) -> Result<Response, S3Refusal> {
        let unknown = self.unknown.load(Ordering::Relaxed);
        let sent = |feature: u8| put.headers.iter().any(|(name, _)| is_any_of(name, feature));
        let mut first = None;
        for more in [0, CHECKSUMS, CONDITIONS, CHECKSUMS | CONDITIONS] {
            let is_sent =
                |feature| more & feature == 0 || (unknown & feature == 0 && sent(feature));
            if !(is_sent(CHECKSUMS) && is_sent(CONDITIONS)) {
                continue;
            }
            match self.put_signed(&put, unknown | more).await {
                Ok(done) => {
                    self.leave_out(more);
                    return Ok(done);
                }
                Err(refusal) if self.may_lack_feature(&refusal) => {
                    first.get_or_insert(refusal);
                }
                Err(refusal) => return Err(refusal),
            }
        }
        Err(first.unwrap_or_default())
    }

    /// A bucket's policy can forbid `UNSIGNED-PAYLOAD`, which S3 refuses as a missing right.
    async fn put_signed(&self, put: &PutRequest<'_>, features: u8) -> Result<Response, S3Refusal> {
        let signs = self.signs_bodies.load(Ordering::Relaxed);
        let refusal = match self.put_without(put, features).await {
            Err(refusal) if refusal.code.as_deref() == Some("AccessDenied") => refusal,
            done => return done,
        };
        if put.digest.is_some() || signs || self.credentials.is_none() {
            return Err(refusal);
        }
        let digest = Some(Digest::of(&put.body));
        let (headers, body) = (put.headers.clone(), put.body.clone());
        let signed = PutRequest { key: put.key, query: put.query.clone(), headers, body, digest };
        let done = self.put_without(&signed, features).await.map_err(|_| refusal)?;
        self.signs_bodies.store(true, Ordering::Relaxed);
        Ok(done)
    }

    /// Each try is signed again.
    async fn put_without(&self, put: &PutRequest<'_>, features: u8) -> Result<Response, S3Refusal> {
        let mut tries = self.retry.start();
        let mut last: Option<S3Refusal> = None;
        loop {
            let turn = self.pacing.turn(put.body.len()).await;
            tries.server_was_alive(self.pacing.alive_at());
            // The store can have been silent to others for as long as it is waited for, while this one waited for
            // its turn.
            if let Some(refusal) = last.take_if(|_| tries.is_out_of_time()) {
                return Err(refusal.after(&tries));
            }
            let refusal = match self.signed(put, features).await {
                Ok(request) => {
                    let sent = self.http.send(request, put.body.clone());
                    match self.pacing.send(turn, sent).await {
                        Ok(done) if done.headers().contains_key("etag") => {
                            self.pacing.got_through();
                            return Ok(done);
                        }
                        // Each S3 server names what it has stored.
                        Ok(done) => S3Refusal::from(&http::HttpError::Intermediary {
                            status: done.status(),
                            body: Bytes::new(),
                        }),
                        Err(error) => S3Refusal::from(&error.unless_page_or_redirect()),
                    }
                }
                Err(refusal) => refusal,
            };
            if refusal.is_throttled() {
                self.throttled.fetch_add(1, Ordering::Relaxed);
            }
            tries.server_was_alive(self.pacing.alive_at());
            if !refusal.is_transient() || !tries.wait_to_retry(&refusal, refusal.retry_after).await
            {
                return Err(refusal.after(&tries));
            }
            last = Some(refusal);
        }
    }

    pub(crate) fn throttled(&self) -> usize {
        self.throttled.load(Ordering::Relaxed)
    }

    async fn signed(
        &self,
        put: &PutRequest<'_>,
        left_out: u8,
    ) -> Result<RequestBuilder, S3Refusal> {
        let mut url =
            format!("{}/{}", self.bucket, utf8_percent_encode(put.key, UNRESERVED_AND_SLASH));
        if !put.query.is_empty() {
            url = format!("{url}?{}", put.query);
        }
        let mut request = self.http.put(&url);
        let mut headers = Cow::Borrowed(&put.headers);
        if left_out != 0 {
            headers.to_mut().retain(|(name, _)| !is_any_of(name, left_out));
        }
        if self.requester_pays {
            let (name, value) = REQUESTER_PAYS;
            headers.to_mut().push((name.into(), value.to_owned()));
        }
        for (name, value) in &*headers {
            request = request.header(&**name, value);
        }
        if let Some(kept) = &self.credentials {
            let credentials = kept.get().await.map_err(|e| S3Refusal::before_sending(&e))?;
            let signs = self.signs_bodies.load(Ordering::Relaxed);
            let digest = put.digest.or_else(|| signs.then(|| Digest::of(&put.body)));
            let now = SystemTime::now();
            let scope = SigningScope::s3(&self.region);
            let signed = signature("PUT", &url, &headers, digest, scope, credentials, now);
            for (name, value) in signed.map_err(|e| S3Refusal::before_sending(e.as_ref()))? {
                request = request.header(name, value);
            }
        }
        Ok(request)
    }
}

/// What a signature is valid for.
#[derive(Debug, Clone, Copy)]
pub struct SigningScope<'a> {
    /// Such as `s3`.
    pub service: &'a str,
    pub region: &'a str,
}

impl<'a> SigningScope<'a> {
    pub fn s3(region: &'a str) -> Self {
        Self { service: "s3", region }
    }
}

/// The headers of an AWS signature, version 4. Without a digest of the body, which is allowed only over
/// TLS, the signature doesn't cover the body.
pub fn signature(
    method: &str,
    url: &str,
    headers: &[(Cow<'static, str>, String)],
    digest: Option<Digest>,
    scope: SigningScope<'_>,
    credentials: Credentials,
    now: SystemTime,
) -> Result<Vec<(&'static str, String)>, Box<dyn std::error::Error + Send + Sync>> {
    let identity = credentials.into();
    let mut settings = SigningSettings::default();
    settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
    settings.percent_encoding_mode = PercentEncodingMode::Single;
    settings.uri_path_normalization_mode = UriPathNormalizationMode::Disabled;
    let params = v4::SigningParams::builder()
        .identity(&identity)
        .region(scope.region)
        .name(scope.service)
        .time(now)
        .settings(settings)
        .build()?
        .into();
    let body = match digest {
        Some(digest) => SignableBody::Precomputed(digest.hex()),
        None => SignableBody::UnsignedPayload,
    };
    let headers = headers.iter().map(|(name, value)| (&**name, value.as_str()));
    let signable = SignableRequest::new(method, url, headers, body)?;
    let (instructions, _) = sign(signable, &params)?.into_parts();
    let (headers, _) = instructions.into_parts();
    Ok(headers.into_iter().map(|header| (header.name(), header.value().to_owned())).collect())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use aws_credential_types::provider::SharedCredentialsProvider;
    use crcr_standin::traffic::Fault;
    use crcr_testkit::fault::{FaultProxy, Rule, access_denied, slow_down};

    use super::*;
    use crate::store::s3::{S3Access, S3Store};

    async fn wire(
        bucket: &str,
        region: &str,
        endpoint: Option<&str>,
    ) -> Result<SignedClient, ArtifactStoreError> {
        SignedClient::new(&config(bucket, region, endpoint), region, None).await
    }

    fn config(bucket: &str, region: &str, endpoint: Option<&str>) -> S3Config {
        S3Config {
            bucket: bucket.to_owned(),
            region: Some(region.to_owned()),
            fips: false,
            dual_stack: false,
            endpoint: endpoint.map(|url| url.parse().unwrap()),
            access: S3Access::Anonymous,
            checksum: true,
            object_headers: vec![],
            requester_pays: false,
            silence: http::SILENCE,
            retry: RetryPolicy::CALL,
        }
    }

    #[tokio::test]
    async fn bucket_url_is_the_one_that_the_sdk_uses() {
        for (bucket, region, endpoint, url) in [
            ("logs", "us-west-2", None, "https://logs.s3.us-west-2.amazonaws.com"),
            ("logs.example", "us-west-2", None, "https://s3.us-west-2.amazonaws.com/logs.example"),
            ("logs", "cn-north-1", None, "https://logs.s3.cn-north-1.amazonaws.com.cn"),
            ("logs", "any", Some("http://localhost:9000/"), "http://localhost:9000/logs"),
            ("logs", "any", Some("https://h.example/s3"), "https://h.example/s3/logs"),
            // These refuse a bucket in the path.
            (
                "logs",
                "cn-shanghai",
                Some("https://oss-cn-shanghai.aliyuncs.com"),
                "https://logs.oss-cn-shanghai.aliyuncs.com",
            ),
            (
                "logs-125",
                "ap-beijing",
                Some("https://cos.ap-beijing.myqcloud.com/"),
                "https://logs-125.cos.ap-beijing.myqcloud.com",
            ),
            (
                "logs",
                "cn-north-4",
                Some("https://obs.cn-north-4.myhuaweicloud.com"),
                "https://logs.obs.cn-north-4.myhuaweicloud.com",
            ),
            ("logs", "auto", Some("https://t3.storage.dev"), "https://logs.t3.storage.dev"),
            (
                "logs",
                "auto",
                Some("https://fly.storage.tigris.dev"),
                "https://logs.fly.storage.tigris.dev",
            ),
        ] {
            assert_eq!(wire(bucket, region, endpoint).await.unwrap().bucket, url);
        }
    }

    #[tokio::test]
    async fn fips_and_dual_stack_select_their_endpoints() {
        for (fips, dual_stack, url) in [
            (true, false, "https://logs.s3-fips.us-west-2.amazonaws.com"),
            (false, true, "https://logs.s3.dualstack.us-west-2.amazonaws.com"),
            (true, true, "https://logs.s3-fips.dualstack.us-west-2.amazonaws.com"),
        ] {
            let config = S3Config { fips, dual_stack, ..config("logs", "us-west-2", None) };
            assert_eq!(SignedClient::new(&config, "us-west-2", None).await.unwrap().bucket, url);
        }
        let endpoint = Some("https://h.example/s3");
        let both = S3Config { fips: true, ..config("logs", "any", endpoint) };
        let refused = SignedClient::new(&both, "any", None).await.unwrap_err().to_string();
        assert!(refused.contains("FIPS"), "{refused}");
    }

    #[tokio::test]
    async fn access_point_is_signed_for_the_region_of_its_arn() {
        let arn = "arn:aws:s3:eu-west-1:123456789012:accesspoint/logs";
        let wire = wire(arn, "us-west-2", None).await.unwrap();
        let url = "https://logs-123456789012.s3-accesspoint.eu-west-1.amazonaws.com";
        assert_eq!((&*wire.bucket, &*wire.region), (url, "eu-west-1"));
        let store = S3Store::connect(S3Config { region: None, ..config(arn, "", None) });
        assert_eq!(store.await.unwrap().region(), "eu-west-1");
    }

    #[tokio::test]
    async fn bucket_that_needs_another_signature_is_refused() {
        for bucket in [
            "logs--usw2-az1--x-s3",
            "arn:aws:s3::123456789012:accesspoint/mfzwi23gnjvgw.mrap",
            "arn:aws:s3-outposts:us-west-2:123456789012:outpost/op-1/accesspoint/logs",
            "arn:aws:s3-object-lambda:us-west-2:123456789012:accesspoint/logs",
            "arn:aws:sns:us-west-2:123456789012:topic",
        ] {
            let refused = wire(bucket, "us-west-2", None).await;
            assert!(
                matches!(refused, Err(ArtifactStoreError::Refused { .. })),
                "{bucket}: {refused:?}"
            );
        }
    }

    #[test]
    fn signature_of_the_put_example_in_the_aws_documentation_is_reproduced() {
        let secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
        let credentials = Credentials::new("AKIAIOSFODNN7EXAMPLE", secret, None, None, "test");
        let headers = [
            ("date".into(), "Fri, 24 May 2013 00:00:00 GMT".to_owned()),
            ("x-amz-storage-class".into(), "REDUCED_REDUNDANCY".to_owned()),
        ];
        let digest = Some(Digest::of(b"Welcome to Amazon S3."));
        let url = "https://examplebucket.s3.amazonaws.com/test%24file.text";
        let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_369_353_600);
        let scope = SigningScope::s3("us-east-1");
        let headers = signature("PUT", url, &headers, digest, scope, credentials, then).unwrap();
        let signed = headers.iter().find(|(name, _)| *name == "authorization").unwrap();
        let expected = "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd";
        assert!(signed.1.ends_with(&format!("Signature={expected}")), "{headers:?}");
    }

    /// hyper alone would leave the header out.
    #[tokio::test]
    async fn put_of_an_empty_object_has_a_content_length() {
        let proxy = FaultProxy::start(&"http://localhost:1/".parse().unwrap()).unwrap();
        proxy.add(Rule::any(Fault::status(411)).lacking("content-length"));
        proxy.add(Rule::any(Fault::status(200)).header("etag", "\"1\""));
        let wire = wire("logs", "any", Some(proxy.url().as_str())).await.unwrap();
        let (query, headers, body) = (String::new(), vec![], Bytes::new());
        wire.put(PutRequest { key: "a", query, headers, body, digest: None }).await.unwrap();
        assert_eq!(proxy.seen()[0].headers["content-length"], "0");
    }

    /// AWS documents such a policy: `s3:x-amz-content-sha256` is `UNSIGNED-PAYLOAD`.
    #[tokio::test]
    async fn bucket_that_refuses_unsigned_bodies_gets_signed_ones() {
        let proxy = FaultProxy::start(&"http://localhost:1/".parse().unwrap()).unwrap();
        proxy.add(Rule::any(access_denied()).times(1));
        proxy.add(Rule::any(Fault::status(200)).header("etag", "\"1\""));
        let credentials = Credentials::new("a", "b", None, None, "test");
        let credentials = CachedCredentials::new(SharedCredentialsProvider::new(credentials));
        let config = config("logs", "us-east-1", Some(proxy.url().as_str()));
        let wire = SignedClient::new(&config, "us-east-1", Some(credentials)).await.unwrap();
        for _ in 0..2 {
            let (query, headers, body) = (String::new(), vec![], Bytes::from_static(b"body"));
            wire.put(PutRequest { key: "a", query, headers, body, digest: None }).await.unwrap();
        }
        let seen = proxy.seen();
        let covered =
            |n: usize| seen[n].headers["x-amz-content-sha256"].to_str().unwrap().to_owned();
        let digest = Digest::of(b"body").hex();
        assert_eq!([covered(0), covered(1), covered(2)], ["UNSIGNED-PAYLOAD", &digest, &digest]);
        assert_eq!(seen.len(), 3, "what the bucket demands is asked once");

        let refused = FaultProxy::start(&"http://localhost:1/".parse().unwrap()).unwrap();
        refused.add(Rule::any(access_denied()));
        let credentials = wire.credentials.clone();
        let config = S3Config { endpoint: Some(refused.url().clone()), ..config };
        let wire = SignedClient::new(&config, "us-east-1", credentials).await.unwrap();
        let (query, headers, body) = (String::new(), vec![], Bytes::from_static(b"body"));
        let put = PutRequest { key: "a", query, headers, body, digest: None };
        assert_eq!(wire.put(put).await.unwrap_err().code.as_deref(), Some("AccessDenied"));
    }

    #[tokio::test]
    async fn throttled_responses_are_retried_and_counted() {
        let proxy = FaultProxy::start(&"http://localhost:1/".parse().unwrap()).unwrap();
        proxy.add(Rule::any(slow_down()).times(2));
        proxy.add(Rule::any(Fault::status(200)).header("etag", "\"1\""));
        let wire = wire("logs", "any", Some(proxy.url().as_str())).await.unwrap();
        let (query, headers, body) = (String::new(), vec![], Bytes::new());
        wire.put(PutRequest { key: "a", query, headers, body, digest: None }).await.unwrap();
        assert_eq!(wire.throttled(), 2);
    }
}
