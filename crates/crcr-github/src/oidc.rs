//! The job's OIDC token, from the endpoint that the runner names.
//!
//! <https://docs.github.com/en/actions/reference/security/oidc>

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use reqwest::{Client, StatusCode};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use url::Url;

use crate::http::{self, HttpError, RetryPolicy};
use crate::{SecureUrl, SecureUrlError};

/// A token usually has one or two thousand bytes.
const MAX_ANSWER_BYTES: usize = 64 * 1024;

/// Where a job asks for tokens: `ACTIONS_ID_TOKEN_REQUEST_URL` and `…_TOKEN`.
#[derive(Debug, Clone)]
pub struct TokenEndpoint {
    url: SecureUrl,
    bearer: SecretString,
}

#[derive(Debug, thiserror::Error)]
pub enum MintError {
    #[error("`ACTIONS_ID_TOKEN_REQUEST_URL` {0}")]
    Url(#[from] SecureUrlError),
    #[error(transparent)]
    Http(#[from] HttpError),
}

#[derive(Deserialize)]
struct TokenAnswer {
    value: String,
}

impl TokenEndpoint {
    /// Fails if the address isn't a [`SecureUrl`]: whoever reads the bearer on its way gets tokens of this job.
    pub fn new(url: &str, bearer: &str) -> Result<Self, MintError> {
        Ok(Self { url: url.parse()?, bearer: bearer.into() })
    }

    /// Requests a token for `audience`, which is valid for five minutes. Each try takes at most what
    /// `limit` says when it starts; `retry` covers outages.
    pub async fn mint(
        &self,
        client: &Client,
        audience: &str,
        retry: RetryPolicy,
        limit: impl Fn() -> Duration,
    ) -> Result<SecretString, MintError> {
        let mut url = Url::from(self.url.clone());
        url.query_pairs_mut().append_pair("audience", audience);
        let answer = http::with_retries(retry, || async {
            let request = client.get(url.clone()).bearer_auth(self.bearer.expose_secret());
            let request = request.header("accept", "application/json").timeout(limit());
            let response = http::send_once(request).await;
            let response = response.map_err(unless_in_between)?;
            let (status, headers) = (response.status(), response.headers().clone());
            let body = http::read(response, MAX_ANSWER_BYTES).await?;
            if body.is_empty() || http::is_web_page(&headers, &body) {
                return Err(HttpError::Intermediary { status, body });
            }
            match serde_json::from_slice::<Value>(&body) {
                Ok(answer) if answer.get("value").is_some() => Ok(body),
                Ok(_) if !has_token(&body) => Err(HttpError::Intermediary { status, body }),
                // It may be a part of the token, so no message has it.
                _ => Err(HttpError::Intermediary { status, body: Bytes::new() }),
            }
        });
        let answer = answer.await?;
        // serde's own message could quote the token.
        let malformed = || HttpError::Malformed("no JSON object with a token in `value`".into());
        let answer: TokenAnswer = serde_json::from_slice(&answer).map_err(|_| malformed())?;
        if answer.value.split('.').filter(|part| !part.is_empty()).count() != 3 {
            return Err(malformed().into());
        }
        Ok(answer.value.into())
    }
}

/// Whether a text may have a token in it: each is the base64 of a JSON object at its start.
fn has_token(text: &[u8]) -> bool {
    text.windows(3).any(|part| part == b"eyJ")
}

/// GitHub gives its reason for a 403 in JSON.
fn unless_in_between(error: HttpError) -> HttpError {
    match error.unless_page_or_redirect() {
        HttpError::Status { status: status @ StatusCode::FORBIDDEN, body, .. }
            if serde_json::from_slice::<IgnoredAny>(&body).is_err() =>
        {
            HttpError::Intermediary { status, body }
        }
        error => error,
    }
}

/// The claims of a token, **not verified**: for messages about what a trust policy sees.
pub fn unverified_claims(token: &SecretString) -> Option<serde_json::Map<String, Value>> {
    let payload = token.expose_secret().split('.').nth(1)?;
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use wiremock::matchers::{header, method, path, query_param};
    use wiremock::{Mock, MockServer, ResponseTemplate};

    use super::*;

    const TOKEN: &str = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJyZXBvOmFjbWUvdXBzdHJlYW0ifQ.c2ln";

    fn fast() -> RetryPolicy {
        RetryPolicy { tries: 3, base: Duration::from_millis(1), ..RetryPolicy::default() }
    }

    async fn mint(server: &MockServer) -> Result<SecretString, MintError> {
        let url = format!("{}/token?api-version=2.0", server.uri());
        let endpoint = TokenEndpoint::new(&url, "bearer").unwrap();
        let client = http::client().unwrap();
        endpoint.mint(&client, "a b&c", fast(), || Duration::from_millis(500)).await
    }

    #[tokio::test]
    async fn audience_is_added_to_the_existing_query() {
        let server = MockServer::start().await;
        Mock::given(method("GET"))
            .and(path("/token"))
            .and(query_param("api-version", "2.0"))
            .and(query_param("audience", "a b&c"))
            .and(header("authorization", "Bearer bearer"))
            .respond_with(
                ResponseTemplate::new(200).set_body_json(serde_json::json!({"value": TOKEN})),
            )
            .expect(1)
            .mount(&server)
            .await;
        let token = mint(&server).await.unwrap();
        assert_eq!(token.expose_secret(), TOKEN);
        assert_eq!(unverified_claims(&token).unwrap()["sub"], "repo:acme/upstream");
    }

    #[tokio::test]
    async fn mint_retries_503_but_not_401() {
        let server = MockServer::start().await;
        Mock::given(method("GET"))
            .respond_with(ResponseTemplate::new(503))
            .up_to_n_times(2)
            .expect(2)
            .mount(&server)
            .await;
        Mock::given(method("GET"))
            .respond_with(
                ResponseTemplate::new(200).set_body_json(serde_json::json!({"value": TOKEN})),
            )
            .expect(1)
            .mount(&server)
            .await;
        mint(&server).await.unwrap();

        let server = MockServer::start().await;
        Mock::given(method("GET"))
            .respond_with(ResponseTemplate::new(401))
            .expect(1)
            .mount(&server)
            .await;
        let error = mint(&server).await.unwrap_err();
        assert!(error.to_string().contains("401"), "{error}");
    }

    #[tokio::test]
    async fn answer_without_a_token_is_an_error_that_doesnt_quote_it() {
        for (body, told) in [
            (r#"{"value": 7}"#, "`value`"),
            (r#"{"value": "abc.def"}"#, "`value`"),
            ("{}", "in between answered 200 OK instead of the server: {}"),
            (r#"{"error": "try later"}"#, "try later"),
            (r#"{"token": "eyJ.secret.c"}"#, "in between"),
            ("secret-token", "in between"),
            (r#"{"value": "secret"#, "in between"),
        ] {
            let server = MockServer::start().await;
            Mock::given(method("GET"))
                .respond_with(ResponseTemplate::new(200).set_body_string(body))
                .mount(&server)
                .await;
            let error = mint(&server).await.unwrap_err().to_string();
            assert!(error.contains(told) && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn bearer_is_sent_to_https_or_to_this_machine_only() {
        for url in ["https://token.test/?a=b", "http://127.0.0.1:9/", "http://localhost:9/"] {
            assert!(TokenEndpoint::new(url, "b").is_ok(), "{url}");
        }
        for url in ["http://token.test/?a=b", "http://10.0.0.1/", "file:///etc", "token.test"] {
            let refused = TokenEndpoint::new(url, "b").unwrap_err();
            assert!(matches!(refused, MintError::Url(_)), "{url}: {refused}");
        }
    }
}
