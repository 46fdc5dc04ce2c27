//! Deliveries that a client gave back, and when they go. Pure: the caller brings the time.
//!
//! What goes back at once comes again at once, so a message that its client cannot process would go round as fast as the
//! wires allow. So it waits here, unsettled, for a pause that doubles from round to round.

use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

use broker::subscription::Tag;
use tokio::time::Instant;

const PAUSE_FIRST: Duration = Duration::from_millis(100);
/// Far below the 25 min that a delivery may stay unsettled.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// How long after a round its messages may come back as the next one; a client that takes longer makes no hot loop.
const ROUND_GRACE: Duration = Duration::from_secs(1);

/// Bounded by the window: each is an unsettled delivery.
#[derive(Debug, Default)]
pub(crate) struct Requeues {
    waiting: BinaryHeap<Reverse<(Instant, Tag)>>,
    round: Option<Round>,
}

/// What is given back within one pause counts as given back together.
#[derive(Clone, Copy, Debug)]
struct Round {
    pause: Duration,
    until: Instant,
}

impl Requeues {
    pub(crate) fn push(&mut self, tag: Tag, now: Instant) {
        let round = match self.round {
            Some(round) if now < round.until => round,
            Some(round) if now < round.until + round.pause + ROUND_GRACE => {
                let pause = (round.pause * 2).min(PAUSE_MAX);
                Round { pause, until: now + pause }
            }
            _ => Round { pause: PAUSE_FIRST, until: now + PAUSE_FIRST },
        };
        self.round = Some(round);
        self.waiting.push(Reverse((now + round.pause, tag)));
    }

    pub(crate) fn wake_at(&self) -> Option<Instant> {
        self.waiting.peek().map(|Reverse((due, _))| *due)
    }

    /// What goes back now.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<Tag> {
        let mut due = Vec::new();
        while self.wake_at().is_some_and(|at| at <= now) {
            due.extend(self.waiting.pop().map(|Reverse((_, tag))| tag));
        }
        due
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// The broker has them back already.
    pub(crate) fn forget(&mut self) {
        self.waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn tags(numbers: impl IntoIterator<Item = u64>) -> Vec<Tag> {
        numbers.into_iter().map(Tag::detached).collect()
    }

    #[test]
    fn what_comes_back_at_once_waits_longer_each_time() {
        let (mut requeues, mut now) = (Requeues::default(), Instant::now());
        for pause in [100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000] {
            requeues.push(Tag::detached(1), now);
            assert_eq!(requeues.wake_at(), Some(now + pause * MS));
            now += pause * MS;
            assert_eq!(requeues.due(now - MS), []);
            assert_eq!(requeues.due(now), tags([1]));
        }
    }

    #[test]
    fn what_is_given_back_together_is_one_round() {
        let (mut requeues, now) = (Requeues::default(), Instant::now());
        (1..=16).for_each(|number| requeues.push(Tag::detached(number), now + 5 * MS));
        assert_eq!(requeues.due(now + 105 * MS), tags(1..=16));
        (1..=16).for_each(|number| requeues.push(Tag::detached(number), now + 106 * MS));
        assert_eq!(requeues.due(now + 306 * MS), tags(1..=16));
    }

    #[test]
    fn after_a_quiet_time_the_pause_is_short_again() {
        let (mut requeues, now) = (Requeues::default(), Instant::now());
        for round in 0..5 {
            requeues.push(Tag::detached(1), now + round * 2000 * MS);
            assert_eq!(requeues.due(now + (round * 2000 + 100) * MS), tags([1]));
        }
    }

    #[test]
    fn what_the_broker_has_back_is_forgotten() {
        let (mut requeues, now) = (Requeues::default(), Instant::now());
        requeues.push(Tag::detached(1), now);
        requeues.forget();
        assert_eq!(requeues.wake_at(), None);
        assert_eq!(requeues.due(now + 100 * MS), []);
    }
}
