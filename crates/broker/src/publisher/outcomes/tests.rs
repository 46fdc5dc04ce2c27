use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use protocol::names::RoutingKey;

use super::super::message::Message;
use super::*;

fn key(n: u64) -> RoutingKey {
    RoutingKey::new(&format!("consumer{n}")).unwrap()
}

fn carried(n: u64) -> Option<(String, String)> {
    Some(("m".to_owned(), key(n).as_str().to_owned()))
}

fn acked(carried: Option<(String, String)>) -> Completion {
    Completion { acked: true, carried }
}

fn nacked(carried: Option<(String, String)>) -> Completion {
    Completion { acked: false, carried }
}

/// Message "m" to consumer `n`.
fn to_consumer(n: u64, since: Instant) -> Publish {
    let message =
        Message { id: "m".to_owned(), routing_key: key(n), body: Vec::new(), sent_at_micros: 0, persistent: false };
    Publish::new(Arc::new(message), since)
}

/// `count` publishes of one message to consumers 0, 1, 2, …
fn published(count: u64) -> Outcomes {
    let mut outcomes = Outcomes::default();
    for n in 0..count {
        assert_eq!(outcomes.published(to_consumer(n, Instant::now())), n);
    }
    outcomes
}

fn tally(confirmed: u64, nacked: u64, returned: u64, unconfirmed: u64) -> Tally {
    Tally { confirmed, nacked, returned, unconfirmed, republished: 0 }
}

#[test]
fn a_return_counts_for_its_own_publish_whoever_carries_it() {
    let mut outcomes = published(3);
    outcomes.completed(0, acked(carried(1)));
    assert_eq!(outcomes.settle(), tally(1, 0, 0, 0));
    outcomes.completed(1, acked(None));
    outcomes.completed(2, nacked(None));
    assert_eq!(outcomes.settle(), tally(0, 1, 1, 0));
}

#[test]
fn a_look_into_the_middle_of_a_cumulative_ack_decides_nothing_too_early() {
    let mut outcomes = published(3);
    // Returns of 1 and 2 wait in lapin; the ack up to 2 completes 2, then 1, then 0.
    outcomes.completed(2, acked(carried(1)));
    assert_eq!(outcomes.settle(), Tally::default());
    outcomes.completed(1, acked(carried(2)));
    assert_eq!(outcomes.settle(), Tally::default());
    outcomes.completed(0, acked(None));
    assert_eq!(outcomes.settle(), tally(1, 0, 2, 0));
}

#[test]
fn what_is_given_up_holds_nothing_back_and_is_counted_once() {
    let mut outcomes = published(2);
    let later = Instant::now() + Duration::from_secs(1);
    outcomes.published(to_consumer(2, later));
    outcomes.completed(1, acked(None));
    outcomes.completed(2, acked(None));
    assert_eq!(outcomes.settle(), Tally::default());
    outcomes.expire(Instant::now());
    assert_eq!(outcomes.settle(), tally(2, 0, 0, 1));
    // The late answer ends nothing, but may carry the return of another publish.
    outcomes.published(to_consumer(3, later));
    outcomes.completed(0, acked(carried(3)));
    outcomes.completed(3, acked(carried(0)));
    assert_eq!(outcomes.settle(), tally(0, 0, 1, 0));
    assert_eq!(outcomes.undecided(), 0);
}

#[test]
fn a_loss_leaves_without_an_answer_what_had_none() {
    let mut outcomes = published(4);
    outcomes.completed(1, acked(carried(2)));
    outcomes.completed(3, nacked(None));
    // 2 is returned although its ack never came.
    let (ended, unanswered) = outcomes.lost();
    assert_eq!(ended, tally(1, 1, 1, 0));
    assert_eq!(unanswered.len(), 1);
    assert!(unanswered[0].is("m", "consumer0"));
    assert_eq!(outcomes.published(to_consumer(4, Instant::now())), 4);
}

#[test]
fn an_answer_of_a_lost_channel_says_nothing_about_the_next_one() {
    let mut outcomes = published(2);
    let (_, unanswered) = outcomes.lost();
    for publish in unanswered {
        outcomes.published(publish);
    }
    // For publish 0 of the old channel, and with the return of a message that is on its way again.
    outcomes.completed(0, acked(carried(1)));
    outcomes.completed(1, acked(None));
    assert_eq!((outcomes.settle(), outcomes.undecided()), (Tally::default(), 2));
    outcomes.completed(2, acked(None));
    outcomes.completed(3, nacked(None));
    assert_eq!(outcomes.settle(), tally(1, 1, 0, 0));
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Confirmed,
    Nacked,
    Returned,
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![3 => Just(Fate::Confirmed), 1 => Just(Fate::Nacked), 3 => Just(Fate::Returned)]
}

/// lapin's side: returns wait in a queue, each completion takes the front one, and what completed is seen later.
#[derive(Default)]
struct Lapin {
    waiting: VecDeque<u64>,
    unseen: Vec<(u64, Completion)>,
}

impl Lapin {
    fn complete(&mut self, number: u64, fate: Fate) {
        let carried = self.waiting.pop_front().and_then(carried);
        self.unseen.push((number, Completion { acked: fate != Fate::Nacked, carried }));
    }

    /// A drain sees all that completed, in any order.
    fn seen(&mut self, outcomes: &mut Outcomes, backwards: bool) -> Tally {
        if backwards {
            self.unseen.reverse();
        }
        for (number, completion) in self.unseen.drain(..) {
            outcomes.completed(number, completion);
        }
        outcomes.settle()
    }
}

/// How many of `fates` are `fate`.
fn count(fates: &[Fate], fate: Fate) -> u64 {
    fates.iter().filter(|other| **other == fate).count() as u64
}

fn truth(fates: &[Fate]) -> Tally {
    tally(count(fates, Fate::Confirmed), count(fates, Fate::Nacked), count(fates, Fate::Returned), 0)
}

fn index(number: u64) -> usize {
    usize::try_from(number).unwrap()
}

proptest! {
    /// The broker returns in order and before the ack; the acks come in *any* order and are looked at after any of
    /// them; whatever is decided is decided right.
    #[test]
    fn every_publish_ends_as_what_it_was(
        fates in prop::collection::vec(fate(), 1..60),
        picks in prop::collection::vec(any::<(prop::sample::Index, bool, bool)>(), 200),
    ) {
        let mut outcomes = Outcomes::default();
        let mut lapin = Lapin::default();
        let mut open: Vec<u64> = Vec::new();
        let mut unpublished = (0..).zip(&fates).peekable();
        let mut decided = Tally::default();
        let mut steps = picks.into_iter().cycle();
        while unpublished.peek().is_some() || !open.is_empty() {
            let (pick, publish, look) = steps.next().unwrap();
            if (publish || open.is_empty()) && let Some((number, fate)) = unpublished.next() {
                outcomes.published(to_consumer(number, Instant::now()));
                if *fate == Fate::Returned {
                    lapin.waiting.push_back(number);
                }
                open.push(number);
            } else if !open.is_empty() {
                let number = open.swap_remove(pick.index(open.len()));
                lapin.complete(number, fates[index(number)]);
            }
            if look {
                decided += lapin.seen(&mut outcomes, pick.index(2) == 0);
                prop_assert_eq!(decided, truth(&fates[..index(decided.total())]));
            }
        }
        decided += lapin.seen(&mut outcomes, false);
        prop_assert_eq!(decided, truth(&fates));
    }
}
