//! What one instance has seen of each producer's numbering: received, missing, duplicated, out of order.
//!
//! Pure and bounded: a healthy stream is one range however long it is, and what a limit makes this
//! forget is counted as unjudged, never guessed.

use std::collections::HashMap;
use std::ops::{AddAssign, RangeInclusive};

use rangemap::RangeInclusiveSet;

/// How much one [`Tally`] may remember.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Producer runs told apart; messages of any further one are unjudged.
    pub producers: usize,
    /// Separate ranges of numbers kept for each producer run. Beyond it the oldest gap is closed for
    /// good: it stays missing, and what still arrives from below it is unjudged.
    pub ranges: usize,
}

/// 256 ranges are some 8 KiB; a gap that old has long been lost or requeued and delivered.
pub const LIMITS: Limits = Limits { producers: 1_024, ranges: 256 };

/// What one message was, seen against all before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// First arrival, above all earlier numbers.
    New,
    /// First arrival, below a number that came earlier.
    OutOfOrder,
    /// This number had arrived before.
    Duplicate,
    /// Beyond what is remembered: late or a duplicate, nobody can say.
    Unjudged,
}

/// Sums over any number of streams. Each arrival is in exactly one of `received`, `duplicated`, `unjudged`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Numbers that arrived, each counted once.
    pub received: u64,
    /// Numbers between the lowest and the highest seen that did not arrive.
    pub missing: u64,
    /// Arrivals of a number that had arrived before.
    pub duplicated: u64,
    /// Of `received`, those that came after a higher number.
    pub out_of_order: u64,
    /// Arrivals that could not be judged any more (see [`Limits`]).
    pub unjudged: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.received = self.received.saturating_add(other.received);
        self.missing = self.missing.saturating_add(other.missing);
        self.duplicated = self.duplicated.saturating_add(other.duplicated);
        self.out_of_order = self.out_of_order.saturating_add(other.out_of_order);
        self.unjudged = self.unjudged.saturating_add(other.unjudged);
    }
}

/// The books of one instance. Empty, it owns no memory.
#[derive(Debug)]
pub struct Tally {
    limits: Limits,
    streams: HashMap<Box<str>, Stream>,
    beyond: u64,
}

impl Tally {
    /// Empty books that remember within `limits`.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, streams: HashMap::new(), beyond: 0 }
    }

    /// Enters the arrival of `number` from the producer run `producer` and says what it was.
    pub fn record(&mut self, producer: &str, number: u64) -> Verdict {
        if let Some(stream) = self.streams.get_mut(producer) {
            return stream.record(number, self.limits.ranges);
        }
        if self.streams.len() >= self.limits.producers {
            self.beyond += 1;
            return Verdict::Unjudged;
        }
        self.streams.entry(producer.into()).or_default().record(number, self.limits.ranges)
    }

    /// The sums over all producer runs.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut sum = Counts { unjudged: self.beyond, ..Counts::default() };
        for stream in self.streams.values() {
            sum += stream.counts();
        }
        sum
    }

    /// Each producer run that lacks numbers, how many, and the lowest gap that is still remembered.
    pub fn gaps(&self) -> impl Iterator<Item = (&str, u64, Option<RangeInclusive<u64>>)> {
        self.streams.iter().filter_map(|(producer, stream)| {
            let missing = stream.missing();
            (missing > 0).then(|| (&**producer, missing, stream.first_gap()))
        })
    }
}

/// The numbers of one producer run.
#[derive(Debug, Default)]
struct Stream {
    seen: RangeInclusiveSet<u64>,
    /// Nothing at or below it can be judged any more.
    floor: Option<u64>,
    missing_below_floor: u64,
    counts: Counts,
}

impl Stream {
    fn record(&mut self, number: u64, ranges: usize) -> Verdict {
        if self.floor.is_some_and(|floor| number <= floor) {
            self.counts.unjudged += 1;
            return Verdict::Unjudged;
        }
        if self.seen.contains(&number) {
            self.counts.duplicated += 1;
            return Verdict::Duplicate;
        }
        let late = self.seen.last().is_some_and(|highest| number < *highest.end());
        self.seen.insert(number..=number);
        self.counts.received += 1;
        self.close_oldest_gaps(ranges.max(1));
        if late {
            self.counts.out_of_order += 1;
            Verdict::OutOfOrder
        } else {
            Verdict::New
        }
    }

    fn close_oldest_gaps(&mut self, ranges: usize) {
        while self.seen.len() > ranges {
            let Some(gap) = self.first_gap() else { return };
            self.missing_below_floor = self.missing_below_floor.saturating_add(span(&gap));
            self.seen.remove(0..=*gap.end());
            self.floor = Some(*gap.end());
        }
    }

    fn first_gap(&self) -> Option<RangeInclusive<u64>> {
        let mut ranges = self.seen.iter();
        let (first, second) = (ranges.next()?, ranges.next()?);
        Some(first.end() + 1..=second.start() - 1)
    }

    /// Sums the gaps themselves: the whole span less what is held would not fit when it is all of u64.
    fn missing(&self) -> u64 {
        let pairs = self.seen.iter().zip(self.seen.iter().skip(1));
        let gaps = pairs.map(|(low, high)| span(&(low.end() + 1..=high.start() - 1)));
        gaps.fold(self.missing_below_floor, u64::saturating_add)
    }

    fn counts(&self) -> Counts {
        Counts { missing: self.missing(), ..self.counts }
    }
}

/// How many numbers a range holds.
fn span(range: &RangeInclusive<u64>) -> u64 {
    (range.end() - range.start()).saturating_add(1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn after(numbers: &[u64]) -> Counts {
        let mut tally = Tally::new(LIMITS);
        for number in numbers {
            tally.record("producer201.7", *number);
        }
        tally.counts()
    }

    #[test]
    fn a_stream_joined_in_the_middle_misses_nothing_before_it() {
        assert_eq!(after(&[8, 9, 10]), Counts { received: 3, ..Counts::default() });
    }

    #[test]
    fn gaps_repeats_and_latecomers_are_told_apart() {
        let mut tally = Tally::new(LIMITS);
        let verdicts = [1, 2, 5, 3, 5, 3, 9].map(|number| tally.record("p", number));
        use Verdict::{Duplicate, New, OutOfOrder};
        assert_eq!(verdicts, [New, New, New, OutOfOrder, Duplicate, Duplicate, New]);
        assert_eq!(tally.counts(), Counts { received: 5, missing: 4, duplicated: 2, out_of_order: 1, unjudged: 0 });
        assert_eq!(tally.gaps().collect::<Vec<_>>(), [("p", 4, Some(4..=4))]);
    }

    #[test]
    fn a_number_below_the_first_seen_moves_the_start() {
        assert_eq!(after(&[5, 3]), Counts { received: 2, missing: 1, out_of_order: 1, ..Counts::default() });
    }

    #[test]
    fn producer_runs_do_not_mix() {
        let mut tally = Tally::new(LIMITS);
        for (producer, number) in [("a.1", 1), ("a.2", 9), ("a.1", 2), ("a.2", 10)] {
            assert_eq!(tally.record(producer, number), Verdict::New);
        }
        assert_eq!(tally.counts(), Counts { received: 4, ..Counts::default() });
    }

    #[test]
    fn the_ends_of_the_number_range_neither_panic_nor_wrap() {
        assert_eq!(
            after(&[u64::MAX, 0, u64::MAX, 0]),
            Counts { received: 2, missing: u64::MAX - 1, duplicated: 2, out_of_order: 1, unjudged: 0 }
        );
    }

    #[test]
    fn what_the_limits_forget_is_counted_as_unjudged() {
        let mut tally = Tally::new(Limits { producers: 1, ranges: 2 });
        for number in [1, 3, 5] {
            tally.record("p", number);
        }
        assert_eq!(tally.record("p", 2), Verdict::Unjudged, "its gap was closed when 5 opened a third range");
        assert_eq!(tally.record("p", 1), Verdict::Unjudged);
        assert_eq!(tally.record("p", 4), Verdict::OutOfOrder);
        assert_eq!(tally.record("q", 1), Verdict::Unjudged, "one producer run is all it may remember");
        assert_eq!(tally.counts(), Counts { received: 4, missing: 1, duplicated: 0, out_of_order: 1, unjudged: 3 });
    }

    fn model(numbers: &[u64]) -> Counts {
        let mut counts = Counts::default();
        let mut seen = BTreeSet::new();
        for number in numbers {
            if seen.contains(number) {
                counts.duplicated += 1;
                continue;
            }
            if seen.last().is_some_and(|highest| number < highest) {
                counts.out_of_order += 1;
            }
            seen.insert(*number);
            counts.received += 1;
        }
        if let (Some(first), Some(last)) = (seen.first(), seen.last()) {
            counts.missing = (*first..=*last).filter(|number| !seen.contains(number)).count() as u64;
        }
        counts
    }

    proptest! {
        #[test]
        fn agrees_with_a_list_of_all_numbers(numbers in prop::collection::vec(0_u64..60, 0..200)) {
            prop_assert_eq!(after(&numbers), model(&numbers));
        }

        #[test]
        fn within_tight_limits_every_arrival_and_every_number_is_accounted_for(
            numbers in prop::collection::vec(0_u64..60, 1..200),
            ranges in 1_usize..4,
        ) {
            let mut tally = Tally::new(Limits { producers: 1, ranges });
            let judged: Vec<u64> = numbers
                .iter()
                .copied()
                .filter(|number| tally.record("p", *number) != Verdict::Unjudged)
                .collect();
            let counts = tally.counts();
            prop_assert_eq!(Counts { unjudged: 0, ..counts }, model(&judged));
            prop_assert_eq!(counts.received + counts.duplicated + counts.unjudged, numbers.len() as u64);
        }
    }
}
