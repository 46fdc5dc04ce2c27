//! The exchanges and queues as `rabbit_definitions.json` names them.

use lapin::{
    Channel, Connection, ErrorKind, ExchangeKind, Queue,
    options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions},
    protocol::{AMQPErrorKind, AMQPSoftError},
    types::{AMQPValue, FieldTable, ShortString},
};
use protocol::names::{EXCHANGE_CONTROL, EXCHANGE_DIRECT, QueueName, RoutingKey};

/// What the broker said no to, or that it did not answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TopologyError {
    /// The queue exists with other arguments (406).
    #[error("the queue exists with other arguments: {0}")]
    Mismatch(String),
    /// The queue or exchange does not exist (404).
    #[error("not found: {0}")]
    NotFound(String),
    /// An exchange of the definitions does not exist.
    #[error("the exchange {0:?} does not exist; load rabbit_definitions.json into the broker")]
    NoExchange(&'static str),
    /// The user lacks a permission (403), somebody else holds the queue exclusively (405), or a limit is reached (406).
    #[error("the broker refuses: {0}; compare permissions and limits with rabbit_definitions.json")]
    Forbidden(String),
    /// The connection or channel was lost; trying again may help.
    #[error("the broker went away: {0}")]
    Gone(String),
}

impl TopologyError {
    /// Whether the same request may succeed later without anybody changing anything.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Gone(_))
    }

    pub(crate) fn of(error: &lapin::Error) -> Self {
        let text = error.to_string();
        let ErrorKind::ProtocolError(amqp) = error.kind() else { return Self::Gone(text) };
        match amqp.kind() {
            AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND) => Self::NotFound(text),
            AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED) if text.contains("inequivalent arg") => {
                Self::Mismatch(text)
            }
            // 406 is also what a vhost that has all the queues it may have says.
            AMQPErrorKind::Soft(
                AMQPSoftError::ACCESSREFUSED | AMQPSoftError::RESOURCELOCKED | AMQPSoftError::PRECONDITIONFAILED,
            ) => Self::Forbidden(text),
            _ => Self::Gone(text),
        }
    }
}

/// An exchange of the definitions.
#[derive(Clone, Debug)]
pub struct Exchange {
    name: &'static str,
    kind: ExchangeKind,
}

/// Where producers publish.
pub const DIRECT: Exchange = Exchange { name: EXCHANGE_DIRECT, kind: ExchangeKind::Direct };
/// Where proxies talk to each other.
pub const CONTROL: Exchange = Exchange { name: EXCHANGE_CONTROL, kind: ExchangeKind::Fanout };

/// Looks whether exchanges of the definitions exist; declares nothing.
pub(crate) async fn check_exchanges(connection: &Connection, exchanges: &[Exchange]) -> Result<(), TopologyError> {
    let passive = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
    for Exchange { name, kind } in exchanges {
        let channel = connection.create_channel().await.map_err(|error| TopologyError::of(&error))?;
        let checked = channel.exchange_declare((*name).into(), kind.clone(), passive, FieldTable::default()).await;
        checked.map_err(|error| match TopologyError::of(&error) {
            TopologyError::NotFound(_) => TopologyError::NoExchange(name),
            other => other,
        })?;
        channel.close(200, "looked".into()).await.map_err(|error| TopologyError::of(&error))?;
    }
    Ok(())
}

/// Declares a mailbox: durable; what lets it expire and bounds it comes from the policy, since an argument can never be
/// changed later. Arguments are what no policy can set: the single active consumer, and the type, which otherwise is the
/// vhost's default (a quorum queue drops what was handed back too often).
pub(crate) async fn declare(channel: &Channel, queue: &QueueName) -> lapin::Result<Queue> {
    let mut arguments = FieldTable::default();
    arguments.insert("x-single-active-consumer".into(), AMQPValue::Boolean(true));
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("classic".into()));
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(short(queue.as_str()), durable, arguments).await
}

/// Looks at a queue; an absent one closes the channel (404).
pub(crate) async fn look(channel: &Channel, queue: &QueueName) -> lapin::Result<Queue> {
    let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(short(queue.as_str()), passive, FieldTable::default()).await
}

/// Binds a mailbox to the direct exchange.
pub(crate) async fn bind(channel: &Channel, queue: &QueueName, key: &RoutingKey) -> lapin::Result<()> {
    let (queue, key) = (short(queue.as_str()), short(key.as_str()));
    channel.queue_bind(queue, EXCHANGE_DIRECT.into(), key, QueueBindOptions::default(), FieldTable::default()).await
}

/// `ShortString::from` panics above 255 bytes, so only names whose type bounds them come here.
pub(crate) fn short(bounded: &str) -> ShortString {
    ShortString::try_new(bounded).unwrap_or_default()
}
