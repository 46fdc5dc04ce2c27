//! Declare, bind and look, on channels of their own.
//!
//! An AMQP error closes the channel it happens on. So these requests never share a channel with deliveries, and each
//! channel here has one request in flight: an error costs that request alone. 16 channels reach what a broker on two
//! cores does (1,000–1,100 cold declares a second; one channel 320); more do not raise it.

use std::sync::Mutex;

use lapin::Channel;
use protocol::names::{QueueName, RoutingKey};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::{link::Link, lock, topology, topology::TopologyError};

/// The client library remembers each declaration for the life of its channel; so a channel has a bounded life.
const REQUESTS_PER_CHANNEL: u32 = 500;

/// What the broker says of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueState {
    /// Consumers, of whatever proxy.
    pub(crate) consumers: u32,
    /// Messages that wait for a consumer.
    pub(crate) ready: u32,
}

impl QueueState {
    /// Whether who consumes from it, by itself, is the only one. A queue that is gone has nobody else: it is made anew as
    /// under any session.
    pub(crate) fn is_alone(found: Option<Self>) -> bool {
        found.is_none_or(|state| state.consumers <= 1)
    }
}

impl From<lapin::Queue> for QueueState {
    fn from(queue: lapin::Queue) -> Self {
        Self { consumers: queue.consumer_count(), ready: queue.message_count() }
    }
}

pub(crate) struct Declarer {
    link: Link,
    permits: Semaphore,
    idle: Mutex<Vec<Slot>>,
}

struct Slot {
    channel: Channel,
    requests: u32,
}

impl Declarer {
    pub(crate) fn new(link: Link, channels: usize) -> Self {
        Self { link, permits: Semaphore::new(channels.max(1)), idle: Mutex::default() }
    }

    /// Makes sure that the queue exists and is bound.
    pub(crate) async fn ensure(&self, queue: &QueueName, key: &RoutingKey) -> Result<QueueState, TopologyError> {
        let lease = self.lease().await?;
        let made = topology::declare(lease.channel(), queue).await;
        let made = made.map_err(|error| match TopologyError::of(&error) {
            // It is declared, so it is not absent: the node where it lives is down.
            TopologyError::NotFound(text) => TopologyError::Gone(text),
            other => other,
        })?;
        topology::bind(lease.channel(), queue, key).await.map_err(|error| match TopologyError::of(&error) {
            TopologyError::NotFound(text) if text.contains("no exchange") => {
                TopologyError::NoExchange(protocol::names::EXCHANGE_DIRECT)
            }
            // The queue was deleted between the two requests: a new declare mends it.
            TopologyError::NotFound(text) => TopologyError::Gone(text),
            other => other,
        })?;
        lease.give_back();
        Ok(made.into())
    }

    /// Looks at the queue; `None` when there is none.
    pub(crate) async fn look(&self, queue: &QueueName) -> Result<Option<QueueState>, TopologyError> {
        let lease = self.lease().await?;
        match topology::look(lease.channel(), queue).await.map_err(|error| TopologyError::of(&error)) {
            Ok(found) => {
                lease.give_back();
                Ok(Some(found.into()))
            }
            Err(TopologyError::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A channel for one request. Dropping the lease, with whatever is in flight, closes the channel.
    async fn lease(&self) -> Result<Lease<'_>, TopologyError> {
        let gone = |what: &str| TopologyError::Gone(what.to_owned());
        let permit = self.permits.acquire().await.map_err(|_| gone("the proxy is closing"))?;
        let idle = lock(&self.idle).pop().filter(|slot| slot.channel.status().connected());
        let slot = match idle {
            Some(slot) => slot,
            None => {
                let connection = self.link.current().ok_or_else(|| gone("there is no connection"))?;
                let channel = connection.create_channel().await.map_err(|error| TopologyError::of(&error))?;
                Slot { channel, requests: 0 }
            }
        };
        Ok(Lease { declarer: self, slot, _permit: permit })
    }
}

struct Lease<'a> {
    declarer: &'a Declarer,
    slot: Slot,
    _permit: SemaphorePermit<'a>,
}

impl Lease<'_> {
    fn channel(&self) -> &Channel {
        &self.slot.channel
    }

    fn give_back(self) {
        let Self { declarer, mut slot, _permit } = self;
        slot.requests += 1;
        if slot.requests < REQUESTS_PER_CHANNEL {
            lock(&declarer.idle).push(slot);
        }
    }
}
