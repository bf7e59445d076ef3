//! AWS STS on loopback, with roles that trust an OIDC issuer. All fields of a request are checked.
//!
//! <https://docs.aws.amazon.com/STS/latest/APIReference/API_AssumeRoleWithWebIdentity.html>

use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Form, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use crcr_standin::server::{Bound, Peer, Server};
use crcr_standin::traffic::{Fault, Traffic};
use jiff::{SignedDuration, Timestamp};
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::jwk::JwkSet;
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use serde_json::Value;
use url::Url;

/// The operation to queue faults for in [`Sts::traffic`].
pub const OPERATION: &str = "AssumeRoleWithWebIdentity";

/// A role and its trust policy.
#[derive(Debug, Clone)]
pub struct Role {
    pub arn: String,
    /// The `iss` of trusted tokens, and the address of its keys.
    pub issuer: String,
    /// The `aud` of trusted tokens.
    pub audience: String,
    /// The `sub` of trusted tokens, which may end with `*`.
    pub subject: String,
    pub max_seconds: u32,
}

/// A request that got credentials.
#[derive(Debug, Clone)]
pub struct Granted {
    /// The form fields, without the token.
    pub form: BTreeMap<String, String>,
    pub token: String,
}

/// A running STS. Dropping it stops the server.
#[derive(Debug)]
pub struct Sts {
    server: Server,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    traffic: Traffic,
    known: Mutex<StsState>,
    client: reqwest::Client,
}

#[derive(Debug, Default)]
struct StsState {
    roles: Vec<Role>,
    granted: Vec<Granted>,
    clock_ahead: SignedDuration,
}

impl Sts {
    /// Starts on a free loopback port.
    pub fn start(roles: Vec<Role>) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        shared.known().roles = roles;
        let router = Router::new().route("/", post(answer)).with_state(shared.clone());
        let server = Bound::loopback()?.serve(router)?;
        Ok(Self { server, shared })
    }

    pub fn url(&self) -> &Url {
        self.server.url()
    }

    /// Counts calls and queues faults, for [`OPERATION`].
    pub fn traffic(&self) -> &Traffic {
        &self.shared.traffic
    }

    /// All requests that got credentials, in order.
    pub fn granted(&self) -> Vec<Granted> {
        self.shared.known().granted.clone()
    }

    /// Sets the header `Date` ahead of the machine's clock.
    pub fn set_clock_ahead(&self, by: SignedDuration) {
        self.shared.known().clock_ahead = by;
    }
}

impl Shared {
    fn known(&self) -> MutexGuard<'_, StsState> {
        self.known.lock()
    }
}

/// The access key and secret key of grant number `n`, from 1. The access key is as long as AWS's.
pub fn key(n: usize) -> (String, String) {
    (format!("ASIASTANDIN{n:09}"), format!("standin/secret+{n:025}"))
}

/// An error as STS writes it.
fn error_xml(code: &str, message: &str) -> String {
    format!(
        "<ErrorResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\">\n  <Error>\n    \
         <Type>Sender</Type>\n    <Code>{code}</Code>\n    <Message>{message}</Message>\n  \
         </Error>\n  <RequestId>00000000-0000-0000-0000-000000000000</RequestId>\n</ErrorResponse>\n"
    )
}

/// An error of STS, to queue in [`Sts::traffic`].
///
/// # Panics
/// When `status` isn't an HTTP status.
pub fn error(status: u16, code: &str, message: &str) -> Fault {
    let status = StatusCode::from_u16(status).expect("a test names a valid status");
    Fault::Answer { status, retry_after: None, body: error_xml(code, message) }
}

type Refusal = (u16, &'static str, String);

async fn answer(
    State(shared): State<Arc<Shared>>,
    peer: Peer,
    headers: HeaderMap,
    Form(form): Form<BTreeMap<String, String>>,
) -> Response {
    let mut response = match form.get("Action").map(String::as_str) {
        Some(OPERATION) => match shared.traffic.pass(OPERATION, &peer).await {
            Ok(_) => reply(assume(&shared, &headers, form).await),
            Err(fault) => fault,
        },
        Some("GetCallerIdentity") => reply(identify(&headers)),
        _ => reply(Err((400, "InvalidAction", "Could not find operation".to_owned()))),
    };
    let clock = Timestamp::now() + shared.known().clock_ahead;
    let date = clock.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
    if let Ok(date) = HeaderValue::from_str(&date) {
        response.headers_mut().insert(header::DATE, date);
    }
    response
}

fn reply(result: Result<String, Refusal>) -> Response {
    let (status, body) = match result {
        Ok(body) => (StatusCode::OK, body),
        Err((status, code, message)) => (
            StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            error_xml(code, &message),
        ),
    };
    (status, [(header::CONTENT_TYPE, "text/xml")], body).into_response()
}

fn invalid(what: &str) -> Refusal {
    (400, "ValidationError", format!("1 validation error detected: {what}"))
}

async fn assume(
    shared: &Shared,
    headers: &HeaderMap,
    mut form: BTreeMap<String, String>,
) -> Result<String, Refusal> {
    if headers.contains_key(header::AUTHORIZATION) {
        return Err(invalid("this request is not signed"));
    }
    if form.get("Version").map(String::as_str) != Some("2011-06-15") {
        return Err((400, "InvalidAction", "no such version".to_owned()));
    }
    let session = form.get("RoleSessionName").cloned().unwrap_or_default();
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_+=,.@-".contains(c);
    if !(2..=64).contains(&session.len()) || !session.chars().all(allowed) {
        return Err(invalid("roleSessionName"));
    }
    let seconds = form.get("DurationSeconds").map_or(Ok(3600), |text| text.parse::<u32>());
    let seconds = seconds.ok().filter(|n| (900..=43_200).contains(n));
    let seconds = seconds.ok_or_else(|| invalid("durationSeconds"))?;
    if let Some(policy) = form.get("Policy") {
        if policy.chars().count() > 2048 {
            return Err(invalid("policy"));
        }
        if serde_json::from_str::<Value>(policy).is_err() {
            return Err((400, "MalformedPolicyDocument", "Syntax errors in policy.".to_owned()));
        }
    }
    let token = form.remove("WebIdentityToken").unwrap_or_default();
    let arn = form.get("RoleArn").cloned().unwrap_or_default();
    let denied = || (403, "AccessDenied", format!("Not authorized to perform sts:{OPERATION}"));
    let role = shared.known().roles.iter().find(|role| role.arn == arn).cloned();
    let role = role.ok_or_else(denied)?;
    let claims = verify(shared, &role, &token).await?;
    let subject = claims["sub"].as_str().unwrap_or_default();
    let trusted = match role.subject.strip_suffix('*') {
        Some(start) => subject.starts_with(start),
        None => subject == role.subject,
    };
    if !trusted {
        return Err(denied());
    }
    if seconds > role.max_seconds {
        return Err(invalid("The requested DurationSeconds exceeds the MaxSessionDuration"));
    }
    let n = {
        let mut known = shared.known();
        known.granted.push(Granted { form, token });
        known.granted.len()
    };
    Ok(credentials(n, &role, &session, seconds, subject))
}

/// The claims of a token, after its signature, issuer, audience and time were checked.
async fn verify(shared: &Shared, role: &Role, token: &str) -> Result<Value, Refusal> {
    let bad = |message: &str| (400, "InvalidIdentityToken", message.to_owned());
    let head = jsonwebtoken::decode_header(token);
    let head = head.map_err(|_| bad("The ID Token provided is not a valid JWT."))?;
    let jwks = shared.client.get(format!("{}/.well-known/jwks", role.issuer)).send().await;
    let unreachable =
        || (400, "IDPCommunicationError", "Error communicating with the IdP".to_owned());
    let jwks = jwks.and_then(reqwest::Response::error_for_status).map_err(|_| unreachable())?;
    let jwks: JwkSet = jwks.json().await.map_err(|_| unreachable())?;
    let key = head.kid.and_then(|kid| jwks.find(&kid).cloned());
    let key = key.and_then(|jwk| DecodingKey::from_jwk(&jwk).ok());
    let key = key.ok_or_else(|| bad("No public key matches the token's key id"))?;
    let mut validation = Validation::new(Algorithm::RS256);
    validation.set_issuer(&[&role.issuer]);
    validation.set_audience(&[&role.audience]);
    validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
    let decoded = jsonwebtoken::decode::<Value>(token, &key, &validation);
    decoded.map(|data| data.claims).map_err(|error| match error.kind() {
        ErrorKind::ExpiredSignature => {
            (400, "ExpiredTokenException", "Token expired: current date/time is later".to_owned())
        }
        ErrorKind::InvalidAudience => bad("Incorrect token audience"),
        ErrorKind::InvalidIssuer => bad("No OpenIDConnect provider found in your account"),
        _ => bad("The ID Token's signature can't be verified"),
    })
}

fn credentials(n: usize, role: &Role, session: &str, seconds: u32, subject: &str) -> String {
    let (id, secret) = key(n);
    let parts: Vec<_> = role.arn.split(':').collect();
    let (partition, account) = (parts[1], parts[4]);
    let name = role.arn.rsplit('/').next().unwrap_or_default();
    let expiration = (Timestamp::now() + SignedDuration::from_secs(seconds.into())).as_second();
    let expiration = Timestamp::from_second(expiration).expect("a time of this century");
    format!(
        "<AssumeRoleWithWebIdentityResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\">
  <AssumeRoleWithWebIdentityResult>
    <SubjectFromWebIdentityToken>{subject}</SubjectFromWebIdentityToken>
    <Audience>{audience}</Audience>
    <AssumedRoleUser>
      <AssumedRoleId>AROASTANDIN000000001:{session}</AssumedRoleId>
      <Arn>arn:{partition}:sts::{account}:assumed-role/{name}/{session}</Arn>
    </AssumedRoleUser>
    <Provider>{provider}</Provider>
    <Credentials>
      <AccessKeyId>{id}</AccessKeyId>
      <SecretAccessKey>{secret}</SecretAccessKey>
      <SessionToken>standin//session+token&#x3D;{n}&amp;x</SessionToken>
      <Expiration>{expiration}</Expiration>
    </Credentials>
  </AssumeRoleWithWebIdentityResult>
  <ResponseMetadata><RequestId>00000000-0000-0000-0000-000000000000</RequestId></ResponseMetadata>
</AssumeRoleWithWebIdentityResponse>
",
        audience = role.audience,
        provider = role.issuer,
    )
}

/// The identity of the key that signed; the signature isn't checked.
fn identify(headers: &HeaderMap) -> Result<String, Refusal> {
    let signed = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let id = signed.and_then(|text| text.split("Credential=").nth(1)?.split('/').next());
    let id = id.ok_or((403, "MissingAuthenticationToken", "Request is not signed".to_owned()))?;
    if !id.starts_with("AKIA") {
        let message = "The security token included in the request is invalid.".to_owned();
        return Err((403, "InvalidClientTokenId", message));
    }
    Ok("<GetCallerIdentityResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\">\
        <GetCallerIdentityResult><Arn>arn:aws:iam::123456789012:user/runner</Arn>\
        <UserId>AIDASTANDIN</UserId><Account>123456789012</Account></GetCallerIdentityResult>\
        <ResponseMetadata><RequestId>r</RequestId></ResponseMetadata></GetCallerIdentityResponse>"
        .to_owned())
}
