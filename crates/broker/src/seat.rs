//! One subscription as its lane sees it: where it sits, and the slot through which it gets its deliveries.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use lapin::Consumer;
use protocol::names::{QueueName, RoutingKey};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{
    claims::{Claim, Stake},
    lane::Lane,
    live::Live,
    lock,
};

static SEATS: AtomicU64 = AtomicU64::new(1);

/// The broker's side of a subscription, shared between its session and its lane.
pub(crate) struct Seat {
    pub(crate) id: u64,
    pub(crate) queue: QueueName,
    pub(crate) key: RoutingKey,
    pub(crate) window: u16,
    /// Set before anything else when the subscription is to end: nobody consumes for it any more.
    pub(crate) leaving: CancellationToken,
    /// The generation on which this seat has a consumer; 0 for none. Written while its lane has the turn.
    pub(crate) attached: AtomicU64,
    /// Its upgrade found another consumer and has stopped: until it begins anew, no rebuild of a lane does it instead.
    withdrawn: AtomicBool,
    /// The mailbox was made anew since the session last got a consumer.
    recreated: AtomicBool,
    lane: Mutex<Arc<Lane>>,
    slot: Mutex<Slot>,
    changed: Notify,
    claim: Mutex<Option<Claim>>,
    pub(crate) stake: Stake,
}

enum Slot {
    Empty,
    Full(Attachment),
    Lost(String),
}

/// A consumer on a channel.
pub(crate) struct Attachment {
    pub(crate) live: Arc<Live>,
    pub(crate) consumer: Consumer,
    /// The mailbox had expired or was deleted, and was made anew.
    pub(crate) recreated: bool,
}

impl Seat {
    pub(crate) fn new(lane: Arc<Lane>, claim: Claim, key: RoutingKey, window: u16) -> Arc<Self> {
        Arc::new(Self {
            id: SEATS.fetch_add(1, Ordering::Relaxed),
            queue: claim.queue().clone(),
            key,
            window,
            leaving: CancellationToken::new(),
            attached: AtomicU64::new(0),
            withdrawn: AtomicBool::new(false),
            recreated: AtomicBool::new(false),
            lane: Mutex::new(lane),
            slot: Mutex::new(Slot::Empty),
            changed: Notify::new(),
            stake: claim.stake(),
            claim: Mutex::new(Some(claim)),
        })
    }

    pub(crate) fn lane(&self) -> Arc<Lane> {
        lock(&self.lane).clone()
    }

    /// Marks the seat as leaving, for good, and says which lane it leaves.
    pub(crate) fn depart(&self) -> Arc<Lane> {
        let lane = lock(&self.lane);
        self.leaving.cancel();
        lane.clone()
    }

    /// Has the seat stop for a while, and says on which lane: set before the lane is looked up, so that whoever moves the
    /// seat meanwhile finds it set on the new one.
    pub(crate) fn withdraw(&self) -> Arc<Lane> {
        let lane = lock(&self.lane);
        self.withdrawn.store(true, Ordering::Release);
        lane.clone()
    }

    /// Its upgrade begins anew.
    pub(crate) fn begin_anew(&self) {
        self.withdrawn.store(false, Ordering::Release);
    }

    /// Whether somebody wants a consumer for it now.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.leaving.is_cancelled() && !self.withdrawn.load(Ordering::Acquire)
    }

    /// Moves the seat and returns the old lane, or gives the new one back when the seat departed meanwhile.
    pub(crate) fn move_to(&self, new: Arc<Lane>) -> Result<Arc<Lane>, Arc<Lane>> {
        let mut lane = lock(&self.lane);
        if self.leaving.is_cancelled() { Err(new) } else { Ok(std::mem::replace(&mut *lane, new)) }
    }

    /// The mailbox is a new one; told to the session with its next consumer.
    pub(crate) fn set_recreated(&self) {
        self.recreated.store(true, Ordering::Release);
    }

    /// The mailbox was found gone, and there was no consumer since.
    pub(crate) fn is_recreated(&self) -> bool {
        self.recreated.load(Ordering::Acquire)
    }

    /// Hands over a consumer; one that was not fetched yet belongs to a dead channel and is dropped.
    pub(crate) fn fill(&self, live: Arc<Live>, consumer: Consumer) {
        let recreated = self.recreated.swap(false, Ordering::AcqRel);
        *lock(&self.slot) = Slot::Full(Attachment { live, consumer, recreated });
        self.changed.notify_one();
    }

    /// The subscription cannot be restored; its session has to end.
    pub(crate) fn lose(&self, reason: String) {
        *lock(&self.slot) = Slot::Lost(reason);
        self.changed.notify_one();
    }

    /// Takes what waits in the slot, if it is a consumer.
    pub(crate) fn take(&self) -> Option<Attachment> {
        let mut slot = lock(&self.slot);
        match std::mem::replace(&mut *slot, Slot::Empty) {
            Slot::Full(attachment) => Some(attachment),
            other => {
                *slot = other;
                None
            }
        }
    }

    /// Waits for a consumer, or for the reason why there will be none. Cancel safe.
    pub(crate) async fn attachment(&self) -> Result<Attachment, String> {
        loop {
            if let Some(attachment) = self.take() {
                return Ok(attachment);
            }
            if let Slot::Lost(reason) = &*lock(&self.slot) {
                return Err(reason.clone());
            }
            self.changed.notified().await;
        }
    }

    /// The queue is free for its next owner.
    pub(crate) fn release_claim(&self) {
        let claim = lock(&self.claim).take();
        drop(claim);
    }
}
