//! Any text as a token is refused; one that the issuer signed, with any claims, is accepted only for our
//! audience, in its time, and for the repository or pipeline that it names.
#![no_main]

use std::sync::LazyLock;

use crcr_relay::callback::auth::{Issuer, ProviderMap, Verifier};
use crcr_standin::oidc;
use jiff::Timestamp;
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

const NOW: i64 = 1_800_000_000;
const AUDIENCE: &str = "pytorch-cross-repo-ci-relay";
const ISSUERS: [&str; 2] =
    ["https://token.actions.githubusercontent.com", "https://agent.buildkite.com"];
const PROVIDERS: &str = "buildkite: {ORG-1/pipe-1: acme/built}";

struct World {
    runtime: Runtime,
    signer: oidc::Issuer,
    verifier: Verifier,
}

static WORLD: LazyLock<World> = LazyLock::new(|| {
    let client = crcr_github::http::client().expect("a client");
    // Nobody listens there, so that a key that isn't known can't be fetched.
    let keys: url::Url = "http://127.0.0.1:9/jwks".parse().expect("a URL");
    let issuers = ISSUERS.map(|name| Issuer::new(name, Some(keys.clone())).expect("a URL"));
    let verifier = Verifier::new(&client, issuers.to_vec(), AUDIENCE);
    verifier.set_providers(ProviderMap::parse(PROVIDERS).expect("a map"));
    let signer = oidc::Issuer::default();
    let now = Timestamp::from_second(NOW).expect("a time");
    for name in ISSUERS {
        assert!(verifier.accept_keys(name, signer.jwks().to_string().as_bytes(), now));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    World { runtime: runtime.expect("a runtime"), signer, verifier }
});

fuzz_target!(|text: &str| {
    let now = Timestamp::from_second(NOW).expect("a time");
    let verify = |token: &str| WORLD.runtime.block_on(WORLD.verifier.verify(Some(token), now));
    let Ok(Value::Object(odd)) = serde_json::from_str(text) else {
        let refused = verify(text).expect_err("nobody signed it");
        assert!(refused.detail.len() < 2000);
        return;
    };
    let mut claims = json!({
        "iss": ISSUERS[text.len() % 2], "aud": AUDIENCE, "iat": NOW, "nbf": NOW, "exp": NOW + 300,
        "repository": "acme/backend", "organization_id": "ORG-1", "pipeline_id": "pipe-1",
    });
    claims.as_object_mut().expect("an object").extend(odd);
    let Ok(identity) = verify(&WORLD.signer.sign(&claims)) else { return };
    let audience = &claims["aud"];
    let is_ours = |name: &Value| name == AUDIENCE;
    assert!(is_ours(audience) || audience.as_array().is_some_and(|all| all.iter().any(is_ours)));
    assert!(claims["exp"].as_f64().is_some_and(|end| end + 60.0 > NOW as f64));
    assert_eq!(claims["iss"], identity.issuer);
    if identity.github().is_some() {
        assert_eq!(claims["repository"], identity.repository.as_str());
    } else {
        assert_eq!(identity.repository.as_str(), "acme/built");
    }
});
