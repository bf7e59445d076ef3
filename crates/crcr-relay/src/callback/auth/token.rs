//! Parses and verifies one JWT.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use jsonwebtoken::{Algorithm, DecodingKey};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::webhook::signature::digest;

/// GitHub's tokens have about 1,800 bytes.
const MAX_BYTES: usize = 16 * 1024;
/// The allowed difference between clocks, in seconds.
pub(crate) const LEEWAY: f64 = 60.0;

/// A token that hasn't been verified.
pub(crate) struct Token<'a> {
    header: Header,
    claims: Map<String, Value>,
    message: &'a str,
    signature: &'a str,
}

#[derive(Deserialize)]
struct Header {
    alg: Option<String>,
    kid: Option<String>,
    crit: Option<Value>,
}

/// The claims of a verified token.
pub(crate) struct VerifiedToken {
    claims: Map<String, Value>,
    /// Digest of the signed part, which identifies the token.
    digest: String,
    pub(crate) expires_at: Timestamp,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum TokenRefusal {
    #[error("the signature doesn't fit the key")]
    Signature,
    #[error("`{0}` is missing or of a wrong type")]
    Claim(&'static str),
    #[error("it is for another audience")]
    Audience,
    #[error("it is expired")]
    Expired,
    #[error("by this relay's clock it is not valid yet")]
    Early {
        /// For how long it isn't.
        wait: Duration,
    },
}

impl<'a> Token<'a> {
    /// Fails if the text isn't a JWT or is too long, and says why. That may quote the token's header or claims.
    pub(crate) fn split(text: &'a str) -> Result<Self, String> {
        if text.len() > MAX_BYTES {
            return Err(format!("the token has over {MAX_BYTES} bytes"));
        }
        let parts: Vec<_> = text.split('.').collect();
        let [header, claims, signature] = parts[..] else {
            return Err(format!("parts of the token: {}, expected 3", parts.len()));
        };
        let message = &text[..header.len() + 1 + claims.len()];
        let (header, claims) = (decoded("header", header)?, decoded("claims", claims)?);
        Ok(Self { header, claims, message, signature })
    }

    /// The claim `iss`. It may only be used to choose the keys that verify the token.
    pub(crate) fn unverified_issuer(&self) -> Option<String> {
        self.claims.get("iss")?.as_str().map(str::to_owned)
    }

    /// The key's id, if the signature is RS256 and the header has no `crit` extensions.
    pub(crate) fn rs256_key_id(&self) -> Option<String> {
        let plain = self.header.alg.as_deref() == Some("RS256") && self.header.crit.is_none();
        self.header.kid.clone().filter(|kid| plain && !kid.is_empty())
    }

    /// Checks signature, issuer, audience and times, and returns the claims.
    pub(crate) fn verify(
        self,
        key: &DecodingKey,
        issuer: &str,
        audience: &str,
        now: Timestamp,
    ) -> Result<VerifiedToken, TokenRefusal> {
        let message = self.message.as_bytes();
        let good = jsonwebtoken::crypto::verify(self.signature, message, key, Algorithm::RS256);
        if !good.unwrap_or(false) {
            return Err(TokenRefusal::Signature);
        }
        if self.claims.get("iss").and_then(Value::as_str) != Some(issuer) {
            return Err(TokenRefusal::Claim("iss"));
        }
        let expires_at = self.check_claims(audience, now)?;
        let digest = digest(message);
        Ok(VerifiedToken { claims: self.claims, digest, expires_at })
    }

    /// Checks audience and times, also of a token whose signature nobody has checked. Returns when it
    /// expires.
    pub(crate) fn check_claims(
        &self,
        audience: &str,
        now: Timestamp,
    ) -> Result<Timestamp, TokenRefusal> {
        let ours = match self.claims.get("aud") {
            Some(Value::String(one)) => one == audience,
            Some(Value::Array(many)) => many.iter().any(|one| one == audience),
            _ => return Err(TokenRefusal::Claim("aud")),
        };
        if !ours {
            return Err(TokenRefusal::Audience);
        }
        let now = now.as_duration().as_secs_f64();
        let time = |name| match self.claims.get(name) {
            None => Ok(None),
            Some(value) => value.as_f64().map(Some).ok_or(TokenRefusal::Claim(name)),
        };
        let expires = time("exp")?.ok_or(TokenRefusal::Claim("exp"))?;
        let issued = time("iat")?.ok_or(TokenRefusal::Claim("iat"))?;
        if now >= expires + LEEWAY {
            return Err(TokenRefusal::Expired);
        }
        // GitHub's tokens are valid from ten minutes before they are issued, for clocks that are behind. When it was
        // issued only counts for an issuer that doesn't say from when a token is valid.
        let early = time("nbf")?.unwrap_or(issued) - (now + LEEWAY);
        if early > 0.0 {
            let wait = Duration::try_from_secs_f64(early.ceil()).unwrap_or(Duration::MAX);
            return Err(TokenRefusal::Early { wait });
        }
        #[expect(clippy::cast_possible_truncation, reason = "a float becomes the nearest integer")]
        Timestamp::from_second(expires as i64).map_err(|_| TokenRefusal::Claim("exp"))
    }
}

fn decoded<T: DeserializeOwned>(name: &str, part: &str) -> Result<T, String> {
    let json = URL_SAFE_NO_PAD.decode(part);
    let json = json.map_err(|error| format!("the token's {name}: {error}"))?;
    serde_json::from_slice(&json).map_err(|error| format!("the token's {name}: {error}"))
}

impl VerifiedToken {
    pub(crate) fn id(&self) -> String {
        self.text("jti").unwrap_or_else(|| self.digest.clone())
    }

    /// A claim as text; numbers and booleans are converted.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        match self.claims.get(name)? {
            Value::String(text) if !text.is_empty() => Some(text.clone()),
            value @ (Value::Number(_) | Value::Bool(_)) => Some(value.to_string()),
            _ => None,
        }
    }

    /// A claim as a number; GitHub sends numbers as text.
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }
}
