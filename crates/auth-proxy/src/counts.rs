//! What a gateway has done so far.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

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
    /// Connections that were answered otherwise.
    pub refused: u64,
    /// Deliveries that were written out and acked.
    pub delivered: u64,
    /// Deliveries above the size limit.
    pub rejected: u64,
    /// Sessions that were still open when the time for the drain was over.
    pub cut_off: u64,
}

impl Counts {
    pub(crate) fn summary(&self, cut_off: u64) -> Summary {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Summary {
            sessions: get(&self.sessions),
            refused: get(&self.refused),
            delivered: get(&self.delivered),
            rejected: get(&self.rejected),
            cut_off,
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sessions, refused, delivered, rejected, cut_off } = self;
        write!(
            f,
            "Totals: sessions {sessions}, refused {refused}, delivered {delivered}, rejected {rejected}, cut off {cut_off}"
        )
    }
}
