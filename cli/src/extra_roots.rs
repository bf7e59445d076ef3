//! Root certificates that a runner names for its other programs, such as that of a proxy which opens TLS. The HTTP
//! clients here know `SSL_CERT_FILE` alone.

use std::fs::File;
use std::io::{self, Read as _, Write as _};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
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

/// The file with all roots, which has to stay until the process ends, and a sentence for each fault.
#[derive(Debug, Default)]
pub struct RootCertificates {
    file: Option<NamedTempFile>,
    pub faults: Vec<String>,
}

/// Changes the variables of this process, in which no other thread may run yet.
#[expect(unsafe_code, reason = "the clients read it from the process")]
pub fn add(env: &Env) -> RootCertificates {
    // Elsewhere the system's own store decides.
    if !cfg!(target_os = "linux") {
        return RootCertificates::default();
    }
    let roots = roots(env, &BUNDLES);
    if let Some(file) = &roots.file {
        // SAFETY: no other thread runs that could read the variables.
        unsafe { std::env::set_var(env_vars::SSL_CERT_FILE, file.path()) };
    }
    roots
}

/// The system's roots with those that the environment names. No file if it names none, or itself says which to use.
fn roots(env: &Env, system: &[&str]) -> RootCertificates {
    let mut roots = RootCertificates::default();
    if [env_vars::SSL_CERT_FILE, env_vars::SSL_CERT_DIR].iter().any(|name| env.get(name).is_some())
    {
        return roots;
    }
    let mut extra = vec![];
    for name in [env_vars::AWS_CA_BUNDLE, env_vars::NODE_EXTRA_CA_CERTS] {
        let Some(path) = env.get(name) else { continue };
        match read(path) {
            Ok(text) => extra.push(text),
            Err(error) => roots.faults.push(format!(
                "no root certificates of `{path}`, which `{name}` names, are trusted: {error}"
            )),
        }
    }
    if extra.is_empty() {
        return roots;
    }
    match write(system.iter().find_map(|path| read(path).ok()).iter().chain(&extra)) {
        Ok(file) => roots.file = Some(file),
        Err(error) => roots.faults.push(format!(
            "no other root certificates than the system's are trusted, since no temporary file can be written: {error}"
        )),
    }
    roots
}

fn write<'a>(parts: impl Iterator<Item = &'a Vec<u8>>) -> io::Result<NamedTempFile> {
    let mut file = NamedTempFile::new()?;
    for part in parts {
        file.write_all(part)?;
        file.write_all(b"\n")?;
    }
    Ok(file)
}

/// A file that holds no certificate is a fault, too.
fn read(path: &str) -> io::Result<Vec<u8>> {
    let mut text = vec![];
    File::open(path)?.take(MAX_BYTES + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(io::Error::other("it is larger than 8 MiB"));
    }
    if !CertificateDer::pem_slice_iter(&text).any(|certificate| certificate.is_ok()) {
        return Err(io::Error::other("it holds no certificate in PEM form"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::Arc;
    use std::time::Instant;

    use base64::Engine as _;
    use base64::prelude::BASE64_STANDARD;
    use crcr_github::http::{self, RetryPolicy};
    use rustls::crypto::aws_lc_rs;

    use super::*;

    #[test]
    fn roots_for_node_and_for_aws_are_added_to_those_of_the_system() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let pem = |text: &str| {
            let base64 = BASE64_STANDARD.encode(text);
            format!("-----BEGIN CERTIFICATE-----\n{base64}\n-----END CERTIFICATE-----\n")
        };
        let system = write("system", &pem("system"));
        let (aws, node) = (write("aws", &pem("aws")), write("node", &pem("node")));
        let empty = write("empty", "");
        let made = |variables: &[(&str, &str)]| {
            let env: Env = variables.iter().copied().collect();
            let roots = roots(&env, &["/nowhere", &system, "/etc/passwd"]);
            let file = roots.file.map(|file| std::fs::read_to_string(file.path()).unwrap());
            (file, roots.faults)
        };
        let all =
            |names: &[&str]| Some(names.iter().map(|name| pem(name) + "\n").collect::<String>());
        let (aws, node) = (("AWS_CA_BUNDLE", &*aws), ("NODE_EXTRA_CA_CERTS", &*node));
        assert_eq!(made(&[node]), (all(&["system", "node"]), vec![]));
        assert_eq!(made(&[aws, node]), (all(&["system", "aws", "node"]), vec![]));
        assert_eq!(made(&[]), (None, vec![]));
        assert_eq!(made(&[node, ("SSL_CERT_FILE", "/mine")]).0, None, "the user has said which");

        let (file, faults) = made(&[aws, ("NODE_EXTRA_CA_CERTS", "/nowhere")]);
        assert_eq!(file, all(&["system", "aws"]));
        assert!(faults[0].contains("`/nowhere`, which `NODE_EXTRA_CA_CERTS` names"), "{faults:?}");
        let (file, faults) = made(&[("AWS_CA_BUNDLE", &empty)]);
        assert_eq!((file, faults.len()), (None, 1));
        assert!(faults[0].contains("no certificate in PEM form"), "{faults:?}");
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
