//! The connections of a listener: limited in number and in time, and closed in order at a shutdown.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Router;
use crcr_store::OutageLog;
use http::Request;
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Sleep;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::open_connections::{NotedBody, OpenConnection, OpenConnections, Phase};
use crate::limits;

#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionLimits {
    /// A further one takes the place of the one that has waited longest for its client.
    pub(crate) max_open: usize,
    /// How long a connection may be idle between requests, or take to send a request's head.
    pub(crate) head_timeout: Duration,
    /// A connection of this age is closed after its current request.
    pub(crate) max_age: Duration,
    /// How long a client may not read from its connection while a response is sent.
    pub(crate) write_timeout: Duration,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            max_open: connections_for(max_files()),
            head_timeout: limits::HEAD_TIMEOUT,
            max_age: limits::CONNECTION_LIFE,
            write_timeout: limits::WRITE_TIMEOUT,
        }
    }
}

/// How many connections a listener has open in a process that may have so many files open. If they took all of them,
/// those that clients hold would never be too many, and no further one could be accepted.
fn connections_for(max_files: Option<u64>) -> usize {
    let Some(max_files) = max_files.and_then(|files| usize::try_from(files).ok()) else {
        return limits::MAX_CONNECTIONS;
    };
    let left = max_files.saturating_sub(limits::OWN_FILES).max(max_files / 4);
    left.clamp(1, limits::MAX_CONNECTIONS)
}

#[cfg(target_os = "linux")]
fn max_files() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}

#[cfg(not(target_os = "linux"))]
fn max_files() -> Option<u64> {
    None
}

/// Serves `router` until `stop`. Requests that aren't complete [`limits::SHUTDOWN_GRACE`] later are dropped.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    connection_limits: ConnectionLimits,
    stop: CancellationToken,
) {
    // While all of them wait for an answer, further ones wait in the kernel's queue.
    let places = Arc::new(Semaphore::new(
        connection_limits.max_open + connection_limits.max_open.div_ceil(16),
    ));
    let known = Arc::new(OpenConnections::default());
    let (mut open, mut outage) = (JoinSet::new(), OutageLog::default());
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
                if outage.worked() {
                    tracing::info!("connections can be accepted again");
                }
                let (router, stop, known) = (router.clone(), stop.clone(), Arc::clone(&known));
                let connection = known.add(connection_limits.max_open);
                open.spawn(async move {
                    let _place = place;
                    tokio::select! {
                        () = connection.close.cancelled() => {}
                        () = serve_connection(stream, router, connection_limits, stop, &connection) => {}
                    }
                    known.remove(&connection);
                });
            }
            Err(error) => wait_to_accept(&mut outage, &error).await,
        }
    }
    drop(listener);
    while open.join_next().await.is_some() {}
}

/// Most likely there are too many open files, until other connections are closed.
async fn wait_to_accept(outage: &mut OutageLog, error: &io::Error) {
    let error = error.to_string();
    if outage.failed(&error, Instant::now()) {
        tracing::warn!(error, "connections can't be accepted");
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
}

async fn serve_connection(
    stream: TcpStream,
    router: Router,
    connection_limits: ConnectionLimits,
    stop: CancellationToken,
    open: &Arc<OpenConnection>,
) {
    let answer = |request: Request<Incoming>| {
        let (router, connection) = (router.clone(), Arc::clone(open));
        connection.enter(Phase::RequestBody);
        let connection_of_body = Arc::clone(&connection);
        let request = request.map(|body| NotedBody { body, connection: connection_of_body });
        async move {
            if request.body().is_end_stream() {
                connection.enter(Phase::Answer);
            }
            let response = router.oneshot(request).await;
            connection.enter(Phase::Idle);
            response
        }
    };
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY can't be set; responses may be delayed");
    }
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(connection_limits.head_timeout)
        .max_buf_size(limits::HEAD_BYTES)
        .serve_connection(
            TokioIo::new(TimedWriter::new(stream, connection_limits.write_timeout)),
            service_fn(answer),
        );
    let mut connection = std::pin::pin!(connection);
    // Errors are caused by clients that disconnect, are too slow, or don't speak HTTP.
    tokio::select! {
        _ = connection.as_mut() => return,
        () = stop.cancelled() => {}
        () = tokio::time::sleep(connection_limits.max_age) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = tokio::time::timeout(limits::SHUTDOWN_GRACE, connection).await;
}

/// A stream whose writes fail when the client doesn't read in time.
struct TimedWriter {
    stream: TcpStream,
    timeout: Duration,
    /// When the pending write fails.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl TimedWriter {
    fn new(stream: TcpStream, timeout: Duration) -> Self {
        Self { stream, timeout, deadline: None }
    }

    fn fail_after_deadline<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.deadline = None;
            return written;
        }
        let timeout = self.timeout;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        deadline.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for TimedWriter {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for TimedWriter {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.fail_after_deadline(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.fail_after_deadline(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.fail_after_deadline(context, flushed)
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

    const LONG: ConnectionLimits = {
        let long = Duration::from_secs(600);
        ConnectionLimits { max_open: 1, head_timeout: long, max_age: long, write_timeout: long }
    };

    struct Server {
        address: SocketAddr,
        stop: CancellationToken,
        task: tokio::task::JoinHandle<()>,
    }

    async fn start(connection_limits: ConnectionLimits) -> Server {
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
        let task = tokio::spawn(serve(listener, router, connection_limits, stop.clone()));
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
        let server = start(ConnectionLimits { max_open: 3, head_timeout: head, ..LONG }).await;
        let silent = server.connect("").await;
        let half = server.connect("GET / HTTP/1.1\r\nhost: a\r\nx-slow: ").await;
        let mut kept = server.connect("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
        let mut answer = [0; 15];
        kept.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200 OK");
        // The fourth connection is accepted as soon as one of the others is closed.
        let fourth = server.connect("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
        assert!(rest(fourth).await.ends_with("hello"));
        assert_eq!(rest(silent).await, "");
        assert!(!rest(half).await.contains("200 OK"));
        assert!(rest(kept).await.ends_with("hello"), "an idle connection ends without a word");
    }

    #[tokio::test]
    async fn who_never_reads_the_answer_loses_the_connection_and_others_get_its_place() {
        let write = Duration::from_millis(200);
        let server = start(ConnectionLimits { max_open: 1, write_timeout: write, ..LONG }).await;
        let deaf = server.connect("GET /large HTTP/1.1\r\nhost: a\r\n\r\n").await;
        let next = server.connect("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
        let answered = tokio::time::timeout(Duration::from_secs(20), rest(next)).await;
        assert!(answered.expect("it gets a place").ends_with("hello"));
        drop(deaf);
    }

    /// Half-sent heads would take every file that a process with a low limit may open.
    #[test]
    fn connections_leave_files_for_the_relay_itself() {
        for (max_files, connections) in
            [(64, 16), (256, 64), (1024, 800), (1_048_576, 800), (u64::MAX, 800)]
        {
            assert_eq!(connections_for(Some(max_files)), connections, "{max_files}");
        }
        assert_eq!(connections_for(None), limits::MAX_CONNECTIONS);
    }

    #[tokio::test]
    async fn an_old_connection_is_closed() {
        let server =
            start(ConnectionLimits { max_open: 1, max_age: Duration::from_millis(50), ..LONG })
                .await;
        assert_eq!(rest(server.connect("").await).await, "");
    }

    #[tokio::test]
    async fn a_stop_lets_a_request_finish_and_takes_no_new_one() {
        let server = start(ConnectionLimits { max_open: 10, ..LONG }).await;
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
