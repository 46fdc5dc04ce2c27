use std::time::Duration;

use proptest::prelude::*;
use protocol::names::RoutingKey;

use super::*;

fn message(n: usize) -> Message {
    sized(n, 0)
}

fn sized(n: usize, bytes: usize) -> Message {
    Message {
        id: n.to_string(),
        routing_key: RoutingKey::new("consumer101").unwrap(),
        body: vec![b'x'; bytes],
        sent_at_micros: 0,
        persistent: false,
    }
}

fn accepted(count: usize) -> Undecided {
    let mut undecided = Undecided::default();
    for n in 0..count {
        undecided.accept(message(n), Instant::now());
    }
    undecided
}

fn id(message: &Message) -> usize {
    message.id.parse().unwrap()
}

/// What is handed out now, when the answer to none has come.
fn all(undecided: &mut Undecided) -> Vec<(usize, u32)> {
    let mut orders = Vec::new();
    while let Some(order) = undecided.next(orders.len()) {
        orders.push((id(&order.message), order.republished));
    }
    orders
}

fn acked() -> Completion {
    Completion { acked: true, carried: None }
}

#[test]
fn what_a_lost_connection_left_unanswered_comes_before_anything_newer() {
    let mut undecided = accepted(3);
    assert_eq!(all(&mut undecided), [(0, 0), (1, 0), (2, 0)]);
    undecided.completed(1, acked());
    undecided.accept(message(3), Instant::now());
    assert_eq!(undecided.lost(Loss::Connection).map(|message| id(&message)), None);
    assert!(!undecided.is_open());
    assert_eq!(all(&mut undecided), [(0, 1), (2, 1), (3, 0)]);
    assert_eq!(undecided.settle(), Tally { confirmed: 1, republished: 2, ..Tally::default() });
    undecided.lost(Loss::Connection);
    assert_eq!(all(&mut undecided), [(0, 2), (2, 2), (3, 1)]);
}

#[test]
fn a_message_that_is_refused_alone_twice_ends_and_the_others_go_on() {
    let mut undecided = accepted(4);
    // Messages 2 and 3 are refused.
    assert_eq!(all(&mut undecided).len(), 4);
    let (mut number, mut refused, mut rounds) = (4, Vec::new(), 0);
    assert!(undecided.lost(Loss::Message).is_none());
    while undecided.len() > 0 {
        rounds += 1;
        let order = undecided.next(0).unwrap();
        assert!(undecided.next(1).is_none(), "alone");
        assert_eq!(order.number, number);
        number += 1;
        if id(&order.message) < 2 {
            undecided.completed(order.number, acked());
            let _ = undecided.on_channel.settle();
        } else {
            refused.extend(undecided.lost(Loss::Message).map(|message| id(&message)));
        }
    }
    assert_eq!((refused, rounds), (vec![2, 3], 6));
    assert_eq!(undecided.settle(), Tally { nacked: 2, republished: 6, ..Tally::default() });
}

#[test]
fn what_is_as_large_as_a_refused_message_goes_alone_until_one_is_taken() {
    let mut undecided = Undecided::default();
    undecided.accept(sized(0, 100), Instant::now());
    for times in 0..2 {
        assert_eq!(all(&mut undecided), [(0, times)]);
        assert_eq!(undecided.lost(Loss::Message).is_some(), times == 1);
    }
    for (n, bytes) in [(1, 99), (2, 99), (3, 100), (4, 101), (5, 99)] {
        undecided.accept(sized(n, bytes), Instant::now());
    }
    let answer = |undecided: &mut Undecided, number| {
        undecided.completed(number, acked());
        let _ = undecided.settle();
    };
    assert_eq!(all(&mut undecided), [(1, 0), (2, 0)]);
    (2..4).for_each(|number| answer(&mut undecided, number));
    assert_eq!(all(&mut undecided), [(3, 0)]);
    answer(&mut undecided, 4);
    // One of that size was taken; those that were accepted before stay suspect.
    assert_eq!(all(&mut undecided), [(4, 0)]);
    answer(&mut undecided, 5);
    for n in [6, 7] {
        undecided.accept(sized(n, 100), Instant::now());
    }
    assert_eq!(all(&mut undecided), [(5, 0), (6, 0), (7, 0)]);
}

/// Without its exchange every message is refused, and none is to blame.
#[test]
fn a_channel_refused_again_and_again_blames_no_message_and_costs_one_copy_each_time() {
    let mut undecided = accepted(3);
    assert_eq!(all(&mut undecided).len(), 3);
    for times in 1..50 {
        assert!(undecided.lost(Loss::Channel).is_none());
        assert_eq!(all(&mut undecided), [(0, times)]);
    }
    assert_eq!(undecided.settle(), Tally { republished: 49, ..Tally::default() });
    assert_eq!(undecided.abandon(), Tally { unconfirmed: 3, ..Tally::default() });
}

#[test]
fn what_is_given_up_is_not_published_again() {
    let mut undecided = accepted(2);
    assert_eq!(all(&mut undecided).len(), 2);
    let later = Instant::now() + Duration::from_secs(1);
    undecided.accept(message(2), later);
    undecided.completed(0, acked());
    undecided.expire(Instant::now());
    assert_eq!(undecided.settle(), Tally { confirmed: 1, unconfirmed: 1, ..Tally::default() });
    undecided.lost(Loss::Connection);
    assert_eq!(all(&mut undecided), [(2, 0)]);
    undecided.lost(Loss::Connection);
    undecided.expire(later);
    assert_eq!(undecided.settle(), Tally { unconfirmed: 1, ..Tally::default() });
    assert_eq!(undecided.len(), 0);
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Confirmed,
    Nacked,
    Returned,
    /// Too large: the channel is closed.
    Refused,
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        6 => Just(Fate::Confirmed), 2 => Just(Fate::Nacked), 2 => Just(Fate::Returned), 1 => Just(Fate::Refused),
    ]
}

/// One life of a channel: the broker takes publishes in order, answers some, and the client library hands a return to
/// whichever answer it completes next.
#[derive(Default)]
struct Channel {
    /// Number and message of what was written, in order.
    written: VecDeque<(u64, usize)>,
    /// Taken and not answered.
    taken: VecDeque<(u64, usize)>,
    returns: VecDeque<usize>,
    answers: Vec<(u64, Completion)>,
}

impl Channel {
    /// The broker takes up to `count`; whether it refused one of them.
    fn take(&mut self, fates: &[Fate], count: usize, enqueued: &mut [u32]) -> bool {
        for _ in 0..count {
            let Some((number, message)) = self.written.pop_front() else { return false };
            match fates[message] {
                Fate::Refused => return true,
                Fate::Confirmed => enqueued[message] += 1,
                Fate::Returned => self.returns.push_back(message),
                Fate::Nacked => {}
            }
            self.taken.push_back((number, message));
        }
        false
    }

    /// It answers all that it has returned, and of the rest what `picks` says: cumulatively up to the first that stays
    /// open, in any order, and one by one beyond.
    fn answer(&mut self, fates: &[Fate], picks: u64) {
        let stays = |(place, (_, message)): (usize, &(u64, usize))| {
            fates[*message] != Fate::Returned && picks >> (place % 64) & 1 == 1
        };
        let first_open = self.taken.iter().enumerate().position(stays).unwrap_or(self.taken.len());
        let mut answered = self.taken.drain(..first_open).collect::<Vec<_>>();
        if picks & 2 == 0 {
            answered.reverse();
        }
        for (place, publish) in std::mem::take(&mut self.taken).into_iter().enumerate() {
            if stays((place, &publish)) { self.taken.push_back(publish) } else { answered.push(publish) }
        }
        for (number, message) in answered {
            let carried = self.returns.pop_front().map(|returned| (returned.to_string(), "consumer101".to_owned()));
            self.answers.push((number, Completion { acked: fates[message] != Fate::Nacked, carried }));
        }
    }
}

proptest! {
    /// Cuts at any moment, refusals, late answers of old channels: every message ends as what it was, once; what was
    /// confirmed is there; every copy after the first is counted and says so; nothing overtakes an older one.
    #[test]
    fn every_message_ends_as_what_it_was_through_any_number_of_cuts(
        fates in prop::collection::vec(fate(), 1..40),
        steps in prop::collection::vec((0..12u8, any::<u64>()), 20..120),
    ) {
        const WINDOW: usize = 12;
        let mut undecided = Undecided::default();
        let (mut channel, mut old): (Channel, Vec<(u64, Completion)>) = Default::default();
        let (mut accepted, mut copies, mut enqueued) = (0, vec![0u32; fates.len()], vec![0u32; fates.len()]);
        let (mut tally, mut refused, mut cuts) = (Tally::default(), 0, 0);
        let mut newest = 0;
        // Once the steps are used up nothing is cut any more.
        let calm = std::iter::repeat_n((11u8, 0u64), 20 * fates.len());
        for (act, random) in steps.into_iter().chain(calm) {
            while accepted < fates.len() && undecided.len() < WINDOW {
                undecided.accept(message(accepted), Instant::now());
                accepted += 1;
            }
            while let Some(order) = undecided.next(channel.written.len() + channel.taken.len()) {
                let number = id(&order.message);
                prop_assert!(number >= newest, "{} after {}", number, newest);
                newest = number;
                prop_assert_eq!(order.republished, copies[number]);
                copies[number] += 1;
                channel.written.push_back((order.number, number));
            }
            let refuses = channel.take(&fates, if act > 8 { WINDOW } else { usize::from(act) }, &mut enqueued);
            channel.answer(&fates, random);
            for (number, completion) in channel.answers.drain(..) {
                undecided.completed(number, completion);
            }
            tally += undecided.settle();
            if refuses || act == 0 {
                // The broker had more to say, and nobody hears it in time.
                channel.answer(&fates, 0);
                old.append(&mut channel.answers);
                refused += u64::from(undecided.lost(if refuses { Loss::Message } else { Loss::Connection }).is_some());
                (channel, newest) = (Channel::default(), 0);
                cuts += 1;
            }
            if act % 3 == 0 {
                old.iter().cloned().for_each(|(number, completion)| undecided.completed(number, completion));
            }
        }
        tally += undecided.settle();
        let count = |fate| fates.iter().filter(|other| **other == fate).count() as u64;
        prop_assert_eq!((undecided.len(), accepted), (0, fates.len()), "{} cuts", cuts);
        prop_assert_eq!(refused, count(Fate::Refused));
        let again = copies.iter().map(|copies| u64::from(copies - 1)).sum::<u64>();
        prop_assert_eq!(tally, Tally {
            confirmed: count(Fate::Confirmed),
            nacked: count(Fate::Nacked) + count(Fate::Refused),
            returned: count(Fate::Returned),
            unconfirmed: 0,
            republished: again,
        });
        for (message, fate) in fates.iter().enumerate() {
            let there = if *fate == Fate::Confirmed { 1..=copies[message] } else { 0..=0 };
            prop_assert!(there.contains(&enqueued[message]), "{}: {} of {:?}", message, enqueued[message], there);
        }
    }
}
