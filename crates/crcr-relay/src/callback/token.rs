//! The callback token proves that a run received a certain dispatch.
//!
//! `v1.<key id>.<HMAC>` over delivery, repository, head, pull request and dispatch time. It is sent in
//! a public payload, so it isn't a secret.

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use crcr_domain::RepoName;
use crcr_domain::protocol::dispatch::Dispatch;
use crcr_domain::protocol::dry_dispatch;
use jiff::Timestamp;
use parking_lot::RwLock;
use secrecy::{ExposeSecret as _, SecretString};

use crate::limits;

/// The first key signs; all keys verify.
pub struct CallbackKeys(RwLock<Vec<(String, hmac::Key)>>);

impl CallbackKeys {
    pub fn new(secrets: &[SecretString]) -> Self {
        Self(RwLock::new(keys(secrets)))
    }

    pub(crate) fn replace(&self, secrets: &[SecretString]) {
        *self.0.write() = keys(secrets);
    }

    /// The token of a dispatch; `None` without a key.
    pub(crate) fn sign(&self, dispatch: &Dispatch) -> Option<String> {
        self.sign_text(&message(dispatch))
    }

    /// Whether `token` belongs to this dispatch, is signed with one of the keys, and isn't too old.
    pub(crate) fn verify(&self, token: &str, dispatch: &Dispatch, now: Timestamp) -> bool {
        dispatch.enqueued_at + limits::RECORD_RETENTION >= now
            && self.verify_text(token, &message(dispatch))
    }

    /// The token of a dry dispatch; `None` without a key.
    pub(crate) fn sign_dry(&self, delivery: &str, repo: &RepoName) -> Option<String> {
        self.sign_text(&dry_message(delivery, repo))
    }

    /// Whether `token` belongs to this dry dispatch, is signed with one of the keys, and isn't too old.
    pub(crate) fn verify_dry(
        &self,
        token: &str,
        delivery: &str,
        repo: &RepoName,
        now: Timestamp,
    ) -> bool {
        dry_dispatch::is_current(delivery, now)
            && self.verify_text(token, &dry_message(delivery, repo))
    }

    fn sign_text(&self, text: &str) -> Option<String> {
        let keys = self.0.read();
        let (id, key) = keys.first()?;
        let tag = hmac::sign(key, text.as_bytes());
        Some(format!("v1.{id}.{}", URL_SAFE_NO_PAD.encode(tag)))
    }

    fn verify_text(&self, token: &str, text: &str) -> bool {
        let mut parts = token.split('.');
        let (Some("v1"), Some(id), Some(tag), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return false;
        };
        let Ok(tag) = URL_SAFE_NO_PAD.decode(tag) else { return false };
        let keys = self.0.read();
        keys.iter()
            .filter(|(known, _)| known == id)
            .any(|(_, key)| hmac::verify(key, text.as_bytes(), &tag).is_ok())
    }
}

fn keys(secrets: &[SecretString]) -> Vec<(String, hmac::Key)> {
    let keys = secrets.iter().map(|secret| {
        let bytes = secret.expose_secret().as_bytes();
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
        (hex::encode(&digest.as_ref()[..4]), hmac::Key::new(hmac::HMAC_SHA256, bytes))
    });
    keys.collect()
}

/// The signed text. It is JSON, so that different parts never make the same text.
fn message(dispatch: &Dispatch) -> String {
    serde_json::json!([
        "crcr-callback-v1",
        dispatch.delivery,
        dispatch.repo.key(),
        dispatch.head_sha,
        dispatch.pull_request,
        // When it was made; unlike `enqueued_at` this stays when the backend's own file holds it back.
        dispatch.order
    ])
    .to_string()
}

/// Never the text of a real dispatch.
fn dry_message(delivery: &str, repo: &RepoName) -> String {
    serde_json::json!(["crcr-dry-dispatch-v1", delivery, repo.key()]).to_string()
}

#[cfg(test)]
mod tests {
    use crcr_domain::Level;
    use crcr_domain::protocol::event::EventName;

    use super::*;

    fn dispatch() -> Dispatch {
        let repo = RepoName::new("acme/backend").unwrap();
        let delivery = ("d", "acme/upstream", EventName::PullRequest);
        let now = Timestamp::from_second(1_000_000).unwrap();
        Dispatch {
            pull_request: Some(7),
            order: 0,
            ..Dispatch::queued(delivery, &"a".repeat(40), (repo, Level::L4), now)
        }
    }

    #[test]
    fn token_is_valid_for_its_dispatch_only_and_for_35_days() {
        let keys = CallbackKeys::new(&["new".into(), "old".into()]);
        let token = keys.sign(&dispatch()).unwrap();
        let at = |days: i64| Timestamp::from_second(1_000_000 + days * 86_400).unwrap();
        assert!(keys.verify(&token, &dispatch(), at(35)));
        assert!(!keys.verify(&token, &dispatch(), at(36)));
        for other in [
            Dispatch { delivery: "e".to_owned(), ..dispatch() },
            Dispatch { repo: RepoName::new("acme/other").unwrap(), ..dispatch() },
            Dispatch { head_sha: "b".repeat(40), ..dispatch() },
            Dispatch { pull_request: Some(8), ..dispatch() },
            Dispatch { order: 1, ..dispatch() },
        ] {
            assert!(!keys.verify(&token, &other, at(1)));
        }
        let held = Dispatch { enqueued_at: at(1), held_until: Some(at(1)), ..dispatch() };
        assert!(keys.verify(&token, &held, at(1)), "it may be held back while it is being sent");
        for forged in ["", "v1", "v1.x.y", "v2.a.b", &token[..token.len() - 2]] {
            assert!(!keys.verify(forged, &dispatch(), at(1)), "{forged}");
        }
    }

    #[test]
    fn token_of_a_dry_dispatch_is_valid_for_it_only() {
        let keys = CallbackKeys::new(&["new".into()]);
        let repo = RepoName::new("acme/backend").unwrap();
        let now = Timestamp::from_second(1_000_000).unwrap();
        let delivery = dry_dispatch::delivery(now, 7);
        let token = keys.sign_dry(&delivery, &repo).unwrap();
        assert!(keys.verify_dry(&token, &delivery, &repo, now));
        let later = Timestamp::from_second(1_010_000).unwrap();
        assert!(!keys.verify_dry(&token, &delivery, &repo, later));
        let other = RepoName::new("acme/other").unwrap();
        assert!(!keys.verify_dry(&token, &delivery, &other, now));
        let real = Dispatch { delivery: delivery.clone(), enqueued_at: now, ..dispatch() };
        assert!(!keys.verify(&token, &real, now), "it proves no real dispatch");
        assert!(!keys.verify_dry(&keys.sign(&real).unwrap(), &delivery, &repo, now));
    }

    #[test]
    fn old_key_still_verifies_after_rotation() {
        let before = CallbackKeys::new(&["old".into()]);
        let after = CallbackKeys::new(&["new".into(), "old".into()]);
        let gone = CallbackKeys::new(&["new".into()]);
        let now = Timestamp::from_second(1_000_001).unwrap();
        let token = before.sign(&dispatch()).unwrap();
        assert!(after.verify(&token, &dispatch(), now) && !gone.verify(&token, &dispatch(), now));
    }
}
