//! The environment variables that `crcr` itself reads. Only [`Env::from_process`] accesses the process
//! environment, with `no_proxy` and `extra_roots`. Libraries read more: the AWS SDK its settings, the HTTP clients the proxy variables.

use std::collections::BTreeMap;

use crate::failure::Failure;

/// A snapshot of the environment, which tests can construct.
#[derive(Clone, Default)]
pub struct Env(BTreeMap<String, String>);

impl Env {
    /// Skips names that aren't UTF-8. In such a value, U+FFFD stands for what can't be read. Were the value skipped, a
    /// default would silently take its place.
    pub fn from_process() -> Self {
        Self(
            std::env::vars_os()
                .filter_map(|(k, v)| {
                    Some((k.into_string().ok()?, v.to_string_lossy().into_owned()))
                })
                .collect(),
        )
    }

    /// An empty value counts as absent.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// A setting of the relay as the relay reads it: the value of NAME, or the content of the file NAME_FILE.
    pub fn setting(&self, name: &str) -> Result<Option<String>, Failure> {
        Ok(self.secret(name)?.map(|value| value.trim().to_owned()))
    }

    /// The same for a secret, of which blanks may be a part.
    pub fn secret(&self, name: &str) -> Result<Option<String>, Failure> {
        let filled = |text: &str| {
            // Some editors write a byte order mark.
            let value = text.trim_start_matches('\u{feff}').trim_end_matches(['\r', '\n']);
            (!value.trim().is_empty()).then(|| value.to_owned())
        };
        if let Some(value) = self.get(name).and_then(filled) {
            return Ok(Some(value));
        }
        let file = format!("{name}_FILE");
        let Some(path) = self.get(&file) else { return Ok(None) };
        let text = std::fs::read_to_string(path).map_err(|error| {
            Failure::user("settings", format!("{file}: `{path}` can't be read")).because(error)
        })?;
        let empty = || Failure::user("settings", format!("{file}: `{path}` is empty"));
        filled(&text).ok_or_else(empty).map(Some)
    }

    /// The names of all variables.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Whether the variable exists, even if it is empty. sccache treats the two cases differently.
    pub fn is_defined(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Whether the variable holds `true` in any case, as AWS's SDKs read their switches.
    pub fn is_switched_on(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| value.eq_ignore_ascii_case("true"))
    }

    /// Whether the value is `true` or `1`.
    pub fn is_true(&self, name: &str) -> bool {
        matches!(self.get(name), Some("true" | "1"))
    }
}

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for Env {
    fn from_iter<T: IntoIterator<Item = (K, V)>>(iter: T) -> Self {
        Self(iter.into_iter().map(|(k, v)| (k.into(), v.into())).collect())
    }
}

// The runner: https://docs.github.com/en/actions/reference/workflows-and-actions/variables

/// `true` when a workflow of GitHub Actions runs this process.
pub const GITHUB_ACTIONS: &str = "GITHUB_ACTIONS";
/// Set by every CI system; turns off progress bars.
pub const CI: &str = "CI";
/// File for step outputs.
pub const GITHUB_OUTPUT: &str = "GITHUB_OUTPUT";
/// File for environment variables of later steps.
pub const GITHUB_ENV: &str = "GITHUB_ENV";
/// File for the step's markdown summary.
pub const GITHUB_STEP_SUMMARY: &str = "GITHUB_STEP_SUMMARY";
/// Path of the JSON payload of the event that started the workflow.
pub const GITHUB_EVENT_PATH: &str = "GITHUB_EVENT_PATH";
/// Name of the event that started the workflow.
pub const GITHUB_EVENT_NAME: &str = "GITHUB_EVENT_NAME";
/// `owner/repo` of the workflow.
pub const GITHUB_REPOSITORY: &str = "GITHUB_REPOSITORY";
/// Login of the user who started the workflow.
pub const GITHUB_ACTOR: &str = "GITHUB_ACTOR";
/// Full name of the branch, tag or merge result that the workflow runs on.
pub const GITHUB_REF: &str = "GITHUB_REF";
/// Numeric id of [`GITHUB_REPOSITORY`], which a rename keeps.
pub const GITHUB_REPOSITORY_ID: &str = "GITHUB_REPOSITORY_ID";
/// Numeric id of the repository's owner.
pub const GITHUB_REPOSITORY_OWNER_ID: &str = "GITHUB_REPOSITORY_OWNER_ID";
/// Commit of the workflow run.
pub const GITHUB_SHA: &str = "GITHUB_SHA";
/// Number of the workflow run, the same for all its attempts.
pub const GITHUB_RUN_ID: &str = "GITHUB_RUN_ID";
/// Attempt of the workflow run, from 1.
pub const GITHUB_RUN_ATTEMPT: &str = "GITHUB_RUN_ATTEMPT";
/// Key of the job in the workflow file.
pub const GITHUB_JOB: &str = "GITHUB_JOB";
/// The matrix values of the job as JSON. The runner doesn't export them; the actions pass them on.
pub const CRCR_MATRIX: &str = "CRCR_MATRIX";
/// Index of the job in its matrix, passed on in the same way.
pub const CRCR_JOB_INDEX: &str = "CRCR_JOB_INDEX";
pub const GITHUB_WORKFLOW: &str = "GITHUB_WORKFLOW";
/// Checkout folder of the job.
pub const GITHUB_WORKSPACE: &str = "GITHUB_WORKSPACE";
/// URL of GitHub's web pages.
pub const GITHUB_SERVER_URL: &str = "GITHUB_SERVER_URL";
/// URL of GitHub's REST API.
pub const GITHUB_API_URL: &str = "GITHUB_API_URL";
/// The job's token for GitHub's API, when the workflow passes it on.
pub const GITHUB_TOKEN: &str = "GITHUB_TOKEN";
/// `true` on the runners of Gitea and of Forgejo.
pub const GITEA_ACTIONS: &str = "GITEA_ACTIONS";
/// The most days that the repository keeps artifacts.
pub const GITHUB_RETENTION_DAYS: &str = "GITHUB_RETENTION_DAYS";
/// Folder for temporary files, emptied by the runner after the job.
pub const RUNNER_TEMP: &str = "RUNNER_TEMP";
/// Folder for installed tools, which a runner keeps between jobs.
pub const RUNNER_TOOL_CACHE: &str = "RUNNER_TOOL_CACHE";
/// `1` when the workflow runs with debug logging.
pub const RUNNER_DEBUG: &str = "RUNNER_DEBUG";

// OIDC: https://docs.github.com/en/actions/reference/security/oidc

/// URL for requesting an OIDC token; absent without `permissions: id-token: write`.
pub const ACTIONS_ID_TOKEN_REQUEST_URL: &str = "ACTIONS_ID_TOKEN_REQUEST_URL";
/// Bearer token for [`ACTIONS_ID_TOKEN_REQUEST_URL`].
pub const ACTIONS_ID_TOKEN_REQUEST_TOKEN: &str = "ACTIONS_ID_TOKEN_REQUEST_TOKEN";

// The artifact service. The runner gives its variables to JavaScript actions only.

/// The job's token for the artifact service, which our composite actions pass on to one step.
pub const CRCR_RUNTIME_TOKEN: &str = "CRCR_RUNTIME_TOKEN";
/// Address of the artifact service.
pub const CRCR_RESULTS_URL: &str = "CRCR_RESULTS_URL";
/// Address of GitHub's older cache service.
pub const ACTIONS_CACHE_URL: &str = "ACTIONS_CACHE_URL";
/// The job's token for the artifact service, as the runner gives it to JavaScript actions.
pub const ACTIONS_RUNTIME_TOKEN: &str = "ACTIONS_RUNTIME_TOKEN";
/// Address of the artifact service.
pub const ACTIONS_RESULTS_URL: &str = "ACTIONS_RESULTS_URL";

/// Read timeout of artifact stores in seconds. The default is half of the time that an outage is waited out, at least
/// 20 and at most 60.
pub const CRCR_READ_TIMEOUT: &str = "CRCR_READ_TIMEOUT";
/// How long the artifact commands go on during an outage of a store, and `report` during one of the relay, in
/// seconds. The default depends on what is waited for: a minute for one call, longer where no other store is
/// left.
pub const CRCR_RETRY_SECONDS: &str = "CRCR_RETRY_SECONDS";

// The user's folders: https://specifications.freedesktop.org/basedir-spec/latest/

/// The user's folder; `~` in a path stands for it.
pub const HOME: &str = "HOME";
/// The user's folder on Windows.
pub const USERPROFILE: &str = "USERPROFILE";
/// Cache folder; the default is `~/.cache`.
pub const XDG_CACHE_HOME: &str = "XDG_CACHE_HOME";
/// Folder of settings; the default is `~/.config`.
pub const XDG_CONFIG_HOME: &str = "XDG_CONFIG_HOME";
/// File of git's settings for this user; the default is `~/.gitconfig`.
pub const GIT_CONFIG_GLOBAL: &str = "GIT_CONFIG_GLOBAL";

// The relay's clients

/// The relay's callback address, unless a flag or input sets it.
pub const CRCR_CALLBACK_URL: &str = "CRCR_CALLBACK_URL";
/// Audience of OIDC tokens for the relay.
pub const CRCR_OIDC_AUDIENCE: &str = "CRCR_OIDC_AUDIENCE";
/// Id of the job's own check run. The runner doesn't export it; the action passes it on.
pub const CRCR_CHECK_RUN_ID: &str = "CRCR_CHECK_RUN_ID";
/// The client payload that the relay dispatched, as JSON, for CI systems without an event payload.
pub const CRCR_CLIENT_PAYLOAD: &str = "CRCR_CLIENT_PAYLOAD";

/// Read directly only when the command line can't be parsed.
pub const INPUT_ON_UNAVAILABLE: &str = "INPUT_ON_UNAVAILABLE";
/// The input that says whether an artifact is essential; read where the inputs can't be parsed.
pub const INPUT_REQUIRED: &str = "INPUT_REQUIRED";

// Buildkite: https://buildkite.com/docs/pipelines/configure/environment-variables

/// `true` in a job of Buildkite.
pub const BUILDKITE: &str = "BUILDKITE";
/// Name of the pipeline in URLs.
pub const BUILDKITE_PIPELINE_SLUG: &str = "BUILDKITE_PIPELINE_SLUG";
pub const BUILDKITE_BUILD_URL: &str = "BUILDKITE_BUILD_URL";
pub const BUILDKITE_BUILD_ID: &str = "BUILDKITE_BUILD_ID";
/// How often the job was retried.
pub const BUILDKITE_RETRY_COUNT: &str = "BUILDKITE_RETRY_COUNT";
/// Display name of the step.
pub const BUILDKITE_LABEL: &str = "BUILDKITE_LABEL";
pub const BUILDKITE_STEP_KEY: &str = "BUILDKITE_STEP_KEY";
/// The index of a parallel job, from 0. All jobs of a parallel step have one label.
pub const BUILDKITE_PARALLEL_JOB: &str = "BUILDKITE_PARALLEL_JOB";
/// `true` in the last step of a build: nothing else of the build reports after it. The relay can't ask Buildkite
/// whether a build is over.
pub const CRCR_RUN_ENDED: &str = "CRCR_RUN_ENDED";

// The terminal: https://no-color.org and https://bixense.com/clicolors

/// Turns colour off unless empty.
pub const NO_COLOR: &str = "NO_COLOR";
/// Turns colour on unless empty or `0`, even without a terminal.
pub const CLICOLOR_FORCE: &str = "CLICOLOR_FORCE";
/// Kind of terminal; `dumb` has no colour and no cursor.
pub const TERM: &str = "TERM";
/// What to log, as `target=level` pairs; see the tracing-subscriber documentation.
pub const CRCR_LOG: &str = "CRCR_LOG";

// Exported by `oidc configure` for later steps of the job

/// How the job got credentials: `oidc`, `ambient`, `anonymous` or `error`.
pub const CRCR_AUTH_MODE: &str = "CRCR_AUTH_MODE";
/// Stable code of the reason.
pub const CRCR_AUTH_REASON: &str = "CRCR_AUTH_REASON";
/// Role of the exported credentials.
pub const CRCR_AUTH_ROLE_ARN: &str = "CRCR_AUTH_ROLE_ARN";
/// Audience of the token that the role was assumed with.
pub const CRCR_AUTH_AUDIENCE: &str = "CRCR_AUTH_AUDIENCE";
/// URL of the STS endpoint.
pub const CRCR_AUTH_STS_ENDPOINT: &str = "CRCR_AUTH_STS_ENDPOINT";
/// When the exported credentials expire, in RFC 3339.
pub const CRCR_AUTH_EXPIRATION: &str = "CRCR_AUTH_EXPIRATION";
/// SHA-256 of the access key id and the session. A later call with the same inputs recognises the
/// credentials of the first one by it.
pub const CRCR_AUTH_FINGERPRINT: &str = "CRCR_AUTH_FINGERPRINT";

/// Path of the file that the input `env-file` made.
pub const CRCR_AUTH_ENV_FILE: &str = "CRCR_AUTH_ENV_FILE";

// AWS: https://docs.aws.amazon.com/sdkref/latest/guide/settings-reference.html

pub const AWS_ACCESS_KEY_ID: &str = "AWS_ACCESS_KEY_ID";
pub const AWS_SECRET_ACCESS_KEY: &str = "AWS_SECRET_ACCESS_KEY";
pub const AWS_SESSION_TOKEN: &str = "AWS_SESSION_TOKEN";
pub const AWS_REGION: &str = "AWS_REGION";
/// Region for the AWS CLI and older SDKs.
pub const AWS_DEFAULT_REGION: &str = "AWS_DEFAULT_REGION";
/// URL of an S3 server, where no flag or input gives one.
pub const AWS_ENDPOINT_URL_S3: &str = "AWS_ENDPOINT_URL_S3";
/// URL of STS, where no flag or input gives one.
pub const AWS_ENDPOINT_URL_STS: &str = "AWS_ENDPOINT_URL_STS";
/// URL of a server that speaks S3; [`AWS_ENDPOINT_URL_S3`] wins. It is no STS: such servers rarely have one.
pub const AWS_ENDPOINT_URL: &str = "AWS_ENDPOINT_URL";
/// `true` turns these off.
pub const AWS_IGNORE_CONFIGURED_ENDPOINT_URLS: &str = "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS";
/// `true` asks for AWS's endpoints with FIPS-validated cryptography.
pub const AWS_USE_FIPS_ENDPOINT: &str = "AWS_USE_FIPS_ENDPOINT";
/// `true` asks for AWS's endpoints that have IPv6 addresses too.
pub const AWS_USE_DUALSTACK_ENDPOINT: &str = "AWS_USE_DUALSTACK_ENDPOINT";
/// File of root certificates for programs with AWS's SDKs; added to the system's.
pub const AWS_CA_BUNDLE: &str = "AWS_CA_BUNDLE";
/// `true` stops SDKs from using instance credentials.
pub const AWS_EC2_METADATA_DISABLED: &str = "AWS_EC2_METADATA_DISABLED";
/// Token file that EKS mounts into a pod.
pub const AWS_WEB_IDENTITY_TOKEN_FILE: &str = "AWS_WEB_IDENTITY_TOKEN_FILE";
/// Credentials endpoint of an ECS task.
pub const AWS_CONTAINER_CREDENTIALS_RELATIVE_URI: &str = "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI";
/// Credentials endpoint of a pod with EKS Pod Identity.
pub const AWS_CONTAINER_CREDENTIALS_FULL_URI: &str = "AWS_CONTAINER_CREDENTIALS_FULL_URI";
/// Profile in the shared files.
pub const AWS_PROFILE: &str = "AWS_PROFILE";
/// Profile for the AWS CLI.
pub const AWS_DEFAULT_PROFILE: &str = "AWS_DEFAULT_PROFILE";
/// Shared settings file; the default is `~/.aws/config`.
pub const AWS_CONFIG_FILE: &str = "AWS_CONFIG_FILE";
/// Shared credentials file; the default is `~/.aws/credentials`.
pub const AWS_SHARED_CREDENTIALS_FILE: &str = "AWS_SHARED_CREDENTIALS_FILE";

// sccache: https://github.com/mozilla/sccache/blob/main/docs/Configuration.md

pub const SCCACHE_BUCKET: &str = "SCCACHE_BUCKET";
pub const SCCACHE_REGION: &str = "SCCACHE_REGION";
pub const SCCACHE_S3_KEY_PREFIX: &str = "SCCACHE_S3_KEY_PREFIX";
/// The address of the S3 service, with or without a scheme.
pub const SCCACHE_ENDPOINT: &str = "SCCACHE_ENDPOINT";
/// Exactly `true` or `false`; sccache fails on an empty value.
pub const SCCACHE_S3_NO_CREDENTIALS: &str = "SCCACHE_S3_NO_CREDENTIALS";
/// `READ_ONLY` or `READ_WRITE`: whether results are stored, too.
pub const SCCACHE_S3_RW_MODE: &str = "SCCACHE_S3_RW_MODE";
/// `1` makes sccache compile without the cache if its server fails.
pub const SCCACHE_IGNORE_SERVER_IO_ERROR: &str = "SCCACHE_IGNORE_SERVER_IO_ERROR";
/// Whether the endpoint is asked over TLS; replaces the scheme in [`SCCACHE_ENDPOINT`].
pub const SCCACHE_S3_USE_SSL: &str = "SCCACHE_S3_USE_SSL";
/// Whether the bucket's name is in the host name.
pub const SCCACHE_S3_ENABLE_VIRTUAL_HOST_STYLE: &str = "SCCACHE_S3_ENABLE_VIRTUAL_HOST_STYLE";
/// The caches that are used, from the fastest to the slowest, such as `disk,s3`. sccache 0.14 and newer.
pub const SCCACHE_MULTILEVEL_CHAIN: &str = "SCCACHE_MULTILEVEL_CHAIN";
/// Folder of the cache on disk.
pub const SCCACHE_DIR: &str = "SCCACHE_DIR";
/// Its mode, like [`SCCACHE_S3_RW_MODE`].
pub const SCCACHE_LOCAL_RW_MODE: &str = "SCCACHE_LOCAL_RW_MODE";
/// The path of sccache's configuration file.
pub const SCCACHE_CONF: &str = "SCCACHE_CONF";
/// `true` makes sccache use GitHub's cache service.
pub const SCCACHE_GHA_ENABLED: &str = "SCCACHE_GHA_ENABLED";
/// Its version of that cache; enough to use it.
pub const SCCACHE_GHA_VERSION: &str = "SCCACHE_GHA_VERSION";
/// Each of these gives sccache another cache than its disk, or makes it refuse to start without one.
/// [`SCCACHE_GHA_ENABLED`] isn't among them, since it can be `false`.
pub const SCCACHE_REMOTE_CACHES: [&str; 17] = [
    SCCACHE_BUCKET,
    SCCACHE_GHA_VERSION,
    "SCCACHE_REDIS",
    "SCCACHE_REDIS_ENDPOINT",
    "SCCACHE_REDIS_CLUSTER_ENDPOINTS",
    "SCCACHE_MEMCACHED",
    "SCCACHE_MEMCACHED_ENDPOINT",
    "SCCACHE_GCS_BUCKET",
    "SCCACHE_GCS_KEY_PATH",
    "SCCACHE_GCS_CREDENTIALS_URL",
    "SCCACHE_GCS_OAUTH_URL",
    "SCCACHE_AZURE_CONNECTION_STRING",
    "SCCACHE_AZURE_STORAGE_ACCOUNT",
    "SCCACHE_AZURE_ENDPOINT",
    "SCCACHE_WEBDAV_ENDPOINT",
    "SCCACHE_OSS_BUCKET",
    "SCCACHE_COS_BUCKET",
];

// The relay. Its other settings have no constant here: `crcr_relay::config` looks them up by name in
// an [`Env`], and `crcr relay serve --help` lists them.

/// Address on which the relay listens; `crcr relay health` asks it.
pub const CRCR_LISTEN: &str = "CRCR_LISTEN";
/// With this token, operators can use the relay's public listener.
pub const CRCR_ADMIN_TOKEN: &str = "CRCR_ADMIN_TOKEN";
/// The relay's state: `sqlite:PATH`, `rediss://…` or `redis://…`.
pub const CRCR_STORE: &str = "CRCR_STORE";
/// The relay's upstream repository, `owner/repo`.
pub const UPSTREAM_REPO: &str = "UPSTREAM_REPO";
/// The results: `sqlite:PATH` or `clickhouse+https://USER:PASSWORD@HOST:PORT/DATABASE`.
pub const CRCR_RESULTS: &str = "CRCR_RESULTS";

/// Where the relay keeps webhooks.
pub const CRCR_ARCHIVE: &str = "CRCR_ARCHIVE";
/// Whether the relay explains failed jobs from their logs; `all` says that private repositories may be shown.
pub const CRCR_JOB_LOGS: &str = "CRCR_JOB_LOGS";
pub const GITHUB_APP_ID: &str = "GITHUB_APP_ID";
/// The GitHub App's private key, as PEM.
pub const GITHUB_APP_PRIVATE_KEY: &str = "GITHUB_APP_PRIVATE_KEY";
/// The GitHub App's webhook secret.
pub const GITHUB_APP_SECRET: &str = "GITHUB_APP_SECRET";
/// Secret in AWS Secrets Manager with settings of the relay as JSON.
pub const SECRET_STORE_ARN: &str = "SECRET_STORE_ARN";
/// Set by AWS Lambda: the address of its runtime API.
pub const AWS_LAMBDA_RUNTIME_API: &str = "AWS_LAMBDA_RUNTIME_API";
/// Where the relay sends spans. The library reads the rest of OpenTelemetry's variables:
/// <https://opentelemetry.io/docs/specs/otel/protocol/exporter/>
pub const OTEL_EXPORTER_OTLP_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
pub const OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
/// Headers for the collector, of spans only.
pub const OTEL_EXPORTER_OTLP_TRACES_HEADERS: &str = "OTEL_EXPORTER_OTLP_TRACES_HEADERS";
/// `none` turns the sending of spans off.
pub const OTEL_TRACES_EXPORTER: &str = "OTEL_TRACES_EXPORTER";
/// Turns everything of OpenTelemetry off.
pub const OTEL_SDK_DISABLED: &str = "OTEL_SDK_DISABLED";
/// The name of the relay in traces.
pub const OTEL_SERVICE_NAME: &str = "OTEL_SERVICE_NAME";
/// Endpoint of AWS Secrets Manager, if it isn't the default of the region.
pub const AWS_ENDPOINT_URL_SECRETS_MANAGER: &str = "AWS_ENDPOINT_URL_SECRETS_MANAGER";

/// The names here that begin with `CRCR_`. The relay's settings have others.
pub const CRCR_NAMES: &[&str] = &[
    CRCR_ADMIN_TOKEN,
    CRCR_AUTH_ENV_FILE,
    CRCR_ARCHIVE,
    CRCR_AUTH_AUDIENCE,
    CRCR_AUTH_EXPIRATION,
    CRCR_AUTH_FINGERPRINT,
    CRCR_AUTH_MODE,
    CRCR_AUTH_REASON,
    CRCR_AUTH_ROLE_ARN,
    CRCR_AUTH_STS_ENDPOINT,
    CRCR_CALLBACK_URL,
    CRCR_CHECK_RUN_ID,
    CRCR_CLIENT_PAYLOAD,
    CRCR_JOB_INDEX,
    CRCR_JOB_LOGS,
    CRCR_LISTEN,
    CRCR_LOG,
    CRCR_MATRIX,
    CRCR_OIDC_AUDIENCE,
    CRCR_READ_TIMEOUT,
    CRCR_RESULTS,
    CRCR_RESULTS_URL,
    CRCR_RETRY_SECONDS,
    CRCR_RUN_ENDED,
    CRCR_RUNTIME_TOKEN,
    CRCR_STORE,
];

// Root certificates

/// File with all root certificates to trust.
pub const SSL_CERT_FILE: &str = "SSL_CERT_FILE";
/// Folders with all root certificates to trust.
pub const SSL_CERT_DIR: &str = "SSL_CERT_DIR";
/// File of root certificates that the runner's own node adds to its others.
pub const NODE_EXTRA_CA_CERTS: &str = "NODE_EXTRA_CA_CERTS";

#[cfg(test)]
mod tests {
    use super::{CRCR_NAMES, Env};

    #[test]
    fn setting_of_the_relay_is_in_a_variable_or_else_in_the_file_that_another_one_names() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("value");
        std::fs::write(&path, "\u{feff}from the file \r\n").unwrap();
        let file = ("X_FILE", path.to_str().unwrap());
        for (variables, value) in [
            (vec![("X", "its own"), file], Some("its own")),
            (vec![("X", " its own\n")], Some("its own")),
            // A line that is left empty in a file of variables sets nothing.
            (vec![("X", " "), file], Some("from the file")),
            (vec![("X", " ")], None),
            (vec![], None),
        ] {
            let setting = Env::from_iter(variables.clone()).setting("X").unwrap();
            assert_eq!(setting.as_deref(), value, "{variables:?}");
        }
        let secret = Env::from_iter([("X", " hush \n")]).secret("X").unwrap();
        assert_eq!(secret.as_deref(), Some(" hush "));
        let absent = Env::from_iter([("X_FILE", "/absent")]).setting("X").unwrap_err();
        assert_eq!(absent.to_string(), "X_FILE: `/absent` can't be read");
        std::fs::write(&path, "\n").unwrap();
        let empty = Env::from_iter([file]).setting("X").unwrap_err();
        assert!(empty.to_string().ends_with("is empty"), "{empty}");
    }

    #[test]
    fn every_variable_of_crcr_is_listed() {
        let declared = include_str!("env_vars.rs")
            .lines()
            .filter_map(|line| line.strip_prefix("pub const CRCR_")?.split_once(": &str ="))
            .map(|(name, _)| format!("CRCR_{name}"));
        for name in declared {
            assert!(CRCR_NAMES.contains(&&*name), "{name}");
        }
    }
}
