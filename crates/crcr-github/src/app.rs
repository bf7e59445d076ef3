//! A GitHub App: its identity, its installations and their tokens, kept in memory only.
//!
//! Protocol: <https://docs.github.com/en/apps/creating-github-apps/authenticating-with-a-github-app>

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, header};
use jiff::Timestamp;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use reqwest::{Client, Response};
use secrecy::{ExposeSecret as _, SecretString};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::SecureUrl;
use crate::error::Error;
use crate::http as web;

/// GitHub lets an App's JWT live ten minutes; the rest is for clocks that differ.
const JWT_LIFE: Duration = Duration::from_secs(9 * 60);
/// Clocks that differ by this much still agree on `iat`.
const JWT_BACKDATE: Duration = Duration::from_secs(60);
/// A token isn't used in the last minutes of its hour, so that no call outlives it.
const TOKEN_MARGIN: Duration = Duration::from_secs(5 * 60);
/// The largest JSON answer that is read, in bytes.
pub(crate) const MAX_ANSWER: usize = 8 * 1024 * 1024;
/// The most pages of a list that are read; 100 entries each.
pub(crate) const MAX_PAGES: u32 = 20;

/// Characters that may not stand in one segment of a path as they are.
const SEGMENT: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'/')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'\\');

/// What time it is. One clock is passed to everything, so that a test can hold it.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Permissions of an installation token, like `contents: write`.
pub(crate) type Scope = &'static [(&'static str, &'static str)];

/// A GitHub App on one GitHub.
///
/// Every call asks for a token of one repository with the permissions that the call needs. Tokens
/// and installations are remembered, so that a call costs one request in the steady state.
pub struct App {
    http: Client,
    base: SecureUrl,
    id: String,
    keys: Mutex<Keys>,
    clock: Clock,
    tokens: Mutex<HashMap<(String, Scope), Slot>>,
    installations: Mutex<HashMap<String, u64>>,
}

/// The App's private keys, and the JWT that the one in use has signed.
struct Keys {
    all: Vec<EncodingKey>,
    used: usize,
    jwt: Option<(SecretString, Timestamp)>,
}

/// A place for one token; whoever holds the lock is the only one who asks for it.
type Slot = Arc<tokio::sync::Mutex<Option<Token>>>;

#[derive(Clone)]
struct Token {
    secret: SecretString,
    expires_at: Timestamp,
    target: Target,
}

/// A repository that the App reaches, as GitHub described it with the token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The installation that the repository belongs to.
    pub installation_id: u64,
    /// The repository's number, which a re-registered name doesn't inherit.
    pub repository_id: u64,
    pub default_branch: String,
}

/// An installation of the App.
#[derive(Debug, Clone, Deserialize)]
pub struct Installation {
    pub id: u64,
    /// When its owner suspended it.
    #[serde(default)]
    pub suspended_at: Option<Timestamp>,
    /// What it may do, like `contents` → `write`.
    #[serde(default)]
    pub permissions: HashMap<String, String>,
}

/// The App's private key can't be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// It isn't PEM of an RSA key.
    #[error("the App's private key isn't an RSA key in PEM: {0}")]
    Pem(jsonwebtoken::errors::Error),
    /// There is no key in it, or there are too many.
    #[error(
        "the App's private key has to be one key in PEM, or the new one and the old one; it has {0}"
    )]
    Count(usize),
}

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("App").field("id", &self.id).field("base", &self.base.as_str()).finish()
    }
}

impl App {
    /// The App's number or client id, as it was configured.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// The App number `id` (or its client id) of the GitHub whose REST API is at `base`
    /// (`https://api.github.com`, or `https://HOST/api/v3`).
    ///
    /// `private_key` is PEM, PKCS#1 or PKCS#8; line feeds may be written as `\n`, as they are when
    /// a key passes through an environment file. It may hold a new key and, behind it, the old one:
    /// what GitHub refuses of the one is tried with the other.
    pub fn new(
        http: Client,
        base: SecureUrl,
        id: impl Into<String>,
        private_key: &SecretString,
        clock: Clock,
    ) -> Result<Self, KeyError> {
        let keys = Keys { all: read_keys(private_key)?, used: 0, jwt: None };
        Ok(Self {
            http,
            base,
            id: id.into(),
            keys: Mutex::new(keys),
            clock,
            tokens: Mutex::default(),
            installations: Mutex::default(),
        })
    }

    /// Puts another private key into force, or two. Fails, and changes nothing, when one of them
    /// can't be read.
    pub fn set_private_key(&self, private_key: &SecretString) -> Result<(), KeyError> {
        let all = read_keys(private_key)?;
        *lock(&self.keys) = Keys { all, used: 0, jwt: None };
        Ok(())
    }

    /// The App's installation on `repo`.
    ///
    /// [`Error::NotInstalled`] when there is none; a suspended one is returned as it is.
    pub async fn installation(&self, repo: &str) -> Result<Installation, Error> {
        let path = format!("{}/installation", repo_path(repo));
        let answer = self.as_app(Method::GET, &path, None).await;
        match answer {
            Err(Error::NotFound(_)) => Err(Error::NotInstalled(repo.to_owned())),
            other => other,
        }
    }

    /// Whether the App's identity is accepted: asks GitHub who the App is, and returns its slug.
    pub async fn slug(&self) -> Result<String, Error> {
        #[derive(Deserialize)]
        struct Me {
            slug: String,
        }
        Ok(self.as_app::<Me>(Method::GET, "/app", None).await?.slug)
    }

    /// Forgets what is remembered of `repo`: for webhooks that say that an installation changed.
    pub fn forget(&self, repo: &str) {
        lock(&self.installations).remove(repo);
        lock(&self.tokens).retain(|(of, _), _| of != repo);
    }

    /// A call on behalf of the installation on `repo`, which returns the answer and what is known
    /// of the repository. A refused token is forgotten and the call made once more.
    pub(crate) async fn call(
        &self,
        repo: &str,
        scope: Scope,
        request: &Call<'_>,
    ) -> Result<(Response, Target), Error> {
        let mut last = None;
        for _ in 0..2 {
            let token = self.token(repo, scope).await?;
            let found = token.target.repository_id;
            if let Some(expected) = request.repository_id.filter(|expected| *expected != found) {
                return Err(Error::OtherRepository { repo: repo.to_owned(), expected, found });
            }
            match self.send(request, &token.secret).await {
                Ok(response) => return Ok((response, token.target)),
                Err(error @ Error::Unauthorized(_)) => {
                    self.forget(repo);
                    last = Some(error);
                }
                Err(Error::Moved { call, to }) => {
                    let to = self.name_at(&to, &token.secret).await.unwrap_or(to);
                    return Err(Error::Moved { call, to });
                }
                Err(error @ Error::NotFound(_)) => {
                    // Gone, renamed or taken out of the installation: ask afresh next time.
                    if request.forget_on_404 {
                        self.forget(repo);
                    }
                    return Err(error);
                }
                Err(error) => return Err(error),
            }
        }
        Err(last.unwrap_or_else(|| Error::NotInstalled(repo.to_owned())))
    }

    /// The name of the repository at an address that GitHub has named, if it can be had.
    async fn name_at(&self, location: &str, token: &SecretString) -> Option<String> {
        #[derive(Deserialize)]
        struct Named {
            full_name: String,
        }
        let (_, number) = location.split_once("/repositories/")?;
        let number: u64 = number.split('/').next()?.parse().ok()?;
        // By number at our own GitHub: the token goes nowhere else.
        let call = Call::get(format!("/repositories/{number}"));
        let response = self.send(&call, token).await.ok()?;
        let named: Named = self.read(&call.name(), response).await.ok()?;
        Some(format!("`{}`", named.full_name.chars().take(140).collect::<String>()))
    }

    /// What is known of `repo` from its token, asking for one when there is none.
    pub(crate) async fn known(&self, repo: &str, scope: Scope) -> Result<Target, Error> {
        Ok(self.token(repo, scope).await?.target)
    }

    /// [`App::call`], with the answer read as JSON.
    pub(crate) async fn call_json<T: DeserializeOwned>(
        &self,
        repo: &str,
        scope: Scope,
        request: &Call<'_>,
    ) -> Result<T, Error> {
        let (response, _) = self.call(repo, scope, request).await?;
        self.read(&request.name(), response).await
    }

    pub(crate) fn now(&self) -> Timestamp {
        (self.clock)()
    }

    pub(crate) async fn read<T: DeserializeOwned>(
        &self,
        call: &str,
        response: Response,
    ) -> Result<T, Error> {
        web::read_json(response, MAX_ANSWER)
            .await
            .map_err(|error| Error::from_http(call, error, self.now()))
    }

    async fn token(&self, repo: &str, scope: Scope) -> Result<Token, Error> {
        let slot = Arc::clone(lock(&self.tokens).entry((repo.to_owned(), scope)).or_default());
        let mut slot = slot.lock().await;
        if let Some(token) = slot.as_ref().filter(|t| t.expires_at - TOKEN_MARGIN > self.now()) {
            return Ok(token.clone());
        }
        *slot = None;
        let token = self.new_token(repo, scope).await?;
        *slot = Some(token.clone());
        Ok(token)
    }

    async fn new_token(&self, repo: &str, scope: Scope) -> Result<Token, Error> {
        let known = lock(&self.installations).get(repo).copied();
        if let Some(id) = known {
            match self.mint(id, repo, scope).await {
                // Uninstalled or moved to another account, perhaps installed again under another
                // number.
                Err(Error::NotFound(_) | Error::NotInstalled(_)) => {
                    lock(&self.installations).remove(repo);
                }
                other => return other,
            }
        }
        let installation = self.installation(repo).await?;
        if installation.suspended_at.is_some() {
            return Err(Error::Suspended(repo.to_owned()));
        }
        lock(&self.installations).insert(repo.to_owned(), installation.id);
        self.mint(installation.id, repo, scope).await
    }

    async fn mint(&self, installation: u64, repo: &str, scope: Scope) -> Result<Token, Error> {
        #[derive(Deserialize)]
        struct Answer {
            token: String,
            expires_at: Timestamp,
            #[serde(default)]
            repositories: Vec<Repository>,
        }
        #[derive(Deserialize)]
        struct Repository {
            id: u64,
            #[serde(default)]
            default_branch: String,
        }
        let name = repo.split_once('/').map_or(repo, |(_, name)| name);
        let permissions: HashMap<_, _> = scope.iter().copied().collect();
        let body = json!({ "repositories": [name], "permissions": permissions });
        let path = format!("/app/installations/{installation}/access_tokens");
        let answer: Answer =
            self.as_app(Method::POST, &path, Some(body)).await.map_err(|error| match error {
                Error::Forbidden(text) if text.contains("suspended") => {
                    Error::Suspended(repo.to_owned())
                }
                Error::Unprocessable(text) if text.contains("permissions") => {
                    Error::MissingPermission { repo: repo.to_owned(), permission: told(scope) }
                }
                // The installation exists and doesn't hold this repository.
                Error::Unprocessable(_) => Error::NotInstalled(repo.to_owned()),
                other => other,
            })?;
        let [repository] = &answer.repositories[..] else {
            let source = web::Error::Malformed(format!(
                "a token of one repository names {} of them",
                answer.repositories.len()
            ));
            return Err(Error::Malformed { call: format!("POST {path}"), source });
        };
        let target = Target {
            installation_id: installation,
            repository_id: repository.id,
            default_branch: repository.default_branch.clone(),
        };
        Ok(Token { secret: answer.token.into(), expires_at: answer.expires_at, target })
    }

    async fn as_app<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<serde_json::Value>,
    ) -> Result<T, Error> {
        let call = Call { body: body.as_ref(), ..Call::new(method, path.to_owned()) };
        let mut untried = lock(&self.keys).all.len();
        let response = loop {
            let jwt = self.jwt()?;
            untried = untried.saturating_sub(1);
            match self.send(&call, &jwt).await {
                Err(Error::Unauthorized(_)) if untried > 0 => self.use_next_key(&jwt),
                other => break other?,
            }
        };
        self.read(&call.name(), response).await
    }

    async fn send(&self, call: &Call<'_>, bearer: &SecretString) -> Result<Response, Error> {
        let url = format!("{}{}", self.base.as_str().trim_end_matches('/'), call.path);
        let mut request = self
            .http
            .request(call.method.clone(), url)
            .header(header::ACCEPT, call.accept)
            .header("X-GitHub-Api-Version", "2022-11-28")
            .headers(call.headers.clone())
            .bearer_auth(bearer.expose_secret());
        if let Some(body) = call.body {
            request = request.json(body);
        }
        if let Some(bytes) = &call.raw_body {
            request = request.header(header::CONTENT_TYPE, "application/json").body(bytes.clone());
        }
        web::send_once(request)
            .await
            .map_err(|error| Error::from_http(&call.name(), error, self.now()))
    }

    fn jwt(&self) -> Result<SecretString, Error> {
        #[derive(Serialize)]
        struct Claims<'a> {
            iat: i64,
            exp: i64,
            iss: &'a str,
        }
        let now = self.now();
        let mut keys = lock(&self.keys);
        if let Some((jwt, _)) = keys.jwt.as_ref().filter(|(_, until)| *until > now) {
            return Ok(jwt.clone());
        }
        let exp = now + JWT_LIFE;
        let claims =
            Claims { iat: (now - JWT_BACKDATE).as_second(), exp: exp.as_second(), iss: &self.id };
        let key = &keys.all[keys.used];
        let jwt = jsonwebtoken::encode(&Header::new(Algorithm::RS256), &claims, key)
            .map_err(|error| Error::Unauthorized(format!("the App's key can't sign: {error}")))?;
        let jwt = SecretString::from(jwt);
        keys.jwt = Some((jwt.clone(), exp - JWT_BACKDATE));
        Ok(jwt)
    }

    /// GitHub has refused `jwt`: the next key signs, unless somebody else has moved on already.
    fn use_next_key(&self, jwt: &SecretString) {
        let mut keys = lock(&self.keys);
        let refused = keys
            .jwt
            .as_ref()
            .is_some_and(|(known, _)| known.expose_secret() == jwt.expose_secret());
        if refused {
            keys.used = (keys.used + 1) % keys.all.len();
            keys.jwt = None;
        }
    }
}

/// The RSA keys of a text, one or two.
fn read_keys(text: &SecretString) -> Result<Vec<EncodingKey>, KeyError> {
    const BEGIN: &str = "-----BEGIN ";
    let text = SecretString::from(text.expose_secret().replace("\\n", "\n"));
    let text = text.expose_secret();
    let starts: Vec<_> = text.match_indices(BEGIN).map(|(at, _)| at).collect();
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    let blocks: Vec<&str> =
        starts.iter().zip(ends).map(|(start, end)| &text[*start..end]).collect();
    if !(1..=2).contains(&blocks.len()) {
        return Err(KeyError::Count(blocks.len()));
    }
    blocks
        .into_iter()
        .map(|block| EncodingKey::from_rsa_pem(block.as_bytes()).map_err(KeyError::Pem))
        .collect()
}

pub(crate) struct Call<'a> {
    pub(crate) method: Method,
    /// With the leading `/`, below the base URL.
    pub(crate) path: String,
    pub(crate) body: Option<&'a serde_json::Value>,
    /// A body that is JSON already.
    pub(crate) raw_body: Option<Bytes>,
    pub(crate) accept: &'static str,
    pub(crate) headers: HeaderMap,
    /// Whether 404 says something of the repository, not of a thing inside it.
    pub(crate) forget_on_404: bool,
    /// The only repository that may be called, by number. The token is of one repository, so this
    /// is checked before anything is sent.
    pub(crate) repository_id: Option<u64>,
}

impl<'a> Call<'a> {
    pub(crate) fn new(method: Method, path: String) -> Self {
        Self {
            method,
            path,
            body: None,
            raw_body: None,
            accept: "application/vnd.github+json",
            headers: HeaderMap::new(),
            forget_on_404: false,
            repository_id: None,
        }
    }

    pub(crate) fn get(path: String) -> Self {
        Self::new(Method::GET, path)
    }

    pub(crate) fn post(path: String, body: &'a serde_json::Value) -> Self {
        Self { body: Some(body), ..Self::new(Method::POST, path) }
    }

    fn name(&self) -> String {
        format!("{} {}", self.method, self.path)
    }
}

/// `/repos/{owner}/{repo}`, with nothing in the name that could leave its segment.
pub(crate) fn repo_path(repo: &str) -> String {
    let (owner, name) = repo.split_once('/').unwrap_or((repo, ""));
    format!("/repos/{}/{}", segment(owner), segment(name))
}

/// One segment of a path. `.` and `..` can't be escaped in a URL, so they become what no
/// repository, file or branch is called.
pub(crate) fn segment(text: &str) -> String {
    match text {
        "." | ".." => "%2E".to_owned(),
        _ => utf8_percent_encode(text, SEGMENT).to_string(),
    }
}

fn told(scope: Scope) -> String {
    scope.iter().map(|(name, level)| format!("{name}: {level}")).collect::<Vec<_>>().join(", ")
}

/// The maps are consistent after every statement, so a panic elsewhere spoils nothing.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
