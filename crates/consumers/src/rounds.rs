//! Rounds: the same numbered message at all instances becomes one line with a count.
//!
//! A round is printed when every instance has it, or some time after its first arrival with the count
//! so far. It is then forgotten, so what comes later opens it again and is printed with its own count.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use protocol::load::Hello;
use tokio::time::Instant;

/// Open rounds at most; the oldest is printed early to make room. 1,024 producers at once fit.
const OPEN_ROUNDS: usize = 1_024;

/// One message and how many instances have it. Displays as `6*[producer201.20902 says Hello 8]`.
#[derive(Debug)]
pub(crate) struct Round {
    hello: Hello,
    count: u64,
    flush_at: Instant,
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}*[{}]", self.count, self.hello)
    }
}

/// All open rounds, the oldest first. Few are open at a time, so a walk from the newest beats a map.
pub(crate) struct Rounds {
    expected: u64,
    flush_after: Duration,
    open: VecDeque<Round>,
}

impl Rounds {
    /// Rounds that are complete at `expected` arrivals and wait `flush_after` for them.
    pub(crate) fn new(expected: u64, flush_after: Duration) -> Self {
        Self { expected, flush_after, open: VecDeque::new() }
    }

    /// Enters one arrival; returns the round that is to be printed now, if one is.
    pub(crate) fn arrived(&mut self, hello: Hello, now: Instant) -> Option<Round> {
        let place = self.place_of(hello, now);
        let round = self.open.get_mut(place)?;
        round.count += 1;
        if round.count >= self.expected {
            return self.open.remove(place);
        }
        if self.open.len() > OPEN_ROUNDS { self.open.pop_front() } else { None }
    }

    /// The next round that has waited long enough.
    pub(crate) fn due(&mut self, now: Instant) -> Option<Round> {
        if self.open.front()?.flush_at <= now { self.open.pop_front() } else { None }
    }

    /// Everything that is open, the oldest first.
    pub(crate) fn flush(&mut self) -> impl Iterator<Item = Round> {
        self.open.drain(..)
    }

    fn place_of(&mut self, hello: Hello, now: Instant) -> usize {
        let same = |round: &Round| round.hello.number == hello.number && round.hello.producer == hello.producer;
        if let Some(place) = self.open.iter().rposition(same) {
            return place;
        }
        self.open.push_back(Round { hello, count: 0, flush_at: now + self.flush_after });
        self.open.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_secs(1);

    fn hello(number: u64) -> Hello {
        Hello { producer: "producer201.20902".to_owned(), number, sent_at_micros: None }
    }

    fn texts(rounds: impl IntoIterator<Item = Round>) -> Vec<String> {
        rounds.into_iter().map(|round| round.to_string()).collect()
    }

    #[test]
    fn a_round_is_printed_once_all_have_it() {
        let (mut rounds, now) = (Rounds::new(3, WAIT), Instant::now());
        assert!(rounds.arrived(hello(8), now).is_none());
        assert!(rounds.arrived(hello(8), now).is_none());
        assert_eq!(texts(rounds.arrived(hello(8), now)), ["3*[producer201.20902 says Hello 8]"]);
        assert_eq!(texts(rounds.flush()), [""; 0]);
    }

    #[test]
    fn an_incomplete_round_is_printed_after_the_wait_and_latecomers_apart() {
        let (mut rounds, start) = (Rounds::new(3, WAIT), Instant::now());
        assert!(rounds.arrived(hello(8), start).is_none());
        assert!(rounds.arrived(hello(8), start + WAIT / 2).is_none());
        assert!(rounds.due(start + WAIT * 9 / 10).is_none(), "the wait is not over");
        assert_eq!(texts(rounds.due(start + WAIT)), ["2*[producer201.20902 says Hello 8]"]);
        assert!(rounds.arrived(hello(8), start + WAIT * 2).is_none());
        assert_eq!(texts(rounds.due(start + WAIT * 3)), ["1*[producer201.20902 says Hello 8]"]);
    }

    #[test]
    fn rounds_of_several_producers_and_numbers_do_not_mix() {
        let (mut rounds, now) = (Rounds::new(2, WAIT), Instant::now());
        let other = Hello { producer: "producer202.1".to_owned(), ..hello(8) };
        for hello in [hello(8), other, hello(9)] {
            assert!(rounds.arrived(hello, now).is_none());
        }
        assert_eq!(texts(rounds.arrived(hello(9), now)), ["2*[producer201.20902 says Hello 9]"]);
        let rest = ["1*[producer201.20902 says Hello 8]", "1*[producer202.1 says Hello 8]"];
        assert_eq!(texts(rounds.flush()), rest);
    }

    #[test]
    fn a_single_instance_completes_each_round_at_once() {
        let mut rounds = Rounds::new(1, WAIT);
        assert_eq!(texts(rounds.arrived(hello(1), Instant::now())), ["1*[producer201.20902 says Hello 1]"]);
    }

    #[test]
    fn the_oldest_round_makes_room_and_is_still_printed() {
        let (mut rounds, now) = (Rounds::new(2, WAIT), Instant::now());
        let printed: Vec<Round> =
            (1..=OPEN_ROUNDS as u64 + 2).filter_map(|number| rounds.arrived(hello(number), now)).collect();
        assert_eq!(texts(printed), ["1*[producer201.20902 says Hello 1]", "1*[producer201.20902 says Hello 2]"]);
        assert_eq!(rounds.open.len(), OPEN_ROUNDS);
    }
}
