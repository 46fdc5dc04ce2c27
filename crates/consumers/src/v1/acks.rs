//! Which ack is sent when: processed messages are gathered, so that many cost one frame. Pure: it is told the time.

use std::time::Duration;

use tokio::time::Instant;

use crate::behaviour::Behaviour;

/// How long a processed message waits at most for others to share its ack. Long enough that what arrives in one go
/// is one frame, short enough to be no noticeable part of the broker's round trip.
pub(crate) const GATHER: Duration = Duration::from_millis(5);

/// What has arrived, what of it is processed, and what of that is acked: three sequence numbers, each at most the one
/// before it. More than a window may be unacked: after an outage of its broker a server sends again what it holds
/// unacked, with new seqs, and the old ones count no more.
#[derive(Debug)]
pub(crate) struct Acks {
    behaviour: Behaviour,
    window: u64,
    received: u64,
    processed: u64,
    acked: u64,
    /// When the message after `processed` will be.
    done_at: Option<Instant>,
    /// When the ack of `processed` is due at the latest.
    due_at: Option<Instant>,
}

impl Acks {
    /// Of a new session.
    pub(crate) fn new(behaviour: Behaviour, window: u16) -> Self {
        let window = u64::from(window);
        Self { behaviour, window, received: 0, processed: 0, acked: 0, done_at: None, due_at: None }
    }

    /// The last seq that arrived.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// The next message has arrived.
    pub(crate) fn arrived(&mut self, now: Instant) {
        self.received += 1;
        match self.behaviour {
            Behaviour::Good => self.processed_up_to(self.received, now),
            Behaviour::Slow(time) => {
                self.done_at.get_or_insert(now + time);
            }
            Behaviour::NoAck | Behaviour::Stall => {}
        }
    }

    /// Lets the slow work go on until now.
    pub(crate) fn work(&mut self, now: Instant) {
        let Behaviour::Slow(time) = self.behaviour else { return };
        while let Some(done_at) = self.done_at.filter(|done_at| *done_at <= now) {
            self.processed_up_to(self.processed + 1, now);
            self.done_at = (self.processed < self.received).then(|| done_at + time);
        }
    }

    /// Nothing is to be gathered any more: the connection is about to end.
    pub(crate) fn hurry(&mut self, now: Instant) {
        if self.due_at.is_some() {
            self.due_at = Some(now);
        }
    }

    /// When there will be something to do: a message is processed or an ack is due.
    pub(crate) fn wake(&self) -> Option<Instant> {
        self.done_at.into_iter().chain(self.due_at).min()
    }

    /// The seq to ack now, if one is due; and how many messages it acks.
    pub(crate) fn take(&mut self, now: Instant) -> Option<(u64, u64)> {
        if self.due_at? > now {
            return None;
        }
        self.due_at = None;
        let count = self.processed - self.acked;
        self.acked = self.processed;
        Some((self.acked, count))
    }

    fn processed_up_to(&mut self, seq: u64, now: Instant) {
        self.processed = seq;
        // Half a window that waits here is half a window that the server may not use.
        let urgent = (self.processed - self.acked) * 2 >= self.window;
        let due_at = if urgent { now } else { self.due_at.unwrap_or(now + GATHER) };
        self.due_at = Some(due_at);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn arrive(acks: &mut Acks, count: u64, now: Instant) {
        for _ in 0..count {
            acks.arrived(now);
        }
    }

    #[test]
    fn what_arrives_together_is_one_ack() {
        let (mut acks, now) = (Acks::new(Behaviour::Good, 16), Instant::now());
        arrive(&mut acks, 3, now);
        assert_eq!(acks.take(now), None);
        arrive(&mut acks, 2, now + 4 * MS);
        assert_eq!(acks.wake(), Some(now + GATHER), "the first one waits no longer for those after it");
        assert_eq!(acks.take(now + GATHER), Some((5, 5)));
        assert_eq!((acks.take(now + GATHER), acks.wake()), (None, None));
    }

    #[test]
    fn half_a_window_is_acked_at_once() {
        let (mut acks, now) = (Acks::new(Behaviour::Good, 16), Instant::now());
        arrive(&mut acks, 7, now);
        assert_eq!(acks.take(now), None);
        arrive(&mut acks, 1, now);
        assert_eq!(acks.take(now), Some((8, 8)));
        let mut one = Acks::new(Behaviour::Good, 1);
        arrive(&mut one, 1, now);
        assert_eq!(one.take(now), Some((1, 1)), "a window of one leaves nothing to gather");
    }

    #[test]
    fn slow_work_is_done_one_after_the_other_and_acked_after_it() {
        let (mut acks, now) = (Acks::new(Behaviour::Slow(100 * MS), 4), Instant::now());
        arrive(&mut acks, 4, now);
        acks.work(now + 99 * MS);
        assert_eq!((acks.take(now + 99 * MS), acks.wake()), (None, Some(now + 100 * MS)));
        acks.work(now + 100 * MS);
        assert_eq!(acks.take(now + 104 * MS), None, "gathered as ever");
        assert_eq!(acks.take(now + 105 * MS), Some((1, 1)));
        arrive(&mut acks, 1, now + 110 * MS);
        acks.work(now + 450 * MS);
        assert_eq!(acks.take(now + 450 * MS), Some((4, 3)), "it catches up with the time that passed");
        assert_eq!(acks.wake(), Some(now + 500 * MS), "the fifth began when the fourth was done");
    }

    #[test]
    fn who_never_acks_never_acks() {
        let (mut acks, now) = (Acks::new(Behaviour::NoAck, 2), Instant::now());
        arrive(&mut acks, 2, now);
        acks.work(now + 10_000 * MS);
        acks.hurry(now);
        assert_eq!((acks.take(now + 10_000 * MS), acks.wake()), (None, None));
    }

    #[test]
    fn an_end_in_sight_is_worth_an_ack_at_once() {
        let (mut acks, now) = (Acks::new(Behaviour::Good, 16), Instant::now());
        acks.hurry(now);
        assert_eq!(acks.take(now), None, "nothing arrived");
        arrive(&mut acks, 1, now);
        acks.hurry(now);
        assert_eq!(acks.take(now), Some((1, 1)));
    }

    proptest! {
        /// Whatever the times: acks ascend, cover what arrived and nothing else, and none is sent for nothing.
        #[test]
        fn every_message_is_acked_once_and_in_time(
            gaps in prop::collection::vec(0_u64..12, 1..200),
            window in 1_u16..20,
            slow in prop::option::of(0_u64..4),
        ) {
            let behaviour = slow.map_or(Behaviour::Good, |ms| Behaviour::Slow(Duration::from_millis(ms)));
            let mut acks = Acks::new(behaviour, window);
            let (mut now, mut last, mut sum, mut sent) = (Instant::now(), 0, 0, 0);
            let mut gaps = gaps.into_iter();
            loop {
                acks.work(now);
                if let Some((seq, count)) = acks.take(now) {
                    prop_assert!(seq > last && seq <= sent && count == seq - last);
                    (last, sum) = (seq, sum + count);
                }
                let next = if sent - sum < u64::from(window) { gaps.next() } else { None };
                match (next, acks.wake()) {
                    (Some(gap), wake) => {
                        now += Duration::from_millis(gap);
                        if wake.is_none_or(|wake| now < wake + GATHER) {
                            acks.arrived(now);
                            sent += 1;
                        }
                    }
                    (None, Some(wake)) => now = now.max(wake),
                    (None, None) => break,
                }
            }
            prop_assert_eq!((sum, last), (sent, sent));
        }
    }
}
