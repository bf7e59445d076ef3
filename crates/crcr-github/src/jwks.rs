//! The public keys of a token issuer (JWKS). They are refreshed in the background and serve through
//! an outage. A token with an unknown key id causes at most one fetch a minute, so that strangers
//! can't make the relay flood the issuer.

use std::collections::HashMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use jsonwebtoken::DecodingKey;
use parking_lot::Mutex;
use reqwest::Client;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::Semaphore;
use url::Url;

use crate::http::{self, HttpError, RetryPolicy};

/// How often keys are fetched in the background.
pub const REFRESH: Duration = Duration::from_secs(5 * 60);
/// How soon they are fetched again after a failure.
pub const REFRESH_AFTER_FAILURE: Duration = Duration::from_secs(30);
/// The least time between two fetches that unknown key ids cause.
const UNKNOWN_KEY_PAUSE: Duration = Duration::from_secs(60);
/// How long a fetch may take.
const FETCH: Duration = Duration::from_secs(5);
/// Further callers with an unknown key id come again later: each holds a connection, and webhooks need some, too.
const MAX_WAITING: usize = 128;
/// How long keys are used after the last successful fetch.
const MAX_AGE: Duration = Duration::from_secs(24 * 3600);

const MAX_BYTES: usize = 1024 * 1024;
const MAX_KEYS: usize = 64;
/// Keys of less than 2,048 bits are refused.
const MIN_MODULUS_BYTES: usize = 256;

pub struct IssuerKeys {
    url: Url,
    client: Client,
    known: Mutex<FetchedKeys>,
    /// Locked during a fetch, so that other callers wait for its result.
    fetching: tokio::sync::Mutex<()>,
    /// The places of those callers.
    waiting: Semaphore,
}

/// The keys as their issuer publishes them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyDocument {
    pub url: String,
    /// JSON, at most 1 MiB.
    pub text: String,
    pub fetched_at: Timestamp,
}

#[derive(Default)]
struct FetchedKeys {
    keys: HashMap<String, DecodingKey>,
    document: Option<KeyDocument>,
    /// When an unknown key id last caused a fetch.
    unknown_key_fetch: Option<Timestamp>,
    /// Why the last fetch failed, whatever caused it.
    problem: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IssuerKeyError {
    /// The keys were fetched less than a minute ago, or just now, and it isn't among them.
    #[error("the issuer has no such key")]
    Unknown,
    /// The last fetch failed, or many callers wait for one, so it may be a new key.
    #[error("the issuer's keys can't be fetched now, try again in {} s", .retry_after.as_secs())]
    Unavailable { retry_after: Duration },
}

#[derive(Deserialize)]
struct KeySet {
    keys: Vec<Value>,
}

#[derive(Deserialize)]
struct JsonWebKey {
    kty: String,
    kid: String,
    n: String,
    e: String,
    #[serde(rename = "use")]
    use_: Option<String>,
    alg: Option<String>,
}

impl IssuerKeys {
    /// The keys at `url`; nothing is fetched yet.
    pub fn new(client: Client, url: Url) -> Self {
        let (known, fetching) = (Mutex::default(), tokio::sync::Mutex::default());
        Self { url, client, known, fetching, waiting: Semaphore::new(MAX_WAITING) }
    }

    /// The key with the id `kid`. An unknown id causes a fetch, at most one a minute.
    pub async fn key(&self, kid: &str, now: Timestamp) -> Result<DecodingKey, IssuerKeyError> {
        if let Some(key) = self.known_key(kid, now) {
            return Ok(key);
        }
        let Ok(_place) = self.waiting.try_acquire() else {
            return Err(IssuerKeyError::Unavailable { retry_after: FETCH });
        };
        let _fetching = self.fetching.lock().await;
        if let Some(key) = self.known_key(kid, now) {
            return Ok(key);
        }
        // Not in the condition: the lock would be held while the answer is chosen.
        let pause_left = self.known.lock().pause_left(now);
        if let Some(left) = pause_left {
            return Err(self.why_unknown(left, now));
        }
        self.known.lock().unknown_key_fetch = Some(now);
        // What went wrong is logged once, by `fetch`.
        let _ = self.fetch(now).await;
        self.known_key(kid, now).ok_or_else(|| self.why_unknown(UNKNOWN_KEY_PAUSE, now))
    }

    fn why_unknown(&self, retry_after: Duration, now: Timestamp) -> IssuerKeyError {
        if self.is_failing() || !self.is_ready(now) {
            IssuerKeyError::Unavailable { retry_after }
        } else {
            IssuerKeyError::Unknown
        }
    }

    pub fn is_failing(&self) -> bool {
        self.known.lock().problem.is_some()
    }

    /// Why the last fetch failed.
    pub fn problem(&self) -> Option<String> {
        self.known.lock().problem.clone()
    }

    /// Fetches the keys. When that fails, the old ones stay.
    pub async fn refresh(&self, now: Timestamp) -> Result<(), HttpError> {
        let _fetching = self.fetching.lock().await;
        self.fetch(now).await
    }

    /// Whether the last successful fetch was within the last 24 hours.
    pub fn is_ready(&self, now: Timestamp) -> bool {
        self.known.lock().is_fresh(now)
    }

    async fn fetch(&self, now: Timestamp) -> Result<(), HttpError> {
        let fetched = self.fetch_once(now).await;
        let problem = fetched.as_ref().err().map(ToString::to_string);
        let before = std::mem::replace(&mut self.known.lock().problem, problem);
        // An outage is tried every half minute, and logged at its start and its end.
        match (&fetched, before) {
            (Err(error), None) => {
                tracing::warn!(url = %self.url, %error, "the issuer's keys can't be fetched");
            }
            (Err(error), Some(_)) => {
                tracing::debug!(url = %self.url, %error, "the issuer's keys still can't be fetched");
            }
            (Ok(()), Some(_)) => {
                tracing::info!(url = %self.url, "the issuer's keys can be fetched again");
            }
            (Ok(()), None) => {}
        }
        fetched
    }

    async fn fetch_once(&self, now: Timestamp) -> Result<(), HttpError> {
        let retry = RetryPolicy { tries: 2, total: FETCH, ..RetryPolicy::default() };
        let get = || self.client.get(self.url.clone()).timeout(FETCH);
        let body = http::read(http::send(retry, get).await?, MAX_BYTES).await?;
        self.accept(&body, now)
    }

    /// Uses the keys of a JWKS document, for a day from the time at which it was fetched.
    pub fn accept(&self, document: &[u8], fetched_at: Timestamp) -> Result<(), HttpError> {
        let keys = parse(document)?;
        let text = String::from_utf8_lossy(document).into_owned();
        let mut known = self.known.lock();
        known.keys = keys;
        known.document = Some(KeyDocument { url: self.url.to_string(), text, fetched_at });
        Ok(())
    }

    /// Uses keys that were fetched from the same URL before. A clock that was ahead makes them no younger than `now`.
    pub fn restore(&self, document: &KeyDocument, now: Timestamp) {
        if document.url == self.url.as_str()
            && let Err(error) = self.accept(document.text.as_bytes(), document.fetched_at.min(now))
        {
            tracing::warn!(url = %self.url, %error, "the keys of the last start can't be used");
        }
    }

    /// The newest document whose keys are used.
    pub fn document(&self) -> Option<KeyDocument> {
        self.known.lock().document.clone()
    }

    fn known_key(&self, kid: &str, now: Timestamp) -> Option<DecodingKey> {
        let known = self.known.lock();
        known.keys.get(kid).filter(|_| known.is_fresh(now)).cloned()
    }
}

impl FetchedKeys {
    /// How long no unknown key id may cause a fetch.
    fn pause_left(&self, now: Timestamp) -> Option<Duration> {
        let passed = now.duration_since(self.unknown_key_fetch?);
        let left = UNKNOWN_KEY_PAUSE.saturating_sub(passed.unsigned_abs());
        (!left.is_zero()).then(|| left.max(Duration::from_secs(1)))
    }

    fn is_fresh(&self, now: Timestamp) -> bool {
        self.document.as_ref().is_some_and(|document| {
            let age = now.duration_since(document.fetched_at);
            age.is_negative() || age.unsigned_abs() <= MAX_AGE
        })
    }
}

/// The keys for RS256 signatures, by id. Other keys are skipped; a set without any is an error.
fn parse(body: &[u8]) -> Result<HashMap<String, DecodingKey>, HttpError> {
    let malformed = |what: String| HttpError::Malformed(what);
    let document: KeySet = serde_json::from_slice(body).map_err(|e| malformed(e.to_string()))?;
    let usable = |value: &Value| -> Option<(String, DecodingKey)> {
        let key = JsonWebKey::deserialize(value).ok()?;
        let fits = key.kty == "RSA"
            && key.use_.is_none_or(|use_| use_ == "sig")
            && key.alg.is_none_or(|alg| alg == "RS256")
            && URL_SAFE_NO_PAD.decode(&key.n).is_ok_and(|n| n.len() >= MIN_MODULUS_BYTES);
        let decoding = DecodingKey::from_rsa_components(&key.n, &key.e).ok()?;
        fits.then_some((key.kid, decoding))
    };
    let keys: HashMap<_, _> = document.keys.iter().take(MAX_KEYS).filter_map(usable).collect();
    if keys.is_empty() {
        return Err(malformed("no RSA key for RS256 signatures in the key set".to_owned()));
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use wiremock::{Mock, MockServer, ResponseTemplate, matchers};

    use super::*;

    fn jwk(kid: &str) -> Value {
        let n = URL_SAFE_NO_PAD.encode([0xc5; 256]);
        serde_json::json!({"kty": "RSA", "kid": kid, "use": "sig", "alg": "RS256", "n": n, "e": "AQAB"})
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    async fn issuer(answers: Vec<(u64, ResponseTemplate)>) -> (MockServer, IssuerKeys) {
        let server = MockServer::start().await;
        for (n, (times, answer)) in (1..).zip(answers) {
            Mock::given(matchers::method("GET"))
                .respond_with(answer)
                .up_to_n_times(times)
                .with_priority(n)
                .mount(&server)
                .await;
        }
        let url = server.uri().parse().unwrap();
        (server, IssuerKeys::new(http::client().unwrap(), url))
    }

    fn keys(kids: &[&str]) -> ResponseTemplate {
        let keys: Vec<_> = kids.iter().map(|kid| jwk(kid)).collect();
        ResponseTemplate::new(200).set_body_json(serde_json::json!({ "keys": keys }))
    }

    async fn calls(server: &MockServer) -> usize {
        server.received_requests().await.unwrap().len()
    }

    fn unavailable<T>(result: Result<T, IssuerKeyError>) -> u64 {
        match result.err() {
            Some(IssuerKeyError::Unavailable { retry_after }) => retry_after.as_secs(),
            other => panic!("not unavailable: {other:?}"),
        }
    }

    #[tokio::test]
    async fn flood_of_unknown_key_ids_causes_one_fetch_a_minute_and_known_keys_still_work() {
        let (server, jwks) = issuer(vec![(1, keys(&["old"])), (100, keys(&["old", "new"]))]).await;
        assert!(jwks.key("old", at(0)).await.is_ok());
        for n in 0..50 {
            let key = jwks.key(&format!("random-{n}"), at(10)).await;
            assert_eq!(key.err(), Some(IssuerKeyError::Unknown), "the keys are known: no outage");
        }
        // The issuer has rotated; the flood has spent this minute's fetch.
        assert_eq!(jwks.key("new", at(20)).await.err(), Some(IssuerKeyError::Unknown));
        assert!(jwks.key("old", at(20)).await.is_ok(), "known keys go on");
        assert_eq!(calls(&server).await, 1);
        assert!(jwks.key("new", at(60)).await.is_ok());
        assert_eq!(calls(&server).await, 2);
    }

    #[tokio::test]
    async fn key_missing_after_a_fetch_is_unknown() {
        let (_server, jwks) = issuer(vec![(9, keys(&["a"]))]).await;
        assert_eq!(jwks.key("b", at(0)).await.err(), Some(IssuerKeyError::Unknown));
    }

    #[tokio::test]
    async fn concurrent_callers_share_one_fetch() {
        let slow = keys(&["a"]).set_delay(Duration::from_millis(100));
        let (server, jwks) = issuer(vec![(9, slow)]).await;
        let results = futures_util::future::join_all((0..20).map(|_| jwks.key("a", at(0)))).await;
        assert!(results.iter().all(Result::is_ok));
        assert_eq!(calls(&server).await, 1);
    }

    #[tokio::test]
    async fn caller_has_to_come_again_while_many_wait_for_a_fetch() {
        let (_server, jwks) = issuer(vec![(9, keys(&["a"]))]).await;
        let others = jwks.waiting.try_acquire_many(MAX_WAITING as u32).unwrap();
        assert_eq!(unavailable(jwks.key("a", at(0)).await), 5);
        drop(others);
        assert!(jwks.key("a", at(0)).await.is_ok());
    }

    #[tokio::test]
    async fn keys_are_used_for_one_day_after_the_issuer_goes_down() {
        let (_server, jwks) =
            issuer(vec![(1, keys(&["a"])), (99, ResponseTemplate::new(500))]).await;
        assert!(!jwks.is_ready(at(0)));
        jwks.refresh(at(0)).await.unwrap();
        assert!(jwks.refresh(at(300)).await.is_err());
        let day = 24 * 3600;
        assert!(jwks.is_ready(at(day)) && jwks.key("a", at(day)).await.is_ok());
        assert!(!jwks.is_ready(at(day + 1)));
        assert_eq!(unavailable(jwks.key("a", at(day + 1)).await), 60);
    }

    #[tokio::test]
    async fn failing_issuer_is_asked_once_a_minute() {
        let (server, jwks) = issuer(vec![(99, ResponseTemplate::new(404))]).await;
        assert_eq!(unavailable(jwks.key("a", at(0)).await), 60);
        for _ in 0..20 {
            assert_eq!(unavailable(jwks.key("a", at(1)).await), 59);
        }
        assert_eq!(calls(&server).await, 1);
    }

    #[tokio::test]
    async fn clock_that_was_ahead_keeps_no_new_key_out_once_it_is_right() {
        let answers = vec![(1, keys(&["old"])), (9, keys(&["old", "new"]))];
        let (_server, jwks) = issuer(answers).await;
        let day = 24 * 3600;
        assert!(jwks.key("old", at(day)).await.is_ok());
        assert!(jwks.key("new", at(0)).await.is_ok());
    }

    #[tokio::test]
    async fn empty_key_set_keeps_the_old_keys() {
        let empty = ResponseTemplate::new(200).set_body_json(serde_json::json!({"keys": []}));
        let (_server, jwks) = issuer(vec![(1, keys(&["a"])), (9, empty)]).await;
        jwks.refresh(at(0)).await.unwrap();
        assert!(jwks.refresh(at(1)).await.is_err());
        assert!(jwks.key("a", at(2)).await.is_ok());
    }

    #[test]
    fn weak_or_non_signature_keys_are_skipped() {
        let with = |name: &str, value: Value| {
            let mut key = jwk(name);
            key[name] = value;
            key
        };
        let odd = [
            with("kty", "EC".into()),
            with("use", "enc".into()),
            with("alg", "HS256".into()),
            with("n", URL_SAFE_NO_PAD.encode([0xc5; 128]).into()),
            Value::Null,
        ];
        for key in odd {
            let text = serde_json::json!({"keys": [key, jwk("good")]}).to_string();
            let parsed = parse(text.as_bytes()).unwrap();
            assert_eq!(parsed.keys().collect::<Vec<_>>(), ["good"]);
        }
        assert!(parse(b"[]").is_err() && parse(b"{\"keys\": 7}").is_err());
    }
}
