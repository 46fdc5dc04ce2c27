//! What a session holds of its mailbox: deliveries in, settlements out.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use futures::{FutureExt, StreamExt};
use lapin::Consumer;
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

use crate::{
    lane::Leaver,
    ledger::{DeliveryTag, Outcome},
    live::Live,
    pool::Pool,
    properties::Properties,
    seat::{Attachment, Seat},
};

/// Which delivery, on which life of which channel. A tag from before a rebuild settles nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag {
    generation: u64,
    number: DeliveryTag,
}

impl Tag {
    /// A tag of no broker, for tests of what stands above this crate.
    pub fn detached(number: DeliveryTag) -> Self {
        Self { generation: 0, number }
    }

    /// The number of the delivery on its channel.
    pub fn number(self) -> DeliveryTag {
        self.number
    }
}

/// A message on its way to the consumer. RabbitMQ holds it too, until it is settled.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivery {
    /// Names it when it is settled.
    pub tag: Tag,
    /// It was delivered before, to whomever.
    pub redelivered: bool,
    /// The body as it was published.
    pub body: Bytes,
    /// What its producer said about it.
    pub properties: Properties,
}

/// What comes out of a mailbox.
#[derive(Debug, PartialEq)]
pub enum Incoming {
    /// A message.
    Delivery(Delivery),
    /// Nothing comes until [`Incoming::Restored`].
    Interrupted {
        /// What is not acked comes again, flagged: earlier deliveries that were not sent yet can be forgotten. Otherwise
        /// (the queue was deleted) they exist nowhere else any more.
        redelivers: bool,
    },
    /// Deliveries go on.
    Restored {
        /// The mailbox had expired or was deleted, and was made anew: there may be a gap.
        recreated: bool,
    },
    /// The mailbox cannot be restored; the reason is for the log.
    Lost(String),
}

/// How a subscription found its mailbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Messages that waited in it.
    pub pending: u32,
    /// Whether it existed before; known only to who asked for it.
    pub existed: Option<bool>,
}

/// One consumer of one queue. Dropping it leaves in the background, exactly as [`Subscription::leave`] does.
pub struct Subscription {
    seat: Arc<Seat>,
    pool: Arc<Pool>,
    tasks: TaskTracker,
    consumer: Option<Consumer>,
    live: Option<Arc<Live>>,
    /// Delivered on `live` and not settled, ascending.
    open: VecDeque<DeliveryTag>,
    settled_since_flush: u32,
    flushes_seen: u64,
    left: bool,
    found: Found,
    /// To be told with the next event: whether the mailbox is a new one.
    restored: Option<bool>,
}

impl Subscription {
    pub(crate) fn new(seat: Arc<Seat>, found: Found, pool: Arc<Pool>, tasks: TaskTracker) -> Self {
        let mut subscription = Self {
            seat,
            found,
            pool,
            tasks,
            consumer: None,
            live: None,
            open: VecDeque::new(),
            settled_since_flush: 0,
            flushes_seen: 0,
            left: false,
            restored: None,
        };
        if let Some(attachment) = subscription.seat.take() {
            subscription.adopt(attachment);
        }
        subscription
    }

    /// How the mailbox was when this subscription began.
    pub fn found(&self) -> Found {
        self.found
    }

    /// Waits for what comes next, however long that takes.
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is taken out before it is returned.
    pub async fn next(&mut self) -> Incoming {
        if let Some(recreated) = self.restored.take() {
            return Incoming::Restored { recreated };
        }
        let Some(consumer) = &mut self.consumer else {
            return match self.seat.attachment().await {
                Ok(attachment) => {
                    let recreated = attachment.recreated;
                    // Only the queue was lost at first, and then the channel as well.
                    let channel_lost =
                        self.live.as_ref().is_some_and(|live| live.generation != attachment.live.generation);
                    self.adopt(attachment);
                    if channel_lost {
                        self.restored = Some(recreated);
                        return Incoming::Interrupted { redelivers: true };
                    }
                    Incoming::Restored { recreated }
                }
                Err(reason) => Incoming::Lost(reason),
            };
        };
        // What a dead channel had delivered comes again on the next one.
        if !self.live.as_ref().is_some_and(|live| live.is_alive()) {
            return self.interrupted();
        }
        match consumer.next().await {
            Some(Ok(delivery)) => {
                self.open.push_back(delivery.delivery_tag);
                if let Some(live) = &self.live {
                    live.delivered(delivery.delivery_tag);
                }
                Incoming::Delivery(Delivery {
                    tag: Tag { generation: self.generation(), number: delivery.delivery_tag },
                    redelivered: delivery.redelivered,
                    body: Bytes::from(delivery.data),
                    properties: delivery.properties.into(),
                })
            }
            _ => self.interrupted(),
        }
    }

    /// What is there already, without waiting.
    pub fn try_next(&mut self) -> Option<Incoming> {
        self.next().now_or_never()
    }

    /// Settles deliveries, each once; unknown and outdated tags are ignored.
    /// Returns how many it settled.
    pub fn settle(&mut self, tags: &[Tag], outcome: Outcome) -> usize {
        let Some(live) = self.live.clone() else { return 0 };
        let open = &mut self.open;
        let settled: Vec<DeliveryTag> = tags
            .iter()
            .filter(|tag| tag.generation == live.generation && take_out(open, tag.number))
            .map(|tag| tag.number)
            .collect();
        if settled.is_empty() {
            return 0;
        }
        let settled_now = settled.len();
        let count = u32::try_from(settled_now).unwrap_or(u32::MAX);
        let flushes = live.flushes();
        if flushes != std::mem::replace(&mut self.flushes_seen, flushes) {
            self.settled_since_flush = 0;
        }
        self.settled_since_flush = self.settled_since_flush.saturating_add(count);
        let half_used = self.settled_since_flush.saturating_mul(2) >= u32::from(self.seat.window);
        live.settle(settled, outcome, half_used);
        settled_now
    }

    /// Leaves: returns once everything unsettled is back in the queue, first in line and flagged, and the queue is free
    /// for its next subscription.
    ///
    /// # Cancel safety
    /// Dropping the future stops the waiting, not the leaving.
    pub async fn leave(mut self) {
        let left = self.start_leaving();
        let _ = left.await;
    }

    fn start_leaving(&mut self) -> oneshot::Receiver<()> {
        let (done, left) = oneshot::channel();
        if std::mem::replace(&mut self.left, true) {
            return left;
        }
        let (seat, pool) = (self.seat.clone(), self.pool.clone());
        let lane = seat.depart();
        let leaver = Leaver {
            seat: seat.clone(),
            live: self.live.take(),
            consumer: self.consumer.take(),
            unsettled: std::mem::take(&mut self.open).into(),
        };
        self.tasks.spawn(async move {
            lane.leave(leaver).await;
            pool.release(&lane, seat.window);
            seat.release_claim();
            let _ = done.send(());
        });
        left
    }

    fn adopt(&mut self, attachment: Attachment) {
        let Attachment { live, consumer, .. } = attachment;
        if live.generation != self.generation() {
            self.open.clear();
            self.settled_since_flush = 0;
        }
        self.flushes_seen = live.flushes();
        self.live = Some(live);
        self.consumer = Some(consumer);
    }

    fn interrupted(&mut self) -> Incoming {
        self.consumer = None;
        match self.live.take() {
            // The broker cancelled this consumer alone: what it delivered is still to be settled on the channel.
            Some(live) if live.is_alive() => {
                let seat = self.seat.clone();
                let resumed_on = live.clone();
                self.tasks.spawn(async move { seat.lane().resume_after_cancel(&seat, &resumed_on).await });
                self.live = Some(live);
                Incoming::Interrupted { redelivers: false }
            }
            _ => {
                self.open.clear();
                Incoming::Interrupted { redelivers: true }
            }
        }
    }

    fn generation(&self) -> u64 {
        self.live.as_ref().map_or(0, |live| live.generation)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        drop(self.start_leaving());
    }
}

/// Removes `number` from the ascending `open`; most settlements are of the oldest.
fn take_out(open: &mut VecDeque<DeliveryTag>, number: DeliveryTag) -> bool {
    if open.front() == Some(&number) {
        open.pop_front();
        return true;
    }
    match open.binary_search(&number) {
        Ok(at) => open.remove(at).is_some(),
        Err(_) => false,
    }
}
