//! `NO_PROXY` as GitHub's runner reads it. The HTTP clients, and git, know no ports, no `*.` and no brackets, and
//! some take `*` for names alone.

use std::env;

const PROXIES: [&str; 6] =
    ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"];

/// Changes the variables of this process and of those that it starts. No other thread may run yet.
#[expect(
    unsafe_code,
    clippy::disallowed_methods,
    reason = "the clients read them from the process"
)]
pub fn spell_out() {
    for name in ["NO_PROXY", "no_proxy"] {
        let Ok(value) = env::var(name) else { continue };
        let entries: Vec<_> = entries(&value).collect();
        // SAFETY: no other thread runs that could read the variables.
        unsafe { env::set_var(name, entries.join(",")) };
        if entries.contains(&"*") {
            for proxy in PROXIES {
                // SAFETY: as above.
                unsafe { env::remove_var(proxy) };
            }
        }
    }
}

fn entries(value: &str) -> impl Iterator<Item = &str> {
    let entries = value.split(|c: char| c == ',' || c.is_whitespace());
    entries.filter(|entry| !entry.is_empty()).map(|entry| {
        if let Some((address, _)) = entry.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            return address;
        }
        let host = match entry.split_once(':') {
            Some((host, port)) if port.parse::<u16>().is_ok() && !host.is_empty() => host,
            _ => entry,
        };
        host.strip_prefix('*').filter(|domain| domain.starts_with('.')).unwrap_or(host)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_brackets_and_stars_are_left_out() {
        for (value, expected) in [
            ("a.example, minio.internal:9000", "a.example,minio.internal"),
            ("10.0.0.1:9000 10.0.0.0/8", "10.0.0.1,10.0.0.0/8"),
            ("[::1]:9000,[fd00::2],fd00::1,::1", "::1,fd00::2,fd00::1,::1"),
            ("*.svc.cluster.local,.corp,*", ".svc.cluster.local,.corp,*"),
            (", ,", ""),
        ] {
            assert_eq!(entries(value).collect::<Vec<_>>().join(","), expected);
        }
    }
}
