//! The last line of a run.

use std::fmt;

use crate::{accept::Served, metrics::Totals};

/// What a gateway has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Upgrades that were answered with 101.
    pub sessions: u64,
    /// Connections that did not become a session: refused, or gone before their answer.
    pub refused: u64,
    /// Messages that were written out in full.
    pub delivered: u64,
    /// Messages that were acked to RabbitMQ.
    pub acked: u64,
    /// Messages that were handed back to their mailbox.
    pub requeued: u64,
    /// Messages that were dropped or dead-lettered.
    pub rejected: u64,
    /// Sessions that nothing had ended when the time for the drain was over, or at a second signal. One that was ending, and
    /// still waited for its broker or its client, is not among them: it has its close code.
    pub cut_off: u64,
    /// Connections whose task panicked; each is in the log.
    pub panicked: u64,
}

impl Summary {
    pub(crate) fn new(totals: &Totals, served: &Served) -> Self {
        let &Totals { accepted, refused, delivered, acked, requeued, rejected, cut_off, .. } = totals;
        let panicked = served.panicked;
        Self { sessions: accepted, refused, delivered, acked, requeued, rejected, cut_off, panicked }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sessions, refused, delivered, acked, requeued, rejected, cut_off, panicked } = self;
        write!(
            f,
            "Totals: sessions {sessions}, refused {refused}, delivered {delivered}, acked {acked}, requeued {requeued}, \
             rejected {rejected}, cut off {cut_off}, panicked {panicked}"
        )
    }
}
