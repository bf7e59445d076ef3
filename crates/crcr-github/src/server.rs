//! What follows from the address of a GitHub (`GITHUB_SERVER_URL`): github.com, a tenant of ghe.com, or an Enterprise
//! Server.

use url::Url;

/// The address of the REST API.
pub fn api_url(server_url: &str) -> Option<String> {
    let (url, host) = parse(server_url)?;
    Some(match host.as_str() {
        "github.com" => "https://api.github.com".to_owned(),
        tenant if tenant.ends_with(".ghe.com") => format!("https://api.{tenant}"),
        _ => format!("{}/api/v3", url.origin().ascii_serialization()),
    })
}

/// The issuer of the tokens of jobs, without its scheme, as AWS names an identity provider.
///
/// <https://docs.github.com/en/enterprise-server@latest/actions/reference/security/oidc>
pub fn oidc_issuer(server_url: &str) -> Option<String> {
    let (url, host) = parse(server_url)?;
    Some(match host.as_str() {
        "github.com" => "token.actions.githubusercontent.com".to_owned(),
        tenant if tenant.ends_with(".ghe.com") => format!("token.actions.{tenant}"),
        _ => {
            let origin = url.origin().ascii_serialization();
            format!("{}/_services/token", origin.split_once("://")?.1)
        }
    })
}

/// The address of the server, by that of its REST API. An API that is none of GitHub's is a stand-in for github.com's.
pub fn server_url(api_url: &Url) -> String {
    let host = api_url.host_str().unwrap_or_default();
    match host.strip_prefix("api.").filter(|tenant| tenant.ends_with(".ghe.com")) {
        Some(tenant) => format!("https://{tenant}"),
        None if api_url.path().trim_end_matches('/') == "/api/v3" => {
            api_url.origin().ascii_serialization()
        }
        None => "https://github.com".to_owned(),
    }
}

fn parse(server_url: &str) -> Option<(Url, String)> {
    let url = Url::parse(server_url.trim()).ok()?;
    let host = url.host_str()?.to_ascii_lowercase();
    Some((url, host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn api_and_issuer_follow_from_the_server_and_the_server_from_the_api() {
        for (server, api, issuer) in [
            (
                "https://github.com/",
                "https://api.github.com",
                "token.actions.githubusercontent.com",
            ),
            ("https://acme.ghe.com", "https://api.acme.ghe.com", "token.actions.acme.ghe.com"),
            (
                "https://ghe.test:8443/",
                "https://ghe.test:8443/api/v3",
                "ghe.test:8443/_services/token",
            ),
        ] {
            assert_eq!(api_url(server).as_deref(), Some(api), "{server}");
            assert_eq!(oidc_issuer(server).as_deref(), Some(issuer), "{server}");
            assert_eq!(server_url(&api.parse().unwrap()), server.trim_end_matches('/'));
        }
        assert_eq!(api_url("ghe.test"), None);
    }
}
