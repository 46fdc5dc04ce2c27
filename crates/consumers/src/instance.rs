//! One instance of one consumer: it connects, receives, comes back when it should and leaves when told.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::{SinkExt as _, StreamExt as _};
use protocol::close::CloseCode;
use protocol::load::Hello;
use service::backoff::Backoff;
use service::shutdown::Shutdown;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::dial::{Dialer, Socket, Who, socket_cause};
use crate::policy::{End, Failure, Next, after_end, after_failure, proves_recovery};
use crate::tally::{LIMITS, Tally, Verdict};

/// The longest first pause before a reconnect; it doubles from there.
const BACKOFF_FIRST: Duration = Duration::from_millis(500);

/// RFC 6455, 7.1.5: what stands for a close frame without a code.
const NO_CODE: u16 = 1005;

/// What an instance tells while it runs. What it counted comes at the end, as an [`Outcome`].
#[derive(Debug)]
pub(crate) enum Event {
    /// A message of a round arrived for the first time.
    Hello(Hello),
    /// The upgrade succeeded.
    Connected,
    /// No connection came about; with `stopped` this instance never tries again.
    Failed { who: Who, failure: Failure, stopped: bool },
    /// A connection ended; with `stopped` this instance never comes back.
    Ended { who: Who, end: End, stopped: bool },
}

/// What all instances share.
pub(crate) struct World {
    pub(crate) dialer: Dialer,
    /// Connects in progress.
    pub(crate) permits: Semaphore,
    /// Bounded: an instance that gets ahead of the printing waits, and its socket with it.
    pub(crate) events: mpsc::Sender<Event>,
    pub(crate) shutdown: Shutdown,
    pub(crate) arrivals: Arrivals,
    pub(crate) close_timeout: Duration,
    pub(crate) idle_timeout: Option<Duration>,
    pub(crate) backoff_cap: Duration,
}

/// For the lines that say how it goes; an event for each message would cost a load run half its rate.
#[derive(Default)]
pub(crate) struct Arrivals {
    /// Messages with their send time, repeats included.
    pub(crate) load: AtomicU64,
    /// Bodies that are no [`Hello`].
    pub(crate) other: AtomicU64,
}

/// What one instance did.
pub(crate) struct Outcome {
    pub(crate) who: Who,
    pub(crate) tally: Tally,
    pub(crate) other: u64,
    /// Connections that came about.
    pub(crate) opened: u64,
    /// Of these, ended by something else than our goodbye.
    pub(crate) dropped: u64,
    /// Connects that failed, this machine's limits apart.
    pub(crate) failed: u64,
    /// Connects that this machine's limits prevented.
    pub(crate) local: u64,
    /// Refused, or told to stay away.
    pub(crate) stopped: bool,
}

/// One running instance.
pub(crate) struct Instance {
    world: Arc<World>,
    backoff: Backoff,
    turn: usize,
    outcome: Outcome,
}

impl Instance {
    /// An instance that starts with the `turn`-th URL.
    pub(crate) fn new(world: Arc<World>, who: Who, turn: usize) -> Self {
        let backoff = Backoff::new(BACKOFF_FIRST, world.backoff_cap);
        let tally = Tally::new(LIMITS);
        let outcome = Outcome { who, tally, other: 0, opened: 0, dropped: 0, failed: 0, local: 0, stopped: false };
        Self { world, backoff, turn, outcome }
    }

    /// Boxed, since a future that is handed its state by value keeps room for it twice.
    ///
    /// Runs until the shutdown, or until the server says that this instance shall not come back.
    pub(crate) async fn run(mut self: Box<Self>) -> Outcome {
        let world = Arc::clone(&self.world);
        while let Some(pause) = self.connection(&world).await {
            tokio::select! {
                () = sleep(pause) => {}
                () = world.shutdown.begun() => break,
            }
        }
        self.outcome
    }

    /// One connection from the dial to its end; returns the pause before the next one, if there is one.
    async fn connection(&mut self, world: &World) -> Option<Duration> {
        let mut socket = match self.connect(world).await? {
            Ok(socket) => socket,
            Err(failure) => return self.on_failure(world, failure).await,
        };
        let opened_at = Instant::now();
        self.outcome.opened += 1;
        tell(world, Event::Connected).await;
        let end = self.serve(world, &mut *socket).await;
        drop(socket);
        self.on_end(world, end, opened_at.elapsed()).await
    }

    /// `None` when the shutdown comes first.
    async fn connect(&mut self, world: &World) -> Option<Result<Socket, Failure>> {
        let turn = self.turn;
        self.turn = self.turn.wrapping_add(1);
        let who = self.outcome.who;
        // Boxed: the handshake's state is many times that of an open connection and lives for milliseconds.
        let dial = Box::pin(async {
            // Never closed. Whoever is ahead in the queue is bounded by its own deadlines.
            let _permit = world.permits.acquire().await;
            world.dialer.dial(who, turn).await
        });
        tokio::select! {
            result = dial => Some(result),
            () = world.shutdown.begun() => None,
        }
    }

    /// Receives until the connection ends; says goodbye when the shutdown begins. The ways out are boxed: they
    /// come once and would be the largest part of what every idle connection costs.
    async fn serve<S>(&mut self, world: &World, socket: &mut WebSocketStream<S>) -> End
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut begun = pin!(world.shutdown.begun());
        let patience = world.idle_timeout.unwrap_or_default();
        let mut heard_at = Instant::now();
        let mut silence = pin!(sleep_until(heard_at + patience));
        loop {
            tokio::select! {
                item = socket.next() => {
                    heard_at = Instant::now();
                    if let Some(end) = self.on_item(world, item).await {
                        return Box::pin(self.see_off(world, socket, end)).await;
                    }
                }
                () = &mut begun => return Box::pin(self.leave(world, socket)).await,
                () = &mut silence, if world.idle_timeout.is_some() => {
                    // The timer is moved only when it fires: once a minute instead of at each frame.
                    if heard_at.elapsed() >= patience {
                        return End::Silent;
                    }
                    silence.as_mut().reset(heard_at + patience);
                }
            }
        }
    }

    async fn on_item(&mut self, world: &World, item: Option<Result<Message, Error>>) -> Option<End> {
        match item {
            Some(Ok(Message::Text(text))) => self.on_body(world, text.as_bytes()).await,
            Some(Ok(Message::Binary(body))) => self.on_body(world, &body).await,
            Some(Ok(Message::Close(frame))) => {
                return Some(
                    frame.map_or(End::closed(NO_CODE, ""), |frame| End::closed(frame.code.into(), &frame.reason)),
                );
            }
            // tungstenite answers pings itself with the next read.
            Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
            Some(Err(error)) => return Some(End::Broken(socket_cause(&error))),
            None => return Some(End::Broken("connection ended without a close frame".into())),
        }
        None
    }

    async fn on_body(&mut self, world: &World, body: &[u8]) {
        let Some(hello) = Hello::parse(body) else {
            self.outcome.other += 1;
            world.arrivals.other.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let verdict = self.outcome.tally.record(&hello.producer, hello.number);
        if hello.sent_at_micros.is_some() {
            world.arrivals.load.fetch_add(1, Ordering::Relaxed);
        } else if verdict != Verdict::Duplicate {
            tell(world, Event::Hello(hello)).await;
        }
    }

    /// After the server's close frame: sends the answer and lets the server close first, so that the port
    /// waits out its TIME_WAIT there and not here.
    async fn see_off<S>(&mut self, world: &World, socket: &mut WebSocketStream<S>, end: End) -> End
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        if matches!(end, End::Closed { .. }) {
            let drained = async { while let Some(Ok(_)) = socket.next().await {} };
            tokio::select! {
                _ = timeout(world.close_timeout, drained) => {}
                () = world.shutdown.forced() => {}
            }
        }
        end
    }

    /// Our goodbye. What the server had already written is still counted: it is settled there.
    async fn leave<S>(&mut self, world: &World, socket: &mut WebSocketStream<S>) -> End
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let goodbye = CloseFrame { code: CloseCode::Normal.code().into(), reason: "".into() };
        let farewell = async {
            if socket.send(Message::Close(Some(goodbye))).await.is_err() {
                return;
            }
            loop {
                let item = socket.next().await;
                let over = matches!(item, None | Some(Err(_)));
                self.on_item(world, item).await;
                if over {
                    return;
                }
            }
        };
        tokio::select! {
            _ = timeout(world.close_timeout, farewell) => {}
            () = world.shutdown.forced() => {}
        }
        End::Left
    }

    async fn on_failure(&mut self, world: &World, failure: Failure) -> Option<Duration> {
        match failure {
            Failure::Local(_) => self.outcome.local += 1,
            _ => self.outcome.failed += 1,
        }
        let next = after_failure(&failure);
        self.outcome.stopped = next == Next::Stop;
        let (who, stopped) = (self.outcome.who, self.outcome.stopped);
        tell(world, Event::Failed { who, failure, stopped }).await;
        self.pause_before(next)
    }

    async fn on_end(&mut self, world: &World, end: End, lived: Duration) -> Option<Duration> {
        let next = if end == End::Left { None } else { Some(after_end(&end)) };
        self.outcome.dropped += u64::from(next.is_some());
        self.outcome.stopped = next == Some(Next::Stop);
        if proves_recovery(&end, lived, world.backoff_cap) {
            self.backoff.reset();
        }
        let (who, stopped) = (self.outcome.who, self.outcome.stopped);
        tell(world, Event::Ended { who, end, stopped }).await;
        self.pause_before(next?)
    }

    fn pause_before(&mut self, next: Next) -> Option<Duration> {
        match next {
            Next::Stop => None,
            Next::Backoff => Some(self.backoff.next()),
            Next::After(wait) => Some(wait + self.backoff.next()),
            Next::Within(earliest, latest) => {
                Some(earliest + latest.saturating_sub(earliest).mul_f64(rand::random::<f64>()))
            }
        }
    }
}

/// Nobody listens any more only when the program gives up on its instances.
async fn tell(world: &World, event: Event) {
    let _ = world.events.send(event).await;
}

#[cfg(test)]
mod tests;
