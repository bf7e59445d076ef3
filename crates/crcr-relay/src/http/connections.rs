//! Connections of a listener: so many at a time, each bounded in time, ended in good order.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Sleep;
use tokio_util::sync::CancellationToken;

use crate::limits;

/// What a stranger's connection may cost.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Connections at a time; the next one waits in the kernel's queue.
    pub(crate) most: usize,
    /// How long a connection may be silent between requests, or take for a request's head.
    pub(crate) head: Duration,
    /// How old a connection gets before it is closed after its request.
    pub(crate) life: Duration,
    /// How long a client may leave an answer unread.
    pub(crate) write: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        let (most, head) = (limits::CONNECTIONS, limits::HEAD);
        Self { most, head, life: limits::CONNECTION_LIFE, write: limits::WRITE }
    }
}

/// Answers with `router` until `stop`; a request that hasn't come whole [`limits::GRACE`] later is
/// dropped.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    bounds: Bounds,
    stop: CancellationToken,
) {
    let places = Arc::new(Semaphore::new(bounds.most));
    let mut open = JoinSet::new();
    loop {
        let next = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            () = stop.cancelled() => break,
            next = next => next,
        };
        while open.try_join_next().is_some() {}
        match accepted {
            Ok((stream, _)) => {
                let (router, stop) = (router.clone(), stop.clone());
                open.spawn(async move {
                    let _place = place;
                    answer(stream, router, bounds, stop).await;
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection can't be accepted");
                // Out of files, most likely: others have to close theirs first.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    drop(listener);
    while open.join_next().await.is_some() {}
}

async fn answer(stream: TcpStream, router: Router, bounds: Bounds, stop: CancellationToken) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "answers may be late");
    }
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.head)
        .max_buf_size(limits::HEAD_BYTES)
        .serve_connection(
            TokioIo::new(Impatient::new(stream, bounds.write)),
            TowerToHyperService::new(router),
        );
    let mut connection = std::pin::pin!(connection);
    // Whoever went away, was too slow or spoke no HTTP is no news.
    tokio::select! {
        _ = connection.as_mut() => return,
        () = stop.cancelled() => {}
        () = tokio::time::sleep(bounds.life) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = tokio::time::timeout(limits::GRACE, connection).await;
}

/// A connection that ends when what is written to it isn't taken in time.
struct Impatient {
    stream: TcpStream,
    limit: Duration,
    /// The end of the time for the write that waits.
    until: Option<Pin<Box<Sleep>>>,
}

impl Impatient {
    fn new(stream: TcpStream, limit: Duration) -> Self {
        Self { stream, limit, until: None }
    }

    /// Fails instead of waiting once the time is up.
    fn in_time<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.until = None;
            return written;
        }
        let limit = self.limit;
        let until = self.until.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        until.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Impatient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Impatient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.in_time(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.in_time(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.in_time(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::extract::Request;
    use axum::routing::{get, post};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const LONG: Bounds = {
        let long = Duration::from_secs(600);
        Bounds { most: 1, head: long, life: long, write: long }
    };

    struct Server {
        address: SocketAddr,
        stop: CancellationToken,
        task: tokio::task::JoinHandle<()>,
    }

    async fn start(bounds: Bounds) -> Server {
        let read = async |request: Request| {
            let body = axum::body::to_bytes(request.into_body(), 100).await;
            body.map_or(0, |body| body.len()).to_string()
        };
        let large = async || vec![b'x'; 64 << 20];
        let router = Router::new()
            .route("/", get(async || "hello"))
            .route("/", post(read))
            .route("/large", get(large));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let task = tokio::spawn(serve(listener, router, bounds, stop.clone()));
        Server { address, stop, task }
    }

    impl Server {
        async fn connect(&self, say: &str) -> TcpStream {
            let mut stream = TcpStream::connect(self.address).await.unwrap();
            stream.write_all(say.as_bytes()).await.unwrap();
            stream
        }
    }

    /// Everything until the server closes.
    async fn rest(mut stream: TcpStream) -> String {
        let mut text = Vec::new();
        // A reset is an end too.
        let _ = stream.read_to_end(&mut text).await;
        String::from_utf8(text).unwrap()
    }

    #[tokio::test]
    async fn connections_that_say_nothing_or_too_little_are_closed_and_others_get_their_place() {
        let head = Duration::from_millis(200);
        let server = start(Bounds { most: 3, head, ..LONG }).await;
        let silent = server.connect("").await;
        let half = server.connect("GET / HTTP/1.1\r\nhost: a\r\nx-slow: ").await;
        let mut kept = server.connect("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
        let mut answer = [0; 15];
        kept.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200 OK");
        // The fourth one has a place as soon as one of the others has lost its own.
        let fourth = server.connect("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
        assert!(rest(fourth).await.ends_with("hello"));
        assert_eq!(rest(silent).await, "");
        assert!(!rest(half).await.contains("200 OK"));
        assert!(rest(kept).await.ends_with("hello"), "an idle connection ends without a word");
    }

    #[tokio::test]
    async fn who_never_reads_the_answer_loses_the_connection_and_others_get_its_place() {
        let write = Duration::from_millis(200);
        let server = start(Bounds { most: 1, write, ..LONG }).await;
        let deaf = server.connect("GET /large HTTP/1.1\r\nhost: a\r\n\r\n").await;
        let next = server.connect("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
        let answered = tokio::time::timeout(Duration::from_secs(20), rest(next)).await;
        assert!(answered.expect("it gets a place").ends_with("hello"));
        drop(deaf);
    }

    #[tokio::test]
    async fn an_old_connection_is_closed() {
        let server = start(Bounds { most: 1, life: Duration::from_millis(50), ..LONG }).await;
        assert_eq!(rest(server.connect("").await).await, "");
    }

    #[tokio::test]
    async fn a_stop_lets_a_request_finish_and_takes_no_new_one() {
        let server = start(Bounds { most: 10, ..LONG }).await;
        let head = "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n";
        let mut under_way = server.connect(head).await;
        under_way.write_all(b"a").await.unwrap();
        let idle = server.connect("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
        let mut byte = [0];
        idle.readable().await.unwrap();
        assert_eq!(idle.peek(&mut byte).await.unwrap(), 1, "it is answered");
        server.stop.cancel();
        assert!(rest(idle).await.ends_with("hello"));
        under_way.write_all(b"b").await.unwrap();
        assert!(rest(under_way).await.ends_with("\r\n\r\n2"));
        server.task.await.unwrap();
        assert!(TcpStream::connect(server.address).await.is_err());
    }
}
