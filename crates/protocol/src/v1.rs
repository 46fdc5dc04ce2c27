//! The dialect [`V1`](crate::subprotocol::V1): JSON text frames, one `type` each, with acks from end to end.
//!
//! Both ends use these types, so that what one writes the other reads. Unknown fields are ignored, for what a later
//! version may add; an unknown `type`, a missing field or bad JSON is an error, and ends a session with 4501.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// Frames read, and why one cannot be.
mod decode;
/// Message headers as JSON.
pub mod headers;
/// Values that say more than their JSON type.
mod values;

#[cfg(test)]
mod tests;

pub use decode::FrameError;
use values::Base64;
pub use values::{Seconds, Token};

/// Message headers: JSON, made from AMQP values as [`headers`] says.
pub type Headers = serde_json::Map<String, serde_json::Value>;

/// What the proxy says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum ServerFrame<'a> {
    /// The first frame of a session.
    Welcome(Welcome<'a>),
    /// A message from the mailbox.
    Message(Box<Message<'a>>),
    /// The answer to a good `refresh`.
    Refreshed {
        /// The new end of the token's time, in unix seconds.
        expires_at: u64,
    },
    /// The token's time is nearly over.
    Expiring {
        /// Seconds from now.
        r#in: u64,
    },
    /// A `refresh` was refused; the session goes on to its old end.
    Error {
        /// For people.
        reason: Cow<'a, str>,
    },
    /// Something happened between the proxy and the broker; nothing has to be done.
    Notice {
        /// What happened.
        event: Event,
    },
    /// The answer to `ping`; one may answer several.
    Pong,
    /// The proxy is about to close.
    Bye {
        /// The close code that will follow.
        code: u16,
        /// For people.
        reason: Cow<'a, str>,
        /// When to come back, counted from the close: after so many milliseconds at the least, and at the most.
        retry_after_ms: [u64; 2],
    },
}

/// Whose session it is and how it stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Welcome<'a> {
    /// Names this session in the proxy's log.
    pub session: Cow<'a, str>,
    /// The token's client.
    pub client: Cow<'a, str>,
    /// The token's consumer.
    pub consumer: Cow<'a, str>,
    /// The instance that was asked for.
    pub instance: Cow<'a, str>,
    /// How many messages waited in the mailbox when the session began.
    pub pending: u32,
    /// How many messages may be unacked; at most what was asked for.
    pub window: u16,
    /// The end of the token's time, in unix seconds. The session ends a leeway of 5 s later.
    pub expires_at: u64,
    /// Seconds between the pings of the WebSocket protocol: a link that is silent for longer is suspect.
    pub ping_interval: Seconds,
    /// For a client that asked to resume: whether its mailbox still existed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed: Option<bool>,
}

/// A message from the mailbox, and what its producer said about it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Message<'a> {
    /// 1, 2, 3, … in each session.
    pub seq: u64,
    /// It was delivered before, to whomever: perhaps not for the first time.
    pub redelivered: bool,
    /// Unique per message where its producer says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<Cow<'a, str>>,
    /// The media type of the body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<Cow<'a, str>>,
    /// The producer's time, in unix seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<u64>,
    /// The header `x-sent-at`: the producer's time, in unix microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_at: Option<u64>,
    /// All other headers.
    #[serde(default, skip_serializing_if = "Headers::is_empty")]
    pub headers: Headers,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    body: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    body_base64: Option<Base64<'a>>,
}

impl<'a> Message<'a> {
    /// A message with this body and nothing else; `body` goes as text when it is UTF-8, as base64 when not.
    pub fn new(seq: u64, redelivered: bool, body: &'a [u8]) -> Self {
        let (text, bytes) = match std::str::from_utf8(body) {
            Ok(text) => (Some(Cow::Borrowed(text)), None),
            Err(_) => (None, Some(Base64(Cow::Borrowed(body)))),
        };
        Self {
            seq,
            redelivered,
            message_id: None,
            content_type: None,
            timestamp: None,
            sent_at: None,
            headers: Headers::new(),
            body: text,
            body_base64: bytes,
        }
    }

    /// The body as it was published.
    pub fn body(&self) -> &[u8] {
        match (&self.body, &self.body_base64) {
            (Some(text), _) => text.as_bytes(),
            (None, Some(bytes)) => &bytes.0,
            (None, None) => &[],
        }
    }
}

/// What happened between the proxy and the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// Nothing is delivered until `broker-back`. What is not acked comes again then, with new seqs.
    BrokerLost,
    /// Deliveries go on.
    BrokerBack,
    /// The mailbox had expired or was deleted, and was made anew: what was in it is gone.
    QueueRecreated,
}

/// What a client says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum ClientFrame<'a> {
    /// Everything up to `seq` is processed, except what was nacked.
    Ack {
        /// The last of them.
        seq: u64,
    },
    /// This one message could not be processed.
    Nack {
        /// Which.
        seq: u64,
        /// Back into the mailbox, after a pause; else it is dead-lettered or dropped. A client that does not say has
        /// `true`, as in AMQP: nothing is lost by leaving it out.
        requeue: bool,
    },
    /// A newer token of the same identity.
    Refresh {
        /// The token.
        token: Token<'a>,
    },
    /// Asks for a `pong`, where the pings of the WebSocket protocol are out of reach (browsers).
    Ping,
}

impl ClientFrame<'_> {
    /// Reads a text frame, in time and memory proportional to its length.
    ///
    /// # Errors
    /// It is none of the frames above.
    pub fn parse(text: &str) -> Result<ClientFrame<'static>, FrameError> {
        decode::client(text)
    }

    /// The text frame.
    pub fn encode(&self) -> String {
        encode(self)
    }
}

impl ServerFrame<'_> {
    /// Reads a text frame.
    ///
    /// # Errors
    /// It is none of the frames above, or something in it is nested more than some 120 deep.
    pub fn parse(text: &str) -> Result<ServerFrame<'static>, FrameError> {
        decode::server(text)
    }

    /// The text frame.
    pub fn encode(&self) -> String {
        encode(self)
    }
}

/// Every map of these types has strings for keys and no value refuses, so there is nothing to fail.
fn encode(frame: &impl Serialize) -> String {
    serde_json::to_string(frame).unwrap_or_default()
}
