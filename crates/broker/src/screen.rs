//! Between the broker and the client library: what a producer wrote into a message cannot end a connection.
//!
//! RabbitMQ hands on what a producer sent, and takes more than the library (lapin 4.12, amq-protocol 10.6) can read: short
//! strings that are not UTF-8 (a message-id, the name of a header, a routing key), tables within tables thousands deep, and
//! in versions to come perhaps types that it does not know. To the library the first and the last are an error of the
//! whole connection, and with it all sessions are cut off; as the message stays in its mailbox, again after each reconnect.
//! The second overflows the stack and ends the process. So the bytes from the broker go through a screen that follows the
//! frames, looks into those that carry a producer's words, and replaces what the library could not read. The message
//! arrives, with those of its properties that can be read and a header `x-properties` that says which cannot.
//!
//! Refusing such a message instead (nack without requeue) would need the delivery tag of a message that has not been
//! parsed, and would take from the client a body that is well. Larger stacks (`RUST_MIN_STACK`) would bear what fits into
//! a frame today, but not drop or clone it on other threads, and do nothing for strings.

mod frames;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    io::{self, IoSlice, Read, Write},
    net::SocketAddr,
    os::fd::{AsFd, AsRawFd},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use async_rs::{Runtime, Tokio, traits::Reactor, util::RuntimeParts};
use futures::{AsyncRead, AsyncWrite, Stream};
use lapin::{AsyncTcpStream, Connection, ConnectionProperties, tcp::AMQPUriTcpExt as _, uri::AMQPUri};
use tracing::warn;

use frames::Frames;

/// How often a connection says in the log that something was replaced. The count is exact.
const SAY_AGAIN: Duration = Duration::from_secs(30);

/// How many frames had something in them that the client library cannot read, so far. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Unreadable(Arc<AtomicU64>);

impl Unreadable {
    /// So many frames. A message has two in which something can be unreadable: the one that says where it was published, and
    /// the one of its properties.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

type Kit = RuntimeParts<Tokio, Reactors>;
type Tcp = <Tokio as Reactor>::TcpStream;

/// Connects as [`Connection::connect_uri`] does, but through a screen, which counts in `unreadable` and says `name` in the
/// log.
///
/// TLS belongs below the screen, which would see nothing else. The library's own lies above (and without its features for
/// TLS it takes `amqps` for plain TCP, in silence). So for TLS let `Reactors` have a stream that is plain or a
/// `tokio_rustls::client::TlsStream` under the screen, and the closure below do the handshake, with the host of the URI.
pub(crate) async fn connect(
    uri: AMQPUri,
    properties: ConnectionProperties,
    name: &str,
    unreadable: &Unreadable,
) -> lapin::Result<Connection> {
    let tokio = Tokio::current();
    let reactors = Reactors { tokio: tokio.clone(), name: name.into(), unreadable: unreadable.clone() };
    let dial = async |uri: AMQPUri, runtime: Runtime<Kit>| -> lapin::Result<AsyncTcpStream<Screened<Tcp>>> {
        Ok(uri.connect_async(&runtime).await?)
    };
    Connection::connector(uri, Runtime::new(RuntimeParts::new(tokio, reactors)), dial, properties).await
}

/// tokio's, but that what it connects is screened.
#[derive(Clone, Debug)]
struct Reactors {
    tokio: Tokio,
    name: Arc<str>,
    unreadable: Unreadable,
}

impl Reactor for Reactors {
    type TcpStream = Screened<Tcp>;
    type Sleep = <Tokio as Reactor>::Sleep;

    fn register<H: Read + Write + AsFd + AsRawFd + Send + 'static>(
        &self,
        socket: H,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static> {
        self.tokio.register(socket)
    }

    fn sleep(&self, time: Duration) -> Self::Sleep {
        self.tokio.sleep(time)
    }

    fn interval(&self, period: Duration) -> impl Stream<Item = Instant> + Send + 'static {
        self.tokio.interval(period)
    }

    fn tcp_connect_addr(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        let (connecting, report) = (self.tokio.tcp_connect_addr(address), Report::new(self));
        async move { Ok(Screened { inner: connecting.await?, frames: Frames::new(), report }) }
    }
}

/// Counts what was replaced on a connection, and says so now and then.
struct Report {
    name: Arc<str>,
    unreadable: Unreadable,
    said: Option<Instant>,
    unsaid: u64,
}

impl Report {
    fn new(reactors: &Reactors) -> Self {
        Self { name: reactors.name.clone(), unreadable: reactors.unreadable.clone(), said: None, unsaid: 0 }
    }

    fn replaced(&mut self, what: &str) {
        self.unreadable.0.fetch_add(1, Ordering::Relaxed);
        self.unsaid += 1;
        if self.said.is_some_and(|said| said.elapsed() < SAY_AGAIN) {
            return;
        }
        let before = match self.unsaid - 1 {
            0 => String::new(),
            more => format!(", and {more} before it"),
        };
        warn!("{}: a message is handed on without what of it cannot be read ({what}){before}", self.name);
        (self.said, self.unsaid) = (Some(Instant::now()), 0);
    }
}

/// A stream from a broker whose reader gets only frames that the client library can read.
struct Screened<S> {
    inner: S,
    frames: Frames,
    report: Report,
}

impl<S> fmt::Debug for Screened<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Screened").finish_non_exhaustive()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Screened<S> {
    /// The library reads into two slices at a time; that the second stays empty costs it a call where its buffer wraps.
    ///
    /// # Cancel safety
    /// Safe: what was read from the socket is kept.
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut [u8]) -> Poll<io::Result<usize>> {
        let Self { inner, frames, report } = self.get_mut();
        if out.is_empty() {
            return Poll::Ready(Ok(0));
        }
        loop {
            match frames.take(out, &mut |what: &str| report.replaced(what)) {
                0 => {}
                taken => return Poll::Ready(Ok(taken)),
            }
            match ready!(Pin::new(&mut *inner).poll_read(cx, frames.room()))? {
                // A frame that was cut off is of no use to anybody.
                0 => return Poll::Ready(Ok(0)),
                read => frames.fill(read),
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Screened<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, slices)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_close(cx)
    }
}
