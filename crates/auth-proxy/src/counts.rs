//! What a gateway has done so far.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::accept::Served;

/// Counters of the whole process; each only grows.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) sessions: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) delivered: AtomicU64,
    pub(crate) rejected: AtomicU64,
}

/// The counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Upgrades that were answered with 101.
    pub sessions: u64,
    /// Connections that did not become a session: refused, or gone before their answer.
    pub refused: u64,
    /// Deliveries that were written out and acked.
    pub delivered: u64,
    /// Deliveries above the size limit.
    pub rejected: u64,
    /// Sessions that were still open when the time for the drain was over.
    pub cut_off: u64,
    /// Connections whose task panicked; each is in the log.
    pub panicked: u64,
}

impl Counts {
    pub(crate) fn summary(&self, served: &Served) -> Summary {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Summary {
            sessions: get(&self.sessions),
            refused: get(&self.refused) + served.turned_away,
            delivered: get(&self.delivered),
            rejected: get(&self.rejected),
            cut_off: served.cut_off as u64,
            panicked: served.panicked,
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sessions, refused, delivered, rejected, cut_off, panicked } = self;
        write!(
            f,
            "Totals: sessions {sessions}, refused {refused}, delivered {delivered}, rejected {rejected}, cut off {cut_off}, panicked {panicked}"
        )
    }
}
