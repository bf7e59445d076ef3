//! `crcr relay health`: whether a running relay is ready, in one line.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use crcr_github::{http, is_loopback};
use serde_json::{Value, json};
use url::Url;

use crate::cli::DataFormat;
use crate::cli::relay::HealthArgs;
use crate::commands::github;
use crate::env_vars::{self, Env};
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;

/// The relay itself gives the store five seconds.
const TIME_LIMIT: Duration = Duration::from_secs(10);
const MAX_BYTES: usize = 64 * 1024;
const MAX_LINE_CHARS: usize = 500;

/// Exit code 0 if the relay is ready, 1 if it says why not, 2 if no relay answers.
pub async fn run(args: &HealthArgs, env: &Env, printer: &Printer) -> Outcome {
    let base = match &args.url {
        Some(url) => parse(url)?,
        None => {
            let listen = env.setting(env_vars::CRCR_LISTEN)?;
            own_address(listen.as_deref().map_or("127.0.0.1:8080", str::trim))?
        }
    };
    let url = format!("{}/readyz", base.as_str().trim_end_matches('/'));
    let is_here = base.host().is_some_and(|host| is_loopback(&host));
    let client = if is_here { http::direct_client() } else { http::client() };
    let client = client.map_err(github::no_client)?;
    let mut request = client.get(&url);
    // Without it, a listener that others can reach gives one word for each problem.
    let tokens = env.setting(env_vars::CRCR_ADMIN_TOKEN).ok().flatten().filter(|_| is_here);
    if let Some(token) = tokens.as_deref().and_then(|tokens| tokens.lines().next()) {
        request = request.bearer_auth(token.trim());
    }
    let answer = match tokio::time::timeout(TIME_LIMIT, ask(request)).await {
        Err(_) => Err(format!("no answer from {url} within {} s", TIME_LIMIT.as_secs())),
        Ok(Err(why)) => Err(format!("{url}: {why}")),
        Ok(Ok(answer)) if !answer["ready"].is_boolean() => {
            Err(format!("{url}: the answer isn't that of a relay"))
        }
        Ok(Ok(answer)) => Ok(answer),
    };
    let (code, line) = match (&answer, args.format) {
        (Err(why), DataFormat::Text) => (2, one_line(why)),
        (Err(why), DataFormat::Json) => (2, json!({ "problem": why }).to_string()),
        (Ok(answer), format) => {
            let is_ready = answer["ready"] == true;
            let line = match format {
                DataFormat::Json => answer.to_string(),
                DataFormat::Text => one_line(&match (is_ready, problems(answer).join("; ")) {
                    (true, none) if none.is_empty() => "ready".to_owned(),
                    (true, some) => format!("ready, but {some}"),
                    (false, none) if none.is_empty() => "not ready: it doesn't say why".to_owned(),
                    (false, some) => format!("not ready: {some}"),
                }),
            };
            (u8::from(!is_ready), line)
        }
    };
    printer.data_line(&line);
    Ok(ExitCode::from(code))
}

fn parse(text: &str) -> Result<Url, Failure> {
    let url = Url::parse(text).ok().filter(|url| {
        matches!(url.scheme(), "http" | "https")
            && url.query().is_none()
            && url.fragment().is_none()
    });
    url.ok_or_else(|| {
        Failure::unexpected("url", format!("`--url`: `{text}` isn't the address of a relay"))
            .hint("such as http://127.0.0.1:8080 or https://relay.example.com")
    })
}

/// Where this machine reaches a relay that listens on `listen`.
fn own_address(listen: &str) -> Result<Url, Failure> {
    let reached = match listen.parse::<SocketAddr>() {
        Ok(mut address) if address.ip().is_unspecified() => {
            address.set_ip(match address {
                SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
            });
            address.to_string()
        }
        _ => listen.to_owned(),
    };
    // `8080` alone would be the address 0.0.31.144, and a host alone its port 80.
    let port = reached.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    let url = Url::parse(&format!("http://{reached}")).ok().filter(|url| url.path() == "/");
    port.and(url).ok_or_else(|| {
        Failure::unexpected("url", format!("CRCR_LISTEN: `{listen}` isn't HOST:PORT"))
            .hint("set it as for `crcr relay serve`, or name the relay with `--url`")
    })
}

/// The body of `/readyz`, whatever its status.
async fn ask(request: reqwest::RequestBuilder) -> Result<Value, http::HttpError> {
    let body = match http::send_once(request).await {
        Ok(response) => http::read(response, MAX_BYTES).await?,
        Err(http::HttpError::Status { status, body, .. }) if status.as_u16() == 503 => body,
        Err(error) => return Err(error),
    };
    serde_json::from_slice(&body).map_err(|error| http::HttpError::Malformed(error.to_string()))
}

/// What keeps a relay from being ready, or from taking all reports.
fn problems(answer: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    if let Some(why) = answer["store"].as_str() {
        problems.push(format!("the store can't be written ({why})"));
    }
    if answer["allowlist"]["loaded"] == false {
        let why = answer["allowlist"]["problem"].as_str().unwrap_or("not read yet");
        problems.push(format!("no allowlist is in force ({why})"));
    }
    for issuer in answer["issuers"].as_array().into_iter().flatten() {
        if issuer["needed"] == true && issuer["has_keys"] == false {
            let name = issuer["issuer"].as_str().unwrap_or_default();
            let why = issuer["problem"].as_str().unwrap_or("not fetched yet");
            problems.push(format!("no keys of {name} ({why})"));
        }
    }
    problems
}

/// Without line breaks and other control characters, and not endless.
fn one_line(text: &str) -> String {
    let safe = text.chars().map(|char| if char.is_control() { ' ' } else { char });
    safe.take(MAX_LINE_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relay_on_all_addresses_is_asked_on_loopback() {
        for (listen, url) in [
            ("0.0.0.0:8080", "http://127.0.0.1:8080/"),
            ("[::]:8080", "http://[::1]:8080/"),
            ("127.0.0.1:9", "http://127.0.0.1:9/"),
            ("localhost:9", "http://localhost:9/"),
        ] {
            assert_eq!(own_address(listen).unwrap().as_str(), url);
        }
        for listen in
            ["what is this", "8080", ":8080", "127.0.0.1", "::1:8080x", "http://127.0.0.1:8080"]
        {
            assert!(own_address(listen).is_err(), "{listen}");
        }
    }
}
