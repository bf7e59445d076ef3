//! `crcr doctor aws`: whether the role and the buckets of a build are as docs/aws.md sets them up.
//!
//! From anywhere it asks as somebody without credentials, as the compiler cache of a fork does. In a job it also asks
//! with the job's role. Nothing is written: each PUT has a condition that can't hold, and S3 looks at rights first.

use std::time::{Duration, SystemTime};

use aws_credential_types::Credentials;
use crcr_artifacts::digest::Digest;
use crcr_artifacts::store::s3::{SigningScope, signature};
use crcr_aws::names::{AwsNameError, AwsRegion, BucketName, RoleArn};
use crcr_aws::sts::{self, AssumeRole, AwsError, SessionCredentials, StsError, StsErrorClass};
use crcr_github::SecureUrl;
use crcr_github::http::{self, HttpError, RetryPolicy};
use crcr_github::oidc::{MintError, TokenEndpoint, unverified_claims};
use reqwest::header::HeaderMap;
use reqwest::{Client, Method, StatusCode};
use secrecy::{ExposeSecret as _, SecretString};

use super::aws_trust;
use super::machine::TIMEOUT;
use super::report::{CheckReport, CheckResult};
use crate::cli::doctor::AwsArgs;
use crate::commands::github;
use crate::commands::oidc::inputs;
use crate::env_vars::{self, Env};
use crate::failure::Failure;
use crate::printer::Printer;

/// Somebody may be waiting for the report.
const RETRY: RetryPolicy = RetryPolicy::CALL.within(Duration::from_secs(15));
/// The folders of the classes of trust, as docs/aws.md has them.
const DEFAULT_BRANCH: &str = "default-branch";
const PULL_REQUESTS: &str = "pull-requests";
/// What sccache reads first.
const SCCACHE_OBJECT: &str = ".sccache_check";
/// Nobody writes this object.
const PROBE_OBJECT: &str = "crcr-doctor-writes-nothing";
const AUDIENCE: &str = "sts.amazonaws.com";
const SET_UP: &str = "`crcr init aws` writes policies that are right; docs/aws.md has them as JSON";

/// The buckets and the role, with names that can be.
struct AwsSetup<'a> {
    args: &'a AwsArgs,
    role: RoleArn,
    region: String,
    /// `None` if the region has none.
    sts_endpoint: Option<SecureUrl>,
    client: Client,
    printer: &'a Printer,
}

pub async fn check(args: &AwsArgs, env: &Env, printer: &Printer) -> Result<CheckReport, Failure> {
    let (mut results, role) = names(args);
    if let Some(role) = role {
        let region = args.region.clone();
        let given = args.sts_endpoint.as_ref().map(|url| url.as_str());
        let sts_endpoint = inputs::sts_endpoint(given, env)?
            .or_else(|| sts::regional_endpoint(&region, inputs::endpoint_variant(env)));
        let client = github::http()?;
        let setup = AwsSetup { args, role, region, sts_endpoint, client, printer };
        results.extend(setup.anonymous().await);
        results.extend(setup.in_job(env).await);
        let iam = args.iam_endpoint.as_ref();
        results.extend(aws_trust::check(&setup.role, &setup.client, RETRY, iam).await);
    } else {
        for check in [
            "bucket-region",
            "cache-read",
            "cache-scope",
            "cache-write",
            "artifacts-private",
            "role",
            "role-trust",
        ] {
            results.push(CheckResult::not_checked(check, "a name is wrong"));
        }
    }
    Ok(CheckReport { subject: format!("`{}` in `{}`", args.bucket, args.region), results })
}

/// Looks at the names alone. The role, if all names can be.
fn names(args: &AwsArgs) -> (Vec<CheckResult>, Option<RoleArn>) {
    let wrong = |check, error: AwsNameError| CheckResult::error(check, error.message, &error.rule);
    let mut results = vec![];
    // Other servers than AWS name their regions as they like.
    let region = match (&args.endpoint, AwsRegion::new(&args.region)) {
        (None, Ok(region)) => Some(region),
        (None, Err(error)) => {
            results.push(wrong("region", error));
            None
        }
        (Some(_), _) => None,
    };
    let buckets =
        [("bucket", Some(&args.bucket)), ("artifact-bucket", args.artifact_bucket.as_ref())];
    for (check, name) in buckets {
        results.extend(
            name.and_then(|name| BucketName::new(name).err()).map(|error| wrong(check, error)),
        );
    }
    let role = RoleArn::new(&args.role).and_then(|role| {
        region.as_ref().map(|region| role.check_region(region)).transpose()?;
        Ok(role)
    });
    let role = role.map_err(|error| results.push(wrong("role-name", error))).ok();
    let role = role.filter(|_| results.is_empty());
    if let Some(role) = &role {
        let message = format!("a role of the account {}, in `{}`", role.account, args.region);
        results.push(CheckResult::ok("names", message));
    }
    (results, role)
}

/// What S3 answered to a probe.
#[derive(Debug, Clone)]
struct Answer {
    status: StatusCode,
    /// The bucket, if S3 has none of that name.
    missing: Option<String>,
}

impl Answer {
    fn new(status: StatusCode, body: &[u8], bucket: &str) -> Self {
        let is_missing = String::from_utf8_lossy(body).contains("<Code>NoSuchBucket</Code>");
        Self { status, missing: is_missing.then(|| bucket.to_owned()) }
    }

    /// Rights are looked at before objects and conditions.
    fn is_allowed(&self) -> Option<bool> {
        match self.status.as_u16() {
            _ if self.missing.is_some() => None,
            200 | 204 | 404 | 412 => Some(true),
            401 | 403 => Some(false),
            _ => None,
        }
    }
}

impl AwsSetup<'_> {
    fn url(&self, bucket: &str, key: &str) -> String {
        let base = match &self.args.endpoint {
            Some(endpoint) => endpoint.as_str().trim_end_matches('/').to_owned(),
            None => format!("https://s3.{}.{}", self.region, sts::domain_of(&self.region)),
        };
        format!("{base}/{bucket}/{key}")
    }

    /// Reads, or tries to write under a condition that can't hold: that an object has an `ETag` of no object.
    async fn ask(
        &self,
        method: Method,
        bucket: &str,
        key: &str,
        credentials: Option<&Credentials>,
    ) -> Result<Answer, String> {
        let url = self.url(bucket, key);
        let mut signed = vec![];
        if let Some(credentials) = credentials {
            let nothing = Some(Digest::of(b""));
            let (scope, now) = (SigningScope::s3(&self.region), SystemTime::now());
            let headers =
                signature(method.as_str(), &url, &[], nothing, scope, credentials.clone(), now);
            signed.extend(headers.map_err(|error| error.to_string())?);
        }
        let request = || {
            let mut request = self.client.request(method.clone(), &url).timeout(TIMEOUT);
            if method == Method::PUT {
                request =
                    request.header("if-match", "\"crcr-doctor\"").header("content-length", "0");
            }
            signed.iter().fold(request, |request, (name, value)| request.header(*name, value))
        };
        let foreign =
            |status: StatusCode| format!("something in between answers {status} instead of S3");
        match http::send(RETRY, request).await {
            Ok(answer) if !is_success_of_s3(answer.headers(), key) => Err(foreign(answer.status())),
            Ok(answer) => Ok(Answer::new(answer.status(), b"", bucket)),
            Err(error) => match error.last() {
                HttpError::Status { status, headers, body, .. } if !error.is_transient() => {
                    match is_refusal_of_s3(*status, headers, body) {
                        true => Ok(Answer::new(*status, body, bucket)),
                        false => Err(foreign(*status)),
                    }
                }
                _ => Err(error.to_string()),
            },
        }
    }

    /// The region of the bucket, which S3 names in each answer to HEAD, even to those whom it refuses.
    async fn region_of_bucket(&self) -> Option<String> {
        let url = self.url(&self.args.bucket, "");
        let url = url.trim_end_matches('/');
        let answer = http::send(RETRY, || self.client.head(url).timeout(TIMEOUT)).await;
        let region = match &answer {
            Ok(answer) => answer.headers().get("x-amz-bucket-region"),
            Err(error) => match error.last() {
                HttpError::Status { headers, .. } => headers.get("x-amz-bucket-region"),
                _ => None,
            },
        };
        region.and_then(|value| value.to_str().ok()).map(str::to_owned)
    }

    /// What somebody without credentials may do.
    async fn anonymous(&self) -> Vec<CheckResult> {
        let bucket = &self.args.bucket;
        let key = |folder: &str, object: &str| format!("{}{folder}/{object}", self.prefix());
        let (cache, pulls) =
            (key(DEFAULT_BRANCH, SCCACHE_OBJECT), key(PULL_REQUESTS, SCCACHE_OBJECT));
        let write = key(DEFAULT_BRANCH, PROBE_OBJECT);
        let (read, scope, written, region) = tokio::join!(
            self.ask(Method::GET, bucket, &cache, None),
            self.ask(Method::GET, bucket, &pulls, None),
            self.ask(Method::PUT, bucket, &write, None),
            self.region_of_bucket(),
        );
        let mut results = vec![self.bucket_region(&read, region), self.cache_read(&read, &cache)];
        results.push(judge("cache-scope", &scope, |allowed| match allowed {
            false => CheckResult::ok("cache-scope", "what pull requests cached isn't public"),
            true => CheckResult::warning(
                "cache-scope",
                format!("everybody reads `{pulls}`, and not the default branch's cache alone"),
                "allow `s3:GetObject` below `default-branch/` only",
            ),
        }));
        results.push(judge("cache-write", &written, |allowed| match allowed {
            false => CheckResult::ok("cache-write", "nobody writes the cache without the role"),
            true => CheckResult::error(
                "cache-write",
                format!("everybody may write `{bucket}`, and so put code into every build"),
                "remove `s3:PutObject` for `\"Principal\": \"*\"` from the bucket policy",
            ),
        }));
        results.push(self.artifacts_private().await);
        results
    }

    fn prefix(&self) -> String {
        let prefix = self.args.prefix.as_deref().unwrap_or_default().trim_matches('/');
        if prefix.is_empty() { String::new() } else { format!("{prefix}/") }
    }

    fn bucket_region(&self, read: &Result<Answer, String>, named: Option<String>) -> CheckResult {
        const CHECK: &str = "bucket-region";
        let (bucket, region) = (&self.args.bucket, &self.region);
        match (read, named) {
            (Err(why), _) => CheckResult::not_checked(CHECK, format!("`{bucket}`: {why}")),
            (Ok(Answer { missing: Some(bucket), .. }), _) => no_bucket(CHECK, bucket),
            (Ok(_), Some(there)) if there != *region => CheckResult::error(
                CHECK,
                format!("`{bucket}` is in `{there}`, not in `{region}`"),
                &format!("write `{there}` as its region: sccache doesn't follow it there"),
            ),
            (Ok(Answer { status, .. }), _) if matches!(status.as_u16(), 301 | 307 | 308) => {
                CheckResult::error(
                    CHECK,
                    format!("`{bucket}` isn't in `{region}`"),
                    "look up its region in the console",
                )
            }
            (Ok(_), None) => {
                CheckResult::not_checked(CHECK, "the server doesn't name the bucket's region")
            }
            (Ok(_), Some(_)) => CheckResult::ok(CHECK, format!("`{bucket}` is in `{region}`")),
        }
    }

    /// The request that sccache starts with on a fork. S3 answers 403 for a missing key to whoever may not list.
    fn cache_read(&self, read: &Result<Answer, String>, key: &str) -> CheckResult {
        const CHECK: &str = "cache-read";
        let bucket = &self.args.bucket;
        judge(CHECK, read, |allowed| match (allowed, self.args.private) {
            (true, false) => {
                CheckResult::ok(CHECK, format!("a fork's sccache can read `{bucket}`"))
            }
            (false, true) => CheckResult::ok(CHECK, format!("`{bucket}` is private")),
            (false, false) => CheckResult::error(
                CHECK,
                format!("`{bucket}` answers 403 for `{key}`, so a fork's sccache is off"),
                "the bucket policy must allow everybody `s3:GetObject` below `default-branch/` and \
                 `s3:ListBucket` on the bucket, and neither the bucket nor the account may block public \
                 access; for a private repository pass `--private`",
            ),
            (true, true) => CheckResult::error(
                CHECK,
                format!("everybody can read `{bucket}`"),
                "remove the statements with `\"Principal\": \"*\"` from its policy",
            ),
        })
    }

    async fn artifacts_private(&self) -> CheckResult {
        const CHECK: &str = "artifacts-private";
        let Some(bucket) = &self.args.artifact_bucket else {
            return CheckResult::not_checked(CHECK, "no bucket is named by `--artifact-bucket`");
        };
        let (listed, key) = ("?list-type=2&max-keys=1", format!("{DEFAULT_BRANCH}/{PROBE_OBJECT}"));
        let (listed, read, written) = tokio::join!(
            self.ask(Method::GET, bucket, listed, None),
            self.ask(Method::GET, bucket, &key, None),
            self.ask(Method::PUT, bucket, &key, None),
        );
        for (what, answer) in [("list", listed), ("read", read), ("write", written)] {
            let found = judge(CHECK, &answer, |allowed| match allowed {
                false => CheckResult::ok(CHECK, format!("`{bucket}` is closed to everybody else")),
                true => {
                    CheckResult::error(CHECK, format!("everybody may {what} `{bucket}`"), SET_UP)
                }
            });
            if what == "write" || found.status != super::report::CheckStatus::Ok {
                return found;
            }
        }
        CheckResult::not_checked(CHECK, "nothing was asked")
    }

    /// What the job's own role may do.
    async fn in_job(&self, env: &Env) -> Vec<CheckResult> {
        let endpoint = env
            .get(env_vars::ACTIONS_ID_TOKEN_REQUEST_URL)
            .zip(env.get(env_vars::ACTIONS_ID_TOKEN_REQUEST_TOKEN));
        let Some((url, bearer)) = endpoint else {
            let message = "only a job with `id-token: write` can take the role: run the same command as \
                           a step of one";
            return vec![CheckResult::not_checked("role", message)];
        };
        let (credentials, mut results) = match self.take_role(url, bearer).await {
            Ok(taken) => taken,
            Err(refused) => return vec![refused],
        };
        let may = async |method: Method, bucket: &str, folder: &str| {
            let key = format!("{}{folder}/{PROBE_OBJECT}", self.prefix());
            let answer = self.ask(method, bucket, &key, Some(&credentials)).await;
            answer.ok().and_then(|answer| answer.is_allowed())
        };
        let bucket = &self.args.bucket;
        let reads = may(Method::GET, bucket, DEFAULT_BRANCH).await;
        let writes = (
            may(Method::PUT, bucket, DEFAULT_BRANCH).await,
            may(Method::PUT, bucket, PULL_REQUESTS).await,
        );
        results.push(role_cache(reads, writes, bucket));
        if let Some(bucket) = &self.args.artifact_bucket {
            let own = if writes.0 == Some(true) { DEFAULT_BRANCH } else { PULL_REQUESTS };
            let key = format!("{own}/{PROBE_OBJECT}");
            let answer = self.ask(Method::PUT, bucket, &key, Some(&credentials)).await;
            results.push(judge("role-artifacts", &answer, |allowed| match allowed {
                true => {
                    CheckResult::ok("role-artifacts", format!("it stores artifacts below `{own}/`"))
                }
                false => CheckResult::error(
                    "role-artifacts",
                    format!("the role may not write `{key}` to `{bucket}`"),
                    SET_UP,
                ),
            }));
        }
        results
    }

    async fn take_role(
        &self,
        url: &str,
        bearer: &str,
    ) -> Result<(Credentials, Vec<CheckResult>), CheckResult> {
        const CHECK: &str = "role";
        let no_token = |error: MintError| match &error {
            MintError::Http(outage) if outage.is_transient() => CheckResult::not_checked(
                CHECK,
                format!("GitHub's token endpoint can't be asked: {error}"),
            ),
            _ => CheckResult::error(
                CHECK,
                format!("GitHub gives no OIDC token: {error}"),
                "run the job again, and look at what sets `ACTIONS_ID_TOKEN_REQUEST_URL` and `…_TOKEN`",
            ),
        };
        let endpoint = TokenEndpoint::new(url, bearer).map_err(no_token)?;
        let minted = endpoint.mint(&self.client, AUDIENCE, RETRY, || TIMEOUT).await;
        let token = minted.map_err(no_token)?;
        self.printer.mask(token.expose_secret());
        let claims = unverified_claims(&token).unwrap_or_default();
        let subject = claims.get("sub").and_then(|sub| sub.as_str()).unwrap_or("none").to_owned();
        let Some(sts_endpoint) = self.sts_endpoint.clone() else {
            return Err(CheckResult::not_checked(CHECK, "the region has no STS"));
        };
        let request = AssumeRole {
            endpoint: sts_endpoint,
            role_arn: self.role.text.clone(),
            session_name: "crcr-doctor".to_owned(),
            duration_seconds: 900,
            policy: None,
            policy_arns: vec![],
        };
        let session = self.assume(&request, &token).await.map_err(|error| {
            if !is_refusal(&error) {
                return CheckResult::not_checked(CHECK, format!("STS can't be asked: {error}"));
            }
            let message = format!("STS refuses the role to the `sub` `{subject}`: {error}");
            CheckResult::error(CHECK, message, "let the role's trust policy name this `sub`")
        })?;
        let (id, secret) = (session.access_key_id, session.secret_access_key);
        let token = session.session_token;
        self.printer.mask(secret.expose_secret());
        self.printer.mask(token.expose_secret());
        let credentials = Credentials::new(
            id,
            secret.expose_secret(),
            Some(token.expose_secret().to_owned()),
            None,
            "crcr doctor",
        );
        let audience = self.audience(&endpoint, request).await;
        Ok((credentials, vec![trust(&subject), audience]))
    }

    /// Asks again while STS is out of order.
    async fn assume(
        &self,
        request: &AssumeRole,
        token: &SecretString,
    ) -> Result<SessionCredentials, StsError> {
        let mut tries = RETRY.start();
        loop {
            let answer = sts::assume_role_with_web_identity(&self.client, request, token, TIMEOUT);
            match answer.await.result {
                Err(error)
                    if error.class() == StsErrorClass::Transient
                        && tries.wait_to_retry(&error, error.retry_after()).await => {}
                result => return result,
            }
        }
    }

    /// Whether a token for another service gets the role, too.
    async fn audience(&self, endpoint: &TokenEndpoint, request: AssumeRole) -> CheckResult {
        const CHECK: &str = "role-audience";
        const OTHER: &str = "https://example.org/crcr-doctor";
        let minted = endpoint.mint(&self.client, OTHER, RETRY, || TIMEOUT).await;
        let token = match minted {
            Ok(token) => token,
            Err(error) => {
                return CheckResult::not_checked(CHECK, format!("GitHub gives no token: {error}"));
            }
        };
        self.printer.mask(token.expose_secret());
        match self.assume(&request, &token).await {
            Ok(_) => CheckResult::error(
                CHECK,
                format!("STS gives the role to a token for `{OTHER}`, too"),
                "let the trust policy and the identity provider accept `aud` `sts.amazonaws.com` only: \
                 whoever this job sends another token to could take the role with it",
            ),
            Err(error) if is_refusal(&error) => {
                CheckResult::ok(CHECK, format!("only tokens for `{AUDIENCE}` get the role"))
            }
            Err(error) => CheckResult::not_checked(CHECK, format!("STS can't be asked: {error}")),
        }
    }
}

/// S3 names the version of each object. A list has none.
fn is_success_of_s3(headers: &HeaderMap, key: &str) -> bool {
    let is_named = key.starts_with('?') || headers.contains_key("etag");
    is_named && !http::is_web_page(headers, b"")
}

/// S3 gives a reason with what it refuses, or doesn't have.
fn is_refusal_of_s3(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> bool {
    let has_reason = !matches!(status.as_u16(), 401 | 403 | 404) || AwsError::read(body).is_some();
    has_reason && !http::is_web_page(headers, body)
}

/// Whether STS itself said no, and not something in between or a fault of it.
fn is_refusal(error: &StsError) -> bool {
    matches!(error.class(), StsErrorClass::Denied | StsErrorClass::Refused)
}

/// A result for an answer that says whether the caller may; others couldn't be checked.
fn judge(
    check: &'static str,
    answer: &Result<Answer, String>,
    result: impl FnOnce(bool) -> CheckResult,
) -> CheckResult {
    match answer {
        Err(why) => CheckResult::not_checked(check, format!("S3 can't be asked: {why}")),
        Ok(Answer { missing: Some(bucket), .. }) => no_bucket(check, bucket),
        Ok(answer) => match answer.is_allowed() {
            Some(allowed) => result(allowed),
            None => {
                let status = answer.status.as_u16();
                CheckResult::not_checked(check, format!("S3 answers {status} to the question"))
            }
        },
    }
}

fn no_bucket(check: &'static str, bucket: &str) -> CheckResult {
    CheckResult::error(
        check,
        format!("there is no bucket `{bucket}`"),
        "correct the name, or create it: `crcr init aws` writes what it needs",
    )
}

/// A role that a branch's own `sub` gets is one for whatever runs as that branch.
fn trust(subject: &str) -> CheckResult {
    if subject.contains(":environment:") {
        return CheckResult::ok("role", format!("STS gives the role to `{subject}`"));
    }
    CheckResult::error(
        "role",
        format!(
            "STS gives the role to `{subject}`, which every job of that kind has: one that runs \
             upstream's code by `repository_dispatch` has the default branch's"
        ),
        "give the job an `environment:`, and let the role trust `…:environment:NAME` only",
    )
}

fn role_cache(
    reads: Option<bool>,
    writes: (Option<bool>, Option<bool>),
    bucket: &str,
) -> CheckResult {
    const CHECK: &str = "role-cache";
    match (reads, writes) {
        (Some(true), (Some(true), Some(false))) => {
            CheckResult::ok(CHECK, "it writes the cache of the default branch, and no other")
        }
        (Some(true), (Some(false), Some(true))) => {
            CheckResult::ok(CHECK, "it writes the cache of pull requests, and no other")
        }
        (_, (Some(true), Some(true))) => CheckResult::error(
            CHECK,
            "the role writes the cache of pull requests and that of the default branch, so a pull \
             request can put code into its builds",
            "use a role for each: `crcr init aws` writes them",
        ),
        (_, (Some(false), Some(false))) => CheckResult::error(
            CHECK,
            format!("the role may not write the cache in `{bucket}`"),
            SET_UP,
        ),
        (Some(false), _) => CheckResult::error(
            CHECK,
            format!("the role may not read the cache in `{bucket}`"),
            SET_UP,
        ),
        _ => CheckResult::not_checked(CHECK, "S3 can't be asked"),
    }
}
