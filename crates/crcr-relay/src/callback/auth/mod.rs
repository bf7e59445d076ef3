//! Verifies OIDC tokens: a valid token proves a [`CallerIdentity`].
//!
//! Only `iss` is read before the signature is checked, and only to choose whose keys check it.

mod buildkite;
mod github;
mod token;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crcr_domain::Allowlist;
use crcr_domain::protocol::identity::CallerIdentity;
use crcr_github::jwks::{IssuerKeyError, IssuerKeys, KeyDocument};
use http::StatusCode;
use jiff::Timestamp;
use parking_lot::RwLock;
use reqwest::Client;
use serde::Serialize;
use url::Url;

pub use buildkite::{ProviderMap, ProviderMapError};
use token::{Token, TokenRefusal};

use crate::limits;

/// The audience of tokens for a relay, unless configured otherwise.
pub const AUDIENCE: &str = "pytorch-cross-repo-ci-relay";

/// Which claims an issuer's tokens have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IssuerKind {
    /// `repository`, `run_id` and so on, as GitHub Actions has them.
    GitHub,
    /// `organization_id`, `pipeline_id` and so on, as Buildkite has them.
    Buildkite,
}

/// An issuer whose tokens are accepted.
#[derive(Debug, Clone)]
pub struct Issuer {
    /// The claim `iss`, compared character by character.
    pub name: String,
    pub jwks_url: Url,
    pub kind: IssuerKind,
}

impl Issuer {
    /// The issuer called `name`, whose keys are at `jwks_url` or else at `<name>/.well-known/jwks`.
    ///
    /// Tokens of `https://agent.buildkite.com` have Buildkite's claims, all others GitHub's. `None` if the
    /// name isn't a URL.
    pub fn new(name: &str, jwks_url: Option<Url>) -> Option<Self> {
        let usual = || Url::parse(&format!("{}/.well-known/jwks", name.trim_end_matches('/'))).ok();
        let kind = match Url::parse(name).ok()?.host_str() {
            Some("agent.buildkite.com") => IssuerKind::Buildkite,
            _ => IssuerKind::GitHub,
        };
        Some(Self { name: name.to_owned(), jwks_url: jwks_url.or_else(usual)?, kind })
    }

    /// The issuers that the settings name. By default, those of Buildkite and of the GitHub whose API is at
    /// `api_url`.
    pub(crate) fn from_settings(named: &[(String, Option<Url>)], api_url: &Url) -> Vec<Self> {
        if !named.is_empty() {
            return named.iter().filter_map(|(name, keys)| Self::new(name, keys.clone())).collect();
        }
        let usual = [Self::of_github(api_url), "https://agent.buildkite.com".to_owned()];
        usual.iter().filter_map(|name| Self::new(name, None)).collect()
    }

    /// The issuer of a GitHub by its API: github.com, a tenant of ghe.com, or an Enterprise Server.
    ///
    /// <https://docs.github.com/en/enterprise-server@latest/actions/reference/security/oidc>
    fn of_github(api_url: &Url) -> String {
        let host = api_url.host_str().unwrap_or_default();
        if host == "api.github.com" {
            return "https://token.actions.githubusercontent.com".to_owned();
        }
        match host.strip_prefix("api.").filter(|tenant| tenant.ends_with(".ghe.com")) {
            Some(tenant) => format!("https://token.actions.{tenant}"),
            None => format!("{}/_services/token", api_url.origin().ascii_serialization()),
        }
    }
}

/// The response to a caller without a valid token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthError {
    /// 401, 403 or 503.
    pub status: StatusCode,
    /// The text of `{"detail": …}`.
    pub detail: String,
    pub retry_after: Option<Duration>,
}

impl AuthError {
    fn unauthorized(detail: impl Into<String>) -> Self {
        Self { status: StatusCode::UNAUTHORIZED, detail: detail.into(), retry_after: None }
    }

    fn forbidden(detail: impl Into<String>) -> Self {
        Self { status: StatusCode::FORBIDDEN, detail: detail.into(), retry_after: None }
    }

    fn invalid() -> Self {
        Self::unauthorized("Invalid authorization token")
    }

    fn refused(why: &TokenRefusal) -> Self {
        match why {
            TokenRefusal::Signature => Self::invalid(),
            TokenRefusal::Early { wait } if *wait <= limits::EARLY_TOKEN => Self {
                status: StatusCode::SERVICE_UNAVAILABLE,
                detail: format!(
                    "the authorization token is good, but {why}: the clock may be behind, try again in {} s",
                    wait.as_secs()
                ),
                retry_after: Some(*wait),
            },
            why => Self::unauthorized(format!("Invalid authorization token: {why}")),
        }
    }
}

impl fmt::Display for AuthError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.status.as_u16(), self.detail)
    }
}

impl std::error::Error for AuthError {}

/// What is known of an issuer's keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct IssuerStatus {
    pub issuer: String,
    /// Whether a backend of the allowlist may report with its tokens.
    pub needed: bool,
    /// Whether its tokens can be verified.
    pub has_keys: bool,
    /// Why the last try to fetch its keys failed.
    pub problem: Option<String>,
}

impl IssuerStatus {
    /// Whether reports are refused because of it.
    pub fn is_missing(&self) -> bool {
        self.needed && !self.has_keys
    }
}

/// Verifies tokens of a set of issuers for one audience.
pub struct Verifier {
    issuers: BTreeMap<String, (IssuerKind, IssuerKeys)>,
    audience: String,
    /// `None` until the map has been read.
    providers: RwLock<Option<Arc<ProviderMap>>>,
}

impl Verifier {
    /// The keys of an issuer are fetched by its first token or by [`Verifier::refresh`]. Until
    /// [`Verifier::set_providers`] is called, Buildkite's pipelines get a 503.
    pub fn new(client: &Client, issuers: Vec<Issuer>, audience: &str) -> Self {
        let issuers = issuers
            .into_iter()
            .map(|i| (i.name, (i.kind, IssuerKeys::new(client.clone(), i.jwks_url))))
            .collect();
        Self { issuers, audience: audience.to_owned(), providers: RwLock::default() }
    }

    pub fn set_providers(&self, providers: ProviderMap) {
        *self.providers.write() = Some(Arc::new(providers));
    }

    /// The identity that the header `Authorization` proves at `now`.
    ///
    /// 401 and 403 are final. 503 means that the issuer's keys can't be fetched now and the token could be valid, or
    /// that it is going to be.
    pub async fn verify(
        &self,
        authorization: Option<&str>,
        now: Timestamp,
    ) -> Result<CallerIdentity, AuthError> {
        let token = bearer(authorization)
            .ok_or_else(|| AuthError::unauthorized("Missing authorization token"))?;
        let token = Token::split(token);
        let issuer = token.as_ref().ok().and_then(Token::unverified_issuer);
        let known = issuer.as_deref().and_then(|name| self.issuers.get_key_value(name));
        let (token, (issuer, (kind, jwks))) = match (token, known) {
            (Ok(token), Some(known)) => (token, known),
            (token, _) => {
                let name = match (issuer, token) {
                    (Some(name), _) => printable(&name),
                    (None, Err(why)) => format!("None ({})", printable(&why)),
                    (None, Ok(_)) => "None".to_owned(),
                };
                return Err(AuthError::unauthorized(format!("Unsupported OIDC issuer: {name}")));
            }
        };
        // Checked before any key is fetched: the algorithm is RS256, the token names a key, and it could be
        // valid now. What is wrong with its claims isn't a secret.
        let kid = token.rs256_key_id().ok_or_else(|| {
            let why = "it has to be signed with RS256 by a key that `kid` names, without `crit`";
            AuthError::unauthorized(format!("Invalid authorization token: {why}"))
        })?;
        match token.check_claims(&self.audience, now) {
            // Whether it is worth waiting for shows when its signature has been checked.
            Ok(_) => {}
            Err(TokenRefusal::Early { wait }) if wait <= limits::EARLY_TOKEN => {}
            Err(why) => return Err(AuthError::refused(&why)),
        }
        let key = jwks.key(&kid, now).await.map_err(|error| match error {
            IssuerKeyError::Unknown => AuthError::invalid(),
            IssuerKeyError::Unavailable { retry_after } => AuthError {
                status: StatusCode::SERVICE_UNAVAILABLE,
                detail: "the keys of the token's issuer can't be fetched now, try again".to_owned(),
                retry_after: Some(retry_after),
            },
        })?;
        let verified = token.verify(&key, issuer, &self.audience, now).map_err(|why| {
            tracing::debug!(%issuer, %why, "a token was refused");
            AuthError::refused(&why)
        })?;
        match kind {
            IssuerKind::GitHub => github::identity(issuer, &verified),
            IssuerKind::Buildkite => {
                let providers = self.providers.read();
                let providers = providers.clone().ok_or_else(|| AuthError {
                    status: StatusCode::SERVICE_UNAVAILABLE,
                    detail: "the map of pipelines to repositories isn't loaded yet, try again"
                        .to_owned(),
                    retry_after: Some(limits::PROVIDER_MAP_RETRY),
                })?;
                buildkite::identity(issuer, &verified, &providers)
            }
        }
    }

    /// Fetches the keys of all issuers; returns `false` if one of the requests failed.
    pub async fn refresh(&self, now: Timestamp) -> bool {
        let fetches = self.issuers.values().map(async |(_, jwks)| jwks.refresh(now).await.is_ok());
        futures_util::future::join_all(fetches).await.into_iter().all(|fetched| fetched)
    }

    /// Uses the keys of a JWKS document for tokens of `issuer`; returns `false` if it has no such issuer,
    /// or they aren't keys.
    pub fn accept_keys(&self, issuer: &str, document: &[u8], fetched_at: Timestamp) -> bool {
        let keys = self.issuers.get(issuer);
        keys.is_some_and(|(_, keys)| keys.accept(document, fetched_at).is_ok())
    }

    /// Uses the keys of an issuer that were stored before.
    pub(crate) fn restore_keys(&self, issuer: &str, document: &KeyDocument, now: Timestamp) {
        if let Some((_, keys)) = self.issuers.get(issuer) {
            keys.restore(document, now);
        }
    }

    /// The newest keys of each issuer that has some.
    pub(crate) fn key_documents(&self) -> BTreeMap<String, KeyDocument> {
        let issuers = self.issuers.iter();
        issuers.filter_map(|(name, (_, keys))| Some((name.clone(), keys.document()?))).collect()
    }

    /// What is known of every issuer, and whether a backend of this allowlist needs it. Without an allowlist
    /// all of GitHub's are needed.
    pub fn issuers(&self, policy: Option<&Allowlist>, now: Timestamp) -> Vec<IssuerStatus> {
        let providers = self.providers.read().clone();
        let status = |(name, (kind, jwks)): (&String, &(IssuerKind, IssuerKeys))| IssuerStatus {
            issuer: name.clone(),
            needed: match kind {
                // Every backend may have a workflow there.
                IssuerKind::GitHub => policy.is_none_or(|policy| !policy.is_empty()),
                IssuerKind::Buildkite => {
                    policy.zip(providers.as_ref()).is_some_and(|(policy, map)| {
                        map.repositories().any(|repo| policy.get(repo).is_some())
                    })
                }
            },
            // Keys serve for a day after the last fetch.
            has_keys: jwks.is_ready(now),
            problem: jwks.problem(),
        };
        self.issuers.iter().map(status).collect()
    }
}

/// The token of the header. `Bearer ` before it is optional and compares without case.
fn bearer(authorization: Option<&str>) -> Option<&str> {
    let text = authorization?.trim();
    let token = match text.get(..7) {
        Some(scheme) if scheme.eq_ignore_ascii_case("bearer ") => text[7..].trim_start(),
        _ if text.eq_ignore_ascii_case("bearer") => "",
        _ => text,
    };
    Some(token).filter(|token| !token.is_empty())
}

/// Makes untrusted text safe for a response: short, and on one line.
fn printable(text: &str) -> String {
    text.chars().take(200).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests;
