//! Which addresses a secret may be sent to.

use url::Url;

/// Whether what is sent there can't be read on the way: https, or http on this machine.
pub fn is_secure(url: &Url) -> bool {
    let loopback = url.host().is_some_and(|host| is_loopback(&host));
    url.scheme() == "https" || (url.scheme() == "http" && loopback)
}

/// Whether a host is this machine by a name or address that nobody else can give.
pub fn is_loopback<S: AsRef<str>>(host: &url::Host<S>) -> bool {
    match host {
        url::Host::Domain(name) => name.as_ref() == "localhost",
        url::Host::Ipv4(address) => address.is_loopback(),
        url::Host::Ipv6(address) => address.is_loopback(),
    }
}
