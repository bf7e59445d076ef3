//! Root certificates that a runner names for its other programs, such as that of a proxy which opens TLS. The HTTP
//! clients here know `SSL_CERT_FILE` alone.

use std::fs::File;
use std::io::{Read as _, Write as _};

use tempfile::NamedTempFile;

use crate::env_vars::{self, Env};

/// Where systems keep all their roots in one file.
const BUNDLES: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
];
const MAX_BYTES: u64 = 8 << 20;

/// Changes the variables of this process, in which no other thread may run yet. The file has to stay until it ends.
#[expect(unsafe_code, reason = "the clients read it from the process")]
pub fn add(env: &Env) -> Option<NamedTempFile> {
    // Elsewhere the system's own store decides.
    let file = bundle(env, &BUNDLES).filter(|_| cfg!(target_os = "linux"))?;
    // SAFETY: no other thread runs that could read the variables.
    unsafe { std::env::set_var(env_vars::SSL_CERT_FILE, file.path()) };
    Some(file)
}

/// The system's roots with those that the environment names. `None` if it names none, or itself says which to use.
fn bundle(env: &Env, system: &[&str]) -> Option<NamedTempFile> {
    if [env_vars::SSL_CERT_FILE, env_vars::SSL_CERT_DIR].iter().any(|name| env.get(name).is_some())
    {
        return None;
    }
    let named = [env_vars::AWS_CA_BUNDLE, env_vars::NODE_EXTRA_CA_CERTS];
    let extra: Vec<_> = named.iter().filter_map(|name| read(env.get(name)?)).collect();
    if extra.is_empty() {
        return None;
    }
    let mut file = NamedTempFile::new().ok()?;
    for roots in system.iter().find_map(|path| read(path)).iter().chain(&extra) {
        file.write_all(roots).and_then(|()| file.write_all(b"\n")).ok()?;
    }
    Some(file)
}

fn read(path: &str) -> Option<Vec<u8>> {
    let mut text = vec![];
    File::open(path).ok()?.take(MAX_BYTES).read_to_end(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::Arc;
    use std::time::Instant;

    use crcr_github::http::{self, RetryPolicy};
    use rustls::crypto::aws_lc_rs;

    use super::*;

    #[test]
    fn roots_for_node_and_for_aws_are_added_to_those_of_the_system() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, name).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let (system, aws, node) = (write("system"), write("aws"), write("node"));
        let made = |variables: &[(&str, &str)]| {
            let env: Env = variables.iter().copied().collect();
            let file = bundle(&env, &["/nowhere", &system, "/etc/passwd"])?;
            Some(std::fs::read_to_string(file.path()).unwrap())
        };
        let (aws, node) = (("AWS_CA_BUNDLE", &*aws), ("NODE_EXTRA_CA_CERTS", &*node));
        assert_eq!(made(&[node]).unwrap(), "system\nnode\n");
        assert_eq!(made(&[aws, node]).unwrap(), "system\naws\nnode\n");
        assert_eq!(made(&[]), None);
        assert_eq!(made(&[("NODE_EXTRA_CA_CERTS", "/nowhere")]), None);
        assert_eq!(made(&[node, ("SSL_CERT_FILE", "/mine")]), None, "the user has said which");
    }

    /// Another try after a minute finds the same certificate.
    #[tokio::test]
    async fn certificate_that_nobody_here_trusts_fails_at_once_and_names_the_variable() {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let _ = aws_lc_rs::default_provider().install_default();
        let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key =
            rustls::pki_types::PrivateKeyDer::try_from(own.signing_key.serialize_der()).unwrap();
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![own.cert.der().clone()], key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("https://localhost:{}/", listener.local_addr().unwrap().port());
        let config = Arc::new(config);
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let session = rustls::ServerConnection::new(config.clone()).unwrap();
                let mut tls = rustls::StreamOwned::new(session, connection.unwrap());
                let _ = tls.read(&mut [0; 1024]);
            }
        });
        let (client, started) = (http::client().unwrap(), Instant::now());
        let error = http::send(RetryPolicy::CALL, || client.get(&url)).await.unwrap_err();
        assert!(!error.is_transient() && started.elapsed().as_secs() < 30, "{error}");
        assert!(error.to_string().contains("`SSL_CERT_FILE`"), "{error}");
    }
}
