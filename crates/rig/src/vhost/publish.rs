//! Publishing as the user `producer`, one message and its answer at a time.

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};
use protocol::names::EXCHANGE_DIRECT;

use super::Vhost;
use crate::wait::{PATIENCE, within};

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The broker has it.
    Confirmed,
    /// No queue is bound for its key.
    Returned,
    /// A queue refused it: it is full.
    Nacked,
}

/// What to publish.
#[derive(Clone, Debug, Default)]
pub struct Message {
    /// The routing key: a consumer id.
    pub key: String,
    /// The body.
    pub body: Vec<u8>,
    /// Whether it survives a restart of the broker.
    pub persistent: bool,
    /// Its message-id, if any.
    pub id: Option<String>,
    /// Its content type, if any.
    pub content_type: Option<String>,
    /// Its time in unix seconds, if any.
    pub timestamp: Option<u64>,
    /// Its headers.
    pub headers: Vec<(String, AMQPValue)>,
}

impl Message {
    /// A transient message without properties.
    pub fn new(key: &str, body: impl Into<Vec<u8>>) -> Message {
        Message { key: key.to_owned(), body: body.into(), ..Message::default() }
    }

    /// Survives a restart of the broker.
    #[must_use]
    pub fn persistent(self) -> Message {
        Message { persistent: true, ..self }
    }

    fn properties(&self) -> BasicProperties {
        let mut properties = BasicProperties::default().with_delivery_mode(if self.persistent { 2 } else { 1 });
        if let Some(id) = &self.id {
            properties = properties.with_message_id(short(id));
        }
        if let Some(content_type) = &self.content_type {
            properties = properties.with_content_type(short(content_type));
        }
        if let Some(timestamp) = self.timestamp {
            properties = properties.with_timestamp(timestamp);
        }
        if !self.headers.is_empty() {
            let mut table = FieldTable::default();
            for (name, value) in &self.headers {
                table.insert(short(name), value.clone());
            }
            properties = properties.with_headers(table);
        }
        properties
    }
}

fn short(text: &str) -> ShortString {
    ShortString::try_new(text).expect("at most 255 bytes")
}

/// A connection and a channel with confirms; publishes are mandatory.
pub struct Publisher {
    // A connection closes with its last handle.
    _connection: Connection,
    channel: Channel,
}

impl Vhost {
    /// Connects as `producer`.
    ///
    /// # Panics
    /// It is refused.
    pub async fn publisher(&self) -> Publisher {
        let connect = async {
            let properties = ConnectionProperties::default().with_connection_name("rig".into());
            let connection = Connection::connect(&self.amqp_url("producer"), properties).await?;
            let channel = connection.create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            Ok::<_, lapin::Error>(Publisher { _connection: connection, channel })
        };
        within(PATIENCE, "the login as producer", Box::pin(connect)).await.expect("producer may log in")
    }
}

impl Publisher {
    /// Publishes a transient message and says what became of it.
    ///
    /// # Panics
    /// The broker closes the channel, or is silent for a minute.
    pub async fn publish(&self, key: &str, body: impl Into<Vec<u8>>) -> Outcome {
        self.send(&Message::new(key, body)).await
    }

    /// Publishes transient messages that the broker must take.
    ///
    /// # Panics
    /// As [`publish`](Self::publish), or one is not confirmed.
    pub async fn publish_all<B: Into<Vec<u8>>>(&self, key: &str, bodies: impl IntoIterator<Item = B>) {
        let mut confirms = Vec::new();
        for body in bodies {
            confirms.push(self.begin(&Message::new(key, body)).await);
        }
        for (number, confirm) in confirms.into_iter().enumerate() {
            let confirm = within(PATIENCE, "the broker's confirm", confirm).await.expect("the channel is open");
            assert_eq!(outcome(&confirm), Outcome::Confirmed, "message {number} to {key}");
        }
    }

    /// Publishes one message and says what became of it.
    ///
    /// # Panics
    /// As [`publish`](Self::publish).
    pub async fn send(&self, message: &Message) -> Outcome {
        let confirm = self.begin(message).await;
        outcome(&within(PATIENCE, "the broker's confirm", confirm).await.expect("the channel is open"))
    }

    async fn begin(&self, message: &Message) -> lapin::PublisherConfirm {
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let (exchange, key) = (short(EXCHANGE_DIRECT), short(&message.key));
        let write = self.channel.basic_publish(exchange, key, options, &message.body, message.properties());
        within(PATIENCE, "a publish", write).await.expect("the channel is open")
    }
}

/// The library credits a returned message to whichever confirm completes next: exact while one message is on its way.
fn outcome(confirm: &Confirmation) -> Outcome {
    match confirm {
        Confirmation::Ack(None) => Outcome::Confirmed,
        Confirmation::Ack(Some(_)) => Outcome::Returned,
        Confirmation::Nack(_) => Outcome::Nacked,
        Confirmation::NotRequested => panic!("confirms are on"),
    }
}
