//! The socket of a v1 session: it is read while a frame of ours is still on its way out, and at most one is.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::{Error, Message};

type Item = Option<Result<Message, Error>>;

/// What happened at the socket.
pub(crate) enum Happened {
    /// A frame came, or the end.
    Read(Item),
    /// Our frame is out; the next one may follow.
    Sent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sending {
    Nothing,
    Since(Instant),
    /// Writing failed. What the server said before, its close frame above all, may still be readable.
    Broken(Instant),
}

/// Wraps the socket for the length of a session.
pub(crate) struct Link<'a, S> {
    socket: &'a mut WebSocketStream<S>,
    sending: Sending,
    timeout: Duration,
}

impl<'a, S: AsyncRead + AsyncWrite + Unpin> Link<'a, S> {
    /// A frame may take `timeout` until the system has it.
    pub(crate) fn new(socket: &'a mut WebSocketStream<S>, timeout: Duration) -> Self {
        Self { socket, sending: Sending::Nothing, timeout }
    }

    /// The socket, for the way out.
    pub(crate) fn socket(&mut self) -> &mut WebSocketStream<S> {
        self.socket
    }

    /// Whether a frame may be started.
    pub(crate) fn is_free(&self) -> bool {
        self.sending == Sending::Nothing
    }

    /// By when our frame must be out, or the reason readable why it cannot be.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.sending {
            Sending::Nothing => None,
            Sending::Since(at) | Sending::Broken(at) => Some(at + self.timeout),
        }
    }

    /// Starts a frame; [`next`](Self::next) brings it out. Only while [`is_free`](Self::is_free): the sink is ready
    /// then, since its last flush came to an end.
    pub(crate) fn start(&mut self, text: String, now: Instant) {
        let started = self.socket.start_send_unpin(Message::Text(text.into()));
        self.sending = if started.is_ok() { Sending::Since(now) } else { Sending::Broken(now) };
    }

    /// The next thing that happens.
    ///
    /// # Cancel safety
    /// Safe: both halves are polls that keep their state in the socket.
    pub(crate) async fn next(&mut self) -> Happened {
        poll_fn(|context| self.poll_next(context)).await
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Happened> {
        if let Sending::Since(at) = self.sending
            && let Poll::Ready(flushed) = self.socket.poll_flush_unpin(context)
        {
            self.sending = if flushed.is_ok() { Sending::Nothing } else { Sending::Broken(at) };
            if flushed.is_ok() {
                return Poll::Ready(Happened::Sent);
            }
        }
        self.socket.poll_next_unpin(context).map(Happened::Read)
    }
}
