//! The accept loop: every connection becomes a task that this loop owns and awaits.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use service::shutdown::Shutdown;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};

use crate::config::Config;
use crate::metrics::Upgrades;
use crate::refusal::Refusal;
use crate::upgrade::farewell;

mod shortage;

use shortage::Shortage;

/// Connections that the kernel may hold until they are accepted. With the usual 128 a burst of reconnects overflows it,
/// and whoever is dropped tries again after 1 s, 3 s, 7 s. The kernel caps it at `net.core.somaxconn`, 4,096 on Linux.
pub const BACKLOG: u32 = 4096;

/// The send buffer of each connection. What the kernel took before a link broke is lost to a client without acks, so it
/// is fixed, and the bound can be stated; left to itself the kernel lets it grow to 4 MiB. (Linux reports twice the value
/// and counts its own bookkeeping against it.)
pub const SEND_BUFFER_BYTES: u32 = 64 * 1024;

/// Opens the port. Accepted connections inherit the send buffer.
///
/// # Errors
/// The address is in use, not ours, or not allowed.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Otherwise a restarted proxy has to wait for its old connections to leave TIME_WAIT. On Windows the same option
    // means something else: sharing the port.
    if cfg!(unix) {
        socket.set_reuseaddr(true)?;
    }
    socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// What bounds the loop.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections whose request head is being read. Whoever comes beyond is refused at once.
    pub max_heads: usize,
    /// How long a refused peer may take to read its answer.
    pub close_timeout: Duration,
    /// How long the tasks may take to end once the shutdown has begun.
    pub drain_timeout: Duration,
}

impl From<&Config> for Limits {
    fn from(config: &Config) -> Self {
        let &Config { max_heads, close_timeout, drain_timeout, .. } = config;
        Limits { max_heads, close_timeout, drain_timeout }
    }
}

/// A new connection, and a place among those whose head is being read.
#[derive(Debug)]
pub struct Accepted {
    /// The connection, without Nagle's delay.
    pub stream: TcpStream,
    /// Its other end.
    pub peer: SocketAddr,
    /// To be dropped once the head is read.
    pub head_slot: HeadSlot,
}

/// A place among the connections whose request head is being read, given back when it is dropped.
#[derive(Debug)]
pub struct HeadSlot {
    _permit: OwnedSemaphorePermit,
}

/// The places for connections whose request head is being read.
#[derive(Clone, Debug)]
pub(crate) struct HeadSlots(Arc<Semaphore>);

impl HeadSlots {
    pub(crate) fn new(max: usize) -> Self {
        HeadSlots(Arc::new(Semaphore::new(max)))
    }

    pub(crate) fn try_take(&self) -> Option<HeadSlot> {
        let permit = Arc::clone(&self.0).try_acquire_owned().ok()?;
        Some(HeadSlot { _permit: permit })
    }
}

/// What the loop and others look at while it runs. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Lobby {
    heads: HeadSlots,
    upgrades: Upgrades,
}

impl Lobby {
    /// With a place for each head of `limits`; who finds none is counted in `upgrades`.
    pub fn new(limits: &Limits, upgrades: Upgrades) -> Self {
        Lobby { heads: HeadSlots::new(limits.max_heads), upgrades }
    }

    /// Whether the next connection would find a place.
    pub(crate) fn has_room(&self) -> bool {
        self.heads.0.available_permits() > 0
    }
}

/// What the loop did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Connections that a handler got.
    pub accepted: u64,
    /// Handlers that panicked; each is in the log.
    pub panicked: u64,
    /// Handlers and answers that were cut off at the drain deadline or at a forced shutdown.
    pub cut_off: usize,
}

/// Accepts connections and runs `handler` for each until the shutdown begins; from then on new ones are answered 503
/// until the last handler is done, the drain deadline has passed, or the shutdown is forced. Handlers have to watch the
/// shutdown themselves; those that outlive the loop are aborted.
///
/// # Cancel safety
/// Dropping the future closes the port and aborts every handler.
pub async fn accept_loop<H, F>(
    listener: TcpListener,
    limits: Limits,
    lobby: Lobby,
    shutdown: Shutdown,
    handler: H,
) -> Served
where
    H: Fn(Accepted) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    let mut front = Front::new(limits, lobby);
    let mut begun = pin!(shutdown.begun());
    let mut forced = pin!(shutdown.forced());
    let mut drained_by = None;
    loop {
        let event = tokio::select! {
            accepted = listener.accept(), if !front.shortage.pauses() => Event::Accepted(accepted),
            () = sleep_until(front.shortage.until()), if front.shortage.pauses() => Event::PauseOver,
            Some(done) = front.tasks.join_next(), if !front.tasks.is_empty() => Event::Done(done),
            () = &mut begun, if drained_by.is_none() => Event::Begun,
            () = sleep_until(drained_by.unwrap_or_else(Instant::now)), if drained_by.is_some() => Event::DrainDeadline,
            () = &mut forced => Event::Forced,
        };
        match event {
            Event::Accepted(Ok((stream, peer))) => front.welcome(stream, peer, drained_by.is_some(), &handler),
            Event::Accepted(Err(error)) => front.shortage.failed(&error, Instant::now()),
            Event::PauseOver => front.shortage.pause_over(),
            Event::Done(done) => front.done(done),
            Event::Begun => drained_by = Some(Instant::now() + limits.drain_timeout),
            Event::DrainDeadline | Event::Forced => break,
        }
        if drained_by.is_some() && front.tasks.is_empty() {
            break;
        }
    }
    front.close().await
}

enum Event {
    Accepted(io::Result<(TcpStream, SocketAddr)>),
    PauseOver,
    Done(Result<Ending, JoinError>),
    Begun,
    DrainDeadline,
    Forced,
}

/// Which kind of task has ended.
enum Ending {
    Handler,
    Answer,
}

struct Front {
    limits: Limits,
    lobby: Lobby,
    /// Answers that are being written to peers without a handler. As many as there may be heads.
    answers: Arc<Semaphore>,
    tasks: JoinSet<Ending>,
    shortage: Shortage,
    served: Served,
}

impl Front {
    fn new(limits: Limits, lobby: Lobby) -> Self {
        Front {
            limits,
            lobby,
            answers: Arc::new(Semaphore::new(limits.max_heads)),
            tasks: JoinSet::new(),
            shortage: Shortage::default(),
            served: Served::default(),
        }
    }

    fn welcome<H, F>(&mut self, stream: TcpStream, peer: SocketAddr, draining: bool, handler: &H)
    where
        H: Fn(Accepted) -> F,
        F: Future<Output = ()> + Send + 'static,
    {
        self.shortage.accepted();
        // It fails only when the connection is already gone, which its first read will tell.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%peer, "no TCP_NODELAY: {error}");
        }
        if draining {
            return self.turn_away(stream, peer, Refusal::Draining);
        }
        let Some(head_slot) = self.lobby.heads.try_take() else {
            return self.turn_away(stream, peer, Refusal::TooManyUpgrades);
        };
        self.served.accepted += 1;
        let task = handler(Accepted { stream, peer, head_slot });
        self.tasks.spawn(async move {
            task.await;
            Ending::Handler
        });
    }

    /// Answers without having read anything.
    fn turn_away(&mut self, mut stream: TcpStream, peer: SocketAddr, refusal: Refusal) {
        self.lobby.upgrades.refused(refusal);
        tracing::debug!(%peer, "turned away: {}", refusal.label());
        // The method is not known: a HEAD gets a body too, and the connection ends after it.
        let answer = refusal.answer_to(None);
        match Arc::clone(&self.answers).try_acquire_owned() {
            Ok(permit) => {
                let close_timeout = self.limits.close_timeout;
                self.tasks.spawn(async move {
                    farewell(&mut stream, &answer, refusal, close_timeout).await;
                    drop(permit);
                    Ending::Answer
                });
            }
            // A flood. The empty send buffer takes the answer; whether the peer sees it before the reset is up to luck.
            Err(_) => {
                let written = stream.into_std().and_then(|mut socket| io::Write::write(&mut socket, &answer));
                if let Err(error) = written {
                    tracing::debug!(%peer, "not even an answer: {error}");
                }
            }
        }
    }

    fn done(&mut self, done: Result<Ending, JoinError>) {
        match done {
            Ok(Ending::Handler | Ending::Answer) => {}
            Err(error) if error.is_panic() => {
                self.served.panicked += 1;
                tracing::error!("a connection's task panicked: {error}");
            }
            // Nobody aborts a task before the loop has ended.
            Err(error) => tracing::error!("a connection's task vanished: {error}"),
        }
    }

    async fn close(mut self) -> Served {
        while let Some(done) = self.tasks.try_join_next() {
            self.done(done);
        }
        self.served.cut_off = self.tasks.len();
        if self.served.cut_off > 0 {
            // Sessions have a count of their own; here are also upgrades and answers.
            tracing::info!("{} connections had not ended and are cut off", self.served.cut_off);
        }
        self.tasks.shutdown().await;
        self.served
    }
}

#[cfg(test)]
mod tests;
