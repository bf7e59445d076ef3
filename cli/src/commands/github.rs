//! How commands ask GitHub: with the user's or the job's token, or as the App.

use std::path::PathBuf;
use std::sync::Arc;

use crcr_github::lookup::GithubLookup;
use crcr_github::lookup::cache::LookupCache;
use crcr_github::{GithubApp, GithubError, SecureUrl, SecureUrlError, server};
use jiff::Timestamp;
use secrecy::{ExposeSecret as _, SecretString};

use crate::commands::stranger_code::WorkflowSet;
use crate::env_vars::{self, Env};
use crate::failure::Failure;
use crate::printer::Printer;

pub fn lookup(
    token: Option<&SecretString>,
    cache: LookupCache,
    env: &Env,
    printer: &Printer,
) -> Result<GithubLookup, Failure> {
    let token = self::token(token, env, printer).ok_or_else(|| {
        let what = "asking GitHub needs a token that may read public data";
        Failure::unexpected("no-github-token", what)
            .hint("set `GITHUB_TOKEN`, such as to the output of `gh auth token`")
    })?;
    GithubLookup::new(http()?, &api_url(env)?, &token, cache, Arc::new(Timestamp::now)).map_err(
        |error| Failure::unexpected("github-token", "GitHub can't be asked").because(error),
    )
}

/// The token of a flag, else of the environment. From now on it is masked.
pub fn token(flag: Option<&SecretString>, env: &Env, printer: &Printer) -> Option<SecretString> {
    let set = || env.get(env_vars::GITHUB_TOKEN).map(SecretString::from);
    let token = flag.cloned().or_else(set)?;
    printer.mask(token.expose_secret());
    Some(token)
}

/// The App, if its credentials are set.
pub fn app(env: &Env) -> Result<Option<GithubApp>, Failure> {
    let key = env.setting(env_vars::GITHUB_APP_PRIVATE_KEY)?.map(SecretString::from);
    let id = env.setting(env_vars::GITHUB_APP_ID)?;
    let (Some(id), Some(key)) = (id, key) else { return Ok(None) };
    let app = GithubApp::new(http()?, &api_url(env)?, &id, &key, Arc::new(Timestamp::now));
    app.map(Some).map_err(|error| {
        Failure::unexpected("app-identity", "the App's credentials can't be used").because(error)
    })
}

pub fn http() -> Result<reqwest::Client, Failure> {
    crcr_github::http::client().map_err(no_client)
}

pub fn no_client(error: impl Into<anyhow::Error>) -> Failure {
    Failure::unexpected("http-client", "no HTTP client can be made").because(error)
}

pub fn api_url(env: &Env) -> Result<SecureUrl, Failure> {
    let of_server = || env.get(env_vars::GITHUB_SERVER_URL).and_then(server::api_url);
    let given = env.get(env_vars::GITHUB_API_URL).map(str::to_owned).or_else(of_server);
    let url = given.as_deref().unwrap_or("https://api.github.com");
    url.parse().map_err(|error: SecureUrlError| {
        Failure::unexpected("api-url", format!("`GITHUB_API_URL` {error}"))
    })
}

/// `$XDG_CACHE_HOME/crcr/github.json`, or below `~/.cache`.
pub fn cache_file(env: &Env) -> Option<PathBuf> {
    let folder = env.get(env_vars::XDG_CACHE_HOME).map(PathBuf::from).filter(|f| f.is_absolute());
    let home = || Some(PathBuf::from(env.get(env_vars::HOME)?).join(".cache"));
    Some(folder.or_else(home)?.join("crcr/github.json"))
}

/// Reads the repository's own actions that its workflows use, at most this many.
pub async fn add_actions(
    set: &mut WorkflowSet,
    lookup: &GithubLookup,
    repository: &str,
) -> Result<(), GithubError> {
    const MAX_ACTIONS: usize = 100;
    let mut read = 0;
    while let wanted = set.wanted_actions()
        && !wanted.is_empty()
        && read < MAX_ACTIONS
    {
        for path in wanted {
            let text = lookup.file(repository, &path).await?;
            set.add_action(&path, text.as_deref());
            read += 1;
        }
    }
    Ok(())
}

pub fn lookup_failure(error: GithubError, subject: &str) -> Failure {
    match &error {
        GithubError::RateLimited { until, .. } => {
            let message = format!("GitHub's rate limit is exhausted until {until}");
            Failure::unexpected("rate-limited", message)
                .because(error)
                .hint("run it again then; responses so far are cached and cost nothing")
        }
        GithubError::Unauthorized(_) => {
            Failure::unexpected("github-token", "GitHub refused the credentials").because(error)
        }
        _ => {
            let message = format!("GitHub couldn't be asked about {subject}");
            Failure::unexpected("github-unavailable", message)
                .because(error)
                .hint("nothing was reported as missing; try again later")
        }
    }
}
