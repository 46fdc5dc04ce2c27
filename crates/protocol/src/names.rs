//! The broker's names. What ends up in them comes from tokens and URLs, so every part is encoded,
//! and what does not fit is refused here, before anything is sent.

use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::text::Escaped;

/// Producers publish here, with the consumer id as the routing key. A durable direct exchange.
pub const EXCHANGE_DIRECT: &str = "exchange.direct";

/// The proxies talk to one another here. A durable fanout exchange.
pub const EXCHANGE_CONTROL: &str = "exchange.control";

/// When a message was sent first, in unix microseconds, as a signed 64-bit integer. An AMQP timestamp under this name is no
/// such time: it counts seconds (AMQP 0-9-1, section 4.2.5.4), so as microseconds it would lie in 1970, and multiplied it
/// would pretend to a precision a thousand times that of what is measured with it.
pub const HEADER_SENT_AT: &str = "x-sent-at";

/// How often `producers` had published a message before, as a signed 64-bit integer from 1; a first copy has no such header.
pub const HEADER_REPUBLISHED: &str = "x-republished";

/// AMQP 0-9-1 sends names and routing keys as short strings: one byte of length, so 255 bytes at
/// most. The client library panics on a longer one.
pub const AMQP_NAME_BYTES_MAX: usize = 255;

/// The client of a token that names none.
pub const DEFAULT_CLIENT: &str = "consumer";

/// The instance of a connection that names none.
pub const DEFAULT_INSTANCE: &str = "1";

const QUEUE_PREFIX: &str = "proxy-subscription";

/// The bytes that are percent-encoded: all but `A-Z a-z 0-9 _ . ~`. That `-` is among them makes
/// it a separator that no part can hold, and the queue name injective.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'_').remove(b'.').remove(b'~');

/// The id that stands in tokens and routing keys for consumer number `n`: `consumer101`.
#[must_use]
pub fn consumer_id(n: u64) -> String {
    format!("consumer{n}")
}

/// The id of producer number `n`: `producer201`.
#[must_use]
pub fn producer_id(n: u64) -> String {
    format!("producer{n}")
}

/// One consumer instance of one client: what a mailbox is named after.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// Who the consumer belongs to: the token's `client_id`, or [`DEFAULT_CLIENT`].
    pub client: String,
    /// The token's `sub`, and the routing key of what is meant for it.
    pub consumer: String,
    /// Which of the consumer's devices or tabs: `?instance=`, or [`DEFAULT_INSTANCE`].
    pub instance: String,
}

impl Address {
    /// The queue of this instance: `proxy-subscription-<client>-<consumer>-<instance>`, each part
    /// percent-encoded. Different addresses have different queues.
    ///
    /// # Errors
    /// [`NameError::Empty`] names a part without a byte, [`NameError::QueueTooLong`] a name above
    /// [`AMQP_NAME_BYTES_MAX`].
    pub fn queue(&self) -> Result<QueueName, NameError> {
        let mut name = String::from(QUEUE_PREFIX);
        let mut longest = (Part::Client, 0);
        for (part, text) in
            [(Part::Client, &self.client), (Part::Consumer, &self.consumer), (Part::Instance, &self.instance)]
        {
            if text.is_empty() {
                return Err(NameError::Empty { part });
            }
            let before = name.len();
            name.push('-');
            name.extend(utf8_percent_encode(text, ENCODED));
            let encoded = name.len() - before - 1;
            if encoded > longest.1 {
                longest = (part, encoded);
            }
        }
        if name.len() > AMQP_NAME_BYTES_MAX {
            let (longest, longest_bytes) = longest;
            return Err(NameError::QueueTooLong { bytes: name.len(), longest, longest_bytes });
        }
        Ok(QueueName(name.into()))
    }

    /// How log lines call this instance: `client.consumer.instance`, safe for one line (see
    /// [`Escaped`]). For readers only: unlike the queue name it is not injective.
    pub fn log_name(&self) -> impl Display {
        LogName(self)
    }
}

struct LogName<'a>(&'a Address);

impl Display for LogName<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Address { client, consumer, instance } = self.0;
        write!(f, "{}.{}.{}", Escaped(client), Escaped(consumer), Escaped(instance))
    }
}

/// The name of a mailbox: at most [`AMQP_NAME_BYTES_MAX`] bytes, ASCII, made only by
/// [`Address::queue`]. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QueueName(Arc<str>);

impl QueueName {
    /// The name as the broker knows it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Display for QueueName {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A consumer id that fits into AMQP's routing key: 1 to [`AMQP_NAME_BYTES_MAX`] bytes, sent as it
/// is. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RoutingKey(Arc<str>);

impl RoutingKey {
    /// Checks the length; any text is a key.
    ///
    /// # Errors
    /// [`NameError::Empty`] (the protocol allows it, but no consumer has that id) and
    /// [`NameError::RoutingKeyTooLong`].
    pub fn new(key: &str) -> Result<Self, NameError> {
        match key.len() {
            0 => Err(NameError::Empty { part: Part::RoutingKey }),
            1..=AMQP_NAME_BYTES_MAX => Ok(RoutingKey(key.into())),
            bytes => Err(NameError::RoutingKeyTooLong { bytes }),
        }
    }

    /// The key as it is sent.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What a [`NameError`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The token's `client_id`.
    Client,
    /// The token's `sub`.
    Consumer,
    /// `?instance=`.
    Instance,
    /// The key of a publish or a binding.
    RoutingKey,
}

impl Display for Part {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Part::Client => "client id",
            Part::Consumer => "consumer id",
            Part::Instance => "instance",
            Part::RoutingKey => "routing key",
        })
    }
}

/// A name that AMQP cannot carry. Trying again does not help; nothing has been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// A part has no byte, and would make two addresses look alike to a reader.
    #[error("the {part} is empty")]
    Empty {
        /// Which one.
        part: Part,
    },
    /// The three parts together, percent-encoded (a byte can become three), are too long.
    #[error(
        "the queue name would have {bytes} bytes of at most {AMQP_NAME_BYTES_MAX}; \
         its longest part is the {longest} with {longest_bytes} bytes once percent-encoded"
    )]
    QueueTooLong {
        /// Of the whole name.
        bytes: usize,
        /// The part to shorten first.
        longest: Part,
        /// Of that part, percent-encoded.
        longest_bytes: usize,
    },
    /// The key itself is too long.
    #[error("the routing key has {bytes} bytes of at most {AMQP_NAME_BYTES_MAX}")]
    RoutingKeyTooLong {
        /// Of the key, in UTF-8.
        bytes: usize,
    },
}

#[cfg(test)]
mod tests;
