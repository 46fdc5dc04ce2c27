//! Which lane takes a subscription.
//!
//! Few lanes are fast, but a single ack makes the broker walk the list of unacked tags of its channel from the oldest
//! (CPU a message with 0 · 1,000 · 10,000 · 50,000 open tags, tried on 3.10: 30 · 60 · 570 · 2,400 µs). So the open tags
//! of a lane are bounded: it takes subscriptions while the sum of their windows stays within [`OPEN_TAGS_MAX`].

use std::sync::{
    Arc, Mutex, Weak,
    atomic::{AtomicU64, Ordering},
};

use tokio_util::task::TaskTracker;

use crate::{
    control::Control,
    declarer::Declarer,
    lane::{Lane, Timing},
    link::Link,
    lock,
    seat::Seat,
    topology::TopologyError,
};

/// The most open tags a lane may have: 128 subscriptions with a window of 16. A single larger window gets a lane alone.
pub const OPEN_TAGS_MAX: u32 = 2_048;

/// All lanes of this process.
pub(crate) struct Pool {
    me: Weak<Self>,
    link: Link,
    pub(crate) declarer: Arc<Declarer>,
    pub(crate) control: Control,
    timing: Timing,
    lanes_max: usize,
    /// Lanes live in these tasks.
    keepers: TaskTracker,
    /// Subscriptions are moved in these.
    tasks: TaskTracker,
    places: Mutex<Places>,
    /// Channels that were opened for a lane that had lost its own.
    pub(crate) rebuilds: AtomicU64,
}

/// What a pool works with.
pub(crate) struct Parts {
    pub(crate) link: Link,
    pub(crate) declarer: Arc<Declarer>,
    pub(crate) control: Control,
    pub(crate) keepers: TaskTracker,
    pub(crate) tasks: TaskTracker,
}

#[derive(Default)]
struct Places {
    lanes: Vec<Place>,
    next_id: u64,
}

struct Place {
    lane: Arc<Lane>,
    windows: u32,
}

impl Place {
    fn fits(&self, window: u32) -> bool {
        let room = self.windows == 0 || self.windows + window <= OPEN_TAGS_MAX;
        room && !self.lane.quarantined.load(Ordering::Acquire)
    }
}

/// Every lane is full and no more are allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LanesFull;

impl Pool {
    pub(crate) fn new(parts: Parts, timing: Timing, lanes_max: usize) -> Arc<Self> {
        let Parts { link, declarer, control, keepers, tasks } = parts;
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            link,
            declarer,
            control,
            timing,
            lanes_max,
            keepers,
            tasks,
            places: Mutex::default(),
            rebuilds: AtomicU64::new(0),
        })
    }

    /// A place for `window` open tags: the fullest lane that has the room, else a new one. `alone` asks for a new lane
    /// that nobody else enters before the subscription is on it.
    pub(crate) fn place(&self, window: u16, alone: bool) -> Result<Arc<Lane>, LanesFull> {
        let window = u32::from(window);
        let mut places = lock(&self.places);
        let fits = |place: &&mut Place| place.fits(window);
        let fullest = places.lanes.iter_mut().filter(|_| !alone).filter(fits).max_by_key(|place| place.windows);
        if let Some(place) = fullest {
            place.windows += window;
            return Ok(place.lane.clone());
        }
        if !self.may_grow(&places) {
            return Err(LanesFull);
        }
        places.next_id += 1;
        let lane = Lane::new(places.next_id, self.link.clone(), self.me.clone(), self.timing, alone);
        places.lanes.push(Place { lane: lane.clone(), windows: window });
        self.keepers.spawn(lane.clone().supervise());
        Ok(lane)
    }

    /// Whether [`place`](Self::place) would find one for a subscription of this window.
    pub(crate) fn has_room(&self, window: u16) -> bool {
        let places = lock(&self.places);
        self.may_grow(&places) || places.lanes.iter().any(|place| place.fits(u32::from(window)))
    }

    fn may_grow(&self, places: &Places) -> bool {
        places.lanes.len() < self.lanes_max.min(self.channels_max())
    }

    /// How many channels the connection carries, as the broker has it; 2,047 is its default.
    fn channels_max(&self) -> usize {
        let negotiated = self.link.current().map(|connection| connection.configuration().channel_max());
        negotiated.filter(|channels| *channels > 0).map_or(usize::MAX, usize::from)
    }

    /// Gives up a place. One empty lane is kept for the next subscription; others are closed.
    pub(crate) fn release(&self, lane: &Arc<Lane>, window: u16) {
        let mut places = lock(&self.places);
        if let Some(place) = places.lanes.iter_mut().find(|place| place.lane.id == lane.id) {
            place.windows = place.windows.saturating_sub(u32::from(window));
        }
        let mut kept = false;
        places.lanes.retain(|place| {
            let keep = place.windows > 0 || !std::mem::replace(&mut kept, true);
            if !keep {
                place.lane.retired.cancel();
            }
            keep
        });
    }

    /// How many lanes there are, and the deliveries on them that are not settled.
    pub(crate) fn census(&self) -> (usize, u64) {
        let places = lock(&self.places);
        (places.lanes.len(), places.lanes.iter().map(|place| place.lane.open_tags()).sum())
    }

    /// Ends all lanes.
    pub(crate) fn retire(&self) {
        lock(&self.places).lanes.drain(..).for_each(|place| place.lane.retired.cancel());
    }

    /// Makes sure that a seat's mailbox is there, and notes on the seat when it had to be made anew.
    pub(crate) async fn restore(&self, seat: &Seat) -> Result<(), TopologyError> {
        // Noted before it is made: when the lane dies between the declare and the bind, this is dropped half-way, and the
        // next look finds a queue that nothing reaches.
        if seat.is_recreated() || self.declarer.look(&seat.queue).await?.is_none() {
            seat.set_recreated();
            self.declarer.ensure(&seat.queue, &seat.key).await?;
        }
        Ok(())
    }

    /// Moves a subscription whose consume killed its lane to a lane of its own, where it can hurt nobody else; if it
    /// may not consume there either, it is lost and its session ends.
    pub(crate) fn relocate(&self, seat: Arc<Seat>) {
        let lane = match self.place(seat.window, true) {
            Ok(lane) => lane,
            Err(LanesFull) => return seat.lose("no lane is left to move to".to_owned()),
        };
        match seat.move_to(lane.clone()) {
            Ok(old) => {
                self.release(&old, seat.window);
                self.tasks.spawn(async move { lane.adopt(&seat).await });
            }
            // It left meanwhile.
            Err(unused) => {
                unused.quarantined.store(false, Ordering::Release);
                self.release(&unused, seat.window);
            }
        }
    }
}
