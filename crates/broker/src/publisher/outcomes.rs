//! Which publish of one channel ended how.
//!
//! lapin hands a returned message to whichever publish of the channel completes next, so a completion says only
//! "acked or nacked, and by the way this message came back". Three facts make the outcomes exact all the same:
//!
//! 1. RabbitMQ sends `basic.return` before the ack of the same publish ("the order here is important", as its
//!    channel process says), and returns in the order of the publishes.
//! 2. lapin queues returns and takes one off, from the front, at each completion, if there is one.
//! 3. [`completed`](Outcomes::completed) has seen every completion up to the latest, in any order, whenever
//!    [`settle`](Outcomes::settle) is called (the publisher's `drain` sees to that).
//!
//! **An outcome is decided when its publish and all earlier ones have completed.** Let `m` be returned, and let `k`
//! publishes up to and including `m` be returned. By (1) their returns are the first `k` in the queue's history, and
//! each was in the queue when its own publish completed. So each of these `k` completions took a return off, or
//! found that all so far were taken already; once all `k` have completed, the first `k` returns are off, `m`'s among
//! them. By (3) whoever carried them has been seen.
//!
//! Deciding at each completion instead would be wrong: a cumulative ack completes its publishes one by one in the
//! order of a hash map, and a look in between sees a returned one acked while a later completion carries its return.
//!
//! A publish that was given up, or that a lost channel left without an answer, would hold back all later ones, so
//! those are decided without it. That rests on one more fact: RabbitMQ acks what it returns at once and in order, so
//! that behind an *unanswered* publish no return is left in lapin's queue once a whole ack has been looked at.
//!
//! **No answer is credited to a publish of another channel.** Numbers are never used twice, and those of a channel that
//! is lost are below the first one of the next: whatever comes for them is not looked at, a carried return included,
//! since it names a message that the next channel may be publishing again.

use std::collections::VecDeque;

use tokio::time::Instant;

use super::tally::Tally;
use super::undecided::Publish;

/// What lapin said when a publish completed.
#[derive(Clone, Debug)]
pub(super) struct Completion {
    /// Acked, else nacked.
    pub(super) acked: bool,
    /// Message id and routing key of a returned message, of this publish or of another one.
    pub(super) carried: Option<(String, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    Acked,
    Nacked,
}

#[derive(Debug)]
struct Entry {
    publish: Publish,
    state: State,
    returned: bool,
}

/// The publishes of the present channel that are not decided, in the order of publishing.
#[derive(Debug, Default)]
pub(super) struct Outcomes {
    /// The number of the first entry.
    first: u64,
    /// The number of the first publish of the present channel.
    channel_first: u64,
    entries: VecDeque<Entry>,
    /// Decided before their turn: given up.
    ended: Tally,
}

impl Outcomes {
    /// A publish begins; its number is one more than the last one's.
    pub(super) fn published(&mut self, publish: Publish) -> u64 {
        self.entries.push_back(Entry { publish, state: State::Open, returned: false });
        self.first + (self.entries.len() as u64) - 1
    }

    /// Publish `number` was acked or nacked. Of one that was given up only what it carries counts, of one of a channel
    /// that was lost nothing.
    pub(super) fn completed(&mut self, number: u64, completion: Completion) {
        if number < self.channel_first {
            return;
        }
        if let Some(entry) = self.entry(number) {
            entry.state = if completion.acked { State::Acked } else { State::Nacked };
        }
        if let Some((id, key)) = completion.carried {
            self.returned(&id, &key);
        }
    }

    /// Ends what can be decided and says how.
    pub(super) fn settle(&mut self) -> Tally {
        let mut tally = std::mem::take(&mut self.ended);
        while let Some(entry) = self.pop_if(|entry| entry.state != State::Open) {
            entry.count(&mut tally);
        }
        tally
    }

    /// Gives up the publishes at the front whose message was published first at `until` or before.
    pub(super) fn expire(&mut self, until: Instant) {
        while let Some(entry) = self.pop_if(|entry| entry.publish.since <= until) {
            entry.count(&mut self.ended);
        }
    }

    /// The channel is gone: ends what it had answered, and hands out the rest in order. The next publish is one of the
    /// next channel.
    pub(super) fn lost(&mut self) -> (Tally, VecDeque<Publish>) {
        let mut tally = std::mem::take(&mut self.ended);
        self.first += self.entries.len() as u64;
        self.channel_first = self.first;
        let mut unanswered = VecDeque::new();
        for entry in self.entries.drain(..) {
            if entry.is_answered() {
                entry.count(&mut tally);
            } else {
                unanswered.push_back(entry.publish);
            }
        }
        (tally, unanswered)
    }

    /// How many are not decided.
    pub(super) fn undecided(&self) -> usize {
        self.entries.len()
    }

    /// When the message of the oldest undecided publish was published first.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.entries.front().map(|entry| entry.publish.since)
    }

    fn pop_if(&mut self, wanted: impl Fn(&Entry) -> bool) -> Option<Entry> {
        if !wanted(self.entries.front()?) {
            return None;
        }
        self.first += 1;
        self.entries.pop_front()
    }

    fn entry(&mut self, number: u64) -> Option<&mut Entry> {
        let index = number.checked_sub(self.first)?;
        self.entries.get_mut(usize::try_from(index).ok()?)
    }

    /// The same id goes to many consumers, hence the key. Returns come in the order of publishing, so the search
    /// from the front is short; one that was given up is not found, and has been counted.
    fn returned(&mut self, id: &str, key: &str) {
        let matches = |entry: &&mut Entry| !entry.returned && entry.publish.is(id, key);
        if let Some(entry) = self.entries.iter_mut().find(matches) {
            entry.returned = true;
        }
    }
}

impl Entry {
    /// Also without its ack: a return is final.
    fn is_answered(&self) -> bool {
        self.returned || self.state != State::Open
    }

    fn count(&self, tally: &mut Tally) {
        let counter = match self.state {
            _ if self.returned => &mut tally.returned,
            State::Open => &mut tally.unconfirmed,
            State::Acked => &mut tally.confirmed,
            State::Nacked => &mut tally.nacked,
        };
        *counter += 1;
    }
}

#[cfg(test)]
mod tests;
