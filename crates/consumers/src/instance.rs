//! One instance of one consumer: it connects, receives, comes back when it should and leaves when told.

use std::sync::Arc;
use std::time::Duration;

use service::backoff::Backoff;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, sleep};
use tokio_tungstenite::WebSocketStream;

use crate::args::Protocol;
use crate::behaviour::Behaviour;
use crate::dial::{Socket, Who};
use crate::policy::{End, Failure, Next, after_end, after_failure, proves_recovery};
use crate::raw;
use crate::tally::{LIMITS, Tally};
use crate::v1::session::{self, Manner};
use crate::world::{Event, Outcome, World};

/// The longest first pause before a reconnect; it doubles from there.
const BACKOFF_FIRST: Duration = Duration::from_millis(500);

/// One running instance.
pub(crate) struct Instance {
    world: Arc<World>,
    backoff: Backoff,
    behaviour: Behaviour,
    turn: usize,
    outcome: Outcome,
}

impl Instance {
    /// An instance that starts with the `turn`-th URL.
    pub(crate) fn new(world: Arc<World>, who: Who, turn: usize, behaviour: Behaviour) -> Self {
        let backoff = Backoff::new(BACKOFF_FIRST, world.backoff_cap);
        Self { world, backoff, behaviour, turn, outcome: Outcome::new(who, Tally::new(LIMITS)) }
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
        world.tell(Event::Connected).await;
        let end = self.serve(world, &mut *socket).await;
        drop(socket);
        self.on_end(world, end, opened_at.elapsed()).await
    }

    /// `None` when the shutdown comes first.
    async fn connect(&mut self, world: &World) -> Option<Result<Socket, Failure>> {
        let turn = self.turn;
        self.turn = self.turn.wrapping_add(1);
        let (who, resume) = (self.outcome.who, self.outcome.opened > 0);
        // Boxed: the handshake's state is many times that of an open connection and lives for milliseconds.
        let dial = Box::pin(async {
            // Never closed. Whoever is ahead in the queue is bounded by its own deadlines.
            let _permit = world.permits.acquire().await;
            world.dialer.dial(who, turn, resume).await
        });
        tokio::select! {
            result = dial => Some(result),
            () = world.shutdown.begun() => None,
        }
    }

    /// Boxed: what a dialect keeps lives as long as its connection, not as long as the instance.
    async fn serve<S>(&mut self, world: &World, socket: &mut WebSocketStream<S>) -> End
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let (behaviour, resume, outcome) = (self.behaviour, self.outcome.opened > 1, &mut self.outcome);
        match world.protocol {
            Protocol::Raw => raw::serve(world, outcome, behaviour, socket).await,
            Protocol::V1 => Box::pin(session::serve(world, outcome, Manner { behaviour, resume }, socket)).await,
        }
    }

    async fn on_failure(&mut self, world: &World, failure: Failure) -> Option<Duration> {
        match failure {
            Failure::Local(_) => self.outcome.local += 1,
            _ => self.outcome.failed += 1,
        }
        let next = after_failure(&failure);
        self.outcome.stopped = next == Next::Stop;
        let (who, stopped) = (self.outcome.who, self.outcome.stopped);
        world.tell(Event::Failed { who, failure, stopped }).await;
        self.pause_before(next, Duration::ZERO, true)
    }

    async fn on_end(&mut self, world: &World, end: End, lived: Duration) -> Option<Duration> {
        let next = if end == End::Left { None } else { Some(after_end(&end)) };
        self.outcome.dropped += u64::from(next.is_some());
        self.outcome.stopped = next == Some(Next::Stop);
        let recovered = proves_recovery(&end, lived, world.backoff_cap);
        if recovered {
            self.backoff.reset();
        }
        let (who, stopped) = (self.outcome.who, self.outcome.stopped);
        world.tell(Event::Ended { who, end, stopped }).await;
        self.pause_before(next?, world.crowd, !recovered)
    }

    /// The others that lost the same server spread over `crowd`. A server in `trouble` is left alone for longer and
    /// longer, whatever it asks for: one that names a short window and closes at once would be asked at full speed.
    fn pause_before(&mut self, next: Next, crowd: Duration, trouble: bool) -> Option<Duration> {
        let backoff = if trouble || next == Next::Backoff { self.backoff.next() } else { Duration::ZERO };
        match next {
            Next::Stop => None,
            Next::Backoff => Some(backoff + crowd.mul_f64(rand::random())),
            Next::After(wait) => Some(wait + backoff),
            Next::Within(earliest, latest) => {
                Some(earliest + latest.saturating_sub(earliest).mul_f64(rand::random()) + backoff)
            }
        }
    }
}

#[cfg(test)]
mod tests;
