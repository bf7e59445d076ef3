//! The signature of webhooks: HMAC-SHA256 over the raw bytes.
//!
//! <https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries>

use aws_lc_rs::{digest, hmac};
use secrecy::{ExposeSecret as _, SecretString};

/// The value of `X-Hub-Signature-256`.
pub fn sign(secret: &SecretString, body: &[u8]) -> String {
    format!("sha256={}", hex::encode(hmac::sign(&key(secret), body)))
}

/// Whether `given` is the signature of `body`, compared in constant time.
pub fn is_valid(secret: &SecretString, body: &[u8], given: &[u8]) -> bool {
    given
        .strip_prefix(b"sha256=")
        .filter(|digits| !digits.iter().any(u8::is_ascii_uppercase))
        .and_then(|digits| hex::decode(digits).ok())
        .is_some_and(|tag| hmac::verify(&key(secret), body, &tag).is_ok())
}

/// The SHA-256, in hexadecimal.
pub fn digest(bytes: &[u8]) -> String {
    hex::encode(digest::digest(&digest::SHA256, bytes))
}

fn key(secret: &SecretString) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, secret.expose_secret().as_bytes())
}
