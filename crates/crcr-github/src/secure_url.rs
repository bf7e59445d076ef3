//! Which addresses a secret may be sent to.

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

use url::{Host, Url};

/// An address that a token may be sent to: https to any host, http to this machine only.
///
/// This machine is `localhost` or an address in 127.0.0.0/8 or `::1`. A name below `.localhost` is
/// not: some resolvers ask the network for it. A user name or password in the URL is refused,
/// because addresses are printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecureUrl(Url);

/// Why a text isn't a [`SecureUrl`]. The message follows the name of the setting, and doesn't
/// repeat the text, which may hold a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SecureUrlError {
    #[error("isn't a URL: {0}")]
    Parse(#[from] url::ParseError),
    #[error("isn't an https URL; http is allowed for `localhost` and loopback addresses only")]
    Insecure,
    #[error("has a user name or password in it")]
    Credentials,
}

impl FromStr for SecureUrl {
    type Err = SecureUrlError;

    fn from_str(text: &str) -> Result<Self, SecureUrlError> {
        Url::parse(text.trim())?.try_into()
    }
}

impl TryFrom<Url> for SecureUrl {
    type Error = SecureUrlError;

    fn try_from(url: Url) -> Result<Self, SecureUrlError> {
        if !url.username().is_empty() || url.password().is_some() {
            return Err(SecureUrlError::Credentials);
        }
        let secure = match url.scheme() {
            "https" => url.has_host(),
            "http" => url.host().is_some_and(|host| is_loopback(&host)),
            _ => false,
        };
        if secure { Ok(Self(url)) } else { Err(SecureUrlError::Insecure) }
    }
}

impl Deref for SecureUrl {
    type Target = Url;

    fn deref(&self) -> &Url {
        &self.0
    }
}

impl From<SecureUrl> for Url {
    fn from(url: SecureUrl) -> Self {
        url.0
    }
}

impl fmt::Display for SecureUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Whether a host is this machine under a name or address that no other machine can have.
pub fn is_loopback<S: AsRef<str>>(host: &Host<S>) -> bool {
    match host {
        Host::Domain(name) => name.as_ref() == "localhost",
        Host::Ipv4(address) => address.is_loopback(),
        Host::Ipv6(address) => address.is_loopback(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_go_to_https_or_to_this_machine_only() {
        for fine in [
            "https://api.github.com",
            " https://relay.test/x?y=1 ",
            "http://127.0.0.1:9",
            "http://127.8.8.8",
            "http://localhost:9",
            "http://[::1]:9",
        ] {
            assert!(fine.parse::<SecureUrl>().is_ok(), "{fine}");
        }
        for (bad, message) in [
            ("relay.test", "isn't a URL: relative URL without a base"),
            ("https://", "isn't a URL: empty host"),
            ("http://10.0.0.1", SecureUrlError::Insecure.to_string().as_str()),
            ("http://localhost.evil.test", "isn't an https URL"),
            ("http://127.0.0.1.evil.test", "isn't an https URL"),
            ("http://relay.localhost", "isn't an https URL"),
            ("ftp://localhost", "isn't an https URL"),
            ("file:///etc/passwd", "isn't an https URL"),
            ("https://token@relay.test", "has a user name or password in it"),
            ("https://:secret@relay.test", "has a user name or password in it"),
        ] {
            let error = bad.parse::<SecureUrl>().unwrap_err().to_string();
            assert!(error.starts_with(message) && !error.contains("secret"), "{bad}: {error}");
        }
    }
}
