//! How it stands with the broker, in numbers, for metrics and readiness.

use std::time::Duration;

use crate::link::Link;

/// A snapshot, not taken in one instant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vitals {
    /// Channels that carry deliveries, or will once their connection is back.
    pub lanes: usize,
    /// Deliveries of all lanes that are neither acked nor nacked by their sessions.
    pub open_tags: u64,
    /// How often a lane got another channel, so far.
    pub lane_rebuilds: u64,
    /// Whether other proxies are listened to. The connection for it may be there and its queue not, where the broker refuses
    /// that one (403); no mailbox is taken over from another proxy then.
    pub control_listening: bool,
    /// Messages of the control exchange that no proxy of this kind said, so far.
    pub control_ignored: u64,
    /// Frames with something in them that could not be read, and was left out, over all connections so far.
    pub unreadable: u64,
    /// The connections, in the same order each time.
    pub links: Vec<LinkVitals>,
}

impl Vitals {
    /// How long there was no connection for deliveries, in all since the start; one that lasts is counted up to now.
    pub fn outages(&self) -> Duration {
        self.links.first().map_or(Duration::ZERO, |deliveries| deliveries.outages)
    }

    /// How often a connection was made anew, over all of them.
    pub fn reconnects(&self) -> u64 {
        self.links.iter().map(|link| link.reconnects).sum()
    }
}

/// One connection that is made anew after each loss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkVitals {
    /// What it is for, one word, the same each time: the first is `deliveries`.
    pub purpose: &'static str,
    /// Whether it is there now.
    pub up: bool,
    /// Whether the broker blocks publishing on it: an alarm. Only a connection that publishes is ever blocked.
    pub blocked: bool,
    /// How often there was another connection after the first, so far.
    pub reconnects: u64,
    /// How long there was none, in all since the start; an outage that lasts is counted up to now.
    pub outages: Duration,
}

impl LinkVitals {
    pub(crate) fn of(purpose: &'static str, link: &Link) -> Self {
        Self {
            purpose,
            up: link.current().is_some(),
            blocked: link.is_blocked(),
            reconnects: link.reconnects(),
            outages: link.outages(),
        }
    }
}
