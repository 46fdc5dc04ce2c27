//! A lane: one AMQP channel shared by many subscriptions.
//!
//! A channel per consumer does not scale: it costs the broker some 50 KB, a connection carries 2,047 of them, and every
//! message then needs its own ack. What sharing asks for is here, and a session sees none of it:
//!
//! - *Consume and leave take turns* (`Turn`): `basic.qos` and `basic.consume` are one step, and when a consume kills
//!   the channel it is known whose it was.
//! - *Leaving* is in [`leaving`].
//! - *Rebuild*: a channel that dies is opened anew and every subscription is put back ([`resuming`]); sockets notice
//!   nothing.

mod leaving;
mod resuming;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lapin::{
    Consumer,
    options::{BasicConsumeOptions, BasicQosOptions},
    types::FieldTable,
};
use service::backoff::Backoff;
use tokio::{
    sync::{oneshot, watch},
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::{
    link::Link,
    live::Live,
    lock,
    pool::Pool,
    seat::Seat,
    topology::{TopologyError, short},
};

/// Pauses of a subscription that could not be restored although the broker answers.
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_CAP: Duration = Duration::from_secs(5);
/// Pauses of a lane whose channel dies although its connection is well: short, since everybody on it waits.
const REBUILD_CAP: Duration = Duration::from_secs(1);

pub(crate) use leaving::Leaver;

/// One shared channel and who sits on it.
pub(crate) struct Lane {
    pub(crate) id: u64,
    pub(crate) link: Link,
    /// Only its first subscription may enter until it has: see [`Pool::place`].
    pub(crate) quarantined: AtomicBool,
    pub(crate) retired: CancellationToken,
    pool: Weak<Pool>,
    timing: Timing,
    turn: tokio::sync::Mutex<Turn>,
    leavers: Mutex<Vec<(Leaver, oneshot::Sender<()>)>>,
    /// The live of `turn`, for those who only look and must not wait for a turn.
    seen_live: Mutex<Weak<Live>>,
    /// Counts the channel's lives, for those who wait for the next one.
    lives: watch::Sender<u64>,
}

/// The periods that a lane works with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    /// From the first settlement to the ack.
    pub(crate) ack_interval: Duration,
    /// For each request to the broker; a channel that does not answer is given up.
    pub(crate) request_timeout: Duration,
}

#[derive(Default)]
struct Turn {
    live: Option<Arc<Live>>,
    prefetch: u16,
    seats: HashMap<u64, Arc<Seat>>,
    consumers: u64,
}

/// Why a subscription could not be put on a lane.
#[derive(Debug)]
pub(crate) enum AttachError {
    /// It is leaving, or withdrew for now, or sits elsewhere: not here.
    Unwanted,
    /// The lane has no channel now, or lost it meanwhile: its rebuild takes care of whoever sits on it.
    NoChannel,
    /// The broker refused this very consume, and closed the channel for it.
    Refused(TopologyError),
}

impl Lane {
    pub(crate) fn new(id: u64, link: Link, pool: Weak<Pool>, timing: Timing, quarantined: bool) -> Arc<Self> {
        Arc::new(Self {
            id,
            link,
            quarantined: AtomicBool::new(quarantined),
            retired: CancellationToken::new(),
            pool,
            timing,
            turn: tokio::sync::Mutex::default(),
            leavers: Mutex::default(),
            seen_live: Mutex::default(),
            lives: watch::Sender::new(0),
        })
    }

    /// Keeps the lane's channel alive until the lane is retired.
    pub(crate) async fn supervise(self: Arc<Self>) {
        let retired = self.retired.clone();
        retired.run_until_cancelled(self.live_on()).await;
        let live = self.turn.lock().await.live.take();
        if let Some(live) = live {
            // What was settled in the last moments would come again otherwise.
            live.flush().await;
            live.end().await;
        }
    }

    async fn live_on(&self) {
        let mut backoff = Backoff::new(RETRY_FIRST, REBUILD_CAP);
        let mut rebuild = false;
        loop {
            let connection = self.link.up().await;
            let mut troubles = self.link.troubles();
            match timeout(self.timing.request_timeout, connection.create_channel()).await {
                Ok(Ok(channel)) => {
                    let born = Instant::now();
                    let live = Live::new(connection.clone(), channel, self.timing.request_timeout);
                    let seats = self.begin(live.clone()).await;
                    if rebuild {
                        if let Some(pool) = self.pool.upgrade() {
                            pool.rebuilds.fetch_add(1, Ordering::Relaxed);
                        }
                        debug!("Lane {} is rebuilt; putting back {} subscriptions", self.id, seats.len());
                    }
                    let work = async {
                        let resumed = self.resume_all(seats, &live);
                        tokio::join!(live.write_acks(self.timing.ack_interval), resumed);
                    };
                    let death = async {
                        tokio::select! {
                            () = live.dead.cancelled() => {}
                            () = async { while live.is_alive() && troubles.changed().await.is_ok() {} } => {}
                        }
                        // Whoever has the turn hears from the client library why the channel died: it may have been
                        // his own consume, and he must not be forgotten.
                        drop(self.turn.lock().await);
                    };
                    tokio::select! {
                        () = work => {}
                        () = death => {}
                    }
                    self.turn.lock().await.live = None;
                    live.end().await;
                    rebuild = true;
                    if born.elapsed() > REBUILD_CAP {
                        backoff.reset();
                    }
                    // Of a lost connection the link speaks, once for all lanes.
                    if connection.status().connected() {
                        warn!("Lane {} lost its channel; what was not acked comes again", self.id);
                        sleep(backoff.next()).await;
                    }
                }
                failed => {
                    debug!("Lane {} could not open a channel: {failed:?}", self.id);
                    sleep(backoff.next()).await;
                }
            }
        }
    }

    async fn begin(&self, live: Arc<Live>) -> Vec<Arc<Seat>> {
        let mut turn = self.turn.lock().await;
        *lock(&self.seen_live) = Arc::downgrade(&live);
        turn.live = Some(live);
        turn.prefetch = 0;
        self.lives.send_modify(|count| *count += 1);
        turn.seats.values().cloned().collect()
    }

    /// Deliveries of this lane that are not settled.
    pub(crate) fn open_tags(&self) -> u64 {
        let live = lock(&self.seen_live).upgrade();
        live.filter(|live| live.is_alive()).map_or(0, |live| live.open_tags())
    }

    /// Starts to consume for a seat, and seats it here; on this life of the channel alone, if one is given.
    ///
    /// # Cancel safety
    /// Not to be dropped half-way while the channel lives: a consume under way would be forgotten.
    pub(crate) async fn attach(&self, seat: &Arc<Seat>, life: Option<u64>) -> Result<(), AttachError> {
        let mut turn = self.turn.lock().await;
        if !seat.is_wanted() || seat.lane().id != self.id {
            return Err(AttachError::Unwanted);
        }
        let live = turn.live.clone().filter(|live| live.is_alive()).ok_or(AttachError::NoChannel)?;
        if life.is_some_and(|life| life != live.generation) {
            return Err(AttachError::NoChannel);
        }
        if seat.attached.load(Ordering::Acquire) == live.generation {
            return Ok(());
        }
        let error = match timeout(self.timing.request_timeout, consume(&mut turn, &live, seat)).await {
            Ok(Ok(consumer)) => {
                turn.seats.insert(seat.id, seat.clone());
                seat.attached.store(live.generation, Ordering::Release);
                seat.fill(live, consumer);
                self.quarantined.store(false, Ordering::Release);
                return Ok(());
            }
            Ok(Err(error)) => TopologyError::of(&error),
            Err(_) => TopologyError::Gone("no answer to a consume".to_owned()),
        };
        live.dead.cancel();
        // Alone on its lane it hurts nobody, and a queue that vanished again can be made again.
        let again = matches!(error, TopologyError::NotFound(_)) && self.quarantined.load(Ordering::Acquire);
        if error.is_transient() || again {
            return Err(AttachError::NoChannel);
        }
        turn.seats.remove(&seat.id);
        Err(AttachError::Refused(error))
    }

    /// Makes a session of an upgrade that was alone in its mailbox when that was looked at, unless its consumer of then
    /// (`generation`) is gone: with another one the look says nothing.
    ///
    /// In one turn, so that a rebuild either comes before and is seen here, or after, and looks itself.
    pub(crate) async fn establish(&self, seat: &Seat, generation: u64) -> bool {
        let turn = self.turn.lock().await;
        let lives = turn.live.as_ref().is_some_and(|live| live.generation == generation && live.is_alive());
        let same = lives && seat.attached.load(Ordering::Acquire) == generation;
        if same {
            seat.stake.establish();
        }
        same
    }

    /// Waits until the lane has a channel, up to `patience`. Cancel safe.
    pub(crate) async fn ready(&self, patience: Duration) -> bool {
        let mut lives = self.lives.subscribe();
        let alive = async {
            while !self.turn.lock().await.live.as_ref().is_some_and(|live| live.is_alive()) {
                if lives.changed().await.is_err() {
                    return;
                }
            }
        };
        timeout(patience, alive).await.is_ok()
    }
}

/// One step, since the prefetch of a consumer is that which was set last on its channel.
async fn consume(turn: &mut Turn, live: &Live, seat: &Seat) -> lapin::Result<Consumer> {
    turn.consumers += 1;
    let tag = format!("{}.{}", seat.id, turn.consumers);
    if turn.prefetch != seat.window {
        live.channel.basic_qos(seat.window, BasicQosOptions::default()).await?;
        turn.prefetch = seat.window;
    }
    let (queue, tag) = (short(seat.queue.as_str()), short(&tag));
    live.channel.basic_consume(queue, tag, BasicConsumeOptions::default(), FieldTable::default()).await
}

#[cfg(test)]
mod tests;
