//! A bucket of sccache: whether sccache's server would start with it, and the variables that name it.
//!
//! sccache's server first reads the object `.sccache_check`. If that is refused, it doesn't start and
//! every compilation fails. So this module makes the same request.

use std::time::{Duration, SystemTime};

use aws_credential_types::Credentials;
use crcr_artifacts::digest::Digest;
use crcr_artifacts::store::s3::{SigningScope, signature};
use crcr_aws::names::AwsRegion;
use crcr_aws::sts::{date, domain_of};
use crcr_github::SecureUrl;
use jiff::Timestamp;
use reqwest::header::HeaderMap;
use reqwest::{Client, StatusCode};
use url::Url;

use crate::cli::oidc::ConfigureArgs;
use crate::commands::oidc::decide::TrustClass;
use crate::commands::oidc::env_file::Export;
use crate::commands::oidc::exchange::skew;
use crate::commands::oidc::unsupported_inputs::invalid;
use crate::commands::oidc::{inputs, messages};
use crate::env_vars::{self, Env};
use crate::failure::Failure;

const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// A bucket as sccache addresses it.
#[derive(Debug, Clone)]
pub struct SccacheBucket {
    bucket: String,
    region: String,
    prefix: String,
    /// `None` if sccache derives it from the region.
    endpoint: Option<SecureUrl>,
}

/// From the inputs, or from what sccache's own variables say.
struct BucketSettings<'a> {
    prefix: String,
    region: Option<&'a str>,
    endpoint: Option<&'a str>,
}

/// Why the cache is off, and what to do.
#[derive(Debug, PartialEq, Eq)]
pub struct SccacheOff {
    pub why: String,
    pub hint: String,
}

impl SccacheOff {
    fn new(why: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { why: why.into(), hint: hint.into() }
    }
}

impl From<Failure> for SccacheOff {
    fn from(failure: Failure) -> Self {
        Self::new(failure.message(), failure.help().unwrap_or("correct the input"))
    }
}

impl SccacheBucket {
    /// `None` without the input `sccache-bucket`. Wrong inputs only turn the cache off.
    pub fn from_inputs(
        args: &ConfigureArgs,
        class: TrustClass,
    ) -> Option<Result<Self, SccacheOff>> {
        let bucket = args.sccache_bucket.as_deref()?.trim();
        let settings = BucketSettings {
            prefix: inputs::cache_prefix(args, class),
            region: args.sccache_region.as_deref().or(args.aws_region.as_deref()),
            endpoint: args.sccache_endpoint.as_deref(),
        };
        Some(Self::checked(bucket, &settings))
    }

    /// The bucket that the job or the image has already named to sccache.
    pub fn from_env(args: &ConfigureArgs, env: &Env) -> Option<Result<Self, SccacheOff>> {
        let bucket = env.get(env_vars::SCCACHE_BUCKET)?;
        let region = [env_vars::SCCACHE_REGION, env_vars::AWS_REGION, env_vars::AWS_DEFAULT_REGION]
            .into_iter()
            .find_map(|name| env.get(name));
        let settings = BucketSettings {
            prefix: inputs::folder(env.get(env_vars::SCCACHE_S3_KEY_PREFIX).unwrap_or_default()),
            region: region.or(args.aws_region.as_deref()),
            endpoint: env.get(env_vars::SCCACHE_ENDPOINT),
        };
        Some(Self::checked(bucket, &settings))
    }

    fn checked(bucket: &str, settings: &BucketSettings) -> Result<Self, SccacheOff> {
        let prefix = settings.prefix.trim_end_matches('/').to_owned();
        inputs::check_resource("sccache-bucket", bucket, &prefix)?;
        let Some(region) = settings.region.map(str::trim).filter(|region| !region.is_empty())
        else {
            return Err(SccacheOff::new(
                "the region of the bucket is unknown: `sccache-region` and `aws-region` are empty",
                "give `sccache-region` as plain text: variables and secrets can be empty on a fork",
            ));
        };
        // Other servers than AWS name their regions as they like.
        if settings.endpoint.is_none() {
            AwsRegion::new(region).map_err(|error| {
                SccacheOff::new(format!("`sccache-region`: {error}"), error.rule)
            })?;
        }
        let endpoint = match settings.endpoint {
            // Without a scheme sccache would use http.
            Some(text) if !text.contains("://") => {
                Some(inputs::endpoint("sccache-endpoint", &format!("https://{}", text.trim()))?)
            }
            Some(text) => Some(inputs::endpoint("sccache-endpoint", text)?),
            // sccache knows only the addresses of the partition `aws`.
            None if domain_of(region) != "amazonaws.com" => {
                format!("https://s3.{region}.{}", domain_of(region)).parse().ok()
            }
            None => None,
        };
        let cache = Self { bucket: bucket.to_owned(), region: region.to_owned(), prefix, endpoint };
        let odd = || invalid(format!("`sccache-region` is not a region: `{region}`"));
        cache.check_url().ok_or_else(odd)?;
        Ok(cache)
    }

    /// The object that sccache reads first. Like sccache, this puts the bucket into the path.
    fn check_url(&self) -> Option<Url> {
        let mut url = match &self.endpoint {
            Some(endpoint) => endpoint.clone().into(),
            None => Url::parse(&format!("https://s3.{}.amazonaws.com", self.region)).ok()?,
        };
        let host = url.host_str()?.to_owned();
        if self.endpoint.is_none() && host != format!("s3.{}.amazonaws.com", self.region) {
            return None;
        }
        url.path_segments_mut()
            .ok()?
            .pop_if_empty()
            .push(&self.bucket)
            .extend(self.prefix.split('/').filter(|part| !part.is_empty()))
            .push(".sccache_check");
        Some(url)
    }

    pub fn plan(&self) -> String {
        let url = self.check_url().map(String::from).unwrap_or_default();
        format!("on if GET {url} answers 200, 404 or 503")
    }

    /// Makes the request, signed if there are credentials, without following redirects.
    pub async fn probe(
        &self,
        client: &Client,
        credentials: Option<&Credentials>,
    ) -> Result<(), SccacheOff> {
        let unreachable = |why: String| {
            SccacheOff::new(
                format!("the bucket `{}` can't be reached: {why}", self.bucket),
                "look at the bucket's name, `sccache-region`, `sccache-endpoint` and the network",
            )
        };
        let url = self.check_url().ok_or_else(|| unreachable("no valid address".to_owned()))?;
        let mut request = client.get(url.clone()).timeout(PROBE_TIMEOUT);
        if let Some(credentials) = credentials {
            let (scope, now) = (SigningScope::s3(&self.region), SystemTime::now());
            let nothing = Some(Digest::of(b""));
            let signed =
                signature("GET", url.as_str(), &[], nothing, scope, credentials.clone(), now);
            for (name, value) in signed.map_err(|e| unreachable(e.to_string()))? {
                request = request.header(name, value);
            }
        }
        let answer = request.send().await.map_err(|e| {
            let late = "no answer within two seconds".to_owned();
            unreachable(if e.is_timeout() { late } else { "no connection".to_owned() })
        })?;
        self.check_response(
            answer.status(),
            answer.headers(),
            credentials.is_some(),
            Timestamp::now(),
        )
    }

    /// Decides whether sccache's server would start with this response.
    fn check_response(
        &self,
        status: StatusCode,
        headers: &HeaderMap,
        signed: bool,
        now: Timestamp,
    ) -> Result<(), SccacheOff> {
        let bucket = &self.bucket;
        let region = headers.get("x-amz-bucket-region").and_then(|value| value.to_str().ok());
        let skew = date(headers).and_then(|server| skew(server, now)).filter(|_| signed);
        match (status.as_u16(), skew) {
            // sccache accepts a missing object, and with 503 it starts and has cache misses.
            (200 | 404 | 503, _) => Ok(()),
            (403, Some((minutes, way))) => {
                let (what, hint) = messages::clock_skew(minutes, way);
                Err(SccacheOff::new(format!("the bucket `{bucket}` answers 403, and {what}"), hint))
            }
            (403, None) => Err(self.forbidden(signed)),
            (code @ (301 | 307 | 308), _) => Err(self.elsewhere(code, region)),
            (other, _) => Err(SccacheOff::new(
                format!(
                    "the bucket `{bucket}` answers {other} to the request that sccache starts with"
                ),
                "look at the bucket's name, `sccache-region` and `sccache-endpoint`, and at the \
                 bucket policy",
            )),
        }
    }

    fn forbidden(&self, signed: bool) -> SccacheOff {
        let bucket = &self.bucket;
        let partition = AwsRegion::new(&self.region).map_or("aws", |region| region.partition());
        let arn = format!("arn:{partition}:s3:::{bucket}");
        let objects = match self.prefix.as_str() {
            "" => format!("{arn}/*"),
            prefix => format!("{arn}/{prefix}/*"),
        };
        let who = if signed {
            "the role's policy (and a session policy, if given)".to_owned()
        } else {
            format!("the bucket policy of `{bucket}`")
        };
        let whom = if signed { "" } else { " to everybody (`\"Principal\": \"*\"`)" };
        SccacheOff::new(
            format!("the bucket `{bucket}` answers 403 to the request that sccache starts with"),
            format!(
                "{who} must allow `s3:GetObject` on `{objects}` and `s3:ListBucket` on \
                 `{arn}`{whom}: without the second, S3 answers 403 for a missing key"
            ),
        )
    }

    /// The bucket is in another region than the configured one.
    fn elsewhere(&self, status: u16, region: Option<&str>) -> SccacheOff {
        let there = match region.filter(|region| *region != self.region) {
            Some(region) => format!("the bucket is in `{region}`: give that as `sccache-region`"),
            None => "give the bucket's own region as `sccache-region`".to_owned(),
        };
        let (bucket, ours) = (&self.bucket, &self.region);
        SccacheOff::new(
            format!("the bucket `{bucket}` answers {status}: it is not in `{ours}`"),
            there,
        )
    }

    /// The variables for sccache. `is_defined` tells which variables have a value already: those must be
    /// set, too, so that sccache asks the bucket that was probed.
    pub fn exports(&self, write: bool, is_defined: &dyn Fn(&str) -> bool) -> Vec<Export> {
        let mut exports = vec![
            (env_vars::SCCACHE_BUCKET, self.bucket.clone()),
            (env_vars::SCCACHE_REGION, self.region.clone()),
        ];
        if !self.prefix.is_empty() {
            exports.push((env_vars::SCCACHE_S3_KEY_PREFIX, self.prefix.clone()));
        } else if is_defined(env_vars::SCCACHE_S3_KEY_PREFIX) {
            // sccache cuts slashes at the end off; releases before 0.16 fail with some empty values.
            exports.push((env_vars::SCCACHE_S3_KEY_PREFIX, "/".to_owned()));
        }
        let endpoint =
            self.endpoint.as_ref().map(|url| url.as_str().trim_end_matches('/').to_owned());
        let default = || format!("https://s3.{}.amazonaws.com", self.region);
        // With credentials, sccache takes that of all services for the bucket's, too.
        let others = [env_vars::SCCACHE_ENDPOINT, env_vars::AWS_ENDPOINT_URL];
        let endpoint =
            endpoint.or_else(|| others.iter().any(|name| is_defined(name)).then(default));
        let tls = endpoint.as_ref().is_none_or(|url| url.starts_with("https:"));
        exports.extend(endpoint.map(|url| (env_vars::SCCACHE_ENDPOINT, url)));
        if is_defined(env_vars::SCCACHE_S3_USE_SSL) {
            exports.push((env_vars::SCCACHE_S3_USE_SSL, tls.to_string()));
        }
        if is_defined(env_vars::SCCACHE_S3_ENABLE_VIRTUAL_HOST_STYLE) {
            exports.push((env_vars::SCCACHE_S3_ENABLE_VIRTUAL_HOST_STYLE, "false".to_owned()));
        }
        let rw_mode = if write { "READ_WRITE" } else { "READ_ONLY" };
        exports.extend([
            (env_vars::SCCACHE_S3_NO_CREDENTIALS, (!write).to_string()),
            (env_vars::SCCACHE_S3_RW_MODE, rw_mode.to_owned()),
            (env_vars::SCCACHE_IGNORE_SERVER_IO_ERROR, "1".to_owned()),
        ]);
        exports
    }
}

/// The key variables that exist, even empty ones.
pub fn defined_key_variables(env: &Env) -> Vec<&'static str> {
    [env_vars::AWS_ACCESS_KEY_ID, env_vars::AWS_SECRET_ACCESS_KEY]
        .into_iter()
        .filter(|name| env.is_defined(name))
        .collect()
}

/// Without credentials sccache refuses to start if a key variable exists, even an empty one.
pub fn check_key_variables(write: bool, env: &Env) -> Result<(), SccacheOff> {
    let defined_key_variables = defined_key_variables(env);
    if write || defined_key_variables.is_empty() {
        return Ok(());
    }
    let are = messages::are(&defined_key_variables);
    let why = format!("without credentials it refuses to start where {are} defined, even empty");
    Err(SccacheOff::new(why, messages::REMOVE_VARIABLE))
}

#[cfg(test)]
#[path = "sccache_tests.rs"]
mod tests;
