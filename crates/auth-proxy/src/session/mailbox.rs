//! What a session needs of its mailbox; a trait, so that the loop can be tested without a broker.

use std::future::Future;

use broker::{
    ledger::Outcome,
    subscription::{Incoming, Subscription, Tag},
};

/// Where a session's deliveries come from and what becomes of them.
pub trait Mailbox: Send + Sized {
    /// Waits for what comes next. Cancel safe.
    fn next(&mut self) -> impl Future<Output = Incoming> + Send;
    /// What is there already.
    fn try_next(&mut self) -> Option<Incoming>;
    /// Settles deliveries; returns how many there were to settle.
    fn settle(&mut self, tags: &[Tag], outcome: Outcome) -> usize;
    /// Returns once everything unsettled is back in the queue.
    fn leave(self) -> impl Future<Output = ()> + Send;
}

impl Mailbox for Subscription {
    fn next(&mut self) -> impl Future<Output = Incoming> + Send {
        self.next()
    }

    fn try_next(&mut self) -> Option<Incoming> {
        self.try_next()
    }

    fn settle(&mut self, tags: &[Tag], outcome: Outcome) -> usize {
        self.settle(tags, outcome)
    }

    fn leave(self) -> impl Future<Output = ()> + Send {
        self.leave()
    }
}
