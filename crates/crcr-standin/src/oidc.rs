//! The OIDC issuer, and all tokens that the stand-in signs.
//!
//! Claims and lifetimes follow
//! <https://docs.github.com/en/actions/concepts/security/openid-connect>. As on a real runner, the
//! request URL already has a query, to which clients append `&audience=`.

use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeyPair, KeySize};
use aws_lc_rs::signature::{KeyPair as _, RSA_PKCS1_SHA256};
use aws_lc_rs::{digest, hmac};
use axum::extract::{Path, Query, State as Shared};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::State;
use crate::runs::Job;
use crate::server::Peer;

/// Seconds from `iat` to `exp` of an OIDC token.
const TOKEN_SECONDS: i64 = 300;
/// Seconds from `nbf` to `iat`.
const SKEW_SECONDS: i64 = 600;
const RUNTIME_HOURS: i64 = 6;

/// Signs as GitHub's issuer does: with RS256, a key id, and rotating keys.
#[derive(Debug)]
pub struct Issuer {
    keys: Mutex<SigningKeys>,
    runtime: hmac::Key,
}

#[derive(Debug)]
struct SigningKeys {
    /// The keys in the JWKS, oldest first. The last one signs.
    published: Vec<Arc<SigningKey>>,
}

#[derive(Debug)]
struct SigningKey {
    id: String,
    pair: KeyPair,
}

/// Generating a key takes tens of milliseconds, so all issuers of a process share the first one.
static FIRST: LazyLock<Arc<SigningKey>> = LazyLock::new(|| Arc::new(SigningKey::generate()));

impl SigningKey {
    fn generate() -> Self {
        let pair = KeyPair::generate(KeySize::Rsa2048).expect("the generator of RSA keys works");
        let digest = digest::digest(&digest::SHA256, pair.public_key().as_ref());
        Self { id: hex::encode_upper(&digest.as_ref()[..20]), pair }
    }

    fn sign(&self, claims: &Value) -> String {
        let header = json!({ "typ": "JWT", "alg": "RS256", "x5t": self.id, "kid": self.id });
        let message = unsigned(&header, claims);
        let mut signature = vec![0; self.pair.public_modulus_len()];
        self.pair
            .sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message.as_bytes(), &mut signature)
            .expect("a fresh key signs");
        format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    fn jwk(&self) -> Value {
        // RSAPublicKey of 2,048 bits (RFC 8017, A.1.1): SEQUENCE and INTEGER take 4 bytes each, a
        // zero keeps the modulus positive, and the exponent is the last 3 bytes.
        let der = self.pair.public_key().as_ref();
        let (modulus, exponent) = (&der[9..265], &der[der.len() - 3..]);
        json!({
            "kty": "RSA", "alg": "RS256", "use": "sig", "kid": self.id, "x5t": self.id,
            "n": URL_SAFE_NO_PAD.encode(modulus), "e": URL_SAFE_NO_PAD.encode(exponent),
        })
    }
}

fn unsigned(header: &Value, claims: &Value) -> String {
    let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}", encode(header), encode(claims))
}

impl Default for Issuer {
    fn default() -> Self {
        // Generates the first key while the test sets up its world.
        std::thread::spawn(|| LazyLock::force(&FIRST));
        let mut secret = [0; 32];
        aws_lc_rs::rand::fill(&mut secret).expect("the system gives random bytes");
        Self {
            keys: Mutex::new(SigningKeys { published: Vec::new() }),
            runtime: hmac::Key::new(hmac::HMAC_SHA256, &secret),
        }
    }
}

impl Issuer {
    /// Signs any claims with the current key.
    pub fn sign(&self, claims: &Value) -> String {
        let key = self.keys().published.last().cloned();
        key.expect("there is always a key").sign(claims)
    }

    /// Signs with a key that isn't in the JWKS.
    pub fn sign_with_foreign_key(claims: &Value) -> String {
        SigningKey::generate().sign(claims)
    }

    /// Signs with a new key from now on. The old keys stay in the JWKS until [`Issuer::retire`].
    pub fn rotate(&self) {
        let key = Arc::new(SigningKey::generate());
        self.keys().published.push(key);
    }

    /// Removes all keys but the current one from the JWKS.
    pub fn retire(&self) {
        let mut keys = self.keys();
        let old = keys.published.len() - 1;
        keys.published.drain(..old);
    }

    /// The document of `/.well-known/jwks`.
    pub fn jwks(&self) -> Value {
        let keys: Vec<Value> = self.keys().published.iter().map(|key| key.jwk()).collect();
        json!({ "keys": keys })
    }

    /// `ACTIONS_RUNTIME_TOKEN` of `job`, with the run and the job in `scp`.
    pub fn runtime_token(&self, job: &Job, now: Timestamp) -> String {
        let results = format!("Actions.Results:{}:{}", job.run.backend_id(), job.backend_id);
        let issued = now.as_second();
        let cache = [json!({ "Scope": job.run.git_ref, "Permission": 3 })];
        let cache = if job.may_cache { &cache[..] } else { &[] };
        let claims = json!({
            "scp": format!("Actions.GenericRead:{0} {results} Actions.UploadArtifacts:{0}/1:Build/Build/{0}",
                job.run.backend_id()),
            "ac": json!(cache).to_string(),
            "orchid": format!("{}.{}.__default", job.run.backend_id(), job.name),
            "iss": "vstoken.actions.githubusercontent.com",
            "aud": "vstoken.actions.githubusercontent.com|vso:stand-in",
            "nbf": issued - 300, "exp": issued + RUNTIME_HOURS * 3600,
        });
        let message = unsigned(&json!({ "typ": "JWT", "alg": "HS256" }), &claims);
        let tag = hmac::sign(&self.runtime, message.as_bytes());
        format!("{message}.{}", URL_SAFE_NO_PAD.encode(tag))
    }

    /// The claims of a runtime token that this issuer signed and that is valid at `now`.
    pub(crate) fn verified_runtime_claims(&self, token: &str, now: Timestamp) -> Option<Value> {
        let (message, tag) = token.rsplit_once('.')?;
        let tag = URL_SAFE_NO_PAD.decode(tag).ok()?;
        hmac::verify(&self.runtime, message.as_bytes(), &tag).ok()?;
        let claims = URL_SAFE_NO_PAD.decode(message.split_once('.')?.1).ok()?;
        let claims: Value = serde_json::from_slice(&claims).ok()?;
        let valid = claims["nbf"].as_i64()?..claims["exp"].as_i64()?;
        valid.contains(&now.as_second()).then_some(claims)
    }

    fn keys(&self) -> MutexGuard<'_, SigningKeys> {
        let mut keys = self.keys.lock();
        if keys.published.is_empty() {
            keys.published.push(FIRST.clone());
        }
        keys
    }
}

/// The claims of `job`'s OIDC token for `audience`, after its `changed_claims`.
pub fn claims(job: &Job, issuer: &str, audience: &str, now: Timestamp) -> Value {
    let issued = now.as_second();
    let run = &job.run;
    let mut claims = run.claims();
    let mut set = |name: &str, value: Value| claims.insert(name.to_owned(), value);
    if let Some(environment) = &job.environment {
        set("environment", json!(environment));
    }
    set("sub", json!(job.subject()));
    set("check_run_id", json!(job.check_run_id.to_string()));
    set("runner_environment", json!("github-hosted"));
    set("jti", json!(uuid::Uuid::new_v4().to_string()));
    set("iss", json!(issuer));
    set("aud", json!(audience));
    set("iat", json!(issued));
    set("nbf", json!(issued - SKEW_SECONDS));
    set("exp", json!(issued + TOKEN_SECONDS));
    for (name, value) in &job.changed_claims {
        match value {
            Value::Null => _ = claims.remove(name),
            value => _ = claims.insert(name.clone(), value.clone()),
        }
    }
    Value::Object(claims)
}

/// The issuer's routes, with the operations `discovery`, `jwks` and `mint`.
pub(crate) fn routes() -> Router<Arc<State>> {
    Router::new()
        .route("/.well-known/openid-configuration", get(discovery))
        .route("/.well-known/jwks", get(jwks))
        .route("/_oidc/{job}/token", get(mint))
}

type Answer = Result<Response, Response>;

async fn discovery(Shared(state): Shared<Arc<State>>, peer: Peer) -> Answer {
    state.traffic.pass("discovery", &peer).await?;
    let issuer = state.origin();
    let document = json!({
        "issuer": issuer,
        "jwks_uri": format!("{issuer}/.well-known/jwks"),
        "subject_types_supported": ["public", "pairwise"],
        "response_types_supported": ["id_token"],
        "claims_supported": ["sub", "aud", "exp", "iat", "iss", "jti", "nbf", "ref", "sha",
            "repository", "repository_id", "repository_owner", "repository_owner_id", "run_id",
            "run_number", "run_attempt", "actor", "actor_id", "workflow", "workflow_ref",
            "workflow_sha", "head_ref", "base_ref", "event_name", "ref_type", "environment",
            "job_workflow_ref", "job_workflow_sha", "repository_visibility",
            "runner_environment", "check_run_id"],
        "id_token_signing_alg_values_supported": ["RS256"],
        "scopes_supported": ["openid"],
    });
    Ok(Json(document).into_response())
}

async fn jwks(Shared(state): Shared<Arc<State>>, peer: Peer) -> Answer {
    state.traffic.pass("jwks", &peer).await?;
    Ok(Json(state.oidc.jwks()).into_response())
}

async fn mint(
    Shared(state): Shared<Arc<State>>,
    peer: Peer,
    Path(job): Path<String>,
    Query(query): Query<HashMap<String, String>>,
    headers: HeaderMap,
) -> Answer {
    state.traffic.pass("mint", &peer).await?;
    let job = state.runs.job(&job).filter(|job| job.may_mint);
    let Some(job) = job.filter(|job| bearer(&headers) == Some(&job.request_token)) else {
        return Err(
            (StatusCode::UNAUTHORIZED, "the request token isn't this job's").into_response()
        );
    };
    if !query.contains_key("api-version") {
        return Err((StatusCode::BAD_REQUEST, "the request URL lost its own query").into_response());
    }
    let default = format!("{}/{}", state.origin(), job.run.owner());
    let audience = query.get("audience").filter(|text| !text.is_empty()).unwrap_or(&default);
    let claims = claims(&job, state.origin(), audience, state.clock.now());
    let token = state.oidc.sign(&claims);
    let mut answer = Map::new();
    answer.insert("count".to_owned(), json!(token.len()));
    answer.insert("value".to_owned(), json!(token));
    Ok(Json(answer).into_response())
}

/// The bearer token of a request.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}

#[cfg(test)]
mod tests {
    use jsonwebtoken::jwk::JwkSet;
    use jsonwebtoken::{Algorithm, DecodingKey, Validation};

    use super::*;
    use crate::StandIn;
    use crate::runs::Run;
    use crate::traffic::Fault;

    async fn get(url: &str, token: &str) -> reqwest::Result<reqwest::Response> {
        reqwest::Client::new().get(url).bearer_auth(token).send().await
    }

    async fn mint(url: &str, token: &str) -> String {
        let answer: Value = get(url, token).await.unwrap().json().await.unwrap();
        answer["value"].as_str().unwrap().to_owned()
    }

    /// Verifies a token as any service does: discovery, JWKS, key id, signature, issuer, audience.
    async fn verified(github: &StandIn, token: &str, audience: &str) -> Option<Value> {
        let origin = github.state().origin();
        let document = format!("{origin}/.well-known/openid-configuration");
        let document: Value = get(&document, "").await.unwrap().json().await.unwrap();
        assert_eq!(document["issuer"], origin);
        let jwks = get(document["jwks_uri"].as_str().unwrap(), "").await.unwrap();
        let jwks: JwkSet = jwks.json().await.unwrap();
        let header = jsonwebtoken::decode_header(token).unwrap();
        let key = DecodingKey::from_jwk(jwks.find(&header.kid.unwrap())?).unwrap();
        let mut validation = Validation::new(Algorithm::RS256);
        validation.set_audience(&[audience]);
        validation.set_issuer(&[origin]);
        jsonwebtoken::decode::<Value>(token, &key, &validation).ok().map(|data| data.claims)
    }

    #[tokio::test]
    async fn minted_token_verifies_and_has_githubs_claims() {
        let github = StandIn::start().unwrap();
        let runs = &github.state().runs;
        let mut job = runs.add_job(runs.add(Run::same_repository()), "build");
        let environment = github.state().job_environment(&job);
        let url = format!("{}&audience=me", environment["ACTIONS_ID_TOKEN_REQUEST_URL"]);
        let request_token = &environment["ACTIONS_ID_TOKEN_REQUEST_TOKEN"];

        let claims = verified(&github, &mint(&url, request_token).await, "me").await.unwrap();
        for (name, value) in [
            ("sub", "repo:acme/upstream:pull_request"),
            ("repository_id", "1001"),
            ("run_id", "4242"),
            ("run_attempt", "1"),
            ("head_ref", "topic"),
            ("event_name", "pull_request"),
            ("job_workflow_ref", "acme/upstream/.github/workflows/build.yml@refs/pull/7/merge"),
        ] {
            assert_eq!(claims[name], value, "{name}");
        }
        assert_eq!(claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap(), 300);
        assert_eq!(claims.get("environment"), None);

        job.environment = Some("production".to_owned());
        job.changed_claims.insert("run_id".to_owned(), json!("1"));
        job.changed_claims.insert("ref".to_owned(), Value::Null);
        runs.update_job(&job);
        let claims = verified(&github, &mint(&url, request_token).await, "me").await.unwrap();
        assert_eq!(claims["sub"], "repo:acme/upstream:environment:production");
        assert_eq!(claims["environment"], "production");
        assert_eq!((claims.get("ref"), &claims["run_id"]), (None, &json!("1")));

        let run = Run { immutable_subject: true, ..Run::same_repository() };
        let mut job = runs.add_job(runs.add(run), "build");
        assert_eq!(job.subject(), "repo:acme@501/upstream@1001:pull_request");
        job.environment = Some("production".to_owned());
        assert_eq!(job.subject(), "repo:acme@501/upstream@1001:environment:production");
    }

    #[tokio::test]
    async fn fork_job_gets_no_oidc_variables_and_no_token() {
        let github = StandIn::start().unwrap();
        let runs = &github.state().runs;
        for run in [Run::fork(), Run::dependabot()] {
            let job = runs.add_job(runs.add(run), "build");
            let environment = github.state().job_environment(&job);
            assert!(!environment.keys().any(|name| name.contains("ID_TOKEN")));
            assert!(environment.contains_key("ACTIONS_RUNTIME_TOKEN"));
            let url = format!("{}_oidc/{}/token?api-version=2.0", github.url(), job.backend_id);
            assert_eq!(get(&url, &job.request_token).await.unwrap().status(), 401);
        }
    }

    #[tokio::test]
    async fn mint_without_request_token_or_query_is_refused() {
        let github = StandIn::start().unwrap();
        let runs = &github.state().runs;
        let job = runs.add_job(runs.add(Run::push()), "build");
        let environment = github.state().job_environment(&job);
        let url = &environment["ACTIONS_ID_TOKEN_REQUEST_URL"];
        assert_eq!(get(url, "guess").await.unwrap().status(), 401);
        let bare = url.split('?').next().unwrap();
        assert_eq!(get(bare, &job.request_token).await.unwrap().status(), 400);
    }

    #[tokio::test]
    async fn old_tokens_verify_after_rotation_until_the_key_is_retired() {
        let github = StandIn::start().unwrap();
        let issuer = &github.state().oidc;
        let now = github.state().clock.now().as_second();
        let claims = json!({ "iss": github.state().origin(), "aud": "me", "exp": now + 60 });
        let old = issuer.sign(&claims);
        issuer.rotate();
        let new = issuer.sign(&claims);
        assert!(verified(&github, &old, "me").await.is_some());
        assert!(verified(&github, &new, "me").await.is_some());
        issuer.retire();
        assert!(verified(&github, &old, "me").await.is_none());
        assert!(verified(&github, &new, "me").await.is_some());
        let foreign = Issuer::sign_with_foreign_key(&claims);
        assert!(verified(&github, &foreign, "me").await.is_none());
    }

    #[tokio::test]
    async fn faults_apply_in_order_and_then_calls_succeed() {
        let github = StandIn::start().unwrap();
        let state = github.state();
        state.traffic.fail("jwks", 1, Fault::Reset);
        state.traffic.fail("jwks", 2, Fault::status(503));
        let url = format!("{}.well-known/jwks", github.url());
        let error = get(&url, "").await.unwrap_err();
        assert!(format!("{error:?}").contains("ConnectionReset"), "{error:?}");
        assert_eq!(state.traffic.unmet(), ["jwks"]);
        assert_eq!(get(&url, "").await.unwrap().status(), 503);
        assert_eq!(get(&url, "").await.unwrap().status(), 503);
        assert_eq!(get(&url, "").await.unwrap().status(), 200);
        assert_eq!((state.traffic.calls("jwks"), state.traffic.unmet().len()), (4, 0));
    }
}
