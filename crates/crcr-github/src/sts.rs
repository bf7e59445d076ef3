//! Where a job's OIDC token becomes AWS credentials: one unsigned form POST to STS, XML back.
//!
//! <https://docs.aws.amazon.com/STS/latest/APIReference/API_AssumeRoleWithWebIdentity.html>

use std::time::Duration;

use jiff::Timestamp;
use reqwest::header::{DATE, HeaderMap};
use reqwest::{Client, StatusCode};
use secrecy::{ExposeSecret as _, SecretString};
use url::Url;

use crate::SecureUrl;
use crate::http;

/// The largest answer that is read, in bytes.
const MAX_ANSWER_BYTES: usize = 256 * 1024;

#[derive(Debug, Clone)]
pub struct AssumeRole {
    /// Where STS answers: [`regional_endpoint`] or the user's own.
    pub endpoint: SecureUrl,
    pub role_arn: String,
    /// 2 to 64 of `[A-Za-z0-9_+=,.@-]`.
    pub session_name: String,
    /// 900 to 43200.
    pub duration_seconds: u32,
    /// A JSON policy that narrows the session, at most 2,048 characters.
    pub policy: Option<String>,
    /// ARNs of managed policies that narrow the session, at most ten.
    pub policy_arns: Vec<String>,
}

#[derive(Debug, Clone)]
pub struct Credentials {
    /// The key's name. Not secret by itself, but masked by custom.
    pub access_key_id: String,
    pub secret_access_key: SecretString,
    /// Goes with every signed request.
    pub session_token: SecretString,
    pub expiration: Timestamp,
    /// `arn:PARTITION:sts::ACCOUNT:assumed-role/ROLE/SESSION`.
    pub assumed_role_arn: String,
}

/// Why there are no credentials.
#[derive(Debug, thiserror::Error)]
pub enum StsError {
    /// STS said why, in its own words.
    #[error("{code}: {message}")]
    Answer {
        code: String,
        /// AWS's text, on one line.
        message: String,
        status: StatusCode,
        /// How long to wait, if it said so.
        retry_after: Option<Duration>,
    },
    /// No answer, or one that STS doesn't give.
    #[error(transparent)]
    Http(#[from] http::Error),
}

/// What to do about an [`StsError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// `AccessDenied`: final, but for seconds after a policy changed.
    Denied,
    Refused,
    /// The token is too old: mint another.
    Expired,
    /// Throttled, a fault of the service, or no answer: worth another try.
    Transient,
    /// An answer that is not STS's: a proxy, a wrong endpoint.
    Foreign,
}

impl StsError {
    /// What to do about it.
    pub fn class(&self) -> Class {
        match self {
            Self::Answer { code, message, status, .. } => match code.as_str() {
                "AccessDenied" => Class::Denied,
                "ExpiredTokenException" | "ExpiredToken" => Class::Expired,
                "IDPCommunicationError" => Class::Transient,
                // STS could not read the issuer's keys: its own trouble in the coat of a refusal.
                "InvalidIdentityToken" if message.contains("retrieve verification key") => {
                    Class::Transient
                }
                code if code.starts_with("Throttl") || code == "RequestLimitExceeded" => {
                    Class::Transient
                }
                _ if status.is_server_error() || status.as_u16() == 429 => Class::Transient,
                _ => Class::Refused,
            },
            Self::Http(error) if error.is_transient() => Class::Transient,
            Self::Http(_) => Class::Foreign,
        }
    }

    /// How long STS asked to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Answer { retry_after, .. } => *retry_after,
            Self::Http(error) => error.retry_after(),
        }
    }
}

/// An answer, good or bad, and what the clock of STS said when it gave it.
#[derive(Debug)]
pub struct Answered {
    pub result: Result<Credentials, StsError>,
    /// The header `Date`.
    pub server_time: Option<Timestamp>,
}

/// Asks STS once, for at most `limit`. Retrying is the caller's, who may need a fresh token.
pub async fn assume_role_with_web_identity(
    client: &Client,
    request: &AssumeRole,
    token: &SecretString,
    limit: Duration,
) -> Answered {
    let duration = request.duration_seconds.to_string();
    let mut form = vec![
        ("Action".to_owned(), "AssumeRoleWithWebIdentity"),
        ("Version".to_owned(), "2011-06-15"),
        ("RoleArn".to_owned(), &request.role_arn),
        ("RoleSessionName".to_owned(), &request.session_name),
        ("DurationSeconds".to_owned(), &duration),
        ("WebIdentityToken".to_owned(), token.expose_secret()),
    ];
    form.extend(request.policy.as_deref().map(|policy| ("Policy".to_owned(), policy)));
    for (n, arn) in request.policy_arns.iter().enumerate() {
        form.push((format!("PolicyArns.member.{}.arn", n + 1), arn));
    }
    let post = client.post(Url::from(request.endpoint.clone())).form(&form).timeout(limit);
    match http::send_once(post).await {
        Ok(response) => {
            let server_time = date(response.headers());
            let result = match http::read(response, MAX_ANSWER_BYTES).await {
                Ok(body) => credentials(&body).map_err(StsError::from),
                Err(error) => Err(error.into()),
            };
            Answered { result, server_time }
        }
        Err(error) => {
            let server_time = match &error {
                http::Error::Status { headers, .. } => date(headers),
                _ => None,
            };
            Answered { result: Err(refusal(error)), server_time }
        }
    }
}

/// The endpoint of a region, in whichever partition it is. Refuses what can't be a region's name.
///
/// <https://docs.aws.amazon.com/general/latest/gr/sts.html>
pub fn regional_endpoint(region: &str) -> Option<SecureUrl> {
    let letters = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if !region.contains('-') || region.len() > 32 || !region.chars().all(letters) {
        return None;
    }
    format!("https://sts.{region}.{}/", domain_of(region)).parse().ok()
}

/// The domain of AWS's services in the partition of a region.
pub fn domain_of(region: &str) -> &'static str {
    const DOMAINS: [(&str, &str); 6] = [
        ("cn-", "amazonaws.com.cn"),
        ("us-iso-", "c2s.ic.gov"),
        ("us-isob-", "sc2s.sgov.gov"),
        ("us-isof-", "csp.hci.ic.gov"),
        ("eu-isoe-", "cloud.adc-e.uk"),
        ("eusc-", "amazonaws.eu"),
    ];
    let found = DOMAINS.iter().find(|(prefix, _)| region.starts_with(prefix));
    found.map_or("amazonaws.com", |(_, domain)| domain)
}

/// What the clock of the server said: the header `Date`.
pub fn date(headers: &HeaderMap) -> Option<Timestamp> {
    let text = headers.get(DATE)?.to_str().ok()?;
    jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text).ok()
}

fn credentials(xml: &[u8]) -> Result<Credentials, http::Error> {
    let leaf = |name: &str| {
        first_leaf(xml, name).filter(|text| !text.is_empty()).ok_or_else(|| {
            http::Error::Malformed(format!("no `{name}` in what should be credentials"))
        })
    };
    let expiration = leaf("Expiration")?;
    Ok(Credentials {
        access_key_id: leaf("AccessKeyId")?,
        secret_access_key: leaf("SecretAccessKey")?.into(),
        session_token: leaf("SessionToken")?.into(),
        expiration: expiration.parse().map_err(|_| {
            http::Error::Malformed("`Expiration` of the credentials is no time".to_owned())
        })?,
        assumed_role_arn: leaf("Arn")?,
    })
}

/// The error that a failed request carries: AWS's own where the body has one.
fn refusal(error: http::Error) -> StsError {
    let http::Error::Status { status, retry_after, body, .. } = &error else {
        return error.into();
    };
    let Some(code) = first_leaf(body, "Code").filter(|code| !code.is_empty()) else {
        return error.into();
    };
    let message = first_leaf(body, "Message").unwrap_or_default();
    let message = message.split_whitespace().collect::<Vec<_>>().join(" ");
    StsError::Answer { code, message, status: *status, retry_after: *retry_after }
}

/// The text of the first element called `name` in an answer of AWS, whatever its namespace, that
/// holds only text.
pub fn first_leaf(xml: &[u8], name: &str) -> Option<String> {
    use quick_xml::events::Event;
    let mut reader = quick_xml::Reader::from_reader(xml);
    let mut text: Option<String> = None;
    loop {
        match reader.read_event().ok()? {
            Event::Start(tag) => {
                text = (tag.local_name().into_inner() == name).then(String::new);
            }
            Event::Text(part) => {
                if let Some(text) = &mut text {
                    text.push_str(&part);
                }
            }
            Event::GeneralRef(reference) => {
                if let Some(text) = &mut text {
                    match reference.resolve_char_ref().ok()? {
                        Some(c) => text.push(c),
                        None => {
                            text.push_str(quick_xml::escape::resolve_predefined_entity(
                                &reference,
                            )?);
                        }
                    }
                }
            }
            Event::CData(part) => {
                if let Some(text) = &mut text {
                    text.push_str(&part);
                }
            }
            Event::End(_) => {
                if let Some(text) = text.take() {
                    return Some(text.trim().to_owned());
                }
            }
            Event::Eof => return None,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
      <AssumeRoleWithWebIdentityResult>
        <SubjectFromWebIdentityToken>repo:a/b</SubjectFromWebIdentityToken>
        <AssumedRoleUser>
          <Arn>arn:aws:sts::123456789012:assumed-role/ci/s</Arn>
          <AssumedRoleId>AROA:s</AssumedRoleId>
        </AssumedRoleUser>
        <Credentials>
          <SessionToken>a+b/c&amp;d&#x3D;</SessionToken>
          <SecretAccessKey><![CDATA[sec<ret]]></SecretAccessKey>
          <Expiration>2026-11-20T15:00:00Z</Expiration>
          <AccessKeyId>ASIAEXAMPLE</AccessKeyId>
        </Credentials>
      </AssumeRoleWithWebIdentityResult>
    </AssumeRoleWithWebIdentityResponse>"#;

    #[test]
    fn the_answer_is_read_with_its_entities() {
        let got = credentials(GOOD.as_bytes()).unwrap();
        assert_eq!(got.access_key_id, "ASIAEXAMPLE");
        assert_eq!(got.secret_access_key.expose_secret(), "sec<ret");
        assert_eq!(got.session_token.expose_secret(), "a+b/c&d=");
        assert_eq!(got.expiration.to_string(), "2026-11-20T15:00:00Z");
        assert_eq!(got.assumed_role_arn, "arn:aws:sts::123456789012:assumed-role/ci/s");
        assert!(!format!("{got:?}").contains("sec<ret"), "a debug print hides the secrets");
    }

    #[test]
    fn an_answer_without_credentials_is_malformed_and_named() {
        let cut = GOOD.replace("SecretAccessKey", "Other");
        let error = credentials(cut.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("`SecretAccessKey`"), "{error}");
        let error = credentials(b"<html><body>login</body></html>").unwrap_err().to_string();
        assert!(error.contains("`Expiration`"), "{error}");
        assert!(credentials(&GOOD.as_bytes()[..400]).is_err(), "a cut answer gives nothing");
    }

    fn answer(status: u16, code: &str, message: &str) -> StsError {
        let body = format!(
            "<ErrorResponse><Error><Type>Sender</Type><Code>{code}</Code>\
             <Message>{message}</Message></Error><RequestId>r</RequestId></ErrorResponse>"
        );
        refusal(http::Error::Status {
            status: StatusCode::from_u16(status).unwrap(),
            retry_after: None,
            headers: Box::default(),
            body: body.into(),
        })
    }

    #[test]
    fn every_refusal_has_its_class() {
        let table = [
            (403, "AccessDenied", "Not authorized to perform sts:Assume", Class::Denied),
            (400, "InvalidIdentityToken", "Incorrect token audience", Class::Refused),
            (
                400,
                "InvalidIdentityToken",
                "Couldn't retrieve verification key from your identity provider",
                Class::Transient,
            ),
            (400, "ExpiredTokenException", "Token expired", Class::Expired),
            (400, "IDPCommunicationError", "Error communicating with the IdP", Class::Transient),
            (400, "Throttling", "Rate exceeded", Class::Transient),
            (400, "ThrottlingException", "Rate exceeded", Class::Transient),
            (429, "TooManyRequests", "slow", Class::Transient),
            (503, "ServiceUnavailable", "", Class::Transient),
            (500, "InternalFailure", "", Class::Transient),
            (400, "ValidationError", "1 validation error", Class::Refused),
            (400, "PackedPolicyTooLarge", "", Class::Refused),
            (403, "RegionDisabledException", "", Class::Refused),
            (403, "IDPRejectedClaim", "", Class::Refused),
        ];
        for (status, code, message, class) in table {
            assert_eq!(answer(status, code, message).class(), class, "{status} {code} {message}");
        }
        let page = |status| {
            refusal(http::Error::Status {
                status,
                retry_after: None,
                headers: Box::default(),
                body: "<html>proxy</html>".into(),
            })
        };
        assert_eq!(page(StatusCode::FORBIDDEN).class(), Class::Foreign);
        assert_eq!(page(StatusCode::BAD_GATEWAY).class(), Class::Transient);
    }

    #[test]
    fn every_partition_has_its_endpoint() {
        for (region, host) in [
            ("us-east-1", "sts.us-east-1.amazonaws.com"),
            ("us-gov-west-1", "sts.us-gov-west-1.amazonaws.com"),
            ("cn-north-1", "sts.cn-north-1.amazonaws.com.cn"),
            ("us-iso-east-1", "sts.us-iso-east-1.c2s.ic.gov"),
            ("us-isob-east-1", "sts.us-isob-east-1.sc2s.sgov.gov"),
            ("us-isof-south-1", "sts.us-isof-south-1.csp.hci.ic.gov"),
            ("eu-isoe-west-1", "sts.eu-isoe-west-1.cloud.adc-e.uk"),
            ("eusc-de-east-1", "sts.eusc-de-east-1.amazonaws.eu"),
        ] {
            assert_eq!(regional_endpoint(region).unwrap().host_str(), Some(host));
        }
        for bad in ["", "us", "evil.com/", "us-east-1.evil.com", "US-EAST-1", "a-b@c"] {
            assert_eq!(regional_endpoint(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_clock_of_the_server_is_read() {
        let headers =
            HeaderMap::from_iter([(DATE, "Sun, 06 Nov 1994 08:49:37 GMT".parse().unwrap())]);
        assert_eq!(date(&headers).unwrap().to_string(), "1994-11-06T08:49:37Z");
        assert_eq!(date(&HeaderMap::new()), None);
    }
}
