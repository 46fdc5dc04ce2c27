//! Publishing with confirms, mandatory, pipelined: each message ends as exactly one of confirmed, nacked, returned or
//! unconfirmed, through any number of lost connections. What a lost one left unanswered is published again.
//!
//! In reading order:
//!
//! - `message`: what is published, and how AMQP carries it.
//! - `tally`: how publishes ended, in numbers.
//! - [`Publisher`]: a sliding window of undecided messages over a [`Link`].
//! - `undecided`: which message is published when, and again, as arithmetic without a broker.
//! - `outcomes`: which publish of one channel ended how, likewise.
//! - `life`: one life of the channel.
//! - `drain`: what has completed, and nothing that completed earlier left out.

mod drain;
mod life;
mod message;
mod outcomes;
mod tally;
mod undecided;

use std::sync::{Arc, Weak};
use std::time::Duration;

use lapin::Connection;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, warn};

pub use message::{IdTooLong, Message};
pub use tally::Tally;

use life::{Failure, Life, Step};
use undecided::Undecided;

use crate::link::Link;

/// Between two tries to open a channel; the link has a backoff of its own.
const CHANNEL_PAUSE: Duration = Duration::from_millis(200);
/// How often it is said that the broker refuses messages.
const SAY_AGAIN: Duration = Duration::from_secs(30);

/// How a publisher works.
#[derive(Clone, Copy, Debug)]
pub struct PublisherOptions {
    /// Messages that are not decided. lapin looks at every one of them at each cumulative confirm, so beyond some
    /// thousands a larger window costs more than it gains.
    pub window: usize,
    /// A connection that is not blocked and answers nothing for this long is given up.
    pub confirm_timeout: Duration,
    /// How long a channel may take to open.
    pub open_timeout: Duration,
    /// A message that is not decided this long after it was accepted ends as unconfirmed; `None` is never.
    pub give_up: Option<Duration>,
}

/// A window of undecided messages, published on one channel after the other.
///
/// Everything happens while [`progress`](Self::progress) is polled: opening channels, writing, hearing answers. Messages
/// are published in the order of [`publish`](Self::publish), also the second time. Dropping it forgets what is
/// undecided: ask [`give_up`](Self::give_up) first.
pub struct Publisher {
    link: Link,
    options: PublisherOptions,
    undecided: Undecided,
    life: Option<Life>,
    /// The last connection, if it was of no use although it looks well.
    avoided: Weak<Connection>,
    /// No channel is opened before.
    pause_until: Instant,
    /// When a refused message was last said.
    said_refused: Option<Instant>,
}

/// What [`Publisher::progress`] waited for.
enum Event {
    Step(Step),
    Opened(Result<Life, Failure>),
    /// The only connection there is, is the one to avoid.
    Avoided,
    GiveUp,
}

impl Publisher {
    /// A publisher without a channel yet.
    pub fn new(link: Link, options: PublisherOptions) -> Self {
        Self {
            link,
            options,
            undecided: Undecided::default(),
            life: None,
            avoided: Weak::new(),
            pause_until: Instant::now(),
            said_refused: None,
        }
    }

    /// Whether one more message would be written at once: a channel is open and not blocked, the window has room, and
    /// nothing waits to be published again. If not, ask for [`progress`](Self::progress).
    ///
    /// What was given up keeps its place until the broker answers or the channel is gone, so that a broker that stopped
    /// answering does not fill memory.
    pub fn has_room(&self) -> bool {
        let Some(life) = &self.life else { return false };
        let used = life.in_flight().max(self.undecided.len());
        used < self.options.window && self.undecided.is_open() && self.may_write(life)
    }

    /// Nothing new into a blocked connection: lapin would keep it, and write it whenever the alarm is over.
    fn may_write(&self, life: &Life) -> bool {
        life.is_open() && !self.link.is_blocked()
    }

    /// Messages that have not ended yet.
    pub fn undecided(&self) -> usize {
        self.undecided.len()
    }

    /// Takes a message for publishing; it is written by the next [`progress`](Self::progress).
    ///
    /// # Errors
    /// [`IdTooLong`]; nothing is published then.
    pub fn publish(&mut self, message: Message) -> Result<(), IdTooLong> {
        message.names()?;
        self.undecided.accept(message, Instant::now());
        self.write();
        Ok(())
    }

    /// Opens a channel if there is none, writes, and waits until the broker answers or something else is to be looked
    /// at; says what ended meanwhile, which may be nothing yet. With an open channel it returns at once when nothing is
    /// undecided. A lost channel is no error: what it left unanswered is published again on the next one, however long
    /// that takes to come.
    ///
    /// # Cancel safety
    /// Safe: what it has seen stays in the publisher, and the next call goes on.
    pub async fn progress(&mut self) -> Tally {
        let give_up = self.options.give_up;
        let gives_up_at = give_up.and_then(|give_up| Some(self.undecided.oldest()? + give_up));
        let event = tokio::select! {
            biased;
            event = self.event() => event,
            () = sleep_until(gives_up_at.unwrap_or_else(Instant::now)), if gives_up_at.is_some() => Event::GiveUp,
        };
        match event {
            Event::Step(Step::Answers(answers)) => {
                for (number, completion) in answers {
                    self.undecided.completed(number, completion);
                }
            }
            Event::Step(Step::Over(failure)) => self.over(&failure),
            Event::Opened(Ok(life)) => self.life = Some(life),
            Event::Opened(Err(failure)) => {
                if !matches!(failure, Failure::Connection(_)) {
                    self.link.suspect(failure.to_string());
                }
                self.pause();
            }
            Event::Avoided => self.pause(),
            Event::GiveUp => {}
        }
        if let Some(until) = give_up.and_then(|give_up| Instant::now().checked_sub(give_up)) {
            self.undecided.expire(until);
        }
        self.write();
        self.undecided.settle()
    }

    async fn event(&mut self) -> Event {
        if let Some(life) = &mut self.life {
            return Event::Step(life.step(&self.link, self.options.confirm_timeout).await);
        }
        sleep_until(self.pause_until).await;
        let connection = self.link.ready().await;
        if Weak::as_ptr(&self.avoided) == Arc::as_ptr(&connection) {
            return Event::Avoided;
        }
        Event::Opened(Life::open(&connection, self.options.open_timeout).await)
    }

    fn pause(&mut self) {
        self.pause_until = Instant::now() + CHANNEL_PAUSE;
    }

    /// The channel is gone. The link says what became of the connection.
    fn over(&mut self, failure: &Failure) {
        let Some(life) = self.life.take() else { return };
        if failure.taints_connection() {
            self.avoided = life.connection().clone();
            self.link.suspect(failure.to_string());
        }
        let culprit = self.undecided.lost(failure.loss());
        debug!("a channel is gone ({failure}); to be published again: {}", self.undecided.len());
        let silent = self.said_refused.is_some_and(|at| at.elapsed() < SAY_AGAIN);
        if let Some(message) = culprit
            && !silent
        {
            self.said_refused = Some(Instant::now());
            let (id, key, bytes) = (&message.id, message.routing_key.as_str(), message.body.len());
            warn!("the broker refuses messages; counted as nacked: {id} to {key}, {bytes} bytes: {failure}");
        }
    }

    /// Hands to the channel what is to be published now.
    fn write(&mut self) {
        let blocked = self.link.is_blocked();
        let Some(life) = &mut self.life else { return };
        while life.is_open() && !blocked && life.in_flight() < self.options.window {
            let Some(order) = self.undecided.next(life.in_flight()) else { return };
            // Looked at when the message was accepted.
            let Ok((id, key)) = order.message.names() else { return };
            life.publish(order, id, key);
        }
    }

    /// Nobody waits any longer: ends as unconfirmed what the broker has not answered yet.
    pub fn give_up(&mut self) -> Tally {
        self.undecided.abandon()
    }

    /// Closes the channel, for at most a second. Dropping the publisher closes it too, but in the background, where it
    /// may meet the close of the connection.
    pub async fn close(self) {
        if let Some(life) = self.life {
            life.close().await;
        }
    }
}
