//! What the broker holds unacked, lane by lane.

use std::collections::{BTreeMap, BTreeSet};

use protocol::names::RoutingKey;
use rig::{PATIENCE, Vhost, wait_until};

use crate::args::{BACKLOG, WINDOW};
use crate::clients::mailbox;

/// How sessions lie on their lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lanes {
    /// Lanes with sessions.
    pub(crate) count: u64,
    /// Unacked messages of stalled sessions, on the lane that has most of them.
    pub(crate) open_tags: u64,
    /// Stalled sessions whose window is not full, or whose backlog is not what it was.
    not_full: usize,
}

/// Waits until the window of every stalled session is full, with the backlog behind it.
pub(crate) async fn until_full(vhost: &Vhost, stalled: &[RoutingKey]) -> Lanes {
    let names: BTreeSet<String> = stalled.iter().map(mailbox).collect();
    let full = "every stalled session has its window full and its backlog";
    wait_until(PATIENCE, full, async || seen(vhost, &names).await, |lanes| lanes.not_full == 0).await
}

async fn seen(vhost: &Vhost, stalled: &BTreeSet<String>) -> Lanes {
    let snapshot = vhost.snapshot().await;
    let lane_of: BTreeMap<_, _> = snapshot.consumers.iter().map(|c| (c.queue.as_str(), c.channel.as_str())).collect();
    let mut open: BTreeMap<&str, u64> = lane_of.values().map(|lane| (*lane, 0)).collect();
    let mut full = 0;
    for queue in snapshot.queues.iter().filter(|queue| stalled.contains(&queue.name)) {
        full += usize::from(queue.unacked == WINDOW && queue.ready == BACKLOG);
        if let Some(open) = lane_of.get(queue.name.as_str()).and_then(|lane| open.get_mut(lane)) {
            *open += queue.unacked;
        }
    }
    let open_tags = open.values().copied().max().unwrap_or_default();
    Lanes { count: open.len() as u64, open_tags, not_full: stalled.len() - full }
}
