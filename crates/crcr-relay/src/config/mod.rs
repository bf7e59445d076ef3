//! The relay's settings. All problems with them are reported together.

pub(crate) mod config_file;
pub mod secrets;
mod settings;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use crcr_aws::object_store::{ObjectStore, ObjectStoreError};
use crcr_domain::RepoName;
use crcr_domain::allowlist::level::LABEL_PREFIX;
use crcr_domain::checks::demotion::DEMOTION_BRANCH;
use crcr_domain::checks::lifecycle::Conclusion;
use crcr_domain::ci_data::webhook::is_event_name;
use crcr_domain::protocol::event::EventFilter;
use crcr_domain::results::LevelCriteria;
use crcr_domain::results::expected::ExpectedConclusions;
use crcr_github::{SecureUrl, server};
use crcr_hud::WatchedFeed;
use crcr_results::ResultsUrl;
use crcr_store::RedisUrl;
use secrecy::SecretString;
use url::Url;

use self::config_file::FileUrl;
use self::secrets::{Secret, SecretFormat};
use self::settings::{Settings, is_secure_with_password, secure_url};
use crate::limits;
use crate::log_rules::LogRules;

/// The map of pipelines that report for PyTorch's backends.
pub(crate) const PYTORCH_PROVIDERS: &str = "https://github.com/pytorch/test-infra/blob/main/aws/lambda/cross_repo_ci_relay/config/ci_providers.yml";

/// Issuers whose tokens name them without a `/` at the end.
const USUAL_ISSUERS: [&str; 2] =
    ["https://token.actions.githubusercontent.com", "https://agent.buildkite.com"];

/// What is refused of relays on several machines.
const SQLITE_FILE: &str = "SQLite is a file of one machine";

/// Settings of the deployed relay that have no effect here, and why.
const WITHOUT_EFFECT: [(&str, &str); 3] = [
    ("MAX_CLEANUP_WORKERS", "the queue's workers sweep too: MAX_DISPATCH_WORKERS"),
    ("REDIS_ENDPOINT", "CRCR_STORE says where the state is"),
    ("REDIS_LOGIN", "CRCR_STORE says where the state is"),
];

#[derive(Debug)]
pub struct Config {
    /// The GitHub App's number or client id.
    pub app_id: String,
    pub webhook_secret: Secret,
    /// The App's private keys, PEM.
    pub private_key: Secret,
    pub allowlist: FileUrl,
    /// How often the allowlist is read again.
    pub allowlist_ttl: Duration,
    /// How the names of the branches of demotions begin.
    pub demotion_branch: String,
    pub event_filter: EventFilter,
    pub upstream: RepoName,
    pub api_url: SecureUrl,
    pub server_url: String,
    /// The address at which people and backends reach this relay, without a `/` at the end.
    pub public_url: Option<String>,
    pub listen: String,
    /// Where to listen for operators; `None` for no such listener.
    pub admin_listen: Option<String>,
    /// With this token, operators can use the public listener.
    pub admin_token: Option<Secret>,
    pub store: StoreUrl,
    /// Where results are kept; `None` for the store itself.
    pub results: Option<ResultsUrl>,
    /// Facts older than this are rolled up into daily aggregates.
    pub results_retention: Duration,
    /// Where every webhook is kept, `file:FOLDER` or `s3://BUCKET/PREFIX`.
    pub archive: Option<String>,
    /// The events whose webhooks are rows in the results.
    pub webhook_events: WebhookEvents,
    /// The failed jobs whose logs are read.
    pub job_logs: JobLogs,
    /// What explains a failure in a log.
    pub log_rules: LogRules,
    /// With this token, another relay can send results to this HUD.
    pub results_token: Option<Secret>,
    /// Token issuers, and the URL of their keys if it isn't the usual one.
    pub issuers: Vec<(String, Option<Url>)>,
    /// The audience that a token must name.
    pub audience: String,
    /// The map from pipelines of other CI systems to repositories.
    pub providers_url: Option<FileUrl>,
    /// Keys of the callback token, the new one first. By default they are derived from the webhook
    /// secret.
    pub callback_keys: Option<Secret>,
    /// An external HUD that every result is sent to.
    pub hud: Option<ExternalHud>,
    /// The webhook that gets an alert when a backend turns red. Such URLs are often secrets.
    pub alert_url: Option<SecretString>,
    /// The feeds of branches and tests whose turns are alerts, too.
    pub alert_feeds: Vec<WatchedFeed>,
    /// How many dispatches are sent at a time.
    pub workers: usize,
    /// How many runs of one repository may begin to report in a minute.
    pub rate_per_minute: u32,
    /// A dispatch without a report for this long counts as never started.
    pub never_started_after: Duration,
    /// How long GitHub may take to create the runs of a dispatch.
    pub run_window: Duration,
    /// A job that doesn't end for this long counts as lost.
    pub lost_after: Duration,
    /// The conclusion of a check run when a repository at L4 doesn't report.
    pub silent_l4: Conclusion,
    /// The conclusion that a failure below L4 is shown as, if not as itself.
    pub nonblocking: Option<Conclusion>,
    /// Failures of a backend's infrastructure in a row that open its breaker; `None`: there is none.
    pub breaker_failures: Option<usize>,
    /// How jobs end that fail on purpose.
    pub expected_conclusions: ExpectedConclusions,
    /// Whether a comment mentions the oncalls of a failing check run.
    pub oncall_comments: bool,
    /// How long records are kept.
    pub status_ttl: Duration,
    /// A warning is logged when more dispatches than this are open.
    pub warn_open: Option<u32>,
    /// The criteria of promotions and demotions.
    pub criteria: LevelCriteria,
    /// Headers for the collector of traces, by name. One of them is often a token.
    pub trace_headers: Vec<(String, SecretString)>,
}

#[derive(Debug)]
pub struct ExternalHud {
    /// The base URL of its API.
    pub url: SecureUrl,
    pub key: Secret,
    /// How often a result is sent again after a failure. `None`: during an outage as often as a day has time for.
    pub retries: Option<u32>,
    /// Whether the status of dispatches is sent, too.
    pub dispatches: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WebhookEvents {
    All,
    Named(BTreeSet<String>),
}

impl WebhookEvents {
    pub fn includes(&self, event: &str) -> bool {
        match self {
            Self::All => true,
            Self::Named(names) => names.contains(event),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobLogs {
    Off,
    /// Those of public repositories.
    Public,
    /// Those of private repositories, too.
    All,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// `sqlite:PATH`.
    Sqlite(PathBuf),
    /// `redis://…` or `rediss://…`.
    Redis(RedisUrl),
}

/// Without a password.
impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::Redis(url) => url.fmt(f),
        }
    }
}

/// A setting that is missing, invalid, or doesn't work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingProblem {
    pub name: String,
    /// What is wrong. It never contains the value of a secret.
    pub what: String,
}

impl Config {
    /// The secrets that sign callback tokens, the new one first.
    pub(crate) fn callback_secrets(&self) -> Vec<SecretString> {
        secrets::callback_secrets(self.callback_keys.as_ref(), Some(&self.webhook_secret))
    }

    /// The HUD's page of a pull request; `None` without a public URL.
    pub fn pull_request_page(&self, number: u64) -> Option<String> {
        self.public_url.as_ref().map(|base| format!("{base}/pr/{number}"))
    }

    /// Whether webhooks of an event are kept that cause nothing else.
    pub fn keeps_webhooks(&self, event: &str) -> bool {
        self.archive.is_some() || self.webhook_events.includes(event)
    }

    /// The operators' address, if whoever reaches it from another machine can use it without a token.
    pub fn open_admin_address(&self) -> Option<&str> {
        let address = self.admin_listen.as_deref().filter(|_| self.admin_token.is_none())?;
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let ip = host.trim_matches(['[', ']']).parse::<IpAddr>();
        let is_local = host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback());
        (!is_local).then_some(address)
    }

    /// Where backends report to; `None` without a public URL.
    pub fn callback_url(&self) -> Option<String> {
        self.public_url.as_deref().map(callback_url)
    }

    /// Reads every setting. `lookup` returns the value of a flag or an environment variable; `stored`
    /// has the settings from a secret store, for which `lookup` returns nothing.
    ///
    /// Fails with every setting that is missing or invalid.
    pub fn read(
        lookup: &dyn Fn(&str) -> Option<String>,
        stored: BTreeMap<String, String>,
    ) -> Result<Self, Vec<SettingProblem>> {
        let mut settings = Settings::new(lookup, stored);
        let config = settings.config();
        match config {
            Some(config) if settings.problems.is_empty() => Ok(config),
            _ => Err(settings.problems),
        }
    }
}

fn callback_url(public_url: &str) -> String {
    format!("{public_url}/github/callback")
}

/// How long records are kept (`CRCR_STATUS_TTL`), for commands that change them beside a relay.
pub fn status_ttl(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Duration, SettingProblem> {
    read_some(lookup, |settings| settings.status_ttl(None))
}

/// Where the relay's state is, for commands that change it beside a relay.
pub fn store(lookup: &dyn Fn(&str) -> Option<String>) -> Result<StoreUrl, SettingProblem> {
    read_some(lookup, Settings::store)
}

/// Reads some settings. One whose file can't be read counts as absent to `read`, and is a problem all the same.
fn read_some<'a, T>(
    lookup: &'a dyn Fn(&str) -> Option<String>,
    read: impl FnOnce(&mut Settings<'a>) -> Option<T>,
) -> Result<T, SettingProblem> {
    let mut settings = Settings::new(lookup, BTreeMap::new());
    match read(&mut settings) {
        Some(value) if settings.problems.is_empty() => Ok(value),
        _ => Err(settings.problems.remove(0)),
    }
}

/// The settings that a dispatch is made with.
pub(crate) struct DispatchSettings {
    /// The new one first; empty without a key and a webhook secret.
    pub(crate) signing_secrets: Vec<SecretString>,
    pub(crate) callback_url: Option<String>,
}

/// What a command needs that sends a dispatch in the relay's place.
pub(crate) fn dispatch_settings(
    lookup: &dyn Fn(&str) -> Option<String>,
) -> Result<DispatchSettings, SettingProblem> {
    read_some(lookup, Settings::dispatch_settings)
}

/// The settings that are set but have no effect, each with the reason.
pub fn settings_without_effect(lookup: &dyn Fn(&str) -> Option<String>) -> Vec<SettingProblem> {
    let has_store =
        ["CRCR_STORE", "CRCR_STORE_FILE"].into_iter().any(|name| lookup(name).is_some());
    let given = WITHOUT_EFFECT
        .into_iter()
        .filter(|(name, _)| lookup(name).is_some() && (has_store || !name.starts_with("REDIS_")));
    given
        .map(|(name, why)| SettingProblem { name: name.to_owned(), what: why.to_owned() })
        .collect()
}

/// Reads every field before the first one that is missing ends it, so that all problems are found. A field can use those
/// above it.
macro_rules! all_or_none {
    ($type:ident { $($field:ident: $read:expr,)+ }) => {{
        $(let $field = $read;)+
        Some($type { $($field: $field?,)+ })
    }};
}

/// Whether two listeners can't have these addresses at the same time. Each gets a free port for port 0.
fn is_same_port(one: &str, other: &str) -> bool {
    match (one.parse::<SocketAddr>(), other.parse::<SocketAddr>()) {
        (Ok(one), Ok(other)) => {
            let (a, b) = (one.ip(), other.ip());
            let is_every = a.is_unspecified() || b.is_unspecified();
            one.port() == other.port()
                && one.port() != 0
                && (a == b || is_every && a.is_ipv4() == b.is_ipv4())
        }
        _ => one == other && !one.ends_with(":0"),
    }
}

/// The items of a comma list, or of lines.
fn list_items<C: FromIterator<String>>(text: &str) -> C {
    let items = text.split([',', '\n']).map(str::trim).filter(|item| !item.is_empty());
    items.map(str::to_owned).collect()
}

impl Settings<'_> {
    /// `None` when there is a problem.
    fn config(&mut self) -> Option<Config> {
        all_or_none!(Config {
            app_id: self.required("GITHUB_APP_ID"),
            webhook_secret: self.required_secret("GITHUB_APP_SECRET", SecretFormat::Lines),
            private_key: self.required_secret("GITHUB_APP_PRIVATE_KEY", SecretFormat::Whole),
            allowlist: self.allowlist(),
            allowlist_ttl: self
                .positive_number("ALLOWLIST_TTL_SECONDS", 60)
                .map(|seconds| Duration::from_secs(seconds.into())),
            upstream: self.upstream(),
            event_filter: self.event_filter(upstream.as_ref()),
            demotion_branch: Some(self.get_or("CRCR_DEMOTION_BRANCH", DEMOTION_BRANCH)),
            api_url: self.url("GITHUB_API_URL", "https://api.github.com"),
            server_url: self.server_url(api_url.as_deref()),
            public_url: self.public_url(),
            listen: Some(self.get_or("CRCR_LISTEN", "127.0.0.1:8080")),
            admin_listen: self.admin_listen(listen.as_deref()),
            admin_token: self.secret("CRCR_ADMIN_TOKEN", SecretFormat::Tokens),
            store: self.store(),
            results: self.results(store.as_ref()),
            results_retention: self.duration("CRCR_RESULTS_RETENTION", 400 * 86_400),
            archive: self.archive(),
            webhook_events: self.webhook_events(),
            job_logs: self.choice(
                "CRCR_JOB_LOGS",
                "on",
                &[("on", JobLogs::Public), ("off", JobLogs::Off), ("all", JobLogs::All)],
            ),
            log_rules: self.log_rules(),
            results_token: self.secret("INTERNAL_API_TOKEN", SecretFormat::Lines),
            issuers: Some(self.issuers()),
            audience: Some(self.get_or("CRCR_OIDC_AUDIENCE", "pytorch-cross-repo-ci-relay")),
            providers_url: Some(self.providers_url(upstream.as_ref())),
            callback_keys: self.secret("CRCR_CALLBACK_KEY", SecretFormat::List),
            hud: self.hud(),
            alert_url: self.alert_url(),
            alert_feeds: self.alert_feeds(alert_url.as_ref().is_none_or(Option::is_some)),
            workers: self
                .positive_number("MAX_DISPATCH_WORKERS", limits::DISPATCH_WORKERS)
                .map(|n| n as usize),
            rate_per_minute: self.positive_number("RATE_LIMIT_PER_MIN", 100),
            never_started_after: self.duration("CRCR_NEVER_STARTED_AFTER", 2 * 3600),
            run_window: self.run_window(),
            lost_after: self.duration("ZOMBIE_TIMEOUT_SECONDS", 6 * 3600),
            status_ttl: self.status_ttl(never_started_after.max(lost_after)),
            warn_open: self.optional_number("IN_PROGRESS_WARN_THRESHOLD"),
            silent_l4: self.choice(
                "CRCR_SILENT_L4",
                "failure",
                &[("failure", Conclusion::Failure), ("timed_out", Conclusion::TimedOut)],
            ),
            nonblocking: self.choice(
                "CRCR_NONBLOCKING_CONCLUSION",
                "real",
                &[("real", None), ("neutral", Some(Conclusion::Neutral))],
            ),
            oncall_comments: self.switch("CRCR_ONCALL_COMMENTS"),
            breaker_failures: self.breaker_failures(),
            expected_conclusions: self.expected_conclusions(upstream.as_ref()),
            criteria: self.criteria(),
            trace_headers: self.trace_headers(),
        })
    }

    fn allowlist(&mut self) -> Option<FileUrl> {
        let text = self.required("ALLOWLIST_URL")?;
        self.file_url("ALLOWLIST_URL", &text)
    }

    /// Without a `/` at the end, because paths are appended to it.
    fn server_url(&mut self, api_url: Option<&Url>) -> Option<String> {
        let usual = api_url.map_or_else(|| "https://github.com".to_owned(), server::server_url);
        let url = self.url("GITHUB_SERVER_URL", &usual)?;
        Some(url.as_str().trim_end_matches('/').to_owned())
    }

    fn admin_listen(&mut self, listen: Option<&str>) -> Option<Option<String>> {
        const NAME: &str = "CRCR_ADMIN_LISTEN";
        let address = self.get_or(NAME, "127.0.0.1:8081");
        if address == "off" {
            return Some(None);
        }
        if listen.is_some_and(|listen| is_same_port(listen, &address)) {
            return self.invalid(NAME, format!("`{address}` is taken by CRCR_LISTEN"));
        }
        Some(Some(address))
    }

    fn event_filter(&mut self, upstream: Option<&RepoName>) -> Option<EventFilter> {
        let push_refs = list_items(&self.get_or("CRCR_PUSH_REF", ""));
        let label_prefix = self.get_or("CRCR_LABEL_PREFIX", LABEL_PREFIX);
        let landed_label = self.get_or("CRCR_LANDED_LABEL", "Merged");
        let upstream = upstream?.as_str().to_owned();
        Some(EventFilter { upstream, push_refs, label_prefix, landed_label })
    }

    fn upstream(&mut self) -> Option<RepoName> {
        let text = self.get_or("UPSTREAM_REPO", "pytorch/pytorch");
        let repo = RepoName::new(&text).map_err(|error| format!("`{text}`: {error}"));
        self.valid("UPSTREAM_REPO", repo)
    }

    fn results(&mut self, store: Option<&StoreUrl>) -> Option<Option<ResultsUrl>> {
        const NAME: &str = "CRCR_RESULTS";
        let given = self.get(NAME).map(|text| ResultsUrl::parse(&text)).transpose();
        match given {
            Ok(None) if matches!(store, Some(StoreUrl::Redis(_))) => self.invalid(
                NAME,
                "missing beside a Redis store: clickhouse+https://USER:PASSWORD@HOST:PORT/DATABASE, \
                 or sqlite:PATH when all relays run on one machine"
                    .to_owned(),
            ),
            Ok(results @ Some(ResultsUrl::Sqlite(_))) => self.file(NAME, SQLITE_FILE, results),
            Ok(results) => Some(results),
            Err(what) => self.invalid(NAME, what),
        }
    }

    /// A file is another one on each machine: the relays there would know nothing of each other's webhooks. `what` says what
    /// it is.
    fn file<T>(&mut self, name: &str, what: &str, file: T) -> Option<T> {
        if self.get("CRCR_SEVERAL_MACHINES").as_deref() != Some("on") {
            return Some(file);
        }
        self.invalid(name, format!("{what}, and by CRCR_SEVERAL_MACHINES there are several"))
    }

    fn archive(&mut self) -> Option<Option<String>> {
        const NAME: &str = "CRCR_ARCHIVE";
        match self.get(NAME) {
            Some(url) if !ObjectStore::is_url(&url) => {
                self.invalid(NAME, ObjectStoreError::Url.to_string())
            }
            Some(url) if url.starts_with("file:") => {
                let what = "the archive is a folder of one machine, which lacks the webhooks and logs of the others";
                self.file(NAME, what, Some(url))
            }
            archive => Some(archive),
        }
    }

    fn log_rules(&mut self) -> Option<LogRules> {
        match self.get("CRCR_LOG_RULES") {
            None => Some(LogRules::default()),
            Some(path) => self.valid("CRCR_LOG_RULES", LogRules::open(path.into())),
        }
    }

    fn providers_url(&mut self, upstream: Option<&RepoName>) -> Option<FileUrl> {
        let is_pytorch = upstream.is_some_and(|it| it.key() == "pytorch/pytorch");
        let usual = || is_pytorch.then(|| PYTORCH_PROVIDERS.to_owned());
        let url = self.get("CI_PROVIDERS_URL").or_else(usual).filter(|url| url.trim() != "off")?;
        self.file_url("CI_PROVIDERS_URL", &url)
    }

    /// `Some(None)`: no number of failures stops the dispatches.
    fn breaker_failures(&mut self) -> Option<Option<usize>> {
        const NAME: &str = "CRCR_BREAKER_FAILURES";
        match self.get(NAME).as_deref() {
            Some("off") => Some(None),
            _ => self
                .positive_number(NAME, limits::BREAKER_FAILURES)
                .map(|failures| Some(failures as usize)),
        }
    }

    fn expected_conclusions(&mut self, upstream: Option<&RepoName>) -> Option<ExpectedConclusions> {
        const NAME: &str = "CRCR_EXPECTED_CONCLUSIONS";
        match self.get(NAME) {
            None => upstream.map(|it| ExpectedConclusions::of_upstream(it.as_str())),
            Some(text) => self.valid(NAME, text.parse()),
        }
    }

    fn criteria(&mut self) -> Option<LevelCriteria> {
        // In YAML, the blanks before the first line count.
        let text = self.get_with_file("CRCR_CRITERIA").map(|(text, _)| text).unwrap_or_default();
        self.valid("CRCR_CRITERIA", crcr_results::review::criteria(&text))
    }

    fn trace_headers(&mut self) -> Option<Vec<(String, SecretString)>> {
        const NAME: &str = "OTEL_EXPORTER_OTLP_HEADERS";
        let items: Vec<String> = list_items(&self.get(NAME).unwrap_or_default());
        let header = |item: &String| {
            let (name, value) = item.split_once('=')?;
            Some((name.trim().to_owned(), SecretString::from(value.trim())))
        };
        let headers: Option<_> = items.iter().map(header).collect();
        self.valid(NAME, headers.ok_or_else(|| "expected NAME=VALUE in a comma list".to_owned()))
    }

    fn webhook_events(&mut self) -> Option<WebhookEvents> {
        const NAME: &str = "CRCR_WEBHOOK_EVENTS";
        let text = self.get_or(NAME, "workflow_job,workflow_run,push,pull_request");
        let names: BTreeSet<String> = list_items(&text);
        match text.trim() {
            "all" => Some(WebhookEvents::All),
            "off" => Some(WebhookEvents::Named(BTreeSet::new())),
            _ if names.iter().all(|name| is_event_name(name)) => Some(WebhookEvents::Named(names)),
            _ => self
                .invalid(NAME, "expected events of GitHub in a comma list, `all` or `off`".into()),
        }
    }

    fn store(&mut self) -> Option<StoreUrl> {
        let several_machines = self.switch("CRCR_SEVERAL_MACHINES");
        let url = self.store_url();
        several_machines.and(url)
    }

    fn store_url(&mut self) -> Option<StoreUrl> {
        const NAME: &str = "CRCR_STORE";
        let Some(text) = self.get(NAME) else {
            let Some(endpoint) = self.get("REDIS_ENDPOINT") else {
                return self.file(NAME, SQLITE_FILE, StoreUrl::Sqlite("crcr.db".into()));
            };
            let login = self.get("REDIS_LOGIN");
            // Lambda sets the variable, and there the deployed relay uses TLS.
            let tls = self.get("AWS_LAMBDA_FUNCTION_NAME").is_some();
            let url = RedisUrl::from_endpoint(&endpoint, login.as_deref(), tls);
            return self.valid("REDIS_ENDPOINT", url).map(StoreUrl::Redis);
        };
        if text.starts_with("redis") {
            return self.valid(NAME, RedisUrl::parse(&text)).map(StoreUrl::Redis);
        }
        match text.strip_prefix("sqlite:") {
            Some(path) if !path.is_empty() => {
                self.file(NAME, SQLITE_FILE, StoreUrl::Sqlite(path.into()))
            }
            _ => self.invalid(NAME, "expected sqlite:PATH, rediss://… or redis://…".to_owned()),
        }
    }

    fn run_window(&mut self) -> Option<Duration> {
        const NAME: &str = "CRCR_RUN_WINDOW";
        let window = self.duration(NAME, limits::RUN_WINDOW.as_secs())?;
        if window > limits::LONGEST_RUN_WINDOW {
            let most = limits::LONGEST_RUN_WINDOW.as_secs();
            return self.invalid(NAME, format!("{} s is more than {most} s", window.as_secs()));
        }
        Some(window)
    }

    /// How long records are kept: at least as long as the relay waits for reports.
    fn status_ttl(&mut self, least: Option<Duration>) -> Option<Duration> {
        const NAME: &str = "CRCR_STATUS_TTL";
        let status_ttl = self.duration(NAME, limits::RECORD_RETENTION.as_secs())?;
        if least.is_some_and(|least| status_ttl < least) {
            let waits = "CRCR_NEVER_STARTED_AFTER and ZOMBIE_TIMEOUT_SECONDS";
            return self
                .invalid(NAME, format!("{} s is shorter than {waits}", status_ttl.as_secs()));
        }
        Some(status_ttl)
    }

    /// The external HUD. A key without a URL is a problem: the deployed relay had a default URL, so
    /// somebody who moves from there may expect it.
    fn hud(&mut self) -> Option<Option<ExternalHud>> {
        const URL: &str = "HUD_API_URL";
        let retries = self.retries();
        let dispatches = self.switch("CRCR_HUD_DISPATCHES");
        let key = self.secret("HUD_BOT_KEY", SecretFormat::Lines);
        let before = self.problems.len();
        let given = self.get(URL);
        if given.is_none() && self.problems.len() > before {
            return None;
        }
        let is_off = given.as_deref() == Some("off");
        let url = given.filter(|_| !is_off).map(|_| self.url(URL, ""));
        match (url, key?) {
            (None, Some(_)) if !is_off => self.invalid(
                URL,
                "missing beside HUD_BOT_KEY: the base of the HUD's API (the deployed relay's \
                 default is https://hud.pytorch.org/api), or `off` to forward nothing"
                    .to_owned(),
            ),
            (None, _) => retries.and(dispatches).map(|_| None),
            (Some(_), None) => self.invalid("HUD_BOT_KEY", "missing".to_owned()),
            (Some(url), Some(key)) => Some(Some(ExternalHud {
                url: url?,
                key,
                retries: retries?,
                dispatches: dispatches?,
            })),
        }
    }

    /// The relay's own address. Paths are appended to it, so it must not have a query or a fragment.
    fn public_url(&mut self) -> Option<Option<String>> {
        const NAME: &str = "CRCR_PUBLIC_URL";
        let Some(text) = self.get(NAME) else { return Some(None) };
        let url = self.valid(NAME, secure_url(&text))?;
        if url.query().is_some() || url.fragment().is_some() {
            let what = "expected https://HOST or https://HOST/PATH, without query or fragment";
            return self.invalid(NAME, what.to_owned());
        }
        Some(Some(url.as_str().trim_end_matches('/').to_owned()))
    }

    fn dispatch_settings(&mut self) -> Option<DispatchSettings> {
        let keys = self.secret("CRCR_CALLBACK_KEY", SecretFormat::List)?;
        let webhook_secret = self.secret("GITHUB_APP_SECRET", SecretFormat::Lines)?;
        let signing_secrets = secrets::callback_secrets(keys.as_ref(), webhook_secret.as_ref());
        let callback_url = self.public_url()?.map(|base| callback_url(&base));
        Some(DispatchSettings { signing_secrets, callback_url })
    }

    fn retries(&mut self) -> Option<Option<u32>> {
        const NAME: &str = "HUD_MAX_RETRIES";
        let Some(text) = self.get(NAME) else { return Some(None) };
        let problem = |_| format!("`{text}` isn't a whole number from 0 to {}", u32::MAX);
        let number = text.trim().parse().map_err(problem);
        self.valid(NAME, number.map(Some))
    }

    fn alert_url(&mut self) -> Option<Option<SecretString>> {
        let name = "CRCR_ALERT_URL";
        match self.get(name) {
            Some(url) if !is_secure_with_password(&url) => {
                self.invalid(name, "expected an https address".to_owned())
            }
            url => Some(url.map(SecretString::from)),
        }
    }

    fn alert_feeds(&mut self, has_url: bool) -> Option<Vec<WatchedFeed>> {
        const NAME: &str = "CRCR_ALERT_FEEDS";
        let items: Vec<String> = list_items(&self.get(NAME).unwrap_or_default());
        if !items.is_empty() && !has_url {
            return self.invalid(NAME, "has no effect without `CRCR_ALERT_URL`".to_owned());
        }
        if items.len() > limits::ALERT_FEEDS {
            let what = format!("{} feeds, and {} is the most", items.len(), limits::ALERT_FEEDS);
            return self.invalid(NAME, what);
        }
        let read = items.iter().map(|item| WatchedFeed::parse(item)).collect();
        self.valid(NAME, read)
    }

    fn issuers(&mut self) -> Vec<(String, Option<Url>)> {
        let text = self.get("CRCR_OIDC_ISSUERS").unwrap_or_default();
        let mut issuers = Vec::new();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let (issuer, keys) = match item.split_once('=') {
                Some((issuer, keys)) => (issuer.trim(), Some(keys.trim())),
                None => (item, None),
            };
            let read = keys.map(secure_url).transpose();
            let read = read.and_then(|keys| secure_url(issuer).map(|_| keys.map(Url::from)));
            // Keys are found with the slash, too, and then no token's `iss` is this text.
            let is_usual = USUAL_ISSUERS.iter().any(|usual| issuer.starts_with(usual));
            let read = if is_usual && issuer.ends_with('/') {
                Err(format!("`{issuer}` ends in `/`, and its tokens name it without"))
            } else {
                read
            };
            let keys = self.valid("CRCR_OIDC_ISSUERS", read);
            issuers.extend(keys.map(|keys| (issuer.to_owned(), keys)));
        }
        issuers
    }

    fn file_url(&mut self, name: &str, text: &str) -> Option<FileUrl> {
        self.valid(name, FileUrl::parse(text))
    }
}
