//! Authorises operators.
//!
//! On the public listener an operator sends the admin token, as a bearer or in a login form that sets the
//! cookie `crcr_admin`. For everybody else the operators' pages don't exist. The cookie doesn't contain
//! the token: it is an expiry time with a MAC whose key is the token, so a new token ends every
//! session.

use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::hmac;
use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Redirect, Response};
use axum::{Extension, Form};
use crcr_github::is_loopback;
use jiff::Timestamp;
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{HOME, pages::login};
use crate::http::http_response::{self, Refusal, not_found};
use crate::limits;
use crate::relay::Relay;

const COOKIE: &str = "crcr_admin";
const SESSION: Duration = Duration::from_secs(12 * 3600);
pub(crate) const FORM_BYTES: usize = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Listener {
    /// Operators need the token; for others there are no operators' pages.
    Public,
    /// The operators' listener on loopback. It needs no token, but `Host` must name this machine:
    /// otherwise a web page whose domain resolves to 127.0.0.1 (DNS rebinding) could act through an
    /// operator's browser.
    Loopback,
    /// The operators' listener on the network. It needs the token if one is configured.
    Network,
}

/// Middleware that lets only operators through.
pub(crate) async fn require_operator(
    State((relay, listener)): State<(Arc<Relay>, Listener)>,
    request: Request,
    next: Next,
) -> Response {
    let headers = request.headers();
    let why = match is_operator(&relay, listener, headers) {
        Ok(true) => {
            let mut answer = next.run(request).await;
            let cache = HeaderValue::from_static("no-store");
            answer.headers_mut().insert(header::CACHE_CONTROL, cache);
            return answer;
        }
        Err(wait) => return too_many_wrong_tokens(wait).into_response(),
        Ok(false) => match listener {
            Listener::Public => return not_found(),
            Listener::Loopback => {
                let why = format!(
                    "`Host` is `{}`, which isn't a name of this machine: ask for http://localhost and \
                     this port, or send the admin token as a bearer",
                    text(headers, header::HOST)
                );
                return Refusal::new(StatusCode::FORBIDDEN, why).into_response();
            }
            Listener::Network => {
                "The admin token is required: send it as a bearer, or log in at /crcr/login"
            }
        },
    };
    let mut answer = Refusal::new(StatusCode::UNAUTHORIZED, why).into_response();
    answer.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    answer
}

/// Middleware: pages that everybody may read show operators the way to theirs. A bearer isn't looked at, so that
/// nobody can try tokens on every page.
pub(crate) async fn note_operator(
    State((relay, listener)): State<(Arc<Relay>, Listener)>,
    mut request: Request,
    next: Next,
) -> Response {
    let headers = request.headers();
    let is_logged_in = relay.config.admin_token.as_ref().is_some_and(|token| {
        cookie(headers).is_some_and(|given| is_session(&token.all(), given, relay.now()))
    });
    if is_open(&relay, listener, headers) || is_logged_in {
        request.extensions_mut().insert(crcr_hud::Operator);
    }
    next.run(request).await
}

/// Whether a request comes from an operator. Fails with the time to wait after too many wrong tokens.
pub(crate) fn is_operator(
    relay: &Relay,
    listener: Listener,
    headers: &HeaderMap,
) -> Result<bool, Duration> {
    if is_open(relay, listener, headers) { Ok(true) } else { is_admin(relay, listener, headers) }
}

/// Whether whoever reaches the listener is an operator.
fn is_open(relay: &Relay, listener: Listener, headers: &HeaderMap) -> bool {
    match listener {
        Listener::Public => false,
        Listener::Loopback => names_this_machine(headers),
        Listener::Network => relay.config.admin_token.is_none(),
    }
}

fn too_many_wrong_tokens(wait: Duration) -> Refusal {
    let mut refusal =
        Refusal::new(StatusCode::TOO_MANY_REQUESTS, "Too many wrong tokens; wait for a minute");
    refusal.retry_after = Some(wait.as_secs().max(1));
    refusal
}

/// Whether `Host` is `localhost` or a loopback address, with or without a port.
fn names_this_machine(headers: &HeaderMap) -> bool {
    let host = text(headers, header::HOST);
    let authority = host.parse::<Authority>().ok().filter(|_| !host.contains('@'));
    authority
        .and_then(|authority| url::Host::parse(authority.host()).ok())
        .is_some_and(|host| is_loopback(&host))
}

/// Whether a request has the cookie of a login or the admin token as a bearer. Fails with the time to
/// wait after too many wrong tokens.
fn is_admin(relay: &Relay, listener: Listener, headers: &HeaderMap) -> Result<bool, Duration> {
    let (Some(token), now) = (&relay.config.admin_token, relay.now()) else { return Ok(false) };
    if cookie(headers).is_some_and(|given| is_session(&token.all(), given, now)) {
        return Ok(true);
    }
    match text(headers, header::AUTHORIZATION).strip_prefix("Bearer ") {
        Some(given) => relay.wrong_bearers.check(listener, token, given, now),
        None => Ok(false),
    }
}

pub(crate) fn has_cookie(headers: &HeaderMap) -> bool {
    cookie(headers).is_some()
}

/// Whether `Origin`, if present, names the same host as `Host`.
fn is_own_origin(headers: &HeaderMap) -> bool {
    if !headers.contains_key(header::ORIGIN) {
        return true;
    }
    let host = text(headers, header::ORIGIN).split_once("://").map(|(_, host)| host);
    host.is_some_and(|host| !host.is_empty() && host == text(headers, header::HOST))
}

/// Refuses what another site had an operator's browser send.
pub(crate) fn check_origin(headers: &HeaderMap) -> Result<(), Refusal> {
    if is_own_origin(headers) {
        return Ok(());
    }
    Err(Refusal::new(StatusCode::FORBIDDEN, "Another site's request"))
}

/// What an operator's program sends as JSON. `expected` says which shape that has.
pub(crate) async fn json_body<T: DeserializeOwned>(
    request: Request,
    expected: &str,
) -> Result<T, Refusal> {
    let (head, body) = request.into_parts();
    check_origin(&head.headers)?;
    let body = http_response::body(body, limits::ADMIN_BYTES).await?;
    serde_json::from_slice(&body)
        .map_err(|error| Refusal::new(StatusCode::BAD_REQUEST, format!("{expected}: {error}")))
}

/// It isn't `Debug`, so that the token can't be printed.
#[derive(Deserialize)]
pub(crate) struct LoginForm {
    token: String,
}

pub(crate) async fn login_form(
    State(relay): State<Arc<Relay>>,
    Extension(listener): Extension<Listener>,
    headers: HeaderMap,
) -> Response {
    if relay.config.admin_token.is_none() {
        return not_found();
    }
    if is_admin(&relay, listener, &headers) == Ok(true) {
        return Redirect::to(HOME).into_response();
    }
    login::page(&relay.config.server_url, None).into_response()
}

/// `POST /crcr/login`: sets the cookie if the token is right.
pub(crate) async fn log_in(
    State(relay): State<Arc<Relay>>,
    Extension(listener): Extension<Listener>,
    headers: HeaderMap,
    form: Result<Form<LoginForm>, axum::extract::rejection::FormRejection>,
) -> Response {
    let Some(token) = &relay.config.admin_token else { return not_found() };
    let refused = |status: StatusCode, why: &str| {
        (status, login::page(&relay.config.server_url, Some(why))).into_response()
    };
    if !is_own_origin(&headers) {
        return refused(StatusCode::FORBIDDEN, "This form came from another site");
    }
    let Ok(Form(form)) = form else {
        return refused(StatusCode::BAD_REQUEST, "The form has no token");
    };
    match relay.wrong_logins.check(listener, token, &form.token, relay.now()) {
        Ok(true) => {}
        Ok(false) => {
            tracing::warn!("a login with a wrong token was refused");
            return refused(StatusCode::FORBIDDEN, "This is not the admin token");
        }
        Err(wait) => {
            let why = "Too many tries; wait for a minute";
            let mut answer = refused(StatusCode::TOO_MANY_REQUESTS, why);
            let seconds = HeaderValue::from(wait.as_secs().max(1));
            answer.headers_mut().insert(header::RETRY_AFTER, seconds);
            return answer;
        }
    }
    tracing::info!("an operator logged in");
    let until = relay.now() + SESSION;
    redirect_with_cookie(&headers, &session(&token.first(), until), SESSION)
}

/// `POST /crcr/logout`: deletes the cookie.
pub(crate) async fn log_out(headers: HeaderMap) -> Result<Response, Refusal> {
    check_origin(&headers)?;
    Ok(redirect_with_cookie(&headers, "", Duration::ZERO))
}

/// Redirects with a cookie that scripts can't read and that other sites' requests don't carry.
fn redirect_with_cookie(headers: &HeaderMap, value: &str, age: Duration) -> Response {
    // `Origin` has the scheme that the browser uses. Only over plain http the cookie isn't `Secure`.
    let plain = text(headers, header::ORIGIN).starts_with("http://");
    let secure = if plain { "" } else { "; Secure" };
    let age = age.as_secs();
    let cookie =
        format!("{COOKIE}={value}; Path=/; Max-Age={age}; HttpOnly; SameSite=Strict{secure}");
    ([(header::SET_COOKIE, cookie)], Redirect::to(HOME)).into_response()
}

/// `EXPIRY.MAC`, with the expiry in seconds since 1970.
fn session(token: &SecretString, until: Timestamp) -> String {
    let until = until.as_second();
    let tag = hmac::sign(&key(token), message(until).as_bytes());
    format!("{until}.{}", hex::encode(tag))
}

fn is_session(tokens: &[SecretString], given: &str, now: Timestamp) -> bool {
    let Some((until, tag)) = given.split_once('.') else { return false };
    let (Ok(until), Ok(tag)) = (until.parse::<i64>(), hex::decode(tag)) else { return false };
    let signs = |token| hmac::verify(&key(token), message(until).as_bytes(), &tag).is_ok();
    tokens.iter().any(signs) && now.as_second() < until
}

fn key(token: &SecretString) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, token.expose_secret().as_bytes())
}

fn message(until: i64) -> String {
    format!("crcr-admin-session-v1 {until}")
}

fn cookie(headers: &HeaderMap) -> Option<&str> {
    let pairs = text(headers, header::COOKIE).split(';');
    let mut ours = pairs.filter_map(|pair| pair.trim().strip_prefix(COOKIE)?.strip_prefix('='));
    ours.find(|value| !value.is_empty())
}

fn text(headers: &HeaderMap, name: header::HeaderName) -> &str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_ends_and_cant_be_made_longer_or_with_another_token() {
        let token = SecretString::from("let-me-in");
        let now: Timestamp = "2026-09-15T12:00:00Z".parse().unwrap();
        let value = session(&token, now + SESSION);
        assert!(is_session(std::slice::from_ref(&token), &value, now));
        assert!(!is_session(std::slice::from_ref(&token), &value, now + SESSION));
        assert!(!is_session(&["another".into()], &value, now));
        let (until, tag) = value.split_once('.').unwrap();
        let longer = format!("{}.{tag}", until.parse::<i64>().unwrap() + 1);
        for odd in [longer.as_str(), "", ".", "1", until, "let-me-in"] {
            assert!(!is_session(std::slice::from_ref(&token), odd, now), "{odd}");
        }
    }

    #[test]
    fn only_names_that_nobody_else_can_have_are_this_machines() {
        let named = |host: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_str(host).unwrap());
            names_this_machine(&headers)
        };
        for own in ["localhost", "LocalHost:8081", "127.0.0.1", "127.3.2.1:80", "[::1]", "[::1]:9"]
        {
            assert!(named(own), "{own}");
        }
        for other in [
            "evil.example",
            "evil.example:8081",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "localhost@evil.example",
            "evil.example@localhost",
            "10.0.0.1:8081",
            "[2001:db8::1]",
            "::1",
            "",
            "localhost:8081/x",
        ] {
            assert!(!named(other), "{other}");
        }
        assert!(!names_this_machine(&HeaderMap::new()));
    }

    #[test]
    fn another_sites_form_is_told_by_its_origin() {
        let headers = |origin: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_static("relay.example:8443"));
            if let Some(origin) = origin {
                headers.insert(header::ORIGIN, HeaderValue::from_str(origin).unwrap());
            }
            headers
        };
        assert!(is_own_origin(&headers(Some("https://relay.example:8443"))));
        assert!(is_own_origin(&headers(None)));
        for other in ["https://evil.example", "null", "https://relay.example", "https://"] {
            assert!(!is_own_origin(&headers(Some(other))), "{other}");
        }
    }
}
