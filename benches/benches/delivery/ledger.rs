//! What a lane pays to turn settlements into few acks, in the orders in which sessions settle.

use std::{collections::VecDeque, hint::black_box};

use broker::ledger::{DeliveryTag, Ledger, Outcome, Write};
use criterion::{BatchSize, Criterion, Throughput};
use rand::{RngExt, seq::SliceRandom};

use crate::bodies::generator;

/// Delivered on the lane in one iteration.
const TAGS: DeliveryTag = 10_000;
/// 20 ms, the default of `--ack-interval`, of 20,000 deliveries a second.
const SETTLED_PER_FLUSH: usize = 400;
/// What one lane holds at the default window.
const SESSIONS: usize = 128;
/// The default of `--window`.
const WINDOW: usize = 16;

pub(crate) fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("ledger settle");
    for (name, order) in [
        ("in order", (1..=TAGS).collect()),
        ("128 sessions, window 16", settled_by_sessions()),
        ("10 % stay open", settled_but_for_a_tenth()),
        ("shuffled", shuffled()),
    ] {
        group.throughput(Throughput::Elements(order.len() as u64));
        group.bench_function(name, |b| {
            // The buffer of writes is the lane's and lives as long.
            let fresh = || (Ledger::default(), Vec::with_capacity(order.len()));
            b.iter_batched(fresh, |(ledger, writes)| settle_all(ledger, writes, &order), BatchSize::LargeInput);
        });
    }
    group.finish();
}

/// Settles in the order given, with a flush after every 400 and as many at the end as it takes. No ack is urgent: at
/// this rate a session settles about three deliveries between two flushes, and they become urgent at half a window.
fn settle_all(mut ledger: Ledger, mut writes: Vec<Write>, order: &[DeliveryTag]) -> (Ledger, Vec<Write>) {
    for settled in order.chunks(SETTLED_PER_FLUSH) {
        settled.iter().for_each(|&tag| ledger.settle(tag, Outcome::Ack, false));
        flush(&mut ledger, &mut writes);
    }
    while !ledger.is_idle() {
        flush(&mut ledger, &mut writes);
    }
    (ledger, writes)
}

fn flush(ledger: &mut Ledger, writes: &mut Vec<Write>) {
    writes.clear();
    ledger.flush(writes);
    black_box(writes);
}

/// Each session settles its own deliveries in order and gets the next tag of the lane for it; which session is next is
/// chance.
fn settled_by_sessions() -> Vec<DeliveryTag> {
    let mut generator = generator();
    let mut undelivered = 1..=TAGS;
    let mut sessions: Vec<VecDeque<DeliveryTag>> = vec![VecDeque::new(); SESSIONS];
    for _ in 0..WINDOW {
        sessions.iter_mut().for_each(|session| session.extend(undelivered.next()));
    }
    let mut order = Vec::new();
    while !sessions.is_empty() {
        let at = generator.random_range(0..sessions.len());
        match sessions.get_mut(at) {
            Some(session) if !session.is_empty() => {
                order.extend(session.pop_front());
                session.extend(undelivered.next());
            }
            _ => drop(sessions.swap_remove(at)),
        }
    }
    assert_eq!(order.len() as u64, TAGS, "each tag is settled");
    order
}

/// The tags in order, less those of peers that take nothing: each hole stays until the end.
fn settled_but_for_a_tenth() -> Vec<DeliveryTag> {
    let mut tags = shuffled();
    tags.truncate(tags.len() * 9 / 10);
    tags.sort_unstable();
    tags
}

/// Worse than any lane: all 10,000 tags are out at once.
fn shuffled() -> Vec<DeliveryTag> {
    let mut tags: Vec<_> = (1..=TAGS).collect();
    tags.shuffle(&mut generator());
    tags
}
