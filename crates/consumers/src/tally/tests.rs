use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const PLAIN: Marks = Marks { redelivered: false, republished: false };
const REDELIVERED: Marks = Marks { redelivered: true, republished: false };
const REPUBLISHED: Marks = Marks { redelivered: false, republished: true };
const BOTH: Marks = Marks { redelivered: true, republished: true };

fn after(numbers: &[u64]) -> Counts {
    let mut tally = Tally::new(LIMITS);
    for number in numbers {
        tally.record("producer201.7", *number, PLAIN);
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
    let verdicts = [1, 2, 5, 3, 5, 3, 9].map(|number| tally.record("p", number, PLAIN));
    use Verdict::{Duplicate, New, OutOfOrder};
    assert_eq!(verdicts, [New, New, New, OutOfOrder, Duplicate, Duplicate, New]);
    assert_eq!(tally.counts(), Counts { received: 5, missing: 4, duplicated: 2, out_of_order: 1, ..Counts::default() });
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
        assert_eq!(tally.record(producer, number, PLAIN), Verdict::New);
    }
    assert_eq!(tally.counts(), Counts { received: 4, ..Counts::default() });
}

#[test]
fn the_ends_of_the_number_range_neither_panic_nor_wrap() {
    assert_eq!(
        after(&[u64::MAX, 0, u64::MAX, 0]),
        Counts { received: 2, missing: u64::MAX - 1, duplicated: 2, out_of_order: 1, ..Counts::default() }
    );
}

#[test]
fn what_the_limits_forget_is_counted_as_unjudged() {
    let mut tally = Tally::new(Limits { producers: 1, ranges: 2 });
    for number in [1, 3, 5] {
        tally.record("p", number, PLAIN);
    }
    assert_eq!(tally.record("p", 2, PLAIN), Verdict::Unjudged, "its gap was closed when 5 opened a third range");
    assert_eq!(tally.record("p", 1, PLAIN), Verdict::Unjudged);
    assert_eq!(tally.record("p", 4, PLAIN), Verdict::OutOfOrder);
    assert_eq!(tally.record("q", 1, PLAIN), Verdict::Unjudged, "one producer run is all it may remember");
    assert_eq!(tally.counts(), Counts { received: 4, missing: 1, out_of_order: 1, unjudged: 3, ..Counts::default() });
}

#[test]
fn what_comes_again_is_told_apart_by_its_marks() {
    let verdicts = |arrivals: &[Marks]| {
        let mut tally = Tally::new(LIMITS);
        arrivals.iter().map(|marks| tally.record("p", 1, *marks)).collect::<Vec<_>>()
    };
    use Verdict::{Duplicate, New, Redelivered, Republished};
    assert_eq!(verdicts(&[PLAIN, PLAIN]), [New, Duplicate]);
    assert_eq!(verdicts(&[PLAIN, REDELIVERED, PLAIN]), [New, Redelivered, Duplicate]);
    assert_eq!(verdicts(&[PLAIN, REPUBLISHED]), [New, Republished]);
    assert_eq!(verdicts(&[REPUBLISHED, PLAIN]), [New, Republished], "the second publish came first");
    assert_eq!(verdicts(&[REPUBLISHED, REPUBLISHED]), [New, Republished], "cut off twice");
    assert_eq!(verdicts(&[PLAIN, BOTH]), [New, Redelivered]);
    assert_eq!(verdicts(&[BOTH, PLAIN]), [New, Republished], "the copy whose ack was lost was the second publish");
    assert_eq!(verdicts(&[REDELIVERED, PLAIN]), [New, Duplicate], "a mark of the first arrival explains no second");
}

#[test]
fn each_kind_has_its_sum_and_other_numbers_are_not_excused() {
    let mut tally = Tally::new(LIMITS);
    for (number, marks) in [(1, PLAIN), (2, REPUBLISHED), (2, PLAIN), (1, REDELIVERED), (1, PLAIN), (3, PLAIN)] {
        tally.record("p", number, marks);
    }
    let expected = Counts { received: 3, redelivered: 1, republished: 1, duplicated: 1, ..Counts::default() };
    assert_eq!(tally.counts(), expected);
}

#[test]
fn a_republished_number_that_was_forgotten_is_not_called_a_duplicate() {
    let mut tally = Tally::new(Limits { producers: 1, ranges: 2 });
    for number in 1..=6 {
        tally.record("p", number, if number % 2 == 0 { REPUBLISHED } else { PLAIN });
    }
    assert_eq!(tally.streams["p"].republished.len(), 2, "4 and 6 are remembered, 2 is not");
    let again = [2, 4, 5, 6, 1].map(|number| tally.record("p", number, PLAIN));
    use Verdict::{Duplicate, Republished, Unjudged};
    assert_eq!(again, [Unjudged, Republished, Duplicate, Republished, Unjudged]);
    assert_eq!(tally.record("p", 1, REDELIVERED), Verdict::Redelivered, "a mark of its own needs no memory");
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
            .filter(|number| tally.record("p", *number, PLAIN) != Verdict::Unjudged)
            .collect();
        let counts = tally.counts();
        prop_assert_eq!(Counts { unjudged: 0, ..counts }, model(&judged));
        prop_assert_eq!(counts.received + counts.duplicated + counts.unjudged, numbers.len() as u64);
    }

    #[test]
    fn marks_change_what_a_copy_is_called_and_nothing_else(
        arrivals in prop::collection::vec((0_u64..30, any::<bool>(), any::<bool>()), 1..200),
    ) {
        let mut tally = Tally::new(LIMITS);
        let mut seen = std::collections::BTreeMap::<u64, bool>::new();
        let mut expected = Counts::default();
        for (number, redelivered, republished) in arrivals.iter().copied() {
            tally.record("p", number, Marks { redelivered, republished });
            match seen.get(&number) {
                None => {
                    seen.insert(number, republished);
                }
                Some(_) if redelivered => expected.redelivered += 1,
                Some(first) if republished || *first => expected.republished += 1,
                Some(_) => expected.duplicated += 1,
            }
        }
        let numbers: Vec<u64> = arrivals.iter().map(|(number, ..)| *number).collect();
        let plain = model(&numbers);
        prop_assert_eq!(tally.counts(), Counts { duplicated: expected.duplicated, redelivered: expected.redelivered,
            republished: expected.republished, ..plain });
    }
}
