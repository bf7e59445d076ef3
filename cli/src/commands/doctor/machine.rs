//! What crcr's commands need of a machine: programs, credentials, network, clock, disk.
//!
//! It says which credentials are there, never what they are.

use std::path::{Path, PathBuf};
use std::time::Duration;

use aws_config::BehaviorVersion;
use aws_config::timeout::TimeoutConfig;
use aws_credential_types::Credentials;
use aws_credential_types::provider::ProvideCredentials as _;
use crcr_artifacts::unpack::free_space;
use crcr_aws::credentials::with_sendable_credentials;
use crcr_aws::sdk_error::sdk_cause;
use crcr_github::SecureUrl;
use crcr_github::http::root_cause;
use jiff::Timestamp;
use reqwest::header::{DATE, HeaderMap};
use serde_json::Value;
use tokio::process::Command;
use url::Url;

use super::report::{CheckReport, CheckResult};
use crate::cli::doctor::DoctorArgs;
use crate::commands::github;
use crate::commands::oidc::{self, AuthPlan, AuthReason};
use crate::env_vars::{self, Env};
use crate::failure::Failure;
use crate::printer::human_bytes;
use crate::runner::Runner;

/// For each program and each server.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);
/// The default chain tries several places, the last one over the network.
const AWS_TIMEOUT: Duration = Duration::from_secs(6);
const MAX_ANSWER_BYTES: usize = 64 * 1024;
/// OIDC tokens and the App's tokens are accepted when clocks differ by a minute at most.
const TOKEN_SKEW: i64 = 60;
/// S3 refuses requests when clocks differ by more.
const S3_SKEW: i64 = 15 * 60;
/// Ubuntu 20.04 has this one. The input `sparse-checkout` of `checkout-pr` needs 2.35.
const OLDEST_GIT: (u32, u32) = (2, 25);
const LITTLE_SPACE: u64 = 5 * 1024 * 1024 * 1024;
const NO_SPACE: u64 = 256 * 1024 * 1024;

pub async fn check(args: &DoctorArgs, runner: &Runner) -> Result<CheckReport, Failure> {
    let env = runner.env();
    let client = github::http()?;
    let relay = relay_url(args, env);
    let (git, github, aws, relay) = tokio::join!(
        git_version(),
        github_api(&client, env),
        aws_credentials(env),
        reach_relay(&client, relay),
    );
    let mut results = vec![version(), git];
    results.extend(github);
    results.push(oidc(runner));
    results.push(artifact_service(env));
    results.push(aws);
    results.push(proxy(env));
    results.push(tool_cache(env));
    results.extend(disk(runner));
    results.push(relay);
    results.extend(super::checkout::check(&args.ephemeral, env));
    let subject = match env.is_true(env_vars::GITHUB_ACTIONS) {
        true => "this job",
        false => "this machine",
    };
    Ok(CheckReport { subject: subject.to_owned(), results })
}

fn version() -> CheckResult {
    let (system, processor) = (std::env::consts::OS, std::env::consts::ARCH);
    let version = env!("CARGO_PKG_VERSION");
    CheckResult::info("version", format!("crcr {version} for {system} on {processor}"))
}

async fn git_version() -> CheckResult {
    let output = Command::new("git").arg("--version").kill_on_drop(true).output();
    let Ok(Ok(output)) = tokio::time::timeout(TIMEOUT, output).await else {
        return CheckResult::error(
            "git",
            "`git` can't be run",
            "install git; `crcr checkout` and `crcr init` need it",
        );
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let number = text.trim().strip_prefix("git version ").unwrap_or_default().to_owned();
    let mut parts = number.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let found = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if found < OLDEST_GIT {
        let (major, minor) = OLDEST_GIT;
        let message = format!("git {number} is older than {major}.{minor}");
        return CheckResult::error("git", message, "install a newer git; `crcr checkout` needs it");
    }
    CheckResult::ok("git", number)
}

/// Asks for the rate limit, which costs nothing and shows the token's scopes and the server's clock.
async fn github_api(client: &reqwest::Client, env: &Env) -> Vec<CheckResult> {
    const CHECK: &str = "github-api";
    let base = match github::api_url(env) {
        Ok(base) => base,
        Err(failure) => {
            let fix = "write it as `https://api.github.com`";
            return vec![CheckResult::error(CHECK, failure.to_string(), fix)];
        }
    };
    let host = base.as_str().trim_end_matches('/').to_owned();
    let token = env.get(env_vars::GITHUB_TOKEN);
    let mut request = client.get(format!("{host}/rate_limit")).timeout(TIMEOUT);
    if let Some(token) = token {
        request = request.bearer_auth(token);
    }
    let sent = Timestamp::now();
    let response = match request.send().await {
        Ok(response) => response,
        Err(error) => {
            let error = error.without_url();
            let message = format!("`{host}` can't be reached: {}", root_cause(&error));
            let fix = "check the network, the proxy variables and the root certificates";
            return vec![
                CheckResult::error(CHECK, message, fix),
                CheckResult::not_checked(
                    "clock",
                    "GitHub wasn't reached, so this clock can't be compared with its clock",
                ),
            ];
        }
    };
    let received = Timestamp::now();
    let (status, headers) = (response.status(), response.headers().clone());
    let body = crcr_github::http::read_json::<Value>(response, MAX_ANSWER_BYTES).await;
    let mut results = vec![match status.as_u16() {
        200..=299 | 401 | 403 | 404 => CheckResult::ok(CHECK, format!("`{host}` answers")),
        code => {
            let fix = "see https://www.githubstatus.com, or the server's own status page";
            CheckResult::error(CHECK, format!("`{host}` answers with {code}"), fix)
        }
    }];
    results.push(token_scopes(token, status.as_u16(), &headers, &body.unwrap_or_default()));
    results.push(clock(&headers, sent, received));
    results
}

fn token_scopes(
    token: Option<&str>,
    status: u16,
    headers: &HeaderMap,
    body: &Value,
) -> CheckResult {
    const CHECK: &str = "github-token";
    let Some(token) = token else {
        let message = "`GITHUB_TOKEN` isn't set: GitHub answers 60 requests an hour without one";
        let fix = "in a workflow, pass `GITHUB_TOKEN: ${{ github.token }}` as `env:` of the step";
        return CheckResult::info(CHECK, message).fix(fix);
    };
    match status {
        401 => {
            let fix = "make a new one: it is expired, revoked, or of another server";
            return CheckResult::error(CHECK, "GitHub refuses the token in `GITHUB_TOKEN`", fix);
        }
        200..=299 => {}
        code => {
            let message = format!("GitHub answered {code} to a request with the token");
            return CheckResult::not_checked(CHECK, message);
        }
    }
    // https://github.blog/engineering/platform-security/behind-githubs-new-authentication-token-formats/
    let kind = match token.split('_').next() {
        Some("ghp") => "a person's classic token",
        Some("github") => "a person's fine-grained token",
        Some("ghs") => "a token of a job or an App",
        Some("gho" | "ghu") => "a token of a person's app",
        _ => "a token",
    };
    let scopes = headers.get("x-oauth-scopes").and_then(|value| value.to_str().ok());
    let may = match scopes.map(str::trim) {
        Some("") => "without scopes: it reads what is public".to_owned(),
        Some(scopes) => format!("with the scopes {scopes}"),
        None => "whose permissions GitHub doesn't tell".to_owned(),
    };
    let core = &body["resources"]["core"];
    let (left, limit) = (core["remaining"].as_u64(), core["limit"].as_u64());
    let Some((left, limit)) = left.zip(limit) else {
        return CheckResult::ok(CHECK, format!("{kind} {may}"));
    };
    let message = format!("{kind} {may}; {left} of {limit} requests are left this hour");
    if left == 0 {
        let fix = "wait for the end of the hour, or use another token";
        return CheckResult::warning(CHECK, message, fix);
    }
    CheckResult::ok(CHECK, message)
}

/// Compares this clock with the server's, which names whole seconds.
fn clock(headers: &HeaderMap, sent: Timestamp, received: Timestamp) -> CheckResult {
    const CHECK: &str = "clock";
    let date = headers.get(DATE).and_then(|value| value.to_str().ok());
    let server = date.and_then(|text| jiff::fmt::rfc2822::parse(text).ok());
    let Some(server) = server.map(|zoned| zoned.timestamp()) else {
        return CheckResult::not_checked(CHECK, "the answer has no `Date`");
    };
    // The server named its time somewhere between the request and the answer.
    let ahead = match server.as_second() {
        server if server > received.as_second() => received.as_second() - server,
        server if server + 1 < sent.as_second() => sent.as_second() - server,
        _ => 0,
    };
    let way = if ahead > 0 { "ahead of" } else { "behind" };
    let message = format!("this clock is {} seconds {way} GitHub's", ahead.abs());
    let fix = "set the clock, by NTP for example";
    match ahead.abs() {
        0..=5 => CheckResult::ok(CHECK, "within five seconds of GitHub's"),
        6..=TOKEN_SKEW => CheckResult::warning(CHECK, message, fix),
        skew if skew <= S3_SKEW => {
            CheckResult::error(CHECK, format!("{message}: tokens may be refused"), fix)
        }
        _ => CheckResult::error(CHECK, format!("{message}: S3 and tokens will be refused"), fix),
    }
}

fn oidc(runner: &Runner) -> CheckResult {
    const CHECK: &str = "oidc";
    let env = runner.env();
    if !env.is_true(env_vars::GITHUB_ACTIONS) {
        return CheckResult::info(CHECK, "no OIDC token: this is not a job of GitHub Actions");
    }
    let facts = match oidc::job_facts(runner) {
        Ok(facts) => facts,
        Err(failure) => {
            let fix = failure.help().unwrap_or_default().to_owned();
            return CheckResult::error(CHECK, failure.to_string(), &fix);
        }
    };
    match facts.plan() {
        AuthPlan::Token | AuthPlan::Ambient => {
            CheckResult::ok(CHECK, "this job may request OIDC tokens")
        }
        AuthPlan::Anonymous(reason) => {
            let message = format!("no OIDC token, which is expected ({reason})");
            CheckResult::info(CHECK, message)
        }
        AuthPlan::Broken(reason) => {
            let failure = oidc::broken_setup(reason, &facts, runner);
            let fix = failure.help().unwrap_or_default();
            // Many jobs need no token; a half of it is never right.
            match reason {
                AuthReason::PartialToken => CheckResult::error(CHECK, failure.to_string(), fix),
                _ => CheckResult::warning(CHECK, failure.to_string(), fix),
            }
        }
    }
}

fn artifact_service(env: &Env) -> CheckResult {
    const CHECK: &str = "artifact-service";
    let is_set = |ours, theirs| env.get(ours).or(env.get(theirs)).is_some();
    let token = is_set(env_vars::CRCR_RUNTIME_TOKEN, env_vars::ACTIONS_RUNTIME_TOKEN);
    let url = is_set(env_vars::CRCR_RESULTS_URL, env_vars::ACTIONS_RESULTS_URL);
    match (token, url) {
        (true, true) => CheckResult::ok(CHECK, "this step may use GitHub's artifact service"),
        (false, false) => {
            let message = "no `ACTIONS_RUNTIME_TOKEN`: a `run:` step never has one";
            CheckResult::info(CHECK, message)
                .fix("to store artifacts on GitHub, use the action `upload-artifact-with-fallback`")
        }
        (token, _) => {
            let (token_name, url_name) =
                (env_vars::ACTIONS_RUNTIME_TOKEN, env_vars::ACTIONS_RESULTS_URL);
            let (here, missing) =
                if token { (token_name, url_name) } else { (url_name, token_name) };
            let message = format!("`{here}` is set and `{missing}` isn't");
            CheckResult::error(CHECK, message, "pass both on, into the container too")
        }
    }
}

/// What the AWS SDK's default chain gives: the environment's, a profile's, or the machine's own credentials; or why it
/// gives none.
pub(crate) async fn default_credentials() -> Result<Credentials, String> {
    let ask = async {
        let timeouts = TimeoutConfig::builder().connect_timeout(Duration::from_secs(2)).build();
        let loader = aws_config::defaults(BehaviorVersion::latest()).timeout_config(timeouts);
        let config = with_sendable_credentials(loader.load().await);
        let provider = config.credentials_provider().ok_or("it has no places")?;
        provider.provide_credentials().await.map_err(|error| sdk_cause(&error))
    };
    let limit = AWS_TIMEOUT.as_secs();
    let late = |_| Err(format!("it took longer than {limit} s"));
    tokio::time::timeout(AWS_TIMEOUT, ask).await.unwrap_or_else(late)
}

/// Which places of the AWS SDK's default chain are configured, and whether it gives credentials.
async fn aws_credentials(env: &Env) -> CheckResult {
    const CHECK: &str = "aws-credentials";
    let mut places = vec![];
    for (name, variable) in [
        ("environment variables", env_vars::AWS_ACCESS_KEY_ID),
        ("web identity", env_vars::AWS_WEB_IDENTITY_TOKEN_FILE),
        ("ECS", env_vars::AWS_CONTAINER_CREDENTIALS_RELATIVE_URI),
        ("EKS pod identity", env_vars::AWS_CONTAINER_CREDENTIALS_FULL_URI),
        ("profile", env_vars::AWS_PROFILE),
    ] {
        if env.get(variable).is_some() {
            places.push(format!("{name} (`{variable}`)"));
        }
    }
    let home = env.get(env_vars::HOME).or(env.get(env_vars::USERPROFILE)).map(PathBuf::from);
    let file = |variable, default: &str| {
        let named = env.get(variable).map(PathBuf::from);
        named.or_else(|| Some(home.as_ref()?.join(default))).is_some_and(|path| path.is_file())
    };
    if file(env_vars::AWS_SHARED_CREDENTIALS_FILE, ".aws/credentials")
        || file(env_vars::AWS_CONFIG_FILE, ".aws/config")
    {
        places.push("the shared files".to_owned());
    }
    let configured = match places.is_empty() {
        true => "nothing is configured".to_owned(),
        false => format!("configured: {}", places.join(", ")),
    };
    let empty = [env_vars::AWS_ACCESS_KEY_ID, env_vars::AWS_SECRET_ACCESS_KEY]
        .into_iter()
        .find(|name| env.is_defined(name) && env.get(name).is_none());
    if let Some(name) = empty {
        let message = format!("`{name}` is defined but empty, and sccache refuses to start");
        return CheckResult::error(CHECK, message, "remove the `env:` entry that defines it");
    }
    match default_credentials().await {
        Ok(credentials) => {
            let expiry = credentials.expiry().and_then(|at| Timestamp::try_from(at).ok());
            let until = expiry.map(|at| format!(", until {at:.0}")).unwrap_or_default();
            let message = format!("the default chain gives credentials{until}; {configured}");
            match expiry {
                Some(at) if at <= Timestamp::now() => {
                    CheckResult::error(CHECK, message, "they have expired: get new ones")
                }
                _ => CheckResult::ok(CHECK, message),
            }
        }
        Err(_) if places.is_empty() => CheckResult::info(CHECK, "the default chain gives none"),
        Err(why) => CheckResult::error(
            CHECK,
            format!("the default chain gives no credentials ({why}); {configured}"),
            "correct what is configured, or remove it: jobs fall back only when nothing is there",
        ),
    }
}

fn proxy(env: &Env) -> CheckResult {
    const CHECK: &str = "proxy";
    let mut used = vec![];
    for upper in ["HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY"] {
        let lower = upper.to_lowercase();
        let (one, other) = (env.get(upper), env.get(&lower));
        let Some(value) = other.or(one) else { continue };
        if one.is_some() && other.is_some() && one != other {
            let message =
                format!("`{upper}` and `{lower}` differ, and programs choose differently");
            return CheckResult::warning(CHECK, message, "set both to the same value");
        }
        if upper == "NO_PROXY" {
            used.push(format!("`NO_PROXY` is {value}"));
            continue;
        }
        let with_scheme =
            if value.contains("://") { value.to_owned() } else { format!("http://{value}") };
        // A proxy's address may hold a password.
        let shown = Url::parse(&with_scheme).ok().and_then(|url| {
            let host = url.host_str()?.to_owned();
            Some(url.port().map_or(host.clone(), |port| format!("{host}:{port}")))
        });
        match shown {
            Some(host) => used.push(format!("`{upper}` is {host}")),
            None => {
                let message = format!("`{upper}` isn't an address");
                let fix = "write it as `http://HOST:PORT`";
                return CheckResult::error(CHECK, message, fix);
            }
        }
    }
    match used.is_empty() {
        true => CheckResult::info(CHECK, "no proxy is configured"),
        false => CheckResult::info(CHECK, used.join(", ")),
    }
}

fn tool_cache(env: &Env) -> CheckResult {
    const CHECK: &str = "tool-cache";
    let Some(folder) = env.get(env_vars::RUNNER_TOOL_CACHE) else {
        return CheckResult::info(CHECK, "`RUNNER_TOOL_CACHE` isn't set, as outside of a runner");
    };
    match tempfile::tempfile_in(folder) {
        Ok(_) => CheckResult::ok(CHECK, format!("`{folder}` can be written")),
        Err(error) => CheckResult::warning(
            CHECK,
            format!("`{folder}` can't be written ({error}), so each job downloads `crcr` anew"),
            "let the runner's user write there",
        ),
    }
}

/// The disks of the workspace and of temporary files, once if they are the same.
fn disk(runner: &Runner) -> Vec<CheckResult> {
    let workspace = runner.env().get(env_vars::GITHUB_WORKSPACE).map_or(".".into(), PathBuf::from);
    let mut seen = vec![];
    let mut results = vec![];
    for folder in [workspace, runner.temp_dir()] {
        let space = free_space(&folder);
        if !seen.contains(&space) || space.is_none() {
            seen.push(space);
            results.push(disk_space(&folder, space));
        }
    }
    results
}

fn disk_space(folder: &Path, space: Option<u64>) -> CheckResult {
    const CHECK: &str = "disk";
    let folder = folder.display();
    let Some(space) = space else {
        return CheckResult::not_checked(CHECK, format!("the free space of `{folder}` is unknown"));
    };
    let message = format!("{} are free in `{folder}`", human_bytes(space));
    let fix = "delete what isn't needed any more";
    if space < NO_SPACE {
        CheckResult::error(CHECK, message, fix)
    } else if space < LITTLE_SPACE {
        CheckResult::warning(CHECK, message, fix)
    } else {
        CheckResult::ok(CHECK, message)
    }
}

/// The relay's origin: health is asked there, wherever callbacks go.
fn relay_url(args: &DoctorArgs, env: &Env) -> Option<Result<SecureUrl, String>> {
    let text = match (&args.relay, env.get(env_vars::CRCR_CALLBACK_URL)) {
        (Some(url), _) => url.as_str(),
        (None, text) => text?,
    };
    let origin = Url::parse(text).map(|url| url.origin().ascii_serialization());
    let url = origin.map_err(|error| error.to_string());
    Some(url.and_then(|origin| origin.parse::<SecureUrl>().map_err(|error| error.to_string())))
}

async fn reach_relay(
    client: &reqwest::Client,
    url: Option<Result<SecureUrl, String>>,
) -> CheckResult {
    const CHECK: &str = "relay";
    let url = match url {
        None => {
            let message = "no relay is named by `--relay` or `CRCR_CALLBACK_URL`";
            return CheckResult::not_checked(CHECK, message);
        }
        Some(Err(why)) => {
            let fix = "write it as `https://HOST`";
            return CheckResult::error(CHECK, format!("the relay's address {why}"), fix);
        }
        Some(Ok(url)) => url,
    };
    let host = url.as_str().trim_end_matches('/').to_owned();
    match client.get(format!("{host}/healthz")).timeout(TIMEOUT).send().await {
        Err(error) => {
            let message =
                format!("`{host}` can't be reached: {}", root_cause(&error.without_url()));
            let fix = "check the address, the network and the proxy variables";
            CheckResult::error(CHECK, message, fix)
        }
        Ok(response) if response.status().is_server_error() => {
            let message = format!("`{host}` answers with {}", response.status().as_u16());
            CheckResult::error(CHECK, message, "ask whoever runs the relay")
        }
        Ok(response) if response.status().is_success() => {
            CheckResult::ok(CHECK, format!("`{host}` is healthy"))
        }
        Ok(_) => {
            CheckResult::ok(CHECK, format!("`{host}` answers, and tells nothing of its health"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::CheckStatus;
    use super::*;

    #[test]
    fn clock_is_judged_in_both_directions() {
        let now: Timestamp = "2026-09-15T12:00:00Z".parse().unwrap();
        let later = now + jiff::SignedDuration::from_secs(2);
        let judged = |date: &str| {
            let headers = [(DATE, date.parse().unwrap())].into_iter().collect();
            let result = clock(&headers, now, later);
            (result.status, result.message)
        };
        assert_eq!(judged("Tue, 15 Sep 2026 12:00:01 GMT").0, CheckStatus::Ok);
        let (status, message) = judged("Tue, 15 Sep 2026 11:59:30 GMT");
        assert_eq!(
            (status, &*message),
            (CheckStatus::Warning, "this clock is 30 seconds ahead of GitHub's")
        );
        let (status, message) = judged("Tue, 15 Sep 2026 12:02:02 GMT");
        assert_eq!(status, CheckStatus::Error);
        assert!(message.starts_with("this clock is 120 seconds behind GitHub's"), "{message}");
        let (status, message) = judged("Tue, 15 Sep 2026 11:00:00 GMT");
        assert!(status == CheckStatus::Error && message.contains("S3"), "{message}");
        assert_eq!(judged("yesterday").0, CheckStatus::NotChecked);
    }

    #[test]
    fn little_and_no_disk_space_differ() {
        let status = |space| disk_space(Path::new("/x"), space).status;
        assert_eq!(status(Some(NO_SPACE - 1)), CheckStatus::Error);
        assert_eq!(status(Some(NO_SPACE)), CheckStatus::Warning);
        assert_eq!(status(Some(LITTLE_SPACE)), CheckStatus::Ok);
        assert_eq!(status(None), CheckStatus::NotChecked);
    }
}
