//! How publishes ended, in numbers.

use std::fmt;
use std::ops::AddAssign;

/// How many messages ended how, and how many copies that took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Every queue that it was routed to has it.
    pub confirmed: u64,
    /// Refused: by a queue that is full, with `reject-publish`, or by the broker, for the message's own sake (too large).
    pub nacked: u64,
    /// No queue is bound for its consumer.
    pub returned: u64,
    /// Nobody knows: it was given up before the broker answered.
    pub unconfirmed: u64,
    /// Copies beyond the first of a message; how the message ended is counted above, once.
    pub republished: u64,
}

impl Tally {
    /// All messages that ended.
    pub fn total(&self) -> u64 {
        self.confirmed + self.nacked + self.returned + self.unconfirmed
    }

    /// Whether every one of them was confirmed.
    pub fn is_all_confirmed(&self) -> bool {
        self.confirmed == self.total()
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.confirmed += other.confirmed;
        self.nacked += other.nacked;
        self.returned += other.returned;
        self.unconfirmed += other.unconfirmed;
        self.republished += other.republished;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { confirmed, nacked, returned, unconfirmed, republished } = self;
        write!(
            f,
            "confirmed {confirmed}, nacked {nacked}, returned {returned}, unconfirmed {unconfirmed}, \
             republished {republished}"
        )
    }
}
