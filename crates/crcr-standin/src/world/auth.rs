//! Who is calling: the App's JWT, installation tokens, and what each may do.

use std::collections::BTreeMap;

use aws_lc_rs::encoding::{AsDer as _, Pkcs8V1Der};
use aws_lc_rs::rsa::{KeyPair, KeySize};
use aws_lc_rs::signature::KeyPair as _;
use axum::http::HeaderMap;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use serde::Deserialize;
use serde_json::{Value, json};

use super::api::refusal;
use super::model::WorldRepo;
use super::{World, WorldState};
use crate::oidc::bearer;

/// GitHub gives an installation token an hour, and an App's JWT at most ten minutes.
const TOKEN_LIFE: SignedDuration = SignedDuration::from_hours(1);
const JWT_LIFE: i64 = 600;
pub(crate) const APP_ID: u64 = 424_242;
/// By which the App may also sign in, in place of its number.
pub const CLIENT_ID: &str = "Iv23liStandInStandIn";

/// What the owner of a GitHub App configures.
#[derive(Clone)]
pub struct AppIdentity {
    pub id: String,
    /// In PEM, as PKCS#8.
    pub private_key: String,
    pub webhook_secret: String,
    public_key: Vec<u8>,
}

impl std::fmt::Debug for AppIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AppIdentity").field("id", &self.id).finish_non_exhaustive()
    }
}

impl AppIdentity {
    /// A new key and secret for the number of the world's App, so that tests can play an impostor.
    ///
    /// # Panics
    /// When the system has no randomness.
    pub fn generate() -> Self {
        let key = KeyPair::generate(KeySize::Rsa2048).expect("the system gives random bytes");
        let der: Pkcs8V1Der<'_> = key.as_der().expect("a new key can be written down");
        let text = STANDARD.encode(der.as_ref());
        let lines: Vec<_> = text.as_bytes().chunks(64).map(String::from_utf8_lossy).collect();
        let mut secret = [0; 24];
        aws_lc_rs::rand::fill(&mut secret).expect("the system gives random bytes");
        Self {
            id: APP_ID.to_string(),
            private_key: format!(
                "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n",
                lines.join("\n")
            ),
            webhook_secret: hex::encode(secret),
            public_key: key.public_key().as_ref().to_vec(),
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct IssuedToken {
    pub(crate) installation: u64,
    /// Numbers of the repositories that it is for.
    repositories: Vec<u64>,
    permissions: BTreeMap<String, String>,
    expires_at: Timestamp,
}

/// The body of `POST /app/installations/{id}/access_tokens`.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct TokenRequest {
    repositories: Option<Vec<String>>,
    repository_ids: Option<Vec<u64>>,
    permissions: Option<BTreeMap<String, String>>,
}

impl World {
    /// Fails with GitHub's 401 unless the caller has the App's JWT.
    pub(crate) fn check_app(&self, headers: &HeaderMap, now: Timestamp) -> Result<(), Response> {
        #[derive(Deserialize)]
        struct Claims {
            iss: Value,
            iat: i64,
            exp: i64,
        }
        let unauthorized = |text: &str| refusal(401, text);
        let token =
            bearer(headers).ok_or_else(|| unauthorized("A JSON web token could not be decoded"))?;
        let key = DecodingKey::from_rsa_der(&self.app().public_key);
        let mut rules = Validation::new(Algorithm::RS256);
        // The clock is the stand-in's, not the machine's.
        rules.validate_exp = false;
        rules.required_spec_claims.clear();
        let claims = jsonwebtoken::decode::<Claims>(token, &key, &rules)
            .map_err(|_| unauthorized("A JSON web token could not be decoded"))?
            .claims;
        let now = now.as_second();
        let issuer = claims.iss.as_str().map_or_else(|| claims.iss.to_string(), str::to_owned);
        if issuer != self.app().id && issuer != CLIENT_ID {
            return Err(unauthorized("Integration not found"));
        }
        if claims.exp > now + JWT_LIFE {
            return Err(unauthorized("'Expiration time' claim ('exp') is too far in the future"));
        }
        if claims.exp <= now {
            return Err(unauthorized(
                "'Expiration time' claim ('exp') must be a numeric value representing the \
                 future time at which the assertion expires",
            ));
        }
        if claims.iat > now {
            return Err(unauthorized(
                "'Issued at' claim ('iat') must be an Integer representing the time that the assertion was issued",
            ));
        }
        Ok(())
    }

    /// Fails as GitHub does if the caller has a token of an installation that has expired or can't read Actions. Other
    /// tokens aren't checked.
    pub(crate) fn check_actions_token(
        &self,
        headers: &HeaderMap,
        now: Timestamp,
    ) -> Result<(), Response> {
        let inner = self.lock();
        let Some(token) = secret_of(headers).and_then(|secret| inner.tokens.get(secret)) else {
            return Ok(());
        };
        if token.expires_at <= now {
            return Err(refusal(401, "Bad credentials"));
        }
        if !allows(token.permissions.get("actions").map(String::as_str), "read") {
            return Err(refusal(403, "Resource not accessible by integration"));
        }
        Ok(())
    }
}

impl WorldState {
    /// A new token of installation `id`, with no more permissions than it has.
    pub(crate) fn issue(
        &mut self,
        id: u64,
        wanted: TokenRequest,
        now: Timestamp,
        origin: &str,
    ) -> Result<Value, Response> {
        let installation = self.installations.get(&id).ok_or_else(|| refusal(404, "Not Found"))?;
        if installation.suspended_at.is_some() {
            return Err(refusal(403, "This installation has been suspended"));
        }
        let mut permissions =
            wanted.permissions.unwrap_or_else(|| installation.permissions.clone());
        let granted = |(name, level): (&String, &String)| {
            allows(installation.permissions.get(name).map(String::as_str), level)
        };
        if !permissions.iter().all(granted) {
            return Err(refusal(
                422,
                "The permissions requested are not granted to this installation.",
            ));
        }
        // Every token may read metadata.
        permissions.insert("metadata".to_owned(), "read".to_owned());
        let reach: Vec<&WorldRepo> =
            self.repos.values().filter(|repo| repo.installation == Some(id)).collect();
        let named = |repo: &&WorldRepo| match (&wanted.repositories, &wanted.repository_ids) {
            (None, None) => true,
            (Some(names), _) => names.iter().any(|name| name.eq_ignore_ascii_case(repo.name())),
            (None, Some(ids)) => ids.contains(&repo.id),
        };
        let chosen: Vec<&WorldRepo> = reach.into_iter().filter(named).collect();
        let asked =
            wanted.repositories.as_ref().map(Vec::len).or(wanted.repository_ids.map(|i| i.len()));
        if asked.is_some_and(|asked| asked != chosen.len()) {
            return Err(refusal(
                422,
                "There is at least one repository that does not exist or is not accessible to \
                 the parent installation.",
            ));
        }
        let expires_at = now + TOKEN_LIFE;
        let expires_at =
            Timestamp::from_second(expires_at.as_second()).expect("an hour from now is a time");
        let mut answer = json!({
            "expires_at": expires_at, "permissions": permissions,
            "repository_selection": "selected",
        });
        if asked.is_some() {
            answer["repositories"] = chosen.iter().map(|repo| repo.json(origin)).collect();
        }
        let repositories = chosen.iter().map(|repo| repo.id).collect();
        let secret = new_secret();
        answer["token"] = json!(secret);
        self.tokens.insert(
            secret,
            IssuedToken { installation: id, repositories, permissions, expires_at },
        );
        Ok(answer)
    }

    /// The repository `name`, if the caller has `permission` at `level` there. As on GitHub, reading
    /// a public repository needs no token.
    pub(crate) fn permitted(
        &mut self,
        headers: &HeaderMap,
        name: &str,
        (permission, level): (&str, &str),
        now: Timestamp,
    ) -> Result<&mut WorldRepo, Response> {
        let reads = level == "read";
        let token = match secret_of(headers) {
            None if reads => None,
            Some(secret) if reads && self.readers.contains_key(secret) => None,
            None => return Err(refusal(401, "Requires authentication")),
            Some(secret) => {
                let token = self.tokens.get(secret).filter(|token| token.expires_at > now);
                Some(token.cloned().ok_or_else(|| refusal(401, "Bad credentials"))?)
            }
        };
        if let Some(token) = &token {
            let installation = self.installations.get(&token.installation);
            if installation.is_none_or(|installation| installation.suspended_at.is_some()) {
                return Err(refusal(403, "This installation has been suspended"));
            }
        }
        let repo = self.repo_mut(name).ok_or_else(|| refusal(404, "Not Found"))?;
        let Some(token) = token else { return Ok(repo) };
        if !token.repositories.contains(&repo.id) {
            return Err(refusal(404, "Not Found"));
        }
        if !allows(token.permissions.get(permission).map(String::as_str), level) {
            return Err(refusal(403, "Resource not accessible by integration"));
        }
        if repo.archived && !reads {
            return Err(refusal(403, "Repository was archived so is read-only."));
        }
        Ok(repo)
    }
}

/// In the form of 2026, which is a JWT behind the App's number:
/// <https://github.blog/changelog/2026-05-15-github-app-installation-tokens-per-request-override-header/>
fn new_secret() -> String {
    let part = |ids: usize| -> String {
        (0..ids).map(|_| uuid::Uuid::new_v4().simple().to_string()).collect()
    };
    format!("ghs_{APP_ID}_eyJ{}.eyJ{}.{}", part(1), part(6), part(8))
}

fn allows(granted: Option<&str>, wanted: &str) -> bool {
    let rank = |level: &str| match level {
        "read" => 1,
        "write" => 2,
        "admin" => 3,
        _ => 0,
    };
    granted.is_some_and(|granted| rank(granted) >= rank(wanted))
}

/// The token in `Authorization`, with any scheme.
pub(crate) fn secret_of(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get("authorization")?.to_str().ok()?;
    value.split_once(' ').map(|(_, token)| token.trim())
}
