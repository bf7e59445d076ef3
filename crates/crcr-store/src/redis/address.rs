//! The address of a Redis server, with its password.

use std::fmt;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use redis::IntoConnectionInfo as _;
use url::{Host, Url};

/// Keys begin with this, unless the address has `?prefix=`.
const DEFAULT_PREFIX: &str = "crcr";

/// `redis://` or `rediss://`, with `[USER:PASSWORD@]HOST[:PORT][/DATABASE][?prefix=NAME]`. It never prints
/// the password.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl {
    url: Url,
    prefix: String,
}

impl RedisUrl {
    /// The error says what was expected and never repeats a password.
    pub fn parse(text: &str) -> Result<Self, String> {
        const EXPECTED: &str =
            "expected rediss://USER:PASSWORD@HOST:PORT/DATABASE, or redis:// without TLS";
        let mut url = Url::parse(text).map_err(|_| EXPECTED.to_owned())?;
        if !matches!(url.scheme(), "redis" | "rediss") || url.host().is_none() {
            return Err(EXPECTED.to_owned());
        }
        if url.fragment().is_some() {
            return Err("nothing may follow `#`: certificates are always verified".to_owned());
        }
        let mut prefix = DEFAULT_PREFIX.to_owned();
        for (name, value) in url.query_pairs() {
            if name != "prefix" {
                return Err(format!("`?{name}=` isn't known: the only one is `?prefix=NAME`"));
            }
            prefix = value.into_owned();
        }
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if prefix.is_empty() || prefix.len() > 64 || !prefix.bytes().all(is_plain) {
            return Err("`?prefix=` has 1 to 64 letters, digits, `-`, `_` or `.`".to_owned());
        }
        url.set_query(None);
        let parsed = Self { url, prefix };
        parsed.connection_info().map_err(|error| error.to_string())?;
        Ok(parsed)
    }

    /// From the settings of the deployed relay: `HOST[:PORT]`, and `USER:PASSWORD` or `PASSWORD`.
    pub fn from_endpoint(endpoint: &str, login: Option<&str>, tls: bool) -> Result<Self, String> {
        let expected =
            || format!("`{endpoint}`: expected HOST or HOST:PORT; a URL is for CRCR_STORE");
        if endpoint.contains(['/', '@', '?', '#']) {
            return Err(expected());
        }
        let scheme = if tls { "rediss" } else { "redis" };
        let mut parsed = Self::parse(&format!("{scheme}://{endpoint}")).map_err(|_| expected())?;
        if let Some(login) = login {
            let (user, password) = login.split_once(':').unwrap_or(("", login));
            // `Url` leaves a `%` as it is.
            let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
            let set = parsed.url.set_username(&encoded(user));
            set.and_then(|()| parsed.url.set_password(Some(&encoded(password))))
                .map_err(|()| expected())?;
        }
        Ok(parsed)
    }

    /// Whether a password is sent to another machine without encryption.
    pub fn exposes_password(&self) -> bool {
        let is_local = match self.url.host() {
            // For `redis://`, addresses aren't parsed by the URL standard's rules.
            Some(Host::Domain(name)) => {
                name == "localhost"
                    || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
            }
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
            None => false,
        };
        self.url.scheme() == "redis" && self.url.password().is_some() && !is_local
    }

    pub(crate) fn connection_info(&self) -> redis::RedisResult<redis::ConnectionInfo> {
        self.url.as_str().into_connection_info()
    }

    /// What every key begins with. The braces make Redis Cluster put all keys into one slot, which
    /// scripts need.
    pub(crate) fn key_prefix(&self) -> String {
        format!("{{{}}}", self.prefix)
    }
}

impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = self.url.host_str().unwrap_or_default();
        write!(f, "{}://{host}:{}", self.url.scheme(), self.url.port().unwrap_or(6379))?;
        write!(f, "{}", self.url.path().trim_end_matches('/'))
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_shows_no_password_and_takes_both_forms() {
        let url =
            RedisUrl::parse("rediss://relay:s3cr%2Ft@redis.test:7000/2?prefix=crcr.a").unwrap();
        assert_eq!(url.to_string(), "rediss://redis.test:7000/2");
        assert!(!format!("{url:?}").contains("s3cr"));
        assert_eq!(url.key_prefix(), "{crcr.a}");
        let info = url.connection_info().unwrap();
        assert_eq!(info.redis_settings().password(), Some("s3cr/t"));
        assert_eq!(info.redis_settings().username(), Some("relay"));
        assert_eq!(info.redis_settings().db(), 2);
        for (login, user, password) in
            [("a/b@c", None, "a/b@c"), ("relay:p:w%41", Some("relay"), "p:w%41")]
        {
            let url = RedisUrl::from_endpoint("redis.test:7000", Some(login), false).unwrap();
            let info = url.connection_info().unwrap();
            assert_eq!(info.redis_settings().username(), user);
            assert_eq!(info.redis_settings().password(), Some(password));
            assert!(url.exposes_password());
        }
        let url = RedisUrl::from_endpoint("10.0.0.1", None, true).unwrap();
        assert_eq!(url.to_string(), "rediss://10.0.0.1:6379");
        for local in ["redis://:x@localhost", "redis://:x@127.0.0.1", "redis://:x@[::1]:7"] {
            assert!(!RedisUrl::parse(local).unwrap().exposes_password(), "{local}");
        }
    }

    #[test]
    fn wrong_address_is_refused_without_its_password() {
        for wrong in [
            "redis:s3cret",
            "http://relay:s3cret@redis.test",
            "rediss://relay:s3cret@redis.test/#insecure",
            "redis://relay:s3cret@redis.test/nine",
            "redis://relay:s3cret@redis.test?prefix={a}",
            "redis://relay:s3cret@redis.test?prefix=",
            "redis://relay:s3cret@redis.test?protocol=resp3",
        ] {
            let why = RedisUrl::parse(wrong).unwrap_err();
            assert!(!why.contains("s3cret"), "{why}");
        }
        for wrong in ["redis://redis.test", "redis.test/1", "", "a:b:c"] {
            assert!(RedisUrl::from_endpoint(wrong, None, false).is_err(), "{wrong}");
        }
    }
}
