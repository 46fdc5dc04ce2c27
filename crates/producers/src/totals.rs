//! What was sent and how it ended.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use broker::publisher::Tally;

/// The counts of a run. Once it has ended, `sent` is the sum of the four ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Messages begun, copies not counted.
    pub sent: u64,
    /// How they ended.
    pub ended: Tally,
}

impl Totals {
    /// Whether something was sent and all of it was confirmed. A run that never got to send is no success.
    pub fn is_all_confirmed(&self) -> bool {
        self.sent > 0 && self.sent == self.ended.confirmed
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sent {}, {}", self.sent, self.ended)
    }
}

/// The totals while the run goes on, shared by its producers.
#[derive(Debug, Default)]
pub(crate) struct Counters(Mutex<Totals>);

impl Counters {
    pub(crate) fn sent(&self, messages: u64) {
        self.update(|totals| totals.sent += messages);
    }

    pub(crate) fn ended(&self, tally: Tally) {
        self.update(|totals| totals.ended += tally);
    }

    pub(crate) fn get(&self) -> Totals {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self, change: impl FnOnce(&mut Totals)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_read_as_documented() {
        let counters = Counters::default();
        counters.sent(10);
        counters.ended(Tally { confirmed: 4, nacked: 3, returned: 2, unconfirmed: 1, republished: 7 });
        let totals = counters.get();
        assert_eq!(totals.to_string(), "sent 10, confirmed 4, nacked 3, returned 2, unconfirmed 1, republished 7");
        assert!(!totals.is_all_confirmed());
        assert!(!Totals::default().is_all_confirmed(), "nothing sent is no success");
        let ended = Tally { confirmed: 10, republished: 7, ..Tally::default() };
        assert!(Totals { sent: 10, ended }.is_all_confirmed(), "it took more copies, and all arrived");
    }
}
