//! Proxies among themselves: over a connection of its own, so that an alarm, which blocks connections that publish, never
//! stops the acks of a lane.
//!
//! Each proxy has an exclusive queue bound to the fanout exchange `exchange.control`. Who wins a mailbox is decided in
//! [`rules`], what is said is in [`message`], and how a newcomer waits in [`contest`]. Here is only the task that listens.

mod contest;
pub(crate) mod message;
pub(crate) mod rules;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::StreamExt;
use lapin::{
    BasicProperties, Channel, Connection, Consumer,
    message::Delivery,
    options::{
        BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, QueueBindOptions,
        QueueDeclareOptions,
    },
    types::{AMQPValue, FieldTable},
};
use protocol::names::EXCHANGE_CONTROL;
use service::backoff::Backoff;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

pub(crate) use contest::{Seen, Taken, contend, look, vacate};

use crate::{
    claims::{Answer, Claims},
    control::message::{Message, ProxyId, Said},
    link::Link,
    lock,
    topology::{TopologyError, short},
};

/// Messages that may wait in a proxy's control queue. The oldest is dropped beyond that: a notice is repeated for as long
/// as somebody waits, so a new one replaces a lost one, and every other message is the answer to one.
const QUEUED_MAX: i32 = 10_000;
/// The same in bytes; ours have some 300.
const QUEUED_BYTES_MAX: i32 = 4 * 1024 * 1024;
/// Messages on their way to us.
const PREFETCH: u16 = 100;
/// How long a publish may take to leave this process. It does not leave while the broker blocks the connection, and what
/// is late by more is of no use.
const SAY_TIMEOUT: Duration = Duration::from_secs(2);
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_CAP: Duration = Duration::from_secs(5);

/// Talks to the other proxies. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Control(Arc<Inner>);

struct Inner {
    me: ProxyId,
    link: Link,
    claims: Claims,
    request_timeout: Duration,
    /// Where sessions that end for another proxy are waited for.
    tasks: TaskTracker,
    /// There while we can be heard and hear.
    channel: watch::Sender<Option<Channel>>,
    ignored: AtomicU64,
    /// The last trouble in the log, so that it is said once.
    said: Mutex<String>,
}

/// Why something could not be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unsaid {
    #[error("the other proxies cannot be asked: no control connection")]
    Away,
    #[error("the other proxies cannot be asked: the broker blocks the control connection")]
    Blocked,
}

impl Control {
    pub(crate) fn new(link: Link, claims: Claims, request_timeout: Duration, tasks: TaskTracker) -> Self {
        Self(Arc::new(Inner {
            me: ProxyId(rand::random()),
            link,
            claims,
            request_timeout,
            tasks,
            channel: watch::Sender::new(None),
            ignored: AtomicU64::new(0),
            said: Mutex::default(),
        }))
    }

    /// Messages from others that were none of ours, so far.
    pub(crate) fn ignored(&self) -> u64 {
        self.0.ignored.load(Ordering::Relaxed)
    }

    /// Whether other proxies can be heard now: their connection may be there although its queue is not (403, say).
    pub(crate) fn is_listening(&self) -> bool {
        self.0.channel.borrow().is_some()
    }

    /// Listens for ever. Its owner runs it beside the driver of its link.
    pub(crate) async fn listen(self) {
        let mut backoff = Backoff::new(RETRY_FIRST, RETRY_CAP);
        loop {
            let connection = self.0.link.up().await;
            match timeout(self.0.request_timeout, open(&connection)).await {
                Ok(Ok((channel, consumer))) => {
                    lock(&self.0.said).clear();
                    backoff.reset();
                    self.0.channel.send_replace(Some(channel.clone()));
                    self.hear_all(&connection, &channel, consumer).await;
                    self.0.channel.send_replace(None);
                }
                Ok(Err(error)) => self.trouble(&TopologyError::of(&error).to_string()),
                Err(_) => self.trouble("no answer"),
            }
            sleep(backoff.next()).await;
        }
    }

    fn trouble(&self, what: &str) {
        let mut said = lock(&self.0.said);
        if *said != what {
            warn!("Cannot listen to other proxies, so no mailbox can be taken over from one: {what}");
            what.clone_into(&mut said);
        }
    }

    /// Until the channel is of no use any more.
    async fn hear_all(&self, connection: &Connection, channel: &Channel, mut consumer: Consumer) {
        let mut troubles = self.0.link.troubles();
        loop {
            let next = tokio::select! {
                next = consumer.next() => next,
                _ = troubles.changed() => {
                    // A connection that breaks says so before its channels do.
                    if connection.status().connected() && channel.status().connected() {
                        continue;
                    }
                    return;
                }
            };
            let Some(Ok(delivery)) = next else { return };
            self.hear(&delivery).await;
            // An error means that the channel is gone, which the consumer says too. While the broker blocks the connection
            // no ack leaves, and what is not acked bounds what is on its way to us.
            let _ = timeout(SAY_TIMEOUT, channel.basic_ack(delivery.delivery_tag, BasicAckOptions::default())).await;
        }
    }

    async fn hear(&self, delivery: &Delivery) {
        let message = match Message::parse(&delivery.data) {
            Ok(message) => message,
            Err(garbage) => {
                self.0.ignored.fetch_add(1, Ordering::Relaxed);
                return debug!("A message on {EXCHANGE_CONTROL} is none of ours: {garbage}");
            }
        };
        // The exchange sends everything to everybody.
        if message.from == self.0.me {
            return;
        }
        match self.0.claims.hear(self.0.me, &message) {
            Answer::Nothing => {}
            Answer::Say(said) => {
                if let Err(unsaid) = self.say(&message.queue, said).await {
                    debug!("No answer about {}: {unsaid}", message.queue);
                }
            }
            Answer::SayGoneAfter(released) => {
                debug!("{} is taken over by another proxy", message.queue);
                let this = self.clone();
                self.0.tasks.spawn(async move {
                    released.cancelled().await;
                    // Unsaid, the newcomer finds out by itself, a little later.
                    let _ = this.say(&message.queue, Said::Gone).await;
                });
            }
        }
    }

    /// Says something to the other proxies; returns when it has left this process.
    ///
    /// Nothing is said on a connection that the broker blocks. It holds back the first message of an alarm, though, since
    /// that is what makes it block the connection: so a message may arrive when the alarm is over.
    pub(crate) async fn say(&self, queue: &str, said: Said) -> Result<(), Unsaid> {
        let channel = self.0.channel.borrow().clone().ok_or(Unsaid::Away)?;
        if self.is_blocked() {
            return Err(Unsaid::Blocked);
        }
        let body = Message::new(self.0.me, queue, said).encode();
        let publish = channel.basic_publish(
            EXCHANGE_CONTROL.into(),
            "".into(),
            BasicPublishOptions::default(),
            &body,
            BasicProperties::default().with_content_type("application/json".into()),
        );
        match timeout(SAY_TIMEOUT, publish).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(Unsaid::Away),
            Err(_) => Err(Unsaid::Blocked),
        }
    }

    fn is_blocked(&self) -> bool {
        let blocked = self.0.link.current().is_some_and(|connection| connection.status().blocked());
        blocked || self.0.link.is_blocked()
    }

    /// Waits until other proxies can be heard. Cancel safe.
    pub(crate) async fn ready(&self) {
        let mut channel = self.0.channel.subscribe();
        let _ = channel.wait_for(Option::is_some).await;
    }

    /// Waits until they can not: no channel, or the broker blocks the connection. Cancel safe.
    pub(crate) async fn mute(&self) -> Unsaid {
        let mut channel = self.0.channel.subscribe();
        tokio::select! {
            _ = channel.wait_for(Option::is_none) => Unsaid::Away,
            () = self.0.link.blocked() => Unsaid::Blocked,
        }
    }
}

/// A queue of our own with another name each time: the broker may still hold the last one for a connection that it does
/// not know to be dead.
async fn open(connection: &Connection) -> lapin::Result<(Channel, Consumer)> {
    let channel = connection.create_channel().await?;
    let name = format!("proxy-control-{:016x}", rand::random::<u64>());
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongInt(QUEUED_MAX));
    arguments.insert("x-max-length-bytes".into(), AMQPValue::LongInt(QUEUED_BYTES_MAX));
    arguments.insert("x-overflow".into(), AMQPValue::LongString("drop-head".into()));
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("classic".into()));
    let ours = QueueDeclareOptions { exclusive: true, auto_delete: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(short(&name), ours, arguments).await?;
    let (bind, none) = (QueueBindOptions::default(), FieldTable::default());
    channel.queue_bind(short(&name), EXCHANGE_CONTROL.into(), "".into(), bind, none).await?;
    channel.basic_qos(PREFETCH, BasicQosOptions::default()).await?;
    let (options, none) = (BasicConsumeOptions::default(), FieldTable::default());
    let consumer = channel.basic_consume(short(&name), "control".into(), options, none).await?;
    Ok((channel, consumer))
}
