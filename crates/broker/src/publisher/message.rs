//! What is published, and how AMQP carries it.

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use protocol::names::{HEADER_REPUBLISHED, HEADER_SENT_AT, RoutingKey};

const CONTENT_TYPE: &str = "text/plain";
/// AMQP 0-9-1, basic class, `delivery-mode`.
const TRANSIENT: u8 = 1;
/// As [`TRANSIENT`]: survives a restart of the broker in a durable queue.
const PERSISTENT: u8 = 2;

/// One message for one consumer.
#[derive(Clone, Debug)]
pub struct Message {
    /// Its id, the same for all consumers that get it and for every copy; at most 255 bytes.
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

/// A message that AMQP cannot carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message id has {0} bytes; AMQP carries at most 255")]
pub struct IdTooLong(usize);

impl Message {
    /// Id and routing key, as AMQP carries them.
    pub(super) fn names(&self) -> Result<(ShortString, ShortString), IdTooLong> {
        let short = |text: &str| ShortString::try_new(text).map_err(|_| IdTooLong(text.len()));
        // A RoutingKey has at most 255 bytes.
        Ok((short(&self.id)?, short(self.routing_key.as_str())?))
    }

    /// What goes with the body of a copy that comes after `republished` others. Only the header differs: id, time and
    /// body are those of the first copy, so that a reader can tell the copies from two messages.
    pub(super) fn properties(&self, id: ShortString, republished: u32) -> BasicProperties {
        let mut headers = FieldTable::default();
        headers.insert(HEADER_SENT_AT.into(), AMQPValue::LongLongInt(self.sent_at_micros));
        if republished > 0 {
            headers.insert(HEADER_REPUBLISHED.into(), AMQPValue::LongLongInt(republished.into()));
        }
        BasicProperties::default()
            .with_content_type(CONTENT_TYPE.into())
            .with_delivery_mode(if self.persistent { PERSISTENT } else { TRANSIENT })
            .with_message_id(id)
            .with_timestamp(u64::try_from(self.sent_at_micros).unwrap_or_default() / 1_000_000)
            .with_headers(headers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Message {
        Message {
            id: "producer201.20902.8".to_owned(),
            routing_key: RoutingKey::new("consumer101").unwrap(),
            body: Vec::new(),
            sent_at_micros: 1_700_000_000_123_456,
            persistent: true,
        }
    }

    fn properties(republished: u32) -> BasicProperties {
        let message = message();
        message.properties(message.names().unwrap().0, republished)
    }

    #[test]
    fn a_message_says_who_it_is_and_when_it_was_sent() {
        let made = properties(0);
        assert_eq!(made.message_id().as_ref().unwrap().as_str(), "producer201.20902.8");
        assert_eq!(made.content_type().as_ref().unwrap().as_str(), "text/plain");
        assert_eq!(*made.timestamp(), Some(1_700_000_000));
        assert_eq!(*made.delivery_mode(), Some(2));
        let headers = made.headers().as_ref().unwrap().inner();
        assert_eq!(headers.get("x-sent-at"), Some(&AMQPValue::LongLongInt(1_700_000_000_123_456)));
        assert_eq!(headers.get("x-republished"), None);
        let too_long = Message { id: "x".repeat(256), persistent: false, ..message() };
        assert_eq!(too_long.names().unwrap_err(), IdTooLong(256));
    }

    #[test]
    fn a_later_copy_differs_by_its_number_alone() {
        let (first, mut third) = (properties(0), properties(2));
        let mut headers = third.headers().clone().unwrap();
        assert_eq!(headers.inner().get("x-republished"), Some(&AMQPValue::LongLongInt(2)));
        headers = headers.inner().iter().filter(|(name, _)| name.as_str() != "x-republished").fold(
            FieldTable::default(),
            |mut table, (name, value)| {
                table.insert(name.clone(), value.clone());
                table
            },
        );
        third = third.with_headers(headers);
        assert_eq!(first, third);
    }
}
