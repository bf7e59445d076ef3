//! The HTTP server on loopback, whose connections can be reset on purpose.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::extract::State as Shared;
use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::middleware::{from_fn_with_state, map_response_with_state};
use axum::response::Response;
use axum::serve::IncomingStream;
use futures_util::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use url::Url;

use crate::State;

pub fn router(state: Arc<State>) -> Router {
    let renamed = from_fn_with_state(Arc::clone(&state), crate::world::by_number);
    let routes = Router::new()
        .merge(crate::oidc::routes())
        .merge(crate::artifact::routes())
        .merge(crate::cache::routes())
        .merge(crate::runs::routes())
        .merge(crate::world::routes(&state))
        .fallback(|uri: Uri| async move {
            (StatusCode::NOT_FOUND, format!("the stand-in has no route for {}", uri.path()))
        })
        .layer(map_response_with_state(Arc::clone(&state), with_date))
        .with_state(state);
    // Before a route is chosen.
    Router::new().fallback_service(routes).layer(renamed)
}

/// GitHub's clock is the stand-in's.
async fn with_date(Shared(state): Shared<Arc<State>>, mut response: Response) -> Response {
    let date = state.clock.now().strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
    let date = HeaderValue::try_from(date).expect("a date is a header's value");
    response.headers_mut().insert(header::DATE, date);
    response
}

/// The argument by which a handler gets its connection.
pub type Peer = ConnectInfo<Connection>;

/// A port that is bound but not served yet, so that routes can know their own address.
#[derive(Debug)]
pub struct Bound {
    listener: std::net::TcpListener,
    url: Url,
}

impl Bound {
    /// Binds a free port of 127.0.0.1.
    pub fn loopback() -> io::Result<Self> {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let url = format!("http://{}/", listener.local_addr()?);
        let url = url.parse().map_err(io::Error::other)?;
        Ok(Self { listener, url })
    }

    pub fn url(&self) -> &Url {
        &self.url
    }

    /// Serves `router` on two new threads until the [`Server`] is dropped.
    pub fn serve(self, router: Router) -> io::Result<Server> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("standin")
            .enable_all()
            .build()?;
        let Self { listener, url } = self;
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new().name("standin".to_owned()).spawn(move || {
            runtime.block_on(async move {
                let listener = match TcpListener::from_std(listener) {
                    Ok(listener) => BreakableListener(listener),
                    Err(error) => return tracing::error!(%error, "no listener"),
                };
                let service = router.into_make_service_with_connect_info::<Connection>();
                tokio::select! {
                    _ = axum::serve(listener, service) => {}
                    // An error means that the server was dropped, so it stops as well.
                    _ = stopped => {}
                }
            });
            runtime.shutdown_timeout(Duration::from_secs(1));
        })?;
        Ok(Server { url, stop: Some(stop), thread: Some(thread) })
    }
}

/// A running loopback server. Dropping it closes its connections and frees its threads.
#[derive(Debug)]
pub struct Server {
    url: Url,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    pub fn url(&self) -> &Url {
        &self.url
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of that thread was printed when it happened.
            let _ = thread.join();
        }
    }
}

/// A handle to a request's connection, to reset it.
#[derive(Debug, Clone, Default)]
pub struct Connection(Arc<BreakSignal>);

#[derive(Debug, Default)]
struct BreakSignal {
    broken: AtomicBool,
    waker: AtomicWaker,
}

impl Connection {
    /// Resets the connection (TCP RST). Never returns, because the connection's task ends.
    pub async fn reset(&self) -> ! {
        self.break_now();
        std::future::pending().await
    }

    /// Resets the connection as soon as its task runs again.
    fn break_now(&self) {
        self.0.broken.store(true, Ordering::SeqCst);
        self.0.waker.wake();
    }

    fn check(&self, stream: &TcpStream, context: &Context<'_>) -> io::Result<()> {
        self.0.waker.register(context.waker());
        if self.0.broken.load(Ordering::SeqCst) {
            stream.set_zero_linger()?;
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        Ok(())
    }
}

impl Connected<IncomingStream<'_, BreakableListener>> for Connection {
    fn connect_info(stream: IncomingStream<'_, BreakableListener>) -> Self {
        stream.io().connection.clone()
    }
}

struct BreakableListener(TcpListener);

impl axum::serve::Listener for BreakableListener {
    type Io = BreakableStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (BreakableStream, SocketAddr) {
        let (tcp, address) = axum::serve::Listener::accept(&mut self.0).await;
        if let Err(error) = tcp.set_nodelay(true) {
            tracing::debug!(%error, "no TCP_NODELAY");
        }
        (BreakableStream { tcp, connection: Connection::default() }, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

/// A connection that fails at the next read or write once it is broken.
struct BreakableStream {
    tcp: TcpStream,
    connection: Connection,
}

impl AsyncRead for BreakableStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.connection.check(&self.tcp, context)?;
        Pin::new(&mut self.tcp).poll_read(context, buffer)
    }
}

impl AsyncWrite for BreakableStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.connection.check(&self.tcp, context)?;
        Pin::new(&mut self.tcp).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.connection.check(&self.tcp, context)?;
        Pin::new(&mut self.tcp).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.connection.check(&self.tcp, context)?;
        Pin::new(&mut self.tcp).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.connection.check(&self.tcp, context)?;
        Pin::new(&mut self.tcp).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }
}
