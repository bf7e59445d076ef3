//! Real RS256 tokens against a real issuer on loopback.

use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use crcr_standin::StandIn;
use crcr_standin::oidc::Issuer as Signer;
use crcr_standin::traffic::Fault;
use serde_json::{Value, json};

use super::*;

const NOW: i64 = 1_800_000_000;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(NOW + seconds).unwrap()
}

/// An issuer, a verifier that trusts it, and claims that are valid at [`NOW`].
struct World {
    github: StandIn,
    verifier: Verifier,
    claims: Value,
}

fn world(kind: IssuerKind) -> World {
    let github = StandIn::start().unwrap();
    let name = github.state().origin().to_owned();
    let issuer = Issuer { kind, ..Issuer::new(&name, None).unwrap() };
    let client = crcr_github::http::client().unwrap();
    let verifier = Verifier::new(&client, vec![issuer], AUDIENCE);
    let claims = json!({
        "iss": name, "aud": AUDIENCE, "iat": NOW, "nbf": NOW - 600, "exp": NOW + 300,
        "jti": "j-1", "repository": "acme/backend", "repository_id": "77", "run_id": "4242",
        "run_attempt": "2", "event_name": "repository_dispatch", "ref": "refs/heads/main",
        "sha": "abc", "job_workflow_ref": "acme/backend/.github/workflows/ci.yml@refs/heads/main",
        "organization_id": "ORG-1", "pipeline_id": "pipe-1", "build_id": "b-1",
        "build_branch": "main",
    });
    World { github, verifier, claims }
}

impl World {
    fn with(&self, name: &str, value: Value) -> String {
        let mut claims = self.claims.clone();
        if value.is_null() {
            claims.as_object_mut().unwrap().remove(name);
        } else {
            claims[name] = value;
        }
        self.github.state().oidc.sign(&claims)
    }

    fn good(&self) -> String {
        self.github.state().oidc.sign(&self.claims)
    }

    async fn verify(&self, token: &str) -> Result<CallerIdentity, AuthError> {
        self.verifier.verify(Some(&format!("Bearer {token}")), at(0)).await
    }

    fn fetches(&self) -> usize {
        self.github.state().traffic.calls("jwks")
    }
}

fn invalid() -> AuthError {
    AuthError::invalid()
}

/// A token with this header.
fn forged(header: &Value, claims: &Value, signature: &[u8]) -> String {
    let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}.{}", encode(header), encode(claims), URL_SAFE_NO_PAD.encode(signature))
}

#[tokio::test]
async fn github_token_identifies_the_job() {
    let world = world(IssuerKind::GitHub);
    let got = world.verify(&world.good()).await.unwrap();
    assert_eq!(got.repository.as_str(), "acme/backend");
    assert_eq!((&*got.token_id, got.expires_at), ("j-1", at(300)));
    let claims = got.github().unwrap();
    assert_eq!(
        (claims.repository_id, claims.run_id, claims.run_attempt),
        (Some(77), Some(4242), Some(2))
    );
    assert_eq!(claims.event_name.as_deref(), Some("repository_dispatch"));
    assert_eq!(claims.ref_name.as_deref(), Some("refs/heads/main"));
    assert!(claims.job_workflow_ref.as_deref().unwrap().contains("ci.yml"));
}

#[tokio::test]
async fn bearer_prefix_is_optional_and_case_insensitive() {
    let world = world(IssuerKind::GitHub);
    let token = world.good();
    for header in [
        token.clone(),
        format!("Bearer {token}"),
        format!("bearer {token}"),
        format!("BEARER   {token} "),
    ] {
        assert!(world.verifier.verify(Some(&header), at(0)).await.is_ok(), "{header}");
    }
    let missing = AuthError::unauthorized("Missing authorization token");
    for header in [None, Some(""), Some("  "), Some("Bearer "), Some("bearer")] {
        assert_eq!(world.verifier.verify(header, at(0)).await, Err(missing.clone()), "{header:?}");
    }
}

#[tokio::test]
async fn unknown_issuer_is_named_and_gets_no_request() {
    let world = world(IssuerKind::GitHub);
    let none = "Unsupported OIDC issuer: None";
    for (token, detail) in [
        ("rubbish".to_owned(), "None (parts of the token: 1, expected 3)"),
        (format!("{}.more", world.good()), "None (parts of the token: 4, expected 3)"),
        ("a.b.c".to_owned(), "None (the token's header: "),
        (
            forged(&json!({ "alg": "RS256", "kid": 7 }), &json!({}), b""),
            "None (the token's header: invalid type: integer `7`, expected a string",
        ),
        (forged(&json!({ "alg": "RS256" }), &json!([]), b""), "None (the token's claims: "),
        (world.with("iss", Value::Null), none),
        (world.with("iss", json!(7)), none),
        (
            world.with("iss", json!("https://evil.example")),
            "Unsupported OIDC issuer: https://evil.example",
        ),
        (world.with("iss", json!(format!("{}/", world.github.state().origin()))), ""),
        ("x".repeat(20_000), "None (the token has over 16384 bytes)"),
    ] {
        let error = world.verify(&token).await.unwrap_err();
        assert_eq!(error.status, 401);
        assert!(
            error.detail.starts_with("Unsupported OIDC issuer") && error.detail.contains(detail),
            "{error}"
        );
    }
    let long = world.with("iss", json!(format!("https://{}\n", "a".repeat(900))));
    assert!(world.verify(&long).await.unwrap_err().detail.len() < 300);
    assert_eq!(world.fetches(), 0);
}

#[tokio::test]
async fn wrong_missing_or_expired_claims_are_invalid() {
    let world = world(IssuerKind::GitHub);
    for (name, value) in [
        ("aud", json!("sts.amazonaws.com")),
        ("aud", json!(["a", "b"])),
        ("aud", Value::Null),
        ("exp", Value::Null),
        ("exp", json!("soon")),
        ("exp", json!(NOW - 60)),
        ("iat", Value::Null),
        ("nbf", json!(NOW + 961)),
        ("nbf", json!(1e300)),
        ("nbf", json!("now")),
    ] {
        let token = world.with(name, value.clone());
        let error = world.verify(&token).await.unwrap_err();
        assert_eq!(error.status, 401, "{name}={value}");
        assert!(error.detail.starts_with("Invalid authorization token: "), "{error}");
    }
    for (name, value, why) in [
        ("exp", json!(NOW - 60), "it is expired"),
        ("nbf", json!(NOW + 961), "it is not valid yet"),
        ("aud", json!("sts.amazonaws.com"), "it is for another audience"),
    ] {
        let error = world.verify(&world.with(name, value)).await.unwrap_err();
        assert!(error.detail.ends_with(why), "{error}");
    }
    assert_eq!(world.fetches(), 0, "no key is fetched for a token that can't be valid");
    for (name, value) in [
        ("aud", json!(["other", AUDIENCE])),
        ("exp", json!(NOW - 59)),
        ("iat", json!(NOW + 600)),
        ("nbf", json!(NOW + 60)),
        ("nbf", Value::Null),
    ] {
        let token = world.with(name, value.clone());
        assert!(world.verify(&token).await.is_ok(), "{name}={value}");
    }
}

#[tokio::test]
async fn token_of_the_issuer_that_is_valid_soon_can_be_sent_again_and_anybody_elses_is_invalid() {
    let world = world(IssuerKind::GitHub);
    for (claims, seconds) in [
        (json!({ "nbf": NOW + 61 }), 1),
        (json!({ "nbf": NOW + 960 }), 900),
        (json!({ "nbf": null, "iat": NOW + 70 }), 10),
    ] {
        let mut all = world.claims.clone();
        all.as_object_mut().unwrap().extend(claims.as_object().unwrap().clone());
        all.as_object_mut().unwrap().retain(|_, claim| !claim.is_null());
        let error = world.verify(&world.github.state().oidc.sign(&all)).await.unwrap_err();
        let pause = Some(Duration::from_secs(seconds));
        assert_eq!((error.status.as_u16(), error.retry_after), (503, pause), "{claims}");
        assert!(error.detail.contains("by this relay's clock it is not valid yet"), "{error}");
    }
    let token = world.with("nbf", json!(NOW + 61));
    let forged = format!("{}AAAA", &token[..token.len() - 4]);
    assert_eq!(world.verify(&forged).await.unwrap_err().status, 401);
}

#[tokio::test]
async fn token_without_a_repository_is_401() {
    let world = world(IssuerKind::GitHub);
    for value in [Value::Null, json!(""), json!("acme"), json!("../x")] {
        let error = world.verify(&world.with("repository", value)).await.unwrap_err();
        assert_eq!(error.status, 401);
        assert_eq!(error.detail, "GitHub OIDC token missing 'repository' claim");
    }
}

#[tokio::test]
async fn only_rs256_is_accepted() {
    let world = world(IssuerKind::GitHub);
    let jwks = world.github.state().oidc.jwks();
    let kid = &jwks["keys"][0]["kid"];
    let modulus = URL_SAFE_NO_PAD.decode(jwks["keys"][0]["n"].as_str().unwrap()).unwrap();
    for alg in ["none", "None", "HS256", "HS512", "RS512", "PS256", "ES256", "rs256", ""] {
        let header = json!({"typ": "JWT", "alg": alg, "kid": kid});
        // The classic attack: HMAC with the public key as its secret.
        let unsigned = forged(&header, &world.claims, b"");
        let message = unsigned.trim_end_matches('.');
        let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, &modulus);
        let tag = aws_lc_rs::hmac::sign(&key, message.as_bytes());
        for signature in [b"".as_slice(), tag.as_ref()] {
            let token = forged(&header, &world.claims, signature);
            let refused = world.verify(&token).await.unwrap_err();
            assert_eq!(refused.status, StatusCode::UNAUTHORIZED, "{alg}");
            assert!(refused.detail.contains("signed with RS256"), "{alg}: {}", refused.detail);
        }
    }
    assert_eq!(world.fetches(), 0, "they are refused before a key is looked for");
}

#[tokio::test]
async fn signature_of_another_key_is_invalid() {
    let world = world(IssuerKind::GitHub);
    let good = world.good();
    let (message, signature) = good.rsplit_once('.').unwrap();
    let other = world.with("repository", json!("acme/victim"));
    let (other_message, _) = other.rsplit_once('.').unwrap();
    let kid = world.github.state().oidc.jwks()["keys"][0]["kid"].clone();
    let critical = json!({"alg": "RS256", "kid": kid, "crit": ["b64"], "b64": false});
    for token in [
        format!("{other_message}.{signature}"),
        format!("{message}."),
        format!("{message}.{}", "A".repeat(342)),
    ] {
        assert_eq!(world.verify(&token).await, Err(invalid()), "{token}");
    }
    for header in [json!({"alg": "RS256"}), critical] {
        let refused = world.verify(&forged(&header, &world.claims, b"x")).await.unwrap_err();
        assert_eq!(refused.status, StatusCode::UNAUTHORIZED, "{header}");
        assert!(refused.detail.contains("a key that `kid` names"), "{}", refused.detail);
    }
    assert!(world.verify(&good).await.is_ok());
}

#[tokio::test]
async fn flood_of_unknown_key_ids_causes_one_request_and_looks_like_no_outage() {
    let world = world(IssuerKind::GitHub);
    assert!(world.verifier.refresh(at(-10)).await);
    let old = world.good();
    // Each token names another key that the issuer doesn't have.
    let first = world.verify(&Signer::sign_with_foreign_key(&world.claims)).await.unwrap_err();
    assert_eq!(first, invalid());
    let kids: Vec<String> = (0..100).map(|n| format!("random-{n}")).collect();
    for kid in &kids {
        let token = forged(&json!({"alg": "RS256", "kid": kid}), &world.claims, b"x");
        assert_eq!(world.verify(&token).await, Err(invalid()));
    }
    assert_eq!(world.fetches(), 2);
    assert!(world.verify(&old).await.is_ok(), "known keys go on");

    // The keys are rotated during the flood: a new key is refused for a minute at most.
    world.github.state().oidc.rotate();
    let new = world.good();
    assert_eq!(world.verifier.verify(Some(&new), at(30)).await, Err(invalid()));
    assert!(world.verifier.verify(Some(&new), at(60)).await.is_ok());
    assert!(world.verifier.verify(Some(&old), at(60)).await.is_ok());
    assert_eq!(world.fetches(), 3);
}

/// The issuers whose keys readiness waits for.
fn missing(world: &World, seconds: i64) -> Vec<String> {
    let issuers = world.verifier.issuers(None, at(seconds)).into_iter();
    issuers.filter(IssuerStatus::is_missing).map(|issuer| issuer.issuer).collect()
}

#[tokio::test]
async fn unreachable_issuer_is_503_and_never_401() {
    let world = world(IssuerKind::GitHub);
    let traffic = &world.github.state().traffic;
    traffic.fail("jwks", 2, Fault::status(503));
    assert_eq!(missing(&world, 0), [world.github.state().origin()]);
    let error = world.verify(&world.good()).await.unwrap_err();
    assert_eq!((error.status.as_u16(), error.retry_after), (503, Some(Duration::from_secs(60))));
    assert!(world.verifier.refresh(at(30)).await);
    assert!(world.verify(&world.good()).await.is_ok());
    assert!(missing(&world, 30).is_empty());
    assert_eq!(traffic.unmet(), Vec::<&str>::new());

    traffic.fail("jwks", 9, Fault::status(500));
    assert!(!world.verifier.refresh(at(330)).await);
    let day = 24 * 3600;
    assert!(missing(&world, day + 30).is_empty());
    assert_eq!(missing(&world, day + 31).len(), 1);
    let mut claims = world.claims.clone();
    for name in ["iat", "nbf", "exp"] {
        claims[name] = json!(NOW + day + 31);
    }
    let token = world.github.state().oidc.sign(&claims);
    let error = world.verifier.verify(Some(&token), at(day + 31)).await.unwrap_err();
    assert_eq!(error.status, 503, "keys of yesterday don't serve");
}

#[tokio::test]
async fn buildkite_pipeline_reports_for_its_mapped_repository() {
    let world = world(IssuerKind::Buildkite);
    let map = |text: &str| world.verifier.set_providers(ProviderMap::parse(text).unwrap());
    let error = world.verify(&world.good()).await.unwrap_err();
    assert_eq!((error.status.as_u16(), error.retry_after), (503, Some(Duration::from_secs(30))));
    assert!(error.detail.contains("isn't loaded yet"), "{error}");

    map("");
    let error = world.verify(&world.good()).await.unwrap_err();
    assert_eq!(error.status, 403);
    assert_eq!(error.detail, "Buildkite pipeline ORG-1/pipe-1 is not registered with CRCR");

    map(
        "buildkite: {org-1/pipe-1: {repo: acme/kite, required_claims: {build_branch: [main, dev]}}}",
    );
    let got = world.verify(&world.good()).await.unwrap();
    assert_eq!(got.repository.as_str(), "acme/kite", "never the claim `repository`");
    assert_eq!(got.buildkite().unwrap().build_id.as_deref(), Some("b-1"));

    let error = world.verify(&world.with("build_branch", json!("topic"))).await.unwrap_err();
    assert_eq!(error.status, 403);
    assert_eq!(
        error.detail,
        "Buildkite claim 'build_branch' value 'topic' not in allowed set for this pipeline"
    );
    let error = world.verify(&world.with("build_branch", Value::Null)).await.unwrap_err();
    assert!(error.detail.contains("value ''"), "{error}");
    for id in ["organization_id", "pipeline_id"] {
        let error = world.verify(&world.with(id, Value::Null)).await.unwrap_err();
        assert_eq!(error.status, 401);
        assert_eq!(error.detail, "Buildkite OIDC token missing 'organization_id' or 'pipeline_id'");
    }
}

#[test]
fn default_issuer_follows_from_githubs_api_url() {
    for (api, issuer) in [
        ("https://api.github.com", "https://token.actions.githubusercontent.com"),
        ("https://ghe.test/api/v3", "https://ghe.test/_services/token"),
        ("https://ghe.test:8443/api/v3/", "https://ghe.test:8443/_services/token"),
        ("https://api.acme.ghe.com", "https://token.actions.acme.ghe.com"),
    ] {
        let issuers = Issuer::from_settings(&[], &api.parse().unwrap());
        let seen: Vec<_> = issuers.iter().map(|i| (i.jwks_url.to_string(), i.kind)).collect();
        let keys = format!("{issuer}/.well-known/jwks");
        let buildkite = "https://agent.buildkite.com/.well-known/jwks".to_owned();
        assert_eq!(seen, [(keys, IssuerKind::GitHub), (buildkite, IssuerKind::Buildkite)], "{api}");
        assert_eq!(issuers[0].name, issuer);
    }
}
