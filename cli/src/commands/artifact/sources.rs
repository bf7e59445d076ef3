//! Shared by the artifact commands: access to the stores, messages for their errors, and the step
//! summary.

use std::sync::Arc;
use std::time::Duration;

use aws_credential_types::Credentials;
use aws_credential_types::provider::SharedCredentialsProvider;
use crcr_artifacts::choose::{self, AuthMode};
use crcr_artifacts::find::{self, ArtifactBucket, ArtifactSources, SourceRun};
use crcr_artifacts::layout::KeyLayout;
use crcr_artifacts::store;
use crcr_artifacts::store::github::{GitHubStore, SecretMask};
use crcr_artifacts::store::s3::{
    LEADS_TO, NOT_SIGNED, S3Access, S3Config, SKEWED, STORE as S3, is_path_style,
};
use crcr_aws::names::{AwsNameError, AwsRegion, BucketName};
use crcr_github::artifact::{ArtifactServer, ArtifactService, is_enterprise_server};
use crcr_github::http::{self, RetryPolicy, UploadClient};
use crcr_github::runs_artifacts::ActionsApi;
use crcr_github::{SecureUrl, SecureUrlError};
use secrecy::SecretString;
use url::Url;

use crate::cli::artifact::{AuthArg, RunArgs, S3Args};
use crate::commands::github::no_client;
use crate::commands::oidc::RenewingCredentials;
use crate::env_vars::{self, Env};
use crate::escape::escape_markdown;
use crate::failure::Failure;
use crate::printer::Printer;
use crate::render::plural;
use crate::runner::Runner;

pub const NO_V4_ARTIFACTS: &str = "GitHub Enterprise Server has no v4 artifacts";

pub fn is_enterprise(env: &Env) -> bool {
    server(env) == ArtifactServer::Enterprise
}

fn server(env: &Env) -> ArtifactServer {
    match env.get(env_vars::GITHUB_SERVER_URL) {
        _ if env.is_true(env_vars::GITEA_ACTIONS) => ArtifactServer::Gitea,
        Some(url) if is_enterprise_server(url) => ArtifactServer::Enterprise,
        _ => ArtifactServer::GitHub,
    }
}

/// `None` without a bucket.
pub fn s3(args: &S3Args, env: &Env, printer: &Printer) -> Result<Option<S3Config>, Failure> {
    let Some(bucket) = bucket(args) else { return Ok(None) };
    // The ARN of an access point. S3 doesn't take a bucket's own ARN.
    let arn = bucket.starts_with("arn:") && !bucket.contains(":s3:::");
    if bucket.contains(|c: char| c.is_whitespace() || c.is_control() || (c == '/' && !arn)) {
        let text = format!("`s3-bucket` (`{}`) isn't the name of a bucket", bucket.escape_debug());
        return Err(Failure::user("s3-bucket", text)
            .hint("give one name on one line; a folder in the bucket goes into `s3-prefix`"));
    }
    let ignored = env.is_switched_on(env_vars::AWS_IGNORE_CONFIGURED_ENDPOINT_URLS);
    let configured = |name| Some((name, env.get(name).filter(|_| !ignored)?));
    let url = args.s3_endpoint.as_deref().map(|url| ("s3-endpoint", url));
    let url = url.or_else(|| configured(env_vars::AWS_ENDPOINT_URL_S3));
    let url = url.or_else(|| configured(env_vars::AWS_ENDPOINT_URL));
    let endpoint = url.map(|(name, url)| endpoint(name, url, bucket)).transpose()?;
    let region = args.aws_region.as_deref().or_else(|| env.get(env_vars::AWS_REGION));
    let region = region.or_else(|| env.get(env_vars::AWS_DEFAULT_REGION)).map(str::trim);
    // Other servers than AWS name their regions and buckets as they like.
    if !arn && (endpoint.is_none() || bucket.starts_with("arn:")) {
        aws_name("s3-bucket", BucketName::new(bucket))?;
    }
    if endpoint.is_none() {
        region.map(|region| aws_name("aws-region", AwsRegion::new(region))).transpose()?;
    }
    let retry = last_resort(env)?;
    Ok(Some(S3Config {
        bucket: bucket.to_owned(),
        region: region.map(str::to_owned),
        endpoint,
        fips: env.is_switched_on(env_vars::AWS_USE_FIPS_ENDPOINT),
        dual_stack: env.is_switched_on(env_vars::AWS_USE_DUALSTACK_ENDPOINT),
        access: access(auth_mode(args, env), env, printer)?,
        checksum: true,
        object_headers: vec![],
        requester_pays: args.s3_request_payer.is_some(),
        silence: silence(env, retry)?,
        retry,
    }))
}

/// How long to wait for a store when there is no other one.
fn last_resort(env: &Env) -> Result<RetryPolicy, Failure> {
    Ok(patience(env)?.unwrap_or(RetryPolicy::LAST_RESORT))
}

/// How long to go on during an outage, if the user decides that.
pub fn patience(env: &Env) -> Result<Option<RetryPolicy>, Failure> {
    let seconds = seconds(env, env_vars::CRCR_RETRY_SECONDS, "retry-seconds", 0..=86_400)?;
    Ok(seconds.map(|limit| RetryPolicy::CALL.within(limit)))
}

/// Names the input of a name that AWS can't have given.
fn aws_name<T>(input: &str, name: Result<T, AwsNameError>) -> Result<T, Failure> {
    name.map_err(|error| Failure::user("aws-name", format!("`{input}`: {error}")).hint(error.rule))
}

fn endpoint(name: &str, text: &str, bucket: &str) -> Result<Url, Failure> {
    let url = Url::parse(text.trim()).ok();
    let url = url.filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    let url = url.ok_or_else(|| {
        Failure::user("s3-endpoint", format!("`{name}` (`{text}`) isn't an http or https URL"))
            .hint("give the whole address, such as `https://s3.example.com:9000`")
    })?;
    match host_without_bucket(&url, bucket) {
        None => Ok(url),
        // The bucket's name would become a part of every key.
        Some(host) => {
            let text = format!("`{name}` (`{text}`) is the address of the bucket `{bucket}` alone");
            Err(Failure::user("s3-endpoint", text)
                .hint(format!("give the address of the server: `{}://{host}`", url.scheme())))
        }
    }
}

/// Providers that have a host for each bucket, beside one for all buckets.
const HOSTS_OF_BUCKETS: [&str; 13] = [
    ".aliyuncs.com",
    ".amazonaws.com",
    ".backblazeb2.com",
    ".digitaloceanspaces.com",
    ".linodeobjects.com",
    ".myhuaweicloud.com",
    ".myqcloud.com",
    ".r2.cloudflarestorage.com",
    ".scw.cloud",
    ".storage.dev",
    ".storage.tigris.dev",
    ".volces.com",
    ".wasabisys.com",
];

fn host_without_bucket<'a>(url: &'a Url, bucket: &str) -> Option<&'a str> {
    let host = url.host_str()?.strip_prefix(bucket)?.strip_prefix('.')?;
    HOSTS_OF_BUCKETS.iter().any(|provider| host.ends_with(provider)).then_some(host)
}

/// The name of the bucket, if one is configured.
pub fn bucket(args: &S3Args) -> Option<&str> {
    args.s3_bucket.as_deref().map(str::trim).filter(|bucket| !bucket.is_empty())
}

pub fn auth_mode(args: &S3Args, env: &Env) -> AuthMode {
    let asked = args.auth_mode.map(|mode| match mode {
        AuthArg::Oidc => AuthMode::Oidc,
        AuthArg::Env => AuthMode::Env,
        AuthArg::Ambient => AuthMode::Ambient,
        AuthArg::Anonymous => AuthMode::Anonymous,
    });
    let keys = [env_vars::AWS_ACCESS_KEY_ID, env_vars::AWS_SECRET_ACCESS_KEY];
    let keys = keys.iter().all(|key| env.get(key).is_some());
    choose::auth_mode(asked, env.get(env_vars::CRCR_AUTH_MODE), keys)
}

fn access(mode: AuthMode, env: &Env, printer: &Printer) -> Result<S3Access, Failure> {
    match mode {
        AuthMode::Anonymous => return Ok(S3Access::Anonymous),
        AuthMode::Ambient => return Ok(S3Access::Ambient),
        AuthMode::Oidc | AuthMode::Env => {}
    }
    let key = env.get(env_vars::AWS_ACCESS_KEY_ID);
    let Some((key, secret)) = key.zip(env.get(env_vars::AWS_SECRET_ACCESS_KEY)) else {
        return Err(Failure::user(
            "no-credentials",
            "`AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY` aren't set, and `auth-mode` wants them",
        )
        .hint("run `configure-oidc-fallback` before this step, or set `auth-mode: anonymous`"));
    };
    let token = env.get(env_vars::AWS_SESSION_TOKEN).map(str::to_owned);
    let credentials = Credentials::new(key, secret, token, None, "environment");
    let renewing = (mode == AuthMode::Oidc)
        .then(|| RenewingCredentials::new(credentials.clone(), env, printer))
        .flatten();
    Ok(S3Access::Given(match renewing {
        Some(renewing) => SharedCredentialsProvider::new(renewing),
        None => SharedCredentialsProvider::new(credentials),
    }))
}

/// Tells the runner to hide a secret.
pub fn mask(printer: &Printer) -> SecretMask {
    let printer = printer.clone();
    Arc::new(move |secret| printer.mask(secret))
}

/// The artifact service of the job's run; `None` without a runtime token.
pub fn service(env: &Env, printer: &Printer) -> Result<Option<GitHubStore>, Failure> {
    let pair = |token, url| Some((env.get(token)?, env.get(url)?));
    let ours = pair(env_vars::CRCR_RUNTIME_TOKEN, env_vars::CRCR_RESULTS_URL);
    let runners = || pair(env_vars::ACTIONS_RUNTIME_TOKEN, env_vars::ACTIONS_RESULTS_URL);
    let Some((token, url)) = ours.or_else(runners) else {
        return Ok(None);
    };
    printer.mask(token);
    let service = ArtifactService::new(client(env)?, url, token.to_owned().into());
    let service = service.map_err(|error| {
        Failure::unexpected("runtime-token", "the artifact service can't be used")
            .because(error)
            .hint("the action hands over the runner's own token and address; set neither by hand")
    })?;
    let retry = last_resort(env)?;
    let service = service.with_retry(retry).on(server(env));
    let uploads = UploadClient::new(silence(env, retry)?, retry.total).map_err(no_client)?;
    Ok(Some(GitHubStore::new(service, uploads, mask(printer))))
}

/// The run in `args`, by default the run of this job.
pub fn run_of(args: &RunArgs, env: &Env) -> Result<SourceRun, Failure> {
    let absent = |what: &str| {
        let text = format!("no `{what}`, and this isn't a job of GitHub Actions");
        Failure::unexpected("no-run", text)
            .hint("name the run with `--repository owner/repo` and `--run-id`")
    };
    let own_repository = env.get(env_vars::GITHUB_REPOSITORY);
    let own_id = env.get(env_vars::GITHUB_RUN_ID).and_then(|id| id.parse().ok());
    let repository = args.repository.as_deref().map(str::trim).or(own_repository);
    let repository = repository.ok_or_else(|| absent("repository"))?;
    let well_formed = |part: &str| !part.is_empty() && !part.contains(['/', ' ']);
    if !repository.split_once('/').is_some_and(|(o, r)| well_formed(o) && well_formed(r)) {
        let text = format!("`repository` (`{repository}`) isn't `owner/repo`");
        let hint = "write the owner, a slash and the name, such as `pytorch/pytorch`";
        return Err(Failure::user("repository", text).hint(hint));
    }
    let id = args.run_id.or(own_id).ok_or_else(|| absent("run-id"))?;
    let same = own_repository.is_some_and(|own| own.eq_ignore_ascii_case(repository));
    let own = same && own_id == Some(id);
    let first_attempt = own && env.get(env_vars::GITHUB_RUN_ATTEMPT) == Some("1");
    Ok(SourceRun { repository: repository.to_owned(), id, own, first_attempt })
}

/// Every place to look for artifacts but the artifact service, which has those of the job's own run
/// only.
pub fn sources(
    run: &RunArgs,
    s3_args: &S3Args,
    env: &Env,
    printer: &Printer,
) -> Result<ArtifactSources, Failure> {
    let token = run.github_token.as_deref().or_else(|| env.get(env_vars::GITHUB_TOKEN));
    let rest = match token {
        // The runners of Gitea, Forgejo and act hand over a token unasked, and their servers may have no TLS.
        Some(_) if run.github_token.is_none() && !has_secure_api(env) => None,
        Some(token) => {
            printer.mask(token);
            let base = env.get(env_vars::GITHUB_API_URL).unwrap_or("https://api.github.com");
            let base = base.parse().map_err(|error: SecureUrlError| {
                Failure::unexpected("api-url", format!("`GITHUB_API_URL` {error}"))
            })?;
            let actions = ActionsApi::new(client(env)?, base, SecretString::from(token.to_owned()))
                .map_err(|error| {
                    Failure::unexpected("api-url", "GitHub's API can't be used").because(error)
                })?;
            Some(actions.with_retry(last_resort(env)?))
        }
        None => None,
    };
    let bucket = match s3(s3_args, env, printer)? {
        Some(config) => Some(ArtifactBucket { config, layout: layout(s3_args)? }),
        None => None,
    };
    let (notifier, warner) = (printer.clone(), printer.clone());
    Ok(ArtifactSources {
        service: None,
        rest,
        bucket,
        mask: mask(printer),
        notice: Arc::new(move |text| notifier.notice(text)),
        warning: Arc::new(move |text| warner.warning(text, None)),
    })
}

fn has_secure_api(env: &Env) -> bool {
    env.get(env_vars::GITHUB_API_URL).is_none_or(|url| url.parse::<SecureUrl>().is_ok())
}

/// Where artifacts lie in the bucket.
pub fn layout(args: &S3Args) -> Result<KeyLayout, Failure> {
    KeyLayout::new(args.s3_prefix.as_deref().unwrap_or_default())
        .map_err(|error| Failure::user("s3-prefix", "`s3-prefix` can't be used").because(error))
}

const EXPIRED_HINT: &str =
    "run the job that makes it again; `retention-days` of the upload keeps it longer";

/// A bucket's list or a locator has it, so the upload had ended.
pub const DELETED_HINT: &str =
    "the bucket's lifecycle or somebody has deleted it: run the job that makes it again";

/// How a search that failed reads.
pub fn not_found(error: find::FindError, env: &Env) -> Failure {
    let text = match &error {
        // Gitea and Forgejo have the list.
        find::FindError::Nowhere
        | find::FindError::NoNumbers(_)
        | find::FindError::Missing { .. }
            if is_enterprise(env) && !error.to_string().contains("GitHub's list") =>
        {
            format!("{NO_V4_ARTIFACTS}; {error}")
        }
        error => error.to_string(),
    };
    match error {
        find::FindError::TokenNeeded { .. } => Failure::user("token-needed", text)
            .hint("pass `github-token` with `permissions: actions: read`"),
        find::FindError::Nowhere | find::FindError::NoNumbers(_) => {
            Failure::user("nowhere-to-look", text).hint(
                "use the action `download-artifact-with-fallback`, or pass `github-token`; an \
                 artifact in a bucket is found by `s3-bucket` and its `name`",
            )
        }
        find::FindError::Missing { .. } => Failure::user("artifact-not-found", text)
            .hint("`crcr artifact list` prints what is there; the upload must have ended"),
        find::FindError::Expired { .. } => {
            Failure::user("artifact-expired", text).hint(EXPIRED_HINT)
        }
        find::FindError::Forbidden { signed: true, searched, .. } => {
            let answers = searched.iter().filter_map(|place| place.split_once(" refused: "));
            let of_credentials = answers.filter_map(|(_, answer)| credentials_hint(answer)).next();
            Failure::user("store-denied", text).hint(of_credentials.unwrap_or(
                "the credentials need `s3:GetObject` on the artifact and `s3:ListBucket` on the \
                 bucket: without the second, S3 answers 403 for what isn't there, too",
            ))
        }
        find::FindError::Forbidden { signed: false, .. } => Failure::user("store-denied", text)
            .hint(
                "run `configure-oidc-fallback` before this step, or let the bucket policy allow \
             `s3:GetObject` and `s3:ListBucket` to everybody",
            ),
        find::FindError::Locator(_) => Failure::user("locator-refused", text)
            .hint("a locator is followed only into the configured bucket, below this run's prefix"),
        find::FindError::Store(error) => store_failed(error),
    }
}

/// Converts an error of a store while reading.
pub fn store_failed(error: store::ArtifactStoreError) -> Failure {
    const RIGHTS: &str = "the credentials need `s3:GetObject` on the artifact and \
                          `s3:ListBucket` on the bucket";
    let text = error.to_string();
    let hint = store_hint(&error, RIGHTS);
    let failure = match error {
        store::ArtifactStoreError::Denied { .. } => Failure::user("store-denied", text),
        store::ArtifactStoreError::MissingBucket(_) => Failure::user("missing-bucket", text),
        store::ArtifactStoreError::WrongRegion { .. } => Failure::user("wrong-region", text),
        store::ArtifactStoreError::NotFound { .. } => Failure::user("artifact-not-found", text),
        store::ArtifactStoreError::Expired { .. } => Failure::user("artifact-expired", text),
        store::ArtifactStoreError::Unreachable { .. } => {
            Failure::unexpected("store-unreachable", text)
        }
        _ => Failure::unexpected("store-refused", text),
    };
    with_hint(failure, hint)
}

pub fn with_hint(failure: Failure, hint: Option<&str>) -> Failure {
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// The hint for a refusal by S3 that is about the credentials and not about their rights.
fn credentials_hint(answer: &str) -> Option<&'static str> {
    let is_one_of = |codes: &[&str]| codes.iter().any(|code| answer.starts_with(code));
    if is_one_of(&["ExpiredToken", "400 "]) {
        Some(
            "the credentials have ended: raise `role-duration-seconds` of \
             `configure-oidc-fallback`, or run it right before this step",
        )
    } else if is_one_of(&[NOT_SIGNED]) {
        Some(
            "correct what gives this machine its credentials: `crcr doctor` says what is configured",
        )
    } else if is_one_of(&["RequestTimeTooSkewed"]) || answer.contains(SKEWED) {
        Some("set the clock of the runner, by NTP for example")
    } else if is_one_of(&["SignatureDoesNotMatch", "InvalidAccessKeyId", "InvalidToken"]) {
        Some(
            "S3 doesn't know these credentials: check where they come from, `s3-endpoint`, and that a \
             secret wasn't stored with a space or a line break",
        )
    } else {
        None
    }
}

/// The hint for a refusal by S3 that is about the bucket's settings.
fn bucket_hint(answer: &str) -> Option<&'static str> {
    if answer.contains("kms:") {
        Some(
            "the bucket encrypts with a key of KMS: the credentials need `kms:GenerateDataKey` and \
             `kms:Decrypt` on it, and its policy has to allow them",
        )
    } else if ["Quota", "StorageFull"].iter().any(|word| answer.contains(word)) {
        Some(
            "the bucket or its server is full: delete what isn't needed any more, by a lifecycle rule for example, or \
             raise the quota",
        )
    } else if answer.contains(LEADS_TO) {
        Some("give that address as `s3-endpoint`, if it is the server's own")
    } else if answer.contains("AccessControlListNotSupported") {
        Some("the bucket's owner owns each object, and it takes no ACLs: leave out `s3-acl`")
    } else if answer.contains("explicit deny") {
        Some(
            "a policy forbids it, whatever the credentials may: a bucket's may demand `s3-sse`, \
             `s3-sse-kms-key-id`, `s3-acl` or a network, which its statements with `Deny` say",
        )
    } else {
        None
    }
}

/// The hint for an error of a store; `rights` is the one for missing rights on S3.
pub fn store_hint(error: &store::ArtifactStoreError, rights: &'static str) -> Option<&'static str> {
    Some(match error {
        store::ArtifactStoreError::Denied { store: S3, message } => {
            credentials_hint(message).or_else(|| bucket_hint(message)).unwrap_or(rights)
        }
        store::ArtifactStoreError::Refused { store: S3, message } => bucket_hint(message)?,
        store::ArtifactStoreError::Denied { .. } => {
            "the runtime token lives as long as its job, a URL for an upload an hour; a \
             `github-token` needs `permissions: actions: read`"
        }
        store::ArtifactStoreError::MissingBucket(_) => "check `s3-bucket` and `s3-endpoint`",
        store::ArtifactStoreError::WrongRegion { .. } => {
            "give the bucket's own region as `aws-region`, or leave it out"
        }
        store::ArtifactStoreError::Expired { .. } => EXPIRED_HINT,
        store::ArtifactStoreError::NotFound { store: S3, .. } => DELETED_HINT,
        store::ArtifactStoreError::NotFound { .. } => {
            "`crcr artifact list` prints what is there; the upload must have ended"
        }
        store::ArtifactStoreError::Unreachable { store: S3, .. } => {
            "run the job again; if it fails again, look at `s3-endpoint`, the network and the proxy"
        }
        store::ArtifactStoreError::Unreachable { .. } => {
            "run the job again; if it fails again, look at the network, the proxy and GitHub's status"
        }
        _ => return None,
    })
}

/// The web page of an artifact at GitHub.
pub fn github_url(env: &Env, repository: &str, run_id: u64, artifact_id: u64) -> String {
    let server = env.get(env_vars::GITHUB_SERVER_URL).unwrap_or("https://github.com");
    format!("{server}/{repository}/actions/runs/{run_id}/artifacts/{artifact_id}")
}

/// The page of an object in the AWS console, or, on another server, the object's own address. A `key`
/// with a final slash is a folder.
pub fn s3_page(endpoint: Option<&str>, region: &str, bucket: &str, key: &str) -> String {
    let plain = format!("s3://{bucket}/{key}");
    if let Some(endpoint) = endpoint {
        let Ok(mut url) = Url::parse(endpoint) else { return plain };
        let in_path = is_path_style(&url);
        let host = url.host_str().map(|host| format!("{bucket}.{host}")).unwrap_or_default();
        if !in_path && url.set_host(Some(&host)).is_err() {
            return plain;
        }
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(in_path.then_some(bucket)).extend(key.split('/'));
        }
        return url.into();
    }
    let host = match region.split('-').next() {
        Some("cn") => "console.amazonaws.cn",
        Some("us") if region.starts_with("us-gov-") => "console.amazonaws-us-gov.com",
        _ => "console.aws.amazon.com",
    };
    let kind = if key.ends_with('/') { "buckets" } else { "object" };
    let query = [("region", region), ("prefix", key)];
    match Url::parse_with_params(&format!("https://{region}.{host}/s3/{kind}/{bucket}"), query) {
        // The console has no such page for an access point.
        Ok(url) if !bucket.contains(':') => url.into(),
        _ => plain,
    }
}

/// One artifact in the step summary.
pub struct SummaryRow<'a> {
    pub name: &'a str,
    pub url: &'a str,
    pub store: &'a str,
    pub reason: &'a str,
    pub files: &'a str,
    pub size: &'a str,
}

/// The step summary of an upload or a download.
pub fn table(rows: &[SummaryRow<'_>]) -> String {
    let mut text = "| artifact | store | why | files | size |\n|---|---|---|---|---|".to_owned();
    for SummaryRow { name, url, store, reason, files, size } in rows {
        let name = escape_markdown(name);
        let name = if url.starts_with("http") { format!("[{name}]({url})") } else { name };
        text.push_str(&format!("\n| {name} | {store} | {reason} | {files} | {size} |"));
    }
    text.push('\n');
    text
}

/// Adds a failure to the step summary, where people look first.
pub fn summarize_failure(name: &str, failure: &Failure, runner: &Runner, printer: &Printer) {
    let mut why = failure.message().to_owned();
    for cause in failure.causes() {
        why.push_str(&format!(": {cause}"));
    }
    let mut text = format!(
        "| artifact | error | why | what to do |\n|---|---|---|---|\n| {} | `{}` | {} | {} |\n",
        escape_markdown(name),
        failure.code(),
        escape_markdown(&why),
        escape_markdown(failure.help().unwrap_or_default()),
    );
    // A step's summary may have 1 MiB, and a failure may list many files.
    text.truncate(text.floor_char_boundary(16 * 1024));
    if let Err(failure) = runner.append_summary(&text) {
        printer.warning(&failure.with_causes(), failure.help());
    }
}

/// `1 file`, `2 files`.
pub fn files_text(count: u64) -> String {
    plural(count, "file", "files")
}

/// Sets the outputs of a failed upload or download. An error here is only a warning, because it must not
/// hide the failure.
pub fn set_empty_outputs(outputs: &[&str], reason: &str, runner: &Runner, printer: &Printer) {
    let value = |name: &str| match name {
        "store" => "none".to_owned(),
        "reason" => reason.to_owned(),
        "size" | "files" => "0".to_owned(),
        _ => String::new(),
    };
    let values: Vec<_> = outputs.iter().map(|name| (*name, value(name))).collect();
    let pairs: Vec<_> = values.iter().map(|(name, value)| (*name, value.as_str())).collect();
    if let Err(failure) = runner.set_outputs(&pairs) {
        printer.warning(&failure.with_causes(), failure.help());
    }
}

/// With `required: false` a failure is only a warning.
pub fn warn_instead(failure: &Failure, printer: &Printer) {
    let causes: String =
        failure.causes().iter().map(|cause| format!("\n  because: {cause}")).collect();
    let text = format!("{failure}; it isn't required, so the step goes on{causes}");
    printer.warning(&text, failure.help());
}

/// A store that works may need this long for an answer.
const SHORTEST_SILENCE: Duration = Duration::from_secs(20);

/// The read timeout of a store. If the user gives none, a store that is silent once is asked again before `retry`
/// ends.
pub fn silence(env: &Env, retry: RetryPolicy) -> Result<Duration, Failure> {
    let seconds = seconds(env, env_vars::CRCR_READ_TIMEOUT, "read-timeout", 1..=3600)?;
    Ok(seconds.unwrap_or_else(|| (retry.total / 2).clamp(SHORTEST_SILENCE, http::SILENCE)))
}

/// A variable that holds a number of seconds.
fn seconds(
    env: &Env,
    name: &str,
    code: &'static str,
    range: std::ops::RangeInclusive<u64>,
) -> Result<Option<Duration>, Failure> {
    let Some(text) = env.get(name) else { return Ok(None) };
    let seconds = text.trim().parse().ok().filter(|seconds| range.contains(seconds));
    seconds.map(Duration::from_secs).map(Some).ok_or_else(|| {
        let (from, to) = (range.start(), range.end());
        Failure::unexpected(code, format!("`{name}` (`{text}`) isn't {from} to {to} seconds"))
    })
}

pub fn client(env: &Env) -> Result<reqwest::Client, Failure> {
    http::client_with(silence(env, last_resort(env)?)?).map_err(no_client)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_of_an_object_has_the_bucket_where_the_server_wants_it() {
        let page = |endpoint| s3_page(Some(endpoint), "any", "acme", "a b/c.zip");
        assert_eq!(page("http://minio:9000/s3/"), "http://minio:9000/s3/acme/a%20b/c.zip");
        let page = page("https://oss-cn-shanghai.aliyuncs.com");
        assert_eq!(page, "https://acme.oss-cn-shanghai.aliyuncs.com/a%20b/c.zip");
    }

    #[test]
    fn address_of_a_bucket_alone_is_told_from_that_of_its_server() {
        for (text, server) in [
            ("https://acme.nyc3.digitaloceanspaces.com", Some("nyc3.digitaloceanspaces.com")),
            ("https://acme.s3.us-east-1.amazonaws.com/", Some("s3.us-east-1.amazonaws.com")),
            ("https://acme.oss-cn-shanghai.aliyuncs.com", Some("oss-cn-shanghai.aliyuncs.com")),
            ("https://acme.t3.storage.dev", Some("t3.storage.dev")),
            ("https://nyc3.digitaloceanspaces.com", None),
            ("https://s3.us-east-1.amazonaws.com", None),
            ("https://acme.digitaloceanspaces.com", None),
            ("https://acme.example.org:9000", None),
            ("http://acme:9000", None),
        ] {
            assert_eq!(host_without_bucket(&text.parse().unwrap(), "acme"), server, "{text}");
        }
        let refused = endpoint("s3-endpoint", "https://acme.s3.wasabisys.com", "acme").unwrap_err();
        assert_eq!(
            refused.help(),
            Some("give the address of the server: `https://s3.wasabisys.com`")
        );
    }

    #[test]
    fn refusal_by_a_buckets_settings_isn_t_blamed_on_rights_of_s3() {
        let hint = |message: &str, is_denied: bool| {
            let message = message.to_owned();
            let error = match is_denied {
                true => store::ArtifactStoreError::Denied { store: S3, message },
                false => store::ArtifactStoreError::Refused { store: S3, message },
            };
            store_hint(&error, "rights").unwrap_or_default()
        };
        // As S3 says it.
        let user =
            "AccessDenied: User: arn:aws:sts::1:assumed-role/ci/x is not authorized to perform: ";
        let key = format!(
            "{user}kms:GenerateDataKey on resource: arn:aws:kms:us-east-1:1:key/a because no \
                           identity-based policy allows the kms:GenerateDataKey action"
        );
        assert!(hint(&key, true).contains("`kms:Decrypt`"));
        let denied = format!(
            "{user}s3:PutObject on resource: \"arn:aws:s3:::acme/x\" with an explicit deny in a \
                              resource-based policy"
        );
        assert!(hint(&denied, true).contains("`s3-sse`"));
        let acl = "AccessControlListNotSupported: The bucket does not allow ACLs";
        assert!(hint(acl, false).contains("leave out `s3-acl`"));
        assert_eq!(hint("AccessDenied: Access Denied", true), "rights");
        assert_eq!(hint("InvalidArgument: x", false), "");
        // As Ceph and MinIO say it.
        for full in ["QuotaExceeded for `a`", "XMinioStorageFull: Storage backend has reached"] {
            assert!(hint(full, true).contains("is full") && hint(full, false).contains("is full"));
        }
    }
}
