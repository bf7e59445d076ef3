//! Tries the settings: uses everything that the relay depends on once, and reports all problems.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use crcr_aws::object_store::{ObjectStore, ObjectStoreError};
use crcr_domain::Allowlist;
use crcr_github::app::{Clock, GithubApp};
use crcr_github::{GithubError, http};
use crcr_results::ResultsUrl;
use crcr_store::{RedisStore, SqliteStore, StateStore as _, StoreError, StoreRole, WriteBatch};
use jiff::Timestamp;
use url::Url;

use crate::allowlist::AllowlistSource;
use crate::callback::auth::{Issuer, ProviderMap, Verifier};
use crate::compat::forward;
use crate::config::config_file::{self, FileUrl};
use crate::config::{
    Config, ExternalHud, PYTORCH_PROVIDERS, SettingProblem, StoreUrl, WebhookEvents,
};
use crate::{limits, state_records};

/// How long the archive may take: S3 is tried three times.
const ARCHIVE_TIMEOUT: Duration = Duration::from_secs(30);

/// Everything that doesn't work with these settings; empty if the relay can serve. A relay may be
/// running on the same store.
pub async fn problems(config: &Config, clock: Clock) -> Vec<SettingProblem> {
    let mut found = ProblemList(vec![]);
    let (name, tried) = match &config.store {
        StoreUrl::Sqlite(path) => {
            (path.display().to_string(), write_to_file(path, config, clock()).await)
        }
        StoreUrl::Redis(url) => (url.to_string(), RedisStore::rehearse(url).await),
    };
    if let Err(error) = tried {
        found.add("CRCR_STORE", format!("`{name}`: {error}"));
    }
    match &config.results {
        Some(url @ ResultsUrl::ClickHouse(_)) => {
            let tried = async { crcr_results::open(url, StoreRole::Tool).await?.prepare().await };
            if let Err(error) = tried.await {
                found.add("CRCR_RESULTS", error.to_string());
            }
        }
        Some(ResultsUrl::Sqlite(path)) => {
            if let Err(error) = write_to_file(path, config, clock()).await {
                found.add("CRCR_RESULTS", format!("`{}`: {error}", path.display()));
            }
        }
        None => {}
    }
    if let Some(url) = &config.archive {
        let tried = tokio::time::timeout(ARCHIVE_TIMEOUT, write_to_archive(url)).await;
        let problem = match tried {
            Ok(tried) => tried.err().map(|error| error.to_string()),
            Err(_) => Some(format!("no answer in {} s", ARCHIVE_TIMEOUT.as_secs())),
        };
        if let Some(problem) = problem {
            found.add("CRCR_ARCHIVE", format!("`{url}`: {problem}"));
        }
    }
    for (name, address) in
        [("CRCR_LISTEN", Some(&config.listen)), ("CRCR_ADMIN_LISTEN", config.admin_listen.as_ref())]
    {
        if let Some(address) = address
            && let Err(why) = find_listener(address).await
        {
            found.add(name, format!("`{address}` {why}"));
        }
    }
    let client = match http::client() {
        Ok(client) => client,
        Err(error) => {
            found.add("SSL_CERT_FILE", format!("the HTTP client can't be set up: {error}"));
            return found.0;
        }
    };
    if let Some(hud) = &config.hud {
        found.try_hud(hud, &client).await;
    }
    let verifier = Verifier::new(
        &client,
        Issuer::from_settings(&config.issuers, &config.api_url),
        &config.audience,
    );
    verifier.refresh(clock()).await;
    let id = config.app_id.clone();
    let key = config.private_key.first();
    let policy = match GithubApp::new(client, &config.api_url, id, &key, clock.clone()) {
        Ok(app) => found.try_app(config, &app, &verifier, &clock).await,
        Err(error) => {
            found.add("GITHUB_APP_PRIVATE_KEY", error.to_string());
            None
        }
    };
    for issuer in verifier.issuers(policy.as_deref(), clock()) {
        if issuer.is_missing() {
            let why = issuer.problem.unwrap_or_default();
            let what = format!("the keys of `{}` can't be fetched: {why}", issuer.issuer);
            found.add("CRCR_OIDC_ISSUERS", what);
        }
    }
    found.0
}

/// Whether this process may listen on an address. Its port may be that of a running relay.
async fn find_listener(address: &str) -> Result<(), String> {
    let found = tokio::net::lookup_host(address).await;
    let found = found.map_err(|error| format!("can't be resolved as HOST:PORT: {error}"))?;
    let mut problem = "has no address".to_owned();
    for address in found {
        match std::net::TcpListener::bind(address).map_err(|error| (error.kind(), error)) {
            Ok(_) | Err((ErrorKind::AddrInUse, _)) => return Ok(()),
            Err((ErrorKind::AddrNotAvailable, _)) => {
                "isn't an address of this machine".clone_into(&mut problem);
            }
            Err((_, error)) => problem = format!("can't be listened on: {error}"),
        }
    }
    Err(problem)
}

/// Writes what `/readyz` writes: a file of another user, or on a full disk, can be opened and read.
async fn write_to_file(path: &Path, config: &Config, now: Timestamp) -> Result<(), StoreError> {
    let store = SqliteStore::open(path, StoreRole::Tool)?;
    let mut batch = WriteBatch::default();
    batch.set(state_records::write_probe_key(), &now, now + config.status_ttl);
    store.commit(batch, now).await.map(drop)
}

/// The object is replaced by the next check, because the relay needs no permission to delete. It is beside the logs, where
/// it isn't taken for a webhook.
async fn write_to_archive(url: &str) -> Result<(), ObjectStoreError> {
    let archive = ObjectStore::open(url).await?;
    archive.list("", None, 1).await?;
    archive.put("logs/check", Bytes::from_static(b"crcr\n")).await
}

/// Warns of events that the settings keep and GitHub never sends. Only pages need them, so the check passes.
fn tell_unkept(config: &Config, events: &[String]) {
    let WebhookEvents::Named(kept) = &config.webhook_events else { return };
    let missing: Vec<_> =
        kept.iter().filter(|name| !events.contains(name)).map(String::as_str).collect();
    if !missing.is_empty() {
        tracing::warn!(
            events = missing.join(", "),
            "the App isn't subscribed to all events of CRCR_WEBHOOK_EVENTS: pages and job logs that need them stay empty"
        );
    }
}

struct ProblemList(Vec<SettingProblem>);

impl ProblemList {
    fn add(&mut self, name: &str, what: String) {
        self.0.push(SettingProblem { name: name.to_owned(), what });
    }

    /// Sends no result, which the HUD refuses after it has compared the key.
    async fn try_hud(&mut self, hud: &ExternalHud, client: &reqwest::Client) {
        let key = hud.key.first();
        let request = forward::request(client, hud, &key, Bytes::from_static(b"{}"));
        let Err(error) = http::send_unless_page(request).await else { return };
        match error.status().map(|status| status.as_u16()) {
            Some(400 | 422 | 429 | 500) => {}
            Some(401 | 403) => self.add("HUD_BOT_KEY", format!("the HUD refuses it: {error}")),
            _ => self.add("HUD_API_URL", format!("`{}` takes no results: {error}", hud.url)),
        }
    }

    /// Returns the allowlist, and gives the verifier the map of pipelines, if they can be read.
    async fn try_app(
        &mut self,
        config: &Config,
        app: &GithubApp,
        verifier: &Verifier,
        clock: &Clock,
    ) -> Option<Arc<Allowlist>> {
        let described = app.described().await;
        match &described {
            Ok(_) => self.try_installation(config, app).await,
            Err(error @ GithubError::Unauthorized(_)) => {
                self.add("GITHUB_APP_ID", format!("not the App of this private key: {error}"));
            }
            Err(error) => self.add("GITHUB_API_URL", with_source(error)),
        }
        let (url, upstream) = (config.allowlist.clone(), config.upstream.clone());
        let allowlist = AllowlistSource::new(url, upstream, config.allowlist_ttl);
        allowlist.refresh(app, clock()).await;
        if let Some(problem) = allowlist.status().problem {
            self.add("ALLOWLIST_URL", format!("{problem} (see `crcr allowlist validate`)"));
        }
        let policy = allowlist.get();
        if let Ok(described) = described {
            let takes_groups = policy
                .as_ref()
                .is_some_and(|policy| policy.iter().any(|entry| entry.takes_merge_groups()));
            self.try_webhook(config, app, &described.events, takes_groups).await;
        }
        let map = match &config.providers_url {
            Some(url) => providers(url, app).await.map(|(_, map)| map),
            None => Ok(ProviderMap::default()),
        };
        match map {
            Err(problem) => self.add("CI_PROVIDERS_URL", problem),
            Ok(map) => {
                if let Some(policy) = &policy {
                    self.find_unmapped(config, app, &map, policy).await;
                }
                verifier.set_providers(map);
            }
        }
        policy
    }

    /// Whether GitHub sends the App's webhooks here, as JSON, and all that the relay needs.
    async fn try_webhook(
        &mut self,
        config: &Config,
        app: &GithubApp,
        events: &[String],
        takes_groups: bool,
    ) {
        const NAME: &str = "the App's webhook";
        let groups = takes_groups.then_some("merge_group");
        let needed = ["pull_request", "push", "check_run", "check_suite"].into_iter().chain(groups);
        let missing: Vec<_> =
            needed.filter(|name| !events.iter().any(|event| event == name)).collect();
        if !missing.is_empty() {
            let what = format!(
                "the App isn't subscribed to {}: choose them in its settings, \"Permissions & events\"",
                missing.join(", ")
            );
            self.add(NAME, what);
        }
        tell_unkept(config, events);
        let hook = match app.hook_config().await {
            Ok(hook) => hook,
            Err(error) => return self.add(NAME, with_source(&error)),
        };
        if hook.content_type != "json" {
            let what = format!(
                "GitHub sends it as `{}`: set the content type to application/json",
                hook.content_type
            );
            self.add(NAME, what);
        }
        // An answer that shows only parts of the settings says nothing about the others.
        if hook.secret.is_none() && hook.insecure_ssl.is_some() {
            let what = "it has no secret, so GitHub doesn't sign it and all of it is refused: set the one of \
                        GITHUB_APP_SECRET";
            self.add(NAME, what.to_owned());
        }
        if hook.insecure_ssl.as_ref().is_some_and(|off| *off == "1" || *off == 1) {
            let what = "GitHub sends it to whoever answers, as it doesn't verify the relay's certificate: enable SSL \
                        verification in the App's settings";
            self.add(NAME, what.to_owned());
        }
        let wanted = config.public_url.as_ref().map(|base| format!("{base}/github/webhook"));
        let is_right = match &wanted {
            // Hosts may be written in any case, and with their usual port.
            Some(wanted) => Url::parse(&hook.url).ok() == Url::parse(wanted).ok(),
            None => hook.url.ends_with("/github/webhook"),
        };
        if !is_right {
            let wanted = wanted.unwrap_or_else(|| "an address that ends in /github/webhook".into());
            self.add(NAME, format!("GitHub sends it to `{}`, expected {wanted}", hook.url));
        }
    }

    /// Backends that report from Buildkite, by PyTorch's own map, and that the map in force leaves out.
    async fn find_unmapped(
        &mut self,
        config: &Config,
        app: &GithubApp,
        map: &ProviderMap,
        policy: &Allowlist,
    ) {
        let usual = match FileUrl::parse(PYTORCH_PROVIDERS) {
            Ok(url) if config.providers_url.as_ref() != Some(&url) => providers(&url, app).await,
            _ => return,
        };
        // Elsewhere than at PyTorch nobody needs that map.
        let Ok((_, usual)) = usual else { return };
        for repo in usual.repositories().filter(|repo| policy.get(repo).is_some()) {
            if !map.repositories().any(|mapped| mapped.key() == repo.key()) {
                let what = format!(
                    "`{repo}` is on the allowlist and reports from Buildkite, and no pipeline is mapped to it: \
                     its reports get a 403"
                );
                self.add("CI_PROVIDERS_URL", what);
            }
        }
    }

    /// Checks the App's permissions on the upstream repository.
    async fn try_installation(&mut self, config: &Config, app: &GithubApp) {
        let installation = match app.installation(config.upstream.as_str()).await {
            Ok(installation) => installation,
            Err(GithubError::Moved { to, .. }) => {
                let upstream = &config.upstream;
                let what = format!(
                    "`{upstream}` was renamed or transferred, and GitHub redirects to {to}: set UPSTREAM_REPO to the \
                     name that `gh api repos/{upstream} --jq .full_name` prints"
                );
                return self.add("UPSTREAM_REPO", what);
            }
            Err(error) => return self.add("UPSTREAM_REPO", with_source(&error)),
        };
        if installation.suspended_at.is_some() {
            self.add("UPSTREAM_REPO", "the App's installation there is suspended".to_owned());
        }
        let comments = if config.oncall_comments { "write" } else { "read" };
        for (permission, wanted) in [
            ("actions", "write"),
            ("checks", "write"),
            ("contents", "write"),
            ("pull_requests", comments),
        ] {
            let granted = installation.permissions.get(permission).map_or("none", String::as_str);
            if granted != wanted && granted != "write" {
                let what = format!("the App has `{permission}: {granted}`, and needs `{wanted}`");
                self.add("UPSTREAM_REPO", what);
            }
        }
    }
}

/// Reads the map from pipelines of other CI systems to repositories, with its text.
pub(crate) async fn providers(
    url: &FileUrl,
    app: &GithubApp,
) -> Result<(String, ProviderMap), String> {
    let bytes = match (config_file::fetch(url, app, None, limits::ALLOWLIST_BYTES).await, url) {
        (Ok(found), _) => found.unwrap_or_default().0,
        // Everybody may read PyTorch's map, and the App is seldom installed there.
        (Err(_), FileUrl::GitHub { repo, reference, path })
            if url.to_string() == PYTORCH_PROVIDERS =>
        {
            let limit = limits::ALLOWLIST_BYTES;
            let read = app.public_contents(repo.as_str(), path, reference, limit).await;
            read.map_err(|error| error.to_string())?.to_vec()
        }
        (Err(problem), _) => return Err(problem),
    };
    let text = String::from_utf8(bytes).map_err(|error| error.to_string())?;
    let map = ProviderMap::parse(&text).map_err(|error| error.to_string())?;
    Ok((text, map))
}

fn with_source(error: &GithubError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
