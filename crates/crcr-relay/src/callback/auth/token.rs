//! One JWT: taken apart, verified, and only then believed.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use jsonwebtoken::{Algorithm, DecodingKey};
use serde::Deserialize;
use serde_json::{Map, Value};

/// The longest token that is looked at, in bytes. GitHub's have about 1,800.
const MAX_BYTES: usize = 16 * 1024;
/// How far clocks may be apart, in seconds.
pub(super) const LEEWAY: f64 = 60.0;

/// A token that nobody has verified.
pub(super) struct Token<'a> {
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

/// The claims of a token that has been verified.
pub(super) struct Verified {
    claims: Map<String, Value>,
    pub(super) expires_at: Timestamp,
}

/// Why a token is not believed. For the log: callers are told only that it is invalid.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum Refused {
    #[error("the signature doesn't fit the key")]
    Signature,
    #[error("`{0}` is missing or of a wrong type")]
    Claim(&'static str),
    #[error("it is for another audience")]
    Audience,
    #[error("it is expired")]
    Expired,
    #[error("it is not valid yet")]
    Early,
}

impl<'a> Token<'a> {
    /// The parts of a token. `None` when it is not one, or too long.
    pub(super) fn split(text: &'a str) -> Option<Self> {
        if text.len() > MAX_BYTES {
            return None;
        }
        let (message, signature) = text.rsplit_once('.')?;
        let (header, claims) = message.split_once('.')?;
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).ok();
        Some(Self {
            header: serde_json::from_slice(&decode(header)?).ok()?,
            claims: serde_json::from_slice(&decode(claims)?).ok()?,
            message,
            signature,
        })
    }

    /// The claim `iss`, to choose whose keys verify the token; nothing else may depend on it.
    pub(super) fn unverified_issuer(&self) -> Option<String> {
        self.claims.get("iss")?.as_str().map(str::to_owned)
    }

    /// The key's id, if the signature is RS256 and the header asks for nothing that is not known
    /// here.
    pub(super) fn rs256_key_id(&self) -> Option<String> {
        let plain = self.header.alg.as_deref() == Some("RS256") && self.header.crit.is_none();
        self.header.kid.clone().filter(|kid| plain && !kid.is_empty())
    }

    /// The claims, once the signature, issuer, audience and times are good.
    pub(super) fn verify(
        self,
        key: &DecodingKey,
        issuer: &str,
        audience: &str,
        now: Timestamp,
    ) -> Result<Verified, Refused> {
        let message = self.message.as_bytes();
        let good = jsonwebtoken::crypto::verify(self.signature, message, key, Algorithm::RS256);
        if !good.unwrap_or(false) {
            return Err(Refused::Signature);
        }
        if self.claims.get("iss").and_then(Value::as_str) != Some(issuer) {
            return Err(Refused::Claim("iss"));
        }
        let ours = match self.claims.get("aud") {
            Some(Value::String(one)) => one == audience,
            Some(Value::Array(many)) => many.iter().any(|one| one == audience),
            _ => return Err(Refused::Claim("aud")),
        };
        if !ours {
            return Err(Refused::Audience);
        }
        let now = now.as_duration().as_secs_f64();
        let time = |name| match self.claims.get(name) {
            None => Ok(None),
            Some(value) => value.as_f64().map(Some).ok_or(Refused::Claim(name)),
        };
        let expires = time("exp")?.ok_or(Refused::Claim("exp"))?;
        let issued = time("iat")?.ok_or(Refused::Claim("iat"))?;
        if now >= expires + LEEWAY {
            return Err(Refused::Expired);
        }
        if issued > now + LEEWAY || time("nbf")?.is_some_and(|start| start > now + LEEWAY) {
            return Err(Refused::Early);
        }
        #[expect(clippy::cast_possible_truncation, reason = "a float becomes the nearest integer")]
        let expires_at =
            Timestamp::from_second(expires as i64).map_err(|_| Refused::Claim("exp"))?;
        Ok(Verified { claims: self.claims, expires_at })
    }
}

impl Verified {
    /// A claim as text; numbers and booleans are written out.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        match self.claims.get(name)? {
            Value::String(text) if !text.is_empty() => Some(text.clone()),
            value @ (Value::Number(_) | Value::Bool(_)) => Some(value.to_string()),
            _ => None,
        }
    }

    /// A claim as a number; GitHub writes its numbers as text.
    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }
}
