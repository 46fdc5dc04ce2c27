//! Publishing with confirms, mandatory, pipelined: each publish ends as exactly one of confirmed, nacked,
//! returned or unconfirmed.
//!
//! In reading order:
//!
//! - [`Publisher`]: one channel of a [`Link`], with a sliding window of publishes in flight.
//! - `drain`: what has completed, and nothing that completed earlier left out.
//! - `outcomes`: which publish ended how, as arithmetic without a broker.

mod drain;
mod outcomes;

use std::fmt;
use std::ops::AddAssign;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Confirmation};
use protocol::names::{EXCHANGE_DIRECT, RoutingKey};
use tokio::time::{Instant, sleep_until, timeout};

use drain::drain;
use outcomes::{Completion, Outcomes};

use crate::link::Link;

/// When a message was sent, in µs since 1970, signed 64 bits.
const HEADER_SENT_AT: &str = "x-sent-at";
const CONTENT_TYPE: &str = "text/plain";
/// AMQP 0-9-1, basic class, `delivery-mode`.
const TRANSIENT: u8 = 1;
/// As [`TRANSIENT`]: survives a restart of the broker in a durable queue.
const PERSISTENT: u8 = 2;
/// After a loss lapin rejects what is in flight at once, but for frames that it had not written yet.
const LOSS_DRAIN: Duration = Duration::from_secs(1);

/// For a close handshake, which a blocked connection does not answer.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// One message for one consumer.
#[derive(Clone, Debug)]
pub struct Message {
    /// Its id, the same for all consumers that get it; at most 255 bytes.
    pub id: String,
    /// The consumer id.
    pub routing_key: RoutingKey,
    /// Any bytes.
    pub body: Vec<u8>,
    /// µs since 1970.
    pub sent_at_micros: i64,
    /// Whether a durable queue writes it to disk.
    pub persistent: bool,
}

/// How many publishes ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Every queue that it was routed to has it.
    pub confirmed: u64,
    /// A queue refused it: full, with `reject-publish`.
    pub nacked: u64,
    /// No queue is bound for its consumer.
    pub returned: u64,
    /// Nobody knows: the connection was lost or the deadline passed before the broker answered.
    pub unconfirmed: u64,
}

impl Tally {
    /// All publishes that ended.
    pub fn total(&self) -> u64 {
        self.confirmed + self.nacked + self.returned + self.unconfirmed
    }

    /// Whether every one of them was confirmed.
    pub fn is_all_confirmed(&self) -> bool {
        self.confirmed == self.total()
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.confirmed += other.confirmed;
        self.nacked += other.nacked;
        self.returned += other.returned;
        self.unconfirmed += other.unconfirmed;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { confirmed, nacked, returned, unconfirmed } = self;
        write!(f, "confirmed {confirmed}, nacked {nacked}, returned {returned}, unconfirmed {unconfirmed}")
    }
}

/// A message that AMQP cannot carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message id has {0} bytes; AMQP carries at most 255")]
pub struct IdTooLong(usize);

/// Why a [`Publisher`] is of no use any more. The link reconnects; ask it for another one.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PublishError {
    /// The broker closed the channel: 404 when the exchange is gone, 403 when the user may not write to it.
    #[error(
        "the broker refuses to publish to {EXCHANGE_DIRECT} ({0}); \
         check exchange and permissions, or load rabbit_definitions.json"
    )]
    Refused(lapin::Error),
    /// The connection was lost.
    #[error("the connection was lost ({0})")]
    Lost(lapin::Error),
    /// The connection lives and is not blocked, but no confirm came for a whole confirm timeout.
    #[error("no confirm arrived for {0:?}")]
    Stuck(Duration),
}

impl From<lapin::Error> for PublishError {
    fn from(error: lapin::Error) -> Self {
        if error.is_amqp_soft_error() { Self::Refused(error) } else { Self::Lost(error) }
    }
}

/// How a publisher works.
#[derive(Clone, Copy, Debug)]
pub struct PublisherOptions {
    /// Publishes in flight. lapin looks at every one of them at each cumulative confirm, so beyond some thousands
    /// a larger window costs more than it gains.
    pub window: usize,
    /// A publish without an answer for this long has ended as unconfirmed.
    pub confirm_timeout: Duration,
}

type InFlight = FuturesUnordered<BoxFuture<'static, (u64, lapin::Result<Confirmation>)>>;

/// One channel in confirm mode and what is in flight on it.
///
/// Publishes are written while [`progress`](Self::progress) is polled, in the order of
/// [`publish`](Self::publish). Dropping it drops what is in flight: ask [`give_up`](Self::give_up) first.
pub struct Publisher {
    link: Link,
    channel: Arc<Channel>,
    options: PublisherOptions,
    in_flight: InFlight,
    outcomes: Outcomes,
    last_completion: Instant,
}

impl Publisher {
    /// A publisher on a channel of its own, as soon as the connection is there and not blocked; the channel may take
    /// `patience` to open.
    ///
    /// # Errors
    /// The connection was lost meanwhile, or it has no more channels; the link's driver says so and reconnects.
    ///
    /// # Cancel safety
    /// Safe: a half-open channel is closed in the background.
    pub async fn open(link: &Link, options: PublisherOptions, patience: Duration) -> Result<Self, PublishError> {
        let connection = link.ready().await;
        let open = async {
            let channel = connection.create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            Ok::<_, lapin::Error>(channel)
        };
        let error = match timeout(patience, open).await {
            Ok(Ok(channel)) => return Ok(Self::new(link.clone(), channel, options)),
            Ok(Err(error)) => error.into(),
            Err(_) => PublishError::Stuck(patience),
        };
        if !matches!(error, PublishError::Lost(_)) {
            link.suspect(error.to_string());
        }
        Err(error)
    }

    fn new(link: Link, channel: Channel, options: PublisherOptions) -> Self {
        Self {
            link,
            channel: Arc::new(channel),
            options,
            in_flight: FuturesUnordered::new(),
            outcomes: Outcomes::default(),
            last_completion: Instant::now(),
        }
    }

    /// Whether its channel is open still; what is published on a closed one ends as unconfirmed.
    pub fn is_open(&self) -> bool {
        self.channel.status().connected()
    }

    /// How many more publishes fit into the window.
    ///
    /// What was given up keeps its place until the broker answers, so that a broker that stopped answering does
    /// not fill memory.
    pub fn room(&self) -> usize {
        let used = self.in_flight.len().max(self.outcomes.undecided());
        self.options.window.saturating_sub(used)
    }

    /// Publishes that have not ended yet.
    pub fn undecided(&self) -> usize {
        self.outcomes.undecided()
    }

    /// Takes a message for publishing; it is written by the next [`progress`](Self::progress).
    ///
    /// # Errors
    /// [`IdTooLong`]; nothing is published then.
    pub fn publish(&mut self, message: Message) -> Result<(), IdTooLong> {
        let properties = properties(&message)?;
        // A RoutingKey has at most 255 bytes, and so has the exchange's name.
        let Ok(key) = ShortString::try_new(message.routing_key.as_str()) else {
            return Err(IdTooLong(message.routing_key.as_str().len()));
        };
        let channel = Arc::clone(&self.channel);
        let number = self.outcomes.published(message.id, message.routing_key, Instant::now());
        let body = message.body;
        self.in_flight.push(Box::pin(async move {
            let options = BasicPublishOptions { mandatory: true, immediate: false };
            // Waiting for the write and for the confirm in one future lets all of the window be written
            // together; one after the other costs twice the CPU.
            let published = channel.basic_publish(EXCHANGE_DIRECT.into(), key, options, &body, properties).await;
            drop(body);
            match published {
                Ok(confirm) => (number, confirm.await),
                Err(error) => (number, Err(error)),
            }
        }));
        Ok(())
    }

    /// Writes, waits until the broker answers or a deadline passes, and says what ended, which may be nothing yet;
    /// returns at once when nothing is in flight.
    ///
    /// # Errors
    /// The channel cannot be used any more. What has not ended is counted by [`lost`](Self::lost).
    ///
    /// # Cancel safety
    /// Safe: what it has seen stays in the publisher, and the next call goes on.
    pub async fn progress(&mut self) -> Result<Tally, PublishError> {
        if self.in_flight.is_empty() {
            return Ok(self.outcomes.settle());
        }
        let due = self.outcomes.oldest().unwrap_or(self.last_completion) + self.options.confirm_timeout;
        let ready = tokio::select! {
            biased;
            ready = drain(&mut self.in_flight) => ready,
            () = sleep_until(due) => Vec::new(),
        };
        if ready.is_empty() {
            self.overdue()?;
        }
        self.record(ready)?;
        Ok(self.outcomes.settle())
    }

    /// After an error of [`progress`](Self::progress): collects, for at most a second, what the broker had answered
    /// before the loss, and ends the rest as unconfirmed.
    pub async fn lost(mut self) -> Tally {
        let _ = timeout(LOSS_DRAIN, self.drain_all()).await;
        self.give_up()
    }

    /// Nobody waits any longer: ends as unconfirmed what the broker has not answered yet.
    pub fn give_up(&mut self) -> Tally {
        self.outcomes.abandon()
    }

    /// Closes the channel, for at most a second. Dropping the publisher closes it too, but in the background, where it
    /// may meet the close of the connection.
    pub async fn close(self) {
        let _ = timeout(CLOSE_TIMEOUT, self.channel.close(200, "OK".into())).await;
    }

    async fn drain_all(&mut self) {
        while !self.in_flight.is_empty() {
            let ready = drain(&mut self.in_flight).await;
            let _ = self.record(ready);
        }
    }

    /// The oldest publish is due, or there is none left and the window is full of given-up ones.
    fn overdue(&mut self) -> Result<(), PublishError> {
        let now = Instant::now();
        if self.outcomes.undecided() > 0 {
            self.outcomes.expire(now.checked_sub(self.options.confirm_timeout));
        } else if self.link.is_blocked() {
            self.last_completion = now;
        } else if now.duration_since(self.last_completion) >= self.options.confirm_timeout {
            let stuck = PublishError::Stuck(self.options.confirm_timeout);
            self.link.suspect(stuck.to_string());
            return Err(stuck);
        }
        Ok(())
    }

    fn record(&mut self, ready: Vec<(u64, lapin::Result<Confirmation>)>) -> Result<(), PublishError> {
        let mut lost: Option<lapin::Error> = None;
        for (number, result) in ready {
            self.last_completion = Instant::now();
            match completion(result) {
                Ok(completion) => self.outcomes.completed(number, completion),
                // What is published after the loss hears only that the channel is closed; the cause says more.
                Err(error) if lost.is_none() || error.is_amqp_error() => lost = Some(error),
                Err(_) => {}
            }
        }
        let Some(error) = lost.map(PublishError::from) else { return Ok(()) };
        // On the same connection the next channel would meet the same refusal at once; the driver makes a pause, and
        // looks at the exchange first. A lost connection it sees by itself, and may have replaced already.
        if !matches!(error, PublishError::Lost(_)) {
            self.link.suspect(error.to_string());
        }
        Err(error)
    }
}

fn properties(message: &Message) -> Result<BasicProperties, IdTooLong> {
    let id = ShortString::try_new(message.id.as_str()).map_err(|_| IdTooLong(message.id.len()))?;
    let mut headers = FieldTable::default();
    headers.insert(HEADER_SENT_AT.into(), AMQPValue::LongLongInt(message.sent_at_micros));
    Ok(BasicProperties::default()
        .with_content_type(CONTENT_TYPE.into())
        .with_delivery_mode(if message.persistent { PERSISTENT } else { TRANSIENT })
        .with_message_id(id)
        .with_timestamp(u64::try_from(message.sent_at_micros).unwrap_or_default() / 1_000_000)
        .with_headers(headers))
}

fn completion(result: lapin::Result<Confirmation>) -> lapin::Result<Completion> {
    let result = result?;
    let acked = !result.is_nack();
    let carried = result.take_message().map(|message| {
        let id = message.delivery.properties.message_id().as_ref().map(ToString::to_string).unwrap_or_default();
        (id, message.delivery.routing_key.to_string())
    });
    Ok(Completion { acked, carried })
}

#[cfg(test)]
mod tests;
