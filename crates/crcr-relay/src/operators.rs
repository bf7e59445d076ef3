//! Who may see the operators' pages, and how a browser comes to be let in.
//!
//! On the public listener operators show the admin token, as a bearer or once in a form that sets
//! the cookie `crcr_admin`; everybody else finds nothing there. The cookie holds no token: it is an
//! end of validity under a MAC whose key is the token, so that a changed token ends every session.

use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::{constant_time, hmac};
use axum::Form;
use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Redirect, Response};
use jiff::Timestamp;
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;

use crate::answer::Refusal;
use crate::config::is_loopback;
use crate::hud::pages::login;
use crate::relay::Relay;
use crate::router::not_found;
use crate::store::{Batch, Charge, Commit, Key};

/// Where an operator logs in, on the public listener.
pub(crate) const LOGIN: &str = "/crcr/login";
/// Where a browser goes from there.
pub(crate) const HOME: &str = "/crcr/deliveries";
const COOKIE: &str = "crcr_admin";
/// How long a browser stays logged in.
const SESSION: Duration = Duration::from_secs(12 * 3600);
/// Tries to log in, of everybody together.
const TRIES_PER_MINUTE: u32 = 10;
/// The largest form that is read, in bytes.
pub(crate) const FORM_BYTES: usize = 4096;

/// Lets operators through, and tells everybody else that there is nothing.
pub(crate) async fn only(
    State(relay): State<Arc<Relay>>,
    request: Request,
    next: Next,
) -> Response {
    if is_admin(&relay, request.headers()) { next.run(request).await } else { not_found() }
}

/// On loopback, where no token is asked for: lets those through who name this machine, or show the
/// token all the same. A web page can have its own name lead to 127.0.0.1 (DNS rebinding) and would
/// read and press everything from within an operator's browser.
pub(crate) async fn by_a_name_of_this_machine(
    State(relay): State<Arc<Relay>>,
    request: Request,
    next: Next,
) -> Response {
    let headers = request.headers();
    if names_this_machine(headers) || is_admin(&relay, headers) {
        return next.run(request).await;
    }
    let why = format!(
        "`Host` is `{}`, which is no name of this machine: ask for http://localhost and this port, \
         or send the admin token as a bearer",
        text(headers, header::HOST)
    );
    Refusal::new(StatusCode::FORBIDDEN, why).into_response()
}

/// Whether `Host` is `localhost` or a loopback address, with or without a port.
fn names_this_machine(headers: &HeaderMap) -> bool {
    let host = text(headers, header::HOST);
    let authority = host.parse::<Authority>().ok().filter(|_| !host.contains('@'));
    authority
        .and_then(|authority| url::Host::parse(authority.host()).ok())
        .is_some_and(|host| is_loopback(&host))
}

/// Whether a request carries the admin token as a bearer, or the cookie of a login.
#[must_use]
pub(crate) fn is_admin(relay: &Relay, headers: &HeaderMap) -> bool {
    let Some(token) = &relay.config.admin_token else { return false };
    let bearer = text(headers, header::AUTHORIZATION).strip_prefix("Bearer ");
    bearer.is_some_and(|given| is_token(token, given))
        || cookie(headers).is_some_and(|given| is_session(token, given, relay.now()))
}

/// Whether a request comes from a browser that has logged in.
#[must_use]
pub(crate) fn has_cookie(headers: &HeaderMap) -> bool {
    cookie(headers).is_some()
}

/// Whether `Origin`, where a browser sends one, names the host that was asked.
#[must_use]
pub(crate) fn is_own_origin(headers: &HeaderMap) -> bool {
    if !headers.contains_key(header::ORIGIN) {
        return true;
    }
    let host = text(headers, header::ORIGIN).split_once("://").map(|(_, host)| host);
    host.is_some_and(|host| !host.is_empty() && host == text(headers, header::HOST))
}

/// The form of the login; it can't be printed.
#[derive(Deserialize)]
pub(crate) struct Login {
    token: String,
}

/// `GET /crcr/login`: the form, where there is a token to show.
pub(crate) async fn form(State(relay): State<Arc<Relay>>, headers: HeaderMap) -> Response {
    if relay.config.admin_token.is_none() {
        return not_found();
    }
    if is_admin(&relay, &headers) {
        return Redirect::to(HOME).into_response();
    }
    login::page(None).into_response()
}

/// `POST /crcr/login`: sets the cookie when the token is right.
pub(crate) async fn log_in(
    State(relay): State<Arc<Relay>>,
    headers: HeaderMap,
    form: Result<Form<Login>, axum::extract::rejection::FormRejection>,
) -> Response {
    let Some(token) = &relay.config.admin_token else { return not_found() };
    let refused = |status: StatusCode, why: &str| (status, login::page(Some(why))).into_response();
    if !is_own_origin(&headers) {
        return refused(StatusCode::FORBIDDEN, "This form came from another site");
    }
    let Ok(Form(form)) = form else {
        return refused(StatusCode::BAD_REQUEST, "The form has no token");
    };
    let charge = Charge { bucket: Key::new(&["login"]), per_minute: TRIES_PER_MINUTE };
    match relay.commit(Batch { charge: Some(charge), ..Batch::default() }).await {
        Err(error) => return Refusal::unavailable(error.to_string()).into_response(),
        Ok(Commit::Limited(wait)) => {
            let mut answer =
                refused(StatusCode::TOO_MANY_REQUESTS, "Too many tries; wait for a minute");
            let seconds = HeaderValue::from(wait.as_secs().max(1));
            answer.headers_mut().insert(header::RETRY_AFTER, seconds);
            return answer;
        }
        Ok(Commit::Done | Commit::Conflict) => {}
    }
    if !is_token(token, &form.token) {
        tracing::warn!("a login with a wrong token was refused");
        return refused(StatusCode::FORBIDDEN, "This is not the admin token");
    }
    tracing::info!("an operator logged in");
    let until = relay.now() + SESSION;
    with_cookie(&headers, &session(token, until), SESSION)
}

/// `POST /crcr/logout`: drops the cookie.
pub(crate) async fn log_out(headers: HeaderMap) -> Response {
    if !is_own_origin(&headers) {
        return Refusal::new(StatusCode::FORBIDDEN, "Another site's request").into_response();
    }
    with_cookie(&headers, "", Duration::ZERO)
}

/// Sends the browser on with a cookie that no script reads and no other site's request carries.
fn with_cookie(headers: &HeaderMap, value: &str, age: Duration) -> Response {
    // A browser says by `Origin` how it came; only a plain connection gets a cookie for one.
    let plain = text(headers, header::ORIGIN).starts_with("http://");
    let secure = if plain { "" } else { "; Secure" };
    let age = age.as_secs();
    let cookie =
        format!("{COOKIE}={value}; Path=/; Max-Age={age}; HttpOnly; SameSite=Strict{secure}");
    ([(header::SET_COOKIE, cookie)], Redirect::to(HOME)).into_response()
}

fn is_token(token: &SecretString, given: &str) -> bool {
    let token = token.expose_secret().as_bytes();
    constant_time::verify_slices_are_equal(given.as_bytes(), token).is_ok()
}

/// `END.MAC`: the second until which the session holds.
fn session(token: &SecretString, until: Timestamp) -> String {
    let until = until.as_second();
    let tag = hmac::sign(&key(token), message(until).as_bytes());
    format!("{until}.{}", hex::encode(tag))
}

fn is_session(token: &SecretString, given: &str, now: Timestamp) -> bool {
    let Some((until, tag)) = given.split_once('.') else { return false };
    let (Ok(until), Ok(tag)) = (until.parse::<i64>(), hex::decode(tag)) else { return false };
    hmac::verify(&key(token), message(until).as_bytes(), &tag).is_ok() && now.as_second() < until
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
        assert!(is_session(&token, &value, now));
        assert!(!is_session(&token, &value, now + SESSION));
        assert!(!is_session(&SecretString::from("another"), &value, now));
        let (until, tag) = value.split_once('.').unwrap();
        let longer = format!("{}.{tag}", until.parse::<i64>().unwrap() + 1);
        for odd in [longer.as_str(), "", ".", "1", until, "let-me-in"] {
            assert!(!is_session(&token, odd, now), "{odd}");
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
