//! What GitHub says of the names in a file: repositories, people, teams, labels, workflows.
//!
//! Reads only, with whatever token a person or a job has. Answers are kept with their `ETag`
//! ([`cache`]) and asked for again with it, which costs nothing of the rate limit when nothing has
//! changed: <https://docs.github.com/en/rest/using-the-rest-api/best-practices-for-using-the-rest-api>

pub mod cache;

use std::fmt;
use std::sync::{Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use jiff::Timestamp;
use octocrab::Octocrab;
use reqwest::Client;
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use self::cache::Cache;
use crate::SecureUrl;
use crate::app::{Clock, MAX_ANSWER, repo_path, segment};
use crate::error::Error;
use crate::http::{self as web, Retry};

/// The largest workflow that is read, in bytes. GitHub's own limit is lower.
const MAX_WORKFLOW: usize = 1024 * 1024;
const WORKFLOWS: &str = ".github/workflows";

pub struct Lookup {
    api: Octocrab,
    base: String,
    retry: Retry,
    clock: Clock,
    cache: Mutex<Cache>,
    /// What is left of the rate limit, and when it is whole again, as GitHub said last.
    rate: Mutex<Option<(u64, Timestamp)>>,
}

/// A repository as GitHub has it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Repository {
    /// `owner/repo` in GitHub's spelling; another name than the one asked for after a renaming.
    pub full_name: String,
    /// No workflow runs in an archived repository.
    #[serde(default)]
    pub archived: bool,
}

/// Whether an organisation has a team.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Team {
    Exists,
    /// It hasn't, or there is no such organisation.
    Missing,
    /// The token can't read the organisation's teams, so nobody can tell.
    Hidden,
}

/// No client can be made of the token or the address.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A token with characters that no header can hold.
    #[error("the token has a character that no token has")]
    Token,
    /// The client refused the address.
    #[error("`{0}` is no address of an API")]
    Address(SecureUrl),
}

impl fmt::Debug for Lookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lookup").field("base", &self.base).finish_non_exhaustive()
    }
}

impl Lookup {
    /// For the GitHub whose REST API is at `base`, with `token`, on the program's one HTTP client.
    ///
    /// Needs to be called within a tokio runtime.
    pub fn new(
        http: Client,
        base: &SecureUrl,
        token: &SecretString,
        cache: Cache,
        clock: Clock,
    ) -> Result<Self, SetupError> {
        if token.expose_secret().is_empty()
            || !token.expose_secret().bytes().all(|b| b.is_ascii_graphic())
        {
            return Err(SetupError::Token);
        }
        let address = |_| SetupError::Address(base.clone());
        let api = Octocrab::builder()
            .base_uri(base.as_str())
            .map_err(address)?
            .personal_token(token.clone())
            .build_with_reqwest(http)
            .map_err(address)?;
        let base = base.as_str().trim_end_matches('/').to_owned();
        let retry = Retry { tries: 3, ..Retry::default() };
        Ok(Self { api, base, retry, clock, cache: Mutex::new(cache), rate: Mutex::default() })
    }

    /// The repository, under whatever name it has now; `None` when there is none that the token
    /// can see.
    pub async fn repository(&self, repo: &str) -> Result<Option<Repository>, Error> {
        self.json(
            &repo_path(repo),
            |answer| json!({ "full_name": answer["full_name"], "archived": answer["archived"] }),
        )
        .await
    }

    /// Whether there is a person or an organisation of that name.
    pub async fn user_exists(&self, login: &str) -> Result<bool, Error> {
        self.exists(&format!("/users/{}", segment(login))).await
    }

    /// Whether `org` has the team `slug`. GitHub answers 404 to whom it hides teams from, too; only
    /// a token that may list the organisation's teams can tell.
    pub async fn team(&self, org: &str, slug: &str) -> Result<Team, Error> {
        let org = format!("/orgs/{}/teams", segment(org));
        match self.exists(&format!("{org}/{}", segment(slug))).await {
            Ok(true) => return Ok(Team::Exists),
            Ok(false) => {}
            Err(Error::Forbidden(_)) => return Ok(Team::Hidden),
            Err(error) => return Err(error),
        }
        match self.exists(&format!("{org}?per_page=1")).await {
            Ok(true) => Ok(Team::Missing),
            Ok(false) | Err(Error::Forbidden(_)) => Ok(Team::Hidden),
            Err(error) => Err(error),
        }
    }

    /// Whether the repository has the label.
    pub async fn label_exists(&self, repo: &str, label: &str) -> Result<bool, Error> {
        self.exists(&format!("{}/labels/{}", repo_path(repo), segment(label))).await
    }

    /// The paths of the workflows on the default branch; none is an empty list.
    pub async fn workflows(&self, repo: &str) -> Result<Vec<String>, Error> {
        let path = format!("{}/contents/{WORKFLOWS}", repo_path(repo));
        let keep = |answer: &Value| {
            let files = answer.as_array().map(Vec::as_slice).unwrap_or_default();
            let paths = files.iter().filter(|file| file["type"] == "file");
            let paths = paths.filter_map(|file| file["path"].as_str());
            json!(paths.filter(|p| p.ends_with(".yml") || p.ends_with(".yaml")).collect::<Vec<_>>())
        };
        Ok(self.json(&path, keep).await?.unwrap_or_default())
    }

    /// The text of a file on the default branch; `None` when it isn't there.
    pub async fn file(&self, repo: &str, path: &str) -> Result<Option<String>, Error> {
        let path: Vec<String> = path.split('/').map(segment).collect();
        let path = format!("{}/contents/{}", repo_path(repo), path.join("/"));
        let raw = |body: &[u8]| Ok(json!(String::from_utf8_lossy(body)));
        let found = self.get(&path, "application/vnd.github.raw+json", MAX_WORKFLOW, raw).await?;
        Ok(found.and_then(|text| text.as_str().map(str::to_owned)))
    }

    /// The answers to keep for the next time.
    pub fn into_cache(self) -> Cache {
        self.cache.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    async fn exists(&self, path: &str) -> Result<bool, Error> {
        Ok(self.json::<bool>(path, |_| json!(true)).await?.is_some())
    }

    /// What `keep` keeps of a JSON answer; `None` of a 404.
    async fn json<T: DeserializeOwned>(
        &self,
        path: &str,
        keep: impl Fn(&Value) -> Value,
    ) -> Result<Option<T>, Error> {
        let read = |body: &[u8]| serde_json::from_slice(body).map(|answer| keep(&answer));
        let found = self.get(path, "application/vnd.github+json", MAX_ANSWER, read).await?;
        let parsed = found.map(serde_json::from_value).transpose();
        parsed.map_err(|error| malformed(path, error.to_string()))
    }

    async fn get(
        &self,
        path: &str,
        accept: &'static str,
        limit: usize,
        read: impl Fn(&[u8]) -> serde_json::Result<Value>,
    ) -> Result<Option<Value>, Error> {
        let key = format!("{}{path}", self.base);
        let known = lock(&self.cache).get(&key);
        let mut headers = HeaderMap::from_iter([
            (header::ACCEPT, HeaderValue::from_static(accept)),
            (header::USER_AGENT, HeaderValue::from_static("crcr")),
        ]);
        headers.insert("x-github-api-version", HeaderValue::from_static("2022-11-28"));
        if let Some(etag) = known.as_ref().and_then(|(etag, _)| HeaderValue::from_str(etag).ok()) {
            headers.insert(header::IF_NONE_MATCH, etag);
        }
        let answer = match self.ask(path, &headers, limit).await {
            Err(Error::NotFound(_)) => return Ok(None),
            other => other?,
        };
        match (answer.status(), known) {
            (StatusCode::NOT_MODIFIED, Some((_, value))) => Ok(Some(value)),
            (status, _) if status.is_success() => {
                let etag = answer.headers().get(header::ETAG).and_then(|v| v.to_str().ok());
                let value =
                    read(answer.body()).map_err(|error| malformed(path, error.to_string()))?;
                if let Some(etag) = etag {
                    lock(&self.cache).put(key, etag.to_owned(), value.clone());
                }
                Ok(Some(value))
            }
            (status, _) => Err(malformed(path, format!("unexpected status {status}"))),
        }
    }

    /// One question, asked again while the failure is transient.
    async fn ask(
        &self,
        path: &str,
        headers: &HeaderMap,
        limit: usize,
    ) -> Result<Response<Bytes>, Error> {
        let call = format!("GET {path}");
        let mut tries = self.retry.start();
        loop {
            self.check_rate(&call)?;
            let answer = self.ask_once(path, headers, limit).await;
            let error = match answer {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let again =
                error.is_transient() && error.status() != Some(StatusCode::TOO_MANY_REQUESTS);
            if !again || !tries.again(&error, None).await {
                return Err(Error::from_http(&call, error, (self.clock)()));
            }
        }
    }

    async fn ask_once(
        &self,
        path: &str,
        headers: &HeaderMap,
        limit: usize,
    ) -> Result<Response<Bytes>, web::Error> {
        let answer = self.api._get_with_headers(path, Some(headers.clone())).await;
        let answer = answer.map_err(|error| web::Error::Unreachable(root_cause(&error)))?;
        let (parts, mut body) = answer.into_parts();
        self.note_rate(&parts.headers);
        let mut bytes = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| web::Error::Unreachable(root_cause(&error)))?;
            let Ok(data) = frame.into_data() else { continue };
            if bytes.len() + data.len() > limit {
                return Err(web::Error::TooLarge(limit));
            }
            bytes.extend_from_slice(&data);
        }
        let status = parts.status;
        if status.is_success() || status == StatusCode::NOT_MODIFIED {
            return Ok(Response::from_parts(parts, bytes.freeze()));
        }
        let retry_after = web::retry_after(&parts.headers);
        let headers = Box::new(parts.headers);
        Err(web::Error::Status { status, retry_after, headers, body: bytes.freeze() })
    }

    /// Asking on with nothing left would only be refused, and held against the token.
    fn check_rate(&self, call: &str) -> Result<(), Error> {
        match *lock(&self.rate) {
            Some((0, until)) if until > (self.clock)() => {
                Err(Error::RateLimited { until, call: call.to_owned() })
            }
            _ => Ok(()),
        }
    }

    fn note_rate(&self, headers: &HeaderMap) {
        let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<i64>().ok();
        let left = number("x-ratelimit-remaining").and_then(|left| u64::try_from(left).ok());
        let until = number("x-ratelimit-reset").and_then(|at| Timestamp::from_second(at).ok());
        if let Some(told) = left.zip(until) {
            *lock(&self.rate) = Some(told);
        }
    }
}

fn malformed(path: &str, what: String) -> Error {
    Error::Malformed { call: format!("GET {path}"), source: web::Error::Malformed(what) }
}

/// The end of the chain holds the reason; the address in front of it is known to the caller.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut source = error;
    while let Some(next) = source.source() {
        source = next;
    }
    source.to_string()
}

/// The maps are consistent after every statement, so a panic elsewhere spoils nothing.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
