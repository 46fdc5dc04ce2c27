//! What one instance has seen of each producer's numbering: received, missing, come again, out of order.
//!
//! Pure and bounded: a healthy stream is one range however long it is, and what a limit makes this
//! forget is counted as unjudged, never guessed.
//!
//! Message-ids are not kept. `producers` name a message after their run and its number, so the same number of the same
//! run is the same message-id, and the ranges of numbers stand for all ids ever seen. Beside them only the numbers whose
//! first arrival was marked as republished are kept, since a copy without any mark may follow it. What this cannot tell:
//! a true duplicate that is marked as redelivered (whoever sets that mark in error hides it), and one of a message that
//! was republished anyway, of which every further copy passes for the producer's.

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

/// What an arrival says about itself; nothing in raw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// The broker or the proxy had sent it before, to whomever.
    pub redelivered: bool,
    /// Its producer had published it before.
    pub republished: bool,
}

/// What one message was, seen against all before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// First arrival, above all earlier numbers.
    New,
    /// First arrival, below a number that came earlier.
    OutOfOrder,
    /// This number had arrived before, and this arrival is marked as redelivered.
    Redelivered,
    /// This number had arrived before, and one of its arrivals is marked as republished.
    Republished,
    /// This number had arrived before, and nothing explains why it comes again.
    Duplicate,
    /// Beyond what is remembered: late or a duplicate, nobody can say.
    Unjudged,
}

impl Verdict {
    /// Whether it is the first arrival of its number.
    #[must_use]
    pub fn is_first(self) -> bool {
        matches!(self, Self::New | Self::OutOfOrder)
    }

    /// Whether its number had arrived before.
    #[must_use]
    pub fn is_copy(self) -> bool {
        matches!(self, Self::Redelivered | Self::Republished | Self::Duplicate)
    }
}

/// Sums over any number of streams. Each arrival is in exactly one of `received`, `redelivered`, `republished`,
/// `duplicated`, `unjudged`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Numbers that arrived, each counted once.
    pub received: u64,
    /// Numbers between the lowest and the highest seen that did not arrive.
    pub missing: u64,
    /// Arrivals of a number that had arrived before, marked as redelivered.
    pub redelivered: u64,
    /// Arrivals of a number that had arrived before, of a message that was published again.
    pub republished: u64,
    /// Arrivals of a number that had arrived before, for no good reason.
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
        self.redelivered = self.redelivered.saturating_add(other.redelivered);
        self.republished = self.republished.saturating_add(other.republished);
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
    pub fn record(&mut self, producer: &str, number: u64, marks: Marks) -> Verdict {
        if let Some(stream) = self.streams.get_mut(producer) {
            return stream.record(number, marks, self.limits.ranges);
        }
        if self.streams.len() >= self.limits.producers {
            self.beyond += 1;
            return Verdict::Unjudged;
        }
        self.streams.entry(producer.into()).or_default().record(number, marks, self.limits.ranges)
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
    /// Whose first arrival was marked as republished. As many ranges as of `seen` at most.
    republished: RangeInclusiveSet<u64>,
    /// Nothing at or below it is in `republished` any more, whether it was or not.
    republished_floor: Option<u64>,
    counts: Counts,
}

impl Stream {
    fn record(&mut self, number: u64, marks: Marks, ranges: usize) -> Verdict {
        let verdict = if self.floor.is_some_and(|floor| number <= floor) {
            Verdict::Unjudged
        } else if self.seen.contains(&number) {
            self.judge_copy(number, marks)
        } else {
            self.enter(number, marks, ranges.max(1))
        };
        self.count(verdict);
        verdict
    }

    fn enter(&mut self, number: u64, marks: Marks, ranges: usize) -> Verdict {
        let late = self.seen.last().is_some_and(|highest| number < *highest.end());
        self.seen.insert(number..=number);
        self.close_oldest_gaps(ranges);
        if marks.republished {
            self.remember_republished(number, ranges);
        }
        if late { Verdict::OutOfOrder } else { Verdict::New }
    }

    fn judge_copy(&self, number: u64, marks: Marks) -> Verdict {
        if marks.redelivered {
            Verdict::Redelivered
        } else if marks.republished || self.republished.contains(&number) {
            Verdict::Republished
        } else if self.republished_floor.is_some_and(|floor| number <= floor) {
            Verdict::Unjudged
        } else {
            Verdict::Duplicate
        }
    }

    fn remember_republished(&mut self, number: u64, ranges: usize) {
        self.republished.insert(number..=number);
        while self.republished.len() > ranges {
            let Some(oldest) = self.republished.first().cloned() else { return };
            self.republished_floor = self.republished_floor.max(Some(*oldest.end()));
            self.republished.remove(oldest);
        }
    }

    fn count(&mut self, verdict: Verdict) {
        let counts = &mut self.counts;
        match verdict {
            Verdict::New => counts.received += 1,
            Verdict::OutOfOrder => {
                counts.received += 1;
                counts.out_of_order += 1;
            }
            Verdict::Redelivered => counts.redelivered += 1,
            Verdict::Republished => counts.republished += 1,
            Verdict::Duplicate => counts.duplicated += 1,
            Verdict::Unjudged => counts.unjudged += 1,
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
mod tests;
