//! Behaviour of all commands.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::support::{Crcr, write_certificates};

#[test]
fn version_and_help_are_data() {
    let ran = Crcr::new(&["--version"]).run().expect_code(0);
    assert!(ran.stdout.starts_with("crcr "), "{}", ran.report());
    let ran = Crcr::new(&["--help"]).run().expect_code(0);
    assert!(ran.stdout.contains("Exit codes:"), "{}", ran.report());
}

#[test]
fn wrong_usage_is_exit_2_with_nothing_on_stdout() {
    let ran = Crcr::new(&["no-such-command"]).run().expect_code(2);
    assert!(ran.stdout.is_empty() && ran.stderr.contains("no-such-command"), "{}", ran.report());
}

#[test]
fn run_or_token_that_is_missing_is_exit_2_in_every_command() {
    for (args, code) in [
        (&["artifact", "list"][..], "no-run"),
        (&["stats", "collect"], "no-run"),
        (&["logs", "fetch", "--job", "1", "--repo", "acme/app"], "no-github-token"),
        (&["doctor", "downstream", "acme/app"], "no-github-token"),
    ] {
        let ran = Crcr::new(args).run().expect_code(2);
        assert!(ran.stderr.contains(&format!("error[{code}]")), "{}", ran.report());
    }
}

#[test]
fn completions_exist_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let ran = Crcr::new(&["completions", shell]).run().expect_code(0);
        assert!(ran.stdout.contains("crcr"), "{shell}");
    }
}

/// What a script redirects into a file is whole, or the command fails; `| head` fails nothing.
#[cfg(target_os = "linux")]
#[test]
fn data_that_cannot_be_written_is_an_error_and_a_closed_pipe_is_none() {
    use std::fs::File;
    use std::process::{Command, Stdio};

    use crate::support::keep_coverage;
    for args in [
        &["--version"][..],
        &["relay", "serve", "--help"],
        &["allowlist", "schema"],
        &["completions", "bash"],
        &["relay", "size", "--pulls", "1", "--backends", "1"],
    ] {
        let crcr = || {
            let mut crcr = Command::new(env!("CARGO_BIN_EXE_crcr"));
            crcr.args(args).env_clear().stderr(Stdio::piped());
            keep_coverage(&mut crcr);
            crcr
        };
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = crcr().stdout(full).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        let told = "error[file-unwritable]: stdout can't be written\n  because: No space left";
        assert!(said.starts_with(told), "{args:?}: {said}");
        let mut child = crcr().stdout(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert_eq!(String::from_utf8(output.stderr).unwrap(), "", "{args:?}");
    }
}

#[test]
fn help_and_version_are_words_too() {
    let said = |args: &[&str]| Crcr::new(args).run().expect_code(0).stdout;
    assert_eq!(said(&["version"]), said(&["--version"]));
    assert_eq!(said(&["help"]), said(&["--help"]));
    assert_eq!(said(&["help", "init", "aws"]), said(&["init", "aws", "--help"]));
    assert!(said(&["help"]).contains("  man "), "the manual pages aren't listed");
}

#[test]
fn address_without_its_scheme_is_told_to_have_none() {
    for args in [
        &["reproduce", "7", "--backend", "a/b", "--hud", "hud.example.org"][..],
        &["doctor", "aws", "--sts-endpoint", "sts.example.org"],
    ] {
        let ran = Crcr::new(args).run().expect_code(2);
        assert!(ran.stderr.contains("it has no `https://` in front"), "{}", ran.report());
    }
}

#[test]
fn number_that_is_none_is_said_in_plain_words() {
    let ran = Crcr::new(&["artifact", "list", "--run-id", "x"]).run().expect_code(2);
    assert!(ran.stderr.contains("it isn't a whole number"), "{}", ran.report());
    assert!(!ran.stderr.contains("invalid digit"), "{}", ran.report());
}

/// A usage that names one of two ways only would send somebody with a lost server to a backup that isn't there.
#[test]
fn command_line_with_neither_of_two_ways_is_told_of_both() {
    for (command, ways) in [
        (&["relay", "restore"][..], "<FOLDER|--since"),
        (&["relay", "replay"], "<FILE|--from"),
        (&["relay", "deliveries", "discard"], "<KEY|--repo"),
        (&["relay", "deliveries", "redeliver"], "<ID|--given-up>"),
    ] {
        let ran = Crcr::new(command).run().expect_code(2);
        assert!(ran.stderr.contains(ways), "{}", ran.report());
        let ran = Crcr::new(command).arg("--help").run().expect_code(0);
        assert!(ran.stdout.contains(ways), "{}", ran.report());
    }
    let both = ["relay", "restore", "copy", "--since", "2026-11-25T09:00Z"];
    let ran = Crcr::new(&both).run().expect_code(2);
    assert!(ran.stderr.contains("cannot be used with"), "{}", ran.report());
}

/// Else a command would use the default, such as another store, and say nothing.
#[cfg(target_os = "linux")]
#[test]
fn variable_that_is_not_utf8_is_not_taken_for_absent() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    let mut run = Crcr::new(&["relay", "deliveries", "list"]);
    run.command().env("CRCR_STORE", OsStr::from_bytes(b"sqlite:caf\xe9.db"));
    let ran = run.run().expect_code(1);
    assert!(ran.stderr.contains("no store exists at `caf"), "{}", ran.report());
}

/// Nothing has the number 0, and a list of at most none would say that there is nothing.
#[test]
fn numbers_and_limits_begin_with_one() {
    for args in [
        &["reproduce", "0", "--backend", "a/b", "--hud", "https://hud.example.org"][..],
        &["logs", "fetch", "--repo", "acme/app", "--job", "0"],
        &["allowlist", "diff", "a.yml", "b.yml", "--pull-request", "0"],
        &["relay", "deliveries", "list", "--limit", "0"],
        &["stats", "flaky", "--repo", "acme/app", "--results", "sqlite:a.db", "--limit", "0"],
    ] {
        let ran = Crcr::new(args).run().expect_code(2);
        assert!(ran.stderr.contains(": expected a number from 1 up"), "{}", ran.report());
    }
}

/// A server behind TLS that answers each request with 404, and the certificates of `write_certificates`.
fn tls_server(folder: &Path) -> SocketAddr {
    write_certificates(folder);
    let certificate = CertificateDer::from_pem_file(folder.join("server.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(folder.join("server.key")).unwrap();
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let (config, listener) = (Arc::new(config), TcpListener::bind("127.0.0.1:0").unwrap());
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let session = rustls::ServerConnection::new(config.clone()).unwrap();
            let mut tls = rustls::StreamOwned::new(session, connection.unwrap());
            if tls.read(&mut [0; 4096]).is_ok() {
                let answer =
                    "HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
                tls.write_all(answer.as_bytes()).unwrap();
                tls.conn.send_close_notify();
                tls.flush().unwrap();
            }
        }
    });
    address
}

#[test]
#[cfg(target_os = "linux")]
fn root_of_a_proxy_is_trusted_where_nodes_variable_names_it_and_a_file_without_one_is_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let hud = format!("https://localhost:{}", tls_server(folder.path()).port());
    let ask = |roots: &Path| {
        let args = ["reproduce", "1", "--backend", "acme/one", "--hud", &hud];
        let ran = Crcr::new(&args).env("NODE_EXTRA_CA_CERTS", roots.to_str().unwrap()).run();
        assert_ne!(ran.code, 0, "{}", ran.report());
        ran.stderr
    };
    let trusted = ask(&folder.path().join("ca.pem"));
    assert!(
        trusted.contains("no-results") && !trusted.contains("NODE_EXTRA_CA_CERTS"),
        "{trusted}"
    );
    for (file, why) in [("server.key", "no certificate in PEM form"), ("none.pem", "No such file")]
    {
        let refused = ask(&folder.path().join(file));
        assert!(refused.contains(why) && refused.contains("NODE_EXTRA_CA_CERTS"), "{refused}");
        assert!(refused.contains("certificate") && !refused.contains("no-results"), "{refused}");
    }
}
