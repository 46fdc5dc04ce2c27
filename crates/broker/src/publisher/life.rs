//! One life of a publisher's channel: from its opening to the last answer that it gave.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::protocol::{AMQPErrorKind, AMQPSoftError};
use lapin::types::ShortString;
use lapin::{Channel, ChannelState, Confirmation, Connection, ErrorKind};
use protocol::names::EXCHANGE_DIRECT;
use tokio::time::{Instant, sleep_until, timeout};

use super::drain::drain;
use super::outcomes::Completion;
use super::undecided::{Loss, Order};
use crate::link::Link;

/// After a loss lapin rejects what is on its way at once, but for frames that it had not written yet.
const LOSS_DRAIN: Duration = Duration::from_secs(1);
/// For a close handshake, which a blocked connection does not answer.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// How often it is looked whether the broker blocks the connection.
const LOOK: Duration = Duration::from_secs(1);

/// Why a channel is of no use any more.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The broker closed it for the sake of one message: 406 (or 311) is about its size.
    #[error("{0}")]
    Message(lapin::Error),
    /// The broker closed it whatever is published: 404 when the exchange is gone, 403 when the user may not write to it.
    #[error(
        "the broker refuses to publish to {EXCHANGE_DIRECT} ({0}); \
         check exchange and permissions, or load rabbit_definitions.json"
    )]
    Exchange(lapin::Error),
    /// The connection was lost.
    #[error("the connection was lost ({0})")]
    Connection(lapin::Error),
    /// The connection lives and is not blocked, but nothing was answered for so long.
    #[error("no confirm arrived for {0:?}")]
    Silent(Duration),
}

impl Failure {
    /// Whom it blames.
    pub(super) fn loss(&self) -> Loss {
        match self {
            Self::Message(_) => Loss::Message,
            Self::Exchange(_) => Loss::Channel,
            Self::Connection(_) | Self::Silent(_) => Loss::Connection,
        }
    }

    /// Whether the next channel needs another connection. On the same one it would meet the same at once; the link makes
    /// a pause, and looks at the exchange first.
    pub(super) fn taints_connection(&self) -> bool {
        matches!(self, Self::Exchange(_) | Self::Silent(_))
    }

    /// What is published after the loss hears only that the channel is closed; the broker's own word says more.
    fn is_from_broker(&self) -> bool {
        match self {
            Self::Message(_) | Self::Exchange(_) => true,
            Self::Connection(error) => error.is_amqp_error(),
            Self::Silent(_) => false,
        }
    }
}

impl From<lapin::Error> for Failure {
    fn from(error: lapin::Error) -> Self {
        let ErrorKind::ProtocolError(amqp) = error.kind() else { return Self::Connection(error) };
        match amqp.kind() {
            AMQPErrorKind::Soft(
                AMQPSoftError::NOTFOUND | AMQPSoftError::ACCESSREFUSED | AMQPSoftError::RESOURCELOCKED,
            ) => Self::Exchange(error),
            AMQPErrorKind::Soft(_) => Self::Message(error),
            AMQPErrorKind::Hard(_) => Self::Connection(error),
        }
    }
}

type InFlight = FuturesUnordered<BoxFuture<'static, (u64, lapin::Result<Confirmation>)>>;

/// A channel in confirm mode and what is on its way on it. With it goes everything that could still answer.
pub(super) struct Life {
    /// Not held: the link's driver decides when a connection ends.
    connection: Weak<Connection>,
    channel: Arc<Channel>,
    in_flight: InFlight,
    /// When the broker last answered, or the first publish on an idle channel began, or the connection was blocked.
    progress_at: Instant,
    /// And until when answers from before it are collected.
    failure: Option<(Failure, Instant)>,
}

/// What a [`Life::step`] brought.
pub(super) enum Step {
    /// Answers, which may be none.
    Answers(Vec<(u64, Completion)>),
    /// It is over, and nothing more will be answered.
    Over(Failure),
}

impl Life {
    /// Opens a channel, which may take `patience`.
    ///
    /// # Cancel safety
    /// Safe: a half-open channel is closed in the background.
    pub(super) async fn open(connection: &Arc<Connection>, patience: Duration) -> Result<Self, Failure> {
        let open = async {
            let channel = connection.create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            Ok::<_, lapin::Error>(channel)
        };
        let channel = timeout(patience, open).await.map_err(|_| Failure::Silent(patience))??;
        Ok(Self {
            connection: Arc::downgrade(connection),
            channel: Arc::new(channel),
            in_flight: FuturesUnordered::new(),
            progress_at: Instant::now(),
            failure: None,
        })
    }

    pub(super) fn connection(&self) -> &Weak<Connection> {
        &self.connection
    }

    /// Whether what is written now has a chance.
    pub(super) fn is_open(&self) -> bool {
        self.failure.is_none() && self.channel.status().connected()
    }

    /// How many publishes are on their way, given-up ones included.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Takes a publish; it is written by the next [`step`](Self::step).
    pub(super) fn publish(&mut self, order: Order, id: ShortString, key: ShortString) {
        if self.in_flight.is_empty() {
            self.progress_at = Instant::now();
        }
        let channel = Arc::clone(&self.channel);
        self.in_flight.push(Box::pin(async move {
            let Order { number, message, republished } = order;
            let options = BasicPublishOptions { mandatory: true, immediate: false };
            let properties = message.properties(id, republished);
            // Waiting for the write and for the confirm in one future lets all of the window be written
            // together; one after the other costs twice the CPU.
            let published =
                channel.basic_publish(EXCHANGE_DIRECT.into(), key, options, &message.body, properties).await;
            drop(message);
            match published {
                Ok(confirm) => (number, confirm.await),
                Err(error) => (number, Err(error)),
            }
        }));
    }

    /// Writes, and waits until something is answered or to be looked at; returns at once when nothing is on its way and
    /// the connection is not blocked.
    ///
    /// # Cancel safety
    /// Safe: it takes out what it returns in the same poll, and a failure that it has seen stays.
    pub(super) async fn step(&mut self, link: &Link, patience: Duration) -> Step {
        if self.in_flight.is_empty() {
            return self.idle(link).await;
        }
        let now = Instant::now();
        if link.is_blocked() {
            self.progress_at = now;
        }
        let due = self.failure.as_ref().map_or(self.progress_at + patience, |(_, until)| *until);
        let ready = tokio::select! {
            biased;
            ready = drain(&mut self.in_flight) => ready,
            () = sleep_until(due.min(now + LOOK)) => Vec::new(),
        };
        if !ready.is_empty() {
            self.progress_at = Instant::now();
            return Step::Answers(self.answers(ready));
        }
        if Instant::now() >= due {
            match self.failure.take() {
                Some((failure, _)) => return Step::Over(failure),
                None if link.is_blocked() => {}
                None => self.failed(Failure::Silent(patience)),
            }
        }
        Step::Answers(Vec::new())
    }

    /// As [`step`](Self::step), with nothing on its way.
    async fn idle(&mut self, link: &Link) -> Step {
        if let Some((failure, _)) = self.failure.take() {
            return Step::Over(failure);
        }
        if !self.is_open() {
            return Step::Over(Failure::Connection(
                ErrorKind::InvalidChannelState(ChannelState::Closed, "idle").into(),
            ));
        }
        if link.is_blocked() {
            link.unblocked().await;
        }
        Step::Answers(Vec::new())
    }

    fn answers(&mut self, ready: Vec<(u64, lapin::Result<Confirmation>)>) -> Vec<(u64, Completion)> {
        let mut answers = Vec::with_capacity(ready.len());
        for (number, result) in ready {
            match result {
                Ok(confirmation) => answers.push((number, completion(confirmation))),
                Err(error) => self.failed(error.into()),
            }
        }
        answers
    }

    fn failed(&mut self, failure: Failure) {
        match &mut self.failure {
            None => self.failure = Some((failure, Instant::now() + LOSS_DRAIN)),
            Some((known, _)) if !known.is_from_broker() && failure.is_from_broker() => *known = failure,
            Some(_) => {}
        }
    }

    /// Closes the channel, for at most a second. Dropping it closes it too, but in the background, where it may meet the
    /// close of the connection.
    pub(super) async fn close(self) {
        let _ = timeout(CLOSE_TIMEOUT, self.channel.close(200, "OK".into())).await;
    }
}

impl fmt::Debug for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Life").field("channel", &self.channel.id()).field("in_flight", &self.in_flight()).finish()
    }
}

fn completion(confirmation: Confirmation) -> Completion {
    let acked = !confirmation.is_nack();
    let carried = confirmation.take_message().map(|message| {
        let id = message.delivery.properties.message_id().as_ref().map(ToString::to_string).unwrap_or_default();
        (id, message.delivery.routing_key.to_string())
    });
    Completion { acked, carried }
}
