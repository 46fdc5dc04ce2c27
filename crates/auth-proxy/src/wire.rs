//! The WebSocket as the session uses it: small buffers, fragments, and the time when the socket last took a byte.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use futures::{Sink, Stream};
use protocol::{
    close::CloseCode,
    frame::{Frame, Opcode},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        self, Message,
        protocol::{
            CloseFrame, Role, WebSocketConfig,
            frame::{
                Frame as WsFrame,
                coding::{Data, OpCode},
            },
        },
    },
};

/// The library allocates its read buffer at once, 128 KiB of it unless told otherwise. Clients send little.
const READ_BUFFER_BYTES: usize = 1024;
/// How much may wait to be flushed before another frame is added. With the 16 KiB of the largest frame, and the pongs below,
/// it is what a session's write buffer, which never shrinks, can grow to.
pub(crate) const UNFLUSHED_BYTES_MAX: usize = 16 * 1024;
/// How many bytes of pongs may wait. The library answers each ping into the write buffer by itself; a client that asks more
/// and does not read is not read from either.
const UNFLUSHED_PONG_BYTES_MAX: usize = 2 * 1024;
/// Above what is ever buffered: so a write only ever fills the buffer, and the socket is written to by a flush alone.
const WRITE_BUFFER_BYTES: usize = 4 * UNFLUSHED_BYTES_MAX;
/// What clients say is an ack, or at most a token.
const CLIENT_MESSAGE_BYTES_MAX: usize = 64 * 1024;

/// A WebSocket of which it is known when its socket last took a byte.
pub(crate) struct Wire<S> {
    socket: WebSocketStream<Watched<S>>,
    unflushed: usize,
    /// Of these, the library's own pongs.
    unflushed_pongs: usize,
    /// The client closed; what remains is the answer, behind whatever waited.
    closed_by_client: bool,
}

/// What the wire brings.
#[derive(Debug)]
pub(crate) enum WireEvent {
    /// Everything that was fed is with the kernel.
    Flushed,
    /// The client said something; `None` when there is nothing more to come.
    Frame(Option<Message>),
    /// The wire is broken, or the client breaks the protocol.
    Broken(tungstenite::Error),
}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<S> {
    /// A WebSocket whose upgrade is answered; `leftover` is what the client sent right behind it.
    pub(crate) async fn new(stream: S, leftover: &[u8]) -> Self {
        let config = WebSocketConfig::default()
            .read_buffer_size(READ_BUFFER_BYTES)
            .write_buffer_size(WRITE_BUFFER_BYTES)
            .max_write_buffer_size(2 * WRITE_BUFFER_BYTES)
            .max_message_size(Some(CLIENT_MESSAGE_BYTES_MAX))
            .max_frame_size(Some(CLIENT_MESSAGE_BYTES_MAX));
        let watched = Watched { stream, took_at: Instant::now() };
        let socket = WebSocketStream::from_partially_read(watched, leftover.to_vec(), Role::Server, Some(config)).await;
        Self { socket, unflushed: 0, unflushed_pongs: 0, closed_by_client: false }
    }

    /// Bytes that wait for a flush.
    pub(crate) fn unflushed(&self) -> usize {
        self.unflushed
    }

    /// When the socket last took a byte.
    pub(crate) fn took_at(&self) -> Instant {
        self.socket.get_ref().took_at
    }

    /// Adds a frame of a message to what waits.
    pub(crate) fn feed(&mut self, frame: Frame) -> Result<(), tungstenite::Error> {
        let opcode = match frame.opcode {
            Opcode::Text => Data::Text,
            Opcode::Binary => Data::Binary,
            Opcode::Continuation => Data::Continue,
        };
        self.start(Message::Frame(WsFrame::message(frame.payload, OpCode::Data(opcode), frame.fin)))
    }

    /// Adds a ping to what waits.
    pub(crate) fn feed_ping(&mut self) -> Result<(), tungstenite::Error> {
        self.start(Message::Ping(Bytes::new()))
    }

    /// Adds the close frame; nothing can be fed after it.
    pub(crate) fn feed_close(&mut self, code: CloseCode, reason: &str) -> Result<(), tungstenite::Error> {
        self.start(Message::Close(Some(CloseFrame { code: code.code().into(), reason: reason.to_owned().into() })))
    }

    fn start(&mut self, message: Message) -> Result<(), tungstenite::Error> {
        // Two bytes of header are the least; the exact size does not matter, that it is not 0 does.
        self.unflushed += message.len() + 2;
        Pin::new(&mut self.socket).start_send(message)
    }

    /// Waits for the client, or for the end of a flush if anything waits for one. The flush goes first: it ends, while a
    /// client can talk without end. A client that is not listened to (`listens` is false) waits in its socket.
    ///
    /// # Cancel safety
    /// Cancel safe: both go on where they were.
    pub(crate) fn poll_event(&mut self, cx: &mut Context<'_>, listens: bool) -> Poll<WireEvent> {
        if self.unflushed > 0 {
            match Pin::new(&mut self.socket).poll_flush(cx) {
                Poll::Ready(Ok(())) => {
                    (self.unflushed, self.unflushed_pongs) = (0, 0);
                    return Poll::Ready(WireEvent::Flushed);
                }
                Poll::Ready(Err(error)) => return Poll::Ready(WireEvent::Broken(error)),
                // The library takes a read at this point for the end, and the answer would never go out.
                Poll::Pending if self.closed_by_client => return Poll::Pending,
                Poll::Pending => {}
            }
        }
        if !listens || self.unflushed_pongs >= UNFLUSHED_PONG_BYTES_MAX {
            return Poll::Pending;
        }
        match ready!(Pin::new(&mut self.socket).poll_next(cx)) {
            None => Poll::Ready(WireEvent::Frame(None)),
            Some(Ok(message)) => {
                // What the library answers by itself waits for a flush as everything else.
                let answer = if message.is_ping() || message.is_close() { message.len() + 2 } else { 0 };
                self.unflushed += answer;
                if message.is_ping() {
                    self.unflushed_pongs += answer;
                }
                self.closed_by_client |= message.is_close();
                Poll::Ready(WireEvent::Frame(Some(message)))
            }
            Some(Err(error)) => Poll::Ready(WireEvent::Broken(error)),
        }
    }
}

/// Passes everything through and notes when the stream below took something.
struct Watched<S> {
    stream: S,
    took_at: Instant,
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, buf))?;
        self.took_at = Instant::now();
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
