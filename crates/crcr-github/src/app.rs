//! A GitHub App: its identity, its installations and their tokens, kept in memory only.
//!
//! Protocol: <https://docs.github.com/en/apps/creating-github-apps/authenticating-with-a-github-app>

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use jiff::Timestamp;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use parking_lot::Mutex;
use reqwest::Client;
use secrecy::{ExposeSecret as _, SecretString};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::GithubError;
use crate::http::HttpError;
use crate::null_as_default;
pub use crate::rest::Clock;
use crate::rest::{
    RestClient, RestRequest, RestResponse, Transport, all_pages, path_by_number, repo_path,
};
use crate::{ClientSetupError, SecureUrl};

/// GitHub lets an App's JWT live ten minutes; the rest is for clocks that differ.
const JWT_LIFE: Duration = Duration::from_secs(9 * 60);
/// Clocks that differ by this much still agree on `iat`.
const JWT_BACKDATE: Duration = Duration::from_secs(60);
/// A token isn't used in the last minutes of its hour, so that no call outlives it.
const TOKEN_MARGIN: Duration = Duration::from_secs(5 * 60);
/// The most entries of a list that are read.
const MAX_ENTRIES: usize = 2_000;

/// Permissions of an installation token, like `contents: write`.
pub(crate) type Permissions = &'static [(&'static str, &'static str)];

/// A GitHub App on one GitHub.
///
/// Every call asks for a token of one repository with the permissions that the call needs. Tokens
/// and installations are remembered, so that a call costs one request in the steady state.
pub struct GithubApp {
    client: RestClient,
    id: String,
    keys: Mutex<SigningKeys>,
    tokens: Mutex<HashMap<(String, Permissions), TokenSlot>>,
    installations: Mutex<HashMap<String, RepositoryInstallation>>,
}

/// The installation that a repository belongs to.
#[derive(Debug, Clone, Copy)]
struct RepositoryInstallation {
    id: u64,
    /// The repository's number if it has another name now, under which the installation knows it.
    renamed: Option<u64>,
}

/// The App's private keys, and the JWT that the one in use has signed.
struct SigningKeys {
    all: Vec<EncodingKey>,
    /// The index of the key in use.
    current: usize,
    /// With the time when it was signed.
    jwt: Option<(SecretString, Timestamp)>,
}

/// One remembered token. The lock is held while a new one is fetched, so that many calls at once
/// ask for one token.
type TokenSlot = Arc<tokio::sync::Mutex<Option<InstallationToken>>>;

#[derive(Clone)]
struct InstallationToken {
    secret: SecretString,
    expires_at: Timestamp,
    repository: AppRepository,
}

/// A repository that the App is installed on, as GitHub described it with the token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppRepository {
    /// The installation that the repository belongs to.
    pub installation_id: u64,
    /// The repository's number, which a re-registered name doesn't inherit.
    pub repository_id: u64,
    pub default_branch: String,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Installation {
    pub id: u64,
    pub suspended_at: Option<Timestamp>,
    /// What it may do, like `contents` → `write`.
    #[serde(default, deserialize_with = "null_as_default")]
    pub permissions: HashMap<String, String>,
}

impl fmt::Debug for GithubApp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GithubApp").field("id", &self.id).finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Deserialize)]
pub struct AppDescription {
    pub slug: String,
    /// The events that it is subscribed to.
    #[serde(default, deserialize_with = "null_as_default")]
    pub events: Vec<String>,
}

/// <https://docs.github.com/en/rest/apps/webhooks#get-a-webhook-configuration-for-an-app>
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct HookConfig {
    pub url: String,
    pub content_type: String,
    /// GitHub shows a secret as asterisks. `None`: none is set, or the response lacks the field.
    pub secret: Option<String>,
    /// Whether certificates aren't verified.
    pub insecure_ssl: Option<Value>,
}

impl GithubApp {
    /// The App number `id` (or its client id) of the GitHub whose REST API is at `base`
    /// (`https://api.github.com`, or `https://HOST/api/v3`). Needs a tokio runtime.
    ///
    /// `private_key` is PEM, PKCS#1 or PKCS#8; line feeds may be written as `\n`, as they are when
    /// a key passes through an environment file. While keys are rotated it may hold the new key and
    /// then the old one: when GitHub refuses one, the other is tried.
    pub fn new(
        http: Client,
        base: &SecureUrl,
        id: impl Into<String>,
        private_key: &SecretString,
        clock: Clock,
    ) -> Result<Self, ClientSetupError> {
        Self::with_client(RestClient::new(http, base, clock)?, id, private_key)
    }

    /// The same App, whose requests go to `transport` and not to the network.
    pub fn in_process(
        transport: Transport,
        id: impl Into<String>,
        private_key: &SecretString,
        clock: Clock,
    ) -> Result<Self, ClientSetupError> {
        Self::with_client(RestClient::in_process(transport, clock), id, private_key)
    }

    fn with_client(
        client: RestClient,
        id: impl Into<String>,
        private_key: &SecretString,
    ) -> Result<Self, ClientSetupError> {
        Ok(Self {
            client,
            id: id.into(),
            keys: Mutex::new(read_keys(private_key)?),
            tokens: Mutex::default(),
            installations: Mutex::default(),
        })
    }

    /// How many calls each account's installation has left in its hour, by the account in lower
    /// case. An account that wasn't asked since the start isn't there.
    pub fn calls_left(&self) -> BTreeMap<String, u64> {
        self.client.calls_left()
    }

    /// The App's number or client id, as it was configured.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Replaces the private key or keys. When one of them can't be read, nothing changes.
    pub fn set_private_key(&self, private_key: &SecretString) -> Result<(), ClientSetupError> {
        *self.keys.lock() = read_keys(private_key)?;
        Ok(())
    }

    /// The App's installation on `repo`.
    ///
    /// [`GithubError::NotInstalled`] when there is none; a suspended one is returned as it is.
    pub async fn installation(&self, repo: &str) -> Result<Installation, GithubError> {
        let request = RestRequest::get(format!("{}/installation", repo_path(repo)));
        match self.call_as_app(request).await {
            Err(GithubError::NotFound(_)) => Err(GithubError::NotInstalled(repo.to_owned())),
            other => other,
        }
    }

    /// The App's slug, which also shows that GitHub accepts the App's key.
    pub async fn slug(&self) -> Result<String, GithubError> {
        Ok(self.described().await?.slug)
    }

    /// The App, as GitHub describes it.
    pub async fn described(&self) -> Result<AppDescription, GithubError> {
        self.call_as_app(RestRequest::get("/app".to_owned())).await
    }

    /// Where GitHub sends the App's webhooks, and how.
    pub async fn hook_config(&self) -> Result<HookConfig, GithubError> {
        self.call_as_app(RestRequest::get("/app/hook/config".to_owned())).await
    }

    /// Drops the token and the installation of `repo`: for webhooks about changed installations.
    pub fn forget(&self, repo: &str) {
        self.installations.lock().remove(repo);
        self.tokens.lock().retain(|(of, _), _| of != repo);
    }

    /// What a token of `repo` says of it; asks for a token when none is remembered.
    pub(crate) async fn repository(
        &self,
        repo: &str,
        permissions: Permissions,
    ) -> Result<AppRepository, GithubError> {
        Ok(self.token(repo, permissions).await?.repository)
    }

    /// A call with a token of `repo`. A refused token is replaced, and the call sent once more.
    pub(crate) async fn call(
        &self,
        repo: &str,
        permissions: Permissions,
        request: &RestRequest,
    ) -> Result<RestResponse, GithubError> {
        Ok(self.call_repository(repo, None, permissions, request).await?.0)
    }

    /// [`GithubApp::call`] also of a repository that has another name now: GitHub redirects to its number.
    pub(crate) async fn call_renamed(
        &self,
        repo: &str,
        permissions: Permissions,
        request: &RestRequest,
    ) -> Result<RestResponse, GithubError> {
        let token = self.token(repo, permissions).await?;
        match self.client.send(request, &token.secret).await {
            Err(GithubError::Moved { call, to }) => {
                let number = token.repository.repository_id;
                let Some(path) = path_by_number(&to).filter(|it| number_in(it) == Some(number))
                else {
                    return Err(GithubError::Moved { call, to });
                };
                self.client.send(&request.at(path), &token.secret).await
            }
            // A refused token is replaced.
            Err(GithubError::Unauthorized(_)) => self.call(repo, permissions, request).await,
            sent => sent,
        }
    }

    /// [`GithubApp::call`], with the repository that was called. With `expected`, nothing is sent
    /// unless the name still belongs to the repository of that number: a deleted name can be
    /// registered again by somebody else.
    pub(crate) async fn call_repository(
        &self,
        repo: &str,
        expected: Option<u64>,
        permissions: Permissions,
        request: &RestRequest,
    ) -> Result<(RestResponse, AppRepository), GithubError> {
        let mut is_retry = false;
        loop {
            let token = self.token(repo, permissions).await?;
            let found = token.repository.repository_id;
            if let Some(expected) = expected.filter(|expected| *expected != found) {
                return Err(GithubError::OtherRepository {
                    repo: repo.to_owned(),
                    expected,
                    found,
                });
            }
            match self.client.send(request, &token.secret).await {
                Ok(response) => return Ok((response, token.repository)),
                Err(error @ GithubError::Unauthorized(_)) => {
                    self.forget(repo);
                    if is_retry {
                        return Err(error);
                    }
                    is_retry = true;
                }
                Err(GithubError::Moved { call, to }) => {
                    let to = self.name_at(&to, &token.secret).await.unwrap_or(to);
                    return Err(GithubError::Moved { call, to });
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The name of the repository that GitHub redirects to.
    async fn name_at(&self, location: &str, token: &SecretString) -> Option<String> {
        #[derive(Deserialize)]
        struct RepositoryAnswer {
            full_name: String,
        }
        let number = path_by_number(location)?.split('/').nth(2)?;
        let request = RestRequest::get(format!("/repositories/{number}"));
        let response = self.client.send(&request, token).await.ok()?;
        let answer: RepositoryAnswer = self.client.read_json(&request, response).await.ok()?;
        Some(format!("`{}`", answer.full_name.chars().take(140).collect::<String>()))
    }

    /// [`GithubApp::call`], with the answer read as JSON.
    pub(crate) async fn call_json<T: DeserializeOwned>(
        &self,
        repo: &str,
        permissions: Permissions,
        request: RestRequest,
    ) -> Result<T, GithubError> {
        let response = self.call(repo, permissions, &request).await?;
        self.client.read_json(&request, response).await
    }

    /// All pages of a list, at most [`MAX_ENTRIES`]. `P` is one page, as GitHub wraps it.
    pub(crate) async fn list<T, P: DeserializeOwned + Into<Vec<T>>>(
        &self,
        repo: &str,
        permissions: Permissions,
        path: &str,
        per_page: usize,
    ) -> Result<Vec<T>, GithubError> {
        let get = |request| self.call_json::<P>(repo, permissions, request);
        all_pages(path, (per_page, MAX_ENTRIES / per_page), get).await
    }

    pub(crate) fn client(&self) -> &RestClient {
        &self.client
    }

    async fn token(
        &self,
        repo: &str,
        permissions: Permissions,
    ) -> Result<InstallationToken, GithubError> {
        let key = (repo.to_owned(), permissions);
        let slot = Arc::clone(self.tokens.lock().entry(key).or_default());
        let mut slot = slot.lock().await;
        if let Some(token) =
            slot.as_ref().filter(|t| t.expires_at - TOKEN_MARGIN > self.client.now())
        {
            return Ok(token.clone());
        }
        *slot = None;
        let token = self.new_token(repo, permissions).await?;
        *slot = Some(token.clone());
        Ok(token)
    }

    async fn new_token(
        &self,
        repo: &str,
        permissions: Permissions,
    ) -> Result<InstallationToken, GithubError> {
        let known = self.installations.lock().get(repo).copied();
        if let Some(known) = known {
            match self.request_token(known, repo, permissions).await {
                // Uninstalled or moved to another account, perhaps installed again under another
                // number.
                Err(GithubError::NotFound(_) | GithubError::NotInstalled(_)) => {
                    self.installations.lock().remove(repo);
                }
                other => return other,
            }
        }
        let (installation, renamed) = match self.installation(repo).await {
            Err(GithubError::Moved { call, to }) => {
                let Some((path, number)) =
                    path_by_number(&to).and_then(|it| Some((it, number_in(it)?)))
                else {
                    return Err(GithubError::Moved { call, to });
                };
                let found = self.call_as_app::<Installation>(RestRequest::get(path.to_owned()));
                (found.await?, Some(number))
            }
            found => (found?, None),
        };
        if installation.suspended_at.is_some() {
            return Err(GithubError::Suspended(repo.to_owned()));
        }
        let found = RepositoryInstallation { id: installation.id, renamed };
        self.installations.lock().insert(repo.to_owned(), found);
        self.request_token(found, repo, permissions).await
    }

    async fn request_token(
        &self,
        RepositoryInstallation { id: installation, renamed }: RepositoryInstallation,
        repo: &str,
        permissions: Permissions,
    ) -> Result<InstallationToken, GithubError> {
        #[derive(Deserialize)]
        struct Answer {
            token: String,
            expires_at: Timestamp,
            #[serde(default, deserialize_with = "null_as_default")]
            repositories: Vec<Repository>,
        }
        #[derive(Deserialize)]
        struct Repository {
            id: u64,
            #[serde(default, deserialize_with = "null_as_default")]
            default_branch: String,
        }
        let name = repo.split_once('/').map_or(repo, |(_, name)| name);
        let asked: HashMap<_, _> = permissions.iter().copied().collect();
        let request = RestRequest::new(
            Method::POST,
            format!("/app/installations/{installation}/access_tokens"),
        )
        .with_json(&match renamed {
            Some(number) => json!({ "repository_ids": [number], "permissions": asked }),
            None => json!({ "repositories": [name], "permissions": asked }),
        });
        let call = request.name();
        let answer: Answer = self.call_as_app(request).await.map_err(|error| match error {
            GithubError::Forbidden(text) if text.contains("suspended") => {
                GithubError::Suspended(repo.to_owned())
            }
            GithubError::Unprocessable(text) if text.contains("permissions") => {
                let asked = permissions.iter().map(|(name, level)| format!("{name}: {level}"));
                let permission = asked.collect::<Vec<_>>().join(", ");
                GithubError::MissingPermission { repo: repo.to_owned(), permission }
            }
            // The installation exists and doesn't hold this repository.
            GithubError::Unprocessable(_) => GithubError::NotInstalled(repo.to_owned()),
            other => other,
        })?;
        let [repository] = &answer.repositories[..] else {
            let count = answer.repositories.len();
            let what = format!("a token for one repository names {count} repositories");
            return Err(GithubError::Malformed { call, source: HttpError::Malformed(what) });
        };
        let repository = AppRepository {
            installation_id: installation,
            repository_id: repository.id,
            default_branch: repository.default_branch.clone(),
        };
        Ok(InstallationToken {
            secret: answer.token.into(),
            expires_at: answer.expires_at,
            repository,
        })
    }

    /// A call with the App's own JWT.
    pub(crate) async fn send_as_app(
        &self,
        request: &RestRequest,
    ) -> Result<RestResponse, GithubError> {
        let mut untried_keys = self.keys.lock().all.len();
        loop {
            let jwt = self.jwt()?;
            untried_keys = untried_keys.saturating_sub(1);
            match self.client.send(request, &jwt).await {
                Err(GithubError::Unauthorized(_)) if untried_keys > 0 => self.use_next_key(&jwt),
                other => return other,
            }
        }
    }

    /// [`GithubApp::send_as_app`], with the answer read as JSON.
    async fn call_as_app<T: DeserializeOwned>(
        &self,
        request: RestRequest,
    ) -> Result<T, GithubError> {
        let response = self.send_as_app(&request).await?;
        self.client.read_json(&request, response).await
    }

    fn jwt(&self) -> Result<SecretString, GithubError> {
        #[derive(Serialize)]
        struct Claims<'a> {
            iat: i64,
            exp: i64,
            iss: &'a str,
        }
        let now = self.client.now();
        let mut keys = self.keys.lock();
        // One that was signed by a clock that was ahead isn't valid yet when the clock has been set right.
        let is_recent = |at: Timestamp| at <= now && now < at + JWT_LIFE - JWT_BACKDATE;
        if let Some((jwt, _)) = keys.jwt.as_ref().filter(|(_, signed_at)| is_recent(*signed_at)) {
            return Ok(jwt.clone());
        }
        let exp = now + JWT_LIFE;
        let claims =
            Claims { iat: (now - JWT_BACKDATE).as_second(), exp: exp.as_second(), iss: &self.id };
        let key = &keys.all[keys.current];
        let jwt = jsonwebtoken::encode(&Header::new(Algorithm::RS256), &claims, key).map_err(
            |error| GithubError::Unauthorized(format!("the App's key can't sign: {error}")),
        )?;
        let jwt = SecretString::from(jwt);
        keys.jwt = Some((jwt.clone(), now));
        Ok(jwt)
    }

    /// Signs with the next key, unless another call has replaced the refused `jwt` already.
    fn use_next_key(&self, jwt: &SecretString) {
        let mut keys = self.keys.lock();
        let refused = keys
            .jwt
            .as_ref()
            .is_some_and(|(known, _)| known.expose_secret() == jwt.expose_secret());
        if refused {
            keys.current = (keys.current + 1) % keys.all.len();
            keys.jwt = None;
        }
    }
}

/// The number in [`path_by_number`].
fn number_in(path: &str) -> Option<u64> {
    path.split('/').nth(2)?.parse().ok()
}

/// One RSA key in PEM, or two.
fn read_keys(text: &SecretString) -> Result<SigningKeys, ClientSetupError> {
    const BEGIN: &str = "-----BEGIN ";
    let text = SecretString::from(text.expose_secret().replace("\\n", "\n"));
    let text = text.expose_secret();
    let starts: Vec<_> = text.match_indices(BEGIN).map(|(at, _)| at).collect();
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    if !(1..=2).contains(&starts.len()) {
        return Err(ClientSetupError::KeyCount(starts.len()));
    }
    let blocks = starts.iter().zip(ends).map(|(start, end)| &text[*start..end]);
    let all = blocks.map(read_key).collect::<Result<_, _>>()?;
    Ok(SigningKeys { all, current: 0, jwt: None })
}

/// One RSA key in PEM that signs. `from_rsa_pem` takes public keys, too, whose calls GitHub would refuse as if the App's id
/// were wrong.
fn read_key(block: &str) -> Result<EncodingKey, ClientSetupError> {
    if block.lines().next().is_some_and(|label| label.contains("PUBLIC KEY")) {
        return Err(ClientSetupError::PublicKey);
    }
    let key = EncodingKey::from_rsa_pem(block.as_bytes()).map_err(ClientSetupError::Key)?;
    jsonwebtoken::encode(&Header::new(Algorithm::RS256), &json!({}), &key)
        .map_err(ClientSetupError::CannotSign)?;
    Ok(key)
}
