//! The server of the artifact benchmarks: GitHub's artifact store or a bucket, optionally with
//! latency, TLS and connection resets.
//!
//! usage: cargo run --example bench_server -- github|s3 [drop] [delay-ms=N]
//!        [tls=CERTIFICATE,KEY] [break-mib=N]
//!
//! Prints the environment of a job as `NAME=value` lines and then an empty one; serves until its
//! standard input ends, and then prints how many bytes of bodies it got. With `drop` GitHub's
//! bodies are counted and dropped, as the bucket always does. Each answer is delayed by `delay-ms`;
//! each connection is reset after `break-mib`, counting both directions.
#![expect(clippy::print_stdout, reason = "what it prints is what it is for")]

mod sink;

use std::io::{self, Write as _};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::{ConnectInfo, Request};
use axum::middleware::{Next, from_fn};
use axum::{Extension, Router};
use crcr_standin::runs::Run;
use crcr_standin::server::Connection;
use crcr_standin::{State, server};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::sink::Received;

/// Not real keys; the bucket doesn't check them.
const KEYS: &str = "AWS_ACCESS_KEY_ID=AKIAEXAMPLESTANDIN01\nAWS_SECRET_ACCESS_KEY=of/no/account";

/// The network between a client and the server, as far as it is simulated.
#[derive(Default)]
struct Line {
    delay: Duration,
    tls: Option<TlsAcceptor>,
    break_after: Option<u64>,
}

#[tokio::main(worker_threads = 2)]
async fn main() -> io::Result<()> {
    let mut args = std::env::args().skip(1);
    let service = args.next().unwrap_or_default();
    let (mut line, mut dropping) = (Line::default(), false);
    for arg in args {
        match arg.split_once('=') {
            None if arg == "drop" => dropping = true,
            Some(("delay-ms", ms)) => line.delay = Duration::from_millis(number(ms)?),
            Some(("break-mib", mib)) => line.break_after = Some(number(mib)? << 20),
            Some(("tls", files)) => line.tls = Some(acceptor(files)?),
            _ => return Err(io::Error::other(format!("`{arg}` isn't known"))),
        }
    }
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let scheme = if line.tls.is_some() { "https" } else { "http" };
    let port = listener.local_addr()?.port();
    // Certificates for this machine name `localhost`.
    let url: url::Url =
        format!("{scheme}://localhost:{port}/").parse().map_err(io::Error::other)?;
    let received = Arc::new(Received::default());
    let (router, state) = match service.as_str() {
        "github" => {
            let state = Arc::new(State::new(url.clone())?);
            if dropping {
                state.artifacts.drop_bodies();
            }
            (server::router(state.clone()), Some(state))
        }
        "s3" => (sink::router(received.clone()), None),
        _ => return Err(io::Error::other("the first argument is `github` or `s3`")),
    };
    tokio::spawn(serve(listener, router, line));
    match &state {
        Some(state) => print_job(state),
        None => println!(
            "{KEYS}\nAWS_REGION=us-east-1\nAWS_DEFAULT_REGION=us-east-1\nBENCH_ENDPOINT={url}"
        ),
    }
    println!();
    io::stdout().flush()?;
    tokio::task::spawn_blocking(|| io::copy(&mut io::stdin(), &mut io::sink())).await??;
    let bytes = state.map_or_else(
        || received.bytes.load(Ordering::Relaxed),
        |state| state.artifacts.received_bytes(),
    );
    println!("received={bytes}");
    Ok(())
}

fn number(text: &str) -> io::Result<u64> {
    text.parse().map_err(io::Error::other)
}

fn acceptor(files: &str) -> io::Result<TlsAcceptor> {
    let (certificate, key) = files.split_once(',').ok_or(io::ErrorKind::InvalidInput)?;
    let certificate = CertificateDer::from_pem_file(certificate).map_err(io::Error::other)?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(io::Error::other)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|config| config.with_no_client_auth().with_single_cert(vec![certificate], key));
    Ok(TlsAcceptor::from(Arc::new(config.map_err(io::Error::other)?)))
}

fn print_job(state: &State) {
    let job = state.runs.add_job(state.runs.add(Run::push()), "build");
    for (name, value) in state.job_environment(&job) {
        println!("{name}={value}");
        if let "ACTIONS_RUNTIME_TOKEN" | "ACTIONS_RESULTS_URL" = name {
            println!("{}={value}", name.replacen("ACTIONS", "CRCR", 1));
        }
    }
}

async fn serve(listener: TcpListener, router: Router, line: Line) {
    let Line { delay, tls, break_after } = line;
    let router = router
        .layer(from_fn(move |request: Request, next: Next| async move {
            let answer = next.run(request).await;
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            answer
        }))
        .layer(Extension(ConnectInfo(Connection::default())));
    while let Ok((tcp, _)) = listener.accept().await {
        let (router, tls) = (router.clone(), tls.clone());
        tokio::spawn(async move {
            let _ = tcp.set_nodelay(true);
            let tcp = Counted { tcp, left: break_after.unwrap_or(u64::MAX) };
            let service = TowerToHyperService::new(router);
            let http = hyper::server::conn::http1::Builder::new();
            // A connection may end early, by the client or by `break-mib`.
            let _ = match tls {
                Some(tls) => match tls.accept(tcp).await {
                    Ok(stream) => http.serve_connection(TokioIo::new(stream), service).await,
                    Err(_) => return,
                },
                None => http.serve_connection(TokioIo::new(tcp), service).await,
            };
        });
    }
}

/// A connection that is reset once `left` bytes have gone through.
struct Counted {
    tcp: TcpStream,
    left: u64,
}

impl Counted {
    fn check(&self) -> io::Result<()> {
        if self.left > 0 {
            return Ok(());
        }
        self.tcp.set_zero_linger()?;
        Err(io::ErrorKind::ConnectionReset.into())
    }

    fn count(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes as u64);
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check()?;
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.tcp).poll_read(context, buffer);
        self.count(buffer.filled().len() - before);
        read
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        let written = Pin::new(&mut self.tcp).poll_write(context, bytes);
        if let Poll::Ready(Ok(bytes)) = written {
            self.count(bytes);
        }
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        let written = Pin::new(&mut self.tcp).poll_write_vectored(context, slices);
        if let Poll::Ready(Ok(bytes)) = written {
            self.count(bytes);
        }
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(context)
    }
}
