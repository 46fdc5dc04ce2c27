//! Which tags of a lane are settled, and the fewest acks that say so. Pure: no channel, no clock.
//!
//! RabbitMQ numbers the deliveries of a channel 1, 2, 3, … whatever consumer they are for. A tag that nobody has settled
//! yet, or that no session has even seen yet, is *open*; an ack must never cover one. Three rules come from the broker,
//! each of which costs the whole channel when broken (406, tried on 3.10):
//!
//! - a tag that is already gone must not be named again, not even by a cumulative ack;
//! - a cumulative ack covers every tag up to it, so a nack of a tag below has to be on the wire before it;
//! - an ack that names one tag makes the broker walk its list from the oldest, so there should be few of them.
//!
//! So settled tags wait a moment: those that join the settled prefix leave with one cumulative ack, and only those that
//! are still beyond an open tag at the flush after next are named singly.

use rangemap::RangeInclusiveSet;

/// AMQP's number of a delivery on one channel, from 1.
pub type DeliveryTag = u64;

/// What becomes of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The consumer has it.
    Ack,
    /// Back to its place in the queue.
    Requeue,
    /// Dead-lettered where the queue has a policy for it, dropped otherwise.
    Reject,
}

/// One thing to write on the channel, in the order given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// `basic.nack` of this one tag.
    Nack {
        /// The tag.
        tag: DeliveryTag,
        /// Back into the queue, or dropped.
        requeue: bool,
    },
    /// `basic.ack` with `multiple`: everything up to the tag.
    AckUpTo(DeliveryTag),
    /// `basic.ack` of this one tag.
    Ack(DeliveryTag),
}

/// The settled tags of one channel's life. A rebuilt channel starts with a new ledger.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Every tag up to here is gone at the broker.
    floor: DeliveryTag,
    /// Beyond the floor and gone: nacked, or acked singly. At most one range per open tag.
    gone: RangeInclusiveSet<DeliveryTag>,
    nacks: Vec<(DeliveryTag, bool)>,
    /// Acked by the consumer, to be written with the next flush at the latest.
    ripe: Vec<DeliveryTag>,
    /// Acked by the consumer since the last flush: may wait for the prefix to reach them.
    fresh: Vec<DeliveryTag>,
}

impl Ledger {
    /// Settles `tag`. An `urgent` ack is named singly with the next flush if the prefix has not reached it: its consumer
    /// is about to run out of window. Each tag is settled once; a tag that is gone already is ignored.
    pub fn settle(&mut self, tag: DeliveryTag, outcome: Outcome, urgent: bool) {
        if tag <= self.floor || self.gone.contains(&tag) {
            return;
        }
        match outcome {
            Outcome::Ack if urgent => self.ripe.push(tag),
            Outcome::Ack => self.fresh.push(tag),
            Outcome::Requeue => self.nacks.push((tag, true)),
            Outcome::Reject => self.nacks.push((tag, false)),
        }
    }

    /// Whether a flush would have something to look at.
    pub fn is_idle(&self) -> bool {
        self.nacks.is_empty() && self.ripe.is_empty() && self.fresh.is_empty()
    }

    /// Appends to `out` what is to be written now, in this order. What is left afterwards (`!is_idle()`) is written by
    /// the flush after this one at the latest.
    pub fn flush(&mut self, out: &mut Vec<Write>) {
        for (tag, requeue) in self.nacks.drain(..) {
            out.push(Write::Nack { tag, requeue });
            self.gone.insert(tag..=tag);
        }
        self.ripe.sort_unstable();
        self.fresh.sort_unstable();
        let (ripe_taken, fresh_taken) = self.advance(out);
        for &tag in self.ripe.get(ripe_taken..).unwrap_or_default() {
            out.push(Write::Ack(tag));
            self.gone.insert(tag..=tag);
        }
        self.ripe.clear();
        self.fresh.drain(..fresh_taken);
        std::mem::swap(&mut self.ripe, &mut self.fresh);
    }

    /// Moves the floor over the settled prefix and acks it; returns how many ripe and fresh tags it took in.
    fn advance(&mut self, out: &mut Vec<Write>) -> (usize, usize) {
        let (mut ripe_taken, mut fresh_taken) = (0, 0);
        let mut held = None;
        loop {
            let next = self.floor + 1;
            if self.ripe.get(ripe_taken) == Some(&next) {
                ripe_taken += 1;
            } else if self.fresh.get(fresh_taken) == Some(&next) {
                fresh_taken += 1;
            } else if let Some(range) = self.gone.get(&next) {
                self.floor = *range.end();
                continue;
            } else {
                break;
            }
            self.floor = next;
            held = Some(next);
        }
        if let Some(tag) = held {
            out.push(Write::AckUpTo(tag));
        }
        self.gone.remove(0..=self.floor);
        (ripe_taken, fresh_taken)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    fn flush(ledger: &mut Ledger) -> Vec<Write> {
        let mut out = Vec::new();
        ledger.flush(&mut out);
        out
    }

    fn acked(tags: &[DeliveryTag]) -> Ledger {
        let mut ledger = Ledger::default();
        tags.iter().for_each(|&tag| ledger.settle(tag, Outcome::Ack, false));
        ledger
    }

    #[test]
    fn a_settled_prefix_is_one_ack() {
        assert_eq!(flush(&mut acked(&[3, 1, 2])), [Write::AckUpTo(3)]);
    }

    #[test]
    fn beyond_an_open_tag_acks_wait_for_one_flush_and_are_then_named() {
        let mut ledger = acked(&[1, 3, 4]);
        assert_eq!(flush(&mut ledger), [Write::AckUpTo(1)]);
        assert_eq!(flush(&mut ledger), [Write::Ack(3), Write::Ack(4)]);
        ledger.settle(2, Outcome::Ack, false);
        assert_eq!(flush(&mut ledger), [Write::AckUpTo(2)], "3 and 4 are gone and must not be named again");
        ledger.settle(5, Outcome::Ack, false);
        assert_eq!(flush(&mut ledger), [Write::AckUpTo(5)]);
    }

    #[test]
    fn an_urgent_ack_does_not_wait() {
        let mut ledger = Ledger::default();
        ledger.settle(2, Outcome::Ack, true);
        assert_eq!(flush(&mut ledger), [Write::Ack(2)]);
    }

    #[test]
    fn a_nack_goes_before_the_cumulative_ack_that_spans_it() {
        let mut ledger = acked(&[1, 3]);
        ledger.settle(2, Outcome::Requeue, false);
        assert_eq!(flush(&mut ledger), [Write::Nack { tag: 2, requeue: true }, Write::AckUpTo(3)]);
    }

    #[test]
    fn a_prefix_of_nacks_alone_needs_no_ack() {
        let mut ledger = Ledger::default();
        ledger.settle(1, Outcome::Reject, false);
        assert_eq!(flush(&mut ledger), [Write::Nack { tag: 1, requeue: false }]);
        assert!(ledger.is_idle());
    }

    /// What RabbitMQ keeps for a channel, as strict as RabbitMQ.
    #[derive(Default)]
    struct Channel {
        delivered: DeliveryTag,
        unacked: BTreeSet<DeliveryTag>,
        settled: BTreeMap<DeliveryTag, Outcome>,
    }

    impl Channel {
        fn apply(&mut self, write: Write) {
            let (tag, outcome) = match write {
                Write::Nack { tag, requeue: true } => (tag, Outcome::Requeue),
                Write::Nack { tag, requeue: false } => (tag, Outcome::Reject),
                Write::AckUpTo(tag) | Write::Ack(tag) => (tag, Outcome::Ack),
            };
            assert!(self.unacked.contains(&tag), "406: unknown delivery tag {tag}");
            let covered: Vec<_> = match write {
                Write::AckUpTo(_) => self.unacked.range(..=tag).copied().collect(),
                _ => vec![tag],
            };
            for tag in covered {
                self.unacked.remove(&tag);
                assert_eq!(self.settled.insert(tag, outcome), None, "{tag} settled twice");
            }
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Arrive(u8),
        Settle(prop::sample::Index, Outcome, bool),
        /// A session leaves: some of the open tags are requeued together.
        Leave(prop::sample::Index, u8),
        Flush,
        Rebuild,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let outcome = prop_oneof![8 => Just(Outcome::Ack), 1 => Just(Outcome::Requeue), 1 => Just(Outcome::Reject)];
        prop::collection::vec(
            prop_oneof![
                3 => (1..20u8).prop_map(Step::Arrive),
                12 => (any::<prop::sample::Index>(), outcome, any::<bool>()).prop_map(|(i, o, u)| Step::Settle(i, o, u)),
                1 => (any::<prop::sample::Index>(), 1..8u8).prop_map(|(i, n)| Step::Leave(i, n)),
                4 => Just(Step::Flush),
                1 => Just(Step::Rebuild),
            ],
            0..300,
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        /// Any interleaving of arrival, settle, leave and rebuild: the broker never refuses, every tag ends as what its
        /// consumer said, exactly once, and never before.
        #[test]
        fn every_tag_is_written_once_as_it_was_settled_and_not_before(steps in steps()) {
            let (mut ledger, mut channel) = (Ledger::default(), Channel::default());
            let mut open: Vec<DeliveryTag> = Vec::new();
            let mut said: BTreeMap<DeliveryTag, Outcome> = BTreeMap::new();
            let check = |ledger: &mut Ledger, channel: &mut Channel, said: &BTreeMap<_, _>| {
                for write in flush(ledger) {
                    channel.apply(write);
                }
                for (tag, outcome) in &channel.settled {
                    assert_eq!(said.get(tag), Some(outcome), "tag {tag} was written as {outcome:?}");
                }
            };
            for step in steps {
                match step {
                    Step::Arrive(n) => for _ in 0..n {
                        channel.delivered += 1;
                        channel.unacked.insert(channel.delivered);
                        open.push(channel.delivered);
                    },
                    Step::Settle(at, outcome, urgent) if !open.is_empty() => {
                        let tag = open.swap_remove(at.index(open.len()));
                        ledger.settle(tag, outcome, urgent);
                        said.insert(tag, outcome);
                    }
                    Step::Leave(at, n) => for _ in 0..n {
                        if open.is_empty() { break }
                        let tag = open.swap_remove(at.index(open.len()));
                        ledger.settle(tag, Outcome::Requeue, false);
                        said.insert(tag, Outcome::Requeue);
                    },
                    Step::Settle(..) => {}
                    Step::Flush => check(&mut ledger, &mut channel, &said),
                    Step::Rebuild => {
                        (ledger, channel) = (Ledger::default(), Channel::default());
                        open.clear();
                        said.clear();
                    }
                }
            }
            check(&mut ledger, &mut channel, &said);
            check(&mut ledger, &mut channel, &said);
            prop_assert!(ledger.is_idle());
            prop_assert_eq!(channel.settled.len(), said.len(), "two flushes write all that is settled");
            open.sort_unstable();
            prop_assert_eq!(channel.unacked.into_iter().collect::<Vec<_>>(), open);
        }
    }
}
