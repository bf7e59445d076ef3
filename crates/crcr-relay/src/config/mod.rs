//! The relay's settings, from names to meaning, with everything that is wrong told at once.

pub(crate) mod config_file;
pub mod secrets;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crcr_domain::RepoName;
use crcr_domain::event::EventFilter;
use crcr_domain::level::LABEL_PREFIX;
use crcr_domain::lifecycle::Conclusion;
use crcr_domain::results::LevelCriteria;
use crcr_github::{SecureUrl, SecureUrlError};
use crcr_results::ResultsUrl;
use percent_encoding::percent_decode_str;
use secrecy::{ExposeSecret as _, SecretString};
use url::Url;

use self::secrets::{Format, Secret};
use crate::limits;

/// Settings of the deployed relay that change nothing here, and why.
const WITHOUT_EFFECT: [(&str, &str); 3] = [
    ("MAX_CLEANUP_WORKERS", "the queue's workers sweep too: MAX_DISPATCH_WORKERS"),
    ("REDIS_ENDPOINT", "the state is in SQLite: CRCR_STORE"),
    ("REDIS_LOGIN", "the state is in SQLite: CRCR_STORE"),
];

/// Everything that can be set.
#[derive(Debug)]
pub struct Config {
    /// Number or client id of the GitHub App.
    pub app_id: String,
    pub webhook_secret: Secret,
    /// The App's private keys, PEM.
    pub private_key: Secret,
    pub allowlist: AllowlistUrl,
    /// How old the allowlist may get before it is asked for again.
    pub allowlist_ttl: Duration,
    /// Which upstream events are ours.
    pub interest: EventFilter,
    pub upstream: RepoName,
    pub api_url: SecureUrl,
    pub server_url: String,
    /// The address of this relay for people and downstream, without a `/` at its end.
    pub public_url: Option<String>,
    pub listen: String,
    /// Where to listen for operators; none when empty.
    pub admin_listen: Option<String>,
    /// Lets operators in on the public listener.
    pub admin_token: Option<Secret>,
    pub store: StoreUrl,
    /// Where results are; none when the store keeps them itself.
    pub results: Option<ResultsUrl>,
    /// Facts that are older become days.
    pub results_retention: Duration,
    /// Lets another relay send results to the HUD here; nobody may without it.
    pub results_token: Option<Secret>,
    /// Token issuers and, where it isn't the usual one, the address of their keys.
    pub issuers: Vec<(String, Option<Url>)>,
    /// The audience that a token must name.
    pub audience: String,
    /// Where pipelines of other CI systems are mapped to repositories.
    pub providers_url: Option<AllowlistUrl>,
    /// Keys of the callback token, the new one first; without, they hang on the webhook secret.
    pub callback_keys: Option<Secret>,
    /// An external HUD that gets every result too.
    pub hud: Option<Hud>,
    /// Who is told when a backend turns red; such addresses are often secrets.
    pub alert_url: Option<SecretString>,
    /// Tasks that are worked on at a time.
    pub workers: usize,
    /// Reports of one repository in a minute.
    pub rate_per_minute: u32,
    /// Without a report for this long, a dispatch never started.
    pub never_started_after: Duration,
    /// Without an end for this long, a job is lost.
    pub lost_after: Duration,
    /// How a silent repository at L4 ends.
    pub silent_l4: Conclusion,
    /// What a failure below L4 is shown as instead.
    pub nonblocking: Option<Conclusion>,
    /// Whether failing check runs call their oncalls.
    pub oncall_comments: bool,
    pub keep: Duration,
    /// More open dispatches than this are warned of.
    pub warn_open: Option<u32>,
    /// What promotions and demotions ask for.
    pub criteria: LevelCriteria,
}

#[derive(Debug)]
pub struct Hud {
    /// The base of its API.
    pub url: SecureUrl,
    /// Its `x-hud-internal-bot` keys.
    pub key: Secret,
    /// Tries of a result after the first one.
    pub retries: u32,
    /// Whether it is told of dispatches too: sent, superseded, never started and so on.
    pub dispatches: bool,
}

/// A file on this machine or in a repository on GitHub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllowlistUrl {
    /// `file:PATH`.
    File(PathBuf),
    /// `https://github.com/OWNER/REPO/blob/REF/PATH`.
    GitHub {
        /// `owner/repo`.
        repo: RepoName,
        reference: String,
        path: String,
    },
}

impl std::fmt::Display for AllowlistUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => write!(f, "file:{}", path.display()),
            Self::GitHub { repo, reference, path } => {
                write!(f, "https://github.com/{repo}/blob/{reference}/{path}")
            }
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// `sqlite:PATH`.
    Sqlite(PathBuf),
}

/// One setting that is missing or odd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub name: String,
    /// What is wrong with it, never with its value when that is a secret.
    pub what: String,
}

/// Reads settings by their environment variables' names.
pub struct Settings<'a> {
    lookup: &'a dyn Fn(&str) -> Option<String>,
    stored: BTreeMap<String, String>,
    problems: Vec<Problem>,
}

impl Config {
    /// The keys of callback tokens, the new one first.
    pub(crate) fn callback_keys(&self) -> Vec<SecretString> {
        match &self.callback_keys {
            Some(keys) => keys.all().to_vec(),
            None => self.webhook_secret.all().iter().map(derived_key).collect(),
        }
    }

    /// The page of a pull request here, where the public address is known.
    pub fn pull_request_page(&self, number: u64) -> Option<String> {
        self.public_url.as_ref().map(|base| format!("{base}/pr/{number}"))
    }

    /// Where downstream reports to, where the public address is known.
    pub fn callback_url(&self) -> Option<String> {
        self.public_url.as_ref().map(|base| format!("{base}/github/callback"))
    }

    /// Reads every setting. `lookup` returns a flag's or an environment variable's value, and
    /// `stored` holds what a secret store knows; the former wins.
    ///
    /// Fails with every setting that is missing or odd.
    pub fn read(
        lookup: &dyn Fn(&str) -> Option<String>,
        stored: BTreeMap<String, String>,
    ) -> Result<Self, Vec<Problem>> {
        let mut settings = Settings { lookup, stored, problems: vec![] };
        let config = settings.config();
        match config {
            Some(config) if settings.problems.is_empty() => Ok(config),
            _ => Err(settings.problems),
        }
    }
}

/// How long records live (`CRCR_STATUS_TTL`), for tools that work beside a relay.
pub fn keep(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Duration, Problem> {
    let mut settings = Settings { lookup, stored: BTreeMap::new(), problems: vec![] };
    settings.keep(None).ok_or_else(|| settings.problems.remove(0))
}

/// The settings that are there and change nothing, and why each one doesn't.
pub fn without_effect(lookup: &dyn Fn(&str) -> Option<String>) -> Vec<Problem> {
    let given = WITHOUT_EFFECT.into_iter().filter(|(name, _)| lookup(name).is_some());
    given.map(|(name, why)| Problem { name: name.to_owned(), what: why.to_owned() }).collect()
}

impl Settings<'_> {
    /// `None` only when a problem has been noted.
    fn config(&mut self) -> Option<Config> {
        let app_id = self.required("GITHUB_APP_ID");
        let webhook_secret = self.required_secret("GITHUB_APP_SECRET", Format::Lines);
        let private_key = self.required_secret("GITHUB_APP_PRIVATE_KEY", Format::Whole);
        let allowlist = self.required("ALLOWLIST_URL");
        let allowlist = allowlist.and_then(|text| self.file_url("ALLOWLIST_URL", &text));
        let upstream = self.or("UPSTREAM_REPO", "pytorch/pytorch");
        let upstream = match RepoName::new(&upstream) {
            Ok(repo) => Some(repo),
            Err(error) => self.problem("UPSTREAM_REPO", format!("`{upstream}`: {error}")),
        };
        let api_url = self.url("GITHUB_API_URL", "https://api.github.com");
        let server_url = self.or("GITHUB_SERVER_URL", "https://github.com");
        let public_url = self.public_url();
        let store = self.store();
        let store = match store.strip_prefix("sqlite:") {
            Some(path) if !path.is_empty() => Some(StoreUrl::Sqlite(path.into())),
            _ => self.problem("CRCR_STORE", "expected sqlite:PATH".to_owned()),
        };
        let results = self.get("CRCR_RESULTS").map(|text| ResultsUrl::parse(&text));
        let results = match results.transpose() {
            Ok(results) => Some(results),
            Err(what) => self.problem("CRCR_RESULTS", what),
        };
        let results_retention = self.duration("CRCR_RESULTS_RETENTION", 400 * 86_400);
        let hud = self.hud();
        let alert_url = self.alert_url();
        let issuers = self.issuers();
        let providers_url = self.get("CI_PROVIDERS_URL");
        let providers_url = providers_url.and_then(|url| self.file_url("CI_PROVIDERS_URL", &url));
        let rate_per_minute = self.number("RATE_LIMIT_PER_MIN", 100);
        let workers = self.number("MAX_DISPATCH_WORKERS", limits::WORKERS);
        let allowlist_ttl = self.number("ALLOWLIST_TTL_SECONDS", 60);
        let never_started_after = self.duration("CRCR_NEVER_STARTED_AFTER", 2 * 3600);
        let lost_after = self.duration("ZOMBIE_TIMEOUT_SECONDS", 6 * 3600);
        let keep = self.keep(never_started_after.max(lost_after));
        let warn_open = self.optional_number("IN_PROGRESS_WARN_THRESHOLD");
        let silent_l4 = self.choice(
            "CRCR_SILENT_L4",
            "failure",
            &[("failure", Conclusion::Failure), ("timed_out", Conclusion::TimedOut)],
        );
        let nonblocking = self.choice(
            "CRCR_NONBLOCKING_CONCLUSION",
            "real",
            &[("real", None), ("neutral", Some(Conclusion::Neutral))],
        );
        let oncall_comments =
            self.choice("CRCR_ONCALL_COMMENTS", "off", &[("on", true), ("off", false)]);
        let criteria = self.get("CRCR_CRITERIA").unwrap_or_default();
        let criteria = match crcr_results::review::criteria(&criteria) {
            Ok(criteria) => Some(criteria),
            Err(what) => self.problem("CRCR_CRITERIA", what),
        };
        let list = |text: Option<String>| -> Vec<String> {
            let text = text.unwrap_or_default();
            let items = text.split([',', '\n']).map(str::trim).filter(|item| !item.is_empty());
            items.map(str::to_owned).collect()
        };
        let push_refs = list(self.get("CRCR_PUSH_REF"));
        let callback_keys = self.secret("CRCR_CALLBACK_KEY", Format::List);
        let admin_token = self.secret("CRCR_ADMIN_TOKEN", Format::Tokens);
        let results_token = self.secret("INTERNAL_API_TOKEN", Format::Lines);
        let admin_listen = self.or("CRCR_ADMIN_LISTEN", "127.0.0.1:8081");
        let upstream = upstream?;
        Some(Config {
            app_id: app_id?,
            private_key: private_key?,
            allowlist: allowlist?,
            allowlist_ttl: Duration::from_secs(allowlist_ttl?.into()),
            interest: EventFilter {
                upstream: upstream.as_str().to_owned(),
                push_refs,
                label_prefix: self.or("CRCR_LABEL_PREFIX", LABEL_PREFIX),
                landed_label: self.or("CRCR_LANDED_LABEL", "Merged"),
            },
            upstream,
            api_url: api_url?,
            server_url: server_url.trim_end_matches('/').to_owned(),
            public_url: public_url?,
            listen: self.or("CRCR_LISTEN", "127.0.0.1:8080"),
            admin_listen: Some(admin_listen).filter(|listen| listen != "off"),
            admin_token: admin_token?,
            store: store?,
            results: results?,
            results_retention: results_retention?,
            results_token: results_token?,
            issuers,
            audience: self.or("CRCR_OIDC_AUDIENCE", "pytorch-cross-repo-ci-relay"),
            providers_url,
            callback_keys: callback_keys?,
            webhook_secret: webhook_secret?,
            hud: hud?,
            alert_url: alert_url?,
            workers: workers? as usize,
            rate_per_minute: rate_per_minute?,
            never_started_after: never_started_after?,
            lost_after: lost_after?,
            silent_l4: silent_l4?,
            nonblocking: nonblocking?,
            oncall_comments: oncall_comments?,
            keep: keep?,
            warn_open: warn_open?,
            criteria: criteria?,
        })
    }

    /// The value of NAME, or what the file that NAME_FILE names holds; empty is absent.
    fn get(&mut self, name: &str) -> Option<String> {
        self.find(name).map(|(text, _)| text)
    }

    /// The value of NAME and the file that it came from.
    fn find(&mut self, name: &str) -> Option<(String, Option<PathBuf>)> {
        let filled = |text: String| (!text.trim().is_empty()).then_some(text);
        if let Some(value) = (self.lookup)(name).and_then(filled) {
            return Some((value, None));
        }
        if let Some(path) = (self.lookup)(&format!("{name}_FILE")).and_then(filled) {
            let path = PathBuf::from(path);
            return match secrets::read(&path) {
                Ok(text) => filled(text).map(|text| (text, Some(path))),
                Err(problem) => self.problem(&format!("{name}_FILE"), problem),
            };
        }
        self.stored.get(name).cloned().and_then(filled).map(|text| (text, None))
    }

    /// A secret that may be absent; `None` when a problem has been noted.
    fn secret(&mut self, name: &'static str, format: Format) -> Option<Option<Secret>> {
        let before = self.problems.len();
        let Some((text, file)) = self.find(name) else {
            return (self.problems.len() == before).then_some(None);
        };
        match Secret::new(name, format, &text, file) {
            Ok(secret) => Some(Some(secret)),
            Err(what) => self.problem(name, what),
        }
    }

    fn required_secret(&mut self, name: &'static str, format: Format) -> Option<Secret> {
        let secret = self.secret(name, format)?;
        if secret.is_none() {
            self.note(name, "missing".to_owned());
        }
        secret
    }

    fn or(&mut self, name: &str, default: &str) -> String {
        self.get(name).unwrap_or_else(|| default.to_owned())
    }

    fn required(&mut self, name: &str) -> Option<String> {
        let before = self.problems.len();
        let value = self.get(name);
        if value.is_none() && self.problems.len() == before {
            self.note(name, "missing".to_owned());
        }
        value
    }

    fn number(&mut self, name: &str, default: u32) -> Option<u32> {
        let Some(text) = self.get(name) else { return Some(default) };
        match text.trim().parse() {
            Ok(number) if number > 0 => Some(number),
            _ => self.problem(name, format!("`{text}` is no whole number above 0")),
        }
    }

    /// Seconds, or a number with `s`, `m`, `h` or `d`.
    fn duration(&mut self, name: &str, default: u64) -> Option<Duration> {
        let Some(text) = self.get(name) else { return Some(Duration::from_secs(default)) };
        let text = text.trim();
        let (digits, unit) = match text.char_indices().last() {
            Some((at, 's')) => (&text[..at], 1),
            Some((at, 'm')) => (&text[..at], 60),
            Some((at, 'h')) => (&text[..at], 3600),
            Some((at, 'd')) => (&text[..at], 86_400),
            _ => (text, 1),
        };
        match digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit)) {
            Some(seconds) if (1..=limit_seconds()).contains(&seconds) => {
                Some(Duration::from_secs(seconds))
            }
            _ => self.problem(name, format!("`{text}` is no time such as 90s, 30m or 2h")),
        }
    }

    fn choice<T: Copy>(&mut self, name: &str, default: &str, known: &[(&str, T)]) -> Option<T> {
        let text = self.or(name, default);
        if let Some((_, value)) = known.iter().find(|(word, _)| *word == text) {
            return Some(*value);
        }
        let words: Vec<_> = known.iter().map(|(word, _)| *word).collect();
        self.problem(name, format!("`{text}` is none of {}", words.join(", ")))
    }

    fn url(&mut self, name: &str, default: &str) -> Option<SecureUrl> {
        let text = self.or(name, default);
        match secure(&text) {
            Ok(url) => Some(url),
            Err(what) => self.problem(name, what),
        }
    }

    /// Where the state is. Whoever had it in Redis is asked: SQLite somewhere is no good guess.
    fn store(&mut self) -> String {
        let given = self.get("CRCR_STORE");
        if given.is_none() && self.get("REDIS_ENDPOINT").is_some() {
            let what = "missing beside REDIS_ENDPOINT: the state is in SQLite, set sqlite:PATH";
            self.note("CRCR_STORE", what.to_owned());
        }
        given.unwrap_or_else(|| "sqlite:crcr.db".to_owned())
    }

    /// How long records live: no less than what is waited for.
    fn keep(&mut self, least: Option<Duration>) -> Option<Duration> {
        const NAME: &str = "CRCR_STATUS_TTL";
        let keep = self.duration(NAME, limits::KEEP.as_secs())?;
        if least.is_some_and(|least| keep < least) {
            let waits = "CRCR_NEVER_STARTED_AFTER and ZOMBIE_TIMEOUT_SECONDS";
            return self.problem(NAME, format!("{} s is shorter than {waits}", keep.as_secs()));
        }
        Some(keep)
    }

    /// The external HUD. Its key alone is no answer: the deployed relay had a default address.
    fn hud(&mut self) -> Option<Option<Hud>> {
        let retries = self.retries();
        let dispatches =
            self.choice("CRCR_HUD_DISPATCHES", "off", &[("on", true), ("off", false)])?;
        let key = self.secret("HUD_BOT_KEY", Format::Lines)?;
        match (self.get("HUD_API_URL").as_deref(), key) {
            (Some("off"), _) | (None, None) => retries.map(|_| None),
            (None, Some(_)) => self.problem(
                "HUD_API_URL",
                "missing beside HUD_BOT_KEY: the base of the HUD's API (the deployed relay's \
                 default is https://hud.pytorch.org/api), or `off` to forward nothing"
                    .to_owned(),
            ),
            (Some(_), None) => {
                self.url("HUD_API_URL", "");
                self.problem("HUD_BOT_KEY", "missing".to_owned())
            }
            (Some(_), Some(key)) => {
                let url = self.url("HUD_API_URL", "");
                Some(Some(Hud { url: url?, key, retries: retries?, dispatches }))
            }
        }
    }

    /// The relay's own address. What is appended to it has to be its path.
    fn public_url(&mut self) -> Option<Option<String>> {
        const NAME: &str = "CRCR_PUBLIC_URL";
        let Some(text) = self.get(NAME) else { return Some(None) };
        let url = match secure(&text) {
            Ok(url) => url,
            Err(what) => return self.problem(NAME, what),
        };
        if url.query().is_some() || url.fragment().is_some() {
            let what = "expected https://HOST or https://HOST/PATH, without query or fragment";
            return self.problem(NAME, what.to_owned());
        }
        Some(Some(url.as_str().trim_end_matches('/').to_owned()))
    }

    fn retries(&mut self) -> Option<u32> {
        const NAME: &str = "HUD_MAX_RETRIES";
        let Some(text) = self.get(NAME) else { return Some(limits::TRIES - 1) };
        match text.trim().parse() {
            Ok(number) => Some(number),
            Err(_) => self.problem(NAME, format!("`{text}` is no whole number")),
        }
    }

    fn optional_number(&mut self, name: &str) -> Option<Option<u32>> {
        if self.get(name).is_some() { self.number(name, 1).map(Some) } else { Some(None) }
    }

    fn alert_url(&mut self) -> Option<Option<SecretString>> {
        let name = "CRCR_ALERT_URL";
        match self.get(name) {
            Some(url) if !is_secure_with_password(&url) => {
                self.problem(name, "expected an https address".to_owned())
            }
            url => Some(url.map(SecretString::from)),
        }
    }

    fn issuers(&mut self) -> Vec<(String, Option<Url>)> {
        let text = self.get("CRCR_OIDC_ISSUERS").unwrap_or_default();
        let mut issuers = Vec::new();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let (issuer, keys) = match item.split_once('=') {
                Some((issuer, keys)) => (issuer.trim(), Some(keys.trim())),
                None => (item, None),
            };
            let keys = match keys.map(secure).transpose() {
                Ok(keys) => keys,
                Err(what) => {
                    self.note("CRCR_OIDC_ISSUERS", what);
                    continue;
                }
            };
            match secure(issuer) {
                Ok(_) => issuers.push((issuer.to_owned(), keys.map(Url::from))),
                Err(what) => self.note("CRCR_OIDC_ISSUERS", what),
            }
        }
        issuers
    }

    fn file_url(&mut self, name: &str, text: &str) -> Option<AllowlistUrl> {
        if let Some(path) = text.strip_prefix("file:") {
            return Some(AllowlistUrl::File(path.trim_start_matches("//").into()));
        }
        let parsed = secure(text).ok().and_then(|url| {
            let segments: Vec<String> = url.path_segments()?.map(str::to_owned).collect();
            let [owner, repo, blob, reference, path @ ..] = &segments[..] else { return None };
            let repo = RepoName::new(&format!("{owner}/{repo}")).ok()?;
            let decode =
                |text: &str| percent_decode_str(text).decode_utf8().ok().map(Cow::into_owned);
            (blob == "blob" && !path.is_empty()).then_some(())?;
            Some(AllowlistUrl::GitHub {
                repo,
                reference: decode(reference)?,
                path: decode(&path.join("/"))?,
            })
        });
        parsed.or_else(|| {
            self.problem(
                name,
                format!(
                    "`{text}` is neither https://github.com/OWNER/REPO/blob/REF/PATH nor file:PATH"
                ),
            )
        })
    }

    fn problem<T>(&mut self, name: &str, what: String) -> Option<T> {
        self.note(name, what);
        None
    }

    fn note(&mut self, name: &str, what: String) {
        self.problems.push(Problem { name: name.to_owned(), what });
    }
}

/// The longest time that a setting may name: ten years.
fn limit_seconds() -> u64 {
    3660 * 86_400
}

fn secure(text: &str) -> Result<SecureUrl, String> {
    text.parse().map_err(|error: SecureUrlError| match error {
        // Whatever is wrong with it, a password may be in it.
        _ if text.contains('@') => error.to_string(),
        _ => format!("`{text}` {error}"),
    })
}

/// Whether a URL would be a [`SecureUrl`] without the user name and password that may be in it.
fn is_secure_with_password(text: &str) -> bool {
    let bare = Url::parse(text.trim()).ok().and_then(|mut url| {
        url.set_username("").ok()?;
        url.set_password(None).ok()?;
        Some(url)
    });
    bare.is_some_and(|url| SecureUrl::try_from(url).is_ok())
}

/// Without keys of its own, the callback token hangs on the webhook secret.
fn derived_key(secret: &SecretString) -> SecretString {
    let key =
        aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, secret.expose_secret().as_bytes());
    SecretString::from(hex::encode(aws_lc_rs::hmac::sign(&key, b"crcr callback key")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Config, Vec<Problem>> {
        let map: BTreeMap<String, String> =
            pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        Config::read(&|name| map.get(name).cloned(), BTreeMap::new())
    }

    const NEEDED: [(&str, &str); 4] = [
        ("GITHUB_APP_ID", "1"),
        ("GITHUB_APP_SECRET", "s"),
        ("GITHUB_APP_PRIVATE_KEY", "k"),
        ("ALLOWLIST_URL", "https://github.com/acme/upstream/blob/main/.github/allowlist.yml"),
    ];

    #[test]
    fn everything_that_is_missing_or_odd_is_told_at_once() {
        let problems = read(&[
            ("GITHUB_APP_ID", "1"),
            ("CRCR_STORE", "mongodb://x"),
            ("RATE_LIMIT_PER_MIN", "0"),
            ("GITHUB_API_URL", "http://ghe.test/api/v3"),
            ("CRCR_SILENT_L4", "success"),
            ("ZOMBIE_TIMEOUT_SECONDS", "soon"),
            ("CRCR_CRITERIA", "job-pass-share: 90"),
        ])
        .unwrap_err();
        let names: Vec<_> = problems.iter().map(|problem| problem.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "GITHUB_APP_SECRET",
                "GITHUB_APP_PRIVATE_KEY",
                "ALLOWLIST_URL",
                "GITHUB_API_URL",
                "CRCR_STORE",
                "RATE_LIMIT_PER_MIN",
                "ZOMBIE_TIMEOUT_SECONDS",
                "CRCR_SILENT_L4",
                "CRCR_CRITERIA",
            ]
        );
    }

    #[test]
    fn an_admin_token_that_could_be_guessed_is_refused() {
        let with = |token| read(&[&NEEDED[..], &[("CRCR_ADMIN_TOKEN", token)]].concat());
        let problems = with("fifteen letters").unwrap_err();
        assert_eq!((problems.len(), problems[0].name.as_str()), (1, "CRCR_ADMIN_TOKEN"));
        assert!(problems[0].what.contains("fewer than 16") && !problems[0].what.contains("fift"));
        assert!(with("sixteen letters!").is_ok());
    }

    #[test]
    fn a_setting_of_the_deployed_relay_without_effect_is_told() {
        let lookup = |name: &str| {
            ["MAX_CLEANUP_WORKERS", "MAX_DISPATCH_WORKERS"].contains(&name).then(|| "7".to_owned())
        };
        let told = without_effect(&lookup);
        assert!(told.len() == 1 && told[0].name == "MAX_CLEANUP_WORKERS", "{told:?}");
        let mut pairs = NEEDED.to_vec();
        pairs.push(("MAX_DISPATCH_WORKERS", "7"));
        assert_eq!(read(&pairs).unwrap().workers, 7);
    }

    #[test]
    fn settings_of_the_deployed_relay_are_followed_or_asked_about() {
        let with = |more: &[(&str, &str)]| read(&[&NEEDED[..], more].concat());
        let asked = |more: &[(&str, &str)]| {
            let problems = with(more).unwrap_err();
            assert_eq!(problems.len(), 1, "{problems:?}");
            problems[0].name.clone()
        };
        let hud = [("HUD_API_URL", "https://hud.test/api"), ("HUD_BOT_KEY", "k")];
        let known = with(&hud).unwrap();
        assert_eq!(known.hud.unwrap().retries, limits::TRIES - 1);
        assert_eq!((known.keep, known.warn_open), (limits::KEEP, None));
        let more = [
            ("HUD_MAX_RETRIES", "0"),
            ("CRCR_STATUS_TTL", "259200"),
            ("IN_PROGRESS_WARN_THRESHOLD", "9"),
        ];
        let config = with(&[&hud[..], &more].concat()).unwrap();
        assert_eq!(config.hud.unwrap().retries, 0);
        assert_eq!(config.keep, Duration::from_secs(3 * 86_400));
        assert_eq!(config.warn_open, Some(9));
        // The deployed relay had a default for the one, and no need of the other.
        assert_eq!(asked(&[hud[1]]), "HUD_API_URL");
        assert_eq!(asked(&[hud[0]]), "HUD_BOT_KEY");
        assert_eq!(asked(&[("REDIS_ENDPOINT", "redis.test:6379")]), "CRCR_STORE");
        assert!(with(&[("HUD_API_URL", "off"), hud[1]]).unwrap().hud.is_none());
        assert!(with(&[("REDIS_ENDPOINT", "r"), ("CRCR_STORE", "sqlite:a.db")]).is_ok());
        // What is waited for has to be known for as long.
        assert_eq!(asked(&[("CRCR_STATUS_TTL", "1h")]), "CRCR_STATUS_TTL");
        assert_eq!(asked(&[("HUD_MAX_RETRIES", "-1")]), "HUD_MAX_RETRIES");
        assert_eq!(asked(&[("IN_PROGRESS_WARN_THRESHOLD", "0")]), "IN_PROGRESS_WARN_THRESHOLD");
    }

    #[test]
    fn four_settings_are_enough() {
        let config = read(&NEEDED).unwrap();
        assert_eq!((config.workers, config.allowlist_ttl), (32, Duration::from_secs(60)));
        assert_eq!(config.upstream.as_str(), "pytorch/pytorch");
        assert_eq!(config.store, StoreUrl::Sqlite("crcr.db".into()));
        assert!(config.hud.is_none() && config.admin_token.is_none());
        assert_eq!(config.lost_after, Duration::from_secs(21_600));
        let AllowlistUrl::GitHub { reference, path, .. } = config.allowlist else {
            panic!("on GitHub")
        };
        assert_eq!((reference.as_str(), path.as_str()), ("main", ".github/allowlist.yml"));
    }

    #[test]
    fn a_secret_may_be_a_file_and_is_never_printed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        std::fs::write(&path, "hush\n").unwrap();
        let mut pairs = NEEDED.to_vec();
        pairs[1] = ("GITHUB_APP_SECRET_FILE", path.to_str().unwrap());
        let config = read(&pairs).unwrap();
        assert_eq!(config.webhook_secret.first().expose_secret(), "hush");
        assert!(!format!("{config:?}").contains("hush"));
    }

    #[test]
    fn a_flag_or_variable_wins_over_the_secret_store() {
        let stored = [("GITHUB_APP_SECRET", "stored"), ("GITHUB_APP_PRIVATE_KEY", "stored")];
        let stored = stored.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        let lookup = |name: &str| match name {
            "GITHUB_APP_SECRET" => Some("own".to_owned()),
            "GITHUB_APP_ID" => Some("1".to_owned()),
            "ALLOWLIST_URL" => Some("file:allow.yml".to_owned()),
            _ => None,
        };
        let config = Config::read(&lookup, stored).unwrap();
        assert_eq!(config.webhook_secret.first().expose_secret(), "own");
        assert_eq!(config.private_key.first().expose_secret(), "stored");
    }

    #[test]
    fn the_public_address_is_https_or_loopback_and_nothing_but_an_address() {
        let with = |url: &str| read(&[&NEEDED[..], &[("CRCR_PUBLIC_URL", url)]].concat());
        for (given, kept) in [
            ("https://relay.test", "https://relay.test"),
            ("https://relay.test/", "https://relay.test"),
            ("https://relay.test/ci//", "https://relay.test/ci"),
            ("http://127.0.0.1:8080/", "http://127.0.0.1:8080"),
        ] {
            let config = with(given).unwrap();
            assert_eq!(config.public_url.as_deref(), Some(kept));
            assert_eq!(config.callback_url().unwrap(), format!("{kept}/github/callback"));
            assert_eq!(config.pull_request_page(7).unwrap(), format!("{kept}/pr/7"));
        }
        for odd in [
            "http://relay.test",
            "relay.test",
            "https://relay.test/?x=1",
            "https://relay.test/#x",
            "https://me:secret@relay.test",
            "javascript:alert(1)",
        ] {
            let problems = with(odd).unwrap_err();
            assert_eq!(problems[0].name, "CRCR_PUBLIC_URL", "{odd}");
            assert!(!problems[0].what.contains("secret"), "{}", problems[0].what);
        }
        assert!(read(&NEEDED).unwrap().callback_url().is_none());
    }
}
